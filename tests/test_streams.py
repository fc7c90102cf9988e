"""What programs print if a stream has another encoding or is closed, or if memory runs out."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fgrlhf.base.errors import printable, shorten
from fgrlhf.base.program import CLOSED_OUTPUT, why_refused

ROOT = Path(__file__).parents[1]
PROGRAM = """
import sys
from fgrlhf.base.errors import UserError
from fgrlhf.base.program import run_main

def main():
    print("a cat \\N{CAT} caf\\N{LATIN SMALL LETTER E WITH ACUTE}")
    open("done", "w").close()
    if sys.argv[1] == "error":
        raise UserError("no \\N{CAT}")
    if sys.argv[1] == "memory":
        raise MemoryError

run_main(main)
"""


def run(folder, end="", redirect="", encoding="utf-8", stdout=subprocess.PIPE):
    script = folder / "program.py"
    script.write_text(PROGRAM)
    command = f'exec "{sys.executable}" "{script}" "{end}" {redirect}'
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": encoding},
        stdout=stdout,
        stderr=subprocess.PIPE,
    )


@pytest.mark.parametrize(
    "encoding, printed",
    [
        ("latin-1", b"a cat \\U0001f408 caf\xe9\n"),
        ("ascii", b"a cat \\U0001f408 caf\\xe9\n"),
        ("utf-8", "a cat 🐈 café\n".encode()),
    ],
)
def test_text_that_the_encoding_lacks_is_escaped(encoding, printed, tmp_path):
    ended = run(tmp_path, "error", encoding=encoding)
    assert ended.stdout == printed and ended.returncode == 2
    assert ended.stderr == "error: no 🐈\n".encode(encoding, "backslashreplace")


@pytest.mark.parametrize("redirect", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_do_not_matter(redirect, tmp_path):
    assert run(tmp_path, redirect=redirect).returncode == 0
    assert (tmp_path / "done").exists()
    assert run(tmp_path, "error", redirect).returncode == 2


def test_a_reader_that_is_gone_ends_the_program_silently(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    ended = run(tmp_path, stdout=writer)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (CLOSED_OUTPUT, b"")


def test_a_lack_of_memory_has_a_message(tmp_path):
    ended = run(tmp_path, "memory")
    assert ended.returncode == 2 and ended.stderr.startswith(b"error: there is not enough memory")
    assert why_refused(ValueError("memory")) is None


def test_control_characters_do_not_reach_the_terminal(tmp_path):
    text = "a\x1b[31mred\x07\x9b2J\rb"
    assert printable(text + "\n\t") == "a\\x1b[31mred\\x07\\x9b2J\\x0db\n\t"
    assert shorten(text) == "a\\x1b[31mred\\x07\\x9b2J b"
    rows = tmp_path / "rows.jsonl"
    rows.write_text(f'{{"prompt": "{text[:1]}\\u001b[31m", "{chr(0x9B)}2J": 1}}\n')
    shown = subprocess.run(
        [sys.executable, "-m", "fgrlhf.cli.data", "show", rows],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    assert b"\\x9b2J" in shown.stdout and not {0x1B, 0x07} & set(shown.stdout)
