"""Krippendorff's alpha and the intraclass correlation: by hand, by definition, by a package."""

import importlib.util
import math
import tracemalloc

import numpy as np
import pytest

from fgrlhf.data.agreement import alpha as alphas
from fgrlhf.data.agreement.alpha import alpha, middle_ranks
from fgrlhf.data.agreement.consistency import consistency
from fgrlhf.stats import Interval, share_interval

LEVELS = ("nominal", "ordinal", "interval")


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


def bounds_of(mean, without):
    """The interval of the share (1 + mean) / 2, by the figures without each item."""
    items = len(without)
    error = np.std(without, ddof=1) * (items - 1) / items**0.5 / 2
    share = (1 + mean) / 2
    trials = share * (1 - share) / error**2
    interval = share_interval(share * trials, trials, items - 1)
    return pytest.approx((2 * interval.low - 1, 2 * interval.high - 1))


def test_nominal_alpha_by_hand_and_without_an_interval():
    """Two annotators, four units: (x, x), (x, y), (y, y), (y, y)."""
    units = [["x", "x"], ["x", "y"], ["y", "y"], ["y", "y"]]
    assert coincidences(units, {"x": 0, "y": 1}).tolist() == [[2, 1], [1, 4]]
    figure = alpha([units])
    # n = 8, n_x = 3, n_y = 5
    assert figure.mean == pytest.approx(1 - 7 * 2 / (2 * 3 * 5))
    assert math.isnan(figure.low) and math.isnan(figure.high)
    assert alpha([[["x"]]]) == "undefined: no response was judged by two annotators" == alpha([])
    assert "all annotators chose 'x'" in str(alpha([[["x", "x"]]]))


@pytest.mark.parametrize(
    "items, peak",
    [
        # labels such as free texts: an array of draws, labels and labels would have 5.8 GB
        ([[[f"text {i}", f"another {i}"]] for i in range(300)], 50e6),
        # the weights of all items without each have 200 MB
        ([[["x", "x"], ["x", "y"]]] * 5_000, 60e6),
    ],
    ids=["many labels", "many items"],
)
def test_memory_does_not_grow_with_the_square(items, peak):
    tracemalloc.start()
    alpha(items)
    _, used = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < peak


def test_items_left_out_in_blocks_are_the_same(monkeypatch):
    items = [[["x", "x"], ["x", "y"]], [["y", "y"]], [["x", "y"]]] * 7
    in_blocks = alpha(items)
    assert in_blocks.low < in_blocks.high
    monkeypatch.setattr(alphas, "AT_ONCE", 4)  # the last block has one item
    assert alpha(items) == in_blocks


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


@pytest.mark.parametrize("level", LEVELS)
def test_alpha_is_that_of_its_definition_and_of_the_krippendorff_package(level):
    """Items have one to three units. The package knows no items, so it has no interval."""
    package = importlib.util.find_spec("krippendorff") and importlib.import_module("krippendorff")
    rng = np.random.default_rng(0)
    order = [0.0, 1.0, 2.5]
    for _ in range(20):
        data = rng.choice(order, size=(4, 36))
        data[rng.random(data.shape) < 0.3] = np.nan
        units = [[value for value in column if not np.isnan(value)] for column in data.T]
        ends = np.sort(rng.choice(np.arange(1, 36), 17, replace=False))
        items = [units[start:end] for start, end in zip([0, *ends], [*ends, 36])]
        figure = alpha(items, order, level=level)
        matrices = [coincidences(item, {0.0: 0, 1.0: 1, 2.5: 2}) for item in items]
        matrices = [matrix for matrix in matrices if matrix.any()]

        def by_definition(matrix):
            distances = {
                "nominal": lambda: 1 - np.eye(3),
                "ordinal": lambda: np.subtract.outer(*2 * [middle_ranks(matrix.sum(1))]) ** 2,
                "interval": lambda: np.subtract.outer(order, order) ** 2,
            }
            return alpha_of(matrix, distances[level]())

        total = sum(matrices)
        assert figure.mean == pytest.approx(by_definition(total))
        without = [by_definition(total - matrix) for matrix in matrices]
        assert (figure.low, figure.high) == bounds_of(figure.mean, without)
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
    assert (figure.low, figure.high) == bounds_of(figure.mean, without)
    # scores of a single annotator say nothing
    assert consistency([*rows, {"a": 9.0}, {}], range(16)) == figure
    assert consistency([{"a": 9.0}], [0]) == "undefined: no response was judged by two annotators"
    equal = consistency([{"a": 0.1, "b": 0.7}] * 3, range(3))
    assert equal == "undefined: no annotator gave two different scores"
