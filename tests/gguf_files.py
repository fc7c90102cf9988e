"""Writes small networks of transformers as GGUF files, as llama.cpp's converter does."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from transformers import PreTrainedModel
from transformers.convert_slow_tokenizer import bytes_to_unicode

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGED = ["ĊĊ", "ĠĠ"]  # \n\n and two spaces are one token each
TOKENS = [*SPECIAL, *sorted(bytes_to_unicode().values()), *MERGED]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONTROL, NORMAL = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
BYTE_LEVEL = {
    **{"tokenizer_model": "gpt2", "tokenizer_pre": "smollm", "token_list": TOKENS},
    "token_types": [CONTROL if token in SPECIAL else NORMAL for token in TOKENS],
    **{"token_merges": ["Ċ Ċ", "Ġ Ġ"], "chat_template": TEMPLATE},
    **{"bos_token_id": 1, "eos_token_id": 2, "unk_token_id": 0, "pad_token_id": 2},
}


def sizes_of(network: PreTrainedModel) -> dict[str, Any]:
    """What a GGUF file says about a decoder of the Llama or Qwen2 family."""
    config: Any = network.config
    return {
        **{"context_length": config.max_position_embeddings, "vocab_size": config.vocab_size},
        **{"embedding_length": config.hidden_size, "block_count": config.num_hidden_layers},
        **{"feed_forward_length": config.intermediate_size},
        **{"head_count": config.num_attention_heads, "head_count_kv": config.num_key_value_heads},
        **{"layer_norm_rms_eps": config.rms_norm_eps},
        "rope_freq_base": config.rope_parameters["rope_theta"],
    }


def write_gguf(
    path: Path,
    network: PreTrainedModel,
    architecture: str,
    quantised: gguf.GGMLQuantizationType | None = None,
    tensors: dict[str, np.ndarray] | None = None,
    settings: dict[str, str | float] | None = None,
    bare: bool = False,
    **values: Any,
) -> Path:
    """Write a network with a byte-level tokenizer.

    Args:
      quantised: type of the matrices; None: fp32.
      tensors: further ones.
      settings: further keys of the file.
      bare: with the tensors only, neither sizes nor a tokenizer.
      values: arguments of the writer's `add_...`; None leaves one out.
    """
    writer = gguf.GGUFWriter(path, architecture)
    described = {} if bare else BYTE_LEVEL | sizes_of(network)
    for name, value in {**described, **values}.items():
        if value is not None:
            getattr(writer, f"add_{name}")(value)
    for key, value in (settings or {}).items():
        add = writer.add_string if isinstance(value, str) else writer.add_float32
        add(key, value)
    kind = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, network.config.num_hidden_layers)
    for name, parameter in network.named_parameters():  # tied ones once
        stem, _, ending = name.rpartition(".")
        tensor = parameter.detach().numpy()
        if architecture == "llama":
            tensor = _permuted(stem, tensor, network.config)
        if quantised is None or tensor.ndim == 1:
            writer.add_tensor(f"{names.get_name(stem)}.{ending}", tensor)
        else:
            packed = gguf.quants.quantize(tensor, quantised)
            writer.add_tensor(f"{names.get_name(stem)}.{ending}", packed, raw_dtype=quantised)
    for name, tensor in (tensors or {}).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _permuted(stem: str, tensor: np.ndarray, config: Any) -> np.ndarray:
    """llama.cpp rotates neighbouring rows of queries and keys, transformers the two halves."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    n_heads = heads.get(stem.rpartition(".")[2])
    if n_heads is None:
        return tensor
    halves = tensor.reshape(n_heads, 2, len(tensor) // n_heads // 2, *tensor.shape[1:])
    return halves.swapaxes(1, 2).reshape(tensor.shape)
