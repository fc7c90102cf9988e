"""What the studies of qa_feedback share: its scripts as stages, and the outputs of `make demo`."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from fgrlhf.base.errors import UserError
from fgrlhf.configs.strict import FilePath
from fgrlhf.pipeline.experiment_settings import ExperimentSettings
from fgrlhf.pipeline.experiments import EvaluationPlan, Experiment
from fgrlhf.pipeline.stages import Stage
from tasks.experiments.stages import Scripts, experiment_of, keys, module_stage

TASK = "qa_feedback"
MODULE = f"tasks.{TASK}"
FOLDER = f"tasks/{TASK}"
SCHEMA = f"{FOLDER}/interface_html/schema.js"
TASK_MODULES = (f"{MODULE}.task",)
FORMAT = (f"{MODULE}.feedback_format",)  # imported by name
FINE_GRAINED = f"{FOLDER}/training/mini_fine_grained_config.yml"
SAMPLES = 4  # answers per question at mini scale; intervals are over questions
MAX_GENERATED_LEN = 128  # tokens of an answer at mini scale
FEEDBACK_QUESTIONS = 3000  # of the training set, which the demo annotates at mini scale
REWARD_MODELS = {  # reward model -> its program
    "rel_rm": "run_fg_rm",
    "fact_rm": "run_fg_rm",
    "comp_rm": "run_pref_rm",
    "baseline_rm": "run_pref_rm",
}


class QAScripts(Scripts):
    """The scripts of this task, as stages. `parts` are further fields of `Stage`."""

    def __init__(self, scale: str):
        super().__init__(TASK, scale)

    def reward_model(
        self, name: str, model: str, *arguments: str, output: str, **parts: Any
    ) -> Stage:
        """Training of a reward model in the folder `output`."""
        return self.stage(
            name,
            f"reward_modeling/train_{model}.sh",
            *arguments,
            config=f"reward_modeling/{model}_config.yml",
            modules=(f"reward_modeling.{REWARD_MODELS[model]}", *TASK_MODULES),
            outputs=(output,),
            **parts,
        )

    def rl(self, name: str, script: str, *arguments: str, **parts: Any) -> Stage:
        """RL by train_finegrained.sh or train_baseline.sh; `name` is its folder's and config's."""
        return self.stage(
            script,
            f"training/{script}.sh",
            *arguments,
            config=f"training/{name}_config.yml",
            modules=(f"{MODULE}.training.{script}", *TASK_MODULES),
            outputs=(name,),
            **parts,
        )

    def dpo(self, *arguments: str, **parts: Any) -> Stage:
        """DPO on the preferences of a feedback file, without reward models."""
        return self.stage(
            "train_dpo",
            "training/train_dpo.sh",
            *arguments,
            config="training/dpo_config.yml",
            modules=("fgrlhf.cli.dpo", *TASK_MODULES),
            outputs=("dpo",),
            **parts,
        )

    def evaluation(
        self,
        policy: str,
        folder: Path,
        split: str,
        *arguments: str,
        config: str,
        before: Iterable[str] = (),
        needs: tuple[str, ...],
    ) -> Stage:
        """Answers of a policy to the questions of a split, with the rewards of a config.

        Args:
          folder: of the policy.
          before, arguments: of the script.
        """
        return self.stage(
            f"evaluate_{policy}",
            "training/evaluate.sh",
            *before,
            *keys(policy=folder, name=policy, split=split),
            *arguments,
            config=config,
            modules=("fgrlhf.cli.evaluate", *TASK_MODULES),
            needs=needs,
            outputs=(f"eval/{policy}-{split}",),
        )


# ---- studies on the outputs of the demo ----------------------------------------------------------


class BaseSettings(ExperimentSettings):
    """Settings of a study that starts from the outputs of `make demo`."""

    seeds: str = Field(default="0,1,2,3,4", description="every arm is repeated with each seed")
    base_dir: FilePath = Field(
        default="outputs/qa_feedback/mini", description="the output folder of `make demo`"
    )

    @property
    def base(self) -> Path:
        return Path(self.base_dir).absolute()

    def experiment(self, *needed: str) -> Experiment:
        """The study's folder, with the demo's data and models.

        Raises:
          UserError: the demo has not written the files `needed`.
        """
        missing = [name for name in needed if not (self.base / name).exists()]
        if missing:
            raise UserError(
                f"{self.base} has no {', '.join(missing)}: run `make demo` first, or set"
                " base_dir=... to its output folder"
            )
        return experiment_of(MODULE, self.folder, outputs=self.base)


def plan_of(base: Path) -> EvaluationPlan:
    """Sampled answers to the test questions, judged only by the oracle."""
    return EvaluationPlan(FINE_GRAINED, str(base / "data"), num_samples=SAMPLES, reward=False)


def rows_stage(
    name: str,
    out: Path,
    answered: Sequence[tuple[str | Path, Path]],
    dev: tuple[str | Path, Path],
    *,
    perturbed: float,
    seed: int,
    needs: tuple[str, ...],
    reads: tuple[str, ...],
) -> Stage:
    """The simulated annotator's feedback, and the training files of the reward models.

    Args:
      out: the folder that has the stage's output `name`.
      answered: the questions of each round, and the answers to them.
      dev: the dev questions, and the answers to them.
      perturbed: share of answers perturbed before they are annotated.
    """
    questions, samples = (",".join(map(str, files)) for files in zip(*answered, strict=True))
    return module_stage(
        name,
        "tasks.experiments.second_round_rows",
        *keys(questions=questions, samples=samples, dev_questions=dev[0], dev_samples=dev[1]),
        *keys(output_dir=out / name, perturbed=perturbed, seed=seed),
        imports=FORMAT,
        needs=needs,
        outputs=(name,),
        reads=(*reads, SCHEMA),
    )
