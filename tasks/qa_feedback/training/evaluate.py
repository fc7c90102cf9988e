"""Evaluate a policy on dev or test: all metrics, one JSON line per response.

    python -m tasks.qa_feedback.training.evaluate policy=outputs/mini/sft split=test config=...
    data_dir=... output_dir=...

`tasks/qa_feedback/training/evaluate.sh` fills in config and folders. Writes
<output_dir>/eval/<name>-<split>/ {rows.jsonl, summary.json}; what was evaluated before with the
same settings, policy and data is reused.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from pydantic import Field, PositiveInt
from transformers.utils import logging as transformers_logging

from fgrlhf.cli.command_line import settings_from
from fgrlhf.config import StrictModel, load_config
from fgrlhf.errors import run_main
from fgrlhf.evaluation import Metric, evaluate_rows, summarize
from fgrlhf.evaluators import RougeLsum
from fgrlhf.files import write_json, write_jsonl
from fgrlhf.kernels.choice import use_kernels
from fgrlhf.models.decoding import Sampling
from fgrlhf.policy import Policy, load_policy
from fgrlhf.reward import BasicReward
from fgrlhf.runs.distributed import share_of
from fgrlhf.runs.runlog import RunLog
from fgrlhf.runs.stage import begin, finish, finished, folder_of, hold
from fgrlhf.types import Prompt
from tasks.qa_feedback.data.oracle import Facts, oracle_metrics
from tasks.qa_feedback.feedback import load_examples
from tasks.qa_feedback.training.prompts import check_prompts_fit
from tasks.qa_feedback.training.reward import QAConfig, build_reward


class Settings(StrictModel):
    """What to evaluate, on what, and how."""

    policy: str = Field(description="folder or hub name of the policy")
    config: str = Field(
        description=(
            "YAML of an RL run: its rewards, lengths, sampling; its policy is the reference of `kl`"
        )
    )
    data_dir: str
    output_dir: str
    split: str = Field("test", description="<data_dir>/<split>.json")
    name: str | None = Field(None, description="of the results; null: the policy's folder")
    do_sample: bool | None = Field(
        None,
        description="true: sampled as in training, false: greedy, null: as the config evaluates",
    )
    num_samples: PositiveInt = Field(1, description="answers per question")
    seed: int = 0
    max_examples: PositiveInt | None = Field(None, description="the first ones; null: all")
    batch_size: PositiveInt = Field(32, description="questions generated together")
    reward: bool = Field(
        True, description="false: no reward models are loaded (before there are any)"
    )


def policy_name(path: str) -> str:
    """`outputs/mini/fine_grained/best` -> `fine_grained`, `outputs/mini/sft` -> `sft`."""
    parts = [part for part in Path(path).parts if part not in ("best", "final", "checkpoints")]
    return parts[-1] if parts else path


def sampling_of(settings: Settings, config: QAConfig) -> Sampling:
    """How answers are drawn. Greedy means greedy, whatever else the config's evaluation asks
    for.
    """
    policy, length = config.model.policy_model, config.env.max_generated_len
    if settings.do_sample is None:
        return policy.eval_generation_kwargs.sampling(length)
    return (
        policy.train_generation_kwargs.sampling(length)
        if settings.do_sample
        else Sampling(length, do_sample=False)
    )


def oracle_for(prompts: Sequence[Prompt]) -> tuple[Metric, ...]:
    """The oracle where the questions are the mini world's, which it can judge."""
    known = all(
        Facts.read(prompt.meta["question"], prompt.meta["passages"]).needed
        for prompt in prompts[:5]
    )
    return (oracle_metrics,) if known and prompts else ()


def inputs_of(settings: Settings, config: QAConfig) -> list[str | Path]:
    """Every file and checkpoint that decides the result."""
    rewards = [aspect.ckpt for aspect in config.reward.values() if aspect.ckpt and aspect.weight]
    data = Path(settings.data_dir) / f"{settings.split}.json"
    reference = config.model.policy_model.ckpt
    return [
        settings.policy,
        data,
        settings.config,
        reference,
        *(rewards if settings.reward else ()),
    ]


def load(
    settings: Settings, config: QAConfig, device: torch.device
) -> tuple[Policy, Policy, BasicReward | None]:
    """Policy, reference and reward."""
    named = config.model.policy_model
    policy, reference = (
        load_policy(
            path,
            config.model.dtype,
            config.env.max_input_len,
            named.input_padding_side,
            named.chat_template,
        ).to(device)
        for path in (settings.policy, named.ckpt)
    )
    return policy, reference, build_reward(config, str(device)) if settings.reward else None


def evaluate(settings: Settings) -> Path:
    """Run the stage and return its folder.

    Raises:
      UserError: data, policy or a reward model is missing, or broken.
    """
    name = f"{settings.name or policy_name(settings.policy)}-{settings.split}"
    folder = folder_of(settings.output_dir, "eval", name)
    with hold(folder):
        return _evaluate(settings, name, folder)


def _evaluate(settings: Settings, name: str, folder: Path) -> Path:
    config = load_config(QAConfig, settings.config)
    prompts = load_examples(Path(settings.data_dir) / f"{settings.split}.json")[
        : settings.max_examples
    ]
    state = PartialState(cpu=not torch.accelerator.is_available())
    use_kernels("auto", folder)
    inputs = inputs_of(settings, config)
    if finished(folder, settings, inputs, redo=True) is not None:
        if state.is_main_process:
            print(f"{name}: evaluated before, reusing {folder}", flush=True)
        return folder
    policy, reference, reward = load(settings, config, state.device)
    check_prompts_fit(policy, prompts, f"{settings.split}.json", quiet=not state.is_main_process)
    if state.is_main_process:
        begin(folder, settings, inputs)
    with RunLog(folder, settings) as log, log.stage(f"evaluate {name}"):
        rows = evaluate_rows(
            policy,
            share_of(prompts, state.process_index, state.num_processes),
            reward,
            sampling_of(settings, config),
            settings.seed,
            oracle_for(prompts),
            reference,
            settings.num_samples,
            progress=state.is_main_process and sys.stderr.isatty(),
            temperature=config.logprob_temperature,
            batch_size=settings.batch_size,
        )
        rows = gather_object(rows) if state.num_processes > 1 else rows
        if state.is_main_process:
            summary = {metric: interval.as_dict() for metric, interval in summarize(rows).items()}
            write_jsonl(folder / "rows.jsonl", rows)
            write_json(folder / "summary.json", summary)
    if (
        state.is_main_process
    ):  # once stages.json has the stage's seconds: complete means that all is there
        segmenter = RougeLsum().segmenter.describe()
        finish(
            folder,
            {"questions": len(prompts), "responses": len(rows), "rouge_segmenter": segmenter},
        )
        print(table(summary), flush=True)
    state.wait_for_everyone()
    return folder


def table(summary: dict[str, dict[str, float]]) -> str:
    """One line per metric: mean and 95% interval."""
    width = max(map(len, summary))
    return "\n".join(
        f"  {name:<{width}}  {v['mean']:8.3f}  [{v['low']:.3f}, {v['high']:.3f}]"
        for name, v in summary.items()
    )


def main() -> None:
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    evaluate(settings_from(Settings))


if __name__ == "__main__":
    run_main(main)
