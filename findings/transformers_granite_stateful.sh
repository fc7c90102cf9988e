#!/usr/bin/env bash
# Expected: A Granite 4 model whose layers are all attention is an ordinary decoder, and
#           `_is_stateful` says so.
# Happens:  `_is_stateful` belongs to the class and is true for every model of it, so assisted
#           generation is refused, although the cache has only keys and values and can be cropped.
# Seen:     transformers 5.23.0, torch 2.13.0, 2026-11-29.
# Here:     The layer types of the config, not the class, decide whether samples share the cache of
#           their prompt (`can_share`, fgrlhf/models/shared_rows.py).
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check \
    "transformers==5.23.0" "torch==2.13.0"

venv/bin/python - <<'PYTHON'
import sys
from importlib.metadata import version

import torch
from transformers import GraniteMoeHybridConfig, GraniteMoeHybridForCausalLM

print(f"transformers {version('transformers')}, torch {version('torch')}")
torch.manual_seed(0)
config = GraniteMoeHybridConfig(
    vocab_size=32,
    hidden_size=16,
    intermediate_size=32,
    shared_intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    num_local_experts=0,
    mamba_n_heads=2,
    layer_types=["attention", "attention"],
)
model = GraniteMoeHybridForCausalLM(config).eval()
assistant = GraniteMoeHybridForCausalLM(config).eval()
text = torch.tensor([[3, 4, 5, 6, 7, 8]])
with torch.no_grad():
    whole = model(text).logits
    cache = model(text, use_cache=True).past_key_values
    kinds = {type(layer).__name__ for layer in cache.layers}
    cache.crop(-3)
    again = model(text[:, 3:], past_key_values=cache).logits
difference = (whole[:, 3:] - again).abs().max().item()
mamba = [name for name, module in model.named_modules() if "Mamba" in type(module).__name__]
print(f"layers: {model.config.layer_types}, modules of Mamba: {mamba}, cache: {kinds}")
print(f"logits after cropping the cache differ by up to {difference:.6f}")
if mamba or kinds != {"DynamicLayer"} or difference > 0.0001:
    sys.exit("changed: the network has a state besides keys and values")
print(f"_is_stateful: {model._is_stateful}")
if not model._is_stateful:
    sys.exit("changed: _is_stateful is false")
try:
    model.generate(text, assistant_model=assistant, max_new_tokens=4, do_sample=False)
except ValueError as error:
    print(f"assisted generation: {error}")
else:
    sys.exit("changed: assisted generation is not refused")
PYTHON
