"""Reward models in use: load a trained one, score segments or whole answers.

    scorer = load_reward_model("outputs/qa_feedback/mini/fact_rm", prefix_fn)
    scorer.score(prompts, texts)

What use needs travels with the model in `reward_model.json` (`RewardModelSpec`): labels by name,
segment level, segmenter, lengths, and a sequence scorer's mean and standard deviation.

Bring your own model
--------------------
1. Any encoder that transformers can load: name it in the reward model's YAML (`model.ckpt`, shape
`encoder`). 2. Any encoder-decoder or decoder: shape `seq2seq` or `causal`.
3. A network of your own: give `SegmentScorer` or `SequenceScorer` an `nn.Module` whose forward
takes what
   `RMInputs.collate` makes and returns an object with `logits`: (B, T, labels) for segments, (B, 1)
   for sequences.
4. Anything else (a rule, a server): no reward model at all, but a class with
`segment_scores(prompts, texts)`
   as in fgrlhf/reward.py.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor, nn
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PretrainedConfig,
)

from fgrlhf.errors import UserError, first_problems, shorten
from fgrlhf.files import read_json, write_json
from fgrlhf.kernels.layers import fast_layers
from fgrlhf.kernels.longformer import use_banded_attention
from fgrlhf.models import loading
from fgrlhf.reward_models.inputs import Cuts, Kind, RMInput, RMInputs, RMText, Shape, longest_input
from fgrlhf.reward_models.networks import LanguageModelScorer, LanguageModelScorerConfig
from fgrlhf.reward_models.shapes import other_shape, reads_ahead, shape_of_config
from fgrlhf.reward_models.spec import is_finite_number, spec_problems
from fgrlhf.reward_utils import load_segmenter, rm_words
from fgrlhf.types import Prompt

PrefixFn = Callable[[Prompt, bool], list[str]]

SPEC_FILE = "reward_model.json"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
PUBLISHED_LENGTH = 2048  # what the published reward models were trained to read
FACTS = (
    "level",
    "error_label",
    "with_passages",
    "mean",
    "std",
)  # what a published checkpoint does not carry
_NOT_LABELS = ("O", "Ignore")


@dataclass(frozen=True)
class RewardModelSpec:
    """What a reward model is and what its use needs. Written as `reward_model.json` into the
    model's folder.

    kind: "segment" (labels per segment) or "sequence" (one score per answer).
    shape: "encoder", "seq2seq" or "causal", see fgrlhf/reward_models/inputs.py.
    labels: of the network's outputs in their order (segment); error_label, ok_label: the two that
      are
    compared. level, segmenter: how answers are cut. with_passages: whether the prefix holds them.
    mean, std: of a sequence scorer's raw scores over its training data.
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
            if self.error_label == self.ok_label:
                raise UserError(
                    "the error label and the label of segments without the error are both"
                    f" `{self.ok_label}`: name the error with error_label=..."
                )
        elif not is_finite_number(self.mean) or not is_finite_number(self.std) or not self.std > 0:
            raise UserError(
                f"a sequence scorer needs the mean and std of its scores (here {self.mean} and"
                f" {self.std}): give a finite mean=... and a finite std=... above 0 with the"
                " checkpoint"
            )

    def save(self, folder: str | Path) -> None:
        write_json(Path(folder) / SPEC_FILE, asdict(self))

    @classmethod
    def read(cls, folder: str | Path) -> "RewardModelSpec":
        """Raises `UserError` with every mistake of the file, or where it is missing or broken."""
        path = Path(folder) / SPEC_FILE
        row = read_json(path)
        problems = spec_problems(row)
        if problems:
            lines = "\n  ".join(
                [f"{path} does not describe a reward model:", *first_problems(problems)]
            )
            raise UserError(f"{lines}\nTrain the model again, or restore the file")
        return cls(**{**row, "labels": tuple(row.get("labels", ()))})


@dataclass(frozen=True)
class SegmentLabels:
    """One answer's judgements. `labels` name the columns: the error label, then the ok label.

    A segment with `judged[s]` False could not be read (its end was cut off, or it holds no token);
    its probabilities are zeros and it deserves neither reward nor punishment.
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
      batch_tokens: padded tokens of one forward pass at most. Texts are sorted by length before
        they are
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
                f"a {spec.kind} reward model was given where a {self.kind} one is needed: check"
                " `ckpt`"
            )
        self.model, self.spec, self.prefix_fn, self.batch_tokens = (
            model.eval().requires_grad_(False),
            spec,
            prefix_fn,
            batch_tokens,
        )
        self.inputs = RMInputs(
            tokenizer, spec.shape, spec.kind, spec.max_length, decoder_start(model)
        )

    @property
    def seen(self) -> int:
        """Inputs encoded so far."""
        return self.inputs.cuts.inputs

    @property
    def cut_inputs(self) -> int:
        """Those whose passages, or even question, were cut to fit."""
        return self.inputs.cuts.prefixes

    @property
    def cut_responses(self) -> int:
        """Those whose response was cut."""
        return self.inputs.cuts.responses

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
        """Each input's logits where it is read, (judged segments, labels) or (1,), in fp32 on the
        CPU.
        """
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
        """Indices of inputs of like length, at most `batch_tokens` padded tokens together (or one
        input).
        """
        batches: list[list[int]] = []
        for i in sorted(range(len(inputs)), key=lambda i: -inputs[i].length):
            if (
                batches
                and (len(batches[-1]) + 1) * inputs[batches[-1][0]].length <= self.batch_tokens
            ):
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
        self.columns = [
            self.spec.labels.index(name) for name in (self.spec.error_label, self.spec.ok_label)
        ]

    def _words(self, prompt, text):
        spans = self.segmenter.segments(text, self.spec.level)
        words, marks = rm_words(self.prefix_fn(prompt, self.spec.with_passages), text, spans)
        return split_at(words, marks), spans

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[SegmentLabels]:
        """Judge each text's segments. A text without words has none.

        With logits z at a segment's position, p = softmax(z[error], z[ok]): further labels a
        checkpoint may have (`Ignore`) take no part.
        """
        words = [self._words(prompt, text) for prompt, text in zip(prompts, texts, strict=True)]
        inputs = self.inputs.encode([rm_text for rm_text, _ in words])
        labels = (self.spec.error_label, self.spec.ok_label)
        scores: list[SegmentLabels] = [SegmentLabels((), torch.zeros(0, 2), labels, ())] * len(
            texts
        )
        readable = [
            i for i, read in enumerate(inputs) if any(p is not None for p in read.positions)
        ]
        logits = dict(zip(readable, self._forward([inputs[i] for i in readable])))
        for i, (read, (_, spans)) in enumerate(zip(inputs, words)):
            judged = torch.tensor([p is not None for p in read.positions], dtype=torch.bool)
            probabilities_SL = torch.zeros(len(spans), 2)
            if i in logits:
                probabilities_SL[judged] = torch.softmax(logits[i][:, self.columns], -1)
            scores[i] = SegmentLabels(
                tuple(spans), probabilities_SL, labels, tuple(judged.tolist())
            )
        return scores


class SequenceScorer(_Scorer):
    """Scores whole answers. Raw scores: (score - mean) / std is on the scale of the training
    data.
    """

    kind = "sequence"

    @property
    def mean(self) -> float:
        return self.spec.mean

    @property
    def std(self) -> float:
        return self.spec.std

    def _words(self, prompt, text):
        return (
            RMText(tuple(self.prefix_fn(prompt, self.spec.with_passages)), (tuple(text.split()),)),
            [],
        )

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Tensor:
        """scores_B, raw. An empty text is scored too."""
        if not texts:
            return torch.zeros(0)
        return torch.cat(self._forward(self.encode(prompts, texts)))


def split_at(words: Sequence[str], marks: Sequence[int]) -> RMText:
    """Words in which `marks` are the indices of the `</s>` before each segment."""
    bounds = [*marks, len(words)]
    segments = tuple(
        tuple(words[mark + 1 : following]) for mark, following in zip(bounds, bounds[1:])
    )
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
    """A reward model's tokenizer. For an encoder, which reads words, byte-level BPE puts a space
    before.

    Raises `ValueError` where the folder holds none, or none that can pad.
    """
    tokenizer = loading.load_tokenizer(path)
    splitter = getattr(getattr(tokenizer, "backend_tokenizer", None), "pre_tokenizer", None)
    if shape == "encoder" and isinstance(splitter, ByteLevel):
        splitter.add_prefix_space = True
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if tokenizer.pad_token_id is None:
        raise ValueError("its tokenizer has neither a padding token nor an end token.")
    return tokenizer


def shape_of(model: nn.Module) -> Shape:
    """The shape of a loaded network."""
    if not isinstance(model, LanguageModelScorer):
        return "encoder"
    return "seq2seq" if model.is_encoder_decoder else "causal"


def load_reward_model(
    path: str | Path | None,
    prefix_fn: PrefixFn,
    device: str = "cpu",
    dtype: str = "fp32",
    defaults: Mapping[str, Any] | None = None,
    **facts: Any,
) -> SegmentScorer | SequenceScorer:
    """Load a reward model's folder, or a published checkpoint by folder or hub name.

    Args:
      facts: level, error_label, with_passages, mean, std of a checkpoint that has no
        `reward_model.json`. Where the folder carries its own, a fact must equal it.
      defaults: the same, for what neither the folder nor `facts` say. They never contradict the
        folder.
    Raises:
      UserError: nothing there, not a reward model, labels not found, a fact missing, or one that
        contradicts the folder.
    """
    if path is None:
        raise UserError(
            "no reward model is named: set `ckpt` to the folder its training wrote, or a hub name"
        )
    unknown = (set(facts) | set(defaults or ())) - set(FACTS)
    if unknown:
        raise TypeError(f"not a fact about a reward model: {', '.join(sorted(unknown))}")
    carried = (Path(path) / SPEC_FILE).exists()
    if Path(path).is_dir() and not (Path(path) / "config.json").exists():
        raise UserError(
            f"{path} holds no finished reward model (no config.json): run its training script to"
            " the end"
        )
    try:
        config = loading.load_config(path)
        if carried:
            spec = RewardModelSpec.read(path)
            _refuse_other_facts(path, spec, facts)
        else:
            spec = published_spec(path, config, facts, defaults or {})
        _check_network(path, spec, config)
        network = loading.load_weights(_network(spec), path, exact=carried, dtype=torch.float32)
        _check_reading(path, spec, network)
        model = fast_layers(use_banded_attention(network))
        tokenizer = load_tokenizer(path, spec.shape)
        check_vocabulary(tokenizer, network)
    except (OSError, ValueError) as error:
        way_out = "Train it first, or give a hub name while online."
        if Path(path).is_dir():
            way_out = "Train it again, or restore its folder."
        raise UserError(
            f"no reward model could be loaded from `{path}`: {error} {way_out}"
        ) from None
    if spec.shape == "encoder" and config.pad_token_id is None:
        # a decoder-only classifier looks for its last token before the padding
        model.config.pad_token_id = tokenizer.pad_token_id
    cls = SegmentScorer if spec.kind == "segment" else SequenceScorer
    scorer = cls(model.to(device=device, dtype=DTYPES[dtype]), tokenizer, spec, prefix_fn)
    _try_out(path, scorer)
    return scorer


def check_vocabulary(tokenizer, network: nn.Module) -> None:
    """Raise `ValueError` where the tokenizer has tokens that the network has no embedding for."""
    embeddings = network.trunk if isinstance(network, LanguageModelScorer) else network
    rows = getattr(
        embeddings.get_input_embeddings(), "num_embeddings", None
    )  # not all embeddings are one table
    largest = max(tokenizer.get_vocab().values(), default=0)
    if rows is not None and largest >= rows:
        raise ValueError(
            f"its tokenizer has tokens up to number {largest}, but the network has embeddings of"
            f" {rows} only: they are not of one model, or a token was added without"
            " `resize_token_embeddings`."
        )


def _try_out(path: str | Path, scorer: _Scorer) -> None:
    """Read a few words. Raises `UserError` where the folder's files, each sound alone, do not work
    together.
    """
    text = RMText(("question:", "a"), (("a",),))
    try:
        scorer._forward(scorer.inputs.encode([text, text]))
    except Exception as error:  # the files can hold anything, so the exception can be anything
        reason = shorten(f"{type(error).__name__}: {error}")
        raise UserError(
            f"the reward model {path} was loaded but cannot read a short text ({reason}). Restore"
            " its folder, or train it again"
        ) from None
    scorer.inputs.cuts = Cuts()


def _refuse_other_facts(path: str | Path, spec: RewardModelSpec, facts: Mapping[str, Any]) -> None:
    """Raise `UserError` where a fact contradicts what the folder carries: it would have no
    effect.
    """
    problems = [
        f"{name}={shorten(value, 60)} was given, but its {SPEC_FILE} has"
        f" {name}={shorten(getattr(spec, name), 60)}"
        for name, value in facts.items()
        if value != getattr(spec, name)
    ]
    if problems:
        head = (
            f"the reward model {path} has facts of its own, so those of the config would be"
            " ignored:"
        )
        lines = "\n  ".join([head, *first_problems(problems)])
        raise UserError(f"{lines}\nLeave them out of the config")


def _check_network(path: str | Path, spec: RewardModelSpec, config: PretrainedConfig) -> None:
    """Raise `UserError` where the spec is not of the network beside it, by that network's
    config.
    """
    is_scorer = isinstance(config, LanguageModelScorerConfig)
    problems = []
    if is_scorer != (spec.shape != "encoder"):
        problems.append(f"shape is {spec.shape}, but the network is a {config.model_type}")
    if is_scorer and config.kind != spec.kind:
        problems.append(f"kind is {spec.kind}, but the network's is {shorten(config.kind, 60)}")
    if is_scorer and not isinstance(config.lm_logprob_feature, bool):
        problems.append("lm_logprob_feature of the network's config must be true or false")
    if spec.kind == "segment":
        names = tuple(config.id2label.get(i) for i in range(config.num_labels))
        unnamed = tuple(f"LABEL_{i}" for i in range(config.num_labels))
        if len(spec.labels) != config.num_labels:
            problems.append(
                f"{len(spec.labels)} labels, but the network has {config.num_labels} outputs"
            )
        elif names not in (spec.labels, unnamed):
            problems.append(
                f"labels are {shorten(', '.join(spec.labels))}, the network's"
                f" {shorten(', '.join(map(str, names)))}"
            )
    _refuse_network(path, problems)


def _check_reading(path: str | Path, spec: RewardModelSpec, network: nn.Module) -> None:
    """Raise `UserError` where the loaded network does not read as the spec's shape does, or not as
    much.
    """
    config = (
        network.config.trunk_config()
        if isinstance(network, LanguageModelScorer)
        else network.config
    )
    problems = []
    if spec.shape != "encoder" and shape_of(network) != spec.shape:
        problems.append(
            f"shape is {spec.shape}, but {other_shape(config, shape_of_config(config))}"
        )
    limit = longest_input(config, spec.shape)
    if limit is not None and spec.max_length > limit:
        problems.append(
            f"max_length is {spec.max_length}, but the network reads at most {limit} tokens"
        )
    if shape_of(network) == "seq2seq" and decoder_start(network) is None:
        problems.append(
            "its config names no decoder_start_token_id, the token that a decoder starts with"
        )
    _refuse_network(path, problems)
    if spec.shape == "encoder" and spec.kind == "segment" and not reads_ahead(network):
        raise UserError(
            f"`{path}` reads from left to right ({config.model_type}), so as an encoder it judges"
            " every segment at its mark, before it has read the segment. Train it with"
            " model.shape=causal"
        )


def _refuse_network(path: str | Path, problems: Sequence[str]) -> None:
    if problems:
        head = f"{path} is not the network that its {SPEC_FILE} describes:"
        raise UserError("\n  ".join([head, *first_problems(problems)]))


def _network(spec: RewardModelSpec):
    if spec.shape != "encoder":
        return LanguageModelScorer
    return (
        AutoModelForTokenClassification
        if spec.kind == "segment"
        else AutoModelForSequenceClassification
    )


def published_spec(
    path: str | Path,
    config: PretrainedConfig,
    given: Mapping[str, Any],
    defaults: Mapping[str, Any],
) -> RewardModelSpec:
    """The spec of a checkpoint that carries none: kind from its architecture, labels by name, the
    rest from the facts `given`, then from `defaults`.

    The error label is the fact `error_label`, or else the only label that is neither `O` nor
    `Ignore`.
    """
    facts = {**defaults, **given}
    architecture = next(iter(config.architectures or ()), "none")
    length = min(PUBLISHED_LENGTH, longest_input(config, "encoder") or PUBLISHED_LENGTH)
    common = {
        "shape": "encoder",
        "with_passages": facts.get("with_passages", True),
        "max_length": length,
    }
    if architecture.endswith("ForSequenceClassification") and config.num_labels == 1:
        _refuse_unread(path, given, "a score of the whole answer", {"error_label", "level"})
        return RewardModelSpec(
            "sequence", level="sequence", mean=facts.get("mean"), std=facts.get("std"), **common
        )
    if not architecture.endswith("ForTokenClassification"):
        raise UserError(
            f"`{path}` is no reward model: its architecture is {architecture}. A reward model has a"
            " head for token classification, or for one score per sequence"
        )
    _refuse_unread(path, given, "labels of segments", {"mean", "std"})
    labels = tuple(config.id2label[i] for i in range(config.num_labels))
    errors = [name for name in labels if name not in _NOT_LABELS]
    error = facts.get("error_label") or (errors[0] if len(errors) == 1 else None)
    if facts.get("level") is None:
        raise UserError(
            f"`{path}` does not say which segments it judges: give level=subsentence or"
            " level=sentence with the checkpoint"
        )
    return RewardModelSpec(
        "segment", level=facts["level"], labels=labels, error_label=error, ok_label="O", **common
    )


def _refuse_unread(path: str | Path, given: Mapping[str, Any], what: str, unread: set[str]) -> None:
    """Raise `UserError` for a fact that a network of this kind has no use for."""
    names = sorted(
        name for name in unread & given.keys() if (name, given[name]) != ("level", "sequence")
    )
    if names:
        raise UserError(
            f"`{path}` gives {what}, so {', '.join(names)} would be ignored: leave it out of the"
            " config, or check `ckpt`"
        )
