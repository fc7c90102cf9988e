"""Spans and steps as judgements, in short."""

from fgrlhf.data.judgements import SPAN_ASPECT, STEP_ASPECT, JudgedResponse, Judgement, judged_steps
from fgrlhf.text_types import Prompt

PROMPT = Prompt("0", "p")


def span(start: int, end: int, label: str, severity: str | None = None, **parts) -> Judgement:
    return Judgement(SPAN_ASPECT, label, start, end, severity, **parts)


def step(text: str, label: str | None = None, score: float | None = None) -> tuple[str, Judgement]:
    return text, Judgement(STEP_ASPECT, label, score=score)


def solution(*steps: tuple[str, Judgement], prompt: Prompt = PROMPT) -> JudgedResponse:
    return judged_steps(prompt, steps)


def steps_of(judged: JudgedResponse) -> list[tuple[str, Judgement]]:
    """The steps as they were given to `solution`."""
    return [step(judged.marked(mark), mark.label, mark.score) for mark in judged.spans]
