"""Direct preference optimisation: learns from compared answers, without samples of its own and
without a reward model.

    h(y) = sum_t w_t (log pi(y_t) - log pi_ref(y_t))        m = h(better) - h(worse)        L =
    loss(beta m)

w_t is 1, or `dpo.span_weight` on tokens of marked spans (docs/algorithms.md derives it). The
reference is the policy as it is before the first step: its log-probabilities are computed once, so
no second model is held.
"""

from collections.abc import Callable, Sequence
from time import perf_counter

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor
from tqdm import tqdm

from fgrlhf.algorithms.losses import PAIR_LOSSES, weighted_log_ratio
from fgrlhf.alignment import char_ends
from fgrlhf.base_trainer import BaseTrainer
from fgrlhf.data.comparisons import ComparisonBatch, TokenComparison, collate
from fgrlhf.errors import UserError
from fgrlhf.policy import Policy
from fgrlhf.runs import checkpoint
from fgrlhf.runs.batching import shuffled_batches
from fgrlhf.runs.distributed import share_of
from fgrlhf.runs.dpo_config import DPOConfig
from fgrlhf.runs.runlog import RunLog
from fgrlhf.runs.stage import hold
from fgrlhf.utils import seeded
from fgrlhf.value import ActorCritic


class DPOTrainer(BaseTrainer):
    """Trains a policy on comparisons.

    Data order and dropout are pure functions of (seed, step), so a resumed run continues bit for
    bit on a CPU.

    Args:
      config: the run's settings.
      policy: where training starts, and the reference.
      comparisons: what to train on, encoded by this policy.
      evaluate: dev metrics of the current policy, called on all ranks with the accelerator: name ->
        value.
      accelerator: device and processes.
    """

    def __init__(
        self,
        config: DPOConfig,
        policy: Policy,
        comparisons: Sequence[TokenComparison],
        evaluate: Callable[[Policy], dict[str, float]] | None,
        accelerator: Accelerator,
    ):
        super().__init__(config, ActorCritic(policy, None), evaluate, accelerator)
        self.comparisons = comparisons
        self.ref_logprobs: list[list[Tensor]] | None = (
            None  # of every answer's tokens; before the first step
        )
        self._pass: tuple[int, list[list[int]]] = (-1, [])  # an epoch and its batches
        self._check_sizes()

    # ---- the loop --------------------------------------------------------------------------------

    def train(self, until: int | None = None) -> None:
        """Run to `until` (default: the end), from the last complete checkpoint where there is
        one.
        """
        with hold(self.config.logging.save_dir):
            self._train(until)

    def _train(self, until: int | None) -> None:
        if self.ref_logprobs is None:
            self.ref_logprobs = self.reference_logprobs()
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
        while self.step < last:
            if self.step % self.config.train.eval_interval == 0:
                self._evaluate(bar)
            with seeded(self.config.train.seed, "step", self.step):
                started = perf_counter()
                metrics = self.update(self.batch(self.step))
            self._log_step(metrics | {"time/update": perf_counter() - started}, bar)
            self.step += 1
            if self.step % self.config.train.save_interval == 0 or self.step == last:
                checkpoint.save(self)
        if self.step == self.total_steps:
            self._evaluate(bar)  # the last policy too, wherever the interval ended
            self._save_policy("final")
        bar.close()
        self.log.close()

    @torch.no_grad()
    def reference_logprobs(self) -> list[list[Tensor]]:
        """log pi(y_t) of every answer under the policy as it is now, comparison by comparison; the
        ranks share the work.
        """
        self.actor_critic.eval()
        size, found = self.config.train.training_batch_size_per_card, []
        mine = share_of(
            range(len(self.comparisons)),
            self.accelerator.process_index,
            self.accelerator.num_processes,
        )
        order = sorted(mine, key=lambda i: self.comparisons[i].lengths)
        bar = tqdm(
            total=len(order), desc="reference", unit="question", leave=False, disable=self._quiet()
        )
        for start in range(0, len(order), size):
            places = order[start : start + size]
            rows = [self.comparisons[i] for i in places]
            batch = self._collate(rows, None)
            with self.precision():
                logprobs_BT = self._logprobs(self.actor_critic, batch).cpu()
            per_answer = iter(
                row_T[: int(n)].clone()
                for row_T, n in zip(logprobs_BT, batch.response_mask_BT.sum(1))
            )
            found += [
                (i, [next(per_answer) for _ in row.answer_ids]) for i, row in zip(places, rows)
            ]
            bar.update(len(rows))
        bar.close()
        found = gather_object(found) if self.accelerator.num_processes > 1 else found
        return [logprobs for _, logprobs in sorted(found, key=lambda one: one[0])]

    def update(self, places: Sequence[int]) -> dict[str, float]:
        """One optimiser step on the mean loss over all pairs of these comparisons, whatever
        micro-batches and ranks they are split into.
        """
        train, world = self.config.train, self.accelerator.num_processes
        self.actor_critic.train(train.dropout)
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak_lr"] * self.lr_factor(self.step)
        n_pairs = sum(len(self.comparisons[i].pairs) for i in places)
        mine = share_of(places, self.accelerator.process_index, world)
        micro_batches = [
            mine[i : i + train.training_batch_size_per_card]
            for i in range(0, len(mine), train.training_batch_size_per_card)
        ]
        self.optimizer.zero_grad(set_to_none=True)
        totals: dict[str, Tensor] = {}
        for i, micro in enumerate(micro_batches):
            batch = self._collate(
                [self.comparisons[j] for j in micro], [self.ref_logprobs[j] for j in micro]
            )
            with self._no_sync(i + 1 < len(micro_batches)):
                with self.precision():
                    logprobs_BT = self._logprobs(self.model, batch)
                losses_N, metrics = self.pair_losses(logprobs_BT, batch)
                (
                    losses_N.sum() * world / n_pairs
                ).backward()  # DDP averages gradients over ranks, hence `world`
            for name, metric_N in metrics.items():
                totals[name] = totals.get(name, 0) + metric_N.sum() / n_pairs
            if i == 0:
                self._write_samples(micro, logprobs_BT.detach(), batch)
        return (
            self._summed(totals)
            | self._clip_and_step()
            | {"lr": self.optimizer.param_groups[0]["lr"]}
        )

    def pair_losses(
        self, logprobs_BT: Tensor, batch: ComparisonBatch
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of every pair and what is logged of it. beta h is the reward that the policy
        implies (Rafailov et al. 2023, eq. 5).
        """
        settings = self.config.dpo
        ratios_B = weighted_log_ratio(logprobs_BT, batch.ref_logprobs_BT, batch.weights_BT)
        better_N, worse_N = ratios_B[batch.better_N], ratios_B[batch.worse_N]
        losses_N = PAIR_LOSSES[settings.loss](better_N - worse_N, settings.beta)
        with torch.no_grad():
            logged = {
                "loss/total": losses_N,
                "dpo/better": settings.beta * better_N,
                "dpo/worse": settings.beta * worse_N,
                "dpo/margin": settings.beta * (better_N - worse_N),
                "dpo/accuracy": (better_N > worse_N).float(),
            }
        return losses_N, {name: value_N.detach() for name, value_N in logged.items()}

    # ---- pure functions of (config, step) --------------------------------------------------------

    @property
    def steps_per_epoch(self) -> int:
        return -(-len(self.comparisons) // self.config.train.batch_size)

    @property
    def total_steps(self) -> int:
        return max(round(self.config.train.epochs * self.steps_per_epoch), 1)

    def batch(self, step: int) -> list[int]:
        """Places of the comparisons of a step: like lengths together, passes shuffled apart."""
        epoch, place = divmod(step, self.steps_per_epoch)
        if self._pass[0] != epoch:
            lengths = [c.lengths for c in self.comparisons]
            self._pass = (
                epoch,
                shuffled_batches(
                    len(lengths),
                    self.config.train.batch_size,
                    self.config.train.seed,
                    epoch,
                    lengths,
                ),
            )
        return self._pass[1][place]

    @property
    def episodes_per_step(self) -> float:
        """Answers read in a step: what an RL run would have had to sample."""
        return (
            self.config.train.batch_size
            * sum(len(c.answer_ids) for c in self.comparisons)
            / len(self.comparisons)
        )

    # ---- small parts -----------------------------------------------------------------------------

    def _logprobs(self, model, batch: ComparisonBatch) -> Tensor:
        return model(
            batch.prompt_ids_BP, batch.prompt_mask_BP, batch.response_ids_BT, batch.response_mask_BT
        ).logprobs_BT

    def _collate(
        self, rows: Sequence[TokenComparison], ref_logprobs: Sequence[Sequence[Tensor]] | None
    ) -> ComparisonBatch:
        tokenizer = self.policy.tokenizer
        return collate(
            rows, ref_logprobs, tokenizer.pad_token_id, tokenizer.padding_side == "left"
        ).to(self.accelerator.device)

    def _log_step(self, metrics: dict[str, float], bar: tqdm) -> None:
        if self.step % self.config.logging.log_interval == 0:
            self.log.log(
                self.step, metrics | {"episodes": round((self.step + 1) * self.episodes_per_step)}
            )
        bar.set_postfix(
            loss=f"{metrics['loss/total']:.3f}",
            accuracy=f"{metrics['dpo/accuracy']:.2f}",
            refresh=False,
        )
        bar.update()

    def _write_samples(
        self, places: Sequence[int], logprobs_BT: Tensor, batch: ComparisonBatch
    ) -> None:
        """The step's first answers with the reward that the policy implies on each token, as RL
        runs write theirs.
        """
        due = self.step % self.config.train.eval_interval == 0 or self.step + 1 == self.total_steps
        if not due or not self.config.logging.n_samples:
            return
        rewards_BT = self.config.dpo.beta * batch.weights_BT * (logprobs_BT - batch.ref_logprobs_BT)
        answers = [
            (self.comparisons[i], k)
            for i in places
            for k in range(len(self.comparisons[i].answer_ids))
        ]
        rows = [
            sample_row(self.policy.tokenizer, comparison, k, rewards_T, kl_T)
            for (comparison, k), rewards_T, kl_T in zip(
                answers, rewards_BT, logprobs_BT - batch.ref_logprobs_BT
            )
        ]
        self.log.samples(self.step, rows[: self.config.logging.n_samples])

    def _check_sizes(self) -> None:
        size, world = self.config.train.batch_size, self.accelerator.num_processes
        if size % world:
            raise UserError(
                f"train.batch_size={size} cannot be shared out over {world} processes: make it a"
                f" multiple of {world}, or start fewer processes"
            )
        if not self.comparisons:
            raise UserError("there are no comparisons to train on")


def sample_row(
    tokenizer, comparison: TokenComparison, k: int, rewards_T: Tensor, kl_T: Tensor
) -> dict:
    """Answer k as a JSON-able row, with the keys that a rollout's row has (metrics.sample_rows)."""
    ids, source = list(comparison.answer_ids[k]), comparison.source.answers[k]
    text, ends = char_ends(tokenizer, ids)
    tokens = [text[start:end] for start, end in zip((0, *ends), ends)]
    tokens = [token or tokenizer.convert_ids_to_tokens(ids[t]) for t, token in enumerate(tokens)]

    def per_token(values_T: Tensor) -> list[float]:
        return [round(value, 5) for value in values_T[: len(ids)].tolist()]

    return {
        "prompt": comparison.source.prompt.text,
        "response": text,
        "tokens": tokens,
        "rewards": {"implied": per_token(rewards_T)},
        "segments": {
            "implied": [
                {"start": a, "end": b, "value": 1.0, "label": "marked"} for a, b in source.marked
            ]
        },
        "kl": per_token(kl_T),
        "values": None,
        "advantages": None,
        "better_than": [j for i, j in comparison.pairs if i == k],
        "answer": k,
        "reward": round(float(rewards_T[: len(ids)].sum()), 5),
    }
