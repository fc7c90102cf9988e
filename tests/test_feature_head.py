"""Hand-made features beside a reward model's text, and trunks of the lowest layers."""

import random

import numpy as np
import pytest
import rm_helpers as rm
import tiny
import torch
from sklearn.linear_model import LogisticRegression
from test_run_fg_rm import config as rm_config
from test_run_pref_rm import config as pair_config
from transformers import AutoModelForCausalLM

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json
from fgrlhf.reward_models.feature_head import FeatureHead, LinearModel, pooled_by_segment
from fgrlhf.reward_models.loading import load_reward_model
from fgrlhf.reward_models.networks import LanguageModelScorer, speed_up_network
from fgrlhf.reward_models.prefix import RMText, text_prefix
from fgrlhf.reward_models.scoring import SegmentScorer, inputs_of
from fgrlhf.reward_models.spec import RewardModelSpec
from fgrlhf.reward_models.text_features import TEXT_FEATURES, segment_features
from fgrlhf.utils import IGNORED
from reward_modeling import run_fg_rm, run_pref_rm
from reward_modeling.data import label_positions, read_segment_rows
from reward_modeling.linear_start import linear_inputs, start_with_pairs, start_with_segments
from reward_modeling.precompute import precompute


def test_pooling_by_hand():
    features_BTF = torch.tensor([[[9.0], [-1], [-3], [-5], [7]], [[9], [-2], [-2], [0], [0]]])
    segments_BT = torch.tensor([[0, 1, 1, 2, 0], [0, 1, 1, 0, 0]])
    pooled = pooled_by_segment(features_BTF, segments_BT)
    # lowest, mean, sum
    assert pooled[0, 1].tolist() == pooled[0, 2].tolist() == [-3, -2, -4]
    assert pooled[0, 3].tolist() == [-5, -5, -5]
    assert pooled[1, 2].tolist() == [-2, -2, -4]


def test_a_linear_model_as_a_layer():
    head = FeatureHead(2, 1)
    model = LinearModel(
        torch.tensor([1.0, 2]),
        torch.tensor([2.0, 4]),
        torch.tensor([[3.0, -1]]),
        torch.tensor([5.0]),
    )
    head.start_as(model)
    assert head(torch.tensor([[3.0, 10]])).tolist() == [[3 * 1 - 2 + 5]]


def network(folder, family="gpt2", kind="segment", feature=True, **settings):
    path = folder / family
    if not path.exists():
        tiny.policy(family).save(path)
    shape = "causal" if family == "gpt2" else "seq2seq"
    labels = {0: "ERROR", 1: "O"} if kind == "segment" else None
    torch.manual_seed(0)
    model = LanguageModelScorer.start_from(
        str(path), shape, kind, labels, feature, text_features=True, **settings
    )
    spec = RewardModelSpec(
        kind,
        shape,
        "sentence" if kind == "segment" else "sequence",
        True,
        64,
        labels=("ERROR", "O") if kind == "segment" else (),
        error_label="ERROR" if kind == "segment" else None,
        ok_label="O" if kind == "segment" else None,
        mean=0.0,
        std=1.0,
    )
    model = speed_up_network(model).eval()
    return model, inputs_of(model, tiny.tokenizer(), spec), spec


def texts(n, segments=2):
    draw = random.Random(0)
    result = []
    for _ in range(n):
        prefix = rm.prefix("question: the cat", " ".join(draw.choices(rm.OTHERS, k=6)))
        parts = [tuple(draw.choices(rm.OTHERS, k=draw.randint(1, 5))) for _ in range(segments)]
        result.append(RMText(prefix, tuple(parts)))
    return result


@pytest.mark.parametrize("feature", [False, True])
@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_a_segment_model_starts_as_the_regression_of_its_features(tmp_path, family, feature):
    model, inputs, _ = network(tmp_path, family, feature=feature)
    responses = texts(30)
    read = precompute(model, inputs, inputs.encode(responses))
    draw = random.Random(1)
    labels = [[draw.choice([0, 1, IGNORED]) for _ in text.segments] for text in responses]
    examples = [(x, label_positions(x, row)) for x, row in zip(read, labels)]
    start_with_segments(model, inputs, examples)

    x_NF = torch.cat(linear_inputs(model, inputs, read)).numpy()
    assert x_NF.shape == (60, len(TEXT_FEATURES) + (6 if feature else 0))
    by_hand = [row for text in responses for row in segment_features(text)]
    np.testing.assert_allclose(x_NF[:, : len(TEXT_FEATURES)], by_hand, rtol=1e-6)
    judged = np.array([label for row in labels for label in row])
    seen = judged != IGNORED
    mean = x_NF[seen].mean(0)
    std = np.where(x_NF[seen].std(0) > 0, x_NF[seen].std(0), 1)
    regression = LogisticRegression(max_iter=2000).fit((x_NF[seen] - mean) / std, judged[seen])
    expected = regression.predict_proba((x_NF - mean) / std)

    with torch.no_grad():
        logits = model(**inputs.collate(read)).logits
        # without features that were computed before
        again = model(**inputs.collate(inputs.encode(responses))).logits
    probabilities = [row[x.judged_outputs].softmax(-1) for x, row in zip(read, logits)]
    np.testing.assert_allclose(torch.cat(probabilities).numpy(), expected, atol=1e-5)
    torch.testing.assert_close(again, logits, atol=1e-5, rtol=1e-5)


def test_a_pair_model_starts_as_the_regression_of_differences(tmp_path):
    model, inputs, _ = network(tmp_path, kind="sequence")
    read = precompute(model, inputs, inputs.encode(texts(24, segments=1)))
    draw = random.Random(1)
    examples = []
    for i in range(0, 24, 2):
        examples.append((read[i : i + 2], ((0, 1, 0.0) if draw.random() < 0.5 else (1, 0, 0.0),)))
    start_with_pairs(model, inputs, examples)
    x_NF = torch.cat(linear_inputs(model, inputs, read)).numpy()
    standard = x_NF / np.where(x_NF.std(0) > 0, x_NF.std(0), 1)
    difference = standard[::2] - standard[1::2]
    won = [pairs[0][0] == 0 for _, pairs in examples]
    regression = LogisticRegression(fit_intercept=False, max_iter=2000).fit(difference, won)
    with torch.no_grad():
        scores = model(**inputs.collate(read)).logits[:, 0]
    margins = (scores[::2] - scores[1::2]).numpy()
    np.testing.assert_allclose(margins, difference @ regression.coef_[0], atol=1e-4)


def test_labels_that_do_not_occur_keep_weights_of_zero(tmp_path):
    model, inputs, _ = network(tmp_path, feature=False)
    read = inputs.encode(texts(4))
    start_with_segments(model, inputs, [(x, label_positions(x, [1, 1])) for x in read])
    assert not model.feature_head.linear.weight.any()


def test_features_are_at_the_judged_outputs_only(tmp_path):
    _, inputs, _ = network(tmp_path)
    prefix = rm.prefix("question: the cat", "a dog")
    text = RMText(prefix, (("the", "cat"), (), ("a", "bird")))
    (read,) = inputs.encode([text])
    batch = inputs.collate([read])
    first, blank, second = segment_features(text)
    assert read.positions[1] is None
    outputs = read.judged_outputs
    assert batch["text_features"][0, outputs].tolist() == torch.tensor([first, second]).tolist()
    rest = [i for i in range(len(read.output_ids)) if i not in outputs]
    assert not batch["text_features"][0, rest].any()
    numbers = batch["segments"][0].tolist()
    assert numbers[0] == 0 and numbers[1:] == sorted(numbers[1:]) and set(numbers[1:]) == {1, 2}
    assert [numbers[i] for i in outputs] == [1, 2]


def test_a_batch_without_text_features_is_refused(tmp_path):
    model, inputs, _ = network(tmp_path)
    batch = inputs.collate(inputs.encode(texts(2)))
    del batch["text_features"]
    with pytest.raises(ValueError, match="the batch has none"):
        model(**batch)


def test_a_segment_without_words_repeats_none():
    repeats = TEXT_FEATURES.index("share of its words that repeat one before them in it")
    text = RMText(rm.prefix("question: the cat", "a dog"), (("a", "cat", "a", "A"), (), (".",)))
    assert [row[repeats] for row in segment_features(text)] == [0.5, 0, 0]


@torch.no_grad()
def test_a_trunk_of_the_lowest_layers(tmp_path):
    model, inputs, _ = network(tmp_path, layers=1)
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "gpt2")
    assert model.trunk.config.num_hidden_layers == 1 < whole.config.num_hidden_layers
    assert model.lm.config.num_hidden_layers == whole.config.num_hidden_layers
    ids = torch.tensor([[3, 4, 5]])
    states = []
    whole.transformer.h[0].register_forward_hook(lambda *arguments: states.append(arguments[2]))
    whole(ids)
    expected = whole.transformer.ln_f(states[0][0] if isinstance(states[0], tuple) else states[0])
    torch.testing.assert_close(model.trunk(ids).last_hidden_state, expected)


@pytest.mark.parametrize("layers", [1, None])
def test_a_trained_model_is_loaded_with_its_features(tmp_path, layers):
    """The loaded model's accuracy on the dev file is that of its training."""
    settings = {"text_features": True, "lm_logprob_feature": True, "layers": layers}
    config = rm_config(tmp_path, "causal", **{f"model__{k}": v for k, v in settings.items()})
    folder = run_fg_rm.train(config)
    scorer = load_reward_model(folder, text_prefix)
    assert isinstance(scorer, SegmentScorer) and scorer.inputs.text_features
    assert scorer.model.trunk.config.num_hidden_layers == (layers or 2)
    rows = read_segment_rows(config.data.dev_file, ("NF-ERR", "O"), "Ignore")
    logits = scorer.logits(scorer.inputs.encode([row.text for row in rows]))
    right = []
    for row, logits_SC in zip(rows, logits):
        for label, predicted in zip(row.labels, logits_SC.argmax(-1)):
            if label != IGNORED:
                right.append(label == predicted)
    assert np.mean(right) == pytest.approx(read_json(folder / "metrics.json")["accuracy"])


def test_a_pair_model_with_text_features_learns(tmp_path):
    config = pair_config(tmp_path, "causal", model__text_features=True, train__max_steps=20)
    folder = run_pref_rm.train(config)
    metrics = read_json(folder / "metrics.json")
    assert metrics["accuracy"] > metrics["baselines"]["majority"]["accuracy"]
    assert load_reward_model(folder, text_prefix).inputs.text_features


@pytest.mark.parametrize(
    ("shape", "settings", "reason"),
    [
        ("encoder", {"text_features": True}, "model.text_features needs a language model"),
        ("seq2seq", {"layers": 1}, "model.layers=1 needs a decoder-only model"),
        ("causal", {"layers": 3}, "model.layers=3, but it has only 2 layers"),
    ],
)
def test_settings_that_do_not_fit(tmp_path, shape, settings, reason):
    with pytest.raises((UserError, ValueError), match=reason):
        run_fg_rm.train(
            rm_config(tmp_path, shape, **{f"model__{k}": v for k, v in settings.items()})
        )
