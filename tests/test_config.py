from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field, model_validator

from fgrlhf.config import (
    Count, NonNegativeCount, Positive, Rate, Seed, StrictModel, load_config, parse_cli, read_yaml, to_yaml, validate,
)
from fgrlhf.utils import UserError

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


@pytest.mark.parametrize(
    "text, value",
    [
        ("1e-5", 1e-5),
        ("1E5", 1e5),
        ("1.e-3", 1e-3),
        ("+2.5e+1", 25.0),
        (".5", 0.5),
        ("1e-05", 1e-5),
        ("3", 3.0),
        ("0.00001", 1e-5),
        ("1_000.5", 1000.5),
    ],
)
def test_numbers_are_numbers(text, value, tmp_path):
    assert load(tmp_path, f"train: {{lr: {text}}}").train.lr == value
    assert load(tmp_path, "{}", f"train.lr={text}").train.lr == value


@pytest.mark.parametrize(
    "text", ["no", "on", "yes", "off", "y", "1e", "e5", "v1.0", "é 🙂", "null and void", "a: b"]
)
def test_text_stays_text(text, tmp_path):
    quoted = f"'{text}'" if ":" in text else text
    assert load(tmp_path, f"title: {quoted}").title == text


@pytest.mark.parametrize(
    "text, value", [("true", True), ("False", False), ("no", False), ("yes", True), ("off", False)]
)
def test_switches(text, value, tmp_path):
    assert load(tmp_path, f"train: {{flag: {text}}}").train.flag is value


def test_every_mistake_is_reported_at_once(tmp_path):
    with pytest.raises(UserError) as raised:
        load(
            tmp_path,
            """
            trian: {}
            train: {lr: fast, stepz: 3, flag: maybe}
            reward: {a: {wieght: 1}, b: 3}
            sizes: [1, x, 2.5]
        """,
            "train.steps=1.5",
            "title=[1]",
        )
    message = str(raised.value)
    assert "small.yml has 11 mistakes" in message and len(message.splitlines()) == 12
    for part in (
        "trian: unknown key; did you mean `train`?",
        "train.lr: input should be a valid number, unable to parse string as a number (got 'fast')",
        "train.stepz: unknown key; did you mean `steps`?",
        "train.flag:",
        "reward.a.weight: missing; set it in the file or give reward.a.weight=",
        "reward.a.wieght: unknown key; did you mean `weight`?",
        "reward.b:",
        "sizes.1:",
        "sizes.2:",
        "train.steps:",
        "title:",
    ):
        assert part in message, part


@pytest.mark.parametrize(
    "text, part",
    [
        ("train: {lr: true}", "train.lr: a number is needed, not true"),
        ("train: {steps: false}", "train.steps: a number is needed, not false"),
        ("train: {lr: -1}", "train.lr: input should be greater than 0 (got -1)"),
        ("train: {lr: .nan}", "train.lr"),
        ("train: {lr: .inf}", "train.lr"),
        ("train: {steps: 13}", "train.steps: 13 brings bad luck; take 14"),
        ("title: 2026-11-21", "title: input should be a valid string"),
        ("qqq: 1", "qqq: unknown key; known here: reward, sizes, title, train"),
        ("train: 3", "train:"),
        ("title: [", "not valid YAML"),
        ("a: 1\nb: 2\na: 3", "the key `a` is given twice"),
        ("train: {lr: 1, lr: 1}", "the key `lr` is given twice"),
        ("- 1", "must be a mapping"),
        ("", "must be a mapping"),
    ],
)
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
    made = load(
        tmp_path,
        "train: {lr: 1, steps: 2}\nreward: {a: {weight: 1}}",
        "train.lr=2e-3",
        "reward.a.weight=0",
        "reward.b.weight=3",
        "sizes=[1, 2]",
        "title=x=y",
    )
    assert (
        made.train.lr == 2e-3
        and made.train.steps == 2
        and made.reward["a"].weight == 0
        and made.reward["b"].weight == 3
    )
    assert (
        made.sizes == [1, 2]
        and made.title == "x=y"
        and load(tmp_path, "title: a", "title=null").title is None
    )
    for wrong in ("train.lr", "=3"):
        with pytest.raises(UserError, match="is not an override"):
            load(tmp_path, "{}", wrong)
    with pytest.raises(UserError, match="train.lrr: unknown key; did you mean `lr`"):
        load(tmp_path, "{}", "train.lrr=3")


def test_environment_variables_are_filled_in(tmp_path, monkeypatch):
    monkeypatch.setenv("OUTPUT", "/out put")
    monkeypatch.setenv("LR", "1e-3")
    made = load(
        tmp_path, "title: ${OUTPUT}/sft\ntrain: {lr: '${LR}'}\nreward: {a: {weight: 1, name: '${OUTPUT}'}}"
    )
    assert made.title == "/out put/sft" and made.train.lr == 1e-3 and made.reward["a"].name == "/out put"
    monkeypatch.delenv("LR")
    with pytest.raises(UserError) as raised:
        load(tmp_path, "title: ${LR}${NOT_SET}\nreward: {a: {weight: 1, name: '${LR}'}}")
    assert str(raised.value).count(
        "is not set"
    ) == 3 and "reward.a.name: the environment variable LR is not set" in str(raised.value)
    assert load(tmp_path, "title: ${LR}", "title=mine").title == "mine"  # the way out that the message names


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.none()
    | st.text(st.characters(exclude_categories=["Cs", "Cc"])).filter(lambda t: "${" not in t)
    | st.sampled_from(["1e-5", "no", "null", "~", "3", "0x1f", "1_0", "true", "2026-01-01", ".5", "1:30"]),
    st.floats(1e-300, 1e300),
    st.dictionaries(
        st.text("ab1é.", min_size=1), st.floats(allow_nan=False, allow_infinity=False), max_size=2
    ),
)
def test_round_trip(tmp_path_factory, title, lr, weights):
    made = Small(
        title=title,
        train=Inner(lr=lr),
        reward={name: Aspect(weight=w, name=str(w)) for name, w in weights.items()},
    )
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
        assert (
            shown.startswith("usage: me")
            and "train.lr: float = 1e-05" in shown
            and "title: str|null = None   # shown in reports" in shown
        )
        assert "reward.<name>.weight: float = required" in shown


def test_bounded_numbers():
    class Bounded(StrictModel):
        seed: Seed = 0
        steps: Count = 1
        warmup: NonNegativeCount = 0
        lr: Rate = 1e-5
        norm: Positive = 1.0

    good = {"seed": 2**32 - 1, "steps": 2**31 - 1, "warmup": 0, "lr": 100, "norm": 1e-12}
    assert validate(Bounded, good, "test").model_dump() == good
    bad = {"seed": -1, "steps": 0, "warmup": 2**31, "lr": 1e308, "norm": 1e-320}
    with pytest.raises(UserError) as error:
        validate(Bounded, bad, "test")
    assert all(f"  {key}: " in str(error.value) for key in bad)
