"""How well a reward model finds the marked spans of judged translations.

    python -m tasks.translation.reward_modeling.evaluate_spans ckpt=FOLDER source=judged_dev.jsonl
        output=FILE.json

Words are compared, and spans: runs of neighbouring words with the same severity. A predicted span
is right if the same run is marked, with the same severity in `exact/...`, with any in `place/...`.
In `mpp/...` and `mpp place/...` a span that overlaps a marked one earns the share that overlaps, in
characters (`mpp_credits` of fgrlhf/data/agreement/matching.py), again with the same severity and
with any. Precision, recall and F1 are pooled over all rows. Words that no rater has judged are left
out.

The baselines know no text: `none` marks nothing, as most words have no error, and `all` marks every
word. The first one's F1 is 0.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json
from fgrlhf.cli.command_line import run_program
from fgrlhf.configs.strict import FilePath, StrictModel
from fgrlhf.data.agreement.matching import any_type, mpp_credits, same_type
from fgrlhf.data.judgements import SPAN_ASPECT, Judgement
from fgrlhf.data.read import check_not_input
from fgrlhf.reward_models.loading import load_segment_classifier
from fgrlhf.reward_models.scoring import SegmentScorer
from fgrlhf.reward_utils import load_segmenter
from reward_modeling.segment_files import IGNORE, OK
from tasks.translation.mqm import MAJOR, RatedTranslation, read_rated
from tasks.translation.reward_modeling.create_rm_files import LEVEL, severity_tags
from tasks.translation.source import source_words

SHOWN = ("words/f1", "place/f1", "exact/f1", "mpp/f1")  # of the results
Run = tuple[int, int, str]  # half-open places of words, tag


class EvaluateSpansSettings(StrictModel):
    """The reward model and the judgements."""

    ckpt: FilePath = Field(description="folder of a reward model of words")
    source: FilePath = Field(description="file of judged translations")
    output: FilePath = Field(description="JSON file of the results")


def runs(tags: Sequence[str]) -> set[Run]:
    """The longest runs of words with the same severity."""
    found = set()
    start = 0
    for place in range(1, len(tags) + 1):
        if place == len(tags) or tags[place] != tags[start]:
            if tags[start] not in (OK, IGNORE):
                found.add((start, place, tags[start]))
            start = place
    return found


def f1(hits: int, predicted: int, actual: int) -> dict[str, float]:
    """Precision, recall and F1 = 2 hits / (predicted + actual); 0 if a denominator is 0."""
    return {
        "precision": hits / predicted if predicted else 0.0,
        "recall": hits / actual if actual else 0.0,
        "f1": 2 * hits / (predicted + actual) if predicted + actual else 0.0,
    }


def span_results(
    predicted: Sequence[Sequence[str]], actual: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Results over the rows.

    Args:
      predicted, actual: the tag of every word, for each row. Words whose actual tag is `Ignore` are
        left out.
    """
    hits: Counter[str] = Counter()
    n_predicted: Counter[str] = Counter()
    n_actual: Counter[str] = Counter()
    for guesses, tags in zip(predicted, actual, strict=True):
        predicted_runs = runs(_on_judged_words(guesses, tags))
        actual_runs = runs(tags)
        sets = {
            "words": (_words(predicted_runs), _words(actual_runs)),
            "place": (_places(predicted_runs), _places(actual_runs)),
            "exact": (predicted_runs, actual_runs),
        }
        for name, (predicted_set, actual_set) in sets.items():
            hits[name] += len(predicted_set & actual_set)
            n_predicted[name] += len(predicted_set)
            n_actual[name] += len(actual_set)
    results = {}
    for name in ("words", "place", "exact"):
        numbers = f1(hits[name], n_predicted[name], n_actual[name])
        results |= {f"{name}/{key}": value for key, value in numbers.items()}
    return results


def _on_judged_words(guesses: Sequence[str], tags: Sequence[str]) -> list[str]:
    """The predicted tags, with `Ignore` on the words whose actual tag it is."""
    return [IGNORE if tag == IGNORE else guess for guess, tag in zip(guesses, tags)]


def mpp_results(
    predicted: Sequence[Sequence[str]],
    actual: Sequence[Sequence[str]],
    places: Sequence[Sequence[tuple[int, int]]],
) -> dict[str, float]:
    """Precision, recall and F by match with partial overlap and partial credit, over the rows.

    F is the harmonic mean of precision and recall, 0 if both are 0.

    Args:
      predicted, actual: the tag of every word, for each row, as in `span_results`.
      places: the characters [start, end) of every word, for each row.
    """
    results = {}
    for name, fits in (("mpp place", any_type), ("mpp", same_type)):
        credit_of_predicted = credit_of_actual = 0.0
        n_predicted = n_actual = 0
        for guesses, tags, words in zip(predicted, actual, places, strict=True):
            predicted_marks = _marks(_on_judged_words(guesses, tags), words)
            actual_marks = _marks(tags, words)
            of_predicted, of_actual = mpp_credits(predicted_marks, actual_marks, fits)
            credit_of_predicted += of_predicted
            credit_of_actual += of_actual
            n_predicted += len(predicted_marks)
            n_actual += len(actual_marks)
        precision = credit_of_predicted / n_predicted if n_predicted else 0.0
        recall = credit_of_actual / n_actual if n_actual else 0.0
        results[f"{name}/precision"] = precision
        results[f"{name}/recall"] = recall
        total = precision + recall
        results[f"{name}/f1"] = 2 * precision * recall / total if total else 0.0
    return results


def _marks(tags: Sequence[str], words: Sequence[tuple[int, int]]) -> list[Judgement]:
    """The runs as spans of characters, whose label is the severity."""
    marks = []
    for start, end, tag in sorted(runs(tags)):
        marks.append(Judgement(SPAN_ASPECT, tag, words[start][0], words[end - 1][1]))
    return marks


def _words(spans: set[Run]) -> set[int]:
    """The places of the words in these runs."""
    return {place for start, end, _ in spans for place in range(start, end)}


def _places(spans: set[Run]) -> set[tuple[int, int]]:
    """The runs without their tags."""
    return {(start, end) for start, end, _ in spans}


def actual_tags(judgement: RatedTranslation) -> list[str]:
    return severity_tags(judgement.response, judgement.errors, judgement.is_capped)


def predicted_tags(
    scorer: SegmentScorer, judgements: Sequence[RatedTranslation]
) -> list[list[str]]:
    """The most probable tag of every word; a word that the model could not read has no error."""
    prompts = [judgement.prompt for judgement in judgements]
    texts = [judgement.response for judgement in judgements]
    tags = []
    for labelled in scorer.score(prompts, texts):
        names = [labelled.labels[i] for i in labelled.probabilities_SC.argmax(1).tolist()]
        tags.append([name if read else OK for name, read in zip(names, labelled.judged)])
    return tags


def evaluate(settings: EvaluateSpansSettings) -> dict[str, dict[str, float]]:
    """Results of the model and of the baselines; also written to `output` and printed.

    Raises:
      UserError: the model judges other segments than words, or the file is malformed or would be
        replaced by the results.
    """
    check_not_input(settings.source, settings.output)
    scorer = load_segment_classifier(settings.ckpt, source_words)
    if scorer.spec.level != LEVEL:
        raise UserError(
            f"{settings.ckpt} judges each {scorer.spec.level}, but spans are made of words: give a"
            f" reward model of the level {LEVEL}"
        )
    judgements = read_rated(settings.source)
    actual = [actual_tags(judgement) for judgement in judgements]
    segmenter = load_segmenter()
    places = [segmenter.segments(judgement.response, LEVEL) for judgement in judgements]
    predictions = {
        "model": predicted_tags(scorer, judgements),
        "none": [[OK] * len(tags) for tags in actual],
        "all": [[MAJOR] * len(tags) for tags in actual],
    }
    results = {}
    for name, tags in predictions.items():
        results[name] = span_results(tags, actual) | mpp_results(tags, actual, places)
    write_json(Path(settings.output), results)
    for name, values in results.items():
        shown = [f"{key} {values[key]:.3f}" for key in SHOWN]
        print(f"{name:<6} {', '.join(shown)}", flush=True)
    return results


if __name__ == "__main__":
    run_program(evaluate, EvaluateSpansSettings)
