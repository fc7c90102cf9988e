"""The qa-feedback format: questions, feedback, and the words a reward model reads before an answer.

The files are those of github.com/allenai/FineGrainedRLHF: {train,dev,test,train_1k}.json have
questions with reference answers; {train,dev}_feedback.json have four answers to each question and
an annotator's feedback on them.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator

from fgrlhf.base.errors import UserError, counted, shorten
from fgrlhf.base.files import read_jsonl, write_text
from fgrlhf.base.records import refuse_rows
from fgrlhf.data.judgements import Judgement
from fgrlhf.data.read import read_rows
from fgrlhf.reward_models.prefix import Prefix
from fgrlhf.text_types import Prompt
from fgrlhf.words import join_texts
from tasks.qa_feedback.validation import example_problems, feedback_problems, sample_problems

ERRORS, MISSING = "errors", "missing-info"  # keys of `feedback`, and aspects of its judgements
# the outputs that a row's six preferences compare
PAIRS = ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))


def _plain_name(name: str) -> str:
    if not name or name.startswith(".") or "/" in name or "\\" in name or not name.isprintable():
        raise ValueError(f"`{shorten(name, 80)}` is not the plain name of a split such as `train`")
    return name


# A split is the file <name>.json of a folder, never a file outside of it.
SplitName = Annotated[str, AfterValidator(_plain_name)]


def error_span(kind: str, start: int, end: int, explanation: str = "") -> Judgement:
    """An error in characters [start, end) of prediction 1, and its type."""
    return Judgement(ERRORS, kind, start, end, evidence=explanation or None)


def error_json(error: Judgement) -> dict[str, Any]:
    """An error as it is in a row."""
    values: dict[str, Any] = {"error type": error.label, "explanation": error.evidence or ""}
    values |= {"start": error.start, "end": error.end}
    if error.severity is not None:
        values["severity"] = error.severity
    return values


@dataclass(frozen=True)
class MissingInfo:
    """Sentences of a passage that the answer should contain.

    Passages and sentences are counted from 1; sentence 0 is the title.
    """

    type: str
    passage_id: int
    sentence_ids: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "error type": self.type,
            "passage_id": self.passage_id,
            "sentence_id": list(self.sentence_ids),
        }


@dataclass(frozen=True)
class FeedbackRow:
    """One row of a feedback file. `raw` is its JSON object, which is written back unchanged.

    A row may lack the annotation or the comparison of its answers. Then the properties that read it
    must not be used: see `annotated_rows` and `compared_rows`.
    """

    raw: Mapping[str, Any]

    @classmethod
    def make(
        cls,
        question: str,
        passages: Sequence[Sequence[str]],
        gold: str,
        predictions: Sequence[str],
        errors: Iterable[Judgement],
        missing: Iterable[MissingInfo],
        corrected: str,
        preference: Sequence[int],
    ) -> "FeedbackRow":
        """A row with the keys of the published files, in their order.

        Each passage is a title followed by sentences.
        """
        return cls(
            {
                "question": question,
                "passages": [list(passage) for passage in passages],
                "gold": gold,
                **{f"prediction {i}": text for i, text in enumerate(predictions, 1)},
                "feedback": {
                    "errors": [error_json(error) for error in errors],
                    "missing-info": [info.to_json() for info in missing],
                    "corrected-prediction": corrected,
                },
                "preference": list(preference),
            }
        )

    @property
    def question(self) -> str:
        return self.raw["question"]

    @property
    def passages(self) -> list[list[str]]:
        return self.raw["passages"]

    @property
    def predictions(self) -> tuple[str, ...]:
        return tuple(self.raw[f"prediction {i}"] for i in range(1, 5))

    @property
    def is_annotated(self) -> bool:
        """Whether it has `errors`, `missing` and `corrected`."""
        return "feedback" in self.raw

    @property
    def is_compared(self) -> bool:
        """Whether it has a `preference`."""
        return "preference" in self.raw

    @property
    def errors(self) -> tuple[Judgement, ...]:
        """The error spans of prediction 1, in the annotator's order."""
        return tuple(
            error_span(error["error type"], error["start"], error["end"], error["explanation"])
            for error in self.raw["feedback"]["errors"]
        )

    @property
    def missing(self) -> tuple[MissingInfo, ...]:
        return tuple(
            MissingInfo(info["error type"], info["passage_id"], tuple(info["sentence_id"]))
            for info in self.raw["feedback"]["missing-info"]
        )

    @property
    def corrected(self) -> str:
        return self.raw["feedback"]["corrected-prediction"]

    @property
    def preference(self) -> tuple[int, ...]:
        """For each of `PAIRS`: 1 the first output is better, 2 the second, 0 neither."""
        return tuple(self.raw["preference"])

    def with_preference(self, preference: Sequence[int]) -> "FeedbackRow":
        return FeedbackRow({**self.raw, "preference": list(preference)})


def _read_rows(path: str | Path) -> list:
    if not os.path.isfile(path):  # False for a name that is too long, where Path.is_file raises
        state = "is a folder" if os.path.isdir(path) else "does not exist"
        message = (
            f"{path} {state}. Set DATA_DIR=... (data_dir=... of a Python program) to the folder of"
            " the qa-feedback files. tasks/qa_feedback/data/download.sh downloads the published"
            " files; make_mini.sh in the same folder writes the files of a small world"
        )
        if Path(path).name.endswith("_feedback.json"):
            message += ", and collect_feedback.py annotates answers to its questions"
        raise UserError(message)
    return read_rows(path)


def read_feedback_files(*paths: str | Path) -> list[list[FeedbackRow]]:
    """The rows of each file. Raises `DataError` with every malformed row of every file."""
    files = [_read_rows(path) for path in paths]
    for path, rows in zip(paths, files):
        if _has_keys(rows[0], "text", "answer") and not _has_keys(rows[0], "prediction 1"):
            raise UserError(
                f"{path} has questions, not feedback on answers to them. Use a file such as"
                " train_feedback.json"
            )
    problems = []
    for path, rows in zip(paths, files):
        problems += feedback_problems(rows, str(path))
    refuse_rows(problems)
    return [[FeedbackRow(row) for row in rows] for rows in files]


def annotated_rows(rows: Sequence[FeedbackRow], file: str | Path) -> list[FeedbackRow]:
    """The rows with an annotation. Prints how many are left out.

    Raises:
      UserError: no row of the file has an annotation.
    """
    return _rows_with(
        "an annotation (`feedback`)", [row for row in rows if row.is_annotated], rows, file
    )


def compared_rows(rows: Sequence[FeedbackRow], file: str | Path) -> list[FeedbackRow]:
    """The rows whose answers were compared. Prints how many are left out.

    Raises:
      UserError: no row of the file has a comparison.
    """
    return _rows_with(
        "a comparison (`preference`)", [row for row in rows if row.is_compared], rows, file
    )


def _rows_with(
    what: str, chosen: list[FeedbackRow], rows: Sequence[FeedbackRow], file: str | Path
) -> list[FeedbackRow]:
    if not chosen:
        raise UserError(
            f"{file}: none of its {counted(len(rows), 'row')} has {what}, which is used here."
            " Collect it with the feedback pages, or use another file"
        )
    if len(chosen) < len(rows):
        left_out = counted(len(rows) - len(chosen), "row")
        print(f"{file}: left out {left_out} of {len(rows)} without {what}", flush=True)
    return chosen


def _has_keys(row: Any, *keys: str) -> bool:
    return isinstance(row, Mapping) and all(key in row for key in keys)


def read_feedback(path: str | Path) -> list[FeedbackRow]:
    """The rows of one file. Raises `DataError` with every malformed row."""
    return read_feedback_files(path)[0]


def read_samples(path: str | Path) -> list[dict[str, Any]]:
    """The lines of a `samples.jsonl` from generate.sh: {id, question, passages, predictions}.

    Raises:
      DataError: malformed lines, all of them. Each must have four predictions.
      UserError: the file cannot be read or is empty.
    """
    way_out = (
        "Sample answers with tasks/qa_feedback/training/generate.sh num_samples=4, which writes"
        " samples.jsonl"
    )
    if not os.path.exists(path):
        raise UserError(f"{path} does not exist. {way_out}")
    rows = read_jsonl(path)
    if not rows:
        raise UserError(f"{path} is empty, so it has no samples. {way_out}")
    problems = sample_problems(rows, str(path))
    refuse_rows(problems)
    return rows


def feedback_text(rows: Iterable[FeedbackRow]) -> str:
    """The text of a feedback file; rows of a published file give exactly its bytes."""
    return json.dumps([row.raw for row in rows], indent=2)


def write_feedback(path: str | Path, rows: Iterable[FeedbackRow]) -> None:
    """Write a feedback file, whole or not at all.

    Raises:
      DataError: rows that could not be read back.
    """
    rows = list(rows)
    problems = feedback_problems([row.raw for row in rows], str(path))
    refuse_rows(problems)
    write_text(path, feedback_text(rows))


def load_examples(path: str | Path) -> list[Prompt]:
    """The rows of {train,dev,test,train_1k}.json as prompts.

    A prompt's id is the row's index, its references are the `answer` texts, and its meta has the
    other keys (`question`, `passages`, ...).

    Raises:
      DataError: malformed rows, all of them.
    """
    rows = _read_rows(path)
    if _has_keys(rows[0], "feedback", "prediction 1") and not _has_keys(rows[0], "text"):
        raise UserError(
            f"{path} has feedback, not the questions that the feedback is about. Use a file such as"
            " train.json"
        )
    problems = example_problems(rows, str(path))
    refuse_rows(problems)
    prompts = []
    for i, row in enumerate(rows):
        meta = {key: value for key, value in row.items() if key not in ("text", "answer")}
        prompts.append(Prompt(str(i), row["text"], tuple(row["answer"]), meta))
    return prompts


def rm_words_prefix(
    question: str, passages: Sequence[Sequence[str] | Mapping[str, str]] | None
) -> list[str]:
    """The words before an answer.

        question: Q [context: wikipage: TITLE text: SENTENCES ...] answer:

    A passage is a title followed by sentences, or `{wikipage, content}`. Without passages there is
    no `context:`.
    """
    words = ["question:", *question.split()]
    if passages:
        words.append("context:")
    for passage in passages or ():
        if isinstance(passage, Mapping):
            title, sentences = passage["wikipage"], [passage["content"]]
        else:
            title, *sentences = passage
        words += ["wikipage:", *title.split(), "text:", *join_texts(sentences).split()]
    return [*words, "answer:"]


def rm_prefix_of_words(words: Sequence[str]) -> Prefix:
    """The prefix of a reward model's input from its words.

    The passages, from `context: wikipage:` to the final `answer:`, may be cut. `answer:` marks the
    response.
    """
    end = len(words)
    if end and words[-1] == "answer:":
        end -= 1
    context: tuple[range, ...] = ()
    for i in range(end - 1):
        if words[i] == "context:" and words[i + 1] == "wikipage:":
            context = (range(i, end),)
            break
    return Prefix(tuple(words[:end]), context, response_mark=tuple(words[end:]))


def rm_prefix(prompt: Prompt, with_context: bool) -> Prefix:
    """The prefix of an answer in a reward model's input, as in its training files.

    Args:
      prompt: of the task.
      with_context: whether to include the passages.
    """
    passages = _of_task(prompt, "passages") if with_context else None
    return rm_prefix_of_words(rm_words_prefix(_of_task(prompt, "question"), passages))


def _of_task(prompt: Prompt, key: str) -> Any:
    """A value of the prompt's row. Raises `UserError` if the row is not one of this task."""
    if key not in prompt.meta:
        raise UserError(
            f"row {shorten(prompt.id, 80)} has no `{key}`, which rows of qa_feedback need. Rows of"
            " an evaluation lack it: give `fgrlhf winrate` the file of the prompts, prompts=FILE."
            " If the rows belong to another task, name it, or one whose prompts are texts: numbers"
        )
    return prompt.meta[key]
