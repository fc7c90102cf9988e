"""The interface between the library and a task.

Training, evaluation, sampling, DPO, the report and the feedback pages are part of the library and
load a task by name. docs/tasks.md shows how to add one; `fgrlhf new-task NAME` writes a first
version.
"""

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import create_model, model_validator

from fgrlhf.base.errors import UserError, shorten, suggestion
from fgrlhf.base.working_folder import import_module
from fgrlhf.configs.unions import any_kind
from fgrlhf.data.formats import read_prompts
from fgrlhf.report.display import Display
from fgrlhf.reward import CombinedReward
from fgrlhf.reward_models.prefix import Prefix, PrefixFn, text_prefix
from fgrlhf.rewards.kind import RewardKind
from fgrlhf.rewards.kinds import LIBRARY_REWARDS, build_aspects
from fgrlhf.runs.rl_config import RLConfig
from fgrlhf.scorers.context import RewardContext
from fgrlhf.text_types import Prompt

if TYPE_CHECKING:
    from fgrlhf.data.comparisons import Comparison, ComparisonSource
    from fgrlhf.data.judgements import FeedbackRows
    from fgrlhf.data.published import PublishedSet
    from fgrlhf.metrics.base import Metric

SPLITS = ("train", "dev", "test")


def whole_text(prompt: Prompt) -> str:
    return prompt.text


def no_metrics(prompts: Sequence[Prompt]) -> tuple["Metric", ...]:
    return ()


def sample_row(prompt: Prompt, responses: Sequence[str]) -> dict[str, Any]:
    """A row of samples.jsonl: the prompt's fields and its responses."""
    return {"id": prompt.id, "prompt": prompt.text, **prompt.meta, "responses": list(responses)}


@dataclass(frozen=True)
class Task:
    """Definition of a task. Every field except the name has a default.

    Args:
      name: the folder below `tasks/`.
      read: file -> prompts. The default reads rows {prompt|text, references|answer, ...}.
      generate: (split, seed) -> prompts, for a task without files. Which prompts may occur in a
        split must not depend on the seed: training and evaluation may use different seeds, and no
        prompt of one may occur in the other.
      rewards: the task's own reward kinds by name, in addition to those of the library.
      reward_kinds: name of a reward -> its kind, for rewards whose `kind` YAML may omit.
      rm_prefix: (prompt, with context?) -> words that a reward model reads before a response.
      rm_prefix_of_words: the words before the response in a segment file -> the same prefix. None:
        plain words, none of which may be cut.
      rm_pairs: pair file of a reward model in the task's own format -> comparisons. None: the
        library's format.
      core_text: the start of a prompt that must never be cut. Prompts that are too long lose their
        end.
      metrics: prompts -> the task's metrics for these prompts, such as those of an oracle.
      comparisons: sources of preference pairs by name, for `data.pairs` of DPO.
      judgements: the task's own feedback rows as judgements, for `fgrlhf data import` and `export`;
        None: they are those of fgrlhf/data/span_rows.py.
      published: the published data set whose rows become the prompts (fgrlhf/cli/published.py).
      sample_row: a prompt and its sampled responses as a row to annotate.
      display: names, order and colours in reports, and the parts of a prompt.
    """

    name: str
    read: Callable[[str | Path], list[Prompt]] = read_prompts
    generate: Callable[[str, int], list[Prompt]] | None = None
    rewards: Mapping[str, type[RewardKind]] = field(default_factory=dict)
    reward_kinds: Mapping[str, str] = field(default_factory=dict)
    rm_prefix: PrefixFn = text_prefix
    rm_prefix_of_words: Callable[[Sequence[str]], Prefix] | None = None
    rm_pairs: "Callable[[str | Path], list[Comparison]] | None" = None
    core_text: Callable[[Prompt], str] = whole_text
    metrics: Callable[[Sequence[Prompt]], tuple["Metric", ...]] = no_metrics
    comparisons: "Mapping[str, ComparisonSource]" = field(default_factory=dict)
    judgements: "FeedbackRows | None" = None
    published: "PublishedSet | None" = None
    sample_row: Callable[[Prompt, Sequence[str]], dict[str, Any]] = sample_row
    display: Display = field(default_factory=Display)

    def prompts(
        self, file: str | Path | None, split: str, seed: int = 0, key: str | None = None
    ) -> list[Prompt]:
        """Read the prompts of a file, or generate prompts if no file is given.

        Args:
          key: the setting that names the file, for messages; by default `data.<split>_file`.
        Raises:
          UserError: no file is given and the task cannot generate prompts, or the file is
            malformed, or two prompts have the same id.
        """
        if file is not None:
            prompts = list(self.read(file))
            twice = _repeated_id(prompts)
            if twice is not None:
                raise UserError(
                    f"{file} has two prompts with the id `{shorten(twice)}`, which an evaluation"
                    " would take for one prompt: give every prompt its own id, or none"
                )
            return prompts
        if self.generate is None:
            raise UserError(
                f"the task `{self.name}` reads its prompts from files: give one for {split}, such"
                f" as {key or f'data.{split}_file'}=..."
            )
        if split not in SPLITS:
            raise UserError(
                f"the task `{self.name}` generates prompts of the splits {', '.join(SPLITS)}, not"
                f" of `{shorten(split)}`"
            )
        prompts = list(self.generate(split, seed))
        twice = _repeated_id(prompts)
        if twice is not None:
            raise UserError(
                f"the task `{self.name}` generated two prompts with the id `{shorten(twice)}`: give"
                " every prompt of a split its own id"
            )
        if not prompts:
            raise UserError(f"the task `{self.name}` generated no prompts for the split {split}")
        return prompts


def _repeated_id(prompts: Sequence[Prompt]) -> str | None:
    """The first id that an earlier prompt has too; None if there is none."""
    seen = set()
    for prompt in prompts:
        if prompt.id in seen:
            return prompt.id
        seen.add(prompt.id)
    return None


def load_task(name: str) -> Task:
    """Load a task by name: `tasks.words`, `words`, or any importable module with a `TASK`.

    Raises:
      UserError: there is no such module, or it has no `TASK`.
    """
    dotted = name.strip().strip("/").replace("/", ".")
    without_task = None
    for candidate in _possible_modules(dotted):
        try:
            module = import_module(candidate)
        except ModuleNotFoundError as error:
            missing = error.name or ""
            if missing and f"{candidate}.".startswith(f"{missing}."):
                continue  # the candidate or its package is missing, not an import of the task
            raise UserError(f"the task `{name}` cannot be imported: {error}") from None
        task = getattr(module, "TASK", None)
        if isinstance(task, Task):
            return task
        if candidate.endswith(".task"):
            without_task = without_task or module
    if without_task is not None:
        raise UserError(
            f"{os.path.relpath(without_task.__file__ or without_task.__name__)} defines no task:"
            " write TASK = Task(name=..., ...), with Task from fgrlhf.task"
        )
    if dotted.endswith((".yml", ".yaml")):
        raise UserError(
            f"`{shorten(name)}` is a config, not a task: name the task before it. Every override"
            " after the config has the form section.key=value"
        )
    folder = _pages_folder(dotted)
    if folder is not None:
        raise UserError(
            f"{folder} has feedback pages and no task.py, which training needs: write"
            f" {folder / 'task.py'} with these three lines, where docs/tasks.md tells what more a"
            ' task may have:\n"""My task."""\nfrom fgrlhf.task import Task\n'
            f'TASK = Task(name="{folder.name}")'
        )
    known = suggestion(dotted.rpartition(".")[2], _shipped_tasks())
    raise UserError(
        f"there is no task `{shorten(name)}`: {known}. A task is a package with a"
        " task.py that defines TASK; run from the folder that contains `tasks`"
    )


def _pages_folder(dotted: str) -> Path | None:
    """The folder in the working directory that has the feedback pages of a task; None without."""
    if not _possible_modules(dotted):
        return None
    path = Path(*dotted.split("."))
    places = (Path("tasks") / path, path)
    return next((one for one in places if (one / "interface_html/schema.js").is_file()), None)


def _possible_modules(dotted: str) -> list[str]:
    """The modules that may define a task of this name; [] if it is not the name of a module."""
    if re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", dotted) is None:
        return []
    modules = [f"{dotted}.task", dotted]
    if "." not in dotted:
        modules.insert(0, f"tasks.{dotted}.task")
    return modules


def code_of(task: Task) -> dict[str, str]:
    """The Python files in the folder of the task's `task.py`, except its tests.

    Returns:
      the file's name in that folder -> its path, relative to the working directory; {} for a task
      that is not in a `task.py`.
    """
    folder = _folder_of(task)
    if folder is None:
        return {}
    files = {}
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(folder)
        if "tests" not in name.parts:
            files[name.as_posix()] = os.path.relpath(path)
    return files


def data_of(task: Task) -> list[str]:
    """The files in the folder `data` of a task that generates its prompts, perhaps from them.

    Returns:
      absolute paths, without those of code; [] for a task that reads its prompts from files, which
      configs name, or that is not in a `task.py`.
    """
    folder = _folder_of(task)
    if folder is None or task.generate is None:
        return []
    files = []
    for path in sorted((folder / "data").glob("*")):
        if path.is_file() and path.suffix not in (".py", ".sh"):
            files.append(str(path.absolute()))
    return files


def _folder_of(task: Task) -> Path | None:
    """The folder of the imported `task.py` that defines the task; None if no such file does."""
    for module in list(sys.modules.values()):
        file = Path(getattr(module, "__file__", None) or "")
        if file.name == "task.py" and vars(module).get("TASK") is task:
            return file.parent
    return None


def _shipped_tasks() -> list[str]:
    """The tasks in the folder `tasks` of the working directory."""
    return sorted(path.parent.name for path in Path("tasks").glob("*/task.py"))


class _TaskConfig(RLConfig):
    """The config of an RL run in which a reward's name can imply its kind."""

    reward_kinds: ClassVar[Mapping[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _fill_kinds(cls, tree: Any) -> Any:
        if not isinstance(tree, dict) or not isinstance(tree.get("reward"), dict):
            return tree
        filled = {}
        for name, section in tree["reward"].items():
            if isinstance(section, dict) and name in cls.reward_kinds:
                section = {"kind": cls.reward_kinds[name], **section}
            filled[name] = section
        return {**tree, "reward": filled}


@cache
def _rl_config(
    kinds: tuple[type[RewardKind], ...], names: tuple[tuple[str, str], ...]
) -> type[RLConfig]:
    sections: Any = dict[str, any_kind(kinds)]
    config = create_model("RLConfig", __base__=_TaskConfig, reward=(sections, ...))
    config.reward_kinds = dict(names)
    return config


def rl_config(task: Task) -> type[RLConfig]:
    """The config class of an RL run on a task, with the reward kinds of library and task."""
    for name, kind in task.rewards.items():
        _check_kind(task, name, kind)
    kinds = {**LIBRARY_REWARDS, **task.rewards}
    return _rl_config(tuple(kinds.values()), tuple(task.reward_kinds.items()))


def _check_kind(task: Task, name: str, kind: Any) -> None:
    """Raise `UserError` unless `kind` is a class by whose name a config can select a reward."""
    is_kind = isinstance(kind, type) and issubclass(kind, RewardKind)
    if not is_kind or not isinstance(kind.model_fields["kind"].default, str):
        raise UserError(
            f"`{name}` in the rewards of the task `{task.name}` is {shorten(repr(kind), 80)}: it"
            " must be a subclass of RuleReward or RewardKind that declares its kind, as in"
            f' kind: Literal["{name}"] = "{name}"'
        )


def build_reward(
    task: Task, configs: Mapping[str, RewardKind], device: str = "cpu", dtype: str = "fp32"
) -> CombinedReward:
    """Build the reward that a config describes and load its models.

    Raises:
      UserError: a checkpoint is missing or of the wrong kind, or no reward is left.
    """
    aspects, weights = build_aspects(configs, RewardContext(task.rm_prefix, device, dtype))
    return CombinedReward(aspects, weights)
