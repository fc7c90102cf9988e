"""Reward models with adapters: what is trained, what later stages load, exact resume."""

import json

import pytest
import rm_helpers as rm
import test_run_fg_rm as segment
import test_run_pref_rm as pairs
import torch
from safetensors.torch import load_file
from slow import with_slow
from transformers import BertConfig, BertModel

from fgrlhf import base_trainer
from fgrlhf.base.errors import UserError
from fgrlhf.models.lora import has_adapters
from fgrlhf.reward_models.loading import load_reward_model
from fgrlhf.reward_models.scoring import SegmentScorer, SequenceScorer
from reward_modeling import run_fg_rm, run_pref_rm, training
from reward_modeling.config import RMModelConfig
from reward_modeling.network import load_network

MODULES = {"segment": (segment, run_fg_rm), "sequence": (pairs, run_pref_rm)}
LORA = {"r": 4, "alpha": 16.0}
TEXTS = ["red red cat sees one", "the dog likes one one"]


def config(kind, folder, shape, lora=LORA, **changes):
    """Settings of a short run with adapters; changes as in the stages' own tests."""
    helpers, _ = MODULES[kind]
    short = {"model__lora": lora, "train__max_steps": 20, "evaluation__every_steps": 8}
    return helpers.config(folder, shape, **{**short, **changes})


@pytest.fixture
def trained(monkeypatch):
    """The trainers that wrote models."""
    trainers = []
    install = training.install_model

    def remember(trainer, *arguments):
        trainers.append(trainer)
        install(trainer, *arguments)

    monkeypatch.setattr(training, "install_model", remember)
    return trainers


def logits(scorer) -> list[torch.Tensor]:
    return scorer.logits(scorer.encode([rm.prompt()] * len(TEXTS), TEXTS))


@pytest.mark.parametrize("shape", rm.SHAPES)
@pytest.mark.parametrize("kind", with_slow(MODULES, lambda kind: kind == "sequence"))
def test_later_stages_load_the_merged_model(tmp_path, trained, kind, shape):
    has_feature = shape != "encoder"
    _, program = MODULES[kind]
    folder = program.train(config(kind, tmp_path, shape, model__lm_logprob_feature=has_feature))
    network = trained[0].model.eval()
    in_optimizer = set()
    for group in trained[0].optimizer.param_groups:
        in_optimizer.update(map(id, group["params"]))
    names = {name for name, p in network.named_parameters() if id(p) in in_optimizer}
    heads = {name for name in names if ".lora_" not in name}
    allowed = ("head.", "feature_in.", "classifier.")
    assert heads and all(name.startswith(allowed) for name in heads)
    assert len(names) > len(heads) and has_adapters(network)

    scorer = load_reward_model(folder, rm.prefix_fn)
    assert isinstance(scorer, SegmentScorer if kind == "segment" else SequenceScorer)
    assert not has_adapters(scorer.model)
    with_adapters = type(scorer)(network, scorer.inputs.tokenizer, scorer.spec, rm.prefix_fn)
    for merged, expected in zip(logits(scorer), logits(with_adapters), strict=True):
        torch.testing.assert_close(merged, expected, atol=1e-5, rtol=0)
    # the adapters have learned something: without them the scores differ
    for name, parameter in network.named_parameters():
        if ".lora_B." in name:
            torch.nn.init.zeros_(parameter)
    difference = [float((x - y).abs().max()) for x, y in zip(logits(scorer), logits(with_adapters))]
    assert max(difference) > 1e-3


@pytest.mark.parametrize(
    "kind, shape",
    [("segment", "causal"), pytest.param("sequence", "seq2seq", marks=pytest.mark.slow)],
)
def test_an_interrupted_run_ends_as_an_uninterrupted_one(tmp_path, monkeypatch, kind, shape):
    _, program = MODULES[kind]
    whole, other = (
        config(
            kind, tmp_path, shape, LORA | {"dropout": 0.1}, logging__save_dir=str(tmp_path / name)
        )
        for name in ("whole", "other")
    )
    folder = program.train(whole)
    with monkeypatch.context() as patch:
        segment.interrupt_at(patch, 13)
        with pytest.raises(segment.Interrupt):
            program.train(other)
    saved = load_file(tmp_path / "other/checkpoints/step-8/model.safetensors")
    assert {name for name in saved if ".lora_" not in name} <= {"head.weight", "head.bias"}
    program.train(other)
    expected = load_file(folder / "model.safetensors")
    resumed = load_file(tmp_path / "other" / "model.safetensors")
    assert expected.keys() == resumed.keys()
    assert all(torch.equal(tensor, resumed[name]) for name, tensor in expected.items())


def test_only_the_top_layers_get_adapters(tmp_path):
    """What the layers below compute is read by both, the trunk and the frozen language model."""
    settings = config(
        "segment", tmp_path, "causal", model__train_top_layers=1, model__lm_logprob_feature=True
    )
    network, _ = load_network(settings.model, "segment", {0: "bad", 1: "O"})
    names = {name for name, p in network.named_parameters() if p.requires_grad}
    whole = {name for name in names if ".lora_" not in name}
    assert whole == {"head.weight", "head.bias", "feature_in.weight"}
    assert all(".h.1." in name for name in names - whole)
    start = dict(network.named_parameters())
    scorer = load_reward_model(run_fg_rm.train(settings), rm.prefix_fn)
    loaded = dict(scorer.model.named_parameters())
    changed = {
        name
        for name in loaded
        if not torch.equal(loaded[name], start.get(name, start.get(_adapted(name))))
    }
    assert changed - whole and all(name.startswith("trunk.h.1.") for name in changed - whole)


def _adapted(name: str) -> str:
    """The name of a layer's tensor once it has an adapter."""
    layer, _, tensor = name.rpartition(".")
    return f"{layer}.base_layer.{tensor}"


def test_a_pooler_that_the_checkpoint_may_lack_is_trained_whole(tmp_path):
    rm.start(tmp_path, "encoder")
    tokenizer = rm.tiny.tokenizer("word")
    size = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
    bert = BertConfig(vocab_size=len(tokenizer), num_hidden_layers=2, pad_token_id=0, **size)
    BertModel(bert, add_pooling_layer=False).save_pretrained(tmp_path / "bert")
    tokenizer.save_pretrained(tmp_path / "bert")
    settings = RMModelConfig(ckpt=str(tmp_path / "bert"), max_input_len=64, lora=LORA)
    network, _ = load_network(settings, "sequence")
    names = {name for name, p in network.named_parameters() if p.requires_grad}
    whole = {name for name in names if ".lora_" not in name}
    assert whole == {
        "bert.pooler.dense.weight",
        "bert.pooler.dense.bias",
        "classifier.weight",
        "classifier.bias",
    }
    assert any("attention.output.dense.lora_A" in name for name in names)
    assert not any("pooler" in name and ".lora_" in name for name in names)


def test_layers_that_the_trunk_lacks_are_refused(tmp_path):
    cfg = config("segment", tmp_path, "causal", {"target_modules": ["q_proj"]})
    with pytest.raises(UserError, match="lora.target_modules names `q_proj`.*c_attn"):
        run_fg_rm.train(cfg)


@pytest.mark.parametrize("shape", with_slow(rm.SHAPES, lambda shape: shape == "encoder"))
@pytest.mark.parametrize("kind, lora", list(zip(MODULES, (None, LORA))))
def test_gradient_checkpointing_is_the_same_run(tmp_path, monkeypatch, kind, shape, lora):
    _, program = MODULES[kind]
    recomputed = []
    original = base_trainer.checkpoint
    monkeypatch.setattr(
        base_trainer, "checkpoint", lambda *a, **k: recomputed.append(1) or original(*a, **k)
    )
    norms = []
    for on in (False, True):
        cfg = config(
            kind,
            tmp_path,
            shape,
            lora,
            train__max_steps=3,
            train__gradient_checkpointing=on,
            logging__save_dir=str(tmp_path / str(on)),
            logging__log_interval=1,
        )
        program.train(cfg)
        assert bool(recomputed) == on
        lines = (tmp_path / str(on) / "metrics.jsonl").read_text().splitlines()
        norms.append([row["grad_norm"] for row in map(json.loads, lines) if "loss" in row])
    assert len(norms[0]) == 3 and norms[1] == pytest.approx(norms[0], abs=1e-6)
    first, second = (load_file(tmp_path / str(on) / "model.safetensors") for on in (False, True))
    for name, tensor in first.items():
        torch.testing.assert_close(second[name], tensor, atol=1e-6, rtol=0)
