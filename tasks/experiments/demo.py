"""`make demo`: the whole pipeline on a world with known truth, by the scripts that users run.

    python -m tasks.experiments demo [scale=small] [language=chinese] [seed=1] [output_dir=...]

At mini scale, tiny models learn the toy language of the world in minutes; `language=chinese` is the
same world in a script without spaces. At small scale, a
pretrained language model answers in English, which takes hours on two CPU cores; DPO and best-of-n
are compared as well.

Exits with code 1 if a figure misses its target in `summary_table.TARGETS`, after all outputs and
the report are written.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import Field, NonNegativeInt, model_validator

from fgrlhf.base.files import read_json
from fgrlhf.configs.strict import refuse
from fgrlhf.pipeline.stages import Stage
from fgrlhf.pipeline.study import Plan, Study
from tasks.experiments import qa
from tasks.experiments.judged_models import SAMPLED
from tasks.experiments.stages import (
    PretrainedSettings,
    experiment_of,
    keys,
    module_stage,
    reading,
    small_model,
)
from tasks.experiments.summary_table import missed_targets


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
    feedback_questions=qa.FEEDBACK_QUESTIONS,
    max_generated_len=qa.MAX_GENERATED_LEN,
    evaluation=("do_sample=true", f"num_samples={qa.SAMPLES}"),
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


class DemoConfig(PretrainedSettings):
    """`make demo`; only small scale has a pretrained model."""

    scale: Literal["mini", "small"] = Field(
        default="mini", description="mini: tiny models, minutes; small: a pretrained model, hours"
    )
    language: Literal["toy", "chinese"] = Field(
        default="toy", description="mini: of the world; chinese: written without spaces"
    )
    seed: NonNegativeInt = Field(
        default=0, description="of the base model, SFT, reward models and RL; the world stays"
    )

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
        return self.folder_of(f"qa_feedback/{name}")


# ---- stages --------------------------------------------------------------------------------------


def policy_stages(scale: Scale, lanes: int, language: str) -> list[Stage]:
    """The rows of the world, and the policy that is trained on them before RL."""
    scripts = qa.QAScripts(scale.name)
    return [
        scripts.stage(
            scale.world,
            f"data/{scale.world}.sh",
            *(() if language == "toy" else keys(language=language)),
            modules=(f"{qa.MODULE}.data.mini_world",),
            outputs=tuple(f"data/{name}.json" for name in scale.rows),
        ),
        scripts.stage(
            "train_sft",
            "training/train_sft.sh",
            config="training/sft_config.yml",
            reads=(qa.QAScripts("mini").config("training/pretrain_config.yml"),),
            modules=("sft.run_sft", f"{qa.MODULE}.data.mini_model"),
            needs=(scale.world,),
            outputs=scale.sft_outputs,
            # Nothing can run beside it. Tiny models are faster with one thread.
            threads=lanes if scale is SMALL else None,
            processes=lanes if scale is MINI else None,
        ),
    ]


def answer_stages(scale: Scale, out: Path, split: str, processes: int = 1) -> list[Stage]:
    """Answers of the SFT policy, and the feedback of the simulated annotator on them.

    Real data are annotated in the browser instead.
    """
    samples = f"generated/sft-{split}"
    length = scale.max_generated_len
    return [
        qa.QAScripts(scale.name).stage(
            f"generate_{split}",
            "training/generate.sh",
            *keys(policy=out / "sft", split=split, max_examples=scale.feedback_questions),
            *keys(max_input_len=512, max_generated_len=length),
            modules=("fgrlhf.cli.generate", *qa.TASK_MODULES),
            needs=("train_sft",),
            outputs=(samples,),
            processes=processes,
        ),
        module_stage(
            f"annotate_{split}",
            f"{qa.MODULE}.data.collect_feedback",
            *keys(data_dir=out / "data", split=split, samples=out / samples / "samples.jsonl"),
            needs=(f"generate_{split}",),
            outputs=(f"data/{split}_feedback.json",),
        ),
    ]


def annotation_page(out: Path) -> Stage:
    """A page to annotate the first answers of the SFT policy in a browser."""
    items = out / "generated" / "sft-train" / "samples.jsonl"
    return module_stage(
        "annotation_page",
        "interface_html.pages",
        *keys(task=qa.TASK, items=items, prompts=out / "data" / "train.json"),
        *keys(out=out / "annotate.html", first=20),
        imports=qa.FORMAT,
        needs=("generate_train",),
        outputs=("annotate.html",),
        reads=(qa.SCHEMA, f"{qa.FOLDER}/interface_html/format.js", "interface_html/templates/*"),
    )


def reward_model_stages(scale: Scale) -> list[Stage]:
    """The training files of the reward models, and the models."""
    scripts = qa.QAScripts(scale.name)
    annotated = ("annotate_train", "annotate_dev")
    names = ("NF-ERR_subsentence", "F-ERR_sentence", "COMP_sequence")
    files = scripts.stage(
        "create_rm_train_files",
        "reward_modeling/create_rm_train_files.sh",
        modules=(f"{qa.MODULE}.reward_modeling.create_rm_files",),
        needs=annotated,
        outputs=tuple(f"derived/{name}" for name in names),
    )
    stages = [files]
    # Preference models take longest: two lanes that begin with them end at about the same time. The
    # holistic one reads the feedback itself.
    for name in ("comp_rm", "baseline_rm", "fact_rm", "rel_rm"):
        needs = annotated if name == "baseline_rm" else (files.name,)
        stages.append(scripts.reward_model(f"train_{name}", name, output=name, needs=needs))
    return stages


def evaluation(
    scale: Scale, policy: str, folder: Path, trained: str, arguments: tuple[str, ...] = ()
) -> Stage:
    return qa.QAScripts(scale.name).evaluation(
        policy,
        folder,
        "test",
        *(arguments or scale.evaluation),
        config="training/fine_grained_config.yml",
        needs=(trained, "train_rel_rm", "train_fact_rm", "train_comp_rm"),
    )


def baseline_stages(scale: Scale, out: Path) -> list[Stage]:
    """DPO and best-of-n, in addition to RL; none at mini scale."""
    if scale.best_of is None:
        return []
    samples, questions = scale.best_of
    sampled = ("do_sample=true", *keys(num_samples=samples, max_examples=questions))
    # It reads only the feedback, but starts after the reward models, for which RL waits.
    dpo = qa.QAScripts(scale.name).dpo(needs=("annotate_train", "create_rm_train_files"))
    best_of_n = module_stage(
        "best_of_n",
        "fgrlhf.pipeline.best_of_n",
        *keys(output_dir=out, source=SAMPLED),
        needs=(f"evaluate_{SAMPLED}",),
        outputs=("eval/best_of_n-test",),
    )
    return [
        dpo,
        # no reward tells which of its checkpoints is the best
        evaluation(scale, "dpo", out / "dpo" / "final", dpo.name),
        evaluation(scale, SAMPLED, out / "sft", "train_sft", sampled),
        best_of_n,
    ]


def judged_models(scale: Scale, out: Path) -> Stage:
    """The agreement of the reward models with the oracle."""
    answers = "sft" if scale.best_of is None else SAMPLED
    return module_stage(
        "judge_reward_models",
        "tasks.experiments.judged_models",
        *keys(output_dir=out, data_dir=out / "data"),
        needs=(f"evaluate_{answers}", "train_baseline_rm"),
        outputs=("eval/reward_models",),
    )


def summary(scale: Scale, out: Path, needs: tuple[str, ...]) -> Stage:
    return module_stage(
        "summary",
        "tasks.experiments.summary",
        *keys(output_dir=out, data_dir=out / "data", scale=scale.name),
        needs=needs,
        outputs=("summary.json",),
    )


def stages(
    scale: Scale, out: Path, lanes: int, language: str = "toy", seed: int = 0
) -> list[Stage]:
    """The stages of the pipeline, in an order that keeps two lanes busy."""
    scripts = qa.QAScripts(scale.name)
    generate_train, annotate_train = answer_stages(scale, out, "train", processes=lanes)
    generate_dev, annotate_dev = answer_stages(scale, out, "dev")
    fine_grained = ("train_rel_rm", "train_fact_rm", "train_comp_rm")
    baselines = baseline_stages(scale, out)
    policies = [
        evaluation(scale, "sft", out / "sft", "train_sft"),
        evaluation(scale, "baseline", out / "baseline" / "best", "train_baseline"),
        evaluation(scale, "fine_grained", out / "fine_grained" / "best", "train_finegrained"),
    ]
    judged = judged_models(scale, out)
    summarised = tuple(stage.name for stage in (*policies, *baselines, judged))
    all_stages = [
        *policy_stages(scale, lanes, language),
        *(generate_train, generate_dev, annotation_page(out), annotate_train, annotate_dev),
        *reward_model_stages(scale),
        scripts.rl("fine_grained", "train_finegrained", needs=fine_grained),
        scripts.rl("baseline", "train_baseline", needs=("train_baseline_rm",)),
        *baselines,
        *policies,
        judged,
        summary(scale, out, summarised),
        scripts.report(needs=("summary",), modules=(f"{qa.MODULE}.display",)),
    ]
    return [trained_with(seed, stage) for stage in all_stages]


def trained_with(seed: int, stage: Stage) -> Stage:
    """The stage with this seed, if it trains. Seed 0 is that of the YAMLs."""
    if seed == 0 or not stage.name.startswith("train_"):
        return stage
    return replace(stage, command=(*stage.command, f"train.seed={seed}"))


def plan(config: DemoConfig) -> Plan:
    out = config.folder
    model = small_model(config.model) if config.scale == "small" else None
    all_stages = stages(SCALES[config.scale], out, config.lanes, config.language, config.seed)
    experiment = experiment_of(qa.MODULE, out, scale=config.scale, model=model)
    return Plan(experiment, reading(all_stages, model), config.lanes)


STUDY = Study(
    DemoConfig,
    plan,
    results=lambda config, plan: read_json(config.folder / "summary.json"),
    verdicts=missed_targets,
    logs=("summary",),
    pages={"answers to annotate yourself": "annotate.html", "report": "report.html"},
)
