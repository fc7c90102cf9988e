"""The one on-policy loop: batch -> collect -> reward -> KL -> advantages -> update -> log ->
save.
"""

from collections.abc import Callable, Sequence
from time import perf_counter

import torch
from accelerate import Accelerator
from torch import Tensor
from tqdm import tqdm

from fgrlhf.algorithms.kl import KLController
from fgrlhf.algorithms.losses import kl_k3
from fgrlhf.base_trainer import BaseTrainer
from fgrlhf.errors import UserError
from fgrlhf.policy import Policy, cut_prompts
from fgrlhf.reward import BasicReward, normalized
from fgrlhf.rollout import collect, response_seeds
from fgrlhf.runs import checkpoint
from fgrlhf.runs.distributed import gather_rollouts, share_of, stop_together
from fgrlhf.runs.rl_config import RLConfig
from fgrlhf.runs.runlog import RunLog
from fgrlhf.runs.stage import hold
from fgrlhf.runs.step_metrics import cut_inputs, mean_of, rollout_metrics, sample_rows
from fgrlhf.types import Advantages, PolicyOutput, Prompt, Rollout, TokenLoss, TokenReward
from fgrlhf.utils import derive_seed, masked_sum, seeded
from fgrlhf.value import ActorCritic


class OnPolicyTrainer(BaseTrainer):
    """Trains a policy on its own samples.

    Everything random is a pure function of (seed, step), so a resumed run continues bit for bit on
    a CPU and several processes draw what one process draws.

    Args:
      config: the run's settings.
      algorithm: an object with `needs_values`, `reuses_rollouts` (whether its loss holds for
        several epochs), `advantages(rollout, rewards_BT, rewards)` and `loss(new, old,
        advantages)`.
      actor_critic: policy and critic, on the accelerator's device or not.
      reference: the frozen policy of the KL penalty.
      reward: scores rollouts.
      prompts: what to train on.
      evaluate: dev metrics of the current policy, called on all ranks with the accelerator: name ->
        value.
      accelerator: device and processes.
    """

    def __init__(
        self,
        config: RLConfig,
        algorithm,
        actor_critic: ActorCritic,
        reference: Policy,
        reward: BasicReward,
        prompts: Sequence[Prompt],
        evaluate: Callable[[Policy], dict[str, float]] | None,
        accelerator: Accelerator,
    ):
        super().__init__(config, actor_critic, evaluate, accelerator)
        self.algorithm, self.reward, self.prompts = algorithm, reward, prompts
        self.reference = reference.to(accelerator.device).eval().requires_grad_(False)
        self.kl = KLController(config.ppo.kl_coef, config.ppo.kl_target, config.ppo.kl_horizon)
        self.high_kl_count = 0
        self._pass: tuple[int, list[int]] = (
            -1,
            [],
        )  # number of a pass over the prompts, and its order
        self._check_sizes()
        self.cut_ids = {prompt.id for prompt in cut_prompts(self.policy, prompts)}

    # ---- the loop --------------------------------------------------------------------------------

    def train(self, until: int | None = None) -> None:
        """Run to `until` (default: the end), from the last complete checkpoint where there is
        one.
        """
        with hold(self.config.logging.save_dir):
            self._train(until)

    def _train(self, until: int | None) -> None:
        resumed = checkpoint.load_latest(self)
        self.log = RunLog(
            self.folder,
            self.config,
            resume_step=self.step - 1 if resumed else None,
            **self.config.logging.trackers(),
        )
        last = min(until or self.total_steps, self.total_steps)
        bar = tqdm(
            total=self.total_steps,
            initial=self.step,
            desc=self.config.logging.run_name,
            unit="step",
            disable=self._quiet(),
        )
        while self.step < last and not self.stopped:
            if self.step % self.config.train.eval_interval == 0:
                self._evaluate(bar)
            with seeded(self.config.train.seed, "step", self.step):
                started = perf_counter()
                rollout, rewards = self.collect_and_score()
                rewards_BT, advantages = self.credit(rollout, rewards)
                collected = perf_counter()
                losses = self.update(rollout, advantages)
            metrics = (
                rollout_metrics(rollout, rewards, rewards_BT, advantages)
                | losses
                | {"kl_coef": self.kl.coef}
            )
            metrics |= {"prompts/cut": self._share_cut(rollout)} | cut_inputs(self.reward)
            metrics |= {
                "time/rollout": collected - started,
                "time/update": perf_counter() - collected,
            }
            self._log_step(metrics, rollout, rewards, advantages, bar)
            self._follow_kl(metrics["kl"])
            self.step += 1
            if (
                self.step % self.config.train.save_interval == 0
                or self.step == last
                or self.stopped
            ):
                checkpoint.save(self)
        if self.step == self.total_steps or self.stopped:
            self._finish(bar)
        bar.close()
        self.log.close()

    def collect_and_score(self) -> tuple[Rollout, TokenReward]:
        """This step's rollouts and rewards, those of all ranks on every rank."""
        batch, tokenizer = self.batch(self.step), self.policy.tokenizer
        mine = share_of(
            range(len(batch)), self.accelerator.process_index, self.accelerator.num_processes
        )

        def scored() -> tuple[Rollout, TokenReward]:
            rollout = self.sample([batch[i] for i in mine], mine[0])
            return rollout, self.reward.token_rewards(rollout)

        rollout, rewards = stop_together(self.accelerator, scored)
        return gather_rollouts(
            self.accelerator,
            rollout,
            rewards,
            tokenizer.pad_token_id,
            tokenizer.padding_side == "left",
        )

    def sample(self, prompts: Sequence[Prompt], first: int) -> Rollout:
        """This rank's rollouts; its prompts are those from place `first` of the global batch on."""
        config, samples = self.config, self.config.env.train_num_samples_per_input
        seeds = response_seeds(config.train.seed, self.step, first, len(prompts), samples)
        sampling = config.model.policy_model.train_generation_kwargs.sampling(
            config.env.max_generated_len
        )
        self.actor_critic.train(config.dropout_in_rollouts)
        with self._precision():
            return collect(
                self.actor_critic,
                self.reference,
                prompts,
                sampling,
                samples,
                seeds,
                config.logprob_temperature,
            )

    def credit(self, rollout: Rollout, rewards: TokenReward) -> tuple[Tensor, Advantages]:
        """The rewards as the algorithm is given them, (B, T), and the advantages it makes of
        them.
        """
        settings = self.config.algorithm
        if settings.normalize_aspects:
            rewards = normalized(rewards, self.reward.weights)
        rewards_BT = self.reward.penalized(
            rewards, rollout, self.kl.coef if settings.kl_in == "reward" else 0.0
        )
        return rewards_BT, self.algorithm.advantages(rollout, rewards_BT, rewards)

    def update(self, rollout: Rollout, advantages: Advantages) -> dict[str, float]:
        """Several epochs of minibatches over one rollout; metrics averaged over all of them."""
        train = self.config.train
        self.actor_critic.train(train.dropout)
        self._set_learning_rates()
        logged = []
        for epoch in range(train.n_ppo_epoch_per_rollout if self.algorithm.reuses_rollouts else 1):
            for rows in self.minibatches(len(rollout), epoch):
                logged.append(self._optimizer_step(rollout, advantages, rows))
        return mean_of(logged) | {"lr": self.optimizer.param_groups[0]["lr"]}

    def _set_learning_rates(self) -> None:
        for group, factor in zip(
            self.optimizer.param_groups,
            (self.policy_lr_factor(self.step), self.lr_factor(self.step)),
        ):
            group["lr"] = group["peak_lr"] * factor

    def token_loss(self, new: PolicyOutput, old: Rollout, advantages: Advantages) -> TokenLoss:
        """The algorithm's loss with what all can add to it: the KL from the reference, a bonus on
        entropy.
        """
        settings = self.config.algorithm
        made = self.algorithm.loss(new, old, advantages)
        loss_BT, metrics = made.loss_BT, dict(made.metrics)
        if settings.kl_in == "loss":
            kl_BT = kl_k3(new.logprobs_BT, old.ref_logprobs_BT)
            loss_BT, metrics["loss/kl"] = loss_BT + self.kl.coef * kl_BT, kl_BT.detach()
        if settings.entropy_coef:
            loss_BT = loss_BT - settings.entropy_coef * new.entropy_BT
        return TokenLoss(loss_BT, metrics | {"loss/total": loss_BT.detach()})

    def _optimizer_step(
        self, rollout: Rollout, advantages: Advantages, rows: Tensor
    ) -> dict[str, float]:
        """One step on the mean loss over the minibatch's tokens, whatever micro-batches and ranks
        it is split into.
        """
        train, world = self.config.train, self.accelerator.num_processes
        mask_BT = rollout.response_mask_BT
        n_tokens = mask_BT[rows].sum().clamp(min=1)
        micro_batches = share_of(rows, self.accelerator.process_index, world).split(
            train.training_batch_size_per_card
        )
        self.optimizer.zero_grad(set_to_none=True)
        totals: dict[str, Tensor] = {}
        for i, micro in enumerate(micro_batches):
            old = rollout.rows(micro)
            with self._no_sync(i + 1 < len(micro_batches)):
                with self._precision():
                    new = self.model(
                        old.prompt_ids_BP,
                        old.prompt_mask_BP,
                        old.response_ids_BT,
                        old.response_mask_BT,
                        temperature=self.config.logprob_temperature,
                        entropy_gradient=self.config.algorithm.entropy_coef > 0,
                    )
                token_loss = self.token_loss(
                    new, old, advantages.rows(micro, old.response_ids_BT.shape[1])
                )
                # DDP averages gradients over ranks, hence `world`; as published the loss is as many
                # times too large as a rank has micro-batches
                times = world if train.average_microbatches else len(rows) / len(micro)
                loss = masked_sum(token_loss.loss_BT, old.response_mask_BT) * times / n_tokens
                loss.backward()
            for name, metric_BT in token_loss.metrics.items():
                totals[name] = (
                    totals.get(name, 0) + masked_sum(metric_BT, old.response_mask_BT) / n_tokens
                )
        return self._summed(totals) | self._clip_and_step()

    # ---- pure functions of (config, step) --------------------------------------------------------

    @property
    def total_steps(self) -> int:
        return -(-self.config.train.total_episodes // self.episodes_per_step)

    @property
    def prompts_per_step(self) -> int:
        return self.config.train.sampling_batch_size_per_card * self.accelerator.num_processes

    @property
    def episodes_per_step(self) -> int:
        return self.prompts_per_step * self.config.env.train_num_samples_per_input

    def batch(self, step: int) -> list[Prompt]:
        """The prompts of a step: consecutive entries of an endless sequence of shuffled passes over
        the data.
        """
        chosen = []
        for place in range(step * self.prompts_per_step, (step + 1) * self.prompts_per_step):
            number, i = divmod(place, len(self.prompts))
            chosen.append(self.prompts[self._order(number)[i]])
        return chosen

    def _order(self, number: int) -> list[int]:
        """The order of the prompts in a pass over them."""
        if self._pass[0] != number:
            generator = torch.Generator().manual_seed(
                derive_seed(self.config.train.seed, "pass", number)
            )
            self._pass = number, torch.randperm(len(self.prompts), generator=generator).tolist()
        return self._pass[1]

    def minibatches(self, n_rows: int, epoch: int) -> list[Tensor]:
        """Global row indices of each optimiser step of one epoch."""
        generator = torch.Generator().manual_seed(
            derive_seed(self.config.train.seed, "minibatches", self.step, epoch)
        )
        rows_GK = torch.arange(n_rows).view(-1, self.config.env.train_num_samples_per_input)
        if (
            self.config.train.shuffle
        ):  # prompts, not rollouts: samples of one prompt stay together and share its encoding
            rows_GK = rows_GK[torch.randperm(len(rows_GK), generator=generator)]
        return list(
            rows_GK.flatten().to(self.accelerator.device).chunk(self.config.train.n_minibatches)
        )

    def policy_lr_factor(self, step: int) -> float:
        """0 while only the critic learns, `lr_factor` counted from then on after that.

        A fresh critic's advantages say more about a token's place than about its worth (early
        tokens have more reward before them), and Adam's first steps are large whatever the
        gradient: both settle before the policy moves.
        """
        alone = self.config.train.n_critic_warmup_steps
        return 0.0 if step < alone else self.lr_factor(step, alone)

    # ---- logging, stopping -----------------------------------------------------------------------

    @property
    def stopped(self) -> bool:
        """The batch KL has passed its threshold too often. Every rank sees the same KL, so all stop
        together.
        """
        return self.high_kl_count >= self.config.train.kl_patience

    def progress(self) -> dict:
        return super().progress() | {"kl_coef": self.kl.coef, "high_kl_count": self.high_kl_count}

    def restore(self, state: dict) -> None:
        super().restore(state)
        self.kl.coef, self.high_kl_count = state["kl_coef"], state["high_kl_count"]

    def _eligible(self, metrics: dict[str, float]) -> bool:
        """Not where it is so far from the reference that the reward models' word counts for little:
        there rewards are hacked.
        """
        return metrics.get("kl", 0.0) <= self.config.train.kl_threshold

    def _follow_kl(self, kl: float) -> None:
        self.kl.update(kl, self.episodes_per_step)
        self.high_kl_count += kl > self.config.train.kl_threshold

    def _share_cut(self, rollout: Rollout) -> float:
        """The share of a step's prompts that are longer than the policy reads."""
        return sum(prompt.id in self.cut_ids for prompt in rollout.prompts) / len(rollout)

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
            self.log.log(
                self.step, metrics | {"episodes": (self.step + 1) * self.episodes_per_step}
            )
        if self.step % config.train.eval_interval == 0 or self.step + 1 == self.total_steps:
            rows = sample_rows(
                self.policy.tokenizer, rollout, rewards, advantages, config.logging.n_samples
            )
            self.log.samples(self.step, rows)
        bar.set_postfix(
            reward=f"{metrics['reward/total']:.3f}", kl=f"{metrics['kl']:.2f}", refresh=False
        )
        bar.update()

    def _finish(self, bar: tqdm) -> None:
        self._evaluate(bar)  # the last policy too, wherever the interval ended
        self._save_policy("final")
        if self.stopped and self.accelerator.is_main_process:
            bar.write(
                f"stopped at step {self.step}: the KL from the reference passed"
                f" train.kl_threshold={self.config.train.kl_threshold} {self.high_kl_count} times."
                " Raise ppo.kl_coef or lower train.lr; the best checkpoint is kept in"
                f" {self.folder / 'best'}"
            )

    # ---- small parts -----------------------------------------------------------------------------

    def _parameter_groups(self) -> list[dict]:
        train, model = self.config.train, self.actor_critic
        value_lr = train.value_lr or train.lr
        groups = [
            {
                "params": [p for p in model.policy.parameters() if p.requires_grad],
                "lr": train.lr,
                "peak_lr": train.lr,
            }
        ]
        if model.value is not None:
            critic = [p for p in model.value.parameters() if p.requires_grad]
            groups.append({"params": critic, "lr": value_lr, "peak_lr": value_lr})
        return groups

    def _check_sizes(self) -> None:
        shares = self.config.train.n_minibatches * self.accelerator.num_processes
        if self.episodes_per_step % shares:
            raise UserError(
                f"{self.episodes_per_step} rollouts a step do not divide into"
                f" train.n_minibatches={self.config.train.n_minibatches} minibatches over"
                f" {self.accelerator.num_processes} processes: change train.n_minibatches,"
                " train.sampling_batch_size_per_card or env.train_num_samples_per_input"
            )
        if not self.prompts:
            raise UserError(f"{self.config.data.train_file} has no prompts to train on")
        train = self.config.train
        if train.n_critic_warmup_steps >= self.total_steps:
            raise UserError(
                f"train.n_critic_warmup_steps={train.n_critic_warmup_steps}, but"
                f" train.total_episodes={train.total_episodes} are only {self.total_steps} steps:"
                " the policy would never learn. Lower the former or raise the latter"
            )
        if (
            train.n_critic_warmup_steps + train.n_warmup_steps >= self.total_steps
            and not self._quiet()
        ):
            print(
                f"note: the learning rate warms up over train.n_warmup_steps={train.n_warmup_steps}"
                f" steps of {self.total_steps}: it never reaches train.lr",
                flush=True,
            )
