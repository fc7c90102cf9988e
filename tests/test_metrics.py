"""Values by hand, the libraries' own examples, and every metric on odd texts."""

import json
import os
import subprocess
import sys
from math import exp
from pathlib import Path
from typing import Any

import pytest
import tiny
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_jsonl
from fgrlhf.metrics import overlap
from fgrlhf.metrics.config import METRICS, MetricConfig
from fgrlhf.metrics.meteor import Meteor
from fgrlhf.metrics.novelty import save_seen, seen_ngrams
from fgrlhf.metrics.overlap import (
    bleu,
    chrf,
    corpus_bleu,
    corpus_chrf,
    corpus_ter,
    exact_match,
    ter,
)
from fgrlhf.metrics.paired import by_prompt
from fgrlhf.metrics.pooled import corpus_perplexity, over_samples
from fgrlhf.metrics.registry import build_metric, build_metrics
from fgrlhf.metrics.summary import summarize
from fgrlhf.text_types import Prompt
from fgrlhf.words import copying, distinct, ngrams, repetition

ROOT = Path(__file__).parents[1]

# the example of sacrebleu's README
RESPONSES = ["The dog bit the man.", "It wasn't surprising.", "The man had just bitten him."]
REFERENCES = [
    ("The dog bit the man.", "The dog had bit the man."),
    ("It was not unexpected.", "No one was surprised."),
    ("The man bit him first.", "The man had bitten the dog."),
]


def value(name, text, *references, **settings):
    metric = build_metric(MetricConfig(name=name, **settings))
    (result,) = metric.values([Prompt("0", "", references)], [text])
    return result


@pytest.fixture(scope="module")
def language_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "gpt2"
    tiny.gpt2().save(folder)
    return str(folder)


def sums(counts):
    return [sum(column) for column in zip(*counts, strict=True)]


# ---- ROUGE ---------------------------------------------------------------------------------------


def test_rouge_by_hand():
    prediction, reference = "cat the sat", "the cat sat down"
    # words: 3 of 3, 3 of 4; bigrams: none; longest common subsequence: 2 of 3, 2 of 4
    assert value("rouge1", prediction, reference) == pytest.approx(100 * 6 / 7)
    assert value("rouge2", prediction, reference) == 0
    assert value("rougeL", prediction, reference) == pytest.approx(100 * 4 / 7)
    # "the cat" of 2 and of 3 bigrams
    assert value("rouge2", "the cat sat", "the cat ran home") == pytest.approx(40)
    assert value("rouge1", "the cat", "dog", "a cat", "the cat") == pytest.approx(100)
    assert value("rougeLsum", "A dog barked. The cat sat.", "The cat sat. A dog barked.") == 100


def test_rouge_as_in_the_librarys_example():
    prediction = "The quick brown dog jumps on the log."
    reference = "The quick brown fox jumps over the lazy dog"
    assert value("rouge1", prediction, reference) == pytest.approx(70.588, abs=1e-3)
    assert value("rougeL", prediction, reference) == pytest.approx(58.823, abs=1e-3)


# ---- BLEU and chrF -------------------------------------------------------------------------------


def test_bleu_by_hand():
    score, counts = bleu("the cat sat on the mat", ["the cat sat on a mat"])
    assert counts == [6, 6, 5, 3, 2, 1, 6, 5, 4, 3]
    assert score == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)
    assert corpus_bleu(counts) == pytest.approx(score)
    # precisions without a match: 1 / (2 * 3), 1 / (4 * 2), 1 / (8 * 1)
    smoothed = 100 * (2 / 4 * 1 / 6 * 1 / 8 * 1 / 8) ** 0.25
    assert bleu("a b c d", ["a x c y"])[0] == pytest.approx(smoothed)
    # two words against four: only orders 1 and 2, all match, with the brevity penalty
    assert bleu("the cat", ["the cat sat on"])[0] == pytest.approx(100 * exp(1 - 4 / 2))


def test_a_short_text_has_a_sentence_level_bleu_only():
    score, counts = bleu("a b", ["a b"])
    assert score == pytest.approx(100)
    assert corpus_bleu(counts) == 0  # there is no 3-gram


def test_chrf_by_hand():
    # characters 2 of 3, pairs 1 of 2, triples 0 of 1; longer ones do not exist
    assert chrf("abc", ["abd"])[0] == pytest.approx(100 * (2 / 3 + 1 / 2 + 0) / 3)
    # precision 1; recall 2 of 4 characters and 1 of 3 pairs; recall counts twice
    recall = (2 / 4 + 1 / 3) / 2
    score, counts = chrf("ab", ["abab"])
    assert score == pytest.approx(100 * 5 * recall / (4 + recall))
    assert counts[:6] == [2, 4, 2, 1, 3, 1] and len(counts) == 18
    assert chrf("ab", ["x", "ab", "abab"])[0] == pytest.approx(100)


def test_ter_by_hand():
    # one word replaced, one deleted, of four
    assert ter("a x c d e", ["a b c d"]) == (pytest.approx(100 * 2 / 4), [2, 4])
    # a run of words shifted is a single edit; case does not count
    assert ter("C D a b", ["a b c d"]) == (pytest.approx(100 / 4), [1, 4])
    # the closest reference, divided by the mean length of both
    assert ter("a b", ["a b c", "x y z u v"]) == (pytest.approx(100 * 1 / 4), [1, 4])
    # more edits than words of the reference
    assert ter("a b c", ["x"])[0] == pytest.approx(300) and ter("", ["x y"])[0] == 100
    assert corpus_ter([3, 8]) == pytest.approx(100 * 3 / 8)


def test_corpus_values_are_those_of_sacrebleu():
    streams = [list(stream) for stream in zip(*REFERENCES, strict=True)]
    pairs = list(zip(RESPONSES, REFERENCES, strict=True))
    counts = [bleu(response, references)[1] for response, references in pairs]
    assert corpus_bleu(sums(counts)) == pytest.approx(48.53, abs=5e-3)  # as in its README
    assert corpus_bleu(sums(counts)) == pytest.approx(BLEU().corpus_score(RESPONSES, streams).score)
    counts = [chrf(response, references)[1] for response, references in pairs]
    assert corpus_chrf(sums(counts)) == pytest.approx(59.73, abs=5e-3)
    assert corpus_chrf(sums(counts)) == pytest.approx(CHRF().corpus_score(RESPONSES, streams).score)
    counts = [ter(response, references)[1] for response, references in pairs]
    assert corpus_ter(sums(counts)) == pytest.approx(TER().corpus_score(RESPONSES, streams).score)


def test_sentence_values_are_those_of_sacrebleu():
    sentence_bleu = BLEU(effective_order=True)
    for response, references in zip(RESPONSES, REFERENCES, strict=True):
        expected = sentence_bleu.sentence_score(response, references).score
        assert value("bleu", response, *references) == pytest.approx(expected)
        expected = CHRF().sentence_score(response, references).score
        assert value("chrf", response, *references) == pytest.approx(expected)
    signature = str(sentence_bleu.get_signature())
    assert "case:mixed|eff:yes|tok:13a|smooth:exp" in signature


# ---- METEOR --------------------------------------------------------------------------------------


def test_meteor_stem_by_hand():
    # every word matches, `cats` by its stem; one chunk
    expected = 100 * (1 - 0.5 * (1 / 3) ** 3)
    assert value("meteor_stem", "the cat sat", "the cats sat") == pytest.approx(expected)
    # two chunks: `the cat` and `sat`
    expected = 100 * (1 - 0.5 * (2 / 3) ** 3)
    assert value("meteor_stem", "sat the cat", "the cat sat") == pytest.approx(expected)
    # precision 1, recall 1/2
    expected = 100 * 0.5 / (0.9 + 0.1 * 0.5) * (1 - 0.5 * (1 / 2) ** 3)
    assert value("meteor_stem", "the cat", "the cat sat down") == pytest.approx(expected)
    assert value("meteor_stem", "the cat", "dog", "the cat") == pytest.approx(100 * (1 - 0.5 / 8))
    # a synonym is no match: 2 of 3 words in two chunks
    assert value("meteor_stem", "the hound sat", "the dog sat") == pytest.approx(100 / 3)


def test_meteor_as_in_nltks_example():
    response = "It is a guide to action which ensures that the military always obeys the commands"
    response += " of the party"
    reference = "It is a guide to action that ensures that the military will forever heed Party"
    reference += " commands"
    assert value("meteor_stem", response, reference) == pytest.approx(69.44, abs=5e-3)


def test_meteor_reads_the_end_of_every_sentence():
    words = Meteor(synonyms=False)._words("He can't go. The cat sat.")
    assert words == ["He", "ca", "n't", "go", ".", "The", "cat", "sat", "."]


def write_tiny_wordnet(folder: Path) -> None:
    """A WordNet of one synset: dog, hound."""
    names = ["cntlist.rev", "index.sense"]
    for part in ("adj", "adv", "noun", "verb"):
        names += [f"index.{part}", f"data.{part}", f"{part}.exc"]
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_text("")
    (folder / "lexnames").write_text("00\tnoun.animal\t1\n")
    (folder / "data.noun").write_text("00000000 00 n 02 dog 0 hound 0 000 | an animal  \n")
    (folder / "index.noun").write_text("dog n 1 0 1 0 00000000  \nhound n 1 0 1 0 00000000  \n")


METEOR_SCORE = """
from fgrlhf.metrics.meteor import Meteor
print(Meteor(synonyms=True)("the hound sat", ["the dog sat"]))
"""


def test_meteor_matches_synonyms_of_an_installed_wordnet(tmp_path):
    write_tiny_wordnet(tmp_path / "corpora" / "wordnet")
    command = [sys.executable, "-c", METEOR_SCORE]
    options = {"cwd": ROOT, "env": {**os.environ, "NLTK_DATA": str(tmp_path)}}
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr[-2000:]
    assert float(done.stdout) == pytest.approx(100 * (1 - 0.5 * (1 / 3) ** 3))


def test_meteor_without_wordnet_is_a_user_error(monkeypatch):
    class Missing:
        def ensure_loaded(self):
            raise LookupError("Resource wordnet not found")

    monkeypatch.setattr("fgrlhf.metrics.meteor.wordnet", Missing())
    with pytest.raises(UserError, match="WordNet.*nltk.downloader.*NLTK_DATA.*meteor_stem"):
        build_metric(MetricConfig(name="meteor"))


# ---- metrics of the text alone -------------------------------------------------------------------


def test_exact_match_by_hand():
    assert exact_match(" the  cat\n", ["a dog", "the cat"]) == 1
    assert exact_match("The cat", ["the cat"]) == 0 and exact_match("the cat.", ["the cat"]) == 0
    assert exact_match("", [""]) == 1
    assert exact_match("cafe\u0301", ["caf\u00e9"]) == 1 == exact_match("가", ["\u1100\u1161"])


def test_distinct_by_hand():
    assert ngrams("a b c", 2) == [("a", "b"), ("b", "c")] and ngrams("a", 2) == []
    assert [distinct(["a b a b"], n) for n in (1, 2, 3)] == [2 / 4, 2 / 4, 2 / 4]
    assert [distinct(["a b c d"], n) for n in (1, 2, 3)] == [1, 3 / 4, 2 / 4]
    # pooled: a, b, c of four words; (a, b), (a, c), and no pair over the border
    assert distinct(["a b", "a c"], 1) == 3 / 4 and distinct(["a b", "a c"], 2) == 2 / 4
    assert distinct(["a"], 2) == 0 and distinct([""], 1) is None and distinct(["", "a"], 1) == 1
    assert [value(f"distinct{n}", "a b c d") for n in (1, 2, 3)] == [1, 3 / 4, 2 / 4]


def test_repetition_by_hand():
    assert repetition("a b a b a", 2) == 1 - 2 / 4
    assert repetition("a b c d e", 4) == 0 and repetition("a b c", 4) is None
    assert value("repetition", "a b a b a", n=2) == 1 / 2
    # the default, 4-grams: (a a a a) three times
    assert value("repetition", "a a a a a a") == pytest.approx(2 / 3)


def test_copying_by_hand():
    source = "the red cat sees a dog"
    assert copying("the red cat runs", source, 2) == 2 / 3
    assert copying("the cat", source, 2) == 0 and copying("the", source, 2) is None
    metric = build_metric(MetricConfig(name="copying", n=2))
    prompts = [Prompt("0", source), Prompt("1", "a dog")]
    assert metric.values(prompts, ["red cat", "red cat"]) == [1, 0]


def test_length_counts_words():
    assert value("length", " two  words\n") == 2 and value("length", "") == 0


def test_sentences_are_counted():
    assert value("sentences", "It rained. Then it did not! Why") == 3
    assert value("sentences", " ") == 0
    assert value("sentences", "他住在北京。他住在北京。") == 2 and value("length", "他住在。") == 4
    assert value("sentences", "他住在北京。他住在北京。", segmenter="published") == 1
    assert value("repetition", "他在他在他", n=2) == 1 - 2 / 4


# ---- scores --------------------------------------------------------------------------------------


def score_metric(**settings):
    scorer = {"kind": "python", "of": "test_metrics.Vowels"}
    return build_metric(MetricConfig(name="score", scorer=scorer, **settings))


def test_the_score_of_a_response():
    prompts = [Prompt("0", "the")] * 2
    assert score_metric().columns(prompts, ["ae", "b"]) == [{"score": 0.2}, {"score": 0.0}]
    rows = score_metric(key="judge", threshold=0.2).columns(prompts, ["ae", "b"])
    assert rows == [
        {"judge": 0.2, "judge/max": 0.2, "judge/any": 1.0},
        {"judge": 0.0, "judge/max": 0.0, "judge/any": 0.0},
    ]


def test_a_task_decides_what_a_scoring_reward_model_reads(monkeypatch):
    seen = []

    def build(scorer, context):
        seen.append(context.prefix)
        return Vowels()

    monkeypatch.setattr("fgrlhf.scorers.kinds.SequenceModelScorer.build", build)
    config = MetricConfig(name="score", scorer={"kind": "sequence_scorer", "ckpt": "r"})
    build_metrics([config], prefix=len)
    assert seen == [len]


def test_columns_are_reduced_over_the_samples_of_a_prompt():
    assert over_samples("judge", [0.2, 0.6]) == pytest.approx(0.4)
    assert over_samples("judge/max", [0.2, 0.6]) == 0.6
    assert over_samples("judge/any", [0.0, 1.0, 0.0]) == 1.0
    assert over_samples("max", [1.0, 3.0]) == 3.0 and over_samples("maximum", [1.0, 3.0]) == 2.0


def test_the_expected_maximum_of_a_summary_by_hand():
    rows = []
    for prompt, scores in {"a": [0.1, 0.7], "b": [0.3, 0.2]}.items():
        for score in scores:
            row = {"judge": score, "judge/max": score, "judge/any": float(score >= 0.5)}
            rows.append({"id": prompt, **row})
    summary = summarize(rows)
    assert summary["judge"].mean == pytest.approx((0.4 + 0.25) / 2)
    assert summary["judge/max"].mean == pytest.approx((0.7 + 0.3) / 2)
    assert summary["judge/any"].mean == pytest.approx(0.5)
    assert by_prompt(rows, "judge/max") == {"a": 0.7, "b": 0.3}


def test_corpus_perplexity_by_hand():
    assert corpus_perplexity([6.0, 3]) == pytest.approx(exp(2))


# ---- every metric --------------------------------------------------------------------------------


def every_metric(language_model):
    settings = required_settings(language_model)
    configs = [MetricConfig(name=name, **settings.get(name, {})) for name in METRICS]
    return build_metrics([config for config in configs if config.name != "meteor"])


def required_settings(language_model) -> dict[str, dict[str, Any]]:
    """The settings of the metrics that need some."""
    scorer = {"kind": "python", "of": "test_metrics.Vowels"}
    references = Path(language_model).with_name("references.jsonl")
    write_jsonl(references, [{"prompt": text, "references": [text]} for text in ("cat", "dog")])
    reward_model = Path(language_model).with_name("reward_model")
    reward_model.mkdir(exist_ok=True)
    save_seen(reward_model, seen_ngrams(["the red cat ."]))
    return {
        "perplexity": {"model": language_model},
        "score": {"scorer": scorer},
        "cider": {"references": str(references)},
        "msttr": {"n": 2},
        "novelty": {"model": str(reward_model)},
    }


class Vowels:
    """A text scorer: the share of vowels among the first ten characters."""

    def score(self, prompts, texts):
        return [sum(letter in "aeiou" for letter in text[:10]) / 10 for text in texts]


TEXTS = ["", " \n ", "cat", "🙂 東京 café", "Größe — naïve; Ωμέγα!", "a\u0000b", "no " * 300]


def test_odd_texts_have_values_that_fit_into_json(language_model):
    prompts = [Prompt("0", "the", ("the cat", "", "🙂")) for _ in TEXTS]
    for metric in every_metric(language_model):
        rows = metric.columns(prompts, TEXTS)
        json.dumps(rows, allow_nan=False)
        for row, one in zip(rows, metric.values(prompts, TEXTS), strict=True):
            assert one is None or isinstance(one, int | float), metric.name
            assert row[metric.column] == one
            for key in row:
                assert key == metric.column or key.startswith(f"{metric.column}/")


def test_empty_responses_score_lowest_or_do_not_apply(language_model):
    expected = dict.fromkeys(METRICS, 0) | {
        "distinct1": None,
        "distinct2": None,
        "distinct3": None,
        "repetition": None,
        "copying": None,
        "novelty": None,
        "perplexity": None,
        "msttr": None,
        "parent": None,  # the row has no table
        "ter": 100,  # every word of the reference is missing
    }
    for metric in every_metric(language_model):
        assert metric.values([Prompt("0", "the", ("the cat",))], [""]) == [expected[metric.name]]


def test_unicode_that_equals_its_reference():
    for name in ("bleu", "chrf", "exact_match"):
        highest = 1 if name == "exact_match" else 100
        assert value(name, "🙂 東京 Größe", "🙂 東京 Größe") == pytest.approx(highest)
    assert value("rouge1", "東京 Ωμέγα", "東京 Ωμέγα") == pytest.approx(100)


def test_metrics_with_references_do_not_apply_without_any(language_model):
    prompts = [Prompt("0", "the"), Prompt("1", "the", ("the red cat",))]
    needing = []
    for metric in every_metric(language_model):
        without, with_reference = metric.columns(prompts, ["the red cat ."] * 2)
        if without[metric.column] is None:
            assert list(without) == [metric.column]  # no counts either
            needing.append(metric.name)
        else:
            assert without == with_reference
    expected = [name for name, facts in METRICS.items() if facts.needs_references]
    assert needing == [name for name in expected if name != "meteor"]


def test_the_registry_builds_every_name(monkeypatch, language_model):
    monkeypatch.setattr("fgrlhf.metrics.meteor._installed_wordnet", lambda: None)
    for name, facts in METRICS.items():
        settings = required_settings(language_model)
        metric = build_metric(MetricConfig(name=name, **settings.get(name, {})))
        assert (metric.name, metric.column, metric.facts) == (name, name, facts)
    lower = {name for name, facts in METRICS.items() if facts.higher_is_better is False}
    assert lower == {"perplexity", "repetition", "ter"}


@pytest.mark.parametrize(
    "text",
    [
        "我们在茶馆里等你。",
        "駅で友達を待つ。",
        "ここでまつ",
        "ﾄﾞﾗﾏをみる",
        "ㄅㄆㄇㄈ",
        "เราชอบดื่มชา",
        "ང་བདེ་པོ་ཡིན།",
    ],
)
def test_scripts_without_spaces_have_words_for_bleu_and_ter(text):
    score, counts = overlap.bleu(text, [text])
    assert score == pytest.approx(100) and overlap.corpus_bleu(counts) == pytest.approx(100)
    assert overlap.corpus_bleu(overlap.bleu(text, [text], "13a")[1]) == 0
    assert overlap.ter(text, [text])[0] == 0


def test_ter_of_one_changed_character_by_hand():
    reference, text = "我们在茶馆里等你们来", "我们在茶馆里等他们来"
    assert overlap.ter(text, [reference])[0] == pytest.approx(100 / 10)
    assert overlap.ter(text, [reference], "char")[0] == pytest.approx(100 / 10)
    assert overlap.ter(text, [reference], "tercom")[0] == 100
    # sacrebleu's `zh` and `asian` take a run of kana for one word
    reference, text = "ここでまっている", "ここでまってくる"
    assert overlap.ter(text, [reference])[0] == pytest.approx(100 / 8)
    assert overlap.ter(text, [reference], "asian")[0] == 100
    assert overlap.bleu(text, [reference])[0] > 50
    assert overlap.bleu_tokenizer(["请读《ドラマ》这本很长的书吧，我昨天在店里已经看完了"]) == "zh"


def test_a_tokenizer_is_chosen_by_key():
    text = "The tea-house"
    scored = [Prompt("0", "", (text,))]
    for name, tokenizer in (("bleu", "char"), ("ter", "char"), ("bleu", "intl")):
        metric = build_metric(MetricConfig(name=name, tokenizer=tokenizer))
        assert metric.values(scored, [text]) == [pytest.approx(0 if name == "ter" else 100)]
    with pytest.raises(ValueError, match="of `ter` is one of auto, tercom, asian, char"):
        MetricConfig(name="ter", tokenizer="zh")
    with pytest.raises(ValueError, match="does not use it"):
        MetricConfig(name="chrf", tokenizer="zh")


@pytest.mark.parametrize("rows", [{"table": "a b", "records": "a"}, {"table": 3, "records": ["a"]}])
def test_parent_needs_a_text_and_a_list(rows):
    from fgrlhf.metrics.parent import Parent

    prompt = Prompt("1", "?", ("a b",), meta=rows)
    with pytest.raises(UserError, match="parent: prompt 1 must have `table` as a text"):
        Parent(MetricConfig(name="parent")).columns([prompt], ["a b"])
