"""Log-probabilities of chosen tokens without keeping logits.

    log pi(a | h) = z[a] / tau - logsumexp(z / tau),   z = W h        entropy = -sum_v p_v log p_v,
    p = softmax(z / tau)

z has one entry per vocabulary item: for 800 tokens of a T5 that is 100 MB, and a plain log-softmax
with an entropy keeps four or five arrays of that size for the backward pass. Here the gradient is
written over z itself, and more tokens than one block go through the projection block by block: z is
thrown away and computed again when its gradient is needed.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

BLOCK = 1024  # tokens; z of one block is 130 MB in fp32 at T5's vocabulary


class _ChosenLogprob(torch.autograd.Function):
    """log softmax(z)[a] per row. Its gradient, (1[v = a] - p_v) g, is written over z: one array
    instead of five.
    """

    @staticmethod
    def forward(ctx, logits_NV: Tensor, ids_N: Tensor) -> tuple[Tensor, Tensor]:
        total_N = logits_NV.logsumexp(-1)
        ctx.save_for_backward(logits_NV, ids_N, total_N)
        ctx.mark_non_differentiable(total_N)
        return logits_NV.gather(-1, ids_N[:, None])[:, 0] - total_N, total_N

    @staticmethod
    def backward(ctx, grad_N: Tensor, _) -> tuple[Tensor, None]:
        logits_NV, ids_N, total_N = ctx.saved_tensors
        gradient_NV = logits_NV.sub_(total_N[:, None]).exp_().mul_(-grad_N[:, None])
        return gradient_NV.scatter_add_(-1, ids_N[:, None], grad_N[:, None]), None


def _block(
    project: Callable[[Tensor], Tensor], hidden_ND: Tensor, ids_N: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    logits_NV = project(hidden_ND).float().div_(temperature)
    logprobs_N, total_N = _ChosenLogprob.apply(logits_NV, ids_N)
    with torch.no_grad():
        z = logits_NV.detach()
        p = (z - total_N[:, None]).exp_()
        entropy_N = total_N - torch.linalg.vecdot(p, z)
    return logprobs_N, entropy_N


def _block_with_entropy(
    project: Callable[[Tensor], Tensor], hidden_ND: Tensor, ids_N: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """The same with a gradient through the entropy too: plain autograd, which keeps several arrays
    of the size of z.
    """
    logprobs_NV = torch.log_softmax(project(hidden_ND).float() / temperature, -1)
    return logprobs_NV.gather(-1, ids_N[:, None])[:, 0], -(logprobs_NV.exp() * logprobs_NV).sum(-1)


def chosen_logprobs(
    project: Callable[[Tensor], Tensor],
    hidden_ND: Tensor,
    ids_N: Tensor,
    temperature: float = 1.0,
    block: int = BLOCK,
    entropy_gradient: bool = False,
) -> tuple[Tensor, Tensor]:
    """(logprobs_N, entropy_N) in fp32; a gradient flows through the entropy only where it is asked
    for.

    Args:
      project: hidden states -> logits over the vocabulary; called again in the backward pass.
    """
    compute = _block_with_entropy if entropy_gradient else _block
    if len(ids_N) <= block:
        return compute(project, hidden_ND, ids_N, temperature)
    parts = [
        checkpoint(compute, project, h, ids, temperature, use_reentrant=False)
        for h, ids in zip(hidden_ND.split(block), ids_N.split(block))
    ]
    logprobs, entropies = zip(*parts)
    return torch.cat(logprobs), torch.cat(entropies)
