"""`make tasks`: every task at mini scale from end to end, and one table.

    python -m tasks.experiments mini [only=[hanoi,numbers]] [output_dir=outputs/mini] [lanes=2]

A task is a stage that runs the task's own script, so each is also a command of its own, such as
`bash tasks/hanoi/run.sh`. Results are in <output_dir>/TASK.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from fgrlhf.base.errors import UserError, suggestion
from fgrlhf.base.files import read_json
from fgrlhf.pipeline.stages import Stage
from fgrlhf.pipeline.study import Plan, Study
from fgrlhf.pipeline.summary import grid, interval_text
from fgrlhf.report.spread import ONE_RUN
from tasks.experiments.stages import ROOT, SCRIPT_FILES, ScriptSettings, experiment_of

EXPERIMENTS = "tasks.experiments"
DEMO = "qa_feedback"  # `make demo` runs it
# the programs that the scripts of the tasks run
PROGRAMS = (
    "fgrlhf.cli.evaluate",
    "fgrlhf.cli.generate",
    "fgrlhf.cli.linear_scorer",
    "fgrlhf.cli.published",
    "fgrlhf.cli.rl",
    "fgrlhf.cli.dpo",
    "fgrlhf.cli.tiny_model",
    "fgrlhf.pipeline.best_of_n",
    "fgrlhf.pipeline.compare",
    "reward_modeling.run_fg_rm",
    "reward_modeling.run_pref_rm",
    "reward_modeling.step_files",
    "sft.run_sft",
)
READ = ("sh", "yml", "txt", "jsonl")  # files of a task on which its results depend
ALL = ("all",)  # every stage of a text task


@dataclass(frozen=True)
class MiniTask:
    """The figure of a task that the table shows.

    Args:
      metric: column of the evaluations.
      before, after: the evaluations of the policy before and after RL.
      arguments: of tasks/TASK/run.sh.
    """

    metric: str
    before: str
    after: str
    arguments: tuple[str, ...] = ()


# the longest first, which keeps both lanes busy
TASKS = {
    DEMO: MiniTask("oracle/gold", "sft", "fine_grained"),
    "hh_rlhf": MiniTask("oracle/quality", "sft", "ppo"),
    "reasoning": MiniTask("oracle/solution", "sft", "process"),
    "translation": MiniTask("oracle/mqm", "sft", "spans"),
    "hanoi": MiniTask("solved", "sft", "dense"),
    "detoxification": MiniTask("judge", "initial", "fine_grained"),
    "connections": MiniTask("right_groups", "sft", "dense"),
    "numbers": MiniTask("reward", "base_model", "rl"),
    "imdb": MiniTask("reward/sentiment", "sft", "ppo", ALL),
    "cnn_dailymail": MiniTask("rouge1", "sft", "ppo", ALL),
    "common_gen": MiniTask("coverage", "sft", "ppo", ALL),
    "totto": MiniTask("parent", "sft", "ppo", ALL),
    "narrative_qa": MiniTask("rougeL", "sft", "ppo", ALL),
    "iwslt2017": MiniTask("chrf/corpus", "sft", "ppo", ALL),
    "daily_dialog": MiniTask("intent/accuracy", "sft", "ppo", ALL),
}


class MiniConfig(ScriptSettings):
    """`make tasks`."""

    only: list[str] = Field(default=[], description="these tasks; []: all")

    @property
    def folder(self) -> Path:
        return self.folder_of("mini")


def chosen_tasks(only: list[str]) -> dict[str, MiniTask]:
    """The named tasks, in the order of `TASKS`; all of them for [].

    Raises:
      UserError: a name is unknown.
    """
    for name in only:
        if name not in TASKS:
            raise UserError(f"`{name}` is not among these tasks; {suggestion(name, [*TASKS])}")
    return {name: task for name, task in TASKS.items() if not only or name in only}


def evaluation(name: str, policy: str) -> str:
    """The summary of an evaluation, in the folder of the results."""
    return f"{name}/eval/{policy}-test/summary.json"


def task_modules(name: str) -> list[str]:
    """The modules of a task, without its tests."""
    paths = [path.relative_to(ROOT) for path in (ROOT / "tasks" / name).rglob("*.py")]
    return [".".join(path.with_suffix("").parts) for path in paths if "tests" not in path.parts[2:]]


def stage(name: str, task: MiniTask, folder: Path) -> Stage:
    """A stage that runs the whole task in its folder."""
    out = folder / name
    modules = [*task_modules(name), *PROGRAMS]
    outputs = [evaluation(name, task.before), evaluation(name, task.after)]
    if name == DEMO:
        command = (sys.executable, "-m", EXPERIMENTS, "demo", f"output_dir={out}", "lanes=1")
        modules += [f"{EXPERIMENTS}.{module}" for module in ("demo", "judged_models", "summary")]
    else:
        variables = (f"OUTPUT_DIR={out}", f"DATA_DIR={out / 'data'}")
        command = ("env", *variables, "bash", f"tasks/{name}/run.sh", *task.arguments)
        # A changed task starts anew in an empty folder. The demo is a pipeline, which does that for
        # each of its stages.
        outputs.append(name)
    return Stage(
        name,
        command,
        outputs=tuple(outputs),
        reads=("scripts/*.sh", *SCRIPT_FILES, *(f"tasks/{name}/**/*.{kind}" for kind in READ)),
        modules=tuple(modules),
    )


def results(tasks: dict[str, MiniTask], folder: Path) -> list[dict]:
    """A row for each task: its metric before and after RL with 95% intervals, and its minutes."""
    costs = read_json(folder / "stages.json")
    rows = []
    for name, task in tasks.items():
        before = read_json(folder / evaluation(name, task.before))[task.metric]
        after = read_json(folder / evaluation(name, task.after))[task.metric]
        minutes = costs[name]["seconds"] / 60
        row = {"task": name, "metric": task.metric, "before": before, "after": after}
        rows.append({**row, "minutes": round(minutes, 1)})
    return rows


def table(rows: list[dict]) -> str:
    """The rows as text."""
    cells = [["task", "metric", "before RL", "after RL", "minutes"]]
    for row in rows:
        values = [interval_text(row["before"]), interval_text(row["after"])]
        cells.append([row["task"], row["metric"], *values, f"{row['minutes']:.1f}"])
    return "\n".join([*grid(cells), f"  {ONE_RUN}"])


def plan(settings: MiniConfig) -> Plan:
    folder = settings.folder
    stages = [stage(name, task, folder) for name, task in chosen_tasks(settings.only).items()]
    return Plan(experiment_of(DEMO, folder, data=folder), stages, settings.lanes)


STUDY = Study(
    MiniConfig,
    plan,
    results=lambda settings, plan: results(chosen_tasks(settings.only), settings.folder),
    table=table,
    name="table",
)
