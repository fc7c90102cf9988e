"""Feedback -> training files of the three fine-grained reward models.

Reads {train,dev}_feedback.json in `data_dir` and writes there
  NF-ERR_subsentence/{train,dev}.json   R1 relevance: JSON lines {id, text: [words], feedback_tags:
  [tags]} F-ERR_sentence/{train,dev}.json       R2 factuality: the same, with passages
  COMP_sequence/{train,dev}.json        R3 completeness: feedback rows with other preferences
and beside each pair `segmenter.json`: what cut the answers, since a reward model must score the
same segments.
"""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from fgrlhf.cli.command_line import settings_from
from fgrlhf.config import StrictModel
from fgrlhf.errors import run_main
from fgrlhf.files import write_json, write_text
from fgrlhf.reward_utils import MIN_WORDS, Segmenter, Span, load_segmenter, rm_words
from tasks.qa_feedback.feedback import (
    FeedbackRow,
    feedback_text,
    read_feedback_files,
    rm_words_prefix,
)
from tasks.qa_feedback.reward_modeling.coverage import completeness_preference
from tasks.qa_feedback.validation import FACTUAL_ERRORS

IGNORE, CORRECT = "Ignore", "O"
NON_FACTUAL, FACTUAL = "NF-ERR", "F-ERR"
MIN_SPAN_WORDS = MIN_WORDS  # shorter non-factual spans do not count
FOLDERS = ("NF-ERR_subsentence", "F-ERR_sentence", "COMP_sequence")
SPLITS = ("train", "dev")


class Settings(StrictModel):
    data_dir: str
    segmenter: str = "auto"


def relevance_tags(row: FeedbackRow, segmenter: Segmenter) -> list[str]:
    """`NF-ERR` for each sub-sentence of prediction 1 that a non-factual span touches, `O` for the
    others.
    """
    touched = _kinds(row, segmenter.subsentences(row.predictions[0]))
    return [NON_FACTUAL if NON_FACTUAL in kinds else CORRECT for kinds in touched]


def factuality_tags(row: FeedbackRow, segmenter: Segmenter) -> list[str]:
    """`F-ERR`, `Ignore` or `O` for each sentence of prediction 1.

    A factual span makes it `F-ERR`; a non-factual one alone makes it `Ignore`, since annotators did
    not look for factual errors inside such a span.
    """
    touched = _kinds(row, segmenter.sentences(row.predictions[0]))
    return [FACTUAL if FACTUAL in kinds else IGNORE if kinds else CORRECT for kinds in touched]


def _kinds(row: FeedbackRow, segments: Sequence[Span]) -> list[set[str]]:
    """The kinds of error that touch each segment. Non-factual spans count from `MIN_SPAN_WORDS`
    words.
    """
    text = row.predictions[0]
    spans = []
    for error in row.errors:
        factual = error.type in FACTUAL_ERRORS
        if factual or len(text[error.start : error.end].split()) >= MIN_SPAN_WORDS:
            spans.append((error.start, error.end, FACTUAL if factual else NON_FACTUAL))
    return [
        {kind for begin, stop, kind in spans if begin < end and start < stop}
        for start, end in segments
    ]


def relevance_example(row: FeedbackRow, segmenter: Segmenter) -> tuple[list[str], list[str]] | None:
    """Words and tags for NF-ERR_subsentence: question and answer. None if there is nothing to
    learn.
    """
    spans = segmenter.subsentences(row.predictions[0])
    return _example(rm_words_prefix(row.question, None), row, spans, relevance_tags(row, segmenter))


def factuality_example(
    row: FeedbackRow, segmenter: Segmenter
) -> tuple[list[str], list[str]] | None:
    """Words and tags for F-ERR_sentence: question, passages, answer. None if there is nothing to
    learn.
    """
    spans = segmenter.sentences(row.predictions[0])
    return _example(
        rm_words_prefix(row.question, row.passages), row, spans, factuality_tags(row, segmenter)
    )


def _example(
    prefix: list[str], row: FeedbackRow, spans: list[Span], segment_tags: list[str]
) -> tuple[list[str], list[str]] | None:
    if all(tag == IGNORE for tag in segment_tags):
        return None
    words, marks = rm_words(prefix, row.predictions[0], spans)
    tags = [IGNORE] * len(words)
    for mark, tag in zip(marks, segment_tags, strict=True):
        tags[mark] = tag
    return words, tags


def segment_file(rows: Sequence[FeedbackRow], example, segmenter: Segmenter) -> tuple[str, str]:
    """The text of a segment classifier's training file, and its summary. `example`: as the two
    above.
    """
    lines, count = [], Counter()
    for i, row in enumerate(rows):
        made = example(row, segmenter)
        if made is not None:
            words, tags = made
            lines.append(json.dumps({"id": str(i), "text": words, "feedback_tags": tags}) + "\n")
            count.update(tag for tag in tags if tag != IGNORE)
    total = max(count.total(), 1)
    shares = ", ".join(f"{tag} {n} ({n / total:.1%})" for tag, n in sorted(count.items()))
    return "".join(lines), f"{len(lines)} of {len(rows)} rows; segments: {shares or 'none'}"


def completeness_file(
    rows: Sequence[FeedbackRow], segmenter: Segmenter, name: str
) -> tuple[str, str]:
    """The text of the completeness model's training file, and its summary."""
    kept = []
    for row in tqdm(rows, desc=name, disable=None, leave=False):
        preference = completeness_preference(row, segmenter)
        if preference is not None:
            kept.append(row.with_preference(preference))
    count = Counter(value for row in kept for value in row.preference)
    pairs = f"first better {count[1]}, second better {count[2]}, tie {count[0]}"
    return feedback_text(kept), f"{len(kept)} of {len(rows)} rows; pairs: {pairs}"


def create_rm_files(settings: Settings) -> None:
    """Make every file, then write them. Raises `DataError` with all malformed rows, nothing being
    written.
    """
    folder = Path(settings.data_dir)
    segmenter = load_segmenter(settings.segmenter)
    splits = read_feedback_files(*(folder / f"{split}_feedback.json" for split in SPLITS))
    print(
        f"reward-model files in {folder}, segments by {segmenter.name} {segmenter.version}",
        flush=True,
    )
    texts: dict[str, str] = {}
    for split, rows in zip(SPLITS, splits):
        relevance, factuality, completeness = (f"{name}/{split}.json" for name in FOLDERS)
        for name, (text, summary) in (
            (relevance, segment_file(rows, relevance_example, segmenter)),
            (factuality, segment_file(rows, factuality_example, segmenter)),
            (completeness, completeness_file(rows, segmenter, completeness)),
        ):
            texts[name] = text
            print(f"  {name}: {summary}", flush=True)
    for name, text in texts.items():
        write_text(folder / name, text)
        write_json((folder / name).parent / "segmenter.json", segmenter.describe())


def main() -> None:
    create_rm_files(settings_from(Settings))


if __name__ == "__main__":
    run_main(main)
