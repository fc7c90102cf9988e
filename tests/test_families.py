"""What families of models do differently, with tiny random models: logits, caches, positions."""

import families
import pytest
import rm_helpers as rm
import tiny
import torch
from test_policy import brute_logprobs, sampled
from transformers import ByT5Tokenizer, Phi3Config, XLNetForSequenceClassification

from fgrlhf.base.errors import UserError
from fgrlhf.configs.sections import Sampling
from fgrlhf.models.chat import without_last_tokens
from fgrlhf.models.dialogs import dialog_text
from fgrlhf.policy import T5Policy, load_policy
from fgrlhf.reward_models.inputs import longest_input
from fgrlhf.reward_models.loading import load_reward_model
from fgrlhf.reward_models.networks import LanguageModelScorer
from fgrlhf.text_types import ASSISTANT, USER, Prompt
from fgrlhf.value import ActorCritic, Value
from reward_modeling.config import RMModelConfig
from reward_modeling.network import load_network


@pytest.mark.parametrize("family", ["granite", "cohere", "umt5", "switch", "deepseek-v3"])
def test_logprobs_of_families_with_other_logits_or_caches(family, tmp_path):
    """Granite, Cohere, UMT5 and Switch scale their logits. DeepSeek caches no keys."""
    families.save(family, tmp_path)
    policy = load_policy(tmp_path).eval()
    prompt_ids, prompt_mask, ids, mask = batch = sampled(policy)
    with torch.no_grad():
        logprobs_BT = policy(*batch)[0].logprobs_BT
    for b in range(len(ids)):
        prompt = prompt_ids[b][prompt_mask[b].bool()].tolist()
        response = ids[b][mask[b].bool()].tolist()
        expected = brute_logprobs(policy, prompt, response, 1.0)
        assert logprobs_BT[b, : len(response)].tolist() == pytest.approx(expected, abs=1e-5)


def test_a_model_with_layers_after_its_hidden_states_is_refused(tmp_path):
    families.save("modernbert-decoder", tmp_path)
    with pytest.raises(UserError, match="computes different logits than the policy"):
        load_policy(tmp_path)


@pytest.mark.parametrize("family", ["marian", "pegasus", "led", "mbart"])
def test_every_trained_parameter_gets_a_gradient(family, tmp_path):
    """DDP fails otherwise. Sinusoids and LED's projections of global tokens are not trained."""
    families.save(family, tmp_path)
    policy = load_policy(tmp_path).train()
    policy(*sampled(policy))[0].logprobs_BT.sum().backward()
    frozen = [name for name, p in policy.model.named_parameters() if not p.requires_grad]
    assert all(p.grad is not None for p in policy.parameters() if p.requires_grad)
    assert all("embed_positions" in name or "_global." in name for name in frozen)
    assert bool(frozen) == (family != "mbart")


def test_a_critic_of_states_that_are_narrower_than_the_layers(tmp_path):
    families.save("opt-350m", tmp_path)
    policy = load_policy(tmp_path)
    assert policy.hidden_size == 16
    for trunk in (None, load_policy(tmp_path)):
        model = ActorCritic(policy, Value(policy.hidden_size, trunk))
        assert model(*sampled(policy)).values_BT.shape == (6, 7)


@pytest.mark.parametrize("kind", ["segment", "sequence"])
@pytest.mark.parametrize("family", ["marian", "opt-350m"])
def test_a_reward_model_reads_what_its_trunk_computes(family, kind, tmp_path):
    """The decoder of Marian has embeddings of its own, and its positions are not in the file."""
    model = families.save(family, tmp_path)
    shape = "seq2seq" if family == "marian" else "causal"
    labels = {0: "ERROR", 1: "O"} if kind == "segment" else None
    scorer = LanguageModelScorer.start_from(str(tmp_path), shape, kind, labels).eval()
    ids = torch.tensor([[3, 4, 5]])
    mask = torch.ones_like(ids)
    rows = {"places": torch.tensor([[0, 1, 2]]), "response_mask": mask}
    inputs = {"input_ids": ids, "attention_mask": mask}
    if family == "marian":
        inputs["decoder_input_ids"] = ids
        rows |= {"decoder_attention_mask": mask, "prompt_rows": torch.tensor([0])}
    with torch.no_grad():
        scores = scorer(**inputs, **rows).logits
        hidden_1TD = model.base_model(**inputs).last_hidden_state
        if kind == "sequence":
            hidden_1TD = hidden_1TD[:, -1]
        torch.testing.assert_close(scores, scorer.head(hidden_1TD))


def test_log_probabilities_cannot_be_added_to_embeddings_of_another_width(tmp_path):
    families.save("opt-350m", tmp_path)
    with pytest.raises(ValueError, match="embeddings have 16 numbers and its layers 32.*false"):
        LanguageModelScorer.start_from(str(tmp_path), "causal", "sequence", lm_logprob_feature=True)


@pytest.mark.parametrize("family, limit", [("led", 40), ("mpt", 40), ("marian", 130)])
def test_limits_of_length_under_other_names(family, limit, tmp_path):
    families.save(family, tmp_path)
    settings = RMModelConfig(ckpt=str(tmp_path), max_input_len=limit)
    network, _ = load_network(settings, "sequence")
    assert longest_input(network.trunk) == limit
    with pytest.raises(UserError, match=f"reads at most {limit} tokens"):
        load_network(settings.model_copy(update={"max_input_len": limit + 1}), "sequence")
    if family == "mpt":
        policy = load_policy(tmp_path)
        with pytest.raises(UserError, match="need 41 positions, the model has 40"):
            policy.generate(*policy.encode(["the"]), Sampling(40, do_sample=False))


def test_longrope_is_limited_to_its_original_length(monkeypatch):
    """Beyond it, one long text changes the positions of the others in its batch."""
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 4,
        "long_factor": [3.0, 4.0, 5.0, 6.0],
    }
    settings = {"original_max_position_embeddings": 16, "rope_parameters": rope}
    monkeypatch.setitem(tiny.DECODERS, "phi3", (Phi3Config, settings))
    policy = tiny.decoder("phi3")
    prompts = policy.encode(["the red cat", "a dog"])
    P = prompts[0].shape[1]
    policy.generate(*prompts, Sampling(16 - P, do_sample=False))
    with pytest.raises(UserError, match="need 17 positions, the model has 16"):
        policy.generate(*prompts, Sampling(17 - P, do_sample=False))
    assert longest_input(policy.model) == 16


def test_xlnet_labels_segments_of_any_length_but_scores_no_padded_text(tmp_path):
    families.save("xlnet", tmp_path / "start")
    settings = RMModelConfig(ckpt=str(tmp_path / "start"), shape="encoder", max_input_len=300)
    network, _ = load_network(settings, "segment", {0: "ERROR", 1: "O"})
    assert longest_input(network) is None
    message = r"padding changes the score that .*\(XLNetForSequenceClassification\).*family$"
    with pytest.raises(UserError, match=message):
        load_network(settings, "sequence")
    classifier = XLNetForSequenceClassification(families.config_of("xlnet", num_labels=1))
    classifier.save_pretrained(tmp_path / "published")
    families.tiny.tokenizer().save_pretrained(tmp_path / "published")
    with pytest.raises(UserError, match=message):
        load_reward_model(tmp_path / "published", rm.prefix_fn, mean=0.0, std=1.0)


def test_a_long_dialog_before_a_tokenizer_without_offsets():
    """ByT5's tokenizer reads bytes."""
    tokenizer = ByT5Tokenizer()
    messages = ((USER, "naïve " * 20), (ASSISTANT, "yes"), (USER, "☕ " * 20))
    config = families.config_of("t5", vocab_size=384)
    policy = T5Policy(families.random_model(config), tokenizer, max_input_len=30)
    (ids,) = policy.tokenize([Prompt("0", dialog_text(messages), messages=messages)])["input_ids"]
    assert 25 < len(ids) <= 30
    for excess in range(1, 12):
        shorter = without_last_tokens(tokenizer, "ab ☕ é", excess)
        expected = "ab ☕ é".encode()[:-excess].decode(errors="ignore")
        assert shorter == expected
