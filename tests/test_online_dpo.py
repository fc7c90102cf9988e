"""DPO on the policy's own samples (`algorithm.name: online_dpo`)."""

import math

import pytest
import torch
from rl_helpers import CountWord, config, lengths_mask, metrics, rollout, trainer
from rounding import assert_equal_up_to_rounding

from fgrlhf.algorithms.config import OnlineDPOConfig
from fgrlhf.algorithms.online_dpo import OnlineDPO, best_and_worst, rows_of_pairs
from fgrlhf.base.errors import UserError
from fgrlhf.reward import CombinedReward
from fgrlhf.text_types import SegmentScore
from fgrlhf.types import Advantages, PolicyOutput, TokenReward
from fgrlhf.update import optimizer_step


def settings(folder, **changes):
    return config(folder, algorithm__name="online_dpo", **changes)


# ---- pairs ---------------------------------------------------------------------------------------


def sides(scores, groups, may_be=None):
    scores_B = torch.tensor(scores)
    may_be_B = torch.tensor(may_be or [True] * len(scores))
    return best_and_worst(scores_B, torch.tensor(groups), may_be_B, scores_B.abs()).tolist()


def test_the_best_and_the_worst_sample_of_each_prompt_by_hand():
    assert sides([1.0, 3.0, 2.0, 5.0, 4.0, 4.0], [0, 0, 0, 1, 1, 1]) == [-1, 1, 0, 1, -1, 0]


def test_ties_and_single_candidates_give_no_pair():
    assert sides([2.0, 2.0, 1.0, 1.0 + 1e-9], [0, 0, 1, 1]) == [0, 0, 0, 0]
    assert sides([1.0, 3.0, 2.0], [0, 0, 0], [True, False, True]) == [-1, 0, 1]
    assert sides([1.0, 3.0], [0, 0], [True, False]) == [0, 0]


def test_every_prompt_has_two_consecutive_rows():
    side_B = torch.tensor([0.0, -1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    group_B = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    assert rows_of_pairs(side_B, group_B).tolist() == [1, 3, 4, 5]


def judged(*rewards_BA, finished=None):
    """Samples of one prompt, of two tokens each, with rewards a and b at their ends."""
    B = len(rewards_BA)
    mask_BT = lengths_mask([2] * B)
    by_aspect, segments = {}, {}
    for i, name in enumerate(("a", "b")):
        rewards_BT = torch.zeros(B, 2)
        rewards_BT[:, 1] = torch.tensor([row[i] for row in rewards_BA])
        by_aspect[name] = rewards_BT
        segments[name] = [[SegmentScore(0, None, row[i])] for row in rewards_BA]
    group_B = torch.zeros(B, dtype=torch.long)
    old = rollout(mask_BT, group_B=group_B, finished=finished)
    return old, TokenReward(by_aspect, segments, mask_BT)


def pair(rewards_BA, finished=None, **changes):
    old, rewards = judged(*rewards_BA, finished=finished)
    algorithm = OnlineDPO(OnlineDPOConfig(**changes))
    # a KL penalty in the reward would reverse the order
    penalized_BT = -rewards.total_BT
    return algorithm.advantages(old, penalized_BT, rewards).advantages_BT[:, 0].tolist()


def test_rewards_are_summed_and_the_penalty_is_not_read():
    assert pair([(1.0, 0.0), (0.0, 3.0), (0.5, 0.2)]) == [0, 1, -1]


def test_with_group_normalisation_a_small_reward_counts_as_much():
    rows = [(0.0, 0.03), (2.0, 0.01), (1.0, 0.02), (1.1, 0.03)]
    assert pair(rows) == [-1, 1, 0, 0]
    # in units of their spread: 0.03 is far above the mean of b, and 0.01 far below it
    spread = [torch.tensor([row[i] for row in rows]) for i in (0, 1)]
    total = sum((x - x.mean()) / (x.std() + 1e-4) for x in spread)
    expected = [0.0] * 4
    expected[int(total.argmax())], expected[int(total.argmin())] = 1, -1
    assert pair(rows, normalize_aspects="group") == expected != pair(rows)


def test_truncated_responses_are_in_no_pair():
    rows, finished = [(3.0, 0.0), (2.0, 0.0), (1.0, 0.0)], (False, True, True)
    leave_out = {"leave_out": ["truncated"]}
    assert pair(rows, finished) == [1, 0, -1]
    assert pair(rows, finished, loss=leave_out) == [0, 1, -1]


# ---- the loss ------------------------------------------------------------------------------------


def reference_loss(kind: str, m: float, beta: float) -> float:
    if kind == "sigmoid":
        return math.log1p(math.exp(-beta * m))
    return max(0.0, 1 - beta * m) if kind == "hinge" else (m - 1 / (2 * beta)) ** 2


@pytest.mark.parametrize("kind", ["sigmoid", "ipo", "hinge"])
def test_the_loss_by_hand(kind):
    """Two prompts; the first has a pair of a worse and a better response, the second a tie."""
    mask_BT = lengths_mask([2, 3, 1, 2])
    reference_BT = torch.full((4, 3), -2.0)
    logprobs_BT = torch.tensor([[-1.0, -1.5, 9.0], [-3.0, -2.0, -2.25], [-1.0] * 3, [-1.0] * 3])
    side_B = torch.tensor([-1.0, 1.0, 0.0, 0.0])
    old = rollout(mask_BT, ref_logprobs_BT=reference_BT * mask_BT)
    algorithm = OnlineDPO(OnlineDPOConfig(pair_loss=kind, beta=0.5))
    new = PolicyOutput(logprobs_BT * mask_BT, entropy_BT=torch.zeros(4, 3))
    advantages = compared(side_B, mask_BT)
    loss = algorithm.loss(new, old, advantages)
    m = (-1.0 + 0.0 - 0.25) - (1.0 + 0.5)
    expected = torch.tensor([reference_loss(kind, m, 0.5)] * 2 + [0.0] * 2)
    torch.testing.assert_close(loss.loss_BT, expected[:, None] * mask_BT)
    torch.testing.assert_close(loss.metrics["dpo/margin"][1], torch.full((3,), 0.5 * m))
    assert loss.metrics["dpo/accuracy"].sum() == 0


def compared(side_B, mask_BT) -> Advantages:
    return Advantages(side_B[:, None] * mask_BT)


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_an_update_has_the_gradient_of_the_mean_over_prompts(kind, tmp_path):
    """Whatever the number of micro-batches, and although responses differ in length."""
    expected, results = None, []
    for size in (8, 4, 2):
        cfg = settings(
            tmp_path,
            env__train_num_samples_per_input=3,
            train__n_minibatches=1,
            train__micro_batch_size=size,
            train__max_grad_norm=None,
        )
        run = trainer(cfg, kind)
        with torch.no_grad():  # the policy is not the reference
            run.policy.model.get_input_embeddings().weight.mul_(1.1)
        run.policy.model.generation_config.eos_token_id = [1, 5, 10, 15, 20]
        found, _ = run.collect_and_score()
        side_B = torch.tensor([1.0, 0.0, -1.0] * 3 + [0.0] * 3)
        rows_B = rows_of_pairs(side_B, found.group_B)
        pairs = found.rows(rows_B)
        advantages = compared(side_B[rows_B], pairs.response_mask_BT)
        if expected is None:
            run.actor_critic.zero_grad()
            batch = (pairs.prompt_ids_BP, pairs.prompt_mask_BP)
            mask_BT = pairs.response_mask_BT
            new, _ = run.policy(*batch, pairs.response_ids_BT, mask_BT)
            h_B = ((new.logprobs_BT - pairs.ref_logprobs_BT) * mask_BT).sum(1)
            assert len(set(mask_BT.sum(1).tolist())) > 1
            m_N = torch.stack([h_B[0] - h_B[1], h_B[2] - h_B[3], h_B[4] - h_B[5]])
            (-torch.nn.functional.logsigmoid(0.1 * m_N).sum() / 4).backward()  # of four prompts
            expected = [p.grad.clone() for p in run.policy.parameters() if p.grad is not None]
        optimizer_step(run, pairs, advantages, torch.arange(8), 1)
        named = run.policy.named_parameters()
        results.append([p.grad.clone() for _, p in named if p.grad is not None])
    for result in results:
        assert_equal_up_to_rounding(result, expected)


def test_pairs_stay_together_in_every_epoch(tmp_path):
    run = trainer(settings(tmp_path, env__train_num_samples_per_input=4))
    for epoch in (0, 1):
        for rows_B in run.minibatches(8, epoch):
            assert all(j == i + 1 and i % 2 == 0 for i, j in rows_B.view(-1, 2).tolist())


def test_ties_are_logged_and_change_nothing(tmp_path):
    nothing = CombinedReward({"cat": CountWord("no such word")})
    run = trainer(settings(tmp_path), reward=nothing)
    before = [p.clone() for p in run.policy.parameters()]
    run.train(until=2)
    assert all(row["dpo/ties"] == 1 for row in metrics(tmp_path))
    assert all(torch.equal(old, new) for old, new in zip(before, run.policy.parameters()))


# ---- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change, part",
    [
        ({"env__train_num_samples_per_input": 1}, "needs a second one"),
        ({"train__n_minibatches": 3}, "multiple of train.n_minibatches=3"),
        ({"train__micro_batch_size": 3}, "make it even"),
    ],
)
def test_sizes_that_would_part_a_pair_are_refused(change, part, tmp_path):
    with pytest.raises(UserError, match=part):
        settings(tmp_path, **change)


def test_a_penalty_in_the_reward_is_named_as_not_read(tmp_path):
    assert "algorithm.kl.coef" in settings(tmp_path).unused_settings()
    for kl in ({"coef": 0.1, "part_of": "loss"}, {"reference": {"sync_every": 5}}):
        unused = settings(tmp_path, algorithm__kl=kl).unused_settings()
        assert not [key for key in unused if key.startswith("algorithm.kl")]
