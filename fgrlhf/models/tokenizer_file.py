"""A loaded tokenizer gives the ids of its tokenizer.json.

For some model types (Qwen2, Qwen3.5), transformers keeps only the vocabulary of tokenizer.json, and
splits texts as the published models of that type do. A network with another tokenizer would
silently read other ids than those that it was trained on, and than other programs give it. So both
are compared, and the file decides.
"""

import json
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast
from transformers.utils.hub import cached_file

from fgrlhf.base.errors import shorten
from fgrlhf.base.shared_messages import print_once

FILE = "tokenizer.json"
# Settings of tokenizer_config.json that change ids on purpose: of the first word, of all letters.
AT_START = ("add_prefix_space", "legacy")
OF_LETTERS = ("do_lower_case", "strip_accents", "keep_accents", "remove_space")
# None of these texts changes when it is written in small letters without accents.
PLAIN_TEXTS = (
    "a red cat sees 12 dogs, and 1234.5 birds; isn't it so?",
    "def f(x_1, y): return x_1[0] != y['key'] # don't",
    "a 東京は大きいです。 我们明天去北京!",
    "a москва зимою 2024 года",
    "a سلام دنيا 🙂🙂 https://a.example/b?c=1&d=2",
)
OTHER_TEXTS = (
    "The Größe of CAFÉS: naïve Ωμέγα, İstanbul. We'LL see",
    "a नमस्ते दुनिया ภาษาไทย 한국어",
    " two  blanks\n\n\tand lines \n  of code(  )  ",
)
SAMPLED_TOKENS = 512  # of the vocabulary, which has words that the texts above lack
TOKENS_PER_TEXT = 8


def follow_its_file(path: str | Path, tokenizer: Any) -> Any:
    """The tokenizer of this folder or hub name if it gives the ids of its tokenizer.json.

    Otherwise it is the one that tokenizer.json describes, with the special tokens and the chat
    template of `tokenizer`, and a note says so. Settings of tokenizer_config.json that change ids,
    such as `add_prefix_space`, stay in force. A tokenizer without the file is returned as it is.

    Raises:
      ValueError: the ids differ, and the tokenizer of the file would lack special tokens that
        `tokenizer` puts around texts.
    """
    if not tokenizer.is_fast or type(tokenizer) is PreTrainedTokenizerFast:
        return tokenizer  # the latter's steps are those of the file
    file = _cached(path, FILE)
    if file is None:
        return tokenizer
    described = Tokenizer.from_file(file)
    described.no_padding()
    described.no_truncation()
    text = _first_difference(described, tokenizer, _settings(path))
    if text is None:
        return tokenizer
    own = _of_file(path, tokenizer, described)
    kind = type(tokenizer).__name__
    shown = shorten(repr(text), 60)
    if _around(own) != _around(tokenizer) or _first_difference(described, own, {}) is not None:
        raise ValueError(
            f"transformers loads its tokenizer as {kind}, which reads {shown} as other ids than"
            f" {FILE} does, and puts special tokens around a text that {FILE} lacks. The network"
            " may not have been trained on either: correct `tokenizer_class` in"
            " tokenizer_config.json, or save the tokenizer of the training into this folder."
        )
    _note(str(path), kind, shown)
    return own


def take_template_of_processor(path: str | Path, tokenizer: Any) -> None:
    """Give a tokenizer without a chat template the one of chat_template.json, if there is one.

    transformers 4 saved the template of a model with images into this file only, which a processor
    reads, but no tokenizer.
    """
    file = None if tokenizer.chat_template else _cached(path, "chat_template.json")
    if file is not None:
        tokenizer.chat_template = json.loads(Path(file).read_text(encoding="utf-8"))[
            "chat_template"
        ]


@cache  # a run loads a tokenizer several times
def _note(path: str, kind: str, text: str) -> None:
    print_once(
        f"note: the tokenizer of {shorten(path)} is the one of its {FILE}: {kind}, as which"
        f" transformers would load it, reads {text} as other ids. Other programs get these ids from"
        " `PreTrainedTokenizerFast.from_pretrained`"
    )


def _cached(path: str | Path, name: str) -> str | None:
    """A file of a folder, or of a hub name that was just loaded."""
    return cached_file(
        str(path),
        name,
        local_files_only=True,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )


def _settings(path: str | Path) -> dict[str, Any]:
    file = _cached(path, "tokenizer_config.json")
    return {} if file is None else json.loads(Path(file).read_text(encoding="utf-8"))


def _first_difference(described: Tokenizer, tokenizer: Any, settings: dict[str, Any]) -> str | None:
    """The first of some texts that both read as different ids, special tokens left out.

    Args:
      settings: of tokenizer_config.json. Those that change ids on purpose limit what is compared.
    """
    from_start = all(settings.get(name) is None for name in AT_START)
    all_letters = all(settings.get(name) is None for name in OF_LETTERS)
    texts = [*PLAIN_TEXTS, *_texts_of_vocabulary(described)]
    texts = [*texts, *OTHER_TEXTS] if all_letters else [t for t in texts if _plain(t) == t]
    encodings = tokenizer(
        texts, add_special_tokens=False, return_offsets_mapping=not from_start, verbose=False
    )
    for row, text in enumerate(texts):
        expected = described.encode(text, add_special_tokens=False)
        ids = encodings["input_ids"][row]
        if from_start:
            differs = ids != expected.ids
        else:
            offsets = encodings["offset_mapping"][row]
            differs = _behind_first_word(text, ids, offsets) != _behind_first_word(
                text, expected.ids, expected.offsets
            )
        if differs:
            return text
    return None


def _behind_first_word(text: str, ids: list[int], offsets: list[tuple[int, int]]) -> list[int]:
    end = text.index(text.split()[0]) + len(text.split()[0])
    return [token for token, (start, _) in zip(ids, offsets) if start >= end]


def _plain(text: str) -> str:
    """The text in small letters without accents."""
    parts = unicodedata.normalize("NFD", text.lower())
    return "".join(c for c in parts if unicodedata.category(c) != "Mn")


def _texts_of_vocabulary(described: Tokenizer) -> list[str]:
    """Words that a sample of the vocabulary spells, some in each text."""
    special = described.get_added_tokens_decoder()
    ordinary = [token for token in range(described.get_vocab_size()) if token not in special]
    sample = ordinary[:: max(1, len(ordinary) // SAMPLED_TOKENS)]
    spelled = [described.decode([token]).strip() for token in sample]
    words = [word for word in spelled if word and "\ufffd" not in word]  # no parts of a character
    groups = [words[i : i + TOKENS_PER_TEXT] for i in range(0, len(words), TOKENS_PER_TEXT)]
    return ["a " + " ".join(group) for group in groups]


def _of_file(path: str | Path, tokenizer: Any, described: Tokenizer) -> PreTrainedTokenizerFast:
    """The tokenizer that the file describes, with the special tokens of `tokenizer` that it has."""
    own = PreTrainedTokenizerFast.from_pretrained(path, trust_remote_code=False)
    lacking = {
        name: token
        for name, token in tokenizer.special_tokens_map.items()
        if isinstance(token, str)
        and getattr(own, name, None) is None
        and described.token_to_id(token) is not None
    }
    own.add_special_tokens(lacking)
    return own


def _around(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The special tokens that it puts before and behind a text."""
    special = set(tokenizer.all_special_ids)
    ids = tokenizer("a", verbose=False)["input_ids"]
    ordinary = [i for i, token in enumerate(ids) if token not in special]
    if not ordinary:
        return ids, []
    return ids[: ordinary[0]], ids[ordinary[-1] + 1 :]
