"""The stage runner: order, reuse, change, failure, interruption; with tiny shell stages."""

import errno
import io
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json
from fgrlhf.pipeline import stages
from fgrlhf.pipeline import stages as module
from fgrlhf.pipeline.fingerprint import fingerprint, imported_files
from fgrlhf.pipeline.launchers import LocalLauncher
from fgrlhf.pipeline.stages import Pipeline, Stage, lane_environments, visible_gpus
from fgrlhf.runs.memory import PeakMemory
from fgrlhf.runs.runlog import peak_memory_mb
from fgrlhf.runs.stage import hold

ROOT = Path(__file__).parents[1]


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "re po"
    root.mkdir()
    (root / "a.yml").write_text("lr: 1\n")
    return root


def stage(name, script="", **options):
    """A stage that appends its name to `order` and writes its output."""
    script = f'echo {name} >> "$OUT/order"; {script or "true"}; touch "$OUT/{name}.out"'
    return Stage(name, ("bash", "-c", script), **{"outputs": (f"{name}.out",), **options})


def run(root, stages, **options):
    out = io.StringIO()
    line = Pipeline(stages, root, root / "out", {"OUT": str(root / "out")}, out=out, **options)
    line.run()
    return line, out.getvalue()


def order(root):
    path = root / "out" / "order"
    return path.read_text().split() if path.exists() else []


CHAIN = (
    stage("one"),
    stage("two", needs=("one",), reads=("a.yml",)),
    stage("three", needs=("two",)),
    stage("apart", needs=("one",)),
)


def test_a_pipeline_of_some_stages_does_not_hide_the_others(root):
    names = ["one", "two", "three", "apart"]
    run(root, CHAIN)
    (root / "out" / "one.out").unlink()
    run(root, CHAIN[:1])
    run(root, CHAIN)  # nothing is left to do
    assert list(read_json(root / "out" / "stages.json")) == names
    (root / "out" / "stages.json").unlink()
    run(root, CHAIN)
    assert list(read_json(root / "out" / "stages.json")) == names


def test_needs_come_first_and_seconds_and_memory_are_recorded(root):
    size = int(peak_memory_mb()) + 200  # a forked process inherits the peak of its parent
    allocate = f"{sys.executable} -c \"x = b'x' * ({size} * 2**20)\""
    line, text = run(root, [*CHAIN, stage("big", allocate, needs=("three",))])
    done = order(root)
    assert done.index("one") < done.index("two") < done.index("three") < done.index("big")
    assert len(done) == 5
    stages = read_json(root / "out" / "stages.json")
    assert list(stages) == ["one", "two", "three", "apart", "big", "whole"]
    assert stages["one"]["peak_mb"] < size < stages["big"]["peak_mb"] < size + 100
    assert stages["whole"]["seconds"] >= max(entry["seconds"] for entry in stages.values())
    assert "three: started, log in" in text and re.search(r"three: done in \d+ s", text)


def test_peak_memory_includes_what_a_command_has_started():
    program = "x = b'x' * (70 * 2**20); print('ready', flush=True); input()"
    command = ["bash", "-c", '"$0" -c "$1"; exit', sys.executable, program]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen(command, text=True, **pipes)
    peak = PeakMemory(process.pid)
    assert process.stdout.readline() == "ready\n"
    peak.sample()
    process.communicate("\n")
    assert 70 < peak.sampled_mb < 110


def test_nothing_changed_nothing_runs(root):
    run(root, CHAIN)
    before = read_json(root / "out" / "stages.json")
    line, text = run(root, CHAIN)
    assert len(order(root)) == 4 and text.count("nothing changed, reused") == 4
    assert read_json(root / "out" / "stages.json") == before and line.whole == before["whole"]


def test_what_an_earlier_pipeline_reported_is_not_reported_again(root):
    run(root, CHAIN)
    line = Pipeline(CHAIN, root, root / "out", {"OUT": str(root / "out")}, out=io.StringIO())
    line.run(reported=["one", "two"])
    printed = line.progress.out.getvalue()
    assert printed.count("reused") == 2
    assert "three: nothing" in printed
    assert "apart: nothing" in printed


def test_a_changed_file_runs_its_stage_and_those_after_it(root):
    run(root, CHAIN)
    (root / "out" / "order").unlink()
    (root / "a.yml").write_text("lr: 2\n")
    line, _ = run(root, CHAIN)
    assert order(root) == ["two", "three"]
    # not everything ran in this call, so its seconds are not those of the whole
    assert line.whole is None


def test_a_changed_command_or_a_lost_output_runs_the_stage(root):
    run(root, CHAIN)
    (root / "out" / "order").unlink()
    (root / "out" / "apart.out").unlink()
    run(root, [*CHAIN[:2], stage("three", "true changed", needs=("two",)), CHAIN[3]])
    assert sorted(order(root)) == ["apart", "three"]


def test_a_changed_stage_loses_its_outputs_first_and_a_failed_one_keeps_them(root):
    def unsteady(script):
        return Stage("s", ("bash", "-c", script), outputs=("d",), reads=("a.yml",))

    fails_once = unsteady(
        'mkdir -p "$OUT/d"; ls "$OUT/d" | wc -l; touch "$OUT/d/$RANDOM"; '
        '[ -e "$OUT/twice" ] || { touch "$OUT/twice"; exit 3; }'
    )
    with pytest.raises(UserError):
        run(root, [fails_once])
    line, text = run(root, [fails_once])
    assert "s: continued" in text
    assert line.whole is None, "the time of the first attempt is missing"
    log = root / "out" / "logs" / "s.log"
    assert log.read_text().split() == ["0", "1"]  # the second one found the first one's file
    (root / "a.yml").write_text("lr: 3\n")
    run(root, [fails_once])
    assert log.read_text().split() == ["0"]  # a changed stage starts on nothing


def test_an_interrupt_while_outputs_are_removed_leaves_no_complete_stage(root, monkeypatch):
    two = stage("two", 'touch "$OUT/a.out"', reads=("a.yml",), outputs=("a.out", "two.out"))
    run(root, [two])
    changed, before = (root / "a.yml"), (root / "a.yml").read_text()
    changed.write_text("lr: 2\n")

    def interrupted(path):
        path.unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(stages, "remove", interrupted)
        run(root, [two])
    changed.write_text(before)
    (root / "out" / "a.out").touch()  # the other one is still there
    run(root, [two])
    assert order(root) == ["two", "two"]


def test_a_failure_shows_the_end_of_the_log_and_stops_the_rest(root):
    stages = [
        stage("slow", "sleep 1000"),
        stage("bad", 'seq 100; echo "no such thing" >&2; exit 7'),
        stage("never", needs=("bad",)),
    ]
    with pytest.raises(UserError) as caught:
        run(root, stages)
    assert not (root / "out" / "slow.out").exists(), "it was not waited for"
    message = str(caught.value)
    assert "stage bad failed with exit code 7" in message and "logs/bad.log" in message
    assert "no such thing" in message and "\n  72\n" in message and "\n  71\n" not in message
    assert "never" not in order(root)
    records = read_json(root / "out" / "pipeline.json")["stages"]
    assert not records["bad"]["complete"] and not records["slow"]["complete"]


@pytest.mark.parametrize(
    "number, text",
    [
        (9, r"killed by signal 9 \(SIGKILL\), .* memory runs out"),
        (11, r"ended by signal 11 \(Segmentation fault\)"),
    ],
)
def test_a_stage_that_a_signal_ends_names_the_signal(root, number, text):
    with pytest.raises(UserError, match=f"stage bad was {text}. The end of its log"):
        run(root, [stage("bad", f"kill -{number} $$")])


def test_at_most_so_many_lanes(root):
    # the first two wait until they have seen each other
    probe = (
        'touch "$OUT/run-$$"; until [ -e "$OUT/met" ] || [ "$(ls "$OUT" | grep -c run-)" -ge 2 ];'
        ' do sleep 0.05; done; touch "$OUT/met"; ls "$OUT" | grep -c run- >> "$OUT/count"; sleep'
        ' 0.1; rm "$OUT/run-$$"'
    )
    run(root, [stage(f"s{i}", probe) for i in range(5)], lanes=2)
    assert max(map(int, (root / "out" / "count").read_text().split())) == 2


def test_lanes_share_the_gpus(monkeypatch):
    def shares(lanes):
        return [lane.get("CUDA_VISIBLE_DEVICES") for lane in lane_environments(lanes)]

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5,7")
    assert visible_gpus() == ["2", "5", "7"]
    assert shares(1) == [None]
    assert shares(2) == ["2,7", "5"]
    assert shares(4) == ["2", "5", "7", "2"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert shares(2) == [None, None]
    for nothing in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", nothing)
        assert visible_gpus() == [] and shares(2) == [None, None]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert visible_gpus() == ["0", "1"]


def test_stages_side_by_side_have_gpus_of_their_own(root, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    meet = (
        'echo $CUDA_VISIBLE_DEVICES > "$OUT/gpu-$$"; '
        'until [ "$(ls "$OUT" | grep -c gpu-)" -ge 2 ]; do sleep 0.05; done'
    )
    run(root, [stage("a", meet), stage("b", meet)], lanes=2)
    seen = sorted(path.read_text().strip() for path in (root / "out").glob("gpu-*"))
    assert seen == ["4", "6"]


def test_a_stage_may_ask_for_more_threads_and_processes_than_the_others(root):
    write = 'echo "$OMP_NUM_THREADS ${{PROCESSES:-}}" > "$OUT/{}.threads"'
    alone = stage("alone", write.format("alone"), threads=2, processes=3)
    stages = [alone, stage("b", write.format("b"))]
    out = root / "out"
    Pipeline(stages, root, out, {"OUT": str(out), "OMP_NUM_THREADS": "1"}, out=io.StringIO()).run()
    seen = [(out / f"{name}.threads").read_text() for name in ("alone", "b")]
    assert seen == ["2 3\n", "1 \n"]


def test_a_signal_stops_the_stages_and_the_next_run_continues(root):
    code = f"""
import signal
from pathlib import Path
from fgrlhf.pipeline.stages import Pipeline, Stage
# a shell has its background jobs ignore it
signal.signal(signal.SIGINT, signal.default_int_handler)
root = Path({str(root)!r})
script = 'echo $$ >> "$OUT/pids"; [ $(wc -l < "$OUT/pids") != 1 ] || sleep 1000; touch "$OUT/s"'
stage = Stage("s", ("bash", "-c", script), outputs=("s",))
Pipeline([stage], root, root / "out", {{"OUT": str(root / "out")}}).run()
"""
    options = {"env": {**os.environ, "PYTHONPATH": str(ROOT)}, "text": True}
    options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = {"args": [sys.executable, "-c", code], **options}
    first = subprocess.Popen(**command)
    while not (root / "out" / "pids").exists() and first.poll() is None:
        time.sleep(0.05)
    first.send_signal(signal.SIGINT)
    out, _ = first.communicate()
    assert "s: stopped; the next run continues it" in out
    pid = int((root / "out" / "pids").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    second = subprocess.run(**command)
    assert second.returncode == 0
    assert "s: continued" in second.stdout
    assert (root / "out" / "s").exists()


def test_an_interrupt_while_a_stage_starts_stops_it_too(root, interruptible):
    class Interrupted(LocalLauncher):
        def start(self, command):
            self.job = super().start(command)
            signal.raise_signal(signal.SIGINT)  # as if `Popen` had not returned yet
            return self.job

    launcher = Interrupted()
    out = io.StringIO()
    stages = [stage("s", "sleep 1000")]
    with pytest.raises(KeyboardInterrupt):
        Pipeline(stages, root, root / "out", {}, out=out, launcher=launcher).run()
    assert launcher.job.process.returncode == -signal.SIGTERM
    assert "s: stopped; the next run continues it" in out.getvalue()


def test_kill_is_ctrl_c_and_what_is_ignored_stays_so():
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the state that nohup leaves
        module.stop_with_signals()
        os.kill(os.getpid(), signal.SIGHUP)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        for number, handler in zip(numbers, before):
            signal.signal(number, handler)


def test_a_stage_that_needs_an_unknown_one_is_a_mistake_in_the_program(root):
    with pytest.raises(ValueError, match="needs .*nobody"):
        Pipeline([stage("s", needs=("nobody",))], root, root / "out", {})


def test_the_fingerprint_follows_imports_and_ignores_comments(tmp_path):
    (tmp_path / "fgrlhf").mkdir()
    write = lambda name, text: (tmp_path / "fgrlhf" / name).write_text(text)  # noqa: E731
    write("__init__.py", "")
    write("a.py", "from fgrlhf import b\nimport numpy\n")
    write("b.py", '"""Doc."""\nimport fgrlhf.c\nx = 1\n')
    write("c.py", "from fgrlhf.a import x\n")
    write("apart.py", "x = 1\n")
    names = {path.name for path in imported_files(tmp_path, ["fgrlhf.a"])}
    assert names == {"__init__.py", "a.py", "b.py", "c.py"}

    def now():
        return fingerprint(tmp_path, ["run"], ["*.yml"], ["fgrlhf.a"], ["up"])

    first = now()
    write("b.py", '"""Another."""\nimport fgrlhf.c  # why\nx = 1\n')
    write("apart.py", "x = 2\n")
    assert now() == first
    write("b.py", "import fgrlhf.c\nx = 2\n")
    assert now() != first
    assert fingerprint(tmp_path, ["run"], [], ["fgrlhf.a"], ["other"]) != now()


def test_code_outside_the_library_counts_too(tmp_path):
    """A task in a user's folder, which imports the library."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "task.py").write_text("from fgrlhf.base.errors import UserError\n")
    files = imported_files(tmp_path, ["mine.task", "mine", "numpy", "gone.module"])
    assert tmp_path / "mine" / "task.py" in files
    assert ROOT / "fgrlhf" / "base" / "errors.py" in files
    assert fingerprint(tmp_path, ["run"], [], ["mine.task"], [])
    (tmp_path / "my_rewards.py").write_text("from mine import task\n")
    assert tmp_path / "my_rewards.py" in imported_files(tmp_path, ["my_rewards"])
    page = imported_files(ROOT, ["interface_html.pages"])
    assert ROOT / "interface_html" / "schema.py" in page


@pytest.mark.parametrize("name, is_elsewhere", [("model", True), ("c[1].yml", False)])
def test_a_file_counts_by_its_contents(tmp_path, name, is_elsewhere):
    """Also one outside the repository, or with a name that looks like a pattern."""
    file = tmp_path / name
    root, read = (tmp_path / "repo", str(file)) if is_elsewhere else (tmp_path, name)
    file.write_text("1")
    first = fingerprint(root, ["run"], [read], [], [])
    file.write_text("20")
    assert first != fingerprint(root, ["run"], [read], [], [])


def test_relative_imports_are_followed(tmp_path):
    package = tmp_path / "mine" / "deep"
    package.mkdir(parents=True)
    (tmp_path / "mine" / "__init__.py").write_text("")
    imports = "from .reward import R\nfrom . import metric\nfrom .. import up"
    (package / "task.py").write_text(imports)
    for path in (package / "reward.py", package / "metric.py", tmp_path / "mine" / "up.py"):
        path.write_text("x = 1\n")
    names = {path.name for path in imported_files(tmp_path, ["mine.deep.task"])}
    assert names == {"__init__.py", "task.py", "reward.py", "metric.py", "up.py"}


def test_the_value_of_a_variable_counts(tmp_path):
    def of(*variables: str) -> str:
        return fingerprint(tmp_path, ["run"], [], [], [], variables)

    assert of("LR=1") == of("LR=1") != of("LR=2")
    assert of(f"OUT={tmp_path}/a") == fingerprint(Path("/b"), ["run"], [], [], [], ["OUT=/b/a"])


def test_a_second_pipeline_in_the_folder_is_refused(root):
    with hold(root / "out"), pytest.raises(UserError, match="another process works in"):
        run(root, CHAIN)
    assert order(root) == []
    run(root, CHAIN)
    assert len(order(root)) == 4 and not (root / "out" / ".lock").exists()


NO_NOTES = ["", "[]", "{}", '{"stages": []}', '{"stages": {"one": {}}}', "\0"]


@pytest.mark.parametrize("text", [*NO_NOTES, '{"stages": {}, "whole": 3}'])
def test_a_damaged_note_is_named_with_the_way_out(root, text):
    run(root, CHAIN[:1])
    (root / "out" / "pipeline.json").write_text(text)
    with pytest.raises(UserError, match=r"(?s)pipeline\.json .*damaged: delete it"):
        run(root, CHAIN[:1])
    (root / "out" / "pipeline.json").unlink()
    run(root, CHAIN[:1])
    (root / "out" / "stages.json").write_text(text)
    run(root, CHAIN[:1])
    assert list(read_json(root / "out" / "stages.json")) == ["one"]


def test_a_full_disk_stops_every_stage(root, monkeypatch):
    stages = [
        stage("slow", 'echo $$ > "$OUT/pid"; sleep 600'),
        stage("other", 'while [ ! -s "$OUT/pid" ]; do sleep 0.05; done'),
    ]
    real = module.write_json

    def full(path, value):
        pid = root / "out" / "pid"
        if pid.exists() and pid.stat().st_size:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, value)

    monkeypatch.setattr(module, "write_json", full)
    with pytest.raises(OSError, match="No space"):
        run(root, stages)
    with pytest.raises(ProcessLookupError):
        os.kill(int((root / "out" / "pid").read_text()), 0)
