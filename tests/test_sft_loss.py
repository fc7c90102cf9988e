"""The loss of SFT. That of decoder-only models is computed at the response's tokens only."""

from types import SimpleNamespace

import pytest
import tiny
import torch
from rounding import assert_equal_up_to_rounding

from fgrlhf.data.formats import Demonstration
from fgrlhf.text_types import Prompt
from fgrlhf.utils import IGNORED
from sft.data import Collator, encode, keeps_logits, response_loss

DECODERS = ["gpt2", "llama", "qwen3", "neox", "mistral", "gemma2"]
EXAMPLES = [
    Demonstration(Prompt("0", "the red cat"), "sees a dog"),
    Demonstration(Prompt("1", "a dog sees the bird and one two three"), "the"),
    Demonstration(Prompt("2", "question: a"), "bird likes the blue cat and the green bird ."),
]


def padded(policy, left: bool, max_generated_len: int = 20):
    rows = encode(policy, EXAMPLES, max_generated_len)
    return Collator(policy.tokenizer.pad_token_id, left)(rows)


@pytest.mark.parametrize("kind", DECODERS)
def test_loss_and_gradient_equal_those_of_transformers(kind):
    policy = tiny.policy(kind).eval()
    assert keeps_logits(policy.model)
    loss = response_loss(policy.model, policy, padded(policy, left=True))
    loss.backward()
    gradients = [p.grad.clone() for p in policy.parameters()]
    policy.zero_grad()
    # one example at a time, because transformers counts padding in a GPT-2's positions
    total = 0.0
    tokens = 0
    for row in encode(policy, EXAMPLES, max_generated_len=20):
        batch = Collator(policy.tokenizer.pad_token_id)([row])
        count = int((batch["labels"] != IGNORED).sum())
        part = policy.model(**batch).loss * count
        part.backward()
        total += float(part.detach())
        tokens += count
    assert float(loss.detach()) == pytest.approx(total / tokens, rel=1e-5)
    assert_equal_up_to_rounding(gradients, [p.grad / tokens for p in policy.parameters()])


def test_logits_are_computed_for_the_longest_response_only():
    policy = tiny.policy("llama").eval()
    batch = padded(policy, left=True)
    columns = []

    def model(**inputs):
        logits = policy.model(**inputs).logits
        columns.append(logits.shape[1])
        return SimpleNamespace(logits=logits)

    response_loss(model, policy, batch)
    longest = int((batch["labels"] != IGNORED).sum(1).max())
    assert columns == [longest + 1]
    assert longest + 1 < batch["input_ids"].shape[1]


@pytest.mark.parametrize("kind", ["t5", "flan", "bart", "marian", "m2m100", "mbart"])
def test_an_encoder_decoder_is_trained_on_what_it_generates(kind):
    """The loss of mBART itself would start the decoder with the last token of a cut response."""
    policy = (tiny.translator("mbart") if kind == "mbart" else tiny.policy(kind)).eval()
    batch = padded(policy, left=False, max_generated_len=4)
    loss = policy.model(**batch).loss
    mask_BT = (batch["labels"] != IGNORED).long()
    output, _ = policy(
        batch["input_ids"], batch["attention_mask"], batch["labels"].clamp(min=0), mask_BT
    )
    expected = -output.logprobs_BT.sum() / mask_BT.sum()
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=0)
