"""The losses with a ratio, and how a minibatch averages them (`algorithm.loss`)."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from rl_helpers import CountWord, config, lengths_mask, metrics, rollout, trainer
from rounding import assert_equal_up_to_rounding
from slow import with_slow

from fgrlhf.algorithms.advantages import group_normalized
from fgrlhf.algorithms.config import GRPOConfig, RLOOConfig
from fgrlhf.algorithms.kl import EntropyController, TemperatureController
from fgrlhf.algorithms.losses import (
    cispo_loss,
    clipped_policy_loss,
    mean_log_ratio,
    policy_gradient_loss,
    ratio_loss,
)
from fgrlhf.algorithms.metrics import learned_mask, response_weights
from fgrlhf.algorithms.sections import LossConfig
from fgrlhf.base.errors import UserError
from fgrlhf.reward import CombinedReward
from fgrlhf.types import Advantages, PolicyOutput
from fgrlhf.update import optimizer_step

MASK_BT = lengths_mask([4, 2, 3])
OLD_BT = torch.tensor(
    [[-1.0, -2.0, -0.5, -1.5], [-0.7, -1.1, 0, 0], [-2.0, -0.3, -0.9, 0]], dtype=torch.double
)
CHANGE_BT = torch.tensor(
    [[0.3, -0.4, 0.1, 1.2], [-0.6, 0.05, 0, 0], [2.0, -0.1, 0.4, 0]], dtype=torch.double
)
ADVANTAGE_B = torch.tensor([1.0, -0.5, -2.0], dtype=torch.double)


def loss_and_gradient(kind, level, delta, clip, advantages_BT=None, segment_BT=None):
    """The loss of the three responses above, and its gradient in the new log-probabilities."""
    new_BT = (OLD_BT + CHANGE_BT).requires_grad_()
    old = rollout(MASK_BT, logprobs_BT=OLD_BT)
    if advantages_BT is None:
        advantages_BT = ADVANTAGE_B[:, None] * MASK_BT
    advantages = Advantages(advantages_BT, segment_BT=segment_BT)
    settings = LossConfig(cliprange=list(clip), type=kind, importance_level=level, delta=delta)
    loss_BT, _ = ratio_loss(PolicyOutput(new_BT), old, advantages, settings)
    weights_B = response_weights(kind, MASK_BT.sum(1), 5)
    loss = (loss_BT * MASK_BT * weights_B[:, None]).sum()
    loss.backward()
    return loss.item(), new_BT.grad


# From `_compute_loss` of GRPOTrainer in TRL 1.16.0, with these numbers, `max_completion_length` 5
# and `epsilon`, `epsilon_high` as in `clip`. TRL's names: token is dapo, response is grpo, constant
# is dr_grpo, and epsilon_high of cispo is the bound itself, 1.3 and 1.4 here.
OF_TRL = [
    ("token", "token", None, (0.2, 0.3), 1.7912868, [0, -0.07448, -0.122797, 0], 1.642012),
    ("token", "token", 4.0, (0.2, 0.3), 1.0381632, [0, -0.07448, -0.122797, 0], 0),
    ("response", "token", None, (0.2, 0.3), 1.9642524, [0, -0.05586, -0.092098, 0], 1.642012),
    ("constant", "token", None, (0.2, 0.3), 1.0747721, [0, -0.044688, -0.073678, 0], 0.985207),
    (
        *("cispo", "token", None, (0.2, 0.3), 0.0464802),
        *([-0.144444, -0.07448, -0.122797, -0.144444], 0.288889),
    ),
    ("token", "sequence", None, (0.3, 0.4), 0.9195123, [-0.149984] * 4, 0.478351),
    ("response", "sequence", None, (0.3, 0.4), 1.1116951, [-0.112488] * 4, 0.478351),
    ("constant", "sequence", 1.6, (0.3, 0.4), 0.3306758, [-0.089991] * 4, 0),
    ("cispo", "sequence", None, (0.3, 0.4), 0.190774, [-0.149984] * 4, 0.311111),
]


@pytest.mark.parametrize("kind, level, delta, clip, loss, first_row, last_slope", OF_TRL)
def test_losses_and_gradients_are_those_of_trl(
    kind, level, delta, clip, loss, first_row, last_slope
):
    result, gradient_BT = loss_and_gradient(kind, level, delta, clip)
    assert result == pytest.approx(loss, abs=1e-5)
    assert gradient_BT[0].tolist() == pytest.approx(first_row, abs=1e-5)
    assert gradient_BT[2, 0].item() == pytest.approx(last_slope, abs=1e-5)


# ---- the ratio of a segment ----------------------------------------------------------------------


def test_the_ratio_of_a_segment_by_hand():
    log_ratio_BT = torch.tensor([[0.2, 0.4, -0.3, 9.0]], requires_grad=True)
    segment_BT = torch.tensor([[0, 0, 1, 1]])
    mean_BT = mean_log_ratio(log_ratio_BT, segment_BT, torch.tensor([[1, 1, 1, 0]]))
    assert mean_BT[0, :3].tolist() == pytest.approx([0.3, 0.3, -0.3], abs=1e-6)
    # each token has the gradient of its own log-ratio, times what it is worth
    (mean_BT[0, :3] * torch.tensor([1.0, 2.0, 4.0])).sum().backward()
    assert log_ratio_BT.grad.tolist() == [[1, 2, 4, 0]]


DENSE_BT = torch.tensor(
    [[1.0, -0.5, 2.0, 0.3], [-1.0, 0.7, 0, 0], [0.4, -2.0, 1.1, 0]], dtype=torch.double
)


@pytest.mark.parametrize("kind", ["token", "response", "constant", "cispo"])
@pytest.mark.parametrize("segment_T, level", [([0, 1, 2, 3], "token"), ([0, 0, 0, 0], "sequence")])
def test_segments_of_one_token_and_of_a_whole_response(kind, segment_T, level):
    segment_BT = torch.tensor([segment_T] * 3)
    result = loss_and_gradient(kind, "segment", None, (0.2, 0.3), DENSE_BT, segment_BT)
    expected = loss_and_gradient(kind, level, None, (0.2, 0.3), DENSE_BT)
    assert result[0] == pytest.approx(expected[0], abs=1e-12)
    torch.testing.assert_close(result[1], expected[1])


def test_the_gradient_of_segments_with_equal_advantages_is_that_of_their_geometric_mean():
    """The advantage times the mean gradient of the tokens, as autograd computes it."""
    segment_BT = torch.tensor([[0, 0, 1, 1]])
    log_ratio_BT = torch.tensor([[0.1, -0.05, 0.02, 0.08]], dtype=torch.double, requires_grad=True)
    advantages_BT = torch.tensor([[1.5, 1.5, -2.0, -2.0]], dtype=torch.double)
    mean_BT = mean_log_ratio(log_ratio_BT, segment_BT, torch.ones(1, 4))
    loss_BT, _, _ = clipped_policy_loss(mean_BT, advantages_BT, 0.2)
    (gradient_BT,) = torch.autograd.grad(loss_BT.sum(), log_ratio_BT)
    by_segment = log_ratio_BT.view(1, 2, 2).mean(2)
    plain = -(advantages_BT.view(1, 2, 2) * by_segment.exp()[..., None]).sum()
    (expected_BT,) = torch.autograd.grad(plain, log_ratio_BT)
    torch.testing.assert_close(gradient_BT, expected_BT)


def test_sequence_ratios_keep_the_place_of_dense_advantages():
    """The gradient of a token is proportional to its own advantage."""
    _, gradient_BT = loss_and_gradient("token", "sequence", None, (0.9, 0.9), DENSE_BT)
    ratio = math.exp(CHANGE_BT[0].mean())
    expected = [-ratio * a / 9 for a in DENSE_BT[0].tolist()]
    assert gradient_BT[0].tolist() == pytest.approx(expected, rel=1e-5)


# ---- bounds of the ratio -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ratio, advantage, loss, slope",
    [
        (5.0, -2.0, 6.0, 0.0),  # more likely although bad: bounded by delta
        (2.0, -2.0, 4.0, 4.0),  # below delta: as in PPO
        (5.0, 2.0, -2.4, 0.0),  # good: clipped by the range, whatever delta is
        (0.5, -2.0, 1.6, 0.0),
    ],
)
def test_delta_by_hand(ratio, advantage, loss, slope):
    log_ratio_BT = torch.tensor([[math.log(ratio)]], requires_grad=True)
    loss_BT, _, _ = clipped_policy_loss(log_ratio_BT, torch.tensor([[advantage]]), 0.2, delta=3.0)
    loss_BT.sum().backward()
    assert loss_BT.item() == pytest.approx(loss, rel=1e-5)
    assert log_ratio_BT.grad.item() == pytest.approx(slope, rel=1e-5)


def test_cispo_by_hand():
    """The weight is min(ratio, 1.3): 1, .5 and 1.3; every token keeps its gradient."""
    new_BT = torch.tensor([[-1.0, -2.0, -3.0]], requires_grad=True)
    log_ratio_BT = torch.tensor([[1.0, 0.5, 5.0]]).log()
    advantages_BT = torch.tensor([[2.0, -1.0, 1.0]])
    loss_BT, bounded_BT = cispo_loss(log_ratio_BT, new_BT, advantages_BT, 0.3)
    loss_BT.sum().backward()
    assert loss_BT[0].tolist() == pytest.approx([2.0, -1.0, 3.9], abs=1e-6)
    assert new_BT.grad[0].tolist() == pytest.approx([-2.0, 0.5, -1.3], abs=1e-6)
    assert bounded_BT.tolist() == [[0, 0, 1]]


def test_at_ratio_one_cispo_is_the_policy_gradient():
    new_BT = OLD_BT.clone().requires_grad_()
    loss_BT, _ = cispo_loss(new_BT - OLD_BT, new_BT, DENSE_BT, 0.2)
    assert torch.equal(loss_BT, policy_gradient_loss(new_BT, DENSE_BT))


# ---- means ---------------------------------------------------------------------------------------


def test_weights_of_responses_by_hand():
    lengths_B = torch.tensor([4, 0, 2])
    for kind in ("token", "cispo"):
        assert response_weights(kind, lengths_B, 8).tolist() == pytest.approx([1 / 6] * 3)
    result = response_weights("response", lengths_B, 8).tolist()
    assert result == pytest.approx([1 / 12, 1 / 3, 1 / 6])
    assert response_weights("constant", lengths_B, 8).tolist() == pytest.approx([1 / 24] * 3)
    assert response_weights("token", torch.zeros(2), 8).isfinite().all()


def test_responses_that_are_left_out_by_hand():
    mask_BT = lengths_mask([2, 3, 1])
    old = rollout(mask_BT, finished=(True, False, True))
    advantages = Advantages(torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.5, 0.0], [0.0, 0.0, 0.0]]))
    assert torch.equal(learned_mask([], advantages, old), mask_BT)
    assert learned_mask(["truncated"], advantages, old).sum(1).tolist() == [2, 0, 1]
    assert learned_mask(["equal"], advantages, old).sum(1).tolist() == [2, 3, 0]
    assert learned_mask(["equal", "truncated"], advantages, old).sum(1).tolist() == [2, 0, 0]
    with pytest.raises(ValueError, match="finished is None"):
        learned_mask(["truncated"], advantages, replace(old, finished=None))


def test_the_divisor_of_a_batch_by_hand():
    """Two prompts, whose samples deviate from their means by 1 and by 3: std = sqrt(20 / 3)."""
    advantages_BT = torch.tensor([[1.0], [-1.0], [3.0], [-3.0]])
    mask_BT, one = torch.ones(4, 1), torch.zeros(4, dtype=torch.long)
    result = group_normalized(advantages_BT, advantages_BT, mask_BT, one)
    divisor = math.sqrt(20 / 3) + 1e-4
    assert result[:, 0].tolist() == pytest.approx([x / divisor for x in (1, -1, 3, -3)], abs=1e-6)


# ---- in the trainer ------------------------------------------------------------------------------


def one_update(folder, kind, size, **changes):
    """The gradients of one optimiser step in micro-batches of `size` responses."""
    cfg = config(
        folder,
        algorithm__name="grpo",
        train__micro_batch_size=size,
        env__train_num_samples_per_input=4,
        train__max_grad_norm=None,
        **{f"algorithm__loss__{key}": value for key, value in changes.items()},
    )
    run = trainer(cfg, kind)
    # answers of different lengths, of which some are cut
    run.actor_critic.policy.model.generation_config.eos_token_id = [1, 5, 10, 15, 20]
    old, rewards = run.collect_and_score()
    assert len(set(old.finished)) == 2
    moved = replace(old, logprobs_BT=old.logprobs_BT + 0.3 * (old.response_ids_BT % 3 - 1))
    advantages = run.compute_advantages(moved, rewards)[1]
    optimizer_step(run, moved, advantages, torch.arange(16), 1)
    return {n: p.grad.clone() for n, p in run.actor_critic.named_parameters() if p.grad is not None}


CHANGES = [
    {"type": "response", "importance_level": "segment"},
    {"type": "constant", "leave_out": ["truncated"]},
    {"type": "token", "importance_level": "sequence", "leave_out": ["truncated", "equal"]},
    {"type": "cispo", "importance_level": "segment"},
]
KINDS_AND_CHANGES = [(kind, changes) for kind in ("t5", "gpt2") for changes in CHANGES]


@pytest.mark.parametrize(
    "kind, changes",
    with_slow(KINDS_AND_CHANGES, lambda kind, changes: changes is CHANGES[3]),
)
def test_micro_batches_do_not_change_the_update(kind, changes, tmp_path):
    whole = one_update(tmp_path, kind, 16, **changes)
    plain = one_update(tmp_path, kind, 16)
    assert any(not torch.allclose(whole[name], plain[name], rtol=0.01) for name in whole)
    for size in (5, 1):
        parts = one_update(tmp_path, kind, size, **changes)
        assert_equal_up_to_rounding(list(parts.values()), list(whole.values()))


def updated(folder, **changes):
    """A run of one step, and its metrics."""
    cfg = config(folder, train__total_episodes=8, **changes)
    run = trainer(cfg)
    run.train()
    return run, metrics(folder)[0]


def test_the_share_of_responses_that_are_left_out_is_logged(tmp_path):
    run = trainer(config(tmp_path, algorithm__loss__leave_out=["truncated"]))
    run.actor_critic.policy.model.generation_config.eos_token_id = [1, 5, 10, 15, 20]
    old, _ = run.collect_and_score()
    assert len(set(old.finished)) == 2
    run.train(until=1)
    expected = 1 - sum(old.finished) / len(old.finished)
    assert metrics(tmp_path)[0]["loss/left_out"] == pytest.approx(expected)
    _, logged = updated(tmp_path / "all")
    assert "loss/left_out" not in logged


def test_a_note_says_once_that_every_response_is_left_out(tmp_path, capsys):
    """A reward that no response earns gives no advantage."""
    changes = {"algorithm__name": "grpo", "algorithm__loss__leave_out": ["equal"]}
    reward = CombinedReward({"cat": CountWord("no word")})
    trainer(config(tmp_path, **changes), reward=reward).train(until=2)
    assert [row["loss/left_out"] for row in metrics(tmp_path)] == [1, 1]
    assert capsys.readouterr().out.count("left out every response") == 1


def test_rloo_with_a_ratio_is_rloo_at_ratio_one(tmp_path):
    once = {"algorithm__name": "rloo", "train__n_minibatches": 1}
    plain, _ = updated(tmp_path / "a", **once)
    clipped, logged = updated(
        *[tmp_path / "b"],
        **once,
        algorithm__loss__importance_level="token",
        train__n_ppo_epoch_per_rollout=1,
    )
    assert logged["clipfrac/policy"] == 0
    pairs = zip(plain.actor_critic.parameters(), clipped.actor_critic.parameters())
    for one, other in pairs:
        torch.testing.assert_close(one, other)


def test_rloo_with_a_ratio_uses_a_rollout_again(tmp_path):
    run = trainer(config(tmp_path, algorithm__name="rloo", algorithm__loss__target_kl=1e9))
    assert not run.algorithm.reuses_rollouts
    assert run.config.algorithm.unused == ("loss.target_kl",)
    level = {"algorithm__loss__importance_level": "segment", "algorithm__loss__target_kl": 1e9}
    run, logged = updated(tmp_path / "b", algorithm__name="rloo", **level)
    assert run.algorithm.reuses_rollouts
    assert logged["update/steps"] == 2 * 2  # two minibatches in each of two epochs


def test_an_update_ends_at_its_target_kl(tmp_path):
    far = {"train__lr": 0.1, "algorithm__name": "grpo"}
    run, logged = updated(tmp_path / "a", **far, algorithm__loss__target_kl=1e-6)
    assert 1 <= logged["update/steps"] < 4  # the KL is 0 before the first step, which is taken
    assert run.optimizer.state
    _, logged = updated(tmp_path / "b", **far, algorithm__loss__target_kl=1e6)
    assert logged["update/steps"] == 4


def test_the_entropy_coefficient_by_hand():
    """Low: it rises, and acts. High: it falls, at most to 0, and does not act."""
    entropy = EntropyController(0.5, target=1.0)
    seen = []
    for measured in (0.9, 0.8, 1.1, 0.7, 1.2, 1.3, 1.4, 1.0):
        entropy.update(measured)
        seen.append((entropy.alpha, entropy.coef))
    expected = [(0.5, 0.5), (1.0, 1.0), (0.5, 0.0), (1.0, 1.0), (0.5, 0.0), (0.0, 0.0), (0.0, 0.0)]
    assert seen == [*expected, (0.5, 0.5)]
    fixed = EntropyController(0.5)
    fixed.update(0.0)
    assert fixed.coef == 0.5


def test_an_adapted_entropy_coefficient_is_logged_and_resumed(tmp_path):
    changes = {"algorithm__entropy": {"coef": 0.25, "target": 100.0}}  # always below: it rises
    run = trainer(config(tmp_path, **changes))
    run.train(until=3)
    run = trainer(config(tmp_path, **changes))
    run.train()
    assert [row["entropy_coef"] for row in metrics(tmp_path)[:4]] == [0.0, 0.25, 0.5, 0.75]
    assert run.entropy.coef == 0.25 * run.step


def test_the_entropy_coefficient_waits_for_the_policy(tmp_path):
    changes = {"algorithm__entropy": {"coef": 0.25, "target": 100.0}}
    trainer(config(tmp_path, train__n_critic_warmup_steps=3, **changes)).train(until=6)
    coefs = [row["entropy_coef"] for row in metrics(tmp_path) if "entropy_coef" in row]
    assert coefs[:6] == [0.0, 0.0, 0.0, 0.0, 0.25, 0.5]


def test_the_sampling_temperature_by_hand():
    temperature = TemperatureController(0.8, target=0.5)
    assert temperature.value == 0.8  # no rewards are known yet
    seen = []
    for reward_std in (0.5, 0.4, 1.0, 0.1, 5.0, 0.0):
        temperature.update(reward_std)
        seen.append(temperature.value)
    assert seen == pytest.approx([0.8, 1.0, 0.4, 1.6, 0.4, 1.6])  # within a factor of 2 of 0.8
    fixed = TemperatureController(0.8)
    fixed.update(0.1)
    assert fixed.value == 0.8


def test_an_adapted_temperature_samples_scores_and_is_resumed(tmp_path):
    """Each step has the temperature of the rewards before it, in sampling and log-probabilities."""
    run = trainer(config(tmp_path, env__target_reward_std=0.5))
    run.train(until=3)
    run = trainer(config(tmp_path, env__target_reward_std=0.5))
    used = []
    score = run.compute_advantages

    def recorded(rollout, rewards):
        output, _ = run.policy.forward(
            rollout.prompt_ids_BP,
            rollout.prompt_mask_BP,
            rollout.response_ids_BT,
            rollout.response_mask_BT,
            temperature=run.sampling.temperature,
        )
        assert torch.allclose(output.logprobs_BT, rollout.logprobs_BT, atol=1e-5)
        used.append((run.sampling.temperature, rewards.total_BT.sum(1).std(correction=0).item()))
        return score(rollout, rewards)

    run.compute_advantages = recorded
    run.train()
    rows = metrics(tmp_path)
    assert rows[0]["temperature"] == 1.0
    assert [row["temperature"] for row in rows[3 : 3 + len(used)]] == [value for value, _ in used]
    for (_, reward_std), (following, _) in itertools.pairwise(used):
        assert following == pytest.approx(min(max(0.5 / max(reward_std, 1e-9), 0.5), 2.0))
    assert len({value for value, _ in used}) > 1


# ---- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes, text",
    [
        ({"algorithm__loss__delta": 1.1}, "algorithm.loss.delta: it is 1.1, but the ratio"),
        (
            {"algorithm__loss": {"type": "cispo", "delta": 4.0}},
            "algorithm.loss.delta: 4.0 is not read, since cispo bounds every ratio",
        ),
        ({"algorithm__entropy__target": 1.0}, "algorithm.entropy.target: it is not read"),
        ({"algorithm__loss__cliprange": [0.2]}, "loss.cliprange: a list of 1, but the ratio has"),
        ({"algorithm__loss__cliprange": {"low": 1.1}}, "algorithm.loss.cliprange: "),
        (
            {"algorithm__loss": {"cliprange": [0.2, 0.9], "delta": 1.5}},
            "but the ratio is clipped only above",
        ),
        (
            {"env__target_reward_std": 1.0, "model__train_generation_kwargs__do_sample": False},
            "but model.train_generation_kwargs.do_sample is false: set it to true",
        ),
        ({"algorithm__name": "grpo", "algorithm__normalize": True}, "unknown key"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes, text, tmp_path):
    with pytest.raises(UserError, match=text.replace(".", r"\.")):
        config(tmp_path, **changes)


def test_settings_of_the_loss_that_an_algorithm_does_not_read_are_named():
    loss = {"type": "response", "cliprange": 0.1, "delta": 4.0, "target_kl": 0.1}
    assert GRPOConfig(loss=loss).unused == ()
    assert RLOOConfig(loss=loss).unused == ("loss.cliprange", "loss.delta", "loss.target_kl")
    assert RLOOConfig(loss={**loss, "importance_level": "token"}).unused == ()
