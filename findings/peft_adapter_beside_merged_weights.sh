#!/usr/bin/env bash
# Expected: AutoModelForCausalLM loads the weights of a folder with a complete model.
# Happens:  If an adapter's files are left in the folder where its merged model was saved, the
#           adapter is applied to the merged weights: its update counts twice.
# Seen:     transformers 5.23.0, peft 0.21.2, torch 2.13.0, 2026-11-29.
# Here:     A folder with weights and an adapter is refused, with what to remove or to merge
#           (`refuse_adapter`, fgrlhf/models/model_files.py).
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check \
    "transformers==5.23.0" "peft==0.21.2" "torch==2.13.0"

venv/bin/python -W ignore::FutureWarning - <<'PYTHON'
import shutil
import sys
from importlib.metadata import version

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

logging.disable_progress_bar()
print(*(f"{name} {version(name)}" for name in ("transformers", "peft", "torch")), sep=", ")
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=32,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=2,
)
base = LlamaForCausalLM(config)
lora = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
adapted = get_peft_model(base, lora)
adapted.save_pretrained("run")  # the adapter
before = base.model.layers[0].self_attn.q_proj.base_layer.weight.detach().clone()
merged = adapted.merge_and_unload()
merged.save_pretrained("run")  # the merged weights, beside it
merged.save_pretrained("clean")
update = merged.model.layers[0].self_attn.q_proj.weight.detach() - before


def times_applied(folder: str) -> float:
    """How many times the adapter's update is in the loaded network's product."""
    layer = AutoModelForCausalLM.from_pretrained(folder).model.layers[0].self_attn.q_proj
    with torch.no_grad():
        effective = layer(torch.eye(16)).T
    return ((effective - before) * update).sum().item() / (update * update).sum().item()


for folder, expected in (("clean", 1), ("run", 2)):
    times = times_applied(folder)
    print(f"{folder}: the adapter's update is applied {times:.3f} times")
    if abs(times - expected) > 0.01:
        sys.exit(f"changed: in {folder} the update is applied {times:.3f} times, not {expected}")
PYTHON
