"""Memory of weights, gradients and optimiser states in RL, computed: which model fits on which GPU.

    python -m benchmarks.memory                            the table in docs/scale.md
    python -m benchmarks.memory results=docs/scale.md      replaces it

docs/real_models.md has the sums for one process. With P weights in fp32 and A of adapters, on each
of N GPUs:

    all weights   ddp: 4 P + 4 P + 8 P        weights, gradients, Adam's two moments
                  reference: 4 P              forward passes compute in bf16 from fp32 weights
    LoRA          ddp: 4 P + 16 A             the reference is the policy without its adapters
    QLoRA         4 P + 16 A - (4 - .516) Q   Q of the weights are stored in 4.127 bits
    fsdp2         all of this divided by N, and the whole bf16 weights during rollouts: 2 P of the
                  policy, and 2 P of a reference of its own

Under autocast, a forward pass of `ddp` also keeps a bf16 copy of the weights: 2 P. Activations, the
cache of keys and values and the reward models come on top; `make gpu` measures them.
tests/test_memory.py compares these sums with real trainers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from peft.tuners.lora import LoraLayer
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    T5Config,
)

from benchmarks.harness import ResultSettings, table
from fgrlhf.cli.command_line import run_program
from fgrlhf.configs.sections import LoRAConfig
from fgrlhf.models.lora import add_adapters
from fgrlhf.models.quantized import keeps_floats

GB = 1e9
LORA = LoRAConfig(r=16, alpha=32)
GPUS = (1, 8, 16)


def _qwen3(width: int, feed_forward: int) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=151_936,
        hidden_size=width,
        intermediate_size=feed_forward,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        tie_word_embeddings=True,
    )


# The published dimensions of each model.
MODELS: Mapping[str, PretrainedConfig] = {
    "t5-large": T5Config(
        vocab_size=32_128, d_model=1024, d_ff=4096, d_kv=64, num_heads=16, num_layers=24
    ),
    "Qwen3-0.6B": _qwen3(1024, 3072),
    "Qwen3-1.7B": _qwen3(2048, 6144),
    "Qwen2.5-7B": Qwen2Config(
        vocab_size=152_064,
        hidden_size=3584,
        intermediate_size=18_944,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
        tie_word_embeddings=False,
    ),
}


@dataclass(frozen=True)
class Weights:
    """Numbers of weights.

    Attributes:
      model: of the model.
      adapters: of LoRA's adapters on all its linear layers.
      quantized: those of the model that `lora.quantize` stores in 4 bits.
    """

    model: int
    adapters: int
    quantized: int

    @classmethod
    def of(cls, config: PretrainedConfig) -> "Weights":
        """Count them without memory for them. Tied weights count once."""
        kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        with torch.device("meta"):
            model = kind.from_config(config)
        assert isinstance(model, PreTrainedModel)
        all_weights = sum(parameter.numel() for parameter in model.parameters())
        with torch.device("meta"):
            add_adapters(model, LORA)
        adapters = sum(p.numel() for name, p in model.named_parameters() if ".lora_" in name)
        quantized = 0
        for name, layer in model.named_modules():
            if isinstance(layer, LoraLayer) and not keeps_floats(model, name):
                quantized += layer.weight.numel()
        return cls(all_weights, adapters, quantized)


def trained(weights: int) -> int:
    """Bytes of trained fp32 weights with gradients and Adam's moments: 4 + 4 + 8 per weight."""
    return 16 * weights


def with_all_weights(weights: Weights) -> int:
    """Bytes of a policy that is trained whole, and of its reference."""
    return trained(weights.model) + 4 * weights.model


def with_lora(weights: Weights) -> int:
    """Bytes of a frozen policy with trained adapters, which is its own reference."""
    return 4 * weights.model + trained(weights.adapters)


def with_qlora(weights: Weights) -> int:
    """The same with the frozen linear layers in NF4.

    A weight has 4 bits, each block of 64 a scale of 8 bits, and each 256 blocks a scale of 32 bits.
    """
    bits = 4 + 8 / 64 + 32 / (64 * 256)
    return with_lora(weights) - round((4 - bits / 8) * weights.quantized)


def in_bf16(weights: Weights, static: Callable[[Weights], int], gpus: int) -> int:
    """Bytes of the bf16 weights that a process holds besides the stored weights.

    On one GPU they are the policy's in a forward pass: autocast keeps those of trained weights
    only, so not the reference's. Layers in 4 bits are computed one at a time. On several GPUs,
    policy and reference are both whole during rollouts (`unsharded`).
    """
    if static is with_qlora:
        return 2 * (weights.model - weights.quantized)
    models = 2 if static is with_all_weights and gpus > 1 else 1
    return 2 * models * weights.model


def per_gpu(weights: Weights, static: Callable[[Weights], int], gpus: int) -> float:
    """Bytes on each GPU: `ddp` on one, `fsdp2` on several."""
    return static(weights) / gpus + in_bf16(weights, static, gpus)


class MemorySettings(ResultSettings):
    """Options of the program."""


def memory_table() -> str:
    """GB per GPU of each model. The columns of LoRA are for one GPU or `ddp`."""
    columns = ["model", "weights", "QLoRA, ddp", "LoRA, ddp"]
    columns += ["all, ddp" if gpus == 1 else f"all, fsdp2, {gpus} GPUs" for gpus in GPUS]
    rows = []
    for name, config in MODELS.items():
        weights = Weights.of(config)
        sizes = [per_gpu(weights, static, 1) for static in (with_qlora, with_lora)]
        sizes += [per_gpu(weights, with_all_weights, gpus) for gpus in GPUS]
        millions = f"{weights.model / 1e6:,.0f} M"
        rows.append([name, millions, *(f"{size / GB:.1f}" for size in sizes)])
    return table(columns, rows)


def run(settings: MemorySettings) -> None:
    settings.publish("memory", memory_table())


if __name__ == "__main__":
    run_program(run, MemorySettings)
