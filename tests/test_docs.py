"""Every path, snippet and command in the documents, and every usage line of a script, is checked.

A command is parsed by the program that it calls, which then stops: unknown keys, wrong values and
missing configs fail. `--help`, `fgrlhf env`, `fgrlhf data` (except for the download of
`fgrlhf data model`) and `fgrlhf new-task` really run.
"""

import argparse
import importlib
import importlib.util
import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import textwrap
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
import tiny
import yaml
from feedback_files import write_feedback_files, write_judgement_files
from pydantic import ValidationError
from stage_scripts import fake_python

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json
from fgrlhf.cli import command_line, data, new_task
from fgrlhf.cli.main import COMMANDS
from fgrlhf.cli.main import main as fgrlhf_main
from fgrlhf.cli.stage_script import DERIVED
from fgrlhf.configs.messages import OTHER_NAMES, other_place
from fgrlhf.configs.schema import paths_of
from fgrlhf.configs.strict import load_config, validate
from fgrlhf.load import load_task
from fgrlhf.pipeline.compare import CompareSettings, runs_of
from fgrlhf.pipeline.experiment_settings import split_arguments
from fgrlhf.pipeline.experiments import Experiment
from fgrlhf.reward import CombinedReward
from fgrlhf.reward_models.prefix import text_prefix
from fgrlhf.rewards.kinds import Length, Score
from fgrlhf.rewards.server import model_sha256
from fgrlhf.runs.dpo_config import DPOConfig
from fgrlhf.runs.rl_config import RLConfig
from fgrlhf.scorers.base import RewardContext
from fgrlhf.task import Task
from fgrlhf.task_config import rl_config
from fgrlhf.text_types import Prompt
from interface_html.row_format import RowFormat
from interface_html.schema import ASSIGNMENT, load_schema
from reward_modeling.run_fg_rm import SegmentRMConfig
from reward_modeling.run_pref_rm import PreferenceRMConfig
from sft.config import SFTConfig

ROOT = Path(__file__).parents[1]
NEEDED = re.compile(r'needs "\$(OUTPUT_DIR|DATA_DIR)/([^"]+)"')  # what `needs` checks
DOCUMENTS = [
    path
    for path in sorted(ROOT.rglob("*.md"))
    if not set(path.relative_to(ROOT).parts) & {".venv", "outputs", "node_modules"}
]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(path: Path, language: str) -> list[str]:
    """The fenced blocks of a language."""
    text = path.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.M | re.S)


def configs_of_the_guide() -> dict[str, str]:
    """The configs of docs/tasks.md: the name that the text gives each of them -> its block."""
    text = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")
    named = re.findall(r"`(\w+\.yml)` is:\n\n```yaml\n(.*?)^```", text, flags=re.M | re.S)
    return dict(named)


# ---- commands ------------------------------------------------------------------------------------

PROGRAM = r"(?:\w+=\S+ )*(?:fgrlhf|bash|python|make|\$X) "
NEW_TASK = "colours"  # the task that docs/tasks.md creates
PLACEHOLDERS = {
    "TASK": "tasks.qa_feedback",
    "NAME": "qa_feedback",
    "DIR": "outputs",
    "<task>": "qa_feedback",
    "<row>": "fine_grained",
}
CONFIGS = {  # the `config.yml` of a command
    "sft": "tasks/qa_feedback/training/mini_sft_config.yml",
    "segment": "tasks/qa_feedback/reward_modeling/mini_rel_rm_config.yml",
    "sequence": "tasks/qa_feedback/reward_modeling/mini_comp_rm_config.yml",
    "rl": "tasks/qa_feedback/training/mini_fine_grained_config.yml",
    "distill": "tasks/qa_feedback/training/mini_fine_grained_config.yml",
    "dpo": "tasks/qa_feedback/training/mini_dpo_config.yml",
}


@dataclass(frozen=True)
class Command:
    """A command line: its words, and the variables that are set before them."""

    words: tuple[str, ...]
    variables: tuple[str, ...] = ()

    @classmethod
    def read(cls, line: str) -> "Command":
        words = shlex.split(line)
        variables = []
        while "=" in words[0]:
            variables.append(words.pop(0))
        return cls(tuple(words), tuple(variables))

    def __str__(self) -> str:
        return " ".join([*self.variables, *self.words])

    @property
    def is_abbreviated(self) -> bool:
        """Whether only some of the arguments are shown, as in `policy=...`."""
        return any(word.endswith("...") for word in self.words)


def commands_of(path: Path) -> list[Command]:
    """The indented command lines and the code spans that call a program.

    Two spaces end an indented command; what follows is a comment.
    """
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    text = re.sub(r" \\\n\s*", " ", text)  # a line that ends in a backslash continues
    scripts = dict(re.findall(r"^ {4}(X)=(\S+)$", text, flags=re.M))
    lines = re.findall(rf"^ {{4}}({PROGRAM}.*)$", text, flags=re.M)
    lines = [line.partition("  ")[0] for line in lines]
    lines += re.findall(rf"`({PROGRAM}[^`]+)`", text)
    if scripts:
        lines = [line.replace("$X", f"bash {scripts['X']}") for line in lines]
    return [Command.read(line) for line in dict.fromkeys(lines)]


class Parsed(BaseException):
    """The arguments of a program are valid; raised in place of its work."""


class Programs:
    """Runs the programs of the documents; they stop when their arguments are parsed.

    Args:
      monkeypatch: of the test.
      folder: an empty folder, in which programs really run.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path):
        self.monkeypatch = monkeypatch
        self.folder = folder
        monkeypatch.chdir(ROOT)
        monkeypatch.setenv("OUTPUT_DIR", "outputs")
        monkeypatch.setenv("DATA_DIR", "outputs/data")
        monkeypatch.setenv("FGRLHF_SMALL_MODEL", "outputs/models/smollm2")

    def run(self, command: Command) -> None:
        program, *arguments = map(os.path.expandvars, command.words)  # as a shell
        if program == "fgrlhf":
            self.run_fgrlhf(arguments, command.is_abbreviated)
        elif program == "bash":
            self.run_script(arguments, command.variables)
        elif program == "make":
            self.run_make(arguments)
        elif arguments[:2] == ["-m", "fgrlhf.cli.torchrun"]:  # as scripts call it
            first = arguments.index("-m", 2)
            self.run_module(arguments[first + 1], arguments[first + 2 :])
        elif arguments[0] == "-m":
            self.run_module(arguments[1], arguments[2:])
        elif arguments[0].endswith(".py"):
            assert (ROOT / arguments[0]).is_file()
        else:
            assert arguments[0] == "-c"
            compile(arguments[1], "a document", "exec")

    def run_fgrlhf(self, arguments: list[str], is_abbreviated: bool) -> None:
        name, *rest = [PLACEHOLDERS.get(word, word) for word in arguments]
        if name == "COMMAND":
            for command in COMMANDS:
                self.run_fgrlhf([command, *rest], is_abbreviated)
            return
        assert name in COMMANDS
        if name == "launch" and rest != ["--help"]:
            # the options of the launcher come before the command
            first = next(i for i, word in enumerate(rest) if word in COMMANDS)
            self.run_fgrlhf(rest[first:], is_abbreviated)
            return
        config = CONFIGS.get(rest[0] if name == "rm" and rest else name, "")
        rest = [config if word == "config.yml" else word for word in rest]
        with self.monkeypatch.context() as patch:
            patch.setattr("sys.argv", ["fgrlhf", name, *rest])
            if {NEW_TASK, f"task={NEW_TASK}"} & set(rest) and name != "new-task":
                patch.chdir(self.folder_of_the_guide())
            if "game.yml" in rest:
                patch.chdir(self.working_folder())
            if name == "env" or (rest and name in ("data", "new-task")):
                patch.chdir(self.working_folder())
                if rest[:1] in (["model"], ["convert-config"]):
                    self.stop_before_reading(patch)
                self.call(fgrlhf_main)
            elif rest:  # `fgrlhf compare` alone is a reference to the command
                self.stop_after_parsing(patch, is_abbreviated)
                self.call(fgrlhf_main)
        if name in ("compare", "sweep") and rest and rest != ["--help"]:
            check_configs(name, rest)

    def run_module(self, name: str, arguments: list[str]) -> None:
        if name.partition(".")[0] not in [path.name for path in ROOT.iterdir()]:
            return  # of another package, such as pytest; an extra may not be installed
        spec = importlib.util.find_spec(name)
        assert spec is not None, f"there is no module {name}"
        if name == "fgrlhf.pipeline.compare":
            check_configs("compare", arguments)
        module = importlib.import_module(
            f"{name}.__main__" if spec.submodule_search_locations else name
        )
        main = getattr(module, "main", None)
        with self.monkeypatch.context() as patch:
            patch.setattr("sys.argv", [name, *arguments])
            patch.setattr("signal.signal", lambda *_: None)
            self.stop_after_parsing(patch)
            if main is None or _has_required_parameter(main):
                settings = _settings_of(module)
                self.call(lambda: command_line.settings_from(settings))
            else:
                self.call(main)

    def run_script(self, arguments: list[str], variables: tuple[str, ...]) -> None:
        """Run a stage script with programs that only record their arguments, then parse these."""
        script, *rest = [PLACEHOLDERS.get(word, word) for word in arguments]
        if script == "path/to/scripts/hf_job.sh":  # called elsewhere, with a command
            assert (ROOT / "scripts" / "hf_job.sh").is_file()
            self.run(Command(tuple(rest)))
            return
        root = ROOT
        if script.startswith(f"tasks/{NEW_TASK}/"):
            root = self.folder_of_the_guide()
        programs = self.folder / "bin"
        programs.mkdir()
        record = self.folder / "record"
        record_call = 'printf "%s\\0" "$OUTPUT_DIR" "$DATA_DIR" "$@" >>"$RECORD"; echo >>"$RECORD"'
        fake_python(programs, record_call)
        environment = {
            "PATH": f"{programs}:/usr/bin:/bin",
            "VIRTUAL_ENV": "/some/environment",
            "RECORD": str(record),
            **dict(variable.split("=", 1) for variable in variables),
            **self.inputs(),
        }
        done = subprocess.run(
            ["bash", script, *rest], cwd=root, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert (root / script).stat().st_mode & 0o100, f"{script} is not executable"
        self.monkeypatch.chdir(root)
        calls = record.read_text().split("\0\n")[:-1]
        assert calls
        for call in calls:
            output_dir, data_dir, *words = call.split("\0")
            self.monkeypatch.setenv("OUTPUT_DIR", output_dir)
            self.monkeypatch.setenv("DATA_DIR", data_dir)
            self.run(Command(("python", *words)))

    def inputs(self) -> dict[str, str]:
        """Folders with every file that a stage script needs from an earlier one, as variables."""
        folders = {name: self.folder / name for name in ("OUTPUT_DIR", "DATA_DIR")}
        (folders["OUTPUT_DIR"] / "eval").mkdir(parents=True)  # `write_report` needs it
        for script in [*ROOT.glob("tasks/**/*.sh"), *ROOT.glob("scripts/*.sh")]:
            text = script.read_text(encoding="utf-8")
            for variable, name in NEEDED.findall(text):
                (folders[variable] / name).mkdir(parents=True, exist_ok=True)
            for word in " ".join(re.findall(r'"([^"$]*)"', text)).split():
                name = re.sub("^[a-z]+:|[@=].*", "", word)  # of `stage` and others
                if re.fullmatch(r"[\w/-]+(\.jsonl?)?", name) and not name.startswith("/"):
                    is_data = "." in name and not name.startswith(DERIVED)
                    folder = folders["DATA_DIR" if is_data else "OUTPUT_DIR"]
                    (folder / name).mkdir(parents=True, exist_ok=True)
        model = self.folder / "FGRLHF_SMALL_MODEL"
        model.mkdir()
        return {name: str(path) for name, path in {**folders, model.name: model}.items()}

    def run_make(self, arguments: list[str]) -> None:
        """Parse the Python commands that `make` would run."""
        arguments = [argument.replace("NAME", PLACEHOLDERS["NAME"]) for argument in arguments]
        # without the variables of a `make` that runs this
        settings = {"cwd": ROOT, "env": {"PATH": os.environ["PATH"]}, "text": True}
        done = subprocess.run(["make", "--dry-run", *arguments], capture_output=True, **settings)
        assert done.returncode == 0, done.stderr
        for line in re.findall(r" python (-m [^;\n]*)", done.stdout):
            _, module, *rest = shlex.split(line)
            self.run_module(module, rest)

    # ---- helpers ---------------------------------------------------------------------------------

    def call(self, main) -> None:
        try:
            main()
        except Parsed:
            pass
        except SystemExit as stop:
            assert stop.code in (0, None)

    def stop_after_parsing(self, patch: pytest.MonkeyPatch, is_abbreviated: bool = False) -> None:
        """Let the functions that parse command lines raise `Parsed` when they are done.

        An abbreviated command may lack required keys.
        """

        def validate_and_stop(model, tree, source, secrets=(), way_to_add=None):
            try:
                model.model_validate(tree)
            except ValidationError as error:
                kinds = {problem["type"] for problem in error.errors()}
                if not (is_abbreviated and kinds == {"missing"}):
                    validate(model, tree, source, secrets, way_to_add)
            raise Parsed

        def parse_and_stop(parser):
            parse_arguments(parser)
            raise Parsed

        def stop(*_):
            raise Parsed

        parse_arguments = argparse.ArgumentParser.parse_args
        patch.setattr("fgrlhf.configs.strict.validate", validate_and_stop)
        patch.setattr("fgrlhf.report.page.write_report", stop)
        patch.setattr("fgrlhf.report.browse.write_samples", stop)
        patch.setattr("argparse.ArgumentParser.parse_args", parse_and_stop)

    def stop_before_reading(self, patch: pytest.MonkeyPatch) -> None:
        def stop(*_):
            raise Parsed

        patch.setattr("fgrlhf.data.model.fetch_model", stop)
        patch.setattr("fgrlhf.data.convert_model.convert_model", stop)
        patch.setattr("fgrlhf.data.gguf_model.convert_gguf", stop)
        patch.setattr("fgrlhf.cli.data_convert_config.read_yaml", stop)

    def working_folder(self) -> Path:
        """A repository with a new task, files of rows, and feedback."""
        root = self.folder / "repository"
        if root.exists():
            return root
        (root / "tasks").mkdir(parents=True)
        (root / "tasks" / "__init__.py").touch()
        shutil.copytree(ROOT / "scripts", root / "scripts")
        row = '{"prompt": "Name a prime.", "chosen": "7", "rejected": "8"}\n'
        for name in ("rows.jsonl", "pairs.jsonl"):
            (root / name).write_text(row)
        steps = '{"prompt": "Name a prime.", "steps": [{"text": "7", "score": 1}]}\n'
        (root / "steps.jsonl").write_text(steps)
        spans = '{"response": "7 and 8", "spans": [{"start": 6, "end": 7, "label": "wrong"}]}\n'
        (root / "spans.jsonl").write_text(spans)
        unpaired = '{"prompt": "Name a prime.", "completion": "7", "label": true}\n'
        unpaired += '{"prompt": "Name a prime.", "completion": "8", "label": false}\n'
        (root / "unpaired.jsonl").write_text(unpaired)
        (root / "game.yml").write_text(*blocks(ROOT / "docs" / "environments.md", "yaml"))
        write_feedback_files(root)
        write_judgement_files(root)
        return root

    def folder_of_the_guide(self) -> Path:
        """The working folder with the task of docs/tasks.md and the configs that it adds."""
        root = self.working_folder()
        task = new_task.write_task(NEW_TASK, root / "tasks")
        for name, text in configs_of_the_guide().items():
            (task / name).write_text(text)
        self.monkeypatch.setattr("tasks.__path__", [str(root / "tasks")])
        return root


def _settings_of(module):
    """The class of a program's settings, which it defines itself."""
    return next(
        value
        for name, value in vars(module).items()
        if name.endswith("Settings") and value.__module__ == module.__name__
    )


def _has_required_parameter(function) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return any(parameter.default is parameter.empty for parameter in parameters)


def check_configs(command: str, arguments: list[str]) -> None:
    """The configs of `fgrlhf compare` and `fgrlhf sweep` accept each value of each override."""
    parsed = split_arguments(arguments, "")
    if command == "compare":
        settings = command_line.settings_from(CompareSettings, parsed.settings)
        experiment = Experiment(parsed.task, settings.folder)
        for run in runs_of(experiment, parsed.configs, parsed.overrides, settings):
            experiment.config_of(run, seed=0)
        return
    model = rl_config(load_task(parsed.task))
    for config in parsed.configs:
        load_config(model, config)
        for override in parsed.overrides:
            key, _, values = override.partition("=")
            for value in values.split(","):
                load_config(model, config, [f"{key}={value}"])


COMMANDS_OF_DOCUMENTS = [
    pytest.param(command, id=f"{name_of(path)}: {command}")
    for path in DOCUMENTS
    for command in commands_of(path)
]


USAGE_PLACEHOLDERS = {
    "NAME": "fine_grained",
    "STAGE": "sft",
    "TASK=NAME": "TASK=qa_feedback",
    "base_url=https://": "base_url=https://example.org",
}


def usage_lines(script: Path) -> list[Command]:
    """The commands in the first comments of a script, with everything that is optional.

    They are indented lines that call a script, without a path for the script itself, and the
    arguments after `e.g.` or `such as`. A comment of a command begins after three spaces.
    """
    own = f"bash {name_of(script)}"
    lines = []
    for text in re.findall(r"^# ?(.*)$", script.read_text(encoding="utf-8"), re.M):
        if found := re.fullmatch(
            rf" {{2,}}((?:\w+=\S+ )*)(bash \S+|{script.name})(?= |$)(.*)", text
        ):
            variables, called, rest = found.groups()
            arguments = rest.partition("   ")[0]
            called = own if called == script.name else called
            lines.append(f"{variables}{called} {arguments}")
        elif found := re.search(r"(?:e\.g\.|such as) ((?:[\w.]+=[^\s,;]+ ?)+)", text):
            lines.append(f"{own} {found[1].rstrip('. ')}")
    commands = []
    for line in lines:
        line = re.sub(r"\[|\]|(?<= )\.\.\.|key=value|\S+=\S*\.\.\.", "", line)
        command = Command.read(line.replace("$OUTPUT_DIR", "outputs").replace("$TASK", "imdb"))
        words = [USAGE_PLACEHOLDERS.get(word, word) for word in command.words]
        variables = [USAGE_PLACEHOLDERS.get(word, word) for word in command.variables]
        scale = "small" if "sentiment" in script.parts else "mini"
        commands.append(Command(tuple(words), (f"SCALE={scale}", *variables)))
    return commands


SCRIPTS = [
    path for path in sorted(ROOT.rglob("*.sh")) if name_of(path).startswith(("tasks", "inter"))
]
USAGE_LINES = [
    pytest.param(command, id=f"{name_of(path)}: {command}")
    for path in SCRIPTS
    for command in usage_lines(path)
]


@pytest.mark.parametrize("command", USAGE_LINES)
def test_a_usage_line_is_accepted_by_its_script(command, monkeypatch, tmp_path, capsys):
    Programs(monkeypatch, tmp_path).run(command)


def test_usage_lines_are_found():
    lines = [str(parameter.values[0]) for parameter in USAGE_LINES]
    compare = "SCALE=mini bash tasks/hh_rlhf/training/compare.sh"
    assert f"{compare} seeds=0,1,2 metric=oracle/quality train.total_episodes=1920" in lines
    assert len(lines) > 25


def test_commands_are_found():
    programs = [parameter.values[0].words[0] for parameter in COMMANDS_OF_DOCUMENTS]
    assert {"fgrlhf", "bash", "make", "python"} == set(programs)
    assert len(programs) > 60


@pytest.mark.parametrize("command", COMMANDS_OF_DOCUMENTS)
def test_a_command_is_accepted_by_its_program(command, monkeypatch, tmp_path, capsys):
    Programs(monkeypatch, tmp_path).run(command)


@pytest.mark.parametrize(
    "line, message",
    [
        ("fgrlhf generate TASK polcy=... output_dir=...", "polcy"),
        ("fgrlhf rl TASK config.yml train.lrr=1", "lrr"),
        ("fgrlhf sweep tasks.hanoi no.yml train.lr=1,2 output_dir=out", "no.yml"),
        ("python -m tasks.experiments science sedes=1", "sedes"),
        ("SCALE=mini bash tasks/qa_feedback/training/train_dpo.sh dpo.betta=1", "betta"),
        (
            "SCALE=mini bash tasks/detoxification/reward_modeling/train_score_rm.sh",
            "mini_score_rm_config.yml",
        ),
        ('make faults ARGS="kindz=rows"', "kindz"),
    ],
)
def test_a_wrong_command_is_found(line, message, monkeypatch, tmp_path):
    with pytest.raises(UserError, match=message):
        Programs(monkeypatch, tmp_path).run(Command.read(line))


# ---- paths and snippets --------------------------------------------------------------------------


def test_fenced_commands_of_data_are_accepted(monkeypatch, tmp_path):
    """They are about the reader's own files: all that may be wrong is that these do not exist."""
    monkeypatch.chdir(tmp_path)
    lines = []
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        for block in re.findall(r"^```[^\n]*\n(.*?)^```", text, flags=re.M | re.S):
            lines += re.findall(r"^fgrlhf data (.*)$", block, flags=re.M)
    assert len(lines) > 10
    for line in lines:
        with pytest.raises(UserError, match=r"does not exist|is not a folder"):
            data.main(shlex.split(line))


def test_the_reward_of_the_guide_runs():
    reward, task = blocks(ROOT / "docs" / "tasks.md", "python")
    names = {"Task": Task, "make_prompts": lambda split, seed: []}
    names["share_sorted"] = lambda prompt, text: {}
    exec(reward + task, names)
    section = blocks(ROOT / "docs" / "tasks.md", "yaml")[0]
    tree = {"model": {"ckpt": "p", "value_model": {"ckpt": "p"}}, "logging": {"save_dir": "out"}}
    tree |= yaml.safe_load(section)
    config = validate(rl_config(names["TASK"]), tree, "docs/tasks.md")
    built = config.reward["order"].build(RewardContext(prefix=lambda prompt, with_context: []))
    (scores,) = built.segment_scores([Prompt("0", "")], ["a c b"])
    assert [score.value for score in scores] == [0.5, 0.5, -0.5]


def test_the_configs_of_the_guide_are_valid(tmp_path, monkeypatch):
    monkeypatch.setenv("OUTPUT_DIR", "o")
    monkeypatch.setenv("DATA_DIR", "d")
    texts = configs_of_the_guide()
    _, *configs = blocks(ROOT / "docs" / "tasks.md", "yaml")
    assert list(texts.values()) == configs
    classes = {
        "mini_sft_config.yml": SFTConfig,
        "mini_error_rm_config.yml": SegmentRMConfig,
        "mini_preference_rm_config.yml": PreferenceRMConfig,
        "mini_dpo_config.yml": DPOConfig,
    }
    assert texts.keys() == classes.keys()
    for name, text in texts.items():
        path = tmp_path / name
        path.write_text(text)
        load_config(classes[name], str(path))


def test_the_python_reward_of_the_document_runs():
    function, code, _ = blocks(ROOT / "docs" / "rewards.md", "python")
    names: dict = {}
    exec(function + code, names)
    assert names["repeats"]("No.", "No. Yes.", "", penalty=-0.5) == -0.5
    reward = CombinedReward({"mine": names["Politeness"](threshold=0.7)})
    scores = reward.segment_scores([Prompt("0", "")] * 2, ["Sit, please.", "Sit."])["mine"]
    assert [(score.start, score.end) for score in scores[0]] == [(5, 11)]
    assert scores[0][0].value == pytest.approx(0.3) and scores[1] == []


class PolitenessService(BaseHTTPRequestHandler):
    """Scores a text by its length; the first query fails."""

    asked: ClassVar[list[str]] = []

    def do_POST(self):
        text = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"]
        self.asked.append(text)
        body = json.dumps({"score": len(text)} if len(self.asked) > 1 else {"busy": True}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def test_the_reward_from_a_service_runs(tmp_path, monkeypatch):
    document = ROOT / "docs" / "own_reward_service.md"
    (code,), (text,) = blocks(document, "python"), blocks(document, "yaml")
    assert len([line for line in code.splitlines() if line.strip()]) <= 25
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "politeness.py").write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    asked = PolitenessService.asked
    asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), PolitenessService) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        tree = yaml.safe_load(text.replace("https://scores.example.com", url))
        section = tree["reward"]["polite"]
        reward = validate(Score, section, document.name).build(RewardContext(text_prefix))
        assert reward.remote
        waits: list[float] = []
        reward.scorer.service._pause = waits.append
        texts = ["Ah. Please sit.", "Ah."]
        (two, one) = reward.segment_scores([Prompt("0", "")] * 2, texts)
        server.shutdown()
    assert [(score.end, score.value) for score in two] == [(3, 1.5), (15, 5.5)]
    assert [score.value for score in one] == [1.5] and waits == [1.0]
    # the server is gone, but the file has its answers
    again = validate(Score, section, document.name).build(RewardContext(text_prefix))
    assert again.segment_scores([Prompt("0", "")] * 2, texts) == [two, one]
    assert sorted(asked) in (["Ah.", "Ah.", "Please sit."], ["Ah.", "Please sit.", "Please sit."])


def test_the_hash_of_the_served_reward_is_that_of_the_document():
    text = (ROOT / "docs" / "rewards.md").read_text(encoding="utf-8")
    (digest,) = re.findall(r"model_sha256: ([0-9a-f]{64})", text)
    assert "kind=length value=-0.1 max_words=4" in text
    assert digest == model_sha256(Length(value=-0.1, max_words=4), "fp32")


def test_a_trained_policy_is_used_as_the_document_says(monkeypatch, tmp_path, capsys):
    (code,) = blocks(ROOT / "docs" / "runs.md", "python")
    (folder,) = re.findall(r'folder = "(.+)"', code)
    monkeypatch.chdir(tmp_path)
    tiny.policy("t5").save(folder)
    write_json(Path("outputs/qa_feedback/mini/data/dev.json"), [{"text": "question: Who?"}])
    exec(code, {})
    assert len(capsys.readouterr().out.strip().split("\n")) == 1


def test_the_config_with_a_base_is_valid(tmp_path, monkeypatch):
    """The example of docs/runs.md, in a folder beside `tasks`."""
    text = (ROOT / "docs" / "runs.md").read_text(encoding="utf-8")
    example = re.search(r"^    base: (?:.*\n)(?:    .*\n)+", text, flags=re.M)
    for name in ("OUTPUT_DIR", "DATA_DIR"):
        monkeypatch.setenv(name, "outputs")
    (tmp_path / "tasks").symlink_to(ROOT / "tasks")
    (tmp_path / "mine").mkdir()
    path = tmp_path / "mine" / "config.yml"
    path.write_text(textwrap.dedent(example[0]), encoding="utf-8")
    config = load_config(rl_config(load_task("qa_feedback")), path)
    assert (config.train.lr, config.train.seed, config.algorithm.name) == (1e-4, 1, "ppo")


def test_the_yaml_of_the_rewards_is_valid():
    (block,) = blocks(ROOT / "docs" / "rewards.md", "yaml")
    tree = {"model": {"ckpt": "p", "value_model": {"ckpt": "p"}}, "logging": {"save_dir": "out"}}
    config = validate(rl_config(Task("any")), tree | yaml.safe_load(block), "docs/rewards.md")
    assert len(config.reward) == 6


def test_the_schema_of_the_feedback_guide_is_complete(tmp_path):
    """It takes samples with two responses, and only the severities can be left out."""
    (block,) = blocks(ROOT / "interface_html" / "README.md", "js")
    path = tmp_path / "schema.js"
    path.write_text(block, encoding="utf-8")
    schema = load_schema(path)
    assert schema.pages == ("annotation", "comparison")
    sample = {"prompt": "p", "responses": ["a", "b"]}
    item = RowFormat().item_row(schema, sample, "")
    assert item == {"prompt": "p", "poem 1": "a", "poem 2": "b"} and tuple(item) == schema.row
    tree = json.loads(block.partition("=")[2].strip().removesuffix(";"))
    for key in tree.keys() - {"severities"}:
        rest = {name: value for name, value in tree.items() if name != key}
        path.write_text(f"{ASSIGNMENT} {json.dumps(rest)};", encoding="utf-8")
        with pytest.raises(UserError, match=rf"{key}(\.\w+)?: missing; add it to .*schema.js"):
            load_schema(path)


def test_relative_links_lead_somewhere():
    broken = [
        f"{path.relative_to(ROOT)}: {target}"
        for path in DOCUMENTS
        for target in re.findall(r"\]\(([^)#:\s]+)[^):]*\)", path.read_text(encoding="utf-8"))
        if not (path.parent / target).exists()
    ]
    assert not broken


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_files_named_in_a_document_exist(path):
    folders = "fgrlhf|sft|reward_modeling|interface_html|tasks|scripts|docs"
    text = path.read_text(encoding="utf-8")
    named = set(re.findall(rf"`((?:{folders})/[\w./-]+\.\w+)`", text))
    # relative to the repository, to the document, or, in a guide, to a task's folder
    places = (ROOT, path.parent, ROOT / "tasks" / "qa_feedback")
    missing = [name for name in sorted(named) if not any((at / name).exists() for at in places)]
    assert missing == []


def test_make_targets_named_in_the_documents_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, flags=re.M))
    text = "\n".join(path.read_text(encoding="utf-8") for path in DOCUMENTS)
    named = set(re.findall(r"(?:^ {4}|`)make ([a-z-]+)", text, flags=re.M))
    assert {"demo", "test", "setup"} <= named <= targets


KEY = re.compile(r"`((?:model|train|env|algorithm|sampler|data|logging|evaluation|dpo)\.[a-z_.]+)")


def test_the_keys_that_newcomers_are_told_exist():
    keys = set()
    for config in (RLConfig, DPOConfig, SFTConfig, SegmentRMConfig, PreferenceRMConfig):
        keys |= set(paths_of(config))
    named = KEY.findall((ROOT / "docs" / "coming_from.md").read_text(encoding="utf-8"))
    assert len(named) > 60
    assert {key for key in named if key not in keys} == set()


TRL = re.compile(r"`([a-z_]+)`")


@pytest.mark.parametrize("config", [RLConfig, DPOConfig, SFTConfig, PreferenceRMConfig])
def test_the_names_of_trl_lead_to_the_keys_that_the_document_names(config):
    """A key of TRL that is typed here is answered with the key of the document's table."""
    text = (ROOT / "docs" / "coming_from.md").read_text(encoding="utf-8")
    table = text[text.index("## TRL: `GRPOConfig`") : text.index("## RL4LMs")]
    keys = set(paths_of(config))
    answered = 0
    for row in re.findall(r"^\| (.*) \| (.*) \|$", table, flags=re.M):
        named = [key for key in KEY.findall(row[1]) if key in keys and " x " not in row[0]]
        named += [key.rpartition(".")[0] for key in named]  # the section of several
        for name in TRL.findall(row[0]):
            hint = other_place(config, name)
            if name in OTHER_NAMES and hint is not None and named:
                answered += 1
                assert any(f"`{key}`" in hint for key in named), (name, hint, named)
    assert answered > 3
