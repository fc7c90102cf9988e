"""The languages of the mini world: statements and questions are read as they were written."""

import hashlib
import json
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fgrlhf.models.loading import load_tokenizer
from fgrlhf.reward_utils import BLANK, load_segmenter
from tasks.qa_feedback.data.annotator import Habits, annotate
from tasks.qa_feedback.data.language import CHINESE, ENGLISH, LANGUAGES, Claim, language_of
from tasks.qa_feedback.data.mini_world import demonstration, gold_sentences, make_item, make_row
from tasks.qa_feedback.data.oracle import Facts, judge

BOTH = pytest.mark.parametrize("language", LANGUAGES.values(), ids=LANGUAGES)
SEGMENTER = load_segmenter(BLANK)

# SHA-256 of the rows 0 to 199 before the world had languages (commit 20f77ca), as indented JSON
TOY_ROWS = {
    (0, "train"): "0c7a996720724ad56bc3ebeb260ab799cd852c8386cc99a483593f6924dfd6f2",
    (0, "dev"): "62eeb82679bc6b19de995f0fa578c16a3e54219356b0d23355b4d28c59ca7e6a",
    (0, "pretrain"): "cfefc19571a0b45e58b97a3048d802222f30d5facb94662bcd97bc1739eaf617",
    (0, "sft"): "d2a34b1dd84e6b4c8d3828aa7c361cc8edda6c619ef99b6aa8022521a0883dfd",
    (3, "test"): "b2517a64f6bf0e33d53d5958bf7211d6337ddf9b54858267ff4df999912836cc",
    (3, "sft"): "965598574dc80a290d82ed24a313d7397625fade33713486aa470fd25b3706dd",
}


@pytest.mark.parametrize("seed, split", TOY_ROWS)
def test_the_rows_of_the_toy_language_stay_the_same(seed, split):
    rows = [make_row(seed, split, i) for i in range(200)]
    digest = hashlib.sha256(json.dumps(rows, indent=2).encode()).hexdigest()
    assert digest == TOY_ROWS[seed, split]


def all_claims(language):
    """Claims of every kind, verb and form with some value, and of every value with one kind."""
    for verb, attribute in language.attributes.items():
        names = language.pools[attribute.pool].names
        for form in range(len(attribute.statements)):
            for i, kind in enumerate(language.kinds):
                yield Claim(kind, verb, names[(7 * form + i) % len(names)], form)
            for name in names:
                yield Claim(language.kinds[0], verb, name, form)


@BOTH
def test_every_statement_is_read_as_it_was_written(language):
    for claim in all_claims(language):
        clause = language.state(claim)
        sentence = language.compose([[claim]])
        second = language.compose([["so it is", claim]]).removeprefix("So it is").strip(";；, ")
        for text in (clause, sentence, second, f"  {sentence}\n", clause + language.conjunction[0]):
            read = language.read_claim(text)
            assert read == claim and read.form == claim.form, text


@BOTH
def test_clauses_are_the_sub_sentences_of_the_segmenter(language):
    segmenter = load_segmenter(language.segmenter)
    claims = list(all_claims(language))
    rng = random.Random(0)
    for _ in range(300):
        pair = rng.sample(claims, 2)
        text = language.compose([pair, pair[:1]])
        parts = [text[start:end] for start, end in segmenter.subsentences(text)]
        assert [language.read_claim(part) for part in parts] == [*pair, pair[0]]


def test_english_by_hand():
    claims = [
        Claim("film", "financed", "Beatrix Cavendish", 2),
        Claim("film", "banned", "Oxford", 1),
    ]
    assert ENGLISH.compose([claims]) == (
        "The money for the film came from Beatrix Cavendish, and the authorities of Oxford banned"
        " the film."
    )
    for text, claim in {
        "and Maria Lopez paid for the film.": ("film", "financed", "Maria Lopez"),
        "Sao Paulo saw the first presentation of the opera": ("opera", "presented", "Sao Paulo"),
    }.items():
        assert ENGLISH.read_claim(text) == Claim(*claim)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "The film was financed by Lopez.",
        "The car was financed by Maria Lopez.",
        "The film was financed by maria lopez.",
        "The film was financed by Maria Lopez and Eva Novotny.",
        "The film was financed by Maria Lopez. The",
        "He paid for the film.",
        "and and Maria Lopez paid for the film",
        "The film was created by Borborbor.",
    ],
)
def test_not_an_english_claim(text):
    assert ENGLISH.read_claim(text) is None


def test_chinese_by_hand():
    claims = [Claim("电影", "创作者", "博丹费古"), Claim("电影", "制作地", "阿布库德")]
    text = "这部电影的创作者是博丹费古；这部电影的制作地是阿布库德。这部电影的制作地是阿布库德。"
    assert CHINESE.compose([claims, claims[1:]]) == text
    question = CHINESE.question("星海云梦路城", ("创作者", "出资者", "制作地"), random.Random(0))
    assert question == "星海云梦路城的创作者、出资者和制作地是什么？"
    passages = [
        {"wikipage": "星海云梦路城 (电影)", "content": CHINESE.compose([[c] for c in claims])},
        {"wikipage": "星海云梦路城 (小说)", "content": "这部小说的出资者是乔卡莱蒙。"},
    ]
    answer = "这部电影的创作者是博丹费古；这部电影的制作地是阿加布埃。这部小说的出资者是乔卡莱蒙。"
    truth = judge(question, passages, answer)
    judged = [(part.label, part.supported) for part in truth.subsentences]
    assert judged == [("ok", True), ("ok", False), ("ok", True)]
    assert [sentence.supported for sentence in truth.sentences] == [False, True]
    assert truth.completeness == 2 / 3 and truth.precision == 2 / 3


def test_fillers_state_no_fact():
    for filler in ENGLISH.fillers:
        for kind in ENGLISH.kinds:
            sentence = ENGLISH.compose([[filler.format(kind=kind)]])
            assert ENGLISH.read_claim(sentence) is None
            assert SEGMENTER.subsentences(sentence) == [(0, len(sentence))]


@BOTH
def test_questions_are_read_as_they_were_written(language):
    forms = set()
    for i in range(300):
        item = make_item(0, "train", i, language)
        assert language_of(item.question) == (language, item.title, item.asked)
        forms.add(re.sub(r"\W.*", "", item.question.removeprefix(item.title)))
    assert language.words or len(forms) == {"toy": 1, "english": 5}[language.name]


def test_english_questions_by_hand():
    asked = ("written", "financed", "presented")
    texts = {ENGLISH.question("The Red Sea", asked, random.Random(i)) for i in range(40)}
    assert texts == {
        "Who wrote and financed The Red Sea, and where was it first presented?",
        "By whom was The Red Sea written and financed, and in which cities was it first presented?",
        "Can you tell me who wrote and financed The Red Sea and where it was first presented?",
    }
    assert language_of("Who liked The Red Sea?") is None
    assert language_of("Who wrote it?") is None
    assert language_of("Who wrote The Red Sea?\n") is None
    assert language_of(None) is None


# ---- rows, oracle and annotator in English -------------------------------------------------------


def test_english_gold_answers_are_perfect():
    for i in range(100):
        row = make_row(0, "dev", i, language=ENGLISH)
        truth = judge(row["question"], row["passages"], row["answer"][0])
        assert truth.gold == truth.relevance == truth.factuality == truth.completeness == 1
        assert len(truth.subsentences) in (6, 9)


def test_a_claim_in_another_form_is_supported():
    """Forms do not change the judgement: brute force over all forms of the gold answer."""
    item = make_item(0, "dev", 0, ENGLISH)
    row = make_row(0, "dev", 0, language=ENGLISH)
    for form in range(3):
        sentences = [
            [Claim(claim.kind, claim.verb, claim.value, form) for claim in sentence]
            for sentence in gold_sentences(item)
        ]
        text = ENGLISH.compose(sentences)
        assert judge(row["question"], row["passages"], text).gold == 1


def test_errors_in_english_by_hand():
    question = "Who wrote The Red Sea, and where was it first presented?"
    passages = [
        [
            "The Red Sea (film)",
            "The script of the film was by Eva Novotny.",
            "The film is little known today.",
            "The film was first presented in Oxford.",
            "A workshop in Zagreb restored the film.",
        ],
        ["The Red Sea (opera)", "Ivo Lockhart was the author of the opera."],
    ]
    parts = [
        "The film was written by Ivo Lockhart, ",
        "and Oxford saw the first presentation of the film. ",
        "The film was restored in Zagreb, ",
        "and the film was first presented in Oxford. ",
        "The film is little known today. ",
        "The film was very very nice indeed.",
    ]
    truth = judge(question, passages, "".join(parts))
    labels = ["ok", "ok", "irrelevant", "repeated", "irrelevant", "incoherent"]
    assert [s.label for s in truth.subsentences] == labels
    assert [s.supported for s in truth.subsentences] == [False, True, True, True, True, False]
    assert truth.completeness == 1 / 3
    habits = Habits(noise=0.0, temperature=1e-3, perturbed=0.0)
    answers = ["".join(parts)] * 4
    row = annotate(random.Random(0), question, passages, "gold", answers, habits)
    kinds = ["Wrong-Grounding", "Irrelevant", "Redundant", "Irrelevant", "Incoherent"]
    assert [e.label for e in row.errors] == kinds
    assert row.corrected == (
        "The film was written by Eva Novotny, and Oxford saw the first presentation of the film."
        " Ivo Lockhart was the author of the opera."
    )
    assert judge(question, passages, row.corrected).gold == 1


def test_unmarked_clauses_stay_in_the_corrected_answer_without_their_conjunction():
    """An annotator who is always wrong marks right clauses and overlooks what is no claim."""
    item = make_item(0, "dev", 1, ENGLISH)
    row = make_row(0, "dev", 1, language=ENGLISH)
    claims = gold_sentences(item)[0]
    answer = ENGLISH.compose([[claims[0], "so it was for a long time", claims[1]]])
    asked = (row["question"], row["passages"], row["answer"][0])
    habits = Habits(noise=1.0, temperature=1.0, perturbed=0.0)
    feedback = annotate(random.Random(0), *asked, [answer] * 4, habits)
    assert [error.end - error.start for error in feedback.errors] == [
        len(ENGLISH.state(claims[0])) + 1,
        len("and ") + len(ENGLISH.state(claims[1])) + 1,
    ]
    assert feedback.corrected == "So it was for a long time."


@BOTH
def test_corrected_answers_of_a_sure_annotator_are_perfect(language):
    for i in range(60):
        item, row = make_item(0, "train", i, language), make_row(0, "train", i, language=language)
        rng = random.Random(i)
        answers = [language.compose(demonstration(rng, item, language.rates)) for _ in range(4)]
        asked = (row["question"], row["passages"], row["answer"][0])
        habits = Habits(noise=0.0, temperature=0.05, perturbed=0.5)
        feedback = annotate(rng, *asked, answers, habits)
        assert judge(row["question"], row["passages"], feedback.corrected).gold == 1


# ---- arbitrary and hostile texts -----------------------------------------------------------------

GOLD = ENGLISH.compose([gold_sentences(make_item(0, "dev", 2, ENGLISH))[0]])
WORDS = GOLD.replace(",", " ,").split()
WORDS += [".", "and", "The", "🙂", "é\u0301", "\n", "", "\xa0", "?", "!"]
TEXTS = st.text(max_size=80) | st.lists(st.sampled_from(WORDS), max_size=40).map(" ".join)


@settings(max_examples=200, deadline=None)
@given(answer=TEXTS)
def test_fuzz_answers_in_english(answer):
    row = make_row(0, "dev", 2, language=ENGLISH)
    truth = judge(row["question"], row["passages"], answer)
    assert 0 <= truth.gold <= 1
    assert truth.covered <= set(truth.needed)


@settings(max_examples=200, deadline=None)
@given(text=TEXTS)
def test_what_is_read_can_be_stated_again(text):
    """Reading a text either fails or gives a claim that states the same words."""
    for language in LANGUAGES.values():
        claim = language.read_claim(text)
        if claim is not None:
            assert language.clause(text).lower() == language.state(claim).lower()


@settings(max_examples=200, deadline=None)
@given(question=TEXTS.map(lambda text: f"Who wrote {text}?") | st.text(max_size=60))
def test_fuzz_questions(question):
    language_of(question)
    Facts.read(question, [])


@pytest.mark.parametrize(
    "text",
    [
        "A" * 50_000,
        "the film " * 10_000,
        "Who wrote" + " The Aa Aa" * 10_000 + "?",
        "Where or by whom was" + " A" * 30_000 + "?",
    ],
)
def test_hostile_texts_need_linear_time(text):
    """Quadratic expressions would take minutes for these lengths."""
    for language in LANGUAGES.values():
        language.read_claim(text)
        language.clause(text)
    language_of(text)


@pytest.mark.small_model
def test_prompts_have_the_promised_number_of_tokens(small_model):
    """Nine of ten prompts have 200 to 301 tokens, the chat template included."""
    tokenizer = load_tokenizer(small_model)
    lengths = []
    for i in range(200):
        text = make_row(0, "train", i, language=ENGLISH)["text"]
        messages = [{"role": "user", "content": text}]
        prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        lengths.append(len(tokenizer(prompt, add_special_tokens=False).input_ids))
    inside = [200 <= length <= 301 for length in lengths]
    assert sum(inside) >= 0.9 * len(inside)
