"""The mini world's language, oracle and rater; reward-model files; the reward of omissions."""

import random
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, read_jsonl, write_jsonl
from fgrlhf.configs.strict import load_config
from fgrlhf.data.formats import COMPARISONS
from fgrlhf.reward import AtEnd, SegmentClassifierReward
from fgrlhf.reward_models.prefix import Prefix
from fgrlhf.reward_models.scoring import SegmentLabels
from fgrlhf.task_config import rl_config
from fgrlhf.text_types import Prompt
from reward_modeling.data import read_segment_rows
from sft.config import SFTConfig
from tasks.translation.data import mini_world
from tasks.translation.data.language import (
    NounPhrase,
    Sentence,
    forms,
    make_sentence,
    read_sentence,
    right_words,
    slots_of,
)
from tasks.translation.data.mini_world import imperfect_translation, rated, true_judgement
from tasks.translation.data.oracle import judge, true_quality
from tasks.translation.mqm import (
    MAJOR,
    MINOR,
    MOST_MARKS,
    PUNCTUATION,
    WEIGHTS,
    RatedTranslation,
    error,
    mqm_score,
    omission,
    read_rated,
    row_of,
    worst_marks,
)
from tasks.translation.reward_modeling import create_rm_files, evaluate_spans
from tasks.translation.reward_modeling.create_rm_files import (
    comparison_rows,
    severity_tags,
    tagged_translation,
    tagged_whole,
)
from tasks.translation.reward_modeling.evaluate_spans import mpp_results, runs, span_results
from tasks.translation.source import source_of, source_words
from tasks.translation.task import TASK

FOLDER = Path(__file__).parents[1]
SENTENCE = Sentence(
    NounPhrase("fox", True, "old"),
    "see",
    NounPhrase("stone", False, "small"),
    "yesterday",
    ("in", "forest"),
)
SOURCE = "yesterday , the old foxes see the small stone in the forest ."
RIGHT = "dane , miron vekon silva ve lito pelo ramen ."


# ---- the language --------------------------------------------------------------------------------


def test_the_sentence_of_the_docstring():
    assert SENTENCE.text == SOURCE and read_sentence(SOURCE) == SENTENCE
    first, last = slots_of(SENTENCE)
    translations = {" ".join(right_words(random.Random(n), first)) for n in range(50)}
    assert RIGHT in translations
    # two words for stone, small and see; the class of the stone decides the adjective's ending
    assert len(translations) == 8
    assert "dane , miron vekon silva ve beka nida viden ." in translations
    without_comma = {" ".join(right_words(random.Random(n), last)) for n in range(50)}
    assert "miron vekon silva ve lito pelo dane ramen ." in without_comma


def test_every_sentence_can_be_read_and_translated():
    rng = random.Random(0)
    for _ in range(500):
        sentence = make_sentence(rng)
        assert read_sentence(sentence.text) == sentence
        for slots in slots_of(sentence):
            translation = " ".join(right_words(rng, slots))
            assert judge(sentence.text, translation) == ([], [])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "the fox sees the stone",
        "the foxes sees the stone .",
        "the sky sees the stone .",
        "Hi .",
    ],
)
def test_other_texts_are_not_of_this_world(text):
    assert read_sentence(text) is None and judge(text, RIGHT) is None
    assert set(true_quality(Prompt("0", text), RIGHT).values()) == {None}
    assert TASK.metrics([Prompt("0", text)]) == ()


def test_no_word_has_two_meanings():
    # 18 nouns in 2 numbers, 8 adjectives in 4 forms, 8 verbs in 2 numbers, 5 times, 3
    # postpositions, 3 marks: a word that occurs twice would be missing
    assert len(forms()) == 18 * 2 + 8 * 4 + 8 * 2 + 5 + 3 + 3


# ---- the oracle ----------------------------------------------------------------------------------


def marks_of(translation: str):
    marks = judge(SOURCE, translation)
    assert marks is not None
    errors = [(translation[m.start : m.end], m.label, m.severity) for m in marks[0]]
    return errors, [(SOURCE[m.start : m.end], m.severity) for m in marks[1]]


@pytest.mark.parametrize(
    "translation, errors, omissions",
    [
        (RIGHT, [], []),
        (  # another word: the adjective agrees with the noun that is there
            "dane , miron vekon silva ve navo pelo ramen .",
            [("navo", "mistranslation", MAJOR)],
            [],
        ),
        (
            "dane , miron vekon silva ve lito pela rame .",
            [("pela", "agreement", MINOR), ("rame", "agreement", MINOR)],
            [],
        ),
        ("dane , miron vekon silva ve lito ramen .", [], [("small", MAJOR)]),
        ("dane , miron vekon silva ve lito pelo pelo ramen .", [("pelo", "addition", MAJOR)], []),
        (  # the verb in the middle, as in English; a right word in the wrong place is no omission
            "dane , miron vekon ramen silva ve lito pelo .",
            [("ramen", "order", MINOR)],
            [],
        ),
        (
            "dane miron vekon silva ve lito pelo ramen !",
            [("!", "punctuation", PUNCTUATION)],
            [(",", PUNCTUATION)],
        ),
        ("miron vekon silva ve lito pelo dane ramen , .", [(",", "addition", PUNCTUATION)], []),
        ("dane , xyz vekon silva ve lito pelo ramen .", [("xyz", "mistranslation", MAJOR)], []),
        (  # foxes are in the source, but not twice
            "dane , miron vekon silva ve miro pelo ramen .",
            [("miro", "mistranslation", MAJOR)],
            [],
        ),
        (  # a word in the wrong place, and another one
            "dane , miron vekon ramen navo ve lito pelo .",
            [("ramen", "order", MINOR), ("navo", "mistranslation", MAJOR)],
            [],
        ),
    ],
)
def test_the_oracle_marks_every_error(translation, errors, omissions):
    assert marks_of(translation) == (errors, omissions)


def test_a_wrong_word_is_one_error_whichever_word_it_is():
    """Another word of the sentence in the place of one is an error like any other word there."""
    rng = random.Random(0)
    for _ in range(500):
        sentence = make_sentence(rng)
        words = right_words(rng, slots_of(sentence)[0])
        places = [i for i, word in enumerate(words) if word not in (",", ".", "!")]
        wrong, other = rng.sample(places, 2)
        words[wrong] = words[other]
        marks = judge(sentence.text, " ".join(words))
        assert marks is not None and marks[1] == []
        major = [mark.label for mark in marks[0] if mark.severity == MAJOR]
        assert major in (["mistranslation"], [])  # none: an adjective for an equal one


def test_a_blank_translation_omits_everything():
    errors, omissions = marks_of("")
    assert errors == []
    words = ["yesterday", ",", "old", "foxes", "see", "small", "stone", "in", "forest", "."]
    assert [word for word, _ in omissions] == words
    quality = true_quality(Prompt("0", SOURCE), "")
    assert quality == {"oracle/mqm": -25.0, "oracle/perfect": 0.0, "oracle/major": 8.0}


def test_the_score_is_the_sum_of_the_weights():
    quality = true_quality(Prompt("0", SOURCE), "dane miron vekon silva ve navo pelo rame .")
    assert quality["oracle/mqm"] == pytest.approx(-(5 + 1 + 0.1))
    assert true_quality(Prompt("0", SOURCE), RIGHT)["oracle/mqm"] == 0.0
    assert mqm_score([error(0, 1, "x", MAJOR)] * 6) == -25.0


# ---- imperfect translations and raters -----------------------------------------------------------


def test_imperfect_translations_have_every_kind_of_error():
    rng = random.Random(0)
    labels: dict[str, int] = {}
    perfect = 0
    for _ in range(1000):
        sentence = make_sentence(rng)
        marks = judge(sentence.text, imperfect_translation(rng, sentence))
        assert marks is not None
        perfect += marks == ([], [])
        for mark in [*marks[0], *marks[1]]:
            labels[mark.label] = labels.get(mark.label, 0) + 1
    kinds = {"mistranslation", "addition", "agreement", "order", "punctuation", "omission"}
    assert set(labels) == kinds and min(labels.values()) > 50
    assert 250 < perfect < 400


def test_a_rater_makes_at_most_five_marks_and_errs():
    translation = "navo vekon vekon vekon vekon vekon vekon ramen"
    truth = true_judgement("0", SENTENCE, translation)
    assert len(truth.errors) + len(truth.omissions) > MOST_MARKS
    overlooked = 0
    for seed in range(2000):
        judgement = rated(random.Random(seed), truth)
        assert len(judgement.errors) + len(judgement.omissions) <= MOST_MARKS
        overlooked += judgement.errors[0].start != truth.errors[0].start
    assert overlooked / 2000 == pytest.approx(0.05, abs=0.015)
    # a right translation gets a mark on 5% of its 10 words
    right = true_judgement("0", SENTENCE, RIGHT)
    marks = sum(len(rated(random.Random(seed), right).errors) for seed in range(2000))
    assert marks / 2000 == pytest.approx(10 * 0.05, abs=0.05)


def test_the_worst_errors_are_marked():
    errors = [error(n, n + 1, "x", MINOR) for n in range(4)]
    omissions = [omission(n, n + 1, MAJOR) for n in range(3)]
    assert worst_marks([*errors, *omissions]) == [*omissions, *errors[:2]]
    minor = [replace(mark, severity=MINOR) for mark in omissions]
    assert worst_marks([*minor, *errors]) == [*errors, minor[0]]
    dot = error(0, 1, "punctuation", PUNCTUATION)
    assert worst_marks([dot, *errors, minor[0]]) == [*errors, minor[0]]
    assert worst_marks([dot, minor[0]]) == [minor[0], dot]


def test_marks_of_the_source_are_omissions(tmp_path):
    span = {"start": 0, "end": 5, "label": MAJOR, "side": "source"}
    row = {"prompt": "die alte Katze", "response": "the", "spans": [span]}
    write_jsonl(tmp_path / "a.jsonl", [row])
    (judged,) = read_rated(tmp_path / "a.jsonl")
    assert judged.errors == () and judged.score == -5.0
    assert judged.omissions == (omission(0, 5, MAJOR),)
    write_jsonl(tmp_path / "a.jsonl", [row | {"source": "die Katze"}])
    with pytest.raises(UserError, match="need the prompt as the source"):
        read_rated(tmp_path / "a.jsonl")


# ---- reward-model files --------------------------------------------------------------------------


def judgement(errors, omissions=(), source=SOURCE, response=RIGHT) -> RatedTranslation:
    """Marks as (word, severity); each word is the first one of its text."""
    marks = [error(*place(response, word), "x", severity) for word, severity in errors]
    marks += [omission(*place(source, word), severity) for word, severity in omissions]
    return RatedTranslation.of(Prompt("7", source), response, marks)


def place(text: str, word: str) -> tuple[int, int]:
    start = text.index(word)
    return start, start + len(word)


def tags_after_marks(example) -> list[str]:
    return [tag for word, tag in zip(example.words, example.tags) if word == "</s>"]


def test_words_get_the_worst_severity_of_their_marks():
    marks = [error(0, 4, "x", MINOR), error(2, 9, "y", MAJOR), error(13, 14, "z", PUNCTUATION)]
    assert severity_tags("aaaa bbbb cc d.", marks, False) == [MAJOR, MAJOR, "O", PUNCTUATION]


def test_with_five_marks_the_other_words_are_not_judged():
    five = [(word, MINOR) for word in ("dane", ",", "miron", "vekon", "lito")]
    capped = judgement(five)
    assert capped.is_capped
    tags = [MINOR] * 4 + ["Ignore"] * 2 + [MINOR] + ["Ignore"] * 3
    example = tagged_translation(capped)
    assert example is not None and tags_after_marks(example) == tags
    assert example.words[:3] == ["yesterday", ",", "the"]


@pytest.mark.parametrize(
    "errors, omissions, tag",
    [
        ([], [], "O"),
        ([], [("foxes", PUNCTUATION), ("old", MINOR)], MINOR),
        ([], [("foxes", MAJOR), ("old", MINOR)], MAJOR),
        # all marks are used: there may be an omission, but none worse than a marked one
        (["dane", ",", "miron", "vekon", "lito"], [], None),
        (["dane", ",", "miron", "vekon"], [("foxes", MINOR)], MINOR),
        (["dane", ",", "miron", "vekon"], [("foxes", MAJOR)], MAJOR),
    ],
)
def test_the_worst_omission_is_the_tag_of_the_whole_translation(errors, omissions, tag):
    example = tagged_whole(judgement([(word, MINOR) for word in errors], omissions))
    if tag is None:
        assert example is None
        return
    assert example is not None and tags_after_marks(example) == [tag]
    assert example.words == [*SOURCE.split(), "</s>", *RIGHT.split()]


def test_marks_of_the_source_count_among_the_five():
    errors = [(word, MINOR) for word in ("dane", ",", "miron", "vekon")]
    example = tagged_translation(judgement(errors, [("foxes", MAJOR)]))
    assert example is not None and tags_after_marks(example) == [MINOR] * 4 + ["Ignore"] * 6


def test_an_oracle_uses_more_than_five_marks():
    five = [(word, MINOR) for word in ("dane", ",", "miron", "vekon", "lito")]
    truth = replace(judgement(five), complete=True)
    assert not truth.is_capped
    example = tagged_whole(truth)
    assert example is not None and tags_after_marks(example) == ["O"]
    six = judgement([*five, ("ramen", MINOR)])  # nobody has counted to five
    assert not six.is_capped


def test_pairs_compare_translations_of_a_source_by_their_scores():
    versions = [
        judgement([("dane", MINOR)], response="dane a"),
        judgement([("dane", MAJOR)], response="dane b"),
        judgement([], [("foxes", MINOR)], response="dane c"),
        judgement([], source="other", response="dane"),
    ]
    rows = comparison_rows(versions)
    assert [row["prompt"] for row in rows] == [SOURCE]
    # -1, -5 and -1: the first and the last are a tie
    assert rows[0]["preferences"] == [[0, 1], [2, 1]]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    settings = {"demonstrations": 20, "judged": 40, "prompts": 10}
    mini_world.write_world(mini_world.MiniWorldSettings(data_dir=str(folder), **settings))
    files = create_rm_files.RMFileSettings(data_dir=str(folder), output_dir=str(folder))
    create_rm_files.write_files(files)
    return folder


def test_files(world):
    splits = {name: TASK.read(world / f"{name}.json") for name in ("train", "dev", "test")}
    assert len(splits["train"]) == 10 and len(read_json(world / "sft.json")) == 20
    (oracle,) = TASK.metrics(splits["dev"])
    for prompt in splits["dev"]:
        assert oracle(prompt, prompt.references[0])["oracle/perfect"] == 1.0
    for judged in read_rated(world / "judged_dev.jsonl"):
        truth = judge(judged.prompt.text, judged.response)
        assert truth == (list(judged.errors), list(judged.omissions))
    for part, level in (("span", "word"), ("omission", "whole")):
        path = world / f"{part}_segments" / "train.json"
        assert len(read_segment_rows(path, (*WEIGHTS, "O"), "Ignore", level)) > 60
    assert COMPARISONS.read(world / "mqm_pairs" / "train.jsonl")


def test_the_same_seed_writes_the_same_files(world, tmp_path):
    settings = {"demonstrations": 20, "judged": 40, "prompts": 10}
    mini_world.write_world(mini_world.MiniWorldSettings(data_dir=str(tmp_path), **settings))
    for path in world.glob("*.json*"):
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


# ---- rows ----------------------------------------------------------------------------------------


def test_a_row_is_read_as_it_was_written(tmp_path):
    first = judgement([("vekon", MINOR)], [("foxes", MAJOR)])
    write_jsonl(tmp_path / "rows.jsonl", [row_of(first)])
    assert read_rated(tmp_path / "rows.jsonl") == [first]


def test_rows_of_the_feedback_pages_have_the_severity_as_label(tmp_path):
    row = {"prompt": "a", "response": "b c", "spans": [{"start": 0, "end": 1, "label": "minor"}]}
    write_jsonl(tmp_path / "rows.jsonl", [row])
    (read,) = read_rated(tmp_path / "rows.jsonl")
    assert [mark.severity for mark in read.errors] == [MINOR] and read.score == -1.0


def test_omissions_of_the_feedback_pages_are_missing_information(tmp_path):
    marks = [
        {"start": 4, "end": 9, "label": "minor omission", "side": "source"},
        {"start": 0, "end": 3, "label": "major omission", "side": "source"},
    ]
    row = {"prompt": "the small fox", "response": "b", "spans": marks}
    write_jsonl(tmp_path / "rows.jsonl", [row])
    (read,) = read_rated(tmp_path / "rows.jsonl")
    places = [(mark.start, mark.end, mark.severity) for mark in read.omissions]
    assert places == [(0, 3, MAJOR), (4, 9, MINOR)]
    assert read.errors == () and read.score == -6.0 and read.worst_omission == MAJOR
    assert read.prompt.meta == {}


GRAVE = {"start": 0, "end": 1, "label": "x", "severity": "grave"}
UNKNOWN = "`spans`: the severity 'grave' is not known; severities are major, minor"


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"spans": [GRAVE]}, f"row 7, {UNKNOWN}"),
        ({"complete": "yes"}, "row 7, `complete`: must be true or false, it is 'yes'"),
    ],
)
def test_malformed_rows_are_named(changes, message, tmp_path):
    write_jsonl(tmp_path / "rows.jsonl", [row_of(judgement([])) | changes])
    with pytest.raises(UserError, match=message):
        read_rated(tmp_path / "rows.jsonl")


# ---- the rewards ---------------------------------------------------------------------------------


class FakeScorer:
    """Calls every word but the first a major error."""

    spec = SimpleNamespace(judged_labels=("major", "minor", "O"), level="word")

    def score(self, prompts, texts):
        results = []
        for text in texts:
            spans = [match.span() for match in re.finditer(r"\S+", text)]
            rows = [[0.0, 0.1, 0.9]] + [[1.0, 0.0, 0.0]] * (len(spans) - 1)
            judged = (True,) * len(spans)
            labels = ("major", "minor", "O")
            results.append(SegmentLabels(tuple(spans), torch.tensor(rows), labels, judged))
        return results


def test_the_same_sum_as_one_scalar():
    """The arm `scalar` moves the values of `spans` to the end and changes nothing else."""
    words = SegmentClassifierReward(FakeScorer(), {"major": -5.0})  # pyright: ignore
    (dense,) = words.segment_scores([Prompt("", "x")], ["a b c"])
    (scalar,) = AtEnd(words).segment_scores([Prompt("", "x")], ["a b c"])
    assert [score.value for score in dense] == [0.0, -5.0, -5.0]
    assert [score.end for score in scalar] == [None] * 3
    assert sum(score.value for score in scalar) == sum(score.value for score in dense) == -10.0


def test_the_language_of_madlad_is_no_part_of_the_source():
    assert source_of(Prompt("", "<2de> I am <2b> .")) == "I am <2b> ."
    assert source_of(Prompt("", "I am <2de>")) == "I am <2de>"
    assert source_words(Prompt("", "<2pt_BR> a b"), False) == Prefix(("a", "b"))


# ---- spans of a reward model ---------------------------------------------------------------------


def test_runs():
    tags = ["O", MAJOR, MAJOR, MINOR, "Ignore", MINOR, "O", MINOR]
    assert runs(tags) == {(1, 3, MAJOR), (3, 4, MINOR), (5, 6, MINOR), (7, 8, MINOR)}
    assert runs([]) == set()


def test_span_results():
    actual = [["O", MAJOR, MAJOR, "O", MINOR, "Ignore"]]
    predicted = [[MAJOR, MAJOR, MAJOR, "O", MAJOR, MAJOR]]
    results = span_results(predicted, actual)
    # words 0, 1, 2, 4 against 1, 2, 4: the last one is not judged
    assert results["words/precision"] == 3 / 4 and results["words/recall"] == 1.0
    # spans 0-3 and 4-5 against 1-3 and 4-5; the second has another severity
    assert results["place/f1"] == 0.5 and results["exact/f1"] == 0.0
    nothing = span_results([["O"] * 6], actual)
    assert set(nothing.values()) == {0.0}


def test_mpp_results_by_hand():
    """Words of 2, 4, 2, 2, 1 and 1 characters."""
    places = [[(0, 2), (3, 7), (8, 10), (11, 13), (14, 15), (16, 17)]]
    actual = [["O", MAJOR, MAJOR, "O", MINOR, "Ignore"]]
    predicted = [[MAJOR, MAJOR, MAJOR, "O", MAJOR, MAJOR]]
    results = mpp_results(predicted, actual, places)
    # [0, 10) shares 7 characters with [3, 10), and [14, 15) is found, with another severity
    assert results["mpp place/precision"] == pytest.approx((7 / 10 + 1) / 2)
    assert results["mpp place/recall"] == 1.0
    assert results["mpp place/f1"] == pytest.approx(2 * 0.85 / 1.85)
    assert results["mpp/precision"] == pytest.approx(0.7 / 2)
    assert results["mpp/recall"] == 1 / 2
    assert results["mpp/f1"] == pytest.approx(2 * 0.35 * 0.5 / 0.85)
    # a second row, where nothing is predicted, takes recall only
    more = mpp_results([*predicted, ["O"]], [*actual, [MINOR]], [*places, [(0, 3)]])
    assert more["mpp place/recall"] == pytest.approx(2 / 3)
    assert more["mpp place/precision"] == pytest.approx(0.85)
    assert set(mpp_results([["O"] * 6], actual, places).values()) == {0.0}


def test_evaluation_of_a_file(tmp_path, monkeypatch):
    """A model that calls every word but the first a major error; `vekon ramen` is one."""
    scorer = FakeScorer()
    scorer.spec = SimpleNamespace(level="word")
    monkeypatch.setattr(evaluate_spans, "load_segment_classifier", lambda *_: scorer)
    row = row_of(judgement([("vekon", MAJOR)], response="lito vekon ramen"))
    write_jsonl(tmp_path / "judged.jsonl", [row])
    files = {"source": str(tmp_path / "judged.jsonl"), "output": str(tmp_path / "out.json")}
    results = evaluate_spans.evaluate(evaluate_spans.EvaluateSpansSettings(ckpt="rm", **files))
    assert read_json(tmp_path / "out.json") == results
    # the span of 11 characters contains the marked 5
    assert results["model"]["mpp/precision"] == pytest.approx(5 / 11)
    assert results["model"]["mpp/recall"] == 1.0 and results["model"]["exact/f1"] == 0.0
    assert results["none"]["mpp/f1"] == 0.0
    assert results["all"]["mpp/precision"] == pytest.approx(5 / 16)


# ---- configs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", ["", "mini_"])
@pytest.mark.parametrize("name", ["spans", "scalar", "preference"])
def test_rl_configs(scale, name, monkeypatch):
    monkeypatch.setenv("DATA_DIR", "data")
    monkeypatch.setenv("OUTPUT_DIR", "out")
    config = load_config(rl_config(TASK), FOLDER / f"training/{scale}{name}_config.yml")
    spans = load_config(rl_config(TASK), FOLDER / f"training/{scale}spans_config.yml")
    assert config.unused_settings() == [] and config.logging.save_dir == f"out/{name}"
    same = {"reward", "logging"}
    assert config.model_dump(exclude=same) == spans.model_dump(exclude=same)
    if name != "preference":  # the arms differ in the place of the reward alone
        for key, reward in config.reward.items():
            expected = spans.reward[key].model_dump()
            if name == "scalar" and key == "span_rm":  # omissions are at the end in both
                assert expected["place"] == "segment"
                expected["place"] = "end"
            assert reward.model_dump() == expected


@pytest.mark.parametrize("scale", ["", "mini_"])
def test_sft_configs(scale, monkeypatch):
    monkeypatch.setenv("DATA_DIR", "data")
    monkeypatch.setenv("OUTPUT_DIR", "out")
    config = load_config(SFTConfig, FOLDER / f"training/{scale}sft_config.yml")
    assert config.model.decoder_prefix == (None if scale else "deu_Latn")


def test_rows_of_the_world_are_rows_of_the_format(world):
    for row in read_jsonl(world / "judged_train.jsonl"):
        assert set(row) == {"id", "prompt", "response", "spans"}
    for row in read_jsonl(world / "judged_dev.jsonl"):
        assert row["complete"] is True
