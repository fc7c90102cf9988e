"""`fgrlhf new-run`: the config fits its stage and runs; a mistake writes nothing."""

import json
from pathlib import Path

import pytest
import tiny

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json, write_jsonl
from fgrlhf.cli import new_run, rl
from fgrlhf.configs.yaml_files import read_yaml
from fgrlhf.data.split import held_out

REWARDS = "def repeats(sentence, earlier):\n    return float(sentence in earlier)\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Rows of all formats in the working directory, and a reward."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    prompts = [f"the red cat {number}" for number in range(10)]
    write_jsonl("prompts.jsonl", [{"prompt": text} for text in prompts])
    write_jsonl("demos.jsonl", [{"prompt": text, "response": "a dog"} for text in prompts])
    pairs = [{"prompt": text, "chosen": "a dog", "rejected": "one"} for text in prompts]
    write_jsonl("pairs.jsonl", pairs)
    words = {"text": ["a", "</s>", "dog"], "feedback_tags": ["Ignore", "WRONG", "Ignore"]}
    write_jsonl("tags.jsonl", [{"id": "0", **words}])
    Path("new_run_rewards.py").write_text(REWARDS)
    return tmp_path


def test_a_config_of_rl_runs(folder, capsys):
    tiny.gpt2().save("model")
    new_run.main(
        ["my.yml", "model=model", "train_file=prompts.jsonl", "reward=new_run_rewards.repeats"]
    )
    assert capsys.readouterr().out.splitlines() == [
        "my.train.jsonl: 9 rows",
        "my.dev.jsonl: 1 row",
        "my.yml is written. Run it:",
        "    fgrlhf rl my.yml",
    ]
    limits = ["train.total_episodes=4", "train.sampling_batch_size_per_card=1"]
    rl.main(["my.yml", *limits, "model.max_generated_len=4", "model.max_input_len=8"])
    assert (folder / "outputs/my/final").is_dir()


@pytest.mark.parametrize(
    ("stage", "file", "more"),
    [
        ("sft", "demos.jsonl", []),
        ("dpo", "pairs.jsonl", ["dev_share=0.3"]),
        ("sequence", "pairs.jsonl", ["dev_file=pairs.jsonl"]),
        ("segment", "tags.jsonl", ["dev_file=tags.jsonl"]),
    ],
)
def test_other_stages_accept_their_config(folder, capsys, stage, file, more):
    """`new-run` itself reads the config as the stage does."""
    new_run.main(["my.yml", f"stage={stage}", "model=model", f"train_file={file}", *more])
    command = {"segment": "rm segment", "sequence": "rm sequence"}.get(stage, stage)
    assert f"fgrlhf {command} my.yml" in capsys.readouterr().out
    config = read_yaml("my.yml")
    if stage == "segment":
        assert config["labels"] == {"error": ["WRONG"]} and config["data"]["level"] == "sentence"
    if stage == "dpo":
        dev = [json.loads(line) for line in Path("my.dev.jsonl").read_text().splitlines()]
        assert len(dev) == 3 and dev[0]["references"] == ["a dog"]


def test_the_reward_is_a_folder(folder):
    Path("judge").mkdir()
    write_json(
        "judge/reward_model.json",
        {
            "kind": "segment",
            "shape": "causal",
            "level": "sentence",
            "with_context": False,
            "max_length": 64,
            "labels": ["WRONG", "O"],
            "error_label": "WRONG",
            "ok_label": "O",
        },
    )
    new_run.main(["my.yml", "model=model", "train_file=prompts.jsonl", "reward=judge"])
    assert read_yaml("my.yml")["reward"] == {
        "judge": {
            "kind": "segment_classifier",
            "ckpt": "judge",
            "values": {"error": -0.5, "ok": 0.5},
        }
    }


@pytest.mark.parametrize(
    ("architecture", "reward"),
    [
        ("LlamaForSequenceClassification", {"kind": "sequence_scorer", "mean": 0, "std": 1}),
        ("BertForTokenClassification", {"kind": "segment_classifier", "level": "word"}),
    ],
)
def test_the_reward_is_a_folder_of_another_program(folder, architecture, reward):
    Path("judge").mkdir()
    write_json("judge/config.json", {"architectures": [architecture]})
    new_run.main(
        ["my.yml", "model=model", "train_file=prompts.jsonl", "reward=judge", "level=word"]
    )
    written = read_yaml("my.yml")["reward"]["judge"]
    assert reward.items() <= written.items() and written["ckpt"] == "judge"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["my.txt"], "ends in .yml"),
        (["prompts.jsonl"], "ends in .yml"),
        (["my.yml", "reward=new_run_rewards.repeat"], "repeats|has no `repeat`"),
        (["my.yml", "reward=nowhere/"], "neither a folder nor"),
        (["my.yml", "train_file=demo.jsonl"], "did you mean `demos.jsonl`"),
        (["my.yml", "stage=sft", "reward=new_run_rewards.repeats"], "has no reward"),
        (["my.yml", "stage=segment"], "dev_file is missing"),
        (["my.yml", "stage=segment", "dev_file=demos.jsonl"], "has no words and tags"),
        (["my.yml", "stage=dpo", "train_file=pairs.jsonl", "dev_file=demos.jsonl"], "references"),
    ],
)
def test_a_mistake_writes_nothing(folder, arguments, message):
    before = sorted(folder.iterdir())
    given = {argument.partition("=")[0] for argument in arguments}
    rest = [] if "train_file" in given else ["train_file=prompts.jsonl"]
    with pytest.raises(UserError, match=message):
        new_run.main([*arguments, "model=model", *rest])
    assert sorted(folder.iterdir()) == before


def test_rows_of_a_group_stay_together_and_both_parts_have_some():
    groups = [str(number) for number in range(40)]
    dev = held_out([*groups, *groups], 0.25, "rows")
    assert len(dev) == 10 and dev == held_out(reversed(groups), 0.25, "rows")
    assert len(held_out(["a", "b"], 0.01, "rows")) == len(held_out(["a", "b"], 0.99, "rows")) == 1
    with pytest.raises(UserError, match="only one prompt"):
        held_out(["a", "a"], 0.5, "rows")
