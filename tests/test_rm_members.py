"""Several heads on the network of a reward model, which judge as an ensemble."""

import math

import pytest
import rm_helpers as rm
import torch
from test_run_fg_rm import Interrupt, interrupt_at
from test_run_fg_rm import config as segment_config
from test_run_pref_rm import config as pair_config
from torch import Tensor

from fgrlhf.base.errors import UserError
from fgrlhf.configs.strict import validate
from fgrlhf.reward_models.loading import load_reward_model
from fgrlhf.reward_models.networks import ScorerOutput, of_labels, of_scores
from fgrlhf.reward_models.rm_input import RMInput
from fgrlhf.rewards.kinds import SegmentClassifier, SequenceScorer
from fgrlhf.scorers.base import RewardContext
from reward_modeling import run_fg_rm, run_pref_rm
from reward_modeling.members import counts_of
from reward_modeling.run_fg_rm import segment_loss
from reward_modeling.run_pref_rm import PairLoss

PROMPTS = [rm.prompt("the cat")] * 3
TEXTS = ["a blue dog sees and.", "red red cat red bird.", "a red dog sees and."]  # of one segment

# ---- numbers by hand -----------------------------------------------------------------------------


def test_the_output_of_members_is_their_mean_probability_or_score():
    probabilities_MC = torch.tensor([[0.5, 0.5], [0.9, 0.1]])
    output = of_labels(probabilities_MC.log().view(1, 1, 4), 2)
    torch.testing.assert_close(output.logits.exp(), torch.tensor([[[0.7, 0.3]]]))
    assert output.member_logits.shape == (1, 1, 2, 2)
    scores = of_scores(torch.tensor([[1.0, 4.0, 4.0]]))
    assert scores.logits.tolist() == [[3.0]] and scores.member_logits.tolist() == [[1.0, 4.0, 4.0]]
    logits = torch.tensor([[[0.3, -1.0]]])
    assert of_labels(logits, 1).logits is logits and of_labels(logits, 1).member_logits is None


def test_the_loss_of_members_by_hand():
    """One member knows nothing, the other gives the right label e times the odds."""
    member_logits = torch.tensor([[[[0.0, 0.0], [1.0, 0.0]]], [[[0.0, 0.0], [1.0, 0.0]]]])
    output = ScorerOutput(member_logits=member_logits)
    labels_BT = torch.tensor([[0], [1]])
    right, wrong = math.log(1 + math.exp(-1)), math.log(1 + math.e)
    expected = (2 * math.log(2) + right + wrong) / 4
    assert segment_loss(output, labels_BT).item() == pytest.approx(expected)
    counts_BM = torch.tensor([[2.0, 0.0], [1.0, 3.0]])
    counted = (3 * math.log(2) + 3 * wrong) / 4
    assert segment_loss(output, labels_BT, counts_BM).item() == pytest.approx(counted)


def test_the_pair_loss_of_members_by_hand():
    output = ScorerOutput(member_logits=torch.tensor([[2.0, 0.0], [0.0, 0.0], [0.0, 1.0]]))
    labels_QN3 = torch.tensor([[[0, 1, 0.0]], [[1, 2, 0.0]]])
    two, one = math.log(1 + math.exp(-2)), math.log(1 + math.e)
    assert PairLoss()(output, labels_QN3).item() == pytest.approx((two + 2 * math.log(2) + one) / 4)
    counts_QM = torch.tensor([[3.0, 1.0], [0.0, 2.0]])
    counted = (3 * two + math.log(2) + 2 * one) / 4
    assert PairLoss()(output, labels_QN3, counts_QM).item() == pytest.approx(counted)


def test_counts_are_those_of_a_bootstrap_sample_and_of_the_row_alone():
    rows = [[RMInput([i, i + 1], None, (1,))] for i in range(2000)]
    counts_BM = counts_of(rows, 3, seed=0)
    assert counts_BM.shape == (2000, 3)
    torch.testing.assert_close(counts_BM.mean(0), torch.ones(3), atol=0.08, rtol=0)
    torch.testing.assert_close(counts_BM.var(0), torch.ones(3), atol=0.12, rtol=0)
    assert abs(torch.corrcoef(counts_BM.T)[0, 1]) < 0.06
    assert counts_of(rows[::-1], 3, seed=0).flip(0).equal(counts_BM)
    assert not counts_of(rows, 3, seed=1).equal(counts_BM)
    (other,) = counts_of([[RMInput([0], [1], (0,))]], 3, seed=0)
    assert not other.equal(counts_BM[0])  # the ids of two stacks are not those of one


# ---- runs ----------------------------------------------------------------------------------------


def trained(folder, kind: str, members: int, **changes):
    settings = segment_config if kind == "segment" else pair_config
    stage = run_fg_rm if kind == "segment" else run_pref_rm
    return stage.train(settings(folder, "causal", model__members=members, **changes))


@pytest.mark.parametrize("kind", ["segment", "sequence"])
def test_members_learn_and_are_an_ensemble(tmp_path, kind):
    folder = trained(tmp_path, kind, 3, train__max_steps=60)
    scorer = load_reward_model(folder, rm.prefix_fn)
    assert scorer.members == 3 and scorer.spec.metrics["accuracy"] > 0.9
    reward = {"ckpt": str(folder), "ensemble": {"kappa": 2.0}}
    if kind == "segment":
        reward |= {"values": {"error": -1.0, "ok": 1.0}, "value": "expected"}
        made = validate(SegmentClassifier, reward, "test")
        values = []
        for labels in scorer.score_members(PROMPTS, TEXTS):
            values.append([1 - 2 * float(one.probabilities_SC[0, 0]) for one in labels])
    else:
        made = validate(SequenceScorer, reward, "test")
        scores_MB = scorer.score_members(PROMPTS, TEXTS)
        torch.testing.assert_close(scores_MB.mean(0), scorer.score(PROMPTS, TEXTS))
        means_M, stds_M = map(torch.tensor, (scorer.spec.member_means, scorer.spec.member_stds))
        assert means_M.mean() == pytest.approx(scorer.mean) and means_M.std() > 0
        values = ((scores_MB - means_M[:, None]) / stds_M[:, None]).tolist()
    values_MB = torch.tensor(values)
    assert values_MB.std(0).min() > 0
    expected_B = values_MB.mean(0) - 2 * values_MB.std(0, correction=0)
    reward = made.build(RewardContext(rm.prefix_fn, "cpu", "fp32"))
    scores = reward.segment_scores(PROMPTS, TEXTS)
    given_B: Tensor = torch.tensor([of_text[0].value for of_text in scores])
    torch.testing.assert_close(given_B, expected_B)
    assert reward.measures(scores[0])["disagreement"] == scores[0][0].std > 0


def test_an_interrupted_run_gives_the_same_members(tmp_path, monkeypatch):
    short = {"train__max_steps": 6, "train__micro_batch_size": 4, "evaluation__every_steps": 2}
    whole = trained(tmp_path, "segment", 2, **short)
    other = {"logging__save_dir": str(tmp_path / "cut")}
    with monkeypatch.context() as patch, pytest.raises(Interrupt):
        interrupt_at(patch, 3)
        trained(tmp_path, "segment", 2, **short, **other)
    cut = trained(tmp_path, "segment", 2, **short, **other)
    name = "model.safetensors"
    assert (whole / name).read_bytes() == (cut / name).read_bytes()


def test_members_start_as_the_same_linear_model(tmp_path):
    """Their first predictions are equal; their samples of the rows part them."""
    short = {"train__lr": 1e-9, "train__max_steps": 1, "evaluation__every_steps": 1}
    folder = trained(tmp_path, "segment", 2, model__text_features=True, **short)
    first, second = load_reward_model(folder, rm.prefix_fn).score_members(PROMPTS, TEXTS)
    for one, other in zip(first, second):
        torch.testing.assert_close(one.probabilities_SC, other.probabilities_SC)


# ---- what is refused -----------------------------------------------------------------------------


def test_an_encoder_has_one_head(tmp_path):
    with pytest.raises(UserError, match="model.members needs a language model"):
        segment_config(tmp_path, "encoder", model__members=2)


def test_one_model_with_one_head_is_no_ensemble(tmp_path):
    short = {"train__max_steps": 1, "evaluation__every_steps": 1}
    folder = trained(tmp_path, "segment", 1, **short)
    made = validate(
        SegmentClassifier,
        {"ckpt": str(folder), "values": {"ok": 1.0}, "ensemble": {"kappa": 1.0}},
        "test",
    )
    with pytest.raises(UserError, match=r"a single reward model with one head.*model\.members=4"):
        made.build(RewardContext(rm.prefix_fn, "cpu", "fp32"))
