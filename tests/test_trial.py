"""The trial run of a policy when it is loaded (fgrlhf/models/trial.py)."""

from pathlib import Path
from types import SimpleNamespace

import families
import pytest
import tiny
import torch
from rl_helpers import config, metrics, trainer
from test_policy import sampled
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    BartForCausalLM,
    MarianForCausalLM,
    MBartForCausalLM,
    PegasusForCausalLM,
    PreTrainedModel,
)

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, write_json
from fgrlhf.configs.sections import LoRAConfig, Sampling
from fgrlhf.kernels.install import shares_cache
from fgrlhf.kernels.shared_cache import SHARED_CACHE
from fgrlhf.models import sharding, trial
from fgrlhf.models.causal import CausalSteps
from fgrlhf.models.encoder_decoder import EncoderDecoderSteps, encode_prompts
from fgrlhf.models.shared_rows import can_share
from fgrlhf.models.top_layers import count_layers
from fgrlhf.models.trial import decoder_windows_of, windows_of
from fgrlhf.policy import CausalPolicy, T5Policy, load_policy

TEXTS = ["the red cat", "a dog sees the bird and one two three", "question:"]
V = len(tiny.tokenizer())
SIZES = {
    **{"vocab_size": V, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1},
}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
LATENTS = SIZES | {
    **{"num_key_value_heads": 4, "q_lora_rank": 8, "kv_lora_rank": 8, "v_head_dim": 6},
    **{"qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "n_group": 1, "topk_group": 1},
    **{"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "first_k_dense_replace": 1,
}
WINDOWED = SIZES | {"head_dim": 8, "sliding_window": 4}
IMAGES = {
    **{"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 3},
    **{"num_attention_heads": 2, "image_size": 28, "patch_size": 14},
}


def random_model(model_type: str, settings: dict) -> PreTrainedModel:
    config = AutoConfig.for_model(model_type, **settings)
    auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    torch.manual_seed(0)
    return with_large_weights(auto.from_config(config))


def with_large_weights(model: PreTrainedModel) -> PreTrainedModel:
    """The same model; with the small weights of a new one, attention has almost no effect."""
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0, 0.3)
    return model


def save(model: PreTrainedModel, folder: Path) -> Path:
    model.save_pretrained(folder)
    tiny.fresh(tiny.tokenizer()).save_pretrained(folder)
    return folder


@torch.no_grad()
def differences(policy, sampling: Sampling, num_samples: int = 2) -> tuple[float, float]:
    """How far log-probabilities of sampling and of an update are from each row's own."""
    policy.eval()
    policy.model.generation_config.eos_token_id = [1, 5, 10]
    ids_GP, mask_GP = policy.encode(TEXTS)
    seeds = list(range(len(TEXTS) * num_samples))
    response = policy.generate(ids_GP, mask_GP, sampling, seeds, num_samples)
    prompt_BP = ids_GP.repeat_interleave(num_samples, 0)
    mask_BP = mask_GP.repeat_interleave(num_samples, 0)
    updated_BT = policy(prompt_BP, mask_BP, response.ids_BT, response.mask_BT)[0].logprobs_BT
    sampled = updated = 0.0
    for b in range(len(prompt_BP)):
        prompt = prompt_BP[b][mask_BP[b].bool()]
        ids_T = response.ids_BT[b][response.mask_BT[b].bool()]
        T = len(ids_T)
        inputs = {"input_ids": prompt[None]}
        if isinstance(policy, T5Policy):
            start = torch.tensor(policy.decoder_start_ids)
            inputs["decoder_input_ids"] = torch.cat([start, ids_T[:-1]])[None]
        else:
            inputs = {"input_ids": torch.cat([prompt, ids_T[:-1]])[None]}
        logits_TV = policy.model(**inputs, use_cache=False).logits[0, -T:]
        expected_T = logits_TV.log_softmax(-1).gather(-1, ids_T[:, None])[:, 0]
        sampled = max(sampled, float((response.logprobs_BT[b, :T] - expected_T).abs().max()))
        updated = max(updated, float((updated_BT[b, :T] - expected_T).abs().max()))
    return sampled, updated


HOT = Sampling(max_new_tokens=12, temperature=3.0)  # any token is drawn, padding tokens too


def check_logprobs(policy) -> None:
    assert max(differences(policy, HOT)) < 1e-4


# ---- models that cannot be policies --------------------------------------------------------------


@pytest.mark.parametrize(
    "model_class", [BartForCausalLM, MarianForCausalLM, MBartForCausalLM, PegasusForCausalLM]
)
def test_a_model_that_left_padding_moves_is_refused(model_class, tmp_path):
    torch.manual_seed(0)
    decoder = families.BART | {"is_encoder_decoder": False, "is_decoder": True}
    config = model_class.config_class(**decoder)
    save(with_large_weights(model_class(config)), tmp_path)
    with pytest.raises(UserError, match="a prompt with padding.*use another model"):
        load_policy(tmp_path)


def test_an_encoder_that_reads_padding_is_refused(tmp_path, monkeypatch):
    tiny.policy("t5").save(tmp_path)

    def encode_all(policy, ids_GP, mask_GP):
        return encode_prompts(policy.model, ids_GP, torch.ones_like(mask_GP))

    load_policy(tmp_path)
    monkeypatch.setattr(T5Policy, "_encode", encode_all)
    with pytest.raises(UserError, match="T5For.* a prompt with padding.*use another model"):
        load_policy(tmp_path)


CRASHING = {
    "openai-gpt": {"vocab_size": V, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "fsmt": families.BART | {"langs": ["en", "de"], "src_vocab_size": V, "tgt_vocab_size": V},
}


@pytest.mark.parametrize("model_type", CRASHING)
def test_a_model_that_crashes_when_it_samples_is_refused(model_type, tmp_path):
    save(random_model(model_type, CRASHING[model_type]), tmp_path)
    with pytest.raises(UserError, match="a trial run of sampling and scoring fails .*Error: .*oth"):
        load_policy(tmp_path)


# ---- recurrent layers ----------------------------------------------------------------------------

FAST_HYBRIDS = ("granitemoehybrid", "lfm2", "qwen3_5_text")
every_hybrid = pytest.mark.parametrize(
    "family",
    [
        pytest.param(name, marks=() if name in FAST_HYBRIDS else pytest.mark.slow)
        for name in families.HYBRIDS
    ],
)


@every_hybrid
def test_a_hybrid_samples_what_it_scores_also_with_merged_adapters(family, tmp_path):
    families.save(family, tmp_path / "start")
    policy = load_policy(tmp_path / "start")
    assert not can_share(policy.model)
    check_logprobs(policy)
    policy = load_policy(tmp_path / "start", lora=LoRAConfig(r=2, alpha=8.0)).eval()
    torch.manual_seed(3)
    for name, parameter in policy.named_parameters():
        if ".lora_B." in name:
            torch.nn.init.normal_(parameter, std=0.1)
    check_logprobs(policy)
    policy.save(tmp_path / "merged")
    merged = load_policy(tmp_path / "merged").eval()
    batch = sampled(policy)
    with torch.no_grad():
        actual_BT, expected_BT = (model(*batch)[0].logprobs_BT for model in (merged, policy))
    torch.testing.assert_close(actual_BT, expected_BT, atol=1e-4, rtol=0)


@every_hybrid
def test_a_hybrid_is_trained(family, tmp_path, monkeypatch):
    families.save(family, tmp_path / "start")
    start = tmp_path / "start"
    monkeypatch.setattr(tiny, "policy", lambda _, lora=None: load_policy(start, lora=lora))
    cfg = config(tmp_path / "run", train__total_episodes=8, train__lr=1e-2)
    run = trainer(cfg, family, lora=LoRAConfig(r=2))
    run.train()
    assert metrics(tmp_path / "run")[0]["kl"] == pytest.approx(0, abs=1e-4)
    added = [p for name, p in run.policy.named_parameters() if ".lora_B." in name]
    run.policy.zero_grad()
    run.policy(*sampled(run.policy))[0].logprobs_BT.sum().backward()
    assert all(p.grad is not None for p in added)
    # the untrained queries and keys of Zaya have a gradient of exactly 0
    assert sum(bool(p.grad.abs().max() > 0) for p in added) >= 6


def test_a_hybrid_without_recurrent_layers_shares_its_cache(tmp_path):
    families.save("granitemoehybrid", tmp_path, layer_types=["attention", "attention"])
    policy = load_policy(tmp_path)
    assert shares_cache(policy.model)
    check_logprobs(policy)


OWN_CACHES = {
    "mamba": {"vocab_size": V, "hidden_size": 16, "num_hidden_layers": 1, "state_size": 4},
    "minimax": SIZES | EXPERTS | {"layer_types": ["linear_attention", "full_attention"]},
    "recurrent_gemma": SIZES | {"lru_width": 32, "num_hidden_layers": 3},
}


@pytest.mark.parametrize("model_type", OWN_CACHES)
def test_a_recurrent_model_with_a_cache_of_its_own_is_refused(model_type, tmp_path):
    save(random_model(model_type, OWN_CACHES[model_type]), tmp_path)
    with pytest.raises(UserError, match="cannot be used as a policy: .*use another model"):
        load_policy(tmp_path)


def test_a_hybrid_needs_a_layer_of_attention(tmp_path):
    families.save("lfm2", tmp_path, layer_types=["conv", "conv"])
    with pytest.raises(UserError, match="none of its layers is an attention layer"):
        load_policy(tmp_path)


# ---- models whose calculations are wrong ---------------------------------------------------------


def test_steps_that_give_other_logits_are_refused(tmp_path, monkeypatch):
    tiny.policy("bloom").save(tmp_path)
    following = CausalSteps.next
    monkeypatch.setattr(CausalSteps, "next", lambda steps, ids_B: 1.1 * following(steps, ids_B))
    with pytest.raises(UserError, match="different logits token by token, with a cache"):
        load_policy(tmp_path)


def test_a_model_that_changes_its_logits_is_refused(tmp_path):
    settings = SIZES | {"local_attention": 4, "cls_token_id": 1, "sep_token_id": 1}
    save(random_model("modernbert-decoder", settings), tmp_path)
    message = "ModernBertDecoder.*: it computes different logits than the policy.*project_states"
    with pytest.raises(UserError, match=message):
        load_policy(tmp_path)


def test_a_window_of_one_token_is_refused_because_of_the_cache(tmp_path):
    model = random_model("mistral", WINDOWED | {"sliding_window": 1})
    save(model, tmp_path)
    ids = torch.arange(4, 10)[None]
    first = model(ids[:, :5], use_cache=True)
    step = model(ids[:, 5:], past_key_values=first.past_key_values).logits
    assert (step - model(ids).logits[:, 5:]).abs().max() > 0.1  # transformers' own steps
    with pytest.raises(UserError, match="than for a whole text .*keep every token if a window is"):
        load_policy(tmp_path)


# ---- texts that are longer than a window ---------------------------------------------------------

MOSHI = SIZES | {"ffn_dim": 48, "sliding_window": 12, "audio_vocab_size": 8}


def test_a_model_that_is_wrong_beyond_its_window_is_refused(tmp_path):
    """The decoder of Moshi is right for the short texts of the first trial."""
    save(random_model("moshi", MOSHI), tmp_path / "window")
    with pytest.raises(UserError, match="texts of more than 12 tokens.* different logits token by"):
        load_policy(tmp_path / "window")
    save(random_model("moshi", MOSHI | {"sliding_window": 128}), tmp_path / "none")
    check_logprobs(load_policy(tmp_path / "none"))


@pytest.mark.parametrize("longer", ["sampling", "scoring"])
def test_what_is_wrong_in_long_texts_only_is_refused(longer, tmp_path, monkeypatch):
    save(random_model("mistral", SIZES | {"sliding_window": 20}), tmp_path)
    load_policy(tmp_path)
    if longer == "sampling":
        following = CausalSteps.next

        def wrong(steps, ids_B):
            hidden_BD = following(steps, ids_B)
            return hidden_BD * 1.1 if steps.mask_BL.shape[1] > 20 else hidden_BD

        monkeypatch.setattr(CausalSteps, "next", wrong)
    else:
        scored = CausalPolicy.hidden

        def wrong(policy, prompt_ids_BP, *args):
            hidden_BTD = scored(policy, prompt_ids_BP, *args)
            return hidden_BTD * 1.1 if prompt_ids_BP.shape[1] > 20 else hidden_BTD

        monkeypatch.setattr(CausalPolicy, "hidden", wrong)
    with pytest.raises(UserError, match="Mistral.*: in texts of more than 20 tokens, a length in"):
        load_policy(tmp_path)


def test_a_long_trial_that_would_take_minutes_is_left_out_with_a_note(
    tmp_path, monkeypatch, capsys
):
    save(random_model("mistral", SIZES | {"sliding_window": 20}), tmp_path)
    lengths = []
    made = trial.make_trial
    monkeypatch.setattr(trial, "make_trial", lambda *args: lengths.append(args[1:2]) or made(*args))
    load_policy(tmp_path)
    assert lengths == [(), ((38, 16, 2),)]
    assert "note" not in capsys.readouterr().err
    monkeypatch.setattr(trial, "MAX_WORK", 1e5)
    load_policy(tmp_path)
    load_policy(tmp_path)
    assert lengths[2:] == [(), ()]
    note = capsys.readouterr().err
    assert note.count("note: MistralForCausalLM has a window or chunk of 20 tokens") == 1


def test_lengths_from_which_a_model_differs():
    """A window that no text exceeds, or that is switched off, is none."""
    windowed = SIZES | {"sliding_window": 20}
    assert windows_of(random_model("mistral", windowed)) == [20]
    assert windows_of(random_model("mistral", windowed | {"sliding_window": 128})) == []
    assert windows_of(random_model("qwen2", windowed | {"use_sliding_window": False})) == []
    assert windows_of(random_model("led", families.ENCODER_DECODERS["led"])) == [8]
    assert windows_of(random_model("gemma3", NESTED["gemma3"])) == [4]
    nested = random_model("t5gemma", two_stacks(20))
    assert windows_of(nested) == [4] and decoder_windows_of(nested) == [20]
    assert decoder_windows_of(random_model("gemma3", NESTED["gemma3"])) == []
    assert windows_of(families.random_model(families.config_of("bamba"))) == [8]
    assert windows_of(families.random_model(families.config_of("qwen3_5_text"))) == [64]
    assert windows_of(random_model("t5", families.T5)) == []


# ---- limits within a text ------------------------------------------------------------------------

LONG = Sampling(max_new_tokens=40, temperature=3.0)


@pytest.mark.parametrize("model_type", ["switch_transformers", "nllb-moe"])
def test_experts_take_every_token(model_type, tmp_path):
    """With a limit, a whole text loses tokens that sampling keeps; in training, a batch."""
    experts = {"num_experts": 4, "expert_capacity": 3, "num_layers": 2, "num_decoder_layers": 2}
    shape = families.T5 if model_type == "switch_transformers" else families.BART
    every_layer = {"encoder_sparse_step": 1, "decoder_sparse_step": 1}
    sparse = {"num_sparse_encoder_layers": 2, "num_sparse_decoder_layers": 2}
    settings = shape | experts | (sparse if model_type == "switch_transformers" else every_layer)
    no_dropout = {"dropout_rate": 0.0, "router_jitter_noise": 0.0}
    if model_type == "nllb-moe":
        no_dropout = dict.fromkeys(
            ["dropout", "attention_dropout", "activation_dropout", "moe_token_dropout"], 0.0
        )
        settings |= {"moe_eval_capacity_token_fraction": 0.2, "second_expert_policy": "all"}
    save(random_model(model_type, settings | no_dropout), tmp_path / "start")
    policy = load_policy(tmp_path / "start")
    assert max(differences(policy, LONG)) < 1e-4
    policy.save(tmp_path / "saved")
    saved = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "saved")
    batch = sampled(policy)
    with torch.no_grad():
        expected_BT = policy.eval()(*batch)[0].logprobs_BT
        torch.testing.assert_close(policy.train()(*batch)[0].logprobs_BT, expected_BT)
        policy.model = saved.eval()
        torch.testing.assert_close(policy(*batch)[0].logprobs_BT, expected_BT)


def test_bigbird_has_full_attention_from_the_start(tmp_path):
    """Its sparse attention would turn into it for good when it reads the first short text."""
    sizes = {"block_size": 4, "num_random_blocks": 1, "attention_type": "block_sparse"}
    save(random_model("bigbird_pegasus", families.BART | sizes), tmp_path / "start")
    policy = load_policy(tmp_path / "start").eval()
    policy.save(tmp_path / "saved")
    assert read_json(tmp_path / "saved" / "config.json")["attention_type"] == "original_full"
    ids_1P = torch.arange(60)[None] % 20 + 5
    mask_1P = torch.ones_like(ids_1P)
    fresh = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "saved").eval()
    with torch.no_grad():
        encoded = fresh.get_encoder()(ids_1P, attention_mask=mask_1P).last_hidden_state
        torch.testing.assert_close(policy._encode(ids_1P, mask_1P), encoded)


# ---- models whose logits are scaled --------------------------------------------------------------


@pytest.mark.parametrize(
    "model_type, settings",
    [
        ("granite", SIZES | {"logits_scaling": 3.0}),
        ("cohere", SIZES | {"logit_scale": 0.1}),
        ("umt5", families.T5 | {"tie_word_embeddings": True}),
        ("umt5", families.T5 | {"tie_word_embeddings": False}),
    ],
)
def test_scaled_logits(model_type, settings, tmp_path):
    check_logprobs(load_policy(save(random_model(model_type, settings), tmp_path)))


# ---- attention that cannot read the shared cache -------------------------------------------------

READS_KEYS = {  # model types whose attention computes with the keys and values of the cache
    "deepseek_v2": LATENTS,
    "deepseek_v3": LATENTS,
    "doge": SIZES,
    "diffllama": SIZES,
    "jetmoe": SIZES | EXPERTS | {"kv_channels": 8},
}


@pytest.mark.parametrize("model_type", READS_KEYS)
def test_attention_that_computes_with_cached_keys(model_type, tmp_path, monkeypatch):
    monkeypatch.setattr("fgrlhf.models.causal.sharing_pays", lambda *_: True)
    policy = load_policy(save(random_model(model_type, READS_KEYS[model_type]), tmp_path))
    assert not shares_cache(policy.model)
    check_logprobs(policy)


def test_rows_of_a_model_that_changes_its_mask_hold_one_response():
    """Doge adds learned numbers to the mask, which the attention of shared rows does not read."""
    assert not can_share(random_model("doge", SIZES))
    assert can_share(random_model("jetmoe", READS_KEYS["jetmoe"]))


def test_other_processes_use_the_attention_of_the_first(monkeypatch):
    first_uses_sdpa = torch.tensor([1], dtype=torch.int)
    monkeypatch.setattr(
        "torch.distributed.broadcast", lambda own_N, **_: own_N.copy_(first_uses_sdpa)
    )
    policy = tiny.policy("llama")
    mesh = SimpleNamespace(device_type="cpu", get_group=lambda: None)
    assert policy.model.config._attn_implementation == SHARED_CACHE
    sharding._use_attention_of_first(policy, mesh)
    assert policy.model.config._attn_implementation == "sdpa"


# ---- padding tokens in a response ----------------------------------------------------------------


def test_a_sampled_padding_token_ends_a_response_where_it_moves_positions(tmp_path):
    model = random_model("m2m_100", families.BART)
    model.final_logits_bias = torch.zeros(1, V)
    policy = load_policy(save(model, tmp_path))
    check_logprobs(policy)
    response = policy.generate(*policy.encode(TEXTS), HOT, list(range(90)), 30)
    padding_BT = (response.ids_BT == 0) & response.mask_BT.bool()
    assert padding_BT.any(), "without a sampled padding token nothing is tested"
    last_B = response.mask_BT.sum(1) - 1
    for b, t in padding_BT.nonzero().tolist():
        assert t == last_B[b]


# ---- nested configs ------------------------------------------------------------------------------


NESTED = {
    "gemma3": {
        "text_config": WINDOWED,
        "vision_config": IMAGES,
        "mm_tokens_per_image": 1,
        "pad_token_id": 0,
        "eos_token_id": 1,
    },
    "t5gemma": {"encoder": WINDOWED, "decoder": WINDOWED, "vocab_size": V},
}


def test_a_multimodal_model_is_a_policy_of_its_language_model(tmp_path):
    save(random_model("gemma3", NESTED["gemma3"]), tmp_path)
    policy = load_policy(tmp_path, top_layers=1)
    assert policy.hidden_size == 32 and policy.positions == 128
    assert count_layers(policy.model) == 2
    trained = [name for name, p in policy.model.named_parameters() if p.requires_grad]
    assert all("vision" not in name and "projector" not in name for name in trained)
    assert all(".layers.1." in name or ".norm." in name for name in trained)
    check_logprobs(policy)
    adapted = load_policy(tmp_path, lora=LoRAConfig(r=2)).model
    assert not any("vision" in name for name, p in adapted.named_parameters() if p.requires_grad)


def test_an_encoder_decoder_with_two_configs(tmp_path):
    model = random_model("t5gemma", NESTED["t5gemma"])
    save(model, tmp_path)
    # its config has no decoder_start_token_id
    policy = load_policy(tmp_path)
    assert policy.decoder_start_ids == [model.config.decoder.bos_token_id]
    assert policy.hidden_size == 32 and not policy._can_pack
    check_logprobs(policy)
    policy.save(tmp_path / "saved")
    assert load_policy(tmp_path / "saved").decoder_start_ids == policy.decoder_start_ids


def two_stacks(decoder_window: int) -> dict:
    return NESTED["t5gemma"] | {"decoder": WINDOWED | {"sliding_window": decoder_window}}


def test_a_decoder_that_is_wrong_beyond_its_own_window_is_refused(tmp_path, monkeypatch):
    """Its window is longer than the responses of the other trials."""
    save(random_model("t5gemma", two_stacks(12)), tmp_path)
    check_logprobs(load_policy(tmp_path))
    read = EncoderDecoderSteps._read

    def wrong(self, *arguments):
        hidden_BD = read(self, *arguments)
        length = self.cache.self_attention_cache.get_seq_length()
        return hidden_BD * (1.5 if length > 13 else 1.0)

    monkeypatch.setattr(EncoderDecoderSteps, "_read", wrong)
    with pytest.raises(UserError, match="in texts of more than 12 tokens"):
        load_policy(tmp_path)


# The start token and the beginning of a text in generation_config.json (None: no such file) and in
# config.json, and the token that the decoder starts with.
START_TOKENS = {
    "both files": ((3, 4), (5, 6), 3),
    "generation_config.json only": ((3, None), (None, None), 3),
    "beginning of a text before config.json": ((None, 4), (5, 6), 4),
    "config.json": (None, (5, 6), 5),
    "beginning of a text in config.json": (None, (None, 6), 6),
    "generation_config.json with neither": ((None, None), (5, 6), 5),
}


@pytest.mark.parametrize("form", START_TOKENS)
def test_the_decoder_starts_with_the_token_of_generate(tmp_path, form):
    generation, config, expected = START_TOKENS[form]
    tiny.t5().save(tmp_path)
    keys = ("decoder_start_token_id", "bos_token_id")
    written = read_json(tmp_path / "config.json")
    write_json(tmp_path / "config.json", {**written, **dict(zip(keys, config))})
    path = tmp_path / "generation_config.json"
    if generation is None:
        path.unlink()
    else:
        write_json(path, {**read_json(path), **dict(zip(keys, generation))})
    policy = load_policy(tmp_path)
    assert policy.decoder_start_ids == [expected]
    check_logprobs(policy)
    assert load_policy(tmp_path, empty=True).decoder_start_ids == [expected]
    policy.save(tmp_path / "saved")
    if generation != (None, None):  # `generate` refuses this form
        assert _first_of_generate(tmp_path) == expected
    assert _first_of_generate(tmp_path / "saved") == expected


def _first_of_generate(folder) -> int:
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    return int(model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=1)[0, 0])


def test_an_encoder_decoder_without_any_start_token_is_refused(tmp_path):
    tiny.t5().save(tmp_path)
    for name in ("config.json", "generation_config.json"):
        written = read_json(tmp_path / name)
        written["decoder_start_token_id"] = written["bos_token_id"] = None
        write_json(tmp_path / name, written)
    with pytest.raises(UserError, match="decoder_start_token_id"):
        load_policy(tmp_path)


# ---- sizes ---------------------------------------------------------------------------------------


def test_the_width_of_the_states_is_that_of_the_output_layer():
    """A small OPT's states are as narrow as its embeddings."""
    model = random_model("opt", SIZES | {"ffn_dim": 48, "word_embed_proj_dim": 16})
    policy = CausalPolicy(model, tiny.fresh(tiny.tokenizer()))
    prompt = policy.encode(TEXTS)
    assert policy.hidden(*prompt, *prompt).shape[-1] == policy.hidden_size == 16


@pytest.mark.parametrize("stack, P, T", [("encoder", 17, 8), ("decoder", 16, 9)])
def test_the_positions_of_each_stack_are_a_limit(stack, P, T):
    limits = {"max_encoder_position_embeddings": 16, "max_decoder_position_embeddings": 8}
    model = random_model("led", families.BART | limits | {"attention_window": 4})
    policy = T5Policy(model, tiny.fresh(tiny.tokenizer()))
    ids_1P = torch.full((1, P), 5)
    allowed = Sampling(8, do_sample=False)
    policy.generate(ids_1P[:, :16], torch.ones_like(ids_1P[:, :16]), allowed)
    with pytest.raises(UserError, match=f"positions in the {stack}, LED.* lower max_input_len"):
        policy.generate(ids_1P, torch.ones_like(ids_1P), Sampling(T, do_sample=False))
