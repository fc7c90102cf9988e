from dataclasses import replace
from functools import cache

import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rl_helpers import PROMPTS, lengths_mask
from tiny import collect
from transformers import RepetitionPenaltyLogitsProcessor

from fgrlhf.alignment import char_ends, decode, place_on_tokens
from fgrlhf.base.errors import UserError
from fgrlhf.configs.sections import Sampling
from fgrlhf.evaluation import PolicyResponder, evaluate_rows
from fgrlhf.models.decoding import unpacked
from fgrlhf.models.encoder_decoder import EncoderDecoderPolicy
from fgrlhf.rollout import generate_texts, parts, response_seeds
from fgrlhf.text_types import Prompt, SegmentScore
from fgrlhf.value import ActorCritic, Value

EOS = 1
KINDS = ["word", "unigram", "bpe", "unigram, tidied"]
LETTERS = st.text(
    alphabet=st.characters(exclude_categories=["Cs"])
    | st.sampled_from("🙂👩‍👩‍👧é東 .,;!?\n\t\u00a0\u2028\ufffd"),
    max_size=24,
)
WORDS = st.lists(st.sampled_from(tiny.WORDS + ["🙂", "naïve", "東京!"]), max_size=8).map(" ".join)


@cache
def tokenizer_of(kind: str):
    """With `tidied`, decoding removes spaces before punctuation, which changes earlier text."""
    tokenizer = tiny.fresh(tiny.tokenizer(kind.removesuffix(", tidied")))
    tokenizer.clean_up_tokenization_spaces = kind.endswith("tidied")
    return tokenizer


@st.composite
def responses(draw, kind):
    """Token ids of a response: a text's or arbitrary ones; ended, cut off, or empty."""
    tokenizer = tokenizer_of(kind)
    if draw(st.booleans()):
        ids = tokenizer(draw(LETTERS | WORDS))["input_ids"]
    else:
        ids = draw(
            st.lists(st.integers(0, len(tokenizer) - 1).filter(lambda i: i != EOS), max_size=12)
        )
    if draw(st.booleans()) and ids:
        # cut at the length limit, possibly inside a character
        return ids[: draw(st.integers(1, len(ids)))]
    return ids + [EOS]


def spans(draw, text):
    """Arbitrary segments, overlapping or ending together, and the whole response."""
    n = len(text)
    pairs = draw(st.lists(st.tuples(st.integers(0, n), st.integers(0, n)), max_size=5)) if n else []
    parts = [(min(pair), max(pair)) for pair in pairs if pair[0] != pair[1]]
    return parts + [(0, None)] * draw(st.integers(0, 2))


@pytest.mark.parametrize("kind", KINDS)
def test_no_reward_is_lost_overwritten_or_moved(kind):
    tokenizer = tokenizer_of(kind)

    @settings(max_examples=120, deadline=None, derandomize=True)
    @given(st.data())
    def check(data):
        rows = [data.draw(responses(kind)) for _ in range(data.draw(st.integers(1, 3)))]
        T = max(map(len, rows))
        ids_BT = torch.tensor([row + [0] * (T - len(row)) for row in rows])
        mask_BT = lengths_mask([len(row) for row in rows])
        texts, ends = decode(tokenizer, ids_BT, mask_BT)
        segments = []
        for row, text, row_ends in zip(rows, texts, ends):
            assert text == tokenizer.decode(row, skip_special_tokens=True)
            assert len(row_ends) == len(row) and row_ends[-1] == len(text)
            assert list(row_ends) == sorted(row_ends)
            values = st.sampled_from([0.3, -0.3, 0.5, -0.5, 1.25])
            segments.append(
                [
                    SegmentScore(start, end, data.draw(values))
                    for start, end in spans(data.draw, text)
                ]
            )
        rewards_BT = place_on_tokens(segments, ends, mask_BT)
        expected_BT = torch.zeros(mask_BT.shape)
        for b, (row, text) in enumerate(zip(rows, texts)):
            prefixes = [
                tokenizer.decode(row[: t + 1], skip_special_tokens=True) for t in range(len(row))
            ]
            for score in segments[b]:
                holds = [
                    score.end is not None and prefix[: score.end] == text[: score.end]
                    for prefix in prefixes
                ]
                expected_BT[b, holds.index(True) if any(holds) else len(row) - 1] += score.value
        torch.testing.assert_close(rewards_BT, expected_BT)
        sums = torch.tensor([sum(score.value for score in row) for row in segments])
        torch.testing.assert_close(rewards_BT.sum(1), sums.float(), atol=1e-5, rtol=0)
        assert rewards_BT[mask_BT == 0].abs().sum() == 0

    check()


def test_half_a_character_completes_nothing():
    tokenizer = tiny.tokenizer("bpe")
    ids = [byte_token(tokenizer, byte) for byte in "a🛸b".encode()]
    text, ends = char_ends(tokenizer, [*ids, EOS])
    assert text == "a🛸b" and ends == (1, 1, 1, 1, 2, 3, 3)
    cut, ends = char_ends(tokenizer, ids[:3])  # cut inside the emoji
    assert cut.startswith("a") and ends[0] == 1 and ends[-1] == len(cut)


def test_ends_never_fall():
    class Rewriting:
        """A decoder whose second token removes a character of the first token's text."""

        def batch_decode(self, prefixes, skip_special_tokens):
            return [["ab", "a", "axx", "abc", "abc"][len(prefix) - 1] for prefix in prefixes]

    assert char_ends(Rewriting(), [5, 6, 7, 8, EOS]) == ("abc", (2, 2, 2, 3, 3))


def byte_token(tokenizer, byte: int) -> int:
    """The id of the token for one byte, in GPT-2's byte alphabet."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in plain]
    return tokenizer.convert_tokens_to_ids(
        chr(byte) if byte in plain else chr(256 + others.index(byte))
    )


def test_ends_by_hand():
    tokenizer = tiny.tokenizer("word")
    ids = tokenizer("the red cat")["input_ids"]
    assert char_ends(tokenizer, [*ids, EOS]) == ("the red cat", (3, 7, 11, 11))
    assert char_ends(tokenizer, [EOS]) == ("", (0,))
    tidy = tokenizer_of("unigram, tidied")
    spaced = tidy(".")["input_ids"] + tidy("a")["input_ids"] + tidy("?")["input_ids"]
    text, ends = char_ends(tidy, spaced)  # "a ?" becomes "a?"
    assert len(text) < len(tiny.tokenizer("unigram").decode(spaced)) and ends[-1] == len(text)


def actor_critic(kind: str) -> ActorCritic:
    policy = tiny.policy(kind)
    policy.model.generation_config.eos_token_id = [1, 5, 10, 15]
    value = Value(policy.hidden_size)
    torch.nn.init.normal_(value.head.layers[-1].weight)
    return ActorCritic(policy, value).eval()


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_collect(kind):
    model, reference = actor_critic(kind), tiny.policy(kind, seed=1).eval()
    seeds = response_seeds(0, step=3, first_prompt=0, num_prompts=3, num_samples=2)
    rollout = collect(model, reference, PROMPTS, Sampling(6), 2, seeds, temperature=0.7)
    assert [prompt.id for prompt in rollout.prompts] == list("001122")
    assert rollout.group_B.tolist() == [0, 0, 1, 1, 2, 2]
    prompts = (rollout.prompt_ids_BP, rollout.prompt_mask_BP)
    batch = (*prompts, rollout.response_ids_BT, rollout.response_mask_BT)
    expected = model(*batch, temperature=0.7)
    torch.testing.assert_close(rollout.logprobs_BT, expected.logprobs_BT.detach())
    torch.testing.assert_close(rollout.values_BT, expected.values_BT.detach())
    ref_output, _ = reference(*batch, temperature=0.7)
    torch.testing.assert_close(rollout.ref_logprobs_BT, ref_output.logprobs_BT.detach())
    assert not rollout.logprobs_BT.requires_grad
    assert rollout.values_BT[rollout.response_mask_BT == 0].abs().sum() == 0
    for b in range(6):
        ids = rollout.response_ids_BT[b, : int(rollout.response_mask_BT[b].sum())].tolist()
        assert rollout.texts[b] == model.policy.tokenizer.decode(ids, skip_special_tokens=True)
    for first in range(3):  # prompt by prompt, as on several ranks, the responses are the same
        part = response_seeds(0, 3, first, 1, 2)
        assert part == seeds[2 * first : 2 * first + 2]
        alone = collect(model, reference, PROMPTS[first : first + 1], Sampling(6), 2, part, 0.7)
        assert alone.texts == rollout.texts[2 * first : 2 * first + 2]
    # before the first update the KL is 0
    start = collect(model, model.policy, PROMPTS, Sampling(6), 1, seeds[:3], 1.0)
    torch.testing.assert_close(start.logprobs_BT, start.ref_logprobs_BT, atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_logprobs_over_the_tokens_that_could_be_drawn(kind):
    model, reference = actor_critic(kind), tiny.policy(kind, seed=1).eval()
    sampling = Sampling(6, temperature=0.7, top_k=5, top_p=0.9)
    seeds = response_seeds(0, step=3, first_prompt=0, num_prompts=3, num_samples=2)
    whole = collect(model, reference, PROMPTS, sampling, 2, seeds, temperature=0.7)
    assert whole.support_BTW is None
    recorded = replace(sampling, with_support=True)
    rollout = collect(model, reference, PROMPTS, recorded, 2, seeds, temperature=0.7)
    assert torch.equal(rollout.response_ids_BT, whole.response_ids_BT)  # the same samples
    response = model.policy.generate(*model.policy.encode(PROMPTS), recorded, seeds, 2, 0.7)
    real_BT = rollout.response_mask_BT.bool()
    torch.testing.assert_close(response.logprobs_BT, rollout.logprobs_BT)  # sampled and scored

    # by hand, from the log-probabilities of all tokens
    vocabulary = len(model.policy.tokenizer)
    batch = (rollout.prompt_ids_BP, rollout.prompt_mask_BP)
    batch = (*batch, rollout.response_ids_BT, rollout.response_mask_BT)
    with torch.no_grad():
        for policy, logprobs_BT in (
            (model.policy, rollout.logprobs_BT),
            (reference, rollout.ref_logprobs_BT),
        ):
            logits_NV = policy.project(policy.hidden(*batch)[real_BT]) / 0.7
            support_NV = unpacked(rollout.support_BTW[real_BT], logits_NV.shape[-1])
            expected_NV = logits_NV.masked_fill(~support_NV, -torch.inf).log_softmax(-1)
            ids_N1 = rollout.response_ids_BT[real_BT][:, None]
            expected_N = expected_NV.gather(-1, ids_N1)[:, 0]
            torch.testing.assert_close(logprobs_BT[real_BT], expected_N)
    counts_N = unpacked(rollout.support_BTW, vocabulary).sum(-1)[real_BT]
    assert counts_N.min() >= 1 and counts_N.max() <= 5
    assert (rollout.logprobs_BT >= whole.logprobs_BT - 1e-6).all()
    assert (rollout.logprobs_BT[real_BT] > whole.logprobs_BT[real_BT] + 0.01).any()
    assert (rollout.support_BTW[~real_BT] == 0).all()

    part = rollout.rows(torch.tensor([3, 1]))  # cut like the tokens
    assert part.support_BTW.shape[:2] == part.response_ids_BT.shape
    assert torch.equal(part.support_BTW[0], rollout.support_BTW[3, : part.support_BTW.shape[1]])
    # before the first update the KL is 0
    start = collect(model, model.policy, PROMPTS, recorded, 2, seeds, 0.7)
    torch.testing.assert_close(start.logprobs_BT, start.ref_logprobs_BT, atol=1e-6, rtol=0)


CONSTRAINED = Sampling(8, temperature=0.7, top_k=5, min_new_tokens=4, no_repeat_ngram_size=1)


@pytest.mark.parametrize("with_support", [False, True])
@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_logprobs_of_a_policy_that_may_not_repeat_or_end(kind, with_support):
    """Sampled, scored and by hand they are the same, with the truncation or without."""
    model = actor_critic(kind)
    model.policy.model.generation_config.eos_token_id = ends = [1, 4, 7, 10, 13, 16, 19]
    sampling = replace(CONSTRAINED, with_support=with_support)
    seeds = response_seeds(0, step=3, first_prompt=0, num_prompts=3, num_samples=2)
    rollout = collect(model, model.policy, PROMPTS, sampling, 2, seeds, temperature=0.7)
    response = model.policy.generate(*model.policy.encode(PROMPTS), sampling, seeds, 2, 0.7)
    assert response.support_BTW is not None
    torch.testing.assert_close(response.logprobs_BT, rollout.logprobs_BT)
    torch.testing.assert_close(rollout.ref_logprobs_BT, rollout.logprobs_BT)
    batch = (rollout.prompt_ids_BP, rollout.prompt_mask_BP)
    batch = (*batch, rollout.response_ids_BT, rollout.response_mask_BT)
    with torch.no_grad():
        logits_BTV = model.policy.project(model.policy.hidden(*batch)) / 0.7
    lengths = rollout.response_mask_BT.sum(1).tolist()
    assert min(lengths) >= 5  # four tokens and an end
    for b, length in enumerate(lengths):
        ids = rollout.response_ids_BT[b, :length].tolist()
        assert len(set(ids)) == length
        for t in range(length):
            forbidden = [*ids[:t], *(ends if t < 4 else [])]
            logits_V = logits_BTV[b, t].index_fill(0, torch.tensor(forbidden).long(), -torch.inf)
            if with_support:
                least = logits_V.topk(5).values[-1]
                logits_V = logits_V.masked_fill(logits_V < least, -torch.inf)
            expected = logits_V.log_softmax(0)[ids[t]]
            torch.testing.assert_close(rollout.logprobs_BT[b, t], expected)


def test_constrained_responses_are_those_of_transformers():
    """But for its decoder's start, which is a token of n-grams there: the third prompt's."""
    policy = tiny.policy("t5").eval()
    policy.model.generation_config.eos_token_id = list(range(1, 20))
    sampling = Sampling(8, do_sample=False, min_new_tokens=4, no_repeat_ngram_size=2)
    ids_GP, mask_GP = policy.encode(PROMPTS[:2])
    response = policy.generate(ids_GP, mask_GP, sampling)
    constraints = {"min_new_tokens": 4, "no_repeat_ngram_size": 2, "do_sample": False}
    output = policy.model.generate(
        input_ids=ids_GP, attention_mask=mask_GP, max_new_tokens=8, **constraints
    )
    expected_BT = output[:, 1 : 1 + response.ids_BT.shape[1]]  # without the decoder's start
    assert torch.equal(response.ids_BT * response.mask_BT, expected_BT * response.mask_BT)
    free = policy.generate(ids_GP, mask_GP, Sampling(8, do_sample=False))
    assert free.mask_BT.sum() < response.mask_BT.sum()


def penalized(policy, batch: tuple, b: int, t: int, penalty: float) -> torch.Tensor:
    """Logits of token t of row b, in float64, changed by transformers."""
    prompt_ids_BP, prompt_mask_BP, response_ids_BT, _ = batch
    read = prompt_ids_BP[b][prompt_mask_BP[b].bool()].tolist()
    if isinstance(policy, EncoderDecoderPolicy):
        read = policy.decoder_start_ids
    ids_1S = torch.tensor([[*read, *response_ids_BT[b, :t].tolist()]])
    logits_V = policy.project(policy.hidden(*batch)[b, t]).double()
    return RepetitionPenaltyLogitsProcessor(penalty)(ids_1S, logits_V[None])[0]


@pytest.mark.parametrize("penalty", [1.5, 0.5])
@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_a_repetition_penalty_changes_logits_as_in_transformers(kind, penalty):
    """Sampled, scored and by hand the log-probabilities are the same, with prompts padded."""
    model, reference = actor_critic(kind), tiny.policy(kind, seed=1).eval()
    seeds = response_seeds(0, step=3, first_prompt=0, num_prompts=3, num_samples=2)
    sampling = Sampling(8, temperature=0.7, no_repeat_ngram_size=2, repetition_penalty=penalty)
    rollout = collect(model, reference, PROMPTS, sampling, 2, seeds, temperature=0.7)
    response = model.policy.generate(*model.policy.encode(PROMPTS), sampling, seeds, 2, 0.7)
    torch.testing.assert_close(response.logprobs_BT, rollout.logprobs_BT)
    batch = (rollout.prompt_ids_BP, rollout.prompt_mask_BP)
    batch = (*batch, rollout.response_ids_BT, rollout.response_mask_BT)
    real_BT = rollout.response_mask_BT.bool()
    allowed_BTV = unpacked(rollout.support_BTW, len(model.policy.tokenizer))
    for policy, logprobs_BT in (
        (model.policy, rollout.logprobs_BT),
        (reference, rollout.ref_logprobs_BT),
    ):
        for b, t in real_BT.nonzero().tolist():
            with torch.no_grad():
                logits_V = penalized(policy, batch, b, t, penalty) / 0.7
            logits_V = logits_V.masked_fill(~allowed_BTV[b, t], -torch.inf)
            expected = logits_V.log_softmax(0)[rollout.response_ids_BT[b, t]]
            torch.testing.assert_close(logprobs_BT[b, t].double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_penalized_responses_are_those_of_transformers(kind):
    policy = tiny.policy(kind).eval()
    policy.model.generation_config.eos_token_id = 1
    sampling = Sampling(8, do_sample=False, repetition_penalty=3.0)
    for prompt in PROMPTS:
        ids_GP, mask_GP = policy.encode([prompt])
        response = policy.generate(ids_GP, mask_GP, sampling)
        output = policy.model.generate(
            input_ids=ids_GP,
            attention_mask=mask_GP,
            max_new_tokens=8,
            do_sample=False,
            repetition_penalty=3.0,
            no_repeat_ngram_size=0,
            forced_bos_token_id=None,
        )
        expected_BT = output[:, 1 if kind == "t5" else ids_GP.shape[1] :]
        assert torch.equal(response.ids_BT, expected_BT)


def test_padding_is_never_repeated():
    """In transformers it is: if the end of a response is the padding, it is penalised there."""
    policy = tiny.policy("gpt2").eval()
    policy.tokenizer.pad_token = policy.tokenizer.eos_token
    sampling = Sampling(8, repetition_penalty=5.0)
    together = policy.generate(*policy.encode(PROMPTS), sampling, [0, 1, 2], temperature=0.7)
    for b, prompt in enumerate(PROMPTS):
        alone = policy.generate(*policy.encode([prompt]), sampling, [b], temperature=0.7)
        length = int(together.mask_BT[b].sum())
        assert alone.ids_BT[0].tolist() == together.ids_BT[b, :length].tolist()
        torch.testing.assert_close(alone.logprobs_BT[0], together.logprobs_BT[b, :length])


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_the_gradient_under_a_repetition_penalty_is_that_of_all_responses(kind):
    """sum_y p(y) R(y) grad log p(y) = grad sum_y p(y) R(y), over all responses of two tokens."""
    policy = tiny.policy(kind).double().eval()
    V, penalty = len(policy.tokenizer), 2.0
    prompt_1P = policy.encode(PROMPTS[:1])
    first_N, second_N = torch.cartesian_prod(torch.arange(V), torch.arange(V)).T
    ids_NT = torch.stack([first_N, second_N], 1)
    mask_NT = torch.ones_like(ids_NT)
    mask_NT[first_N == 1, 1] = 0  # ended by the first token: one of these rows is the response
    keep_N = (first_N != 1) | (second_N == 0)
    ids_NT, mask_NT = ids_NT[keep_N], mask_NT[keep_N]
    prompts = [part.expand(len(ids_NT), -1) for part in prompt_1P]
    reward_N = torch.randn(len(ids_NT), generator=torch.Generator().manual_seed(0)).double()

    output, _ = policy(*prompts, ids_NT, mask_NT, temperature=0.7, repetition_penalty=penalty)
    logprobs_N = output.logprobs_BT.sum(1)
    assert logprobs_N.exp().sum().item() == pytest.approx(1)
    score = (logprobs_N.detach().exp() * reward_N * logprobs_N).sum()
    actual = torch.autograd.grad(score, list(policy.parameters()), allow_unused=True)

    # By transformers' processor, for the first token once and for the second after each of them.
    # It gets a token once: it counts the gradient of a logit as often as the token was read.
    read_1M = policy.read_before(*prompt_1P)
    after_V = torch.arange(V)[:, None]
    batch = [part.expand(V, -1) for part in prompt_1P]
    pairs_VT = torch.cat([after_V, after_V], 1)
    logits_VTV = policy.project(policy.hidden(*batch, pairs_VT, torch.ones_like(pairs_VT)))
    process = RepetitionPenaltyLogitsProcessor(penalty)
    read_M = read_1M[0].unique()
    first_V = (process(read_M[None], logits_VTV[:1, 0])[0] / 0.7).softmax(-1)
    rows = []
    for after in range(V):
        read_1S = torch.cat([read_M, torch.tensor([after])]).unique()[None]
        rows.append(process(read_1S, logits_VTV[after : after + 1, 1]) / 0.7)
    second_VV = torch.cat(rows).softmax(-1)
    second_N = second_VV[ids_NT[:, 0], ids_NT[:, 1]].where(mask_NT[:, 1] == 1, 1.0)
    expected_reward = (first_V[ids_NT[:, 0]] * second_N * reward_N).sum()
    expected = torch.autograd.grad(expected_reward, list(policy.parameters()), allow_unused=True)
    for one, other in zip(actual, expected):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-6)


def test_collect_with_an_empty_and_a_cut_response():
    model = actor_critic("t5")
    prompt = model.policy.encode(["a dog sees"])
    first_token = int(model.policy.generate(*prompt, Sampling(1, do_sample=False)).ids_BT[0, 0])
    model.policy.model.generation_config.eos_token_id = first_token
    rollout = collect(model, model.policy, PROMPTS[1:2], Sampling(4, do_sample=False), 1, [0], 1.0)
    assert rollout.response_mask_BT.tolist() == [[1]] and len(rollout.char_ends[0]) == 1
    model.policy.model.generation_config.eos_token_id = 1
    rollout = collect(model, model.policy, PROMPTS[1:2], Sampling(4, do_sample=False), 1, [0], 1.0)
    assert rollout.response_mask_BT.tolist() == [[1] * 4]
    assert rollout.char_ends[0][-1] == len(rollout.texts[0])


def test_seeds_never_repeat():
    seeds = [s for step in range(4) for s in response_seeds(7, step, 0, 5, 3)]
    assert len(set(seeds)) == 60 and set(seeds).isdisjoint(response_seeds(8, 0, 0, 5, 3))


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_generated_texts_do_not_depend_on_batches(kind):
    policy = tiny.policy(kind)
    prompts = [
        Prompt(str(i), text)
        for i, text in enumerate(["one two three and a bird", "cat", "the red dog", "a"])
    ]
    texts = generate_texts(policy, prompts, Sampling(5), num_samples=2, seed=1, batch_size=4)
    assert [len(t) for t in texts] == [2] * 4 and len({t for row in texts for t in row}) > 4
    for size in (1, 3):
        in_batches = generate_texts(
            policy, prompts, Sampling(5), num_samples=2, seed=1, batch_size=size
        )
        assert in_batches == texts
    other_seed = generate_texts(policy, prompts, Sampling(5), num_samples=2, seed=2)
    assert other_seed != texts
    first_two = generate_texts(policy, prompts[:2], Sampling(5), num_samples=2, seed=1)
    assert first_two == texts[:2]
    assert generate_texts(policy, [], Sampling(5)) == []


# ---- scoring in parts ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["t5", "bart", "gpt2", "gemma2"])
@pytest.mark.parametrize("bf16", [False, True])
def test_scoring_in_parts_changes_nothing(kind, bf16, monkeypatch):
    """Critic, reference and, under bf16, the policy read some prompts at a time.

    The samples of one prompt stay together.
    """
    model, reference = actor_critic(kind), tiny.policy(kind, seed=1).eval()
    model.value = Value(
        model.policy.hidden_size, None if bf16 else tiny.policy(kind, seed=2).eval()
    )
    torch.nn.init.normal_(model.value.head.layers[-1].weight)
    seeds = response_seeds(0, step=3, first_prompt=0, num_prompts=3, num_samples=2)
    sizes = []
    forward = reference.forward

    def counted(*batch, **more):
        sizes.append(len(batch[0]))
        return forward(*batch, **more)

    monkeypatch.setattr(reference, "forward", counted)

    def collected():
        sizes.clear()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            return collect(model, reference, PROMPTS, Sampling(6), 2, seeds, temperature=0.7)

    whole = collected()
    assert sizes == [6]
    for limit, expected in (
        (1, [2, 2, 2]),
        (2 * 2 * (whole.prompt_ids_BP.shape[1] + whole.response_ids_BT.shape[1]), [4, 2]),
    ):
        monkeypatch.setattr("fgrlhf.rollout.SCORED_AT_ONCE", limit)
        divided = collected()
        assert sizes == expected and divided.texts == whole.texts
        tolerance = {"atol": 2e-2, "rtol": 0} if bf16 else {"atol": 1e-5, "rtol": 1e-5}
        for name in ("logprobs_BT", "ref_logprobs_BT", "values_BT"):
            torch.testing.assert_close(getattr(divided, name), getattr(whole, name), **tolerance)


def test_parts_by_hand():
    batch = [torch.arange(8)[:, None].expand(8, width) for width in (3, 3, 2, 2)]
    for limit, expected in (
        (1000, [list(range(8))]),
        (20, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (29, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (1, [[0, 1], [2, 3], [4, 5], [6, 7]]),
    ):
        divided = list(parts(batch, num_samples=2, limit=limit))
        assert [part[0][:, 0].tolist() for part in divided] == expected
        for whole, *pieces in zip(batch, *divided):
            assert torch.equal(torch.cat(pieces), whole)


# ---- numbers that are not finite -----------------------------------------------------------------


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
@pytest.mark.parametrize(
    "which, reason",
    [
        ("policy", "the policy's logits"),
        ("reference", "the reference's log-prob"),
        ("critic", "the critic's val"),
    ],
)
def test_a_model_that_gives_nan_is_named(kind, which, reason):
    model, reference = actor_critic(kind), tiny.policy(kind, seed=1).eval()
    broken = {"policy": model.policy, "reference": reference, "critic": model.value}[which]
    with torch.no_grad():
        next(broken.parameters())[:] = float("nan")
    with pytest.raises(UserError, match=f"{reason}.* NaN or infinite at token 0 of response 0"):
        collect(model, reference, PROMPTS, Sampling(4), 2, list(range(6)), 1.0)
    if which == "policy":
        with pytest.raises(UserError, match=reason):
            generate_texts(model.policy, PROMPTS, Sampling(4))
        with pytest.raises(UserError, match=reason):
            responder = PolicyResponder(model.policy, Sampling(4, do_sample=False))
            evaluate_rows(responder, PROMPTS, progress=False)
