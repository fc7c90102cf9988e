"""Sampled responses with their rewards: coloured segments, and a heat map of token rewards."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fgrlhf.metrics.rows import EvaluationRow, Segment, Segments
from fgrlhf.report.charts import Table
from fgrlhf.report.data import Outputs, Run
from fgrlhf.report.display import Display, PromptPart
from fgrlhf.report.records import ReplyRow, Rollout
from fgrlhf.report.text import decimal, signed
from fgrlhf.words import count_words

NO_SEGMENT = Segment(start=0, end=0, value=0.0)


@dataclass(frozen=True)
class Piece:
    """A piece of text in one colour: a reward gives the fill, a segment's value the underline.

    Attributes:
      value: the reward of the token or segment.
      strength: of the fill, from 0 to 1: |value| / the aspect's largest |value|.
      under: value of the segment that contains this token.
      zero: whether a segment that is worth 0 contains the text: it is judged, unlike plain text.
      label: of the segment.
      special: a token that is not text, such as the end of the sequence.
      whole: the value is that of the whole response, so it is shown even if it is zero.
      reply: the text is an environment's.
    """

    text: str
    value: float = 0.0
    strength: float = 0.0
    under: float = 0.0
    zero: bool = False
    label: str = ""
    special: bool = False
    whole: bool = False
    reply: bool = False

    @property
    def css(self) -> str:
        """Its classes in report.css: the sign of the fill, the sign of the underline."""
        classes = []
        if self.strength > 0:
            classes.append("pos" if self.value > 0 else "neg")
        if self.under != 0:
            classes.append("under-pos" if self.under > 0 else "under-neg")
        elif self.zero:
            classes.append("under-zero")
        if self.special:
            classes.append("special")
        if self.reply:
            classes.append("reply")
        return " ".join(classes)

    @property
    def number(self) -> str:
        """The reward as text; empty if there is none."""
        return signed(self.value) if self.value or self.whole else ""

    @property
    def tip(self) -> str:
        """The tooltip: label and value, as far as there are any."""
        number = signed(self.value, 3) if self.value else ""
        return ": ".join(part for part in (self.label, number) if part)


Pieces = dict[str, list[Piece]]  # aspect -> its view of a response


@dataclass(frozen=True)
class PromptView:
    """A prompt: its title, and its other parts by heading."""

    title: str
    parts: dict[str, list[str]]


@dataclass(frozen=True)
class ResponseView:
    """A policy's response; `chips` are its scores."""

    text: str
    chips: list[str]
    aspects: Pieces
    table: Table  # the segments with their labels and values


@dataclass(frozen=True)
class PromptResponses:
    prompt: PromptView
    references: list[str]
    responses: dict[str, ResponseView]  # by policy


@dataclass(frozen=True)
class ResponsesView:
    """Responses of every policy to the same prompts."""

    split: str
    scale: dict[str, float]  # aspect -> its largest absolute value
    prompts: list[PromptResponses]


@dataclass(frozen=True)
class RolloutView:
    prompt: PromptView
    reward: float
    sums: dict[str, float]  # of each aspect's token rewards
    aspects: Pieces
    extras: Pieces  # KL, value and advantage of every token
    table: Table  # all values of every token


@dataclass(frozen=True)
class RunView:
    """Rollouts of a run by step."""

    scale: dict[str, float]  # aspect -> its largest absolute value
    steps: dict[int, list[RolloutView]]


def responses(outputs: Outputs, display: Display, prompts_shown: int) -> ResponsesView:
    """The first prompts that every policy answered, with the first response of each policy."""
    first = {name: _first_per_prompt(rows) for name, rows in outputs.evaluations.items()}
    rows_of_prompts = []
    for key in _shared_keys(list(first.values()))[:prompts_shown]:
        rows_of_prompts.append({name: first[name][key] for name in first})
    scale = _segment_scale(row for rows in rows_of_prompts for row in rows.values())
    prompts = []
    for rows in rows_of_prompts:
        any_row = next(iter(rows.values()))
        prompt = split_prompt(any_row.prompt, display)
        views = {name: _response(row, scale, display) for name, row in rows.items()}
        prompts.append(PromptResponses(prompt, any_row.references, views))
    return ResponsesView(outputs.split, scale, prompts)


def _shared_keys(dicts: Sequence[Mapping[str | int, EvaluationRow]]) -> list[str | int]:
    """The keys that all dicts have, in the order of the first one."""
    if not dicts:
        return []
    return [key for key in dicts[0] if all(key in other for other in dicts)]


def rollouts(run: Run, display: Display) -> RunView:
    """Token rewards of a run's shown steps."""
    rows = [row for step_rows in run.samples.values() for row in step_rows]
    scale = _token_scale(row.rewards for row in rows)
    extra_scale = _token_scale(_extras(row) for row in rows)
    steps = {}
    for step, step_rows in run.samples.items():
        steps[step] = [_rollout(row, scale, extra_scale, display) for row in step_rows]
    return RunView(scale, steps)


def split_prompt(text: str, display: Display) -> PromptView:
    """The parts of a prompt as the task displays them; the text of the first is the title."""
    first, *others = display.prompt_parts(text) or [("", text)]
    return PromptView(first[1], _by_heading(others))


def _by_heading(parts: Iterable[PromptPart]) -> dict[str, list[str]]:
    by_heading: dict[str, list[str]] = {}
    for heading, text in parts:
        by_heading.setdefault(heading, []).append(text)
    return by_heading


def segment_pieces(text: str, segments: Sequence[Segment], top: float) -> list[Piece]:
    """The text split at the segments' ends; text outside the segments stays plain.

    If segments overlap, the text that they share belongs to the first of them.

    Args:
      top: the largest |value| of the aspect, which gets the full colour.
    """
    pieces = []
    place = 0  # the end of the text that has a piece
    for segment in sorted(segments, key=lambda segment: segment.start):
        start = max(segment.start, place)
        end = len(text) if segment.end is None else max(segment.end, start)
        covered = text[start:end]
        start += len(covered) - len(covered.lstrip())  # the space between segments stays plain
        pieces.append(Piece(text[place:start]))
        pieces.append(
            Piece(
                text[start:end],
                segment.value,
                _strength(segment.value, top),
                zero=segment.value == 0,
                label=segment.judgement,
                whole=segment.end is None,
            )
        )
        place = end
    pieces.append(Piece(text[place:]))
    return [piece for piece in pieces if piece.text or piece.whole]


def token_pieces(
    text: str,
    tokens: Sequence[str],
    values: Sequence[float],
    top: float,
    segments: Sequence[Segment],
    replies: Sequence[ReplyRow] = (),
) -> list[Piece]:
    """One piece per token, and one for the white space before it.

    A token of white space only is shown as ↵ if it has a reward, such as the end of a turn.

    Args:
      text: the response, without special tokens.
      values: the reward of each token.
      top: the largest |value| of the aspect, which gets the full colour.
      segments: the judged segments, which are underlined.
      replies: of an environment, between the tokens.
    """
    pieces = []
    start = 0
    said = {reply.after: f"{reply.role}: {reply.text}\n" for reply in replies}
    for n, (token, value, end) in enumerate(zip(tokens, values, token_ends(text, tokens)), 1):
        if value and token.isspace():
            mark = Piece("↵", value, _strength(value, top), special=True)
            pieces.append(mark)
        word = token.lstrip()
        blank = token[: len(token) - len(word)]
        # A segment starts at its first word, which may be after the start of its first token.
        around_blank = _segment_at(start, segments)
        around_word = _segment_at(start + len(blank), segments)
        pieces.append(Piece(blank, under=around_blank.value, zero=_is_zero(around_blank)))
        pieces.append(
            Piece(
                word,
                value,
                _strength(value, top),
                under=around_word.value,
                zero=_is_zero(around_word),
                label=around_word.judgement,
                special=end == start,
            )
        )
        if n in said:
            line_break = "" if token.endswith("\n") else "\n"
            pieces.append(Piece(line_break + said[n], reply=True))
        start = end
    return [piece for piece in pieces if piece.text]


def _segment_at(place: int, segments: Sequence[Segment]) -> Segment:
    """The first segment that contains the character at `place`."""
    for segment in segments:
        if segment.start <= place and (segment.end is None or place < segment.end):
            return segment
    return NO_SEGMENT


def _is_zero(segment: Segment) -> bool:
    """Whether there is a segment, and it is worth 0."""
    return segment is not NO_SEGMENT and segment.value == 0


def token_ends(text: str, tokens: Sequence[str]) -> list[int]:
    """Characters of `text` up to the end of each token; tokens that are not text add none."""
    ends = []
    place = 0
    for token in tokens:
        if text.startswith(token, place):
            place += len(token)
        ends.append(place)
    return ends


def _first_per_prompt(rows: Sequence[EvaluationRow]) -> dict[str | int, EvaluationRow]:
    first: dict[str | int, EvaluationRow] = {}
    for row in rows:
        first.setdefault(row.id, row)
    return first


def _response(row: EvaluationRow, scale: Mapping[str, float], display: Display) -> ResponseView:
    aspects = {
        aspect: segment_pieces(row.response, segments or [], scale.get(aspect, 0.0))
        for aspect, segments in row.segments.items()
    }
    table = segment_table(row.response, row.segments, display)
    return ResponseView(row.response, _chips(row, display), aspects, table)


def segment_table(text: str, segments: Segments, display: Display) -> Table:
    """The segments of every reward, with their texts, labels and values."""
    rows = []
    for aspect, of_aspect in segments.items():
        for segment in of_aspect or []:
            if segment.end is None:
                segment_text = "the whole response"
            else:
                segment_text = text[segment.start : segment.end].strip()
            label = segment.judgement or "–"
            rows.append([display.name(aspect), segment_text, label, signed(segment.value, 3)])
    return Table(["reward", "segment", "label", "value"], rows)


def _chips(row: EvaluationRow, display: Display) -> list[str]:
    chips = []
    for metric in display.headline:
        if metric in row.numbers:
            value = row.numbers[metric]
            digits = 1 if abs(value) >= 10 else 2
            chips.append(f"{display.metric(metric)} {decimal(value, digits)}")
    return [*chips, f"{count_words(row.response)} words"]


def _rollout(
    row: Rollout,
    scale: Mapping[str, float],
    extra_scale: Mapping[str, float],
    display: Display,
) -> RolloutView:
    aspects: Pieces = {}
    for name, values in row.rewards.items():
        segments = row.segments.get(name) or []
        top = scale.get(name, 0.0)
        aspects[name] = token_pieces(row.response, row.tokens, values, top, segments, row.replies)
    extras: Pieces = {}
    for name, values in _extras(row).items():
        extras[name] = token_pieces(row.response, row.tokens, values, extra_scale[name], [])
    sums = {name: sum(values) for name, values in row.rewards.items()}
    prompt = split_prompt(row.prompt, display)
    return RolloutView(prompt, row.reward, sums, aspects, extras, token_table(row, display))


def token_table(row: Rollout, display: Display) -> Table:
    """A row per token with its rewards, KL, value and advantage."""
    names = [display.name(name) for name in row.rewards]
    columns = [*row.rewards.values(), *_extras(row).values()]
    rows = []
    for i, token in enumerate(row.tokens):
        # a column of a damaged file can be too short
        cells = [signed(values[i]) if i < len(values) else "–" for values in columns]
        rows.append([token.strip() or "(blank)", *cells])
    return Table(["token", *names, *_extras(row)], rows)


def _extras(row: Rollout) -> dict[str, list[float]]:
    """What was logged of every token besides the rewards."""
    extras = {"KL": row.kl, "value": row.values, "advantage": row.advantages}
    return {name: values for name, values in extras.items() if values}


# ---- colour scales: the largest absolute value of each aspect gets the full colour ---------------


def _segment_scale(rows: Iterable[EvaluationRow]) -> dict[str, float]:
    largest: dict[str, float] = {}
    for row in rows:
        for aspect, segments in row.segments.items():
            for segment in segments or []:
                largest[aspect] = max(largest.get(aspect, 0.0), abs(segment.value))
    return largest


def _token_scale(rows: Iterable[Mapping[str, Sequence[float]]]) -> dict[str, float]:
    largest: dict[str, float] = {}
    for row in rows:
        for name, values in row.items():
            for value in values:
                largest[name] = max(largest.get(name, 0.0), abs(value))
    return largest


def _strength(value: float, top: float) -> float:
    return min(abs(value) / top, 1.0) if top else 0.0
