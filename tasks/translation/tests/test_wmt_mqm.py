"""The reader of WMT's MQM files: every planted fault is found, and no mark is moved."""

import os
from pathlib import Path

import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, write_jsonl, write_text
from tasks.translation.data.wmt_mqm import COLUMNS, Settings, part_of, prepare, read_mqm
from tasks.translation.mqm import MAJOR, MINOR, PUNCTUATION, read_rated, row_of
from tasks.translation.reward_modeling.create_rm_files import severity_tags


def row(source, target, category="No-error", severity="No-error", **place) -> dict[str, str]:
    place = {"system": "A", "doc": "talk.1", "doc_id": "1", "seg_id": "1", "rater": "r"} | place
    texts = {"source": source, "target": target, "category": category, "severity": severity}
    return {**place, **texts, "comment": ""}


def write(path: Path, rows, columns=COLUMNS) -> Path:
    lines = ["\t".join(columns)]
    lines += ["\t".join(values[column] for column in COLUMNS) for values in rows]
    write_text(path, "\n".join(lines) + "\n")
    return path


def test_marks_are_offsets_of_the_text_without_tags(tmp_path):
    rows = [
        row('A "b" c.', "Ä <v> ☕🙂 </v>b, c", "Accuracy/Mistranslation", "Major"),
        row('A "b" c.', "<v>Ä</v>  ☕🙂 b, c", "Style/Awkward", "minor"),
        row('A "b" c<v>.</v>', "Ä  ☕🙂 b, c", "Accuracy/Omission", "Major"),
        row('A "b" c.', "Ä  ☕🙂 b<v>,</v> c", "Fluency/Punctuation", "Minor"),
        row('A "b" c.', "rein", system="B"),
    ]
    judgements, losses = read_mqm(write(tmp_path / "x.tsv", rows))
    first, second = judgements
    assert (first.prompt.text, first.response) == ('A "b" c.', "Ä  ☕🙂 b, c")
    marked = [(first.response[m.start : m.end], m.severity) for m in first.errors]
    assert marked == [("Ä", MINOR), ("☕🙂", MAJOR), (",", PUNCTUATION)]
    assert [(m.start, m.end, m.severity) for m in first.omissions] == [(7, 8, MAJOR)]
    assert first.score == pytest.approx(-(1 + 5 + 0.1 + 5))
    assert (second.errors, second.omissions, second.score) == ((), (), 0.0)
    assert losses.describe() == "no segment was left out"


@pytest.mark.parametrize("severity", ["Major", "Minor", "neutral"])
@pytest.mark.parametrize("category", ["Non-translation!", "non-translation"])
def test_a_non_translation_has_the_greatest_weight(category, severity, tmp_path):
    """25 for one mark (Freitag et al. 2021, table 1); its words count as major errors."""
    path = write(tmp_path / "x.tsv", [row("a", "<v>b c</v>", category, severity)])
    ((judgement,), _) = read_mqm(path)
    assert judgement.score == -25.0
    write_jsonl(tmp_path / "x.jsonl", [row_of(judgement)])
    (read,) = read_rated(tmp_path / "x.jsonl")
    assert read.score == -25.0
    assert severity_tags(read.response, read.errors, read.is_capped) == [MAJOR, MAJOR]


FAULTS = [
    (row("a", "b <v>c"), "its mark is not one <v>...</v>"),
    (row("a", "b </v>c<v>"), "its mark is not one <v>...</v>"),
    (row("a", "b <v>c</v>"), "a row without an error has a mark"),
    (row("a", "b <v> </v>c", "Other", "Major"), "its mark is empty"),
    (row("a", "b c", "Other", "Major"), "marked in both texts or in none"),
    (row("<v>a</v>", "<v>b</v> c", "Other", "Major"), "marked in both texts or in none"),
    (row("a", "<v>b</v> c", "Other", "Grave"), "the severity 'Grave' is not known"),
    (row("a", " "), "its source or its translation is blank"),
]


@pytest.mark.parametrize("fault, reason", FAULTS)
def test_a_faulty_segment_is_left_out_and_counted(fault, reason, tmp_path):
    rows = [fault, row("a", "b c", seg_id="2")]
    judgements, losses = read_mqm(write(tmp_path / "x.tsv", rows))
    assert [judgement.prompt.id for judgement in judgements] == ["talk.1.2.A.r"]
    assert len(losses.counts) == 1 and f"1 because {reason}"[:40] in losses.describe()[18:].replace(
        "an error is ", ""
    )


@pytest.mark.parametrize(
    "second, reason",
    [
        (row("a", "other"), "its rows have different texts"),
        (row("a", "<v>b</v>", "Other", "Major"), "errors and a row without an error"),
    ],
)
def test_rows_of_a_segment_must_fit_together(second, reason, tmp_path):
    judgements, losses = read_mqm(write(tmp_path / "x.tsv", [row("a", "b"), second]))
    assert judgements == [] and reason in losses.describe()


def test_damaged_files_are_refused(tmp_path):
    path = write(tmp_path / "x.tsv", [row("a", "b")], ("system", "text"))
    with pytest.raises(UserError, match="has the columns system, text; needed are system, doc"):
        read_mqm(path)
    write_text(path, "\t".join(COLUMNS) + "\nonly\ttwo\n")
    with pytest.raises(UserError, match="line 2 has 2 columns instead of 10"):
        read_mqm(path)
    write(path, [row("a" * 200_000, "b")])
    with pytest.raises(UserError, match=r"x\.tsv is damaged: field larger than field limit"):
        read_mqm(path)


@pytest.mark.parametrize("separator", ["\u2028", "\x85", "\f"])
def test_separators_of_lines_inside_a_cell_are_characters_of_its_text(separator, tmp_path):
    path = write(tmp_path / "x.tsv", [row(f"a{separator}b", "c")])
    ((judgement,), _) = read_mqm(path)
    assert judgement.prompt.text == f"a{separator}b"


def documents(part: str, n: int) -> list[str]:
    return [name for name in (f"talk.{i}" for i in range(200)) if part_of(name) == part][:n]


def test_documents_are_split(tmp_path):
    rows = []
    for part in ("train", "dev", "test"):
        for doc in documents(part, 2):
            rows.append(row(f"source {doc}", "b <v>c</v>", "Other", "Major", doc=doc))
            rows.append(row(f"source {doc}", "d", doc=doc, system="ref"))
    write(tmp_path / "x.tsv", rows)
    prepare(Settings(source=str(tmp_path), data_dir=str(tmp_path / "out"), before_source="<2de>"))
    for part in ("train", "dev", "test"):
        judged = read_rated(tmp_path / "out" / f"judged_{part}.jsonl")
        assert {judgement.prompt.meta["doc"] for judgement in judged} == set(documents(part, 2))
        prompts = read_json(tmp_path / "out" / f"{part}.json")
        assert [prompt["prompt"] for prompt in prompts] == [
            f"<2de> source {doc}" for doc in documents(part, 2)
        ]
        assert all(prompt["references"] == ["d"] for prompt in prompts)


def test_a_subset_is_a_fixed_sample(tmp_path):
    rows = []
    for part in ("train", "dev", "test"):
        doc = documents(part, 1)[0]
        rows += [row("a", f"b {n}", doc=doc, system=f"S{n}") for n in range(20)]
        rows += [row("a", "by a human", doc=doc, system="ref")]
    write(tmp_path / "x.tsv", rows)
    chosen = []
    for name, order in (("first", rows), ("second", rows[::-1])):
        write(tmp_path / "x.tsv", order)
        settings = {"source": str(tmp_path), "data_dir": str(tmp_path / name)}
        prepare(Settings(**settings, subset_size=5))
        chosen.append(read_rated(tmp_path / name / "judged_train.jsonl"))
    assert chosen[0] == chosen[1] and len(chosen[0]) == 5
    responses = [judgement.response for judgement in chosen[0]]
    assert responses != [f"b {n}" for n in range(5)]
    assert "by a human" not in responses  # and still a reference
    (prompt,) = read_json(tmp_path / "first" / "train.json")
    assert prompt["references"] == ["by a human"]


def test_a_folder_needs_one_file_and_enough_documents(tmp_path):
    settings = Settings(source=str(tmp_path), data_dir=str(tmp_path / "out"))
    with pytest.raises(UserError, match="has 0 .tsv files; one is needed"):
        prepare(settings)
    write(tmp_path / "x.tsv", [row("a", "b", doc=documents("train", 1)[0])])
    with pytest.raises(UserError, match="no document falls into the part dev"):
        prepare(settings)


def test_the_published_file():
    folder = os.environ.get("FGRLHF_QA_FEEDBACK")
    path = Path(folder or "").parent / "wmt_mqm" / "mqm_ted_ende.tsv"
    if not folder or not path.exists():
        pytest.skip("wmt_mqm is not beside the folder that FGRLHF_QA_FEEDBACK names")
    judgements, losses = read_mqm(path)
    assert len(judgements) == 7405 and losses.counts == {"its mark is not one <v>...</v>": 1}
    assert sum(len(judgement.errors) for judgement in judgements) == 4016
    assert sum(len(judgement.omissions) for judgement in judgements) == 14
    assert sum(judgement.is_capped for judgement in judgements) == 12
    assert not any("<v>" in j.prompt.text + j.response for j in judgements)
