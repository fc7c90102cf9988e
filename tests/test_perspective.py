"""The Perspective scorer against a local server that answers, refuses, is busy, or disconnects.

Time is simulated: no test waits.
"""

import json
import subprocess
import sys
import threading
import traceback
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.configs.strict import validate
from fgrlhf.reward_models.perspective import (
    KEY_VARIABLE,
    MOST_BYTES,
    PerspectiveScorer,
    RateLimit,
    is_probability,
    message_of,
    score_in,
)
from fgrlhf.rewards.kinds import build_aspects
from fgrlhf.scorers.answer_cache import AnswerCache, content_hash
from fgrlhf.scorers.context import RewardContext
from fgrlhf.scorers.kinds import PerspectiveScorerKind
from fgrlhf.scorers.service import retry_after
from fgrlhf.task import Task, rl_config
from fgrlhf.text_types import Prompt

ROOT = Path(__file__).parents[1]
SECRET = "AIza-not-a-real-key-0123456789"
PROMPT = Prompt("0", "ask")


class Server(ThreadingHTTPServer):
    """Answers with `scores[text]`, or .5; `answers` has other answers for the next requests.

    An answer is (status, headers, body); None closes the connection.
    """

    def __init__(self):
        self.scores: dict[str, float] = {}
        self.answers: list[tuple[int, dict, object] | None] = []
        self.requests: list[dict] = []
        self.paths: list[str] = []
        self.keys: list[str | None] = []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1alpha1/comments:analyze"

    @property
    def texts(self) -> list[str]:
        return [request["comment"]["text"] for request in self.requests]


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        server = self.server
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server.requests.append(request)
        server.paths.append(self.path)
        server.keys.append(self.headers.get("X-Goog-Api-Key"))
        answer = (200, {}, scored(server.scores.get(request["comment"]["text"], 0.5)))
        if server.answers:
            answer = server.answers.pop(0)
        if answer is None:
            self.close_connection = True
            return
        status, headers, body = answer
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST  # noqa: N815 (a redirect would be followed with GET)

    def log_message(self, *_):
        pass


def scored(value: object, attribute: str = "INSULT") -> dict:
    return {"attributeScores": {attribute: {"summaryScore": {"value": value}}}, "languages": ["en"]}


def refused(code: int, message: str, **details) -> tuple[int, dict, object]:
    error = {"code": code, "message": message, "status": "S", "details": [details]}
    return code, {}, {"error": error}


@pytest.fixture
def server():
    with Server() as server:
        threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()
        yield server
        server.shutdown()


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, SECRET)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


class Time:
    """A clock that only `sleep` moves."""

    def __init__(self):
        self.now = 0.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def kind(server: Server, folder: Path, **changes) -> PerspectiveScorerKind:
    settings = {
        "attribute": "INSULT",
        "cache": str(folder / "cache.jsonl"),
        "empty": 0.0,
        "queries_per_second": 1e6,
        "timeout": 60.0,
        "url": server.url,
    }
    return PerspectiveScorerKind(**{**settings, **changes})


def scorer(server: Server, folder: Path, time: Time | None = None, **changes) -> PerspectiveScorer:
    time = time or Time()
    return PerspectiveScorer(kind(server, folder, **changes), time.clock, time.sleep)


def scores(built: PerspectiveScorer, *texts: str) -> list[float]:
    return built.score([PROMPT] * len(texts), texts)


# ---- queries -------------------------------------------------------------------------------------


def test_a_query_by_hand(server, tmp_path):
    server.scores["You fool 🙂"] = 0.8627961
    assert scores(scorer(server, tmp_path), "You fool 🙂") == [0.8627961]
    assert server.requests == [
        {
            "comment": {"text": "You fool 🙂", "type": "PLAIN_TEXT"},
            "languages": ["en"],
            "requestedAttributes": {"INSULT": {}},
            "doNotStore": True,
        }
    ]
    assert server.keys == [SECRET]
    assert server.paths == ["/v1alpha1/comments:analyze"]  # without the key


def test_equal_texts_are_asked_once_and_scores_are_in_order(server, tmp_path):
    server.scores |= {"a": 0.1, "b": 0.2}
    assert scores(scorer(server, tmp_path), "b", "a", "b", "a") == [0.2, 0.1, 0.2, 0.1]
    assert sorted(server.texts) == ["a", "b"]


def test_texts_without_words_are_not_sent(server, tmp_path):
    built = scorer(server, tmp_path, empty=0.03)
    assert scores(built, "", " \n", "a") == [0.03, 0.03, 0.5]
    assert server.texts == ["a"]


def test_a_text_that_is_too_long_is_not_sent(server, tmp_path):
    built = scorer(server, tmp_path)
    assert scores(built, "é" * (MOST_BYTES // 2)) == [0.5]
    with pytest.raises(UserError, match=r"has 20,482 bytes.*at most 20,480.*max_generated_len"):
        scores(built, "é" * (MOST_BYTES // 2) + "ab")
    assert len(server.requests) == 1


def test_the_increments_of_a_response(server, tmp_path):
    """The example of Wu et al. (2023): .72 after one sentence, .60 after two."""
    server.scores |= {"You are awful.": 0.72, "You are awful. I may be wrong.": 0.60}
    tree = {
        "model": {"policy_model": {"ckpt": "p"}, "value_model": {"ckpt": "p"}},
        "logging": {"save_dir": "out"},
        "reward": {
            "a": {
                "kind": "increment",
                "better": "low",
                "scorer": kind(server, tmp_path).model_dump(),
            }
        },
    }
    config = validate(rl_config(Task(name="any")), tree, "file")
    aspects, _ = build_aspects(config.reward, RewardContext(lambda prompt, with_context: ()))
    (values,) = aspects["a"].segment_scores([PROMPT], ["You are awful. I may be wrong."])
    assert [value.value for value in values] == pytest.approx([-0.72, 0.12])
    assert len(server.requests) == 2  # the empty text is not sent


# ---- the cache -----------------------------------------------------------------------------------


def test_known_texts_are_never_asked_again(server, tmp_path, monkeypatch):
    server.scores["You fool"] = 0.7
    scores(scorer(server, tmp_path), "You fool")
    server.scores["You fool"] = 0.1
    monkeypatch.delenv(KEY_VARIABLE)  # what is known needs no key
    assert scores(scorer(server, tmp_path), "You fool") == [0.7]
    assert len(server.requests) == 1
    (line,) = (tmp_path / "cache.jsonl").read_text().splitlines()
    assert json.loads(line) == {
        "key": content_hash(server.url, "INSULT", "en", "You fool"),
        "score": 0.7,
    }


def test_the_key_of_a_score_has_all_that_it_depends_on():
    facts = ["https://a", "INSULT", "en", "text"]
    keys = {content_hash(*facts)}
    for place in range(4):
        changed = [*facts]
        changed[place] += "x"
        keys.add(content_hash(*changed))
    assert len(keys) == 5
    # printf '["https://a", "INSULT", "en", "text"]' | sha256sum
    assert content_hash(*facts) == KEY_OF_TEXT


KEY_OF_TEXT = "7e13f6711b5b0a6017609efaf1bc108ecd4ccb82ca4dcd9ecb9d666e6f9810de"


def test_an_interruption_loses_only_the_line_that_was_being_written(server, tmp_path):
    server.scores |= {"a": 0.1, "b": 0.2, "c": 0.3}
    scores(scorer(server, tmp_path), "a", "b")
    path = tmp_path / "cache.jsonl"
    torn = path.read_bytes()[:-10]
    path.write_bytes(torn)
    server.requests.clear()
    assert scores(scorer(server, tmp_path), "a", "b", "c") == [0.1, 0.2, 0.3]
    assert server.texts == ["b", "c"]
    assert path.read_bytes().startswith(torn + b"\n")
    server.requests.clear()
    assert scores(scorer(server, tmp_path), "a", "b", "c") == [0.1, 0.2, 0.3]
    assert server.requests == []


@pytest.mark.parametrize(
    "line", ["", "{", "3", '{"key": "k"}', '{"key": 3, "score": 0.5}', '{"key": "k", "score": 7}']
)
def test_other_lines_are_ignored(tmp_path, line):
    path = tmp_path / "cache.jsonl"
    path.write_text(f'{line}\n{{"key": "x", "score": 0.25}}\n')
    assert AnswerCache(path, "score", is_probability).answers == {"x": 0.25}


def test_a_line_counts_when_it_is_complete(tmp_path):
    path = tmp_path / "deep" / "cache.jsonl"
    cache = AnswerCache(path, "score", is_probability)
    with open(path, "ab") as file:
        file.write(b'{"key": "x", "sco')
    cache.refresh()
    assert cache.answers == {}
    with open(path, "ab") as file:
        file.write(b're": 0.25}\n')
    cache.refresh()
    assert cache.answers == {"x": 0.25}


def test_scores_of_another_process_are_read(server, tmp_path):
    first, second = scorer(server, tmp_path), scorer(server, tmp_path)
    server.scores["a"] = 0.9
    assert scores(first, "a") == scores(second, "a") == [0.9]
    assert len(server.requests) == 1


def test_an_error_ends_the_batch_and_keeps_what_was_received(server, tmp_path):
    server.answers = [(200, {}, scored(0.3)), refused(400, "no")]
    with pytest.raises(UserError):
        scores(scorer(server, tmp_path), "a", "b", "c", "d")
    assert list(
        AnswerCache(tmp_path / "cache.jsonl", "score", is_probability).answers.values()
    ) == [0.3]
    assert server.texts == ["a", "b"]


def test_several_queries_wait_at_the_same_time(server, tmp_path):
    texts = [f"text {number}" for number in range(40)]
    server.scores |= {text: number / 100 for number, text in enumerate(texts)}
    expected = [number / 100 for number in range(40)]
    assert scores(scorer(server, tmp_path, parallel=8), *texts) == expected
    assert sorted(server.texts) == sorted(texts)
    lines = (tmp_path / "cache.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["score"] for line in lines) == expected


WRITER = """
import sys
from fgrlhf.scorers.answer_cache import AnswerCache
cache = AnswerCache(sys.argv[1], "score", lambda score: True)
for number in range(300):
    cache.add(f"{sys.argv[2]}-{number}", number / 1000)
"""


def test_two_processes_write_the_same_file(tmp_path):
    path = tmp_path / "cache.jsonl"
    command = [sys.executable, "-c", WRITER, str(path)]
    writers = [subprocess.Popen([*command, name], cwd=ROOT) for name in ("a", "b")]
    assert [writer.wait() for writer in writers] == [0, 0]
    expected = {f"{name}-{n}": n / 1000 for name in ("a", "b") for n in range(300)}
    assert AnswerCache(path, "score", is_probability).answers == expected
    assert len(path.read_text().splitlines()) == 600


# ---- time ----------------------------------------------------------------------------------------


def test_the_rate_limit_by_hand():
    time = Time()
    limit = RateLimit(2.0, time.clock, time.sleep)
    starts = []
    for _ in range(3):
        limit.wait()
        starts.append(time.now)
    time.now = 10.0  # later than the next start: no waiting, and nothing to catch up on
    limit.wait()
    starts.append(time.now)
    limit.wait()
    starts.append(time.now)
    limit.pause(4.0)
    limit.wait()
    starts.append(time.now)
    assert starts == [0.0, 0.5, 1.0, 10.0, 10.5, 14.5]


def test_queries_of_a_batch_keep_the_rate(server, tmp_path):
    time = Time()
    scores(scorer(server, tmp_path, time, queries_per_second=4), "a", "b", "c")
    assert time.slept == pytest.approx([0.25, 0.25])


@pytest.mark.parametrize(
    "failure, wait",
    [
        (refused(503, "busy"), 1.0),
        (refused(500, "oh"), 1.0),
        ((429, {"Retry-After": "7"}, b"quota"), 7.0),
        ((429, {"Retry-After": "0"}, b"quota"), 1.0),
        (None, 1.0),  # the connection ended
    ],
)
def test_a_query_that_fails_is_repeated(server, tmp_path, failure, wait):
    time = Time()
    server.answers = [failure]
    server.scores["a"] = 0.9
    assert scores(scorer(server, tmp_path, time), "a") == [0.9]
    assert server.texts == ["a", "a"]
    assert time.slept == pytest.approx([wait], abs=1e-3)


def test_the_waits_grow_and_then_it_is_an_error(server, tmp_path):
    time = Time()
    server.answers = [refused(503, "busy")] * 10
    message = r"no score in 8 attempts: 503 busy.*cache\.jsonl.*run the same command again"
    with pytest.raises(UserError, match=message):
        scores(scorer(server, tmp_path, time), "a")
    assert len(server.requests) == 8
    assert time.slept == pytest.approx([1, 2, 4, 8, 16, 32, 60], abs=1e-3)


def test_a_wait_that_is_too_long_is_an_error(server, tmp_path):
    time = Time()
    server.answers = [(429, {"Retry-After": "86400"}, b"tomorrow")]
    with pytest.raises(UserError, match=r"1 attempt: 429 tomorrow, and asks to wait 86400 seconds"):
        scores(scorer(server, tmp_path, time), "a")
    assert time.slept == []


def test_no_server_is_an_error(server, tmp_path):
    built = scorer(server, tmp_path, attempts=2, url="http://127.0.0.1:9/none")
    with pytest.raises(UserError, match="gave no score in 2 attempts: .*Check the network"):
        scores(built, "a")


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


# ---- refusals and wrong answers ------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer, message",
    [
        (
            refused(
                400,
                "Attribute INSULT does not support request languages: en",
                errorType="LANGUAGE_NOT_SUPPORTED_BY_ATTRIBUTE",
            ),
            r"400 Attribute INSULT .*\(LANGUAGE_NOT_SUPPORTED_BY_ATTRIBUTE\)\. Check attribute:"
            r" INSULT and language: en",
        ),
        (
            refused(400, "API key not valid.", reason="API_KEY_INVALID"),
            r"\(API_KEY_INVALID\)\. Check PERSPECTIVE_API_KEY",
        ),
        (
            refused(403, "It has not been used in project 1 or it is disabled."),
            "403 It has not been used.*Check PERSPECTIVE_API_KEY, and that its project has enabled",
        ),
        ((404, {}, b"<html>gone</html>"), "404 <html>gone</html>.*end of the service after 2026"),
        ((410, {}, b""), "410.*end of the service after 2026"),
        ((302, {"Location": "/elsewhere"}, b""), "302.*Check `url`"),
    ],
)
def test_a_refusal_is_an_error_at_once(server, tmp_path, answer, message):
    server.answers = [answer]
    time = Time()
    with pytest.raises(UserError, match=message) as error:
        scores(scorer(server, tmp_path, time), "You fool")
    assert "'You fool'" in str(error.value)
    assert len(server.requests) == 1 and time.slept == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>sign in</html>",
        b"[]",
        b"\xff\xfe",
        {},
        {"attributeScores": {}},
        {"attributeScores": {"THREAT": {"summaryScore": {"value": 0.5}}}},
        scored(None),
        scored("0.5"),
        scored(True),
        scored(1.5),
        scored(-0.1),
        b'{"attributeScores": {"INSULT": {"summaryScore": {"value": NaN}}}}',
    ],
)
def test_an_answer_without_a_score_is_an_error(server, tmp_path, body):
    server.answers = [(200, {}, body)]
    with pytest.raises(UserError, match="without a score of INSULT from 0 to 1"):
        scores(scorer(server, tmp_path), "a")
    assert AnswerCache(tmp_path / "cache.jsonl", "score", is_probability).answers == {}


def test_scores_at_the_ends_of_the_range():
    for value in (0, 1, 0.25):
        assert score_in(json.dumps(scored(value)).encode(), "INSULT") == value


@pytest.mark.parametrize(
    "body, expected",
    [
        (b'{"error": {"message": "m"}}', ("m", "")),
        (b'{"error": {"message": "m", "details": [{"errorType": "A"}, {}]}}', ("m", "A")),
        (b'{"error": {"message": "m", "details": ["text"]}}', None),
        (b'{"error": "m"}', None),
        (b"plain", ("plain", "")),
    ],
)
def test_messages_of_refusals(body, expected):
    assert message_of(body) == (expected or (body.decode(), ""))


# ---- the API key ---------------------------------------------------------------------------------


def test_no_key_is_an_error_before_anything_is_asked(server, tmp_path, monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, " ")
    with pytest.raises(UserError, match=r"set the environment variable PERSPECTIVE_API_KEY"):
        scorer(server, tmp_path)
    (tmp_path / "cache.jsonl").write_text('{"key": "x", "score": 0.25}\n')
    built = scorer(server, tmp_path)  # its texts may all be known
    with pytest.raises(UserError, match=r"Only texts with a score in .*cache\.jsonl need none"):
        scores(built, "a")
    assert server.requests == []


@pytest.mark.parametrize("value", ["two words", "line\nbreak", "ключ"])
def test_what_cannot_be_a_key_is_an_error_that_does_not_show_it(
    server, tmp_path, monkeypatch, value
):
    monkeypatch.setenv(KEY_VARIABLE, value)
    with pytest.raises(UserError, match="is not an API key") as error:
        scorer(server, tmp_path)
    assert value not in str(error.value)


def test_the_key_is_nowhere(server, tmp_path, capfd):
    """Not in the cache, in output, in objects, or in messages, even if the service repeats it."""
    echoes = [
        refused(403, f"key {SECRET} is wrong"),
        (200, {}, SECRET.encode()),
        *[refused(503, f"busy, {SECRET}")] * 2,
        (200, {}, scored(0.5)),
    ]
    server.answers = echoes
    built = scorer(server, tmp_path, attempts=2)
    messages: list[str] = []
    tracebacks: list[str] = []
    for _ in range(3):
        with pytest.raises(UserError) as error:
            scores(built, "a")
        messages.append(str(error.value))
        tracebacks += traceback.format_exception(error.value)
    scores(built, "a")
    assert set(server.keys) == {SECRET}
    assert ["***" in message for message in messages] == [True] * 3
    written = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    shown = [*written, *messages, *capfd.readouterr(), repr(vars(built)), str(built.config)]
    # a traceback quotes this file, but not the value of SECRET
    shown += [line for line in tracebacks if "SECRET =" not in line]
    assert not any(SECRET in text for text in shown)


# ---- configs -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"attribute": None}, "scorer.attribute: missing"),
        ({"cache": None}, "scorer.cache: missing"),
        ({"empty": None}, "scorer.empty: missing"),
        ({"empty": 2}, "scorer.empty"),
        ({"attribute": "insult"}, "scorer.attribute"),
        ({"language": "English"}, "scorer.language"),
        ({"queries_per_second": 0}, "scorer.queries_per_second"),
        ({"key": "secret"}, "scorer.key: unknown key"),
        ({"url": "http://example.org"}, "must begin with https://"),
        ({"url": "example.org"}, "is not a web address"),
        ({"url": "https://exa mple.org"}, "is not a web address"),
    ],
)
def test_mistakes_in_a_config_are_named(changes, message):
    section = {"kind": "perspective", "attribute": "INSULT", "cache": "c.jsonl", "empty": 0.0}
    section |= changes
    section = {name: value for name, value in section.items() if value is not None}
    tree = {
        "model": {"policy_model": {"ckpt": "p"}, "value_model": {"ckpt": "p"}},
        "logging": {"save_dir": "out"},
        "reward": {"a": {"kind": "increment", "better": "low", "scorer": section}},
    }
    with pytest.raises(UserError) as error:
        validate(rl_config(Task(name="any")), tree, "file")
    assert message in str(error.value)


def test_the_metric_has_the_same_scorer(server, tmp_path):
    from fgrlhf.metrics.config import MetricConfig
    from fgrlhf.metrics.registry import build_metric

    server.scores["You fool"] = 0.7
    section = kind(server, tmp_path).model_dump()
    metric = build_metric(MetricConfig(name="score", scorer=section, threshold=0.5))
    (row,) = metric.columns([PROMPT], ["You fool"])
    assert row == {"score": 0.7, "score/max": 0.7, "score/any": 1.0}
