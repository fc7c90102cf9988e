"""The values of `dpo.loss`: which quantities of a batch a loss compares, and over what its mean is.

A loss is a sum of terms. A term is the mean of one pure loss over the units of a step: its pairs,
its judged answers, or the tokens or segments of these. Micro-batches and processes share the units
of a step, so the trainer divides their sums by the number of units in the whole step.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fgrlhf.algorithms import preference_losses as losses
from fgrlhf.data.token_comparisons import BAD, GOOD, UNKNOWN, ComparisonBatch, TokenComparison
from fgrlhf.runs.dpo_config import DPOSettings

PAIRS = "pairs"
ANSWERS = "judged answers"
GOOD_ANSWERS = "good answers"
BAD_ANSWERS = "bad answers"
GOOD_TOKENS = "tokens of good answers"
WRONG_TOKENS = "marked tokens of bad answers"
SEGMENTS = "segments of judged answers"


@dataclass(frozen=True)
class Scored:
    """A batch, what the policy gives its tokens, and the divergence of the policy.

    Args:
      kl: of the policy from the reference on answers to other prompts, per answer; 0 or more.
      token_kl: the same per token.
    """

    batch: ComparisonBatch
    logprobs_BT: Tensor
    settings: DPOSettings
    kl: Tensor
    token_kl: Tensor

    @property
    def token_weights(self) -> Tensor:
        mask_BT = self.batch.response_mask_BT.to(self.logprobs_BT.dtype)
        return token_weights(self.batch.marked_BT, mask_BT, self.settings)

    def answer_ratios(self, mean: bool = False, reference: bool = True) -> Tensor:
        """The h of every answer, or without a reference its l.

        Args:
          mean: whether it is divided by the sum of the weights of the answer's tokens.
        """
        ref_BT = self.batch.ref_logprobs_BT
        if not reference:
            ref_BT = torch.zeros_like(ref_BT)
        weights_BT = self.token_weights
        ratios_B = losses.weighted_log_ratio(self.logprobs_BT, ref_BT, weights_BT)
        return ratios_B / weights_BT.sum(1) if mean else ratios_B

    def of_pairs(self, mean: bool = False, reference: bool = True) -> tuple[Tensor, Tensor]:
        """(better_N, worse_N): `answer_ratios` of the two answers of each pair."""
        ratios_B = self.answer_ratios(mean, reference)
        return ratios_B[self.batch.better_N], ratios_B[self.batch.worse_N]

    def margins(self, mean: bool = False, reference: bool = True) -> Tensor:
        better_N, worse_N = self.of_pairs(mean, reference)
        return better_N - worse_N


def token_weights(marked_BT: Tensor, mask_BT: Tensor, settings: DPOSettings) -> Tensor:
    """w_BT: `span_weight` for marked tokens, `unmarked_weight` for the others; 0 on padding.

    In answers without a mark it is 1, since nothing tells their parts apart. An `unmarked_weight`
    of 0 is Mask-DPO (Gu et al. 2025, arXiv 2503.02846), with the marks of any annotator in place of
    judged sentences.
    """
    has_marks_B1 = marked_BT.any(1, keepdim=True)
    others_BT = torch.where(has_marks_B1, settings.unmarked_weight, 1.0).expand_as(mask_BT)
    weights_BT = torch.where(marked_BT, settings.span_weight, others_BT)
    return weights_BT.to(mask_BT.dtype) * mask_BT


# ---- terms ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Term:
    """The mean of a loss over its units.

    Args:
      losses: scored batch -> the loss of each of its units.
      unit: what these are; `count_units` counts them.
      mean: whether the score of an answer is divided by its number of tokens.
    """

    losses: Callable[[Scored], Tensor]
    unit: str
    mean: bool = False


def _nll(scored: Scored) -> Tensor:
    """-log pi(y_t) of the tokens of good answers: imitation, as in SFT."""
    good_B1 = (scored.batch.labels_B == GOOD)[:, None]
    return -scored.logprobs_BT[scored.batch.response_mask_BT.bool() & good_B1]


def _unlikelihood(scored: Scored) -> Tensor:
    bad_B1 = (scored.batch.labels_B == BAD)[:, None]
    return losses.unlikelihood_loss(scored.logprobs_BT[scored.batch.marked_BT & bad_B1])


def _kto(scored: Scored) -> Tensor:
    labels_B = scored.batch.labels_B
    judged_B = labels_B != UNKNOWN
    ratios_M = scored.answer_ratios()[judged_B]
    return _kto_of(ratios_M, labels_B[judged_B] == GOOD, scored.kl, scored.settings)


def segments(marked_BT: Tensor, mask_BT: Tensor, labels_B: Tensor) -> tuple[Tensor, Tensor]:
    """The segments of judged answers that are good or bad throughout.

    The marks of a bad answer are its errors: their segments are bad, those between them are good.
    Without a mark the answer is bad as a whole. A good answer is good as a whole, or, if the marks
    say what is good about it, where it is marked.

    Returns:
      place_BT: the number of each token's segment, -1 for tokens that are in none.
      is_good_S: whether each segment is good.
    """
    good_B1 = (labels_B == GOOD)[:, None]
    has_marks_B1 = marked_BT.any(1, keepdim=True)
    is_good_BT = good_B1 | (has_marks_B1 & ~marked_BT)
    inside_BT = mask_BT.bool() & (labels_B != UNKNOWN)[:, None]
    inside_BT = inside_BT & (marked_BT | ~good_B1 | ~has_marks_B1)
    was_inside_BT = inside_BT.roll(1, 1)
    was_inside_BT[:, 0] = False
    starts_BT = inside_BT & (~was_inside_BT | (is_good_BT != is_good_BT.roll(1, 1)))
    place_BT = starts_BT.flatten().cumsum(0).view_as(starts_BT) - 1
    return torch.where(inside_BT, place_BT, -1), is_good_BT[starts_BT]


def _kto_spans(scored: Scored) -> Tensor:
    """KTO's loss of every segment, with the KL of as many tokens as it has."""
    batch = scored.batch
    place_BT, is_good_S = segments(batch.marked_BT, batch.response_mask_BT, batch.labels_B)
    inside_BT = place_BT >= 0
    log_ratios_BT = scored.logprobs_BT - batch.ref_logprobs_BT
    zeros_S = log_ratios_BT.new_zeros(len(is_good_S))
    ratios_S = zeros_S.index_add(0, place_BT[inside_BT], log_ratios_BT[inside_BT])
    lengths_S = zeros_S.index_add(0, place_BT[inside_BT], torch.ones_like(log_ratios_BT[inside_BT]))
    return _kto_of(ratios_S, is_good_S, scored.token_kl * lengths_S, scored.settings)


def _kto_of(ratios_M: Tensor, is_good_M: Tensor, kl: Tensor, settings: DPOSettings) -> Tensor:
    weights = (settings.desirable_weight, settings.undesirable_weight)
    return losses.kto_loss(ratios_M, is_good_M, kl, settings.beta, *weights)


def _sigmoid(scored: Scored) -> Tensor:
    settings = scored.settings
    return losses.sigmoid_pair_loss(scored.margins(), settings.beta, settings.label_smoothing)


def _robust(scored: Scored) -> Tensor:
    settings = scored.settings
    return losses.robust_pair_loss(scored.margins(), settings.beta, settings.label_smoothing)


def _hinge(scored: Scored) -> Tensor:
    return losses.hinge_pair_loss(scored.margins(), scored.settings.beta)


def _ipo(scored: Scored) -> Tensor:
    return losses.ipo_pair_loss(scored.margins(), scored.settings.beta)


def _ipo_norm(scored: Scored) -> Tensor:
    return losses.ipo_pair_loss(scored.margins(mean=True), scored.settings.beta)


def _apo_zero(scored: Scored) -> Tensor:
    return losses.apo_zero_loss(*scored.of_pairs(), scored.settings.beta)


def _apo_down(scored: Scored) -> Tensor:
    return losses.apo_down_loss(*scored.of_pairs(), scored.settings.beta)


def _simpo(scored: Scored) -> Tensor:
    """The sigmoid loss of beta (l(better) / |better| - l(worse) / |worse|) - gamma.

    SimPO (Meng et al. 2024, arXiv 2405.14734, eq. 6); gamma is `dpo.margin`.
    """
    settings = scored.settings
    margins_N = scored.margins(mean=True, reference=False) - settings.margin / settings.beta
    return losses.sigmoid_pair_loss(margins_N, settings.beta, settings.label_smoothing)


def _contrast(scored: Scored) -> Tensor:
    """The sigmoid loss of beta (l(better) - l(worse)), which compares with no reference."""
    settings = scored.settings
    margins_N = scored.margins(reference=False)
    return losses.sigmoid_pair_loss(margins_N, settings.beta, settings.label_smoothing)


def _odds_ratio(scored: Scored) -> Tensor:
    """The loss of the odds times beta, which is the lambda of ORPO's paper, as in TRL."""
    return scored.settings.beta * losses.odds_ratio_loss(
        *scored.of_pairs(mean=True, reference=False)
    )


NLL = Term(_nll, GOOD_TOKENS)
TERMS: dict[str, tuple[Term, ...]] = {
    "sigmoid": (Term(_sigmoid, PAIRS),),
    "robust": (Term(_robust, PAIRS),),
    "hinge": (Term(_hinge, PAIRS),),
    "ipo": (Term(_ipo, PAIRS),),
    "ipo_norm": (Term(_ipo_norm, PAIRS, mean=True),),
    "apo_zero": (Term(_apo_zero, PAIRS),),
    "apo_down": (Term(_apo_down, PAIRS),),
    "simpo": (Term(_simpo, PAIRS, mean=True),),
    # CPO (Xu et al. 2024, arXiv 2401.08417): L_prefer + L_NLL
    "cpo": (Term(_contrast, PAIRS), NLL),
    # ORPO (Hong et al. 2024, arXiv 2403.07691, eq. 6): L_SFT + lambda L_OR
    "orpo": (Term(_odds_ratio, PAIRS, mean=True), NLL),
    "kto": (Term(_kto, ANSWERS),),
    "kto_spans": (Term(_kto_spans, SEGMENTS),),
    "unlikelihood": (Term(_unlikelihood, WRONG_TOKENS),),
    "sft": (NLL,),
}
WITH_KL = ("kto", "kto_spans")


def units_of(loss: str) -> set[str]:
    """The units over which the terms of a loss are means."""
    return {term.unit for term in TERMS[loss]}


def count_units(comparison: TokenComparison) -> Counter[str]:
    """How many units of each kind a comparison has."""
    counts: Counter[str] = Counter({PAIRS: len(comparison.pairs)})
    for ids, marked_T, label in zip(comparison.answer_ids, comparison.marked, comparison.labels):
        if label is None:
            continue
        counts[ANSWERS] += 1
        counts[GOOD_ANSWERS if label else BAD_ANSWERS] += 1
        counts[GOOD_TOKENS if label else WRONG_TOKENS] += len(ids) if label else sum(marked_T)
        marked_1T = torch.tensor([marked_T], dtype=torch.bool)
        labels_1 = torch.tensor([GOOD if label else BAD])
        _, is_good_S = segments(marked_1T, torch.ones_like(marked_1T), labels_1)
        counts[SEGMENTS] += len(is_good_S)
    return counts


def loss_sums(scored: Scored) -> list[tuple[str, float, str, Tensor]]:
    """(loss, its weight, unit, sum of the losses of the batch's units) of each term."""
    sums = []
    for name, weight in scored.settings.losses.items():
        for term in TERMS[name]:
            sums.append((name, weight, term.unit, term.losses(scored).sum()))
    return sums


def is_mean(settings: DPOSettings) -> bool:
    """Whether the first loss of pairs compares means over tokens; its margins are logged."""
    for name in settings.losses:
        for term in TERMS[name]:
            if term.unit == PAIRS:
                return term.mean
    return False
