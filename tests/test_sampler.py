"""Training over a server that samples equals training with samples of this process.

A server that fails is survived with equal results, or stops the run with the fault's name.
"""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import rl_helpers
import sampler_worker
import tiny
import torch
import yaml
from fake_sampler import API_KEY, FakeSampler, choices, client, hold, late, text, vllm_config
from refusals import refusals
from rl_helpers import PROMPTS, config, metrics, trainer
from safetensors.torch import load_file, save_file
from test_sharding import start_ranks
from torch import Tensor

from faults.fake_sampler import altered, cut, status, truncate
from fgrlhf.base.background import run_parallel
from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json
from fgrlhf.configs.sections import LoRAConfig, Sampling
from fgrlhf.load import load_task
from fgrlhf.rollout import response_seeds
from fgrlhf.runs.distributed import join_rollouts
from fgrlhf.samplers.config import VllmSamplerConfig
from fgrlhf.samplers.correction import sampler_gap, truncated_importance_weights
from fgrlhf.samplers.sampler import LocalSampler, make_sampler
from fgrlhf.samplers.shared_weights import VERSION_FILE, publish_weights, weights_version
from fgrlhf.samplers.vllm import NotComplete, completion_request, read_completion
from fgrlhf.train_rl import build_trainer
from fgrlhf.types import Advantages, PolicyOutput, Response, TokenReward

SAMPLING = Sampling(6)


@pytest.fixture
def fake(tmp_path):
    with FakeSampler(tmp_path / "sync") as fake:
        yield fake


def settings(fake: FakeSampler, **changes) -> dict:
    return {"kind": "vllm", "url": fake.url, "sync_dir": str(fake.sync_dir), **changes}


# ---- equal results -------------------------------------------------------------------------------


def run(folder: Path, sampler: dict | None = None, until: int | None = None, **more) -> dict:
    """Train for four steps; returns all that must be equal."""
    changes = {"train__total_episodes": 32, "train__save_every_steps": 1, **more}
    lora = changes.get("model__lora")
    if sampler is not None:
        changes["sampler"] = sampler
    cfg = config(folder, **changes)
    running = trainer(cfg, kind="gpt2", lora=None if lora is None else LoRAConfig(**lora))
    running.train(until)
    rows = []
    gaps = []
    for row in metrics(folder):
        rows.append({key: value for key, value in row.items() if not key.startswith("sampler/")})
        gaps.append({key: value for key, value in row.items() if key.startswith("sampler/")})
    return {"rows": rows, "gaps": gaps, "weights": running.actor_critic.state_dict()}


def assert_equal(one: dict, other: dict) -> None:
    assert len(one["rows"]) == 4
    assert len({row["loss/total"] for row in one["rows"]}) > 1
    assert one["rows"] == other["rows"]
    assert one["weights"].keys() == other["weights"].keys()
    for name, tensor in one["weights"].items():
        assert torch.equal(tensor, other["weights"][name]), name


@pytest.fixture(scope="module")
def local(tmp_path_factory) -> dict:
    result = run(tmp_path_factory.mktemp("local"))
    assert result["gaps"] == [{}] * 4
    return result


def test_training_over_a_server_equals_training_here(fake, local, tmp_path):
    remote = run(tmp_path / "run", settings(fake))
    assert_equal(local, remote)
    for gap in remote["gaps"]:
        assert set(gap) == {"sampler/gap", "sampler/gap_max", "sampler/gap_k3"}
        assert 0 < gap["sampler/gap"] <= gap["sampler/gap_max"] < 1e-5
    seeds = [request["seed"] for request in fake.requests]
    assert len(set(seeds)) == len(seeds) == 32
    publishing = [call for call in fake.calls if not call.startswith("/v1/")]
    steps = ["/pause", "/collective_rpc", "/reset_prefix_cache", "/update_weight_version"]
    assert publishing == 4 * [*steps, "/resume", "/weight_info", "/weight_info"]


@pytest.mark.parametrize(
    "drawn",
    [
        pytest.param({"top_k": 5}, marks=pytest.mark.slow),
        pytest.param({"top_p": 0.6}, marks=pytest.mark.slow),
        {"top_k": 8, "top_p": 0.8, "temperature": 0.7},
    ],
)
def test_truncated_sampling_leaves_no_gap(drawn, fake, tmp_path):
    """The server's log-probabilities are those of the truncated distribution, the policy's not."""
    changes = {"model__train_generation_kwargs": {"do_sample": True, **drawn}}
    remote = run(tmp_path / "there", settings(fake), **changes)
    assert_equal(run(tmp_path / "here", **changes), remote)
    assert all(gap["sampler/gap_max"] < 1e-5 for gap in remote["gaps"])
    weighted = run(tmp_path / "weighted", settings(fake, importance_cap=2.0), **changes)
    assert all(abs(row["importance/weight"] - 1) < 1e-5 for row in weighted["rows"])


def test_a_server_without_versions_gives_the_same_run(fake, local, tmp_path):
    fake.reports_version = False
    assert_equal(local, run(tmp_path / "run", settings(fake, parallel=1)))
    assert fake.calls.count("/update_weight_version") == 1
    assert "/weight_info" not in fake.calls


def test_a_run_continues_exactly_on_another_server(fake, local, tmp_path):
    run(tmp_path / "run", settings(fake), until=2)
    with FakeSampler(tmp_path / "other") as other:
        assert_equal(local, run(tmp_path / "run", settings(other)))
        assert len(other.requests) == 16


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_two_processes_share_a_server(strategy, fake, tmp_path):
    sampler = settings(fake, importance_cap=2.0)
    two = tmp_path / "two"
    start_ranks(2, two, strategy, json.dumps(sampler), script=sampler_worker.__file__)
    sampler_worker.run(tmp_path / "one", "ddp")
    rows = metrics(two / "run")
    assert len(rows) == 4
    for alone, together in zip(metrics(tmp_path / "one"), rows):
        assert together["sampler/gap_max"] < 1e-4
        for key, value in alone.items():
            assert together[key] == pytest.approx(value, rel=5e-4, abs=5e-5), key
    assert fake.calls.count("/collective_rpc") == 4  # only the first process publishes


def test_adapters_are_published_merged(fake, tmp_path):
    lora = {"r": 2, "alpha": 4}
    result = run(tmp_path / "run", settings(fake), model__lora=lora)
    assert all(gap["sampler/gap_max"] < 1e-5 for gap in result["gaps"])


def test_a_run_does_not_change_its_sampler(fake, tmp_path):
    run(tmp_path / "run", until=1)
    with pytest.raises(UserError, match="sampler.kind: 'local' then, 'vllm' now"):
        run(tmp_path / "run", settings(fake))


# ---- faults that pass ----------------------------------------------------------------------------


def sample(sampler, policy, num_samples: int = 2) -> Response:
    """Publish a policy's weights and sample from them."""
    sampler.publish(policy.save)
    prompt_ids_GP, prompt_mask_GP = policy.encode(PROMPTS)
    seeds = response_seeds(0, 0, 0, len(PROMPTS), num_samples)
    return sampler.sample(
        policy, prompt_ids_GP, prompt_mask_GP, SAMPLING, seeds, num_samples, SAMPLING.temperature
    )


def assert_same_responses(response: Response, expected: Response) -> None:
    assert torch.equal(response.ids_BT, expected.ids_BT)
    assert torch.equal(response.mask_BT, expected.mask_BT)
    torch.testing.assert_close(response.logprobs_BT, expected.logprobs_BT, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen3"])
def test_the_same_responses_as_in_this_process(kind, tmp_path):
    policy = tiny.policy(kind)
    here = sample(LocalSampler(), policy)
    with FakeSampler(tmp_path, kind) as fake:
        there = sample(client(fake), policy)
    assert_same_responses(there, here)
    assert here.of_policy and not there.of_policy


ABORTED = altered(lambda choice: choice.update(finish_reason="abort"))


@pytest.mark.parametrize(
    ("fault", "waits"),
    [(late(0.2), 0), (hold, 1), (status(500), 1), (status(503), 1), (cut, 1), (ABORTED, 1)],
    ids=["late", "hold", "500", "503", "cut", "aborted"],
)
def test_a_fault_that_passes_changes_nothing(fault, waits, fake):
    policy = tiny.policy("gpt2")
    fake.faults = [fault]
    slept: list[float] = []
    response = sample(client(fake, slept, parallel=1), policy)
    assert len(slept) == waits
    assert_same_responses(response, sample(LocalSampler(), policy))


# ---- faults that stop the run --------------------------------------------------------------------


def change_ids(token: int):
    return altered(lambda choice: choice["token_ids"].__setitem__(0, token))


def change_logprob(value: object):
    return altered(lambda choice: choice["logprobs"]["token_logprobs"].__setitem__(0, value))


def go_on(choice: dict) -> None:
    choice["token_ids"] = [1, 5]
    choice["logprobs"]["token_logprobs"] = [-1.0, -1.0]


FINAL_FAULTS = {
    "no choices": (choices(0), "0 choices instead of one response"),
    "two choices": (choices(2), "2 choices instead of one response"),
    "id too large": (change_ids(10_000), "the token id 10000, but the policy's are 0 to"),
    "negative id": (change_ids(-1), "the token id -1"),
    "no ids": (altered(lambda choice: choice.pop("token_ids")), "without token ids"),
    "ids are text": (altered(lambda choice: choice.update(token_ids=["a"])), "without token ids"),
    "no log-probabilities": (
        altered(lambda choice: choice.update(logprobs=None)),
        "without a log-probability for each token",
    ),
    "one log-probability less": (
        altered(lambda choice: choice["logprobs"]["token_logprobs"].pop()),
        "without a log-probability for each token",
    ),
    "null": (change_logprob(None), "None as a log-probability"),
    "positive": (change_logprob(0.5), "0.5 as a log-probability"),
    "NaN": (change_logprob(math.nan), "not valid JSON (NaN is not a JSON number)"),
    "truncated": (altered(truncate), "a truncated response: 1 of 6 tokens"),
    "after the end": (altered(go_on), "continues after its end"),
    "no JSON": (text(b"<html>gateway</html>"), "text that is not valid JSON"),
    "no object": (text(b"[]"), "JSON that is not an object"),
    "400": (status(400), "refuses /v1/completions: 400 out of order"),
}


@pytest.mark.parametrize("name", FINAL_FAULTS)
def test_a_wrong_answer_stops_the_run(name, fake):
    fault, part = FINAL_FAULTS[name]
    fake.faults = [fault]
    slept: list[float] = []
    with pytest.raises(UserError) as error:
        sample(client(fake, slept, parallel=1), tiny.policy("gpt2"))
    assert part in str(error.value) and fake.url in str(error.value)
    assert len(fake.requests) == 1 and not slept


def test_a_server_that_never_answers_is_given_up(fake):
    fake.faults = [status(500)] * 4
    slept: list[float] = []
    with pytest.raises(UserError, match="no answer to /v1/completions in 4 attempts: 500 out of"):
        sample(client(fake, slept, parallel=1), tiny.policy("gpt2"))
    assert slept == [1.0, 2.0, 4.0]


def test_no_server_at_all(tmp_path):
    with FakeSampler(tmp_path / "sync") as fake:
        pass
    with pytest.raises(UserError, match="no answer to /pause in 4 attempts"):
        sample(client(fake), tiny.policy("gpt2"))


def test_a_run_asks_for_the_server_before_it_loads_anything(tmp_path):
    tiny.policy("gpt2").save(tmp_path / "policy")
    (tmp_path / "policy" / "model.safetensors").unlink()
    with FakeSampler(tmp_path / "sync") as fake:
        pass
    changes = {"model__ckpt": str(tmp_path / "policy"), "sampler": settings(fake, retries=0)}
    with pytest.raises(UserError, match="no answer to /v1/models in 1 attempt"):
        build_trainer(load_task("tasks.numbers"), config(tmp_path / "run", **changes))


def test_a_server_without_the_development_mode(fake):
    fake.dev_mode = False
    with pytest.raises(UserError, match="VLLM_SERVER_DEV_MODE=1"):
        sample(client(fake), tiny.policy("gpt2"))


def test_a_server_of_several_models(fake):
    fake.models.append("another")
    with pytest.raises(UserError, match="exactly one model"):
        sample(client(fake), tiny.policy("gpt2"))


def test_an_api_key(fake, monkeypatch):
    fake.api_key = API_KEY
    with pytest.raises(UserError, match="sampler.token_from"):
        sample(client(fake), tiny.policy("gpt2"))
    monkeypatch.setenv("SAMPLER_KEY", API_KEY[::-1])
    with pytest.raises(UserError, match="sampler.token_from") as error:
        sample(client(fake, token_from="SAMPLER_KEY"), tiny.policy("gpt2"))
    assert "401" in str(error.value) and API_KEY[::-1] not in str(error.value)
    monkeypatch.setenv("SAMPLER_KEY", API_KEY)
    assert len(sample(client(fake, token_from="SAMPLER_KEY"), tiny.policy("gpt2")).ids_BT) == 6


# ---- stale weights -------------------------------------------------------------------------------


def test_a_server_that_keeps_its_weights_is_found_by_the_gap(fake, tmp_path):
    fake.loads_weights = False
    with pytest.raises(UserError) as error:
        run(tmp_path / "run", settings(fake))
    message = str(error.value)
    assert "at step 0 the log-probabilities" in message and "exceeds sampler.max_gap=0.1" in message
    assert "did not load the last weights" in message and "processed_logprobs" in message
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_server_that_gives_other_tokens_than_it_drew_is_found_by_the_gap(fake, tmp_path):
    """Tokens of the vocabulary, so that nothing else shows it."""

    def permute(choice: dict) -> None:
        words = [token if token < 3 else 3 + (token - 2) % 20 for token in choice["token_ids"]]
        choice["token_ids"] = words

    fake.faults = [altered(permute)] * 100
    with pytest.raises(UserError, match=r"at step 0 .* exceeds sampler.max_gap=0.1"):
        run(tmp_path / "run", settings(fake))


@pytest.mark.parametrize("name", ["ppo", "grpo"])
def test_without_a_bound_the_gap_is_only_logged(name, fake, tmp_path):
    """Also without a critic, for which nothing else needs the recomputed log-probabilities."""
    fake.loads_weights = False
    result = run(tmp_path / "run", settings(fake, max_gap=None), algorithm__name=name)
    assert all(gap["sampler/gap"] > 0.1 for gap in result["gaps"])


def test_weights_that_stay_one_update_behind_are_found(fake, tmp_path):
    running = trainer(config(tmp_path / "run", sampler=settings(fake, max_gap=1e-4)), kind="gpt2")
    running.train(until=1)
    fake.loads_weights = False
    with pytest.raises(UserError, match=r"at step 1 .* exceeds sampler.max_gap=0.0001"):
        running.train(until=2)


@pytest.mark.parametrize("when", ["before", "while"])
def test_weights_of_another_run_are_found_by_the_version(when, fake):
    sampler = client(fake)
    policy = tiny.policy("gpt2")
    sample(sampler, policy)
    client(fake).publish(tiny.policy("gpt2", seed=5).save)
    with pytest.raises(UserError, match="another run uses it"):
        if when == "before":
            sampler.check_version()
        else:
            prompt_ids_GP, prompt_mask_GP = policy.encode(PROMPTS)
            sampler.sample(policy, prompt_ids_GP, prompt_mask_GP, SAMPLING, [1, 2, 3], 1, 1.0)


# ---- published weights ---------------------------------------------------------------------------


def test_published_weights_replace_the_earlier_ones(tmp_path):
    policy = tiny.policy("gpt2")
    version = publish_weights(tmp_path, policy.save)
    names = {file.name for file in tmp_path.iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json", VERSION_FILE} <= names
    assert read_json(tmp_path / VERSION_FILE) == {"weights_sha256": version}
    assert weights_version(tmp_path) == version
    expected = policy.model.state_dict()
    for name, tensor in load_file(tmp_path / "model.safetensors").items():
        assert torch.equal(tensor, expected[name])

    # a folder that began with more files, and the rest of a process that was killed
    save_file({"x": torch.zeros(1)}, tmp_path / "model-00002-of-00002.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    (tmp_path / "notes.txt").write_text("stay")
    (tmp_path / ".fgrlhf_next").mkdir()
    (tmp_path / ".fgrlhf_next" / "model.safetensors").write_text("half")
    assert publish_weights(tmp_path, policy.save) == version
    assert {file.name for file in tmp_path.iterdir()} == names | {"notes.txt"}
    assert publish_weights(tmp_path, tiny.policy("gpt2", seed=1).save) != version


def test_further_chat_templates_are_published_again_and_again(tmp_path):
    policy = tiny.policy("gpt2")
    policy.tokenizer.chat_template = {"default": "{{ messages }}", "tools": "{{ tools }}"}
    for _ in range(2):
        publish_weights(tmp_path, policy.save)
    (template,) = (tmp_path / "additional_chat_templates").iterdir()
    assert template.read_text() == "{{ tools }}"


def test_a_model_that_cannot_be_written_leaves_the_earlier_one(tmp_path):
    version = publish_weights(tmp_path, tiny.policy("gpt2").save)

    def fail(folder: Path) -> None:
        (folder / "model.safetensors").write_text("half")
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        publish_weights(tmp_path, fail)
    assert weights_version(tmp_path) == version
    assert not (tmp_path / ".fgrlhf_next").exists()


# ---- requests and answers by hand ----------------------------------------------------------------


def test_the_request_by_hand():
    sampling = Sampling(7, True, 0.7, 5, 0.9)
    assert completion_request("m", [3, 4], sampling, 11, [1, 2]) == {
        "model": "m",
        "prompt": [3, 4],
        "max_tokens": 7,
        "n": 1,
        "seed": 11,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop_token_ids": [1, 2],
        "ignore_eos": True,
        "logprobs": 1,
        "return_token_ids": True,
        "skip_special_tokens": False,
        "stream": False,
    }
    assert completion_request("m", [3], Sampling(7), 11, [1])["top_p"] == 1.0


def completion(ids: list, logprobs: list, **more) -> dict:
    choice = {"token_ids": ids, "logprobs": {"token_logprobs": logprobs}, **more}
    return {"choices": [choice]}


def test_answers_by_hand():
    def read(answer):
        return read_completion(answer, max_tokens=3, eos_ids=[1], num_embeddings=9)

    assert read(completion([4, 1], [-0.5, -2])) == ([4, 1], [-0.5, -2.0])
    assert read(completion([4, 5, 6], [-0.5, 0, -1])) == ([4, 5, 6], [-0.5, 0.0, -1.0])
    assert read(completion([1], [1e-6])) == ([1], [0.0])  # rounding
    with pytest.raises(NotComplete):
        read(completion([4], [-1], finish_reason="abort"))
    for wrong in (
        {},
        {"choices": {}},
        {"choices": [None]},
        completion([], []),
        completion([True, 1], [-1, -1]),
        completion([4, 5, 6, 7], [-1] * 4),
        completion([9, 1], [-1, -1]),
        completion([4, 1], [-1, True]),
        completion([4, 1], [-1, "-1"]),
    ):
        with pytest.raises(ValueError):
            read(wrong)


def test_prompts_are_sent_without_padding(fake):
    policy = tiny.policy("gpt2")
    sample(client(fake, parallel=1), policy, num_samples=1)
    sent = [request["prompt"] for request in fake.requests]
    assert sent == [policy.encode([prompt])[0][0].tolist() for prompt in PROMPTS]
    assert len({len(ids) for ids in sent}) > 1


def test_parallel_calls_keep_their_order_and_stop_at_an_error():
    assert run_parallel([lambda i=i: i * i for i in range(20)], 4) == [i * i for i in range(20)]
    started = []

    def call(i: int) -> int:
        started.append(i)
        if i == 2:
            raise UserError("two")
        return i

    with pytest.raises(UserError, match="two"):
        run_parallel([lambda i=i: call(i) for i in range(20)], 1)
    assert started == [0, 1, 2]


# ---- settings ------------------------------------------------------------------------------------


def test_an_encoder_decoder_is_refused(fake):
    with pytest.raises(UserError, match="encoder-decoder, which vLLM does not serve"):
        make_sampler(vllm_config(fake), tiny.policy("t5"))
    assert fake.calls == []


@pytest.mark.parametrize("one_step_behind", [False, True])
def test_tied_embeddings_are_refused_by_a_server_on_a_cpu(one_step_behind, fake):
    settings = vllm_config(fake, one_step_behind=one_step_behind, importance_cap=2.0)
    tied = tiny.policy("gpt2")
    assert tied.model.config.tie_word_embeddings
    untied = tiny.policy("gpt2")
    untied.model.config.tie_word_embeddings = False
    fake.device = "cpu"
    with pytest.raises(UserError, match="runs on a CPU, where vLLM cannot replace the output"):
        make_sampler(settings, tied).check()
    make_sampler(settings, untied).check()
    for device in ("cuda", None):
        fake.device = device
        make_sampler(settings, tied).check()


@pytest.mark.parametrize(("changes", "part"), refusals("samplers"))
def test_impossible_settings_are_refused(changes, part, tmp_path):
    sampler = {"kind": "vllm", "url": "http://127.0.0.1:8000", "sync_dir": "sync"}
    with pytest.raises(UserError) as error:
        config(tmp_path, **{"sampler": sampler, **changes})
    assert part in str(error.value)


@pytest.mark.parametrize("folder", ["sft", "run", "run/best", "run/final"])
def test_the_run_does_not_overwrite_what_it_needs(folder, tmp_path):
    (tmp_path / "sft").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / folder)
    for sync_dir in (tmp_path / folder, tmp_path / "link", tmp_path / "sft" / ".." / folder):
        sampler = {"kind": "vllm", "url": "http://127.0.0.1:8000", "sync_dir": str(sync_dir)}
        ckpt = str(tmp_path / "sft")
        with pytest.raises(UserError, match=r"sampler.sync_dir is .*, which the run itself needs"):
            config(tmp_path / "run", sampler=sampler, model__ckpt=ckpt)


def test_the_config_of_the_document_is_valid(tmp_path):
    document = Path(__file__).parents[1] / "docs" / "scale.md"
    blocks = re.findall(r"^```yaml\n(.*?)^```", document.read_text(), flags=re.M | re.S)
    (block,) = [text for text in blocks if "sampler:" in text]
    sampler = config(tmp_path, **yaml.safe_load(block)).sampler
    assert sampler.kind == "vllm" and sampler.importance_cap == 2.0
    described = set(re.findall(r"`(\w+)`", document.read_text()))
    assert set(VllmSamplerConfig.model_fields) - {"kind"} <= described


def test_the_settings_of_a_server_need_its_kind(tmp_path):
    with pytest.raises(UserError, match="sampler.url"):
        config(tmp_path, sampler={"kind": "local", "url": "http://127.0.0.1:8000"})
    assert config(tmp_path).sampler.kind == "local"


# ---- the gap and the weights ---------------------------------------------------------------------

LOGPROBS_BT = torch.tensor([[-1.0, -2.0, 0.0], [-0.5, -1.0, -3.0]])
BEHAVIOUR_BT = torch.tensor([[-1.0, -2.0 - math.log(3), 0.0], [-0.5 + math.log(2), -1.0, -3.0]])
MASK_BT = torch.tensor([[1, 1, 0], [1, 1, 1]])


def test_the_gap_by_hand():
    gap = sampler_gap(LOGPROBS_BT, BEHAVIOUR_BT, MASK_BT)
    log2, log3 = math.log(2), math.log(3)
    assert gap["sampler/gap"] == pytest.approx((log2 + log3) / 5)
    assert gap["sampler/gap_max"] == pytest.approx(log3)
    k3 = (3 - 1 - log3) + (1 / 2 - 1 + log2)
    assert gap["sampler/gap_k3"] == pytest.approx(k3 / 5)
    other_BT = BEHAVIOUR_BT.clone()
    other_BT[0, 2] = -9.0  # padding does not count
    assert sampler_gap(LOGPROBS_BT, other_BT, MASK_BT) == gap


def test_the_weights_by_hand():
    expected_BT = torch.tensor([[1.0, 3.0, 1.0], [0.5, 1.0, 1.0]])
    weights_BT = truncated_importance_weights(LOGPROBS_BT, BEHAVIOUR_BT, 100.0)
    torch.testing.assert_close(weights_BT, expected_BT)
    weights_BT = truncated_importance_weights(LOGPROBS_BT, BEHAVIOUR_BT, 2.0)
    torch.testing.assert_close(weights_BT, expected_BT.clamp(max=2.0))
    with_gradient_BT = LOGPROBS_BT.clone().requires_grad_()
    assert not truncated_importance_weights(with_gradient_BT, BEHAVIOUR_BT, 2.0).requires_grad
    never_BT = torch.full((1, 1), -9999.0)
    assert truncated_importance_weights(torch.zeros(1, 1), never_BT, 2.0).item() == 2.0


def enumerated_gradient(policy_logits_V: Tensor, sampler_logits_V: Tensor, cap: float) -> Tensor:
    """The expected gradient of the weighted loss -w A log pi over all tokens of a vocabulary."""
    logits_V = policy_logits_V.clone().requires_grad_()
    logprobs_V = logits_V.log_softmax(0)
    behaviour_V = sampler_logits_V.log_softmax(0)
    rewards_V = torch.tensor([1.0, -2.0, 0.5, 3.0, 0.0])
    weights_V = truncated_importance_weights(logprobs_V[None], behaviour_V[None], cap)[0]
    loss = -(behaviour_V.exp() * weights_V * rewards_V * logprobs_V).sum()
    (gradient_V,) = torch.autograd.grad(loss, logits_V)
    return gradient_V


def test_a_large_cap_is_unbiased_and_a_small_one_is_not():
    policy_logits_V = torch.tensor([0.3, -1.0, 2.0, 0.0, 0.5], dtype=torch.float64)
    sampler_logits_V = torch.tensor([0.0, 0.5, 1.0, -1.0, 0.5], dtype=torch.float64)
    on_policy_V = enumerated_gradient(policy_logits_V, policy_logits_V, 1.0)
    errors = []
    for cap in (1.0, 1.5, 2.0, 100.0):
        gradient_V = enumerated_gradient(policy_logits_V, sampler_logits_V, cap)
        errors.append(float((gradient_V - on_policy_V).norm()))
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 0.05 and errors[-1] < 1e-12


def test_weights_of_tokens_leave_the_prefixes_of_the_sampler():
    """All responses of two tokens: each token is corrected given its prefix.

    The weight of the second token makes its distribution that of pi, but its prefix was sampled
    from mu; the weight of the first one does not change what follows it.
    """
    generator = torch.Generator().manual_seed(0)
    first_V, old_first_V = torch.randn(2, 3, generator=generator, dtype=torch.float64)
    second_VV, old_second_VV = torch.randn(2, 3, 3, generator=generator, dtype=torch.float64)
    advantages_VV = torch.randn(3, 3, generator=generator, dtype=torch.float64)
    first_V.requires_grad_()
    second_VV.requires_grad_()

    def gradients(sampler_first_V, sampler_second_VV):
        behaviour_VV2 = all_responses(sampler_first_V, sampler_second_VV)
        logprobs_VV2 = all_responses(first_V, second_VV)
        weights_VV2 = truncated_importance_weights(logprobs_VV2, behaviour_VV2, 1e6)
        probabilities_VV = behaviour_VV2.detach().sum(-1).exp()
        weighted_VV = (weights_VV2 * logprobs_VV2).sum(-1) * advantages_VV
        return torch.autograd.grad((probabilities_VV * weighted_VV).sum(), (first_V, second_VV))

    on_policy_V, on_policy_VV = gradients(first_V, second_VV)
    same_prefix_V, same_prefix_VV = gradients(first_V, old_second_VV)
    same_rest_V, same_rest_VV = gradients(old_first_V, second_VV)
    torch.testing.assert_close(same_prefix_VV, on_policy_VV)  # prefixes of pi, tokens corrected
    torch.testing.assert_close(same_rest_V, on_policy_V)  # the first token is corrected
    assert (same_prefix_V - on_policy_V).norm() > 0.05  # what follows it is still the sampler's
    ratio_V = old_first_V.softmax(0) / first_V.detach().softmax(0)
    torch.testing.assert_close(same_rest_VV, on_policy_VV * ratio_V[:, None])


def all_responses(first_V: Tensor, second_VV: Tensor) -> Tensor:
    """The log-probabilities [V, V, 2] of the two tokens of every response."""
    first_VV = first_V.log_softmax(0)[:, None].expand(3, 3)
    return torch.stack([first_VV, second_VV.log_softmax(1)], dim=-1)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_weights_multiply_the_policy_loss_only(sign, fake, tmp_path):
    """The loss of PPO, with and without clipping; the critic's loss does not change."""
    sampler = settings(fake, importance_cap=2.0)
    weighted = trainer(config(tmp_path / "a", sampler=sampler), kind="gpt2")
    plain = trainer(config(tmp_path / "b"), kind="gpt2")
    old = rl_helpers.rollout(MASK_BT, logprobs_BT=LOGPROBS_BT, behaviour_logprobs_BT=BEHAVIOUR_BT)
    new_logprobs_BT = LOGPROBS_BT + torch.tensor([[0.5, 0.1, 0.0], [-0.5, 0.0, 0.1]])
    new = PolicyOutput(new_logprobs_BT, values_BT=torch.ones(2, 3), entropy_BT=torch.zeros(2, 3))
    advantages = Advantages(torch.full((2, 3), sign), returns_BT=torch.zeros(2, 3))
    critic = replace(advantages, advantages_BT=torch.zeros(2, 3))
    critic_loss_BT = plain.token_loss(new, old, critic).loss_BT
    policy_loss_BT = plain.token_loss(new, old, advantages).loss_BT - critic_loss_BT
    assert (policy_loss_BT[0] != 0).all()
    result = weighted.token_loss(new, old, advantages)
    weights_BT = torch.tensor([[1.0, 2.0, 1.0], [0.5, 1.0, 1.0]])
    torch.testing.assert_close(result.loss_BT, policy_loss_BT * weights_BT + critic_loss_BT)
    torch.testing.assert_close(result.metrics["importance/weight"], weights_BT)
    assert result.metrics["importance/capped"].tolist() == [[0, 1, 0], [0, 0, 0]]


def test_joined_rollouts_keep_the_samplers_log_probabilities():
    one = rl_helpers.rollout([[1, 1]], behaviour_logprobs_BT=torch.tensor([[-1.0, -2.0]]))
    two = rl_helpers.rollout([[1, 1, 1]], behaviour_logprobs_BT=torch.tensor([[-3.0, -4.0, -5.0]]))
    parts = [(part, TokenReward({}, {}, part.response_mask_BT)) for part in (one, two)]
    joined, _ = join_rollouts(parts, 0)
    assert joined.behaviour_logprobs_BT is not None
    assert joined.behaviour_logprobs_BT.tolist() == [[-1, -2, 0], [-3, -4, -5]]
    assert joined.rows(torch.tensor([0])).behaviour_logprobs_BT.tolist() == [[-1, -2]]  # pyright: ignore


def test_the_log_of_a_run_has_the_settings_but_no_key(fake, monkeypatch, tmp_path):
    fake.api_key = API_KEY
    monkeypatch.setenv("SAMPLER_KEY", API_KEY)
    run(tmp_path / "run", settings(fake, token_from="SAMPLER_KEY"))
    for file in (tmp_path / "run").rglob("*"):
        if file.is_file() and file.suffix in (".json", ".jsonl", ".yml", ".yaml"):
            assert API_KEY not in file.read_text()
    state = read_json(tmp_path / "run" / "checkpoints" / "step-4" / "state.json")
    assert json.loads(json.dumps(state))["config"]["sampler"]["sync_dir"] == str(fake.sync_dir)
