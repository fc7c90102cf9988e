"""Folders of peft, TRL and transformers as starts, and our folders as theirs."""

import json
from copy import deepcopy
from pathlib import Path

import pytest
import tiny
import torch
from peft import IA3Config, LoKrConfig, LoraConfig, PromptTuningConfig, VeraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
)

from fgrlhf.base.errors import UserError
from fgrlhf.cli.data import main
from fgrlhf.configs.sections import Sampling
from fgrlhf.models.saving import check_written, ignored_settings
from fgrlhf.models.trunk import require_trained
from fgrlhf.policy import load_policy
from fgrlhf.reward_models.conversation import ConversationReader
from fgrlhf.reward_models.loading import load_reward_model
from fgrlhf.reward_models.prefix import text_prefix
from fgrlhf.scorers.classifier import LabelScorer
from fgrlhf.scorers.kinds import ClassifierScorer
from fgrlhf.text_types import Prompt

TEXT = "the red cat sees"


def logits_of(folder) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        return model(tokenizer(TEXT, return_tensors="pt")["input_ids"]).logits


def logits_of_policy(policy) -> torch.Tensor:
    with torch.no_grad():
        return policy.model(policy.tokenizer(TEXT, return_tensors="pt")["input_ids"]).logits


def adapt(model, config, folder: Path) -> torch.nn.Module:
    """Save an adapter with random weights on a model; returns the adapted model."""
    adapted = get_peft_model(model, config)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.add_(0.3 * torch.randn_like(parameter))
    adapted.save_pretrained(folder)
    return adapted.eval()


C_ATTN = {"r": 4, "target_modules": ["c_attn"], "fan_in_fan_out": True}


@pytest.fixture
def adapter(tmp_path) -> tuple[Path, torch.Tensor]:
    """An adapter's folder, and the logits of base and adapter together."""
    tiny.gpt2().save(tmp_path / "base")
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "base")
    adapted = adapt(base, LoraConfig(task_type="CAUSAL_LM", **C_ATTN), tmp_path / "adapter")
    with torch.no_grad():
        logits = adapted(tokenizer(TEXT, return_tensors="pt")["input_ids"]).logits
    return tmp_path / "adapter", logits


def test_an_adapter_is_named_and_merged_with_its_model(adapter, tmp_path):
    folder, expected = adapter
    policy = load_policy(folder)
    assert torch.allclose(logits_of_policy(policy), expected, atol=1e-5)
    require_trained(policy.model)
    assert load_policy(folder, empty=True).model.device.type == "meta"
    with pytest.raises(UserError, match="is an adapter of"):
        load_reward_model(folder, text_prefix, mean=0.0, std=1.0)
    assert (expected - logits_of(tmp_path / "base")).abs().max() > 0.1
    main(["model", str(folder), f"output_dir={tmp_path}/merged"])
    assert torch.allclose(logits_of(tmp_path / "merged"), expected, atol=1e-5)
    require_trained(load_policy(tmp_path / "merged").model)
    with pytest.raises(UserError, match="exists"):
        main(["model", str(folder), f"output_dir={tmp_path}/merged"])


def test_a_pickled_adapter_is_merged_too(adapter, tmp_path):
    folder, expected = adapter
    torch.save(load_file(folder / "adapter_model.safetensors"), folder / "adapter_model.bin")
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(UserError, match="is an adapter of"):
        load_policy(folder)
    main(["model", str(folder), f"output_dir={tmp_path}/merged"])
    assert torch.allclose(logits_of(tmp_path / "merged"), expected, atol=1e-5)


def test_weights_beside_an_adapter_are_refused_and_merged_once(adapter, tmp_path):
    folder, expected = adapter
    tiny.gpt2().save(folder)  # the base's weights, in the folder of the adapter
    with pytest.raises(UserError, match="weights and an adapter.*remove adapter_config.json"):
        load_policy(folder)
    config = json.loads((folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = str(folder)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    main(["model", str(folder), f"output_dir={tmp_path}/merged"])
    assert torch.allclose(logits_of(tmp_path / "merged"), expected, atol=1e-5)


def test_files_of_a_trainer_beside_an_adapter_are_no_weights(adapter):
    """Checkpoints of transformers' Trainer and reward models of LLaMA-Factory have them."""
    folder, _ = adapter
    for name in ("rng_state.pth", "optimizer.pt", "scaler.pt", "value_head.safetensors"):
        (folder / name).write_bytes(b"x")
    load_policy(folder)


@pytest.mark.parametrize("name", ["value_head.safetensors", "vhead_params.bin"])
def test_scores_beside_an_adapter_stay_beside_the_merged_model(adapter, name, tmp_path):
    """LLaMA-Factory's reward models with LoRA are a language model and a file of scores."""
    folder, expected = adapter
    (folder / name).write_bytes(b"x")
    main(["model", str(folder), f"output_dir={tmp_path}/merged"])
    assert torch.allclose(logits_of(tmp_path / "merged"), expected, atol=1e-5)
    assert (tmp_path / "merged" / name).read_bytes() == b"x"
    with pytest.raises(UserError, match=f"scores are in {name}.*score.weight is v_head"):
        load_reward_model(tmp_path / "merged", text_prefix, mean=0.0, std=1.0)


def test_an_adapter_of_mlx_is_named(tmp_path):
    (tmp_path / "adapters.safetensors").write_bytes(b"x")
    (tmp_path / "adapter_config.json").write_text('{"fine_tune_type": "lora", "num_layers": 4}')
    with pytest.raises(UserError, match="is an adapter of MLX .*mlx_lm.fuse"):
        load_policy(tmp_path)
    with pytest.raises(UserError, match="is an adapter of MLX .*mlx_lm.fuse"):
        main(["model", str(tmp_path), f"output_dir={tmp_path}/merged"])


def test_new_tokens_need_their_embeddings(adapter, tmp_path):
    folder, _ = adapter
    words = AutoTokenizer.from_pretrained(tmp_path / "base")
    words.add_tokens([f"<new {i}>" for i in range(100)])
    words.save_pretrained(folder)
    with pytest.raises(UserError, match="tokenizer has tokens up to .* but the network has only"):
        main(["model", str(folder), f"output_dir={tmp_path}/merged"])


OBSTACLES = {
    "changed at its start by random numbers": {"init_lora_weights": "pissa_niter_2"},
    "reads layers of its model twice": {"layer_replication": [[0, 1], [0, 1]]},
    "acts only after certain tokens": {"alora_invocation_tokens": [3]},
}


@pytest.mark.parametrize("reason", OBSTACLES)
def test_adapters_that_no_weights_can_hold_are_refused(adapter, reason, tmp_path):
    folder, _ = adapter
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | OBSTACLES[reason]))
    with pytest.raises(UserError, match=reason):
        main(["model", str(folder), f"output_dir={tmp_path}/merged"])


WEIGHTS_OF_TRAINERS = {
    "DeepSpeed.*zero_to_fp32.py": "global_step9/zero_pp_rank_0_mp_rank_00_model_states.pt",
    "FSDP.*accelerate merge-weights": "pytorch_model_fsdp_0/__0_0.distcp",
    "verl.*verl.model_merger": "model_world_size_2_rank_0.pt",
    "GGUF": "a.gguf",
}


@pytest.mark.parametrize("message", WEIGHTS_OF_TRAINERS)
def test_weights_that_a_trainer_left_in_parts_are_named(message, tmp_path):
    tiny.gpt2().save(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    first = WEIGHTS_OF_TRAINERS[message]
    of_optimizer = ("optimizer_0/__0_0.distcp", "extra_state_world_size_2_rank_0.pt")
    for name in (first, "training_args.bin", *of_optimizer):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(UserError, match=f"its weights are {first} .*{message}"):
        load_policy(tmp_path)


def test_a_config_beside_the_parts_of_verl_leads_to_them(tmp_path):
    tiny.gpt2().save(tmp_path / "huggingface")
    (tmp_path / "huggingface" / "model.safetensors").unlink()
    (tmp_path / "model_world_size_2_rank_0.pt").write_bytes(b"x")
    with pytest.raises(UserError, match="no weights .*above it has .*verl: .*verl.model_merger"):
        load_policy(tmp_path / "huggingface")


def test_what_cannot_be_merged_is_explained(adapter, tmp_path):
    folder, _ = adapter
    out = f"output_dir={tmp_path}/merged"
    with pytest.raises(UserError, match="base names the model of an adapter"):
        main(["model", str(tmp_path / "base"), out, "base=x"])
    tiny.policy("llama").save(tmp_path / "other")
    with pytest.raises(UserError, match="cannot be merged with .*other|no place for"):
        main(["model", str(folder), out, f"base={tmp_path}/other"])
    (folder / "adapter_model.safetensors").write_bytes(b"damaged")
    with pytest.raises(UserError, match="cannot be read"):
        main(["model", str(folder), out])
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match="does not name the model"):
        main(["model", str(folder), out])
    assert not (tmp_path / "merged").exists()


def test_an_adapter_of_a_reward_model_brings_its_head(tmp_path):
    tiny.gpt2().save(tmp_path / "base")
    base = AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "base", num_labels=1, pad_token_id=0
    )
    adapted = adapt(base, LoraConfig(task_type="SEQ_CLS", **C_ATTN), tmp_path / "adapter")
    ids = AutoTokenizer.from_pretrained(tmp_path / "base")(TEXT, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        expected = adapted(ids).logits
    main(["model", str(tmp_path / "adapter"), f"output_dir={tmp_path}/merged"])
    merged = AutoModelForSequenceClassification.from_pretrained(tmp_path / "merged").eval()
    assert torch.allclose(merged(ids).logits, expected, atol=1e-5)


QV = {"target_modules": ["q_proj", "v_proj"]}
TABLES = {"target_modules": ["embed_tokens", "q_proj"]}
ADAPTERS = {
    "dora": LoraConfig(use_dora=True, **QV),
    "rslora": LoraConfig(use_rslora=True, rank_pattern={"q_proj": 2}, **QV),
    "embeddings": LoraConfig(**TABLES),
    "embeddings and output": LoraConfig(ensure_weight_tying=True, **TABLES),
    "output": LoraConfig(target_modules=["lm_head", "q_proj"]),
    "whole output": LoraConfig(modules_to_save=["lm_head"], **QV),
    "tokens": LoraConfig(trainable_token_indices=[3, 4], **QV),
    "ia3": IA3Config(target_modules=["v_proj", "down_proj"], feedforward_modules=["down_proj"]),
    "lokr": LoKrConfig(r=4, **QV),
    "vera": VeraConfig(r=4, target_modules=["q_proj"]),
}


@pytest.mark.filterwarnings("ignore::UserWarning:peft")
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("kind", ADAPTERS)
def test_adapters_of_every_kind_are_merged(kind, tied, tmp_path):
    """Embeddings and output layer may share weights, of which an adapter may change one."""
    words = tiny.tokenizer()
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(words),
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=1,
            num_attention_heads=4,
            pad_token_id=0,
            eos_token_id=1,
            tie_word_embeddings=tied,
            initializer_range=0.2,
        )
    )
    model.save_pretrained(tmp_path / "base")
    words.save_pretrained(tmp_path / "base")
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    adapted = adapt(base, deepcopy(ADAPTERS[kind]), tmp_path / "adapter")
    with torch.no_grad():
        expected = adapted(words(TEXT, return_tensors="pt")["input_ids"]).logits
    main(["model", str(tmp_path / "adapter"), f"output_dir={tmp_path}/merged"])
    assert (expected - logits_of(tmp_path / "base")).abs().max() > 0.1
    assert torch.allclose(logits_of(tmp_path / "merged"), expected, atol=1e-4)
    start = load_policy(tmp_path / "adapter")
    assert torch.allclose(logits_of_policy(start), expected, atol=1e-4)
    start.save(tmp_path / "saved")
    assert torch.allclose(logits_of(tmp_path / "saved"), expected, atol=1e-4)


def test_a_trained_prompt_is_no_weight(adapter, tmp_path):
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    config = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    adapt(base, config, tmp_path / "prompt")
    with pytest.raises(UserError, match="is a trained prompt"):
        main(["model", str(tmp_path / "prompt"), f"output_dir={tmp_path}/merged"])


def test_layers_that_training_made_must_be_in_the_adapter(tmp_path):
    """A masked language model has no pooler, with which the classifier was trained."""
    words = tiny.tokenizer()
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
    bert = BertForMaskedLM(BertConfig(vocab_size=len(words), num_attention_heads=4, **sizes))
    bert.save_pretrained(tmp_path / "base")
    words.save_pretrained(tmp_path / "base")
    base = AutoModelForSequenceClassification.from_pretrained(tmp_path / "base", num_labels=2)
    config = LoraConfig(task_type="SEQ_CLS", target_modules=["query"])
    adapt(deepcopy(base), config, tmp_path / "adapter")
    with pytest.raises(UserError, match="pooler.*modules_to_save"):
        main(["model", str(tmp_path / "adapter"), f"output_dir={tmp_path}/merged"])
    # a head that is nowhere, although the adapter names no task
    adapt(base, LoraConfig(target_modules=["query"]), tmp_path / "no task")
    with pytest.raises(UserError, match="no tensor of the head"):
        main(["model", str(tmp_path / "no task"), f"output_dir={tmp_path}/merged"])


def test_a_folder_that_computes_something_else_is_not_written(tmp_path):
    tiny.t5().save(tmp_path / "base")
    base = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "base")
    # the copy of the embeddings is trained, but both stacks read the original
    config = LoraConfig(task_type="SEQ_2_SEQ_LM", target_modules=["q"], modules_to_save=["shared"])
    adapt(base, config, tmp_path / "adapter")
    with pytest.raises(UserError, match="computes something else"):
        main(["model", str(tmp_path / "adapter"), f"output_dir={tmp_path}/merged"])
    assert not (tmp_path / "merged").exists()


def test_a_run_without_trained_parameters_is_refused():
    policy = tiny.gpt2()
    policy.model.requires_grad_(False)
    with pytest.raises(UserError, match="none of the parameters of GPT2LMHeadModel"):
        require_trained(policy.model)


def test_a_saved_folder_without_weights_is_an_error(tmp_path):
    tiny.gpt2().save(tmp_path)
    check_written(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UserError, match="without the model's config or weights"):
        check_written(tmp_path)


# ---- what other programs read in a saved policy --------------------------------------------------


def test_a_saved_policy_names_every_token_that_ends_a_response(tmp_path):
    policy = tiny.chat()  # the end of its turn is not its end-of-sequence token
    policy.save(tmp_path)
    saved = GenerationConfig.from_pretrained(tmp_path)
    assert saved.eos_token_id == policy.eos_ids == [1, 6]
    assert saved.pad_token_id == policy.tokenizer.pad_token_id
    assert policy.model.generation_config.eos_token_id != [1, 6]  # only the folder has them


def test_generate_of_transformers_gives_the_answers_of_a_saved_policy(tmp_path):
    policy = tiny.chat().eval()
    policy.model.generation_config.update(
        repetition_penalty=5.0, temperature=0.2, top_k=3, suppress_tokens=[6], min_new_tokens=7
    )
    policy.model.generation_config.forced_eos_token_id = 1
    policy.save(tmp_path)
    ids_BP, mask_BP = policy.encode(["the red cat", "a dog"])
    ours = policy.generate(ids_BP, mask_BP, Sampling(12, do_sample=False))
    model = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    theirs = model.generate(input_ids=ids_BP, attention_mask=mask_BP, max_new_tokens=12)
    theirs_BT = theirs[:, ids_BP.shape[1] :]
    assert theirs_BT.tolist() == ours.ids_BT[:, : theirs_BT.shape[1]].tolist()


def test_settings_that_training_ignores_are_noted_and_not_saved(tmp_path, capsys):
    tiny.gpt2().save(tmp_path / "start")
    assert not ignored_settings(GenerationConfig.from_pretrained(tmp_path / "start"))
    path = tmp_path / "start" / "generation_config.json"
    changed = {
        "repetition_penalty": 1.2,
        "temperature": 0.7,
        "do_sample": True,
        "top_k": 20,
        "suppress_tokens": [5],
        "min_new_tokens": 3,
        "forced_eos_token_id": 1,
    }
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))
    policy = load_policy(tmp_path / "start")
    note = capsys.readouterr().err
    for name in changed:
        assert (name in note) == (name != "do_sample"), name
    policy.save(tmp_path / "end")
    saved = json.loads((tmp_path / "end" / "generation_config.json").read_text())
    assert not changed.keys() & saved.keys()


def test_a_saved_tokenizer_cuts_and_pads_nothing(tmp_path):
    policy = tiny.gpt2()
    policy.encode(["the red cat", "a dog"])
    policy.save(tmp_path)
    saved = json.loads((tmp_path / "tokenizer.json").read_text())
    assert saved["truncation"] is None and saved["padding"] is None
    long = "the red cat " * 100
    ids = Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode(long).ids
    assert ids == policy.tokenizer(long)["input_ids"]


SCALED = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
    "partial_rotary_factor": 1.0,
}


def test_a_saved_policy_has_the_names_of_transformers_4_too(tmp_path):
    """It has no other names, and would take its default base of the rotary embeddings."""
    policy = tiny.policy("llama")
    rope = {"rope_theta": 5e5, **SCALED}
    policy.model.config.rope_parameters = dict(rope)
    policy.tokenizer.add_special_tokens({"additional_special_tokens": ["<turn>"]})
    policy.model.resize_token_embeddings(len(policy.tokenizer))
    policy.save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    partial = SCALED.copy()
    assert (config["rope_theta"], config["partial_rotary_factor"]) == (
        5e5,
        partial.pop("partial_rotary_factor"),
    )
    assert config["rope_scaling"] == partial
    words = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert words["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert words["additional_special_tokens"] == ["<turn>"]
    assert "extra_special_tokens" not in words
    again = load_policy(tmp_path)
    assert again.model.config.rope_parameters == rope
    assert again.tokenizer.all_special_tokens == policy.tokenizer.all_special_tokens


def test_use_cache_is_saved_as_it_was_loaded(tmp_path):
    policy = tiny.gpt2()
    policy.model.config.use_cache = False  # as the Trainer of transformers does
    policy.save(tmp_path)
    assert AutoModelForCausalLM.from_pretrained(tmp_path).config.use_cache is True
    assert policy.model.config.use_cache is False


# ---- reward models of other programs -------------------------------------------------------------

TEMPLATE = (
    "{% for m in messages %}<turn>{{ m.role }}: {{ m.content }}<turn_end>{% endfor %}"
    "{% if add_generation_prompt %}<turn>assistant: {% endif %}"
)
PROMPTS = [Prompt("0", "the red cat"), Prompt("1", "a dog")]
ANSWERS = ["sees a dog.", "likes the bird, and the cat"]


def foreign_reward_model(folder: Path, template: str | None):
    """A random decoder-only classifier as TRL saves it, with the tokenizer that it reads by."""
    torch.manual_seed(0)
    policy = tiny.gpt2("bpe")
    tokenizer = policy.tokenizer
    if template is not None:
        tokenizer.add_special_tokens({"additional_special_tokens": ["<turn>", "<turn_end>"]})
        tokenizer.chat_template = template
        policy.model.resize_token_embeddings(len(tokenizer))
    policy.save(folder / "base")
    model = AutoModelForSequenceClassification.from_pretrained(
        folder / "base", num_labels=1, pad_token_id=tokenizer.pad_token_id
    ).eval()
    torch.nn.init.normal_(model.score.weight, std=2.0)
    model.save_pretrained(folder / "rm")
    tokenizer.save_pretrained(folder / "rm")
    return model, AutoTokenizer.from_pretrained(folder / "rm")


def written(tokenizer, prompt: Prompt, answer: str) -> list[int]:
    """What TRL reads of a prompt and its answer."""
    if not tokenizer.chat_template:
        return tokenizer(prompt.text + answer + tokenizer.eos_token)["input_ids"]
    talk = [{"role": "user", "content": prompt.text}, {"role": "assistant", "content": answer}]
    return tokenizer.apply_chat_template(talk, return_dict=True)["input_ids"]


@pytest.mark.parametrize(
    "template, padding", [(TEMPLATE, None), (None, None), (TEMPLATE, "<turn_end>")]
)
def test_a_reward_model_of_another_program_reads_what_it_was_trained_on(
    template, padding, tmp_path, capsys
):
    """The padding token of the config counts: before it, models read their score."""
    model, tokenizer = foreign_reward_model(tmp_path, template)
    if padding is not None:
        model.config.pad_token_id = tokenizer.convert_tokens_to_ids(padding)
        model.save_pretrained(tmp_path / "rm")
    with torch.no_grad():
        expected = [
            model(torch.tensor([written(tokenizer, prompt, answer)])).logits.item()
            for prompt, answer in zip(PROMPTS, ANSWERS)
        ]
    scorer = load_reward_model(tmp_path / "rm", text_prefix, mean=0.0, std=1.0)
    assert scorer.score(PROMPTS, ANSWERS).tolist() == pytest.approx(expected, abs=1e-4)
    assert "the first text that" in capsys.readouterr().err
    config = ClassifierScorer(ckpt=str(tmp_path / "rm"), label="LABEL_0", score="log_odds")
    if padding is None:
        config = config.model_copy(update={"reads": "pair"})
    scores = LabelScorer.load(config, "cpu", "fp32").score(PROMPTS, ANSWERS)
    assert scores == pytest.approx(expected, abs=1e-4)


def test_the_pickled_head_of_setfit_is_named(tmp_path):
    policy = tiny.gpt2()
    policy.model.transformer.save_pretrained(tmp_path)
    policy.tokenizer.save_pretrained(tmp_path)
    (tmp_path / "model_head.pkl").write_bytes(b"x")
    config = ClassifierScorer(ckpt=str(tmp_path), label="LABEL_0")
    with pytest.raises(UserError, match="lack .*score.* model_head.pkl.*SetFit.*kind: python"):
        LabelScorer.load(config, "cpu", "fp32")


def test_a_classifier_of_several_labels_is_no_reward_model(tmp_path):
    foreign_reward_model(tmp_path, None)
    AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "base", num_labels=2, pad_token_id=0
    ).save_pretrained(tmp_path / "rm")
    with pytest.raises(UserError, match=r"2 scores .*\(LABEL_0, LABEL_1\).*kind: classifier"):
        load_reward_model(tmp_path / "rm", text_prefix, mean=0.0, std=1.0)


def test_scores_of_a_language_model_with_a_value_head_are_named(tmp_path):
    """TRL's models for its earlier PPO."""
    tiny.gpt2().save(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["v_head.summary.weight"] = torch.ones(1, 32)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match="scores are in v_head.* of model.*score.weight is v_head"):
        load_reward_model(tmp_path, text_prefix, mean=0.0, std=1.0)
    assert load_policy(tmp_path)


def test_a_reading_can_be_named(tmp_path):
    model, tokenizer = foreign_reward_model(tmp_path, TEMPLATE)
    plain = load_reward_model(tmp_path / "rm", text_prefix, mean=0.0, std=1.0, reads="text")
    ids = tokenizer(PROMPTS[0].text + ANSWERS[0])["input_ids"]
    with torch.no_grad():
        expected = model(torch.tensor([ids])).logits.item()
    assert plain.score(PROMPTS[:1], ANSWERS[:1]).item() == pytest.approx(expected, abs=1e-4)
    reader = ConversationReader("rm", tokenizer, 24)
    ids = reader.ids(Prompt("0", "the red cat " * 20), "sees a dog")
    assert len(ids) <= 24 and reader.cut == reader.seen == 1
    reader = ConversationReader("rm", tokenizer, 24, "text_eos")
    ids = reader.ids(Prompt("0", "the red cat " * 20), " sees a dog")
    assert tokenizer.decode(ids).endswith(" sees a dog</s>") and len(ids) <= 24
