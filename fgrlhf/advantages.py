"""Advantages and returns: pure functions of tensors."""

import torch
from torch import Tensor

from fgrlhf.losses import kl_k1


def kl_penalized(rewards_BT: Tensor, logprobs_BT: Tensor, ref_logprobs_BT: Tensor, mask_BT: Tensor, kl_coef: float) -> Tensor:
    """r_t - beta * (log pi(a_t) - log pi_ref(a_t)), 0 on padding (Wu et al. 2023, eq. 1; Ziegler et al. 2019)."""
    penalized_BT = rewards_BT - kl_coef * kl_k1(logprobs_BT, ref_logprobs_BT)
    return torch.where(mask_BT.bool(), penalized_BT, torch.zeros_like(penalized_BT))


def gae(rewards_BT: Tensor, values_BT: Tensor, mask_BT: Tensor, gamma: float, lam: float, start: str = "own_end") -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16), undiscounted bootstrapping of 0 after the end.

        delta_t = r_t + gamma V(s_{t+1}) - V(s_t)        A_t = delta_t + gamma lam A_{t+1}        R_t = A_t + V(s_t)

    Args:
      rewards_BT, values_BT: what they hold on padding matters only with "longest".
      mask_BT: 1 on real tokens.
      start: "own_end" starts each row at its own last token. "longest" starts every row at the last column, so that
        whatever `rewards_BT` holds on padding flows into short rows (published behaviour, docs/deviations.md D3).
    Returns:
      advantages_BT and returns_BT; 0 on padding with "own_end".
    """
    if start not in ("own_end", "longest"):
        raise ValueError(f"start is `own_end` or `longest`, not `{start}`")
    alive_BT = mask_BT.bool() if start == "own_end" else torch.ones_like(mask_BT, dtype=torch.bool)
    rewards_BT, values_BT = (torch.where(alive_BT, x_BT, torch.zeros_like(x_BT)) for x_BT in (rewards_BT, values_BT))
    advantages_BT = torch.zeros_like(values_BT)
    next_value_B = torch.zeros_like(values_BT[:, 0])
    next_advantage_B = torch.zeros_like(values_BT[:, 0])
    for t in reversed(range(values_BT.shape[1])):
        delta_B = rewards_BT[:, t] + gamma * next_value_B - values_BT[:, t]
        next_advantage_B = (delta_B + gamma * lam * next_advantage_B) * alive_BT[:, t]
        next_value_B = values_BT[:, t]
        advantages_BT[:, t] = next_advantage_B
    return advantages_BT, (advantages_BT + values_BT) * alive_BT


def reward_to_go(rewards_BT: Tensor, mask_BT: Tensor, gamma: float = 1.0) -> Tensor:
    """R_t = sum_{s >= t} gamma^(s - t) r_s over a row's real tokens; 0 on padding."""
    rewards_BT = torch.where(mask_BT.bool(), rewards_BT, torch.zeros_like(rewards_BT))
    returns_BT = torch.zeros_like(rewards_BT)
    running_B = torch.zeros_like(rewards_BT[:, 0])
    for t in reversed(range(rewards_BT.shape[1])):
        running_B = (rewards_BT[:, t] + gamma * running_B) * mask_BT[:, t]
        returns_BT[:, t] = running_B
    return returns_BT
