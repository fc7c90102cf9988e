"""A server with vLLM's routes that runs a small decoder-only policy.

It loads its weights from the shared folder on request, like a vLLM server. Its tokens are those of
the policy itself, since both draw from the seed of a request.

    python -m faults.fake_sampler sync_dir=... port=... [fault=truncated at=7]
"""

import json
import os
import signal
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import torch
from pydantic import PositiveInt
from safetensors.torch import load_file

from fgrlhf.cli.command_line import run_program
from fgrlhf.configs.sections import Sampling
from fgrlhf.configs.strict import StrictModel
from fgrlhf.policy import CausalPolicy, load_policy

# answers the request of a handler, instead of the server
Fault = Callable[["Handler", dict], None]


class FakeSampler:
    """A server of a policy, in threads of this process.

    Args:
      policy: has the weights that it starts with.
      sync_dir: the folder that it loads weights from.
      port: 0: a free one.

    Attributes:
      faults: what happens to the next requests for responses, in order; then they are answered.
      loads_weights: false: it confirms a reload but keeps its weights.
      reports_version: false: it lacks the routes of the version, like older servers.
      dev_mode: false: it has only the routes below /v1.
      device: what it says of its device; None: it lacks that route.
      api_key: needed below /v1, if not None.
      calls: the routes of the requests so far.
      requests: the bodies of the requests for responses.
      on_call: called with the route of every request before it is answered.
    """

    def __init__(self, policy: CausalPolicy, sync_dir: Path, port: int = 0):
        self.sync_dir = sync_dir
        self.policy = policy
        self.faults: list[Fault] = []
        self.loads_weights = True
        self.reports_version = True
        self.dev_mode = True
        self.device: str | None = None
        self.api_key: str | None = None
        self.models = ["the-policy"]
        self.version: str | None = None
        self.paused = False
        self.calls: list[str] = []
        self.requests: list[dict] = []
        self.on_call: Callable[[str], None] = lambda route: None
        self.lock = threading.Lock()
        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        self.server.fake = self  # pyright: ignore[reportAttributeAccessIssue]
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> "FakeSampler":
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        self.server.shutdown()
        self.server.server_close()

    def reload(self) -> None:
        assert self.paused, "weights must not change while it samples"
        if not self.loads_weights:
            return
        tensors: dict[str, torch.Tensor] = {}
        for file in sorted(self.sync_dir.glob("*.safetensors")):
            tensors |= load_file(file)
        with self.lock:
            missing, unexpected = self.policy.model.load_state_dict(tensors, strict=False)
        assert not unexpected
        assert set(missing) <= {"lm_head.weight"}  # tied to the embeddings

    @torch.no_grad()
    def complete(self, request: dict) -> dict:
        """The answer to a request for one response.

        With top_k or top_p, the log-probabilities are those of the truncated distribution.
        """
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
            logprobs_T = response.logprobs_BT[0]
            if sampling.is_truncated:
                batch = (ids_1P, torch.ones_like(ids_1P), response.ids_BT, response.mask_BT)
                output, _ = self.policy(*batch, truncation=sampling)
                logprobs_T = logprobs_T - output.log_kept_mass_BT[0]
        n = int(response.mask_BT.sum())
        ids = response.ids_BT[0, :n].tolist()
        choice = {
            "index": 0,
            "text": "",
            "finish_reason": "stop" if ids[-1] in request["stop_token_ids"] else "length",
            "token_ids": ids,
            "logprobs": {"token_logprobs": logprobs_T[:n].tolist()},
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
        fake.on_call(self.path)
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
        elif self.path == "/server_info?config_format=json" and fake.device is not None:
            self.reply(200, {"vllm_config": {"device_config": {"device": fake.device}}})
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


def status(code: int) -> Fault:
    """Refuse the request."""

    def fault(handler: Handler, body: dict) -> None:
        handler.reply(code, {"error": {"message": "out of order"}})

    return fault


def cut(handler: Handler, body: dict) -> None:
    """Close the connection within the answer."""
    handler.reply(200, b'{"choices": [{"tok', length=1000)
    handler.close_connection = True


def altered(change: Callable[[dict], object]) -> Fault:
    """Change the right answer; `change` gets its only choice."""

    def fault(handler: Handler, body: dict) -> None:
        tree = handler.fake.complete(body)
        change(tree["choices"][0])
        handler.reply(200, tree)

    return fault


def truncate(choice: dict) -> None:
    """Keep one token that ends nothing."""
    choice["token_ids"] = [5]
    choice["logprobs"]["token_logprobs"] = [-1.0]


def other_vocabulary(choice: dict) -> None:
    """Name a token that no policy has."""
    choice["token_ids"][0] = 1_000_000


# ---- the program ---------------------------------------------------------------------------------

PASSING: dict[str, Fault] = {
    "503": status(503),
    "cut": cut,
    "aborted": altered(lambda choice: choice.update(finish_reason="abort")),
}
LIES: dict[str, Fault] = {
    "truncated": altered(truncate),
    "token ids": altered(other_vocabulary),
    "no log-probabilities": altered(lambda choice: choice.update(logprobs=None)),
}


class Settings(StrictModel):
    """What is served, and what is wrong with it.

    fault: one of PASSING, for one request; one of LIES, for all further requests; `stale`: it keeps
    its weights; a route: the server kills itself when that is asked for. Empty: nothing.
    at: the number of the first such request, from 1.
    """

    sync_dir: str
    port: PositiveInt
    ckpt: str | None = None  # the weights at the start; None: those in sync_dir
    fault: str = ""
    at: PositiveInt = 1


def serve(settings: Settings) -> None:
    """Serve until the process is killed."""
    policy = load_policy(settings.ckpt or settings.sync_dir, "fp32", max_input_len=256)
    assert isinstance(policy, CausalPolicy)
    fake = FakeSampler(policy.eval(), Path(settings.sync_dir), settings.port)
    before = [answer] * (settings.at - 1)
    if settings.fault in PASSING:
        fake.faults = [*before, PASSING[settings.fault]]
    elif settings.fault in LIES:
        fake.faults = [*before, *[LIES[settings.fault]] * 1_000]
    elif settings.fault == "stale":
        fake.loads_weights = False
    elif settings.fault:
        fake.on_call = lambda route: _die_at(fake, route, settings)
    print(f"serving at {fake.url}", flush=True)
    fake.server.serve_forever()


def _die_at(fake: FakeSampler, route: str, settings: Settings) -> None:
    if route == settings.fault and fake.calls.count(route) >= settings.at:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    run_program(serve, Settings)
