"""Several responses in one row give the results of one response per row."""

import pytest
import tiny
import torch
from rounding import assert_equal_up_to_rounding

from fgrlhf.models import encoder_decoder
from fgrlhf.models.packing import pack_responses

MASK_BT = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 0, 0], [1, 1, 0]])
GROUP_B = torch.tensor([0, 0, 0, 1])


def test_one_row_per_prompt_holds_its_responses_without_padding():
    packing = pack_responses(MASK_BT, GROUP_B)
    assert (packing.rows, packing.width, packing.rows_per_prompt) == (2, 6, 1)
    ids_BT = torch.tensor([[11, 12, 0], [21, 22, 23], [31, 0, 0], [41, 42, 0]])
    packed_RN = packing.pack(ids_BT)
    assert packed_RN.tolist() == [[21, 22, 23, 11, 12, 31], [41, 42, 0, 0, 0, 0]]
    unpacked_BT1 = packing.unpack(packed_RN[..., None].float())
    assert unpacked_BT1[..., 0].tolist() == ids_BT.tolist()


def test_a_token_sees_its_own_response_up_to_itself():
    sees_NN = pack_responses(MASK_BT, GROUP_B).mask()[0, 0].int()
    lower = [torch.ones(n, n).tril() for n in (3, 2, 1)]
    assert torch.equal(sees_NN, torch.block_diag(*lower).int())


def test_a_long_row_is_split_into_equally_many_rows_for_every_prompt():
    packing = pack_responses(MASK_BT, GROUP_B, row_length=3)
    assert (packing.rows, packing.width, packing.rows_per_prompt) == (4, 3, 2)
    row_and_column = [divmod(place, 3) for place in packing.place_BT[:, 0].tolist()]
    assert row_and_column == [(1, 0), (0, 0), (1, 2), (2, 0)]


@pytest.mark.parametrize("row_length", [1, 8, 512])
@pytest.mark.parametrize("group", [[0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 1, 2], [0, 1, 2, 3, 4, 5]])
def test_packed_responses_have_the_results_of_transformers(row_length, group, monkeypatch):
    def packed_with_row_length(mask_BT, group_B):
        return pack_responses(mask_BT, group_B, row_length)

    monkeypatch.setattr(encoder_decoder, "pack_responses", packed_with_row_length)
    policy = tiny.policy("t5").eval()
    generator = torch.Generator().manual_seed(0)
    prompt_ids = torch.randint(5, 25, (6, 9), generator=generator)[group]
    prompt_lengths = torch.tensor([9, 7, 8, 4, 9, 5])[group]
    prompt_mask = (torch.arange(9) < prompt_lengths[:, None]).long()
    ids = torch.randint(5, 25, (6, 7), generator=generator)
    mask = (torch.arange(7) < torch.tensor([7, 3, 1, 5, 7, 2])[:, None]).long()

    output, _ = policy(prompt_ids, prompt_mask, ids, mask)
    labels = ids.masked_fill(mask == 0, -100)
    logits = policy.model(input_ids=prompt_ids, attention_mask=prompt_mask, labels=labels).logits
    expected = logits.log_softmax(-1).gather(-1, ids[..., None])[..., 0] * mask
    torch.testing.assert_close(output.logprobs_BT, expected, atol=1e-5, rtol=1e-5)

    weights = torch.linspace(-1, 1, 42).view(6, 7)
    parameters = list(policy.model.parameters())
    packed_gradients, expected_gradients = (
        torch.autograd.grad((logprobs * weights).sum(), parameters, allow_unused=True)
        for logprobs in (output.logprobs_BT, expected)
    )
    assert_equal_up_to_rounding(packed_gradients, expected_gradients)
