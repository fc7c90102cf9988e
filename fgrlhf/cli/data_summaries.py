"""What `fgrlhf data check` prints about the rows of each format: counts, labels and oddities."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from fgrlhf.base.errors import shorten
from fgrlhf.data.comparisons import Comparison
from fgrlhf.data.formats import (
    COMPARISONS,
    DEMONSTRATIONS,
    PROMPTS,
    SPANS,
    STEPS,
    Demonstration,
)
from fgrlhf.data.judgements import JUDGEMENTS, SOURCE, JudgedResponse
from fgrlhf.data.locate import is_whole
from fgrlhf.data.unpaired_rows import UNPAIRED
from fgrlhf.models.dialogs import NEXT_TURN
from fgrlhf.segmentation import odd_kind, sentences
from fgrlhf.text_types import Prompt
from fgrlhf.words import count_words

MANY_CUT = 0.1  # share of spans that cut a word
MOST_LABELS = 10


def summary(format_name: str, items: Sequence[Any]) -> list[str]:
    """The lines about rows that were read in a format."""
    return _SUMMARIES[format_name](items)


def _about_prompts(prompts: Sequence[Prompt]) -> list[str]:
    lines = [f"different prompts: {len({prompt.text for prompt in prompts}):,}"]
    with_references = sum(bool(prompt.references) for prompt in prompts)
    if with_references:
        lines.append(f"with references: {with_references:,}")
    return lines


def _about_demonstrations(demonstrations: Sequence[Demonstration]) -> list[str]:
    words = [count_words(demonstration.response) for demonstration in demonstrations]
    return [
        *_about_prompts([demonstration.prompt for demonstration in demonstrations]),
        f"mean words of a response: {sum(words) / len(words):.1f}",
    ]


def _about_comparisons(comparisons: Sequence[Comparison]) -> list[str]:
    sizes = Counter(len(comparison.answers) for comparison in comparisons)
    pairs = [pair for comparison in comparisons for pair in comparison.pairs]
    lines = _about_prompts([comparison.prompt for comparison in comparisons])
    for size, count in sorted(sizes.items()):
        lines.append(f"with {size} responses: {count:,}")
    lines.append(f"decided pairs: {len(pairs):,}")
    undecided = sum(not comparison.pairs for comparison in comparisons)
    if undecided:
        lines.append(f"without a decided pair, so training leaves them out: {undecided:,}")
    # In rows {chosen, rejected} the better response is always first. In other rows, the share shows
    # a position bias of the annotators.
    first_is_better = sum(better < worse for better, worse in pairs)
    if pairs and first_is_better < len(pairs):
        share = first_is_better / len(pairs)
        lines.append(f"pairs whose first-listed response is better: {share:.1%}")
    blank = equal = dialogs = 0
    for comparison in comparisons:
        texts = [answer.text for answer in comparison.answers]
        dialogs += any(NEXT_TURN in text for text in texts)
        for better, worse in comparison.pairs:
            blank += not texts[better].strip()
            equal += texts[better].strip() == texts[worse].strip()
    if equal:
        lines.append(
            f"pairs of two equal responses: {equal:,} (nothing can be learned from them; remove"
            " these rows)"
        )
    if dialogs:
        lines.append(
            f"rows with a response that goes on with further turns of a dialog: {dialogs:,} (a"
            " policy would learn to write both speakers; remove these rows if that is not intended)"
        )
    if blank:
        lines.append(
            f"pairs whose better response is blank: {blank:,} (a policy would learn to write"
            " nothing; remove these rows if that is not intended)"
        )
    return lines


def _about_unpaired(items: Sequence[Comparison]) -> list[str]:
    lines = _about_prompts([item.prompt for item in items])
    good = sum(item.labels[0] is True for item in items)
    lines.append(f"good responses: {good:,}, bad ones: {len(items) - good:,}")
    marked = sum(bool(item.answers[0].marked) for item in items)
    if marked:
        lines.append(f"with marked characters: {marked:,}")
    if good in (0, len(items)):
        lines.append("all are of one kind: KTO learns from good and bad ones")
    labels: dict[tuple[str, str], set[bool | None]] = {}
    for item in items:
        labels.setdefault((item.prompt.text, item.answers[0].text), set()).add(item.labels[0])
    both = sum(len(of_answer) > 1 for of_answer in labels.values())
    if both:
        lines.append(f"responses that are good in one row and bad in another: {both:,}")
    return lines


def _about_spans(feedback: Sequence[JudgedResponse]) -> list[str]:
    labels = Counter(str(span.label) for item in feedback for span in item.spans)
    without = sum(not item.spans for item in feedback)
    lines = [f"spans: {labels.total():,}", f"responses without a span: {without:,}"]
    lines += _about_marks(feedback)
    severities = Counter(span.severity for item in feedback for span in item.spans if span.severity)
    alike = [*_alike("labels", labels), *_alike("severities", severities)]
    return [*lines, *_about_sentences(feedback), *_counted_labels(labels), *alike]


def _about_marks(judged: Sequence[JudgedResponse]) -> list[str]:
    """Lines about spans that hardly are what somebody marked."""
    marks = [(item.text(span.side), *span.place) for item in judged for span in item.spans]
    lines = []
    cut = sum(not is_whole(text, start, end) for text, start, end in marks)
    if cut:
        line = f"spans that begin or end inside a word: {cut:,} ({cut / len(marks):.1%})"
        if cut > MANY_CUT * len(marks):
            line += "; if they should not, the file counts offsets otherwise (see offsets)"
        lines.append(line)
    blank = sum(not text[start:end].strip() for text, start, end in marks)
    if blank:
        lines.append(f"spans of white space only, which no segment has: {blank:,}")
    return lines


def _alike(what: str, values: Counter[str]) -> list[str]:
    """A line about names that differ only in blanks or case."""
    groups: dict[str, list[str]] = {}
    for value in values:
        groups.setdefault(" ".join(value.split()).casefold(), []).append(value)
    several = [", ".join(map(repr, group)) for group in groups.values() if len(group) > 1]
    if not several:
        return []
    return [
        f"{what} that differ only in blanks or case, which training takes for different ones:"
        f" {shorten('; '.join(several), 200)}"
    ]


def _about_sentences(feedback: Sequence[JudgedResponse]) -> list[str]:
    """A line with the sentences of the responses, and the shares of odd ones."""
    kinds: Counter[str | None] = Counter()
    for item in feedback:
        for start, end in sentences(item.response):
            kinds[odd_kind(item.response[start:end])] += 1
    total = kinds.total()
    odd = [(kind, count) for kind, count in kinds.most_common() if kind is not None]
    shares = [f"{kind} {count / total:.1%}" for kind, count in odd]
    of_these = f"; of these {', '.join(shares)}" if shares else ""
    return [f"sentences of the responses: {total:,}{of_these}"]


def _about_steps(feedback: Sequence[JudgedResponse]) -> list[str]:
    steps = [step for item in feedback for step in item.spans]
    lines = [*_about_prompts([item.prompt for item in feedback]), f"steps: {len(steps):,}"]
    scores = [step.score for step in steps if step.score is not None]
    if scores:
        mean = sum(scores) / len(scores)
        lines.append(
            f"with a score: {len(scores):,} ({min(scores):g} to {max(scores):g}, mean {mean:.3f})"
        )
    return [*lines, *_counted_labels(Counter(step.label for step in steps if step.label))]


def _about_judgements(judged: Sequence[JudgedResponse]) -> list[str]:
    judgements = [judgement for item in judged for judgement in item.judgements]
    without = sum(not item.judgements for item in judged)
    lines = [f"judgements: {len(judgements):,}", f"responses without a judgement: {without:,}"]
    lines.append(f"with a span: {sum(len(item.spans) for item in judged):,}")
    lines += _about_marks(judged)
    of_source = sum(judgement.side == SOURCE for judgement in judgements)
    if of_source:
        lines.append(f"of the source: {of_source:,}")
    for part in ("aspect", "severity", "annotator"):
        values = {getattr(judgement, part) for judgement in judgements} - {None}
        if values:
            lines.append(f"different values of {part}: {len(values):,}")
    lines += _counted_labels(Counter(item.label for item in judgements if item.label))
    for what, part in (("aspects", "aspect"), ("labels", "label"), ("severities", "severity")):
        values = Counter(getattr(item, part) for item in judgements)
        del values[None]
        lines += _alike(what, values)
    return lines


def _counted_labels(labels: Counter[str]) -> list[str]:
    lines = [
        f"with label {shorten(label, 60)}: {count:,}"
        for label, count in labels.most_common(MOST_LABELS)
    ]
    if len(labels) > MOST_LABELS:
        lines.append(f"other labels: {len(labels) - MOST_LABELS}")
    return lines


_SUMMARIES: dict[str, Callable[[Sequence[Any]], list[str]]] = {
    PROMPTS.name: _about_prompts,
    DEMONSTRATIONS.name: _about_demonstrations,
    COMPARISONS.name: _about_comparisons,
    UNPAIRED.name: _about_unpaired,
    SPANS.name: _about_spans,
    STEPS.name: _about_steps,
    JUDGEMENTS.name: _about_judgements,
}
