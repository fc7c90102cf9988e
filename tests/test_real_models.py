"""The figures of docs/real_models.md: memory from the models' configs, cuts from real prompts."""

import os
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig

from benchmarks import memory
from fgrlhf.load import load_task
from fgrlhf.models.loading import load_tokenizer
from fgrlhf.policy import check_prompts_fit, load_policy
from fgrlhf.reward_models.inputs import RMInputs
from fgrlhf.reward_models.prefix import RMText

DOCUMENT = Path(__file__).parents[1] / "docs" / "real_models.md"
GB = 10**9
FP32 = 4  # bytes
RANK = 16  # of the adapters
CONTEXT = 1000  # tokens
BLOCK = 1024  # tokens whose logits exist at a time

MODELS: dict[str, PretrainedConfig] = {
    "SmolLM2-135M": LlamaConfig(
        num_hidden_layers=30,
        hidden_size=576,
        num_attention_heads=9,
        num_key_value_heads=3,
        intermediate_size=1536,
        vocab_size=49_152,
        tie_word_embeddings=True,
    ),
    **{name: memory.MODELS[name] for name in ("Qwen3-0.6B", "Qwen3-1.7B", "Qwen2.5-7B")},
}


def expected_row(name: str) -> list[str]:
    """The model's cells, by the formulas of the document."""
    config = MODELS[name]
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    N = model.num_parameters()
    A = 0  # parameters of the adapters: r (inputs + outputs) of each linear layer
    for module in model.base_model.modules():
        if isinstance(module, nn.Linear):
            A += RANK * (module.in_features + module.out_features)
    layers = model.base_model.layers
    M = sum(  # parameters of the top third of the layers, with the final norm
        parameter.numel()
        for module in [*layers[len(layers) - len(layers) // 3 :], model.base_model.norm]
        for parameter in module.parameters()
    )
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    cache = 2 * config.num_hidden_layers * config.num_key_value_heads * head * CONTEXT * FP32
    logits = BLOCK * config.vocab_size * FP32
    sizes = [
        FP32 * N,
        4 * FP32 * N,
        5 * FP32 * N,
        FP32 * N + 4 * FP32 * A,
        FP32 * N + 4 * FP32 * M,
        cache,
        logits,
        3 * FP32 * N,
    ]
    return [f"{N / 1e6:,.0f} M", f"{A / 1e6:.1f} M", *(f"{size / GB:.2f}" for size in sizes)]


def rows() -> dict[str, list[str]]:
    """The cells of the document's table of memory, by model."""
    table = {}
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] in MODELS:
            table[cells[0]] = cells[1:]
    return table


@pytest.mark.parametrize("name", MODELS)
def test_the_table_of_memory(name):
    assert rows()[name] == expected_row(name)


def test_the_parameters_are_those_of_the_small_model():
    """The converted folder has 134,515,008 of them (tests/test_model.py)."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(MODELS["SmolLM2-135M"])
    assert model.num_parameters() == 134_515_008


def test_the_symptoms_are_the_messages_of_the_code():
    """Every message in backticks in the first column of the table of problems."""
    text = DOCUMENT.read_text(encoding="utf-8")
    section = text.partition("## Troubleshooting")[2]
    messages = re.findall(r"^\| `([^`]+)`", section, re.M)
    root = DOCUMENT.parents[1]
    code = ""
    for folder in ("fgrlhf", "reward_modeling", "sft"):
        for path in sorted((root / folder).rglob("*.py")):
            code += path.read_text(encoding="utf-8")
    # a message may be split over several literals
    code = re.sub(r'"\s+f?"', "", code)
    assert len(messages) > 6
    for message in messages:
        parts = [part.strip() for part in message.split("...") if part.strip()]
        assert all(part in code for part in parts), message


# ---- real prompts --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real_prompts():
    folder = os.environ.get("FGRLHF_QA_FEEDBACK")
    if not folder:
        pytest.skip("FGRLHF_QA_FEEDBACK is not set; set it to the folder of real qa-feedback rows")
    task = load_task("tasks.qa_feedback")
    prompts = []
    for split in ("train", "dev"):
        prompts += task.prompts(Path(folder) / f"{split}.json", split, 0)
    assert len(prompts) == 350
    return prompts


@pytest.mark.small_model
def test_a_real_prompt_is_cut_but_keeps_its_question(small_model, real_prompts):
    task = load_task("tasks.qa_feedback")
    policy = load_policy(small_model, max_input_len=1024, empty=True)
    assert check_prompts_fit(policy, real_prompts, task.core_text, "rows") == 24
    rows = policy.tokenize([prompt.text for prompt in real_prompts])["input_ids"]
    for prompt, ids in zip(real_prompts, rows):
        text = policy.tokenizer.decode(ids)
        assert prompt.meta["question"] in text
        assert text.endswith("<|im_end|>\n<|im_start|>assistant\n")
    lengths = policy.prompt_lengths([prompt.text for prompt in real_prompts])
    assert (round(sum(lengths) / 350), max(lengths)) == (725, 1202)


@pytest.mark.small_model
@pytest.mark.parametrize("max_length, cut", [(1024, 84), (1536, 0)])
def test_a_real_reward_input_loses_only_passages(small_model, real_prompts, max_length, cut):
    task = load_task("tasks.qa_feedback")
    inputs = RMInputs(load_tokenizer(small_model), "causal", "segment", max_length)
    texts = []
    for prompt in real_prompts:
        answer = tuple(prompt.references[0].split())
        texts.append(RMText(task.rm_prefix(prompt, True), (answer,)))
    encoded = inputs.encode(texts)
    assert (inputs.cuts.contexts, inputs.cuts.responses, inputs.cuts.cores) == (cut, 0, 0)
    for text, item in zip(texts, encoded):
        assert inputs.tokenizer.decode(item.input_ids).endswith(" " + " ".join(text.segments[0]))
        assert item.positions == (item.length - 1,)
