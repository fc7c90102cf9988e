"""The stages of the text tasks (docs/text_tasks.md), which the run.sh of each task runs.

    bash tasks/TASK/run.sh STAGE [key=value ...]

    prepare    prompts from the published set; further arguments are those of `fgrlhf prompts`, such
               as source=FOLDER. At mini scale: prompts from the fixture, a tiny random model, and
               scorers if the task has labelled texts
    sft        supervised fine-tuning; further arguments: key=value overrides of the YAML
    ppo, nlpo  RL from the supervised policy; likewise
    evaluate   evaluate the supervised policy and those of PPO and NLPO that exist; with policy=...
               name=..., that policy
    report     summarise the evaluated policies, and write $OUTPUT_DIR/report.html
    all        all of them in this order, without further arguments

The variables are those of scripts/env.sh; DATA_DIR is $OUTPUT_DIR/data by default, at paper scale
too.
"""

import os
import sys
from pathlib import Path

from fgrlhf.base.errors import UserError
from fgrlhf.base.program import as_settings, run_main
from fgrlhf.cli.stage_script import FILE_KEYS, POLICY_KEYS, StageScript, run

STAGES = ("prepare", "sft", "ppo", "nlpo", "evaluate", "report")


def function(name: str, *arguments: str) -> None:
    """Run a function of stage scripts, in a process of its own."""
    run(["python", "-m", "fgrlhf.cli.stage_script", name, *arguments])


def prepare(script: StageScript, *arguments: str) -> None:
    """Write the prompts, and at mini scale a model and scorers."""
    program, task = ["python", "-m"], f"tasks.{script.task}"
    is_mini = script.scale == "mini"
    source = ["source=fixture"] if is_mini else []
    run([*program, "fgrlhf.cli.published", task, f"data_dir={script.data}", *source, *arguments])
    if is_mini:
        model = [f"train_file={script.data}/train.json", f"output_dir={script.output}/base_model"]
        run([*program, "fgrlhf.cli.tiny_model", task, *model])
        texts = f"{script.data}/labelled.json"
        if os.path.isfile(texts):
            folder = f"output_dir={script.output}/scorers"
            run([*program, "fgrlhf.cli.linear_scorer", f"texts={texts}", folder])


def train(script: StageScript, stage: str, *arguments: str) -> None:
    """Train by SFT, PPO or NLPO."""
    script.needs(f"{script.data}/train.json", "run.sh prepare", "data.*", arguments)
    program = "sft.run_sft" if stage == "sft" else "fgrlhf.cli.rl"
    if stage != "sft":
        config = Path(script.config("ppo_config.yml")).read_text(encoding="utf-8")
        if "\n  ckpt:" not in config:  # it does not start from a model of the hub
            script.needs(f"{script.output}/sft", "run.sh sft", POLICY_KEYS, arguments)
    function("stage", program, f"{stage}_config.yml", "", "", *arguments)


def evaluate(script: StageScript, *arguments: str) -> None:
    """Evaluate the policy that is given, or those that exist."""
    script.needs(f"{script.data}/test.json", "run.sh prepare", FILE_KEYS, arguments)
    policies: list[list[str]] = [[]]
    if not any(argument.startswith("policy=") for argument in arguments):
        script.needs(f"{script.output}/sft", "run.sh sft", "", arguments)
        trained = {name: f"{script.output}/{name}/best" for name in ("ppo", "nlpo")}
        found = {name: folder for name, folder in trained.items() if os.path.isdir(folder)}
        found = {"sft": f"{script.output}/sft", **found}
        policies = [[f"policy={folder}", f"name={name}"] for name, folder in found.items()]
    for policy in policies:
        function("evaluate_policy", "ppo_config.yml", "test.json", "", *policy, *arguments)


def main() -> None:
    stage, *arguments = as_settings(sys.argv[1:]) or [""]
    if os.environ["DATA_DIR"] == f"tasks/{os.environ['TASK']}/data":
        os.environ["DATA_DIR"] = f"{os.environ['OUTPUT_DIR']}/data"
    script = StageScript.of(os.environ)
    if stage not in (*STAGES, "all"):
        raise UserError(
            f"`{stage}` is not a stage: bash tasks/{script.task}/run.sh"
            f" {'|'.join((*STAGES, 'all'))} [key=value ...]"
        )
    if stage == "all" and arguments:
        raise UserError(
            f"all takes no further arguments, there are {' '.join(arguments)}. Run the stages one"
            " by one to change settings."
        )
    for name in STAGES if stage == "all" else (stage,):
        if name == "prepare":
            prepare(script, *arguments)
        elif name == "evaluate":
            evaluate(script, *arguments)
        elif name == "report":
            function("write_report", "run.sh evaluate", *arguments)
        else:
            train(script, name, *arguments)


if __name__ == "__main__":
    run_main(main)
