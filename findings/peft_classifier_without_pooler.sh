#!/usr/bin/env bash
# Expected: An adapter for classification (SEQ_CLS) has all layers that training initialised, so that
#           base and adapter give the trained model again.
# Happens:  It has `classifier` and `score` only. DeBERTa's pooler, which its base model lacks too, is
#           in no file: every load draws another one, and the scores differ.
# Seen:     peft 0.21.2, transformers 5.23.0, torch 2.13.0, 2026-11-29.
# Here:     Such an adapter is refused, with the name of the layer that is in no file
#           (fgrlhf/data/merge_adapter.py).
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
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForSequenceClassification, DebertaV2Config, DebertaV2Model
from transformers.utils import logging

logging.disable_progress_bar()
logging.set_verbosity_error()
print(*(f"{name} {version(name)}" for name in ("peft", "transformers", "torch")), sep=", ")
config = DebertaV2Config(
    vocab_size=32,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_labels=1,
)
DebertaV2Model(config).save_pretrained("base")  # a language model has no pooler


def classifier(seed: int):
    torch.manual_seed(seed)
    return AutoModelForSequenceClassification.from_pretrained("base")


lora = LoraConfig(task_type="SEQ_CLS", target_modules=["query_proj"], init_lora_weights=False)
trained = get_peft_model(classifier(1), lora).eval()
trained.save_pretrained("adapter")
ids = torch.tensor([[3, 7, 11, 5]])
with torch.no_grad():
    scores = [trained(ids).logits.item()]
    for seed in (1, 2):
        loaded = PeftModel.from_pretrained(classifier(seed), "adapter").eval()
        scores.append(loaded(ids).logits.item())
print("score of a text: trained {:.6f}, loaded {:.6f} and {:.6f}".format(*scores))
if abs(scores[0] - scores[2]) < 1e-6:
    sys.exit("changed: the loaded model gives the score of the trained one")
PYTHON
