import json

import pytest
import tiny
import torch
from rl_helpers import lengths_mask, rollout

from fgrlhf.algorithms.metrics import mean_of
from fgrlhf.runs.step_metrics import (
    InputCounts,
    cut_shares,
    explained_variance,
    rollout_metrics,
    sample_rows,
)
from fgrlhf.text_types import SegmentScore
from fgrlhf.types import Advantages, TokenReward

MASK = lengths_mask([3, 1])


def scored():
    tokenizer = tiny.tokenizer("word")
    ids = [*tokenizer("red cat")["input_ids"], 1]
    batch = rollout(
        MASK,
        response_ids_BT=torch.tensor([ids, [1, 0, 0]]),
        logprobs_BT=torch.tensor([[-1.0, -2, -3], [-1, 9, 9]]),
        ref_logprobs_BT=torch.tensor([[-2.0, -2, -3.5], [-2, 7, 7]]),
        values_BT=torch.tensor([[1.0, 2, 3], [4, 0, 0]]),
        texts=("red cat", ""),
        char_ends=((3, 7, 7), (0,)),
    )
    aspects = {"a": torch.tensor([[0.0, 1, 0], [0, 0, 0]])}
    aspects["b"] = torch.tensor([[0.0, 0, 2], [-4, 0, 0]])
    segments = {
        "a": [[SegmentScore(0, 7, 1.0, "ok")], []],
        "b": [[SegmentScore(0, None, 2.0)], [SegmentScore(0, None, -4.0)]],
    }
    returns = torch.tensor([[1.0, 2, 3], [5, 99, 99]])
    advantages = Advantages(torch.arange(6.0).view(2, 3), returns)
    return tokenizer, batch, TokenReward(aspects, segments, MASK), advantages


def test_rollout_metrics_by_hand():
    _, batch, rewards, advantages = scored()
    penalized_BT = (rewards.total_BT - 0.1) * MASK
    metrics = rollout_metrics(batch, rewards, penalized_BT, advantages)
    expected = {
        "reward/total": -0.5,  # of 3 and -4
        "reward_std": 3.5,
        "reward/a": 0.5,
        "reward/b": -1.0,
        "reward/penalized": -0.7,
        "kl": (1.5 + 1) / 2,
        "length": 2.0,
        "value/mean": 2.5,
        "value/explained_variance": 1 - 0.1875 / 2.1875,
    }
    assert metrics == pytest.approx(expected, abs=1e-6)
    alone = Advantages(advantages.advantages_BT)
    without_critic = rollout_metrics(batch, rewards, penalized_BT, alone)
    assert not any(name.startswith("value/") for name in without_critic)


def test_explained_variance():
    seven_ones = torch.ones(1, 7)
    returns_BT = torch.tensor([[1.0, 2, 3], [4, 99, 99]])
    assert explained_variance(returns_BT.clone(), returns_BT, MASK) == 1
    # an offset is not variance
    assert explained_variance(returns_BT + 7, returns_BT, MASK) == pytest.approx(1)
    assert explained_variance(torch.zeros(2, 3), returns_BT, MASK) == pytest.approx(0)
    assert explained_variance(torch.randn(2, 3), torch.ones(2, 3), MASK) == 0
    # the mean of seven times 0.1 is not 0.1 in fp32, and this difference is no variance
    assert explained_variance(torch.arange(7.0)[None], torch.full((1, 7), 0.1), seven_ones) == 0


def test_samples_show_what_training_saw():
    tokenizer, batch, rewards, advantages = scored()
    rows = json.loads(
        json.dumps(sample_rows(tokenizer, batch, rewards, advantages, limit=5), allow_nan=False)
    )
    assert len(rows) == 2 and len(sample_rows(tokenizer, batch, rewards, advantages, limit=1)) == 1
    first, second = rows
    assert first["tokens"] == ["red", " cat", "</s>"] and second["tokens"] == ["</s>"]
    assert first["rewards"] == {"a": [0, 1, 0], "b": [0, 0, 2]} and second["rewards"]["b"] == [-4]
    assert first["kl"] == [1, 0, 0.5]
    assert first["values"] == [1, 2, 3]
    assert first["advantages"] == [0, 1, 2]
    assert first["segments"] == {
        "a": [{"start": 0, "end": 7, "value": 1, "label": "ok"}],
        "b": [{"start": 0, "end": None, "value": 2, "label": ""}],
    }
    assert first["reward"] == 3 and second["reward"] == -4 and second["response"] == ""


def test_shares_of_cut_inputs_are_over_all_processes():
    first = {"a": InputCounts(seen=4, cut=1), "b": InputCounts()}
    second = {"a": InputCounts(seen=12, cut=0), "b": InputCounts()}
    assert cut_shares([first, second]) == {"cut/a": 1 / 16}
    assert cut_shares([{}]) == {}


def test_mean_over_minibatches():
    assert mean_of([{"a": 1.0, "b": 0.0}, {"a": 2.0, "b": 4.0}]) == {"a": 1.5, "b": 2.0}
