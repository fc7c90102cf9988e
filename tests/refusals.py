"""Settings that are refused, with parts of the messages: tables of `fixtures/refusals.json`."""

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "fixtures" / "refusals.json"


def refusals(topic: str) -> list[list[Any]]:
    """The cases of a topic, such as `algorithms`."""
    return json.loads(FILE.read_text(encoding="utf-8"))[topic]
