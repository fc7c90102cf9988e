#!/usr/bin/env bash
# Expected: A generation_config.json that is no JSON, such as one cut by a full disk, stops the load.
# Happens:  It is ignored without a message: the end tokens are those of config.json, and generation
#           goes on behind the end that the file named.
# Seen:     transformers 5.23.0, torch 2.13.0, 2026-11-29.
# Here:     Such a file is an error that names it (fgrlhf/models/loading.py).
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check \
    "transformers==5.23.0" "torch==2.13.0"

venv/bin/python -W ignore - <<'PYTHON'
import sys
from importlib.metadata import version
from pathlib import Path

from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

logging.disable_progress_bar()
print(f"transformers {version('transformers')}")
config = LlamaConfig(
    vocab_size=32,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=2,
    eos_token_id=2,
)
model = LlamaForCausalLM(config)
model.generation_config.eos_token_id = [2, 9]
model.save_pretrained("model")
path = Path("model/generation_config.json")
whole = path.read_text()
for name, text, expected in (("whole", whole, [2, 9]), ("half", whole[: len(whole) // 2], 2)):
    path.write_text(text)
    end = AutoModelForCausalLM.from_pretrained("model").generation_config.eos_token_id
    print(f"{name} generation_config.json: end token {end}")
    if end != expected:
        sys.exit(f"changed: with the {name} file the end token is {end}, not {expected}")
PYTHON
