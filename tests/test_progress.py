"""Progress outside a terminal: plain lines, or nothing for short work."""

import pytest

from fgrlhf.runs import progress


def lines_of(capsys, enabled=True) -> list[str]:
    bar = progress.progress_bar(4, "evaluating", "prompt", initial=1, enabled=enabled)
    for _ in range(3):
        bar.set_postfix(kl="0.5", refresh=False)
        bar.update()
    bar.close()
    printed = capsys.readouterr().err
    assert "\r" not in printed
    return printed.splitlines()


def test_every_state_is_a_line_of_its_own(capsys, monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    lines = lines_of(capsys)
    assert all(line.startswith("evaluating: ") for line in lines)
    assert lines[-1].startswith("evaluating: 4/4 prompt, ") and lines[-1].endswith(", kl=0.5")


@pytest.mark.parametrize("seconds, enabled", [(1e6, True), (0.0, False)])
def test_short_work_and_other_ranks_print_nothing(capsys, monkeypatch, seconds, enabled):
    monkeypatch.setattr(progress, "LINE_SECONDS", seconds)
    assert lines_of(capsys, enabled) == []


def test_the_phase_of_a_batch_is_shown(capsys, monkeypatch):
    """Also after a count: 32 prompts may take minutes."""
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    bar = progress.progress_bar(64, "evaluating", "prompt")
    for _ in range(2):
        progress.show_phase(bar, "sampling")
        progress.show_phase(bar, "scoring")
        bar.update(32)
    bar.close()
    _, *lines = capsys.readouterr().err.splitlines()  # the first one is of the new bar
    assert [(line.split()[1], line.split()[-1]) for line in lines] == [
        ("0/64", "sampling"),
        ("0/64", "scoring"),
        ("32/64", "scoring"),
        ("32/64", "sampling"),
        ("32/64", "scoring"),
        ("64/64", "scoring"),
    ]


def test_a_phase_is_no_line_of_its_own_in_short_work(capsys, monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", 1e6)
    bar = progress.progress_bar(64, "evaluating", "prompt")
    progress.show_phase(bar, "sampling")
    bar.close()
    assert capsys.readouterr().err == ""


def test_a_disabled_bar_can_be_paused():
    with progress.paused(progress.progress_bar(2, "training", "step", enabled=False)):
        pass
