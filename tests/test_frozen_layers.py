"""Training of the top layers, with the frozen ones computed once."""

from copy import deepcopy

import pytest
import rl_helpers
import tiny
import torch
from accelerate import Accelerator

from fgrlhf.base.errors import UserError
from fgrlhf.configs.sections import LoRAConfig, Sampling
from fgrlhf.models import causal, frozen_layers
from fgrlhf.models.frozen_layers import FrozenLayers
from fgrlhf.models.lora import AdapterFree, add_adapters
from fgrlhf.policy import load_policy, load_value
from fgrlhf.reward import CombinedReward
from fgrlhf.trainer import make_trainer
from fgrlhf.value import ActorCritic

SPLIT = ["gpt2", "llama", "qwen3", "neox", "falcon"]
TEXTS = ["the red cat", "a dog sees the bird and one two three", "question:"]


def batch_of(policy, num_samples=2):
    policy.model.generation_config.eos_token_id = [1, 5, 10, 15, 20]
    prompt = policy.encode(TEXTS)
    seeds = list(range(len(TEXTS) * num_samples))
    response = policy.generate(*prompt, Sampling(7), seeds, num_samples)
    prompt_BP = [x.repeat_interleave(num_samples, 0) for x in prompt]
    return (*prompt_BP, response.ids_BT, response.mask_BT)


@pytest.fixture
def lower_runs(monkeypatch):
    """The rows of every call that computes frozen layers."""
    runs = []

    def run_lower(model, n_trained, **inputs):
        runs.append(len(inputs["input_ids"]))
        return frozen_layers.run_lower(model, n_trained, **inputs)

    monkeypatch.setattr(causal, "run_lower", run_lower)
    return runs


@pytest.mark.parametrize("shared_rows", [True, False])
@pytest.mark.parametrize("kind", SPLIT)
def test_stored_states_change_no_result_and_no_gradient(kind, shared_rows, monkeypatch, lower_runs):
    monkeypatch.setattr(causal, "sharing_pays", lambda *_: shared_rows)
    whole = tiny.policy(kind, dropout=0.5) if kind == "gpt2" else tiny.policy(kind)
    split = deepcopy(whole)
    whole.train_top_layers(1)
    whole.frozen_layers = None
    split.train_top_layers(1)
    batch = batch_of(whole)
    whole.eval()
    split.eval()
    for use in range(3):
        results = []
        for policy in (whole, split):
            policy.zero_grad()
            output, _ = policy(*batch)
            output.logprobs_BT.sum().backward()
            trained = [p for p in policy.parameters() if p.requires_grad]
            assert trained and all(p.grad is not None for p in trained)
            results.append([output.logprobs_BT, *(p.grad for p in trained)])
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
        assert len(lower_runs) == 1, f"use {use} computed the frozen layers again"


@pytest.mark.parametrize("kind", SPLIT)
def test_states_are_found_in_any_order_and_padding(kind, lower_runs):
    policy = tiny.policy(kind).eval()
    policy.train_top_layers(1)
    prompt_ids, prompt_mask, ids, mask = batch_of(policy)
    with torch.no_grad():
        expected = policy(prompt_ids, prompt_mask, ids, mask)[0].logprobs_BT
        rows = [5, 4, 0, 1]  # the prompts that stay are shorter, so a column of padding goes
        width = int(prompt_mask[rows].any(0).sum())
        part = (prompt_ids[rows, -width:], prompt_mask[rows, -width:], ids[rows], mask[rows])
        again = policy(*part)[0].logprobs_BT
    assert width < prompt_ids.shape[1]
    torch.testing.assert_close(again, expected[rows], atol=1e-5, rtol=1e-4)
    assert len(lower_runs) == 1


def test_a_frozen_layer_has_no_dropout():
    policy = tiny.gpt2(dropout=0.5).train()
    policy.train_top_layers(1)
    batch = batch_of(policy)
    states = []
    for _ in range(2):
        policy.frozen_layers = FrozenLayers(1)
        policy(*batch)
        states.append(policy.frozen_layers._states)
    for key, state in states[0].items():
        assert state.equal(states[1][key])
    assert policy.model.training


def test_the_reference_shares_the_frozen_layers_and_stays_the_initial_policy(lower_runs):
    policy = tiny.policy("llama").eval()
    initial = deepcopy(policy)
    policy.train_top_layers(1)
    reference = policy.copy_sharing_frozen().requires_grad_(False)
    batch = batch_of(policy)
    optimizer = torch.optim.SGD([p for p in policy.parameters() if p.requires_grad], lr=1.0)
    policy(*batch)[0].logprobs_BT.mean().backward()
    optimizer.step()
    with torch.no_grad():
        expected = initial(*batch)[0].logprobs_BT
        result = reference(*batch)[0].logprobs_BT
        trained = policy(*batch)[0].logprobs_BT
    torch.testing.assert_close(result, expected, atol=1e-6, rtol=1e-6)
    assert (trained - expected).abs().max() > 0.01
    assert len(lower_runs) == 1
    shared = {p.data_ptr() for p in policy.parameters()} & {
        p.data_ptr() for p in reference.parameters()
    }
    frozen = {p.data_ptr() for p in policy.parameters() if not p.requires_grad}
    assert shared == frozen


@pytest.mark.parametrize("kind", [*SPLIT, "t5"])
def test_all_layers_are_the_policy_as_it_is(kind, tmp_path):
    tiny.policy(kind).save(tmp_path)
    layers = 4 if kind == "t5" else 2
    policy = load_policy(tmp_path)
    everything = load_policy(tmp_path, top_layers=layers)
    assert everything.frozen_layers is None
    assert all(p.requires_grad for p in everything.parameters())
    batch = batch_of(policy)
    assert policy(*batch)[0].logprobs_BT.equal(everything(*batch)[0].logprobs_BT)


@pytest.mark.parametrize("empty", [True, False])
def test_more_layers_than_there_are_is_refused(empty, tmp_path):
    tiny.policy("llama").save(tmp_path)
    with pytest.raises(UserError, match="train_top_layers=3, but the model has only 2 layers"):
        load_policy(tmp_path, top_layers=3, empty=empty)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "t5"])
def test_adapters_are_on_the_top_layers(kind, tmp_path):
    tiny.policy(kind).save(tmp_path)
    policy = load_policy(tmp_path, lora=LoRAConfig(r=2), top_layers=1)
    adapted = {name for name, p in policy.named_parameters() if p.requires_grad}
    assert adapted
    last = {"llama": "layers.1.", "gpt2": "h.1.", "t5": "decoder.block.1."}[kind]
    assert all(last in name and ".lora_" in name for name in adapted)


def test_adapters_on_top_layers_use_the_stored_states(lower_runs):
    policy = tiny.policy("llama").eval()
    batch = batch_of(policy)
    with torch.no_grad():
        expected = policy(*batch)[0].logprobs_BT
    add_adapters(policy.model, LoRAConfig(r=2), top_layers=1)
    policy.train_top_layers(1)
    reference = AdapterFree(policy)
    for name, parameter in policy.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    changed = policy(*batch)[0].logprobs_BT
    changed.sum().backward()
    with torch.no_grad():
        result = reference(*batch)[0].logprobs_BT
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-5)
    assert (changed - expected).abs().max() > 0.01
    assert len(lower_runs) == 1


def test_a_critic_of_the_same_checkpoint_shares_the_frozen_layers(tmp_path, lower_runs):
    tiny.policy("llama").save(tmp_path)
    policy = load_policy(tmp_path, top_layers=1).eval()
    value = load_value(tmp_path, policy, top_layers=1, same_ckpt=True).eval()
    assert value.trunk is not None and value.trunk.frozen_layers is policy.frozen_layers
    torch.nn.init.normal_(value.head.layers[-1].weight)
    alone = load_value(tmp_path, policy, top_layers=1).eval()
    assert alone.trunk is not None and alone.trunk.frozen_layers is not policy.frozen_layers
    alone.head.load_state_dict(value.head.state_dict())
    batch = batch_of(policy)
    lower_runs.clear()  # loading a policy checks its logits
    output = ActorCritic(policy, value)(*batch)
    assert len(lower_runs) == 1
    expected, _ = alone(*batch, policy_hidden_BTD=None)
    torch.testing.assert_close(output.values_BT, expected, atol=1e-5, rtol=1e-5)
    own = [p for p in value.trunk.parameters() if p.requires_grad]
    theirs = {p.data_ptr() for p in policy.parameters() if p.requires_grad}
    assert own and not {p.data_ptr() for p in own} & theirs


def test_the_oldest_states_are_forgotten(monkeypatch):
    D = 4
    monkeypatch.setattr(frozen_layers, "CAPACITY", 3 * (3 + 2) * D * 4)  # three prompts of 3 + 2
    memory = FrozenLayers(1)
    mask_13 = torch.ones(1, 3, dtype=torch.long)
    mask_112 = torch.ones(1, 1, 2, dtype=torch.long)
    computed = []

    def look_up(i: int) -> None:
        def compute():
            computed.append(i)
            return torch.full((1, 3, D), float(i)), torch.full((1, 1, 2, D), -float(i))

        prompt, response = memory.states(
            torch.full((1, 3), i), mask_13, torch.full((1, 1, 2), i), mask_112, compute
        )
        assert prompt.unique().tolist() == [i] and response.unique().tolist() == [-i]

    for i in (1, 2, 3, 1, 4):
        look_up(i)
    assert computed == [1, 2, 3, 4]
    look_up(1)  # used more recently than 2
    assert computed == [1, 2, 3, 4]
    look_up(2)
    assert computed == [1, 2, 3, 4, 2]


def test_states_of_the_latest_batch_replace_earlier_ones():
    memory = FrozenLayers(1)
    mask_13 = torch.ones(1, 3, dtype=torch.long)
    mask_112 = torch.ones(1, 1, 2, dtype=torch.long)

    def look_up(response: int, value: float) -> torch.Tensor:
        def compute():
            return torch.full((1, 3, 4), value), torch.full((1, 1, 2, 4), value)

        ids_112 = torch.full((1, 1, 2), response)
        return memory.states(mask_13, mask_13, ids_112, mask_112, compute)[0]

    assert look_up(1, 0.5).unique().tolist() == [0.5]
    assert look_up(2, 0.25).unique().tolist() == [0.25]  # computed again, for the new response
    assert look_up(2, 9.0).unique().tolist() == [0.25]  # known
    memory.forget()
    assert look_up(2, 9.0).unique().tolist() == [9.0]


@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_a_run_trains_the_top_layers_only(kind, algorithm, tmp_path):
    tiny.policy(kind).save(tmp_path / "policy")
    changes = {"algorithm__name": algorithm, "train__total_episodes": 16}
    changes["model__value_model"] = {"ckpt": str(tmp_path / "policy"), "train_top_layers": 1}
    cfg = rl_helpers.config(tmp_path / "run", **changes)
    policy = load_policy(tmp_path / "policy", max_input_len=64, top_layers=1)
    value = None
    if cfg.needs_values:
        value = load_value(tmp_path / "policy", policy, top_layers=1, same_ckpt=True)
    reward = CombinedReward({"cat": rl_helpers.CountWord()})
    models = (ActorCritic(policy, value), policy.copy_sharing_frozen())
    accelerator = Accelerator(cpu=True)
    trainer = make_trainer(cfg, *models, reward, rl_helpers.PROMPTS, None, accelerator)
    before = {name: p.clone() for name, p in policy.named_parameters()}
    forgotten = []
    if kind == "llama":
        forget = policy.frozen_layers.forget
        policy.frozen_layers.forget = lambda: (forgotten.append(1), forget())
    trainer.train()
    # two steps; policy and critic share the states, and each of them asks to forget them
    assert len(forgotten) == (0 if kind == "t5" else 2 * (1 + cfg.needs_values))
    assert rl_helpers.metrics(tmp_path / "run")[0]["kl"] == pytest.approx(0, abs=1e-5)
    changed = {name for name, p in policy.named_parameters() if not p.equal(before[name])}
    last = "layers.1." if kind == "llama" else "decoder.block.1."
    assert any(last in name for name in changed)
    assert all(last in name or "norm" in name or "lm_head" in name for name in changed)
