"""The installed package has every file that programs read: `setup.py` names their endings."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_kind_of_file_is_packaged():
    setup = (ROOT / "setup.py").read_text()
    named = re.search(r"ENDINGS = (\[.*\])", setup)
    assert named is not None
    found = set()
    for package in ("fgrlhf", "interface_html", "tasks"):
        for path in (ROOT / package).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                found.add(path.suffix.removeprefix("."))
    assert found - {"py"} == set(json.loads(named[1]))
