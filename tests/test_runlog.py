"""The run folder: what is written, what a resumed run keeps, who writes, what a missing tracker says."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from fgrlhf import runlog
from fgrlhf.config import StrictModel, load_config
from fgrlhf.runlog import RunLog
from fgrlhf.utils import UserError, read_json, read_jsonl, write_text


class Train(StrictModel):
    seed: int = 3
    lr: float = 1e-5


class Config(StrictModel):
    train: Train = Train()
    name: str = "näme"


def test_config_is_written_resolved_and_reads_back_equal(tmp_path):
    config = Config(train=Train(lr=2e-7))
    RunLog(tmp_path, config).close()
    assert load_config(Config, tmp_path / "config.yaml") == config


def test_run_json_says_how_to_repeat_the_run(tmp_path):
    RunLog(tmp_path, Config()).close()
    run = read_json(tmp_path / "run.json")
    assert run["seed"] == 3
    assert run["versions"]["torch"].startswith(torch.__version__.split("+")[0])
    assert run["versions"]["python"] == sys.version.split()[0]
    assert run["resumed_at"] == []
    assert set(run) == {"command", "seed", "versions", "git_commit", "resumed_at"}
    RunLog(tmp_path, {"seed": 5}, seed=9).close()
    assert read_json(tmp_path / "run.json")["seed"] == 9


def test_command_line_names_no_path_of_the_machine(tmp_path):
    code = "from fgrlhf.runlog import command_line; print(command_line())"
    script = tmp_path / "a.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, str(script), f"x={tmp_path}/y"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(runlog.Path(runlog.__file__).parents[1])},
    )
    assert done.stdout == "python a.py x=y\n"


def test_metrics_are_plain_json_numbers(tmp_path):
    with RunLog(tmp_path) as log:
        log.log(
            0,
            {
                "a": torch.tensor(0.5),
                "b": np.float32(0.25),
                "c": float("nan"),
                "d": np.int64(4),
                "e": float("inf"),
            },
        )
        log.log(1, {"a": 1})
        assert read_jsonl(tmp_path / "metrics.jsonl")[1] == {"step": 1, "a": 1}, (
            "a line is on disk as soon as it is logged"
        )
    first = (tmp_path / "metrics.jsonl").read_text().splitlines()[0]
    assert json.loads(first, parse_constant=pytest.fail) == {
        "step": 0,
        "a": 0.5,
        "b": 0.25,
        "c": None,
        "d": 4,
        "e": None,
    }


def test_resume_drops_what_came_after_the_checkpoint(tmp_path):
    with RunLog(tmp_path, Config()) as log:
        for step in range(5):
            log.log(step, {"x": step})
            log.samples(step, [{"step": step}])
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 5, "x"')  # killed while writing
    with RunLog(tmp_path, Config(), resume_step=2) as log:
        log.log(3, {"x": 30})
    assert read_jsonl(tmp_path / "metrics.jsonl") == [
        {"step": s, "x": x} for s, x in [(0, 0), (1, 1), (2, 2), (3, 30)]
    ]
    assert sorted(p.name for p in (tmp_path / "samples").iterdir()) == [
        "step-0.jsonl",
        "step-1.jsonl",
        "step-2.jsonl",
    ]
    RunLog(tmp_path, Config(), resume_step=3).close()
    assert read_json(tmp_path / "run.json")["resumed_at"] == [2, 3]


def test_a_fresh_run_keeps_nothing_of_an_older_one(tmp_path):
    with RunLog(tmp_path) as log, log.stage("one"):
        log.log(7, {"x": 1})
        log.samples(7, [])
    RunLog(tmp_path).close()
    assert (tmp_path / "metrics.jsonl").read_text() == ""
    assert not list((tmp_path / "samples").iterdir())
    assert not (tmp_path / "stages.json").exists()


def test_stage_prints_two_lines_and_records_seconds_and_memory(tmp_path, capsys):
    with RunLog(tmp_path) as log:
        with log.stage("generate"):
            block = bytearray(b"x" * 2**26)  # 64 MB, touched
        with pytest.raises(KeyError), log.stage("fails"):
            raise KeyError("x")
    del block
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "generate: started"
    assert lines[1].startswith("generate: done in ") and lines[1].endswith(" MB")
    assert lines[3].startswith("fails: stopped by KeyError after ")
    stages = read_json(tmp_path / "stages.json")
    assert list(stages) == ["generate"]
    assert 0 <= stages["generate"]["seconds"] < 30
    assert 64 < stages["generate"]["peak_mb"] < 16_000


def test_peak_memory_counts_children():
    before = runlog.peak_memory_mb()
    size = int(before + 150)
    subprocess.run([sys.executable, "-c", f"x = b'x' * ({size} * 2**20)"], check=True)
    assert size < runlog.peak_memory_mb() < size + 60


@pytest.mark.parametrize("how", ["environment", "argument"])
def test_other_ranks_write_nothing(tmp_path, monkeypatch, capsys, how):
    monkeypatch.setenv("RANK", "1" if how == "environment" else "0")
    with (
        RunLog(tmp_path / "run", Config(), write=None if how == "environment" else False) as log,
        log.stage("one"),
    ):
        log.log(0, {"x": 1})
        log.samples(0, [{}])
    assert not (tmp_path / "run").exists()
    assert capsys.readouterr().out == ""


def test_a_tracker_that_is_not_installed_is_named_with_the_way_out(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError, match=r"pip install -e '\.\[wandb\]'"):
        RunLog(tmp_path / "run", wandb={})
    with pytest.raises(UserError, match=r"pip install -e '\.\[tensorboard\]'"):
        RunLog(tmp_path / "run", tensorboard=True)
    assert not (tmp_path / "run").exists()


class FakeWandb:
    """Stands for the wandb module: refuses to go online, logs offline."""

    def __init__(self):
        self.calls, self.logged, self.finished = [], [], False

    def Settings(self, **arguments):
        return arguments

    def init(self, **arguments):
        self.calls.append(arguments)
        if arguments.get("mode") != "offline":
            raise ConnectionError("no route to host")
        return self

    def log(self, row):
        self.logged.append(row)

    def finish(self):
        self.finished = True


def test_wandb_without_a_network_goes_offline_and_the_run_goes_on(tmp_path, monkeypatch, capsys):
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    with RunLog(tmp_path, Config(), wandb={"project": "p", "name": "n"}) as log:
        log.log(4, {"x": 1.5, "bad": float("nan")})
    assert fake.calls[-1]["mode"] == "offline" and fake.calls[-1]["project"] == "p"
    assert fake.calls[-1]["config"]["train"]["seed"] == 3
    assert fake.logged == [{"x": 1.5, "step": 4}] and fake.finished
    assert "no route to host" in capsys.readouterr().out


def test_outside_a_git_checkout_there_is_no_commit(tmp_path, monkeypatch):
    write_text(tmp_path / "fgrlhf" / "runlog.py", "")
    monkeypatch.setattr(runlog, "__file__", str(tmp_path / "fgrlhf" / "runlog.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert runlog.git_commit() is None
