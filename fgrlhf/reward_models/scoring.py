"""Load a trained reward model, and score segments or whole responses with it.

    scorer = load_reward_model("outputs/segment_rm", prefix_fn)
    scorer.score(prompts, texts)

`reward_model.json` (`RewardModelSpec`) is saved with the model and has all that is needed to use
it: labels by name, segment level, segmenter, lengths, and a sequence scorer's mean and standard
deviation.

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

from collections.abc import Mapping, Sequence
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
    PreTrainedModel,
)

from fgrlhf.errors import UserError, first_problems, shorten
from fgrlhf.files import read_json, write_json
from fgrlhf.models import loading
from fgrlhf.reward_models.collate import batches_by_prompt
from fgrlhf.reward_models.inputs import RMInputs, longest_input
from fgrlhf.reward_models.networks import (
    LanguageModelScorer,
    LanguageModelScorerConfig,
    speed_up_network,
)
from fgrlhf.reward_models.prefix import Prefix, PrefixFn, RMText
from fgrlhf.reward_models.rm_input import Cuts, Kind, RMInput, Shape
from fgrlhf.reward_models.shapes import other_shape, reads_ahead, shape_of_config
from fgrlhf.reward_models.spec import is_finite_number, spec_problems, with_current_names
from fgrlhf.reward_utils import Span, load_segmenter
from fgrlhf.types import Prompt

SPEC_FILE = "reward_model.json"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
PUBLISHED_LENGTH = 2048  # tokens that the published reward models read
# facts that are missing from a published checkpoint
FACTS = ("level", "error_label", "with_context", "mean", "std")
_NOT_ERRORS = ("O", "Ignore")


@dataclass(frozen=True)
class RewardModelSpec:
    """Description of a reward model: `reward_model.json` in the model's folder.

    Attributes:
      kind: "segment" (a label per segment) or "sequence" (one score per response).
      shape: "encoder", "seq2seq" or "causal", see fgrlhf/reward_models/rm_input.py.
      level: of the segments that are judged; "sequence" for a sequence scorer.
      with_context: whether the prefix includes the prompt's context.
      max_length: most tokens that the network reads.
      labels: names of the network's outputs, in order (segment).
      error_label: the label of a segment with an error. None if the model distinguishes several
        kinds of error: then all labels except `ok_label` are errors.
      ok_label: the label of a segment without an error.
      segmenter: name and version of the pipeline that split the training responses.
      mean, std: of a sequence scorer's raw scores over its training data.
      metrics: on its dev data at the end of training.

    Raises:
      UserError: the labels are inconsistent, or mean and std are missing.
    """

    kind: Kind
    shape: Shape
    level: str
    with_context: bool
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
            self._check_labels()
        else:
            self._check_moments()

    def _check_labels(self) -> None:
        needed = [self.ok_label]
        if self.error_label is not None or len(self.labels) <= 2:
            needed.insert(0, self.error_label)
        absent = [str(name) for name in needed if name not in self.labels]
        if absent:
            raise UserError(
                f"the reward model has the labels {', '.join(self.labels)}, not"
                f" {', '.join(absent)}: give its error label with error_label=..."
            )
        if self.error_label == self.ok_label:
            raise UserError(
                "the error label and the label of segments without the error are both"
                f" `{self.ok_label}`: name the error with error_label=..."
            )

    def _check_moments(self) -> None:
        mean_is_number = is_finite_number(self.mean)
        std_is_positive = is_finite_number(self.std) and self.std is not None and self.std > 0
        if not (mean_is_number and std_is_positive):
            raise UserError(
                f"a sequence scorer needs the mean and std of its scores (here {self.mean} and"
                f" {self.std}): give a finite mean=... and a finite std=... above 0 with the"
                " checkpoint"
            )

    @property
    def judged_labels(self) -> tuple[str, ...]:
        """The labels that are compared: error labels, then `ok_label`; () for a sequence scorer."""
        if self.ok_label is None:
            return ()
        if self.error_label is not None:
            return (self.error_label, self.ok_label)
        errors = [name for name in self.labels if name not in (*_NOT_ERRORS, self.ok_label)]
        return (*errors, self.ok_label)

    def save(self, folder: str | Path) -> None:
        write_json(Path(folder) / SPEC_FILE, asdict(self))

    @classmethod
    def read(cls, folder: str | Path) -> "RewardModelSpec":
        """Read the file. Raises `UserError`, which lists every mistake, if it is not valid."""
        path = Path(folder) / SPEC_FILE
        row = with_current_names(read_json(path))
        problems = spec_problems(row)
        if problems:
            head = f"{path} does not describe a reward model:"
            lines = "\n  ".join([head, *first_problems(problems)])
            raise UserError(f"{lines}\nTrain the model again, or restore the file")
        return cls(**{**row, "labels": tuple(row.get("labels", ()))})


@dataclass(frozen=True)
class SegmentLabels:
    """The judgements of one response, in S segments.

    Attributes:
      spans: half-open character ranges of the segments.
      probabilities_SL: of each label; zeros for a segment that is not judged.
      labels: names of the columns: error labels, then the ok label.
      judged: False for a segment that could not be read, because its end was cut off or it has no
        token. It gets reward 0.
    """

    spans: tuple[Span, ...]
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
      prefix_fn: (prompt, with_context) -> the words before the response; a task's `rm_prefix`.
      batch_tokens: largest number of padded tokens of one forward pass. Inputs are sorted by length
        before they are batched.
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
                f"this is a {spec.kind} reward model, but a {self.kind} reward model is needed:"
                " check `ckpt`"
            )
        self.model = model.eval().requires_grad_(False)
        self.spec = spec
        self.prefix_fn = prefix_fn
        self.batch_tokens = batch_tokens
        self.inputs = inputs_of(model, tokenizer, spec)

    @property
    def seen(self) -> int:
        """Inputs encoded so far."""
        return self.inputs.cuts.inputs

    @property
    def cut_inputs(self) -> int:
        """Inputs whose prompt was cut to fit."""
        return self.inputs.cuts.prefixes

    @property
    def cut_responses(self) -> int:
        """Inputs whose response was cut to fit."""
        return self.inputs.cuts.responses

    def encode(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[RMInput]:
        """The network's input for each text: the same ids as in training."""
        return self.inputs.encode(
            [self._read(prompt, text)[0] for prompt, text in zip(prompts, texts, strict=True)]
        )

    def _prefix(self, prompt: Prompt) -> Prefix:
        return Prefix.of(self.prefix_fn(prompt, self.spec.with_context))

    def _read(self, prompt: Prompt, text: str) -> tuple[RMText, list[Span]]:
        """The words the network reads, and the character spans of the segments it judges."""
        raise NotImplementedError("abstract: a subclass turns a text into words")

    @torch.no_grad()
    def _forward(self, inputs: Sequence[RMInput]) -> list[Tensor]:
        """Each input's logits at its positions, in fp32 on the CPU.

        Shapes: (judged segments, labels) of a segment classifier, (1,) of a sequence scorer.
        """
        device = next(self.model.parameters()).device
        results: dict[int, Tensor] = {}
        for rows in batches_by_prompt(inputs, self.batch_tokens):
            batch = self.inputs.collate([inputs[i] for i in rows])
            on_device = {name: tensor.to(device) for name, tensor in batch.items()}
            logits = self.model(**on_device).logits.float().cpu()
            for i, output in zip(rows, logits):
                if self.kind == "segment":
                    output = output[inputs[i].judged_outputs]
                results[i] = output
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
        self.segmenter = load_segmenter(self.spec.segmenter or "auto")
        self.labels = self.spec.judged_labels
        self.columns = [self.spec.labels.index(name) for name in self.labels]

    def _read(self, prompt: Prompt, text: str) -> tuple[RMText, list[Span]]:
        spans = self.segmenter.segments(text, self.spec.level)
        segments = tuple(tuple(text[start:end].split()) for start, end in spans)
        return RMText(self._prefix(prompt), segments), spans

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[SegmentLabels]:
        """Judge each text's segments. A text without words has none.

        With z the logits at a segment's position and J the compared labels:

            p(l) = exp(z_l) / sum_{l' in J} exp(z_l')        for l in J

        Other outputs of a checkpoint, such as `Ignore`, are not used.
        """
        read = [self._read(prompt, text) for prompt, text in zip(prompts, texts, strict=True)]
        inputs = self.inputs.encode([rm_text for rm_text, _ in read])
        # inputs with at least one segment to judge
        readable = []
        for i, rm_input in enumerate(inputs):
            if any(position is not None for position in rm_input.positions):
                readable.append(i)
        logits = dict(zip(readable, self._forward([inputs[i] for i in readable])))
        results = []
        for i, (_, spans) in enumerate(read):
            judged = torch.tensor([p is not None for p in inputs[i].positions], dtype=torch.bool)
            probabilities_SL = torch.zeros(len(spans), len(self.labels))
            if i in logits:
                probabilities_SL[judged] = torch.softmax(logits[i][:, self.columns], -1)
            results.append(
                SegmentLabels(tuple(spans), probabilities_SL, self.labels, tuple(judged.tolist()))
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
        return RMText(self._prefix(prompt), (tuple(text.split()),)), []

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Tensor:
        """scores_B, raw. An empty text is scored too."""
        if not texts:
            return torch.zeros(0)
        return torch.cat(self._forward(self.encode(prompts, texts)))


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
    )


def decoder_start(model: nn.Module) -> int | None:
    """The token an encoder-decoder's decoder starts with; None for other networks."""
    if isinstance(model, LanguageModelScorer):
        config = model.config.trunk_config()
    else:
        config = getattr(model, "config", None)
    return getattr(config, "decoder_start_token_id", None)


def load_tokenizer(path: str | Path, shape: Shape):
    """A reward model's tokenizer.

    An encoder reads words, so its byte-level BPE puts a space before the first one.

    Raises:
      ValueError: the folder has no tokenizer, or one that cannot pad.
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
      facts: level, error_label, with_context, mean, std of a checkpoint without
        `reward_model.json`. If the folder has that file, a fact must equal its value.
      defaults: values for facts that are neither in the folder nor in `facts`. They never
        contradict the folder.
    Raises:
      UserError: there is no such checkpoint, it is not a reward model, labels are missing, or a
        fact is missing or contradicts the folder.
    """
    if path is None:
        raise UserError(
            "no reward model is given: set `ckpt` to the folder its training wrote, or a hub name"
        )
    unknown = (set(facts) | set(defaults or ())) - set(FACTS)
    if unknown:
        raise TypeError(f"not a fact about a reward model: {', '.join(sorted(unknown))}")
    has_spec = (Path(path) / SPEC_FILE).exists()
    if Path(path).is_dir() and not (Path(path) / "config.json").exists():
        raise UserError(
            f"{path} does not contain a finished reward model (no config.json): run its training"
            " script to the end"
        )
    try:
        config = loading.load_config(path)
        if has_spec:
            spec = RewardModelSpec.read(path)
            _refuse_other_facts(path, spec, facts)
        else:
            spec = published_spec(path, config, facts, defaults or {})
        _check_network(path, spec, config)
        network = loading.load_weights(
            _network_class(spec), path, exact=has_spec, dtype=torch.float32
        )
        _check_reading(path, spec, network)
        model: Any = speed_up_network(network)
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
    scorer_class = SegmentScorer if spec.kind == "segment" else SequenceScorer
    scorer = scorer_class(model.to(device=device, dtype=DTYPES[dtype]), tokenizer, spec, prefix_fn)
    _try_out(path, scorer)
    return scorer


def load_segment_classifier(path: str, prefix_fn: PrefixFn, **options: Any) -> SegmentScorer:
    """`load_reward_model` for a reward of segments.

    Raises:
      UserError: also if the model scores whole responses.
    """
    scorer = load_reward_model(path, prefix_fn, **options)
    if not isinstance(scorer, SegmentScorer):
        raise UserError(
            f"`{path}` gives the whole response one score, but this reward needs a label for every"
            " segment: name a model that `fgrlhf rm segment` trained, or use a reward of the kind"
            " sequence_scorer"
        )
    return scorer


def load_sequence_scorer(path: str, prefix_fn: PrefixFn, **options: Any) -> SequenceScorer:
    """`load_reward_model` for a reward of whole responses.

    Raises:
      UserError: also if the model labels segments.
    """
    scorer = load_reward_model(path, prefix_fn, **options)
    if not isinstance(scorer, SequenceScorer):
        raise UserError(
            f"`{path}` labels segments, but this reward needs one score for the whole response:"
            " name a model that `fgrlhf rm sequence` trained, or use a reward of the kind"
            " segment_classifier"
        )
    return scorer


def check_vocabulary(tokenizer, network: nn.Module) -> None:
    """Raise `ValueError` if the tokenizer has tokens without an embedding in the network."""
    trunk: Any = network.trunk if isinstance(network, LanguageModelScorer) else network
    embeddings = trunk.get_input_embeddings()
    rows = getattr(embeddings, "num_embeddings", None)  # not all embeddings are a single table
    largest = max(tokenizer.get_vocab().values(), default=0)
    if rows is not None and largest >= rows:
        raise ValueError(
            f"its tokenizer has tokens up to number {largest}, but the network has only {rows}"
            " embeddings: they belong to different models, or a token was added without"
            " `resize_token_embeddings`."
        )


def _try_out(path: str | Path, scorer: _Scorer) -> None:
    """Score a short text, since files that are valid individually may not work together.

    Raises:
      UserError: the model cannot read them.
    """
    text = RMText(Prefix(("a", "b")), (("a",),))
    try:
        scorer._forward(scorer.inputs.encode([text, text]))
    except Exception as error:  # the files can contain anything, so any exception is possible
        reason = shorten(f"{type(error).__name__}: {error}")
        raise UserError(
            f"the reward model {path} was loaded but cannot read a short text ({reason}). Restore"
            " its folder, or train it again"
        ) from None
    scorer.inputs.cuts = Cuts()


def _refuse_other_facts(path: str | Path, spec: RewardModelSpec, facts: Mapping[str, Any]) -> None:
    """Raise `UserError` for facts that contradict the folder, since they would have no effect."""
    problems = [
        f"{name}={shorten(value, 60)} was given, but its {SPEC_FILE} has"
        f" {name}={shorten(getattr(spec, name), 60)}"
        for name, value in facts.items()
        if value != getattr(spec, name)
    ]
    if problems:
        head = (
            f"the reward model {path} has its own values, so those of the config would be ignored:"
        )
        lines = "\n  ".join([head, *first_problems(problems)])
        raise UserError(f"{lines}\nLeave them out of the config")


def _check_network(path: str | Path, spec: RewardModelSpec, config: PretrainedConfig) -> None:
    """Raise `UserError` if the spec contradicts the config of the network in the same folder."""
    problems = []
    is_scorer = isinstance(config, LanguageModelScorerConfig)
    if is_scorer != (spec.shape != "encoder"):
        problems.append(f"shape is {spec.shape}, but the network is a {config.model_type}")
    if is_scorer and config.kind != spec.kind:
        problems.append(f"kind is {spec.kind}, but the network's is {shorten(config.kind, 60)}")
    if is_scorer and not isinstance(config.lm_logprob_feature, bool):
        problems.append("lm_logprob_feature of the network's config must be true or false")
    elif (
        is_scorer
        and spec.shape == "causal"
        and config.lm_logprob_feature
        and config.feature_layer is None
    ):
        problems.append(
            "its lm_logprob_feature is that of an earlier release, which read the prompt's"
            " log-probabilities too: train it again"
        )
    if spec.kind == "segment":
        problems += _label_problems(spec, config)
    _refuse_network(path, problems)


def _label_problems(spec: RewardModelSpec, config: PretrainedConfig) -> list[str]:
    if len(spec.labels) != config.num_labels:
        return [f"{len(spec.labels)} labels, but the network has {config.num_labels} outputs"]
    names = _output_names(config)
    unnamed = tuple(f"LABEL_{i}" for i in range(len(names)))
    if names in (spec.labels, unnamed):
        return []
    return [
        f"labels are {shorten(', '.join(spec.labels))}, the network's {shorten(', '.join(names))}"
    ]


def _output_names(config: PretrainedConfig) -> tuple[str, ...]:
    """The labels of a network's outputs, in order."""
    names: Any = config.id2label or {}
    return tuple(str(names.get(i)) for i in range(config.num_labels or 0))


def _check_reading(path: str | Path, spec: RewardModelSpec, network: PreTrainedModel) -> None:
    """Raise `UserError` if the loaded network has another shape, or reads less than the spec."""
    if isinstance(network, LanguageModelScorer):
        config = network.config.trunk_config()
    else:
        config = network.config
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
            "its config has no decoder_start_token_id, the token that a decoder starts with"
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


def _network_class(spec: RewardModelSpec):
    if spec.shape != "encoder":
        return LanguageModelScorer
    if spec.kind == "segment":
        return AutoModelForTokenClassification
    return AutoModelForSequenceClassification


def published_spec(
    path: str | Path,
    config: PretrainedConfig,
    given: Mapping[str, Any],
    defaults: Mapping[str, Any],
) -> RewardModelSpec:
    """The spec of a checkpoint without `reward_model.json`.

    The architecture determines its kind, the config its labels. The rest comes from the facts in
    `given`, then from `defaults`. The error label is the fact `error_label`, or else the only label
    that is neither `O` nor `Ignore`.

    Raises:
      UserError: the checkpoint is not a reward model, or facts are missing or would be ignored.
    """
    facts = {**defaults, **given}
    architecture = next(iter(config.architectures or ()), "none")
    common = {
        "shape": "encoder",
        "with_context": facts.get("with_context", True),
        "max_length": min(PUBLISHED_LENGTH, longest_input(config, "encoder") or PUBLISHED_LENGTH),
    }
    if architecture.endswith("ForSequenceClassification") and config.num_labels == 1:
        _refuse_unused_facts(path, given, "a score of the whole answer", {"error_label", "level"})
        return RewardModelSpec(
            "sequence", level="sequence", mean=facts.get("mean"), std=facts.get("std"), **common
        )
    if not architecture.endswith("ForTokenClassification"):
        raise UserError(
            f"`{path}` is not a reward model: its architecture is {architecture}. A reward model"
            " has a head for token classification, or for one score per sequence"
        )
    _refuse_unused_facts(path, given, "labels of segments", {"mean", "std"})
    if facts.get("level") is None:
        raise UserError(
            f"`{path}` does not specify which segments it judges: give level=subsentence or"
            " level=sentence with the checkpoint"
        )
    labels = _output_names(config)
    error = facts.get("error_label")
    if error is None:
        errors = [name for name in labels if name not in _NOT_ERRORS]
        if len(errors) != 1:
            raise UserError(
                f"`{path}` has the labels {', '.join(labels)}: name the one that marks an error"
                " with error_label=..."
            )
        error = errors[0]
    return RewardModelSpec(
        "segment", level=facts["level"], labels=labels, error_label=error, ok_label="O", **common
    )


def _refuse_unused_facts(
    path: str | Path, given: Mapping[str, Any], result: str, unused: set[str]
) -> None:
    """Raise `UserError` for a fact that a network with this result does not use."""
    names = sorted(
        name for name in unused & given.keys() if (name, given[name]) != ("level", "sequence")
    )
    if names:
        raise UserError(
            f"`{path}` gives {result}, so {', '.join(names)} would be ignored: leave it out of the"
            " config, or check `ckpt`"
        )
