"""Installs a headless browser for the tests of pages where there is none: `make test` runs it.

Playwright's own browser comes first, which needs no rights; then, for root on Debian, the package.
Without either, those tests skip. After a failure, it is tried again only by

    python -m scripts.browser again=true

so that `make test` does not wait for a network that is not there.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import Field

from fgrlhf.base.program import run_main
from fgrlhf.cli.command_line import settings_from
from fgrlhf.configs.strict import StrictModel

STAMP = Path(__file__).parents[1] / ".venv" / ".browser"
# The first of these on PATH is used; chromium-headless-shell opens pages faster than the others.
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
SECONDS = 300  # of each way
USAGE = "usage: python -m scripts.browser [again=true]"
Run = Callable[[Sequence[str]], bool]


class BrowserSettings(StrictModel):
    """When a browser is installed."""

    again: bool = Field(default=False, description="also after an attempt that failed")


def on_path() -> str | None:
    """The browser on PATH that the tests use."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


def ways() -> list[list[list[str]]]:
    """The ways to install a browser, each as its commands."""
    found = [[[sys.executable, "-m", "playwright", "install", "--only-shell", "chromium"]]]
    if shutil.which("apt-get") and os.geteuid() == 0:
        package = ["apt-get", "install", "--yes", "--no-install-recommends", BROWSERS[0]]
        found.append([["apt-get", "update"], package])
    return found


def succeeds(command: Sequence[str]) -> bool:
    """Run a command without its output."""
    try:
        return not subprocess.run(command, capture_output=True, timeout=SECONDS).returncode
    except (OSError, subprocess.TimeoutExpired):
        return False


def install(again: bool = False, stamp: Path = STAMP, run: Run = succeeds) -> None:
    """Install a browser unless there is one, or it was tried before."""
    if on_path() is not None or (stamp.exists() and not again):
        return
    print("setup: installing a headless browser for the tests of pages", flush=True)
    done = any(all(run(command) for command in commands) for commands in ways())
    if not done:
        print(
            "setup: no browser could be installed, so the tests of pages skip (Debian: apt-get"
            f" install {BROWSERS[0]}). To try again: python -m scripts.browser again=true",
            flush=True,
        )
    stamp.touch()


def main(argv: Sequence[str] | None = None) -> None:
    install(settings_from(BrowserSettings, argv, USAGE).again)


if __name__ == "__main__":
    run_main(main)
