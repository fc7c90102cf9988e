"""The server of faults/fake_sampler.py in a thread of the test, with a tiny policy; its clients."""

import threading
import time
from pathlib import Path

import tiny

from faults.fake_sampler import FakeSampler as Server
from faults.fake_sampler import Fault, Handler, answer
from fgrlhf.policy import CausalPolicy
from fgrlhf.samplers.config import VllmSamplerConfig
from fgrlhf.samplers.vllm import VllmSampler

API_KEY = "secret-key-of-the-sampler-0123456789"


class FakeSampler(Server):
    """A server of a tiny policy on a free port."""

    def __init__(self, sync_dir: Path, kind: str = "gpt2"):
        # with other weights than any policy of a test, so that a run must publish its own
        policy = tiny.policy(kind, seed=99)
        assert isinstance(policy, CausalPolicy)
        self.holds = threading.Event()  # set while a request is held
        self.released = threading.Event()
        super().__init__(policy, sync_dir)

    def __exit__(self, *_) -> None:
        self.released.set()
        super().__exit__()

    def wait(self, done: threading.Event, seconds: float) -> bool:
        """The deadline of a client: it is reached when a request is held, and never otherwise."""
        while not done.wait(0.01):
            if self.holds.is_set():
                self.holds.clear()
                return False
        return True


# ---- faults --------------------------------------------------------------------------------------


def late(seconds: float) -> Fault:
    """Answer after some time."""

    def fault(handler: Handler, body: dict) -> None:
        time.sleep(seconds)
        answer(handler, body)

    return fault


def hold(handler: Handler, body: dict) -> None:
    """Do not answer before the test ends."""
    fake = handler.fake
    assert isinstance(fake, FakeSampler)
    fake.holds.set()
    fake.released.wait()


def text(data: bytes) -> Fault:
    """Answer with a text."""

    def fault(handler: Handler, body: dict) -> None:
        handler.reply(200, data)

    return fault


def choices(count: int) -> Fault:
    """Answer with so many choices."""

    def fault(handler: Handler, body: dict) -> None:
        tree = handler.fake.complete(body)
        tree["choices"] *= count
        handler.reply(200, tree)

    return fault


# ---- clients -------------------------------------------------------------------------------------


def vllm_config(fake: FakeSampler, **changes) -> VllmSamplerConfig:
    settings = {"url": fake.url, "sync_dir": str(fake.sync_dir), "retries": 3}
    return VllmSamplerConfig(**{**settings, **changes})


def client(fake: FakeSampler, slept: list[float] | None = None, **changes) -> VllmSampler:
    """The client of a server. Waits between attempts only append to `slept`."""
    pause = [].append if slept is None else slept.append
    return VllmSampler(vllm_config(fake, **changes), pause=pause, wait=fake.wait)
