"""Several demonstrations in a row: the same loss and gradients, fewer rows, less padding."""

import pytest
import tiny
import torch
from rounding import assert_equal_up_to_rounding
from test_run_sft import config, equal, interrupt_at, weights, world  # noqa: F401
from test_sft_loss import EXAMPLES as SHORT

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_jsonl
from fgrlhf.data.formats import Demonstration
from fgrlhf.text_types import Prompt
from fgrlhf.utils import IGNORED
from sft.data import Collator, encode, response_loss
from sft.packing import EXAMPLES, best_rows, check_packing, fill_rows, pack, packed_loss
from sft.run_sft import train

DEMONSTRATIONS = [
    *SHORT,
    Demonstration(Prompt("3", "a"), "dog"),
    Demonstration(Prompt("4", "the bird"), "sees a red cat"),
    Demonstration(Prompt("5", "one two"), "three"),
]


def batch_of(policy, left=True):
    rows = encode(policy, DEMONSTRATIONS, max_generated_len=20)
    return Collator(policy.tokenizer.pad_token_id, left)(rows)


def test_rows_are_filled_in_order_of_length():
    assert fill_rows([4, 10, 6, 3, 3], 2) == [[1, 3], [2, 0, 4]]
    assert fill_rows([4, 10, 6, 3, 3], 3) == [[1], [2, 4], [0, 3]]
    assert fill_rows([7], 1) == [[0]]


def test_the_cheapest_rows_are_chosen():
    """Wide models gain from less padding, narrow ones lose by attention to long rows."""
    # separate 30 (6 D + 5); two rows of 10: 20 (6 D + 10); one row of 16: 16 (6 D + 16)
    assert best_rows([10, 3, 3], 1000) == [[0, 1, 2]]
    # with 6 D = 7 these are 360, 340 and 368
    assert best_rows([10, 3, 3], 7 / 6) == [[0], [1, 2]]
    assert best_rows([10, 10, 10], 1000) is None
    assert best_rows([10], 1000) is None
    # rows that are too long for a dense mask
    assert best_rows([5000, 1, 5000], 10**6) == [[0, 1], [2]]


def test_a_packed_batch_by_hand():
    batch = {
        "input_ids": torch.tensor([[0, 0, 5, 6], [7, 8, 9, 10], [0, 0, 11, 12]]),
        "attention_mask": torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1], [0, 0, 1, 1]]),
        "labels": torch.tensor([[-100, -100, -100, 6], [-100, 8, 9, 10], [-100, -100, -100, 12]]),
    }
    packed = {name: tensor.tolist() for name, tensor in pack(batch, 0, 1).items()}
    assert packed == {
        "input_ids": [[7, 8, 9, 10], [5, 6, 11, 12]],
        "attention_mask": [[1, 1, 1, 1], [1, 1, 1, 1]],
        "labels": [[-100, 8, 9, 10], [-100, 6, -100, 12]],
        "position_ids": [[0, 1, 2, 3], [0, 1, 0, 1]],
        EXAMPLES: [[1, 1, 1, 1], [1, 1, 2, 2]],
    }


def test_a_batch_that_would_gain_nothing_stays_as_it_is():
    policy = tiny.policy("gpt2")
    batch = {name: tensor[:1] for name, tensor in batch_of(policy).items()}
    assert pack(batch, 0, policy.hidden_size) is batch


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen3", "neox"])
def test_loss_and_gradients_are_those_of_separate_rows(kind, left):
    policy = tiny.policy(kind).eval()
    response_loss(policy.model, policy, batch_of(policy)).backward()
    expected = response_loss(policy.model, policy, batch_of(policy)).detach()
    gradients = [p.grad.clone() for p in policy.parameters()]
    policy.zero_grad()
    batch = batch_of(policy, left)
    packed = pack(batch, policy.tokenizer.pad_token_id, policy.hidden_size)
    assert len(packed["labels"]) < len(batch["labels"])
    tokens = [int((x["labels"] != IGNORED).sum()) for x in (batch, packed)]
    assert tokens[0] == tokens[1]
    loss = packed_loss(policy.model, packed)
    loss.backward()
    torch.testing.assert_close(loss.detach(), expected, atol=1e-5, rtol=0)
    assert_equal_up_to_rounding([p.grad for p in policy.parameters()], gradients)


def test_an_example_does_not_see_the_one_before_it():
    policy = tiny.policy("llama").eval()
    packed = pack(batch_of(policy), 0, policy.hidden_size)
    (row,) = (packed[EXAMPLES].amax(1) > 1).nonzero()[:1, 0].tolist()
    first = packed[EXAMPLES][row] == 1
    labels = packed["labels"].clone()
    labels[:row] = IGNORED
    labels[row, first] = IGNORED  # the loss of the later examples of this row
    labels[row + 1 :] = IGNORED
    loss = packed_loss(policy.model, {**packed, "labels": labels})
    changed = packed["input_ids"].clone()
    changed[row, first] = 9
    again = packed_loss(policy.model, {**packed, "labels": labels, "input_ids": changed})
    assert torch.equal(loss, again)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_packed_run_is_the_run_without(world, kind):  # noqa: F811
    tiny.policy(kind).save(world / "base")
    options = ["train.max_steps=6", "train.lr=1e-3", "logging.log_interval=1"]
    lines = []
    for packing in ("false", "true"):
        folder = f"logging.save_dir={world}/{packing}"
        result = train(config(world, *options, f"train.packing={packing}", folder))
        lines.append(read_jsonl(result / "metrics.jsonl"))
    losses = [[line["loss"] for line in rows if "loss" in line] for rows in lines]
    assert len(losses[0]) == 6 and losses[1] == pytest.approx(losses[0], abs=1e-4)
    evaluated = [[line["eval/loss"] for line in rows if "eval/loss" in line] for rows in lines]
    assert evaluated[1] == pytest.approx(evaluated[0], abs=1e-4)
    steps = [line for line in lines[1] if "loss" in line]
    assert all(line["fill"] == pytest.approx(1 - line["padding"]) for line in steps)
    before = [line["padding"] for line in lines[0] if "loss" in line]
    assert [1 - line["fill_unpacked"] for line in steps] == pytest.approx(before)
    assert sum(line["fill"] - line["fill_unpacked"] for line in steps) > 0
    assert not any("fill" in line for line in lines[0])


def test_an_interrupted_packed_run_ends_as_an_uninterrupted_one(world, monkeypatch):  # noqa: F811
    tiny.policy("gpt2", dropout=0.1).save(world / "base")
    options = ["train.packing=true", "train.micro_batch_size=4", "logging.log_interval=3"]
    whole = train(config(world, *options))
    other = config(world, *options, f"logging.save_dir={world}/other")
    with monkeypatch.context() as patch:
        interrupt_at(patch, 5)
        with pytest.raises(KeyboardInterrupt):
            train(other)
    train(other)
    assert equal(weights(whole), weights(world / "other"))
    assert read_jsonl(whole / "metrics.jsonl") == read_jsonl(world / "other" / "metrics.jsonl")


def test_models_that_cannot_pack_are_refused(world):  # noqa: F811
    with pytest.raises(UserError, match="is an encoder-decoder.*train.packing=false"):
        train(config(world, "train.packing=true"))
    assert not (world / "sft" / "run.json").exists()
    for kind in ("mistral", "bloom"):
        with pytest.raises(UserError, match="would see each other.*train.packing=false"):
            check_packing(tiny.policy(kind))
    check_packing(tiny.policy("llama"))
