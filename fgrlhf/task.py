"""The interface between the library and a task: a light dataclass.

Training, evaluation, sampling, DPO, the report and the feedback pages are part of the library and
load a task by name (fgrlhf/load.py). docs/tasks.md shows how to add one; `fgrlhf new-task NAME`
writes a first version. Whoever reads a task reads few modules: this one imports no model, no
metric and no config of a run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.report.display import Display
from fgrlhf.reward_models.prefix import Prefix, PrefixFn, text_prefix
from fgrlhf.text_types import MetricFunction, Prompt

if TYPE_CHECKING:
    from fgrlhf.configs.sections import TrainFile
    from fgrlhf.data.comparisons import Comparison, ComparisonSource
    from fgrlhf.data.judgements import FeedbackRows
    from fgrlhf.data.published import PublishedSet
    from fgrlhf.rewards.kind import RewardKind

SPLITS = ("train", "dev", "test")


def read_rows(source: str | Path) -> Sequence[Prompt]:
    """The prompts of a file or data set in the library's row format (fgrlhf/data/formats.py)."""
    from fgrlhf.data.formats import read_prompts  # tasks that generate prompts do not need it

    return read_prompts(source)


def whole_text(prompt: Prompt) -> str:
    """The text as it is."""
    return prompt.text


def no_metrics(prompts: Sequence[Prompt]) -> tuple[MetricFunction, ...]:
    """No metrics."""
    return ()


def sample_row(prompt: Prompt, responses: Sequence[str]) -> dict[str, Any]:
    """A row of samples.jsonl: the prompt's fields and its responses."""
    return {"id": prompt.id, "prompt": prompt.text, **prompt.meta, "responses": list(responses)}


@dataclass(frozen=True)
class Task:
    """Definition of a task. Every field except the name has a default.

    Args:
      name: the folder below `tasks/`; "" of `NO_TASK`.
      read: file -> prompts. The default reads rows {prompt|text, references|answer, ...}.
      generate: (split, seed) -> prompts, for a task without files. Which prompts may occur in a
        split must not depend on the seed: training and evaluation may use different seeds, and no
        prompt of one may occur in the other.
      rewards: the task's own reward kinds by name, in addition to those of the library.
      reward_kinds: name of a reward -> its kind, for rewards whose `kind` YAML may omit.
      segmenters: name -> text -> half-open spans of its sentences, in addition to the segmenters of
        the library.
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
    read: Callable[[str | Path], Sequence[Prompt]] = read_rows
    generate: Callable[[str, int], list[Prompt]] | None = None
    rewards: "Mapping[str, type[RewardKind]]" = field(default_factory=dict)
    reward_kinds: Mapping[str, str] = field(default_factory=dict)
    segmenters: Mapping[str, Callable[[str], Sequence[tuple[int, int]]]] = field(
        default_factory=dict
    )
    rm_prefix: PrefixFn = text_prefix
    rm_prefix_of_words: Callable[[Sequence[str]], Prefix] | None = None
    rm_pairs: "Callable[[str | Path], list[Comparison]] | None" = None
    core_text: Callable[[Prompt], str] = whole_text
    metrics: Callable[[Sequence[Prompt]], tuple[MetricFunction, ...]] = no_metrics
    comparisons: "Mapping[str, ComparisonSource]" = field(default_factory=dict)
    judgements: "FeedbackRows | None" = None
    published: "PublishedSet | None" = None
    sample_row: Callable[[Prompt, Sequence[str]], dict[str, Any]] = sample_row
    display: Display = field(default_factory=Display)

    def prompts(
        self, file: str | Path | None, split: str, seed: int = 0, key: str | None = None
    ) -> Sequence[Prompt]:
        """Read the prompts of a file, or generate prompts if no file is given.

        Args:
          key: the setting that names the file, for messages; by default `data.<split>_file`.
        Raises:
          UserError: no file is given and the task cannot generate prompts, or the file is
            malformed, or two prompts have the same id.
        """
        if file is not None:
            prompts = self.read(file)
            twice = _repeated_id(prompts)
            if twice is not None:
                raise UserError(
                    f"{file} has two prompts with the id `{shorten(twice)}`, which an evaluation"
                    " would take for one prompt: give every prompt its own id, or none"
                )
            return prompts
        if self.generate is None:
            who = f"the task `{self.name}` reads its prompts" if self.name else "prompts are read"
            raise UserError(
                f"{who} from files: give one for {split}, such as {key or f'data.{split}_file'}=..."
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

    def train_prompts(self, train_file: "TrainFile | None", seed: int = 0) -> Sequence[Prompt]:
        """As `prompts` of the split train, also of several files in shares."""
        if not isinstance(train_file, list):
            return self.prompts(train_file, "train", seed)
        from fgrlhf.data.mixture import read_files  # few runs need it

        return read_files(train_file, lambda file: self.prompts(file, "train", seed))


# Files have the library's formats, rewards are the library's, and models read a prompt's text.
NO_TASK = Task(name="")


def _repeated_id(prompts: Sequence[Prompt]) -> str | None:
    """The first id that an earlier prompt has too; None if there is none.

    Ids are compared if their hashes are equal: a set of many texts would take much memory.
    """
    import numpy as np  # who reads a task need not load it

    hashes = np.fromiter((hash(prompt.id) for prompt in prompts), np.int64, len(prompts))
    values, counts = np.unique(hashes, return_counts=True)
    suspects = set(values[counts > 1].tolist())
    seen = set()
    for prompt in prompts if suspects else ():
        if hash(prompt.id) in suspects:
            if prompt.id in seen:
                return prompt.id
            seen.add(prompt.id)
    return None
