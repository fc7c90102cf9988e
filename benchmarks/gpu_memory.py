"""The piece `memory` of `make gpu`: GPU memory of GRPO steps, beside the sums of `memory.py`.

Each model of `CASES` has random weights and is trained for two steps: Adam's moments exist after
the first. The weights are made on the GPU, so nothing has to be read from a disk.
"""

import gc
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig, Qwen2Config

from benchmarks import memory
from benchmarks.causal import MICRO
from benchmarks.harness import MB, table
from benchmarks.measure import run_loop_step
from benchmarks.memory import GB, MODELS, Weights
from benchmarks.peer_grpo import Size, Work, our_trainer
from benchmarks.workload import make_prompt, tokenizer, weights_device
from fgrlhf.base.errors import UserError
from fgrlhf.configs.sections import LoRAConfig
from fgrlhf.models.causal import CausalPolicy
from fgrlhf.models.lora import AdapterFree, add_adapters

# method -> its adapters, and the sum of its bytes
METHODS: dict[str, tuple[LoRAConfig | None, Callable[[Weights], int]]] = {
    "all": (None, memory.with_all_weights),
    "LoRA": (memory.LORA, memory.with_lora),
    "QLoRA": (memory.LORA.model_copy(update={"quantize": "nf4"}), memory.with_qlora),
}
CASES = (
    ("Qwen2.5-7B", "QLoRA"),
    ("Qwen3-1.7B", "all"),
    ("Qwen2.5-7B", "LoRA"),
    ("Qwen3-0.6B", "all"),
)
SIZE = Size(vocab=2000, prompt_tokens=512, tokens=128, prompts=4, samples=4, steps=2, dtype="bf16")
REHEARSAL_SIZE = replace(SIZE, prompt_tokens=20, tokens=5, prompts=2)
REHEARSAL_MODEL = Qwen2Config(
    vocab_size=2000,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
)


def measure(config: PretrainedConfig, method: str, size: Size) -> dict[str, float]:
    """GB that the sum expects, and the peaks of both halves of the second step."""
    lora, static = METHODS[method]
    tokens = tokenizer(size.vocab, add_eos=False)

    def policy(adapters: LoRAConfig | None) -> CausalPolicy:
        with weights_device():
            model: Any = AutoModelForCausalLM.from_config(config)
            if adapters is not None:
                add_adapters(model, adapters)
        return CausalPolicy(model, tokens)

    trained = policy(lora)
    reference = policy(None) if lora is None else AdapterFree(trained)
    prompts = []
    for i in range(size.prompts * size.steps):
        prompts.append(make_prompt(size.vocab, i, size.prompt_tokens))
    with TemporaryDirectory() as folder:
        work = Work(Path(folder), size, prompts)
        trainer = our_trainer(work, {"micro": MICRO}, trained, reference)
        step = [run_loop_step(trainer) for _ in range(size.steps)][-1]
    return {
        "computed": memory.per_gpu(Weights.of(config), static, 1) / GB,
        **{phase: peak * MB / GB for phase, peak in step.peak_mb.items()},
    }


def piece(rehearsal: bool) -> dict[str, Any]:
    """The rows of `CASES`; instead of numbers a row may have the reason why there are none."""
    size = REHEARSAL_SIZE if rehearsal else SIZE
    rows: dict[str, dict[str, float] | str] = {}
    for model, method in CASES:
        try:
            config = REHEARSAL_MODEL if rehearsal else MODELS[model]
            rows[f"{model}, {method}"] = measure(config, method, size)
            print(f"{model}, {method}: {rows[f'{model}, {method}']}", flush=True)
        except torch.OutOfMemoryError:
            rows[f"{model}, {method}"] = "out of memory"
        except UserError as error:
            if "bitsandbytes" not in str(error):
                raise
            rows[f"{model}, {method}"] = "needs bitsandbytes"
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return {"memory": rows}


def document(result: Mapping[str, Any]) -> str:
    """The rows as a table, under a description."""
    size = SIZE
    about = (
        f"**memory**: GRPO, {size.prompts} prompts of {size.prompt_tokens} tokens with"
        f" {size.samples} responses of {size.tokens}, {MICRO} responses per forward pass, bf16, no"
        " gradient checkpointing. `computed` is the sum in docs/scale.md, without activations and"
        " the cache of keys and values."
    )
    rows = []
    for case, row in result["memory"].items():
        if isinstance(row, str):
            rows.append([case, "", row, ""])
        else:
            rows.append([case, *(f"{row[key]:.1f}" for key in ("computed", "rollout", "update"))])
    header = ["model, what is trained", "computed GB", "peak of the rollout", "peak of the update"]
    return f"{about}\n\n{table(header, rows)}"
