"""A server with vLLM's routes in a thread of the test, which runs the tiny causal model.

It loads its weights from the shared folder on request, like a vLLM server. Its tokens are
those of the policy in this process, since both draw from the seed of a request.
"""

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import tiny
import torch
from safetensors.torch import load_file

from fgrlhf.models.decoding import Sampling
from fgrlhf.policy import CausalPolicy
from fgrlhf.samplers.config import VllmSamplerConfig
from fgrlhf.samplers.vllm import VllmSampler

API_KEY = "secret-key-of-the-sampler-0123456789"
# answers the request of a handler, instead of the server
Fault = Callable[["Handler", dict], None]


class FakeSampler:
    """A server on a free port.

    Attributes:
      faults: what happens to the next requests for responses, in order; then they are answered.
      loads_weights: false: it confirms a reload but keeps its weights.
      reports_version: false: it lacks the routes of the version, like older servers.
      dev_mode: false: it has only the routes below /v1.
      api_key: needed below /v1, if not None.
      calls: the routes of the requests so far.
      requests: the bodies of the requests for responses.
    """

    def __init__(self, sync_dir: Path, kind: str = "gpt2"):
        self.sync_dir = sync_dir
        # with other weights than any policy of a test, so that a run must publish its own
        policy = tiny.policy(kind, seed=99)
        assert isinstance(policy, CausalPolicy)
        self.policy: CausalPolicy = policy
        self.faults: list[Fault] = []
        self.loads_weights = True
        self.reports_version = True
        self.dev_mode = True
        self.api_key: str | None = None
        self.models = ["the-policy"]
        self.version: str | None = None
        self.paused = False
        self.calls: list[str] = []
        self.requests: list[dict] = []
        self.lock = threading.Lock()
        self.holds = threading.Event()  # set while a request is held
        self.released = threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.fake = self  # pyright: ignore[reportAttributeAccessIssue]
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> "FakeSampler":
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        self.released.set()
        self.server.shutdown()
        self.server.server_close()

    def wait(self, done: threading.Event, seconds: float) -> bool:
        """The deadline of a client: it is reached when a request is held, and never otherwise."""
        while not done.wait(0.01):
            if self.holds.is_set():
                self.holds.clear()
                return False
        return True

    def reload(self) -> None:
        assert self.paused, "weights must not change while it samples"
        if not self.loads_weights:
            return
        tensors: dict[str, torch.Tensor] = {}
        for file in sorted(self.sync_dir.glob("*.safetensors")):
            tensors |= load_file(file)
        missing, unexpected = self.policy.model.load_state_dict(tensors, strict=False)
        assert not unexpected
        assert set(missing) <= {"lm_head.weight"}  # tied to the embeddings

    def complete(self, request: dict) -> dict:
        """The answer to a request for one response."""
        assert not self.paused
        ids_1P = torch.tensor([request["prompt"]])
        sampling = Sampling(
            request["max_tokens"],
            True,
            request["temperature"],
            request["top_k"],
            request["top_p"] if request["top_p"] < 1 else None,
        )
        with self.lock:
            response = self.policy.generate(
                ids_1P,
                torch.ones_like(ids_1P),
                sampling,
                [request["seed"]],
                1,
                sampling.temperature,
            )
        n = int(response.mask_BT.sum())
        ids = response.ids_BT[0, :n].tolist()
        choice = {
            "index": 0,
            "text": "",
            "finish_reason": "stop" if ids[-1] in request["stop_token_ids"] else "length",
            "token_ids": ids,
            "logprobs": {"token_logprobs": response.logprobs_BT[0, :n].tolist()},
        }
        return {"object": "text_completion", "model": request["model"], "choices": [choice]}


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of a `FakeSampler`."""

    @property
    def fake(self) -> FakeSampler:
        return self.server.fake  # pyright: ignore[reportAttributeAccessIssue]

    def log_message(self, format, *args) -> None:
        pass

    def do_GET(self) -> None:  # noqa: N802
        self._answer(None)

    def do_POST(self) -> None:  # noqa: N802
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, body: dict | None) -> None:
        fake = self.fake
        fake.calls.append(self.path)
        has_key = self.headers.get("Authorization") == f"Bearer {fake.api_key}"
        if self.path.startswith("/v1/") and fake.api_key is not None and not has_key:
            self.reply(401, {"error": {"message": f"not {self.headers.get('Authorization')}"}})
            return
        has_version = self.path in ("/update_weight_version", "/weight_info")
        if (
            has_version
            and not fake.reports_version
            or not self.path.startswith("/v1/")
            and not fake.dev_mode
        ):
            self.reply(404, {"detail": "Not Found"})
        elif self.path == "/v1/models":
            self.reply(200, {"data": [{"id": name} for name in fake.models]})
        elif self.path == "/v1/completions":
            assert body is not None
            fake.requests.append(body)
            fault = fake.faults.pop(0) if fake.faults else answer
            fault(self, body)
        elif self.path in ("/pause", "/resume"):
            fake.paused = self.path == "/pause"
            self.reply(200, {"status": "ok"})
        elif self.path == "/collective_rpc":
            assert body == {"method": "reload_weights"}
            fake.reload()
            self.reply(200, {"results": [None]})
        elif self.path == "/reset_prefix_cache":
            self.reply(200, None)
        elif self.path == "/update_weight_version":
            assert body is not None
            fake.version = body["new_version"]
            self.reply(200, {"success": True, "new_version": fake.version})
        elif self.path == "/weight_info":
            self.reply(200, {"weight_version": fake.version})
        else:
            self.reply(404, {"detail": "Not Found"})

    def reply(self, code: int, body: object, length: int | None = None) -> None:
        """Send a body as JSON; bytes are sent as they are.

        Args:
          length: that the header claims, if not the real one.
        """
        data = b""
        if isinstance(body, bytes):
            data = body
        elif body is not None:
            data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data) if length is None else length))
        self.end_headers()
        self.wfile.write(data)


# ---- faults --------------------------------------------------------------------------------------


def answer(handler: Handler, body: dict) -> None:
    """Answer as usual."""
    handler.reply(200, handler.fake.complete(body))


def late(seconds: float) -> Fault:
    """Answer after some time."""

    def fault(handler: Handler, body: dict) -> None:
        time.sleep(seconds)
        answer(handler, body)

    return fault


def hold(handler: Handler, body: dict) -> None:
    """Do not answer before the test ends."""
    handler.fake.holds.set()
    handler.fake.released.wait()


def status(code: int) -> Fault:
    """Refuse the request."""

    def fault(handler: Handler, body: dict) -> None:
        handler.reply(code, {"error": {"message": "out of order"}})

    return fault


def cut(handler: Handler, body: dict) -> None:
    """Close the connection within the answer."""
    handler.reply(200, b'{"choices": [{"tok', length=1000)
    handler.close_connection = True


def text(data: bytes) -> Fault:
    """Answer with a text."""

    def fault(handler: Handler, body: dict) -> None:
        handler.reply(200, data)

    return fault


def altered(change: Callable[[dict], object]) -> Fault:
    """Change the right answer; `change` gets its only choice."""

    def fault(handler: Handler, body: dict) -> None:
        tree = handler.fake.complete(body)
        change(tree["choices"][0])
        handler.reply(200, tree)

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
    return VllmSampler(vllm_config(fake, **changes), pause, fake.wait)
