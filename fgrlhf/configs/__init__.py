"""Strict configs: typed classes, YAML files, overrides and the messages for mistakes in them."""

__all__ = [
    "overrides",
    "sections",
    "strict",
    "user_class",
    "yaml_files",
]
