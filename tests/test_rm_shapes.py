"""A checkpoint of the wrong shape is refused by name; `auto` chooses the right one."""

import families
import pytest
import rm_helpers as rm
import test_trial
import tiny
import torch
from test_run_fg_rm import config as run_config
from tokenizers import Tokenizer, models
from transformers import (
    BartConfig,
    BartForSequenceClassification,
    BertConfig,
    BertModel,
    CanineConfig,
    CanineModel,
    CanineTokenizer,
    ConvBertConfig,
    ConvBertModel,
    FNetConfig,
    FNetForTokenClassification,
    FNetModel,
    GPT2Config,
    GPT2ForSequenceClassification,
    LlamaConfig,
    LlamaModel,
    LongformerModel,
    MambaConfig,
    MambaModel,
    MobileBertConfig,
    MobileBertModel,
    ModernBertConfig,
    ModernBertModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaModel,
    T5Config,
    T5ForConditionalGeneration,
    XLNetConfig,
    XLNetModel,
)

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, write_json
from fgrlhf.reward_models.inputs import RMInputs
from fgrlhf.reward_models.loading import load_reward_model, load_sequence_scorer
from fgrlhf.reward_models.network_config import shape_of_config
from fgrlhf.reward_models.networks import LanguageModelScorer
from fgrlhf.reward_models.prefix import text_prefix
from fgrlhf.reward_models.scoring import shape_of
from fgrlhf.reward_models.shapes import check_padding, reads_ahead
from fgrlhf.reward_models.spec import RewardModelSpec
from fgrlhf.scorers.classifier import LabelScorer
from fgrlhf.scorers.kinds import ClassifierScorer
from fgrlhf.text_types import Prompt
from reward_modeling.config import RMModelConfig
from reward_modeling.network import load_network
from reward_modeling.run_fg_rm import train

SMALL = {
    **{"vocab_size": len(tiny.tokenizer()), "hidden_size": 32, "intermediate_size": 48},
    **{"num_hidden_layers": 2, "num_attention_heads": 4, "pad_token_id": 0},
}
POSITIONS = {"max_position_embeddings": 130}


def small(config_class, **changes):
    return config_class(**{**SMALL, **POSITIONS, **changes})


MARKS = {f"{name}_token_id": 1 for name in ("cls", "sep", "bos", "eos")}
MAMBA = {key: SMALL[key] for key in ("vocab_size", "hidden_size", "num_hidden_layers")}
ENCODERS = {
    "bert": (BertModel, lambda: small(BertConfig)),
    "roberta": (RobertaModel, lambda: small(RobertaConfig)),
    "modernbert": (ModernBertModel, lambda: small(ModernBertConfig, **MARKS)),
    "longformer": (LongformerModel, lambda: rm.longformer_config(SMALL["vocab_size"])),
}
CAUSAL = {
    "llama": (LlamaModel, lambda: small(LlamaConfig, num_key_value_heads=2)),
    "mamba": (MambaModel, lambda: MambaConfig(state_size=4, **MAMBA)),
    "bert decoder": (BertModel, lambda: small(BertConfig, is_decoder=True)),
}


def built(models, name):
    torch.manual_seed(0)
    model_class, config = models[name]
    return model_class(config())


def checkpoint(folder, models, name):
    built(models, name).save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


def load(ckpt, shape="auto", kind="segment", **more):
    labels = {0: "NF-ERR", 1: "O"} if kind == "segment" else None
    section = RMModelConfig(ckpt=str(ckpt), shape=shape, max_input_len=64, **more)
    return load_network(section, kind, labels)[0]


# ---- telling shapes apart ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_reads_ahead(name):
    model = built(ENCODERS, name).train()
    state = torch.get_rng_state()
    assert reads_ahead(model) and shape_of_config(model.config) == "encoder"
    assert model.training and torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("name", CAUSAL)
def test_a_decoder_only_network_does_not(name):
    model = built(CAUSAL, name)
    assert not reads_ahead(model) and shape_of_config(model.config) == "causal"


def test_a_property_missing_from_the_config_is_measured():
    """XLNet is one of transformers' causal language models, but reads in both directions."""
    torch.manual_seed(0)
    model = XLNetModel(XLNetConfig(vocab_size=30, d_model=32, n_layer=2, n_head=4, d_inner=48))
    assert shape_of_config(model.config) == "causal" and reads_ahead(model)


@pytest.mark.parametrize("size", [3, 5, 9])
def test_a_small_vocabulary_is_enough(size):
    torch.manual_seed(0)
    assert reads_ahead(BertModel(small(BertConfig, vocab_size=size)))
    assert not reads_ahead(LlamaModel(small(LlamaConfig, vocab_size=size, num_key_value_heads=2)))


# ---- training ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["segment", "sequence"])
@pytest.mark.parametrize("shape", rm.SHAPES)
def test_auto_is_the_shape_of_the_checkpoint(tmp_path, shape, kind):
    assert RMModelConfig(ckpt="x").shape == "auto"
    torch.manual_seed(1)
    network = load(rm.start(tmp_path, shape), kind=kind)
    assert shape_of(network) == shape
    torch.manual_seed(1)
    explicit = load(rm.start(tmp_path, shape), shape, kind)
    for name, weight in explicit.state_dict().items():
        assert torch.equal(weight, network.state_dict()[name])


@pytest.mark.parametrize("kind", ["segment", "sequence"])
@pytest.mark.parametrize("name", ["gpt2", *CAUSAL])
def test_a_decoder_only_checkpoint_is_no_encoder(tmp_path, name, kind):
    is_gpt2 = name == "gpt2"
    ckpt = rm.start(tmp_path, "causal") if is_gpt2 else checkpoint(tmp_path / "x", CAUSAL, name)
    with pytest.raises(UserError, match="from left to right .*set model.shape=causal"):
        load(ckpt, "encoder", kind)


@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_is_no_causal_model(tmp_path, name):
    ckpt = checkpoint(tmp_path / "x", ENCODERS, name)
    for wrong in ("causal", "seq2seq"):
        with pytest.raises(UserError, match="both directions .*set model.shape=encoder"):
            load(ckpt, wrong)
    assert shape_of(load(ckpt)) == "encoder"


@pytest.mark.parametrize("shape", ["encoder", "causal"])
def test_an_encoder_decoder_is_neither(tmp_path, shape):
    with pytest.raises(UserError, match="an encoder-decoder .*set model.shape=seq2seq"):
        load(rm.start(tmp_path, "seq2seq"), shape)


def test_a_decoder_only_checkpoint_is_no_encoder_decoder(tmp_path):
    with pytest.raises(UserError, match="set model.shape=causal"):
        load(rm.start(tmp_path, "causal"), "seq2seq")


def test_a_feature_of_language_models_needs_one(tmp_path):
    with pytest.raises(UserError, match="lm_logprob_feature needs a language model"):
        load(rm.start(tmp_path, "encoder"), lm_logprob_feature=True)
    assert load(rm.start(tmp_path, "causal"), lm_logprob_feature=True).lm is not None


def test_an_encoder_decoder_must_say_what_its_decoder_starts_with(tmp_path):
    sizes = {"d_model": 32, "d_kv": 8, "num_heads": 4, "d_ff": 48, "num_layers": 2}
    config = T5Config(vocab_size=len(tiny.tokenizer()), **sizes)
    model = T5ForConditionalGeneration(config)
    model.config.decoder_start_token_id = model.generation_config.decoder_start_token_id = None
    model.save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    with pytest.raises(UserError, match="decoder_start_token_id"):
        load(tmp_path)


def test_the_spec_holds_the_shape_that_was_taken_and_what_was_cut(tmp_path, capsys):
    changes = {"model__shape": "auto", "model__max_input_len": 20, "train__max_steps": 2}
    settings = run_config(tmp_path, "causal", evaluation__every_steps=2, **changes)
    scorer = load_reward_model(train(settings), rm.prefix_fn)
    assert scorer.spec.shape == "causal"
    cuts = scorer.spec.metrics["cuts"]
    assert cuts["inputs"] == 240 and cuts["contexts"] == 0 and 0 < cuts["responses"] < 240
    note = f"{cuts['responses']} responses cut, {cuts['unread_segments']} of their"
    assert note in capsys.readouterr().out


# ---- use -----------------------------------------------------------------------------------------


def gpt2_config(labels: int) -> GPT2Config:
    sizes = {"vocab_size": len(tiny.tokenizer()), "n_embd": 32, "n_layer": 2, "n_head": 4}
    names = {"id2label": dict(enumerate(["F-ERR", "O"][:labels])), "label2id": {"F-ERR": 0, "O": 1}}
    return GPT2Config(n_positions=256, num_labels=labels, pad_token_id=0, **sizes, **names)


def test_a_published_decoder_only_score_of_the_whole_answer_is_read_at_its_end(tmp_path):
    GPT2ForSequenceClassification(gpt2_config(1)).save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    score = load_reward_model(tmp_path, rm.prefix_fn, mean=0.0, std=1.0)
    first, second = score.score([rm.prompt()] * 2, ["a dog sees the cat", "a dog sees the bird"])
    assert first != second


# ---- padding -------------------------------------------------------------------------------------

PADDING_SENSITIVE = {
    "mobilebert": (
        MobileBertModel,
        lambda: small(
            MobileBertConfig, embedding_size=16, intra_bottleneck_size=16, true_hidden_size=16
        ),
    ),
    "fnet": (FNetModel, lambda: small(FNetConfig)),
    "convbert": (ConvBertModel, lambda: small(ConvBertConfig, embedding_size=16)),
}


@pytest.mark.parametrize("name", [*ENCODERS, *CAUSAL, "t5"])
def test_padding_changes_nothing_in_most_networks(name):
    check_padding(tiny.policy("t5").model if name == "t5" else built(ENCODERS | CAUSAL, name))


def test_a_network_whose_tokens_see_no_other_token_is_refused(tmp_path):
    """As MRA without its CUDA kernel: neither shape would work, so none is proposed."""
    model = BertModel(small(BertConfig))
    for layer in model.encoder.layer:
        layer.attention.output.dense.weight.data.zero_()
    model.save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    for shape in ("encoder", "causal"):
        with pytest.raises(UserError, match="depends on no other token") as error:
            load(tmp_path, shape)
        assert "model.shape=causal" not in str(error.value)


@pytest.mark.parametrize("name", PADDING_SENSITIVE)
def test_an_encoder_that_reads_padding_is_refused(name, tmp_path):
    model = built(PADDING_SENSITIVE, name)
    model.get_input_embeddings().weight.data.normal_()  # the padding token's too, which was 0
    model.save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    with pytest.raises(UserError, match="padding changes what .* another family"):
        load(tmp_path)


def test_a_published_classifier_that_reads_padding_is_refused(tmp_path):
    config = small(FNetConfig, num_labels=2, id2label={0: "F-ERR", 1: "O"})
    FNetForTokenClassification(config).save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    with pytest.raises(UserError, match="cannot be used: padding changes what FNet"):
        load_reward_model(tmp_path, rm.prefix_fn, level="sentence")


TWO_CONFIGS = {
    "t5gemma": test_trial.NESTED["t5gemma"],
    "t5gemma2": {
        "encoder": {
            "text_config": test_trial.WINDOWED,
            "vision_config": test_trial.IMAGES,
            "mm_tokens_per_image": 1,
        },
        "decoder": test_trial.WINDOWED,
    },
}


@pytest.mark.parametrize("model_type", TWO_CONFIGS)
@torch.no_grad()
def test_an_encoder_decoder_with_two_configs(model_type, tmp_path):
    """Its decoder is read, as in others. In T5Gemma 2, rows cannot share their prompt's states."""
    model = test_trial.random_model(model_type, TWO_CONFIGS[model_type]).eval()
    test_trial.save(model, tmp_path)
    network = load(tmp_path, kind="sequence")
    assert not any(p.requires_grad for n, p in network.trunk.named_parameters() if "vision" in n)
    spec = RewardModelSpec("sequence", "seq2seq", "sequence", True, 64, mean=0.0, std=1.0)
    network.save_pretrained(tmp_path / "saved")
    tiny.tokenizer().save_pretrained(tmp_path / "saved")
    spec.save(tmp_path / "saved")
    scorer = load_sequence_scorer(str(tmp_path / "saved"), text_prefix)
    long, short = Prompt("0", "the red cat sees a blue dog and one bird"), Prompt("1", "a dog")
    prompts, texts = [long, long, short, short], ["one two three", "and", "likes a cat ;", "red"]
    expected = []
    for read in scorer.encode(prompts, texts):
        ids, decoder_ids = torch.tensor([read.input_ids]), torch.tensor([read.decoder_input_ids])
        states_BLD = model.base_model(input_ids=ids, decoder_input_ids=decoder_ids)[0]
        expected.append(network.head(states_BLD[0, -1]))
    torch.testing.assert_close(scorer.score(prompts, texts), torch.cat(expected))
    with pytest.raises(UserError, match="of shape encoder cannot read: set model.shape to seq2seq"):
        load(tmp_path, "encoder")
    load(tmp_path, train_top_layers=1)
    load(tmp_path, lm_logprob_feature=True)


@pytest.mark.parametrize("layers", [None, 1])
@torch.no_grad()
def test_the_text_part_of_a_model_with_images_is_a_reward_model(layers, tmp_path):
    model = test_trial.random_model("gemma3", test_trial.NESTED["gemma3"]).eval()
    test_trial.save(model, tmp_path)
    network = load(tmp_path, layers=layers)
    assert network.trunk.config.model_type == "gemma3_text"
    assert not any("vision" in name for name, _ in network.named_parameters())
    text = model.base_model.language_model
    if layers:
        del text.layers[layers:]
        assert len(network.trunk.layers) == layers
    ids = torch.tensor([[3, 4, 5, 6, 7, 8]])
    expected = text(ids).last_hidden_state
    torch.testing.assert_close(network.eval().trunk(ids).last_hidden_state, expected)
    network.save_pretrained(tmp_path / "saved")
    saved = LanguageModelScorer.from_pretrained(tmp_path / "saved").eval()
    torch.testing.assert_close(saved.trunk(ids).last_hidden_state, expected)
    with pytest.raises(UserError, match="several parts.*lm_logprob_feature=false"):
        load(tmp_path, lm_logprob_feature=True)


# ---- networks and tokenizers that do not belong together -----------------------------------------


def classify(folder) -> LabelScorer:
    return LabelScorer.load(ClassifierScorer(ckpt=str(folder), label="LABEL_0"), "cpu", "fp32")


def save_bart_classifier(folder, tokenizer) -> None:
    config = BartConfig(**families.BART)
    BartForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def test_a_classifier_that_cannot_read_a_short_text_is_explained(tmp_path):
    """BART's reads the end token, which this tokenizer does not add."""
    save_bart_classifier(tmp_path, tiny.tokenizer())
    with pytest.raises(UserError, match="BartFor.* cannot score.*<eos>.*such as an end token, cor"):
        classify(tmp_path)


def test_a_foreign_tokenizer_of_a_classifier_is_named(tmp_path):
    vocabulary = {"x": 0, "</s>": 1, "y": 2}
    foreign = {"no": models.BPE(vocabulary, []), "Missing": models.WordLevel(vocabulary, "none")}
    for reason, model in foreign.items():
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer(model), eos_token="</s>", pad_token="</s>"
        )
        save_bart_classifier(tmp_path / reason, tokenizer)
        with pytest.raises(UserError, match=f"{reason} .*: it belongs to another model. Copy"):
            classify(tmp_path / reason)
    more = tiny.fresh(tiny.tokenizer())
    more.add_tokens(["zebra", "giraffe"])
    save_bart_classifier(tmp_path / "more", more)
    with pytest.raises(UserError, match="tokens up to number 27, but the network has only 26"):
        classify(tmp_path / "more")


def test_a_network_without_a_table_of_embeddings_is_refused_with_a_reason(tmp_path):
    """CANINE hashes characters, and its tokenizer gives no offsets."""
    CanineModel(small(CanineConfig, upsampling_kernel_size=4)).save_pretrained(tmp_path)
    CanineTokenizer().save_pretrained(tmp_path)
    with pytest.raises(UserError) as error:
        load(tmp_path, kind="sequence")
        RMInputs(CanineTokenizer(), "encoder", "sequence", 64)
    assert "get_input_embeddings" not in str(error.value)


def test_the_start_token_of_a_reward_model_may_stand_in_generation_config_json(tmp_path):
    tiny.t5().save(tmp_path)
    written = read_json(tmp_path / "config.json")
    start = written.pop("decoder_start_token_id")
    write_json(tmp_path / "config.json", written)
    assert load(tmp_path).trunk.config.decoder_start_token_id == start
    (tmp_path / "generation_config.json").unlink()
    with pytest.raises(UserError, match="neither its config nor its generation config has a deco"):
        load(tmp_path)
