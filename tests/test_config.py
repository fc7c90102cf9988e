import re
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field, model_validator

from fgrlhf.base.errors import UserError
from fgrlhf.cli.command_line import parse_cli
from fgrlhf.configs.overrides import value_from_text
from fgrlhf.configs.strict import (
    Count,
    FilePath,
    NonNegativeCount,
    Positive,
    Rate,
    Seed,
    StrictModel,
    config_from,
    load_config,
    refuse,
    to_yaml,
    unread_keys,
    validate,
)
from fgrlhf.configs.yaml_files import read_yaml


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


NUMBERS = {"1e-5": 1e-5, "1E5": 1e5, "1.e-3": 1e-3, "+2.5e+1": 25.0, ".5": 0.5, "1e-05": 1e-5}
NUMBERS |= {"3": 3.0, "0.00001": 1e-5, "1_000.5": 1000.5}


@pytest.mark.parametrize("text, value", NUMBERS.items())
def test_numbers_are_numbers(text, value, tmp_path):
    assert load(tmp_path, f"train: {{lr: {text}}}").train.lr == value
    assert load(tmp_path, "{}", f"train.lr={text}").train.lr == value


@pytest.mark.parametrize(
    "text",
    [
        *("no", "on", "yes", "off", "y", "1e", "e5", "v1.0", "é 🙂", "null and void", "a: b"),
        *("2026-11-21", "2024-13-45", "1:30"),
    ],
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
    text = """
        trian: {}
        train: {lr: fast, stepz: 3, flag: maybe}
        reward: {a: {wieght: 1}, b: 3}
        sizes: [1, x, 2.5]
        title: [1]
    """
    with pytest.raises(UserError) as raised:
        load(tmp_path, text, "train.steps=1.5")
    message = str(raised.value)
    assert "small.yml with the overrides of the command line has 11 mistakes" in message
    assert len(message.splitlines()) == 12
    for part in (
        "trian: unknown key; did you mean `train`?",
        "train.lr: input should be a valid number, unable to parse string as a number (got 'fast')",
        "train.stepz: unknown key; did you mean `train.steps`?",
        "reward.a.weight: missing; give reward.a.weight=... on the command line, or set it in the"
        " config file",
        "reward.a.wieght: unknown key; did you mean `reward.a.weight`?",
        *("train.flag:", "reward.b:", "sizes.1:", "sizes.2:", "train.steps:", "title:"),
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
        ("title: 12", "title: input should be a valid string (got 12)"),
        ("qqq: 1", "qqq: unknown key; known here: reward, sizes, title, train"),
        ("train: 3", "train: it must be a section (got 3): write train='{lr: ...}'"),
        ("reward: 3", "reward: it must be a section (got 3): write reward='{name: ...}'"),
        ("sizes: q", "sizes: it must be a list (got q): write sizes='[q]'"),
        ("title: [", "not valid YAML"),
        ("a: 1\nb: 2\na: 3", "the key `a` is given twice"),
        ("train: {lr: 1, lr: 1}", "the key `lr` is given twice"),
        ("- 1", "must be a mapping"),
        ("", "but it is empty"),
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
    given = ["train.lr=2e-3", "reward.a.weight=0", "reward.b.weight=3", "sizes=[1, 2]", "title=x=y"]
    loaded = load(tmp_path, "train: {lr: 1, steps: 2}\nreward: {a: {weight: 1}}", *given)
    assert (loaded.train.lr, loaded.train.steps) == (2e-3, 2)
    assert (loaded.reward["a"].weight, loaded.reward["b"].weight) == (0, 3)
    assert loaded.sizes == [1, 2] and loaded.title == "x=y"
    assert load(tmp_path, "title: a", "title=null").title is None
    message = "is not an override: .*in quotes if it contains spaces"
    for wrong in ("train.lr", "=3", "{kind:"):
        with pytest.raises(UserError, match=message):
            load(tmp_path, "{}", wrong)
    with pytest.raises(UserError, match="sets a key of `train`, which has a value and is no"):
        load(tmp_path, "train: 3", "train.lr=3")
    with pytest.raises(UserError, match="train.lrr: unknown key; did you mean `train.lr`"):
        load(tmp_path, "{}", "train.lrr=3")


def test_environment_variables_are_filled_in(tmp_path, monkeypatch):
    monkeypatch.setenv("OUTPUT", "/out put")
    monkeypatch.setenv("LR", "1e-3")
    reward = "reward: {a: {weight: 1, name: '${OUTPUT}'}}"
    loaded = load(tmp_path, f"title: ${{OUTPUT}}/sft\ntrain: {{lr: '${{LR}}'}}\n{reward}")
    assert loaded.title == "/out put/sft" and loaded.train.lr == 1e-3
    assert loaded.reward["a"].name == "/out put"
    monkeypatch.delenv("LR")
    with pytest.raises(UserError) as raised:
        load(tmp_path, "title: ${LR}${NOT_SET}\nreward: {a: {weight: 1, name: '${LR}'}}")
    message = str(raised.value)
    assert message.count("is not set") == 3
    assert "reward.a.name: the environment variable LR is not set" in message
    # the solution that the message suggests
    assert load(tmp_path, "title: ${LR}", "title=mine").title == "mine"


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.none()
    | st.text(st.characters(exclude_categories=["Cs", "Cc"])).filter(lambda t: "${" not in t)
    | st.sampled_from(
        ["1e-5", "no", "null", "~", "3", "0x1f", "1_0", "true", "2026-01-01", ".5", "1:30"]
    ),
    st.floats(1e-300, 1e300),
    st.dictionaries(
        st.text("ab1é.", min_size=1), st.floats(allow_nan=False, allow_infinity=False), max_size=2
    ),
)
def test_round_trip(tmp_path_factory, title, lr, weights):
    result = Small(
        title=title,
        train=Inner(lr=lr),
        reward={name: Aspect(weight=w, name=str(w)) for name, w in weights.items()},
    )
    path = tmp_path_factory.getbasetemp() / "round-trip.yml"
    path.write_text(to_yaml(result), encoding="utf-8")
    assert load_config(Small, path) == result


def test_a_config_cannot_be_changed(tmp_path):
    with pytest.raises(Exception, match="frozen"):
        load(tmp_path, "title: a").title = "b"


def test_command_line(tmp_path, capsys):
    path = tmp_path / "a.yml"
    path.write_text("title: x")
    assert parse_cli(Small, [str(path), "train.steps=3"]).train.steps == 3
    for argv in (["--help"], [str(path), "--help"]):
        with pytest.raises(SystemExit) as stopped:
            parse_cli(Small, argv, usage="usage: me")
        assert stopped.value.code == 0
        shown = capsys.readouterr().out
        assert (
            shown.startswith("usage: me")
            and "train.lr: float = 1e-05" in shown
            and "title: str|null = null   # shown in reports" in shown
        )
    with pytest.raises(UserError, match="there is no config file and no setting\nusage: me\n"):
        parse_cli(Small, [], usage="usage: me")
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


# ---- text is taken literally, numbers are numbers ------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        *("out/a #b", "k: v", "a\nb", "${HOME}/x", "'quoted'", "[1]", "{a: 1}", "&a b", "*a"),
        *("!tag", "12", "true", "", " x ", "~", "[", "a\tb"),
    ],
)
def test_the_text_of_an_override_is_the_value_of_a_text_key(text, tmp_path):
    assert load(tmp_path, "title: x", f"title={text}").title == text
    loaded = load(tmp_path, "{}", "reward.a.weight=1", f"reward.a.name={text}")
    assert loaded.reward["a"].name == text


class Kinds(StrictModel):
    required: str = "x"
    optional: str | None = "x"
    choice: Literal["fp32", "bf16"] = "fp32"
    either: int | str = 0
    number: float | None = 1.0
    whole: int = 0
    flag: bool = False
    names: list[str] | None = None


@pytest.mark.parametrize(
    "key, text, value",
    [
        ("optional", "null", None),
        ("required", "null", "null"),
        ("choice", "bf16", "bf16"),
        ("either", "3", 3),
        ("either", "three: 3", {"three": 3}),
        ("number", "null", None),
        ("number", "1e-3", 1e-3),
        ("number", "1:30", "1:30"),
        ("whole", "0x1F", 31),
        ("whole", "0o17", 15),
        ("whole", "010", 10),
        ("whole", "1_000", 1000),
        ("whole", "3.0", 3.0),
        ("flag", "false", False),
        ("names", "[a, b]", ["a", "b"]),
        ("whole", "!!int x", "!!int x"),
        ("whole", "&a [*a]", "&a [*a]"),
        ("unknown", "3", 3),
    ],
)
def test_text_becomes_the_value_of_its_key(key, text, value):
    got = value_from_text(Kinds, [key], text)
    assert got == value and type(got) is type(value)


@pytest.mark.parametrize(
    "tree, part",
    [
        ({"whole": "12"}, "whole: a number is needed, not the text '12'"),
        ({"number": "1e-5"}, "number: a number is needed, not the text '1e-5'"),
        ({"whole": 3.0}, "whole: a whole number is needed, not 3.0"),
        ({"flag": 0}, "flag: true or false is needed, not 0"),
        ({"flag": 1.0}, "flag: true or false is needed, not 1.0"),
        ({"flag": "1"}, "flag: true or false is needed, not '1'"),
        ({"whole": True}, "whole: a number is needed, not true"),
    ],
)
def test_other_types_are_not_converted_to_numbers_and_switches(tree, part):
    with pytest.raises(UserError, match=re.escape(part)):
        validate(Kinds, tree, "file")
    assert validate(Kinds, {"number": 3}, "file").number == 3.0  # an integer is a valid float


def test_mappings_are_checked_inside():
    class Section(StrictModel):
        values: dict[str, float]

    for wrong in (True, "0.3"):
        with pytest.raises(UserError, match="values: a number is needed"):
            validate(Section, {"values": {"error": -0.5, "ok": wrong}}, "file")


def test_lists_are_checked_inside(tmp_path):
    for wrong in ("1.0", "'1'", "true"):
        with pytest.raises(UserError, match="sizes: a"):
            load(tmp_path, f"sizes: [1, {wrong}]")


def test_variables_are_filled_in_files_only(tmp_path, monkeypatch):
    monkeypatch.setenv("PLACE", "/out")
    monkeypatch.setenv("STEPS", "12")
    overrides = ["reward.a.weight=1", "reward.a.name=${PLACE}/b"]
    loaded = load(tmp_path, "title: ${PLACE}/a\ntrain: {steps: '${STEPS}'}", *overrides)
    assert loaded.title == "/out/a" and loaded.train.steps == 12
    assert loaded.reward["a"].name == "${PLACE}/b"
    monkeypatch.setenv("PLACE", "null")
    assert load(tmp_path, "title: ${PLACE}").title == "null"
    assert validate(Small, {"title": "${NOT_SET}"}, "settings").title == "${NOT_SET}"


# ---- hostile files: a reason, and at once --------------------------------------------------------

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)


@pytest.mark.parametrize(
    "text, part",
    [
        ("? [1]\n: 2", "a key must be a word, not a list or a mapping"),
        ("{[1]: 2}", "a key must be a word, not a list or a mapping"),
        ("train: {steps: " + "9" * 5000 + "}", "a number of 5000 digits"),
        ("train: {lr: " + "9" * 5000 + ".0}", "train.lr"),
        ("train: {steps: !!int x}", "tags (`!`) are not supported"),
        ("train: {lr: !!float x}", "tags (`!`) are not supported"),
        ("train: {flag: !!bool x}", "tags (`!`) are not supported"),
        ("title: !!timestamp x", "tags (`!`) are not supported"),
        ("title: !!python/object/apply:os.getcwd []", "tags (`!`) are not supported"),
        ("title: &a [*a]", "anchors and aliases"),
        ("title: *a", "anchors and aliases"),
        (BOMB, "anchors and aliases"),
        ("sizes: " + "[" * 3000 + "]" * 3000, "nested more than 50 levels deep"),
        ("sizes: " + "[" * 100_000, "nested more than 50 levels deep"),
        ("".join(f"{' ' * i}a:\n" for i in range(400)), "nested more than 50 levels deep"),
        ("sizes: [" + "1," * 90_000 + "]", "more than 2,000 values"),
        ("title: " + "x" * 300_000, "more than 200,000 characters"),
        ("<<: {title: x}", "<<: unknown key"),
        ("=: 1", "=: unknown key"),
        ("a\0b: 1", "not valid YAML"),
        ("{}\n---\n{}", "not valid YAML"),
    ],
)
def test_hostile_files_are_refused_with_a_reason(text, part, tmp_path):
    with pytest.raises(UserError) as raised:
        load(tmp_path, text)
    message = str(raised.value)
    assert part in message and "small.yml" in message and len(message) < 1000


def test_files_that_are_no_text(tmp_path):
    (tmp_path / "latin.yml").write_bytes("title: é".encode("latin-1"))
    (tmp_path / "utf16.yml").write_bytes("title: x".encode("utf-16"))
    for name in ("latin.yml", "utf16.yml"):
        with pytest.raises(UserError, match=f"{name} is not UTF-8 text"):
            read_yaml(tmp_path / name)
    with pytest.raises(UserError, match="cannot be read: embedded null byte"):
        read_yaml(f"{tmp_path}/a\0b.yml")
    with pytest.raises(UserError, match="cannot be read: File name too long"):
        read_yaml(tmp_path / ("x" * 300))


@pytest.mark.parametrize(
    "text",
    ["&a [*a]", "!!int x", "[" * 5000, "9" * 5000, "2024-13-45", "? [1]", "\udc80", "x" * 300_000],
)
def test_hostile_overrides_are_refused_by_the_type_of_their_key(text, tmp_path):
    with pytest.raises(UserError, match="train.steps: ") as raised:
        load(tmp_path, "{}", f"train.steps={text}")
    assert len(str(raised.value)) < 1000
    with pytest.raises(UserError):
        load(tmp_path, "{}", ".".join(["a"] * 1000) + "=1")


# ---- messages: short, and without secrets --------------------------------------------------------


def test_messages_are_short(tmp_path):
    with pytest.raises(UserError) as raised:
        load(tmp_path, f"train: {{lr: '{'x' * 100_000}', {'k' * 900}: 1}}")
    assert "train.lr: " in str(raised.value) and len(str(raised.value)) < 1500
    with pytest.raises(UserError) as raised:
        load(tmp_path, "\n".join(f"key{i}: 1" for i in range(50)))
    lines = str(raised.value).splitlines()
    assert "50 mistakes" in lines[0] and len(lines) == 22 and lines[-1] == "  ... and 30 more"


class Secretive(StrictModel):
    api_key: int = 0
    size: int = 0
    names: list[int] = []


def test_secrets_are_not_shown(tmp_path, monkeypatch):
    path = tmp_path / "a.yml"
    path.write_text("size: ${HF_TOKEN}\nnames: ['x${HF_TOKEN}']")
    monkeypatch.setenv("HF_TOKEN", "hf_tell'nobody" + "x" * 300)
    with pytest.raises(UserError) as raised:
        load_config(Secretive, path, ["api_key=sesame-open"])
    message = str(raised.value)
    assert "size: " in message and "api_key: " in message and message.count("***") == 3
    assert not [part for part in ("sesame", "hf_", "nobody", "xxx") if part in message]


class Chosen(StrictModel):
    how: str = "a"
    size: int = 3
    sizes: list[int] = [1]

    @model_validator(mode="after")
    def _read(self):
        ignored = (
            unread_keys(self, ["size", "sizes"], "since how is not b: set how=b")
            if self.how != "b"
            else []
        )
        refuse([*ignored, *([("", "how and size do not fit")] if self.size == 5 else [])])
        return self


class Outer(StrictModel):
    inner: Chosen = Chosen()
    number: int = 0


def test_several_mistakes_of_one_section():
    with pytest.raises(UserError) as raised:
        validate(Outer, {"inner": {"size": 5, "sizes": []}, "number": "x"}, "file")
    assert str(raised.value).splitlines() == [
        "file has 4 mistakes:",
        "  inner.size: 5 is not read, since how is not b: set how=b",
        "  inner.sizes: [] is not read, since how is not b: set how=b",
        "  inner: how and size do not fit",
        "  number: input should be a valid integer, unable to parse string as an integer (got 'x')",
    ]
    # repeating a default does no harm
    assert validate(Outer, {"inner": {"size": 3, "sizes": [1]}}, "file") == Outer()


@pytest.mark.parametrize(
    "path",
    ["~", "~/runs", "$OUTPUT_DIR/x", "${OUTPUT_DIR:-x}/rl", "${OUTPUT_DIR/rl", "runs/${HOME}/x"],
)
def test_a_path_that_nobody_expands_is_refused(path):
    class Saved(StrictModel):
        save_dir: FilePath

    with pytest.raises(UserError, match="save_dir: `.*` is (no variable|not the home folder) here"):
        config_from(Saved, [f"save_dir={path}"])


@pytest.mark.parametrize("path", ["a~b", "runs/~", "5$", "$(x)", "a $ b"])
def test_a_path_with_such_characters_is_a_path(path):
    class Saved(StrictModel):
        save_dir: FilePath

    assert config_from(Saved, [f"save_dir={path}"]).save_dir == path
