import pytest
import torch

from fgrlhf.configs.sections import Sampling
from fgrlhf.models.decoding import draw, packed, unpacked
from fgrlhf.models.logprobs import chosen_logprobs


def naive(weight_VD, hidden_ND, ids_N, temperature):
    logprobs_NV = torch.log_softmax(hidden_ND @ weight_VD.T / temperature, -1)
    entropy_N = -(logprobs_NV.exp() * logprobs_NV).sum(-1)
    return logprobs_NV[torch.arange(len(ids_N)), ids_N], entropy_N


def test_by_hand():
    logits = torch.tensor([[0.0, 1.0]])
    p = torch.sigmoid(torch.tensor(2.0))  # at temperature 0.5 the difference of 1 becomes 2
    logprob, entropy = chosen_logprobs(lambda z: z, logits, torch.tensor([1]), 0.5)
    assert logprob.item() == pytest.approx(p.log().item(), abs=1e-6)
    expected = -(p * p.log() + (1 - p) * (1 - p).log())
    assert entropy.item() == pytest.approx(expected.item(), abs=1e-6)
    logprob, entropy = chosen_logprobs(lambda z: z, logits.bfloat16(), torch.tensor([0]))
    assert logprob.dtype == entropy.dtype == torch.float32


@pytest.mark.parametrize("block", [3, 7, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("entropy_gradient", [False, True])
def test_values_and_gradients_in_blocks(block, temperature, entropy_gradient):
    torch.manual_seed(0)
    weight_VD = torch.randn(11, 5, dtype=torch.float64, requires_grad=True)
    hidden_ND = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    ids_N = torch.randint(11, (7,))
    grad_N = torch.randn(7, dtype=torch.float64)
    expected = naive(weight_VD, hidden_ND, ids_N, temperature)
    result = chosen_logprobs(
        lambda h: h @ weight_VD.T, hidden_ND, ids_N, temperature, block, entropy_gradient
    )
    torch.testing.assert_close([x.double() for x in result], list(expected), atol=1e-5, rtol=1e-5)
    assert result[1].requires_grad == entropy_gradient

    def gradients(logprobs_N, entropy_N):
        loss = (logprobs_N * grad_N.to(logprobs_N.dtype)).sum()
        if entropy_gradient:
            loss = loss + (entropy_N * grad_N.to(entropy_N.dtype)).sum()
        return torch.autograd.grad(loss, (weight_VD, hidden_ND))

    torch.testing.assert_close(gradients(*result), gradients(*expected), atol=1e-5, rtol=1e-5)


def test_without_gradients_and_without_tokens():
    with torch.no_grad():
        ids_N = torch.zeros(6, dtype=torch.long)
        logprobs_N, _ = chosen_logprobs(lambda z: z, torch.randn(6, 4), ids_N, block=2)
    assert logprobs_N.shape == (6,) and not logprobs_N.requires_grad
    no_ids = torch.zeros(0, dtype=torch.long)
    logprobs_N, entropy_N = chosen_logprobs(lambda z: z, torch.randn(0, 4), no_ids)
    assert logprobs_N.shape == entropy_N.shape == (0,)


@pytest.mark.parametrize("V", [1, 8, 13])
def test_a_packed_set_has_a_bit_per_token(V):
    support_NV = torch.rand(3, V, generator=torch.Generator().manual_seed(V)) < 0.5
    support_NW = packed(support_NV)
    assert support_NW.dtype == torch.uint8 and support_NW.shape == (3, (V + 7) // 8)
    assert torch.equal(unpacked(support_NW, V), support_NV)
    last = torch.zeros(1, V, dtype=torch.bool)
    last[0, V - 1] = True
    assert packed(last)[0].tolist()[-1] == 1 << (V - 1) % 8


def drawn_support(logits_V, sampling):
    """The tokens that can be drawn, and how often each is, over a fine grid of random numbers."""
    n = 20_000
    uniform_B = (torch.arange(n) + 0.5) / n
    support_BV = torch.zeros(n, len(logits_V), dtype=torch.bool)
    drawn_B = draw(logits_V.expand(n, -1), sampling, uniform_B, support_BV=support_BV)
    assert (support_BV == support_BV[0]).all()
    return support_BV[0], drawn_B.bincount(minlength=len(logits_V)) / n


TRUNCATED = [
    Sampling(1, top_k=4),
    Sampling(1, top_p=0.8),
    Sampling(1, top_k=6, top_p=0.7, temperature=0.6),
]


@pytest.mark.parametrize("sampling", TRUNCATED)
def test_the_gradient_of_the_logprobs_of_the_drawn_distribution_has_mean_zero(sampling):
    """By enumeration of the tokens; over the whole vocabulary, the mean is far from zero."""
    generator = torch.Generator().manual_seed(3)
    weight_VD = torch.randn(40, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    hidden_ND = torch.randn(1, 5, generator=generator, dtype=torch.float64)
    logits_V = (hidden_ND @ weight_VD.T)[0].detach()
    support_V, frequency_V = drawn_support(logits_V, sampling)
    ids_N = support_V.nonzero()[:, 0]
    assert 1 < len(ids_N) < 40

    def logprobs(support_NW):
        hidden = hidden_ND.expand(len(ids_N), -1)
        return chosen_logprobs(
            lambda hidden_ND: hidden_ND @ weight_VD.T,
            hidden,
            ids_N,
            sampling.temperature,
            block=3,
            support_NW=support_NW,
        )

    logprobs_N, entropy_N = logprobs(packed(support_V[None]).expand(len(ids_N), -1))
    p_N = logprobs_N.exp().detach()
    assert p_N.sum().item() == pytest.approx(1, abs=1e-12)
    torch.testing.assert_close(p_N.float(), frequency_V[ids_N], atol=2e-4, rtol=0)
    torch.testing.assert_close(entropy_N, -(p_N @ p_N.log()).expand(len(ids_N)))
    (mean_gradient,) = torch.autograd.grad(p_N @ logprobs_N, weight_VD)
    assert mean_gradient.abs().max() < 1e-12

    of_all_N, _ = logprobs(None)
    (mean_gradient,) = torch.autograd.grad(p_N @ of_all_N, weight_VD)
    assert mean_gradient.abs().max() > 1e-3
