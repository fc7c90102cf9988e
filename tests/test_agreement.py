"""Agreement of judgements: hand-computed values, and why a figure is undefined."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from fgrlhf.data.agreement import report as agreement
from fgrlhf.data.agreement.alpha import alpha
from fgrlhf.data.agreement.errors import words_in
from fgrlhf.data.agreement.matching import (
    any_type,
    exact_matches,
    mpp_credits,
    overlap_matches,
    partial_credit,
    same_type,
)
from fgrlhf.data.agreement.responses import by_response, judged_in_several_files, not_judging_errors
from fgrlhf.data.judgements import JudgedResponse, Judgement, missing_evidence
from fgrlhf.stats import Interval
from fgrlhf.text_types import Prompt


def mark(start, end, label="x", **parts):
    return Judgement("a", label, start, end, **parts)


def judged(*judgements, response="aa bb cc dd", name="0"):
    return JudgedResponse(Prompt(name, ""), response, tuple(judgements))


def report(files, *settings, **orders):
    return agreement.report(by_response(files), *settings, **orders)


def weight_notes(files):
    return agreement.weight_notes(by_response(files))


# ---- spans ---------------------------------------------------------------------------------------


def test_exact_overlapping_and_partial_matches():
    first = [mark(0, 2), mark(3, 5), mark(3, 5)]
    second = [mark(0, 2, "y"), mark(3, 5), mark(4, 8)]
    assert exact_matches(first, second, any_type) == 4  # (0, 2) and one of (3, 5)
    assert exact_matches(first, second, same_type) == 2
    assert overlap_matches(first, second, any_type) == 6
    assert overlap_matches(first, second, same_type) == 4
    assert overlap_matches(first, [], any_type) == 0
    assert overlap_matches([mark(0, 10)], [mark(0, 2), mark(3, 5)], any_type) == 2
    # overlap 2 of lengths 4 and 3; the second prediction has no match
    predictions = [mark(0, 4), mark(20, 25)]
    assert mpp_credits(predictions, [mark(2, 5)], any_type) == pytest.approx((2 / 4, 2 / 3))
    # the matching takes (0, 4)-(0, 3) with F = 6/7 rather than (0, 4)-(3, 4) with F = 2/5
    credit = partial_credit([mark(0, 4)], [mark(0, 3), mark(3, 4)], any_type)
    assert credit == pytest.approx(3 / 4 + 1)
    assert partial_credit([mark(0, 4)], [mark(0, 4, "y")], same_type) == 0
    for count in (exact_matches, overlap_matches, partial_credit):
        assert count([mark(0, 2)], [mark(0, 2, side="source")], any_type) == 0


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
    # n = 12, 5 of them marked; one of six units differs
    alpha_of_words = 1 - 11 * 2 / (2 * 5 * 7)
    assert figures["alpha, words marked or not"].mean == pytest.approx(alpha_of_words)
    severities = figures["alpha, severities of matched spans (ordinal)"]
    # (minor, major) and (minor, minor): margins 3 and 1, d = 2, o = 1 on each side
    assert severities.mean == pytest.approx(1 - 3 * 2 * 4 / (2 * 3 * 1 * 4))


def test_characters_are_words_in_scripts_without_spaces():
    """A marks the first two of four characters, b the first one; `ok` is one word, unmarked."""
    item = judged(mark(0, 2, annotator="a"), mark(0, 1, annotator="b"), response="天地人和 ok")
    figure = report({"f": [item]})["alpha, words marked or not"]
    assert figure.mean == pytest.approx(1 - 9 * 2 / (2 * 3 * 7))  # 3 of 10 labels are marks


def test_a_mark_inside_a_word_marks_the_word():
    text = 'He said "stupid", then left'
    pairs = [((8, 16), (9, 15)), ((16, 17), (16, 17))]  # with and without quotes; a comma
    items = []
    for i, spans in enumerate(pairs):
        marks = [mark(*span, annotator=str(k)) for k, span in enumerate(spans)]
        items.append(judged(*marks, response=f"{text} {i}"))
    figures = report({"f": items})
    assert figures["alpha, words marked or not"].mean == 1
    for text, starts, span, words in (
        ("He  said it", [0, 4, 9], (1, 2), [0]),
        ("He  said it", [0, 4, 9], (2, 4), []),
        ("so, it is", [0, 4, 7], (2, 5), [0, 1]),
        ("so, it is", [0, 4, 7], (3, 4), []),
        ("so, it is", [0, 4, 7], (0, 9), [0, 1, 2]),
        ("  a", [2], (0, 1), []),
    ):
        assert list(words_in(text, starts, *span)) == words


def test_equal_marks_of_few_items_are_not_certain():
    """Of five items with equal marks nobody knows the next ten."""
    items = [
        judged(mark(0, 2, annotator="a"), mark(0, 2, annotator="b"), response=f"so {i} it is")
        for i in range(5)
    ]
    figures = report({"f": items})
    f1 = figures["span F1, exact, positions"]
    assert f1.mean == f1.high == 1 and 0.6 < f1.low < 0.7
    few = figures["alpha, words marked or not"]
    assert str(few) == "1.000 (no interval: 5 of at least 10 units)"


@pytest.mark.parametrize("is_named", [False, True], ids=["one prompt", "one document"])
def test_responses_to_one_prompt_or_document_are_one_unit(is_named):
    """Four copies of the responses say no more than one."""

    def items(copies):
        made = []
        for i, copy in itertools.product(range(12), range(copies)):
            marks = mark(0, 2, annotator="a"), mark(0, 2 if i % 3 else 1, annotator="b")
            item = judged(*marks, response=f"so {i} it is {copy}")
            text, meta = f"prompt {i}", {}
            if is_named:
                text, meta = f"p {i} {copy}", {"cluster": f"doc {i}"}
            made.append(replace(item, prompt=replace(item.prompt, text=text, meta=meta)))
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
    figure = report({"f": items})["alpha, types of matched spans"]
    assert figure.mean == pytest.approx(1 - (12 - 1) * 4 / 72)


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


def test_responses_of_one_annotator_do_not_widen_the_interval():
    """Draws of only such responses would count as an agreement of 0."""
    items = [judged(mark(0, 2, annotator="a"), mark(0, 2, annotator="b"))]
    items += [judged(mark(0, 2, annotator="a"), response=f"r {i}") for i in range(20)]
    assert report({"f": items})["span F1, exact, positions"] == Interval(1, math.nan, math.nan)


@pytest.mark.parametrize(
    "marks",
    [((0, 8, "x"), (3, 5, "y")), ((0, 5, "x"), (0, 5, "y")), ((0, 5, "x"), (3, 8, "y"))],
    ids=["one inside the other", "of the same words", "each with words of its own"],
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


def test_an_item_with_most_of_the_weight_is_named():
    many = judged(*(mark(0, 2, annotator=f"w{i}") for i in range(30)), response="one of many")
    others = []
    for i in range(12):
        both = (mark(0, 2, annotator="a"), mark(0, 2, annotator="b"))
        others.append(judged(*both, response=f"text {i}"))
    assert weight_notes({"f": others}) == []
    notes = weight_notes({"f": [many, *others]})
    line = "30 of the 54 marks are of one item, 'one of many': it decides the F figures of spans"
    assert notes[0] == line
    assert len(notes) == 2 and "90 of the 138 labels of words" in notes[1]
    assert weight_notes({"f": [many]}) == []  # there is no other
    rated = [Judgement("helpful", score=1.0, annotator=f"w{i}") for i in range(30)]
    notes = weight_notes({"f": [scored(1, 2, 3), judged(*rated, response="rated")]})
    line = "30 of the 32 judgements are of one item, 'rated': it decides scores and verdicts"
    assert notes == [line]


def scored(first, second, number):
    judgements = [Judgement("helpful", score=float(first), annotator="anna")]
    judgements.append(Judgement("helpful", score=float(second), annotator="ben"))
    return judged(*judgements, response=f"text {number}")


def test_scores_have_figures_and_rows_of_scores_no_others():
    """Ben's scores are 10 lower throughout: equal order, other values."""
    items = [scored(20 + i, 10 + i, i) for i in range(12)]
    figures = report({"f": items})
    kinds = ("alpha, {} (ordinal)", "alpha, {} (interval)", "ICC, {} (consistency)")
    assert list(figures) == [kind.format("scores of helpful") for kind in kinds]
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


def test_verdicts():
    def verdicts(*labels, response):
        judgements = [Judgement("v", label, annotator=f"r{i}") for i, label in enumerate(labels)]
        return judged(*judgements, response=response)

    items = [verdicts("x", "x", response="1"), verdicts("x", "y", response="2")]
    items += [verdicts("y", "y", response="3"), verdicts("y", "y", response="4")]
    figures = report({"f": items})
    assert list(figures) == ["alpha, verdicts of v"]  # nobody looked for errors
    assert figures["alpha, verdicts of v"].mean == pytest.approx(1 - 7 * 2 / 30)
    pairs = [("bad", "bad"), ("good", "good"), ("ok", "ok"), ("bad", "ok")]
    items = [verdicts(*pair, response=str(number)) for number, pair in enumerate(pairs)]
    order = ["bad", "ok", "good"]
    name = "alpha, verdicts of v (ordinal)"
    units = [[[*pair]] for pair in pairs]
    assert report({"f": items}, orders={"v": order})[name] == alpha(units, order, level="ordinal")
    unknown = report({"f": items}, orders={"v": ["bad", "good"]})[name]
    assert unknown.startswith("undefined: the order of ok is not known")


def test_one_file_for_each_annotator():
    first = [judged(mark(0, 2)), judged(response="x y"), judged(response="only one")]
    second = [judged(mark(0, 2), name="9"), judged(mark(0, 1), response="x y")]
    shared = by_response({"a.jsonl": first, "b.jsonl": second})
    files = [["a.jsonl", "b.jsonl"], ["a.jsonl", "b.jsonl"], ["a.jsonl"]]
    assert [sorted(entry.by_annotator) for entry in shared] == files
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
    reason = "undefined: no two annotators looked for errors in the same response"
    for other in (rated, liked):
        figures = report({"f": [judged(mark(0, 2, annotator="anna"), other)]})
        for name in ("span F1, exact, positions", "alpha, words marked or not"):
            assert figures[name] == reason


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


def test_each_figure_without_shared_values_has_its_own_reason():
    """Two annotators judged the response, but not the same of it, or it has no words."""
    found = [mark(0, 2, annotator=name) for name in "ab"]
    assert report({"f": [judged(*found, response="  ")]})["alpha, words marked or not"] == (
        "undefined: no response in which two annotators looked for errors has words"
    )
    scores = [Judgement(aspect, score=1.0, annotator=aspect) for aspect in "ab"]
    verdicts = [Judgement(f"v{name}", "yes", annotator=name) for name in "ab"]
    steps = [
        Judgement("step", "good", 0, 2, score=1.0, annotator="a"),
        Judgement("step", "bad", 3, 5, score=0.0, annotator="b"),
    ]
    rated = Judgement("helpful", score=4.0, annotator="b")
    listed = [mark(0, 2, annotator="a"), missing("fact", [1], "a"), rated]
    figures = report({"f": [judged(*scores, *verdicts, *steps)]})
    figures |= report({"f": [judged(*listed)]})
    gave = "undefined: no two annotators gave the same"
    for name, reason in {
        "alpha, scores of a (ordinal)": f"{gave} response a score of a",
        "alpha, scores of a (interval)": f"{gave} response a score of a",
        "ICC, scores of a (consistency)": f"{gave} response a score of a",
        "alpha, verdicts of va": f"{gave} response a verdict of va",
        "alpha, labels of steps": f"{gave} step a label",
        "ICC, scores of steps (consistency)": f"{gave} step a score",
        "missing information F1": "undefined: no two annotators looked for missing information in"
        " the same response",
    }.items():
        assert figures[name] == reason


def test_copies_agree_completely():
    items = [judged(mark(0, 2), mark(3, 5, "y")), judged(mark(1, 4), response="other text")]
    figures = report({"a": items, "b": items})
    for name, figure in figures.items():
        if isinstance(figure, Interval):
            assert figure.mean == pytest.approx(1) and not figure.excludes_zero, name
    assert sum(isinstance(figure, Interval) for figure in figures.values()) == 9
