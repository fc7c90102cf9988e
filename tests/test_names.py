"""Spellings of one name are one annotator, everywhere; old databases are joined."""

from page_helpers import ITEM, QA, press
from served_pages import visiting
from server_helpers import Client, serving
from test_database import DOC, Clock

from fgrlhf.base.files import write_json
from fgrlhf.data.agreement.responses import by_response
from fgrlhf.data.judgements import JUDGEMENTS
from fgrlhf.data.names import Spellings, name_key
from fgrlhf.data.rows import Row
from interface_html.database import Database
from interface_html.decisions import Decision, changes_since
from interface_html.format import Item
from interface_html.judged_items import judged_in_files
from interface_html.serve import _different_names
from interface_html.stored import read_database
from interface_html.weighting import Weights

COMPOSED, DECOMPOSED = "Zo\u00eb", "Zoe\u0308"
SAME = ["Anna", "anna", " ANNA ", "Ａｎｎａ", "a\u00a0 b", "A B", COMPOSED, DECOMPOSED, "Straße"]


def test_keys_by_hand():
    assert [name_key(name) for name in SAME] == [
        *["anna"] * 4,
        *["a b"] * 2,
        *["zo\u00eb"] * 2,
        "strasse",
    ]
    assert name_key("anna b") != name_key("annab") and name_key("Ana") != name_key("Anna")
    spellings = Spellings()
    assert [spellings.of(name) for name in (DECOMPOSED, COMPOSED, "ZOË")] == [DECOMPOSED] * 3
    assert _different_names(["Ben", "anna", "BEN", "Anna "]) == ["Ben", "anna"]


def test_two_spellings_are_one_annotator_of_the_server(tmp_path):
    with serving(tmp_path, items=2, per_item=2) as server:
        first = Client(server.port, "Anna")
        given = first.next()
        body = first.submission(given)
        assert first.call("POST", "/api/submissions", body)[0] == 201
        for spelling in ("anna", "%EF%BC%A1nna", "ANNA"):
            client = Client(server.port, spelling)
            answer = client.call("POST", "/api/next", {"page": "annotation"})[1]
            assert answer["annotator"] == "Anna" and answer["assignment"]["item"]["id"] == "i1"
        known = Client(server.port, "anna").call("GET", "/api/assignments?page=comparison")[1]
        assert (known["annotator"], known["known"], known["submissions"]) == ("Anna", True, 1)
        other = Client(server.port, "ben").call("GET", "/api/assignments?page=annotation")[1]
        assert (other["annotator"], other["known"], other["submissions"]) == ("ben", False, 0)
    study = read_database(server.db, "qa_feedback")
    assert {entry.annotator for entry in study.submissions} == {"Anna"}


def test_a_token_belongs_to_all_spellings_of_a_name(tmp_path):
    database = Database(tmp_path / "f.sqlite", "t", clock=Clock())
    old = database.new_token(DECOMPOSED)
    assert database.has_token(COMPOSED)
    token = database.new_token(COMPOSED.upper())
    assert database.annotator_of(token) == DECOMPOSED and database.annotator_of(old) is None
    database.close()


def test_a_lease_from_a_clock_that_was_ahead_does_not_block_an_item(tmp_path):
    clock = Clock()
    database = Database(tmp_path / "f.sqlite", "t", lease_seconds=60, clock=clock)
    database.add_items([Item("0", {"text": "x"})])
    database.next("anna", "annotation", 1)
    clock.now -= 365 * 86_400  # the clock is set back
    assert database.next("ben", "annotation", 1) is None  # for the time of one lease
    clock.now += 61
    assert database.next("ben", "annotation", 1).item.id == "0"
    database.close()


def test_agreement_and_weights_know_all_spellings(tmp_path, capsys):
    def judged(name, label):
        mark = {"aspect": "x", "label": label, "start": 0, "end": 2, "annotator": name}
        row = {"prompt": "p", "response": "ab cd", "judgements": [mark]}
        return JUDGEMENTS.parse(Row(row, {}), 0)

    shared = by_response(
        {"a": [judged("Anna", "A")], "b": [judged("ben", "A"), judged("anna", "B")]}
    )
    assert [list(entry.by_annotator) for entry in shared] == [["Anna", "ben"], ["Anna"]]
    weights = Weights({"annotation": {"anna": 2.0, "ben": 1.0}})
    assert weights.of("annotation", ["Anna", "BEN", "carla"]) == [2.0, 1.0, 1.5]
    decision = Decision(None, {DECOMPOSED: 1})
    assert changes_since(decision, {COMPOSED: [1]}) == []
    paths, records = [], []
    for name in ("Anna", "anna", "ben"):
        feedback = {**DOC, "corrected-prediction": ITEM["prediction 1"]}
        paths.append(str(tmp_path / f"{len(paths)}.json"))
        records.append(str(tmp_path / f"{len(records)}_record.json"))
        write_json(paths[-1], [{**ITEM, "feedback": feedback}])
        write_json(records[-1], [{"annotator": name, "order": None, "seconds": {}}])
    [entry] = judged_in_files(QA, paths, records)
    assert list(entry.annotations) == [paths[0], paths[2]]
    assert f"{paths[1]}: by the annotator of {paths[0]}" in capsys.readouterr().out


def test_a_known_name_in_another_browser_is_confirmed(chromium, tmp_path):
    with serving(tmp_path, items=3, per_item=2) as server:
        first = Client(server.port, "anna")
        assert first.call("POST", "/api/submissions", first.submission(first.next()))[0] == 201
        with visiting(chromium, server, who="visitor") as tab:
            tab.click("#who")
            tab.fill("#name", "Anna")
            press(tab, "Enter")
            tab.wait_for_selector("#is-me")
            assert "anna has 1 submission here: is that you?" in tab.inner_text("#empty")
            tab.click("#not-me")
            tab.fill("#name", "Anna Berg")
            press(tab, "Enter")
            tab.wait_for_selector("#work:not([hidden])")
            assert "Anna Berg: 0 of" in tab.inner_text("#position")
            tab.click("#who")
            tab.fill("#name", "ANNA")
            press(tab, "Enter")
            tab.click("#is-me")
            tab.wait_for_selector("#work:not([hidden])")
            assert "anna: 1 of" in tab.inner_text("#position")
            tab.reload()
            tab.wait_for_selector("#work:not([hidden])")  # it is not asked again
