"""CIDEr-D, MSTTR and the metric PARENT by hand; the packages that agree are in their docstrings."""

import math

import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_jsonl
from fgrlhf.metrics.cider import Frequencies, cider
from fgrlhf.metrics.config import MetricConfig, models_of
from fgrlhf.metrics.parent import parent
from fgrlhf.metrics.registry import build_metric
from fgrlhf.text_types import Prompt
from fgrlhf.words import msttr

CORPUS = [["red cat"], ["red dog", "dog"], ["tree"]]


def test_cider_by_hand():
    """Of three prompts, `red` is in two and each other n-gram in one."""
    of = Frequencies.of(CORPUS)
    assert of.weight(("red",)) == pytest.approx(math.log(3 / 2))
    assert of.weight(("dog",)) == of.weight(("unknown",)) == pytest.approx(math.log(3))
    # orders 3 and 4 have no n-grams: the same text has 1 for n = 1 and 2, and 10 (1 + 1) / 4
    assert cider("Red cat!", ["red cat"], of) == pytest.approx(5)
    red, rare = math.log(3 / 2), math.log(3)
    unigrams = red**2 / (red**2 + rare**2)
    assert cider("red tree", ["red cat"], of) == pytest.approx(10 * unigrams / 4)
    # three words instead of two: `red` is clipped to one, and a pair of words more
    ours = math.sqrt((2 * red) ** 2 + rare**2)
    first = (red**2 + rare**2) / (ours * math.hypot(red, rare))
    second = rare**2 / (math.sqrt(rare**2 + rare**2) * rare)
    expected = 10 * (first + second) / 4 * math.exp(-1 / (2 * 6**2))
    assert cider("red red cat", ["red cat"], of) == pytest.approx(expected)
    mean = (cider("red cat", ["red cat"], of) + cider("red cat", ["tree"], of)) / 2
    assert cider("red cat", ["red cat", "tree"], of) == pytest.approx(mean)
    assert cider("", ["red cat"], of) == 0
    with pytest.raises(ValueError, match="at least one reference"):
        cider("red", [], of)


def test_the_frequencies_are_those_of_a_file(tmp_path):
    file = str(tmp_path / "test.jsonl")
    write_jsonl(file, [{"prompt": f"q{n}", "references": texts} for n, texts in enumerate(CORPUS)])
    config = MetricConfig.model_validate({"name": "cider", "references": file})
    assert models_of([config]) == [file]
    prompts = [Prompt("a", "q", ("red cat",)), Prompt("b", "q")]
    assert build_metric(config).values(prompts, ["red cat"] * 2) == [pytest.approx(5), None]
    write_jsonl(file, [{"prompt": "q", "references": ["one"]}, {"prompt": "r"}])
    with pytest.raises(UserError, match="two prompts with references or more: 1"):
        build_metric(config)
    with pytest.raises(ValueError, match="`cider` needs it"):
        MetricConfig.model_validate("cider")


def test_msttr_by_hand():
    text = "a B b c a a a a d e f"
    assert msttr(text, 4) == pytest.approx((3 / 4 + 1 / 4) / 2)  # `d e f` is no whole segment
    assert msttr("a b c d", 4) == 1 and msttr("a b c", 4) is None
    metric = build_metric(MetricConfig.model_validate({"name": "msttr", "n": 4}))
    assert metric.values([Prompt("", "")] * 2, [text, "a b"]) == [pytest.approx(0.5), None]
    default = build_metric(MetricConfig(name="msttr"))
    assert default.values([Prompt("", "")] * 2, ["a " * 50, "a " * 49]) == [1 / 50, None]


def test_parent_reads_the_table_of_a_row():
    meta = {"table": "Red cat tree", "records": ["red cat", "Tree"]}
    prompts = [
        Prompt("a", "q", ("A red cat sat",), meta),
        Prompt("b", "q", (), meta),
        Prompt("c", "q", ("A red cat sat",), {"table": "Red"}),
    ]
    value = parent("the red cat sat", ["A red cat sat"], meta["table"], meta["records"])
    metric = build_metric(MetricConfig(name="parent"))
    assert metric.values(prompts, ["the red cat sat"] * 3) == [value, None, None]
