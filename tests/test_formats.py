"""Row formats: accepted shapes, refusals with their location, round trips."""

import json
import os
import re
from collections import Counter
from pathlib import Path

import pytest
from data_items import PROMPT, TEXTS, judged_responses
from hypothesis import given
from hypothesis import strategies as st
from judged_rows import solution, span, step, steps_of

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_jsonl
from fgrlhf.base.records import RowError
from fgrlhf.data.comparison_rows import pair_row
from fgrlhf.data.comparisons import (
    Answer,
    Comparison,
    as_pairs,
    join_pairs,
    pairs_of_outcomes,
    pairs_of_scores,
)
from fgrlhf.data.formats import (
    COMPARISONS,
    DEMONSTRATIONS,
    FORMATS,
    PROMPTS,
    SPANS,
    STEPS,
    Demonstration,
    read_prompts,
)
from fgrlhf.data.judgements import JUDGEMENTS, JudgedResponse, Judgement, judged_spans, judged_steps
from fgrlhf.data.read import write_rows
from fgrlhf.data.rows import Row
from fgrlhf.data.unpaired_rows import UNPAIRED
from fgrlhf.models.dialogs import messages_in
from fgrlhf.text_types import Prompt
from tasks.qa_feedback.feedback import read_feedback
from tasks.qa_feedback.training.comparisons import preference_comparison


def parse(row_format, row, columns=None):
    return row_format.parse(Row(row, columns or {}), 7)


def problem(row_format, row, columns=None):
    with pytest.raises(RowError) as error:
        parse(row_format, row, columns)
    return str(error.value)


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def texts_of(compared):
    return [answer.text for answer in compared.answers]


QUESTION = "Why is the sky blue?"
USER, GOOD, BAD = user(QUESTION), assistant("Light is scattered."), assistant("It is painted.")
TALK = [USER, assistant("Scattering."), user("Why?")]
TALK_TEXT = f"\n\nHuman: {QUESTION}\n\nAssistant: Scattering.\n\nHuman: Why?\n\nAssistant:"
TALK_MESSAGES = (("user", QUESTION), ("assistant", "Scattering."), ("user", "Why?"))
BRIEF = Prompt(
    "7",
    f"\n\nSystem: Be brief.\n\nHuman: {QUESTION}\n\nAssistant:",
    messages=(("system", "Be brief."), ("user", QUESTION)),
)
TOPIC = {"id": "a", "prompt": "Hi", "references": ["x", "y"], "topic": [1]}


# ---- prompts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "row, expected",
    [
        ({"prompt": "Hi"}, Prompt("7", "Hi")),
        ({"prompt": "Hi", "references": None, "id": None}, Prompt("7", "Hi")),
        ({"id": 3, "text": "Hi", "answer": "Ho"}, Prompt("3", "Hi", ("Ho",))),
        (TOPIC, Prompt("a", "Hi", ("x", "y"), {"topic": [1]})),
        ({"prompt": "Hi", "text": "other"}, Prompt("7", "Hi", (), {"text": "other"})),
        ({"prompt": [USER]}, Prompt("7", USER["content"])),
        ({"prompt": TALK}, Prompt("7", TALK_TEXT, messages=TALK_MESSAGES)),
        ({"prompt": TALK_TEXT}, Prompt("7", TALK_TEXT, messages=TALK_MESSAGES)),
        ({"prompt": [{"role": "system", "content": "Be brief."}, USER]}, BRIEF),
    ],
)
def test_prompts(row, expected):
    assert parse(PROMPTS, row) == expected


@pytest.mark.parametrize("none", [[], None])
def test_rows_without_references(tmp_path, none):
    """A column of Parquet has a value in every row: an empty list or null where there is none."""
    rows = [{"prompt": "a", "references": none}, {"prompt": "b", "references": ["c"]}]
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(rows))
    assert [prompt.references for prompt in PROMPTS.read(path)] == [(), ("c",)]
    path.write_text(json.dumps([{"prompt": "a", "response": "b", "references": none}]))
    (demonstration,) = DEMONSTRATIONS.read(path)
    assert demonstration.prompt.references == ("b",)  # its response


def test_null_is_not_called_missing():
    """In files with columns, such as Parquet, a key that one row has is in every row."""
    row = {"prompt": "a", "response": "b c", "spans": None}
    assert problem(SPANS, row).startswith("`spans`: is null: write [] if somebody looked")
    assert parse(SPANS, {**row, "spans": []}).spans == ()
    null = problem(PROMPTS, {"prompt": None, "text": None})
    assert null == "`prompt`: is null, which means that the row has none"
    unmarked = {"prompt": "p", "chosen": "a", "rejected": "b"}
    nobody, null = ({**unmarked, "marked": marked} for marked in ([], None))
    assert parse(COMPARISONS, nobody) == parse(COMPARISONS, null)


# ---- other keys ----------------------------------------------------------------------------------

TOXICITY = {  # format of RealToxicityPrompts
    "filename": "f.txt",
    "prompt": {"text": "They said", "toxicity": 0.1},
    "continuation": {"text": " hello.", "toxicity": None},
}
MATHS = {"question": "1 + 1?", "answer": "1 + 1 = <<1+1=2>>2\n#### 2"}  # format of GSM8K
ANSWERS = ["prediction 1", "prediction 2", "prediction 3"]
VOTES = {"question": "Who?", "preference": [1, 0, 2]}  # format of qa-feedback
VOTES |= dict(zip(ANSWERS, ("Ann", "Bo", "Cy")))
BY_VOTES = {"prompt": "question", "responses": ANSWERS, "preferences": "preference"}
RANKED = {"answers": [{"answer": "A", "rank": 2}, {"answer": "B", "rank": 1}]}
BY_RANK = {"responses": "answers.answer", "ranking": "answers.rank"}
ERROR = {"feedback": {"errors": [{"start": 0, "end": 1, "error type": "wrong"}]}}
BY_ERROR = {"response": "a.b", "spans": "feedback.errors", "spans.label": "error type"}
OMISSION = {"start": 2, "end": 3, "label": "omission", "side": "source"}
OMITTED = {"response": "x", "document": "a b", "spans": [OMISSION]}
OMITTED_SPAN = span(2, 3, "omission", side="source")


def compared(prompt, texts, *pairs):
    return Comparison(prompt, tuple(map(Answer, texts)), pairs)


ASKED = Prompt("7", "Who?")
SOLVED = Demonstration(Prompt("7", "1 + 1?", (MATHS["answer"],)), MATHS["answer"])
WRONG = JudgedResponse(Prompt("7", "", (), ERROR), "x y", (span(0, 1, "wrong"),))


@pytest.mark.parametrize(
    "row_format, row, columns, expected",
    [
        (PROMPTS, TOXICITY, {"prompt": "prompt.text"}, Prompt("7", "They said", (), TOXICITY)),
        (DEMONSTRATIONS, MATHS, {"prompt": "question", "response": "answer"}, SOLVED),
        (COMPARISONS, VOTES, BY_VOTES, compared(ASKED, ("Ann", "Bo", "Cy"), (0, 1), (2, 1))),
        (
            COMPARISONS,
            {"prompt": "Who?", **RANKED},
            BY_RANK,
            compared(Prompt("7", "Who?", (), RANKED), "AB", (1, 0)),
        ),
        (SPANS, {"a.b": "x y", **ERROR}, BY_ERROR, WRONG),
        (
            SPANS,
            OMITTED,
            {"source": "document"},
            JudgedResponse(Prompt("7", ""), "x", (OMITTED_SPAN,), "a b"),
        ),
    ],
)
def test_a_file_with_other_keys(row_format, row, columns, expected):
    assert parse(row_format, row, columns) == expected


def test_a_renamed_key_counts_once():
    """`answer` is the response here, not also a list of references."""
    row = {"prompt": "a", "answer": "b", "references": ["c"]}
    parsed = parse(DEMONSTRATIONS, row, {"response": "answer"})
    assert parsed == Demonstration(Prompt("7", "a", ("c",)), "b")


@pytest.mark.parametrize(
    "columns, message",
    [
        ({"prompt": "title"}, "`title`: missing"),
        ({"prompt": "meta.title"}, "`meta.title`: missing"),
        ({"prompt": "meta.deep.er"}, "`meta.deep.er`: missing"),
        ({"prompt": "list.title"}, "`list.title`: must be an object, it is a number"),
        ({"prompt": "nothing"}, "`nothing`: must not be null"),
        ({"references": ["meta", "a"]}, "`columns.references[0]`: must be a text, it is an object"),
    ],
)
def test_a_key_that_the_row_does_not_have(columns, message):
    row = {"a": "b", "meta": {"deep": {"x": 1}}, "list": [1], "nothing": None}
    assert message in problem(PROMPTS, row, {"prompt": "a", **columns})


@pytest.mark.parametrize(
    "columns, message",
    [
        ({"promt": "a"}, "columns.promt is not a key of this row format; did you mean `prompt`?"),
        ({"response": "a"}, "columns.response is not a key of this row format"),
        ({"prompt": ""}, "columns.prompt has no key of"),
        ({"references": []}, "columns.references has no key of"),
    ],
)
def test_columns_that_name_nothing(tmp_path, columns, message):
    write_rows(tmp_path / "rows.json", [{"prompt": "a"}])
    with pytest.raises(UserError, match=re.escape(message)):
        PROMPTS.read(tmp_path / "rows.json", columns)


# ---- demonstrations ------------------------------------------------------------------------------


SHAREGPT = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]


@pytest.mark.parametrize(
    "row, response, references",
    [
        ({"prompt": "a", "response": "b"}, "b", ("b",)),
        ({"prompt": "a", "completion": "b"}, "b", ("b",)),
        ({"text": "a", "answer": ["b", "c"]}, "b", ("b", "c")),  # the rows of this project's tasks
        ({"prompt": "a", "response": "b", "references": ["c"]}, "b", ("c",)),
        ({"prompt": [user("a")], "completion": [assistant("b")]}, "b", ("b",)),
        ({"messages": [user("a"), assistant("b")]}, "b", ("b",)),
        ({"conversations": SHAREGPT}, "b", ("b",)),
    ],
)
def test_demonstrations(row, response, references):
    assert parse(DEMONSTRATIONS, row) == Demonstration(Prompt("7", "a", references), response)


SAID = {"system": "system", "user": "human", "assistant": "gpt"}


def sharegpt(*messages):
    return [{"from": SAID[message["role"]], "value": message["content"]} for message in messages]


def test_messages_of_sharegpt_are_those_of_other_rows():
    system = {"role": "system", "content": "Be brief."}
    talk = [system, *TALK]
    expected = parse(DEMONSTRATIONS, {"messages": [*talk, {**GOOD, "weight": 1}]})
    assert parse(DEMONSTRATIONS, {"conversations": sharegpt(*talk, GOOD)}) == expected
    beside = {"conversations": sharegpt(*TALK, GOOD), "system": "Be brief."}
    assert parse(DEMONSTRATIONS, beside) == expected
    beside["conversations"][1]["weight"] = 0
    assert parse(DEMONSTRATIONS, beside).untrained == (2,)
    pair = {"chosen": sharegpt(GOOD)[0], "rejected": sharegpt(BAD)[0]}
    comparison = parse(COMPARISONS, {"conversations": sharegpt(*talk), **pair})
    assert comparison == parse(COMPARISONS, {"prompt": talk, "chosen": [GOOD], "rejected": [BAD]})
    # `system` means something else beside messages of other rows
    assert (
        parse(DEMONSTRATIONS, {"messages": [user("a"), assistant("b")], "system": "A"}).prompt.text
        == "a"
    )


def test_the_last_message_of_a_conversation_is_imitated():
    parsed = parse(DEMONSTRATIONS, {"messages": [*TALK, GOOD], "prompt": "the first message"})
    assert parsed.prompt.messages == TALK_MESSAGES
    assert parsed.prompt.text == TALK_TEXT and parsed.response == GOOD["content"]


# ---- comparisons ---------------------------------------------------------------------------------

FOUR = {"prompt": "p", "responses": ["a", "b", "c", "d"]}


@pytest.mark.parametrize(
    "judgement, pairs",
    [
        ({"preferences": [[1, 0], [3, 2]]}, ((1, 0), (3, 2))),
        ({"preferences": [[0, 1], [0, 1], [1, 0]]}, ((0, 1), (0, 1), (1, 0))),  # three votes
        ({"preferences": [1, 2, 0, 0, 1, 2]}, ((0, 1), (2, 0), (1, 3), (3, 2))),
        ({"preferences": []}, ()),
        ({"ranking": [1, 2, 2, 4]}, ((0, 1), (0, 2), (0, 3), (1, 3), (2, 3))),
        ({"scores": [0.5, 2, 0.5, -1]}, ((1, 0), (0, 3), (1, 2), (1, 3), (2, 3))),
        ({"scores": [True, False, False, True]}, ((0, 1), (0, 2), (3, 1), (3, 2))),
        ({"scores": [0, 0, 0, 1], "preferences": [[0, 1]]}, ((0, 1),)),
    ],
)
def test_four_responses(judgement, pairs):
    parsed = parse(COMPARISONS, FOUR | judgement)
    assert parsed.pairs == pairs and texts_of(parsed) == ["a", "b", "c", "d"]


def test_any_number_of_responses():
    for number in (2, 3, 7):
        row = {"prompt": "p", "responses": ["x"] * number, "scores": list(range(number))}
        parsed = parse(COMPARISONS, row)
        assert len(parsed.pairs) == number * (number - 1) // 2
        assert all(better > worse for better, worse in parsed.pairs)


def test_pairs_by_hand():
    assert pairs_of_outcomes(3, [1, 2, 0]) == ((0, 1), (2, 0))
    assert pairs_of_scores([1, 1, 0]) == ((0, 2), (1, 2))
    with pytest.raises(ValueError):
        pairs_of_outcomes(3, [1, 2])


DIALOG = "\n\nHuman: Hi\n\nAssistant: Hello!\n\nHuman: How are you?\n\nAssistant:"
DIALOGS = {"chosen": f"{DIALOG} Fine. \n", "rejected": f"{DIALOG} Find out!"}
PAIR = {"chosen": [USER, GOOD], "rejected": [USER, BAD]}
ANSWERS_ALONE = {"chosen": [GOOD], "rejected": [BAD]}
SKY = (QUESTION, GOOD["content"], BAD["content"])


def preferred(*responses):
    return {"responses": list(responses), "preferences": [[0, 1]]}


@pytest.mark.parametrize(
    "row, texts",
    [
        ({"prompt": "p", "chosen": "a", "rejected": "b"}, ("p", "a", "b")),
        ({"prompt": "p", "chosen": "a", "rejected": ""}, ("p", "a", "")),
        # whole dialogs, as in HH-RLHF
        (DIALOGS, (DIALOG, "Fine.", "Find out!")),
        ({"chosen": f"{DIALOG} ", "rejected": f"{DIALOG} No."}, (DIALOG, "", "No.")),
        # conversations: with the prompt's messages in both, with a separate text prompt, or without
        # a prompt
        (PAIR, SKY),
        ({"prompt": QUESTION, **PAIR}, SKY),
        ({"prompt": TALK, **ANSWERS_ALONE}, (TALK_TEXT, *SKY[1:])),
        ({"prompt": "p", **preferred([USER, GOOD], [USER, BAD])}, ("p", *SKY[1:])),
        (preferred([*TALK, GOOD], [*TALK, BAD]), (TALK_TEXT, *SKY[1:])),
    ],
)
def test_pairs_of_the_hub(row, texts):
    prompt, *texts = texts
    asked = Prompt("7", prompt, messages=messages_in(prompt))
    assert parse(COMPARISONS, row) == compared(asked, texts, (0, 1))


def test_conversations_that_answer_different_prompts_are_refused():
    row = {"prompt": "p", **preferred([*TALK, GOOD], [USER, BAD])}
    with pytest.raises(RowError, match="begins with other messages than `responses"):
        parse(COMPARISONS, row)


def test_a_prompt_that_the_assistant_would_have_to_answer_itself_is_refused():
    for row_format in (PROMPTS, DEMONSTRATIONS):
        with pytest.raises(RowError, match="a prompt ends with the user's"):
            parse(row_format, {"prompt": [USER, GOOD], "response": "a"})


@pytest.mark.parametrize(
    "form, margin", [({"margin": 2}, (2.0,)), ({"margin": 0}, (0.0,)), ({}, ())]
)
def test_the_margin_of_a_pair(form, margin):
    row = {"prompt": "p", "chosen": "a", "rejected": "b", **form}
    assert parse(COMPARISONS, row).margins == margin


def test_margins_of_several_pairs():
    scored = parse(COMPARISONS, FOUR | {"scores": [0.5, 2, 0.5, -1]})
    assert scored.pairs == ((1, 0), (0, 3), (1, 2), (1, 3), (2, 3))
    assert scored.margins == (1.5, 1.5, 1.5, 3.0, 1.5)
    given = FOUR | {"preferences": [[1, 0], [3, 2]], "margins": [1, 0.5]}
    assert parse(COMPARISONS, given).margins == (1.0, 0.5)
    assert parse(COMPARISONS, FOUR | {"ranking": [1, 2, 3, 4]}).margins == ()
    assert COMPARISONS.to_row(parse(COMPARISONS, given))["margins"] == [1.0, 0.5]


# ---- pairs and comparisons of several responses --------------------------------------------------


def test_pairs_of_a_comparison_and_back():
    row = FOUR | {"id": "q", "preferences": [[1, 0], [3, 2], [1, 2]], "margins": [1, 2, 3], "x": 1}
    whole = parse(COMPARISONS, row)
    pairs = as_pairs([whole])
    assert [texts_of(pair) for pair in pairs] == [["b", "a"], ["d", "c"], ["b", "c"]]
    assert [pair.margins for pair in pairs] == [(1.0,), (2.0,), (3.0,)]
    assert [pair.prompt.id for pair in pairs] == ["q/0", "q/1", "q/2"]
    (joined,) = join_pairs(pairs)
    assert joined.prompt.id == "q/0" and joined.prompt.meta == {"x": 1}
    assert texts_of(joined) == ["b", "a", "d", "c"]
    assert joined.pairs == ((0, 1), (2, 3), (0, 3)) and joined.margins == (1.0, 2.0, 3.0)


def test_a_joined_comparison_keeps_marks_and_ties():
    row = {"prompt": "p", "chosen": "a", "rejected": "b"}
    first = parse(COMPARISONS, row | {"marked": [[], [[0, 1]]]})
    tie = parse(COMPARISONS, {"prompt": "p", "responses": ["b", "c"], "scores": [1, 1]})
    other = parse(COMPARISONS, row | {"prompt": "q", "margin": 1})
    joined, alone = join_pairs([first, other, tie])
    assert texts_of(joined) == ["a", "b", "c"]
    assert joined.answers[1].marked == ((0, 1),) and joined.pairs == ((0, 1),)
    assert alone == other


def test_a_prompt_without_messages_is_written_as_its_text():
    text = "\n\nHuman: Hi.\n\nAssistant:"  # a task may read it without its messages
    row = PROMPTS.to_row(Prompt("0", text))
    assert row["prompt"] == text and parse(PROMPTS, row).text == text


def test_a_ranking_has_the_given_margins():
    row = {"prompt": "p", "responses": ["a", "b", "c"], "ranking": [2, 1, 2]}
    parsed = parse(COMPARISONS, row | {"margins": [3, 0.5]})
    assert parsed.pairs == ((1, 0), (1, 2)) and parsed.margins == (3.0, 0.5)
    assert parse(COMPARISONS, COMPARISONS.to_row(parsed)) == parsed
    assert "has 1 margins for 2 decided pairs" in problem(COMPARISONS, row | {"margins": [3]})


def test_equal_answers_of_a_pair_stay_apart_when_joined():
    """Otherwise the joined row would compare an answer with itself, which no reader accepts."""
    rows = [("a", "a"), ("b", "a"), ("b", "b")]
    pairs = [parse(COMPARISONS, {"prompt": "p", "chosen": x, "rejected": y}) for x, y in rows]
    (joined,) = join_pairs(pairs)
    texts = texts_of(joined)
    assert [(texts[better], texts[worse]) for better, worse in joined.pairs] == rows
    assert texts == ["a", "a", "b", "b"] and joined.pairs == ((0, 1), (2, 0), (2, 3))
    assert parse(COMPARISONS, COMPARISONS.to_row(joined)) == joined


def test_pairs_as_published_rows():
    whole = parse(COMPARISONS, FOUR | {"preferences": [[1, 0]]})
    (pair,) = as_pairs([whole])
    assert pair_row(pair) == {"id": "7/0", "prompt": "p", "chosen": "b", "rejected": "a"}
    with_margin = parse(COMPARISONS, {"prompt": "p", "chosen": "a", "rejected": "b", "margin": 1})
    assert pair_row(with_margin)["margin"] == 1.0


def test_a_pair_keeps_its_other_keys():
    row = {"prompt": "p", "chosen": "a", "rejected": "b", "score_chosen": 3.5, "source": "s"}
    assert parse(COMPARISONS, row).prompt.meta == {"score_chosen": 3.5, "source": "s"}


def test_marked_characters():
    row = {"prompt": "p", "responses": ["🙂 cat", "dog"], "preferences": [[0, 1]]}
    parsed = parse(COMPARISONS, {**row, "marked": [[[2, 5]], []]})
    (answer, other) = parsed.answers
    assert answer.marked == ((2, 5),) and answer.text[2:5] == "cat" and other.marked == ()
    for marked, message in (
        ([[]], "`marked`: has 1 lists for 2 responses"),
        ([[], [[0, 4]]], "`marked[1][0].end`: is 4, but the response has 3 characters"),
        ([[[3, 3]], []], "`marked[0][0]`: is empty"),
        ([[[1]], []], "`marked[0][0]`: must be [start, end]"),
        ([0, []], "`marked[0]`: must be a list, it is a number"),
    ):
        assert message in problem(COMPARISONS, {**row, "marked": marked})


# ---- spans ---------------------------------------------------------------------------------------


def test_spans_count_code_points():
    text = "🙂🙂 naïve 𝒳"
    spans = [{"start": 9, "end": 10, "label": "symbol"}, {"start": 0, "end": 8, "label": "all"}]
    parsed = parse(SPANS, {"prompt": "p", "response": text, "spans": spans})
    assert parsed.prompt == Prompt("7", "p") and parsed.response == text
    assert [text[span.start : span.end] for span in parsed.spans] == ["𝒳", "🙂🙂 naïve"]
    assert [span.label for span in parsed.spans] == ["symbol", "all"]


def test_spans_need_a_response_and_their_mapped_keys():
    assert "`response`: missing" in problem(SPANS, {"prompt": "p", "spans": []})
    assert "`spans`: missing" in problem(SPANS, {"response": "a"})
    row = {"response": "a", "spans": [{"start": 0, "end": 1}]}
    assert "`spans[0].kind`: missing" in problem(SPANS, row, {"spans.label": "kind"})


# ---- steps ---------------------------------------------------------------------------------------

MARKED = {  # format of Math-Shepherd
    "input": "What is 1 + 1 + 1? Step 1: 1 + 1 = 2 ки\nStep 2: 2 + 1 = 4. The answer is: 4 ки",
    "label": "What is 1 + 1 + 1? Step 1: 1 + 1 = 2 +\nStep 2: 2 + 1 = 4. The answer is: 4 -",
    "task": "GSM8K",
}


def rated(*completions, person=None, chosen=None):
    """A step in the format of PRM800K."""
    rows = [{"text": text, "rating": rating} for text, rating in completions] or None
    by_person = person and {"text": person, "rating": None}
    return {"completions": rows, "human_completion": by_person, "chosen_completion": chosen}


RATED_STEPS = [
    rated(("Hm.", 0), ("Add.", 1), chosen=1),
    rated(("Wrong.", -1), person="So 1 + 1."),
    rated(("It is 3.", -1), ("4.", -1)),
    rated(),
]
RATED = {
    "labeler": "x",
    "question": {"problem": "What is 1 + 1?", "ground_truth_answer": "2"},
    "label": {"steps": RATED_STEPS, "finish_reason": "found_error"},
}


def scored(*steps):
    return tuple(step(text, score=score) for text, score in steps)


OWN = {"prompt": "p", "steps": [{"text": "a", "label": "ok"}, {"text": "b", "score": -0.5}]}
JUDGED = {"prompt": "p", "completions": ["a", "b"], "labels": [True, False]}  # format of TRL
SCORED = {"prompt": "p", "steps": ["a", "b"], "scores": [1, 0.25]}
MOVES = {"prompt": "p", "moves": [{"move": "a", "is_legal": False}]}
BY_MOVES = {"steps": "moves", "steps.text": "move", "steps.label": "is_legal"}
MARKED_STEPS = scored(("Step 1: 1 + 1 = 2", 1.0), ("Step 2: 2 + 1 = 4. The answer is: 4", 0.0))
RATED_SCORES = scored(("Add.", 1.0), ("So 1 + 1.", 1.0), ("It is 3.", -1.0))


def two_marked(problem, first):
    """A good and a bad step in the format of Math-Shepherd."""
    text = f"{problem} {first} ки\nStep 2: 5 ки"
    label = f"{problem} {first} +\nStep 2: 5 -"
    return {"input": text, "label": label}, scored((first, 1.0), ("Step 2: 5", 0.0))


@pytest.mark.parametrize(
    "row, columns, prompt, steps",
    [
        (OWN, {}, "p", (step("a", "ok"), step("b", score=-0.5))),
        (JUDGED, {}, "p", scored(("a", 1.0), ("b", 0.0))),
        (SCORED, {}, "p", scored(("a", 1.0), ("b", 0.25))),
        ({"prompt": "p", "steps": ["a"], "labels": ["good"]}, {}, "p", (step("a", "good"),)),
        (MARKED, {}, "What is 1 + 1 + 1?", MARKED_STEPS),
        (
            RATED,
            {"prompt": "question.problem", "steps": "label.steps"},
            "What is 1 + 1?",
            RATED_SCORES,
        ),
        (MOVES, BY_MOVES, "p", scored(("a", 0.0))),
    ],
    ids=["own", "TRL", "scores", "labels", "Math-Shepherd", "PRM800K", "columns"],
)
def test_steps(row, columns, prompt, steps):
    parsed = parse(STEPS, row, columns)
    assert (parsed.prompt.text, steps_of(parsed)) == (prompt, list(steps))


@pytest.mark.parametrize("first", ["step 1: 3", "3"])
def test_marked_steps_without_the_usual_beginning(first):
    row, steps = two_marked("What is 2 + 3?", first)
    parsed = parse(STEPS, row)
    assert (parsed.prompt.text, steps_of(parsed)) == ("What is 2 + 3?", list(steps))


def test_marks_inside_the_problem_judge_no_step():
    row, steps = two_marked("Mr. Rocky has ки 3 ки apples?", "Step 1: 3")
    row["label"] = row["label"].replace("has ки 3 ки", "has + 3 -")
    parsed = parse(STEPS, row)
    assert (parsed.prompt.text, steps_of(parsed)) == ("Mr. Rocky has  3  apples?", list(steps))


def completions(**step):
    return {"prompt": "p", "steps": [{"completions": [{"text": "a", "rating": 1}], **step}]}


THOUGHT = [*TALK, {**GOOD, "reasoning_content": "two and two"}]
CALLED = [*TALK[:2], {"role": "user", "content": None, "tool_calls": [1]}]
LOST = "is no part of `content`, so it would be lost: write it there"
OTHER = "are another text than in `input`"
OTHER_TEXT = MARKED["label"].replace("1 + 1 = 2", "5 - 4 = 1")


@pytest.mark.parametrize(
    "row_format, row, message",
    [
        (PROMPTS, {"prompt": [{**USER, "content": ""}]}, "`prompt`: must be a text that is not"),
        (DEMONSTRATIONS, {"messages": TALK}, "`messages[2].role`: the last message must be the"),
        (DEMONSTRATIONS, {"messages": THOUGHT}, f"`messages[3].reasoning_content`: {LOST}"),
        (PROMPTS, {"prompt": CALLED}, f"`prompt[2].tool_calls`: {LOST}"),
        (DEMONSTRATIONS, {"messages": [GOOD]}, "`messages`: has no message before the answer"),
        (
            DEMONSTRATIONS,
            {"conversations": [{"from": "observation", "value": "3"}, *sharegpt(GOOD)]},
            "`conversations[0].from`: is 'observation', which is neither the user's nor the",
        ),
        (
            DEMONSTRATIONS,
            {"conversations": sharegpt({"role": "system", "content": "a"}, GOOD), "system": "b"},
            "`system`: is given, and `conversations` begins with such a message: keep one",
        ),
        (
            COMPARISONS,
            {"conversations": sharegpt(GOOD), "chosen": GOOD, "rejected": BAD},
            "`conversations[0].role`: is the assistant, which would have to answer itself",
        ),
        (COMPARISONS, {**PAIR, "rejected": [*TALK, BAD]}, "`rejected`: begins with other messages"),
        (COMPARISONS, {**PAIR, "chosen": [USER]}, "`chosen[0].role`: the last message must be"),
        (COMPARISONS, ANSWERS_ALONE, "`prompt`: missing"),
        (COMPARISONS, {"chosen": "a", "rejected": "b"}, "`prompt`: missing, and `chosen` and"),
        (COMPARISONS, FOUR, "`preferences`: missing, and so are `ranking` and `scores`; the row"),
        (COMPARISONS, FOUR | {"preferences": [1, 2]}, "`preferences`: has 2 outcomes; 4 responses"),
        (COMPARISONS, FOUR | {"preferences": [1, 2, 0, 0, 1, 3]}, "`preferences[5]`: is 3, but an"),
        (STEPS, {"prompt": "p", "steps": ["a"]}, "`labels`: missing"),
        (STEPS, {"prompt": "p", "steps": ["a"], "labels": []}, "`labels`: has 0 values for 1"),
        (STEPS, completions(chosen_completion=1), "`steps[0].chosen_completion`: is 1, but there"),
        (STEPS, {**MARKED, "label": "What"}, "`label`: character 37 must be + or -"),
        (
            STEPS,
            {**MARKED, "label": OTHER_TEXT},
            f"`label`: characters 0 to 37 {OTHER}",
        ),
        (STEPS, {**MARKED, "label": MARKED["label"] + " x"}, "`label`: characters 76 to 78 are"),
        (STEPS, {"input": "a ки", "label": "a +"}, "`input`: must contain `Step 1:`"),
        (STEPS, {"input": "a? ки", "label": "a? +"}, "`input`: must be a text that is not"),
    ],
)
def test_keys_that_do_not_fit_together(row_format, row, message):
    """tests/test_records.py has every key by itself."""
    assert message in problem(row_format, row)


def test_steps_that_were_not_rated_end_the_solution():
    row = completions(completions=[{"text": "a", "rating": None}])
    assert parse(STEPS, row).spans == ()


# ---- files ---------------------------------------------------------------------------------------


@st.composite
def comparison(draw):
    texts = draw(st.lists(TEXTS, min_size=2, max_size=5))
    places = st.integers(0, len(texts) - 1)
    pairs = draw(st.lists(st.tuples(places, places).filter(lambda p: p[0] != p[1]), max_size=4))
    answers = []
    for text in texts:
        start = draw(st.integers(0, len(text) - 1))
        end = draw(st.integers(start + 1, len(text)))
        answers.append(Answer(text, draw(st.sampled_from([(), ((start, end),)]))))
    return Comparison(draw(PROMPT), tuple(answers), tuple(pairs))


@st.composite
def span_feedback(draw):
    response = draw(TEXTS)
    spans = []
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(response) - 1))
        end = draw(st.integers(start + 1, len(response)))
        spans.append(span(start, end, draw(TEXTS), draw(st.none() | TEXTS)))
    return judged_spans(draw(PROMPT), response, spans)


NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
STEP = st.one_of(
    st.builds(step, TEXTS, TEXTS),
    st.builds(step, TEXTS, st.none(), NUMBERS),
    st.builds(step, TEXTS, TEXTS, NUMBERS),
)
ITEMS = {
    PROMPTS: PROMPT,
    DEMONSTRATIONS: st.builds(
        Demonstration, PROMPT.filter(lambda prompt: prompt.references), TEXTS
    ),
    COMPARISONS: comparison(),
    SPANS: span_feedback(),
    STEPS: st.builds(judged_steps, PROMPT, st.lists(STEP, max_size=4)),
    JUDGEMENTS: judged_responses(),
}


@pytest.mark.parametrize("row_format", ITEMS, ids=lambda row_format: row_format.name)
def test_written_rows_are_read_back(row_format):
    @given(ITEMS[row_format])
    def check(item):
        row = json.loads(json.dumps(row_format.to_row(item)))
        assert row_format.parse(Row(row, {}), 0) == item

    check()


@pytest.mark.parametrize("suffix", ["json", "jsonl", "parquet"])
def test_a_file_of_each_format_round_trips(tmp_path, suffix):
    items = {
        PROMPTS: [Prompt("0", "a", ("b",), {"n": 1}), Prompt("x", "c 🙂\n", (), {"n": 2})],
        DEMONSTRATIONS: [Demonstration(Prompt("0", "a", ("b",)), "b")],
        COMPARISONS: [
            parse(COMPARISONS, FOUR | {"id": "0", "preferences": [[0, 1]]}),
            parse(COMPARISONS, {"id": "1", "prompt": "p", "chosen": "a", "rejected": ""}),
        ],
        UNPAIRED: [
            Comparison(Prompt("0", "p"), (Answer("abc", ((1, 3),)),), (), labels=(False,)),
            Comparison(Prompt("1", "p"), (Answer("abc"),), (), labels=(True,)),
        ],
        SPANS: [judged_spans(Prompt("0", "p"), "abc", [span(1, 3, "x")])],
        STEPS: [solution(step("a", "ok"), step("b", score=0.5))],
        JUDGEMENTS: [
            JudgedResponse(Prompt("0", "p"), "abc", (Judgement("x", "bad", 1, 3, "major"),)),
            JudgedResponse(Prompt("1", "p"), "abc", (Judgement("x", score=2.0),), source="s"),
        ],
    }
    assert len(items) == len(FORMATS)
    for row_format, expected in items.items():
        path = tmp_path / f"{row_format.name}.{suffix}"
        write_rows(path, [row_format.to_row(item) for item in expected])
        assert row_format.read(path) == expected


def test_read_prompts_is_the_default_of_a_task(tmp_path):
    write_rows(tmp_path / "a.json", [{"text": "a", "answer": ["b"], "topic": "c"}])
    assert read_prompts(tmp_path / "a.json") == [Prompt("0", "a", ("b",), {"topic": "c"})]


# ---- published rows ------------------------------------------------------------------------------

FEEDBACK = {
    "prompt": "question",
    "responses": ["prediction 1", "prediction 2", "prediction 3", "prediction 4"],
    "preferences": "preference",
}
ERRORS = {
    "prompt": "question",
    "response": "prediction 1",
    "spans": "feedback.errors",
    "spans.label": "error type",
}


def test_feedback_rows_are_comparisons_and_spans(qa_feedback):
    """Four answers and six preferences, and error spans, as the task's own reader returns them."""
    path = qa_feedback / "train_feedback.json"
    rows = read_feedback(path)
    comparisons = COMPARISONS.read(path, FEEDBACK)
    marked = SPANS.read(path, ERRORS)
    assert len(comparisons) == len(marked) == len(rows)
    for row, compared, spans in zip(rows, comparisons, marked):
        expected = preference_comparison(compared.prompt, row)
        assert compared.pairs == (() if expected is None else expected.pairs)
        assert tuple(answer.text for answer in compared.answers) == row.predictions
        assert [(span.start, span.end, span.label) for span in spans.spans] == [
            (error.start, error.end, error.label) for error in row.errors
        ]


@pytest.mark.parametrize(
    "row_format, name, number, columns",
    [
        (COMPARISONS, "hh_rlhf/harmless_base_test_part.jsonl.gz", 1850, {}),
        (PROMPTS, "real_toxicity_prompts/part.jsonl", 4000, {"prompt": "prompt.text"}),
        (DEMONSTRATIONS, "gsm8k/train.jsonl", 7473, {"prompt": "question", "response": "answer"}),
        (DEMONSTRATIONS, "defacto/val.jsonl", 486, {"prompt": "article", "response": "abstract"}),
        (
            COMPARISONS,
            "gsm8k/example_model_solutions.jsonl",
            1319,
            {
                "prompt": "question",
                "responses": ["6b_finetuning.solution", "175b_verification.solution"],
                "scores": ["6b_finetuning.is_correct", "175b_verification.is_correct"],
            },
        ),
    ],
)
def test_published_sets(row_format, name, number, columns):
    folder = os.environ.get("FGRLHF_QA_FEEDBACK")
    path = Path(folder or "").parent / name
    if not folder or not path.exists():
        pytest.skip(f"{name} is not beside the folder that FGRLHF_QA_FEEDBACK names")
    items = row_format.read(path, columns)
    assert len(items) == number
    written = [row_format.to_row(item) for item in items[:50]]
    again = [row_format.parse(Row(json.loads(json.dumps(row)), {}), 0) for row in written]
    assert [row_format.to_row(item) for item in again] == written


# ---- several values for one thing ----------------------------------------------------------------

RATED = {
    "prompt": "a",
    "responses": ["b", "c"],
    "preferences": [1],
    "ratings": [{"quality": 3}, {"quality": 4}],
}


def read(row_format, tmp_path, rows, columns=None):
    """The items of rows in a file, and what was noted about them."""
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    counts: Counter[str] = Counter()
    return row_format.read(path, columns, counts=counts), counts


def test_a_number_in_columns_selects_an_element_of_a_list():
    logged = {"doc": {"question": "Name a prime."}, "resps": [["Seven.", "Nine."]]}
    columns = {"prompt": "doc.question", "response": "resps.0.1"}
    assert parse(DEMONSTRATIONS, logged, columns).response == "Nine."
    beyond = columns | {"response": "resps.1.0"}
    assert "`resps.1.0`: has no element 1" in problem(DEMONSTRATIONS, logged, beyond)
    votes = {
        "prompt": "a",
        "responses": ["b", "c"],
        "votes": [{"count": [5, 6]}, {"count": [1, 7]}],
    }
    assert parse(COMPARISONS, votes, {"scores": "votes.count.1"}).pairs == ((1, 0),)


def test_scores_that_columns_name_come_before_preferences(tmp_path):
    columns = {"scores": "ratings.quality"}
    agreeing = {**RATED, "preferences": [[1, 0]]}
    items, counts = read(COMPARISONS, tmp_path, [RATED, agreeing], columns)
    assert [item.pairs for item in items] == [((1, 0),)] * 2
    assert counts == {
        "rows whose `preferences` decides otherwise than `ratings.quality`, which counts": 1
    }
    tied = {**RATED, "ratings": [{"quality": 4}, {"quality": 4}]}
    assert parse(COMPARISONS, tied, columns).pairs == ()


def test_judgements_of_one_row_that_contradict_each_other_are_counted(tmp_path):
    row = {"prompt": "a", "responses": ["b", "c"], "preferences": [1], "scores": [0, 1]}
    (item,), counts = read(COMPARISONS, tmp_path, [row])
    assert item.pairs == ((0, 1),)
    assert counts == {"rows whose `scores` decides otherwise than `preferences`, which counts": 1}


def test_a_name_in_columns_comes_before_other_names():
    row = {"prompt": "a", "response": "draft", "answer": "gold", "messages": [USER, GOOD]}
    assert parse(DEMONSTRATIONS, row, {"completion": "answer"}).response == "gold"
    assert parse(DEMONSTRATIONS, row, {"messages": "messages"}).response == GOOD["content"]
    pair = {"prompt": "a", "responses": ["b", "c"], "scores": [0, 1], "x": "d", "y": "e"}
    texts = parse(COMPARISONS, pair, {"chosen": "x", "rejected": "y"}).answers
    assert [answer.text for answer in texts] == ["d", "e"]
    references = parse(PROMPTS, {"prompt": "a", "references": ["b"], "x": "c"}, {"answer": "x"})
    assert references.references == ("c",)
    null = {"prompt": "a", "responses": ["b", "c"], "preferences": [1], "x": None}
    assert problem(COMPARISONS, null, {"scores": "x"}) == "`x`: must not be null"


WRONG = {"start": 6, "end": 7, "label": "wrong"}
MARKED_TWICE = {
    "id": "q",
    "prompt": "Name a prime.",
    "response": "It is 8.",
    "responses": ["It is 8.", "It is 🙂9."],
    "spans": [WRONG],
    "other_spans": [[{"start": 7, "end": 8, "label": "wrong"}]],
    "missing": [{"label": "why"}],
    "topic": "numbers",
}


def test_every_marked_response_of_a_row_is_read(tmp_path):
    items, counts = read(SPANS, tmp_path, [MARKED_TWICE])
    marked = [[item.response[span.start : span.end] for span in item.spans] for item in items]
    assert marked == [["8"], ["9"]]
    assert [item.prompt.id for item in items] == ["q", "q"]
    assert [item.prompt.text for item in items] == ["Name a prime."] * 2
    assert items[0].prompt.meta == {"responses": MARKED_TWICE["responses"], "topic": "numbers"}
    assert [judgement.label for judgement in items[0].judgements] == ["wrong", "why"]
    assert items[1].prompt.meta == {"topic": "numbers"}
    assert counts == {"responses after the first of their row, each with its own spans": 1}
    renamed = {**MARKED_TWICE, "marks": MARKED_TWICE["spans"], "text": MARKED_TWICE["response"]}
    del renamed["spans"], renamed["response"]
    again, _ = read(SPANS, tmp_path, [renamed], {"spans": "marks", "response": "text"})
    assert again == items


def test_lists_of_marks_that_do_not_fit_the_responses_are_refused(tmp_path):
    with pytest.raises(UserError, match="`other_spans`: has 2 lists for 2 responses"):
        read(SPANS, tmp_path, [{**MARKED_TWICE, "other_spans": [[], []]}])


def test_rejected_completions_are_no_demonstrations(tmp_path):
    good = {"prompt": "a", "completion": "b", "label": True}
    bad = {"prompt": "a", "completion": "c", "label": False}
    items, counts = read(DEMONSTRATIONS, tmp_path, [good, bad])
    assert [item.response for item in items] == ["b"]
    assert counts == {"rows with `label` false, whose completions were rejected": 1}
    for also in (bad | {"label": 0}, {"prompt": "a", "response": "c", "label": False}):
        items, _ = read(DEMONSTRATIONS, tmp_path, [good, also])
        assert [item.response for item in items] == ["b"]
    rated = {"prompt": "a", "response": "c", "label": 0}  # perhaps the class of the response
    assert len(read(DEMONSTRATIONS, tmp_path, [good, rated])[0]) == 2
    read(DEMONSTRATIONS, tmp_path, [good, bad])
    with pytest.raises(UserError, match="row 1, `label`: is false: this is an unpaired preference"):
        DEMONSTRATIONS.read(tmp_path / "rows.jsonl")  # as training does


def test_answers_of_weight_0_are_no_demonstrations(tmp_path):
    def row(*weights):
        said = [{"role": "assistant", "content": f"a{i}"} for i in range(len(weights))]
        answers = [
            message | ({} if weight is None else {"weight": weight})
            for message, weight in zip(said, weights, strict=True)
        ]
        turns = [({"role": "user", "content": "u"}, answer) for answer in answers]
        return {"messages": [message for turn in turns for message in turn]}

    items, counts = read(DEMONSTRATIONS, tmp_path, [row(0, 1), row(0), row(1, 0), row(None)])
    assert [item.response for item in items] == ["a1", "a0"]
    assert counts == {"rows whose answer has `weight` 0, so that it is not to be imitated": 2}
    with pytest.raises(UserError, match=r"row 1, `messages\[1\].weight`: is 0: this answer is not"):
        DEMONSTRATIONS.read(tmp_path / "rows.jsonl")  # as training does


TERM = {"start": 4, "end": 7, "label": "wrong", "quote": "dose"}


def test_spans_are_located_by_their_quotes(tmp_path):
    rows = [
        {"response": "The dose was high.", "spans": [TERM]},
        {"response": "A dose, 🙂 and a dose.", "spans": [{**TERM, "start": 15, "end": 19}]},
        {"response": "The cat.", "spans": [TERM]},
        {"response": "The cat.", "spans": [TERM, {**TERM, "quote": "cat"}]},
        {"response": "The dose.", "spans": [{"label": "wrong", "quote": "DOSE"}]},
    ]
    items, counts = read(SPANS, tmp_path, rows)
    found = [[item.response[span.start : span.end] for span in item.spans] for item in items]
    assert found == [["dose"], ["dose"], ["cat"], ["dose"]]
    assert items[1].spans[0].start == 16
    assert counts == {
        "spans, searched verbatim": 2,
        "spans, not found": 2,
        "spans, exact offset": 1,
        "spans, searched folded": 1,
        "responses left out, since none of their spans was found": 1,
    }


@pytest.mark.parametrize(
    "offsets, start, end",
    [
        ({}, 5, 9),
        ({"end": "inclusive"}, 5, 8),
        ({"unit": "utf16"}, 6, 10),
        ({"unit": "words", "base": 1, "end": "inclusive"}, 3, 3),
    ],
)
def test_offsets_of_a_file_are_counted_as_stated(tmp_path, offsets, start, end):
    from fgrlhf.data.quotes import Offsets

    path = tmp_path / "rows.jsonl"
    row = {"response": "A 🙂  dose was high.", "spans": [{**TERM, "start": start, "end": end}]}
    for keys in ({"quote": None}, {}):
        path.write_text(json.dumps({**row, "spans": [{**row["spans"][0], **keys}]}))
        counts: Counter[str] = Counter()
        reading = Offsets(**offsets).reading
        (item,) = SPANS.read(path, counts=counts, reading=reading)
        assert (item.spans[0].start, item.spans[0].end) == (5, 9)
        assert all(outcome.startswith("spans, exact offset") for outcome in counts)


def test_the_key_of_marked_texts_and_the_way_to_count_are_proposed():
    from fgrlhf.data.quotes import Offsets, quote_notes

    span = {"from": 1, "to": 2, "type": "wrong", "term": "dose was", "note": "too high"}
    rows = [{"response": "The dose was high.", "spans": [span]}]
    columns = {"spans.start": "from", "spans.end": "to", "spans.label": "type"}
    assert quote_notes(rows, columns, Offsets()) == [
        "`spans.term` is the marked text of 1 of 1 spans with offsets.unit=words offsets.base=0"
        " offsets.end=inclusive, of 0 as they are read: give columns.spans.quote=term"
        " offsets.unit=words offsets.base=0 offsets.end=inclusive"
    ]
    right = Offsets(unit="words", end="inclusive")
    assert quote_notes(rows, columns | {"spans.quote": "term"}, right) == []
    # one emoji before the mark: UTF-16 is likelier than offsets from 1
    judged = {"aspect": "a", "label": "b", "start": 5, "end": 8, "quote": "bad"}
    (note,) = quote_notes(
        [{"response": "A 🙂 bad", "judgements": [judged]}], {}, Offsets(), "judgements"
    )
    assert "give offsets.unit=utf16 offsets.base=0 offsets.end=exclusive" in note


@pytest.mark.parametrize(
    "name, value, scores",
    [
        ("first_error", 1, [1, 0, 0]),
        ("first_error", 1.0, [1, 0, 0]),
        ("first_error", None, [1, 1, 1]),
        ("first_error", -1, [1, 1, 1]),
        ("first_error", 0, [0, 0, 0]),
        ("first_error_from_1", 3, [1, 1, 0]),
    ],
)
def test_steps_are_judged_by_the_first_wrong_one(name, value, scores):
    row = {"prompt": "a", "steps": ["b", "c", "d"], name: value}
    assert [step.score for step in parse(STEPS, row).spans] == scores
    renamed = {"input": "a", "steps": ["b", "c", "d"], "label": value}
    feedback = parse(STEPS, renamed, {"prompt": "input", name: "label"})
    assert [step.score for step in feedback.spans] == scores and feedback.prompt.meta == {}


@pytest.mark.parametrize("name, value", [("first_error", 2), ("first_error_from_1", 0)])
def test_a_first_wrong_step_that_does_not_exist_is_refused(name, value):
    message = problem(STEPS, {"prompt": "a", "steps": ["b", "c"], name: value})
    assert f"`{name}`: is {value}, but there are 2 steps" in message


def test_the_prompt_may_be_in_several_keys(tmp_path):
    alpaca = {"instruction": "Translate.", "input": "hello", "output": "hallo"}
    columns = {"prompt": ["instruction", "input"], "response": "output"}
    assert parse(DEMONSTRATIONS, alpaca, columns).prompt.text == "Translate.\n\nhello"
    for empty in ("", " ", None):
        row = {**alpaca, "input": empty}
        assert parse(DEMONSTRATIONS, row, columns).prompt.text == "Translate."
    blank = {**alpaca, "instruction": " ", "input": None}
    assert "`columns.prompt`: " in problem(DEMONSTRATIONS, blank, columns)
    assert "`input`: must be" in problem(DEMONSTRATIONS, {**alpaca, "input": 3}, columns)

    # a part that is left out is counted
    file = tmp_path / "rows.jsonl"
    write_jsonl(file, [alpaca, {**alpaca, "input": ""}, {**alpaca, "system": "Be brief."}])
    counts = Counter()
    DEMONSTRATIONS.read(file, {**columns, "prompt": "instruction"}, counts=counts)
    left_out = "is no part of the prompt (join: columns.prompt='[KEY, KEY]')"
    assert counts == {f"rows whose `input` {left_out}": 2, f"rows whose `system` {left_out}": 1}
    counts.clear()
    DEMONSTRATIONS.read(file, columns, counts=counts)
    assert counts == {f"rows whose `system` {left_out}": 1}
