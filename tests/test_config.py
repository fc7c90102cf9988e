import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, model_validator

from fgrlhf.config import StrictModel, load_config, parse_cli, read_yaml, to_yaml, validate
from fgrlhf.rl_config import RLConfig
from fgrlhf.utils import UserError
from tasks.qa_feedback.training.reward import QAConfig

REPOSITORY = Path(__file__).parents[1]


class Inner(StrictModel):
    lr: float = Field(1e-5, gt=0)
    steps: int = 10
    flag: bool = True


class Aspect(StrictModel):
    weight: float
    name: str = ""


class Small(StrictModel):
    train: Inner = Inner()
    title: str | None = Field(None, description="shown in reports")
    reward: dict[str, Aspect] = {}
    sizes: list[int] = []

    @model_validator(mode="after")
    def _no_thirteen(self):
        if self.train.steps == 13:
            raise ValueError("train.steps: 13 brings bad luck; take 14")
        return self


def load(tmp_path, text: str, *overrides: str) -> Small:
    path = tmp_path / "small.yml"
    path.write_text(text, encoding="utf-8")
    return load_config(Small, path, overrides)


@pytest.mark.parametrize("text, value", [
    ("1e-5", 1e-5), ("1E5", 1e5), ("1.e-3", 1e-3), ("+2.5e+1", 25.0), (".5", 0.5), ("1e-05", 1e-5), ("3", 3.0), ("0.00001", 1e-5), ("1_000.5", 1000.5)])
def test_numbers_are_numbers(text, value, tmp_path):
    assert load(tmp_path, f"train: {{lr: {text}}}").train.lr == value
    assert load(tmp_path, "{}", f"train.lr={text}").train.lr == value


@pytest.mark.parametrize("text", ["no", "on", "yes", "off", "y", "1e", "e5", "v1.0", "é 🙂", "null and void", "a: b"])
def test_text_stays_text(text, tmp_path):
    quoted = f"'{text}'" if ":" in text else text
    assert load(tmp_path, f"title: {quoted}").title == text


@pytest.mark.parametrize("text, value", [("true", True), ("False", False), ("no", False), ("yes", True), ("off", False)])
def test_switches(text, value, tmp_path):
    assert load(tmp_path, f"train: {{flag: {text}}}").train.flag is value


def test_every_mistake_is_reported_at_once(tmp_path):
    with pytest.raises(UserError) as raised:
        load(tmp_path, """
            trian: {}
            train: {lr: fast, stepz: 3, flag: maybe}
            reward: {a: {wieght: 1}, b: 3}
            sizes: [1, x, 2.5]
        """, "train.steps=1.5", "title=[1]")
    message = str(raised.value)
    assert "small.yml has 11 mistakes" in message and len(message.splitlines()) == 12
    for part in (
        "trian: unknown key; did you mean `train`?", "train.lr: input should be a valid number, unable to parse string as a number (got 'fast')",
        "train.stepz: unknown key; did you mean `steps`?", "train.flag:", "reward.a.weight: missing; set it in the file or give reward.a.weight=",
        "reward.a.wieght: unknown key; did you mean `weight`?", "reward.b:", "sizes.1:", "sizes.2:", "train.steps:", "title:",
    ):
        assert part in message, part


@pytest.mark.parametrize("text, part", [
    ("train: {lr: true}", "train.lr: a number is needed, not true"), ("train: {steps: false}", "train.steps: a number is needed, not false"),
    ("train: {lr: -1}", "train.lr: input should be greater than 0 (got -1)"), ("train: {lr: .nan}", "train.lr"), ("train: {lr: .inf}", "train.lr"),
    ("train: {steps: 13}", "train.steps: 13 brings bad luck; take 14"), ("title: 2026-11-21", "title: input should be a valid string"),
    ("qqq: 1", "qqq: unknown key; known here: reward, sizes, title, train"), ("train: 3", "train:"), ("title: [", "not valid YAML"),
    ("a: 1\nb: 2\na: 3", "the key `a` is given twice"), ("train: {lr: 1, lr: 1}", "the key `lr` is given twice"),
    ("- 1", "must be a mapping"), ("", "must be a mapping"),
])
def test_one_mistake(text, part, tmp_path):
    with pytest.raises(UserError) as raised:
        load(tmp_path, text)
    assert part in str(raised.value) and "small.yml" in str(raised.value)


def test_duplicate_keys_and_missing_files_are_located(tmp_path):
    with pytest.raises(UserError, match="twice.*line 3"):
        load(tmp_path, "title: x\nsizes: []\ntitle: y")
    with pytest.raises(UserError, match="nowhere.yml cannot be read: No such file"):
        read_yaml(tmp_path / "nowhere.yml")
    with pytest.raises(UserError, match="cannot be read"):
        read_yaml(tmp_path)


def test_overrides(tmp_path):
    made = load(tmp_path, "train: {lr: 1, steps: 2}\nreward: {a: {weight: 1}}", "train.lr=2e-3", "reward.a.weight=0", "reward.b.weight=3", "sizes=[1, 2]", "title=x=y")
    assert made.train.lr == 2e-3 and made.train.steps == 2 and made.reward["a"].weight == 0 and made.reward["b"].weight == 3
    assert made.sizes == [1, 2] and made.title == "x=y" and load(tmp_path, "title: a", "title=null").title is None
    for wrong in ("train.lr", "=3"):
        with pytest.raises(UserError, match="is not an override"):
            load(tmp_path, "{}", wrong)
    with pytest.raises(UserError, match="train.lrr: unknown key; did you mean `lr`"):
        load(tmp_path, "{}", "train.lrr=3")


def test_environment_variables_are_filled_in(tmp_path, monkeypatch):
    monkeypatch.setenv("OUTPUT", "/out put")
    monkeypatch.setenv("LR", "1e-3")
    made = load(tmp_path, "title: ${OUTPUT}/sft\ntrain: {lr: '${LR}'}\nreward: {a: {weight: 1, name: '${OUTPUT}'}}")
    assert made.title == "/out put/sft" and made.train.lr == 1e-3 and made.reward["a"].name == "/out put"
    monkeypatch.delenv("LR")
    with pytest.raises(UserError) as raised:
        load(tmp_path, "title: ${LR}${NOT_SET}\nreward: {a: {weight: 1, name: '${LR}'}}")
    assert str(raised.value).count("is not set") == 3 and "reward.a.name: the environment variable LR is not set" in str(raised.value)
    assert load(tmp_path, "title: ${LR}", "title=mine").title == "mine"  # the way out that the message names


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.none() | st.text(st.characters(exclude_categories=["Cs", "Cc"])).filter(lambda t: "${" not in t) | st.sampled_from(["1e-5", "no", "null", "~", "3", "0x1f", "1_0", "true", "2026-01-01", ".5", "1:30"]),
    st.floats(1e-300, 1e300), st.dictionaries(st.text("ab1é.", min_size=1), st.floats(allow_nan=False, allow_infinity=False), max_size=2))
def test_round_trip(tmp_path_factory, title, lr, weights):
    made = Small(title=title, train=Inner(lr=lr), reward={name: Aspect(weight=w, name=str(w)) for name, w in weights.items()})
    path = tmp_path_factory.getbasetemp() / "round-trip.yml"
    path.write_text(to_yaml(made), encoding="utf-8")
    assert load_config(Small, path) == made


def test_a_config_cannot_be_changed(tmp_path):
    with pytest.raises(Exception, match="frozen"):
        load(tmp_path, "title: a").title = "b"


def test_command_line(tmp_path, capsys):
    path = tmp_path / "a.yml"
    path.write_text("title: x")
    assert parse_cli(Small, [str(path), "train.steps=3"]).train.steps == 3
    for argv, code in ([["--help"], 0], [[], 2]):
        with pytest.raises(SystemExit) as stopped:
            parse_cli(Small, argv, usage="usage: me")
        assert stopped.value.code == code
        shown = capsys.readouterr().out
        assert shown.startswith("usage: me") and "train.lr: float = 1e-05" in shown and "title: str|null = None   # shown in reports" in shown
        assert "reward.<name>.weight: float = required" in shown


# ---- the RL configuration ------------------------------------------------------------------------------------------

POLICY = {
    "ckpt": "./tasks/qa_feedback/model_outputs/t5-large-1k-train", "input_padding_side": "right",
    "train_generation_kwargs": {"do_sample": True, "top_k": 20, "top_p": None, "temperature": 0.7},
    "eval_generation_kwargs": {"do_sample": False, "num_beams": 1},
}


def published(name: str) -> dict:
    """The keys and values of the published YAML files."""
    fine_grained = {
        "relevance_model": {"ckpt": "./rel_rm", "positive_reward": 0.3, "negative_reward": -0.3},
        "factuality_model": {"ckpt": "./fact_rm", "positive_reward": 0.5, "negative_reward": -0.5},
        "completeness_model": {"ckpt": "./comp_rm", "mean": -0.44677690555995353, "std": 8.301160619054132, "bias": 0.0, "scale": 0.3},
    }
    holistic = {"baseline_model": {"ckpt": "./baseline_rm", "mean": 0.9224057369138402, "std": 1.5605590864042451, "bias": 0.0, "scale": 1.0}}
    return {
        "model": {"policy_model": POLICY, "value_model": {"ckpt": "t5-base", "freeze_value_model": False, "policy_value_sharing": False}},
        "reward": fine_grained if name == "fine_grained" else holistic,
        "env": {"max_input_len": 1024, "max_generated_len": 200, "train_num_samples_per_input": 4},
        "ppo": {
            "kl_coef": 0.3 if name == "fine_grained" else 0.2, "lam": 0.95 if name == "fine_grained" else 0.99, "gamma": 1.0, "pg_coef": 1.0,
            "vf_coef": 1.0, "cliprange": 0.2, "cliprange_value": 0.2, "whiten_rewards": True},
        "train": {
            "total_episodes": 80000, "eval_interval": 50, "sampling_batch_size_per_card": 8, "training_batch_size_per_card": 4, "lr": 0.00001,
            "n_warmup_steps": 100, "n_ppo_epoch_per_rollout": 4, "kl_threshold": 10.0, "clip_grad": False, "max_grad_norm": 0.5, "seed": 42,
            "cuda_deterministic": True},
        "logging": {"run_name": name, "wandb_log": True, "wandb_entity": "me", "wandb_project": "RLHF", "log_interval": 1, "save_dir": f"./{name}"},
    }


@pytest.mark.parametrize("name", ["fine_grained", "baseline"])
def test_the_published_files_load_as_they_are(name, tmp_path):
    path = tmp_path / f"{name}.yml"
    path.write_text(yaml.safe_dump(published(name)).replace("1.0e-05", "0.00001"))
    made = load_config(QAConfig, path)
    assert made.train.lr == 1e-5 and made.logprob_temperature == 0.7 and made.train.n_minibatches == 1
    sampling = made.model.policy_model.train_generation_kwargs.sampling(made.env.max_generated_len)
    assert (sampling.max_new_tokens, sampling.do_sample, sampling.temperature, sampling.top_k, sampling.top_p) == (200, True, 0.7, 20, None)
    assert not made.model.policy_model.eval_generation_kwargs.sampling(200).do_sample
    kinds = {key: (aspect.kind, aspect.level, aspect.error_label, aspect.with_passages) for key, aspect in made.reward.items()}
    if name == "fine_grained":
        assert kinds == {
            "relevance_model": ("relevance", "subsentence", "NF-ERR", False), "factuality_model": ("factuality", "sentence", "F-ERR", True),
            "completeness_model": ("preference", "sequence", None, True)}
        assert made.reward["completeness_model"].std == 8.301160619054132 and made.reward["relevance_model"].weight == 1.0
    else:
        assert kinds == {"baseline_model": ("preference", "sequence", None, True)}
    assert validate(QAConfig, yaml.safe_load(to_yaml(made)), "again") == made


def test_a_reward_without_a_kind_and_an_unknown_name_is_asked_for_one():
    tree = published("fine_grained")
    tree["reward"]["fluency_model"] = {"ckpt": "x"}
    with pytest.raises(UserError, match="reward.fluency_model.kind: missing"):
        validate(QAConfig, tree, "file")


@pytest.mark.parametrize("section, change, part", [
    ("value_model", {}, "needs a trunk of its own: set value_model.ckpt"),
    ("value_model", {"ckpt": "x", "freeze_value_model": True, "policy_value_sharing": True}, "cannot be frozen"),
    ("policy_model", {"ckpt": "x", "train_generation_kwargs": {"num_beams": 4}}, "do_sample=false or num_beams=1"),
    ("policy_model", {"ckpt": "x", "input_padding_side": "middle"}, "'left' or 'right'"),
])
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

    assert temperature(temperature=0.7) == 0.7 and temperature(temperature=0.7, env={"logprob_temperature": 1.0}) == 1.0
    assert temperature(temperature=0.7, do_sample=False) == 1.0


def test_beams_in_evaluation_mean_no_sampling():
    tree = published("baseline")
    tree["model"]["policy_model"] = {**POLICY, "eval_generation_kwargs": {"num_beams": 4}}
    sampling = validate(QAConfig, tree, "file").model.policy_model.eval_generation_kwargs.sampling(10)
    assert sampling.num_beams == 4 and not sampling.do_sample


def fields_of(model: type[BaseModel]) -> set[str]:
    names = set(model.model_fields)
    for info in model.model_fields.values():
        for part in (info.annotation, *getattr(info.annotation, "__args__", ())):
            if isinstance(part, type) and issubclass(part, BaseModel):
                names |= fields_of(part)
    return names


def test_every_field_is_read_somewhere():
    sources = [path.read_text() for folder in ("fgrlhf", "tasks") for path in (REPOSITORY / folder).rglob("*.py") if path.name != "rl_config.py"]
    source = "\n".join(sources)
    own = (REPOSITORY / "fgrlhf" / "rl_config.py").read_text()
    names = fields_of(RLConfig)
    assert {"kl_horizon", "average_microbatches", "n_samples", "error_label", "num_beams"} <= names

    def is_read(name: str) -> bool:  # `published_facts` reads by name
        return bool(re.search(rf"\.{name}\b", source) or re.search(rf"self(\.\w+)*\.{name}\b", own) or f'"{name}"' in own)

    assert sorted(name for name in names if not is_read(name)) == []
