"""The front of evaluated policies: geometry by brute force, figures by hand, the command."""

import itertools
import json

import numpy as np
import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_jsonl
from fgrlhf.pipeline import pareto
from fgrlhf.pipeline.pareto import bootstrap, choose, front, hypervolume, sums_of, values_of

# ---- geometry ------------------------------------------------------------------------------------


def test_a_front_and_its_volume_by_hand():
    """Boxes 1 x 3, 2 x 2 and 3 x 1: 3 + 2 + 1; the point (1, 1) is inside."""
    points = np.array([[1.0, 3], [2, 2], [3, 1], [1, 1]])
    assert front(points).tolist() == [True, True, True, False]
    assert hypervolume(points, np.zeros(2)) == 6
    assert hypervolume(points, np.array([1.0, 1])) == 1  # of (2, 2) alone
    assert hypervolume(points, np.array([3.0, 3])) == 0
    same = np.array([[1.0, 2], [1, 2], [1, 1]])
    assert front(same).tolist() == [True, True, False]  # equal points do not beat each other
    assert hypervolume(same, np.zeros(2)) == 2


@pytest.mark.parametrize("metrics", [2, 3, 4])
def test_the_volume_of_a_union_of_boxes_by_inclusion_and_exclusion(metrics):
    random = np.random.default_rng(metrics)
    for _ in range(20):
        points = random.integers(0, 6, (6, metrics)).astype(float)
        worst = random.integers(0, 3, metrics).astype(float)
        sides = np.clip(points - worst, 0, None)
        expected = 0.0
        for size in range(1, len(points) + 1):
            for some in itertools.combinations(sides, size):
                expected -= (-1) ** size * np.min(some, axis=0).prod()
        assert hypervolume(points, worst) == expected
        on_front = front(points)
        assert hypervolume(points[on_front], worst) == expected
        for p, point in enumerate(points):
            beaten = any((q >= point).all() and (q > point).any() for q in points)
            assert on_front[p] != beaten


def test_a_choice_by_weights_and_bounds():
    points = np.array([[0.9, 0.1], [0.5, 0.6], [0.2, 0.8]])
    assert choose(points, np.array([1.0, 0]), None) == 0
    assert choose(points, None, None) == 1
    assert choose(points, np.array([1.0, 0]), np.array([-np.inf, 0.6])) == 1
    assert choose(points, None, np.array([0.6, 0.6])) is None


# ---- figures -------------------------------------------------------------------------------------


def rows_of(values, segments=None):
    rows = []
    for i, value in enumerate(values):
        row = {"id": str(i), "gold": float(value)}
        if segments is not None:
            row |= {"facts/error_free": float(segments[i]), "facts/segments": 4.0}
        rows.append(row)
    return rows


def test_values_are_means_over_prompts_then_seeds_and_ratios_of_sums():
    seeds = [rows_of([1, 2, 6], [4, 2, 0]), rows_of([3, 3, 3], [4, 4, 1])]
    seeds[1][2] |= {"facts/segments": 2.0}
    (sums,), prompts = sums_of({"a": seeds}, ["gold", "facts/ratio"])
    assert sums.shape == (2, 3, 2, 2) and prompts == 3
    assert values_of(sums).tolist() == [3.0, pytest.approx((6 / 12 + 9 / 10) / 2)]
    # a prompt that one evaluation lacks is left out of all, and clusters are one unit
    short = [row | {"cluster": "c" if row["id"] != "0" else "d"} for row in rows_of([9, 8])]
    for row in itertools.chain(*seeds):
        row["cluster"] = "c" if row["id"] != "0" else "d"
    (of_a, of_b), prompts = sums_of({"a": seeds, "b": [short]}, ["gold"])
    assert prompts == 2 and of_a.shape == (2, 2, 1, 2)
    assert values_of(of_a).tolist() == [(1.5 + 3) / 2] and values_of(of_b).tolist() == [8.5]


def test_the_bootstrap_has_the_known_spread():
    """Of means over Q prompts: variance / Q; two seeds that differ by 2 d add d^2 / 2."""
    random = np.random.default_rng(0)
    values = random.normal(0, 1, 50)
    one, two = rows_of(values), [rows_of(values - 0.3), rows_of(values + 0.3)]
    sums, _ = sums_of({"one": [one], "two": two}, ["gold"])
    samples = bootstrap(sums, 20_000, 0)[..., 0]
    variance = values.var() / 50
    assert samples[:, 0].var() == pytest.approx(variance, rel=0.05)
    assert samples[:, 1].var() == pytest.approx(variance + 0.3**2 / 2, rel=0.05)
    # the same prompts for both: their difference is that of the seeds alone
    difference = samples[:, 1] - samples[:, 0]
    assert set(np.abs(difference).round(9)) == {0.0, 0.3}
    assert np.array_equal(bootstrap(sums, 50, 3), bootstrap(sums, 50, 3))


# ---- the command ---------------------------------------------------------------------------------


@pytest.fixture
def evaluations(tmp_path):
    """Three policies on 40 prompts, one of them with two seeds; `wordy` is beaten by `good`."""
    random = np.random.default_rng(1)
    levels = {"good": (0.7, 10.0), "short": (0.4, 5.0), "wordy": (0.5, 20.0)}
    folders = {}
    for name, (gold, length) in levels.items():
        folders[name] = [str(tmp_path / name / str(seed)) for seed in range(1 + (name == "good"))]
        for folder in folders[name]:
            rows = [
                {"id": str(i), "prompt": "?", "sample": 0}
                | {"gold": gold + g, "length": length + words}
                for i, (g, words) in enumerate(
                    zip(random.normal(0, 0.1, 40), random.normal(0, 1, 40))
                )
            ]
            write_jsonl(f"{folder}/rows.jsonl", rows)
    return folders


def run(folders, out, *arguments):
    named = json.dumps(folders)
    pareto.main([f"policies={named}", "metrics=[gold, length]", f"output_dir={out}", *arguments])
    return json.loads((out / "pareto.json").read_text())


def test_the_command(evaluations, tmp_path, capsys):
    out = tmp_path / "out"
    weights = "weights={gold: 10, length: 1}"
    result = run(evaluations, out, "lower=[length]", "samples=200", weights)
    policies = result["policies"]
    assert {name: policy["on_front"] for name, policy in policies.items()} == {
        "good": True,
        "short": True,
        "wordy": False,
    }
    assert policies["good"]["seeds"] == 2 and policies["wordy"]["on_front_share"] == 0
    gold, words = policies["good"]["values"]["gold"], policies["good"]["values"]["length"]
    assert gold["low"] < gold["mean"] < gold["high"] and words["low"] < words["mean"]
    # the worst point is that of the worst gold and of the greatest length
    short, wordy = (policies[name]["values"] for name in ("short", "wordy"))
    worst = {"gold": short["gold"]["mean"], "length": wordy["length"]["mean"]}
    assert result["worst"] == pytest.approx(worst)
    volume = (gold["mean"] - worst["gold"]) * (worst["length"] - words["mean"])
    # `short` is the worst in gold, so that it adds nothing
    assert result["hypervolume"]["mean"] == pytest.approx(volume)
    assert result["chosen"] == "short"  # 10 x .4 - 5 > 10 x .7 - 10
    printed = capsys.readouterr().out
    assert "counted as better: gold higher, length lower (lower" in printed
    assert "wordy: gold 0." in printed and "chosen: short (the choice in 100% of" in printed
    page = (out / "index.html").read_text()
    assert page.count("<svg") == 1 and "chosen: short" in page and "length over gold" in page
    assert "gold higher, length lower" in page
    chosen = run(
        evaluations, tmp_path / "bound", "lower=[length]", "bounds={gold: 0.6}", "samples=50"
    )
    assert chosen["chosen"] == "good"
    run(evaluations, tmp_path / "none", "bounds={gold: 0.99}", "samples=50")
    printed = capsys.readouterr().out
    assert "no policy keeps the bounds" in printed and "gold higher, length higher" in printed


def test_names_are_data(evaluations, tmp_path):
    evaluations["<b>$x$"] = evaluations.pop("wordy")
    run(evaluations, tmp_path / "out", "samples=20")
    page = (tmp_path / "out" / "index.html").read_text()
    assert "<b>" not in page and "&lt;b&gt;$x$" in page


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["metrics=[gold]"], "metrics: "),
        (["metrics=[gold, gold]"], "one is there twice"),
        (["weights={golden: 1}"], "`golden` is not among the metrics"),
        (["weights={gold: -1}"], "below 0: name the metric in `lower`"),
        (["worst={gold: 0}"], "worst: it lacks length"),
        (
            ["metrics=[gold, honesty]"],
            "no values of `honesty` for each prompt. It has gold, length",
        ),
        (["metrics=[gold, prompt]"], "no values of `prompt` for each prompt. It has gold, length"),
        (["metrics=[gold, sample]"], "no values of `sample` for each prompt. It has gold, length"),
    ],
)
def test_what_cannot_be_compared_is_refused(arguments, message, evaluations, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(UserError) as error:
        run(evaluations, out, *arguments)
    assert message in str(error.value).replace("\n", " ") and not out.exists()


def test_evaluations_of_other_prompts_and_an_output_in_use(evaluations, tmp_path):
    write_jsonl(tmp_path / "x" / "rows.jsonl", [{"id": "other", "gold": 1.0, "length": 2.0}])
    with pytest.raises(UserError, match="have no prompt in common"):
        run({**evaluations, "x": [str(tmp_path / "x")]}, tmp_path / "out")
    with pytest.raises(UserError, match="exists: remove it"):
        run(evaluations, tmp_path / "x")


def test_prompts_that_are_left_out_are_counted(evaluations, tmp_path, capsys):
    rows = [{"id": str(i), "gold": 1.0, "length": 2.0} for i in range(12)]
    rows[0]["gold"] = None
    write_jsonl(tmp_path / "x" / "rows.jsonl", rows)
    result = run({**evaluations, "x": [str(tmp_path / "x")]}, tmp_path / "out", "samples=20")
    assert (result["prompts"], result["all_prompts"]) == (11, 40)
    expected = "11 of 40 prompts, for which every evaluation has every metric"
    assert expected in capsys.readouterr().out
    assert expected in (tmp_path / "out" / "index.html").read_text()
