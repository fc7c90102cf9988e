"""How well reward models of different feedback agree with the oracle, on the same answers.

    python -m tasks.experiments.second_round_models folder=outputs/second_round/seed-0 \\
        sets=first,one_round prompts=dev.json answers=rows.jsonl out=agreement.json

For the reward models in <folder>/<set>, the output has the AUC of R1 and R2 in error detection,
over segments, and the share of pairs of answers that R3 orders right.
"""

from pathlib import Path

from pydantic import Field

from fgrlhf.base.files import write_json
from fgrlhf.cli.command_line import run_program
from fgrlhf.configs.strict import FilePath, StrictModel
from fgrlhf.metrics.rows import read_rows
from tasks.experiments.judged_models import REWARD_MODELS
from tasks.experiments.judged_scores import reward_models_against_oracle
from tasks.qa_feedback.feedback import load_examples

ASPECTS = {"relevance": "auc", "factuality": "auc", "completeness": "pair_accuracy"}


class SecondRoundModelsSettings(StrictModel):
    folder: str = Field(description="folder of the sets of reward models")
    sets: str = Field(description="names of the sets, separated by commas")
    prompts: str = Field(description="the questions, a file like dev.json")
    answers: str = Field(description="rows.jsonl of an evaluation on these questions")
    out: FilePath = Field(description="the file to write")


def measure(settings: SecondRoundModelsSettings) -> dict[str, dict[str, float]]:
    """Write and return set -> aspect -> agreement."""
    prompts = load_examples(settings.prompts)
    rows = read_rows(settings.answers)
    result = {}
    for name in settings.sets.split(","):
        folders = {}
        for aspect in ASPECTS:
            folders[aspect] = Path(settings.folder) / name / REWARD_MODELS[aspect]
        metrics = reward_models_against_oracle(folders, prompts, rows)
        result[name] = {aspect: metrics[aspect][key] for aspect, key in ASPECTS.items()}
        print(f"{name}: {result[name]}", flush=True)
    write_json(settings.out, result)
    return result


if __name__ == "__main__":
    run_program(measure, SecondRoundModelsSettings)
