"""Stages in forks of a server: they are what new processes would be, and import PyTorch once.

The libraries that the server imports are stand-ins of one line, so that a test takes a second.
"""

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json
from fgrlhf.pipeline import fork_server
from fgrlhf.pipeline.fingerprint import imports
from fgrlhf.pipeline.stages import Pipeline, Stage

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(os, "pidfd_open"), reason="only Linux has pidfd_open"
)

# a program: it prints what may differ between a fork and a new process
PROGRAM = """
import __main__, json, os, signal, sys
import torch

def state():
    names = ["TASK", "SCALE", "OUT", "SET_BY_TORCH"]
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    own = os.getpid() == os.getsid(0)  # a program in a script belongs to the script's session
    return {
        "arguments": [sys.argv, sys.orig_argv[1:]], "folders": [os.getcwd(), sys.path[0]],
        "variables": {name: os.environ.get(name) for name in names},
        "handlers": [str(handler) for handler in handlers],
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "name": [__name__, __main__.__spec__.name, __main__.__file__],
        "streams": [sys.stdin.read(), sys.stdout.isatty(), sys.stdout.encoding, sys.stdout.errors],
        "groups": [own, os.getpgid(0) == os.getsid(0)],
        "files": sorted(map(int, os.listdir("/proc/self/fd"))),
        "repository": sorted(name for name in sys.modules if name.split(".")[0] == "fgrlhf"),
    }

if __name__ == "__main__":
    print(json.dumps(state(), indent=1))
"""


# it counts its imports and, as the real one may, sets a variable
TORCH = """
import os
os.environ["SET_BY_TORCH"] = "1"
print("x", file=open(os.environ["OUT"] + "/imports", "a"))
"""


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A repository with the module `program`, and stand-ins of the libraries elsewhere."""
    monkeypatch.setattr(fork_server, "GPU_DRIVERS", ())
    monkeypatch.delenv(fork_server.VARIABLE, raising=False)
    for name in fork_server.PRELOADED:
        parts = name.split(".")
        for i in range(1, len(parts) + 1):
            folder = tmp_path.joinpath("libraries", *parts[:i])
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "__init__.py").write_text("")
    library(tmp_path, "torch", TORCH)
    root = tmp_path / "re po"
    (root / "out").mkdir(parents=True)
    (root / "program.py").write_text(PROGRAM)
    return root


def library(folder, name, text):
    (folder / "libraries" / name / "__init__.py").write_text(text)


def direct(name, *arguments, module="program", **parts):
    command = (sys.executable, "-m", module, *arguments)
    return Stage(name, command, modules=(module,), **parts)


def scripted(root, name, text, module="program", **parts):
    (root / f"{name}.sh").write_text(
        f'launch() {{ python -m fgrlhf.cli.stage_script launch "$@"; }}\n{text}\n'
    )
    return Stage(name, ("bash", f"{name}.sh"), modules=(module,), **parts)


def environment(root, **more):
    folders = {"OUT": str(root / "out"), "DATA_DIR": "d", "OUTPUT_DIR": "o"}
    paths = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{root.parent / 'libraries'}{os.pathsep}{ROOT}",
    }
    return {"TASK": "t", "SCALE": "mini", "CUDA_VISIBLE_DEVICES": "", **folders, **paths, **more}


def run(root, stages, **more):
    """Run the stages, and return their logs."""
    out = io.StringIO()
    Pipeline(stages, root, root / "out", environment(root, **more), out=out).run()
    return [(root / "out" / "logs" / f"{stage.name}.log").read_text() for stage in stages]


def times_imported(root):
    file = root / "out" / "imports"
    return len(file.read_text().split()) if file.exists() else 0


def both_ways(root, stages, monkeypatch):
    """Logs of the stages in forks and in new processes, each with the number of imports."""
    results = []
    for setting in ("on", "off"):
        monkeypatch.setenv(fork_server.VARIABLE, setting)
        logs = run(root, stages)
        results.append((logs, times_imported(root)))
        for name in ("imports", "pipeline.json"):
            (root / "out" / name).unlink()
    return results


def test_a_fork_is_what_a_new_process_would_be_and_imports_once(root, monkeypatch):
    stages = [
        direct("one", "a b", "--key", "c"),
        direct("two", needs=("one",)),
        scripted(
            root, "three", 'export SCALE=other; launch -m program "d e"; echo $?', needs=("two",)
        ),
        scripted(root, "four", "launch -m program | cat; launch -m program >&2", needs=("three",)),
    ]
    (forked, once), (new, each) = both_ways(root, stages, monkeypatch)
    for fork, process in zip(forked, new):
        assert fork == process
    assert '"d e"' in forked[2] and '"SCALE": "other"' in forked[2]
    assert (once, each) == (1, 5)


def test_a_program_ends_as_a_new_process_would(root, monkeypatch):
    (root / "ends.py").write_text(
        "import atexit, os, sys, torch\n"
        "atexit.register(print, 'at exit')\n"
        "print('printed')\n"
        "if sys.argv[1] == 'error': raise KeyError('a bug')\n"
        "if sys.argv[1] == 'signal': sys.stdout.flush(); os.kill(os.getpid(), 9)\n"
        "sys.exit(int(sys.argv[1]))\n"
    )
    calls = "; ".join(f"launch -m ends {how} || echo $?" for how in ("3", "0", "signal", "error"))
    (forked, once), (new, each) = both_ways(root, [scripted(root, "s", calls, "ends")], monkeypatch)
    assert (once, each) == (1, 4)
    for text in ("printed\nat exit\n3\n", "KeyError: 'a bug'", "137\n"):
        assert text in forked[0] and text in new[0]
    assert forked[0].count("at exit") == new[0].count("at exit") == 3

    with pytest.raises(UserError, match="stage fails failed with exit code 7"):
        run(root, [direct("fails", "7", module="ends")])
    with pytest.raises(UserError, match=r"stage dies was killed by signal 9 \(SIGKILL\)"):
        run(root, [direct("dies", "signal", module="ends")])
    with pytest.raises(UserError, match="stage exits failed with exit code 5"):
        run(root, [scripted(root, "exits", "launch -m ends 0; exit 5", "ends")])


def test_other_variables_that_libraries_read_start_python_anew(root):
    text = "LC_ALL=C launch -m program; MKL_X=1 launch -m program; FGRLHF_X=1 launch -m program"
    run(root, [scripted(root, "s", text), direct("d")])
    assert times_imported(root) == 3  # the server, and the first two programs


def test_after_an_import_with_threads_every_program_starts_python_anew(root):
    text = (root.parent / "libraries" / "torch" / "__init__.py").read_text()
    library(
        root.parent,
        "torch",
        f"{text}import threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n",
    )
    run(root, [direct("a"), direct("b"), scripted(root, "c", "launch -m program")])
    assert times_imported(root) == 4


def test_code_that_changes_between_two_stages_counts(root):
    (root / "fgrlhf").mkdir()  # before the library's own in the path
    (root / "fgrlhf" / "__init__.py").write_text("answer = 1\n")
    (root / "imp.py").write_text("import fgrlhf, torch\nprint(fgrlhf.answer)\n")
    (root / "change.py").write_text(
        # of another size: Python takes a compiled file for one of the same second and size
        "import torch\nopen('fgrlhf/__init__.py', 'w').write('answer = 1 + 21')\n"
    )
    (root / "fgrlhf" / "pipeline").symlink_to(ROOT / "fgrlhf" / "pipeline")
    (root / "fgrlhf" / "runs").symlink_to(ROOT / "fgrlhf" / "runs")
    stages = [
        direct("a", module="imp"),
        direct("b", module="change", needs=("a",)),
        direct("c", module="imp", needs=("b",)),
    ]
    logs = run(root, stages)
    assert (logs[0], logs[2], times_imported(root)) == ("1\n", "22\n", 1)


def test_memory_and_failed_imports_are_those_of_the_program(root):
    library(root.parent, "peft", "raise ImportError('damaged')\n")
    (root / "big.py").write_text("import torch\nx = b'x' * (150 * 2**20)\n")
    (root / "asks.py").write_text("import torch\nimport peft\n")
    run(
        root,
        [direct("big", module="big"), scripted(root, "s", "launch -m big", "big"), direct("small")],
    )
    costs = read_json(root / "out" / "stages.json")
    assert costs["big"]["peak_mb"] > 150 and costs["s"]["peak_mb"] > 150
    assert costs["small"]["peak_mb"] < 100
    with pytest.raises(UserError, match="ImportError: damaged"):
        run(root, [direct("asks", module="asks")])


# a program that takes its time to end
SLOW = """
import os, signal, sys, time, torch
def end(*_):
    time.sleep(0.5)
    open(os.environ["OUT"] + "/ended", "a").write(str(os.getpid()) + " ")
    sys.exit(1)
signal.signal(signal.SIGTERM, end)
open(os.environ["OUT"] + "/started", "a").write(f"{os.getpid()} {os.getppid()} ")
while True: time.sleep(0.01)
"""
DRIVER = """
import sys
from pathlib import Path
from fgrlhf.base.program import run_main
from fgrlhf.pipeline import fork_server
from fgrlhf.pipeline.stages import Pipeline, Stage, stop_with_signals
fork_server.GPU_DRIVERS = ()
command = sys.argv[1:]
def main():
    stop_with_signals()
    out = Path("out").absolute()
    Pipeline([Stage("s", tuple(command), modules=("slow",))], Path.cwd(), out, {}).run()
run_main(main)
"""


def wait_for(what, seconds=30):
    for _ in range(seconds * 50):
        if found := what():
            return found
        time.sleep(0.02)
    raise AssertionError("it did not happen")


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.fixture(params=["direct", "script"])
def driver(request, root):
    """A pipeline in a process of its own, whose stage runs."""
    (root / "slow.py").write_text(SLOW)
    stage = direct("s", module="slow")
    if request.param == "script":
        stage = scripted(root, "s", "launch -m slow", "slow")
    variables = {**os.environ, **environment(root)}
    command = [sys.executable, "-c", DRIVER, *stage.command]
    process = subprocess.Popen(
        command,
        cwd=root,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    started = root / "out" / "started"
    process.pids = wait_for(lambda: started.exists() and started.read_text().split())
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_stopped_pipeline_waits_until_its_programs_have_ended(driver, root):
    driver.send_signal(signal.SIGTERM)
    output, _ = driver.communicate()
    assert "s: stopped; the next run continues it" in output
    assert (root / "out" / "ended").read_text().split() == driver.pids[:1]
    assert not any(map(is_running, driver.pids))


def test_a_killed_server_fails_its_stages(driver, root):
    server = next(
        pid
        for pid in Path(f"/proc/{driver.pid}/task/{driver.pid}/children").read_text().split()
        if "fork_server" in Path(f"/proc/{pid}/cmdline").read_text()
    )
    os.kill(int(server), signal.SIGKILL)
    output, _ = driver.communicate()
    assert "s was killed by signal 9" in output
    os.kill(int(driver.pids[0]), signal.SIGKILL)


def test_the_server_ends_with_a_killed_pipeline(driver, root):
    children = Path(f"/proc/{driver.pid}/task/{driver.pid}/children").read_text().split()
    driver.kill()
    wait_for(lambda: not any(map(is_running, children)))
    os.kill(int(driver.pids[0]), signal.SIGKILL)  # real programs end by themselves: run_main


def test_what_imports_torch_is_found_without_importing_it(tmp_path):
    (tmp_path / "a.py").write_text("def f():\n    from b import c\n")
    (tmp_path / "b.py").write_text("import torch.nn\n")
    (tmp_path / "d.py").write_text("import torchvision\n")
    assert imports(tmp_path, ["a"], "torch")
    assert not imports(tmp_path, ["d"], "torch")
    assert imports(ROOT, ["fgrlhf.cli.rl"], "torch")


def test_where_stages_are_not_forked(monkeypatch, tmp_path):
    monkeypatch.setattr(fork_server, "GPU_DRIVERS", ())
    monkeypatch.delenv(fork_server.VARIABLE, raising=False)
    assert fork_server.available()
    monkeypatch.setattr(fork_server, "GPU_DRIVERS", (str(tmp_path),))
    assert not fork_server.available()
    monkeypatch.setattr(fork_server, "GPU_DRIVERS", ())
    monkeypatch.setenv(fork_server.VARIABLE, "off")
    assert not fork_server.available()


@pytest.mark.parametrize("threads", ["1", "4"])
def test_the_real_libraries_can_be_used_in_forks(threads):
    code = "from fgrlhf.pipeline.fork_server import _Imported; print(_Imported.now().usable)"
    command = [sys.executable, "-c", code]
    variables = {**os.environ, "OMP_NUM_THREADS": threads}
    ended = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
    assert ended.stdout == "True\n", ended.stderr
