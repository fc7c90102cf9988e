"""Trust region policy optimisation (Schulman et al. 2015, arXiv 1502.05477).

    maximise  mean_t A_t pi(a_t) / pi_old(a_t)    subject to    mean_t KL(pi_old(. | s_t) || pi(. |
    s_t)) <= delta

Near pi_old the constraint is 1/2 x^T F x, F the Fisher matrix; the maximiser along the natural
gradient is x = sqrt(2 delta / s^T F s) s with F s = g. s comes from conjugate gradients, which need
only products F v, and x is halved until the exact KL keeps the bound and the objective has risen.
The critic is trained apart, with Adam.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from fgrlhf.algorithms.losses import surrogate_loss
from fgrlhf.policy import Policy
from fgrlhf.ppo import PPO, policy_metrics
from fgrlhf.runs.distributed import share_of
from fgrlhf.runs.step_metrics import mean_of
from fgrlhf.trainer import OnPolicyTrainer
from fgrlhf.types import Advantages, PolicyOutput, Rollout, TokenLoss
from fgrlhf.utils import masked_sum


def conjugate_gradient(
    product: Callable[[Tensor], Tensor], b: Tensor, steps: int, tolerance: float = 1e-10
) -> Tensor:
    """x with A x = b after at most `steps` steps; `product(v)` is A v, A symmetric and positive
    (Hestenes, Stiefel 1952).

    It stops where |b - A x|^2 <= tolerance * |b|^2, whatever the size of b.
    """
    x, residual = torch.zeros_like(b), b.clone()
    direction, size = residual.clone(), residual @ residual
    enough = tolerance * size
    for _ in range(steps):
        if size <= enough:
            break
        through = product(direction)
        length = size / (direction @ through)
        x, residual = x + length * direction, residual - length * through
        smaller = residual @ residual
        direction, size = residual + smaller / size * direction, smaller
    return x


def token_kl(old_logits_NV: Tensor, new_logits_NV: Tensor) -> Tensor:
    """kl_N = sum_v p_v (log p_v - log q_v), p = softmax(old), q = softmax(new)."""
    old_NV, new_NV = old_logits_NV.log_softmax(-1), new_logits_NV.log_softmax(-1)
    return (old_NV.exp() * (old_NV - new_NV)).sum(-1)


class TRPO(PPO):
    """PPO's advantages and critic; the surrogate without clipping."""

    def loss(self, new: PolicyOutput, old: Rollout, advantages: Advantages) -> TokenLoss:
        policy_BT = surrogate_loss(new.logprobs_BT, old.logprobs_BT, advantages.advantages_BT)
        return TokenLoss(policy_BT, policy_metrics(new, old, policy_BT))


class TRPOTrainer(OnPolicyTrainer):
    """The loop with an update of its own, in fp32 and in eval mode; vectors are summed over
    processes.
    """

    def update(self, rollout: Rollout, advantages: Advantages) -> dict[str, float]:
        self.actor_critic.eval()
        self._set_learning_rates()
        critic = [
            self._critic_step(rollout, advantages, rows)
            for epoch in range(self.config.train.n_ppo_epoch_per_rollout)
            for rows in self.minibatches(len(rollout), epoch)
        ]
        alone = self.step < self.config.train.n_critic_warmup_steps
        moved = self._policy_step(
            rollout, advantages, 0 if alone else self.config.algorithm.line_search_steps
        )
        return mean_of(critic) | moved | {"lr": self.optimizer.param_groups[1]["lr"]}

    # ---- the policy ------------------------------------------------------------------------------

    def _policy_step(
        self, rollout: Rollout, advantages: Advantages, tries: int
    ) -> dict[str, float]:
        """One natural gradient step within the bound, or none where no length of it raises the
        objective.
        """
        policy, settings = self.actor_critic.policy, self.config.algorithm
        parameters = [p for p in policy.parameters() if p.requires_grad]
        before = copy.deepcopy(policy).requires_grad_(False)
        parts, n_tokens = self._parts(rollout, advantages, before)
        metrics, gradient = self._surrogate(parts, n_tokens, parameters)
        self._check_finite(gradient.norm())
        metrics |= {"grad_norm": float(gradient.norm()), "trpo/kl": 0.0, "trpo/step": 0.0}
        if tries == 0 or metrics["grad_norm"] == 0:
            return metrics

        def fisher(vector: Tensor) -> Tensor:
            return self._fisher_product(parts, n_tokens, parameters, vector)

        damping = settings.cg_damping * (gradient @ fisher(gradient)) / (gradient @ gradient)
        direction = conjugate_gradient(
            lambda v: fisher(v) + damping * v, -gradient, settings.cg_steps
        )
        curvature = direction @ fisher(direction)
        full = direction * (2 * settings.max_kl / curvature.clamp(min=1e-12)).sqrt()
        start = _flat(parameters, parameters).detach()
        for i in range(tries):
            _set(parameters, start + 0.5**i * full)
            tried, kl = self._surrogate(parts, n_tokens), self._exact_kl(parts, n_tokens, before)
            if kl <= settings.max_kl and tried["loss/total"] < metrics["loss/total"]:
                return metrics | tried | {"trpo/kl": kl, "trpo/step": 0.5**i}
        _set(parameters, start)
        return metrics

    def _parts(
        self, rollout: Rollout, advantages: Advantages, before: Policy
    ) -> tuple[list[tuple[Rollout, Advantages]], Tensor]:
        """This rank's micro-batches, their log-probabilities under `before` in fp32, and the number
        of all ranks' tokens.
        """
        rows = torch.arange(len(rollout), device=rollout.response_ids_BT.device)
        mine = share_of(rows, self.accelerator.process_index, self.accelerator.num_processes)
        parts = []
        for micro in mine.split(self.config.train.training_batch_size_per_card):
            old = rollout.rows(micro)
            with torch.no_grad():
                output, _ = before(*_batch(old), temperature=self.config.logprob_temperature)
            old = replace(old, logprobs_BT=output.logprobs_BT)
            parts.append((old, advantages.rows(micro, old.response_ids_BT.shape[1])))
        return parts, rollout.response_mask_BT.sum().clamp(min=1)

    def _surrogate(self, parts, n_tokens: Tensor, parameters: Sequence[Tensor] = ()):
        """Metrics of the loss at the current weights; with `parameters` also its gradient, one
        vector.
        """
        totals: dict[str, Tensor] = {}
        gradient = torch.zeros(sum(p.numel() for p in parameters), device=self.accelerator.device)
        for old, advantages in parts:
            with torch.set_grad_enabled(len(parameters) > 0):
                new, _ = self.actor_critic.policy(
                    *_batch(old),
                    temperature=self.config.logprob_temperature,
                    entropy_gradient=self.config.algorithm.entropy_coef > 0,
                )
                made = self.token_loss(new, old, advantages)
                if parameters:
                    loss = masked_sum(made.loss_BT, old.response_mask_BT) / n_tokens
                    gradient += _flat(
                        torch.autograd.grad(loss, parameters, allow_unused=True), parameters
                    )
            for name, metric_BT in made.metrics.items():
                totals[name] = (
                    totals.get(name, 0) + masked_sum(metric_BT, old.response_mask_BT) / n_tokens
                )
        metrics = {name: float(self._sum(value)) for name, value in totals.items()}
        return (metrics, self._sum(gradient)) if parameters else metrics

    def _logits(self, policy: Policy, old: Rollout) -> Tensor:
        """logits_NV of the real response tokens, at the temperature of the log-probabilities."""
        hidden_ND = policy.hidden(*_batch(old))[old.response_mask_BT.bool()]
        return policy.project(hidden_ND).float() / self.config.logprob_temperature

    def _fisher_product(
        self, parts, n_tokens: Tensor, parameters: Sequence[Tensor], vector: Tensor
    ) -> Tensor:
        """F v, the Hessian of the mean KL from the current policy to itself, by differentiating its
        gradient once more.
        """
        total = torch.zeros_like(vector)
        for old, _ in parts:
            with sdpa_kernel(
                SDPBackend.MATH
            ):  # the only attention that can be differentiated twice
                logits_NV = self._logits(self.actor_critic.policy, old)
                kl = token_kl(logits_NV.detach(), logits_NV).sum() / n_tokens
                gradient = _flat(
                    torch.autograd.grad(kl, parameters, create_graph=True, allow_unused=True),
                    parameters,
                )
                total += _flat(
                    torch.autograd.grad(gradient @ vector, parameters, allow_unused=True),
                    parameters,
                )
        return self._sum(total)

    @torch.no_grad()
    def _exact_kl(self, parts, n_tokens: Tensor, before: Policy) -> float:
        policy = self.actor_critic.policy
        sums = [
            token_kl(self._logits(before, old), self._logits(policy, old)).sum() for old, _ in parts
        ]
        return float(self._sum(sum(sums) / n_tokens))

    # ---- the critic ------------------------------------------------------------------------------

    def _critic_step(
        self, rollout: Rollout, advantages: Advantages, rows: Tensor
    ) -> dict[str, float]:
        """One Adam step on the mean value loss over the minibatch's tokens."""
        train, critic = self.config.train, self.actor_critic.value
        n_tokens = rollout.response_mask_BT[rows].sum().clamp(min=1)
        self.optimizer.zero_grad(set_to_none=True)
        totals: dict[str, Tensor] = {}
        mine = share_of(rows, self.accelerator.process_index, self.accelerator.num_processes)
        for micro in mine.split(train.training_batch_size_per_card):
            old = rollout.rows(micro)
            with self._precision():
                values_BT = critic(*_batch(old), policy_hidden_BTD=None)
            new = PolicyOutput(old.logprobs_BT, values_BT)
            loss_BT, metrics = self.algorithm.value_loss(
                new, old, advantages.rows(micro, old.response_ids_BT.shape[1])
            )
            (masked_sum(loss_BT, old.response_mask_BT) / n_tokens).backward()
            for name, metric_BT in metrics.items():
                totals[name] = (
                    totals.get(name, 0) + masked_sum(metric_BT, old.response_mask_BT) / n_tokens
                )
        trained = [p for p in critic.parameters() if p.grad is not None]
        for p in trained:
            p.grad = self._sum(p.grad)
        norm = torch.nn.utils.clip_grad_norm_(
            trained, train.max_grad_norm if train.clip_grad else torch.inf
        )
        self._check_finite(norm)
        self.optimizer.step()
        return {name: float(self._sum(value)) for name, value in totals.items()} | {
            "grad_norm/value": float(norm)
        }

    def _sum(self, tensor: Tensor) -> Tensor:
        return (
            self.accelerator.reduce(tensor, "sum") if self.accelerator.num_processes > 1 else tensor
        )


def _batch(old: Rollout) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return old.prompt_ids_BP, old.prompt_mask_BP, old.response_ids_BT, old.response_mask_BT


def _flat(gradients: Sequence[Tensor | None], parameters: Sequence[Tensor]) -> Tensor:
    return torch.cat(
        [(torch.zeros_like(p) if g is None else g).flatten() for g, p in zip(gradients, parameters)]
    )


@torch.no_grad()
def _set(parameters: Sequence[Tensor], vector: Tensor) -> None:
    """Write a vector into parameters, in place: torch's own function makes them views of it, which
    cannot be saved.
    """
    for p, values in zip(parameters, vector.split([p.numel() for p in parameters])):
        p.copy_(values.view_as(p))
