"""The fault campaign: a few trials of each kind, and broken programs that it must detect."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from faults import ranks
from faults.campaign import Bench, Kind, Tally, run_kind, table
from faults.checkpoints import DAMAGES, Interrupted, checkpoints_in
from faults.child import Command, CrashPoint, Ended, run
from faults.judging import Outcome, compare, reference_run, snapshot
from faults.kill import kill_trial
from faults.kinds import KINDS
from faults.numbers import not_finite
from faults.together import both_wrote
from faults.world import Stage, World, write_causal_policy
from fgrlhf.base.files import write_json
from fgrlhf.policy import load_policy
from fgrlhf.text_types import Prompt
from tasks.qa_feedback.data import mini_world


@pytest.fixture
def bench(tmp_path):
    return Bench(World(tmp_path), 0, 1.0, tmp_path)


@pytest.fixture
def write_module(tmp_path, monkeypatch):
    """A function: name, source -> the command that runs this module."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name: str, source: str) -> Command:
        (tmp_path / f"{name}.py").write_text(source)
        return Command(name)

    return write


# ---- a few trials of each kind -------------------------------------------------------------------


@pytest.mark.slow  # minutes; `make faults` runs the whole campaign
def test_a_few_trials_of_each_kind_pass(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "faults", "scale=0.01", f"output_dir={tmp_path}"],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
    )
    assert (tmp_path / "faults.json").exists(), done.stdout + done.stderr
    assert done.returncode == 0, (tmp_path / "faults.md").read_text()
    assert len(json.loads((tmp_path / "faults.json").read_text())["table"]) >= len(KINDS)


# ---- broken programs are caught ------------------------------------------------------------------

# Appends one row at a time; when restarted, continues after the existing rows.
PROGRAM = """
import os, pathlib
folder = pathlib.Path("run")
folder.mkdir(exist_ok=True)
rows = folder / "rows.jsonl"
done = rows.read_text().count("\\n") if rows.exists() else 0
BEGIN
for i in range(done, 4):
    with open(rows, "a") as file:
        file.write("row %d\\n" % i)
temporary = folder / (".%s.tmp" % TEMPORARY)
temporary.write_text("{}")
os.replace(temporary, folder / "result.json")
"""
CHANGES = 7  # mkdir, four rows, a temporary file, its renaming


@pytest.fixture
def program(write_module):
    """A function: name, fault -> a stage that runs `PROGRAM`."""

    def write(name: str, begin: str = "", temporary: str = "'result'") -> Stage:
        source = PROGRAM.replace("BEGIN", begin).replace("TEMPORARY", temporary)
        return Stage(name, write_module(name, source))

    return write


def killed(stage: Stage, folder: Path, at: int) -> Outcome:
    reference = reference_run(stage, folder / "reference")
    assert reference.changes == CHANGES
    (folder / "trial").mkdir()
    return kill_trial(stage, reference, [{"crash": CrashPoint(at)}], folder / "trial")


def test_a_crash_point_is_just_before_a_change(tmp_path, program):
    command = program("dies").command
    ended = run(command, tmp_path, tmp_path / "log.txt", crash=CrashPoint(4))
    assert ended.killed and not ended.has_traceback
    assert (tmp_path / "run/rows.jsonl").read_text().count("\n") == 2
    near = CrashPoint(near=r"result\.json")
    assert run(command, tmp_path, tmp_path / "log.txt", crash=near).killed
    assert (tmp_path / "run/.result.tmp").exists() and not (tmp_path / "run/result.json").exists()


@pytest.mark.parametrize("at", range(1, CHANGES + 1))
def test_a_sound_program_is_equal_after_every_crash(tmp_path, program, at):
    outcome = killed(program(f"sound_{at}"), tmp_path, at)
    assert (outcome.verdict, outcome.counts) == ("equal", {"kills": 1})


TRACEBACK = "print('Traceback (most recent call last):')"
BROKEN = {  # name: what it does when it is restarted, its temporary file, the verdict
    "loses_a_row": ("done += done > 0", "'result'", "other content"),
    "repeats_rows": ("done = 0", "'result'", "other content"),
    "leaves_a_file": ("", "os.getpid()", "stray files"),
    "forgets_a_file": ("if done == 4: raise SystemExit(0)", "'result'", "lost files"),
    "shows_a_traceback": ("if done: raise ValueError('unexpected')", "'result'", "traceback"),
    "prints_a_traceback": (f"if done: {TRACEBACK}", "'result'", "traceback"),
    "ends_oddly": ("if done: os._exit(7)", "'result'", "traceback"),
    "never_ends": ("if done: raise SystemExit(2)", "'result'", "does not end"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_program_is_caught(tmp_path, program, name):
    begin, temporary, verdict = BROKEN[name]
    at = {"stray files": 7, "lost files": 6}.get(verdict, 4)
    assert killed(program(name, begin, temporary), tmp_path, at).verdict == verdict


def test_a_child_answers_questions_and_obeys_limits(tmp_path, write_module):
    asks = write_module("asks", "print(input(), input())\nopen('big', 'w').write('x' * 9000)\n")
    assert run(asks, tmp_path, tmp_path / "logs/a.txt", answers="y\nn\n").output == "y n\n"
    limited = {"answers": "y\nn\n", "file_limit": 4096}
    ended = run(asks, tmp_path, tmp_path / "logs/b.txt", **limited)
    assert ended.code == 1 and "File too large" in ended.output


# Two processes, of which the second one is killed before or after they have met.
GROUP = """
import contextlib, os, signal, sys, time
import torch.distributed as distributed
second = os.environ["RANK"] == "1"
if second and EARLY:
    os.kill(os.getpid(), signal.SIGKILL)
distributed.init_process_group("gloo")
if second:
    os.kill(os.getpid(), signal.SIGKILL)
with contextlib.suppress(RuntimeError):  # until the second one is dead: the first keeps the store
    distributed.barrier()
THEN
"""
THEN = {  # name: what the first process does then, the fault, what is counted
    "names_the_loss": (f"print('{ranks.LOSS}'); sys.exit(2)", "", "named the loss"),
    "has_finished": ("sys.exit(0)", "", "had finished"),
    "never_meets": ("", "", "stopped before they met"),
    "hangs": ("time.sleep(600)", "hangs", ""),
    "says_nothing": ("sys.exit(2)", "unnamed", ""),
    "shows_a_bug": ("raise RuntimeError", "traceback", ""),
}


@pytest.mark.parametrize("name", THEN)
def test_what_the_other_process_does_is_judged(tmp_path, monkeypatch, write_module, name):
    # short only where the process never ends by itself, however slow the machine is
    early = name == "never_meets"
    monkeypatch.setattr(ranks, "GRACE", 1.0 if name == "hangs" else 600.0)
    monkeypatch.setattr(ranks, "MEETING", 1.0 if early else 600.0)
    then, fault, count = THEN[name]
    source = GROUP.replace("EARLY", str(early)).replace("THEN", then)
    group = ranks.run_together(write_module(f"group_{name}", source), tmp_path, "logs/group")
    assert group[1].died and ranks.fault_of(group) == fault
    counted = {key for key, number in ranks.counts_of(group).items() if number}
    assert counted == {"kills", count} - {""}


def test_a_death_that_does_not_happen_is_noticed(tmp_path, write_module):
    group = ranks.run_together(write_module("writes_nothing", ""), tmp_path, "logs/group")
    assert ranks.missed({0: {"crash": CrashPoint(near="x")}}, group) == "no death"
    assert ranks.missed({0: {"die_after": 1.0}}, group) == ""


# ---- detectors -----------------------------------------------------------------------------------


def test_timings_do_not_count_and_everything_else_does(tmp_path):
    for name, seconds in (("a", 3.0), ("b", 4.0)):
        (tmp_path / name).mkdir()
        row = {"step": 1, "loss": 2.0, "time/update": seconds}
        (tmp_path / name / "metrics.jsonl").write_text(json.dumps(row) + "\n")
        (tmp_path / name / ".lock").write_text(name)
        (tmp_path / name / "model.safetensors").write_bytes(b"weights")
    first = snapshot(tmp_path / "a")
    assert not compare(first, snapshot(tmp_path / "b"))
    (tmp_path / "b/model.safetensors").write_bytes(b"weight5")
    (tmp_path / "b/.x.tmp").write_text("")
    (tmp_path / "b/empty").mkdir()
    (tmp_path / "b/metrics.jsonl").unlink()
    difference = compare(first, snapshot(tmp_path / "b"))
    assert difference.lost == ("metrics.jsonl",)
    assert difference.stray == (".x.tmp", "empty/")
    assert difference.other == ("model.safetensors",)


def test_two_that_wrote_at_once_are_caught():
    def ended(code: int, first: float, last: float) -> Ended:
        return Ended(code, "", 0.0, 1, first, last, 1)

    assert both_wrote([ended(0, 1.0, 3.0), ended(0, 2.0, 4.0)])
    assert not both_wrote([ended(0, 1.0, 3.0), ended(0, 3.5, 4.0)])
    assert not both_wrote([ended(0, 1.0, 3.0), ended(2, 0.0, 0.0)])


def test_nan_in_weights_and_files_is_caught(tmp_path):
    save_file({"a": torch.tensor([1.0, float("nan")])}, tmp_path / "a.safetensors")
    save_file({"a": torch.ones(2)}, tmp_path / "b.safetensors")
    (tmp_path / "c.json").write_text('{"loss": [NaN]}')
    (tmp_path / "d.jsonl").write_text('{"text": "a\u2028b"}\n{"loss": null}\n')
    assert [Path(name).name for name in not_finite(str(tmp_path))] == ["a.safetensors", "c.json"]


# ---- damage --------------------------------------------------------------------------------------


def test_damage_to_checkpoints_finds_the_newest(tmp_path):
    for step in (2, 10):
        folder = tmp_path / f"run/checkpoints/step-{step}"
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"x" * 64)
    damage = next(damage for damage in DAMAGES if damage.what == "a bit of the weights")
    checkpoints = checkpoints_in(tmp_path)
    damage.apply(Interrupted(checkpoints, tmp_path / "run", checkpoints[0], random.Random(0)))
    whole = [(path / "model.safetensors").read_bytes() == b"x" * 64 for path in checkpoints]
    assert [path.name for path in checkpoints] == ["step-2", "step-10"] and whole == [True, False]


# ---- running trials ------------------------------------------------------------------------------


class Toy(Kind):
    """Trial 1 ends its process, trial 2 fails, trial 3 raises."""

    name, good, bad, trials = "toy", ("fine",), ("broken", "slow"), 6

    def run(self, index, folder):
        if index == 1:
            os._exit(3)
        if index == 3:
            raise ValueError("unexpected")
        (folder / "left").write_text("x")
        return Outcome("broken" if index == 2 else "fine", "why", counts={"kills": 2})


def test_a_trial_that_ends_its_process_fails_and_the_others_go_on(tmp_path, bench):
    kind = Toy(bench)
    tally = run_kind(kind, range(kind.count()), quiet=True)
    assert sorted(f.index for f in tally.failures) == [1, 2, 3]
    assert {f.outcome.verdict for f in tally.failures} == {"broken"}
    assert table([tally]).splitlines()[-1] == "| toy | 6, 8 kills | 3 fine, **3 broken**, 0 slow |"
    assert (tmp_path / "failed/toy-2/left").exists() and not (tmp_path / "trials/toy-0").exists()
    assert "kinds=toy seed=0 scale=1 only=2" in (tmp_path / "failed/toy-2/FAILED.txt").read_text()
    passed = Tally(kind)
    passed.add(Outcome("fine"))
    assert table([passed]).splitlines()[-1] == "| toy | 1 | 1 fine, 0 broken, 0 slow |"


def test_few_trials_are_spread_over_all_cases(tmp_path):
    kind = Toy(Bench(World(tmp_path), 0, 0.5, tmp_path))
    kind.trials, kind.cases = 0, "abcdef"
    assert [kind.case(index) for index in range(kind.count())] == ["a", "c", "e"]


def test_the_decoder_of_the_world_can_be_trained(tmp_path):
    """Its tokenizer must not end a prompt, as that of the world's encoder-decoder does."""
    for split in ("train", "dev", "test"):
        write_json(tmp_path / f"{split}.json", [mini_world.make_row(0, split, 0)])
    write_causal_policy(tmp_path / "causal", tmp_path, seed=0)
    policy = load_policy(str(tmp_path / "causal"))
    assert policy.encode([Prompt("0", "a question")])[1].any()
