"""Feedback -> training files of the three fine-grained reward models.

Reads {train,dev}_feedback.json in `data_dir` and writes to `output_dir`

    NF-ERR_subsentence/{train,dev}.json   R1 relevance: JSON lines {id, text, feedback_tags}
    F-ERR_sentence/{train,dev}.json       R2 factuality: the same, with passages
    COMP_sequence/{train,dev}.json        R3 completeness: feedback rows with other preferences

from the rows with an annotation; their human preferences are not used. It also writes, in each of
these folders, `segmenter.json`, which names the segmenter of the answers. A reward model must score
the same segments.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import Field
from tqdm import tqdm

from fgrlhf.base.files import write_json, write_text
from fgrlhf.cli.command_line import run_program
from fgrlhf.configs.strict import FilePath, StrictModel
from fgrlhf.data.judgements import Judgement
from fgrlhf.reward_utils import (
    MIN_WORDS,
    MULTILINGUAL,
    PUBLISHED,
    SEGMENTER_HELP,
    Segmenter,
    SegmenterName,
    default_segmenter,
    load_segmenter,
)
from fgrlhf.words import count_words
from reward_modeling.segment_files import (
    IGNORE,
    TaggedWords,
    segment_file,
    segment_tags,
    tagged_words,
)
from tasks.qa_feedback.feedback import (
    FeedbackRow,
    annotated_rows,
    feedback_text,
    read_feedback_files,
    rm_words_prefix,
)
from tasks.qa_feedback.reward_modeling.coverage import completeness_preference
from tasks.qa_feedback.validation import FACTUAL_ERRORS

NON_FACTUAL, FACTUAL = "NF-ERR", "F-ERR"
RELEVANCE_TAGS = {NON_FACTUAL: NON_FACTUAL}
# a factual error decides; annotators did not look for factual errors inside a non-factual span
FACTUALITY_TAGS = {FACTUAL: FACTUAL, NON_FACTUAL: IGNORE}
MIN_SPAN_WORDS = MIN_WORDS  # shorter non-factual spans do not count
RELEVANCE = "NF-ERR_subsentence"
FACTUALITY = "F-ERR_sentence"
COMPLETENESS = "COMP_sequence"
FOLDERS = (RELEVANCE, FACTUALITY, COMPLETENESS)
SPLITS = ("train", "dev")


class RMFileSettings(StrictModel):
    data_dir: FilePath = Field(description="folder of the rows")
    output_dir: FilePath = Field(description="folder of the results")
    segmenter: SegmenterName | None = Field(
        default=None,
        description=f"{SEGMENTER_HELP}; null: {PUBLISHED}, or {MULTILINGUAL} for answers that are"
        " written without spaces",
    )


def relevance_tags(row: FeedbackRow, segmenter: Segmenter) -> list[str]:
    """`NF-ERR` for each sub-sentence of prediction 1 that a non-factual span touches, else `O`."""
    segments = segmenter.subsentences(row.predictions[0])
    return segment_tags(segments, _counted_spans(row), RELEVANCE_TAGS)


def factuality_tags(row: FeedbackRow, segmenter: Segmenter) -> list[str]:
    """`F-ERR`, `Ignore` or `O` for each sentence of prediction 1.

    A factual span makes it `F-ERR`. A non-factual one alone makes it `Ignore`.
    """
    segments = segmenter.sentences(row.predictions[0])
    return segment_tags(segments, _counted_spans(row), FACTUALITY_TAGS)


def _counted_spans(row: FeedbackRow) -> Iterator[Judgement]:
    """The error spans of prediction 1. Non-factual spans count from `MIN_SPAN_WORDS` words."""
    text = row.predictions[0]
    for error in row.errors:
        if error.label in FACTUAL_ERRORS:
            yield replace(error, label=FACTUAL)
        elif count_words(text[error.start : error.end]) >= MIN_SPAN_WORDS:
            yield replace(error, label=NON_FACTUAL)


def relevance_example(row: FeedbackRow, segmenter: Segmenter) -> TaggedWords | None:
    """A line of NF-ERR_subsentence: question and answer. None without any tag to learn from."""
    answer = row.predictions[0]
    prefix = rm_words_prefix(row.question, None)
    return tagged_words(
        prefix, answer, segmenter.subsentences(answer), relevance_tags(row, segmenter)
    )


def factuality_example(row: FeedbackRow, segmenter: Segmenter) -> TaggedWords | None:
    """A line of F-ERR_sentence: question, passages, answer. None without any tag to learn from."""
    answer = row.predictions[0]
    prefix = rm_words_prefix(row.question, row.passages)
    return tagged_words(
        prefix, answer, segmenter.sentences(answer), factuality_tags(row, segmenter)
    )


def completeness_file(
    rows: Sequence[FeedbackRow], segmenter: Segmenter, name: str
) -> tuple[str, str]:
    """The text of the completeness model's training file, and a summary of it."""
    compared = []
    for row in tqdm(rows, desc=name, disable=None, leave=False):
        preference = completeness_preference(row, segmenter)
        if preference is not None:
            compared.append(row.with_preference(preference))
    counts = Counter(outcome for row in compared for outcome in row.preference)
    pairs = f"first better {counts[1]}, second better {counts[2]}, tie {counts[0]}"
    return feedback_text(compared), f"{len(compared)} of {len(rows)} rows; pairs: {pairs}"


def _segmenter(settings: RMFileSettings, splits: Sequence[Sequence[FeedbackRow]]) -> Segmenter:
    if settings.segmenter is not None:
        return load_segmenter(settings.segmenter)
    return default_segmenter(row.predictions[0] for rows in splits for row in rows)


def create_rm_files(settings: RMFileSettings) -> None:
    """Create all files, then write them.

    Raises:
      DataError: malformed rows, all of them; nothing is written.
      UserError: a file is missing or has no annotated rows.
    """
    paths = [Path(settings.data_dir) / f"{split}_feedback.json" for split in SPLITS]
    files = read_feedback_files(*paths)
    splits = [annotated_rows(rows, path) for rows, path in zip(files, paths)]
    segmenter = _segmenter(settings, splits)
    folder = Path(settings.output_dir)
    print(
        f"reward-model files in {folder}, segments by {segmenter.name} {segmenter.version}",
        flush=True,
    )
    texts: dict[str, str] = {}
    for split, rows in zip(SPLITS, splits):
        completeness = f"{COMPLETENESS}/{split}.json"
        files = {
            f"{RELEVANCE}/{split}.json": segment_file(
                relevance_example(row, segmenter) for row in rows
            ),
            f"{FACTUALITY}/{split}.json": segment_file(
                factuality_example(row, segmenter) for row in rows
            ),
            completeness: completeness_file(rows, segmenter, completeness),
        }
        for name, (text, summary) in files.items():
            texts[name] = text
            print(f"  {name}: {summary}", flush=True)
    for name, text in texts.items():
        write_text(folder / name, text)
        write_json((folder / name).parent / "segmenter.json", segmenter.describe())


if __name__ == "__main__":
    run_program(create_rm_files, RMFileSettings)
