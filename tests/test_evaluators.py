import pytest
from rouge_score.rouge_scorer import RougeScorer

from fgrlhf.evaluation import reference_notes
from fgrlhf.evaluators import Rouge, RougeLsum
from fgrlhf.metrics.config import MetricConfig
from fgrlhf.metrics.registry import build_metric
from fgrlhf.reward_utils import BLANK, MULTILINGUAL, load_segmenter
from fgrlhf.text_types import Prompt
from fgrlhf.words import unicode_words


@pytest.fixture(scope="module")
def rouge():
    return RougeLsum()


def test_counted_by_hand(rouge):
    # sentence 1: LCS "the cat sat" 3 of 4 words; sentence 2: "a dog" 2 of 3 -> recall 5/7,
    # precision 5/6
    reference, prediction = "The cat sat down. A dog barked.", "The cat sat. A dog ran."
    assert rouge(prediction, [reference]) == pytest.approx(
        100 * 2 * (5 / 7) * (5 / 6) / (5 / 7 + 5 / 6)
    )


def test_equal_and_disjoint_and_empty(rouge):
    assert rouge("One two three. Four five.", ["One two three. Four five."]) == pytest.approx(100)
    assert rouge("One two three.", ["Six seven."]) == 0
    assert rouge("", ["Six seven."]) == rouge(" \n ", ["Six seven."]) == rouge("Six.", [""]) == 0


def test_word_forms_count_as_equal(rouge):
    assert rouge("He was walking homes.", ["He was walked home."]) == pytest.approx(100)


def test_sentences_are_matched_whatever_their_order(rouge):
    # without one sentence per line the LCS would span the whole text and find only four of seven
    # words
    reference, prediction = "The cat sat down. A dog barked.", "A dog barked. The cat sat down."
    assert rouge(prediction, [reference]) == pytest.approx(100)
    assert rouge._scorer.score(reference, prediction)["rougeLsum"].fmeasure == pytest.approx(4 / 7)
    assert rouge.lines(prediction) == "A dog barked.\nThe cat sat down."


def test_best_reference_counts(rouge):
    near, far = "The cat sat.", "Six seven."
    assert rouge("The cat sat.", [far, near]) == pytest.approx(100)
    assert rouge("The cat sat.", [far]) == 0
    with pytest.raises(ValueError):
        rouge("The cat sat.", [])
    with pytest.raises(ValueError):
        Rouge("rouge1")("The cat sat.", [])


@pytest.mark.parametrize("kind", ["rouge1", "rouge2", "rougeL"])
def test_the_other_kinds_read_the_whole_text(kind):
    reference, prediction = "The cat sat down. A dog barked.", "A dog barked. The cats sat."
    plain = RougeScorer([kind], use_stemmer=True).score(reference, prediction)[kind].fmeasure
    assert 0 < plain < 1
    assert Rouge(kind)(prediction, ["Six.", reference]) == pytest.approx(100 * plain)


def test_mean_is_over_all_examples(rouge):
    # the published function returned the first example's score
    assert rouge.mean(["The cat sat.", "Six."], [["The cat sat."], ["Seven."]]) == pytest.approx(50)
    assert rouge.mean([], []) == 0


def test_the_cache_changes_nothing(rouge):
    texts = ["The cats were running; they ran, and ran. No!", "A cat runs. Two cats ran?"]
    plain = RougeScorer(["rougeLsum"], use_stemmer=True)
    expected = 100 * plain.score(rouge.lines(texts[0]), rouge.lines(texts[1]))["rougeLsum"].fmeasure
    assert 0 < expected < 100
    assert [rouge(texts[1], [texts[0]]) for _ in range(2)] == [pytest.approx(expected)] * 2


def test_a_given_segmenter_is_used():
    class Whole:
        def segments(self, text, level):
            return [(0, len(text))]

    assert RougeLsum(Whole()).lines("One. Two.") == "One. Two."
    assert (
        RougeLsum(load_segmenter()).lines("One cat sat here. Two cats sat there.").count("\n") == 1
    )


def test_a_score_does_not_depend_on_what_is_installed(monkeypatch):
    # as if the trained pipeline were installed
    monkeypatch.setattr("spacy.util.is_package", lambda name: True)
    assert RougeLsum().segmenter.name == MULTILINGUAL
    assert RougeLsum(tokenizer="published").segmenter.name == BLANK


def test_the_sentences_are_those_of_rewards_in_any_script(rouge):
    # a list's numbers are no sentences, and a full stop of Chinese ends one without a space
    assert rouge.lines("1. Tea\n2. Cake") == "1. Tea\n2. Cake"
    assert rouge.lines("茶很热。面包很好吃。") == "茶很热。\n面包很好吃。"
    assert rouge("面包好吃。茶很热。", ["茶很热。面包好吃。"]) == pytest.approx(100)
    published = RougeLsum(tokenizer="published")
    assert published.lines("茶很热。面包很好吃。") == "茶很热。面包很好吃。"


SCRIPTS = {
    "Russian": "Кошка спит дома.",
    "Greek": "Η γάτα κοιμάται.",
    "Hindi": "बिल्ली सो रही है।",
    "Arabic": "القطة نائمة هنا.",
    "Korean": "고양이가 자고 있다.",
    "Chinese": "这只猫睡着了。",
    "Japanese": "猫は寝ている。",
    "Thai": "แมวกำลังนอน",
}


@pytest.mark.parametrize("language", SCRIPTS)
@pytest.mark.parametrize("kind", ["rouge1", "rouge2", "rougeL", "rougeLsum"])
def test_equal_texts_in_any_script_have_the_best_score(language, kind):
    text = SCRIPTS[language]
    score = build_metric(MetricConfig(name=kind)).values([Prompt("0", "", (text,))], [text])
    assert score == [pytest.approx(100)]
    published = build_metric(MetricConfig(name=kind, tokenizer="published"))
    assert published.values([Prompt("0", "", (text,))], [text]) == [0]


def test_words_of_any_script():
    assert unicode_words("Naïve Café_3, don't!") == ["naïve", "café", "3", "don", "t"]
    assert unicode_words("cafe\u0301") == unicode_words("café") == ["café"]
    assert unicode_words("हिन्दी में") == ["हिन्दी", "में"]
    assert unicode_words("喝茶abc猫") == ["喝", "茶", "abc", "猫"]
    assert unicode_words("กิน") == ["กิ", "น"]
    assert unicode_words("... !") == []
    assert unicode_words("می\u200cروم") == unicode_words("میروم")
    assert len(unicode_words("a\u00ad\u200db")) == 1


def test_letters_with_marks_are_not_cut_out_of_words(rouge):
    assert rouge("Năm tôi.", ["Nằm tội."]) == 0
    published = RougeLsum(tokenizer="published")
    assert published("Năm tôi.", ["Nằm tội."]) > 0
    assert rouge("naïve café", ["na ve caf"]) == 0 and published("naïve", ["na ve"]) > 99


def test_a_metric_that_sees_no_words_is_named():
    prompts = [Prompt("0", "", ("Кошка спит.",)), Prompt("1", "", ("Ёж.",))]
    assert reference_notes([], prompts) == []
    published = build_metric(MetricConfig(name="rougeLsum", tokenizer="published"))
    (note,) = reference_notes([published], prompts)
    assert "rougeLsum sees no words in 2 of 2 references" in note and "leave it out" in note
    (note,) = reference_notes([], [Prompt("0", "", ("!!",))])
    assert "use chrf or exact_match" in note
    assert reference_notes([], [Prompt("0", "")]) == []
