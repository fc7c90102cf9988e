"""Kind `idle`: connections that send nothing, half a request, or slowly, to the HTTP servers.

More of them than a server allows are open while others ask. Those must be answered.
"""

import http.client
import socket
from contextlib import ExitStack
from pathlib import Path

from faults.campaign import Kind
from faults.child import Command
from faults.judging import Outcome
from faults.servers import TOKEN, VALUES, free_port, serving

SENT = {
    "nothing": b"",
    "half a header": b"GET /v1/info HTTP/1.1\r\nho",
    "half a body": (
        b"POST /api/x HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        b"content-length: 100\r\n\r\n{"
    ),
}
CONNECTIONS = {"reward server": 300, "feedback server": 600}  # more than they allow
ASKED = 5
ANSWERED = 60.0  # seconds within which every request is answered, on any machine


class Idle(Kind):
    """See the module's docstring."""

    name = "idle"
    good = ("answered",)
    bad = ("refused", "traceback")
    cases = tuple((server, sent) for sent in SENT for server in CONNECTIONS)

    def run(self, index: int, folder: Path) -> Outcome:
        server, sent = self.case(index)
        note = f"{server}, {CONNECTIONS[server]} connections that send {sent}"
        port = free_port()
        command = self._command(server, port, folder)
        answers_now = lambda _: _status(port) is not None  # noqa: E731
        with (
            serving(command, folder / "logs/server.txt", answers_now) as running,
            ExitStack() as stack,
        ):
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

    def _command(self, server: str, port: int, folder: Path) -> Command:
        world = self.bench.world
        environment = {**world.environment, "FGRLHF_REWARD_TOKEN": TOKEN}
        if server == "reward server":
            arguments = (f"ckpt={world.folder / 'rel_rm'}", VALUES, f"port={port}")
            return Command("fgrlhf.cli.reward_serve", arguments, environment)
        files = (f"items={world.data / 'dev_feedback.json'}", f"db={folder / 'study.sqlite'}")
        arguments = ("feedback", "serve", "qa_feedback", *files, f"port={port}")
        return Command("fgrlhf.cli.main", arguments, environment)


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
