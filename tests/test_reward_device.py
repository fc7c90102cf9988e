"""`device` of a reward: validation, where its model computes, and what it does not change."""

import pytest
import rm_helpers as rm
import torch
from test_reward_kinds import classifier, refused  # noqa: F401
from test_reward_models import save, scorer

from fgrlhf.base.errors import UserError
from fgrlhf.cli.reward_serve import settings_from
from fgrlhf.rewards.kinds import LIBRARY_REWARDS
from fgrlhf.rewards.server import model_sha256
from fgrlhf.scorers.base import RewardContext
from tasks.qa_feedback.training.reward import OneErrorModel, Preference

PROMPTS = [rm.prompt(), rm.prompt("a dog")]
TEXTS = ["red red cat sees one.", "the dog likes one one."]
# A model on `meta` has no numbers, so a reward that ignores its `device` cannot be built there.
ELSEWHERE = RewardContext(rm.prefix_fn, device="meta")
HERE = RewardContext(rm.prefix_fn, device="cpu")


def sections(tmp_path, classifier_folder) -> dict:
    """Every kind with a model on a device of its own, without the device."""
    segment = str(save(scorer(tmp_path, "causal"), tmp_path / "segment"))
    sequence = str(save(scorer(tmp_path, "causal", "sequence"), tmp_path / "sequence"))
    values = {"error": -1.0, "ok": 0.5}
    label = {"ckpt": str(classifier_folder), "label": "toxic"}
    scorers = [
        {"kind": "classifier", **label},
        {"kind": "sequence_scorer", "ckpt": sequence},
        {"kind": "segment_classifier", "ckpt": segment},
    ]
    kinds = LIBRARY_REWARDS
    result = {
        "segment_classifier": (kinds["segment_classifier"], {"ckpt": segment, "values": values}),
        "sequence_scorer": (kinds["sequence_scorer"], {"ckpt": sequence}),
        "preference": (Preference, {"ckpt": sequence}),
    }
    for section in scorers:
        for reads in ("segment", "increment"):
            score = {"scorer": section, "reads": reads}
            result[f"{reads} of {section['kind']}"] = (kinds["score"], score)
    return result


def on_cpu(section: dict) -> dict:
    if "scorer" in section:
        return {**section, "scorer": {**section["scorer"], "device": "cpu"}}
    return {**section, "device": "cpu"}


def test_a_model_computes_on_the_device_of_its_reward(tmp_path, classifier):  # noqa: F811
    for name, (kind, section) in sections(tmp_path, classifier).items():
        expected = kind(**section).build(HERE).segment_scores(PROMPTS, TEXTS)
        placed = kind(**on_cpu(section)).build(ELSEWHERE)
        assert placed.segment_scores(PROMPTS, TEXTS) == expected, name
        assert any(expected), name
        with pytest.raises((UserError, NotImplementedError, RuntimeError)):
            kind(**section).build(ELSEWHERE).segment_scores(PROMPTS, TEXTS)


def test_the_hash_of_a_served_model_does_not_depend_on_the_device(tmp_path, classifier):  # noqa: F811
    for name, (kind, section) in sections(tmp_path, classifier).items():
        hashes = {model_sha256(kind(**x), "fp32") for x in (section, on_cpu(section))}
        assert len(hashes) == 1, name


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:0", "cuda:12", "mps"])
def test_devices_are_read(device):
    values = {"positive_reward": 1, "negative_reward": 0}
    assert OneErrorModel(kind="factuality", ckpt="r", **values, device=device).device == device


@pytest.mark.parametrize("device", ["meta", "gpu", "cuda:", "cuda:-1", "1", "cuda:1 ", ""])
def test_other_devices_are_refused(device):
    section = {"kind": "sequence_scorer", "ckpt": "r", "device": device}
    (message,) = refused(a=section)
    assert message.startswith("reward.a.device: ") and "write cpu, cuda or" in message


@pytest.mark.parametrize(
    "section",
    [
        {"kind": "length", "max_words": 5, "value": -1},
        {"kind": "score", "scorer": {"kind": "linear", "ckpt": "r"}},
        {"kind": "python", "of": "a.B"},
    ],
)
def test_rewards_without_a_model_read_no_device(section):
    assert refused(a=section) == []
    (message,) = refused(a={**section, "device": "cpu"})
    assert message.startswith("reward.a.device: unknown key")


def test_a_device_that_the_machine_lacks_is_refused_before_the_model_is_read(monkeypatch):
    kind = LIBRARY_REWARDS["sequence_scorer"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    message = "device is cuda:2, but .* sees cpu, cuda:0, cuda:1: .* leave device out"
    with pytest.raises(UserError, match=message):
        kind(ckpt="missing", device="cuda:2").build(HERE)
    assert kind(ckpt="missing", device="cuda:1").placed(HERE).device == "cuda:1"
    assert kind(ckpt="missing", device="cuda").placed(HERE).device == "cuda"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(UserError, match="device is cuda, but this process sees cpu: choose"):
        kind(ckpt="missing", device="cuda").build(HERE)


def test_a_server_has_one_device():
    reward = ["kind=sequence_scorer", "ckpt=r"]
    assert settings_from([*reward, "device=cpu"])[0].device == "cpu"
    with pytest.raises(UserError, match="reward.device: cpu is not read, set device of the server"):
        settings_from([*reward, "reward.device=cpu"])
