"""`fgrlhf data`: show, check and convert rows."""

import json
import re
from pathlib import Path

import pytest
import yaml
from feedback_files import PASSAGES, PROMPT, write_feedback_files, write_judgement_files

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, write_json, write_jsonl
from fgrlhf.cli import data
from fgrlhf.data.formats import FORMATS
from fgrlhf.data.read import read_rows
from fgrlhf.data.rows import Row
from tasks.qa_feedback.feedback import load_examples
from tasks.qa_feedback.training.comparisons import SOURCES

FIXTURES = Path(__file__).parent / "fixtures"
PAIRS = [
    {"prompt": "a", "chosen": "b", "rejected": "c", "source": "x"},
    {"prompt": "d", "chosen": "", "rejected": "e", "source": None},
]


def printed(capsys, *arguments):
    data.main([str(argument) for argument in arguments])
    return capsys.readouterr().out.splitlines()


def test_show(tmp_path, capsys):
    write_jsonl(tmp_path / "a.jsonl", PAIRS)
    assert printed(capsys, "show", tmp_path / "a.jsonl", "rows=1") == [
        f"{tmp_path}/a.jsonl: 2 rows",
        "  prompt: text (2)",
        "  chosen: text (2)",
        "  rejected: text (2)",
        "  source: text (1), null (1)",
        "formats: prompts, comparisons",
        'row 0: {"prompt": "a", "chosen": "b", "rejected": "c", "source": "x"}',
    ]


def test_show_of_rows_that_fit_no_format(tmp_path, capsys):
    write_json(tmp_path / "a.json", [3, {"question": "x" * 5000}])
    lines = printed(capsys, "show", tmp_path / "a.json")
    assert lines[1:4] == [
        "  (no object): number (1)",
        "  question: text (1)",
        "formats: none without columns={...}",
    ]
    assert max(map(len, lines)) < 450


@pytest.mark.parametrize("rows, row_format, lines", read_json(FIXTURES / "data_checks.json"))
def test_check(tmp_path, capsys, rows, row_format, lines):
    path = tmp_path / "a.json"
    write_json(path, rows)
    head, *others = printed(capsys, "check", path, f"format={row_format}")
    count = "1 row" if len(rows) == 1 else f"{len(rows)} rows"
    assert head == f"{path}: {count} of {row_format}, all well formed"
    assert [line.strip() for line in others] == lines


def test_check_refuses_prompts_with_repeated_ids(tmp_path, capsys):
    """The number of a row without an id is its id. Rows of other formats may repeat an id."""
    rows = [{"id": "a", "prompt": "x"}, {"id": "a", "prompt": "y"}, {"id": 3, "prompt": "z"}]
    path = tmp_path / "a.jsonl"
    write_jsonl(path, [*rows, {"prompt": "w"}])
    with pytest.raises(UserError) as raised:
        data.main(["check", str(path), "format=prompts"])
    assert str(raised.value).splitlines() == [
        f"{path} cannot be used as prompts (rows count from 0):",
        "  row 1, `id`: 'a' is that of row 0 too",
        "  row 3, `id`: '3' is that of row 2 too",
        "An evaluation would take them for one prompt. Give every prompt its own id, or none: a row"
        " without an id has its number, counted from 0, as its id.",
    ]
    assert printed(capsys, "check", path, "format=prompts", "limit=1")
    write_jsonl(path, [row | {"response": "r"} for row in rows])
    assert printed(capsys, "check", path, "format=demonstrations")


def test_convert_other_keys_and_another_suffix(tmp_path, capsys):
    rows = [{"q": f"p{i}", "a": ["x", "y"], "votes": {"best": [[0, 1]]}} for i in range(3)]
    write_json(tmp_path / "in.json", rows)
    out = tmp_path / "out.parquet"
    columns = "columns={prompt: q, responses: a, preferences: votes.best}"
    settings = ("format=comparisons", columns, "limit=2")
    lines = printed(capsys, "convert", tmp_path / "in.json", out, *settings)
    assert lines == [f"{out}: 2 rows of comparisons"]
    judged = {"responses": ["x", "y"], "preferences": [[0, 1]], "votes": {"best": [[0, 1]]}}
    assert read_rows(out) == [{"id": str(i), "prompt": f"p{i}", **judged} for i in range(2)]


def test_pairs_of_conversations_stay_conversations(tmp_path, capsys):
    """TRL puts messages into a chat template, and texts never."""

    def turn(role, text):
        return {"role": role, "content": text}

    asked = [turn("user", "Name a prime.")]
    start = [turn("system", "Be short."), *asked]
    answers = [turn("assistant", "7")], [turn("assistant", "8")]
    single = {"prompt": asked, "chosen": answers[0], "rejected": answers[1]}
    dialog = {"chosen": [*start, *answers[0]], "rejected": [*start, *answers[1]]}
    many = {"prompt": start, "responses": ["7", "8"], "preferences": [[0, 1]]}
    plain = {"prompt": "Name a prime.", "chosen": "7", "rejected": "8"}
    out = tmp_path / "out.jsonl"

    def converted(rows, *arguments):
        write_json(tmp_path / "in.json", rows)
        to_pairs = ("format=comparisons", "to=pairs", *arguments)
        printed(capsys, "convert", tmp_path / "in.json", out, *to_pairs)
        by_convert = read_rows(out)
        printed(capsys, "export", tmp_path / "in.json", out, "to=trl_preference", *arguments)
        assert read_rows(out) == by_convert
        return [(row["prompt"], row["chosen"], row["rejected"]) for row in by_convert]

    for row, prompt in ((single, asked), (dialog, start), (many, start)):
        assert converted([row, plain]) == [(prompt, *answers), (asked, *answers)]
    assert converted([plain]) == [("Name a prime.", "7", "8")]
    assert converted([plain], "conversations=true") == [(asked, *answers)]
    assert converted([single], "conversations=false") == [("Name a prime.", "7", "8")]
    with pytest.raises(UserError, match="would lose its messages"):
        converted([many | {"prompt": [*asked, *asked]}], "conversations=false")


@pytest.mark.parametrize(
    ("parts", "unit"),
    [
        ({"prompt": "p {}"}, "prompt"),
        ({"prompt": "p {} {}", "cluster": "c {}"}, "cluster"),
        ({"source": "s {}"}, "source"),
    ],
)
def test_an_export_in_two_parts_shares_no_prompt(tmp_path, capsys, parts, unit):
    rows = []
    for number in range(60):
        names = {key: text.format(number // 3, number) for key, text in parts.items()}
        judged = [{"aspect": "span", "label": "no error", "start": None, "end": None}]
        rows.append({"id": str(number), "response": f"r {number}", "judgements": judged, **names})

    def exported(given, *arguments):
        write_json(tmp_path / "in.json", given)
        files = tmp_path / "train.jsonl", tmp_path / "dev.jsonl"
        keys = ("to=spans", f"dev={files[1]}", *arguments)
        lines = printed(capsys, "export", tmp_path / "in.json", files[0], *keys)
        train, dev = (read_rows(file) for file in files)
        assert f"{files[1]}: {len(dev)} rows of spans" in lines
        return train, dev

    train, dev = exported(rows)
    assert len(train) == 54 and len(dev) == 6  # two of twenty units, with three rows each
    assert not {row[unit] for row in train} & {row[unit] for row in dev}
    chosen = {row["response"] for row in dev}
    assert {row["response"] for row in exported(rows[::-1])[1]} == chosen
    assert len(exported(rows, "dev_share=0.5")[1]) == 30
    with pytest.raises(UserError, match="all rows are of one prompt, cluster or source"):
        exported(rows[:3])
    with pytest.raises(UserError, match="is for to=spans and trl_preference"):
        exported(rows, "to=doccano")
    with pytest.raises(UserError, match="1 mistake:\n  annotators: must be at least 1 vote"):
        exported(rows, "annotators=0")


def test_convert_counts_what_it_loses(tmp_path, capsys):
    span = {"start": 0, "end": 1, "type": "x", "label": "y", "note": "n"}
    step = {"text": "a", "score": 1, "note": "n"}
    rated = {"completions": [{"text": "a", "rating": 1}], "chosen_completion": 0}
    pair = {"prompt": "p", "chosen": "a", "rejected": "b"}
    cases = [
        (
            {"response": "ab", "spans": [span, span]},
            ["format=spans", "columns={spans.label: type}"],
            ["  `spans.label`, not read: 2", "  `spans.note`, not read: 2"],
        ),
        (
            {"response": "ab", "spans": [span]},
            ["format=spans", "to=judgements"],
            ["  `spans.type`, not read: 1", "  `spans.note`, not read: 1"],
        ),
        ({"prompt": "p", "steps": [step]}, ["format=steps"], ["  `steps.note`, not read: 1"]),
        (
            {"input": "p Step 1: a ки\nStep 2: b", "label": "p Step 1: a +\nStep 2: b"},
            ["format=steps"],
            ["  texts after the last mark of a solution, not read: 1"],
        ),
        ({"prompt": "p", "steps": [rated]}, ["format=steps"], []),
        (
            {"prompt": "own", "title": "p", "text": "kept"},
            ["format=prompts", "columns={prompt: title}"],
            ["  lost, the rows' own `prompt`: 1"],
        ),
        (
            {"prompt": {"text": "p", "toxicity": 0.1}},
            ["format=prompts", "columns={prompt: prompt.text}"],
            ["  lost, the rest of the rows' own `prompt`: 1"],
        ),
        (
            pair | {"responses": [{"text": "a"}, {"text": "b"}], "ranking": [1, 2], "scores": None},
            [
                "format=comparisons",
                "columns={responses: responses.text, scores: ranking, chosen: rejected,"
                " rejected: chosen}",
            ],
            [],
        ),
        (pair, ["format=comparisons", "to=joined"], []),
    ]
    for row, settings, losses in cases:
        write_jsonl(tmp_path / "in.jsonl", [row])
        lines = printed(capsys, "convert", tmp_path / "in.jsonl", tmp_path / "out.jsonl", *settings)
        assert lines[1:] == losses
    write_jsonl(tmp_path / "in.jsonl", [pair, pair | {"references": ["r"], "x": 1}])
    joined = ["format=comparisons", "to=joined"]
    lines = printed(capsys, "convert", tmp_path / "in.jsonl", tmp_path / "out.jsonl", *joined)
    assert sorted(lines[1:]) == [
        "  lost, other keys of joined rows: 1",
        "  lost, references of joined rows: 1",
    ]


def test_no_file_that_is_read_is_replaced(tmp_path):
    """The source, the prompts of a conversion, and the source of an import by its report."""
    write_feedback_files(tmp_path)
    prompts, source = str(tmp_path / "train.json"), str(tmp_path / "train_feedback.json")
    for command in (
        ["convert", "format=spans"],
        ["import", "from=doccano"],
        ["export", "to=spans"],
    ):
        with pytest.raises(UserError, match=r"train_feedback\.json is the input"):
            data.main([command[0], source, source, command[1]])
    task = ["task=qa_feedback", "source=preference", f"prompts={prompts}"]
    with pytest.raises(UserError, match=r"train\.json is the input"):
        data.main(["convert", source, prompts, "format=comparisons", "to=pairs", *task])
    write_jsonl(tmp_path / "out.jsonl.import.json", [{"text": "a", "label": []}])
    reported = str(tmp_path / "out.jsonl.import.json")
    with pytest.raises(UserError, match=r"out\.jsonl\.import\.json is the input"):
        data.main(["import", reported, str(tmp_path / "out.jsonl"), "from=doccano"])
    sources = str(tmp_path / "source_info.jsonl")  # read by the importer, though not named
    write_jsonl(sources, [{"source_id": "1", "prompt": "Sum up."}])
    with pytest.raises(UserError, match=r"source_info\.jsonl is the input"):
        data.main(["import", str(tmp_path / "response.jsonl"), sources, "from=ragtruth"])


@pytest.mark.parametrize(
    "settings, message",
    [
        (("format=comparisons", "to=trl"), "to: `trl` is for format=steps"),
        (("format=steps", "error_at_most=0"), "error_at_most: is for to=trl, math_shepherd"),
        (("format=steps", "task=tasks.words"), "task: is for format=comparisons"),
    ],
)
def test_settings_of_convert_that_do_not_fit(tmp_path, settings, message):
    with pytest.raises(UserError, match=message):
        data.main(["convert", "in.json", str(tmp_path / "out.json"), *settings])


def test_convert_the_feedback_of_a_task(tmp_path, capsys):
    """qa-feedback in the preference format of TRL, and back."""
    write_feedback_files(tmp_path)
    pairs, joined = tmp_path / "pairs.jsonl", tmp_path / "joined.jsonl"
    task = ["task=qa_feedback", "source=preference", f"prompts={tmp_path / 'train.json'}"]
    source = tmp_path / "train_feedback.json"
    printed(capsys, "convert", source, pairs, "format=comparisons", "to=pairs", *task)
    rows = read_rows(pairs)
    assert [(row["chosen"], row["rejected"]) for row in rows] == [
        ("A cat.", "A dog."),
        ("The cat.", "A dog."),
        ("A cat.", "Nobody."),
        ("The cat.", "Nobody."),
    ]
    assert {row["prompt"] for row in rows} == {PROMPT}
    printed(capsys, "convert", pairs, joined, "format=comparisons", "to=joined")
    (row,) = read_rows(joined)
    (expected,) = SOURCES["preference"](str(source), load_examples(tmp_path / "train.json"))

    def outcomes(answers, pairs):
        return {(answers[better], answers[worse]) for better, worse in pairs}

    texts = [answer.text for answer in expected.answers]
    assert outcomes(row["responses"], row["preferences"]) == outcomes(texts, expected.pairs)
    assert row["question"] == "Who sat?" and row["passages"] == PASSAGES


def test_import_reports_what_it_dropped(tmp_path, capsys):
    rows = [
        {"text": "abc", "label": [[0, 2, "X"], [0, 9, "X"]], "relations": [1]},
        {"text": " ", "label": []},
    ]
    write_jsonl(tmp_path / "in.jsonl", rows)
    out = tmp_path / "out.jsonl"
    lines = printed(capsys, "import", tmp_path / "in.jsonl", out, "from=doccano")
    assert lines == [
        f"{out}: 1 row of judgements, from doccano",
        "  spans, offset without a quote: 1",
        "  spans, outside the text: 1",
        "  lost, relations: 1",
        "  lost, rows with a blank response: 1",
        f"  dropped: 2, all in {out}.import.json",
        "    row 0, `label[1]`: the span at [0, 9) is outside the text; the text has 3 characters",
        "    row 1, `text`: the response is blank",
    ]
    (row,) = read_rows(out)
    assert row["judgements"] == [{"aspect": "label", "label": "X", "start": 0, "end": 2} | SIDE]
    report = json.loads((tmp_path / "out.jsonl.import.json").read_text(encoding="utf-8"))
    assert (report["rows"], report["written"], report["dropped_spans"]) == (2, 1, 1)
    assert [problem["key"] for problem in report["problems"]] == ["label[1]", "text"]


SIDE = {"side": "response"}


def test_export_counts_what_it_loses(tmp_path, capsys):
    write_judgement_files(tmp_path)
    out = tmp_path / "out.json"
    lines = printed(capsys, "export", tmp_path / "judgements.jsonl", out, "to=spans")
    assert lines == [f"{out}: 1 row of spans", "  lost, annotator: 1", "  lost, aspects: 1"]
    assert read_rows(out)[0]["spans"] == [{"start": 4, "end": 8, "label": "Spelling"}]


def test_default_feedback_rows_are_judgements_and_back(tmp_path, capsys):
    source, rows, out = (tmp_path / name for name in ("rows.json", "a.jsonl", "b.json"))
    marked = {"start": 0, "end": 3, "label": "Insult", "severity": "major", "reason": "rude"}
    written = [
        {"id": "7", "prompt": "p", "response": "You fool!", "spans": [marked], "comment": "c"},
        {"id": "8", "prompt": "p", "response": "Bye.", "spans": [], "preferences": [1]},
        {"id": "9", "prompt": "p", "response": "Bye!", "ratings": [{"quality": 3}]},
    ]
    write_json(source, written)
    printed(capsys, "import", source, rows, "from=detoxification")
    lines = printed(capsys, "export", rows, out, "to=detoxification")
    assert lines == [f"{out}: 3 rows of detoxification"]
    assert read_rows(out) == written
    write_json(source, written[:2])
    lines = printed(capsys, "convert", source, rows, "format=spans", "to=judgements")
    assert lines == [f"{rows}: 2 rows of judgements"]
    assert read_rows(rows)[0]["judgements"] == [{"aspect": "span", **marked} | SIDE]
    printed(capsys, "export", rows, out, "to=spans")
    assert read_rows(out) == written[:2]


def test_agreement_of_files(tmp_path, capsys):
    write_judgement_files(tmp_path)
    first, second = tmp_path / "judgements.jsonl", tmp_path / "b.jsonl"
    (row,) = read_rows(first)
    row["judgements"][0] |= {"annotator": "r2", "end": 7}
    write_jsonl(second, [row])
    out = tmp_path / "figures.json"
    lines = printed(capsys, "agreement", first, second, f"out={out}")
    first_line = "span F1, exact, positions 0.000 (no interval: 1 of at least 5 units)"
    assert " ".join(lines[0].split()) == first_line
    figures = json.loads(out.read_text(encoding="utf-8"))
    assert figures["span F1, exact, positions"] == {"mean": 0, "low": None, "high": None}
    assert figures["span F1, one-to-one overlap, positions"]["mean"] == 1
    # 3 shared characters of spans of 4 and 3
    assert figures["span F, MPP, positions"]["mean"] == pytest.approx((3 / 4 + 1) / 2)
    assert not any("severities" in name for name in figures)
    third = tmp_path / "c.jsonl"
    write_jsonl(third, [row])
    note = printed(capsys, "agreement", first, second, third)[0]
    assert note.startswith("note: 1 response judged under one annotator's name in several files.")
    row["judgements"] = [{"aspect": "helpful", "score": 4, "annotator": "r3"}]
    write_jsonl(third, [row])
    note, *lines_with_rating = printed(capsys, "agreement", first, second, third)
    assert note == (
        "note: the figures about errors leave out 1 annotation with only scores or verdicts of"
        " other aspects"
    )
    of_scores = [line for line in lines_with_rating if "of helpful" in line or "ICC:" in line]
    of_errors = [line for line in lines_with_rating if line not in of_scores]
    assert of_errors == lines and len(of_scores) == 4


@pytest.mark.parametrize("arguments, message", read_json(FIXTURES / "data_mistakes.json"))
def test_mistakes(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    write_json(tmp_path / "a.json", [{"prompt": "a"}])
    with pytest.raises(UserError) as error:
        data.main(arguments)
    assert message in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize("arguments, code", [(["--help"], 0), ([], 2)])
def test_help_lists_every_action(capsys, arguments, code):
    with pytest.raises(SystemExit) as stopped:
        data.main(arguments)
    out = capsys.readouterr().out
    assert stopped.value.code == code
    assert "fgrlhf data convert IN OUT format=" in out and "`fgrlhf data ACTION --help`" in out
    assert all(f"fgrlhf data {name} " in out for name in data.ACTIONS)


# ---- docs/data_formats.md ------------------------------------------------------------------------

DOCUMENT = (Path(data.__file__).parents[2] / "docs" / "data_formats.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```jsonl (\w+)(?: columns=([^\n]*))?\n(.*?)^```", DOCUMENT, re.M | re.S)


@pytest.mark.parametrize("name, columns, text", BLOCKS)
def test_every_row_of_the_document_is_read(name, columns, text):
    for number, line in enumerate(text.splitlines()):
        row = Row(json.loads(line), yaml.safe_load(columns) if columns else {})
        FORMATS[name].parse(row, number)


def test_the_document_shows_every_format():
    assert {name for name, _, _ in BLOCKS} == set(FORMATS)


def test_the_commands_of_the_document_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = next(text for name, columns, text in BLOCKS if name == "comparisons" and not columns)
    Path("rows.jsonl").write_text(rows, encoding="utf-8")
    write_jsonl("steps.jsonl", [{"prompt": "a", "steps": [{"text": "b", "score": 1}]}])
    spans = next(text for name, _, text in BLOCKS if name == "spans")
    Path("spans.jsonl").write_text(spans, encoding="utf-8")
    write_feedback_files(tmp_path)
    write_judgement_files(tmp_path)
    commands = re.findall(r"^ {4}fgrlhf data (.*)$", DOCUMENT, re.M)
    for command in commands:
        data.main(command.split())
    assert len(commands) == 23 and Path("rows.parquet").exists()


def test_settings_may_stand_before_the_files(tmp_path, capsys):
    write_jsonl(tmp_path / "a.jsonl", PAIRS)
    lines = printed(capsys, "check", "format=prompts", tmp_path / "a.jsonl")
    assert lines[0] == f"{tmp_path}/a.jsonl: 2 rows of prompts, all well formed"


@pytest.mark.parametrize("action", [["agreement"], ["export", "out.json", "to=label_studio"]])
def test_rows_of_spans_are_to_be_converted_first(action, tmp_path):
    name, *rest = action
    row = {"prompt": "a", "response": "b c", "spans": [{"start": 0, "end": 1, "label": "x"}]}
    write_jsonl(tmp_path / "spans.jsonl", [row])
    with pytest.raises(UserError, match="spans.jsonl has rows of spans.*to=judgements"):
        data.main([name, str(tmp_path / "spans.jsonl"), *rest])


@pytest.mark.parametrize("action", ["check", "convert"])
def test_a_file_of_which_no_row_is_used_is_an_error(tmp_path, action):
    source = tmp_path / "rows.jsonl"
    write_jsonl(source, [{"prompt": "a", "completion": "b", "label": False}])
    files = [str(source)] + [str(tmp_path / "out.jsonl")] * (action == "convert")
    with pytest.raises(UserError, match=r"no row of demonstrations that is used \(rows with `lab"):
        data.main([action, *files, "format=demonstrations"])


@pytest.mark.parametrize("word", ["-h", "--help"])
def test_help_lists_the_keys_of_one_action(word, capsys):
    with pytest.raises(SystemExit) as exit_:
        data.main(["explore", word])
    assert exit_.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: fgrlhf data explore FILE [out=explore.html] ")
    keys = [line.split(":")[0] for line in text.splitlines() if line.startswith("  ")]
    assert len(keys) == len(set(keys)) and "  out" in keys and "  drop" not in keys
