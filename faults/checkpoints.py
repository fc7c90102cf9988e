"""Kind `checkpoints`: damage an interrupted run's checkpoints, then run the same command again.

The run must end with the weights of the uninterrupted run (from the checkpoint before, or from the
start), or refuse with a message.
"""

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from faults.campaign import Bench, Kind, Outcome
from faults.child import CrashPoint, run
from faults.compare import compare, snapshot

# stage -> the change before which it is interrupted: two checkpoints exist, a third has begun
STAGES = {
    "oracle": r"checkpoints/.*step-4",
    "sft": r"checkpoints/.*step-6",
    "fg_rm": r"checkpoints/.*step-6",
    "pref_rm": r"checkpoints/.*step-6",
}
TITLES = {"oracle": "RL", "sft": "SFT", "fg_rm": "reward models", "pref_rm": "reward models"}


@dataclass(frozen=True)
class Damage:
    """A named damage: apply(checkpoints from the oldest, run folder, rng, a foreign checkpoint).

    log: it damages logs, so a resumed run may lose some of them.
    """

    what: str
    apply: Callable[[list[Path], Path, random.Random, Path], object]
    log: bool = False


# ---- damage --------------------------------------------------------------------------------------


def files_of(checkpoint: Path) -> list[Path]:
    return sorted(path for path in checkpoint.rglob("*") if path.is_file())


def weights_of(checkpoint: Path) -> Path:
    return checkpoint / "model.safetensors"


def state_of(checkpoint: Path) -> Path:
    return checkpoint / "state.json"


def flip(path: Path, rng: random.Random) -> None:
    """Flip one bit of a file at a random place."""
    content = bytearray(path.read_bytes())
    if content:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)


def flip_late(path: Path) -> None:
    """Flip a high bit of the last number but one, which is an entry of a tensor."""
    content = bytearray(path.read_bytes())
    content[-5] ^= 0x40
    path.write_bytes(content)


def cut(path: Path, share: float) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])


def edit(path: Path, change: Callable[[dict], None]) -> None:
    tree = json.loads(path.read_text())
    change(tree)
    path.write_text(json.dumps(tree))


def replace_by(path: Path, content: str | bytes) -> None:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def swap_tree(path: Path, other: Path) -> None:
    shutil.rmtree(path)
    shutil.copytree(other, path)


def move(path: Path, name: str) -> None:
    path.rename(path.with_name(name))


def _each_file(action: Callable[[Path, random.Random], None]) -> Callable:
    """Apply the action to a random file of the newest checkpoint."""
    return lambda checkpoints, run, rng, foreign: action(rng.choice(files_of(checkpoints[-1])), rng)


def _newest(action: Callable[[Path], object]) -> Callable:
    return lambda checkpoints, run, rng, foreign: action(checkpoints[-1])


def _all(action: Callable[[Path], object]) -> Callable:
    return lambda checkpoints, run, rng, foreign: [action(path) for path in checkpoints]


def _state(change: Callable[[dict], None]) -> Callable:
    return _newest(lambda path: edit(state_of(path), change))


def _steps(tree: dict, value) -> None:
    if value is None:
        del tree["step"]
    else:
        tree["step"] = value


def _put_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("a file")


def _as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _log(name: str, action: Callable[[Path], None]) -> Callable:
    return lambda checkpoints, run, rng, foreign: (
        action(run / name) if (run / name).exists() else None
    )


DAMAGES = (
    *(Damage(f"a flipped bit, {i}", _each_file(flip)) for i in range(8)),
    *(
        Damage(
            f"a file cut to {share:.0%}, {i}",
            _each_file(lambda path, rng, share=share: cut(path, share)),
        )
        for share in (0, 0.5, 0.99)
        for i in (0, 1)
    ),
    *(
        Damage(f"a file missing, {i}", _each_file(lambda path, rng: path.unlink()))
        for i in range(4)
    ),
    *(
        Damage(f"a folder for a file, {i}", _each_file(lambda path, rng: _as_folder(path)))
        for i in range(2)
    ),
    Damage("a bit of the weights", _newest(lambda path: flip_late(weights_of(path)))),
    Damage("a bit of all weights", _all(lambda path: flip_late(weights_of(path)))),
    Damage("weights cut", _newest(lambda path: cut(weights_of(path), 0.5))),
    Damage("all weights cut", _all(lambda path: cut(weights_of(path), 0.5))),
    Damage("weights missing", _newest(lambda path: weights_of(path).unlink())),
    Damage("all weights missing", _all(lambda path: weights_of(path).unlink())),
    Damage("state missing", _newest(lambda path: state_of(path).unlink())),
    Damage("all states missing", _all(lambda path: state_of(path).unlink())),
    Damage("state empty", _newest(lambda path: replace_by(state_of(path), ""))),
    Damage("state a list", _newest(lambda path: replace_by(state_of(path), "[]"))),
    Damage("state null", _newest(lambda path: replace_by(state_of(path), "null"))),
    Damage("state deep", _newest(lambda path: replace_by(state_of(path), "[" * 100_000))),
    Damage("state not UTF-8", _newest(lambda path: replace_by(state_of(path), b"\xff\xfe"))),
    Damage(
        "state with 5,000 digits", _newest(lambda path: replace_by(state_of(path), "9" * 5_000))
    ),
    Damage("all states a list", _all(lambda path: replace_by(state_of(path), "[]"))),
    Damage("no step", _state(lambda tree: _steps(tree, None))),
    Damage("a step as text", _state(lambda tree: _steps(tree, "9"))),
    Damage("a step too far", _state(lambda tree: _steps(tree, 10**6))),
    Damage("a step back", _state(lambda tree: _steps(tree, 1))),
    Damage("a negative step", _state(lambda tree: _steps(tree, -3))),
    Damage("digests gone", _state(lambda tree: tree.update({"sha256": {}}))),
    Damage("digests a text", _state(lambda tree: tree.update({"sha256": "x"}))),
    Damage("config gone", _state(lambda tree: tree.pop("config", None))),
    Damage("config a text", _state(lambda tree: tree.update({"config": "x"}))),
    Damage("groups gone", _state(lambda tree: tree.pop("optimizer_groups", None))),
    Damage("history a number", _state(lambda tree: tree.update({"dev_values": 3}))),
    Damage("a file for a checkpoint", _newest(_put_file)),
    Damage("files for all checkpoints", _all(_put_file)),
    Damage(
        "a foreign checkpoint",
        lambda checkpoints, run, rng, foreign: swap_tree(checkpoints[-1], foreign),
    ),
    Damage("an empty checkpoint", _newest(lambda path: (shutil.rmtree(path), path.mkdir()))),
    Damage(
        "a checkpoint of no number",
        lambda checkpoints, run, rng, foreign: shutil.copytree(
            checkpoints[-1],
            checkpoints[-1].with_name("step-x"),
        ),
    ),
    Damage(
        "a checkpoint under another number",
        _newest(lambda path: move(path, "step-5")),
    ),
    Damage(
        "a checkpoint of step 0",
        lambda checkpoints, run, rng, foreign: shutil.copytree(
            checkpoints[-1],
            checkpoints[-1].with_name("step-0"),
        ),
    ),
    Damage("no checkpoints", _all(shutil.rmtree)),
    Damage("metrics damaged", _log("metrics.jsonl", lambda path: flip_first_line(path)), log=True),
    Damage(
        "metrics with NUL bytes",
        _log("metrics.jsonl", lambda path: replace_by(path, path.read_bytes() + b"\0" * 64)),
        log=True,
    ),
    Damage(
        "metrics without step",
        _log("metrics.jsonl", lambda path: replace_by(path, '{"loss": 1}\n' + path.read_text())),
        log=True,
    ),
    Damage(
        "metrics not UTF-8",
        _log("metrics.jsonl", lambda path: replace_by(path, b"\xff\n" + path.read_bytes())),
        log=True,
    ),
    Damage("run.json empty", _log("run.json", lambda path: replace_by(path, "")), log=True),
    Damage("run.json a list", _log("run.json", lambda path: replace_by(path, "[]")), log=True),
    Damage(
        "inputs.json a list", _log("inputs.json", lambda path: replace_by(path, "[]")), log=True
    ),
    Damage("inputs.json cut", _log("inputs.json", lambda path: cut(path, 0.5)), log=True),
    Damage(
        "stages.json a list", _log("stages.json", lambda path: replace_by(path, "[]")), log=True
    ),
    Damage("config.yaml gone", _log("config.yaml", lambda path: path.unlink()), log=True),
    Damage("config.yaml cut", _log("config.yaml", lambda path: cut(path, 0.5)), log=True),
    Damage(
        "config.yaml not UTF-8",
        _log("config.yaml", lambda path: replace_by(path, b"\xff")),
        log=True,
    ),
    Damage(
        "a sample of no step", lambda checkpoints, run, rng, foreign: _stray_sample(run), log=True
    ),
)


def flip_first_line(path: Path) -> None:
    path.write_text("{damaged" + path.read_text())


def _stray_sample(run: Path) -> None:
    (run / "samples").mkdir(exist_ok=True)
    (run / "samples" / "step-x.jsonl").write_text("{}\n")


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
    sample = 3

    def __init__(self, bench: Bench):
        super().__init__(bench)
        self.names = list(STAGES)

    def prepare(self, indices) -> None:
        for name in sorted({self.place(index)[0] for index in indices}):
            self.bench.references.of(self.bench.world.stage(name))
            self._interrupt(name, "interrupted")
            self._interrupt(name, "foreign", "train.seed=7")

    def place(self, index: int) -> tuple[str, Damage]:
        """Stage and damage of an index; a small number of trials is spread over all of them."""
        each = -(-self.count() // len(STAGES))
        return self.names[index % len(STAGES)], DAMAGES[index // len(STAGES) * len(DAMAGES) // each]

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
        damage.apply(
            checkpoints_in(folder / "run"),
            folder / "run" / name,
            self.bench.rng(self.name, index),
            foreign,
        )
        stage = self.bench.world.stage(name)
        ended = run(stage.command, folder, folder / "logs/0.txt")
        note, row = (
            f"{name}, {damage.what}: exit {ended.code}",
            f"damaged checkpoints: {TITLES[name]}",
        )
        if ended.has_traceback:
            return Outcome("traceback", f"{note}\n{ended.output[-3_000:]}", row)
        if ended.code != 0:
            return Outcome("refused", f"{note}\n{ended.output[-1_000:]}", row)
        difference = compare(self.bench.references.of(stage).files, snapshot(folder / "run"))
        if any(file.endswith(".safetensors") for file in difference.other):
            return Outcome("wrong weights", f"{note}: {difference}", row)
        if difference.other and not damage.log:
            return Outcome("other content", f"{note}: {difference}", row)
        return Outcome(
            "lost files" if difference.lost and not damage.log else "equal",
            f"{note}: {difference}",
            row,
        )
