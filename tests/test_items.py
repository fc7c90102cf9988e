"""Items from every source, and their conversion back to the bytes of a feedback file."""

import json
import shlex

import pytest
from page_helpers import QA, row_with
from test_rules import ROW, doc, error, missing

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json, write_jsonl
from fgrlhf.base.records import DataError
from fgrlhf.cli import data
from interface_html.command import main as feedback
from interface_html.items import ItemsSettings, read_items, rows_text
from interface_html.tasks import feedback_of
from tasks.qa_feedback.feedback import read_feedback

SCHEMA = QA.schema


@pytest.mark.parametrize("split", ["train", "dev"])
def test_import_then_export_is_the_identity(qa_feedback, split):
    path = qa_feedback / f"{split}_feedback.json"
    found = read_items(QA, path)
    rows = [QA.format.feedback_row(SCHEMA, item) for item in found]
    assert rows_text(rows).encode() == path.read_bytes()


def test_an_annotated_item_is_a_row_of_the_format(tmp_path):
    write_json(tmp_path / "items.json", [{"id": "q7", **ROW}])
    (item,) = read_items(QA, tmp_path / "items.json")
    row = row_with(item, doc([error(quote="The cat")], [missing()]), [1] * 6)
    assert list(row) == [*SCHEMA.row, "feedback", "preference"]
    assert list(row["feedback"]["errors"][0]) == ["error type", "explanation", "start", "end"]
    (tmp_path / "feedback.json").write_text(rows_text([row]))
    assert read_feedback(tmp_path / "feedback.json")[0].errors[0].end == 7


def test_samples_become_items(tmp_path):
    passages = [{"wikipage": "Cat", "content": "A cat sat. It was blue."}]
    sample = {"id": "0", "question": "Who sat?", "passages": passages}
    write_jsonl(tmp_path / "samples.jsonl", [{**sample, "predictions": ["a", "b", "c", "d"]}])
    asked = {"text": "t", "question": "Who sat?", "passages": passages, "answer": ["A cat.", "x"]}
    write_json(tmp_path / "train.json", [asked])
    (item,) = read_items(QA, tmp_path / "samples.jsonl", tmp_path / "train.json")
    assert item.row["passages"] == [["Cat", "A cat sat.", "It was blue."]]
    assert (item.id, item.row["gold"], item.row["prediction 4"]) == ("0", "A cat.", "d")
    assert tuple(item.row) == SCHEMA.row


def test_the_payload_of_the_published_page_becomes_an_item(tmp_path):
    passages = [{"wikipage": "Cat", "content": ["A cat sat."]}]
    inner = {"question": "Who sat?", "passages": passages, "gold answer": "g"}
    inner["predicted answer"] = "a"
    inner |= {f"predicted answer {i}": "x" for i in range(2, 6)}
    write_json(tmp_path / "page.json", {"id": "600", "question": json.dumps(inner)})
    (item,) = read_items(QA, tmp_path / "page.json")
    assert item.id == "600"
    assert item.row["passages"] == [["Cat", "A cat sat."]]
    assert (item.row["gold"], item.row["prediction 1"]) == ("g", "a")


def test_samples_of_another_task_are_one_mistake(tmp_path):
    sample = {"prompt": "Who sat?", "responses": ["a", "b", "c", "d"]}
    path = tmp_path / "samples.jsonl"
    write_jsonl(path, [sample] * 84)
    with pytest.raises(DataError) as error:
        read_items(QA, path)
    message = str(error.value)
    assert "looks like a sample of another task" in message and len(message.split("\n")) == 3
    assert "qa_feedback's samples have id, question, passages and predictions" in message


HELLOS = [f"\n\nHuman: Hi {i}\n\nAssistant:" for i in range(2)]
PAIR = [{"chosen": f"{hello} a", "rejected": f"{hello} b"} for hello in HELLOS]
MQM = (
    "system\tdoc\tdoc_id\tseg_id\trater\tsource\ttarget\tcategory\tseverity\n"
    "A\td\t1\t1\tr\tDer <v>Mond</v> sinkt.\tThe sinks.\tAccuracy/Omission\tMajor\n"
)


@pytest.mark.parametrize(
    "name, file, content, prompts",
    [
        ("hh_rlhf", "pairs.jsonl", PAIR, HELLOS),
        ("reasoning", "train.jsonl", [{"question": "1 + 1?", "answer": "2"}], ["1 + 1?"]),
        ("translation", "mqm.tsv", MQM, ["Der Mond sinkt."]),
    ],
)
def test_published_files_have_the_commands_that_make_rows(
    tmp_path, monkeypatch, name, file, content, prompts
):
    monkeypatch.chdir(tmp_path)
    if isinstance(content, str):
        (tmp_path / file).write_text(content)
    else:
        write_jsonl(tmp_path / file, content)
    task = feedback_of(name)
    with pytest.raises(UserError) as error:
        read_items(task, file)
    commands = [line for line in str(error.value).split("\n") if line.startswith("  fgrlhf data ")]
    for command in commands:
        data.main(shlex.split(command)[2:])
    assert [item.row["prompt"] for item in read_items(task, "rows.jsonl")] == prompts


def test_a_prompt_under_another_key_has_the_command_that_reads_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"instruction": "Greet.", "response": "Hi.", "tries": 2}]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    with pytest.raises(UserError, match="without `prompt`") as error:
        read_items(feedback_of("reasoning"), "rows.jsonl")
    feedback(shlex.split(str(error.value).split("\n")[1])[2:])
    [item] = read_items(feedback_of("reasoning"), "items.json")
    assert (item.row["prompt"], item.row["tries"]) == ("Greet.", 2)
    assert "instruction" not in item.row
    with pytest.raises(DataError, match="row 0, `other`"):
        read_items(feedback_of("reasoning"), "rows.jsonl", columns={"prompt": "other"})


def test_samples_of_qa_feedback_for_another_task(tmp_path):
    write_jsonl(tmp_path / "s.jsonl", [{"question": "q", "passages": [], "predictions": ["a"]}])
    message = "has samples of another task .with passages.*name that task"
    with pytest.raises(UserError, match=message):
        read_items(feedback_of("reasoning"), tmp_path / "s.jsonl")


def test_mistakes_are_told_with_row_and_field(tmp_path):
    good = {"id": "a", **ROW}
    changes = [{"prediction 2": " "}, {"passages": [[]]}, {"gold": None}, {"question": " "}]
    first, second, third, fourth = [{**good, **change} for change in changes]
    rows = [good, first, second, 3, third, {"question": "{"}, fourth, good]
    write_json(tmp_path / "rows.json", rows)
    with pytest.raises(DataError) as raised:
        read_items(QA, tmp_path / "rows.json")
    result = [(problem.row, problem.key) for problem in raised.value.problems]
    fields = ["prediction 2", "passages[0]", "row", "gold", "question", "question"]
    assert result[:6] == list(enumerate(fields, 1))


def test_settings_are_read():
    assert ItemsSettings(task="t", source="a", out="b").prompts is None
