"""How well the reward models of a pipeline agree with the oracle.

    python -m tasks.experiments.judged_models output_dir=outputs/qa_feedback/mini \\
        data_dir=outputs/qa_feedback/mini/data [split=test]

Both judge the SFT policy's answers to questions that the reward models were not trained on. The
result is stored in eval/reward_models, where the summary (`tasks.experiments.summary`) finds it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from fgrlhf.base.program import run_main
from fgrlhf.cli.command_line import settings_from
from fgrlhf.configs.strict import FilePath, StrictModel
from fgrlhf.pipeline.scores import evaluation_rows
from fgrlhf.pipeline.summary import evaluated_policies, number, reward_models_on_dev
from fgrlhf.reward_models.spec import SPEC_FILE
from fgrlhf.runs.runlog import RunLog
from fgrlhf.runs.stage import begin, finish, hold, stored_result
from fgrlhf.text_types import Prompt
from tasks.qa_feedback.display import DISPLAY
from tasks.qa_feedback.feedback import load_examples
from tasks.qa_feedback.task import oracle

# The evaluation of several sampled answers of the SFT policy to a question. A greedy evaluation has
# no pairs of answers.
SAMPLED = "sft_samples"
REWARD_MODELS = {
    "relevance": "rel_rm",
    "factuality": "fact_rm",
    "completeness": "comp_rm",
    "preference": "baseline_rm",
}


class JudgedSettings(StrictModel):
    """The outputs whose reward models are compared with the oracle."""

    output_dir: FilePath = Field(description="folder of the results")
    data_dir: FilePath = Field(description="folder of the rows")
    split: str = Field(default="test", description="of the evaluations: eval/<policy>-<split>")
    judged: str | None = Field(
        default=None,
        description=(
            "evaluation whose answers the reward models and the oracle judge; null: sft_samples if"
            " there is one, else sft"
        ),
    )


def reward_models(
    settings: JudgedSettings, prompts: Sequence[Prompt]
) -> tuple[Literal["dev", "truth"], dict[str, dict]]:
    """What the existing reward models are measured against, and their metrics by name.

    Metrics against the truth are stored in eval/reward_models until a model changes.
    """
    output = Path(settings.output_dir)
    evaluated = evaluated_policies(output, settings.split, DISPLAY)
    judged = settings.judged or (SAMPLED if SAMPLED in evaluated else "sft")
    # the choice is one of the recorded settings, so other answers are judged anew
    settings = settings.model_copy(update={"judged": judged})
    folders = {}
    for name, folder in REWARD_MODELS.items():
        if (output / folder / SPEC_FILE).exists():
            folders[name] = output / folder
    if not oracle(prompts) or judged not in evaluated:
        return "dev", reward_models_on_dev(folders)
    folder = output / "eval" / "reward_models"
    answers = output / "eval" / f"{judged}-{settings.split}" / "rows.jsonl"
    inputs = [answers, *folders.values()]
    with hold(folder):
        metrics = stored_result(folder, settings, inputs, redo=True)
        if metrics is None:
            begin(folder, settings, inputs)
            with RunLog(folder, settings) as log, log.stage("reward models against the oracle"):
                rows = evaluation_rows(output, judged, settings.split)
                # imported here: it loads transformers, which takes seconds
                from tasks.experiments.judged_scores import reward_models_against_oracle

                metrics = reward_models_against_oracle(folders, prompts, rows)
            finish(folder, metrics)
    return "truth", metrics


def main() -> None:
    settings = settings_from(JudgedSettings)
    prompts = load_examples(Path(settings.data_dir) / f"{settings.split}.json")
    measured_on, metrics = reward_models(settings, prompts)
    print(f"reward models, measured on {'the oracle' if measured_on == 'truth' else 'dev'}")
    for name, values in metrics.items():
        shown = ", ".join(f"{key} {number(value)}" for key, value in values.items())
        print(f"  {name:<14}{shown}")


if __name__ == "__main__":
    run_main(main)
