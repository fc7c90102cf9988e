"""The default rows of feedback: for toxicity, and for a task that uses every feature."""

import copy
import json
import random

import pytest
from page_helpers import QA, TOXICITY, downloaded, opened
from server_helpers import Client, serving
from test_schema import changed

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json, write_jsonl
from fgrlhf.base.records import DataError
from fgrlhf.data.formats import FORMATS
from interface_html import agreement, export
from interface_html.format import FURTHER_REFERENCES, Item
from interface_html.items import ItemsSettings, item_json, read_items, rows_text, write_items
from interface_html.pages import self_contained
from interface_html.row_format import RowFormat
from interface_html.schema import load_schema
from interface_html.tasks import FeedbackTask, feedback_of

SAMPLE = {"id": "t", "prompt": "Say", "responses": ["Hello there. You fool! Bye."]}
SPAN = {"start": 13, "end": 22, "label": "Insult"}
MARKED = {"id": "t", "prompt": "Say", "response": SAMPLE["responses"][0], "spans": [SPAN]}

TEXT = "The cat sat on the mat. It was 😀 red."
FULL = {
    "id": "f",
    "prompt": "Who sat?",
    "context": [["Cat", "A cat sat.", "It was blue."]],
    "references": ["A cat."],
    "response": TEXT,
    "responses": [TEXT, "second", "third", "fourth"],
    "spans": [
        {"start": 31, "end": 37, "label": "Wrong-Grounding"}
        | {"evidence": '{"passage_id":1,"sentence_id":[2]}'},
        {"start": 4, "end": 11, "label": "Irrelevant"},
    ],
    "missing": [{"label": "Missing-Answer", "passage_id": 1, "sentence_id": [1]}],
    "correction": "The cat.",
    "preferences": [1, 1, 1, 0, 2, 1],
    "source": "a key of the task",
}


@pytest.fixture(scope="module")
def full(tmp_path_factory) -> FeedbackTask:
    """A task with the default format and every feature of a page."""
    folder = tmp_path_factory.mktemp("full")
    schema = load_schema(changed(folder, lambda tree: tree.update(task="full")))
    return FeedbackTask(schema, RowFormat(), folder)


def write(path, rows):
    write_json(path, rows)
    return path


def test_samples_become_items_become_rows(tmp_path):
    write_jsonl(tmp_path / "samples.jsonl", [SAMPLE])
    out = str(tmp_path / "items.json")
    paths = {"source": str(tmp_path / "samples.jsonl"), "out": out}
    write_items(ItemsSettings(task="detoxification", **paths))
    (item,) = read_items(TOXICITY, out)
    assert item == Item("t", {"prompt": "Say", "generation": SAMPLE["responses"][0]})
    unmarked = {key: value for key, value in MARKED.items() if key != "spans"}
    assert item_json(TOXICITY, item) == unmarked


@pytest.mark.parametrize("row", [MARKED, {**MARKED, "spans": []}, {**MARKED, "more": [1]}])
def test_rows_of_one_response_come_back(tmp_path, row):
    items = read_items(TOXICITY, write(tmp_path / "rows.json", [row]))
    assert rows_text(item_json(TOXICITY, item) for item in items) == rows_text([row])


def test_rows_with_everything_come_back(full, tmp_path):
    (item,) = read_items(full, write(tmp_path / "rows.json", [FULL]))
    assert item.row["passages"] == FULL["context"] and item.row["gold"] == "A cat."
    assert item.preference == FULL["preferences"]
    assert rows_text([item_json(full, item)]) == rows_text([FULL])


PROMPT = {"id": "f", "prompt": FULL["prompt"], "references": ["Gold.", "x"]}


def test_references_come_from_the_prompts_of_samples(full, tmp_path):
    sample = {key: FULL[key] for key in ("id", "prompt", "context", "responses")}
    prompts = write(tmp_path / "prompts.json", [PROMPT])
    (item,) = read_items(full, write(tmp_path / "rows.json", [sample]), prompts)
    assert item.row["gold"] == "Gold."
    assert item_json(full, item)["references"] == ["Gold.", "x"]
    with pytest.raises(UserError, match="row 0: `references` must be an array of strings"):
        full.format.references(write(tmp_path / "prompts.json", [{"id": "f"}]))


SEVERAL_REFERENCES = [["A cat.", "The cat."], ["A cat.", "A cat.", ""], ["", "The cat."]]


@pytest.mark.parametrize("references", SEVERAL_REFERENCES)
def test_all_references_of_a_row_come_back(full, tmp_path, references):
    row = changed_row(references=references)
    (item,) = read_items(full, write(tmp_path / "rows.json", [row]))
    assert item.row["gold"] == references[0]
    assert rows_text([item_json(full, item)]) == rows_text([row])
    assert full.format.prompt(full.schema, item).meta.keys() == {"source", "context"}


@pytest.mark.parametrize("references", [..., [], [""], [" "], ["", " "]])
def test_rows_without_a_reference_have_no_references(full, tmp_path, references):
    """As `fgrlhf data check` reads them: a list of references has texts."""
    (item,) = read_items(full, write(tmp_path / "rows.json", [changed_row(references=references)]))
    row = item_json(full, item)
    assert row == changed_row(references=...)
    path = write(tmp_path / "out.json", [row])
    assert len(FORMATS["spans"].read(str(path))) == 1
    item_row = {key: item.row[key] for key in item.row if key != FURTHER_REFERENCES}
    assert read_items(full, path) == [Item("f", {**item_row, "gold": ""})]


def test_samples_with_a_blank_response_are_left_out(full, tmp_path, capsys):
    sample = {key: FULL[key] for key in ("prompt", "context", "references", "responses")}
    blank = sample | {"responses": ["a", " \n", "c", ""]}
    path = write(tmp_path / "samples.json", [sample, blank, sample, blank])
    assert [item.id for item in read_items(full, path)] == ["0", "2"]  # numbered as in the file
    assert capsys.readouterr().out == (f"{path}: left out 2 rows with a blank response\n")
    with pytest.raises(UserError, match="has a blank response in every row"):
        read_items(full, write(path, [blank]))
    # what somebody judged, or what has another mistake, is never left out silently
    for row in (blank | {"preferences": FULL["preferences"]}, blank | {"context": [3]}):
        message = r"row 1, `responses\[1\]`: must be a text that is not empty"
        with pytest.raises(DataError, match=message):
            read_items(full, write(path, [sample, row]))


def test_another_number_of_responses_is_one_message_with_the_ways_out(full, tmp_path):
    rows = [{**FULL, "id": str(i), "responses": ["a", "b"], "spans": ...} for i in range(30)]
    rows = [{key: value for key, value in row.items() if value is not ...} for row in rows]
    with pytest.raises(DataError) as raised:
        read_items(full, write(tmp_path / "rows.json", rows))
    head, line, _ = str(raised.value).split("\n")
    assert head == f"{tmp_path}/rows.json cannot be read (rows count from 0):"
    assert line.strip() == (
        "rows 0, 1, 2, 3 and 26 more, `responses`: has 2 entries, must have 4:"
        " sample 4 per prompt (`fgrlhf generate` with num_samples=4), or list 2 outputs in"
        " `fields.outputs` of the task's schema.js"
    )
    with pytest.raises(DataError, match=r"must have 4: sample 4 per prompt \(.*=4\)\n") as raised:
        read_items(full, write(tmp_path / "rows.json", [{**rows[0], "responses": ["a"] * 10}]))
    assert "fields.outputs" not in str(raised.value)  # the pages show nine at most


def changed_row(**changes) -> dict:
    row = copy.deepcopy(FULL) | changes
    return {key: value for key, value in row.items() if value is not ...}


@pytest.mark.parametrize(
    "row, field",
    [
        (changed_row(prompt=3), "prompt"),
        (changed_row(prompt=" \n"), "prompt"),
        (changed_row(responses=["a", "b"]), "responses"),
        (changed_row(responses=..., response=...), "responses"),
        (changed_row(context=...), "context"),
        (changed_row(response="second"), "response"),
        (changed_row(response="second", spans=...), "response"),
        (changed_row(gold="x"), "gold"),
        (changed_row(**{"further references": ["x"]}), "further references"),
        (changed_row(feedback={}), "feedback"),
        (changed_row(spans=[3]), "spans[0]"),
        (changed_row(spans=[{"start": 0, "end": 3}]), "spans[0].label"),
        (changed_row(spans=[{"start": 0, "end": 2, "label": "Irrelevant"}]), "spans[0].end"),
        (changed_row(spans=[SPAN]), "spans[0].label"),
        (changed_row(missing=[{"label": "Missing-Answer"}]), "missing[0].passage_id"),
        (changed_row(correction=TEXT), "correction"),
        (changed_row(preferences=[1]), "preferences"),
        (changed_row(preferences=[1, 2, 0, 1, 0, 0]), "preferences"),
        (changed_row(response=..., responses=[" ", "b", "c", "d"], spans=...), "responses[0]"),
    ],
)
def test_malformed_rows_are_named_by_their_own_keys(full, tmp_path, row, field):
    with pytest.raises(DataError) as raised:
        read_items(full, write(tmp_path / "rows.json", [FULL | {"id": "a"}, row]))
    assert (1, field) in [(problem.row, problem.key) for problem in raised.value.problems]


# ---- end to end ----------------------------------------------------------------------------------


def test_a_task_with_a_schema_alone_is_judged_from_samples_to_rows(tmp_path):
    """Items, a server's submission, the export, the agreement report, and reading the rows."""
    samples = [{**SAMPLE, "id": name} for name in "ab"]
    write_jsonl(tmp_path / "samples.jsonl", samples)
    path = tmp_path / "samples.jsonl"
    error = {"error type": "Insult", "explanation": "", "start": 13, "end": 22}
    marked = {"errors": [{**error, "quote": "You fool!"}], "missing-info": []}
    marked |= {"corrected-prediction": "", "no-error": False}
    clean = {**marked, "errors": [], "no-error": True}
    with serving(tmp_path, task="detoxification", items=path, per_item=2) as server:
        for name, docs in (("anna", [marked, clean]), ("ben", [marked, marked])):
            client = Client(server.port, name)
            for doc in docs:
                given = client.next()
                assert set(given["item"]) == {"id", "prompt", "generation"}
                body = client.submission(given, doc, task=TOXICITY)
                assert client.call("POST", "/api/submissions", body)[0] == 201
            assert client.next() is None and client.next("comparison") is None
        assert client.call("GET", "/templates/annotation.html")[0] == 200
        for address in ("/templates/comparison.html", "/format.js"):
            assert client.call("GET", address)[0] == 404
    out = tmp_path / "rows.json"
    paths = {"db": str(server.db), "out": str(out)}
    settings = export.FeedbackExportSettings(task="detoxification", policy="first", **paths)
    assert export.export(settings) == 2
    rows = json.loads(out.read_text())
    decided = {"annotation": "unanimous"}
    assert rows[0] == {**MARKED, "id": "a", "decided": decided}
    assert rows[1] == {**MARKED, "id": "b", "spans": [], "decided": {"annotation": "first"}}
    items = read_items(TOXICITY, out)
    assert rows_text(item_json(TOXICITY, item) for item in items) == out.read_text()
    report = agreement.FeedbackAgreementSettings(task="detoxification", db=str(server.db))
    figures = agreement.write_report(report)
    assert figures["span F1, exact, positions and types"].mean == pytest.approx(2 / 3)
    words = figures["alpha, types of words"].mean
    assert figures["alpha, sentences"].mean == pytest.approx(words, abs=0.5)
    assert "preference alpha" not in figures


# ---- the browser ---------------------------------------------------------------------------------


def random_row(rng: random.Random) -> dict:
    """`FULL` with keys removed, and more from others."""
    row = copy.deepcopy(FULL)
    for key in ("references", "response", "spans", "preferences", "source"):
        if rng.random() < 0.3:
            del row[key]
    if "references" in row:
        odd = [["A cat."], [], [""], [" \n"], [" \n", ""], *SEVERAL_REFERENCES]
        row["references"] = rng.choice(odd)
    if rng.random() < 0.3:
        del row["missing"], row["correction"]
    row["more"] = rng.choice([None, 1, "😀", {"a": [1]}])
    return row


def test_the_browser_reads_and_writes_the_same_rows(chromium, full, tmp_path):
    rng = random.Random(0)
    rows = [random_row(rng) for _ in range(200)]
    page = tmp_path / "page.html"
    items = read_items(full, write(tmp_path / "rows.json", [FULL]))
    page.write_text(self_contained(full, "annotation", items))
    with opened(chromium, where=page) as tab:
        results = tab.evaluate(
            """rows => rows.map((row) => {
            const { id, ...rest } = row, item = { id, row: FG.format.itemRow(FG_SCHEMA, rest) };
            return FG.pythonJson([item.row, FG.format.feedbackRow(FG_SCHEMA, item)]);
        })""",
            rows,
        )
        assert downloaded(tab).decode() == rows_text([FULL])
    for row, result in zip(rows, results):
        rest = {key: value for key, value in row.items() if key != "id"}
        item = Item(row["id"], full.format.item_row(full.schema, rest, ""))
        assert result == rows_text([item.row, full.format.feedback_row(full.schema, item)])


READ = """files => files.map((rows) => {
    try { FG.readItems(FG_SCHEMA, JSON.stringify(rows)); return "read"; }
    catch (error) { return error.message; }
})"""


def test_the_browser_refuses_what_python_refuses(chromium, full, tmp_path):
    wrong = [
        (changed_row(references="A cat."), "`references` must be a list of texts"),
        (changed_row(references=["A cat.", 3]), "`references` must be a list of texts"),
        (changed_row(**{"further references": ["x"]}), "use for something else: rename it"),
        (changed_row(response="second"), "`response` is not the first of `responses`, in which"),
        (changed_row(response=3), "`response` is not the first of `responses`, in which"),
    ]
    for row, _ in wrong:
        with pytest.raises(DataError):
            read_items(full, write(tmp_path / "wrong.json", [row]))
    items = read_items(full, write(tmp_path / "rows.json", [FULL]))
    page = tmp_path / "page.html"
    page.write_text(self_contained(full, "annotation", items))
    with opened(chromium, where=page) as tab:
        messages = tab.evaluate(READ, [[row] for row, _ in wrong])
    for message, (_, reason) in zip(messages, wrong):
        assert message.startswith("row 0 of the file: ") and reason in message


def test_the_browser_refuses_an_id_that_two_rows_have(chromium, tmp_path):
    """With the message of Python. A row without an id has its number as its id."""
    other = {**MARKED, "response": "Bye.", "spans": []}
    unnamed = {key: value for key, value in other.items() if key != "id"}
    files = [
        [MARKED, unnamed, other],
        [MARKED, unnamed, MARKED],
        [{**MARKED, "id": "1"}, unnamed],
        [unnamed, unnamed],
        [MARKED, {**other, "id": "T"}],
    ]
    page = tmp_path / "page.html"
    items = read_items(TOXICITY, write(tmp_path / "rows.json", [MARKED]))
    page.write_text(self_contained(TOXICITY, "annotation", items))
    with opened(chromium, where=page) as tab:
        messages = tab.evaluate(READ, files)
    reasons = []
    for rows in files:
        try:
            read_items(TOXICITY, write(tmp_path / "rows.json", rows))
            reasons.append("read")
        except DataError as error:
            (problem,) = error.problems
            reasons.append(f"row {problem.row} of the file: {problem.reason}")
    assert messages == reasons
    assert reasons.count("read") == 2
    assert messages[0] == "row 2 of the file: 't' is also the id of row 0"
    assert messages[1].endswith("with the same texts, as in a file of `export` with policy=all")


def test_other_keys_keep_their_values_in_the_browser(chromium, tmp_path):
    """Python writes 1.0, 1e-05 and the keys in this order; a browser does not."""
    meta = {"temperature": 1.0, "top": 1e-05, "votes": {"b": 0, "10": 1, "2": 0}}
    page = tmp_path / "page.html"
    items = read_items(TOXICITY, write(tmp_path / "rows.json", [{**MARKED, "meta": meta}]))
    page.write_text(self_contained(TOXICITY, "annotation", items))
    with opened(chromium, where=page) as tab:
        text = downloaded(tab).decode()
    assert json.loads(text) == [{**MARKED, "meta": meta}]
    for written in ('"temperature": 1,', '"top": 0.00001,'):
        assert written in text
    assert list(json.loads(text)[0]["meta"]["votes"]) == ["2", "10", "b"]


def test_the_formats_of_a_task_are_the_same(chromium, qa_feedback, tmp_path):
    """format.js of qa-feedback against feedback_format.py."""
    rows = json.loads((qa_feedback / "dev_feedback.json").read_text())
    annotated = [{**row, "id": str(i)} for i, row in enumerate(rows)]
    annotated += [{key: row[key] for key in row if key != "feedback"} for row in annotated]
    with opened(chromium, items=annotated[:1], tmp_path=tmp_path) as tab:
        results = tab.evaluate(
            """rows => rows.map(({ id, ...rest }) => {
            const row = FG.format.itemRow(FG_SCHEMA, rest);
            if (row.feedback) row.feedback["no-error"] = false;
            return FG.pythonJson([FG.format.feedbackRow(FG_SCHEMA, { id, row })]);
        })""",
            annotated,
        )
    for row, result in zip(annotated, results):
        rest = {key: value for key, value in row.items() if key != "id"}
        item = Item(row["id"], QA.format.item_row(QA.schema, rest, ""))
        assert result == rows_text([QA.format.feedback_row(QA.schema, item)]) == rows_text([rest])


def test_decided_pairs_of_comparisons_are_preferences():
    task = feedback_of("hh_rlhf")
    sample = {"prompt": "Say", "responses": ["a", "b"]}

    def preference(preferences):
        row = {**sample, "preferences": preferences}
        return task.format.item_row(task.schema, row, "")["preference"]

    assert [preference([[0, 1]]), preference([[1, 0]]), preference([2])] == [[1], [2], [2]]
    assert preference([]) == [] and preference([[0, 0]]) == [[0, 0]]
