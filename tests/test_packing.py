import pytest
import tiny
import torch

from fgrlhf import policy as policy_module
from fgrlhf.models.packing import packed

MASK = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 0, 0], [1, 1, 0]])
GROUP = torch.tensor([0, 0, 0, 1])


def test_one_row_a_prompt_holds_its_responses_without_padding():
    packing = packed(MASK, GROUP)
    assert (packing.rows, packing.width, packing.rows_each) == (2, 6, 1)
    ids = torch.tensor([[11, 12, 0], [21, 22, 23], [31, 0, 0], [41, 42, 0]])
    assert packing.pack(ids).tolist() == [[21, 22, 23, 11, 12, 31], [41, 42, 0, 0, 0, 0]]
    assert packing.unpack(packing.pack(ids)[..., None].float())[..., 0].tolist() == ids.tolist()


def test_a_token_sees_its_own_response_up_to_itself():
    seen = packed(MASK, GROUP).mask()[0, 0].int()
    expected = torch.block_diag(
        torch.ones(3, 3).tril(), torch.ones(2, 2).tril(), torch.ones(1, 1)
    ).int()
    assert torch.equal(seen, expected)


def test_a_long_row_is_dealt_out_to_as_many_for_every_prompt():
    packing = packed(MASK, GROUP, row=3)
    assert (packing.rows, packing.width, packing.rows_each) == (4, 3, 2)
    places = [divmod(place, 3) for place in packing.place_BT[:, 0].tolist()]
    assert places == [(1, 0), (0, 0), (1, 2), (2, 0)]


@pytest.mark.parametrize("row", [1, 8, 512])
@pytest.mark.parametrize("group", [[0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 1, 2], [0, 1, 2, 3, 4, 5]])
def test_packed_responses_have_the_numbers_of_transformers(row, group, monkeypatch):
    monkeypatch.setattr(policy_module, "packed", lambda mask, groups: packed(mask, groups, row))
    policy = tiny.policy("t5").eval()
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(5, 25, (6, 9), generator=generator)[group]
    prompt_mask = (torch.arange(9) < torch.tensor([9, 7, 8, 4, 9, 5])[group][:, None]).long()
    ids = torch.randint(5, 25, (6, 7), generator=generator)
    mask = (torch.arange(7) < torch.tensor([7, 3, 1, 5, 7, 2])[:, None]).long()
    output, _ = policy(prompts, prompt_mask, ids, mask)
    labels = ids.masked_fill(mask == 0, -100)
    expected = policy.model(
        input_ids=prompts, attention_mask=prompt_mask, labels=labels
    ).logits.log_softmax(-1)
    expected = expected.gather(-1, ids[..., None])[..., 0] * mask
    torch.testing.assert_close(output.logprobs_BT, expected, atol=1e-5, rtol=1e-5)
    weights = torch.linspace(-1, 1, 42).view(6, 7)
    parameters = [p for p in policy.model.parameters()]
    both = [
        torch.autograd.grad((x * weights).sum(), parameters, allow_unused=True)
        for x in (output.logprobs_BT, expected)
    ]
    for found, wanted in zip(*both):
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)
