"""Rows of {text, answer} as batches: reading, encoding, order, padding."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Sampler

from fgrlhf.data.checks import refuse_rows, text_problem
from fgrlhf.errors import UserError
from fgrlhf.files import read_json
from fgrlhf.policy import Policy, count_cut
from fgrlhf.runs.batching import shuffled_batches
from fgrlhf.types import Prompt

IGNORED = -100  # the label that transformers' losses leave out


def read_examples(path: str | Path, limit: int | None = None) -> list[Prompt]:
    """The rows {"text": str, "answer": [str, ...]} of a JSON file. The same row may be there more
    than once.

    Raises:
      UserError: no such file, or rows of another form: every one of them with its number and key.
    """
    if not Path(path).exists():
        raise UserError(
            f"{path} does not exist: set DATA_DIR to the folder of the data where the config uses"
            " it, or name the file with data.train_file=... or data.dev_file=..."
        )
    rows = read_json(path)
    if not isinstance(rows, list) or not rows:
        raise UserError(
            f"{path} must be a JSON list of rows with the keys `text` and `answer`, and not an"
            " empty one"
        )
    problems, examples = [], []
    for number, row in enumerate(rows[:limit]):
        problem = _problem(row)
        if problem is None:
            examples.append(Prompt(str(number), row["text"], tuple(row["answer"])))
        else:
            problems.append(f"row {number}, {problem}")
    refuse_rows(path, problems)
    return examples


def _problem(row) -> str | None:
    """What is wrong with a row, with its key; None where it can be trained on."""
    if not isinstance(row, dict):
        return "`text`, `answer`: a row must be an object with these keys"
    problem = text_problem(row.get("text"))
    if problem is not None:
        return f"`text`: {problem}"
    answers = row.get("answer")
    if not isinstance(answers, list) or not answers:
        return "`answer`: must be a list of one or more texts"
    for place, answer in enumerate(answers):
        problem = text_problem(answer)
        if problem is not None:
            return f"`answer[{place}]`: {problem}"
    return None


@dataclass(frozen=True)
class Cuts:
    """How many examples lost tokens because they are longer than the limits of `model`."""

    examples: int
    prompts: int
    answers: int

    def describe(self, max_input_len: int, max_generated_len: int) -> str:
        """A line for the user."""
        return (
            f"{self.prompts} of {self.examples} prompts are cut to"
            f" model.max_input_len={max_input_len}, {self.answers} answers to"
            f" model.max_generated_len={max_generated_len} tokens"
        )


def encode(
    policy: Policy, examples: Sequence[Prompt], max_generated_len: int
) -> list[dict[str, list[int]]]:
    """Token ids of prompt and first answer of every example: {"input_ids", "labels"}.

    An encoder-decoder reads the prompt and is trained on the answer. A decoder-only model reads
    both in one sequence and is trained on the answer's part of it. An answer ends with the token
    that ends a response (`Policy.end_id`), and has at most `max_generated_len` tokens with it. A
    longer one is cut and has no end: the policy shall not learn to stop where the limit happened to
    be.
    """
    prompts = policy.tokenize([e.text for e in examples])["input_ids"]
    answers = [ids[:max_generated_len] for ids in _answer_ids(policy, examples)]
    if policy.model.config.is_encoder_decoder:
        return [{"input_ids": prompt, "labels": answer} for prompt, answer in zip(prompts, answers)]
    return [
        {"input_ids": prompt + answer, "labels": [IGNORED] * len(prompt) + answer}
        for prompt, answer in zip(prompts, answers)
    ]


def count_cuts(policy: Policy, examples: Sequence[Prompt], max_generated_len: int) -> Cuts:
    """How many prompts and answers `encode` cuts."""
    answers = sum(len(ids) > max_generated_len for ids in _answer_ids(policy, examples))
    return Cuts(len(examples), count_cut(policy, examples), answers)


def _answer_ids(policy: Policy, examples: Sequence[Prompt]) -> list[list[int]]:
    """Whole answers, each with the token that ends it."""
    texts = [example.references[0] for example in examples]
    read = policy.tokenizer(text_target=texts, add_special_tokens=False, verbose=False)["input_ids"]
    return [[*ids, policy.end_id] for ids in read]


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
            "attention_mask": torch.tensor(
                [row["mask"] + [0] * (width - len(row["mask"])) for row in mask]
            ),
            "labels": padded("labels", IGNORED),
        }


class Order(Sampler):
    """Order of the examples in each pass over them (`shuffled_batches`): a pure function of (seed,
    epoch), so a resumed run goes on with it.
    """

    def __init__(
        self,
        n: int,
        batch_size: int,
        seed: int,
        epoch: Callable[[], int],
        lengths: Sequence | None = None,
    ):
        self.n, self.batch_size, self.seed, self.epoch, self.lengths = (
            n,
            batch_size,
            seed,
            epoch,
            lengths,
        )

    def __len__(self) -> int:
        return -(-self.n // self.batch_size) * self.batch_size

    def __iter__(self) -> Iterator[int]:
        batches = shuffled_batches(self.n, self.batch_size, self.seed, self.epoch(), self.lengths)
        return chain.from_iterable(batches)
