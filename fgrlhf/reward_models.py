"""Reward models in use: load a trained one, score segments or whole answers.

    scorer = load_reward_model("outputs/mini/fact_rm", prefix_fn)
    scorer.score(prompts, texts)

What use needs travels with the model in `reward_model.json` (`RewardModelSpec`): labels by name, segment
level, segmenter, lengths, and a sequence scorer's mean and standard deviation.

Bring your own model
--------------------
1. Any encoder that transformers can load: name it in the reward model's YAML (`model.ckpt`, shape `encoder`).
2. Any encoder-decoder or decoder: shape `seq2seq` or `causal`.
3. A network of your own: give `SegmentScorer` or `SequenceScorer` an `nn.Module` whose forward takes what
   `RMInputs.collate` makes and returns an object with `logits`: (B, T, labels) for segments, (B, 1) for
   sequences.
4. Anything else (a rule, a server): no reward model at all, but a class with `segment_scores(prompts, texts)`
   as in fgrlhf/reward.py.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    PretrainedConfig,
)

from fgrlhf.banded_attention import use_banded_attention
from fgrlhf.layers import fast_layers
from fgrlhf.reward_utils import load_segmenter, rm_words
from fgrlhf.rm_inputs import Kind, RMInput, RMInputs, RMText, Shape, longest_input
from fgrlhf.scorers import LanguageModelScorer
from fgrlhf.types import Prompt
from fgrlhf.utils import UserError, why_not_loaded, read_json, write_json

PrefixFn = Callable[[Prompt, bool], list[str]]

SPEC_FILE = "reward_model.json"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
PUBLISHED_LENGTH = 2048  # what the published reward models were trained to read
_NOT_LABELS = ("O", "Ignore")


@dataclass(frozen=True)
class RewardModelSpec:
    """What a reward model is and what its use needs. Written as `reward_model.json` into the model's folder.

    kind: "segment" (labels per segment) or "sequence" (one score per answer).
    shape: "encoder", "seq2seq" or "causal", see fgrlhf/rm_inputs.py.
    labels: of the network's outputs in their order (segment); error_label, ok_label: the two that are
    compared. level, segmenter: how answers are cut. with_passages: whether the prefix holds them. mean, std:
    of a sequence scorer's raw scores over its training data.
    metrics: on its dev data when training ended.
    """

    kind: Kind
    shape: Shape
    level: str
    with_passages: bool
    max_length: int
    labels: tuple[str, ...] = ()
    error_label: str | None = None
    ok_label: str | None = None
    segmenter: Mapping[str, str] | None = None
    mean: float | None = None
    std: float | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        if self.kind == "segment":
            absent = [name for name in (self.error_label, self.ok_label) if name not in self.labels]
            if absent:
                raise UserError(
                    f"the reward model has the labels {', '.join(self.labels)}, not "
                    f"{', '.join(map(str, absent))}: name its own with error_label=..."
                )
        elif self.mean is None or self.std is None or not self.std > 0:
            raise UserError(
                f"a sequence scorer needs the mean and std of its scores (here {self.mean} and {self.std}): "
                "give mean=... and std=... with the checkpoint"
            )

    def save(self, folder: str | Path) -> None:
        write_json(Path(folder) / SPEC_FILE, asdict(self))

    @classmethod
    def read(cls, folder: str | Path) -> "RewardModelSpec":
        """Raises `UserError` where the file is missing, broken, or of another form."""
        path = Path(folder) / SPEC_FILE
        row = read_json(path)
        known = {item.name for item in fields(cls)}
        if (
            not isinstance(row, dict)
            or not {"kind", "shape", "level", "with_passages", "max_length"} <= row.keys() <= known
        ):
            raise UserError(
                f"{path} does not describe a reward model: its keys must be among "
                f"{', '.join(sorted(known))}. Train the model again, or restore the file"
            )
        return cls(**{**row, "labels": tuple(row.get("labels", ()))})


@dataclass(frozen=True)
class SegmentLabels:
    """One answer's judgements. `labels` name the columns: the error label, then the ok label.

    A segment with `judged[s]` False could not be read (its end was cut off, or it holds no token); its
    probabilities are zeros and it deserves neither reward nor punishment.
    """

    spans: tuple[tuple[int, int], ...]
    probabilities_SL: Tensor
    labels: tuple[str, ...]
    judged: tuple[bool, ...]

    def __post_init__(self):
        S = len(self.spans)
        if tuple(self.probabilities_SL.shape) != (S, len(self.labels)) or len(self.judged) != S:
            raise ValueError(
                f"{S} spans, but probabilities of shape {tuple(self.probabilities_SL.shape)} and "
                f"{len(self.judged)} marks"
            )


class _Scorer:
    """A network in evaluation mode with its tokenizer and spec.

    Args:
      prefix_fn: (prompt, with_passages) -> the words before the answer; the task's own.
      batch_tokens: padded tokens of one forward pass at most. Texts are sorted by length before they are
      batched.
    """

    kind: Kind

    def __init__(
        self,
        model: nn.Module,
        tokenizer,
        spec: RewardModelSpec,
        prefix_fn: PrefixFn,
        batch_tokens: int = 8_192,
    ):
        if spec.kind != self.kind:
            raise UserError(
                f"a {spec.kind} reward model was given where a {self.kind} one is needed: check `ckpt`"
            )
        self.model, self.spec, self.prefix_fn, self.batch_tokens = (
            model.eval().requires_grad_(False),
            spec,
            prefix_fn,
            batch_tokens,
        )
        self.inputs = RMInputs(tokenizer, spec.shape, spec.kind, spec.max_length, decoder_start(model))

    def encode(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[RMInput]:
        """What the network reads for each text: the same ids as in training."""
        return self.inputs.encode(
            [self._words(prompt, text)[0] for prompt, text in zip(prompts, texts, strict=True)]
        )

    def _words(self, prompt: Prompt, text: str) -> tuple[RMText, list[tuple[int, int]]]:
        """The words the network reads, and the character spans of the segments it judges."""
        raise NotImplementedError("abstract: a scorer says how a text becomes words")

    @torch.no_grad()
    def _forward(self, inputs: Sequence[RMInput]) -> list[Tensor]:
        """Each input's logits where it is read, (judged segments, labels) or (1,), in fp32 on the CPU."""
        device = next(self.model.parameters()).device
        results: list[Tensor | None] = [None] * len(inputs)
        for rows in self._batches(inputs):
            batch = {
                name: tensor.to(device)
                for name, tensor in self.inputs.collate([inputs[i] for i in rows]).items()
            }
            logits = self.model(**batch).logits.float().cpu()
            for i, output in zip(rows, logits):
                results[i] = (
                    output[[p for p in inputs[i].positions if p is not None]]
                    if self.kind == "segment"
                    else output
                )
        return results

    def _batches(self, inputs: Sequence[RMInput]) -> list[list[int]]:
        """Indices of inputs of like length, at most `batch_tokens` padded tokens together (or one input)."""
        batches: list[list[int]] = []
        for i in sorted(range(len(inputs)), key=lambda i: -inputs[i].length):
            if batches and (len(batches[-1]) + 1) * inputs[batches[-1][0]].length <= self.batch_tokens:
                batches[-1].append(i)
            else:
                batches.append([i])
        return batches


class SegmentScorer(_Scorer):
    """Judges every segment of a text: probabilities of the error label and the ok label."""

    kind = "segment"

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.segmenter = load_segmenter(self.spec.segmenter or "auto")
        self.columns = [self.spec.labels.index(name) for name in (self.spec.error_label, self.spec.ok_label)]

    def _words(self, prompt, text):
        spans = self.segmenter.segments(text, self.spec.level)
        words, marks = rm_words(self.prefix_fn(prompt, self.spec.with_passages), text, spans)
        return split_at(words, marks), spans

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[SegmentLabels]:
        """Judge each text's segments. A text without words has none.

        With logits z at a segment's position, p = softmax(z[error], z[ok]): further labels a checkpoint may
        have (`Ignore`) take no part.
        """
        words = [self._words(prompt, text) for prompt, text in zip(prompts, texts, strict=True)]
        inputs = self.inputs.encode([rm_text for rm_text, _ in words])
        labels = (self.spec.error_label, self.spec.ok_label)
        scores: list[SegmentLabels] = [SegmentLabels((), torch.zeros(0, 2), labels, ())] * len(texts)
        readable = [i for i, read in enumerate(inputs) if any(p is not None for p in read.positions)]
        logits = dict(zip(readable, self._forward([inputs[i] for i in readable])))
        for i, (read, (_, spans)) in enumerate(zip(inputs, words)):
            judged = torch.tensor([p is not None for p in read.positions], dtype=torch.bool)
            probabilities_SL = torch.zeros(len(spans), 2)
            if i in logits:
                probabilities_SL[judged] = torch.softmax(logits[i][:, self.columns], -1)
            scores[i] = SegmentLabels(tuple(spans), probabilities_SL, labels, tuple(judged.tolist()))
        return scores


class SequenceScorer(_Scorer):
    """Scores whole answers. Raw scores: (score - mean) / std is on the scale of the training data."""

    kind = "sequence"

    @property
    def mean(self) -> float:
        return self.spec.mean

    @property
    def std(self) -> float:
        return self.spec.std

    def _words(self, prompt, text):
        return RMText(tuple(self.prefix_fn(prompt, self.spec.with_passages)), (tuple(text.split()),)), []

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Tensor:
        """scores_B, raw. An empty text is scored too."""
        if not texts:
            return torch.zeros(0)
        return torch.cat(self._forward(self.encode(prompts, texts)))


def split_at(words: Sequence[str], marks: Sequence[int]) -> RMText:
    """Words in which `marks` are the indices of the `</s>` before each segment."""
    bounds = [*marks, len(words)]
    segments = tuple(tuple(words[mark + 1 : following]) for mark, following in zip(bounds, bounds[1:]))
    return RMText(tuple(words[: bounds[0]]), segments)


def decoder_start(model: nn.Module) -> int | None:
    """The token an encoder-decoder's decoder starts with; None for other networks."""
    config = (
        model.config.trunk_config()
        if isinstance(model, LanguageModelScorer)
        else getattr(model, "config", None)
    )
    return getattr(config, "decoder_start_token_id", None)


def load_tokenizer(path: str | Path, shape: Shape):
    """A reward model's tokenizer. For an encoder, which reads words, byte-level BPE puts a space before."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    splitter = getattr(getattr(tokenizer, "backend_tokenizer", None), "pre_tokenizer", None)
    if shape == "encoder" and isinstance(splitter, ByteLevel):
        splitter.add_prefix_space = True
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_reward_model(
    path: str | Path | None, prefix_fn: PrefixFn, device: str = "cpu", dtype: str = "fp32", **facts: Any
) -> SegmentScorer | SequenceScorer:
    """Load a reward model's folder, or a published checkpoint by folder or hub name.

    Args:
      facts: level, error_label, with_passages, mean, std of a checkpoint that has no `reward_model.json`.
        What the folder carries itself is never overruled.
    Raises:
      UserError: nothing there, not a reward model, labels not found, or a fact missing.
    """
    if path is None:
        raise UserError(
            "no reward model is named: set `ckpt` to the folder its training wrote, or a hub name"
        )
    carried = (Path(path) / SPEC_FILE).exists()
    if Path(path).is_dir() and not (Path(path) / "config.json").exists():
        raise UserError(
            f"{path} holds no finished reward model (no config.json): run its training script to the end"
        )
    try:
        config = (
            None
            if carried and RewardModelSpec.read(path).shape != "encoder"
            else AutoConfig.from_pretrained(path)
        )
        spec = RewardModelSpec.read(path) if carried else published_spec(path, config, facts)
        model = fast_layers(use_banded_attention(_network(spec).from_pretrained(path)))
        tokenizer = load_tokenizer(path, spec.shape)
    except (OSError, ValueError) as error:
        reason = why_not_loaded(path, error)
        raise UserError(
            f"no reward model could be loaded from `{path}`: {reason} Train it first, or give a hub name "
            "while online."
        ) from None
    scorer = SegmentScorer if spec.kind == "segment" else SequenceScorer
    return scorer(model.to(device=device, dtype=DTYPES[dtype]), tokenizer, spec, prefix_fn)


def _network(spec: RewardModelSpec):
    if spec.shape != "encoder":
        return LanguageModelScorer
    return AutoModelForTokenClassification if spec.kind == "segment" else AutoModelForSequenceClassification


def published_spec(path: str | Path, config: PretrainedConfig, facts: Mapping[str, Any]) -> RewardModelSpec:
    """The spec of a checkpoint that carries none: kind from its architecture, labels by name, the rest from
    `facts`.

    The error label is `facts["error_label"]`, or else the only label that is neither `O` nor `Ignore`.
    """
    unknown = set(facts) - {"level", "error_label", "with_passages", "mean", "std"}
    if unknown:
        raise TypeError(f"not a fact about a reward model: {', '.join(sorted(unknown))}")
    architecture = next(iter(config.architectures or ()), "none")
    length = min(PUBLISHED_LENGTH, longest_input(config, "encoder") or PUBLISHED_LENGTH)
    common = {"shape": "encoder", "with_passages": facts.get("with_passages", True), "max_length": length}
    if architecture.endswith("ForSequenceClassification") and config.num_labels == 1:
        return RewardModelSpec(
            "sequence", level="sequence", mean=facts.get("mean"), std=facts.get("std"), **common
        )
    if not architecture.endswith("ForTokenClassification"):
        raise UserError(
            f"`{path}` is no reward model: its architecture is {architecture}. A reward model has a head "
            "for token classification, or for one score per sequence"
        )
    labels = tuple(config.id2label[i] for i in range(config.num_labels))
    errors = [name for name in labels if name not in _NOT_LABELS]
    error = facts.get("error_label") or (errors[0] if len(errors) == 1 else None)
    if facts.get("level") is None:
        raise UserError(
            f"`{path}` does not say which segments it judges: give level=subsentence or level=sentence with "
            "the checkpoint"
        )
    return RewardModelSpec(
        "segment", level=facts["level"], labels=labels, error_label=error, ok_label="O", **common
    )
