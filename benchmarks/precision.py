"""How far bf16 moves a policy's log-probabilities: of sampling and scoring, on the same tokens.

    python -m benchmarks.precision ckpt=outputs/models/smollm2 prompts=prompts.jsonl

Responses are drawn in bf16 (autocast, as in RL), then scored in one pass. With d = log p_scoring -
log p_sampling of a drawn token, the result has the mean of |d|, the mean of d, and quantiles of
exp(d), which is what an importance ratio would be if training took the sampler's log-probabilities.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from pydantic import Field, PositiveInt

from fgrlhf.cli.command_line import run_program
from fgrlhf.configs.sections import Sampling
from fgrlhf.configs.strict import StrictModel
from fgrlhf.data.formats import read_prompts
from fgrlhf.kernels.choice import use_kernels
from fgrlhf.policy import Policy, load_policy
from fgrlhf.text_types import Prompt


class Settings(StrictModel):
    """What is compared."""

    ckpt: str = Field(description="the policy: a folder or a hub name")
    prompts: Path = Field(description="rows with a `prompt`")
    n_prompts: PositiveInt = Field(default=8, description="the first prompts are read")
    samples: PositiveInt = Field(default=2, description="responses per prompt")
    tokens: PositiveInt = Field(default=64, description="longest response")
    top_p: float = Field(default=0.9, gt=0, le=1, description="nucleus of sampling")
    max_input_len: PositiveInt = Field(default=256, description="longer prompts are cut")


@torch.no_grad()
def differences(
    policy: Policy, prompts: Sequence[Prompt], samples: int, sampling: Sampling
) -> dict[str, float]:
    """Draw responses to each prompt in bf16 and compare their log-probabilities; see above."""
    prompt_GP = policy.encode(prompts)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        drawn = policy.generate(*prompt_GP, sampling, range(len(prompts) * samples), samples)
        prompt_BP = [tensor.repeat_interleave(samples, 0) for tensor in prompt_GP]
        scored, _ = policy(*prompt_BP, drawn.ids_BT, drawn.mask_BT)
    d_N = (scored.logprobs_BT - drawn.logprobs_BT)[drawn.mask_BT.bool()].float()
    low, high = d_N.exp().quantile(torch.tensor([0.01, 0.99])).tolist()
    return {
        "tokens": len(d_N),
        "mean |d|": float(d_N.abs().mean()),
        "largest |d|": float(d_N.abs().max()),
        "mean d": float(d_N.mean()),
        "ratio at 1 %": low,
        "ratio at 99 %": high,
    }


def run(settings: Settings) -> None:
    torch.set_num_threads(1)
    use_kernels("auto")
    policy = load_policy(settings.ckpt, max_input_len=settings.max_input_len).eval()
    prompts = read_prompts(settings.prompts)[: settings.n_prompts]
    sampling = Sampling(max_new_tokens=settings.tokens, top_p=settings.top_p)
    for name, value in differences(policy, prompts, settings.samples, sampling).items():
        print(f"{name:14} {value:.4g}")


if __name__ == "__main__":
    run_program(run, Settings)
