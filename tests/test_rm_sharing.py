"""Responses that share their prompt get the scores and gradients of responses that do not."""

import random
from dataclasses import replace

import pytest
import rm_helpers as rm
import tiny
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from fgrlhf.kernels.shared_rows import RaggedRows
from fgrlhf.models.shared_rows import block_mask
from fgrlhf.reward_models.inputs import RMInputs
from fgrlhf.reward_models.networks import LanguageModelScorer, speed_up_network
from fgrlhf.reward_models.prefix import RMText
from fgrlhf.reward_models.rm_input import RMInput
from fgrlhf.reward_models.scoring import decoder_start
from reward_modeling.precompute import precompute

FAMILIES = {"t5": "seq2seq", "bart": "seq2seq", "gpt2": "causal", "llama": "causal"}
# responses to each of three prompts; a blank one is judged at the end of its prompt
GROUPS = {"equal": (3, 3, 3), "unequal": (4, 1, 2)}


def start(folder, family):
    path = folder / family
    if family == "llama":  # grouped queries
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=len(tiny.tokenizer()),
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=128,
            pad_token_id=0,
            eos_token_id=1,
        )
        LlamaForCausalLM(config).save_pretrained(path)
        tiny.tokenizer().save_pretrained(path)
    else:
        tiny.policy(family).save(path)
    return path


def network(folder, family, kind="segment", feature=False):
    torch.manual_seed(1)
    path = start(folder, family)
    labels = {0: "NF-ERR", 1: "O"} if kind == "segment" else None
    model = LanguageModelScorer.start_from(str(path), FAMILIES[family], kind, labels, feature)
    with torch.no_grad():  # scores of order 1
        model.head.weight.mul_(50)
    return speed_up_network(model).eval()


def read_texts(model, family, kind, sizes, max_length=40) -> tuple[RMInputs, list[RMInput]]:
    """Inputs of prompts of several lengths with `sizes` responses each.

    They are in random order if the sizes differ.
    """
    draw = random.Random(0)
    texts = []
    for number, size in enumerate(sizes):
        context = " ".join(draw.choices(rm.OTHERS, k=4 + 5 * number))
        prefix = rm.prefix("question: the cat", context)
        for k in range(size):
            segments = [tuple(draw.choices(rm.OTHERS, k=n)) for n in range(1, 1 + k)]
            texts.append(RMText(prefix, tuple(segments) or ((),)))
    if len(set(sizes)) > 1:
        draw.shuffle(texts)
    shape = FAMILIES[family]
    inputs = RMInputs(
        tiny.tokenizer(), shape, kind, max_length, decoder_start(model), model.shared_width
    )
    return inputs, inputs.encode(texts)


def alone(model, read: RMInput) -> torch.Tensor:
    """The outputs of a response that is read alone, by the layers of transformers."""
    ids_1T = torch.tensor([read.input_ids])
    ids_of_outputs = torch.tensor([read.output_ids])
    lm_inputs = {"input_ids": ids_1T}
    if read.decoder_input_ids is not None:
        lm_inputs["decoder_input_ids"] = torch.tensor([read.decoder_input_ids])
    read_1T = lm_inputs.get("decoder_input_ids", ids_1T)
    embeddings = model.trunk.get_input_embeddings()(read_1T)
    features = None
    if model.lm is not None:
        with torch.no_grad():
            logprobs = model.lm(**lm_inputs).logits.log_softmax(-1)[0, read.first_output : -1]
        chosen = logprobs.gather(-1, ids_of_outputs[0, 1:, None])[:, 0]
        features = torch.stack([chosen, chosen - logprobs.amax(-1)], -1).clamp(min=-10) / 10
        features = torch.nn.functional.pad(features, (0, 0, 1, 0))
        padded = torch.nn.functional.pad(features, (0, 0, read.first_output, 0))
        embeddings = embeddings + model.feature_in(padded)
    if read.decoder_input_ids is not None:
        hidden = model.trunk(input_ids=ids_1T, decoder_inputs_embeds=embeddings)[0][0]
    else:
        hidden = model.trunk(inputs_embeds=embeddings)[0][0, read.first_output :]
    if model.config.kind == "segment":
        return model.head(hidden)
    last = hidden[-1]
    if features is not None:
        nats = features * 10
        last = torch.cat([last, nats.amin(0), nats.mean(0)])
    return model.head(last)


@pytest.mark.parametrize("sizes", GROUPS)
@pytest.mark.parametrize("feature", [False, True])
@pytest.mark.parametrize("kind", ["segment", "sequence"])
@pytest.mark.parametrize("family", FAMILIES)
def test_scores_and_gradients_are_those_of_a_response_alone(tmp_path, family, kind, feature, sizes):
    model = network(tmp_path, family, kind, feature)
    inputs, read = read_texts(model, family, kind, GROUPS[sizes])
    batch = inputs.collate(read)
    assert ("parts" in batch) == (family != "bart")
    logits = model(**batch).logits
    expected = [alone(model, x) for x in read]
    shared_loss = torch.zeros(())
    expected_loss = torch.zeros(())
    for b, output in enumerate(expected):
        outputs = logits[b, : len(output)]
        torch.testing.assert_close(outputs, output, atol=1e-5, rtol=1e-5)
        weights = torch.linspace(-1, 1, output.numel()).view_as(output)
        shared_loss = shared_loss + (weights * outputs).sum()
        expected_loss = expected_loss + (weights * output).sum()
    trained = [p for p in model.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(shared_loss, trained, allow_unused=True)
    expected_gradients = torch.autograd.grad(expected_loss, trained, allow_unused=True)
    for gradient, wanted in zip(gradients, expected_gradients, strict=True):
        if wanted is not None:
            scale = wanted.abs().max().clamp(min=1)
            torch.testing.assert_close(gradient / scale, wanted / scale, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["t5", "gpt2"])
def test_features_computed_before_give_the_same_scores(tmp_path, family):
    model = network(tmp_path, family, "sequence", feature=True)
    inputs, read = read_texts(model, family, "sequence", (3, 2))
    expected = model(**inputs.collate(read)).logits
    read = precompute(model, inputs, read)
    assert all(x.features_TF.shape == (len(x.output_ids), 2) for x in read)
    model.lm = None  # it is not used again
    torch.testing.assert_close(model(**inputs.collate(read)).logits, expected)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_causal_models_attend_part_by_part(tmp_path, family, record_calls):
    model = network(tmp_path, family, "sequence", feature=True)
    inputs, read = read_texts(model, family, "sequence", (3, 2))
    layouts = record_calls(RaggedRows, "attend")
    model(**inputs.collate(read))
    assert len(layouts) == 2 * model.trunk.config.num_hidden_layers  # trunk and language model
    lengths = [[len(x.prompt), len(x.input_ids) - len(x.prompt)] for x in read]
    assert layouts[0].lengths[0][:2] == tuple(lengths[0])


def test_a_prompt_is_read_once(tmp_path):
    model = network(tmp_path, "gpt2")
    inputs, read = read_texts(model, "gpt2", "segment", (4, 4))
    batch = inputs.collate(read)
    tokens = sum(len(x.output_ids) - 1 for x in read) + sum({len(x.prompt) for x in read})
    assert len(batch["input_ids"]) == 2 and int(batch["attention_mask"].sum()) == tokens
    row_per_response = replace(inputs.collate, shared_width=None)
    assert len(row_per_response(read)["input_ids"]) == 8


def test_prompts_that_were_cut_differently_are_not_shared(tmp_path):
    """The longer response leaves less space for the context."""
    model = network(tmp_path, "gpt2")
    inputs, read = read_texts(model, "gpt2", "segment", (4,), max_length=11)
    assert len({x.prompt for x in read}) > 1
    logits = model(**inputs.collate(read)).logits
    for b, x in enumerate(read):
        output = alone(model, x)
        torch.testing.assert_close(logits[b, : len(output)], output, atol=1e-5, rtol=1e-5)


def test_rows_by_hand():
    """Two responses to one prompt, `2 3`, and another prompt, `4`, with a blank response."""
    inputs = RMInputs(tiny.tokenizer(), "causal", "segment", 10, shared_width=32)
    blank = RMInput([4], None, (None,), prefix_length=1)
    first = RMInput([2, 3, 5, 6], None, (3,), prefix_length=2)
    second = replace(first, input_ids=[2, 3, 7], positions=(2,))
    batch = inputs.collate([first, second, blank, replace(blank)])
    assert batch["input_ids"].tolist() == [[2, 3, 5, 6, 7], [4, 0, 0, 0, 0]]
    assert batch["parts"].tolist() == [[0, 0, 1, 1, 2], [0, -1, -1, -1, -1]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3, 2], [0, 0, 0, 0, 0]]
    assert batch["places"].tolist() == [[1, 2, 3], [1, 4, 0], [5, 0, 0], [5, 0, 0]]
    assert batch["response_mask"].tolist() == [[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 0, 0]]
    assert [x.judged_outputs for x in (first, second, blank)] == [[2], [1], []]


def test_block_mask_by_hand():
    part_GL = torch.tensor([[0, 1, 1, 2, -1]])
    mask = block_mask(part_GL, part_GL >= 0)
    expected = [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 0, 0, 1, 0], [1, 0, 0, 0, 1]]
    assert mask.shape == (1, 1, 5, 5) and mask[0, 0].int().tolist() == expected


@pytest.mark.parametrize("feature", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_loaded_model_shares_prompts_too(tmp_path, family, feature):
    trained = network(tmp_path, family, "sequence", feature)
    trained.save_pretrained(tmp_path / "saved")
    weights = LanguageModelScorer.from_pretrained(tmp_path / "saved")
    loaded = speed_up_network(weights).eval()
    inputs, read = read_texts(loaded, family, "sequence", (9, 9, 9))  # several rows per prompt
    batch = inputs.collate(read)
    torch.testing.assert_close(loaded(**batch).logits, trained(**batch).logits)
