"""The program that makes the table of model types (benchmarks/families.py)."""

import pytest

from benchmarks import families
from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json

TYPES = {"llama": False, "t5": True, "moshi": False}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    folder = tmp_path_factory.mktemp("families")
    return {
        name: families.examine(name, is_encoder_decoder, folder / name)
        for name, is_encoder_decoder in TYPES.items()
    }


@pytest.mark.parametrize("name, shares", [("llama", "cache"), ("t5", "prompt")])
def test_a_policy_and_reward_model(name, shares, rows):
    row = rows[name]
    assert row["built"] is row["policy"] is row["reward_model"] is None
    assert 0 < row["difference"] < 1e-4
    assert row["shares"] == shares
    assert row["lora"]["adapters"] > 20 and row["lora"]["difference"] < 1e-4


def test_a_type_that_is_refused(rows):
    assert "in texts of more than 12 tokens" in rows["moshi"]["policy"]
    assert rows["moshi"]["built"] is rows["moshi"]["reward_model"] is None


def test_a_type_without_a_small_model(tmp_path, monkeypatch):
    monkeypatch.setattr(families, "SIZES", {})
    assert families.examine("gpt2", False, tmp_path)["built"].startswith("its config class leaves")


def test_a_run_continues_with_the_types_that_have_no_row(tmp_path, monkeypatch):
    examined = []

    def child(name, is_encoder_decoder, result):
        if name != "ends":
            write_json(result, {"built": f"{name} {is_encoder_decoder}"})

    monkeypatch.setattr(families, "_child", child)
    write_json(tmp_path / "known.json", {"built": "before"})
    families.run(tmp_path, {"known": False, "new": True, "ends": False})
    examined = {path.stem: families.read_json(path)["built"] for path in tmp_path.iterdir()}
    assert examined["known"] == "before" and examined["new"] == "new True"
    assert examined["ends"] == "its process ended early (exit code 0)"


def test_every_type_of_transformers_is_known():
    types = families.model_types()
    assert types["llama"] is False and types["t5"] is True and len(types) > 100
    with pytest.raises(UserError, match="million parameters"):
        families.random_model(families.CONFIG_MAPPING["gpt2"](), False)
