"""Marks that overlap, in tasks whose schema allows it: the rules, and how they are painted."""

from functools import partial

import pytest
from made_tasks import ROW, annotation, page_with, saved, task_with
from made_tasks import wrong_fields as fields
from page_helpers import QA, badge, drag, opened, press, word

from interface_html.agreement_figures import report
from interface_html.format import Item
from interface_html.judged_items import JudgedItem
from interface_html.reliability import answers_to_gold
from interface_html.rules import character_labels

doc = partial(annotation, corrected="Mended.")

KINDS = [kind.name for kind in QA.schema.errors if kind.needs == "nothing"]
WORDS = [(0, 3), (4, 7), (8, 11), (12, 14), (15, 18), (19, 23)]  # of the text's first sentence


def error(first: int, last: int, kind: str = KINDS[0]) -> dict:
    start, end = WORDS[first][0], WORDS[last][1]
    return {"error type": kind, "explanation": "", "start": start, "end": end}


def test_errors_may_overlap_where_the_schema_allows_it(tmp_path):
    free, strict = task_with(tmp_path, overlap=True), task_with(tmp_path)
    crossing = doc(error(0, 2), error(1, 3))
    assert fields(free, crossing) == [] and fields(strict, crossing) == ["feedback.errors[1]"]
    assert fields(free, doc(error(0, 2), error(0, 2, KINDS[1]))) == []
    repeated = doc(error(0, 2), error(4, 4), error(0, 2))
    assert fields(free, repeated) == ["feedback.errors[2]"]


def test_of_several_labels_that_of_the_shortest_mark_counts_for_a_character():
    marks = [error(0, 1), error(1, 1, KINDS[1])]
    labels = [KINDS[0]] * 4 + [KINDS[1]] * 3 + [None]
    assert character_labels(ROW["response"][:8], doc(*marks)) == labels
    assert character_labels(ROW["response"][:8], doc(*reversed(marks))) == labels


@pytest.mark.parametrize(
    "marks",
    [
        (error(0, 2), error(1, 1, KINDS[1])),  # one inside the other
        (error(1, 1), error(1, 1, KINDS[1])),  # two kinds of the same words
        (error(0, 1), error(1, 2, KINDS[1])),  # each has words of its own
    ],
)
def test_annotators_agree_in_whatever_order_they_marked(tmp_path, marks):
    task = task_with(tmp_path, overlap=True)
    item = Item("0", task.format.item_row(task.schema, ROW, ""))
    docs = {"anna": doc(*marks), "ben": doc(*reversed(marks))}
    figures = report(task, [JudgedItem(item, docs)])
    assert figures["span F, MPP, positions and types"].mean == 1
    assert figures["alpha, types of words"].mean == 1
    answers = answers_to_gold(task, item, "annotation", docs["anna"], docs["ben"])
    assert all(answer.given == answer.right for answer in answers)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("overlap")
    return page_with(task_with(folder, overlap=True, correction=False, comment="none"), [ROW])


def test_overlapping_marks_are_on_different_lines(chromium, page):
    spans = [(0, 30), (0, 5), (4, 8), (5, 9), (30, 31)]
    marks = [{"start": start, "end": end} for start, end in spans]
    with opened(chromium, where=page) as tab:
        assert tab.evaluate("marks => FG.lanes(marks)", marks) == [0, 1, 2, 1, 0]


def test_both_marks_can_be_seen_chosen_and_stored(chromium, page):
    first, second = (kind for kind in QA.schema.errors if kind.name in KINDS[:2])
    with opened(chromium, where=page) as tab:
        drag(tab, 0, 3)
        press(tab, first.key)
        drag(tab, 2, 4)
        press(tab, second.key)
        badges = [badge(word(tab, i)) for i in range(5)]
        assert badges == [f"{first.letter}1", None, f"{second.letter}2", None, None]
        colours = tab.locator("#text .tag").evaluate_all(
            "tags => tags.map((tag) => tag.style.getPropertyValue('--c'))"
        )
        assert colours == [first.color, second.color]  # each badge has that of its own kind
        stacked = ["stacked" in word(tab, i).get_attribute("class").split() for i in range(5)]
        assert stacked == [False, False, True, True, False]
        image = word(tab, 2).evaluate("node => getComputedStyle(node).backgroundImage")
        assert image.count("linear-gradient") == 2
        height = word(tab, 2).evaluate("node => getComputedStyle(node).paddingBottom")
        assert height == "8px"

        drag(tab, 0, 3)
        press(tab, first.key)
        assert "is already error 1" in tab.inner_text("#message")
        press(tab, "Escape")
        tab.click("[data-key='errors-0']")  # the outer one, from the list
        assert tab.locator("#errors .card.active").count() == 1
        word(tab, 5).click()
        press(tab, "Escape")
        word(tab, 2).click()  # the inner one: it is shorter
        cards = tab.locator("#errors .card")
        assert "active" in cards.nth(1).get_attribute("class").split()
        press(tab, "Escape", "Control+Enter")
        (row,) = saved(tab, "#download")
        assert [(span["start"], span["end"]) for span in row["spans"]] == [(0, 14), (8, 18)]
