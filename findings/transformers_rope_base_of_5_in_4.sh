#!/usr/bin/env bash
# Expected: transformers 4 computes with a Llama folder that transformers 5 saved what 5 computes, or
#           refuses it.
# Happens:  5 writes the base of the rotary embeddings into `rope_parameters` only, where 4.57 does
#           not look: it takes 10,000, without an error or a message about it.
# Seen:     transformers 5.23.0 and 4.57.6, torch 2.13.0, 2026-11-30.
# Here:     Saved policies have the earlier names `rope_theta` and `rope_scaling` too
#           (`name_as_before`, fgrlhf/models/saving.py).
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
for release in 5.23.0 4.57.6; do
    python3 -m venv "venv-$release"
    "venv-$release/bin/python" -m pip install --quiet --disable-pip-version-check \
        "transformers==$release" "torch==2.13.0" "numpy==2.4.6"
done

venv-5.23.0/bin/python - <<'PYTHON'
from importlib.metadata import version

import torch
from transformers import LlamaConfig, LlamaForCausalLM

print(f"saved by transformers {version('transformers')}, torch {version('torch')}")
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    initializer_range=0.5,
    rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
)
model = LlamaForCausalLM(config).eval()
model.save_pretrained("model")
with torch.no_grad():
    torch.save(model(torch.arange(1, 30)[None]).logits, "logits.pt")
PYTHON

venv-4.57.6/bin/python - <<'PYTHON'
import json
import sys
from importlib.metadata import version
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

print(f"read by transformers {version('transformers')}")


def difference() -> float:
    """The largest difference from the logits of the program that saved the folder."""
    model = AutoModelForCausalLM.from_pretrained("model").eval()
    print(f"base of the rotary embeddings: {model.config.rope_theta}")
    with torch.no_grad():
        logits = model(torch.arange(1, 30)[None]).logits
    return (logits - torch.load("logits.pt", weights_only=True)).abs().max().item()


as_saved = difference()
print(f"logits differ by up to {as_saved:.4f}")
path = Path("model/config.json")
path.write_text(json.dumps(json.loads(path.read_text()) | {"rope_theta": 500000.0}))
named = difference()
print(f"with `rope_theta` in config.json, they differ by up to {named:.4f}")
if as_saved < 0.1 or named > 0.0001:
    sys.exit("changed: the base is read, or something else differs too")
PYTHON
