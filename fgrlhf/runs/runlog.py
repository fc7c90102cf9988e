"""The run folder: config, versions, metrics, samples, time and memory of stages, trackers.

    <folder>/config.yaml              the resolved config
    <folder>/run.json                 versions, seed, command, git commit: all that repeats the run,
                                      and where pretrained weights come from (models/provenance.py)
    <folder>/metrics.jsonl            one JSON object per line, `step` first
    <folder>/samples/step-<n>.jsonl   samples to read
    <folder>/stages.json              {stage: {seconds, peak_mb}}

Only rank 0 writes; on the other ranks every method does nothing. Trackers are optional
mirrors of metrics.jsonl, and so are callbacks, classes of users. One that fails is switched off
with a warning and never stops a run. Neither does a damaged log: its readable part is kept, and the
file is renamed to <name>.damaged.
Secrets are masked in config.yaml, run.json and the data sent to trackers.
"""

import functools
import json
import math
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module, metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.files import parse_json, read_json, write_json, write_jsonl, write_text
from fgrlhf.base.program import why_refused
from fgrlhf.base.secrets import MASK, looks_secret, mask_secrets, mask_tree
from fgrlhf.configs.overrides import by_dotted_key
from fgrlhf.configs.strict import StrictModel, to_yaml
from fgrlhf.configs.user_class import import_object
from fgrlhf.configs.yaml_files import dump_yaml
from fgrlhf.models.provenance import sources_in
from fgrlhf.runs.memory import peak_memory_mb

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
      callbacks: import paths of classes of users: see `_Callback`.
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
        self._trackers: list[_Tracker] = []
        self._callbacks: list[_Tracker] = []
        self._metrics = None
        if not self.is_main:
            return
        if isinstance(config, StrictModel):
            settings = config.model_dump(mode="json")
        else:
            settings = dict(config or {})
        before = {} if resume_step is None else self._read("run.json")
        # before anything is written: a tracker that is not installed is an error
        if tensorboard:
            self._start_tensorboard(resume_step)
        if wandb is not None:
            self._start_wandb(wandb, settings, before.get("wandb_id"))
        for name, (project, run) in others.items():
            start = functools.partial(_OfAccelerate, name, project, run, mask_tree(settings))
            self._trackers.append(_Tracker(name, start))
        for path in callbacks:
            made = import_object("callback", path)
            self._callbacks.append(_Tracker(path, lambda made=made: _Callback(made())))
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write_config(config, settings)
        self._drop_after(resume_step)
        seed = _find_seed(settings) if seed is None else seed
        self._write_run(seed, sources_in(settings), resume_step, before, task, dtype)
        self._metrics = open(self.folder / "metrics.jsonl", "a", encoding="utf-8")  # noqa: SIM115

    def _start_tensorboard(self, resume_step: int | None) -> None:
        events = self.folder / "tensorboard"
        self._trackers.append(_Tracker("TensorBoard", lambda: _TensorBoard(events, resume_step)))

    def _start_wandb(self, given: Mapping[str, Any], settings: dict, run_id: Any) -> None:
        """Start a run of wandb, or continue one.

        Args:
          given: arguments of `wandb.init`.
          run_id: what run.json has as the id of the run to continue, which may not be a text.
        """
        arguments = dict(given)
        if isinstance(run_id, str):
            arguments |= {"id": run_id, "resume": "allow"}
        masked = mask_tree(settings)
        self._trackers.append(_Tracker("wandb", lambda: _Wandb(self.folder, arguments, masked)))

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


class _Callback:
    """Calls the methods that an object of a user has, with values that nothing else reads.

    `on_step(step, metrics)` with a line of metrics.jsonl, `on_evaluate(step, metrics)` with one of
    a dev evaluation, and `on_save(step, folder)` after a policy was saved.
    """

    def __init__(self, target: Any):
        self.target = target

    def log(self, step: int, numbers: Mapping[str, Any]) -> None:
        is_evaluation = any(name.startswith("eval/") for name in numbers)
        self._call("on_evaluate" if is_evaluation else "on_step", step, dict(numbers))

    def saved(self, step: int, folder: Path) -> None:
        self._call("on_save", step, folder)

    def _call(self, method: str, step: int, value: Any) -> None:
        found = getattr(self.target, method, None)
        if found is not None:
            found(step, MappingProxyType(value) if isinstance(value, dict) else value)


class _Tracker:
    """An optional mirror of the log. If it fails it is switched off with a warning."""

    def __init__(self, name: str, start: Callable[[], Any]):
        self.name = name
        self.target = None
        with self._guarded():
            self.target = start()

    @property
    def run_id(self) -> str | None:
        """The tracker's id of this run, with which a resumed run continues it."""
        return getattr(self.target, "run_id", None)

    def call(self, method: str, *arguments: Any) -> None:
        if self.target is not None:
            with self._guarded():
                getattr(self.target, method)(*arguments)

    @contextmanager
    def _guarded(self):
        try:
            yield
        except UserError:  # not installed, which stops the run before anything is written
            raise
        except Exception as error:  # a service, a disk or a library can raise anything
            self.target = None
            print(
                f"warning: {self.name} is switched off: {shorten(mask_secrets(str(error)))}"
                f" ({type(error).__name__}); metrics.jsonl is still written",
                flush=True,
            )


class _TensorBoard:
    def __init__(self, folder: Path, resume_step: int | None):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError(
                "TensorBoard logging is on and tensorboard is not installed: "
                "pip install -e '.[tensorboard]', or turn it off in the config's logging section"
            ) from None
        # With `purge_step`, TensorBoard hides events after the checkpoint; the files stay.
        self.writer = SummaryWriter(
            str(folder), purge_step=None if resume_step is None else resume_step + 1
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)

    def table(self, step: int, rows: list[dict[str, Any]]) -> None:
        """TensorBoard has no tables."""

    def close(self) -> None:
        self.writer.close()


def _mlflow_name(name: str) -> str:
    """The name as MLflow 3.17 takes it; with one like `passes//a (b)` it refuses a whole line."""
    return os.path.normpath(re.sub(r"[^/\w.\- :]", "_", name))


class _OfAccelerate:
    """Trackio or MLflow, by accelerate."""

    def __init__(self, name: str, project: str, run_name: str, settings: Mapping[str, Any]):
        try:
            module = import_module(name)
        except ImportError:
            raise UserError(
                f"logging.report_to names {name}, which is not installed: pip install {name}, or"
                " leave it out"
            ) from None
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS

        named = {"name": run_name} if name == "trackio" else {"run_name": run_name}
        self.name, self.module = name, module
        self.name_of = _mlflow_name if name == "mlflow" else str
        self.tracker: Any = LOGGER_TYPE_TO_CLASS[name](project, **named)
        self.tracker.start()
        texts = {self.name_of(key): str(value) for key, value in by_dotted_key(settings).items()}
        self.tracker.store_init_configuration(texts)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.tracker.log({self.name_of(name): value for name, value in metrics.items()}, step=step)

    def table(self, step: int, rows: list[dict[str, Any]]) -> None:
        if rows:
            from pandas import DataFrame  # trackio 0.3 takes the names of columns from it alone

            table = DataFrame(rows)
            if self.name == "trackio":
                self.tracker.log({"samples": self.module.Table(dataframe=table)}, step=step)
            else:
                self.module.log_table(table, f"samples/step-{step}.json")

    def close(self) -> None:
        self.tracker.finish()


class _Wandb:
    def __init__(self, folder: Path, arguments: dict, settings: dict):
        try:
            import wandb  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise UserError(
                "wandb logging is on and wandb is not installed: "
                "pip install -e '.[wandb]', or turn it off in the config's logging section"
            ) from None
        folder.mkdir(parents=True, exist_ok=True)
        arguments = {"dir": str(folder), "config": settings, **arguments}
        try:
            self.run = wandb.init(settings=wandb.Settings(init_timeout=60), **arguments)
        except Exception as error:  # no network, no login, or the server refuses
            print(
                f"wandb: {shorten(mask_secrets(str(error)))}; logging offline below {folder}, see"
                " `wandb sync`",
                flush=True,
            )
            self.run = wandb.init(**{**arguments, "mode": "offline"})
        self.run_id = getattr(self.run, "id", None)
        self.make_table = wandb.Table

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        # as a metric, because wandb's own step cannot go back when a run is resumed
        self.run.log({**metrics, "step": step})

    def table(self, step: int, rows: list[dict[str, Any]]) -> None:
        if rows:
            table = self.make_table(columns=[*rows[0]], data=[[*row.values()] for row in rows])
            self.run.log({"samples": table, "step": step})

    def close(self) -> None:
        self.run.finish()
