"""What a reward model, or a baseline, predicts of the dev rows, and the figures of that.

The dev rows have cases: judged segments, or pairs of responses. Cases of one prompt are similar, so
the 95% intervals are over prompts (fgrlhf/stats.py). Rows with the same words before the response
have one prompt.

Axes here: N cases, Q prompts, K evaluations.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fgrlhf.auc import auc, auc_interval
from fgrlhf.paired_stats import paired_ratio_interval
from fgrlhf.reward_models.prefix import Prefix, RMText
from fgrlhf.stats import Figure, Interval, f1_interval, ratio_interval
from reward_modeling.metrics import precision_recall_f1

FEW_PROMPTS = 50  # fewer are too few to trust a figure
SPLITS = 200  # of the dev prompts into halves

CaseKind = Literal["segments", "pairs"]
# a response, and whether each segment has an error; None if it is not judged
LabelledText = tuple[RMText, Sequence[bool | None]]


@dataclass(frozen=True)
class Predictions:
    """Predictions of all dev cases.

    Attributes:
      kind: of the cases.
      scores_N: of a segment, the probability of an error; of a pair, a number that is above 0 if
        the first response is predicted to be better.
      positive_N: whether the segment has an error, whether the first response is better.
      prompts_N: the number of each case's prompt, from 0.
    """

    kind: CaseKind
    scores_N: np.ndarray
    positive_N: np.ndarray
    prompts_N: np.ndarray

    def __post_init__(self):
        if not len(self.scores_N) == len(self.positive_N) == len(self.prompts_N):
            raise ValueError(
                f"{len(self.scores_N)} scores, {len(self.positive_N)} labels and"
                f" {len(self.prompts_N)} prompts must be of the same cases"
            )

    @property
    def right(self) -> np.ndarray:
        """1 for a right prediction; 1/2 for a pair of equal scores."""
        if self.kind == "segments":
            return ((self.scores_N > 0.5) == self.positive_N).astype(float)
        return np.where(self.scores_N == 0, 0.5, (self.scores_N > 0) == self.positive_N)

    @property
    def number_of_prompts(self) -> int:
        return len(np.unique(self.prompts_N))

    def figures(self) -> dict[str, Figure]:
        """Every figure with its interval, or the reason why it is undefined."""
        names = self.prompts_N.tolist()
        figures = {
            "accuracy": ratio_interval(self.right, np.ones(len(names)), names),
            "auc": auc_interval(self.scores_N, self.positive_N, names),
        }
        if self.kind == "pairs":
            return figures
        predicted = self.scores_N > 0.5
        for of, found, actual in (
            ("error", predicted, self.positive_N),
            ("ok", ~predicted, ~self.positive_N),
        ):
            figures |= detection(of, found, actual, names)
        return figures

    def numbers(self) -> dict[str, float | None]:
        """Accuracy, AUC and, of segments, F1 of errors; None if it is undefined."""
        numbers: dict[str, float | None] = {
            "accuracy": float(self.right.mean()),
            "auc": auc(self.scores_N, self.positive_N),
        }
        if self.kind == "segments":
            numbers["error_f1"] = precision_recall_f1(self.scores_N > 0.5, self.positive_N)[2]
        return numbers


def detection(
    name: str, predicted_N: np.ndarray, actual_N: np.ndarray, prompts: Sequence[int]
) -> dict[str, Figure]:
    """Precision, recall and F1 of one label, over prompts.

    F1 = 2 hits / (predicted + actual). A figure without a denominator is undefined.
    """
    hits_N = (predicted_N & actual_N).astype(float)
    marks_N = predicted_N.astype(int) + actual_N
    counts = {
        "precision": (ratio_interval, hits_N, predicted_N, "none is predicted"),
        "recall": (ratio_interval, hits_N, actual_N, "there is none"),
        "f1": (f1_interval, 2 * hits_N, marks_N, "there is none, and none predicted"),
    }
    figures: dict[str, Figure] = {}
    for of, (interval, above_N, below_N, nothing) in counts.items():
        figures[f"{name}_{of}"] = interval(above_N, below_N, prompts) if below_N.any() else nothing
    return figures


def prompts_of(
    prefixes: Sequence[Prefix], clusters: Sequence[str | None] | None = None
) -> list[int]:
    """The number of each row's prompt: rows with the same words before the response share one.

    If all rows have the same words, or none, the words are no prompt, and every row is its own.

    Args:
      clusters: of each row; those of one cluster count as one prompt.
    """
    names: list[Hashable] = [prefix.words for prefix in prefixes]
    if len(set(names)) < 2:
        names = list(range(len(prefixes)))
    if clusters is not None:
        for place, cluster in enumerate(clusters):
            names[place] = names[place] if cluster is None else ("cluster", cluster)
    places: dict[Hashable, int] = {}
    return [places.setdefault(name, len(places)) for name in names]


def difference(model: Predictions, baseline: Predictions) -> Interval:
    """The model's accuracy minus the baseline's, on the same cases, over prompts."""
    ones = np.ones(len(model.scores_N))
    return paired_ratio_interval(
        (model.right, ones), (baseline.right, ones), model.prompts_N.tolist()
    )


def split_figures(figures: dict[str, Figure]) -> dict[str, Any]:
    """The figures as JSON: `intervals` of those that are defined, and `reasons`.

    A reason says why a figure is undefined, or why it has no interval.
    """
    intervals = {}
    reasons = {}
    for name, figure in figures.items():
        if isinstance(figure, str):
            reasons[name] = f"undefined: {figure}"
            continue
        intervals[name] = figure.as_dict()
        if not figure.has_bounds:
            reasons[name] = f"no interval: {figure.reason}"
    return {"intervals": intervals, "reasons": reasons}


# ---- the choice of the checkpoint ----------------------------------------------------------------


class Evaluations:
    """How many cases of each prompt every evaluation on dev had right.

    A checkpoint holds them (`state`), so that a run that continues knows the earlier ones.
    """

    def __init__(self):
        self.right: dict[int, list[float]] = {}  # step -> of each prompt
        self.cases: list[float] = []  # of each prompt

    def add(self, step: int, judged: Predictions) -> None:
        """Record an evaluation."""
        self.cases = np.bincount(judged.prompts_N).astype(float).tolist()
        self.right[step] = np.bincount(judged.prompts_N, weights=judged.right).tolist()

    def state(self) -> dict[str, Any]:
        """All of it as JSON; `restore` is the inverse."""
        return {"cases": self.cases, "right": {str(k): row for k, row in self.right.items()}}

    def restore(self, state: dict[str, Any]) -> None:
        self.cases = state["cases"]
        self.right = {int(step): row for step, row in state["right"].items()}

    def optimism(self) -> float | None:
        """By how much the best evaluation's accuracy is expected to be too high."""
        return selection_optimism(np.array(list(self.right.values())), np.array(self.cases))


def selection_optimism(right_KQ: np.ndarray, cases_Q: np.ndarray) -> float | None:
    """The optimism of the accuracy of the best of K evaluations on the rows that chose it.

    The prompts are split into halves A and B at random, SPLITS times. The evaluation k that is best
    on A is chosen; its accuracy on B is honest:

        mean over splits of (accuracy_A(k) - accuracy_B(k)) / sqrt(2), at least 0

    Half of the prompts choose with sqrt(2) times the noise of all. If all checkpoints are equally
    good, the accuracy is .03 to .08 too high in the simulations of tests/test_rm_card.py, and the
    accuracy minus this less than .003 off. If some are better, the latter tends to be too low. None
    with a single evaluation or fewer than four prompts.
    """
    if len(right_KQ) < 2 or len(cases_Q) < 4:
        return None
    rng = np.random.default_rng(0)
    prompts = len(cases_Q)
    differences = []
    for _ in range(SPLITS):
        order = rng.permutation(prompts)
        halves = order[: prompts // 2], order[prompts // 2 :]
        on_first, on_second = (right_KQ[:, half].sum(1) / cases_Q[half].sum() for half in halves)
        best = int(on_first.argmax())
        differences.append(float(on_first[best] - on_second[best]))
    return max(float(np.mean(differences)) / math.sqrt(2), 0.0)
