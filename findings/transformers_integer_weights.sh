#!/usr/bin/env bash
# Expected: Integers in place of a model's weights, with a scale beside each, are refused where no
#           quantisation method that the library knows is named.
# Happens:  The integers become the weights, as floats from -127 to 127, and the model runs. The
#           scales are listed as unexpected keys, of which the report says that they can be ignored
#           when loading from another architecture. A method that is unknown is a warning.
# Seen:     transformers 5.23.0, torch 2.13.0, 2026-11-29.
# Here:     A folder with such weights is refused, with the method or the tensors' type.
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check \
    "transformers==5.23.0" "torch==2.13.0"

venv/bin/python -W ignore::FutureWarning - 2>/dev/null <<'PYTHON'
import json
import sys
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

print(*(f"{name} {version(name)}" for name in ("transformers", "torch")), sep=", ")
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=32,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=2,
)
LlamaForCausalLM(config).save_pretrained("model")
tensors = load_file("model/model.safetensors")
name = "model.layers.0.self_attn.q_proj.weight"
weight = tensors[name]
scale = weight.abs().amax(1, keepdim=True) / 127
tensors[name] = (weight / scale).round().to(torch.int8)
tensors[f"{name}_scale"] = scale
save_file(tensors, "model/model.safetensors", metadata={"format": "pt"})

file = Path("model/config.json")
settings = json.loads(file.read_text())
for method in (None, "another_tool"):
    if method is not None:
        settings["quantization_config"] = {"quant_method": method, "bits": 8}
    file.write_text(json.dumps(settings))
    try:
        loaded = AutoModelForCausalLM.from_pretrained("model").model.layers[0].self_attn.q_proj
    except Exception as error:
        sys.exit(f"changed: with the method {method} loading raises {type(error).__name__}")
    largest = loaded.weight.abs().max().item()
    print(f"method {method}: the largest weight is {largest}, right is {weight.abs().max():.3f}")
    if largest != 127:
        sys.exit("changed: the integers are no longer read as weights")
PYTHON
