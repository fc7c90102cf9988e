"""The linear scorer: probabilities by hand, files without pickles, damaged files."""

import json
import math

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, write_json
from fgrlhf.scorers.linear import (
    INVERSE_L2,
    INVERSE_L2_TRIED,
    SPEC_FILE,
    WEIGHTS_FILE,
    LinearScorer,
    LinearScorerSpec,
    area_under_roc,
    fit_linear_scorer,
)
from fgrlhf.text_types import Prompt

WORDS = ["cat", "dog", "rude"]
SPEC = LinearScorerSpec(label="rude", vocabulary=WORDS, texts=4, inverse_l2=2.0, auc=None)
SCORER = LinearScorer(SPEC, np.array([1.0, 2.0, 3.0]), np.array([-1.0, 0.5, 2.0]), -0.25)
TEXTS = ["a rude dog", "a rude cat", "a nice dog", "the nice cat"]
RUDE = [True, True, False, False]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_probabilities_by_hand():
    """Features are (1 + log(count)) * idf, divided by their norm."""
    cat, dog, rude = 1.0, 2.0 * (1 + math.log(2)), 3.0
    norm = math.sqrt(dog**2 + rude**2)
    expected = [
        sigmoid(-0.25),
        sigmoid(-1.0 * cat / cat - 0.25),
        sigmoid((0.5 * dog + 2.0 * rude) / norm - 0.25),
        sigmoid(-0.25),
    ]
    texts = ["", "The Cat!", "dog rude dog", "unknown words"]
    assert SCORER.probabilities(texts) == pytest.approx(expected, abs=1e-12)
    assert SCORER.score([Prompt("0", "x")] * 4, texts) == SCORER.probabilities(texts)
    assert SCORER.probabilities([]) == []


def test_a_fitted_scorer_finds_the_word_that_matters():
    scorer = fit_linear_scorer(TEXTS, RUDE, "rude", held_out=(["rude", "nice"], [True, False]))
    weights = dict(zip(scorer.spec.vocabulary, scorer.weights_F))
    assert set(weights) == {"rude", "nice", "dog", "cat"}  # "the" is in one text only
    assert weights["rude"] == max(weights.values()) and weights["nice"] == min(weights.values())
    assert weights["dog"] == pytest.approx(0, abs=0.2)
    assert scorer.spec.auc == 1.0 and scorer.spec.texts == 4


def test_held_out_texts_choose_the_penalty():
    """Labels that the words explain want weak penalties, labels at random strong ones."""
    explained = fit_linear_scorer(TEXTS * 9, RUDE * 9, "rude", held_out=(TEXTS, RUDE))
    assert explained.spec.inverse_l2 == INVERSE_L2_TRIED[-1]
    at_random = (TEXTS * 2, [*RUDE, *(not rude for rude in RUDE)])
    unexplained = fit_linear_scorer(TEXTS * 9, RUDE * 9, "rude", held_out=at_random)
    assert unexplained.spec.inverse_l2 == INVERSE_L2_TRIED[0]
    one_class = fit_linear_scorer(TEXTS, RUDE, "rude", held_out=(TEXTS[:2], RUDE[:2]))
    assert (one_class.spec.inverse_l2, one_class.spec.auc) == (INVERSE_L2, None)


def test_the_area_under_the_curve_counts_pairs():
    texts = ["rude", "dog", "cat", ""]
    p = SCORER.probabilities(texts)
    assert p[0] > p[1] > p[3] > p[2]
    assert area_under_roc(SCORER, texts, [True, False, True, False]) == 0.5
    assert area_under_roc(SCORER, texts, [True, True, False, False]) == 1.0
    assert area_under_roc(SCORER, texts, [True] * 4) is None


def test_saved_and_loaded_it_scores_the_same(tmp_path):
    scorer = fit_linear_scorer(TEXTS, RUDE, "rude")
    scorer.save(tmp_path)
    loaded = LinearScorer.load(tmp_path)
    texts = [*TEXTS, "", "rude rude"]
    assert loaded.probabilities(texts) == scorer.probabilities(texts)
    assert loaded.spec == scorer.spec
    assert sorted(path.name for path in tmp_path.iterdir()) == [SPEC_FILE, WEIGHTS_FILE]
    json.loads((tmp_path / SPEC_FILE).read_text())


def damaged(folder, change) -> str:
    SCORER.save(folder)
    change(folder)
    with pytest.raises(UserError) as error:
        LinearScorer.load(folder)
    return str(error.value)


def without_spec(folder):
    (folder / SPEC_FILE).unlink()


def with_pickle(folder):
    (folder / WEIGHTS_FILE).write_bytes(b"\x80\x04N.")


def changed_tensors(**changes):
    def change(folder):
        tensors = {**load_file(folder / WEIGHTS_FILE), **changes}
        save_file(tensors, folder / WEIGHTS_FILE)

    return change


def changed_spec(**changes):
    def change(folder):
        write_json(folder / SPEC_FILE, {**read_json(folder / SPEC_FILE), **changes})

    return change


@pytest.mark.parametrize(
    "change, message",
    [
        (without_spec, "has no linear_scorer.json"),
        (changed_spec(texts="many"), "`texts`: must be a whole number, it is a text"),
        (with_pickle, "cannot be read"),
        (changed_tensors(idf=np.ones(2)), "`idf` has the shape (2,), expected (3,)"),
        (changed_tensors(weights=np.ones(3, np.float32)), "has the type float32"),
        (changed_tensors(bias=np.array([np.nan])), "`bias` has numbers that are not finite"),
    ],
)
def test_damaged_folders_are_refused(tmp_path, change, message):
    assert message in damaged(tmp_path, change)


def test_nothing_to_learn_is_an_error():
    with pytest.raises(UserError, match="all 4 texts are of one class"):
        fit_linear_scorer(TEXTS, [True] * 4, "rude")
    with pytest.raises(UserError, match="no word occurs in 2 of the 2 texts"):
        fit_linear_scorer(["one", "two"], [True, False], "rude")
