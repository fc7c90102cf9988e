"""Trust region policy optimisation (Schulman et al. 2015, arXiv 1502.05477).

    maximise    mean_t A_t pi(a_t) / pi_old(a_t)
    subject to  mean_t KL(pi_old(. | s_t) || pi(. | s_t)) <= delta

Near pi_old the objective is linear with gradient g, and the KL of a parameter change x is
1/2 x^T F x, where F is the Fisher matrix. The solution points along the natural gradient s, with
F s = g:

    x = sqrt(2 delta / s^T F s) s

Conjugate gradients find s from products F v alone. Then x is halved until the exact KL is within
the bound and the objective has risen. The critic is trained separately, with Adam.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from fgrlhf.algorithms.actor_critic import ActorCriticAlgorithm
from fgrlhf.algorithms.config import TRPOConfig
from fgrlhf.algorithms.kl import token_divergence
from fgrlhf.algorithms.losses import surrogate_loss
from fgrlhf.algorithms.metrics import add_token_means, mean_of, policy_metrics
from fgrlhf.algorithms.protocol import Trainer
from fgrlhf.types import Advantages, PolicyOutput, Rollout, TokenLoss
from fgrlhf.utils import masked_sum

if TYPE_CHECKING:
    from fgrlhf.models.base import Policy

TOLERANCE = 1e-10  # of conjugate gradients, relative to |b|^2
DAMPING = 0.1  # added to the Fisher matrix, as a fraction of the curvature along the gradient
STEP_SIZES = 10  # tried in the line search, each half of the one before it
LEAST_CURVATURE = 1e-12  # along the step's direction; keeps the step finite if the KL is flat


def conjugate_gradient(matrix_product: Callable[[Tensor], Tensor], b: Tensor, steps: int) -> Tensor:
    """Solve A x = b for x, in at most `steps` steps (Hestenes, Stiefel 1952).

    Stops when |b - A x|^2 <= TOLERANCE * |b|^2, whatever the size of b.

    Args:
      matrix_product: v -> A v; A is symmetric and positive definite.
    """
    x = torch.zeros_like(b)
    residual = b.clone()  # b - A x
    direction = residual.clone()
    residual_norm2 = residual @ residual
    small_enough = TOLERANCE * residual_norm2
    for _ in range(steps):
        if residual_norm2 <= small_enough:
            break
        # Go to the minimum of 1/2 x^T A x - b^T x along the direction.
        product = matrix_product(direction)
        length = residual_norm2 / (direction @ product)
        x = x + length * direction
        residual = residual - length * product
        # The next direction is the new residual, made conjugate to all earlier directions.
        new_norm2 = residual @ residual
        direction = residual + new_norm2 / residual_norm2 * direction
        residual_norm2 = new_norm2
    return x


class TRPO(ActorCriticAlgorithm):
    """PPO's advantages and critic, and a step of the policy within a trust region."""

    config_class = TRPOConfig
    reuses_rollouts = True  # the critic trains for several epochs
    config: TRPOConfig

    def loss(self, new: PolicyOutput, old: Rollout, advantages: Advantages) -> TokenLoss:
        """The surrogate, without clipping and without the critic's loss."""
        policy_BT = surrogate_loss(new.logprobs_BT, old.logprobs_BT, advantages.advantages_BT)
        return TokenLoss(policy_BT, policy_metrics(new, old, policy_BT))

    def update(
        self, trainer: Trainer, rollout: Rollout, advantages: Advantages
    ) -> dict[str, float]:
        """Several epochs for the critic, then one step of the policy.

        Both are in eval mode. The critic runs in the trainer's precision, the policy in fp32.
        """
        train = trainer.config.train
        trainer.actor_critic.eval()
        trainer.set_learning_rates()
        critic_metrics = []
        for epoch in range(train.n_ppo_epoch_per_rollout):
            for rows_B in trainer.minibatches(len(rollout), epoch):
                critic_metrics.append(self.critic_step(trainer, rollout, advantages, rows_B))

        # the policy moves last; its advantages were computed before, with the old critic
        step = TrustRegionStep(self.config, trainer, rollout, advantages)
        only_critic_learns = trainer.step < train.n_critic_warmup_steps
        policy = step.measure() if only_critic_learns else step.take()
        if trainer.average is not None:
            trainer.average.update()
        # the critic's learning rate: a step of the policy has none
        critic_lr = trainer.optimizer.param_groups[1]["lr"]
        return mean_of(critic_metrics) | policy | {"lr": critic_lr}

    def critic_step(
        self, trainer: Trainer, rollout: Rollout, advantages: Advantages, rows_B: Tensor
    ) -> dict[str, float]:
        """One Adam step on the mean value loss over a minibatch's tokens."""
        train = trainer.config.train
        critic = trainer.actor_critic.value
        assert critic is not None  # since needs_values is true
        n_tokens = rollout.response_mask_BT[rows_B].sum().clamp(min=1)
        trainer.optimizer.zero_grad(set_to_none=True)
        totals: dict[str, Tensor] = {}
        for micro_B in trainer.micro_batches(rows_B):
            old = rollout.rows(micro_B)
            with trainer.precision():
                values_BT, values_BTA = critic(*_batch(old), policy_hidden_BTD=None)
            new = PolicyOutput(old.logprobs_BT, values_BT, values_BTA=values_BTA)
            micro_advantages = advantages.rows(micro_B, old.response_ids_BT.shape[1])
            loss_BT, metrics = self.value_loss(new, old, micro_advantages)
            (masked_sum(loss_BT, old.response_mask_BT) / n_tokens).backward()
            add_token_means(totals, metrics, old.response_mask_BT, n_tokens)

        parameters = []
        for p in critic.parameters():
            if p.grad is not None:
                p.grad = trainer.sum_over_processes(p.grad)
                parameters.append(p)
        bound = torch.inf if train.max_grad_norm is None else train.max_grad_norm
        norm = torch.nn.utils.clip_grad_norm_(parameters, bound)
        trainer.check_finite(norm)
        trainer.optimizer.step()
        metrics = {name: float(trainer.sum_over_processes(x)) for name, x in totals.items()}
        return metrics | {"grad_norm/value": float(norm)}


class TrustRegionStep:
    """One step of the policy: within `max_kl`, and only if it lowers the loss.

    Each process computes its own rows; gradients and Fisher products are summed over all processes.

    Args:
      config: the settings of TRPO.
      trainer: provides the policy, the loss and the processes.
      rollout, advantages: of the whole step, over all processes.
    """

    def __init__(
        self, config: TRPOConfig, trainer: Trainer, rollout: Rollout, advantages: Advantages
    ):
        self.config = config
        self.trainer = trainer
        self.temperature = trainer.logprob_temperature
        self.repetition_penalty = trainer.sampling.repetition_penalty
        self.policy = trainer.actor_critic.policy
        self.parameters = [p for p in self.policy.parameters() if p.requires_grad]
        # the KL is measured from these weights; `self.policy` changes in place
        self.old_policy = copy.deepcopy(self.policy).requires_grad_(False)
        self.n_tokens = rollout.response_mask_BT.sum().clamp(min=1)
        self.batches = self._batches(rollout, advantages)

    def _batches(
        self, rollout: Rollout, advantages: Advantages
    ) -> list[tuple[Rollout, Advantages]]:
        """The process's micro-batches, with log-probabilities of the old policy in fp32."""
        all_rows_B = torch.arange(len(rollout), device=rollout.response_ids_BT.device)
        batches = []
        for micro_B in self.trainer.micro_batches(all_rows_B):
            old = rollout.rows(micro_B)
            with torch.no_grad():
                output, _ = self.old_policy(
                    *_batch(old),
                    old.support_BTW,
                    old.conversation_BL,
                    temperature=self.temperature,
                    repetition_penalty=self.repetition_penalty,
                )
            # The rollout's may be in bf16: then the ratio would differ from 1 before any step.
            old = replace(old, logprobs_BT=output.logprobs_BT)
            batches.append((old, advantages.rows(micro_B, old.response_ids_BT.shape[1])))
        return batches

    def measure(self) -> dict[str, float]:
        """The metrics of a step that does not change the policy."""
        metrics, _ = self._measure_with_gradient()
        return metrics

    def take(self) -> dict[str, float]:
        """Change the policy, unless no step within the bound lowers the loss; return metrics."""
        config = self.config
        metrics, gradient = self._measure_with_gradient()
        if metrics["grad_norm"] == 0:
            return metrics

        # Natural gradient: solve (F + lambda I) s = -g. The damping lambda is relative to the
        # curvature along g, so it does not depend on the scale of the parameters.
        curvature_along_gradient = gradient @ self.fisher_product(gradient)
        damping = DAMPING * curvature_along_gradient / (gradient @ gradient)
        direction = conjugate_gradient(
            lambda vector: self.fisher_product(vector) + damping * vector,
            -gradient,
            config.cg_steps,
        )

        # Step length: the KL of c * s is about 1/2 c^2 s^T F s; c makes it max_kl.
        curvature = direction @ self.fisher_product(direction)
        length = (2 * config.max_kl / curvature.clamp(min=LEAST_CURVATURE)).sqrt()
        full_step = direction * length

        # Line search: halve the step until it keeps the bound exactly and lowers the loss. A step
        # that is NaN, since the KL is flat everywhere, does neither.
        start = flatten(self.parameters, self.parameters).detach()
        for i in range(STEP_SIZES):
            fraction = 0.5**i
            _write_vector(self.parameters, start + fraction * full_step)
            new_metrics = self.loss()
            kl = self.mean_kl()
            if kl <= config.max_kl and new_metrics["loss/total"] < metrics["loss/total"]:
                return metrics | new_metrics | {"trpo/kl": kl, "trpo/step": fraction}
        _write_vector(self.parameters, start)
        return metrics

    def _measure_with_gradient(self) -> tuple[dict[str, float], Tensor]:
        metrics, gradient = self.loss_and_gradient()
        norm = gradient.norm()
        self.trainer.check_finite(norm)
        return metrics | {"grad_norm": float(norm), "trpo/kl": 0.0, "trpo/step": 0.0}, gradient

    # ---- the loss --------------------------------------------------------------------------------

    def loss(self) -> dict[str, float]:
        """Metrics of the loss at the current weights."""
        totals: dict[str, Tensor] = {}
        with torch.no_grad():
            for old, advantages in self.batches:
                token_loss = self._token_loss(old, advantages)
                add_token_means(totals, token_loss.metrics, old.response_mask_BT, self.n_tokens)
        return self._summed(totals)

    def loss_and_gradient(self) -> tuple[dict[str, float], Tensor]:
        """Metrics of the loss at the current weights, and its gradient as one vector."""
        totals: dict[str, Tensor] = {}
        n_parameters = sum(p.numel() for p in self.parameters)
        gradient = torch.zeros(n_parameters, device=self.trainer.accelerator.device)
        for old, advantages in self.batches:
            with torch.enable_grad():
                token_loss = self._token_loss(old, advantages)
                mean = masked_sum(token_loss.loss_BT, old.response_mask_BT) / self.n_tokens
                gradients = torch.autograd.grad(mean, self.parameters, allow_unused=True)
                gradient += flatten(gradients, self.parameters)
            add_token_means(totals, token_loss.metrics, old.response_mask_BT, self.n_tokens)
        return self._summed(totals), self.trainer.sum_over_processes(gradient)

    def _token_loss(self, old: Rollout, advantages: Advantages) -> TokenLoss:
        new, _ = self.policy(
            *_batch(old),
            old.support_BTW,
            old.conversation_BL,
            temperature=self.temperature,
            repetition_penalty=self.repetition_penalty,
            entropy_gradient=self.config.entropy.coef > 0,
        )
        return self.trainer.token_loss(new, old, advantages)

    def _summed(self, totals: dict[str, Tensor]) -> dict[str, float]:
        return {name: float(self.trainer.sum_over_processes(x)) for name, x in totals.items()}

    # ---- the KL ----------------------------------------------------------------------------------

    def logits(self, policy: "Policy", old: Rollout) -> Tensor:
        """logits_NV of the N real response tokens, at the temperature of the log-probabilities."""
        hidden_ND = policy.states(*_batch(old), old.conversation_BL)[old.response_mask_BT.bool()]
        return policy.project(hidden_ND).float() / self.temperature

    def fisher_product(self, vector: Tensor) -> Tensor:
        """F v, where F is the Hessian of the mean KL from the current policy to itself.

        F v is the derivative along v of the KL's gradient: grad((grad KL) . v).
        """
        total = torch.zeros_like(vector)
        for old, _ in self.batches:
            # This is the only implementation of attention that can be differentiated twice.
            with sdpa_kernel(SDPBackend.MATH):
                logits_NV = self.logits(self.policy, old)
                kl = token_divergence(logits_NV, logits_NV.detach(), beta=0).sum() / self.n_tokens
                gradients = torch.autograd.grad(
                    kl, self.parameters, create_graph=True, allow_unused=True
                )
                along_vector = flatten(gradients, self.parameters) @ vector
                products = torch.autograd.grad(along_vector, self.parameters, allow_unused=True)
                total += flatten(products, self.parameters)
        return self.trainer.sum_over_processes(total)

    @torch.no_grad()
    def mean_kl(self) -> float:
        """The mean over tokens of KL(old || new), over the whole vocabulary."""
        total = torch.zeros((), device=self.n_tokens.device)
        for old, _ in self.batches:
            old_logits_NV = self.logits(self.old_policy, old)
            new_logits_NV = self.logits(self.policy, old)
            total = total + token_divergence(new_logits_NV, old_logits_NV, beta=0).sum()
        return float(self.trainer.sum_over_processes(total / self.n_tokens))


def _batch(old: Rollout) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return old.prompt_ids_BP, old.prompt_mask_BP, old.response_ids_BT, old.response_mask_BT


def flatten(tensors: Sequence[Tensor | None], parameters: Sequence[Tensor]) -> Tensor:
    """Tensors with the shapes of `parameters` as one vector; None counts as zeros."""
    pieces = []
    for tensor, parameter in zip(tensors, parameters):
        piece = torch.zeros_like(parameter) if tensor is None else tensor
        pieces.append(piece.flatten())
    return torch.cat(pieces)


@torch.no_grad()
def _write_vector(parameters: Sequence[Tensor], vector: Tensor) -> None:
    """Copy the pieces of a vector into parameters, in place.

    `torch.nn.utils.vector_to_parameters` would make the parameters views of the vector, which
    cannot be saved.
    """
    pieces = vector.split([p.numel() for p in parameters])
    for p, piece in zip(parameters, pieces):
        p.copy_(piece.view_as(p))
