"""Evaluation on dev during a run of RL or DPO."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import nn

from fgrlhf.evaluation import (
    PolicyResponder,
    check_metrics_fit,
    evaluate_rows,
    reference_notes,
)
from fgrlhf.metrics.registry import build_metrics
from fgrlhf.metrics.summary import summarize
from fgrlhf.models.base import Policy
from fgrlhf.models.sharding import unsharded
from fgrlhf.policy_trainer import DevEvaluation, DevResults
from fgrlhf.reward import BasicReward
from fgrlhf.runs.distributed import dtype_of, share_of, stop_together
from fgrlhf.runs.runlog import say
from fgrlhf.task import Task
from fgrlhf.text_types import Prompt

if TYPE_CHECKING:
    from fgrlhf.environments import Conversations
    from fgrlhf.runs.dpo_config import DPOConfig
    from fgrlhf.runs.rl_config import RLConfig


def dev_evaluation(
    task: Task,
    config: "RLConfig | DPOConfig",
    prompts: Sequence[Prompt],
    reward: BasicReward | None,
    reference: nn.Module | None,
    accelerator: Accelerator,
    conversations: "Conversations | None" = None,
) -> DevEvaluation:
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
