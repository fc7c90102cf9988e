#!/usr/bin/env bash
# Expected: AutoTokenizer reads the chat template of a model's folder, whichever of the library's own
#           files has it.
# Happens:  In chat_template.json, where transformers 4 stored the template of a model that reads
#           images too, the tokenizer does not see it: its chat_template is None, and
#           apply_chat_template refuses. In chat_template.jinja the same template is read. Whoever
#           trains such a model on texts alone loads the tokenizer.
# Seen:     transformers 5.23.0, tokenizers 0.23.3, 2026-11-30, Linux.
# Here:     The file is read where the tokenizer has no template
#           (fgrlhf/models/tokenizer_file.py).
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check \
    "transformers==5.23.0" "tokenizers==0.23.3" "jinja2==3.1.6"

venv/bin/python - <<'PYTHON'
import json
import sys
from importlib.metadata import version
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoTokenizer, PreTrainedTokenizerFast

print(f"transformers {version('transformers')}, tokenizers {version('tokenizers')}")
TEMPLATE = "{% for turn in messages %}{{ turn.role }}: {{ turn.content }}\n{% endfor %}"
words = Tokenizer(WordLevel({"[UNK]": 0, "yes": 1}, unk_token="[UNK]"))
plain = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]")
found = {}
for name, text in (
    ("chat_template.json", json.dumps({"chat_template": TEMPLATE})),
    ("chat_template.jinja", TEMPLATE),
):
    model = Path(name.replace(".", "_"))
    plain.save_pretrained(model)
    (model / name).write_text(text)
    tokenizer = AutoTokenizer.from_pretrained(model)
    found[name] = tokenizer.chat_template is not None
    try:
        turns = [{"role": "user", "content": "yes"}]
        shown = repr(tokenizer.apply_chat_template(turns, tokenize=False))
    except ValueError as error:
        shown = f"ValueError: {str(error)[:60]}..."
    print(f"{name}: {shown}")
if found != {"chat_template.json": False, "chat_template.jinja": True}:
    sys.exit(f"changed: {found}")
PYTHON
