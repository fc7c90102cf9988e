"""Tiny random models of many families: folders to load, with the tokenizer of tiny.py.

The policies of tiny.py are for properties that every policy has. These are for what a family does
differently: scaled logits, other config keys, experts, several kinds of positions.
"""

from pathlib import Path

import tiny
import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    CohereConfig,
    CTRLConfig,
    DeepseekV3Config,
    FalconConfig,
    Gemma2Config,
    Gemma3nTextConfig,
    GraniteConfig,
    LEDConfig,
    MarianConfig,
    MBartConfig,
    ModernBertDecoderConfig,
    MptConfig,
    OPTConfig,
    PegasusConfig,
    PhimoeConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen3MoeConfig,
    SwitchTransformersConfig,
    T5Config,
    UMT5Config,
    XLNetConfig,
)

from fgrlhf.models.loading import constants_of

SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
DECODER = {
    "vocab_size": len(tiny.tokenizer()),
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 130,
    **SPECIAL,
}
GROUPED = {**DECODER, "num_key_value_heads": 2}
T5 = {
    "vocab_size": len(tiny.tokenizer()),
    "d_model": 32,
    "d_kv": 8,
    "num_heads": 4,
    "d_ff": 48,
    "num_layers": 2,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
}

BART = {
    "vocab_size": len(tiny.tokenizer()),
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 130,
    "decoder_start_token_id": 1,
    **SPECIAL,
}
OPT = {
    "vocab_size": len(tiny.tokenizer()),
    "hidden_size": 32,
    "ffn_dim": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 130,
    **SPECIAL,
}

DECODERS = {  # name: (config, its settings)
    "cohere": (CohereConfig, {**GROUPED, "logit_scale": 0.25}),
    "ctrl": (
        CTRLConfig,
        {
            "vocab_size": len(tiny.tokenizer()),
            "n_positions": 130,
            "n_embd": 32,
            "dff": 48,
            "n_layer": 2,
            "n_head": 4,
            **SPECIAL,
        },
    ),
    "deepseek-v3": (
        DeepseekV3Config,
        {
            **DECODER,
            "q_lora_rank": 8,
            "kv_lora_rank": 8,
            "qk_nope_head_dim": 4,
            "qk_rope_head_dim": 4,
            "v_head_dim": 8,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "moe_intermediate_size": 16,
            "first_k_dense_replace": 1,
        },
    ),
    "falcon": (
        FalconConfig,
        {**DECODER, "new_decoder_architecture": True, "num_kv_heads": 2},
    ),
    "gemma2": (Gemma2Config, {**GROUPED, "head_dim": 8, "final_logit_softcapping": 2.0}),
    "gemma3n": (
        Gemma3nTextConfig,
        {
            **GROUPED,
            "head_dim": 8,
            "vocab_size_per_layer_input": len(tiny.tokenizer()),
            "hidden_size_per_layer_input": 8,
            "layer_types": ["sliding_attention", "full_attention"],
            "num_kv_shared_layers": 0,
            "laurel_rank": 4,
            "intermediate_size": [48, 48],
            "activation_sparsity_pattern": [0.0, 0.0],
        },
    ),
    "granite": (GraniteConfig, {**GROUPED, "logits_scaling": 3.0}),
    "modernbert-decoder": (
        ModernBertDecoderConfig,
        {**DECODER, "cls_token_id": 1, "sep_token_id": 1},
    ),
    "mpt": (
        MptConfig,
        {
            "vocab_size": len(tiny.tokenizer()),
            "d_model": 32,
            "n_heads": 4,
            "n_layers": 2,
            "max_seq_len": 40,
            **SPECIAL,
        },
    ),
    "opt": (OPTConfig, {**OPT, "word_embed_proj_dim": 32}),
    "opt-350m": (
        OPTConfig,
        {**OPT, "word_embed_proj_dim": 16, "do_layer_norm_before": False},
    ),
    "phimoe": (PhimoeConfig, {**GROUPED, "num_local_experts": 4}),
    "qwen3-moe": (
        Qwen3MoeConfig,
        {
            **GROUPED,
            "head_dim": 8,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "mlp_only_layers": [0],
        },
    ),
}
ENCODER_DECODERS = {
    "led": (
        LEDConfig,
        {
            **{key: BART[key] for key in BART if key != "max_position_embeddings"},
            "max_encoder_position_embeddings": 128,
            "max_decoder_position_embeddings": 40,
            "attention_window": 8,
        },
    ),
    "marian": (
        MarianConfig,
        {
            **BART,
            "decoder_vocab_size": len(tiny.tokenizer()),
            "share_encoder_decoder_embeddings": False,
            "tie_word_embeddings": False,
        },
    ),
    "mbart": (MBartConfig, BART),
    "pegasus": (PegasusConfig, BART),
    "switch": (SwitchTransformersConfig, {**T5, "num_experts": 2}),
    "t5": (T5Config, T5),
    "umt5": (UMT5Config, T5),
}
LINEAR = {
    "linear_conv_kernel_dim": 3,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
MAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 8,
    "mamba_chunk_size": 8,
}
FEW_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LATENTS = {
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_group": 1,
    "topk_group": 1,
}
HYBRIDS = {  # models with recurrent layers, by model type
    "bamba": {**GROUPED, **MAMBA, "attn_layer_indices": [1]},
    "falcon_h1": {**GROUPED, **MAMBA, "mamba_d_ssm": 64, "head_dim": 8},
    "granitemoehybrid": {
        **GROUPED,
        **MAMBA,
        "layer_types": ["mamba", "attention"],
        "num_local_experts": 4,
        "shared_intermediate_size": 32,
    },
    "jamba": {
        **GROUPED,
        "num_experts": 4,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "mamba_d_state": 8,
        "mamba_dt_rank": 4,
    },
    "kimi_linear": {
        **DECODER,
        **LATENTS,
        "num_key_value_heads": 4,
        "layer_types": ["linear_attention", "full_attention"],
        "mlp_layer_types": ["dense", "sparse"],
        "linear_head_dim": 8,
        "linear_num_heads": 4,
        "linear_conv_kernel_dim": 3,
    },
    "lfm2": {**GROUPED, "layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {
        **GROUPED,
        **FEW_EXPERTS,
        "layer_types": ["conv", "full_attention"],
        "num_dense_layers": 1,
    },
    "olmo_hybrid": {
        **GROUPED,
        **LINEAR,
        "linear_num_value_heads": 2,
        "layer_types": ["linear_attention", "full_attention"],
    },
    "qwen3_5_text": {
        **GROUPED,
        **LINEAR,
        "head_dim": 8,
        "layer_types": ["linear_attention", "full_attention"],
    },
    "qwen3_next": {
        **GROUPED,
        **LINEAR,
        **FEW_EXPERTS,
        "head_dim": 8,
        "shared_expert_intermediate_size": 16,
        "layer_types": ["linear_attention", "full_attention"],
    },
    "zaya": {
        **GROUPED,
        **FEW_EXPERTS,
        "num_experts_per_tok": 1,
        "head_dim": 8,
        "router_hidden_size": 16,
    },
}
OTHERS = {
    "xlnet": (
        XLNetConfig,
        {
            "vocab_size": len(tiny.tokenizer()),
            "d_model": 32,
            "n_layer": 2,
            "n_head": 4,
            "d_inner": 48,
            **SPECIAL,
        },
    ),
}
FAMILIES = {**DECODERS, **ENCODER_DECODERS, **OTHERS}


def config_of(family: str, **changes) -> PretrainedConfig:
    if family in HYBRIDS:
        return AutoConfig.for_model(family, **{**HYBRIDS[family], **changes})
    config_class, settings = FAMILIES[family]
    return config_class(**{**settings, **changes})


def random_model(config: PretrainedConfig) -> PreTrainedModel:
    """A model with weights so large that every token matters; a language model if it can be one."""
    torch.manual_seed(0)
    if config.is_encoder_decoder:
        auto_class = AutoModelForSeq2SeqLM
    elif type(config) in AutoModelForCausalLM._model_mapping:
        auto_class = AutoModelForCausalLM
    else:
        auto_class = AutoModel
    model = auto_class.from_config(config).eval()
    with torch.no_grad():
        constants = constants_of(model)
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and name not in constants:
                parameter.normal_(0, 0.2)
    return model


def save(family: str, folder: Path, **changes) -> PreTrainedModel:
    """Write a model's folder, with `changes` to its config; return the model."""
    model = random_model(config_of(family, **changes))
    model.save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return model
