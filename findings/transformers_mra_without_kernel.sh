#!/usr/bin/env bash
# Expected: An MRA encoder without its CUDA kernel is refused, or computes its attention in PyTorch.
# Happens:  It loads and runs, and its attention is 0 everywhere: the state of a token depends on no
#           other token, whatever the weights are. A text classifier is then a bag of words.
# Seen:     transformers 5.23.0, torch 2.13.0 on a CPU, 2026-11-29.
# Here:     A network whose tokens see no other token is refused when reward-model training starts
#           (`check_direction`, fgrlhf/reward_models/shapes.py).
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check \
    "transformers==5.23.0" "torch==2.13.0"

CUDA_VISIBLE_DEVICES="" venv/bin/python - <<'PYTHON'
import sys
from importlib.metadata import version

import torch
from transformers import BertConfig, BertModel, MraConfig, MraModel

print(f"transformers {version('transformers')}, torch {version('torch')}")
SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 70,
    "initializer_range": 0.5,
}
one = torch.arange(64)[None] % 50 + 5
other = one.clone()
other[0, 1:] = one[0, 1:].flip(0)
changes = {}
for config_class, model_class in ((BertConfig, BertModel), (MraConfig, MraModel)):
    torch.manual_seed(0)
    model = model_class(config_class(**SIZES)).eval()
    with torch.no_grad():
        states = [model(input_ids=ids)[0] for ids in (one, other)]
    changes[model_class] = (states[0][0, 0] - states[1][0, 0]).abs().max().item()
    print(f"{model_class.__name__}: other words after the first change its state by"
          f" {changes[model_class]:.4f}")
if changes[BertModel] < 0.01:
    sys.exit("the comparison is wrong: BERT does not read the other words either")
if changes[MraModel] > 0:
    sys.exit("changed: MRA reads the other words")
PYTHON
