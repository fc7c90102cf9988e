"""README.md of a policy: its metadata as a hub reads them, its figures, and whose file it is."""

import pytest
import yaml
from huggingface_hub import ModelCard
from rl_helpers import CountWord, config, trainer

from fgrlhf.base.files import write_json
from fgrlhf.configs.strict import validate
from fgrlhf.models.provenance import CARD_FILE, MARK, SOURCE_FILE, policy_card, write_card
from fgrlhf.reward import CombinedReward
from fgrlhf.runs.dpo_config import DPOConfig
from fgrlhf.stats import Interval

COLUMNS = {"eval/reward": 0.5, "eval_low/reward": 0.25, "eval_high/reward": 0.75, "eval/kl": 2.0}


def card_of(tmp_path, base: str, is_causal: bool = True, **changes) -> str:
    cfg = config(tmp_path, model__ckpt=base, data={"train_file": "a|b.json"}, **changes)
    return policy_card(cfg, "python -m fgrlhf", COLUMNS, 7, is_causal)


def test_a_hub_reads_the_metadata(tmp_path):
    card = ModelCard(card_of(tmp_path, "org/base-1", algorithm__name="rloo"))
    assert card.data.to_dict() == {
        "base_model": "org/base-1",
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["fgrlhf", "rl", "rloo"],
    }
    assert "Trained by fgrlhf from `org/base-1`: RL (rloo), 7 steps" in card.text
    assert "| train | `a\\|b.json` |" in card.text and "| `cat` | count | 1 | – |" in card.text
    assert "| `reward` | 0.500 [0.250, 0.750] |" in card.text and "| `kl` | 2.000 |" in card.text
    assert "AutoModelForCausalLM" in card.text and card.text.rstrip().endswith(MARK)


@pytest.mark.parametrize(
    "front, licence",
    [
        ("license: apache-2.0\ntags: [x]", "apache-2.0"),
        ("license: [a, b]", None),
        ("license: {", None),
        ("- a list", None),
        ("tags: [x]", None),
    ],
)
def test_the_licence_of_the_base_is_kept(front, licence, tmp_path):
    base = tmp_path / "base"
    base.mkdir()
    (base / CARD_FILE).write_text(f"---\n{front}\n---\n# Base\n")
    write_json(base / SOURCE_FILE, {"model": "org/real", "source": "a mirror"})
    card = ModelCard(card_of(tmp_path, str(base), is_causal=False))
    assert card.data.to_dict().get("license") == licence
    assert card.data.base_model == "org/real" and "(org/real (a mirror))" in card.text
    assert "pipeline_tag" not in card.data.to_dict() and "AutoModelForSeq2SeqLM" in card.text


def test_a_folder_is_no_name_on_a_hub(tmp_path, monkeypatch):
    (tmp_path / "outputs" / "sft").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    data = yaml.safe_load(card_of(tmp_path, "outputs/sft").split("---\n")[1])
    assert "base_model" not in data


def test_a_card_by_a_person_stays(tmp_path):
    earlier, new = tmp_path / "earlier", tmp_path / "new"
    new.mkdir()
    write_card(new, earlier, f"first\n{MARK}\n")
    assert (new / CARD_FILE).read_text().startswith("first")
    write_card(new, new, f"second\n{MARK}\n")
    assert (new / CARD_FILE).read_text().startswith("second")
    new.rename(earlier)
    (earlier / CARD_FILE).write_text("my notes")
    new.mkdir()
    write_card(new, earlier, f"third\n{MARK}\n")
    assert not (new / CARD_FILE).exists()  # `keep_other_files` brings the old one


def test_a_run_writes_cards(tmp_path):
    def evaluate(policy):
        return {"reward": Interval(1.5, 1.25, 1.75), "kl": 0.5}

    cfg = config(tmp_path / "run", evaluation__every_steps=4, train__total_episodes=32)
    run = trainer(cfg, reward=CombinedReward({"cat": CountWord("cat")}), evaluate=evaluate)
    run.train()
    for name, steps in (("best", 0), ("final", 4)):
        card = ModelCard.load(str(tmp_path / "run" / name / CARD_FILE))
        assert f"RL (ppo), {steps} steps" in card.text
        assert "| `reward` | 1.500 [1.250, 1.750] |" in card.text
    (tmp_path / "run" / "final" / CARD_FILE).write_text("my notes")
    run._save_policy("final")
    assert (tmp_path / "run" / "final" / CARD_FILE).read_text() == "my notes"


def test_a_card_without_rewards_and_figures(tmp_path):
    tree = {
        "model": {"ckpt": "org/base"},
        "data": {"feedback_file": "f.json", "train_file": "t.json", "pairs": "corrected"},
        "logging": {"save_dir": str(tmp_path)},
    }
    text = policy_card(validate(DPOConfig, tree, "c"), "command", {}, 3, True)
    assert "DPO (sigmoid), 3 steps" in text and "| feedback | `f.json` |" in text
    assert "## Rewards" not in text and "## On dev" not in text
