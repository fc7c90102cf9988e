"""How far a text is supported: each of its segments against each premise, by an entailment model.

    s_j = max over premises x of P(entailment | premise x, hypothesis y_j)

A text's score is the mean of those of its segments y_1, ..., y_J; a text without segments has 0,
since nothing in it is supported. Sentences as units are those of SummaC-ZS (Laban et al. 2022,
TACL 10).
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.models.loading import load_config
from fgrlhf.reward_models.prefix import Prefix, PrefixFn
from fgrlhf.reward_utils import load_segmenter
from fgrlhf.scorers.base import RewardContext
from fgrlhf.scorers.classifier import LabelScorer
from fgrlhf.text_types import Prompt

if TYPE_CHECKING:
    from fgrlhf.scorers.kinds import ClassifierScorer

PROMPT, REFERENCES, CONTEXT = "prompt", "references", "context"
ENTAILMENT = "entailment"
FOR_PREMISE = 0.75  # of the tokens that the model reads; a longer premise is divided


class Entailment:
    """The support of texts by the premises of their prompts."""

    def __init__(self, labels: LabelScorer, config: "ClassifierScorer", prefix: PrefixFn):
        self.labels = labels
        assert config.over is not None
        self.over = config.over
        self.level = config.level
        self.prefix = prefix
        self.segmenter = load_segmenter()
        self._pieces: dict[str, list[str]] = {}  # of each premise as it was given

    @classmethod
    def load(cls, config: "ClassifierScorer", context: RewardContext) -> "Entailment":
        """Load the model. Raises `UserError` as `LabelScorer.load` does."""
        label = config.label or entailment_label(config.ckpt)
        of_pairs = config.model_copy(update={"label": label, "reads": config.reads or "pair"})
        labels = LabelScorer.load(of_pairs, context.device, context.dtype)
        return cls(labels, config, context.prefix)

    @property
    def seen(self) -> int:
        """Pairs of premise and hypothesis so far."""
        return self.labels.seen

    @property
    def cut_inputs(self) -> int:
        """Those of them that were longer than the model can read."""
        return self.labels.cut_inputs

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
        """The score of each text, from 0 to 1.

        Raises:
          UserError: a prompt's row has no premises under `over`.
        """
        segments = [self._segments(text) for text in texts]
        premises_of_texts = [self._premises(prompt) for prompt in prompts]
        pairs: dict[tuple[str, str], None] = {}  # (premise, hypothesis): each is read once
        for premises, hypotheses in zip(premises_of_texts, segments, strict=True):
            pairs |= dict.fromkeys((x, y) for x in premises for y in hypotheses)
        scores = self.labels.score(
            [Prompt("", premise) for premise, _ in pairs], [hypothesis for _, hypothesis in pairs]
        )
        support = dict(zip(pairs, scores, strict=True))
        results = []
        for premises, hypotheses in zip(premises_of_texts, segments, strict=True):
            supports = [max((support[x, y] for x in premises), default=0.0) for y in hypotheses]
            results.append(fmean(supports) if supports else 0.0)
        return results

    def _segments(self, text: str) -> list[str]:
        spans = self.segmenter.segments(text, self.level)
        return [text[start:end] for start, end in spans if text[start:end].strip()]

    def _premises(self, prompt: Prompt) -> list[str]:
        """The premises of a prompt, long ones in pieces of whole sentences."""
        premises = []
        for whole in premises_of(prompt, self.over, self.prefix):
            if whole not in self._pieces:
                self._pieces[whole] = self._divided(whole)
            premises += self._pieces[whole]
        return premises

    def _divided(self, premise: str) -> list[str]:
        most = int(FOR_PREMISE * self.labels.max_length)
        if self._tokens(premise) <= most:
            return [premise]
        pieces: list[str] = []
        for start, end in self.segmenter.segments(premise, "sentence"):
            longer = f"{pieces[-1]} {premise[start:end]}" if pieces else ""
            if longer and self._tokens(longer) <= most:
                pieces[-1] = longer
            else:
                pieces.append(premise[start:end])
        return pieces

    def _tokens(self, text: str) -> int:
        return len(self.labels.tokenizer(text, verbose=False)["input_ids"])


def entailment_label(ckpt: str) -> str:
    """The model's label `entailment`, however it is spelled; that word if it has none."""
    try:
        labels: Any = load_config(ckpt).id2label
    except (OSError, ValueError):  # loading the model says why
        return ENTAILMENT
    return next((name for name in labels.values() if name.lower() == ENTAILMENT), ENTAILMENT)


def premises_of(prompt: Prompt, over: str, prefix: PrefixFn) -> list[str]:
    """The premises that may support a response to the prompt.

    Args:
      over: `prompt`, `references`, or a key of the prompt's row with a text or a list. An entry of
        a list is a premise, and the texts in an entry are joined by line breaks. For `context`, if
        the row has no such key, what the task marks as context of the prompt.

    Raises:
      UserError: the row has no such key.
    """
    if over == PROMPT:
        return [prompt.text]
    if over == REFERENCES:
        return list(prompt.references)
    value = prompt.meta.get(over)
    if value is None and over == CONTEXT:
        read = Prefix.of(prefix(prompt, True))
        value = [" ".join(read.words[part.start : part.stop]) for part in read.context] or None
    if value is None:
        keys = ", ".join(map(str, prompt.meta)) or "none"
        raise UserError(
            f"an entailment model reads the premises under `{shorten(over, 60)}`, which prompt"
            f" {shorten(prompt.id, 60)} lacks; its keys: {shorten(keys, 200)}. Name the key with"
            " over=KEY, or over=prompt or over=references"
        )
    entries = value if isinstance(value, list | tuple) else [value]
    return [text for text in ("\n".join(_texts(entry)) for entry in entries) if text.strip()]


def _texts(value: Any) -> list[str]:
    """All texts in a value of JSON, in order."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return []
    return [text for entry in value for text in _texts(entry)]
