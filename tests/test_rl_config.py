import re
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from fgrlhf.algorithms.config import PPOConfig
from fgrlhf.base.errors import UserError
from fgrlhf.configs.messages import OTHER_NAMES
from fgrlhf.configs.names import with_current_keys
from fgrlhf.configs.schema import paths_of, sections_of
from fgrlhf.configs.sections import Sampling
from fgrlhf.configs.strict import config_from, load_config, to_yaml, validate
from fgrlhf.configs.yaml_files import merged
from fgrlhf.runs.dpo_config import DPOConfig
from fgrlhf.runs.rl_config import RLConfig
from fgrlhf.task_config import rl_config
from reward_modeling.config import RMConfig
from reward_modeling.run_pref_rm import PreferenceRMConfig
from sft.config import SFTConfig
from tasks.qa_feedback.task import TASK

QAConfig = rl_config(TASK)

REPOSITORY = Path(__file__).parents[1]
DEVIATIONS = REPOSITORY / "docs" / "deviations.md"

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
        "completeness_model": {"ckpt": "./comp_rm", "bias": 0.0, "scale": 0.3}
        | {"mean": -0.44677690555995353, "std": 8.301160619054132},
    }
    moments = {"mean": 0.9224057369138402, "std": 1.5605590864042451}
    holistic = {"baseline_model": {"ckpt": "./baseline_rm", "bias": 0.0, "scale": 1.0, **moments}}
    value_model = {"ckpt": "t5-base", "freeze_value_model": False, "policy_value_sharing": False}
    return {
        "model": {"policy_model": POLICY, "value_model": value_model},
        "reward": fine_grained if name == "fine_grained" else holistic,
        "env": {"max_input_len": 1024, "max_generated_len": 200, "train_num_samples_per_input": 4},
        "ppo": {
            "kl_coef": 0.3 if name == "fine_grained" else 0.2,
            "lam": 0.95 if name == "fine_grained" else 0.99,
            **{"gamma": 1.0, "pg_coef": 1.0, "vf_coef": 1.0, "whiten_rewards": True},
            **{"cliprange": 0.2, "cliprange_value": 0.2},
        },
        "train": {
            **{"total_episodes": 80000, "eval_interval": 50, "n_ppo_epoch_per_rollout": 4},
            **{"sampling_batch_size_per_card": 8, "training_batch_size_per_card": 4},
            **{"lr": 0.00001, "n_warmup_steps": 100, "kl_threshold": 10.0},
            **{"clip_grad": False, "max_grad_norm": 0.5},
            **{"seed": 42, "cuda_deterministic": True},
        },
        "logging": {
            **{"run_name": name, "log_interval": 1, "save_dir": f"./{name}"},
            **{"wandb_log": True, "wandb_entity": "me", "wandb_project": "RLHF"},
        },
    }


@pytest.mark.parametrize("name", ["fine_grained", "baseline"])
def test_the_published_files_load_as_they_are(name, tmp_path):
    path = tmp_path / f"{name}.yml"
    path.write_text(yaml.safe_dump(published(name)).replace("1.0e-05", "0.00001"))
    loaded = load_config(QAConfig, path)
    assert loaded.train.lr == 1e-5 and loaded.train.n_minibatches == 1
    assert loaded.logprob_temperature == 0.7
    sampling = loaded.model.train_generation_kwargs.sampling(loaded.model.max_generated_len)
    assert sampling == Sampling(200, True, 0.7, 20, None)
    assert not loaded.model.eval_generation_kwargs.sampling(200).do_sample
    kinds = {key: aspect.kind for key, aspect in loaded.reward.items()}
    if name == "fine_grained":
        expected = {f"{name}_model": name for name in ("relevance", "factuality")}
        assert kinds == expected | {"completeness_model": "preference"}
        assert loaded.reward["completeness_model"].std == 8.301160619054132
        assert loaded.reward["relevance_model"].weight == 1.0
    else:
        assert kinds == {"baseline_model": "preference"}
    section = loaded.algorithm.model_dump()
    given = with_current_keys(published(name))
    given = merged(given["ppo"], given["algorithm"])
    assert section["name"] == "ppo" and merged(section, given) == section
    assert loaded.unused_settings() == [] and loaded.logging.notes() == []
    assert validate(QAConfig, yaml.safe_load(to_yaml(loaded)), "again") == loaded


def test_a_reward_without_a_kind_and_an_unknown_name_is_asked_for_one():
    tree = published("fine_grained")
    tree["reward"]["fluency_model"] = {"ckpt": "x"}
    with pytest.raises(UserError, match="reward.fluency_model.kind: missing"):
        validate(QAConfig, tree, "file")


@pytest.mark.parametrize(
    "name", ["total", "penalized", "error_free", "segments", "max", "any", "bleu_counts", "a/max"]
)
def test_the_name_of_a_statistic_is_no_name_of_a_reward(name):
    tree = published("fine_grained")
    tree["reward"][name] = {"kind": "length", "max_words": 9, "value": -0.1}
    with pytest.raises(UserError, match=f"reward.{name}: .*give the reward another name"):
        validate(QAConfig, tree, "file")
    tree["reward"][f"{name}_words"] = tree["reward"].pop(name)
    validate(QAConfig, tree, "file")


def sampled(**settings):
    return {"train_generation_kwargs": settings}


FROZEN_AND_SHARED = {"train_top_layers": 0, "policy_value_sharing": True}


@pytest.mark.parametrize(
    "section, change, part",
    [
        ("value_model", {}, "needs a critic: set model.value_model.ckpt"),
        ("value_model", FROZEN_AND_SHARED, "train_top_layers: 0 is not read"),
        ("policy_model", sampled(num_beams=4), "do_sample=false or num_beams=1"),
        ("policy_model", sampled(top_k=1), "top_k=1 leaves only the most probable token"),
        ("policy_model", {"input_padding_side": "middle"}, "'left' or 'right'"),
        ("policy_model", {"lora": {"r": 0}}, "lora.r"),
        ("policy_model", {"lora": {"rank": 8}}, "lora.rank"),
    ],
)
def test_impossible_combinations(section, change, part):
    tree = published("baseline")
    tree["model"][section] = {"ckpt": "x", **change} if change else {}
    with pytest.raises(UserError, match=re.escape(part)):
        validate(QAConfig, tree, "file")


def test_beam_search_in_training_gives_one_response_per_prompt():
    tree = published("baseline")
    tree["model"]["policy_model"] = POLICY | sampled(do_sample=False, num_beams=4)
    (line,) = refused(tree)
    key = "model.train_generation_kwargs.num_beams"
    assert line.startswith(f"{key} is 4, but beam search finds one response per prompt, and")
    assert "env.train_num_samples_per_input is 4: set num_beams=1 and do_sample=true" in line
    tree["env"]["train_num_samples_per_input"] = 1
    assert refused(tree) == []


def test_temperature_of_the_log_probabilities():
    def temperature(**changes):
        tree = published("baseline")
        tree["env"] |= changes.pop("env", {})
        tree["model"]["policy_model"] = {**POLICY, "train_generation_kwargs": changes}
        return validate(QAConfig, tree, "file").logprob_temperature

    assert temperature(temperature=0.7) == 0.7
    assert temperature(temperature=0.7, env={"logprob_temperature": 1.0}) == 1.0
    assert temperature(do_sample=False) == 1.0


def test_beams_in_evaluation_mean_no_sampling():
    tree = published("baseline")
    tree["model"]["policy_model"] = {**POLICY, "eval_generation_kwargs": {"num_beams": 4}}
    settings = validate(QAConfig, tree, "file").model.eval_generation_kwargs
    sampling = settings.sampling(10)
    assert sampling.num_beams == 4 and not sampling.do_sample


def fields_of(model: type[BaseModel]) -> set[str]:
    names = set(model.model_fields)
    for info in model.model_fields.values():
        for part in sections_of(info.annotation):
            names |= fields_of(part)
    return names


def test_every_field_is_read_somewhere():
    sources = [
        path.read_text()
        for folder in ("fgrlhf", "tasks")
        for path in (REPOSITORY / folder).rglob("*.py")
        if path.name not in ("rl_config.py", "sections.py")
    ]
    source = "\n".join(sources)
    files = ("runs/rl_config.py", "configs/sections.py")
    own = "\n".join((REPOSITORY / "fgrlhf" / file).read_text() for file in files)
    names = fields_of(RLConfig)
    assert {"horizon", "minibatches", "n_samples", "num_beams", "cliprange"} <= names

    def is_read(name: str) -> bool:
        return bool(
            re.search(rf"\.{name}\b", source)
            or re.search(rf"self(\.\w+)*\.{name}\b", own)
            or f'"{name}"' in own
        )

    assert sorted(name for name in names if not is_read(name)) == []


def test_the_deviations_name_real_switches_and_tests():
    lines = DEVIATIONS.read_text(encoding="utf-8").splitlines()
    rows = [line.split("|") for line in lines if line.startswith("| D")]
    assert [row[1].strip() for row in rows] == [f"D{i}" for i in range(1, 17)]
    key = re.compile(r"`((?:model|algorithm|ppo|train|env|logging)\.[\w.]+)`")
    for _, name, _, _, switch, tests, _ in rows:
        for section, *keys in (path.split(".") for path in key.findall(switch)):
            model = section_class(section)
            for key_ in keys:
                assert key_ in model.model_fields, (name, section, key_)
                model = model.model_fields[key_].annotation
        named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", tests)
        assert named, name
        for file, test in named:
            source = (REPOSITORY / "tests" / file).read_text(encoding="utf-8")
            assert f"def {test}(" in source, (name, test)


def published_overrides() -> list[str]:
    text = DEVIATIONS.read_text(encoding="utf-8")
    return " ".join(re.findall(r"^    (.*)$", text, re.MULTILINE)).split()


def section_class(name: str) -> type[BaseModel]:
    return PPOConfig if name == "algorithm" else RLConfig.model_fields[name].annotation


# ---- a key that is not read is an error ----------------------------------------------------------


def refused(tree: dict, model=QAConfig) -> list[str]:
    """The error message, one error per line; empty if the tree is valid."""
    try:
        validate(model, tree, "file")
    except UserError as error:
        return [line.strip() for line in str(error).splitlines()[1:]]
    return []


@pytest.mark.parametrize(
    "key, value", [("temperature", 0.7), ("top_k", 20), ("top_p", 0.9), ("min_p", 0.1)]
)
def test_a_key_that_nothing_reads_is_refused(key, value):
    def changed(value):
        tree = with_current_keys(published("fine_grained"))
        tree["model"]["eval_generation_kwargs"] = {"do_sample": False, key: value}
        return tree

    (line,) = refused(changed(value))
    path = f"model.eval_generation_kwargs.{key}"
    assert line.startswith(f"{path}: {value} is not read, since ")
    assert "set do_sample=true" in line and "leave it out" in line
    if key in ("top_k", "top_p"):
        assert refused(changed(None)) == []  # an explicit null means the default


def test_a_target_of_the_kl_needs_a_coefficient():
    tree = published("fine_grained")
    tree["ppo"] |= {"kl_coef": 0, "kl": {"target": 3.0}}
    (line,) = refused(tree)
    assert line.startswith("ppo.kl.target: it is not read, since coef is 0")
    tree["ppo"]["kl_coef"] = 0.1
    assert refused(tree) == []
    tree["algorithm"] = tree.pop("ppo") | {"kl_coef": 0}
    (line,) = refused(tree)
    assert line.startswith("algorithm.kl.target: it is not read, since coef is 0")
    tree["algorithm"]["kl"] = {"horizon": 5}
    (line,) = refused(tree)
    assert line.startswith("algorithm.kl.horizon: 5 is not read, since target is null")


# ---- the published section `ppo` -----------------------------------------------------------------


def test_the_published_section_is_read_as_algorithm():
    tree = published("fine_grained")
    moved = {**tree, "algorithm": tree["ppo"]}
    del moved["ppo"]
    loaded = validate(QAConfig, tree, "file")
    assert loaded == validate(QAConfig, moved, "file") and "ppo" not in loaded.model_dump()
    both = {**tree, "algorithm": {"name": "nlpo", "sync_every": 5, "entropy_coef": 0.1}}
    loaded = validate(QAConfig, both, "file").algorithm.model_dump()
    assert (loaded["name"], loaded["sync_every"], loaded["kl"]["coef"]) == ("nlpo", 5, 0.3)
    tree["ppo"] = {}
    assert validate(QAConfig, tree, "file").algorithm == PPOConfig()


def test_a_key_in_both_sections_is_refused():
    tree = published("fine_grained") | {"algorithm": {"lam": 0.95, "kl": {"part_of": "loss"}}}
    (line,) = refused(tree)
    assert line == "ppo.lam: it is also given as algorithm.gae.lam: leave one of them out"
    tree["algorithm"] = {"kl": {"coef": 0.2}}
    (line,) = refused(tree)
    assert line == "ppo.kl_coef: it is also given as algorithm.kl.coef: leave one of them out"
    tree["ppo"] = {"whiten": {"rewards": True, "divides_by": "std"}}
    tree["algorithm"] = {"whiten": {"rewards": False}}
    (line,) = refused(tree)
    assert line.startswith("ppo.whiten.rewards: it is also given as algorithm.whiten.rewards=False")


@pytest.mark.parametrize(
    "section, parts",
    [
        ({"cliprnge": 0.1}, ["ppo.cliprnge: unknown key; did you mean `cliprange`?"]),
        ({"name": "rloo"}, ["ppo.name: unknown key"]),
        ({"clip_low": 0.1}, ["ppo.clip_low: unknown key"]),
        (
            {"whiten": {"divides_by": "x"}},
            ["ppo.whiten.divides_by: input should be 'std' or 'sqrt_std'"],
        ),
        (
            {"lam": 2, "gamma": "1"},
            ["ppo.gamma: a number is needed", "algorithm.gae.lam: input should"],
        ),
        (
            {"lam": 2, "gama": 1},
            ["algorithm.gae.lam: ", "ppo.gama: unknown key; did you mean `gamma`?"],
        ),
        (3, ["ppo: it is not a mapping of keys"]),
        (None, ["ppo: it is not a mapping of keys"]),
    ],
)
def test_mistakes_in_the_published_section_are_named_where_they_are(section, parts):
    lines = refused(published("fine_grained") | {"ppo": section})
    assert len(lines) == len(parts), lines
    for line, part in zip(lines, parts):
        assert line.startswith(part), (line, part)


def test_mistakes_of_both_sections_and_others_are_reported_together():
    tree = published("fine_grained") | {"algorithm": {"name": "nlpo", "sync_every": 0, "lam": 0.5}}
    tree["ppo"]["vf_coef"] = -1
    tree["train"]["lr"] = -1
    named = sorted(line.split(":")[0] for line in refused(tree))
    assert named == ["algorithm.sync_every", "ppo.lam", "ppo.vf_coef", "train.lr"]
    tree["algorithm"] = {"name": "nplo"}
    assert [line.split(":")[0] for line in refused(tree)] == ["train.lr", "algorithm.name"]
    tree["algorithm"] = 3
    assert [line.split(":")[0] for line in refused(tree)] == ["train.lr", "algorithm"]


def test_a_shared_trunk_takes_no_other():
    tree = published("fine_grained")
    tree["model"]["value_model"] = {"ckpt": "t5-base", **FROZEN_AND_SHARED}
    lines = refused(tree)
    reason = "t5-base is not read, since policy_value_sharing is true"
    assert lines[0].startswith(f"model.value_model.ckpt: {reason}")
    assert lines[1].startswith("model.value_model.train_top_layers: 0 ") and len(lines) == 2


def test_only_an_algorithm_with_a_critic_needs_one():
    tree = published("fine_grained")
    del tree["model"]["value_model"]
    (line,) = refused(tree)
    assert line.startswith("model.value_model: `ppo` needs a critic")
    assert refused(tree | {"algorithm": {"name": "rloo"}}) == []


@pytest.mark.parametrize("name", ["rloo", "grpo", "gpg"])
def test_an_algorithm_that_compares_samples_needs_different_ones(name):
    tree = published("fine_grained") | {"algorithm": {"name": name}}
    del tree["ppo"]
    assert refused(tree) == []
    tree["model"]["policy_model"] = POLICY | sampled(do_sample=False)
    key = "model.train_generation_kwargs.do_sample"
    (line,) = refused(tree)
    assert line.startswith(f"{key} is false, but `{name}` compares the samples of one prompt, ")
    assert "set do_sample=true and num_beams=1" in line
    tree["env"]["train_num_samples_per_input"] = 1
    assert [line.split()[0] for line in refused(tree)] == ["env.train_num_samples_per_input", key]
    assert refused(tree | {"algorithm": {"name": "reinforce"}}) == []


def test_nlpo_masks_sampled_tokens_and_refuses_beam_search():
    tree = published("fine_grained") | {"algorithm": {"name": "nlpo"}}
    del tree["ppo"]
    assert refused(tree) == []
    tree["model"]["policy_model"] = POLICY | sampled(do_sample=False, num_beams=2)
    tree["env"]["train_num_samples_per_input"] = 1
    (line,) = refused(tree)
    assert line.startswith("model.train_generation_kwargs.num_beams is more than 1")
    assert "set num_beams=1 and do_sample=true, or use algorithm.name=ppo" in line


def test_a_least_length_is_refused_where_it_is_no_part_of_the_policy(tmp_path):
    key = "model.train_generation_kwargs.min_new_tokens"
    tree = published("fine_grained")
    tree["model"]["policy_model"] = POLICY | sampled(min_new_tokens=20)
    assert refused(tree) == [] and validate(QAConfig, tree, "c").train_sampling.is_constrained
    server = {"kind": "vllm", "url": "http://localhost:1", "sync_dir": str(tmp_path / "sync")}
    lines = refused(tree | {"sampler": server})
    assert any(line.startswith(f"{key} is 20, but the server") for line in lines)
    del tree["ppo"]
    (line,) = refused(tree | {"algorithm": {"name": "nlpo"}})
    assert line.startswith(f"{key} is 20, but the log-probabilities") and f"set {key}=0" in line
    tree["model"]["policy_model"] = POLICY | sampled(min_new_tokens=200)
    (line,) = refused(tree)
    assert line.startswith(f"{key}: it is 200, but max_generated_len is 200, so no response")
    tree["model"]["policy_model"] = POLICY | sampled(repetition_penalty=1.2)
    (line,) = refused(tree | {"algorithm": {"name": "nlpo"}})
    path = "model.train_generation_kwargs.repetition_penalty"
    assert line.startswith(f"{path} is 1.2, but") and line.endswith(f"set {path}=1.0")
    beams = {"num_beams": 2, "no_repeat_ngram_size": 3}
    tree["model"]["policy_model"] = {**POLICY, "eval_generation_kwargs": beams}
    (line,) = refused(tree)
    assert "eval_generation_kwargs.no_repeat_ngram_size: 3 is not read, since num_beams" in line


def test_logprobs_of_what_is_left_are_refused_where_it_is_unknown(tmp_path):
    tree = published("fine_grained")
    tree["env"]["logprob_truncated"] = True
    assert refused(tree) == []
    assert validate(QAConfig, tree, "c").train_sampling.with_support
    server = {"kind": "vllm", "url": "http://localhost:1", "sync_dir": str(tmp_path / "sync")}
    lines = refused(tree | {"sampler": server})
    assert any("does not tell what is left of its distribution" in line for line in lines)
    del tree["ppo"]
    (line,) = refused(tree | {"algorithm": {"name": "nlpo"}})
    assert "algorithm.name=nlpo have a mask of their own: set env.logprob_truncated=false" in line


def test_settings_of_a_tracker_that_is_off_are_noted():
    tree = published("fine_grained")
    tree["logging"]["wandb_log"] = False
    notes = validate(QAConfig, tree, "file").logging.notes()
    assert notes == [
        "note: logging.wandb_entity: me is not read, since logging.report_to has no tracker"
        " that reads it",
        "note: logging.wandb_project: RLHF is not read, since logging.report_to has no tracker"
        " that reads it",
    ]


# ---- the two variants at paper scale -------------------------------------------------------------

# Every switch between published and right (docs/deviations.md): its value in the published code,
# and ours.
SWITCHES = {
    "algorithm.whiten.rewards": (True, False),
    "algorithm.whiten.divides_by": ("sqrt_std", "std"),
    "algorithm.gae.start": ("longest", "own_end"),
    "env.logprob_temperature": (1.0, None),
    "train.dropout": ("updates", False),
    "train.n_minibatches": (1, 1),
    "train.minibatches": ("published", "shuffled"),
    "train.max_grad_norm": (None, 0.5),
}


def shipped(name: str, monkeypatch, overrides=()) -> QAConfig:
    monkeypatch.setenv("OUTPUT_DIR", "o")
    monkeypatch.setenv("DATA_DIR", "d")
    path = REPOSITORY / "tasks/qa_feedback/training" / f"{name}_config.yml"
    return load_config(QAConfig, path, overrides)


def flat(tree: dict, prefix: str = "") -> dict:
    pairs = [
        flat(v, f"{prefix}{k}.") if isinstance(v, dict) else {f"{prefix}{k}": v}
        for k, v in tree.items()
    ]
    return {key: value for pair in pairs for key, value in pair.items()}


@pytest.mark.parametrize("name", ["fine_grained", "baseline"])
def test_the_published_variant_is_the_published_run(name, monkeypatch):
    loaded = shipped(f"published_{name}", monkeypatch)
    values = flat(loaded.model_dump())
    for key, (value, _) in SWITCHES.items():
        assert values[key] == value, key
    overrides = published_overrides()
    assert {override.split("=")[0] for override in overrides} == set(SWITCHES)
    assert shipped(f"published_{name}", monkeypatch, overrides) == loaded
    paper = flat(with_current_keys(published(name)))
    for key, value in paper.items():  # and the paper's hyper-parameters
        key = re.sub("^ppo", "algorithm", key)
        its_own = key.startswith("logging.") or key.endswith(("ckpt", ".mean", ".std"))
        its_own = its_own or key in SWITCHES
        assert its_own or values[key] == value, key


@pytest.mark.parametrize("name", ["fine_grained", "baseline"])
def test_the_default_variant_is_the_same_run_with_our_defaults(name, monkeypatch):
    names = (name, f"published_{name}")
    ours, theirs = (flat(shipped(each, monkeypatch).model_dump()) for each in names)
    differing = {key for key in ours if ours[key] != theirs[key]}
    # the micro-batches change no result but that of published switches
    others = {"logging.run_name", "logging.save_dir", "train.micro_batch_size"}
    assert differing == {key for key, (a, b) in SWITCHES.items() if a != b} | others
    for key, (_, default) in SWITCHES.items():
        section, *above, leaf = key.split(".")
        model = section_class(section)
        for name in above:
            model = model.model_fields[name].annotation
        assert ours[key] == default == model.model_fields[leaf].default, key


# ---- hints ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key, hint",
    [
        ("train.learning_rate", "train.lr"),
        ("learning_rate", "train.lr"),
        ("train.num_train_epochs", "train.total_episodes"),
        ("per_device_train_batch_size", "train.micro_batch_size"),
        ("train.init_kl_coef", "algorithm.kl.coef"),
        ("train.kl_coef", "algorithm.kl.coef"),  # in another section
        ("algorithm.adaptive_kl", "algorithm.kl.target"),
        ("algorithm.kl_in", "algorithm.kl.part_of"),
        ("algorithm.gae_start", "algorithm.gae.start"),
        ("algorithm.whiten_divides_by", "algorithm.whiten.divides_by"),
        ("model.max_new_tokens", "model.max_generated_len"),
        ("model_name_or_path", "model.ckpt` or `model.value_model.ckpt"),
        ("train.lora_dropout", "model.lora.dropout"),
        ("train.lrr", "train.lr"),
        ("train.num_samples_per_input", "env.train_num_samples_per_input"),
        ("train.max_steps", "train.total_episodes"),
    ],
)
def test_a_key_of_another_library_or_section_has_a_hint(key, hint):
    with pytest.raises(UserError, match=re.escape(f"{key}: unknown key; did you mean `{hint}`?")):
        config_from(QAConfig, [f"{key}=1"])


def test_a_config_of_another_command_is_named_as_such():
    with pytest.raises(UserError) as error:
        config_from(QAConfig, ["dpo.beta=0.1", "model.ckpt=t5-small"])
    assert str(error.value).splitlines()[0] == (
        "the command line has 3 mistakes and may be the config of another command (it has dpo and"
        " lacks logging, reward):"
    )


def test_every_name_in_the_table_of_hints_exists():
    configs = (QAConfig, DPOConfig, SFTConfig, RMConfig, PreferenceRMConfig)
    paths = {path for config in configs for path in paths_of(config)}
    for names in OTHER_NAMES.values():
        for name in names:
            assert name == "num_samples" or any(f".{path}".endswith(f".{name}") for path in paths)
