import pytest
import tiny
import torch
from rl_helpers import PROMPTS

from fgrlhf.base.errors import UserError
from fgrlhf.base.seeds import derive_seed
from fgrlhf.configs.sections import Sampling
from fgrlhf.policy import load_value
from fgrlhf.value import ActorCritic, T5Value, Value, ValueHead

KINDS = ["t5", "gpt2", "flan", "bart", "llama"]


def batch_of(policy):
    prompt = policy.encode([p.text for p in PROMPTS])
    response = policy.generate(*prompt, Sampling(6), [derive_seed(i) for i in range(3)])
    response.mask_BT[1, 3:] = 0
    return *prompt, response.ids_BT, response.mask_BT


def with_noisy_head(value: Value) -> Value:
    torch.manual_seed(0)
    for parameter in value.head.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return value


def value_loss(model: ActorCritic, batch) -> torch.Tensor:
    return ((model(*batch).values_BT - 1) ** 2).sum()


def has_gradient(module) -> bool:
    return any(p.grad is not None and p.grad.abs().sum() > 0 for p in module.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_a_trunk_of_its_own_learns_and_leaves_the_policy_alone(kind):
    policy, trunk = tiny.policy(kind), tiny.policy(kind, seed=1)
    model = ActorCritic(policy, with_noisy_head(Value(trunk.hidden_size, trunk)))
    batch = batch_of(policy)
    value_loss(model, batch).backward()
    assert has_gradient(trunk) and has_gradient(model.value.head) and not has_gradient(policy)
    optimizer = torch.optim.Adam(model.value.parameters(), lr=3e-3)
    before = value_loss(model, batch).item()
    for _ in range(40):
        optimizer.zero_grad()
        value_loss(model, batch).backward()
        optimizer.step()
    assert value_loss(model, batch).item() < 0.1 * before


@pytest.mark.parametrize("kind", KINDS)
def test_a_frozen_trunk_gets_no_gradient_and_does_not_change(kind):
    policy, trunk = tiny.policy(kind), tiny.policy(kind, seed=1)
    model = ActorCritic(
        policy, with_noisy_head(Value(trunk.hidden_size, trunk, freezes_trunk=True))
    )
    before_update = {name: tensor.clone() for name, tensor in trunk.state_dict().items()}
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    batch = batch_of(policy)
    before = value_loss(model, batch)
    before.backward()
    assert not any(p.requires_grad for p in trunk.parameters())
    assert all(p.grad is None for p in trunk.parameters()) and has_gradient(model.value.head)
    optimizer.step()
    assert value_loss(model, batch) < before
    after_update = trunk.state_dict()
    assert all(torch.equal(after_update[name], before_update[name]) for name in after_update)


@pytest.mark.parametrize("kind", KINDS)
def test_a_shared_trunk_trains_the_policy_too(kind):
    policy = tiny.policy(kind)
    model = ActorCritic(policy, with_noisy_head(Value(policy.hidden_size)))
    batch = batch_of(policy)
    output = model(*batch)
    _, hidden_BTD = policy(*batch)
    values_BT = model.value.head(hidden_BTD)[..., 0]
    torch.testing.assert_close(output.values_BT, values_BT * batch[3])
    value_loss(model, batch).backward()
    assert has_gradient(policy) and has_gradient(model.value.head)


@pytest.mark.parametrize("kind", KINDS)
def test_values_on_padding_are_zero_and_padding_changes_nothing(kind):
    policy, trunk = tiny.policy(kind), tiny.policy(kind, seed=1)
    model = ActorCritic(policy, with_noisy_head(Value(trunk.hidden_size, trunk)))
    prompt_ids_BP, prompt_mask_BP, ids_BT, mask_BT = batch_of(policy)
    values_BT = model(prompt_ids_BP, prompt_mask_BP, ids_BT, mask_BT).values_BT
    assert values_BT.dtype == torch.float32
    assert values_BT[1, :3].abs().min() > 0 and values_BT[1, 3:].abs().sum() == 0
    other_padding_BT = torch.where(mask_BT.bool(), ids_BT, 9)
    other = model(prompt_ids_BP, prompt_mask_BP, other_padding_BT, mask_BT)
    torch.testing.assert_close(other.values_BT, values_BT)


def test_an_output_layer_that_is_not_tied_is_not_trained():
    """It gets no gradient, which data-parallel training would refuse.

    The config does not show it: that of a Flan-T5 declares tied layers.
    """
    trains = {}
    for kind in KINDS:
        trunk = tiny.policy(kind)
        Value(trunk.hidden_size, trunk)
        trains[kind] = trunk.model.get_output_embeddings().weight.requires_grad
    assert trains == {"t5": True, "gpt2": True, "flan": False, "bart": True, "llama": False}


def test_an_untrained_critic_predicts_zero():
    assert ValueHead(8)(torch.randn(2, 3, 8)).abs().max() == 0
    assert T5Value is Value


@pytest.mark.parametrize("mode", ["own", "frozen", "shared"])
@pytest.mark.parametrize("kind", KINDS)
def test_all_modes_load_and_run_in_bf16(kind, mode, tmp_path):
    policy = tiny.policy(kind)
    tiny.policy(kind, seed=1).save(tmp_path / "trunk")
    share = mode == "shared"
    ckpt = None if share else tmp_path / "trunk"
    value = load_value(ckpt, policy, freeze=mode == "frozen", share=share)
    assert (value.trunk is None) == (mode == "shared")
    model = ActorCritic(policy, with_noisy_head(value))
    batch = batch_of(policy)
    expected = model(*batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(*batch)
        loss = ((output.values_BT - 1) ** 2).mean() - output.logprobs_BT.mean()
    loss.backward()
    assert has_gradient(policy)
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    torch.testing.assert_close(output.logprobs_BT, expected.logprobs_BT, atol=0.1, rtol=0)
    torch.testing.assert_close(output.values_BT, expected.values_BT, atol=0.2, rtol=0.1)
    if mode != "shared":
        in_bf16 = load_value(tmp_path / "trunk", policy, dtype="bf16")
        assert in_bf16.trunk.model.dtype == torch.bfloat16
        assert in_bf16(*batch, policy_hidden_BTD=None)[0].isfinite().all()


@pytest.mark.parametrize("trunk", [("t5", {"kind": "unigram"}), ("gpt2", {"kind": "word"})])
def test_a_trunk_that_reads_other_tokens_is_refused(trunk, tmp_path):
    kind, arguments = trunk
    tiny.POLICIES[kind](**arguments).save(tmp_path / "trunk")
    with pytest.raises(UserError, match="cannot read the policy's tokens"):
        load_value(tmp_path / "trunk", tiny.policy("t5"))


def test_without_a_critic_there_are_no_values():
    policy = tiny.policy("t5")
    assert ActorCritic(policy, None)(*batch_of(policy)).values_BT is None
