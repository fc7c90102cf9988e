import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import ddp_worker
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rl_helpers import lengths_mask, metrics, rollout
from slow import with_slow

from fgrlhf.base.processes import environments_of_group
from fgrlhf.runs.distributed import join_rollouts, share_of
from fgrlhf.text_types import SegmentScore
from fgrlhf.types import TokenReward


@given(st.lists(st.integers(), max_size=20), st.integers(1, 6))
def test_shares_partition_in_order(items, world):
    shares = [share_of(items, rank, world) for rank in range(world)]
    assert [x for share in shares for x in share] == items
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize("left", [True, False])
def test_joined_rollouts_are_those_of_one_process(left):
    def part(prompt, lengths, first):
        mask_BT = lengths_mask(lengths)
        B, P = len(lengths), len(prompt)
        values = torch.arange(mask_BT.numel()).view(mask_BT.shape) + first
        result = rollout(
            mask_BT,
            prompt_ids_BP=torch.tensor([prompt] * B),
            prompt_mask_BP=torch.ones(B, P, dtype=torch.long),
            logprobs_BT=-values.float(),
            response_ids_BT=values + 10,
            texts=tuple(str(first + b) for b in range(B)),
            group_B=torch.arange(B) // 2,
            left_padded=left,
            support_BTW=(values + 1)[..., None].repeat(1, 1, 2).to(torch.uint8),
        )
        segments = {"a": [[SegmentScore(0, None, float(first + b))] for b in range(B)]}
        return result, TokenReward({"a": values.float()}, segments, mask_BT)

    parts = [part([5, 6], [1, 3, 2], 0), part([7, 8, 9], [4], 100)]
    joined, rewards = join_rollouts(parts, pad_id=-1)
    assert joined.texts == ("0", "1", "2", "100") and joined.group_B.tolist() == [0, 0, 1, 2]
    assert joined.prompt_ids_BP[0].tolist() == ([-1, 5, 6] if left else [5, 6, -1])
    assert joined.prompt_ids_BP[3].tolist() == [7, 8, 9]
    assert joined.prompt_mask_BP[0].tolist() == ([0, 1, 1] if left else [1, 1, 0])
    assert joined.response_mask_BT.tolist() == [[1, 0, 0, 0], [1, 1, 1, 0], [1, 1, 0, 0], [1] * 4]
    assert joined.response_ids_BT[1].tolist() == [13, 14, 15, -1]
    assert joined.logprobs_BT[1].tolist() == [-3, -4, -5, 0]
    assert joined.support_BTW is not None
    assert joined.support_BTW[1].tolist() == [[4, 4], [5, 5], [6, 6], [0, 0]]
    assert rewards.by_aspect["a"][3].tolist() == [100, 101, 102, 103]
    assert [s[0].value for s in rewards.segments["a"]] == [0, 1, 2, 100]
    assert torch.equal(rewards.mask_BT, joined.response_mask_BT)
    back, original = joined.rows(torch.tensor([0, 1, 2])), parts[0][0]
    assert torch.equal(back.prompt_ids_BP, original.prompt_ids_BP)
    assert torch.equal(back.response_mask_BT, original.response_mask_BT)


OF_DPO = ["dpo", "dpo-marks"]
ALL = [*ddp_worker.CASES, *OF_DPO]
SLOW = ["published", "nlpo", "lora", "lora-llama", "bart", "flan", "trpo"]


def cases(names) -> list:
    """Parameters of a test: those of SLOW are marked."""
    return with_slow(names, lambda name: name in SLOW)


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory) -> Path:
    """Results of both ranks, which have trained the cases that are not in SLOW."""
    folder = tmp_path_factory.mktemp("two")
    train_in_two_processes(folder, [name for name in ALL if name not in SLOW])
    return folder


@pytest.fixture(scope="module")
def slow_cases(two_processes) -> None:
    """Train the cases of SLOW in the same folder."""
    train_in_two_processes(two_processes, SLOW)


@pytest.fixture(autouse=True)
def train_slow_cases(request) -> None:
    if request.node.get_closest_marker("slow"):
        request.getfixturevalue("slow_cases")


def train_in_two_processes(folder: Path, names: list[str]) -> None:
    """Train these cases of tests/ddp_worker.py, and fail if one of the ranks does."""
    command = [sys.executable, ddp_worker.__file__, str(folder), *names]
    ranks, logs = [], []
    for rank, environment in enumerate(rank_environments(2)):
        logs.append(folder / f"rank{rank}.log")
        with open(logs[rank], "wb") as log:
            ranks.append(
                subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
            )
    wait_for_all(ranks)
    codes = [rank.returncode for rank in ranks]
    assert codes == [0, 0], "\n".join(log.read_text(errors="replace")[-3000:] for log in logs)


def rank_environments(world: int) -> list[dict[str, str]]:
    """The environment of each process of a group whose program is in tests/."""
    root = str(Path(__file__).parents[1])
    path = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    environments = []
    for variables in environments_of_group(world):
        environments.append({**os.environ, **variables, "PYTHONPATH": path})
    return environments


def wait_for_all(processes: list[subprocess.Popen], at_most: float = 3600) -> None:
    """Wait until all have ended; if one fails, kill the others, which would wait for it.

    `at_most` seconds is a generous limit against a deadlock.
    """
    begun = time.monotonic()
    try:
        while any(process.poll() is None for process in processes):
            if any(process.poll() for process in processes) or time.monotonic() - begun > at_most:
                return
            time.sleep(0.1)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_when_one_process_fails_the_other_is_ended():
    script = "read line; exit 3"
    fails = subprocess.Popen(["bash", "-c", script], stdin=subprocess.DEVNULL)
    waits = subprocess.Popen(["sleep", "1000"])
    wait_for_all([waits, fails])
    assert fails.returncode == 3 and waits.returncode == -signal.SIGKILL


@pytest.mark.parametrize("name", cases(ddp_worker.CASES))
def test_two_processes_give_the_curve_of_one(name, two_processes, tmp_path):
    run = ddp_worker.run(name, tmp_path, world=1)
    alone, together = metrics(tmp_path / name), metrics(two_processes / name)
    assert len(alone) == len(together) == run.step
    assert run.step == ddp_worker.STEPS or name == "stop"
    for one, two in zip(alone, together):
        assert one.keys() == two.keys()
        tokens = one["length"] * run.episodes_per_step
        for key, value in one.items():
            if key.startswith("clipfrac"):
                # A count: a token at the clipping threshold may fall on either side of it.
                assert two[key] == pytest.approx(value, abs=1.01 / tokens), (name, one["step"], key)
                continue
            # In two processes rows are packed with other rows: gradients are equal to 2e-6, which
            # Adam turns into 1e-4 where a gradient is almost 0.
            assert two[key] == pytest.approx(value, rel=5e-4, abs=5e-5), (name, one["step"], key)
    assert {row["kl"] for row in alone[1:]} != {0.0}
    samples = [
        sorted((folder / name / "samples").iterdir()) for folder in (tmp_path, two_processes)
    ]
    texts = [
        [[json.loads(line)["response"] for line in path.read_text().splitlines()] for path in paths]
        for paths in samples
    ]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("name", OF_DPO)
def test_two_processes_give_dpo_the_curve_of_one(name, two_processes, tmp_path):
    run = ddp_worker.run_dpo(name, tmp_path)
    alone, together = metrics(tmp_path / name), metrics(two_processes / name)
    assert len(alone) == len(together) == run.step == 10
    assert alone[-1]["loss/total"] < alone[0]["loss/total"]
    alone[0]["dpo/accuracy"] = together[0]["dpo/accuracy"]  # all margins are 0 except for rounding
    for one, two in zip(alone, together):
        assert two == pytest.approx(one, rel=1e-4, abs=2e-5)


@pytest.mark.parametrize("name", cases(ALL))
def test_both_ranks_hold_the_same_model_and_stop_together(name, two_processes):
    ranks = [
        json.loads((two_processes / f"{name}-rank{rank}.json").read_text()) for rank in range(2)
    ]
    assert ranks[0] == ranks[1]
    steps = 10 if name in OF_DPO else ddp_worker.STEPS
    assert ranks[0]["stopped"] == (name == "stop")
    assert (ranks[0]["step"] < steps) == (name == "stop")


def test_every_rank_multiplies_as_rank_0_does(two_processes):
    choices = [
        json.loads((two_processes / f"kernels-rank{rank}.json").read_text()) for rank in range(2)
    ]
    assert choices[0] == choices[1] and set(choices[0].values()) == {"pytorch"}
