import math
import threading
from types import SimpleNamespace

import pytest
import torch
from rl_helpers import PROMPTS, CountWord, lengths_mask, rollout

from fgrlhf.alignment import place_on_tokens
from fgrlhf.base.errors import UserError
from fgrlhf.reward import (
    AtEnd,
    BasicReward,
    CombinedReward,
    SegmentClassifierReward,
    SequenceScorerReward,
    segment_value,
)
from fgrlhf.reward_models.scoring import SegmentLabels
from fgrlhf.rewards.scored import EnsembleReward
from fgrlhf.runs.step_metrics import rollout_metrics
from fgrlhf.text_types import Prompt, ResponseTokens, SegmentScore
from fgrlhf.types import Advantages

TEXTS = ["the red cat, and a dog", "a bird", ""]
VALUES = {"ok": 0.3, "error": -0.5}
SPANS = [((0, 12), (12, 22)), ((0, 6),), ()]


class FakeClassifier:
    """Labels in another order than (error, ok), with a third between, as published."""

    spec = SimpleNamespace(judged_labels=("NF-ERR", "O"), level="subsentence")
    judged = None
    probabilities = [[[0.2, 0.7, 0.1], [0.5, 0.3, 0.2]], [[0.1, 0.8, 0.1]], []]

    def score(self, prompts, texts):
        judged = self.judged or [(True,) * len(spans) for spans in SPANS]
        return [
            SegmentLabels(spans, torch.tensor(p).view(-1, 3), ("O", "Ignore", "NF-ERR"), marks)
            for spans, p, marks in zip(SPANS, self.probabilities, judged)
        ]


class FakeScorer:
    mean, std = 1.0, 2.0

    def __init__(self, scores=(5.0, 0.0, 1.0)):
        self.scores = scores

    def score(self, prompts, texts):
        return torch.tensor(self.scores)


def rollout_of(texts, ends, **others):
    mask_BT = lengths_mask([len(e) for e in ends])
    char_ends = tuple(map(tuple, ends))
    return rollout(
        mask_BT, texts=tuple(texts), char_ends=char_ends, prompts=tuple(PROMPTS), **others
    )


def test_measures_count_every_kind_of_error():
    """A model with several error labels has no `error_label`; unread segments do not count."""

    class Model:
        spec = SimpleNamespace(judged_labels=("major", "minor", "O"), error_label=None)

    reward = SegmentClassifierReward(Model(), {"major": -5.0})
    labels = ["O", "major", "minor", "O", "O", "unread"]
    scores = [SegmentScore(0, 1, 0.0, label) for label in labels]
    assert reward.measures(scores) == {"error_free": 3, "segments": 5}


def test_placement_by_hand():
    # token 2 of the first row is half a character, the last ones are </s>
    ends = [(3, 7, 7, 11, 11), (2, 2), (0,)]
    first = ((0, 7, 1.0), (7, 8, 10.0), (0, 11, 100.0), (0, None, 1000.0), (5, 7, 0.5))
    second = ((0, 2, -1.0), (1, 2, -2.0), (0, 99, 4.0))
    rows = (first, second, ((0, None, 7.0),))
    segments = [[SegmentScore(*segment) for segment in row] for row in rows]
    placed = place_on_tokens(segments, ends, lengths_mask([5, 2, 1]))
    assert placed.tolist() == [[0, 1.5, 0, 110, 1000], [-3, 4, 0, 0, 0], [7, 0, 0, 0, 0]]


def test_a_response_without_tokens_cannot_carry_a_reward():
    with pytest.raises(ValueError, match="response 1 has no tokens"):
        place_on_tokens([[], [SegmentScore(0, None, 1.0)]], [(1,), ()], torch.tensor([[1], [0]]))
    assert place_on_tokens([[], []], [(1,), ()], torch.tensor([[1], [0]])).tolist() == [[0], [0]]


def test_several_kinds_of_error_have_values_of_their_own():
    class Model(FakeClassifier):
        spec = SimpleNamespace(judged_labels=("NF-ERR", "Ignore", "O"), level="subsentence")
        probabilities = [[[0.2, 0.7, 0.1], [0.1, 0.3, 0.6]], [[0.8, 0.1, 0.1]], []]

    def values(**given):
        reward = SegmentClassifierReward(Model(), {**given, "ok": 0.25})
        return [[s.value for s in scores] for scores in reward.segment_scores(PROMPTS, TEXTS)]

    assert values(error=-0.5) == [[-0.5, -0.5], [0.25], []]
    assert values(error=-0.5, Ignore=-0.125) == [[-0.125, -0.5], [0.25], []]
    assert values(Ignore=-0.125) == [[-0.125, 0.0], [0.25], []]
    message = "label `F-ERR`, which .* does not have: its labels are NF-ERR, Ignore, O"
    with pytest.raises(UserError, match=message):
        values(**{"F-ERR": 1.0})


def test_soft_values_by_hand():
    values = {"O": 0.3, "major": -1.0, "minor": -0.2}
    probabilities = {"O": 0.5, "major": 0.1, "minor": 0.4}

    def value(how, of=probabilities):
        return segment_value(of, values, "O", how)

    assert value("hard") == 0.3
    assert value("expected") == pytest.approx(0.15 - 0.1 - 0.08)
    assert value("log_odds") == pytest.approx(value("expected"))  # undecided: the same
    # p(ok) / p(error) = e, a third of the bound: r = 1/3
    sure = {"O": math.e, "major": 0.25, "minor": 0.75}
    assert value("log_odds", sure) == pytest.approx(2 / 3 * 0.3 + 1 / 3 * -0.4)
    surer = {"O": math.exp(3.5), "major": 0.25, "minor": 0.75}
    assert value("log_odds", surer) == pytest.approx(0.3)
    for how in ("hard", "expected", "log_odds"):
        assert value(how, {"O": 1.0, "major": 0.0, "minor": 0.0}) == 0.3
        assert value(how, {"O": 0.0, "major": 1.0, "minor": 0.0}) == -1.0
        assert math.isnan(value(how, {"O": math.nan, "major": 0.0, "minor": 0.0}))
    assert value("hard", {"major": 0.5, "minor": 0.0, "O": 0.5}) == 0.3  # a tie


@pytest.mark.parametrize("how", ["expected", "log_odds"])
def test_with_a_soft_value_a_label_is_decided_by_the_threshold(how):
    class Model(FakeClassifier):
        spec = SimpleNamespace(
            judged_labels=("NF-ERR", "O"), level="subsentence", error_threshold=0.25
        )
        probabilities = [[[0.7, 0.0, 0.3], [0.8, 0.0, 0.2]], [[0.1, 0.0, 0.9]], []]

    reward = SegmentClassifierReward(Model(), VALUES, how)
    scores = reward.segment_scores(PROMPTS, TEXTS)
    assert [s.label for s in scores[0] + scores[1]] == ["NF-ERR", "O", "NF-ERR"]
    assert reward.measures(scores[0]) == {"error_free": 1, "segments": 2}
    values = [s.value for s in scores[0] + scores[1]]
    assert sorted(values, reverse=True) == [values[1], values[0], values[2]]
    if how == "expected":
        assert values == pytest.approx([0.7 * 0.3 - 0.3 * 0.5, 0.8 * 0.3 - 0.2 * 0.5, 0.03 - 0.45])
    hard = SegmentClassifierReward(Model(), VALUES).segment_scores(PROMPTS, TEXTS)
    assert [s.label for s in hard[0]] == ["O", "O"]


def test_an_ensemble_by_hand():
    class Doubtful(FakeClassifier):  # of the second segment only
        probabilities = [[[0.2, 0.7, 0.1], [0.1, 0.3, 0.6]], [[0.1, 0.8, 0.1]], []]

    members = [SegmentClassifierReward(model(), VALUES) for model in (FakeClassifier, Doubtful)]
    reward = EnsembleReward(members, kappa=0.5)
    first, second, empty = reward.segment_scores(PROMPTS, TEXTS)
    assert [(score.start, score.end) for score in first] == list(SPANS[0]) and empty == []
    # .3 and -.5: a mean of -.1 and a standard deviation of .4
    assert [score.value for score in first] == pytest.approx([0.3, -0.1 - 0.5 * 0.4])
    assert [score.std for score in first] == pytest.approx([0, 0.4])
    assert [score.label for score in first] == ["O", "NF-ERR"]  # undecided: the lower value
    assert reward.measures(first) == {
        "error_free": 1,
        "segments": 2,
        "disagreement": pytest.approx(0.2),
    }
    three = EnsembleReward([*members, members[0]])
    scores = three.segment_scores(PROMPTS, TEXTS)[0]
    assert scores[1].label == "O" and scores[1].value == pytest.approx((0.3 - 0.5 + 0.3) / 3)

    whole = [
        SequenceScorerReward(FakeScorer(scores), 1.0, 2.0) for scores in ((5, 0, 1), (1, 2, 3))
    ]
    scores = EnsembleReward(whole, kappa=1.0).segment_scores(PROMPTS, TEXTS)
    assert [score[0].value for score in scores] == pytest.approx([0, -0.5, 0])  # the lower of two
    with pytest.raises(UserError, match=r"different segments \(their numbers: 2, 1\)"):
        EnsembleReward([members[0], whole[0]]).segment_scores(PROMPTS, TEXTS)


def test_the_disagreement_of_an_ensemble_is_logged_without_the_weight():
    class Doubtful(FakeClassifier):
        probabilities = [[[0.1, 0.3, 0.6]] * 2, [[0.1, 0.8, 0.1]], []]

    members = [SegmentClassifierReward(model(), VALUES) for model in (FakeClassifier, Doubtful)]
    reward = CombinedReward({"facts": EnsembleReward(members)}, {"facts": 3.0})
    ends = [[12, 22], [6], [0]]
    made = rollout_of(TEXTS, ends)
    rewards = reward.token_rewards(made)
    zeros = torch.zeros_like(rewards.total_BT)
    metrics = rollout_metrics(made, rewards, rewards.total_BT, Advantages(zeros))
    assert metrics["disagreement/facts"] == pytest.approx((0.4 + 0.4 + 0) / 3)
    assert metrics["reward/facts"] == pytest.approx(3 * (-0.1 - 0.1 + 0.3) / 3)


@pytest.mark.parametrize("level", ["whole", "sequence"])
def test_a_label_of_the_whole_response_also_rates_the_decision_to_stop(level):
    class Model(FakeClassifier):
        spec = SimpleNamespace(judged_labels=("NF-ERR", "O"), level=level)

        def score(self, prompts, texts):
            probabilities_SC = torch.tensor([[0.2, 0.1, 0.7]])
            return [SegmentLabels(((0, 3),), probabilities_SC, ("O", "Ignore", "NF-ERR"), (True,))]

    scores = SegmentClassifierReward(Model(), VALUES).segment_scores(PROMPTS[:1], ["cat"])
    assert scores == [[SegmentScore(0, None, -0.5, "NF-ERR")]]
    # the value is at the end-of-sequence token, not at the last word
    placed = place_on_tokens(scores, [(3, 3)], torch.tensor([[1, 1]]))
    assert placed.tolist() == [[0, -0.5]]


def test_labels_are_found_by_name():
    scores = SegmentClassifierReward(FakeClassifier(), VALUES).segment_scores(PROMPTS, TEXTS)
    first = [SegmentScore(0, 12, 0.3, "O"), SegmentScore(12, 22, 0.3, "O")]
    assert scores == [first, [SegmentScore(0, 6, 0.3, "O")], []]
    flipped = FakeClassifier()
    flipped.probabilities = [[[0.1, 0.7, 0.2], [0.5, 0.3, 0.2]], [[0.1, 0.8, 0.1]], []]
    scores = SegmentClassifierReward(flipped, VALUES).segment_scores(PROMPTS, TEXTS)
    assert [s.value for s in scores[0]] == [-0.5, 0.3] and scores[0][0].label == "NF-ERR"
    flipped.judged = [(True, False), (False,), ()]
    scores = SegmentClassifierReward(flipped, VALUES).segment_scores(PROMPTS, TEXTS)
    first = [SegmentScore(0, 12, -0.5, "NF-ERR"), SegmentScore(12, 22, 0.0, "unread")]
    assert scores[:2] == [first, [SegmentScore(0, 6, 0.0, "unread")]]


def test_a_classifier_that_says_nan_is_refused_by_name():
    broken = FakeClassifier()
    broken.probabilities = [[[0.2, 0.7, 0.1], [math.nan] * 3], [[0.1, 0.8, 0.1]], []]
    reward = CombinedReward({"relevance": SegmentClassifierReward(broken, VALUES)})
    message = r"reward `relevance` is nan for the answer 'the red cat, and a dog'"
    with pytest.raises(UserError, match=message):
        reward.token_rewards(rollout_of(TEXTS, [(22,), (6,), (0,)]))


@pytest.mark.parametrize("value", [1e300, -1e39])
def test_a_score_that_single_precision_cannot_square_is_refused(value):
    class Huge:
        def segment_scores(self, prompts, texts):
            return [[SegmentScore(0, len(text), value)] for text in texts]

    with pytest.raises(UserError, match=f"reward `huge` is {value} for".replace("+", "[+]")):
        CombinedReward({"huge": Huge()}).token_rewards(rollout_of(TEXTS, [(22,), (6,), (0,)]))


def test_sequence_scores_by_hand():
    def values(**settings):
        reward = SequenceScorerReward(FakeScorer(), 1.0, 2.0, **settings)
        return [row[0].value for row in reward.segment_scores(PROMPTS, TEXTS)]

    assert values() == [2.0, -0.5, 0.0]
    assert values(scale=0.3, bias=0.1) == pytest.approx([0.7, -0.05, 0.1])
    assert values(scale=0.5, clip=1.5) == [0.75, -0.25, 0.0]
    rows = SequenceScorerReward(FakeScorer(), 1.0, 2.0).segment_scores(PROMPTS, TEXTS)
    assert [len(row) for row in rows] == [1, 1, 1]
    assert rows[2][0].end is None  # an empty answer is scored too


def test_at_end_moves_everything_and_loses_nothing():
    ends = [(3, 7, 11, 12, 16, 18, 22, 22), (1, 6), (0,)]
    aspect = SegmentClassifierReward(FakeClassifier(), VALUES)
    batch = rollout_of(TEXTS, ends)
    dense, sparse = (
        CombinedReward({"r": one}, {"r": 1.0}).token_rewards(batch).total_BT
        for one in (aspect, AtEnd(aspect))
    )
    torch.testing.assert_close(dense.sum(1), sparse.sum(1))
    assert dense[0].tolist() == pytest.approx([0, 0, 0, 0.3, 0, 0, 0.3, 0])
    assert sparse[0].tolist() == pytest.approx([0, 0, 0, 0, 0, 0, 0, 0.6])
    assert sparse[1].tolist()[:2] == pytest.approx([0, 0.3])


def test_aspects_are_weighed_and_kept_apart():
    ends = [(3, 7, 11, 12, 16, 18, 22, 22), (1, 6), (0,)]
    aspects = {
        "relevance": SegmentClassifierReward(FakeClassifier(), VALUES),
        "cat": CountWord(),
        "whole": SequenceScorerReward(FakeScorer(), 1, 2),
    }
    reward = CombinedReward(aspects, {"relevance": 2.0, "cat": 0.5, "whole": 1.0})
    rewards = reward.token_rewards(rollout_of(TEXTS, ends))
    assert set(rewards.by_aspect) == {"relevance", "cat", "whole"}
    assert rewards.by_aspect["cat"][0].tolist() == [0, 0, 0.5, 0, 0, 0, 0, 0]
    assert rewards.total_BT[0].tolist() == pytest.approx([0, 0, 0.5, 0.6, 0, 0, 0.6, 2.0])
    assert rewards.total_BT[2].tolist() == [0.0] * 8  # z = 0
    rows = [scores for aspect in rewards.segments.values() for scores in aspect]
    sums = sum(score.value for scores in rows for score in scores)
    assert rewards.total_BT.sum() == pytest.approx(sums)


def test_the_kl_penalty_is_taken_off_real_tokens():
    logprobs = {
        "logprobs_BT": torch.full((3, 2), -1.0),
        "ref_logprobs_BT": torch.full((3, 2), -3.0),
    }
    batch = rollout_of(["the", "a", ""], [(3, 3), (1,), (0,)], **logprobs)
    rewards = CombinedReward({"cat": CountWord("the")}).token_rewards(batch)
    penalized = BasicReward.penalized(rewards, batch, 0.1)
    assert penalized.flatten().tolist() == pytest.approx([0.8, -0.2, -0.2, 0, -0.2, 0])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("clip", [None, 2.0])
def test_a_nan_reward_is_refused_by_name(bad, clip):
    scorer = SequenceScorerReward(FakeScorer((0.0, bad, 0.0)), 1, 2, clip=clip)
    reward = CombinedReward({"fine": CountWord(), "completeness": scorer})
    if clip and bad == math.inf:
        return  # clipping makes an infinite score harmless
    with pytest.raises(UserError, match=r"reward `completeness`.*'a bird'"):
        reward.token_rewards(rollout_of(TEXTS, [(22,), (6,), (0,)]))


# ---- rewards of other machines -------------------------------------------------------------------


class Remote:
    """A remote reward that waits for something before it answers."""

    remote = True

    def __init__(self, value: float, wait=lambda: None):
        self.value = value
        self.wait = wait
        self.calls = 0

    def segment_scores(self, prompts, texts):
        self.calls += 1
        self.wait()
        return [[SegmentScore(0, len(text), self.value)] for text in texts]


class Local:
    def __init__(self, done=lambda: None):
        self.done = done

    def segment_scores(self, prompts, texts):
        self.done()
        return [[SegmentScore(0, 1, 7.0)] for _ in texts]


ASKED = ([Prompt("0", "a"), Prompt("1", "b")], ["one", "two"])


def test_remote_rewards_wait_at_the_same_time_as_others_are_computed():
    together = threading.Barrier(2, timeout=600)  # each waits until the other waits, too
    computed = threading.Event()
    aspects = {
        "first": Remote(1.0, together.wait),
        "second": AtEnd(Remote(2.0, together.wait)),
        "third": Remote(3.0, lambda: computed.wait(600)),
        "here": Local(computed.set),
    }
    weights = {name: 2.0 for name in aspects}
    results = CombinedReward(aspects, weights).segment_scores(*ASKED)
    one_by_one = {"first": Remote(1.0), "second": AtEnd(Remote(2.0)), "third": Remote(3.0)}
    one_by_one["here"] = Local()
    for aspect in one_by_one.values():
        aspect.remote = False
    expected = CombinedReward(one_by_one, weights).segment_scores(*ASKED)
    assert results == expected and list(results) == list(expected)
    assert results["second"][0] == [SegmentScore(0, None, 4.0)]


def test_a_call_that_was_started_is_used_once_and_for_its_texts_only():
    remote = Remote(1.0)
    reward = CombinedReward({"far": remote})
    reward.start(*ASKED)
    first = reward.segment_scores(*ASKED)
    assert remote.calls == 1
    assert reward.segment_scores(*ASKED) == first
    assert remote.calls == 2
    reward.start(*ASKED)
    other = reward.segment_scores(ASKED[0], ["one", "another"])["far"]
    assert [scores[0].end for scores in other] == [3, 7]


def test_a_remote_reward_may_need_the_tokens():
    class RemoteLength:
        remote = True
        needs_tokens = True

        def segment_scores(self, prompts, texts, tokens):
            return [[SegmentScore(0, None, float(len(one.char_ends)))] for one in tokens]

    reward = CombinedReward({"far": RemoteLength(), "other": Remote(1.0)})
    reward.start(*ASKED)
    tokens = [ResponseTokens((1, 3), True), ResponseTokens((1, 2, 3), False)]
    scores = reward.segment_scores(*ASKED, tokens)
    assert [one[0].value for one in scores["far"]] == [2.0, 3.0]


def test_the_error_of_a_remote_reward_names_it():
    def fail():
        raise UserError("no server")

    with pytest.raises(UserError, match="no server") as error:
        CombinedReward({"far": Remote(1.0, fail), "here": Local()}).segment_scores(*ASKED)
    assert error.value.__notes__ == ["in the reward `far` (Remote)"]
