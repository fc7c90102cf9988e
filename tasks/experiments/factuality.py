"""Studies whose arms train the factuality model (R2) on different feedback, with every seed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fgrlhf.base.files import read_json
from fgrlhf.pipeline.experiments import input_files
from fgrlhf.pipeline.stages import Stage
from tasks.experiments import qa
from tasks.experiments.stages import SCRIPT_FILES, keys, module_stage

# what an arm runs without importing it
TRAINING_MODULES = ("reward_modeling.run_fg_rm", *qa.TASK_MODULES, *qa.FORMAT)


def arm_stages(
    settings: qa.BaseSettings,
    module: str,
    key: str,
    arms: Sequence[str],
    data: Path,
    *arguments: str,
    reads: tuple[str, ...] = (),
    needs: tuple[str, ...] = (),
) -> list[Stage]:
    """A stage for each arm and seed (factuality_arm.py).

    Args:
      module: the program of an arm.
      key: the key that names the arm.
      data: folder of the feedback.
    """
    base_model = settings.base / "base_model"
    training = (f"{qa.FOLDER}/reward_modeling/*fact_rm*", qa.SCHEMA, *SCRIPT_FILES)
    stages = []
    for seed in settings.seed_list:
        for arm in arms:
            name = f"seed-{seed}/{arm}"
            stage = module_stage(
                name,
                module,
                *keys(**{key: arm}, seed=seed, data_dir=data, base_model=base_model),
                *keys(output_dir=settings.folder / name),
                *arguments,
                imports=TRAINING_MODULES,
                needs=needs,
                outputs=(name,),
                reads=(*training, *input_files(base_model), *reads),
            )
            stages.append(stage)
    return stages


def results_of(settings: qa.BaseSettings, arms: Sequence[str]) -> dict[str, list[Any]]:
    """The arms' result.json, by arm; one for each seed."""
    results = {}
    for arm in arms:
        folders = [settings.folder / f"seed-{seed}" / arm for seed in settings.seed_list]
        results[arm] = [read_json(folder / "result.json") for folder in folders]
    return results
