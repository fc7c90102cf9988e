"""Schemas of the feedback pages: the shipped ones, and the message for each error."""

import importlib
import json

import pytest
from page_helpers import QA, TOXICITY

from fgrlhf.base.errors import UserError
from interface_html.row_format import RowFormat
from interface_html.schema import ASSIGNMENT, load_schema, needed_pages
from interface_html.tasks import feedback_of
from tasks.qa_feedback.validation import FACTUAL_ERRORS, MISSING_INFO, NON_FACTUAL_ERRORS

SCHEMA_FILE = QA.folder / "schema.js"


def changed(tmp_path, change):
    """The schema of qa-feedback after `change(tree)`, in a separate file."""
    text = SCHEMA_FILE.read_text(encoding="utf-8")
    tree = json.loads(text.partition(ASSIGNMENT)[2].strip().removesuffix(";"))
    change(tree)
    path = tmp_path / "schema.js"
    path.write_text(f"{ASSIGNMENT} {json.dumps(tree)};", encoding="utf-8")
    return path


def broken(tmp_path, change) -> str:
    with pytest.raises(UserError) as error:
        load_schema(changed(tmp_path, change))
    return str(error.value)


def test_the_schema_names_the_types_that_files_may_hold():
    schema = QA.schema
    assert {kind.name for kind in schema.errors} == {*FACTUAL_ERRORS, *NON_FACTUAL_ERRORS}
    assert tuple(kind.name for kind in schema.missing) == MISSING_INFO
    assert schema.pairs == ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))
    assert schema.pages == ("annotation", "comparison")


def test_a_second_task_is_one_file():
    schema = TOXICITY.schema
    assert (schema.unit, schema.correction, schema.missing) == ("sentence", False, ())
    assert schema.pages == ("annotation",)
    assert [path.name for path in TOXICITY.scripts] == ["schema.js"]


def test_a_task_may_only_compare(tmp_path):
    schema = load_schema(changed(tmp_path, lambda tree: tree.update(errors=[], missing=[])))
    assert schema.pages == ("comparison",)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda tree: tree["errors"][1].update(key="1"), "two types have the key '1'"),
        (lambda tree: tree["fields"].update(context=None), "refer to sentences"),
        (lambda tree: tree["row"].remove("gold"), "`row` lacks gold"),
        (lambda tree: tree["row"].remove("passages"), "`row` lacks passages"),
        (lambda tree: tree["row"].append("source"), "`row` has source, which `fields` does not"),
        (lambda tree: tree["fields"].update(outputs=["prediction 1"]), "two or more `fields.out"),
        (lambda tree: tree.update(errors=[], missing=[], comparison=None), "nothing to judge"),
    ],
)
def test_mistakes_are_named(tmp_path, change, message):
    assert message in broken(tmp_path, change)


def test_all_mistakes_are_in_one_message(tmp_path):
    def change(tree):
        tree["errors"][0].update(letter="G")
        tree["errors"][1].update(color="red", key="1")
        tree["severities"] = [
            {"name": "minor", "letter": "M", "key": "E"},
            {"name": "major", "letter": "jj", "key": "Shift+J"},
        ]
        del tree["unit"]

    message = broken(tmp_path, change)
    assert "has 7 mistakes" in message
    for reason in (
        "unit: missing",
        "errors.1.color: must be a colour such as #E7040F (got 'red')",
        "severities.0.letter: must be one lower-case letter, a to z (got 'M')",
        "severities.1.letter: must be one lower-case letter, a to z (got 'jj')",
        "two types have the key '1': make it unique",
        "has the letter 'G', which is a key of the annotation page: set another letter than"
        " C, E, G, N, P, S, X, Y",
        "the severity minor has the key 'E', and E is a key",
    ):
        assert reason in message


def test_mistakes_of_whole_lists_are_in_one_message(tmp_path):
    def change(tree):
        tree["fields"].update(context=None, outputs=["prediction 1"])
        tree.update(severity_required=True)

    message = broken(tmp_path, change)
    for reason in ("refer to sentences", "`severity_required` needs", "two or more `fields.out"):
        assert reason in message


def test_missing_keys_belong_into_the_schema_file(tmp_path):
    def without_keys(tree):
        del tree["row"], tree["unit"]

    message = broken(tmp_path, without_keys)
    path = tmp_path / "schema.js"
    assert f"  row: missing; add it to {path}" in message
    assert f"  unit: missing; add it to {path}; known: word, sentence" in message
    assert "command line" not in message


def test_messages_about_a_schema_are_in_the_words_of_its_file(tmp_path):
    """It is edited as JSON: no message has an override of the command line, or a type of Python."""
    changes = {"fields": "response", "guideline": "One text", "ratings": {"name": "a"}}
    text = broken(tmp_path, lambda tree: tree.update(changes, errors=["Style"]))
    for part in (
        """fields: it must be an object (got 'response'): write {"title": ...} there""",
        """errors.0: it must be an object (got 'Style'): write {"name": ...} there""",
        """guideline: it must be a list (got One text): write ["One text"] there""",
        """ratings: it must be a list (got {'name': 'a'}): write [{"name": "a"}] there""",
    ):
        assert part in text, text
    assert "='" not in text and "tuple" not in text and "section" not in text


def test_unknown_keys_are_named(tmp_path):
    message = broken(tmp_path, lambda tree: tree["errors"][1].update(colour="red"))
    assert "errors[1].colour" in message.replace(".1.", "[1].")


def test_only_the_one_assignment_is_a_schema(tmp_path):
    path = tmp_path / "schema.js"
    for text in ("{}", f"alert(1);\n{ASSIGNMENT} {{}};", f"{ASSIGNMENT} {{"):
        path.write_text(text)
        with pytest.raises(UserError):
            load_schema(path)
    with pytest.raises(UserError, match="cannot be read"):
        load_schema(tmp_path / "none.js")


@pytest.mark.parametrize(
    "name", ["none", "../detoxification", "", "detoxification/x", "tasks", "a.b"]
)
def test_tasks_without_pages_are_refused(name):
    with pytest.raises(UserError, match="no such task with feedback pages"):
        feedback_of(name)


def test_a_task_may_be_any_package(tmp_path, monkeypatch):
    assert feedback_of("tasks.detoxification").schema == TOXICITY.schema
    folder = tmp_path / "elsewhere" / "summaries"
    (folder / "interface_html").mkdir(parents=True)
    changed(folder / "interface_html", lambda tree: tree.update(task="summaries"))
    monkeypatch.syspath_prepend(tmp_path)
    task = feedback_of("elsewhere.summaries")
    assert (task.schema.task, task.folder) == ("summaries", folder / "interface_html")
    assert isinstance(task.format, RowFormat)
    (folder / "feedback_format.py").write_text("FORMAT = 'another format'")
    importlib.invalidate_caches()
    assert feedback_of("elsewhere.summaries").format == "another format"


def test_a_copied_schema_names_its_own_task(tmp_path, monkeypatch):
    folder = tmp_path / "copies" / "poems" / "interface_html"
    folder.mkdir(parents=True)
    changed(folder, lambda tree: tree.update(task="summaries"))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r"schema\.js: its `task` is `summaries`.*write `poems`"):
        feedback_of("copies.poems")


def test_pages_are_listed():
    schema = QA.schema
    assert needed_pages(schema, "all") == ("annotation", "comparison")
    assert needed_pages(schema, "comparison, annotation") == ["annotation", "comparison"]
    assert needed_pages(schema, "comparison") == ["comparison"]
    for pages in ("rating", "annotation,rating", "both", "", ",", "all,comparison"):
        with pytest.raises(UserError, match="has no page"):
            needed_pages(schema, pages)
