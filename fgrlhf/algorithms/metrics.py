"""Metrics of the algorithms: quantities per token, averaged like the loss."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fgrlhf.algorithms.kl import kl_k3
from fgrlhf.types import PolicyOutput, Rollout
from fgrlhf.utils import masked_sum


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
