"""The mini world: rows in the published format, seeded, with answers of the promised length."""

import random

import pytest

from fgrlhf.base.files import read_json
from tasks.qa_feedback.data.language import TOY, Claim, ErrorRates
from tasks.qa_feedback.data.mini_world import (
    MiniWorldSettings,
    demonstration,
    gold_sentences,
    make_item,
    make_row,
    recital,
    write_world,
)
from tasks.qa_feedback.data.oracle import judge

NO_ERRORS = ErrorRates(drop_work=0, drop_claim=0, irrelevant=0, wrong_value=0, repeat=0)


def truth(row):
    return judge(row["question"], row["passages"], row["answer"][0])


def test_texts_by_hand():
    claims = [Claim("film", "created", "Borborbor"), Claim("film", "sold", "Axoaxoaxo")]
    assert (
        TOY.compose([claims, claims[:1]])
        == "The film was created by Borborbor; the film was sold in Axoaxoaxo. The film was created"
        " by Borborbor."
    )
    assert TOY.compose([]) == ""
    assert (
        TOY.question("Aa Bb", ("created", "sold", "made"), random.Random(0))
        == "Where or by whom was Aa Bb created, sold and made?"
    )


def test_row_has_the_published_form():
    row = make_row(0, "train", 0)
    assert set(row) == {"text", "question", "passages", "answer"}
    assert all(set(passage) == {"content", "wikipage"} for passage in row["passages"])
    pages = " | ".join(f"wikipage: {p['wikipage']} text: {p['content']}" for p in row["passages"])
    assert row["text"] == f"question: {row['question']} context: {pages}"


def test_rows_are_a_function_of_seed_split_and_index():
    assert make_row(3, "dev", 7) == make_row(3, "dev", 7)
    assert make_row(3, "dev", 7) != make_row(4, "dev", 7)
    assert make_row(3, "dev", 7)["question"] != make_row(3, "test", 7)["question"]


def test_gold_answers_are_perfect_and_of_six_to_ten_subsentences():
    judged = [truth(make_row(0, "train", i)) for i in range(200)]
    assert all(j.gold == j.relevance == j.factuality == j.completeness == 1 for j in judged)
    assert 6 <= sum(len(j.subsentences) for j in judged) / 200 <= 10
    assert {len(j.subsentences) for j in judged} == {6, 9}


def test_demonstrations_without_errors_are_gold():
    item = make_item(0, "sft", 1)
    assert demonstration(random.Random(0), item, NO_ERRORS) == gold_sentences(item)


@pytest.mark.parametrize(
    "error, measure",
    [
        ({"drop_claim": 0.5}, "completeness"),
        ({"drop_work": 0.9}, "completeness"),
        ({"irrelevant": 1.0}, "relevance"),
        ({"repeat": 1.0}, "relevance"),
        ({"wrong_value": 1.0}, "factuality"),
    ],
)
def test_each_error_rate_lowers_its_own_measure(error, measure):
    rates = ErrorRates(**{**vars(NO_ERRORS), **error})
    judged = [truth(make_row(0, "sft", i, rates)) for i in range(60)]
    assert sum(getattr(j, measure) for j in judged) / 60 < 0.85
    untouched = {
        "completeness": "relevance",
        "relevance": "completeness",
        "factuality": "relevance",
    }[measure]
    assert sum(getattr(j, untouched) for j in judged) / 60 == 1


def test_recitals_state_every_fact_once():
    item = make_item(0, "pretrain", 5)
    said = [claim for sentence in recital(random.Random(0), item) for claim in sentence]
    assert sorted(map(str, said)) == sorted(
        str(claim) for page in item.pages for claim in page.claims
    )
    assert {claim.verb for claim in said} <= set(TOY.attributes)


def test_write_world(tmp_path):
    write_world(
        MiniWorldSettings(data_dir=str(tmp_path), train=3, dev=2, test=2, pretrain=2, sft=2)
    )
    sizes = {path.stem: len(read_json(path)) for path in tmp_path.glob("*.json")}
    assert sizes == {"train": 3, "dev": 2, "test": 2, "pretrain": 2, "sft": 2, "train_1k": 2}
    for rows in (read_json(path) for path in tmp_path.glob("*.json")):
        assert all(
            judge(row["question"], row["passages"], "").needed
            for row in rows
            if "What is known" not in row["question"]
        )
