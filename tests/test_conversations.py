"""Titles that are conversations: rows, prompts, and the turns on every page."""

import pytest
from page_helpers import opened, press, wait_until
from rating_tasks import QUALITY, rating_task, row, write_page

from fgrlhf.base.files import write_json
from fgrlhf.base.records import DataError
from fgrlhf.data.formats import COMPARISONS
from fgrlhf.text_types import Prompt
from interface_html.checks import gold_tell, uniform_item
from interface_html.items import item_json, read_items

TURNS = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Hi <b>you</b>"},
    {"role": "assistant", "content": "Hello.\nYes?"},
    {"role": "user", "content": "A table, please."},
]
TEXT = (
    "\n\nSystem: Be kind.\n\nHuman: Hi <b>you</b>\n\nAssistant: Hello.\nYes?"
    "\n\nHuman: A table, please.\n\nAssistant:"
)


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return rating_task(tmp_path_factory.mktemp("dialogs"), ratings=[QUALITY], comparison="Which?")


def test_a_conversation_is_the_text_of_the_item_and_comes_back(task, tmp_path):
    rows = [row(0, prompt=TURNS), row(1, prompt=TEXT), row(2, prompt=[TURNS[1]])]
    rows.append(row(3, messages=TURNS))  # about another prompt: a key of the task
    write_json(tmp_path / "rows.json", rows)
    items = read_items(task, tmp_path / "rows.json")
    texts = [item.row["prompt"] for item in items]
    assert texts == [TEXT, TEXT, "Hi <b>you</b>", "Say 3"]
    assert items[0].row["messages"] == TURNS and "messages" not in items[1].row
    assert [item_json(task, item) for item in items] == rows
    prompts = [task.format.prompt(task.schema, item) for item in items]
    turns = tuple((turn["role"], turn["content"]) for turn in TURNS)
    assert prompts[0] == Prompt("0", TEXT, messages=turns)
    assert prompts[3].meta == {"messages": TURNS}


def test_the_item_has_the_prompt_that_the_library_reads(task, tmp_path):
    given = row(0, prompt=TURNS, preferences=[1])
    write_json(tmp_path / "rows.json", [given])
    (item,) = read_items(task, tmp_path / "rows.json")
    (comparison,) = COMPARISONS.read(tmp_path / "rows.json")
    prompt = task.format.prompt(task.schema, item)
    assert (prompt.text, prompt.messages) == (comparison.prompt.text, comparison.prompt.messages)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"prompt": []}, "at least one message"),
        ({"prompt": [{"role": "judge", "content": "x"}]}, "prompt[0].role"),
        ({"prompt": [{"role": "user", "content": 1}]}, "prompt[0].content"),
        ({"prompt": TURNS, "messages": TURNS}, "must not be there"),
    ],
)
def test_other_lists_are_refused(task, tmp_path, changes, message):
    write_json(tmp_path / "rows.json", [row(0, **changes)])
    with pytest.raises(DataError) as error:
        read_items(task, tmp_path / "rows.json")
    assert message in str(error.value)


# its text alone is no dialog in the form of HH-RLHF
ANSWER_FIRST = [{"role": "assistant", "content": "Hello."}, {"role": "user", "content": "Hi."}]


def items_of(task, tmp_path, *prompts):
    rows = [row(number, prompt=prompt) for number, prompt in enumerate(prompts)]
    write_json(tmp_path / "rows.json", rows)
    return read_items(task, tmp_path / "rows.json")


def test_conversations_keep_their_turns_among_hidden_items(task, tmp_path):
    """What the API sends tells neither a text in the form of a dialog nor other keys apart."""
    prompts = (TURNS, TEXT, ANSWER_FIRST, [TURNS[1]], "Say")
    items = items_of(task, tmp_path, *prompts)
    sent = [uniform_item(task.schema, 1, {"id": "x", **item.row, "more": 1}) for item in items]
    assert [content.get("messages") for content in sent] == [TURNS, TURNS, ANSWER_FIRST, None, None]
    assert {tuple(content) for content in sent[:3]} == {("id", *task.schema.row, "messages")}
    assert {tuple(content) for content in sent[3:]} == {("id", *task.schema.row)}


def test_gold_items_have_titles_like_the_others(task, tmp_path):
    turns, dialog, single, text = items_of(task, tmp_path, TURNS, TEXT, [TURNS[1]], "Say")
    for study, gold in (([turns], dialog), ([single], text), ([turns, text], single)):
        assert gold_tell(task.schema, study, [gold]) is None
    message = str(gold_tell(task.schema, [turns, dialog], [single]))
    assert message.startswith("gold item '2' shows its `prompt` as a text, but every item of")
    message = str(gold_tell(task.schema, [single, text], [dialog]))
    assert message.startswith("gold item '1' shows its `prompt` as a conversation, but no item of")


@pytest.mark.parametrize("page", ["rating", "comparison"])
def test_turns_are_shown_with_their_roles(chromium, task, page):
    long = TURNS + [TURNS[2], {"role": "user", "content": "Well. " * 400}]
    lines = "List two:\n\n- a tree\n- a bird"
    rows = [row(0, prompt=TURNS), row(1, prompt=TEXT), row(2, prompt=long), row(3)]
    with opened(chromium, where=write_page(task, [*rows, row(4, prompt=lines)], page)) as tab:
        for _ in range(2):
            assert tab.inner_text("#item-title") == "Conversation, 4 turns"
            roles = tab.locator(".turn .role").all_inner_texts()
            assert roles == ["System", "User", "Assistant", "User"]
            said = tab.locator(".turn .said").all_inner_texts()
            assert said == [turn["content"] for turn in TURNS]
            press(tab, "]")
        turns = tab.locator("#turns")
        box = "node => [node.scrollHeight > node.clientHeight, node.scrollTop]"
        overflows, top = turns.evaluate(box)
        assert overflows and top > 0 and turns.bounding_box()["height"] < 500
        turns.focus()
        press(tab, "Home")  # scrolls, and is no key of the page
        wait_until(tab, "() => document.querySelector('#turns').scrollTop === 0")
        press(tab, "Escape", "]")
        assert tab.inner_text("#item-title") == "Say 3" and turns.is_hidden()
        press(tab, "]")
        assert tab.inner_text("#item-title") == lines


def test_the_page_writes_conversations_as_they_were(chromium, task):
    rows = [row(0, prompt=TURNS), row(1, prompt=TEXT), row(2, prompt=[TURNS[1]])]
    with opened(chromium, where=write_page(task, rows)) as tab:
        written = tab.evaluate(
            "rows => FG.readItems(FG_SCHEMA, JSON.stringify(rows)).map((item) =>"
            " FG.format.feedbackRow(FG_SCHEMA, item))",
            rows,
        )
        assert written == rows
        for wrong in ([], [{"role": "judge", "content": "x"}], [1]):
            reason = tab.evaluate(
                "row => { try { FG.readItems(FG_SCHEMA, JSON.stringify([row])); return '' }"
                " catch (error) { return error.message } }",
                row(0, prompt=wrong),
            )
            assert "`prompt` must be text, or a conversation" in reason
