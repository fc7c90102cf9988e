"""A reference of RL that follows the policy (`algorithm.kl.reference`); test_dpo.py has DPO's."""

import pytest
import tiny
import torch
from rl_helpers import config, metrics, trainer

from fgrlhf.base.errors import UserError
from fgrlhf.runs import checkpoint

LORA = {"r": 2}


def moving(folder, every, mixup, **changes):
    reference = {"sync_every": every, "mixup": mixup}
    return config(folder, algorithm__kl={"coef": 0.1, "reference": reference}, **changes)


def parameters(policy) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in policy.named_parameters()}


@pytest.mark.parametrize("kind, algorithm", [("t5", "ppo"), ("gpt2", "nlpo")])
def test_the_reference_follows_the_policy(kind, algorithm, tmp_path):
    """After every second step it is a quarter of the policy, without NLPO's mask."""
    cfg = moving(tmp_path, 2, 0.25, algorithm__name=algorithm)
    run = trainer(cfg, kind)
    first = parameters(run.reference)
    run.train(until=1)
    assert all(torch.equal(p, first[name]) for name, p in run.reference.named_parameters())
    run.train(until=2)
    for name, p in run.policy.named_parameters():
        expected = 0.25 * p + 0.75 * first[name]
        torch.testing.assert_close(run.reference.get_parameter(name), expected)
    assert any(not torch.equal(p, first[name]) for name, p in run.reference.named_parameters())


def test_the_kl_from_the_policy_itself_is_zero(tmp_path):
    """With mixup = 1 the reference is the policy that samples, in every step."""
    trainer(moving(tmp_path, 1, 1.0)).train()
    rows = metrics(tmp_path)
    assert len(rows) == 8
    assert all(row["kl"] == pytest.approx(0, abs=1e-4) for row in rows)
    trainer(config(tmp_path / "fixed")).train()
    assert max(abs(row["kl"]) for row in metrics(tmp_path / "fixed")) > 1e-3


def test_the_reference_of_evaluations_stays(tmp_path):
    reference = tiny.policy("t5")
    first = parameters(reference)
    run = trainer(moving(tmp_path, 1, 1.0), reference=reference)
    run.train(until=2)
    assert all(torch.equal(p, first[name]) for name, p in reference.named_parameters())


def test_a_run_resumes_with_the_reference_that_had_moved(tmp_path):
    """Also where the guard goes back to a checkpoint: its reference comes with it."""
    changes = {"train__save_every_steps": 3}
    whole = trainer(moving(tmp_path / "a", 2, 0.5, **changes))
    whole.train()
    trainer(moving(tmp_path / "b", 2, 0.5, **changes)).train(until=5)
    resumed = trainer(moving(tmp_path / "b", 2, 0.5, **changes))
    resumed.train()
    assert metrics(tmp_path / "b") == metrics(tmp_path / "a")
    last = parameters(resumed.reference)
    assert all(torch.equal(p, last[name]) for name, p in whole.reference.named_parameters())
    resumed.best = {"step": 6}
    checkpoint.load_best(resumed)
    assert any(not torch.equal(p, last[n]) for n, p in resumed.reference.named_parameters())


@pytest.mark.parametrize(
    "kl, changes, message",
    [
        ({"coef": 0, "reference": {"sync_every": 5}}, {}, "not read, since coef is 0"),
        ({"coef": 0.1, "reference": {"mixup": 0.5}}, {}, "since reference.sync_every is null"),
        (
            {"coef": 0.1, "reference": {"sync_every": 5}},
            {"model__lora": LORA},
            "algorithm.kl.reference.sync_every: with model.lora the reference is the policy",
        ),
        (
            {"coef": 0.1, "reference": {"sync_every": 5}},
            {"parallel__strategy": "fsdp2"},
            "does not support algorithm.kl.reference.sync_every yet",
        ),
    ],
)
def test_what_cannot_move_is_refused(kl, changes, message, tmp_path):
    with pytest.raises(UserError, match=message):
        config(tmp_path, algorithm__kl=kl, **changes)
