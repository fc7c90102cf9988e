import pytest
import tiny
import torch
from rl_helpers import PROMPTS, metrics
from test_algorithms import make

from fgrlhf.base.errors import UserError
from fgrlhf.configs.sections import Sampling
from fgrlhf.masked_policy import EXCLUDED, MaskedPolicy, allowed_tokens

KINDS = ["t5", "gpt2"]


def test_allowed_tokens_by_hand():
    logits = torch.tensor([[0.5, 0.1, 0.3, 0.1 - 1e-4, 1e-4]]).log()
    # not at .5 itself: the softmax of log .5 may be a bit less
    assert allowed_tokens(logits, 0.49, None).tolist() == [[True, False, False, False, False]]
    assert allowed_tokens(logits, 0.51, None).tolist() == [[True, False, True, False, False]]
    assert allowed_tokens(logits, 0.85, None).tolist() == [[True, True, True, False, False]]
    assert allowed_tokens(logits, None, 2).tolist() == [[True, False, True, False, False]]
    assert allowed_tokens(logits, None, 9).all()


def sharpened(kind):
    """A policy whose distributions are far from uniform."""
    policy = tiny.policy(kind)
    with torch.no_grad():
        policy.model.get_output_embeddings().weight.mul_(8)
    return policy


def answers(policy, seed=0):
    prompts = policy.encode([p.text for p in PROMPTS])
    result = policy.generate(*prompts, Sampling(8), list(range(seed, seed + 12)), 4)
    batch = tuple(x.repeat_interleave(4, 0) for x in prompts)
    return (*batch, result.ids_BT, result.mask_BT), result


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("top_p, top_k", [(0.6, None), (None, 3)])
def test_the_mask_is_used_in_sampling_and_in_log_probabilities(kind, top_p, top_k):
    base = sharpened(kind)
    masked = MaskedPolicy(base, top_p, top_k).eval()
    with torch.no_grad():  # the policy changes, the mask stays
        for p in base.parameters():
            p += 0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1))
    batch, response = answers(masked)
    output, hidden_BTD = masked(*batch)
    torch.testing.assert_close(output.logprobs_BT, response.logprobs_BT, atol=1e-4, rtol=1e-4)
    assert hidden_BTD.shape[-1] == base.hidden_size
    real_BT = batch[3].bool()
    with torch.no_grad():
        logits = base.project(base.hidden(*batch))[real_BT]
        allowed = allowed_tokens(
            masked.mask.project(masked.mask.hidden(*batch))[real_BT], top_p, top_k
        )
    ids = batch[2][real_BT][:, None]
    assert allowed.gather(-1, ids).all() and allowed.float().mean() < 0.6
    expected = logits.masked_fill(~allowed, -torch.inf).log_softmax(-1)  # by definition
    torch.testing.assert_close(
        output.logprobs_BT[real_BT], expected.gather(-1, ids)[:, 0], atol=1e-4, rtol=1e-4
    )
    entropy = -(expected.exp() * expected.nan_to_num(neginf=0)).sum(-1)
    torch.testing.assert_close(output.entropy_BT[real_BT], entropy, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_policy_learns(kind):
    masked = MaskedPolicy(sharpened(kind), None, 3).train()
    assert not masked.mask.training and masked.base.training
    batch, _ = answers(masked)
    output, _ = masked(*batch)
    output.logprobs_BT.sum().backward()
    assert all(p.grad is None for p in masked.mask.parameters())
    assert any(p.grad is not None and p.grad.abs().max() > 0 for p in masked.base.parameters())
    assert all(p.grad is None or p.grad.isfinite().all() for p in masked.base.parameters())


def test_a_given_token_is_always_allowed():
    """The log-probability of a given token is finite even if the mask rounds differently.

    The edge of the set can round differently when a whole response is read at once.
    """
    masked = MaskedPolicy(sharpened("gpt2"), None, 1).eval()
    prompt = masked.encode([PROMPTS[0].text])
    output, _ = masked(*prompt, torch.tensor([[5, 9, 3]]), torch.ones(1, 3, dtype=torch.long))
    assert output.logprobs_BT.isfinite().all() and output.logprobs_BT.min() > EXCLUDED / 2


@pytest.mark.parametrize("kind", KINDS)
def test_with_the_whole_vocabulary_it_is_ppo(kind, tmp_path):
    for name, changes in (("ppo", {}), ("nlpo", {"algorithm__top_p": 1.0})):
        make(tmp_path / name, name, kind, train__total_episodes=32, **changes).train()
    ours, ppo = metrics(tmp_path / "nlpo"), metrics(tmp_path / "ppo")
    for one, other in zip(ours, ppo, strict=True):
        assert one == pytest.approx(other, abs=2e-4, rel=1e-3)


def test_the_mask_policy_follows_every_few_steps(tmp_path):
    run = make(
        tmp_path, "nlpo", algorithm__sync_every=3, train__lr=1e-2, train__lr_schedule="constant"
    )
    same = []
    update = run.update

    def watched(rollout, advantages):
        pairs = zip(run.policy.parameters(), run.actor_critic.policy.mask.parameters(), strict=True)
        same.append(all(torch.equal(p, q) for p, q in pairs))
        return update(rollout, advantages)

    run.update = watched
    run.train()
    assert same == [True, False, False, True, False, False, True, False]
    rows = metrics(tmp_path)
    assert abs(rows[0]["kl"]) < 1e-5  # the KL ignores the mask


def test_the_ratio_is_one_at_first_and_what_is_written_is_the_bare_policy(tmp_path):
    run = make(
        tmp_path,
        "nlpo",
        "gpt2",
        train__total_episodes=8,
        train__n_minibatches=1,
        train__n_ppo_epoch_per_rollout=1,
    )
    run.train()
    assert abs(metrics(tmp_path)[0]["approx_kl"]) < 1e-6
    written = (tmp_path / "final" / "config.json").exists()
    assert written and run.policy is run.actor_critic.policy.base


def test_prompts_that_do_not_fit_are_refused_as_without_a_mask():
    masked = MaskedPolicy(tiny.gpt2(), 0.9, None)
    with pytest.raises(UserError, match="positions"):
        masked.generate(*masked.encode(["a"]), Sampling(300), [0])
