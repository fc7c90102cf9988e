"""Check the address at which several machines meet, before `torchrun` uses it.

torchrun keeps a `TCPStore` on the machine whose name or address RDZV_ENDPOINT has, the first one.
Its processes and the other machines connect to it. If another program answers at that port, the
connection waits without end and ignores all signals. If the host has no address, torchrun retries
for minutes and prints stack traces. This module finds both within seconds.
"""

import errno
import socket
import subprocess
import sys
import time

from torch.distributed.elastic.rendezvous.utils import (
    _matches_machine_hostname,
    parse_rendezvous_endpoint,
)

from fgrlhf.base.errors import UserError, shorten

DEFAULT_PORT = 29400  # that of torchrun, if the endpoint has none
SECONDS_TO_ANSWER = 10.0  # for a store that is there
SECONDS_BETWEEN_TRIES = 1.0

CLIENT = """
import sys
from datetime import timedelta
from torch.distributed import TCPStore
print("connecting", flush=True)
host, port, seconds = sys.argv[1:]
TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=float(seconds)))
"""


def wait_at(endpoint: str, machines: int, seconds: float) -> None:
    """Check the address, say that this machine waits there, and wait for the first machine.

    Args:
      endpoint: HOST:PORT.
      machines: how many will meet.
      seconds: how long each of them waits for the others.
    Raises:
      UserError: the address cannot be used, or the first machine does not answer in time.
    """
    host, port = _host_and_port(endpoint)
    is_first = _matches_machine_hostname(host)
    if is_first:
        _check_port_of_this_machine(host, port)
    print(f"waiting for {machines} machines at {host}:{port} (up to {seconds:.0f} s)", flush=True)
    if is_first:
        return
    last_try = time.monotonic() + seconds
    while not _listens(host, port):
        if time.monotonic() >= last_try:
            raise UserError(
                f"nothing answers at {host}:{port} after {seconds:.0f} s. Start the same command on"
                f" {host}, the first machine, whose firewall must let the others connect to this"
                " port"
            )
        time.sleep(SECONDS_BETWEEN_TRIES)
    if not _is_store(host, port):
        raise _used_by_another_program(host, port)


def _host_and_port(endpoint: str) -> tuple[str, int]:
    """Parse an endpoint. Raises `UserError` if it has another form, or its host no address."""
    try:
        host, port = parse_rendezvous_endpoint(endpoint, DEFAULT_PORT)
    except ValueError:
        raise UserError(
            f"RDZV_ENDPOINT={shorten(endpoint)} is not HOST:PORT: write a name or address of the"
            " first machine and a free port of it, such as first-machine:29500"
        ) from None
    try:
        socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"the host {shorten(host)} of RDZV_ENDPOINT has no address ({reason}): write a name of"
            " the first machine that this machine knows, or its IP address"
        ) from None
    return host, port


def _check_port_of_this_machine(host: str, port: int) -> None:
    """Raise `UserError` if no store can listen at the port, unless one does already."""
    if _listens(host, port):
        if not _is_store(host, port):
            raise _used_by_another_program(host, port)
        return
    if _can_bind(port) or _listens(host, port):  # a second launcher may have begun to listen
        return
    raise _used_by_another_program(host, port)


def _used_by_another_program(host: str, port: int) -> UserError:
    return UserError(
        f"port {port} of {host} is used by another program; choose another RDZV_ENDPOINT"
    )


def _listens(host: str, port: int) -> bool:
    """Whether something accepts connections there."""
    try:
        socket.create_connection((host, port), timeout=SECONDS_TO_ANSWER).close()
    except OSError:
        return False
    return True


def _can_bind(port: int) -> bool:
    """Whether a store could listen at the port, on all addresses of this machine.

    Other launchers may try the same at this moment, which SO_REUSEADDR allows.

    Raises:
      UserError: this user may not listen at the port.
    """
    both = socket.has_dualstack_ipv6()
    with socket.socket(socket.AF_INET6 if both else socket.AF_INET) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if both:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        try:
            listener.bind(("", port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise UserError(
                f"this machine cannot listen at port {port} ({error.strerror}); choose another"
                " RDZV_ENDPOINT"
            ) from None
    return True


def _is_store(host: str, port: int) -> bool:
    """Whether the program that listens there is a `TCPStore`.

    A client waits without end for its answer and prints stack traces. So it is a process of its
    own, which is killed.
    """
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, host, str(port), str(SECONDS_TO_ANSWER)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with client:
        try:
            assert client.stdout is not None
            client.stdout.readline()  # its modules are imported, which may last
            return client.wait(SECONDS_TO_ANSWER) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            client.kill()
