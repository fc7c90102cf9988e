"""The guideline panel of all pages, and the texts to judge by, which can be hidden."""

import pytest
from made_tasks import ROW, page_with, task_with
from page_helpers import PHONE, QA, drag, in_view, opened, press, reload
from rating_tasks import QUALITY

from fgrlhf.base.errors import UserError
from interface_html.server import guideline_sha256
from interface_html.tasks import feedback_of

PAGES = ("annotation", "comparison", "rating")
FAQ = [{"case": "May I stop?", "answer": "Yes."}]
EXAMPLES = [{"text": "The longer one is better.", "applies": False, "why": "Length is no merit."}]


OWN = {"comparison": ["Compare wholes."], "rating": ["Rate each alone."]}


@pytest.mark.parametrize("page", PAGES)
def test_the_guideline_is_read_and_the_texts_beside_are_hidden(chromium, tmp_path, page):
    keys = {"faq": FAQ, "examples": EXAMPLES, "ratings": [QUALITY], "page_guidelines": OWN}
    task = task_with(tmp_path, **keys)
    with opened(chromium, page, where=page_with(task, [ROW], page)) as tab:
        if page != "annotation":  # there the outputs come first
            assert not tab.is_visible("#faq")
            tab.click("#guide-more summary")
            assert tab.locator("#guide-body > p").all_inner_texts() == OWN[page]
        shown = tab.inner_text("#guide-body")
        assert OWN.get(page, task.schema.guideline)[0] in shown
        assert EXAMPLES[0]["why"] in shown and task.schema.errors[0].examples[0].why in shown
        assert tab.inner_text("#faq dt") == "May I stop?" and tab.inner_text("#faq dd") == "Yes."
        tab.click("#guide-read")
        assert not tab.is_visible("#guide-body")
        press(tab, "Shift+P")
        assert not tab.is_visible("#sources")
        assert tab.get_attribute("#hide-sources", "aria-expanded") == "false"
        reload(tab)
        assert not tab.is_visible("#guide-body") and not tab.is_visible("#sources")
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
        tab.click("#hide-sources")
        assert tab.is_visible("#sources")
        press(tab, "Shift+P", "Shift+P")
        assert tab.inner_text("#hide-sources") == "Hide texts"


@pytest.mark.parametrize("guidelines", [{"rating": ["x"]}, {"comparison": []}])
def test_a_guideline_of_a_page_that_the_task_lacks_is_refused(tmp_path, guidelines):
    with pytest.raises(UserError, match="page_guidelines|guideline of the comparison page"):
        task_with(tmp_path, page_guidelines=guidelines)


@pytest.mark.parametrize("name", ["qa_feedback", "detoxification", "translation", "hh_rlhf"])
def test_tasks_have_questions_and_right_and_nearly_right_examples(name):
    schema = feedback_of(name).schema
    assert 4 <= len(schema.faq) <= 8
    for examples in [kind.examples for kind in schema.errors] or [schema.examples]:
        assert {example.applies for example in examples} == {True, False}


def test_the_hash_of_the_guideline_covers_all_that_is_shown(tmp_path):
    def sha(**keys):
        return guideline_sha256(task_with(tmp_path, **keys).schema)

    def kinds(**keys):
        given = [kind.model_dump(mode="json") for kind in QA.schema.errors]
        return [given[0] | keys, *given[1:]]

    severities = [{"name": "minor", "label": "Minor", "letter": "m", "key": "M"}]
    changes = [
        {},
        {"guideline": ["Another text."]},
        {"page_guidelines": {"comparison": ["Another text."]}},
        {"faq": FAQ},
        {"examples": EXAMPLES},
        {"errors": kinds(help="another help")},
        {"errors": kinds(label="Another label")},
        {"errors": kinds(examples=[])},
        {"comparison": "Which is shorter?"},
        {"ratings": [QUALITY]},
        {"ratings": [QUALITY | {"anchors": {"1": "awful"}}]},
        {"severities": severities},
    ]
    hashes = [sha(**keys) for keys in changes]
    assert len(set(hashes)) == len(changes)
    assert sha(title="Another title", errors=kinds(color="#000000")) == hashes[0]


def test_evidence_and_its_key_show_hidden_texts(chromium, tmp_path):
    with opened(chromium, tmp_path=tmp_path) as tab:
        press(tab, "Shift+P", "p")
        assert in_view(tab, "[data-sentence='1:1']")
        press(tab, "Shift+P")
        drag(tab, 1, 2)
        press(tab, "3")  # a kind that needs sentences
        assert in_view(tab, "[data-sentence='1:1']")


def test_a_task_without_texts_has_no_button(chromium, tmp_path):
    with opened(chromium, where=feedback_of("hh_rlhf").folder / "comparison.html", **PHONE) as tab:
        assert tab.locator("#hide-sources").count() == 0
