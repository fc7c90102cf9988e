"""Rows of {text, answer} as batches: reading, encoding, order, padding."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Sampler

from fgrlhf.batching import shuffled_batches
from fgrlhf.policy import Policy
from fgrlhf.types import Prompt
from fgrlhf.utils import UserError, read_json

IGNORED = -100  # the label that transformers' losses leave out


def read_examples(path: str | Path, limit: int | None = None) -> list[Prompt]:
    """The rows {"text": str, "answer": [str, ...]} of a JSON file.

    Raises:
      UserError: no such file, or rows of another form: every one of them with its number and key.
    """
    if not Path(path).exists():
        raise UserError(
            f"{path} does not exist: set DATA_DIR to the folder of the data where the config uses it, "
            "or name the file with data.train_file=... or data.dev_file=..."
        )
    rows = read_json(path)
    if not isinstance(rows, list) or not rows:
        raise UserError(
            f"{path} must be a JSON list of rows with the keys `text` and `answer`, and not an empty one"
        )
    problems, examples = [], []
    for number, row in enumerate(rows[:limit]):
        text, answers = (row.get("text"), row.get("answer")) if isinstance(row, dict) else (None, None)
        if not isinstance(text, str) or not text.strip():
            problems.append(f"row {number}, `text`: must be a text that is not empty")
        if (
            not isinstance(answers, list)
            or not answers
            or not all(isinstance(answer, str) for answer in answers)
        ):
            problems.append(f"row {number}, `answer`: must be a list of one or more texts")
        elif not answers[0].strip():
            problems.append(f"row {number}, `answer`: its first text, which is trained on, is empty")
        else:
            examples.append(Prompt(str(number), text, tuple(answers)))
    if problems:
        more = f"\n  ... and {len(problems) - 20} more" if len(problems) > 20 else ""
        raise UserError(f"{path} cannot be trained on:\n  " + "\n  ".join(problems[:20]) + more)
    return examples


def encode(policy: Policy, examples: Sequence[Prompt], max_generated_len: int) -> list[dict[str, list[int]]]:
    """Token ids of prompt and first answer of every example: {"input_ids", "labels"}.

    An encoder-decoder reads the prompt and is trained on the answer. A decoder-only model reads both in one
    sequence and is trained on the answer's part of it. Every answer ends with the end-of-sequence token, that of a
    chat model with what ends its turn.
    """
    tokenizer, eos = policy.tokenizer, (policy.turn_end_ids or policy.eos_ids)[0]
    prompts = policy.tokenize([e.text for e in examples])["input_ids"]
    answers = tokenizer(text_target=[e.references[0] for e in examples], add_special_tokens=False)[
        "input_ids"
    ]
    answers = [ids[: max_generated_len - 1] + [eos] for ids in answers]
    if policy.model.config.is_encoder_decoder:
        return [{"input_ids": prompt, "labels": answer} for prompt, answer in zip(prompts, answers)]
    return [
        {"input_ids": prompt + answer, "labels": [IGNORED] * len(prompt) + answer}
        for prompt, answer in zip(prompts, answers)
    ]


class Collator:
    """Pads a batch on the right to its longest example."""

    def __init__(self, pad_id: int):
        self.pad_id = pad_id

    def __call__(self, rows: Sequence[dict[str, list[int]]]) -> dict[str, Tensor]:
        def padded(name: str, fill: int) -> Tensor:
            width = max(len(row[name]) for row in rows)
            return torch.tensor([row[name] + [fill] * (width - len(row[name])) for row in rows])

        mask = [{"mask": [1] * len(row["input_ids"])} for row in rows]
        width = max(len(row["mask"]) for row in mask)
        return {
            "input_ids": padded("input_ids", self.pad_id),
            "attention_mask": torch.tensor([row["mask"] + [0] * (width - len(row["mask"])) for row in mask]),
            "labels": padded("labels", IGNORED),
        }


class Order(Sampler):
    """Order of the examples in each pass over them (`shuffled_batches`): a pure function of (seed, epoch), so a
    resumed run goes on with it.
    """

    def __init__(
        self, n: int, batch_size: int, seed: int, epoch: Callable[[], int], lengths: Sequence | None = None
    ):
        self.n, self.batch_size, self.seed, self.epoch, self.lengths = n, batch_size, seed, epoch, lengths

    def __len__(self) -> int:
        return -(-self.n // self.batch_size) * self.batch_size

    def __iter__(self) -> Iterator[int]:
        batches = shuffled_batches(self.n, self.batch_size, self.seed, self.epoch(), self.lengths)
        return chain.from_iterable(batches)
