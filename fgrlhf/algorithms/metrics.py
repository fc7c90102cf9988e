"""Metrics of the algorithms, quantities per token, and the mean of a minibatch's loss."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fgrlhf.algorithms.kl import kl_k3
from fgrlhf.types import Advantages, PolicyOutput, Rollout
from fgrlhf.utils import check_shape, masked_sum


def policy_metrics(new: PolicyOutput, old: Rollout, policy_loss_BT: Tensor) -> dict[str, Tensor]:
    """Metrics per token that every algorithm logs about its policy.

    `approx_kl` is the estimate k3 of KL(pi_old || pi_new): how far the update has moved the policy.
    """
    assert new.entropy_BT is not None  # every forward pass of the trainer computes it
    with torch.no_grad():
        approx_kl_BT = kl_k3(old.logprobs_BT, new.logprobs_BT)
    return {
        "loss/policy": policy_loss_BT.detach(),
        "approx_kl": approx_kl_BT,
        "entropy": new.entropy_BT.detach(),
    }


def add_token_means(
    totals: dict[str, Tensor], metrics: Mapping[str, Tensor], mask_BT: Tensor, n_tokens: Tensor
) -> None:
    """Add a micro-batch's share of the mean over a minibatch's tokens to `totals`.

    Args:
      totals: metric -> its mean over the minibatch once all micro-batches are added.
      metrics: metric -> its values_BT on this micro-batch.
      n_tokens: real tokens of the whole minibatch, over all processes.
    """
    for name, metric_BT in metrics.items():
        totals[name] = totals.get(name, 0) + masked_sum(metric_BT, mask_BT) / n_tokens


def mean_of(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """The mean of each key over rows with the same keys."""
    return {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}


# ---- the mean over a minibatch -------------------------------------------------------------------


def response_weights(kind: str, lengths_B: Tensor, longest: int) -> Tensor:
    """weights_B: the loss of a minibatch is sum_b w_b sum_t L_(b,t).

        token, cispo   w_b = 1 / sum_b' n_b'    DAPO, arXiv 2503.14476, eq. 8
        response       w_b = 1 / (B n_b)        GRPO, arXiv 2402.03300, eq. 3
        constant       w_b = 1 / (B T)          Dr. GRPO, arXiv 2503.20783, section 3.1

    A minibatch without tokens has the loss 0.

    Args:
      kind: `algorithm.loss.type`.
      lengths_B: n_b, the tokens of each response that are part of the loss; those with 0 count
        in B.
      longest: T, the length limit of a response.
    """
    check_shape("lengths_B", lengths_B, (None,))
    lengths_B = lengths_B.to(torch.promote_types(lengths_B.dtype, torch.float32))
    B = len(lengths_B)
    if kind == "response":
        return 1 / (B * lengths_B.clamp(min=1))
    divisor = torch.full_like(lengths_B, B * longest)
    if kind != "constant":
        divisor = lengths_B.sum().clamp(min=1).expand_as(lengths_B)
    return 1 / divisor


def learned_mask(leave_out: Sequence[str], advantages: Advantages, old: Rollout) -> Tensor:
    """mask_BT: the response mask, 0 on responses that are left out of the loss.

    Args:
      leave_out: `truncated` (overlong filtering, DAPO, arXiv 2503.14476, section 3.4): responses
        that have no end; `equal`: those without an advantage, mostly because all samples of the
        prompt earned the same. They have no gradient, but count in the mean over tokens.

    Raises:
      ValueError: the rollout does not tell which responses ended.
    """
    mask_BT = old.response_mask_BT
    if "truncated" in leave_out:
        if old.finished is None:
            raise ValueError("Rollout.finished is None, so truncated responses are not known")
        mask_BT = mask_BT * torch.tensor(old.finished, device=mask_BT.device)[:, None]
    if "equal" in leave_out:
        mask_BT = mask_BT * (advantages.advantages_BT != 0).any(1, keepdim=True)
    return mask_BT
