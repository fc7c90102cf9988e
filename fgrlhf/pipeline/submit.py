"""Stages as jobs of a SLURM cluster, through submitit.

The pipeline runs on a login node and needs no GPU. It submits every stage that can run, waits for
it, and reads its exit code. A job that SLURM preempts, or that reaches its time limit, is put back
into the queue and continues from its checkpoint. If the pipeline is interrupted, its jobs are
cancelled; if it is killed, they go on, and the next pipeline in the folder finds them.

submitit writes the command and its result as pickle files to `<outputs>/jobs`, and reads only
these. Everybody who may write to that folder may therefore run code in the jobs.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.processes import parent_mark
from fgrlhf.configs.strict import NonNegativeCount, StrictModel
from fgrlhf.pipeline.launchers import Command, Ended, Job, LocalJob, interrupts_later, popen

if TYPE_CHECKING:
    import submitit

RESULT_SECONDS = 60.0  # until the result of a finished job is visible on a shared file system
SAMPLE_SECONDS = 0.1  # between two readings of a command's memory


class SubmitConfig(StrictModel):
    """The section `submit`: every run is a job of a cluster."""

    cluster: Literal["slurm", "local"] = Field(
        description="slurm: `sbatch` of this machine; local: processes of this machine, to try it"
    )
    hours: PositiveFloat = Field(
        default=24.0, description="time limit of a job; it is then requeued and continues"
    )
    requeues: NonNegativeCount = Field(
        default=10, description="how often a job may reach its time limit"
    )
    gpus: NonNegativeCount = Field(default=1, description="GPUs of a job")
    cpus: PositiveInt = Field(default=4, description="CPU cores of a job")
    memory_gb: PositiveFloat = Field(default=32.0, description="memory of a job")
    partition: str | None = Field(default=None, description="null: the cluster's default")
    options: dict[str, str] = Field(
        default_factory=dict, description="further options of sbatch: {account: lab, qos: long}"
    )


@dataclass(frozen=True)
class StageCommand:
    """What submitit runs in the job: the command, and `checkpoint` to put it back in the queue."""

    command: Command

    def __call__(self) -> Ended:
        # The stage ends with this process, since it cannot see the pipeline on another machine.
        process = None
        try:
            with interrupts_later():
                process = popen(self.command, parent_mark(), preexec_fn=_ignore_limit)
            job = LocalJob(process)
            while (ended := job.ended()) is None:
                time.sleep(SAMPLE_SECONDS)
        except BaseException:  # the limit, a preemption, or `scancel`
            if process is not None:
                _end(process)
            raise
        return ended

    def checkpoint(self) -> Any:
        """What SLURM runs after a requeue: stages continue if their command runs again."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(StageCommand(replace(self.command, appends=True)))


@contextmanager
def _interruptible_children() -> Iterator[None]:
    """Processes that start in this block can be interrupted, even if this one ignores it.

    submitit cancels a local job by SIGINT. A script's background commands (`... &`) ignore that
    signal, and so would their jobs.
    """
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _ignore_limit() -> None:
    """SLURM announces the limit to every process of a job. submitit handles it, for all of them."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)


def _end(process: subprocess.Popen) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    process.wait()


@dataclass
class _SubmittedJob:
    job: "submitit.Job[Ended]"
    name: str
    clock: Callable[[], float] = time.monotonic
    done_since: float | None = None

    @property
    def reference(self) -> str:
        return self.job.job_id

    def ended(self) -> Ended | None:
        if not self.job.done():
            self.done_since = None
            return None
        if not self.job.paths.result_pickle.exists():  # a shared file system shows it later
            if self.done_since is None:
                self.done_since = self.clock()
            is_recent = self.clock() - self.done_since < RESULT_SECONDS
            if is_recent and self._may_have_result():
                return None
        try:
            return self.job.result()
        except Exception as error:
            raise UserError(
                f"stage {self.name}: job {self.job.job_id} ended in state {self.job.state} without"
                f" a result: {shorten(error)}. Its output is in {self.job.paths.stderr}. Fix the"
                " cause and run the same command again: finished stages are kept."
            ) from None

    def _may_have_result(self) -> bool:
        return self.job.state in ("COMPLETED", "FINISHED", "UNKNOWN")

    def stop(self) -> None:
        self.job.cancel(check=False)

    def wait(self) -> None:
        while not self.job.done(force_check=True):
            time.sleep(1.0)


class SubmitLauncher:
    """Submits commands.

    Args:
      config: resources of every job.
      folder: of the pipeline, on a file system that the cluster's machines share.

    Raises:
      UserError: submitit is not installed, or this machine cannot submit jobs.
    """

    shares_gpus = False

    def __init__(self, config: SubmitConfig, folder: Path):
        try:
            import submitit
        except ImportError:
            raise UserError(
                "submit.cluster needs the package submitit: .venv/bin/pip install -c"
                " constraints.txt -e '.[slurm]'"
            ) from None
        self.folder = folder / "jobs"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.cluster = config.cluster
        try:
            self.executor = submitit.AutoExecutor(
                self.folder, cluster=config.cluster, **_executor_options(config)
            )
        except RuntimeError:
            raise UserError(
                f"submit.cluster={config.cluster}: this machine has no program `srun`, so it cannot"
                " submit jobs. Run the command on a login node of the cluster, or try it here with"
                " submit.cluster=local"
            ) from None
        self.executor.update_parameters(**_resources(config))

    def start(self, command: Command) -> Job:
        from submitit.core.utils import FailedJobError

        self.executor.update_parameters(name=command.name.replace("/", "-"))
        try:
            with _interruptible_children():
                job = self.executor.submit(StageCommand(command))
        except (FailedJobError, OSError) as error:
            raise UserError(
                f"stage {command.name} could not be submitted: {shorten(error)}. Check the settings"
                " submit.partition and submit.options, and run the same command again"
            ) from None
        return _SubmittedJob(job, command.name)

    def find(self, name: str, reference: str) -> Job | None:
        """A job of SLURM that still waits or runs. Local jobs end with their pipeline."""
        import submitit

        if self.cluster != "slurm":
            return None
        job = submitit.SlurmJob(self.folder, reference)
        return None if job.done(force_check=True) else _SubmittedJob(job, name)

    def close(self) -> None:
        pass


def _executor_options(config: SubmitConfig) -> dict[str, Any]:
    if config.cluster == "slurm":
        return {"slurm_max_num_timeout": config.requeues}
    return {"local_max_num_timeout": config.requeues}


def _resources(config: SubmitConfig) -> dict[str, Any]:
    resources: dict[str, Any] = {
        "timeout_min": max(1, round(config.hours * 60)),
        "cpus_per_task": config.cpus,
        "mem_gb": config.memory_gb,
    }
    if config.gpus:
        resources["gpus_per_node"] = config.gpus
    if config.partition is not None:
        resources["slurm_partition"] = config.partition
    if config.options:
        resources["slurm_additional_parameters"] = dict(config.options)
    return resources
