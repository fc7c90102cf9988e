"""Judges against a local server with the interface of OpenAI. Time is simulated: no test waits."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from pydantic import ValidationError

from fgrlhf.base.errors import UserError
from fgrlhf.reward_models.prefix import text_prefix
from fgrlhf.reward_utils import Level
from fgrlhf.rewards.kinds import Score
from fgrlhf.rewards.scored import ScorerReward
from fgrlhf.scorers.base import RewardContext
from fgrlhf.scorers.judge import Judge
from fgrlhf.scorers.kinds import JudgeScorer
from fgrlhf.text_types import Prompt, SegmentScore

CONTEXT = RewardContext(text_prefix)
TOKEN = "judge-token-0123456789"
PROMPT = Prompt("0", "Say hello.")
TWO = "Hello there. Go away!"


class Server(ThreadingHTTPServer):
    """Answers with `contents` in order, then with 5 for each score that is asked for."""

    def __init__(self):
        self.contents: list = []
        self.requests: list[dict] = []
        self.tokens: list[str | None] = []
        self.paths: list[str] = []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        server = self.server
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server.requests.append(request)
        server.tokens.append(self.headers.get("Authorization"))
        server.paths.append(self.path)
        given = json.loads(request["messages"][1]["content"])
        content = json.dumps({"scores": [5] * len(given.get("segments", [0]))})
        if server.contents:
            content = server.contents.pop(0)
        code, body = content if isinstance(content, tuple) else (200, completion(content))
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def completion(content, **more) -> bytes:
    choice = {"message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
    return json.dumps({"choices": [choice | more]}).encode()


@pytest.fixture
def server():
    with Server() as server:
        serving = {"poll_interval": 0.02}
        threading.Thread(target=server.serve_forever, kwargs=serving, daemon=True).start()
        yield server
        server.shutdown()


def settings(server: Server, **changes) -> dict:
    given = {"url": server.url, "model": "m", "criterion": "how polite it is", "retries": 2}
    return given | {"timeout_s": 3600.0} | changes


def reward(
    server: Server,
    slept: list[float] | None = None,
    level: Level = "whole",
    scale: float = 1.0,
    threshold: float = 0.0,
    **changes,
) -> ScorerReward:
    pause = [].append if slept is None else slept.append
    judge = Judge(JudgeScorer(**settings(server, **changes)), pause)
    return ScorerReward(judge, level, "segment", scale, threshold)


def test_a_query_by_hand(server):
    server.contents = ['{"score": 8.5}']
    built = reward(server, scale=0.5, threshold=5.0, max_tokens=64)
    assert built.segment_scores([PROMPT], [TWO]) == [[SegmentScore(0, None, 1.75, "8.5")]]
    (request,) = server.requests
    system, user = request.pop("messages")
    assert request == {"model": "m", "temperature": 0, "max_tokens": 64, "stream": False}
    assert "how polite it is" in system["content"] and "from 0 to 10" in system["content"]
    assert json.loads(user["content"]) == {"prompt": "Say hello.", "response": TWO}
    assert server.paths == ["/v1/chat/completions"] and server.tokens == [None]


def test_a_score_for_each_segment(server):
    server.contents = ['{"scores": [9, 1]}']
    scores = reward(server, level="sentence").segment_scores([PROMPT], [TWO])
    assert scores == [[SegmentScore(0, 12, 9.0, "9"), SegmentScore(13, 21, 1.0, "1")]]
    (request,) = server.requests
    assert "exactly 2 scores" in request["messages"][0]["content"]
    given = json.loads(request["messages"][1]["content"])
    assert given["segments"] == ["Hello there.", "Go away!"]


def test_blank_responses_are_not_sent_and_equal_ones_once(server):
    texts = ["", "a", " \n", "b", "a"]
    scores = reward(server).segment_scores([PROMPT] * 5, texts)
    assert [len(spans) for spans in scores] == [0, 1, 0, 1, 1]
    assert len(server.requests) == 2


def test_the_token_is_sent_and_never_shown(server, tmp_path):
    (tmp_path / "token").write_text(TOKEN)
    built = reward(server, token_from=f"file:{tmp_path / 'token'}")
    built.segment_scores([PROMPT], ["a"])
    assert server.tokens == [f"Bearer {TOKEN}"]
    server.contents = [(401, json.dumps({"error": {"message": f"bad {TOKEN}"}}).encode())]
    message = r"refuses the query: 401 bad \*\*\*. Check the address"
    with pytest.raises(UserError, match=message) as error:
        built.segment_scores([PROMPT], ["b"])
    assert TOKEN not in str(error.value)


def test_a_missing_token_is_found_at_the_start(server, monkeypatch):
    monkeypatch.delenv("MY_TOKEN", raising=False)
    with pytest.raises(UserError, match="MY_TOKEN is not set"):
        reward(server, token_from="MY_TOKEN")


BAD = [
    ("5", "not an object with `score`"),
    ("A good response: 7", "answer is not JSON"),
    ('```json\n{"score": 7}\n```', "answer is not JSON"),
    (None, "answer is not JSON"),
    ('{"score": 7, "why": "polite"}', "not an object with `score`"),
    ('{"score": "7"}', "not a list of numbers"),
    ('{"score": NaN}', "answer is not JSON"),
    ('{"score": true}', "not a list of numbers"),
    ('{"score": 1, "score": 9}', "answer is not JSON"),
    ('{"score": 11}', "score 11 is not from 0 to 10"),
    ('{"score": -0.1}', "score -0.1 is not from 0 to 10"),
    ('{"scores": [1, 2]}', "gave 2 scores where 1 are needed"),
    ((200, b"{}"), "not a chat completion: {}"),
    ((200, completion("{", finish_reason="length")), "was cut at max_tokens: 512"),
    ((500, b'{"error": {"message": "overloaded"}}'), "500 overloaded"),
]


@pytest.mark.parametrize("content, message", BAD)
def test_answers_without_a_score(server, content, message):
    slept: list[float] = []
    server.contents = [content]  # once: the next attempt is good
    assert reward(server, slept).segment_scores([PROMPT], ["a"])[0][0].value == 5.0
    assert slept == [1]
    server.contents = [content] * 3
    with pytest.raises(UserError, match=f"gave no answer in 3 attempts: .*{message}.*was recorded"):
        reward(server).segment_scores([PROMPT], ["a"])


def test_answers_are_kept(server, tmp_path):
    cache = str(tmp_path / "cache.jsonl")
    server.contents = ['{"score": 8}']
    first = reward(server, cache=cache).segment_scores([PROMPT], ["a"])
    assert reward(server, cache=cache).segment_scores([PROMPT], ["a"]) == first
    assert len(server.requests) == 1
    for change in ({"criterion": "how short it is"}, {"model": "n"}, {"level": "sentence"}):
        reward(server, cache=cache, **change).segment_scores([PROMPT], ["a"])
    reward(server, cache=cache, score_range=[0.5, 7.0]).segment_scores([PROMPT], ["a"])
    assert len(server.requests) == 5


def test_many_queries_wait_together(server):
    texts = [f"text {number}" for number in range(20)]
    scores = reward(server, parallel=8).segment_scores([PROMPT] * 20, texts)
    assert [spans[0].value for spans in scores] == [5.0] * 20
    assert len(server.requests) == 20


def test_the_scorer(server):
    server.contents = ['{"score": 2}', '{"score": 3}']
    judge = JudgeScorer(**settings(server, parallel=1)).build(CONTEXT)
    assert judge.score([PROMPT] * 2, ["", TWO]) == [2.0, 3.0]


class Grade(Judge):
    """Asks for a school grade, and reads it in words."""

    def messages(self, prompt, text, segments):
        asked = json.dumps({"segments": list(segments) or [text]})
        return [{"role": "system", "content": "Grade."}, {"role": "user", "content": asked}]

    def read(self, content):
        return [float(word) for word in content.removeprefix("grades:").split()]


def test_a_judge_of_your_own_has_two_hooks(server, tmp_path):
    own = {"of": "test_judge.Grade", "score_range": [1, 6], "cache": str(tmp_path / "cache.jsonl")}
    scorer = {"kind": "judge", **settings(server, **own)}
    server.contents = ["grades: 1 5.5", "bad", "2"]
    built = Score(scorer=scorer, level="sentence", scale=-1.0).build(CONTEXT)
    assert built.remote and isinstance(built.scorer, Grade)
    built.scorer.service._pause = lambda seconds: None
    (scores,) = built.segment_scores([PROMPT], [TWO])
    assert [(score.end, score.value) for score in scores] == [(12, -1.0), (21, -5.5)]
    assert server.requests[0]["messages"][0]["content"] == "Grade."
    (scores,) = built.segment_scores([PROMPT], ["Bye."])  # after an answer without a grade
    assert scores[0].value == -2.0 and len(server.requests) == 3
    # the judge of the library may read another score in the same answer, so the keys differ
    assert built.scorer._key({}) != Judge(JudgeScorer(**settings(server)))._key({})


def test_a_class_that_is_no_judge_is_refused(server):
    scorer = {"kind": "judge", **settings(server, of="fgrlhf.text_types.Prompt")}
    with pytest.raises(UserError, match="does not accept these `args`"):
        Score(scorer=scorer).build(CONTEXT)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"level": "token"}, "cannot judge the policy's tokens"),
        ({"score_range": [3.0, 3.0]}, "3, the highest score, is not above 3"),
        ({"url": "http://a.example/v1"}, "in the clear"),
        ({"criterion": ""}, "criterion"),
        ({"scale": 0.0}, "scale"),
    ],
)
def test_settings_that_are_refused(server, changes, message):
    changes = dict(changes)
    reward = {key: changes.pop(key) for key in ("level", "scale") if key in changes}
    with pytest.raises(ValidationError, match=message):
        Score(scorer={"kind": "judge", **settings(server, **changes)}, **reward)
