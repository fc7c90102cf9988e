"""Win rate of one evaluated policy against another: a judge compares their responses.

    fgrlhf winrate [TASK] output_dir=DIR a=eval/rl-test b=eval/sft-test \\
        judge='{kind: judge, url: ..., model: ..., criterion: how helpful the response is}'

Writes <output_dir>/winrate/<name>/{judgements.jsonl, winrate.json, winrate.txt}. Response k of a is
compared with response k of b to the same prompt; equal responses tie. The answers of a `kind:
judge` are kept in <output_dir>/winrate/answers.jsonl as they come, so that an interrupted run asks
for none of them again. fgrlhf/win_rates.py has the figures.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PositiveInt, SerializeAsAny, model_validator

from fgrlhf.base.errors import UserError, counted, shorten
from fgrlhf.base.files import write_json, write_jsonl, write_text
from fgrlhf.base.program import run_main
from fgrlhf.cli.command_line import settings_from, task_and_rest
from fgrlhf.configs.strict import Amount, FilePath, StrictModel, refuse
from fgrlhf.configs.user_class import make_object, own_code
from fgrlhf.data.agreement.report import figure_values
from fgrlhf.data.formats import COMPARISONS
from fgrlhf.load import prompts_file
from fgrlhf.metrics.clusters import CLUSTER, clusters_by_prompt
from fgrlhf.metrics.rows import ROWS, EvaluationRow, read_records
from fgrlhf.report.evaluations import data_dir_of, split_of
from fgrlhf.runs.runlog import RunLog
from fgrlhf.runs.stage import begin, finish, folder_of, hold, stored_result
from fgrlhf.scorers.base import RewardContext
from fgrlhf.scorers.kinds import AnyTextScorer, JudgeScorer, PythonScorer
from fgrlhf.scorers.pairs import (
    Pair,
    PairAnswers,
    PairKey,
    compare_by_scores,
    compare_in_both_orders,
)
from fgrlhf.stats import Figure
from fgrlhf.task import Task
from fgrlhf.text_types import Prompt
from fgrlhf.win_rates import (
    DRAW,
    LOSS,
    VALUE,
    WIN,
    JudgedPair,
    agreement_figures,
    order_figures,
    outcome_figures,
    position_bias,
)

USAGE = """usage: fgrlhf winrate [TASK] output_dir=DIR a=eval/A-test b=eval/B-test judge=...
  writes to output_dir/winrate/NAME"""
JUDGEMENTS, RESULT, TABLE = "judgements.jsonl", "winrate.json", "winrate.txt"
ANSWERS = "answers.jsonl"
LABELS = {
    "win": "{a} wins",
    "tie": "tie",
    "lose": "{b} wins",
    "win_rate": "win rate of {a}, ties count 1/2",
    "length_controlled_win_rate": "the same, length-controlled",
    "first_preferred": "response shown first is preferred",
    "same_in_both_orders": "same answer in both orders",
    "agreement": "agreement with people's votes",
    "decided": "votes on pairs that the judge decides",
}


class WinrateSettings(StrictModel):
    """Two evaluations and a judge."""

    a: str = Field(description="folder of an evaluation in output_dir, such as eval/rl-test")
    b: str = Field(description="that of the policy to compare with, such as eval/sft-test")
    judge: SerializeAsAny[AnyTextScorer] = Field(
        description="compares the responses: any scorer of docs/rewards.md, Scorers"
    )
    output_dir: FilePath = Field(default=".", description="folder of the results")
    name: str | None = Field(
        default=None, description="the result is winrate/<name>; null: A_vs_B, by their folders"
    )
    sees: Literal["both", "one"] | None = Field(
        default=None,
        description="what the judge sees at a time: both responses, in both orders (kinds judge and"
        " python), or one, to compare the scores; null: both for kind judge, else one",
    )
    tie: Amount = Field(
        default=0.0, ge=0, description="scores that differ by this or less are a tie"
    )
    people: FilePath | None = Field(
        default=None,
        description="comparisons by people, which the judge compares too, to report the agreement",
    )
    prompts: FilePath | None = Field(
        default=None,
        description="file of the prompts, for a task's reward model, which may read more of them"
        " than their text; null: the file that was evaluated, if it is still there",
    )
    max_examples: PositiveInt | None = Field(
        default=None, description="use only the first prompts; null: all"
    )

    @model_validator(mode="after")
    def _judge_can_see(self):
        if self.sees_both and not isinstance(self.judge, JudgeScorer | PythonScorer):
            refuse([("sees", f"kind {self.judge.kind} scores one response: set sees=one")])
        if self.sees_both and self.tie:
            refuse([("tie", "is for scores: this judge sees both responses, so leave it out")])
        return self

    @property
    def sees_both(self) -> bool:
        return isinstance(self.judge, JudgeScorer) if self.sees is None else self.sees == "both"


@dataclass(frozen=True)
class SampledPair:
    """A pair with its place in the evaluations."""

    pair: Pair
    cluster: tuple[bool, str]
    sample: int


# ---- pairs ---------------------------------------------------------------------------------------


def evaluation_of(output_dir: str | Path, name: str) -> list[EvaluationRow]:
    """The rows of the evaluation in a folder. Raises `UserError` if there are none."""
    path = Path(output_dir) / name / ROWS
    if not path.is_file():
        known = sorted(str(one.parent.relative_to(output_dir)) for one in _evaluations(output_dir))
        have = f"it has {', '.join(known)}" if known else "it has no evaluations"
        raise UserError(
            f"{Path(output_dir) / name} has no {ROWS}, so it is no evaluation. Name one of"
            f" output_dir={shorten(output_dir)}: {have}"
        )
    return read_records(path, EvaluationRow)


def _evaluations(output_dir: str | Path) -> list[Path]:
    return list(Path(output_dir).glob(f"eval/*/{ROWS}"))


def prompts_file_of(task: Task, settings: WinrateSettings) -> Path | None:
    """The file of the prompts: the one that is given, or else the one that `a` was evaluated on.

    None if it is not recorded or not there any more, or no task says how to read it.
    """
    if settings.prompts is not None:
        return Path(settings.prompts)
    evaluation = Path(settings.output_dir) / settings.a
    data_dir = data_dir_of(evaluation)
    if data_dir is None or not task.name:
        return None
    file = prompts_file(data_dir, split_of(evaluation))
    return file if file is not None and file.is_file() else None


def paired_responses(
    a: Sequence[EvaluationRow], b: Sequence[EvaluationRow], prompts: Mapping[str, Prompt]
) -> list[SampledPair]:
    """The responses to the same prompt with the same number, in the order of a.

    Rows without `sample` have the number of their place among those of their prompt.

    Args:
      prompts: by id; a prompt that is missing has the text of its row.

    Raises:
      UserError: there is no such pair, or an id has different prompts in a, b and `prompts`.
    """
    clusters = clusters_by_prompt([row.as_json() for row in (*a, *b)]) or {}
    others = {(row.id, sample): row for row, sample in _numbered(b)}
    pairs = []
    for row, sample in _numbered(a):
        other = others.get((row.id, sample))
        if other is None:
            continue
        if other.prompt != row.prompt:
            raise UserError(
                f"the prompt {shorten(row.id, 60)} has another text in a than in b: evaluate both"
                " policies on the same file of prompts"
            )
        prompt = prompts.get(str(row.id), Prompt(str(row.id), row.prompt, tuple(row.references)))
        if prompt.text != row.prompt:
            raise UserError(
                f"the prompt {shorten(row.id, 60)} of a is not the one in the file of the prompts,"
                " which has changed since or is of another split: name the right one with"
                " prompts=..., or evaluate again"
            )
        cluster = clusters.get(row.id, (False, str(row.id)))
        pairs.append(SampledPair(Pair(prompt, row.response, other.response), cluster, sample))
    if not pairs:
        raise UserError(
            "a and b have no prompt in common: evaluate both policies on the same prompts"
        )
    return pairs


def _numbered(rows: Sequence[EvaluationRow]) -> Iterator[tuple[EvaluationRow, int]]:
    """Each row with the number of its response."""
    seen: Counter[str | int] = Counter()
    for row in rows:
        yield row, row.as_json().get("sample", seen[row.id])
        seen[row.id] += 1


def _of_first_prompts(sampled: Sequence[SampledPair], most: int | None) -> list[SampledPair]:
    """The pairs of the first prompts; all of them without `most`."""
    prompts = dict.fromkeys(one.pair.prompt.id for one in sampled)
    kept = set(list(prompts)[:most])
    return [one for one in sampled if one.pair.prompt.id in kept]


def _different(pairs: Sequence[Pair]) -> list[Pair]:
    """The pairs that a judge is asked about: those of different responses, each once."""
    return list({pair.key: pair for pair in pairs if pair.a != pair.b}.values())


def people_pairs(path: str) -> tuple[list[Pair], list[tuple[int, int]]]:
    """Pairs that people compared, and the number of their votes for each side.

    Raises:
      UserError: the file is no file of comparisons, or has no decided pair.
    """
    pairs = []
    votes = []
    for number, comparison in enumerate(COMPARISONS.read(path)):
        texts = [answer.text for answer in comparison.answers]
        for i, j in combinations(range(len(texts)), 2):
            for_i, for_j = comparison.pairs.count((i, j)), comparison.pairs.count((j, i))
            if for_i + for_j and texts[i] != texts[j]:
                prompt = comparison.prompt
                pairs.append(Pair(Prompt(f"people {number}", prompt.text), texts[i], texts[j]))
                votes.append((for_i, for_j))
    if not pairs:
        raise UserError(f"{path} has no pair that people decided: give another people=...")
    return pairs, votes


# ---- the judge -----------------------------------------------------------------------------------


def answers_of(task: Task, settings: WinrateSettings, pairs: Sequence[Pair]) -> list[PairAnswers]:
    """The judge's answers about pairs of different responses.

    Raises:
      UserError: the judge cannot be built, or does not answer.
    """
    import torch  # a mistake in the settings is found before it is loaded

    device = str(torch.accelerator.current_accelerator() or "cpu")
    context = RewardContext(task.rm_prefix, device)
    judge: Any
    if settings.sees_both and isinstance(settings.judge, PythonScorer):
        needed = "compare(prompts, firsts, seconds)"
        judge = make_object("judge", settings.judge.of, settings.judge.args, needed)
    else:
        judge = settings.judge.build(context)
    if settings.sees_both:
        return compare_in_both_orders(judge, pairs)
    return compare_by_scores(judge, pairs, settings.tie)


def _judged(
    pairs: Sequence[Pair], clusters: Sequence[Any], answers: Mapping[PairKey, PairAnswers]
) -> list[JudgedPair]:
    judged = []
    for pair, cluster in zip(pairs, clusters, strict=True):
        orders = (DRAW,)
        if pair.a != pair.b:
            orders = tuple(VALUE[answer] for answer in answers[pair.key].answers)
        judged.append(JudgedPair(pair.prompt.id, cluster, pair.a, pair.b, orders))
    return judged


def _rows(
    sampled: Sequence[SampledPair],
    judged: Sequence[JudgedPair],
    answers: Mapping[PairKey, PairAnswers],
) -> list[dict[str, Any]]:
    """The rows of judgements.jsonl."""
    words = {WIN: "a", DRAW: "tie", LOSS: "b"}
    rows = []
    for one, of_pair in zip(sampled, judged, strict=True):
        pair = one.pair
        row: dict[str, Any] = {"id": pair.prompt.id, "sample": one.sample}
        if one.cluster[0]:
            row[CLUSTER] = one.cluster[1]
        row |= {"prompt": pair.prompt.text, "a": pair.a, "b": pair.b}
        row["better"] = words[of_pair.outcome]
        if len(of_pair.orders) == 2:
            row["a shown first"], row["b shown first"] = (words[order] for order in of_pair.orders)
        if pair.key in answers and answers[pair.key].scores:
            row["score a"], row["score b"] = answers[pair.key].scores
        rows.append(row)
    return rows


# ---- the program ---------------------------------------------------------------------------------


def compare_policies(task: Task, settings: WinrateSettings) -> Path:
    """Judge the pairs, write the results and return their folder.

    Raises:
      UserError: an evaluation or a file is missing or broken, or the judge cannot be built or does
        not answer.
    """
    sides = _side_names(settings)
    name = settings.name or "_vs_".join(side.replace("/", "-") for side in sides.values())
    folder = folder_of(settings.output_dir, "winrate", name)
    if isinstance(settings.judge, JudgeScorer) and settings.judge.cache is None:
        cache = str(folder.parent / ANSWERS)
        judge = settings.judge.model_copy(update={"cache": cache})
        settings = settings.model_copy(update={"judge": judge})
    a, b = (evaluation_of(settings.output_dir, path) for path in (settings.a, settings.b))
    inputs = [Path(settings.output_dir) / path / ROWS for path in (settings.a, settings.b)]
    file = prompts_file_of(task, settings)
    inputs += [Path(path) for path in (settings.people, file) if path is not None]
    inputs += [*settings.judge.model_folders(), *own_code(settings).values()]
    with hold(folder):
        files = (JUDGEMENTS, RESULT, TABLE)
        if stored_result(folder, settings, inputs, redo=True, files=files) is not None:
            print(f"{name}: judged before, reusing {folder}", flush=True)
            print((folder / TABLE).read_text(encoding="utf-8"), end="", flush=True)
            return folder
        prompts = {}
        if file is not None:
            prompts = {prompt.id: prompt for prompt in task.prompts(file, "test", key="prompts")}
        sampled = paired_responses(a, b, prompts)
        alone = {"a": len(a) - len(sampled), "b": len(b) - len(sampled)}
        sampled = _of_first_prompts(sampled, settings.max_examples)
        pairs = [one.pair for one in sampled]
        by_people, votes = people_pairs(settings.people) if settings.people else ([], [])
        asked = _different([*pairs, *by_people])
        orders = ", each in both orders" if settings.sees_both else ""
        print(f"{name}: {counted(len(asked), 'pair')} to judge{orders}", flush=True)
        begin(folder, settings, inputs)
        with RunLog(folder, settings, task=task.name or None) as log, log.stage(f"judge {name}"):
            found = answers_of(task, settings, asked)
            answers = {pair.key: answer for pair, answer in zip(asked, found, strict=True)}
            judged = _judged(pairs, [one.cluster for one in sampled], answers)
            figures = {**outcome_figures(judged), **order_figures(judged)}
            if by_people:
                names = [pair.prompt.text for pair in by_people]
                figures |= agreement_figures(_judged(by_people, names, answers), votes)
            write_jsonl(folder / JUDGEMENTS, _rows(sampled, judged, answers))
            result = _result(settings, sides, judged, figures, alone)
            write_json(folder / RESULT, result)
            text = table(result["note"], sides, judged, figures)
            write_text(folder / TABLE, text)
        finish(folder, {"pairs": len(judged)})
    print(text, end="", flush=True)
    return folder


def _side_names(settings: WinrateSettings) -> dict[str, str]:
    """The names of the evaluations' folders, with those above if both are the same.

    Raises:
      UserError: both are one folder.
    """
    paths = [Path(os.path.normpath(name)) for name in (settings.a, settings.b)]
    if paths[0] == paths[1]:
        raise UserError(f"a and b are the same evaluation, {shorten(settings.a)}: name another b")
    names = [path.name for path in paths]
    if names[0] == names[1]:
        names = [str(path).strip("/") for path in paths]
    return dict(zip(("a", "b"), names, strict=True))


def _result(
    settings: WinrateSettings,
    sides: Mapping[str, str],
    judged: Sequence[JudgedPair],
    figures: Mapping[str, Figure],
    alone: Mapping[str, int],
) -> dict[str, Any]:
    """What winrate.json has. `alone`: how many responses of each side have no counterpart."""
    prompts = len({pair.prompt for pair in judged})
    clusters = len({pair.cluster for pair in judged})
    units = counted(prompts, "prompt")
    if clusters < prompts:
        units = f"{counted(clusters, 'cluster')} of {units}"
    equal = sum(pair.a == pair.b for pair in judged)
    note = f"{counted(len(judged), 'pair')}, {equal} of them equal; 95% intervals over {units}"
    without = [f"{count} of {sides[side]}" for side, count in alone.items() if count]
    if without:
        note += f"; responses without a counterpart, left out: {', '.join(without)}"
    result = {"a": settings.a, "b": settings.b, "note": note, **figure_values(figures)}
    result["mean characters"] = {side: _mean_length(judged, side) for side in sides}
    if "first_preferred" in figures:
        result["position bias"] = position_bias(figures["first_preferred"])
    return result


def _mean_length(judged: Sequence[JudgedPair], side: str) -> float:
    return sum(len(getattr(pair, side)) for pair in judged) / len(judged)


def table(
    note: str,
    sides: Mapping[str, str],
    judged: Sequence[JudgedPair],
    figures: Mapping[str, Figure],
) -> str:
    """The figures as text."""
    labels = {name: LABELS[name].format(**sides) for name in figures}
    width = max(map(len, labels.values()))
    lines = [f"{sides['a']} against {sides['b']}: {note}"]
    lines += [f"  {labels[name]:<{width}}  {figure}" for name, figure in figures.items()]
    lengths = [f"{sides[side]} {_mean_length(judged, side):.0f}" for side in sides]
    lines.append(f"  mean length in characters: {', '.join(lengths)}")
    if "first_preferred" in figures:
        lines.append(f"  position bias: {position_bias(figures['first_preferred'])}")
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> None:
    task, rest = task_and_rest(argv, USAGE)
    compare_policies(task, settings_from(WinrateSettings, rest, USAGE))


if __name__ == "__main__":
    run_main(main)
