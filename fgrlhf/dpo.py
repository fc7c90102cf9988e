"""Direct preference optimisation: learns from comparisons of answers.

It needs no samples from the policy and no reward model.

    h(y) = sum_t w_t (log pi(y_t) - log pi_ref(y_t))
    m = h(better) - h(worse)
    L = loss(beta m)

w_t is 1, or `dpo.span_weight` on tokens with marked characters (docs/algorithms.md derives it). The
reference is the policy before the first step. Its log-probabilities are computed once, before
training. With `lora` it is the policy without its adapters. Frozen layers (`train_top_layers`) are
computed in this pass only, if their states fit.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from time import perf_counter

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor
from tqdm import tqdm

from fgrlhf.algorithms.losses import PAIR_LOSSES, weighted_log_ratio
from fgrlhf.alignment import char_ends
from fgrlhf.base.errors import UserError, shorten, suggestion
from fgrlhf.data.comparisons import Comparison, ComparisonSource
from fgrlhf.data.formats import COMPARISONS
from fgrlhf.data.token_comparisons import ComparisonBatch, TokenComparison, collate
from fgrlhf.models.base import Policy
from fgrlhf.models.sharding import unsharded
from fgrlhf.policy_trainer import DevEvaluation, PolicyTrainer
from fgrlhf.runs import checkpoint
from fgrlhf.runs.batching import micro_batches, shuffled_batches
from fgrlhf.runs.distributed import share_of
from fgrlhf.runs.dpo_config import DPOConfig
from fgrlhf.runs.progress import progress_bar
from fgrlhf.runs.runlog import say
from fgrlhf.runs.step_metrics import rounded, texts_of_tokens
from fgrlhf.text_types import Prompt
from fgrlhf.utils import seeded
from fgrlhf.value import ActorCritic


def load_comparisons(
    config: DPOConfig,
    sources: Mapping[str, ComparisonSource],
    read_prompts: Callable[[str | None, str], Sequence[Prompt]],
) -> list[Comparison]:
    """Load the comparisons to train on, from the library's format or from a task's source.

    Args:
      config: `data.pairs` names the source.
      sources: the task's sources by name.
      read_prompts: (file or None, split) -> prompts, for the task's sources: `Task.prompts`.

    Raises:
      UserError: there is no such source, it has no pairs, or `dpo.span_weight` is not 1 and no
        characters are marked.
    """
    data = config.data
    if data.pairs == COMPARISONS.name:
        counts: Counter[str] = Counter()
        rows = COMPARISONS.read(data.feedback_file, data.columns, counts=counts)
        for what, count in counts.items():
            say(f"{data.feedback_file}: {what}: {count:,}")
        comparisons = [comparison for comparison in rows if comparison.pairs]
        if not comparisons:
            raise UserError(
                f"{data.feedback_file} has no pairs to learn from: all of its {len(rows)} rows are"
                " ties. Choose another file with data.feedback_file=..."
            )
    elif data.pairs in sources:
        prompts = read_prompts(data.train_file, "train")
        comparisons = sources[data.pairs](data.feedback_file, prompts)
    else:
        raise UserError(
            f"data.pairs: there is no source of pairs `{shorten(data.pairs, 60)}`;"
            f" {suggestion(data.pairs, [COMPARISONS.name, *sources])}"
        )
    answers = [answer for comparison in comparisons for answer in comparison.answers]
    if config.dpo.span_weight != 1 and not any(answer.marked for answer in answers):
        raise UserError(
            f"dpo.span_weight is {config.dpo.span_weight:g}, but data.pairs={data.pairs} marks no"
            f" characters in the answers of {data.feedback_file}: set dpo.span_weight=1, or choose"
            " another data.pairs"
        )
    return comparisons


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
        # comparison -> answer -> tokens, under the initial policy; None: not computed yet
        self.ref_logprobs: list[list[Tensor]] | None = None
        self._epoch = -1  # the epoch whose batches are in `_epoch_batches`; -1: none yet
        self._epoch_batches: list[list[int]] = []
        self._check_sizes()

    # ---- the loop --------------------------------------------------------------------------------

    def train(self, until: int | None = None) -> None:
        # before a checkpoint replaces the weights of the initial policy, which is the reference
        if self.ref_logprobs is None and not self._has_ended():
            with unsharded(self.actor_critic):
                self.ref_logprobs = self.reference_logprobs()
        resumed = checkpoint.load_latest(self)
        if self._is_finished(resumed):
            return
        self._start_log(resumed)
        bar = self._progress_bar()
        last = self.total_steps if until is None else min(until, self.total_steps)
        while self.step < last:
            if self.step % self.steps_between_evaluations == 0:
                self._evaluate(bar)
            with seeded(*self.seed_of_step):
                started = perf_counter()
                metrics = self.update(self.batch_indices(self.step))
            self._log_step(metrics | {"time/update": perf_counter() - started}, bar)
            self.step += 1
            if self.step % self.steps_between_checkpoints == 0 or self.step == last:
                checkpoint.save(self)
        if self.step == self.total_steps:
            self._evaluate(bar)  # even if no evaluation is due at this step
            self._save_last()
            self._say_where_policies_are(bar)
        bar.close()
        self.log.close()

    def _has_ended(self) -> bool:
        """Whether the folder holds a finished run. `_is_finished` needs it to be loaded."""
        is_last_saved = checkpoint.is_whole_model(self.folder / "final")
        return is_last_saved and checkpoint.latest_step(self.folder) == self.total_steps

    @torch.no_grad()
    def reference_logprobs(self) -> list[list[Tensor]]:
        """The log pi(y_t) of every answer under the current policy: comparison -> answer -> tokens.

        The processes share the work, and each gets the results of all. A sharded policy must be
        called within `unsharded`.
        """
        self.actor_critic.eval()
        size = self.config.train.micro_batch_size
        share = share_of(
            range(len(self.comparisons)),
            self.accelerator.process_index,
            self.accelerator.num_processes,
        )
        order = sorted(share, key=lambda i: self.comparisons[i].lengths)
        bar = progress_bar(len(order), "reference", "prompt", enabled=not self._quiet())
        results: list[tuple[int, list[Tensor]]] = []  # (index of the comparison, its answers)
        for start in range(0, len(order), size):
            indices = order[start : start + size]
            comparisons = [self.comparisons[i] for i in indices]
            batch = self._collate(comparisons, None)
            with self.precision():
                logprobs_BT = self._logprobs(self.actor_critic, batch).cpu()
            results += zip(indices, _rows_of_answers(logprobs_BT, comparisons))
            bar.update(len(comparisons))
        bar.close()
        if self.accelerator.num_processes > 1:
            results = gather_object(results)
        return [per_answer for _, per_answer in sorted(results, key=lambda item: item[0])]

    def update(self, indices: Sequence[int]) -> dict[str, float]:
        """One optimiser step on the mean loss over all pairs of the comparisons with these indices.

        The result does not depend on the number of micro-batches or processes.
        """
        if self.ref_logprobs is None:
            raise ValueError("call train(), which computes the reference's log-probabilities first")
        train = self.config.train
        world = self.accelerator.num_processes
        self.actor_critic.train(train.dropout)
        self.set_learning_rates()
        n_pairs = sum(len(self.comparisons[i].pairs) for i in indices)
        parts = micro_batches(
            indices, train.micro_batch_size, self.accelerator.process_index, world
        )
        self.optimizer.zero_grad(set_to_none=True)
        totals: dict[str, Tensor] = {}
        wanted = self.config.logging.n_samples if self._samples_are_due() else 0
        samples: list[dict] = []
        for i, (micro, weight) in enumerate(parts):
            batch = self._collate(
                [self.comparisons[j] for j in micro], [self.ref_logprobs[j] for j in micro]
            )
            with self._no_sync(i + 1 < len(parts)):
                with self.precision():
                    logprobs_BT = self._logprobs(self.model, batch)
                losses_N, metrics = self.pair_losses(logprobs_BT, batch)
                # gradients are averaged over processes, but their sum is needed
                (losses_N.sum() * weight * world / n_pairs).backward()
            for name, metric_N in metrics.items():
                totals[name] = totals.get(name, 0) + metric_N.sum() * weight / n_pairs
            if len(samples) < wanted and weight:  # a pass of the weight 0 repeats answers
                samples += self._sample_rows(micro, logprobs_BT.detach(), batch)
        if samples:
            self.log.samples(self.step, samples[:wanted])
        metrics = self._summed(totals) | self._clip_and_step()
        return metrics | {"lr": self.optimizer.param_groups[0]["lr"]}

    def pair_losses(
        self, logprobs_BT: Tensor, batch: ComparisonBatch
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of every pair, and metrics per pair to log.

        beta h is the reward that the policy implies (Rafailov et al. 2023, eq. 5).
        """
        settings = self.config.dpo
        ratios_B = weighted_log_ratio(logprobs_BT, batch.ref_logprobs_BT, batch.weights_BT)
        better_N = ratios_B[batch.better_N]
        worse_N = ratios_B[batch.worse_N]
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
            lengths = [comparison.lengths for comparison in self.comparisons]
            self._epoch_batches = shuffled_batches(
                len(lengths), train.batch_size, train.seed, epoch, lengths
            )
            self._epoch = epoch
        return self._epoch_batches[i]

    @property
    def episodes_per_step(self) -> float:
        """Answers read in a step; an RL run would have to sample as many."""
        answers = sum(len(comparison.answer_ids) for comparison in self.comparisons)
        return self.config.train.batch_size * answers / len(self.comparisons)

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

    def _samples_are_due(self) -> bool:
        is_last = self.step + 1 == self.total_steps
        return is_last or self.step % self.steps_between_evaluations == 0

    def _sample_rows(
        self, indices: Sequence[int], logprobs_BT: Tensor, batch: ComparisonBatch
    ) -> list[dict]:
        """The answers of a micro-batch with the policy's implied reward on each token.

        The rows have the format of an RL run's samples.
        """
        log_ratios_BT = logprobs_BT - batch.ref_logprobs_BT
        rewards_BT = self.config.dpo.beta * batch.weights_BT * log_ratios_BT
        rows: list[dict] = []
        for i in indices:
            comparison = self.comparisons[i]
            for k in range(len(comparison.answer_ids)):
                row = len(rows)  # of the batch, in which a comparison's answers are consecutive
                rows.append(
                    sample_row(self.policy, comparison, k, rewards_BT[row], log_ratios_BT[row])
                )
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
    policy: Policy, comparison: TokenComparison, k: int, rewards_T: Tensor, kl_T: Tensor
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
        "kl": rounded(kl_T, len(ids)),
        "values": None,
        "advantages": None,
        "better_than": [j for i, j in comparison.pairs if i == k],
        "answer": k,
        "reward": round(float(rewards_T[: len(ids)].sum()), 5),
    }
