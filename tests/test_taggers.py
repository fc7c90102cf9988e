"""Token classifiers that were trained without marks, against their own computation."""

import pytest
import tiny
import torch
from transformers import (
    AutoModelForTokenClassification,
    AutoTokenizer,
    BertConfig,
    BertForTokenClassification,
    DataCollatorForTokenClassification,
)

from fgrlhf.base.errors import UserError
from fgrlhf.reward import SegmentClassifierReward
from fgrlhf.reward_models.loading import load_reward_model, load_segment_classifier
from fgrlhf.reward_models.prefix import text_prefix
from fgrlhf.text_types import Prompt

PROMPT = Prompt("0", "the red cat")
TEXT = "It sees a dog. One red bird."


def saved(folder, model, tokenizer):
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def tagger(folder, names=("O", "B-WRONG", "I-WRONG")):
    """A random BERT with labels of tokens."""
    torch.manual_seed(0)
    tokenizer = tiny.tokenizer("bpe")
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        pad_token_id=0,
        id2label=dict(enumerate(names)),
        label2id={name: i for i, name in enumerate(names)},
    )
    model = BertForTokenClassification(config)
    torch.nn.init.normal_(model.classifier.weight, std=2.0)
    return saved(folder, model, tokenizer)


@torch.no_grad()
def probabilities(folder, ids):
    model = AutoModelForTokenClassification.from_pretrained(folder).eval()
    return model(torch.tensor([ids])).logits.softmax(-1)[0]


def test_a_segment_has_the_largest_error_probability_of_its_tokens(tmp_path):
    folder = tagger(tmp_path)
    scorer = load_reward_model(folder, text_prefix, level="sentence", reads="tokens")
    labels = scorer.score([PROMPT, PROMPT], [TEXT, "a dog."])
    encoded = AutoTokenizer.from_pretrained(folder)(TEXT, return_offsets_mapping=True)
    p_TC = probabilities(folder, encoded["input_ids"])
    expected = [0.0, 0.0]
    for (start, _), row in zip(encoded["offset_mapping"], p_TC):
        segment = int(start >= TEXT.index(" One"))
        expected[segment] = max(expected[segment], 1 - row[0].item())
    assert labels[0].labels == ("WRONG", "O") and labels[0].judged == (True, True)
    assert labels[0].probabilities_SC[:, 0].tolist() == pytest.approx(expected, abs=1e-5)
    reward = SegmentClassifierReward(scorer, {"error": -1.0, "ok": 0.5})
    values = [score.value for score in reward.segment_scores([PROMPT], [TEXT])[0]]
    assert values == [-1.0 if p > 0.5 else 0.5 for p in expected]


def test_a_tagger_reads_the_prompt_as_a_first_text(tmp_path):
    folder = tagger(tmp_path)
    facts = {"level": "whole", "reads": "tokens", "with_context": True}
    (labels,) = load_reward_model(folder, text_prefix, **facts).score([PROMPT], ["a dog"])
    encoded = AutoTokenizer.from_pretrained(folder)(PROMPT.text, "a dog")
    p_TC = probabilities(folder, encoded["input_ids"])
    inside = [part == 1 for part in encoded.sequence_ids()]
    expected = (1 - p_TC[inside, 0]).max().item()
    assert labels.probabilities_SC[0, 0].item() == pytest.approx(expected, abs=1e-5)


def test_one_of_several_kinds_of_errors_can_be_named(tmp_path):
    folder = tagger(tmp_path, ("O", "B-BIAS", "B-TONE", "I-TONE"))
    facts = {"level": "whole", "reads": "tokens"}
    (every,) = load_reward_model(folder, text_prefix, **facts).score([PROMPT], ["a"])
    (tone,) = load_reward_model(folder, text_prefix, error_label="TONE", **facts).score(
        [PROMPT], ["a"]
    )
    p_TC = probabilities(folder, AutoTokenizer.from_pretrained(folder)("a")["input_ids"])
    assert every.labels == ("ERROR", "O") and tone.labels == ("TONE", "O")
    assert every.probabilities_SC[0, 0].item() == pytest.approx(1 - p_TC[0, 0].item(), abs=1e-5)
    assert tone.probabilities_SC[0, 0].item() == pytest.approx(p_TC[0, 2:].sum().item(), abs=1e-5)


def step_judge(folder):
    """A random decoder-only token classifier with two unnamed labels, as PRMTrainer saves it."""
    torch.manual_seed(0)
    policy = tiny.gpt2("bpe")
    policy.save(folder / "base")
    model = AutoModelForTokenClassification.from_pretrained(folder / "base", num_labels=2)
    torch.nn.init.normal_(model.classifier.weight, std=2.0)
    policy.tokenizer.bos_token = "</s>"
    return saved(folder / "judge", model, policy.tokenizer)


@pytest.mark.parametrize("level, separator", [("step", "\n"), ("step:;", ";")])
def test_steps_are_judged_at_their_separators(tmp_path, level, separator):
    folder = step_judge(tmp_path)
    steps = ["the red cat", "sees two dogs", "one bird"]
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def plain(text):
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    ids, ends = [tokenizer.bos_token_id, *plain(PROMPT.text)], []
    for step in steps:
        ids += plain(step) + plain(separator)
        ends.append(len(ids) - 1)
    expected = probabilities(folder, ids)[ends, 0].tolist()
    scorer = load_segment_classifier(folder, text_prefix, level=level)
    texts = [separator.join(steps), steps[0]]
    labels = scorer.score([PROMPT, PROMPT], texts)
    assert labels[0].labels == ("LABEL_0", "O")
    assert labels[0].probabilities_SC[:, 0].tolist() == pytest.approx(expected, abs=1e-5)
    assert labels[1].probabilities_SC[:, 0].tolist() == pytest.approx(expected[:1], abs=1e-5)


def trl_row(tokenizer, prompt, steps, right, separator):
    """Ids and labels of `PRMTrainer`: a label at the last token of each separator, no end token."""
    ids = [tokenizer.bos_token_id, *tokenizer(prompt, add_special_tokens=False)["input_ids"]]
    labels = [-100] * len(ids)
    for step, is_right in zip(steps, right, strict=True):
        step_ids = tokenizer(step, add_special_tokens=False)["input_ids"]
        step_ids += tokenizer(separator, add_special_tokens=False)["input_ids"]
        ids += step_ids
        labels += [-100] * (len(step_ids) - 1) + [int(is_right)]
    return {"input_ids": ids, "labels": labels}


def test_a_judge_that_transformers_trained_tells_right_from_wrong_steps(tmp_path):
    """Steps with `red` are wrong. The order of the labels is that of False and True."""
    torch.manual_seed(0)
    folder = step_judge(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForTokenClassification.from_pretrained(folder)
    steps = ["a red dog", "the blue cat sees", "red bird", "two dogs", "one bird and red"]
    rows = []
    for shift in range(5):
        order = steps[shift:] + steps[:shift]
        rows.append(trl_row(tokenizer, "the cat", order, ["red" not in s for s in order], "\n\n"))
    batch = DataCollatorForTokenClassification(tokenizer)(rows)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(80):
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
    judge = saved(tmp_path / "trained", model, tokenizer)
    scorer = load_segment_classifier(judge, text_prefix, level="step:\n\n")
    (labels,) = scorer.score([Prompt("0", "the cat")], ["\n\n".join(steps)])
    p_error = labels.probabilities_SC[:, 0]
    assert (p_error > 0.5).tolist() == [True, False, True, False, True]
    assert ((p_error - 0.5).abs() > 0.3).all()


def test_a_kind_that_is_not_known_is_named(tmp_path, capsys):
    folder = tagger(tmp_path / "a")
    load_reward_model(folder, text_prefix, level="sentence", error_label="B-WRONG")
    assert "set reads: tokens" in capsys.readouterr().err
    with pytest.raises(UserError, match="name the one that marks an error"):
        load_reward_model(
            tagger(tmp_path / "b", ("good", "bad")), text_prefix, level="word", reads="tokens"
        )
    judge = step_judge(tmp_path)
    with pytest.raises(UserError, match="reads from left to right: set reads=steps"):
        load_reward_model(judge, text_prefix, level="sentence")
    with pytest.raises(UserError, match="the level must be step"):
        load_reward_model(judge, text_prefix, level="sentence", reads="steps")
    with pytest.raises(UserError, match="with_context would be ignored"):
        load_reward_model(judge, text_prefix, level="step", with_context=True)
