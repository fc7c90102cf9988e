"""Losses of preferences: by hand, as TRL has them, at neutral settings, by finite differences."""

import math
from dataclasses import replace

import pytest
import tiny
import torch
from dpo_helpers import config, fours, judged, pairs
from torch.nn.functional import cross_entropy, logsigmoid

from fgrlhf.algorithms import preference_losses as losses
from fgrlhf.algorithms.preference_losses import weighted_log_ratio
from fgrlhf.base.errors import UserError
from fgrlhf.data.comparisons import Answer, Comparison, labels_of_pairs
from fgrlhf.data.token_comparisons import collate, encode_comparisons
from fgrlhf.preference_terms import (
    TERMS,
    Scored,
    count_units,
    loss_sums,
    segments,
    token_weights,
    units_of,
)
from fgrlhf.runs.dpo_config import OF_PAIRS, WITHOUT_REFERENCE, DPOSettings
from fgrlhf.text_types import Prompt

# ---- by hand -------------------------------------------------------------------------------------

PAIR_LOSSES = {
    "sigmoid": losses.sigmoid_pair_loss,
    "hinge": losses.hinge_pair_loss,
    "ipo": losses.ipo_pair_loss,
}


@pytest.mark.parametrize(
    "name, beta, margin, loss, slope",
    [
        ("sigmoid", 0.5, 2.0, 0.3132617, -0.5 * 0.2689414),  # log(1 + e^-1), -beta sigmoid(-1)
        ("sigmoid", 0.1, 0.0, math.log(2), -0.05),
        ("sigmoid", 2.0, -50.0, 100.0, -2.0),
        ("hinge", 0.5, 1.0, 0.5, -0.5),
        ("hinge", 0.5, -2.0, 2.0, -0.5),
        ("hinge", 0.5, 3.0, 0.0, 0.0),
        ("ipo", 0.5, 3.0, 4.0, 4.0),  # (3 - 1)^2
        ("ipo", 0.1, 0.0, 25.0, -10.0),  # (0 - 5)^2
        ("ipo", 0.1, 5.0, 0.0, 0.0),
    ],
)
def test_pair_losses_by_hand(name, beta, margin, loss, slope):
    margins_N = torch.tensor([margin, 0.0], dtype=torch.float64, requires_grad=True)
    losses_N = PAIR_LOSSES[name](margins_N, beta)
    losses_N[0].backward()
    assert losses_N[0].item() == pytest.approx(loss, abs=1e-6)
    assert margins_N.grad.tolist() == pytest.approx([slope, 0.0], abs=1e-6)


def test_weighted_log_ratio_by_hand():
    new_BT, ref_BT = (
        torch.tensor([[-1.0, -2.0, 0.0], [-1.0, -1.0, -1.0]]),
        torch.tensor([[-2.0, -0.5, 0.0], [-1.5, -1.0, -3.0]]),
    )
    weights_BT = torch.tensor([[1.0, 3.0, 0.0], [1.0, 1.0, 1.0]])
    assert weighted_log_ratio(new_BT, ref_BT, weights_BT).tolist() == [1.0 - 4.5, 0.5 + 0.0 + 2.0]


def test_a_smoothed_label_by_hand():
    margin_1 = torch.tensor([math.log(3)])  # sigmoid: 3/4 and 1/4
    smooth = losses.sigmoid_pair_loss(margin_1, 1.0, 0.25)
    assert float(smooth) == pytest.approx(0.75 * math.log(4 / 3) + 0.25 * math.log(4))
    robust = losses.robust_pair_loss(margin_1, 1.0, 0.25)
    expected = (0.75 * math.log(4 / 3) - 0.25 * math.log(4)) / 0.5
    assert float(robust) == pytest.approx(expected)


def test_the_smoothed_loss_is_least_where_the_judgement_is_as_probable():
    margins_N = torch.linspace(-3, 3, 601, dtype=torch.float64)
    best = margins_N[losses.sigmoid_pair_loss(margins_N, 2.0, 0.2).argmin()]
    assert 1 / (1 + math.exp(-2 * best)) == pytest.approx(0.8, abs=0.01)


def test_the_mean_robust_loss_of_noisy_judgements_is_the_loss_without_noise():
    margins_N = torch.tensor([-2.0, 0.3, 1.7], dtype=torch.float64)
    noisy_N = 0.7 * losses.robust_pair_loss(margins_N, 0.5, 0.3)
    noisy_N += 0.3 * losses.robust_pair_loss(-margins_N, 0.5, 0.3)
    torch.testing.assert_close(noisy_N, losses.sigmoid_pair_loss(margins_N, 0.5))


def test_anchored_losses_by_hand():
    better_1, worse_1 = torch.tensor([math.log(3)]), torch.tensor([-math.log(3)])
    assert float(losses.apo_zero_loss(better_1, worse_1, 1.0)) == pytest.approx(1 / 4 + 1 / 4)
    # sigmoid(log 9) = 9/10
    assert float(losses.apo_down_loss(better_1, worse_1, 1.0)) == pytest.approx(3 / 4 + 1 / 10)


def test_odds_by_hand():
    p, q = 0.8, 0.5  # odds 4 and 1
    loss = losses.odds_ratio_loss(torch.tensor([math.log(p)]), torch.tensor([math.log(q)]))
    assert float(loss) == pytest.approx(math.log(1 + 1 / 4), rel=1e-6)


def test_kto_by_hand():
    ratios_M = torch.tensor([math.log(3) + 1, math.log(3) + 1, 1.0])
    loss_M = losses.kto_loss(
        ratios_M, torch.tensor([True, False, False]), torch.tensor(1.0), 1.0, 2.0, 4.0
    )
    assert loss_M.tolist() == pytest.approx([2 / 4, 4 * 3 / 4, 4 / 2])


def test_unlikelihood_by_hand():
    logprobs_T = torch.tensor([0.75, 1e-8, 1 - 1e-7], dtype=torch.float64).log().requires_grad_()
    loss_T = losses.unlikelihood_loss(logprobs_T)
    assert loss_T.tolist() == pytest.approx([math.log(4), 1e-8, -math.log(1e-6)], rel=1e-3)
    loss_T.sum().backward()
    # p / (1 - p); a token that is certain is pushed no further
    assert logprobs_T.grad.tolist() == pytest.approx([3.0, 1e-8, 0.0], rel=1e-6)


@pytest.mark.parametrize("x", [-1e-5, -0.1, -math.log(2), -0.7, -3.0, -40.0])
def test_log1mexp_is_exact_near_zero_and_far_from_it(x):
    exact = math.log(-math.expm1(x)) if x > -1 else math.log1p(-math.exp(x))
    value = losses.log1mexp(torch.tensor(x, dtype=torch.float64))
    assert float(value) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("name", ["apo_zero_loss", "apo_down_loss", "odds_ratio_loss"])
def test_the_gradients_of_two_scores_are_finite_differences(name):
    better_N = torch.tensor([-0.9, -0.1, -2.0], dtype=torch.float64, requires_grad=True)
    worse_N = torch.tensor([-0.2, -1.5, -2.1], dtype=torch.float64, requires_grad=True)
    beta = () if name == "odds_ratio_loss" else (0.7,)
    assert torch.autograd.gradcheck(
        lambda *scores: getattr(losses, name)(*scores, *beta), (better_N, worse_N)
    )


@pytest.mark.parametrize(
    "loss",
    [
        lambda x: losses.sigmoid_pair_loss(x, 0.7, 0.2),
        lambda x: losses.robust_pair_loss(x, 0.7, 0.2),
        lambda x: losses.ipo_pair_loss(x, 0.7),
        lambda x: losses.kto_loss(x, x < -1, torch.tensor(0.3), 0.7, 2.0),
        lambda x: losses.unlikelihood_loss(x),
    ],
    ids=["smoothed", "robust", "ipo", "kto", "unlikelihood"],
)
def test_the_gradients_of_one_score_are_finite_differences(loss):
    x_N = torch.tensor([-0.3, -0.8, -2.5], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(loss, (x_N,))


# ---- neutral settings ----------------------------------------------------------------------------


def test_without_noise_all_smoothed_losses_are_the_sigmoid_loss():
    margins_N = torch.tensor([-30.0, -0.4, 0.0, 2.0])
    plain_N = losses.sigmoid_pair_loss(margins_N, 0.3)
    assert torch.equal(losses.sigmoid_pair_loss(margins_N, 0.3, 0.0), plain_N)
    torch.testing.assert_close(losses.robust_pair_loss(margins_N, 0.3, 0.0), plain_N)


def batch_of(kind: str = "gpt2", comparisons=None, reads_marks: bool = True):
    """Comparisons, a batch of them, and random log-probabilities."""
    policy = tiny.policy(kind)
    rows = encode_comparisons(policy, comparisons or pairs(marked=True), 12, reads_marks)
    batch = collate(rows, None, pad_id=0, left=kind == "gpt2")
    generator = torch.Generator().manual_seed(0)
    mask_BT = batch.response_mask_BT.double()
    logprobs_BT, ref_BT = (
        -2 * torch.rand(mask_BT.shape, generator=generator, dtype=torch.float64) * mask_BT
        for _ in range(2)
    )
    return rows, replace(batch, ref_logprobs_BT=ref_BT), logprobs_BT


def step_loss(made, kl: float = 0.0, token_kl: float = 0.0, **settings) -> float:
    """The loss of a step with one batch."""
    rows, batch, logprobs_BT = made
    divergence = (torch.tensor(kl).double(), torch.tensor(token_kl).double())
    scored = Scored(batch, logprobs_BT, DPOSettings(**settings), *divergence)
    counts = sum((count_units(row) for row in rows), count_units(rows[0]) - count_units(rows[0]))
    return sum(
        float(weight * summed / counts[unit]) for _, weight, unit, summed in loss_sums(scored)
    )


def test_a_mixture_is_the_weighted_sum():
    made = batch_of()
    alone = [step_loss(made, loss=name) for name in ("sigmoid", "unlikelihood")]
    assert step_loss(made, loss="sft") == step_loss(made, loss=["sft"])
    mixed = step_loss(made, loss=["sigmoid", "unlikelihood"], loss_weights=[0.5, 3.0])
    assert mixed == pytest.approx(0.5 * alone[0] + 3 * alone[1], rel=1e-12)
    whole = step_loss(made, loss="cpo", beta=0.3)
    parts = step_loss(made, loss=["cpo", "sft"], loss_weights=[1.0, 2.0], beta=0.3)
    assert parts == pytest.approx(whole + 2 * step_loss(made, loss="sft"), rel=1e-12)


def test_kto_of_segments_is_kto_if_every_answer_is_one_segment_of_the_same_length():
    """Answers of equal length without marks, whose KL per token times the length is that of KTO."""
    texts = ("red cat", "blue dog", "a bird", "the dog")
    labels = (True, False, True, False)
    one = Comparison(Prompt("0", "one"), tuple(map(Answer, texts)), (), labels=labels)
    made = batch_of(comparisons=[one])
    assert {len(ids) for ids in made[0][0].answer_ids} == {3}
    whole = step_loss(made, kl=0.6, loss="kto", beta=0.5)
    assert step_loss(made, token_kl=0.2, loss="kto_spans", beta=0.5) == pytest.approx(whole)


def test_kto_of_a_pair_is_that_of_its_two_answers():
    alone = [
        Comparison(c.prompt, (answer,), (), labels=(label,))
        for c in pairs()
        for answer, label in zip(c.answers, (True, False))
    ]
    settings = {"kl": 0.1, "loss": "kto", "undesirable_weight": 3.0}
    assert len(batch_of(comparisons=alone)[1].labels_B) == 10
    assert step_loss(batch_of(comparisons=pairs()), **settings) == pytest.approx(
        step_loss(batch_of(comparisons=alone), **settings), rel=1e-12
    )


# ---- units, weights and segments -----------------------------------------------------------------


def test_every_loss_has_terms_and_says_what_it_reads():
    assert {name for name in TERMS if "pairs" in units_of(name)} == set(OF_PAIRS)
    rows, batch, logprobs_BT = batch_of()
    shift_BT = 0.3 * batch.labels_B[:, None] * batch.response_mask_BT
    moved = replace(batch, ref_logprobs_BT=batch.ref_logprobs_BT - shift_BT)
    for name in TERMS:
        before = step_loss((rows, batch, logprobs_BT), loss=name)
        after = step_loss((rows, moved, logprobs_BT), loss=name)
        assert (before == after) == (name in WITHOUT_REFERENCE), name


def test_labels_of_pairs_by_hand():
    assert labels_of_pairs(2, [(1, 0)]) == (False, True)
    assert labels_of_pairs(2, [(1, 0), (0, 1)]) == (None, None)
    assert labels_of_pairs(3, [(0, 1), (1, 2), (0, 2)]) == (True, None, False)
    assert labels_of_pairs(3, [(0, 1), (0, 1), (1, 0)]) == (True, False, None)


def test_units_are_counted_as_the_losses_have_them():
    """The count of each unit is the number of losses of a batch: nothing is a mean over others."""
    for comparisons in (pairs(marked=True), fours(), judged()):
        rows, batch, logprobs_BT = batch_of(comparisons=comparisons)
        zero = torch.tensor(0.0).double()
        scored = Scored(batch, logprobs_BT, DPOSettings(), zero, zero)
        for name, terms in TERMS.items():
            for term in terms:
                expected = sum(count_units(row)[term.unit] for row in rows)
                assert len(term.losses(scored)) == expected, (name, term.unit)


def test_weights_of_tokens_by_hand():
    marked_BT = torch.tensor([[0, 1, 1, 0], [0, 0, 0, 0]]).bool()
    mask_BT = torch.tensor([[1.0, 1, 1, 1], [1, 1, 0, 0]])
    assert token_weights(marked_BT, mask_BT, DPOSettings(span_weight=3)).tolist() == [
        [1, 3, 3, 1],
        [1, 1, 0, 0],
    ]
    assert token_weights(marked_BT, mask_BT, DPOSettings(unmarked_weight=0)).tolist() == [
        [0, 1, 1, 0],
        [1, 1, 0, 0],
    ]


def test_segments_by_hand():
    marked_BT = torch.tensor(
        [
            [0, 1, 1, 0, 1, 0],  # bad: its errors, and what is between them
            [0, 0, 0, 0, 0, 0],  # bad as a whole
            [0, 0, 0, 0, 0, 0],  # good as a whole
            [1, 1, 0, 1, 0, 0],  # good where it is marked
            [1, 0, 0, 0, 0, 0],  # not judged
        ]
    ).bool()
    mask_BT = torch.ones(5, 6).long()
    mask_BT[1, 4:] = 0
    place_BT, is_good_S = segments(marked_BT, mask_BT, torch.tensor([-1, -1, 1, 1, 0]))
    assert place_BT.tolist() == [
        [0, 1, 1, 2, 3, 4],
        [5, 5, 5, 5, -1, -1],
        [6] * 6,
        [7, 7, -1, 8, -1, -1],
        [-1] * 6,
    ]
    assert is_good_S.tolist() == [True, False, True, False, True, False, True, True, True]


# ---- as TRL has them -----------------------------------------------------------------------------
# The formulas of TRL 1.16 (trl/trainer/dpo_trainer.py, kto_trainer.py and
# trl/experimental/{cpo,orpo}), written for batches of [better, worse] rows of equal numbers.


def trl_losses(made, beta: float) -> dict[str, float]:
    _, batch, logprobs_BT = made
    mask_BT = batch.response_mask_BT
    sums_B, refs_B, counts_B = logprobs_BT.sum(1), batch.ref_logprobs_BT.sum(1), mask_BT.sum(1)
    w, v = batch.better_N, batch.worse_N
    ratio_w, ratio_v = (sums_B - refs_B)[w], (sums_B - refs_B)[v]
    delta = ratio_w - ratio_v
    mean_w, mean_v = (sums_B / counts_B)[w], (sums_B / counts_B)[v]
    nll = -logprobs_BT[w].sum() / mask_BT[w].sum()
    odds = mean_w - mean_v - (torch.log1p(-mean_w.exp()) - torch.log1p(-mean_v.exp()))
    kto = torch.cat(
        [1 - (beta * (ratio_w - 0.2)).sigmoid(), 1 - (beta * (0.2 - ratio_v)).sigmoid()]
    )
    means = {
        "sigmoid": -logsigmoid(beta * delta),
        "hinge": torch.relu(1 - beta * delta),
        "robust": (-0.9 * logsigmoid(beta * delta) + 0.1 * logsigmoid(-beta * delta)) / 0.8,
        "ipo_norm": (ratio_w / counts_B[w] - ratio_v / counts_B[v] - 1 / (2 * beta)) ** 2,
        "apo_zero": 1 - (beta * ratio_w).sigmoid() + (beta * ratio_v).sigmoid(),
        "apo_down": (beta * ratio_w).sigmoid() + 1 - (beta * delta).sigmoid(),
        "simpo": -logsigmoid(beta * (mean_w - mean_v - 0.5 / beta)),
        "cpo": -logsigmoid(beta * (sums_B[w] - sums_B[v])) + nll,
        "orpo": nll - beta * logsigmoid(odds),
        "kto": kto,
        "sft": nll,
    }
    return {name: float(value.mean()) for name, value in means.items()}


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_losses_are_those_of_trl(kind):
    made = batch_of(kind, comparisons=pairs())
    for name, expected in trl_losses(made, 0.3).items():
        settings = {"loss": name, "kl": 0.2}
        if name == "robust":
            settings["label_smoothing"] = 0.1
        if name != "sft":
            settings["beta"] = 0.3
        assert step_loss(made, **settings) == pytest.approx(expected, rel=1e-9), name


def test_the_imitation_term_is_cross_entropy():
    """As PyTorch has it, over all tokens of the better answers at once."""
    logits_NTV = torch.randn(5, 12, 7, generator=torch.Generator().manual_seed(1)).double()
    rows, batch, _ = batch_of(comparisons=pairs())
    width = batch.response_ids_BT.shape[1]
    ids_BT = batch.response_ids_BT % 7
    logprobs_BT = torch.zeros(10, width).double()
    better = batch.better_N
    log_softmax = logits_NTV[:, :width].log_softmax(-1)
    logprobs_BT[better] = log_softmax.gather(-1, ids_BT[better][..., None])[..., 0]
    labels = ids_BT[better].masked_fill(batch.response_mask_BT[better] == 0, -100)
    expected = cross_entropy(logits_NTV[:, :width].flatten(0, 1), labels.flatten())
    assert step_loss((rows, batch, logprobs_BT), loss="sft") == pytest.approx(float(expected))


# ---- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"loss": []}, "is empty"),
        ({"loss": ["sigmoid", "sigmoid"]}, "names a loss twice"),
        ({"loss": ["sigmoid", "sft"], "loss_weights": [1.0]}, "1 weights for 2 losses"),
        ({"loss": "kto", "label_smoothing": 0.1}, "only the losses sigmoid, robust, simpo, cpo"),
        ({"loss": "sigmoid", "margin": 1.0}, "only the losses simpo"),
        ({"loss": "sft", "beta": 0.3}, "only the losses sigmoid, robust, hinge"),
        ({"loss": "unlikelihood", "span_weight": 2.0}, "weighs no tokens"),
        ({"loss": "simpo", "reference": {"sync_every": 5}}, "this dpo.loss has none"),
        ({"reference": {"mixup": 0.5}}, "sync_every is null"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        DPOSettings(**settings)


def test_a_reference_that_moves_needs_trained_weights_of_its_own(tmp_path):
    lora = {"r": 2}
    with pytest.raises(UserError, match="the policy without its adapters, which cannot move"):
        config(tmp_path, dpo__reference={"sync_every": 5}, model__lora=lora)
