"""Pure functions refuse arguments of wrong shapes instead of broadcasting them."""

import pytest
import torch

from fgrlhf.alignment import decode, place_on_tokens, segments_before
from fgrlhf.models.logprobs import chosen_logprobs
from fgrlhf.models.packing import pack_responses
from fgrlhf.models.shared_rows import group_equal_prompts, uniform_group_size
from fgrlhf.text_types import SegmentScore
from fgrlhf.utils import check_same_shape, check_shape, masked_mean, masked_sum, masked_var, whiten

X_BT = torch.ones(2, 3)
MASK_BT = torch.ones(2, 3, dtype=torch.long)


def test_a_shape_check_names_argument_and_shapes():
    check_shape("x_BT", X_BT, (2, 3))
    check_shape("x_BT", X_BT, (None, 3))
    with pytest.raises(ValueError, match=r"x_BT has shape \(2, 3\), expected \(3, any\)"):
        check_shape("x_BT", X_BT, (3, None))
    with pytest.raises(ValueError, match=r"x_BT has shape \(2, 3\), expected \(2,\)"):
        check_shape("x_BT", X_BT, (2,))
    check_same_shape(a=X_BT, b=MASK_BT)
    with pytest.raises(ValueError, match=r"the same shape: a \(2, 3\), b \(3,\)"):
        check_same_shape(a=X_BT, b=MASK_BT[0])


@pytest.mark.parametrize("function", [masked_sum, masked_mean, masked_var, whiten])
@pytest.mark.parametrize("mask", [MASK_BT[:1], MASK_BT[:, :1], MASK_BT[0]])
def test_masked_reductions(function, mask):
    function(X_BT, MASK_BT)
    with pytest.raises(ValueError, match=r"x \(2, 3\), mask"):
        function(X_BT, mask)


def test_packing():
    group_B = torch.tensor([0, 1])
    packing = pack_responses(MASK_BT, group_B)
    with pytest.raises(ValueError, match=r"mask_BT has shape \(3,\)"):
        pack_responses(MASK_BT[0], group_B)
    with pytest.raises(ValueError, match=r"group_B has shape \(1,\), expected \(2,\)"):
        pack_responses(MASK_BT, group_B[:1])
    with pytest.raises(ValueError, match=r"values_BT has shape \(2, 2\), expected \(2, 3\)"):
        packing.pack(MASK_BT[:, :2])
    with pytest.raises(ValueError, match=r"packed_RLD has shape \(1, 3, 4\), expected \(2, 3, 4\)"):
        packing.unpack(torch.zeros(1, 3, 4))


def test_logprobs():
    hidden_ND = torch.zeros(2, 3)
    with pytest.raises(ValueError, match=r"hidden_ND has shape \(3,\)"):
        chosen_logprobs(lambda z: z, hidden_ND[0], torch.tensor([0]))
    with pytest.raises(ValueError, match=r"ids_N has shape \(1,\), expected \(2,\)"):
        chosen_logprobs(lambda z: z, hidden_ND, torch.tensor([0]))


@pytest.mark.parametrize("function", [place_on_tokens, segments_before])
def test_segments_and_tokens(function):
    segments = [[SegmentScore(0, 1, 1.0)], []]
    ends = [(1, 2, 3), (1, 2, 3)]
    function(segments, ends, MASK_BT)
    with pytest.raises(ValueError, match=r"segments has 1 responses, .* shape \(2, 3\)"):
        function(segments[:1], ends, MASK_BT)
    with pytest.raises(ValueError, match=r"char_ends has 1 responses, .* shape \(2, 3\)"):
        function(segments, ends[:1], MASK_BT)
    with pytest.raises(ValueError, match=r"char_ends\[1\] has 2 entries, .* 1 has 3 tokens"):
        function(segments, [ends[0], (1, 2)], MASK_BT)
    with pytest.raises(ValueError, match=r"mask_BT has shape \(3,\)"):
        function(segments, ends, MASK_BT[0])
    with pytest.raises(ValueError, match="response 0 has no tokens but 1 scored segments"):
        function(segments[:1], [()], torch.zeros(1, 2))


def test_decoding_texts():
    with pytest.raises(ValueError, match="response_mask_BT has shape"):
        decode(None, MASK_BT, MASK_BT[:, :2])


# ---- groups of equal prompts ---------------------------------------------------------------------


def test_runs_of_equal_prompts():
    ids_BP = torch.tensor([[1, 2], [1, 2], [1, 3], [1, 2], [1, 2]])
    mask_BP = torch.tensor([[1, 1], [1, 1], [1, 1], [1, 1], [1, 0]])
    first_G, group_B = group_equal_prompts(ids_BP, mask_BP)
    assert first_G.tolist() == [0, 2, 3, 4]
    assert group_B.tolist() == [0, 0, 1, 2, 3]
    assert uniform_group_size(group_B) is None
    assert uniform_group_size(torch.tensor([0, 0, 1, 1])) == 2
    with pytest.raises(ValueError, match="prompt_ids_BP .* prompt_mask_BP"):
        group_equal_prompts(ids_BP, mask_BP[:, :1])
