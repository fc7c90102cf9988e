"""Seconds of one decoding step of a decoder of SmolLM2's size: ours and transformers'.

    python -m benchmarks.decoding prompts=8 samples=4 prompt_tokens=700      --help lists the keys

A step reads one token per response, computes the logits of the next one and draws it with top-p.
Ours keeps one copy of a prompt's keys and values for its samples, and sorts only the most probable
tokens. transformers' step, like its `generate`, keeps a copy per sample and sorts the vocabulary.

Both sides read the same tokens. Before each step, their logits must agree to 1e-5.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory

import torch
from pydantic import Field, PositiveInt
from torch import Tensor
from torch.distributions import Categorical
from transformers import AutoModelForCausalLM, DynamicCache, TopPLogitsWarper

from benchmarks.causal import SIZE, Work, prepare
from benchmarks.harness import one_round, paired, synchronized_time
from benchmarks.peer_grpo import Size
from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json
from fgrlhf.base.program import run_main
from fgrlhf.cli.command_line import settings_from
from fgrlhf.configs.sections import Sampling
from fgrlhf.configs.strict import StrictModel
from fgrlhf.models.causal import SharedCacheSteps
from fgrlhf.models.decoding import draw, uniform_rows
from fgrlhf.policy import load_policy
from fgrlhf.utils import seeded

TOLERANCE = 1e-5
TOP_P = 0.9
# The logits of random weights differ little. Divided by this, they have an entropy of about 3 nats,
# like those of a trained model on its own texts.
TEMPERATURE = 0.1


class DecodingSettings(StrictModel):
    """What is measured."""

    prompts: PositiveInt = Field(default=8, description="G")
    samples: PositiveInt = Field(default=4, description="responses per prompt")
    prompt_tokens: PositiveInt = Field(default=700, description="length of every prompt")
    steps: PositiveInt = Field(default=9, description="timed steps of each side")
    threads: PositiveInt = Field(default=1, description="of PyTorch")
    output: Path = Field(default=Path("outputs/decoding.json"), description="the result")

    @property
    def size(self) -> Size:
        return replace(
            SIZE,
            prompts=self.prompts,
            samples=self.samples,
            prompt_tokens=self.prompt_tokens,
            tokens=self.steps + 1,
            steps=1,
        )


class Ours:
    """The library's decoding steps."""

    def __init__(self, work: Work):
        self.policy = load_policy(work.ckpt)
        self.policy.eval()
        self.sampling = Sampling(work.size.tokens + 1, temperature=TEMPERATURE, top_p=TOP_P)
        self.steps = SharedCacheSteps(
            self.policy.model,
            *self.policy.encode(work.prompts),
            work.size.samples,
            self.sampling.max_new_tokens,
        )

    def first(self) -> Tensor:
        return self.policy.project(self.steps.first())

    def next(self, ids_B: Tensor) -> Tensor:
        return self.policy.project(self.steps.next(ids_B))

    def draw(self, logits_BV: Tensor, uniform_B: Tensor) -> Tensor:
        return draw(logits_BV, self.sampling, uniform_B)


class Plain:
    """transformers' layers and cache, with a row of keys and values per response."""

    def __init__(self, work: Work):
        self.model = AutoModelForCausalLM.from_pretrained(work.ckpt).eval()
        self.top_p = TopPLogitsWarper(TOP_P)
        self.cache = DynamicCache(config=self.model.config)
        self.samples = work.size.samples
        self.prompt_ids_GP, _ = load_policy(work.ckpt).encode(work.prompts)

    def first(self) -> Tensor:
        logits_GV = self._read(self.prompt_ids_GP)
        self.cache.batch_repeat_interleave(self.samples)
        return logits_GV.repeat_interleave(self.samples, 0)

    def next(self, ids_B: Tensor) -> Tensor:
        return self._read(ids_B[:, None])

    def _read(self, ids: Tensor) -> Tensor:
        output = self.model(
            input_ids=ids, past_key_values=self.cache, use_cache=True, logits_to_keep=1
        )
        return output.logits[:, -1]

    def draw(self, logits_BV: Tensor, uniform_B: Tensor) -> Tensor:
        logits_BV = self.top_p(None, logits_BV / TEMPERATURE)  # pyright: ignore[reportArgumentType]
        return torch.multinomial(logits_BV.softmax(-1), 1)[:, 0]


def timed_step(side: Ours | Plain, ids_B: Tensor, uniform_B: Tensor) -> tuple[Tensor, float]:
    """The logits after these tokens, and the seconds of the step."""
    started = synchronized_time()
    logits_BV = side.next(ids_B)
    side.draw(logits_BV, uniform_B)
    return logits_BV, synchronized_time() - started


@torch.no_grad()
def measure(size: Size, say: Callable[[str], None] = print) -> dict[str, float]:
    """Median seconds of a step of either side, their ratio, and the largest difference of logits.

    The first of `size.tokens` steps warms up.

    Raises:
      UserError: the logits differ by more than `TOLERANCE`.
    """
    uniform_BT = uniform_rows(range(size.prompts * size.samples), size.tokens)
    with TemporaryDirectory() as folder, seeded("benchmark", "decoding"):
        work = prepare(Path(folder), size)
        sides = {"baseline": Plain(work), "ours": Ours(work)}
        logits_BV = {name: side.first() for name, side in sides.items()}
    seconds: list[dict[str, float]] = []
    apart = 0.0
    entropies = []
    for step in range(size.tokens):
        apart = max(apart, float((logits_BV["ours"] - logits_BV["baseline"]).abs().max()))
        if not apart <= TOLERANCE:
            raise UserError(
                f"the logits of step {step} differ by {apart:.2g}, so the times cannot be compared"
            )
        scaled_BV = logits_BV["ours"] / TEMPERATURE
        entropies.append(float(Categorical(logits=scaled_BV).entropy().mean()))
        uniform_B = uniform_BT[:, step]
        ids_B = sides["ours"].draw(logits_BV["ours"], uniform_B)
        steps = {name: partial(timed_step, side, ids_B, uniform_B) for name, side in sides.items()}
        done = one_round(steps, step)
        logits_BV = {name: logits for name, (logits, _) in done.items()}
        seconds.append({name: spent for name, (_, spent) in done.items()})
        say(f"step {step}: " + ", ".join(f"{name} {s:.3f} s" for name, s in seconds[-1].items()))
    times = paired(*([row[name] for row in seconds[1:]] for name in sides))
    return {**times, "logits_apart": apart, "entropy": mean(entropies)}


def main(argv=None) -> None:
    settings = settings_from(DecodingSettings, argv, "python -m benchmarks.decoding")
    torch.set_num_threads(settings.threads)
    result = measure(settings.size)
    write_json(settings.output, settings.model_dump(mode="json") | result)
    print(
        f"one step of {settings.prompts} x {settings.samples} responses at"
        f" {settings.prompt_tokens} tokens: ours {result['ours_s']:.3f} s, transformers"
        f" {result['baseline_s']:.3f} s, {result['ratio']:.2f} times; logits differ by"
        f" {result['logits_apart']:.1e}, entropy {result['entropy']:.1f} nats"
    )


if __name__ == "__main__":
    run_main(main)
