"""Optional mirrors of metrics.jsonl: trackers of other programs, and callbacks, classes of users.

One that fails is switched off with a warning and never stops a run.
"""

import os
import re
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.secrets import mask_secrets
from fgrlhf.configs.overrides import by_dotted_key
from fgrlhf.configs.user_class import import_object


class Callback:
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


class Tracker:
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


class TensorBoard:
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


class OfAccelerate:
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


class Wandb:
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


def callback(path: str) -> Tracker:
    """A user's class as a mirror.

    Args:
      path: its import path.
    """
    made = import_object("callback", path)
    return Tracker(path, lambda: Callback(made()))


def tensorboard(folder: Path, resume_step: int | None) -> Tracker:
    """TensorBoard's event files, in a folder inside the run's."""
    return Tracker("TensorBoard", lambda: TensorBoard(folder / "tensorboard", resume_step))


def of_accelerate(name: str, project: str, run_name: str, settings: Mapping[str, Any]) -> Tracker:
    """Trackio or MLflow."""
    return Tracker(name, lambda: OfAccelerate(name, project, run_name, settings))


def wandb(folder: Path, given: Mapping[str, Any], settings: dict, run_id: Any) -> Tracker:
    """A run of wandb, or one that is continued.

    Args:
      given: arguments of `wandb.init`.
      settings: the run's config, without secrets.
      run_id: what run.json has as the id of the run to continue, which may not be a text.
    """
    arguments = dict(given)
    if isinstance(run_id, str):
        arguments |= {"id": run_id, "resume": "allow"}
    return Tracker("wandb", lambda: Wandb(folder, arguments, settings))
