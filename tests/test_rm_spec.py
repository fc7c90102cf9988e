"""`reward_model.json`: what training writes is read back, and fits its network."""

import json

import pytest
import rm_helpers as rm
from test_reward_models import save, scorer, spec

from fgrlhf.base.errors import UserError
from fgrlhf.reward_models.loading import load_reward_model
from fgrlhf.reward_models.spec import RewardModelSpec

NAN, INF = float("nan"), float("inf")


def written(folder, spec_kind, **changes):
    spec(kind=spec_kind).save(folder)
    path = folder / "reward_model.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return path


@pytest.mark.parametrize("moments", [{"mean": NAN}, {"std": INF}, {"std": 0.0}, {"mean": None}])
def test_moments_that_a_program_gives_are_checked(moments):
    """An infinite std would make every z-score zero."""
    with pytest.raises(UserError, match="a finite mean=... and a finite std=... above 0"):
        spec(**{"kind": "sequence", "mean": 0.0, "std": 1.0, **moments})


@pytest.mark.parametrize("kind", ["segment", "sequence"])
def test_a_spec_written_by_training_is_read_back(tmp_path, kind):
    whole = spec(kind=kind, metrics={"accuracy": 0.5, "calibration": [{"low": 0.0}]})
    whole.save(tmp_path)
    assert RewardModelSpec.read(tmp_path) == whole
    minimal = {"segmenter": None} if kind == "segment" else {}
    written(tmp_path, kind, **minimal)
    RewardModelSpec.read(tmp_path)


THREE_LABELS = {"labels": ["NF-ERR", "O", "Ignore"]}
OF_A_SEQUENCE = {"kind": "sequence", "level": "sequence", "mean": 0.0, "std": 1.0}
SCORER, TWO_STACKS = "a fgrlhf_language_model_scorer", "an encoder-decoder"


@pytest.mark.parametrize(
    "shape, changes, reason",
    [
        ("encoder", THREE_LABELS, "3 labels, but the network has 2 outputs"),
        ("causal", THREE_LABELS, "3 labels, but the network has 2 outputs"),
        ("causal", {"labels": ["O", "NF-ERR"]}, "labels are O, NF-ERR, the network's NF-ERR, O"),
        ("encoder", {"shape": "causal"}, "shape is causal, but the network is a longformer"),
        ("causal", {"shape": "encoder"}, f"shape is encoder, but the network is {SCORER}"),
        ("causal", {"shape": "seq2seq"}, "shape is seq2seq, but the checkpoint is a single stack"),
        ("seq2seq", {"shape": "causal"}, f"shape is causal, but the checkpoint is {TWO_STACKS}"),
        ("encoder", {"max_length": 1026}, "max_length is 1026, but the network reads at most 1025"),
        ("causal", {"max_length": 257}, "max_length is 257, but the network reads at most 256"),
        ("causal", OF_A_SEQUENCE, "kind is sequence, but"),
    ],
)
def test_a_spec_of_another_network_is_refused(tmp_path, shape, changes, reason):
    folder = save(scorer(tmp_path, shape), tmp_path / "rm")
    path = folder / "reward_model.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(UserError, match=reason):
        load_reward_model(folder, rm.prefix_fn)
