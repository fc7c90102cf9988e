"""`python -m fgrlhf`, where the command `fgrlhf` is not on the PATH."""

from fgrlhf.cli.main import entry_point

if __name__ == "__main__":
    entry_point()
