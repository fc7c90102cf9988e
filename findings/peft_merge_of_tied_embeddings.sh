#!/usr/bin/env bash
# Expected: merge_and_unload gives a model that computes what the adapted one does.
# Happens:  With tied embeddings and an adapter of the output layer, the update is also added to the
#           input embeddings, which the adapter never changed: the merged logits differ. There is
#           only a warning.
# Seen:     peft 0.21.2, transformers 5.23.0, torch 2.13.0, 2026-11-29.
# Here:     The output layer is untied before the merge, and the written folder is compared with the
#           model and its adapter (fgrlhf/data/merge_adapter.py).
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check \
    "transformers==5.23.0" "peft==0.21.2" "torch==2.13.0"

venv/bin/python -W ignore - <<'PYTHON'
import sys
from importlib.metadata import version

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

print(*(f"{name} {version(name)}" for name in ("peft", "transformers", "torch")), sep=", ")
ids = torch.tensor([[3, 7, 11, 5]])
for tied in (False, True):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        tie_word_embeddings=tied,
    )
    lora = LoraConfig(r=2, target_modules=["lm_head"], init_lora_weights=False)
    adapted = get_peft_model(LlamaForCausalLM(config), lora).eval()
    with torch.no_grad():
        before = adapted(ids).logits
        after = adapted.merge_and_unload()(ids).logits
    difference = (before - after).abs().max().item()
    print(f"tied {tied}: the merged logits differ by up to {difference:.2g}")
    if (difference > 0.01) != tied:
        sys.exit(f"changed: with tied={tied} the merged logits differ by {difference:.2g}")
PYTHON
