"""No feedback program replaces one of its inputs, by whatever name, or a database."""

import importlib
import os

import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.cli.data_exchange import ExportSettings, export_file
from fgrlhf.data.read import SQLITE_HEADER
from interface_html.command import PROGRAMS
from interface_html.command import main as feedback
from interface_html.outputs import OutputSettings
from tasks.translation.reward_modeling.evaluate_spans import EvaluateSpansSettings, evaluate

CONTENT = b'[{"prompt": "Say hello."}]'
# program, its further settings; `X` is the file that is also the output
COMBINATIONS = [
    "export db=X",
    "export db=other policy=majority weights=X",
    "export db=other policy=adjudicated adjudicated=X",
    "submissions db=X",
    "submissions db=X format=judgements",
    "agreement db=X",
    "agreement files=a.json,X",
    "agreement files=a.json,b.json records=a_record.json,X",
    "reliability db=X",
    "reliability db=other gold=X",
    "adjudicate db=X",
    "anchoring db=X",
    "anchoring items=X files=a.json",
    "anchoring items=i.json files=X",
    "merge files=a.json,X",
    "items source=X",
    "items source=s.json prompts=X",
    "items source=a.json,X blind=true",
    "pages items=X",
    "pages items=i.json prompts=X",
    "select source=X n=1 by=random",
    "select source=s.json n=1 by=drift done=a.json,X",
    "suggest source=X models=rm",
    "suggest source=s.json judgements=X",
]


def refused(command: str, name: str, out: str) -> str:
    """The message of a program that is to refuse its output."""
    program, *settings = command.replace("X", name).split()
    with pytest.raises(UserError) as caught:
        feedback([program, "qa_feedback", *settings, f"out={out}"])
    return str(caught.value)


@pytest.mark.parametrize("command", COMBINATIONS)
def test_the_output_is_not_an_input(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study").write_bytes(CONTENT)
    assert "study is the input, so it cannot be the output" in refused(command, "study", "./study")
    assert (tmp_path / "study").read_bytes() == CONTENT
    assert os.listdir(tmp_path) == ["study"]


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_link_to_an_input(link, tmp_path):
    source, other = tmp_path / "s.json", tmp_path / "o.json"
    source.write_bytes(CONTENT)
    link(source, other)
    assert "is the input" in refused("items source=X", str(source), str(other))


@pytest.mark.parametrize(
    ("command", "suffix"),
    [
        ("merge files=a.json,X", ".rounds.json"),
        ("select source=X n=1 by=random", ".selection.json"),
        ("export db=other policy=majority weights=X", ".record.json"),
    ],
)
def test_a_file_beside_the_output_is_not_an_input(command, suffix, tmp_path):
    out = str(tmp_path / "out.json")
    (tmp_path / f"out.json{suffix}").write_bytes(CONTENT)
    message = refused(command, out + suffix, out)
    assert f"out.json{suffix} is the input, but may be written beside" in message


def test_a_labelling_configuration_and_judged_translations_are_not_replaced(tmp_path):
    study, rows = str(tmp_path / "study.json"), str(tmp_path / "rows.json")
    (tmp_path / "study.json").write_bytes(CONTENT)
    with pytest.raises(UserError, match=r"study\.json is the input"):
        export_file(rows, study, ExportSettings(to="label_studio", project=study))
    with pytest.raises(UserError, match=r"study\.json is the input"):
        evaluate(EvaluateSpansSettings(ckpt="rm", source=study, output=study))
    assert (tmp_path / "study.json").read_bytes() == CONTENT


@pytest.mark.parametrize("dev", ["new.jsonl", "./new.jsonl"])
def test_two_outputs_are_two_files(dev, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"new\.jsonl cannot be both outputs"):
        export_file("rows.jsonl", "new.jsonl", ExportSettings(to="spans", dev=dev))


def test_another_database_is_not_replaced(tmp_path):
    database = tmp_path / "older.sqlite"
    database.write_bytes(SQLITE_HEADER + b"all that was submitted")
    message = refused("submissions db=X", str(tmp_path / "new.sqlite"), str(database))
    assert "is a database, perhaps of a study" in message
    assert database.read_bytes() == SQLITE_HEADER + b"all that was submitted"


def test_every_program_with_an_output_checks_it():
    unchecked = []
    for name in PROGRAMS:
        module = importlib.import_module(f"interface_html.{name}")
        (settings,) = (
            value
            for key, value in vars(module).items()
            if key.endswith("Settings") and value.__module__ == module.__name__
        )
        if "out" in settings.model_fields and not issubclass(settings, OutputSettings):
            unchecked.append(name)
    assert unchecked == []
