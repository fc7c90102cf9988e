#!/usr/bin/env bash
# Expected: A model that was loaded with `Mxfp4Config(dequantize=True)` and saved is an ordinary one
#           that loads again.
# Happens:  The folder has the whole weights of its experts under the names of their 4-bit form
#           (`..._blocks`), and a config without quantization. Loading it fills the experts with
#           random numbers, without an error.
# Seen:     transformers 5.23.0, torch 2.13.0, 2026-11-30.
# Here:     The names are not turned back when a policy is saved, and a folder that lacks tensors is
#           refused (`load_weights`, fgrlhf/models/loading.py).
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check \
    "transformers==5.23.0" "torch==2.13.0" "accelerate==1.15.0"

venv/bin/python -W ignore - <<'PYTHON'
import json
import sys
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GptOssConfig, GptOssForCausalLM, Mxfp4Config

print(f"transformers {version('transformers')}, torch {version('torch')}")
torch.manual_seed(0)
sizes = {
    "vocab_size": 40,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_local_experts": 2,
    "num_experts_per_tok": 1,
    "pad_token_id": 0,
    "eos_token_id": 1,
}
GptOssForCausalLM(GptOssConfig(**sizes)).save_pretrained("start")

# Experts in 4 bits, as gpt-oss is published: blocks of 32 numbers, each with an exponent.
weights = Path("start/model.safetensors")
tensors = load_file(weights)
for name in [name for name in tensors if name.endswith("_proj") and "experts" in name]:
    experts, rows, columns = tensors.pop(name).shape
    shape = (experts, columns, rows // 32)
    tensors[f"{name}_blocks"] = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8)
    tensors[f"{name}_scales"] = torch.randint(120, 124, shape, dtype=torch.uint8)
save_file(tensors, weights, {"format": "pt"})
file = Path("start/config.json")
whole = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
rounding = {"quant_method": "mxfp4", "modules_to_not_convert": whole}
file.write_text(json.dumps(json.loads(file.read_text()) | {"quantization_config": rounding}))

ids = torch.tensor([[3, 4, 5, 6, 7]])
model = AutoModelForCausalLM.from_pretrained(
    "start", quantization_config=Mxfp4Config(dequantize=True), dtype=torch.float32
).eval()
model.save_pretrained("saved")
print("saved:", *(n for n in load_file("saved/model.safetensors") if "proj_blocks" in n))
logits = []
for _ in range(2):
    loaded = AutoModelForCausalLM.from_pretrained("saved", dtype=torch.float32).eval()
    with torch.no_grad():
        logits.append(loaded(ids).logits)
with torch.no_grad():
    difference = (logits[0] - model(ids).logits).abs().max().item()
between = (logits[0] - logits[1]).abs().max().item()
print(f"logits of the saved folder differ by {difference:.2g}, of two loads by {between:.2g}")
if min(difference, between) < 1e-4:
    sys.exit("changed: the saved folder computes what the loaded model did")
PYTHON
