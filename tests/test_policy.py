import pytest
import tiny
import torch
from rounding import assert_equal_up_to_rounding
from tokenizers.processors import TemplateProcessing
from transformers import (
    BertConfig,
    BertForMaskedLM,
    LongT5Config,
    LongT5ForConditionalGeneration,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, write_json
from fgrlhf.base.seeds import derive_seed
from fgrlhf.configs.sections import Sampling
from fgrlhf.models.causal import position_arguments, sharing_pays
from fgrlhf.models.decoding import draw, response_mask, uniform_rows
from fgrlhf.models.encoder_decoder import encoded_at_once
from fgrlhf.policy import CausalPolicy, T5Policy, count_cut, cut_prompts, load_policy
from fgrlhf.text_types import Prompt

KINDS = ["t5", "gpt2"]
ANY = list(tiny.POLICIES)  # other families that use the same two classes
# decoders in which K responses share their prompt
SHARED = ["gpt2", "llama", "qwen3", "neox", "falcon"]
TEXTS = ["the red cat", "a dog sees the bird and one two three", "question:"]
GREEDY = Sampling(max_new_tokens=6, do_sample=False)
SAMPLED = Sampling(max_new_tokens=7)
MANY_EOS = [1, 5, 10, 15, 20]  # a random model rarely draws </s>


def seeds(n: int, *parts) -> list[int]:
    return [derive_seed("test", *parts, i) for i in range(n)]


def sampled(policy, texts=TEXTS, num_samples=2, sampling=SAMPLED):
    """Prompts and responses of different lengths."""
    policy.model.generation_config.eos_token_id = MANY_EOS
    prompt = policy.encode(texts)
    response = policy.generate(*prompt, sampling, seeds(len(texts) * num_samples), num_samples)
    return *(x.repeat_interleave(num_samples, 0) for x in prompt), response.ids_BT, response.mask_BT


def generated(policy, texts, sampling, row_seeds=None, num_samples=1):
    response = policy.generate(*policy.encode(texts), sampling, row_seeds, num_samples)
    return response.ids_BT, response.mask_BT


def brute_logprobs(policy, prompt_ids, response_ids, temperature):
    """One token at a time, one row, no padding."""
    result = []
    for t, token in enumerate(response_ids):
        if isinstance(policy, T5Policy):
            start_id = policy.model.config.decoder_start_token_id
            inputs = {
                "input_ids": torch.tensor([prompt_ids]),
                "decoder_input_ids": torch.tensor([[start_id, *response_ids[:t]]]),
            }
        else:
            inputs = {"input_ids": torch.tensor([prompt_ids + response_ids[:t]])}
        logits = policy.model(**inputs).logits[0, -1]
        result.append(torch.log_softmax(logits / temperature, -1)[token].item())
    return result


@pytest.mark.parametrize("kind", ANY)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_equal_brute_force(kind, temperature):
    policy = tiny.policy(kind).eval()
    batch = sampled(policy)
    with torch.no_grad():
        output, hidden_BTD = policy(*batch, temperature=temperature)
    prompts, prompt_masks, responses, masks = (x.tolist() for x in batch)
    for b in range(len(responses)):
        prompt_ids = [i for i, m in zip(prompts[b], prompt_masks[b]) if m]
        n = sum(masks[b])
        expected = brute_logprobs(policy, prompt_ids, responses[b][:n], temperature)
        assert output.logprobs_BT[b, :n].tolist() == pytest.approx(expected, abs=1e-5)
        assert output.logprobs_BT[b, n:].abs().sum() == 0
        assert output.entropy_BT[b, n:].abs().sum() == 0
    assert len({sum(m) for m in masks}) > 1, "rows of one length would test nothing"


@pytest.mark.parametrize("kind", ANY)
def test_projection_gives_the_models_own_logits(kind):
    policy = tiny.policy(kind).eval()
    prompt_ids, prompt_mask, ids, mask = sampled(policy)
    with torch.no_grad():
        if isinstance(policy, T5Policy):
            start = torch.full_like(ids[:, :1], policy.model.config.decoder_start_token_id)
            inputs = {"decoder_input_ids": torch.cat([start, ids[:, :-1]], 1)}
            expected = policy.model(
                input_ids=prompt_ids, attention_mask=prompt_mask, **inputs
            ).logits
        else:
            whole = torch.cat([prompt_mask, mask], 1)
            expected = policy.model(
                input_ids=torch.cat([prompt_ids, ids], 1),
                attention_mask=whole,
                **position_arguments(policy.model, (whole.cumsum(1) - 1).clamp(min=0)),
            ).logits[:, prompt_ids.shape[1] - 1 : -1]
        projected = policy.project(policy.hidden(prompt_ids, prompt_mask, ids, mask))
    real = mask.bool()
    torch.testing.assert_close(projected[real], expected[real], atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ANY)
def test_rows_of_a_prompt_may_be_anywhere(kind):
    """Rows share their prompt's encoding only if they are adjacent and equal in number.

    In any other order the results are the same.
    """
    policy = tiny.policy(kind).eval()
    batch = sampled(policy, num_samples=3)
    expected, gradient = logprobs_and_gradient(policy, batch)
    for order in (
        torch.randperm(9, generator=torch.Generator().manual_seed(1)),
        torch.tensor([0, 1, 2, 3, 6]),
        torch.tensor([3, 4, 5]),
    ):
        logprobs_BT, _ = logprobs_and_gradient(policy, [x[order] for x in batch])
        assert_equal_up_to_rounding(logprobs_BT, expected[order])
    shuffled, other = logprobs_and_gradient(
        policy, [x[torch.arange(9).view(3, 3).T.flatten()] for x in batch]
    )
    assert_equal_up_to_rounding(other, gradient)


def logprobs_and_gradient(policy, batch):
    policy.zero_grad()
    logprobs_BT = policy(*batch, temperature=0.7)[0].logprobs_BT
    logprobs_BT.sum().backward()
    return logprobs_BT.detach(), torch.cat(
        [p.grad.flatten() for p in policy.parameters() if p.grad is not None]
    )


@pytest.mark.parametrize("kind", ANY)
def test_generated_logprobs_are_those_of_the_forward_pass(kind):
    policy = tiny.policy(kind).eval()
    prompt = policy.encode(TEXTS)
    policy.model.generation_config.eos_token_id = MANY_EOS
    response = policy.generate(
        *prompt, Sampling(9, temperature=0.7, top_k=20), seeds(12), 4, temperature=0.7
    )
    rows = [x.repeat_interleave(4, 0) for x in prompt]
    with torch.no_grad():
        expected = policy(*rows, response.ids_BT, response.mask_BT, temperature=0.7)[0].logprobs_BT
    torch.testing.assert_close(response.logprobs_BT, expected, atol=1e-5, rtol=0)
    assert response.mask_BT.sum(1).unique().numel() > 3 and expected.abs().sum() > 0


@pytest.mark.parametrize(
    "kind, side", [("t5", "left")] + [(k, tiny.POLICIES[k]().tokenizer.padding_side) for k in ANY]
)
def test_padding_changes_nothing(kind, side):
    policy = tiny.policy(kind).eval()
    policy = type(policy)(policy.model, policy.tokenizer, 64, padding_side=side)
    prompt_ids_BP, prompt_mask_BP, response_ids_BT, response_mask_BT = sampled(policy)
    left = side == "left"
    assert prompt_mask_BP[0, 0 if left else -1] == 0

    def padded(x, value, on_left):
        return torch.nn.functional.pad(x, (3, 0) if on_left else (0, 3), value=value)

    with torch.no_grad():
        expected, _ = policy(prompt_ids_BP, prompt_mask_BP, response_ids_BT, response_mask_BT)
        output, _ = policy(  # with more padding and other padding tokens
            padded(torch.where(prompt_mask_BP.bool(), prompt_ids_BP, 7), 5, left),
            padded(prompt_mask_BP, 0, left),
            padded(torch.where(response_mask_BT.bool(), response_ids_BT, 9), 4, False),
            padded(response_mask_BT, 0, False),
        )
    torch.testing.assert_close(output.logprobs_BT[:, :-3], expected.logprobs_BT, atol=1e-5, rtol=0)
    assert output.logprobs_BT[:, -3:].abs().sum() == 0


def test_response_mask_ends_with_the_first_end_token():
    ids_BT = torch.tensor([[5, 1, 1, 0], [1, 5, 1, 0], [5, 0, 5, 5], [2, 1, 0, 0]])
    assert response_mask(ids_BT, [1]).tolist() == [
        [1, 1, 0, 0],
        [1, 0, 0, 0],
        [1, 1, 1, 1],
        [1, 1, 0, 0],
    ]
    assert response_mask(ids_BT, [1, 2])[3].tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_generation_cut_at_the_limit_and_empty(kind):
    policy = tiny.policy(kind)
    greedy_ids_BT, mask_BT = generated(policy, ["the cat"], Sampling(5, do_sample=False))
    assert mask_BT.tolist() == [[1] * 5] and 1 not in greedy_ids_BT  # no end of sequence in sight
    policy.model.generation_config.eos_token_id = [999, int(greedy_ids_BT[0, 0])]
    ids_BT, mask_BT = generated(policy, ["the cat"], Sampling(5, do_sample=False))
    assert ids_BT.tolist() == greedy_ids_BT[:, :1].tolist() and mask_BT.tolist() == [[1]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("beams", [1, 3])
def test_greedy_and_beams_equal_transformers(kind, beams):
    policy = tiny.policy(kind, seed=3)
    sampling = Sampling(max_new_tokens=8, do_sample=False, num_beams=beams)
    ids_BT, mask_BT = generated(policy, TEXTS, sampling)
    for b, text in enumerate(TEXTS):
        ids, mask = policy.encode([text])
        expected = policy.model.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=False,
            num_beams=beams,
            max_new_tokens=8,
            pad_token_id=0,
        )
        expected = expected[0, 1 if kind == "t5" else ids.shape[1] :].tolist()
        response = ids_BT[b, : int(mask_BT[b].sum())].tolist()
        assert response == expected[: len(response)] and set(expected[len(response) :]) <= {0}


@pytest.mark.parametrize("kind", ANY)
def test_shared_prompts_give_the_gradient_of_unshared_ones(kind, monkeypatch):
    """The gradients of all weights are the same if the prompt is encoded once or four times."""
    policy = tiny.policy(kind).eval()
    batch = sampled(policy, num_samples=4)
    calls = []
    if isinstance(policy, CausalPolicy):
        hidden_of_groups = policy._hidden_of_groups
        monkeypatch.setattr(
            policy, "_hidden_of_groups", lambda *args: calls.append(1) or hidden_of_groups(*args)
        )
    shared = logprobs_and_gradient(policy, batch)
    assert bool(calls) == (kind in SHARED) and shared[1].abs().max() > 0.01
    calls.clear()
    monkeypatch.setattr("fgrlhf.models.encoder_decoder.uniform_group_size", lambda group_B: None)
    for function in ("sharing_pays", "uniform_group_size"):
        with monkeypatch.context() as patch:
            patch.setattr(f"fgrlhf.models.causal.{function}", lambda *_, **__: None)
            for actual, expected in zip(logprobs_and_gradient(policy, batch), shared):
                assert_equal_up_to_rounding(actual, expected)
    assert not calls


@pytest.mark.parametrize("kind", KINDS)
def test_beam_search_finds_one_response_per_prompt(kind):
    policy = tiny.policy(kind)
    batch = policy.encode(TEXTS)
    beams = Sampling(4, do_sample=False, num_beams=2)
    assert len(policy.generate(*batch, beams).ids_BT) == len(TEXTS)
    with pytest.raises(ValueError, match="num_samples is 3, but beam search .num_beams=2. finds"):
        policy.generate(*batch, beams, num_samples=3)


def test_generation_settings_of_a_bart_checkpoint_are_no_part_of_the_policy():
    """Its generation config forces a first token and forbids repetitions; sampling ignores both."""
    policy = tiny.bart().eval()
    ids, mask = policy.encode(["the red cat"])
    with torch.no_grad():
        decoder_ids = torch.tensor([[1]])
        for _ in range(6):
            logits = policy.model(
                input_ids=ids, attention_mask=mask, decoder_input_ids=decoder_ids
            ).logits[:, -1]
            decoder_ids = torch.cat([decoder_ids, logits.argmax(-1, keepdim=True)], 1)
    expected = decoder_ids[:, 1:].tolist()
    greedy_ids, _ = generated(policy, ["the red cat"], GREEDY)
    assert expected[0][0] != 2 and greedy_ids.tolist() == expected
    beam_ids, _ = generated(policy, ["the red cat"], Sampling(6, do_sample=False, num_beams=2))
    assert beam_ids[0, 0] != 2


@pytest.mark.parametrize(
    "setting",
    [
        {"bad_words_ids": "first"},
        {"suppress_tokens": "first"},
        {"begin_suppress_tokens": "first"},
        {"num_beams": 2, "num_return_sequences": 2},
        {"length_penalty": -30.0},
        {"early_stopping": True},
    ],
)
def test_a_checkpoint_does_not_change_what_beam_search_finds(setting):
    """Not even by forbidding a token: sampling has no such rule."""
    beams = Sampling(8, do_sample=False, num_beams=3)
    expected = generated(tiny.t5(seed=3).eval(), TEXTS, beams)
    first = [expected[0][0, 0].item()]
    policy = tiny.t5(seed=3).eval()
    for name, value in setting.items():
        forbidden = [first] if name == "bad_words_ids" else first
        setattr(policy.model.generation_config, name, forbidden if value == "first" else value)
    found = generated(policy, TEXTS, beams)
    assert [part.tolist() for part in found] == [part.tolist() for part in expected]


def test_a_tokenizer_that_ends_every_text_is_refused():
    """The policy would answer after the end of the text."""
    policy = tiny.gpt2()
    tok = policy.tokenizer
    tok.backend_tokenizer.post_processor = TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", tok.eos_token_id)]
    )
    with pytest.raises(UserError, match="appends </s> to every text.*add_eos_token"):
        policy.encode(["the red cat"])


def test_an_encoder_decoder_has_limited_positions():
    policy = tiny.bart()
    for sampling in (Sampling(64, do_sample=False), Sampling(1, do_sample=False)):
        generated(policy, ["the cat"], sampling)
    message = "responses of up to 65 need 65 positions.*BartFor.*has 64.*max_generated_len"
    with pytest.raises(UserError, match=message):
        generated(policy, ["the cat"], Sampling(65, do_sample=False))
    policy = T5Policy(policy.model, policy.tokenizer, max_input_len=70)
    generated(policy, [("cat " * 64).strip()], GREEDY)
    with pytest.raises(UserError, match="prompts of 65 tokens"):
        generated(policy, [("cat " * 65).strip()], GREEDY)
    # a T5 has no positions, so there is no limit
    generated(tiny.t5(), [("cat " * 64).strip()], Sampling(70, do_sample=False))
    with pytest.raises(UserError, match="input_padding_side is `left`.*BartFor"):
        T5Policy(policy.model, policy.tokenizer, padding_side="left")


def long_t5():
    """An encoder-decoder whose attention implementation cannot be selected."""
    tok = tiny.tokenizer()
    torch.manual_seed(0)
    sizes = {"d_model": 32, "d_kv": 8, "num_heads": 4, "d_ff": 48, "num_layers": 2}
    config = LongT5Config(vocab_size=len(tok), decoder_start_token_id=0, **sizes)
    return T5Policy(LongT5ForConditionalGeneration(config), tiny.fresh(tok), max_input_len=64)


def test_a_model_without_exchangeable_attention_shares_and_packs_nothing(tmp_path):
    policy = long_t5().eval()
    prompt_ids, prompt_mask, ids, mask = batch = sampled(policy)
    with torch.no_grad():
        output, _ = policy(*batch)
    for b in range(len(ids)):
        prompt = prompt_ids[b][prompt_mask[b].bool()].tolist()
        response = ids[b][mask[b].bool()].tolist()
        expected = brute_logprobs(policy, prompt, response, 1.0)
        assert output.logprobs_BT[b, : len(response)].tolist() == pytest.approx(expected, abs=1e-5)
    policy.save(tmp_path)
    assert type(load_policy(tmp_path).model) is LongT5ForConditionalGeneration


def test_packing_where_it_changes_the_results_is_refused(tmp_path, monkeypatch):
    long_t5().save(tmp_path)
    monkeypatch.setattr(T5Policy, "_can_pack", True)
    with pytest.raises(UserError, match="LongT5.*: it computes different logits than the policy"):
        load_policy(tmp_path)


@pytest.mark.parametrize("kind", ANY)
def test_a_sample_depends_on_its_own_seed_alone(kind):
    policy = tiny.policy(kind)

    def responses(texts, row_seeds):
        ids_BT, mask_BT = generated(policy, texts, Sampling(7), row_seeds, 2)
        return [row[: int(n)] for row, n in zip(ids_BT.tolist(), mask_BT.sum(1))]

    expected = responses(TEXTS, seeds(6))
    assert len({tuple(response) for response in expected}) > 3
    for b, text in enumerate(TEXTS):  # two samples of one prompt as the whole batch
        rows = slice(2 * b, 2 * b + 2)
        assert responses([text], seeds(6)[rows]) == expected[rows]
    torch.manual_seed(123)  # the global generator has no effect
    assert responses(TEXTS, seeds(6)) == expected
    with pytest.raises(ValueError, match="one seed per response"):
        policy.generate(*policy.encode(TEXTS), Sampling(7), seeds(3), num_samples=2)


@pytest.mark.parametrize("kind", KINDS)
def test_sampling_has_no_dropout_in_any_mode(kind):
    policy = tiny.policy(kind, dropout=0.5)
    expected = generated(policy.eval(), TEXTS, Sampling(7), seeds(3))[0]
    assert torch.equal(generated(policy.train(), TEXTS, Sampling(7), seeds(3))[0], expected)
    assert policy.model.training


@pytest.mark.parametrize(
    "top_k, top_p, temperature",
    [(0, None, 1.0), (4, None, 0.7), (0, 0.8, 1.3), (5, 0.7, 0.7), (1, None, 1.0), (3, 0.01, 1.0)],
)
def test_the_sampler_draws_from_the_requested_distribution(top_k, top_p, temperature):
    n = 20_000
    logits = torch.tensor([0.3, -1.0, 2.0, 0.0, 1.4, -0.2, 1.3, -3.0])
    warped = logits[None].clone()
    if temperature != 1:
        warped = TemperatureLogitsWarper(temperature)(None, warped)
    if top_k:
        warped = TopKLogitsWarper(top_k)(None, warped)
    if top_p:
        warped = TopPLogitsWarper(top_p)(None, warped)
    expected = torch.softmax(warped, -1)[0]
    sampling = Sampling(2, True, temperature, top_k, top_p)
    uniform_B2 = uniform_rows(seeds(n, top_k), 2)
    drawn = []
    for step in range(2):
        drawn.append(draw(logits.repeat(n, 1), sampling, uniform_B2[:, step]))
        counts = torch.bincount(drawn[-1], minlength=8)
        possible = expected > 0
        assert counts[~possible].sum() == 0
        chi_square = ((counts - n * expected)[possible] ** 2 / (n * expected[possible])).sum()
        assert chi_square < 24.3, counts  # the .999 quantile for 7 degrees of freedom
    # two independent steps agree with probability sum_v p_v^2
    agree = (drawn[0] == drawn[1]).float().mean()
    assert agree == pytest.approx((expected**2).sum().item(), abs=0.015)


def test_uniform_numbers_are_a_function_of_their_seed():
    rows = uniform_rows([5, 6, 5], 4)
    assert torch.equal(rows[0], rows[2]) and not torch.equal(rows[0], rows[1])
    assert torch.equal(uniform_rows([6], 9)[0, :4], rows[1]) and uniform_rows([], 4).shape == (0, 4)
    extremes = draw(
        torch.tensor([[3.0, 1.0, 2.0]] * 2), Sampling(1), torch.tensor([0.0, 1 - 2**-24])
    )
    assert extremes.tolist() == [0, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_long_prompts_lose_their_end(kind):
    policy = tiny.policy(kind)
    short = type(policy)(policy.model, policy.tokenizer, max_input_len=2)
    ids, mask = short.encode(["the red cat"])
    assert policy.tokenizer.convert_ids_to_tokens(ids[0].tolist()) == ["▁the", "▁red"]


def test_a_decoder_refuses_padding_on_the_right_and_too_long_sequences():
    policy = tiny.policy("gpt2")
    with pytest.raises(UserError, match="input_padding_side"):
        CausalPolicy(policy.model, policy.tokenizer, padding_side="right")
    with pytest.raises(UserError, match="256.*max_generated_len"):
        policy.generate(*policy.encode(["the cat"]), Sampling(255, do_sample=False))


@pytest.mark.parametrize("kind", ANY)
def test_a_saved_policy_loads_as_the_same_class(kind, tmp_path):
    policy = tiny.policy(kind, seed=5).eval()
    policy.save(tmp_path / "p")
    loaded = load_policy(tmp_path / "p", max_input_len=7).eval()
    assert type(loaded) is type(policy) and loaded.max_input_len == 7
    batch = sampled(policy)
    assert torch.equal(loaded(*batch)[0].logprobs_BT, policy(*batch)[0].logprobs_BT)
    assert load_policy(tmp_path / "p", "bf16").model.dtype == torch.bfloat16
    if kind == "gpt2":
        with pytest.raises(UserError, match="input_padding_side"):
            load_policy(tmp_path / "p", padding_side="right")


def test_a_missing_or_broken_checkpoint_is_named(tmp_path):
    (tmp_path / "run" / "best").mkdir(parents=True)
    with pytest.raises(UserError, match="folder of a run, whose policies are `.*run/best`"):
        load_policy(tmp_path / "run")
    with pytest.raises(UserError, match="no language model.*nowhere"):
        load_policy(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty"):
        load_policy(tmp_path / "empty")
    tiny.policy("t5").save(tmp_path / "cut")
    weights = tmp_path / "cut" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(UserError, match="cut"):
        load_policy(tmp_path / "cut")


def test_prompts_of_similar_length_are_encoded_together(monkeypatch):
    policy = tiny.policy("t5").eval()
    for side in ("left", "right"):
        policy.tokenizer.padding_side = side
        ids_GP, mask_GP = policy.encode([*TEXTS, "cat"])
        with torch.no_grad():
            whole = policy.model.get_encoder()(
                input_ids=ids_GP, attention_mask=mask_GP
            ).last_hidden_state
            monkeypatch.setattr("fgrlhf.models.encoder_decoder.ENCODED_AT_ONCE", 6)
            parts = policy._encode(ids_GP, mask_GP)
        real = mask_GP.bool()
        torch.testing.assert_close(parts[real], whole[real], atol=1e-6, rtol=1e-5)


def test_a_gpu_encodes_more_prompts_together_unless_they_are_long():
    assert encoded_at_once(100, torch.device("cpu")) == 4096
    limits = [encoded_at_once(P, torch.device("cuda")) for P in (100, 1024, 4096, 100_000)]
    assert limits == [32_768, 32_768, 8192, 4096]


# ---- prompts that are too long, too short or empty -----------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_prompt_is_refused(kind):
    policy = tiny.policy(kind)
    with pytest.raises(UserError, match="a prompt has no tokens .its text is .*remove it from"):
        policy.encode(["the cat", ""])
    with pytest.raises(UserError, match="prompt 12 has no tokens"):
        count_cut(policy, [Prompt("11", "the cat"), Prompt("12", "")])


@pytest.mark.parametrize("policy", [tiny.t5, tiny.gpt2, tiny.chat], ids=["t5", "gpt2", "chat"])
def test_prompts_that_are_cut_are_counted(policy):
    policy = policy()
    template = 4 if policy.chat else 0  # <s> <|user|> ... <|end|> <|assistant|>
    policy.max_input_len = 3 + template
    prompts = [Prompt(str(n), " ".join(["cat"] * n)) for n in (1, 3, 4, 300)]
    lengths = policy.prompt_lengths([prompt.text for prompt in prompts])
    assert lengths == [n + template for n in (1, 3, 4, 300)]
    assert [prompt.id for prompt in cut_prompts(policy, prompts)] == ["4", "300"]
    assert count_cut(policy, prompts) == 2 and count_cut(policy, []) == 0


@pytest.mark.parametrize("kind", ["t5", "flan", "bart", "gpt2", "llama", "gemma2", "bloom"])
def test_rows_of_padding_change_no_other_row(kind):
    """An empty prompt or an empty response does not change the results of the other rows."""
    policy = tiny.policy(kind).eval()
    prompt_ids, prompt_mask, ids, mask = sampled(policy, num_samples=2)
    with torch.no_grad():
        expected = policy(prompt_ids, prompt_mask, ids, mask)[0].logprobs_BT
        for rows in ([0, 1], [2]):
            others = [b for b in range(len(ids)) if b not in rows]
            some_responses_empty = mask.clone()
            some_responses_empty[rows] = 0
            output, _ = policy(prompt_ids, prompt_mask, ids, some_responses_empty)
            logprobs_BT = output.logprobs_BT
            torch.testing.assert_close(logprobs_BT[others], expected[others], atol=1e-5, rtol=0)
            assert logprobs_BT[rows].abs().sum() == 0
            some_prompts_empty = prompt_mask.clone()
            some_prompts_empty[rows] = 0
            output, _ = policy(prompt_ids, some_prompts_empty, ids, mask)
            logprobs_BT = output.logprobs_BT
            torch.testing.assert_close(logprobs_BT[others], expected[others], atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_samples", [1, 3])
def test_prompts_and_responses_of_one_token(kind, num_samples):
    policy = tiny.policy(kind).eval()
    prompt = policy.encode(["cat", "dog"])
    assert prompt[0].shape == (2, 1)
    response = policy.generate(*prompt, Sampling(1), seeds(2 * num_samples), num_samples)
    assert response.ids_BT.shape == (2 * num_samples, 1) and response.mask_BT.all()
    rows = [x.repeat_interleave(num_samples, 0) for x in prompt]
    with torch.no_grad():
        logprobs_BT = policy(*rows, response.ids_BT, response.mask_BT)[0].logprobs_BT
    torch.testing.assert_close(logprobs_BT, response.logprobs_BT, atol=1e-5, rtol=0)


# ---- prompts shared by responses -----------------------------------------------------------------


def test_prompts_are_shared_where_that_is_cheaper():
    assert sharing_pays(P=500, T=200, K=4, D=4096)  # 1,300 tokens instead of 2,800
    assert not sharing_pays(P=500, T=2000, K=16, D=4096)  # a mask of 32,500 x 32,500
    # short prompts: attention between responses costs more than sharing saves
    assert not sharing_pays(P=20, T=100, K=8, D=128)
    assert not sharing_pays(P=500, T=200, K=1, D=4096)  # nothing to share
    assert not sharing_pays(P=7000, T=400, K=4, D=4096)  # a mask of 8,600 x 8,600
    # by hand, D = 1: shared 6 * 13 + 13^2 = 247; rows 3 * (6 * 11 + 11^2 / 2) = 379.5
    assert sharing_pays(P=10, T=1, K=3, D=1)
    # by hand, D = 1: shared 6 * 14 + 14^2 = 280; rows 3 * (6 * 6 + 6^2 / 2) = 162
    assert not sharing_pays(P=2, T=4, K=3, D=1)


# ---- damaged and hostile checkpoints -------------------------------------------------------------


def changed(folder, file, **changes):
    """Change keys of one file of a checkpoint."""
    write_json(folder / file, read_json(folder / file) | changes)


def test_a_checkpoint_for_more_layers_is_refused(tmp_path):
    tiny.policy("t5").save(tmp_path)
    changed(tmp_path, "config.json", num_layers=9, num_decoder_layers=9)
    with pytest.raises(UserError, match="weights lack .* partly random.*Give a folder"):
        load_policy(tmp_path)
    changed(tmp_path, "config.json", num_layers="x")
    for empty in (False, True):
        with pytest.raises(UserError, match="no language model could be loaded"):
            load_policy(tmp_path, empty=empty)


@pytest.mark.parametrize(
    "kind, value", [("t5", float("nan")), ("gpt2", float("inf")), ("gpt2", 3e38)]
)
def test_weights_that_give_nan_are_refused(kind, value, tmp_path):
    policy = tiny.policy(kind)
    for p in policy.model.parameters():
        p.data.fill_(value)
    policy.save(tmp_path)
    with pytest.raises(UserError, match="NaN or infin.* diverged"):
        load_policy(tmp_path)


def test_a_model_without_an_end_token_is_refused(tmp_path):
    policy = tiny.policy("gpt2")
    policy.save(tmp_path)
    for file in ("config.json", "generation_config.json"):
        changed(tmp_path, file, eos_token_id=None)
    config = read_json(tmp_path / "tokenizer_config.json")
    config.pop("eos_token")
    write_json(tmp_path / "tokenizer_config.json", config)
    with pytest.raises(UserError, match="no end-of-sequence token.*eos_token"):
        load_policy(tmp_path)
    config.pop("pad_token")
    write_json(tmp_path / "tokenizer_config.json", config)
    with pytest.raises(UserError, match="neither a padding token nor an end-of-sequence token"):
        load_policy(tmp_path)


@pytest.mark.parametrize("wrong", [10_000, -1, "x", [[1]]])
def test_an_end_token_outside_the_vocabulary_is_refused(wrong, tmp_path):
    tiny.policy("gpt2").save(tmp_path)
    changed(tmp_path, "generation_config.json", eos_token_id=wrong)
    with pytest.raises(UserError, match="eos_token_id|no language model could be loaded"):
        load_policy(tmp_path)


def test_an_ordinary_token_that_would_end_responses_is_refused(tmp_path):
    """Config classes have end tokens of their own, such as Llama's 2."""
    tiny.policy("gpt2").save(tmp_path)
    changed(tmp_path, "generation_config.json", eos_token_id=5)
    with pytest.raises(UserError, match=r"ordinary token '▁red' \(eos_token_id 5\).*</s> \(1\)"):
        load_policy(tmp_path)
    changed(tmp_path, "generation_config.json", eos_token_id=[])
    assert load_policy(tmp_path).eos_ids == [1]  # the tokenizer's


# ---- logits that are not finite ------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "sampling",
    [Sampling(5), Sampling(5, do_sample=False), Sampling(5, do_sample=False, num_beams=2)],
)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nothing_is_sampled_from_nan(kind, sampling, value):
    policy = tiny.policy(kind)
    with torch.no_grad():
        next(policy.model.parameters())[:] = value
    message = "the policy's logits are NaN or infinite at token 0 of response 0.*lower train.lr"
    with pytest.raises(UserError, match=message):
        generated(policy, TEXTS, sampling, seeds(3))


def test_a_padding_token_may_have_probability_zero():
    """Marian's padding token has the logit -inf, and rows that have ended continue with it."""
    policy = tiny.bart()
    policy.model.final_logits_bias[:, 0] = float("-inf")
    policy.model.generation_config.eos_token_id = MANY_EOS
    response = policy.generate(*policy.encode(TEXTS), Sampling(9), seeds(12), 4)
    assert response.mask_BT.sum(1).unique().numel() > 1
    assert response.logprobs_BT[response.mask_BT == 0].abs().sum() == 0


def test_an_encoder_is_no_policy(tmp_path):
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 32}
    config = BertConfig(vocab_size=28, num_attention_heads=2, **sizes)
    BertForMaskedLM(config).save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    with pytest.raises(UserError, match="it is an encoder .bert., which reads in both directions"):
        load_policy(tmp_path)
