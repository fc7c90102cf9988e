"""Prompts that share a passage, a dialog or a talk: every figure has clusters as its units."""

import numpy as np
import pytest
import tiny

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_jsonl
from fgrlhf.configs.sections import Sampling
from fgrlhf.data.formats import PROMPTS
from fgrlhf.evaluation import PolicyResponder, evaluate_rows
from fgrlhf.metrics.clusters import clusters_by_prompt, units_note, with_clusters
from fgrlhf.metrics.paired import paired_gain
from fgrlhf.metrics.summary import summarize
from fgrlhf.pipeline.comparison import differences
from fgrlhf.pipeline.scores import paired_scores, shared_clusters
from fgrlhf.pipeline.summary import data_of
from fgrlhf.seed_stats import seed_interval, seed_p_value
from fgrlhf.text_types import Prompt
from reward_modeling.judged import prompts_of

COLUMNS = ("score", "right", "ppl/nll_and_tokens", "fact/error_free")


def evaluation(seed: int, passages: int, alike: int, named: bool = True) -> list[dict]:
    """Rows of prompts of which `alike` share a passage and have the same values."""
    rng = np.random.default_rng(seed)
    rows = []
    for passage in range(passages):
        score, right, segments = rng.normal(), rng.random() < 0.4, int(rng.integers(3, 6))
        for number in range(alike):
            row = {
                "id": f"{passage}-{number}",
                "sample": 0,
                "response": "a b",
                "score": float(score),
                "right": int(right),
                "ppl/nll_and_tokens": [float(abs(score)) * 4, 4],
                "fact/error_free": segments - int(right),
                "fact/segments": segments,
            }
            rows.append({**row, "cluster": f"passage {passage}"} if named else row)
    return rows


def widths(rows: list[dict]) -> dict[str, float]:
    return {name: got.high - got.low for name, got in summarize(rows).items()}


def test_prompts_of_one_passage_are_one_unit():
    """Four prompts of each passage with the same values are as if there was one."""
    one, four = evaluation(0, 40, 1), evaluation(0, 40, 4)
    assert widths(four) == pytest.approx(widths(one))
    assert set(widths(one)) == {"score", "right", "ppl/corpus", "fact/ratio"}
    for name, width in widths(evaluation(0, 40, 4, named=False)).items():
        assert width < 0.7 * widths(one)[name], name
    # a number as a name is no metric
    assert "cluster" not in summarize([{**row, "cluster": 7} for row in one])


def test_values_of_some_prompts_keep_their_clusters():
    rows = evaluation(0, 40, 4)
    for row in rows[::3]:
        row["score"] = None
    kept = [row for row in rows if row["score"] is not None]
    assert summarize(rows)["score"] == summarize(kept)["score"]


@pytest.mark.parametrize("metric", ["score", "fact/ratio", "ppl/corpus"])
def test_differences_are_over_passages(metric):
    one, four = ([evaluation(seed, 30, alike) for seed in (1, 2)] for alike in (1, 4))
    expected, got = paired_gain(*one, metric), paired_gain(*four, metric)
    assert expected is not None and got is not None
    assert (got.low, got.high) == pytest.approx((expected.low, expected.high))
    apart = paired_gain(*[evaluation(seed, 30, 4, named=False) for seed in (1, 2)], metric)
    assert apart is not None and apart.high - apart.low < 0.7 * (got.high - got.low)


def test_comparisons_of_seeds_are_over_passages():
    rows = {"a": [evaluation(0, 30, 4)] * 2, "b": [evaluation(seed, 30, 4) for seed in (1, 2)]}
    scores, clusters = paired_scores(rows, "score"), shared_clusters(rows, "score")
    assert clusters is not None and len(set(clusters)) == 30 and len(clusters) == 120
    one = {"a": [evaluation(0, 30, 1)] * 2, "b": [evaluation(seed, 30, 1) for seed in (1, 2)]}
    expected = differences(paired_scores(one, "score"))["b_vs_a"]
    got = differences(scores, clusters)["b_vs_a"]
    assert (got.low, got.high, got.p) == pytest.approx((expected.low, expected.high, expected.p))


def test_the_exact_p_value_counts_passages():
    """Five of twenty passages are better, each with four prompts: 1/16, not 2^-19."""
    values = np.repeat((np.arange(20) < 5).astype(float), 4)
    names = np.repeat(np.arange(20), 4).tolist()
    assert seed_p_value([values], names) == pytest.approx(1 / 16)
    assert not seed_interval([values], names).excludes_zero
    assert seed_p_value([values]) < 0.001


def test_the_key_of_the_rows():
    prompts = [Prompt(str(i), "x", meta={"talk": i // 2, "cluster": "c"}) for i in range(4)]
    assert [p.meta["cluster"] for p in with_clusters(prompts, "talk", "test.json")] == [*"0011"]
    assert [p.meta["cluster"] for p in with_clusters(prompts, None, "test.json")] == ["c"] * 4
    plain = [Prompt("1", "x")]
    assert with_clusters(plain, None, "test.json") == plain
    with pytest.raises(UserError, match="test.json, row 1: `talk` must be the name .* no such key"):
        with_clusters(plain, "talk", "test.json")
    with pytest.raises(UserError, match="cluster=KEY"):
        with_clusters([Prompt("1", "x", meta={"cluster": [1]})], None, "test.json")


def test_a_column_of_a_file_names_the_cluster(tmp_path):
    rows = [{"prompt": "a red fox", "doc": "x"}, {"prompt": "a bird", "doc": "y"}]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    first, _ = PROMPTS.read(tmp_path / "rows.jsonl", {"cluster": "doc"})
    assert first.meta == {"cluster": "x", "doc": "x"}


def test_rows_of_an_evaluation_keep_the_cluster():
    prompts = [Prompt("1", "a red fox", meta={"cluster": "7"}), Prompt("2", "a blue bird")]
    responder = PolicyResponder(tiny.policy("t5"), Sampling(4))
    rows = [row.as_json() for row in evaluate_rows(responder, prompts, progress=False)]
    assert rows[0]["cluster"] == "7" and "cluster" not in rows[1]
    assert clusters_by_prompt(rows) == {"1": (True, "7"), "2": (False, "2")}


def test_the_units_are_named_once():
    rows = evaluation(0, 3, 4)
    assert units_note(rows) == "95% intervals over 3 clusters of 12 prompts (key `cluster`)"
    assert units_note(evaluation(0, 3, 4, named=False)) == "95% intervals over 12 prompts"
    assert data_of({"sft": rows}, "numbers", "test") == "numbers, 12 test prompts in 3 clusters"


def test_rows_of_a_reward_model():
    from fgrlhf.reward_models.prefix import Prefix

    prefixes = [Prefix((word,)) for word in "abca"]
    assert prompts_of(prefixes, ["talk 1", "talk 1", None, "talk 2"]) == [0, 0, 1, 2]
