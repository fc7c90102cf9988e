"""`make gpu`, with tiny models on a CPU: pieces, resuming, failures, and the document."""

import json
import os

import pytest
import torch
from accelerate.state import AcceleratorState

from benchmarks import gpu, ours
from benchmarks.gpu import GpuSettings
from fgrlhf.base.errors import UserError


@pytest.fixture(autouse=True)
def precision():
    """Pieces in this process set a precision, which later tests of the process must not find."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture
def settings(tmp_path):
    where = {"output_dir": str(tmp_path), "results": None}
    return GpuSettings(rehearsal=True, piece=None, minutes=None, **where)


def test_a_gpu_and_a_known_piece_are_needed(monkeypatch, settings, tmp_path):
    with pytest.raises(UserError, match="no piece huge; choose from correctness"):
        gpu.run(settings.model_copy(update={"piece": "huge"}))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="no GPU here"):
        gpu.run(settings.model_copy(update={"rehearsal": False}))
    assert not list(tmp_path.iterdir())


def test_the_checks_pass_and_can_fail(monkeypatch):
    checks = gpu.correctness(rehearsal=True)["checks"]
    assert 0 < checks["bf16 - fp32, mean nats per token"] < gpu.BF16_APART
    assert checks["largest change of a weight"] > 0
    monkeypatch.setattr(gpu, "_use_reference_weights", lambda trainer: None)
    monkeypatch.setattr(ours, "update", lambda *arguments: {})
    with pytest.raises(UserError, match="at step 0, nats: .*; a step changes no weight"):
        gpu.correctness(rehearsal=True)


def test_a_reward_model_that_changes_when_it_is_saved_is_noticed(monkeypatch):
    load = gpu.load_reward_model

    def damaged(*arguments):
        scorer = load(*arguments)
        for parameter in scorer.model.parameters():
            parameter.data.mul_(2)
        return scorer

    monkeypatch.setattr(gpu, "load_reward_model", damaged)
    assert gpu.reward_model_difference(gpu.REHEARSAL) > 0.01


@pytest.mark.slow
def test_sharded_models_in_one_process_equal_whole_ones(monkeypatch):
    result = gpu.sharded(rehearsal=True)
    assert "RANK" not in os.environ and not torch.distributed.is_initialized()
    assert "| rollout |" in gpu.sharded_table(json.loads(json.dumps(result)))

    def one_step_further(trainer, run_loop_step=gpu.run_loop_step):
        if trainer.sharded:
            run_loop_step(trainer)
        return run_loop_step(trainer)

    monkeypatch.setattr(gpu, "run_loop_step", one_step_further)
    with pytest.raises(UserError, match="losses of whole and of sharded models differ"):
        gpu.sharded(rehearsal=True)


@pytest.fixture
def pieces(monkeypatch, settings, tmp_path):
    """Pretended processes of pieces: those that started, and the errors that some end with."""
    started, errors = [], {}

    def in_processes(function, arguments, **_):
        name = arguments["name"]
        started.append(name)
        if name in errors:
            raise UserError(errors[name])
        gpu.write_json(tmp_path / f"{name}.json", {})

    monkeypatch.setattr(gpu, "in_processes", in_processes)
    monkeypatch.setattr(gpu, "document", lambda results, missing: f"{sorted(results)} {missing}")
    monkeypatch.setattr(gpu, "folder_of", lambda *_: tmp_path)
    return started, errors


def test_finished_pieces_are_not_run_again(pieces, settings, tmp_path):
    started, errors = pieces
    errors |= {"decoder": "not finished within 9.0 minutes", "memory": "it failed\nout of memory."}
    document = tmp_path / "results.md"
    document.write_text("<!-- gpu -->\n<!-- /gpu -->")
    settings = settings.model_copy(update={"results": str(document)})
    with pytest.raises(UserError, match="no result: decoder, memory"):
        gpu.run(settings)
    text = (tmp_path / "gpu.md").read_text()
    assert "within 9.0 minutes" in text and "'out of memory'" in text
    assert "memory" not in document.read_text()  # it is replaced when all pieces are done
    assert started == list(gpu.PIECES)
    started.clear()
    errors.clear()
    gpu.run(settings)
    assert started == ["decoder", "memory"] and "paper_step" in document.read_text()


def test_the_minutes_are_kept(pieces, settings, monkeypatch):
    clock = iter([0.0, 0.0, 400.0, *[550.0] * 3])
    monkeypatch.setattr(gpu, "monotonic", lambda: next(clock))
    missing = gpu.run_pieces(settings.model_copy(update={"minutes": 9.0}))
    assert pieces[0] == ["correctness", "paper_step"] and list(missing) == list(gpu.PIECES)[2:]
    assert "call `make gpu` again" in missing["decoder"]
