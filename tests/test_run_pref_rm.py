"""Training of sequence scorers from pairs: values by hand, learning, mean and std, refusals."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import rm_helpers as rm
import torch
from rounding import assert_equal_up_to_rounding
from transformers.modeling_outputs import TokenClassifierOutput

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_jsonl
from fgrlhf.configs.strict import validate
from fgrlhf.data.comparisons import as_pairs, join_pairs
from fgrlhf.load import load_task
from fgrlhf.reward_models.loading import load_reward_model
from fgrlhf.reward_models.prefix import text_prefix
from fgrlhf.reward_models.scoring import inputs_of, shape_of
from fgrlhf.reward_models.spec import RewardModelSpec
from reward_modeling import run_pref_rm
from reward_modeling.data import PairCollator, first_position_share, read_pair_rows
from reward_modeling.metrics import pair_accuracy
from reward_modeling.network import load_network
from reward_modeling.run_pref_rm import (
    PairLoss,
    PreferenceRMConfig,
    decided_pairs,
    encode,
    pair_calibration,
    pair_margins,
    train,
)
from tasks.qa_feedback.reward_modeling.pairs import read_pairs

NONE = -100  # padding of labels
PAD = [NONE] * 3
QA = load_task("tasks.qa_feedback")


def config(folder, shape="seq2seq", **changes) -> PreferenceRMConfig:
    """Settings of a fast run; changes are given as section__key=value."""
    train_file, dev_file = folder / "train.json", folder / "dev.json"
    if not train_file.exists():
        train_file.write_text(json.dumps(rm.comparison_rows(150, 0)))
        dev_file.write_text(json.dumps(rm.comparison_rows(40, 1)))
    tree = {
        "model": {"ckpt": str(rm.start(folder, shape)), "shape": shape, "max_input_len": 128},
        "data": {"train_file": str(train_file), "dev_file": str(dev_file)},
        "train": {"max_steps": 60, "batch_size": 8, "lr": 1e-2, "warmup_steps": 5},
        "evaluation": {"every_steps": 20, "batch_size": 16},
        "logging": {"run_name": "toy", "save_dir": str(folder / "rm"), "log_interval": 10},
    }
    for path, value in changes.items():
        section, key = path.split("__")
        tree[section][key] = value
    return validate(PreferenceRMConfig, tree, "test config")


# ---- numbers by hand -----------------------------------------------------------------------------


def test_margins_are_of_the_response_listed_first():
    """Two prompts of three and two responses."""
    scores_B = torch.tensor([1.0, 10.0, 100.0, 5.0, 7.0])
    labels_QN3 = torch.tensor([[[2, 0, 7.0], [0, 1, 0], [1, 2, 0]], [[4, 3, 9], PAD, PAD]])
    margins_QN, labels_QN = pair_margins(scores_B, labels_QN3)
    assert margins_QN.tolist() == [[-99, -9, -90], [-2, 0, 0]]
    assert labels_QN.tolist() == [[1, 0, 0], [1, NONE, NONE]]


def test_pair_loss_by_hand():
    scores = torch.tensor([[2.0], [0.0], [0.0], [1.0]])
    labels = torch.tensor([[[0, 1, 7.0], [2, 0, 7], [3, 2, 7]], [[3, 2, 7], PAD, PAD]])
    total = math.log(1 + math.exp(-2)) + math.log(1 + math.exp(2)) + 2 * math.log(1 + math.exp(-1))
    output = TokenClassifierOutput(logits=scores)
    assert PairLoss()(output, labels).item() == pytest.approx(total / 4)
    assert PairLoss()(output, torch.full((1, 6, 3), float(NONE))).item() == 0


def test_margin_and_centring_by_hand():
    output = TokenClassifierOutput(logits=torch.tensor([[2.0], [0.5]]))
    labels = torch.tensor([[[0, 1, 3.0]]])
    # the scores should differ by .5 * 3 and do differ by 1.5
    assert PairLoss(margin=0.5)(output, labels).item() == pytest.approx(math.log(2))
    plain = math.log(1 + math.exp(-1.5))
    assert PairLoss(centring=0.1)(output, labels).item() == pytest.approx(plain + 0.1 * 2.5**2)


def test_gradients_do_not_depend_on_padding_or_on_the_order_of_pairs():
    def gradient(labels):
        scores = torch.tensor([[2.0], [0.5], [-1.0]], requires_grad=True)
        loss = PairLoss(margin=1.0, centring=0.01)
        loss(TokenClassifierOutput(logits=scores), torch.tensor(labels)).backward()
        return scores.grad

    expected = gradient([[[0, 1, 0.3], [2, 1, 0.2]]])
    assert expected.abs().min() > 0
    torch.testing.assert_close(gradient([[[2, 1, 0.2], [0, 1, 0.3], PAD]]), expected)


def test_pair_accuracy_by_hand():
    result = pair_accuracy([1.0, -1.0, 2.0, 0.0], [1, 1, 0, 0])
    assert result == {"accuracy": 1.5 / 4, "first_accuracy": 0.5, "pairs": 4}


def test_decided_pairs_and_their_calibration():
    margins_QN = np.array([[2.0, 2.0, -1.0], [0.0, 0.0, 0.0]])
    labels_QN = np.array([[0, 1, 1], [NONE, NONE, NONE]])
    margin, first = decided_pairs(margins_QN, labels_QN)
    assert margin.tolist() == [2.0, 2.0, -1.0] and first.tolist() == [True, False, False]
    low, high = pair_calibration(margins_QN, labels_QN)
    assert (low["count"], low["observed"], high["count"], high["observed"]) == (1, 1.0, 2, 0.5)
    assert low["predicted"] == pytest.approx(1 / (1 + math.exp(-1)))
    assert high["predicted"] == pytest.approx(1 / (1 + math.exp(-2)))
    # the order of the responses has no effect
    swapped_QN = np.where(labels_QN < 0, NONE, 1 - labels_QN)
    assert pair_calibration(-margins_QN, swapped_QN) == [low, high]
    ties_QN, labels_QN = np.zeros((1, 2)), np.array([[0, 0]])
    for labels in (labels_QN, 1 - labels_QN):
        (tied,) = pair_calibration(ties_QN, labels)
        assert (tied["predicted"], tied["observed"]) == (0.5, 0.5)


# ---- runs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape, steps",
    [pytest.param("encoder", 100, marks=pytest.mark.slow), ("seq2seq", 60), ("causal", 60)],
)
def test_learns_what_can_be_learned(tmp_path, shape, steps, capsys):
    settings = config(tmp_path, shape, train__max_steps=steps)
    folder = train(settings)
    result = json.loads((folder / "metrics.json").read_text())
    assert result["accuracy"] > 0.9 and 0.3 < result["first_accuracy"] < 0.7
    rows = read_pair_rows(settings.data.train_file)
    assert {len(row.answers) for row in rows} == {2, 3, 4, 5}
    won, decided = first_position_share(rows)
    printed = capsys.readouterr().out
    assert f"the response listed first wins {won / decided:.1%} of the decided pairs" in printed
    errors = json.loads((folder / "errors.json").read_text())
    counted = sum(group["cases"] * group["accuracy"]["mean"] for group in errors["by_length"])
    pairs = sum(group["cases"] for group in errors["by_length"])
    assert counted / pairs == pytest.approx(result["accuracy"]) and pairs == result["pairs"]
    assert result["intervals"]["accuracy"]["mean"] == pytest.approx(result["accuracy"])
    assert result["cases"] == {"pairs": pairs} and "auc" not in result
    card = (folder / "README.md").read_text()
    assert "gives a whole response one score" in card and "kind: sequence_scorer" in card
    assert "accuracy by length: similarly long " in printed
    scorer = load_reward_model(folder, text_prefix)
    scores = scorer.score(
        [row.prompt for row in rows for _ in row.answers],
        [answer.text for row in rows for answer in row.answers],
    )
    assert (scorer.mean, scorer.std) == pytest.approx(
        (scores.mean().item(), scores.std(correction=0).item()), rel=1e-4
    )
    assert result["mean"] == scorer.mean and result["std"] == scorer.std
    few, many = scorer.score(
        [rows[0].prompt] * 2, ["a dog sees the cat and", "one dog one cat one and"]
    )
    assert many > few


def test_real_rows_go_through(tmp_path, golden, qa_feedback):
    for split, n in (("train", 4), ("dev", 3)):
        rows = json.loads((qa_feedback / f"{split}_feedback.json").read_text())[:n]
        (tmp_path / f"{split}.json").write_text(json.dumps(rows))
    folder = train(
        config(
            tmp_path,
            model__max_input_len=250,
            train__max_steps=2,
            train__batch_size=2,
            evaluation__every_steps=2,
        ),
        QA,
    )
    scorer = load_reward_model(folder, QA.rm_prefix)
    assert scorer.spec.kind == "sequence" and scorer.spec.std > 0 and scorer.spec.with_context


def test_both_formats_of_the_same_comparisons_train_the_same_model(tmp_path, monkeypatch):
    """Four answers and six preferences are a case of K responses and any pairs."""
    weights = []
    for name, task in (("published", QA), ("library", replace(QA, rm_pairs=None))):
        folder = tmp_path / name
        folder.mkdir()
        for split, n in (("train", 20), ("dev", 10)):
            rows = rm.pair_rows(n, seed=n)
            if task.rm_pairs is None:
                (tmp_path / "rows.json").write_text(json.dumps(rows))
                rows = [
                    {
                        "prompt": row.prompt.text,
                        "responses": [answer.text for answer in row.answers],
                        "preferences": [list(pair) for pair in row.pairs],
                        **row.prompt.meta,
                    }
                    for row in read_pairs(tmp_path / "rows.json")
                ]
            (folder / f"{split}.json").write_text(json.dumps(rows))
        train(config(folder, **SHORT), task)
        weights.append((folder / "rm" / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]


# ---- what is refused -----------------------------------------------------------------------------


def test_nothing_but_ties_is_nothing_to_learn(tmp_path):
    settings = config(tmp_path)
    (tmp_path / "dev.json").write_text(
        json.dumps([{**row, "preferences": []} for row in rm.comparison_rows(3, 0)])
    )
    with pytest.raises(UserError, match="dev.json has no decided pair"):
        train(settings)


# ---- kills, divergence ---------------------------------------------------------------------------

SHORT = {"train__max_steps": 2, "evaluation__every_steps": 2, "train__batch_size": 2}


def test_scores_that_are_not_finite_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(
        run_pref_rm.SequenceScorer,
        "logits",
        lambda self, inputs: [torch.tensor([math.nan])] * len(inputs),
    )
    settings = config(tmp_path, **SHORT)
    n = sum(len(row.answers) for row in read_pair_rows(settings.data.train_file))
    with pytest.raises(
        UserError, match=f"{n} of {n} training responses a score that is NaN or infinite"
    ):
        train(settings)
    assert not (tmp_path / "rm" / "metrics.json").exists()


@pytest.mark.parametrize("shape", ["seq2seq", "causal"])
def test_pairs_and_comparisons_of_several_responses_give_equal_gradients(tmp_path, shape):
    """The same pairs, once in rows of four responses and once in rows of two."""
    settings = config(tmp_path, shape)
    rows = read_pair_rows(settings.data.train_file)[:6]
    network, tokenizer = load_network(settings.model, "sequence")
    network.double().eval()
    spec = RewardModelSpec("sequence", shape_of(network), "sequence", True, 128, mean=0, std=1)
    inputs = inputs_of(network, tokenizer, spec)

    def gradients(comparisons):
        batch = PairCollator(inputs)(encode(inputs, comparisons, text_prefix, True))
        labels = batch.pop("labels")
        network.zero_grad()
        PairLoss()(network(**batch), labels).backward()
        return [p.grad.clone() for p in network.parameters() if p.grad is not None]

    whole = gradients(rows)
    assert sum(len(row.pairs) for row in rows) > 6 and any(grad.any() for grad in whole)
    assert_equal_up_to_rounding(gradients(as_pairs(rows)), whole)
    assert_equal_up_to_rounding(gradients(join_pairs(as_pairs(rows))), whole)


def test_margins_reach_the_loss(tmp_path):
    """Before the scores of a pair are further apart than the margin, the loss is about its size."""
    rows = rm.comparison_rows(150, 0)
    for row in rows:
        row["margins"] = [1.0] * len(row["preferences"])
    (tmp_path / "train.json").write_text(json.dumps(rows))
    (tmp_path / "dev.json").write_text(json.dumps(rm.comparison_rows(40, 1)))
    first_loss = {}
    for margin in (0.0, 5.0):
        folder = tmp_path / f"margin{margin:.0f}"
        train(
            config(
                tmp_path, train__margin=margin, train__max_steps=2, logging__save_dir=str(folder)
            )
        )
        losses = [row["loss"] for row in read_jsonl(folder / "metrics.jsonl") if "loss" in row]
        first_loss[margin] = losses[0]
    assert first_loss[0.0] < 1
    assert 3 < first_loss[5.0] < 6
