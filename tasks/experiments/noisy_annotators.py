"""How much does weighting of annotators recover? One noisy annotator of three, on the mini world.

    python -m tasks.experiments noisy_annotators [seeds=0,1,2,3,4] \\
        [base_dir=outputs/qa_feedback/mini]

With every seed, the factuality model (R2) is trained on three feedback files of the same rows:
from annotators with little noise, from annotators one of whom has more noise, and from the same
ones with weighted votes (noisy_annotators_arm.py). The result is the share of the AUC lost by the
noise that the weights recover.
"""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from pydantic import Field, PositiveInt

from fgrlhf.configs.strict import FilePath
from fgrlhf.pipeline.study import Plan, Study, markdown
from tasks.experiments import qa
from tasks.experiments.factuality import arm_stages, results_of
from tasks.experiments.noisy_annotators_arm import Arm
from tasks.experiments.stages import keys

ARMS: tuple[str, ...] = get_args(Arm)
ARM_MODULE = "tasks.experiments.noisy_annotators_arm"
Result = Mapping[str, float]  # wrong and auc: see noisy_annotators_arm.py


class NoisyAnnotatorsSettings(qa.BaseSettings):
    """The experiment."""

    output_dir: FilePath = Field(
        default="outputs/noisy_annotators", description="folder of the results"
    )
    noise: float = Field(default=0.3, ge=0, le=1, description="of the noisy annotator")
    gold: PositiveInt = Field(default=50, description="number of gold rows")
    rows: PositiveInt = Field(default=500, description="number of rows to train on")
    per_item: int = Field(default=2, ge=1, le=3, description="number of annotators for each row")


def plan(settings: NoisyAnnotatorsSettings) -> Plan:
    experiment = settings.experiment("base_model/model.safetensors", "data/train_feedback.json")
    data = settings.base / "data"
    feedback = tuple(str(data / f"{split}_feedback.json") for split in ("train", "dev"))
    arguments = keys(**settings.model_dump(include={"noise", "gold", "rows", "per_item"}))
    stages = arm_stages(settings, ARM_MODULE, "arm", ARMS, data, *arguments, reads=feedback)
    return Plan(experiment, stages, settings.lane_count)


def mean(results: Sequence[Result], key: str) -> float:
    return sum(result[key] for result in results) / len(results)


def recovered(arms: Mapping[str, Sequence[Result]]) -> float | None:
    """The share of the lost AUC that the weights recover; None if the noise lost nothing.

    (weighted - noisy) / (clean - noisy), of the means over seeds.
    """
    auc = {arm: mean(results, "auc") for arm, results in arms.items()}
    lost = auc["clean"] - auc["noisy"]
    if lost <= 0:
        return None
    return (auc["weighted"] - auc["noisy"]) / lost


def results(arms: Mapping[str, Sequence[Result]], seeds: Sequence[int]) -> dict[str, Any]:
    return {"seeds": seeds, "recovered": recovered(arms), "arms": arms}


def table(result: Mapping[str, Any]) -> str:
    """The means of all arms, and the share that the weights recover."""
    rows = []
    for arm, of_arm in result["arms"].items():
        by_seed = ", ".join(f"{seed['auc']:.4f}" for seed in of_arm)
        rows.append([arm, f"{mean(of_arm, 'wrong'):.1%}", f"{mean(of_arm, 'auc'):.4f}", by_seed])
    share = result["recovered"]
    text = "undefined: the noisy arm has lost no AUC" if share is None else f"{share:.0%}"
    head = ["arm", "wrong sub-sentences", "AUC", "AUC by seed"]
    return f"{markdown(head, rows)}\nShare of the lost AUC that the weights recover: {text}.\n"


STUDY = Study(
    NoisyAnnotatorsSettings,
    plan,
    lambda settings, plan: results(results_of(settings, ARMS), settings.seed_list),
    table,
    "noisy_annotators",
)
