"""Direct preference optimisation: learns from comparisons of answers, judged answers and marks.

It needs no samples from the policy and no reward model. `dpo.loss` names the losses
(fgrlhf/preference_terms.py); the first one, of DPO, is

    h(y) = sum_t w_t (log pi(y_t) - log pi_ref(y_t))
    m = h(better) - h(worse)
    L = loss(beta m)

w_t is 1, or `dpo.span_weight` on tokens with marked characters (docs/algorithms.md derives it). The
reference is the policy before the first step. Its log-probabilities are computed once, before
training. With `lora` it is the policy without its adapters. Frozen layers (`train_top_layers`) are
computed in this pass only, if their states fit. With `dpo.reference.sync_every` the reference is a
copy that follows the policy, and computes in every step. A loss without a reference has none.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor
from tqdm import tqdm

from fgrlhf.alignment import char_ends
from fgrlhf.base.errors import UserError
from fgrlhf.data.mixture import mixture_of
from fgrlhf.data.token_comparisons import (
    BAD,
    GOOD,
    ComparisonBatch,
    TokenComparison,
    collate,
)
from fgrlhf.dpo_rows import Sizes, StoredLogprobs, mismatched
from fgrlhf.models.base import Policy
from fgrlhf.models.sharding import unsharded
from fgrlhf.policy_trainer import DevEvaluation, PolicyTrainer
from fgrlhf.preference_terms import (
    BAD_ANSWERS,
    GOOD_ANSWERS,
    PAIRS,
    WITH_KL,
    Scored,
    count_units,
    is_mean,
    loss_sums,
    token_weights,
)
from fgrlhf.runs import checkpoint
from fgrlhf.runs.batching import micro_batches, shuffled_batches
from fgrlhf.runs.distributed import share_of
from fgrlhf.runs.dpo_config import DPOConfig
from fgrlhf.runs.progress import progress_bar
from fgrlhf.runs.step_metrics import PhaseClock, rounded, texts_of_tokens
from fgrlhf.utils import seeded
from fgrlhf.value import ActorCritic


class DPOTrainer(PolicyTrainer):
    """Trains a policy on comparisons.

    Data order and dropout are pure functions of (seed, step), so a resumed run continues bit for
    bit on a CPU.

    Args:
      config: the run's settings.
      policy: the initial policy, and the reference.
      comparisons: the training data, encoded by this policy.
      evaluate: policy -> dev metrics by name; called on all ranks.
      accelerator: device and processes.

    Raises:
      UserError: there are no comparisons, or the batch size is not divisible by the number of
        processes.
    """

    def __init__(
        self,
        config: DPOConfig,
        policy: Policy,
        comparisons: Sequence[TokenComparison],
        evaluate: DevEvaluation | None,
        accelerator: Accelerator,
    ):
        super().__init__(config, ActorCritic(policy, None), evaluate, accelerator)
        self.comparisons = comparisons
        self.mixture = mixture_of(comparisons)
        self.sizes = Sizes(comparisons)
        # the prompt of each comparison with an answer to another one, for the KL of KTO
        self.mismatched: Sequence[TokenComparison] = []
        if any(name in WITH_KL for name in config.dpo.losses):
            self.mismatched = mismatched(comparisons, self.sizes)
        # under the initial policy; None: not computed yet
        self.ref_logprobs: StoredLogprobs | None = None
        self.mismatched_ref_logprobs: StoredLogprobs | None = None
        self._epoch = -1  # the epoch whose batches are in `_epoch_batches`; -1: none yet
        self._epoch_batches: list[list[int]] = []
        self._check_sizes()

    # ---- the loop --------------------------------------------------------------------------------

    def train(self, until: int | None = None) -> None:
        # before a checkpoint replaces the weights of the initial policy, which is the reference
        if self.ref_logprobs is None and not self._has_ended():
            self.compute_reference()
        resumed = checkpoint.load_latest(self)
        if self._is_finished(resumed):
            return
        self._start_log(resumed)
        bar = self._progress_bar()
        last = self.total_steps if until is None else min(until, self.total_steps)
        while self.step < last:
            if self.step % self.steps_between_evaluations == 0:
                self._evaluate(bar)
            clock = PhaseClock()
            with seeded(*self.seed_of_step), clock.time("update"):
                metrics = self.update(self.batch_indices(self.step))
            self._log_step(metrics | clock.seconds(["update"]), bar)
            self.step += 1
            self.sync_reference()
            if self.step % self.steps_between_checkpoints == 0 or self.step == last:
                checkpoint.save(self)
        if self.step == self.total_steps:
            self._evaluate(bar)  # even if no evaluation is due at this step
            self._save_last()
            self._say_where_policies_are(bar)
        bar.close()
        self.log.close()

    def compute_reference(self) -> None:
        """Store the log-probabilities of the reference, which is the policy, if a loss needs them.

        A reference that follows the policy computes them in every step.
        """
        if not self.config.dpo.needs_reference or self.moving_reference is not None:
            return
        with unsharded(self.actor_critic):
            self.ref_logprobs = self.reference_logprobs(self.comparisons)
            if self.mismatched:
                self.mismatched_ref_logprobs = self.reference_logprobs(self.mismatched)

    def _has_ended(self) -> bool:
        """Whether the folder holds a finished run. `_is_finished` needs it to be loaded."""
        is_last_saved = checkpoint.is_whole_model(self.folder / "final")
        return is_last_saved and checkpoint.latest_step(self.folder) == self.total_steps

    @torch.no_grad()
    def reference_logprobs(self, rows: Sequence[TokenComparison]) -> StoredLogprobs:
        """The log pi(y_t) of every answer under the current policy.

        The processes share the work, and each gets the results of all. A sharded policy must be
        called within `unsharded`.
        """
        self.actor_critic.eval()
        sizes = self.sizes if rows is self.comparisons else Sizes(rows)
        size = self.config.train.micro_batch_size
        world = self.accelerator.num_processes
        share = share_of(range(len(rows)), self.accelerator.process_index, world)
        order = sorted(share, key=sizes.__getitem__)
        bar = progress_bar(len(order), "reference", "prompt", enabled=not self._quiet())
        results = StoredLogprobs(sizes)
        # all processes make the same number of passes, since they exchange the results of each
        for start in range(0, math.ceil(len(rows) / world), size):
            indices = order[start : start + size]
            found: list[tuple[int, list[Tensor]]] = []  # (index of the comparison, its answers)
            if indices:
                comparisons = [rows[i] for i in indices]
                batch = self._collate(comparisons, None)
                with self.precision():
                    logprobs_BT = self._logprobs(self.actor_critic, batch).cpu()
                found += zip(indices, _rows_of_answers(logprobs_BT, comparisons))
                bar.update(len(comparisons))
            for i, logprobs in gather_object(found) if world > 1 else found:
                results.put(i, logprobs)
        bar.close()
        return results

    def update(self, indices: Sequence[int]) -> dict[str, float]:
        """One optimiser step on the comparisons with these indices.

        Each term of the loss is the mean over its units in all of them, so the result does not
        depend on the number of micro-batches or processes.
        """
        train = self.config.train
        world = self.accelerator.num_processes
        counts = sum((count_units(self.comparisons[i]) for i in indices), Counter())
        divergence = self.divergence(indices)
        self.actor_critic.train(train.dropout)
        self.set_learning_rates()
        parts = micro_batches(
            indices, train.micro_batch_size, self.accelerator.process_index, world
        )
        self.optimizer.zero_grad(set_to_none=True)
        totals: dict[str, Tensor] = {}
        wanted = self.config.logging.n_samples if self._samples_are_due() else 0
        samples: list[dict] = []
        for i, (micro, weight) in enumerate(parts):
            batch = self._referenced(self.comparisons, self.ref_logprobs, micro)
            with self.no_sync(i + 1 < len(parts)):
                with self.precision():
                    logprobs_BT = self._logprobs(self.model, batch)
                loss, metrics = self.losses(logprobs_BT, batch, counts, *divergence)
                # gradients are averaged over processes, but their sum is needed
                (loss * weight * world).backward()
            for name, value in metrics.items():
                totals[name] = totals.get(name, 0) + value * weight
            if len(samples) < wanted and weight:  # a pass of the weight 0 repeats answers
                samples += self._sample_rows(micro, logprobs_BT.detach(), batch)
        if samples:
            self.log.samples(self.step, samples[:wanted])
        metrics = self.summed(totals) | self.clip_and_step()
        if self.mismatched:
            metrics["dpo/kl"] = float(divergence[0])
        return metrics | {"lr": self.optimizer.param_groups[0]["lr"]}

    @torch.no_grad()
    def divergence(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The policy's KL divergence from the reference, per answer and per token, 0 or more.

        It is max(0, mean h(y | x)) over the prompts x of these comparisons with answers y to other
        prompts, as in KTO (Ethayarajh et al. 2024, arXiv 2402.01306). 0 if no loss needs it.
        """
        sums = torch.zeros(3, dtype=torch.float64, device=self.accelerator.device)
        if self.mismatched:
            self.actor_critic.eval()
            process, world = self.accelerator.process_index, self.accelerator.num_processes
            size = self.config.train.micro_batch_size
            for micro, weight in micro_batches(indices, size, process, world):
                batch = self._referenced(self.mismatched, self.mismatched_ref_logprobs, micro)
                with self.precision():
                    logprobs_BT = self._logprobs(self.model, batch)
                mask_BT = batch.response_mask_BT
                total = ((logprobs_BT - batch.ref_logprobs_BT) * mask_BT).sum()
                sums += weight * torch.stack([total, mask_BT.sum(), mask_BT[:, 0].sum()])
            sums = self.sum_over_processes(sums)
        total, tokens, answers = sums.float().clamp(min=0)
        return total / answers.clamp(min=1), total / tokens.clamp(min=1)

    def losses(
        self,
        logprobs_BT: Tensor,
        batch: ComparisonBatch,
        counts: Mapping[str, int],
        kl: Tensor,
        token_kl: Tensor,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The part of a batch in the loss of a step, and in the metrics to log.

        beta h is the reward that the policy implies (Rafailov et al. 2023, eq. 5). Losses that
        compare means over tokens have that of the mean, and without a reference it is beta l.

        Args:
          counts: the units in the whole step.
        """
        settings = self.config.dpo
        scored = Scored(batch, logprobs_BT, settings, kl, token_kl)
        parts: dict[str, Tensor] = {}
        for name, weight, unit, summed in loss_sums(scored):
            part = weight * summed / max(counts[unit], 1)
            parts[name] = parts[name] + part if name in parts else part
        loss = torch.stack([*parts.values()]).sum()
        with torch.no_grad():
            logged = {"loss/total": loss}
            if len(parts) > 1:
                logged |= {f"loss/{name}": part for name, part in parts.items()}
            rewards_B = settings.beta * scored.answer_ratios(is_mean(settings))
            if counts[PAIRS]:
                better_N, worse_N = rewards_B[batch.better_N], rewards_B[batch.worse_N]
                of_pairs = {
                    "dpo/better": better_N,
                    "dpo/worse": worse_N,
                    "dpo/margin": better_N - worse_N,
                    "dpo/accuracy": (better_N > worse_N).float(),
                }
                for name, value_N in of_pairs.items():
                    logged[name] = value_N.sum() / counts[PAIRS]
            if self.mismatched:
                for name, label, unit in (
                    ("dpo/good", GOOD, GOOD_ANSWERS),
                    ("dpo/bad", BAD, BAD_ANSWERS),
                ):
                    if counts[unit]:
                        logged[name] = rewards_B[batch.labels_B == label].sum() / counts[unit]
        return loss, {name: value.detach() for name, value in logged.items()}

    def _referenced(
        self,
        rows: Sequence[TokenComparison],
        ref_logprobs: Sequence[Sequence[Tensor]] | None,
        indices: Sequence[int],
    ) -> ComparisonBatch:
        """The batch of some rows, with the reference's log-probabilities; 0 if none are needed."""
        chosen = [rows[i] for i in indices]
        if self.moving_reference is not None:
            batch = self._collate(chosen, None)
            with torch.no_grad(), self.precision():
                ref_logprobs_BT = self.moving_reference(
                    batch.prompt_ids_BP,
                    batch.prompt_mask_BP,
                    batch.response_ids_BT,
                    batch.response_mask_BT,
                )[0].logprobs_BT
            return replace(batch, ref_logprobs_BT=ref_logprobs_BT)
        if not self.config.dpo.needs_reference:
            return self._collate(chosen, None)
        if ref_logprobs is None:
            raise ValueError("call train(), which computes the reference's log-probabilities first")
        return self._collate(chosen, [ref_logprobs[i] for i in indices])

    def _evaluate(self, bar: tqdm) -> None:
        """Evaluate, without forgetting the states of frozen layers that training needs."""
        frozen = self.policy.frozen_layers
        with frozen.without_states() if frozen is not None else nullcontext():
            super()._evaluate(bar)

    # ---- pure functions of (config, step) --------------------------------------------------------

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(len(self.comparisons) / self.config.train.batch_size)

    @property
    def total_steps(self) -> int:
        return max(round(self.config.train.epochs * self.steps_per_epoch), 1)

    def batch_indices(self, step: int) -> list[int]:
        """Indices of a step's comparisons, which have similar lengths.

        Every pass over the data has another order.
        """
        epoch, i = divmod(step, self.steps_per_epoch)
        if self._epoch != epoch:
            train = self.config.train
            self._epoch_batches = shuffled_batches(
                len(self.sizes), train.batch_size, train.seed, epoch, self.sizes, self.mixture
            )
            self._epoch = epoch
        return self._epoch_batches[i]

    @property
    def episodes_per_step(self) -> float:
        """Answers read in a step; an RL run would have to sample as many."""
        return self.config.train.batch_size * len(self.sizes.answers) / len(self.sizes)

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
            columns = self.mixture_columns(self.step + 1)
            columns["episodes"] = round((self.step + 1) * self.episodes_per_step)
            self.log.log(self.step, metrics | columns)
        shown = {"loss": f"{metrics['loss/total']:.3f}"}
        if "dpo/accuracy" in metrics:
            shown["accuracy"] = f"{metrics['dpo/accuracy']:.2f}"
        bar.set_postfix(shown, refresh=False)
        bar.update()

    def _samples_are_due(self) -> bool:
        is_last = self.step + 1 == self.total_steps
        return is_last or self.step % self.steps_between_evaluations == 0

    def _sample_rows(
        self, indices: Sequence[int], logprobs_BT: Tensor, batch: ComparisonBatch
    ) -> list[dict]:
        """The answers of a micro-batch with the policy's implied reward on each token.

        The rows have the format of an RL run's samples. Without a reference there is no KL.
        """
        log_ratios_BT = logprobs_BT - batch.ref_logprobs_BT
        mask_BT = batch.response_mask_BT.to(log_ratios_BT.dtype)
        weights_BT = token_weights(batch.marked_BT, mask_BT, self.config.dpo)
        rewards_BT = self.config.dpo.beta * weights_BT * log_ratios_BT
        has_kl = self.config.dpo.needs_reference
        rows: list[dict] = []
        for i in indices:
            comparison = self.comparisons[i]
            for k in range(len(comparison.answer_ids)):
                row = len(rows)  # of the batch, in which a comparison's answers are consecutive
                kl_T = log_ratios_BT[row] if has_kl else None
                rows.append(sample_row(self.policy, comparison, k, rewards_BT[row], kl_T))
        return rows

    def _check_sizes(self) -> None:
        size = self.config.train.batch_size
        world = self.accelerator.num_processes
        if size % world:
            raise UserError(
                f"train.batch_size={size} is not divisible by {world} processes: make it a"
                f" multiple of {world}, or start fewer processes"
            )
        if not self.comparisons:
            raise UserError("there are no comparisons to train on")


def _rows_of_answers(
    logprobs_BT: Tensor, comparisons: Sequence[TokenComparison]
) -> list[list[Tensor]]:
    """The logprobs_T of every answer of each comparison, without padding.

    Args:
      logprobs_BT: of a batch, in which the answers of a comparison are consecutive rows.
    """
    rows = iter(logprobs_BT)
    result = []
    for comparison in comparisons:
        of_answers = []
        for ids in comparison.answer_ids:
            of_answers.append(next(rows)[: len(ids)].clone())
        result.append(of_answers)
    return result


def sample_row(
    policy: Policy, comparison: TokenComparison, k: int, rewards_T: Tensor, kl_T: Tensor | None
) -> dict:
    """Answer k as a row of samples.jsonl, with the same keys as a row of a rollout."""
    ids = list(comparison.answer_ids[k])
    marked = comparison.source.answers[k].marked
    text, ends = char_ends(policy.tokenizer, ids, policy.lead)
    segments = []
    for start, end in marked:
        segments.append({"start": start, "end": end, "value": 1.0, "label": "marked"})
    return {
        "prompt": comparison.source.prompt.text,
        "response": text,
        "tokens": texts_of_tokens(policy.tokenizer, ids, text, ends),
        "rewards": {"implied": rounded(rewards_T, len(ids))},
        "segments": {"implied": segments},
        "kl": None if kl_T is None else rounded(kl_T, len(ids)),
        "values": None,
        "advantages": None,
        "better_than": [j for i, j in comparison.pairs if i == k],
        "answer": k,
        "reward": round(float(rewards_T[: len(ids)].sum()), 5),
    }
