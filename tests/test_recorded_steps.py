"""Decoding steps that are recorded (fgrlhf/models/recorded_steps.py).

A CPU cannot record. Here every "replay" computes the step again, which shows that a recorded step
computes the same as an ordinary one, and nothing in it waits for the device. `on_gpu.py` has tests
of true recordings.
"""

from unittest import mock

import pytest
import tiny
import torch

from fgrlhf.errors import UserError
from fgrlhf.models import causal, encoder_decoder, recorded_steps
from fgrlhf.models.config import LoRAConfig
from fgrlhf.models.decoding import Sampling
from fgrlhf.models.quantized import QuantizedLinear
from fgrlhf.models.recorded_steps import Recording, Watch, can_record, record

TEXTS = ["the red cat", "a dog sees the bird and one two three", "question:"]
K = 3
SAMPLING = Sampling(9, do_sample=True)
SEEDS = list(range(len(TEXTS) * K))


def watched(run):
    """What a replay does on a CPU: it computes again, without waiting."""

    def replay() -> None:
        with Watch() as watch:
            run()
        assert watch.waits_in is None

    return replay


@pytest.fixture
def recording():
    """Let steps be recorded on the CPU; the number of replays."""
    replays = mock.Mock(side_effect=lambda run: run())

    def record(run):
        replay = watched(run)
        return lambda: replays(replay)

    with (
        mock.patch.object(causal, "can_record", return_value=True),
        mock.patch.object(encoder_decoder, "can_record", return_value=True),
        mock.patch.object(recorded_steps, "record", record),
    ):
        yield replays


@pytest.mark.parametrize("lora", [None, LoRAConfig(r=2)])
@pytest.mark.parametrize("kind", ["t5", "mt5", "bart", "gpt2", "llama", "qwen3", "neox"])
def test_recorded_steps_sample_the_same(kind, lora, recording):
    policy = tiny.policy(kind, lora=lora).eval()
    prompt = policy.encode(TEXTS)
    found = policy.generate(*prompt, SAMPLING, SEEDS, K)
    steps = found.ids_BT.shape[1]
    assert recording.call_count == steps - 2  # the first token needs no step, the second no replay
    with (
        mock.patch.object(causal, "can_record", return_value=False),
        mock.patch.object(encoder_decoder, "can_record", return_value=False),
    ):
        expected = policy.generate(*prompt, SAMPLING, SEEDS, K)
    assert found.ids_BT.tolist() == expected.ids_BT.tolist()
    torch.testing.assert_close(found.logprobs_BT, expected.logprobs_BT, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["t5", "bart", "gpt2", "llama"])
@torch.no_grad()
def test_recorded_steps_under_autocast(kind, recording):
    policy = tiny.policy(kind).eval()
    prompt = policy.encode(TEXTS)
    tokens = torch.randint(3, 20, (6, len(TEXTS) * K), generator=torch.Generator().manual_seed(0))

    def states() -> list[torch.Tensor]:
        steps = policy._steps(*prompt, K, len(tokens) + 1)
        return [steps.first().float(), *(steps.next(ids_B).float() for ids_B in tokens)]

    expected = states()
    with torch.autocast("cpu", torch.bfloat16):
        found = states()
    assert recording.call_count == 2 * (len(tokens) - 1)
    for a, b in zip(found, expected):
        assert (a - b).abs().mean() < 0.03  # the states are of size 1


@pytest.mark.parametrize(
    ("operation", "wait"),
    [
        ("_local_scalar_dense", lambda ids_B: ids_B.max().item()),
        ("nonzero", lambda ids_B: ids_B.nonzero()),
        ("index", lambda ids_B: ids_B[ids_B > 0]),
        ("index_put_", lambda ids_B: torch.zeros(2).index_put_([ids_B > 0], torch.ones(2))),
        ("lift_fresh", lambda ids_B: torch.ops.aten.lift_fresh(torch.empty(1, device="meta"))),
        ("repeat_interleave", lambda ids_B: torch.repeat_interleave(ids_B)),
        ("_to_copy", lambda ids_B: ids_B.to("meta")),
        ("copy_", lambda ids_B: torch.empty(2, dtype=torch.long, device="meta").copy_(ids_B)),
    ],
)
def test_a_step_that_waits_is_computed_every_time(operation, wait):
    steps = []

    def step(ids_B: torch.Tensor) -> torch.Tensor:
        steps.append(ids_B)
        wait(ids_B)
        return ids_B + 1

    recording = Recording()
    with pytest.warns(UserWarning, match=rf"wait for the GPU \(in {operation}\)"):
        recording(step, torch.tensor([1, 1]))
    for i in range(2, 4):
        assert recording(step, torch.tensor([i, i])).tolist() == [i + 1, i + 1]
    assert len(steps) == 3


def test_a_step_without_waiting_is_recorded_once():
    with mock.patch.object(recorded_steps, "record", side_effect=lambda run: run) as record:
        recording = Recording()
        for i in range(4):
            assert recording(lambda ids_B: ids_B + 1, torch.tensor([i])).tolist() == [i + 1]
        record.assert_called_once()


def test_a_refused_recording_names_the_way_out():
    with (
        mock.patch.object(torch.cuda, "CUDAGraph"),
        mock.patch.object(torch.cuda, "graph", side_effect=RuntimeError("no such thing\nlines")),
        pytest.raises(UserError, match=r"CUDA graph \(no such thing\): set model.kernels to off"),
    ):
        record(lambda: None)


def test_what_is_recorded():
    policy = tiny.policy("t5")
    assert not can_record(policy.model)  # on a CPU
    on_gpu = mock.Mock(device=torch.device("cuda"), spec=torch.nn.Parameter)
    with mock.patch.object(policy.model, "parameters", side_effect=lambda: iter([on_gpu])):
        assert can_record(policy.model)
        policy.model.encoder.block[0].layer[0].SelfAttention.q.__class__ = QuantizedLinear
        assert not can_record(policy.model)
