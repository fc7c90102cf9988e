"""A question of qa-feedback with feedback on four answers, as files."""

from pathlib import Path

from fgrlhf.files import write_json
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
