"""Strict configs: typed classes, YAML files, overrides and the messages for mistakes in them."""
