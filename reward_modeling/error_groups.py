"""What a trained reward model gets wrong, by groups of dev cases: `errors.json` in its folder.

`segment_errors.py` and `pair_errors.py` form the groups.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from fgrlhf.stats import Interval, ratio_interval

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MOST_MISTAKES = 20
# of a case: 1 if it is right, 0 if it is wrong, 1/2 for equal scores; and its prompt
Credit = tuple[float, Hashable]


@dataclass(frozen=True)
class Group:
    """The dev cases of a group: pairs, or segments.

    Attributes:
      accuracy: share of the right ones: of pairs, those whose better response has the higher score;
        equal scores count one half. The interval is over the prompts that have cases in the group.
    """

    name: str
    cases: int
    accuracy: Interval

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "cases": self.cases, "accuracy": self.accuracy.as_dict()}


@dataclass(frozen=True)
class Errors:
    """Accuracy by group, and the most confident mistakes first.

    Attributes:
      groups: by their key in errors.json, such as `by_label`; the first ones are described.
    """

    groups: dict[str, tuple[Group, ...]]
    mistakes: "tuple[DataclassInstance, ...]"

    def as_dict(self) -> dict[str, Any]:
        """What errors.json has."""
        parts = {key: [one.as_dict() for one in groups] for key, groups in self.groups.items()}
        return {**parts, "mistakes": [asdict(mistake) for mistake in self.mistakes]}

    def describe(self) -> str:
        """A line for the user."""
        key, groups = next(iter(self.groups.items()))
        parts = [f"{one.name} {one.accuracy.mean:.3f} (n={one.cases})" for one in groups]
        return f"accuracy {title(key)}: {', '.join(parts)}"


def title(key: str) -> str:
    """`by_label` as text."""
    return key.replace("_", " ")


def groups_of(credits: Mapping[str, Sequence[Credit]]) -> tuple[Group, ...]:
    """The groups that have cases, from the credits of each."""
    found = []
    for name, cases in credits.items():
        if cases:
            right_N, prompts_N = zip(*cases, strict=True)
            accuracy = ratio_interval(right_N, [1] * len(cases), prompts_N)
            found.append(Group(name, len(cases), accuracy))
    return tuple(found)
