#!/usr/bin/env bash
# Expected: `generate` of an encoder-decoder starts with `decoder_start_token_id` of config.json, as
#           its training on `labels` does.
# Happens:  If there is a generation_config.json, config.json is not read: without a start token in
#           it, `generate` starts with its `bos_token_id`, silently. Training still starts with the
#           token of config.json.
# Seen:     transformers 5.23.0, torch 2.13.0, 2026-11-29.
# Here:     A policy starts as `generate` does, in sampling and in training, and is saved with the
#           token in both files (`name_decoder_start`, fgrlhf/models/loading.py).
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check \
    "transformers==5.23.0" "torch==2.13.0"

venv/bin/python - <<'PYTHON'
import json
import sys
from importlib.metadata import version
from pathlib import Path

import torch
from transformers import AutoModelForSeq2SeqLM, BartConfig, BartForConditionalGeneration

START, BEGINNING = 2, 3
print(f"transformers {version('transformers')}, torch {version('torch')}")
config = BartConfig(
    vocab_size=16,
    d_model=16,
    encoder_layers=1,
    decoder_layers=1,
    encoder_attention_heads=2,
    decoder_attention_heads=2,
    encoder_ffn_dim=16,
    decoder_ffn_dim=16,
    pad_token_id=0,
    eos_token_id=1,
    decoder_start_token_id=START,
    bos_token_id=BEGINNING,
)
BartForConditionalGeneration(config).save_pretrained("model")
Path("model/generation_config.json").write_text(
    json.dumps({"bos_token_id": BEGINNING, "eos_token_id": 1, "pad_token_id": 0})
)
model = AutoModelForSeq2SeqLM.from_pretrained("model").eval()
read = []
model.get_decoder().register_forward_pre_hook(
    lambda _, arguments, named: read.append(named["input_ids"][0, 0].item()), with_kwargs=True
)
prompt = torch.tensor([[5, 6, 7]])
with torch.no_grad():
    model(input_ids=prompt, labels=torch.tensor([[8, 9, 1]]))
    generated = model.generate(prompt, max_new_tokens=2)[0, 0].item()
print(f"config.json names {model.config.decoder_start_token_id}, its beginning is {BEGINNING}")
print(f"training starts with {read[0]}, generate with {read[1]} (first of its output: {generated})")
if read[0] != START:
    sys.exit("changed: training does not start with the token of config.json")
if generated != BEGINNING or read[1] != BEGINNING:
    sys.exit("changed: generate does not start with the bos_token_id of generation_config.json")
PYTHON
