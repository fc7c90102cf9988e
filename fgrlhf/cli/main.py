"""The command `fgrlhf`: one subcommand per stage."""

import importlib
import sys

from fgrlhf.errors import UserError, run_main

# subcommand -> (module with main(argv), what it does)
COMMANDS = {
    "sft": ("sft.run_sft", "supervised fine-tuning on demonstrations"),
    "rl": ("fgrlhf.cli.rl", "RL with dense rewards: PPO and eight other algorithms"),
    "dpo": ("fgrlhf.cli.dpo", "DPO on comparisons, without reward models"),
    "generate": ("fgrlhf.cli.generate", "sample responses to annotate"),
    "evaluate": ("fgrlhf.cli.evaluate", "all metrics of a policy, with intervals"),
}


def usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {what}" for name, (_, what) in COMMANDS.items()]
    return "\n".join(
        ["usage: fgrlhf COMMAND ...", "", *lines, "", "`fgrlhf COMMAND --help` lists its keys"]
    )


def main() -> None:
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        sys.exit(0 if arguments else 2)
    command, *rest = arguments
    if command not in COMMANDS:
        raise UserError(f"there is no command `{command}`\n{usage()}")
    importlib.import_module(COMMANDS[command][0]).main(rest)


def entry_point() -> None:
    run_main(main)


if __name__ == "__main__":
    entry_point()
