"""Advantages and returns: pure functions of tensors."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fgrlhf.algorithms.kl import kl_k1
from fgrlhf.utils import ROUNDING, check_same_shape, check_shape

EPS = 1e-4  # as in TRL: small differences between the samples of a prompt are not magnified


def kl_penalized(
    rewards_BT: Tensor,
    logprobs_BT: Tensor,
    ref_logprobs_BT: Tensor,
    mask_BT: Tensor,
    kl_coef: float,
) -> Tensor:
    """r_t - beta * (log pi(a_t) - log pi_ref(a_t)), 0 on padding.

    Wu et al. 2023, eq. 1; Ziegler et al. 2019.
    """
    check_same_shape(
        rewards_BT=rewards_BT,
        logprobs_BT=logprobs_BT,
        ref_logprobs_BT=ref_logprobs_BT,
        mask_BT=mask_BT,
    )
    penalized_BT = rewards_BT - kl_coef * kl_k1(logprobs_BT, ref_logprobs_BT)
    return torch.where(mask_BT.bool(), penalized_BT, torch.zeros_like(penalized_BT))


# ---- with a critic -------------------------------------------------------------------------------


def gae(
    rewards_BT: Tensor,
    values_BT: Tensor,
    mask_BT: Tensor,
    gamma: float,
    lam: float,
    start: str = "own_end",
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16).

        delta_t = r_t + gamma V(s_{t+1}) - V(s_t)
        A_t = delta_t + gamma lam A_{t+1}
        R_t = A_t + V(s_t)

    After the end of a response V and A are 0.

    Args:
      rewards_BT, values_BT: their entries on padding matter only with "longest".
      mask_BT: 1 on real tokens.
      start: "own_end" starts each row at its own last token. "longest" starts every row at the last
        column, so that whatever `rewards_BT` holds on padding flows into short rows (published
        behaviour, docs/deviations.md D3).
    Returns:
      advantages_BT and returns_BT; 0 on padding with "own_end".
    """
    if start not in ("own_end", "longest"):
        raise ValueError(f"start is `own_end` or `longest`, not `{start}`")
    check_same_shape(rewards_BT=rewards_BT, values_BT=values_BT, mask_BT=mask_BT)
    everywhere_BT = torch.ones_like(mask_BT, dtype=torch.bool)
    in_sum_BT = mask_BT.bool() if start == "own_end" else everywhere_BT
    rewards_BT = torch.where(in_sum_BT, rewards_BT, torch.zeros_like(rewards_BT))
    values_BT = torch.where(in_sum_BT, values_BT, torch.zeros_like(values_BT))

    advantages_BT = torch.zeros_like(values_BT)
    next_value_B = torch.zeros_like(values_BT[:, 0])
    next_advantage_B = torch.zeros_like(values_BT[:, 0])
    for t in reversed(range(values_BT.shape[1])):
        delta_B = rewards_BT[:, t] + gamma * next_value_B - values_BT[:, t]
        # On padding after a row's end the advantage stays 0, so the sum starts at its last token.
        next_advantage_B = (delta_B + gamma * lam * next_advantage_B) * in_sum_BT[:, t]
        next_value_B = values_BT[:, t]
        advantages_BT[:, t] = next_advantage_B
    returns_BT = (advantages_BT + values_BT) * in_sum_BT
    return advantages_BT, returns_BT


def aspect_gae(
    rewards_BTA: Tensor,
    values_BTA: Tensor,
    mask_BT: Tensor,
    gammas: Sequence[float],
    lams: Sequence[float],
    start: str = "own_end",
) -> tuple[Tensor, Tensor]:
    """`gae` of each aspect by itself: advantages_BTA and returns_BTA.

    GAE is linear in rewards and values. So if all aspects have the same gamma and lambda, the sums
    over the aspects are those of `gae` of the summed rewards and the summed values.

    Args:
      gammas, lams: the discount and the lambda of each aspect.
    """
    check_shape("values_BTA", values_BTA, tuple(rewards_BTA.shape))
    by_aspect = zip(rewards_BTA.unbind(-1), values_BTA.unbind(-1), gammas, lams, strict=True)
    parts = [
        gae(rewards_BT, values_BT, mask_BT, gamma, lam, start)
        for rewards_BT, values_BT, gamma, lam in by_aspect
    ]
    advantages, returns = zip(*parts)
    return torch.stack(advantages, -1), torch.stack(returns, -1)


def segment_start_advantages(
    rewards_BT: Tensor, values_BT: Tensor, starts_BT: Tensor, mask_BT: Tensor, gamma: float
) -> tuple[Tensor, Tensor]:
    """Advantages from values that are known where segments start, and the returns they compare.

        R_t = sum_{t <= u < e} gamma^(u - t) r_u + gamma^(e - t) V(s_e)
        A_t = R_t - V(s_b)

    b is the first token of the segment of t, and e that of the next one; after the last segment
    V is 0. VinePPO (Kazemnejad et al. 2024, arXiv 2410.01679, eq. 7) has R_b in place of R_t, which
    contains rewards that do not depend on token t. If the V are unbiased estimates, each from
    rollouts of its own, so is A.

    Args:
      values_BT: V(s_b) on all tokens of a segment.
      starts_BT: true on the first token of every segment.
    """
    check_same_shape(
        rewards_BT=rewards_BT, values_BT=values_BT, starts_BT=starts_BT, mask_BT=mask_BT
    )
    returns_BT = torch.zeros_like(rewards_BT)
    next_B = torch.zeros_like(rewards_BT[:, 0])
    for t in reversed(range(rewards_BT.shape[1])):
        next_B = (rewards_BT[:, t] + gamma * next_B) * mask_BT[:, t]
        returns_BT[:, t] = next_B
        next_B = torch.where(starts_BT[:, t], values_BT[:, t], next_B)
    return (returns_BT - values_BT) * mask_BT, returns_BT


def reward_to_go(rewards_BT: Tensor, mask_BT: Tensor, gamma: float = 1.0) -> Tensor:
    """G_t = sum_{s >= t} gamma^(s - t) r_s over a row's real tokens; 0 on padding."""
    check_same_shape(rewards_BT=rewards_BT, mask_BT=mask_BT)
    rewards_BT = torch.where(mask_BT.bool(), rewards_BT, torch.zeros_like(rewards_BT))
    to_go_BT = torch.zeros_like(rewards_BT)
    next_to_go_B = torch.zeros_like(rewards_BT[:, 0])
    for t in reversed(range(rewards_BT.shape[1])):
        next_to_go_B = (rewards_BT[:, t] + gamma * next_to_go_B) * mask_BT[:, t]
        to_go_BT[:, t] = next_to_go_B
    return to_go_BT


# ---- without a critic ----------------------------------------------------------------------------


def position_mean(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """mean_T: at each position the mean over the responses that reach it, 0 where none does."""
    check_same_shape(values_BT=values_BT, mask_BT=mask_BT)
    values_BT = torch.where(mask_BT.bool(), values_BT, torch.zeros_like(values_BT))
    return values_BT.sum(0) / mask_BT.sum(0).clamp(min=1)


def group_sum(values_B: Tensor, group_B: Tensor) -> Tensor:
    """sum_B: for each rollout the sum over all rollouts of its prompt, itself included."""
    check_same_shape(values_B=values_B, group_B=group_B)
    return _sum_rows_of_group(values_B, group_B)


def _sum_rows_of_group(rows: Tensor, group_B: Tensor) -> Tensor:
    """The sum over the rows of the same group, given to each of them. `rows` is (B,) or (B, S)."""
    n_groups = int(group_B.max()) + 1
    sums = rows.new_zeros(n_groups, *rows.shape[1:]).index_add(0, group_B, rows)
    return sums[group_B]


def group_mean(returns_B: Tensor, group_B: Tensor) -> Tensor:
    """mean_B: the mean return of each rollout's prompt.

    Shao et al. 2024, arXiv 2402.03300, section 4.1.
    """
    check_same_shape(returns_B=returns_B, group_B=group_B)
    group_size_B = group_sum(torch.ones_like(returns_B), group_B)
    return group_sum(returns_B, group_B) / group_size_B


def group_std(returns_B: Tensor, group_B: Tensor) -> Tensor:
    """std_B = sqrt(sum_j (R_j - mean)^2 / (K - 1)), over the K samples of a prompt; 0 of one."""
    check_same_shape(returns_B=returns_B, group_B=group_B)
    squared_deviations_B = (returns_B - group_mean(returns_B, group_B)) ** 2
    group_size_B = group_sum(torch.ones_like(returns_B), group_B)
    return (group_sum(squared_deviations_B, group_B) / (group_size_B - 1).clamp(min=1)).sqrt()


def judged_groups(group_B: Tensor, applies_B: Tensor) -> Tensor:
    """group_B with a group of its own for each rollout to which a reward does not apply."""
    own_B = group_B.max() + 1 + torch.arange(len(group_B), device=group_B.device)
    return torch.where(applies_B, group_B, own_B)


def group_spread(
    advantages_BT: Tensor, rewards_BT: Tensor, mask_BT: Tensor, group_B: Tensor
) -> Tensor:
    """spread_B = sqrt(sum_j mean_t A_(j,t)^2 / (K - 1)), over the K samples of a prompt; 0 of one.

    For A_(j,t) = R_j - mean, the same on all tokens of response j, this is `group_std`. For
    advantages that differ within a response it also measures these differences, so it is not 0 if
    all samples have the same return but earn it at different places.

    Args:
      advantages_BT: centred advantages.
      rewards_BT: the rewards they were computed from. A spread within the rounding error of the
        sum over a response is returned as 0.
    """
    check_same_shape(advantages_BT=advantages_BT, rewards_BT=rewards_BT, mask_BT=mask_BT)
    check_shape("group_B", group_B, (len(mask_BT),))
    tokens_B = mask_BT.sum(1).clamp(min=1)
    mean_square_B = (advantages_BT**2 * mask_BT).sum(1) / tokens_B
    group_size_B = group_sum(torch.ones_like(mean_square_B), group_B)
    spread_B = (group_sum(mean_square_B, group_B) / (group_size_B - 1).clamp(min=1)).sqrt()
    size_B = group_sum((rewards_BT.abs() * mask_BT).sum(1), group_B) / group_size_B
    has_spread_B = (group_size_B > 1) & (spread_B > ROUNDING * size_B)
    return torch.where(has_spread_B, spread_B, torch.zeros_like(spread_B))


def group_normalized(
    advantages_BT: Tensor, rewards_BT: Tensor, mask_BT: Tensor, group_B: Tensor
) -> Tensor:
    """A / (max(std, spread) + eps): centred advantages in units of the samples of each group.

    All segments of a prompt have the same divisor, so they stay comparable. The standard deviation
    of the whole returns (`group_std`) can be 0 although segments differ. So the divisor is
    `group_spread` where that is larger; it keeps the advantages of size 1. For whole responses the
    two are equal. A group without any spread gets 0, since its advantages are rounding errors.

    Args:
      rewards_BT: the rewards they were computed from, see `group_spread`.
    """
    # The spread of the centred returns at the first token, not of the returns themselves: these
    # count 0 for a reward that does not apply to a response.
    std_B = group_std(advantages_BT[:, 0], group_B)
    spread_B = group_spread(advantages_BT, rewards_BT, mask_BT, group_B)
    divisor_B = torch.maximum(std_B, spread_B) + EPS
    factor_B = torch.where(spread_B > 0, 1 / divisor_B, torch.zeros_like(divisor_B))
    return advantages_BT * factor_B[:, None]


def leave_one_out(returns_B: Tensor, group_B: Tensor) -> Tensor:
    """b_i = sum_{j != i} R_j / (K - 1): the mean return of the prompt's other samples; 0 of none.

    Kool et al. 2019; Ahmadian et al. 2024, arXiv 2402.14740, eq. 8.
    """
    check_same_shape(returns_B=returns_B, group_B=group_B)
    group_size_B = group_sum(torch.ones_like(returns_B), group_B)
    return (group_sum(returns_B, group_B) - returns_B) / (group_size_B - 1).clamp(min=1)


def segment_baseline(
    to_go_BT: Tensor, index_BT: Tensor, mask_BT: Tensor, group_B: Tensor, leave_out: bool
) -> Tensor:
    """baseline_BT: what the samples of a prompt earn from the start of the same segment on.

    Let m = m_t be the number of segments that response i has completed before token t, and t_j(m)
    the first token of response j that has at least m completed segments before it. Then

        b_(i,t) = mean of G_(j, t_j(m)) over the responses j to the same prompt that reach m

    with the reward-to-go G_(j,t) = sum_{s >= t} gamma^(s-t) r_(j,s).

    With `leave_out` the mean is over j != i, and 0 if no other response reaches m. It then
    depends on the other responses and on what i wrote before t, but not on i's token t:
    E[b grad log pi(a_t)] = 0, so the gradient stays unbiased.

    Args:
      to_go_BT: reward-to-go, 0 on padding.
      index_BT: m_t, the number of segments completed before token t; it never falls along a row.
      mask_BT: 1 on real tokens.
      group_B: the prompt of each response.
      leave_out: exclude response i from its own baseline.
    """
    check_same_shape(to_go_BT=to_go_BT, index_BT=index_BT, mask_BT=mask_BT)
    B, T = mask_BT.shape
    check_shape("group_B", group_B, (B,))
    real_BT = mask_BT.bool()

    # The last m of each response: how many segments are complete before its last token; -1 for an
    # empty response. S = M + 1 counts m = 0 ... M, the largest m of the batch.
    last_m_B = torch.where(real_BT, index_BT, torch.full_like(index_BT, -1)).amax(1)
    M = int(last_m_B.max().clamp(min=0))
    m_S = torch.arange(M + 1, device=mask_BT.device)

    # t_j(m), by binary search in each row. Rows must be sorted: padding gets a number above any m.
    above_all = T + int(index_BT.max()) + 1
    sorted_index_BT = torch.where(real_BT, index_BT, torch.full_like(index_BT, above_all))
    first_token_BS = torch.searchsorted(
        sorted_index_BT.contiguous(), m_S.expand(B, -1).contiguous()
    )

    # G_(j, t_j(m)), and 0 where response j does not reach m.
    reached_BS = (m_S <= last_m_B[:, None]).to(to_go_BT.dtype)
    start_to_go_BS = to_go_BT.gather(1, first_token_BS.clamp(max=T - 1)) * reached_BS

    # Sum and number of the responses to the same prompt that reach m ...
    total_BS = _sum_rows_of_group(start_to_go_BS, group_B)
    count_BS = _sum_rows_of_group(reached_BS, group_B)
    # ... without response i itself.
    if leave_out:
        total_BS = total_BS - start_to_go_BS
        count_BS = count_BS - reached_BS

    # Their mean, for each response i and each m.
    mean_BS = torch.where(
        count_BS > 0, total_BS / count_BS.clamp(min=1), torch.zeros_like(total_BS)
    )
    # Each token reads the mean of its own m_t.
    return mean_BS.gather(1, sorted_index_BT.clamp(max=M)) * mask_BT


def response_advantages(
    rewards_BT: Tensor, mask_BT: Tensor, group_B: Tensor, gamma: float, leave_out: bool
) -> Tensor:
    """advantages_BT = R_i - b_i, the same on all tokens of a response.

    Args:
      leave_out: b_i is the mean return of the prompt's other responses, else of all of them.
    """
    check_same_shape(rewards_BT=rewards_BT, mask_BT=mask_BT)
    check_shape("group_B", group_B, (len(mask_BT),))
    returns_B = reward_to_go(rewards_BT, mask_BT, gamma)[:, 0]
    baseline = leave_one_out if leave_out else group_mean
    baseline_B = baseline(returns_B, group_B)
    return (returns_B - baseline_B)[:, None] * mask_BT


def segment_advantages(
    rewards_BT: Tensor,
    index_BT: Tensor,
    mask_BT: Tensor,
    group_B: Tensor,
    gamma: float,
    leave_out: bool,
) -> Tensor:
    """advantages_BT = G_t - b_t of one reward: reward-to-go minus `segment_baseline`.

    Args:
      mask_BT: 0 on the responses to which the reward does not apply: they get no advantage from
        it, and it leaves them out of the baselines.
    """
    to_go_BT = reward_to_go(rewards_BT, mask_BT, gamma)
    return to_go_BT - segment_baseline(to_go_BT, index_BT, mask_BT, group_B, leave_out)
