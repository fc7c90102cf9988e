"""What the tokenizers of pretrained causal models do to every stage.

`instruct` is a tiny policy with the tokenizer of SmolLM2: byte-level, single digits, one token for
end and padding, no `</s>`, a default system prompt, and an end of text that no config names.
"""

import dpo_helpers
import pytest
import rm_helpers as rm
import tiny
import torch
from tokenizers import Tokenizer, decoders, models
from tokenizers.pre_tokenizers import ByteLevel, Digits
from tokenizers.pre_tokenizers import Sequence as PreTokenizers
from transformers import AddedToken, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from fgrlhf.alignment import char_ends, place_on_tokens
from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, write_json
from fgrlhf.configs.sections import Sampling
from fgrlhf.data.formats import Demonstration
from fgrlhf.data.token_comparisons import collate, encode_comparisons
from fgrlhf.policy import CausalPolicy, check_prompts_fit, load_policy
from fgrlhf.reward_models.inputs import RMInputs
from fgrlhf.reward_models.prefix import RMText
from fgrlhf.rollout import finished_responses
from fgrlhf.text_types import Prompt, SegmentScore
from fgrlhf.utils import IGNORED
from sft.data import Collator, encode

END_OF_TEXT, START, END = 0, 1, 2
SYSTEM = "Be kind."
TEMPLATE = (
    "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}<|im_start|>system\n"
    + SYSTEM
    + "<|im_end|>\n{% endif %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor"
    " %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer(**changes) -> PreTrainedTokenizerFast:
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    vocabulary = {token: i for i, token in enumerate([*specials, *sorted(ByteLevel.alphabet())])}
    model = Tokenizer(models.BPE(vocabulary, []))
    model.pre_tokenizer = PreTokenizers([Digits(True), ByteLevel(add_prefix_space=False)])
    model.decoder = decoders.ByteLevel()
    model.add_special_tokens([AddedToken(token, special=True) for token in specials])
    roles = {"bos_token": "<|im_start|>", "unk_token": "<|endoftext|>"}
    roles |= dict.fromkeys(("eos_token", "pad_token"), "<|im_end|>") | {"chat_template": TEMPLATE}
    return PreTrainedTokenizerFast(tokenizer_object=model, **{**roles, **changes})


def instruct(chat_template: bool | None = None, max_input_len: int = 512) -> CausalPolicy:
    torch.manual_seed(0)
    tok = tokenizer()
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024}
    ends = {"bos_token_id": START, "eos_token_id": END, "pad_token_id": END}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tok), **sizes, **ends))
    return CausalPolicy(model, tok, max_input_len, chat_template=chat_template).eval()


def always(policy: CausalPolicy, token: int) -> None:
    """Let the policy write only one token."""
    output = policy.model.get_output_embeddings()
    bias = torch.zeros(output.out_features)
    bias[token] = 1e4
    output.bias = torch.nn.Parameter(bias)


# ---- ends of a response --------------------------------------------------------------------------


def test_the_end_of_a_text_ends_a_response_in_raw_use():
    """The generation config names only the end of a turn."""
    policy = instruct(chat_template=False)
    assert policy.eos_ids == [END, END_OF_TEXT] and policy.end_id == END
    always(policy, END_OF_TEXT)
    response = policy.generate(*policy.encode(["a"]), Sampling(5, do_sample=False))
    assert response.ids_BT.tolist() == [[END_OF_TEXT]]
    assert finished_responses(response, policy.eos_ids) == (True,)


def test_a_plain_token_with_such_a_name_ends_nothing():
    policy = tiny.gpt2()
    assert policy.eos_ids == [1]
    policy.tokenizer.add_tokens(["<|endoftext|>"])  # a word, not a special token
    assert policy.eos_ids == [1]


def test_a_turn_may_end_with_a_special_token_without_a_role():
    """Like Phi-3's <|end|>, which is neither its end-of-sequence nor its padding token."""
    tok = tokenizer(eos_token="<|endoftext|>", pad_token="<|endoftext|>")
    assert END not in tok.all_special_ids
    policy = CausalPolicy(instruct().model, tok)
    assert policy.turn_end_ids == [END] and policy.end_id == END


def test_a_tokenizer_without_end_and_padding_uses_those_of_the_model(tmp_path):
    instruct().save(tmp_path)
    settings = read_json(tmp_path / "tokenizer_config.json")
    for role in ("bos_token", "eos_token", "pad_token", "unk_token"):
        settings.pop(role)
    write_json(tmp_path / "tokenizer_config.json", settings)
    for chat_template in (None, False):
        policy = load_policy(tmp_path, chat_template=chat_template)
        assert policy.end_id == END and policy.tokenizer.pad_token_id == END
        ids_BP, mask_BP = policy.encode(["a", "ab"])
        assert mask_BP[0].sum() == mask_BP[1].sum() - 1


@pytest.mark.parametrize("wrong", [10_000, -1, "x"])
def test_an_end_outside_the_vocabulary_is_not_used_for_padding(wrong):
    model = instruct().model
    model.generation_config.eos_token_id = wrong
    tok = tokenizer(eos_token=None, pad_token=None, chat_template=None)
    with pytest.raises(UserError, match="neither a padding token nor an end-of-sequence"):
        CausalPolicy(model, tok)


# ---- one token for end and padding ---------------------------------------------------------------


def logprobs(policy: CausalPolicy, prompt_ids: list[int], response_ids: list[int]) -> torch.Tensor:
    """The log-probability of each response token, in a sequence without padding."""
    with torch.no_grad():
        logits_1LV = policy.model(torch.tensor([prompt_ids + response_ids])).logits
    start = len(prompt_ids) - 1
    logprobs_TV = logits_1LV[0, start:-1].log_softmax(-1)
    return logprobs_TV.gather(-1, torch.tensor(response_ids)[:, None])[:, 0]


EXAMPLES = [
    Demonstration(Prompt("0", "Name 12 cats."), "No."),
    Demonstration(Prompt("1", "Hi"), "Hello, you 3 cats."),
]


def test_sft_learns_the_end_but_not_the_padding():
    policy = instruct()
    rows = encode(policy, EXAMPLES, max_generated_len=50)
    batch = Collator(policy.tokenizer.pad_token_id)(rows)
    labels_BL = batch["labels"]
    assert (labels_BL == END).sum(1).tolist() == [1, 1]  # the padding is the same token
    with torch.no_grad():
        loss = policy.model(**batch).loss
    expected = []
    for row in rows:
        n_prompt = row["labels"].count(IGNORED)
        expected += logprobs(policy, row["input_ids"][:n_prompt], row["input_ids"][n_prompt:])
    assert float(loss) == pytest.approx(-float(torch.stack(expected).mean()), abs=1e-5)


def test_rl_trains_the_end_but_not_the_padding():
    policy = instruct()
    prompt_ids_BP, prompt_mask_BP = policy.encode(["Name 12 cats.", "Hi"])
    responses = [[10, 11, END], [12, END]]
    ids_BT = torch.tensor([responses[0], [*responses[1], END]])
    mask_BT = torch.tensor([[1, 1, 1], [1, 1, 0]])
    with torch.no_grad():
        output, _ = policy(prompt_ids_BP, prompt_mask_BP, ids_BT, mask_BT)
    for b, response in enumerate(responses):
        prompt_ids = prompt_ids_BP[b][prompt_mask_BP[b].bool()].tolist()
        expected = logprobs(policy, prompt_ids, response)
        torch.testing.assert_close(output.logprobs_BT[b, : len(response)], expected)
    assert output.logprobs_BT[1, 2] == 0


def test_sampling_ends_at_the_first_end_and_pads_behind_it():
    policy = instruct()
    prompts = policy.encode(["Name 12 cats.", "Hi"])
    always(policy, END)
    response = policy.generate(*prompts, Sampling(4, do_sample=False))
    assert response.mask_BT.tolist() == [[1], [1]] and response.ids_BT.tolist() == [[END], [END]]


def test_dpo_counts_the_end_but_not_the_padding():
    policy = instruct()
    comparisons = encode_comparisons(policy, dpo_helpers.pairs(), 50)
    batch = collate(comparisons, None, policy.tokenizer.pad_token_id, True)
    ends_B = (batch.response_ids_BT * batch.response_mask_BT == END).sum(1)
    assert ends_B.tolist() == [1] * len(ends_B)
    assert (batch.response_ids_BT[batch.response_mask_BT == 0] == END).all()


# ---- prompts -------------------------------------------------------------------------------------


def test_a_long_prompt_keeps_question_system_prompt_and_template():
    question = "question: who has 12 cats?"
    prompt = Prompt("0", question + " context: " + "one two 3 " * 50, meta={"question": question})
    policy = instruct(max_input_len=200)
    assert check_prompts_fit(policy, [prompt], lambda p: p.meta["question"], "rows", True) == 1
    (ids,) = policy.tokenize([prompt.text])["input_ids"]
    text = policy.tokenizer.decode(ids)
    assert len(ids) == 200
    assert text.startswith(
        f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{question} context: one two 3"
    )
    assert text.endswith("<|im_end|>\n<|im_start|>assistant\n")


def test_the_side_that_the_tokenizer_names_is_not_used(tmp_path):
    instruct().save(tmp_path)
    settings = read_json(tmp_path / "tokenizer_config.json")
    settings |= {"padding_side": "right", "truncation_side": "left"}
    write_json(tmp_path / "tokenizer_config.json", settings)
    policy = load_policy(tmp_path, max_input_len=100)
    _, mask_BP = policy.encode(["a", "ab"])
    assert mask_BP[0].tolist() == [0] + [1] * (mask_BP.shape[1] - 1)
    (ids,) = policy.tokenize(["first" + " x" * 200])["input_ids"]
    assert "user\nfirst x" in policy.tokenizer.decode(ids)


# ---- digits --------------------------------------------------------------------------------------


def test_a_number_of_several_tokens_is_rewarded_on_its_last_digit():
    tok = tokenizer()
    text = "It has 1987 cats. And 3.5"
    ids = tok(text)["input_ids"]
    decoded, ends = char_ends(tok, ids)
    assert decoded == text and ends == tuple(range(1, len(text) + 1))
    number_end = text.index("1987") + 4
    scores = [SegmentScore(0, number_end, 1.0), SegmentScore(number_end, len(text), 2.0)]
    rewards_1T = place_on_tokens([scores], [ends], torch.ones(1, len(ids)))
    rewarded = [i for i, reward in enumerate(rewards_1T[0].tolist()) if reward]
    assert rewarded == [number_end - 1, len(text) - 1]


def test_a_reward_model_judges_a_segment_at_its_last_digit():
    inputs = RMInputs(tokenizer(), "causal", "segment", 200)
    text = RMText(rm.prefix("the 12", "in 1987 3"), (("in", "1987"), ("it", "2.5")))
    (encoded,) = inputs.encode([text])
    decode = inputs.tokenizer.decode
    assert decode(encoded.input_ids) == "the 12 in 1987 3 in 1987 it 2.5"
    first, second = encoded.positions
    assert decode(encoded.input_ids[: first + 1]) == "the 12 in 1987 3 in 1987"
    assert second == encoded.length - 1
    # the context is cut as a whole, although the space before a number is a token of its own
    shorter = RMInputs(tokenizer(), "causal", "segment", encoded.length - len(" in 1987 3"))
    (cut,) = shorter.encode([text])
    assert decode(cut.input_ids) == "the 12 in 1987 it 2.5"


def test_a_causal_reward_model_needs_no_segment_mark():
    """The mark `</s>`, which encoders read before every segment, is not in the vocabulary."""
    assert "</s>" not in tokenizer().get_vocab()
    inputs = RMInputs(tokenizer(), "causal", "segment", 200)
    (encoded,) = inputs.encode([RMText(rm.prefix("a"), (("b",), ("c",)))])
    assert inputs.tokenizer.decode(encoded.input_ids) == "a b c" and encoded.positions == (2, 4)
