"""The application of reward servers: tokens, limits, repeated requests, the hash of a model."""

import json
import math
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from reward_service import TOKEN, RewardServer, save_model, segment_config
from safetensors.torch import load_file, save_file

from fgrlhf.base.background import Background
from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, write_json
from fgrlhf.configs.strict import validate
from fgrlhf.reward_models.prefix import text_prefix
from fgrlhf.rewards.kinds import Length, MissingEos, Score, SegmentClassifier
from fgrlhf.rewards.protocol import request_of
from fgrlhf.rewards.server import Limits, ServedReward, model_sha256
from fgrlhf.scorers.kinds import SegmentModelScorer
from fgrlhf.text_types import Prompt, SegmentScore

BREVITY = Length(value=-1.0, max_words=1)
PROMPT = Prompt("0", "ask")


def call(server: RewardServer, path: str, body: bytes | None = None, token: str | None = TOKEN):
    """Status and JSON of an answer."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(server.url + path, body, headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=600) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def body_of(server: RewardServer, *texts: str) -> bytes:
    return json.dumps(request_of(server.digest, text_prefix, [PROMPT] * len(texts), texts)).encode()


@pytest.fixture
def server():
    with RewardServer(BREVITY) as server:
        yield server


# ---- routes --------------------------------------------------------------------------------------


def test_the_answers_by_hand(server):
    assert call(server, "/v1/model") == (
        200,
        {
            "protocol": 1,
            "model_sha256": server.digest,
            "reward": "length",
            "max_batch": 64,
            "max_body_bytes": 1 << 20,
        },
    )
    code, answer = call(server, "/v1/scores", body_of(server, "one two", "one"))
    assert code == 200
    assert answer["scores"] == [[{"start": 4, "end": 7, "value": -1.0, "label": "too long"}], []]
    assert answer["model_sha256"] == server.digest and answer["protocol"] == 1
    assert answer["request_id"] == json.loads(body_of(server, "one two", "one"))["request_id"]


@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN + "x", TOKEN[:-1], "é"])
def test_every_route_needs_the_token(server, token):
    for path, body in (("/v1/model", None), ("/v1/scores", body_of(server, "a"))):
        code, answer = call(server, path, body, token)
        assert code == 401 and TOKEN not in json.dumps(answer)


def test_there_are_no_other_routes(server):
    for path in ("/", "/docs", "/openapi.json", "/v1/scores", "/v1/model/"):
        code, answer = call(server, path)
        assert code in (404, 405) and "the routes are" in answer["error"]


@pytest.mark.parametrize(
    "change, code, reason",
    [
        (lambda body: b"{", 400, "not valid JSON"),
        (lambda body: body.replace(b'"items"', b'"item"'), 400, "items: missing"),
        (lambda body: body.replace(b'"protocol": 1', b'"protocol": 2'), 400, "protocol"),
    ],
)
def test_malformed_requests(server, change, code, reason):
    answer = call(server, "/v1/scores", change(body_of(server, "a")))
    assert answer[0] == code and reason in answer[1]["error"]


def test_a_request_for_another_model_is_not_scored(server):
    body = json.dumps(request_of("e" * 64, text_prefix, [PROMPT], ["a"])).encode()
    assert call(server, "/v1/scores", body) == (
        409,
        {"error": "another model is served", "model_sha256": server.digest},
    )


def test_limits():
    with RewardServer(BREVITY, Limits(max_batch=2, max_body=2000)) as server:
        code, answer = call(server, "/v1/scores", body_of(server, "a", "b", "c"))
        assert (code, answer["error"]) == (413, "3 responses, but max_batch is 2")
        code, answer = call(server, "/v1/scores", b" " * 2001)
        assert (code, answer["error"]) == (413, "the body has more than 2,000 bytes (max_body_mb)")
        assert call(server, "/v1/scores", body_of(server, "a", "b"))[0] == 200


# ---- rewards that fail, and requests that are repeated -------------------------------------------


class Scripted:
    """Returns or raises what the test sets; counts calls."""

    def __init__(self, result=None):
        self.result = result
        self.calls = 0

    def segment_scores(self, prompts, texts):
        self.calls += 1
        if isinstance(self.result, Exception):
            raise self.result
        return [self.result for _ in texts]


@pytest.mark.parametrize(
    "result, code, reason",
    [
        ([SegmentScore(0, 1, math.nan)], 422, "`[0].value`: must be a finite number, it is nan"),
        ([SegmentScore(0, 9, 1.0)], 422, "span ends after the response"),
        (7, 422, "a list of SegmentScore is needed"),
        (UserError("no model today"), 422, "no model today"),
        (KeyError("meta"), 500, "failed: KeyError: 'meta'"),
    ],
)
def test_a_reward_that_fails_is_no_reward(result, code, reason, capfd):
    with RewardServer(BREVITY, reward=Scripted(result)) as server:
        answer = call(server, "/v1/scores", body_of(server, "abc"))
        assert answer[0] == code and reason in answer[1]["error"]
        server.served.reward.result = [SegmentScore(0, 1, 1.0)]  # the failure is not kept
        assert call(server, "/v1/scores", body_of(server, "abc"))[0] == 200
    printed = "".join(capfd.readouterr())
    assert ("Traceback" in printed) == (code == 500) and TOKEN not in printed


def test_a_repeated_request_is_scored_once():
    reward = Scripted([])
    with RewardServer(BREVITY, reward=reward) as server:
        for _ in range(3):
            call(server, "/v1/scores", body_of(server, "a"))
        assert reward.calls == 1
        call(server, "/v1/scores", body_of(server, "b"))
        assert reward.calls == 2


def test_a_request_that_is_repeated_while_it_is_scored_waits_for_the_answer():
    begun = threading.Event()
    go_on = threading.Event()

    class Slow(Scripted):
        def segment_scores(self, prompts, texts):
            begun.set()
            assert go_on.wait(600)
            return super().segment_scores(prompts, texts)

    reward = Slow([])
    with RewardServer(BREVITY, reward=reward) as server:
        body = body_of(server, "a")
        first = Background(lambda: call(server, "/v1/scores", body))
        assert begun.wait(600)
        second = Background(lambda: call(server, "/v1/scores", body))
        go_on.set()
        assert first.result() == second.result()
    assert reward.calls == 1


def test_a_reward_of_tokens_is_not_served():
    built = MissingEos(value=-1.0).build(None)
    with pytest.raises(UserError, match="`missing_eos` reads the policy's tokens"):
        ServedReward(built, "missing_eos", "a" * 64, Limits(1, 1))


# ---- the hash ------------------------------------------------------------------------------------


def test_the_hash_of_a_model(tmp_path):
    config = segment_config(tmp_path)
    digest = model_sha256(config, "fp32")
    moved = tmp_path / "moved"
    Path(config.ckpt).rename(moved)
    same = config.model_copy(update={"ckpt": str(moved), "weight": 2.0, "place": "end"})
    assert model_sha256(same, "fp32") == digest  # the place of the folder does not count
    other_settings = same.model_copy(update={"values": {"error": -0.5, "ok": 0.4}})
    digests = {digest, model_sha256(same, "bf16"), model_sha256(other_settings, "fp32")}
    spec = read_json(moved / "reward_model.json")
    write_json(moved / "reward_model.json", spec | {"max_length": 64})
    digests.add(model_sha256(same, "fp32"))
    tensors = load_file(str(moved / "model.safetensors"))
    tensors["head.weight"][0, 0] += 1e-3
    save_file(tensors, str(moved / "model.safetensors"), {"format": "pt"})
    digests.add(model_sha256(same, "fp32"))
    assert len(digests) == 5


def test_the_model_of_a_scorer_counts(tmp_path):
    digests = set()
    for seed in (1, 2):
        scorer = SegmentModelScorer(ckpt=save_model(tmp_path, "segment", seed))
        digests.add(model_sha256(Score(scorer=scorer), "fp32"))
    assert len(digests) == 2


def test_settings_that_change_no_value_are_not_in_the_hash():
    def digest(**settings):
        scorer = {"kind": "judge", "url": "https://a.org/v1", "model": "m", "criterion": "c"}
        section = {"kind": "score", "scorer": {**scorer, **settings}}
        return model_sha256(validate(Score, section, "test"), "fp32")

    assert digest() == digest(cache="b", timeout_s=5.0, parallel=2)
    assert len({digest(), digest(model="n"), digest(score_range=[0.0, 5.0])}) == 3


def test_a_model_of_the_hub_must_be_downloaded():
    config = SegmentClassifier(ckpt="some/model", values={"ok": 1.0})
    with pytest.raises(UserError, match="some/model is not a folder.*hf download"):
        model_sha256(config, "fp32")
