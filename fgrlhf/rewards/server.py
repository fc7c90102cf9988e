"""The application of `fgrlhf reward-serve`; the protocol is in reward_protocol.py."""

import asyncio
import hmac
import json
import threading
import traceback
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.files import sha256
from fgrlhf.base.secrets import mask_secrets
from fgrlhf.configs.strict import places_without_effect
from fgrlhf.reward import AspectReward, checked_scores
from fgrlhf.reward_utils import SEGMENTER_INPUT
from fgrlhf.rewards.kind import RewardKind
from fgrlhf.rewards.protocol import PROTOCOL, ScoreRequest, prompts_of, read_request, read_scores
from fgrlhf.runs.stage import digest, model_files
from fgrlhf.scorers.answer_cache import content_hash
from fgrlhf.text_types import segment_rows

BODY_SECONDS = 60.0  # in which the body of a request must arrive
ANSWERS_KEPT = 16  # of the last requests, which may be repeated


@dataclass(frozen=True)
class Limits:
    """Bounds of a request: responses, and bytes of the body."""

    max_batch: int
    max_body: int


def model_sha256(config: RewardKind, dtype: str) -> str:
    """SHA-256 of all that a reward's values depend on: files, settings, segmenters and dtype.

    The files are those whose digests stages record (`model_files`). Where a folder lies does not
    count, nor do keys in `StrictModel.may_change`, such as a device or a timeout, and neither do
    `weight`, `constraint` and `place`, which belong to the run.

    Raises:
      UserError: a model is not a folder on this machine.
    """
    folders = config.model_folders()
    files: list[dict[str, str]] = []
    for folder in folders:
        if folder.startswith(SEGMENTER_INPUT):
            files.append({folder: digest(folder)})
            continue
        if not Path(folder).is_dir():
            raise UserError(
                f"{shorten(folder)} is not a folder. The hash of a served model covers its files,"
                " so a model of the hub must be in a folder: download it (`hf download NAME"
                " --local-dir FOLDER`), then give ckpt=FOLDER"
            )
        files.append({path.name: sha256(path) for path in model_files(Path(folder))})
    settings = config.model_dump(mode="json")
    of_the_run = (("weight",), ("constraint",), ("place",))
    for *parents, key in [*places_without_effect(config), *of_the_run]:
        section: Any = settings
        for parent in parents:
            section = section[parent]
        section.pop(key, None)
    return content_hash(_without_places(settings, folders), files, dtype)


def _without_places(value: Any, folders: Sequence[str]) -> Any:
    """A JSON value in which the names of folders are replaced by their numbers."""
    if isinstance(value, Mapping):
        return {name: _without_places(item, folders) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_places(item, folders) for item in value]
    return f"model {folders.index(value)}" if value in folders else value


class Refusal(Exception):
    """A request that is not answered with scores.

    Args:
      more: further fields of the body, beside `error`.
    """

    def __init__(self, status: int, reason: str, **more: Any):
        self.status = status
        self.reason = reason
        self.more = more
        super().__init__(reason)


class ServedReward:
    """A reward with its hash.

    Requests are scored one at a time, since they share a device. The last answers are kept: a
    client that repeats a request, since its connection broke, gets the same answer at once.
    """

    def __init__(self, reward: AspectReward, kind: str, digest: str, limits: Limits):
        if getattr(reward, "needs_tokens", False):
            raise UserError(
                f"the reward `{kind}` reads the policy's tokens, which a server does not get: put"
                " it into the run's own config. It needs no other machine"
            )
        self.reward = reward
        self.kind = kind
        self.digest = digest
        self.limits = limits
        self._lock = threading.Lock()
        self._answers: OrderedDict[str, bytes] = OrderedDict()

    def about(self) -> dict[str, Any]:
        """The body of GET /v1/model."""
        return {
            "protocol": PROTOCOL,
            "model_sha256": self.digest,
            "reward": self.kind,
            "max_batch": self.limits.max_batch,
            "max_body_bytes": self.limits.max_body,
        }

    def answer(self, body: bytes) -> bytes:
        """The body of the answer to POST /v1/scores.

        Raises:
          Refusal: the request is malformed or for another model, or the reward fails.
        """
        try:
            request = read_request(body)
            prompts, texts = prompts_of(request)
        except UserError as error:
            raise Refusal(400, str(error)) from None
        if request.model_sha256 != self.digest:
            raise Refusal(409, "another model is served", model_sha256=self.digest)
        if len(texts) > self.limits.max_batch:
            raise Refusal(413, f"{len(texts)} responses, but max_batch is {self.limits.max_batch}")
        with self._lock:
            if request.request_id not in self._answers:
                self._answers[request.request_id] = self._score(request, prompts, texts)
                if len(self._answers) > ANSWERS_KEPT:
                    self._answers.popitem(last=False)
            return self._answers[request.request_id]

    def _score(self, request: ScoreRequest, prompts: Sequence[Any], texts: Sequence[str]) -> bytes:
        try:
            with torch.no_grad():
                results = self.reward.segment_scores(prompts, texts)
            checked = checked_scores(self.kind, results, texts)
            rows = [segment_rows(scores) for scores in checked]
            read_scores(rows, texts)
        except (UserError, ValueError) as error:
            raise Refusal(422, f"the reward `{self.kind}`: {shorten(error, 400)}") from None
        except Exception as error:
            print(mask_secrets(traceback.format_exc()), flush=True)
            raise Refusal(
                500,
                f"the reward `{self.kind}` failed: {shorten(f'{type(error).__name__}: {error}')}",
            ) from None
        answer = {
            "protocol": PROTOCOL,
            "model_sha256": self.digest,
            "request_id": request.request_id,
            "scores": rows,
        }
        return json.dumps(answer, allow_nan=False).encode("ascii")


def create_app(served: ServedReward, token: str) -> FastAPI:
    """The routes of the protocol. Every one needs the token."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    expected = f"Bearer {token}".encode("ascii")

    def check_token(request: Request) -> None:
        given = request.headers.get("authorization", "").encode("utf-8")
        if not hmac.compare_digest(given, expected):
            raise Refusal(401, "a token is needed: `Authorization: Bearer TOKEN`")

    @app.exception_handler(Refusal)
    async def refuse(request: Request, refusal: Refusal) -> Response:
        answer = _json({"error": refusal.reason, **refusal.more}, refusal.status)
        if refusal.status in (401, 408, 413):  # the rest of the body is not read
            answer.headers["Connection"] = "close"
        return answer

    @app.exception_handler(HTTPException)
    async def no_route(request: Request, error: HTTPException) -> Response:
        reason = f"{error.detail}: the routes are GET /v1/model and POST /v1/scores"
        return _json({"error": reason}, error.status_code)

    @app.get("/v1/model")
    async def model(request: Request) -> Response:
        check_token(request)
        return _json(served.about(), 200)

    @app.post("/v1/scores")
    async def scores(request: Request) -> Response:
        check_token(request)
        body = await _body_of(request, served.limits.max_body)
        answer = await run_in_threadpool(served.answer, body)
        return Response(answer, media_type="application/json")

    return app


def _json(value: Any, status: int) -> Response:
    return Response(json.dumps(value), status, media_type="application/json")


async def _body_of(request: Request, most_bytes: int) -> bytes:
    """The body of a request. Raises `Refusal` if it is too long or too slow."""
    too_long = Refusal(413, f"the body has more than {most_bytes:,} bytes (max_body_mb)")
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > most_bytes:
        raise too_long
    parts = []
    size = 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                parts.append(part)
                size += len(part)
                if size > most_bytes:
                    raise too_long
    except TimeoutError:
        reason = f"the body did not arrive within {BODY_SECONDS:.0f} seconds"
        raise Refusal(408, reason) from None
    except ClientDisconnect:
        raise Refusal(400, "the connection ended before the body did") from None
    return b"".join(parts)
