"""`fgrlhf data convert-config`: configs of RL4LMs."""

import copy

import pytest
import yaml

from fgrlhf.base.errors import UserError
from fgrlhf.cli.data import main
from fgrlhf.cli.data_convert_config import TASKS
from fgrlhf.configs.strict import load_config
from fgrlhf.load import load_task
from fgrlhf.task_config import rl_config
from sft.config import SFTConfig

SAMPLING = {"do_sample": True, "min_length": 3, "max_new_tokens": 48, "top_k": 50}
RL = {
    "tokenizer": {"model_name": "gpt2", "padding_side": "left", "truncation_side": "left"},
    "reward_fn": {"id": "meteor", "args": {}},
    "datapool": {"id": "totto", "args": {}},
    "env": {"n_envs": 10, "args": {"max_prompt_length": 64, "max_episode_length": 48}},
    "alg": {
        "id": "ppo",
        "args": {"n_steps": 128, "batch_size": 64, "learning_rate": 1e-6, "n_epochs": 5},
        "kl_div": {"coeff": 0.1, "target_kl": 0.5},
        "policy": {
            "id": "causal_lm_actor_critic_policy",
            "args": {"model_name": "gpt2", "generation_kwargs": SAMPLING},
        },
    },
    "train_evaluation": {
        "n_iters": 50,
        "eval_every": 10,
        "metrics": [{"id": "meteor"}, {"id": "diversity"}, {"id": "spice"}],
        "generation_kwargs": {"num_beams": 5, "max_new_tokens": 48},
    },
}
SFT = {
    "tokenizer": {"model_name": "t5-base", "max_length": 96},
    "datapool": {"id": "totto", "args": {}},
    "alg": {
        "id": "supervised",
        "training_args": {
            "per_device_train_batch_size": 8,
            "num_train_epochs": 5,
            "weight_decay": 0.1,
            "lr_scheduler_type": "constant_with_warmup",
            "learning_rate": 0.0001,
        },
        "model_type": "seq2seq",
        "model_name": "t5-base",
        "generation_kwargs": {"do_sample": True, "max_new_tokens": 50},
    },
}
REWARDS = {  # datapool -> rewards with which RL4LMs trains on it
    "cnn_daily_mail": {"id": "meteor", "args": {}},
    "commongen": {"id": "meteor", "args": {}},
    "daily_dialog": {"id": "intent_accuracy", "args": {"intent_coeff": 0.75, "auto_coeff": 0.25}},
    "imdb": {"id": "learned_reward", "args": {"model_name": "some/classifier", "label_ix": 1}},
    "imdb_seq2seq": {"id": "learned_reward", "args": {"model_name": "a/b", "label_ix": 0}},
    "iwslt2017en_de": {"id": "ter"},
    "narrative_qa": {"id": "rouge_l_max", "args": {}},
    "totto": {"id": "rouge", "args": {"rouge_type": "rouge2"}},
}


def converted(tmp_path, tree, *arguments):
    """The config that is written, and its text."""
    (tmp_path / "theirs.yml").write_text(yaml.safe_dump(tree))
    out = tmp_path / "ours.yml"
    main(["convert-config", str(tmp_path / "theirs.yml"), f"out={out}", *arguments])
    return yaml.safe_load(out.read_text()), out


def test_settings_are_translated_as_in_the_shipped_config_of_imdb(tmp_path, monkeypatch, capsys):
    """tasks/imdb/ppo_config.yml was translated by hand from a file with these numbers."""
    tree = copy.deepcopy(RL) | {"datapool": {"id": "imdb"}, "reward_fn": REWARDS["imdb"]}
    ours, out = converted(tmp_path, tree)
    for name in ("OUTPUT_DIR", "DATA_DIR"):
        monkeypatch.setenv(name, "x")
    kind = rl_config(load_task("tasks.imdb"))
    shipped = load_config(kind, "tasks/imdb/ppo_config.yml")
    mine = load_config(kind, out)
    assert mine.train == shipped.train
    assert mine.algorithm == shipped.algorithm
    assert mine.model.train_generation_kwargs == shipped.model.train_generation_kwargs
    assert (mine.train.total_episodes, mine.train.n_minibatches) == (1350, 27)
    assert ours["model"]["eval_generation_kwargs"] == {"num_beams": 5}
    head = out.read_text().splitlines()
    assert head[1] == (
        "# Left out: alg.policy.args.generation_kwargs.min_length, tokenizer.truncation_side,"
        " the metric spice."
    )
    printed = capsys.readouterr().out
    assert f"fgrlhf rl imdb {out}" in printed and "the metric spice" in printed


@pytest.mark.parametrize("name", ["ppo", "nlpo", "a2c", "trpo"])
@pytest.mark.parametrize("pool", TASKS)
def test_every_pool_reward_and_algorithm(pool, name, tmp_path):
    """The config is checked when it is written."""
    tree = copy.deepcopy(RL) | {"datapool": {"id": pool}, "reward_fn": REWARDS[pool]}
    tree["alg"]["id"] = name
    tree["alg"]["policy"]["args"] |= {"top_mask": 0.5, "target_update_iterations": 30}
    ours, _ = converted(tmp_path, tree)
    assert ours["algorithm"]["name"] == name
    assert ours["algorithm"].get("sync_every") == (30 if name == "nlpo" else None)
    assert ours["data"]["train_file"] == f"outputs/{TASKS[pool]}/paper/data/train.json"
    if pool == "daily_dialog":
        weights = {key: reward["weight"] for key, reward in ours["reward"].items()}
        assert weights == {"intent": 0.75, "meteor": 0.25}


def test_sft(tmp_path):
    ours, out = converted(tmp_path, SFT)
    assert ours["train"] == {
        **{"epochs": 5.0, "batch_size": 8, "lr": 1e-4, "lr_schedule": "constant"},
        **{"weight_decay": 0.1, "seed": 0},
    }
    assert ours["model"] == {"ckpt": "t5-base", "max_input_len": 96, "max_generated_len": 50}
    load_config(SFTConfig, out)


def test_what_is_not_known_is_asked_for(tmp_path):
    tree = copy.deepcopy(RL)
    tree["reward_fn"] = {"id": "increasing_numbers", "args": {"min_tokens": 20}}
    with pytest.raises(UserError, match="'increasing_numbers' has no counterpart.*reward=package"):
        converted(tmp_path, tree)
    tree["datapool"] = {"id": "dummy_pool"}
    function = "reward=tests.nothing.mine"
    with pytest.raises(UserError, match="'dummy_pool' has no rows here.*train_file="):
        converted(tmp_path, tree, function)
    assert not (tmp_path / "ours.yml").exists()
    shaped = {"id": "meteor", "args": {"shaping_fn": "a_penalty"}}
    with pytest.raises(UserError, match="'meteor' with a shaping_fn has no counterpart"):
        converted(tmp_path, copy.deepcopy(RL) | {"reward_fn": shaped})
    with pytest.raises(UserError, match="is no config of RL4LMs"):
        converted(tmp_path, {"model": {"ckpt": "a"}})
    broken = copy.deepcopy(RL)
    broken["alg"]["args"]["n_steps"] = "many"
    with pytest.raises(UserError, match="alg.args.n_steps: 'many' is not a number"):
        converted(tmp_path, broken)
    converted(tmp_path, RL)
    for name in ("ours.txt", "ours"):  # the stage would not take it for a config
        with pytest.raises(UserError, match="no name of a config: give one that ends in .yml"):
            main(["convert-config", str(tmp_path / "theirs.yml"), f"out={tmp_path / name}"])
        assert not (tmp_path / name).exists()
    with pytest.raises(UserError, match="ours.yml exists"):
        converted(tmp_path, RL)


def test_a_function_and_rows_of_ones_own(tmp_path):
    (tmp_path / "mine_of_rl4lms.py").write_text(
        "def reward(text, earlier, prompt):\n    return 1.0"
    )
    tree = copy.deepcopy(RL) | {"datapool": {"id": "dummy_pool"}, "reward_fn": {"id": "other"}}
    given = ("reward=mine_of_rl4lms.reward", "train_file=rows.jsonl")
    ours, _ = converted(tmp_path, tree, *given)
    assert ours["reward"] == {
        "mine": {"kind": "python", "of": "mine_of_rl4lms.reward", "level": "whole"}
    }
    assert ours["data"] == {"train_file": "rows.jsonl", "dev_file": None}
