"""The browser and Python agree on offsets, words, sentences, hashes and JSON.

The texts are random, of every kind.
"""

import hashlib
import random

import pytest
from page_helpers import evaluate_json, opened

from interface_html.items import rows_text
from interface_html.rules import sentences

PIECES = [
    "😀",
    "👩‍👩‍👧",
    "e\u0301",
    "ก\u0e49",
    "مرحبا",
    "שלום",
    "\u202e",
    "\u00a0",
    "\u2003",
    "\u3000",
    "\ufeff",
    "\u200b",
    "\x1c",
    "\x85",
    "\r\n",
    "\r",
    "\n",
    "\t",
    " ",
    "  ",
    "<b>",
    "</script>",
    "&amp;",
    "a",
    "word",
    "It.",
    "No!",
    "why?”",
    "…",
    "。",
    "x.y",
    '"',
    "\\",
    "\x7f",
    "\x00",
    "𝒳",
]


@pytest.fixture(scope="module")
def tab(chromium, tmp_path_factory):
    with opened(chromium, tmp_path=tmp_path_factory.mktemp("page")) as page:
        yield page


def texts(rng: random.Random, count: int, longest: int = 30) -> list[str]:
    return ["".join(rng.choices(PIECES, k=rng.randint(1, longest))) for _ in range(count)]


def test_ten_thousand_random_spans(tab):
    rng = random.Random(0)
    cases = []
    for text in texts(rng, 500):
        for _ in range(20):
            a, b = sorted(rng.randint(0, len(text)) for _ in range(2))
            cases.append((text, a, b))
    cut = evaluate_json(tab, "cases => cases.map(([t, a, b]) => FG.cut(FG.points(t), a, b))", cases)
    assert len(cases) == 10_000 and cut == [text[a:b] for text, a, b in cases]


def test_words_sentences_strip_hash_and_json(tab):
    some = [
        *texts(random.Random(1), 1500),
        "",
        " ",
        *map(chr, range(0x3100)),
        *(chr(i) + "a" for i in range(0x2000, 0x2070)),
    ]
    result = evaluate_json(
        tab,
        """texts => texts.map((text) => {
        const p = FG.points(text);
        const json = FG.pythonJson([{ text, list: [], object: {}, n: -1 }]);
        return [FG.words(p), FG.sentences(p), FG.strip(text), FG.sha256(text), json];
    })""",
        some,
    )
    for text, (words, parts, strip, digest, dumped) in zip(some, result):
        assert [text[a:b] for a, b in words] == text.split()
        assert [tuple(part) for part in parts] == sentences(text)
        assert strip == text.strip()
        assert digest == hashlib.sha256(text.encode()).hexdigest()
        assert dumped == rows_text([{"text": text, "list": [], "object": {}, "n": -1}])


def test_patches_go_back_and_forth_and_diffs_hold_both_texts(tab):
    rng = random.Random(4)
    pairs = list(zip(texts(rng, 400), texts(rng, 400)))
    pairs += [(a, a[: len(a) // 2] + b + a[len(a) // 2 :]) for a, b in pairs]
    ok = tab.evaluate(
        """pairs => pairs.every(([a, b]) => {
        const x = { t: a, l: [a] }, y = { t: b, l: [b] }, patch = FG.patch(x, y), d = FG.diff(a, b);
        const join = (skip) => d.filter((p) => p.op !== skip).map((p) => p.text).join("");
        const forth = FG.same(FG.applyPatch(x, patch, false), y);
        const back = FG.same(FG.applyPatch(y, patch, true), x);
        return forth && back && join("ins") === a && join("del") === b;
    })""",
        pairs,
    )
    assert ok


def test_no_text_of_a_patch_has_half_a_character(tab):
    """The server refuses such a text, so the draft would be stored nowhere else."""
    pairs = [("😀😁", "😁"), ("😀", "😁"), ("ok 😀😁", "ok 😁"), ("😀a", "😀😀a"), ("😀", "")]
    patches = tab.evaluate(
        """pairs => pairs.map(([a, b]) => {
        const patch = FG.patch({ t: a }, { t: b });
        const forth = FG.applyPatch({ t: a }, patch, false).t === b;
        const back = FG.applyPatch({ t: b }, patch, true).t === a;
        const whole = patch[0].slice(2).every((text) => text.isWellFormed());
        return [forth, back, whole];
    })""",
        pairs,
    )
    assert patches == [[True, True, True]] * len(pairs)


def test_messages_have_one_stop_and_quoted_texts_one_pair_of_quotation_marks(tab):
    cases = {
        "“twice a day.”.": "“twice a day.”",
        "„Nein!“. Ja.": "„Nein!“ Ja.",
        "It is blank..": "It is blank.",
        "And so on...": "And so on...",
        "“cat”.": "“cat”.",
    }
    for text, expected in cases.items():
        assert tab.evaluate("text => FG.oneStop(text)", text) == expected
    tags = "texts => texts.map((text) => FG.quoted(text).tagName)"
    texts = ["She make a good point.", "“She make a good point.”", "“a” for “b”", "«Bon.»"]
    assert tab.evaluate(tags, texts) == ["Q", "SPAN", "SPAN", "SPAN"]
