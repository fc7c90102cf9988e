"""Which part of a score belongs to which sub-sentence? Signals for credit, before and after RL.

    python -m tasks.experiments credit [seeds=0,1,2] [base_dir=outputs/qa_feedback/mini]

One model scores whole answers of the mini world (the holistic reward model of the demo). SIGNALS
divide its score over the sub-sentences, or take them from the implied reward of a DPO policy
(Rafailov et al. 2024, arXiv 2404.12358), which learns from the same preferences. `marks` are the
reward models that were trained on marked errors, the best that can be expected.

Before training, with the SFT policy's answers to the test questions:

- AUC: does the signal tell right sub-sentences from wrong ones, among all answers?
- AUC within: the mean over answers that have both; only this helps to credit parts of an answer.
- tau: Kendall's tau-b within an answer, with the true parts (Shapley values of the true score).

After training: the true score of policies that were trained on the signal alone, with every seed.
docs/credit.md has the results.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, PositiveInt
from transformers.utils import logging as transformers_logging

from fgrlhf.auc import auc, auc_interval
from fgrlhf.base.errors import UserError
from fgrlhf.configs.overrides import parsed_or_text
from fgrlhf.configs.strict import FilePath, validate
from fgrlhf.pipeline.experiments import Experiment, program
from fgrlhf.pipeline.scores import evaluation_rows
from fgrlhf.pipeline.stages import Stage
from fgrlhf.pipeline.study import Plan, Study, markdown
from fgrlhf.reward_utils import PUBLISHED, Span
from fgrlhf.rewards.build import build_aspects
from fgrlhf.rewards.scored import ScorerReward
from fgrlhf.scorers.base import RewardContext
from fgrlhf.stats import Interval, mean_interval
from fgrlhf.task_config import rl_config
from fgrlhf.text_types import Prompt, SegmentScore
from tasks.experiments import policies, qa
from tasks.experiments.hacks import R1, R2, RL
from tasks.qa_feedback.data.oracle import judge
from tasks.qa_feedback.task import TASK

DPO = f"{qa.FOLDER}/training/mini_dpo_config.yml"
MODEL = "scorer: {kind: sequence_scorer, ckpt: BASE/baseline_rm}"
PARTS = "level: subsentence, segmenter: published"
IMPLIED = (
    "scorer: {kind: python, of: fgrlhf.scorers.likelihood.Implied,"
    " args: {policy: DPO/best, reference: SFT}}"
)
# name -> rewards; BASE, DPO and SFT are folders. The scale of `implied` gives its sub-sentences
# about the standard deviation of those of `marks`.
SIGNALS = {
    "whole": (f"whole: {{kind: score, level: whole, {MODEL}}}",),
    **{
        reads: (f"{reads}: {{kind: score, reads: {reads}, {PARTS}, {MODEL}}}",)
        for reads in ("segment", "increment", "without", "shapley")
    },
    "implied": (f"implied: {{kind: score, reads: increment, scale: 0.2, {PARTS}, {IMPLIED}}}",),
    "marks": (R1.replace("%s", "BASE"), R2.replace("%s", "BASE")),
}
TRUTH = "truth"


class TrueScore:
    """The true score of the mini world."""

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
        return [
            judge(prompt.meta["question"], prompt.meta["passages"], text).gold
            for prompt, text in zip(prompts, texts, strict=True)
        ]


class CreditSettings(qa.BaseSettings):
    """The experiment."""

    seeds: str = Field(default="0,1,2", description="every policy is trained with each seed")
    signals: str = Field(
        default="whole,increment,implied,marks",
        description=f"that policies are trained on, separated by commas; all: {','.join(SIGNALS)}",
    )
    answers: PositiveInt = Field(default=200, description="to test questions, before training")
    steps: PositiveInt = Field(default=30, description="rollouts of 64 answers of each run")
    output_dir: FilePath = Field(default="outputs/credit", description="folder of the results")

    @property
    def trained(self) -> list[str]:
        names = [name.strip() for name in self.signals.split(",") if name.strip()]
        unknown = [name for name in names if name not in SIGNALS]
        if unknown or len(set(names)) < len(names):
            raise UserError(
                f"signals={self.signals}: name some of {', '.join(SIGNALS)}, each at most once"
            )
        return names


def rewards(settings: CreditSettings, names: Sequence[str]) -> str:
    """The section `reward` with these signals."""
    folders = {"BASE": settings.base, "DPO": settings.folder / "dpo", "SFT": settings.base / "sft"}
    text = ", ".join(reward for name in names for reward in SIGNALS[name])
    text = re.sub("|".join(folders), lambda match: str(folders[match[0]]), text)
    return f"{{{text}}}"


def _config(settings: CreditSettings) -> dict[str, Any]:
    """Of a run with all signals, which is not trained."""
    sft = str(settings.base / "sft")
    return {
        "model": {"ckpt": sft, "value_model": {"ckpt": sft}},
        "logging": {"save_dir": settings.output_dir},
        "reward": parsed_or_text(rewards(settings, list(SIGNALS))),
    }


def plan(settings: CreditSettings) -> Plan:
    models = ("sft", "rel_rm", "fact_rm", "baseline_rm")
    needed = [f"{model}/model.safetensors" for model in models]
    experiment = settings.experiment(*needed, "eval/sft-test/rows.jsonl")
    command, modules = program(
        experiment.task, "dpo", DPO, f"logging.save_dir={experiment.out / 'dpo'}"
    )
    stages = [
        Stage(
            "dpo",
            command,
            outputs=("dpo",),
            reads=(DPO, *experiment.named_files(DPO)),
            modules=modules,
            variables=experiment.variables(DPO),
        ),
        policies.sft_evaluation(experiment, settings.base),
    ]
    for seed in settings.seed_list:
        for signal in settings.trained:
            stages += _arm(settings, experiment, signal, seed)
    return Plan(experiment, stages, settings.lane_count)


def _arm(settings: CreditSettings, experiment: Experiment, signal: str, seed: int) -> list[Stage]:
    name = f"seed-{seed}/{signal}"
    overrides = [
        f"reward={rewards(settings, [signal])}",
        f"train.total_episodes={settings.steps * 64}",
        f"train.seed={seed}",
        f"logging.save_dir={experiment.out / name}",
        f"logging.run_name={signal}",
    ]
    if signal == "whole":  # as in mini_baseline_config.yml
        overrides += ["algorithm.gae.lam=1.0", "train.lr=1.5e-4"]
    needs = ("dpo",) if signal == "implied" else ()
    run = policies.rl_run(experiment, name, RL, *overrides, needs=needs)
    policy = experiment.out / name / "best"
    plan = qa.plan_of(settings.base)
    return [run, experiment.evaluation_stage(plan, signal, policy, (name,), f"seed-{seed}")]


# ---- before training -----------------------------------------------------------------------------


def kendall(a: Sequence[float] | np.ndarray, b: Sequence[float] | np.ndarray) -> float | None:
    """Kendall's tau-b of two series: concordant minus discordant pairs, ties in one left out.

        tau_b = sum_{i<j} sign(a_i - a_j) sign(b_i - b_j) / sqrt(n_a n_b)

    n_a and n_b are the pairs that are no ties in a, and in b. None if either series is constant.
    """
    above = np.triu_indices(len(a), 1)
    of_a, of_b = (np.sign(np.subtract.outer(np.asarray(x), np.asarray(x)))[above] for x in (a, b))
    untied = float(np.abs(of_a).sum() * np.abs(of_b).sum())
    return float((of_a * of_b).sum()) / untied**0.5 if untied else None


def on_parts(scores: Sequence[SegmentScore], parts: Sequence[Span]) -> list[float]:
    """The value of each part: that of the segment in which it ends, 0 if there is none."""
    values = []
    for _, end in parts:
        value = 0.0
        for score in scores:
            if score.start < end and (score.end is None or end <= score.end):
                value = score.value
                break
        values.append(value)
    return values


def before(settings: CreditSettings) -> dict[str, dict[str, Any]]:
    """How well each signal agrees with the truth, on answers of the SFT policy."""
    transformers_logging.disable_progress_bar()
    questions = TASK.prompts(settings.base / "data" / "test.json", "test")
    prompts = {prompt.id: prompt for prompt in questions}
    rows = [row for row in evaluation_rows(settings.base, "sft", "test") if not row["sample"]]
    rows = rows[: settings.answers]
    asked, texts = [prompts[row["id"]] for row in rows], [row["response"] for row in rows]
    spans, right = [], []
    for prompt, text in zip(asked, texts):
        parts = judge(prompt.meta["question"], prompt.meta["passages"], text).subsentences
        spans.append([(part.start, part.end) for part in parts])
        right.append([part.right for part in parts])
    true_reward = ScorerReward(TrueScore(), "subsentence", "shapley", segmenter=PUBLISHED)
    true = [on_parts(*pair) for pair in zip(true_reward.segment_scores(asked, texts), spans)]
    sections = validate(rl_config(TASK), _config(settings), "SIGNALS").reward
    aspects, _ = build_aspects(sections, RewardContext(TASK.rm_prefix))
    by_aspect = {name: aspect.segment_scores(asked, texts) for name, aspect in aspects.items()}
    signals = {
        name: [on_parts(scores or [], parts) for scores, parts in zip(by_aspect[name], spans)]
        for name in by_aspect
    }
    marks = zip(signals.pop("relevance_model"), signals.pop("factuality_model"))
    signals["marks"] = [[r1 + r2 for r1, r2 in zip(*both)] for both in marks]
    signals[TRUTH] = true
    return {name: agreement(values, right, true) for name, values in signals.items()}


def agreement(
    values: Sequence[Sequence[float]],
    right: Sequence[Sequence[bool]],
    parts: Sequence[Sequence[float]],
) -> dict[str, Any]:
    """How well the values of sub-sentences, by answer, agree with the truth.

    Args:
      right: whether each is right.
      parts: their true parts of the score.
    """
    # parts are differences: without rounding, equal ones would differ in their last digits
    rounded_values, rounded_parts = (
        [np.round(of_answer, 9) for of_answer in kind] for kind in (values, parts)
    )
    units = [n for n, of_answer in enumerate(rounded_values) for _ in of_answer]
    within = []
    taus = []
    for of_answer, labels, true in zip(rounded_values, right, rounded_parts):
        area = auc(of_answer, np.asarray(labels, dtype=bool))
        if area is not None:
            within.append(area)
        if (tau := kendall(of_answer, true)) is not None:
            taus.append(tau)
        elif kendall(true, true) is not None:
            taus.append(0.0)  # a constant orders nothing
    pooled = np.concatenate(rounded_values)
    figure = auc_interval(pooled, [label for labels in right for label in labels], units)
    return {
        "auc": figure.as_dict() if isinstance(figure, Interval) else figure,
        "within": _mean(within),
        "tau": _mean(taus),
        "answers": [len(values), len(within), len(taus)],
    }


def _mean(values: Sequence[float]) -> dict[str, Any] | str:
    """The mean over answers with its interval, or why there is none."""
    if not values:
        return "no answer has parts that differ"
    return mean_interval(values, may_be_share=False).as_dict()


# ---- results -------------------------------------------------------------------------------------


def results(settings: CreditSettings, plan: Plan) -> dict[str, Any]:
    found: dict[str, Any] = {"before": before(settings)}
    if settings.trained:
        first, *others = settings.trained
        found["after"] = policies.results(
            Path(settings.folder),
            settings.seed_list,
            settings.trained,
            [(name, first) for name in others],
        )
    return found


def table(result: Mapping[str, Any]) -> str:
    """Before and after training."""
    rows = []
    for name, row in result["before"].items():
        rows.append([name, *(_cell(row[key]) for key in ("auc", "within", "tau"))])
    parts = [markdown(["signal", "AUC", "AUC within", "tau"], rows)]
    if "after" in result:
        parts.append(policies.policies_table(result["after"]))
    return "\n".join(parts)


def _cell(figure: Mapping[str, Any] | str) -> str:
    if isinstance(figure, str):
        return figure
    mean = f"{figure['mean']:.3f}"
    return mean if figure["low"] is None else f"{mean} [{figure['low']:.3f}, {figure['high']:.3f}]"


STUDY = Study(CreditSettings, plan, results, table, "credit")
