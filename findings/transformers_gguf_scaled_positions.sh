#!/usr/bin/env bash
# Expected: transformers computes with a GGUF file of Llama 3.1 what llama.cpp does, or refuses it.
# Happens:  llama.cpp's converter stores how the frequencies of positions are scaled in a tensor,
#           `rope_freqs.weight`. transformers leaves it out: the model has unscaled positions,
#           without an error or a warning.
# Seen:     transformers 5.23.0, gguf 0.19.0, torch 2.13.0, 2026-11-30.
# Here:     `fgrlhf data model FILE.gguf` refuses such a file, unless `base` names the model whose
#           config is used (`_check_all_is_read`, fgrlhf/data/gguf_model.py).
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check \
    "transformers==5.23.0" "torch==2.13.0" "gguf==0.19.0" "accelerate==1.15.0"

venv/bin/python - <<'PYTHON'
import io
import logging
import sys
from importlib.metadata import version

import gguf
import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.utils import logging as messages

print(", ".join(f"{name} {version(name)}" for name in ("transformers", "gguf", "torch")))
torch.manual_seed(0)
scaled = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
scaled |= {"original_max_position_embeddings": 16, "rope_theta": 10_000.0}
config = LlamaConfig(
    vocab_size=64,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=4,
    max_position_embeddings=128,
    initializer_range=0.3,
    rope_parameters=scaled,
)
source = LlamaForCausalLM(config).eval()

writer = gguf.GGUFWriter("model.gguf", "llama")
writer.add_vocab_size(64)
writer.add_context_length(128)
writer.add_embedding_length(64)
writer.add_block_count(2)
writer.add_feed_forward_length(96)
writer.add_head_count(4)
writer.add_head_count_kv(4)
writer.add_layer_norm_rms_eps(config.rms_norm_eps)
writer.add_rope_freq_base(10_000.0)
names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
for name, parameter in source.named_parameters():
    stem, _, ending = name.rpartition(".")
    tensor = parameter.detach().numpy()
    if stem.endswith(("q_proj", "k_proj")):  # pairs of rows instead of halves, as llama.cpp
        tensor = tensor.reshape(4, 2, 8, 64).swapaxes(1, 2).reshape(64, 64)
    writer.add_tensor(f"{names.get_name(stem)}.{ending}", tensor)
plain = 1 / 10_000 ** (np.arange(0, 16, 2) / 16)
divisors = plain / source.model.rotary_emb.inv_freq.numpy()
print(f"rope_freqs.weight: {divisors.round(2).tolist()}")
writer.add_tensor("rope_freqs.weight", divisors.astype(np.float32))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()

said = io.StringIO()
messages.get_logger("transformers").addHandler(logging.StreamHandler(said))
text = torch.arange(1, 60)[None]


def difference(**arguments) -> float:
    """The largest difference from the logits of the network that was written."""
    model = AutoModelForCausalLM.from_pretrained(
        ".", gguf_file="model.gguf", dtype=torch.float32, **arguments
    ).eval()
    print(f"positions: {model.config.rope_parameters}")
    with torch.no_grad():
        return (model(text).logits - source(text).logits).abs().max().item()


as_read = difference()
warned = [line for line in said.getvalue().splitlines() if "rope" in line.lower()]
print(f"logits differ by up to {as_read:.4f}; messages about it: {warned}")
named = difference(config=config)
print(f"with the source's config, they differ by up to {named:.6f}")
if as_read < 0.1 or warned or named > 0.001:
    sys.exit("changed: the scaling is read, or something else differs too")
PYTHON
