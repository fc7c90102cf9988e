"""Translations and raters of WMT's MQM files; the tables themselves are the importer's."""

import os
from pathlib import Path

import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, write_jsonl, write_text
from tasks.translation.data.wmt_mqm import WmtMqmSettings, part_of, prepare, read_mqm
from tasks.translation.mqm import MAJOR, MINOR, PUNCTUATION, read_rated, row_of
from tasks.translation.reward_modeling.create_rm_files import severity_tags

COLUMNS = (
    *("system", "doc", "doc_id", "seg_id", "rater"),
    *("source", "target", "category", "severity", "comment"),
)


def row(source, target, category="No-error", severity="No-error", **place) -> dict[str, str]:
    place = {"system": "A", "doc": "talk.1", "doc_id": "1", "seg_id": "1", "rater": "r"} | place
    texts = {"source": source, "target": target, "category": category, "severity": severity}
    return {**place, **texts, "comment": ""}


def write(path: Path, rows) -> Path:
    lines = ["\t".join(COLUMNS)]
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
    judgements, left_out = read_mqm(write(tmp_path / "x.tsv", rows))
    first, second = judgements
    assert (first.prompt.text, first.response) == ('A "b" c.', "Ä  ☕🙂 b, c")
    marked = [(first.response[m.start : m.end], m.severity) for m in first.errors]
    assert marked == [("Ä", MINOR), ("☕🙂", MAJOR), (",", PUNCTUATION)]
    assert [(m.start, m.end, m.severity) for m in first.omissions] == [(7, 8, MAJOR)]
    assert first.score == pytest.approx(-(1 + 5 + 0.1 + 5))
    assert (second.errors, second.omissions, second.score) == ((), (), 0.0)
    assert not left_out


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


UNMARKED = "translations with an error that is not marked as one <v>...</v>"


@pytest.mark.parametrize(
    "fault, reason",
    [
        (row("a", "b <v>c", "Other", "Major"), UNMARKED),
        (row("a", "b </v>c<v>", "Other", "Major"), UNMARKED),
        (row("a", "b c", "Other", "Major"), UNMARKED),
        (row("a", "b <v> </v>c", "Other", "Major"), "translations with an empty mark"),
        (
            row("a", "<v>b</v> c", "Other", "Grave"),
            "translations with the unknown severity 'Grave'",
        ),
        (row(" ", "b"), "translations without a source"),
        (row("a", " "), "rows with a blank response"),
    ],
)
def test_a_faulty_translation_is_left_out_and_counted(fault, reason, tmp_path):
    rows = [fault, row("a", "b c", seg_id="2")]
    judgements, left_out = read_mqm(write(tmp_path / "x.tsv", rows))
    assert [judgement.prompt.id for judgement in judgements] == ["talk.1.2.A.r"]
    assert left_out == {reason: 1}


def test_rows_of_a_rater_must_fit_together(tmp_path):
    rows = [row("a", "b"), row("a", "<v>b</v>", "Other", "Major"), row("a", "b", rater="s")]
    (judgement,), left_out = read_mqm(write(tmp_path / "x.tsv", rows))
    assert judgement.prompt.meta["rater"] == "s"
    assert left_out == {"translations with errors and a row without an error": 1}


def test_a_table_without_documents_is_refused(tmp_path):
    columns = tuple(column for column in COLUMNS if column != "doc")
    lines = [columns, [row("a", "b")[column] for column in columns]]
    write_text(tmp_path / "x.tsv", "\n".join("\t".join(cells) for cells in lines) + "\n")
    with pytest.raises(UserError, match="has no column `doc`"):
        read_mqm(tmp_path / "x.tsv")


def documents(part: str, n: int) -> list[str]:
    return [name for name in (f"talk.{i}" for i in range(200)) if part_of(name) == part][:n]


def test_documents_are_split(tmp_path):
    rows = []
    for part in ("train", "dev", "test"):
        for doc in documents(part, 2):
            rows.append(row(f"source {doc}", "b <v>c</v>", "Other", "Major", doc=doc))
            rows.append(row(f"source {doc}", "d", doc=doc, system="ref"))
    write(tmp_path / "x.tsv", rows)
    prepare(
        WmtMqmSettings(source=str(tmp_path), data_dir=str(tmp_path / "out"), before_source="<2de>")
    )
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
        prepare(WmtMqmSettings(**settings, subset_size=5))
        chosen.append(read_rated(tmp_path / name / "judged_train.jsonl"))
    assert chosen[0] == chosen[1] and len(chosen[0]) == 5
    responses = [judgement.response for judgement in chosen[0]]
    assert responses != [f"b {n}" for n in range(5)]
    assert "by a human" not in responses  # and still a reference
    (prompt,) = read_json(tmp_path / "first" / "train.json")
    assert prompt["references"] == ["by a human"]


def test_a_folder_needs_one_file_and_enough_documents(tmp_path):
    settings = WmtMqmSettings(source=str(tmp_path), data_dir=str(tmp_path / "out"))
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
    judgements, left_out = read_mqm(path)
    assert len(judgements) == 7405 and left_out == {UNMARKED: 1}
    assert sum(len(judgement.errors) for judgement in judgements) == 4016
    assert sum(len(judgement.omissions) for judgement in judgements) == 14
    assert sum(judgement.is_capped for judgement in judgements) == 12
    assert not any("<v>" in j.prompt.text + j.response for j in judgements)
