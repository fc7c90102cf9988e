"""Every stage on people's feedback, with a small pretrained language model on a CPU.

    python -m tasks.experiments real_feedback data_dir=FOLDER [output_dir=FOLDER] [lanes=2]

`data_dir` has the published rows or some of them: {train,dev}.json with questions and reference
answers, and {train,dev}_feedback.json. Nobody knows the truth about these answers, so the feedback
is divided: one half trains the reward models and DPO, the other half trains the judges, four reward
models that only compare the policies, on dev questions. The last weights of every run of RL and DPO
are evaluated, so no checkpoint of these policies was selected by the questions that are compared.
Those of the reward models and judges were, and so was the number of epochs of R1: the rows of
dev_feedback.json are answers to the questions of dev.json.
"""

from pathlib import Path

from pydantic import Field, PositiveInt

from fgrlhf.base.errors import UserError
from fgrlhf.configs.strict import FilePath
from fgrlhf.pipeline.stages import Stage
from fgrlhf.pipeline.study import Plan, Study
from tasks.experiments import qa
from tasks.experiments.halves import HALVES
from tasks.experiments.stages import (
    PretrainedSettings,
    experiment_of,
    keys,
    module_stage,
    reading,
    small_model,
)
from tasks.qa_feedback.reward_modeling.create_rm_files import (
    COMPLETENESS,
    FACTUALITY,
    FOLDERS,
    RELEVANCE,
)

SCRIPTS = qa.QAScripts("small")
FILES = ("train.json", "dev.json", "train_feedback.json", "dev_feedback.json")
# reward model -> its training files in a half's folder, and overrides of its config
REWARD_MODELS = {
    "baseline_rm": ("{split}_feedback.json", ()),
    "fact_rm": (FACTUALITY + "/{split}.json", ()),
    "comp_rm": (COMPLETENESS + "/{split}.json", ()),
    # after more epochs it is worse on the dev rows
    "rel_rm": (RELEVANCE + "/{split}.json", ("train.epochs=3",)),
}
JUDGE = "judge_"  # prefix of the judges' folders
# policy -> the stage that trains it, and its folder of weights
POLICIES = {
    "sft": ("train_sft", "sft"),
    "baseline": ("train_baseline", "baseline/final"),
    "dpo": ("train_dpo", "dpo/final"),
    "fine_grained": ("train_finegrained", "fine_grained/final"),
}
ANSWERS_SHOWN = 20  # questions in the report


class RealFeedbackConfig(PretrainedSettings):
    """The rows, and how much is trained on them."""

    data_dir: FilePath = Field(description="folder of the published rows, or of some of them")
    questions: PositiveInt = Field(
        default=100, description="at most so many of the dev questions are evaluated"
    )
    episodes: PositiveInt = Field(default=640, description="answers sampled in each RL run")

    @property
    def folder(self) -> Path:
        return self.folder_of("qa_feedback/real_feedback")

    @property
    def data(self) -> Path:
        return Path(self.data_dir).absolute()

    def check_data(self) -> None:
        """Raises `UserError` if a file is missing."""
        missing = [name for name in FILES if not (self.data / name).is_file()]
        if missing:
            raise UserError(
                f"{self.data} lacks {', '.join(missing)}: give the folder of the published rows,"
                f" which {qa.FOLDER}/data/download.sh fetches"
            )


def division(settings: RealFeedbackConfig) -> list[Stage]:
    """The two halves of the feedback, and the training files of their reward models."""
    data = settings.folder / "data"
    halves = module_stage(
        "halves",
        "tasks.experiments.halves",
        *keys(data_dir=settings.data, output_dir=data),
        outputs=tuple(f"data/{half}/train_feedback.json" for half in HALVES),
        reads=tuple(str(settings.data / f"{split}_feedback.json") for split in ("train", "dev")),
    )
    stages = [halves]
    for half in HALVES:
        files = module_stage(
            f"prepare_{half}",
            f"{qa.MODULE}.reward_modeling.create_rm_files",
            *keys(data_dir=data / half, output_dir=data / half),
            needs=("halves",),
            outputs=tuple(f"data/{half}/{folder}" for folder in FOLDERS),
        )
        stages.append(files)
    return stages


def reward_models(
    settings: RealFeedbackConfig, model: Path, half: str, prefix: str = ""
) -> list[Stage]:
    """The reward models of one half of the feedback, in folders `prefix` + name.

    They start from the pretrained model. Other runs start them from the SFT policy, but a judge
    must not depend on a policy that it compares.
    """
    rows = settings.folder / "data" / half
    stages = []
    for name, (file, overrides) in REWARD_MODELS.items():
        folder = prefix + name
        stage = SCRIPTS.reward_model(
            f"train_{folder}",
            name,
            f"model.ckpt={model}",
            f"data.train_file={rows / file.format(split='train')}",
            f"data.dev_file={rows / file.format(split='dev')}",
            f"logging.save_dir={settings.folder / folder}",
            f"logging.run_name={folder}",
            *overrides,
            output=folder,
            needs=(f"prepare_{half}",),
        )
        stages.append(stage)
    return stages


def sft(settings: RealFeedbackConfig) -> Stage:
    """SFT on the 1,000 demonstrations if the folder has them, else on the training questions."""
    train_file = settings.data / "train_1k.json"
    if not train_file.is_file():
        train_file = settings.data / "train.json"
    return SCRIPTS.stage(
        "train_sft",
        "training/train_sft.sh",
        f"data.train_file={train_file}",
        config="training/sft_config.yml",
        reads=(str(train_file), str(settings.data / "dev.json")),
        modules=("sft.run_sft",),
        outputs=("sft",),
    )


def training(settings: RealFeedbackConfig) -> list[Stage]:
    """RL with the reward models of the first half of the feedback, and DPO on its preferences.

    All read the questions. SFT may have read other ones.
    """
    questions = tuple(str(settings.data / f"{split}.json") for split in ("train", "dev"))
    feedback = settings.folder / "data" / HALVES[0] / "train_feedback.json"
    episodes = f"train.total_episodes={settings.episodes}"
    models = ("train_rel_rm", "train_fact_rm", "train_comp_rm")
    needs = {"fine_grained": ("train_sft", *models), "baseline": ("train_sft", "train_baseline_rm")}
    stages = []
    for name, script in (("fine_grained", "train_finegrained"), ("baseline", "train_baseline")):
        stages.append(SCRIPTS.rl(name, script, episodes, needs=needs[name], reads=questions))
    preferences = f"data.feedback_file={feedback}"
    dpo = SCRIPTS.dpo(preferences, needs=("train_sft", "halves"), reads=questions)
    return [*stages, dpo]


def evaluation(settings: RealFeedbackConfig, policy: str) -> Stage:
    """Sampled answers to dev questions, rated by the judges."""
    trained, folder = POLICIES[policy]
    config = "training/judge_config.yml"
    return SCRIPTS.evaluation(
        policy,
        settings.folder / folder,
        "dev",
        *keys(do_sample="true", num_samples=qa.SAMPLES, max_examples=settings.questions),
        config=config,
        before=keys(config=SCRIPTS.config(config)),
        needs=(trained, *(f"train_{JUDGE}{name}" for name in REWARD_MODELS)),
    )


def stages(settings: RealFeedbackConfig, model: Path) -> list[Stage]:
    """All stages, in an order that keeps two lanes busy."""
    first, second = HALVES
    *rl, dpo = training(settings)
    summary = module_stage(
        "summary",
        "tasks.experiments.summary",
        *keys(output_dir=settings.folder, data_dir=settings.data, split="dev", scale="small"),
        needs=tuple(f"evaluate_{policy}" for policy in POLICIES),
        outputs=("summary.json",),
    )
    shown = f"prompts={ANSWERS_SHOWN}"
    return [
        *division(settings),
        sft(settings),
        *reward_models(settings, model, first),
        *rl,
        *reward_models(settings, model, second, JUDGE),
        dpo,
        *(evaluation(settings, policy) for policy in POLICIES),
        summary,
        SCRIPTS.report(shown, needs=("summary",), modules=(f"{qa.MODULE}.display",)),
    ]


def plan(settings: RealFeedbackConfig) -> Plan:
    settings.check_data()
    model = small_model(settings.model)
    experiment = experiment_of(
        qa.MODULE, settings.folder, data=settings.data, scale="small", model=model
    )
    return Plan(experiment, reading(stages(settings, model), model), settings.lanes)


STUDY = Study(
    RealFeedbackConfig,
    plan,
    results=lambda settings, plan: None,
    logs=("summary",),
    pages={"report": "report.html"},
)
