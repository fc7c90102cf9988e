"""Rows of single good and bad responses, and their conversion from and to pairs and spans."""

from collections import Counter

import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_jsonl
from fgrlhf.base.records import RowError
from fgrlhf.cli import data
from fgrlhf.data.comparison_rows import COMPARISONS
from fgrlhf.data.comparisons import Answer, Comparison, edits
from fgrlhf.data.formats import FORMATS
from fgrlhf.data.read import read_rows
from fgrlhf.data.rows import Row
from fgrlhf.data.shapes import split_pair
from fgrlhf.data.unpaired_rows import UNPAIRED
from fgrlhf.text_types import Prompt

GOOD = {"prompt": "Name a prime.", "completion": "7", "label": True}
BAD = {"prompt": "Name a prime.", "completion": "It is 8.", "label": False, "marked": [[6, 7]]}


def test_a_row_is_one_judged_response_and_back():
    item = UNPAIRED.parse(Row({**BAD, "topic": "x"}, {}), 3)
    assert item.answers == (Answer("It is 8.", ((6, 7),)),)
    assert item.labels == (False,) and item.pairs == () and item.prompt.meta == {"topic": "x"}
    assert UNPAIRED.to_row(item) == {"id": "3", **BAD, "topic": "x"}
    numbers = {**GOOD, "label": 1, "completion": [{"role": "assistant", "content": "7"}]}
    assert UNPAIRED.parse(Row(numbers, {}), 0).labels == (True,)
    assert UNPAIRED.parse(Row({**GOOD, "label": 0.0}, {}), 0).labels == (False,)  # by pandas
    renamed = Row({"prompt": "p", "response": "r", "vote": 0}, {"label": "vote"})
    assert UNPAIRED.parse(renamed, 0).labels == (False,)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"label": "good"}, "`label`: must be true for a good completion or false"),
        ({"label": 0.5}, "`label`: must be true for a good completion or false"),
        ({"label": 2}, "`label`: must be true for a good completion or false"),
        ({"label": None}, "`label`: is null"),
        ({"completion": " "}, "`completion`: "),
        ({"marked": [[0, 9]]}, r"`marked\[0\]"),
        ({"marked": [3]}, r"`marked\[0\]`: must be \[start, end\]"),
    ],
)
def test_rows_that_are_refused(change, message):
    with pytest.raises(RowError, match=message):
        UNPAIRED.parse(Row(GOOD | change, {}), 0)


def test_rows_of_the_other_format_are_refused_with_a_way_out():
    pair = {"prompt": "Name a prime.", "chosen": "7", "rejected": "8"}
    with pytest.raises(RowError, match="data.pairs=comparisons, or .*to=unpaired") as refused:
        UNPAIRED.parse(Row(pair, {}), 0)
    assert not refused.value.missing  # or the message would ask for another name of the key
    for row in (GOOD, {"prompt": "p", "response": "r", "label": 0}):
        with pytest.raises(RowError, match="data.pairs=unpaired dpo.loss=kto.*to=pairs") as refused:
            COMPARISONS.parse(Row(row, {}), 0)
        assert not refused.value.missing
    # a label beside responses is a key of the task
    battle = {"prompt": "p", "responses": ["a", "b"], "scores": [1, 0], "label": 1}
    assert COMPARISONS.parse(Row(battle, {}), 0).pairs == ((0, 1),)


def convert(tmp_path, capsys, rows, *settings) -> tuple[list[dict], list[str]]:
    """The rows that `convert` writes, without ids, and what it prints about losses."""
    write_jsonl(tmp_path / "in.jsonl", rows)
    out = tmp_path / "out.jsonl"
    data.main(["convert", str(tmp_path / "in.jsonl"), str(out), *settings])
    lost = [line.strip() for line in capsys.readouterr().out.splitlines()[1:]]
    written = [{key: value for key, value in row.items() if key != "id"} for row in read_rows(out)]
    return written, lost


PAIR = {"prompt": "p", "chosen": "a", "rejected": "b"}


def test_pairs_become_unpaired_and_pairs_again(tmp_path, capsys):
    rows = [PAIR, {"prompt": "q", "chosen": "c", "rejected": "d"}]
    single, lost = convert(tmp_path, capsys, rows, "format=comparisons", "to=unpaired")
    assert single == [
        {"prompt": "p", "completion": "a", "label": True},
        {"prompt": "p", "completion": "b", "label": False},
        {"prompt": "q", "completion": "c", "label": True},
        {"prompt": "q", "completion": "d", "label": False},
    ]
    assert lost == []
    assert convert(tmp_path, capsys, single, "format=unpaired", "to=pairs") == (rows, [])


def test_several_responses_become_unpaired_with_losses(tmp_path, capsys):
    ranked = {"prompt": "p", "responses": ["x", "y", "z"], "scores": [0, 5, 1]}
    tied = {"prompt": "q", "responses": ["x", "y"], "scores": [1, 1]}
    single, lost = convert(tmp_path, capsys, [ranked, tied], "format=comparisons", "to=unpaired")
    assert [(row["completion"], row["label"]) for row in single] == [("x", False), ("y", True)]
    assert set(lost) == {
        "lost, margins: 3",
        "lost, comparisons without a decided pair: 1",
        "lost, responses that are better as often as worse: 1",
    }


def test_unpaired_become_comparisons_with_losses(tmp_path, capsys):
    rows = [
        {"prompt": "a", "completion": "good", "label": True, "topic": "x"},
        {"prompt": "b", "completion": "alone", "label": True},
        {"prompt": "a", "completion": "bad", "label": False, "topic": "x", "marked": [[0, 3]]},
        {"prompt": "a", "completion": "both", "label": False, "topic": "y"},
        {"prompt": "a", "completion": "both", "label": True, "topic": "x"},
        {"prompt": "a", "completion": "worse", "label": 0, "topic": "x"},
        {"prompt": "a", "completion": "worse", "label": 0, "topic": "x"},
    ]
    joined, lost = convert(tmp_path, capsys, rows, "format=unpaired", "to=joined")
    assert joined == [
        {
            "prompt": "a",
            "responses": ["good", "bad", "worse"],
            "preferences": [[0, 1], [0, 2]],
            "marked": [[], [[0, 3]], []],
            "topic": "x",
        }
    ]
    assert set(lost) == {
        "lost, other keys of rows that are not the first of their prompt: 1",
        "lost, completions with both labels: 1",
        "lost, completions of prompts without a good or without a bad one: 1",
        "lost, repeated rows: 1",
    }


SPAN = {"start": 6, "end": 7, "label": "wrong", "severity": "major"}
SPANS = [
    {"prompt": "p", "response": "It is 8.", "spans": [SPAN]},
    {"prompt": "p", "response": "It is 7.", "spans": []},
    {
        "prompt": "q",
        "response": "no",
        "source": "s",
        "spans": [SPAN | {"side": "source", "start": 0, "end": 1}],
    },
]


def test_spans_become_unpaired_and_spans_again(tmp_path, capsys):
    single, lost = convert(tmp_path, capsys, SPANS, "format=spans", "to=unpaired")
    assert single == [
        {"prompt": "p", "completion": "It is 8.", "label": False, "marked": [[6, 7]]},
        {"prompt": "p", "completion": "It is 7.", "label": True},
        {"prompt": "q", "completion": "no", "label": False, "source": "s"},
    ]
    assert set(lost) == {
        "lost, labels of spans: 2",
        "lost, severity: 2",
        "lost, errors without a place in the response: 1",
    }
    spans, lost = convert(tmp_path, capsys, single, "format=unpaired", "to=spans")
    assert spans == [
        {
            "prompt": "p",
            "response": "It is 8.",
            "spans": [{"start": 6, "end": 7, "label": "marked"}],
        },
        {"prompt": "p", "response": "It is 7.", "spans": []},
    ]
    assert lost == ["lost, bad responses without a mark: 1"]


def test_spans_become_pairs_of_right_and_wrong_responses(tmp_path, capsys):
    pairs, lost = convert(tmp_path, capsys, SPANS, "format=spans", "to=pairs")
    assert pairs == [{"prompt": "p", "chosen": "It is 7.", "rejected": "It is 8."}]
    assert "lost, marks: 1" in lost and "lost, labels of spans: 2" in lost


def test_all_rows_are_conversations_if_a_text_would_lose_messages(tmp_path, capsys):
    """TRL's KTOTrainer reads either texts or conversations in all columns."""
    asked = [{"role": "user", "content": text} for text in ("p", "q")]  # a text would join them
    said = {"role": "assistant", "content": "a"}
    rows = [PAIR | {"prompt": asked}, PAIR]
    single, _ = convert(tmp_path, capsys, rows, "format=comparisons", "to=unpaired")
    assert single[0] == {"prompt": asked, "completion": [said], "label": True}
    assert [row["prompt"] for row in single] == [asked, asked, asked[:1], asked[:1]]
    assert UNPAIRED.parse(Row(single[0], {}), 0).answers[0].text == "a"


def test_check_counts_labels_and_contradictions(tmp_path, capsys):
    write_jsonl(tmp_path / "in.jsonl", [GOOD, BAD, GOOD | {"label": False}])
    data.main(["check", str(tmp_path / "in.jsonl"), "format=unpaired"])
    printed = capsys.readouterr().out
    assert "good responses: 1, bad ones: 2" in printed
    assert "with marked characters: 1" in printed
    assert "responses that are good in one row and bad in another: 1" in printed
    assert "unpaired" in FORMATS


# ---- pairs without a prompt ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "chosen, rejected, expected",
    [
        ("The sky is blue.", "The sky is green.", ("The sky is", "blue.", "green.")),
        ("The sky is blue.", "The sky is black.", ("The sky is", "blue.", "black.")),  # no cut word
        ("a b", "a b c", ("a", "b", "b c")),
        ("Q: why?\nblue", "Q: why?\nred", ("Q: why?\n", "blue", "red")),
        ("天空是蓝", "天空是绿", ("天空是", "蓝", "绿")),
    ],
)
def test_an_implicit_prompt_is_the_common_beginning(chosen, rejected, expected):
    prompt, better, worse, is_dialog = split_pair(chosen, rejected)
    assert (prompt.text, better, worse) == expected and not is_dialog


def test_rows_with_an_implicit_prompt_are_counted_and_doubtful_ones_refused(tmp_path):
    row = {"chosen": "The sky is blue.", "rejected": "The sky is green."}
    write_jsonl(tmp_path / "in.jsonl", [row, {**row, "margin": 2}])
    counts = Counter()
    items = COMPARISONS.read(tmp_path / "in.jsonl", counts=counts)
    assert [item.prompt.text for item in items] == ["The sky is", "The sky is"]
    assert counts == {"pairs without a prompt, which is what both texts begin with": 2}
    write_jsonl(tmp_path / "in.jsonl", [{**row, "context": "Look up."}])
    with pytest.raises(UserError, match="`prompt`: missing, and the text under `context` may be"):
        COMPARISONS.read(tmp_path / "in.jsonl")
    write_jsonl(tmp_path / "in.jsonl", [{"chosen": "a", "rejected": "b"}])
    with pytest.raises(UserError, match="or with the same words"):
        COMPARISONS.read(tmp_path / "in.jsonl")


# ---- pairs that differ in one span ---------------------------------------------------------------


def pair(better: str, worse: str) -> Comparison:
    return Comparison(Prompt("0", "p"), (Answer(better), Answer(worse)), ((0, 1),))


def test_edits_by_hand():
    made = edits(pair("The red cat sat down .", "The dog cat sat ."))
    assert [tuple(answer.text for answer in each.answers) for each in made] == [
        ("The red cat sat .", "The dog cat sat ."),
        ("The red cat sat down .", "The red cat sat ."),
    ]
    assert [tuple(answer.marked for answer in each.answers) for each in made] == [
        (((4, 7),), ((4, 7),)),
        (((16, 20),), ()),
    ]
    assert [each.prompt.id for each in made] == ["0/0", "0/1"]


@pytest.mark.parametrize(
    "better, worse",
    [
        ("a", "b c d"),
        ("It is  seven.", " It was eight, or nine."),
        ("x", ""),
        ("A Cat", "a cat"),
        ("7 🙂 ok", "8 🙂 no"),
    ],
)
def test_edits_lead_from_the_worse_to_the_better_answer(better, worse):
    made = edits(pair(better, worse))
    assert made[0].answers[1].text == worse and made[-1].answers[0].text == better
    for before, after in zip(made, made[1:]):
        assert before.answers[0].text == after.answers[1].text
    for each in made:
        for answer in each.answers:
            for start, end in answer.marked:
                assert answer.text[start:end].strip() == answer.text[start:end] != ""


def test_convert_writes_a_pair_for_each_edit(tmp_path, capsys):
    row = {"prompt": "p", "chosen": "The red cat sat.", "rejected": "The dog cat sits."}
    rows, lost = convert(tmp_path, capsys, [row], "format=comparisons", "to=edits")
    assert rows == [
        {
            "prompt": "p",
            "responses": ["The red cat sits.", "The dog cat sits."],
            "preferences": [[0, 1]],
            "marked": [[[4, 7]], [[4, 7]]],
        },
        {
            "prompt": "p",
            "responses": ["The red cat sat.", "The red cat sits."],
            "preferences": [[0, 1]],
            "marked": [[[12, 15]], [[12, 16]]],
        },
    ]
    assert lost == []


DIALOG = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi."},
    {"role": "assistant", "content": "Yes?"},
    {"role": "user", "content": "Why?"},
]


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


def test_conversations_stay_conversations(tmp_path, capsys):
    """As TRL's conversational unpaired and preference rows, which its trainers template."""
    rows = [{"prompt": DIALOG, "chosen": said("Because."), "rejected": said("No."), "topic": "x"}]
    single, lost = convert(tmp_path, capsys, rows, "format=comparisons", "to=unpaired")
    assert single == [
        {"prompt": DIALOG, "completion": said("Because."), "label": True, "topic": "x"},
        {"prompt": DIALOG, "completion": said("No."), "label": False, "topic": "x"},
    ]
    assert lost == []
    assert convert(tmp_path, capsys, single, "format=unpaired", "to=pairs") == (rows, [])


def test_conversations_on_request(tmp_path, capsys):
    wanted = ("format=comparisons", "to=unpaired", "conversations=true")
    (first, _), _ = convert(tmp_path, capsys, [PAIR], *wanted)
    assert first["prompt"] == [{"role": "user", "content": "p"}]
    assert first["completion"] == said("a")
    rows = [{"prompt": DIALOG, "chosen": said("Because."), "rejected": said("No.")}]
    (first, _), _ = convert(tmp_path, capsys, rows, *wanted[:2], "conversations=false")
    assert (
        first["prompt"].endswith("Human: Why?\n\nAssistant:") and first["completion"] == "Because."
    )
    twice = [{"role": "user", "content": "Hi."}, *DIALOG[1:]]
    with pytest.raises(UserError, match="conversations is false, but the text of a prompt"):
        convert(
            *(tmp_path, capsys, [{**rows[0], "prompt": twice}], *wanted[:2]), "conversations=false"
        )
    with pytest.raises(UserError, match="conversations: is for to=pairs and to=unpaired"):
        convert(tmp_path, capsys, [PAIR], "format=comparisons", "to=joined", "conversations=true")
