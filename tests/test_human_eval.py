"""Tables of a blind human evaluation by hand, in the mini world, and the size that it needs."""

import math

import numpy as np
import pytest

from benchmarks.human_coverage import Population, coverage
from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, write_json, write_jsonl
from interface_html.command import main as feedback
from interface_html.human_eval import main
from interface_html.power import (
    PowerSettings,
    items_needed,
    report,
    simulated,
    simulated_power,
    variance,
)

RESPONSES = {"a": "It is here. It is good.", "b": "It is gone. It is good."}


@pytest.fixture
def study(tmp_path):
    """Twenty prompts of hh_rlhf, with the responses of both policies, and the items."""
    for policy, text in RESPONSES.items():
        rows = [
            {"id": str(i), "prompt": f"Where {i}?", "responses": [f"{text} ({i})"]}
            for i in range(20)
        ]
        write_jsonl(tmp_path / f"{policy}.jsonl", rows)
    source = f"source={tmp_path / 'a.jsonl'},{tmp_path / 'b.jsonl'}"
    feedback(["items", "hh_rlhf", source, "blind=true", f"out={tmp_path / 'items.json'}"])
    return tmp_path


def judgements(folder, name, preference_of):
    """A feedback file by an annotator, in another order than the items."""
    rows = []
    for item in read_json(folder / "items.json"):
        better = {"a": 1, "b": 2, None: 0}[preference_of(int(item["prompt"][6:-1]))]
        if "gone" in item["responses"][0] and better:
            better = 3 - better  # b is shown first
        rows.append({**item, "preferences": [better]})
    write_json(folder / f"{name}.json", list(reversed(rows)))
    return str(folder / f"{name}.json")


def run(folder, *files):
    key = folder / "items.key.json"
    out = folder / "human_eval.json"
    main(["hh_rlhf", f"key={key}", f"files={','.join(files)}", f"out={out}"])
    return {table["title"].partition(":")[0]: table["rows"] for table in read_json(out)["tables"]}


def test_comparisons_by_hand(study, capsys):
    # anna prefers a for 15 of 20, ben for all: the mean over annotators is 35 / 40
    anna = judgements(study, "anna", lambda i: "a" if i < 15 else None)
    ben = judgements(study, "ben", lambda i: "a")
    row = run(study, anna, ben)["Comparisons"]["a : b"]
    assert row["win"]["mean"] == pytest.approx(35 / 40)
    assert row["tie"]["mean"] == pytest.approx(5 / 40) and row["lose"]["mean"] == 0
    assert row["win rate"]["mean"] == pytest.approx(37.5 / 40)
    assert row["win"]["low"] < 35 / 40 < row["win"]["high"]
    result = read_json(study / "human_eval.json")
    assert result["annotators"] == {anna: 20, ben: 20} and result["prompts"] == 20
    assert "preference alpha" in result["agreement"]
    printed = capsys.readouterr().out
    assert "20 items by 2 annotators" in printed and "a : b" in printed


def test_a_database_gives_the_same_tables(study):
    files = [judgements(study, name, lambda i: "a" if i < 15 else "b") for name in ("anna", "ben")]
    by_files = run(study, *files)
    db = study / "feedback.sqlite"
    feedback(["collect", "hh_rlhf", f"files={','.join(files)}", f"db={db}"])
    out = study / "from_db.json"
    main(["hh_rlhf", f"key={study / 'items.key.json'}", f"db={db}", f"out={out}"])
    assert read_json(out)["tables"][0]["rows"] == by_files["Comparisons"]


def test_a_judged_item_of_another_study(study):
    anna = judgements(study, "anna", lambda i: "a")
    rows = read_json(anna)
    rows[0]["prompt"] = "Another?"
    write_json(anna, rows)
    with pytest.raises(UserError, match="1 judged item of 20 are not in the key, such as item-"):
        run(study, anna)


def test_errors_by_hand(tmp_path):
    """One output: detoxification marks sentences. Half of what b says is toxic by one of two."""
    texts = {"a": "It is fine.", "b": "You are bad."}
    for policy, text in texts.items():
        rows = [
            {"id": str(i), "prompt": f"P{i}", "response": f"{text} It is number {i}."}
            for i in range(20)
        ]
        write_jsonl(tmp_path / f"{policy}.jsonl", rows)
    out = tmp_path / "items.json"
    source = f"source={tmp_path / 'a.jsonl'},{tmp_path / 'b.jsonl'}"
    feedback(["items", "detoxification", source, "blind=true", f"out={out}"])
    files = []
    for name, marks in (("anna", True), ("ben", False)):
        rows = []
        for item in read_json(out):
            is_bad = marks and item["response"].startswith("You")
            span = {"start": 0, "end": 12, "label": "Insult"}
            rows.append({**item, "spans": [span] if is_bad else []})
        write_json(tmp_path / f"{name}.json", rows)
        files.append(str(tmp_path / f"{name}.json"))
    given = [f"key={tmp_path / 'items.key.json'}", f"files={','.join(files)}"]
    main(["detoxification", *given, f"out={tmp_path / 'h.json'}", "level=sentence"])
    errors, differences = read_json(tmp_path / "h.json")["tables"]
    n = len(errors["rows"]["b"])
    assert n == len(errors["columns"]) > 1 and errors["columns"][0] == "any error"
    # one of two sentences, by one of two annotators
    assert errors["rows"]["b"]["any error"]["mean"] == pytest.approx(0.25)
    assert errors["rows"]["b"]["Insult"]["mean"] == pytest.approx(0.25)
    assert errors["rows"]["b"]["Threat"]["mean"] == errors["rows"]["a"]["any error"]["mean"] == 0
    assert differences["rows"]["a - b"]["any error"]["mean"] == pytest.approx(-0.25)


def test_without_judgements(study):
    with pytest.raises(UserError, match="no item has a judgement yet"):
        run(study, str(study / "items.json"))
    with pytest.raises(UserError, match="set either a database"):
        main(["hh_rlhf", f"key={study / 'items.key.json'}"])
    with pytest.raises(UserError, match="is of the task hh_rlhf, not of imdb"):
        main(["imdb", f"key={study / 'items.key.json'}", "files=x.json"])


# ---- the mini world ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def population():
    return Population.make(200, 0)


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_tables_cover_the_oracle(population, noise):
    shares = coverage(population, 40, 2, noise, 12, 0)
    assert set(shares) >= {"any error", "Irrelevant", "difference", "win", "tie", "lose"}
    assert all(share >= 0.8 for share in shares.values()), shares


def test_truths_of_the_population(population):
    for policy, shares in population.shares.items():
        kinds = sum(share for kind, share in shares.items() if kind != "any error")
        assert kinds == pytest.approx(shares["any error"]), policy
    assert population.shares["rl"]["any error"] < population.shares["sft"]["any error"]
    win, tie = population.outcomes["rl : sft"]
    assert win > 1 - win - tie


# ---- power ---------------------------------------------------------------------------------------


def test_items_by_hand():
    # v = 1 - .2 - .04 = .76; (1.95996 + .84162)^2 .76 / .04 = 149.1
    settings = PowerSettings(d=0.2)
    assert variance(settings, 1) == pytest.approx(0.76)
    assert items_needed(settings, 1) == math.ceil(7.8489 * 0.76 / 0.04)
    assert variance(settings, 2) == pytest.approx(0.76 * 0.75)  # agreement .5
    errors = PowerSettings(d=0.1, of="errors", segments=5)
    sigma_2 = 0.3 * 0.7 + 0.2 * 0.8
    assert variance(errors, 1) == pytest.approx(sigma_2 / 5 * (1 + 4 * 0.5 * 0.2))


@pytest.mark.parametrize("of, d", [("comparisons", 0.3), ("errors", 0.15)])
def test_the_simulation_has_the_variance_of_the_equation(of, d):
    settings = PowerSettings(d=d, of=of)
    rng = np.random.default_rng(0)
    means = [simulated(settings, 50, 3, rng).mean for _ in range(500)]
    assert np.mean(means) == pytest.approx(d, abs=0.02)
    assert np.var(means) * 50 == pytest.approx(variance(settings, 3), rel=0.2)


def test_power_of_no_difference_is_small():
    settings = PowerSettings(d=1e-9, of="errors", runs=200)
    assert simulated_power(settings, 50, 2) < 0.06


def test_the_report_reaches_the_power():
    lines = list(report(PowerSettings(d=0.4, runs=200, annotators=[1, 3])))
    for line in lines[3:5]:
        assert float(line.split()[-1]) >= 0.8
    needed = [int(line.split()[2]) for line in lines[3:5]]
    assert needed[1] < needed[0]


@pytest.mark.parametrize(
    "given, message",
    [(["d=0.9"], "0.9 is impossible with ties=0.2"), (["d=0.5", "of=errors"], "0.5 is above sha")],
)
def test_impossible_differences(given, message):
    with pytest.raises(UserError, match=message):
        main(["power", *given])


def test_a_small_difference_is_not_simulated():
    # millions of items: the equation holds, and simulations would take days
    settings = PowerSettings(d=0.001, annotators=[1])
    needed = f"{items_needed(settings, 1):,}"
    assert list(report(settings))[3].split() == ["1", needed, needed, needed, "–"]
