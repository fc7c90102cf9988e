"""Requests and answers of reward servers, by hand."""

import json

import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.reward_models.prefix import Prefix
from fgrlhf.rewards.protocol import (
    prompts_of,
    read_request,
    read_scores,
    request_id,
    request_of,
    sent_prefix,
)
from fgrlhf.scorers.answer_cache import content_hash
from fgrlhf.text_types import Prompt, SegmentScore

MODEL = "a" * 64
DIALOG = Prompt(
    "7", "Hi. Yes?", ("r",), {"row": object()}, (("user", "Hi."), ("assistant", "Yes?"))
)


def prefix_fn(prompt: Prompt, with_context: bool):
    if not with_context:
        return ["short"]
    spaces = ("", "\n", " ")
    return Prefix(("a", "long", "one"), (range(1, 2),), ("answer:",), keeps_end=True, spaces=spaces)


def encoded(request) -> bytes:
    return json.dumps(request).encode()


def changed(**changes) -> bytes:
    return encoded(request_of(MODEL, prefix_fn, [DIALOG], ["ok"]) | changes)


def test_a_request_by_hand():
    other = Prompt("8", "b")
    request = request_of(MODEL, prefix_fn, [DIALOG, DIALOG, other], ["x", "é", "z"])
    whole = {
        "words": ["a", "long", "one"],
        "context": [[1, 2]],
        "response_mark": ["answer:"],
        "keeps_end": True,
        "spaces": ["", "\n", " "],
    }
    short = {"words": ["short"], "context": [], "response_mark": []}
    assert request["prompts"][0] == {
        "id": "7",
        "text": "Hi. Yes?",
        "references": ["r"],
        "messages": [["user", "Hi."], ["assistant", "Yes?"]],
        "with_context": whole,
        "without_context": {**short, "keeps_end": False, "spaces": None},
    }
    places = [(item["prompt"], item["response"]) for item in request["items"]]
    assert places == [(0, "x"), (0, "é"), (1, "z")]
    assert request["request_id"] == content_hash(1, MODEL, request["prompts"], request["items"])


def test_a_request_is_read_back():
    body = encoded(request_of(MODEL, prefix_fn, [DIALOG, DIALOG], ["x", "y"]))
    prompts, texts = prompts_of(read_request(body))
    assert texts == ["x", "y"] and prompts[0] is prompts[1]
    (prompt, _) = prompts
    assert (prompt.id, prompt.text, prompt.references) == ("7", "Hi. Yes?", ("r",))
    assert prompt.messages == DIALOG.messages
    assert sent_prefix(prompt, True) == prefix_fn(DIALOG, True)
    assert sent_prefix(prompt, False) == Prefix(("short",))


def test_the_id_depends_on_all_contents():
    ids = {
        request_of(MODEL, prefix_fn, [DIALOG], ["x"])["request_id"],
        request_of(MODEL, prefix_fn, [DIALOG], ["y"])["request_id"],
        request_of("b" * 64, prefix_fn, [DIALOG], ["x"])["request_id"],
        request_of(MODEL, lambda prompt, with_context: [], [DIALOG], ["x"])["request_id"],
        request_of(MODEL, prefix_fn, [Prompt("7", "Hi.")], ["x"])["request_id"],
    }
    assert len(ids) == 5


@pytest.mark.parametrize(
    "body, message",
    [
        (b"\xff", "not valid JSON"),
        (b"NaN", "NaN is not a JSON number"),
        (b'"\\ud800"', "half of a surrogate pair"),
        (b"[" * 100_000, "nested too deeply"),
        (b"{}", "5 mistakes"),
        (changed(protocol=2), "protocol"),
        (changed(model_sha256="A" * 64), "model_sha256"),
        (changed(more=1), "more: unknown key"),
        (changed(items=[{"prompt": -1, "response": ""}]), "prompt"),
        (changed(items=[{"prompt": 0, "response": 7}]), "response"),
        (changed(request_id="0" * 64), "request_id is 0+, but the content has"),
    ],
)
def test_malformed_requests_are_refused(body, message):
    with pytest.raises(UserError, match=message):
        read_request(body)


def with_id(**changes) -> bytes:
    request = request_of(MODEL, prefix_fn, [DIALOG], ["ok"]) | changes
    request["request_id"] = request_id(MODEL, request["prompts"], request["items"])
    return encoded(request)


def test_inconsistent_requests_are_refused():
    request = read_request(with_id(items=[{"prompt": 1, "response": ""}]))
    with pytest.raises(UserError, match="item 0 has prompt 1, but there are 1 prompts"):
        prompts_of(request)
    (row,) = request_of(MODEL, prefix_fn, [DIALOG], ["ok"])["prompts"]
    row["with_context"]["context"] = [[1, 9]]
    with pytest.raises(UserError, match="prompt 7: the context"):
        prompts_of(read_request(with_id(prompts=[row])))


def test_scores_by_hand():
    spans = [
        {"start": 0, "end": 2, "value": 0.1, "label": "a"},
        {"start": 2, "end": 2, "value": -1, "label": ""},
        {"start": 2, "end": None, "value": 1e-320, "label": "é"},
    ]
    (scores, nothing, inapplicable) = read_scores([spans, [], None], ["abcd", "", "x"])
    assert scores == [
        SegmentScore(0, 2, 0.1, "a"),
        SegmentScore(2, 2, -1, ""),
        SegmentScore(2, None, 1e-320, "é"),
    ]
    assert nothing == [] and inapplicable is None


def test_the_spans_are_in_characters():
    span = {"start": 0, "end": 3, "value": 1.0, "label": ""}
    assert read_scores([[span]], ["é🙂x"])[0] is not None
    with pytest.raises(ValueError, match="which has 2 characters"):
        read_scores([[span]], ["é🙂"])
