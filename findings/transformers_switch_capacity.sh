#!/usr/bin/env bash
# Expected: In evaluation, a decoder gives a text the same log-probabilities at once as token by
#           token with a cache.
# Happens:  An expert of Switch Transformers takes only the first `expert_capacity` tokens of the
#           text that is read; later ones skip it. Read token by token, none is ever too many. So a
#           sample's log-probabilities are others when the whole sample is scored.
# Seen:     transformers 5.23.0, torch 2.13.0, 2026-11-29.
# Here:     Experts take every token (`load_config`, fgrlhf/models/loading.py).
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
from transformers import SwitchTransformersConfig, SwitchTransformersForConditionalGeneration

print(f"transformers {version('transformers')}, torch {version('torch')}")
CAPACITY = 4


def largest_difference(length: int) -> float:
    """Between log-probabilities of a text read at once and read token by token with a cache."""
    torch.manual_seed(0)
    config = SwitchTransformersConfig(
        vocab_size=50,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=1,
        num_decoder_layers=2,
        num_heads=2,
        num_experts=2,
        num_sparse_encoder_layers=0,
        num_sparse_decoder_layers=2,
        expert_capacity=CAPACITY,
        initializer_factor=2.0,
        decoder_start_token_id=0,
    )
    model = SwitchTransformersForConditionalGeneration(config).eval()
    prompt = torch.tensor([[5, 6, 7]])
    text = torch.tensor([[0, *range(10, 9 + length)]])
    with torch.no_grad():
        encoded = model.encoder(input_ids=prompt)
        whole = model(encoder_outputs=encoded, decoder_input_ids=text).logits.log_softmax(-1)
        steps, cache = [], None
        for token in text.split(1, dim=1):
            out = model(
                encoder_outputs=encoded,
                decoder_input_ids=token,
                past_key_values=cache,
                use_cache=True,
            )
            cache = out.past_key_values
            steps.append(out.logits.log_softmax(-1))
    return (whole - torch.cat(steps, dim=1)).abs().max().item()


for length in (CAPACITY, 4 * CAPACITY):
    difference = largest_difference(length)
    print(f"expert_capacity {CAPACITY}, {length} tokens: they differ by up to {difference:.6f}")
    if length <= CAPACITY and difference > 0.001:
        sys.exit(f"changed: {length} tokens within the capacity differ by {difference}")
    if length > CAPACITY and difference < 0.01:
        sys.exit(f"changed: {length} tokens beyond the capacity do not differ")
PYTHON
