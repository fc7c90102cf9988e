"""scripts/structure.py: small trees whose lines, imports and keys are counted by hand."""

from typing import Literal

import pytest
from pydantic import BaseModel

from fgrlhf.load import load_task
from fgrlhf.task_config import rl_config
from scripts import structure

TREE = {
    "a/__init__.py": "",
    "a/top.py": "from a.middle import f\nfrom . import near\nimport a.deep.low\nimport os\n",
    "a/near.py": "def f():\n    from a.lazy import g\n",
    "a/lazy.py": "",
    "a/middle.py": "try:\n    import x\nexcept ImportError:\n    from a.deep import low\n",
    "a/deep/__init__.py": "from . import low\n",
    "a/deep/low.py": (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from a.middle import M\n"
        "else:\n    import a.near\n"
    ),
    "a/aside.py": "from a import deep, top\nfrom a import VERSION\n",
}


def test_the_graph_has_imports_at_module_level():
    graph = structure.import_graph(TREE)
    assert graph == {
        "a": set(),
        "a.top": {"a.middle", "a.near", "a.deep.low"},
        "a.near": set(),  # an import inside a function comes later
        "a.lazy": set(),
        "a.middle": {"a.deep.low"},
        "a.deep": {"a.deep.low"},
        "a.deep.low": {"a.near"},
        "a.aside": {"a", "a.deep", "a.top"},
    }
    assert structure.reached(graph, ["a.middle"]) == {"a.middle", "a.deep.low", "a.near"}
    chain = structure.longest_chain(graph, ["a.aside", "a.middle"])
    assert chain == ["a.aside", "a.top", "a.middle", "a.deep.low", "a.near"]
    assert structure.circles(graph) == []


def test_imports_for_typing_close_a_circle():
    graph = structure.import_graph(TREE, typing_too=True)
    assert structure.circles(graph) == [["a.deep.low", "a.middle"]]
    with pytest.raises(ValueError, match="imports itself"):
        structure.longest_chain(graph, ["a.top"])


class Shape(BaseModel):
    weight: float = 1.0


class Short(Shape):
    kind: Literal["short"] = "short"
    words: int = 1


class Long(Shape):
    kind: Literal["long"] = "long"


class Inner(BaseModel):
    shape: Short | Long


class Config(BaseModel):
    seed: int = 0
    shapes: dict[str, Short | Long]
    inner: Inner | None = None
    more: list[Short] = []


def test_a_key_counts_once_and_a_section_is_none():
    assert structure.config_classes(Config) == {Config, Inner, Short, Long}
    assert structure.n_keys(Config) == (6, 5)  # seed, both kinds, words, weight twice


def test_the_keys_of_a_run_are_few():
    """The goal is a house that fits in one head: a new key takes the place of another one.

    Before you raise the number, look for a key that the new one can be a value of.
    """
    keys, _ = structure.n_keys(rl_config(load_task("qa_feedback")))
    assert keys <= 300
