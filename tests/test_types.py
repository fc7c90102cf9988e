import pytest
import torch
from rl_helpers import lengths_mask, rollout

from fgrlhf.text_types import SegmentScore
from fgrlhf.types import Advantages, TokenReward

PROMPT_LENGTHS, RESPONSE_LENGTHS = [5, 2, 3], [2, 4, 1]


def ragged(side: str):
    """Prompt and response tokens are 1, 2, 3, ...; padding is 0."""

    def ids(lengths, left):
        T = max(lengths)
        rows = [
            [0] * (T - n) * left + list(range(1, n + 1)) + [0] * (T - n) * (not left)
            for n in lengths
        ]
        return torch.tensor(rows)

    prompt_ids_BP = ids(PROMPT_LENGTHS, side == "left")
    response_ids_BT = ids(RESPONSE_LENGTHS, False)
    return rollout(
        (response_ids_BT > 0).long(),
        prompt_ids_BP=prompt_ids_BP,
        prompt_mask_BP=(prompt_ids_BP > 0).long(),
        response_ids_BT=response_ids_BT,
        logprobs_BT=-response_ids_BT.float(),
        texts=("a", "b", "c"),
        left_padded=side == "left",
    )


@pytest.mark.parametrize("side", ["left", "right"])
def test_rows_cut_only_padding(side):
    part = ragged(side).rows(torch.tensor([2, 0]))
    assert part.texts == ("c", "a") and part.group_B.tolist() == [2, 0]
    assert part.prompt_ids_BP.shape == (2, 5) and part.response_ids_BT.tolist() == [[1, 0], [1, 2]]
    assert part.logprobs_BT.tolist() == [[-1, 0], [-1, -2]]
    narrow = part.rows(torch.tensor([0]))
    assert narrow.prompt_ids_BP.tolist() == [[1, 2, 3]]
    assert narrow.prompt_mask_BP.tolist() == [[1, 1, 1]]
    assert narrow.response_ids_BT.tolist() == [[1]]
    two = ragged(side).rows(torch.tensor([1, 2])).prompt_ids_BP.tolist()
    assert two == ([[0, 1, 2], [1, 2, 3]] if side == "left" else [[1, 2, 0], [1, 2, 3]])


def test_rows_of_advantages_follow_the_rollout():
    advantages = Advantages(torch.arange(12.0).view(3, 4), torch.arange(12.0).view(3, 4) + 100)
    part = advantages.rows(torch.tensor([2, 0]), 2)
    assert part.advantages_BT.tolist() == [[8, 9], [0, 1]]
    assert part.returns_BT.tolist() == [[108, 109], [100, 101]]
    assert Advantages(torch.zeros(3, 4)).rows(torch.tensor([1]), 2).returns_BT is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"logprobs_BT": torch.zeros(3, 5)},
        {"values_BT": torch.zeros(2, 4)},
        {"group_B": torch.zeros(4)},
        {"texts": ("a",)},
        {"prompt_mask_BP": torch.ones(3, 2)},
        {"char_ends": ()},
    ],
)
def test_a_rollout_of_wrong_shape_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        rollout(lengths_mask(RESPONSE_LENGTHS), **wrong)


def test_spans_and_rewards_check_themselves():
    SegmentScore(3, 3, 1.0), SegmentScore(0, None, 1.0)
    for start, end in [(-1, 2), (3, 2)]:
        with pytest.raises(ValueError, match="not a span"):
            SegmentScore(start, end, 1.0)
    mask_BT = lengths_mask([2, 1])
    with pytest.raises(ValueError, match="relevance"):
        TokenReward({"relevance": torch.zeros(2, 3)}, {}, mask_BT)
    with pytest.raises(ValueError, match="returns_BT"):
        Advantages(torch.zeros(2, 3), torch.zeros(2, 2))
    with pytest.raises(ValueError, match=r"advantages_BT has shape \(2,\), expected \(any, any\)"):
        Advantages(torch.zeros(2))
    aspects = {"a": torch.tensor([[1.0, 2], [3, 0]]), "b": torch.tensor([[0.0, -1], [0.5, 0]])}
    rewards = TokenReward(aspects, {}, mask_BT)
    assert rewards.total_BT.tolist() == [[1, 1], [3.5, 0]]
    assert TokenReward({}, {}, mask_BT).total_BT.tolist() == [[0, 0], [0, 0]]


def test_an_empty_prompt_does_not_cut_the_other_prompts():
    """The side of the padding is recorded: masks do not show it if a prompt has no tokens."""
    prompt_ids_BP = torch.tensor([[0, 0, 11, 12, 13], [0] * 5, [21, 22, 23, 24, 25]])
    prompts = {"prompt_ids_BP": prompt_ids_BP, "prompt_mask_BP": (prompt_ids_BP > 0).long()}
    batch = rollout(lengths_mask([1, 1, 1]), **prompts, left_padded=True)
    part = batch.rows(torch.tensor([0, 1]))
    assert part.prompt_ids_BP.tolist() == [[11, 12, 13], [0, 0, 0]] and part.left_padded
    assert batch.rows(torch.tensor([1])).prompt_ids_BP.tolist() == [[0]]
