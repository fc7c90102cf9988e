"""Labelled spans of responses -> segment files, on which reward_modeling/run_fg_rm.py trains.

A segment gets the tag of a span that overlaps it. The words of a response are written after those
of the prompt, with a `</s>` before each segment, which carries the segment's tag.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from fgrlhf.data.judgements import Judgement
from fgrlhf.metrics.clusters import CLUSTER
from fgrlhf.reward_models.prefix import Prefix, spaces_before_words
from fgrlhf.reward_utils import SEGMENT_MARK, Span, rm_words

OK, IGNORE = "O", "Ignore"

WhiteSpace = Literal["none", "prompt", "prompt and response"]


@dataclass(frozen=True)
class TaggedWords:
    """A line of a segment file: words, one tag for each, and the places of the `</s>`.

    Attributes:
      spaces: place -> white space before the word there, where it is not a single space: of the
        prompt if it has the place 0, of the response if it has that of its first word.
      cluster: names what the row shares with others, such as a document.
    """

    words: list[str]
    tags: list[str]
    marks: list[int]
    spaces: dict[int, str] = field(default_factory=dict)
    cluster: str | None = None

    def row(self) -> dict:
        row: dict = {"text": self.words, "feedback_tags": self.tags}
        if self.cluster is not None:
            row[CLUSTER] = self.cluster
        # `</s>` can also be a word of the prompt or the response: then readers need the places
        if self.words.count(SEGMENT_MARK) != len(self.marks):
            row["marks"] = self.marks
        if self.spaces:
            row["spaces"] = self.spaces  # JSON makes texts of the places
        return row


def segment_tags(
    segments: Sequence[Span],
    spans: Iterable[Judgement],
    tags: Mapping[str, str],
    ok: str = OK,
) -> list[str]:
    """The tag of each segment.

    Args:
      segments: half-open characters of a response.
      spans: of the same response. A span overlaps a segment if they share a character.
      tags: label of a span -> tag of the segments it overlaps. If spans with several labels overlap
        a segment, the label that comes first in `tags` decides.
      ok: the tag of a segment that no span overlaps.
    """
    places = [(span, span.place) for span in spans]
    result = []
    for start, end in segments:
        labels = {span.label for span, (begin, stop) in places if begin < end and start < stop}
        tag = ok
        for label in tags:
            if label in labels:
                tag = tags[label]
                break
        result.append(tag)
    return result


def tagged_words(
    prefix: Prefix | Sequence[str],
    response: str,
    segments: Sequence[Span],
    tags: Sequence[str],
    ignore: str = IGNORE,
    white_space: WhiteSpace = "none",
    cluster: str | None = None,
) -> TaggedWords | None:
    """The words of a prompt and its response with their tags.

    None if there is nothing to learn, because every segment has the tag `ignore` or the response
    has no segment.

    Args:
      white_space: what the line keeps it of.
      cluster: names what the row shares with others, such as a document.
    """
    if all(tag == ignore for tag in tags):
        return None
    prefix = Prefix.of(prefix)
    words, marks = rm_words(prefix.all_words, response, segments)
    word_tags = [ignore] * len(words)
    for mark, tag in zip(marks, tags, strict=True):
        word_tags[mark] = tag
    spaces: dict[int, str] = {}
    if white_space != "none" and prefix.all_words:
        spaces = dict(enumerate(prefix.spaces or ("",)))
    if white_space == "prompt and response":
        for mark, of_segment in zip(marks, spaces_before_words(response, segments)):
            spaces |= dict(enumerate(of_segment, mark + 1))
    kept = {place: space for place, space in spaces.items() if space != " "}
    return TaggedWords(words, word_tags, marks, kept, cluster)


def segment_file(examples: Iterable[TaggedWords | None], ignore: str = IGNORE) -> tuple[str, str]:
    """The text of a segment file, and a summary of it.

    The id of a line is the number of its example; examples that are None are left out.
    """
    lines = []
    counts: Counter[str] = Counter()
    n_examples = 0
    for number, example in enumerate(examples):
        n_examples += 1
        if example is None:
            continue
        lines.append(json.dumps({"id": str(number), **example.row()}) + "\n")
        counts.update(tag for tag in example.tags if tag != ignore)
    total = max(counts.total(), 1)
    shares = [f"{tag} {n} ({n / total:.1%})" for tag, n in sorted(counts.items())]
    summary = f"{len(lines)} of {n_examples} rows; segments: {', '.join(shares) or 'none'}"
    return "".join(lines), summary
