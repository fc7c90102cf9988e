"""Reward models as classifiers of transformers (reward_modeling/export.py)."""

import pytest
import rm_helpers as rm
import tiny
import torch
from test_run_pref_rm import config
from tokenizers import processors
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    GPT2ForSequenceClassification,
    GraniteConfig,
    GraniteForCausalLM,
    ModernBertDecoderConfig,
    ModernBertDecoderForCausalLM,
    pipeline,
)

from fgrlhf.base.errors import UserError
from fgrlhf.reward_models.loading import load_sequence_scorer
from fgrlhf.reward_models.prefix import text_prefix
from fgrlhf.reward_models.spec import RewardModelSpec
from fgrlhf.text_types import Prompt
from reward_modeling import command
from reward_modeling.config import RMModelConfig
from reward_modeling.network import load_network
from reward_modeling.run_pref_rm import train

ROWS = [  # prompt, answer: of unequal length
    ("the red cat", "sees"),
    ("a dog", "and one blue bird likes the green cat , and two . three !"),
    ("question: the bird", "a dog sees the bird"),
]


def reward_model(folder, start, line_breaks=False, kind="sequence", **changes) -> str:
    """A random reward model with large scores, as its training saves it."""
    shape = changes.pop("shape", "causal")
    section = RMModelConfig(ckpt=str(start), shape=shape, max_input_len=200, **changes)
    facts = {"mean": 1.5, "std": 2.0}
    if kind == "segment":
        labels = dict(enumerate(rm.LABELS))
        network, tokenizer = load_network(section, kind, labels)
        facts = {"labels": rm.LABELS, "error_label": "NF-ERR", "ok_label": "O"}
    else:
        network, tokenizer = load_network(section, kind)
    if shape == "causal":
        torch.nn.init.normal_(network.head.weight, generator=torch.Generator().manual_seed(0))
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    level = "sequence" if kind == "sequence" else "sentence"
    RewardModelSpec(kind, shape, level, True, 200, line_breaks=line_breaks, **facts).save(folder)
    return str(folder)


def decoder(folder, name, tokenizer=None):
    policy = tiny.decoder(name, "bpe")
    if tokenizer is not None:
        policy.tokenizer = tokenizer
    policy.save(folder)
    return folder


def exported(model: str, out) -> str:
    command.main(["export", model, f"output_dir={out}"])
    return str(out)


def scores_of_transformers(folder: str, texts: list[str], **options) -> torch.Tensor:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    batch = tokenizer(texts, padding=True, return_tensors="pt", **options)
    assert (batch["attention_mask"] == 0).any()
    with torch.no_grad():
        return model(**batch).logits[:, 0]


def check_scores(model: str, folder: str, rows=ROWS) -> None:
    scorer = load_sequence_scorer(model, text_prefix)
    prompts = [Prompt(str(i), prompt) for i, (prompt, _) in enumerate(rows)]
    expected = scorer.score(prompts, [answer for _, answer in rows])
    assert expected.std() > 0.01
    texts = [f"{prompt} {answer}" for prompt, answer in rows]
    torch.testing.assert_close(
        scores_of_transformers(folder, texts), expected, rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("name", ["gpt2", "llama"])  # absolute and relative positions
def test_transformers_gives_equal_scores_of_padded_texts(tmp_path, name):
    start = rm.start(tmp_path, "causal", "bpe") if name == "gpt2" else decoder(tmp_path / "s", name)
    model = reward_model(tmp_path / "rm", start)
    folder = exported(model, tmp_path / "out")
    check_scores(model, folder)
    text = " ".join(ROWS[1])
    [[result]] = pipeline("text-classification", folder, top_k=None)([text])
    # the score itself, not its sigmoid
    assert result["score"] == pytest.approx(float(scores_of_transformers(folder, [text, "a"])[0]))
    card = (tmp_path / "out" / "README.md").read_text()
    assert "its mean is 1.5 and its standard deviation 2" in card
    assert "`<pad>` (0)" in card and "at most 200 tokens" in card
    assert "add_special_tokens" not in card


def test_an_answer_keeps_its_line_breaks(tmp_path):
    start = rm.start(tmp_path, "causal", "bpe")
    rows = [("the red cat", "sees:\n\n    a dog\n  one"), ("a", "bird\nlikes")]
    model = reward_model(tmp_path / "rm", start, line_breaks=True)
    check_scores(model, exported(model, tmp_path / "out"), rows)
    assert "own line breaks" in (tmp_path / "out" / "README.md").read_text()


def test_a_tokenizer_that_begins_every_text(tmp_path):
    """And with a chat template, which the reward model was trained without."""
    tiny.chat().save(tmp_path / "start")
    model = reward_model(tmp_path / "rm", tmp_path / "start")
    folder = exported(model, tmp_path / "out")
    check_scores(model, folder)
    assert AutoTokenizer.from_pretrained(folder).chat_template is None
    texts = ["<s>" + " ".join(row) for row in ROWS]
    written = scores_of_transformers(folder, texts, add_special_tokens=False)
    torch.testing.assert_close(
        written, scores_of_transformers(folder, [" ".join(row) for row in ROWS])
    )
    assert "puts `<s>` before the text" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(tiny.DECODERS) - {"llama"}))
def test_other_families(tmp_path, name):
    model = reward_model(tmp_path / "rm", decoder(tmp_path / "start", name))
    check_scores(model, exported(model, tmp_path / "out"))


@pytest.mark.slow
def test_a_trained_model_of_the_top_layer(tmp_path):
    settings = config(tmp_path, "causal", model__train_top_layers=1, train__max_steps=4)
    train(settings)
    model = settings.logging.save_dir
    check_scores(model, exported(model, tmp_path / "out"))


# ---- refused -------------------------------------------------------------------------------------


def refused(model: str, tmp_path, match: str) -> None:
    with pytest.raises(UserError, match=match):
        exported(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_models_that_no_classifier_equals(tmp_path):
    causal = rm.start(tmp_path, "causal", "bpe")
    segment = reward_model(tmp_path / "segment", causal, kind="segment")
    refused(segment, tmp_path, "labels segments at their last tokens")
    featured = reward_model(tmp_path / "feature", causal, lm_logprob_feature=True)
    refused(featured, tmp_path, "model.lm_logprob_feature, which no classifier")
    both = reward_model(tmp_path / "both", rm.start(tmp_path, "seq2seq", "bpe"), shape="seq2seq")
    refused(both, tmp_path, "decoder reads the answer alone")
    encoder = reward_model(tmp_path / "en", rm.start(tmp_path, "encoder", "bpe"), shape="encoder")
    refused(encoder, tmp_path, "classifier of transformers already")
    refused(str(causal), tmp_path, "has no reward_model.json")


def small(config_class, model_class, folder, **changes):
    tokenizer = tiny.tokenizer("bpe")
    torch.manual_seed(0)
    config = config_class(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
        **changes,
    )
    model_class(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_families_without_a_classifier_or_with_another_head(tmp_path):
    granite = small(GraniteConfig, GraniteForCausalLM, tmp_path / "g", num_key_value_heads=2)
    refused(reward_model(tmp_path / "rm", granite), tmp_path, "no sequence classifier of the model")
    config = {"cls_token_id": 1, "sep_token_id": 1}
    bert = small(ModernBertDecoderConfig, ModernBertDecoderForCausalLM, tmp_path / "b", **config)
    refused(reward_model(tmp_path / "rm2", bert), tmp_path, "not one linear layer without a bias")


def test_a_tokenizer_that_ends_every_text(tmp_path):
    """The end token stands between prompt and answer, which no program writes in one text."""
    tokenizer = tiny.fresh(tiny.tokenizer("bpe"))
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    start = decoder(tmp_path / "start", "llama", tokenizer)
    refused(reward_model(tmp_path / "rm", start), tmp_path, "tokens of prompt and answer apart")


def test_a_classifier_with_other_scores_is_refused(tmp_path, monkeypatch):
    """As they would be if another release of transformers read another position."""
    model = reward_model(tmp_path / "rm", rm.start(tmp_path, "causal", "bpe"))

    def at_first_token(self, input_ids=None, attention_mask=None, **_):
        states = self.transformer(input_ids=input_ids, attention_mask=attention_mask)[0]
        return type("Output", (), {"logits": self.score(states)[:, 0]})

    monkeypatch.setattr(GPT2ForSequenceClassification, "forward", at_first_token)
    refused(model, tmp_path, "reads another position or another state")


def test_command_lines(tmp_path, capsys):
    with pytest.raises(UserError, match="the folder of the reward model is missing"):
        command.main(["export", f"output_dir={tmp_path}"])
    with pytest.raises(UserError, match="exists: remove it"):
        command.main(["export", "rm", f"output_dir={tmp_path}"])
    with pytest.raises(SystemExit):
        command.main(["export", "--help"])
    assert "the new folder" in capsys.readouterr().out
