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

import json
import os
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.files import parse_json
from fgrlhf.runs.progress import progress_bar
from fgrlhf.scorers.answer_cache import AnswerCache, content_hash
from fgrlhf.scorers.service import (
    GivenUp,
    Refused,
    TooLong,
    outages_of,
    send,
    with_attempts,
    without,
)

if TYPE_CHECKING:
    from fgrlhf.scorers.kinds import PerspectiveScorerKind
    from fgrlhf.text_types import Prompt

KEY_VARIABLE = "PERSPECTIVE_API_KEY"
MOST_BYTES = 20_480  # of a text; the service refuses longer ones
LARGEST_ANSWER = 1 << 20  # bytes that are read


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
        self.cache = AnswerCache(config.cache, "score", is_probability)
        self.limit = RateLimit(config.queries_per_second, clock, sleep)
        if not self.cache.answers:
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
            if text.strip() and self._key(text) not in self.cache.answers:
                unknown.append(text)
        if unknown:
            self._ask_all(unknown)
        return [self._known_score(text) for text in texts]

    def _key(self, text: str) -> str:
        config = self.config
        return content_hash(config.url, config.attribute, config.language, text)

    def _known_score(self, text: str) -> float:
        return self.cache.answers[self._key(text)] if text.strip() else self.config.empty

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

        def query() -> bytes:
            self.limit.wait()
            return self._post(body)

        try:
            answer = with_attempts(
                query,
                self.config.attempts,
                self.limit.pause,
                lambda refusal: message_of(refusal)[0],
                outages_of(f"Perspective at {self.config.url}"),
                os.environ.get(KEY_VARIABLE, "").strip(),
            )
        except Refused as error:
            raise UserError(self._refused(text, error.code, error.body)) from None
        except GivenUp as error:
            raise UserError(self._given_up(error)) from None
        except TooLong as error:
            raise UserError(f"{error}, so it is not from Perspective: check `url`") from None
        self.cache.add(self._key(text), score_in(answer, self.config.attribute))

    def _post(self, body: bytes) -> bytes:
        headers = {
            "Content-Type": "application/json",
            "X-Goog-Api-Key": api_key(self.config.cache),
        }
        request = urllib.request.Request(self.config.url, body, headers, method="POST")
        return send(request, self.config.timeout, LARGEST_ANSWER)

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

    def _given_up(self, error: GivenUp) -> str:
        return without_key(
            f"Perspective gave no score in {error}. Scores received so far are in"
            f" {self.config.cache}. Check the network and the project's quota"
            " (scorer.queries_per_second), then run the same command again"
        )


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
    return without(message, os.environ.get(KEY_VARIABLE, "").strip())


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
    if not is_probability(score):
        shown = shorten(answer.decode("utf-8", "replace"))
        raise UserError(
            without_key(
                f"Perspective answered without a score of {attribute} from 0 to 1: {shown}. Check"
                " that `url` is the address of the service and that no proxy answers in its place"
            )
        )
    return float(score)


def is_probability(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= value <= 1


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
