"""A forced prefix of the decoder, such as a target language, is a part of the prompt."""

import pytest
import tiny
import torch
from rl_helpers import CountWord

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, write_json
from fgrlhf.base.seeds import derive_seed
from fgrlhf.configs.sections import Sampling
from fgrlhf.data.formats import Demonstration
from fgrlhf.policy import CausalPolicy, T5Policy, load_policy, load_value
from fgrlhf.reward import CombinedReward
from fgrlhf.reward_models.networks import LanguageModelScorer
from fgrlhf.text_types import Prompt
from fgrlhf.utils import IGNORED
from fgrlhf.value import ActorCritic, Value
from sft.data import Collator, encode

PROMPTS = [Prompt("0", "the red cat"), Prompt("1", "a dog sees the bird and one two three")]
PREFIXES = ["▁blue", "▁blue ▁bird"]
MANY_EOS = [1, 5, 10, 15, 20]  # a random model rarely draws </s>
NAMES = [*tiny.TRANSLATORS, "t5", "mt5"]


def policy(name: str, prefix: str | None) -> T5Policy:
    if name in tiny.TRANSLATORS:
        made = tiny.translator(name, prefix=prefix)
    else:
        plain = tiny.policy(name)
        made = T5Policy(plain.model, plain.tokenizer, max_input_len=64, decoder_prefix=prefix)
    made.model.generation_config.eos_token_id = MANY_EOS
    return made.eval()


def seeds(n: int) -> list[int]:
    return [derive_seed("prefix", i) for i in range(n)]


def rollout_of(policy: T5Policy):
    critic = Value(policy.hidden_size)  # reads the policy's hidden states
    torch.nn.init.normal_(critic.head.layers[-1].weight)
    return tiny.collect(
        ActorCritic(policy, critic).eval(), policy, PROMPTS, Sampling(7), 3, seeds(6), 1.0
    )


def transformers_logprobs(policy: T5Policy, prompt_ids, prefix: str, response_ids) -> list[float]:
    """The forward pass of transformers for one row without padding, the prefix given."""
    given = policy.tokenizer.convert_tokens_to_ids(prefix.split())
    start = [policy.model.config.decoder_start_token_id, *given]
    logits = policy.model(
        input_ids=prompt_ids[None],
        decoder_input_ids=torch.tensor([[*start, *response_ids[:-1]]]),
        use_cache=False,
    ).logits[0, len(given) :]
    chosen = logits.log_softmax(-1).gather(-1, torch.tensor(response_ids)[:, None])
    return chosen[:, 0].tolist()


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_logprobs_equal_those_of_transformers_after_the_prefix(name, prefix):
    translator = policy(name, prefix)
    rollout = rollout_of(translator)
    assert rollout.response_mask_BT.sum(1).unique().numel() > 1
    for b, mask in enumerate(rollout.response_mask_BT.bool()):
        prompt_ids = rollout.prompt_ids_BP[b][rollout.prompt_mask_BP[b].bool()]
        response_ids = rollout.response_ids_BT[b][mask].tolist()
        expected = transformers_logprobs(translator, prompt_ids, prefix, response_ids)
        # from sampling step by step, and from the parallel pass of the reference
        for computed_BT in (rollout.logprobs_BT, rollout.ref_logprobs_BT):
            assert computed_BT[b][mask].tolist() == pytest.approx(expected, abs=1e-5)
    without = policy(name, None)
    output, _ = without(
        rollout.prompt_ids_BP,
        rollout.prompt_mask_BP,
        rollout.response_ids_BT,
        rollout.response_mask_BT,
    )
    assert (output.logprobs_BT - rollout.logprobs_BT).abs().max() > 1e-3, "the prefix is not read"


@pytest.mark.parametrize("name", ["m2m100", "t5"])  # with and without packed responses
def test_the_prefix_has_no_reward_value_or_entropy(name):
    translator = policy(name, "▁blue ▁bird")
    rollout = rollout_of(translator)
    B, T = rollout.response_ids_BT.shape
    assert rollout.logprobs_BT.shape == rollout.values_BT.shape == (B, T) and T <= 7
    assert all("blue bird" not in text[:9] for text in rollout.texts)
    rewards = CombinedReward({"a": CountWord("a")}).token_rewards(rollout)
    counts = [float(text.count("a")) for text in rollout.texts]
    assert rewards.total_BT.sum(1).tolist() == counts and sum(counts) > 0
    output, hidden_BTD = translator(
        rollout.prompt_ids_BP,
        rollout.prompt_mask_BP,
        rollout.response_ids_BT,
        rollout.response_mask_BT,
    )
    assert output.entropy_BT.shape == (B, T) and hidden_BTD.shape[:2] == (B, T)
    assert ((output.entropy_BT > 0) == rollout.response_mask_BT.bool()).all()


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", ["m2m100", "marian", "t5"])
def test_greedy_and_beams_equal_transformers(name, beams):
    translator = policy(name, "▁blue")
    ids, mask = translator.encode(PROMPTS[:1])
    start = torch.tensor([translator.decoder_start_ids])
    expected = translator.model.generate(
        input_ids=ids,
        attention_mask=mask,
        decoder_input_ids=start,
        do_sample=False,
        num_beams=beams,
        max_new_tokens=6,
        forced_bos_token_id=None,
        eos_token_id=MANY_EOS,
        pad_token_id=0,
    )[0, 2:].tolist()
    response = translator.generate(ids, mask, Sampling(6, do_sample=False, num_beams=beams))
    assert response.ids_BT[0].tolist() == expected


def test_without_a_prefix_nothing_changes_bit_for_bit(tmp_path):
    plain, empty = tiny.t5().eval(), policy("t5", "")
    plain.model.generation_config.eos_token_id = MANY_EOS
    assert plain.decoder_start_ids == empty.decoder_start_ids == [0]
    first, second = rollout_of(plain), rollout_of(empty)
    for name in ("response_ids_BT", "logprobs_BT", "ref_logprobs_BT"):
        assert torch.equal(getattr(first, name), getattr(second, name))
    plain.save(tmp_path)
    assert "decoder_prefix" not in read_json(tmp_path / "config.json")


def test_the_prefix_is_saved_with_the_policy(tmp_path):
    policy("m2m100", "▁blue").save(tmp_path)
    assert read_json(tmp_path / "config.json")["decoder_prefix"] == "▁blue"
    loaded = load_policy(tmp_path)
    assert isinstance(loaded, T5Policy)
    blue = loaded.tokenizer.get_vocab()["▁blue"]
    assert loaded.decoder_start_ids == [1, blue]
    other = load_policy(tmp_path, decoder_prefix="▁red")
    assert other.decoder_prefix == "▁red"
    assert load_policy(tmp_path, decoder_prefix="").decoder_prefix == ""
    trunk = load_value(tmp_path, other).trunk
    assert trunk is not None and trunk.decoder_prefix == "▁red"


@pytest.mark.parametrize(
    "prefix, message",
    [
        ("deu_Latn", "'deu_Latn', which is not a token.*such as `deu_Latn`"),
        ("▁blue </s>", "'</s>', the token with which texts end"),
    ],
)
def test_a_prefix_of_other_tokens_is_refused(prefix, message):
    with pytest.raises(UserError, match=message):
        policy("m2m100", prefix)


def test_a_stored_prefix_must_be_a_text(tmp_path):
    policy("m2m100", "▁blue").save(tmp_path)
    write_json(
        tmp_path / "config.json", read_json(tmp_path / "config.json") | {"decoder_prefix": [1]}
    )
    with pytest.raises(UserError, match=r"config.json is \[1\], which is not a text"):
        load_policy(tmp_path)


def test_a_decoder_only_model_has_no_prefix(tmp_path):
    tiny.policy("gpt2").save(tmp_path)
    with pytest.raises(UserError, match="'▁blue', but .* is a decoder-only model"):
        load_policy(tmp_path, decoder_prefix="▁blue")
    assert isinstance(load_policy(tmp_path, decoder_prefix=""), CausalPolicy)


def test_the_prefix_takes_a_position():
    translator = tiny.translator("mbart", prefix="▁blue")
    prompt = translator.encode(PROMPTS[:1])
    translator.generate(*prompt, Sampling(63, do_sample=False))
    with pytest.raises(UserError, match="responses of up to 64 need 65 positions"):
        translator.generate(*prompt, Sampling(64, do_sample=False))


@pytest.mark.parametrize("name", ["m2m100", "marian", "mbart", "t5"])
def test_sft_trains_on_the_response_after_the_prefix(name):
    translator = policy(name, "▁blue ▁bird")
    translator.model.generation_config.eos_token_id = 1
    examples = [Demonstration(PROMPTS[0], "sees a dog"), Demonstration(PROMPTS[1], "the")]
    rows = encode(translator, examples, max_generated_len=10)
    start = translator.decoder_start_ids
    answer = rows[0]["labels"][2:]
    assert len(start) == 3 and rows[0]["labels"][:2] == [IGNORED] * 2 and answer[-1] == 1
    assert rows[0]["decoder_input_ids"] == [*start, *answer[:-1]]
    batch = Collator(0)(rows)
    loss = translator.model(**batch).loss
    # the policy's own log-probabilities of the same responses
    labels = batch["labels"][:, 2:]
    mask_BT = (labels != IGNORED).long()
    output, _ = translator(
        batch["input_ids"], batch["attention_mask"], labels.clamp(min=0), mask_BT
    )
    expected = -output.logprobs_BT.sum() / mask_BT.sum()
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=0)


def test_a_reward_model_does_not_read_probabilities_without_the_prefix(tmp_path):
    policy("t5", "▁blue").save(tmp_path)
    labels = {0: "ERROR", 1: "O"}
    LanguageModelScorer.start_from(str(tmp_path), "seq2seq", "segment", labels)
    with pytest.raises(ValueError, match="prefix '▁blue'.*lm_logprob_feature=false"):
        LanguageModelScorer.start_from(
            str(tmp_path), "seq2seq", "segment", labels, lm_logprob_feature=True
        )
