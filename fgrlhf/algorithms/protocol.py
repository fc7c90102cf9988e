"""The interface between the trainer and an on-policy algorithm."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch
from torch import Tensor

from fgrlhf.algorithms.config import AlgorithmConfig
from fgrlhf.base.errors import UserError
from fgrlhf.text_types import Prompt
from fgrlhf.types import (
    Advantages,
    Divergence,
    PolicyOutput,
    Rollout,
    TokenLoss,
    TokenReward,
)

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from accelerate import Accelerator

    from fgrlhf.configs.sections import PolicyConfig, Sampling
    from fgrlhf.models.base import Policy
    from fgrlhf.runs.optimizer import Average
    from fgrlhf.value import ActorCritic


class Algorithm(Protocol):
    """An on-policy algorithm: a config class, two methods, and hooks that have defaults.

    An algorithm outside the library inherits from this class, and `algorithm: {name: python, of:
    my_package.my_module.MyAlgorithm}` selects it. docs/algorithms.md has an example.

    Attributes:
      config_class: the settings it reads; a subclass of `AlgorithmConfig`. `name` and `of` are
        added to it.
      needs_values: whether it needs a critic. If so, `Rollout.values_BT` and
        `PolicyOutput.values_BT` are set, and its advantages must have `returns_BT`.
      reuses_rollouts: whether its loss is valid for several epochs over one rollout
        (`train.n_ppo_epoch_per_rollout`), because it corrects for the change of the policy; may
        depend on the settings.
      supports_fsdp2: whether a class with hooks (`HOOKS` of the registry) can train a policy that
        is divided among processes (`parallel.strategy: fsdp2`). A class without hooks always can.
      config: its settings, an instance of `config_class`.
    """

    config_class: ClassVar[type[AlgorithmConfig]]
    needs_values: ClassVar[bool]
    reuses_rollouts: bool
    supports_fsdp2: ClassVar[bool] = False
    config: Any

    def __init__(self, config: Any):
        self.config = config

    @abstractmethod
    def advantages(
        self, rollout: Rollout, penalized_BT: Tensor, rewards: TokenReward
    ) -> Advantages:
        """Advantages (and, with a critic, returns) of a step's rollouts, 0 on padding.

        Args:
          penalized_BT: the sum over the aspects, minus the KL unless it is part of the loss.
          rewards: the same rewards by aspect, without the penalty, and their segments.
        """
        ...

    @abstractmethod
    def loss(self, new: PolicyOutput, old: Rollout, advantages: Advantages) -> TokenLoss:
        """The loss per token of some rollouts, and metrics to log.

        The trainer adds the KL (`kl.part_of`) and the entropy bonus, and averages over tokens.

        Args:
          new: log-probabilities, entropies and values under the current weights.
          old: the rollouts, with log-probabilities and values at the time of sampling.
        """
        ...

    # ---- hooks -----------------------------------------------------------------------------------

    def training_policy(self, policy: "Policy") -> "Policy":
        """The policy that is sampled and trained, made from the one that is evaluated and saved.

        Called once, before the first step. Default: the policy itself.
        """
        return policy

    def begin(self, policy: "Policy", prompts: Sequence[Prompt], model: "PolicyConfig") -> None:
        """Called once, before the first step, with the section `model` of the config."""

    def before_rollout(self, step: int) -> None:
        """Called in every step before responses are sampled."""

    def after_rollout(self, rollout: Rollout, temperature: float, num_samples: int) -> Rollout:
        """The rollout that the rest of the step uses. Default: the rollout as it was collected.

        Args:
          temperature: of the log-probabilities.
          num_samples: responses to each prompt.
        """
        return rollout

    def divergence(self, policy: "Policy", old: Rollout, temperature: float) -> Divergence | None:
        """What gives `divergence_BT` of the policy's output on some rollouts. Default: nothing.

        Called without gradients, before each forward pass of an update. Every process holds the
        policy's whole weights.
        """
        return None

    def update(
        self, trainer: "Trainer", rollout: Rollout, advantages: Advantages
    ) -> dict[str, float]:
        """Train on one step's rollouts; return metrics to log.

        Default: optimiser steps on the loss, over epochs and minibatches. One that does not use
        them updates `trainer.average`, if there is one, after each of its steps.
        """
        return trainer.gradient_steps(rollout, advantages)


def check_returned(algorithm: Algorithm, method: str, returned: Any, mask_BT: Tensor) -> None:
    """Check what the method `advantages` or `loss` of an algorithm has returned.

    Raises:
      UserError: it is not an `Advantages` or `TokenLoss` with one value per token, or an algorithm
        with a critic has no `returns_BT`.
    """
    expected = Advantages if method == "advantages" else TokenLoss
    field = "advantages_BT" if method == "advantages" else "loss_BT"
    name = f"{type(algorithm).__module__}.{type(algorithm).__qualname__}.{method}"
    way_out = f"return fgrlhf.types.{expected.__name__} with {field}, one number per token"
    if not isinstance(returned, expected):
        raise UserError(
            f"{name} returned an object of the class {type(returned).__name__}: {way_out}"
        )
    shape = tuple(getattr(returned, field).shape)
    if shape != tuple(mask_BT.shape):
        raise UserError(
            f"{name} returned {field} of the shape {shape}, not {tuple(mask_BT.shape)}: {way_out}"
        )
    if isinstance(returned, Advantages) and algorithm.needs_values and returned.returns_BT is None:
        raise UserError(
            f"{name} returned no returns_BT, the targets of the critic: add them, or set"
            " needs_values = False"
        )


class TrainSettings(Protocol):
    """The keys of the section `train` that an algorithm's own `update` may read."""

    n_ppo_epoch_per_rollout: int
    n_critic_warmup_steps: int
    max_grad_norm: float | None


class RunConfig(Protocol):
    """The part of a run's config that an algorithm's own `update` may read."""

    @property
    def train(self) -> TrainSettings: ...


class Trainer(Protocol):
    """The trainer as an algorithm's own `update` may use it (fgrlhf/trainer.py implements it)."""

    @property
    def config(self) -> RunConfig: ...

    @property
    def actor_critic(self) -> "ActorCritic": ...

    @property
    def optimizer(self) -> torch.optim.Optimizer: ...

    @property
    def accelerator(self) -> "Accelerator": ...

    @property
    def average(self) -> "Average | None": ...

    @property
    def step(self) -> int: ...

    @property
    def logprob_temperature(self) -> float: ...

    @property
    def sampling(self) -> "Sampling": ...

    def gradient_steps(self, rollout: Rollout, advantages: Advantages) -> dict[str, float]:
        """Optimiser steps on the loss, over epochs and minibatches; return their mean metrics."""
        ...

    def minibatches(self, n_rows: int, epoch: int) -> list[Tensor]:
        """The row numbers of each minibatch of an epoch, over all processes."""
        ...

    def micro_batches(self, rows_B: Tensor) -> list[Tensor]:
        """The current process's share of a minibatch's rows, in parts that fit into memory."""
        ...

    def token_loss(self, new: PolicyOutput, old: Rollout, advantages: Advantages) -> TokenLoss:
        """The algorithm's loss, plus the KL and the entropy bonus if the config enables them."""
        ...

    def set_learning_rates(self) -> None:
        """Set this step's learning rates in the optimiser."""
        ...

    def check_finite(self, grad_norm: Tensor) -> None:
        """Raise `UserError` if the norm of a gradient is not finite."""
        ...

    def sum_over_processes(self, tensor: Tensor) -> Tensor:
        """The sum of the processes' tensors, on every process."""
        ...

    def precision(self) -> "AbstractContextManager[Any]":
        """A context in which forward passes use the precision of `model.dtype`."""
        ...
