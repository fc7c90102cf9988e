"""Kind `checkpoints`: damage an interrupted run's checkpoints, then run the same command again.

The run must end with the weights of the uninterrupted run (from the checkpoint before, or from the
start), or refuse with a message.
"""

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from faults.campaign import Kind
from faults.child import CrashPoint, run
from faults.judging import Outcome, compare, judged, snapshot

# stage -> the change before which it is interrupted: two checkpoints exist, a third has begun
STAGES = {
    "oracle": r"checkpoints/.*step-4",
    "sft": r"checkpoints/.*step-6",
    "fg_rm": r"checkpoints/.*step-6",
    "pref_rm": r"checkpoints/.*step-6",
}
TITLES = {"oracle": "RL", "sft": "SFT", "fg_rm": "reward models", "pref_rm": "reward models"}


@dataclass(frozen=True)
class Interrupted:
    """A run that was interrupted.

    Attributes:
      checkpoints: its checkpoints from the oldest.
      folder: that of its logs.
      foreign: a checkpoint of a run with another seed.
      rng: of the trial.
    """

    checkpoints: list[Path]
    folder: Path
    foreign: Path
    rng: random.Random


@dataclass(frozen=True)
class Damage:
    """A named damage: `action` on each of the files or folders that `where` finds.

    log: it damages logs, so a resumed run may lose some of them.
    """

    what: str
    where: Callable[[Interrupted], list[Path]]
    action: Callable[[Path, Interrupted], object]
    log: bool = False

    def apply(self, run: Interrupted) -> None:
        for path in self.where(run):
            self.action(path, run)


# ---- where ---------------------------------------------------------------------------------------


def any_file(run: Interrupted) -> list[Path]:
    """A random file of the newest checkpoint."""
    files = sorted(path for path in run.checkpoints[-1].rglob("*") if path.is_file())
    return [run.rng.choice(files)]


def newest(name: str = "") -> Callable[[Interrupted], list[Path]]:
    """The newest checkpoint, or a file of it."""
    return lambda run: [run.checkpoints[-1] / name]


def every(name: str = "") -> Callable[[Interrupted], list[Path]]:
    """All checkpoints, or a file of each."""
    return lambda run: [checkpoint / name for checkpoint in run.checkpoints]


def log(name: str) -> Callable[[Interrupted], list[Path]]:
    """A file of the run's folder, if it has it."""
    return lambda run: [path for path in [run.folder / name] if path.exists()]


# ---- actions -------------------------------------------------------------------------------------

Action = Callable[[Path, Interrupted], object]


def flip(path: Path, run: Interrupted) -> None:
    """Flip one bit of a file at a random place."""
    content = bytearray(path.read_bytes())
    if content:
        content[run.rng.randrange(len(content))] ^= 1 << run.rng.randrange(8)
        path.write_bytes(content)


def flip_late(path: Path, run: Interrupted) -> None:
    """Flip a high bit of the last number but one, which is an entry of a tensor."""
    content = bytearray(path.read_bytes())
    content[-5] ^= 0x40
    path.write_bytes(content)


def cut(share: float) -> Action:
    return lambda path, run: path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])


def written(content: bytes = b"", before: bytes = b"", after: bytes = b"") -> Action:
    """Replace the content, or put something before or after it."""
    return lambda path, run: path.write_bytes(
        before + path.read_bytes() + after if before or after else content
    )


def edited(key: str, value: Any = None) -> Action:
    """Change a key of a JSON file; None removes it."""

    def action(path: Path, run: Interrupted) -> None:
        tree = json.loads(path.read_text())
        tree.pop(key, None)
        path.write_text(json.dumps(tree if value is None else {**tree, key: value}))

    return action


def remove(path: Path, run: Interrupted) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def make_empty(path: Path, run: Interrupted) -> None:
    """An empty folder in its place."""
    remove(path, run)
    path.mkdir()


def make_file(path: Path, run: Interrupted) -> None:
    remove(path, run)
    path.write_text("a file")


def swap(path: Path, run: Interrupted) -> None:
    shutil.rmtree(path)
    shutil.copytree(run.foreign, path)


def renamed(name: str) -> Action:
    return lambda path, run: path.rename(path.with_name(name))


def copied(name: str) -> Action:
    return lambda path, run: shutil.copytree(path, path.with_name(name))


def add_sample(path: Path, run: Interrupted) -> None:
    (path / "samples").mkdir(exist_ok=True)
    (path / "samples" / "step-x.jsonl").write_text("{}\n")


WEIGHTS, STATE, METRICS = "model.safetensors", "state.json", "metrics.jsonl"
DAMAGES = (
    *(Damage(f"a flipped bit, {i}", any_file, flip) for i in range(8)),
    *(
        Damage(f"a file cut to {share:.0%}, {i}", any_file, cut(share))
        for share in (0, 0.5, 0.99)
        for i in (0, 1)
    ),
    *(Damage(f"a file missing, {i}", any_file, remove) for i in range(4)),
    *(Damage(f"a folder for a file, {i}", any_file, make_empty) for i in range(2)),
    Damage("a bit of the weights", newest(WEIGHTS), flip_late),
    Damage("a bit of all weights", every(WEIGHTS), flip_late),
    Damage("weights cut", newest(WEIGHTS), cut(0.5)),
    Damage("all weights cut", every(WEIGHTS), cut(0.5)),
    Damage("weights missing", newest(WEIGHTS), remove),
    Damage("all weights missing", every(WEIGHTS), remove),
    Damage("state missing", newest(STATE), remove),
    Damage("all states missing", every(STATE), remove),
    Damage("state empty", newest(STATE), written(b"")),
    Damage("state a list", newest(STATE), written(b"[]")),
    Damage("state null", newest(STATE), written(b"null")),
    Damage("state deep", newest(STATE), written(b"[" * 100_000)),
    Damage("state not UTF-8", newest(STATE), written(b"\xff\xfe")),
    Damage("state with 5,000 digits", newest(STATE), written(b"9" * 5_000)),
    Damage("all states a list", every(STATE), written(b"[]")),
    Damage("no step", newest(STATE), edited("step")),
    Damage("a step as text", newest(STATE), edited("step", "9")),
    Damage("a step too far", newest(STATE), edited("step", 10**6)),
    Damage("a step back", newest(STATE), edited("step", 1)),
    Damage("a negative step", newest(STATE), edited("step", -3)),
    Damage("digests gone", newest(STATE), edited("sha256", {})),
    Damage("digests a text", newest(STATE), edited("sha256", "x")),
    Damage("config gone", newest(STATE), edited("config")),
    Damage("config a text", newest(STATE), edited("config", "x")),
    Damage("groups gone", newest(STATE), edited("optimizer_groups")),
    Damage("history a number", newest(STATE), edited("dev_values", 3)),
    Damage("a file for a checkpoint", newest(), make_file),
    Damage("files for all checkpoints", every(), make_file),
    Damage("a foreign checkpoint", newest(), swap),
    Damage("an empty checkpoint", newest(), make_empty),
    Damage("a checkpoint of no number", newest(), copied("step-x")),
    Damage("a checkpoint under another number", newest(), renamed("step-5")),
    Damage("a checkpoint of step 0", newest(), copied("step-0")),
    Damage("no checkpoints", every(), remove),
    Damage("metrics damaged", log(METRICS), written(before=b"{damaged"), log=True),
    Damage("metrics with NUL bytes", log(METRICS), written(after=b"\0" * 64), log=True),
    Damage("metrics without step", log(METRICS), written(before=b'{"loss": 1}\n'), log=True),
    Damage("metrics not UTF-8", log(METRICS), written(before=b"\xff\n"), log=True),
    Damage("run.json empty", log("run.json"), written(b""), log=True),
    Damage("run.json a list", log("run.json"), written(b"[]"), log=True),
    Damage("inputs.json a list", log("inputs.json"), written(b"[]"), log=True),
    Damage("inputs.json cut", log("inputs.json"), cut(0.5), log=True),
    Damage("stages.json a list", log("stages.json"), written(b"[]"), log=True),
    Damage("config.yaml gone", log("config.yaml"), remove, log=True),
    Damage("config.yaml cut", log("config.yaml"), cut(0.5), log=True),
    Damage("config.yaml not UTF-8", log("config.yaml"), written(b"\xff"), log=True),
    Damage("a sample of no step", log(""), add_sample, log=True),
)


# ---- trials --------------------------------------------------------------------------------------


def checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoints from the oldest to the newest."""
    numbered = {}
    for path in folder.rglob("*-*"):
        name, _, number = path.name.rpartition("-")
        if path.parent.name == "checkpoints" and number.isdigit() and not name.startswith("."):
            numbered[int(number)] = path
    return [numbered[number] for number in sorted(numbered)]


class Checkpoints(Kind):
    """See the module's docstring."""

    name = "checkpoints"
    good = ("equal", "refused")
    bad = ("traceback", "wrong weights", "other content", "lost files")
    trials = len(STAGES) * len(DAMAGES)

    def prepare(self, indices) -> None:
        for name in sorted({self.place(index)[0] for index in indices}):
            self.bench.references.of(self.bench.world.stage(name))
            self._interrupt(name, "interrupted")
            self._interrupt(name, "foreign", "train.seed=7")

    def place(self, index: int) -> tuple[str, Damage]:
        """Stage and damage of an index; a small number of trials is spread over all of them."""
        each = -(-self.count() // len(STAGES))
        return list(STAGES)[index % len(STAGES)], DAMAGES[
            index // len(STAGES) * len(DAMAGES) // each
        ]

    def _interrupt(self, name: str, what: str, *overrides: str) -> None:
        folder = self.bench.folder / "reference" / f"{name}-{what}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        ended = run(
            self.bench.world.stage(name, *overrides).command,
            folder,
            folder / "log.txt",
            crash=CrashPoint(near=STAGES[name]),
        )
        if not ended.killed or len(checkpoints_in(folder / "run")) != 2:
            raise RuntimeError(
                f"{name} was not interrupted with two checkpoints (exit"
                f" {ended.code}):\n{ended.output}"
            )

    def run(self, index: int, folder: Path) -> Outcome:
        name, damage = self.place(index)
        before = self.bench.folder / "reference"
        shutil.copytree(before / f"{name}-interrupted" / "run", folder / "run")
        foreign = checkpoints_in(before / f"{name}-foreign" / "run")[-1]
        checkpoints = checkpoints_in(folder / "run")
        rng = self.bench.rng(self.name, index)
        damage.apply(Interrupted(checkpoints, folder / "run" / name, foreign, rng))
        stage = self.bench.world.stage(name)
        ended = run(stage.command, folder, folder / "logs/0.txt")
        row = f"damaged checkpoints: {TITLES[name]}"
        files = self.bench.references.of(stage).files
        outcome = judged([ended], files, folder / "run", f"{name}, {damage.what}", row)
        if outcome.verdict == "does not end":
            return replace(outcome, verdict="refused")
        if outcome.verdict in ("traceback", "equal"):
            return outcome
        difference = compare(files, snapshot(folder / "run"))
        if any(file.endswith(".safetensors") for file in difference.other):
            return replace(outcome, verdict="wrong weights")
        if damage.log or not (difference.other or difference.lost):
            return replace(outcome, verdict="equal")
        return outcome
