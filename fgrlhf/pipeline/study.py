"""A study: its stages, and what is concluded from their outputs, as data."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from fgrlhf.base.files import write_json, write_text
from fgrlhf.configs.strict import StrictModel
from fgrlhf.kernels.choice import processor_name
from fgrlhf.pipeline.experiments import Experiment
from fgrlhf.pipeline.stages import Pipeline, Stage

S = TypeVar("S", bound=StrictModel)


@dataclass(frozen=True)
class Plan:
    """What a study runs.

    Args:
      experiment: the folder and the environment of the stages.
      stages: in an order that keeps the lanes busy.
      lanes: stages at the same time.
    """

    experiment: Experiment
    stages: Sequence[Stage]
    lanes: int


@dataclass(frozen=True)
class Study(Generic[S]):
    """Stages, and what is concluded from their outputs.

    Args:
      settings: the keys of its command line.
      plan: what it runs. Raises `UserError` if a file that it starts from is missing.
      results: what the finished stages found, from the settings and the plan.
      table: the results as text.
      name: the results are written to <name>.json and the table to <name>.md; None: the last stages
        write both.
      verdicts: a line for every target that the results miss; the program then ends with 1.
      logs: stages whose output is printed before the table.
      pages: text -> an output, whose path is printed after it at the end.
    """

    settings: type[S]
    plan: Callable[[S], Plan]
    results: Callable[[S, Plan], Any]
    table: Callable[[Any], str] = lambda results: ""
    name: str | None = None
    verdicts: Callable[[Any], Sequence[str]] = lambda results: ()
    logs: Sequence[str] = ()
    pages: Mapping[str, str] = field(default_factory=dict)

    def run(self, settings: S) -> None:
        """Bring all stages up to date, write the results and print them.

        Raises:
          UserError: an input is missing, or a stage failed.
          SystemExit: a target is missed, after everything is written.
        """
        plan = self.plan(settings)
        out = plan.experiment.out
        pipeline = plan.experiment.run(plan.stages, plan.lanes)
        results = self.results(settings, plan)
        text = self.table(results)
        if self.name is not None:
            write_json(out / f"{self.name}.json", results)
            write_text(out / f"{self.name}.md", text)
        for stage in self.logs:
            print("\n" + (out / "logs" / f"{stage}.log").read_text(encoding="utf-8"))
        if text:
            print("\n" + text)
        print_cost(pipeline)
        for title, page in self.pages.items():
            print(f"{title}: {out / page}")
        missed = self.verdicts(results)
        if missed:
            print("\n  ".join(["error: these targets are missed:", *missed]), file=sys.stderr)
            sys.exit(1)


def print_cost(pipeline: Pipeline) -> None:
    """Print time and memory of the whole pipeline, unless some of its stages were reused."""
    if pipeline.whole:
        print(
            f"the whole pipeline: {pipeline.whole['seconds'] / 60:.1f} minutes, peak memory"
            f" {pipeline.whole['peak_mb']:.0f} MB, on {processor_name()}"
        )


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, *rows]
    texts = [f"| {' | '.join(cells)} |" for cells in lines]
    return "\n".join([texts[0], "|---" * len(head) + "|", *texts[1:]]) + "\n"
