"""Outputs of a pipeline, generated for the tests of the report."""

import math
import random
import re
from html import escape

from fgrlhf.base.files import write_json, write_jsonl
from fgrlhf.report import plots

ASPECTS = {"relevance": 0.3, "factuality": 0.5, "completeness": 0.6}
CLAUSES = (
    "The 1994 film Amber Harbor was directed by Lena Okafor,",
    "and it was filmed in the town of Brisk,",
    "and it won the Silver Heron award.",
    "The 2003 novel Amber Harbor was written by Tomas Vey,",
    "and it was published by Crane House.",
)
PROMPT = (
    "question: Who made Amber Harbor? context: wikipage: Amber Harbor (1994 film) text: Amber"
    " Harbor is a film. It was directed by Lena Okafor. wikipage: Amber Harbor (2003 novel) text:"
    " Amber Harbor is a novel. It was written by Tomas Vey."
)


def interval(mean, half):
    return {"mean": mean, "low": mean - half, "high": mean + half}


def answer(rng, quality, wild=""):
    """A response as text and tokens, with segments and token rewards per aspect."""
    clauses = rng.sample(CLAUSES, rng.randint(2, 5))
    text = " ".join(clauses) + wild
    tokens = re.findall(r"\s*\S+", text) + ["</s>"]
    ends, place = [], 0
    for clause in clauses:
        place = text.index(clause, place) + len(clause)
        ends.append(place)
    ends[-1] = len(text)
    segments, rewards = {}, {}
    for aspect, weight in ASPECTS.items():
        rewards[aspect] = [0.0] * len(tokens)
        if aspect == "completeness":
            score = {"start": 0, "end": None, "value": rng.gauss(quality, 0.3), "label": "score"}
            segments[aspect] = [score]
            rewards[aspect][-1] = score["value"]
            continue
        segments[aspect] = []
        for start, end in zip([0, *ends], ends):
            value = weight if rng.random() < quality else -weight
            label = "O" if value > 0 else "ERR"
            segment = {"start": start, "end": end, "value": value, "label": label}
            segments[aspect].append(segment)
            rewards[aspect][len(re.findall(r"\s*\S+", text[:end])) - 1] += value
    return text, tokens, segments, rewards


def rollout_row(rng, quality, wild=""):
    text, tokens, segments, rewards = answer(rng, quality, wild)
    parts = {"tokens": tokens, "rewards": rewards, "segments": segments}
    for name, mean, deviation in (("kl", 0.02, 0.05), ("values", 0.5, 0.2), ("advantages", 0, 1)):
        parts[name] = [rng.gauss(mean, deviation) for _ in tokens]
    return {"prompt": PROMPT, "response": text, "reward": sum(map(sum, rewards.values())), **parts}


def eval_row(rng, i, quality, wild=""):
    text, _, segments, _ = answer(rng, quality, wild)
    rewards = {f"reward/{a}": sum(s["value"] for s in segments[a]) for a in ASPECTS}
    texts = {"prompt": PROMPT.replace("Amber", f"Amber {i}"), "response": text}
    texts |= {"references": [" ".join(CLAUSES)], "segments": segments}
    measured = {"reward": sum(rewards.values()), "rougeLsum": 40 + 20 * quality, "kl": 1.2}
    measured |= {"oracle/gold": quality, "length": len(text.split())}
    return {"id": str(i), "sample": 0, **texts, **rewards, **measured}


def dev_line(step, done, rng):
    """The dev metrics of a step, with the interval of the gold score."""
    gold = 0.5 + 0.1 * done + rng.gauss(0, 0.01)
    of_gold = {"eval": gold, "eval_low": gold - 0.03, "eval_high": gold + 0.03}
    line = {"step": step} | {f"{kind}/oracle/gold": value for kind, value in of_gold.items()}
    line |= {"eval/reward": 0.5 + 0.2 * done, "eval/reward/relevance": 0.1 + 0.1 * done}
    return line | {"eval/relevance/ratio": 0.5 + 0.1 * done, "eval/kl": 2 * done}


RUN = {
    "seed": 42,
    "versions": {"python": "3.11.7", "torch": "2.13.0"},
    "git_commit": "0123456789abcdef-modified",
    "resumed_at": [],
}


def write_run(folder, aspects, rng, wild=""):
    lines = []
    for step in range(40):
        done = 1 - math.exp(-step / 15)
        row = {
            "step": step,
            "episodes": (step + 1) * 64,
            "kl": 2 * done + rng.gauss(0, 0.1),
            "length": 70 - 6 * done + rng.gauss(0, 1),
            "entropy": 0.9 - 0.3 * done,
            "value/error": 0.8 - 0.4 * done + rng.gauss(0, 0.03),
            "value/explained_variance": 0.5 * done,
            "clipfrac/policy": 0.06 + rng.gauss(0, 0.01),
        }
        for name, top in aspects.items():
            row[f"reward/{name}"] = top * (done - 0.3) + rng.gauss(0, 0.08)
        row["reward/total"] = None if step == 7 else sum(row[f"reward/{name}"] for name in aspects)
        if step % 10 == 0:
            lines.append(dev_line(step, done, rng))
        lines.append(row)
    write_jsonl(folder / "metrics.jsonl", lines)
    command = f"python -m tasks.qa_feedback.training.{folder.name} config.yml"
    write_json(folder / "run.json", {"command": command, **RUN})
    for step, quality in ((0, 0.5), (5, 0.6), (39, 0.85)):
        rows = [rollout_row(rng, quality, wild) for _ in range(6)]
        write_jsonl(folder / "samples" / f"step-{step}.jsonl", rows)


REWARD_MODELS = {
    "rel_rm": "segment",
    "fact_rm": "segment",
    "comp_rm": "sequence",
    "baseline_rm": "sequence",
}
LABELS = {"segment": ["NF-ERR", "O"], "sequence": []}
MEASURED = {
    "segment": {"accuracy": 0.87, "auc": 0.94, "error_f1": 0.81, "ok_f1": 0.9},
    "sequence": {"accuracy": 0.73},
}
RM = {
    "shape": "seq2seq",
    "level": "subsentence",
    "with_context": True,
    "segmenter": {"name": "sentencizer", "version": "3.8.18"},
    "mean": 0.12,
    "std": 1.9,
}
SCORES = {"gold": 0.0, "relevance": 0.12, "factuality": 0.1, "completeness": -0.01}
STAGES = "make_mini train_sft generate collect_feedback train_rel_rm train_finegrained evaluate"
GAINS = {"fine_grained_vs_sft": 0.16, "holistic_vs_sft": 0.08, "fine_grained_vs_holistic": 0.02}


def make_outputs(folder, wild=""):
    """The outputs of a whole pipeline, in the files of its stages.

    `wild` must reach the reader as text.
    """
    rng = random.Random(0)
    write_run(folder / "fine_grained", ASPECTS, rng, wild)
    write_run(folder / "baseline", {"preference": 1.0}, rng, wild)
    for rm, kind in REWARD_MODELS.items():
        bins = []
        for predicted in ((i + 0.5) / 10 for i in range(10)):
            observed = min(max(predicted + rng.gauss(0, 0.04), 0), 1)
            count = rng.randint(20, 400)
            bins.append({"predicted": predicted, "observed": observed, "count": count})
        metrics = {**MEASURED[kind], "calibration": bins}
        metrics["intervals"] = {"accuracy": interval(MEASURED[kind]["accuracy"], 0.02)}
        info = {"kind": kind, "labels": LABELS[kind], "metrics": metrics, **RM}
        write_json(folder / rm / "reward_model.json", info)
    policies = {}
    for name, quality in (("sft", 0.5), ("holistic", 0.58), ("fine_grained", 0.66)):
        policies[name] = {
            "oracle": {name: interval(quality + more, 0.02) for name, more in SCORES.items()},
            "reward": interval(3 * quality, 0.1),
            "rougeLsum": interval(60 * quality, 1.1),
            "length": interval(66.0, 1.5),
            "kl": interval(2.1, 0.1),
        }
    for name, quality in (("sft", 0.5), ("baseline", 0.6), ("fine_grained", 0.85)):
        rows = [eval_row(rng, i, quality, wild) for i in range(8)]
        write_jsonl(folder / "eval" / f"{name}-test" / "rows.jsonl", rows)
    gains = {}
    for name, gain in GAINS.items():
        gains[name] = {"gold": interval(gain, 0.03), "completeness": interval(0.0, 0.01)}
    stages = {}
    for name in STAGES.split():
        stages[name] = {"seconds": rng.uniform(5, 180), "peak_mb": rng.uniform(400, 1400)}
    relevance = {"accuracy": 0.88, "auc": 0.95, "f1": 0.83}
    summary = {
        "policies": policies,
        "gains": gains,
        "reward_models": {"relevance": relevance, "preference": {"pair_accuracy": 0.64}},
        "reward_models_on": "truth",
        "stages": stages,
        "versions": RUN["versions"],
        "seed": 42,
        "scale": "mini",
        "data": "the mini world" + wild,
    }
    write_json(folder / "summary.json", summary)


def leave_out_plots(monkeypatch) -> None:
    """Replace the plots of reports, which take long, by empty ones with the same titles."""

    def empty(title: str, *_) -> str:
        return f'<svg role="img" aria-label="{escape(title)}"/>'

    for name in ("curves", "calibration", "intervals"):
        monkeypatch.setattr(plots, name, empty)
