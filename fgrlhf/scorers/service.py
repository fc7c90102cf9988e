"""Queries to services over HTTP: tokens, attempts, waits, and answers that are read with a limit.

`Service.answer` turns a failure into a message; of `Service.query`, the caller does. Nothing here
makes up an answer.
"""

import email.utils
import functools
import http.client
import ipaddress
import json
import os
import re
import socket
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, Field, model_validator

from fgrlhf.base.background import wait_for, within
from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.files import parse_json
from fgrlhf.base.secrets import MASK
from fgrlhf.configs.strict import FilePath, StrictModel, file_path, refuse

RETRIED = frozenset({408, 429, 500, 502, 503, 504})  # other refusals are final
LONGEST_BACKOFF = 60.0  # seconds; services count queries per minute
LONGEST_RETRY_AFTER = 600.0  # seconds that a service may ask to wait
LARGEST_ANSWER = 64 << 20  # bytes of an answer
LARGEST_REFUSAL = 1 << 20  # bytes of a refusal that are read
Result = TypeVar("Result")


# ---- addresses -----------------------------------------------------------------------------------


def is_local(host: str) -> bool:
    """Whether a host name or address is this machine, not reached over a network."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _base_address(url: str) -> str:
    try:
        parts = urllib.parse.urlsplit(url)
        _ = parts.port  # raises an error if the port is not a number
    except ValueError as error:
        raise ValueError(f"it is not a web address: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("it is not a web address: write http:// or https://, and a host")
    if not url.isascii() or any(c.isspace() for c in url):
        raise ValueError("it is not a web address: it has a character that no address has")
    if parts.username is not None or parts.password is not None:
        raise ValueError("it has a user or password: give the token by token_from")
    if parts.query or parts.fragment:
        raise ValueError("it must end before `?` and `#`")
    return url.rstrip("/")


Address = Annotated[str, AfterValidator(_base_address)]


def _plain_http_problem(url: str) -> str | None:
    """Why an address would send tokens and texts in the clear; None if it would not."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "https" or is_local(parts.hostname or ""):
        return None
    return (
        "http:// would send the token and all texts in the clear to another machine: use https://,"
        " an SSH tunnel to 127.0.0.1, or, in a network that you trust, plain_http: true"
    )


# ---- tokens --------------------------------------------------------------------------------------


FILE = "file:"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{,99}")
_TOKEN = re.compile(r"[!-~]{1,4096}")


def _place_of_a_token(value: str) -> str:
    if not value.startswith(FILE) and not _VARIABLE.fullmatch(value):
        raise ValueError(
            "it says where the token is, and is no token: the name of an environment variable, or"
            f" {FILE}PATH"
        )
    if value.startswith(FILE):
        file_path(value.removeprefix(FILE))
    return value


TokenPlace = Annotated[str, AfterValidator(_place_of_a_token)]


def token_file(place: str) -> str | None:
    """The file that has the token; None if an environment variable has it."""
    return place.removeprefix(FILE) if place.startswith(FILE) else None


def place_name(place: str) -> str:
    """`the file PATH`, or `the environment variable NAME`."""
    file = token_file(place)
    return f"the environment variable {place}" if file is None else f"the file {shorten(file)}"


def read_token(place: str | None, owner: str) -> str | None:
    """A bearer token from a file or an environment variable; None if there is no place.

    It is read for every use, so that no object holds it.

    Args:
      place: NAME of an environment variable, or file:PATH.
      owner: whose token it is, for messages.
    Raises:
      UserError: there is no token, or it cannot be one. The message does not contain it.
    """
    if place is None:
        return None
    file = token_file(place)
    if file is None:
        token = os.environ.get(place, "").strip()
        if not token:
            raise UserError(
                f"{place_name(place)} is not set: it must have the token of {owner}. Set it, or"
                f" name a file by token_from={FILE}PATH"
            )
    else:
        try:
            token = Path(file).read_text(encoding="ascii").strip()
        except OSError as error:
            raise UserError(
                f"{place_name(place)} cannot be read: {error.strerror}. It must have the token of"
                f" {owner}"
            ) from None
        except ValueError:  # other characters, or a name with a NUL
            token = ""
    if _TOKEN.fullmatch(token) is None:
        raise UserError(
            f"{place_name(place)} has no token of {owner}: a token is one line of visible ASCII"
            " characters. Copy it again"
        )
    return token


def without(message: str, token: str | None) -> str:
    """The message without the token, which an answer may repeat."""
    return message.replace(token, MASK) if token else message


class ServiceSettings(StrictModel):
    """How to reach a service: address, token, deadline, attempts."""

    may_change = ("token_from", "timeout_s", "retries", "plain_http")

    url: Address = Field(description="address of the service, without a path below it")
    token_from: TokenPlace | None = Field(
        default=None,
        description="the environment variable with the bearer token, or file:PATH; null: no token",
    )
    timeout_s: Annotated[float, Field(gt=0, le=3600)] = Field(
        default=120.0, description="seconds for the whole of an answer"
    )
    retries: Annotated[int, Field(ge=0, le=100)] = Field(
        default=6,
        description="further attempts after a transient failure: 6 wait 63 seconds in all",
    )
    plain_http: bool = Field(
        default=False, description="allow http:// to another machine, without encryption"
    )

    @model_validator(mode="after")
    def _encrypted_or_allowed(self):
        problem = None if self.plain_http else _plain_http_problem(self.url)
        if problem is not None:
            refuse([("url", problem)])
        return self


class RemoteSettings(ServiceSettings):
    """How to reach a service whose answers can be stored."""

    may_change = (*ServiceSettings.may_change, "cache")

    cache: FilePath | None = Field(
        default=None, description="JSONL file of known answers; none is asked for twice"
    )


# ---- queries -------------------------------------------------------------------------------------


class Refused(Exception):
    """A service has refused a query, and would refuse it again."""

    def __init__(self, code: int, body: bytes):
        self.code = code
        self.body = body
        super().__init__(code)


class GivenUp(Exception):
    """Every attempt failed, or a service asks to wait longer than LONGEST_RETRY_AFTER.

    Attributes:
      attempts: how many there were.
      reason: of the last failure.
      wait: seconds that the service asks to wait.
    """

    def __init__(self, attempts: int, reason: str, wait: float):
        self.attempts = attempts
        self.reason = reason
        self.wait = wait
        super().__init__(reason)

    def __str__(self) -> str:
        tried = "1 attempt" if self.attempts == 1 else f"{self.attempts} attempts"
        asked = ""
        if self.wait > LONGEST_RETRY_AFTER:
            asked = f", and asks to wait {self.wait:.0f} seconds"
        return f"{tried}: {shorten(self.reason)}{asked}"


class TooLong(Exception):
    """An answer has more bytes than are read."""


class BadAnswer(OSError):
    """An answer without the requested result: a transient fault, like a lost connection."""


class Outages:
    """Prints one line per outage of a service, for any number of threads that query it.

    An outage begins with a failed attempt and ends with an answer. A query that fails only once,
    as busy services let some fail, is no outage once the service has answered. Of the processes of
    a machine, the first one prints.

    Args:
      name: of the service, such as `the judge small at http://...`.
    """

    def __init__(self, name: str):
        self.name = name
        self.has_answered = False
        self._is_shown = False
        self._lock = threading.Lock()

    def failed(self, reason: str, attempt: int, attempts: int) -> None:
        """Note that attempt number `attempt`, from 0, of `attempts` has failed, not the last."""
        with self._lock:
            if self._is_shown or (self.has_answered and attempt == 0):
                return
            self._is_shown = True
        if os.environ.get("LOCAL_RANK", "0") != "0":
            return
        left = attempts - attempt - 1
        times = "once more" if left == 1 else f"up to {left} more times"
        print(
            f"note: {self.name}: {shorten(reason)}; trying again, {times}",
            file=sys.stderr,
            flush=True,
        )

    def answered(self) -> None:
        """Note that the service has answered a query."""
        with self._lock:
            self.has_answered = True
            self._is_shown = False


@functools.cache
def outages_of(service: str) -> Outages:
    """The outages of the service with this name in this process."""
    return Outages(service)


def with_attempts(
    query: Callable[[], Result],
    attempts: int,
    pause: Callable[[float], None],
    describe: Callable[[bytes], str],
    outages: Outages,
    token: str | None,
) -> Result:
    """The result of `query()`, repeated after a transient failure.

    Transient are the codes in RETRIED, a timeout and a broken connection. Before the next attempt,
    `pause` gets the seconds that `Retry-After` asks for, at least 1, 2, 4, ... up to 60 seconds. A
    name that does not resolve is a typing error, unless the service has answered before.

    Args:
      describe: the body of a refusal -> its message.
      outages: of the service; prints that a query is repeated.
      token: of the query, which no message may contain.
    Raises:
      Refused: the service refuses the query for another reason.
      GivenUp: every attempt failed, or the service asks to wait longer than LONGEST_RETRY_AFTER.
    """
    for attempt in range(attempts):
        is_final = attempt + 1 == attempts
        is_busy = False
        wait = 0.0
        try:
            result = query()
        except urllib.error.HTTPError as error:
            refusal = _body_of(error)
            if error.code not in RETRIED:
                outages.answered()
                raise Refused(error.code, refusal) from None
            reason = f"{error.code} {describe(refusal)}"
            wait = retry_after(error.headers.get("Retry-After"), datetime.now(UTC))
            is_busy = error.code == 429  # a limited rate, which is no outage
        except (OSError, http.client.HTTPException) as error:  # a timeout is an OSError
            cause = getattr(error, "reason", None) or error
            reason = _reason_of(cause)
            if isinstance(cause, socket.gaierror) and not outages.has_answered:
                is_final = True
        else:
            outages.answered()
            return result
        reason = without(reason, token)
        if is_final or wait > LONGEST_RETRY_AFTER:
            raise GivenUp(attempt + 1, reason, wait)
        if not is_busy:
            outages.failed(reason, attempt, attempts)
        pause(max(wait, min(2.0**attempt, LONGEST_BACKOFF)))
    raise ValueError("a query needs at least one attempt")


class Service:
    """Queries to one service: each has a token, a deadline and several attempts.

    Args:
      settings: address, deadline, attempts and where the token is.
      name: of the service, for messages, such as `the reward server http://127.0.0.1:8000`.
      describe: the body of a refusal -> its message.
      pause: called with the seconds to wait before the next attempt; tests replace it.
      wait: waits for an answer until its deadline (fgrlhf/base/background.py); tests replace it.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        name: str,
        describe: Callable[[bytes], str] | None = None,
        pause: Callable[[float], None] = time.sleep,
        wait: Callable[[threading.Event, float], bool] = wait_for,
    ):
        self.settings = settings
        self.name = name
        self.describe = describe or text_of
        self._pause = pause
        self._wait = wait

    def token(self) -> str | None:
        """The token; None if the settings name none. Raises `UserError` if it is missing."""
        return read_token(self.settings.token_from, self.name)

    def without_token(self, message: str) -> str:
        """The message without the token, which an answer may repeat."""
        return without(message, self.token())

    def answer(
        self,
        path: str,
        request: Any,
        read: Callable[[Any], Result],
        way_out: str = "Check the service and its quota, then run the same command again",
    ) -> Result:
        """What `read` makes of the JSON answer to a POST of the JSON value `request`.

        Args:
          path: below the service's address.
          read: the answer -> the result. If it raises a ValueError, KeyError or TypeError, the
            query is repeated: the answer has no result.
          way_out: if there is no answer in all attempts.
        Raises:
          UserError: the service refuses the query, or there is no such answer.
        """

        def parse(body: bytes) -> Result:
            try:
                answer = parse_json(body.decode("utf-8"))
            except ValueError:
                raise BadAnswer(f"the answer is not JSON: {text_of(body)}") from None
            try:
                return read(answer)
            except KeyError as error:
                raise BadAnswer(f"the answer has no {error}: {text_of(body)}") from None
            except (ValueError, TypeError) as error:
                raise BadAnswer(f"{error}") from None

        try:
            return self.query(path, json.dumps(request).encode("ascii"), parse)
        except Refused as refusal:
            message = (
                f"{self.name} refuses the query: {refusal.code} {self.describe(refusal.body)}."
                " Check the address, what is asked for, and the token"
            )
        except GivenUp as error:
            message = (
                f"{self.name} gave no answer in {error}. Nothing was recorded for it. {way_out}"
            )
        except TooLong as error:
            message = f"{self.name}: {error}. Check the address"
        raise UserError(self.without_token(message))

    def query(self, path: str, body: bytes | None, parse: Callable[[bytes], Result]) -> Result:
        """The parsed answer to POST of JSON, or to GET if `body` is None.

        Args:
          path: below the service's address.
          parse: the answer's body -> the result; if it raises an `OSError`, the query is repeated.
        Raises:
          Refused, GivenUp, TooLong: there is no answer.
          UserError: the token is missing.
        """
        token = self.token()
        headers = {}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        request = urllib.request.Request(self.settings.url + path, body, headers)
        timeout = self.settings.timeout_s

        def attempt() -> Result:
            answer = within(timeout, lambda: send(request, timeout, LARGEST_ANSWER), self._wait)
            return parse(answer)

        return with_attempts(
            attempt,
            self.settings.retries + 1,
            self._pause,
            self.describe,
            outages_of(self.name),
            token,
        )


def _reason_of(cause: Exception | str) -> str:
    """`Connection refused` rather than `[Errno 111] Connection refused`."""
    if isinstance(cause, socket.gaierror):
        return f"the name of the machine in the address is not known ({cause.strerror})"
    reason = getattr(cause, "strerror", None) or str(cause)
    return reason or type(cause).__name__


def text_of(body: bytes) -> str:
    """The body of an answer for a message: the beginning of its text, or what it is."""
    text = body.decode("utf-8", "replace").strip()
    if text[:200].lower().startswith(("<!doctype html", "<html")):
        return "an HTML page"
    return shorten(text)


def openai_message(body: bytes) -> str:
    """The message of a refusal, {"error": {"message": ...}}, or else the body itself."""
    try:
        message = parse_json(body.decode("utf-8"))["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = None
    return shorten(message) if isinstance(message, str) else text_of(body)


def send(request: urllib.request.Request, timeout: float, most_bytes: int) -> bytes:
    """The body of the answer to a request.

    Args:
      timeout: longest silence in seconds.
    Raises:
      urllib.error.HTTPError: a refusal, or a redirect, which would send the token elsewhere.
      OSError, http.client.HTTPException: the connection failed or ended early.
      TooLong: the answer has more than `most_bytes`.
    """
    host = urllib.parse.urlsplit(request.full_url).hostname or ""
    handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
    if is_local(host):
        handlers.append(urllib.request.ProxyHandler({}))  # a proxy would reach another machine
    with urllib.request.build_opener(*handlers).open(request, timeout=timeout) as response:
        body = response.read(most_bytes + 1)
        length = response.headers.get("Content-Length", "")
    if len(body) > most_bytes:
        raise TooLong(f"the answer has more than {most_bytes:,} bytes")
    if length.isdecimal() and len(body) < int(length):
        raise http.client.IncompleteRead(body, int(length) - len(body))
    return body


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, which would send the token to another address."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        return None


def _body_of(error: urllib.error.HTTPError) -> bytes:
    try:
        with error:
            return error.read(LARGEST_REFUSAL)
    except (OSError, http.client.HTTPException):  # the connection ended
        return b""


def retry_after(value: str | None, now: datetime) -> float:
    """The seconds that the header Retry-After asks to wait: a number or a date; else 0.

    >>> retry_after("7", datetime.now(UTC))
    7.0
    """
    if value is None:
        return 0.0
    if value.strip().isdecimal():
        return float(value)
    try:
        date = email.utils.parsedate_to_datetime(value)
    except ValueError:
        return 0.0
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0.0, (date - now).total_seconds())
