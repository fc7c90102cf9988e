"""The run folder: config, versions, metrics, samples, time and memory of stages, trackers.

    <folder>/config.yaml              the resolved config
    <folder>/run.json                 versions, seed, command, git commit: all that repeats the run,
                                      and where pretrained weights come from (models/provenance.py)
    <folder>/metrics.jsonl            one JSON object per line, `step` first
    <folder>/samples/step-<n>.jsonl   samples to read
    <folder>/stages.json              {stage: {seconds, peak_mb}}

Only rank 0 writes; on the other ranks every method does nothing. Trackers and callbacks are
optional mirrors of metrics.jsonl (fgrlhf/runs/trackers.py). A damaged log does not stop a run: its
readable part is kept, and the file is renamed to <name>.damaged.
Secrets are masked in config.yaml, run.json and the data sent to trackers.
"""

import functools
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import yaml

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import parse_json, read_json, write_json, write_jsonl, write_text
from fgrlhf.base.program import why_refused
from fgrlhf.base.secrets import MASK, looks_secret, mask_secrets, mask_tree
from fgrlhf.configs.strict import StrictModel, to_yaml
from fgrlhf.configs.yaml_files import dump_yaml
from fgrlhf.models.provenance import sources_in
from fgrlhf.runs.memory import peak_memory_mb

if TYPE_CHECKING:
    from fgrlhf.runs.trackers import Tracker

# Packages whose versions affect results. en_core_web_sm splits sentences if it is installed, also
# for RougeLsum; otherwise a rule does (reward_utils.load_segmenter).
PACKAGES = (
    "fgrlhf",
    "torch",
    "transformers",
    "tokenizers",
    "accelerate",
    "datasets",
    "spacy",
    "en_core_web_sm",
    "numpy",
)
CPU = "time/cpu"  # processor seconds of a step, in metrics.jsonl
BEST_FILE = "best.json"  # in best/: the step, metric and value of the policy there


class RunLog:
    """Writes one run folder.

    Args:
      folder: the run folder; created if missing.
      config: the run's config, or its settings as a dict.
      resume_step: the last step whose log a resumed run keeps. Metrics and samples of later steps,
        written before the interruption, are removed, so the log equals that of an uninterrupted
        run. None starts a new run and removes the log of an earlier one.
      wandb: arguments of `wandb.init` (project, entity, name, ...). Without a network, wandb logs
        offline.
      tensorboard: write event files to <folder>/tensorboard.
      others: further trackers of accelerate -> project and name of the run there. A resumed run is
        another one there.
      callbacks: import paths of classes of users: see `Callback` of fgrlhf/runs/trackers.py.
      seed: default: the config's `seed` or `train.seed`.
      write: whether this process writes; default: on rank 0 only.
      task: the name of the run's task, for reports.

    Raises:
      UserError: an enabled tracker is not installed, or a callback cannot be imported.
    """

    def __init__(
        self,
        folder: str | Path,
        config: StrictModel | Mapping | None = None,
        resume_step: int | None = None,
        wandb: Mapping[str, Any] | None = None,
        tensorboard: bool = False,
        others: Mapping[str, tuple[str, str]] = MappingProxyType({}),
        seed: int | None = None,
        write: bool | None = None,
        task: str | None = None,
        dtype: str | None = None,
        callbacks: Sequence[str] = (),
    ):
        if not str(folder).strip():
            raise UserError("the run's folder has no name: set logging.save_dir=...")
        self.folder = Path(folder)
        self.is_main = is_main_rank() if write is None else write
        self._trackers: list[Tracker] = []
        self._callbacks: list[Tracker] = []
        self._metrics = None
        if not self.is_main:
            return
        if isinstance(config, StrictModel):
            settings = config.model_dump(mode="json")
        else:
            settings = dict(config or {})
        before = {} if resume_step is None else self._read("run.json")
        mirrored = tensorboard or wandb is not None or others or callbacks
        if mirrored:  # before anything is written: a tracker that is not installed is an error
            from fgrlhf.runs import trackers  # only the runs that have one load it

            if tensorboard:
                self._trackers.append(trackers.tensorboard(self.folder, resume_step))
            if wandb is not None:
                masked = mask_tree(settings)
                run_id = before.get("wandb_id")
                self._trackers.append(trackers.wandb(self.folder, wandb, masked, run_id))
            for name, (project, run) in others.items():
                tracker = trackers.of_accelerate(name, project, run, mask_tree(settings))
                self._trackers.append(tracker)
            self._callbacks = [trackers.callback(path) for path in callbacks]
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write_config(config, settings)
        self._drop_after(resume_step)
        seed = _find_seed(settings) if seed is None else seed
        self._write_run(seed, sources_in(settings), resume_step, before, task, dtype)
        self._metrics = open(self.folder / "metrics.jsonl", "a", encoding="utf-8")  # noqa: SIM115

    def _write_config(self, config: StrictModel | Mapping | None, settings: dict) -> None:
        """Write config.yaml with secrets masked; without a config there is no file."""
        if config is None:
            return
        masked = mask_tree(settings)
        if not isinstance(config, StrictModel):
            text = yaml.safe_dump(masked, sort_keys=False, allow_unicode=True)
        elif masked == settings:
            text = to_yaml(config)
        else:
            text = dump_yaml(masked)
        write_text(self.folder / "config.yaml", text)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Append one line to metrics.jsonl. NaN and infinity become null."""
        if self._metrics is None:
            return
        row = {name: _plain(value) for name, value in metrics.items()}
        line = json.dumps({"step": step, **row}, ensure_ascii=False, allow_nan=False)
        self._metrics.write(line + "\n")
        self._metrics.flush()
        numbers = {name: value for name, value in row.items() if isinstance(value, int | float)}
        for tracker in (*self._trackers, *self._callbacks):
            tracker.call("log", step, numbers)

    def saved(self, step: int, folder: Path) -> None:
        """Tell the callbacks that a policy was saved."""
        for callback in self._callbacks:
            callback.call("saved", step, folder)

    def samples(self, step: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write samples/step-<step>.jsonl, and show them where a tracker has tables."""
        if not self.is_main:
            return
        rows = list(rows)
        write_jsonl(self.folder / "samples" / f"step-{step}.jsonl", rows)
        for tracker in self._trackers:
            tracker.call("table", step, table_of(step, rows))

    @contextmanager
    def stage(self, name: str):
        """Print when a stage starts and ends; write its seconds and peak memory to stages.json."""
        if not self.is_main:
            yield
            return
        print(f"{name}: started", flush=True)
        start = time.perf_counter()
        try:
            yield
        except BaseException as error:
            seconds = time.perf_counter() - start
            print(f"{name}: {_how_stopped(error)} after {seconds:.1f} s", flush=True)
            raise
        seconds = time.perf_counter() - start
        peak_mb = peak_memory_mb()
        print(f"{name}: done in {seconds:.1f} s, peak memory {peak_mb:.0f} MB", flush=True)
        stages = self._read("stages.json")
        stages[name] = {"seconds": round(seconds, 3), "peak_mb": round(peak_mb, 1)}
        write_json(self.folder / "stages.json", stages)

    def close(self) -> None:
        """Close files and trackers. Logging after this does nothing."""
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None
        for tracker in self._trackers:
            tracker.call("close")
        self._trackers = []

    def __enter__(self) -> "RunLog":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def _read(self, name: str) -> dict:
        """The contents of a JSON file in the folder; {} if it is missing or damaged.

        A damaged file is only a log, so it is renamed and the run continues.
        """
        path = self.folder / name
        if not path.exists():
            return {}
        try:
            value = read_json(path)
        except UserError as error:
            _set_aside(path, str(error))
            return {}
        if isinstance(value, dict):
            return value
        _set_aside(path, f"{path} is not a JSON object")
        return {}

    def _drop_after(self, step: int | None) -> None:
        """Remove metrics and samples of steps after `step`; None: of all steps."""
        for path in (self.folder / "samples").glob("step-*.jsonl"):
            number = path.stem.removeprefix("step-")
            if not number.isdecimal():  # not written by `samples`
                continue
            if step is None or int(number) > step:
                path.unlink()
        path = self.folder / "metrics.jsonl"
        if not path.exists():
            return
        if step is None:
            path.unlink()
            (self.folder / "stages.json").unlink(missing_ok=True)
            return
        *lines, _ = path.read_bytes().split(b"\n")  # drops a last line truncated by a crash
        rows = [_metrics_row(line) for line in lines if line.strip()]
        damaged = sum(row is None for row in rows)
        if damaged:
            kept = "the others are kept"
            _set_aside(path, f"{damaged} of {len(rows)} lines of {path} are damaged; {kept}")
        write_jsonl(path, [row for row in rows if row is not None and row["step"] <= step])

    def _write_run(
        self,
        seed: int | None,
        models: Mapping[str, str],
        resume_step: int | None,
        before: Mapping,
        task: str | None,
        dtype: str | None,
    ) -> None:
        # imported here: with torch it takes seconds, and other programs read run folders too
        from fgrlhf.kernels import choice as kernels

        command = command_line()
        resumed = _list(before.get("resumed_at"))
        commands = _list(before.get("resumed_with"))
        if resume_step is not None:
            resumed = [*resumed, resume_step]
            commands = [*commands, command]
        facts = {
            "command": before.get("command", command),
            "seed": seed,
            "versions": versions(),
            "git_commit": commit_of_code(),
            "kernels": kernels.choices(),
            "resumed_at": resumed,
            "resumed_with": commands,
        }
        if dtype:
            facts["dtype"] = dtype
        if task:
            facts["task"] = task
        if models:
            facts["models"] = dict(models)
        ids = [tracker.run_id for tracker in self._trackers if tracker.run_id]
        if ids:
            facts["wandb_id"] = ids[0]
        write_json(self.folder / "run.json", facts)


def _list(value: Any) -> list:
    """A list from run.json; empty if it is missing or damaged."""
    return value if isinstance(value, list) else []


def _metrics_row(line: bytes) -> dict | None:
    """A line of metrics.jsonl; None if it is damaged."""
    try:
        row = parse_json(line.decode("utf-8"))
    except ValueError:  # includes UnicodeDecodeError
        return None
    return row if isinstance(row, dict) and type(row.get("step")) is int else None


def _set_aside(path: Path, problem: str) -> None:
    """Rename a damaged file and print a warning."""
    os.replace(path, path.with_name(f"{path.name}.damaged"))
    print(
        f"warning: {problem}. The file is renamed to {path.name}.damaged; the run continues",
        flush=True,
    )


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that affect results."""
    version_of = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            version_of[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            version_of[name] = "not installed"
    return version_of


MODIFIED = "-modified"  # after a commit: the code was not exactly that of the commit


@functools.cache  # later changes do not reach the code that is already loaded
def commit_of_code() -> str | None:
    """`git_commit` of this library."""
    return git_commit(Path(__file__).parent)


def git_commit(folder: Path) -> str | None:
    """The commit of a checkout, plus `MODIFIED` if files differ; None outside a git checkout.

    New files count too, unless git ignores them: a task that is not committed yet is code.
    """

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=20
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if not commit:
        return None
    # the user's settings may leave out new files
    return commit + (MODIFIED if git("status", "--porcelain", "--untracked-files=normal") else "")


def command_line() -> str:
    """The command line of this process, with relative paths and masked secrets."""
    here = str(Path.cwd()) + os.sep
    arguments = [_masked(argument.replace(here, "")) for argument in sys.orig_argv[1:]]
    return " ".join(["python", *arguments])


def _masked(argument: str) -> str:
    key, _, value = argument.partition("=")
    if value and looks_secret(key):
        return f"{key}={MASK}"
    return mask_secrets(argument)


def _how_stopped(error: BaseException) -> str:
    """How an error ended a stage. A bug has a traceback, and other errors their own message."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, UserError) or why_refused(error) is not None:
        return "stopped"
    return f"stopped by {type(error).__name__}"


def is_main_rank() -> bool:
    """Whether this is the process that writes files and prints."""
    # a process group exists only where torch has been imported, which takes seconds
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank() == 0
    # torchrun and accelerate set RANK before the process group exists
    return int(os.environ.get("RANK", 0)) == 0


def say(text: str) -> None:
    """Print a line, from the main process only."""
    if is_main_rank():
        print(text, flush=True)


def _find_seed(settings: Mapping) -> int | None:
    """The key `seed`, else `train.seed`."""
    train = settings.get("train") or {}
    return settings.get("seed", train.get("seed"))


def _plain(value: Any) -> Any:
    """A JSON value: tensors and numpy scalars become numbers, non-finite numbers None."""
    if isinstance(value, str | bool | None):
        return value
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def table_of(step: int, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Samples as rows of one shape for a tracker: texts and numbers, and sums of rewards per token.

    The rewards of an aspect NAME, a list per token, become their sum `reward/NAME`; other lists are
    left out.
    """
    table = []
    for row in rows:
        flat: dict[str, Any] = {"step": step}
        for name, value in row.items():
            if name == "rewards" and isinstance(value, Mapping):
                flat |= {f"reward/{aspect}": sum(numbers) for aspect, numbers in value.items()}
            elif isinstance(value, str | int | float):
                flat[name] = value
        table.append(flat)
    names = dict.fromkeys(name for flat in table for name in flat)
    return [{name: flat.get(name) for name in names} for flat in table]
