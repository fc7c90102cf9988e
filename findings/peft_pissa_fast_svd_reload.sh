#!/usr/bin/env bash
# Expected: A saved adapter, loaded onto the same base model, computes what it did in training.
# Happens:  With `init_lora_weights="pissa_niter_16"` it computes something else. Such a training
#           subtracts the adapter's first values from the base's weights. Loading subtracts them
#           again, but they come from a randomised SVD, and the saved folder has neither them nor
#           a seed. With `pissa`, whose SVD is exact, both are equal.
# Seen:     peft 0.21.2, transformers 5.23.0, torch 2.13.0, 2026-11-30.
# Here:     Such adapters are refused, unless they were converted when they were saved
#           (fgrlhf/data/merge_adapter.py).
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check \
    "peft==0.21.2" "transformers==5.23.0" "torch==2.13.0"

venv/bin/python -W ignore - <<'PYTHON'
import sys
from copy import deepcopy
from importlib.metadata import version

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn

print(f"peft {version('peft')}, torch {version('torch')}")
torch.manual_seed(0)
base = nn.Sequential(nn.Linear(64, 64))
inputs = torch.randn(8, 64)
for start in ("pissa", "pissa_niter_16"):
    config = LoraConfig(r=8, target_modules=["0"], init_lora_weights=start)
    adapted = get_peft_model(deepcopy(base), config)
    trained = [p for p in adapted.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.01)
    adapted(inputs).pow(2).mean().backward()
    optimizer.step()
    adapted.save_pretrained(start)
    loaded = PeftModel.from_pretrained(deepcopy(base), start)
    with torch.no_grad():
        outputs = adapted(inputs)
        difference = (loaded(inputs) - outputs).abs().max().item()
    print(f"{start}: saved and loaded, outputs up to {outputs.max():.2f} differ by {difference:.2g}")
    if (difference > 0.01) != (start != "pissa"):
        sys.exit(f"changed: with {start} the loaded outputs differ by {difference:.2g}")
PYTHON
