"""Demonstrations as batches: encoding, order, padding."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from fgrlhf.base.errors import UserError
from fgrlhf.data.formats import Demonstration
from fgrlhf.data.stream import parts_of
from fgrlhf.models.dialogs import dialog_text
from fgrlhf.models.loading import max_positions
from fgrlhf.models.shared_rows import position_arguments
from fgrlhf.policy import EncoderDecoderPolicy, Policy, count_cut
from fgrlhf.text_types import ASSISTANT, USER, Prompt
from fgrlhf.utils import IGNORED

Row = dict[str, list[int]]  # an encoded example


@dataclass(frozen=True)
class Unseen:
    """What the model does not see of its training examples.

    Attributes:
      examples: number of training examples.
      prompts, answers: numbers of those that exceeded the limits of `model` and were cut.
      unknown_share: of the answers' tokens, those that the tokenizer does not know.
    """

    examples: int
    prompts: int
    answers: int
    unknown_share: float = 0.0

    def describe(self, max_input_len: int, max_generated_len: int) -> str:
        """A line for the user."""
        line = (
            f"{self.prompts} of {self.examples} prompts are cut to"
            f" model.max_input_len={max_input_len}, {self.answers} answers to"
            f" model.max_generated_len={max_generated_len} tokens"
        )
        if self.unknown_share == 0:
            return line
        return (
            f"{line}. {self.unknown_share:.2%} of the answers' tokens are unknown to the tokenizer:"
            " the model cannot learn these words"
        )


def every_turn(demonstration: Demonstration) -> list[Demonstration]:
    """An example for every turn of the assistant in a dialog, the last one included.

    Its prompt is the dialog up to that turn. Blank turns and those that are not to be imitated are
    left out, and so is a greeting, to which no user's message leads.
    """
    prompt = demonstration.prompt
    examples = []
    for place, (role, text) in enumerate(prompt.messages):
        before = prompt.messages[:place]
        is_answer = any(earlier == USER for earlier, _ in before)
        is_wanted = bool(text.strip()) and place not in demonstration.untrained
        if role == ASSISTANT and is_wanted and is_answer:
            turn = Prompt(f"{prompt.id}/{place}", dialog_text(before), (text,), messages=before)
            examples.append(Demonstration(turn, text))
    return [*examples, demonstration]


def encode(policy: Policy, examples: Sequence[Demonstration], max_generated_len: int) -> list[Row]:
    """Token ids of prompt and response of every example, for the model's forward pass.

    An encoder-decoder reads the prompt and is trained on the response. Its decoder reads
    `decoder_start_ids` first, as in generation; a prefix among them has no labels. It is spelled
    out in "decoder_input_ids", because some models of transformers derive another start from the
    labels (mBART: the last token). A decoder-only model reads both in one sequence and is trained
    on the part of the response. A response ends with `Policy.end_id`, which counts towards
    `max_generated_len`. A longer one is cut and has no end token: the policy must not learn to stop
    at the limit.
    """
    prompts = policy.tokenize([example.prompt for example in examples])["input_ids"]
    answers = [ids[:max_generated_len] for ids in _response_ids(policy, examples)]
    if isinstance(policy, EncoderDecoderPolicy):
        return [_for_decoder(policy, prompt, answer) for prompt, answer in zip(prompts, answers)]
    return [
        {"input_ids": prompt + answer, "labels": [IGNORED] * len(prompt) + answer}
        for prompt, answer in zip(prompts, answers)
    ]


def _for_decoder(policy: EncoderDecoderPolicy, prompt: list[int], answer: list[int]) -> Row:
    """An example of an encoder-decoder. The decoder's prefix, if it has one, has no labels."""
    return {
        "input_ids": prompt,
        "decoder_input_ids": [*policy.decoder_start_ids, *answer[:-1]],
        "labels": [IGNORED] * len(policy.decoder_prefix_ids) + answer,
    }


def check_lengths(policy: Policy, rows: Sequence[Row]) -> None:
    """Raise `UserError` if an encoded example has more tokens than the model has positions."""
    config = policy.model.config
    parts = {"input_ids": ("prompt and response", max_positions(config, "decoder"))}
    if isinstance(policy, EncoderDecoderPolicy):
        parts = {
            "input_ids": ("prompt", max_positions(config, "encoder")),
            "decoder_input_ids": ("response", max_positions(config, "decoder")),
        }
    lengths = dict.fromkeys(parts, 0)
    for row in rows:
        for column in parts:
            lengths[column] = max(lengths[column], len(row[column]))
    for column, (name, limit) in parts.items():
        longest = lengths[column]
        if limit is not None and longest > limit:
            raise UserError(
                f"an example has {longest} tokens of {name}, but {type(policy.model).__name__} has"
                f" {limit} positions for them: lower model.max_input_len or"
                " model.max_generated_len, which cut longer examples"
            )


def count_unseen(
    policy: Policy, examples: Sequence[Demonstration], max_generated_len: int
) -> Unseen:
    """Count the prompts and responses that `encode` cuts, and the unknown tokens of responses."""
    cut = prompts = unknown = tokens = 0
    unknown_id = policy.tokenizer.unk_token_id
    # tokenizers of bytes know every text, and name their end token here
    has_unknown = unknown_id not in (None, policy.end_id, policy.tokenizer.eos_token_id)
    for part in parts_of(examples):
        answers = _response_ids(policy, part)
        cut += sum(len(ids) > max_generated_len for ids in answers)
        prompts += count_cut(policy, [example.prompt for example in part])
        tokens += sum(map(len, answers))
        if has_unknown:
            unknown += sum(ids.count(unknown_id) for ids in answers)
    return Unseen(len(examples), prompts, cut, unknown / tokens if tokens else 0.0)


def _response_ids(policy: Policy, examples: Sequence[Demonstration]) -> list[list[int]]:
    """The ids of whole responses, each with its end token."""
    prompts = [example.prompt for example in examples]
    texts = [example.response for example in examples]
    return [answer.ids for answer in policy.tokenize_responses(prompts, texts)]


class Collator:
    """Pads a batch to its longest example.

    Args:
      left: pad on the left, so that the responses of a decoder-only model end in the same column.
    """

    def __init__(self, pad_id: int, left: bool = False):
        self.pad_id = pad_id
        self.left = left

    def __call__(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        inputs = [row["input_ids"] for row in rows]
        batch = {
            "input_ids": self._padded(inputs, self.pad_id),
            "attention_mask": self._padded([[1] * len(ids) for ids in inputs], 0),
            "labels": self._padded([row["labels"] for row in rows], IGNORED),
        }
        if "decoder_input_ids" in rows[0]:
            read = [row["decoder_input_ids"] for row in rows]
            batch["decoder_input_ids"] = self._padded(read, self.pad_id)
        return batch

    def _padded(self, rows: Sequence[list[int]], fill: int) -> Tensor:
        width = max(len(row) for row in rows)
        padded = []
        for row in rows:
            padding = [fill] * (width - len(row))
            padded.append(padding + row if self.left else row + padding)
        return torch.tensor(padded)


def response_loss(model: Any, policy: Policy, inputs: dict[str, Tensor]) -> Tensor:
    """The mean negative log-probability of the response tokens under a decoder-only model.

    The output layer is computed for the last columns only, in which the responses are.

    Args:
      model: the policy's language model, wrapped or not.
      inputs: a batch of `Collator` with padding on the left.
    """
    labels_BL = inputs["labels"]
    mask_BL = inputs["attention_mask"]
    kept = int((labels_BL != IGNORED).sum(1).max()) + 1  # the column before a token predicts it
    logits_BNV = model(
        input_ids=inputs["input_ids"],
        attention_mask=mask_BL,
        **position_arguments(policy.model, (mask_BL.cumsum(1) - 1).clamp(min=0)),
        logits_to_keep=kept,
        use_cache=False,
    ).logits
    assert logits_BNV.shape[1] <= kept, "the model computes logits for its whole input"
    targets_BN = labels_BL[:, 1 - logits_BNV.shape[1] :]
    return nn.functional.cross_entropy(
        logits_BNV[:, :-1].flatten(0, 1).float(), targets_BN.flatten(), ignore_index=IGNORED
    )


def keeps_logits(model: PreTrainedModel) -> bool:
    """Whether the model can compute the logits of the last columns only."""
    return "logits_to_keep" in inspect.signature(type(model).forward).parameters
