import pytest
import torch
from transformers import BartConfig, BartForConditionalGeneration, T5Config, T5ForConditionalGeneration

from fgrlhf.attention import SHARED_PROMPT


def t5():
    return T5ForConditionalGeneration(T5Config(
        vocab_size=50, d_model=16, d_kv=4, d_ff=32, num_layers=2, num_heads=4, decoder_start_token_id=0, dropout_rate=0.0,
        initializer_factor=0.3))


def bart():
    return BartForConditionalGeneration(BartConfig(
        vocab_size=50, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=64, dropout=0.0, init_std=0.3))


@pytest.mark.parametrize("make", [t5, bart])
def test_g_prompts_for_k_responses_each_equal_the_prompts_repeated(make):
    torch.manual_seed(0)
    model = make()
    G, K, P, T = 3, 4, 7, 5
    encoded_GPD, ids_BT = torch.randn(G, P, 16, requires_grad=True), torch.randint(2, 50, (G * K, T))
    mask_GP = (torch.arange(P) < torch.tensor([[7], [4], [2]])).long()

    def run(states, mask):
        out = model.get_decoder()(input_ids=ids_BT, encoder_hidden_states=states, encoder_attention_mask=mask, use_cache=False)
        weights = torch.linspace(-1, 1, out.last_hidden_state.numel()).view_as(out.last_hidden_state)
        return out.last_hidden_state, torch.autograd.grad((out.last_hidden_state * weights).sum(), encoded_GPD)[0]

    model.set_attn_implementation("eager")
    expected = run(encoded_GPD.repeat_interleave(K, 0), mask_GP.repeat_interleave(K, 0))
    model.set_attn_implementation(SHARED_PROMPT)
    torch.testing.assert_close(run(encoded_GPD, mask_GP), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(run(encoded_GPD.repeat_interleave(K, 0), mask_GP.repeat_interleave(K, 0)), expected, atol=1e-5, rtol=1e-4)


def test_a_saved_model_does_not_ask_for_it(tmp_path):
    model = t5()
    model.set_attn_implementation(SHARED_PROMPT)
    model.save_pretrained(tmp_path)
    assert SHARED_PROMPT not in (tmp_path / "config.json").read_text()
