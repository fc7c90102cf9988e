"""Advantages and returns: pure functions of tensors."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fgrlhf.algorithms.losses import kl_k1


def kl_penalized(
    rewards_BT: Tensor,
    logprobs_BT: Tensor,
    ref_logprobs_BT: Tensor,
    mask_BT: Tensor,
    kl_coef: float,
) -> Tensor:
    """r_t - beta * (log pi(a_t) - log pi_ref(a_t)), 0 on padding (Wu et al. 2023, eq. 1; Ziegler et
    al. 2019).
    """
    penalized_BT = rewards_BT - kl_coef * kl_k1(logprobs_BT, ref_logprobs_BT)
    return torch.where(mask_BT.bool(), penalized_BT, torch.zeros_like(penalized_BT))


def gae(
    rewards_BT: Tensor,
    values_BT: Tensor,
    mask_BT: Tensor,
    gamma: float,
    lam: float,
    start: str = "own_end",
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16), undiscounted bootstrapping
    of 0 after the end.

        delta_t = r_t + gamma V(s_{t+1}) - V(s_t)        A_t = delta_t + gamma lam A_{t+1}
        R_t = A_t + V(s_t)

    Args:
      rewards_BT, values_BT: what they hold on padding matters only with "longest".
      mask_BT: 1 on real tokens.
      start: "own_end" starts each row at its own last token. "longest" starts every row at the last
        column, so that whatever `rewards_BT` holds on padding flows into short rows (published
        behaviour, docs/deviations.md D3).
    Returns:
      advantages_BT and returns_BT; 0 on padding with "own_end".
    """
    if start not in ("own_end", "longest"):
        raise ValueError(f"start is `own_end` or `longest`, not `{start}`")
    alive_BT = mask_BT.bool() if start == "own_end" else torch.ones_like(mask_BT, dtype=torch.bool)
    rewards_BT, values_BT = (
        torch.where(alive_BT, x_BT, torch.zeros_like(x_BT)) for x_BT in (rewards_BT, values_BT)
    )
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


# ---- without a critic ----------------------------------------------------------------------------


def position_mean(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """mean_T: at each token's place the mean over the responses that reach it; 0 where none
    does.
    """
    values_BT = torch.where(mask_BT.bool(), values_BT, torch.zeros_like(values_BT))
    return values_BT.sum(0) / mask_BT.sum(0).clamp(min=1)


def group_sum(values_B: Tensor, group_B: Tensor) -> Tensor:
    """sum_B: for each rollout the sum over all rollouts of its prompt, itself included."""
    sums_G = torch.zeros(int(group_B.max()) + 1, dtype=values_B.dtype, device=values_B.device)
    return sums_G.index_add(0, group_B, values_B)[group_B]


def group_mean(returns_B: Tensor, group_B: Tensor) -> Tensor:
    """mean_B: the mean return of each rollout's prompt (Shao et al. 2024, arXiv 2402.03300, section
    4.1).
    """
    return group_sum(returns_B, group_B) / group_sum(torch.ones_like(returns_B), group_B)


def group_std(returns_B: Tensor, group_B: Tensor) -> Tensor:
    """std_B: sqrt(sum_j (R_j - mean)^2 / (K - 1)) over the samples of each rollout's prompt, K >=
    2.
    """
    spread_B = group_sum((returns_B - group_mean(returns_B, group_B)) ** 2, group_B)
    return (spread_B / (group_sum(torch.ones_like(returns_B), group_B) - 1)).sqrt()


def leave_one_out(returns_B: Tensor, group_B: Tensor) -> Tensor:
    """mean_B: b_i = sum_{j != i} R_j / (K - 1) (Kool et al. 2019; Ahmadian et al. 2024, arXiv
    2402.14740, eq. 8).
    """
    K_B = group_sum(torch.ones_like(returns_B), group_B)
    return (group_sum(returns_B, group_B) - returns_B) / (K_B - 1)


def segment_baseline(
    to_go_BT: Tensor, index_BT: Tensor, mask_BT: Tensor, group_B: Tensor, leave_out: bool
) -> Tensor:
    """baseline_BT: what the samples of one prompt earn from the beginning of the same segment on.

    With m = m_t the segments that response i has complete before token t, and t_j(m) the first
    token of response j with at least m complete before it,

        b_(i,t) = mean over the j that reach m of G_(j, t_j(m))          G_(j,t) = sum_{s >= t}
        gamma^(s-t) r_(j,s)

    over j != i (`leave_out`; 0 where no other response reaches m) or over all j. The first is a
    function of the other responses and of what i wrote before t, not of its token t: E[b grad log
    pi(a_t)] = 0, so the gradient stays unbiased.

    Args:
      to_go_BT: reward-to-go, 0 on padding.
      index_BT: segments complete before token t, never falling along a row.
    """
    B, T = mask_BT.shape
    index_BT = torch.where(
        mask_BT.bool(), index_BT, torch.full_like(index_BT, T + int(index_BT.max()) + 1)
    )
    last_B = torch.where(mask_BT.bool(), index_BT, torch.full_like(index_BT, -1)).amax(1)
    at_S = torch.arange(int(last_B.max().clamp(min=0)) + 1, device=mask_BT.device)
    first_BS = torch.searchsorted(index_BT.contiguous(), at_S.expand(B, -1).contiguous())
    reached_BS = (at_S <= last_B[:, None]).to(to_go_BT.dtype)
    start_BS = to_go_BT.gather(1, first_BS.clamp(max=T - 1)) * reached_BS
    G = int(group_B.max()) + 1
    total_BS, count_BS = (
        x.new_zeros(G, len(at_S)).index_add(0, group_B, x)[group_B] for x in (start_BS, reached_BS)
    )
    if leave_out:
        total_BS, count_BS = total_BS - start_BS, count_BS - reached_BS
    mean_BS = torch.where(
        count_BS > 0, total_BS / count_BS.clamp(min=1), torch.zeros_like(total_BS)
    )
    return mean_BS.gather(1, index_BT.clamp(max=len(at_S) - 1)) * mask_BT


def response_advantages(
    rewards_BT: Tensor, mask_BT: Tensor, group_B: Tensor, gamma: float, leave_out: bool
) -> Tensor:
    """advantages_BT, the same on all tokens of a response: R_i less the (leave-one-out) mean return
    of its prompt.
    """
    returns_B = reward_to_go(rewards_BT, mask_BT, gamma)[:, 0]
    baseline_B = (leave_one_out if leave_out else group_mean)(returns_B, group_B)
    return (returns_B - baseline_B)[:, None] * mask_BT


def segment_advantages(
    parts: Sequence[tuple[Tensor, Tensor]],
    mask_BT: Tensor,
    group_B: Tensor,
    gamma: float,
    leave_out: bool,
) -> Tensor:
    """advantages_BT = sum_k G^k_t - b^k_t: reward-to-go less `segment_baseline`, aspect by aspect.

    Args:
      parts: for each aspect its (rewards_BT, index_BT), segments complete before token t.
    """
    advantages_BT = torch.zeros(mask_BT.shape, dtype=parts[0][0].dtype, device=mask_BT.device)
    for rewards_BT, index_BT in parts:
        to_go_BT = reward_to_go(rewards_BT, mask_BT, gamma)
        advantages_BT += to_go_BT - segment_baseline(
            to_go_BT, index_BT, mask_BT, group_B, leave_out
        )
    return advantages_BT
