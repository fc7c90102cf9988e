"""`make faults`: run the campaign and print its table.

python -m faults [kinds=kill,disk] [seed=0] [scale=1] [only=12] [lanes=2]
                 [output_dir=outputs/faults]
"""

import os

# Set before numpy and torch are imported: no thread may run when a child is forked.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"

import shutil
import sys
import time
from collections import Counter
from contextlib import redirect_stdout
from pathlib import Path

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from faults import world
from faults.campaign import Bench, Failure, Kind, Tally, in_child, run_kind, table, table_rows
from faults.child import warm_up
from faults.kinds import KINDS
from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json, write_text
from fgrlhf.base.program import run_main
from fgrlhf.cli.command_line import settings_from
from fgrlhf.configs.strict import StrictModel

SHOWN = 3  # printed failures per kind and verdict; faults.md lists all


class Settings(StrictModel):
    """Which trials to run."""

    kinds: str = Field(",".join(KINDS), description="comma-separated")
    seed: int = 0
    scale: PositiveFloat = Field(1.0, description="0.1: a tenth of the trials")
    only: NonNegativeInt | None = Field(
        None, description="run only the trial of this index, of a single kind"
    )
    lanes: PositiveInt = Field(2, description="parallel trials")
    output_dir: str = "outputs/faults"

    def chosen(self) -> list[type[Kind]]:
        names = self.kinds.split(",")
        unknown = [name for name in names if name not in KINDS]
        if unknown:
            raise UserError(
                f"kinds={self.kinds}: there is no {', '.join(unknown)}; choose from"
                f" {', '.join(KINDS)}"
            )
        if self.only is not None and len(names) != 1:
            raise UserError("only=... needs a single kind: add kinds=...")
        return [KINDS[name] for name in names]


def prepare(settings: Settings) -> Bench:
    """Import everything and create the tiny world."""
    folder = Path(settings.output_dir).absolute()
    for name in ("trials", "failed", "world", "reference"):
        shutil.rmtree(folder / name, ignore_errors=True)
    print("importing modules and making a tiny world", flush=True)
    warm_up(world.MODULES)

    def make() -> None:
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
            world.make(folder / "world")

    os.environ.update(world.World(folder / "world").environment)
    in_child(make)
    return Bench(world.World(folder / "world"), settings.seed, settings.scale, folder)


def run(settings: Settings) -> list[Tally]:
    """Run every chosen kind and write the results after each."""
    chosen = settings.chosen()
    started = time.monotonic()
    bench = prepare(settings)
    tallies = []
    for kind_class in chosen:
        kind = kind_class(bench)
        count = kind.count()
        if settings.only is not None and settings.only >= count:
            raise UserError(
                f"only={settings.only}: {kind.name} has {count} trials at scale={settings.scale:g}"
            )
        indices = range(count) if settings.only is None else [settings.only]
        print(f"{kind.name}: {len(indices)} trials", flush=True)
        kind.prepare(indices)
        tallies.append(run_kind(kind, indices, settings.lanes))
        failed = len(tallies[-1].failures)
        print(
            f"{kind.name}: done in {tallies[-1].seconds / 60:.1f} min, {failed} failed", flush=True
        )
        write(settings, tallies, time.monotonic() - started)
    return tallies


def write(settings: Settings, tallies: list[Tally], seconds: float) -> None:
    """Write faults.json and faults.md."""
    folder = Path(settings.output_dir)
    failures = [failure for tally in tallies for failure in tally.failures]
    listed = []
    for failure in failures:
        listed.append(
            {
                "kind": failure.kind,
                "index": failure.index,
                "verdict": failure.outcome.verdict,
                "note": failure.outcome.note[:2000],
                "folder": failure.folder,
                "command": failure.command,
            }
        )
    record = {"seed": settings.seed, "scale": settings.scale, "minutes": round(seconds / 60, 1)}
    write_json(
        folder / "faults.json",
        {**record, "table": table_rows(tallies), "failures": _printable(listed)},
    )
    lines = [table(tallies), "", f"{len(failures)} failures."]
    lines += [f"- `{f.command}`: {f.outcome.verdict}: {_line(f.outcome.note)}" for f in failures]
    write_text(folder / "faults.md", _printable("\n".join(lines) + "\n"))


def first_of_each(failures: list[Failure]) -> list[Failure]:
    """The first few failures of each kind and verdict."""
    shown = []
    count = Counter()
    for failure in failures:
        name = failure.kind, failure.outcome.row, failure.outcome.verdict
        count[name] += 1
        if count[name] <= SHOWN:
            shown.append(failure)
    return shown


def _line(text: str) -> str:
    return " ".join(text.split())[:300]


def _printable(value):
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, list):
        return [_printable(item) for item in value]
    if isinstance(value, dict):
        return {key: _printable(item) for key, item in value.items()}
    return value


def main() -> None:
    settings = settings_from(Settings)
    tallies = run(settings)
    failures = [failure for tally in tallies for failure in tally.failures]
    shutil.rmtree(Path(settings.output_dir) / "trials", ignore_errors=True)
    print(f"\n{table(tallies)}\n")
    for failure in first_of_each(failures):
        print(
            f"{failure.command}\n    {failure.outcome.verdict}:"
            f" {_printable(_line(failure.outcome.note))}"
        )
    print(
        f"{len(failures)} failures; {settings.output_dir}/faults.md and faults.json; "
        f"failed trials in {settings.output_dir}/failed"
    )
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    run_main(main)
