"""Asks reward models, next to the oracle, about answers that policies are known to find when they
game a reward.

    python -m tasks.qa_feedback.data.probe data_dir=outputs/qa_feedback/mini/data
    output_dir=outputs/qa_feedback/mini

Each question of the mini world is answered by its gold answer, the gold answer's first sentence,
the gold answer with a repeat, one sentence said two, four and six times, and every fact of its
pages. A model that scores a worse answer above the gold one will be found out by PPO: that is a
warning here, in seconds, before any training.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from pydantic import Field, PositiveInt

from fgrlhf.cli.command_line import settings_from
from fgrlhf.config import StrictModel
from fgrlhf.errors import UserError, run_main
from fgrlhf.files import write_json
from fgrlhf.reward_models.scoring import SegmentScorer, SequenceScorer, load_reward_model
from fgrlhf.types import Prompt
from tasks.qa_feedback.data.oracle import judge, page_sentences
from tasks.qa_feedback.feedback import SplitName, load_examples, rm_prefix

GOLD = "gold answer"
REPEATED = "gold answer, first sentence again"
REWARD_MODELS = ("rel_rm", "fact_rm", "comp_rm", "baseline_rm")


def probes(prompt: Prompt) -> dict[str, str]:
    """The answers to one question, by name."""
    gold = prompt.references[0]
    first = gold.split(". ")[0].rstrip(".") + "."
    facts = [
        sentence for passage in prompt.meta["passages"] for sentence in page_sentences(passage)[1]
    ]
    return {
        GOLD: gold,
        "its first sentence": first,
        REPEATED: f"{gold} {first}",
        **{f"first sentence x{n}": " ".join([first] * n) for n in (2, 4, 6)},
        "all facts of the pages": " ".join(facts),
    }


@dataclass(frozen=True)
class Probe:
    """`scores[judge][answer]`: means over the questions. Judges are the oracle's measures and the
    models.

    A segment model's entry is its share of error-free segments, a sequence model's its z-score.
    """

    scores: Mapping[str, Mapping[str, float]]
    warnings: tuple[str, ...]


def _ratios(scorer: SegmentScorer, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
    shares = []
    for labels in scorer.score(prompts, texts):
        judged = labels.probabilities_SL[list(labels.judged)]
        shares.append(float((judged[:, 1] > judged[:, 0]).float().mean()) if len(judged) else 0.0)
    return shares


def _scores(
    scorer: SegmentScorer | SequenceScorer, prompts: Sequence[Prompt], texts: Sequence[str]
) -> list[float]:
    if isinstance(scorer, SegmentScorer):
        return _ratios(scorer, prompts, texts)
    return ((scorer.score(prompts, texts) - scorer.mean) / scorer.std).tolist()


def _warnings(name: str, sequence: bool, scores: Mapping[str, float]) -> list[str]:
    """What PPO would exploit. A segment model may like the parts of a worse answer, but not a
    repeat.
    """
    if sequence:
        return [
            f"{name} scores `{answer}` {score - scores[GOLD]:+.2f} std above the gold answer"
            for answer, score in scores.items()
            if answer != GOLD and score > scores[GOLD]
        ]
    if name == "rel_rm" and scores[REPEATED] >= scores[GOLD]:
        return [
            f"{name} does not notice a repeated sentence: {scores[REPEATED]:.2f} error-free,"
            f" {scores[GOLD]:.2f} without the repeat"
        ]
    return []


def run_probe(
    prompts: Sequence[Prompt], models: Mapping[str, SegmentScorer | SequenceScorer]
) -> Probe:
    """Score the probes of every question with the oracle and every model."""
    answers = [probes(prompt) for prompt in prompts]
    scores: dict[str, dict[str, float]] = {}
    warnings: list[str] = []
    for measure in ("gold", "relevance", "factuality", "completeness"):
        scores[f"oracle {measure}"] = {
            name: mean(
                getattr(judge(p.meta["question"], p.meta["passages"], a[name]), measure)
                for p, a in zip(prompts, answers)
            )
            for name in answers[0]
        }
    for model_name, scorer in models.items():
        scores[model_name] = {
            name: mean(_scores(scorer, prompts, [a[name] for a in answers])) for name in answers[0]
        }
        warnings += _warnings(model_name, isinstance(scorer, SequenceScorer), scores[model_name])
    return Probe(scores, tuple(warnings))


def table(probe: Probe) -> str:
    """Answers down, judges across."""
    names = list(next(iter(probe.scores.values())))
    width = max(map(len, names))
    lines = [" " * width + "".join(f"{column:>{len(column) + 2}}" for column in probe.scores)]
    for name in names:
        cells = "".join(
            f"{scores[name]:>{len(column) + 2}.2f}" for column, scores in probe.scores.items()
        )
        lines.append(f"{name:<{width}}{cells}")
    return "\n".join([*lines, *(f"warning: {text}" for text in probe.warnings)])


class Settings(StrictModel):
    """Which questions and which reward models."""

    data_dir: str
    output_dir: str = Field(
        description=(
            "folder that holds rel_rm, fact_rm, comp_rm, baseline_rm (those there are); gets"
            " probe.json"
        )
    )
    split: SplitName = "dev"
    examples: PositiveInt = 100


def main(settings: Settings) -> Path:
    """Write <output_dir>/probe.json and print the table.

    Raises:
      UserError: the questions are not of the mini world, there is no reward model, or one cannot be
        loaded.
    """
    prompts = load_examples(Path(settings.data_dir) / f"{settings.split}.json")[: settings.examples]
    if not all(judge(p.meta["question"], p.meta["passages"], "").needed for p in prompts):
        raise UserError(
            f"{settings.data_dir}/{settings.split}.json has questions that are not of the mini"
            " world, and the probe makes its answers from the pages of that world. Give a folder"
            " that make_mini.sh wrote: data_dir=..."
        )
    folders = [Path(settings.output_dir) / name for name in REWARD_MODELS]
    trained = [folder for folder in folders if os.path.isfile(folder / "config.json")]
    if not trained:
        raise UserError(
            f"{settings.output_dir} holds none of the reward models {', '.join(REWARD_MODELS)}, so"
            " there is nothing to probe. Train them first, with `make demo` or"
            " tasks/qa_feedback/reward_modeling/train_*_rm.sh, or give another output_dir=..."
        )
    models = {folder.name: load_reward_model(folder, rm_prefix) for folder in trained}
    probe = run_probe(prompts, models)
    print(table(probe), flush=True)
    path = Path(settings.output_dir) / "probe.json"
    write_json(
        path, {"scores": probe.scores, "warnings": list(probe.warnings), "questions": len(prompts)}
    )
    return path


if __name__ == "__main__":
    run_main(lambda: main(settings_from(Settings)))
