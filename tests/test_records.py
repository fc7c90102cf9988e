"""The one reader of rows and records: what each format takes, and how every refusal is worded.

`record_formats.yml` has a whole row of each class and the types that its keys may have. The test
removes each key, gives it values of every other type of JSON and values out of its range. A refusal
must have file, row and key.
"""

import copy
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json, write_jsonl
from fgrlhf.base.records import (
    DataError,
    Problem,
    complaints,
    joined,
    key_problems,
    one_of,
    read_record,
    shown,
    text_problem,
)
from fgrlhf.cli import linear_scorer
from fgrlhf.data import formats
from fgrlhf.data.votes import combined
from fgrlhf.metrics.rows import read_rows, read_summary
from fgrlhf.pipeline.stages import PipelineState
from fgrlhf.report.records import Rollout, read_evaluation, read_records
from fgrlhf.reward_models.spec import RewardModelSpec
from fgrlhf.scorers.linear import LinearScorerSpec
from reward_modeling.data import read_segment_rows
from tasks.qa_feedback.feedback import load_examples, read_feedback, read_samples
from tasks.qa_feedback.reward_modeling.pairs import read_pairs
from tasks.reasoning.data.gsm8k import read_problems

VALUES = {
    "null": [None],
    "flag": [True],
    "whole": [3],
    "number": [1.5],
    "text": ["x y"],
    "blank": [" "],
    "list": [[], [[]], [None]],
    "object": [{}, {"a": 1}],
}
FORMATS = yaml.safe_load((Path(__file__).parent / "record_formats.yml").read_text())


def record(kind: Any) -> Callable[[Path], Any]:
    return lambda path: read_record(path, kind, "used", "Restore it")


# name -> the file, and what reads it
READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "prompts": ("rows.json", formats.PROMPTS.read),
    "conversations": ("rows.json", formats.DEMONSTRATIONS.read),
    "comparisons": ("rows.json", formats.COMPARISONS.read),
    "ranked": ("rows.json", formats.COMPARISONS.read),
    "pairs": ("rows.json", formats.COMPARISONS.read),
    "spans": ("rows.json", formats.SPANS.read),
    "steps": ("rows.json", formats.STEPS.read),
    "judgements": ("rows.json", formats.JUDGEMENTS.read),
    "segments": ("rows.jsonl", lambda path: read_segment_rows(path, "EO", "Ignore", "sentence")),
    "feedback": ("rows.json", read_feedback),
    "compared answers": ("rows.json", read_pairs),
    "examples": ("rows.json", load_examples),
    "samples": ("rows.jsonl", read_samples),
    "labelled texts": ("rows.json", linear_scorer.read_labelled),
    "answered questions": ("rows.json", read_problems),
    "evaluation": ("rows.jsonl", read_evaluation),
    "rollouts": ("rows.jsonl", lambda path: read_records(path, Rollout)),
    # the file is one record
    "segment model": ("reward_model.json", lambda path: RewardModelSpec.read(path.parent)),
    "sequence model": ("reward_model.json", lambda path: RewardModelSpec.read(path.parent)),
    "linear scorer": ("linear_scorer.json", record(LinearScorerSpec)),
    "pipeline": ("pipeline.json", record(PipelineState)),
    "summary": ("summary.json", read_summary),
}
# before the key of the second row in a message
PLACES = {"rows.json": "row 1, ", "rows.jsonl": "line 2, "}


def message_about(name: str, folder: Path, row: Any) -> str | None:
    """What is said about a file with this row after a whole one; None if it is read."""
    file, read = READERS[name]
    first = {**FORMATS[name]["row"], "id": "first"} if "id" in row else FORMATS[name]["row"]
    value = [first, row] if file in PLACES else row
    (write_jsonl if file.endswith("l") else write_json)(folder / file, value)
    try:
        read(folder / file)
    except UserError as error:
        return str(error)
    return None


def places(value: Any, path: tuple = ()) -> list[tuple]:
    """The path of every value inside `value`."""
    found = [path] if path else []
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    for key, inner in items:
        found += places(inner, (*path, key))
    return found


REMOVED = object()


def put(row: Any, path: tuple, value: Any) -> Any:
    """A copy of `row` with another value at a path, or without it."""
    row = copy.deepcopy(row)
    owner = row
    for part in path[:-1]:
        owner = owner[part]
    if value is REMOVED:
        del owner[path[-1]]
    else:
        owner[path[-1]] = value
    return row


def kind_of(value: Any) -> str:
    return next(name for name, values in VALUES.items() if type(values[0]) is type(value))


def path_of(key: str) -> tuple:
    parts = key.replace("]", "").replace("[", ".").split(".")
    return tuple(int(part) if part.isdigit() else part for part in parts)


def value_at(row: Any, path: tuple) -> Any:
    for part in path:
        row = row[part]
    return row


def changes(name: str) -> Iterator[tuple[tuple, Any]]:
    """Places in a format's row, each with a value that must be refused there."""
    row = FORMATS[name]["row"]
    may_be: dict[str, list[str]] = {}
    for kinds, keys in FORMATS[name].get("may_be", {}).items():
        may_be |= dict.fromkeys(keys, kinds.split())
    for path in places(row):
        key = joined(*path)
        own = kind_of(value_at(row, path))
        allowed = may_be.get(re.sub(r"\[\d+\]", "[]", key), [own])
        if "absent" not in allowed and isinstance(path[-1], str):
            yield path, REMOVED
        for kind, values in VALUES.items():
            if kind not in allowed and (kind != own or kind in ("flag", "whole", "number")):
                yield from ((path, value) for value in values)
    for key, values in FORMATS[name].get("outside", {}).items():
        for value in values:
            yield path_of(key), 10**400 if value == "TOO LARGE" else value


@pytest.mark.parametrize("name", READERS)
def test_every_key_is_checked(tmp_path, name):
    """A refusal has the file, the row, the key or one around it, and the way out at the end."""
    file, _ = READERS[name]
    row = FORMATS[name]["row"]
    assert message_about(name, tmp_path, row) is None
    for path, value in changes(name):
        key = joined(*path)
        message = message_about(name, tmp_path, put(row, path, value))
        assert message is not None, f"{key} was read"
        head, *found, way_out = message.splitlines()
        assert file in head and "cannot be" in head and way_out and len(message) < 1500
        lines = [re.fullmatch(rf"  {PLACES.get(file, '')}`([^`]*)`: .+", line) for line in found]
        keys = [match[1] for match in lines if match]
        around = [joined(*path[:end]) for end in range(1, len(path) + 1)]
        is_named = any(name in around or name.startswith(key) for name in keys)
        # a row without any of several keys: the first is named, and the others in the reason
        is_alternative = any(": missing, and so" in line and f"`{key}`" in line for line in found)
        other = FORMATS[name].get("named", {}).get(key)
        assert is_named or is_alternative or other in keys, (key, message)


ODD_TEXTS = [" ", "\u2028", "\0", "</s> </s>", "{" * 20_000, "9" * 5_000, "word " * 20_000]
ODD_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | st.sampled_from(ODD_TEXTS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=40, derandomize=True)
@given(data=st.data())
def test_any_value_is_read_or_refused_in_a_few_lines(tmp_path_factory, name, data):
    row = FORMATS[name]["row"]
    path = data.draw(st.sampled_from(places(row)))
    value = data.draw(ODD_VALUES)
    message = message_about(name, tmp_path_factory.mktemp("a"), put(row, path, value))
    assert message is None or len(message) < 4000


def test_every_format_is_checked():
    assert READERS.keys() == FORMATS.keys()


# ---- words ---------------------------------------------------------------------------------------


def test_the_message_of_rows(tmp_path):
    """Twenty mistakes of a file at most; one that many rows have is one line; then the way out."""
    rows = [{"title": "a"}] * 7 + [{"prompt": " "}, 3, {"prompt": "ok"}]
    write_jsonl(tmp_path / "my rows.jsonl", rows)
    with pytest.raises(DataError) as error:
        formats.PROMPTS.read(tmp_path / "my rows.jsonl")
    path = f"{tmp_path}/my rows.jsonl"
    assert str(error.value) == (
        f"{path} cannot be read as prompts (rows count from 0):\n"
        "  rows 0, 1, 2, 3 and 3 more, `prompt`: missing, and so is `text`; the row has title\n"
        "  row 7, `prompt`: must be a text that is not empty\n"
        "  row 8: must be an object, it is a number\n"
        "If the rows have other keys, add columns.prompt=KEY or columns.text=KEY. A command without"
        " `columns` needs a file with the right keys:\n"
        f"  fgrlhf data convert '{path}' FILE format=prompts columns.prompt=KEY"
    )
    assert len(error.value.problems) == 9
    with pytest.raises(DataError, match=r"row 19, `\[19\]`.*\n  \.\.\. and 5 more\n"):
        raise DataError([Problem(i, f"[{i}]", f"wrong {i}", "f") for i in range(25)])


def test_the_message_of_several_files(tmp_path):
    problems = [Problem(2, "a", "wrong", "x.json"), Problem(3, "", "bad", "y.jsonl", "line")]
    assert str(DataError(problems)) == (
        "x.json cannot be read (rows count from 0):\n  row 2, `a`: wrong\n"
        "y.jsonl cannot be read:\n  line 3: bad\nCorrect or remove these rows."
    )


def test_the_message_of_a_record(tmp_path):
    write_json(
        tmp_path / "reward_model.json", {**FORMATS["segment model"]["row"], "max_length": 0, "x": 1}
    )
    with pytest.raises(UserError) as error:
        RewardModelSpec.read(tmp_path)
    assert str(error.value) == (
        f"{tmp_path}/reward_model.json cannot be used as a reward model:\n"
        "  `max_length`: must be greater than or equal to 1, it is 0\n"
        "  `x`: unknown key\n"
        "Train the model again, or restore the file"
    )
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(UserError, match="a.json is not valid JSON: .*. Restore it$"):
        read_record(tmp_path / "a.json", PipelineState, "used", "Restore it")


def test_the_message_of_an_evaluation(tmp_path):
    rows = [{"id": "a", "sample": 1, "reward": reward} for reward in (1, "x")]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    with pytest.raises(UserError) as error:
        read_rows(tmp_path / "rows.jsonl")
    assert str(error.value) == (
        f"{tmp_path}/rows.jsonl cannot be read as the results of an evaluation:\n"
        "  line 2, `id`: the same id and sample as line 1\n"
        "  line 2, `reward`: must be a number, it is a text; line 1 has one\n"
        f"The evaluation is damaged: remove {tmp_path} and run the command that evaluated the"
        " policy again"
    )


@pytest.mark.parametrize(
    "kind, value, reason",
    [
        (str, 3, "must be a text, it is a number"),
        (int, True, "must be a whole number, it is true or false"),
        (int, 2.0, "must be a whole number, it is 2.0"),
        (float, 10**400, "must be a finite number"),
        (list[int], {}, "must be a list, it is an object"),
        (one_of(["a", "b"]), "c", "'c' is none of a, b"),
        (LinearScorerSpec, None, "must be an object, it is null"),
    ],
)
def test_reasons(kind, value, reason):
    assert complaints(kind, value, "k") == [("k", reason)]


def test_the_keys_of_an_object():
    kinds = {"a": bool, "b": list[int], "c": str}
    assert key_problems({"a": 1, "b": [1, None]}, "x.", kinds) == [
        ("x.a", "must be true or false, it is a number"),
        ("x.b[1]", "must be a whole number, it is null"),
        ("x.c", "missing"),
    ]


def test_the_place_of_half_a_character_is_named():
    reason = "character 2 is half of a surrogate pair (\\ud83d), which is not a character"
    assert text_problem("a \ud83d") == reason
    assert text_problem("") == "must be a text that is not empty"
    assert text_problem("", may_be_blank=True) is None and text_problem("\U0001f642 é") is None


def test_shown_never_raises():
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    assert shown(10**5000) == "a number too large to show"
    assert shown(deep) == "a list too large to show"
    assert shown("\ud83d") == "'\\ud83d'" and shown("a\nb") == "'a\\nb'"
    assert len(shown("x" * 10**6)) <= 80


def test_a_message_stays_short(tmp_path):
    """Whatever a file holds: thousands of keys, or texts of many characters."""
    write_json(tmp_path / "reward_model.json", {f"key{i}": "x" * 10**5 for i in range(3000)})
    with pytest.raises(UserError, match="and 2985 more") as error:
        RewardModelSpec.read(tmp_path)
    write_jsonl(tmp_path / "rows.jsonl", [{"text": ["</s>"], "feedback_tags": ["x" * 10**5]}])
    with pytest.raises(UserError, match=r"x+ \.\.\. x+ not among") as tags:
        read_segment_rows(tmp_path / "rows.jsonl", ("E", "y" * 10**5), "Ignore")
    with pytest.raises(UserError, match="annotators: no judgement is by") as votes:
        combined([], "9" * 10**5)
    assert len(str(error.value)) < 1500
    assert max(len(str(tags.value)), len(str(votes.value))) < 500
