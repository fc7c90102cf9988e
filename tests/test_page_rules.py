"""The rules that the pages have in JavaScript are those of the server in Python.

Documents are right ones in which a few parts were replaced at random. One page evaluates the rules
of all schemas.
"""

import itertools
import random

import pytest
from made_tasks import FLUENT, OMISSION, REPEATS, ROW, SEVERITIES, WRONG, schema_json, task_with
from page_helpers import ITEM, QA, TEXT, evaluate_json, opened
from rating_tasks import rating_task
from test_ratings import CASES
from test_rules import doc as judged
from test_rules import error as marked
from test_rules import missing

from fgrlhf.models.dialogs import messages_in
from fgrlhf.words import is_inner_boundary, is_unspaced
from interface_html.differences import differences
from interface_html.ratings import rating_problems
from interface_html.rules import (
    LONGEST_REASON,
    annotation_problems,
    comparison_problems,
    find_cycle,
    is_weak_order,
    sentences,
)
from interface_html.schema import SKIP_REASONS, Schema
from interface_html.skips import skip_problems
from interface_html.suggestions import (
    decision_problems,
    item_suggestion_problems,
    undecided_problems,
)

ASKED = {**FLUENT, "positive": False, "reason": "optional"}
NO_MISSING = {"missing": [], "correction": False}
OUTPUTS = {**NO_MISSING, "mark_outputs": True, "errors": [WRONG, REPEATS, OMISSION]}
CHINESE = "我喜欢吃苹果。东京很大 and big"

# Keys of a schema, and of its fields those that some random documents have wrong.
SCHEMAS = {
    "question answering": (None, {"explanation", "typed", "no-error", "corrected-prediction"}),
    "sentences": ({"unit": "sentence"}, {"start", "end"}),
    "words without spaces": ({"text": CHINESE}, {"start", "end"}),
    "overlap": ({"overlap": True}, {"start", "end"}),
    "severities": ({"severities": SEVERITIES, "comment": "optional"}, {"severity", "comment"}),
    "a severity of each error": (
        {"severities": SEVERITIES, "severity_required": True, "errors": [WRONG, FLUENT]},
        {"severity", "comment", "flag"},
    ),
    "liked spans": ({**NO_MISSING, "errors": [WRONG, FLUENT]}, {"no-error"}),
    "reasons": (
        {**NO_MISSING, "errors": [{**WRONG, "reason": "required"}, ASKED, {**REPEATS, "key": "3"}]},
        {"reason", "explanation"},
    ),
    "the source": ({**NO_MISSING, "errors": [WRONG, OMISSION]}, {"side", "reason", "output"}),
    "all outputs": (OUTPUTS, {"output", "side", "severity", "explanation"}),
}

EVIDENCE = '{"passage_id":1,"sentence_id":[2]}'
# what replaces a part of an error; None takes it away
REPLACEMENTS = {
    "error type": ["New"],
    "explanation": ["", "The", "A", EVIDENCE, '{"passage_id":1,"sentence_id":[2,99]}'],
    "severity": ["minor", "major", "huge", "", None],
    "reason": [
        "Why.",
        "",
        " \n\u3000",
        "😀" * LONGEST_REASON,
        "😀" * LONGEST_REASON + "x",
        3,
        None,
    ],
    "side": ["source", "response", "", None],
    "output": [1, 2, 3, 4, 0, "1", 1.5, None],
    "typed": ["", "1:2", "1:99"],
}
REPLACEMENTS["reason"] += [["why"], "a\ud800"]
DOCUMENT = {
    "comment": ["Text.", "", " \n", "\u3000"],
    "flag": [True, False, None, 1, "true"],
    "no-error": [True, False],
    "corrected-prediction": ["", "Mended.", TEXT],
}


@pytest.fixture(scope="module")
def tab(chromium):
    with opened(chromium, items=None) as page:
        yield page


def edges_of(text: str) -> list[int]:
    """The places in a text where a word, a sentence or a character beyond the basic plane ends."""
    spaces = [i for i in range(1, len(text)) if text[i - 1].isspace() != text[i].isspace()]
    ends = [place for sentence in sentences(text) for place in sentence]
    return sorted({0, len(text), *spaces, *ends, 2})


def random_error(rng: random.Random, schema: Schema, row: dict) -> dict:
    """An error with a random span, mostly a right one, and a part that may be replaced."""
    kind = rng.choice(schema.errors)
    key, error = schema.fields.outputs[0], {"error type": kind.name}
    if kind.side == "source":
        key, error["side"] = schema.fields.title, "source"
    elif schema.mark_outputs and (output := rng.randrange(4)):
        key, error["output"] = schema.fields.outputs[output], output
    start, end = sorted(rng.sample(edges_of(row[key]), 2))
    if rng.random() < 0.1:
        start, end = rng.randint(-2, len(row[key]) + 2), rng.randint(-2, len(row[key]) + 2)
    earlier = row[key][: max(start, 0)].split()[:1]
    needed = {"nothing": "", "earlier text": "".join(earlier), "sentences": EVIDENCE}
    error |= {"explanation": needed[kind.needs], "start": start, "end": end}
    if schema.severity_required and not kind.positive:
        error["severity"] = "minor"
    if kind.reason == "required":
        error["reason"] = "Why."
    if rng.random() < 0.4:
        part = rng.choice(list(REPLACEMENTS))
        error[part] = rng.choice(REPLACEMENTS[part])
        if error[part] is None and rng.random() < 0.5:
            del error[part]
    return error


def random_document(rng: random.Random, schema: Schema, row: dict) -> dict:
    errors = [random_error(rng, schema, row) for _ in range(rng.choice([0, 1, 1, 2, 3]))]
    infos = []
    for _ in range(rng.choice([0, 0, 1, 2]) if schema.missing else 0):
        ids = [rng.randint(0, 4) for _ in range(rng.choice([0, 1, 1, 2]))]
        place = {"passage_id": rng.choice([1, 1, 2, 3]), "sentence_id": ids}
        infos.append({"error type": rng.choice(schema.missing).name, **place})
    liked = {kind.name for kind in schema.errors if kind.positive}
    has_errors = bool(infos or [one for one in errors if one["error type"] not in liked])
    text = row[schema.text]
    corrected = "" if not schema.correction else "Mended." if has_errors else text
    document = {"errors": errors, "missing-info": infos}
    document |= {"corrected-prediction": corrected, "no-error": not has_errors}
    if rng.random() < 0.2:
        part = rng.choice(list(DOCUMENT))
        document[part] = rng.choice(DOCUMENT[part])
    return document


@pytest.mark.parametrize("name", SCHEMAS)
def test_annotations(tab, tmp_path, name):
    keys, wrong = SCHEMAS[name]
    keys = dict(keys or {})
    text = keys.pop("text", TEXT)
    task = QA if name == "question answering" else task_with(tmp_path, **keys)
    source = {**ROW, "prompt": "😀 who sat?", "response": text}
    source["responses"] = [text, "A 😀 cat. A dog.", "third one", "fourth"]
    row = ITEM if task is QA else task.format.item_row(task.schema, source, "")
    rng = random.Random(name)
    docs = [random_document(rng, task.schema, row) for _ in range(1000)]
    rules = """([schema, row, docs]) => docs.map((doc) =>
        FG.annotationProblems(schema, row, doc).map(({ field }) => field))"""
    found = evaluate_json(tab, rules, [schema_json(task), row, docs])
    for doc, fields in zip(docs, found, strict=True):
        expected = [field for field, _ in annotation_problems(task.schema, row, doc)]
        assert sorted(fields) == sorted(expected), doc
    assert 50 < sum(not fields for fields in found) < 950
    assert wrong <= {field.rpartition(".")[2] for fields in found for field in fields}


def test_the_page_counts_on_nothing_of_another_schema(tab, tmp_path):
    """The keys of errors that a schema does not have are unknown, whatever their values are."""
    task = task_with(tmp_path, **NO_MISSING, errors=[WRONG, REPEATS])
    row = task.format.item_row(task.schema, ROW, "")
    repeats = {"error type": "Repeats", "explanation": "The", "start": 4, "end": 7}
    wrong = [{**repeats, "output": output} for output in (9, -1, "x", None)]
    wrong += [{**repeats, "explanation": "absent", "output": 1}]
    docs = [{**judged(), "corrected-prediction": "", "errors": [one]} for one in wrong]
    rules = "([schema, row, docs]) => docs.map((doc) => FG.annotationProblems(schema, row, doc))"
    for doc, found in zip(docs, evaluate_json(tab, rules, [schema_json(task), row, docs])):
        expected = list(annotation_problems(task.schema, row, doc))
        assert [one["field"] for one in found] == [field for field, _ in expected]
        assert [field for field, _ in expected] == ["feedback.errors[0].output"]


# ---- words and conversations ---------------------------------------------------------------------


def test_boundaries_inside_words(tab):
    rng = random.Random(6)
    pieces = "中あア一。「」ー々ก\u0e49ລມក\u1000a1. \n\u3000é😀𠀀\u3100\u30a0\u3040\u2fe0"
    texts = ["".join(rng.choices(pieces, k=rng.randint(1, 12))) for _ in range(300)]
    edges = [point for code in range(0x0D00, 0x32400, 16) for point in (code - 1, code)]
    letters = [chr(point) for point in edges if not 0xD800 <= point < 0xE000]
    found = evaluate_json(tab, "texts => texts.map(FG.isUnspaced)", letters)
    assert found == [is_unspaced(letter) for letter in letters]
    inner = """texts => texts.map((text) => FG.points(text).map(
        (_, at) => FG.isInnerBoundary(FG.points(text), at)))"""
    expected = [[is_inner_boundary(text, at) for at in range(len(text))] for text in texts]
    assert evaluate_json(tab, inner, texts) == expected


def test_turns_of_a_conversation(tab):
    dialog = "\n\nSystem: Be kind.\n\nHuman: Hi <b>you</b>\n\nAssistant: Hello.\nYes?\n\nHuman: Go."
    dialog += "\n\nAssistant:"
    texts = [dialog, dialog + " \n", dialog.strip(), "Before" + dialog]
    texts += [
        dialog.removesuffix("\n\nAssistant:"),
        "\n\nHuman: a\n\nHuman: b\n\nAssistant:",
        "\n\nAssistant: a\n\nHuman: b\n\nAssistant:",
        "\n\nSystem: a\n\nAssistant:",
        "\n\nHuman: \x85 a\u2003\n\nAssistant:",
        "\n\nAssistant:",
        "Human: a",
        "",
    ]
    turns = "texts => texts.map((text) => FG.messagesIn(text).map((m) => [m.role, m.content]))"
    found = evaluate_json(tab, turns, texts)
    assert found == [[list(message) for message in messages_in(text)] for text in texts]
    assert [bool(messages) for messages in found].count(True) == 4


# ---- suggestions ---------------------------------------------------------------------------------

VALUES = [None, True, -1, 0, 1, 2, 7, 0.5, 1.5, "x", "", "Irrelevant", [], {}]


def suggested(kind: str, start: int, end: int, output: int = 0) -> dict:
    one = {"type": kind, "start": start, "end": end, "explanation": "", "score": 0.9}
    return {**one, "source": "rm", **({"output": output} if output else {})}


def replaced(rng: random.Random, entry: dict, share: float) -> dict:
    """The entry in which a value is replaced, or a key is missing, in a share of the cases."""
    entry = dict(entry)
    if rng.random() < share:
        entry[rng.choice([*entry, "more"])] = rng.choice(VALUES)
    if rng.random() < share / 4:
        del entry[rng.choice(list(entry))]
    return entry


def random_row(rng: random.Random, row: dict, suggestions: list[dict]) -> dict:
    chosen = [replaced(rng, rng.choice(suggestions), 0.3) for _ in range(rng.randint(0, 3))]
    row = {**row, "suggestions": chosen}
    if rng.random() < 0.2:
        row["suggestions_shown"] = rng.choice([True, False, None])
    if rng.random() < 0.1:
        row["suggestions"] = rng.choice(VALUES)
    if rng.random() < 0.1:
        del row["suggestions"]
    return row


def random_decisions(rng: random.Random, suggestions: list[dict]) -> dict:
    errors, rejections = [], []
    for i, one in enumerate(suggestions):
        place = rng.choice([one, one, one, rng.choice(suggestions)])
        end = rng.choice([place["end"], place["end"], 20])
        error = {"error type": one["type"], "explanation": "", "start": place["start"], "end": end}
        if "output" in place:
            error["output"] = place["output"]
        verdict = rng.choice(["accepted", "changed"])
        decision = {"index": i, "source": one["source"], "score": one["score"], "verdict": verdict}
        if rng.random() < 0.6:
            errors.append({**error, "origin": replaced(rng, decision, 0.3)})
        if rng.random() < 0.5:
            rejection = {"index": i, "verdict": "rejected"}
            rejections.append(rng.choice([rejection, rejection, rng.choice(VALUES), {"index": 1}]))
    return {"errors": errors, "suggestions": rejections}


@pytest.mark.parametrize("outputs", [False, True])
def test_suggestions_and_decisions_on_them(tab, tmp_path, outputs):
    rng = random.Random(outputs)
    task = task_with(tmp_path, **OUTPUTS) if outputs else QA
    if outputs:
        source = {**ROW, "responses": [TEXT, "A 😀 cat. A dog.", "third one", "fourth"]}
        row = task.format.item_row(task.schema, source, "")
        places = [(0, 3), (2, 8, 1), (0, 6, 3), (0, 5, 2), (0, 5, 3), (0, 9, 1)]
        suggestions = [suggested("Wrong", *place) for place in places]
        right = suggestions[:3]
    else:
        row = {key: value for key, value in ITEM.items() if key != "id"}
        right = [suggested("Irrelevant", 4, 11), suggested("Unverifiable", 33, 37)]
        right += [suggested("Incoherent", 38, 45)]
        suggestions = right
    rows = [random_row(rng, row, suggestions) for _ in range(400)]
    decided = [{**row, "suggestions": rng.sample(right, rng.randint(0, 3))} for _ in range(400)]
    docs = [random_decisions(rng, one["suggestions"]) for one in decided]
    found = evaluate_json(
        tab,
        """([schema, rows, decided, docs]) => {
            const names = (problems) => problems.map(({ field }) => field);
            return [
                rows.map((row) => names(FG.itemSuggestionProblems(schema, row))),
                decided.map((row, i) => {
                    const wrong = FG.decisionProblems(row, docs[i]);
                    return names(wrong.length ? wrong : FG.undecidedProblems(row, docs[i]));
                }),
            ];
        }""",
        [schema_json(task), rows, decided, docs],
    )
    in_rows = [item_suggestion_problems(task.schema, one) for one in rows]
    in_docs = [
        list(decision_problems(one, doc)) or undecided_problems(one, doc)
        for one, doc in zip(decided, docs)
    ]
    for in_browser, in_python in zip(found, (in_rows, in_docs)):
        expected = [{field for field, _ in problems} for problems in in_python]
        assert [set(fields) for fields in in_browser] == expected
        assert 20 < sum(not fields for fields in in_browser) < 380


# ---- the other pages -----------------------------------------------------------------------------


def test_circles_and_rankings(tab):
    rng = random.Random(3)
    cases = [[rng.choice([0, 1, 2]) for _ in QA.schema.pairs] for _ in range(729)]
    function = """cases => cases.map((c) => [FG.findCycle(4, FG.pairs(FG_SCHEMA), c),
        FG.brokenTriple(4, FG.pairs(FG_SCHEMA), c)])"""
    for case, (cycle, broken) in zip(cases, evaluate_json(tab, function, cases)):
        assert cycle == find_cycle(4, QA.schema.pairs, case)
        assert (broken is None) == is_weak_order(4, QA.schema.pairs, case)


def test_what_was_seen_and_whether_any_output_is_acceptable(tab):
    seen = {"seconds": 2.5, "share": 0.5}
    values = (0, 1, 0.5, 1e7, -1, 1.5, 2e7, True, "1", None, [], 1e300)
    lists = [None, {}, [], [seen] * 3, [seen] * 4, [seen] * 5, [None, seen, seen, seen]]
    lists += [[{**seen, "more": 1}, *[seen] * 3], [{"seconds": 1}, *[seen] * 3], [[], *[seen] * 3]]
    for key, value in itertools.product(seen, values):
        lists.append([seen, {**seen, key: value}, seen, seen])
    docs = [{"seen": one} for one in lists]
    docs += [{"all-bad": value} for value in (True, False, 0, 1, "true", None)]
    docs += [{}, {"all-bad": 3, "seen": 3}]
    function = """docs => docs.map((doc) =>
        FG.readingProblems(FG_SCHEMA, doc).map(({ field }) => field))"""
    accepted = 0
    for doc, fields in zip(docs, evaluate_json(tab, function, docs)):
        compared = {"preference": [0] * 6, "order": [0, 1, 2, 3], **doc}
        expected = comparison_problems(QA.schema, compared)
        accepted += not expected
        assert fields == [field for field, _ in expected], doc
    assert 8 <= accepted <= len(docs) / 2


def test_ratings(tab, tmp_path):
    task = rating_task(tmp_path)
    cases = [(ratings, fields) for ratings, fields in CASES if ratings]
    function = """([schema, cases]) => cases.map((ratings) =>
        FG.ratingProblems(schema, ratings).map(({ field }) => field))"""
    found = evaluate_json(tab, function, [schema_json(task), [ratings for ratings, _ in cases]])
    for (ratings, fields), in_browser in zip(cases, found):
        python = rating_problems(task.schema, {"ratings": ratings, "order": [0, 1]})
        assert in_browser == [field for field, _ in python] == fields


def test_flags_and_comments_of_every_page(tab, tmp_path):
    task = task_with(tmp_path)
    notes = [{}, *({"flag": value} for value in DOCUMENT["flag"])]
    function = """([schema, notes]) => notes.map((note) =>
        FG.noteProblems(schema, note, "").map(({ field }) => field))"""
    for note, fields in zip(notes, evaluate_json(tab, function, [schema_json(task), notes])):
        rated = {"ratings": {}, "order": [0, 1, 2, 3], **note}
        compared = {"preference": [0] * 6, "order": [0, 1, 2, 3], **note}
        for found in (
            rating_problems(task.schema, rated),
            comparison_problems(task.schema, compared),
        ):
            assert fields == [field for field, _ in found if field == "flag"]


def test_skips(tab):
    skips = [
        {"reason": reason, "text": text}
        for reason in [*(reason.name for reason in SKIP_REASONS), "tired", ""]
        for text in ("", " \u3000", "text", "😀" * 1000, "😀" * 1001)
    ]
    reasons = tab.evaluate("FG.skipReasons(FG_SCHEMA)")
    expected = [reason.model_dump() for reason in SKIP_REASONS]
    assert [{"needs_text": False, **reason} for reason in reasons] == expected
    function = """skips => skips.map((skip) =>
        FG.skipProblems(FG_SCHEMA, skip).map(({ field }) => field))"""
    for skip, fields in zip(skips, evaluate_json(tab, function, skips)):
        assert fields == [field for field, _ in skip_problems(QA.schema, skip)], skip


def test_differences_between_annotations(tab):
    rng = random.Random(5)
    edges = [0, 3, 4, 7, 8, 11, 24, 26, 33, 37]
    kinds = [kind.name for kind in QA.schema.errors][:2]
    cases = []
    for _ in range(300):
        docs = []
        for _ in range(rng.randint(2, 4)):
            errors = []
            for _ in range(rng.randint(0, 3)):
                start, end = sorted(rng.sample(edges, 2))
                evidence = rng.choice(["", "The cat"])
                errors.append(marked(rng.choice(kinds), start, end, explanation=evidence))
                if rng.random() < 0.3:
                    errors[-1]["severity"] = rng.choice(["major", "minor"])
            once = {(one["start"], one["end"], one["error type"]): one for one in errors}
            ids = rng.sample([(1,), (2, 1), (1, 2)], rng.randint(0, 1))
            document = judged(list(once.values()), [missing(ids=one) for one in ids])
            docs.append({**document, "corrected-prediction": rng.choice(["one", "two"])})
        cases.append(docs if rng.random() < 0.9 else docs[:1] * len(docs))
    function = """cases => cases.map((docs) => FG.placesOf(FG_SCHEMA, docs)
        .filter(({ difference }) => difference).map(({ name }) => name))"""
    found = evaluate_json(tab, function, cases)
    for docs, names in zip(cases, found, strict=True):
        assert sorted(names) == sorted(differences(QA.schema, docs)), docs
    assert sum(not names for names in found) > 3
