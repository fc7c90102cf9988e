"""Checks of each request before its body is interpreted: host, origin, size, depth and speed."""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence

MAX_BODY = 256 * 1024
MAX_DEPTH = 32
TOO_LARGE = (
    f"this is more than the {MAX_BODY // 1024} KiB that the server takes of one item: shorten the"
    " correction or the comment, or remove marks"
)
BODY_SECONDS = 10.0
# A string that does not end is matched up to the end of the body. Otherwise the search would start
# again at each of its quotes, and a body of escaped quotes would block the server for minutes.
STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.S)
BRACKETS = re.compile(rb"[\[\]{}]")
HEADERS = (
    (
        b"content-security-policy",
        (
            b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
            b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ),
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


def json_problem(body: bytes) -> str | None:
    """Why a body is refused before it is interpreted, or None."""
    depth = 0
    for bracket in BRACKETS.findall(STRINGS.sub(b"", body)):
        depth += 1 if bracket in b"[{" else -1
        if depth > MAX_DEPTH:
            return f"nested deeper than {MAX_DEPTH} levels"
    try:
        # NaN, infinite numbers and lone surrogates are refused: many programs cannot read them
        json.dumps(json.loads(body), allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        return f"not valid JSON: {type(error).__name__}"
    return None


class Guard:
    """ASGI middleware that checks requests and adds the security headers to all responses."""

    def __init__(self, app, hosts: Sequence[str]):
        self.app = app
        self.hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return

        async def answer(message):
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *HEADERS]}
            await send(message)

        refusal = self._refusal(scope)
        if refusal is None and scope["method"] in ("POST", "PUT", "PATCH", "DELETE"):
            body, refusal = await _read_body(receive)
            reason = json_problem(body) if body and refusal is None else None
            if reason is not None:
                refusal = 400, f"the body is refused: {reason}"
            if refusal is None:
                receive = _replay(body, receive)
        if refusal is not None:
            await _refuse(answer, *refusal)
            return
        await self.app(scope, receive, answer)

    def _refusal(self, scope) -> tuple[int, str] | None:
        """The status and the reason of a refusal by the headers, or None."""
        values: dict[bytes, list[bytes]] = {}
        for key, value in scope["headers"]:
            values.setdefault(key.lower(), []).append(value)
        headers = {
            key.decode("latin-1"): first[0].decode("latin-1") for key, first in values.items()
        }
        host = headers.get("host", "").lower()
        if len(values.get(b"host", ())) != 1 or host not in self.hosts:
            reason = "this server does not serve that host; add it with hosts=..."
            return 421, reason
        if scope["method"] in ("GET", "HEAD"):
            return None
        return self._write_refusal(headers, host)

    @staticmethod
    def _write_refusal(headers: Mapping[str, str], host: str) -> tuple[int, str] | None:
        """The same for requests with a body and requests that change something."""
        origin = headers.get("origin")
        if origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}"):
            return 403, "the request comes from a page of another site"
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return 403, "the request comes from a page of another site"
        content_type = headers.get("content-type", "").split(";")[0].strip().lower()
        if content_type != "application/json":
            return 415, "bodies must be application/json"
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > MAX_BODY:
            return 413, TOO_LARGE
        return None


async def _read_body(receive) -> tuple[bytes, tuple[int, str] | None]:
    """The body, or b"" and the refusal of a body that is too large or too slow."""
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return b"", (400, "the connection was closed before the body arrived")
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > MAX_BODY:
                    return b"", (413, TOO_LARGE)
                if not message.get("more_body"):
                    return b"".join(parts), None
    except TimeoutError:
        return b"", (408, f"the body did not arrive within {BODY_SECONDS:.0f} seconds")


def _replay(body: bytes, receive):
    """A `receive` that first returns the body, which was already read."""
    sent = False

    async def again():
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def _refuse(send, status: int, reason: str) -> None:
    body = json.dumps({"error": reason}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
