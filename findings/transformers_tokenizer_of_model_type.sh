#!/usr/bin/env bash
# Expected: AutoTokenizer gives the ids of the tokenizer.json in the folder.
# Happens:  For the model type qwen2 it keeps only the vocabulary and merges of the file, and splits
#           texts by the rules of the published Qwen2 models, which cut numbers into digits. No
#           message tells it.
# Seen:     transformers 5.23.0, tokenizers 0.23.3, 2026-11-29.
# Here:     Both are compared when a tokenizer is loaded, and the file decides
#           (fgrlhf/models/tokenizer_file.py).
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check \
    "transformers==5.23.0" "tokenizers==0.23.3"

venv/bin/python - <<'PYTHON'
import sys
from importlib.metadata import version
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, Qwen2Config

print(f"transformers {version('transformers')}, tokenizers {version('tokenizers')}")
TEXT = "room 1024"
own = Tokenizer(models.BPE())
own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # keeps numbers whole
own.decoder = decoders.ByteLevel()
trainer = trainers.BpeTrainer(
    vocab_size=300,
    special_tokens=["<|endoftext|>"],
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
)
own.train_from_iterator([TEXT] * 5, trainer)
Path("model").mkdir()
own.save("model/tokenizer.json")
Qwen2Config().save_pretrained("model")
loaded = AutoTokenizer.from_pretrained("model")
in_file = own.encode(TEXT)
ids = loaded(TEXT)["input_ids"]
print(f"tokenizer.json: {in_file.tokens} {in_file.ids}")
print(f"{type(loaded).__name__}: {loaded.convert_ids_to_tokens(ids)} {ids}")
if loaded.decode(ids) != TEXT:
    sys.exit("changed: the ids of AutoTokenizer are of another text")
if ids == in_file.ids:
    sys.exit("changed: AutoTokenizer gives the ids of tokenizer.json")
PYTHON
