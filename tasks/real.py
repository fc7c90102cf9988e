"""`make real`: RL on a real pretrained language model, with the scripts that users run by hand.

    python -m tasks.real [task=sentiment] [model=FOLDER] [output_dir=FOLDER] [lanes=2]

The model continues prompts and is rewarded by the change of a score after every sentence. A second
run with the same number of episodes gets the same reward once, at the end. A scorer that rewarded
neither judges both, on prompts that neither has seen. Without task=..., detoxification
runs if its data are there or can be fetched, else sentiment, which needs the package index alone.

Run it again to continue after an interruption; unchanged stages are reused.
"""

from pathlib import Path
from typing import Literal

from pydantic import Field, PositiveInt

from fgrlhf.base.files import read_jsonl, write_json
from fgrlhf.base.program import run_main
from fgrlhf.cli.command_line import settings_from
from fgrlhf.configs.strict import FilePath, StrictModel
from fgrlhf.load import data_of, load_task
from fgrlhf.pipeline.efficiency import efficiency
from fgrlhf.pipeline.scores import learning_curve
from fgrlhf.pipeline.stages import Stage, stop_with_signals
from tasks.detoxification.data.prepare import RATED_FILE, SPANS_FILE
from tasks.scripts import ROOT, pipeline_of, print_cost, run_script, script_stage, small_model

TaskName = Literal["detoxification", "sentiment"]
# run -> its script
RUNS = {"fine_grained": "train_finegrained", "holistic": "train_holistic"}
LOWER_IS_BETTER = {"detoxification": True, "sentiment": False}


class RealConfig(StrictModel):
    """Settings of `make real`."""

    task: TaskName | None = Field(
        default=None, description="null: detoxification if its data can be had, else sentiment"
    )
    model: FilePath | None = Field(
        default=None, description="folder of a causal language model; null: SmolLM2, fetched once"
    )
    output_dir: FilePath | None = Field(
        default=None, description="folder of the results; null: outputs/<task>/small"
    )
    source: FilePath | None = Field(
        default=None,
        description=f"detoxification: folder with {RATED_FILE} and {SPANS_FILE}; null: fetch them",
    )
    lanes: PositiveInt = Field(default=2, description="stages at the same time, a thread each")
    episodes: PositiveInt = Field(default=1344, description="responses sampled in each run")


# ---- what to run ---------------------------------------------------------------------------------


def choose_task(settings: RealConfig) -> tuple[TaskName, str]:
    """The task to run, and the reason.

    Detoxification's data are fetched if they are not there.
    """
    if settings.task is not None:
        return settings.task, "as task=... demands"
    if settings.source is not None:
        return "detoxification", "since source=... has its data"
    folder = out_folder(settings, "detoxification") / "data" / "source"
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


def out_folder(settings: RealConfig, task: str) -> Path:
    return Path(settings.output_dir or ROOT / "outputs" / task / "small").absolute()


def data_folder(source: Path) -> dict[str, str]:
    return {"DATA_DIR": str(source.parent)}


# ---- stages --------------------------------------------------------------------------------------


def preparation(task: str, settings: RealConfig, out: Path) -> list[Stage]:
    """The stages that a task needs before RL."""
    if task == "sentiment":
        return []
    source = Path(settings.source or out / "data" / "source").absolute()
    return [
        script_stage(
            "prepare",
            f"tasks/{task}/data/prepare.sh",
            f"source={source}",
            modules=("tasks.detoxification.data.prepare",),
            outputs=tuple(
                f"data/{name}.json"
                for name in ("train", "dev", "test", "span_sentences", "rated_texts")
            ),
            reads=(str(source / RATED_FILE), str(source / SPANS_FILE)),
        ),
        script_stage(
            "train_scorers",
            f"tasks/{task}/reward_modeling/train_scorers.sh",
            modules=("tasks.detoxification.scorers",),
            needs=("prepare",),
            outputs=("reward_scorer", "judge"),
        ),
    ]


def stages(task: str, settings: RealConfig, out: Path, model: Path) -> list[Stage]:
    """All stages, in an order that keeps two lanes busy."""
    before = preparation(task, settings, out)
    ready = tuple(stage.name for stage in before)
    modules = (f"tasks.{task}.task", f"tasks.{task}.lexicons")
    reads = (f"tasks/{task}/training/small_*_config.yml", *data_of(load_task(task)))
    result = [*before]
    for run, name in RUNS.items():
        result.append(
            script_stage(
                name,
                f"tasks/{task}/training/{name}.sh",
                f"train.total_episodes={settings.episodes}",
                modules=("fgrlhf.cli.rl", *modules),
                needs=ready,
                outputs=(run,),
                reads=reads,
            )
        )
    policies = {"initial": model} | {run: out / run / "final" for run in RUNS}
    for policy, folder in policies.items():
        result.append(
            script_stage(
                f"evaluate_{policy}",
                f"tasks/{task}/training/evaluate.sh",
                f"policy={folder}",
                f"name={policy}",
                modules=("fgrlhf.cli.evaluate", *modules),
                needs=(*ready, RUNS[policy]) if policy in RUNS else ready,
                outputs=(f"eval/{policy}-test",),
                reads=reads,
            )
        )
    result.append(
        script_stage(
            "report",
            f"tasks/{task}/training/report.sh",
            modules=("fgrlhf.pipeline.summary", "fgrlhf.report.page", *modules),
            needs=tuple(f"evaluate_{policy}" for policy in policies),
            outputs=("summary.json", "report.html"),
            reads=("fgrlhf/report/report.html.j2", "fgrlhf/report/report.css"),
        )
    )
    return result


# ---- results -------------------------------------------------------------------------------------


def efficiency_lines(task: str, out: Path) -> list[str]:
    """Lines that say when the fine-grained run reached the final level of the holistic one.

    Also writes efficiency.json. The scores are those of the dev prompts during training.
    """
    lines = []
    result = {}
    directions = {"reward": True, "judge": not LOWER_IS_BETTER[task]}
    for metric, higher_is_better in directions.items():
        curves = {}
        for run in RUNS:
            curves[run] = learning_curve(read_jsonl(out / run / "metrics.jsonl"), metric)
        reached = efficiency([curves["fine_grained"]], [curves["holistic"]], higher_is_better)
        level = curves["holistic"][-1].score
        last = curves["holistic"][-1].episodes
        result[metric] = {"level": level, "episodes": reached.episodes, "last": last}
        when = "not reached" if reached.episodes is None else f"after {reached.episodes:.0f}"
        lines.append(
            f"  {metric} {level:.3f} of holistic after {last:.0f} episodes: fine-grained {when}"
        )
    write_json(out / "efficiency.json", result)
    return ["Episodes to holistic's final level on dev prompts, one seed:", *lines]


def real(settings: RealConfig) -> None:
    """Run all stages, then print the summary and the path of the report."""
    task, reason = choose_task(settings)
    print(f"task: {task}, {reason}", flush=True)
    model = small_model(settings.model)
    out = out_folder(settings, task)
    all_stages = stages(task, settings, out, model)
    pipeline = pipeline_of(all_stages, out, out / "data", settings.lanes, model=model)
    pipeline.run()
    print("\n" + (out / "logs" / "report.log").read_text(encoding="utf-8"))
    print("\n".join(efficiency_lines(task, out)))
    print_cost(pipeline)
    print(f"report: {out / 'report.html'}")


def main() -> None:
    stop_with_signals()
    real(settings_from(RealConfig, usage="usage: python -m tasks.real [key=value ...]"))


if __name__ == "__main__":
    run_main(main)
