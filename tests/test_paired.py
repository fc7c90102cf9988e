"""A metric of two policies on the same prompts."""

import pytest

from fgrlhf.metrics.config import MetricConfig
from fgrlhf.metrics.paired import MOST_OWN, by_prompt, own_metrics, paired_difference, paired_gain
from fgrlhf.metrics.pooled import corpus_ter
from fgrlhf.metrics.registry import build_metric
from fgrlhf.paired_stats import paired_interval, paired_pooled_interval, paired_ratio_interval
from fgrlhf.text_types import Prompt


def test_responses_are_averaged_by_prompt():
    rows = [
        {"id": "a", "m": 1.0},
        {"id": "b", "m": 5.0},
        {"id": "a", "m": 2.0},
        {"id": "a", "m": None},  # not applicable
        {"id": "c", "m": None},
        {"id": "d"},
    ]
    assert by_prompt(rows, "m") == {"a": 1.5, "b": 5.0}
    assert by_prompt(rows, "other") == {}


def test_differences_are_of_shared_prompts():
    a = {"x": 1.0, "y": 2.0, "only a": 9.0}
    b = {"y": 0.5, "x": 0.0, "only b": 9.0}
    difference = paired_difference(a, b)
    assert difference == paired_interval([1.0, 2.0], [0.0, 0.5])
    assert difference is not None and difference.mean == pytest.approx(1.25)
    assert paired_difference({"x": 1.0}, {"y": 1.0}) is None


def test_the_gain_in_a_ratio_is_that_of_all_segments():
    def rows(counts):
        return [
            {"id": prompt, "r1/error_free": good, "r1/segments": total}
            for prompt, good, total in counts
        ]

    # two responses to x; z was answered by one policy only
    a = rows([("x", 1, 2), ("x", 3, 3), ("y", 0, 5), ("z", 9, 9)])
    b = rows([("y", 1, 2), ("x", 0, 2)])
    gain = paired_gain(a, b, "r1/ratio")
    assert gain is not None and gain.mean == pytest.approx(4 / 10 - 1 / 4)
    assert gain == paired_ratio_interval(([4, 0], [5, 5]), ([0, 1], [2, 2]))
    assert paired_gain(a, b, "r2/ratio") is None
    none = rows([("x", 0, 0), ("y", 0, 0)])  # all of its responses are empty
    assert paired_gain(a, none, "r1/ratio") is None and paired_gain(none, b, "r1/ratio") is None
    # a task's own metric may have any name
    for name in ("m", "m/ratio", "m/segments"):
        plain = [{"id": "x", name: 1.0}], [{"id": "x", name: 3.0}]
        assert paired_gain(*plain, name) == paired_difference({"x": 1.0}, {"x": 3.0})


def test_the_gain_of_a_corpus_is_that_of_summed_counts():
    def rows(counts):
        return [{"id": prompt, "ter/ter_counts": pair} for prompt, *pair in counts]

    # two responses to x; z was answered by one policy only, and y has no references in the last row
    a = [*rows([("x", 1, 4), ("x", 3, 4), ("y", 0, 2), ("z", 9, 9)]), {"id": "y", "ter": None}]
    b = rows([("y", 1, 2), ("x", 2, 4)])
    gain = paired_gain(a, b, "ter/corpus")
    assert gain is not None and gain.mean == pytest.approx(100 * (4 / 10 - 3 / 6))
    assert gain == paired_pooled_interval([[4, 8], [0, 2]], [[2, 4], [1, 2]], corpus_ter)
    assert paired_gain(a, b, "bleu/corpus") is None and paired_gain(b, a[-1:], "ter/corpus") is None
    # a column of that name is a column
    columns = [{"id": "x", "mine/corpus": 1.0}], [{"id": "x", "mine/corpus": 3.0}]
    assert paired_gain(*columns, "mine/corpus") == paired_difference({"x": 1.0}, {"x": 3.0})


def test_the_gain_of_all_responses_to_a_prompt_together():
    def rows(*responses):
        return [{"id": "x", "response": text, "distinct1": 1.0} for text in responses]

    gain = paired_gain(rows("a b", "c d"), rows("a b", "a b"), "distinct1/prompt")
    assert gain == paired_difference({"x": 1.0}, {"x": 0.5})
    # a single response to every prompt: the summary has no such value either
    assert paired_gain(rows("a b"), rows("a b"), "distinct1/prompt") is None
    columns = [{"id": "x", "reward/prompt": 1.0}], [{"id": "x", "reward/prompt": 3.0}]
    assert paired_gain(*columns, "reward/prompt") == paired_difference({"x": 1.0}, {"x": 3.0})


def test_what_depends_on_the_number_of_samples_needs_equal_numbers():
    def rows(*scores):
        return [
            {
                "id": "x",
                "response": "a b",
                "toxic": s,
                "toxic/max": s,
                "toxic/any": s,
                "distinct1": s,
            }
            for s in scores
        ]

    for metric in ("toxic/max", "toxic/any", "distinct1/prompt"):
        assert paired_gain(rows(0.5, 0.1), rows(0.25), metric) is None
        assert paired_gain(rows(0.5, 0.1), rows(0.25, 0.0), metric) is not None
    assert paired_gain(rows(0.5, 0.1), rows(0.25, 0.0), "toxic/max") == paired_difference(
        {"x": 0.5}, {"x": 0.25}
    )
    assert paired_gain(rows(0.5, 0.1), rows(0.25), "toxic") is not None


def test_own_metrics_are_those_that_only_a_task_can_have_written():
    library = {"kl": 0.1, "length": 3, "rougeLsum": 40.0, "bleu": 0.2, "bleu/bleu_counts": [1, 2]}
    rewards = {"reward": 1.0, "reward/style": 1.0, "style/segments": 2, "style/error_free": 1}
    row = {"id": 7, "sample": 0, "prompt": "p", "segments": {}, **library, **rewards}
    first = row | {"solved": None, "moves": 3, "oracle/gold": 0.5, "is_short": True}
    assert own_metrics([first, row | {"solved": 1}]) == ["moves", "oracle/gold", "solved"]
    many = {f"m{i}": 1 for i in range(MOST_OWN)}
    assert own_metrics([many]) == list(many)
    assert own_metrics([many | {"more": 1}]) == []


def test_scores_of_other_tokenizers_are_not_compared(capsys):
    def rows(tokenizer):
        config = MetricConfig(name="bleu", tokenizer=tokenizer)
        columns = build_metric(config).columns([Prompt("a", "", ("the cat sees",))], ["the cat"])
        return [{"id": "a", **columns[0]}]

    automatic, same, other = rows("auto"), rows("13a"), rows("char")
    assert automatic[0]["bleu/tokenizer"] == "13a"
    assert "finds words with the tokenizer 13a" in capsys.readouterr().err
    for metric in ("bleu", "bleu/corpus"):
        assert paired_gain(automatic, same, metric).mean == 0
        assert paired_gain(automatic, other, metric) is None
        message = capsys.readouterr().err
        assert f"{metric.partition('/')[0]} is not compared" in message
        assert "13a in one evaluation and char in the other" in message
    older = [{name: value for name, value in same[0].items() if name != "bleu/tokenizer"}]
    assert paired_gain(older, other, "bleu") is not None  # not known
