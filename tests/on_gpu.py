"""RL on a GPU, beside the same run on the CPU.

`make gpu-tests` runs this file on a GPU, and `test_pretend_gpu.py` on the pretend one
(tests/pretend_gpu.py), in a process of its own.
"""

import copy
import os
from unittest import mock

import pretend_gpu
import pytest
import tiny
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from pretend_gpu import DeviceError, counted_waits
from rl_helpers import config, metrics, trainer
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from fgrlhf.algorithms.registry import ALGORITHMS
from fgrlhf.configs.sections import LoRAConfig, Sampling
from fgrlhf.kernels.layers import fast_layers
from fgrlhf.models import causal, encoder_decoder, recorded_steps

IS_REAL = torch.cuda.is_available()
GPU = torch.device("cuda" if IS_REAL else pretend_gpu.NAME, 0)

of_a_real_gpu = pytest.mark.skipif(not IS_REAL, reason="needs a GPU")
of_the_pretend_gpu = pytest.mark.skipif(IS_REAL, reason="a test of the pretend GPU")


@pytest.fixture(autouse=True)
def forget_the_device():
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def accelerator_on(device: torch.device | str, **arguments) -> Accelerator:
    AcceleratorState._reset_state(reset_partial_state=True)
    os.environ["ACCELERATE_TORCH_DEVICE"] = str(device)
    made = Accelerator(**arguments)
    os.environ["ACCELERATE_TORCH_DEVICE"] = str(GPU)
    return made


def trained(device, folder, kind, steps=2, bf16=False, lora=None, **changes) -> list[dict]:
    """The metrics of a short run."""
    accelerator = accelerator_on(device, mixed_precision="bf16" if bf16 else "no")
    cfg = config(folder, **changes)
    run = trainer(
        cfg, kind, own_value=cfg.algorithm.name == "trpo", accelerator=accelerator, lora=lora
    )
    assert next(run.policy.parameters()).device.type == torch.device(device).type
    run.train(until=steps)
    return metrics(folder)


def assert_trains_as_on_the_cpu(folder, kind, **changes) -> None:
    """One step, since Adam's first steps enlarge differences of rounding.

    A step of TRPO has several steps of its critic, whose gradients have been seen to differ by
    0.12%.
    """
    (found,) = trained(GPU, folder / "gpu", kind, steps=1, **changes)
    (expected,) = trained("cpu", folder / "cpu", kind, steps=1, **changes)
    assert expected["grad_norm"] > 0.01
    assert found == pytest.approx(expected, rel=5e-3, abs=1e-4)


# ---- the device ----------------------------------------------------------------------------------


@of_the_pretend_gpu
def test_a_gpu_refuses_what_it_refuses():
    on_gpu = torch.arange(3.0, device=GPU)
    on_cpu = torch.ones(3)
    assert str(on_gpu.device) == "pretend:0" and (on_gpu + on_gpu).device == GPU
    for operation in (
        lambda: on_gpu + on_cpu,
        lambda: on_cpu * on_gpu.sum(),
        lambda: torch.cat([on_gpu, on_cpu]),
        lambda: torch.stack([on_gpu.sum(), on_cpu.sum()]),
        lambda: on_cpu[torch.tensor([0], device=GPU)],
        lambda: torch.nn.functional.embedding(on_cpu.long(), on_gpu[:, None]),
    ):
        with pytest.raises(DeviceError, match="two devices"):
            operation()
    with pytest.raises(TypeError, match="to numpy"):
        on_gpu.numpy()


@of_the_pretend_gpu
def test_a_gpu_accepts_what_it_accepts():
    on_gpu = torch.arange(3.0, device=GPU)
    assert (on_gpu * torch.tensor(2.0)).tolist() == [0, 2, 4]  # a number
    assert on_gpu[torch.tensor([2, 0])].tolist() == [2, 0]  # indices on the CPU
    on_gpu[[0, 1]] = 5.0
    assert on_gpu.cpu().numpy().tolist() == [5, 5, 2]
    weight = torch.nn.Parameter(torch.ones(3, device=GPU))
    (weight * on_gpu).sum().backward()
    assert weight.grad is not None and weight.grad.device == GPU
    assert weight.grad.tolist() == [5, 5, 2]
    with torch.autocast(GPU.type, dtype=torch.bfloat16):
        assert torch.nn.functional.linear(on_gpu[None], weight[None]).dtype == torch.bfloat16


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_a_norm_computes_what_transformers_computes(dtype, tolerance):
    torch.manual_seed(0)
    plain = LlamaRMSNorm(64, eps=1e-6).to(dtype)
    with torch.no_grad():
        plain.weight.copy_(torch.rand(64) + 0.5)
    x = torch.randn(2, 3, 64, dtype=dtype, requires_grad=True)
    g = torch.randn(2, 3, 64, dtype=dtype)
    results = []
    for norm, device in ((plain, "cpu"), (fast_layers(copy.deepcopy(plain)), GPU)):
        norm = norm.to(device)
        y = norm(x.to(device))
        assert y.dtype == dtype
        gradients = torch.autograd.grad((y * g.to(device)).sum(), [x, norm.weight])
        results.append([tensor.cpu() for tensor in (y, *gradients)])
    torch.testing.assert_close(*results, atol=tolerance, rtol=tolerance)


# ---- RL ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_trains_as_on_the_cpu(name, tmp_path):
    changes = {} if name == "ppo" else {"algorithm__name": name}
    if name == "trpo":
        changes["model__value_model"] = {"ckpt": "tiny", "policy_value_sharing": False}
    assert_trains_as_on_the_cpu(tmp_path, "t5", **changes)


@pytest.mark.parametrize("kind", ["bart", "gpt2", "llama"])
def test_every_architecture_trains_as_on_the_cpu(kind, tmp_path):
    assert_trains_as_on_the_cpu(tmp_path, kind)


def test_settings_of_the_loss_work_as_on_the_cpu(tmp_path):
    named = {"algorithm__entropy__coef": 0.01, "algorithm__kl__part_of": "loss"}
    assert_trains_as_on_the_cpu(tmp_path, "gpt2", algorithm__normalize_aspects="batch", **named)


@pytest.mark.parametrize("kind", ["t5", "llama"])
def test_adapters_train_as_on_the_cpu(kind, tmp_path):
    assert_trains_as_on_the_cpu(tmp_path, kind, lora=LoRAConfig(r=2))


@of_a_real_gpu
@pytest.mark.parametrize("kind", ["t5", "llama"])
def test_layers_in_4_bits_and_the_8_bit_optimiser(kind, tmp_path):
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    settings = {"train__optimizer": "adamw_8bit", "train__lr": 2e-2, "algorithm__kl__coef": 0.01}
    lora = LoRAConfig(r=128, quantize="nf4")
    rows = trained(GPU, tmp_path, kind, steps=40, lora=lora, train__total_episodes=320, **settings)
    assert abs(rows[0]["kl"]) < 1e-6
    rewards = [row["reward/total"] for row in rows]
    assert sum(rewards[-8:]) > sum(rewards[:8])


def test_an_interrupted_run_continues(tmp_path):
    expected = trained(GPU, tmp_path / "whole", "t5", train__save_every_steps=1)
    trained(GPU, tmp_path / "parts", "t5", steps=1, train__save_every_steps=1)
    found = trained(GPU, tmp_path / "parts", "t5", train__save_every_steps=1)
    assert found == expected


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_in_bf16_the_untrained_policy_equals_its_reference(kind, tmp_path):
    """Rollout and reference compute in the same precision, so the first KL is 0."""
    rows = trained(GPU, tmp_path, kind, bf16=True, model__dtype="bf16")
    assert abs(rows[0]["kl"]) < 1e-6 < abs(rows[1]["kl"])


@of_a_real_gpu
@pytest.mark.parametrize("lora", [None, LoRAConfig(r=2)])
@pytest.mark.parametrize("kind", ["t5", "mt5", "bart", "gpt2", "llama", "qwen3", "neox"])
def test_recorded_steps_sample_the_same(kind, lora, recwarn):
    """See tests/test_recorded_steps.py."""
    policy = tiny.policy(kind, lora=lora).to(GPU).eval()
    prompts = policy.encode(["the red cat", "a dog sees the bird and one two three", "question:"])
    sampling = Sampling(40, do_sample=True)
    samples = {}
    for records in (True, False):
        with (
            mock.patch.object(causal, "can_record", return_value=records),
            mock.patch.object(encoder_decoder, "can_record", return_value=records),
            mock.patch.object(recorded_steps, "capture", wraps=recorded_steps.capture) as capture,
        ):
            samples[records] = policy.generate(*prompts, sampling, list(range(9)), 3)
        assert capture.call_count == records
    assert not [warning for warning in recwarn if "recorded" in str(warning.message)]
    assert samples[True].ids_BT.tolist() == samples[False].ids_BT.tolist()
    torch.testing.assert_close(samples[True].logprobs_BT, samples[False].logprobs_BT)


@of_the_pretend_gpu
@pytest.mark.parametrize("kind", ["t5", "mt5", "bart", "gpt2", "llama", "qwen3", "neox"])
def test_a_recorded_step_stays_on_the_gpu(kind):
    policy = tiny.policy(kind).to(GPU).eval()
    prompts = policy.encode(["the red cat", "a dog sees the bird and one two three", "question:"])
    with (
        mock.patch.object(causal, "can_record", return_value=True),
        mock.patch.object(encoder_decoder, "can_record", return_value=True),
        mock.patch.object(
            recorded_steps, "capture", side_effect=lambda run, device: run
        ) as capture,
    ):
        policy.generate(*prompts, Sampling(9, do_sample=True), list(range(9)), 3)
    capture.assert_called_once()  # so the first step showed no wait


@of_a_real_gpu
@pytest.mark.parametrize("kind", ["t5", "gpt2", "llama"])
def test_recorded_steps_under_autocast(kind):
    policy = tiny.policy(kind).to(GPU).eval()
    prompts = policy.encode(["the red cat", "a dog sees the bird and one two three", "question:"])
    sampling = Sampling(40, do_sample=True)
    repeated = [x.repeat_interleave(3, 0) for x in prompts]
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        found = policy.generate(*prompts, sampling, list(range(9)), 3)
        scored, _ = policy(*repeated, found.ids_BT, found.mask_BT)
    apart_BT = (found.logprobs_BT - scored.logprobs_BT).abs()
    assert apart_BT[found.mask_BT.bool()].mean() < 0.03  # bf16 keeps 8 bits


@of_the_pretend_gpu
@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_a_decoded_token_does_not_wait_often(kind):
    """Every wait empties the GPU's queue, so their number per token is bounded."""
    policy = tiny.policy(kind)
    policy.to(GPU).eval()
    policy.model.generation_config.eos_token_id = [1]
    prompts = policy.encode(["the red cat", "a dog sees"])
    totals = []
    for length in (8, 24):
        with counted_waits() as waits:
            policy.generate(*prompts, Sampling(length, do_sample=True), [0, 1, 2, 3], 2)
        totals.append(sum(waits.values()))
    assert 0 < (totals[1] - totals[0]) / 16 < 4, waits
