"""Decoding with one copy of the prompt's keys and values (fgrlhf/kernels/shared_cache.py)."""

import pytest
import tiny
import torch
from transformers import DynamicCache

from fgrlhf.configs.sections import Sampling
from fgrlhf.kernels.install import shares_cache
from fgrlhf.kernels.shared_cache import LayerCache, SharedCache, attend_to_shared_cache
from fgrlhf.models import causal
from fgrlhf.models.causal import CausalSteps, SharedCacheSteps

SHARING = ["gpt2", "llama", "qwen3", "neox"]
COPYING = ["gemma2", "bloom"]  # a sliding window; distances instead of positions
TEXTS = ["the red cat", "a dog sees the bird and one two three", "question:"]
K = 3
T = 5


def both(policy):
    """Steps with a shared cache, and those with the cache of transformers."""
    prompt = policy.encode(TEXTS)
    return (SharedCacheSteps(policy.model, *prompt, K, T), CausalSteps(policy.model, *prompt, K))


def tokens(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(3, 20, (n,), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", SHARING)
@torch.no_grad()
def test_hidden_states_equal_those_with_the_cache_of_transformers(kind):
    policy = tiny.policy(kind).eval()
    assert shares_cache(policy.model)
    shared, copied = both(policy)
    torch.testing.assert_close(shared.first(), copied.first())
    for t in range(T):
        ids_B = tokens(len(TEXTS) * K, t)
        torch.testing.assert_close(shared.next(ids_B), copied.next(ids_B), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", SHARING)
@torch.no_grad()
def test_rows_that_are_kept_continue_as_before(kind):
    policy = tiny.policy(kind).eval()
    shared, copied = both(policy)
    shared.first()
    copied.first()
    ids_B = tokens(len(TEXTS) * K)
    shared.next(ids_B)
    copied.next(ids_B)
    # prompt 0 has live rows 0 and 2, prompt 1 has none, prompt 2 has row 7
    live_B = torch.tensor([1, 0, 1, 0, 0, 0, 0, 1, 0]).bool()
    rows = shared.keepable(live_B)
    assert rows.tolist() == [0, 2, 6, 7]
    shared.keep(rows)
    copied.keep(rows)
    for t in range(1, T):
        ids_B = tokens(4, t)
        torch.testing.assert_close(shared.next(ids_B), copied.next(ids_B), atol=1e-5, rtol=1e-5)
        if t == 2:  # then one row of each prompt
            rows = shared.keepable(torch.tensor([0, 1, 0, 1]).bool())
            assert rows.tolist() == [1, 3]
            shared.keep(rows)
            copied.keep(rows)
            ids_B = tokens(2, 9)
            torch.testing.assert_close(shared.next(ids_B), copied.next(ids_B), atol=1e-5, rtol=1e-5)
            break


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_a_step_is_the_softmax_over_prompt_and_response(dtype):
    """One prompt of two tokens, of which the first is padding, one response of one token."""
    one = torch.ones(1, 1, 1, 2)
    cache = LayerCache(
        prompt_key_GHPD=torch.tensor([[[[9.0, 9.0], [1.0, 0.0]]]], dtype=dtype),
        prompt_value_GHPD=torch.tensor([[[[7.0, 7.0], [1.0, 0.0]]]], dtype=dtype),
        response_key_BHTD=torch.zeros(1, 1, 4, 2, dtype=dtype),
        response_value_BHTD=torch.zeros(1, 1, 4, 2, dtype=dtype),
        hidden_G11P=torch.tensor([[[[True, False]]]]),
    )
    cache.append(one * torch.tensor([0.0, 1.0]), one * torch.tensor([0.0, 1.0]))
    log3 = torch.log(torch.tensor(3.0)).item()
    # two query heads read the same keys: scores (log 3, 0) give 3/4 and 1/4, (0, 0) give halves
    out = attend_to_shared_cache(torch.tensor([[[log3, 0.0], [0.0, 0.0]]]), cache)
    expected = torch.tensor([[[0.75, 0.25], [0.5, 0.5]]], dtype=dtype)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("value_width", [16, 8])
@pytest.mark.parametrize("hidden", ["nothing", "padding", "a whole prompt"])
def test_a_step_in_bf16_is_that_of_float64_up_to_rounding(value_width, hidden):
    G, H, Q, P, D, length = 2, 2, 3, 7, 16, 3
    B = G * K
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).bfloat16()

    hidden_G11P = torch.zeros(G, 1, 1, P, dtype=torch.bool)
    hidden_G11P[0, ..., :4] = True
    hidden_G11P[1] = hidden == "a whole prompt"
    cache = LayerCache(
        draw(G, H, P, D),
        draw(G, H, P, value_width),
        draw(B, H, T, D),
        draw(B, H, T, value_width),
        None if hidden == "nothing" else hidden_G11P,
        length,
    )
    query_BND = draw(B, H * Q, D)
    out_BND = attend_to_shared_cache(query_BND, cache)
    assert out_BND.dtype == torch.bfloat16
    for b in range(B):
        seen_P = torch.ones(P, dtype=torch.bool)
        if cache.hidden_G11P is not None:
            seen_P = ~hidden_G11P[b // K, 0, 0]
        for n in range(H * Q):
            g, h = b // K, n // Q
            response_key_TD = cache.response_key_BHTD[b, h, :length]
            response_value_TD = cache.response_value_BHTD[b, h, :length]
            key_LD = torch.cat([cache.prompt_key_GHPD[g, h, seen_P], response_key_TD]).double()
            value_LD = torch.cat([cache.prompt_value_GHPD[g, h, seen_P], response_value_TD])
            probs_L = (key_LD @ query_BND[b, n].double()).softmax(-1)
            expected_D = probs_L @ value_LD.double()
            # three roundings to 8 bits: two parts of size 1 to 3, and their sum
            torch.testing.assert_close(out_BND[b, n].double(), expected_D, atol=0.03, rtol=0.01)


@torch.no_grad()
def test_nothing_of_the_prompt_is_copied():
    policy = tiny.policy("llama").eval()
    ids_GP, mask_GP = policy.encode(TEXTS)
    prompt_cache = DynamicCache(config=policy.model.config)
    policy.model.base_model(
        input_ids=ids_GP, attention_mask=mask_GP, past_key_values=prompt_cache, use_cache=True
    )
    cache = SharedCache(prompt_cache, mask_GP, K, T)
    for layer, stored in zip(prompt_cache.layers, cache.layer_caches):
        assert stored.prompt_key_GHPD.data_ptr() == layer.keys.data_ptr()
        assert stored.prompt_value_GHPD.data_ptr() == layer.values.data_ptr()


@torch.no_grad()
def test_half_precision():
    policy = tiny.policy("llama").eval()
    shared, copied = both(policy)
    expected = [shared.first(), *(shared.next(tokens(9, t)) for t in range(T))]
    policy.model.to(torch.bfloat16)
    shared, _ = both(policy)
    result = [shared.first(), *(shared.next(tokens(9, t)) for t in range(T))]
    for a, b in zip(result, expected):
        assert a.dtype == torch.bfloat16
        assert (a.float() - b).abs().mean() < 0.02  # the states are of size 1


@pytest.mark.parametrize("kind", SHARING)
@torch.no_grad()
def test_prompts_read_without_their_padding_have_the_same_states(kind, monkeypatch):
    policy = tiny.policy(kind).eval()
    separate, masked = both(policy)[0], both(policy)[0]
    expected = [masked.first(), *(masked.next(tokens(9, t)) for t in range(T))]
    monkeypatch.setattr(causal, "_is_half_on_cpu", lambda _: True)
    result = [separate.first(), *(separate.next(tokens(9, t)) for t in range(T))]
    assert separate.prompt_mask_GP[0, -1] == 0  # the padding of a short prompt is at its end
    for a, b in zip(result, expected):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", [*COPYING, "gpt2"])
def test_models_that_derive_their_own_mask_keep_the_cache_of_transformers(kind, monkeypatch):
    """And all models without kernels."""
    if kind == "gpt2":
        monkeypatch.setenv("FGRLHF_KERNELS", "off")
    policy = tiny.policy(kind)
    assert not shares_cache(policy.model)
    assert isinstance(policy._steps(*policy.encode(TEXTS), K, T), CausalSteps)


@pytest.mark.parametrize("kind", SHARING)
def test_samples_do_not_depend_on_the_cache(kind, monkeypatch):
    policy = tiny.policy(kind)
    policy.model.generation_config.eos_token_id = [1, 5, 10, 15, 20]
    prompt = policy.encode(TEXTS)
    seeds = list(range(len(TEXTS) * 4))
    sampling = Sampling(max_new_tokens=12, top_p=0.9)
    shared = policy.generate(*prompt, sampling, seeds, 4)
    monkeypatch.setattr("fgrlhf.models.causal.shares_cache", lambda _: False)
    copied = policy.generate(*prompt, sampling, seeds, 4)
    assert shared.ids_BT.equal(copied.ids_BT)
    assert shared.mask_BT.equal(copied.mask_BT)
    torch.testing.assert_close(shared.logprobs_BT, copied.logprobs_BT, atol=1e-5, rtol=1e-5)
