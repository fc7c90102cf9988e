"""Several machines: the address at which they meet is checked before torchrun waits there."""

import socket
from contextlib import contextmanager

import pytest
from server_helpers import free_port
from torch.distributed import TCPStore

from fgrlhf.base.errors import UserError
from fgrlhf.cli import rendezvous, torchrun

USED = r"^port {} of 127.0.0.1 is used by another program; choose another RDZV_ENDPOINT$"


@contextmanager
def listener(address: str = "127.0.0.1"):
    """A program that accepts connections and never answers; yields its port."""
    with socket.create_server((address, 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture(params=[True, False], ids=["first", "other"])
def is_first(request, monkeypatch) -> bool:
    """Whether this is the first machine."""
    monkeypatch.setattr(rendezvous, "_matches_machine_hostname", lambda host: request.param)
    return request.param


def test_another_program_at_the_port_is_named_on_every_machine(is_first, monkeypatch):
    monkeypatch.setattr(rendezvous, "SECONDS_TO_ANSWER", 0.3)  # it never answers
    with listener() as port, pytest.raises(UserError, match=USED.format(port)):
        rendezvous.wait_at(f"127.0.0.1:{port}", 2, 600)


def test_a_program_at_another_address_takes_the_port_too():
    with listener("127.0.0.2") as port, pytest.raises(UserError, match=USED.format(port)):
        rendezvous.wait_at(f"127.0.0.1:{port}", 2, 600)


def test_a_store_of_another_launcher_is_used(is_first, monkeypatch, capfd):
    monkeypatch.setattr(rendezvous, "SECONDS_TO_ANSWER", 600.0)  # however slow the machine is
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    rendezvous.wait_at(f"127.0.0.1:{store.port}", 2, 600)
    said = capfd.readouterr()
    assert said.out == f"waiting for 2 machines at 127.0.0.1:{store.port} (up to 600 s)\n"
    assert said.err == ""


def test_the_first_machine_may_be_missing(monkeypatch):
    monkeypatch.setattr(rendezvous, "_matches_machine_hostname", lambda host: False)
    port = free_port()
    with pytest.raises(UserError, match=f"nothing answers at 127.0.0.1:{port} after 0 s"):
        rendezvous.wait_at(f"127.0.0.1:{port}", 2, 0)


def test_a_host_without_an_address_is_refused(monkeypatch):
    def unknown(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(UserError, match=r"host first-machine .* no address \(Name or service not"):
        rendezvous.wait_at("first-machine:29500", 2, 600)


@pytest.mark.parametrize("endpoint", ["first:", "first:port", "first:70000", "a b:29500"])
def test_an_endpoint_of_another_form_is_refused(endpoint):
    with pytest.raises(UserError, match=f"^RDZV_ENDPOINT={endpoint} is not HOST:PORT"):
        rendezvous.wait_at(endpoint, 2, 600)


@pytest.mark.parametrize(
    "arguments, checked",
    [
        (["--standalone"], []),
        (["--nnodes", "1"], []),
        (["--nnodes", "2", "--rdzv_backend", "c10d"], [("first:29500", 2, 600.0)]),
        (
            ["--nnodes", "2:3", "--rdzv_backend", "c10d", "--rdzv_conf", "join_timeout=7"],
            [("first:29500", 3, 7.0)],
        ),
    ],
)
def test_only_several_machines_wait_for_each_other(arguments, checked, monkeypatch):
    calls = []
    monkeypatch.setattr(torchrun, "parent_mark", dict)
    monkeypatch.setattr(torchrun, "share_messages", dict)
    monkeypatch.setattr(torchrun.logging, "disable", lambda level: None)
    monkeypatch.setattr(torchrun, "wait_at", lambda *values: calls.append(values))
    monkeypatch.setattr(torchrun, "run", lambda settings: calls.append("run"))
    torchrun.torchrun([*arguments, "--rdzv_endpoint", "first:29500", "program.py"])
    assert calls == [*checked, "run"]
