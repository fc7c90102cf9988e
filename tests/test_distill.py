"""A policy that follows a teacher on its own samples: `distill` and `sdpo`."""

import json

import pytest
import tiny
import torch
from rl_helpers import config, metrics, trainer
from rounding import assert_equal_up_to_rounding

from fgrlhf.algorithms.distill import divergence_of_states
from fgrlhf.algorithms.kl import token_divergence
from fgrlhf.algorithms.sdpo import with_feedback
from fgrlhf.base.errors import UserError
from fgrlhf.cli import distill
from fgrlhf.text_types import ASSISTANT, USER, Prompt
from fgrlhf.update import optimizer_step

KINDS = ("t5", "gpt2")
BETAS = (0.0, 0.1, 0.5, 0.9, 1.0)

# ---- the divergence ------------------------------------------------------------------------------


def kl(p, q):
    return (p * (p / q).log()).sum(-1)


def random_logits(n: int, v: int = 7):
    generator = torch.Generator().manual_seed(n)
    return 3 * torch.randn(2, n, v, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("beta", BETAS)
def test_the_divergence_is_its_definition(beta):
    """Sums of p log(p / q), in float64."""
    student_NV, teacher_NV = random_logits(20)
    p, t = student_NV.softmax(-1), teacher_NV.softmax(-1)
    m = beta * t + (1 - beta) * p
    expected = {0.0: kl(t, p), 1.0: kl(p, t)}.get(beta, beta * kl(t, m) + (1 - beta) * kl(p, m))
    actual = token_divergence(student_NV, teacher_NV, beta)
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)
    single = token_divergence(student_NV.float(), teacher_NV.float(), beta)
    torch.testing.assert_close(single.double(), expected, rtol=1e-4, atol=1e-5)


def test_the_divergence_by_hand():
    even, uneven = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.25, 0.75]]).log()
    forward = 0.5 * torch.tensor(2.0).log() + 0.5 * torch.tensor(2 / 3).log()
    # log-probabilities plus a constant are logits
    torch.testing.assert_close(token_divergence(uneven + 3, even, 0), forward[None])
    torch.testing.assert_close(token_divergence(even, uneven + 3, 1), forward[None])
    assert token_divergence(even, even, 0.5).item() == 0


def test_small_and_large_beta_tend_to_the_two_kl():
    student_NV, teacher_NV = random_logits(20) / 3
    for near, end in ((1e-7, 0.0), (1 - 1e-7, 1.0)):
        scaled = token_divergence(student_NV, teacher_NV, near) / min(near, 1 - near)
        limit = token_divergence(student_NV, teacher_NV, end)
        torch.testing.assert_close(scaled, limit, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("beta", BETAS)
def test_blocks_have_the_divergence_and_the_gradient_of_the_whole(beta):
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    weight, teacher_weight = random(9, 4).requires_grad_(), random(11, 3)
    states, teacher_states = random(10, 4).requires_grad_(), random(10, 3)
    arguments = (lambda h: h @ weight.T, states, lambda h: h @ teacher_weight.T, teacher_states)
    gradients = []
    for block in (100, 3):
        actual = divergence_of_states(*arguments, beta, temperature=0.7, block=block)
        # two ids that only the teacher has are left out
        logits = (states @ weight.T / 0.7, (teacher_states @ teacher_weight.T)[:, :9] / 0.7)
        torch.testing.assert_close(actual, token_divergence(*logits, beta))
        gradients.append(torch.autograd.grad((actual * torch.arange(10)).sum(), (weight, states)))
    assert gradients[0][0].abs().max() > 0
    torch.testing.assert_close(gradients[0], gradients[1])


# ---- distillation --------------------------------------------------------------------------------


def saved(folder, kind, seed=5):
    """The folder of a policy with other weights."""
    teacher = tiny.policy(kind)
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in teacher.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    teacher.save(folder / "teacher")
    return str(folder / "teacher"), teacher


def settings(folder, name, **changes):
    changes = {"reward": {"cat": {"kind": "count"}}, **changes}
    return config(folder, algorithm={"name": name}, **changes)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_the_update_has_the_gradient_of_the_mean_divergence(kind, beta, tmp_path):
    """From the models' own logits, whatever the number of micro-batches."""
    folder, teacher = saved(tmp_path, kind)
    results = []
    for size in (8, 3):
        changes = {"algorithm__teacher": folder, "algorithm__beta": beta}
        changes |= {"train__max_grad_norm": None, "train__micro_batch_size": size}
        run = trainer(settings(tmp_path, "distill", **changes), kind)
        rollout, rewards = run.collect_and_score()
        _, advantages = run.compute_advantages(rollout, rewards)
        batch = (rollout.prompt_ids_BP, rollout.prompt_mask_BP)
        batch += (rollout.response_ids_BT, rollout.response_mask_BT)
        real_BT = rollout.response_mask_BT.bool()
        student_NV = run.policy.project(run.policy.hidden(*batch)[real_BT])
        teacher_NV = teacher.project(teacher.hidden(*batch)[real_BT]).detach()
        loss = token_divergence(student_NV, teacher_NV, beta).mean()
        loss.backward()
        named = list(run.policy.named_parameters())
        expected = [p.grad.clone() for _, p in named if p.grad is not None]
        logged = optimizer_step(run, rollout, advantages, torch.arange(8), 0)
        assert logged["loss/policy"] == pytest.approx(loss.item(), rel=1e-4)
        assert loss.item() > 0.01
        actual = [p.grad for _, p in named if p.grad is not None]
        assert_equal_up_to_rounding(actual, expected)
        results.append(actual)
    assert_equal_up_to_rounding(results[0], results[1])


@pytest.mark.parametrize("kind", KINDS)
def test_the_policy_becomes_its_teacher(kind, tmp_path):
    folder, _ = saved(tmp_path, kind)
    changes = {"algorithm__teacher": folder, "train__total_episodes": 16 * 20}
    changes |= {"train__lr": {"t5": 3e-2, "gpt2": 1e-2}[kind]}
    changes |= {"train__sampling_batch_size_per_card": 8, "train__max_grad_norm": 100.0}
    trainer(settings(tmp_path / "run", "distill", **changes), kind).train()
    curve = [row["loss/policy"] for row in metrics(tmp_path / "run")]
    assert sum(curve[-3:]) / 3 < 0.5 * curve[0], curve


def test_a_teacher_with_other_tokens_is_refused(tmp_path):
    tiny.chat().save(tmp_path / "teacher")
    cfg = settings(tmp_path, "distill", algorithm__teacher=str(tmp_path / "teacher"))
    with pytest.raises(UserError, match="another vocabulary than the policy"):
        trainer(cfg, "gpt2")
    assert str(tmp_path / "teacher") in cfg.inputs


def test_the_command_needs_no_reward(tmp_path):
    folder, _ = saved(tmp_path, "gpt2")
    tiny.policy("gpt2").save(tmp_path / "policy")
    rows = [{"prompt": text} for text in ("the red cat", "a dog sees")]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    files = [f"data.{split}_file={tmp_path}/rows.jsonl" for split in ("train", "dev")]
    sizes = ["model.max_generated_len=6", "train.total_episodes=16", "evaluation.metric=length"]
    sizes += ["train.sampling_batch_size_per_card=2", "model.max_input_len=32"]
    save_dir = f"logging.save_dir={tmp_path}/run"
    distill.main(
        [f"model.ckpt={tmp_path}/policy", f"teacher={folder}", "beta=1", *files, *sizes, save_dir]
    )
    assert metrics(tmp_path / "run")[1]["loss/policy"] > 0
    assert (tmp_path / "run" / "final" / "model.safetensors").exists()


# ---- self-distillation ---------------------------------------------------------------------------


def test_the_prompt_of_the_teacher():
    prompt = Prompt("0", "the red {cat}", ("a {dog}",), {"reason": "no"})
    filled = with_feedback(prompt, "{prompt} : {reference} ({reason})")
    assert filled is not None and filled.text == "the red {cat} : a {dog} (no)"
    assert filled.id == "0" and filled.meta == prompt.meta
    assert with_feedback(prompt, "{prompt} {other}") is None
    assert with_feedback(Prompt("1", "x", ("",)), "{prompt} {reference}") is None
    turns = ((USER, "hi"), (ASSISTANT, "hello"), (USER, "a cat"))
    dialog = Prompt("2", "whole dialog", ("no",), messages=turns)
    filled = with_feedback(dialog, "{prompt} ({reference})")
    assert filled is not None and filled.messages == (*turns[:2], (USER, "a cat (no)"))
    assert (
        with_feedback(Prompt("3", "x", ("no",), messages=turns[:2]), "{prompt}{reference}") is None
    )


CORRECTED = [
    Prompt("0", "the red cat", ("a dog",)),
    Prompt("1", "a dog sees", ("the bird",)),
    Prompt("2", "question: one two three and a bird"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_the_teacher_is_the_policy_that_has_read_more(kind, tmp_path):
    """The loss of each response is the divergence from the policy after the longer prompt."""
    run = trainer(settings(tmp_path, "sdpo", train__micro_batch_size=3), kind, prompts=CORRECTED)
    rollout, rewards = run.collect_and_score()
    _, advantages = run.compute_advantages(rollout, rewards)
    total, n = 0.0, 0
    for b in range(8):
        prompt = rollout.prompts[b]
        row = rollout.rows(torch.tensor([b]))
        given = (row.response_ids_BT, row.response_mask_BT)
        n += int(row.response_mask_BT.sum())
        if not prompt.references:
            assert not advantages.advantages_BT[b].any()
            continue
        longer = Prompt("", f"{prompt.text} {prompt.references[0]}")
        real_BT = row.response_mask_BT.bool()
        with torch.no_grad():
            states = run.policy.hidden(*run.policy.encode([longer]), *given)[real_BT]
            own = run.policy.hidden(row.prompt_ids_BP, row.prompt_mask_BP, *given)[real_BT]
            logits = (run.policy.project(own), run.policy.project(states))
            total += token_divergence(*logits, 0.5).sum().item()
    logged = optimizer_step(run, rollout, advantages, torch.arange(8), 0)
    assert logged["loss/policy"] == pytest.approx(total / n, rel=1e-3) and total > 0
    assert not any(p.grad is None for p in run.policy.parameters() if p.requires_grad)


@pytest.mark.parametrize("kind", KINDS)
def test_two_halves_of_self_distillation_are_one_whole(kind, tmp_path):
    changes = {"evaluation__every_steps": 3, "train__total_episodes": 40}
    folders = [tmp_path / "whole", tmp_path / "half"]
    whole, half = [settings(folder, "sdpo", **changes) for folder in folders]
    straight = trainer(whole, kind, prompts=CORRECTED)
    straight.train()
    trainer(half, kind, prompts=CORRECTED).train(until=3)
    resumed = trainer(half, kind, prompts=CORRECTED)
    resumed.train()
    expected = straight.actor_critic.state_dict()
    state = resumed.actor_critic.state_dict()
    assert all(torch.equal(tensor, expected[key]) for key, tensor in state.items())
    assert metrics(folders[0]) == metrics(folders[1])


def test_feedback_that_no_prompt_has_is_refused(tmp_path):
    cfg = settings(tmp_path, "sdpo", algorithm__teacher_prompt="{prompt} {reason}")
    with pytest.raises(UserError, match="no prompt of data.train_file has a text"):
        trainer(cfg, prompts=CORRECTED)
    with pytest.raises(UserError, match="what the policy does not read"):
        settings(tmp_path, "sdpo", algorithm__teacher_prompt="{prompt}")


def test_settings_of_rewards_are_named_as_not_read(tmp_path):
    given = {"algorithm__gamma": 0.9, "algorithm__normalize_aspects": "batch"}
    unused = settings(tmp_path, "sdpo", **given).unused_settings()
    assert {"algorithm.gamma", "algorithm.normalize_aspects"} <= set(unused)
