"""Studies on the tasks: `python -m tasks.experiments` lists them."""
