"""Demonstrations in the update of RL (`algorithm.ptx`)."""

import json
from collections import Counter

import pytest
import torch
from rl_helpers import config, metrics, trainer
from rounding import assert_equal_up_to_rounding

from fgrlhf.base.errors import UserError
from fgrlhf.update import optimizer_step

KINDS = ("t5", "gpt2")
DEMONSTRATIONS = [("the red cat", "a dog"), ("a bird", "the cat sees a red dog"), ("one", "two")]


def write(folder, rows=DEMONSTRATIONS) -> str:
    file = folder / "demonstrations.jsonl"
    lines = [json.dumps({"prompt": prompt, "response": response}) for prompt, response in rows]
    file.write_text("\n".join(lines))
    return str(file)


def settings(folder, coef=0.5, **changes):
    ptx = {"file": write(folder), "coef": coef}
    return config(folder, algorithm__ptx=ptx, **changes)


def gradients(run):
    named = run.actor_critic.policy.named_parameters()
    return {name: p.grad.clone() for name, p in named if p.grad is not None}


def nll_by_hand(policy, rows):
    """The mean of -log softmax(logits)[y_t] over all tokens, from the model's own logits."""
    total, n = torch.zeros(()), 0
    for row in rows:
        (answer,) = row.answer_ids
        if policy.model.config.is_encoder_decoder:
            start = [policy.model.config.decoder_start_token_id]
            decoder = torch.tensor([[*start, *answer[:-1]]])
            prompt = torch.tensor([row.prompt_ids])
            logits = policy.model(input_ids=prompt, decoder_input_ids=decoder).logits[0]
        else:
            ids = torch.tensor([[*row.prompt_ids, *answer]])
            logits = policy.model(input_ids=ids).logits[0][len(row.prompt_ids) - 1 : -1]
        logprobs = logits.double().log_softmax(-1)
        total = total - sum(logprobs[t, token] for t, token in enumerate(answer))
        n += len(answer)
    return total / n


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_and_its_gradient_by_hand(kind, tmp_path):
    """Added to what RL alone would give, for any size of a micro-batch."""
    changes = {"train__max_grad_norm": None, "algorithm__name": "rloo"}
    alone = trainer(config(tmp_path, **changes), kind)
    rollout, rewards = alone.collect_and_score()
    _, advantages = alone.compute_advantages(rollout, rewards)
    optimizer_step(alone, rollout, advantages, torch.arange(4), 0)
    expected = gradients(alone)

    run = trainer(config(tmp_path, **changes), kind)
    batch = trainer(settings(tmp_path, **changes), kind).demonstrations.order.of_step(0)
    assert len(batch) == 4  # as many as the minibatch has responses
    nll = nll_by_hand(run.policy, batch)
    (0.5 * nll).backward()
    expected = {name: g + gradients(run).get(name, 0) for name, g in expected.items()}

    for size in (4, 3, 1):
        run = trainer(settings(tmp_path, train__micro_batch_size=size, **changes), kind)
        logged = optimizer_step(run, rollout, advantages, torch.arange(4), 0)
        assert logged["loss/ptx"] == pytest.approx(nll.item(), rel=1e-5)
        actual = gradients(run)
        assert_equal_up_to_rounding([actual[name] for name in expected], list(expected.values()))


def test_every_pass_over_the_optimiser_steps_has_all_demonstrations(tmp_path):
    """Two epochs of two minibatches of four: 24 places in three steps, eight passes over three."""
    run = trainer(settings(tmp_path))
    ids = []
    real = run.demonstrations._sum_of_losses

    def noted(trainer, rows):
        ids.extend(tuple(row.answer_ids[0]) for row in rows)
        return real(trainer, rows)

    run.demonstrations._sum_of_losses = noted
    run.train(until=3)
    assert len(ids) == 3 * 2 * 8
    for start in range(0, len(ids), 3):
        assert set(Counter(ids[start : start + 3]).values()) == {1}
    assert len({tuple(ids[start : start + 3]) for start in range(0, len(ids), 3)}) > 1


def test_online_dpo_reads_as_many_as_its_pairs_have_responses(tmp_path):
    run = trainer(
        settings(tmp_path, algorithm__name="online_dpo", env__train_num_samples_per_input=4)
    )
    assert run.demonstrations is not None
    assert len(run.demonstrations.order.of_step(0)) == 2 * 4 // 2  # 4 prompts, 2 minibatches


@pytest.mark.parametrize("kind, algorithm", [("t5", "ppo"), ("gpt2", "grpo")])
def test_two_halves_are_one_whole(kind, algorithm, tmp_path):
    changes = {"algorithm__name": algorithm, "evaluation__every_steps": 3}
    changes["train__total_episodes"] = 40
    folders = [tmp_path / "whole", tmp_path / "half"]
    for folder in folders:
        folder.mkdir()
    whole, half = [settings(folder, **changes) for folder in folders]
    straight = trainer(whole, kind)
    straight.train()
    trainer(half, kind).train(until=3)
    resumed = trainer(half, kind)
    resumed.train()
    expected = straight.actor_critic.state_dict()
    state = resumed.actor_critic.state_dict()
    assert all(torch.equal(tensor, expected[key]) for key, tensor in state.items())
    assert metrics(folders[0]) == metrics(folders[1])
    assert all("loss/ptx" in row for row in metrics(folders[0]))


def test_a_large_coefficient_learns_the_demonstrations(tmp_path):
    changes = {"train__lr": 1e-2, "train__total_episodes": 160, "train__max_grad_norm": 100.0}
    trainer(settings(tmp_path, coef=100.0, **changes), "gpt2").train()
    curve = [row["loss/ptx"] for row in metrics(tmp_path)]
    assert curve[-1] < 0.5 * curve[0], curve


@pytest.mark.parametrize("name", ["trpo", "nlpo"])
def test_algorithms_that_cannot_imitate_refuse_it(name, tmp_path):
    with pytest.raises(UserError, match=f"algorithm.ptx: `{name}`"):
        settings(tmp_path, algorithm__name=name, model__value_model={"ckpt": "tiny"})


def test_the_file_is_an_input_of_the_run(tmp_path):
    cfg = settings(tmp_path)
    assert str(tmp_path / "demonstrations.jsonl") in cfg.inputs
