"""A question of qa-feedback with feedback on four answers, as files."""

from pathlib import Path

from fgrlhf.base.files import write_json, write_jsonl, write_text
from tasks.qa_feedback.feedback import FeedbackRow, write_feedback

PASSAGES = [{"wikipage": "Cat", "content": "A cat sat."}]
PROMPT = "question: Who sat? context: wikipage: Cat text: A cat sat."


def write_feedback_files(folder: Path) -> None:
    """A question of qa-feedback, and feedback on four answers to it."""
    row = {"question": "Who sat?", "passages": PASSAGES, "text": PROMPT, "answer": ["The cat."]}
    write_json(folder / "train.json", [row])
    feedback = FeedbackRow.make(
        question="Who sat?",
        passages=[["Cat", "A cat sat."]],
        gold="The cat.",
        predictions=["A dog.", "A cat.", "Nobody.", "The cat."],
        errors=(),
        missing=(),
        corrected="",
        preference=[2, 0, 2, 1, 0, 2],
    )
    write_feedback(folder / "train_feedback.json", [feedback])


MARK = {"start": 4, "end": 8, "text": "Hund", "labels": ["Spelling"]}


def write_judgement_files(folder: Path) -> None:
    """A translation with judgements of two raters, in three formats."""
    columns = ("system", "rater", "source", "target", "category", "severity")
    error = ("s", "r1", "The dog", "Der <v>Hund</v>", "Fluency/Spelling", "Minor")
    no_error = ("s", "r2", "The dog", "Der Hund", "No-error", "No-error")
    lines = ["\t".join(cells) for cells in (columns, error, no_error)]
    write_text(folder / "mqm.tsv", "\n".join(lines) + "\n")
    mark = {"aspect": "Fluency", "label": "Spelling", "start": 4, "end": 8, "annotator": "r1"}
    row = {"response": "Der Hund", "source": "The dog", "judgements": [mark]}
    write_jsonl(folder / "judgements.jsonl", [row])
    result = {"type": "labels", "from_name": "Fluency", "to_name": "response", "value": MARK}
    task = {"data": {"response": "Der Hund"}, "annotations": [{"result": [result]}]}
    write_json(folder / "tasks.json", [task])
    feedback = {"prompt": "Who?", "response": "A cat.", "judgements": []}
    write_jsonl(folder / "feedback.jsonl", [feedback])
