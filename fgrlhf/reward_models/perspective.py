"""Scores by Google's Perspective API: `scorer: {kind: perspective, ...}`.

    POST https://commentanalyzer.googleapis.com/v1alpha1/comments:analyze
    {"comment": {"text": TEXT, "type": "PLAIN_TEXT"}, "languages": ["en"],
     "requestedAttributes": {ATTRIBUTE: {}}, "doNotStore": true}

The answer has `attributeScores.ATTRIBUTE.summaryScore.value`, a probability. A query has one text.
Scores are kept in a file, so that no text is asked twice, by this run or a later one. Every score
comes from the service: a query that fails is repeated, and then an error. Only a text without
words, which the service refuses, has a score of its own, `empty`.

The API key comes from the environment variable PERSPECTIVE_API_KEY. It is sent as a header, not in
the address, which proxies log.
"""

import email.utils
import fcntl
import hashlib
import http.client
import json
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fgrlhf.errors import UserError, shorten
from fgrlhf.files import parse_json
from fgrlhf.runs.progress import progress_bar
from fgrlhf.secrets import MASK

if TYPE_CHECKING:
    from fgrlhf.reward_models.text_scorers import PerspectiveScorerKind
    from fgrlhf.text_types import Prompt

KEY_VARIABLE = "PERSPECTIVE_API_KEY"
MOST_BYTES = 20_480  # of a text; the service refuses longer ones
LARGEST_ANSWER = 1 << 20  # bytes that are read
RETRIED = frozenset({408, 429, 500, 502, 503, 504})  # other refusals are final
LONGEST_BACKOFF = 60.0  # seconds; the service counts queries per minute
LONGEST_RETRY_AFTER = 600.0  # seconds that the service may ask to wait


class PerspectiveScorer:
    """The probability of `config.attribute` for each text. It reads no prompt.

    Args:
      clock, sleep: of the rate limit; tests replace them.
    Raises:
      UserError: there is no API key, and no score is known.
    """

    def __init__(
        self,
        config: "PerspectiveScorerKind",
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ):
        self.config = config
        self.cache = ScoreCache(config.cache)
        self.limit = RateLimit(config.queries_per_second, clock, sleep)
        self._opener = urllib.request.build_opener(_NoRedirect)
        if not self.cache.scores:
            api_key(config.cache)  # rather now than after the first rollout

    def score(self, prompts: "Sequence[Prompt]", texts: Sequence[str]) -> list[float]:
        """The score of each text: `TextScorer`. Unknown texts are asked, each once.

        Raises:
          UserError: the service refuses a text, cannot be reached, or does not answer with a score;
            or there is no valid API key. Scores that were received are kept.
        """
        self.cache.refresh()
        unknown = []
        for text in dict.fromkeys(texts):
            if text.strip() and self._key(text) not in self.cache.scores:
                unknown.append(text)
        if unknown:
            self._ask_all(unknown)
        return [self._known_score(text) for text in texts]

    def _key(self, text: str) -> str:
        config = self.config
        return cache_key(config.url, config.attribute, config.language, text)

    def _known_score(self, text: str) -> float:
        return self.cache.scores[self._key(text)] if text.strip() else self.config.empty

    # ---- queries ----

    def _ask_all(self, texts: Sequence[str]) -> None:
        stopped = threading.Event()  # by an error or an interruption: nothing more is asked

        def ask(text: str) -> None:
            if stopped.is_set():
                return
            try:
                self._ask(text)
            except BaseException:
                stopped.set()
                raise

        bar = progress_bar(len(texts), "Perspective", "text")
        with bar, ThreadPoolExecutor(self.config.parallel) as pool:
            queries = [pool.submit(ask, text) for text in texts]
            try:
                for query in queries:
                    query.result()
                    bar.update()
            finally:
                stopped.set()

    def _ask(self, text: str) -> None:
        """Ask for the score of a text, and keep it."""
        size = len(text.encode("utf-8", "surrogatepass"))
        if size > MOST_BYTES:
            raise UserError(
                f"the text {shorten(repr(text), 60)} has {size:,} bytes, and Perspective reads at"
                f" most {MOST_BYTES:,}: shorten the responses (env.max_generated_len)"
            )
        body = json.dumps(
            {
                "comment": {"text": text, "type": "PLAIN_TEXT"},
                "languages": [self.config.language],
                "requestedAttributes": {self.config.attribute: {}},
                "doNotStore": True,
            }
        ).encode("ascii")
        attempts = self.config.attempts
        for attempt in range(attempts):
            self.limit.wait()
            try:
                answer = self._post(body)
            except urllib.error.HTTPError as error:
                refusal = _body_of(error)
                if error.code not in RETRIED:
                    raise UserError(self._refused(text, error.code, refusal)) from None
                reason = f"{error.code} {message_of(refusal)[0]}"
                wait = retry_after(error.headers.get("Retry-After"), datetime.now(UTC))
            except (OSError, http.client.HTTPException) as error:  # a timeout is an OSError
                reason = str(getattr(error, "reason", None) or error or type(error).__name__)
                wait = 0.0
            else:
                score = score_in(answer, self.config.attribute)
                self.cache.add(self._key(text), score)
                return
            is_last = attempt + 1 == attempts
            if is_last or wait > LONGEST_RETRY_AFTER:
                raise UserError(self._given_up(attempt + 1, reason, wait))
            self.limit.pause(max(wait, min(2.0**attempt, LONGEST_BACKOFF)))

    def _post(self, body: bytes) -> bytes:
        headers = {
            "Content-Type": "application/json",
            "X-Goog-Api-Key": api_key(self.config.cache),
        }
        request = urllib.request.Request(self.config.url, body, headers, method="POST")
        with self._opener.open(request, timeout=self.config.timeout) as response:
            return response.read(LARGEST_ANSWER)

    # ---- messages ----

    def _refused(self, text: str, code: int, body: bytes) -> str:
        message, kind = message_of(body)
        if "API_KEY" in kind or code in (401, 403):
            way_out = (
                f"Check {KEY_VARIABLE}, and that its project has enabled the Perspective Comment"
                " Analyzer API"
            )
        elif code == 400:
            way_out = (
                f"Check attribute: {self.config.attribute} and language: {self.config.language}"
            )
        else:
            way_out = (
                "Check `url`. Google has announced the end of the service after 2026:"
                " docs/rewards.md, Perspective, names other scorers"
            )
        reason = f"{message} ({kind})" if kind else message
        return without_key(
            f"Perspective refuses the text {shorten(repr(text), 60)}: {code} {reason}. {way_out}"
        )

    def _given_up(self, attempts: int, reason: str, wait: float) -> str:
        asked = f", and asks to wait {wait:.0f} seconds" if wait > LONGEST_RETRY_AFTER else ""
        tried = "1 attempt" if attempts == 1 else f"{attempts} attempts"
        return without_key(
            f"Perspective gave no score in {tried}: {shorten(reason)}{asked}. Scores received so"
            f" far are in {self.config.cache}. Check the network and the project's quota"
            " (scorer.queries_per_second), then run the same command again"
        )


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, which would send the key to another address."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        return None


# ---- the API key ---------------------------------------------------------------------------------


def api_key(cache: str) -> str:
    """The API key. It is read for every query, so that no object holds it.

    Args:
      cache: the file of known scores, for the message.
    Raises:
      UserError: the variable is not set, or cannot be a key. The message does not contain it.
    """
    key = os.environ.get(KEY_VARIABLE, "").strip()
    if not key:
        raise UserError(
            f"Perspective needs an API key: set the environment variable {KEY_VARIABLE}. Only texts"
            f" with a score in {cache} need none. The service admits no new users:"
            " docs/rewards.md, Perspective, names other scorers"
        )
    if not key.isascii() or not key.isprintable() or " " in key:
        raise UserError(
            f"{KEY_VARIABLE} is not an API key: it has white space or other characters that no key"
            " has. Copy the key again"
        )
    return key


def without_key(message: str) -> str:
    """The message without the API key, which an answer may repeat."""
    key = os.environ.get(KEY_VARIABLE, "").strip()
    return message.replace(key, MASK) if key else message


# ---- answers -------------------------------------------------------------------------------------


def score_in(answer: bytes, attribute: str) -> float:
    """The score of an answer.

    Raises:
      UserError: the answer has no number from 0 to 1 for the attribute.
    """
    score: Any = None
    with suppress(ValueError, KeyError, TypeError):
        tree: Any = parse_json(answer.decode("utf-8"))
        score = tree["attributeScores"][attribute]["summaryScore"]["value"]
    is_number = isinstance(score, int | float) and not isinstance(score, bool)
    if not is_number or not 0 <= score <= 1:
        shown = shorten(answer.decode("utf-8", "replace"))
        raise UserError(
            without_key(
                f"Perspective answered without a score of {attribute} from 0 to 1: {shown}. Check"
                " that `url` is the address of the service and that no proxy answers in its place"
            )
        )
    return float(score)


def message_of(body: bytes) -> tuple[str, str]:
    """The message of a refusal, and the kinds of error that it names, such as COMMENT_TOO_LONG.

    The body is {"error": {"message": ..., "details": [{"errorType": ...}, {"reason": ...}]}}.
    """
    try:
        error: Any = parse_json(body.decode("utf-8"))["error"]
        message = str(error["message"])
        details = error.get("details") or []
        kinds = [detail.get("errorType") or detail.get("reason") for detail in details]
    except (ValueError, KeyError, TypeError, AttributeError):
        return shorten(body.decode("utf-8", "replace")), ""
    named = [kind for kind in kinds if isinstance(kind, str)]
    return shorten(message), shorten(", ".join(named))


def _body_of(error: urllib.error.HTTPError) -> bytes:
    try:
        with error:
            return error.read(LARGEST_ANSWER)
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


# ---- time ----------------------------------------------------------------------------------------


class RateLimit:
    """Starts of queries at least 1 / per_second apart, over all threads."""

    def __init__(
        self, per_second: float, clock: Callable[[], float], sleep: Callable[[float], None]
    ):
        self._interval = 1 / per_second
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._next_start = clock()

    def wait(self) -> None:
        """Wait for the next start."""
        with self._lock:
            now = self._clock()
            start = max(now, self._next_start)
            self._next_start = start + self._interval
        if start > now:
            self._sleep(start - now)

    def pause(self, seconds: float) -> None:
        """Let no query start for so long, since the service is busy."""
        with self._lock:
            self._next_start = max(self._next_start, self._clock() + seconds)


# ---- the cache -----------------------------------------------------------------------------------


def cache_key(url: str, attribute: str, language: str, text: str) -> str:
    """SHA-256 of everything that a score depends on."""
    facts = json.dumps([url, attribute, language, text])
    return hashlib.sha256(facts.encode("ascii")).hexdigest()


class ScoreCache:
    """Scores in a file of JSON lines {"key": ..., "score": ...}, which several processes share.

    The file only grows, by one line per score. It has digests in place of the texts. A line that is
    not complete, because a process was killed while it wrote, is ignored.

    Attributes:
      scores: by key.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.scores: dict[str, float] = {}
        self._read_bytes = 0
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "ab"):
            pass  # an error now, not after the first query
        self.refresh()

    def refresh(self) -> None:
        """Read the lines that were added since the last call, also by other processes."""
        with open(self.path, "rb") as file:
            file.seek(self._read_bytes)
            added = file.read()
        complete = added[: added.rfind(b"\n") + 1]
        self._read_bytes += len(complete)
        for line in complete.split(b"\n"):
            entry = _entry(line)
            if entry is not None:
                key, score = entry
                self.scores[key] = score

    def add(self, key: str, score: float) -> None:
        line = json.dumps({"key": key, "score": score}).encode("ascii") + b"\n"
        with open(self.path, "a+b") as file:
            with suppress(OSError):  # some network disks have no locks
                fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
            if _ends_within_line(file):
                line = b"\n" + line
            file.write(line)
        self.scores[key] = score


def _ends_within_line(file: Any) -> bool:
    if file.seek(0, os.SEEK_END) == 0:
        return False
    file.seek(-1, os.SEEK_END)
    return file.read(1) != b"\n"


def _entry(line: bytes) -> tuple[str, float] | None:
    """Key and score of a line; None if it is not such a line."""
    try:
        row = json.loads(line)
        key, score = row["key"], row["score"]
    except (ValueError, KeyError, TypeError):
        return None
    is_entry = isinstance(key, str) and isinstance(score, float | int) and 0 <= score <= 1
    return (key, float(score)) if is_entry else None
