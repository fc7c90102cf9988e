"""CPU seconds of an update of a decoder of SmolLM2's size, in fp32 and in bf16.

    python -m benchmarks.update top_layers=10 prompt_tokens=397      --help lists the keys

An update is the forward and backward pass of a policy over given responses, without the optimiser.
Both sides train the same fp32 weights and read the same tokens. With `top_layers`, the time of the
frozen layers' one pass per rollout is included, and of a second pass, as for the reference.
"""

from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import process_time

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from benchmarks.causal import SIZE, prepare
from benchmarks.peer_grpo import Size
from fgrlhf.base.files import write_json
from fgrlhf.cli.command_line import run_program
from fgrlhf.configs.strict import StrictModel
from fgrlhf.policy import Policy, load_policy


class Settings(StrictModel):
    """What is measured."""

    prompts: PositiveInt = Field(default=4, description="G")
    samples: PositiveInt = Field(default=4, description="responses per prompt")
    prompt_tokens: PositiveInt = Field(default=397, description="length of every prompt")
    tokens: PositiveInt = Field(default=48, description="length of every response")
    top_layers: PositiveInt | None = Field(default=None, description="layers trained; null: all")
    repetitions: PositiveInt = Field(default=3, description="updates of each side")
    output: Path = Field(default=Path("outputs/update.json"), description="the result")

    @property
    def size(self) -> Size:
        names = ("prompts", "samples", "prompt_tokens", "tokens")
        return replace(SIZE, steps=1, **{name: getattr(self, name) for name in names})


def update(policy: Policy, batch: tuple[Tensor, ...], dtype: str) -> float:
    """CPU seconds of an update."""
    policy.zero_grad(set_to_none=True)
    start = process_time()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bf16"):
        if policy.frozen_layers is not None:
            policy.frozen_layers.forget()
            with torch.no_grad():
                policy(*batch)
        output, _ = policy(*batch)
    (-output.logprobs_BT.mean()).backward()
    return process_time() - start


def measure(size: Size, top_layers: int | None, repetitions: int) -> dict:
    """Alternate both sides, after one update of each that is not timed."""
    with TemporaryDirectory() as folder:
        work = prepare(Path(folder), size)
        policy = load_policy(work.ckpt, top_layers=top_layers)
        ids_GP, mask_GP = policy.encode(work.prompts[: size.prompts])
        ids_BT = torch.randint(
            8, size.vocab, (size.responses, size.tokens), generator=torch.Generator().manual_seed(0)
        )
        prompt_BP = [x.repeat_interleave(size.samples, 0) for x in (ids_GP, mask_GP)]
        batch = (*prompt_BP, ids_BT, torch.ones_like(ids_BT))
        times: dict[str, list[float]] = {"fp32": [], "bf16": []}
        for repetition in range(repetitions + 1):
            for dtype, seconds in times.items():
                duration = update(policy, batch, dtype)
                if repetition > 0:
                    seconds.append(duration)
    ratios = [a / b for a, b in zip(times["fp32"], times["bf16"])]
    return {
        "cpu_seconds": {dtype: median(seconds) for dtype, seconds in times.items()},
        "ratio": median(ratios),
        "ratios": [min(ratios), max(ratios)],
    }


def run(settings: Settings) -> None:
    torch.set_num_threads(1)
    result = measure(settings.size, settings.top_layers, settings.repetitions)
    write_json(settings.output, result)
    print(result, flush=True)


if __name__ == "__main__":
    run_program(run, Settings)
