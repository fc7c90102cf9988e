"""One step of either side in four phases: its cost, and whether both sides compute the same."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from types import ModuleType
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import Tensor
from transformers import LogitsProcessor

from benchmarks import baseline, ours
from benchmarks.harness import PeakMemory, in_processes, synchronized_time
from benchmarks.workload import Size
from fgrlhf.base.errors import UserError
from fgrlhf.trainer import OnPolicyTrainer

PHASES = ("generation", "scoring", "rewards", "updates")
SIDES: dict[str, ModuleType] = {"baseline": baseline, "ours": ours}
TOLERANCE = 1e-4
# Fraction of tokens; rounding may swap two that are almost equally probable.
SAMPLED_ALIKE = 0.99


@dataclass
class Step:
    """One step's outputs, and the cost of each phase; its memory only if `memory` is there."""

    memory: PeakMemory | None = None
    clock: Callable[[], float] = synchronized_time

    generated: Any = None
    scored: Any = None
    rewards: Any = None
    losses: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    peak_mb: dict[str, float] = field(default_factory=dict)

    def phase(self, name: str, function: Callable, *arguments):
        """What a call returns; its cost is that of the phase."""
        if self.memory is not None:
            self.memory.reset()
        started = self.clock()
        result = function(*arguments)
        self.seconds[name] = self.clock() - started
        if self.memory is not None:
            self.peak_mb[name] = self.memory.peak_mb()
        return result


def run_step(
    side,
    state,
    memory: PeakMemory | None = None,
    clock: Callable[[], float] = synchronized_time,
) -> Step:
    """Generation, scoring, rewards, updates; nothing between the phases is timed."""
    step = Step(memory, clock)
    step.generated = step.phase("generation", side.generate, state)
    step.scored = step.phase("scoring", side.score, state, step.generated)
    step.rewards = step.phase("rewards", side.rewards, state, step.scored)
    step.losses = step.phase("updates", side.update, state, step.scored, step.rewards)
    return step


def run_loop_step(trainer: OnPolicyTrainer) -> Step:
    """The halves `rollout` and `update` of the step as `train` computes it; then the next is due.

    Logs and checkpoints are left out.
    """

    def collected():
        rollout, rewards = trainer.collect_and_score()
        return rollout, trainer.compute_advantages(rollout, rewards)[1]

    step = Step(PeakMemory())
    rollout_and_advantages = step.phase("rollout", collected)
    step.losses = step.phase("update", trainer.update, *rollout_and_advantages)
    trainer.step += 1
    return step


class Weights:
    """A copy of the trained weights, to start every repetition from the same point."""

    def __init__(self, modules: Mapping[str, torch.nn.Module]):
        self.modules = modules
        self.before = {name: parameter.detach().clone() for name, parameter in self._parameters()}

    def _parameters(self):
        for part, module in self.modules.items():
            for name, parameter in module.named_parameters():
                yield f"{part}.{name}", parameter

    @torch.no_grad()
    def restore(self) -> None:
        for name, parameter in self._parameters():
            parameter.copy_(self.before[name])


# ---- a side in a process of its own --------------------------------------------------------------


def measured(
    size: Size, side: str, threads: int, responses: list[list[int]] | None = None, reps: int = 1
) -> dict[str, Any]:
    """`steps_here` in a fresh process."""
    arguments = {"size": asdict(size), "side": side, "threads": threads, "reps": reps}
    return in_processes("benchmarks.measure:steps_here", arguments | {"responses": responses})[0]


def steps_here(
    size: Mapping[str, Any],
    side: str,
    threads: int,
    reps: int,
    responses: list[list[int]] | None,
) -> dict[str, Any]:
    """Steps of one side; a repetition starts from the weights of the one before.

    Returns:
      imports_mb, built_mb: before and after the models are built.
      seconds: {phase: s} per repetition: CPU time, which other programs disturb least.
      peak_mb: {phase: MB}.
    """
    torch.set_num_threads(threads)
    module = SIDES[side]
    memory = PeakMemory()
    memory.reset()
    imports_mb = memory.peak_mb()
    state = module.build(size_of(size), responses)
    built_mb = memory.peak_mb()
    seconds = []
    peak_mb: dict[str, float] = {}
    for _ in range(reps):
        step = run_step(module, state, memory, time.process_time)
        seconds.append(step.seconds)
        peak_mb = {name: max(peak, peak_mb.get(name, 0.0)) for name, peak in step.peak_mb.items()}
        del step
    return {
        "imports_mb": imports_mb,
        "built_mb": built_mb,
        "seconds": seconds,
        "peak_mb": peak_mb,
    }


def size_of(tree: Mapping[str, Any]) -> Size:
    """The size of `asdict(size)`."""
    return TypeAdapter(Size).validate_python(tree)


# ---- equality ------------------------------------------------------------------------------------


class Compared(LogitsProcessor):
    """Draws the recorded responses and counts how often our sampler would draw the same token."""

    def __init__(self, draw: Callable[[int, Tensor], Tensor], forced_BT: Tensor):
        self.draw = draw
        self.force = baseline.Forced(forced_BT)
        self.real_BT = forced_BT != 0
        self.alike = 0
        self.drawn = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        forced = self.force(input_ids, scores)
        step = input_ids.shape[1] - 1
        real_B, drawn_B = self.real_BT[:, step], self.draw(step, scores)
        self.alike += int((drawn_B == forced.argmax(-1))[real_B].sum())
        self.drawn += int(real_B.sum())
        return forced

    @property
    def share(self) -> float:
        return self.alike / max(self.drawn, 1)


def _apart(a_BT: Tensor, b_BT: Tensor) -> float:
    """The largest difference; `b_BT` may have more columns of padding, which must hold zeros."""
    T = a_BT.shape[1]
    apart = float((a_BT - b_BT[:, :T]).abs().max())
    if b_BT.shape[1] == T:
        return apart
    return max(apart, float(b_BT[:, T:].abs().max()))


def gradients(
    modules: Mapping[str, torch.nn.Module], optimizer: torch.optim.Optimizer
) -> dict[str, Tensor]:
    """Adam's running mean of each parameter's gradients over the steps so far.

    Parameters without optimiser state have no entry.
    """
    means = {}
    for part, module in modules.items():
        for name, parameter in module.named_parameters():
            if parameter in optimizer.state:
                means[f"{part}.{name}"] = optimizer.state[parameter]["exp_avg"].detach().cpu()
    return means


def gradients_apart(mine: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """|g - g'| / |g| over all parameters; a missing entry counts as gradient 0.

    Gradients are compared instead of parameters, because Adam divides a gradient by its size: where
    it is almost 0, rounding decides the step.
    """
    zero = torch.zeros(())
    names = set(mine) | set(other)
    squared = sum(
        float((mine.get(n, zero) - other.get(n, zero)).double().square().sum()) for n in names
    )
    return (squared / sum(float(g.double().square().sum()) for g in mine.values())) ** 0.5


@dataclass(frozen=True)
class Equality:
    """How far the sides are apart: largest differences; for gradients see `gradients_apart`."""

    differences: dict[str, float]
    sampled_alike: float
    responses: list[list[int]]

    def failures(self) -> list[str]:
        failures = []
        for name, value in self.differences.items():
            if not value <= TOLERANCE:
                failures.append(f"{name} differ by {value:.2g}")
        if self.sampled_alike < SAMPLED_ALIKE:
            failures.append(f"only {self.sampled_alike:.2%} of the sampled tokens agree")
        return failures

    def require(self, name: str) -> None:
        if self.failures():
            raise UserError(
                f"{name}: baseline and ours do not compute the same ({'; '.join(self.failures())}),"
                " so their times cannot be compared"
            )


def check(size: Size) -> Equality:
    """Run one fp32 step without dropout on both sides, on the same tokens."""
    size = replace(size, bf16=False, dropout=0.0)
    state = ours.build(size)
    mine = run_step(ours, state)
    responses = mine.generated.responses()
    other_state = baseline.build(size, responses)
    compared = Compared(ours.drawing(size), other_state.forced_BT)
    batch = baseline.generate(other_state, compared)
    if not torch.equal(batch.response_ids_BT, other_state.forced_BT):
        raise UserError(f"{size.name}: the baseline did not sample the recorded responses")
    scored = baseline.score(other_state, batch)
    rewards_BT = baseline.rewards(other_state, scored)
    losses = baseline.update(other_state, scored, rewards_BT)
    differences = {
        "logprobs": _apart(mine.scored.logprobs_BT, scored.policy.logprobs_BT),
        "reference logprobs": _apart(mine.scored.ref_logprobs_BT, scored.reference.logprobs_BT),
        "values": _apart(mine.scored.values_BT, scored.values_BT),
        "rewards": _apart(mine.rewards.total_BT, rewards_BT),
        "losses": max(abs(mine.losses[name] - losses[name]) for name in losses),
        "gradients": gradients_apart(
            gradients(ours.modules(state), state.optimizer),
            gradients(baseline.modules(other_state), other_state.optimizer),
        ),
    }
    return Equality(differences, compared.share, responses)
