"""The run folder: its files, what a resumed run keeps, which rank writes, missing trackers."""

import errno
import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate import PartialState

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, read_jsonl, write_text
from fgrlhf.configs.sections import LoggingConfig
from fgrlhf.configs.strict import StrictModel, load_config
from fgrlhf.report.data import recorded_task
from fgrlhf.runs import runlog
from fgrlhf.runs.runlog import RunLog


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
    resumed = {"resumed_at", "resumed_with"}
    assert set(run) == {"command", "seed", "versions", "git_commit", "kernels", *resumed}
    RunLog(tmp_path, {"seed": 5}, seed=9).close()
    assert read_json(tmp_path / "run.json")["seed"] == 9
    RunLog(tmp_path / "rl", task="numbers").close()
    assert recorded_task(tmp_path) == recorded_task(tmp_path / "rl") == "numbers"


def test_command_line_names_no_path_of_the_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "orig_argv", [sys.executable, f"{tmp_path}/a.py", f"x={tmp_path}/y"])
    assert runlog.command_line() == "python a.py x=y"


def test_metrics_are_plain_json_numbers(tmp_path):
    values = {"a": torch.tensor(0.5), "b": np.float32(0.25), "d": np.int64(4)}
    with RunLog(tmp_path) as log:
        log.log(0, {**values, "c": float("nan"), "e": float("inf")})
        log.log(1, {"a": 1})
        # a line is on disk as soon as it is logged
        assert read_jsonl(tmp_path / "metrics.jsonl")[1] == {"step": 1, "a": 1}
    first = (tmp_path / "metrics.jsonl").read_text().splitlines()[0]
    written = json.loads(first, parse_constant=pytest.fail)
    assert written == {"step": 0, "a": 0.5, "b": 0.25, "c": None, "d": 4, "e": None}


def test_resume_drops_what_came_after_the_checkpoint(tmp_path):
    with RunLog(tmp_path, Config()) as log:
        for step in range(5):
            log.log(step, {"x": step})
            log.samples(step, [{"step": step}])
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 5, "x"')  # killed while writing
    with RunLog(tmp_path, Config(), resume_step=2) as log:
        log.log(3, {"x": 30})
    expected = [(0, 0), (1, 1), (2, 2), (3, 30)]
    assert read_jsonl(tmp_path / "metrics.jsonl") == [{"step": s, "x": x} for s, x in expected]
    samples = sorted(p.name for p in (tmp_path / "samples").iterdir())
    assert samples == [f"step-{step}.jsonl" for step in range(3)]
    RunLog(tmp_path, Config(), resume_step=3).close()
    assert read_json(tmp_path / "run.json")["resumed_at"] == [2, 3]


def test_the_first_command_is_kept_beside_those_of_continuations(tmp_path, monkeypatch):
    def start(command, resume_step):
        monkeypatch.setattr(runlog, "command_line", lambda: command)
        RunLog(tmp_path, Config(), resume_step=resume_step).close()
        run = read_json(tmp_path / "run.json")
        return run["command"], run["resumed_at"], run["resumed_with"]

    assert start("a", None) == ("a", [], [])
    assert start("b", 3) == ("a", [3], ["b"])
    assert start("c", 7) == ("a", [3, 7], ["b", "c"])
    assert start("d", None) == ("d", [], [])  # a new run


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
        with pytest.raises(UserError), log.stage("stops"):
            raise UserError("x")
        with pytest.raises(OSError), log.stage("fills the disk"):
            raise OSError(errno.ENOSPC, "No space left on device")
        with pytest.raises(KeyboardInterrupt), log.stage("ends"):
            raise KeyboardInterrupt
    del block
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "generate: started"
    assert lines[1].startswith("generate: done in ") and lines[1].endswith(" MB")
    assert lines[3].startswith("fails: stopped by KeyError after ")
    assert lines[5].startswith("stops: stopped after ")
    assert lines[7].startswith("fills the disk: stopped after ")
    assert lines[9].startswith("ends: interrupted after ")
    stages = read_json(tmp_path / "stages.json")
    assert list(stages) == ["generate"]
    assert stages["generate"]["seconds"] >= 0
    assert 64 < stages["generate"]["peak_mb"] < 16_000


def test_peak_memory_is_not_that_of_the_process_that_started_this_one():
    child = "from fgrlhf.runs.memory import peak_memory_mb; print(peak_memory_mb())"
    program = f"""
import subprocess, sys
x = b"x" * (200 * 2**20)
subprocess.run([sys.executable, "-c", {child!r}], check=True)
"""
    assert 0 < float(output_of(program)) < 60


def test_peak_memory_counts_children():
    program = """
import subprocess, sys
from fgrlhf.runs.memory import peak_memory_mb
before = peak_memory_mb()
subprocess.run([sys.executable, "-c", "x = b'x' * (200 * 2**20)"], check=True)
print(before, peak_memory_mb())
"""
    before, after = map(float, output_of(program).split())
    assert 0 < before < 60 and 200 < after < 260


def output_of(program: str) -> str:
    """What a Python program prints, in a process that is small at its start."""
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout


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


# of RL, and of a run whose second answer has no prompt
SAMPLES = [
    {"prompt": "p", "response": "a b", "rewards": {"fact": [0.5, -2.0]}, "kl": [0, 1], "reward": 1},
    {"response": "c", "values": None},
]
TABLE = (
    ["step", "prompt", "response", "reward/fact", "reward"],
    [[4, "p", "a b", -1.5, 1], [4, None, "c", None, None]],
)


class FakeWandb:
    """Replaces the wandb module: refuses to go online, logs offline."""

    def __init__(self):
        self.calls, self.logged, self.finished = [], [], False

    def Settings(self, **arguments):  # noqa: N802
        return arguments

    def Table(self, columns, data):  # noqa: N802
        return columns, data

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
        log.samples(4, iter(SAMPLES))
        log.samples(5, [])
    assert fake.calls[-1]["mode"] == "offline" and fake.calls[-1]["project"] == "p"
    assert fake.calls[-1]["config"]["train"]["seed"] == 3
    numbers, table = fake.logged
    assert numbers == {"x": 1.5, "step": 4} and fake.finished
    assert table == {"samples": TABLE, "step": 4}
    assert read_jsonl(tmp_path / "samples" / "step-4.jsonl") == SAMPLES
    assert "no route to host" in capsys.readouterr().out


def test_outside_a_git_checkout_there_is_no_commit(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert runlog.git_commit(tmp_path) is None


def test_the_commit_says_if_the_code_differs_from_it(tmp_path):
    def git(*arguments):
        names = ("-c", "user.name=n", "-c", "user.email=e")
        subprocess.run(["git", *names, *arguments], cwd=tmp_path, check=True, capture_output=True)

    code = tmp_path / "fgrlhf" / "runlog.py"
    write_text(code, "")
    write_text(tmp_path / ".gitignore", "outputs/")
    git("init", "-q")
    git("config", "status.showUntrackedFiles", "no")
    git("add", ".")
    git("commit", "-qm", "first")
    commit = runlog.git_commit(code.parent)
    assert commit is not None and re.fullmatch("[0-9a-f]{40}", commit)
    write_text(tmp_path / "outputs" / "run.json", "{}")
    assert runlog.git_commit(code.parent) == commit
    write_text(tmp_path / "tasks" / "new.py", "")
    assert runlog.git_commit(code.parent) == f"{commit}-modified"
    (tmp_path / "tasks" / "new.py").unlink()
    write_text(code, "pass")
    assert runlog.git_commit(code.parent) == f"{commit}-modified"


# ---- damaged logs, failing trackers, secrets -----------------------------------------------------


def three_steps(folder):
    with RunLog(folder, Config()) as log:
        for step in range(3):
            log.log(step, {"x": step})
            log.samples(step, [{"step": step}])


LINE = b'{"step": 1, "x": 1}\n'
DAMAGES = {
    "not JSON": b'{"step": 1, "x"\n',
    "NUL": b"\0\0\0\0\n",
    "list": b"[1]\n",
    "no step": b'{"x": 1}\n',
    "step is text": b'{"step": "1"}\n',
    "not UTF-8": b'{"step": 1, "x": "\xff"}\n',
    "deep": b"[" * 100_000 + b"\n",
}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_line_does_not_stop_a_run_from_going_on(tmp_path, capsys, how):
    three_steps(tmp_path)
    path = tmp_path / "metrics.jsonl"
    damaged = path.read_bytes().replace(LINE, DAMAGES[how])
    path.write_bytes(damaged)
    with RunLog(tmp_path, Config(), resume_step=2) as log:
        log.log(3, {"x": 3})
    assert [row["step"] for row in read_jsonl(path)] == [0, 2, 3]
    assert (tmp_path / "metrics.jsonl.damaged").read_bytes() == damaged
    assert "1 of 3 lines of" in (out := capsys.readouterr().out)
    assert "renamed to metrics.jsonl.damaged" in out


@pytest.mark.parametrize("text", ["", "[]", "{", "\0", '{"resumed_at": 3}'])
def test_a_damaged_run_json_does_not_stop_a_run_from_going_on(tmp_path, text):
    three_steps(tmp_path)
    (tmp_path / "run.json").write_text(text)
    (tmp_path / "samples" / "step-x.jsonl").write_text("not ours")
    RunLog(tmp_path, Config(), resume_step=1).close()
    assert read_json(tmp_path / "run.json")["resumed_at"] == [1]
    assert [row["step"] for row in read_jsonl(tmp_path / "metrics.jsonl")] == [0, 1]
    samples = sorted(path.name for path in (tmp_path / "samples").iterdir())
    assert samples == [f"step-{step}.jsonl" for step in (0, 1, "x")]


def test_a_damaged_stages_json_does_not_stop_a_stage_that_is_done(tmp_path):
    with RunLog(tmp_path) as log:
        (tmp_path / "stages.json").write_text("[")
        with log.stage("one"):
            pass
    assert list(read_json(tmp_path / "stages.json")) == ["one"]
    assert (tmp_path / "stages.json.damaged").exists()


def test_a_run_without_a_name_is_refused():
    for folder in ("", " "):
        with pytest.raises(UserError, match="logging.save_dir"):
            RunLog(folder)


class Online(FakeWandb):
    """A tracking service that is available and fails at a given point."""

    def __init__(self, breaks=()):
        super().__init__()
        self.breaks, self.id = breaks, "abc123"

    def _maybe(self, what):
        if what in self.breaks:
            raise RuntimeError(f"the service is gone: {what}")

    def init(self, **arguments):
        self.calls.append(arguments)
        self._maybe("init")
        return self

    def log(self, row):
        self._maybe("log")
        super().log(row)

    def finish(self):
        self._maybe("finish")
        super().finish()


@pytest.mark.parametrize("breaks, calls", [("init", 2), ("log", 1), ("finish", 1)])
def test_a_tracker_cannot_stop_a_run(tmp_path, monkeypatch, capsys, breaks, calls):
    fake = Online(breaks)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    with RunLog(tmp_path, Config(), wandb={}) as log:
        for step in range(3):
            log.log(step, {"x": 1.0})
    assert len(read_jsonl(tmp_path / "metrics.jsonl")) == 3 and len(fake.calls) == calls
    assert capsys.readouterr().out.count("warning: wandb is switched off: the service is gone") == 1


class FakeTrackio:
    """The functions of trackio 0.3 that accelerate's tracker calls."""

    def __init__(self):
        self.calls: list[tuple] = []
        self.config = SimpleNamespace(update=self._config)

    def _config(self, values, **_):
        self.calls.append(("config", values))

    def Table(self, dataframe):  # noqa: N802
        return [*dataframe.columns], dataframe.values.tolist()

    def init(self, **arguments):
        self.calls.append(("init", arguments))
        return self

    def log(self, values, step):
        self.calls.append(("log", step, values))

    def finish(self):
        self.calls.append(("finish",))


def test_trackers_of_accelerate_get_the_numbers(tmp_path, monkeypatch):
    fake = FakeTrackio()
    monkeypatch.setitem(sys.modules, "trackio", fake)
    PartialState()  # as in every run
    others = LoggingConfig(
        save_dir="x", run_name="mine", wandb_project="p", report_to=["trackio"]
    ).trackers()["others"]
    config = {"train": {"lr": 0.5}, "token": "hf_0123456789abcdefghij"}
    with RunLog(tmp_path / "run", config, others=others) as log:
        log.log(3, {"loss": 0.25, "note": "text", "nothing": float("nan")})
        log.samples(3, SAMPLES[:1])
    init, settings, numbers, table, end = fake.calls
    row = [3, "p", "a b", -1.5, 1]
    assert table == ("log", 3, {"samples": (TABLE[0], [row])})
    assert init == ("init", {"project": "p", "name": "mine"})
    assert settings[1]["train.lr"] == "0.5" and "hf_0123456789" not in str(settings)
    assert numbers == ("log", 3, {"loss": 0.25}) and end == ("finish",)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(UserError, match="names mlflow, which is not installed: pip install mlflow"):
        RunLog(tmp_path / "other", others={"mlflow": ("p", "n")})
    assert not (tmp_path / "other").exists()


class FakeMLflow:
    """Records what accelerate and the log call, and refuses the names that MLflow 3.17 refuses."""

    def __init__(self):
        limits = SimpleNamespace(MAX_PARAM_VAL_LENGTH=6000, MAX_PARAMS_TAGS_PER_BATCH=100)
        self.utils = SimpleNamespace(validation=limits)
        self.values, self.tables, self.ended = {}, {}, False

    def search_experiments(self, filter_string):
        return []

    def create_experiment(self, **_):
        return "1"

    def start_run(self, run_name, **_):
        self.run_name = run_name

    def log_params(self, values):
        for name in values:
            normal = os.path.normpath(name)
            assert re.fullmatch(r"[/\w.\- :]+", name) and name == normal and name[0] not in "./"
        self.values |= values

    def log_metrics(self, values, step):
        self.log_params(values)

    def log_table(self, data, artifact_file):
        self.tables[artifact_file] = data.to_dict("records")

    def end_run(self):
        self.ended = True


def test_mlflow_gets_names_that_it_takes_and_tables(tmp_path, monkeypatch):
    fake = FakeMLflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    PartialState()  # as in every run
    others = {"mlflow": ("p", "mine")}
    with RunLog(tmp_path, {"reward": {"my (first)": {"weight": 0.5}}}, others=others) as log:
        log.log(3, {"passes//data/a (b).jsonl": 0.25, "pass@1": 1.0, "passes/hub:x/größe": 2})
        log.samples(3, SAMPLES[:1])
    assert fake.run_name == "mine" and fake.ended
    assert fake.values == {
        "reward.my _first_.weight": "0.5",
        "passes/data/a _b_.jsonl": 0.25,
        "pass_1": 1.0,
        "passes/hub:x/größe": 2,
    }
    assert fake.tables == {"samples/step-3.json": [dict(zip(TABLE[0], [3, "p", "a b", -1.5, 1]))]}


@pytest.mark.parametrize(
    "given, names",
    [
        (["wandb", "mlflow"], ["wandb", "mlflow"]),
        ("tensorboard", ["tensorboard"]),
        ("none", []),
        (True, ["wandb"]),  # the published `wandb_log`
        (False, []),
    ],
)
def test_trackers_have_names(given, names):
    assert LoggingConfig(save_dir="x", report_to=given).report_to == names


def test_a_resumed_run_goes_on_in_the_same_wandb_run(tmp_path, monkeypatch):
    fake = Online()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    RunLog(tmp_path, Config(), wandb={"name": "n"}).close()
    assert "id" not in fake.calls[0] and read_json(tmp_path / "run.json")["wandb_id"] == "abc123"
    RunLog(tmp_path, Config(), resume_step=3, wandb={"name": "n"}).close()
    assert (fake.calls[1]["id"], fake.calls[1]["resume"]) == ("abc123", "allow")
    assert read_json(tmp_path / "run.json")["wandb_id"] == "abc123"
    RunLog(tmp_path, Config(), wandb={"name": "n"}).close()
    assert "id" not in fake.calls[2]  # a new run


def test_no_secret_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    arguments = ["a.password=my secret", "name=0123456789abcdef", "lr=1"]
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "x", *arguments])
    fake = Online()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    RunLog(tmp_path / "a", Config(name="x-0123456789abcdef"), wandb={}).close()
    RunLog(tmp_path / "b", {"seed": 3, "name": "0123456789abcdef"}).close()
    written = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    assert "0123456789abcdef" not in written + str(fake.calls) and "my secret" not in written
    command = read_json(tmp_path / "a" / "run.json")["command"]
    assert command == "python -m x a.password=*** name=*** lr=1"
    assert fake.calls[0]["config"]["name"] == "x-***"
    assert load_config(Config, tmp_path / "a" / "config.yaml") == Config(name="x-***")
