"""Score segments or whole responses with a reward model.

`load_reward_model` (fgrlhf/reward_models/loading.py) loads a scorer from a folder.

Bring your own model
--------------------
1. Any encoder that transformers can load: name it in the reward model's YAML (`model.ckpt`, shape
   `encoder`).
2. Any encoder-decoder or decoder: shape `seq2seq` or `causal`.
3. Your own network: pass `SegmentScorer` or `SequenceScorer` an `nn.Module` whose forward takes the
   output of `RMCollator` and returns an object with `logits`: (B, T, labels) for segments
   (T as in `places`, or of the whole input in shape `encoder`), (B, 1) for sequences.
4. Anything else, such as a rule or a server: write a class with `segment_scores(prompts, texts)` as
   in fgrlhf/reward.py. It needs no reward model.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from transformers import LongformerPreTrainedModel, PreTrainedModel

from fgrlhf.base.errors import UserError
from fgrlhf.reward_models.collate import BATCH_TOKENS, batches_by_prompt
from fgrlhf.reward_models.inputs import RMInputs, refuse_without_tokens
from fgrlhf.reward_models.networks import LanguageModelScorer
from fgrlhf.reward_models.prefix import Prefix, PrefixFn, RMText
from fgrlhf.reward_models.rm_input import RMInput
from fgrlhf.reward_models.spec import Kind, RewardModelSpec, Shape
from fgrlhf.reward_utils import (
    DIVIDED_LEVELS,
    MULTILINGUAL,
    PUBLISHED,
    Span,
    is_step,
    load_segmenter,
)
from fgrlhf.text_types import Prompt

BATCH_TOKENS_ON_GPU = 32_768


@dataclass(frozen=True)
class SegmentLabels:
    """The judgements of one response, in S segments.

    Attributes:
      spans: half-open character ranges of the segments.
      probabilities_SC: of each label; zeros for a segment that is not judged.
      labels: names of the columns: error labels, then the ok label.
      judged: False for a segment that could not be read, because its end was cut off or it has no
        token. It gets reward 0.
    """

    spans: tuple[Span, ...]
    probabilities_SC: Tensor
    labels: tuple[str, ...]
    judged: tuple[bool, ...]

    def __post_init__(self):
        S = len(self.spans)
        if tuple(self.probabilities_SC.shape) != (S, len(self.labels)) or len(self.judged) != S:
            raise ValueError(
                f"{S} spans, but probabilities of shape {tuple(self.probabilities_SC.shape)} and "
                f"{len(self.judged)} marks"
            )


def _default_batch_tokens(model: nn.Module) -> int:
    """Padded tokens of a forward pass: more on a GPU, which is not busy with so few.

    But no more for attention that stores a score for every pair of tokens.
    """
    on_cpu = all(parameter.device.type == "cpu" for parameter in model.parameters())
    stores_scores = any(map(_stores_scores, model.modules()))
    return BATCH_TOKENS if on_cpu or stores_scores else BATCH_TOKENS_ON_GPU


def _stores_scores(module: nn.Module) -> bool:
    """Whether a module is a model with transformers' eager attention. A Longformer has ours."""
    if not isinstance(module, PreTrainedModel) or isinstance(module, LongformerPreTrainedModel):
        return False
    return module.config._attn_implementation == "eager"


class _Scorer(ABC):
    """A network in evaluation mode with its tokenizer and spec.

    Args:
      prefix_fn: (prompt, with_context) -> the words before the response; a task's `rm_prefix`.
      batch_tokens: largest number of padded tokens of one forward pass; None: see
        `_default_batch_tokens`. Inputs are sorted by length before they are batched.
    """

    kind: Kind

    def __init__(
        self,
        model: nn.Module,
        tokenizer,
        spec: RewardModelSpec,
        prefix_fn: PrefixFn,
        batch_tokens: int | None = None,
    ):
        if spec.kind != self.kind:
            raise UserError(
                f"this is a {spec.kind} reward model, but a {self.kind} reward model is needed:"
                " check `ckpt`"
            )
        self.model = model.eval().requires_grad_(False)
        self.spec = spec
        self.prefix_fn = prefix_fn
        self.batch_tokens = batch_tokens or _default_batch_tokens(model)
        self.inputs = inputs_of(model, tokenizer, spec)

    @property
    def seen(self) -> int:
        """Inputs encoded so far."""
        return self.inputs.cuts.inputs

    @property
    def cut_inputs(self) -> int:
        """Inputs whose prompt was cut to fit."""
        return self.inputs.cuts.prefixes

    def encode(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[RMInput]:
        """The network's input for each text: the same ids as in training.

        Raises:
          UserError: an input has no tokens.
        """
        inputs = self.inputs.encode(
            [self._read(prompt, text)[0] for prompt, text in zip(prompts, texts, strict=True)]
        )
        refuse_without_tokens(inputs, prompts)
        return inputs

    def _prefix(self, prompt: Prompt) -> Prefix:
        return Prefix.of(self.prefix_fn(prompt, self.spec.with_context))

    @abstractmethod
    def _read(self, prompt: Prompt, text: str) -> tuple[RMText, list[Span]]:
        """The words the network reads, and the character spans of the segments it judges."""

    @property
    def members(self) -> int:
        """The heads of the network, which are an ensemble if there are several."""
        return getattr(getattr(self.model, "config", None), "members", 1)

    def logits(self, inputs: Sequence[RMInput]) -> list[Tensor]:
        """Each input's logits at its positions, in fp32 on the CPU.

        Shapes: (judged segments, labels) of a segment classifier, (1,) of a sequence scorer.
        """
        return self._outputs(inputs, "logits")

    def member_logits(self, inputs: Sequence[RMInput]) -> list[Tensor]:
        """The logits of several members: (judged segments, members, labels), or (members,)."""
        return self._outputs(inputs, "member_logits")

    @torch.no_grad()
    def _outputs(self, inputs: Sequence[RMInput], output: str) -> list[Tensor]:
        device = next(self.model.parameters()).device
        results: dict[int, Tensor] = {}
        for rows in batches_by_prompt(inputs, self.batch_tokens):
            batch = self.inputs.collate([inputs[i] for i in rows])
            on_device = {name: tensor.to(device) for name, tensor in batch.items()}
            outputs = getattr(self.model(**on_device), output).float().cpu()
            for i, logits in zip(rows, outputs):
                if self.kind == "segment":
                    logits = logits[inputs[i].judged_outputs]
                results[i] = logits
        return [results[i] for i in range(len(inputs))]


class SegmentScorer(_Scorer):
    """Judges every segment of a text: probabilities of the error labels and the ok label.

    Attributes:
      labels: the labels that are compared, errors first.
      columns: their places among the network's outputs.
    """

    kind = "segment"

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        default = PUBLISHED if self.spec.level in DIVIDED_LEVELS else MULTILINGUAL
        self.segmenter = load_segmenter(self.spec.segmenter or default)
        self.labels = self.spec.judged_labels
        self.columns = [self.spec.labels.index(name) for name in self.labels]

    def _read(self, prompt: Prompt, text: str) -> tuple[RMText, list[Span]]:
        spans = self.segmenter.segments(text, self.spec.level)
        read = RMText.of(self._prefix(prompt), text, spans)
        # as in training files: a step is a line, and its separator need not be white space
        return replace(read, spaces=None) if is_step(self.spec.level) else read, spans

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[SegmentLabels]:
        """Judge each text's segments. A text without words has none.

        With z the logits at a segment's position, T the temperature of the spec and J the compared
        labels:

            p(l) = exp(z_l / T) / sum_{l' in J} exp(z_l' / T)        for l in J

        Other outputs of a checkpoint, such as `Ignore`, are not used.
        """
        inputs, spans, to_compute = self._inputs(prompts, texts)
        return self._labelled(inputs, spans, self.logits(to_compute))

    def score_members(
        self, prompts: Sequence[Prompt], texts: Sequence[str]
    ) -> list[list[SegmentLabels]]:
        """The judgements of each member: member -> text. T is that of their mean."""
        if self.members == 1:
            return [self.score(prompts, texts)]
        inputs, spans, to_compute = self._inputs(prompts, texts)
        logits = self.member_logits(to_compute)
        results = []
        for m in range(self.members):
            results.append(self._labelled(inputs, spans, [one_SMC[:, m] for one_SMC in logits]))
        return results

    def _inputs(
        self, prompts: Sequence[Prompt], texts: Sequence[str]
    ) -> tuple[list[RMInput], list[list[Span]], list[RMInput]]:
        """Inputs and segments of the texts, and the inputs that have a segment to judge."""
        read = [self._read(*pair) for pair in zip(prompts, texts, strict=True)]
        inputs = self.inputs.encode([rm_text for rm_text, _ in read])
        judged = [rm_input for rm_input in inputs if rm_input.judged_outputs]
        return inputs, [spans for _, spans in read], judged

    def _labelled(
        self,
        inputs: Sequence[RMInput],
        spans_of_texts: Sequence[Sequence[Span]],
        logits: Sequence[Tensor],
    ) -> list[SegmentLabels]:
        """The judgements of texts.

        Args:
          logits: (judged segments, labels) of each input with a segment to judge.
        """
        computed = iter(logits)
        results = []
        for rm_input, spans in zip(inputs, spans_of_texts, strict=True):
            judged = [position is not None for position in rm_input.positions]
            probabilities_SC = torch.zeros(len(spans), len(self.labels))
            if any(judged):
                logits_of_labels = next(computed)[:, self.columns] / self.spec.temperature
                probabilities_SC[torch.tensor(judged)] = torch.softmax(logits_of_labels, -1)
            results.append(
                SegmentLabels(tuple(spans), probabilities_SC, self.labels, tuple(judged))
            )
        return results


class SequenceScorer(_Scorer):
    """Scores whole responses.

    Scores are raw; (score - mean) / std is on the scale of the training data.
    """

    kind = "sequence"

    @property
    def mean(self) -> float:
        assert self.spec.mean is not None  # `RewardModelSpec` checks it
        return self.spec.mean

    @property
    def std(self) -> float:
        assert self.spec.std is not None
        return self.spec.std

    def _read(self, prompt: Prompt, text: str) -> tuple[RMText, list[Span]]:
        return RMText.of(self._prefix(prompt), text, [(0, len(text))]), []

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Tensor:
        """scores_B, raw. An empty text is scored too."""
        if not texts:
            return torch.zeros(0)
        return torch.cat(self.logits(self.encode(prompts, texts)))

    def score_members(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Tensor:
        """scores_MB of each member, raw."""
        if self.members == 1 or not texts:
            return self.score(prompts, texts).expand(self.members, -1)
        return torch.stack(self.member_logits(self.encode(prompts, texts)), 1)


def inputs_of(model: nn.Module, tokenizer, spec: RewardModelSpec) -> RMInputs:
    """How a network reads texts, in training and in use."""
    is_scorer = isinstance(model, LanguageModelScorer)
    return RMInputs(
        tokenizer,
        spec.shape,
        spec.kind,
        spec.max_length,
        decoder_start(model),
        shared_width=model.shared_width if is_scorer else None,
        text_features=model.config.text_features if is_scorer else False,
        between="\n" if spec.level == "step" else " ",  # steps are lines
        line_breaks=spec.line_breaks,
    )


def decoder_start(model: nn.Module) -> int | None:
    """The token an encoder-decoder's decoder starts with; None for other networks."""
    if isinstance(model, LanguageModelScorer):
        config = model.config.trunk_config()
    else:
        config = getattr(model, "config", None)
    return getattr(config, "decoder_start_token_id", None)


def shape_of(model: nn.Module) -> Shape:
    """The shape of a loaded network."""
    if not isinstance(model, LanguageModelScorer):
        return "encoder"
    return "seq2seq" if model.is_encoder_decoder else "causal"
