"""Sample responses to annotate: JSON lines for one split, in the task's own format.

    fgrlhf generate TASK policy=outputs/numbers/mini/sft split=train data_dir=... output_dir=...

The defaults are four samples at temperature 0.7 and top-k 20, with which the paper collects its
feedback. Writes <output_dir>/generated/<name>-<split>/samples.jsonl; an interrupted run continues
where it stopped.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from accelerate import PartialState
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt
from transformers.utils import logging as transformers_logging

from fgrlhf.base.files import parse_json, read_jsonl, write_jsonl
from fgrlhf.base.program import run_main
from fgrlhf.cli.command_line import settings_from, task_and_rest
from fgrlhf.cli.evaluate import policy_name
from fgrlhf.configs.sections import Sampling
from fgrlhf.configs.strict import FilePath, StrictModel
from fgrlhf.kernels.choice import use_kernels
from fgrlhf.load import prompts_file
from fgrlhf.models.base import Policy
from fgrlhf.policy import check_prompts_fit, load_policy
from fgrlhf.rollout import generate_texts
from fgrlhf.runs.distributed import share_of
from fgrlhf.runs.progress import progress_bar
from fgrlhf.runs.runlog import RunLog
from fgrlhf.runs.stage import begin, finish, folder_of, hold, stored_result
from fgrlhf.task import Task
from fgrlhf.text_types import Prompt

USAGE = """usage: fgrlhf generate [TASK] policy=... output_dir=... [key=value ...]
  writes to output_dir/generated/NAME-SPLIT"""

# Prompts are batched by length within a chunk. An interruption loses at most one chunk.
BATCHES_PER_CHUNK = 8


SampleRow = Callable[[Prompt, Sequence[str]], dict]


class GenerateSettings(StrictModel):
    """The settings of the stage."""

    policy: str = Field(description="folder or hub name of the policy")
    data_dir: FilePath | None = Field(
        default=None, description="folder of prompts; null: the task generates them"
    )
    output_dir: FilePath = Field(description="folder of the results")
    split: str = Field(default="train", description="<data_dir>/<split>.json, or .jsonl")
    name: str | None = Field(
        default=None, description="name of the results; null: the policy's folder"
    )
    num_samples: PositiveInt = Field(default=4, description="responses per prompt")
    temperature: PositiveFloat = Field(
        default=0.7, description="divides the logits before sampling"
    )
    top_k: NonNegativeInt = Field(default=20, description="0: the whole vocabulary")
    top_p: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="sample from the smallest set of tokens with this probability",
    )
    max_input_len: PositiveInt = Field(
        default=1024, description="tokens; longer prompts are cut at their end"
    )
    max_generated_len: PositiveInt = Field(default=200, description="tokens of a response")
    dtype: str = Field("fp32", pattern="^(fp32|bf16)$", description="fp32 or bf16")
    seed: int = Field(default=0, description="of everything random")
    max_examples: PositiveInt | None = Field(
        default=None, description="use only the first prompts; null: all"
    )
    batch_size: PositiveInt = Field(default=32, description="prompts per batch in generation")


def read_part(path: Path, prompts: Sequence[Prompt], to_row: SampleRow) -> list[dict]:
    """The rows of an interrupted run, up to the first that is damaged or of another prompt."""
    if not path.exists():
        return []
    rows: list[dict] = []
    # not splitlines(), because a text may contain other line separators, which JSON does not escape
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
    for line, prompt in zip(lines, prompts):
        row = _row(line)
        expected_keys = to_row(prompt, []).keys()
        if row is None or row.get("id") != prompt.id or row.keys() != expected_keys:
            print(
                f"note: {path}, line {len(rows) + 1} is damaged: its answers and those after it are"
                " sampled again",
                flush=True,
            )
            break
        rows.append(row)
    write_jsonl(path, rows)
    return rows


def remove_parts(folder: Path) -> None:
    for part in folder.glob("part-*-of-*.jsonl"):
        part.unlink()


def _row(line: str) -> dict | None:
    try:
        row = parse_json(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def sample_to(
    path: Path,
    policy: Policy,
    prompts: Sequence[Prompt],
    to_row: SampleRow,
    settings: GenerateSettings,
    progress: bool,
) -> None:
    """Append one row per prompt to `path`, chunk by chunk, after the rows it already has."""
    sampling = Sampling(
        settings.max_generated_len, True, settings.temperature, settings.top_k, settings.top_p
    )
    done = len(read_part(path, prompts, to_row))
    size = settings.batch_size * BATCHES_PER_CHUNK
    with (
        open(path, "a", encoding="utf-8") as file,
        progress_bar(
            len(prompts), "sampling responses", "prompt", initial=done, enabled=progress
        ) as bar,
    ):
        for start in range(done, len(prompts), size):
            chunk = prompts[start : start + size]
            texts = generate_texts(
                policy,
                chunk,
                sampling,
                settings.num_samples,
                settings.seed,
                settings.batch_size,
                bar,
            )
            for prompt, responses in zip(chunk, texts):
                file.write(json.dumps(to_row(prompt, responses), ensure_ascii=False) + "\n")
            file.flush()


def generate(task: Task, settings: GenerateSettings) -> Path:
    """Run the stage and return the file of samples.

    Raises:
      UserError: data or policy is missing or broken, or the folder has samples of other settings.
    """
    name = f"{settings.name or policy_name(settings.policy)}-{settings.split}"
    folder = folder_of(settings.output_dir, "generated", name)
    with hold(folder):
        return _generate(task, settings, name, folder)


def _generate(task: Task, settings: GenerateSettings, name: str, folder: Path) -> Path:
    data = prompts_file(settings.data_dir, settings.split)
    prompts = task.prompts(data, settings.split, key="data_dir")[: settings.max_examples]
    inputs = [settings.policy] if data is None else [settings.policy, data]
    state = PartialState(cpu=not torch.accelerator.is_available())
    use_kernels("auto", folder)
    # Unfinished samples of other settings are discarded; finished ones may be under annotation.
    is_complete = (folder / "samples.jsonl").exists()
    files = ("samples.jsonl",)
    if stored_result(folder, settings, inputs, redo=not is_complete, files=files) is not None:
        if state.is_main_process:
            remove_parts(folder)  # in case the stage was killed just after it was complete
            print(f"{name}: generated before, reusing {folder}", flush=True)
        return folder / "samples.jsonl"
    policy = load_policy(settings.policy, settings.dtype, settings.max_input_len).to(state.device)
    quiet = not state.is_main_process
    file = data or settings.split
    check_prompts_fit(policy, prompts, task.core_text, file, quiet, settings.max_generated_len)
    if state.is_main_process:
        begin(folder, settings, inputs)
        if not (folder / "config.yaml").exists():  # the settings of these samples are unknown
            remove_parts(folder)
    n_processes = state.num_processes
    parts = [folder / f"part-{rank}-of-{n_processes}.jsonl" for rank in range(n_processes)]
    with RunLog(folder, settings, task=task.name or None) as log, log.stage(f"generate {name}"):
        state.wait_for_everyone()
        own_prompts = share_of(prompts, state.process_index, n_processes)
        sample_to(
            parts[state.process_index],
            policy,
            own_prompts,
            task.sample_row,
            settings,
            progress=state.is_main_process,
        )
        state.wait_for_everyone()
        if state.is_main_process:
            rows = []
            for part in parts:
                rows += read_jsonl(part)
            write_jsonl(folder / "samples.jsonl", rows)
    # after the log has written stages.json, because result.json marks the stage as complete
    if state.is_main_process:
        finish(folder, {"prompts": len(prompts), "samples": len(prompts) * settings.num_samples})
        remove_parts(folder)
        print(
            f"{len(prompts)} prompts, {settings.num_samples} responses each:"
            f" {folder / 'samples.jsonl'}",
            flush=True,
        )
    return folder / "samples.jsonl"


def main(argv: Sequence[str] | None = None) -> None:
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    task, rest = task_and_rest(argv, USAGE)
    generate(task, settings_from(GenerateSettings, rest, USAGE))


if __name__ == "__main__":
    run_main(main)
