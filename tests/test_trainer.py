import json
import math
import re
import threading
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from rl_helpers import PROMPTS, CountWord, config, metrics, trainer
from rounding import assert_equal_up_to_rounding

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json
from fgrlhf.base.seeds import derive_seed
from fgrlhf.base_trainer import choice_note
from fgrlhf.evaluation import PolicyResponder, dev_evaluation, evaluate_rows
from fgrlhf.policy import load_policy
from fgrlhf.reward import AtEnd, CombinedReward
from fgrlhf.runs.step_metrics import rollout_metrics
from fgrlhf.stats import Interval
from fgrlhf.task import Task
from fgrlhf.text_types import Prompt, SegmentScore
from fgrlhf.update import optimizer_step
from fgrlhf.utils import masked_mean

KINDS = ["t5", "gpt2"]


def weights(made) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in made.actor_critic.state_dict().items()}


def one_rollout(made):
    rollout, rewards = made.collect_and_score()
    return rollout, made.algorithm.advantages(
        rollout, made.reward.penalized(rewards, rollout, made.kl.coef), rewards
    )


def gradients(made) -> dict[str, torch.Tensor]:
    named = made.actor_critic.named_parameters()
    return {name: p.grad.clone() for name, p in named if p.grad is not None}


def printed(capsys) -> str:
    written = capsys.readouterr()
    return written.out + written.err


def test_it_learns(tmp_path):
    """A policy that is rewarded at the end for each word `cat` writes it more often.

    With dense rewards, every algorithm learns it in tests/test_algorithms.py.
    """
    cfg = config(
        tmp_path,
        model__max_generated_len=12,
        env__train_num_samples_per_input=4,
        algorithm__kl__coef=0.0,
        train__total_episodes=24 * 15,
        train__sampling_batch_size_per_card=6,
        train__micro_batch_size=12,
        train__lr=6e-3,
    )
    reward = CombinedReward({"cat": AtEnd(CountWord())})
    trainer(cfg, "gpt2", reward, prompts=PROMPTS * 3).train()
    curve = [row["reward/total"] for row in metrics(tmp_path)]
    start, end = sum(curve[:5]) / 5, sum(curve[-5:]) / 5
    # over three seeds it goes from 1.2 to 9 or more
    assert len(curve) == 15 and end > 1.5 and end > 3 * start, (start, end)


def test_a_run_says_what_it_continues_and_where_its_policies_are(tmp_path, capsys):
    cfg = config(tmp_path, train__total_episodes=18, train__save_every_steps=1)
    per_step = trainer(cfg).episodes_per_step
    assert 18 % per_step, "the last step has more episodes than asked for"
    rounded = -(-18 // per_step) * per_step
    assert f"the run has {rounded} instead of train.total_episodes=18" in printed(capsys)
    trainer(cfg).train(until=1)
    assert "continuing" not in printed(capsys)
    trainer(cfg).train()
    text = printed(capsys)
    assert f"{tmp_path}: continuing after step 0; 1 of {rounded // per_step} steps are done" in text
    # as run.json and metrics.jsonl count
    assert read_json(tmp_path / "run.json")["resumed_at"] == [0]
    assert f"last policy: {tmp_path / 'final'}" in text


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_ratio_is_one(kind, tmp_path):
    one_pass = {"train__micro_batch_size": 8, "train__n_minibatches": 1}
    cfg = config(tmp_path, train__minibatches="published", **one_pass)
    run = trainer(cfg, kind, own_value=True)
    seen = []
    loss = run.algorithm.loss
    run.algorithm.loss = lambda new, old, advantages: (
        seen.append((new.logprobs_BT.detach(), old.logprobs_BT)) or loss(new, old, advantages)
    )
    run.update(*one_rollout(run))
    # step-by-step decoding, and kernels with gradients, round the last bits differently
    torch.testing.assert_close(*seen[0], atol=1e-6, rtol=0)
    assert not torch.allclose(*seen[1], atol=1e-4)


@pytest.mark.parametrize("dropout, same_mode", [(True, True), ("updates", False)])
def test_dropout_has_one_mode_unless_told_otherwise(dropout, same_mode, tmp_path):
    """Deviation D4: as published, dropout is on in updates and off in rollouts."""
    cfg = config(tmp_path, train__dropout=dropout, train__n_minibatches=1)
    run = trainer(cfg, dropout=0.3)
    modes = []
    forward = run.actor_critic.forward
    run.actor_critic.forward = lambda *a, **k: (
        modes.append(run.actor_critic.policy.model.training) or forward(*a, **k)
    )
    rollout, advantages = one_rollout(run)
    run.update(rollout, advantages)
    assert modes[0] == same_mode and all(modes[1:]) and not run.reference.training
    names = ("prompt_ids_BP", "prompt_mask_BP", "response_ids_BT", "response_mask_BT")
    run = trainer(cfg, dropout=0.3)
    batch = [getattr(rollout, name) for name in names]
    without_dropout = run.actor_critic.eval()(*batch).logprobs_BT
    assert torch.allclose(without_dropout, rollout.logprobs_BT, atol=1e-5) != same_mode


@pytest.mark.parametrize("kind", KINDS)
def test_micro_batches_do_not_change_the_update(kind, tmp_path):
    results, norms = [], []
    for size in (16, 5, 1):
        cfg = config(
            tmp_path,
            train__micro_batch_size=size,
            env__train_num_samples_per_input=4,
            train__max_grad_norm=None,
        )
        run = trainer(cfg, kind, own_value=True)
        # answers of different lengths
        run.actor_critic.policy.model.generation_config.eos_token_id = [1, 5, 10, 15, 20]
        rollout, advantages = one_rollout(run)
        assert len(set(rollout.response_mask_BT.sum(1).tolist())) > 3
        norms.append(optimizer_step(run, rollout, advantages, torch.arange(16), 1)["grad_norm"])
        results.append(gradients(run))
    for other, norm in zip(results[1:], norms[1:]):
        assert norm == pytest.approx(norms[0], rel=1e-5)
        assert other.keys() == results[0].keys()
        assert_equal_up_to_rounding(list(other.values()), list(results[0].values()))


@pytest.mark.parametrize("algorithm", ["ppo", "trpo"])
def test_a_repetition_penalty_is_part_of_the_ratio(algorithm, tmp_path):
    """Before the policy moves, ratio and KL are those of the penalised distribution."""
    cfg = config(
        tmp_path,
        algorithm__name=algorithm,
        train__n_critic_warmup_steps=1,
        model__train_generation_kwargs={"repetition_penalty": 3.0},
        model__value_model={"ckpt": "tiny"},
    )
    run = trainer(cfg, own_value=True)
    rollout, advantages = one_rollout(run)
    torch.testing.assert_close(rollout.logprobs_BT, rollout.ref_logprobs_BT)
    batch = (rollout.prompt_ids_BP, rollout.prompt_mask_BP)
    batch = (*batch, rollout.response_ids_BT, rollout.response_mask_BT)
    without_BT = run.model(*batch).logprobs_BT.detach()
    assert (without_BT - rollout.logprobs_BT).abs().max() > 0.01
    logged = run.update(rollout, advantages)
    assert logged["approx_kl"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("algorithm", ["ppo", "trpo"])
def test_updates_over_the_tokens_that_could_be_drawn(algorithm, tmp_path):
    """The policy's ratio to itself is 1 in every micro-batch, and stays finite in later epochs."""
    cfg = config(
        tmp_path,
        algorithm__name=algorithm,
        env__logprob_truncated=True,
        model__train_generation_kwargs={"top_k": 4, "top_p": 0.9},
        model__value_model={"ckpt": "tiny"},
    )
    run = trainer(cfg, own_value=True)
    rollout, advantages = one_rollout(run)
    for rows in run.micro_batches(torch.arange(8)):
        old = rollout.rows(rows)
        batch = (old.prompt_ids_BP, old.prompt_mask_BP, old.response_ids_BT, old.response_mask_BT)
        new = run.model(*batch, old.support_BTW)
        torch.testing.assert_close(new.logprobs_BT.detach(), old.logprobs_BT, atol=1e-5, rtol=1e-5)
        whole = run.model(*batch).logprobs_BT.detach()
        assert (whole < old.logprobs_BT - 0.1)[old.response_mask_BT.bool()].any()
    before = weights(run)
    logged = run.update(rollout, advantages)
    assert all(math.isfinite(value) for value in logged.values())
    assert any(not torch.equal(before[name], now) for name, now in weights(run).items())


def test_published_update(tmp_path):
    """Deviation D6: in order, one step per epoch, each micro-batch's loss as large as a batch's."""
    cfg = config(
        tmp_path,
        train__n_minibatches=1,
        train__minibatches="published",
        train__micro_batch_size=3,
        train__max_grad_norm=None,
    )
    run = trainer(cfg, own_value=True)
    run.actor_critic.policy.model.generation_config.eos_token_id = [1, 5, 10, 15, 20]
    assert [rows.tolist() for rows in run.minibatches(8, epoch=0)] == [list(range(8))]
    rollout, advantages = one_rollout(run)
    mean_length = rollout.response_mask_BT.sum(1).float().mean()
    run.actor_critic.zero_grad()
    for rows in (torch.arange(0, 3), torch.arange(3, 6), torch.arange(6, 8)):
        old = rollout.rows(rows)
        new = run.actor_critic(
            old.prompt_ids_BP, old.prompt_mask_BP, old.response_ids_BT, old.response_mask_BT
        )
        loss_BT = run.algorithm.loss(
            new, old, advantages.rows(rows, old.response_ids_BT.shape[1])
        ).loss_BT
        # as published: a micro-batch's mean, times its length
        weight = old.response_mask_BT.sum(1).float().mean() / mean_length
        (masked_mean(loss_BT, old.response_mask_BT) * weight).backward()
    expected = gradients(run)
    optimizer_step(run, rollout, advantages, torch.arange(8), 1)
    actual = gradients(run)
    assert_equal_up_to_rounding([actual[name] for name in expected], list(expected.values()))


def test_batches_cover_the_data_pass_after_pass(tmp_path):
    prompts = [Prompt(str(i), "cat") for i in range(7)]
    run = trainer(config(tmp_path, train__sampling_batch_size_per_card=4), prompts=prompts)
    # 28 places: four passes
    order = [prompt.id for step in range(7) for prompt in run.prompt_order.of_step(step)]
    passes = [order[i : i + 7] for i in range(0, 28, 7)]
    assert all(sorted(p) == [str(i) for i in range(7)] for p in passes)
    assert len({tuple(p) for p in passes}) == 4
    assert [p.id for p in run.prompt_order.of_step(3)] == order[12:16]
    other = trainer(
        config(tmp_path, train__sampling_batch_size_per_card=4, train__seed=1), prompts=prompts
    )
    assert [p.id for p in other.prompt_order.of_step(0)] != order[:4]


def test_minibatches_partition_the_rows(tmp_path):
    run = trainer(config(tmp_path, train__n_minibatches=4))
    first, second = (run.minibatches(8, epoch) for epoch in (0, 1))
    for parts in (first, second):
        assert [len(p) for p in parts] == [2] * 4
        assert sorted(torch.cat(parts).tolist()) == list(range(8))
        # the two samples of a prompt stay together
        assert all(rows[1] == rows[0] + 1 and rows[0] % 2 == 0 for rows in parts)
    assert torch.cat(first).tolist() != torch.cat(second).tolist()
    run.step = 1
    assert torch.cat(run.minibatches(8, 0)).tolist() != torch.cat(first).tolist()


def test_learning_rate(tmp_path):
    # 10 steps
    run = trainer(
        config(tmp_path, train__total_episodes=80, train__warmup_steps=3, train__value_lr=5e-3),
        own_value=True,
    )
    assert [run.lr_factor(s) for s in range(10)] == pytest.approx(
        [0.25, 0.5, 0.75, 1, 6 / 7, 5 / 7, 4 / 7, 3 / 7, 2 / 7, 1 / 7]
    )
    run.step = 4
    run.update(*one_rollout(run))
    assert [group["lr"] for group in run.optimizer.param_groups] == pytest.approx(
        [1e-3 * 6 / 7, 5e-3 * 6 / 7]
    )
    flat = trainer(
        config(
            tmp_path, train__total_episodes=80, train__warmup_steps=1, train__lr_schedule="constant"
        )
    )
    assert [flat.lr_factor(s) for s in (0, 1, 9)] == [0.5, 1, 1]


def test_the_critic_can_learn_alone_first(tmp_path):
    changes = {
        "train__total_episodes": 80,
        "train__warmup_steps": 2,
        "train__n_critic_warmup_steps": 3,
    }
    run = trainer(config(tmp_path, **changes), own_value=True)  # 10 steps
    assert [run.policy_lr_factor(s) for s in range(10)] == pytest.approx(
        [0, 0, 0, 1 / 3, 2 / 3, 1, 4 / 5, 3 / 5, 2 / 5, 1 / 5]
    )
    assert [run.lr_factor(s) for s in range(4)] == pytest.approx([1 / 3, 2 / 3, 1, 7 / 8])
    before = weights(run)
    run.train(until=3)
    same = {name: torch.equal(tensor, before[name]) for name, tensor in weights(run).items()}
    assert all(same[name] for name in same if name.startswith("policy."))
    assert not all(same[name] for name in same if name.startswith("value."))
    run.train(until=4)
    assert not all(
        torch.equal(tensor, before[name])
        for name, tensor in weights(run).items()
        if name.startswith("policy.")
    )


def test_it_stops_when_the_kl_has_been_too_high_too_often(tmp_path, capsys):
    cfg = config(
        tmp_path,
        train__lr=2e-2,
        train__kl_threshold=0.01,
        train__kl_patience=3,
        train__total_episodes=400,
        algorithm__kl__coef=0.0,
    )
    run = trainer(cfg, evaluate=lambda policy: {"reward": 0.0})
    run.train()
    kls = [row["kl"] for row in metrics(tmp_path) if "kl" in row]
    assert sum(kl > 0.01 for kl in kls) == 3 and kls[-1] > 0.01 and len(kls) < 50 == run.total_steps
    assert (tmp_path / "final" / "config.json").exists()
    assert (tmp_path / "checkpoints" / f"step-{len(kls)}").exists()
    again = trainer(cfg)
    again.train()  # a stopped run stays stopped
    assert again.step == len(kls) and again.stopped


def test_a_policy_too_far_from_the_reference_is_not_the_best(tmp_path, capsys):
    cfg = config(tmp_path, train__kl_threshold=5.0, evaluation__every_steps=2)
    dev = iter([(0.0, 0.0), (1.0, 5.0), (2.0, 5.1), *[(3.0, 9.0)] * 9])
    run = trainer(cfg, evaluate=lambda policy: dict(zip(("reward", "kl"), next(dev))))
    run.train()
    assert run.best == {"step": 2, "metric": "reward", "value": 1.0}
    said = printed(capsys)
    assert said.count("(best so far)") == 2
    assert "(kl 5.1 exceeds train.kl_threshold: not saved as best)" in said


@pytest.mark.parametrize("last, is_noted", [(1.0, True), (1.5, False)])
def test_a_note_if_no_policy_is_better_than_the_initial_one(tmp_path, capsys, last, is_noted):
    dev = iter([1.0, 0.5, 1.0, 1.0, last])
    cfg = config(tmp_path, evaluation__every_steps=2, train__total_episodes=56)
    run = trainer(cfg, evaluate=lambda policy: {"reward": next(dev), "kl": 0.0})
    run.train()
    note = "no policy had a higher dev reward than the initial one, so best/ holds"
    assert (note in printed(capsys)) == is_noted
    assert run.best is not None and run.best["step"] == (0 if is_noted else 7)


def test_the_best_of_several_policies_is_said_to_be_too_good():
    """Widths of 0.392 are standard errors of 0.1; sqrt(2 ln 4) = 1.665."""
    values = {0: 0.2, 5: 0.75, 10: 0.8, 15: 0.6}
    lines = [
        {"step": step, "eval/r": x, "eval_low/r": x - 0.196, "eval_high/r": x + 0.196}
        for step, x in values.items()
    ]
    note = choice_note("r", 10, [{"step": 1, "loss": 2.0}, *lines])
    assert note == (
        "note: dev r chose best/ among 4 policies, so its 0.8 is too high, by at most 0.17 on"
        " average; that of step 5 is the first within one standard error (0.1). Report figures of"
        " other prompts"
    )
    assert "no earlier one is within" in (choice_note("r", 10, [lines[0], lines[2]]) or "")
    assert choice_note("r", 10, lines[2:3]) is None and choice_note("q", 10, lines) is None


def test_the_best_of_equal_policies_is_too_high_by_at_most_the_bound():
    rng = np.random.default_rng(0)
    best = rng.normal(size=(20_000, 10)).max(1).mean()
    lines = [
        {"step": step, "eval/r": 0.0, "eval_low/r": -1.96, "eval_high/r": 1.96}
        for step in range(10)
    ]
    (said,) = re.findall("at most ([0-9.]+)", choice_note("r", 0, lines) or "")
    assert best < float(said) < 1.5 * best


def test_a_run_says_how_its_best_policy_was_chosen(tmp_path, capsys):
    dev = iter([0.1, 0.5, 1.0, 1.0, 0.7])
    cfg = config(tmp_path, evaluation__every_steps=2, train__total_episodes=56)

    def evaluate(policy):
        value = next(dev)
        return {"reward": Interval(value, value - 0.1, value + 0.1), "kl": 0.0}

    trainer(cfg, evaluate=evaluate).train()
    assert printed(capsys).count("dev reward chose best/ among 5 policies, so its 1 is too") == 1


def test_a_metric_that_never_changes_is_named(tmp_path, capsys):
    cfg = config(tmp_path, evaluation__every_steps=2, train__total_episodes=56)
    trainer(cfg, evaluate=lambda policy: {"reward": 0.0, "kl": 0.0}).train(until=4)
    run = trainer(cfg, evaluate=lambda policy: {"reward": 0.0, "kl": 0.0})
    run.train()
    said = printed(capsys)
    assert "dev reward is 0 at all 5 evaluations" in said and "the first policy (step 0)" in said
    assert "no policy had a higher" not in said
    assert len(run.dev_values) == 5


@pytest.mark.parametrize("alone", [0, 3])
def test_an_adaptive_coefficient_is_used_and_logged(alone, tmp_path):
    """It waits until the policy learns."""
    changes = {
        "algorithm__kl__target": 0.5,
        "algorithm__kl__horizon": 20,
        "algorithm__kl__coef": 0.2,
        "train__n_critic_warmup_steps": alone,
    }
    trainer(config(tmp_path, **changes), own_value=True).train()
    rows = metrics(tmp_path)
    expected = 0.2
    for row in rows:
        assert row["kl_coef"] == pytest.approx(expected)
        penalized = row["reward/total"] - row["kl_coef"] * row["kl"]
        assert row["reward/penalized"] == pytest.approx(penalized, abs=1e-4)
        if row["step"] >= alone:
            expected *= 1 + min(max((row["kl"] - 0.5) / 0.5, -0.2), 0.2) * 8 / 20
    assert len({row["kl_coef"] for row in rows}) > 3


def test_the_best_checkpoint_is_kept_by_the_named_metric(tmp_path):
    scripted = iter([math.nan, 0.5, 0.1, math.nan, 0.4])
    seen = []

    def evaluate(policy):
        seen.append({name: tensor.clone() for name, tensor in policy.model.state_dict().items()})
        assert not policy.training and not torch.is_grad_enabled()
        return {"gold": next(scripted), "reward": float(len(seen))}

    # 7 steps: 0 2 4 6, and the end
    cfg = config(
        tmp_path, evaluation__every_steps=2, evaluation__metric="gold", train__total_episodes=56
    )
    run = trainer(cfg, evaluate=evaluate)
    run.train()
    assert run.best == {"step": 2, "metric": "gold", "value": 0.5}
    best, final = (load_policy(tmp_path / name).model.state_dict() for name in ("best", "final"))
    assert all(torch.equal(tensor, best[name]) for name, tensor in seen[1].items())
    assert all(torch.equal(tensor, final[name]) for name, tensor in seen[4].items())
    assert [row["step"] for row in metrics(tmp_path) if "eval/gold" in row] == [0, 2, 4, 6, 7]
    assert sorted(path.name for path in (tmp_path / "samples").iterdir()) == [
        f"step-{i}.jsonl" for i in (0, 2, 4, 6)
    ]


def test_the_intervals_of_dev_metrics_are_logged(tmp_path):
    unbounded = Interval(0.0, math.nan, math.nan, "all values are equal")
    results = {"gold": Interval(0.5, 0.4, 0.7), "reward": 2.0, "kl": unbounded}
    cfg = config(
        tmp_path, evaluation__every_steps=2, evaluation__metric="gold", train__total_episodes=8
    )
    trainer(cfg, evaluate=lambda policy: results).train()
    logged = metrics(tmp_path)[0]
    assert {name: value for name, value in logged.items() if name.startswith("eval")} == {
        "eval/gold": 0.5,
        "eval_low/gold": 0.4,
        "eval_high/gold": 0.7,
        "eval/reward": 2.0,
        "eval/kl": 0.0,
    }


def test_an_unknown_best_metric_is_refused_with_the_known_ones(tmp_path):
    run = trainer(
        config(tmp_path, evaluation__metric="f1"),
        evaluate=lambda policy: {"reward": 0.0, "gold": 1.0},
    )
    with pytest.raises(UserError, match="evaluation.metric is `f1`.*gold, reward"):
        run.train()


def test_wrong_sizes_are_refused(tmp_path):
    message = "8 rollouts per step cannot be split evenly into train.n_minibatches=3"
    with pytest.raises(UserError, match=message):
        trainer(config(tmp_path, train__n_minibatches=3))
    with pytest.raises(UserError, match="no prompts"):
        trainer(config(tmp_path), prompts=[])


def test_a_gradient_that_is_not_finite_is_not_applied(tmp_path):
    run = trainer(config(tmp_path, train__n_minibatches=1))
    rollout, advantages = one_rollout(run)
    before = weights(run)
    advantages.returns_BT[0, 0] = math.inf
    with pytest.raises(UserError, match="the gradient is (nan|inf) at step 0"):
        run.update(rollout, advantages)
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(run).items())


@pytest.mark.parametrize("clip", [True, False])
def test_gradients_are_clipped_when_asked(clip, tmp_path):
    settings = {"train__max_grad_norm": 0.01} if clip else {"train__max_grad_norm": None}
    run = trainer(config(tmp_path, **settings))
    rollout, advantages = one_rollout(run)
    norm = optimizer_step(run, rollout, advantages, torch.arange(8), 1)["grad_norm"]
    kept = torch.nn.utils.get_total_norm(
        [p.grad for p in run.policy.parameters() if p.grad is not None]
    )
    assert norm > 0.05 and kept == pytest.approx(0.01 if clip else norm, rel=1e-3)


def test_one_line_of_metrics_per_step_and_samples(tmp_path):
    run = trainer(config(tmp_path), "gpt2", own_value=True)
    run.train()
    rows = metrics(tmp_path, timings=True)
    assert [row["step"] for row in rows] == list(range(8))
    assert [row["episodes"] for row in rows] == list(range(8, 72, 8))
    named = {
        *("reward/total", "reward/cat", "reward/penalized", "kl", "kl_coef", "entropy", "length"),
        *("loss/policy", "loss/value", "loss/total", "clipfrac/policy", "clipfrac/value"),
        *("approx_kl", "value/error", "value/explained_variance", "grad_norm", "grad_norm/value"),
        *("lr", "time/rollout", "time/update"),
    }
    assert all(
        named <= set(row) and all(math.isfinite(row[name]) for name in named) for row in rows
    )
    # nearly uniform at first
    assert abs(rows[0]["kl"]) < 1e-5 and 3 < rows[0]["entropy"] < math.log(len(tiny.tokenizer()))
    sample = json.loads((tmp_path / "samples" / "step-7.jsonl").read_text().splitlines()[0])
    assert len(sample["tokens"]) == len(sample["advantages"]) == len(sample["rewards"]["cat"])


def test_rewards_and_metrics_of_dev_are_computed_as_in_training(tmp_path):
    """Autocast is for the policy: a reward model has one precision, in training and on dev."""
    AcceleratorState._reset_state(reset_partial_state=True)
    seen = {"reward": [], "metric": [], "policy": []}

    class Recorder(CountWord):
        def segment_scores(self, prompts, texts):
            seen["reward"].append(torch.is_autocast_enabled("cpu"))
            return super().segment_scores(prompts, texts)

    def metric(prompt, text):
        seen["metric"].append(torch.is_autocast_enabled("cpu"))
        return {"words": float(len(text.split()))}

    cfg = config(tmp_path, train__total_episodes=16, evaluation__every_steps=1, model__dtype="bf16")
    reward = CombinedReward({"cat": Recorder()})
    run = trainer(cfg, reward=reward, accelerator=Accelerator(cpu=True, mixed_precision="bf16"))
    run.policy.register_forward_hook(
        lambda *_: seen["policy"].append(torch.is_autocast_enabled("cpu"))
    )
    task = Task("any", metrics=lambda prompts: (metric,))
    run.evaluate = dev_evaluation(task, cfg, PROMPTS, reward, run.reference, run.accelerator)
    run.train()
    AcceleratorState._reset_state(reset_partial_state=True)
    # two steps and three evaluations
    assert seen["reward"] == [False] * 5
    # before them, the metric is tried with an empty response
    assert seen["metric"] == [False] * (1 + 3 * len(PROMPTS))
    assert seen["policy"] and all(seen["policy"])


def test_a_warm_up_as_long_as_the_run(tmp_path, capsys):
    message = "n_critic_warmup_steps=9.*9 steps: the policy would never learn"
    with pytest.raises(UserError, match=message):
        trainer(config(tmp_path, train__total_episodes=72, train__n_critic_warmup_steps=9))
    trainer(config(tmp_path, train__total_episodes=72, train__warmup_steps=8))
    assert "note" not in capsys.readouterr().out
    trainer(config(tmp_path, train__total_episodes=72, train__warmup_steps=9))
    assert "never reaches train.lr" in capsys.readouterr().out


def test_the_order_of_prompts_is_drawn_once_per_pass(tmp_path, monkeypatch):
    prompts = [Prompt(str(i), "the cat") for i in range(7)]
    run = trainer(
        config(tmp_path, train__sampling_batch_size_per_card=3, train__total_episodes=60),
        prompts=prompts,
    )
    drawn, randperm = [], torch.randperm
    monkeypatch.setattr(torch, "randperm", lambda n, **more: drawn.append(n) or randperm(n, **more))
    batches = [run.prompt_order.of_step(step) for step in range(7)]
    assert drawn == [7] * 3  # 21 prompts are three passes
    for step, batch in enumerate(batches):  # each prompt's result equals that of a separate draw
        for k, prompt in enumerate(batch):
            place = 3 * step + k
            generator = torch.Generator().manual_seed(
                derive_seed(run.config.train.seed, "pass", place // 7)
            )
            assert prompt is prompts[int(randperm(7, generator=generator)[place % 7])]
    assert run.prompt_order.of_step(0) == batches[0]  # and a run resumed at any step


def test_prompts_that_are_cut_are_in_the_metrics(tmp_path):
    long = [Prompt("long", "the red cat " * 30), Prompt("short", "the cat")]
    trainer(
        config(tmp_path, train__total_episodes=16, train__sampling_batch_size_per_card=2),
        prompts=long,
    ).train()
    assert [row["prompts/cut"] for row in metrics(tmp_path)] == [0.5] * 4
    with pytest.raises(UserError, match="prompt none has no tokens"):
        trainer(config(tmp_path), prompts=[Prompt("0", "a cat"), Prompt("none", "")])


class Counting(CountWord):
    """An aspect whose reward model counts its inputs, and cuts those of the prompt "2"."""

    def __init__(self):
        super().__init__()
        self.scorer = SimpleNamespace(seen=0, cut_inputs=0)

    def segment_scores(self, prompts, texts):
        self.scorer.seen += len(texts)
        self.scorer.cut_inputs += sum(prompt.id == "2" for prompt in prompts)
        return super().segment_scores(prompts, texts)


def test_cuts_of_reward_models_are_in_the_metrics(tmp_path):
    """The shares are of a step's inputs, so dev evaluations and resuming do not change them."""

    def run(folder, until=None):
        cfg = config(
            folder, train__total_episodes=32, evaluation__every_steps=1, train__save_every_steps=2
        )
        reward = CombinedReward(
            {"cat": Counting(), "end": AtEnd(Counting()), "other": CountWord("dog")}
        )

        def evaluate(policy):
            reward.segment_scores(PROMPTS[2:], ["a cat"])
            return {"reward": 0.0}

        running = trainer(cfg, reward=reward, evaluate=evaluate)
        running.train(until)
        batches = [running.prompt_order.of_step(step) for step in range(running.total_steps)]
        return [sum(prompt.id == "2" for prompt in batch) / 4 for batch in batches]

    expected = run(tmp_path / "straight")
    assert len(set(expected)) > 1
    rows = [row for row in metrics(tmp_path / "straight") if "kl" in row]
    assert [row["cut/cat"] for row in rows] == [row["cut/end"] for row in rows] == expected
    assert not any("cut/other" in row for row in rows)
    run(tmp_path / "resumed", until=2)
    run(tmp_path / "resumed")
    assert metrics(tmp_path / "resumed") == metrics(tmp_path / "straight")


@pytest.mark.parametrize("kind", KINDS)
def test_training_and_evaluation_have_one_kl(kind, tmp_path):
    """The KL of a step, of dev, and of the evaluation stage are equal.

    Greedy answers, log-probabilities at another temperature.
    """
    cfg = config(
        tmp_path,
        env__train_num_samples_per_input=1,
        env__logprob_temperature=0.6,
        train__sampling_batch_size_per_card=4,
        train__n_minibatches=1,
        model__train_generation_kwargs={"do_sample": False},
        model__eval_generation_kwargs={"do_sample": False},
    )
    asked = [
        replace(p, meta={"question": "who?", "passages": []})
        for p in (*PROMPTS, Prompt("3", "a blue bird"))
    ]
    run = trainer(cfg, kind, prompts=asked)
    with torch.no_grad():
        for p in run.reference.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(3)))
    rollout, rewards = run.collect_and_score()
    _, advantages = run.compute_advantages(rollout, rewards)
    kl = rollout_metrics(rollout, rewards, rewards.total_BT, advantages)["kl"]
    evaluate = dev_evaluation(Task("any"), cfg, run.prompts, None, run.reference, run.accelerator)
    dev = dict(evaluate(run.policy))["kl"]
    assert isinstance(dev, Interval) and not dev.has_bounds  # of four prompts
    at_temperature = PolicyResponder(
        run.policy, cfg.model.eval_sampling, temperature=cfg.logprob_temperature
    )
    stage = evaluate_rows(at_temperature, run.prompts, reference=run.reference, progress=False)
    assert dev.mean == pytest.approx(kl, abs=1e-4)
    assert sum(row.as_json()["kl"] for row in stage) / 4 == pytest.approx(kl, abs=1e-4)
    responder = PolicyResponder(run.policy, cfg.model.eval_sampling)
    plain = evaluate_rows(responder, run.prompts, reference=run.reference, progress=False)
    # at another temperature it is another number
    assert abs(sum(row.as_json()["kl"] for row in plain) / 4 - kl) > 0.01


def test_a_remote_reward_is_asked_before_the_log_probabilities_are_computed(tmp_path):
    computed = threading.Event()

    class Remote:
        remote = True

        def segment_scores(self, prompts, texts):
            assert computed.wait(600)  # would never end if it were called afterwards
            computed.clear()
            return [[SegmentScore(0, None, float(len(text)))] for text in texts]

    cfg = config(tmp_path, train__total_episodes=16)
    run = trainer(cfg, reward=CombinedReward({"far": Remote()}))
    run.reference.register_forward_hook(lambda *_: computed.set())
    run.train()
    assert len(metrics(tmp_path)) == 2
