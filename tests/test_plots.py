"""The plots of the report: smoothing, axes, colours and escaped titles."""

import re

import numpy as np
import pytest

from fgrlhf.report import plots


def test_smoothing_is_a_mean_of_neighbours():
    np.testing.assert_allclose(plots.smooth(np.array([0.0, 3.0, 6.0, 3.0])), [1.5, 3.0, 4.0, 4.5])
    assert plots.smooth(np.array([])).size == 0


@pytest.mark.parametrize("low, text", [(0.048, "0.002"), (0.3, "0.27"), (0.0, None)])
def test_an_axis_that_does_not_begin_at_zero_is_labelled(low, text):
    svg = plots.intervals("t", [("a", [(0.5, low, 0.97, 1)])])
    expected = [] if text is None else [f"the axis begins at {text}, not at 0"]
    assert re.findall("the axis begins[^<]*", svg) == expected


def test_plots_use_the_page_colours_and_escape_titles():
    points = [plots.Point(0, 1.0), plots.Point(2, 3.0)]
    svg = plots.curves('a <b> "c" $d_1$', [plots.Series("a", points, 2)], "episodes")
    assert "var(--series-2)" in svg and "var(--muted)" in svg and "#0000" not in svg
    assert svg.count("$d_1$") == 2, "dollars are dollars, in the plot and in its label"
    assert "<b>" not in svg and 'aria-label="a &lt;b&gt; &quot;c&quot; $d_1$"' in svg
    assert "<style" not in svg and 'id="figure_1"' not in svg


@pytest.mark.parametrize("marks", [False, True])
def test_values_that_no_axis_can_show_are_cut_with_a_note(marks):
    points = [plots.Point(0, 1.0), plots.Point(1, -1e308, -1.7e308, 1e308), plots.Point(2, 1e308)]
    note = "values beyond 1e[+]30 are drawn there"
    assert re.search(note, plots.curves("t", [plots.Series("a", points, 1, marks)], "steps"))
    assert re.search(note, plots.intervals("t", [("a", [(1e308, -1e308, 1.7e308, 1)])]))
    assert "<svg" in plots.histograms("t", {"a": [0.0, 1e308, -1e308]}, "words")
    ordinary = plots.curves("t", [plots.Series("a", points[:1], 1, marks)], "steps")
    assert not re.search(note, ordinary)
