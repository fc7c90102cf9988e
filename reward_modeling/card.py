"""The card of a reward model: README.md in its folder, for whoever wants to use it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fgrlhf.configs.sections import names_of
from fgrlhf.models.provenance import code, value_text
from fgrlhf.reward_models.spec import RewardModelSpec
from reward_modeling.baselines import NAMES, Baselines, verdict
from reward_modeling.config import RMConfig
from reward_modeling.error_groups import Errors, title
from reward_modeling.judged import FEW_PROMPTS, Evaluations, Predictions

# figures on the card, if they were measured: key -> name
SHOWN = {
    "accuracy": "accuracy",
    "auc": "AUC",
    "error_precision": "precision of errors",
    "error_recall": "recall of errors",
    "error_f1": "F1 of errors",
    "ok_f1": "F1 of segments without an error",
    "label_accuracy": "accuracy of the kinds",
}
LABEL_F1 = "label_f1/"


def choice_of(judged: Predictions, evaluations: Evaluations) -> dict[str, Any]:
    """How the checkpoint was chosen: the number of evaluations, and the optimism of its accuracy.

    `accuracy` is the accuracy without the optimism. Both are None if it cannot be estimated.
    """
    optimism = evaluations.optimism()
    accuracy = None if optimism is None else float(judged.right.mean()) - optimism
    return {"evaluations": len(evaluations.right), "optimism": optimism, "accuracy": accuracy}


def notes_of(judged: Predictions, choice: Mapping[str, Any]) -> list[str]:
    """What to know before the dev figures are believed."""
    prompts = judged.number_of_prompts
    notes = []
    if choice["evaluations"] > 1:
        text = (
            f"the checkpoint was chosen out of {choice['evaluations']} evaluations by its accuracy"
            f" on these {prompts} dev prompts, so the figures are too good"
        )
        if choice["optimism"] is not None:
            text += (
                f": by about {choice['optimism']:.3f} of accuracy, estimated from halves of them."
                f" Corrected, the accuracy is {choice['accuracy']:.3f}"
            )
        notes.append(f"{text}. The intervals do not cover that; the baselines are not chosen")
    if prompts < FEW_PROMPTS:
        notes.append(
            f"{prompts} dev prompts are few: with less than {FEW_PROMPTS}, hardly two models can be"
            " told apart. Judge more rows"
        )
    low = figure_low(judged)
    if judged.right.min() == 1 and low is not None and low < 0.99:
        notes.append(
            f"all {len(judged.right)} {judged.kind} are right, which {prompts} prompts cannot"
            f" prove: an accuracy of {low:.3f} would explain it as well"
        )
    return notes


def figure_low(judged: Predictions) -> float | None:
    """The lower bound of the accuracy; None without an interval."""
    accuracy = judged.figures()["accuracy"]
    return None if isinstance(accuracy, str) or not accuracy.has_bounds else accuracy.low


def model_card(
    config: RMConfig,
    spec: RewardModelSpec,
    judged: Predictions,
    baselines: Baselines,
    errors: Errors,
    command: str,
) -> str:
    """The text of README.md.

    Args:
      command: that trained the model.
      spec: with the metrics of `training.run_training`.
      judged: what the model predicts of the dev rows.
    """
    metrics = spec.metrics
    (kind, cases), *_ = metrics["cases"].items()
    judges = f"labels each segment (level `{spec.level}`) of a response"
    if spec.kind == "sequence":
        judges = "gives a whole response one score"
    what = [f"It {judges}. Trained by fgrlhf from `{config.model.ckpt}`, shape {spec.shape}."]
    if spec.labels:
        what.append(f"Labels: {', '.join(f'`{label}`' for label in spec.labels)}.")
    what.append("It reads the prompt's context." if spec.with_context else "It reads no context.")
    what.append(f"It reads at most {spec.max_length} tokens.")
    if config.model.members > 1:
        what.append(
            f"It has {config.model.members} heads, each trained on another sample of the rows; the"
            " figures are of their mean."
        )
    lines = [
        f"# Reward model {config.logging.run_name}",
        "",
        " ".join(what),
        "",
        "| data | file | rows |",
        "|---|---|---|",
        f"| training | {code(names_of(config.data.train_file))} | {metrics['rows']['train']} |",
        f"| dev | {code(config.data.dev_file)} | {metrics['rows']['dev']}: {cases} {kind} of"
        f" {metrics['prompts']} prompts |",
        "",
        "## On dev",
        "",
        "Intervals are of 95 % over prompts (fgrlhf, docs/metrics.md); rows with the same `cluster`"
        " count as one prompt.",
        "",
        "| figure | value |",
        "|---|---|",
        *_figure_rows(metrics["intervals"], metrics["reasons"]),
        "",
        "| simple model | accuracy | this model's accuracy minus its |",
        "|---|---|---|",
    ]
    for name, numbers in metrics["baselines"].items():
        gain = value_text(numbers["difference"], signed=True)
        lines.append(f"| {NAMES[name]} | {numbers['accuracy']:.3f} | {gain} |")
    lines += ["", verdict(judged, baselines) + ".", ""]
    lines += [f"- {_sentence(note)}" for note in metrics["notes"]]
    parts = [*_errors(errors), *_calibration(spec), *_use(config, spec, command)]
    return "\n".join([*lines, *parts])


def _figure_rows(intervals: Mapping[str, Mapping], reasons: Mapping[str, str]) -> list[str]:
    """A row of the table for each figure that is shown."""
    rows = []
    for name in dict.fromkeys([*intervals, *reasons]):
        shown = SHOWN.get(name)
        if name.startswith(LABEL_F1):
            shown = f"F1 of `{name.removeprefix(LABEL_F1)}`"
        if shown is None:
            continue
        reason = f" ({reasons[name]})" if name in reasons else ""
        text = value_text(intervals[name]) + reason if name in intervals else reasons[name]
        rows.append(f"| {shown} | {text} |")
    return rows


def _errors(errors: Errors) -> list[str]:
    """The accuracy of groups of dev cases."""
    lines = ["", "## Where it is right", "", "| group | cases | accuracy |", "|---|---:|---|"]
    for key, groups in errors.groups.items():
        for group in groups:
            accuracy = value_text(group.accuracy.as_dict())
            lines.append(f"| {title(key)}: {code(group.name)} | {group.cases} | {accuracy} |")
    note = "`errors.json` has the same, and the mistakes in which the model was most confident."
    return [*lines, "", note]


def _calibration(spec: RewardModelSpec) -> list[str]:
    """How the predicted probabilities compare with what happened."""
    metrics = spec.metrics
    error = f"The expected calibration error is {metrics['ece']:.3f}"
    if spec.kind == "segment":
        what, happened = "p(error)", "with an error"
        text = (
            f"{error} ({metrics['ece_before']:.3f} before): each half of the prompts is read with"
            " a temperature that was fitted on the other. The temperature of all is"
            f" {spec.temperature:.3g}. As many segments are above p(error) ="
            f" {spec.error_threshold:.3g} as have an error."
        )
    else:
        what, happened = "p(the higher score is better)", "in which it is"
        text = f"{error}."
    rows = [
        f"| {part['predicted']:.3f} | {part['count']} | {part['observed']:.3f} |"
        for part in metrics["calibration"]
    ]
    (kind, _), *_ = metrics["cases"].items()
    header = [f"| {what}, mean | {kind} | share {happened} |", "|---:|---:|---:|"]
    return ["", "## Calibration", "", text, "", *header, *rows]


def _sentence(note: str) -> str:
    return f"{note[0].upper()}{note[1:]}."


def _use(config: RMConfig, spec: RewardModelSpec, command: str) -> list[str]:
    """How to use the model, and how it was made."""
    folder = json.dumps(str(Path(config.logging.save_dir)), ensure_ascii=False)
    if config.model.members > 1:
        folder += ", ensemble: {kappa: 1.0}"
    if spec.kind == "sequence":
        reward = f"{{kind: sequence_scorer, ckpt: {folder}, scale: 0.3, clip: 2}}"
    else:
        reward = f"{{kind: segment_classifier, ckpt: {folder}, values: {{{_values(spec)}}}}}"
    return [
        "",
        "## Use",
        "",
        "In the config of an RL run (fgrlhf, docs/rewards.md); choose the numbers yourself:",
        "",
        "```yaml",
        "reward:",
        f"  {config.logging.run_name}: {reward}",
        "```",
        "",
        "## How it was made",
        "",
        f"    {command}",
        "",
        "`config.yaml` has all settings, `run.json` the versions, seed and commit,"
        " `metrics.json` all figures.",
        "",
    ]


def _values(spec: RewardModelSpec) -> str:
    """A value for each label."""
    names: Sequence[str] = ("error", "ok") if spec.error_label else spec.judged_labels
    return ", ".join(f"{name}: {0.3 if name in ('ok', spec.ok_label) else -0.5}" for name in names)
