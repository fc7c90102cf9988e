"""`make demo`: the whole pipeline on a world with known truth, by the scripts that users run.

    python -m tasks.qa_feedback.demo [scale=small] [language=chinese] [seed=1] [output_dir=...]

At mini scale, tiny models learn the toy language of the world in minutes; `language=chinese` is the
same world in a script without spaces. At small scale, a
pretrained language model answers in English, which takes hours on two CPU cores; DPO and best-of-n
are compared as well.

Run it again to continue after an interruption or a changed setting; unchanged stages are reused.
Exits with code 1 if a figure misses its target in `summary_table.TARGETS`, after all outputs and
the report are written.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from fgrlhf.base.files import read_json
from fgrlhf.base.program import run_main
from fgrlhf.cli.command_line import settings_from
from fgrlhf.configs.strict import FilePath, StrictModel, refuse
from fgrlhf.pipeline.stages import Stage, stop_with_signals
from tasks.qa_feedback.judged_models import SAMPLED
from tasks.qa_feedback.summary_table import missed_targets
from tasks.scripts import (
    ROOT,
    module_stage,
    pipeline_of,
    print_cost,
    script_stage,
    small_model,
)

TASK = "tasks/qa_feedback"
TASK_MODULE = TASK.replace("/", ".")
TRAINING = f"{TASK}/training"
REWARD_MODELING = f"{TASK}/reward_modeling"
DATA = f"{TASK}/data"
SAMPLES = 4  # answers per test question at mini scale; intervals are over questions


@dataclass(frozen=True)
class Scale:
    """What differs between the scales.

    Args:
      world: the script that writes the rows.
      rows: the files that it writes.
      sft_outputs: the folders of supervised fine-tuning.
      feedback_questions: questions of the training set to annotate.
      max_generated_len: tokens of an answer to annotate.
      evaluation: arguments of the evaluation on test questions.
      best_of: answers per question from which best-of-n chooses, and its number of questions.
    """

    name: Literal["mini", "small"]
    world: str
    rows: tuple[str, ...]
    sft_outputs: tuple[str, ...]
    feedback_questions: int
    max_generated_len: int
    evaluation: tuple[str, ...]
    best_of: tuple[int, int] | None = None


MINI = Scale(
    name="mini",
    world="make_mini",
    rows=("train", "dev", "test", "pretrain", "sft", "train_1k"),
    sft_outputs=("base_model_init", "base_model", "sft"),
    feedback_questions=1500,
    max_generated_len=128,
    evaluation=("do_sample=true", f"num_samples={SAMPLES}"),
)
SMALL = Scale(
    name="small",
    world="make_small",
    rows=("train", "dev", "test", "sft", "train_1k"),
    sft_outputs=("sft",),
    feedback_questions=200,
    max_generated_len=200,
    evaluation=("do_sample=true",),
    best_of=(4, 40),
)
SCALES = {scale.name: scale for scale in (MINI, SMALL)}


class DemoConfig(StrictModel):
    scale: Literal["mini", "small"] = Field(
        default="mini", description="mini: tiny models, minutes; small: a pretrained model, hours"
    )
    language: Literal["toy", "chinese"] = Field(
        default="toy", description="mini: of the world; chinese: written without spaces"
    )
    seed: NonNegativeInt = Field(
        default=0, description="of the base model, SFT, reward models and RL; the world stays"
    )
    output_dir: FilePath | None = Field(
        default=None,
        description="folder of the results; null: outputs/qa_feedback/<scale>, with -chinese "
        "and -seed-<seed>",
    )
    model: FilePath | None = Field(
        default=None,
        description="small: folder of a causal language model; null: SmolLM2, fetched once",
    )
    lanes: PositiveInt = Field(default=2, description="stages at the same time, a thread each")

    @model_validator(mode="after")
    def _a_model_is_for_small_scale(self):
        if self.scale == "mini" and self.model is not None:
            refuse([("model", "is not used at mini scale: leave it out, or set scale=small")])
        if self.scale == "small" and self.language != "toy":
            refuse([("language", "is English at small scale: leave it out, or set scale=mini")])
        return self

    @property
    def folder(self) -> Path:
        name = self.scale if self.language == "toy" else f"{self.scale}-{self.language}"
        name += f"-seed-{self.seed}" if self.seed else ""
        return Path(self.output_dir or ROOT / "outputs" / "qa_feedback" / name).absolute()


def reward_model(
    scale: Scale,
    name: str,
    module: str,
    needs: tuple[str, ...] = ("create_rm_train_files",),
) -> Stage:
    config = f"{REWARD_MODELING}/{scale.name}_{name}_config.yml"
    return script_stage(
        f"train_{name}",
        f"{REWARD_MODELING}/train_{name}.sh",
        modules=(module, f"{TASK_MODULE}.task"),
        needs=needs,
        outputs=(name,),
        reads=(config, "reward_modeling/metrics/*.py"),
    )


def rlhf(scale: Scale, name: str, script_name: str, models: tuple[str, ...]) -> Stage:
    return script_stage(
        script_name,
        f"{TRAINING}/{script_name}.sh",
        modules=(f"{TASK_MODULE}.training.{script_name}", f"{TASK_MODULE}.task"),
        needs=models,
        outputs=(name,),
        reads=(f"{TRAINING}/{scale.name}_{name}_config.yml",),
    )


def evaluation(
    scale: Scale, policy: str, folder: Path, needs: str, arguments: tuple[str, ...] = ()
) -> Stage:
    return script_stage(
        f"evaluate_{policy}",
        f"{TRAINING}/evaluate.sh",
        f"policy={folder}",
        f"name={policy}",
        "split=test",
        *(arguments or scale.evaluation),
        modules=("fgrlhf.cli.evaluate", f"{TASK_MODULE}.task"),
        needs=(needs, "train_rel_rm", "train_fact_rm", "train_comp_rm"),
        outputs=(f"eval/{policy}-test",),
        reads=(f"{TRAINING}/{scale.name}_fine_grained_config.yml",),
    )


def sampling(scale: Scale, split: str, out: Path, processes: int = 1) -> Stage:
    return script_stage(
        f"generate_{split}",
        f"{TRAINING}/generate.sh",
        f"policy={out / 'sft'}",
        f"split={split}",
        f"max_examples={scale.feedback_questions}",
        "max_input_len=512",
        f"max_generated_len={scale.max_generated_len}",
        modules=("fgrlhf.cli.generate", f"{TASK_MODULE}.task"),
        needs=("train_sft",),
        outputs=(f"generated/sft-{split}",),
        processes=processes,
    )


def annotation(split: str, out: Path) -> Stage:
    """The simulated annotator. Real data are annotated in the browser instead."""
    return module_stage(
        f"annotate_{split}",
        f"{TASK_MODULE}.data.collect_feedback",
        f"data_dir={out / 'data'}",
        f"split={split}",
        f"samples={out / 'generated' / f'sft-{split}' / 'samples.jsonl'}",
        needs=(f"generate_{split}",),
        outputs=(f"data/{split}_feedback.json",),
    )


def annotation_page(out: Path) -> Stage:
    """A page to annotate the first answers of the SFT policy in a browser."""
    folder = f"{TASK}/interface_html"
    return module_stage(
        "annotation_page",
        "interface_html.pages",
        "task=qa_feedback",
        f"items={out / 'generated' / 'sft-train' / 'samples.jsonl'}",
        f"prompts={out / 'data' / 'train.json'}",
        f"out={out / 'annotate.html'}",
        "first=20",
        imports=(f"{TASK_MODULE}.feedback_format",),
        needs=("generate_train",),
        outputs=("annotate.html",),
        reads=(f"{folder}/schema.js", f"{folder}/format.js", "interface_html/templates/*"),
    )


def direct_preferences(scale: Scale) -> Stage:
    """DPO on the preferences of the feedback file, without reward models."""
    return script_stage(
        "train_dpo",
        f"{TRAINING}/train_dpo.sh",
        modules=("fgrlhf.cli.dpo", f"{TASK_MODULE}.task"),
        # It reads only the feedback, but starts after the reward models, for which RL waits.
        needs=("annotate_train", "create_rm_train_files"),
        outputs=("dpo",),
        reads=(f"{TRAINING}/{scale.name}_dpo_config.yml",),
    )


def best_of_n(out: Path) -> Stage:
    """Choose the best of several answers of the SFT policy by the reward."""
    return module_stage(
        "best_of_n",
        "fgrlhf.pipeline.best_of_n",
        f"output_dir={out}",
        f"source={SAMPLED}",
        needs=(f"evaluate_{SAMPLED}",),
        outputs=("eval/best_of_n-test",),
    )


def baseline_stages(scale: Scale, out: Path) -> list[Stage]:
    """DPO and best-of-n, beside RL; none at mini scale."""
    if scale.best_of is None:
        return []
    samples, questions = scale.best_of
    sampled = ("do_sample=true", f"num_samples={samples}", f"max_examples={questions}")
    return [
        direct_preferences(scale),
        # no reward tells which of its checkpoints is the best
        evaluation(scale, "dpo", out / "dpo" / "final", "train_dpo"),
        evaluation(scale, SAMPLED, out / "sft", "train_sft", sampled),
        best_of_n(out),
    ]


def judged_models(scale: Scale, out: Path) -> Stage:
    """The agreement of the reward models with the oracle."""
    answers = "sft" if scale.best_of is None else SAMPLED
    return module_stage(
        "judge_reward_models",
        f"{TASK_MODULE}.judged_models",
        f"output_dir={out}",
        f"data_dir={out / 'data'}",
        needs=(f"evaluate_{answers}", "train_baseline_rm"),
        outputs=("eval/reward_models",),
    )


def policy_stages(scale: Scale, lanes: int, language: str) -> list[Stage]:
    """The rows of the world, and the policy that is trained on them before RL."""
    return [
        script_stage(
            scale.world,
            f"{DATA}/{scale.world}.sh",
            *(() if language == "toy" else (f"language={language}",)),
            modules=(f"{TASK_MODULE}.data.mini_world",),
            outputs=tuple(f"data/{name}.json" for name in scale.rows),
        ),
        script_stage(
            "train_sft",
            f"{TRAINING}/train_sft.sh",
            modules=("sft.run_sft", f"{TASK_MODULE}.data.mini_model"),
            needs=(scale.world,),
            outputs=scale.sft_outputs,
            reads=(
                f"{TRAINING}/mini_pretrain_config.yml",
                f"{TRAINING}/{scale.name}_sft_config.yml",
            ),
            # Nothing can run beside it. Tiny models are faster with one thread.
            threads=lanes if scale is SMALL else None,
            processes=lanes if scale is MINI else None,
        ),
    ]


def feedback_stages(scale: Scale, out: Path, lanes: int) -> list[Stage]:
    """Answers of the SFT policy, and the feedback on them."""
    return [
        sampling(scale, "train", out, processes=lanes),
        sampling(scale, "dev", out),
        annotation_page(out),
        annotation("train", out),
        annotation("dev", out),
    ]


def reward_model_stages(scale: Scale) -> list[Stage]:
    """The training files of the reward models, and the models."""
    annotated = ("annotate_train", "annotate_dev")
    names = ("NF-ERR_subsentence", "F-ERR_sentence", "COMP_sequence")
    return [
        script_stage(
            "create_rm_train_files",
            f"{REWARD_MODELING}/create_rm_train_files.sh",
            modules=(f"{TASK_MODULE}.reward_modeling.create_rm_files",),
            needs=annotated,
            outputs=tuple(f"data/{name}" for name in names),
        ),
        # preference models take longest: two lanes that begin with them end at about the same time
        reward_model(scale, "comp_rm", "reward_modeling.run_pref_rm"),
        # it reads the feedback itself
        reward_model(scale, "baseline_rm", "reward_modeling.run_pref_rm", needs=annotated),
        reward_model(scale, "fact_rm", "reward_modeling.run_fg_rm"),
        reward_model(scale, "rel_rm", "reward_modeling.run_fg_rm"),
    ]


def rl_stages(scale: Scale) -> list[Stage]:
    """RL with the fine-grained rewards and with the holistic one."""
    fine_grained = ("train_rel_rm", "train_fact_rm", "train_comp_rm")
    return [
        rlhf(scale, "fine_grained", "train_finegrained", fine_grained),
        rlhf(scale, "baseline", "train_baseline", ("train_baseline_rm",)),
    ]


def evaluation_stages(scale: Scale, out: Path) -> list[Stage]:
    """The policies before and after RL, and the reward models."""
    return [
        evaluation(scale, "sft", out / "sft", "train_sft"),
        evaluation(scale, "baseline", out / "baseline" / "best", "train_baseline"),
        evaluation(scale, "fine_grained", out / "fine_grained" / "best", "train_finegrained"),
        judged_models(scale, out),
    ]


def summary_stages(scale: Scale, out: Path, baselines: Sequence[Stage]) -> list[Stage]:
    """The summary of all evaluations, and the report."""
    evaluated = ("evaluate_sft", "evaluate_baseline", "evaluate_fine_grained")
    return [
        module_stage(
            "summary",
            f"{TASK_MODULE}.summary",
            f"output_dir={out}",
            f"data_dir={out / 'data'}",
            f"scale={scale.name}",
            needs=(*evaluated, *(stage.name for stage in baselines), "judge_reward_models"),
            outputs=("summary.json",),
        ),
        script_stage(
            "report",
            f"{TRAINING}/report.sh",
            modules=("fgrlhf.report.page", f"{TASK_MODULE}.display"),
            needs=("summary",),
            outputs=("report.html",),
            reads=("fgrlhf/report/report.html.j2", "fgrlhf/report/report.css"),
        ),
    ]


def stages(
    scale: Scale, out: Path, lanes: int, language: str = "toy", seed: int = 0
) -> list[Stage]:
    """The stages of the pipeline, in an order that keeps two lanes busy."""
    baselines = baseline_stages(scale, out)
    all_stages = [
        *policy_stages(scale, lanes, language),
        *feedback_stages(scale, out, lanes),
        *reward_model_stages(scale),
        *rl_stages(scale),
        *baselines,
        *evaluation_stages(scale, out),
        *summary_stages(scale, out, baselines),
    ]
    return [trained_with(seed, stage) for stage in all_stages]


def trained_with(seed: int, stage: Stage) -> Stage:
    """The stage with this seed, if it trains. Seed 0 is that of the YAMLs."""
    if seed == 0 or not stage.name.startswith("train_"):
        return stage
    return replace(stage, command=(*stage.command, f"train.seed={seed}"))


def demo(config: DemoConfig) -> list[str]:
    """Run all stages, then print the summary and the path of the report.

    Returns:
      A line for each missed target.
    """
    out = config.folder
    model = small_model(config.model) if config.scale == "small" else None
    all_stages = stages(SCALES[config.scale], out, config.lanes, config.language, config.seed)
    pipeline = pipeline_of(all_stages, out, out / "data", config.lanes, config.scale, model)
    pipeline.run()
    print("\n" + (out / "logs" / "summary.log").read_text(encoding="utf-8"))
    print_cost(pipeline)
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
