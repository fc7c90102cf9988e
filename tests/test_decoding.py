"""Drawing tokens without sorting the vocabulary (fgrlhf/models/decoding.py)."""

import pytest
import torch
from torch import Tensor

from fgrlhf.configs.sections import Sampling
from fgrlhf.models import decoding
from fgrlhf.models.decoding import (
    CANDIDATES,
    NO_TOKEN,
    allowed_next,
    decode,
    draw,
    likeliest,
    log_kept_mass,
    penalize_repetitions,
)

V = 5000
ROWS = 200


def kept_tokens(logits_V: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Tokens that may be drawn, by sorting everything in float64, and their share of top_k's."""
    logits_V = logits_V.double() / sampling.temperature
    order_V = logits_V.argsort(descending=True, stable=True)
    if sampling.top_k:
        order_V = order_V[: sampling.top_k]
    probs = logits_V[order_V].softmax(-1) if sampling.top_k else logits_V.softmax(-1)[order_V]
    if sampling.top_p is not None:
        kept = probs.cumsum(-1) - probs < sampling.top_p
        order_V, probs = order_V[kept], probs[kept]
    if sampling.min_p is not None:
        kept = probs >= sampling.min_p * probs[0]
        order_V, probs = order_V[kept], probs[kept]
    return order_V, probs


def expected_draw(logits_V: Tensor, sampling: Sampling, uniform: float) -> list[int]:
    """The token, or the two of which rounding decides, by sorting everything in float64."""
    order_V, probs = kept_tokens(logits_V, sampling)
    cumulative = probs.cumsum(-1)
    target = uniform * cumulative[-1]
    choices = []
    for shift in (-1e-5, 1e-5):
        choice = int((cumulative > target + shift).int().argmax())
        choices.append(int(order_V[choice]))
    return choices


SCALES = [0.1, 1.5, 6.0]  # flat, like a language model, peaked
SAMPLINGS = [
    Sampling(1),
    Sampling(1, top_p=0.9),
    Sampling(1, top_p=0.3, temperature=0.7),
    Sampling(1, top_k=20),
    Sampling(1, top_k=300, top_p=0.8),
    Sampling(1, min_p=0.2),
    Sampling(1, top_k=300, top_p=0.8, min_p=0.05, temperature=0.7),
]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_drawn_token_is_that_of_a_sorted_vocabulary(sampling, scale):
    generator = torch.Generator().manual_seed(0)
    logits_BV = torch.randn(ROWS, V, generator=generator) * scale
    uniform_B = torch.rand(ROWS, generator=generator)
    drawn_B = draw(logits_BV, sampling, uniform_B)
    decided = 0
    for logits_V, uniform, drawn in zip(logits_BV, uniform_B.tolist(), drawn_B.tolist()):
        low, high = expected_draw(logits_V, sampling, uniform)
        if low == high:
            decided += 1
            assert drawn == low
    assert decided > 0.6 * ROWS  # rounding decides few rows (more if the distribution is flat)


def test_the_kept_probability_by_hand():
    logits_1V = torch.tensor([[0.4, 0.1, 0.3, 0.2]]).log()

    def kept(**settings) -> float:
        return float(log_kept_mass(logits_1V, Sampling(1, **settings)).exp())

    assert kept() == pytest.approx(1.0)
    assert kept(top_k=2) == pytest.approx(0.7)
    assert kept(top_k=9) == pytest.approx(1.0)
    assert kept(top_p=0.5) == pytest.approx(0.7)  # .4 is less than .5
    assert kept(top_p=0.1) == pytest.approx(0.4)  # the first token is always kept
    assert kept(top_k=3, top_p=0.7) == pytest.approx(0.7)  # .4 / .9 is less than .7, .7 / .9 is not
    assert kept(min_p=0.6) == pytest.approx(0.7)  # .3 is at least .6 * .4, .2 is not
    assert kept(min_p=0.99) == pytest.approx(0.4)
    assert kept(top_p=0.5, min_p=0.01) == pytest.approx(0.7)  # the smaller of both sets
    assert kept(top_k=1, temperature=0.5) == pytest.approx(0.16 / 0.30)  # p^2, normalised


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_kept_probability_is_that_of_a_sorted_vocabulary(sampling, scale):
    logits_BV = torch.randn(ROWS, V, generator=torch.Generator().manual_seed(1)) * scale
    log_kept_mass_B = log_kept_mass(logits_BV, sampling)
    for logits_V, kept in zip(logits_BV, log_kept_mass_B.exp().tolist()):
        probs_V = (logits_V.double() / sampling.temperature).softmax(-1)
        tokens, _ = kept_tokens(logits_V, sampling)
        one_token = float(probs_V[tokens[-1]])  # rounding may decide whether it is kept
        expected = float(probs_V[tokens].sum())
        assert kept == pytest.approx(expected, abs=1.01 * one_token + 1e-5)


def test_forbidden_tokens_by_hand():
    ids_BT = torch.tensor([[3, 4, 3], [5, 5, 5], [1, 2, 4]])
    end = [0]

    def forbidden(**settings) -> list[list[int]]:
        allowed_BV = allowed_next(ids_BT, 8, Sampling(9, **settings), end)
        return [(~allowed_V).nonzero()[:, 0].tolist() for allowed_V in allowed_BV]

    assert forbidden(min_new_tokens=4) == [[0]] * 3  # the fourth token
    assert forbidden(min_new_tokens=3) == [[]] * 3
    assert forbidden(no_repeat_ngram_size=1) == [[3, 4], [5], [1, 2, 4]]
    assert forbidden(no_repeat_ngram_size=2) == [[4], [5], []]  # 3 4 and 5 5 are there
    assert forbidden(no_repeat_ngram_size=3) == [[], [5], []]
    assert forbidden(no_repeat_ngram_size=4) == [[]] * 3
    assert forbidden(no_repeat_ngram_size=2, min_new_tokens=9) == [[0, 4], [0, 5], [0]]
    assert allowed_next(ids_BT[:, :0], 8, Sampling(9, no_repeat_ngram_size=1), end).all()


@pytest.mark.parametrize("vocabulary", [4096, 4097, 4103, 100, 8, 3])
@pytest.mark.parametrize("count", [1, 3, 128])
def test_the_likeliest_are_those_of_a_sorted_row(vocabulary, count):
    count = min(count, vocabulary)
    generator = torch.Generator().manual_seed(0)
    # all different; in the last row the largest are next to each other, at the end
    rows = [torch.randperm(vocabulary, generator=generator) for _ in range(3)]
    scores_BV = torch.stack([*rows, torch.arange(vocabulary)]).float()
    scores_BC, ids_BC = likeliest(scores_BV, count)
    expected = scores_BV.sort(-1, descending=True)
    assert scores_BC.equal(expected.values[:, :count])
    assert ids_BC.equal(expected.indices[:, :count])


def test_equal_scores_are_different_tokens_in_an_order_of_their_row():
    generator = torch.Generator().manual_seed(0)
    scores_BV = torch.randint(0, 3, (4, 4100), generator=generator).float()
    scores_BC, ids_BC = likeliest(scores_BV, 100)
    assert scores_BC.equal(scores_BV.gather(1, ids_BC))
    for b in range(4):
        assert len(set(ids_BC[b].tolist())) == 100
        assert likeliest(scores_BV[b : b + 1], 100)[1][0].equal(ids_BC[b])


def test_a_repetition_penalty_by_hand():
    logits_2V = torch.tensor([[2.0, -2.0, 0.0, 4.0, -1.0], [2.0, -2.0, 0.0, 4.0, -1.0]])
    before_2S = torch.tensor([[0, 1, 0, NO_TOKEN], [2, 4, 99, NO_TOKEN]])  # 99 can only be read
    changed_2V = penalize_repetitions(logits_2V, before_2S, 2.0)
    assert changed_2V.tolist() == [[1, -4, 0, 4, -1], [2, -2, 0, 4, -2]]
    assert torch.equal(penalize_repetitions(logits_2V, before_2S[:, :0], 2.0), logits_2V)


def test_only_rows_that_need_more_candidates_sort_more(monkeypatch):
    sorted_sizes = []

    def counted(logits_BV, count):
        sorted_sizes.append((len(logits_BV), count))
        return likeliest(logits_BV, count)

    monkeypatch.setattr(decoding, "likeliest", counted)
    logits_3V = torch.zeros(3, V)
    logits_3V[0, 7] = 30.0  # the first candidate has all the probability
    logits_3V[1, :500] = 30.0  # 500 equal tokens
    uniform_3 = torch.tensor([0.5, 0.5, 0.9999])  # and 5,000 equal ones
    drawn_3 = draw(logits_3V, Sampling(1), uniform_3)
    first, second, third = CANDIDATES
    assert sorted_sizes == [(3, first), (2, second), (1, third), (1, V)]
    assert drawn_3[0] == 7
    assert drawn_3[1] < 500


@pytest.mark.parametrize("top_p", [None, 0.5, 1.0])
def test_the_largest_random_number_draws_a_token_with_probability(top_p):
    largest = 1 - 2**-24
    logits_BV = torch.full((1, V), -torch.inf)
    logits_BV[0, [3, 4000]] = torch.tensor([1.0, 0.0])
    drawn = draw(logits_BV, Sampling(1, top_p=top_p), torch.tensor([largest]))
    assert int(drawn) == (3 if top_p == 0.5 else 4000)


class SameLogits:
    """A model that predicts the same after any tokens; it keeps the rows that are not finished."""

    def __init__(self, rows: int, logits_V: Tensor):
        self.logits_RV = logits_V.expand(rows, -1)

    def first(self):
        return self.logits_RV

    def next(self, ids_R):
        assert len(ids_R) == len(self.logits_RV)
        return self.logits_RV

    def keepable(self, live_R):
        return live_R.nonzero()[:, 0]

    def keep(self, rows):
        self.logits_RV = self.logits_RV[rows]


def test_every_row_draws_with_its_own_numbers_also_when_others_have_ended():
    probabilities_V = torch.tensor([0.4, 0.3, 0.2, 0.1])  # token 0 is the end
    uniform_BT = torch.tensor([[0.1, 0.65, 0.65], [0.5, 0.8, 0.95], [0.95, 0.5, 0.1]])
    steps = SameLogits(3, probabilities_V.log())
    response = decode(steps, lambda hidden: hidden, Sampling(3), uniform_BT, [0], pad_id=9)
    assert response.ids_BT.tolist() == [[0, 9, 9], [1, 2, 3], [3, 1, 0]]
    assert response.mask_BT.tolist() == [[1, 0, 0], [1, 1, 1], [1, 1, 1]]
    expected_BT = torch.tensor([[0.4, 1.0, 1.0], [0.3, 0.2, 0.1], [0.1, 0.3, 0.4]]).log()
    torch.testing.assert_close(response.logprobs_BT, expected_BT)
