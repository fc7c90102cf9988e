"""`scripts/browser.py`: when a browser is installed, and how."""

import pytest

from scripts import browser


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine without a browser, with apt-get."""
    (tmp_path / "apt-get").write_text("#!/bin/sh\n")
    (tmp_path / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    return tmp_path


def commands_run(machine, succeed: str, again: bool = False) -> list[str]:
    run: list[str] = []

    def fake(command):
        run.append(" ".join(command[-3:]))
        return succeed in command

    browser.install(again, machine / "stamp", fake)
    return run


def test_playwrights_own_browser_comes_first(machine, capsys):
    assert commands_run(machine, "install") == ["install --only-shell chromium"]
    assert "no browser could be installed" not in capsys.readouterr().out
    assert commands_run(machine, "install") == []  # there is one now


def test_then_debians(machine, monkeypatch, capsys):
    package = "--yes --no-install-recommends chromium-headless-shell"
    both = ["install --only-shell chromium", "apt-get update", package]
    assert commands_run(machine, "update") == both  # the package is not to be had
    assert "To try again: python -m scripts.browser again=true" in capsys.readouterr().out
    assert commands_run(machine, "update") == []  # and it is not asked for again
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert commands_run(machine, "nothing", again=True) == both[:1]


def test_a_browser_on_path_is_enough(machine):
    (machine / "chromium").write_text("#!/bin/sh\n")
    (machine / "chromium").chmod(0o755)
    assert browser.on_path() == str(machine / "chromium")
    assert commands_run(machine, "install") == [] and not (machine / "stamp").exists()
