#!/usr/bin/env bash
# Expected: The Trainer's eval_loss is the mean over the dev set's tokens, whatever the batch size.
# Happens:  It is the mean of the batches' means, weighted by their rows. With texts of different
#           lengths it changes with per_device_eval_batch_size, and only a single batch of all rows
#           gives the mean over the tokens.
# Seen:     transformers 5.23.0, torch 2.13.0, accelerate 1.15.0, 2026-11-29.
# Here:     The dev loss is the sum over all labels by their number (`mean_over_dev`,
#           fgrlhf/supervised_trainer.py).
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check \
    "transformers==5.23.0" "torch==2.13.0" "accelerate==1.15.0"

venv/bin/python - <<'PYTHON'
import sys
from importlib.metadata import version

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

print(f"transformers {version('transformers')}, torch {version('torch')}")
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=32,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=2,
    initializer_range=1.0,
)
model = LlamaForCausalLM(config).eval()
LENGTHS = (2, 16, 3, 12)
rows = []
for length in LENGTHS:
    ids = torch.randint(1, 32, (length,))
    labels = torch.full((16,), -100)
    labels[:length] = ids
    padded = torch.zeros(16, dtype=torch.long)
    padded[:length] = ids
    rows.append({"input_ids": padded, "attention_mask": (labels != -100).long(), "labels": labels})


def eval_loss(batch_size: int) -> float:
    arguments = TrainingArguments(
        output_dir="run",
        per_device_eval_batch_size=batch_size,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        log_level="error",
    )
    return Trainer(model=model, args=arguments, eval_dataset=rows).evaluate()["eval_loss"]


losses = {size: eval_loss(size) for size in (1, 2, 4)}
for size, loss in losses.items():
    print(f"per_device_eval_batch_size={size}: eval_loss {loss:.4f}")
with torch.no_grad():
    per_row = [model(**{name: value[None] for name, value in row.items()}).loss for row in rows]
predicted = [length - 1 for length in LENGTHS]
per_token = sum(loss.item() * n for loss, n in zip(per_row, predicted)) / sum(predicted)
print(f"mean over all predicted tokens: {per_token:.4f}")
if abs(losses[4] - per_token) > 0.001:
    sys.exit("changed: the loss of one batch is not the mean over its tokens")
for size in (1, 2):
    if abs(losses[size] - per_token) < 0.001:
        sys.exit(f"changed: the loss in batches of {size} is the mean over all tokens")
PYTHON
