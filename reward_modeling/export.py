"""A sequence scorer as a classifier of transformers, which every other program reads.

    fgrlhf rm export outputs/preference_rm output_dir=outputs/preference_rm_exported

A sequence scorer of shape `causal` has the score

    s = w . h        with h the last hidden state at the last token of prompt and answer

which transformers' sequence classifiers of decoder-only models compute too: they look for the last
token that is not padding. The new folder has such a classifier and a README.md with the text that
it reads. It is loaded again before it appears: its scores of padded texts must be those of the
reward model.
"""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from pydantic import Field
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    AutoModelForSequenceClassification,
    PreTrainedModel,
)

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.files import write_text
from fgrlhf.cli.command_line import settings_from
from fgrlhf.configs.strict import FilePath, StrictModel
from fgrlhf.models.loading import load_weights
from fgrlhf.models.saving import forget_last_call, name_as_before
from fgrlhf.reward_models.loading import (
    CHANGE_OF_SCORE,
    SMALL_SCORE,
    load_sequence_scorer,
    load_tokenizer,
)
from fgrlhf.reward_models.networks import LanguageModelScorer
from fgrlhf.reward_models.prefix import text_prefix
from fgrlhf.reward_models.scoring import SequenceScorer
from fgrlhf.reward_models.spec import SPEC_FILE, RewardModelSpec
from fgrlhf.runs.checkpoint import new_folder
from fgrlhf.runs.stage import hold
from fgrlhf.text_types import Prompt

USAGE = "usage: fgrlhf rm export FOLDER output_dir=..."
OTHER_WAY = "`fgrlhf reward-serve` gives its rewards to other programs"
# Prompts and answers of unequal length, with which a new folder is checked.
SAMPLES = (
    ("a", "b"),
    ("a b", "c d e"),
    ("Name a prime.", "Seven is prime!"),
    ("How many days are in a week?", "There are 7 (seven), e.g. Monday; it's the 1st, isn't it?"),
)
SAMPLE_WITH_LINES = ("Name two colours.", "Two of them:\n\n1. red\n   - dark red\n2. blue")


class RMExportSettings(StrictModel):
    """Where the classifier is written."""

    output_dir: FilePath = Field(description="the new folder")


@dataclass(frozen=True)
class _Sample:
    """A text of the check, the tokens that the reward model reads of it, and its score."""

    text: str
    ids: list[int]
    score: float


def export_scorer(folder: str | Path, out: str | Path) -> Path:
    """Write the classifier of a reward model's folder.

    Raises:
      UserError: the folder is none that can be exported, with the reason, or `out` exists.
    """
    folder, out = Path(folder), Path(out)
    if os.path.lexists(out):
        raise UserError(
            f"{shorten(out)} exists: remove it, or name another folder with output_dir=..."
        )
    spec, samples = _read(folder)
    with hold(out.parent), new_folder(out) as temporary:
        network: Any = load_weights(LanguageModelScorer, folder, exact=True, dtype=torch.float32)
        tokenizer = _write(folder, network, temporary)
        del network
        begin = _check(folder, samples, temporary)
        write_text(temporary / "README.md", _card(folder, spec, tokenizer, begin))
    print(f"{out}: {folder} as a sequence classifier of transformers", flush=True)
    return out


def _read(folder: Path) -> tuple[RewardModelSpec, list[_Sample]]:
    """The reward model's spec, and what it computes of the samples."""
    if folder.is_dir() and not (folder / SPEC_FILE).exists():
        raise UserError(
            f"{shorten(folder)} has no {SPEC_FILE}, so it is not a reward model that `fgrlhf rm`"
            " trained: name the folder of one. Classifiers of other programs need no export"
        )
    if folder.is_dir():
        _refuse_spec(folder, RewardModelSpec.read(folder))
    scorer = load_sequence_scorer(str(folder), text_prefix)
    config: Any = scorer.model.config
    if config.lm_logprob_feature or config.text_features:
        feature = "lm_logprob_feature" if config.lm_logprob_feature else "text_features"
        raise UserError(
            f"{shorten(folder)} was trained with model.{feature}, which no classifier of"
            f" transformers reads: train it without the feature to export it; {OTHER_WAY}"
        )
    return scorer.spec, _samples(folder, scorer)


def _refuse_spec(folder: Path, spec: RewardModelSpec) -> None:
    """Raise `UserError` for a reward model that has no equal among transformers' classifiers."""
    reason = None
    if spec.shape == "encoder":
        reason = (
            "is an encoder, so it is a classifier of transformers already: other programs read it"
            " as it is"
        )
    elif spec.kind == "segment":
        reason = (
            "labels segments at their last tokens, and no classifier of transformers knows where"
            f" segments end: {OTHER_WAY}"
        )
    elif spec.shape == "seq2seq":
        reason = (
            "has the shape seq2seq, whose decoder reads the answer alone. The classifiers of"
            f" transformers give one text to both stacks: {OTHER_WAY}"
        )
    if reason is not None:
        raise UserError(f"{shorten(folder)} {reason}")


def _samples(folder: Path, scorer: SequenceScorer) -> list[_Sample]:
    """The texts of the check that the reward model reads whole."""
    pairs = [*SAMPLES, SAMPLE_WITH_LINES] if scorer.spec.line_breaks else list(SAMPLES)
    inputs = scorer.encode([Prompt("0", prompt) for prompt, _ in pairs], [a for _, a in pairs])
    scores = scorer.logits(inputs)
    samples = []
    for (prompt, answer), one, score in zip(pairs, inputs, scores, strict=True):
        if not (one.cut_context or one.cut_response or one.cut_core):
            samples.append(_Sample(f"{prompt} {answer}", list(one.input_ids), float(score)))
    if len(samples) < 2:
        raise UserError(
            f"{shorten(folder)} reads at most {scorer.spec.max_length} tokens, too few for the"
            " texts with which the exported folder is checked: train it with a larger"
            " model.max_input_len"
        )
    return samples


def _write(source: Path, network: LanguageModelScorer, folder: Path) -> Any:
    """Write classifier and tokenizer. The result is the tokenizer."""
    tokenizer: Any = load_tokenizer(source, "causal")
    tokenizer.padding_side = "right"  # elsewhere it moves the positions of some families
    tokenizer.chat_template = None  # the reward model was trained without it
    tokenizer.model_input_names = ["input_ids", "attention_mask"]  # GPT-2 would add token types
    _classifier(source, network, tokenizer.pad_token_id).save_pretrained(folder)
    forget_last_call(tokenizer)
    tokenizer.save_pretrained(folder)
    name_as_before(folder)
    return tokenizer


def _classifier(source: Path, network: LanguageModelScorer, pad_id: int) -> PreTrainedModel:
    """The sequence classifier of transformers with the reward model's trunk and head.

    Raises:
      UserError: transformers has none, or one with another head.
    """
    config = network.config.trunk_config()
    name = config.model_type
    if type(config) not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING:
        raise UserError(
            f"transformers {transformers.__version__} has no sequence classifier of the model type"
            f" {name}, so {shorten(source)} cannot be exported: {OTHER_WAY}"
        )
    config.num_labels = 1
    config.pad_token_id = pad_id
    config.problem_type = "regression"  # so that a pipeline gives the score itself, not its sigmoid
    with torch.device("meta"):  # its weights are replaced below
        model = AutoModelForSequenceClassification.from_config(config, trust_remote_code=False)
    # the score of several members is their mean
    weight_1D = nn.Parameter(network.head.weight.mean(0, keepdim=True))
    trunk = f"{model.base_model_prefix}."
    heads = []
    for path, module in model.named_modules():
        if isinstance(module, nn.Linear) and not path.startswith(trunk):
            heads.append(module)
    has_same_head = (
        type(model.base_model) is type(network.trunk)
        and len(heads) == 1
        and heads[0].bias is None
        and heads[0].weight.shape == weight_1D.shape
    )
    if not has_same_head:
        raise UserError(
            f"the head of {type(model).__name__} is not one linear layer without a bias on the last"
            f" states, as that of {shorten(source)} is, so it cannot be exported: {OTHER_WAY}"
        )
    setattr(model, model.base_model_prefix, network.trunk)
    heads[0].weight = weight_1D
    return model


@torch.no_grad()
def _check(source: Path, samples: Sequence[_Sample], folder: Path) -> list[str]:
    """Compare the new folder's tokens and scores with those of the reward model.

    Returns:
      The special tokens that the tokenizer puts before a text.

    Raises:
      UserError: they differ.
    """
    tokenizer: Any = load_tokenizer(folder, "causal")
    batch = tokenizer([sample.text for sample in samples], padding=True, return_tensors="pt")
    for sample, row, mask in zip(samples, batch["input_ids"], batch["attention_mask"], strict=True):
        ids = row[mask.bool()].tolist()
        if ids != sample.ids:
            read, given = (shorten(tokenizer.convert_ids_to_tokens(x)) for x in (sample.ids, ids))
            raise UserError(
                f"{shorten(source)} reads the tokens of prompt and answer apart. Its tokenizer"
                " gives others for both in one text, as other programs read them, so the scores"
                f" would differ: {shorten(repr(sample.text))} is {read}, and {given} in one text."
                f" {OTHER_WAY}"
            )
    model = load_weights(
        AutoModelForSequenceClassification, folder, exact=True, dtype=torch.float32
    ).eval()
    scores_B: Tensor = model(**batch).logits[:, 0]
    expected_B = torch.tensor([sample.score for sample in samples])
    difference = float((scores_B - expected_B).abs().max())
    if difference > CHANGE_OF_SCORE * max(float(expected_B.abs().max()), SMALL_SCORE):
        raise UserError(
            f"{type(model).__name__} of transformers gives other scores than {shorten(source)}, by"
            f" up to {difference:.3g}: it reads another position or another state, so it cannot be"
            f" exported: {OTHER_WAY}"
        )
    plain = tokenizer(samples[0].text, add_special_tokens=False)["input_ids"]
    return tokenizer.convert_ids_to_tokens(samples[0].ids[: len(samples[0].ids) - len(plain)])


def _card(source: Path, spec: RewardModelSpec, tokenizer: Any, begin: Sequence[str]) -> str:
    """The text of README.md.

    Args:
      begin: the special tokens before a text.
    """
    answer = "the words of the answer, joined by single spaces"
    if spec.line_breaks:
        answer = "the answer with its own line breaks and indentation, without white space around"
    turns = "" if spec.with_context else " In a dialog they are those of the last turn."
    pad = f"`{tokenizer.pad_token}` ({tokenizer.pad_token_id})"
    facts = [
        f"Text: the words before the answer, joined by single spaces; a space; {answer}. There is"
        " no chat template, and no end token.",
        "The words before the answer are those of training: of the prompt, or what the task's"
        f" `rm_prefix` makes of it (fgrlhf, docs/tasks.md).{turns}",
        f"Score: the only output, at the last token that is not padding, {pad}. Padding is on the"
        " right.",
        f"It is a raw score. On the training data its mean is {spec.mean:.6g} and its standard"
        f" deviation {spec.std:.6g}; only differences mean something.",
        f"It reads at most {spec.max_length} tokens. Longer texts lose their context (documents,"
        " earlier turns) first, then the end of the answer.",
    ]
    if begin:
        tokens = " ".join(f"`{token}`" for token in begin)
        facts.append(
            f"The tokenizer puts {tokens} before the text. Programs that call it with"
            " `add_special_tokens=False` leave it out: write it at the beginning of the text there."
        )
    prompt, reply = SAMPLES[2]
    return "\n".join(
        [
            "# Reward model as a sequence classifier",
            "",
            f"Made by `fgrlhf rm export` from `{source}`, whose scores it gives with transformers"
            f" {transformers.__version__}: compared on padded texts of unequal length.",
            "",
            *(f"- {fact}" for fact in facts),
            "",
            "```python",
            "from transformers import AutoModelForSequenceClassification, AutoTokenizer",
            "",
            'folder = "."  # of this file',
            "tokenizer = AutoTokenizer.from_pretrained(folder)",
            "model = AutoModelForSequenceClassification.from_pretrained(folder).eval()",
            f"texts = [{json.dumps(f'{prompt} {reply}')}]",
            'batch = tokenizer(texts, padding=True, return_tensors="pt")',
            "scores = model(**batch).logits[:, 0]",
            "```",
            "",
        ]
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Command line: the folder of a reward model, then `output_dir=...`."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments:
        print(USAGE)
        sys.exit(2)
    is_help = any(argument in ("-h", "--help") for argument in arguments)
    if not is_help and "=" in arguments[0] and not Path(arguments[0]).exists():
        raise UserError(f"the folder of the reward model is missing\n{USAGE}")
    settings = settings_from(RMExportSettings, arguments if is_help else arguments[1:], USAGE)
    export_scorer(arguments[0], settings.output_dir)
