"""Builds the metrics that a config names.

Example:

    metrics = build_metrics(config.evaluation_metrics, device)
    rows = evaluate_rows(PolicyResponder(policy, sampling), prompts, reward, metrics)
"""

from collections.abc import Callable, Sequence
from functools import partial

from fgrlhf.evaluators import Rouge, RougeLsum
from fgrlhf.metrics import overlap
from fgrlhf.metrics.base import (
    CountedMetric,
    NamedMetric,
    PromptMetric,
    ReferenceMetric,
    TextMetric,
)
from fgrlhf.metrics.config import MetricConfig
from fgrlhf.reward_models.prefix import PrefixFn, text_prefix
from fgrlhf.reward_utils import load_segmenter
from fgrlhf.scorers.base import RewardContext
from fgrlhf.words import (
    bleu_tokenizer,
    copying,
    count_words,
    distinct,
    msttr,
    repetition,
    ter_tokenizer,
)


def build_metrics(
    configs: Sequence[MetricConfig],
    device: str = "cpu",
    dtype: str = "fp32",
    prefix: PrefixFn = text_prefix,
) -> tuple[NamedMetric, ...]:
    """The metrics of an `evaluation_metrics` list.

    Args:
      device, dtype: of the models that metrics load.
      prefix: the words that a reward model reads before a response.
    Raises:
      UserError: a model cannot be loaded, or data that a metric needs is not installed.
    """
    return tuple(build_metric(config, device, dtype, prefix) for config in configs)


def build_metric(
    config: MetricConfig,
    device: str = "cpu",
    dtype: str = "fp32",
    prefix: PrefixFn = text_prefix,
) -> NamedMetric:
    """Build one metric. See `build_metrics`."""
    if config.name == "perplexity":
        # imported here: with transformers it takes seconds
        from fgrlhf.metrics.perplexity import Perplexity

        return Perplexity(config, device, dtype)
    if config.name == "score":
        from fgrlhf.metrics.score import Score

        return Score(config, RewardContext(prefix, device, dtype))
    return _BUILDERS[config.name](config)


def _meteor(config: MetricConfig, synonyms: bool) -> NamedMetric:
    from fgrlhf.metrics.meteor import Meteor  # nltk, which it needs, takes a second to import

    return ReferenceMetric(config, Meteor(synonyms))


def _cider(config: MetricConfig) -> NamedMetric:
    from fgrlhf.metrics.cider import Frequencies, cider

    assert config.references is not None
    frequencies = Frequencies.read(config.references)
    return ReferenceMetric(config, partial(cider, frequencies=frequencies))


def _novelty(config: MetricConfig) -> NamedMetric:
    from fgrlhf.metrics.novelty import load_seen, novelty

    assert config.model is not None
    return TextMetric(config, partial(novelty, seen_S=load_seen(config.model)))


def _parent(config: MetricConfig) -> NamedMetric:
    from fgrlhf.metrics.parent import Parent

    return Parent(config)


def _bleu(config: MetricConfig) -> NamedMetric:
    overlap.check_bleu_tokenizer(config.words)
    return _with_tokenizer(config, "bleu_counts", overlap.bleu, bleu_tokenizer)


def _with_tokenizer(
    config: MetricConfig,
    statistic: str,
    score: Callable[..., tuple[float, list[float]]],
    automatic: Callable[[Sequence[str]], str],
) -> NamedMetric:
    """A metric of words, with the configured tokenizer or the one that the references need."""

    def tokenizer_of(references: Sequence[str]) -> str:
        return automatic(references) if config.words == "auto" else config.words

    return CountedMetric(config, statistic, partial(score, tokenizer=config.words), tokenizer_of)


def _sentences(config: MetricConfig) -> NamedMetric:
    segmenter = load_segmenter(config.segmenter)
    return TextMetric(config, lambda response: len(segmenter.sentences(response)))


def _distinct(config: MetricConfig, n: int) -> NamedMetric:
    return TextMetric(config, lambda response: distinct([response], n))


_BUILDERS: dict[str, Callable[[MetricConfig], NamedMetric]] = {
    "rouge1": lambda config: ReferenceMetric(config, Rouge("rouge1", config.words)),
    "rouge2": lambda config: ReferenceMetric(config, Rouge("rouge2", config.words)),
    "rougeL": lambda config: ReferenceMetric(config, Rouge("rougeL", config.words)),
    "rougeLsum": lambda config: ReferenceMetric(config, RougeLsum(tokenizer=config.words)),
    "bleu": _bleu,
    "chrf": lambda config: CountedMetric(config, "chrf_counts", overlap.chrf),
    "ter": lambda config: _with_tokenizer(config, "ter_counts", overlap.ter, ter_tokenizer),
    "meteor": lambda config: _meteor(config, synonyms=True),
    "meteor_stem": lambda config: _meteor(config, synonyms=False),
    "exact_match": lambda config: ReferenceMetric(config, overlap.exact_match),
    "distinct1": partial(_distinct, n=1),
    "distinct2": partial(_distinct, n=2),
    "distinct3": partial(_distinct, n=3),
    "copying": lambda config: PromptMetric(config, partial(copying, n=config.n or 4)),
    "repetition": lambda config: TextMetric(config, partial(repetition, n=config.n or 4)),
    "msttr": lambda config: TextMetric(config, partial(msttr, n=config.n or 50)),
    "cider": _cider,
    "novelty": _novelty,
    "parent": _parent,
    "length": lambda config: TextMetric(config, count_words),
    "sentences": _sentences,
}
