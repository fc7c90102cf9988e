"""Perplexity of responses under a language model."""

import math

from fgrlhf.metrics.base import Columns, NamedMetric
from fgrlhf.metrics.config import MetricConfig
from fgrlhf.scorers.likelihood import Likelihood


class Perplexity(NamedMetric):
    """Perplexity of each response after its prompt under a language model; lower is better.

        exp(-1/T sum_t log p(y_t | x, y_<t))

    `Likelihood` says which tokens count. The perplexity of a blank response is None.

    Args:
      config: its `model` is a folder or hub name.
      device, dtype: of the model.

    Raises:
      UserError: the model cannot be loaded, or its tokenizer has no character offsets.
    """

    def __init__(self, config: MetricConfig, device: str, dtype: str):
        super().__init__(config)
        assert config.model is not None
        reader = "evaluation_metrics: perplexity"
        self.likelihood = Likelihood(config.model, reader, device, dtype, config.chat_template)

    def columns(self, prompts, texts):
        rows: list[Columns] = []
        for score in self.likelihood.logprobs(prompts, texts):
            if score is None:
                rows.append({self.column: None})
                continue
            logprob, tokens = score
            rows.append(
                {
                    self.column: math.exp(-logprob / tokens),
                    f"{self.column}/nll_and_tokens": [-logprob, tokens],
                }
            )
        return rows
