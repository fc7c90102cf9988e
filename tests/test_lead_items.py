"""The items on the lead's page: their order, their judgements and the page in a browser."""

import json
import re

from page_helpers import ITEM, LOOKS, QA, TEXT, identify, new_context, press, reload, violations
from rating_tasks import rating_task
from server_helpers import Client
from test_lead import entry, led, token_of
from test_rules import ROW, doc, error, missing

from interface_html import adjudicate, collect, export
from interface_html.format import Item
from interface_html.lead_items import item_list, item_view
from interface_html.ratings import rating_problems
from interface_html.stored import Study

KIND = next(kind for kind in QA.schema.errors if kind.name == "Irrelevant")


def study(*submissions) -> Study:
    items = [Item(str(i), ROW) for i in range(4)]
    return Study(items, list(submissions), {}, [])


def test_the_items_with_the_least_agreement_come_first():
    same, other = doc([error()]), doc([error(start=8, end=11)])
    prefers = {"preference": [1, 1, 1, 0, 2, 2]}
    half = {"preference": [1, 1, 1, 1, 1, 1]}
    entries = (
        entry("anna", "0", "annotation", same),
        entry("ben", "0", "annotation", same),
        entry("anna", "1", "annotation", same),
        entry("ben", "1", "annotation", other),
        entry("anna", "2", "annotation", same),
        entry("anna", "3", content=prefers),
        entry("ben", "3", content=half),
    )
    rows = item_list(QA.schema, study(*entries))
    # of item 3, three of the six pairs of outputs; item 2 has one annotator
    agreement = [(row["item"], row["agreement"]) for row in rows]
    assert agreement == [("1", 0.0), ("3", 0.5), ("0", 1.0), ("2", None)]
    assert rows[0]["annotators"] == ["anna", "ben"] and rows[0]["number"] == 1
    assert [row["differ"] for row in rows] == [["annotation"], ["comparison"], [], []]


def test_annotations_with_the_same_marks_and_other_corrections_can_be_decided():
    one, other = doc([error()]), doc([error()], corrected="Other.")
    given = [entry(name, "0", "annotation", of) for name, of in (("anna", one), ("ben", other))]
    (row,) = item_list(QA.schema, study(*given))
    assert (row["agreement"], row["differ"]) == (1.0, ["annotation"])


def test_an_item_has_everybodys_latest_judgement():
    lacking = [missing(ids=(2, 0))]
    first, second = doc([error()]), doc([error(start=8, end=11)], lacking, comment="Hm.")
    entries = (
        entry("anna", "0", "annotation", first),
        entry("anna", "0", "annotation", second, revision=2),
        entry("anna", "0", content={"preference": [1, 0, 0, 0, 0, 0], "all-bad": True}),
        entry("ben", "1"),
    )
    view = item_view(QA.schema, study(*entries), 0)
    assert [text["side"] for text in view["texts"]] == [f"output {i}" for i in range(1, 5)]
    annotation, comparison = view["judgements"]
    (mark,) = annotation["marks"]
    assert (mark["side"], mark["start"], mark["end"]) == ("output 1", 8, 11)
    assert (mark["label"], mark["color"]) == (KIND.label, KIND.color)
    assert annotation["comment"] == "Hm."
    assert comparison["preferences"][0] == {"first": 1, "second": 2, "better": 1}
    assert comparison["all_bad"] and not annotation["all_bad"]
    (lack,) = annotation["missing"]
    title, _, second_sentence = ROW["passages"][0][:3]
    assert lack["sentences"] == [second_sentence, title]


def test_ratings_are_shown_by_their_labels(tmp_path):
    schema = rating_task(tmp_path).schema
    row = dict.fromkeys(schema.row, "text")
    names = [scale.name for scale in schema.ratings]
    outputs = schema.fields.outputs
    ratings = {key: dict.fromkeys(names, n + 1) for n, key in enumerate(outputs)}
    content = {"ratings": ratings, "order": list(range(len(outputs)))}
    assert rating_problems(schema, content) == []
    given = [entry("anna", "0", "rating", content)]
    view = item_view(schema, Study([Item("0", row)], given, {}, []), 0)
    shown = view["judgements"][0]["ratings"]
    label = schema.ratings[0].label
    assert [of[0] for of in shown] == [
        {"label": label, "value": n + 1} for n in range(len(outputs))
    ]


def test_items_are_opened_found_and_downloaded(chromium, tmp_path):
    hostile = "<img src=x onerror=alert(1)>"
    rows = [{**ITEM, "id": f"item {i}", "question": hostile} for i in range(2)]
    (tmp_path / "items.json").write_text(json.dumps(rows))
    with led(tmp_path, items=tmp_path / "items.json", per_item=2) as (server, token):
        for name in ("anna", "ben"):
            for start in (0, 4):
                client = Client(server.port, name)
                body = client.submission(client.next())
                end = 11 if name == "anna" else 7
                mark = error(start=start, end=end, quote=TEXT[start:end])
                body["doc"].update(doc([mark], [missing(ids=(1, 2))], comment="Hm."))
                status, answer = client.call("POST", "/api/submissions", body)
                assert status == 201, answer
        for path in ("/api/lead/items", "/api/lead/items/0", "/api/lead/submissions"):
            assert Client(server.port, "anna").call("GET", path)[0] == 401
        reader = {"Authorization": f"Bearer {token_of(server, 'read only')}"}
        client = Client(server.port, "anna")
        assert client.call("GET", "/api/lead/items/9", headers=reader)[0] == 404
        for width, scheme in LOOKS:
            size = {"width": width, "height": 800}
            context = new_context(chromium, bypass_csp=True, color_scheme=scheme, viewport=size)
            tab = context.new_page()
            tab.goto(f"http://127.0.0.1:{server.port}/lead#token={token}")
            tab.wait_for_selector("#lead table")
            tab.click("#load-items")
            tab.wait_for_selector("[data-open]")
            assert tab.locator("[data-open]").count() == 2
            tab.fill("#find-item", "item 1")
            assert tab.locator("[data-open]").all_inner_texts() == ["item 1"]
            tab.click("[data-open]")
            tab.wait_for_selector("#shown-item:not([hidden])")
            assert tab.evaluate("document.activeElement.id") == "shown-title"
            assert tab.locator("#shown-item .candidate h4").all_inner_texts() == ["anna", "ben"]
            marked = tab.locator("#shown-item .candidate").nth(0).locator(".marked")
            assert marked.all_inner_texts() and marked.first.get_attribute("title") == KIND.label
            assert hostile in tab.inner_text("#shown-item")
            assert not tab.locator("#shown-item img").count()
            assert "Comment: Hm." in tab.inner_text("#shown-item")
            lacks = "(“A cat sat.”, “It was\xa0blue.”)"
            assert lacks in re.sub("[\u2068\u2069]", "", tab.inner_text("#shown-item"))
            assert violations(tab) == []
            assert tab.evaluate("document.documentElement.scrollWidth") <= width
            with tab.expect_download() as event:
                tab.click("#download-all")
            assert event.value.suggested_filename == "qa_feedback-submissions.jsonl"
            lines = event.value.path().read_text(encoding="utf-8").splitlines()
            assert len([json.loads(line) for line in lines]) == 4
            context.close()


def test_an_item_is_decided_from_the_leads_page(chromium, tmp_path):
    """The page stores the decisions in the lead's browser: the study itself stays as it is."""
    with led(tmp_path, items=1, per_item=2) as (server, token):
        for name, end in (("anna", 11), ("ben", 7)):
            client = Client(server.port, name)
            body = client.submission(client.next())
            body["doc"].update(doc([error(start=4, end=end, quote=TEXT[4:end])]))
            assert client.call("POST", "/api/submissions", body)[0] == 201
        client = Client(server.port, "anna")
        address = "/api/lead/items/0/decide"
        assert client.call("POST", address, {"page": "annotation"})[0] == 401
        lead = {"Authorization": f"Bearer {token}"}
        assert client.call("POST", address, {"page": "comparison"}, lead)[0] == 404
        assert client.call("GET", "/lead/decide/guessed")[0] == 404
        context = new_context(chromium)  # with the content security policy
        tab = context.new_page()
        tab.goto(f"http://127.0.0.1:{server.port}/lead#token={token}")
        tab.click("#load-items")
        with context.expect_page() as opened:
            tab.click("#item-list button[aria-label='Decide i0: annotation']")
        page = opened.value
        identify(page, "lena")
        page.wait_for_selector("#work:not([hidden])")
        press(page, ".")  # the first difference
        assert "1 of " in page.inner_text("#message")
        page.fill("#correction", "Decided.")
        reload(page)
        assert page.input_value("#correction") == "Decided."
        page.click("[data-key='all-1']")  # all of B
        press(page, "Control+Enter")
        files = {}
        for button in ("download", "record"):
            with page.expect_download() as event:
                page.click(f"#{button}")
            files[button] = str(event.value.path())
        task = {"task": "qa_feedback"}
        items, decided = str(tmp_path / "disagreements.json"), str(tmp_path / "decided.sqlite")
        adjudicate.adjudicate(adjudicate.AdjudicateSettings(**task, db=str(server.db), out=items))
        given = {"items": items, "files": files["download"], "records": files["record"]}
        collect.collect(collect.CollectSettings(**task, **given, db=decided))
        settings = {"db": str(server.db), "out": str(tmp_path / "out.json"), "pages": "annotation"}
        settings |= {"policy": "adjudicated", "adjudicated": decided}
        export.export(export.FeedbackExportSettings(**task, **settings))
        (row,) = json.loads((tmp_path / "out.json").read_text())
        assert [mark["end"] for mark in row["feedback"]["errors"]] == [7]
        assert row["decided"] == {"annotation": "adjudicated"}
        context.close()
