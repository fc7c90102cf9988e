"""Majorities of preferences that contradict each other: 1 > 2 > 3 > 1."""

import json
import random

import pytest
from made_tasks import ROW, task_with
from page_helpers import QA
from test_database import Clock
from test_rules import ROW as QA_ROW

from interface_html import export
from interface_html.assignments import Receipt
from interface_html.database import Database
from interface_html.format import Item
from interface_html.rules import find_cycle, pairs_in_circles, preference_problems
from interface_html.votes import majority, majority_preference

SCHEMA = QA.schema
# of outputs 0 to 3, the best first
RANKINGS = {"anna": [0, 1, 2, 3], "ben": [1, 2, 0, 3], "carla": [2, 0, 1, 3]}


def preference_of(ranking: list[int]) -> list[int]:
    """The value of each pair; outputs come from the best to the worst."""
    return [1 if ranking.index(i) < ranking.index(j) else 2 for i, j in SCHEMA.pairs]


CIRCLE = [preference_of(ranking) for ranking in RANKINGS.values()]


def test_pairs_in_circles_by_hand():
    # pairs 01, 02, 03, 12, 13, 23
    assert pairs_in_circles(4, SCHEMA.pairs, [1, 2, 1, 1, 1, 1]) == [0, 1, 3]
    assert pairs_in_circles(4, SCHEMA.pairs, [1, 0, 2, 1, 0, 1]) == [0, 2, 3, 5]
    assert pairs_in_circles(4, SCHEMA.pairs, [1, 0, 1, 1, 1, 1]) == []


def test_the_weakest_pairs_of_a_circle_become_ties():
    """0 > 1 > 2 > 0, each by two votes to one; all are better than output 3."""
    assert find_cycle(4, SCHEMA.pairs, majority(CIRCLE)) == [0, 1, 2]
    assert majority_preference(SCHEMA, CIRCLE) == [0, 0, 1, 0, 1, 1]
    # 0 > 1 by 5 to 2, 1 > 2 by 5 to 2, 2 > 0 by 4 to 3
    assert majority_preference(SCHEMA, CIRCLE, [3.0, 2.0, 2.0]) == [1, 0, 1, 1, 1, 1]


def test_no_majority_goes_in_a_circle():
    rng = random.Random(0)
    circles = 0
    for _ in range(300):
        rankings = [rng.sample(range(4), 4) for _ in range(rng.choice([3, 5]))]
        plain = majority([preference_of(ranking) for ranking in rankings])
        decided = majority_preference(SCHEMA, [preference_of(one) for one in rankings])
        circle = find_cycle(4, SCHEMA.pairs, plain)
        assert preference_problems(SCHEMA, decided) == []
        assert bool(pairs_in_circles(4, SCHEMA.pairs, plain)) == (circle is not None)
        if circle is None:
            assert decided == plain
        else:
            circles += 1
        # the result does not depend on the order in which the outputs are listed
        reversed_outputs = [[3 - output for output in ranking] for ranking in rankings]
        other = majority_preference(SCHEMA, [preference_of(one) for one in reversed_outputs])
        values = dict(zip(SCHEMA.pairs, other))
        swapped = {0: 0, 1: 2, 2: 1}
        assert [swapped[values[3 - j, 3 - i]] for i, j in SCHEMA.pairs] == decided
    assert circles > 10


@pytest.mark.parametrize("name", ["qa_feedback", "made"])
def test_a_circle_does_not_prevent_the_export(name, tmp_path, monkeypatch, capsys):
    """Also of a task in the default format, whose rows are checked before they are written."""
    task = QA if name == "qa_feedback" else task_with(tmp_path)
    monkeypatch.setattr(export, "feedback_of", lambda _: task)
    row = QA_ROW if name == "qa_feedback" else task.format.item_row(task.schema, ROW, "")
    database = Database(tmp_path / "f.sqlite", name, per_item=3, clock=Clock())
    database.add_items([Item("0", row), Item("1", {**row, "more": 1})])
    for annotator, preference in zip(RANKINGS, CIRCLE):
        while given := database.next(annotator, "comparison", 4):
            chosen = preference if given.item.id == "0" else CIRCLE[0]
            uuid = f"{annotator}-{given.item.id}"
            database.submit(given, uuid, {"preference": chosen}, Receipt(1.0, "1"))
    database.close()
    values = {"task": name, "db": str(tmp_path / "f.sqlite"), "out": str(tmp_path / "o.json")}
    export.export(export.FeedbackExportSettings(**values, policy="majority", pages="comparison"))
    rows = json.loads((tmp_path / "o.json").read_text())
    key = "preference" if name == "qa_feedback" else "preferences"
    assert [row[key] for row in rows] == [[0, 0, 1, 0, 1, 1], CIRCLE[0]]
    assert "in 1 item, the majority went in a circle" in capsys.readouterr().out
    export.export(export.FeedbackExportSettings(**values, policy="latest", pages="comparison"))
    assert "in a circle" not in capsys.readouterr().out
