"""Feedback -> training files of the three fine-grained reward models.

Reads {train,dev}_feedback.json in `data_dir` and writes there
  NF-ERR_subsentence/{train,dev}.json   R1 relevance: JSON lines {id, text: [words], feedback_tags: [tags]}
  F-ERR_sentence/{train,dev}.json       R2 factuality: the same, with passages
  COMP_sequence/{train,dev}.json        R3 completeness: feedback rows with other preferences
and beside each pair `segmenter.json`, which says what cut the answers: a reward model must score the same segments.
"""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from fgrlhf.config import StrictModel
from fgrlhf.reward_utils import MIN_WORDS, Segmenter, Span, load_segmenter, rm_words
from fgrlhf.utils import run_main, write_json, write_text
from tasks.qa_feedback.data.command_line import settings_from
from tasks.qa_feedback.feedback import FeedbackRow, feedback_text, read_feedback_files, rm_words_prefix
from tasks.qa_feedback.reward_modeling.coverage import completeness_preference
from tasks.qa_feedback.validation import FACTUAL_ERRORS

IGNORE, CORRECT = "Ignore", "O"
NON_FACTUAL, FACTUAL = "NF-ERR", "F-ERR"
MIN_SPAN_WORDS = MIN_WORDS  # shorter non-factual spans do not count
SPLITS = ("train", "dev")


class Settings(StrictModel):
    data_dir: str
    segmenter: str = "auto"


def relevance_tags(row: FeedbackRow, segmenter: Segmenter) -> list[str]:
    """`NF-ERR` or `O` for each sub-sentence of prediction 1: does an irrelevant, redundant or incoherent span touch it?"""
    return [NON_FACTUAL if NON_FACTUAL in kinds else CORRECT for kinds in _kinds(row, segmenter.subsentences(row.predictions[0]))]


def factuality_tags(row: FeedbackRow, segmenter: Segmenter) -> list[str]:
    """`F-ERR`, `Ignore` or `O` for each sentence of prediction 1.

    A factual span makes it `F-ERR`; a non-factual one alone makes it `Ignore`, since annotators did not look for
    factual errors inside such a span.
    """
    return [
        FACTUAL if FACTUAL in kinds else IGNORE if kinds else CORRECT
        for kinds in _kinds(row, segmenter.sentences(row.predictions[0]))
    ]


def _kinds(row: FeedbackRow, segments: Sequence[Span]) -> list[set[str]]:
    """The kinds of error that touch each segment. Factual spans always count, others from `MIN_SPAN_WORDS` words."""
    text = row.predictions[0]
    spans = []
    for error in row.errors:
        factual = error.type in FACTUAL_ERRORS
        if factual or len(text[error.start : error.end].split()) >= MIN_SPAN_WORDS:
            spans.append((error.start, error.end, FACTUAL if factual else NON_FACTUAL))
    return [{kind for begin, stop, kind in spans if begin < end and start < stop} for start, end in segments]


def relevance_example(row: FeedbackRow, segmenter: Segmenter) -> tuple[list[str], list[str]] | None:
    """Words and tags of a row of NF-ERR_subsentence: question and answer. None if there is nothing to learn."""
    spans = segmenter.subsentences(row.predictions[0])
    return _example(rm_words_prefix(row.question, None), row, spans, relevance_tags(row, segmenter))


def factuality_example(row: FeedbackRow, segmenter: Segmenter) -> tuple[list[str], list[str]] | None:
    """Words and tags of a row of F-ERR_sentence: question, passages and answer. None if there is nothing to learn."""
    spans = segmenter.sentences(row.predictions[0])
    return _example(rm_words_prefix(row.question, row.passages), row, spans, factuality_tags(row, segmenter))


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
    """The text of a segment classifier's training file, and its summary. `example`: one of the two functions above."""
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


def completeness_file(rows: Sequence[FeedbackRow], segmenter: Segmenter, name: str) -> tuple[str, str]:
    """The text of the completeness model's training file, and its summary."""
    made = [(row, completeness_preference(row, segmenter)) for row in tqdm(rows, desc=name, disable=None, leave=False)]
    kept = [row.with_preference(preference) for row, preference in made if preference is not None]
    count = Counter(value for row in kept for value in row.preference)
    summary = f"{len(kept)} of {len(rows)} rows; pairs: first better {count[1]}, second better {count[2]}, tie {count[0]}"
    return feedback_text(kept), summary


def create_rm_files(settings: Settings) -> None:
    """Make every file, then write them. Raises `DataError` with all malformed rows; then nothing is written."""
    folder = Path(settings.data_dir)
    segmenter = load_segmenter(settings.segmenter)
    splits = read_feedback_files(*(folder / f"{split}_feedback.json" for split in SPLITS))
    print(f"making reward-model files in {folder}: segments by {segmenter.name} {segmenter.version}", flush=True)
    texts: dict[str, str] = {}
    for split, rows in zip(SPLITS, splits):
        for name, make in (
            (f"NF-ERR_subsentence/{split}.json", lambda name: segment_file(rows, relevance_example, segmenter)),
            (f"F-ERR_sentence/{split}.json", lambda name: segment_file(rows, factuality_example, segmenter)),
            (f"COMP_sequence/{split}.json", lambda name: completeness_file(rows, segmenter, name)),
        ):
            texts[name], summary = make(name)
            print(f"  {name}: {summary}", flush=True)
    for name, text in texts.items():
        write_text(folder / name, text)
        write_json((folder / name).parent / "segmenter.json", segmenter.describe())


def main() -> None:
    create_rm_files(settings_from(Settings))


if __name__ == "__main__":
    run_main(main)
