"""Comparison with other packages: the table by hand on toy sides, equal work with TRL.

The tests of equal work need TRL.
"""

import importlib.util
import json
import math

import pytest

from benchmarks import peer_dpo, peer_grpo, peers
from benchmarks.peer_reward_trainer import Size, comparison, our_trainer, prepare, trl_rows
from benchmarks.peers import Comparison, Measured, Side
from fgrlhf.base.errors import UserError

TINY = Size(
    vocab=400,
    width=32,
    layers=2,
    heads=2,
    max_length=60,
    prompt_words=(20, 30),
    answer_words=(4, 8),
    steps=3,
)
needs_trl = pytest.mark.skipif(
    importlib.util.find_spec("trl") is None, reason=f"trl is not installed: {peers.INSTALL}"
)


def toy(
    calls: list, check=lambda work: {"size": work}, package="numpy", at_least=1.3
) -> Comparison:
    """Ours takes 1 s for 10 units, 5 s with its slow setting; the peer 2 s, half of it overhead."""

    def side(name, seconds):
        def run(work, choice):
            calls.append((name, *choice.values()))
            return Measured(work, seconds * choice["times"], 1.0)

        return Side(run, [{"times": 1}, {"times": 5}])

    return Comparison(
        "toy",
        package,
        "a toy",
        "units",
        lambda folder: 10,
        check,
        side("ours", 1.0),
        side("peer", 2.0),
        at_least,
    )


def no_memory(name, side, choice):
    return {"peak_mb": 100.0 if side == "ours" else 200.0, "added_mb": 1.0}


# ---- the harness ---------------------------------------------------------------------------------


def test_ratios_are_those_of_single_rounds():
    ours = [Measured(6, 1.0, 1.0), Measured(6, 2.0, 1.0), Measured(6, 3.0, 3.0)]
    peer = [Measured(12, 4.0, 4.0), Measured(12, 4.0, 4.0), Measured(12, 12.0, 6.0)]
    result = peers.paired(ours, peer)  # rates 6, 3, 2 and 3, 3, 1
    assert (result["ours"], result["peer"], result["ratio"]) == (3, 3, 2)
    assert result["ratio_rounds"] == [2, 1, 2] and result["cpu_ratio"] == 2  # 6 / 3, 6 / 3, 2 / 2


def test_rounds_alternate_and_begin_with_either_side(capsys):
    calls = []
    result = peers.alternate(toy(calls), 10, {"ours": {"times": 1}, "peer": {"times": 1}}, rounds=3)
    assert [name for name, _ in calls] == ["ours", "peer", "peer", "ours", "ours", "peer"]
    assert (result["ours"], result["peer"], result["ratio"], result["cpu_ratio"]) == (10, 5, 2, 1)
    assert "round 3: ours 10, numpy 5 units/s" in capsys.readouterr().out


def test_tuning_takes_the_fastest_setting_of_each_side():
    calls, slow_first = [], [{"times": 5}, {"times": 1}]
    row = toy(calls)
    row = Comparison(**{**vars(row), "peer": Side(row.peer.run, slow_first)})
    result = peers.compare(row, rounds=1, tune=True, memory=no_memory)
    assert (
        result["choices"] == {"ours": {"times": 1}, "peer": {"times": 1}} and result["ratio"] == 2
    )
    assert [tried["rate"] for tried in result["tried"]["peer"]] == [1, 5]
    assert peers.compare(row, rounds=1, memory=no_memory)["ratio"] == 10  # by default the first one


def test_the_table():
    results = {
        "a": peers.compare(toy([]), 3, memory=no_memory),
        "b": peers.compare(toy([], at_least=3), 1, memory=no_memory),
    }
    head, _, a, b = peers.table(json.loads(json.dumps(results))).splitlines()
    assert (
        "10 units/s" in a
        and "**2.00** (2.00 to 2.00) | 1.00 | 1.3: met | 100 / 200 MB |" in a
        and "3: missed" in b
    )
    assert head.count("|") == a.count("|") == b.count("|")


def test_nothing_is_timed_where_the_sides_differ():
    def check(work):
        raise UserError("they differ")

    calls = []
    with pytest.raises(UserError, match="they differ"):
        peers.compare(toy(calls, check), rounds=1, memory=no_memory)
    assert not calls


def test_memory_is_that_of_one_side():
    calls = []
    result = peers.memory_here(toy(calls), "peer", {"times": 1})
    assert calls == [("peer", 1)] and result["peak_mb"] > result["added_mb"] >= 0


def test_a_missing_package_is_one_line_with_the_way_out(monkeypatch, capsys):
    monkeypatch.setattr(peers, "row", lambda name: toy([], package="no_such_peer"))
    monkeypatch.setattr("sys.argv", ["peers"])
    with pytest.raises(SystemExit) as stopped:
        peers.run_main(peers.main)
    message = capsys.readouterr().err
    assert stopped.value.code == 2 and message.count("\n") == 1
    assert message.startswith("error: no_such_peer is not installed") and peers.INSTALL in message


def test_an_unknown_row_is_refused():
    with pytest.raises(UserError, match="no row `dpoo`; choose from reward_trainer, dpo, grpo"):
        peers.row("dpoo")


# ---- the reward trainers -------------------------------------------------------------------------


@pytest.fixture
def work(tmp_path):
    return prepare(tmp_path, TINY)


def test_both_sides_are_given_the_same_pairs(work):
    assert len(work.examples) == TINY.questions * TINY.steps and work.pairs == TINY.questions * 6
    rows = trl_rows(work)
    assert len(rows) == TINY.steps * work.pairs
    read, pairs = work.examples[0]
    assert {len(x.input_ids) for four, _ in work.examples for x in four} >= {TINY.max_length}, (
        "nothing was cut"
    )
    for row, (won, lost, _) in zip(rows, pairs):
        assert (row["chosen_ids"], row["rejected_ids"]) == (
            read[won].input_ids,
            read[lost].input_ids,
        )
    assert {True, False} == {won < lost for _, pairs in work.examples for won, lost, _ in pairs}


def test_ours_runs_without_evaluation_checkpoints_and_logging(work):
    trainer = our_trainer(work, {"micro": 1})
    result = comparison(TINY).ours.run(work, {"micro": 2})
    assert (
        result.units == work.pairs * (TINY.steps - 1)
        and result.seconds > 0
        and math.isfinite(result.loss)
    )
    assert not [path for path in (work.folder / "ours").rglob("*") if path.is_file()]
    assert trainer.micro_batch_size == 1 and trainer.config.train.batch_size == 2


@needs_trl
@pytest.mark.filterwarnings("error:.*deprecated.*:FutureWarning")
def test_trl_does_equal_work(work, monkeypatch, capsys):
    monkeypatch.setenv("CI", "1")  # turns off TRL's telemetry
    row = comparison(TINY)
    facts = row.check(work)
    assert facts["loss"]["ours"] == pytest.approx(facts["loss"]["peer"], abs=1e-5)
    assert facts["parameters"]["ours"] == facts["parameters"]["peer"]
    assert facts["tokens_of_first_step"]["peer"] == 3 * facts["tokens_of_first_step"]["ours"]
    ours, peer = (
        row.ours.run(work, {"micro": 2}),
        row.peer.run(work, {"micro": 3, "sampling": "sequential"}),
    )
    assert ours.units == peer.units and ours.loss == pytest.approx(peer.loss, abs=1e-4)
    other = row.peer.run(work, {"micro": 4, "sampling": "group_by_length"})
    # different pairs in a step
    assert other.units == peer.units and other.loss != pytest.approx(peer.loss, abs=1e-4)
    assert "train_runtime" not in capsys.readouterr().out


@needs_trl
def test_mixed_up_pairs_are_not_equal_work(work, monkeypatch):
    monkeypatch.setenv("CI", "1")

    def mixed_up(work):
        return [
            {**row, "chosen_ids": row["rejected_ids"], "rejected_ids": row["chosen_ids"]}
            for row in trl_rows(work)
        ]

    monkeypatch.setattr("benchmarks.peer_reward_trainer.trl_rows", mixed_up)
    with pytest.raises(UserError, match="the losses before training differ"):
        comparison(TINY).check(work)


# ---- DPO -----------------------------------------------------------------------------------------

TINY_DPO = peer_dpo.Size(
    vocab=400,
    width=32,
    layers=2,
    heads=2,
    prompt_words=(10, 30),
    answer_words=(4, 8),
    pairs=2,
    steps=3,
)


@pytest.fixture
def dpo_work(tmp_path):
    return peer_dpo.prepare(tmp_path, TINY_DPO)


def test_our_dpo_takes_the_pairs_as_they_come(dpo_work):
    trainer = peer_dpo.our_trainer(dpo_work, {"micro": 1})
    assert [trainer.batch(step) for step in range(3)] == [
        [0, 1],
        [2, 3],
        [4, 5],
    ] and trainer.total_steps == 3
    result = peer_dpo.run_ours(dpo_work, {"micro": 2})
    assert (
        result.units == 4
        and result.seconds > 0
        and result.loss == pytest.approx(math.log(2), abs=0.1)
    )


@needs_trl
def test_trl_does_equal_dpo(dpo_work, monkeypatch):
    monkeypatch.setenv("CI", "1")
    row = peer_dpo.comparison(TINY_DPO)
    facts = row.check(dpo_work)
    assert facts["loss_over_steps"]["ours"] == pytest.approx(
        facts["loss_over_steps"]["peer"], abs=1e-5
    )
    assert facts["loss_over_steps"]["ours"] < math.log(2) - 5e-4  # it has learned
    ours, peer = row.ours.run(dpo_work, {"micro": 2}), row.peer.run(dpo_work, {"micro": 2})
    assert ours.units == peer.units == 4 and ours.loss == pytest.approx(peer.loss, abs=1e-4)


@needs_trl
def test_other_texts_are_not_equal_dpo(dpo_work, monkeypatch):
    monkeypatch.setenv("CI", "1")
    real = peer_dpo.encode_comparisons
    monkeypatch.setattr(peer_dpo, "encode_comparisons", lambda *a, **k: real(*a, **k)[::-1])
    with pytest.raises(UserError, match="different tokens, so their rates cannot be compared"):
        peer_dpo.check(dpo_work)


# ---- GRPO ----------------------------------------------------------------------------------------

TINY_GRPO = peer_grpo.Size(
    vocab=400,
    width=32,
    layers=2,
    heads=2,
    prompt_tokens=20,
    tokens=5,
    prompts=2,
    samples=2,
    steps=3,
)


@pytest.fixture
def grpo_work(tmp_path):
    return peer_grpo.prepare(tmp_path, TINY_GRPO)


def test_our_grpo_samples_every_token(grpo_work):
    trainer = peer_grpo.our_trainer(grpo_work, {"micro": 2})
    trainer.train()
    assert [prompt.id for prompt in trainer.batch(1)] == ["2", "3"]
    assert {len(trainer.policy.encode([p.text])[0][0]) for p in grpo_work.prompts} == {20}
    assert [[len(ids) for ids in step] for step in trainer.sampled] == [[5] * 4] * 3
    assert peer_grpo.run_ours(grpo_work, {"micro": 4}).units == 8


@needs_trl
def test_trl_does_equal_grpo(grpo_work, monkeypatch):
    monkeypatch.setenv("CI", "1")
    row = peer_grpo.comparison(TINY_GRPO)
    facts = row.check(grpo_work)
    assert facts["gradients apart"] < 1e-4
    assert row.peer.run(grpo_work, {"micro": 4}).units == 8


@needs_trl
def test_other_rewards_are_not_equal_grpo(grpo_work, monkeypatch):
    monkeypatch.setenv("CI", "1")
    n = TINY_GRPO.responses
    # ours likes the later response, then TRL the earlier one
    rewards = iter([*range(n), *range(n, 0, -1)])
    monkeypatch.setattr(peer_grpo, "reward_of", lambda text: float(next(rewards)))
    with pytest.raises(UserError, match="gradients from the same samples differ"):
        peer_grpo.check(grpo_work)
