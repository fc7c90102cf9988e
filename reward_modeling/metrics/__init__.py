"""Local metric modules for `evaluate.load`, one per file."""
