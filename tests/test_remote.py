"""Addresses, tokens and attempts. Time is simulated: no test waits."""

import email.message
import http.client
import io
import urllib.error

import pytest
from pydantic import ValidationError

from fgrlhf.errors import UserError
from fgrlhf.reward_models.remote import (
    GivenUp,
    Refused,
    RemoteSettings,
    is_local,
    read_token,
    with_attempts,
    without,
)


@pytest.mark.parametrize("url", ["https://a.example/v1", "http://127.0.0.1:80", "http://[::1]:1"])
def test_addresses_that_are_accepted(url):
    assert RemoteSettings(url=url + "/").url == url


@pytest.mark.parametrize(
    "url, message",
    [
        ("http://a.example", "in the clear.*plain_http: true"),
        ("http://10.0.0.7:8770", "in the clear"),
        ("http://127.0.0.1.a.example", "in the clear"),
        ("ftp://127.0.0.1", "not a web address"),
        ("127.0.0.1:8770", "not a web address"),
        ("http://127.0.0.1:x", "not a web address"),
        ("http://user:pass@127.0.0.1", "user or password"),
        ("https://a.example/v1?key=1", "must end before"),
        ("https://a.example/ b", "no address has"),
    ],
)
def test_addresses_that_are_refused(url, message):
    with pytest.raises(ValidationError, match=message):
        RemoteSettings(url=url)


def test_plain_http_must_be_allowed():
    assert RemoteSettings(url="http://10.0.0.7:8770", plain_http=True).plain_http


def test_what_is_local():
    assert is_local("localhost") and is_local("127.0.0.2") and is_local("::1")
    assert not is_local("0.0.0.0") and not is_local("a.example") and not is_local("::")


def test_tokens(tmp_path, monkeypatch):
    file = tmp_path / "token"
    file.write_text(" abc\n")
    monkeypatch.setenv("MINE", "xyz")
    assert read_token(str(file), "MINE", "the server") == "abc"
    assert read_token(None, "MINE", "the server") == "xyz"
    assert read_token(None, None, "the server") is None
    monkeypatch.setenv("MINE", "x y")
    with pytest.raises(UserError, match="MINE has no token of the server.*Copy it again") as error:
        read_token(None, "MINE", "the server")
    assert "x y" not in str(error.value)
    for content in (b"", b"two\nlines", "é".encode()):
        file.write_bytes(content)
        with pytest.raises(UserError, match="token has no token of"):
            read_token(str(file), None, "the server")
    with pytest.raises(UserError, match="none cannot be read: No such file"):
        read_token(str(tmp_path / "none"), None, "the server")
    assert without("a key k1", "k1") == "a key ***" and without("a", None) == "a"


class Service:
    """Answers or fails as listed, and records the waits."""

    def __init__(self, *outcomes):
        self.outcomes = list(outcomes)
        self.waits: list[float] = []

    def query(self) -> bytes:
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, bytes):
            return outcome
        raise outcome

    def ask(self, attempts: int) -> bytes:
        return with_attempts(self.query, attempts, self.waits.append, bytes.decode)


def refusal(code: int, **headers) -> urllib.error.HTTPError:
    message = email.message.Message()
    for name, value in headers.items():
        message[name.replace("_", "-")] = value
    return urllib.error.HTTPError("http://a", code, "", message, io.BytesIO(b"why"))


def test_failures_that_pass_are_repeated():
    service = Service(
        refusal(500),
        TimeoutError(),
        refusal(429, Retry_After="30"),
        http.client.IncompleteRead(b""),
        ConnectionResetError(),
        refusal(503, Retry_After="soon"),
        OSError(),
        refusal(408),
        b"answer",
    )
    assert service.ask(9) == b"answer"
    assert service.waits == [1, 2, 30, 8, 16, 32, 60, 60]


def test_other_refusals_are_final():
    service = Service(refusal(400), b"answer")
    with pytest.raises(Refused) as error:
        service.ask(9)
    assert (error.value.code, error.value.body, service.waits) == (400, b"why", [])


def test_giving_up():
    with pytest.raises(GivenUp, match="^2 attempts: 500 why$"):
        Service(refusal(500), refusal(500), b"answer").ask(2)
    with pytest.raises(GivenUp, match="^1 attempt: TimeoutError$"):
        Service(TimeoutError()).ask(1)
    with pytest.raises(GivenUp, match="1 attempt: 429 why, and asks to wait 601 seconds"):
        Service(refusal(429, Retry_After="601"), b"answer").ask(9)
