"""What an ensemble of reward models costs: heads on one network beside networks of their own.

    python -m benchmarks.ensembles heads=outputs/rel_rm_4 one=outputs/rel_rm rows=outputs/derived/NF-ERR_subsentence/dev.json

`one` has one head, `heads` has M (`model.members`). Both are rewards of the same responses, in
turns: the network with one head, the one with M, and M times the first, as an ensemble of M folders.
Times are the medians of processor seconds, and their ratios to one network with one head.
"""

import statistics
import time
from collections.abc import Callable, Sequence

from pydantic import Field, PositiveInt

from fgrlhf.cli.command_line import run_program
from fgrlhf.configs.strict import StrictModel
from fgrlhf.reward import AspectReward, SegmentClassifierReward
from fgrlhf.reward_models.loading import load_segment_classifier
from fgrlhf.reward_models.prefix import Prefix
from fgrlhf.rewards.scored import EnsembleReward
from fgrlhf.text_types import Prompt
from reward_modeling.data import read_segment_rows


class Settings(StrictModel):
    """What is compared."""

    heads: str = Field(description="folder of a segment reward model with several heads")
    one: str = Field(description="folder of the same with one head")
    rows: str = Field(description="segment file of the responses")
    responses: PositiveInt = Field(default=128, description="the first of the file are read")
    times: PositiveInt = Field(default=5, description="repetitions")


def ensembles(settings: Settings) -> dict[str, AspectReward]:
    """The three rewards by name."""

    def words(prompt: Prompt, _: bool) -> Sequence[str]:
        return prompt.text.split()

    def load(folder: str) -> SegmentClassifierReward:
        scorer = load_segment_classifier(folder, words)
        return SegmentClassifierReward(scorer, {"error": -0.5, "ok": 0.3}, "expected")

    heads, one = load(settings.heads), load(settings.one)
    members = heads.scorer.members
    return {
        "one network, one head": one,
        f"one network, {members} heads": EnsembleReward([heads], kappa=1.0),
        f"{members} networks": EnsembleReward([one] * members, kappa=1.0),
    }


def seconds(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


def run(settings: Settings) -> None:
    """Print a row for each reward."""
    rewards = ensembles(settings)
    labels = load_segment_classifier(settings.one, lambda *_: Prefix.of(())).spec.labels
    rows = read_segment_rows(settings.rows, labels, "Ignore")[: settings.responses]
    prompts = [Prompt(str(i), " ".join(row.text.prefix.words)) for i, row in enumerate(rows)]
    texts = [row.text.response for row in rows]
    measured: dict[str, list[float]] = {name: [] for name in rewards}
    for round_number in range(settings.times + 1):
        for name, reward in rewards.items():
            spent = seconds(lambda: reward.segment_scores(prompts, texts))  # noqa: B023
            if round_number:  # the first one warms up
                measured[name].append(spent)
    medians = {name: statistics.median(values) for name, values in measured.items()}
    base = next(iter(medians.values()))
    print(f"| {len(texts)} responses | processor seconds | ratio |\n|---|---|---|")
    for name, median in medians.items():
        print(f"| {name} | {median:.2f} | {median / base:.2f} |", flush=True)


if __name__ == "__main__":
    run_program(run, Settings)
