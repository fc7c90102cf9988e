import pytest
import tiny
import torch
from transformers import (
    GraniteConfig,
    GraniteForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from fgrlhf.decoding import Sampling, draw, positions_of, response_mask, uniform_rows
from fgrlhf.policy import CausalPolicy, T5Policy, load_policy
from fgrlhf.utils import UserError, derive_seed

KINDS = ["t5", "gpt2"]
ANY = list(tiny.POLICIES)  # families that are served by the same two classes
SHARED = ["gpt2", "llama", "qwen3", "neox"]  # decoders in which K responses read their prompt once
TEXTS = ["the red cat", "a dog sees the bird and one two three", "question:"]
GREEDY = Sampling(max_new_tokens=6, do_sample=False)


def seeds(n: int, *parts) -> list[int]:
    return [derive_seed("test", *parts, i) for i in range(n)]


def sampled(policy, texts=TEXTS, num_samples=2, sampling=Sampling(max_new_tokens=7)):
    """Prompts and responses of different lengths."""
    policy.model.generation_config.eos_token_id = [1, 5, 10, 15, 20]  # a random model is slow to say </s>
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
            decoder = torch.tensor([[policy.model.config.decoder_start_token_id, *response_ids[:t]]])
            logits = policy.model(input_ids=torch.tensor([prompt_ids]), decoder_input_ids=decoder).logits[
                0, -1
            ]
        else:
            logits = policy.model(input_ids=torch.tensor([prompt_ids + response_ids[:t]])).logits[0, -1]
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
        assert output.logprobs_BT[b, :n].tolist() == pytest.approx(
            brute_logprobs(policy, prompt_ids, responses[b][:n], temperature), abs=1e-5
        )
        assert output.logprobs_BT[b, n:].abs().sum() == 0 and output.entropy_BT[b, n:].abs().sum() == 0
    assert len({sum(m) for m in masks}) > 1, "the rows must differ in length for the test to mean anything"


@pytest.mark.parametrize("kind", ANY)
def test_projection_is_the_models_own(kind):
    policy = tiny.policy(kind).eval()
    prompt_ids, prompt_mask, ids, mask = sampled(policy)
    with torch.no_grad():
        if isinstance(policy, T5Policy):
            start = torch.full_like(ids[:, :1], policy.model.config.decoder_start_token_id)
            inputs = {"decoder_input_ids": torch.cat([start, ids[:, :-1]], 1)}
            own = policy.model(input_ids=prompt_ids, attention_mask=prompt_mask, **inputs).logits
        else:
            whole = torch.cat([prompt_mask, mask], 1)
            own = policy.model(
                input_ids=torch.cat([prompt_ids, ids], 1), attention_mask=whole, **positions_of(policy.model, (whole.cumsum(1) - 1).clamp(min=0))
            ).logits[:, prompt_ids.shape[1] - 1 : -1]
        mine = policy.project(policy.hidden(prompt_ids, prompt_mask, ids, mask))
    torch.testing.assert_close(mine[mask.bool()], own[mask.bool()], atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ANY)
def test_rows_of_a_prompt_may_stand_anywhere(kind):
    """Side by side in equal numbers they share their prompt's encoding; in any other order the result is the same."""
    policy = tiny.policy(kind).eval()
    batch = sampled(policy, num_samples=3)
    expected, gradient = logprobs_and_gradient(policy, batch)
    for order in (torch.randperm(9, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2, 3, 6]), torch.tensor([3, 4, 5])):
        logprobs_BT, _ = logprobs_and_gradient(policy, [x[order] for x in batch])
        torch.testing.assert_close(logprobs_BT, expected[order], atol=1e-6, rtol=1e-5)
    shuffled, other = logprobs_and_gradient(policy, [x[torch.arange(9).view(3, 3).T.flatten()] for x in batch])
    torch.testing.assert_close(other, gradient, atol=1e-5, rtol=1e-4)


def logprobs_and_gradient(policy, batch):
    policy.zero_grad()
    logprobs_BT = policy(*batch, temperature=0.7)[0].logprobs_BT
    logprobs_BT.sum().backward()
    return logprobs_BT.detach(), torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])


@pytest.mark.parametrize("kind", ANY)
def test_generated_logprobs_are_those_of_the_forward_pass(kind):
    policy = tiny.policy(kind).eval()
    prompt = policy.encode(TEXTS)
    policy.model.generation_config.eos_token_id = [1, 5, 10, 15, 20]
    response = policy.generate(*prompt, Sampling(9, temperature=0.7, top_k=20), seeds(12), 4, temperature=0.7)
    rows = [x.repeat_interleave(4, 0) for x in prompt]
    with torch.no_grad():
        expected = policy(*rows, response.ids_BT, response.mask_BT, temperature=0.7)[0].logprobs_BT
    torch.testing.assert_close(response.logprobs_BT, expected, atol=1e-5, rtol=0)
    assert response.mask_BT.sum(1).unique().numel() > 3 and expected.abs().sum() > 0


@pytest.mark.parametrize("kind, side", [("t5", "left")] + [(k, "right" if k in ("t5", "flan", "mt5", "bart") else "left") for k in ANY])
def test_padding_changes_nothing(kind, side):
    policy = tiny.policy(kind).eval()
    policy = type(policy)(policy.model, policy.tokenizer, 64, padding_side=side)
    prompt_ids_BP, prompt_mask_BP, response_ids_BT, response_mask_BT = sampled(policy)
    assert prompt_mask_BP[0, 0 if side == "left" else -1] == 0
    with torch.no_grad():
        alone = policy(prompt_ids_BP, prompt_mask_BP, response_ids_BT, response_mask_BT)[0].logprobs_BT

        def widened(x, value, on_left):
            return torch.nn.functional.pad(x, (3, 0) if on_left else (0, 3), value=value)

        left = side == "left"
        wide = policy(  # other padding tokens, and more of them
            widened(torch.where(prompt_mask_BP.bool(), prompt_ids_BP, 7), 5, left),
            widened(prompt_mask_BP, 0, left),
            widened(torch.where(response_mask_BT.bool(), response_ids_BT, 9), 4, False),
            widened(response_mask_BT, 0, False),
        )[0].logprobs_BT
    torch.testing.assert_close(wide[:, :-3], alone, atol=1e-5, rtol=0)
    assert wide[:, -3:].abs().sum() == 0


def test_response_mask_ends_with_the_first_end_token():
    ids_BT = torch.tensor([[5, 1, 1, 0], [1, 5, 1, 0], [5, 0, 5, 5], [2, 1, 0, 0]])
    assert response_mask(ids_BT, [1]).tolist() == [[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1], [1, 1, 0, 0]]
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
        mine = ids_BT[b, : int(mask_BT[b].sum())].tolist()
        assert mine == expected[: len(mine)] and set(expected[len(mine) :]) <= {0}


@pytest.mark.parametrize("kind", ANY)
def test_shared_prompts_give_the_gradient_of_unshared_ones(kind, monkeypatch):
    """All weights' gradients, K = 4 responses that read their prompt once against four that read it each."""
    policy = tiny.policy(kind).eval()
    batch = sampled(policy, num_samples=4)
    calls = []
    if isinstance(policy, CausalPolicy):
        packed = policy._hidden_of_groups
        monkeypatch.setattr(policy, "_hidden_of_groups", lambda *args: calls.append(1) or packed(*args))
    shared = logprobs_and_gradient(policy, batch)
    assert bool(calls) == (kind in SHARED)
    monkeypatch.setattr("fgrlhf.policy.samples_each", lambda group_B: None)
    for one, other in zip(shared, logprobs_and_gradient(policy, batch)):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
    assert shared[1].abs().max() > 0.01


def test_barts_checkpoint_settings_are_no_part_of_the_policy():
    """Its generation config forces a first token and forbids repetitions: no sample, and no search, does."""
    policy = tiny.bart().eval()
    ids, mask = policy.encode(["the red cat"])
    with torch.no_grad():
        decoder_ids = torch.tensor([[1]])
        for _ in range(6):
            logits = policy.model(input_ids=ids, attention_mask=mask, decoder_input_ids=decoder_ids).logits[:, -1]
            decoder_ids = torch.cat([decoder_ids, logits.argmax(-1, keepdim=True)], 1)
    expected = decoder_ids[:, 1:].tolist()
    assert expected[0][0] != 2 and generated(policy, ["the red cat"], GREEDY)[0].tolist() == expected
    searched = generated(policy, ["the red cat"], Sampling(6, do_sample=False, num_beams=2))[0]
    assert searched[0, 0] != 2


def test_positions_of_an_encoder_decoder_are_counted():
    policy = tiny.bart()
    for sampling in (Sampling(64, do_sample=False), Sampling(1, do_sample=False)):
        generated(policy, ["the cat"], sampling)
    with pytest.raises(UserError, match="responses of up to 65 need 65 positions.*BartFor.*has 64.*env.max_generated_len"):
        generated(policy, ["the cat"], Sampling(65, do_sample=False))
    policy = T5Policy(policy.model, policy.tokenizer, max_input_len=70)
    generated(policy, [("cat " * 64).strip()], GREEDY)
    with pytest.raises(UserError, match="prompts of 65 tokens"):
        generated(policy, [("cat " * 65).strip()], GREEDY)
    generated(tiny.t5(), [("cat " * 64).strip()], Sampling(70, do_sample=False))  # no positions, no limit
    with pytest.raises(UserError, match="input_padding_side is `left`.*BartFor"):
        T5Policy(policy.model, policy.tokenizer, padding_side="left")


def test_a_model_that_changes_its_logits_afterwards_is_refused(tmp_path):
    tok = tiny.tokenizer()
    config = GraniteConfig(
        vocab_size=len(tok), hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4, logits_scaling=3.0,
        initializer_range=0.2, pad_token_id=0, bos_token_id=1, eos_token_id=1)
    CausalPolicy(GraniteForCausalLM(config), tiny.fresh(tok)).save(tmp_path)
    with pytest.raises(UserError, match="GraniteForCausalLM does something to its logits.*Policy.project"):
        load_policy(tmp_path)


def test_a_model_with_a_running_state_is_refused(tmp_path):
    tok = tiny.fresh(tiny.tokenizer())
    model = MambaForCausalLM(MambaConfig(vocab_size=len(tok), hidden_size=8, num_hidden_layers=1, state_size=2))
    with pytest.raises(UserError, match="MambaForCausalLM keeps a running state"):
        CausalPolicy(model, tok)


@pytest.mark.parametrize("kind", ANY)
def test_a_sample_depends_on_its_own_numbers_alone(kind):
    policy = tiny.policy(kind)
    ids_BT, mask_BT = generated(policy, TEXTS, Sampling(7), seeds(6), 2)
    rows = [row[: int(n)] for row, n in zip(ids_BT.tolist(), mask_BT.sum(1))]
    assert len({tuple(r) for r in rows}) > 3
    for b, text in enumerate(TEXTS):  # alone in its batch, its K samples stand together
        ids_KT, mask_KT = generated(policy, [text], Sampling(7), seeds(6)[2 * b : 2 * b + 2], 2)
        assert [row[: int(n)] for row, n in zip(ids_KT.tolist(), mask_KT.sum(1))] == rows[2 * b : 2 * b + 2]
    torch.manual_seed(123)  # the global generator plays no part
    assert torch.equal(generated(policy, TEXTS, Sampling(7), seeds(6), 2)[0], ids_BT)
    with pytest.raises(ValueError, match="one seed per response"):
        policy.generate(*policy.encode(TEXTS), Sampling(7), seeds(3), num_samples=2)


@pytest.mark.parametrize("kind", KINDS)
def test_sampling_is_without_dropout_whatever_the_mode(kind):
    policy = tiny.policy(kind, dropout=0.5)
    expected = generated(policy.eval(), TEXTS, Sampling(7), seeds(3))[0]
    assert torch.equal(generated(policy.train(), TEXTS, Sampling(7), seeds(3))[0], expected)
    assert policy.model.training


@pytest.mark.parametrize(
    "top_k, top_p, temperature",
    [(0, None, 1.0), (4, None, 0.7), (0, 0.8, 1.3), (5, 0.7, 0.7), (1, None, 1.0), (3, 0.01, 1.0)],
)
def test_the_sampler_draws_from_the_distribution_it_is_told(top_k, top_p, temperature):
    n, logits = 20_000, torch.tensor([0.3, -1.0, 2.0, 0.0, 1.4, -0.2, 1.3, -3.0])
    warped = (
        TemperatureLogitsWarper(temperature)(None, logits[None].clone())
        if temperature != 1
        else logits[None].clone()
    )
    warped = TopKLogitsWarper(top_k)(None, warped) if top_k else warped
    warped = TopPLogitsWarper(top_p)(None, warped) if top_p else warped
    expected = torch.softmax(warped, -1)[0]
    sampling, uniform_B2 = Sampling(2, True, temperature, top_k, top_p), uniform_rows(seeds(n, top_k), 2)
    drawn = []
    for step in range(2):
        drawn.append(draw(logits.repeat(n, 1), sampling, uniform_B2[:, step]))
        counts = torch.bincount(drawn[-1], minlength=8)
        possible = expected > 0
        assert counts[~possible].sum() == 0
        chi_square = ((counts - n * expected)[possible] ** 2 / (n * expected[possible])).sum()
        assert chi_square < 24.3, counts  # the .999 quantile for 7 degrees of freedom
    agree = (drawn[0] == drawn[1]).float().mean()
    assert agree == pytest.approx((expected**2).sum().item(), abs=0.015)  # the steps are independent


def test_uniform_numbers_are_a_function_of_their_seed():
    rows = uniform_rows([5, 6, 5], 4)
    assert torch.equal(rows[0], rows[2]) and not torch.equal(rows[0], rows[1])
    assert torch.equal(uniform_rows([6], 9)[0, :4], rows[1]) and uniform_rows([], 4).shape == (0, 4)
    extremes = draw(torch.tensor([[3.0, 1.0, 2.0]] * 2), Sampling(1), torch.tensor([0.0, 1 - 2**-24]))
    assert extremes.tolist() == [0, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_long_prompts_are_cut_on_the_right_side(kind):
    policy = tiny.policy(kind)
    short = type(policy)(policy.model, policy.tokenizer, max_input_len=2)
    ids, mask = short.encode(["the red cat"])
    assert policy.tokenizer.convert_ids_to_tokens(ids[0].tolist()) == (
        ["▁the", "▁red"] if kind == "t5" else ["▁red", "▁cat"]
    )


def test_a_decoder_refuses_padding_on_the_right_and_too_long_sequences():
    policy = tiny.policy("gpt2")
    with pytest.raises(UserError, match="input_padding_side"):
        CausalPolicy(policy.model, policy.tokenizer, padding_side="right")
    with pytest.raises(UserError, match="256.*env.max_generated_len"):
        policy.generate(*policy.encode(["the cat"]), Sampling(255, do_sample=False))


@pytest.mark.parametrize("kind", ANY)
def test_a_saved_policy_loads_as_its_own_kind(kind, tmp_path):
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


def test_prompts_are_encoded_in_parts_of_like_length(monkeypatch):
    policy = tiny.policy("t5").eval()
    for side in ("left", "right"):
        policy.tokenizer.padding_side = side
        ids_GP, mask_GP = policy.encode([*TEXTS, "cat"])
        with torch.no_grad():
            whole = policy.model.get_encoder()(input_ids=ids_GP, attention_mask=mask_GP).last_hidden_state
            monkeypatch.setattr("fgrlhf.policy.ENCODED_AT_ONCE", 6)
            parts = policy._encode(ids_GP, mask_GP)
        real = mask_GP.bool()
        torch.testing.assert_close(parts[real], whole[real], atol=1e-6, rtol=1e-5)
