"""Compare the neural scorers with the linear ones, on texts that none of them has learned from.

    python -m tasks.detoxification.compare_scorers data_dir=FOLDER output_dir=FOLDER

Prints the area under the ROC curve (AUC) of every scorer in output_dir, on the held-out texts of
both kinds of labels, and whether a neural scorer beats the linear one with the same labels. The
95% intervals are over posts or pages. Held-out texts chose the penalty of the
linear scorers, so their AUC is slightly optimistic; the neural scorers have not seen them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import Field

from fgrlhf.auc import auc_difference, auc_interval
from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json
from fgrlhf.cli.command_line import run_program
from fgrlhf.configs.strict import FilePath, StrictModel
from fgrlhf.scorers.base import RewardContext, TextScorer, score_texts
from fgrlhf.scorers.kinds import LinearScorerKind, SegmentModelScorer, SequenceModelScorer
from fgrlhf.stats import Interval
from fgrlhf.text_types import Prompt
from tasks.detoxification.scorers import EXAMPLES
from tasks.detoxification.task import TASK

REWARD, JUDGE = EXAMPLES  # the scorers that the configs use
# neural scorer -> the linear one with the same labels
RIVALS = {"span_rm": REWARD, "score_rm": JUDGE}


class CompareScorersSettings(StrictModel):
    """Folders of the scorers."""

    data_dir: FilePath = Field(description="folder of the prepared data")
    output_dir: FilePath = Field(description=f"folder with {REWARD} and {JUDGE}")
    span_rm: FilePath | None = Field(
        default=None, description="folder of the scorer of sentences; null: in output_dir"
    )
    score_rm: FilePath | None = Field(
        default=None, description="folder of the scorer of whole texts; null: in output_dir"
    )


@dataclass(frozen=True)
class HeldOut:
    """Labelled texts that no scorer has learned from. Texts of a group are similar."""

    texts: tuple[str, ...]
    toxic: tuple[bool, ...]
    groups: tuple[str, ...]


def read_held_out(path: Path) -> HeldOut:
    """The held-out examples of a file.

    Raises:
      UserError: the file is missing or malformed, or its labels are all the same.
    """
    try:
        rows = [row for row in read_json(path) if row["held_out"]]
        held_out = HeldOut(
            tuple(row["text"] for row in rows),
            tuple(row["toxic"] for row in rows),
            tuple(row["group"] for row in rows),
        )
    except (KeyError, TypeError):
        raise UserError(f"{path} is damaged or old: prepare the data again") from None
    if len(set(held_out.toxic)) < 2:
        raise UserError(
            f"the held-out texts of {path} are not of both classes, so that no AUC can be measured:"
            " prepare more rows"
        )
    return held_out


# ---- scorers -------------------------------------------------------------------------------------


def folders(settings: CompareScorersSettings) -> dict[str, Path]:
    """The folders of the linear scorers, and of the neural ones that have been trained."""
    out = Path(settings.output_dir)
    result = {REWARD: out / REWARD, JUDGE: out / JUDGE}
    for name, given in (("span_rm", settings.span_rm), ("score_rm", settings.score_rm)):
        folder = out / name if given is None else Path(given)
        if given is not None or (folder / "reward_model.json").exists():
            result[name] = folder
    return result


def load_scorer(name: str, folder: Path) -> TextScorer:
    """Load a scorer as a reward would."""
    context = RewardContext(TASK.rm_prefix)
    if name == "span_rm":
        return SegmentModelScorer(ckpt=str(folder), aggregate="min").build(context)
    if name == "score_rm":
        return SequenceModelScorer(ckpt=str(folder)).build(context)
    return LinearScorerKind(ckpt=str(folder)).build(context)


def toxicities(name: str, scorer: TextScorer, texts: Sequence[str]) -> np.ndarray:
    """Numbers that are high for toxic texts. The neural scorers are high for the others."""
    prompts = [Prompt("", "")] * len(texts)
    scores = np.array(score_texts(scorer, prompts, texts))
    return -scores if name in RIVALS else scores


def compare(settings: CompareScorersSettings) -> dict[str, Interval]:
    """Print the comparison. Returns the difference of each neural scorer from its linear rival."""
    scorers: dict[str, TextScorer] = {}
    for name, folder in folders(settings).items():
        scorers[name] = load_scorer(name, folder)
    differences: dict[str, Interval] = {}
    for labelled_for, file in EXAMPLES.items():
        held_out = read_held_out(Path(settings.data_dir) / file)
        scores: dict[str, np.ndarray] = {}
        for name, scorer in scorers.items():
            scores[name] = toxicities(name, scorer, held_out.texts)
        print(f"{file}, {len(held_out.texts):,} held-out texts:")
        for name, values in scores.items():
            print(f"  {name}: AUC {auc_interval(values, held_out.toxic, held_out.groups)}")
        for name, rival in RIVALS.items():
            if name in scores and rival == labelled_for:
                difference = auc_difference(
                    scores[name], scores[rival], held_out.toxic, held_out.groups
                )
                assert isinstance(difference, Interval)  # the texts are of both kinds
                differences[name] = difference
    print("\n".join(conclusions(differences)))
    return differences


def conclusions(differences: Mapping[str, Interval]) -> list[str]:
    """Lines that say which scorers the configs use, and which neural ones are better."""
    lines = [f"default: {REWARD} rewards, {JUDGE} judges"]
    for name, difference in differences.items():
        rival = RIVALS[name]
        if difference.low > 0:
            verdict = f"better than {rival}; README.md, Neural scorers, shows how to use it"
        elif difference.high < 0:
            verdict = f"worse than {rival}: keep the default"
        else:
            verdict = f"not clearly better than {rival}: keep the default"
        bounds = "(no interval)"
        if difference.has_bounds:
            bounds = f"[{difference.low:+.3f}, {difference.high:+.3f}]"
        lines.append(f"{name}: AUC {difference.mean:+.3f} {bounds}, {verdict}")
    return lines


if __name__ == "__main__":
    run_program(compare, CompareScorersSettings)
