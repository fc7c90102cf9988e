"""Training with rewards of a server equals training with the same rewards in the process.

A server that fails is survived with equal results, or stops the run with the fault's name.
"""

import json
import math
from pathlib import Path

import pytest
import torch
from reward_service import (
    CONTEXT,
    TOKEN,
    VARIABLE,
    RewardServer,
    altered,
    answer,
    client,
    cut,
    hold,
    http_config,
    segment_config,
    sequence_config,
    status,
)
from rl_helpers import config, metrics, trainer

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_text
from fgrlhf.base.secrets import mask_tree
from fgrlhf.configs.strict import to_yaml, validate
from fgrlhf.reward import AtEnd, CombinedReward
from fgrlhf.rewards.kinds import Repetition
from fgrlhf.runs.stage import digest, stored_result
from fgrlhf.task import Task
from fgrlhf.task_config import rl_config
from fgrlhf.text_types import Prompt, SegmentScore

TEXTS = ["the red cat sees", "", "a dog likes one green bird and"]
ASKED = [Prompt("0", "the red cat"), Prompt("1", "a dog"), Prompt("1", "a dog")]


@pytest.fixture(autouse=True)
def token(monkeypatch):
    monkeypatch.setenv(VARIABLE, TOKEN)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def configs(folder):
    return segment_config(folder), sequence_config(folder)


@pytest.fixture
def server(configs):
    with RewardServer(configs[0]) as server:
        yield server


@pytest.fixture(scope="module")
def expected(configs):
    """The scores of `TEXTS` by the model in this process."""
    scores = configs[0].build(CONTEXT).segment_scores(ASKED, TEXTS)
    assert len(scores[0]) == 4 and scores[1] == [] and len(scores[2]) == 7
    return scores


# ---- equal results -------------------------------------------------------------------------------


def run(folder: Path, facts, quality, name: str, until: int | None = None) -> dict:
    """Train for four steps; returns all that must be equal."""
    cfg = config(
        folder,
        algorithm__name=name,
        train__total_episodes=32,
        train__save_every_steps=1,
        logging__n_samples=8,
    )
    reward = CombinedReward({"facts": facts, "quality": quality}, {"facts": 1.0, "quality": 0.7})
    running = trainer(cfg, reward=reward)
    running.train(until)
    rows = []
    for row in metrics(folder):
        rows.append({key: value for key, value in row.items() if not key.startswith("cut/")})
    samples = [path.read_text() for path in sorted((folder / "samples").iterdir())]
    return {"rows": rows, "samples": samples, "weights": running.actor_critic.state_dict()}


def assert_equal(one: dict, other: dict) -> None:
    assert len(one["rows"]) == 4
    assert len({row["reward/facts"] for row in one["rows"]}) > 1  # the models do give rewards
    assert len({row["reward/quality"] for row in one["rows"]}) > 1
    assert one["rows"] == other["rows"]
    assert one["samples"] == other["samples"]
    assert one["weights"].keys() == other["weights"].keys()
    for name, tensor in one["weights"].items():
        assert torch.equal(tensor, other["weights"][name]), name


@pytest.fixture(scope="module")
def in_process(configs, tmp_path_factory):
    """Name of an algorithm -> a run with the models in this process."""
    runs = {}

    def get(name: str) -> dict:
        if name not in runs:
            facts, quality = (config.build(CONTEXT) for config in configs)
            runs[name] = run(tmp_path_factory.mktemp(name), facts, AtEnd(quality), name)
        return runs[name]

    return get


@pytest.mark.parametrize("name", ["ppo", "grpo"])
def test_a_run_equals_the_run_in_one_process(name, configs, in_process, tmp_path):
    with RewardServer(configs[0]) as first, RewardServer(configs[1]) as second:
        served = run(tmp_path, client(first), AtEnd(client(second)), name)
        assert (first.requests, second.requests) == (4, 4)
    assert_equal(served, in_process(name))


def test_spans_that_overlap_or_are_in_another_order_are_served():
    """Words 3 to 5 of the text are two repeated pairs, which share the fourth."""
    text = "a b a b a"
    repetition = Repetition(n=2, value=-1.0)
    in_process = repetition.build(CONTEXT).segment_scores(ASKED[:1], [text])
    assert in_process == [
        [SegmentScore(4, 7, -1.0, "repeated"), SegmentScore(6, 9, -1.0, "repeated")]
    ]
    with RewardServer(repetition) as served:
        assert client(served).segment_scores(ASKED[:1], [text]) == in_process

    class Backwards:
        def segment_scores(self, prompts, texts):
            return [in_process[0][::-1] for _ in texts]

    with RewardServer(repetition, reward=Backwards()) as served:
        assert client(served).segment_scores(ASKED[:1], [text]) == [in_process[0][::-1]]


def test_a_run_survives_faults_that_pass(configs, in_process, tmp_path):
    with RewardServer(configs[0]) as first, RewardServer(configs[1]) as second:
        first.faults = [hold, status(500), cut, answer, *[status(503)] * 3]
        second.faults = [status(429), cut, hold]
        slept: list[float] = []
        served = run(tmp_path, client(first, slept), AtEnd(client(second)), "ppo")
        assert (first.requests, second.requests) == (4 + 6, 4 + 3)
        assert slept == [1, 2, 4, 1, 2, 4]  # four attempts for each of two requests
    assert_equal(served, in_process("ppo"))


def test_a_run_stops_at_a_fault_and_continues_exactly(configs, in_process, tmp_path):
    with RewardServer(configs[0]) as first, RewardServer(configs[1]) as second:
        facts, quality = client(first), AtEnd(client(second))
        first.faults = [altered(lambda tree: None), altered(nan)]
        with pytest.raises(UserError, match="NaN is not a JSON number"):
            run(tmp_path, facts, quality, "ppo")
        assert [row["step"] for row in metrics(tmp_path)] == [0]
        left = {path.name for path in tmp_path.rglob("*")}
        assert not [name for name in left if "tmp" in name or name == ".lock"]
        served = run(tmp_path, facts, quality, "ppo")
    assert_equal(served, in_process("ppo"))


def test_the_scores_are_those_of_the_model(server, expected):
    assert client(server).segment_scores(ASKED, TEXTS) == expected
    assert client(server).segment_scores([], []) == []


def test_batches_are_requests(server, expected):
    assert client(server, batch_size=2).segment_scores(ASKED, TEXTS) == expected
    assert server.requests == 2


# ---- faults --------------------------------------------------------------------------------------


def nan(tree):
    tree["scores"][0][0]["value"] = math.nan


def infinite(tree):
    tree["scores"][0][0]["value"] = 10**400


def set_field(**changes):
    return altered(lambda tree: {**tree, **changes})


def set_span(**changes):
    def change(tree):
        tree["scores"][0][0].update(changes)

    return altered(change)


@pytest.mark.parametrize(
    "fault, message",
    [
        (altered(nan), "not valid JSON .NaN is not a JSON number"),
        (altered(infinite), r"response 0: `\[0\]\.value`: must be a finite number"),
        (set_span(value=True), r"`\[0\]\.value`: must be a number, it is true or false"),
        (set_span(end=99), r"response 0: the span \[0, 99\) is not within.*has 16 characters"),
        (set_span(start=3, end=0), r"the span \[3, 0\) is not within"),
        (set_span(more=1), r"`\[0\]\.more`: unknown key"),
        (altered(lambda tree: tree["scores"].pop() and None), "2 results for 3 responses"),
        (set_field(scores={}), "`scores` that are {}, not a list"),
        (set_field(request_id="0" * 64), "scores of another request, 000"),
        (set_field(protocol=2), "protocol 2, but this release has 1"),
        (status(200, b'{"protocol": 1, "protocol": 1}'), "text that is not valid JSON"),
        (set_field(model_sha256="f" * 64), "has the model 'f{64}', but the run is pinned to"),
        (status(200, b"\xff"), "text that is not valid JSON"),
        (status(403), f"refuses the token in the environment variable {VARIABLE}: 403"),
        (status(404, b"<html>no"), "refuses the query: 404 an HTML page. Check `url`"),
        (status(413), "413.*Lower batch_size"),
        (status(422), "422 out of order. Its reward cannot score"),
    ],
)
def test_a_wrong_answer_stops_the_run_at_once(server, fault, message):
    server.faults = [fault]
    slept: list[float] = []
    with pytest.raises(UserError, match=message):
        client(server, slept).segment_scores(ASKED, TEXTS)
    assert (server.requests, slept) == (1, [])


def test_an_answer_that_is_too_long_is_not_read(server, monkeypatch):
    monkeypatch.setattr("fgrlhf.scorers.service.LARGEST_ANSWER", 1000)
    server.faults = [status(200, b" " * 1001)]
    with pytest.raises(UserError, match="the answer has more than 1,000 bytes"):
        client(server).segment_scores(ASKED, TEXTS)


def test_no_server_is_an_error(configs):
    with RewardServer(configs[0]) as server:
        settings = http_config(server)
    with pytest.raises(UserError, match="no answer in 4 attempts: .*refused.*Check that it runs"):
        client(server, **settings.model_dump(include={"url"}))


# ---- the pinned model ----------------------------------------------------------------------------


def test_another_model_is_refused_at_the_start(server):
    other = "e" * 64
    with pytest.raises(UserError, match=f"has the model '{server.digest}'.*model_sha256: {other}"):
        client(server, model_sha256=other)


def test_a_server_that_changes_its_model_stops_the_run(server):
    built = client(server)
    pinned = server.digest
    server.served.digest = "e" * 64
    with pytest.raises(UserError, match=f"has the model '{'e' * 64}'.*model_sha256: {pinned}"):
        built.segment_scores(ASKED, TEXTS)


def test_the_hash_is_an_input_of_the_stage(server):
    (recorded,) = http_config(server).model_folders()
    assert recorded == f"sha256:{server.digest}"
    assert digest(recorded) == f"name:{recorded}"


# ---- the token -----------------------------------------------------------------------------------


def test_a_wrong_token_is_named_by_its_place(server, tmp_path, monkeypatch):
    (tmp_path / "token").write_text("another-token-4711\n")
    place = f"the file {tmp_path}/token"
    with pytest.raises(UserError, match=f"refuses the token in {place}: 401") as error:
        client(server, token_from=f"file:{tmp_path / 'token'}")
    assert "4711" not in str(error.value)
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(UserError, match=f"environment variable {VARIABLE} is not set"):
        client(server)
    (tmp_path / "token").write_text(TOKEN)
    client(server, token_from=f"file:{tmp_path / 'token'}")


def test_an_answer_that_repeats_the_token_is_masked(server):
    body = json.dumps({"error": f"no: {TOKEN}"}).encode()
    for fault in (status(400, body), status(500, body), set_field(scores=TOKEN)):
        server.faults = [fault] * 4
        with pytest.raises(UserError, match=r"\*\*\*") as error:
            client(server).segment_scores(ASKED, TEXTS)
        assert TOKEN not in str(error.value)
        server.faults = []


def test_the_config_of_a_run_has_the_hash_and_no_token(server, tmp_path):
    section = {"kind": "reward_server", "url": server.url, "model_sha256": server.digest}
    section |= {"token_from": "file:outputs/token"}
    tree = {
        "model": {"ckpt": "p", "value_model": {"ckpt": "p"}},
        "logging": {"save_dir": str(tmp_path)},
        "reward": {"facts": section},
    }
    model = rl_config(Task("any"))
    cfg = validate(model, tree, "file")
    written = mask_tree(cfg.model_dump(mode="json"))["reward"]["facts"]
    assert written.items() >= section.items()  # names of files and variables are not masked
    write_text(tmp_path / "config.yaml", to_yaml(cfg))
    assert stored_result(tmp_path, cfg, []) is None
    section["model_sha256"] = "e" * 64
    other = validate(model, tree, "file")
    with pytest.raises(UserError, match=f"facts.model_sha256: {server.digest} there, e+ now"):
        stored_result(tmp_path, other, [])


# ---- the cache -----------------------------------------------------------------------------------


def test_nothing_is_asked_twice(server, expected, tmp_path):
    path = tmp_path / "deep" / "cache.jsonl"
    assert client(server, cache=str(path)).segment_scores(ASKED, TEXTS) == expected
    again = client(server, cache=str(path))
    assert again.segment_scores(ASKED, TEXTS) == expected
    assert server.requests == 1
    again.segment_scores(ASKED[:1], TEXTS[:1])
    assert server.requests == 2
    assert TEXTS[0] not in path.read_text()


def test_a_wrong_answer_is_not_kept(server, expected, tmp_path):
    path = tmp_path / "cache.jsonl"
    server.faults = [set_span(end=99)]
    built = client(server, cache=str(path))
    with pytest.raises(UserError, match="not within"):
        built.segment_scores(ASKED, TEXTS)
    assert path.read_text() == ""
    assert built.segment_scores(ASKED, TEXTS) == expected


def test_a_damaged_cache_is_named(server, tmp_path):
    path = tmp_path / "cache.jsonl"
    built = client(server, cache=str(path))
    built.segment_scores(ASKED, TEXTS)
    row = json.loads(path.read_text())
    path.write_text(json.dumps(row | {"scores": row["scores"][:2]}) + "\n")
    with pytest.raises(UserError, match="cache.jsonl gave 2 results for 3.*Remove that file"):
        client(server, cache=str(path)).segment_scores(ASKED, TEXTS)
