"""Linear baselines of a reward model: what ten hand-made features predict without a network.

A trained reward model should beat them on the rows that it is evaluated on. Three baselines are
fitted on the training rows (on `LINEAR_ROWS` at even distances, if there are more), in seconds, and
a fourth one for comparisons:

- majority: the most frequent label
- length: of comparisons, logistic regression on the number of words
- features: logistic regression on the ten features of fgrlhf/reward_models/text_features.py
- tfidf: logistic regression on TF-IDF weights of words and pairs of words

For comparisons, the input of the regression is the difference of two responses' features, without
an intercept (Bradley and Terry 1952):

    P(response 1 is better) = sigmoid(w . (x_1 - x_2))

If every row lists the better response in the same place, the place alone gives the label. Every
second pair is then swapped.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, StandardScaler

from fgrlhf.reward_models.prefix import RMText
from fgrlhf.reward_models.text_features import segment_features
from fgrlhf.words import count_words
from reward_modeling.judged import LabelledText, Predictions, difference, prompts_of

NAMES = {
    "majority": "the most frequent label",
    "length": "the number of words alone",
    "features": "a linear model of ten hand-made features",
    "tfidf": "a linear model of TF-IDF weights",
}
MOST_STEPS = 2_000  # of the optimiser, which stops when it has converged
LINEAR_ROWS = 50_000  # that linear models are fitted on: the texts of all might not fit into memory

Baselines = dict[str, Predictions]  # by name, what each predicts of the dev cases


def segment_baselines(
    train: Sequence[LabelledText],
    dev: Sequence[LabelledText],
    prompts: Sequence[int] | None = None,
) -> Baselines:
    """The predictions of every baseline for the judged segments of the dev rows.

    Args:
      train, dev: responses, and for each of their segments whether it has an error; None if it is
        not judged.
      prompts: the number of each dev row's prompt; None: by the words before the response.
    """
    features, texts, wrong = _segments(train)
    dev_features, dev_texts, dev_wrong = _segments(dev)
    share = wrong.mean()
    predicted = {"majority": np.full(len(dev_wrong), float(share))}
    if share not in (0, 1):
        predicted["features"] = _predict(features, wrong, dev_features)
        vectorizer = _vectorizer()
        weights = vectorizer.fit_transform(texts)
        predicted["tfidf"] = _predict(weights, wrong, vectorizer.transform(dev_texts))
    judged = [sum(label is not None for label in labels) for _, labels in dev]
    prompts_N = np.repeat(prompts or prompts_of([text.prefix for text, _ in dev]), judged)
    return {
        name: Predictions("segments", scores_N, dev_wrong, prompts_N)
        for name, scores_N in predicted.items()
    }


def pair_baselines(
    train: Sequence[tuple[Sequence[RMText], Sequence[tuple[int, int]]]],
    dev: Sequence[tuple[Sequence[RMText], Sequence[tuple[int, int]]]],
    prompts: Sequence[int] | None = None,
) -> Baselines:
    """The predictions of every baseline for the dev pairs.

    The positive class are pairs whose first response (in the order of the row) is better.

    Args:
      train, dev: the responses to a prompt, each a single segment, and (better, worse) indices.
      prompts: the number of each dev row's prompt; None: by the words before the response.
    """
    left, right, texts, first_better = _pairs(train)
    dev_left, dev_right, dev_texts, dev_first_better = _pairs(dev)
    share = float(first_better.mean())
    predicted = {"majority": np.full(len(dev_first_better), share)}
    if share not in (0, 1):
        vectorizer = _vectorizer()
        inputs: dict[str, tuple[Any, Any]] = {
            "length": (_word_counts(texts), _word_counts(dev_texts)),
            "features": (_all_features(train), _all_features(dev)),
            "tfidf": (
                sparse.csr_array(vectorizer.fit_transform(texts)),
                sparse.csr_array(vectorizer.transform(dev_texts)),
            ),
        }
        for name, (x, dev_x) in inputs.items():
            moved = x[left] - x[right]
            dev_moved = dev_x[dev_left] - dev_x[dev_right]
            predicted[name] = _predict(moved, first_better, dev_moved, intercept=False)
    prefixes = [responses[0].prefix for responses, _ in dev]
    prompts_N = np.repeat(prompts or prompts_of(prefixes), [len(pairs) for _, pairs in dev])
    return {
        name: Predictions("pairs", probabilities_N - 0.5, dev_first_better, prompts_N)
        for name, probabilities_N in predicted.items()
    }


def against(model: Predictions, baselines: Baselines) -> dict[str, dict[str, Any]]:
    """The figures of every baseline as JSON, and the difference of the accuracies.

    `difference` is the model's accuracy minus the baseline's, with its interval over prompts. A
    figure that is undefined is null.
    """
    results = {}
    for name, baseline in baselines.items():
        results[name] = baseline.numbers()
        results[name]["difference"] = difference(model, baseline).as_dict()
    return results


def comparison(model: Predictions, baselines: Baselines) -> str:
    """The baselines' numbers, and a line on whether the reward model beats them."""
    numbers = {name: baseline.numbers() for name, baseline in baselines.items()}
    others = []
    for name, figures in numbers.items():
        area = figures["auc"]
        shown = "" if area is None else f", AUC {area:.3f}"
        others.append(f"{name} accuracy {figures['accuracy']:.3f}{shown}")
    return f"baselines on dev: {', '.join(others)}\n{verdict(model, baselines)}"


def verdict(model: Predictions, baselines: Baselines) -> str:
    """Whether the reward model is more accurate than the best baseline on dev.

    It is only said to be more or less accurate if the interval of the difference excludes zero.
    """
    accuracies = {name: float(one.right.mean()) for name, one in baselines.items()}
    best = max(accuracies, key=lambda name: accuracies[name])
    if model.right.min() == baselines[best].right.min() == 1:
        return f"The model and {NAMES[best]} are right on every one of these rows"
    gain = difference(model, baselines[best])
    features = " (model.text_features=true starts from it)" if best == "features" else ""
    if gain.low > 0:
        return f"The model's accuracy is {gain} above the best of them, {NAMES[best]}"
    if gain.high < 0:
        return (
            f"This reward model is LESS accurate than {NAMES[best]}{features}: difference {gain}."
            " Train longer, on more rows, or from a better checkpoint before you use it as a reward"
        )
    return (
        f"This reward model is not distinguishable from {NAMES[best]}{features} on these rows:"
        f" difference {gain}. Judge it on more dev rows, or train it longer or on more rows,"
        " before you use it as a reward"
    )


# ---- rows ----------------------------------------------------------------------------------------


def _segments(
    rows: Sequence[tuple[RMText, Sequence[bool | None]]],
) -> tuple[np.ndarray, list[str], np.ndarray]:
    """Features, text and label of every judged segment."""
    features = []
    texts = []
    wrong = []
    for text, labels in rows:
        for segment, values, label in zip(text.segments, segment_features(text), labels):
            if label is not None:
                features.append(values)
                texts.append(" ".join(segment))
                wrong.append(label)
    return np.array(features), texts, np.array(wrong)


def _pairs(
    rows: Sequence[tuple[Sequence[RMText], Sequence[tuple[int, int]]]],
) -> tuple[list[int], list[int], list[str], np.ndarray]:
    """Indices of each pair's responses in the order of the row, all texts, and which is better.

    If the better response is always in the same place, that place alone gives the label. Every
    second pair is then in the other order.
    """
    left: list[int] = []
    right: list[int] = []
    texts: list[str] = []
    first_better: list[bool] = []
    for responses, pairs in rows:
        start = len(texts)
        for response in responses:
            words = [word for segment in response.segments for word in segment]
            texts.append(" ".join(words))
        for better, worse in pairs:
            left.append(start + min(better, worse))
            right.append(start + max(better, worse))
            first_better.append(better < worse)
    if len(set(first_better)) == 1:
        for i in range(1, len(left), 2):
            left[i], right[i] = right[i], left[i]
            first_better[i] = not first_better[i]
    return left, right, texts, np.array(first_better)


def _word_counts(texts: Sequence[str]) -> np.ndarray:
    return np.array([[count_words(text)] for text in texts])


def _all_features(
    rows: Sequence[tuple[Sequence[RMText], Sequence[tuple[int, int]]]],
) -> np.ndarray:
    return np.array([segment_features(x)[0] for responses, _ in rows for x in responses])


# ---- models --------------------------------------------------------------------------------------


def _vectorizer() -> TfidfVectorizer:
    # every sequence of characters between spaces is a word, so that any language has words
    return TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"\S+", sublinear_tf=True)


def _predict(train: Any, positive: np.ndarray, dev: Any, intercept: bool = True) -> np.ndarray:
    """P(positive) of the dev rows. The regression is deterministic."""
    scaler: Any = MaxAbsScaler() if sparse.issparse(train) else StandardScaler(with_mean=intercept)
    regression = LogisticRegression(fit_intercept=intercept, max_iter=MOST_STEPS)
    model = make_pipeline(scaler, regression)
    model.fit(train, positive)
    return model.predict_proba(dev)[:, 1]
