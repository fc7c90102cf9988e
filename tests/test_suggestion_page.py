"""annotation.html: suggestions are accepted, changed or rejected, and none stays undecided."""

import copy
import json
from pathlib import Path

from made_tasks import THREE_SUGGESTED, suggested
from page_helpers import (
    ITEM,
    QA,
    TEXT,
    downloaded,
    drag,
    opened,
    press,
    reload,
    state,
    wait_until,
    word,
)
from served_pages import visiting
from server_helpers import serving, write_export

from fgrlhf.base.files import write_json
from interface_html.items import read_items
from interface_html.pages import self_contained
from interface_html.stored import read_database
from interface_html.submissions import SubmissionsSettings, write_submissions


def item(suggestions=THREE_SUGGESTED, **values) -> dict:
    return {**copy.deepcopy(ITEM), "suggestions": list(suggestions), **values}


def errors(tab) -> list[dict]:
    return state(tab)["doc"]["errors"]


def origin(index: int, verdict="accepted", suggestions=THREE_SUGGESTED) -> dict:
    one = suggestions[index]
    return {"index": index, "source": one["source"], "score": one["score"], "verdict": verdict}


def said(tab) -> str:
    return tab.inner_text("#message")


def underlined(tab) -> list[int]:
    """The numbers of the words with a dashed line."""
    return tab.locator("#text .w.suggested").evaluate_all("nodes => nodes.map(n => +n.dataset.i)")


def record(tab) -> list[dict]:
    with tab.expect_download() as event:
        tab.click("#record")
    return json.loads(Path(event.value.path()).read_text())


def test_suggestions_are_decided_by_keys(chromium, tmp_path):
    with opened(chromium, items=[item()], tmp_path=tmp_path) as tab:
        titles = tab.locator("#suggestions .cardtitle").all_inner_texts()
        assert titles[0] == "Suggested: Irrelevant, 0.93 by rel_rm"
        assert underlined(tab) == [1, 2, 9, 10, 11]
        assert tab.inner_text("#suggestion-count") == "3"
        press(tab, "y")  # goes to the first
        assert "Suggested: Irrelevant, 0.93 by rel_rm: “cat sat”. Y accepts" in said(tab)
        assert "Press the key again to decide it." in said(tab)  # nothing is decided yet
        assert tab.inner_text("#suggested h3") == "Suggestions to decide 3"
        press(tab, "y")
        assert errors(tab) == [
            {
                "error type": "Irrelevant",
                "explanation": "",
                "start": 4,
                "end": 11,
                "origin": origin(0),
            }
        ]
        assert "Accepted: “cat sat” is error 1 (Irrelevant). Suggested: Unverifiable" in said(tab)
        assert underlined(tab) == [9, 10, 11]
        press(tab, "x")
        assert state(tab)["doc"]["suggestions"] == [{"index": 1, "verdict": "rejected"}]
        assert "Rejected: Unverifiable Fact, “red.” Suggested: Incoherent" in said(tab)
        press(tab, "1")  # another kind
        assert errors(tab)[1]["error type"] == "Irrelevant"
        assert errors(tab)[1]["origin"] == origin(2, "changed")
        assert "All suggestions are decided." in said(tab)
        assert underlined(tab) == []
        press(tab, "y")
        assert said(tab) == "All suggestions are decided."
        assert tab.inner_text("#suggested h3").strip() == "All suggestions are decided"
        press(tab, "Control+z", "Control+z")
        assert state(tab)["doc"]["suggestions"] == []
        assert underlined(tab) == [9, 10, 11]
        tab.fill("#correction", "Mended.")
        press(tab, "Escape", "Control+Enter")
        assert not state(tab)["submitted"]
        assert tab.locator("#problems li").all_inner_texts() == [
            "Suggested: Unverifiable Fact, 0.60 by fact_rm, “red.” is not decided: accept, change"
            " or reject it.",
            "Suggested: Incoherent, 0.95 by rel_rm, “The cat” is not decided: accept, change or"
            " reject it.",
        ]
        tab.click("#problems button >> nth=1")
        press(tab, "x")  # the problem's suggestion is the chosen one
        assert state(tab)["doc"]["suggestions"] == [{"index": 2, "verdict": "rejected"}]
        press(tab, "x", "Control+Enter")
        assert state(tab)["submitted"]
        assert record(tab)[0]["suggestions"] == {
            "shown": True,
            "verdicts": ["accepted", "rejected", "rejected"],
        }
        assert record(tab)[0]["seconds"]["annotation"] >= 0
        (row,) = json.loads(downloaded(tab))
        assert list(row["feedback"]) == ["errors", "missing-info", "corrected-prediction"]
        assert "suggestions" not in row
        assert list(row["feedback"]["errors"][0]) == ["error type", "explanation", "start", "end"]


def test_ways_to_decide(chromium, tmp_path):
    """In a page with the items inside. Each part is about the next item."""
    rows = [item(id=str(i), question=f"{i}?") for i in range(4)]
    write_json(tmp_path / "items.json", [item(id="h", suggestions_shown=False), *rows])
    page = tmp_path / "page.html"
    page.write_text(self_contained(QA, "annotation", read_items(QA, tmp_path / "items.json")))
    with opened(chromium, where=page) as tab:
        assert underlined(tab) == [] and not tab.is_visible("#suggested")  # they are hidden
        press(tab, "y")
        assert said(tab) == "This item has no suggestions."
        press(tab, "n", "Control+Enter")
        assert record(tab)[0]["suggestions"] == {"shown": False, "verdicts": []}

        assert underlined(tab) == [1, 2, 9, 10, 11]
        word(tab, 0).click()
        press(tab, "ArrowRight")
        heard = tab.evaluate("document.querySelector('#announce').textContent")
        assert heard == "“cat”, word 2 of 15, Suggested: Irrelevant, 0.93 by rel_rm"
        press(tab, "?")
        text = tab.inner_text("#help")
        assert "accept or reject the suggestion under the cursor" in text
        assert "accept all suggestions at 0.9 or more" in text
        press(tab, "Escape", "e")  # accepts the suggestion under the cursor and edits it
        assert errors(tab)[0]["origin"] == origin(0)
        assert "Editing error 1 (Irrelevant)" in said(tab)
        press(tab, "Shift+ArrowRight", "Enter")
        assert TEXT[4 : errors(tab)[0]["end"]] == "cat sat on"
        assert errors(tab)[0]["origin"] == origin(0, "changed")
        press(tab, "Alt+ArrowLeft")
        assert errors(tab)[0]["origin"] == origin(0)
        word(tab, 1).click()
        press(tab, "4")
        assert errors(tab)[0]["origin"] == origin(0, "changed")
        press(tab, "Delete")  # the suggestion is open again
        assert underlined(tab) == [1, 2, 9, 10, 11]

        press(tab, "Escape", "]")
        word(tab, 2).click()  # a kind takes the whole suggestion of a clicked word
        tab.locator("#types button", has_text="Unverifiable").click()
        assert (errors(tab)[0]["start"], errors(tab)[0]["end"]) == (4, 11)
        assert errors(tab)[0]["origin"]["verdict"] == "changed"
        drag(tab, 10, 11)  # and not of a selection
        press(tab, "1")
        assert TEXT[errors(tab)[1]["start"] : errors(tab)[1]["end"]] == "The cat"
        assert "origin" not in errors(tab)[1]

        press(tab, "Escape", "]")
        drag(tab, 2, 3)
        press(tab, "1")
        tab.click("[data-key='suggestion-0-accept']")
        assert "overlaps error 1 (Irrelevant)" in said(tab)
        tab.click("[data-key='suggestion-0-reject']")
        assert state(tab)["doc"]["suggestions"] == [{"index": 0, "verdict": "rejected"}]
        title = tab.inner_text("[data-key='suggestion-0-title']")
        assert title == "Rejected: Irrelevant, 0.93 by rel_rm"
        tab.click("[data-key='errors-0-remove']")
        tab.click("[data-key='suggestion-0-accept']")  # a rejection can be taken back
        assert state(tab)["doc"]["suggestions"] == []
        assert errors(tab)[0]["origin"] == origin(0)

        press(tab, "Escape", "]")
        press(tab, "Shift+Y")
        assert [one["origin"] for one in errors(tab)] == [origin(0), origin(2)]
        assert "Accepted: 2. Suggested: Unverifiable Fact, 0.60" in said(tab)
        assert not tab.is_visible("#accept-sure")
        press(tab, "Control+z")  # one step
        assert errors(tab) == [] and underlined(tab) == [1, 2, 9, 10, 11]


def test_accepting_what_needs_evidence_asks_for_it(chromium, tmp_path):
    evidence = '{"passage_id":1,"sentence_id":[2]}'
    suggestions = [
        suggested("Wrong-Grounding", 4, 11),
        suggested("Wrong-Grounding", 33, 37, 0.99, evidence),
        suggested("Redundant", 38, 45, 0.99),
    ]
    with opened(chromium, items=[item(suggestions)], tmp_path=tmp_path) as tab:
        tab.click("#accept-sure")
        assert "Accepted: 1. 2 at 0.9 or more need evidence or overlap" in said(tab)
        assert errors(tab)[0]["explanation"] == evidence
        press(tab, "y")
        assert tab.evaluate("document.activeElement.dataset.key") == "errors-1-ids"
        tab.keyboard.type("1:1")
        press(tab, "Enter")
        press(tab, "y", "y")
        assert "the earlier text that error 3 (Repetitive) repeats" in said(tab)
        press(tab, "Shift+ArrowRight", "Enter")
        assert errors(tab)[2]["explanation"] == "The cat"
        assert [one["origin"]["verdict"] for one in errors(tab)] == ["accepted"] * 3


def test_suggestions_survive_reloads_and_the_downloaded_file(chromium, tmp_path):
    with opened(chromium, items=[item()], tmp_path=tmp_path) as tab:
        press(tab, "y", "y", "x")
        reload(tab)
        assert underlined(tab) == [10, 11]
        press(tab, "x", "x")
        tab.fill("#correction", "Mended.")
        press(tab, "Escape", "Control+Enter")
        path = tmp_path / "feedback.json"
        path.write_bytes(downloaded(tab))
        tab.set_input_files("#file", path)
        wait_until(
            tab,
            "() => !document.querySelector('#suggested')"
            " || document.querySelector('#suggested').hidden",
        )
        assert tab.locator("#errors > li").count() == 1
        press(tab, "Control+Enter")
        assert tab.locator("#problems li").count() == 0


def test_served_suggestions_are_submitted_with_their_verdicts(chromium, tmp_path):
    shown, hidden = item(id="a"), item(id="b", suggestions_shown=False)
    shown["question"], hidden["question"] = "A?", "B?"
    write_json(tmp_path / "items.json", [shown, hidden])
    with serving(tmp_path, items=tmp_path / "items.json") as server:
        with visiting(chromium, server) as tab:
            press(tab, "y", "y", "x", "x")
            tab.fill("#correction", "Mended.")
            press(tab, "Escape", "Control+Enter")
            wait_until(tab, "() => document.querySelector('#item-title').textContent === 'B?'")
            assert underlined(tab) == []
            press(tab, "n", "Control+Enter")
            tab.wait_for_selector("#empty:not([hidden])")
            press(tab, "[")
        first, second = read_database(server.db, "qa_feedback").submissions
        assert first.doc["errors"][0]["origin"] == origin(0)
        assert "suggestions" not in second.doc
        settings = SubmissionsSettings(
            task="qa_feedback", db=str(server.db), out=str(tmp_path / "all.jsonl")
        )
        write_submissions(settings)
        lines = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
        assert [line["suggestions"] for line in lines] == [
            {"shown": True, "verdicts": ["accepted", "rejected", "rejected"]},
            {"shown": False, "verdicts": []},
        ]
        assert lines[0]["seconds"]["active"] > 0
        out = tmp_path / "out.json"
        write_export(server.db, out, pages="annotation")
        text = out.read_text()
        assert "suggestions" not in text and "origin" not in text
