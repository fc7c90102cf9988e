"""Agreement of judgements: hand-computed values, and why a figure is undefined."""

import importlib.util
import itertools
import math
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from fgrlhf.data.agreement import alpha as alphas
from fgrlhf.data.agreement import report as agreement
from fgrlhf.data.agreement.alpha import alpha, middle_ranks, nominal_alpha
from fgrlhf.data.agreement.consistency import consistency
from fgrlhf.data.agreement.errors import words_in
from fgrlhf.data.agreement.matching import (
    any_type,
    exact_matches,
    mpp_credits,
    overlap_matches,
    partial_credit,
    same_type,
)
from fgrlhf.data.agreement.responses import (
    by_response,
    judged_in_several_files,
    not_judging_errors,
)
from fgrlhf.data.judgements import JudgedResponse, Judgement, missing_evidence
from fgrlhf.stats import Interval, share_interval
from fgrlhf.text_types import Prompt


def mark(start, end, label="x", **parts):
    return Judgement("a", label, start, end, **parts)


def judged(*judgements, response="aa bb cc dd", name="0"):
    return JudgedResponse(Prompt(name, ""), response, tuple(judgements))


def report(files, *settings, **orders):
    return agreement.report(by_response(files), *settings, **orders)


def weight_notes(files):
    return agreement.weight_notes(by_response(files))


def nominal_of(matrix):
    return nominal_alpha(matrix.sum(1), matrix.sum() - matrix.trace())


# ---- alpha ---------------------------------------------------------------------------------------


def coincidences(units, values):
    """Krippendorff's coincidence matrix [C, C], by its definition."""
    matrix = np.zeros((len(values), len(values)))
    for unit in units:
        for i, value in enumerate(unit):
            for k, other in enumerate(unit):
                if i != k:
                    matrix[values[value], values[other]] += 1 / (len(unit) - 1)
    return matrix


def alpha_of(matrix, squared):
    """Alpha of a coincidence matrix and squared distances, by its definition."""
    margins = matrix.sum(1)
    observed, expected = (matrix * squared).sum(), (np.outer(margins, margins) * squared).sum()
    return 1 - (margins.sum() - 1) * observed / expected


def test_coincidences_and_nominal_alpha_by_hand():
    """Two annotators, four units: (x, x), (x, y), (y, y), (y, y)."""
    units = [["x", "x"], ["x", "y"], ["y", "y"], ["y", "y"]]
    matrix = coincidences(units, {"x": 0, "y": 1})
    assert matrix.tolist() == [[2, 1], [1, 4]]
    # n = 8, n_x = 3, n_y = 5: 1 - 7 * 2 / (2 * 3 * 5)
    assert float(nominal_of(matrix)) == pytest.approx(1 - 7 * 2 / 30)
    assert alpha([units]).mean == pytest.approx(1 - 7 * 2 / 30)


def test_nominal_alpha_and_its_interval_on_random_units():
    """Against the formula with the coincidence matrices of all items."""
    rng = np.random.default_rng(1)
    checked = 0
    for _ in range(20):
        items = []
        for _ in range(rng.integers(10, 14)):
            sizes = rng.integers(2, 6, size=rng.integers(1, 4))
            items.append([rng.choice(list("wxyz"), size).tolist() for size in sizes])
        places = {value: place for place, value in enumerate("wxyz")}
        matrices = np.stack([coincidences(units, places) for units in items])
        figure = alpha(items)
        assert figure.mean == pytest.approx(float(nominal_of(matrices.sum(0))))
        without = [float(nominal_of(matrices.sum(0) - matrix)) for matrix in matrices]
        error = np.std(without, ddof=1) * (len(items) - 1) / len(items) ** 0.5
        share = (1 + figure.mean) / 2
        trials = share * (1 - share) / (error / 2) ** 2
        expected = share_interval(share * trials, trials, len(items) - 1)
        bounds = (2 * expected.low - 1, 2 * expected.high - 1)
        assert (figure.low, figure.high) == pytest.approx(bounds)
        checked += 1
    assert checked == 20


def test_many_different_labels_need_little_memory():
    """Such as free texts: an array of draws, labels and labels would have 5.8 GB."""
    items = [[[f"text {i}", f"another {i}"]] for i in range(300)]
    tracemalloc.start()
    figure = alpha(items)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # every coincidence is a disagreement: 1 - 599 * 600 / (600^2 - 600)
    assert figure.mean == pytest.approx(0)
    assert peak < 50e6


def test_a_single_item_has_no_interval():
    figure = alpha([[["x", "x"], ["x", "y"], ["y", "y"], ["y", "y"]]])
    assert math.isfinite(figure.mean) and math.isnan(figure.low) and math.isnan(figure.high)


def test_memory_does_not_grow_with_the_square_of_items():
    items = [[["x", "x"], ["x", "y"]]] * 5_000
    tracemalloc.start()
    alpha(items)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 60e6  # the weights of all items without each have 200 MB


def test_items_left_out_in_blocks_are_the_same(monkeypatch):
    items = [[["x", "x"], ["x", "y"]], [["y", "y"]], [["x", "y"]]] * 7
    in_blocks = alpha(items)
    assert in_blocks.low < in_blocks.high
    monkeypatch.setattr(alphas, "AT_ONCE", 4)  # the last block has one item
    assert alpha(items) == in_blocks


def test_equal_marks_of_few_items_are_not_certain():
    """Of five items with equal marks nobody knows the next ten."""
    items = [
        judged(mark(0, 2, annotator="a"), mark(0, 2, annotator="b"), response=f"so {i} it is")
        for i in range(5)
    ]
    figures = report({"f": items})
    f1 = figures["span F1, exact, positions"]
    assert f1.mean == f1.high == 1 and f1.low < 0.5
    few = figures["alpha, words marked or not"]
    assert str(few) == "1.000 (no interval: 5 of at least 10 units)"


def test_responses_to_one_prompt_are_one_unit():
    """Four copies of the responses under their prompts say no more than one."""

    def items(copies):
        made = []
        for i in range(12):
            for copy in range(copies):
                item = judged(
                    mark(0, 2, annotator="a"),
                    mark(0, 2 if i % 3 else 1, annotator="b"),
                    response=f"so {i} it is {copy}",
                )
                made.append(replace(item, prompt=replace(item.prompt, text=f"prompt {i}")))
        return made

    one, four = (report({"f": items(copies)}) for copies in (1, 4))
    name = "span F1, exact, positions"
    assert (four[name].low, four[name].high) == pytest.approx((one[name].low, one[name].high))
    name = "alpha, words marked or not"
    assert four[name].high - four[name].low > 0.9 * (one[name].high - one[name].low)


def test_a_response_that_many_judged_does_not_decide():
    """Every annotator of a response counts once: the weight of a pair of m is 1 / (m - 1)."""
    two = judged(mark(0, 2, annotator="a"), mark(3, 5, annotator="b"))
    many = judged(*[mark(0, 2, annotator=f"c{i}") for i in range(12)], response="other words")
    figure = report({"f": [two, many]})["span F1, exact, positions"]
    assert figure.mean == pytest.approx(12 / (12 + 2))  # 132 of 134 if every pair counted once


def test_spans_of_several_annotators_are_one_unit():
    """Three annotators of one span in four responses: aab aaa bba bbb, 12 values."""
    items = []
    for i, types in enumerate(("aab", "aaa", "bba", "bbb")):
        marks = [mark(0, 2, type, annotator=str(k)) for k, type in enumerate(types)]
        items.append(judged(*marks, response=f"so {i}"))
    # coincidences of different values: 2 units x 4 / 2; n = 12, 6 of each: expected 2 x 36
    assert report({"f": items})["alpha, types of matched spans"].mean == pytest.approx(
        1 - (12 - 1) * 4 / 72
    )


def test_a_mark_inside_a_word_marks_the_word():
    text = 'He said "stupid", then left'
    pairs = [((8, 16), (9, 15)), ((16, 17), (16, 17))]  # with and without quotes; a comma
    items = []
    for i, spans in enumerate(pairs):
        marks = [mark(*span, annotator=str(k)) for k, span in enumerate(spans)]
        items.append(judged(*marks, response=f"{text} {i}"))
    figures = report({"f": items})
    assert figures["alpha, words marked or not"].mean == 1
    assert [list(words_in("He  said it", [0, 4, 9], *span)) for span in ((1, 2), (2, 4))] == [
        [0],
        [],
    ]
    assert [list(words_in("so, it is", [0, 4, 7], *s)) for s in ((2, 5), (3, 4), (0, 9))] == [
        [0, 1],
        [],
        [0, 1, 2],
    ]
    assert list(words_in("  a", [2], 0, 1)) == []


def test_figures_do_not_depend_on_the_names_of_labels():
    def figures(bias, tone):
        items = []
        for i in range(6):
            marks = [mark(0, 2, bias, annotator="a"), mark(0, 2, bias, annotator="b")]
            if i < 3:
                marks.append(mark(0, 2, tone, annotator="a"))
            marks += [mark(3, 5, "fact", annotator=name) for name in "ab"]
            items.append(judged(*marks, response=f"so it {i}"))
        return {name: str(figure) for name, figure in report({"f": items}).items()}

    assert figures("bias", "tone") == figures("tone", "bias")


def test_ordinal_distances_by_hand():
    """Margins 2, 4, 6: d_12 = 1 + 2 = 3, d_23 = 2 + 3 = 5, d_13 = 1 + 4 + 3 = 8."""
    middles = middle_ranks(np.array([2.0, 4.0, 6.0]))
    assert np.diff(middles).tolist() == [3, 5]
    assert (middles[2] - middles[0]) == 8


def test_ordinal_alpha_forgives_neighbours():
    far = [[["low", "high"], ["low", "low"], ["mid", "mid"], ["high", "high"]]]
    near = [[["low", "mid"], ["low", "low"], ["mid", "mid"], ["high", "high"]]]
    order = ["low", "mid", "high"]
    figures = [alpha(units, order, level="ordinal") for units in (far, near)]
    assert all(isinstance(figure, Interval) for figure in figures)
    assert figures[0].mean < figures[1].mean < 1
    # far: margins low 3, mid 2, high 3; d(low, high) = 1.5 + 2 + 1.5 = 5, the others 2.5
    expected = 2 * (3 * 3 * 25 + 3 * 2 * 6.25 + 2 * 3 * 6.25)
    assert figures[0].mean == pytest.approx(1 - 7 * 2 * 25 / expected)


LEVELS = ("nominal", "ordinal", "interval")


@pytest.mark.parametrize("level", LEVELS)
def test_alpha_is_that_of_its_definition_and_of_the_krippendorff_package(level):
    package = importlib.util.find_spec("krippendorff") and importlib.import_module("krippendorff")
    rng = np.random.default_rng(0)
    order = [0.0, 1.0, 2.5]
    for _ in range(20):
        data = rng.choice(order, size=(4, 30))
        data[rng.random(data.shape) < 0.3] = np.nan
        units = [[value for value in column if not np.isnan(value)] for column in data.T]
        figure = alpha([[unit] for unit in units], order, level=level)
        items = [coincidences([unit], {0.0: 0, 1.0: 1, 2.5: 2}) for unit in units]
        items = [matrix for matrix in items if matrix.any()]

        def by_definition(matrix):
            distances = {
                "nominal": lambda: 1 - np.eye(3),
                "ordinal": lambda: np.subtract.outer(*2 * [middle_ranks(matrix.sum(1))]) ** 2,
                "interval": lambda: np.subtract.outer(order, order) ** 2,
            }
            return alpha_of(matrix, distances[level]())

        total = sum(items)
        assert figure.mean == pytest.approx(by_definition(total))
        without = [by_definition(total - matrix) for matrix in items]
        error = np.std(without, ddof=1) * (len(items) - 1) / len(items) ** 0.5 / 2
        share = (1 + figure.mean) / 2
        trials = share * (1 - share) / error**2
        assert figure.low == pytest.approx(
            2 * share_interval(share * trials, trials, len(items) - 1).low - 1
        )
        if package:
            of_package = package.alpha(reliability_data=data, level_of_measurement=level)
            assert figure.mean == pytest.approx(of_package)


def test_alpha_of_six_responses_as_the_krippendorff_package_gives_it():
    """Krippendorff 0.9.0: nominal .2143, ordinal .7482, interval .6687 of these scores."""
    scores = [(1.0, 2.0), (2.0, 2.0), (4.0, 5.0), (5.0, 3.0), (1.0, 1.0), (3.0, 5.0)]
    units = [[[*pair]] for pair in scores]
    order = [1.0, 2.0, 3.0, 4.0, 5.0]
    figures = [alpha(units, order, level=level).mean for level in LEVELS]
    assert figures == pytest.approx([0.2143, 0.7482, 0.6687], abs=5e-5)


def test_interval_alpha_does_not_depend_on_zero_or_the_unit():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(12, 3))
    figures = []
    for scale, zero in ((1, 0), (1e-3, 1e6), (1e9, -1e3)):
        units = [[row.tolist()] for row in scores * scale + zero]
        figures.append(alpha(units, level="interval").mean)
    assert figures == pytest.approx([figures[0]] * 3, rel=1e-6)


# ---- scores --------------------------------------------------------------------------------------


def intraclass_by_mean_squares(table):
    """By the mean squares of responses and of what is left: ICC(3, 1) of Shrout & Fleiss (1979)."""
    n, k = table.shape
    rows, columns = table.mean(1, keepdims=True), table.mean(0)
    of_rows = k * ((rows - table.mean()) ** 2).sum() / (n - 1)
    rest = ((table - rows - columns + table.mean()) ** 2).sum() / ((n - 1) * (k - 1))
    return (of_rows - rest) / (of_rows + (k - 1) * rest)


def test_consistency_is_the_intraclass_correlation_of_mean_squares():
    rng = np.random.default_rng(3)
    table = rng.normal(size=(14, 4)) + 2 * rng.normal(size=(14, 1)) + [0, 5, -3, 100]
    rows = [dict(zip("abcd", row.tolist())) for row in table]
    figure = consistency(rows, range(14))
    assert figure.mean == pytest.approx(intraclass_by_mean_squares(table))
    without = [intraclass_by_mean_squares(np.delete(table, i, axis=0)) for i in range(14)]
    error = np.std(without, ddof=1) * 13 / 14**0.5 / 2
    share = (1 + figure.mean) / 2
    trials = share * (1 - share) / error**2
    assert figure.low == pytest.approx(2 * share_interval(share * trials, trials, 13).low - 1)
    # scores of a single annotator say nothing
    assert consistency([*rows, {"a": 9.0}, {}], range(16)) == figure
    assert consistency([{"a": 9.0}], [0]) == "undefined: no response was judged by two annotators"
    equal = consistency([{"a": 0.1, "b": 0.7}] * 3, range(3))
    assert equal == "undefined: no annotator gave two different scores"


def scored(first, second, number):
    judgements = [Judgement("helpful", score=float(first), annotator="anna")]
    judgements.append(Judgement("helpful", score=float(second), annotator="ben"))
    return judged(*judgements, response=f"text {number}")


def test_scores_have_figures_and_rows_of_scores_no_others():
    """Ben's scores are 10 lower throughout: equal order, other values."""
    items = [scored(20 + i, 10 + i, i) for i in range(12)]
    figures = report({"f": items})
    assert list(figures) == [
        "alpha, scores of helpful (ordinal)",
        "alpha, scores of helpful (interval)",
        "ICC, scores of helpful (consistency)",
    ]
    assert figures["ICC, scores of helpful (consistency)"].mean == pytest.approx(1)
    # interval: n = 24, the distance of a unit is 10; variance of 20..31 and 10..21
    numbers = np.array([*range(20, 32), *range(10, 22)], dtype=float)
    expected = 2 * 24 * ((numbers - numbers.mean()) ** 2).sum()
    interval = figures["alpha, scores of helpful (interval)"]
    assert interval.mean == pytest.approx(1 - 23 * 12 * 2 * 100 / expected)
    assert interval.low < interval.mean < interval.high
    marked = judged(mark(0, 2, annotator="anna"), mark(0, 2, annotator="ben"))
    assert "span F1, exact, positions" in report({"f": [*items, marked]})


def test_steps_have_figures_of_their_labels_and_scores_and_are_no_errors():
    """Ben's scores are half of Anna's, and he calls the second step of every solution wrong."""
    items = []
    for i in range(12):
        judgements = []
        for number, (start, end) in enumerate([(0, 3), (4, 9)]):
            score = float((i * 7 + number * 5) % 11)
            ben = "bad" if number else "good"
            for name, label, factor in (("anna", "good", 1.0), ("ben", ben, 0.5)):
                step = Judgement("step", label, start, end, annotator=name, score=score * factor)
                judgements.append(step)
        items.append(judged(*judgements, response=f"a = {i}\nb = {i}"))
    figures = report({"f": items})
    assert list(figures) == [
        "alpha, labels of steps",
        "alpha, scores of steps (ordinal)",
        "alpha, scores of steps (interval)",
        "ICC, scores of steps (consistency)",
    ]
    units = [[["good", "good"], ["good", "bad"]]] * 12
    assert figures["alpha, labels of steps"] == alpha(units)
    icc = figures["ICC, scores of steps (consistency)"]
    # scores a and a / 2: the squares of rows are 1.125 times the variance of a, the others 0.125
    assert icc.mean == pytest.approx((1.125 - 0.125) / (1.125 + 0.125))
    assert icc.low < icc.mean < icc.high


def test_rows_of_one_document_are_one_unit():
    def items(copies):
        made = []
        for i in range(12):
            for copy in range(copies):
                item = judged(
                    mark(0, 2, annotator="a"),
                    mark(0, 2 if i % 3 else 1, annotator="b"),
                    response=f"so {i} it is {copy}",
                )
                prompt = replace(item.prompt, text=f"p {i} {copy}", meta={"cluster": f"doc {i}"})
                made.append(replace(item, prompt=prompt))
        return made

    one, four = (report({"f": items(copies)}) for copies in (1, 4))
    for name in ("span F1, exact, positions", "alpha, words marked or not"):
        assert four[name].high - four[name].low > 0.9 * (one[name].high - one[name].low)


def test_ordered_verdicts_have_an_ordinal_alpha():
    def verdicts(first, second, number):
        both = [Judgement("v", first, annotator="a"), Judgement("v", second, annotator="b")]
        return judged(*both, response=f"text {number}")

    pairs = [("bad", "bad"), ("good", "good"), ("ok", "ok"), ("bad", "ok")]
    items = [verdicts(*pair, number) for number, pair in enumerate(pairs)]
    order = ["bad", "ok", "good"]
    figures = report({"f": items}, orders={"v": order})
    units = [[[*pair]] for pair in pairs]
    assert figures["alpha, verdicts of v (ordinal)"] == alpha(units, order, level="ordinal")
    assert figures["alpha, verdicts of v"] == alpha(units)
    unknown = report({"f": items}, orders={"v": ["bad", "good"]})["alpha, verdicts of v (ordinal)"]
    assert unknown.startswith("undefined: the order of ok is not known")


def test_an_item_with_most_of_the_weight_is_named():
    many = judged(*(mark(0, 2, annotator=f"w{i}") for i in range(30)), response="one of many")
    others = []
    for i in range(12):
        both = (mark(0, 2, annotator="a"), mark(0, 2, annotator="b"))
        others.append(judged(*both, response=f"text {i}"))
    assert weight_notes({"f": others}) == []
    notes = weight_notes({"f": [many, *others]})
    assert notes[0] == (
        "30 of the 54 marks are of one item, 'one of many': it decides the F figures of spans"
    )
    assert len(notes) == 2 and "90 of the 138 labels of words" in notes[1]
    assert weight_notes({"f": [many]}) == []  # there is no other
    rated = [Judgement("helpful", score=1.0, annotator=f"w{i}") for i in range(30)]
    notes = weight_notes({"f": [scored(1, 2, 3), judged(*rated, response="rated")]})
    assert notes == [
        "30 of the 32 judgements are of one item, 'rated': it decides scores and verdicts"
    ]


def test_names_of_labels_change_no_figure():
    """Annotators give places several labels, of equal and of different lengths."""
    rng = np.random.default_rng(5)
    kinds = ["fact", "tone", "bias", "style"]
    spans = [(0, 2), (3, 5), (0, 5), (3, 8), (6, 11), (6, 8)]
    items = []
    for number in range(12):
        marks = set()
        for annotator in "abc":
            for place in rng.choice(len(spans), 4):
                marks.add((annotator, *spans[place], str(rng.choice(kinds))))
        made = [mark(start, end, kind, annotator=name) for name, start, end, kind in sorted(marks)]
        items.append(judged(*made, response=f"aa bb cc dd {number}"))
    figures = report({"f": items})
    for names in itertools.permutations(kinds):
        renamed = dict(zip(kinds, names))
        others = []
        for item in items:
            made = [replace(one, label=renamed[one.label]) for one in item.judgements]
            others.append(replace(item, judgements=tuple(made)))
        for name, figure in report({"f": others}).items():
            assert figure.mean == pytest.approx(figures[name].mean), (name, names)


def test_why_alpha_is_undefined():
    assert alpha([[["x"]]]) == "undefined: no response was judged by two annotators"
    assert alpha([]) == "undefined: no response was judged by two annotators"
    assert "all annotators chose 'x'" in str(alpha([[["x", "x"]]]))


# ---- spans ---------------------------------------------------------------------------------------


def test_exact_and_best_matches():
    first = [mark(0, 2), mark(3, 5), mark(3, 5)]
    second = [mark(0, 2, "y"), mark(3, 5), mark(4, 8)]
    assert exact_matches(first, second, any_type) == 4  # (0, 2) and one of (3, 5)
    assert exact_matches(first, second, same_type) == 2
    assert overlap_matches(first, second, any_type) == 6
    assert overlap_matches(first, second, same_type) == 4
    assert overlap_matches(first, [], any_type) == 0


def test_one_long_span_matches_only_one():
    assert overlap_matches([mark(0, 10)], [mark(0, 2), mark(3, 5)], any_type) == 2


def test_sides_never_match():
    assert exact_matches([mark(0, 2)], [mark(0, 2, side="source")], any_type) == 0
    assert partial_credit([mark(0, 2)], [mark(0, 2, side="source")], any_type) == 0


def test_credits_of_predictions_and_references():
    # overlap 2 of lengths 4 and 3; the second prediction has no match
    predictions = [mark(0, 4), mark(20, 25)]
    assert mpp_credits(predictions, [mark(2, 5)], any_type) == pytest.approx((2 / 4, 2 / 3))


def test_partial_credit_by_hand():
    # overlap 2 of lengths 4 and 3
    assert partial_credit([mark(0, 4)], [mark(2, 5)], any_type) == pytest.approx(2 / 4 + 2 / 3)
    # the matching takes (0, 4)-(0, 3) with F = 6/7 rather than (0, 4)-(3, 4) with F = 2/5
    credit = partial_credit([mark(0, 4)], [mark(0, 3), mark(3, 4)], any_type)
    assert credit == pytest.approx(3 / 4 + 1)
    assert partial_credit([mark(0, 4)], [mark(0, 4, "y")], same_type) == 0


# ---- the report ----------------------------------------------------------------------------------


def test_annotators_of_one_file():
    """Item 1: a marks [0, 2), b [0, 2) and [3, 5). Item 2: both mark [0, 5), with other types."""
    one = judged(
        mark(0, 2, annotator="a", severity="minor"),
        mark(0, 2, annotator="b", severity="major"),
        mark(3, 5, annotator="b"),
    )
    two = judged(
        mark(0, 5, annotator="a", severity="minor"),
        mark(0, 5, "y", annotator="b", severity="minor"),
        response="other text",
    )
    figures = report({"f": [one, two]}, ["minor", "major"])
    assert figures["span F1, exact, positions"].mean == pytest.approx(4 / 5)
    assert figures["span F1, exact, positions and types"].mean == pytest.approx(2 / 5)
    assert figures["span F, MPP, positions"].mean == pytest.approx(4 / 5)
    # words of item 1: aa (both), bb (b), cc, dd (none); item 2: other (both), text (none)
    units = [["m", "m"], ["n", "m"], ["n", "n"], ["n", "n"], ["m", "m"], ["n", "n"]]
    matrix = coincidences(units, {"m": 0, "n": 1})
    assert figures["alpha, words marked or not"].mean == pytest.approx(float(nominal_of(matrix)))
    severities = figures["alpha, severities of matched spans (ordinal)"]
    # (minor, major) and (minor, minor): margins 3 and 1, d = 2, o = 1 on each side
    assert severities.mean == pytest.approx(1 - 3 * 2 * 4 / (2 * 3 * 1 * 4))


def test_characters_are_words_in_scripts_without_spaces():
    """A marks the first two of four characters, b the first one; `ok` is one word, unmarked."""
    response = "天地人和 ok"
    item = judged(mark(0, 2, annotator="a"), mark(0, 1, annotator="b"), response=response)
    units = [["m", "m"], ["m", "n"], ["n", "n"], ["n", "n"], ["n", "n"]]
    matrix = coincidences(units, {"m": 0, "n": 1})
    figure = report({"f": [item]})["alpha, words marked or not"]
    assert figure.mean == pytest.approx(float(nominal_of(matrix)))


def test_responses_of_one_annotator_do_not_widen_the_interval():
    """Draws of only such responses would count as an agreement of 0."""
    items = [judged(mark(0, 2, annotator="a"), mark(0, 2, annotator="b"))]
    items += [judged(mark(0, 2, annotator="a"), response=f"r {i}") for i in range(20)]
    assert report({"f": items})["span F1, exact, positions"] == Interval(1, math.nan, math.nan)


@pytest.mark.parametrize(
    "marks",
    [
        ((0, 8, "x"), (3, 5, "y")),  # one inside the other
        ((0, 5, "x"), (0, 5, "y")),  # two labels of the same words
        ((0, 5, "x"), (3, 8, "y")),  # each has words of its own
    ],
)
def test_overlapping_marks_agree_in_any_order(marks):
    judgements = []
    for annotator, given in (("a", marks), ("b", reversed(marks))):
        judgements += [mark(*values, annotator=annotator) for values in given]
    figures = report({"f": [judged(*judgements)]})
    for name in ("alpha, types of words", "alpha, types of matched spans"):
        if isinstance(figures[name], str):  # one combined label: nobody gave another
            assert "all annotators chose 'a/x + a/y'" in figures[name]
        else:
            assert figures[name].mean == 1, name


def test_severities_need_an_order():
    pair = (mark(0, 2, annotator="a", severity="s"), mark(0, 2, annotator="b", severity="t"))
    name = "alpha, severities of matched spans (ordinal)"
    assert "the order of s, t is not known" in str(report({"f": [judged(*pair)]})[name])
    apart = (pair[0], mark(3, 5, annotator="b", severity="t"))
    figures = report({"f": [judged(*apart)]}, ["s", "t"])
    assert "gave severities to overlapping spans" in str(figures[name])
    without = (mark(0, 2, annotator="a"), mark(0, 2, annotator="b"))
    assert name not in report({"f": [judged(*without)]}, ["s", "t"])


def test_one_file_for_each_annotator():
    first = [judged(mark(0, 2)), judged(response="x y"), judged(response="only one")]
    second = [judged(mark(0, 2), name="9"), judged(mark(0, 1), response="x y")]
    shared = by_response({"a.jsonl": first, "b.jsonl": second})
    assert [sorted(entry.by_annotator) for entry in shared] == [
        *(["a.jsonl", "b.jsonl"], ["a.jsonl", "b.jsonl"], ["a.jsonl"]),
    ]
    figures = report({"a.jsonl": first, "b.jsonl": second})
    assert figures["span F1, exact, positions"].mean == pytest.approx(2 / 3)


def test_equal_responses_are_items_of_their_own():
    """Such as those of two systems: the second copy is matched with the second one of others."""
    name = "span F1, exact, positions"
    both = judged(mark(0, 2, annotator="a"), mark(0, 2, annotator="b"), name="system 1/1")
    again = judged(mark(0, 2, annotator="a"), name="system 2/1")
    assert report({"f": [both, again]})[name].mean == 1
    # outputs 1 and 2 of an item: a marks only the first, b only the second
    nothing = [Judgement("a", "no error", annotator=annotator) for annotator in "ab"]
    first = judged(mark(0, 2, annotator="a"), nothing[1])
    second = judged(nothing[0], mark(0, 2, annotator="b"))
    assert report({"f": [first, second]})[name].mean == 0
    copies = [judged(mark(0, 2)), judged(mark(3, 5)), judged()]
    shared = by_response({"a": copies, "b": copies})
    assert [entry.by_annotator["a"] == entry.by_annotator["b"] for entry in shared] == [True] * 3


def test_equal_outputs_in_two_languages_are_two_items():
    rows = []
    for annotator, language in (("a", "en-cs"), ("b", "en-uk"), ("b", "en-cs")):
        judgements = (Judgement("x", "y", annotator=annotator),)
        prompt = Prompt("0", "", meta={"langs": language})
        rows.append(JudgedResponse(prompt, "OK", judgements, "OK"))
    assert len(by_response({"f": rows[:2]})) == 2
    assert len(by_response({"f": rows[::2]})) == 1


def test_a_name_in_two_files_is_not_merged():
    """Two servers can both have a user `1`: their spans must not count for one annotator."""
    one, two, three = (judged(mark(2, 5, annotator=name)) for name in ("1", "1", "2"))
    files = {"g1": [one], "g2": [two], "g3": [three]}
    figures = report(files)
    assert figures["span F1, exact, positions"] == Interval(1, math.nan, math.nan)
    assert judged_in_several_files(files) == 1
    # somebody's work can be split over files
    split = {"a": [one], "b": [judged(mark(0, 2, annotator="1"), response="x y")], "c": [three]}
    assert judged_in_several_files(split) == 0
    assert [list(entry.by_annotator) for entry in by_response(split)] == [["1", "2"], ["1"]]


def test_an_item_may_have_a_row_for_each_annotator():
    rows = [judged(mark(0, 2, annotator=annotator)) for annotator in "abc"]
    (shared,) = by_response({"f": rows})
    assert list(shared.by_annotator) == ["a", "b", "c"]


def test_verdicts():
    def verdicts(*labels, response):
        judgements = [Judgement("v", label, annotator=f"r{i}") for i, label in enumerate(labels)]
        return judged(*judgements, response=response)

    items = [verdicts("x", "x", response="1"), verdicts("x", "y", response="2")]
    items += [verdicts("y", "y", response="3"), verdicts("y", "y", response="4")]
    figures = report({"f": items})
    assert list(figures) == ["alpha, verdicts of v"]  # nobody looked for errors
    assert figures["alpha, verdicts of v"].mean == pytest.approx(1 - 7 * 2 / 30)


def test_who_never_looked_for_errors_has_not_marked_nothing():
    """Anna and Ben mark, Carla finds nothing, Dora only rates, Emil has only a verdict."""
    scored = Judgement("helpful", score=4.0, annotator="dora")
    verdict = Judgement("tone", "rude", annotator="emil")
    marks = (mark(0, 2, annotator="anna"), mark(0, 2, annotator="ben"))
    for others in ((scored,), (verdict,), (scored, verdict)):
        items = [judged(*marks, *others), judged(*marks, response="other text")]
        figures = report({"f": items})
        assert figures["span F1, exact, positions"].mean == 1
        assert figures["alpha, words marked or not"].mean == 1
        assert not_judging_errors(by_response({"f": items})) == len(others)
    nothing = Judgement("a", "no error", annotator="carla")
    figures = report({"f": [judged(*marks, nothing, scored)]})
    # anna and ben: 2 of 2; anna and carla, ben and carla: 0 of 1
    assert figures["span F1, exact, positions"].mean == pytest.approx(2 / 4)
    assert not_judging_errors(by_response({"f": [judged(*marks, nothing)]})) == 0


def test_an_error_of_the_whole_response_is_one_that_has_no_span():
    """MQM has errors without a span. Their annotator looked for errors of all aspects."""
    whole = Judgement("a", "omission", annotator="ben")
    item = judged(mark(0, 2, annotator="anna"), mark(3, 5, annotator="anna"), whole)
    assert report({"f": [item]})["span F1, exact, positions"].mean == 0
    assert not_judging_errors(by_response({"f": [item]})) == 0


def test_a_rated_response_with_one_annotator_of_errors_has_no_figure():
    rated = Judgement("helpful", score=4.0, annotator="ben")
    liked = Judgement("liked", "nice", 0, 2, annotator="ben")
    for other in (rated, liked):
        figures = report({"f": [judged(mark(0, 2, annotator="anna"), other)]})
        for name in ("span F1, exact, positions", "alpha, words marked or not"):
            assert figures[name] == (
                "undefined: no two annotators looked for errors in the same response"
            )


def test_who_only_rates_has_not_found_that_nothing_is_missing():
    given = [missing("fact", [1], name) for name in ("anna", "ben")]
    none = Judgement("a", "no error", annotator="carla")
    rated = Judgement("helpful", score=4.0, annotator="dora")
    item = judged(*given, mark(0, 2, annotator="anna"), rated)
    assert report({"f": [item]})["missing information F1"].mean == 1
    item = judged(*given, mark(0, 2, annotator="anna"), rated, none)
    assert report({"f": [item]})["missing information F1"].mean == pytest.approx(2 / 4)


def missing(label, sentences, annotator):
    places = {"passage_id": 1, "sentence_id": sentences}
    evidence = missing_evidence({"label": label, **places}, "label")
    return Judgement("missing", label, annotator=annotator, evidence=evidence)


def test_missing_information_is_a_list_and_no_verdict():
    """Anna names two pieces, Ben one of them and another one, Carla none."""
    everything = [
        missing("fact", [1, 2], "anna"),
        missing("detail", [3], "anna"),
        missing("detail", [4], "ben"),
        missing("fact", [2, 1], "ben"),
        Judgement("a", "no error", annotator="carla"),
    ]
    name = "missing information F1"
    figures = report({"f": [judged(*everything)]})
    assert "alpha, verdicts of missing" not in figures
    # anna and ben: 2 of 4; anna and carla, ben and carla: 0 of 2
    assert figures[name].mean == pytest.approx(2 / (4 + 2 + 2))
    assert report({"f": [judged(*everything[:2])]})[name].startswith("undefined")
    assert name not in report({"f": [judged(mark(0, 2, annotator="anna"))]})
    explained = [Judgement("v", "yes", annotator=name, evidence="It says so.") for name in "ab"]
    assert "alpha, verdicts of v" in report({"f": [judged(*explained)]})


def test_nothing_is_shared():
    figures = report({"f": [judged(mark(0, 2, annotator="a"))]})
    assert set(figures.values()) == {
        "undefined: no response was judged by two annotators",
        "undefined: no two annotators marked overlapping spans",
    }


def test_copies_agree_completely():
    items = [judged(mark(0, 2), mark(3, 5, "y")), judged(mark(1, 4), response="other text")]
    figures = report({"a": items, "b": items})
    for name, figure in figures.items():
        if isinstance(figure, Interval):
            assert figure.mean == pytest.approx(1) and not figure.excludes_zero, name
    assert sum(isinstance(figure, Interval) for figure in figures.values()) == 9
