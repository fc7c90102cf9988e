"""Reward servers in threads of the test, with faults on demand, and tiny models to serve."""

import asyncio
import json
import socket
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import rm_helpers as rm
import torch
import uvicorn

from fgrlhf.reward_models.networks import LanguageModelScorer
from fgrlhf.reward_models.prefix import text_prefix
from fgrlhf.reward_models.spec import RewardModelSpec
from fgrlhf.reward_utils import BLANK, load_segmenter
from fgrlhf.rewards.client import RewardClient
from fgrlhf.rewards.kind import RewardKind
from fgrlhf.rewards.kinds import SegmentClassifier, SequenceScorer, ServerReward
from fgrlhf.rewards.protocol import sent_prefix
from fgrlhf.rewards.server import Limits, ServedReward, create_app, model_sha256
from fgrlhf.scorers.base import RewardContext

TOKEN = "secret-token-of-the-tests-0123456789"
VARIABLE = "FGRLHF_REWARD_TOKEN"
LIMITS = Limits(max_batch=64, max_body=1 << 20)
CONTEXT = RewardContext(text_prefix)
LABELS = {0: "ERR", 1: "O"}


def save_model(folder: Path, kind: str, seed: int = 1) -> str:
    """A random reward model of `kind` ("segment" or "sequence"); returns its folder."""
    start = rm.start(folder, "causal")
    torch.manual_seed(seed)
    labels = LABELS if kind == "segment" else None
    network = LanguageModelScorer.start_from(str(start), "causal", kind, labels, False)
    with torch.no_grad():
        network.head.weight.mul_(50)  # scores of order 1
    facts: dict = {"level": "sequence", "mean": 0.1, "std": 0.7}
    if kind == "segment":
        facts = {
            "level": "word",
            "labels": tuple(LABELS.values()),
            "error_label": "ERR",
            "ok_label": "O",
            "segmenter": load_segmenter(BLANK).describe(),
        }
    spec = RewardModelSpec(kind=kind, shape="causal", with_context=True, max_length=128, **facts)
    saved = folder / f"{kind}-{seed}"
    network.save_pretrained(saved)
    rm.tiny.tokenizer().save_pretrained(saved)
    spec.save(saved)
    return str(saved)


def segment_config(folder: Path, seed: int = 1) -> SegmentClassifier:
    ckpt = save_model(folder, "segment", seed)
    return SegmentClassifier(ckpt=ckpt, values={"error": -0.5, "ok": 0.3})


def sequence_config(folder: Path, seed: int = 1) -> SequenceScorer:
    return SequenceScorer(ckpt=save_model(folder, "sequence", seed), scale=0.3, clip=2.0)


class RewardServer:
    """A server of the reward `config` on a free port, in a thread.

    Attributes:
      faults: what happens to the next requests for scores, in order; then they are answered.
      requests: requests for scores so far.
      holds: set while a request is held.
    """

    def __init__(self, config: RewardKind, limits: Limits = LIMITS, reward=None):
        self.digest = model_sha256(config, "fp32")
        built = reward or config.build(RewardContext(sent_prefix))
        self.served = ServedReward(built, config.kind, self.digest, limits)
        self.faults: list[Fault] = []
        self.requests = 0
        self.holds = threading.Event()
        self.released = threading.Event()
        self.app = create_app(self.served, TOKEN)
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        config_ = uvicorn.Config(self, log_config=None, lifespan="off", http="h11", ws="none")
        self.server = uvicorn.Server(config_)
        self.thread = threading.Thread(target=self.server.run, args=([self.socket],), daemon=True)

    def __enter__(self) -> "RewardServer":
        self.thread.start()
        return self

    def __exit__(self, *_) -> None:
        self.released.set()
        self.server.should_exit = True
        self.thread.join()
        self.socket.close()

    async def __call__(self, scope, receive, send) -> None:
        if scope["path"] != "/v1/scores":
            await self.app(scope, receive, send)
            return
        self.requests += 1
        fault = self.faults.pop(0) if self.faults else answer
        await fault(self, scope, receive, send)

    def wait(self, done: threading.Event, seconds: float) -> bool:
        """The deadline of a client: it is reached when a request is held, and never otherwise."""
        while not done.wait(0.01):
            if self.holds.is_set():
                self.holds.clear()
                return False
        return True


Fault = Callable[[RewardServer, dict, Callable, Callable], Awaitable[None]]


async def answer(server, scope, receive, send) -> None:
    await server.app(scope, receive, send)


async def hold(server, scope, receive, send) -> None:
    """Do not answer before the test ends."""
    server.holds.set()
    while not server.released.is_set():
        await asyncio.sleep(0.01)


async def cut(server, scope, receive, send) -> None:
    """Close the connection within the answer.

    The request is read first: closing before that would reset the connection, and the client might
    lose the start of the answer.
    """
    while (await receive()).get("more_body", False):
        pass
    await _send(send, 200, b'{"protocol": 1, "sco', length=1000)


def status(code: int, body: bytes = b'{"error": "out of order"}') -> Fault:
    async def fault(server, scope, receive, send):
        await _send(send, code, body)

    return fault


def altered(change: Callable[[dict], object]) -> Fault:
    """Change the JSON of the right answer."""

    async def fault(server, scope, receive, send):
        messages = []

        async def collect(message):
            messages.append(message)

        await server.app(scope, receive, collect)
        tree = json.loads(b"".join(message.get("body", b"") for message in messages))
        changed = change(tree)
        await _send(send, 200, json.dumps(tree if changed is None else changed).encode())

    return fault


async def _send(send, code: int, body: bytes, length: int | None = None) -> None:
    headers = [(b"content-length", str(len(body) if length is None else length).encode())]
    await send({"type": "http.response.start", "status": code, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": length is not None})


def http_config(server: RewardServer, **changes) -> ServerReward:
    settings = {"url": server.url, "model_sha256": server.digest, "timeout_s": 3600.0, "retries": 3}
    return ServerReward(**{**settings, **changes})


def client(server: RewardServer, slept: list[float] | None = None, **changes) -> RewardClient:
    """The reward of a server. Waits between attempts only append to `slept`."""
    pause = [].append if slept is None else slept.append
    return RewardClient(http_config(server, **changes), text_prefix, pause, server.wait)
