"""`make demo`: the whole pipeline at mini scale, stage by stage, by the same scripts a user runs by
hand.

    python -m tasks.qa_feedback.demo [output_dir=outputs/mini] [lanes=2]

Run it again to continue after an interruption or a corrected setting; what has not changed is
reused. Exits with code 1 where a figure of `summary_table.TARGETS` is missed: everything has been
written by then, the report too.
"""

import sys
from pathlib import Path

from pydantic import PositiveInt

from fgrlhf.cli.command_line import settings_from
from fgrlhf.config import StrictModel
from fgrlhf.errors import run_main
from fgrlhf.files import read_json
from fgrlhf.kernels.choice import processor_name
from fgrlhf.pipeline.stages import Pipeline, Stage, stop_with_signals
from tasks.qa_feedback.summary_table import missed_targets

ROOT = Path(__file__).parents[2]
TASK = "tasks/qa_feedback"
TRAINING, REWARD_MODELING, DATA = f"{TASK}/training", f"{TASK}/reward_modeling", f"{TASK}/data"
FEEDBACK_QUESTIONS = 1500  # of the training set are annotated
# answers per test question: the intervals are over questions, more samples make each of them surer
SAMPLES = 4


class DemoConfig(StrictModel):
    output_dir: str = "outputs/mini"
    lanes: PositiveInt = 2


def script(
    name: str,
    path: str,
    *arguments: str,
    modules: tuple[str, ...],
    needs: tuple[str, ...] = (),
    outputs: tuple[str, ...],
    reads: tuple[str, ...] = (),
) -> Stage:
    """A stage that runs one of the task's bash scripts, which is watched together with `reads`."""
    return Stage(
        name, ("bash", path, *arguments), needs, outputs, ("scripts/env.sh", path, *reads), modules
    )


def reward_model(name: str, module: str) -> Stage:
    config = f"{REWARD_MODELING}/mini_{name}_config.yml"
    return script(
        f"train_{name}",
        f"{REWARD_MODELING}/train_{name}.sh",
        modules=(module,),
        needs=("create_rm_train_files",),
        outputs=(name,),
        reads=(config, "reward_modeling/metrics/*.py"),
    )


def rlhf(name: str, script_name: str, config: str, models: tuple[str, ...]) -> Stage:
    return script(
        script_name,
        f"{TRAINING}/{script_name}.sh",
        modules=(f"{TRAINING.replace('/', '.')}.{script_name}",),
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
        modules=("tasks.qa_feedback.training.evaluate",),
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
        modules=("tasks.qa_feedback.training.generate",),
        needs=("train_sft",),
        outputs=(f"generated/sft-{split}",),
    )


def annotation(split: str, out: Path) -> Stage:
    """People do this for real data, in the browser; here the simulated annotator does."""
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
    """What people would be sent: the first answers of the SFT policy, ready to be annotated in a
    browser.
    """
    module, folder = "interface_html.pages", f"{TASK}/interface_html"
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
    reads = (f"{folder}/schema.js", f"{folder}/format.js", "interface_html/templates/*")
    modules = (module, f"{TASK.replace('/', '.')}.feedback_format")
    return Stage(
        "annotation_page", command, ("generate_train",), ("annotate.html",), reads, modules
    )


def stages(out: Path) -> list[Stage]:
    """The pipeline, in an order that keeps two lanes busy."""
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
            modules=("fgrlhf.report.page",),
            needs=("summary",),
            outputs=("report.html",),
            reads=("fgrlhf/report/report.html.j2", "fgrlhf/report/report.css"),
        ),
    ]


def demo(config: DemoConfig) -> list[str]:
    """Run everything, then print the summary and where the report lies. Returns a line for each
    target that was missed.
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
            f"at most {pipeline.whole['peak_mb']:.0f} MB at once, on {processor_name()}"
        )
    print(f"answers to annotate yourself: {out / 'annotate.html'}")
    print(f"report: {out / 'report.html'}")
    return missed_targets(read_json(out / "summary.json"))


def main() -> None:
    stop_with_signals()
    missed = demo(settings_from(DemoConfig))
    if missed:
        lines = ["error: the demo did not reach what it must:", *missed]
        print("\n  ".join(lines), file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    run_main(main)
