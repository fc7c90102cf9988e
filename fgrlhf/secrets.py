"""Secrets in configs, command lines and messages are masked."""

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
    ]
)
_SHORTEST_SECRET = 6  # characters; shorter values are ordinary words and numbers
_ASSIGNMENT = re.compile(r"([\w.\-]+)=(?!\.\.\.)(\S+)")  # `key=...` in a message is a way out


def looks_secret(name: str) -> bool:
    """Whether a variable or key of this name holds a secret: `HF_TOKEN`, `logging.wandb_api_key`,
    but not `max_tokens`.
    """
    last = str(name).rpartition(".")[2]
    return last not in _NO_SECRETS and not _SECRET_WORDS.isdisjoint(
        re.split(r"[_\-]", last.lower())
    )


def mask_secrets(text: str) -> str:
    """`text` with `***` for the value of every secret environment variable, and for what secret
    keys are set to (`key=value`).
    """
    values = {
        value
        for name, value in os.environ.items()
        if looks_secret(name) and len(value) >= _SHORTEST_SECRET
    }
    for value in sorted(values, key=len, reverse=True):  # a secret may be part of another
        text = text.replace(value, MASK)
    return _ASSIGNMENT.sub(
        lambda match: f"{match[1]}={MASK}" if looks_secret(match[1]) else match[0], text
    )


def mask_tree(value: Any, key: str = "") -> Any:
    """`mask_secrets` on every string of a nested dict or list, such as a config. The value of a
    secret key is masked whole.
    """
    if isinstance(value, dict):
        return {name: mask_tree(item, str(name)) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [mask_tree(item, key) for item in value]
    if not isinstance(value, str):
        return value
    return MASK if looks_secret(key) and value else mask_secrets(value)
