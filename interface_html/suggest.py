"""Add suggested errors to items: the spans of reward models, or judgements from a file.

    fgrlhf feedback suggest NAME source=items.json out=items_suggested.json \\
        models=outputs/rm,outputs/other_rm kinds='{LABEL: KIND, OTHER-LABEL: OTHER-KIND}'
    fgrlhf feedback suggest NAME source=items.json out=items_suggested.json \\
        judgements=judgements.jsonl

A segment of a reward model is suggested if P(error) = 1 - P(ok) is at least `threshold`, as the
kind of its most probable error label. A judgement is suggested for the item whose annotated text is
its response; without a score it counts as certain. Spans grow to the schema's unit, and spans of
one kind that touch become one, with the largest score. If the schema has `mark_outputs`, all
outputs of an item are annotated texts.

Only a random `share` of the items shows its suggestions. The others keep them hidden
(`suggestions_shown`), so that `fgrlhf feedback anchoring` can measure their influence.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from fgrlhf.base.errors import UserError, counted
from fgrlhf.base.files import write_text
from fgrlhf.base.seeds import derive_seed
from fgrlhf.configs.strict import FilePath, refuse
from fgrlhf.data.formats import FORMATS
from fgrlhf.data.judgements import RESPONSE
from fgrlhf.load import load_task
from fgrlhf.reward_models.loading import load_reward_model
from fgrlhf.reward_models.scoring import SegmentLabels, SegmentScorer
from fgrlhf.segmentation import sentences
from fgrlhf.words import is_inner_boundary
from interface_html.format import Item
from interface_html.items import PROMPTS_HELP, item_json, read_items, rows_text
from interface_html.outputs import OutputSettings
from interface_html.schema import Schema
from interface_html.suggestions import LIST, OUTPUT, SHOWN, item_suggestion_problems
from interface_html.tasks import TASK_HELP, FeedbackTask, feedback_of

DECIMALS = 4  # of a score
Place = tuple[str, str]  # the prompt, and the text with the suggestions


@dataclass(frozen=True)
class Suggestion:
    """A suggested error: see interface_html/suggestions.py.

    Args:
      output: the index of the output that it is in.
    """

    type: str
    start: int
    end: int
    score: float
    source: str
    explanation: str = ""
    output: int = 0

    def as_dict(self) -> dict[str, Any]:
        return {
            "type": self.type,
            "start": self.start,
            "end": self.end,
            "explanation": self.explanation,
            "score": round(self.score, DECIMALS),
            "source": self.source,
            **({OUTPUT: self.output} if self.output else {}),
        }


class SuggestSettings(OutputSettings):
    """The items, and what suggests errors in them."""

    task: str = Field(description=TASK_HELP)
    source: str = Field(description="samples, feedback or items, in the task's format")
    out: FilePath = Field(description="the file of items to write")
    models: str | None = Field(
        default=None, description="folders of segment reward models, separated by commas"
    )
    judgements: str | None = Field(
        default=None, description="a file of the row format `judgements`, with the same texts"
    )
    kinds: dict[str, str] = Field(
        default_factory=dict,
        description="the kind of error of each label; a label with the name of a kind needs none",
    )
    threshold: float = Field(default=0.5, ge=0, le=1, description="smallest score of a suggestion")
    share: float = Field(
        default=0.5, ge=0, le=1, description="share of the items that show their suggestions"
    )
    seed: int = Field(default=0, description="of the choice of these items")
    prompts: str | None = Field(default=None, description=PROMPTS_HELP)

    @property
    def folders(self) -> list[str]:
        return self.models.split(",") if self.models else []

    @model_validator(mode="after")
    def _check_sources(self):
        if bool(self.models) == bool(self.judgements):
            refuse([("models", "set either models=FOLDER or judgements=FILE")])
        return self


# ---- spans (pure) --------------------------------------------------------------------------------


def snapped(schema: Schema, text: str, start: int, end: int) -> tuple[int, int] | None:
    """The smallest span of whole units that contains the text [start, end); None if it is blank.

    Units are words or sentences. In scripts without spaces a word has no known limits: there the
    span stays as it is.
    """
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    if start == end:
        return None
    if schema.unit == "sentence":
        touched = [bounds for bounds in sentences(text) if bounds[0] < end and start < bounds[1]]
        return touched[0][0], touched[-1][1]
    while start > 0 and not _is_limit(text, start):
        start -= 1
    while end < len(text) and not _is_limit(text, end):
        end += 1
    return start, end


def _is_limit(text: str, at: int) -> bool:
    """Whether a word may start or end between `text[at - 1]` and `text[at]`."""
    return text[at - 1].isspace() or text[at].isspace() or is_inner_boundary(text, at)


def merged(text: str, suggestions: Sequence[Suggestion]) -> list[Suggestion]:
    """Suggestions in one text by position; those of one kind and source that touch are one.

    Two spans touch if only white space is between them. The result has the largest score and the
    explanation of the first.
    """
    result: list[Suggestion] = []
    for suggestion in sorted(suggestions, key=lambda one: (one.start, one.end)):
        last_index = _last_touching(text, result, suggestion)
        if last_index is None:
            result.append(suggestion)
            continue
        last = result[last_index]
        result[last_index] = replace(
            last,
            end=max(last.end, suggestion.end),
            score=max(last.score, suggestion.score),
        )
    return result


def _last_touching(text: str, before: Sequence[Suggestion], one: Suggestion) -> int | None:
    for i in reversed(range(len(before))):
        other = before[i]
        is_alike = (other.type, other.source) == (one.type, one.source)
        if is_alike and not text[other.end : one.start].strip():
            return i
        if is_alike:
            return None
    return None


def distinct(suggestions: Sequence[Suggestion]) -> list[Suggestion]:
    """Suggestions in one text by position, of which no two have the same kind and span.

    Of those by several sources, the one with the largest score stays.
    """
    best: dict[tuple[str, int, int], Suggestion] = {}
    for one in suggestions:
        key = one.type, one.start, one.end
        if key not in best or one.score > best[key].score:
            best[key] = one
    return sorted(best.values(), key=lambda one: (one.start, one.end))


def is_shown(seed: int, item: str, share: float) -> bool:
    """Whether an item shows its suggestions: a pure function of the seed and the item's id."""
    return derive_seed(seed, "suggestions shown", item) / 2**63 < share


# ---- sources of suggestions ----------------------------------------------------------------------


def segment_suggestions(
    labels: SegmentLabels, kinds: Mapping[str, str], threshold: float, source: str
) -> list[Suggestion]:
    """The segments with P(error) >= threshold, in characters of the text.

    Args:
      labels: a reward model's judgements; its last label is "ok".
      kinds: the kind of error of each other label.
    """
    suggestions = []
    for span, p_C, is_judged in zip(labels.spans, labels.probabilities_SC.tolist(), labels.judged):
        *p_errors, p_ok = p_C
        if not is_judged or 1 - p_ok < threshold:
            continue
        label = labels.labels[p_errors.index(max(p_errors))]
        suggestions.append(Suggestion(kinds[label], *span, score=1 - p_ok, source=source))
    return suggestions


def _kinds_of_labels(
    schema: Schema, labels: Sequence[str], kinds: Mapping[str, str], source: str
) -> dict[str, str]:
    """The kind of error of each label. Raises `UserError` for labels without one."""
    known = _known_kinds(schema, kinds)
    unknown = [label for label in labels if label not in known]
    if unknown:
        raise UserError(
            f"{source}: no kind of error is known for its labels {', '.join(unknown)}. Set"
            f" kinds='{{{unknown[0]}: {schema.response_kinds[0]}}}', with one of"
            f" {', '.join(schema.response_kinds)} for each label"
        )
    return {label: known[label] for label in labels}


def _known_kinds(schema: Schema, kinds: Mapping[str, str]) -> dict[str, str]:
    names = schema.response_kinds
    wrong = [kind for kind in kinds.values() if kind not in names]
    if wrong:
        raise UserError(
            f"kinds: {wrong[0]!r} is no kind of error of the task {schema.task}: use one of"
            f" {', '.join(names)}"
        )
    return {**{name: name for name in names}, **kinds}


def _from_models(
    task: FeedbackTask, items: Sequence[Item], settings: SuggestSettings
) -> list[list[Suggestion]]:
    """For each item, the suggestions of all models."""
    prefix_fn = load_task(settings.task).rm_prefix
    prompts = [task.format.prompt(task.schema, item) for item in items]
    suggestions: list[list[Suggestion]] = [[] for _ in items]
    for folder in settings.folders:
        scorer = load_reward_model(folder, prefix_fn)
        if not isinstance(scorer, SegmentScorer):
            raise UserError(
                f"{folder}: this reward model compares whole texts, so it suggests no spans. Name a"
                " segment reward model"
            )
        kinds = _kinds_of_labels(task.schema, scorer.labels[:-1], settings.kinds, folder)
        for output, key in enumerate(task.schema.marked_outputs):
            texts = [item.row[key] for item in items]
            for found, labels in zip(suggestions, scorer.score(prompts, texts)):
                of_text = segment_suggestions(labels, kinds, settings.threshold, Path(folder).name)
                found += [replace(one, output=output) for one in of_text]
    return suggestions


def _from_judgements(
    task: FeedbackTask, items: Sequence[Item], settings: SuggestSettings
) -> list[list[Suggestion]]:
    """For each item, the judgements of its texts. Prints what could not be used.

    The prompts count too, unless the file has other prompts than the items, such as with an
    instruction before them.
    """
    path = str(settings.judgements)
    kinds = _known_kinds(task.schema, settings.kinds)
    by_place: dict[Place, list[Suggestion]] = {}
    left_out: Counter[str] = Counter()
    for judged in FORMATS["judgements"].read(path):
        found = by_place.setdefault((judged.prompt.text, judged.response), [])
        for one in judged.judgements:
            score = 1.0 if one.score is None else one.score
            if one.span is None or one.side != RESPONSE:
                left_out["without a span in the response"] += 1
            elif one.label not in kinds:
                left_out[f"with the label {one.label}, which `kinds` does not name"] += 1
            elif not 0 <= score <= 1:
                left_out["with a score that is not from 0 to 1"] += 1
            elif score >= settings.threshold:
                explanation = one.evidence or one.reason or ""
                start, end = one.span
                kind = kinds[one.label]
                found.append(Suggestion(kind, start, end, score, Path(path).stem, explanation))
    for reason, count in left_out.items():
        print(f"left out {counted(count, 'judgement')} {reason}")
    places = []  # for each item, those of its texts
    for item in items:
        prompt = task.format.prompt(task.schema, item).text
        places.append([(prompt, item.row[key]) for key in task.schema.marked_outputs])
    fitting = _fitting(by_place, [place for of_item in places for place in of_item], settings)
    suggestions = []
    for of_item in places:
        of_texts: list[Suggestion] = []
        for output, place in enumerate(of_item):
            of_texts += [replace(one, output=output) for one in fitting.get(place, [])]
        suggestions.append(of_texts)
    return suggestions


def _fitting(
    by_place: Mapping[Place, list[Suggestion]], places: Sequence[Place], settings: SuggestSettings
) -> Mapping[Place, list[Suggestion]]:
    """The judgements at the places of the items; those of the same text if no prompt is the same.

    Raises:
      UserError: no text is the same, or one has the judgements of several prompts.
    """
    if set(places) & set(by_place):
        return by_place  # many prompts may have the same response, such as "Yes."
    by_text: dict[str, list[list[Suggestion]]] = {}
    for (_, text), found in by_place.items():
        by_text.setdefault(text, []).append(found)
    fitting = {place: by_text[place[1]] for place in places if place[1] in by_text}
    if not fitting:
        raise UserError(
            f"{settings.judgements} has no response that is an annotated text of an item in"
            f" {settings.source}. Give the judgements of the same texts"
        )
    if any(len(found) > 1 for found in fitting.values()):
        raise UserError(
            f"{settings.judgements} has the same response to several prompts, and none of the"
            f" prompts is that of an item in {settings.source}. Give the judgements of the same"
            " prompts"
        )
    return {place: found for place, (found,) in fitting.items()}


# ---- the program ---------------------------------------------------------------------------------


def suggest(settings: SuggestSettings) -> list[Item]:
    """Write the items with suggestions.

    Raises:
      DataError: a file has malformed rows.
      UserError: a file or a model cannot be read, or does not fit the task.
    """
    task = feedback_of(settings.task)
    if not task.schema.response_kinds:
        raise UserError(f"the task {task.schema.task} has no kinds of error, so none is suggested")
    items = read_items(task, settings.source, settings.prompts)
    for item in items:
        if LIST in item.row:
            raise UserError(
                f"{settings.source}: item {item.id} has suggestions already. Give the file of items"
                " without them"
            )
    find = _from_models if settings.models else _from_judgements
    suggested = [
        _with_suggestions(task.schema, item, found, settings)
        for item, found in zip(items, find(task, items, settings))
    ]
    write_text(settings.out, rows_text(item_json(task, item) for item in suggested))
    count = sum(len(item.row[LIST]) for item in suggested)
    has_some = [item for item in suggested if item.row[LIST]]
    n_shown = sum(item.row[SHOWN] for item in has_some)
    print(
        f"{settings.out}: {counted(len(suggested), 'item')}, {counted(count, 'suggestion')} in"
        f" {len(has_some):,} of them; {n_shown:,} of these show them to annotators"
    )
    return suggested


def _with_suggestions(
    schema: Schema, item: Item, found: Sequence[Suggestion], settings: SuggestSettings
) -> Item:
    suggestions: list[Suggestion] = []
    for output, key in enumerate(schema.marked_outputs):
        text = item.row[key]
        of_text = []
        for one in found:
            span = snapped(schema, text, one.start, one.end) if one.output == output else None
            if span is not None:
                of_text.append(replace(one, start=span[0], end=span[1]))
        suggestions += distinct(merged(text, of_text))
    row = {**item.row, LIST: [one.as_dict() for one in suggestions]}
    row[SHOWN] = is_shown(settings.seed, item.id, settings.share)
    problems = item_suggestion_problems(schema, row)
    if problems:
        field, reason = problems[0]
        raise UserError(f"item {item.id}: `{field}` {reason}. The suggestion cannot be shown")
    return Item(item.id, row)
