"""Comparisons as tokens, weights and batches."""

import pytest
import tiny
import torch
from dpo_helpers import fours, pairs

from fgrlhf.base.errors import UserError
from fgrlhf.configs.sections import Sampling
from fgrlhf.data.comparisons import Answer, Comparison
from fgrlhf.data.formats import Demonstration
from fgrlhf.data.token_comparisons import collate, encode_comparisons, marked_tokens
from fgrlhf.text_types import Prompt
from fgrlhf.utils import IGNORED
from sft.data import encode


def one(better: Answer, worse: Answer) -> list[Comparison]:
    return [Comparison(Prompt("0", "the cat"), (better, worse), ((0, 1),))]


def test_marked_tokens_by_hand():
    # a token may begin with the space before its word
    offsets = [(0, 3), (3, 7), (7, 8), (8, 12), (12, 12)]
    assert marked_tokens(offsets, ((4, 7),)) == [0, 1, 0, 0, 0]
    assert marked_tokens(offsets, ((2, 3), (8, 9))) == [1, 0, 0, 1, 0]
    assert marked_tokens(offsets, ((3, 8), (11, 12))) == [0, 1, 1, 1, 0]
    assert marked_tokens(offsets, ()) == [0] * 5


@pytest.mark.parametrize("kind", ["word", "unigram", "bpe"])
def test_marked_characters_are_found_by_any_tokenizer(kind):
    policy = tiny.t5(kind)
    text = "the red cat sees a blue dog"
    (encoded,) = encode_comparisons(
        policy, one(Answer(text, ((8, 11), (19, 23))), Answer("a dog")), 100, reads_marks=True
    )
    marked = [t for t, is_marked in enumerate(encoded.marked[0]) if is_marked]
    joined = policy.tokenizer.decode([encoded.answer_ids[0][t] for t in marked]).replace(" ", "")
    assert joined == "catblue"
    assert len(encoded.marked[0]) == len(encoded.answer_ids[0])
    assert encoded.marked[0][-1] is False
    assert not any(encoded.marked[1])
    (plain,) = encode_comparisons(policy, one(Answer(text), Answer("a dog")), 100)
    assert plain.answer_ids == encoded.answer_ids and not any(plain.marked[0])


def test_a_whole_answer_ends_and_a_cut_one_does_not():
    policy = tiny.t5()
    (encoded,) = encode_comparisons(
        policy,
        one(Answer("the red cat"), Answer("the red cat sees a dog", ((0, 22),))),
        4,
        reads_marks=True,
    )
    assert encoded.answer_ids[0][-1] == 1 and len(encoded.answer_ids[0]) == 4
    assert len(encoded.answer_ids[1]) == 4
    assert 1 not in encoded.answer_ids[1]
    assert encoded.marked[1] == [True] * 4


def test_pairs_without_a_difference_are_left_out():
    policy, prompt = tiny.t5(), Prompt("0", "the cat")
    three = Comparison(
        prompt, (Answer("a dog sees"), Answer("a dog likes"), Answer("a")), ((0, 1), (0, 2))
    )
    (encoded,) = encode_comparisons(policy, [three], 2)  # after the cut the first two are equal
    assert encoded.pairs == [(0, 2)] and len(encoded.answer_ids) == 3
    message = "1 comparisons, but no pair of different answers .* raise model.max_generated_len=2"
    with pytest.raises(UserError, match=message):
        encode_comparisons(policy, one(Answer("a dog sees"), Answer("a dog likes")), 2)


def test_weights_need_a_tokenizer_that_tells_characters():
    policy = tiny.t5()

    class Slow:
        is_fast = False

    policy.tokenizer = Slow()
    message = "the marks of answers need .* Slow has no character offsets: .* set dpo.span_weight=1"
    with pytest.raises(UserError, match=message):
        encode_comparisons(policy, one(Answer("a"), Answer("the")), 5, reads_marks=True)


def test_a_pair_names_answers():
    with pytest.raises(ValueError, match="of 2 answers"):
        Comparison(Prompt("0", "a"), (Answer("a"), Answer("b")), ((0, 2),))


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_a_batch_by_hand(kind):
    policy = tiny.policy(kind)
    rows = encode_comparisons(policy, fours()[:2], 12)
    reference = [[torch.arange(len(ids)).float() - 10 for ids in row.answer_ids] for row in rows]
    batch = collate(rows, reference, pad_id=7, left=kind == "gpt2")
    assert batch.better_N.tolist() == [0, 0, 2, 7] and batch.worse_N.tolist() == [1, 2, 3, 4]
    assert len(batch.response_ids_BT) == 8
    assert batch.prompt_ids_BP[0].tolist() == batch.prompt_ids_BP[3].tolist()
    for b in range(8):
        ids = rows[b // 4].answer_ids[b % 4]
        n, mask = len(ids), batch.response_mask_BT[b]
        assert batch.response_ids_BT[b].tolist() == [
            *ids,
            *[7] * (len(mask) - n),
        ]
        assert mask.tolist() == [1] * n + [0] * (len(mask) - n)
        assert not batch.marked_BT[b].any()
        assert batch.ref_logprobs_BT[b, :n].tolist() == [t - 10 for t in range(n)]
        assert batch.ref_logprobs_BT[b, n:].tolist() == [0] * (len(mask) - n)
        real = batch.prompt_ids_BP[b][batch.prompt_mask_BP[b].bool()].tolist()
        assert real == rows[b // 4].prompt_ids
        assert (
            batch.prompt_mask_BP[b, -1] == 1 if kind == "gpt2" else batch.prompt_mask_BP[b, 0] == 1
        )


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_prompts_are_those_of_sampling(kind):
    policy = tiny.policy(kind)
    policy.max_input_len = 3
    rows = encode_comparisons(policy, pairs(), 12)
    for row in rows:
        ids_BP, mask_BP = policy.encode([row.source.prompt.text])
        assert row.prompt_ids == ids_BP[0][mask_BP[0].bool()].tolist() and len(row.prompt_ids) <= 3


@pytest.mark.parametrize(
    "policy",
    [tiny.chat, lambda: tiny.chat(chat_template=False), tiny.t5, tiny.gpt2],
    ids=["chat", "no chat", "t5", "gpt2"],
)
def test_one_token_ends_a_response_everywhere(policy):
    """DPO, supervised training and sampling use the same end token."""
    policy = policy().eval()
    tokenizer = policy.tokenizer
    expected = "<|end|>" if policy.chat else "</s>"
    assert tokenizer.convert_ids_to_tokens(policy.end_id) == expected
    assert policy.end_id in policy.eos_ids
    (row,) = encode_comparisons(policy, one(Answer("a dog"), Answer("the")), 12)
    assert [ids[-1] for ids in row.answer_ids] == [policy.end_id] * 2
    (example,) = encode(policy, [Demonstration(Prompt("0", "the cat"), "a dog")], 12)
    assert [i for i in example["labels"] if i != IGNORED] == row.answer_ids[0]
    cut = "a dog sees the bird"
    (row,) = encode_comparisons(policy, one(Answer(cut), Answer("the")), 3)
    (example,) = encode(policy, [Demonstration(Prompt("0", "the cat"), cut)], 3)
    assert [i for i in example["labels"] if i != IGNORED] == row.answer_ids[0]
    assert policy.end_id not in row.answer_ids[0]
    output = policy.model.get_output_embeddings()
    with torch.no_grad():
        output.weight.zero_()
        output.bias = torch.nn.Parameter(
            torch.zeros(output.out_features).index_fill(0, torch.tensor(policy.end_id), 9.0)
        )
    response = policy.generate(*policy.encode(["the cat"]), Sampling(5, do_sample=False))
    assert response.ids_BT.tolist() == [[policy.end_id]]


def test_a_prompt_without_tokens_is_refused():
    comparison = Comparison(Prompt("7", ""), (Answer("a"), Answer("the")), ((0, 1),))
    for kind in ("t5", "gpt2"):
        with pytest.raises(UserError, match="a prompt has no tokens"):
            encode_comparisons(tiny.policy(kind), [comparison], 5)


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_an_empty_answer_is_its_end(kind):
    policy = tiny.policy(kind).eval()
    rows = encode_comparisons(policy, one(Answer(""), Answer("a dog sees")), 12)
    assert rows[0].answer_ids[0] == [policy.end_id]
    batch = collate(rows, None, pad_id=0, left=kind == "gpt2")
    with torch.no_grad():
        logprobs_BT = policy(
            batch.prompt_ids_BP, batch.prompt_mask_BP, batch.response_ids_BT, batch.response_mask_BT
        )[0].logprobs_BT
    assert logprobs_BT[0, 0] < 0 and logprobs_BT[0, 1:].abs().sum() == 0
