"""The interface of a metric: numbers for each response."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from fgrlhf.metrics.config import METRICS, MetricConfig, MetricFacts
from fgrlhf.text_types import Prompt

Columns = dict[str, float | list[float] | None]

# A metric of a task: (prompt, response) -> {column: number}. None means "not applicable".
MetricFunction = Callable[[Prompt, str], Mapping[str, float | None]]


class NamedMetric(ABC):
    """A metric that can be selected by name in a config."""

    def __init__(self, config: MetricConfig):
        self.name = config.name
        self.column = config.column

    @property
    def facts(self) -> MetricFacts:
        """The metric's properties, e.g. whether higher is better or it needs references."""
        return METRICS[self.name]

    @abstractmethod
    def columns(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[Columns]:
        """The columns that the metric adds to the row of each response.

        `self.column` is the response's value, or None if the metric does not apply. A metric with a
        corpus-level value adds `<column>/<statistic>`: numbers that are summed over responses
        (`fgrlhf.metrics.pooled.CORPUS_LEVEL`). That column is missing if the value is None.
        """

    def values(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float | None]:
        """The value of each response; None if the metric does not apply."""
        values = []
        for columns in self.columns(prompts, texts):
            value = columns[self.column]
            assert not isinstance(value, list)
            values.append(value)
        return values


Metric = NamedMetric | MetricFunction  # metrics that an evaluation accepts


class TextMetric(NamedMetric):
    """A metric of the response alone: `score(text)`."""

    def __init__(self, config: MetricConfig, score: Callable[[str], float | None]):
        super().__init__(config)
        self.score = score

    def columns(self, prompts, texts):
        return [{self.column: self.score(text)} for text in texts]


class ReferenceMetric(NamedMetric):
    """A metric of the response and its prompt's references: `score(text, references)`."""

    def __init__(self, config: MetricConfig, score: Callable[[str, Sequence[str]], float]):
        super().__init__(config)
        self.score = score

    def columns(self, prompts, texts):
        rows = []
        for prompt, text in zip(prompts, texts, strict=True):
            value = self.score(text, prompt.references) if prompt.references else None
            rows.append({self.column: value})
        return rows


class CountedMetric(NamedMetric):
    """A metric with references whose corpus-level value is a function of summed counts.

    Args:
      statistic: the name of that function in `fgrlhf.metrics.pooled.CORPUS_LEVEL`.
      score: (text, references) -> the response's value, and its counts.
    """

    def __init__(
        self,
        config: MetricConfig,
        statistic: str,
        score: Callable[[str, Sequence[str]], tuple[float, list[float]]],
    ):
        super().__init__(config)
        self.statistic = statistic
        self.score = score

    def columns(self, prompts, texts):
        rows = []
        for prompt, text in zip(prompts, texts, strict=True):
            if prompt.references:
                value, counts = self.score(text, prompt.references)
                rows.append({self.column: value, f"{self.column}/{self.statistic}": counts})
            else:
                rows.append({self.column: None})
        return rows
