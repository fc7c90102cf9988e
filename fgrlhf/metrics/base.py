"""The interface of a metric: numbers for each response."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from fgrlhf.base.shared_messages import print_once
from fgrlhf.metrics.config import METRICS, MetricConfig, MetricFacts
from fgrlhf.metrics.pooled import TOKENIZER
from fgrlhf.text_types import MetricFunction, Prompt

Columns = dict[str, float | list[float] | str | None]


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
            assert not isinstance(value, list | str)
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


class PromptMetric(NamedMetric):
    """A metric of the response and its prompt: `score(text, prompt)`, both as texts."""

    def __init__(self, config: MetricConfig, score: Callable[[str, str], float | None]):
        super().__init__(config)
        self.score = score

    def columns(self, prompts, texts):
        return [
            {self.column: self.score(text, prompt.text)}
            for prompt, text in zip(prompts, texts, strict=True)
        ]


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
      tokenizer_of: references -> the name of the tokenizer that finds the words, which is a column
        of its own, `<column>/tokenizer`; None: the metric has no tokenizer.
    """

    def __init__(
        self,
        config: MetricConfig,
        statistic: str,
        score: Callable[[str, Sequence[str]], tuple[float, list[float]]],
        tokenizer_of: Callable[[Sequence[str]], str] | None = None,
    ):
        super().__init__(config)
        self.statistic = statistic
        self.score = score
        self.tokenizer_of = tokenizer_of
        self._printed: set[str] = set()  # names of tokenizers

    def columns(self, prompts, texts):
        rows = []
        for prompt, text in zip(prompts, texts, strict=True):
            if prompt.references:
                value, counts = self.score(text, prompt.references)
                row: Columns = {self.column: value, f"{self.column}/{self.statistic}": counts}
                if self.tokenizer_of is not None:
                    row[self.column + TOKENIZER] = self._named(self.tokenizer_of(prompt.references))
                rows.append(row)
            else:
                rows.append({self.column: None})
        return rows

    def _named(self, tokenizer: str) -> str:
        """The tokenizer, which is printed when it is used for the first time."""
        if tokenizer not in self._printed:
            self._printed.add(tokenizer)
            print_once(f"note: {self.column} finds words with the tokenizer {tokenizer}")
        return tokenizer
