import pytest
import torch

from fgrlhf.models.logprobs import chosen_logprobs


def naive(weight_VD, hidden_ND, ids_N, temperature):
    logprobs_NV = torch.log_softmax(hidden_ND @ weight_VD.T / temperature, -1)
    return logprobs_NV[torch.arange(len(ids_N)), ids_N], -(logprobs_NV.exp() * logprobs_NV).sum(-1)


def test_by_hand():
    logits = torch.tensor([[0.0, 1.0]])
    p = torch.sigmoid(torch.tensor(2.0))  # temperature 0.5: the difference of 1 becomes 2
    logprob, entropy = chosen_logprobs(lambda z: z, logits, torch.tensor([1]), 0.5)
    assert logprob.item() == pytest.approx(p.log().item(), abs=1e-6)
    assert entropy.item() == pytest.approx(
        -(p * p.log() + (1 - p) * (1 - p).log()).item(), abs=1e-6
    )
    logprob, entropy = chosen_logprobs(lambda z: z, logits.bfloat16(), torch.tensor([0]))
    assert logprob.dtype == entropy.dtype == torch.float32


@pytest.mark.parametrize("block", [3, 7, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_values_and_gradients_in_blocks(block, temperature):
    torch.manual_seed(0)
    weight_VD = torch.randn(11, 5, dtype=torch.float64, requires_grad=True)
    hidden_ND = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    ids_N, grad_N = torch.randint(11, (7,)), torch.randn(7, dtype=torch.float64)
    expected = naive(weight_VD, hidden_ND, ids_N, temperature)
    wanted = torch.autograd.grad(expected[0], (weight_VD, hidden_ND), grad_N)
    logprobs_N, entropy_N = chosen_logprobs(
        lambda h: h @ weight_VD.T, hidden_ND, ids_N, temperature, block
    )
    torch.testing.assert_close(
        (logprobs_N.double(), entropy_N.double()), expected, atol=1e-5, rtol=1e-5
    )
    assert not entropy_N.requires_grad
    found = torch.autograd.grad(logprobs_N, (weight_VD, hidden_ND), grad_N.float())
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def test_no_gradient_asked_for_and_no_tokens():
    with torch.no_grad():
        logprobs_N, _ = chosen_logprobs(
            lambda z: z, torch.randn(6, 4), torch.zeros(6, dtype=torch.long), block=2
        )
    assert logprobs_N.shape == (6,) and not logprobs_N.requires_grad
    assert chosen_logprobs(lambda z: z, torch.randn(0, 4), torch.zeros(0, dtype=torch.long))[
        0
    ].shape == (0,)
