"""Sentences, sub-sentences and words of invented texts in many languages and of chat text.

In the tables, `‖` is a boundary; white space beside it is between two segments.
"""

import random
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from page_helpers import opened

from fgrlhf import segmentation
from fgrlhf.data.problems import span_problems
from fgrlhf.reward_utils import MULTILINGUAL, PUBLISHED, load_segmenter
from fgrlhf.segmentation import sentences, subsentences
from fgrlhf.words import count_words, join_texts, word_spans, word_starts, words_of

SENTENCES = {
    "Chinese": [
        "茶很热。‖面包很好吃！‖你要吗？",
        "他出生于1950年。‖他住在北京。‖他有3.5公斤苹果。",
        "“我走了。”‖然后他关上了门。",
        "她说（昨天也说过。）‖我们没听见。",
        "真的吗？！‖当然……我不知道。‖好吧。",
        "图 3．5 很大。‖第二张图很小．‖第三张没有。",
        "老师笑了!学生也笑了.‖下课了。".replace("!", "!‖"),
        "1、打开文件。\n‖2、读一遍。\n‖3、关闭文件。",
        "（1）先洗手\n‖（2）再吃饭",
        "“走吧。”他说。‖门关了。",
        "“走吧。”‖他知道。‖她说：“好。”‖完。",
        "好的。【1†source】‖谢谢。",
        "1．打开。‖2．关闭。",
        "第一步：打开文件\n‖第二步：关闭文件",
    ],
    "Japanese": [
        "彼は東京に住む。‖彼女は京都に住む。",
        "「はい。」と彼は言った。‖それで終わりです。",
        "「行こう！」‖二人は走り出した。",
        "値段は3．5万円です．‖高いですね．",
        "本当ですか？‖はい、本当です｡‖では、また。",
        "山田（京都生まれ。）は元気だ。‖よかった。",
        "「雪だ。」が最後だった。‖「もう寝る。」‖もう遅い。",
        "１．開く\n‖２．閉じる",
    ],
    "Thai": [
        "วันนี้ฝนตกหนักมาก เราจึงอยู่ที่บ้าน\n‖พรุ่งนี้เราจะไปตลาด",
        "คุณสบายดีไหม? ‖ฉันสบายดี",
        "เขาเกิด พ.ศ. 2500 ที่บ้าน",
        "พบกัน 14.00 น. ที่โรงเรียน เมื่อไร? ‖ดร. สมชาย รู้",
        "ก. เปิด\n‖ข. ปิด",
    ],
    "Khmer": ["ប្រាសាទនេះធំ។ ‖វាស្អាតណាស់។ ‖តើអ្នកចូលចិត្តទេ?", "គាត់ទិញបន្លែ ត្រី ។ល។ ហើយទៅផ្ទះ៕"],
    "Burmese": ["သူအိမ်ပြန်သည်။ ‖သူမ ကျောင်းသွားသည်။"],
    "Arabic": [
        "هل أنت هنا؟ ‖نعم. ‖البيت كبير، والحديقة صغيرة.",
        "د. أحمد في المدرسة. ‖هو بخير!",
        "نعم.\u200f ‖هل جاء؟",
        "أ. افتح.\n‖ب. أغلق.",
    ],
    "Urdu": ["وہ گھر میں ہے۔ ‖کیا تم آؤ گے؟ ‖ہاں۔"],
    "Hindi": [
        "यह घर है। ‖वह बड़ा है।‖क्या तुम आओगे? ‖हाँ॥",
        "डॉ. शर्मा यहाँ हैं। ‖वे व्यस्त हैं।",
        "यह रु. 500 का है। ‖ठीक है।",
    ],
    "Korean": [
        "그는 집에 갔다. ‖그녀는 학교에 있다. ‖비가 오나요? ‖네, 3.5밀리미터 왔어요!",
        "네. ‖맞습니다. ‖그것은 나. ‖그리고 너.",
        (
            "가. 이것은 아주 긴 줄이어서 마침표 없이 "
            "끝나는데도 다음 줄과 이어지지 않는 항목이며 더 길게 쓴 글이다\n‖나. 닫기"
        ),
    ],
    "Russian": [
        "Он живёт в г. Тверь. ‖Она там же. ‖Почему?",
        "А. С. Иванов родился в 1799 г. ‖Он писал стихи и т.д. ‖Это всё.",
        "См. рис. 5 и табл. 2. ‖Там, т.е. ниже, есть ответ.",
        "«Иди домой!» — сказал он. ‖Она ушла…",
        "Пришёл И. И. Иванов. ‖— Ты где? — спросил он. ‖— Дома.",
        "В 1799 г. Александр родился. ‖Он рос.",
    ],
    "Greek": ["Τι κάνεις; ‖Είμαι καλά. ‖Εσύ;"],
    "Armenian": ["Նա տանն է։ ‖Տունը մեծ է։"],
    "Amharic": ["ቤቱ ትልቅ ነው። ‖እሱ እዚህ ነው።"],
    "German": [
        "Am 3. Oktober kam er. ‖Dr. Weiß blieb, z.B. am Abend. ‖Warum?",
        "„Geh!“ sagte sie. ‖Er ging ca. 5 km.",
        "Um 500 v. Chr. starb er. ‖Der 2. Weltkrieg begann. ‖Ende.",
    ],
    "French": ["Bonjour ! ‖Ça va ? ‖« Oui. » ‖M. Petit mange à 3,5 km."],
    "Spanish": ["¿Quién es? ‖¡Qué bien! ‖El Sr. Gil vive aquí."],
    "English": [
        "B follows A. ‖Then comes C.",
        "He lives in the U.S. ‖She lives in Rome.",
        "The U.S. Senate met at 5 p.m. ‖It voted.",
        "Tea (Lee et al. 2010) is hot. ‖No. 5 is cold. ‖No. ‖I do not know.",
        "Bring fruit, e.g. Apples, i.e. pears. ‖Mr. J. Smith came. ‖It cost 3.50 dollars.",
        'He said: "Go home. ‖Now!" ‖Then he left. ‖“Why?” she asked.',
        "Wait... what? ‖Yes... ‖No, really?! ‖(It rained.) ‖[See Fig. 2.] ‖Done.[1] ‖End.",
        "See https://example.org/a.b?c=d. ‖It is 8. ‖It is even.",
        "i went home. ‖then i slept! ‖what? ‖no.",
        "the cat . ‖the dog runs ! ‖it is 3.5 m .",
        "**Bold end.** ‖Next one. ‖It has 5 apples etc. ‖They are red.",
        "Steps: 1. Open it. ‖2. Read it. ‖3. Close it.",
        (
            "By J. A. Smith and T. I. Jones. ‖The answer is B. ‖Option A fails. ‖We need "
            "plan B. ‖Call me."
        ),
        "Solve for x. ‖Add three. ‖My name is J. Smith.",
        "It works.[1, 2] ‖It grows.¹ ‖It fails.[^3] ‖End.【4†a】 ‖Yes.\u200b ‖No.",
        "O.K. ‖Let's go. ‖He is 6 ft. ‖The door of St. Luke is on Elm St. ‖The end.",
        "It is Lyon (pop. ~500,000). ‖It grew to approx. $5.",
        "Add min. 5 eggs. ‖Rs. 500 is fair. ‖At 5 p.m. Monday he came.",
        "He left -- why? -- nobody knows.",
    ],
    "Markdown": [
        "Here are the steps:\n\n‖1. Open the file.\n‖2. Read it.\n‖3. Close it.\n\n‖That is all.",
        "- red bread\n‖- green tea\n  ‖* blue cup\n‖• last",
        "1.\nOpen it.\n‖2.\nClose it.",
        "a) First one. ‖It is long.\n‖b) Second one",
        "# A title. With a stop.\n‖Text one. ‖Text two.\n\n---\n\n‖## Next\n‖End.",
        "Run this:\n‖```python\nx = 1. \n\ny = 'A. B'\n```\n‖It prints. ‖Done.",
        "~~~\nOpen. Code\n",
        "Use `x. Split`. ‖Then ``a. ` B`` stays. ‖`f(x)!` Works.",
        "| a | b |\n|---|---|\n‖| 1. | Two. Three |\n‖| 4 | 5 |\n‖After it.",
        "name | n\n--- | ---\n‖Ann. B | 2\n\n‖After it.",
        "Let $x_1. Y$ be real. ‖It costs $5. ‖She pays $6.",
        "We have\n‖$$\na. B\n$$\n‖and \\( c. D \\) too. ‖\\[ e. F \\]",
        "> A quote. ‖It goes on.\n\n‖My answer 👍\n🎉",
        "A line that was wrapped because it had become so\nlong. ‖A short one,\nafter a comma.",
        "Ann: hello\n‖Bob: good morning\n‖Ann: bye",
        'Quoted:\n"\n‖End',
        "1.1. First part\n‖1.2. Second part\n\n‖2.\n\nAlone above it.",
        "**A heading in bold that has more than forty characters**\n‖and text in lower case.",
        (
            "✅ Open the big file that lies on the old desk in the second room\n‖❌ Never "
            "close the big file that lies on the old desk in that room"
        ),
        "1️⃣ Open the big file that lies on the old desk in the second room\n‖2️⃣ Close it",
        "Step 1: Count all of the red apples on the table in the big room\n‖Step 2: Add",
        (
            "She has 12 red apples and 15 green apples in the basket of her own\n‖Ann "
            "has 27 apples and gives away 3 of them to Ben on the long way home with him."
        ),
        "```\nOpen. Code\n```python\nStay. Code\n```\n‖Done. ‖Yes.",
        "~~~\nOpen. Code\n```\nStay. Code\n~~~\n‖Done.",
        "```Open. Code``` is code. ‖Done.",
        "Text:```\nOpen. Code\n```\n‖Done.",
        "- ```\n  Open. Code\n  ```\n‖- > ```\n> Stay. Code\n> ```\n‖Two",
        "A title. With a stop\n====\n‖Text. More\n----\n‖An end.\n---\n‖- item\n---",
        "\\begin{align}\nx &= one. Two\n\\end{align}\n‖Done.",
        "<ul>\n<li>One. ‖Two.</li>\n‖<li>Three</li>\n</ul>",
        "It ended.<br>‖It began.</p>‖<p>If a < b. ‖Then c > d.",
        "<think>\nI think. ‖So I am.\n</think>\n\n‖Yes. ‖<!-- Go. Now --> End.",
        (
            "See [here.](https://a.b) ‖See [Why? A guide](https://a.b/c_(d)) or [Go. "
            "Now][1]. ‖![Alt. Text](a.png) is it."
        ),
    ],
}
CLAUSES = [
    "今天下雨很大，‖所以我们都待在家里，‖明天再去学校。",
    "红，绿，蓝，白都很好看。",
    "彼は昨日から風邪で、‖今日も学校を休んだ。‖明日は来る。",
    "วันนี้ฝนตกหนักมาก ‖เราจึงอยู่ที่บ้าน",
    "ខ្ញុំទៅផ្សារនៅព្រឹកនេះ ‖ហើយទិញបន្លែជាច្រើន។",
    "البيت القديم في المدينة كبير، ‖والحديقة التي خلف البيت صغيرة جدا.",
    "वह कल सुबह घर से निकला, ‖और शाम को सात बजे लौटा।",
    "그는 어제 아침 일찍 집을, ‖그녀는 저녁 늦게 그 학교를 떠났다.",
    "One two three four five, ‖six seven eight nine ten eleven. ‖Next, one.",
    "One two three four “five,” ‖six seven eight nine ten eleven.",
    "The price is now about 3,500 dollars and it will be higher.",
    "Use the call `f(a, b, c, d, e, f, g)` here as we said before.",
    "- One two three four five; ‖six seven eight nine ten eleven",
    "| one, two, three, four, five, six | seven, eight, nine, ten, eleven |",
]
WORDS = [
    ("茶很热。 OK!", ["茶", "很", "热", "。", "OK!"]),
    ("he said 3.5, yes", ["he", "said", "3.5,", "yes"]),
    ("น้ำ ดี", ["น้", "ำ", "ดี"]),
    ("ខ្មែរ", ["ខ្", "មែ", "រ"]),
    ("그는 집에", ["그는", "집에"]),
    ("यह बड़ा", ["यह", "बड़ा"]),
]
CASES = [(name, text) for name, texts in SENTENCES.items() for text in texts]
SCRIPTS = "Ab1 .,!?;:。，！“”」「とก ่។؟।$`|\n-#*\\[]()\t2"


def spans_of(marked):
    """The text, and the spans of its pieces."""
    text, spans = "", []
    for piece in marked.split("‖"):
        inner = piece.strip()
        start = len(text) + piece.index(inner)
        spans.append((start, start + len(inner)))
        text += piece
    return text, spans


def marked(text, spans):
    return [text[start:end] for start, end in spans]


def test_the_table_is_large():
    assert sum(text.count("‖") + 1 for _, text in CASES) >= 120


@pytest.mark.parametrize("language, case", CASES)
def test_sentences(language, case):
    text, spans = spans_of(case)
    assert marked(text, sentences(text)) == marked(text, spans)
    assert sentences(text) == spans


@pytest.mark.parametrize("newline", ["\r\n", "\r", "\u2028"])
def test_every_kind_of_line_break_divides_alike(newline):
    for _, case in CASES:
        text, spans = spans_of(case.replace("\n", newline))
        assert sentences(text) == spans, text


@pytest.mark.parametrize("case", CLAUSES)
def test_subsentences(case):
    text, spans = spans_of(case)
    assert marked(text, subsentences(text)) == marked(text, spans)
    assert subsentences(text) == spans


@pytest.mark.parametrize("text, words", WORDS)
def test_words(text, words):
    assert words_of(text) == words
    assert count_words(text) == len(words)
    assert [start for start, _ in word_spans(text)] == list(word_starts(text))


@pytest.mark.parametrize("text", ["", " ", "\n\t\xa0\n"])
def test_a_blank_text_has_no_segment(text):
    assert sentences(text) == subsentences(text) == word_spans(text) == []


@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from(SCRIPTS), max_size=60))
@example("```\n```\n``` a. B\n$$ $$ $a$")
@example("... !\n---\n1.\n- \n|")
def test_segments_are_in_order_and_cover_the_text(text):
    whole, parts = sentences(text), subsentences(text)
    for spans in (whole, parts, word_spans(text)):
        assert all(text[start:end] == text[start:end].strip() != "" for start, end in spans)
        assert all(before[1] <= after[0] for before, after in zip(spans, spans[1:]))
        covered = "".join(re.sub(r"\s", "", text[start:end]) for start, end in spans)
        assert covered == "".join(text.split())
    assert {start for start, _ in whole} <= {start for start, _ in parts}
    assert {end for _, end in whole} <= {end for _, end in parts}
    if any(character.isalnum() for character in text):
        assert all(any(map(str.isalnum, text[start:end])) for start, end in whole)


@pytest.mark.parametrize(
    "unit",
    [
        "$",
        "\\[",
        "\\(",
        "`",
        "```\n",
        "a. ",
        '".',
        "1. ",
        "|",
        "> ",
        "a```\n",
        "[a](",
        "<br>",
        "”。",
        "![",
        "\\begin{align}",
        "1.\n\n",
        "a\n--\n",
        "✅ ",
    ],
)
def test_the_time_is_linear_in_the_length(unit):
    assert subsentences(unit * 20_000)


def test_the_feedback_pages_divide_texts_as_training_does(chromium):
    """templates/segmentation.js has the rules and the word lists of fgrlhf/segmentation.py."""
    rng = random.Random(3)
    pieces = [
        *SCRIPTS,
        "Dr.",
        "no. 5",
        "etc.",
        "The ",
        "U.S.",
        "г.",
        "``",
        "```\n",
        "\\[",
        "\\(",
        "…",
    ]
    pieces += [
        "https://a.b",
        "А",
        "è",
        "😀",
        "𠀀",
        "\r\n",
        "\u2028",
        "\xa0",
        "」",
        "».",
        "[1]",
        "ं",
        "²",
        "Ⅳ",
        "\n```\n",
        "x```py\n",
        "> ",
        "~~~",
        "\n---\n",
        "\n===\n",
        "**b**",
        "<br>",
        "</p>",
        "<li>",
        "<!--",
        "-->",
        "[a. B](c)",
        "[1, 2]",
        "【5】",
        "\\begin{align}",
        "\\end{align}",
        "\u200b",
        " J. ",
        " x. ",
        "is B. ",
        "answer",
        "네.",
        "น.",
        "พ.ศ.",
        "」は",
        "”他说。",
        "1️⃣",
        "✅ ",
        "1.1.",
        " — he",
        "3. m",
        "Chr.",
        "a long line of words that has no mark ",
    ]
    made = ["".join(rng.choices(pieces, k=rng.randint(1, 40))) for _ in range(1500)]
    texts = (
        [spans_of(case)[0] for _, case in CASES] + [spans_of(case)[0] for case in CLAUSES] + made
    )
    with opened(chromium, items=None) as tab:
        found = tab.evaluate("texts => texts.map((text) => FG.sentences(FG.points(text)))", texts)
        lists = tab.evaluate(
            "Object.entries(FG.SENTENCE_WORDS).map(([name, words]) => [name, [...words]])"
        )
    for text, spans in zip(texts, found):
        assert [tuple(span) for span in spans] == sentences(text), text
    assert {f"_{name}": frozenset(words) for name, words in lists} == {
        name: value
        for name, value in vars(segmentation).items()
        if name.isupper() and isinstance(value, frozenset)
    }


def test_a_whole_sentence_is_a_span_even_without_a_space_after_it():
    text = "यह घर है।वह बड़ा है। Yes!"
    first, *_ = sentences(text)
    assert text[slice(*first)] == "यह घर है।"
    assert list(span_problems(*first, text, "span", "text")) == []
    assert [field for field, _ in span_problems(0, 8, text, "span", "text")] == ["span.end"]


def test_the_published_segmenter_keeps_its_rules():
    text = "1. 茶很热。好吃！ 2. Second"
    published = load_segmenter(PUBLISHED)
    assert marked(text, published.segments(text, "word")) == text.split()
    assert len(published.segments("茶很热。面包很好吃！", "sentence")) == 1
    ours = load_segmenter()
    assert ours.name == MULTILINGUAL and load_segmenter(ours.describe()) == ours
    assert len(ours.segments("茶很热。面包很好吃！", "sentence")) == 2
    assert len(ours.segments("茶很热。", "word")) == 4


@pytest.mark.parametrize(
    "texts, joined",
    [
        (["Tea is hot.", "", "Drink!"], "Tea is hot. Drink!"),
        (["茶很热。", "GPT 很快。", "好"], "茶很热。GPT 很快。好"),
        (["彼は寝た。", "彼女も。"], "彼は寝た。彼女も。"),
        (["물이 있다.", "좋다."], "물이 있다. 좋다."),
        (["ไปบ้าน", "กินข้าว"], "ไปบ้าน กินข้าว"),
        (["It is written 茶", "and means tea."], "It is written 茶 and means tea."),
        ([], ""),
    ],
)
def test_sentences_are_joined_as_their_script_does(texts, joined):
    assert join_texts(texts) == joined
