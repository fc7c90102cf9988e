"""`make probe`: score answers that exploit typical weaknesses of reward models.

    python -m tasks.experiments.probe data_dir=outputs/qa_feedback/mini/data \\
        output_dir=outputs/qa_feedback/mini

For each question of the mini world, the reward models and the oracle score the gold answer, its
first sentence, the gold answer with a repeat, one sentence two, four and six times, and a list of
all facts of the pages. PPO would exploit a model that scores a worse answer above the gold answer.
The probe shows that as a warning, in seconds, before any training.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from pydantic import Field, PositiveInt

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json
from fgrlhf.cli.command_line import run_program
from fgrlhf.configs.strict import FilePath, StrictModel
from fgrlhf.pipeline.summary import grid
from fgrlhf.reward_models.loading import load_reward_model
from fgrlhf.reward_models.scoring import SegmentScorer, SequenceScorer
from fgrlhf.text_types import Prompt
from fgrlhf.words import join_texts
from tasks.experiments.policies import METRICS
from tasks.experiments.qa import REWARD_MODELS
from tasks.qa_feedback.data.oracle import full_sentences, judge, page_sentences
from tasks.qa_feedback.feedback import SplitName, load_examples, rm_prefix

GOLD = "gold answer"
REPEATED = "gold answer, first sentence again"


def probes(prompt: Prompt) -> dict[str, str]:
    """The probe answers to a question, by name."""
    gold = prompt.references[0]
    first = next(iter(full_sentences(gold)), gold)
    facts = [
        sentence for passage in prompt.meta["passages"] for sentence in page_sentences(passage)[1]
    ]
    return {
        GOLD: gold,
        "its first sentence": first,
        REPEATED: join_texts([gold, first]),
        **{f"first sentence x{n}": join_texts([first] * n) for n in (2, 4, 6)},
        "all facts of the pages": join_texts(facts),
    }


@dataclass(frozen=True)
class Probe:
    """The results of a probe.

    `scores[judge][answer]` is a mean over the questions. Judges are the oracle's metrics and the
    reward models: the share of error-free segments for a segment model, the z-score for a sequence
    model.
    """

    scores: Mapping[str, Mapping[str, float]]
    warnings: tuple[str, ...]


def _ratios(scorer: SegmentScorer, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
    """The share of error-free segments of each text; 0 without a judged segment."""
    shares = []
    for labels in scorer.score(prompts, texts):
        judged_SC = labels.probabilities_SC[list(labels.judged)]
        is_ok_S = judged_SC[:, 1] > judged_SC[:, 0]  # the labels are an error, and none
        shares.append(float(is_ok_S.float().mean()) if len(is_ok_S) else 0.0)
    return shares


def _scores(
    scorer: SegmentScorer | SequenceScorer, prompts: Sequence[Prompt], texts: Sequence[str]
) -> list[float]:
    if isinstance(scorer, SegmentScorer):
        return _ratios(scorer, prompts, texts)
    return ((scorer.score(prompts, texts) - scorer.mean) / scorer.std).tolist()


def _warnings(name: str, is_sequence_model: bool, scores: Mapping[str, float]) -> list[str]:
    """Weaknesses that PPO would exploit.

    A segment model may score the segments of a worse answer higher, but the relevance model must
    notice a repeat.
    """
    if is_sequence_model:
        warnings = []
        for answer, score in scores.items():
            above = score - scores[GOLD]
            if above > 0:
                warnings.append(f"{name} scores `{answer}` {above:+.2f} std above the gold answer")
        return warnings
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
    names = list(answers[0])
    truths = {}
    for name in names:
        truths[name] = [
            judge(prompt.meta["question"], prompt.meta["passages"], texts[name])
            for prompt, texts in zip(prompts, answers)
        ]
    scores: dict[str, dict[str, float]] = {}
    warnings: list[str] = []
    for metric in METRICS:
        scores[f"oracle {metric}"] = {
            name: mean(getattr(truth, metric) for truth in truths[name]) for name in names
        }
    for model_name, scorer in models.items():
        scores[model_name] = {}
        for name in names:
            texts_of_name = [texts[name] for texts in answers]
            scores[model_name][name] = mean(_scores(scorer, prompts, texts_of_name))
        warnings += _warnings(model_name, isinstance(scorer, SequenceScorer), scores[model_name])
    return Probe(scores, tuple(warnings))


def table(probe: Probe) -> str:
    """The scores as text: one row per answer, one column per judge; then the warnings."""
    cells = [["", *probe.scores]]
    for name in next(iter(probe.scores.values())):
        cells.append([name, *(f"{scores[name]:.2f}" for scores in probe.scores.values())])
    return "\n".join([*grid(cells), *(f"warning: {text}" for text in probe.warnings)])


class ProbeSettings(StrictModel):
    """The questions and the reward models."""

    data_dir: FilePath = Field(description="folder of the rows")
    output_dir: FilePath = Field(
        description=(
            "folder with one or more of rel_rm, fact_rm, comp_rm and baseline_rm; probe.json is"
            " written there"
        )
    )
    split: SplitName = Field(default="dev", description="which prompts: <data_dir>/<split>.json")
    examples: PositiveInt = Field(default=100, description="number of questions")


def main(settings: ProbeSettings) -> Path:
    """Write <output_dir>/probe.json and print the table.

    Raises:
      UserError: the questions are not of the mini world, there is no reward model, or one cannot be
        loaded.
    """
    prompts = load_examples(Path(settings.data_dir) / f"{settings.split}.json")[: settings.examples]
    if not all(judge(p.meta["question"], p.meta["passages"], "").needed for p in prompts):
        raise UserError(
            f"{settings.data_dir}/{settings.split}.json has questions that are not of the mini"
            " world, but the probe builds its answers from the pages of that world. Set"
            " data_dir=... to a folder that make_mini.sh wrote"
        )
    folders = [Path(settings.output_dir) / name for name in REWARD_MODELS]
    trained = [folder for folder in folders if os.path.isfile(folder / "config.json")]
    if not trained:
        raise UserError(
            f"{settings.output_dir} has none of the reward models {', '.join(REWARD_MODELS)}, so"
            " there is nothing to probe. Train them first, with `make demo` or"
            " tasks/qa_feedback/reward_modeling/train_*_rm.sh, or set another output_dir=..."
        )
    models = {folder.name: load_reward_model(folder, rm_prefix) for folder in trained}
    probe = run_probe(prompts, models)
    print(table(probe), flush=True)
    path = Path(settings.output_dir) / "probe.json"
    warnings = list(probe.warnings)
    write_json(path, {"scores": probe.scores, "warnings": warnings, "questions": len(prompts)})
    return path


if __name__ == "__main__":
    run_program(main, ProbeSettings)
