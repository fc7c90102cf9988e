import errno
import gzip
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from fgrlhf.base import files, secrets
from fgrlhf.base.errors import UserError
from fgrlhf.base.program import CLOSED_OUTPUT, run_main
from fgrlhf.base.seeds import derive_seed
from fgrlhf.utils import masked_mean, masked_sum, masked_var, seeded, whiten

X = torch.tensor([[1.0, 2.0, 100.0], [3.0, 4.0, 6.0]])
MASK = torch.tensor([[1, 1, 0], [1, 1, 1]])  # 1 2 3 4 6: mean 3.2, variance 2.96


def test_masked_moments_by_hand():
    assert masked_sum(X, MASK) == 16 and masked_mean(X, MASK) == pytest.approx(3.2)
    assert masked_var(X, MASK) == pytest.approx(2.96)
    assert masked_mean(X, torch.zeros_like(MASK)) == 0
    poisoned = torch.where(MASK.bool(), X, torch.nan)
    assert masked_mean(poisoned, MASK) == pytest.approx(3.2)
    assert masked_var(poisoned, MASK) == pytest.approx(2.96)


def test_whitening_by_hand():
    std = 2.96**0.5
    white = whiten(X, MASK)
    assert white[0, 2] == 0 and white[0, 0] == pytest.approx(-2.2 / std, abs=1e-6)
    assert masked_mean(white, MASK) == pytest.approx(0, abs=1e-6)
    assert masked_var(white, MASK) == pytest.approx(1, abs=1e-5)
    kept = whiten(X, MASK, shift_mean=False)
    assert kept[0, 0] == pytest.approx(1 / std, abs=1e-6) and kept[0, 2] == 0
    assert masked_var(kept, MASK) == pytest.approx(1, abs=1e-5)
    published = whiten(X, MASK, divide_by="sqrt_std")
    assert published[0, 0] == pytest.approx(-2.2 / std**0.5, abs=1e-5)
    # padding is not masked: deviation D2
    assert published[0, 2] == pytest.approx(96.8 / std**0.5, abs=1e-3)
    unshifted = whiten(X, MASK, shift_mean=False, divide_by="sqrt_std")[0, 0]
    assert unshifted == pytest.approx(3.2 - 2.2 / std**0.5, abs=1e-5)


def test_whitening_leaves_rounding_errors_small():
    """The mean of equal numbers is off by their rounding: they still have no spread."""
    for value in (0.3, 1.3, 5.1, 1000.7):
        x = torch.full((4, 317), value)
        assert whiten(x, torch.ones_like(x)).abs().max() < 1e-3


def test_whitened_rewards_pay_nothing_for_length():
    """Deviation D15: a token without reward keeps reward zero.

    As published, every token gets mean (1 - 1/sqrt(std)).
    """
    rewards, mask = torch.tensor([[0.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 0.0]]), torch.ones(2, 4)
    mask[1, 2:] = 0
    white = whiten(rewards, mask, shift_mean=False)
    assert white[0, 0] == white[0, 3] == white[1, 0] == 0 and white[0, 2] == white[1, 1] > 0
    mean, std = 1 / 3, (2 / 9) ** 0.5
    published = whiten(rewards, mask, shift_mean=False, divide_by="sqrt_std")
    assert published[0, 0] == pytest.approx(mean * (1 - std**-0.5), abs=1e-6)


def test_whitening_ignores_affine_changes_and_padding():
    torch.testing.assert_close(whiten(5 * X - 3, MASK), whiten(X, MASK))
    poisoned = torch.where(MASK.bool(), X, torch.inf)
    torch.testing.assert_close(whiten(poisoned, MASK), whiten(X, MASK))
    # no spread: no signal, no division by zero
    equal, ones = torch.full((2, 2), 7.0), torch.ones(2, 2)
    assert whiten(equal, ones).abs().max() == 0
    assert torch.equal(whiten(equal, ones, shift_mean=False), equal)


def test_seeds_are_pure_functions_of_their_parts():
    # a change would break resuming older runs
    assert derive_seed(42, "rollout", 3) == 8386216188706336444
    parts = [(0,), (1,), ("0",), (0, 0), (0, "a"), ("a", 0), ("a0",), (10, 1), (1, 0, 1)]
    seeds = {derive_seed(*p) for p in parts}
    assert len(seeds) == len(parts) and all(0 <= s < 2**63 for s in seeds)


def test_seeded_sets_every_generator():
    def draw():
        with seeded(1, "x"):
            return random.random(), np.random.rand(), torch.rand(1).item()

    assert draw() == draw()
    with seeded(2, "x"):
        assert random.random() != draw()[0]


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "new" / "a.json"
    files.write_json(path, {"text": "é\n"})
    assert files.read_json(path) == {"text": "é\n"} and "é" in path.read_text(encoding="utf-8")
    with pytest.raises(TypeError):
        files.write_json(path, {"text": object()})
    with pytest.raises(UnicodeEncodeError):
        files.write_text(path, "half \ud800")
    assert files.read_json(path) == {"text": "é\n"}
    assert [p.name for p in path.parent.iterdir()] == ["a.json"]
    files.write_jsonl(path, [{"a": 1}, {"a": "\u2028 x"}])
    assert files.read_jsonl(path) == [{"a": 1}, {"a": "\u2028 x"}]


def test_broken_files_are_named(tmp_path):
    path = tmp_path / "b.jsonl"
    for read in (files.read_json, files.read_jsonl):
        with pytest.raises(UserError, match="b.jsonl does not exist"):
            read(path)
    path.write_text('{"a": 1}\n\n{"a": \n')
    with pytest.raises(UserError, match="b.jsonl, line 3"):
        files.read_jsonl(path)
    with pytest.raises(UserError, match="b.jsonl is not valid JSON"):
        files.read_json(path)


def test_a_users_mistake_prints_one_message_and_exits_with_2(capsys):
    def main():
        raise UserError("the file x is missing: run setup first")

    with pytest.raises(SystemExit) as stopped:
        run_main(main)
    assert stopped.value.code == 2
    assert capsys.readouterr().err == "error: the file x is missing: run setup first\n"
    with pytest.raises(ZeroDivisionError):
        run_main(lambda: 1 / 0)  # an internal error keeps its traceback


def test_seeded_gives_the_generators_back():
    random.seed(7), np.random.seed(7), torch.manual_seed(7)
    expected = random.random(), np.random.rand(), torch.rand(1).item()
    random.seed(7), np.random.seed(7), torch.manual_seed(7)
    with pytest.raises(KeyError), seeded(1, "x"):
        random.random(), np.random.rand(), torch.rand(1)
        raise KeyError
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == expected


BROKEN = {
    "latin1": ('{"a": "é"}'.encode("latin-1"), "is not UTF-8 text .byte 0xe9 at place 7."),
    "gz": (gzip.compress(b"{}"), "it is compressed: unpack it"),
    "deep": (b"[" * 100_000, "nested too deeply"),
    "digits": (b"9" * 5_000, "Exceeds the limit"),
    "nan": (b'{"a": NaN}', "NaN is not a JSON number"),
    "infinity": (b'{"a": -Infinity}', "-Infinity is not a JSON number"),
    "surrogate": (rb'{"a": "x\uD83d y"}', r"half of a surrogate pair, .ud83d"),
    "NUL": (b"\0\0\0", "not valid JSON"),
}


@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize("read", [files.read_json, files.read_jsonl])
def test_no_file_makes_a_reader_fail_otherwise_than_with_a_user_error(tmp_path, how, read):
    data, reason = BROKEN[how]
    (tmp_path / "rows").write_bytes(data)
    with pytest.raises(UserError, match=reason) as caught:
        read(tmp_path / "rows")
    assert str(tmp_path / "rows") in str(caught.value) and len(str(caught.value)) < 600


@pytest.mark.parametrize("read", [files.read_json, files.read_jsonl])
def test_a_path_that_is_not_a_file_is_named(tmp_path, read):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path in (tmp_path, tmp_path / "loop", tmp_path / ("x" * 300), "a\0b"):
        with pytest.raises(UserError, match="cannot be read"):
            read(path)


def test_whole_surrogate_pairs_are_text(tmp_path):
    (tmp_path / "rows").write_text(r'{"a": "\ud83d\ude00", "b": "\\ud83d"}')
    assert files.read_json(tmp_path / "rows") == {"a": "\U0001f600", "b": r"\ud83d"}


def test_values_outside_json_are_written_as_null(tmp_path):
    files.write_json(tmp_path / "a", {"x": [float("nan"), 1.5], "y": (float("inf"),)})
    assert files.read_json(tmp_path / "a") == {"x": [None, 1.5], "y": [None]}
    files.write_jsonl(tmp_path / "b", [{"x": float("-inf")}, {"x": 1}])
    assert files.read_jsonl(tmp_path / "b") == [{"x": None}, {"x": 1}]


def test_durable_files_are_on_disk_before_they_are_renamed(tmp_path, monkeypatch):
    events = []
    replace, fsync = os.replace, os.fsync
    monkeypatch.setattr(os, "replace", lambda a, b: (events.append("rename"), replace(a, b)))
    monkeypatch.setattr(os, "fsync", lambda fd: (events.append("sync"), fsync(fd)))
    files.write_json(tmp_path / "a", 1)
    assert events == ["rename"]
    files.write_json(tmp_path / "a", 2, durable=True)
    assert events[1:] == ["sync", "rename", "sync"]


def refused(tmp_path, how: str) -> None:
    """Raise the error of a library when the operating system refuses a file."""
    (tmp_path / "file").write_text("")
    tensors = {"a": torch.zeros(3)}
    {
        "a file where a folder should be": lambda: files.write_text(tmp_path / "file" / "a", ""),
        "a long name": lambda: files.write_text(tmp_path / ("x" * 300), ""),
        "a folder where a file should be": lambda: files.write_text(tmp_path, ""),
        "safetensors": lambda: save_file(tensors, str(tmp_path / "none" / "a.safetensors")),
    }[how]()


IN_THE_WAY = "remove it, or name another folder"


@pytest.mark.parametrize(
    "how, fact, way_out",
    [
        ("a file where a folder should be", "File exists|Not a directory", IN_THE_WAY),
        ("a long name", "File name too long", "Choose a shorter name"),
        ("a folder where a file should be", "directory", "name"),
        ("safetensors", "No such file or directory", "Check that it exists"),
    ],
)
def test_an_error_of_the_operating_system_is_one_message(tmp_path, capsys, how, fact, way_out):
    with pytest.raises(SystemExit) as stopped:
        run_main(lambda: refused(tmp_path, how))
    message = capsys.readouterr().err
    assert stopped.value.code == 2 and message.startswith("error: ") and message.count("\n") == 1
    assert str(tmp_path) in message and re.search(fact, message) and way_out in message


FULL = {
    "open": OSError(errno.ENOSPC, "No space left on device", "/x/a"),
    "write": OSError(errno.ENOSPC, "No space left on device"),
    "safetensors": SafetensorError(
        "Error while serializing: I/O error: No space left on device (os error 28)"
    ),
    "safetensors, older": SafetensorError(
        'Error while serializing: IoError(Os { code: 28, kind: StorageFull, message: "x" })'
    ),
    "tokenizers": Exception("No space left on device (os error 28)"),
    "torch": RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534"),
}


@pytest.mark.parametrize("how", FULL)
def test_a_full_disk_is_one_message_whoever_notices_it(capsys, how):
    def main():
        raise FULL[how]

    with pytest.raises(SystemExit):
        run_main(main)
    message = capsys.readouterr().err
    assert "Make room and run the same command again" in message and message.count("\n") == 1


@pytest.mark.parametrize("lines", [1, 100_000])
def test_a_reader_that_ends_early_is_no_error(lines):
    """As in `fgrlhf data show rows.jsonl | head -1`, with a short and a long output."""
    code = (
        "import sys; from fgrlhf.base.program import run_main\n"
        "def main():\n"
        "    sys.stdin.readline()\n"  # wait until the reader has ended
        f"    for _ in range({lines}): print('a line of text')\n"
        "run_main(main)"
    )
    command, here = [sys.executable, "-c", code], Path(__file__).parents[1]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    program = subprocess.Popen(command, text=True, cwd=here, **pipes)
    program.stdout.close()
    program.stdin.write("go on\n")
    program.stdin.close()
    assert program.stderr.read() == ""
    assert program.wait() == CLOSED_OUTPUT
    program.stderr.close()


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("shape (2, 3)"),
        Exception("x"),
        OSError("no errno"),
        ProcessLookupError(errno.ESRCH, "No such process"),
    ],
)
def test_other_errors_keep_their_traceback(error):
    def main():
        raise error

    with pytest.raises(type(error)):
        run_main(main)


def test_which_names_are_of_secrets():
    secret = ["HF_TOKEN", "WANDB_API_KEY", "logging.wandb_api_key", "DB_PASSWORD", "client-secret"]
    secret += ["AWS_CREDENTIALS", "KEY"]
    plain = ["train.max_tokens", "TOKENIZERS_PARALLELISM", "eos_token", "section.key", "monkey"]
    plain += ["model.tokenizer", "keys"]
    assert all(map(secrets.looks_secret, secret)) and not any(map(secrets.looks_secret, plain))


def test_secrets_are_masked_wherever_they_stand(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefgh")
    monkeypatch.setenv("MY_API_KEY", "hf_abcdefgh-longer")
    monkeypatch.setenv("SHORT_TOKEN", "abc")
    monkeypatch.setenv("ORDINARY", "outputs")
    for text, masked in (
        ("abc https://hf_abcdefgh@x outputs", "abc https://***@x outputs"),
        ("hf_abcdefgh-longer", "***"),  # not `***-longer`
        (
            "run a.api_key=123 train.lr=1 give api_key=... now",
            "run a.api_key=*** train.lr=1 give api_key=... now",
        ),
        (
            """a.password='one "two" three' b.token="it\\"s one" c='d e'""",
            "a.password=*** b.token=*** c='d e'",
        ),
        ("run='x api_key=12' x=token=3", "run='x api_key=*** x=token=***"),
        ("a.token='one two", "a.token=*** two"),  # no closing quote
    ):
        assert secrets.mask_secrets(text) == masked
    tree = {"lr": 1e-5, "url": ["x/hf_abcdefgh"], "s": {"password": "1234", "api_token": None}}
    masked = {"password": "***", "api_token": None}
    assert secrets.mask_tree(tree) == {"lr": 1e-5, "url": ["x/***"], "s": masked}


def test_messages_hold_no_secret(monkeypatch, capsys):
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefgh")

    def main():
        raise UserError("cannot load hf_abcdefgh/x")

    with pytest.raises(SystemExit):
        run_main(main)
    assert capsys.readouterr().err == "error: cannot load ***/x\n"
