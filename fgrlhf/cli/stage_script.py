"""The functions of stage scripts.

`scripts/env.sh` calls them by name, from the repository's root:

    config_for NAME.yml                            print the path of the config of this scale
    needs FILE SCRIPT KEYS arguments...            stop if a file that SCRIPT writes is missing
    launch [-m] PROGRAM arguments...               run a program, in a process per GPU
    stage PROGRAM NAME.yml FILES MODELS arguments...       train on the task
    evaluate_policy NAME.yml FILES MODELS arguments...     evaluate a policy on the task's prompts
    compare_runs CONFIGS FILES MODELS arguments...         compare configs over seeds
    write_report SCRIPT arguments...               write the report on what SCRIPT has evaluated
    run_task SCRIPTS TRAIN RESULT arguments...     run all stages of a task
    setting KEY DEFAULT arguments...               print the value of a key among the arguments
    unknown MESSAGE NAME KNOWN...                  stop: NAME is none of the known names

The variables TASK, SCALE, VARIANT, DATA_DIR and OUTPUT_DIR say what the script works on. This
program is replaced by the one that it starts, so signals reach that. PyTorch is not imported: a
missing file is reported at once.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from fgrlhf.base.errors import UserError, suggestion
from fgrlhf.base.program import as_settings, run_main
from fgrlhf.pipeline.fork_server import run_in_fork

# arguments that name other files, or make a file or model superfluous
FILE_KEYS = "data.* data_dir split"
POLICY_KEYS = "model.*"
DERIVED = "derived/"  # in the folder of the results: files made from those of the data
REWARD_KEYS = "reward.{} reward.{}.* reward config"


@dataclass(frozen=True)
class StageScript:
    """A script of a task. Paths are relative to the repository's root.

    Args:
      variant: "published" or "".
      data: folder of the data.
      output: folder of the results.
      environment: what `launch` reads: NNODES, PROCESSES, RDZV_ENDPOINT, RDZV_ID.
    """

    task: str
    scale: str
    variant: str
    data: str
    output: str
    environment: Mapping[str, str]

    @classmethod
    def of(cls, variables: Mapping[str, str]) -> "StageScript":
        """The script that has these environment variables."""
        task, scale, data, output = (
            variables[name] for name in ("TASK", "SCALE", "DATA_DIR", "OUTPUT_DIR")
        )
        return cls(task, scale, variables.get("VARIANT", ""), data, output, variables)

    # ---- configs ---------------------------------------------------------------------------------

    def config(self, name: str) -> str:
        """The path of `training/name.yml`, of `training/mini_name.yml` at mini scale.

        With VARIANT=published, it is that of `training/published_name.yml` if that file exists.
        """
        folder, _, file = f"tasks/{self.task}/{name}".rpartition("/")
        path = f"{folder}/{file}"
        published = f"{folder}/published_{file}"
        if self.scale != "paper":
            path = f"{folder}/{self.scale}_{file}"
        elif self.variant == "published" and os.path.isfile(published):
            path = published
        if not os.path.isfile(path):  # the program that reads it will fail; list those that exist
            configs = " ".join(sorted(found.name for found in Path(folder).glob(f"*{file}")))
            print(
                f"note: there is no {path}; the configs of this stage are: {configs}",
                file=sys.stderr,
            )
        return path

    # ---- what a stage needs ----------------------------------------------------------------------

    def needs(self, file: str, script: str, keys: str, arguments: Sequence[str]) -> None:
        """Check that a file or folder exists, or that an argument makes it superfluous.

        Args:
          script: what writes it, relative to the task's folder (`scripts/...` to the repository);
            "" for the script that writes the task's data at this scale.
          keys: the keys of such arguments, as patterns separated by spaces.

        Raises:
          UserError: it is missing.
        """
        patterns = [f"{key}=*" for key in keys.split()] + ["-h", "--help"]
        if os.path.exists(file) or any(
            fnmatchcase(argument, pattern) for argument in arguments for pattern in patterns
        ):
            return
        script = script or self.data_script()
        path = script if script.startswith("scripts/") else f"tasks/{self.task}/{script}"
        raise UserError(
            f"{file} is missing. Run `SCALE={self.scale} bash {path}` first, with the same DATA_DIR"
            " and OUTPUT_DIR if they are set."
        )

    def needs_all(self, files: str, models: str, arguments: Sequence[str]) -> None:
        """Check the files in the folder of the data, or derived from it, and the models.

        Args:
          files, models: words `[SCALE:]NAME[@REWARD][=SCRIPT]`. SCALE: needed at this scale only;
            REWARD: the reward that uses the model, if the config has several; SCRIPT: what writes
            it, if that is not `data_script` or `train_NAME.sh`. A NAME may be a path, with
            variables of the environment.
        """
        for name, _, script in self.of_this_scale(files):
            folder = self.output if name.startswith(DERIVED) else self.data
            self.needs(f"{folder}/{name}", script, FILE_KEYS, arguments)
        for name, reward, script in self.of_this_scale(models):
            script = script or self.first_script(
                f"training/train_{name}.sh", f"reward_modeling/train_{name}.sh"
            )
            keys = REWARD_KEYS.replace("{}", reward or "*")
            if script.startswith(("training/", "scripts/")):
                keys = POLICY_KEYS
            path = os.path.join(self.output, os.path.expandvars(name))
            self.needs(path, script, keys, arguments)

    def of_this_scale(self, words: str) -> list[tuple[str, str, str]]:
        """(name, reward, script) of the words of this scale; "" for what a word lacks."""
        found = []
        for word in words.split():
            scale, _, rest = word.rpartition(":")
            if scale in ("", self.scale):
                model, _, script = rest.partition("=")
                name, _, reward = model.partition("@")
                found.append((name, reward, script))
        return found

    def data_script(self) -> str:
        """The script that writes the task's data at this scale."""
        others = sorted(Path("tasks", self.task, "data").glob("make_*.sh"))
        return self.first_script(
            *(f"data/{name}.sh" for name in (f"make_{self.scale}", "prepare", "download")),
            *(f"data/{path.name}" for path in others),
            "run.sh",
        )

    def first_script(self, *names: str) -> str:
        """The first of these scripts of the task that exists; the first one if none does."""
        existing = [name for name in names if os.path.isfile(f"tasks/{self.task}/{name}")]
        return (existing or names)[0]

    # ---- commands --------------------------------------------------------------------------------

    def launched(self, program: Sequence[str]) -> list[str]:
        """The command that runs a program in one process per GPU.

        Without GPUs, there are PROCESSES of them. Mini models are too small for several GPUs. With
        NNODES=2 or more, this is one of several machines with as many GPUs each, which see the same
        folders and meet at RDZV_ENDPOINT=HOST:PORT, a free port of the first machine. Runs with the
        same RDZV_ENDPOINT at the same time need different values of RDZV_ID.

        Args:
          program: its name, or `-m` and a module, and its arguments.

        Raises:
          UserError: a variable is no number, or the machines have no place to meet.
        """
        machines = self.number("NNODES", "machines")
        processes = self.number("PROCESSES", "processes")
        gpus = gpu_count(self.environment)
        endpoint = self.environment.get("RDZV_ENDPOINT")
        if machines > 1:
            if not endpoint:
                raise UserError(
                    f"NNODES={machines} needs RDZV_ENDPOINT=HOST:PORT, a free port of the first"
                    " machine, the same on all of them."
                )
            run_id = self.environment.get("RDZV_ID") or "fgrlhf"
            meeting = ["--rdzv_backend", "c10d", "--rdzv_id", run_id, "--rdzv_endpoint", endpoint]
            group = ["--nnodes", str(machines), "--nproc_per_node", str(gpus or 1), *meeting]
        elif gpus > 1 and self.scale == "paper":
            group = ["--standalone", "--nproc_per_node", str(gpus)]
        elif gpus == 0 and processes > 1:
            group = ["--standalone", "--nproc_per_node", str(processes)]
        else:
            return ["python", *program]
        return ["python", "-m", "fgrlhf.cli.torchrun", *group, *program]

    def number(self, variable: str, unit: str) -> int:
        """A positive number of an environment variable, 1 without it."""
        text = self.environment.get(variable) or "1"
        if not (text.isascii() and text.isdigit()) or text.startswith("0"):
            raise UserError(f"{variable}={text} is not a number of {unit}.")
        return int(text)

    def stage(
        self, program: str, config: str, files: str, models: str, *arguments: str
    ) -> list[str]:
        """The command that trains on the task, with the config of this scale."""
        self.needs_all(files, models, arguments)
        return self.launched(["-m", program, f"tasks.{self.task}", self.config(config), *arguments])

    def evaluate_policy(self, config: str, files: str, models: str, *arguments: str) -> list[str]:
        """The command that evaluates a policy by the rewards of a config, which need the models.

        Without files, the task makes its prompts itself.
        """
        self.needs_all(files, models, arguments)
        folders = [f"data_dir={self.data}"] if files else []
        program = ["-m", "fgrlhf.cli.evaluate", f"tasks.{self.task}", *folders]
        settings = [f"output_dir={self.output}", f"config={self.config(config)}"]
        return self.launched([*program, *settings, *arguments])

    def compare_runs(self, configs: str, files: str, models: str, *arguments: str) -> list[str]:
        """The command that compares configs over seeds; each is NAME.yml or KIND:NAME.yml."""
        self.needs_all(files, models, arguments)
        paths = []
        for word in configs.split():
            kind, colon, name = word.rpartition(":")
            paths.append(f"{kind}{colon}{self.config(name)}")
        folders = [f"data_dir={self.data}", f"output_dir={self.output}/compare"]
        program = ["python", "-m", "fgrlhf.pipeline.compare", f"tasks.{self.task}"]
        return [*program, *paths, *folders, *arguments]

    def write_report(self, evaluate: str, *arguments: str) -> None:
        """Summarise the policies that a script has evaluated, and write report.html."""
        self.needs(f"{self.output}/eval", evaluate, "", arguments)
        task, folder = f"tasks.{self.task}", f"output_dir={self.output}"
        run(["python", "-m", "fgrlhf.pipeline.summary", task, folder, f"scale={self.scale}"])
        run(["python", "-m", "fgrlhf.report.page", self.output, f"task={task}", *arguments])

    def run_task(self, scripts: str, train: str, result: str, *arguments: str) -> None:
        """Run scripts of the task that prepare RL and the one that trains, and evaluate both.

        Args:
          result: the policy after RL: FOLDER/best or FOLDER/final of its run.
          arguments: of the script that trains.
        """

        def script(name: str, *words: str) -> None:
            run(["bash", f"tasks/{self.task}/{name}", *words])

        for name in scripts.split():
            script(name)
        print("after SFT:", flush=True)
        script("training/evaluate.sh", f"policy={self.output}/sft", "name=sft")
        script(train, *arguments)
        print("after RL:", flush=True)
        folder, policy = result.split("/")
        saved = setting("logging.save_dir", f"{self.output}/{folder}", *arguments)
        name = os.path.basename(saved)
        script("training/evaluate.sh", f"policy={saved}/{policy}", f"name={name}")


def gpu_count(environment: Mapping[str, str]) -> int:
    """The GPUs to use: those in CUDA_VISIBLE_DEVICES, else those that the driver lists."""
    if shutil.which("nvidia-smi", path=environment.get("PATH")) is None:
        return 0
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        devices = chosen.split(",")
        return 0 if devices[0] in ("", "-1") else len(devices)
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
    return sum(line.startswith("GPU ") for line in listed.splitlines())


def setting(key: str, default: str, *arguments: str) -> str:
    """The value of a key among the arguments; the default if it is not there."""
    start = f"{key}="
    given = [argument.removeprefix(start) for argument in arguments if argument.startswith(start)]
    return (given or [default])[-1]


def main() -> None:
    name, *arguments = sys.argv[1:]
    if name != "launch":  # whose program may have flags
        arguments = as_settings(arguments)
    script = StageScript.of(os.environ)
    match name:
        case "config_for":
            print(script.config(arguments[0]))
        case "needs":
            file, writer, keys, *rest = arguments
            script.needs(file, writer, keys, rest)
        case "setting":
            print(setting(*arguments))
        case "unknown":
            message, given, *known = arguments
            raise UserError(f"{message}; {suggestion(given, known)}")
        case "launch":
            replace_by(script.launched(arguments))
        case "stage" | "evaluate_policy" | "compare_runs":
            replace_by(getattr(script, name)(*arguments))
        case "write_report" | "run_task":
            getattr(script, name)(*arguments)
        case _:
            raise UserError(f"stage scripts have no function `{name}`")


def run(command: Sequence[str]) -> None:
    """Run a command; if it fails, end this program as it ended."""
    sys.stdout.flush()
    ended = subprocess.run(command)
    if ended.returncode:
        sys.exit(ended.returncode)


def replace_by(command: Sequence[str]) -> None:
    """Run a command in place of this program."""
    sys.stdout.flush()
    run_in_fork(command)
    os.execvp(command[0], list(command))


if __name__ == "__main__":
    run_main(main)
