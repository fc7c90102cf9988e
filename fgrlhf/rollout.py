"""Prompts -> rollouts: sampling, decoding with a map from tokens to characters, log-probabilities, values."""

from collections.abc import Sequence
from os.path import commonprefix

import torch
from torch import Tensor
from tqdm import tqdm

from fgrlhf.decoding import Sampling
from fgrlhf.policy import Policy
from fgrlhf.types import Prompt, Response, Rollout
from fgrlhf.utils import derive_seed
from fgrlhf.value import ActorCritic


def char_ends(tokenizer, ids: Sequence[int]) -> tuple[str, tuple[int, ...]]:
    """The decoded text and, for each token t, how many of its characters are complete once t is decoded.

    Decodes every prefix and takes what it has in common with the whole text, so it holds for any tokenizer: a token
    that is half of a multi-byte character completes nothing, a special token adds nothing. Never falls; the last entry
    is len(text).
    """
    prefixes = tokenizer.batch_decode([ids[: t + 1] for t in range(len(ids))], skip_special_tokens=True)
    text = prefixes[-1] if prefixes else ""
    ends, reached = [], 0
    for prefix in prefixes:
        reached = max(reached, len(prefix) if text.startswith(prefix) else len(commonprefix([prefix, text])))
        ends.append(reached)
    return text, tuple(ends)


def decode(tokenizer, response_ids_BT: Tensor, response_mask_BT: Tensor) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]:
    """Texts exactly as reward models read them, and `char_ends` of each."""
    rows = [char_ends(tokenizer, ids[: int(n)]) for ids, n in zip(response_ids_BT.tolist(), response_mask_BT.sum(1).tolist())]
    return tuple(text for text, _ in rows), tuple(ends for _, ends in rows)


def response_seeds(seed: int, step: int, first_prompt: int, num_prompts: int, num_samples: int) -> list[int]:
    """One seed per response: a pure function of (seed, step, the prompt's place in the global batch, sample)."""
    return [
        derive_seed(seed, "response", step, prompt, sample)
        for prompt in range(first_prompt, first_prompt + num_prompts) for sample in range(num_samples)
    ]


@torch.no_grad()
def collect(
    actor_critic: ActorCritic, reference: Policy, prompts: Sequence[Prompt], sampling: Sampling, num_samples: int,
    row_seeds: Sequence[int], temperature: float,
) -> Rollout:
    """Sample `num_samples` responses to each prompt and score them under policy, reference and critic.

    `temperature` is that of the log-probabilities (see `Policy.forward`). The model's train/eval mode is left as the
    caller set it for scoring; sampling itself is always in eval mode.
    """
    prompt_GP = actor_critic.policy.encode([prompt.text for prompt in prompts])
    response = actor_critic.policy.generate(*prompt_GP, sampling, row_seeds, num_samples, temperature)
    return score(actor_critic, reference, prompts, *prompt_GP, response, num_samples, temperature)


@torch.no_grad()
def score(
    actor_critic: ActorCritic, reference: Policy, prompts: Sequence[Prompt], prompt_ids_GP: Tensor, prompt_mask_GP: Tensor,
    response: Response, num_samples: int, temperature: float,
) -> Rollout:
    """Responses with what reference and critic say of them.

    The policy's log-probabilities came with the response, except where scoring is to have dropout, which sampling has
    not; where the critic reads the policy's hidden states; and under bf16, whose rounding differs between one token at a
    time and all at once by as much as a PPO step.
    """
    policy = actor_critic.policy
    prompt_ids_BP, prompt_mask_BP = (x.repeat_interleave(num_samples, 0) for x in (prompt_ids_GP, prompt_mask_GP))
    batch = (prompt_ids_BP, prompt_mask_BP, response.ids_BT, response.mask_BT)
    shared_trunk = actor_critic.value is not None and actor_critic.value.trunk is None
    if policy.training or shared_trunk or torch.is_autocast_enabled(policy.device.type):
        output = actor_critic(*batch, temperature=temperature)
        logprobs_BT, values_BT = output.logprobs_BT, output.values_BT
    else:
        logprobs_BT = response.logprobs_BT
        values_BT = None if actor_critic.value is None else actor_critic.value(*batch, policy_hidden_BTD=None)
    ref_output, _ = reference(*batch, temperature=temperature)
    texts, ends = decode(policy.tokenizer, response.ids_BT, response.mask_BT)
    return Rollout(
        prompts=tuple(prompt for prompt in prompts for _ in range(num_samples)),
        prompt_ids_BP=prompt_ids_BP, prompt_mask_BP=prompt_mask_BP,
        response_ids_BT=response.ids_BT, response_mask_BT=response.mask_BT,
        logprobs_BT=logprobs_BT, ref_logprobs_BT=ref_output.logprobs_BT, values_BT=values_BT,
        texts=texts, char_ends=ends,
        group_B=torch.arange(len(prompts), device=prompt_ids_BP.device).repeat_interleave(num_samples),
    )


def generate_texts(
    policy: Policy, prompts: Sequence[Prompt], sampling: Sampling, num_samples: int = 1, seed: int = 0,
    batch_size: int = 32, progress: bool = True,
) -> list[list[str]]:
    """`num_samples` texts per prompt, in the prompts' order; random numbers are a pure function of (seed, prompt id, sample).

    Prompts are batched by length, so that little padding is computed.
    """
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i].text))
    results: list[list[str]] = [[] for _ in prompts]
    bar = tqdm(total=len(prompts), desc="generating", unit="prompt", disable=not progress)
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        seeds = [derive_seed(seed, "response", prompts[i].id, k) for i in chosen for k in range(num_samples)]
        response = policy.generate(*policy.encode([prompts[i].text for i in chosen]), sampling, seeds, num_samples)
        kept = [row[: int(n)] for row, n in zip(response.ids_BT.tolist(), response.mask_BT.sum(1).tolist())]
        texts = policy.tokenizer.batch_decode(kept, skip_special_tokens=True)
        for place, i in enumerate(chosen):
            results[i] = texts[place * num_samples : (place + 1) * num_samples]
        bar.update(len(chosen))
    bar.close()
    return results
