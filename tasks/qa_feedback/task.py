"""Long-form question answering with fine-grained feedback (Wu et al. 2023)."""

from collections.abc import Sequence

from fgrlhf.task import Task
from fgrlhf.text_types import MetricFunction, Prompt
from tasks.qa_feedback.data.oracle import Facts, oracle_metrics
from tasks.qa_feedback.display import DISPLAY
from tasks.qa_feedback.feedback import load_examples, rm_prefix, rm_prefix_of_words
from tasks.qa_feedback.judgements import ROWS
from tasks.qa_feedback.reward_modeling.pairs import read_pairs
from tasks.qa_feedback.training.comparisons import SOURCES
from tasks.qa_feedback.training.oracle_reward import OracleGold
from tasks.qa_feedback.training.reward import KINDS, REWARD_KINDS


def up_to_question(prompt: Prompt) -> str:
    """The text up to the end of its question; only the question if the text does not contain it."""
    question = prompt.meta.get("question", "")
    start = prompt.text.find(question)
    return prompt.text[: start + len(question)] if start >= 0 else question


def oracle(prompts: Sequence[Prompt]) -> tuple[MetricFunction, ...]:
    """The oracle for prompts of the mini world; no metric for others, which it cannot judge."""
    known = all(_is_of_mini_world(prompt) for prompt in prompts[:5])
    return (oracle_metrics,) if known and prompts else ()


def _is_of_mini_world(prompt: Prompt) -> bool:
    if "question" not in prompt.meta or "passages" not in prompt.meta:
        return False
    return bool(Facts.read(prompt.meta["question"], prompt.meta["passages"]).needed)


def sample_row(prompt: Prompt, responses: Sequence[str]) -> dict:
    return {
        "id": prompt.id,
        "question": prompt.meta["question"],
        "passages": prompt.meta["passages"],
        "predictions": list(responses),
    }


TASK = Task(
    name="qa_feedback",
    read=load_examples,
    rewards={**KINDS, "oracle_gold": OracleGold},
    reward_kinds=REWARD_KINDS,
    rm_prefix=rm_prefix,
    rm_prefix_of_words=rm_prefix_of_words,
    rm_pairs=read_pairs,
    core_text=up_to_question,
    metrics=oracle,
    comparisons=SOURCES,
    judgements=ROWS,
    sample_row=sample_row,
    display=DISPLAY,
)
