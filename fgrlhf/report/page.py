"""report.html: one self-contained file with what a pipeline's outputs show. It asks the network for
nothing.

    python -m fgrlhf.report.page OUTPUT_DIR [report.html]

Text from data is text: the template escapes every string, and the page's content policy allows no
script.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from fgrlhf.errors import UserError, run_main
from fgrlhf.files import write_text
from fgrlhf.report import samples as report_samples
from fgrlhf.report.data import Outputs, Run, aspect_name, read_outputs
from fgrlhf.report.plots import N_SERIES, Series, calibration, curves, intervals
from fgrlhf.report.samples import minus, signed

HERE = Path(__file__).parent
LABELS = {
    "sft": "SFT",
    "sft_full": "SFT-full",
    "holistic": "Holistic RLHF",
    "baseline": "Holistic RLHF",
    "fine_grained": "Fine-grained RLHF",
}
COLOURS = {"sft": 0, "holistic": 1, "baseline": 1, "fine_grained": 2}
MODELS = {
    "rel_rm": "Relevance",
    "fact_rm": "Factuality",
    "comp_rm": "Completeness",
    "baseline_rm": "Preference",
}
# shown as, in the model's own metrics, in the comparison with the truth
SEGMENT_NUMBERS = (
    ("accuracy", "accuracy", "accuracy"),
    ("AUC", "auc", "auc"),
    ("F1, error", "error_f1", "f1"),
    ("F1, no error", "ok_f1", ""),
    ("accuracy of “all wrong”", "all_error_accuracy", ""),
    ("accuracy of “all right”", "all_ok_accuracy", ""),
)
SEQUENCE_NUMBERS = (
    ("pair accuracy", "accuracy", "pair_accuracy"),
    ("first of the pair wins", "first_accuracy", ""),
)
MEASURES = {"ratio": "share without error by its model", "score": "z-score by its model"}
METRIC_NAMES = {
    "oracle.gold": "gold score",
    "rougeLsum": "RougeLsum",
    "length": "length in words",
    "kl": "KL from SFT",
}
POLICY_CURVES = {
    "kl": "KL from the reference, per answer",
    "length": "Length in tokens",
    "value/error": "Value error |V − return|",
    "value/explained_variance": "Explained variance of the critic",
    "entropy": "Entropy per token",
    "clipfrac/policy": "Clipped share of tokens",
    "dpo/margin": "Margin of the implied rewards, better − worse",
    "dpo/accuracy": "Share of pairs with the better answer ahead",
}


def write_report(output_dir: str | Path, html_path: str | Path) -> None:
    """Write the report of an outputs folder (or of one RL run's folder) to `html_path`, whole or
    not at all.

    Parts whose files are not there are left out, with a line saying which files would make them.

    Raises:
      UserError: the folder is missing, a file in it is broken, or nothing in it can be shown.
    """
    outputs = read_outputs(output_dir)
    makers = {
        "results": _results,
        "curves": _curves,
        "models": _models,
        "answers": _answers,
        "rollouts": _rollouts,
        "stages": _stages,
    }
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("report.html.j2").render(
        title=f"fgrlhf · {outputs.folder.resolve().name}",
        style=Markup((HERE / "report.css").read_text(encoding="utf-8")),
        label=_label,
        signed=signed,
        aspect=aspect_name,
        colour=lambda name: _colour(name, _everyone(outputs)),
        gains=_gains(outputs),
        what_ran=_what_ran(outputs),
        missing=outputs.missing,
        parts={name: make(outputs) for name, make in makers.items() if not outputs.missing[name]},
    )
    write_text(html_path, page)


def _label(name: str) -> str:
    return LABELS.get(name, name.replace("_", " "))


def _everyone(outputs: Outputs) -> list[str]:
    names = [
        *outputs.summary["policies"],
        *(run.name for run in outputs.runs),
        *outputs.evaluations,
    ]
    return list(dict.fromkeys(names))


def _colour(name: str, everyone: Sequence[str]) -> int:
    """Colours of the three known policies are fixed; others take the rest, in turn."""
    others = [other for other in everyone if other not in COLOURS]
    return COLOURS[name] if name in COLOURS else 3 + others.index(name) % (N_SERIES - 3)


# ---- header --------------------------------------------------------------------------------------


def _gains(outputs: Outputs) -> list[dict]:
    """The headline of every comparison: its first metric, which is the true score where one is
    known.
    """
    tiles = []
    for name, metrics in _compared(outputs).items():
        metric, value = next(iter(metrics.items()))
        better, _, other = name.partition("_vs_")
        title = f"{_label(better)} over {_label(other)}, {_metric_name('oracle.' + metric)}"
        tiles.append({"title": title, **_difference(value)})
    return tiles


def _compared(outputs: Outputs) -> dict[str, dict]:
    return {
        name: metrics for name, metrics in (outputs.summary.get("gains") or {}).items() if metrics
    }


def _difference(value: Mapping) -> dict:
    mean, low, high = (signed(value[key], 3) for key in ("mean", "low", "high"))
    is_sure = value["low"] > 0 or value["high"] < 0
    verdict = f"{low} to {high} · interval {'excludes' if is_sure else 'includes'} zero"
    return {"mean": mean, "bounds": f"{low} to {high}", "verdict": verdict, "is_sure": is_sure}


def _what_ran(outputs: Outputs) -> dict:
    info = outputs.runs[-1].info if outputs.runs else {}
    versions = outputs.summary.get("versions") or info.get("versions") or {}
    facts = {name: outputs.summary.get(name) for name in ("scale", "data")}
    facts |= {
        "seed": outputs.summary.get("seed", info.get("seed")),
        "commit": (info.get("git_commit") or "")[:12],
        "packages": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }
    return facts | {_label(run.name): run.info.get("command") for run in outputs.runs}


# ---- results -------------------------------------------------------------------------------------


def _flat(tree: Mapping, prefix: str = "") -> dict[str, dict]:
    """{"oracle": {"gold": interval}} and {"oracle/gold": interval} -> {"oracle.gold": interval}"""
    flat: dict[str, dict] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            path = prefix + _canonical(key)
            flat |= {path: dict(value)} if "mean" in value else _flat(value, f"{path}.")
    return flat


def _canonical(key: str) -> str:
    """Metrics of the truth are `oracle/x` in rows and run logs, `oracle.x` in the summary."""
    return key.replace("oracle/", "oracle.")


def _metric_name(key: str) -> str:
    key = _canonical(key)
    aspect, _, part = key.partition("/")
    if part in MEASURES:
        return f"{aspect_name(aspect)}, {MEASURES[part]}"
    if aspect == "reward" and part:
        return f"reward: {aspect_name(part)}"
    return METRIC_NAMES.get(key, key.removeprefix("oracle.").replace("/", " · "))


def _number(value: float | None, key: str = "") -> str:
    if value is None:
        return "–"
    return minus(f"{value:.1f}" if key in ("rougeLsum", "length") else f"{value:.3f}")


def _results(outputs: Outputs) -> dict:
    policies = {name: _flat(metrics) for name, metrics in outputs.summary["policies"].items()}
    keys = list(dict.fromkeys(key for metrics in policies.values() for key in metrics))
    rows = [
        {
            "name": _metric_name(key),
            "cells": [_cell(metrics.get(key), key) for metrics in policies.values()],
        }
        for key in keys
    ]
    marks = []
    for key in keys:
        if key.startswith("oracle.") or key.endswith("/ratio"):
            found = [
                (metrics[key], _colour(name, _everyone(outputs)))
                for name, metrics in policies.items()
                if key in metrics
            ]
            marks.append(
                (
                    _metric_name(key),
                    [(one["mean"], one["low"], one["high"], colour) for one, colour in found],
                )
            )
    picture = Markup(intervals("Shares, with 95% intervals", marks)) if marks else None
    compared = _compared(outputs)
    metrics = list(dict.fromkeys(metric for values in compared.values() for metric in values))
    gains = {
        _metric_name("oracle." + metric): [
            _difference(values[metric]) if metric in values else None
            for values in compared.values()
        ]
        for metric in metrics
    }
    pairs = [" − ".join(map(_label, name.split("_vs_"))) for name in compared]
    return {
        "policies": list(policies),
        "rows": rows,
        "picture": picture,
        "pairs": pairs,
        "gains": gains,
    }


def _cell(value: Mapping | None, key: str) -> tuple[str, str]:
    if value is None:
        return "–", ""
    bounds = (
        f"{_number(value['low'], key)} to {_number(value['high'], key)}"
        if value.get("low") is not None
        else ""
    )
    return _number(value["mean"], key), bounds


# ---- learning curves -----------------------------------------------------------------------------


def _curves(outputs: Outputs) -> dict:
    everyone = _everyone(outputs)
    logged = list(dict.fromkeys(key for run in outputs.runs for key in run.keys))

    def panel(title: str, key: str, run: Run | None = None, marks: bool = False) -> Markup:
        runs = [run] if run else [run for run in outputs.runs if key in run.keys]
        lines = [Series(*one.series(key), _colour(one.name, everyone), marks) for one in runs]
        return Markup(curves(f"{_label(run.name)}: {title}" if run else title, lines, "episodes"))

    by_aspect = [(run, key) for run in reversed(outputs.runs) for key in _reward_keys(run)]
    on_dev = [key for key in logged if key.startswith("eval/")]
    true = [key for key in on_dev if "/oracle" in key]
    judged = [key for key in on_dev if key.split("/")[-1] in MEASURES]
    plain = [key for key in ("eval/rougeLsum", "eval/length") if key in on_dev]
    own = [
        run for run in reversed(outputs.runs) if "eval/reward" in run.keys
    ]  # each in a currency of its own
    dev_panels = [
        panel(_metric_name(key.removeprefix("eval/")), key, marks=True)
        for key in [*(true or judged), *plain]
    ]
    return {
        "runs": [run.name for run in outputs.runs],
        "groups": {
            "Reward by aspect": [
                panel(aspect_name(key.removeprefix("reward/")), key, run) for run, key in by_aspect
            ],
            "Policy and critic": [
                panel(title, key) for key, title in POLICY_CURVES.items() if key in logged
            ],
            "On dev questions": (
                dev_panels + [panel("reward", "eval/reward", run, marks=True) for run in own]
            ),
        },
    }


def _reward_keys(run: Run) -> list[str]:
    aspects = [
        key
        for key in run.keys
        if key.startswith("reward/") and key not in ("reward/total", "reward/penalized")
    ]
    return [
        *(["reward/total"] if len(aspects) > 1 else []),
        *aspects,
    ]  # a single aspect is the total


# ---- reward models -------------------------------------------------------------------------------


def _models(outputs: Outputs) -> list[dict]:
    truth = outputs.summary.get("reward_models") or {}
    names = [
        *(name for name in MODELS if name in outputs.reward_models),
        *(name for name in outputs.reward_models if name not in MODELS),
    ]
    return [
        _model(
            MODELS.get(name, _label(name)),
            outputs.reward_models[name],
            truth.get(MODELS.get(name, name).lower()) or {},
            colour=2 + i,
        )
        for i, name in enumerate(names)
    ]


def _model(name: str, spec: Mapping, truth: Mapping, colour: int) -> dict:
    segmenter, moments = spec.get("segmenter") or {}, [spec.get("mean"), spec.get("std")]
    facts = {
        "model": spec.get("shape"),
        "judges": spec.get("level") or "whole answers",
        "labels": ", ".join(spec.get("labels") or []),
        "passages": {True: "yes", False: "no"}.get(spec.get("with_passages")),
        "segmenter": " ".join(str(part) for part in segmenter.values()),
        "mean, std": None if None in moments else ", ".join(map(_number, moments)),
    }
    names = SEQUENCE_NUMBERS if spec.get("kind") == "sequence" else SEGMENT_NUMBERS
    dev = spec["metrics"]
    numbers = [
        (text, _number(dev.get(ours)), _number(truth.get(theirs)))
        for text, ours, theirs in names
        if ours in dev or theirs in truth
    ]
    bins = [
        (one["predicted"], one["observed"], one["count"])
        for one in spec["metrics"].get("calibration") or []
    ]
    picture = Markup(calibration(f"{name}: calibration", bins, colour)) if bins else None
    return {"name": name, "facts": facts, "numbers": numbers, "picture": picture}


# ---- samples, stages -----------------------------------------------------------------------------


def _answers(outputs: Outputs) -> dict:
    return {"split": outputs.split, **report_samples.answers(outputs)}


def _rollouts(outputs: Outputs) -> dict:
    return {run.name: report_samples.rollouts(run) for run in reversed(outputs.runs) if run.samples}


def _stages(outputs: Outputs) -> list[dict]:
    longest = max(stage["seconds"] for stage in outputs.stages.values()) or 1
    return [
        {
            "name": name,
            "share": f"{100 * stage['seconds'] / longest:.1f}",
            "seconds": f"{stage['seconds']:.1f}",
            "peak_mb": f"{stage['peak_mb']:.0f}",
        }
        for name, stage in outputs.stages.items()
    ]


def main() -> None:
    arguments = sys.argv[1:]
    if not 1 <= len(arguments) <= 2 or arguments[0] in ("-h", "--help"):
        raise UserError("usage: python -m fgrlhf.report.page OUTPUT_DIR [report.html]")
    target = Path(arguments[1] if len(arguments) == 2 else Path(arguments[0]) / "report.html")
    write_report(arguments[0], target)
    print(f"report: {target}")


if __name__ == "__main__":
    run_main(main)
