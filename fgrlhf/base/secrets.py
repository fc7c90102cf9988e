"""Masks secrets in configs, command lines and messages."""

import os
import re
from typing import Any

MASK = "***"
_SECRET_WORDS = frozenset(
    [
        "token",
        "key",
        "apikey",
        "secret",
        "password",
        "passwd",
        "passphrase",
        "credential",
        "credentials",
    ]
)
_NO_SECRETS = frozenset(
    [
        "key",
        "eos_token",
        "bos_token",
        "pad_token",
        "cls_token",
        "sep_token",
        "mask_token",
        "unk_token",
        "token_from",  # where a token is, not the token
    ]
)
_SHORTEST_SECRET = 6  # characters; shorter values are ordinary words and numbers
# `key=`, but not `key=...`, which messages use as a hint
_KEY = re.compile(r"(?<![\w.\-])([\w.\-]+)=(?!\.\.\.)")
# with spaces if it is in quotes
_VALUE = re.compile(r""""(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|\S+""")


def looks_secret(name: str) -> bool:
    """Whether the name of a variable or key indicates a secret.

    `HF_TOKEN` and `logging.wandb_api_key` do, `max_tokens` does not.
    """
    last = str(name).rpartition(".")[2]
    words = re.split(r"[_\-]", last.lower())
    return last not in _NO_SECRETS and not _SECRET_WORDS.isdisjoint(words)


def mask_secrets(text: str) -> str:
    """Replace the values of secret environment variables and of secret `key=value` pairs by ***."""
    values = set()
    for name, value in os.environ.items():
        if looks_secret(name) and len(value) >= _SHORTEST_SECRET:
            values.add(value)
    for value in sorted(values, key=len, reverse=True):  # a secret may be part of another
        text = text.replace(value, MASK)
    return _mask_assignments(text)


def _mask_assignments(text: str) -> str:
    parts = []
    done = 0  # the text before this place is in `parts`
    for key in _KEY.finditer(text):
        value = _VALUE.match(text, key.end())
        if key.start() < done or value is None or not looks_secret(key[1]):
            continue
        parts += [text[done : key.end()], MASK]
        done = value.end()
    return "".join([*parts, text[done:]])


def mask_tree(value: Any, key: str = "") -> Any:
    """Apply `mask_secrets` to every string of a nested dict or list, such as a config.

    The value of a secret key is masked completely.
    """
    if isinstance(value, dict):
        return {name: mask_tree(item, str(name)) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [mask_tree(item, key) for item in value]
    if not isinstance(value, str):
        return value
    return MASK if looks_secret(key) and value else mask_secrets(value)
