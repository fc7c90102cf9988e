"""Evaluate a policy on dev or test: all metrics, one JSON line per response.

    fgrlhf evaluate TASK policy=outputs/numbers/mini/sft config=... data_dir=... output_dir=...

Writes <output_dir>/eval/<name>-<split>/{rows.jsonl, summary.json}. Results with the same settings,
policy and data are reused.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from pydantic import Field, PositiveInt, SerializeAsAny, model_validator
from transformers.utils import logging as transformers_logging

from fgrlhf.base.errors import UserError, first_problems
from fgrlhf.base.files import write_json, write_jsonl
from fgrlhf.base.program import run_main
from fgrlhf.cli.command_line import settings_from, task_and_rest
from fgrlhf.configs.sections import Sampling
from fgrlhf.configs.strict import FilePath, StrictModel, load_config, refuse
from fgrlhf.configs.user_class import own_code
from fgrlhf.configs.yaml_files import config_files
from fgrlhf.evaluation import (
    PolicyResponder,
    Responder,
    check_metrics_fit,
    evaluate_rows,
    reference_notes,
)
from fgrlhf.evaluators import RougeLsum
from fgrlhf.kernels.choice import use_kernels
from fgrlhf.load import code_of, data_of, prompts_file
from fgrlhf.metrics.clusters import CLUSTER_HELP, units_note, with_clusters
from fgrlhf.metrics.config import EvaluationMetrics, models_of
from fgrlhf.metrics.registry import build_metrics
from fgrlhf.metrics.rows import ROWS, SUMMARY, read_rows, read_summary
from fgrlhf.metrics.slices import check_keys, slice_problem, slices_of, slices_text
from fgrlhf.metrics.summary import summarize
from fgrlhf.models.base import Policy
from fgrlhf.policy import check_prompts_fit, whole_policy
from fgrlhf.reward import BasicReward
from fgrlhf.rewards.build import build_reward
from fgrlhf.runs.distributed import share_of
from fgrlhf.runs.precision import dtype_of_run, with_dtype
from fgrlhf.runs.rl_config import RLConfig
from fgrlhf.runs.runlog import RunLog, say
from fgrlhf.runs.stage import begin, changes_since, finish, folder_of, hold, stored_result
from fgrlhf.scorers.base import RewardContext
from fgrlhf.scorers.kinds import AnyTextScorer
from fgrlhf.step_search import SearchResponder, StepSearch
from fgrlhf.task import Task
from fgrlhf.task_config import rl_config
from fgrlhf.text_types import Prompt

USAGE = """usage: fgrlhf evaluate [TASK] policy=... config=... output_dir=... [key=value ...]
  writes to output_dir/eval/NAME-SPLIT"""
RESULTS = (ROWS, SUMMARY)  # files of an evaluation
SLICES = "slices.json"  # beside them


class SearchSection(StrictModel):
    """A search over the steps of a response, instead of sampling."""

    scorer: AnyTextScorer = Field(
        description="judges the beginning of a response: docs/rewards.md, Scorers"
    )
    beams: PositiveInt = Field(default=4, description="responses that are kept after each step")
    samples: PositiveInt = Field(default=4, description="continuations of each of them")
    separator: str = Field(default="\n", min_length=1, description="text between two steps")


class EvaluateSettings(StrictModel):
    """The settings of an evaluation."""

    policy: str = Field(description="folder or hub name of the policy")
    config: str = Field(
        description=(
            "YAML of an RL run: rewards, lengths and sampling; its policy is the reference of `kl`"
        )
    )
    data_dir: FilePath | None = Field(
        default=None, description="folder of prompts; null: the task generates them"
    )
    output_dir: FilePath = Field(description="folder of the results")
    split: str = Field(default="test", description="<data_dir>/<split>.json, or .jsonl")
    name: str | None = Field(
        default=None, description="name of the results; null: the policy's folder"
    )
    do_sample: bool | None = Field(
        default=None,
        description="true: sample as in training; false: greedy; null: as in the config",
    )
    num_samples: PositiveInt = Field(default=1, description="responses per prompt")
    seed: int = Field(default=0, description="of everything random")
    max_examples: PositiveInt | None = Field(
        default=None, description="use only the first prompts; null: all"
    )
    batch_size: PositiveInt = Field(
        default=32, description="prompts per batch; fewer if there are many responses per prompt"
    )
    evaluation_metrics: EvaluationMetrics | None = Field(
        default=None, description="null: the config's"
    )
    search: SearchSection | None = Field(
        default=None, description="find one response per prompt by step search; null: sample"
    )
    cluster: str | None = Field(default=None, description=CLUSTER_HELP)
    slices: tuple[str, ...] = Field(
        default=(),
        description="also print the figures of parts, and write them to slices.json: by `length` of"
        " responses, `position` of judged segments, or `meta.KEY`, a key of the prompts' rows",
    )
    reward: bool = Field(
        default=True, description="false: load no reward models (if they are not trained yet)"
    )

    @model_validator(mode="after")
    def _slices_exist(self):
        problems = [slice_problem(name) for name in self.slices]
        refuse([("slices", problem) for problem in problems if problem is not None])
        return self

    @model_validator(mode="after")
    def _search_finds_one_response(self):
        if self.search is not None and self.num_samples > 1:
            refuse([("num_samples", "a search finds one response per prompt: leave it out")])
        if self.search is not None and not self.do_sample:
            refuse([("do_sample", "a search chooses among sampled steps: set do_sample=true")])
        return self


class RecordedSettings(EvaluateSettings):
    """The settings as `config.yaml` records them: with the RL config that `config` names.

    Its environment variables are expanded, so an evaluation is done again if one has changed.
    """

    resolved: SerializeAsAny[RLConfig] = Field(description="the RL config, as it was read")


def policy_name(path: str) -> str:
    """`outputs/numbers/mini/rl/best` -> `rl`, `outputs/numbers/mini/sft` -> `sft`."""
    parts = [part for part in Path(path).parts if part not in ("best", "final", "checkpoints")]
    return parts[-1] if parts else path


def responses_of(settings: EvaluateSettings, config: RLConfig) -> Sampling:
    """How answers are sampled. With `do_sample=false` the config's other settings are ignored.

    Raises:
      UserError: several responses per prompt, or a search, are asked for, but nothing is random, or
        a search of conversations.
    """
    if settings.search is not None and config.env.has_conversations:
        raise UserError(
            f"a search finds the steps of one turn, but {settings.config} has env.of: leave out"
            " search, or set env.of=null"
        )
    model = config.model
    length = model.max_generated_len
    reason = "do_sample is false"
    way_out = "set do_sample=true"
    if settings.do_sample is None:
        reason = f"{settings.config} has model.eval_generation_kwargs.do_sample=false"
        sampling = model.eval_generation_kwargs.sampling(length)
    elif settings.do_sample:
        reason = f"{settings.config} has model.train_generation_kwargs.do_sample=false"
        way_out = "set it to true"
        sampling = model.train_generation_kwargs.sampling(length)
    else:
        sampling = Sampling(length, do_sample=False)
    if sampling.do_sample:
        return sampling
    if settings.search is not None:
        raise UserError(f"a search chooses among sampled steps, but {reason}: {way_out}")
    if settings.num_samples > 1:
        raise UserError(
            f"num_samples is {settings.num_samples}, but {reason}, so all responses to a prompt"
            f" would be the same: {way_out}, or leave num_samples out"
        )
    return sampling


def metrics_of(settings: EvaluateSettings, config: RLConfig) -> EvaluationMetrics:
    """The metrics of the settings if given, else those of the config."""
    given = settings.evaluation_metrics
    return config.evaluation_metrics if given is None else given


def inputs_of(task: Task, settings: EvaluateSettings, config: RLConfig) -> list[str | Path]:
    """Every file and checkpoint that affects the result, the user's code included."""
    inputs: list[str | Path] = [
        *code_of(task).values(),
        *own_code([settings, config]).values(),
        settings.policy,
        settings.config,
        *config_files(settings.config)[1:],
        config.model.ckpt,
    ]
    inputs += models_of(metrics_of(settings, config))
    if settings.search is not None:
        inputs += settings.search.scorer.model_folders()
    data = prompts_file(settings.data_dir, settings.split)
    if data is None:
        inputs += [os.path.relpath(path) for path in data_of(task)]
    else:
        inputs.append(data)
    if settings.reward:
        for reward in config.reward.values():
            if reward.weight:
                inputs += reward.model_folders()
    return inputs


def load(
    task: Task, settings: EvaluateSettings, config: RLConfig, device: torch.device
) -> tuple[Policy, Policy, BasicReward | None]:
    """Load policy, reference and reward."""
    model = config.model
    policy = whole_policy(model, settings.policy, model.dtype).to(device)
    reference = whole_policy(model, model.ckpt, model.dtype).to(device)
    reward = None
    if settings.reward:
        reward = build_reward(
            config.reward, RewardContext(task.rm_prefix, str(device), config.model.dtype)
        )
    return policy, reference, reward


def responder_of(
    task: Task, settings: EvaluateSettings, config: RLConfig, policy: Policy
) -> Responder:
    """What responds to the prompts: the policy, or a step search, whose scorer is loaded here."""
    sampling = responses_of(settings, config)
    temperature = config.logprob_temperature
    section = settings.search
    if section is None:
        conversations = config.env.build(policy)
        how = (sampling, settings.seed, settings.num_samples, temperature, conversations)
        return PolicyResponder(policy, *how)
    context = RewardContext(task.rm_prefix, str(policy.device), config.model.dtype)
    scorer = section.scorer.build(context)
    search = StepSearch(scorer, section.beams, section.samples, section.separator)
    return SearchResponder(policy, search, sampling, settings.seed, temperature)


def evaluate(task: Task, settings: EvaluateSettings) -> Path:
    """Run the stage and return its folder.

    Raises:
      UserError: data, policy or a reward model is missing or broken.
    """
    name = f"{settings.name or policy_name(settings.policy)}-{settings.split}"
    folder = folder_of(settings.output_dir, "eval", name)
    with hold(folder):
        return _evaluate(task, settings, name, folder)


def _evaluate(task: Task, settings: EvaluateSettings, name: str, folder: Path) -> Path:
    config = load_config(rl_config(task), settings.config)
    # slices are figures of the rows, which stay as they are
    recorded = RecordedSettings(**{**dict(settings), "slices": ()}, resolved=config)
    sampling = responses_of(settings, config)
    data = prompts_file(settings.data_dir, settings.split)
    prompts = task.prompts(data, settings.split, config.data.seed, key="data_dir")
    prompts = with_clusters(
        prompts[: settings.max_examples], settings.cluster, str(data or settings.split)
    )
    check_keys(settings.slices, [prompt.meta for prompt in prompts])
    state = PartialState(cpu=not torch.accelerator.is_available())
    device = torch.device(state.device or "cpu")
    use_kernels("auto", folder)
    inputs = inputs_of(task, settings, config)
    if stored_result(folder, recorded, inputs, redo=True, files=RESULTS) is not None:
        if state.is_main_process:
            rows = read_rows(folder / ROWS)  # damaged results are not reused
            summary = read_summary(folder / SUMMARY)
            print(f"{name}: evaluated before, reusing {folder}", flush=True)
            print(units_note(rows))
            print(table(summary), flush=True)
            _write_slices(folder, settings, rows, prompts)
        return folder
    task_metrics = task.metrics(prompts)
    check_metrics_fit(task_metrics, prompts, data or settings.split)
    dtype = dtype_of_run(config.model, folder)
    config = config.model_copy(update={"model": with_dtype(config.model, dtype)})
    policy, reference, reward = load(task, settings, config, device)
    quiet = not state.is_main_process
    file = data or settings.split
    check_prompts_fit(policy, prompts, task.core_text, file, quiet, sampling.max_new_tokens)
    named_metrics = build_metrics(
        metrics_of(settings, config), str(state.device), dtype, task.rm_prefix
    )
    for note in reference_notes((*task_metrics, *named_metrics), prompts):
        say(note)
    responder = responder_of(task, settings, config, policy)
    if state.is_main_process:
        _say_what_is_replaced(folder, recorded, inputs)
        begin(folder, recorded, inputs)  # last, since it removes earlier results
    with (
        RunLog(folder, recorded, task=task.name or None, dtype=dtype) as log,
        log.stage(f"evaluate {name}"),
    ):
        evaluated = evaluate_rows(
            responder,
            share_of(prompts, state.process_index, state.num_processes),
            reward,
            (*task_metrics, *named_metrics),
            reference,
            batch_size=settings.batch_size,
            progress=state.is_main_process,
        )
        rows = [row.as_json() for row in evaluated]
        rows = gather_object(rows) if state.num_processes > 1 else rows
        if state.is_main_process:
            summary = {metric: interval.as_dict() for metric, interval in summarize(rows).items()}
            write_jsonl(folder / ROWS, rows)
            write_json(folder / SUMMARY, summary)
    # after the log has written stages.json, because result.json marks the stage as complete
    if state.is_main_process:
        segmenter = RougeLsum().segmenter.describe()
        finish(
            folder,
            {"prompts": len(prompts), "responses": len(rows), "rouge_segmenter": segmenter},
        )
        print(units_note(rows))
        print(table(summary), flush=True)
        _write_slices(folder, settings, rows, prompts)
    state.wait_for_everyone()
    return folder


def _write_slices(
    folder: Path,
    settings: EvaluateSettings,
    rows: Sequence[Mapping[str, Any]],
    prompts: Sequence[Prompt],
) -> None:
    """Print the figures of the parts that `slices` names, and write them with their intervals."""
    (folder / SLICES).unlink(missing_ok=True)
    if not settings.slices:
        return
    meta = {prompt.id: prompt.meta for prompt in prompts}
    parts = slices_of(rows, meta, settings.slices)
    write_json(folder / SLICES, {name: [one.as_dict() for one in of] for name, of in parts.items()})
    print(f"\nmeans of parts; {folder / SLICES} has their 95% intervals\n")
    print(slices_text(parts), flush=True)


def _say_what_is_replaced(
    folder: Path, recorded: RecordedSettings, inputs: Sequence[str | Path]
) -> None:
    """Print how an evaluation that is replaced differs from the new one."""
    changes = changes_since(folder, recorded, inputs)
    if changes and (folder / "result.json").exists():
        lines = [
            f"note: this replaces the evaluation in {folder}, which has other settings or inputs:",
            *first_problems(changes),
        ]
        print("\n  ".join(lines), "Give name=... to keep both.", sep="\n", flush=True)


def table(summary: dict[str, dict[str, float | None]]) -> str:
    """One line per metric: mean and 95% interval.

    There is none if prompts are too few, or if all have the same value.
    """
    width = max(map(len, summary))
    lines = []
    for name, interval in summary.items():
        # `z` writes a rounded -0.0004 as 0.000
        bounds = "(no interval: few prompts, or all have this value)"
        if interval["low"] is not None:
            bounds = f"[{interval['low']:z.3f}, {interval['high']:z.3f}]"
        lines.append(f"  {name:<{width}}  {interval['mean']:z8.3f}  {bounds}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    task, rest = task_and_rest(argv, USAGE)
    evaluate(task, settings_from(EvaluateSettings, rest, USAGE))


if __name__ == "__main__":
    run_main(main)
