import copy

import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
)

from fgrlhf.kernels import attention
from fgrlhf.kernels.attention import (
    SHARED_PROMPT,
    _RecomputedAttention,
    _stored_attention,
    bias_by_distance,
    use_shared_attention,
)
from fgrlhf.kernels.layers import dropout_mask


def t5():
    sizes = {"d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 2, "num_heads": 4}
    settings = {"decoder_start_token_id": 0, "dropout_rate": 0.0, "initializer_factor": 0.3}
    return T5ForConditionalGeneration(T5Config(vocab_size=50, **sizes, **settings))


def bart():
    sizes = {"layers": 2, "attention_heads": 4, "ffn_dim": 32}
    of_both = {f"{side}_{key}": n for side in ("encoder", "decoder") for key, n in sizes.items()}
    settings = {"max_position_embeddings": 64, "dropout": 0.0, "init_std": 0.3}
    config = BartConfig(vocab_size=50, d_model=16, **of_both, **settings)
    return BartForConditionalGeneration(config)


@pytest.mark.parametrize("make", [t5, bart])
def test_g_prompts_for_k_responses_each_equal_the_prompts_repeated(make):
    torch.manual_seed(0)
    model = make()
    G, K, P, T = 3, 4, 7, 5
    encoded_GPD = torch.randn(G, P, 16, requires_grad=True)
    ids_BT = torch.randint(2, 50, (G * K, T))
    mask_GP = (torch.arange(P) < torch.tensor([[7], [4], [2]])).long()

    def run(states, mask):
        encoded = {"encoder_hidden_states": states, "encoder_attention_mask": mask}
        decoder = model.get_decoder()
        hidden = decoder(input_ids=ids_BT, use_cache=False, **encoded).last_hidden_state
        weights = torch.linspace(-1, 1, hidden.numel()).view_as(hidden)
        return hidden, torch.autograd.grad((hidden * weights).sum(), encoded_GPD)[0]

    def run_repeated():
        return run(encoded_GPD.repeat_interleave(K, 0), mask_GP.repeat_interleave(K, 0))

    model.set_attn_implementation("eager")
    expected = run_repeated()
    model.set_attn_implementation(SHARED_PROMPT)
    torch.testing.assert_close(run(encoded_GPD, mask_GP), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(run_repeated(), expected, atol=1e-5, rtol=1e-4)


def test_a_saved_model_does_not_name_the_attention(tmp_path):
    model = t5()
    model.set_attn_implementation(SHARED_PROMPT)
    model.save_pretrained(tmp_path)
    assert SHARED_PROMPT not in (tmp_path / "config.json").read_text()


@pytest.mark.parametrize(
    "stack, query, key, past",
    [
        ("encoder", 9, 9, 0),
        ("encoder", 1, 1, 0),
        ("decoder", 7, 7, 0),
        ("decoder", 1, 12, 11),
        ("decoder", 3, 200, 197),
    ],
)
def test_bias_by_distance_is_t5s(stack, query, key, past):
    layer = getattr(t5(), stack).block[0].layer[0].SelfAttention
    expected = layer.compute_bias(query, key, past_seen_tokens=past)
    result = bias_by_distance(layer, query, key, past_seen_tokens=past)
    assert result.shape == expected.shape and torch.equal(result, expected)
    weights = torch.randn(expected.shape)
    gradients = [
        torch.autograd.grad((bias * weights).sum(), layer.relative_attention_bias.weight)[0]
        for bias in (expected, result)
    ]
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-5)


def test_shared_attention_changes_no_result():
    torch.manual_seed(0)
    model = t5().eval()
    ids, labels = torch.randint(2, 50, (3, 9)), torch.randint(2, 50, (3, 6))
    expected = model(input_ids=ids, labels=labels)
    result = use_shared_attention(model)(input_ids=ids, labels=labels)
    assert model.encoder.block[0].layer[0].SelfAttention.compute_bias.__func__ is bias_by_distance
    torch.testing.assert_close(result.logits, expected.logits, atol=1e-5, rtol=1e-5)


@pytest.fixture(params=[attention.BLOCK_SIZE, 1])
def block_size(request, monkeypatch):
    """All heads of a row at a time, or one head at a time."""
    monkeypatch.setattr(attention, "BLOCK_SIZE", request.param)


def test_the_layers_of_a_frozen_model_share_one_masked_bias(monkeypatch):
    calls = []
    masked_bias = attention._masked_bias

    def counted(bias, mask):
        calls.append(mask)
        return masked_bias(bias, mask)

    monkeypatch.setattr(attention, "_masked_bias", counted)
    plain = t5().eval()
    shared = use_shared_attention(copy.deepcopy(plain))
    ids = torch.randint(3, 50, (3, 6))
    with torch.no_grad():
        for lengths, calls_so_far in (([6, 4, 2], 1), ([3, 6, 6], 2)):
            mask = (torch.arange(6) < torch.tensor(lengths)[:, None]).long()
            expected = plain.encoder(ids, attention_mask=mask).last_hidden_state
            result = shared.encoder(ids, attention_mask=mask).last_hidden_state
            torch.testing.assert_close(result[mask.bool()], expected[mask.bool()])
            assert len(calls) == calls_so_far  # once for its two layers


def test_another_mask_gives_another_sum():
    bias = torch.randn(1, 2, 3, 3)
    first, second = torch.ones(3, 3).tril().bool()[None, None], torch.ones(1, 1, 3, 3).bool()
    kept = attention._bias_of_all_layers(bias, first)
    assert attention._bias_of_all_layers(bias, first) is kept
    assert torch.equal(attention._bias_of_all_layers(bias, second), bias)
    assert (kept[0, 0, 0, 1:] < -1e37).all()
    assert torch.equal(kept[..., 2, :], bias[..., 2, :])


def test_the_bias_is_stored_by_head():
    stack = t5().encoder.block[0].layer[0].SelfAttention
    assert bias_by_distance(stack, 5, 7).is_contiguous()


@pytest.mark.parametrize("masked", [None, "padding", "padding_of_each", "causal"])
@pytest.mark.parametrize("stored", [False, True])
def test_a_learned_bias_has_the_gradients_of_autograd(masked, stored, block_size):
    generator = torch.Generator().manual_seed(0)
    B, H, L, D = 3, 2, 5, 4
    query, key, value, out = (
        torch.randn(B, H, L, D, dtype=torch.float64, generator=generator) for _ in range(4)
    )
    bias = torch.randn(H, L, L, dtype=torch.float64, generator=generator)
    lengths = {"padding": [4], "padding_of_each": [5, 2, 3]}
    mask = torch.ones(L, L).tril().bool()[None, None] if masked == "causal" else None
    if masked in lengths:
        mask = (torch.arange(L) < torch.tensor(lengths[masked])[:, None])[:, None, None].expand(
            -1, 1, L, L
        )
    inputs = [x.requires_grad_() for x in (query, key, value, bias)]

    def plain(query, key, value, bias):
        scores = 0.5 * query @ key.mT + bias
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        return scores.softmax(-1) @ value

    expected = plain(*inputs)
    if stored:
        result = _stored_attention(*inputs, mask, 0.5)
    else:
        result = _RecomputedAttention.apply(*inputs, mask, 0.5, 0.0)
    torch.testing.assert_close(result, expected)
    first = [
        torch.autograd.grad((x * out).sum(), inputs, create_graph=True) for x in (result, expected)
    ]
    torch.testing.assert_close(*first)
    second = [
        torch.autograd.grad(sum((g.sin()).sum() for g in gradients), inputs) for gradients in first
    ]
    torch.testing.assert_close(*second)


@pytest.mark.parametrize("biased", [True, False])
def test_dropout_drops_the_same_entries_in_both_directions(biased, block_size):
    generator = torch.Generator().manual_seed(0)
    B, H, L, S, D = 3, 2, 5, 7, 4
    query, out = (
        torch.randn(B, H, L, D, dtype=torch.float64, generator=generator) for _ in range(2)
    )
    key, value = (
        torch.randn(B, H, S, D, dtype=torch.float64, generator=generator) for _ in range(2)
    )
    bias = torch.randn(H, L, S, dtype=torch.float64, generator=generator) if biased else None
    inputs = [x.requires_grad_() for x in (query, key, value, bias) if x is not None]
    mask = (torch.arange(S) < torch.tensor([7, 4, 5])[:, None])[:, None, None]
    torch.manual_seed(1)
    result = _RecomputedAttention.apply(query, key, value, bias, mask, 0.5, 0.3)
    torch.manual_seed(1)
    dropped = dropout_mask((B, H, L, S), 0.3) == 0
    scores = 0.5 * query @ key.mT + (bias if biased else 0)
    probabilities = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    expected = probabilities.masked_fill(dropped, 0) / 0.7 @ value
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(
        *(torch.autograd.grad((x * out).sum(), inputs) for x in (result, expected))
    )


def test_dropout_has_the_distribution_of_transformers():
    """Mean and spread of the loss over many draws equal those of transformers' attention."""
    torch.manual_seed(0)
    model = t5()
    layers = [
        model.encoder.block[0].layer[0].SelfAttention,
        model.decoder.block[0].layer[1].EncDecAttention,
    ]
    for layer in layers:
        layer.dropout = 0.2
    ids, labels = torch.randint(2, 50, (2, 9)), torch.randint(2, 50, (2, 6))

    def losses(model, draws=400):
        torch.manual_seed(1)
        return torch.stack(
            [model(input_ids=ids, labels=labels).loss.detach() for _ in range(draws)]
        )

    expected = losses(model.train())
    result = losses(use_shared_attention(model))
    error = (expected.var() + result.var()).sqrt() / len(expected) ** 0.5
    assert expected.std() > 1e-4
    assert float(result.std()) == pytest.approx(float(expected.std()), rel=0.2)
    assert abs(result.mean() - expected.mean()) < 4 * error


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_of_the_size_of_the_scores_only_the_dropout_mask_is_stored(dropout, monkeypatch):
    monkeypatch.setattr(attention, "STORED_SCORES", 0)
    # two layers in each of encoder, decoder and cross-attention
    assert scores_stored(dropout) == ([torch.uint8] * 6 if dropout else [])


def test_few_probabilities_are_stored():
    # of self-attention, two layers in each of encoder and decoder
    assert scores_stored(dropout=0.0) == [torch.float32] * 4
    assert scores_stored(dropout=0.0, dtype=torch.bfloat16) == []


def scores_stored(dropout, dtype=torch.float32):
    """Types of the arrays of the size of the scores that a T5 stores for its gradients."""
    torch.manual_seed(0)
    model = use_shared_attention(t5()).to(dtype).train()
    for module in model.modules():
        if hasattr(module, "has_relative_attention_bias"):
            module.dropout = dropout
    ids, labels = torch.randint(2, 50, (2, 9)), torch.randint(2, 50, (2, 6))
    stored = []

    def pack(tensor):
        if tensor.shape[:2] == (2, 4) and tensor.shape[2:] in {(9, 9), (6, 6), (6, 9)}:
            stored.append(tensor.dtype)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(input_ids=ids, labels=labels)
    return stored
