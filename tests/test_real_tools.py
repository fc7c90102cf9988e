"""The real annotation tools take our exports, and their exports come back; `make tools-check`.

FGRLHF_TOOLS names the folder with the tools' environments. Without it, the tests are skipped.
"""

import shutil
from pathlib import Path

import pytest
import tool_servers
from tool_items import (
    FROM_POTATO,
    PROJECT_FILE,
    held_by_argilla,
    held_by_doccano,
    judged,
    judgements_of,
    potato_items,
)

from fgrlhf.base.files import write_jsonl
from fgrlhf.cli import data
from fgrlhf.data.formats import JUDGEMENTS
from fgrlhf.data.importers.registry import import_items
from fgrlhf.data.judgements import JudgedResponse

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(tool_servers.FOLDER is None, reason="FGRLHF_TOOLS names no folder"),
]

PROJECT = PROJECT_FILE.read_text()  # of Label Studio


def exported(folder: Path, items: list[JudgedResponse], name: str, *settings: str) -> Path:
    """The file that `fgrlhf data export` writes of these items."""
    source, out = folder / "judgements.jsonl", folder / name
    write_jsonl(source, [JUDGEMENTS.to_row(item) for item in items])
    data.main(["export", str(source), str(out), *settings])
    return out


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
    setting = f"project={PROJECT_FILE}"
    items = judged("1", str(label_studio.second))
    tasks = exported(tmp_path, items, "tasks.json", "to=label_studio", setting)
    project = label_studio.new_project(PROJECT)
    tool_servers.done(label_studio.load(project, tasks))
    out = kept(label_studio.export(project, tmp_path / "out.json"), "label_studio.json")
    keys = {"project": str(PROJECT_FILE), "aspect": "err"}
    again, report = import_items(out, "label_studio", keys)
    again.sort(key=lambda item: item.prompt.id)
    assert judgements_of(again) == judgements_of(items)
    assert [(item.response, item.source) for item in again] == [
        (item.response, item.source) for item in items
    ]
    # a marked blank is no quote
    assert report.spans == {"exact offset": 3, "offset without a quote": 1} and not report.losses
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
    items = held_by_argilla()
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
    items = held_by_doccano()
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
    assert judgements_of(again) == judgements_of(items)
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


# ---- potato --------------------------------------------------------------------------------------


def test_our_rows_in_potato(tmp_path):
    """Potato has no import of judgements: our rows are its items."""
    write_jsonl(tmp_path / "items.jsonl", potato_items())
    spans = [("wrong", 23, 27), ("odd", 20, 32)]
    marks = [{"schema": "err", "name": name, "start": a, "end": b} for name, a, b in spans]
    marks = [{**mark, "title": mark["name"], "value": "x"} for mark in marks]
    with tool_servers.potato(tmp_path) as server:
        texts = {"tone:::rude": "rude", "fix:::text_box": "Seven is odd.\nIt is."}
        server.save("ann", "x1", texts, marks)
        server.save("bob", "x1", {"tone:::kind": "kind"}, [])
        server.save("ann", "x2", {"tone:::kind": "kind"}, [])
        out = kept(server.export(), "potato.jsonl")
    items, report = import_items(out, "potato", {"items": str(tmp_path / "items.jsonl")})
    assert judgements_of(items) == judgements_of(FROM_POTATO)
    assert report.spans == {"exact offset": 2} and not report.losses
