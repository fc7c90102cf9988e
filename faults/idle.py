"""Kind `idle`: connections that send nothing, half a request, or slowly, to the HTTP servers.

More of them than a server allows are open while others ask. Those must be answered.
"""

import http.client
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from faults.campaign import Kind, Outcome
from faults.child import Command, Running, start
from faults.ranks import has_ended
from faults.servers import STARTS, TOKEN

SENT = {
    "nothing": b"",
    "half a header": b"GET /v1/info HTTP/1.1\r\nho",
    "half a body": (
        b"POST /api/x HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        b"content-length: 100\r\n\r\n{"
    ),
}
CONNECTIONS = {"reward server": 300, "feedback server": 600}  # more than they allow
TRIALS = len(SENT) * len(CONNECTIONS)
ASKED = 5
ANSWERED = 60.0  # seconds within which every request is answered, on any machine


class Idle(Kind):
    """See the module's docstring."""

    name = "idle"
    good = ("answered",)
    bad = ("refused", "traceback", "no server")
    trials = TRIALS
    sample = 1

    def run(self, index: int, folder: Path) -> Outcome:
        number = index * TRIALS // self.count() % TRIALS
        server = list(CONNECTIONS)[number % len(CONNECTIONS)]
        sent = list(SENT)[number // len(CONNECTIONS)]
        note = f"{server}, {CONNECTIONS[server]} connections that send {sent}"
        with self._server(server, folder) as (running, port), ExitStack() as stack:
            if port == 0:
                return Outcome("no server", running.log.read_text()[-2_000:])
            for _ in range(CONNECTIONS[server]):
                connection = socket.create_connection(("127.0.0.1", port), timeout=ANSWERED)
                stack.callback(connection.close)
                connection.sendall(SENT[sent])
            answers = [_status(port) for _ in range(ASKED)]
            log = running.log.read_text(errors="replace")
        note = f"{note}: {answers}\n{log[-2_000:]}"
        if "Traceback" in log:
            return Outcome("traceback", note)
        served = all(status and status < 500 for status in answers)
        return Outcome("answered" if served else "refused", note)

    @contextmanager
    def _server(self, name: str, folder: Path) -> Iterator[tuple[Running, int]]:
        """A server that is ready, and its port, which is 0 if it does not start."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        world = self.bench.world
        if name == "reward server":
            arguments = (f"ckpt={world.folder / 'rel_rm'}", "values={error: -0.5, ok: 0.3}")
            command = Command("fgrlhf.cli.reward_serve", arguments)
        else:
            items = world.data / "dev_feedback.json"
            arguments = (
                "feedback",
                "serve",
                "qa_feedback",
                f"items={items}",
                f"db={folder / 'study.sqlite'}",
            )
            command = Command("fgrlhf.cli.main", arguments)
        environment = {**world.environment, "FGRLHF_REWARD_TOKEN": TOKEN}
        command = Command(command.module, (*command.arguments, f"port={port}"), environment)
        running = start(command, folder, folder / "logs/server.txt", below="no-folder")
        try:
            yield running, port if _answers(running, port) else 0
        finally:
            if not has_ended(running):
                running.kill()
            running.wait()


def _status(port: int) -> int | None:
    """The status of a request; None if there is no answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWERED)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status
    except OSError:
        return None
    finally:
        connection.close()


def _answers(server: Running, port: int) -> bool:
    """Wait until a server answers. False if it ends or does not start."""
    end = time.monotonic() + STARTS
    while not has_ended(server) and time.monotonic() < end:
        if _status(port) is not None:
            return True
        time.sleep(0.05)
    return False
