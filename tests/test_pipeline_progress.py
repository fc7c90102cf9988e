"""What a pipeline prints while its stages run."""

import io

import pytest

from fgrlhf.pipeline import progress
from fgrlhf.pipeline.progress import Progress, StageProgress, progress_line


class Terminal(io.StringIO):
    def isatty(self):
        return True


def watched(out, log, text, monkeypatch) -> Progress:
    """A pipeline that has just started, a second after its last look at a stage."""
    log.write_bytes(text)
    monkeypatch.setattr(progress, "PULSE", 0.0)
    shown = Progress(out)
    shown._sampled -= 1.0
    shown.watch([StageProgress("sft", 65.0, log), StageProgress("waits", 0.0, log / "missing")])
    return shown


@pytest.mark.parametrize("text, last", [(b"old\n 10%\r 20%", "20%"), (b"\n", "(no output yet)")])
def test_a_line_per_stage_without_a_terminal(tmp_path, monkeypatch, text, last):
    out = io.StringIO()
    shown = watched(out, tmp_path / "sft.log", text, monkeypatch)
    assert out.getvalue() == f"[ 0:00]   sft  1:05 {last}\n[ 0:00]   waits  0:00 (in the queue)\n"
    assert shown.peak_mb > 0


def test_one_line_on_a_terminal(tmp_path, monkeypatch):
    out = Terminal()
    shown = watched(out, tmp_path / "sft.log", b"10%", monkeypatch)
    line = "[ 0:00] sft  1:05 10% | waits  0:00 (in the queue)"
    assert out.getvalue() == line
    shown.say("sft: done")  # in its place
    assert out.getvalue() == f"{line}\r{' ' * len(line)}\r[ 0:00] sft: done\n"


def test_the_progress_line_fits_the_terminal():
    parts = ["sft  1:00 loss 0.1", "comp_rm  0:02 step 3"]
    assert progress_line(" 1:01", parts, 80) == f"[ 1:01] {' | '.join(parts)}"
    assert progress_line(" 1:01", parts, 48) == "[ 1:01] sft  1:00 loss 0 | comp_rm  0:02 st"
    many = progress_line(" 1:01", [f"stage{i}  1:00 10%" for i in range(20)], 80)
    assert "stage0  1:00 | stage1  1:00 | " in many and len(many) == 79
