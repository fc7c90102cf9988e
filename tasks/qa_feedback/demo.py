"""`make demo`: the whole pipeline at mini scale, with the scripts that users run by hand.

    python -m tasks.qa_feedback.demo [output_dir=outputs/qa_feedback/mini] [lanes=2]

Run it again to continue after an interruption or a changed setting; unchanged stages are reused.
Exits with code 1 if a figure misses its target in `summary_table.TARGETS`, after all outputs and
the report are written.
"""

import sys
from pathlib import Path

from pydantic import Field, PositiveInt

from fgrlhf.cli.command_line import settings_from
from fgrlhf.config import StrictModel
from fgrlhf.errors import run_main
from fgrlhf.files import read_json
from fgrlhf.kernels.choice import processor_name
from fgrlhf.pipeline.stages import Pipeline, Stage, stop_with_signals
from tasks.qa_feedback.summary_table import missed_targets

ROOT = Path(__file__).parents[2]
TASK = "tasks/qa_feedback"
TASK_MODULE = TASK.replace("/", ".")
TRAINING = f"{TASK}/training"
REWARD_MODELING = f"{TASK}/reward_modeling"
DATA = f"{TASK}/data"
FEEDBACK_QUESTIONS = 1500  # questions of the training set to annotate
SAMPLES = 4  # answers per test question; intervals are over questions, with less noise in each


class DemoConfig(StrictModel):
    output_dir: str = Field(default="outputs/qa_feedback/mini", description="folder of the results")
    lanes: PositiveInt = Field(default=2, description="stages at the same time")


def script(
    name: str,
    path: str,
    *arguments: str,
    modules: tuple[str, ...],
    needs: tuple[str, ...] = (),
    outputs: tuple[str, ...],
    reads: tuple[str, ...] = (),
) -> Stage:
    """A stage that runs a bash script of the task. The script is one of the stage's inputs."""
    command = ("bash", path, *arguments)
    return Stage(name, command, needs, outputs, ("scripts/env.sh", path, *reads), modules)


def reward_model(name: str, module: str) -> Stage:
    config = f"{REWARD_MODELING}/mini_{name}_config.yml"
    return script(
        f"train_{name}",
        f"{REWARD_MODELING}/train_{name}.sh",
        modules=(module, f"{TASK_MODULE}.task"),
        needs=("create_rm_train_files",),
        outputs=(name,),
        reads=(config, "reward_modeling/metrics/*.py"),
    )


def rlhf(name: str, script_name: str, config: str, models: tuple[str, ...]) -> Stage:
    return script(
        script_name,
        f"{TRAINING}/{script_name}.sh",
        modules=(f"{TRAINING.replace('/', '.')}.{script_name}", "tasks.qa_feedback.task"),
        needs=models,
        outputs=(name,),
        reads=(f"{TRAINING}/{config}",),
    )


def evaluation(policy: str, folder: Path, needs: str) -> Stage:
    return script(
        f"evaluate_{policy}",
        f"{TRAINING}/evaluate.sh",
        f"policy={folder}",
        f"name={policy}",
        "split=test",
        "do_sample=true",
        f"num_samples={SAMPLES}",
        modules=("fgrlhf.cli.evaluate", "tasks.qa_feedback.task"),
        needs=(needs, "train_rel_rm", "train_fact_rm", "train_comp_rm"),
        outputs=(f"eval/{policy}-test",),
        reads=(f"{TRAINING}/mini_fine_grained_config.yml",),
    )


def sampling(split: str, out: Path) -> Stage:
    return script(
        f"generate_{split}",
        f"{TRAINING}/generate.sh",
        f"policy={out / 'sft'}",
        f"split={split}",
        f"max_examples={FEEDBACK_QUESTIONS}",
        "max_input_len=512",
        "max_generated_len=128",
        modules=("fgrlhf.cli.generate", "tasks.qa_feedback.task"),
        needs=("train_sft",),
        outputs=(f"generated/sft-{split}",),
    )


def annotation(split: str, out: Path) -> Stage:
    """The simulated annotator. Real data are annotated in the browser instead."""
    module = "tasks.qa_feedback.data.collect_feedback"
    command = (
        sys.executable,
        "-m",
        module,
        f"data_dir={out / 'data'}",
        f"split={split}",
        f"samples={out / 'generated' / f'sft-{split}' / 'samples.jsonl'}",
    )
    return Stage(
        f"annotate_{split}",
        command,
        (f"generate_{split}",),
        (f"data/{split}_feedback.json",),
        (),
        (module,),
    )


def annotation_page(out: Path) -> Stage:
    """A page to annotate the first answers of the SFT policy in a browser."""
    module = "interface_html.pages"
    command = (
        sys.executable,
        "-m",
        module,
        "task=qa_feedback",
        f"items={out / 'generated' / 'sft-train' / 'samples.jsonl'}",
        f"prompts={out / 'data' / 'train.json'}",
        f"out={out / 'annotate.html'}",
        "first=20",
    )
    folder = f"{TASK}/interface_html"
    reads = (f"{folder}/schema.js", f"{folder}/format.js", "interface_html/templates/*")
    modules = (module, "tasks.qa_feedback.feedback_format")
    return Stage(
        "annotation_page", command, ("generate_train",), ("annotate.html",), reads, modules
    )


def stages(out: Path) -> list[Stage]:
    """The stages of the pipeline, in an order that keeps two lanes busy."""
    data = tuple(
        f"data/{name}.json" for name in ("train", "dev", "test", "pretrain", "sft", "train_1k")
    )
    files = tuple(
        f"data/{name}" for name in ("NF-ERR_subsentence", "F-ERR_sentence", "COMP_sequence")
    )
    summary = (
        sys.executable,
        "-m",
        "tasks.qa_feedback.summary",
        f"output_dir={out}",
        f"data_dir={out / 'data'}",
    )
    return [
        script(
            "make_mini",
            f"{DATA}/make_mini.sh",
            modules=("tasks.qa_feedback.data.mini_world",),
            outputs=data,
        ),
        script(
            "train_sft",
            f"{TRAINING}/train_sft.sh",
            modules=("sft.run_sft", "tasks.qa_feedback.data.mini_model"),
            needs=("make_mini",),
            outputs=("base_model_init", "base_model", "sft"),
            reads=(f"{TRAINING}/mini_pretrain_config.yml", f"{TRAINING}/mini_sft_config.yml"),
        ),
        sampling("train", out),
        sampling("dev", out),
        annotation_page(out),
        annotation("train", out),
        annotation("dev", out),
        script(
            "create_rm_train_files",
            f"{REWARD_MODELING}/create_rm_train_files.sh",
            modules=("tasks.qa_feedback.reward_modeling.create_rm_files",),
            needs=("annotate_train", "annotate_dev"),
            outputs=files,
        ),
        reward_model("baseline_rm", "reward_modeling.run_pref_rm"),
        reward_model("fact_rm", "reward_modeling.run_fg_rm"),
        reward_model("rel_rm", "reward_modeling.run_fg_rm"),
        reward_model("comp_rm", "reward_modeling.run_pref_rm"),
        rlhf(
            "fine_grained",
            "train_finegrained",
            "mini_fine_grained_config.yml",
            ("train_rel_rm", "train_fact_rm", "train_comp_rm"),
        ),
        rlhf("baseline", "train_baseline", "mini_baseline_config.yml", ("train_baseline_rm",)),
        evaluation("sft", out / "sft", "train_sft"),
        evaluation("baseline", out / "baseline" / "best", "train_baseline"),
        evaluation("fine_grained", out / "fine_grained" / "best", "train_finegrained"),
        Stage(
            "summary",
            summary,
            ("evaluate_sft", "evaluate_baseline", "evaluate_fine_grained", "train_baseline_rm"),
            ("summary.json", "eval/reward_models"),
            (),
            ("tasks.qa_feedback.summary",),
        ),
        script(
            "report",
            f"{TRAINING}/report.sh",
            modules=("fgrlhf.report.page", "tasks.qa_feedback.display"),
            needs=("summary",),
            outputs=("report.html",),
            reads=("fgrlhf/report/report.html.j2", "fgrlhf/report/report.css"),
        ),
    ]


def demo(config: DemoConfig) -> list[str]:
    """Run all stages, then print the summary and the path of the report.

    Returns:
      A line for each missed target.
    """
    out = Path(config.output_dir).absolute()
    environment = {
        "SCALE": "mini",
        "OUTPUT_DIR": str(out),
        "DATA_DIR": str(out / "data"),
        "OMP_NUM_THREADS": "1",
    }
    pipeline = Pipeline(stages(out), ROOT, out, environment, config.lanes)
    pipeline.run()
    print("\n" + (out / "logs" / "summary.log").read_text(encoding="utf-8"))
    if pipeline.whole:
        print(
            f"the whole pipeline: {pipeline.whole['seconds'] / 60:.1f} minutes, "
            f"peak memory {pipeline.whole['peak_mb']:.0f} MB, on {processor_name()}"
        )
    print(f"answers to annotate yourself: {out / 'annotate.html'}")
    print(f"report: {out / 'report.html'}")
    return missed_targets(read_json(out / "summary.json"))


def main() -> None:
    stop_with_signals()
    missed = demo(settings_from(DemoConfig))
    if missed:
        lines = ["error: the demo missed its targets:", *missed]
        print("\n  ".join(lines), file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    run_main(main)
