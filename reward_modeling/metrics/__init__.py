"""Local metric modules for `evaluate.load`, one per file."""

__all__: list[str] = []
