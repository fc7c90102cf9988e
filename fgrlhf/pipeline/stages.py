"""Runs stages in the order of their dependencies, in parallel, and reuses unchanged ones.

A stage is a command. Its fingerprint covers the command, the contents of the files it reads
(configs, scripts), the code its modules import from this repository, the packages' versions, and
the fingerprints of the stages it needs. The outputs folder contains

    pipeline.json     fingerprint and state of every stage
    stages.json       {stage: {seconds, peak_mb}} of the complete stages
    logs/<stage>.log  output of the stage

Only one pipeline at a time works in a folder. If it is killed, its stages end with it
(fgrlhf/base/processes.py).

A stage is not run again if it is complete under its current fingerprint and its outputs exist. An
interrupted stage continues from its unfinished outputs. If the fingerprint of a stage has changed,
it starts anew: its job on a cluster is cancelled if it still runs, and its outputs are removed.
"""

import os
import signal
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import IO

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, remove, write_json
from fgrlhf.base.records import Record, read_record
from fgrlhf.pipeline.fingerprint import fingerprint, imports
from fgrlhf.pipeline.launchers import Command, Job, Launcher, LocalLauncher, interrupts_later
from fgrlhf.pipeline.progress import Progress, StageProgress
from fgrlhf.runs.stage import hold

LINES_SHOWN = 30  # of a failed stage's log
# how a stage began -> its progress message if it is a job of a cluster, which may wait in a queue
SUBMITTED = {
    "started": "submitted as job {}",
    "continued": "submitted again as job {}, which continues it",
    "followed": "its job {} continues",
}


def stop_with_signals() -> None:
    """Let SIGTERM and SIGHUP stop the stages as Ctrl-C does, unless they are ignored (nohup)."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)


def visible_gpus() -> list[str]:
    """The GPUs this process may use, as in CUDA_VISIBLE_DEVICES."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        import torch  # it takes seconds, and only a driver that runs stages needs it

        return [str(number) for number in range(torch.cuda.device_count())]
    return [name for name in chosen.split(",") if name not in ("", "-1")]


def lane_environments(lanes: int) -> list[dict[str, str]]:
    """Each lane's additional environment variables: with several GPUs, its share of them.

    A single lane keeps all GPUs. With more lanes than GPUs, several lanes share a GPU.
    """
    gpus = visible_gpus()
    if lanes == 1 or len(gpus) < 2:
        return [{} for _ in range(lanes)]
    shares = [gpus[lane % len(gpus) :: lanes] for lane in range(lanes)]
    return [{"CUDA_VISIBLE_DEVICES": ",".join(share)} for share in shares]


class Cost(Record, extra="allow"):
    """What a stage, or the whole pipeline, took."""

    seconds: float
    peak_mb: float


class StageRecord(Cost):
    """A stage in pipeline.json, with its `job` if it is one of a cluster."""

    fingerprint: str
    complete: bool


class PipelineState(Record, extra="allow"):
    """The content of pipeline.json."""

    stages: dict[str, StageRecord]
    whole: Cost | None = None


@dataclass(frozen=True)
class Stage:
    """A command, run in the repository's root.

    Args:
      needs: names of earlier stages that this one depends on.
      outputs: paths in the outputs folder that only this stage writes.
      reads: glob patterns in the repository of files whose contents affect the result.
      modules: the modules that the command runs; their imports are followed.
      variables: `NAME=value` of the environment variables that affect the result.
      threads: number of OpenMP threads, for a stage that never runs beside another one; None: the
        environment's OMP_NUM_THREADS.
      processes: number of processes of a script that calls `launch` (scripts/env.sh), without GPUs.
        It is for stages that leave the other lanes idle, and changes the result by rounding only.
        None: the environment's PROCESSES.
    """

    name: str
    command: tuple[str, ...]
    _: KW_ONLY
    needs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    threads: int | None = None
    processes: int | None = None


@dataclass
class _Running:
    stage: Stage
    lane: int
    job: Job
    started: float
    seconds_before: float  # of an earlier, interrupted attempt


class Pipeline:
    """Stages, the repository they run in, and the folder they write to.

    Args:
      root: working directory of the stages, and the repository of their files.
      folder: the outputs folder.
      environment: environment variables, in addition to those of this process.
      lanes: number of stages that may run at the same time. Several GPUs are shared among the lanes
        (`lane_environments`).
      launcher: starts the commands; by default on this machine.

    After `run`, `seconds` is its duration, and `whole` the seconds and peak memory of all stages
    together, or None if some of them were reused or continued.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        root: Path,
        folder: Path,
        environment: Mapping[str, str],
        lanes: int = 2,
        out: IO[str] | None = None,
        launcher: Launcher | None = None,
    ):
        self.stages = stages
        self.root = root
        self.folder = folder
        self.environment = environment
        self.launcher = launcher or LocalLauncher()
        self.lanes = [{} for _ in range(lanes)]
        if self.launcher.shares_gpus:
            self.lanes = lane_environments(lanes)
        self.progress = Progress(out or sys.stdout)
        self.fingerprints = self._fingerprints()
        self._read_state()
        self.ran: set[str] = set()  # from their start, in this call
        self.done: set[str] = set()
        self.running: list[_Running] = []

    def run(self, reported: Collection[str] = ()) -> None:
        """Bring every stage up to date.

        Args:
          reported: stages that an earlier pipeline of this program has reported. They are not
            reported again if they are reused.

        Raises:
          UserError: another pipeline works in the folder, or a stage failed. The message has the
            end of its log, and the other running stages are stopped.
        """
        with hold(self.folder):
            self._read_state()  # another pipeline may have ended since
            self._run(reported)

    def _run(self, reported: Collection[str]) -> None:
        self.progress.start()
        waiting = list(self.stages)
        self.running = []
        try:
            while waiting or self.running:
                self._start_ready(waiting, reported)
                time.sleep(0.1)
                for entry in list(self.running):
                    self._finish_if_ended(entry)
                self.progress.watch([self._progress_of(entry) for entry in self.running])
            self._list_reused()
        finally:
            self._stop(self.running)
            self.launcher.close()
            self.progress.clear_line()

    @property
    def seconds(self) -> float:
        return self.progress.seconds

    def _progress_of(self, entry: _Running) -> StageProgress:
        return StageProgress(entry.stage.name, self._elapsed(entry), self._log(entry.stage))

    def _read_state(self) -> None:
        """Read the records of earlier runs. Raises `UserError` if pipeline.json is damaged."""
        state = PipelineState(stages={})
        if self._path.exists():
            way_out = (
                "It is damaged: delete it. The stages then run again on their outputs, and"
                " finished ones reuse theirs"
            )
            state = read_record(self._path, PipelineState, "continued", way_out)
        self.records: dict[str, dict] = state.model_dump()["stages"]
        self.whole: dict | None = state.whole and state.whole.model_dump()

    # ---- parts of run ----------------------------------------------------------------------------

    def _fingerprints(self) -> dict[str, str]:
        """The fingerprint of every stage, which covers those of the stages it needs."""
        digests: dict[str, str] = {}
        for stage in self.stages:
            unknown = set(stage.needs) - set(digests)
            if unknown:
                raise ValueError(
                    f"stage {stage.name} needs {sorted(unknown)}, which no stage before it provides"
                )
            upstream = [digests[name] for name in stage.needs]
            reads = [path for path in stage.reads if not self._is_output(path)]
            digests[stage.name] = fingerprint(
                self.root, stage.command, reads, stage.modules, upstream, stage.variables
            )
        return digests

    def _is_output(self, path: str) -> bool:
        """Whether a stage writes this file. Others depend on it by their `needs`."""
        outputs = (self.folder / output for stage in self.stages for output in stage.outputs)
        return any(Path(path).is_relative_to(output) for output in outputs)

    @property
    def _path(self) -> Path:
        return self.folder / "pipeline.json"

    def _start_ready(self, waiting: list[Stage], reported: Collection[str]) -> None:
        for stage in list(waiting):
            if not set(stage.needs) <= self.done:
                continue
            if self._is_current(stage):
                waiting.remove(stage)
                self.done.add(stage.name)
                if stage.name not in reported:
                    self.progress.say(f"{stage.name}: nothing changed, reused")
            elif len(self.running) < len(self.lanes):
                waiting.remove(stage)
                busy = {entry.lane for entry in self.running}
                lane = next(lane for lane in range(len(self.lanes)) if lane not in busy)
                self._start(stage, lane)

    def _is_current(self, stage: Stage) -> bool:
        """Whether the stage is complete, unchanged, and has its outputs."""
        record = self.records.get(stage.name, {})
        is_complete = record.get("complete", False)
        outputs_exist = all((self.folder / output).exists() for output in stage.outputs)
        return is_complete and outputs_exist and self._is_unchanged(stage, record)

    def _is_unchanged(self, stage: Stage, record: Mapping) -> bool:
        return record["fingerprint"] == self.fingerprints[stage.name]

    def _start(self, stage: Stage, lane: int) -> None:
        """Start a stage anew, or continue or follow an unfinished attempt of the same command."""
        record = self.records.get(stage.name)
        if record is None:
            self._launch(stage, lane)
            return
        job = None
        if record.get("job") is not None:  # a cluster's job continues without its pipeline
            job = self.launcher.find(stage.name, record["job"])
        if record["complete"] or not self._is_unchanged(stage, record):
            if job is not None:
                self._cancel(stage, job)
            # an interrupt while outputs are removed must not leave a stage that seems complete
            self.records[stage.name] = {**record, "complete": False, "fingerprint": ""}
            self._write_state()
            for output in stage.outputs:
                remove(self.folder / output)
            self._launch(stage, lane)
        elif job is not None:
            self._add(stage, lane, job, record["seconds"], "followed")
        else:
            self._launch(stage, lane, seconds_before=record["seconds"])

    def _launch(self, stage: Stage, lane: int, seconds_before: float | None = None) -> None:
        """Start the command of a stage.

        Args:
          seconds_before: how long the interrupted attempt ran whose outputs the command continues
            from; None for a stage that starts anew.
        """
        continues = seconds_before is not None
        self._record_start(stage, seconds_before or 0.0)
        with interrupts_later():  # a command that is not in the list would not be stopped
            job = self.launcher.start(self._command(stage, lane, continues))
            how = "continued" if continues else "started"
            self._add(stage, lane, job, seconds_before or 0.0, how)

    def _cancel(self, stage: Stage, job: Job) -> None:
        """End a job of an earlier pipeline, whose command differs.

        Until it has ended, it writes to the outputs, so two jobs would mix their results there.
        """
        self.progress.say(
            f"{stage.name}: changed since its job {job.reference} began, which is cancelled"
        )
        job.stop()
        job.wait()

    def _add(self, stage: Stage, lane: int, job: Job, seconds_before: float, how: str) -> None:
        """Add a stage to those that run, and record its job if a later pipeline can find it.

        Args:
          how: it began, a key of `SUBMITTED`.
        """
        self.running.append(_Running(stage, lane, job, time.monotonic(), seconds_before))
        if how == "started":
            self.ran.add(stage.name)
        message = how
        if job.reference is not None:
            self._record_start(stage, seconds_before, job.reference)
            message = SUBMITTED[how].format(job.reference)
        self.progress.say(f"{stage.name}: {message}, log in {self._log(stage)}")

    def _record_start(self, stage: Stage, seconds_before: float, job: str | None = None) -> None:
        self._record(stage, complete=False, seconds=seconds_before, peak_mb=0.0, job=job)

    def _command(self, stage: Stage, lane: int, continues: bool) -> Command:
        log = self._log(stage)
        log.parent.mkdir(parents=True, exist_ok=True)
        environment = {**self.lanes[lane], **self.environment}
        if stage.threads is not None:
            environment["OMP_NUM_THREADS"] = str(stage.threads)
        if stage.processes is not None:
            environment["PROCESSES"] = str(stage.processes)
        uses_torch = imports(self.root, stage.modules, "torch")
        return Command(
            stage.name, stage.command, self.root, environment, log, continues, uses_torch
        )

    def _finish_if_ended(self, entry: _Running) -> None:
        ended = entry.job.ended()
        if ended is None:
            return
        self.running.remove(entry)
        seconds = self._elapsed(entry)
        stage = entry.stage
        if ended.exit_code != 0:
            self._record(stage, complete=False, seconds=seconds, peak_mb=ended.peak_mb)
            self.progress.say(f"{stage.name}: FAILED after {seconds:.0f} s")
            raise UserError(self._failure(stage, ended.exit_code))
        self.done.add(stage.name)
        self._record(stage, complete=True, seconds=seconds, peak_mb=ended.peak_mb)
        self.progress.say(
            f"{stage.name}: done in {seconds:.0f} s, peak memory {ended.peak_mb:.0f} MB"
        )

    def _stop(self, running: Sequence[_Running]) -> None:
        # Signal all of them first: later steps may fail, for example if the terminal was closed.
        for entry in running:
            entry.job.stop()
        for entry in running:
            entry.job.wait()
            with suppress(OSError):  # even if the disk is full, stop the other stages
                self._record(entry.stage, complete=False, seconds=self._elapsed(entry), peak_mb=0.0)
        for entry in running:
            self.progress.say(f"{entry.stage.name}: stopped; the next run continues it")

    def _failure(self, stage: Stage, exit_code: int) -> str:
        path = self._log(stage)
        text = path.read_text(encoding="utf-8", errors="replace").replace("\r", "\n")
        tail = text.rstrip().splitlines()[-LINES_SHOWN:]
        lines = [
            f"stage {stage.name} {_how_it_failed(exit_code)}. The end of its log {path}:",
            *(f"  {line}" for line in tail),
            "Fix the cause and run the same command again: finished stages are kept.",
        ]
        return "\n".join(lines)

    def _elapsed(self, entry: _Running) -> float:
        return entry.seconds_before + time.monotonic() - entry.started

    def _log(self, stage: Stage) -> Path:
        return self.folder / "logs" / f"{stage.name}.log"

    def _record(
        self,
        stage: Stage,
        complete: bool,
        seconds: float,
        peak_mb: float,
        job: str | None = None,
    ) -> None:
        """Record the state of a stage; `job` is the reference of its job on a cluster."""
        record = {
            "fingerprint": self.fingerprints[stage.name],
            "complete": complete,
            "seconds": round(seconds, 1),
            "peak_mb": round(peak_mb, 1),
        }
        if job is not None:
            record["job"] = job
        self.records[stage.name] = record
        self.whole = None
        if set(self._complete()) <= self.ran:
            self.whole = {
                "seconds": round(self.seconds, 1),
                "peak_mb": round(self.progress.peak_mb, 1),
            }
        self._write_state()

    def _complete(self) -> list[str]:
        names = [stage.name for stage in self.stages]
        return [name for name in names if self.records.get(name, {}).get("complete")]

    def _write_state(self) -> None:
        write_json(self._path, {"stages": self.records, "whole": self.whole})
        costs = {}
        for name in self._complete():
            costs[name] = {key: self.records[name][key] for key in ("seconds", "peak_mb")}
        if self.whole:
            costs["whole"] = self.whole
        write_json(self._costs_path, costs)

    @property
    def _costs_path(self) -> Path:
        return self.folder / "stages.json"

    def _list_reused(self) -> None:
        """Write stages.json again if it lists other stages, as after a pipeline with only some."""
        if not self._costs_path.exists():
            self._write_state()
        elif self._listed() != set(self._complete()):
            self.whole = None  # it was measured with those other stages
            self._write_state()

    def _listed(self) -> set[str] | None:
        """The stages in stages.json; None if it is damaged."""
        try:
            costs = read_json(self._costs_path)
        except UserError:
            return None
        return set(costs) - {"whole"} if isinstance(costs, dict) else None


def _how_it_failed(exit_code: int) -> str:
    """`failed with exit code 1`; a negative code is the signal that ended the stage."""
    if exit_code >= 0:
        return f"failed with exit code {exit_code}"
    number = -exit_code
    if number == signal.SIGKILL:
        return (
            "was killed by signal 9 (SIGKILL), as the system does to a process when memory runs out"
        )
    return f"was ended by signal {number} ({signal.strsignal(number) or 'unknown'})"
