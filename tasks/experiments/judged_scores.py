"""The judgements of the reward models, compared with those of the oracle."""

from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
from transformers.utils import logging as transformers_logging

from fgrlhf.auc import auc
from fgrlhf.base.errors import UserError
from fgrlhf.reward_models.loading import load_reward_model
from fgrlhf.reward_models.scoring import SegmentScorer, SequenceScorer
from fgrlhf.text_types import Prompt
from reward_modeling.metrics import precision_recall_f1
from tasks.qa_feedback.data.oracle import Truth, judge
from tasks.qa_feedback.feedback import rm_prefix


def segment_metrics(
    scorer: SegmentScorer,
    prompts: Sequence[Prompt],
    texts: Sequence[str],
    wrong: Sequence[Mapping[tuple[int, int], bool]],
) -> dict:
    """Accuracy, AUC and F1 of error detection, over segments judged by both model and oracle.

    AUC and F1 are None if they are undefined, as of segments without any error.

    Args:
      scorer: the reward model.
      prompts: the prompt of each text.
      texts: the responses.
      wrong: for each text, whether a segment (its characters) has an error.
    """
    predicted = []
    true = []
    for labels, truth in zip(scorer.score(prompts, texts), wrong, strict=True):
        p_error_S = labels.probabilities_SC[:, labels.labels.index(scorer.spec.error_label)]
        for span, p_error, judged in zip(labels.spans, p_error_S.tolist(), labels.judged):
            if judged and span in truth:
                predicted.append(p_error)
                true.append(truth[span])
    if not predicted:
        raise UserError(
            "the reward model judged no segment that the oracle knows: does it use another"
            " segmenter?"
        )
    p_error = np.array(predicted)
    is_wrong = np.array(true)
    f1 = precision_recall_f1(p_error > 0.5, is_wrong)[2]
    return {
        "accuracy": float(((p_error > 0.5) == is_wrong).mean()),
        "auc": auc(p_error, is_wrong),
        "f1": f1,
        "segments": len(predicted),
    }


def pair_metrics(
    scorer: SequenceScorer, prompts: Sequence[Prompt], texts: Sequence[str], truth: Sequence[float]
) -> dict:
    """How often the better of two answers to one question scores higher.

    Equal scores count one half. Pairs that are equally good are left out; {} without any pair.
    """
    scores = scorer.score(prompts, texts).tolist()
    groups: dict[str, list[int]] = {}
    for i, prompt in enumerate(prompts):
        groups.setdefault(prompt.id, []).append(i)
    right = []
    for group in groups.values():
        for i, j in permutations(group, 2):
            if truth[i] > truth[j]:
                right.append(0.5 if scores[i] == scores[j] else float(scores[i] > scores[j]))
    if not right:
        return {}
    return {"pair_accuracy": float(np.mean(right)), "pairs": len(right)}


def relevance_errors(truth: Truth) -> dict[tuple[int, int], bool]:
    return {(s.start, s.end): s.label != "ok" for s in truth.subsentences}


def factuality_errors(truth: Truth) -> dict[tuple[int, int], bool]:
    return {(s.start, s.end): not s.supported for s in truth.sentences}


TRUTH: dict[str, Callable[[Truth], float | dict]] = {
    "relevance": relevance_errors,
    "factuality": factuality_errors,
    "completeness": lambda truth: truth.completeness,
    "preference": lambda truth: truth.gold,
}


def reward_models_against_oracle(
    folders: Mapping[str, Path], prompts: Sequence[Prompt], rows: Sequence[Mapping]
) -> dict[str, dict]:
    """Score sampled answers with every reward model; compare the scores with the oracle's."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    prompt_of = {prompt.id: prompt for prompt in prompts}
    row_prompts = [prompt_of[row["id"]] for row in rows]
    texts = [row["response"] for row in rows]
    judgements = [
        judge(prompt.meta["question"], prompt.meta["passages"], text)
        for prompt, text in zip(row_prompts, texts)
    ]
    result = {}
    for name, folder in folders.items():
        scorer = load_reward_model(folder, rm_prefix)
        truth: list[Any] = [TRUTH[name](judgement) for judgement in judgements]
        is_segment = scorer.spec.kind == "segment"
        metrics: Callable[..., dict] = segment_metrics if is_segment else pair_metrics
        result[name] = metrics(scorer, row_prompts, texts, truth)
    return result
