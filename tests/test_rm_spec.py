"""`reward_model.json` is typed: all errors are reported at once, with file and key."""

import json
import re

import pytest
import rm_helpers as rm
import spacy
from test_reward_models import save, scorer, spec

from fgrlhf.base.errors import UserError, first_problems
from fgrlhf.reward_models.loading import load_reward_model
from fgrlhf.reward_models.spec import RewardModelSpec, spec_problems

NAN, INF = float("nan"), float("inf")
BAD = {
    "kind": [None, "x", 5, ["segment"], {}, True],
    "shape": [None, "x", "auto", 5, []],
    "level": [None, "chapter", "token", 5, {}],
    "with_context": ["no", "true", 0, 1, None, []],
    "max_length": [-1, 0, None, "512", 1e30, 10**30, 512.0, True, [512], 2**20 + 1],
    "labels": [
        5,
        None,
        "NF-ERR",
        [1, 2],
        ["NF-ERR", "NF-ERR", "O"],
        {"NF-ERR": 0, "O": 1},
        [["NF-ERR"], "O"],
        ["", "O"],
    ],
    "error_label": [None, 5, "X", "O", ["NF-ERR"]],
    "ok_label": [None, 5, "X", {}],
    "segmenter": [
        [],
        5,
        "blank_en_sentencizer",
        {},
        {"name": "blank_en_sentencizer"},
        {"version": "1"},
        {"name": "pip", "version": "1"},
        {"name": "pytest", "version": "1"},
        {"name": 3, "version": "1"},
        {"name": "blank_en_sentencizer", "version": 3},
        {"name": "../x_y_sm", "version": "1"},
        {"name": "/tmp/en_core_web_sm", "version": "1"},
        {"name": "blank_en_sentencizer", "version": "1", "path": "/"},
    ],
    "metrics": [5, None, [], "x"],
}
BAD_MOMENTS = {
    "mean": ["a", True, [0.0], None, {}, 10**400],
    "std": ["1", True, 0, 0.0, -1.0, [1.0], None, 10**400],
    "level": ["sentence"],
}


def written(folder, spec_kind, **changes):
    spec(kind=spec_kind).save(folder)
    path = folder / "reward_model.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return path


@pytest.mark.parametrize(
    "kind, key, value",
    [
        *(("segment", key, value) for key, values in BAD.items() for value in values),
        *(("sequence", key, value) for key, values in BAD_MOMENTS.items() for value in values),
    ],
)
def test_a_bad_value_is_named_with_file_and_key(tmp_path, kind, key, value, monkeypatch):
    monkeypatch.setattr(
        spacy, "load", lambda *args, **kwargs: pytest.fail("a package was imported")
    )
    path = written(tmp_path, kind, **{key: value})
    with pytest.raises(UserError) as error:
        RewardModelSpec.read(tmp_path)
    assert str(path) in str(error.value) and f"{key}" in str(error.value)
    assert len(str(error.value)) < 600


@pytest.mark.parametrize("key", ["mean", "std"])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_moments_that_are_not_finite_are_refused(tmp_path, key, value):
    """An infinite std would make every z-score zero. JSON has no such numbers."""
    path = written(tmp_path, "sequence", **{key: value})
    with pytest.raises(UserError, match=re.escape(str(path))):
        RewardModelSpec.read(tmp_path)
    row = {
        "kind": "sequence",
        "shape": "causal",
        "level": "sequence",
        "with_context": True,
        "max_length": 9,
    }
    assert [
        p.split(":")[0] for p in spec_problems({**row, "mean": 0.0, "std": 1.0, key: value})
    ] == [key]
    with pytest.raises(UserError, match="finite"):
        RewardModelSpec(**{**row, "mean": 0.0, "std": 1.0, key: value})


def test_all_mistakes_are_reported_at_once(tmp_path):
    written(tmp_path, "segment", max_length=-1, with_context="no", labels=5, colour="red")
    with pytest.raises(UserError) as error:
        RewardModelSpec.read(tmp_path)
    lines = str(error.value).splitlines()
    assert lines[0].endswith("reward_model.json does not describe a reward model:")
    assert [line.split(":")[0].strip() for line in lines[1:-1]] == [
        "colour",
        "with_context",
        "max_length",
        "labels",
    ]
    assert lines[3] == "  max_length: must be a whole number of tokens from 1 to 1048576 (it is -1)"


@pytest.mark.parametrize("value", [[], 5, "x", None, [[]], {}, {"kind": "segment"}])
def test_another_kind_of_json_is_refused(value):
    assert spec_problems(value)


def test_a_message_stays_short():
    row = {f"key{i}": 0 for i in range(5000)}
    assert len(spec_problems(row)) == 5005
    lines = first_problems(spec_problems(row))
    assert len(lines) == 21 and lines[-1] == "... and 4985 more"
    long = spec_problems({**{key: "x" * 200_000 for key in BAD}, "x" * 200_000: 1})
    assert all(len(problem) < 300 for problem in long)


@pytest.mark.parametrize("kind", ["segment", "sequence"])
def test_a_spec_written_by_training_is_read_back(tmp_path, kind):
    whole = spec(kind=kind, metrics={"accuracy": 0.5, "calibration": [{"low": 0.0}]})
    whole.save(tmp_path)
    assert RewardModelSpec.read(tmp_path) == whole
    minimal = {"segmenter": None} if kind == "segment" else {}
    written(tmp_path, kind, **minimal)
    RewardModelSpec.read(tmp_path)


@pytest.mark.parametrize(
    "shape, changes, reason",
    [
        (
            "encoder",
            {"labels": ["NF-ERR", "O", "Ignore"]},
            "3 labels, but the network has 2 outputs",
        ),
        (
            "causal",
            {"labels": ["NF-ERR", "O", "Ignore"]},
            "3 labels, but the network has 2 outputs",
        ),
        ("causal", {"labels": ["O", "NF-ERR"]}, "labels are O, NF-ERR, the network's NF-ERR, O"),
        ("encoder", {"shape": "causal"}, "shape is causal, but the network is a longformer"),
        (
            "causal",
            {"shape": "encoder"},
            "shape is encoder, but the network is a fgrlhf_language_model_scorer",
        ),
        ("causal", {"shape": "seq2seq"}, "shape is seq2seq, but the checkpoint is a single stack"),
        (
            "seq2seq",
            {"shape": "causal"},
            "shape is causal, but the checkpoint is an encoder-decoder",
        ),
        ("encoder", {"max_length": 1026}, "max_length is 1026, but the network reads at most 1025"),
        ("causal", {"max_length": 257}, "max_length is 257, but the network reads at most 256"),
        (
            "causal",
            {"kind": "sequence", "level": "sequence", "mean": 0.0, "std": 1.0},
            "kind is sequence, but",
        ),
    ],
)
def test_a_spec_of_another_network_is_refused(tmp_path, shape, changes, reason):
    folder = save(scorer(tmp_path, shape), tmp_path / "rm")
    path = folder / "reward_model.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(UserError, match=reason):
        load_reward_model(folder, rm.prefix_fn)
