"""Evaluates a policy on prompts: a row per response, and a summary with intervals over prompts."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import nn

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.configs.sections import Sampling
from fgrlhf.evaluators import Rouge, RougeLsum
from fgrlhf.metrics.base import Metric, NamedMetric, ReferenceMetric
from fgrlhf.metrics.clusters import CLUSTER, cluster_of
from fgrlhf.metrics.config import RESERVED_COLUMNS
from fgrlhf.metrics.registry import build_metrics
from fgrlhf.metrics.rows import EvaluationRow
from fgrlhf.metrics.summary import summarize
from fgrlhf.models.base import Policy
from fgrlhf.models.sharding import unsharded
from fgrlhf.reward import BasicReward, response_tokens
from fgrlhf.reward_utils import Segmenter
from fgrlhf.rollout import (
    batches_by_length,
    decoded,
    finished_responses,
    logprobs_of,
    response_seeds_by_id,
    response_texts,
)
from fgrlhf.runs.distributed import dtype_of, share_of, stop_together
from fgrlhf.runs.progress import progress_bar, show_phase
from fgrlhf.runs.runlog import say
from fgrlhf.stats import Interval
from fgrlhf.task import Task
from fgrlhf.text_types import MetricFunction, Prompt, ResponseTokens, segment_rows
from fgrlhf.types import Response
from fgrlhf.utils import masked_sum
from fgrlhf.words import count_words

if TYPE_CHECKING:
    from fgrlhf.environments import Conversations
    from fgrlhf.runs.dpo_config import DPOConfig
    from fgrlhf.runs.rl_config import RLConfig

# With several samples per prompt, batches have fewer prompts: memory stays bounded, and progress is
# shown often.
RESPONSES_PER_BATCH = 128


class Responder(Protocol):
    """Responds to the prompts of an evaluation: a policy, or a search with it.

    Attributes:
      policy: whose tokenizer and end tokens the responses have.
      num_samples: responses to each prompt.
      phase: what it does, for the progress bar.
    """

    @property
    def policy(self) -> Policy: ...

    @property
    def num_samples(self) -> int: ...

    @property
    def phase(self) -> str: ...

    def respond(self, prompts: Sequence[Prompt]) -> Response:
        """`num_samples` responses per prompt; those of a prompt are consecutive rows."""
        ...

    def kls(
        self, reference: nn.Module, prompts: Sequence[Prompt], response: Response
    ) -> list[float] | None:
        """The KL of each response from a reference; None if they are no samples of the policy."""
        ...


@dataclass(frozen=True)
class PolicyResponder:
    """Responses that a policy samples.

    Args:
      seed: responses are a pure function of (seed, prompt id, sample); they do not depend on
        batches and processes.
      temperature: of the log-probabilities in the KL; None: that of sampling, or 1 for greedy
        responses.
      conversations: in which a response has several turns; None: it has one.
    """

    policy: Policy
    sampling: Sampling
    seed: int = 0
    num_samples: int = 1
    temperature: float | None = None
    conversations: "Conversations | None" = None
    phase = "sampling"

    @property
    def kl_temperature(self) -> float:
        if self.temperature is not None:
            return self.temperature
        return self.sampling.temperature if self.sampling.do_sample else 1.0

    def respond(self, prompts: Sequence[Prompt]) -> Response:
        seeds = response_seeds_by_id(prompts, self.seed, self.num_samples)
        encoded = self.policy.encode(prompts)
        how = (self.sampling, seeds, self.num_samples, self.kl_temperature)
        response = self.policy.generate(*encoded, *how)
        if self.conversations is None:
            return response
        return self.conversations.continued(self.policy, prompts, encoded, response, *how)

    def kls(
        self, reference: nn.Module, prompts: Sequence[Prompt], response: Response
    ) -> list[float]:
        """sum_t log pi(a_t) - log pi_ref(a_t) of each response."""
        batch = (
            *(part.repeat_interleave(self.num_samples, 0) for part in self.policy.encode(prompts)),
            response.ids_BT,
            response.mask_BT,
            response.support_BTW,
            response.conversation_BL,
        )
        distribution = (self.num_samples, self.kl_temperature, self.sampling.repetition_penalty)
        logprobs_BT = response.logprobs_BT
        under_bf16 = torch.is_autocast_enabled(self.policy.device.type)
        if under_bf16 or self.policy.model.dtype != torch.float32:
            # step-by-step and parallel rounding differ, and the reference's is parallel
            was_training = self.policy.model.training
            self.policy.model.eval()
            logprobs_BT = logprobs_of(self.policy, batch, *distribution)
            self.policy.model.train(was_training)
        difference_BT = logprobs_BT - logprobs_of(reference, batch, *distribution)
        kls = []
        for difference_T, mask_T in zip(difference_BT, response.mask_BT):
            kls.append(float(masked_sum(difference_T, mask_T)))
        return kls


# ---- rows ----------------------------------------------------------------------------------------


@torch.no_grad()
def evaluate_rows(
    responder: Responder,
    prompts: Sequence[Prompt],
    reward: BasicReward | None = None,
    metrics: Sequence[Metric] = (),
    reference: nn.Module | None = None,
    *,
    segmenter: Segmenter | None = None,
    batch_size: int = 32,
    progress: bool = True,
) -> list[EvaluationRow]:
    """The responses to every prompt, with their scores.

    Args:
      reward: adds its columns to the rows.
      metrics: metrics of a config (`fgrlhf.metrics.registry.build_metrics`), or functions (prompt,
        text) -> {name: number}. Their columns are added to the rows.
      reference: adds `kl`, if the responses are samples of the policy.
      segmenter: finds the sentences for RougeLsum; by default `multilingual`.
      batch_size: the most prompts per batch. It has fewer if they would have more than
        RESPONSES_PER_BATCH responses.
    Returns:
      One row per response, in the order of the prompts.
    Raises:
      UserError: a reward is NaN or infinite.
    """
    names = [metric.column for metric in metrics if isinstance(metric, NamedMetric)]
    rouge = None if "rougeLsum" in names else RougeLsum(segmenter)
    num_samples = responder.num_samples
    rows_of_prompt: dict[int, list[EvaluationRow]] = {}
    bar = progress_bar(len(prompts), "evaluating", "prompt", enabled=progress)
    prompts_per_batch = max(1, min(batch_size, RESPONSES_PER_BATCH // num_samples))
    for indices in batches_by_length(prompts, prompts_per_batch):
        batch = [prompts[i] for i in indices]
        show_phase(bar, responder.phase)
        response = responder.respond(batch)
        show_phase(bar, "scoring")
        kls = None if reference is None else responder.kls(reference, batch, response)
        repeated = [prompt for prompt in batch for _ in range(num_samples)]
        rows = _response_rows(responder, repeated, response, reward, rouge, kls, metrics)
        for n, i in enumerate(indices):
            rows_of_prompt[i] = rows[n * num_samples : (n + 1) * num_samples]
        bar.update(len(batch))
    bar.close()
    return [row for i in range(len(prompts)) for row in rows_of_prompt[i]]


def _response_rows(
    responder: Responder,
    prompts: Sequence[Prompt],
    response: Response,
    reward: BasicReward | None,
    rouge: RougeLsum | None,
    kls: Sequence[float] | None,
    metrics: Sequence[Metric],
) -> list[EvaluationRow]:
    """A row for every response, with the columns of the reward and of all metrics.

    Args:
      prompts: the prompt of each response; the responses to a prompt are neighbours.
    """
    policy = responder.policy
    texts = response_texts(policy, response)
    rows = _text_rows(prompts, texts, responder.num_samples)
    # autocast is for the policy: outside it, rewards are those of training, and metrics those of
    # the evaluation program
    with torch.autocast(response.ids_BT.device.type, enabled=False):
        if reward is not None:
            needs_tokens = getattr(reward, "needs_tokens", False)
            tokens = _response_tokens(policy, response) if needs_tokens else None
            _join(rows, _reward_columns(reward, prompts, texts, tokens))
        _join(rows, _text_columns(prompts, texts, rouge))
        if kls is not None:
            _join(rows, [{"kl": kl} for kl in kls])
        for metric in metrics:
            _join(rows, metric_columns(metric, prompts, texts))
    return [EvaluationRow(**row) for row in rows]


def _text_rows(prompts: Sequence[Prompt], texts: Sequence[str], num_samples: int) -> list[dict]:
    """A row for every response, with its texts.

    Args:
      prompts: the prompt of each response; the `num_samples` responses to a prompt are neighbours.
    """
    rows = []
    for n, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
        cluster = cluster_of(prompt)
        rows.append(
            {
                "id": prompt.id,
                **({} if cluster is None else {CLUSTER: cluster}),
                "sample": n % num_samples,
                "prompt": prompt.text,
                "response": text,
                "references": list(prompt.references),
            }
        )
    return rows


def _text_columns(
    prompts: Sequence[Prompt], texts: Sequence[str], rouge: RougeLsum | None
) -> list[dict[str, float]]:
    """`length` of each response in words and, if its prompt has references, `rougeLsum`."""
    columns = []
    for prompt, text in zip(prompts, texts):
        values: dict[str, float] = {"length": count_words(text)}
        if rouge is not None and prompt.references:
            values["rougeLsum"] = rouge(text, prompt.references)
        columns.append(values)
    return columns


def metric_columns(
    metric: Metric, prompts: Sequence[Prompt], texts: Sequence[str]
) -> Sequence[Mapping]:
    """The metric's columns of each response, in the order of `prompts` and `texts`.

    Raises:
      UserError: a task's metric returns something else, or reads a key that a prompt lacks.
    """
    if isinstance(metric, NamedMetric):
        return metric.columns(prompts, texts)
    columns = []
    for prompt, text in zip(prompts, texts):
        try:
            result = metric(_with_named_keys(prompt), text)
        except _MissingKeyError as error:
            raise UserError(_missing_key(metric, prompt, error)) from None
        problem = _metric_problem(result)
        if problem is not None:
            raise UserError(
                f"the metric {getattr(metric, '__name__', metric)} returned {result!r:.120} for"
                f" prompt {prompt.id}: {problem}"
            )
        columns.append(result)
    return columns


def check_metrics_fit(
    metrics: Sequence[Metric], prompts: Sequence[Prompt], source: str | Path
) -> None:
    """Check that the prompts have the keys of `Prompt.meta` that a task's metrics read.

    The metrics judge an empty response to one prompt of each set of keys, before real responses
    are sampled.

    Args:
      source: the file of the prompts, for the message.
    Raises:
      UserError: a key is missing.
    """
    prompts_by_keys: dict[frozenset, Prompt] = {}
    for prompt in prompts:
        prompts_by_keys.setdefault(frozenset(prompt.meta), prompt)
    for metric in metrics:
        if isinstance(metric, NamedMetric):
            continue
        for prompt in prompts_by_keys.values():
            try:
                metric(_with_named_keys(prompt), "")
            except _MissingKeyError as error:
                raise UserError(f"{source}: {_missing_key(metric, prompt, error)}") from None
            except Exception:  # an error with this response says nothing about real ones
                continue


def reference_notes(metrics: Sequence[Metric], prompts: Sequence[Prompt]) -> list[str]:
    """A note for every ROUGE that finds no word in most of the prompts' references.

    It is 0 for them whatever the response is. The notes name the reason and a way out.
    """
    references = [reference for prompt in prompts for reference in prompt.references]
    scorers: dict[str, Rouge] = {}
    for metric in metrics:
        if isinstance(metric, ReferenceMetric) and isinstance(metric.score, Rouge):
            scorers[metric.column] = metric.score
    scorers.setdefault("rougeLsum", RougeLsum())  # every evaluation computes it
    notes = []
    for name, rouge in scorers.items():
        blind = sum(not rouge.words(reference) for reference in references)
        if 2 * blind > len(references):
            if rouge.tokenizer == "published":
                reason = "tokenizer=published reads a-z and digits only; leave it out"
            else:
                reason = "they have no letters or digits; use chrf or exact_match"
            notes.append(
                f"note: {name} sees no words in {blind} of {len(references)} references and is 0"
                f" for them, whatever the response: {reason}"
            )
    return notes


class _MissingKeyError(KeyError):
    """A key that `Prompt.meta` lacks."""


class _NamedKeys(dict):
    """A dict that distinguishes its missing keys from those of other dicts."""

    def __missing__(self, key):
        raise _MissingKeyError(key)


def _with_named_keys(prompt: Prompt) -> Prompt:
    return replace(prompt, meta=_NamedKeys(prompt.meta))


def _missing_key(metric: MetricFunction, prompt: Prompt, error: _MissingKeyError) -> str:
    keys = ", ".join(map(str, prompt.meta)) or "none"
    return (
        f"the metric {getattr(metric, '__name__', metric)} reads the key {error.args[0]!r} of the"
        f" prompts (Prompt.meta), which prompt {shorten(prompt.id, 80)} lacks; its keys: {keys}."
        " Give a file that was prepared for this task, or add the key to its rows"
    )


def _metric_problem(result: Any) -> str | None:
    if not isinstance(result, Mapping):
        return "a metric of a task returns {name: number}"
    for name, value in result.items():
        if not isinstance(name, str):
            return f"the name of a number must be text, not {name!r:.60}"
        if name in RESERVED_COLUMNS or name.startswith("reward/"):
            return f"`{name}` is the name of another column: choose a new one"
        if value is None:
            continue
        is_number = isinstance(value, int | float)
        if not is_number or not math.isfinite(value):
            return f"`{name}` must be a finite number, or None if it does not apply"
    return None


def _join(rows: Sequence[dict], columns: Sequence[Mapping]) -> None:
    """Add columns to each row."""
    for row, more in zip(rows, columns, strict=True):
        row.update(more)


def _response_tokens(policy: Policy, response: Response) -> list[ResponseTokens]:
    """The tokens of the responses, for rewards with `needs_tokens`."""
    _, ends = decoded(policy, response)
    return response_tokens(ends, finished_responses(response, policy.eos_ids), response.turns)


def _reward_columns(
    reward: BasicReward,
    prompts: Sequence[Prompt],
    texts: Sequence[str],
    tokens: Sequence[ResponseTokens] | None,
) -> list[dict]:
    """The columns that the reward adds to each response's row."""
    columns: list[dict] = [{"reward": 0.0, "segments": {}} for _ in texts]
    for name, scores_of_texts in reward.segment_scores(prompts, texts, tokens).items():
        for column, prompt, scores in zip(columns, prompts, scores_of_texts, strict=True):
            if scores is None:
                column[f"reward/{name}"] = None
                continue
            value = float(sum(score.value for score in scores))
            if not math.isfinite(value):
                raise UserError(
                    f"reward `{name}` is {value} for an answer to prompt {prompt.id}: check what it"
                    " computes (of a reward model: the weights, mean and std), or disable the"
                    " reward with weight 0"
                )
            column["reward"] += value
            column[f"reward/{name}"] = value
            column["segments"][name] = segment_rows(scores)
            for measure, number in reward.measures(name, scores).items():
                column[f"{name}/{measure}"] = number
    return columns


# ---- on dev, during a run ------------------------------------------------------------------------


class DevResults(dict[str, Interval]):
    """The dev metrics by name, with the rows of the evaluation."""

    def __init__(self, metrics: Mapping[str, Interval], rows: Sequence[Mapping[str, Any]]):
        super().__init__(metrics)
        self.rows = rows


def dev_evaluation(
    task: Task,
    config: "RLConfig | DPOConfig",
    prompts: Sequence[Prompt],
    reward: BasicReward | None,
    reference: nn.Module | None,
    accelerator: Accelerator,
    conversations: "Conversations | None" = None,
) -> Callable[[Policy], DevResults]:
    """A function policy -> dev metrics with 95% intervals over prompts.

    The processes share the prompts; metrics cover all of them. A sharded policy must be called
    within `unsharded`; the reference is unsharded here. The KL, which needs one, has the same
    temperature as in training: `logprob_temperature` in an RL run, 1 in DPO.
    """
    evaluated = prompts[: config.evaluation.examples]
    own_prompts = share_of(evaluated, accelerator.process_index, accelerator.num_processes)

    device = str(accelerator.device)
    dtype = dtype_of(accelerator)
    named_metrics = build_metrics(config.evaluation_metrics, device, dtype, task.rm_prefix)
    metrics = (*task.metrics(own_prompts), *named_metrics)
    # all prompts, so that the processes find the same mistake
    check_metrics_fit(metrics, evaluated, config.data.dev_file or "dev")
    for note in reference_notes(metrics, evaluated):
        say(note)

    def evaluate(policy: Policy) -> DevResults:
        responder = PolicyResponder(
            policy,
            config.model.eval_sampling,
            config.train.seed,
            temperature=config.logprob_temperature,
            conversations=conversations,
        )
        roots = () if reference is None else (reference,)
        with unsharded(*roots), stop_together(accelerator):
            rows = evaluate_rows(
                responder,
                own_prompts,
                reward,
                metrics,
                reference,
                progress=accelerator.is_main_process,
            )
        rows = gather_object(rows) if accelerator.num_processes > 1 else rows
        records = [row.as_json() for row in rows]
        return DevResults(summarize(records), records)

    return evaluate
