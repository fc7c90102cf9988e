"""Attention of rows with a prompt and K responses (fgrlhf/kernels/shared_rows.py)."""

import pytest
import tiny
import torch
from torch.nn.functional import scaled_dot_product_attention

from fgrlhf.kernels import shared_rows
from fgrlhf.kernels.shared_rows import RaggedRows, SharedRows
from fgrlhf.models import causal
from fgrlhf.models.shared_rows import block_mask

G, P, K, T, D = 2, 5, 3, 4, 8


def dense_mask(prompt_mask_GP: torch.Tensor) -> torch.Tensor:
    part_L = torch.cat([torch.zeros(P), torch.arange(1, K + 1).repeat_interleave(T)])
    real_GL = torch.cat([prompt_mask_GP, torch.ones(G, K * T)], 1).bool()
    return block_mask(part_L[None], real_GL)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("heads", "repeats"), [(2, 1), (4, 1), (4, 2)])
def test_outputs_and_gradients_equal_those_of_the_dense_mask(padded, heads, repeats, monkeypatch):
    monkeypatch.setattr(shared_rows, "_repeats", lambda *_: repeats)  # on a GPU: heads / 2
    torch.manual_seed(0)
    prompt_mask_GP = torch.ones(G, P)
    if padded:
        prompt_mask_GP[1, :2] = 0
    L = P + K * T
    shapes = [(G, heads, L, D), (G, 2, L, D), (G, 2, L, D)]
    tensors = [torch.randn(*shape, requires_grad=True) for shape in shapes]
    query, key, value = tensors
    rows = SharedRows.of(prompt_mask_GP, K, T)
    assert (rows.prompt_sees_G1PP is None) == (not padded)
    out = rows.attend(query, key, value, dropout=0.0, scale=0.3).transpose(1, 2)
    expected = scaled_dot_product_attention(
        query,
        key.repeat_interleave(heads // 2, 1),
        value.repeat_interleave(heads // 2, 1),
        attn_mask=dense_mask(prompt_mask_GP),
        scale=0.3,
    )
    # padding sees itself only, and nothing reads its output
    real_G1L1 = torch.cat([prompt_mask_GP, torch.ones(G, K * T)], 1)[:, None, :, None]
    torch.testing.assert_close(out * real_G1L1, expected * real_G1L1)
    weights = torch.randn_like(out) * real_G1L1
    gradients = torch.autograd.grad((out * weights).sum(), tensors)
    for gradient, dense in zip(
        gradients, torch.autograd.grad((expected * weights).sum(), tensors), strict=True
    ):
        torch.testing.assert_close(gradient, dense)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen3", "neox"])
def test_policies_use_it_and_compute_what_the_mask_gives(kind, monkeypatch, record_calls):
    monkeypatch.setattr(causal, "sharing_pays", lambda *_: True)
    policy = tiny.policy(kind).eval()
    prompt_ids, prompt_mask = policy.encode(["the red cat", "a dog sees the bird and one two"])
    ids = torch.randint(3, 20, (6, 5), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, 3:] = 0
    batch = (prompt_ids.repeat_interleave(3, 0), prompt_mask.repeat_interleave(3, 0), ids, mask)
    layers = record_calls(SharedRows, "attend")
    result = policy(*batch)[0].logprobs_BT
    assert len(layers) == policy.model.config.num_hidden_layers
    monkeypatch.setattr(causal, "shares_cache", lambda _: False)
    expected = policy(*batch)[0].logprobs_BT
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-5)


def test_padding_needs_no_position_beyond_the_last_one(monkeypatch):
    """A long prompt with short responses, beside a short prompt with long ones."""
    monkeypatch.setattr(causal, "sharing_pays", lambda *_: True)
    policy = tiny.policy("gpt2").eval()
    prompt_ids, prompt_mask = policy.encode(["the red cat", "a dog sees the bird and one two"])
    ids = torch.randint(3, 20, (4, 7), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[2:, 2:] = 0
    batch = (prompt_ids.repeat_interleave(2, 0), prompt_mask.repeat_interleave(2, 0), ids, mask)
    expected = policy(*batch)[0].logprobs_BT
    embedding = policy.model.transformer.wpe
    embedding.weight.data = embedding.weight[:10]  # 3 + 7 and 8 + 2 tokens, but not 8 + 7
    torch.testing.assert_close(policy(*batch)[0].logprobs_BT, expected)


@pytest.mark.parametrize("heads", [2, 4])
def test_ragged_rows_equal_the_dense_mask(heads):
    """Rows of a prompt with two responses, with one, without responses, and without a prompt."""
    torch.manual_seed(0)
    lengths = [(3, 2, 4), (5, 1), (2,), (0, 3, 2)]
    parts = []
    for row in lengths:
        numbers = [part for part, length in enumerate(row) for _ in range(length)]
        parts.append(numbers + [-1] * (9 - len(numbers)))
    part_GL = torch.tensor(parts)
    real_GL = part_GL >= 0
    shapes = [(4, heads, 9, D), (4, 2, 9, D), (4, 2, 9, D + 2)]  # DeepSeek's values are wider
    tensors = [torch.randn(*shape, requires_grad=True) for shape in shapes]
    query, key, value = tensors
    rows = RaggedRows.of(lengths, query.device)
    out = rows.attend(query, key, value, dropout=0.0, scale=None).transpose(1, 2)
    expected = scaled_dot_product_attention(
        query,
        key.repeat_interleave(heads // 2, 1),
        value.repeat_interleave(heads // 2, 1),
        attn_mask=block_mask(part_GL, real_GL),
    )
    real_G1L1 = real_GL[:, None, :, None]
    assert not out[~real_G1L1.expand_as(out)].any()
    torch.testing.assert_close(out, expected * real_G1L1)
    weights = torch.randn_like(out) * real_G1L1
    gradients = torch.autograd.grad((out * weights).sum(), tensors)
    for gradient, dense in zip(
        gradients, torch.autograd.grad((expected * weights).sum(), tensors), strict=True
    ):
        torch.testing.assert_close(gradient, dense)
