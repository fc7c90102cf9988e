"""Best-of-n: of several evaluated responses to a prompt, keep the one with the highest reward.

    fgrlhf best-of-n output_dir=DIR source=sft_samples [split=test]

It reads the evaluation of a policy with `num_samples` responses per prompt, and writes an
evaluation of the chosen responses, as if they were those of another policy. Nothing is trained or
sampled. The rewards choose, so all other metrics, such as an oracle's, judge the choice.

The column `kl` is left out: it is about the policy that sampled, and its mean over chosen responses
says nothing about the choice. The KL of best-of-n from that policy is at most log n - (n - 1)/n
(Beirami et al. 2024, arXiv 2401.01879).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json, write_jsonl
from fgrlhf.base.program import run_main
from fgrlhf.cli.command_line import settings_from
from fgrlhf.cli.evaluate import RESULTS, table
from fgrlhf.configs.strict import FilePath, StrictModel
from fgrlhf.metrics.rows import ROWS, SUMMARY, read_rows
from fgrlhf.metrics.summary import summarize
from fgrlhf.runs.runlog import RunLog
from fgrlhf.runs.stage import begin, finish, folder_of, hold, stored_result

USAGE = "usage: fgrlhf best-of-n output_dir=DIR source=NAME [split=test] [metric=reward]"


class BestOfNSettings(StrictModel):
    """The evaluation to choose from."""

    output_dir: FilePath = Field(description="folder of the results")
    source: str = Field(description="name of the evaluation with several responses per prompt")
    split: str = Field(default="test", description="the evaluation is eval/<source>-<split>")
    name: str = Field(default="best_of_n", description="the result is eval/<name>-<split>")
    metric: str = Field(default="reward", description="column that chooses, higher is better")


def best_rows(rows: Sequence[Mapping[str, Any]], metric: str) -> list[Mapping[str, Any]]:
    """For each prompt, the row with the highest `metric`, in the order of the prompts.

    Of several rows with the highest value, the first is kept. Rows without a value, and prompts
    with only such rows, are left out.

    Raises:
      UserError: no row has a value.
    """
    best: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        value = row.get(metric)
        if not isinstance(value, int | float):
            continue
        best_so_far = best.get(row["id"])
        if best_so_far is None or value > best_so_far[metric]:
            best[row["id"]] = row
    if not best:
        known = ", ".join(sorted({name for row in rows for name in row}))
        raise UserError(
            f"no response has a value of `{metric}`, so none can be chosen. The columns are {known}"
        )
    return list(best.values())


def choose(settings: BestOfNSettings) -> Path:
    """Write the evaluation of the chosen responses and return its folder.

    Raises:
      UserError: the evaluation is missing or broken, has no such metric, or has the name of the
        result.
    """
    source = Path(settings.output_dir) / "eval" / f"{settings.source}-{settings.split}"
    if not (source / ROWS).is_file():
        raise UserError(
            f"{source} has no {ROWS}: evaluate a policy with"
            f" `fgrlhf evaluate ... name={settings.source} do_sample=true num_samples=4` first, or"
            " set another source=..."
        )
    folder = folder_of(settings.output_dir, "eval", f"{settings.name}-{settings.split}")
    if folder.resolve() == source.resolve():
        raise UserError(
            f"name and source are both {settings.name}, so the chosen responses would replace all"
            " others: give another name=..."
        )
    inputs = [source / ROWS]
    with hold(folder):
        if stored_result(folder, settings, inputs, redo=True, files=RESULTS) is not None:
            print(f"{settings.name}: chosen before, reusing {folder}", flush=True)
            return folder
        rows = read_rows(source / ROWS)
        best = best_rows(rows, settings.metric)
        chosen = [{name: row[name] for name in row if name != "kl"} for row in best]
        begin(folder, settings, inputs)
        with RunLog(folder, settings) as log, log.stage(f"choose {settings.name}"):
            summary = {name: interval.as_dict() for name, interval in summarize(chosen).items()}
            write_jsonl(folder / ROWS, chosen)
            write_json(folder / SUMMARY, summary)
        finish(folder, {"prompts": len(chosen), "responses": len(rows)})
    print(table(summary), flush=True)
    return folder


def main(argv: Sequence[str] | None = None) -> None:
    choose(settings_from(BestOfNSettings, argv, USAGE))


if __name__ == "__main__":
    run_main(main)
