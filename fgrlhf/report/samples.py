"""Answers with what each aspect thought of them: coloured segments, and a heat map of token
rewards.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fgrlhf.report.data import QUESTIONS_SHOWN, Outputs, Run


@dataclass(frozen=True)
class Piece:
    """A stretch of text on one colour: filled by a reward, underlined by the judgement of its
    segment.
    """

    text: str
    value: float = 0.0
    strength: float = 0.0  # of the fill: |value| over the aspect's largest, 0 to 1
    under: float = 0.0  # value of the segment this token lies in
    label: str = ""
    special: bool = False  # a token that is not text, such as the end of sequence
    whole: bool = False  # judged as a whole: its number says more than one colour all over

    @property
    def css(self) -> str:
        fill = "p" if self.value > 0 else "n"
        line = "up" if self.under > 0 else "un"
        parts = (
            [fill] * (self.strength > 0) + [line] * (self.under != 0) + ["special"] * self.special
        )
        return " ".join(parts)

    @property
    def tip(self) -> str:
        number = signed(self.value, 3) if self.value else ""
        return ": ".join(part for part in (self.label, number) if part)


def signed(value: float, digits: int = 2) -> str:
    """A number with its sign, the minus as wide as the plus."""
    return minus(f"{value:+.{digits}f}")


def minus(number: str) -> str:
    return number.replace("-", "\N{MINUS SIGN}")


def answers(outputs: Outputs) -> dict:
    """The first questions that every policy answered: {scale, questions: [{question, answers,
    ...}]}.
    """
    first = {name: _first_per_question(rows) for name, rows in outputs.evaluations.items()}
    shared = [
        key for key in next(iter(first.values())) if all(key in rows for rows in first.values())
    ]
    shown = [{name: rows[key] for name, rows in first.items()} for key in shared[:QUESTIONS_SHOWN]]
    every = [row for rows in shown for row in rows.values()]
    scale = _scale(
        (aspect, segment["value"])
        for row in every
        for aspect, segments in _judged(row)
        for segment in segments
    )
    questions = []
    for rows in shown:
        any_row = next(iter(rows.values()))
        questions.append(
            {
                **split_prompt(any_row["prompt"]),
                "references": any_row.get("references", []),
                "answers": {
                    name: {
                        "text": row["response"],
                        "chips": _chips(row),
                        "aspects": _aspects(row, scale),
                    }
                    for name, row in rows.items()
                },
            }
        )
    return {"scale": scale, "questions": questions}


def rollouts(run: Run) -> dict:
    """Token rewards of a run's first and last logged step: {scale, steps: {step: [rollout]}}."""
    rows = [row for step_rows in run.samples.values() for row in step_rows]
    scale = _scale(
        (name, value) for row in rows for name, values in row["rewards"].items() for value in values
    )
    extra = _scale(
        (name, value) for row in rows for name, values in _extras(row).items() for value in values
    )
    return {
        "scale": scale,
        "steps": {
            step: [_rollout(row, scale, extra) for row in step_rows]
            for step, step_rows in run.samples.items()
        },
    }


def split_prompt(text: str) -> dict:
    """{question, passages} of a prompt in the qa-feedback form; any other prompt is its own
    question.
    """
    if not text.startswith("question:"):
        return {"question": text, "passages": []}
    question, _, context = text.removeprefix("question:").partition(" context:")
    passages = [part.strip() for part in context.split("wikipage:") if part.strip()]
    return {"question": question.strip(), "passages": passages}


def segment_pieces(text: str, segments: Sequence[Mapping], top: float) -> list[Piece]:
    """The text cut at the segments' ends; what no segment covers stays plain."""
    pieces, place = [], 0
    for segment in sorted(segments, key=lambda one: one["start"]):
        start = max(segment["start"], place)
        end = len(text) if segment["end"] is None else max(segment["end"], start)
        blank = len(text[start:end]) - len(
            text[start:end].lstrip()
        )  # the space between segments stays plain
        pieces.append(Piece(text[place : start + blank]))
        value = segment["value"]
        pieces.append(
            Piece(
                text[start + blank : end],
                value,
                _strength(value, top),
                label=segment.get("label", ""),
                whole=segment["end"] is None,
            )
        )
        place = end
    return [piece for piece in [*pieces, Piece(text[place:])] if piece.text or piece.whole]


def token_pieces(
    text: str,
    tokens: Sequence[str],
    values: Sequence[float],
    top: float,
    segments: Sequence[Mapping],
) -> list[Piece]:
    """One piece per token, and one for the white space before it."""

    def judged(place: int) -> Mapping:
        inside = (
            s for s in segments if s["start"] <= place and (s["end"] is None or place < s["end"])
        )
        return next(inside, {})

    pieces, start = [], 0
    for token, value, end in zip(tokens, values, token_ends(text, tokens)):
        word = token.lstrip()
        blank = token[: len(token) - len(word)]
        segment = judged(
            start + len(blank)
        )  # a segment starts at its first word, its first token may not
        under, label = segment.get("value", 0.0), segment.get("label", "")
        pieces.append(Piece(blank, under=judged(start).get("value", 0.0)))
        pieces.append(Piece(word, value, _strength(value, top), under, label, special=end == start))
        start = end
    return [piece for piece in pieces if piece.text]


def token_ends(text: str, tokens: Sequence[str]) -> list[int]:
    """Characters of `text` up to each token's end; a token that is not text ends where it
    starts.
    """
    ends, place = [], 0
    for token in tokens:
        place += len(token) if text.startswith(token, place) else 0
        ends.append(place)
    return ends


def _first_per_question(rows: Sequence[Mapping]) -> dict[str, Mapping]:
    first: dict[str, Mapping] = {}
    for row in rows:
        first.setdefault(row["id"], row)
    return first


def _judged(row: Mapping) -> Iterable[tuple[str, Sequence[Mapping]]]:
    return row.get("segments", {}).items()


def _aspects(row: Mapping, scale: Mapping[str, float]) -> dict[str, list[Piece]]:
    return {
        aspect: segment_pieces(row["response"], segments, scale.get(aspect, 0.0))
        for aspect, segments in _judged(row)
    }


def _chips(row: Mapping) -> list[str]:
    forms = {
        "oracle/gold": "gold {}",
        "reward": "reward {}",
        "rougeLsum": "RougeLsum {}",
        "kl": "KL {}",
    }
    digits = {"rougeLsum": 1, "kl": 1}
    numbers = [
        form.format(minus(f"{row[key]:.{digits.get(key, 2)}f}"))
        for key, form in forms.items()
        if isinstance(row.get(key), int | float)
    ]
    return [*numbers, f"{len(row['response'].split())} words"]


def _rollout(row: Mapping, scale: Mapping[str, float], extra: Mapping[str, float]) -> dict:
    text, tokens = row["response"], row["tokens"]
    return {
        **split_prompt(row["prompt"]),
        "reward": row["reward"],
        "sums": {name: sum(values) for name, values in row["rewards"].items()},
        "aspects": {
            name: token_pieces(
                text, tokens, values, scale.get(name, 0.0), row["segments"].get(name, [])
            )
            for name, values in row["rewards"].items()
        },
        "extras": {
            name: token_pieces(text, tokens, values, extra[name], [])
            for name, values in _extras(row).items()
        },
    }


def _extras(row: Mapping) -> dict[str, list[float]]:
    return {
        name: row[key]
        for name, key in (("KL", "kl"), ("value", "values"), ("advantage", "advantages"))
        if row.get(key)
    }


def _scale(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Largest absolute value of each aspect: its full colour."""
    top: dict[str, float] = {}
    for name, value in pairs:
        top[name] = max(top.get(name, 0.0), abs(value))
    return top


def _strength(value: float, top: float) -> float:
    return min(abs(value) / top, 1.0) if top else 0.0
