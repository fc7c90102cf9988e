"""Decoding steps that are recorded (fgrlhf/models/recorded_steps.py).

A CPU cannot record. `Graph` does here what a CUDA graph does: it computes the same operations
again, on the same memory. `on_gpu.py` has tests of true recordings.
"""

import contextlib
import copy
from unittest import mock

import pytest
import tiny
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import PegasusXConfig, PegasusXForConditionalGeneration

from fgrlhf.base.errors import UserError
from fgrlhf.configs.sections import LoRAConfig, Sampling
from fgrlhf.masked_policy import MaskedPolicy
from fgrlhf.models import causal, encoder_decoder, recorded_steps
from fgrlhf.models.encoder_decoder import EncoderDecoderPolicy
from fgrlhf.models.quantized import QuantizedLinear
from fgrlhf.models.recorded_steps import UNRECORDABLE, Recording, can_record, capture, never_record
from fgrlhf.models.trial import check_recorded_steps, make_trial

TEXTS = ["the red cat", "a dog sees the bird and one two three", "question:"]
K = 3
SAMPLING = Sampling(9, do_sample=True)
SEEDS = list(range(len(TEXTS) * K))


class Graph(TorchDispatchMode):
    """Writes down operations, and repeats them without the Python code that called them."""

    def __init__(self):
        super().__init__()
        self.operations = []
        self.replays = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = operation(*args, **kwargs)
        if not operation.is_view:  # a view shows what is in its memory
            self.operations.append((operation, args, kwargs, result))
        return result

    def replay(self) -> None:
        self.replays += 1
        if self.replays == 1:
            return  # unlike a GPU, this computed them while it wrote them down
        with torch.no_grad():
            for operation, args, kwargs, result in self.operations:
                again = operation(*args, **kwargs)
                if operation._schema.is_mutable:  # in place
                    continue
                for old, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                    if isinstance(old, torch.Tensor):
                        old.copy_(new)


@pytest.fixture
def graphs():
    """Let steps be recorded on the CPU; the graphs."""
    made = []

    def capture(run, device):
        graph = Graph()
        with graph:
            run()
        made.append(graph)
        return graph.replay

    with (
        mock.patch.object(causal, "can_record", return_value=True),
        mock.patch.object(encoder_decoder, "can_record", return_value=True),
        mock.patch.object(recorded_steps, "capture", capture),
    ):
        yield made


@pytest.mark.parametrize("lora", [None, LoRAConfig(r=2)])
@pytest.mark.parametrize("kind", ["t5", "mt5", "bart", "gpt2", "llama", "qwen3", "neox"])
def test_recorded_steps_sample_the_same(kind, lora, graphs):
    policy = tiny.policy(kind, lora=lora).eval()
    prompt = policy.encode(TEXTS)
    found = policy.generate(*prompt, SAMPLING, SEEDS, K)
    (graph,) = graphs
    steps = found.ids_BT.shape[1]
    assert graph.replays == steps - 2  # the first token needs no step, the second no replay
    with (
        mock.patch.object(causal, "can_record", return_value=False),
        mock.patch.object(encoder_decoder, "can_record", return_value=False),
    ):
        expected = policy.generate(*prompt, SAMPLING, SEEDS, K)
    assert found.ids_BT.tolist() == expected.ids_BT.tolist()
    torch.testing.assert_close(found.logprobs_BT, expected.logprobs_BT, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["t5", "bart", "gpt2", "llama"])
@torch.no_grad()
def test_recorded_steps_under_autocast(kind, graphs):
    policy = tiny.policy(kind).eval()
    prompt = policy.encode(TEXTS)
    tokens = torch.randint(3, 20, (6, len(TEXTS) * K), generator=torch.Generator().manual_seed(0))

    def states() -> list[torch.Tensor]:
        steps = policy._steps(*prompt, K, len(tokens) + 1)
        states = [steps.first().float()]
        return [*states, *(steps.next(ids_B).float().clone() for ids_B in tokens)]

    expected = states()
    with torch.autocast("cpu", torch.bfloat16):
        found = states()
    assert [graph.replays for graph in graphs] == [len(tokens) - 1] * 2
    for a, b in zip(found, expected):
        assert (a - b).abs().mean() < 0.03  # the states are of size 1


@pytest.mark.parametrize(
    ("operation", "wait"),
    [
        ("_local_scalar_dense", lambda ids_B: ids_B.max().item()),
        ("nonzero", lambda ids_B: ids_B.nonzero()),
        ("index", lambda ids_B: ids_B[ids_B > 0]),
        ("index", lambda ids_B: torch.empty(2, device="meta")[ids_B]),
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

    model = tiny.policy("t5").model
    recording = Recording(model)
    with pytest.warns(UserWarning, match=rf"wait for the GPU \(in {operation}\)"):
        recording(step, torch.tensor([1, 1]))
    for i in range(2, 4):
        assert recording(step, torch.tensor([i, i])).tolist() == [i + 1, i + 1]
    assert len(steps) == 3
    # later batches have ordinary steps, and so have copies of the model
    assert all(getattr(one, UNRECORDABLE) for one in (model, copy.deepcopy(model)))


def test_a_step_without_waiting_is_recorded_once(graphs):
    recording = Recording(tiny.policy("t5").model)
    for i in range(4):
        assert recording(lambda ids_B: ids_B + 1, torch.tensor([i])).tolist() == [i + 1]
    (graph,) = graphs
    assert graph.replays == 3


@contextlib.contextmanager
def pretended_graph(**graph):
    """CUDA's parts of a recording as mocks."""
    with contextlib.ExitStack() as stack:
        for name in ("CUDAGraph", "device", "Stream"):
            stack.enter_context(mock.patch.object(torch.cuda, name))
        yield stack.enter_context(mock.patch.object(torch.cuda, "graph", **graph))


@pytest.mark.parametrize("stage", ["while recording", "at the end too"])
def test_a_refused_recording_names_the_reason_and_the_way_out(stage):
    class Refusing:
        def __enter__(self):
            pass

        def __exit__(self, *error):
            if stage == "at the end too":
                raise RuntimeError("a previous error")

    def run() -> None:
        raise RuntimeError("no such thing\nlines")

    message = r"CUDA graph \(no such thing\): set .* FGRLHF_KERNELS to off"
    with pretended_graph(return_value=Refusing()), pytest.raises(UserError, match=message):
        capture(run, torch.device("cuda", 0))


def test_a_full_gpu_is_reported_as_such():
    full = torch.OutOfMemoryError("full")
    with pretended_graph(side_effect=full), pytest.raises(torch.OutOfMemoryError, match="full"):
        capture(lambda: None, torch.device("cuda", 0))


def eager_policy() -> EncoderDecoderPolicy:
    """Its attention adds masks, so masks of True and False would hide nothing."""
    tokenizer = tiny.fresh(tiny.tokenizer())
    torch.manual_seed(0)
    pad, sizes = tokenizer.pad_token_id, {"attention_heads": 2, "ffn_dim": 16}
    both = {f"{side}_{key}": n for side in ("encoder", "decoder") for key, n in sizes.items()}
    both |= {"encoder_layers": 1, "decoder_layers": 2, "d_model": 16, "init_std": 0.5}
    both |= {"block_size": 8, "num_global_tokens": 2, "eos_token_id": tokenizer.eos_token_id}
    both |= {"pad_token_id": pad, "decoder_start_token_id": pad}
    config = PegasusXConfig(vocab_size=len(tokenizer), **both)
    return EncoderDecoderPolicy(PegasusXForConditionalGeneration(config), tokenizer)


def test_a_model_whose_attention_adds_masks_is_not_recorded():
    policy = eager_policy().eval()
    with mock.patch.object(encoder_decoder, "can_record", return_value=True):
        assert not policy._can_record
        assert tiny.policy("bart")._can_record


@pytest.mark.parametrize(
    ("policy", "agree"),
    [
        *((tiny.policy(kind), True) for kind in ("t5", "bart", "gpt2", "llama", "qwen3", "neox")),
        *((tiny.translator(kind), True) for kind in ("marian", "mbart")),
        (eager_policy(), False),
    ],
    ids=lambda value: type(value.model).__name__ if hasattr(value, "model") else None,
)
def test_models_that_compute_something_else_are_not_recorded(policy, agree):
    policy.eval()
    with torch.no_grad():
        check_recorded_steps(policy, make_trial(policy))
    assert getattr(policy.model, UNRECORDABLE, False) == (not agree)


def test_what_is_recorded():
    policy = tiny.policy("t5")
    assert not can_record(policy.model)  # on a CPU
    on_gpu = mock.Mock(device=torch.device("cuda"), spec=torch.nn.Parameter)
    with mock.patch.object(policy.model, "parameters", side_effect=lambda: iter([on_gpu])):
        assert can_record(policy.model)
        never_record(policy.model)
        assert not can_record(policy.model)
        assert not can_record(MaskedPolicy(policy, top_p=0.9, top_k=None).mask.model)
        policy = tiny.policy("t5")
    with mock.patch.object(policy.model, "parameters", side_effect=lambda: iter([on_gpu])):
        assert can_record(policy.model)
        policy.model.encoder.block[0].layer[0].SelfAttention.q.__class__ = QuantizedLinear
        assert not can_record(policy.model)
