"""Every stage on people's feedback, with a small pretrained language model on a CPU.

    python -m tasks.qa_feedback.real_feedback data_dir=FOLDER [output_dir=FOLDER] [lanes=2]

`data_dir` has the published rows or some of them: {train,dev}.json with questions and reference
answers, and {train,dev}_feedback.json. Nobody knows the truth about these answers, so the feedback
is divided: one half trains the reward models and DPO, the other half trains the judges, four reward
models that only compare the policies, on dev questions. The last weights of every run of RL and DPO
are evaluated, so no checkpoint of these policies was selected by the questions that are compared.
Those of the reward models and judges were, and so was the number of epochs of R1: the rows of
dev_feedback.json are answers to the questions of dev.json.

Run it again to continue after an interruption or a changed setting; unchanged stages are reused.
"""

import sys
from pathlib import Path

from pydantic import Field, PositiveInt

from fgrlhf.base.errors import UserError
from fgrlhf.base.program import run_main
from fgrlhf.cli.command_line import settings_from
from fgrlhf.configs.strict import FilePath, StrictModel
from fgrlhf.pipeline.stages import Stage, stop_with_signals
from tasks.qa_feedback.data.halves import HALVES
from tasks.qa_feedback.demo import REWARD_MODELING, TASK, TASK_MODULE, TRAINING
from tasks.qa_feedback.reward_modeling.create_rm_files import (
    COMPLETENESS,
    FACTUALITY,
    FOLDERS,
    RELEVANCE,
)
from tasks.scripts import ROOT, pipeline_of, print_cost, script_stage, small_model

FILES = ("train.json", "dev.json", "train_feedback.json", "dev_feedback.json")
# reward model -> its program, its training files in a half's folder, and overrides of its config
REWARD_MODELS = {
    "baseline_rm": ("run_pref_rm", "{split}_feedback.json", ()),
    "fact_rm": ("run_fg_rm", FACTUALITY + "/{split}.json", ()),
    "comp_rm": ("run_pref_rm", COMPLETENESS + "/{split}.json", ()),
    # after more epochs it is worse on the dev rows
    "rel_rm": ("run_fg_rm", RELEVANCE + "/{split}.json", ("train.epochs=3",)),
}
JUDGE = "judge_"  # prefix of the judges' folders
# policy -> the stage that trains it, and its folder of weights
POLICIES = {
    "sft": ("train_sft", "sft"),
    "baseline": ("train_baseline", "baseline/final"),
    "dpo": ("train_dpo", "dpo/final"),
    "fine_grained": ("train_finegrained", "fine_grained/final"),
}
SAMPLES = 4  # answers of every policy to a question
ANSWERS_SHOWN = 20  # questions in the report


class RealFeedbackConfig(StrictModel):
    data_dir: FilePath = Field(description="folder of the published rows, or of some of them")
    output_dir: FilePath | None = Field(
        default=None, description="folder of the results; null: outputs/qa_feedback/real_feedback"
    )
    model: FilePath | None = Field(
        default=None, description="folder of a causal language model; null: SmolLM2, fetched once"
    )
    questions: PositiveInt = Field(
        default=100, description="at most so many of the dev questions are evaluated"
    )
    episodes: PositiveInt = Field(default=640, description="answers sampled in each RL run")
    lanes: PositiveInt = Field(default=2, description="stages at the same time, a thread each")

    @property
    def folder(self) -> Path:
        default = ROOT / "outputs" / "qa_feedback" / "real_feedback"
        return Path(self.output_dir or default).absolute()

    @property
    def data(self) -> Path:
        return Path(self.data_dir).absolute()


# ---- stages --------------------------------------------------------------------------------------


def division(settings: RealFeedbackConfig) -> list[Stage]:
    """The two halves of the feedback, and the training files of their reward models."""
    module = f"{TASK_MODULE}.data.halves"
    data = settings.folder / "data"
    files = [str(settings.data / f"{split}_feedback.json") for split in ("train", "dev")]
    division_stage = Stage(
        "halves",
        (sys.executable, "-m", module, f"data_dir={settings.data}", f"output_dir={data}"),
        outputs=tuple(f"data/{half}/train_feedback.json" for half in HALVES),
        reads=tuple(files),
        modules=(module,),
    )
    result = [division_stage]
    module = f"{TASK_MODULE}.reward_modeling.create_rm_files"
    for half in HALVES:
        preparation = Stage(
            f"prepare_{half}",
            (sys.executable, "-m", module, f"data_dir={data / half}"),
            needs=("halves",),
            outputs=tuple(f"data/{half}/{folder}" for folder in FOLDERS),
            modules=(module,),
        )
        result.append(preparation)
    return result


def reward_model(
    settings: RealFeedbackConfig, model: Path, name: str, half: str, prefix: str
) -> Stage:
    """A reward model of one half of the feedback, in the folder `prefix` + `name`.

    It starts from the pretrained model. Other runs start it from the SFT policy, but a judge must
    not depend on a policy that it compares.
    """
    program, file, overrides = REWARD_MODELS[name]
    rows = settings.folder / "data" / half
    return script_stage(
        f"train_{prefix}{name}",
        f"{REWARD_MODELING}/train_{name}.sh",
        f"model.ckpt={model}",
        f"data.train_file={rows / file.format(split='train')}",
        f"data.dev_file={rows / file.format(split='dev')}",
        f"logging.save_dir={settings.folder / (prefix + name)}",
        f"logging.run_name={prefix}{name}",
        *overrides,
        modules=(f"reward_modeling.{program}", f"{TASK_MODULE}.task"),
        needs=(f"prepare_{half}",),
        outputs=(prefix + name,),
        reads=(f"{REWARD_MODELING}/small_{name}_config.yml", "reward_modeling/metrics/*.py"),
    )


def sft(settings: RealFeedbackConfig) -> Stage:
    """SFT on the 1,000 demonstrations if the folder has them, else on the training questions."""
    train_file = settings.data / "train_1k.json"
    if not train_file.is_file():
        train_file = settings.data / "train.json"
    return script_stage(
        "train_sft",
        f"{TRAINING}/train_sft.sh",
        f"data.train_file={train_file}",
        modules=("sft.run_sft",),
        outputs=("sft",),
        reads=(
            f"{TRAINING}/small_sft_config.yml",
            str(train_file),
            str(settings.data / "dev.json"),
        ),
    )


def prompt_files(settings: RealFeedbackConfig) -> list[str]:
    """The questions of RL and DPO. SFT may have read other ones to train on."""
    return [str(settings.data / f"{split}.json") for split in ("train", "dev")]


def rl(
    settings: RealFeedbackConfig, name: str, script: str, reward_models: tuple[str, ...]
) -> Stage:
    """An RL run with reward models of the first half of the feedback.

    Args:
      name: of its folder and its config.
      script: its script without the `train_`.
      reward_models: their folders.
    """
    return script_stage(
        f"train_{script}",
        f"{TRAINING}/train_{script}.sh",
        f"train.total_episodes={settings.episodes}",
        modules=(f"{TASK_MODULE}.training.train_{script}", f"{TASK_MODULE}.task"),
        needs=("train_sft", *(f"train_{model}" for model in reward_models)),
        outputs=(name,),
        reads=(f"{TRAINING}/small_{name}_config.yml", *prompt_files(settings)),
    )


def dpo(settings: RealFeedbackConfig) -> Stage:
    """DPO on the preferences of the first half, which are also those of the preference model."""
    feedback = settings.folder / "data" / HALVES[0] / "train_feedback.json"
    return script_stage(
        "train_dpo",
        f"{TRAINING}/train_dpo.sh",
        f"data.feedback_file={feedback}",
        modules=("fgrlhf.cli.dpo", f"{TASK_MODULE}.task"),
        needs=("train_sft", "halves"),
        outputs=("dpo",),
        reads=(f"{TRAINING}/small_dpo_config.yml", *prompt_files(settings)),
    )


def evaluation(settings: RealFeedbackConfig, policy: str) -> Stage:
    """Sampled answers to dev questions, rated by the judges."""
    trained, folder = POLICIES[policy]
    config = f"{TRAINING}/small_judge_config.yml"
    return script_stage(
        f"evaluate_{policy}",
        f"{TRAINING}/evaluate.sh",
        f"config={config}",
        f"policy={settings.folder / folder}",
        f"name={policy}",
        "split=dev",
        "do_sample=true",
        f"num_samples={SAMPLES}",
        f"max_examples={settings.questions}",
        modules=("fgrlhf.cli.evaluate", f"{TASK_MODULE}.task"),
        needs=(trained, *(f"train_{JUDGE}{name}" for name in REWARD_MODELS)),
        outputs=(f"eval/{policy}-dev",),
        reads=(config,),
    )


def stages(settings: RealFeedbackConfig, model: Path) -> list[Stage]:
    """All stages, in an order that keeps two lanes busy."""
    first, second = HALVES
    summary = (
        sys.executable,
        "-m",
        f"{TASK_MODULE}.summary",
        f"output_dir={settings.folder}",
        f"data_dir={settings.data}",
        "split=dev",
        "scale=small",
    )
    return [
        *division(settings),
        sft(settings),
        *(reward_model(settings, model, name, first, "") for name in REWARD_MODELS),
        rl(settings, "fine_grained", "finegrained", ("rel_rm", "fact_rm", "comp_rm")),
        rl(settings, "baseline", "baseline", ("baseline_rm",)),
        *(reward_model(settings, model, name, second, JUDGE) for name in REWARD_MODELS),
        dpo(settings),
        *(evaluation(settings, policy) for policy in POLICIES),
        Stage(
            "summary",
            summary,
            needs=tuple(f"evaluate_{policy}" for policy in POLICIES),
            outputs=("summary.json",),
            modules=(f"{TASK_MODULE}.summary",),
        ),
        script_stage(
            "report",
            f"{TRAINING}/report.sh",
            f"prompts={ANSWERS_SHOWN}",
            modules=("fgrlhf.report.page", f"{TASK_MODULE}.display"),
            needs=("summary",),
            outputs=("report.html",),
            reads=("fgrlhf/report/report.html.j2", "fgrlhf/report/report.css"),
        ),
    ]


# ---- the run -------------------------------------------------------------------------------------


def check_data(folder: Path) -> None:
    """Raises `UserError` if a file is missing."""
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        raise UserError(
            f"{folder} lacks {', '.join(missing)}: give the folder of the published rows, which"
            f" {TASK}/data/download.sh fetches"
        )


def real_feedback(settings: RealFeedbackConfig) -> None:
    """Run all stages, then print the summary and the path of the report."""
    check_data(settings.data)
    model = small_model(settings.model)
    pipeline = pipeline_of(
        stages(settings, model), settings.folder, settings.data, settings.lanes, model=model
    )
    pipeline.run()
    print("\n" + (settings.folder / "logs" / "summary.log").read_text(encoding="utf-8"))
    print_cost(pipeline)
    print(f"report: {settings.folder / 'report.html'}")


def main() -> None:
    stop_with_signals()
    real_feedback(settings_from(RealFeedbackConfig))


if __name__ == "__main__":
    run_main(main)
