"""Stages as jobs: submitit's local executor, and SLURM's programs as scripts that run jobs here."""

import io
import os
import re
import signal
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json
from fgrlhf.configs.strict import validate
from fgrlhf.pipeline import stages as stages_module
from fgrlhf.pipeline import submit as module
from fgrlhf.pipeline.experiments import Experiment
from fgrlhf.pipeline.launchers import Command
from fgrlhf.pipeline.stages import Pipeline, Stage
from fgrlhf.pipeline.submit import StageCommand, SubmitConfig, SubmitLauncher
from fgrlhf.pipeline.sweep import SweepSettings

pytest.importorskip("submitit", reason="submitit is not installed")

# What SLURM's programs print and do, as far as submitit uses them. A job is a process group.
SBATCH = """
    import os, pathlib, subprocess, sys
    jobs = pathlib.Path(os.environ["FAKE_SLURM"])
    number = str(100 + len(list(jobs.glob("*.pid"))))
    names = ("PROCID", "LOCALID", "NODEID")
    environment = {**os.environ, **{f"SLURM_{name}": "0" for name in names}}
    environment |= {"SLURM_JOB_ID": number, "SLURM_NTASKS": "1", "SLURM_JOB_NUM_NODES": "1"}
    environment |= {"SLURM_JOB_NODELIST": "here"}
    # A copy, as in SLURM: submitit moves its own, perhaps before bash reads it.
    script = jobs / f"{number}.script"
    script.write_text(pathlib.Path(sys.argv[1]).read_text())
    process = subprocess.Popen(
        ["bash", "-c", 'bash "$0"; touch "$1"', str(script), str(jobs / f"{number}.end")],
        env=environment, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    (jobs / f"{number}.pid").write_text(str(process.pid))
    print(f"Submitted batch job {number}")
"""
SRUN = """
    import os, sys
    words = sys.argv[1:]
    program = next(i for i, word in enumerate(words) if "python" in os.path.basename(word))
    os.execv(words[program], words[program:])
"""
SACCT = """
    import os, pathlib
    jobs = pathlib.Path(os.environ["FAKE_SLURM"])
    print("JobID|State|NodeList")
    for pid in sorted(jobs.glob("*.pid")):
        ended = pid.with_suffix(".end").exists()
        print(f"{pid.stem}|{'COMPLETED' if ended else 'RUNNING'}|here")
"""
# Ends all processes of a job, whatever groups they are in, also those that ignore SIGTERM, as
# submitit does.
SCANCEL = """
    import contextlib, os, pathlib, psutil, sys
    jobs = pathlib.Path(os.environ["FAKE_SLURM"])
    number = sys.argv[-1]
    job = {"FAKE_SLURM": str(jobs), "SLURM_JOB_ID": number}
    running = psutil.process_iter(["environ"])
    processes = [p for p in running if job.items() <= (p.info["environ"] or {}).items()]
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    for process in psutil.wait_procs(processes, timeout=1)[1]:
        process.kill()
    (jobs / f"{number}.end").touch()
"""


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """A folder with the jobs of a SLURM cluster that runs on this machine."""
    programs = tmp_path / "bin"
    jobs = tmp_path / "slurm"
    programs.mkdir()
    jobs.mkdir()
    texts = {"sbatch": SBATCH, "srun": SRUN, "sacct": SACCT, "scancel": SCANCEL}
    for name, text in texts.items():
        path = programs / name
        path.write_text(f"#!{sys.executable}\n{textwrap.dedent(text)}")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SLURM", str(jobs))
    from submitit.slurm.slurm import SlurmJob

    monkeypatch.setattr(SlurmJob.watcher, "_delay_s", 0)
    monkeypatch.setattr(SlurmJob, "_results_timeout_s", 0)
    SlurmJob.watcher.clear()
    yield jobs
    for number in {path.stem for path in jobs.glob("*.pid")}:
        subprocess.run([programs / "scancel", number], check=True)


def config(cluster="local", **settings):
    return SubmitConfig(cluster=cluster, gpus=0, cpus=1, memory_gb=1, **settings)


def stage(name, script, needs=()):
    command = ("bash", "-c", f'{script}; touch "$OUT/{name}.out"')
    return Stage(name, command, needs=needs, outputs=(f"{name}.out",))


def run(root, stages, submit, lanes=2):
    out = io.StringIO()
    folder = root / "out"
    launcher = SubmitLauncher(submit, folder)
    environment = {"OUT": str(folder)}
    pipeline = Pipeline(stages, root, folder, environment, lanes, out, launcher)
    pipeline.run()
    return out.getvalue()


def wait_for(condition):
    while not condition():
        time.sleep(0.05)


# ---- both clusters -------------------------------------------------------------------------------


@pytest.mark.parametrize("cluster", ["local", "slurm"])
def test_jobs_run_in_order_once_with_their_logs(cluster, tmp_path, slurm):
    stages = [
        stage("one/seed-0", 'mkdir -p "$OUT/one"; echo text of the job; echo one >> "$OUT/order"'),
        stage("two", 'echo two >> "$OUT/order"', needs=("one/seed-0",)),
    ]
    text = run(tmp_path, stages, config(cluster))
    out = tmp_path / "out"
    assert (out / "order").read_text().split() == ["one", "two"]
    assert (out / "logs/one/seed-0.log").read_text() == "text of the job\n"
    assert re.search(r"two: done in \d+ s, peak memory \d+ MB", text)
    assert re.search(r"one/seed-0: submitted as job \d+, log in .*\n.*one/seed-0: done in", text)
    assert read_json(out / "pipeline.json")["stages"]["two"]["complete"]
    assert run(tmp_path, stages, config(cluster)).count("nothing changed, reused") == 2
    assert (out / "order").read_text().split() == ["one", "two"]
    assert len(list(slurm.glob("*.pid"))) == (2 if cluster == "slurm" else 0)


@pytest.mark.parametrize("cluster", ["local", "slurm"])
def test_a_failed_job_stops_the_others_and_shows_its_log(cluster, tmp_path, slurm):
    stages = [
        stage("slow", 'touch "$OUT/begun"; sleep 600'),
        Stage(
            "bad", ("bash", "-c", 'until [ -e "$OUT/begun" ]; do sleep .1; done; echo No; exit 3')
        ),
    ]
    with pytest.raises(UserError, match="stage bad failed with exit code 3(.|\n)*No\n"):
        run(tmp_path, stages, config(cluster))
    state = read_json(tmp_path / "out/pipeline.json")["stages"]
    assert not state["slow"]["complete"] and not (tmp_path / "out/slow.out").exists()


def test_jobs_of_a_command_in_the_background_are_cancelled(tmp_path):
    """A script's background commands ignore SIGINT, by which submitit cancels local jobs."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        launcher = SubmitLauncher(config(), tmp_path)
        job = launcher.start(
            Command("slow", ("sleep", "600"), tmp_path, {}, tmp_path / "log", False)
        )
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        job.stop()
        job.wait()
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_job_without_a_result_is_named(tmp_path, slurm, monkeypatch):
    monkeypatch.setattr(module, "RESULT_SECONDS", 0.0)
    kill = stage("killed", "kill -9 $PPID; exit")
    with pytest.raises(UserError, match="stage killed: job 100 ended in state .* without a result"):
        run(tmp_path, [kill], config("slurm"))


# ---- SLURM ---------------------------------------------------------------------------------------


def test_resources_are_those_of_the_section(tmp_path, slurm):
    resources = {"gpus": 2, "cpus": 8, "memory_gb": 64, "hours": 1.5, "partition": "long"}
    submit = validate(
        SubmitConfig, {"cluster": "slurm", "options": {"qos": "high"}, **resources}, "test"
    )
    run(tmp_path, [stage("one", "true")], submit)
    script = (slurm / "100.script").read_text()
    for line in ("--gpus-per-node=2", "--cpus-per-task=8", "--mem=64GB", "--time=90"):
        assert f"#SBATCH {line}\n" in script
    assert "#SBATCH --partition=long\n" in script and "#SBATCH --qos=high\n" in script
    assert "#SBATCH --job-name=one\n" in script


def kill_a_pipeline(root, script):
    """Kill a pipeline whose stage `long` runs `script`, once its job has written `begun`."""
    program = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_submit import *
run(Path({str(root)!r}), [stage("long", {script!r})], config("slurm"))
"""
    records = root / "out" / "pipeline.json"
    process = subprocess.Popen([sys.executable, "-c", program])
    wait_for(
        lambda: (root / "out/begun").exists() and "job" in read_json(records)["stages"]["long"]
    )
    process.kill()
    process.wait()


WAIT = 'echo begun >> "$OUT/begun"; until [ -e "$OUT/go" ]; do sleep .1; done'


def test_a_killed_pipeline_finds_its_job_again(tmp_path, slurm):
    kill_a_pipeline(tmp_path, WAIT)
    (tmp_path / "out" / "go").touch()
    text = run(tmp_path, [stage("long", WAIT)], config("slurm"))
    # Either the job still ran, or it had ended meanwhile and ran again with nothing to wait for.
    attempts = (tmp_path / "out" / "begun").read_text().count("begun")
    assert attempts == len(list(slurm.glob("*.pid")))
    assert ("its job 100 continues" in text) == (attempts == 1)
    assert read_json(tmp_path / "out" / "pipeline.json")["stages"]["long"]["complete"]


def test_the_record_of_a_found_job_always_names_it(tmp_path, slurm, monkeypatch):
    """A pipeline that is killed at any moment leaves a job that the next one finds."""
    kill_a_pipeline(tmp_path, WAIT)
    notes = []
    write = stages_module.write_json

    def write_and_see(path, value):
        write(path, value)
        if path.name == "pipeline.json":
            notes.append(value["stages"]["long"].copy())
            (tmp_path / "out" / "go").touch()

    monkeypatch.setattr(stages_module, "write_json", write_and_see)
    assert "long: its job 100 continues, log in" in run(
        tmp_path, [stage("long", WAIT)], config("slurm")
    )
    assert [(note.get("job"), note["complete"]) for note in notes] == [("100", False), (None, True)]


def test_the_job_of_a_changed_stage_is_cancelled_before_its_outputs_are_removed(
    tmp_path, slurm, monkeypatch
):
    kill_a_pipeline(tmp_path, f'touch "$OUT/long.out"; {WAIT}')
    removed = []
    remove = stages_module.remove

    def remove_and_see(path):
        removed.append((path.name, path.exists(), (slurm / "100.end").exists()))
        remove(path)

    monkeypatch.setattr(stages_module, "remove", remove_and_see)
    text = run(tmp_path, [stage("long", "echo changed")], config("slurm"))
    assert removed == [("long.out", True, True)]
    assert "long: changed since its job 100 began, which is cancelled" in text
    assert len(list(slurm.glob("*.pid"))) == 2
    record = read_json(tmp_path / "out" / "pipeline.json")["stages"]["long"]
    assert record["complete"]
    assert (tmp_path / "out" / "logs" / "long.log").read_text() == "changed\n"


def test_find_knows_running_jobs_only(tmp_path, slurm):
    launcher = SubmitLauncher(config("slurm"), tmp_path)
    go = tmp_path / "go"
    command = f"until [ -e '{go}' ]; do sleep .1; done"
    job = launcher.start(
        Command("s", ("bash", "-c", command), tmp_path, {}, tmp_path / "log", appends=False)
    )
    found = launcher.find("s", job.reference)
    assert found is not None
    assert (found.name, found.reference) == ("s", job.reference)  # messages name the stage
    go.touch()
    wait_for(lambda: job.ended() is not None)
    assert launcher.find("s", job.reference) is None


# ---- requeued jobs -------------------------------------------------------------------------------


LIMIT = """
import signal, sys
from pathlib import Path
from fgrlhf.pipeline.launchers import Command
from fgrlhf.pipeline.submit import StageCommand

def at_limit(number, frame):  # as submitit does after it has requeued the job
    sys.exit(5)

signal.signal(signal.SIGUSR2, at_limit)
folder = Path(sys.argv[1])
StageCommand(Command("s", ("bash", "-c", sys.argv[2]), folder, {}, folder / "log", False))()
"""


def test_a_job_at_its_limit_ends_its_command_and_continues(tmp_path):
    log = tmp_path / "log"
    # SLURM sends the signal of the limit to every process of a job; only submitit heeds it.
    script = (
        f"kill -USR2 $$; trap 'touch {tmp_path}/ended; exit' TERM; echo begun; sleep 600 & wait"
    )
    program = [sys.executable, "-c", LIMIT, str(tmp_path), script]
    job = subprocess.Popen(program)
    wait_for(lambda: log.exists() and log.read_text())
    job.send_signal(signal.SIGUSR2)
    assert job.wait() == 5
    assert (tmp_path / "ended").exists()
    command = Command("s", ("echo", "continued"), tmp_path, {}, log, appends=False)
    again = StageCommand(command).checkpoint()
    assert again.result().exit_code == 0
    assert log.read_text() == "begun\ncontinued\n"


def test_an_interrupt_while_the_command_starts_ends_it(tmp_path, monkeypatch, interruptible):
    started = []

    def popen(*arguments, **options):
        started.append(module_popen(*arguments, **options))
        signal.raise_signal(signal.SIGINT)
        return started[0]

    module_popen = module.popen
    monkeypatch.setattr(module, "popen", popen)
    command = Command("s", ("sleep", "600"), tmp_path, {}, tmp_path / "log", appends=False)
    with pytest.raises(KeyboardInterrupt):
        StageCommand(command)()
    assert started[0].returncode == -signal.SIGTERM


# ---- settings ------------------------------------------------------------------------------------


def test_jobs_wait_in_the_queue_of_the_cluster():
    values = {"output_dir": "out", "submit": {"cluster": "slurm"}}
    assert validate(SweepSettings, values, "test").lane_count == 100
    assert validate(SweepSettings, {**values, "lanes": 3}, "test").lane_count == 3


def test_a_cluster_without_its_section():
    message = r"submit: it must be a section \(got 'local'\): write submit='{cluster: local}'"
    with pytest.raises(UserError, match=message):
        validate(SweepSettings, {"output_dir": "out", "submit": "local"}, "test")


def test_a_machine_without_slurm_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    message = "submit.cluster=slurm: this machine has no .*srun.*login node"
    with pytest.raises(UserError, match=message):
        SubmitLauncher(config("slurm"), tmp_path)


def test_an_experiment_submits_its_stages(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out"
    command = ("bash", "-c", f'echo $OMP_NUM_THREADS > "{out}/threads"')
    submit = SubmitConfig(cluster="local", gpus=0, cpus=3, memory_gb=1)
    experiment = Experiment("numbers", out, submit=submit)
    experiment.run([Stage("s", command, outputs=("threads",))], lanes=1)
    assert (out / "threads").read_text() == "3\n" and (out / "jobs").is_dir()
