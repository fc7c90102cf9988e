"""The update of the on-policy loop: a rollout, and its advantages, -> optimiser steps.

    gradient_steps    epochs of minibatches; each minibatch is an optimiser step
    optimizer_step    the mean loss of a minibatch, in micro-batches that the processes share
    token_loss        the loss of a micro-batch, per token

TRPO has an update of its own (fgrlhf/algorithms/trpo.py).
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from fgrlhf.algorithms.kl import EntropyController, KLController, kl_k3
from fgrlhf.algorithms.metrics import add_token_means, learned_mask, mean_of, response_weights
from fgrlhf.algorithms.protocol import Algorithm, Trainer, TrainSettings, check_returned
from fgrlhf.algorithms.registry import own_hooks
from fgrlhf.base.seeds import derive_seed
from fgrlhf.models.sharding import unsharded
from fgrlhf.runs.rl_config import RLConfig, RLTrainConfig
from fgrlhf.types import Advantages, PolicyOutput, Rollout, TokenLoss
from fgrlhf.utils import masked_sum

if TYPE_CHECKING:
    from fgrlhf.configs.sections import Dtype
    from fgrlhf.samplers.sampler import Sampler


ALL_LEFT_OUT = (
    "algorithm.loss.leave_out left out every response, so their rewards changed nothing. If all"
    " were cut at the length limit, raise model.max_generated_len, or leave `truncated` out of it."
    " Later steps do not say this: see loss/left_out in metrics.jsonl"
)


class ExtraLoss(Protocol):
    """A loss on other data than the rollout, whose gradient is part of each optimiser step."""

    def add_gradient(self, trainer: "OnPolicy", place: int) -> Tensor:
        """Add the gradient of step `place` of an update; return the process's part of the loss."""
        ...


class OnPolicy(Trainer, Protocol):
    """The trainer as the update uses it (fgrlhf/trainer.py implements it)."""

    @property
    def config(self) -> RLConfig: ...

    @property
    def algorithm(self) -> Algorithm: ...

    @property
    def sampler(self) -> "Sampler": ...

    @property
    def kl(self) -> KLController: ...

    @property
    def entropy(self) -> EntropyController: ...

    @property
    def demonstrations(self) -> ExtraLoss | None: ...

    @property
    def model(self) -> nn.Module: ...

    @property
    def dtype(self) -> "Dtype": ...

    def no_sync(self, more_to_come: bool) -> "AbstractContextManager[Any]": ...

    def summed(self, totals: dict[str, Tensor]) -> dict[str, float]: ...

    def clip_and_step(self) -> dict[str, float]: ...


# ---- epochs of minibatches -----------------------------------------------------------------------


def gradient_steps(trainer: OnPolicy, rollout: Rollout, advantages: Advantages) -> dict[str, float]:
    """Train for several epochs of minibatches on one rollout; return the mean metrics."""
    train = trainer.config.train
    trainer.actor_critic.train(bool(train.dropout))
    trainer.set_learning_rates()
    step_metrics = []
    for epoch in range(epochs(trainer.algorithm, train)):
        for rows_B in trainer.minibatches(len(rollout), epoch):
            place = len(step_metrics)
            metrics = optimizer_step(trainer, rollout, advantages, rows_B, place)
            if metrics is None:
                return _update_metrics(trainer, step_metrics)
            step_metrics.append(metrics)
    return _update_metrics(trainer, step_metrics)


def epochs(algorithm: Algorithm, train: TrainSettings) -> int:
    """The passes over a rollout."""
    return train.n_ppo_epoch_per_rollout if algorithm.reuses_rollouts else 1


def _update_metrics(
    trainer: OnPolicy, step_metrics: Sequence[dict[str, float]]
) -> dict[str, float]:
    metrics = mean_of(step_metrics) | {"lr": trainer.optimizer.param_groups[0]["lr"]}
    if _target_kl(trainer.config) is not None:
        metrics["update/steps"] = float(len(step_metrics))
    return metrics


def _target_kl(config: RLConfig) -> float | None:
    """`algorithm.loss.target_kl`, if the algorithm reads it."""
    settings = config.algorithm
    return None if "target_kl" in settings.unread_of_loss else settings.loss.target_kl


def left_out(config: RLConfig, rollout: Rollout, advantages: Advantages) -> dict[str, float]:
    """The share of the responses that `algorithm.loss.leave_out` leaves out; {} if it is not read.

    It is logged as `loss/left_out`.
    """
    settings = config.algorithm
    leave_out = settings.loss.leave_out
    if not leave_out or "leave_out" in settings.unread_of_loss:
        return {}
    is_learned_B = learned_mask(leave_out, advantages, rollout).any(1)
    return {"loss/left_out": 1 - float(is_learned_B.float().mean())}


def minibatches(
    train: RLTrainConfig, step: int, epoch: int, n_rows: int, num_samples: int
) -> list[Tensor]:
    """The rows of each optimiser step of an epoch, as indices into the global batch.

    A pure function of its arguments.
    """
    rows_GK = torch.arange(n_rows).view(-1, num_samples)
    if train.minibatches == "shuffled":
        # Shuffle prompts, not rollouts: the samples of a prompt share its encoding.
        seed = derive_seed(train.seed, "minibatches", step, epoch)
        generator = torch.Generator().manual_seed(seed)
        rows_GK = rows_GK[torch.randperm(len(rows_GK), generator=generator)]
    return list(rows_GK.flatten().chunk(train.n_minibatches))


# ---- an optimiser step ---------------------------------------------------------------------------


def optimizer_step(
    trainer: OnPolicy,
    rollout: Rollout,
    advantages: Advantages,
    rows_B: Tensor,
    place: int,
) -> dict[str, float] | None:
    """One optimiser step on the mean loss of a minibatch; `algorithm.loss.type` is the mean.

    The result does not depend on the number of micro-batches or ranks: each of them adds its share
    of the mean. With `train.minibatches: published`, the gradient grows with the number of
    micro-batches (`gradient_scale`).

    Args:
      place: how many optimiser steps the update has taken before. With 0 the policy is still the
        one that scored the rollout. In bf16, results depend on the padding of a batch, here by
        several percent of a probability. The policy's ratio to itself is 1, so its own
        log-probabilities are then the old ones.

    Returns:
      the metrics; None: the policy is too far from the old one (`target_kl`), so it stays.
    """
    config = trainer.config
    settings = config.algorithm
    is_first = place == 0
    own_are_old = is_first and trainer.dtype == "bf16" and not config.train.dropout
    n_tokens = rollout.response_mask_BT[rows_B].sum().clamp(min=1)
    micro_batches = trainer.micro_batches(rows_B)
    mask_BT = learned_mask(settings.loss.leave_out, advantages, rollout)
    weights_B = torch.zeros(len(rollout), device=mask_BT.device)
    weights_B[rows_B] = response_weights(
        settings.loss_type or settings.loss.type,
        mask_BT[rows_B].sum(1),
        config.model.max_generated_len,
    )
    trainer.optimizer.zero_grad(set_to_none=True)
    totals: dict[str, Tensor] = {}
    if trainer.demonstrations is not None:
        totals["loss/ptx"] = trainer.demonstrations.add_gradient(trainer, place)
    for i, micro_B in enumerate(micro_batches):
        old = rollout.rows(micro_B)
        micro_advantages = advantages.rows(micro_B, old.response_ids_BT.shape[1])
        is_last = i + 1 == len(micro_batches)
        with trainer.no_sync(not is_last):
            with trainer.precision():
                with torch.no_grad(), _whole_policy(trainer):
                    divergence = trainer.algorithm.divergence(
                        trainer.actor_critic.policy, old, trainer.logprob_temperature
                    )
                new = trainer.model(
                    old.prompt_ids_BP,
                    old.prompt_mask_BP,
                    old.response_ids_BT,
                    old.response_mask_BT,
                    old.support_BTW,
                    old.conversation_BL,
                    temperature=trainer.logprob_temperature,
                    entropy_gradient=trainer.entropy.coef > 0,
                    divergence=divergence,
                    repetition_penalty=trainer.sampling.repetition_penalty,
                )
            if own_are_old:
                old = replace(old, logprobs_BT=new.logprobs_BT.detach())
            loss = trainer.token_loss(new, old, micro_advantages)
            weighted_BT = loss.loss_BT * weights_B[micro_B, None]
            share_of_mean = masked_sum(weighted_BT, mask_BT[micro_B, : weighted_BT.shape[1]])
            (share_of_mean * gradient_scale(trainer, rows_B, micro_B)).backward()
        add_token_means(totals, loss.metrics, old.response_mask_BT, n_tokens)
    metrics = trainer.summed(totals)
    target_kl = _target_kl(config)
    if target_kl is not None and not is_first and metrics["approx_kl"] > target_kl:
        return None
    return metrics | trainer.clip_and_step()


def _whole_policy(trainer: OnPolicy) -> AbstractContextManager[Any]:
    """A context in which the algorithm may read the policy, if it does before a forward pass."""
    reads = "divergence" in own_hooks(type(trainer.algorithm))
    return unsharded(trainer.actor_critic) if reads else nullcontext()


def gradient_scale(trainer: OnPolicy, rows_B: Tensor, micro_B: Tensor) -> float:
    """What the loss of a micro-batch is multiplied by, before the gradients are averaged."""
    if trainer.config.train.minibatches == "published":
        # As in the published code: too large by the number of micro-batches per rank. Its loss is
        # the micro-batch's mean over tokens, times its mean length over that of the batch:
        # (sum / tokens) (tokens / len(micro_B)) / (n_tokens / len(rows_B)).
        return len(rows_B) / len(micro_B)
    # DDP averages gradients over the ranks, but their sum is needed.
    return trainer.accelerator.num_processes


def token_loss(
    trainer: OnPolicy, new: PolicyOutput, old: Rollout, advantages: Advantages
) -> TokenLoss:
    """The algorithm's loss, plus the optional KL penalty and entropy bonus.

    With `sampler.importance_cap`, the policy's loss has a weight per token.
    """
    kl, entropy = trainer.kl, trainer.entropy
    advantages, weight_metrics = trainer.sampler.weighted(advantages, old)
    algorithm_loss = trainer.algorithm.loss(new, old, advantages)
    check_returned(trainer.algorithm, "loss", algorithm_loss, old.response_mask_BT)
    loss_BT = algorithm_loss.loss_BT
    metrics = {**algorithm_loss.metrics, **weight_metrics}
    if entropy.target is not None:  # needed, whatever an algorithm logs
        assert new.entropy_BT is not None
        metrics["entropy"] = new.entropy_BT.detach()
    if trainer.config.algorithm.kl_in_loss:
        kl_BT = kl_k3(new.logprobs_BT, old.ref_logprobs_BT)
        loss_BT = loss_BT + kl.coef * kl_BT
        metrics["loss/kl"] = kl_BT.detach()
    if entropy.coef:
        assert new.entropy_BT is not None
        loss_BT = loss_BT - entropy.coef * new.entropy_BT
    metrics["loss/total"] = loss_BT.detach()
    return TokenLoss(loss_BT, metrics)
