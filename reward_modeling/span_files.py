"""Marked spans -> a segment file, on which run_fg_rm trains a reward model.

    fgrlhf rm span_files TASK source=spans.jsonl output=fact/train.json level=sentence \\
        tags="{wrong: ERROR}"

Reads rows of the format `spans` (docs/data_formats.md), which is also what the feedback pages write
for most tasks. A segment gets the tag of a span that overlaps it. `tags` names the labels that this
reward model judges: spans with other labels belong to other reward models, and a segment with only
such spans is right for this one. `Fact.major` names the spans with the label `Fact` and the
severity `major`, `Fact` those of any severity. No segment gets the tag of a span in the source (an
omission) or of a span between segments (blanks, separators). The program prints how many such spans
there are.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, write_json, write_text
from fgrlhf.cli.command_line import settings_from, task_and_rest
from fgrlhf.cli.data_inspect import print_counts
from fgrlhf.configs.strict import FilePath, StrictModel
from fgrlhf.data.formats import SPANS
from fgrlhf.data.judgements import RESPONSE, SOURCE, JudgedResponse, Judgement
from fgrlhf.data.quotes import Offsets
from fgrlhf.data.read import check_not_input
from fgrlhf.metrics.clusters import cluster_of
from fgrlhf.reward_utils import (
    LEVEL_HELP,
    MULTILINGUAL,
    SEGMENTER_HELP,
    Level,
    Segmenter,
    SegmenterName,
    Span,
    is_step,
    load_segmenter,
)
from fgrlhf.task import Task
from reward_modeling.segment_files import (
    IGNORE,
    OK,
    TaggedWords,
    segment_file,
    segment_tags,
    tagged_words,
)

SEGMENTER_FILE = "segmenter.json"
USAGE = (
    "usage: fgrlhf rm span_files [TASK] source=... output=... level=... tags=... [key=value ...]"
)


class SpanFileSettings(StrictModel):
    """Input, output, the segments, and the labels to judge."""

    source: str = Field(description="file of marked spans, or hub:org/name")
    output: FilePath = Field(description="the segment file")
    level: Level = Field(description=f"the segments to judge: {LEVEL_HELP}")
    tags: dict[str, str] = Field(
        min_length=1,
        description="label of a span -> tag of the segments that it overlaps, such as"
        " {wrong: ERROR}; {wrong.major: ERROR}: only of this severity; where several meet, the"
        " first one here decides",
    )
    with_context: bool = Field(
        False, description="write the prompt with its context before the response"
    )
    segmenter: SegmenterName = Field(
        MULTILINGUAL, description=f"what divides the responses: {SEGMENTER_HELP}"
    )
    columns: dict[str, str | list[str]] = Field(
        default={}, description="the format's keys -> the file's: docs/data_formats.md, Spans"
    )
    offsets: Offsets = Field(
        default=Offsets(), description="how the file counts the offsets of spans, if not as here"
    )


def _tagged_response(
    task: Task, feedback: JudgedResponse, settings: SpanFileSettings, segments: Sequence[Span]
) -> TaggedWords | None:
    """The line of a segment file for a response with these segments; None if it has none."""
    spans = []
    for span in feedback.spans:
        tag = named(span, settings.tags)
        if span.side == RESPONSE and tag is not None:
            spans.append(replace(span, label=tag))
    tags = segment_tags(segments, spans, settings.tags)
    prompt = feedback.prompt
    if feedback.source is not None:  # a task may read the source before the response
        prompt = replace(prompt, meta={**prompt.meta, SOURCE: feedback.source})
    prefix = task.rm_prefix(prompt, settings.with_context)
    return tagged_words(
        prefix,
        feedback.response,
        segments,
        tags,
        # the separator of steps need not be white space, and they are lines already
        white_space="prompt" if is_step(settings.level) else "prompt and response",
        cluster=cluster_of(feedback.prompt),
    )


def named(span: Judgement, tags: Mapping[str, str]) -> str | None:
    """The first name in `tags` of a span: its label, or `label.severity`; None if it has none."""
    names = _names(span)
    return next((name for name in tags if name in names), None)


def _names(span: Judgement) -> set[str]:
    names = {str(span.label)}
    if span.severity is not None:
        names.add(f"{span.label}.{span.severity}")
    return names


def _spans_left_out(
    rows: Sequence[JudgedResponse], segments: Sequence[Sequence[Span]], tags: Mapping[str, str]
) -> Counter[str]:
    """The number of spans that give no segment a tag, by the reason.

    Args:
      segments: of each row's response.
    """
    counts: Counter[str] = Counter()
    for row, segments_of_row in zip(rows, segments, strict=True):
        for span in row.spans:
            if named(span, tags) is None:
                of = "" if span.severity is None else f", severity {span.severity!r}"
                known = any(name.startswith(f"{span.label}.") for name in tags)
                counts[f"label {span.label!r}{of if known else ''}"] += 1
            elif span.side != RESPONSE:
                counts["on the source side"] += 1
            elif not any(_overlap(span, segment) for segment in segments_of_row):
                counts["between segments"] += 1
    return counts


def _overlap(span: Judgement, segment: Span) -> bool:
    start, end = span.place
    return start < segment[1] and segment[0] < end


def _ignored_severities(rows: Sequence[JudgedResponse], tags: Mapping[str, str]) -> Counter[str]:
    """`label.severity` of spans whose tag is that of all severities, if their label has several."""
    counts: Counter[tuple[str, str]] = Counter()
    for row in rows:
        for span in row.spans:
            if span.severity is not None and named(span, tags) == span.label:
                counts[str(span.label), span.severity] += 1
    severities = Counter(label for label, _ in counts)
    several = {f"{label}.{one}": n for (label, one), n in counts.items() if severities[label] > 1}
    return Counter(several)


def write_span_file(task: Task, settings: SpanFileSettings) -> None:
    """Write the segment file, and print its numbers of rows and tags.

    Segmenter and level are described beside the file, so that training and RL divide texts alike.

    Raises:
      UserError: the source cannot be read or has no segment, a label of `tags` is on no span, the
        level needs a policy's tokens, a tag is the one of right or unjudged segments, or the task
        cannot mark a context.
    """
    _check(task, settings)
    counts: Counter[str] = Counter()
    rows = SPANS.read(
        settings.source, settings.columns, counts=counts, reading=settings.offsets.reading
    )
    path = Path(settings.output)
    names = set().union(*(_names(span) for row in rows for span in row.spans))
    missing = [name for name in settings.tags if name not in names]
    known = _described(path)
    beside = _names_beside(path, known)
    unknown = [name for name in missing if name not in beside]  # held-out rows may lack a label
    if unknown:
        raise UserError(
            f"tags: no span of {settings.source} has the label {unknown[0]!r}; its labels are:"
            f" {', '.join(map(repr, sorted(names))) or 'none'}"
        )
    segmenter = load_segmenter(settings.segmenter)
    segments = [segmenter.segments(row.response, settings.level) for row in rows]
    text, summary = segment_file(
        _tagged_response(task, row, settings, segments_of_row)
        for row, segments_of_row in zip(rows, segments, strict=True)
    )
    if not text:
        raise UserError(f"{settings.source} has no segment at level={settings.level}")
    description = _description(path, known, segmenter, settings)
    write_text(path, text)
    write_json(path.parent / SEGMENTER_FILE, description)
    print(f"{path}: {summary}", flush=True)
    print_counts(counts)
    for name in missing:
        print(f"  note: no span has the label {name!r}, which other files here have", flush=True)
    for reason, count in _spans_left_out(rows, segments, settings.tags).most_common():
        print(f"  spans left out, {reason}: {count:,}", flush=True)
    ignored = _ignored_severities(rows, settings.tags)
    if ignored:
        found = ", ".join(f"{name} {count:,}" for name, count in ignored.most_common())
        print(f"  severities with the same tag: {found}; `tags` may name them", flush=True)
    _note_sources(rows)


def _note_sources(rows: Sequence[JudgedResponse]) -> None:
    """Print how to read the source texts of rows that have no prompts."""
    if all(not row.prompt.text.strip() for row in rows):
        sources = sum(row.source is not None for row in rows)
        if sources:
            print(
                f"  note: no row has a prompt, but {sources:,} have a `source`, which the reward"
                f" model will not read: with columns.prompt={SOURCE}, it is the prompt",
                flush=True,
            )


def _described(path: Path) -> dict[str, Any]:
    """What the folder's file of segmenters says of its files; {} without one."""
    file = path.parent / SEGMENTER_FILE
    known = read_json(file) if file.exists() else {}
    return known if isinstance(known, dict) else {}


def _names_beside(path: Path, known: Mapping[str, Any]) -> set[str]:
    """The names in `tags` of the other files in the folder, each of which was on a span there."""
    tags = known.get("tags")
    if not isinstance(tags, dict):
        return set()
    return {name for other, names in tags.items() if other != path.name for name in names}


def _description(
    path: Path, before: Mapping[str, Any], segmenter: Segmenter, settings: SpanFileSettings
) -> dict[str, Any]:
    """Segmenter and levels of the folder's segments, and the names in `tags`, with this file's.

    Raises:
      UserError: another file in the folder has the segments of another segmenter.
    """
    known = before.get("levels", {})
    others = sorted(name for name in known if name != path.name and (path.parent / name).exists())
    description = segmenter.describe()
    recorded = {key: before.get(key) for key in description} if others else description
    if recorded != description:
        raise UserError(
            f"{path.parent / SEGMENTER_FILE}: the segments of {', '.join(others)} are those of"
            " another segmenter, so that a model would be trained with one and tested with the"
            f" other. Write {path.name} into another folder, or delete those files and write all of"
            " them again"
        )
    tags = before.get("tags", {})
    return {
        **description,
        "levels": {**known, path.name: settings.level},
        "tags": {**tags, path.name: [*settings.tags]},
    }


def _check(task: Task, settings: SpanFileSettings) -> None:
    """Raise `UserError` for settings whose file would replace another or could not be used."""
    check_not_input(settings.source, settings.output)
    segmenter_file = str(Path(settings.output).parent / SEGMENTER_FILE)
    check_not_input(settings.source, segmenter_file)
    if Path(settings.output).name == SEGMENTER_FILE:
        raise UserError(
            f"output: {SEGMENTER_FILE} describes the segmenter beside the segment file, so that"
            " cannot have this name. Name another file"
        )
    if settings.with_context and task.rm_prefix_of_words is None:
        raise UserError(
            f"with_context=true: the task {task.name} does not mark a context in the files' words"
            " (Task.rm_prefix_of_words), so training could not find it. Leave the key out"
        )
    if settings.level == "token":
        raise UserError(
            "level=token: the tokens are those of a policy, which is not known here. Use level=word"
        )
    for label, tag in settings.tags.items():
        if tag in (OK, IGNORE):
            raise UserError(
                f"tags.{label}: {tag} is the tag of segments that are right ({OK}) or not judged"
                f" ({IGNORE}). Choose another one, such as ERROR"
            )


def main(argv: Sequence[str] | None = None) -> None:
    """Command line: a task, and key=value settings."""
    task, rest = task_and_rest(argv, USAGE)
    write_span_file(task, settings_from(SpanFileSettings, rest, USAGE))
