"""The results of a pipeline on this task: `summary.json`, also printed as a table.

    python -m tasks.experiments.summary output_dir=outputs/qa_feedback/mini \\
        data_dir=outputs/qa_feedback/mini/data [split=test]

As `fgrlhf.pipeline.summary`. In the mini world, it also says how well the reward models agree with
the oracle (`tasks.experiments.judged_models`).
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pydantic import Field

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json
from fgrlhf.base.program import run_main
from fgrlhf.cli.command_line import settings_from
from fgrlhf.pipeline.scores import evaluation_rows
from fgrlhf.pipeline.summary import (
    Rows,
    SummarySettings,
    data_of,
    evaluated_policies,
    gains,
    seed_of,
    summary_of,
)
from fgrlhf.reward_utils import default_segmenter
from fgrlhf.text_types import Prompt
from tasks.experiments.judged_models import JudgedSettings, reward_models
from tasks.experiments.summary_table import recorded_targets, table
from tasks.qa_feedback.data.language import TOY, language_of
from tasks.qa_feedback.display import DISPLAY
from tasks.qa_feedback.feedback import load_examples
from tasks.qa_feedback.task import oracle

# policy -> its possible names in eval/
POLICIES = {
    "sft": ("sft",),
    "holistic": ("holistic", "baseline"),
    "dpo": ("dpo",),
    "best_of_n": ("best_of_n",),
    "fine_grained": ("fine_grained",),
}
COMPARED = (
    ("fine_grained", "sft"),
    ("holistic", "sft"),
    ("dpo", "sft"),
    ("best_of_n", "sft"),
    ("fine_grained", "holistic"),
)
TASK_NAME = "qa_feedback"
# What is compared where the truth is not known: the judgement of every reward model that the
# evaluation had.
COMPARED_WITHOUT_TRUTH = (
    "reward",
    "relevance_model/ratio",
    "factuality_model/ratio",
    "completeness_model/score",
    "baseline_model/score",
    "rougeLsum",
    "length",
    "kl",
)


class StudySummarySettings(JudgedSettings):
    """The outputs to summarise."""

    scale: str = Field(default="mini", description="scale of the run, shown in the report")


# ---- policies ------------------------------------------------------------------------------------


def policy_rows(settings: StudySummarySettings) -> dict[str, Rows]:
    """The evaluation rows of the policies that were evaluated on the split.

    Raises:
      UserError: no policy was.
    """
    output = Path(settings.output_dir)
    evaluated = evaluated_policies(output, settings.split, DISPLAY)
    rows = {}
    for policy, names in POLICIES.items():
        existing = [name for name in names if name in evaluated]
        if existing:
            rows[policy] = evaluation_rows(output, existing[0], settings.split)
    if not rows:
        wanted = ", ".join(name for names in POLICIES.values() for name in names)
        raise UserError(
            f"{output}/eval has none of {wanted} on {settings.split}: evaluate one of them first"
        )
    return rows


# ---- the summary ---------------------------------------------------------------------------------


def summarise(settings: StudySummarySettings) -> dict:
    """Summarise the outputs in <output_dir>/summary.json, and return the summary.

    Raises:
      UserError: nothing was evaluated on the split, or a file is missing or broken.
    """
    prompts = load_examples(Path(settings.data_dir) / f"{settings.split}.json")
    rows = policy_rows(settings)
    judged = JudgedSettings(**settings.model_dump(exclude={"scale"}))
    measured_on, metrics = reward_models(judged, prompts)
    source = world_of(prompts) or settings.data_dir
    summary = summary_of(
        SummarySettings(**settings.model_dump(include={"output_dir", "split", "scale"})),
        DISPLAY,
        rows,
        task=TASK_NAME,
        gains=gains(rows, COMPARED, COMPARED_WITHOUT_TRUTH),
        reward_models=metrics,
        reward_models_on=measured_on,
        seed=seed_of(Path(settings.output_dir), ("fine_grained", "baseline", "sft")),
        data=data_of(rows, source, settings.split),
        gold_subsentences=gold_subsentences(prompts),
    )
    summary["targets"] = recorded_targets(summary)
    write_json(Path(settings.output_dir) / "summary.json", summary)
    return summary


def world_of(prompts: Sequence[Prompt]) -> str | None:
    """`mini world`, with its language unless that is the toy one; None for other prompts."""
    if not oracle(prompts):
        return None
    parsed = language_of(prompts[0].meta["question"])
    if parsed is None or parsed[0] is TOY:
        return "mini world"
    return f"mini world in {parsed[0].name.capitalize()}"


def gold_subsentences(prompts: Sequence[Prompt]) -> float:
    """The mean number of sub-sentences of the reference answers."""
    answers = [prompt.references[0] for prompt in prompts if prompt.references]
    segmenter = default_segmenter(answers)
    counts = [len(segmenter.segments(answer, "subsentence")) for answer in answers]
    return float(np.mean(counts)) if counts else 0.0


def main() -> None:
    settings = settings_from(StudySummarySettings)
    print(table(summarise(settings)))
    print(f"written to {Path(settings.output_dir) / 'summary.json'}")


if __name__ == "__main__":
    run_main(main)
