"""The results of a pipeline on this task: `summary.json`, also printed as a table.

    python -m tasks.qa_feedback.summary output_dir=outputs/qa_feedback/mini \\
        data_dir=outputs/qa_feedback/mini/data [split=test]

As `fgrlhf.pipeline.summary`. In the mini world, it also compares the reward models with the oracle,
on the SFT policy's answers to questions that the reward models were not trained on.
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
from fgrlhf.files import write_json
from fgrlhf.kernels.choice import processor_name
from fgrlhf.pipeline.scores import evaluation_rows
from fgrlhf.pipeline.summary import (
    Rows,
    data_of,
    evaluated_policies,
    evaluation_digests,
    gains,
    policy_summary,
    reward_models_on_dev,
    seed_of,
    stages,
)
from fgrlhf.reward_models.loading import load_reward_model
from fgrlhf.reward_models.scoring import SegmentScorer, SequenceScorer
from fgrlhf.reward_models.spec import SPEC_FILE
from fgrlhf.reward_utils import load_segmenter
from fgrlhf.runs.runlog import RunLog, versions
from fgrlhf.runs.stage import begin, finish, hold, stored_result
from fgrlhf.text_types import Prompt
from reward_modeling.metrics.span_errors import auc, precision_recall_f1
from tasks.qa_feedback.data.oracle import Judgement, judge
from tasks.qa_feedback.display import DISPLAY
from tasks.qa_feedback.feedback import load_examples, rm_prefix
from tasks.qa_feedback.summary_table import table
from tasks.qa_feedback.task import oracle

# policy -> its possible names in eval/
POLICIES = {
    "sft": ("sft",),
    "holistic": ("holistic", "baseline"),
    "dpo": ("dpo",),
    "best_of_n": ("best_of_n",),
    "fine_grained": ("fine_grained",),
}
COMPARED = (
    ("fine_grained", "sft"),
    ("holistic", "sft"),
    ("dpo", "sft"),
    ("best_of_n", "sft"),
    ("fine_grained", "holistic"),
)
# The evaluation of several sampled answers of the SFT policy to a question. A greedy evaluation has
# no pairs of answers.
SAMPLED = "sft_samples"
REWARD_MODELS = {
    "relevance": "rel_rm",
    "factuality": "fact_rm",
    "completeness": "comp_rm",
    "preference": "baseline_rm",
}
TASK_NAME = "qa_feedback"
# What is compared where the truth is not known: the judgement of every reward model that the
# evaluation had.
COMPARED_WITHOUT_TRUTH = (
    "reward",
    "relevance_model/ratio",
    "factuality_model/ratio",
    "completeness_model/score",
    "baseline_model/score",
    "rougeLsum",
    "length",
    "kl",
)


class Settings(StrictModel):
    """The outputs to summarise."""

    output_dir: str = Field(description="folder of the results")
    data_dir: str = Field(description="folder of the rows")
    split: str = Field(
        default="test", description="the evaluations that count: eval/<policy>-<split>"
    )
    scale: str = Field(default="mini", description="scale of the run, shown in the report")
    judged: str | None = Field(
        default=None,
        description=(
            "evaluation whose answers the reward models and the oracle judge; null: sft_samples if"
            " there is one, else sft"
        ),
    )


# ---- policies ------------------------------------------------------------------------------------


def policy_rows(settings: Settings) -> dict[str, Rows]:
    """The evaluation rows of the policies that were evaluated on the split.

    Raises:
      UserError: no policy was.
    """
    output = Path(settings.output_dir)
    evaluated = evaluated_policies(output, settings.split, DISPLAY)
    rows = {}
    for policy, names in POLICIES.items():
        existing = [name for name in names if name in evaluated]
        if existing:
            rows[policy] = evaluation_rows(output, existing[0], settings.split)
    if not rows:
        wanted = ", ".join(name for names in POLICIES.values() for name in names)
        raise UserError(
            f"{output}/eval has none of {wanted} on {settings.split}: evaluate one of them first"
        )
    return rows


# ---- reward models -------------------------------------------------------------------------------


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
    settings: Settings, prompts: Sequence[Prompt]
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


# ---- the summary ---------------------------------------------------------------------------------


def summarise(settings: Settings) -> dict:
    """Summarise the outputs in <output_dir>/summary.json, and return the summary.

    Raises:
      UserError: nothing was evaluated on the split, or a file is missing or broken.
    """
    output = Path(settings.output_dir)
    prompts = load_examples(Path(settings.data_dir) / f"{settings.split}.json")
    rows = policy_rows(settings)
    evaluated = evaluated_policies(output, settings.split, DISPLAY)
    world = "mini world" if oracle(prompts) else settings.data_dir
    measured_on, metrics = reward_models(settings, prompts)
    summary = {
        "task": TASK_NAME,
        "split": settings.split,
        "evaluations": evaluation_digests(output, settings.split, evaluated),
        "policies": {name: policy_summary(of_policy) for name, of_policy in rows.items()},
        "gains": gains(rows, COMPARED, COMPARED_WITHOUT_TRUTH),
        "reward_models": metrics,
        "reward_models_on": measured_on,
        "stages": stages(output),
        "versions": versions(),
        "processor": processor_name(),
        "seed": seed_of(output, ("fine_grained", "baseline", "sft")),
        "scale": settings.scale,
        "data": data_of(rows, world, settings.split),
        "gold_subsentences": gold_subsentences(prompts),
    }
    write_json(output / "summary.json", summary)
    return summary


def gold_subsentences(prompts: Sequence[Prompt]) -> float:
    """The mean number of sub-sentences of the reference answers."""
    segmenter = load_segmenter()
    counts = []
    for prompt in prompts:
        if prompt.references:
            counts.append(len(segmenter.segments(prompt.references[0], "subsentence")))
    return float(np.mean(counts)) if counts else 0.0


def main() -> None:
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    settings = settings_from(Settings)
    print(table(summarise(settings)))
    print(f"written to {Path(settings.output_dir) / 'summary.json'}")


if __name__ == "__main__":
    run_main(main)
