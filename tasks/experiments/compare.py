"""`compare.sh`: compare algorithms on the mini world over several seeds, with significance tests.

    bash tasks/qa_feedback/training/compare.sh [algorithms=ppo,grpo,ppo-holistic] \\
        [seeds=0,1,2] [steps=40]

`<name>` trains with the fine-grained rewards, `<name>-holistic` with the preference model's single
score. `dpo` (preferences), `dpo-ipo` and so on (preferences with that loss), `fine-grained-dpo`
(corrected over predicted answers), `span-kto` (the marks of prediction 1), `span-kto-dpo`
(preferences and these marks) and `corrected-sft` train on the feedback file for the number of steps
in their YAML. mini_compare_config.yml adds choices: `grpo-cispo` is the run `grpo` with the changes
that the file has for this name. Policies, questions and reward models are those of
`make demo`. Writes compare/summary.json and compare/index.html; run it again to continue or to add
runs. `fgrlhf compare` does the same for any task and any configs.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import Field

from fgrlhf.algorithms.registry import ALGORITHMS
from fgrlhf.base.errors import UserError
from fgrlhf.configs.strict import Count, FilePath
from fgrlhf.configs.yaml_files import read_config
from fgrlhf.pipeline.compare import comparison_stages, conclude, with_settings
from fgrlhf.pipeline.comparison import RunComparison
from fgrlhf.pipeline.comparison_page import table
from fgrlhf.pipeline.experiments import Run
from fgrlhf.pipeline.stages import Stage
from fgrlhf.pipeline.study import Plan, Study
from fgrlhf.runs.dpo_config import OF_PAIRS
from tasks.experiments import qa
from tasks.experiments.stages import keys, module_stage
from tasks.qa_feedback.display import DISPLAY

HOLISTIC = f"{qa.FOLDER}/training/mini_baseline_config.yml"
TUNED = f"{qa.FOLDER}/training/mini_compare_config.yml"
HOLISTIC_SUFFIX = "-holistic"
EPISODES_PER_STEP = 64  # of the mini configs: prompts x samples
DPO = {
    "dpo": "mini_dpo_config.yml",
    "fine-grained-dpo": "mini_fine_grained_dpo_config.yml",
    "span-kto": "mini_marks_dpo_config.yml",
    "span-kto-dpo": "mini_span_kto_dpo_config.yml",
}
# `dpo-<loss>` is dpo with another loss; the settings are those of dpo, and not tuned for it
LOSS_OF = {f"dpo-{loss}": loss for loss in (*OF_PAIRS, "kto") if loss not in ("sigmoid", "robust")}
CORRECTED_SFT = "corrected-sft"
CORRECTED = "corrected.json"  # training file of CORRECTED_SFT, in the output folder
OFFLINE = (*DPO, *LOSS_OF, CORRECTED_SFT)
NAMES = (*ALGORITHMS, *(name + HOLISTIC_SUFFIX for name in ALGORITHMS), *OFFLINE)  # and choices
DEFAULT = (*ALGORITHMS, "ppo-holistic", "rloo-holistic", *DPO, CORRECTED_SFT)


class CompareStudySettings(qa.BaseSettings):
    """`compare.sh`."""

    seeds: str = Field(default="0,1,2", description="every run is repeated with each seed")
    algorithms: str = Field(
        default=",".join(DEFAULT),
        description="separated by commas; the others are compared with the first",
    )
    steps: Count = Field(
        default=40, description="rollouts of 64 answers; the runs of the demo have 40"
    )
    output_dir: FilePath = Field(
        default="outputs/qa_feedback/mini/compare", description="folder of the results"
    )
    lanes: int | None = Field(
        default=2, ge=1, le=1024, description="runs at the same time, one core each"
    )

    @property
    def names(self) -> list[str]:
        names = [name.strip() for name in self.algorithms.split(",")]
        if len(set(names)) < len(names):
            raise UserError(f"algorithms={self.algorithms}: name each algorithm once")
        known = (*NAMES, *choices())
        unknown = [name for name in names if name not in known]
        if unknown:
            raise UserError(
                f"algorithms={self.algorithms}: there is no {', '.join(unknown)}; use some of"
                f" {', '.join(known)}"
            )
        return names


def choices() -> dict[str, str]:
    """The runs that only mini_compare_config.yml has, and which run each changes: {new: old}."""
    found = {}
    for name in read_config(TUNED):
        runs = [run for run in NAMES if name.startswith(f"{run}-")]
        if name not in NAMES and runs:
            found[name] = max(runs, key=len)
    return found


def run_of(name: str, steps: int, out: Path) -> Run:
    """The run with this name, with its tuned settings."""
    changed = choices().get(name)
    if changed is None:
        return with_settings(_untuned(name, steps, out), TUNED)
    run = with_settings(_untuned(changed, steps, out), TUNED)
    return with_settings(replace(run, name=name), TUNED)


def _untuned(name: str, steps: int, out: Path) -> Run:
    if name == CORRECTED_SFT:
        config = f"{qa.FOLDER}/training/mini_corrected_sft_config.yml"
        data = f"data.train_file={out / CORRECTED}"
        return Run(name, "sft", config, (data,), algorithm=name, needs=("corrected_examples",))
    if name in DPO:
        return Run(name, "dpo", f"{qa.FOLDER}/training/{DPO[name]}", algorithm=name)
    if name in LOSS_OF:
        config = f"{qa.FOLDER}/training/{DPO['dpo']}"
        return Run(name, "dpo", config, (f"dpo.loss={LOSS_OF[name]}",), algorithm=name)
    is_holistic = name.endswith(HOLISTIC_SUFFIX)
    algorithm = name.removesuffix(HOLISTIC_SUFFIX)
    overrides = (
        f"algorithm.name={algorithm}",
        f"train.total_episodes={steps * EPISODES_PER_STEP}",
    )
    config = HOLISTIC if is_holistic else qa.FINE_GRAINED
    return Run(name, "rl", config, overrides, "holistic" if is_holistic else "", algorithm)


def corrected_examples(base: Path, out: Path) -> Stage:
    """The corrected answers of the feedback file as demonstrations."""
    feedback = str(base / "data" / "train_feedback.json")
    questions = str(base / "data" / "train.json")
    return module_stage(
        "corrected_examples",
        "tasks.qa_feedback.training.corrected_examples",
        *keys(feedback=feedback, questions=questions, out=out / CORRECTED),
        outputs=(CORRECTED,),
        reads=(feedback, questions),
    )


def needed_files(names: Sequence[str]) -> list[str]:
    """The files of the demo that these runs read."""
    files = ["sft/model.safetensors"]
    for name in names:
        if name in OFFLINE or choices().get(name) in OFFLINE:
            files.append("data/train_feedback.json")
        elif name.endswith(HOLISTIC_SUFFIX):
            files.append("baseline_rm/model.safetensors")
        else:
            files += [f"{rm}/model.safetensors" for rm in ("rel_rm", "fact_rm", "comp_rm")]
    return list(dict.fromkeys(files))


def runs_of(settings: CompareStudySettings) -> list[Run]:
    return [run_of(name, settings.steps, settings.folder) for name in settings.names]


def plan(settings: CompareStudySettings) -> Plan:
    base, seeds = settings.base, settings.seed_list
    runs = runs_of(settings)
    experiment = settings.experiment(*needed_files(settings.names))
    stages = comparison_stages(experiment, runs, seeds, str(base / "sft"), qa.plan_of(base))
    if CORRECTED_SFT in settings.names:
        stages.insert(0, corrected_examples(base, settings.folder))
    experiment.announce(len(runs), seeds, settings.lane_count)
    return Plan(experiment, stages, settings.lane_count)


def results(settings: CompareStudySettings, plan: Plan) -> RunComparison:
    """The comparison with the SFT policy, which is also written."""
    sft = str(settings.base / "sft")
    runs, seeds = runs_of(settings), settings.seed_list
    return conclude(plan.experiment, runs, seeds, sft, "test", "oracle/gold", DISPLAY)


STUDY = Study(
    CompareStudySettings,
    plan,
    results,
    table=lambda result: table(result, DISPLAY),
    pages={"page": "index.html"},
)
