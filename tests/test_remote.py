"""Addresses, tokens and attempts. Time is simulated: no test waits."""

import email.message
import http.client
import io
import socket
import urllib.error
from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from fgrlhf.base.background import wait_for
from fgrlhf.base.errors import UserError
from fgrlhf.scorers.service import (
    GivenUp,
    Outages,
    Refused,
    RemoteSettings,
    Service,
    is_local,
    openai_message,
    outages_of,
    read_token,
    retry_after,
    text_of,
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
    assert read_token(f"file:{file}", "the server") == "abc"
    assert read_token("MINE", "the server") == "xyz"
    assert read_token(None, "the server") is None
    monkeypatch.setenv("MINE", "x y")
    with pytest.raises(UserError, match="MINE has no token of the server.*Copy it again") as error:
        read_token("MINE", "the server")
    assert "x y" not in str(error.value)
    for content in (b"", b"two\nlines", "é".encode()):
        file.write_bytes(content)
        with pytest.raises(UserError, match="token has no token of"):
            read_token(f"file:{file}", "the server")
    with pytest.raises(UserError, match="none cannot be read: No such file"):
        read_token(f"file:{tmp_path / 'none'}", "the server")
    for place in ("sk-1234", "file:", "my token", ""):
        with pytest.raises(ValueError, match="token_from"):
            RemoteSettings(url="http://127.0.0.1:80", token_from=place)
    assert without("a key k1", "k1") == "a key ***" and without("a", None) == "a"


class Answers:
    """Answers or fails as listed, and records the waits."""

    def __init__(self, *outcomes, outages=None):
        self.outcomes = list(outcomes)
        self.outages = outages or Outages("the service")
        self.waits: list[float] = []

    def query(self) -> bytes:
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, bytes):
            return outcome
        raise outcome

    def ask(self, attempts: int) -> bytes:
        return with_attempts(
            self.query, attempts, self.waits.append, bytes.decode, self.outages, "k1"
        )


def refusal(code: int, **headers) -> urllib.error.HTTPError:
    message = email.message.Message()
    for name, value in headers.items():
        message[name.replace("_", "-")] = value
    return urllib.error.HTTPError("http://a", code, "", message, io.BytesIO(b"why"))


def test_failures_that_pass_are_repeated():
    service = Answers(
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


@pytest.mark.parametrize(
    "value, seconds",
    [
        (None, 0.0),
        ("7", 7.0),
        ("Wed, 21 Oct 2026 07:28:30 GMT", 30.0),
        ("Wed, 21 Oct 2026 07:27:00 GMT", 0.0),  # in the past
        ("Wed, 21 Oct 2026 07:28:30", 30.0),  # no zone: UTC
        ("soon", 0.0),
        ("-5", 0.0),
        ("", 0.0),
    ],
)
def test_the_header_retry_after(value, seconds):
    now = datetime(2026, 10, 21, 7, 28, 0, tzinfo=UTC)
    assert retry_after(value, now) == seconds


def test_other_refusals_are_final():
    service = Answers(refusal(400), b"answer")
    with pytest.raises(Refused) as error:
        service.ask(9)
    assert (error.value.code, error.value.body, service.waits) == (400, b"why", [])


def test_giving_up():
    with pytest.raises(GivenUp, match="^2 attempts: 500 why$"):
        Answers(refusal(500), refusal(500), b"answer").ask(2)
    with pytest.raises(GivenUp, match="^1 attempt: TimeoutError$"):
        Answers(TimeoutError()).ask(1)
    with pytest.raises(GivenUp, match="1 attempt: 429 why, and asks to wait 601 seconds"):
        Answers(refusal(429, Retry_After="601"), b"answer").ask(9)


def lines_of(capsys) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_an_outage_is_one_line(capsys):
    """At the first failure, before the waits; the next outage is another one."""
    refused = urllib.error.URLError(ConnectionRefusedError(111, "Connection refused"))
    outages = Outages("the server at http://a")
    assert Answers(refused, refused, b"answer", outages=outages).ask(7) == b"answer"
    line = "note: the server at http://a: Connection refused; trying again, up to 6 more times"
    assert lines_of(capsys) == [line]
    with pytest.raises(GivenUp, match="^2 attempts: Connection refused$"):
        Answers(refused, refused, outages=Outages("the server")).ask(2)
    assert lines_of(capsys) == ["note: the server: Connection refused; trying again, once more"]
    Answers(refused, b"answer", outages=outages).ask(7)
    assert lines_of(capsys) == [], "a single failure between answers"
    Answers(refused, refused, b"answer", outages=outages).ask(7)
    assert len(lines_of(capsys)) == 1
    with pytest.raises(GivenUp):
        Answers(refused, outages=Outages("the server")).ask(1)
    assert lines_of(capsys) == [], "nothing is tried again"


def test_a_limited_rate_is_no_outage(capsys):
    Answers(refusal(429), refusal(429), b"answer").ask(3)
    assert lines_of(capsys) == []


def test_many_queries_do_not_flood_the_terminal(capsys, monkeypatch):
    """All threads of a service share its outage, and only the first process prints."""
    outages = outages_of("the service of this test")
    assert outages_of("the service of this test") is outages
    for _ in range(8):
        with pytest.raises(GivenUp):
            Answers(*[TimeoutError()] * 3, outages=outages).ask(3)
    assert len(lines_of(capsys)) == 1
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(GivenUp):
        Answers(*[TimeoutError()] * 3).ask(3)
    assert lines_of(capsys) == []


def test_a_name_that_does_not_resolve_is_final(capsys):
    unknown = urllib.error.URLError(socket.gaierror(-2, "Name or service not known"))
    message = r"^1 attempt: the name of the machine in the address is not known \(Name or service"
    with pytest.raises(GivenUp, match=message):
        Answers(unknown, b"answer").ask(7)
    assert lines_of(capsys) == []
    assert Answers(b"once", b"answer").ask(1) == b"once"
    known = Outages("the service")
    known.answered()  # so the name is right, and the name server has failed
    assert Answers(unknown, b"answer", outages=known).ask(7) == b"answer"


def test_no_message_has_the_token(capsys):
    failure = OSError("the answer repeats k1")
    with pytest.raises(GivenUp, match="2 attempts: the answer repeats \\*\\*\\*") as error:
        Answers(failure, failure).ask(2)
    assert "k1" not in capsys.readouterr().err and "k1" not in error.value.reason


def test_an_html_page_is_not_quoted():
    page = b"\n<!DOCTYPE HTML>\n<html lang=en><head><title>Error response</title>"
    assert text_of(page) == text_of(b"<html><body>404") == "an HTML page"
    assert text_of(b"plain") == "plain"


# ---- one service ---------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [None, b'{"a": 1}'])
@pytest.mark.parametrize("token_from", [None, "SERVICE_TOKEN"])
def test_a_query_has_the_address_the_token_and_the_body(monkeypatch, body, token_from):
    monkeypatch.setenv("SERVICE_TOKEN", "secret")
    sent = []

    def send(request, timeout, most_bytes):
        sent.append(request)
        return b"7"

    monkeypatch.setattr("fgrlhf.scorers.service.send", send)
    settings = RemoteSettings(url="http://127.0.0.1:80/v1", timeout_s=5, token_from=token_from)
    service = Service(settings, "the test", text_of, lambda seconds: None, wait_for)
    assert service.query("/path", body, int) == 7
    (request,) = sent
    assert request.full_url == "http://127.0.0.1:80/v1/path" and request.data == body
    assert request.get_method() == ("GET" if body is None else "POST")
    expected = {} if token_from is None else {"Authorization": "Bearer secret"}
    if body is not None:
        expected["Content-type"] = "application/json"
    assert request.headers == expected
    assert service.without_token("a secret") == ("a secret" if token_from is None else "a ***")


@pytest.mark.parametrize(
    "body, message",
    [
        (b'{"error": {"message": "too long"}}', "too long"),
        (b'{"error": {"message": null}}', '{"error": {"message": null}}'),
        (b'{"error": "too long"}', '{"error": "too long"}'),
        (b"[1]", "[1]"),
        (b"\xff busy", "\ufffd busy"),
        (b"<html><body>502</body></html>", "an HTML page"),
    ],
)
def test_the_message_of_a_refusal(body, message):
    assert openai_message(body) == message
