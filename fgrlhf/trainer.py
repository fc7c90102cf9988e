"""The on-policy loop: batch -> collect -> reward -> KL -> advantages -> update -> log -> save.

`OnPolicyTrainer.train` is the loop. The methods below it are its steps, in order.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from accelerate import Accelerator
from torch import Tensor, nn
from tqdm import tqdm

from fgrlhf import update
from fgrlhf.algorithms.config import KL_ASPECT
from fgrlhf.algorithms.kl import EntropyController, KLController, TemperatureController
from fgrlhf.algorithms.protocol import Algorithm, check_returned
from fgrlhf.algorithms.registry import algorithm_class
from fgrlhf.alignment import segment_starts
from fgrlhf.base.errors import UserError
from fgrlhf.configs.sections import Sampling, names_of
from fgrlhf.kernels.copies import keep_copies
from fgrlhf.models.base import Policy
from fgrlhf.models.sharding import unsharded, whole
from fgrlhf.policy import cut_prompts
from fgrlhf.policy_trainer import DevEvaluation, PolicyTrainer
from fgrlhf.reward import BasicReward, RunningSpread, normalized, with_kl
from fgrlhf.rewards.build import RewardWeights
from fgrlhf.rollout import PassOrder, response_seeds, score
from fgrlhf.runs import checkpoint
from fgrlhf.runs.distributed import (
    gather_rollouts,
    gathered,
    shard_over_processes,
    share_of,
    stop_together,
)
from fgrlhf.runs.rl_config import RLConfig
from fgrlhf.runs.runlog import say
from fgrlhf.runs.step_metrics import (
    PhaseClock,
    cut_shares,
    input_counts,
    inputs_since,
    rollout_metrics,
    sample_rows,
)
from fgrlhf.samplers.sampler import make_sampler, pending_responses, pending_tensors
from fgrlhf.stats import Interval
from fgrlhf.text_types import Prompt
from fgrlhf.types import Advantages, PolicyOutput, Rollout, TokenLoss, TokenReward
from fgrlhf.utils import seeded
from fgrlhf.value import ActorCritic

if TYPE_CHECKING:
    from fgrlhf.guard import Guard
    from fgrlhf.ptx import Demonstrations


def make_trainer(
    config: RLConfig,
    actor_critic: ActorCritic,
    reference: nn.Module,
    reward: BasicReward,
    prompts: Sequence[Prompt],
    evaluate: DevEvaluation | None,
    accelerator: Accelerator,
) -> "OnPolicyTrainer":
    """Build the trainer for the algorithm named in `config.algorithm`."""
    algorithm = algorithm_class(config.algorithm)(config.algorithm)
    return OnPolicyTrainer(
        config, algorithm, actor_critic, reference, reward, prompts, evaluate, accelerator
    )


class OnPolicyTrainer(PolicyTrainer):
    """Trains a policy on its own samples.

    Everything random is a pure function of (seed, step). A resumed run therefore continues bit for
    bit on a CPU, and the random draws, except those of dropout, do not depend on the number of
    processes.

    Args:
      config: the run's settings.
      algorithm: turns rewards into advantages and advantages into a loss
        (fgrlhf/algorithms/protocol.py).
      actor_critic: policy and critic, on any device. If the algorithm masks the policy, `policy` is
        replaced by the masked one.
      reference: the frozen policy of the KL penalty, or a module with the same forward pass.
      reward: scores rollouts.
      prompts: the training prompts.
      evaluate: policy -> dev metrics by name; called on all ranks.
      accelerator: device and processes.
    Raises:
      UserError: the batch sizes are incompatible, there are no prompts, the policy would never
        learn (`train.n_critic_warmup_steps`), the sampler does not support the policy, or a
        launcher in an unsupported mode started the process.
    """

    config: RLConfig

    def __init__(
        self,
        config: RLConfig,
        algorithm: Algorithm,
        actor_critic: ActorCritic,
        reference: nn.Module,
        reward: BasicReward,
        prompts: Sequence[Prompt],
        evaluate: DevEvaluation | None,
        accelerator: Accelerator,
    ):
        self._saved_policy = actor_critic.policy
        actor_critic.policy = algorithm.training_policy(actor_critic.policy)
        super().__init__(config, actor_critic, evaluate, accelerator)
        self.algorithm = algorithm
        self.sampler = make_sampler(config.sampler, self.policy)
        self.conversations = config.env.build(self.policy)
        self.reward = reward
        self.reward_weights = RewardWeights(config.reward)
        self.prompts = prompts
        self.prompt_order = PassOrder(prompts, config.train.seed, self.prompts_per_step)
        self.mixture = self.prompt_order.mixture
        reference.eval().requires_grad_(False)
        if self.sharded:
            shard_over_processes(reference, accelerator, self.dtype)
        else:
            reference.to(accelerator.device)
            if self.dtype == "bf16":
                keep_copies(reference, self.actor_critic)
        # evaluations keep the one that stays
        self.reference = reference if self.moving_reference is None else self.moving_reference
        kl = config.algorithm.kl
        self.kl = KLController(kl.coef, kl.target, kl.horizon)
        entropy = config.algorithm.entropy
        self.entropy = EntropyController(entropy.coef, entropy.target)
        first = config.train_sampling.temperature
        self.temperature = TemperatureController(first, config.env.target_reward_std)
        self.spreads: dict[str, RunningSpread] = {}  # of rewards, for normalize_aspects: running
        self.high_kl_count = 0
        self.algorithm.begin(self.policy, prompts, config.model)
        self.demonstrations = self._read_demonstrations()
        self._said_all_left_out = False
        self.guard = self._make_guard()
        self.best_is_checkpoint = self.guard is not None  # the guard restores it
        if not prompts:
            raise UserError(f"{names_of(config.data.train_file)} has no prompts to train on")
        sizes = (self.episodes_per_step, self.total_steps)
        config.train.check_sizes(*sizes, accelerator.num_processes)
        for note in config.train.size_notes(*sizes, self.warmup_steps):
            say(note)
        self.cut_ids = {prompt.id for prompt in cut_prompts(self.policy, prompts)}

    @property
    def policy(self) -> Policy:
        """The policy that is evaluated and saved, without the algorithm's mask (if any)."""
        return self._saved_policy

    @property
    def sampling(self) -> Sampling:
        """How this step samples responses."""
        return replace(self.config.train_sampling, temperature=self.temperature.value)

    @property
    def logprob_temperature(self) -> float:
        """The temperature of this step's log-probabilities in ratio and KL."""
        if self.temperature.target is None or self.config.env.logprob_temperature is not None:
            return self.config.logprob_temperature
        return self.temperature.value

    # ---- the loop --------------------------------------------------------------------------------

    def train(self, until: int | None = None) -> None:
        resumed = checkpoint.load_latest(self) and self.step > 0
        if self._is_finished(resumed):
            return
        if self.best_is_checkpoint and self.step == 0:
            checkpoint.save(self)
        self._start_log(resumed)
        bar = self._progress_bar()
        last = self.total_steps if until is None else min(until, self.total_steps)
        while self.step < last and not self.stopped:
            if self.step % self.steps_between_evaluations == 0:
                self._evaluate(bar)
                if self.stopped:  # by the guard
                    break

            clock = PhaseClock()
            with seeded(*self.seed_of_step):
                with clock.time("publish"):
                    self.publish_weights()
                with clock.time("rollout"):
                    self.sample_ahead()
                    # dev evaluations count inputs too, so take the difference over this step
                    inputs_before = input_counts(self.reward)
                    rollout, rewards = self.collect_and_score()
                    scored_inputs = inputs_since(self.reward, inputs_before)
                    gap_metrics = self.sampler.gap_metrics(rollout, self.step)
                    penalized_BT, advantages = self.compute_advantages(rollout, rewards)
                with clock.time("update"):
                    update_metrics = self.update(rollout, advantages)
                with clock.time("wait_for_sampler"):
                    self.wait_for_sampler()

            aspects = tuple(self.config.critic_aspects or ())
            metrics = rollout_metrics(rollout, rewards, penalized_BT, advantages, aspects)
            metrics |= update_metrics
            metrics |= gap_metrics
            metrics["kl_coef"] = self.kl.coef
            metrics |= self._adapt_entropy_bonus(update_metrics)
            metrics |= self._adapt_temperature(metrics["reward_std"])
            metrics |= self._weight_metrics(rewards)
            n_cut = sum(prompt.id in self.cut_ids for prompt in rollout.prompts)
            metrics["prompts/cut"] = n_cut / len(rollout)
            metrics |= cut_shares(gathered(self.accelerator, scored_inputs))
            metrics |= clock.seconds(self._timed_phases())
            if self.guard is not None:
                self.guard.see_step(metrics)
            self._log_step(metrics, rollout, rewards, advantages, bar)

            self._follow_kl(metrics["kl"])
            self.step += 1
            self.sync_reference()
            if self._checkpoint_is_due(last):
                checkpoint.save(self)
        if self.step == self.total_steps or self.stopped:
            if not self._is_stopped_by_guard:
                self._evaluate(bar)  # even if no evaluation is due at this step
            self._save_last()
            if self._is_stopped_by_guard:
                checkpoint.save(self)
            self._say_where_policies_are(bar)
        bar.close()
        self.log.close()

    def _timed_phases(self) -> list[str]:
        """The phases of a step that take time with this sampler."""
        phases = ["rollout", "update"]
        if self.sampler.has_own_weights:
            phases.append("publish")
        if self.sampler.samples_ahead:
            phases.append("wait_for_sampler")
        return phases

    # ---- the steps of the loop -------------------------------------------------------------------

    def publish_weights(self) -> None:
        """Give the policy's current weights to a sampler that has its own.

        Called before every rollout: after every update, and when a run starts or is resumed.
        """
        if not self.sampler.has_own_weights:
            return
        is_main = self.accelerator.is_main_process
        weights = None
        if self.sharded:
            weights = whole(self.policy.model.state_dict(keep_vars=True), keep=is_main)
        with stop_together(self.accelerator):
            if is_main:
                self.sampler.publish(lambda folder: self.policy.save(folder, weights))

    def sample_ahead(self) -> None:
        """With `sampler.one_step_behind`, start to sample the next step's responses.

        The server samples them, from the weights published last, while this step trains. No step
        precedes the first one, so its responses are sampled before training begins.
        """
        if not self.sampler.samples_ahead:
            return
        if self.step == 0:
            self._begin_sampling(0)
            self.wait_for_sampler()
        if self.step + 1 < self.total_steps:
            self._begin_sampling(self.step + 1)

    def _begin_sampling(self, step: int) -> None:
        config = self.config
        prompts, seeds = self.share(step)
        num_samples = config.env.train_num_samples_per_input
        draw = (self.sampling, seeds, num_samples, self.logprob_temperature)
        with stop_together(self.accelerator):
            self.sampler.begin(self.policy, *self.policy.encode(prompts), *draw)

    def sample_again(self) -> None:
        """Sample this step's responses from the current weights, if others had begun them."""
        if not self.sampler.samples_ahead:
            return
        with seeded(*self.seed_of_step):
            self.publish_weights()
            self._begin_sampling(self.step)
            self.wait_for_sampler()

    def wait_for_sampler(self) -> None:
        """Wait for the responses that `sample_ahead` has begun."""
        if self.sampler.samples_ahead:
            with stop_together(self.accelerator):
                self.sampler.wait()

    def collect_and_score(self) -> tuple[Rollout, TokenReward]:
        """Sample and score this step's rollouts; every rank gets those of all ranks."""
        self._forget_frozen_states()
        prompts, seeds = self.share(self.step)
        with unsharded(self.actor_critic, self.reference), stop_together(self.accelerator):
            rollout = self.sample(prompts, seeds)
        with stop_together(self.accelerator):
            rewards = self.reward.token_rewards(rollout)
        if self.config.has_monte_carlo_values:
            from fgrlhf.monte_carlo import with_values  # only the runs that need it load it

            with unsharded(self.actor_critic, self.reference), stop_together(self.accelerator):
                rollout = with_values(self, rollout, rewards, seeds)
        pad_id = self.policy.tokenizer.pad_token_id
        return gather_rollouts(self.accelerator, rollout, rewards, pad_id)

    def _forget_frozen_states(self) -> None:
        """Forget what frozen layers computed of the last rollout: the next one has other tokens."""
        for module in self.actor_critic.modules():
            if isinstance(module, Policy) and module.frozen_layers is not None:
                module.frozen_layers.forget()

    def sample(self, prompts: Sequence[Prompt], seeds: Sequence[int]) -> Rollout:
        """Sample this rank's rollouts.

        Args:
          prompts: this rank's prompts.
          seeds: one per response.
        """
        config = self.config
        num_samples = config.env.train_num_samples_per_input
        temperature = self.logprob_temperature
        self.actor_critic.train(config.dropout_in_rollouts)
        self.algorithm.before_rollout(self.step)
        with self.precision():
            policy = self.actor_critic.policy
            encoded = policy.encode(prompts)
            draw = (self.sampling, seeds, num_samples, temperature)
            response = self.sampler.sample(policy, *encoded, *draw)
            if self.conversations is not None:
                response = self.conversations.continued(policy, prompts, encoded, response, *draw)
            rollout = score(
                self.actor_critic,
                self.reference,
                prompts,
                *encoded,
                response,
                num_samples,
                temperature,
                # a server scores while this process computes log-probabilities
                texts_known=self.reward.start,
                sampling=self.sampling,
            )
            return self.algorithm.after_rollout(rollout, temperature, num_samples)

    def compute_advantages(
        self, rollout: Rollout, rewards: TokenReward
    ) -> tuple[Tensor, Advantages]:
        """The KL-penalised rewards penalized_BT, and the advantages computed from them."""
        rewards, penalized_BT = self.penalized(rollout, rewards)
        advantages = self.algorithm.advantages(rollout, penalized_BT, rewards)
        mask_BT = rollout.response_mask_BT
        check_returned(self.algorithm, "advantages", advantages, mask_BT)
        if self.config.algorithm.loss.importance_level == "segment":
            starts_BT = segment_starts(rewards.segments.values(), rollout.char_ends, mask_BT)
            segment_BT = (starts_BT.long().cumsum(1) - 1).clamp(min=0)  # an empty row starts none
            advantages = replace(advantages, segment_BT=segment_BT)
        return penalized_BT, advantages

    def penalized(self, rollout: Rollout, rewards: TokenReward) -> tuple[TokenReward, Tensor]:
        """The rewards with the weights of this step, and penalized_BT, their sum less the KL."""
        settings = self.config.algorithm
        if settings.normalize_aspects in ("batch", "running"):
            is_running = settings.normalize_aspects == "running"
            rewards = normalized(rewards, self.spreads if is_running else None)
        rewards = self.reward_weights.applied(rewards, self.step)
        kl_coef = 0.0 if settings.kl_in_loss else self.kl.coef
        penalized_BT = self.reward.penalized(rewards, rollout, kl_coef)
        if KL_ASPECT in (self.config.critic_aspects or ()):
            rewards = with_kl(rewards, rollout, kl_coef, settings.kl.coef)
        return rewards, penalized_BT

    def update(self, rollout: Rollout, advantages: Advantages) -> dict[str, float]:
        """Train on the rollouts; return the metrics of the update.

        Most algorithms use `gradient_steps`; TRPO has its own update.
        """
        share = update.left_out(self.config, rollout, advantages)
        if share.get("loss/left_out") == 1 and not self._said_all_left_out:
            self._said_all_left_out = True
            say(f"note: step {self.step}: {update.ALL_LEFT_OUT}")
        return self.algorithm.update(self, rollout, advantages) | share

    # ---- the update ------------------------------------------------------------------------------

    def gradient_steps(self, rollout: Rollout, advantages: Advantages) -> dict[str, float]:
        """Train for several epochs of minibatches on one rollout; return the mean metrics."""
        return update.gradient_steps(self, rollout, advantages)

    def token_loss(self, new: PolicyOutput, old: Rollout, advantages: Advantages) -> TokenLoss:
        """The algorithm's loss, plus the optional KL penalty and entropy bonus."""
        return update.token_loss(self, new, old, advantages)

    def set_learning_rates(self) -> None:
        """Set this step's learning rates of policy and critic."""
        scale = 1.0 if self.guard is None else self.guard.lr_factor
        factors = (scale * self.policy_lr_factor(self.step), scale * self.lr_factor(self.step))
        for group, factor in zip(self.optimizer.param_groups, factors):
            group["lr"] = group["peak_lr"] * factor

    def minibatches(self, n_rows: int, epoch: int) -> list[Tensor]:
        """The rows of each optimiser step of an epoch, as indices into the global batch."""
        num_samples = n_rows // self.prompts_per_step  # an algorithm may leave some of them out
        parts = update.minibatches(self.config.train, self.step, epoch, n_rows, num_samples)
        return [rows_B.to(self.accelerator.device) for rows_B in parts]

    def micro_batches(self, rows_B: Tensor) -> list[Tensor]:
        """The rank's rows of a minibatch, in parts of `micro_batch_size`."""
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        share_B = rows_B[list(share_of(range(len(rows_B)), rank, world))]
        return list(share_B.split(self.config.train.micro_batch_size))

    # ---- pure functions of (config, step) --------------------------------------------------------

    @property
    def total_steps(self) -> int:
        return math.ceil(self.config.train.total_episodes / self.episodes_per_step)

    @property
    def rows_per_step(self) -> int:
        return self.prompts_per_step

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(len(self.prompts) / self.prompts_per_step)

    @property
    def prompts_per_step(self) -> int:
        return self.config.train.sampling_batch_size_per_card * self.accelerator.num_processes

    @property
    def episodes_per_step(self) -> int:
        return self.prompts_per_step * self.config.env.train_num_samples_per_input

    def share(self, step: int) -> tuple[list[Prompt], list[int]]:
        """The rank's prompts of a step, and a seed for each of their responses."""
        batch = self.prompt_order.of_step(step)
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        indices = share_of(range(len(batch)), rank, world)
        num_samples = self.config.env.train_num_samples_per_input
        seeds = response_seeds(self.config.train.seed, step, indices[0], len(indices), num_samples)
        return [batch[i] for i in indices], seeds

    def policy_lr_factor(self, step: int) -> float:
        """0 while only the critic learns; then `lr_factor`, counted from the first policy step.

        The advantages of an untrained critic reflect a token's position more than its quality
        (early tokens have more reward ahead of them), and Adam's first steps are large whatever the
        gradient. Both settle before the policy moves.
        """
        critic_only = self.config.train.n_critic_warmup_steps
        if step < critic_only:
            return 0.0
        return self.lr_factor(step, critic_only)

    # ---- stopping, checkpoints -------------------------------------------------------------------

    @property
    def stopped(self) -> bool:
        """Whether the KL was too high too often, or the guard gave up; the same on every rank."""
        return self.high_kl_count >= self.config.train.kl_patience or self._is_stopped_by_guard

    @property
    def _is_stopped_by_guard(self) -> bool:
        return self.guard is not None and self.guard.gave_up

    def _make_guard(self) -> "Guard | None":
        if self.config.train.guard is None:
            return None
        from fgrlhf.guard import Guard  # only the runs that have one load it

        return Guard(self.config.train.guard, self.config.evaluation_metrics)

    def _read_demonstrations(self) -> "Demonstrations | None":
        if self.config.algorithm.ptx is None:
            return None
        from fgrlhf.ptx import read_demonstrations  # only the runs that have some load it

        train = self.config.train
        samples = (
            self.config.algorithm.trained_samples or self.config.env.train_num_samples_per_input
        )
        rows_per_step = self.prompts_per_step * samples // train.n_minibatches
        steps_per_update = update.epochs(self.algorithm, train) * train.n_minibatches
        return read_demonstrations(self.config, self.policy, rows_per_step, steps_per_update)

    def progress(self) -> dict:
        return super().progress() | {
            "kl_coef": self.kl.coef,
            "spreads": {name: asdict(spread) for name, spread in self.spreads.items()},
            "entropy_alpha": self.entropy.alpha,
            "entropy_coef": self.entropy.coef,
            "temperature": self.temperature.value,
            "high_kl_count": self.high_kl_count,
            "multipliers": self.reward_weights.multipliers,
            "guard": None if self.guard is None else self.guard.progress(),
        }

    def restore(self, state: dict) -> None:
        super().restore(state)
        self.kl.coef = state["kl_coef"]
        self.high_kl_count = state["high_kl_count"]
        self.restore_adapted(state)
        if self.guard is not None:
            self.guard.restore(state["guard"])

    def restore_adapted(self, state: dict) -> None:
        """Restore what adapted to the policy of a checkpoint; a guard keeps the KL coefficient."""
        spreads = state.get("spreads", {})
        self.spreads = {name: RunningSpread(**spread) for name, spread in spreads.items()}
        self.entropy.alpha = state.get("entropy_alpha", 0.0)
        self.entropy.coef = state.get("entropy_coef", self.entropy.coef)
        self.temperature.value = state.get("temperature", self.temperature.value)
        self.reward_weights.multipliers = state.get("multipliers", {})

    def pending_tensors(self) -> dict[str, Tensor]:
        if not self.sampler.samples_ahead:
            return {}
        return pending_tensors(gathered(self.accelerator, self.sampler.pending))

    def restore_pending(self, tensors: Mapping[str, Tensor]) -> None:
        self.sampler.restore(pending_responses(tensors))

    def _checkpoint_is_due(self, last: int) -> bool:
        regular = self.step % self.steps_between_checkpoints == 0
        return regular or self.step == last or self.stopped

    def _evaluate(self, bar: tqdm) -> None:
        """Evaluate on dev; where the guard raises an alarm, go on as it says."""
        super()._evaluate(bar)
        if self.guard is not None and self.guard.alarm:
            self.guard.act(self, bar)

    def _judged(self, results: Mapping[str, float | Interval]) -> dict[str, float]:
        return {} if self.guard is None else self.guard.judge(self.step, results, self.best)

    def _objection(self, metrics: Mapping[str, float]) -> str:
        """A policy far from the reference, or one that the guard doubts, is never the best.

        That far from the reference a high reward usually means reward hacking.
        """
        kl = metrics.get("kl", 0.0)
        if kl > self.config.train.kl_threshold:
            return f"kl {kl:.1f} exceeds train.kl_threshold"
        return "" if self.guard is None else self.guard.doubt

    def _adapt_entropy_bonus(self, update_metrics: Mapping[str, float]) -> dict[str, float]:
        """Log the coefficient of this step, if it adapts, and adapt that of the next one."""
        if self.entropy.target is None:
            return {}
        used = {"entropy_coef": self.entropy.coef}
        if self.step >= self.config.train.n_critic_warmup_steps:  # the policy learns
            self.entropy.update(update_metrics["entropy"])
        return used

    def _adapt_temperature(self, reward_std: float) -> dict[str, float]:
        """Log the temperature of this step, if it adapts, and adapt that of the next one."""
        if self.temperature.target is None:
            return {}
        used = {"temperature": self.temperature.value}
        self.temperature.update(reward_std)
        return used

    def _follow_kl(self, kl: float) -> None:
        # A policy that does not learn yet has a KL of 0, which says nothing about the coefficient.
        if self.step >= self.config.train.n_critic_warmup_steps:
            self.kl.update(kl, self.episodes_per_step)
        if kl > self.config.train.kl_threshold:
            self.high_kl_count += 1

    # ---- logging ---------------------------------------------------------------------------------

    def _weight_metrics(self, rewards: TokenReward) -> dict[str, float]:
        """The weights of this step that change; the multipliers then follow the batch."""
        weights = self.reward_weights.at(self.step)
        metrics = {f"weight/{name}": weight for name, weight in weights.items()}
        if self.step >= self.config.train.n_critic_warmup_steps:  # the policy learns
            values = self.reward_weights.follow(rewards, self.reward)
            metrics |= {f"constraint/{name}": value for name, value in values.items()}
        return metrics

    def _log_step(
        self,
        metrics: dict[str, float],
        rollout: Rollout,
        rewards: TokenReward,
        advantages: Advantages,
        bar: tqdm,
    ) -> None:
        config = self.config
        if self.step % config.logging.log_interval == 0:
            columns = self.mixture_columns(self.step + 1)
            columns["episodes"] = (self.step + 1) * self.episodes_per_step
            self.log.log(self.step, metrics | columns)
        if self.step % self.steps_between_evaluations == 0 or self.step + 1 == self.total_steps:
            rows = sample_rows(
                self.policy.tokenizer, rollout, rewards, advantages, config.logging.n_samples
            )
            self.log.samples(self.step, rows)
        bar.set_postfix(
            reward=f"{metrics['reward/total']:z.3f}", kl=f"{metrics['kl']:z.2f}", refresh=False
        )
        bar.update()

    def _say_where_policies_are(self, bar: tqdm) -> None:
        """Also print why the run has stopped early, if the KL was too high."""
        super()._say_where_policies_are(bar)
        is_too_far = self.stopped and not self._is_stopped_by_guard
        if is_too_far and self.accelerator.is_main_process:
            bar.write(
                f"stopped at step {self.step}: the KL from the reference exceeded"
                f" train.kl_threshold={self.config.train.kl_threshold} {self.high_kl_count} times."
                " Raise algorithm.kl.coef or lower train.lr"
            )

    # ---- construction ----------------------------------------------------------------------------

    def _parameter_groups(self) -> list[dict]:
        """The policy's parameters, then the critic's: each group has its own learning rate."""
        train = self.config.train
        parts: list[tuple[nn.Module, float]] = [(self.actor_critic.policy, train.lr)]
        if self.actor_critic.value is not None:
            parts.append((self.actor_critic.value, train.value_lr or train.lr))
        groups = []
        for module, lr in parts:
            trained = [p for p in module.parameters() if p.requires_grad]
            groups.append({"params": trained, "lr": lr, "peak_lr": lr})
        return groups
