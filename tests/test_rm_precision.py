"""Reward models are trained, saved and used in fp32, whatever the checkpoint's precision."""

import json

import pytest
import rm_helpers as rm
import tiny
import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM

from fgrlhf.reward_models.loading import load_reward_model
from fgrlhf.reward_models.scoring import SegmentScorer, SequenceScorer, decoder_start
from fgrlhf.reward_models.spec import RewardModelSpec
from fgrlhf.reward_utils import BLANK, load_segmenter
from reward_modeling.config import RMModelConfig
from reward_modeling.network import load_network

TEXTS = ["the cat sees a dog, and the red bird likes one.", "a blue dog sees the cat."]
LABELS = {0: "NF-ERR", 1: "O"}
HALF = ["bfloat16", "float16"]


def half_checkpoint(folder, shape, dtype):
    """A checkpoint of `shape` whose weights are stored in `dtype`."""
    path = rm.start(folder, shape)
    classes = {"encoder": AutoModel, "seq2seq": AutoModelForSeq2SeqLM}
    classes["causal"] = AutoModelForCausalLM
    model = classes[shape].from_pretrained(path).to(getattr(torch, dtype))
    model.config.dtype = getattr(torch, dtype)
    model.save_pretrained(path)
    assert json.loads((path / "config.json").read_text())["dtype"] == dtype
    return path


def trained_scorer(folder, shape, kind, dtype, feature=False):
    """A reward model from a half-precision checkpoint, changed as little as by training."""
    ckpt = str(half_checkpoint(folder, shape, dtype))
    section = RMModelConfig(ckpt=ckpt, shape=shape, max_input_len=64, lm_logprob_feature=feature)
    torch.manual_seed(0)
    network, tokenizer = load_network(section, kind, LABELS if kind == "segment" else None)
    with torch.no_grad():
        for weight in network.parameters():
            if weight.requires_grad:
                weight.add_(torch.randn_like(weight) * 5e-5)
    facts = {"mean": 0.5, "std": 2.0, "level": "sequence"}
    if kind == "segment":
        facts = {
            "labels": tuple(LABELS.values()),
            "error_label": "NF-ERR",
            "ok_label": "O",
            "level": "subsentence",
            "segmenter": load_segmenter(BLANK).describe(),
        }
    spec = RewardModelSpec(kind=kind, shape=shape, with_context=True, max_length=64, **facts)
    cls = SegmentScorer if kind == "segment" else SequenceScorer
    scorer = cls(network, tokenizer, spec, rm.prefix_fn)
    network.save_pretrained(folder / "rm")
    tokenizer.save_pretrained(folder / "rm")
    spec.save(folder / "rm")
    return scorer


def scores(scorer):
    results = scorer.score([rm.prompt()] * 2, TEXTS)
    return (
        results
        if isinstance(results, torch.Tensor)
        else torch.cat([x.probabilities_SC for x in results])
    )


def check_equal_after_loading(scorer, folder):
    again = load_reward_model(folder, rm.prefix_fn)
    assert {weight.dtype for weight in again.model.parameters()} == {torch.float32}
    before, after = scorer.model.state_dict(), again.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    # not bit-equal: a product may round differently at another memory address
    torch.testing.assert_close(scores(scorer), scores(again), atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("kind", ["segment", "sequence"])
@pytest.mark.parametrize(
    "shape, feature",
    [
        ("causal", False),
        ("causal", True),
        ("seq2seq", False),
        ("seq2seq", True),
        ("encoder", False),
    ],
)
def test_scores_are_the_same_after_loading(tmp_path, shape, feature, kind, dtype):
    scorer = trained_scorer(tmp_path, shape, kind, dtype, feature)
    check_equal_after_loading(scorer, tmp_path / "rm")


@pytest.mark.parametrize("shape", ["causal", "seq2seq"])
@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_a_folder_whose_trunk_names_a_dtype_is_read_in_fp32(tmp_path, shape, key):
    """Folders written before the dtype was left out."""
    scorer = trained_scorer(tmp_path, shape, "segment", "bfloat16", feature=True)
    path = tmp_path / "rm" / "config.json"
    config = json.loads(path.read_text())
    assert not {"dtype", "torch_dtype"} & config["trunk"].keys()
    config["trunk"][key] = "bfloat16"
    path.write_text(json.dumps(config))
    check_equal_after_loading(scorer, tmp_path / "rm")


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize(
    "shape, kind",
    [
        ("encoder", "segment"),
        ("encoder", "sequence"),
        ("causal", "segment"),
        ("seq2seq", "sequence"),
    ],
)
def test_a_small_step_moves_the_weights(tmp_path, shape, kind, dtype):
    section = RMModelConfig(
        ckpt=str(half_checkpoint(tmp_path, shape, dtype)), shape=shape, max_input_len=64
    )
    network, tokenizer = load_network(section, kind, LABELS if kind == "segment" else None)
    assert {weight.dtype for weight in network.parameters()} == {torch.float32}
    before = {name: weight.detach().clone() for name, weight in network.named_parameters()}
    for weight in network.parameters():
        weight.grad = torch.ones_like(weight)
    torch.optim.AdamW(network.parameters(), lr=5e-6, weight_decay=0.0).step()
    for name, weight in network.named_parameters():
        assert (weight != before[name]).float().mean() > 0.95, name
    assert decoder_start(network) == (0 if shape == "seq2seq" else None)
    assert len(tokenizer) == len(tiny.tokenizer())
