"""Prompts -> rollouts: sampling, decoding with a map from tokens to characters, log-probabilities,
values.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from tqdm import tqdm

from fgrlhf.alignment import decode
from fgrlhf.models.decoding import Sampling
from fgrlhf.policy import Policy, check_logprobs
from fgrlhf.types import Prompt, Response, Rollout
from fgrlhf.utils import derive_seed
from fgrlhf.value import ActorCritic

SCORED_AT_ONCE = (
    65_536  # tokens of prompts and responses, padding included, in one forward pass of `score`
)


def response_seeds(
    seed: int, step: int, first_prompt: int, num_prompts: int, num_samples: int
) -> list[int]:
    """One seed per response: a pure function of (seed, step, the prompt's place in the global
    batch, sample).
    """
    return [
        derive_seed(seed, "response", step, prompt, sample)
        for prompt in range(first_prompt, first_prompt + num_prompts)
        for sample in range(num_samples)
    ]


@torch.no_grad()
def collect(
    actor_critic: ActorCritic,
    reference: Policy,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    num_samples: int,
    row_seeds: Sequence[int],
    temperature: float,
) -> Rollout:
    """Sample `num_samples` responses to each prompt and score them under policy, reference and
    critic.

    `temperature` is that of the log-probabilities (see `Policy.forward`). The model's train/eval
    mode is left as the caller set it for scoring; sampling itself is always in eval mode.
    """
    prompt_GP = actor_critic.policy.encode([prompt.text for prompt in prompts])
    response = actor_critic.policy.generate(
        *prompt_GP, sampling, row_seeds, num_samples, temperature
    )
    return score(actor_critic, reference, prompts, *prompt_GP, response, num_samples, temperature)


@torch.no_grad()
def score(
    actor_critic: ActorCritic,
    reference: Policy,
    prompts: Sequence[Prompt],
    prompt_ids_GP: Tensor,
    prompt_mask_GP: Tensor,
    response: Response,
    num_samples: int,
    temperature: float,
) -> Rollout:
    """Responses with what reference and critic say of them.

    The models read at most SCORED_AT_ONCE tokens at a time, the responses to one prompt together:
    memory does not grow with the number of rollouts.

    The policy's log-probabilities came with the response, except where scoring is to have dropout,
    which sampling has not; where the critic reads the policy's hidden states; and under bf16, whose
    rounding differs between one token at a time and all at once by as much as a PPO step.

    Raises:
      UserError: a model's log-probabilities or values are not finite.
    """
    policy = actor_critic.policy
    prompt_ids_BP, prompt_mask_BP = (
        x.repeat_interleave(num_samples, 0) for x in (prompt_ids_GP, prompt_mask_GP)
    )
    batch = (prompt_ids_BP, prompt_mask_BP, response.ids_BT, response.mask_BT)
    shared_trunk = actor_critic.value is not None and actor_critic.value.trunk is None
    logprobs_BT, values_BT = response.logprobs_BT, None
    if policy.training or shared_trunk or torch.is_autocast_enabled(policy.device.type):

        def both(*part: Tensor) -> list[Tensor]:
            output = actor_critic(*part, temperature=temperature)
            return (
                [output.logprobs_BT]
                if output.values_BT is None
                else [output.logprobs_BT, output.values_BT]
            )

        logprobs_BT, *values = in_parts(both, batch, num_samples)
        values_BT = values[0] if values else None
    elif actor_critic.value is not None:
        (values_BT,) = in_parts(
            lambda *part: [actor_critic.value(*part, policy_hidden_BTD=None)], batch, num_samples
        )
    (ref_logprobs_BT,) = in_parts(
        lambda *part: [reference(*part, temperature=temperature)[0].logprobs_BT], batch, num_samples
    )
    check_logprobs(logprobs_BT, "the policy's log-probabilities")
    check_logprobs(ref_logprobs_BT, "the reference's log-probabilities")
    if values_BT is not None:
        check_logprobs(values_BT, "the critic's values")
    texts, ends = decode(policy.tokenizer, response.ids_BT, response.mask_BT)
    return Rollout(
        prompts=tuple(prompt for prompt in prompts for _ in range(num_samples)),
        prompt_ids_BP=prompt_ids_BP,
        prompt_mask_BP=prompt_mask_BP,
        response_ids_BT=response.ids_BT,
        response_mask_BT=response.mask_BT,
        logprobs_BT=logprobs_BT,
        ref_logprobs_BT=ref_logprobs_BT,
        values_BT=values_BT,
        texts=texts,
        char_ends=ends,
        group_B=torch.arange(len(prompts), device=prompt_ids_BP.device).repeat_interleave(
            num_samples
        ),
        left_padded=policy.tokenizer.padding_side == "left",
        finished=_finished(response, policy.eos_ids),
    )


def _finished(response: Response, eos_ids: Sequence[int]) -> tuple[bool, ...]:
    """Whether each response ends with an end token. Padding may be the same token: the mask tells."""
    last_B = response.mask_BT.sum(1).long().clamp(min=1) - 1
    last_ids_B = response.ids_BT.gather(1, last_B[:, None])[:, 0]
    return tuple(token in eos_ids for token in last_ids_B.tolist())


def in_parts(
    compute: Callable[..., Sequence[Tensor]],
    batch: Sequence[Tensor],
    num_samples: int,
    limit: int | None = None,
) -> list[Tensor]:
    """The tensors that `compute(*batch)` gives, computed for some rows at a time.

    Args:
      compute: gives one or more tensors with a row for each row of the batch.
      batch: prompt ids, prompt mask, response ids, response mask; the rows of one prompt side by
        side.
      num_samples: rows of each prompt. They stay together, however long they are.
      limit: tokens of a part, padding included; None: SCORED_AT_ONCE.
    """
    B, width = len(batch[0]), batch[0].shape[1] + batch[2].shape[1]
    limit = SCORED_AT_ONCE if limit is None else limit
    prompts_at_once = max(limit // (num_samples * width), 1)
    rows = prompts_at_once * num_samples
    if rows >= B:
        return list(compute(*batch))
    parts = [compute(*(x[start : start + rows] for x in batch)) for start in range(0, B, rows)]
    return [torch.cat(tensors) for tensors in zip(*parts)]


def generate_texts(
    policy: Policy,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    num_samples: int = 1,
    seed: int = 0,
    batch_size: int = 32,
    progress: bool = True,
) -> list[list[str]]:
    """`num_samples` texts per prompt, in the prompts' order; random numbers are a pure function of
    (seed, prompt id, sample).

    Prompts are batched by length, so that little padding is computed.
    """
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i].text))
    results: list[list[str]] = [[] for _ in prompts]
    bar = tqdm(total=len(prompts), desc="generating", unit="prompt", disable=not progress)
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        seeds = [
            derive_seed(seed, "response", prompts[i].id, k)
            for i in chosen
            for k in range(num_samples)
        ]
        response = policy.generate(
            *policy.encode([prompts[i].text for i in chosen]), sampling, seeds, num_samples
        )
        kept = [
            row[: int(n)]
            for row, n in zip(response.ids_BT.tolist(), response.mask_BT.sum(1).tolist())
        ]
        texts = policy.tokenizer.batch_decode(kept, skip_special_tokens=True)
        for place, i in enumerate(chosen):
            results[i] = texts[place * num_samples : (place + 1) * num_samples]
        bar.update(len(chosen))
    bar.close()
    return results
