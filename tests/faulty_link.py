"""A connection between a browser and a feedback server that fails when a test wants it to.

The faults happen where they happen in reality. Playwright can intercept requests too, but with it
two browsers on busy machines have hung, for a reason that was not found.
"""

import http.client
import threading
from collections.abc import Callable
from fnmatch import fnmatchcase
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

LIMIT = 300  # seconds that a test waits for a request


class Reply(NamedTuple):
    status: int
    headers: list[tuple[str, str]]
    body: bytes


Forward = Callable[[], Reply]  # sends the request on to the server
# what happens to a request: the answer for the browser; None closes its connection without one
Fate = Callable[[Forward], Reply | None]


def proceed(forward: Forward) -> Reply:
    return forward()


def lose(forward: Forward) -> None:
    """The request reaches the server, but its answer does not reach the page."""
    forward()


def fail(forward: Forward) -> None:
    """The request does not reach the server."""


class Requests:
    """What happens to the requests to an address.

    Attributes:
      address: a pattern, such as /api/drafts/*.
      next: fates of the next requests, one for each.
      otherwise: the fate of all others.
    """

    def __init__(self, address: str, otherwise: Fate):
        self.address = address
        self.next: list[Fate] = []
        self.otherwise = otherwise
        self._arrived = threading.Event()
        self._released = threading.Event()
        self._answered = threading.Event()

    def hold_next(self) -> None:
        """Hold the next request back until `release`."""
        self.next.append(self._hold)

    def release(self) -> None:
        """Send the request that is held back, and wait until the server has answered it."""
        self._released.set()
        assert self._answered.wait(LIMIT), f"nothing was held back at {self.address}"

    def wait(self) -> None:
        """Wait until a request was handled or is held back; fail after five minutes."""
        assert self._arrived.wait(LIMIT), f"nothing was sent to {self.address}"

    def _hold(self, forward: Forward) -> Reply:
        self._arrived.set()
        self._released.wait(LIMIT)
        answer = forward()
        self._answered.set()
        return answer

    def answer(self, forward: Forward) -> Reply | None:
        fate = self.next.pop(0) if self.next else self.otherwise
        answer = fate(forward)
        self._arrived.set()
        return answer


class FaultyLink:
    """Open a page at `port` instead of the server's port. Requests proceed unless `at` says else.

    Each request has a connection of its own: a browser would send a request again by itself if
    the connection had been used before.
    """

    def __init__(self, server):
        self.server = server
        self._requests: list[Requests] = []
        self._listener = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._listener.daemon_threads = True
        self._listener.block_on_close = False  # a request may be held back until the end
        self.port = self._listener.server_address[1]

    def __enter__(self) -> "FaultyLink":
        threading.Thread(target=self._listener.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        self._listener.shutdown()
        self._listener.server_close()

    def at(self, address: str, otherwise: Fate = proceed) -> Requests:
        """Decide what happens to the requests to an address from now on."""
        requests = Requests(address, otherwise)
        self._requests.append(requests)
        return requests

    def answer(self, path: str, forward: Forward) -> Reply | None:
        for requests in self._requests:
            if fnmatchcase(path, requests.address):
                return requests.answer(forward)
        return forward()

    def send(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Reply:
        """The server's answer to a request, which seems to come from its own page."""
        host = f"127.0.0.1:{self.server.port}"
        sent = {**headers, "Host": host}
        if "Origin" in sent:
            sent["Origin"] = f"http://{host}"
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=LIMIT)
        try:
            connection.request(method, path, body or None, sent)
            response = connection.getresponse()
            return Reply(response.status, response.getheaders(), response.read())
        finally:
            connection.close()


def _handler(link: FaultyLink) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = dict(self.headers.items())
            try:
                answer = link.answer(
                    self.path, lambda: link.send(self.command, self.path, headers, body)
                )
                if answer is not None:
                    self._reply(answer)
            except (OSError, http.client.HTTPException):
                pass  # the server or the page is gone: the connection closes without an answer

        do_POST = do_PUT = do_DELETE = do_GET

        def _reply(self, answer: Reply) -> None:
            self.send_response_only(answer.status)
            for name, value in answer.headers:
                if name.lower() not in ("connection", "content-length", "transfer-encoding"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.body)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, *_) -> None:
            pass

    return Handler
