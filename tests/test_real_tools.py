"""The real annotation tools take our exports, and their exports come back; `make tools-check`.

FGRLHF_TOOLS names the folder with the tools' environments. Without it, the tests are skipped.
"""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import tool_servers

from fgrlhf.cli import data
from fgrlhf.data.formats import JUDGEMENTS
from fgrlhf.data.importers.registry import import_items
from fgrlhf.data.judgements import JudgedResponse, Judgement
from fgrlhf.files import write_jsonl
from fgrlhf.text_types import Prompt

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(tool_servers.FOLDER is None, reason="FGRLHF_TOOLS names no folder"),
]

TEXT = "Seven is even 🙂 odd 🙂🙂 here now."
PROJECT = """<View>
  <Text name="answer" value="$response"/>
  <Text name="origin" value="$source"/>
  <Labels name="err" toName="answer"><Label value="wrong"/><Label value="odd"/></Labels>
  <Labels name="left" toName="origin"><Label value="omitted"/></Labels>
  <Rating name="stars" toName="answer" perRegion="true"/>
  <Choices name="severity" toName="answer" perRegion="true"><Choice value="minor"/></Choices>
  <TextArea name="reason" toName="answer" perRegion="true"/>
  <Rating name="quality" toName="answer"/>
  <Number name="share" toName="answer"/>
  <Choices name="tone" toName="answer" choice="multiple">
    <Choice value="rude"/><Choice value="odd"/>
  </Choices>
  <TextArea name="fix" toName="answer" maxSubmissions="3"/>
</View>
"""


def judged(first: str, second: str) -> list[JudgedResponse]:
    """Two responses: overlapping marks behind emoji by two annotators, and a clean answer."""
    marked = (
        Judgement("err", "wrong", 23, 27, "minor", 4.0, annotator=first, reason="No."),
        Judgement("err", "odd", 20, 32, annotator=first),
        Judgement("left", "omitted", 3, 4, side="source", annotator=first),
        Judgement("quality", score=4.0, annotator=first),
        Judgement("share", score=62.5, annotator=first),
        Judgement("tone", "rude", annotator=first),
        Judgement("tone", "odd", annotator=first),
        Judgement("fix", "comment", annotator=first, reason="Seven is odd.\nIt is here."),
        Judgement("err", "odd", 33, 34, annotator=second),
    )
    clean = (Judgement("err", "no error", annotator=second),)
    return [
        JudgedResponse(Prompt("x1", "Count."), TEXT + " 🙂", marked, "1 🙂 7"),
        JudgedResponse(Prompt("x2", "", meta={"topic": "numbers"}), "Fine.", clean, "Fein."),
    ]


def exported(folder: Path, items: list[JudgedResponse], name: str, *settings: str) -> Path:
    """The file that `fgrlhf data export` writes of these items."""
    source, out = folder / "judgements.jsonl", folder / name
    write_jsonl(source, [JUDGEMENTS.to_row(item) for item in items])
    data.main(["export", str(source), str(out), *settings])
    return out


def judgements_of(items: list[JudgedResponse]) -> list[set[Judgement]]:
    return [set(item.judgements) for item in items]


@pytest.fixture(scope="module")
def label_studio(tmp_path_factory):
    with tool_servers.label_studio(tmp_path_factory.mktemp("label_studio")) as server:
        server.second = server.add_user("b@example.com")
        yield server


@pytest.fixture(scope="module")
def doccano(tmp_path_factory):
    with tool_servers.doccano(tmp_path_factory.mktemp("doccano")) as server:
        yield server


def kept(path: Path, name: str) -> Path:
    """The same file, also in the folder of FGRLHF_TOOLS, where one can look at it."""
    folder = Path(tool_servers.FOLDER or "") / "exports"
    folder.mkdir(exist_ok=True)
    shutil.copy(path, folder / name)
    return path


# ---- Label Studio --------------------------------------------------------------------------------


def test_label_studio_and_back(label_studio, tmp_path):
    (tmp_path / "project.xml").write_text(PROJECT)
    setting = f"project={tmp_path / 'project.xml'}"
    items = judged("1", str(label_studio.second))
    tasks = exported(tmp_path, items, "tasks.json", "to=label_studio", setting)
    project = label_studio.new_project(PROJECT)
    tool_servers.done(label_studio.load(project, tasks))
    out = kept(label_studio.export(project, tmp_path / "out.json"), "label_studio.json")
    keys = {"project": str(tmp_path / "project.xml"), "aspect": "err"}
    again, report = import_items(out, "label_studio", keys)
    again.sort(key=lambda item: item.prompt.id)
    assert judgements_of(again) == judgements_of(items)
    assert [(item.response, item.source) for item in again] == [
        (item.response, item.source) for item in items
    ]
    assert report.spans == {"exact offset": 4} and not report.losses
    # what it wrote can go back into its project
    tasks = exported(tmp_path, again, "tasks.json", "to=label_studio", setting)
    tool_servers.done(label_studio.load(label_studio.new_project(PROJECT), tasks))


def test_label_studio_refuses_users_whom_it_does_not_know(label_studio, tmp_path):
    items = judged("1", "somebody")
    project = label_studio.new_project(PROJECT)
    tasks = exported(tmp_path, items, "tasks.json", "to=label_studio")
    answer = label_studio.load(project, tasks)
    assert answer.status_code == 400 and "Unknown annotator's email somebody" in answer.text
    tasks = exported(tmp_path, items, "tasks.json", "to=label_studio", "names=false")
    tool_servers.done(label_studio.load(project, tasks))


# ---- Argilla -------------------------------------------------------------------------------------


# what the client does with a file before it sends it to a server, and after it got records
ARGILLA = """
import json, sys
from argilla.records._io import GenericIO, JsonIO
source, nested, flat = sys.argv[1:]
records = JsonIO._records_from_json(source)
JsonIO.to_json(records, nested)
with open(flat, "w") as file:
    json.dump(GenericIO.to_list(records, flatten=True), file)
"""


def test_the_client_of_argilla_and_back(tmp_path):
    """The server needs a search engine, so only the client is run."""
    python = tool_servers.environment("argilla") / "bin" / "python"
    users = [f"00000000-0000-0000-0000-00000000000{n}" for n in (1, 2)]
    items = []
    for item in judged(*users):
        held = [replace(j, severity=None, reason=None) for j in item.judgements]
        held = [replace(j, score=None) if j.label else j for j in held if j.aspect != "fix"]
        items.append(replace(item, judgements=tuple(held)))
    names = ("records.json", "nested.json", "flat.json")
    source = exported(tmp_path, items, names[0], "to=argilla")
    env = tool_servers.variables(tmp_path / "home")
    tool_servers.run([python, "-c", ARGILLA, *names], env, tmp_path)
    for name in names[1:]:
        again, report = import_items(kept(tmp_path / name, f"argilla_{name}"), "argilla")
        assert judgements_of(again) == judgements_of(items)
        assert [item.source for item in again] == [item.source for item in items]
        assert report.dropped_spans == 0
        assert report.losses == {"lists of texts, which may be rankings": 1}
    assert exported(tmp_path, again, "again.json", "to=argilla").read_text() == source.read_text()


# ---- doccano -------------------------------------------------------------------------------------


def test_doccano_and_back(doccano, tmp_path):
    kind = "SequenceLabeling"
    items = [
        replace(item, judgements=tuple(j for j in item.judgements if j.side == "response"))
        for item in judged("admin", "admin")
    ]
    rows = exported(tmp_path, items, "rows.jsonl", "to=doccano")
    project = doccano.new_project(kind)
    assert doccano.load(project, kind, rows) == {
        "ready": True,
        "result": {"error": []},
        "error": None,
    }
    doccano.confirm_all(project)
    (out,) = doccano.export(project, tmp_path / "out")
    kept(out, "doccano.jsonl")
    again, report = import_items(out, "doccano", {"confirmed": True, "annotator": "admin"})
    marks = [{(j.label, j.span) for j in item.judgements if j.span} for item in items]
    assert [{(j.label, j.span) for j in item.judgements if j.span} for item in again] == marks
    assert again[1].judgements == (Judgement("label", "no error", annotator="admin"),)
    assert [item.prompt.id for item in again] == ["x1", "x2"]
    assert [item.source for item in again] == [item.source for item in items]
    assert report.dropped_spans == 0
    rows = exported(tmp_path, again, "rows.jsonl", "to=doccano")
    assert doccano.load(doccano.new_project(kind), kind, rows)["error"] is None


def test_corrections_of_doccano(doccano, tmp_path):
    rows = tmp_path / "rows.jsonl"
    write_jsonl(rows, [{"text": "Seven 🙂.", "label": ["Seven is odd.\nSo it is.", "Odd."]}])
    project = doccano.new_project("Seq2seq")
    assert doccano.load(project, "Seq2seq", rows)["error"] is None
    doccano.confirm_all(project)
    (out,) = doccano.export(project, tmp_path / "out")
    kept(out, "doccano_seq2seq.jsonl")
    (item,), report = import_items(out, "doccano", {"corrections": True})
    # doccano does not keep the order of several
    assert item.prompt.meta["correction"] in ("Seven is odd.\nSo it is.", "Odd.")
    assert report.losses == {"further corrections of a text": 1}
