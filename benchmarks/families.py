"""Which model types of transformers are policies and reward models: the table of docs/models.md.

    make families        python -m benchmarks.families --help lists the keys

For every type that transformers loads as a causal or seq2seq language model, a tiny random model is
built from the type's own config class with small sizes. Windows and chunks are set to 12 tokens, so
that the texts are longer. The model is loaded as a policy, and the log-probabilities of sampling
are compared with those of scoring, and those with the model of transformers, which reads every text
alone. Then the same with random adapters, merged and loaded again; and a reward model starts from
it. Each type has a process of its own with a limit of time and memory, and a JSON file in the
output folder: a run that was stopped continues with the other types.
"""

import multiprocessing
import os
import re
import resource
import signal
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
import transformers
from pydantic import Field
from torch import Tensor
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
)

from benchmarks.harness import replace_part
from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.files import read_json, write_json
from fgrlhf.cli.command_line import run_program
from fgrlhf.configs.sections import LoRAConfig, Sampling
from fgrlhf.configs.strict import StrictModel
from fgrlhf.kernels.install import shares_cache, shares_prompts
from fgrlhf.models.loading import check_sizes, constants_of
from fgrlhf.models.shared_rows import can_share
from fgrlhf.models.tiny import save_model, word_tokenizer
from fgrlhf.policy import EncoderDecoderPolicy, Policy, load_policy
from reward_modeling.config import RMModelConfig
from reward_modeling.network import load_network

DOCUMENT = Path(__file__).parents[1] / "docs" / "models.md"
SECONDS = 150  # of one type
GIGABYTES = 12  # of one type
WORDS = "the a red blue green cat dog bird sees likes and one two three four five six seven , . !"
PROMPTS = ["the red cat", "a dog sees the bird and likes one two three . " * 3, "cat"]
SAMPLING = Sampling(max_new_tokens=14, temperature=3.0)
NUM_SAMPLES = 2
AGREES = 1e-3  # a larger difference is printed bold

# Settings that a config class gets if it has them. None of them is a size of a published model.
SIZES: dict[str, Any] = {
    **dict.fromkeys(["hidden_size", "d_model", "n_embd", "word_embed_proj_dim", "dim"], 32),
    **dict.fromkeys(["embedding_size", "lru_width", "attention_hidden_size"], 32),
    **dict.fromkeys(["intermediate_size", "ffn_dim", "d_ff", "n_inner", "dff", "d_inner"], 48),
    **dict.fromkeys(["ffn_hidden_size", "encoder_ffn_dim", "decoder_ffn_dim", "mlp_dim"], 48),
    **dict.fromkeys(["num_hidden_layers", "n_layer", "n_layers", "num_layers"], 4),
    **dict.fromkeys(["encoder_layers", "decoder_layers", "num_decoder_layers"], 2),
    **dict.fromkeys(["num_encoder_layers"], 2),
    **dict.fromkeys(["num_attention_heads", "n_head", "n_heads", "num_heads"], 4),
    **dict.fromkeys(["encoder_attention_heads", "decoder_attention_heads"], 4),
    **dict.fromkeys(["num_encoder_attention_heads", "num_decoder_attention_heads"], 4),
    **dict.fromkeys(["num_key_value_heads", "num_kv_heads", "swa_num_key_value_heads"], 2),
    **dict.fromkeys(["head_dim", "d_kv", "kv_channels", "rotary_dim", "global_head_dim"], 8),
    **dict.fromkeys(["q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim"], 8),
    **dict.fromkeys(["v_head_dim", "linear_key_head_dim", "linear_value_head_dim"], 8),
    **dict.fromkeys(["max_position_embeddings", "n_positions", "max_seq_len", "n_ctx"], 256),
    **dict.fromkeys(["max_encoder_position_embeddings", "max_decoder_position_embeddings"], 256),
    **dict.fromkeys(["sliding_window", "sliding_window_size", "attention_window_size"], 12),
    **dict.fromkeys(["attention_window", "local_attention", "window_size", "index_topk"], 12),
    **dict.fromkeys(["attention_chunk_size", "keep_window_size"], 12),
    **dict.fromkeys(["mamba_chunk_size", "chunk_size", "block_size", "local_radius"], 8),
    **dict.fromkeys(["num_experts", "num_local_experts", "n_routed_experts"], 4),
    **dict.fromkeys(["moe_num_experts", "n_shared_experts", "num_experts_per_tok"], 2),
    **dict.fromkeys(["moe_intermediate_size", "shared_expert_intermediate_size"], 16),
    **dict.fromkeys(["shared_intermediate_size", "expert_ffn_hidden_size"], 16),
    **dict.fromkeys(["n_group", "topk_group", "first_k_dense_replace", "num_dense_layers"], 1),
    **dict.fromkeys(["linear_num_key_heads", "linear_num_value_heads", "linear_num_heads"], 4),
    **dict.fromkeys(["mamba_d_state", "mamba_d_head", "mamba_n_heads", "state_size"], 8),
    **dict.fromkeys(["ssm_state_size", "mamba_head_dim", "mamba_num_heads", "linear_head_dim"], 8),
    **dict.fromkeys(["mamba_n_groups", "n_groups", "mamba_dt_rank", "time_step_rank"], 2),
    **dict.fromkeys(["laurel_rank", "router_hidden_size", "hidden_size_per_layer_input"], 8),
    **dict.fromkeys(["index_n_heads", "index_head_dim"], 16),
    "mamba_d_ssm": 64,
    "num_kv_shared_layers": 0,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "cls_token_id": 1,
    "sep_token_id": 1,
}
VOCABULARY = ("vocab_size", "decoder_vocab_size", "src_vocab_size", "tgt_vocab_size")
VOCABULARY += ("vocab_size_per_layer_input", "input_vocab_size", "output_vocab_size")
# What the sizes above do not suit: heads and layers that belong together.
LINEAR = ["linear_attention", "full_attention"] * 2
ZAMBA = {"attention_hidden_size": 64, "attention_head_dim": 16}  # it reads two states at once
PARTICULAR: dict[str, dict[str, Any]] = {
    "bailing_hybrid": {"layer_types": LINEAR},
    "bamba": {"attn_layer_indices": [1]},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10_000.0},
        "ffn_config": {
            "hidden_size": 32,
            "ffn_hidden_size": 48,
            "moe_num_experts": 4,
            "moe_top_k": 2,
        },
    },
    "dots3_note_text": {"num_key_value_heads": 4},
    "falcon": {"new_decoder_architecture": True},
    "falcon_mamba": {"intermediate_size": 64},
    "fsmt": {"langs": ["en", "de"]},
    "gemma3n_text": {"intermediate_size": [48] * 4, "activation_sparsity_pattern": [0.0] * 4},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2},
    "kimi_linear": {"layer_types": LINEAR, "mlp_layer_types": ["dense", "sparse"] * 2},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "m2m_100": {"decoder_start_token_id": 1},
    "nllb-moe": {"decoder_start_token_id": 1},
    "seamless_m4t": {"decoder_start_token_id": 1},
    "seamless_m4t_v2": {"decoder_start_token_id": 1},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "mamba": {"intermediate_size": 64},
    "mamba2": {"num_heads": 8, "head_dim": 8, "expand": 2},
    "opt": {"ffn_dim": 48},
    "t5gemma": {"decoder_start_token_id": 1},
    "t5gemma2": {"decoder_start_token_id": 1},
    "zamba": {
        **ZAMBA,
        "num_hidden_layers": 6,
        "attn_layer_period": 3,
        "attn_layer_offset": 2,
        "n_mamba_heads": 2,
    },
    "zamba2": {
        **ZAMBA,
        "layers_block_type": ["mamba", "hybrid"] * 2,
        "n_mamba_heads": 8,
        "mamba_headdim": 8,
        "mamba_ngroups": 1,
        "num_mem_blocks": 1,
        "adapter_rank": 4,
    },
    "zaya": {"num_experts_per_tok": 1},
}


# ---- models --------------------------------------------------------------------------------------


def model_types() -> dict[str, bool]:
    """Every type that is a language model of transformers, and whether it is an encoder-decoder."""
    types = dict.fromkeys(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, False)
    types |= dict.fromkeys(MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES, True)
    return {name: types[name] for name in sorted(types)}


def small_config(model_type: str, vocabulary: int) -> PretrainedConfig:
    """The config of a type with small sizes. Any error of its class is passed on."""
    config_class = CONFIG_MAPPING[model_type]
    defaults = config_class()
    return config_class(**_settings_of(defaults, model_type, vocabulary))


SMALL_IMAGES = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}


def _settings_of(defaults: PretrainedConfig, model_type: str, vocabulary: int) -> dict[str, Any]:
    known = set(defaults.to_dict()) | set(defaults.attribute_map)
    known |= {"pad_token_id", "bos_token_id", "eos_token_id"}
    if defaults.is_encoder_decoder:
        known.add("decoder_start_token_id")
    sizes = SIZES | dict.fromkeys(VOCABULARY, vocabulary)
    own = {name: value for name, value in sizes.items() if name in known}
    for name, target in defaults.attribute_map.items():  # one of two names of a setting
        if name in own and target in own:
            del own[name]
    # a window that a type does not use by default stays so
    for name in list(own):
        if name.endswith(("window", "q_lora_rank")) and getattr(defaults, name, 0) is None:
            del own[name]
    if "kv_lora_rank" in own:  # every head has keys of its own
        own["num_key_value_heads"] = own["num_attention_heads"]
    for name in ("text_config", "encoder", "decoder"):
        part = getattr(defaults, name, None)
        if isinstance(part, PretrainedConfig):
            of_part = _settings_of(part, part.model_type, vocabulary)
            own[name] = of_part | {"model_type": part.model_type}
    if isinstance(getattr(defaults, "vision_config", None), PretrainedConfig):
        own["vision_config"] = SMALL_IMAGES | {"model_type": defaults.vision_config.model_type}
    return own | PARTICULAR.get(model_type, {})


def random_model(config: PretrainedConfig, is_encoder_decoder: bool) -> PreTrainedModel:
    """A model with weights so large that every token matters.

    Raises:
      UserError: it would not be small.
    """
    check_sizes(config)
    auto_class = AutoModelForSeq2SeqLM if is_encoder_decoder else AutoModelForCausalLM
    with torch.device("meta"):
        parameters = sum(p.numel() for p in auto_class.from_config(config).parameters())
    if parameters > 2e7:
        raise UserError(f"its config class leaves {parameters / 1e6:.0f} million parameters")
    torch.manual_seed(0)
    model = auto_class.from_config(config).eval()
    constants = constants_of(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and name not in constants:
                parameter.normal_(0, 0.2)
            elif name not in constants:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


# ---- checks --------------------------------------------------------------------------------------


def examine(model_type: str, is_encoder_decoder: bool, folder: Path) -> dict[str, Any]:
    """The row of one type.

    Returns:
      built: None, or why there is no small model.
      policy: None, or why it is refused as a policy.
      difference: the largest, in nats, of a token's log-probability between sampling, scoring and
        transformers.
      shares: what the responses to a prompt share: "cache", "prompt", "rows" or "nothing".
      lora: {adapters, difference}, or the reason; the difference after merging and loading again.
      reward_model: None, or why it is refused.
    """
    tokenizer = word_tokenizer([WORDS], add_eos=is_encoder_decoder)
    try:
        config = small_config(model_type, len(tokenizer))
        model = random_model(config, is_encoder_decoder)
        save_model(folder / "start", model, tokenizer)
    except Exception as error:  # a config class can require anything
        return {"built": _reason(error)}
    row: dict[str, Any] = {"built": None}
    try:
        policy = load_policy(folder / "start").eval()
        batch = _sampled(policy)
        row["policy"] = None
        published = type(model).from_pretrained(folder / "start").eval()
        row["difference"] = max(
            _difference(policy, batch, published), _difference_of_sampling(policy, batch)
        )
        row["shares"] = _shares(policy)
        row["lora"] = _lora(folder, batch)
    except Exception as error:
        row["policy"] = _reason(error)
    row["reward_model"] = _reward_model(folder / "start")
    return row


def _sampled(policy: Policy) -> dict[str, Tensor]:
    """Prompts, two sampled responses to each, and their log-probabilities in sampling."""
    ids_GP, mask_GP = policy.encode(PROMPTS)
    seeds = list(range(len(PROMPTS) * NUM_SAMPLES))
    response = policy.generate(ids_GP, mask_GP, SAMPLING, seeds, NUM_SAMPLES)
    return {
        "prompt_ids_BP": ids_GP.repeat_interleave(NUM_SAMPLES, 0),
        "prompt_mask_BP": mask_GP.repeat_interleave(NUM_SAMPLES, 0),
        "response_ids_BT": response.ids_BT,
        "response_mask_BT": response.mask_BT,
        "sampled_BT": response.logprobs_BT,
    }


@torch.no_grad()
def _scored(policy: Policy, batch: dict[str, Tensor]) -> Tensor:
    """logprobs_BT of the policy in an update; 0 on padding."""
    names = ("prompt_ids_BP", "prompt_mask_BP", "response_ids_BT", "response_mask_BT")
    logprobs_BT = policy(*(batch[name] for name in names))[0].logprobs_BT
    return logprobs_BT * batch["response_mask_BT"]


def _difference_of_sampling(policy: Policy, batch: dict[str, Tensor]) -> float:
    sampled_BT = batch["sampled_BT"] * batch["response_mask_BT"]
    return float((_scored(policy, batch) - sampled_BT).abs().max())


@torch.no_grad()
def _difference(policy: Policy, batch: dict[str, Tensor], published: PreTrainedModel) -> float:
    """Between scoring and a model that transformers loads, which reads every text alone."""
    scored_BT = _scored(policy, batch)
    largest = 0.0
    for b, ids_T in enumerate(batch["response_ids_BT"]):
        ids_T = ids_T[batch["response_mask_BT"][b].bool()]
        prompt = batch["prompt_ids_BP"][b][batch["prompt_mask_BP"][b].bool()]
        if isinstance(policy, EncoderDecoderPolicy):
            start = torch.tensor(policy.decoder_start_ids)
            inputs = {
                "input_ids": prompt[None],
                "decoder_input_ids": torch.cat([start, ids_T[:-1]])[None],
            }
        else:
            inputs = {"input_ids": torch.cat([prompt, ids_T[:-1]])[None]}
        logits_TV = published(**inputs, use_cache=False).logits[0, -len(ids_T) :].float()
        expected_T = logits_TV.log_softmax(-1).gather(-1, ids_T[:, None])[:, 0]
        largest = max(largest, float((scored_BT[b, : len(ids_T)] - expected_T).abs().max()))
    return largest


def _shares(policy: Policy) -> str:
    if shares_cache(policy.model):
        return "cache"
    if shares_prompts(policy.model):
        return "prompt"
    return "rows" if can_share(policy.model) else "nothing"


def _lora(folder: Path, batch: dict[str, Tensor]) -> dict[str, Any] | str:
    """Random adapters: merged, saved and loaded again, the policy gives the same."""
    try:
        policy = load_policy(folder / "start", lora=LoRAConfig(r=2, alpha=4.0)).eval()
        torch.manual_seed(1)
        adapters = 0
        for name, parameter in policy.named_parameters():
            if ".lora_B." in name:
                torch.nn.init.normal_(parameter, std=0.05)
                adapters += 1
        expected_BT = _scored(policy, batch)
        policy.save(folder / "merged")
        merged = load_policy(folder / "merged").eval()
        difference = float((_scored(merged, batch) - expected_BT).abs().max())
    except Exception as error:
        return _reason(error)
    return {"adapters": adapters, "difference": difference}


def _reward_model(folder: Path) -> str | None:
    try:
        load_network(RMModelConfig(ckpt=str(folder), shape="auto", max_input_len=128), "sequence")
    except Exception as error:
        return _reason(error)
    return None


def _reason(error: Exception) -> str:
    kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
    return shorten(kind + str(error).replace("\n", " "), 300)


# ---- processes -----------------------------------------------------------------------------------


def _child(model_type: str, is_encoder_decoder: bool, result: Path) -> None:
    """Examine one type and write its row. Its messages are not shown."""
    limit = GIGABYTES * 2**30
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    with tempfile.TemporaryDirectory(prefix="families_") as folder:
        write_json(result, examine(model_type, is_encoder_decoder, Path(folder)))


def run(output_dir: Path, types: dict[str, bool]) -> None:
    """Write the row of every type that has none yet."""
    output_dir.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("fork")  # torch and transformers are imported only once
    for n, (model_type, is_encoder_decoder) in enumerate(types.items(), 1):
        result = output_dir / f"{model_type}.json"
        if result.exists():
            continue
        process = context.Process(target=_child, args=(model_type, is_encoder_decoder, result))
        process.start()
        process.join(SECONDS)
        if process.is_alive():
            process.kill()
            process.join()
            write_json(result, {"built": f"it takes more than {SECONDS} s"})
        elif not result.exists():
            code = process.exitcode or 0
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            write_json(result, {"built": f"its process ended early ({how})"})
        print(f"{n}/{len(types)} {model_type}", flush=True)


# ---- the table -----------------------------------------------------------------------------------


def table(rows: dict[str, dict[str, Any]], types: dict[str, bool]) -> str:
    """The table of docs/models.md, in Markdown."""
    policies = {name: row for name, row in rows.items() if row.get("policy", "") is None}
    lines = [
        f"Made by `make families` with transformers {transformers.__version__}, torch"
        f" {torch.__version__.split('+')[0]}: {len(policies)} of {len(rows)} types are policies.",
        "",
        "| type | kind | largest difference | shares | LoRA: adapters, difference | reward model |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in policies.items():
        kind = "encoder-decoder" if types[name] else "decoder"
        lora = row["lora"]
        if isinstance(lora, dict):
            adapted = f"{lora['adapters']}, {_number(lora['difference'])}"
        else:
            adapted = f"no: {_short(lora)}"
        judged = "yes" if row["reward_model"] is None else f"no: {_short(row['reward_model'])}"
        lines.append(
            f"| {name} | {kind} | {_number(row['difference'])} | {row['shares']} | {adapted} |"
            f" {judged} |"
        )
    lines += ["", "| refused as a policy | types (as a reward model: *) |", "|---|---|"]
    reasons = defaultdict(list)
    for name, row in rows.items():
        if row["built"] is None and row["policy"] is not None:
            mark = "*" if row["reward_model"] is None else ""
            reasons[_short(row["policy"])].append(name + mark)
    lines += [f"| {reason} | {', '.join(names)} |" for reason, names in sorted(reasons.items())]
    unbuilt = [name for name, row in rows.items() if row["built"] is not None]
    lines += ["", f"Not tried, because no small model could be built: {', '.join(unbuilt)}."]
    return "\n".join(lines)


def _number(difference: float) -> str:
    text = f"{difference:.0e}".replace("e-0", "e-").replace("e+00", "")
    return text if difference <= AGREES else f"**{text}**"


REASONS = {  # a part of a message: what the table says; the first that fits
    "in texts of more than": "wrong in texts that are longer than its window",
    "it is an encoder": "an encoder",
    "prompt with padding": "padding changes its results",
    "token by token, with a cache": "steps with a cache differ from a whole text",
    "computes different logits than the policy": "changes its logits after the output layer",
    "trial run of sampling and scoring": "other arguments or another cache",
    "a cache of transformers": "no layer of attention",
    "its own forward pass": "its forward pass fails",
    "config for each of its parts": "several configs",
    "Multiple valid text configs": "several text configs",
    "would be partly random": "lacks tensors of its other parts",
}


def _short(reason: str) -> str:
    for part, short in REASONS.items():
        if part in reason:
            return short
    text = re.sub(r"`[^`]*/families_[^`]*`", "the model", reason)
    text = re.sub(r"\S*/families_\S*", "the model", text)
    return shorten(text.replace("|", "/"), 90)


class FamiliesSettings(StrictModel):
    """`make families`."""

    output_dir: Path = Field(Path("outputs/families"), description="rows of the table")
    types: list[str] = Field([], description="only these types; the document keeps its table")


def main(settings: FamiliesSettings) -> None:
    torch.set_num_threads(1)  # a process that is forked cannot use the threads of its parent
    types = model_types()
    chosen = {name: types[name] for name in settings.types or types}
    run(settings.output_dir, chosen)
    text = table({name: read_json(settings.output_dir / f"{name}.json") for name in chosen}, types)
    if settings.types:
        print(text)
    else:
        replace_part(DOCUMENT, "families", f"\n{text}\n")


if __name__ == "__main__":
    run_program(main, FamiliesSettings)
