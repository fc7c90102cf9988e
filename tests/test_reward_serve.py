"""`fgrlhf reward-serve`: its settings, and a server in a process of its own."""

import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from reward_service import CONTEXT, VARIABLE, save_model

from fgrlhf.base.errors import UserError
from fgrlhf.cli.reward_serve import ServerSettings, listener, serve, settings_from, token_of
from fgrlhf.rewards.kinds import (
    LIBRARY_REWARDS,
    Length,
    SegmentClassifier,
    SequenceScorer,
    ServerReward,
)
from fgrlhf.rewards.server import model_sha256
from fgrlhf.text_types import Prompt

ROOT = Path(__file__).parents[1]
LENGTH = ["kind=length", "value=-1", "max_words=3"]
JUDGE = [
    "kind=score",
    "scorer={kind: judge, url: 'http://127.0.0.1:1/v1', model: m, criterion: polite}",
]
TEXTS = ["the red cat sees", "a dog likes one green bird and"]
PROMPTS = [Prompt("0", "the red cat"), Prompt("1", "a dog")]


def start(*arguments: str) -> tuple[subprocess.Popen, dict[str, str]]:
    """A server, and the lines `name: value` that it prints before it is ready."""
    command = [sys.executable, "-m", "fgrlhf.cli.main", "reward-serve", "port=0", *arguments]
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines = {}
    assert process.stdout is not None
    for line in process.stdout:
        name, _, value = line.strip().partition(": ")
        lines[name] = value
        if "stops the server" in line:
            return process, lines
    raise AssertionError(lines)


def test_a_server_in_another_process(tmp_path):
    folder = save_model(tmp_path, "segment")
    file = tmp_path / "new" / "token"
    values = "{error: -0.5, ok: 0.3}"
    process, lines = start(f"ckpt={folder}", f"values={values}", f"token_from=file:{file}")
    try:
        token = file.read_text().strip()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        config = SegmentClassifier(ckpt=folder, values={"error": -0.5, "ok": 0.3})
        assert lines["model_sha256"] == model_sha256(config, "fp32")
        remote = ServerReward(
            url=lines["ready"],
            model_sha256=lines["model_sha256"],
            token_from=f"file:{file}",
            timeout_s=3600.0,
        )
        scores = remote.build(CONTEXT).segment_scores(PROMPTS, TEXTS)
        assert scores == config.build(CONTEXT).segment_scores(PROMPTS, TEXTS)
    finally:
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate()
    assert process.returncode == 0 and rest.strip().endswith("stopped")
    assert token not in rest and token not in str(lines) and str(file) in str(lines)


def test_the_kind_is_that_of_the_model(tmp_path):
    sequence = save_model(tmp_path, "sequence")
    _, reward = settings_from([f"ckpt={sequence}", "scale=0.5", "reward.clip=2"])
    assert reward == SequenceScorer(ckpt=sequence, scale=0.5, clip=2.0)
    segment = save_model(tmp_path, "segment")
    settings, reward = settings_from([f"ckpt={segment}", "values.ok=1", "port=9", "dtype=bf16"])
    assert reward == SegmentClassifier(ckpt=segment, values={"ok": 1.0})
    assert (settings.port, settings.dtype, settings.host) == (9, "bf16", "127.0.0.1")


def test_a_file_of_settings(tmp_path):
    file = tmp_path / "served.yml"
    file.write_text("reward: {kind: length, value: -1, max_words: 3}\nport: 9\n")
    settings, reward = settings_from([str(file), "value=-2"])
    assert settings.port == 9 and reward == Length(value=-2.0, max_words=3)


def test_the_kinds_of_a_task():
    arguments = ["kind=relevance", "ckpt=r", "positive_reward=0.3", "negative_reward=-0.3"]
    _, reward = settings_from(["tasks.qa_feedback", *arguments])
    assert reward.kind == "relevance"
    with pytest.raises(UserError, match="relevance"):
        settings_from(arguments)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["kind=length"], "reward.value: missing"),
        ([*LENGTH, "max_wrds=3"], "^max_wrds: unknown key; did you mean `max_words`"),
        ([*LENGTH, "qqq=1"], "^qqq: unknown key; .*--help` lists the keys"),
        ([*LENGTH, "weight=2"], "reward.weight: 2.0 is not read, set it in the config of the run"),
        ([*LENGTH, "host=0.0.0.0"], "can be reached from other machines.*other_machines=true"),
        ([*LENGTH, "max_batch=0"], "max_batch"),
        (["kind=reward_server"], "`reward_server` cannot be served: .*config of the run"),
        (["kind=missing_eos", "value=-1"], "`missing_eos` cannot be served: it reads the policy"),
        (["kind=lenght", "value=-1"], "reward.kind: there is no `lenght`; did you mean `length`"),
        (["ckpt=no/such/folder"], "reward.ckpt: there is no folder no/such/folder"),
        (["ckpt=docs"], "reward.ckpt: docs is not a reward model .*no reward_model.json"),
        ([], "^name the reward to serve\n.*--help` lists all keys"),
    ],
)
def test_settings_that_are_refused(arguments, message, monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(UserError, match=f"(?s){message}"):
        settings_from(arguments)


def test_the_model_is_checked_before_the_token(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    classifier = ["kind=score", "scorer={kind: classifier, ckpt: no/such/folder, label: polite}"]
    with pytest.raises(UserError, match="no/such/folder is not a folder"):
        serve(*settings_from(classifier))


def test_the_token_of_a_judge_is_not_that_of_the_clients():
    settings, reward = settings_from([*JUDGE, "scorer.token_from=KEY", "token_from=MINE"])
    assert (settings.token_from, reward.scorer.token_from) == ("MINE", "KEY")


def test_no_other_key_is_of_both_the_server_and_a_reward():
    shared = set()
    for name, kind in LIBRARY_REWARDS.items():
        if name != "reward_server":
            shared |= kind.model_fields.keys() & ServerSettings.model_fields.keys()
    assert shared == {"device"}  # `device` of the reward is refused


def test_another_host_can_be_allowed():
    settings, _ = settings_from([*LENGTH, "host=0.0.0.0", "other_machines=true"])
    assert settings.host == "0.0.0.0"


def test_tokens(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    settings, _ = settings_from(LENGTH)
    with pytest.raises(UserError, match=f"{VARIABLE} is not set.*token_from=file:PATH"):
        token_of(settings)
    monkeypatch.setenv(VARIABLE, "abc")
    assert token_of(settings) == ("abc", f"the environment variable {VARIABLE}")
    file = tmp_path / "token"
    settings, _ = settings_from([*LENGTH, f"token_from=file:{file}"])
    made, place = token_of(settings)
    assert token_of(settings) == (made, f"the file {file}") and len(made) >= 40
    assert [path.name for path in tmp_path.iterdir()] == ["token"]
    file.write_text("")
    with pytest.raises(UserError, match="has no token"):
        token_of(settings)


def test_a_port_in_use_is_named():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port}, cannot be used: .*in use"):
            listener("127.0.0.1", port)
