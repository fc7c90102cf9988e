"""`make real`: RL on a real pretrained language model, with the scripts that users run by hand.

    python -m tasks.experiments real [task=sentiment] [model=FOLDER] [output_dir=FOLDER] [lanes=2]

The model continues prompts and is rewarded by the change of a score after every sentence. A second
run with the same number of episodes gets the same reward once, at the end. A scorer that rewarded
neither judges both, on prompts that neither has seen. Without task=..., detoxification
runs if its data are there or can be fetched, else sentiment, which needs the package index alone.
"""

from pathlib import Path
from typing import Literal

from pydantic import Field, PositiveInt

from fgrlhf.base.files import read_jsonl
from fgrlhf.configs.strict import FilePath
from fgrlhf.load import data_of, load_task
from fgrlhf.pipeline.efficiency import efficiency
from fgrlhf.pipeline.scores import learning_curve
from fgrlhf.pipeline.stages import Stage
from fgrlhf.pipeline.study import Plan, Study
from tasks.detoxification.data.prepare import RATED_FILE, SPANS_FILE
from tasks.experiments.stages import (
    PretrainedSettings,
    Scripts,
    experiment_of,
    keys,
    reading,
    run_script,
    small_model,
)

TaskName = Literal["detoxification", "sentiment"]
# run -> its script
RUNS = {"fine_grained": "train_finegrained", "holistic": "train_holistic"}
LOWER_IS_BETTER = {"detoxification": True, "sentiment": False}


class RealConfig(PretrainedSettings):
    """Settings of `make real`."""

    task: TaskName | None = Field(
        default=None, description="null: detoxification if its data can be had, else sentiment"
    )
    source: FilePath | None = Field(
        default=None,
        description=f"detoxification: folder with {RATED_FILE} and {SPANS_FILE}; null: fetch them",
    )
    episodes: PositiveInt = Field(default=1344, description="responses sampled in each run")

    def folder(self, task: str) -> Path:
        return self.folder_of(f"{task}/small")


# ---- what to run ---------------------------------------------------------------------------------


def choose_task(settings: RealConfig) -> tuple[TaskName, str]:
    """The task to run, and the reason.

    Detoxification's data are fetched if they are not there.
    """
    if settings.task is not None:
        return settings.task, "as task=... demands"
    if settings.source is not None:
        return "detoxification", "since source=... has its data"
    folder = settings.folder("detoxification") / "data" / "source"
    files = (folder / RATED_FILE, folder / SPANS_FILE)
    if all(file.exists() for file in files):
        return "detoxification", f"since its data are in {folder}"
    print("fetching the data of detoxification; without them, the task is sentiment", flush=True)
    if run_script("tasks/detoxification/data/download.sh", data_folder(folder), "attempts=1") == 0:
        return "detoxification", "since its data could be fetched"
    return (
        "sentiment",
        "since the data of detoxification could not be fetched (the reason is above)",
    )


def data_folder(source: Path) -> dict[str, str]:
    return {"DATA_DIR": str(source.parent)}


# ---- stages --------------------------------------------------------------------------------------


def preparation(task: str, settings: RealConfig, out: Path) -> list[Stage]:
    """The stages that a task needs before RL."""
    if task == "sentiment":
        return []
    source = Path(settings.source or out / "data" / "source").absolute()
    scripts = Scripts(task, "small")
    rows = ("train", "dev", "test", "span_sentences", "rated_texts")
    return [
        scripts.stage(
            "prepare",
            "data/prepare.sh",
            *keys(source=source),
            modules=("tasks.detoxification.data.prepare",),
            outputs=tuple(f"data/{name}.json" for name in rows),
            reads=(str(source / RATED_FILE), str(source / SPANS_FILE)),
        ),
        scripts.stage(
            "train_scorers",
            "reward_modeling/train_scorers.sh",
            modules=("tasks.detoxification.scorers",),
            needs=("prepare",),
            outputs=("reward_scorer", "judge"),
        ),
    ]


def stages(task: str, settings: RealConfig, out: Path, model: Path) -> list[Stage]:
    """All stages, in an order that keeps two lanes busy."""
    before = preparation(task, settings, out)
    ready = tuple(stage.name for stage in before)
    scripts = Scripts(task, "small")
    modules = (f"tasks.{task}.task", f"tasks.{task}.lexicons")
    reads = (f"tasks/{task}/training/small_*_config.yml", *data_of(load_task(task)))
    training = []
    for run, name in RUNS.items():
        stage = scripts.stage(
            name,
            f"training/{name}.sh",
            f"train.total_episodes={settings.episodes}",
            modules=("fgrlhf.cli.rl", *modules),
            needs=ready,
            outputs=(run,),
            reads=reads,
        )
        training.append(stage)
    policies = {"initial": model} | {run: out / run / "final" for run in RUNS}
    evaluations = []
    for policy, folder in policies.items():
        stage = scripts.stage(
            f"evaluate_{policy}",
            "training/evaluate.sh",
            *keys(policy=folder, name=policy),
            modules=("fgrlhf.cli.evaluate", *modules),
            needs=(*ready, RUNS[policy]) if policy in RUNS else ready,
            outputs=(f"eval/{policy}-test",),
            reads=reads,
        )
        evaluations.append(stage)
    evaluated = tuple(stage.name for stage in evaluations)
    report = scripts.report(
        needs=evaluated, modules=("fgrlhf.pipeline.summary", *modules), outputs=("summary.json",)
    )
    return [*before, *training, *evaluations, report]


# ---- results -------------------------------------------------------------------------------------


def efficiencies(task: str, out: Path) -> dict[str, dict[str, float | None]]:
    """When the fine-grained run reached the final level of the holistic one, by metric.

    The scores are those of the dev prompts during training.
    """
    result = {}
    directions = {"reward": True, "judge": not LOWER_IS_BETTER[task]}
    for metric, higher_is_better in directions.items():
        curves = {}
        for run in RUNS:
            curves[run] = learning_curve(read_jsonl(out / run / "metrics.jsonl"), metric)
        reached = efficiency([curves["fine_grained"]], [curves["holistic"]], higher_is_better)
        last = curves["holistic"][-1]
        result[metric] = {
            "level": last.score,
            "episodes": reached.episodes,
            "last": last.episodes,
        }
    return result


def table(result: dict[str, dict[str, float | None]]) -> str:
    lines = ["Episodes to holistic's final level on dev prompts, one seed:"]
    for metric, of_metric in result.items():
        episodes = of_metric["episodes"]
        when = "not reached" if episodes is None else f"after {episodes:.0f}"
        lines.append(
            f"  {metric} {of_metric['level']:.3f} of holistic after {of_metric['last']:.0f}"
            f" episodes: fine-grained {when}"
        )
    return "\n".join(lines)


def plan(settings: RealConfig) -> Plan:
    task, reason = choose_task(settings)
    print(f"task: {task}, {reason}", flush=True)
    model = small_model(settings.model)
    out = settings.folder(task)
    experiment = experiment_of(task, out, scale="small", model=model)
    return Plan(experiment, reading(stages(task, settings, out, model), model), settings.lanes)


STUDY = Study(
    RealConfig,
    plan,
    results=lambda settings, plan: efficiencies(plan.experiment.task, plan.experiment.out),
    table=table,
    name="efficiency",
    logs=("report",),
    pages={"report": "report.html"},
)
