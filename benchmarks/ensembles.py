"""Ensembles of reward models: heads on one network beside networks of their own.

    python -m benchmarks.ensembles task=qa_feedback heads=outputs/rel_rm_4 \\
        networks='[outputs/rel_rm, outputs/rel_rm_1]' rows=derived/NF-ERR_subsentence/dev.json

`heads` has several heads (`model.members`), each of `networks` one. The segments of a file are
judged by the first network, by the one with several heads, and by all networks. Printed are the
processor seconds (median), the accuracy of the mean probability of an error, its standard deviation
over the members, and the AUC with which that tells wrong judgements from right ones; of a network
alone, that of how close its probability is to 1/2.
"""

import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pydantic import Field, PositiveInt

from fgrlhf.auc import auc
from fgrlhf.cli.command_line import run_program
from fgrlhf.configs.strict import StrictModel
from fgrlhf.load import load_task
from fgrlhf.reward_models.loading import load_segment_classifier
from fgrlhf.reward_models.prefix import Prefix
from fgrlhf.reward_models.scoring import SegmentScorer
from fgrlhf.task import NO_TASK
from fgrlhf.utils import IGNORED
from reward_modeling.data import SegmentRow, read_segment_rows


class Settings(StrictModel):
    """What is compared."""

    heads: str = Field(description="folder of a segment reward model with several heads")
    networks: list[str] = Field(min_length=2, description="folders of such with one head")
    rows: Path = Field(description="segment file")
    task: str | None = Field(default=None, description="the task of the file")
    times: PositiveInt = Field(default=5, description="repetitions")


def judged(scorer: SegmentScorer, rows: Sequence[SegmentRow]) -> tuple[np.ndarray, np.ndarray]:
    """p(error) of each member of a scorer for all labelled segments, (N, M), and their labels."""
    inputs = scorer.inputs.encode([row.text for row in rows])
    read = [(one, row) for one, row in zip(inputs, rows, strict=True) if one.judged_outputs]
    to_compute = [one for one, _ in read]
    if scorer.members > 1:
        logits = scorer.member_logits(to_compute)
    else:
        logits = [one_SC[:, None] for one_SC in scorer.logits(to_compute)]
    probabilities = []
    labels: list[int] = []
    ok = len(scorer.spec.labels) - 1
    for (one, row), logits_SMC in zip(read, logits, strict=True):
        positions = zip(row.labels, one.positions, strict=True)
        of_segments = [label for label, position in positions if position is not None]
        probabilities_SMC = (logits_SMC / scorer.spec.temperature).softmax(-1)
        for label, probabilities_MC in zip(of_segments, probabilities_SMC.numpy(), strict=True):
            if label != IGNORED:
                probabilities.append(1 - probabilities_MC[:, ok])
                labels.append(label != ok)
    return np.array(probabilities), np.array(labels)


def run(settings: Settings) -> None:
    """Print a row for each ensemble."""
    task = NO_TASK if settings.task is None else load_task(settings.task)
    heads, *networks = (
        load_segment_classifier(folder, task.rm_prefix)
        for folder in (settings.heads, *settings.networks)
    )
    spec = heads.spec
    of_words = task.rm_prefix_of_words or Prefix.of
    rows = read_segment_rows(settings.rows, spec.labels, "Ignore", spec.level, of_words)
    ensembles = {
        "one network": networks[:1],
        f"one network, {heads.members} heads": [heads],
        f"{len(networks)} networks": networks,
    }
    seconds: dict[str, list[float]] = {name: [] for name in ensembles}
    results = {}
    for repetition in range(settings.times + 1):
        for name, scorers in ensembles.items():
            begun = time.process_time()
            results[name] = [judged(scorer, rows) for scorer in scorers]
            if repetition:  # the first one warms up
                seconds[name].append(time.process_time() - begun)
    base = statistics.median(seconds["one network"])
    print(f"{len(rows)} responses, {len(results['one network'][0][1])} segments\n")
    print("| judged by | seconds | ratio | accuracy | standard deviation | AUC for mistakes |")
    print("|---|---|---|---|---|---|")
    for name, of_scorers in results.items():
        median = statistics.median(seconds[name])
        wrong_N = of_scorers[0][1]
        p_NM = np.concatenate([p_NM for p_NM, _ in of_scorers], 1)
        mistakes_N = (p_NM.mean(1) > 0.5) != wrong_N
        spread_N = p_NM.std(1) if p_NM.shape[1] > 1 else -abs(p_NM[:, 0] - 0.5)
        spread = f"{p_NM.std(1).mean():.4f}" if p_NM.shape[1] > 1 else "–"
        cells = f"{median:.2f} | {median / base:.2f} | {1 - mistakes_N.mean():.3f} | {spread}"
        print(f"| {name} | {cells} | {auc(spread_N, mistakes_N):.3f} |", flush=True)


if __name__ == "__main__":
    run_program(run, Settings)
