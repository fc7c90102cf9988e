import re
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from fgrlhf.config import _sections, load_config, to_yaml, validate
from fgrlhf.rl_config import RLConfig
from fgrlhf.utils import UserError
from tasks.qa_feedback.training.reward import QAConfig

REPOSITORY = Path(__file__).parents[1]

POLICY = {
    "ckpt": "./tasks/qa_feedback/model_outputs/t5-large-1k-train",
    "input_padding_side": "right",
    "train_generation_kwargs": {"do_sample": True, "top_k": 20, "top_p": None, "temperature": 0.7},
    "eval_generation_kwargs": {"do_sample": False, "num_beams": 1},
}


def published(name: str) -> dict:
    """The keys and values of the published YAML files."""
    fine_grained = {
        "relevance_model": {"ckpt": "./rel_rm", "positive_reward": 0.3, "negative_reward": -0.3},
        "factuality_model": {"ckpt": "./fact_rm", "positive_reward": 0.5, "negative_reward": -0.5},
        "completeness_model": {
            "ckpt": "./comp_rm",
            "mean": -0.44677690555995353,
            "std": 8.301160619054132,
            "bias": 0.0,
            "scale": 0.3,
        },
    }
    holistic = {
        "baseline_model": {
            "ckpt": "./baseline_rm",
            "mean": 0.9224057369138402,
            "std": 1.5605590864042451,
            "bias": 0.0,
            "scale": 1.0,
        }
    }
    return {
        "model": {
            "policy_model": POLICY,
            "value_model": {"ckpt": "t5-base", "freeze_value_model": False, "policy_value_sharing": False},
        },
        "reward": fine_grained if name == "fine_grained" else holistic,
        "env": {"max_input_len": 1024, "max_generated_len": 200, "train_num_samples_per_input": 4},
        "ppo": {
            "kl_coef": 0.3 if name == "fine_grained" else 0.2,
            "lam": 0.95 if name == "fine_grained" else 0.99,
            "gamma": 1.0,
            "pg_coef": 1.0,
            "vf_coef": 1.0,
            "cliprange": 0.2,
            "cliprange_value": 0.2,
            "whiten_rewards": True,
        },
        "train": {
            "total_episodes": 80000,
            "eval_interval": 50,
            "sampling_batch_size_per_card": 8,
            "training_batch_size_per_card": 4,
            "lr": 0.00001,
            "n_warmup_steps": 100,
            "n_ppo_epoch_per_rollout": 4,
            "kl_threshold": 10.0,
            "clip_grad": False,
            "max_grad_norm": 0.5,
            "seed": 42,
            "cuda_deterministic": True,
        },
        "logging": {
            "run_name": name,
            "wandb_log": True,
            "wandb_entity": "me",
            "wandb_project": "RLHF",
            "log_interval": 1,
            "save_dir": f"./{name}",
        },
    }


@pytest.mark.parametrize("name", ["fine_grained", "baseline"])
def test_the_published_files_load_as_they_are(name, tmp_path):
    path = tmp_path / f"{name}.yml"
    path.write_text(yaml.safe_dump(published(name)).replace("1.0e-05", "0.00001"))
    made = load_config(QAConfig, path)
    assert made.train.lr == 1e-5 and made.logprob_temperature == 0.7 and made.train.n_minibatches == 1
    sampling = made.model.policy_model.train_generation_kwargs.sampling(made.env.max_generated_len)
    assert (
        sampling.max_new_tokens,
        sampling.do_sample,
        sampling.temperature,
        sampling.top_k,
        sampling.top_p,
    ) == (200, True, 0.7, 20, None)
    assert not made.model.policy_model.eval_generation_kwargs.sampling(200).do_sample
    kinds = {
        key: (aspect.kind, aspect.level, aspect.error_label, aspect.with_passages)
        for key, aspect in made.reward.items()
    }
    if name == "fine_grained":
        assert kinds == {
            "relevance_model": ("relevance", "subsentence", "NF-ERR", False),
            "factuality_model": ("factuality", "sentence", "F-ERR", True),
            "completeness_model": ("preference", "sequence", None, True),
        }
        assert (
            made.reward["completeness_model"].std == 8.301160619054132
            and made.reward["relevance_model"].weight == 1.0
        )
    else:
        assert kinds == {"baseline_model": ("preference", "sequence", None, True)}
    assert validate(QAConfig, yaml.safe_load(to_yaml(made)), "again") == made


def test_a_reward_without_a_kind_and_an_unknown_name_is_asked_for_one():
    tree = published("fine_grained")
    tree["reward"]["fluency_model"] = {"ckpt": "x"}
    with pytest.raises(UserError, match="reward.fluency_model.kind: missing"):
        validate(QAConfig, tree, "file")


@pytest.mark.parametrize(
    "section, change, part",
    [
        ("value_model", {}, "needs a trunk of its own: set value_model.ckpt"),
        (
            "value_model",
            {"ckpt": "x", "freeze_value_model": True, "policy_value_sharing": True},
            "cannot be frozen",
        ),
        (
            "policy_model",
            {"ckpt": "x", "train_generation_kwargs": {"num_beams": 4}},
            "do_sample=false or num_beams=1",
        ),
        ("policy_model", {"ckpt": "x", "input_padding_side": "middle"}, "'left' or 'right'"),
        ("policy_model", {"ckpt": "x", "lora": {"r": 0}}, "lora.r"),
        ("policy_model", {"ckpt": "x", "lora": {"rank": 8}}, "lora.rank"),
    ],
)
def test_impossible_combinations(section, change, part):
    tree = published("baseline")
    tree["model"][section] = change
    with pytest.raises(UserError, match=re.escape(part)):
        validate(QAConfig, tree, "file")


def test_temperature_of_the_log_probabilities():
    def temperature(**changes):
        tree = published("baseline")
        tree["env"] |= changes.pop("env", {})
        tree["model"]["policy_model"] = {**POLICY, "train_generation_kwargs": changes}
        return validate(QAConfig, tree, "file").logprob_temperature

    assert (
        temperature(temperature=0.7) == 0.7
        and temperature(temperature=0.7, env={"logprob_temperature": 1.0}) == 1.0
    )
    assert temperature(temperature=0.7, do_sample=False) == 1.0


def test_beams_in_evaluation_mean_no_sampling():
    tree = published("baseline")
    tree["model"]["policy_model"] = {**POLICY, "eval_generation_kwargs": {"num_beams": 4}}
    sampling = validate(QAConfig, tree, "file").model.policy_model.eval_generation_kwargs.sampling(10)
    assert sampling.num_beams == 4 and not sampling.do_sample


def fields_of(model: type[BaseModel]) -> set[str]:
    names = set(model.model_fields)
    for info in model.model_fields.values():
        for part in _sections(info.annotation):
            names |= fields_of(part)
    return names


def test_every_field_is_read_somewhere():
    sources = [
        path.read_text()
        for folder in ("fgrlhf", "tasks")
        for path in (REPOSITORY / folder).rglob("*.py")
        if path.name != "rl_config.py"
    ]
    source = "\n".join(sources)
    own = (REPOSITORY / "fgrlhf" / "rl_config.py").read_text()
    names = fields_of(RLConfig)
    assert {"kl_horizon", "average_microbatches", "n_samples", "error_label", "num_beams", "clip_high"} <= names

    def is_read(name: str) -> bool:  # `published_facts` reads by name
        return bool(
            re.search(rf"\.{name}\b", source)
            or re.search(rf"self(\.\w+)*\.{name}\b", own)
            or f'"{name}"' in own
        )

    assert sorted(name for name in names if not is_read(name)) == []


def test_the_deviations_name_real_switches_and_tests():
    rows = [
        line.split("|")
        for line in (REPOSITORY / "docs" / "deviations.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| D")
    ]
    assert [row[1].strip() for row in rows] == [f"D{i}" for i in range(1, 16)]
    for _, name, _, _, switch, tests, _ in rows:
        for section, *keys in (
            key.split(".") for key in re.findall(r"`((?:model|ppo|train|env|logging)\.[\w.]+)`", switch)
        ):
            model = RLConfig.model_fields[section].annotation
            for key in keys:
                assert key in model.model_fields, (name, section, key)
                model = model.model_fields[key].annotation
        named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", tests)
        assert named, name
        for file, test in named:
            assert f"def {test}(" in (REPOSITORY / "tests" / file).read_text(encoding="utf-8"), (name, test)


def test_the_published_update_as_overrides(tmp_path):
    text = (REPOSITORY / "docs" / "deviations.md").read_text(encoding="utf-8")
    overrides = re.findall(r"^    (.*)$", text, re.MULTILINE)
    (tmp_path / "a.yml").write_text(yaml.safe_dump(published("baseline")))
    made = load_config(QAConfig, tmp_path / "a.yml", " ".join(overrides).split())
    assert made.dropout_in_rollouts is False and made.train.dropout and made.logprob_temperature == 1.0
    assert (made.ppo.whiten_divides_by, made.ppo.gae_start) == (
        "sqrt_std",
        "longest",
    ) and not made.train.average_microbatches
