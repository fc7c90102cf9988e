"""What a whole pipeline found: `summary.json`, and the same as a table.

    python -m tasks.qa_feedback.summary output_dir=outputs/qa_feedback/mini data_dir=outputs/qa_feedback/mini/data
    [split=test]

Reads what the stages left in an outputs folder: evaluations of the policies
(`eval/<policy>-<split>/rows.jsonl`, made by training/evaluate.sh), the reward models, seconds and
memory by stage. In the mini world the reward models are compared with the oracle, on the SFT
policy's answers to questions they never saw.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from pydantic import Field
from transformers.utils import logging as transformers_logging

from fgrlhf.cli.command_line import settings_from
from fgrlhf.config import StrictModel
from fgrlhf.errors import UserError, run_main
from fgrlhf.evaluation import summarize
from fgrlhf.files import read_json, read_jsonl, write_json
from fgrlhf.kernels.choice import processor_name
from fgrlhf.reward_models.scoring import SPEC_FILE, SegmentScorer, SequenceScorer, load_reward_model
from fgrlhf.reward_utils import load_segmenter
from fgrlhf.runs.runlog import RunLog, versions
from fgrlhf.runs.stage import begin, finish, finished, hold
from fgrlhf.stats import paired_bootstrap
from fgrlhf.types import Prompt
from reward_modeling.metrics.span_errors import auc, precision_recall_f1
from tasks.qa_feedback.data.oracle import Judgement, judge
from tasks.qa_feedback.feedback import load_examples, rm_prefix
from tasks.qa_feedback.summary_table import table
from tasks.qa_feedback.task import oracle

POLICIES = {
    "sft": ("sft",),
    "holistic": ("holistic", "baseline"),
    "fine_grained": ("fine_grained",),
}  # -> names in eval/
COMPARED = (("fine_grained", "sft"), ("holistic", "sft"), ("fine_grained", "holistic"))
REWARD_MODELS = {
    "relevance": "rel_rm",
    "factuality": "fact_rm",
    "completeness": "comp_rm",
    "preference": "baseline_rm",
}
ORACLE = "oracle/"


class Settings(StrictModel):
    """Which outputs to sum up."""

    output_dir: str
    data_dir: str
    split: str = Field("test", description="the evaluations that count: eval/<policy>-<split>")
    scale: str = "mini"


# ---- policies
# ------------------------------------------------------------------------------------------------------


def policy_rows(settings: Settings) -> dict[str, list[dict]]:
    """The evaluation rows of the policies that were evaluated on the split."""
    found = {}
    for policy, names in POLICIES.items():
        paths = [
            Path(settings.output_dir) / "eval" / f"{name}-{settings.split}" / "rows.jsonl"
            for name in names
        ]
        existing = [path for path in paths if path.exists()]
        if existing:
            found[policy] = read_jsonl(existing[0])
    if not found:
        raise UserError(
            f"{settings.output_dir}/eval holds no evaluation on {settings.split}: "
            "run training/evaluate.sh on a policy first"
        )
    return found


def policy_summary(rows: Sequence[Mapping]) -> dict:
    """Every metric as {mean, low, high}; the oracle's are in a group of their own."""
    flat = {name: interval.as_dict() for name, interval in summarize(rows).items()}
    oracle = {
        name.removeprefix(ORACLE): value for name, value in flat.items() if name.startswith(ORACLE)
    }
    rest = {name: value for name, value in flat.items() if not name.startswith(ORACLE)}
    return {"oracle": oracle, **rest} if oracle else rest


def by_question(rows: Sequence[Mapping], metric: str) -> dict[str, float]:
    """Each question's mean over its samples."""
    values: dict[str, list[float]] = {}
    for row in rows:
        values.setdefault(row["id"], []).append(row[metric])
    return {question: float(np.mean(few)) for question, few in values.items()}


def gains(policies: Mapping[str, Sequence[Mapping]]) -> dict[str, dict]:
    """Paired differences on questions both policies answered: the oracle's metrics, else reward and
    Rouge.
    """
    result = {}
    for better, worse in COMPARED:
        if better not in policies or worse not in policies:
            continue
        shared = [name for name in policies[better][0] if name in policies[worse][0]]
        names = [name for name in shared if name.startswith(ORACLE)] or [
            name for name in ("reward", "rougeLsum") if name in shared
        ]
        result[f"{better}_vs_{worse}"] = {}
        for name in names:
            a, b = by_question(policies[better], name), by_question(policies[worse], name)
            both = [question for question in a if question in b]
            if both:
                interval = paired_bootstrap([a[q] for q in both], [b[q] for q in both])
                result[f"{better}_vs_{worse}"][name.removeprefix(ORACLE)] = interval.as_dict()
    return result


# ---- reward models
# -------------------------------------------------------------------------------------------------


def segment_metrics(
    scorer: SegmentScorer,
    prompts: Sequence[Prompt],
    texts: Sequence[str],
    wrong: Sequence[Mapping[tuple[int, int], bool]],
) -> dict:
    """Accuracy, AUC and F1 of "has an error" over the segments that both the model and the oracle
    judge.

    Args:
      wrong: per text, the true answer by the segment's characters.
    """
    said, true = [], []
    for found, known in zip(scorer.score(prompts, texts), wrong, strict=True):
        p_error_S = found.probabilities_SL[:, found.labels.index(scorer.spec.error_label)].tolist()
        for span, p_error, judged in zip(found.spans, p_error_S, found.judged):
            if judged and span in known:
                said.append(p_error)
                true.append(known[span])
    if not said:
        raise UserError(
            "the reward model judged no segment that the oracle knows: does it use another"
            " segmenter?"
        )
    p_error, is_wrong = np.array(said), np.array(true)
    f1 = precision_recall_f1(p_error > 0.5, is_wrong)[2]
    return {
        "accuracy": float(((p_error > 0.5) == is_wrong).mean()),
        "auc": auc(p_error, is_wrong),
        "f1": f1,
        "segments": len(said),
    }


def pair_metrics(
    scorer: SequenceScorer, prompts: Sequence[Prompt], texts: Sequence[str], truth: Sequence[float]
) -> dict:
    """How often the better of two answers to one question scores higher (equal scores count one
    half).

    Pairs that are equally good are left out. Without any pair (one sample per question) there is
    nothing to
    say: {}.
    """
    scores = scorer.score(prompts, texts).tolist()
    groups: dict[str, list[int]] = {}
    for i, prompt in enumerate(prompts):
        groups.setdefault(prompt.id, []).append(i)
    pairs = [
        (i, j) for group in groups.values() for i in group for j in group if truth[i] > truth[j]
    ]
    if not pairs:
        return {}
    right = [0.5 if scores[i] == scores[j] else float(scores[i] > scores[j]) for i, j in pairs]
    return {"pair_accuracy": float(np.mean(right)), "pairs": len(pairs)}


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
    """Score sampled answers with every reward model and compare with the oracle's judgement of
    them.
    """
    known = {prompt.id: prompt for prompt in prompts}
    asked, texts = [known[row["id"]] for row in rows], [row["response"] for row in rows]
    judgements = [
        judge(prompt.meta["question"], prompt.meta["passages"], text)
        for prompt, text in zip(asked, texts)
    ]
    result = {}
    for name, folder in folders.items():
        scorer, truth = (
            load_reward_model(folder, rm_prefix),
            [TRUTH[name](judgement) for judgement in judgements],
        )
        measure = segment_metrics if scorer.spec.kind == "segment" else pair_metrics
        result[name] = measure(scorer, asked, texts, truth)
    return result


def reward_models_on_dev(folders: Mapping[str, Path]) -> dict[str, dict]:
    """What the reward models reached on annotated dev rows: all there is where no oracle knows the
    truth.
    """
    result = {}
    for name, folder in folders.items():
        metrics = read_json(folder / SPEC_FILE)["metrics"]
        if name in ("completeness", "preference"):
            result[name] = {"pair_accuracy": metrics["accuracy"]}
        else:
            result[name] = {
                "accuracy": metrics["accuracy"],
                "auc": metrics["auc"],
                "f1": metrics["error_f1"],
            }
    return result


def reward_models(
    settings: Settings, prompts: Sequence[Prompt], rows: Sequence[Mapping] | None
) -> dict[str, dict]:
    """Metrics of the reward models that are there; kept in eval/reward_models until one of them
    changes.
    """
    output = Path(settings.output_dir)
    folders = {
        name: output / folder
        for name, folder in REWARD_MODELS.items()
        if (output / folder / SPEC_FILE).exists()
    }
    if not oracle(prompts) or rows is None:
        return reward_models_on_dev(folders)
    folder, answers = (
        output / "eval" / "reward_models",
        output / "eval" / f"sft-{settings.split}" / "rows.jsonl",
    )
    inputs = [answers, *folders.values()]
    with hold(folder):
        known = finished(folder, settings, inputs, redo=True)
        if known is None:
            begin(folder, settings, inputs)
            with RunLog(folder, settings) as log, log.stage("reward models against the oracle"):
                known = reward_models_against_oracle(folders, prompts, rows)
            finish(folder, known)
    return known


# ---- the whole
# -----------------------------------------------------------------------------------------------------


def stages(output: Path) -> dict[str, dict]:
    """Seconds and peak memory by stage: the whole pipeline's account, else those of the stages'
    folders.
    """
    if (output / "stages.json").exists():
        return read_json(output / "stages.json")
    paths = sorted(
        [
            *output.glob("*/stages.json"),
            *output.glob("eval/*/stages.json"),
            *output.glob("generated/*/stages.json"),
        ]
    )
    return {name: value for path in paths for name, value in read_json(path).items()}


def seed_of(output: Path) -> int | None:
    for name in ("fine_grained", "baseline", "sft"):
        if (output / name / "run.json").exists():
            return read_json(output / name / "run.json")["seed"]
    return None


def summarise(settings: Settings) -> dict:
    """Read everything, write <output_dir>/summary.json and return it.

    Raises:
      UserError: nothing was evaluated on the split, or a file is missing or broken.
    """
    output = Path(settings.output_dir)
    prompts = load_examples(Path(settings.data_dir) / f"{settings.split}.json")
    rows = policy_rows(settings)
    world = "mini world" if oracle(prompts) else settings.data_dir
    questions = len({row["id"] for few in rows.values() for row in few})
    summary = {
        "policies": {name: policy_summary(few) for name, few in rows.items()},
        "gains": gains(rows),
        "reward_models": reward_models(settings, prompts, rows.get("sft")),
        "stages": stages(output),
        "versions": versions(),
        "processor": processor_name(),
        "seed": seed_of(output),
        "scale": settings.scale,
        "data": f"{world}, {questions} {settings.split} questions",
        "gold_subsentences": gold_subsentences(prompts),
    }
    write_json(output / "summary.json", summary)
    return summary


def gold_subsentences(prompts: Sequence[Prompt]) -> float:
    """Sub-sentences of the reference answers, on average."""
    segmenter = load_segmenter()
    counts = [
        len(segmenter.segments(prompt.references[0], "subsentence"))
        for prompt in prompts
        if prompt.references
    ]
    return float(np.mean(counts)) if counts else 0.0


def main() -> None:
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    settings = settings_from(Settings)
    print(table(summarise(settings)))
    print(f"written to {Path(settings.output_dir) / 'summary.json'}")


if __name__ == "__main__":
    run_main(main)
