"""The matrix library: measured once, cached, recorded with a run, equal on all ranks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, write_json
from fgrlhf.kernels import choice as kernels
from fgrlhf.kernels.layers import linear
from fgrlhf.runs.runlog import RunLog

ROOT = Path(__file__).parents[1]
LEFT = {"small": "pytorch", "medium": "pytorch", "large": "pytorch"}
OFF = {"small": "off", "medium": "off", "large": "off"}
MIXED = {"small": "pytorch", "medium": "onednn", "large": "onednn"}
needs_onednn = pytest.mark.skipif(
    not kernels.onednn_available(), reason="this PyTorch has no oneDNN"
)


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """A process without a choice yet, on a machine with oneDNN and an empty cache."""
    monkeypatch.setattr(kernels, "_chosen", None)
    monkeypatch.setattr(kernels, "onednn_available", lambda: True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("FGRLHF_KERNELS", raising=False)


@pytest.fixture
def timer(monkeypatch):
    """A fake timer with fixed seconds per library and size class; `measured` counts calls."""

    class Timer:
        pytorch = {"small": 1.0, "medium": 1.0, "large": 1.0}
        onednn = {"small": 1.0, "medium": 0.5, "large": 0.1}
        measured = 0

        def __call__(self, library, shape):
            self.measured += 1
            size_of_shape = {timed: size for size, (_, timed) in kernels.SIZES.items()}
            return getattr(self, library)[size_of_shape[shape]]

    fake = Timer()
    monkeypatch.setattr(kernels, "_seconds", fake)
    return fake


def forget(monkeypatch):
    monkeypatch.setattr(kernels, "_chosen", None)


@pytest.mark.parametrize(
    "size, first, last",
    [("small", 2**20, 2**22 - 1), ("medium", 2**22, 2**26 - 1), ("large", 2**26, 2**40)],
)
def test_classes_of_size(size, first, last, monkeypatch):
    monkeypatch.setattr(kernels, "_chosen", dict.fromkeys(kernels.SIZES, "pytorch"))
    monkeypatch.setitem(kernels._chosen, size, "onednn")
    M, K, N = kernels.SIZES[size][1]
    sizes = (first - 1, first, M * K * N, last, last + 1)
    taken = [kernels.takes_onednn(n) for n in sizes]
    assert taken == [False, True, True, True, size == "large"]


@pytest.mark.parametrize(
    "pytorch, expected",
    [(1.0, "pytorch"), (1.19, "pytorch"), (1.2, "onednn"), (3.0, "onednn"), (0.5, "pytorch")],
)
def test_onednn_is_chosen_where_it_is_clearly_faster(pytorch, expected):
    seconds = {"pytorch": pytorch, "onednn": 1.0}
    assert set(kernels.measure(lambda library, shape: seconds[library]).values()) == {expected}


def test_the_measured_choice_decides_who_multiplies(fresh, timer, monkeypatch):
    sizes = (2**20 - 1, 2**20, 2**24, 2**30)
    assert [kernels.takes_onednn(n) for n in sizes] == [False, False, True, True]
    assert timer.measured == 6, "two libraries, three classes, once"
    rows_by_onednn = []

    def onednn_linear(x, weight, bias):
        rows_by_onednn.append(len(x))
        return x @ weight.T

    monkeypatch.setattr(kernels, "onednn_linear", onednn_linear)
    for rows in (32, 64, 256, 1024):  # times 256 x 256: 2**21, 2**22, 2**24, 2**26 multiplications
        linear(torch.ones(rows, 256), torch.ones(256, 256))
    assert rows_by_onednn == [64, 256, 1024]


def test_a_machine_measures_once(fresh, timer, monkeypatch):
    assert kernels.choices() == MIXED and timer.measured == 6
    forget(monkeypatch)
    timer.onednn = dict.fromkeys(timer.onednn, 9.0)  # another measurement would choose differently
    assert kernels.choices() == MIXED and timer.measured == 6
    forget(monkeypatch)
    monkeypatch.setattr(kernels, "machine_key", lambda: "another processor")
    assert kernels.choices() == LEFT and timer.measured == 12
    assert len(json.loads(kernels.cache_file().read_text())) == 2, (
        "two machines may share a home folder"
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "[" * 100_000,
        '{"x": 3}',
        '{"x": {"small": "fast", "medium": "fast", "large": "fast"}}',
        "\xff",
    ],
)
def test_a_damaged_cache_is_measured_again(fresh, timer, text):
    path = kernels.cache_file()
    path.parent.mkdir(parents=True)
    path.write_bytes(text.encode("latin-1"))
    assert kernels.choices() == MIXED
    assert list(json.loads(path.read_text()).values()) == [MIXED]


def test_without_a_cache_file_each_process_measures(fresh, timer, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert kernels.choices() == MIXED and timer.measured == 6


@pytest.mark.parametrize(
    "setting, variable, expected",
    [
        ("auto", None, MIXED),
        ("off", None, OFF),
        ("off", "auto", MIXED),
        ("auto", "off", OFF),
        ("auto", "pytorch", LEFT),
        ("auto", "", MIXED),
    ],
)
def test_settings(fresh, timer, monkeypatch, setting, variable, expected):
    if variable is not None:
        monkeypatch.setenv("FGRLHF_KERNELS", variable)
    kernels.use_kernels(setting)
    assert kernels.choices() == expected


def test_every_product_can_be_forced_to_onednn(fresh, timer, monkeypatch):
    monkeypatch.setenv("FGRLHF_KERNELS", "onednn")
    kernels.use_kernels()
    assert kernels.takes_onednn(1) and kernels.takes_onednn(2**30) and not timer.measured


def test_unknown_settings_are_refused(fresh, monkeypatch):
    with pytest.raises(UserError, match="model.kernels is `fast`: it must be one of auto, off"):
        kernels.use_kernels("fast")
    monkeypatch.setenv("FGRLHF_KERNELS", "mkl")
    with pytest.raises(UserError, match="FGRLHF_KERNELS=mkl is unknown"):
        kernels.choices()


def test_without_onednn_nothing_is_measured(fresh, timer, monkeypatch):
    monkeypatch.setattr(kernels, "onednn_available", lambda: False)
    monkeypatch.setenv("FGRLHF_KERNELS", "onednn")
    assert kernels.choices() == LEFT and not timer.measured


def test_a_resumed_run_keeps_its_choice(fresh, timer, tmp_path, monkeypatch):
    kernels.use_kernels("auto", tmp_path / "run")
    RunLog(tmp_path / "run").close()
    assert read_json(tmp_path / "run" / "run.json")["kernels"] == MIXED
    forget(monkeypatch)
    kernels.cache_file().unlink()
    timer.onednn = dict.fromkeys(timer.onednn, 9.0)
    kernels.use_kernels("auto", tmp_path / "run")
    assert kernels.choices() == MIXED and timer.measured == 6
    RunLog(tmp_path / "run", resume_step=0).close()
    assert read_json(tmp_path / "run" / "run.json")["kernels"] == MIXED
    kernels.use_kernels("auto", tmp_path / "another run")
    assert kernels.choices() == LEFT


def test_a_resumed_run_stays_off(fresh, timer, tmp_path):
    kernels.use_kernels("off", tmp_path)
    assert kernels.kernels_off()
    RunLog(tmp_path).close()
    kernels.use_kernels("auto")
    assert not kernels.kernels_off()
    kernels.use_kernels("auto", tmp_path)
    assert kernels.kernels_off() and kernels.choices() == OFF
    assert not kernels.takes_onednn(2**30)


def test_off_is_known_without_a_measurement(fresh, timer, monkeypatch):
    assert kernels.kernels_off("off") and not kernels.kernels_off("auto")
    monkeypatch.setenv("FGRLHF_KERNELS", "auto")
    assert not kernels.kernels_off("off")
    monkeypatch.setenv("FGRLHF_KERNELS", "off")
    assert kernels.kernels_off("auto")
    assert not timer.measured


@pytest.mark.parametrize(
    "record",
    [
        {"kernels": {"small": "off", "medium": "off", "large": "onednn"}},
        {},
        {"kernels": None},
        {"kernels": {"small": "onednn"}},
        {"kernels": 3},
        [],
    ],
)
def test_a_record_without_a_choice_is_no_record(fresh, timer, tmp_path, record):
    write_json(tmp_path / "run.json", record)
    kernels.use_kernels("auto", tmp_path)
    assert kernels.choices() == MIXED


def test_the_machine_key_names_the_conditions_of_a_measurement():
    key = kernels.machine_key()
    assert torch.__version__ in key and f"threads {torch.get_num_threads()}" in key
    assert kernels.processor_name()


FIRST_PRODUCT = """
import os
before = dict(os.environ)
import torch
from fgrlhf.kernels import choice as kernels
from fgrlhf.kernels.layers import linear
assert dict(os.environ) == before, "importing changed the environment"

def resident_mb():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

torch.set_num_threads(1)
assert set(kernels.measure()) == {"small", "medium", "large"}  # the real timer
assert dict(os.environ) == before, "the first product changed the environment"
if not kernels.onednn_available():
    raise SystemExit
kernels.use_kernels()
assert kernels.takes_onednn(1)
sizes = iter(range(10, 400))
def multiply(n):
    for _ in range(n):
        linear(torch.ones(next(sizes), 64), torch.ones(64, 64))
multiply(40)
start = resident_mb()
multiply(200)
growth = resident_mb() - start
assert growth < 40, f"200 shapes took {growth:.0f} MB"  # 110 MB without the limit
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_the_environment_stays_and_onednn_caches_the_code_of_few_shapes(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "FGRLHF_KERNELS": "onednn"}
    done = subprocess.run(
        [sys.executable, "-c", FIRST_PRODUCT], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_bf16_is_noted_where_the_processor_lacks_it(monkeypatch):
    has = {"avx512_bf16": False, "amx_bf16": False}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: has)
    assert "set model.dtype=fp32" in kernels.slow_bf16_note("cpu", "model.dtype=fp32")
    assert kernels.slow_bf16_note("cuda", "model.dtype=fp32") is None
    has["amx_bf16"] = True
    assert kernels.slow_bf16_note("cpu", "model.dtype=fp32") is None
    has.clear()  # a processor of another kind, about which nothing is known
    assert kernels.slow_bf16_note("cpu", "model.dtype=fp32") is None
