"""The baseline: one PPO step written as the published code writes it, on the same networks.

It repeats work for every sample that the library avoids: prompts and responses are padded to their
limits; each sample's prompt is encoded again in the policy, the reference and the critic; a forward
pass computes the whole log-softmax, the entropy and transformers' own loss, and the logits of
policy and reference are kept; the critic computes logits too; attention is transformers' eager
implementation, the only one T5 had at the time; segment rewards tokenise the text prefix by prefix;
reward inputs are tokenised twice and scored in one unsorted batch.

Both sides share the hyper-parameters, the sampled tokens and the pure functions for advantages and
losses. `generate` encodes a prompt once for its K samples, because the published code also uses
transformers' `num_return_sequences`.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedTokenizerFast,
    T5ForConditionalGeneration,
)

from benchmarks import workload
from benchmarks.workload import ASPECTS, RM_LENGTH, Size
from fgrlhf.algorithms.advantages import gae, kl_penalized
from fgrlhf.algorithms.config import PPOConfig
from fgrlhf.algorithms.losses import clipped_policy_loss, clipped_value_loss
from fgrlhf.reward_utils import PUBLISHED, load_segmenter, rm_words
from fgrlhf.runs.rl_config import RLConfig
from fgrlhf.text_types import Prompt
from fgrlhf.utils import masked_sum, whiten
from fgrlhf.value import ValueHead
from tasks.qa_feedback.feedback import rm_prefix


@dataclass
class State:
    size: Size
    config: RLConfig
    tokenizer: PreTrainedTokenizerFast
    prompts: list[Prompt]
    policy: T5ForConditionalGeneration
    reference: T5ForConditionalGeneration
    value: T5ForConditionalGeneration
    head: ValueHead
    reward_models: dict[str, nn.Module]
    optimizer: torch.optim.Optimizer
    forced_BT: Tensor  # the responses to sample, padded to the limit

    @property
    def device(self) -> torch.device:
        return self.forced_BT.device

    def precision(self):
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.size.bf16)


@dataclass(frozen=True)
class Batch:
    """Prompts and responses padded to their limits, one row per sample."""

    prompt_ids_BP: Tensor
    prompt_mask_BP: Tensor
    response_ids_BT: Tensor
    response_mask_BT: Tensor
    texts: list[str]

    def responses(self) -> list[list[int]]:
        """The tokens of each response, without padding."""
        lengths = self.response_mask_BT.sum(1).tolist()
        return [row[:length] for row, length in zip(self.response_ids_BT.tolist(), lengths)]

    def rows(self, part: slice) -> "Batch":
        return Batch(
            self.prompt_ids_BP[part],
            self.prompt_mask_BP[part],
            self.response_ids_BT[part],
            self.response_mask_BT[part],
            self.texts[part],
        )


@dataclass(frozen=True)
class Forward:
    """The tensors kept from one forward pass of a policy."""

    logits_BTV: Tensor
    logprobs_BT: Tensor
    entropy_BT: Tensor


@dataclass(frozen=True)
class Scored:
    batch: Batch
    policy: Forward
    reference: Forward
    values_BT: Tensor


class Forced(LogitsProcessor):
    """Masks all but one token per row, so that sampling draws the recorded responses."""

    def __init__(self, forced_BT: Tensor):
        self.forced_BT = forced_BT

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        step = input_ids.shape[1] - 1  # the decoder starts from one start token
        ids_B1 = self.forced_BT[:, step : step + 1]
        return torch.full_like(scores, -torch.inf).scatter(-1, ids_B1, 0.0)


def build(size: Size, responses: list[list[int]]) -> State:
    """Networks and optimiser at step 0; `responses` are the ones our side sampled."""
    device = workload.default_device()
    config = workload.config(size)
    policy = workload.policy_model(size)
    reference = workload.reference_model(size)
    value, head = workload.value_model(size)
    for model in (policy, reference, value):
        model.set_attn_implementation("eager")
    for module in (policy, reference, value, head):
        nn.Module.to(module, device)
    dtype = torch.bfloat16 if size.bf16 else torch.float32
    trained = [*policy.parameters(), *value.parameters(), *head.parameters()]
    return State(
        size,
        config,
        workload.tokenizer(size.policy.vocab),
        workload.prompts(size),
        policy,
        reference.eval().requires_grad_(False),
        value,
        head,
        {
            name: workload.reward_model(size, spec.kind, seed).to(device, dtype)
            for seed, (name, (spec, _)) in enumerate(ASPECTS.items())
        },
        torch.optim.AdamW(trained, lr=config.train.lr, eps=config.train.adam_eps, weight_decay=0.0),
        workload.padded(responses, size.answer_tokens).to(device),
    )


# ---- rollout -------------------------------------------------------------------------------------


@torch.no_grad()
def generate(state: State, processor: LogitsProcessor | None = None) -> Batch:
    """Sample with transformers' `generate`; `processor` picks the tokens.

    Prompts are padded to the limit.
    """
    size = state.size
    tokenizer = state.tokenizer
    prompts = tokenizer(
        [prompt.text for prompt in state.prompts],
        padding="max_length",
        truncation=True,
        max_length=size.input_limit,
        return_tensors="pt",
    ).to(state.device)
    _train(state, False)
    sampling = state.config.model.train_generation_kwargs
    with state.precision():
        output = state.policy.generate(  # pyright: ignore[reportAttributeAccessIssue]
            input_ids=prompts["input_ids"],
            attention_mask=prompts["attention_mask"],
            do_sample=True,
            top_k=sampling.top_k,
            temperature=sampling.temperature,
            num_return_sequences=size.samples,
            max_new_tokens=size.answer_tokens,
            logits_processor=LogitsProcessorList([processor or Forced(state.forced_BT)]),
            pad_token_id=tokenizer.pad_token_id,
        )
    assert isinstance(output, Tensor)
    ids_BT = output[:, 1:]
    pad_id = tokenizer.pad_token_id
    assert isinstance(pad_id, int)
    ids_BT = F.pad(ids_BT, (0, size.answer_tokens - ids_BT.shape[1]), value=pad_id)
    return Batch(
        prompts["input_ids"].repeat_interleave(size.samples, 0),
        prompts["attention_mask"].repeat_interleave(size.samples, 0),
        ids_BT,
        (ids_BT != pad_id).long(),
        tokenizer.batch_decode(ids_BT, skip_special_tokens=True),
    )


def _train(state: State, on: bool) -> None:
    for module in (state.policy, state.value, state.head):
        module.train(on)


def _outputs(model: nn.Module, batch: Batch):
    labels_BT = batch.response_ids_BT.masked_fill(batch.response_mask_BT == 0, -100)
    return model(
        input_ids=batch.prompt_ids_BP,
        attention_mask=batch.prompt_mask_BP,
        labels=labels_BT,
        output_hidden_states=True,
    )


def policy_forward(model: nn.Module, batch: Batch) -> Forward:
    logits_BTV = _outputs(model, batch).logits.float()
    logprobs_BTV = F.log_softmax(logits_BTV, -1)
    mask_BT = batch.response_mask_BT
    logprobs_BT = logprobs_BTV.gather(-1, batch.response_ids_BT[..., None])[..., 0] * mask_BT
    entropy_BT = torch.distributions.Categorical(logits=logits_BTV).entropy() * mask_BT
    return Forward(logits_BTV, logprobs_BT, entropy_BT)


def value_forward(state: State, batch: Batch) -> Tensor:
    """Return values_BT, with 0 on padding."""
    hidden_BTD = _outputs(state.value, batch).decoder_hidden_states[-1]
    return state.head(hidden_BTD)[..., 0] * batch.response_mask_BT


@torch.no_grad()
def score(state: State, batch: Batch) -> Scored:
    _train(state, False)
    with state.precision():
        return Scored(
            batch,
            policy_forward(state.policy, batch),
            policy_forward(state.reference, batch),
            value_forward(state, batch),
        )


# ---- rewards -------------------------------------------------------------------------------------


def rewards(state: State, scored: Scored) -> Tensor:
    """Return rewards_BT, summed over all aspects."""
    rewards_BT = torch.zeros(scored.values_BT.shape)
    lengths = scored.batch.response_mask_BT.sum(1).tolist()
    prompts = [prompt for prompt in state.prompts for _ in range(state.size.samples)]
    for name, (spec, amount) in ASPECTS.items():
        judge = _segment_rewards if spec.kind == "segment" else _sequence_rewards
        for row, (token, value) in judge(state, name, prompts, scored.batch.texts, lengths):
            rewards_BT[row, token] += amount * value
    return rewards_BT.to(state.device)


@torch.no_grad()
def _logits(state: State, name: str, inputs: list[list[str]]) -> Tensor:
    batch = state.tokenizer(
        inputs,
        is_split_into_words=True,
        truncation=True,
        max_length=RM_LENGTH,
        padding=True,
        return_tensors="pt",
    )
    model = state.reward_models[name]
    return (
        model(
            input_ids=batch["input_ids"].to(state.device),
            attention_mask=batch["attention_mask"].to(state.device),
        )
        .logits.float()
        .cpu()
    )


def _segment_rewards(
    state: State, name: str, prompts: list[Prompt], texts: list[str], lengths: list[int]
):
    """Yield (row, (token, +1 or -1)) for every segment."""
    spec, _ = ASPECTS[name]
    assert spec.level != "sequence"
    segmenter = load_segmenter(PUBLISHED)
    inputs = []
    tokens = []
    for prompt, text, length in zip(prompts, texts, lengths):
        spans = segmenter.segments(text, spec.level)
        inputs.append(rm_words(rm_prefix(prompt, spec.with_context).all_words, text, spans)[0])
        counts = [len(state.tokenizer.tokenize(text[:end])) for _, end in spans]
        tokens.append([min(count, length) - 1 for count in counts])
    logits_BTC = _logits(state, name, inputs)
    for row, words in enumerate(inputs):  # tokenised again to find the separators
        ids = state.tokenizer(
            words, is_split_into_words=True, truncation=True, max_length=RM_LENGTH
        )["input_ids"]
        marks = [i for i, token in enumerate(ids) if token == state.tokenizer.eos_token_id]
        for mark, token in zip(marks, tokens[row]):
            error, ok = logits_BTC[row, mark].tolist()
            yield row, (token, -1.0 if error > ok else 1.0)


def _sequence_rewards(
    state: State, name: str, prompts: list[Prompt], texts: list[str], lengths: list[int]
):
    """Yield (row, (last token, z-score))."""
    spec, _ = ASPECTS[name]
    inputs = [
        rm_prefix(prompt, spec.with_context).all_words + text.split()
        for prompt, text in zip(prompts, texts)
    ]
    for row, value in enumerate(_logits(state, name, inputs)[:, 0].tolist()):
        yield row, (lengths[row] - 1, (value - spec.mean) / spec.std)


# ---- update --------------------------------------------------------------------------------------


def update(state: State, scored: Scored, rewards_BT: Tensor) -> dict[str, float]:
    """All epochs, with one optimiser step each over micro-batches.

    Returns the losses' mean over the epochs.
    """
    ppo = state.config.algorithm
    train = state.config.train
    assert isinstance(ppo, PPOConfig)
    mask_BT = scored.batch.response_mask_BT
    penalized_BT = kl_penalized(
        rewards_BT, scored.policy.logprobs_BT, scored.reference.logprobs_BT, mask_BT, ppo.kl.coef
    )
    advantages_BT, returns_BT = gae(
        whiten(penalized_BT, mask_BT, shift_mean=False),
        scored.values_BT,
        mask_BT,
        ppo.gamma_of(None),
        ppo.lam_of(None),
    )
    advantages_BT = whiten(advantages_BT, mask_BT)
    totals = {"loss/policy": 0.0, "loss/value": 0.0, "entropy": 0.0}
    _train(state, bool(train.dropout))
    for _ in range(train.n_ppo_epoch_per_rollout):
        state.optimizer.zero_grad()
        for first in range(0, len(mask_BT), train.micro_batch_size):
            part = slice(first, first + train.micro_batch_size)
            losses = _micro_batch(state, scored, part, advantages_BT, returns_BT, mask_BT.sum())
            totals = {
                name: total + losses[name] / train.n_ppo_epoch_per_rollout
                for name, total in totals.items()
            }
        state.optimizer.step()
    return totals


def _micro_batch(
    state: State,
    scored: Scored,
    part: slice,
    advantages_BT: Tensor,
    returns_BT: Tensor,
    n_tokens: Tensor,
) -> dict[str, float]:
    ppo = state.config.algorithm
    assert isinstance(ppo, PPOConfig)
    batch = scored.batch.rows(part)
    with state.precision():
        new = policy_forward(state.policy, batch)
        values_BT = value_forward(state, batch)
    log_ratio_BT = new.logprobs_BT - scored.policy.logprobs_BT[part]
    policy_BT, _, _ = clipped_policy_loss(log_ratio_BT, advantages_BT[part], *ppo.loss.clip)
    value_BT, _ = clipped_value_loss(
        values_BT, scored.values_BT[part], returns_BT[part], ppo.cliprange_value
    )
    tokens = {"loss/policy": policy_BT, "loss/value": value_BT, "entropy": new.entropy_BT}
    means = {
        name: masked_sum(x_BT, batch.response_mask_BT) / n_tokens for name, x_BT in tokens.items()
    }
    (ppo.pg_coef * means["loss/policy"] + ppo.vf_coef * means["loss/value"]).backward()
    return {name: float(mean.detach()) for name, mean in means.items()}


def modules(state: State) -> dict[str, nn.Module]:
    """The trained modules: same names and weights on both sides."""
    return {"policy": state.policy, "value": state.value, "head": state.head}
