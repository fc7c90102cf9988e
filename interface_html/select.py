"""Choose the items that annotators should judge next.

    fgrlhf feedback select NAME source=samples.jsonl out=items.json n=300 models=outputs/rm
    fgrlhf feedback select NAME source=samples.jsonl out=items.json n=300 by=drift done=round1.json

by
  uncertainty   the reward models are least certain of the labels of the segments, or of the
                preferences between the responses
  disagreement  several reward models, trained with different seeds, contradict each other
  drift         the texts are least like those with feedback
  random        no order; the baseline for all others

Chosen items are written in order, the most valuable one first. `<out>.selection.json` has the value
of each.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field, PositiveInt, model_validator

from fgrlhf.base.errors import UserError, counted
from fgrlhf.base.files import write_json, write_text
from fgrlhf.configs.strict import FilePath, refuse
from fgrlhf.data.selection import best, disagreement, drift, pair_uncertainty, uncertainty
from fgrlhf.load import load_task
from fgrlhf.reward_models.loading import load_reward_model
from fgrlhf.reward_models.scoring import SegmentScorer, SequenceScorer
from fgrlhf.text_types import Prompt
from interface_html.format import Item
from interface_html.items import PROMPTS_HELP, item_json, read_items, rows_text
from interface_html.outputs import OutputSettings
from interface_html.tasks import TASK_HELP, FeedbackTask, feedback_of

Order = Literal["uncertainty", "disagreement", "drift", "random"]
Scorer = SegmentScorer | SequenceScorer


class SelectSettings(OutputSettings):
    """The items to choose from, and how to choose."""

    task: str = Field(description=TASK_HELP)
    source: str = Field(description="samples, feedback or items, in the task's format")
    out: FilePath = Field(description="the file of items to write")
    n: PositiveInt = Field(description="number of items to choose")
    by: Order = Field(default="uncertainty", description="what makes an item valuable")
    models: str | None = Field(
        default=None, description="folders of reward models, separated by commas"
    )
    done: str | None = Field(
        default=None,
        description="feedback files, separated by commas; their items are not chosen again",
    )
    prompts: str | None = Field(default=None, description=PROMPTS_HELP)
    seed: int = Field(default=0, description="of everything random")

    @property
    def folders(self) -> list[str]:
        return self.models.split(",") if self.models else []

    @property
    def done_files(self) -> list[str]:
        return self.done.split(",") if self.done else []

    @model_validator(mode="after")
    def _check_needs(self):
        needed = {"uncertainty": 1, "disagreement": 2, "drift": 0, "random": 0}[self.by]
        if len(self.folders) < needed:
            noun = "a reward model" if needed == 1 else "two or more reward models"
            refuse([("models", f"by={self.by} needs {noun}: give the folders")])
        if needed == 0 and self.folders:
            refuse([("models", f"is not used with by={self.by}: leave it out")])
        if self.by == "drift" and not self.done_files:
            refuse([("done", "by=drift needs the feedback that there is: give its files")])
        return self


def select(settings: SelectSettings) -> list[Item]:
    """Choose items and write them.

    Raises:
      DataError: a file has malformed rows.
      UserError: a file or a model cannot be read, or does not fit the choice.
    """
    task = feedback_of(settings.task)
    items = read_items(task, settings.source, settings.prompts)
    judged = [item for path in settings.done_files for item in read_items(task, path)]
    known = {task.content(item) for item in judged}
    open_items = [item for item in items if task.content(item) not in known]
    if not open_items:
        raise UserError(
            f"{settings.source}: `done` has every item, so nothing is left to choose. Sample more"
            " responses"
        )
    values = item_values(task, open_items, judged, settings)
    chosen = best(values, settings.n, settings.seed)
    selected = [open_items[i] for i in chosen]
    write_text(settings.out, rows_text(item_json(task, item) for item in selected))
    write_json(
        f"{settings.out}.selection.json",
        {
            "by": settings.by,
            "source": settings.source,
            "models": settings.folders,
            "done": settings.done_files,
            "seed": settings.seed,
            "values": {open_items[i].id: values[i] for i in chosen},
        },
    )
    left = "" if len(selected) == settings.n else f", fewer than n={settings.n}: there are no more"
    print(
        f"{settings.out}: {counted(len(selected), 'item')} of {len(open_items)} without feedback,"
        f" by {settings.by}{left}"
    )
    return selected


def item_values(
    task: FeedbackTask, items: Sequence[Item], judged: Sequence[Item], settings: SelectSettings
) -> list[float]:
    """The value of each item, by the criterion of the settings."""
    if settings.by == "random":
        return [0.0] * len(items)
    if settings.by == "drift":
        return _drift_values(task, items, judged, settings)
    prefix_fn = load_task(settings.task).rm_prefix
    scorers = [load_reward_model(folder, prefix_fn) for folder in settings.folders]
    prompts = [task.format.prompt(task.schema, item) for item in items]
    if settings.by == "uncertainty":
        values_MN = [_uncertainties(task, scorer, prompts, items) for scorer in scorers]
        return np.mean(values_MN, axis=0).tolist()
    return _disagreements(task, scorers, prompts, items, settings.folders)


def _drift_values(
    task: FeedbackTask, items: Sequence[Item], judged: Sequence[Item], settings: SelectSettings
) -> list[float]:
    texts = [item.row[task.schema.text] for item in items]
    known = [item.row[task.schema.text] for item in judged]
    try:
        values, auc = drift(texts, known, settings.seed)
    except ValueError as error:
        raise UserError(f"by=drift: {error}. Use by=random") from None
    print(
        f"drift: a linear model tells new texts from those with feedback with an AUC of {auc:.3f}"
        " (0.5: they are alike)"
    )
    return values.tolist()


def _uncertainties(
    task: FeedbackTask, scorer: Scorer, prompts: Sequence[Prompt], items: Sequence[Item]
) -> list[float]:
    """Of a segment model: of the labels in the annotated text. Of a pair model: of all pairs."""
    if isinstance(scorer, SegmentScorer):
        return [uncertainty(p_SC) for p_SC in _probabilities(task, scorer, prompts, items)]
    outputs = task.schema.fields.outputs
    repeated = [prompt for prompt in prompts for _ in outputs]
    texts = [item.row[key] for item in items for key in outputs]
    scores_NK = scorer.score(repeated, texts).reshape(len(items), len(outputs))
    return [pair_uncertainty(scores_K.tolist()) for scores_K in scores_NK]


def _disagreements(
    task: FeedbackTask,
    scorers: Sequence[Scorer],
    prompts: Sequence[Prompt],
    items: Sequence[Item],
    folders: Sequence[str],
) -> list[float]:
    judged = []
    for scorer, folder in zip(scorers, folders):
        if not isinstance(scorer, SegmentScorer) or (judged and scorer.labels != judged[0].labels):
            raise UserError(
                f"{folder}: by=disagreement compares segment models with the same labels. Train the"
                " same reward model with several seeds"
            )
        judged.append(scorer)
    by_model = [_probabilities(task, scorer, prompts, items) for scorer in judged]
    values = []
    for item, *p_MSC in zip(items, *by_model, strict=True):
        if len({len(p_SC) for p_SC in p_MSC}) > 1:
            raise UserError(
                f"by=disagreement: the models read different segments of item {item.id}. Train them"
                " with the same level, segmenter and model.max_input_len"
            )
        values.append(disagreement(np.stack(p_MSC)))
    return values


def _probabilities(
    task: FeedbackTask, scorer: SegmentScorer, prompts: Sequence[Prompt], items: Sequence[Item]
) -> list[np.ndarray]:
    """For each item, the label probabilities of the segments that the model could read."""
    texts = [item.row[task.schema.text] for item in items]
    result = []
    for labels in scorer.score(prompts, texts):
        result.append(labels.probabilities_SC.numpy()[list(labels.judged)])
    return result
