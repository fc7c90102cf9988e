"""The command `fgrlhf`: one subcommand per stage."""

import importlib
import os
import sys

from fgrlhf.base.errors import UserError, shorten, suggestion
from fgrlhf.base.interrupts import end_at_interrupts, raise_at_interrupts
from fgrlhf.base.program import as_settings, run_main

# A training step of tiny models on two idle cores takes 6.4 s if waiting threads sleep at once, and
# 4.2 s with this number; while another program runs, 5.0 and 7.0 s (38 s with 30,000).
SPINS = 1000

# subcommand -> (module with main(argv), its arguments, its description)
COMMANDS = {
    "sft": ("sft.run_sft", "[TASK] [config.yml]", "supervised fine-tuning on demonstrations"),
    "rm": (
        "reward_modeling.command",
        "segment|sequence [TASK] [config.yml]",
        "train a reward model",
    ),
    "reward-serve": (
        "fgrlhf.cli.reward_serve",
        "ckpt=FOLDER",
        "serve a reward to runs on other machines or GPUs",
    ),
    "rl": (
        "fgrlhf.cli.rl",
        "[TASK] [config.yml]",
        "RL with dense rewards: PPO and other algorithms",
    ),
    "distill": (
        "fgrlhf.cli.distill",
        "[TASK] [config.yml] teacher=FOLDER",
        "follow a larger policy on one's own samples",
    ),
    "dpo": ("fgrlhf.cli.dpo", "[TASK] [config.yml]", "DPO on comparisons, without reward models"),
    "generate": ("fgrlhf.cli.generate", "[TASK]", "sample responses to annotate"),
    "evaluate": ("fgrlhf.cli.evaluate", "[TASK]", "all metrics of a policy, with intervals"),
    "winrate": (
        "fgrlhf.pipeline.winrate",
        "[TASK] a=... b=... judge=...",
        "win rate of a policy, by a judge of any kind",
    ),
    "best-of-n": (
        "fgrlhf.pipeline.best_of_n",
        "output_dir=DIR source=NAME",
        "choose the best of several evaluated responses",
    ),
    "soup": (
        "fgrlhf.cli.soup",
        "policies='[A, B]' output_dir=DIR",
        "average the weights of policies trained from one model",
    ),
    "push": ("fgrlhf.cli.push", "FOLDER ORG/NAME", "upload a model and its card to a hub"),
    "summary": (
        "fgrlhf.pipeline.summary",
        "TASK output_dir=DIR",
        "all policies and their gains, as text and as summary.json",
    ),
    "report": ("fgrlhf.report.page", "OUTPUT_DIR", "report.html with the results of all stages"),
    "paper": (
        "fgrlhf.report.paper",
        "OUTPUT_DIR",
        "tables as LaTeX and CSV, each number with its file and run",
    ),
    "samples": (
        "fgrlhf.report.browse",
        "OUTPUT_DIR",
        "samples.html: all samples of all policies side by side",
    ),
    "compare": (
        "fgrlhf.pipeline.compare",
        "[TASK] CONFIG ...",
        "compare configs or algorithms over several seeds",
    ),
    "sweep": ("fgrlhf.pipeline.sweep", "[TASK] config.yml", "compare values of any setting"),
    "pareto": (
        "fgrlhf.pipeline.pareto",
        "policies=... metrics=... output_dir=DIR",
        "front of evaluated policies over several metrics, and a choice",
    ),
    "plan": (
        "fgrlhf.cli.plan",
        "[TASK] CONFIG ...",
        "steps, samples and GPU hours of configs, without training",
    ),
    "feedback": (
        "interface_html.command",
        "items|pages|serve|export|...",
        "collect human feedback in the browser",
    ),
    "human-eval": (
        "interface_html.human_eval",
        "TASK key=... files=...",
        "tables of a blind human evaluation, and its size",
    ),
    "data": (
        "fgrlhf.cli.data",
        "show|check|convert|import|export|...",
        "check, convert, import or export rows; fetch a small pretrained model",
    ),
    "prompts": (
        "fgrlhf.cli.published",
        "TASK data_dir=DIR",
        "write the prompts of the published data set of a task",
    ),
    "tiny-model": (
        "fgrlhf.cli.tiny_model",
        "[TASK] output_dir=DIR",
        "write a tiny random model with the words of a task",
    ),
    "launch": (
        "fgrlhf.cli.torchrun",
        "--nproc_per_node N COMMAND ...",
        "run a command in several processes",
    ),
    "new-run": (
        "fgrlhf.cli.new_run",
        "CONFIG.yml model=...",
        "write a config for a stage with your model and data",
    ),
    "new-task": (
        "fgrlhf.cli.new_task",
        "NAME",
        "write a new task that trains and passes its tests",
    ),
    "env": ("fgrlhf.cli.env", "", "versions, devices and settings of this machine"),
    "completion": ("fgrlhf.cli.completion", "bash|zsh", "shell completion, to be sourced"),
}

# words that are typed for a command -> what to type
ALGORITHMS = (
    *("ppo", "a2c", "nlpo", "trpo", "reinforce", "rloo", "grpo", "gpg", "online_dpo"),
    "sdpo",  # `distill` is a command
)
OTHER_WORDS = {
    **{
        name: f"it is an algorithm: fgrlhf rl TASK config.yml algorithm.name={name}"
        for name in ALGORITHMS
    },
    **dict.fromkeys(
        ["train", "finetune", "fine-tune"],
        "write `fgrlhf sft`, `fgrlhf rm`, `fgrlhf rl` or `fgrlhf dpo` for what is to be trained",
    ),
    **dict.fromkeys(["version", "--version", "-V"], "`fgrlhf env` prints the versions"),
}


def usage() -> str:
    lines = []
    for name, (_, arguments, description) in COMMANDS.items():
        lines.append(f"  {name + ' ' + arguments:<46} {description}")
    head = "usage: fgrlhf COMMAND [arguments] [section.key=value ...]"
    foot = [
        "TASK is a folder of tasks/, such as numbers. `--key value` is `key=value`.",
        "`fgrlhf COMMAND --help` lists the arguments and every key with its type and default.",
    ]
    return "\n".join([head, "", *lines, "", *foot])


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[:1] == ["help"]:  # `help COMMAND` is `COMMAND --help`
        arguments = [*arguments[1:2], "--help"]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        sys.exit(0 if arguments else 2)
    command, *rest = arguments
    if command.lower() in OTHER_WORDS:
        raise UserError(f"there is no command `{command}`: {OTHER_WORDS[command.lower()]}")
    if command not in COMMANDS:
        known = suggestion(command, list(COMMANDS))
        raise UserError(f"there is no command `{shorten(command)}`: {known}")
    wait_passively()
    end_at_interrupts()
    module = importlib.import_module(COMMANDS[command][0])
    raise_at_interrupts()
    module.main(rest if command == "launch" else as_settings(rest))


def wait_passively() -> None:
    """Let threads that wait for each other spin briefly and then sleep; by default, they spin on.

    PyTorch divides every operation among its threads. If another process needs one of the cores, a
    spinning thread uses up its time slice and is not scheduled when there is work, so the other
    threads wait for it, and small operations take several times as long. Threads that sleep at once
    lose time in waking up where operations follow each other closely, so they spin `SPINS` times
    first. (Only GNU's OpenMP, PyTorch's on Linux, reads that number; others sleep at once.)

    OpenMP reads the variables when it is loaded, so PyTorch must not be loaded yet. A value of
    OMP_WAIT_POLICY that is set already is kept.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ["OMP_WAIT_POLICY"] = "passive"
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS))


def entry_point() -> None:
    run_main(main)


if __name__ == "__main__":
    entry_point()
