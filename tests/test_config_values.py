"""Values that no run can have: every bound of every config is tested, whatever its keys."""

import copy
import random
import typing
from collections.abc import Iterator
from typing import Annotated, Any

import annotated_types
import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from faults.configs import ODD
from fgrlhf.base.errors import UserError
from fgrlhf.configs.strict import load_config, validate
from fgrlhf.configs.yaml_files import dump_yaml
from fgrlhf.load import load_task
from fgrlhf.runs.dpo_config import DPOConfig
from fgrlhf.task_config import rl_config
from reward_modeling.run_fg_rm import SegmentRMConfig
from reward_modeling.run_pref_rm import PreferenceRMConfig
from sft.config import SFTConfig

ROWS = {"train_file": "t", "dev_file": "d"}
RL = {
    "model": {"value_model": {"ckpt": "x"}},
    "reward": {"relevance_model": {"ckpt": "r", "positive_reward": 1, "negative_reward": 0}},
}
CONFIGS = {
    "rl": (rl_config(load_task("qa_feedback")), RL),
    "dpo": (DPOConfig, {"data": {"feedback_file": "f"}}),
    "sft": (SFTConfig, {"data": ROWS}),
    "segment": (
        SegmentRMConfig,
        {"data": {**ROWS, "level": "sentence", "with_context": False}, "labels": {"error": "E"}},
    ),
    "pairs": (PreferenceRMConfig, {"data": ROWS}),
}
LARGEST = 1e308  # what each number with an upper bound may not be
TEXTS = {"file_path": ["", " ", "a\0b"], "_name": ["", "a/b", "../x", "a\nb", "a\\b"]}


def wrong_values(annotation: Any, notes: tuple) -> list[Any]:
    """Values just outside the bounds of a type, and texts that its validator refuses."""
    values: list[Any] = []
    for note in notes:
        for bound in note.metadata if isinstance(note, FieldInfo) else [note]:
            if isinstance(bound, annotated_types.Ge):
                values.append(bound.ge - 1)
            elif isinstance(bound, annotated_types.Gt):
                values.append(bound.gt)
            elif isinstance(bound, annotated_types.Lt):
                values.append(bound.lt)
            elif isinstance(bound, annotated_types.Le):
                values += [bound.le * 2, int(LARGEST)]
            values += TEXTS.get(getattr(getattr(bound, "func", None), "__name__", ""), [])
    if typing.get_origin(annotation) is Annotated:
        inner, *more = typing.get_args(annotation)
        return values + wrong_values(inner, tuple(more))
    for part in typing.get_args(annotation):
        values += wrong_values(part, ())
    return values


def wrong_settings(model: type[BaseModel], path: tuple = ()) -> Iterator[tuple[tuple, Any]]:
    """The path of each key outside of unions, with each of its wrong values."""
    for name, field in model.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from wrong_settings(annotation, (*path, name))
        else:
            for value in wrong_values(annotation, tuple(field.metadata)):
                yield (*path, name), value


def mistakes(model: type[BaseModel], tree: dict) -> list[str]:
    try:
        validate(model, tree, "file")
    except UserError as error:
        return [line.strip() for line in str(error).splitlines()[1:]]
    return []


def keys(model: type[BaseModel], path: tuple = ()) -> Iterator[tuple]:
    """The path of each key outside of unions."""
    for name, field in model.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from keys(annotation, (*path, name))
        else:
            yield (*path, name)


@pytest.mark.parametrize("stage", CONFIGS)
def test_any_override_is_accepted_or_refused_by_its_key(stage, tmp_path):
    """Odd values, and a misspelt key with each of them."""
    model, sections = CONFIGS[stage]
    (tmp_path / "c.yml").write_text(dump_yaml(sections))
    base = ["model.ckpt=x", "logging.save_dir=out"]
    rng = random.Random(0)
    paths = list(keys(model))
    for _ in range(100):
        path, value = rng.choice(paths), rng.choice(ODD)
        for name in (path[-1], f"{path[-1]}x"):
            override = f"{'.'.join((*path[:-1], name))}={value}"
            try:
                load_config(model, tmp_path / "c.yml", [*base, override])
            except UserError as error:
                text = str(error)
                assert name in text and len(text) < 4000 and text.count("\n") < 25, override[:80]
            else:
                assert name == path[-1], override[:80]


@pytest.mark.parametrize("stage", CONFIGS)
def test_a_value_outside_its_bounds_is_named_and_no_other_mistake(stage):
    model, sections = CONFIGS[stage]
    base = copy.deepcopy(sections) | {"logging": {"save_dir": "out"}}
    base.setdefault("model", {})["ckpt"] = "x"
    assert mistakes(model, base) == []
    tested = set()
    for path, value in wrong_settings(model):
        tree = copy.deepcopy(base)
        node = tree
        for name in path[:-1]:
            node = node.setdefault(name, {})
        node[path[-1]] = value
        lines = mistakes(model, tree)
        assert len(lines) == 1 and lines[0].startswith(f"{'.'.join(path)}: "), (path, value, lines)
        tested.add(path)
    expected = {("train", "lr"), ("train", "seed"), ("model", "ckpt"), ("logging", "run_name")}
    assert expected <= tested and len(tested) > 20
