"""`key=value` settings of the small tools."""

import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from pydantic import Field

from fgrlhf.algorithms import registry
from fgrlhf.base.errors import UserError
from fgrlhf.base.program import as_settings
from fgrlhf.cli import completion, env, rl
from fgrlhf.cli import main as command
from fgrlhf.cli.command_line import settings_from, task_and_rest
from fgrlhf.cli.main import ALGORITHMS, COMMANDS, usage
from fgrlhf.configs.strict import StrictModel
from fgrlhf.task import NO_TASK

ROOT = Path(__file__).parents[1]


class Settings(StrictModel):
    folder: str = "x"
    name: str | None = "x"
    seeds: str = "0,1"
    count: int = 1
    share: float | None = None
    redo: bool = False


@pytest.mark.parametrize("text", ["a #b", "k: v", "a\nb", "${HOME}", "x=y", "[1]", "12", "", "'q'"])
def test_text_is_taken_literally(text):
    settings = settings_from(Settings, [f"folder={text}", f"name={text}"])
    assert settings.folder == settings.name == text


def test_other_values_are_read_by_their_type():
    settings = settings_from(
        Settings, ["seeds=3", "name=null", "count=12", "share=1e-3", "redo=true"]
    )
    assert (settings.seeds, settings.name, settings.count, settings.share, settings.redo) == (
        "3",
        None,
        12,
        1e-3,
        True,
    )


@pytest.mark.parametrize(
    "argument",
    [
        "count=1:30",
        "count=3.0",
        "count='3'",
        "redo=1",
        "share=[1]",
        "count=&a [*a]",
        "count=" + "9" * 5000,
    ],
)
def test_other_forms_are_refused(argument):
    message = f"the command line has 1 mistake:\n  {argument.split('=')[0]}: "
    with pytest.raises(UserError, match=message):
        settings_from(Settings, [argument])


class Scorer(StrictModel):
    beams: int = 4


class WithSections(StrictModel):
    search: Scorer | None = None
    columns: dict[str, str] = {}
    out: str | None = Field(default=None, alias="to")


def test_a_dot_selects_a_key_of_a_section():
    settings = settings_from(
        WithSections, ["search.beams=8", "columns.prompt=a.b", "columns.text=3", "to=x.json"]
    )
    assert settings.search == Scorer(beams=8)
    assert settings.columns == {"prompt": "a.b", "text": "3"}
    assert settings.out == "x.json"


@pytest.mark.parametrize("argument", ["count", "", "=3", "-count"])
def test_an_argument_that_is_not_a_setting(argument):
    with pytest.raises(UserError, match="is not a setting: write it as key=value"):
        settings_from(Settings, [argument])


@pytest.mark.parametrize("name", ["tasks.words.data", "tasks.words.data.__main__"])
def test_the_usage_of_a_module_names_it(name, monkeypatch, capsys):
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", ModuleSpec(name, None))
    with pytest.raises(SystemExit):
        settings_from(Settings, ["--help"])
    assert capsys.readouterr().out.startswith("usage: python -m tasks.words.data [key=value ...]\n")


COMPLETED = {
    "sft tasks.qa": ["tasks.qa_feedback"],
    "rm segment tasks.qa": ["tasks.qa_feedback"],
    "feedback serve tasks.qa": ["tasks.qa_feedback"],
    "compl": ["completion"],
    "data conv": ["convert", "convert-config"],
    "rl tasks.qa_feedback tasks/qa_feedback/training/mini_dpo_config.yml train.ep": [
        "train.epochs="
    ],
}


@pytest.mark.parametrize("line", COMPLETED)
def test_completion_in_bash(line, capsys):
    completion.main(["bash"])
    script = capsys.readouterr().out
    complete = """
        COMP_WORDS=(fgrlhf "$@")
        COMP_CWORD=$#
        _fgrlhf 2>/dev/null  # compopt works only during a completion
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    command = ["bash", "-c", script + complete, "bash", *line.split()]
    found = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert found.stdout.split() == COMPLETED[line]


def test_a_mistaken_key_of_env_is_answered_with_the_key_as_it_is_written():
    with pytest.raises(UserError, match="jsn: unknown key; did you mean `json`"):
        settings_from(env.EnvSettings, ["jsn=true"])


@pytest.mark.parametrize(
    ("typed", "settings"),
    [
        (["--train.lr", "1", "c.yml"], ["train.lr=1", "c.yml"]),
        (["--train.lr=1", "a=b"], ["train.lr=1", "a=b"]),
        (["--quiet", "--n", "-1"], ["quiet=true", "n=-1"]),
        (["--last"], ["last=true"]),
        (["--text=a=b"], ["text=a=b"]),
        (["--help"], ["--help"]),
        (["-h", "--", "x"], ["-h", "--", "x"]),
    ],
)
def test_flags_are_settings(typed, settings):
    assert as_settings(typed) == settings
    assert as_settings(settings) == settings


def test_the_first_argument_may_be_a_task(tmp_path, monkeypatch):
    usage = "usage: fgrlhf rl [TASK] [config.yml]"
    monkeypatch.chdir(tmp_path)
    for name in ("config", "a=b"):  # files
        (tmp_path / name).write_text("{}")
    for first in ("c.yml", "config", "a=b", "train.lr=1", "--help"):
        assert task_and_rest([first, "seed=1"], usage) == (NO_TASK, [first, "seed=1"])
    assert task_and_rest(["--train.lr", "1"], usage) == (NO_TASK, ["train.lr=1"])
    monkeypatch.undo()
    task, rest = task_and_rest(["tasks.qa_feedback", "c.yml", "--train.lr", "1"], usage)
    assert task.name == "qa_feedback" and rest == ["c.yml", "train.lr=1"]
    with pytest.raises(UserError, match="there is no task `tasks.nothing`"):
        task_and_rest(["tasks.nothing", "c.yml"], usage)
    with pytest.raises(UserError, match="the task is missing: it comes before `seed=1`"):
        task_and_rest(["seed=1"], "usage: fgrlhf prompts TASK data_dir=...")


def test_a_config_file_is_not_needed():
    with pytest.raises(
        UserError, match=r"model\.ckpt: missing; give model\.ckpt=\.\.\. on the command line"
    ):
        rl.main(["numbers", "--train.lr", "1"])
    with pytest.raises(UserError, match="use_vllm"):
        rl.main(["--use_vllm"])
    with pytest.raises(UserError, match="`c.yml` comes after settings: a config file comes before"):
        rl.main(["numbers", "--train.lr", "1", "c.yml"])


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("grpo", "it is an algorithm: fgrlhf rl TASK config.yml algorithm.name=grpo"),
        ("PPO", "algorithm.name=ppo"),
        ("train", "write `fgrlhf sft`, `fgrlhf rm`, `fgrlhf rl`"),
        ("--version", "`fgrlhf env` prints the versions"),
        ("evaluat", "did you mean `evaluate`"),
    ],
)
def test_what_to_type_for_other_words(typed, answer, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["fgrlhf", typed, "config.yml"])
    with pytest.raises(UserError, match=answer):
        command.main()


def test_help_of_a_command(monkeypatch, capsys):
    for typed, answer in (
        ("help", "usage: fgrlhf COMMAND"),
        ("help rl", "usage: fgrlhf rl [TASK]"),
    ):
        monkeypatch.setattr(sys, "argv", ["fgrlhf", *typed.split()])
        with pytest.raises(SystemExit) as ended:
            command.main()
        assert ended.value.code == 0
        assert capsys.readouterr().out.startswith(answer)


def test_the_algorithms_that_are_no_commands():
    known = {*registry.ALGORITHMS, *registry.WITH_TEACHER}
    assert sorted(ALGORITHMS) == sorted(known - {"distill"})  # that is one


def test_an_argument_in_another_encoding_is_refused():
    program = [sys.executable, "-m", "fgrlhf", "env", b"json=\xe9"]
    ended = subprocess.run(program, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: the argument json=\\udce9 is not valid text: its bytes")


def test_the_list_of_commands_is_a_table():
    lines = [line for line in usage().splitlines() if line.startswith("  ")]
    descriptions = {line[49:] for line in lines}
    assert len(lines) == len(COMMANDS)
    assert descriptions == {description for _, _, description in COMMANDS.values()}
