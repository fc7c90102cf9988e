"""The row `smollm2` of `make bench`: a GRPO step of a decoder, ours and the plain one.

    make bench ARGS="sizes=smollm2"

The model has the layers and the vocabulary of SmolLM2-135M and random weights, which cost as much
as trained ones. The baseline is what one writes without a library: transformers' `generate` and
layers, a copy of the prompt for each of its samples in sampling, scoring and updates, and the
log-softmax of every position of a response. Ours is the library's loop. Both train all layers.

Both sides sample the same number of tokens (no end of sequence is among the `TOP_K`). Before
anything is timed, the baseline is trained on our samples, and the gradients must agree.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from benchmarks.harness import (
    alternate,
    by_phase,
    phase_rows,
    synchronized_time,
    table,
    with_total,
)
from benchmarks.measure import run_loop_step
from benchmarks.peer_common import LR
from benchmarks.peer_grpo import (
    BETA,
    TOP_K,
    Size,
    Work,
    our_trainer,
    require_equal_gradients,
    reward_of,
    work_of,
)
from benchmarks.workload import default_device, tokenizer, weights_device, words
from fgrlhf.algorithms.advantages import EPS
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
    """A random model with one token per word."""
    config = LlamaConfig(
        vocab_size=size.vocab,
        hidden_size=size.width,
        intermediate_size=size.width * 8 // 3,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=max(size.heads // 3, 1),
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=1,
    )
    with seeded("benchmark", "causal"), weights_device():
        model = LlamaForCausalLM(config)
    return work_of(folder, size, model, tokenizer(size.vocab, add_eos=False), words(size.vocab))


# ---- the baseline --------------------------------------------------------------------------------


class Plain:
    """GRPO steps without anything that saves time.

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
        self.tokenizer = AutoTokenizer.from_pretrained(work.ckpt)
        self.device = default_device()
        model: Any = AutoModelForCausalLM.from_pretrained(work.ckpt)
        reference: Any = AutoModelForCausalLM.from_pretrained(work.ckpt)
        self.model = model.to(self.device)
        self.reference = reference.to(self.device).requires_grad_(False)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LR, weight_decay=0.0)
        self.replay = iter(replay or ())
        self.replays = replay is not None
        self.prompts = iter(work.prompts)

    def step(self) -> dict[str, float]:
        """Seconds of each phase of a step."""
        start = synchronized_time()
        with self.autocast():
            rollout = self.rollout()
        sampled = synchronized_time()
        self.update(*rollout)
        return with_total({"rollout": sampled - start, "update": synchronized_time() - sampled})

    def autocast(self) -> torch.autocast:
        return torch.autocast(
            self.device.type, dtype=torch.bfloat16, enabled=self.size.dtype == "bf16"
        )

    @torch.no_grad()
    def rollout(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(ids_BL, advantages_B, ref_logprobs_BT, old_logprobs_BT)."""
        size = self.size
        texts = [next(self.prompts).text for _ in range(size.prompts)]
        prompt_GP = self.tokenizer(texts, return_tensors="pt")["input_ids"].to(self.device)
        if self.replays:
            response_BT = torch.tensor(next(self.replay), device=self.device)
            ids_BL = torch.cat([prompt_GP.repeat_interleave(size.samples, 0), response_BT], 1)
        else:
            ids_BL = self.model.generate(
                input_ids=prompt_GP,
                attention_mask=torch.ones_like(prompt_GP),
                do_sample=True,
                top_k=TOP_K,
                num_return_sequences=size.samples,
                max_new_tokens=size.tokens,
            )
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


def our_step(trainer) -> dict[str, float]:
    """Seconds of each phase of a step of our loop."""
    return with_total(run_loop_step(trainer).seconds)


def checked(folder: Path, size: Size) -> float:
    """|g - g'| / |g| of both sides in a short step with the same samples.

    Raises:
      UserError: they differ.
    """
    work = prepare(folder, replace(size, dtype="fp32", **CHECKED))
    ours = our_trainer(work, {"micro": MICRO})
    our_step(ours)
    plain = Plain(work, MICRO, ours.sampled)
    plain.step()
    return require_equal_gradients(
        (ours.policy.model, ours.optimizer), (plain.model, plain.optimizer), NAME
    )


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
        ours = our_trainer(work, {"micro": micro})
        sides = {"baseline": Plain(work, micro).step, "ours": partial(our_step, ours)}
        rounds = alternate(sides, size.steps - 1, 1, lambda text: say(f"{NAME}: {text}"))
    facts = {key: getattr(size, key) for key in ("prompts", "samples", "prompt_tokens", "tokens")}
    facts |= {"steps": size.steps - 1, "dtype": size.dtype, "micro": micro}
    times = by_phase(rounds, PHASES)
    return {**times, "workload": facts, "equality": {"gradients": apart}}


def size_table(
    result: dict[str, dict],
    name: str = NAME,
    what: str = "a decoder of the size of SmolLM2-135M",
) -> str:
    """The table of the phases, under a description of the workload."""
    facts = result["workload"]
    about = (
        f"**{name}**: {what}, GRPO, {facts['prompts']} prompts of"
        f" {facts['prompt_tokens']} tokens with {facts['samples']} responses of {facts['tokens']},"
        f" {facts['micro']} of them per forward pass of an update, one epoch, {facts['dtype']}."
        f" Steps timed per side: {facts['steps']}."
    )
    rows = phase_rows({phase: result[phase] for phase in PHASES})
    return f"{about}\n\n{table(['phase', 'baseline s', 'ours s', 'ratio'], rows)}"
