"""Prompts -> rollouts: sampling, decoding with a map from tokens to characters, log-probabilities,
values.
"""

from collections.abc import Callable, Sequence
from os.path import commonprefix

import torch
from torch import Tensor
from tqdm import tqdm

from fgrlhf.models.decoding import Sampling
from fgrlhf.policy import Policy, check_logprobs
from fgrlhf.types import Prompt, Response, Rollout
from fgrlhf.utils import derive_seed
from fgrlhf.value import ActorCritic

SCORED_AT_ONCE = (
    65_536  # tokens of prompts and responses, padding included, in one forward pass of `score`
)
BLOCK = 16  # tokens whose ends are found together
WINDOW = 2 * BLOCK  # tokens that are decoded before the first of them can be left out
TRIES = 8  # places that are tried for the new beginning of a window


def char_ends(tokenizer, ids: Sequence[int]) -> tuple[str, tuple[int, ...]]:
    """The decoded text and, for each token t, how many of its characters are complete once t is
    decoded.

    That is what the decoded prefix up to t has in common with the whole text, so it holds for any
    tokenizer: a token that is half of a multi-byte character completes nothing, a special token
      adds nothing. Never falls; the last entry
    is len(text).

    Not every prefix is decoded whole, which would take quadratic time: the first tokens are left
    out once the text splits at the first token that stays (`_settled`), so the time is linear in
    the number of tokens.
    """
    special = set(getattr(tokenizer, "all_special_ids", ()))
    text, ends = _ends_of_text(tokenizer, [i for i in ids if i not in special])
    following, reached, all_ends = iter(ends), 0, []
    for i in ids:
        reached = reached if i in special else next(following)
        all_ends.append(reached)
    return text, tuple(all_ends)


def _ends_of_text(tokenizer, ids: Sequence[int]) -> tuple[str, tuple[int, ...]]:
    """`char_ends` of tokens that are no special ones."""
    text = _decoded(tokenizer, [ids])[0] if len(ids) > BLOCK else None
    ends, reached = [], 0
    start, before = (
        0,
        "",
    )  # tokens before `start` decode to `before`, the rest of a prefix to what follows
    for block in range(0, len(ids), BLOCK):
        stop = min(block + BLOCK, len(ids))
        if block - start >= WINDOW:
            start, before = _settled(tokenizer, ids[:block], start, before, text)
        tails = _decoded(tokenizer, [ids[start : t + 1] for t in range(block, stop)])
        text = tails[-1] if text is None else text  # a single block: its last prefix is all of it
        for tail in tails:
            following = text[len(before) : len(before) + len(tail)]
            common = len(tail) if tail == following else len(commonprefix([tail, following]))
            reached = max(reached, len(before) + common)
            ends.append(reached)
    if ids and before + tails[-1] != text:  # the tokenizer's text does not split where it seemed to
        return _ends_of_prefixes(tokenizer, ids)
    return text or "", tuple(ends)


def _settled(tokenizer, ids: Sequence[int], start: int, before: str, text: str) -> tuple[int, str]:
    """A later (start, before) for which the text of `ids` is the same; the given one where there is
    none.

    The text splits at token m if tokens start .. m and m .. end, decoded apart, are what they are
    decoded together; some tokenizers drop a space between. At least BLOCK tokens stand after m, so
    those to come do not change what is before it.
    """
    whole = _decoded(tokenizer, [ids[start:]])[0]
    first = len(ids) - BLOCK
    for m in range(first, max(first - TRIES, start), -1):
        left, right = _decoded(tokenizer, [ids[start:m], ids[m:]])
        for space in ("", " "):
            settled = before + left + space
            if right and whole == left + space + right and text.startswith(settled):
                return m, settled
    return start, before


def _ends_of_prefixes(tokenizer, ids: Sequence[int]) -> tuple[str, tuple[int, ...]]:
    """`char_ends` as it is defined: every prefix is decoded."""
    prefixes = _decoded(tokenizer, [ids[: t + 1] for t in range(len(ids))])
    text = prefixes[-1] if prefixes else ""
    ends, reached = [], 0
    for prefix in prefixes:
        reached = max(reached, len(commonprefix([prefix, text])))
        ends.append(reached)
    return text, tuple(ends)


def _decoded(tokenizer, rows: Sequence[Sequence[int]]) -> list[str]:
    return tokenizer.batch_decode(rows, skip_special_tokens=True)


def decode(
    tokenizer, response_ids_BT: Tensor, response_mask_BT: Tensor
) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]:
    """Texts exactly as reward models read them, and `char_ends` of each."""
    rows = [
        char_ends(tokenizer, ids[: int(n)])
        for ids, n in zip(response_ids_BT.tolist(), response_mask_BT.sum(1).tolist())
    ]
    return tuple(text for text, _ in rows), tuple(ends for _, ends in rows)


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
    )


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
