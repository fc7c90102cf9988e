"""How a task is shown in reports: names, order, colours, and the parts of a prompt.

This module has no heavy imports, so that a task can define its `Display` without loading
matplotlib.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, stdev

from fgrlhf.metrics.pooled import NOT_APPLICABLE

N_SERIES = 6  # series colours of a page, --series-0 to --series-5 in report.css

SYMBOLS = "●■▲◆▼✚"  # of the series, so that they can be told apart without colours

METRIC_NAMES = {
    "rougeLsum": "RougeLsum",
    "length": "length in words",
    "kl": "KL from the reference",
}
ASPECT_METRICS = {  # the last part of `<aspect>/<part>`
    "ratio": "error-free share by its model",
    "score": "z-score by its model",
}
DEFINITIONS = {  # by the names of the metrics
    "reward": "the sum of the rewards in the config of the evaluation",
    "rougeLsum": "overlap with the reference: ROUGE-L F1 over sentences, from 0 to 100",
    "length": "words of a response",
    "kl": "log-probability of a response under the policy, minus that under the reference",
}
ASPECT_DEFINITIONS = {
    "ratio": "share of segments without an error, as the reward model judges them",
    "score": "score of the reward model, in its standard deviations from its mean",
}
TRUTH = "oracle/"  # prefix of metrics that measure the truth

PromptPart = tuple[str, str]  # (heading, text)


def whole_prompt(prompt: str) -> list[PromptPart]:
    """A prompt as a single part without a heading."""
    return [("", prompt)]


@dataclass(frozen=True)
class Spread:
    """How far a paired difference varied in runs that differ in their seed or processor.

    Attributes:
      pair: `a_vs_b`, the policies as in the `gains` of summary.json.
      metric: by its name in evaluation rows, e.g. `oracle/gold`.
      gains: the mean difference of each run, [n], n >= 2.
      over: what differed between the runs, such as `seeds and processors`.
      source: the document with the runs.
      scale, data: of the runs, as in summary.json. Other scales and data may spread differently.
    """

    pair: str
    metric: str
    gains: Sequence[float]
    over: str
    source: str
    scale: str
    data: str

    @property
    def mean(self) -> float:
        return mean(self.gains)

    @property
    def deviation(self) -> float:
        """The standard deviation sqrt(sum_i (g_i - mean)^2 / (n - 1))."""
        return stdev(self.gains)


@dataclass(frozen=True)
class Display:
    """Names, order and colours of a task's policies, reward models, rewards and metrics.

    The defaults give a readable report: names are those of folders and of the config, with spaces
    for underscores.

    Attributes:
      names: display names of policies and reward models (by folder) and of rewards (by their name
        in the config).
      metrics: display names of metrics, by their name in evaluation rows, e.g. `oracle/gold`.
      definitions: what metrics measure, in a few words, by their name in evaluation rows.
      headline: the most important metrics. Policies are compared by them and by the task's own
        metrics, if these are few, and they are shown with each sampled response.
      order: policies and reward models that come first; the others follow by name. Policies are
        compared with the first one; without an order, it is the one that RL starts from
        (fgrlhf/report/evaluations.py).
      colours: series colours of policies; the others use the remaining colours in turn.
      prompt_parts: splits a prompt for display. The text of the first part is the title of a
        sample; the others are listed below it under their headings.
      spreads: measured spreads of differences, which reports state beside the figures of one run.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, str] = field(default_factory=dict)
    definitions: Mapping[str, str] = field(default_factory=dict)
    headline: Sequence[str] = ("reward", "rougeLsum")
    order: Sequence[str] = ("sft",)
    colours: Mapping[str, int] = field(default_factory=lambda: {"sft": 0})
    prompt_parts: Callable[[str], list[PromptPart]] = whole_prompt
    spreads: Sequence[Spread] = ()

    def name(self, key: str) -> str:
        """The display name of a policy, a reward model or a reward."""
        return self.names.get(key, key.replace("_", " "))

    def metric(self, key: str) -> str:
        """The display name of a metric."""
        if key in self.metrics:
            return self.metrics[key]
        if key in METRIC_NAMES:
            return METRIC_NAMES[key]
        if key.endswith(NOT_APPLICABLE):
            return f"{self.metric(key.removesuffix(NOT_APPLICABLE))}, not applicable"
        first, _, rest = key.partition("/")
        if rest in ASPECT_METRICS:
            return f"{self.name(first)}, {ASPECT_METRICS[rest]}"
        if first == "reward" and rest:
            return f"reward: {self.name(rest)}"
        return key.removeprefix(TRUTH).replace("/", " · ")

    def metric_of_gain(self, key: str) -> str:
        """The name in evaluation rows of a metric in the `gains` of summary.json.

        Metrics of the truth have no prefix there: `gold` is `oracle/gold`.
        """
        known = {*self.metrics, *self.definitions}
        return TRUTH + key if TRUTH + key in known else key

    def definition(self, key: str) -> str | None:
        """What a metric measures; None if that is not known."""
        if key in self.definitions:
            return self.definitions[key]
        if key in DEFINITIONS:
            return DEFINITIONS[key]
        return ASPECT_DEFINITIONS.get(key.partition("/")[2])

    def rank(self, name: str) -> tuple[int, str]:
        """Sort key: the names in `order` first, then the others by name."""
        if name in self.order:
            return list(self.order).index(name), name
        return len(self.order), name

    def colour_numbers(self, names: Iterable[str]) -> dict[str, int]:
        """The series colour of each name."""
        taken = set(self.colours.values())
        free = [number for number in range(N_SERIES) if number not in taken]
        if not free:
            free = list(range(N_SERIES))
        colours: dict[str, int] = {}
        others = 0
        for name in dict.fromkeys(names):
            if name in self.colours:
                colours[name] = self.colours[name]
            else:
                colours[name] = free[others % len(free)]
                others += 1
        return colours
