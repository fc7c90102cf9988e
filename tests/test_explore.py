"""Statistics of comparisons: by hand, with planted faults, as a page and as a command."""

import math
import random
import re
from dataclasses import replace
from itertools import combinations
from typing import get_args

import pytest
from page_helpers import violations

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_jsonl
from fgrlhf.cli import data, data_comparisons
from fgrlhf.data.comparisons import Answer, Comparison
from fgrlhf.data.explore import (
    FEATURES,
    FILTERS,
    apply_filter,
    decided_pairs,
    distinguishing_words,
    explore,
)
from fgrlhf.data.explore_page import page, warnings
from fgrlhf.data.near_duplicates import near_duplicates, shingles, similarity
from fgrlhf.data.read import read_rows
from fgrlhf.stats import Interval
from fgrlhf.text_types import Prompt

VOCABULARY = [f"word{i}" for i in range(300)]


def row(prompt, answers, pairs=((0, 1),), margins=()):
    return Comparison(
        Prompt(prompt, prompt), tuple(map(Answer, answers)), tuple(pairs), tuple(margins)
    )


def random_text(rng, length=40):
    return " ".join(rng.choices(VOCABULARY, k=length))


# ---- near-duplicates -----------------------------------------------------------------------------


def test_similarity_by_hand():
    a, b = shingles("The cat sat down."), shingles("the cat sat up")
    assert a == {("the", "cat", "sat"), ("cat", "sat", "down")}
    assert similarity(a, b) == 1 / 3
    assert shingles("Hi there") == {("hi", "there")} and shingles("") == {()}
    assert similarity(frozenset(), frozenset()) == 1


def test_operators_and_symbols_are_words():
    """Else sums and emoji would be duplicates of each other."""
    assert shingles("7 - 3 = -4") == {("7", "-", "3"), ("-", "3", "="), ("3", "=", "-")} | {
        ("=", "-", "4")
    }
    for first, second in [("2 + 5?", "2 - 5?"), ("7 > 3", "-3 > 7"), ("😀", "😡"), ("6/2", "6*2")]:
        assert similarity(shingles(first), shingles(second)) == 0
    assert shingles("A well-known (old) cat, no?") == shingles("a well known old cat: no.")


def test_planted_near_duplicates_and_no_others():
    """Against the comparison of all pairs."""
    rng = random.Random(0)
    texts = [random_text(rng) for _ in range(150)]
    for place in (3, 40, 41, 90):
        words = texts[place].split()
        words[rng.randrange(len(words))] = "changed"  # 3 of 38 triples differ
        texts.append(" ".join(words))
    texts.append(texts[3].upper() + "!")
    sets = list(map(shingles, texts))
    pairs = combinations(range(len(texts)), 2)
    linked = {frozenset((i, j)) for i, j in pairs if similarity(sets[i], sets[j]) >= 0.8}
    groups = near_duplicates(texts)
    assert groups == [[3, 150, 154], [40, 151], [41, 152], [90, 153]]
    assert {frozenset(pair) for group in groups for pair in combinations(group, 2)} >= linked
    assert near_duplicates(texts[:150]) == []


def test_many_equal_texts_are_one_group():
    assert near_duplicates(["a b c d"] * 500 + ["x y z w"]) == [list(range(500))]


def test_rows_with_one_long_prompt_and_other_responses_are_no_duplicates():
    """The prompt has nearly all word triples of these rows."""
    rng = random.Random(0)
    prompt = random_text(rng, 200)
    answers = ["yes, it is", "nobody knows that", "ask the office", "that depends"]
    pairs = [row(prompt, pair) for pair in combinations(answers, 2)]
    assert apply_filter("duplicates", pairs) == pairs
    assert explore(pairs).duplicate_groups == []
    swapped = row(prompt, answers[1::-1])
    assert apply_filter("duplicates", [*pairs, swapped]) == pairs


def test_one_long_response_does_not_make_duplicates():
    rng = random.Random(0)
    long = random_text(rng, 200)
    rows = [row("p", [long, "7"]), row("p", [long, "8"]), row("p", ["8", long])]
    assert apply_filter("duplicates", rows) == rows[:2]


def test_rows_with_a_changed_word_in_prompt_and_response_are_duplicates():
    rng = random.Random(0)
    rows = [row(random_text(rng), [random_text(rng), random_text(rng)]) for _ in range(50)]
    repeated = []
    for item in rows:
        words = [text.split() for text in (item.prompt.text, *(a.text for a in item.answers))]
        for text in words:
            text[rng.randrange(len(text))] = "changed"
        prompt, *answers = map(" ".join, words)
        repeated.append(row(prompt, answers[::-1]))
    assert apply_filter("duplicates", rows) == rows
    assert apply_filter("duplicates", [*rows, *repeated]) == rows
    groups = explore([*rows, *repeated]).duplicate_groups
    assert groups == [[place, place + 50] for place in range(50)]


# ---- statistics ----------------------------------------------------------------------------------


def test_counts_by_hand():
    found = explore(
        [
            row("p", ["a b c", "a b"]),
            row("p", ["x", "y z", "u v w"], [(2, 0), (1, 0)]),  # one tie
            row("q", ["m", "n"], []),
            row("r", ["s", "t"], [(0, 1), (1, 0)]),  # decided both ways
        ]
    )
    assert (found.rows, found.prompts, found.pairs) == (4, 3, 5)
    assert (found.undecided_rows, found.ties, found.contradictions) == (1, 2, 1)
    assert found.responses == {2: 3, 3: 1} and found.turns == {1: 4}
    assert found.lengths["prompts"] == [1] * 4
    assert found.lengths["better responses"] == [3, 3, 2, 1, 1]
    assert found.lengths["worse responses"] == [2, 1, 1, 1, 1]
    assert found.first_is_better.mean == 2 / 5
    (words,) = [feature for feature in found.features if feature.name == "words"]
    assert (words.better_mean, words.worse_mean) == (2.0, 1.2)
    assert (words.share.mean, words.different) == (1.0, 3)


def test_rows_without_a_difference_do_not_widen_the_interval():
    """Draws of only such rows would count as a share of 0."""
    comparisons = [row("p", ["a b", "a"]), row("q", ["c d", "c"])]
    comparisons += [row(f"r{number}", ["e", "f"]) for number in range(20)]
    features = {feature.name: feature for feature in explore(comparisons).features}
    words = features["words"]
    assert words.share == Interval(1.0, math.nan, math.nan) and words.different == 2
    assert features["numbers"].share is None and features["numbers"].different == 0
    text = page("rows", explore(comparisons), comparisons)
    assert re.search(r"numbers</th>.*\n.*>–</td>", text)


@pytest.mark.parametrize("key", ["prompt", "cluster"])
def test_rows_of_one_prompt_are_one_unit(key):
    """Four copies of every row say nothing new, and eight prompts have no interval."""

    def share_of(prompts, copies):
        rows = []
        for number in range(prompts * copies):
            answers = ["a b", "a"] if number % prompts % 3 else ["a", "a b"]
            comparison = row(f"q{number % prompts if key == 'prompt' else number}", answers)
            if key == "cluster":
                prompt = replace(comparison.prompt, meta={"cluster": f"d{number % prompts}"})
                comparison = replace(comparison, prompt=prompt)
            rows.append(comparison)
        return next(one.share for one in explore(rows).features if one.name == "words")

    once, often = share_of(30, 1), share_of(30, 4)
    assert (often.low, often.high) == pytest.approx((once.low, once.high))
    assert "4 of at least 5 units" in str(share_of(4, 10))


def test_rows_that_list_the_better_response_first_have_no_position():
    assert explore([row("p", ["a", "b"]), row("q", ["c", "d"])]).first_is_better is None


def test_turns_are_those_of_the_user():
    messages = (("user", "a"), ("assistant", "b"), ("user", "c"))
    dialog = Comparison(
        Prompt("0", "a b c", messages=messages), (Answer("x"), Answer("y")), ((0, 1),)
    )
    assert explore([dialog, row("p", ["a", "b"])]).turns == {1: 1, 2: 1}


def test_distinguishing_words_by_hand():
    pairs = decided_pairs(
        [row(f"p{i}", ["Sorry, no", "yes"]) for i in range(9)]
        + [row(f"q{i}", ["yes", "no, sorry"]) for i in range(3)]
        + [row(f"r{i}", ["yes and", "yes"]) for i in range(9)]  # 9 rows are too few for "and"
    )
    words = {word.text: word for word in distinguishing_words(pairs)}
    assert set(words) == {"sorry", "no", "yes"}
    assert (words["sorry"].better, words["sorry"].worse) == (9, 3)
    assert words["sorry"].z == pytest.approx((9 - 6) / math.sqrt(3))
    assert words["yes"].z == pytest.approx(-words["sorry"].z)
    assert [word.text for word in distinguishing_words(pairs, shown=1)] == ["no", "yes"]


def test_a_row_counts_once_for_a_word_in_each_direction():
    answers = ["indeed", *["so"] * 11]
    best_of_12 = row("p", answers, [(0, i) for i in range(1, 12)])
    assert distinguishing_words(decided_pairs([best_of_12])) == []
    pairs = decided_pairs([row(f"p{i}", answers, best_of_12.pairs) for i in range(10)])
    indeed, so = distinguishing_words(pairs)
    assert (indeed.text, indeed.better, indeed.worse) == ("indeed", 10, 0)
    assert indeed.z == pytest.approx((10 - 5) / math.sqrt(10 / 4))
    middle = [row(f"q{i}", ["no", "yes", "no"], [(0, 1), (1, 2)]) for i in range(9)]
    assert distinguishing_words(decided_pairs(middle)) == []  # 9 rows, 18 counts


@pytest.mark.parametrize("better_is_longer", [0.5, 0.9])
def test_a_length_bias_is_reported_only_where_there_is_one(better_is_longer):
    rng = random.Random(1)
    comparisons = []
    for i in range(300):
        short, long = random_text(rng, 5), random_text(rng, 9)
        answers = [long, short] if rng.random() < better_is_longer else [short, long]
        flip = rng.random() < 0.5
        comparisons.append(row(f"p{i}", answers[::-1] if flip else answers, [(flip, not flip)]))
    found = explore(comparisons)
    (share,) = [feature.share for feature in found.features if feature.name == "words"]
    assert share.low < better_is_longer < share.high
    assert any("The longer response is better" in line for line in warnings(found)) == (
        better_is_longer == 0.9
    )
    assert found.first_is_better.low < 0.5 < found.first_is_better.high


# ---- filters -------------------------------------------------------------------------------------


def test_every_filter_removes_what_it_names():
    rng = random.Random(2)
    long, other = random_text(rng), random_text(rng)
    fine = row(random_text(rng), [long, other])
    rows = {
        "blank": row(random_text(rng), [" ", "a"]),
        "identical": row(random_text(rng), ["a  b", "a b "]),
        "contradicted": row(random_text(rng), ["a", "b"], [(0, 1), (1, 0)]),
        "close": row(random_text(rng), [long, f"{long} end"]),
        "duplicates": fine,
    }
    comparisons = [fine, *rows.values()]
    assert set(rows) == set(FILTERS) == set(get_args(data_comparisons.FilterName))
    for name in rows:
        remaining = apply_filter(name, comparisons)
        # identical responses are also close
        removed = ["identical", "close"] if name == "close" else [name]
        expected = [fine, *(item for key, item in rows.items() if key not in removed)]
        assert remaining == expected, name
    assert apply_filter("duplicates", [fine, fine, fine]) == [fine]
    removed = {counts.name: counts.pairs for counts in explore(comparisons).filters}
    assert removed == {"blank": 1, "identical": 1, "contradicted": 2, "close": 2, "duplicates": 1}


def test_rows_of_one_prompt_can_contradict_each_other():
    """In rows {prompt, chosen, rejected} nothing else can."""
    first, second = row("p", ["a", "b"]), row("p", ["b", "a"])
    others = [row("p", ["a", "c"]), row("q", ["b", "a"]), row("p", ["d", "d"])]
    comparisons = [first, *others, second, second]
    assert apply_filter("contradicted", comparisons) == others
    found = explore(comparisons)
    assert found.contradictions == 1
    assert {counts.name: counts.pairs for counts in found.filters}["contradicted"] == 3


def test_a_filter_keeps_the_other_pairs_of_a_row_and_their_margins():
    whole = row("p", ["", "b", "c"], [(0, 1), (1, 2)], [1.0, 2.0])
    (remaining,) = apply_filter("blank", [whole])
    assert remaining.pairs == ((1, 2),) and remaining.margins == (2.0,)
    undecided = row("p", ["a", "b"], [])
    assert apply_filter("blank", [undecided]) == [undecided]


# ---- page and command ----------------------------------------------------------------------------


def test_the_page_escapes_the_data():
    wild = "<script>alert(1)</script> & more words"
    comparisons = [row(wild, [wild, "b"]), row(wild, [wild, "b"])]
    text = page("<b>.jsonl", explore(comparisons), comparisons)
    assert "<script" not in text and "&lt;script&gt;alert(1)" in text
    assert "<title>&lt;b&gt;.jsonl</title>" in text and text.count("<svg") == 2
    assert "Near-duplicates of earlier rows: 1." in text


def test_the_commands(tmp_path, capsys):
    rows = [
        {"prompt": "p", "chosen": "", "rejected": "b"},
        {"prompt": "q", "chosen": "a", "rejected": "b"},
        {"prompt": "r", "responses": ["a", "b"], "preferences": [[0, 1], [1, 0]]},
    ]
    source, out = tmp_path / "rows.jsonl", tmp_path / "kept.jsonl"
    write_jsonl(source, rows)
    data.main(["explore", str(source), f"out={tmp_path / 'page.html'}"])
    printed = capsys.readouterr().out
    assert "rows.jsonl: 3 rows, 4 decided pairs" in printed
    assert "Pairs of responses decided both ways: 1." in printed
    assert "<h1>rows.jsonl</h1>" in (tmp_path / "page.html").read_text(encoding="utf-8")
    data.main(["filter", str(source), str(out), "drop=[blank,contradicted]"])
    assert capsys.readouterr().out.splitlines() == [
        "blank: 1 of 4 pairs removed",
        "contradicted: 2 of 3 pairs removed",
        f"{out}: 1 row of comparisons",
    ]
    assert [row["prompt"] for row in read_rows(out)] == ["q"]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["explore", "ties.jsonl"], "ties.jsonl has no decided pair in its 1 row, so"),
        (["filter", "ties.jsonl", "b.jsonl", "drop=[]"], "drop: "),
        (["filter", "ties.jsonl", "b.jsonl", "drop=[blnk]"], "drop.0: input should be 'blank'"),
        (["filter", "ties.jsonl", "ties.jsonl", "drop=[blank]"], "is the input, so it cannot be"),
        (["explore", "ties.jsonl", "out=ties.jsonl"], "is the input, so it cannot be"),
        (["explore", "ties.jsonl", "out="], "out: it is empty: name a file"),
    ],
)
def test_mistakes(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    write_jsonl("ties.jsonl", [{"prompt": "p", "responses": ["a", "b"], "scores": [1, 1]}])
    with pytest.raises(UserError) as error:
        data.main(arguments)
    assert message in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["ties.jsonl"]


# ---- marks and scores ----------------------------------------------------------------------------

STUDY = [
    {
        "prompt": "Say 1",
        "responses": ["You fool! <b>Bye.</b>", "Ok then."],
        "response": "You fool! <b>Bye.</b>",
        "spans": [
            {"start": 0, "end": 8, "label": "Insult", "severity": "major"},
            {"start": 4, "end": 8, "label": "Tone"},
        ],
        "other_spans": [[]],
        "preferences": [2],
        "ratings": [{"quality": 2}, {"quality": 5}],
    },
    {
        "prompt": "Say 2",
        "responses": ["Fine.", "You  FOOL."],
        "response": "Fine.",
        "spans": [],
        "other_spans": [[{"start": 0, "end": 9, "label": "Insult", "severity": "minor"}]],
        "preferences": [1],
        "ratings": [{"quality": 4}, {"quality": 1}],
    },
]


def test_marks_and_ratings_of_a_study(tmp_path, capsys):
    source, out = tmp_path / "rows.jsonl", tmp_path / "page.html"
    write_jsonl(source, STUDY)
    data.main(["explore", str(source), f"out={out}"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "  marked spans: 3 in 4 responses; 2 (50%) have no marked error"
    assert lines[2].endswith("too few to learn: Insult (2), Tone (1)")
    assert "  quality: 4 values from 1 to 5, mean 3.00, median 3" in lines
    assert f"{source}: 2 rows, 2 decided pairs" in lines
    text = out.read_text(encoding="utf-8")
    assert '<mark title="Insult, major">You </mark>' in text
    assert '<mark title="Insult, major; Tone">fool</mark>! &lt;b&gt;Bye.' in text
    assert "“you fool” 2" in text and "major: 1, minor: 1" in text
    assert "<h2>Comparisons</h2>" in text and text.count("<svg") == 4


def test_marks_alone(tmp_path, capsys):
    """Rows of judgements, of spans without a preference, and of ratings."""
    judgements = [
        {"aspect": "err", "label": "Wrong", "start": 0, "end": 2, "annotator": "anna"},
        {"aspect": "tone", "label": "rude", "start": None, "end": None, "annotator": "ben"},
        {"aspect": "help", "score": 2.5, "start": None, "end": None, "annotator": "ben"},
    ]
    files = {
        "judgements": {"prompt": "p", "response": "No way", "judgements": judgements},
        "spans": {"prompt": "p", "response": "No way", "spans": [{**SPAN, "label": "Wrong"}]},
        "ratings": {"prompt": "p", "response": "No way", "ratings": [{"help": 2.5}]},
    }
    pages = {}
    for name, values in files.items():
        source, out = tmp_path / f"{name}.jsonl", tmp_path / f"{name}.html"
        write_jsonl(source, [values])
        data.main(["explore", str(source), f"out={out}"])
        assert "decided pairs" not in capsys.readouterr().out
        pages[name] = out.read_text(encoding="utf-8")
    assert ">err: Wrong</th>" in pages["judgements"] and "rude: 1" in pages["judgements"]
    assert "anna: 1, ben: 1" in pages["judgements"]
    assert "help: 1 value from 2.5" in pages["judgements"] and "help: 1 value" in pages["ratings"]
    assert ">Wrong</th>" in pages["spans"] and "Filters" not in pages["spans"]


SPAN = {"start": 0, "end": 2}


def test_the_page_of_marks_fits_a_phone(chromium, tmp_path):
    source, out = tmp_path / "rows.jsonl", tmp_path / "page.html"
    span = {"start": 0, "end": 300, "label": "Wrong_" * 20}
    write_jsonl(source, [{"prompt": "p", "response": "x" * 300, "spans": [span]}])
    data.main(["explore", str(source), f"out={out}"])
    tab = chromium.new_page(viewport={"width": 390, "height": 800})
    tab.goto(out.as_uri())
    assert tab.evaluate("document.documentElement.scrollWidth") == 390
    assert tab.locator(".scroll").evaluate("box => box.scrollWidth > box.clientWidth")
    assert violations(tab) == []
    tab.close()


def test_a_response_is_measured_once_however_many_pairs_have_it(monkeypatch):
    answers = [f"Answer {i} of the row." for i in range(20)]
    measured = []
    monkeypatch.setitem(FEATURES, "words", lambda text: measured.append(text) or len(text))
    found = explore([row("Which?", answers, combinations(range(20), 2))])
    assert found.pairs == 190 and sorted(measured) == sorted(answers)
