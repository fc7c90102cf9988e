"""Load a trained reward model, or a published checkpoint.

    scorer = load_reward_model("outputs/segment_rm", prefix_fn)
    scorer.score(prompts, texts)

`reward_model.json` (`RewardModelSpec`) is saved with the model and has all that is needed to use
it: labels by name, segment level, segmenter, lengths, and a sequence scorer's mean and standard
deviation. A published checkpoint has no such file, so some facts come from the caller. Files that
contradict each other are an error.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from tokenizers import normalizers
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PretrainedConfig,
    PreTrainedModel,
)

from fgrlhf.base.errors import UserError, first_problems, shorten
from fgrlhf.base.records import read
from fgrlhf.base.shared_messages import print_once
from fgrlhf.models import loading
from fgrlhf.models.model_files import models_inside, refuse_adapter, value_head_in
from fgrlhf.reward_models.conversation import (
    CONVERSATION_FORMS,
    ConversationReader,
    ConversationScorer,
)
from fgrlhf.reward_models.inputs import longest_input
from fgrlhf.reward_models.network_config import LanguageModelScorerConfig, shape_of_config
from fgrlhf.reward_models.networks import LanguageModelScorer, speed_up_network
from fgrlhf.reward_models.precision import place, with_exact_heads
from fgrlhf.reward_models.prefix import Prefix, PrefixFn, RMText
from fgrlhf.reward_models.rm_input import Cuts
from fgrlhf.reward_models.scoring import SegmentScorer, SequenceScorer, decoder_start, shape_of
from fgrlhf.reward_models.shapes import check_padding, other_shape, reads_ahead
from fgrlhf.reward_models.spec import (
    NOT_ERRORS,
    SPEC_FILE,
    RewardModelSpec,
    Shape,
    described_segmenter,
)
from fgrlhf.reward_models.taggers import Reading, TaggerScorer, load_tagger, reading_of
from fgrlhf.reward_utils import PUBLISHED
from fgrlhf.text_types import ConversationForm

PUBLISHED_LENGTH = 2048  # tokens that the published reward models read
CHANGE_OF_SCORE = 1e-3  # a smaller relative difference is rounding
SMALL_SCORE = 0.01  # smaller ones are differences of larger terms, which are rounded too
# facts that are missing from a published checkpoint
FACTS = ("level", "segmenter", "error_label", "with_context", "mean", "std")


def load_reward_model(
    path: str | Path | None,
    prefix_fn: PrefixFn,
    device: str = "cpu",
    dtype: str = "fp32",
    defaults: Mapping[str, Any] | None = None,
    reads: Reading | ConversationForm | None = None,
    **facts: Any,
) -> SegmentScorer | SequenceScorer:
    """Load a reward model's folder, or a published checkpoint by folder or hub name.

    Args:
      facts: level, segmenter, error_label, with_context, mean, std of a checkpoint without
        `reward_model.json`. If the folder has that file, a fact must equal its value.
      defaults: values for facts that are neither in the folder nor in `facts`. They never
        contradict the folder.
      reads: how a token classifier of another program was trained (taggers.py), or the text that
        such a decoder-only sequence classifier reads (conversation.py).

    Raises:
      UserError: there is no such checkpoint, it is not a reward model, labels are missing, or a
        fact is missing or contradicts the folder.
    """
    if path is None:
        raise UserError(
            "no reward model is given: set `ckpt` to the folder its training wrote, or a hub name"
        )
    _check_names({*facts, *(defaults or ())})
    has_spec = (Path(path) / SPEC_FILE).exists()
    _check_finished(path)
    try:
        config = loading.load_config(path)
        if has_spec:
            spec = RewardModelSpec.read(path)
            _refuse_other_facts(path, spec, facts | ({} if reads is None else {"reads": reads}))
        else:
            tagger = _tagger(path, config, prefix_fn, reads, {**(defaults or {}), **facts})
            if tagger is not None:
                place(with_exact_heads(tagger.model), device, dtype)
                return tagger
            spec = _published_spec(path, config, facts, defaults or {})
        _check_network(path, spec, config)
        kind = _network_class(spec)
        network = loading.load_weights(kind, path, exact=has_spec, dtype=torch.float32)
        if not has_spec:
            longest = min(spec.max_length, longest_input(network) or spec.max_length)
            spec = replace(spec, max_length=longest)
        _check_reading(path, spec, network)
        if isinstance(network, LanguageModelScorer):
            network.check_lm_logits()
        model: Any = speed_up_network(network)
        is_decoder = shape_of_config(config) == "causal"
        reads_conversations = is_decoder and spec.kind == "sequence" and not has_spec
        if reads_conversations:
            _refuse_unused_facts(path, facts, "a score of a conversation", {"with_context"})
        else:
            refuse_reading(path, reads)
        tokenizer = load_tokenizer(path, "causal" if reads_conversations else spec.shape)
        trunk = network.trunk if isinstance(network, LanguageModelScorer) else network
        loading.check_vocabulary(tokenizer, trunk)
        if spec.shape == "encoder":
            agree_on_padding(network, tokenizer)
        if spec.shape == "encoder" and spec.kind == "sequence":
            check_score(network, tokenizer)
    except (OSError, ValueError) as error:
        raise UserError(
            f"no reward model could be loaded from `{path}`: {error} {_way_out(path)}"
        ) from None
    placed = place(model, device, dtype)
    if reads_conversations:
        scorer = ConversationScorer(placed, tokenizer, spec, prefix_fn)
        form = cast("ConversationForm | None", reads)  # `_tagger` refuses the others
        scorer.reader = ConversationReader(shorten(path), tokenizer, spec.max_length, form)
    else:
        scorer_class = SegmentScorer if spec.kind == "segment" else SequenceScorer
        scorer = scorer_class(placed, tokenizer, spec, prefix_fn)
    _try_out(path, scorer)
    return scorer


def _check_names(facts: set[str]) -> None:
    unknown = facts - set(FACTS)
    if unknown:
        raise TypeError(f"not a fact about a reward model: {', '.join(sorted(unknown))}")


def _tagger(
    path: str | Path,
    config: PretrainedConfig,
    prefix_fn: PrefixFn,
    reads: Reading | ConversationForm | None,
    facts: Mapping[str, Any],
) -> TaggerScorer | None:
    """A token classifier that was trained without marks, or None if the folder is another model."""
    architecture = next(iter(config.architectures or ()), "none")
    is_of_conversations = reads in CONVERSATION_FORMS
    if not architecture.endswith("ForTokenClassification"):
        if reads is not None and not is_of_conversations:
            raise UserError(
                f"reads={reads} says how a token classifier reads, but `{path}` is a"
                f" {architecture}: leave it out"
            )
        return None
    refuse_reading(path, reads)
    if facts.get("level") is None:
        return None  # `_published_spec` explains it
    reading = reading_of(path, config, cast("Reading | None", reads), facts["level"])
    if reading == "marks":
        if reads is None:
            print_once(
                f"note: {shorten(path)} is read with a mark before every segment, where it judges"
                " the segment. If it was trained to label words or tokens, set reads: tokens"
            )
        return None
    _refuse_unused_facts(path, facts, "labels of tokens", {"mean", "std"})
    if reading == "steps":
        _refuse_unused_facts(path, facts, "labels of steps after the prompt", {"with_context"})
    return load_tagger(path, config, prefix_fn, reading, facts)


def _way_out(path: str | Path) -> str:
    if Path(path).is_dir():
        return "Train it again, or restore its folder."
    return "Train it first, or give a hub name while online."


def _check_finished(path: str | Path) -> None:
    """Raise `UserError` if a folder is an adapter, or has no model yet."""
    if not Path(path).is_dir():
        return
    refuse_adapter(Path(path))
    if not (Path(path) / "config.json").exists():
        inside = models_inside(Path(path))
        raise UserError(
            f"{path} does not contain a finished reward model (no config.json)"
            + (f". {inside}" if inside else ": run its training script to the end")
        )


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


def load_tokenizer(path: str | Path, shape: Shape):
    """A reward model's tokenizer.

    An encoder reads words one by one, so a byte-level BPE puts a space before each of them.

    Raises:
      ValueError: the folder has no tokenizer, one that cannot pad, or (for an encoder) one that
        joins words.
    """
    tokenizer = loading.load_tokenizer(path)
    if shape == "encoder":
        _keep_words_apart(tokenizer)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if tokenizer.pad_token_id is None:
        raise ValueError("its tokenizer has neither a padding token nor an end token.")
    return tokenizer


def agree_on_padding(network: PreTrainedModel, tokenizer) -> None:
    """Pad with the token that a decoder-only classifier takes for padding.

    It reads its score at the last token that is not the padding token of its config. The one of the
    tokenizer may be another, and then it would read the score of padding. Where the config has
    none, it gets that of the tokenizer.
    """
    config = network.config.get_text_config()
    if config.pad_token_id is None:
        config.pad_token_id = tokenizer.pad_token_id
    elif shape_of_config(network.config) == "causal" and config.pad_token_id < len(tokenizer):
        tokenizer.pad_token_id = config.pad_token_id


def _keep_words_apart(tokenizer) -> None:
    """Let a tokenizer that is given words read `a b` as a text with a space, not as `ab`.

    Raises:
      ValueError: it cannot be changed so.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:  # `RMInputs` refuses it
        return
    if isinstance(backend.pre_tokenizer, ByteLevel):
        backend.pre_tokenizer.add_prefix_space = True
    if not _joins_words(tokenizer):
        return
    # A regular expression splits the words before the byte level (EuroBERT, like Llama 3), which
    # would put a space before every part of a word.
    steps = [] if backend.normalizer is None else [backend.normalizer]
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Prepend(" ")])
    if _joins_words(tokenizer):
        raise ValueError(
            "its tokenizer joins separate words, which a reward model of shape encoder reads one by"
            " one: choose another checkpoint."
        )


def _joins_words(tokenizer) -> bool:
    """Whether it reads the words `a` and `a` as `aa`."""
    ids = tokenizer(["a", "a"], is_split_into_words=True, add_special_tokens=False)["input_ids"]
    return tokenizer.decode(ids) == "aa"


@torch.no_grad()
def check_score(network: PreTrainedModel, tokenizer) -> None:
    """Reject a sequence classifier whose score of a text changes if the text is padded.

    An example is XLNet, whose classifier reads the last column, which may be padding.

    Raises:
      UserError: padding changes the score, or a short text has none.
    """
    ids = _ids_of_short_text(network, tokenizer)

    def score(n_padding: int) -> torch.Tensor:
        row = ids + [tokenizer.pad_token_id] * n_padding
        mask = [1] * len(ids) + [0] * n_padding
        ids_1L = torch.tensor([row], device=network.device)
        mask_1L = torch.tensor([mask], device=network.device)
        return network(input_ids=ids_1L, attention_mask=mask_1L).logits.float()

    training = network.training
    network.eval()
    try:
        alone = score(0)
        padded = score(len(ids))
    except Exception as error:  # the code of a network's forward pass can raise anything
        reason = shorten(f"{type(error).__name__}: {error}", 200)
        tokens = shorten(tokenizer.convert_ids_to_tokens(ids))
        raise UserError(
            f"`{network.name_or_path}` ({type(network).__name__}) cannot score the text `a b c d`"
            f" ({reason}). Its tokenizer gives the tokens {tokens}: if the network needs others,"
            " such as an end token, correct the tokenizer of its folder; otherwise use another"
            " checkpoint"
        ) from None
    finally:
        network.train(training)
    if (padded - alone).abs().max() > CHANGE_OF_SCORE * alone.abs().max().clamp(min=SMALL_SCORE):
        raise UserError(
            f"padding changes the score that `{network.name_or_path}` ({type(network).__name__})"
            " gives a text, so scores would depend on the other texts of a batch: use a checkpoint"
            " of another family"
        )


def _ids_of_short_text(network: PreTrainedModel, tokenizer) -> list[int]:
    """Raises `UserError` if the tokenizer has no tokens for it, so that it is another model's."""
    reason = "gives no tokens for the text `a b c d`"
    ids = []
    try:
        ids = tokenizer("a b c d")["input_ids"]
    except Exception as error:  # of the tokenizers package, which has no class for it
        reason = f"cannot read the text `a b c d` ({shorten(error, 200)})"
    if not ids:
        raise UserError(
            f"the tokenizer of `{network.name_or_path}` {reason}: it belongs to another model. Copy"
            " the tokenizer of this model into its folder"
        )
    return ids


def _try_out(path: str | Path, scorer: SegmentScorer | SequenceScorer) -> None:
    """Score a short text, since files that are valid individually may not work together.

    Raises:
      UserError: the model cannot read them.
    """
    text = RMText(Prefix(("a", "b")), (("a",),))
    try:
        scorer.logits(scorer.inputs.encode([text, text]))
    except Exception as error:  # the files can contain anything, so any exception is possible
        reason = shorten(f"{type(error).__name__}: {error}")
        raise UserError(
            f"the reward model {path} was loaded but cannot read a short text ({reason}). Restore"
            " its folder, or train it again"
        ) from None
    scorer.inputs.cuts = Cuts()


def _refuse_other_facts(path: str | Path, spec: RewardModelSpec, facts: Mapping[str, Any]) -> None:
    """Raise `UserError` for facts that contradict the folder, since they would have no effect."""
    problems = []
    for name, value in facts.items():
        saved: Any = getattr(spec, name, None)
        if name == "segmenter":
            saved = (saved or {}).get("name", PUBLISHED)
        if value != saved:
            problems.append(
                f"{name}={shorten(value, 60)} was given, but its {SPEC_FILE} has"
                f" {name}={shorten(saved, 60)}"
            )
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
    trunk: Any = network.trunk if isinstance(network, LanguageModelScorer) else network
    config = trunk.config
    problems = []
    if spec.shape != "encoder" and shape_of(network) != spec.shape:
        problems.append(
            f"shape is {spec.shape}, but {other_shape(config, shape_of_config(config))}"
        )
    limit = longest_input(trunk)
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
    try:
        check_padding(trunk)
    except ValueError as error:
        raise UserError(f"the reward model `{path}` cannot be used: {error}") from None


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


def _published_spec(
    path: str | Path,
    config: PretrainedConfig,
    given: Mapping[str, Any],
    defaults: Mapping[str, Any],
) -> RewardModelSpec:
    """The spec of a checkpoint without `reward_model.json`; its network may read less.

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
        "max_length": PUBLISHED_LENGTH,
    }
    if architecture.endswith("ForSequenceClassification") and config.num_labels == 1:
        unused = {"error_label", "level", "segmenter"}
        _refuse_unused_facts(path, given, "a score of the whole answer", unused)
        moments = {name: facts.get(name) for name in ("mean", "std")}
        sequence = {"kind": "sequence", "level": "sequence", **moments}
        return read(RewardModelSpec, {**sequence, **common})
    if architecture.endswith("ForSequenceClassification"):
        labels = shorten(", ".join(_output_names(config)))
        raise UserError(
            f"`{path}` has {config.num_labels} scores for a text ({labels}), a reward model one:"
            " use it as a classifier, with one of its labels (kind: classifier, label: ...)"
        )
    if not architecture.endswith("ForTokenClassification"):
        way_out = (
            "A reward model has a head for token classification, or for one score per sequence"
        )
        if place := value_head_in(Path(path)):
            way_out = (
                f"Its scores are in {place}, of LLaMA-Factory or TRL: save the network as a"
                " sequence classifier with one label, whose score.weight is v_head.summary.weight"
            )
        raise UserError(
            f"`{path}` is not a reward model: its architecture is {architecture}. {way_out}"
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
        errors = [name for name in labels if name not in NOT_ERRORS]
        if len(errors) != 1:
            raise UserError(
                f"`{path}` has the labels {', '.join(labels)}: name the one that marks an error"
                " with error_label=..."
            )
        error = errors[0]
    return RewardModelSpec(
        "segment",
        level=facts["level"],
        labels=labels,
        error_label=error,
        ok_label="O",
        segmenter=described_segmenter(facts),
        **common,
    )


def refuse_reading(path: str | Path, reads: str | None) -> None:
    """Raise `UserError` for the form of a conversation, of a model that reads none."""
    if reads in CONVERSATION_FORMS:
        raise UserError(
            f"reads={reads} says how a decoder-only sequence classifier of another program reads,"
            f" but `{path}` is none: leave it out"
        )


def _refuse_unused_facts(
    path: str | Path, given: Mapping[str, Any], result: str, unused: set[str]
) -> None:
    """Raise `UserError` for a fact that a network with this result does not use."""
    names = []
    for name in sorted(unused & given.keys()):
        is_its_level = name == "level" and given[name] == "sequence"  # of a sequence scorer
        if not is_its_level:
            names.append(name)
    if names:
        raise UserError(
            f"`{path}` gives {result}, so {', '.join(names)} would be ignored: leave it out of the"
            " config, or check `ckpt`"
        )
