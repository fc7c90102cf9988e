"""Step-by-step reasoning: chained arithmetic with known errors, or GSM8K."""

from collections.abc import Sequence

from fgrlhf.report.display import Display
from fgrlhf.task import Task
from fgrlhf.text_types import MetricFunction, Prompt
from tasks.reasoning.answers import is_right
from tasks.reasoning.data.mini_world import read_problem, true_steps
from tasks.reasoning.reward import AnswerReward


def right_answer(prompt: Prompt, text: str) -> dict[str, float | None]:
    """Whether the answer is that of a reference (exact match of numbers)."""
    if not prompt.references:
        return {"right_answer": None}
    right = any(is_right(text, reference) for reference in prompt.references)
    return {"right_answer": float(right)}


def metrics(prompts: Sequence[Prompt]) -> tuple[MetricFunction, ...]:
    """The answer's correctness; for problems of the mini world also that of every line."""
    known = all(read_problem(prompt.text) is not None for prompt in prompts[:5])
    return (right_answer, true_steps) if known and prompts else (right_answer,)


TASK = Task(
    name="reasoning",
    rewards={"answer": AnswerReward},
    metrics=metrics,
    display=Display(
        names={"sft": "SFT", "outcome": "outcome", "process": "process"},
        metrics={
            "right_answer": "right answers",
            "oracle/steps": "right lines before the first error",
            "oracle/solution": "solutions without an error",
        },
        headline=("right_answer", "oracle/solution", "reward", "kl"),
        order=("sft", "outcome", "process", "best_of_n", "search"),
        colours={"sft": 0, "outcome": 1, "process": 2, "best_of_n": 3, "search": 4},
    ),
)
