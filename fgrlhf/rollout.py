"""Prompts -> rollouts: sampled responses, their texts, log-probabilities and values.

Which prompts a step has, and the seeds of its responses, are pure functions of (seed, step).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from tqdm import tqdm

from fgrlhf.alignment import decode, texts_of
from fgrlhf.base.seeds import derive_seed
from fgrlhf.configs.sections import Sampling
from fgrlhf.models.base import Policy
from fgrlhf.models.logprobs import check_logprobs
from fgrlhf.text_types import Prompt, turns_text
from fgrlhf.types import PolicyOutput, Response, Rollout
from fgrlhf.value import ActorCritic

if TYPE_CHECKING:
    from fgrlhf.data.mixture import Mixture

# Most tokens in one forward pass of `score`: prompts and responses, padding included.
SCORED_AT_ONCE = 65_536

Item = TypeVar("Item")

# called with the prompt and text of each response
TextsKnown = Callable[[Sequence[Prompt], Sequence[str]], None]


class PassOrder(Generic[Item]):
    """The items of each step: consecutive ones of an endless sequence of shuffled passes.

    Args:
      items: what is drawn, such as prompts; in a mixture of files, a pass has the files' shares.
      per_step: items of a step, over all processes.
    """

    def __init__(self, items: Sequence[Item], seed: int, per_step: int):
        self.items = items
        self.seed = seed
        self.per_step = per_step
        self.mixture: Mixture | None = getattr(items, "mixture", None)
        self._pass = -1  # the pass whose order is in `_pass_order`; -1: none yet
        self._pass_order: list[int] = []

    def of_step(self, step: int) -> list[Item]:
        """The items of a step, over all processes."""
        first = step * self.per_step
        chosen = []
        for place in range(first, first + self.per_step):
            pass_index, i = divmod(place, len(self.items))
            order = self._order(pass_index)
            chosen.append(self.items[order[i]])
        return chosen

    def _order(self, pass_index: int) -> list[int]:
        """The order of the items in a pass over them."""
        if self._pass != pass_index:
            n = len(self.items)
            if self.mixture is None:
                self._pass_order = _shuffled(n, self.seed, pass_index)
            else:
                self._pass_order = self.mixture.order(_shuffled, self.seed, pass_index * n, n)
            self._pass = pass_index
        return self._pass_order


def _shuffled(n: int, seed: int, pass_index: int) -> list[int]:
    generator = torch.Generator().manual_seed(derive_seed(seed, "pass", pass_index))
    return torch.randperm(n, generator=generator).tolist()


def response_seeds(
    seed: int, step: int, first_prompt: int, num_prompts: int, num_samples: int
) -> list[int]:
    """One seed per response, a pure function of (seed, step, prompt, sample).

    Prompts are numbered in the global batch, so the seeds do not depend on the number of ranks.
    """
    seeds = []
    for prompt in range(first_prompt, first_prompt + num_prompts):
        for sample in range(num_samples):
            seeds.append(derive_seed(seed, "response", step, prompt, sample))
    return seeds


@torch.no_grad()
def score(
    actor_critic: ActorCritic,
    reference: nn.Module,
    prompts: Sequence[Prompt],
    prompt_ids_GP: Tensor,
    prompt_mask_GP: Tensor,
    response: Response,
    num_samples: int,
    temperature: float,
    texts_known: TextsKnown | None = None,
    sampling: Sampling | None = None,
) -> Rollout:
    """Build a rollout: compute log-probabilities and values of given responses.

    `temperature` applies to the log-probabilities (see `Policy.forward`). The models are in the
    train or eval mode that the caller has set.

    The models read at most SCORED_AT_ONCE tokens at a time, with the responses to a prompt kept
    together, so memory does not grow with the number of rollouts.

    The policy's log-probabilities are reused from sampling where they are the same
    (`_must_recompute`). Those of another program become `behaviour_logprobs_BT`. With top_k or
    top_p, that program reports those of the truncated distribution. Adding the log of the total
    probability that the policy gives to the kept tokens makes them comparable with the policy's.

    Args:
      texts_known: called before scoring with the prompt and text of each response.
      sampling: how the responses were sampled; None: from the whole distribution.

    Raises:
      UserError: a model's log-probabilities or values are not finite.
    """
    policy = actor_critic.policy
    repeated_prompts = tuple(prompt for prompt in prompts for _ in range(num_samples))
    texts, ends = decoded(policy, response)
    if texts_known is not None:
        texts_known(repeated_prompts, texts)
    prompt_ids_BP = prompt_ids_GP.repeat_interleave(num_samples, 0)
    prompt_mask_BP = prompt_mask_GP.repeat_interleave(num_samples, 0)
    batch = (prompt_ids_BP, prompt_mask_BP, response.ids_BT, response.mask_BT)
    given = (*batch, response.support_BTW, response.conversation_BL)

    output = _policy_output(actor_critic, given, response, num_samples, temperature, sampling)
    penalty = _penalty(sampling)
    ref_logprobs_BT = logprobs_of(reference, given, num_samples, temperature, penalty)

    check_logprobs(output.logprobs_BT, "the policy's log-probabilities")
    check_logprobs(ref_logprobs_BT, "the reference's log-probabilities")
    if output.values_BT is not None:
        check_logprobs(output.values_BT, "the critic's values")
    group_G = torch.arange(len(prompts), device=prompt_ids_BP.device)
    return Rollout(
        prompts=repeated_prompts,
        prompt_ids_BP=prompt_ids_BP,
        prompt_mask_BP=prompt_mask_BP,
        response_ids_BT=response.ids_BT,
        response_mask_BT=response.mask_BT,
        logprobs_BT=output.logprobs_BT,
        ref_logprobs_BT=ref_logprobs_BT,
        values_BT=output.values_BT,
        texts=texts,
        char_ends=ends,
        group_B=group_G.repeat_interleave(num_samples),
        left_padded=policy.tokenizer.padding_side == "left",
        finished=finished_responses(response, policy.eos_ids),
        behaviour_logprobs_BT=_behaviour_logprobs(response, output),
        support_BTW=response.support_BTW,
        values_BTA=output.values_BTA,
        conversation_BL=response.conversation_BL,
        turns=response.turns,
    )


def _joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    """The rows of all parts; None if the parts have none."""
    present = [part for part in parts if part is not None]
    return torch.cat(present) if present else None


def _values(
    actor_critic: ActorCritic, batch: Sequence[Tensor | None], num_samples: int
) -> dict[str, Tensor | None]:
    """The values of a critic with a network of its own; {} without a critic."""
    critic = actor_critic.value
    if critic is None:
        return {}
    values = [critic(*part, policy_hidden_BTD=None) for part in parts(batch, num_samples)]
    values_BT, values_BTA = map(_joined, zip(*values))
    return {"values_BT": values_BT, "values_BTA": values_BTA}


def _policy_output(
    actor_critic: ActorCritic,
    batch: Sequence[Tensor | None],
    response: Response,
    num_samples: int,
    temperature: float,
    sampling: Sampling | None,
) -> PolicyOutput:
    """Log-probabilities and values of the responses, computed again only where they must be.

    Args:
      batch: what the policy reads: prompts, responses, their supports and conversations.
    """
    if not _must_recompute(actor_critic, response):
        *read, _, conversation_BL = batch  # the critic has no use for the support
        values = _values(actor_critic, (*read, conversation_BL), num_samples)
        return PolicyOutput(response.logprobs_BT, **values)
    truncation = None
    if not response.of_policy and sampling is not None and sampling.is_truncated:
        truncation = sampling
    distribution = (temperature, _penalty(sampling), truncation)
    return _policy_and_critic(actor_critic, batch, num_samples, *distribution)


def _penalty(sampling: Sampling | None) -> float:
    return 1.0 if sampling is None else sampling.repetition_penalty


def _behaviour_logprobs(response: Response, output: PolicyOutput) -> Tensor | None:
    """behaviour_logprobs_BT of responses that another program sampled; None if the policy did."""
    if response.of_policy:
        return None
    if output.log_kept_mass_BT is None:
        return response.logprobs_BT
    return response.logprobs_BT + output.log_kept_mass_BT


def _must_recompute(actor_critic: ActorCritic, response: Response) -> bool:
    """Whether the policy must read the responses again, after they were sampled."""
    critic = actor_critic.value
    return (
        # dropout in scoring: sampling has none
        actor_critic.policy.training
        # the critic needs the policy's hidden states, which come with its log-probabilities
        or (critic is not None and critic.trunk is None)
        # step-by-step and parallel rounding differ by as much as a PPO update
        or torch.is_autocast_enabled(actor_critic.policy.device.type)
        # another program sampled
        or not response.of_policy
    )


def _policy_and_critic(
    actor_critic: ActorCritic,
    batch: Sequence[Tensor | None],
    num_samples: int,
    temperature: float,
    repetition_penalty: float,
    truncation: Sampling | None,
) -> PolicyOutput:
    """The output of `ActorCritic` without the entropy."""
    outputs: list[PolicyOutput] = []
    for part in parts(batch, num_samples):
        output = actor_critic(
            *part,
            temperature=temperature,
            truncation=truncation,
            repetition_penalty=repetition_penalty,
        )
        outputs.append(output)
    return PolicyOutput(
        torch.cat([output.logprobs_BT for output in outputs]),
        values_BT=_joined([output.values_BT for output in outputs]),
        log_kept_mass_BT=_joined([output.log_kept_mass_BT for output in outputs]),
        values_BTA=_joined([output.values_BTA for output in outputs]),
    )


def logprobs_of(
    model: nn.Module,
    batch: Sequence[Tensor | None],
    num_samples: int,
    temperature: float,
    repetition_penalty: float = 1.0,
) -> Tensor:
    """logprobs_BT of a batch's responses under a policy or reference, in `parts`."""
    logprobs = []
    for part in parts(batch, num_samples):
        output, _ = model(*part, temperature=temperature, repetition_penalty=repetition_penalty)
        logprobs.append(output.logprobs_BT)
    return torch.cat(logprobs)


def decoded(
    policy: Policy, response: Response
) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]:
    """The texts of responses and their `char_ends` (`fgrlhf.alignment.decode`)."""
    batch = (response.ids_BT, response.mask_BT)
    return decode(policy.tokenizer, *batch, policy.lead, response.turns)


def finished_responses(response: Response, eos_ids: Sequence[int]) -> tuple[bool, ...]:
    """Whether each response ends with an end-of-sequence token, not at the length limit."""
    last_B = response.mask_BT.sum(1).long().clamp(min=1) - 1
    last_ids_B = response.ids_BT.gather(1, last_B[:, None])[:, 0]
    return tuple(token in eos_ids for token in last_ids_B.tolist())


def parts(
    batch: Sequence[Tensor | None], num_samples: int, limit: int | None = None
) -> Iterator[list[Any]]:
    """A batch in parts of a few prompts, so that memory does not grow with the batch.

    Args:
      batch: prompt ids, prompt mask, response ids, response mask, and what else a row has, or None;
        the rows of a prompt are consecutive.
      num_samples: rows per prompt. They are never separated, even if they exceed the limit.
      limit: most tokens per part, padding included; None: SCORED_AT_ONCE.
    """
    if limit is None:
        limit = SCORED_AT_ONCE
    present = [x for x in batch if x is not None]
    B, P = present[0].shape
    T = max(x.shape[1] for x in present[2:])  # that of a whole conversation, if there is one
    prompts_at_once = max(limit // (num_samples * (P + T)), 1)
    rows_at_once = prompts_at_once * num_samples
    for start in range(0, B, rows_at_once):
        yield [None if x is None else x[start : start + rows_at_once] for x in batch]


def generate_texts(
    policy: Policy,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    num_samples: int = 1,
    seed: int = 0,
    batch_size: int = 32,
    bar: tqdm | None = None,
) -> list[list[str]]:
    """`num_samples` texts per prompt, in the order of the prompts.

    Random numbers are a pure function of (seed, prompt id, sample), so the texts do not depend on
    `batch_size`. Prompts of similar length share a batch, which reduces padding.

    Args:
      bar: a progress bar that counts prompts.
    """
    texts_by_prompt: list[list[str]] = [[] for _ in prompts]
    for indices in batches_by_length(prompts, batch_size):
        batch = [prompts[i] for i in indices]
        seeds = response_seeds_by_id(batch, seed, num_samples)
        prompt_ids_GP, prompt_mask_GP = policy.encode(batch)
        response = policy.generate(prompt_ids_GP, prompt_mask_GP, sampling, seeds, num_samples)
        texts = response_texts(policy, response)
        for place, i in enumerate(indices):
            texts_by_prompt[i] = texts[place * num_samples : (place + 1) * num_samples]
        if bar is not None:
            bar.update(len(batch))
    return texts_by_prompt


def batches_by_length(prompts: Sequence[Prompt], size: int) -> Iterator[list[int]]:
    """Batches of indices of prompts of similar length, which reduces padding."""
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i].text))
    return (order[start : start + size] for start in range(0, len(order), size))


def response_seeds_by_id(prompts: Sequence[Prompt], seed: int, num_samples: int) -> list[int]:
    """One seed per response, a pure function of (seed, prompt id, sample)."""
    seeds = []
    for prompt in prompts:
        for sample in range(num_samples):
            seeds.append(derive_seed(seed, "response", prompt.id, sample))
    return seeds


def response_texts(policy: Policy, response: Response) -> list[str]:
    """The text of every response."""
    if response.turns is not None:
        return [turns_text(turns) for turns in response.turns]
    lengths = response.mask_BT.sum(1).tolist()
    unpadded = [ids_T[: int(length)] for ids_T, length in zip(response.ids_BT.tolist(), lengths)]
    return texts_of(policy.tokenizer, unpadded, policy.lead)
