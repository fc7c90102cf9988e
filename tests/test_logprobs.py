import pytest
import torch

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
