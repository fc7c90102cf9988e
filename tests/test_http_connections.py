"""Connections that send nothing, or half a request, do not keep others out of the servers."""

import http.client
import socket
import threading
import time
from contextlib import contextmanager

import pytest
import uvicorn

from fgrlhf.base import http_connections
from fgrlhf.base.http_connections import SERVER_OPTIONS

LIMIT = 16
REQUEST = b"GET / HTTP/1.1\r\nhost: here\r\n\r\n"
HALF_A_BODY = b"POST / HTTP/1.1\r\nhost: here\r\ncontent-length: 100\r\n\r\n{"


async def answer(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


@contextmanager
def server():
    config = uvicorn.Config(
        answer, port=0, lifespan="off", limit_concurrency=LIMIT, **SERVER_OPTIONS
    )
    running = uvicorn.Server(config)
    listening = config.bind_socket()
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not running.started:
        time.sleep(0.01)
    yield listening.getsockname()
    running.should_exit = True
    thread.join()


def status(address):
    connection = http.client.HTTPConnection(*address, timeout=60)
    connection.request("GET", "/")
    response = connection.getresponse()
    response.read()
    connection.close()
    return response.status


def read_answer(connection):
    received = b""
    while not received.endswith(b"0\r\n\r\n"):
        received += connection.recv(1000)


@pytest.mark.parametrize("sent", [b"", REQUEST[:20], HALF_A_BODY, REQUEST])
def test_waiting_connections_make_room(sent):
    with server() as address:
        idle = []
        for _ in range(3 * LIMIT):
            idle.append(socket.create_connection(address, timeout=60))
            idle[-1].sendall(sent)
            if sent == REQUEST:
                read_answer(idle[-1])
        assert [status(address) for _ in range(3)] == [200] * 3
        for connection in idle:
            connection.close()


def test_a_request_that_does_not_arrive_is_given_up(monkeypatch):
    with server() as address, socket.create_connection(address, timeout=60) as connection:
        connection.sendall(REQUEST)
        read_answer(connection)
        monkeypatch.setattr(http_connections, "HEADER_SECONDS", 0.05)
        connection.sendall(REQUEST[:20])
        assert connection.recv(1000) == b""
        with socket.create_connection(address, timeout=60) as silent:
            assert silent.recv(1000) == b""
