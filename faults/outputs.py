"""Kind `outputs`: an output that is one of the inputs, and training into an occupied folder.

Both are slips of the hand. The command must refuse and leave every file as it was. Each command is
first run with an output of its own, so that nothing else is the reason of the refusal.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from faults.campaign import Kind
from faults.child import Command, Ended, run
from faults.judging import Outcome, compare, snapshot
from faults.world import Stage, World
from fgrlhf.base.files import write_json, write_jsonl

MAIN = "fgrlhf.cli.main"


@dataclass(frozen=True)
class Replaced:
    """A command whose output can be one of its inputs.

    Args:
      words: its words; IN is the input, OUT the output.
      source: the input, a file of `inputs`.
    """

    words: str
    source: str

    def __str__(self) -> str:
        return self.words


REPLACED = (
    Replaced("data convert IN OUT format=spans to=judgements", "spans.jsonl"),
    Replaced("data convert IN OUT format=comparisons to=pairs", "pairs.jsonl"),
    Replaced("data filter IN OUT drop=[identical]", "pairs.jsonl"),
    Replaced("data explore IN out=OUT", "pairs.jsonl"),
    Replaced("data import IN OUT from=label_studio", "tasks.json"),
    Replaced("data export IN OUT to=label_studio", "judgements.jsonl"),
    Replaced("data export IN OUT to=spans", "judgements.jsonl"),
    Replaced("feedback items qa_feedback source=IN out=OUT", "samples.jsonl"),
    Replaced("feedback pages qa_feedback items=IN out=OUT", "items.json"),
    Replaced("feedback select qa_feedback source=IN n=1 by=random out=OUT", "samples.jsonl"),
    Replaced("feedback merge qa_feedback files=IN,other.json out=OUT", "feedback.json"),
    Replaced("feedback agreement qa_feedback files=IN,other.json out=OUT", "feedback.json"),
)
# how the output is named: the same words, a longer way, a link to the input, a link to its folder
NAMES = ("same", "longer", "symbolic link", "folder link")
# stage -> the override that names its initial model
TRAINED = {
    "sft": "model.ckpt",
    "fg_rm": "model.ckpt",
    "pref_rm": "model.ckpt",
    "oracle": "model.ckpt",
    "dpo": "model.ckpt",
}
OCCUPIED = ("its own start", "another model", "another stage")
CASES = (
    *((command, how) for command in REPLACED for how in NAMES),
    *((stage, how) for stage in TRAINED for how in OCCUPIED),
)


class Outputs(Kind):
    """See the module's docstring."""

    name = "outputs"
    good = ("refused",)
    bad = ("traceback", "replaced", "stray files", "not refused", "control failed")
    cases = CASES

    def run(self, index: int, folder: Path) -> Outcome:
        what, how = self.case(index)
        if isinstance(what, Replaced):
            return self._replaced(what, how, folder)
        return self._occupied(what, how, folder)

    def _replaced(self, case: Replaced, how: str, folder: Path) -> Outcome:
        row = "output = input"
        work = folder / "run"
        write_inputs(self.bench.world, work)
        free = Path(case.source).with_stem("free").name
        control = self._command(case, free)
        ended = run(control, work, folder / "logs/0.txt")
        note = f"{case}, {how}"
        if ended.code != 0:
            return Outcome("control failed", f"{note}\n{ended.output[-2_000:]}", row)
        name = name_of_output(case.source, how, work)
        return judge(
            lambda: run(self._command(case, name), work, folder / "logs/1.txt"), work, note, row
        )

    def _command(self, case: Replaced, out: str) -> Command:
        words = case.words.replace("IN", case.source).replace("OUT", out).split()
        return Command(MAIN, tuple(words), self.bench.world.environment)

    def _occupied(self, name: str, how: str, folder: Path) -> Outcome:
        target = folder / "run" / "occupied"
        stage = self.bench.world.stage(name)
        overrides = [f"logging.save_dir={target}"]
        if how == "another stage":
            other = self.bench.world.stage("sft" if name != "sft" else "fg_rm")
            written = Stage(other.name, other.command.with_arguments(f"logging.save_dir={target}"))
            ended = run(written.command, folder, folder / "logs/0.txt")
            if ended.code != 0:
                return Outcome("control failed", ended.output[-2_000:], "occupied folder")
        else:
            shutil.copytree(self.bench.world.policy, target)
        if how == "its own start":
            overrides.append(f"{TRAINED[name]}={target}")
            if name == "oracle":
                overrides.append(f"model.value_model.ckpt={target}")
        command = stage.command.with_arguments(*overrides)
        return judge(
            lambda: run(command, folder, folder / "logs/1.txt"),
            folder / "run",
            f"{name}, {how}",
            "occupied folder",
        )


def judge(attempt, work: Path, note: str, row: str) -> Outcome:
    """Run a command that must be refused and change nothing below `work`."""
    before = snapshot(work)
    ended: Ended = attempt()
    note = f"{note}: exit {ended.code}\n{ended.output[-2_000:]}"
    if ended.has_traceback:
        return Outcome("traceback", note, row)
    difference = compare(before, snapshot(work))
    if difference.lost or difference.other:
        return Outcome("replaced", f"{difference}: {note}", row)
    if difference.stray:
        return Outcome("stray files", f"{difference}: {note}", row)
    return Outcome("refused" if ended.code == 2 else "not refused", note, row)


def name_of_output(source: str, how: str, work: Path) -> str:
    """Another name of the input file `source` below `work`; makes the links that it needs."""
    if how == "longer":
        return f"../{work.name}/./{source}"
    if how == "symbolic link":
        link = work / f"link-{source}"
        link.symlink_to(source)
        return link.name
    if how == "folder link":
        (work.parent / "here").symlink_to(work)
        return f"../here/{source}"
    return source


def write_inputs(world: World, folder: Path) -> None:
    """Valid inputs of all commands of `REPLACED`."""
    folder.mkdir(parents=True)
    prompt = {"prompt": "Name a prime."}
    answer = {**prompt, "response": "7 and 8"}
    span = {"start": 6, "end": 7, "label": "wrong"}
    write_jsonl(folder / "spans.jsonl", [{**answer, "spans": [span]}])
    pair = {**prompt, "chosen": "7", "rejected": "8"}
    write_jsonl(folder / "pairs.jsonl", [pair, {**pair, "chosen": "11"}])
    judgement = {"aspect": "fact", "annotator": "a", **span}
    write_jsonl(folder / "judgements.jsonl", [{**answer, "judgements": [judgement]}])
    mark = {"start": 6, "end": 7, "text": "8", "labels": ["wrong"]}
    result = {"type": "labels", "from_name": "fact", "to_name": "response", "value": mark}
    task = {"id": 1, "data": answer, "annotations": [{"result": [result]}]}
    write_json(folder / "tasks.json", [task])
    feedback = world.data / "dev_feedback.json"
    for name in ("feedback.json", "other.json", "items.json"):
        shutil.copy(feedback, folder / name)
    sample = {"question": "Who sat?", "passages": [{"wikipage": "Cat", "content": "A cat sat."}]}
    predictions = ["A dog.", "A cat.", "Nobody.", "The cat."]
    rows = [{"id": str(n), **sample, "predictions": predictions} for n in range(2)]
    write_jsonl(folder / "samples.jsonl", rows)
