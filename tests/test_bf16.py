"""Training with forward passes in bf16: which runs have it, and what holds in them."""

import json

import pytest
import rm_helpers as rm
import tiny
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from rl_helpers import config, metrics, trainer
from test_rm_precision import trained_scorer
from torch import nn
from transformers import LlamaConfig, LlamaForSequenceClassification, T5Config

from fgrlhf.base.files import read_json, write_json
from fgrlhf.configs.sections import LoRAConfig, ModelConfig, Sampling
from fgrlhf.kernels import choice, half_attention, shared_rows
from fgrlhf.kernels.copies import for_product, keep_copies
from fgrlhf.kernels.layers import Linear, fast_layers
from fgrlhf.models.logprobs import LIKELIEST, project_states
from fgrlhf.reward_models.loading import load_reward_model
from fgrlhf.reward_models.precision import heads_of, place, with_exact_heads
from fgrlhf.runs import precision
from fgrlhf.runs.precision import dtype_of_run

HALF = torch.bfloat16


def autocast():
    return torch.autocast("cpu", dtype=HALF)


# ---- copies of weights ---------------------------------------------------------------------------


def layers(fast: bool) -> nn.Module:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(24, 40), nn.Tanh(), nn.Linear(40, 24))
    return fast_layers(network) if fast else network


@pytest.mark.parametrize("frozen", [False, True])
def test_copies_give_what_autocast_gives(frozen):
    x_MK = torch.randn(7, 24)
    plain, fast = layers(fast=False), layers(fast=True)
    for network in (plain, fast):
        network[0].requires_grad_(not frozen)
    with autocast():
        expected, result = plain(x_MK), fast(x_MK)
    assert torch.equal(result, expected) and result.dtype == HALF
    expected.float().square().sum().backward()
    result.float().square().sum().backward()
    for a, b in zip(plain.parameters(), fast.parameters()):
        assert (a.grad is None) == (b.grad is None)
        assert a.grad is None or (torch.equal(a.grad, b.grad) and a.grad.dtype == torch.float32)


@pytest.mark.parametrize("fused", [True, False])
def test_a_weight_is_cast_once_per_update(fused):
    layer = layers(fast=True)[0]
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1, fused=fused)
    with autocast(), torch.no_grad():
        first = for_product(layer.weight)
        assert for_product(layer.weight) is first and torch.equal(first, layer.weight.to(HALF))
    with autocast():
        layer(torch.randn(3, 24)).sum().backward()
        # with a gradient, the same memory
        assert for_product(layer.weight).data_ptr() == first.data_ptr()
    optimizer.step()
    with autocast(), torch.no_grad():
        second = for_product(layer.weight)
        assert torch.equal(second, layer.weight.to(HALF)) and not torch.equal(first, second)
        layer.load_state_dict(layers(fast=True)[0].state_dict())
        assert torch.equal(for_product(layer.weight), first)
    assert for_product(layer.weight) is layer.weight, "outside autocast"


def test_a_layer_in_fp32_reads_its_weight():
    layer = layers(fast=True)[0]
    assert isinstance(layer, Linear) and for_product(layer.weight) is layer.weight
    layer(torch.randn(3, 24))
    assert not vars(layer.weight)


# ---- attention -----------------------------------------------------------------------------------


def masks(B, L, S):
    """What queries see, as arguments of attention, by name."""
    sees = torch.rand(B, 1, L, S) < 0.7
    sees[..., 0] = True
    numbers = torch.zeros(B, 1, L, S).masked_fill_(~sees, -torch.inf)
    arguments = {
        "all": {},
        "one mask": {"attn_mask": sees[0, 0]},
        "a mask for each row": {"attn_mask": numbers},
    }
    return arguments | ({"causal": {"is_causal": True}} if L == S else {})


@pytest.mark.parametrize("L, S", [(50, 50), (9, 21)])
def test_attention_has_the_output_and_the_gradient_of_pytorch(L, S, monkeypatch):
    monkeypatch.setattr(half_attention, "QUERIES_AT_ONCE", 16)
    monkeypatch.setattr(half_attention, "SCORES_AT_ONCE", 3000)
    torch.manual_seed(0)
    shapes = [(3, 4, L, 16), (3, 2, S, 16), (3, 2, S, 16)]
    inputs = [torch.randn(shape) for shape in shapes]
    direction = torch.randn(3, 4, L, 16)

    def run(attend, half, **arguments):
        own = [x.clone().requires_grad_() for x in inputs]
        with torch.autocast("cpu", dtype=HALF, enabled=half):
            out = attend(*own, enable_gqa=True, **arguments)
        (out.float() * direction).sum().backward()
        return out.detach(), [x.grad for x in own]

    plain = torch.nn.functional.scaled_dot_product_attention
    for name, arguments in masks(3, L, S).items():
        out, gradients = run(shared_rows.attention, True, **arguments)
        expected, _ = run(plain, True, **arguments)
        assert torch.equal(out, expected), name
        _, exact = run(plain, False, **arguments)
        for gradient, right in zip(gradients, exact):
            assert (gradient - right).norm() < 0.02 * right.norm(), name
        # in fp32 everything is PyTorch's
        out, gradients = run(shared_rows.attention, False, **arguments)
        assert torch.equal(out, run(plain, False, **arguments)[0]), name
        assert all(torch.equal(a, b) for a, b in zip(gradients, exact)), name


# ---- what holds in training ----------------------------------------------------------------------


@pytest.fixture
def bf16(tmp_path):
    """Makes trainers in bf16 from the arguments of `rl_helpers.trainer`."""
    # a process can have only one precision at a time
    AcceleratorState._reset_state(reset_partial_state=True)

    def make(folder, kind="llama", lora=None, **changes):
        cfg = config(folder, model__dtype="bf16", train__lr=1e-2, **changes)
        accelerator = Accelerator(cpu=True, mixed_precision="bf16")
        return trainer(cfg, kind, accelerator=accelerator, lora=lora, own_value=True)

    yield make
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.parametrize("lora", [None, LoRAConfig(r=2)])
@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt2", "t5"])
def test_the_first_kl_is_zero(kind, lora, bf16, tmp_path):
    run = bf16(tmp_path, kind, lora)
    rollout, _ = run.collect_and_score()
    assert torch.equal(rollout.logprobs_BT, rollout.ref_logprobs_BT)
    assert rollout.logprobs_BT.any()
    if lora is None:  # the reference has its products' weights in bf16, the policy all in fp32
        assert {weight.dtype for weight in run.reference.parameters()} == {torch.float32, HALF}
    assert {weight.dtype for weight in run.actor_critic.parameters()} == {torch.float32}


def test_the_first_kl_is_zero_with_frozen_layers(bf16, tmp_path):
    run = bf16(tmp_path)
    run.policy.train_top_layers(1)
    run.reference = run.policy.copy_sharing_frozen().eval().requires_grad_(False)
    keep_copies(run.reference, run.actor_critic)
    rollout, _ = run.collect_and_score()
    assert torch.equal(rollout.logprobs_BT, rollout.ref_logprobs_BT)
    assert {weight.dtype for weight in run.policy.parameters()} == {torch.float32}


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_sampling_and_scoring_agree(kind, bf16, tmp_path):
    run = bf16(tmp_path, kind, model__max_generated_len=24, env__train_num_samples_per_input=8)
    prompts, seeds = run.share(0)
    ids_GP, mask_GP = run.policy.encode(prompts)
    with run.precision():
        response = run.policy.generate(ids_GP, mask_GP, Sampling(24), seeds, 8)
    rollout, _ = run.collect_and_score()
    assert torch.equal(rollout.response_ids_BT, response.ids_BT)
    mask_BT = response.mask_BT.bool()
    differences = (rollout.logprobs_BT - response.logprobs_BT).abs()[mask_BT]
    assert len(differences) > 100 and float(differences.mean()) < 0.02


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_the_first_ratio_is_one(kind, bf16, tmp_path):
    """Scoring reads all rollouts at once; an update those of two prompts, with less padding."""
    settings = {"train__micro_batch_size": 4, "train__n_minibatches": 1}
    run = bf16(tmp_path, kind, model__max_generated_len=24, **settings)
    seen = []
    loss = run.algorithm.loss
    run.algorithm.loss = lambda new, old, advantages: (
        seen.append(torch.equal(new.logprobs_BT, old.logprobs_BT)) or loss(new, old, advantages)
    )
    rollout, rewards = run.collect_and_score()
    before = rollout.logprobs_BT.clone()
    run.update(rollout, run.compute_advantages(rollout, rewards)[1])
    in_first_step = len(rollout) // 4
    assert seen[:in_first_step] == [True] * in_first_step and not any(seen[in_first_step:])
    assert torch.equal(rollout.logprobs_BT, before)


@pytest.mark.parametrize("bias", [False, True])
def test_likely_logits_are_summed_in_fp32(bias):
    torch.manual_seed(0)
    model = tiny.policy("llama").model
    D, V = model.config.hidden_size, model.config.vocab_size
    layer = fast_layers(nn.Linear(D, V, bias=bias))
    with torch.no_grad():
        layer.weight.mul_(100)  # logits whose last digit in bf16 is 1/16 or more
    model.set_output_embeddings(layer)
    hidden_ND = torch.randn(5, D).to(HALF).requires_grad_()
    with autocast():
        plain_NV = layer(hidden_ND)
        logits_NV = project_states(model, hidden_ND)
    assert plain_NV.dtype == HALF and logits_NV.dtype == torch.float32
    bias_V = layer.bias.to(HALF).float() if bias else 0
    exact_NV = hidden_ND.float() @ layer.weight.to(HALF).float().T + bias_V
    likely_NC = plain_NV.topk(LIKELIEST).indices
    is_likely_NV = torch.zeros(5, V, dtype=torch.bool).scatter_(1, likely_NC, True)
    torch.testing.assert_close(
        logits_NV[is_likely_NV], exact_NV[is_likely_NV], rtol=1e-5, atol=1e-4
    )
    assert torch.equal(logits_NV[~is_likely_NV], plain_NV[~is_likely_NV].float())
    gradient_NV = torch.randn(5, V)
    (of_likely,) = torch.autograd.grad(logits_NV, hidden_ND, gradient_NV)
    (of_plain,) = torch.autograd.grad(plain_NV, hidden_ND, gradient_NV.to(HALF))
    assert torch.equal(of_likely, of_plain)


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_resuming_is_exact(kind, bf16, tmp_path):
    settings = {"train__total_episodes": 32, "train__save_every_steps": 2}
    bf16(tmp_path / "straight", kind, **settings).train()
    bf16(tmp_path / "resumed", kind, **settings).train(until=2)
    bf16(tmp_path / "resumed", kind, **settings).train()
    assert metrics(tmp_path / "resumed") == metrics(tmp_path / "straight")
    finals = [tmp_path / name / "final/model.safetensors" for name in ("straight", "resumed")]
    assert finals[0].read_bytes() == finals[1].read_bytes()
    assert read_json(tmp_path / "straight/run.json")["dtype"] == "bf16"


def test_values_are_in_fp32(bf16, tmp_path):
    """Predictions in bf16 would have three digits."""
    run = bf16(tmp_path)
    nn.init.normal_(run.actor_critic.value.head.layers[2].weight)
    rollout, _ = run.collect_and_score()
    values_N = rollout.values_BT[rollout.response_mask_BT.bool()]
    assert not torch.equal(values_N.to(HALF).float(), values_N)


# ---- reward models -------------------------------------------------------------------------------


def distinct_texts() -> list[str]:
    """64 texts of eight words."""
    choices = [rm.OTHERS[:2]] * 6
    texts = [""]
    for words in choices:
        texts = [f"{text} {word}" for text in texts for word in words]
    return texts


@pytest.mark.parametrize("shape", ["causal", "seq2seq", "encoder"])
def test_different_texts_have_different_scores(shape, tmp_path):
    network = trained_scorer(tmp_path, shape, "sequence", "float32").model
    with torch.no_grad():
        for weight in network.parameters():
            if weight.dim() > 1:  # so that states differ as much as those of a trained network
                weight.mul_(6)
    network.save_pretrained(tmp_path / "rm")
    texts = distinct_texts()
    scores = {}
    for dtype in ("fp32", "bf16"):
        scorer = load_reward_model(tmp_path / "rm", rm.prefix_fn, dtype=dtype)
        scores[dtype] = scorer.score([rm.prompt()] * len(texts), texts)
    assert next(scorer.model.base_model.parameters()).dtype == HALF
    assert len(set(scores["fp32"].tolist())) == len(texts)
    assert len(set(scores["bf16"].tolist())) == len(texts)


def test_the_head_keeps_its_weights():
    torch.manual_seed(0)
    small = LlamaConfig(
        vocab_size=16,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_labels=3,
        pad_token_id=0,
    )
    network = with_exact_heads(LlamaForSequenceClassification(small)).eval()
    (head,) = heads_of(network)
    before = head.weight.clone()
    ids_BT = torch.tensor([[1, 2, 3], [4, 5, 6]])
    exact = network(input_ids=ids_BT).logits
    with autocast():
        assert network(input_ids=ids_BT).logits.dtype == torch.float32
    assert place(network, "cpu", "bf16") is network
    assert torch.equal(head.weight, before) and network.model.dtype == HALF
    logits = network(input_ids=ids_BT).logits
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, exact, atol=0.02, rtol=0.05)
    assert heads_of(nn.Linear(2, 2)) == []


# ---- model.dtype: auto ---------------------------------------------------------------------------


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with instructions for bf16, on which it is `ratio` times as fast as fp32."""

    class Machine:
        ratio = 2.0
        measured = 0
        capabilities = {"avx512_bf16": True, "amx_bf16": False}

        def measure(self, K, N, device):
            self.measured += 1
            self.sizes = K, N
            return self.ratio

    fake = Machine()
    monkeypatch.setattr(precision, "measure", fake.measure)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: fake.capabilities)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return fake


def checkpoint(folder, width=576, inner=1536, **changes):
    """A config of a Llama; nothing else is read."""
    settings = LlamaConfig(hidden_size=width, intermediate_size=inner, num_attention_heads=8)
    write_json(folder / "model/config.json", {**settings.to_dict(), **changes})
    return ModelConfig(ckpt=str(folder / "model"), dtype="auto")


@pytest.fixture
def auto(tmp_path):
    (tmp_path / "model").mkdir()
    return checkpoint(tmp_path)


def test_auto_takes_bf16_where_it_is_clearly_faster(auto, machine, tmp_path, capsys):
    assert dtype_of_run(auto, tmp_path / "run") == "bf16" and machine.sizes == (576, 1536)
    line = capsys.readouterr().out
    assert line == "model.dtype=auto: bf16, which multiplies 2.0 times as fast as fp32 here\n"
    machine.ratio = 1.0
    assert dtype_of_run(auto, tmp_path / "other") == "bf16" and machine.measured == 1, (
        "runs that will be compared choose alike"
    )
    choice.cache_file("dtypes.json").write_text('{"x": "fast"}')
    assert dtype_of_run(auto, tmp_path / "other") == "fp32" and machine.measured == 2
    assert "only 1.0 times as fast" in capsys.readouterr().out


def test_what_a_config_says_is_not_measured(auto, machine, tmp_path, capsys):
    for dtype in ("fp32", "bf16"):
        settings = auto.model_copy(update={"dtype": dtype})
        assert dtype_of_run(settings, tmp_path) == dtype
    assert machine.measured == 0 and not capsys.readouterr().out


def test_auto_takes_fp32_on_other_processors_and_for_small_models(auto, machine, tmp_path, capsys):
    assert dtype_of_run(checkpoint(tmp_path, width=128, inner=512), tmp_path) == "fp32"
    assert "narrower than 256" in capsys.readouterr().out
    machine.capabilities = {"avx512_bf16": False, "amx_bf16": False}
    assert dtype_of_run(checkpoint(tmp_path), tmp_path) == "fp32"
    assert "no instructions for bf16" in capsys.readouterr().out
    assert machine.measured == 0


def test_a_resumed_run_keeps_its_dtype_on_any_machine(auto, machine, tmp_path, capsys):
    write_json(tmp_path / "run.json", {"dtype": "bf16"})
    machine.capabilities = {"avx512_bf16": False, "amx_bf16": False}
    assert dtype_of_run(auto, tmp_path) == "bf16"
    assert "although this processor has no instructions for it" in capsys.readouterr().out
    write_json(tmp_path / "run.json", {"dtype": "fp32"})
    machine.capabilities = {}
    assert dtype_of_run(auto, tmp_path) == "fp32"
    assert capsys.readouterr().out == "model.dtype=auto: fp32, with which this run began\n"
    for damaged in ("{", json.dumps({"dtype": "float9000"}), "[]"):
        (tmp_path / "run.json").write_text(damaged)
        assert dtype_of_run(auto, tmp_path) == "bf16"


def test_sizes_of_other_models(machine, tmp_path):
    (tmp_path / "model").mkdir()
    assert dtype_of_run(checkpoint(tmp_path, model_type="unknown"), tmp_path) == "fp32"
    assert precision._widths(str(tmp_path / "nothing")) is None


def test_auto_measures_the_widths_of_a_t5(machine, tmp_path):
    config = T5Config(d_model=512, d_ff=1024).to_dict()
    write_json(tmp_path / "t5/config.json", config)
    t5 = ModelConfig(ckpt=str(tmp_path / "t5"), dtype="auto")
    assert dtype_of_run(t5, tmp_path / "run") == "bf16" and machine.sizes == (512, 1024)


def test_the_measurement_compares_times():
    ratio = precision.measure(64, 96, torch.device("cpu"))
    assert isinstance(ratio, float) and ratio > 0
