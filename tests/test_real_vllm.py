"""A real vLLM server as the sampler; `make vllm-check`.

FGRLHF_VLLM names the program `vllm` of its own environment. Without it, the tests are skipped.
"""

import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import tiny
import torch
from rl_helpers import PROMPTS, config, metrics, trainer
from server_helpers import free_port
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    PretrainedConfig,
    Qwen3Config,
)

from fgrlhf.base.errors import UserError
from fgrlhf.configs.sections import Sampling
from fgrlhf.policy import CausalPolicy
from fgrlhf.rollout import response_seeds
from fgrlhf.samplers.config import VllmSamplerConfig
from fgrlhf.samplers.sampler import make_sampler
from fgrlhf.samplers.vllm import VllmSampler
from fgrlhf.types import Response

PROGRAM = os.environ.get("FGRLHF_VLLM")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="FGRLHF_VLLM does not name vLLM's program"),
]
MAX_MODEL_LEN = 64
START_SECONDS = 900


def model_config(kind: str, vocab_size: int) -> PretrainedConfig:
    """A tiny model's. vLLM has no kernels for heads narrower than 32."""
    shared = {
        "vocab_size": vocab_size,
        "initializer_range": 0.2,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 1,
        "tie_word_embeddings": False,
    }
    if kind == "gpt2":
        dropout = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
        return GPT2Config(n_embd=64, n_layer=2, n_head=2, n_positions=256, **dropout, **shared)
    return {"llama": LlamaConfig, "qwen3": Qwen3Config}[kind](
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=256,
        **shared,
    )


def servable(seed: int = 0, kind: str = "llama") -> CausalPolicy:
    torch.manual_seed(seed)
    tokenizer = tiny.tokenizer()
    model = AutoModelForCausalLM.from_config(model_config(kind, len(tokenizer)))
    return CausalPolicy(model, tiny.fresh(tokenizer), max_input_len=64)


class Served:
    """A server of the model in `folder`/policy."""

    def __init__(self, folder: Path):
        self.sync_dir = folder / "policy"
        self.log = folder / "server.log"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        """Start it as in docs/scale.md, but in fp32 and without compiled graphs."""
        assert PROGRAM is not None
        command = [PROGRAM, "serve", str(self.sync_dir), "--host", "127.0.0.1"]
        command += ["--port", str(self.port), "--max-model-len", str(MAX_MODEL_LEN)]
        command += ["--dtype", "float32", "--enforce-eager", "--generation-config", "vllm"]
        command += ["--logprobs-mode", "processed_logprobs"]
        settings = {"VLLM_SERVER_DEV_MODE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        settings |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        environment = {key: os.environ[key] for key in ("HOME", "PATH") if key in os.environ}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command,
                env=environment | settings,
                stdout=log,
                stderr=log,
                start_new_session=True,  # its processes form a group, which `kill` ends
            )
        begun = time.monotonic()
        while time.monotonic() - begun < START_SECONDS and self.process.poll() is None:
            try:
                urllib.request.urlopen(f"{self.url}/health").read()
                return
            except OSError:
                time.sleep(1)
        raise RuntimeError(self.log.read_text()[-5000:])

    def kill(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def settings(self, **changes) -> dict:
        return {"kind": "vllm", "url": self.url, "sync_dir": str(self.sync_dir), **changes}

    def sampler(self) -> VllmSampler:
        return VllmSampler(VllmSamplerConfig(**self.settings()))

    def post(self, path: str, body: dict) -> None:
        headers = {"Content-Type": "application/json"}
        data = json.dumps(body).encode()
        urllib.request.urlopen(urllib.request.Request(self.url + path, data, headers)).read()


@contextmanager
def serving(folder: Path, kind: str = "llama") -> Iterator[Served]:
    served = Served(folder)
    served.sync_dir.mkdir()
    servable(99, kind).save(served.sync_dir)  # other weights than any policy of a test
    try:
        served.start()
        yield served
    finally:
        served.kill()


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("vllm")) as served:
        yield served


def sample(sampler: VllmSampler, policy: CausalPolicy, sampling: Sampling) -> Response:
    """Eight responses to each prompt."""
    prompt_ids_GP, prompt_mask_GP = policy.encode(PROMPTS)
    seeds = response_seeds(0, 0, 0, len(PROMPTS), 8)
    return sampler.sample(
        policy, prompt_ids_GP, prompt_mask_GP, sampling, seeds, 8, sampling.temperature
    )


@torch.no_grad()
def log_distributions(
    policy: CausalPolicy, prompt: int, ids_T: Tensor, sampling: Sampling
) -> Tensor:
    """logprobs_TV: those from which each token of a response is drawn, by sorting everything."""
    prompt_ids_GP, prompt_mask_GP = policy.encode(PROMPTS)
    prompt_ids_P = prompt_ids_GP[prompt][prompt_mask_GP[prompt].bool()]
    logits_LV = policy.model(torch.cat([prompt_ids_P, ids_T])[None]).logits[0]
    logits_TV = logits_LV[len(prompt_ids_P) - 1 : -1].double() / sampling.temperature
    if sampling.top_k:
        smallest_T1 = logits_TV.topk(sampling.top_k).values[:, -1:]
        logits_TV = logits_TV.masked_fill(logits_TV < smallest_T1, -torch.inf)
    if sampling.top_p is not None:
        probs_TV, order_TV = logits_TV.softmax(-1).sort(-1, descending=True)
        left_out_TV = probs_TV.cumsum(-1) - probs_TV >= sampling.top_p
        left_out_TV = torch.zeros_like(left_out_TV).scatter(-1, order_TV, left_out_TV)
        logits_TV = logits_TV.masked_fill(left_out_TV, -torch.inf)
    return logits_TV.log_softmax(-1)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(12),
        Sampling(12, temperature=0.7),
        Sampling(12, top_k=5),
        Sampling(12, top_p=0.8),
        Sampling(12, temperature=1.5, top_k=6, top_p=0.7),
    ],
)
def test_it_samples_from_the_published_policy(sampling, server):
    check_sampling(server, "llama", sampling)


@pytest.mark.parametrize("kind", ["gpt2", "qwen3"])
def test_other_models(kind, tmp_path):
    with serving(tmp_path, kind) as server:
        check_sampling(server, kind, Sampling(12, temperature=1.5, top_p=0.9))


def test_tied_embeddings_are_refused(server):
    """VLLM 0.32 on a CPU would keep the old output layer."""
    policy = servable()
    policy.model.config.tie_word_embeddings = True
    settings = VllmSamplerConfig(**server.settings())
    with pytest.raises(UserError, match="runs on a CPU"):
        make_sampler(settings, policy).check()


def check_sampling(server: Served, kind: str, sampling: Sampling) -> None:
    """The log-probabilities of two published policies' responses are those of the policies."""
    sampler = server.sampler()
    for seed in (1, 2):
        policy = servable(seed, kind)
        sampler.publish(policy.save)
        response = sample(sampler, policy, sampling)
        lengths = response.mask_BT.sum(1).tolist()
        for row, length in enumerate(lengths):
            ids_T = response.ids_BT[row, :length]
            expected_TV = log_distributions(policy, row // 8, ids_T, sampling)
            expected_T = expected_TV.gather(-1, ids_T[:, None])[:, 0].float()
            found_T = response.logprobs_BT[row, :length]
            torch.testing.assert_close(found_T, expected_T, atol=1e-4, rtol=0)
            ended = int(ids_T[-1]) in policy.eos_ids
            assert ended or length == sampling.max_new_tokens
        assert len(set(lengths)) > 1
        again = sample(sampler, policy, sampling)  # the seeds of the requests make it the same
        assert torch.equal(again.ids_BT, response.ids_BT)


def train(folder: Path, server: Served, until: int | None = None, **changes) -> list[dict]:
    """Six steps, or fewer; returns the metrics."""
    drawn = {"do_sample": True, "top_k": 8, "temperature": 0.7}
    cfg = config(
        folder,
        algorithm__name="grpo",
        train__total_episodes=48,
        train__save_every_steps=1,
        train__lr=1e-2,
        model__train_generation_kwargs=drawn,
        sampler=server.settings(importance_cap=2.0, **changes),
    )
    tiny.POLICIES["servable"] = servable
    try:
        trainer(cfg, kind="servable").train(until)
    finally:
        del tiny.POLICIES["servable"]
    return metrics(folder)


def test_a_run_over_it_sees_no_gap(server, tmp_path):
    rows = train(tmp_path, server)
    assert len(rows) == 6 and len({row["kl"] for row in rows}) == 6
    for row in rows:
        assert 0 < row["sampler/gap_max"] < 1e-4
        assert row["importance/weight"] == pytest.approx(1, abs=1e-4)


def test_one_step_behind_sees_the_last_update(server, tmp_path):
    rows = train(tmp_path, server, one_step_behind=True, max_gap=None)
    assert rows[0]["sampler/gap_max"] < 1e-4  # sampled before the first update
    assert all(row["sampler/gap"] > 1e-3 for row in rows[1:])


def test_a_server_of_another_run_is_named(server):
    sampler = server.sampler()
    policy = servable()
    sampler.publish(policy.save)
    server.post("/update_weight_version", {"new_version": "of another run"})
    with pytest.raises(UserError, match="has the weights 'of another run', but the policy's"):
        sample(sampler, policy, Sampling(4))
    sampler.publish(policy.save)
    sample(sampler, policy, Sampling(4))


def test_too_long_a_response_is_named(server):
    sampler = server.sampler()
    policy = servable()
    sampler.publish(policy.save)
    with pytest.raises(UserError, match=r"truncated response: .* --max-model-len may be too small"):
        sample(sampler, policy, Sampling(MAX_MODEL_LEN))


def test_a_killed_server_loses_nothing(server, tmp_path):
    whole = train(tmp_path / "whole", server)
    train(tmp_path / "run", server, until=2)
    server.kill()
    with pytest.raises(UserError, match="no answer to /pause in 1 attempt"):
        train(tmp_path / "run", server, retries=0)
    server.start()
    rows = train(tmp_path / "run", server)
    assert len(rows) == len(whole) == 6
    for row, expected in zip(rows, whole):
        for key, value in expected.items():
            assert row[key] == pytest.approx(value, rel=1e-3, abs=1e-4), key
