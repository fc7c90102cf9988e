"""Fixtures shared by several test files."""

import gc
import os
import signal
from pathlib import Path
from unittest import mock

import pytest
import reference
import torch
from accelerate.utils import memory as accelerate_memory
from hypothesis import HealthCheck, settings

from fgrlhf.models.provenance import read_source
from scripts.browser import on_path

# The two matrix libraries of fgrlhf/kernels/choice.py round differently, so no test, and no program
# that a test starts, measures which is faster. All other kernels are in use.
os.environ.setdefault("FGRLHF_KERNELS", "pytorch")
# Tiny models: one thread is faster than two. No test depends on rounding; to check that, run them
# with other products and sums: FGRLHF_KERNELS=onednn, FGRLHF_TEST_THREADS=2,
# ATEN_CPU_CAPABILITY=default
torch.set_num_threads(int(os.environ.get("FGRLHF_TEST_THREADS", "1")))


# No test depends on time: hypothesis would fail an example that takes 0.2 s on a busy machine.
settings.register_profile("fgrlhf", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fgrlhf")


def pytest_collection_finish() -> None:
    """Keep the garbage collector away from the imported modules, which it would visit often."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def no_collection_before_training():
    """Leave out accelerate's garbage collection before every run: these runs are short."""
    clear = accelerate_memory.clear_device_cache

    def without_collection(garbage_collection: bool = False) -> None:
        clear()

    with mock.patch.object(accelerate_memory, "clear_device_cache", without_collection):
        yield


@pytest.fixture(autouse=True, scope="session")
def no_waiting_for_the_disk():
    """Let `os.fsync` do nothing: only a power failure would lose what was not synced."""
    with mock.patch.object(os, "fsync", lambda descriptor: None):
        yield


def _folder(variable: str, what: str) -> Path:
    path = os.environ.get(variable)
    if not path:
        pytest.skip(f"{variable} is not set; set it to the folder of {what}")
    return Path(path)


@pytest.fixture(scope="session")
def expected_of_fixtures(tmp_path_factory) -> Path:
    """The files that tests/reference.py computes from the rows in tests/fixtures."""
    return reference.write_expected(tmp_path_factory.mktemp("expected"))


@pytest.fixture(scope="module", params=["fixtures", "published"])
def source(request) -> str:
    """Rows in the published format; such tests run twice.

    They always run on the rows in tests/fixtures, and on the published rows if these are available.
    """
    return request.param


@pytest.fixture(scope="module")
def golden(source, expected_of_fixtures) -> Path:
    """Golden values of the same rows as `source`.

    For published rows they come from the published code, for the fixtures from tests/reference.py.
    """
    return (
        expected_of_fixtures
        if source == "fixtures"
        else _folder("FGRLHF_GOLDEN", "golden values of the published code")
    )


@pytest.fixture(scope="module")
def qa_feedback(source) -> Path:
    """Rows in the published format."""
    if source == "fixtures":
        return reference.ROWS
    return _folder(
        "FGRLHF_QA_FEEDBACK", "real qa-feedback rows (train.json, dev.json, *_feedback.json)"
    )


@pytest.fixture(scope="session")
def small_model() -> Path:
    """The folder of a pretrained language model, for tests marked `small_model`."""
    default = Path(__file__).parents[1] / "outputs" / "models" / "smollm2"
    folder = Path(os.environ.get("FGRLHF_SMALL_MODEL", default))
    if read_source(folder) is None:
        pytest.skip(
            "there is no pretrained model: fetch it with `bash scripts/get_small_model.sh`, or set"
            " FGRLHF_SMALL_MODEL to its folder"
        )
    return folder


@pytest.fixture
def record_calls(monkeypatch):
    """`record_calls(owner, name)` returns a list that gets the `self` of every call of a method."""

    def record(owner: type, name: str) -> list:
        objects = []
        original = getattr(owner, name)

        def method(self, *arguments, **options):
            objects.append(self)
            return original(self, *arguments, **options)

        monkeypatch.setattr(owner, name, method)
        return objects

    return record


@pytest.fixture
def interruptible():
    """SIGINT raises KeyboardInterrupt, even if this process was started to ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def chromium():
    """A headless Chromium of the system, or else playwright's own (scripts/browser.py)."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        # pages of one origin share a process
        arguments = ["--no-sandbox", "--process-per-site"]
        try:
            browser = driver.chromium.launch(executable_path=on_path(), args=arguments)
        except playwright.Error as error:
            pytest.skip(
                "no chromium to open the pages (Debian: apt-get install chromium-headless-shell):"
                f" {str(error).splitlines()[0]}"
            )
        yield browser
        browser.close()
