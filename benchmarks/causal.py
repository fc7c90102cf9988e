"""The row `smollm2` of `make bench`: a GRPO step of a decoder, ours and the plain one.

    make bench ARGS="sizes=smollm2"

The model has the layers and the vocabulary of SmolLM2-135M and random weights, which cost as much
as trained ones. The baseline is what one writes without a library: transformers' `generate` and
layers, a copy of the prompt for each of its samples in sampling, scoring and updates, and the
log-softmax of every position of a response. Ours is the library's loop. Both train all layers.

Both sides sample the same number of tokens (no end of sequence is among the `TOP_K`). Before
anything is timed, the baseline is trained on our samples, and the gradients must agree.
"""

import random
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from benchmarks.measure import (
    gradients,
    gradients_apart,
    run_loop_step,
    synchronized_time,
    with_total,
)
from benchmarks.peer_grpo import (
    BETA,
    LR,
    TOLERANCE,
    TOP_K,
    Choice,
    Size,
    Work,
    our_trainer,
    reward_of,
)
from benchmarks.tables import number, table
from benchmarks.workload import default_device, weights_device
from fgrlhf.algorithms.grpo import EPS
from fgrlhf.base.errors import UserError
from fgrlhf.base.seeds import derive_seed
from fgrlhf.models.tiny import save_model, word_tokenizer
from fgrlhf.text_types import Prompt
from fgrlhf.utils import seeded

NAME = "smollm2"
PHASES = ("rollout", "update", "step")
SIZE = Size(
    vocab=49_152,
    width=576,
    layers=30,
    heads=9,
    prompt_tokens=700,
    tokens=64,
    prompts=2,
    samples=4,
    steps=2,
)
CHECKED = {"prompt_tokens": 60, "tokens": 8, "prompts": 1, "steps": 1}
MICRO = 4  # responses per forward pass in updates


def prepare(folder: Path, size: Size) -> Work:
    """Write a random model, and draw prompts of equal length."""
    words = [f"w{i}" for i in range(size.vocab - 8)]
    tokenizer: Any = word_tokenizer([" ".join(words)], add_eos=False)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=size.width,
        intermediate_size=size.width * 8 // 3,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=max(size.heads // 3, 1),
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    with seeded("benchmark", "causal"), weights_device():
        model = LlamaForCausalLM(config)
    with torch.no_grad():  # a logit of 0 is never among the largest
        model.model.embed_tokens.weight[tokenizer.all_special_ids] = 0
    save_model(folder / "start", model, tokenizer)
    draw = random.Random(derive_seed("benchmark", "causal"))
    prompts = []
    for i in range(size.prompts * size.steps):
        prompts.append(Prompt(str(i), " ".join(draw.choices(words, k=size.prompt_tokens))))
    return Work(folder, size, prompts)


# ---- the baseline --------------------------------------------------------------------------------


class Plain:
    """A GRPO step without anything that saves time.

    Args:
      micro: responses per forward pass, except in sampling.
      replay: response ids of every step, used instead of sampling.
    """

    def __init__(
        self,
        work: Work,
        micro: int,
        replay: Sequence[list[list[int]]] | None = None,
    ):
        self.size = work.size
        self.micro = micro
        self.prompts = work.prompts
        self.tokenizer = AutoTokenizer.from_pretrained(work.ckpt)
        self.device = default_device()
        model: Any = AutoModelForCausalLM.from_pretrained(work.ckpt)
        reference: Any = AutoModelForCausalLM.from_pretrained(work.ckpt)
        self.model = model.to(self.device)
        self.reference = reference.to(self.device).requires_grad_(False)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LR, weight_decay=0.0)
        self.replay = replay

    def step(self, number: int) -> dict[str, float]:
        """Seconds of each phase of a step."""
        start = synchronized_time()
        with self.autocast():
            ids_BL, advantages_B, ref_logprobs_BT, old_logprobs_BT = self.rollout(number)
        sampled = synchronized_time()
        self.update(ids_BL, advantages_B, ref_logprobs_BT, old_logprobs_BT)
        end = synchronized_time()
        return {"rollout": sampled - start, "update": end - sampled, "step": end - start}

    def autocast(self) -> torch.autocast:
        return torch.autocast(
            self.device.type, dtype=torch.bfloat16, enabled=self.size.dtype == "bf16"
        )

    @torch.no_grad()
    def rollout(self, step: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(ids_BL, advantages_B, ref_logprobs_BT, old_logprobs_BT)."""
        size = self.size
        chosen = self.prompts[step * size.prompts : (step + 1) * size.prompts]
        encoded = self.tokenizer([p.text for p in chosen], return_tensors="pt")
        prompt_GP = encoded["input_ids"].to(self.device)
        if self.replay is None:
            ids_BL = self.model.generate(
                input_ids=prompt_GP,
                attention_mask=torch.ones_like(prompt_GP),
                do_sample=True,
                top_k=TOP_K,
                num_return_sequences=size.samples,
                max_new_tokens=size.tokens,
            )
        else:
            response_BT = torch.tensor(self.replay[step], device=self.device)
            ids_BL = torch.cat([prompt_GP.repeat_interleave(size.samples, 0), response_BT], 1)
        texts = self.tokenizer.batch_decode(ids_BL[:, -size.tokens :], skip_special_tokens=True)
        rewards_B = torch.tensor([reward_of(text) for text in texts], device=self.device)
        rewards_GK = rewards_B.view(-1, size.samples)
        centred_GK = rewards_GK - rewards_GK.mean(1, keepdim=True)
        advantages_B = (centred_GK / (rewards_GK.std(1, keepdim=True) + EPS)).flatten()
        old = [self.logprobs(self.model, part) for part in ids_BL.split(self.micro)]
        reference = [self.logprobs(self.reference, part) for part in ids_BL.split(self.micro)]
        return ids_BL, advantages_B, torch.cat(reference), torch.cat(old)

    def logprobs(self, model, ids_BL: Tensor) -> Tensor:
        """logprobs_BT of the responses."""
        T = self.size.tokens
        logits_BTV = model(ids_BL, logits_to_keep=T + 1, use_cache=False).logits[:, :-1]
        chosen_BT1 = ids_BL[:, -T:, None]
        return logits_BTV.float().log_softmax(-1).gather(-1, chosen_BT1)[..., 0]

    def update(
        self,
        ids_BL: Tensor,
        advantages_B: Tensor,
        ref_logprobs_BT: Tensor,
        old_logprobs_BT: Tensor,
    ) -> None:
        """One optimiser step of the clipped loss with k3 as its KL penalty."""
        self.optimizer.zero_grad()
        for rows in torch.arange(len(ids_BL)).split(self.micro):
            with self.autocast():
                new_BT = self.logprobs(self.model, ids_BL[rows])
            ratio_BT = (new_BT - old_logprobs_BT[rows]).exp()
            advantages_B1 = advantages_B[rows][:, None]
            clipped_BT = ratio_BT.clamp(0.8, 1.2)
            policy_BT = -torch.minimum(ratio_BT * advantages_B1, clipped_BT * advantages_B1)
            difference_BT = ref_logprobs_BT[rows] - new_BT
            k3_BT = difference_BT.exp() - 1 - difference_BT
            ((policy_BT + BETA * k3_BT).sum() / old_logprobs_BT.numel()).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()


# ---- the comparison ------------------------------------------------------------------------------


class _Timed:
    """Our loop, step by step, with the seconds of its phases."""

    def __init__(self, work: Work, micro: int):
        choice: Choice = {"micro": micro}
        self.trainer = our_trainer(work, choice)

    def step(self, _: int) -> dict[str, float]:
        return with_total(run_loop_step(self.trainer).seconds)


def checked(folder: Path, size: Size) -> float:
    """|g - g'| / |g| of both sides in a short step with the same samples.

    Raises:
      UserError: they differ by more than `TOLERANCE`.
    """
    work = prepare(folder, replace(size, dtype="fp32", **CHECKED))
    ours = _Timed(work, MICRO)
    ours.step(0)
    plain = Plain(work, MICRO, ours.trainer.sampled)
    plain.step(0)
    apart = gradients_apart(
        gradients({"policy": ours.trainer.policy.model}, ours.trainer.optimizer),
        gradients({"policy": plain.model}, plain.optimizer),
    )
    if not apart <= TOLERANCE:
        raise UserError(
            f"{NAME}: the gradients of baseline and ours differ by {apart:.2g} of their norm, so"
            " their times cannot be compared"
        )
    return apart


def bench(
    say,
    size: Size = SIZE,
    check: Size | None = None,
    micro: int = MICRO,
) -> dict[str, dict]:
    """`<phase>.{baseline_s, ours_s, ratio}`, `workload` and `equality`. The first step warms up.

    Args:
      check: the size at which both sides must agree before anything is timed; None: `size`.
      micro: responses per forward pass of an update, on both sides.
    """
    with TemporaryDirectory() as folder:
        apart = checked(Path(folder) / "check", check or size)
        say(f"{NAME}: gradients differ by {apart:.1e} of their norm")
        work = prepare(Path(folder) / "run", size)
        sides = {"baseline": Plain(work, micro), "ours": _Timed(work, micro)}
        seconds: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
        for number in range(size.steps):
            for name, side in sides.items():
                seconds[name].append(side.step(number))
            latest = ", ".join(
                f"{name} {steps[-1]['step']:.1f} s" for name, steps in seconds.items()
            )
            say(f"{NAME}: step {number + 1} of {size.steps}: {latest}")
    result: dict[str, dict] = {}
    for phase in PHASES:
        times = {
            name: statistics.median(step[phase] for step in steps[1:])
            for name, steps in seconds.items()
        }
        result[phase] = {
            "baseline_s": times["baseline"],
            "ours_s": times["ours"],
            "ratio": times["baseline"] / times["ours"],
        }
    facts = {key: getattr(size, key) for key in ("prompts", "samples", "prompt_tokens", "tokens")}
    facts |= {"steps": size.steps - 1, "dtype": size.dtype, "micro": micro}
    return {**result, "workload": facts, "equality": {"gradients": apart}}


def size_table(result: dict[str, dict]) -> str:
    """The table of the phases, under a description of the workload."""
    return sized_table(NAME, "a decoder of the size of SmolLM2-135M", result)


def sized_table(name: str, what: str, result: dict[str, dict]) -> str:
    facts = result["workload"]
    about = (
        f"**{name}**: {what}, GRPO, {facts['prompts']} prompts of"
        f" {facts['prompt_tokens']} tokens with {facts['samples']} responses of {facts['tokens']},"
        f" {facts['micro']} of them per forward pass of an update, one epoch, {facts['dtype']}."
        f" Steps timed per side: {facts['steps']}."
    )
    rows = []
    for phase in PHASES:
        row = result[phase]
        rows.append(
            [phase, number(row["baseline_s"]), number(row["ours_s"]), f"{row['ratio']:.2f}"]
        )
    return f"{about}\n\n{table(['phase', 'baseline s', 'ours s', 'ratio'], rows)}"
