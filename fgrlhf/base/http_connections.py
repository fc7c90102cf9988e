"""Connections of the HTTP servers: one that sends nothing cannot keep others out.

uvicorn has no limit for the time until a request has arrived, and counts every open connection
towards `limit_concurrency`. So some hundred connections that send no byte, or half a header, would
make a server answer 503 for as long as they like.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 10.0  # until the headers of a request have arrived


class PatientProtocol(H11Protocol):
    """HTTP/1.1 with two rules for connections that wait, which have no request in progress.

    A connection is closed if the headers of a request take longer than `HEADER_SECONDS`. When few
    more connections are allowed, a new one closes the one that has waited longest; a browser opens
    it again when it needs it.
    """

    _deadline: asyncio.TimerHandle | None = None
    _waiting_since = 0.0

    @property
    def is_waiting(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_headers()
        limit = self.limit_concurrency
        if limit is not None and len(self.connections) > limit - limit // 8:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self.is_waiting:
            self._stop_waiting()
        elif self._deadline is None:  # the first bytes of another request
            self._wait_for_headers()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._waiting_since = self.loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait_for_headers(self) -> None:
        self._waiting_since = self.loop.time()
        self._deadline = self.loop.call_later(HEADER_SECONDS, self._give_up)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if self.is_waiting:
            self.transport.close()

    def _make_room(self) -> None:
        """Close the connection that has waited longest."""
        waiting = []
        for other in self.connections - {self}:
            is_ours = isinstance(other, PatientProtocol)
            if is_ours and other.is_waiting and not other.transport.is_closing():
                waiting.append(other)
        if waiting:
            min(waiting, key=lambda other: other._waiting_since).transport.close()


SERVER_OPTIONS: dict[str, Any] = {  # of uvicorn, for every server
    "log_level": "warning",
    "access_log": False,
    "server_header": False,
    "h11_max_incomplete_event_size": 16384,
    "http": PatientProtocol,
    "ws": "none",
}
