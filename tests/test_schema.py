"""Schema files of the feedback pages: the shipped ones, and what a broken one is told."""

import json
from pathlib import Path

import pytest

from fgrlhf.errors import UserError
from interface_html.schema import ASSIGNMENT, QA_SCHEMA, load_schema
from tasks.qa_feedback.validation import FACTUAL_ERRORS, MISSING_INFO, NON_FACTUAL_ERRORS

TOXICITY = Path(__file__).parents[1] / "tasks" / "toxicity" / "schema.js"


def broken(tmp_path, change) -> str:
    tree = json.loads(
        QA_SCHEMA.read_text(encoding="utf-8").partition(ASSIGNMENT)[2].strip().removesuffix(";")
    )
    change(tree)
    path = tmp_path / "schema.js"
    path.write_text(f"{ASSIGNMENT} {json.dumps(tree)};", encoding="utf-8")
    with pytest.raises(UserError) as error:
        load_schema(path)
    return str(error.value)


def test_the_schema_names_the_types_that_files_may_hold():
    schema = load_schema()
    assert {kind.name for kind in schema.errors} == {*FACTUAL_ERRORS, *NON_FACTUAL_ERRORS}
    assert tuple(kind.name for kind in schema.missing) == MISSING_INFO
    assert schema.pairs == ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))


def test_a_second_task_is_one_file():
    schema = load_schema(TOXICITY)
    assert (schema.unit, schema.correction, schema.compares, schema.missing) == (
        "sentence",
        False,
        False,
        (),
    )


def test_mistakes_are_named(tmp_path):
    assert "two types have the key '1'" in broken(
        tmp_path, lambda tree: tree["errors"][1].update(key="1")
    )
    assert "point to sentences" in broken(
        tmp_path, lambda tree: tree["fields"].update(passages=None)
    )
    assert "`row` lacks gold" in broken(tmp_path, lambda tree: tree["row"].remove("gold"))
    assert "errors[0].colour" in broken(
        tmp_path, lambda tree: tree["errors"][0].update(colour="red")
    ).replace(".0.", "[0].")


def test_only_the_one_assignment_is_a_schema(tmp_path):
    path = tmp_path / "schema.js"
    for text in ("{}", f"alert(1);\n{ASSIGNMENT} {{}};", f"{ASSIGNMENT} {{"):
        path.write_text(text)
        with pytest.raises(UserError):
            load_schema(path)
    with pytest.raises(UserError, match="cannot be read"):
        load_schema(tmp_path / "none.js")
