"""Figures of parts of an evaluation, for a policy that is good on average and bad somewhere.

    length     responses by their number of words
    position   the segments that rewards judged, by their place in the response
    meta.KEY   prompts by the value of a key of their rows, such as their type

Intervals are those of the whole evaluation's figures, over the prompts of the part. Among many
parts, some differ from the others by chance.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.metrics.clusters import clusters_by_prompt, clusters_of
from fgrlhf.metrics.pooled import NOT_APPLICABLE
from fgrlhf.metrics.summary import summarize
from fgrlhf.stats import Interval, ratio_interval
from fgrlhf.words import count_words

LENGTH, POSITION, META = "length", "position", "meta."
LENGTHS = (25, 50, 100, 200)  # most words of a response of a part
PLACES = ("only", "first", "between", "last")
MOST_VALUES = 12  # of a key; the rarest are taken together
OTHERS, NOTHING = "others", "no value"

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Part:
    """A part of an evaluation.

    Attributes:
      cases: its responses; of `position`, its segments.
    """

    name: str
    cases: int
    figures: dict[str, Interval]

    def as_dict(self) -> dict[str, Any]:
        figures = {name: figure.as_dict() for name, figure in self.figures.items()}
        return {"name": self.name, "cases": self.cases, "figures": figures}


def slice_problem(name: str) -> str | None:
    """Why this is no name of a slice; None if it is one."""
    if name in (LENGTH, POSITION) or (name.startswith(META) and name != META):
        return None
    return f"`{shorten(name, 60)}` is no slice: write {LENGTH}, {POSITION} or {META}KEY"


def check_keys(names: Sequence[str], metas: Sequence[Mapping[str, Any]]) -> None:
    """Raise `UserError` if no prompt has the key of a slice.

    Args:
      names: of the slices.
      metas: the rows of the prompts.
    """
    keys = {str(key) for meta in metas for key, value in meta.items() if value is not None}
    for name in names:
        key = name.removeprefix(META)
        if name.startswith(META) and key not in keys:
            raise UserError(
                f"slices: no prompt has the key `{shorten(key, 60)}` in its row; the keys are"
                f" {shorten(', '.join(sorted(keys)) or 'none', 200)}"
            )


def slices_of(
    rows: Sequence[Row], meta: Mapping[str, Mapping[str, Any]], names: Sequence[str]
) -> dict[str, list[Part]]:
    """The parts of every slice that has some.

    Args:
      rows: of an evaluation.
      meta: the row of each prompt, by its id.
      names: of the slices.
    """
    parts = {}
    for name in names:
        if name == POSITION:
            parts[name] = _by_place(rows)
        elif name == LENGTH:
            parts[name] = _parts(rows, [length_name(row["response"]) for row in rows])
        else:
            parts[name] = _parts(rows, _values(rows, meta, name.removeprefix(META)), common=True)
    return parts


def length_name(response: str) -> str:
    """The part of a response by its length, which does not depend on other responses."""
    words = count_words(response)
    least = 0
    for most in LENGTHS:
        if words <= most:
            return f"{least} to {most} words"
        least = most + 1
    return f"{least} words or more"


def place_name(i: int, segments: int) -> str:
    """The place of segment i of a response, from 0 on: one of PLACES."""
    if segments == 1:
        return "only"
    if i == 0:
        return "first"
    return "last" if i == segments - 1 else "between"


def _values(rows: Sequence[Row], meta: Mapping[str, Mapping[str, Any]], key: str) -> list[str]:
    names = []
    for row in rows:
        value = meta.get(row["id"], {}).get(key)
        is_name = isinstance(value, str | int | float)
        names.append(shorten(str(value), 60) if is_name else NOTHING)
    return names


def _parts(rows: Sequence[Row], names: Sequence[str], common: bool = False) -> list[Part]:
    """The parts of these names. `common`: the most frequent first, the rarest joined."""
    counts = Counter(names)
    order = [name for name, _ in counts.most_common()]
    if not common:
        order.sort(key=lambda name: int(name.split()[0]))  # the least number of words
    elif len(order) > MOST_VALUES:
        kept = order[: MOST_VALUES - 1]
        names = [name if name in kept else OTHERS for name in names]
        order = [*kept, OTHERS]
    parts = []
    for name in order:
        chosen = [row for row, of_row in zip(rows, names, strict=True) if of_row == name]
        figures = {}
        for metric, figure in summarize(chosen).items():
            if not metric.endswith(NOT_APPLICABLE):
                figures[metric] = figure
        parts.append(Part(name, len(chosen), figures))
    return parts


def _by_place(rows: Sequence[Row]) -> list[Part]:
    """The mean value of a judged segment, by its place and reward.

    A reward of the whole response has no segments.
    """
    names = clusters_by_prompt(rows)
    sums: dict[str, dict[str, dict[Any, list[float]]]] = {place: {} for place in PLACES}
    cases: Counter[str] = Counter()
    for row in rows:
        for reward, segments in row.get("segments", {}).items():
            inside = sorted(
                (one for one in segments or [] if one["end"] is not None),
                key=lambda one: one["start"],
            )
            for i, segment in enumerate(inside):
                place = place_name(i, len(inside))
                cases[place] += 1
                of_prompt = sums[place].setdefault(reward, {}).setdefault(row["id"], [0.0, 0])
                of_prompt[0] += segment["value"]
                of_prompt[1] += 1
    parts = []
    for place, by_reward in sums.items():
        figures = {}
        for reward, of_prompts in by_reward.items():
            totals, numbers = zip(*of_prompts.values(), strict=True)
            clusters = clusters_of(of_prompts, names)
            figures[f"reward/{reward} per segment"] = ratio_interval(totals, numbers, clusters)
        if figures:
            parts.append(Part(place, cases[place], figures))
    return parts


def slices_text(parts: Mapping[str, Sequence[Part]]) -> str:
    """A table for each slice: a line per figure, a column per part."""
    tables = []
    for name, of_slice in parts.items():
        if not of_slice:
            tables.append(f"by {name}: no reward judged segments")
            continue
        metrics = list(dict.fromkeys(metric for part in of_slice for metric in part.figures))
        width = max(len(text) for text in [*metrics, f"by {name}", "cases"])
        columns = [max(len(part.name), 8) for part in of_slice]
        heads = [part.name.rjust(size) for part, size in zip(of_slice, columns, strict=True)]
        counts = [str(part.cases).rjust(size) for part, size in zip(of_slice, columns, strict=True)]
        lines = ["  ".join([f"by {name}".ljust(width), *heads])]
        lines.append("  ".join(["cases".ljust(width), *counts]))
        for metric in metrics:
            cells = []
            for part, size in zip(of_slice, columns, strict=True):
                figure = part.figures.get(metric)
                cells.append(("–" if figure is None else f"{figure.mean:z.3f}").rjust(size))
            lines.append("  ".join([metric.ljust(width), *cells]))
        tables.append("\n".join(lines))
    return "\n\n".join(tables)
