import math

import pytest
import tiny
import torch

from fgrlhf.base.errors import UserError
from fgrlhf.metrics.config import MetricConfig
from fgrlhf.metrics.registry import build_metric
from fgrlhf.scorers import likelihood
from fgrlhf.text_types import Prompt


def saved(policy, folder):
    policy.save(folder)
    return str(folder)


def perplexity(model, **settings):
    return build_metric(MetricConfig(name="perplexity", model=model, **settings))


def direct(policy, prompt_ids, response_ids):
    """-sum log p and the number of tokens, from the loss of the transformers model."""
    ids_11 = torch.tensor([prompt_ids + response_ids])
    labels_11 = torch.tensor([[-100] * len(prompt_ids) + response_ids])
    with torch.no_grad():
        loss = policy.model(input_ids=ids_11, labels=labels_11).loss
    return float(loss) * len(response_ids), len(response_ids)


def test_a_uniform_model_has_the_size_of_its_vocabulary(tmp_path):
    policy = tiny.gpt2()
    policy.model.transformer.wte.weight.data.zero_()  # tied: all logits are 0
    metric = perplexity(saved(policy, tmp_path))
    (row,) = metric.columns([Prompt("0", "the cat")], ["sees a dog"])
    vocabulary = policy.model.config.vocab_size
    assert row["perplexity"] == pytest.approx(vocabulary)
    assert row["perplexity/nll_and_tokens"] == pytest.approx([3 * math.log(vocabulary), 3])


@pytest.mark.parametrize("kind", ["word", "unigram", "bpe"])
@pytest.mark.parametrize("prompt, text", [("the red cat", "sees a dog"), ("a", " dog, bird")])
def test_a_decoder_reads_prompt_and_response_as_one_text(kind, prompt, text, tmp_path):
    policy = tiny.gpt2(kind)
    prompt_ids = policy.tokenizer(prompt)["input_ids"]
    ids = policy.tokenizer(f"{prompt} {text.strip()}")["input_ids"]  # one space between them
    assert ids[: len(prompt_ids)] == prompt_ids
    expected, n = direct(policy, prompt_ids, ids[len(prompt_ids) :])
    (row,) = perplexity(saved(policy, tmp_path)).columns([Prompt("0", prompt)], [text])
    assert row["perplexity/nll_and_tokens"] == pytest.approx([expected, n], rel=1e-4)
    assert row["perplexity"] == pytest.approx(math.exp(expected / n), rel=1e-4)


def test_an_encoder_decoder_reads_the_prompt_in_its_encoder(tmp_path):
    policy = tiny.t5()
    metric = perplexity(saved(policy, tmp_path))
    inputs = policy.tokenizer(["the red cat"], return_tensors="pt")
    labels_1T = policy.tokenizer(["sees a dog ."], return_tensors="pt")["input_ids"]
    with torch.no_grad():
        loss = policy.model(**inputs, labels=labels_1T).loss
    (value,) = metric.values([Prompt("0", "the red cat")], ["sees a dog ."])
    assert value == pytest.approx(math.exp(float(loss)), rel=1e-4)


@pytest.mark.parametrize("kind", ["gpt2", "t5", "bart", "chat"])
def test_batches_change_nothing(kind, tmp_path, monkeypatch):
    policy = tiny.chat() if kind == "chat" else tiny.policy(kind)
    metric = perplexity(saved(policy, tmp_path))
    prompts = [Prompt("0", "the"), Prompt("1", "the red cat sees a dog"), Prompt("2", "")]
    prompts = [prompt for prompt in prompts for _ in range(3)]
    texts = ["a bird", "", "the blue bird likes one green cat .", "dog", " ", "two", "cat", "a", ""]
    together = metric.values(prompts, texts)
    monkeypatch.setattr(likelihood, "BATCH", 2)
    assert metric.values(prompts, texts) == [v if v is None else pytest.approx(v) for v in together]
    alone = [metric.values([p], [t])[0] for p, t in zip(prompts, texts, strict=True)]
    assert [value is None for value in together] == [not text.strip() for text in texts]
    assert together == [None if value is None else pytest.approx(value) for value in alone]
    assert metric.values([], []) == []


def test_a_chat_model_can_continue_the_prompt_as_plain_text(tmp_path):
    policy = tiny.chat()
    model = saved(policy, tmp_path)
    prompt_ids = policy.tokenizer("the")["input_ids"]
    text_ids = policy.tokenizer("cat", add_special_tokens=False)["input_ids"]
    expected, n = direct(policy, prompt_ids, text_ids)
    (row,) = perplexity(model, chat_template=False).columns([Prompt("0", "the")], ["cat"])
    assert row["perplexity/nll_and_tokens"] == pytest.approx([expected, n], rel=1e-4)
    (as_turn,) = perplexity(model).columns([Prompt("0", "the")], ["cat"])
    assert as_turn["perplexity"] != pytest.approx(row["perplexity"], rel=1e-3)


def test_a_chat_model_reads_the_prompt_as_a_turn(tmp_path):
    policy = tiny.chat()
    metric = perplexity(saved(policy, tmp_path))
    prompt_ids = policy.tokenizer(
        "<s><|user|>the cat<|end|><|assistant|>", add_special_tokens=False
    )
    text_ids = policy.tokenizer("sees a dog", add_special_tokens=False)["input_ids"]
    expected, n = direct(policy, prompt_ids["input_ids"], text_ids)
    (row,) = metric.columns([Prompt("0", "the cat")], ["sees a dog"])
    assert row["perplexity/nll_and_tokens"] == pytest.approx([expected, n], rel=1e-4)


class Recorder:
    """A tokenizer that records its inputs."""

    def __init__(self, tokenizer):
        self.tokenizer, self.texts = tokenizer, []

    def __call__(self, text, **how):
        self.texts.append(text)
        return self.tokenizer(text, **how)

    def __getattr__(self, name):
        return getattr(self.tokenizer, name)


@pytest.mark.parametrize(
    "policy, prompt, text, joint",
    [
        (tiny.gpt2, "the cat", "sees", "the cat sees"),
        (tiny.gpt2, "the cat\n", "sees", "the cat\nsees"),
        (tiny.gpt2, "the cat", " sees", "the cat sees"),
        (tiny.gpt2, "", "sees", "sees"),
    ],
)
def test_the_text_that_a_decoder_reads(policy, prompt, text, joint, tmp_path):
    metric = perplexity(saved(policy(), tmp_path))
    recorder = Recorder(metric.likelihood.language_model.tokenizer)
    metric.likelihood.language_model.tokenizer = recorder
    metric.values([Prompt("0", prompt)], [text])
    assert recorder.texts == [joint]


def test_a_long_prompt_loses_its_beginning(tmp_path):
    policy = tiny.gpt2()
    metric = perplexity(saved(policy, tmp_path))
    positions = policy.model.config.max_position_embeddings
    long = " ".join(["red"] * 300 + ["blue", "bird"])
    ids = policy.tokenizer(f"{long} sees a dog")["input_ids"]
    expected, n = direct(policy, ids[-positions:-3], ids[-3:])
    (row,) = metric.columns([Prompt("0", long)], ["sees a dog"])
    assert row["perplexity/nll_and_tokens"] == pytest.approx([expected, n], rel=1e-4)
    # and the end of a response that is too long
    (row,) = metric.columns([Prompt("0", "the")], [" ".join(["dog"] * 400)])
    assert row["perplexity/nll_and_tokens"][1] == positions - 1


def test_autocast_changes_nothing(tmp_path):
    metric = perplexity(saved(tiny.gpt2(), tmp_path))
    prompts, texts = [Prompt("0", "the red cat")], ["sees a blue dog"]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = metric.values(prompts, texts)
    assert inside == metric.values(prompts, texts)


def test_its_key_and_its_model(tmp_path):
    metric = perplexity(saved(tiny.gpt2(), tmp_path / "m"), key="gpt2_perplexity")
    assert set(metric.columns([Prompt("0", "a")], ["cat"])[0]) == {
        "gpt2_perplexity",
        "gpt2_perplexity/nll_and_tokens",
    }
    assert not metric.likelihood.language_model.training
    assert not any(p.requires_grad for p in metric.likelihood.language_model.parameters())
    with pytest.raises(UserError, match="no language model could be loaded from `.*missing`"):
        perplexity(str(tmp_path / "missing"))
