"""A loaded tokenizer gives the ids of its tokenizer.json, whatever transformers makes of it."""

import json
from pathlib import Path

import pytest
import tiny
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoTokenizer,
    BartTokenizer,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    XLNetTokenizer,
)

from fgrlhf.base.files import read_json, write_json
from fgrlhf.models.loading import load_tokenizer
from fgrlhf.models.tokenizer_file import OTHER_TEXTS, PLAIN_TEXTS
from fgrlhf.policy import load_policy

TEXTS = [*PLAIN_TEXTS, *OTHER_TEXTS, "the red cat in 2031 sees", " ", ""]


def save(tokenizer, folder: Path, model_type: str, **settings) -> Path:
    tokenizer.save_pretrained(folder)
    write_json(folder / "config.json", {"model_type": model_type})
    written = read_json(folder / "tokenizer_config.json")
    write_json(folder / "tokenizer_config.json", {**written, **settings})
    return folder


def ids_of_file(folder: Path) -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]


def ids_of(tokenizer) -> list[list[int]]:
    return tokenizer(TEXTS, add_special_tokens=False)["input_ids"]


def byte_level_with_numbers() -> PreTrainedTokenizerFast:
    """A byte-level BPE with tokens for whole numbers, which Qwen's would split into digits."""
    model = Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=tiny.SPECIALS, initial_alphabet=alphabet
    )
    model.train_from_iterator(["in 2031 and 2031, 2031 times"] * 9, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=model, pad_token="<pad>", eos_token="</s>", chat_template=tiny.TEMPLATE
    )


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3_5_moe_text", "gpt2", "llama"])
@pytest.mark.parametrize("kind", ["word", "unigram", "bpe", "numbers"])
def test_the_file_decides(kind, model_type, tmp_path, capsys):
    tokenizer = byte_level_with_numbers() if kind == "numbers" else tiny.fresh(tiny.tokenizer(kind))
    folder = save(tokenizer, tmp_path / "start", model_type)
    loaded = load_tokenizer(folder)
    assert ids_of(loaded) == ids_of_file(folder) == ids_of(tokenizer)
    assert loaded.special_tokens_map == tokenizer.special_tokens_map
    assert loaded.chat_template == tokenizer.chat_template
    differs = ids_of(AutoTokenizer.from_pretrained(folder)) != ids_of(loaded)
    assert differs == (model_type.startswith("qwen") and kind != "bpe")
    load_tokenizer(folder)
    note = capsys.readouterr().err
    assert note.count("is the one of its tokenizer.json: Qwen") == differs

    saved = save(loaded, tmp_path / "saved", model_type)
    assert ids_of(load_tokenizer(saved)) == ids_of(loaded)


def test_a_qwen2_network_with_another_tokenizer_is_a_policy(tmp_path):
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tiny.tokenizer()),
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=2,
            eos_token_id=1,
        )
    )
    model.save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    policy = load_policy(tmp_path)
    ids, _ = policy.encode(["the red cat"])
    assert ids.tolist() == [tiny.tokenizer()("the red cat")["input_ids"]]
    policy.save(tmp_path / "saved")
    ids, _ = load_policy(tmp_path / "saved").encode(["the red cat"])
    assert ids.tolist() == [tiny.tokenizer()("the red cat")["input_ids"]]


def test_special_tokens_of_the_class_are_kept(tmp_path):
    """Published folders leave out what the class adds by itself."""
    tokenizer = byte_level_with_numbers()
    tokenizer.add_special_tokens({"eos_token": "<|endoftext|>"})
    folder = save(tokenizer, tmp_path, "qwen2")
    settings = read_json(folder / "tokenizer_config.json")
    del settings["eos_token"]
    write_json(folder / "tokenizer_config.json", settings)
    loaded = load_tokenizer(folder)
    assert type(loaded) is PreTrainedTokenizerFast
    assert loaded.eos_token == "<|endoftext|>"
    assert loaded.eos_token_id == tokenizer.eos_token_id


def parts(kind: str) -> dict:
    """Vocabulary and merges of a tokenizer, for the classes of transformers."""
    model = json.loads(tiny.tokenizer(kind).backend_tokenizer.to_str())["model"]
    if kind == "unigram":
        return {"vocab": [tuple(entry) for entry in model["vocab"]]}
    return {"vocab": model["vocab"], "merges": [tuple(merge) for merge in model["merges"]]}


SETTINGS = {  # class: (kind of vocabulary, model type, a setting that changes ids on purpose)
    BartTokenizer: ("bpe", "bart", {"add_prefix_space": True}),
    XLNetTokenizer: ("unigram", "xlnet", {"do_lower_case": True}),
}


@pytest.mark.parametrize("tokenizer_class", SETTINGS)
def test_settings_that_change_ids_stay_in_force(tokenizer_class, tmp_path, capsys):
    kind, model_type, settings = SETTINGS[tokenizer_class]
    folder = save(tokenizer_class(**parts(kind)), tmp_path, model_type, **settings)
    loaded = load_tokenizer(folder)
    assert type(loaded) is tokenizer_class
    assert ids_of(loaded) == ids_of(AutoTokenizer.from_pretrained(folder)) != ids_of_file(folder)
    assert "tokenizer.json" not in capsys.readouterr().err


@pytest.mark.parametrize("settings", [{"add_prefix_space": False}, {"do_lower_case": False}])
def test_a_setting_excuses_no_other_difference(settings, tmp_path):
    folder = save(byte_level_with_numbers(), tmp_path, "qwen2", **settings)
    assert ids_of(load_tokenizer(folder)) == ids_of_file(folder)


def test_a_file_without_the_special_tokens_of_the_class_is_refused(tmp_path):
    folder = save(tiny.fresh(tiny.tokenizer()), tmp_path, "siglip2")
    with pytest.raises(ValueError, match="Siglip2Tokenizer, which reads .* as other ids .*: corr"):
        load_tokenizer(folder)
