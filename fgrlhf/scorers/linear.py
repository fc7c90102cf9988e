"""A linear text scorer: logistic regression on TF-IDF features of words.

    p(text) = sigmoid(w . x(text) + b)

x(text) is the L2-normalised TF-IDF vector of the text. The scorer reads thousands of texts in a
second on a CPU and is a strong baseline for judgements that depend on words. `fit_linear_scorer`
trains it. Its folder contains

    linear_scorer.json          vocabulary, and facts about its training
    linear_scorer.safetensors   idf, weights and bias

No file is a pickle: loading runs no code of the folder.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import AfterValidator, Field
from safetensors.numpy import load_file, save_file
from scipy.special import expit
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.files import give_weights_usual_access, write_json
from fgrlhf.base.records import Record, read_record
from fgrlhf.configs.strict import Count, Positive
from fgrlhf.text_types import Prompt

SPEC_FILE = "linear_scorer.json"
WEIGHTS_FILE = "linear_scorer.safetensors"

MIN_TEXTS = 2  # texts that a word must occur in to be a feature
MOST_WORDS = 50_000  # features; the most frequent words are kept
INVERSE_L2 = 2.0  # C of scikit-learn: larger values fit the training texts more closely
INVERSE_L2_TRIED = (1.0, 2.0, 5.0, 10.0, 20.0)  # if there are held-out texts to choose by


def _words(vocabulary: list[str]) -> list[str]:
    if not vocabulary or len(set(vocabulary)) < len(vocabulary):
        raise ValueError("is empty or has a word twice")
    return vocabulary


class LinearScorerSpec(Record, extra="forbid"):
    """The content of `linear_scorer.json`."""

    label: str = Field(description="the scorer gives the probability of this label")
    vocabulary: Annotated[list[str], AfterValidator(_words)] = Field(
        description="the words, in the order of the weights"
    )
    texts: Count = Field(description="number of texts it was trained on")
    inverse_l2: Positive = Field(description="C of the penalty in scikit-learn")
    auc: float | None = Field(description="area under the ROC curve on held-out texts")


@dataclass(frozen=True)
class LinearScorer:
    """The probability of one label, from the words of a text. It reads no prompt.

    Args:
      spec: vocabulary and label.
      idf_F: inverse document frequency of each word.
      weights_F: weight of each word.
      bias: log-odds of a text without any known word.
    """

    spec: LinearScorerSpec
    idf_F: np.ndarray
    weights_F: np.ndarray
    bias: float

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
        """The probability of each text: `TextScorer`."""
        return self.probabilities(texts)

    def probabilities(self, texts: Sequence[str]) -> list[float]:
        """The probability of each text: sigmoid(w . x + b)."""
        if not texts:
            return []
        log_odds_N = self._vectorizer.transform(texts) @ self.weights_F + self.bias
        return expit(log_odds_N).tolist()

    @cached_property
    def _vectorizer(self) -> TfidfVectorizer:
        vectorizer = _new_vectorizer(self.spec.vocabulary)
        vectorizer.idf_ = self.idf_F
        return vectorizer

    def save(self, folder: str | Path) -> None:
        """Write the folder. The JSON file, without which it cannot be loaded, is written last."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / SPEC_FILE).unlink(missing_ok=True)
        tensors = {"idf": self.idf_F, "weights": self.weights_F, "bias": np.array([self.bias])}
        save_file(tensors, folder / WEIGHTS_FILE)
        give_weights_usual_access(folder)
        write_json(folder / SPEC_FILE, self.spec.model_dump())

    @classmethod
    def load(cls, folder: str | Path) -> "LinearScorer":
        """Read a folder that `save` wrote.

        Raises:
          UserError: a file is missing or damaged, or the two files do not fit together.
        """
        folder = Path(folder)
        path = folder / SPEC_FILE
        if not path.is_file():
            raise UserError(
                f"{folder} has no {SPEC_FILE}, so it is not a linear scorer: give the folder of"
                " one, or train one first"
            )
        way_out = "Restore it, or train the scorer again"
        spec = read_record(path, LinearScorerSpec, "used as a linear scorer", way_out)
        try:
            tensors = load_file(folder / WEIGHTS_FILE)
        except Exception as error:  # the file can contain anything
            raise UserError(
                f"{folder / WEIGHTS_FILE} cannot be read: {shorten(error)}. Restore it, or train"
                " the scorer again"
            ) from None
        problem = _problem(spec, tensors)
        if problem is not None:
            raise UserError(
                f"{folder} is a damaged linear scorer: {problem}. Restore it, or train it again"
            )
        return cls(spec, tensors["idf"], tensors["weights"], float(tensors["bias"][0]))


def _problem(spec: LinearScorerSpec, tensors: dict[str, np.ndarray]) -> str | None:
    """Why the tensors are not those that the spec describes; None if they are."""
    words = len(spec.vocabulary)
    for name, shape in {"idf": (words,), "weights": (words,), "bias": (1,)}.items():
        tensor = tensors.get(name)
        if tensor is None:
            return f"the tensor `{name}` is missing"
        if tensor.shape != shape:
            return f"the tensor `{name}` has the shape {tensor.shape}, expected {shape}"
        if tensor.dtype != np.float64:
            return f"the tensor `{name}` has the type {tensor.dtype}, expected float64"
        if not np.isfinite(tensor).all():
            return f"the tensor `{name}` has numbers that are not finite"
    return None


def _new_vectorizer(vocabulary: Sequence[str] | None = None) -> TfidfVectorizer:
    """The extractor of TF-IDF features; with a vocabulary, of exactly these words."""
    if vocabulary is not None:
        return TfidfVectorizer(sublinear_tf=True, vocabulary=vocabulary)
    return TfidfVectorizer(sublinear_tf=True, min_df=MIN_TEXTS, max_features=MOST_WORDS)


def fit_linear_scorer(
    texts: Sequence[str],
    is_positive: Sequence[bool],
    label: str,
    held_out: tuple[Sequence[str], Sequence[bool]] | None = None,
) -> LinearScorer:
    """Fit logistic regression with an L2 penalty on TF-IDF features.

    Args:
      texts, is_positive: the training data.
      label: name of the positive class.
      held_out: texts and classes that choose the strength of the penalty, by the smallest
        -mean log p(class), and on which the AUC is measured. None, or all of one class: the penalty
        is 1 / INVERSE_L2, and the AUC is unknown.
    Raises:
      UserError: the texts are all of one class, or have no word in common.
    """
    classes = np.asarray(is_positive, dtype=bool)
    if classes.all() or not classes.any():
        raise UserError(
            f"all {len(classes)} texts are of one class, so there is nothing to learn: texts with"
            f" and without `{label}` are needed"
        )
    vectorizer = _new_vectorizer()
    try:
        features_NF = vectorizer.fit_transform(texts)
    except ValueError:
        raise UserError(
            f"no word occurs in {MIN_TEXTS} of the {len(texts)} texts, so there is nothing to learn"
            " from: give more texts"
        ) from None

    def fitted(inverse_l2: float) -> LinearScorer:
        model = LogisticRegression(C=inverse_l2, max_iter=1000)
        model.fit(features_NF, classes)
        spec = LinearScorerSpec(
            label=label,
            vocabulary=vectorizer.get_feature_names_out().tolist(),
            texts=len(texts),
            inverse_l2=inverse_l2,
            auc=None,
        )
        return LinearScorer(
            spec,
            idf_F=np.asarray(vectorizer.idf_, dtype=np.float64),
            weights_F=np.asarray(model.coef_, dtype=np.float64)[0],
            bias=float(np.asarray(model.intercept_)[0]),
        )

    if held_out is None or len(set(held_out[1])) < 2:
        return fitted(INVERSE_L2)
    held_out_texts, held_out_classes = held_out
    scorers = [fitted(inverse_l2) for inverse_l2 in INVERSE_L2_TRIED]
    losses = []
    for scorer in scorers:
        losses.append(log_loss(held_out_classes, scorer.probabilities(held_out_texts)))
    best = scorers[int(np.argmin(losses))]
    auc = area_under_roc(best, held_out_texts, held_out_classes)
    return replace(best, spec=best.spec.model_copy(update={"auc": auc}))


def area_under_roc(
    scorer: LinearScorer, texts: Sequence[str], is_positive: Sequence[bool]
) -> float | None:
    """The probability that a positive text scores higher than a negative one.

    None if there are no texts of one of the classes.
    """
    if len(set(is_positive)) < 2:
        return None
    return float(roc_auc_score(np.asarray(is_positive), scorer.probabilities(texts)))
