"""What a reward server adds to a training step, as a share of the step.

    python -m benchmarks.reward_service reps=5 latency=0.2        --help lists the keys
    python -m benchmarks.reward_service epochs=1 prompts=1        a shorter step
    python -m benchmarks.reward_service epochs=1 prompts=1 alone=true     little hides the server

The step is PPO at the size `tiny` of `workload.py`, with three reward models, or none (`alone`). A
further reward costs nothing to compute. It is computed in the process, or asked from a server on
this machine that answers `latency` seconds later, as one with a large model would:

- `served`: the server works while the process computes log-probabilities and the other rewards;
- `served, waiting`: the process waits for the answer, as it would without overlap.

The three take turns, and each repetition gives a ratio to the step in the process. Other work on
the machine makes these ratios noisy; the share of a step that it waits for the server is measured
by itself, and depends on it less.
"""

import asyncio
import os
import secrets
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Any
from unittest.mock import patch

import uvicorn
from pydantic import Field, PositiveInt

from benchmarks import ours, workload
from fgrlhf.base.background import Background
from fgrlhf.cli.command_line import run_program
from fgrlhf.configs.strict import StrictModel
from fgrlhf.ppo import PPOTrainer
from fgrlhf.reward import AspectReward, CombinedReward
from fgrlhf.rewards.client import RewardClient
from fgrlhf.rewards.kinds import Length, ServerReward
from fgrlhf.rewards.protocol import sent_prefix
from fgrlhf.rewards.server import Limits, ServedReward, create_app, model_sha256
from fgrlhf.scorers.base import RewardContext
from fgrlhf.utils import seeded
from tasks.qa_feedback.feedback import rm_prefix

REWARD = Length(value=-0.01, max_words=1)
TOKEN_VARIABLE = "FGRLHF_BENCHMARK_TOKEN"


class RewardServiceSettings(StrictModel):
    """What is measured."""

    reps: PositiveInt = Field(default=5, description="steps of each kind")
    latency: Annotated[float, Field(ge=0, le=60)] = Field(
        default=0.2, description="seconds that the server adds to each answer"
    )
    epochs: PositiveInt = Field(default=4, description="of the update; fewer make a shorter step")
    prompts: PositiveInt = Field(default=4, description="of a step, with four responses each")
    alone: bool = Field(default=False, description="without the three reward models")


@contextmanager
def serving(latency: float) -> Iterator[ServerReward]:
    """A slow server of `REWARD`, and the config of its reward."""
    digest = model_sha256(REWARD, "fp32")
    served = ServedReward(
        REWARD.build(RewardContext(sent_prefix)), "length", digest, Limits(512, 32 << 20)
    )
    token = secrets.token_urlsafe()
    os.environ[TOKEN_VARIABLE] = token
    app = create_app(served, token)

    async def slow(scope, receive, send):
        await asyncio.sleep(latency)
        await app(scope, receive, send)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(slow, log_level="warning", lifespan="off", http="h11", ws="none")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        try:
            yield ServerReward(url=url, model_sha256=digest, token_from=TOKEN_VARIABLE)
        finally:
            server.should_exit = True
            thread.join()


class Waiting:
    """A remote reward that is called where its values are needed."""

    def __init__(self, aspect: AspectReward):
        self.aspect = aspect

    def segment_scores(self, prompts, texts):
        return waited(lambda: self.aspect.segment_scores(prompts, texts))


class TimedCall(Background):
    """A call in a thread whose result is waited for with a clock."""

    def result(self):
        return waited(super().result)


_waits: list[float] = []  # seconds of the current step


def waited(call: Callable[[], Any]) -> Any:
    """The result of `call()`, whose seconds are added to those of the step's waits."""
    started = time.perf_counter()
    result = call()
    _waits.append(time.perf_counter() - started)
    return result


@dataclass(frozen=True)
class Step:
    """Seconds of a step, and those of them in which it waited for a server."""

    seconds: float
    waiting: float


def timed_step(trainer: PPOTrainer, reward: CombinedReward) -> Step:
    """Run the trainer's first step with a reward. The weights hardly change."""
    trainer.reward = reward
    _waits.clear()
    started = time.perf_counter()
    with seeded(0, "step", 0):
        rollout, rewards = trainer.collect_and_score()
        _, advantages = trainer.compute_advantages(rollout, rewards)
        trainer.update(rollout, advantages)
    return Step(time.perf_counter() - started, sum(_waits))


def measure(settings: RewardServiceSettings) -> dict[str, list[Step]]:
    """The steps by the place of the further reward."""
    trainer = ours.build(
        replace(workload.SIZES["tiny"], epochs=settings.epochs, prompts=settings.prompts)
    )
    assert isinstance(trainer.reward, CombinedReward)
    models = {} if settings.alone else trainer.reward.aspects
    steps: dict[str, list[Step]] = {}
    timed_calls = patch("fgrlhf.reward.Background", TimedCall)
    with serving(settings.latency) as config, timed_calls:
        remote = RewardClient(config, rm_prefix)
        places = {
            "in the process": REWARD.build(RewardContext(rm_prefix)),
            "served": remote,
            "served, waiting": Waiting(remote),
        }
        rewards = {}
        for name, aspect in places.items():
            rewards[name] = CombinedReward({**models, "brevity": aspect})
        timed_step(trainer, rewards["in the process"])  # warms up
        for _ in range(settings.reps):
            for name, reward in rewards.items():
                steps.setdefault(name, []).append(timed_step(trainer, reward))
    return steps


def lines_of(steps: dict[str, list[Step]]) -> list[str]:
    """One line for each place: medians of the step, of its waits, and of the added share."""
    base = [step.seconds for step in steps["in the process"]]
    lines = []
    for name, timed in steps.items():
        added = sorted(step.seconds / reference - 1 for step, reference in zip(timed, base))
        waiting = statistics.median(step.waiting / step.seconds for step in timed)
        seconds = statistics.median(step.seconds for step in timed)
        lines.append(
            f"{name:<16} {seconds:6.2f} s a step, {waiting:.1%} of it waiting;"
            f" {statistics.median(added):+.1%} ({added[0]:+.1%} to {added[-1]:+.1%})"
        )
    return lines


def run(settings: RewardServiceSettings) -> None:
    for line in lines_of(measure(settings)):
        print(line, flush=True)


if __name__ == "__main__":
    run_program(run, RewardServiceSettings)
