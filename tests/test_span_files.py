"""Marked spans as files of a segment reward model."""

from types import SimpleNamespace
from typing import cast

import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, write_json, write_jsonl
from fgrlhf.configs.strict import validate
from fgrlhf.reward_utils import BLANK, MULTILINGUAL, PUBLISHED, load_segmenter
from reward_modeling import command
from reward_modeling.data import read_segment_rows
from reward_modeling.run_fg_rm import SegmentRMConfig, check_level, segmenter_of, train

ROWS = [
    {
        "prompt": "Name two primes.",
        "response": "One is 7. Another is 8. Both are small.",
        "spans": [
            {"start": 21, "end": 22, "label": "wrong"},
            {"start": 21, "end": 22, "label": "vague"},
            {"start": 24, "end": 28, "label": "vague"},
            {"start": 0, "end": 4, "label": "wrong", "side": "source"},
        ],
    },
    {"prompt": "Name a prime.", "response": "It is 5.", "spans": []},
]


@pytest.fixture
def spans(tmp_path):
    path = tmp_path / "spans.jsonl"
    write_jsonl(path, ROWS)
    return path


def write(spans, *settings: str):
    out = spans.parent / "rm" / "train.json"
    command.main(["span_files", "numbers", f"source={spans}", f"output={out}", *settings])
    return out


def test_the_file_is_what_training_reads(spans, capsys):
    out = write(spans, "level=sentence", "tags={wrong: ERROR}")
    assert capsys.readouterr().out.splitlines() == [
        f"{out}: 2 of 2 rows; segments: ERROR 1 (25.0%), O 3 (75.0%)",
        "  spans left out, label 'vague': 2",
        "  spans left out, on the source side: 1",
    ]
    first, second = read_segment_rows(out, ("ERROR", "O"), "Ignore", "sentence")
    assert first.labels == (1, 0, 1) and second.labels == (1,)
    assert [" ".join(words) for words in first.text.segments] == [
        *("One is 7.", "Another is 8.", "Both are small.")
    ]
    assert " ".join(first.text.prefix.all_words) == "Name two primes."
    description = load_segmenter().describe()
    description |= {"levels": {"train.json": "sentence"}, "tags": {"train.json": ["wrong"]}}
    assert read_json(out.parent / "segmenter.json") == description

    def recorded(segmenter):
        data = SimpleNamespace(train_file=str(out), segmenter=segmenter)
        return segmenter_of(cast(SegmentRMConfig, SimpleNamespace(data=data)))

    assert recorded(None) == recorded(MULTILINGUAL) == load_segmenter().describe()
    with pytest.raises(UserError, match="says that multilingual divided the responses"):
        recorded(BLANK)
    (out.parent / "segmenter.json").unlink()
    assert recorded(None) == load_segmenter().describe()
    assert recorded(PUBLISHED) == load_segmenter(PUBLISHED).describe()


def test_files_of_one_folder_have_the_segments_of_one_segmenter(spans):
    out = write(spans, "level=sentence", "tags={wrong: ERROR}")
    file = out.parent / "segmenter.json"
    description = read_json(file)
    (key, *_) = load_segmenter().describe()
    write_json(file, {**description, key: "another"})
    words = [f"source={spans}", f"output={out.parent / 'dev.json'}", "level=sentence"]
    with pytest.raises(UserError, match="segments of train.json are those of another segmenter"):
        command.main(["span_files", "numbers", *words, "tags={wrong: ERROR}"])
    assert not (out.parent / "dev.json").exists()
    write(spans, "level=sentence", "tags={wrong: ERROR}")  # the only file is written again
    assert read_json(file) == description


def test_a_model_of_another_level_than_its_file_is_refused(spans):
    out = write(spans, "level=sentence", "tags={wrong: ERROR}")
    words = [f"source={spans}", f"output={out.parent / 'words.json'}", "level=word"]
    command.main(["span_files", "numbers", *words, "tags={wrong: ERROR}"])

    for file, level in (("train.json", "sentence"), ("words.json", "word"), ("b.json", "step")):
        check_level(str(out.parent / file), level)
    for file, level in (("train.json", "subsentence"), ("words.json", "sentence")):
        with pytest.raises(UserError, match=f"data.level={level}, but the segments in .*{file}"):
            check_level(str(out.parent / file), level)


def test_training_checks_the_level_of_both_files(spans):
    out = write(spans, "level=sentence", "tags={wrong: ERROR}")
    words = out.parent / "words.json"
    text = [f"source={spans}", f"output={words}", "level=word", "tags={wrong: ERROR}"]
    command.main(["span_files", "numbers", *text])
    for train_file, dev_file in ((out, words), (words, out)):
        files = {"train_file": str(train_file), "dev_file": str(dev_file)}
        tree = {
            "model": {"ckpt": "none", "max_input_len": 64},
            "data": {**files, "level": "sentence", "with_context": False},
            "labels": {"error": "ERROR"},
            "logging": {"run_name": "levels", "save_dir": str(out.parent / "model")},
        }
        config = validate(SegmentRMConfig, tree, "test config")
        with pytest.raises(UserError, match="the segments in .*words.json are of the level `word`"):
            train(config)


@pytest.mark.parametrize("level", ["sentence", "whole"])
def test_a_separator_that_is_a_word_of_the_texts_is_no_mark(tmp_path, level):
    """Prompts of several turns may have been written with `</s>` between them."""
    spans = tmp_path / "spans.jsonl"
    text = {"prompt": "Hi. </s> Name a cat.", "response": "Tom. He </s> is red."}
    write_jsonl(spans, [{**text, "spans": [{"start": 5, "end": 7, "label": "wrong"}]}])
    out = write(spans, f"level={level}", "tags={wrong: ERROR}")
    (row,) = read_segment_rows(out, ("ERROR", "O"), "Ignore", level)
    assert " ".join(row.text.prefix.all_words) == text["prompt"]
    of_level = {
        "sentence": (["Tom.", "He </s> is red."], (1, 0)),
        "whole": ([text["response"]], (0,)),
    }
    segments, labels = of_level[level]
    assert [" ".join(words) for words in row.text.segments] == segments
    assert row.labels == labels


def test_the_first_label_of_the_tags_decides(spans):
    first_tags = {
        "{wrong: ERROR, vague: VAGUE}": (2, 0, 1),
        "{vague: VAGUE, wrong: ERROR}": (2, 1, 1),
    }
    for tags, labels in first_tags.items():
        out = write(spans, "level=sentence", f"tags={tags}")
        first, _ = read_segment_rows(out, ("ERROR", "VAGUE", "O"), "Ignore", "sentence")
        assert first.labels == labels


def graded(tmp_path, **parts):
    """A response whose sentences have marks of a label and different severities."""
    text = "One is 7. Another is 8. Both are small."
    marks = [("Fact", 0, 3, "minor"), ("Fact", 10, 17, "major"), ("Style", 24, 28, "minor")]
    keys = ("label", "start", "end", "severity")
    spans = [dict(zip(keys, mark)) for mark in marks]
    write_jsonl(tmp_path / "spans.jsonl", [{"response": text, "spans": spans, **parts}])
    return tmp_path / "spans.jsonl"


@pytest.mark.parametrize(
    ("tags", "labels", "lines"),
    [
        ("Fact.major: A", (2, 0, 2), {"label 'Fact', severity 'minor': 1", "label 'Style': 1"}),
        ("Fact.major: A, Fact.minor: B", (1, 0, 2), {"label 'Style': 1"}),
        ("Fact.major: A, Fact: B", (1, 0, 2), {"label 'Style': 1"}),
        ("Fact: A, Style.minor: B", (0, 0, 1), {"with the same tag: Fact.minor 1, Fact.major 1;"}),
    ],
)
def test_severities_are_names_of_tags_or_counted(tmp_path, capsys, tags, labels, lines):
    out = write(graded(tmp_path), "level=sentence", f"tags={{{tags}}}")
    (row,) = read_segment_rows(out, ("A", "B", "O"), "Ignore", "sentence")
    assert row.labels == labels
    printed = capsys.readouterr().out
    assert all(line in printed for line in lines)
    assert printed.count("spans left out") + printed.count("same tag") == len(lines)


def test_sources_that_are_not_read_are_noted(tmp_path, capsys):
    note = "no row has a prompt, but 1 have a `source`, which the reward model will not read"
    prompts = {"columns.prompt=source": {}, "segmenter=multilingual": {"prompt": "Say it."}}
    write(graded(tmp_path, source="Es ist so."), "level=sentence", "tags={Fact: A}")
    assert note in capsys.readouterr().out
    for key, parts in prompts.items():
        spans = graded(tmp_path, source="Es ist so.", **parts)
        write(spans, "level=sentence", "tags={Fact: A}", key)
        assert "note:" not in capsys.readouterr().out
    write(graded(tmp_path), "level=sentence", "tags={Fact: A}")
    assert "note:" not in capsys.readouterr().out


def test_words_and_renamed_columns(tmp_path):
    mark = {"start": 6, "end": 7, "label": "wrong"}
    row = {"q": "Name a prime.", "a": "It is 8.", "marks": [mark]}
    write_jsonl(tmp_path / "spans.jsonl", [row])
    columns = "columns={prompt: q, response: a, spans: marks}"
    out = write(tmp_path / "spans.jsonl", "level=word", "tags={wrong: ERROR}", columns)
    (read,) = read_segment_rows(out, ("ERROR", "O"), "Ignore", "word")
    assert read.labels == (1, 1, 0)


@pytest.mark.parametrize(
    "settings, message",
    [
        (["level=sentence", "tags={wrnog: ERROR}"], "no span of .* has the label 'wrnog'; its"),
        (["level=token", "tags={wrong: ERROR}"], "Use level=word"),
        (["level=sentence", "tags={wrong: O}"], "tags.wrong: O is the tag of segments that are"),
        (["level=sentence", "tags={wrong: ERROR}", "with_context=true"], "numbers does not mark"),
        (["level=sentence", "tags={}"], "tags"),
        (["level=line", "tags={wrong: ERROR}"], "`line` is not a level of segments"),
        (["level=sentence"], "tags"),
    ],
)
def test_mistakes_are_named_and_nothing_is_written(spans, settings, message):
    with pytest.raises(UserError, match=message):
        write(spans, *settings)
    assert [path.name for path in spans.parent.iterdir()] == ["spans.jsonl"]


def test_held_out_rows_may_lack_a_label_that_the_other_rows_have(spans, capsys):
    """By chance: two held-out rows of twelve had no error of the kind."""
    right = spans.parent / "right.jsonl"
    write_jsonl(right, [{"prompt": "Name a prime.", "response": "It is 7.", "spans": []}])
    words = [f"source={right}", f"output={spans.parent / 'rm' / 'dev.json'}", "level=sentence"]
    rest = f"output={spans.parent / 'rm' / 'train.json'}", "level=sentence", "tags={wrong: ERROR}"
    with pytest.raises(UserError, match="has the label 'wrong'"):  # the other rows come first
        command.main(["span_files", "numbers", *words, "tags={wrong: ERROR}"])
    command.main(["span_files", "numbers", f"source={spans}", *rest])
    command.main(["span_files", "numbers", *words, "tags={wrong: ERROR}"])
    for tags in ("{wrnog: ERROR}", "{wrong: ERROR, wrnog: ERROR}"):
        with pytest.raises(UserError, match="has the label 'wrnog'"):
            command.main(["span_files", "numbers", *words, f"tags={tags}"])
    note = "note: no span has the label 'wrong', which other files here have"
    assert capsys.readouterr().out.count(note) == 1
    (row,) = read_segment_rows(spans.parent / "rm" / "dev.json", ("ERROR", "O"), "Ignore", "word")
    assert set(row.labels) == {1}


@pytest.mark.parametrize("source, output", [("a.json", "a.json"), ("segmenter.json", "a.json")])
def test_the_marked_spans_are_never_replaced(tmp_path, source, output):
    write_jsonl(tmp_path / source, ROWS)
    before = (tmp_path / source).read_bytes()
    words = [f"source={tmp_path / source}", f"output={tmp_path / output}"]
    with pytest.raises(UserError, match="is the input, so it cannot be the output too"):
        command.main(["span_files", "numbers", *words, "level=sentence", "tags={wrong: ERROR}"])
    assert (tmp_path / source).read_bytes() == before


def test_the_description_of_the_segmenter_keeps_its_name(spans):
    words = [f"source={spans}", f"output={spans.parent}/rm/segmenter.json"]
    with pytest.raises(UserError, match=r"segmenter\.json describes the segmenter"):
        command.main(["span_files", "numbers", *words, "level=sentence", "tags={wrong: ERROR}"])


@pytest.mark.parametrize("level", ["sentence", "step:-"])
def test_spans_between_segments_are_counted(tmp_path, capsys, level):
    places = ((4, 5), (6, 7), (6, 8))
    spans = [{"start": start, "end": end, "label": "wrong"} for start, end in places]
    between = {"sentence": "One.   Two.", "step:-": "One. - Two."}
    write_jsonl(tmp_path / "spans.jsonl", [{"response": between[level], "spans": spans}])
    write(tmp_path / "spans.jsonl", f"level={level}", "tags={wrong: ERROR}")
    assert capsys.readouterr().out.splitlines()[1:] == ["  spans left out, between segments: 2"]


def test_a_file_without_segments_is_refused(tmp_path):
    row = {"response": "#", "spans": [{"start": 0, "end": 1, "label": "wrong"}]}
    write_jsonl(tmp_path / "spans.jsonl", [row])
    with pytest.raises(UserError, match="has no segment"):
        write(tmp_path / "spans.jsonl", "level=step:#", "tags={wrong: ERROR}")


def test_marks_of_every_response_train_the_model(tmp_path, capsys):
    row = {"prompt": "Name a prime.", "response": "It is 7.", "spans": []}
    row["responses"] = ["It is 7.", "It is 8."]
    row["other_spans"] = [[{"start": 6, "end": 7, "label": "wrong"}]]
    source = tmp_path / "spans.jsonl"
    write_jsonl(source, [row])
    out = write(source, "level=sentence", "tags={wrong: ERROR}")
    assert capsys.readouterr().out.splitlines() == [
        f"{out}: 2 of 2 rows; segments: ERROR 1 (50.0%), O 1 (50.0%)",
        "  responses after the first of their row, each with its own spans: 1",
    ]


def test_rows_of_another_task_are_refused_with_the_key_they_lack(spans):
    words = ["span_files", "qa_feedback", f"source={spans}", f"output={spans.parent / 'x.json'}"]
    with pytest.raises(UserError, match="row 0 has no `question`, which rows of qa_feedback need"):
        command.main([*words, "level=sentence", "tags={wrong: ERROR}"])
