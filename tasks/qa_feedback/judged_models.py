"""How well the reward models of a pipeline agree with the oracle.

    python -m tasks.qa_feedback.judged_models output_dir=outputs/qa_feedback/mini \\
        data_dir=outputs/qa_feedback/mini/data [split=test]

Both judge the SFT policy's answers to questions that the reward models were not trained on. The
result is stored in eval/reward_models, where the summary (`tasks.qa_feedback.summary`) finds it.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field
from transformers.utils import logging as transformers_logging

from fgrlhf.cli.command_line import settings_from
from fgrlhf.config import StrictModel
from fgrlhf.errors import UserError, run_main
from fgrlhf.pipeline.scores import evaluation_rows
from fgrlhf.pipeline.summary import evaluated_policies, reward_models_on_dev
from fgrlhf.reward_models.loading import load_reward_model
from fgrlhf.reward_models.scoring import SegmentScorer, SequenceScorer
from fgrlhf.reward_models.spec import SPEC_FILE
from fgrlhf.runs.runlog import RunLog
from fgrlhf.runs.stage import begin, finish, hold, stored_result
from fgrlhf.text_types import Prompt
from reward_modeling.metrics.span_errors import auc, precision_recall_f1
from tasks.qa_feedback.data.oracle import Judgement, judge
from tasks.qa_feedback.display import DISPLAY
from tasks.qa_feedback.feedback import load_examples, rm_prefix
from tasks.qa_feedback.task import oracle

# The evaluation of several sampled answers of the SFT policy to a question. A greedy evaluation has
# no pairs of answers.
SAMPLED = "sft_samples"
REWARD_MODELS = {
    "relevance": "rel_rm",
    "factuality": "fact_rm",
    "completeness": "comp_rm",
    "preference": "baseline_rm",
}


class JudgedSettings(StrictModel):
    """The outputs whose reward models are compared with the oracle."""

    output_dir: str = Field(description="folder of the results")
    data_dir: str = Field(description="folder of the rows")
    split: str = Field(default="test", description="of the evaluations: eval/<policy>-<split>")
    judged: str | None = Field(
        default=None,
        description=(
            "evaluation whose answers the reward models and the oracle judge; null: sft_samples if"
            " there is one, else sft"
        ),
    )


def segment_metrics(
    scorer: SegmentScorer,
    prompts: Sequence[Prompt],
    texts: Sequence[str],
    wrong: Sequence[Mapping[tuple[int, int], bool]],
) -> dict:
    """Accuracy, AUC and F1 of error detection, over segments judged by both model and oracle.

    Args:
      scorer: the reward model.
      prompts: the prompt of each text.
      texts: the responses.
      wrong: for each text, whether a segment (its characters) has an error.
    """
    predicted = []
    true = []
    for labels, truth in zip(scorer.score(prompts, texts), wrong, strict=True):
        p_error_S = labels.probabilities_SL[:, labels.labels.index(scorer.spec.error_label)]
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


def relevance_errors(truth: Judgement) -> dict[tuple[int, int], bool]:
    return {(s.start, s.end): s.label != "ok" for s in truth.subsentences}


def factuality_errors(truth: Judgement) -> dict[tuple[int, int], bool]:
    return {(s.start, s.end): not s.supported for s in truth.sentences}


TRUTH: dict[str, Callable[[Judgement], float | dict]] = {
    "relevance": relevance_errors,
    "factuality": factuality_errors,
    "completeness": lambda truth: truth.completeness,
    "preference": lambda truth: truth.gold,
}


def reward_models_against_oracle(
    folders: Mapping[str, Path], prompts: Sequence[Prompt], rows: Sequence[Mapping]
) -> dict[str, dict]:
    """Score sampled answers with every reward model; compare the scores with the oracle's."""
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


def reward_models(
    settings: JudgedSettings, prompts: Sequence[Prompt]
) -> tuple[Literal["dev", "truth"], dict[str, dict]]:
    """What the existing reward models are measured against, and their metrics by name.

    Metrics against the truth are stored in eval/reward_models until a model changes.
    """
    output = Path(settings.output_dir)
    evaluated = evaluated_policies(output, settings.split, DISPLAY)
    judged = settings.judged or (SAMPLED if SAMPLED in evaluated else "sft")
    # the choice is one of the recorded settings, so other answers are judged anew
    settings = settings.model_copy(update={"judged": judged})
    folders = {}
    for name, folder in REWARD_MODELS.items():
        if (output / folder / SPEC_FILE).exists():
            folders[name] = output / folder
    if not oracle(prompts) or judged not in evaluated:
        return "dev", reward_models_on_dev(folders)
    folder = output / "eval" / "reward_models"
    answers = output / "eval" / f"{judged}-{settings.split}" / "rows.jsonl"
    inputs = [answers, *folders.values()]
    with hold(folder):
        metrics = stored_result(folder, settings, inputs, redo=True)
        if metrics is None:
            begin(folder, settings, inputs)
            with RunLog(folder, settings) as log, log.stage("reward models against the oracle"):
                rows = evaluation_rows(output, judged, settings.split)
                metrics = reward_models_against_oracle(folders, prompts, rows)
            finish(folder, metrics)
    return "truth", metrics


def main() -> None:
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    settings = settings_from(JudgedSettings)
    prompts = load_examples(Path(settings.data_dir) / f"{settings.split}.json")
    measured_on, metrics = reward_models(settings, prompts)
    print(f"reward models, measured on {'the oracle' if measured_on == 'truth' else 'dev'}")
    for name, values in metrics.items():
        print(f"  {name:<14}" + ", ".join(f"{key} {value:.3g}" for key, value in values.items()))


if __name__ == "__main__":
    run_main(main)
