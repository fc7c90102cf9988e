"""Comparison with other packages: the table by hand on toy sides, equal work with TRL.

The tests of equal work need TRL.
"""

import importlib.util
import json
import math
from dataclasses import replace

import pytest

from benchmarks import peer_dpo, peer_grpo, peer_reward_trainer, peers
from benchmarks.peers import Measured, PeerComparison, Side
from fgrlhf.base.errors import UserError
from fgrlhf.base.program import run_main

MODEL = {"vocab": 400, "width": 32, "layers": 2, "heads": 2, "steps": 3}
LENGTHS = {"prompt_words": (10, 30), "answer_words": (4, 8)}
ROWS = {
    "reward_trainer": (peer_reward_trainer, {**LENGTHS, "max_length": 30}),
    "dpo": (peer_dpo, {**LENGTHS, "pairs": 2}),
    "grpo": (peer_grpo, {"prompt_tokens": 20, "tokens": 5, "prompts": 2, "samples": 2}),
}
needs_trl = pytest.mark.skipif(
    importlib.util.find_spec("trl") is None, reason=f"trl is not installed: {peers.INSTALL}"
)


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A function: row -> its tiny comparison, and the work."""
    monkeypatch.setenv("CI", "1")  # turns off TRL's telemetry

    def made(name: str):
        module, size = ROWS[name]
        row = module.comparison(module.Size(**MODEL, **size))
        return row, row.prepare(tmp_path)

    return made


def toy(
    calls: list, check=lambda work: {"size": work}, package="numpy", at_least=1.3
) -> PeerComparison:
    """Ours takes 1 s for 10 units, 5 s with its slow setting; the peer 2 s, half of it overhead."""

    def side(name, seconds):
        def run(work, choice):
            calls.append((name, *choice.values()))
            return Measured(work, seconds * choice["times"], 1.0)

        return Side(run, [{"times": 1}, {"times": 5}])

    sides = (side("ours", 1.0), side("peer", 2.0))
    return PeerComparison("toy", package, "a toy", "units", lambda _: 10, check, *sides, at_least)


def no_memory(name, side, choice):
    return {"peak_mb": 100.0 if side == "ours" else 200.0, "added_mb": 1.0}


# ---- the table -----------------------------------------------------------------------------------


def test_tuning_takes_the_fastest_setting_of_each_side():
    row = toy([])
    row = replace(row, peer=Side(row.peer.run, [{"times": 5}, {"times": 1}]))
    result = peers.compare(row, rounds=1, tune=True, memory=no_memory)
    assert result["choices"] == {"ours": {"times": 1}, "peer": {"times": 1}}
    assert result["step"]["ratio"] == 2
    assert [tried["rate"] for tried in result["tried"]["peer"]] == [1, 5]
    assert (
        peers.compare(row, rounds=1, memory=no_memory)["step"]["ratio"] == 10
    )  # default the first one


def test_the_table():
    calls = []
    results = {
        "a": peers.compare(toy(calls), 3, memory=no_memory),
        "b": peers.compare(toy([], at_least=3), 1, memory=no_memory),
    }
    assert [name for name, _ in calls] == ["ours", "peer", "peer", "ours", "ours", "peer"]
    head, _, a, b = peers.table(json.loads(json.dumps(results))).splitlines()
    assert "10 units/s" in a and "3: missed" in b
    assert "**2.00** (2.00 to 2.00) | 1.00 | 1.3: met | 100 / 200 MB |" in a
    assert head.count("|") == a.count("|") == b.count("|")


def test_nothing_is_timed_where_the_sides_differ():
    def check(work):
        raise UserError("they differ")

    calls = []
    with pytest.raises(UserError, match="they differ"):
        peers.compare(toy(calls, check), rounds=1, memory=no_memory)
    assert not calls


def test_memory_is_that_of_one_side(monkeypatch):
    calls = []
    monkeypatch.setattr(peers, "row", lambda name: toy(calls))
    result = peers.memory_here("toy", "peer", {"times": 1})
    assert calls == [("peer", 1)] and result["peak_mb"] > result["added_mb"] >= 0


def test_a_missing_package_is_one_line_with_the_way_out(monkeypatch, capsys):
    monkeypatch.setattr(peers, "row", lambda name: toy([], package="no_such_peer"))
    with pytest.raises(SystemExit) as stopped:
        run_main(lambda: peers.run(peers.PeersSettings(rows=["toy"])))
    message = capsys.readouterr().err
    assert stopped.value.code == 2 and message.count("\n") == 1
    assert message.startswith("error: no_such_peer is not installed") and peers.INSTALL in message
    monkeypatch.undo()
    with pytest.raises(UserError, match="no row `dpoo`; choose from reward_trainer, dpo, grpo"):
        peers.row("dpoo")


# ---- equal work ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name, units", [("reward_trainer", 24), ("dpo", 4), ("grpo", 8)])
def test_our_side_runs_without_evaluation_checkpoints_and_logging(tiny, name, units):
    row, work = tiny(name)
    result = row.ours.run(work, row.ours.choices[-1])
    assert result.units == units and result.seconds > 0
    if result.loss is not None:
        assert result.loss == pytest.approx(math.log(2), abs=0.2)


def test_our_trainers_take_the_work_as_it_comes(tiny):
    row, work = tiny("reward_trainer")
    read, pairs = work.examples[0]
    rows = peer_reward_trainer.trl_rows(work)
    assert len(rows) == 6 * len(work.examples)
    assert max(len(x.input_ids) for four, _ in work.examples for x in four) == 30  # some are cut
    for given, (won, lost, _) in zip(rows, pairs):
        assert given["chosen_ids"] == read[won].input_ids
        assert given["rejected_ids"] == read[lost].input_ids
    assert {won < lost for _, pairs in work.examples for won, lost, _ in pairs} == {True, False}
    trainer = peer_reward_trainer.our_trainer(work, {"micro": 1})
    assert [trainer.batch_indices(step) for step in range(3)] == [[0, 1], [2, 3], [4, 5]]


@needs_trl
@pytest.mark.parametrize("name", ROWS)
def test_trl_does_equal_work(name, tiny, capsys):
    row, work = tiny(name)
    facts = row.check(work)
    ours, peer = (side.run(work, side.choices[0]) for side in (row.ours, row.peer))
    assert ours.units == peer.units
    if name == "grpo":
        assert facts["gradients apart"] < 1e-4
    else:
        assert ours.loss == pytest.approx(peer.loss, abs=1e-4)
        losses = facts["loss_over_steps"]
        assert losses["ours"] == pytest.approx(losses["peer"], abs=1e-5)
    if name == "reward_trainer":
        assert facts["parameters"]["ours"] == facts["parameters"]["peer"]
        tokens = facts["tokens_of_first_step"]
        assert tokens["peer"] > 3 * tokens["ours"]  # twelve texts, and ours reads the prompt once
    assert "train_runtime" not in capsys.readouterr().out


@needs_trl
@pytest.mark.parametrize("name", ROWS)
def test_other_work_is_noticed(name, tiny, monkeypatch):
    row, work = tiny(name)
    if name == "reward_trainer":

        def mixed_up(work, rows=peer_reward_trainer.trl_rows):
            others = {"chosen_ids": "rejected_ids", "rejected_ids": "chosen_ids"}
            return [{key: one[others.get(key, key)] for key in one} for one in rows(work)]

        monkeypatch.setattr(peer_reward_trainer, "trl_rows", mixed_up)
        message = "the losses before training differ"
    elif name == "dpo":
        real = peer_dpo.encode_comparisons
        monkeypatch.setattr(peer_dpo, "encode_comparisons", lambda *a, **k: real(*a, **k)[::-1])
        message = "different tokens, so their rates cannot be compared"
    else:
        n = work.size.responses
        # ours likes the later response, then TRL the earlier one
        rewards = iter([*range(n), *range(n, 0, -1)])
        monkeypatch.setattr(peer_grpo, "reward_of", lambda text: float(next(rewards)))
        message = "gradients from the same samples differ"
    with pytest.raises(UserError, match=message):
        row.check(work)
