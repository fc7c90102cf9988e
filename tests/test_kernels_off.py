"""`model.kernels: off`: no code of fgrlhf/kernels runs, and the results are the same."""

import pytest
import rm_helpers as rm
import tiny
import torch
from test_policy import logprobs_and_gradient, sampled
from transformers import LongformerForTokenClassification

from fgrlhf.kernels import attention, choice, install, layers, longformer
from fgrlhf.models.encoder_decoder import EncoderDecoderPolicy
from fgrlhf.policy import load_policy
from fgrlhf.reward_models.loading import load_reward_model
from fgrlhf.reward_models.spec import RewardModelSpec
from reward_modeling.config import RMModelConfig
from reward_modeling.network import load_network


@pytest.fixture
def off(monkeypatch):
    """A process whose config has `model.kernels: off`; any use of a kernel fails."""
    monkeypatch.delenv("FGRLHF_KERNELS", raising=False)
    monkeypatch.setattr(choice, "_chosen", None)
    choice.use_kernels("off")
    for module, name in (
        (layers, "linear"),
        (layers, "dropout_mask"),
        (install, "fast_layers"),
        (longformer, "use_banded_attention"),
        (choice, "onednn_linear"),
        (choice, "measure"),
        (attention, "linear"),
        (attention, "shared_prompt_attention"),
        (attention, "bias_by_distance"),
        (install, "use_shared_attention"),
        (longformer, "banded_attention"),
    ):
        monkeypatch.setattr(module, name, unused(name))


def unused(name):
    def fail(*args, **kwargs):
        pytest.fail(f"{name} of fgrlhf/kernels is used")

    return fail


def classes_from_kernels(model) -> set[type]:
    """Classes of the model's modules, and methods of its instances, from fgrlhf/kernels."""
    result = {type(module) for module in model.modules()}
    for module in model.modules():
        result |= {value for value in vars(module).values() if callable(value)}
    return {item for item in result if getattr(item, "__module__", "").startswith("fgrlhf.kernels")}


def results(policy):
    """Samples, log-probabilities and gradients, with dropout in an extra backward pass."""
    batch = sampled(policy, num_samples=4)
    logprobs_BT, gradient = logprobs_and_gradient(policy.eval(), batch)
    policy.train()
    logprobs_and_gradient(policy, batch)
    policy.eval()
    return *batch, logprobs_BT, gradient


@pytest.mark.parametrize("kind", list(tiny.POLICIES))
def test_a_policy_has_the_same_results_without_kernels(kind, request, tmp_path):
    fast = tiny.policy(kind).eval()
    assert classes_from_kernels(fast)
    expected = results(fast)
    fast.save(tmp_path)

    request.getfixturevalue("off")
    policy = load_policy(tmp_path).eval()
    assert not classes_from_kernels(policy.model)
    assert policy.model.config._attn_implementation == "sdpa" or kind in ("bloom", "gemma2")
    result = results(policy)
    for found_tensor, expected_tensor in zip(result, expected):
        # rounding is relative to the largest gradient: about 20 in the Llama model
        atol = max(1e-5, 2e-6 * float(expected_tensor.abs().max()))
        torch.testing.assert_close(found_tensor, expected_tensor, atol=atol, rtol=1e-4)


def test_shared_prompts_follow_the_switch(request):
    assert install.shares_prompts(tiny.t5().model)
    request.getfixturevalue("off")
    policy = tiny.t5(dropout=0.3).train()
    assert isinstance(policy, EncoderDecoderPolicy) and not install.shares_prompts(policy.model)
    results(policy)


@pytest.fixture
def longformer_folder(tmp_path):
    """A saved reward model."""
    tokenizer = tiny.tokenizer("word")
    torch.manual_seed(0)
    config = rm.longformer_config(len(tokenizer), num_labels=2)
    LongformerForTokenClassification(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


def test_a_reward_model_in_use_and_in_training_has_none(longformer_folder, request):
    facts = {"labels": ("E", "O"), "error_label": "E", "ok_label": "O"}
    spec = RewardModelSpec("segment", "encoder", "subsentence", True, 64, **facts)
    section = RMModelConfig(ckpt=str(longformer_folder), max_input_len=64, kernels="off")
    labels = {0: "E", 1: "O"}
    network, _ = load_network(section.model_copy(update={"kernels": "auto"}), "segment", labels)
    assert classes_from_kernels(network)

    request.getfixturevalue("off")
    ids = torch.tensor([[3, 4, 5, 6, 7, 8, 9]])
    network, _ = load_network(section, "segment", labels)
    assert not classes_from_kernels(network)
    network(input_ids=ids).logits.sum().backward()
    spec.save(longformer_folder)
    scorer = load_reward_model(longformer_folder, rm.prefix_fn)
    assert not classes_from_kernels(scorer.model)


def test_the_config_decides_before_the_process_has_chosen(longformer_folder, monkeypatch):
    """A reward model's network is loaded before `use_kernels` is called."""
    monkeypatch.delenv("FGRLHF_KERNELS", raising=False)
    monkeypatch.setattr(choice, "_chosen", None)
    section = RMModelConfig(ckpt=str(longformer_folder), max_input_len=64, kernels="off")
    network, _ = load_network(section, "segment", {0: "E", 1: "O"})
    assert not classes_from_kernels(network) and choice._chosen is None
