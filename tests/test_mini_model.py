"""The mini world's tokenizer is lossless, and its start model learns to copy in seconds."""

from itertools import islice, product

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, write_json
from fgrlhf.policy import load_policy
from tasks.qa_feedback.data.language import CHINESE, TOY
from tasks.qa_feedback.data.mini_model import (
    MiniModelSettings,
    make_model,
    make_tokenizer,
    texts_of,
    write_model,
)
from tasks.qa_feedback.data.mini_world import make_row

ROWS = [make_row(0, split, i) for split in ("train", "pretrain", "sft") for i in range(150)]
SYLLABLES = "ka lo mi nu pe ra so ti vu wo xa ye zo qui bre"


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer(ROWS)


def test_texts_of_the_world_come_back_exactly(tokenizer):
    for text in texts_of(ROWS):
        ids = tokenizer(text).input_ids
        assert ids[-1] == tokenizer.eos_token_id and tokenizer.unk_token_id not in ids
        assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_every_value_is_one_token(tokenizer):
    vocabulary = set(tokenizer.get_vocab())
    values = [
        value
        for value in TOY.pools["persons"].names + TOY.pools["places"].names
        if f"▁{value}" in vocabulary
    ]
    assert len(values) > 250 and all(len(tokenizer(value).input_ids) == 2 for value in values)
    assert len(tokenizer) < 650


def test_words_without_spaces_between_them_are_tokens():
    rows = [
        make_row(0, split, i, language=CHINESE) for split in ("train", "sft") for i in range(50)
    ]
    tokenizer = make_tokenizer(rows, words=CHINESE.words)
    for text in texts_of(rows):
        ids = tokenizer(text).input_ids
        assert tokenizer.unk_token_id not in ids
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
    tokens = tokenizer.tokenize("这部音乐剧的创作者是" + CHINESE.pools["persons"].names[0] + "；")
    assert tokens[:5] == ["▁这部", "音乐剧", "的", "创作者", "是"] and len(tokens) == 7


def many_words():
    """Rows of 3,000 different words."""
    words = iter(["".join(parts) for parts in product(SYLLABLES.split(), repeat=3)][:3000])
    rows = []
    for _ in range(30):
        text = " ".join(islice(words, 90))
        answer = " ".join(islice(words, 10)) + "."
        rows.append({"text": text, "answer": [answer]})
    return rows


def test_many_words_get_unigram_pieces(qa_feedback, source):
    rows = read_json(qa_feedback / "dev.json") if source == "published" else many_words()
    tokenizer = make_tokenizer(rows)
    assert (2000 if source == "published" else 20) < len(tokenizer) <= 4000
    text = " ".join(rows[0]["answer"][0].split())
    ids = tokenizer(text).input_ids
    assert tokenizer.unk_token_id not in ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_two_more_heads_look_back(tokenizer):
    model = make_model(tokenizer)
    bias = model.decoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight
    assert (bias > 0).sum(0).tolist() == [1] * 7 + [0]
    assert 0.6e6 < model.num_parameters() < 0.8e6


def test_a_written_folder_loads_as_a_policy(tmp_path):
    write_json(tmp_path / "train.json", ROWS[:20])
    write_model(MiniModelSettings(data_dir=str(tmp_path), output_dir=str(tmp_path / "model")))
    assert AutoTokenizer.from_pretrained(tmp_path / "model")("The film").input_ids[-1] == 1
    ids, _ = load_policy(tmp_path / "model").encode([ROWS[0]["text"]])
    assert ids.shape[0] == 1


def test_a_folder_without_rows_is_a_user_error(tmp_path):
    with pytest.raises(UserError, match="no train.json"):
        write_model(MiniModelSettings(data_dir=str(tmp_path), output_dir=str(tmp_path / "model")))


@pytest.mark.slow
def test_copying_starts_within_seconds(tokenizer):
    """After 100 steps of 12 recitals, nine of ten values on held-out pages are right.

    With T5's own initialisation, one of twenty is right.
    """
    vocabulary = tokenizer.get_vocab()
    values = torch.tensor(
        [
            vocabulary[f"▁{v}"]
            for v in TOY.pools["persons"].names + TOY.pools["places"].names
            if f"▁{v}" in vocabulary
        ]
    )

    def batch(indices):
        rows = [make_row(0, "pretrain", i) for i in indices]
        prompts = tokenizer([row["text"] for row in rows], padding=True, return_tensors="pt")
        answers = tokenizer([row["answer"][0] for row in rows], padding=True, return_tensors="pt")
        return {
            "input_ids": prompts.input_ids,
            "attention_mask": prompts.attention_mask,
            "labels": answers.input_ids.masked_fill(answers.input_ids == 0, -100),
        }

    model = make_model(tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.98), weight_decay=0.0)
    for step in range(100):
        optimizer.zero_grad()
        model(**batch(range(12 * step, 12 * step + 12))).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    held_out = batch(range(10_000, 10_040))
    with torch.no_grad():
        predicted = model(**held_out).logits.argmax(-1)
    is_value = torch.isin(held_out["labels"], values)
    assert (predicted == held_out["labels"])[is_value].float().mean() > 0.9


def test_the_written_model_is_a_function_of_the_seed_in_every_tensor(tmp_path):
    """The demo's start model must not depend on the state of the global generator."""
    write_json(tmp_path / "train.json", [make_row(0, "train", n) for n in range(4)])
    weights = {}
    for name, seed, global_seed in (("a", 0, 1), ("b", 0, 2), ("c", 1, 1)):
        torch.manual_seed(global_seed)
        write_model(
            MiniModelSettings(data_dir=str(tmp_path), output_dir=str(tmp_path / name), seed=seed)
        )
        weights[name] = load_file(str(tmp_path / name / "model.safetensors"))
    assert all(torch.equal(weights["a"][name], weights["b"][name]) for name in weights["a"])
    name = "decoder.block.0.layer.2.DenseReluDense.wi.weight"
    assert not torch.equal(weights["a"][name], weights["c"][name])
