"""Which items to annotate next: values of items by models' uncertainty, disagreement or drift.

All functions are pure. A greater value means that feedback on the item is expected to teach more.
`interface_html/select.py` is the program.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline

FOLDS = 5


def entropy(probabilities_SC: np.ndarray) -> np.ndarray:
    """Entropy of each distribution over labels, as a share of the largest possible one.

        H(p) = -sum_l p_l log p_l / log C

    Args:
      probabilities_SC: of C >= 2 labels for each of S segments.
    Returns:
      H_S, from 0 (certain) to 1 (all labels are equally probable).
    """
    p_SC = np.asarray(probabilities_SC, dtype=np.float64)
    logs_SC = np.log(p_SC, out=np.zeros_like(p_SC), where=p_SC > 0)  # 0 log 0 = 0
    return -(p_SC * logs_SC).sum(-1) / np.log(p_SC.shape[-1])


def uncertainty(probabilities_SC: np.ndarray) -> float:
    """Mean entropy of a text's segments; 0 without segments. Lewis and Gale (1994)."""
    if len(probabilities_SC) == 0:
        return 0.0
    return float(entropy(probabilities_SC).mean())


def pair_uncertainty(scores: Sequence[float]) -> float:
    """Mean entropy of the preferences between all pairs of responses to a prompt.

    P(i over j) = sigmoid(s_i - s_j), with the raw scores of a pair model.
    """
    scores_N = np.asarray(scores, dtype=np.float64)
    first, second = np.triu_indices(len(scores_N), k=1)
    if len(first) == 0:
        return 0.0
    p_P = 1 / (1 + np.exp(-np.abs(scores_N[first] - scores_N[second])))
    return uncertainty(np.stack([p_P, 1 - p_P], axis=-1))


def disagreement(probabilities_MSC: np.ndarray) -> float:
    """Mutual information of a segment's label and the model, averaged over segments.

        I = H(mean_m p_m) - mean_m H(p_m)

    Unlike `uncertainty`, it is 0 where all models are equally uncertain, for instance because
    annotators contradict each other there. Houlsby et al. (2011), BALD.

    Args:
      probabilities_MSC: of M models for the same S segments and C labels.
    """
    p_MSC = np.asarray(probabilities_MSC, dtype=np.float64)
    if p_MSC.shape[1] == 0:
        return 0.0
    information_S = entropy(p_MSC.mean(0)) - entropy(p_MSC).mean(0)
    return float(np.maximum(information_S, 0).mean())  # rounding can make it slightly negative


def drift(texts: Sequence[str], known: Sequence[str], seed: int) -> tuple[np.ndarray, float]:
    """How little each text is like the known ones: P(it is not one of them), and an AUC.

    A logistic regression on TF-IDF weights tells the texts from the known ones. Each probability
    comes from a model that was fitted without that text (five folds).

    Args:
      texts: the texts to choose from.
      known: texts with feedback.
    Returns:
      The probability of each text, and the AUC of telling both groups apart: .5 if the policy's
      texts have not changed since the feedback, 1 if they have changed entirely.
    Raises:
      ValueError: a group has fewer than five texts.
    """
    if min(len(texts), len(known)) < FOLDS:
        raise ValueError(f"both groups need {FOLDS} texts, there are {len(texts)} and {len(known)}")
    is_new = np.array([1] * len(texts) + [0] * len(known))
    model = make_pipeline(
        TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"\S+", sublinear_tf=True),
        LogisticRegression(class_weight="balanced", C=10.0),
    )
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    predicted: Any = cross_val_predict(
        model, [*texts, *known], is_new, cv=folds, method="predict_proba"
    )
    p_new = predicted[:, 1]
    return p_new[: len(texts)], float(roc_auc_score(is_new, p_new))


def best(values: Sequence[float], n: int, seed: int) -> list[int]:
    """Indices of the n greatest values, the greatest first. Equal values are in random order."""
    shuffled = np.random.default_rng(seed).permutation(len(values))
    order = sorted(shuffled.tolist(), key=lambda i: -values[i])
    return order[:n]
