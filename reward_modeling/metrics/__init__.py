"""Local modules for `evaluate.load`, each a file of its own."""
