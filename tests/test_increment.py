"""Rewards that read increments: values by hand, telescoping sums, and the scorers behind it."""

from collections.abc import Sequence

import pytest
import torch
from tiny import policy

from fgrlhf.base.errors import UserError
from fgrlhf.configs.strict import validate
from fgrlhf.reward_models.scoring import SegmentLabels
from fgrlhf.rewards.attribution import growing_texts
from fgrlhf.rewards.build import build_aspects
from fgrlhf.rewards.scored import ScorerReward
from fgrlhf.scorers.base import RewardContext, score_texts
from fgrlhf.scorers.likelihood import Likelihood
from fgrlhf.scorers.linear import fit_linear_scorer
from fgrlhf.scorers.models import Standardized, WithoutError
from fgrlhf.task import Task
from fgrlhf.task_config import rl_config
from fgrlhf.text_types import Prompt, ResponseTokens

PROMPTS = [Prompt("0", "ask"), Prompt("1", "ask more")]
CONTEXT = RewardContext(prefix=lambda prompt, with_context: prompt.text.split())
TASK = Task(name="any")


class Table:
    """A scorer that looks texts up, and records what it is asked for."""

    def __init__(self, scores: dict[str, float]):
        self.scores = scores
        self.calls: list[list[tuple[str, str]]] = []

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
        self.calls.append([(prompt.id, text) for prompt, text in zip(prompts, texts)])
        return [self.scores[text] for text in texts]


class Length:
    """The number of characters of prompt and text: different for every text."""

    def __init__(self, factor: float = 1.0):
        self.factor = factor

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
        return [self.factor * (len(p.text) + len(t) ** 0.5) for p, t in zip(prompts, texts)]


INCREMENT = {"kind": "score", "reads": "increment", "level": "sentence"}


def built(**section):
    tree = {
        "model": {"ckpt": "p", "value_model": {"ckpt": "p"}},
        "logging": {"save_dir": "out"},
        "reward": {"a": {**INCREMENT, **section}},
    }
    config = validate(rl_config(TASK), tree, "file")
    aspects, _ = build_aspects(config.reward, CONTEXT)
    return aspects["a"]


def refused(**section) -> str:
    with pytest.raises(UserError) as error:
        built(**section)
    return str(error.value)


PYTHON = {"kind": "python", "of": "test_increment.Length"}


def increments(scorer, scale: float = 1.0, level: str = "sentence") -> ScorerReward:
    return ScorerReward(scorer, level, "increment", scale)


# ---- values --------------------------------------------------------------------------------------


def test_the_example_of_the_paper():
    """P(bad) is .72 after one sentence and .60 after two: -.72, then +.12."""
    text = "You are awful. But I may be wrong."
    scorer = Table({"": 0.0, "You are awful.": 0.72, text: 0.60})
    (scores,) = increments(scorer, scale=-1.0).segment_scores(PROMPTS[:1], [text])
    assert [(score.start, score.end) for score in scores] == [(0, 14), (15, 34)]
    assert [score.value for score in scores] == pytest.approx([-0.72, 0.12])
    assert [score.label for score in scores] == ["0.72", "0.6"]


TEXTS = ["A first one. Then two! And three? Yes", "  Only one, with space around it. \n", ""]


@pytest.mark.parametrize("level", ["sentence", "subsentence", "word", "whole", "step:,"])
@pytest.mark.parametrize("scale", [1.0, -4.0])
def test_the_sum_is_the_score_of_the_whole_minus_that_of_the_empty_text(level, scale):
    prompts = [Prompt(str(i), "p" * i) for i in range(len(TEXTS))]
    results = increments(Length(), scale, level).segment_scores(prompts, TEXTS)
    for prompt, text, scores in zip(prompts, TEXTS, results):
        whole, empty = Length().score([prompt, prompt], [text, ""])
        expected = scale * (whole - empty)
        assert sum(score.value for score in scores) == pytest.approx(expected, abs=1e-12)


def test_a_dense_reward_and_one_at_the_end_have_the_same_sum():
    dense = built(scorer=PYTHON, scale=-4)
    single = built(scorer=PYTHON, scale=-4, level="whole")
    for text in TEXTS[:2]:
        (parts,) = dense.segment_scores(PROMPTS[:1], [text])
        (whole,) = single.segment_scores(PROMPTS[:1], [text])
        assert len(whole) == 1 and whole[0].end is None
        assert whole[0].value == pytest.approx(sum(part.value for part in parts))


def test_more_sentences_with_the_same_score_earn_nothing():
    scorer = Table({"": 0.2, "So.": 0.5, "So. So.": 0.5, "So. So. So.": 0.5})
    reward = increments(scorer)
    one, three = reward.segment_scores([PROMPTS[0]] * 2, ["So.", "So. So. So."])
    assert [score.value for score in one] == pytest.approx([0.3])
    assert [score.value for score in three] == pytest.approx([0.3, 0.0, 0.0])


def test_a_blank_response_has_no_segment():
    scorer = Table({})
    assert increments(scorer).segment_scores(PROMPTS, ["", " \n"]) == [[], []]
    assert scorer.calls == []


def test_segments_can_be_tokens_of_the_policy():
    reward = increments(Length(), level="token")
    assert reward.needs_tokens and not increments(Length()).needs_tokens
    tokens = [ResponseTokens((1, 4), finished=True)]
    (scores,) = reward.segment_scores(PROMPTS[:1], ["abcd"], tokens)
    assert [score.value for score in scores] == pytest.approx([1.0, 1.0])


def test_growing_texts():
    assert growing_texts("A b. C d. ", [4, 9]) == ["", "A b.", "A b. C d. "]
    assert growing_texts("", []) == []


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_the_implied_reward_of_a_policy(kind, tmp_path):
    """Its increments add up to the log-ratio of the response; equal policies have none."""
    reference, trained = str(tmp_path / "reference"), str(tmp_path / "trained")
    made = policy(kind)
    made.save(reference)
    for parameter in made.parameters():
        parameter.data *= 1.25
    made.save(trained)
    text = "A b. A a."

    def reward(ckpt, before, level="sentence"):
        of_class = "fgrlhf.scorers.likelihood.Implied"
        arguments = {"policy": ckpt, "reference": before, "device": "cpu"}
        scorer = {"kind": "python", "of": of_class, "args": arguments}
        return built(scorer=scorer, level=level).segment_scores(PROMPTS, [text, ""])

    (same, _), (parts, blank) = reward(reference, reference), reward(trained, reference)
    assert [part.value for part in same] == [0, 0] and blank == []
    ((whole,), _), ((back,), _) = (
        reward(*pair, "whole") for pair in ((trained, reference), (reference, trained))
    )
    assert whole.value != 0 and back.value == pytest.approx(-whole.value)
    assert sum(part.value for part in parts) == pytest.approx(whole.value)
    both = [Likelihood(name, "test", "cpu", "fp32") for name in (trained, reference)]
    (now, count), (before, _) = (of.logprobs(PROMPTS[:1], [text])[0] or (0, 0) for of in both)
    assert whole.value == pytest.approx(now - before) and count > 1


# ---- calls ---------------------------------------------------------------------------------------


def test_every_text_of_a_prompt_is_scored_once_and_all_in_one_call():
    scorer = Table({"": 0.0, "Up.": 0.1, "Up. On.": 0.2, "Up. In.": 0.3})
    texts = ["Up. On.", "Up. In.", "Up. On."]
    prompts = [PROMPTS[0], PROMPTS[0], PROMPTS[1]]
    increments(scorer).segment_scores(prompts, texts)
    (call,) = scorer.calls
    of_first = [("0", text) for text in ("", "Up.", "Up. In.", "Up. On.")]
    of_second = [("1", text) for text in ("", "Up.", "Up. On.")]
    assert sorted(call) == [*of_first, *of_second]


def test_scores_are_in_the_order_of_the_texts():
    scorer = Table({"a": 1.0, "b": 2.0})
    prompts = [PROMPTS[0], PROMPTS[0], PROMPTS[1], PROMPTS[0]]
    assert score_texts(scorer, prompts, ["b", "a", "b", "b"]) == [2.0, 1.0, 2.0, 2.0]
    assert score_texts(scorer, [], []) == []


def test_prompts_of_different_files_may_have_one_id():
    class PromptLength:
        def score(self, prompts, texts):
            return [float(len(prompt.text)) for prompt in prompts]

    prompts = [Prompt("0", "Red?"), Prompt("0", "Is it blue?"), Prompt("0", "Red?")]
    assert score_texts(PromptLength(), prompts, ["Yes"] * 3) == [4.0, 11.0, 4.0]


def test_a_response_of_which_no_segment_was_read_has_no_score():
    """Its probability of an error is not known, so it is not free of errors."""

    class Cut:
        def score(self, prompts, texts):
            labels = ("error", "ok")
            judged = [bool(text) for text in texts]
            spans = [((0, 3), (4, 9))] * len(texts)
            p_SC = torch.tensor([[0.25, 0.75], [0.5, 0.5]])
            return [
                SegmentLabels(place, p_SC, labels, (is_first, False))
                for place, is_first in zip(spans, judged)
            ]

    scorer = WithoutError(Cut(), min)
    assert scorer.score(PROMPTS[:1], ["One. Two."]) == [0.75]
    with pytest.raises(UserError, match="cut before the end of the response's first segment"):
        scorer.score(PROMPTS[:1], [""])


@pytest.mark.parametrize(
    "scores, message",
    [
        ([[1.0]], "returned 1 scores for 2 texts: `score_segments` must return one number"),
        ([[1.0, float("nan")]], "gave nan to the text 'Two.'"),
        ([[1.0, 2.0]] * 2, "for 1 responses: `score_segments` must return a list of numbers for"),
        (None, "returned None for 1 responses"),
    ],
)
def test_segments_that_are_judged_together_have_a_number_each(scores, message):
    class Together:
        def __init__(self, scores):
            self.scores = scores

        def score_segments(self, prompts, texts, segments):
            return self.scores

    for right in ([[1.0, 2.0]], torch.tensor([[1.0, 2.0]])):
        reward = ScorerReward(Together(right), "sentence")
        (found,) = reward.segment_scores(PROMPTS[:1], ["One. Two."])
        assert [score.value for score in found] == [1, 2]
    with pytest.raises(UserError, match=message):
        ScorerReward(Together(scores), "sentence").segment_scores(PROMPTS[:1], ["One. Two."])


@pytest.mark.parametrize(
    "scores, message",
    [
        ([1.0], "returned 1 scores for 2 texts"),
        ([1.0, float("nan")], "gave nan to the text 'b'"),
        (None, "the scorer Broken returned None for 2 texts: `score` must return a list of numb"),
        ([1.0, None], r"the scorer Broken returned \[1.0, None\] for 2 texts"),
        (torch.ones(2, 3), r"the scorer Broken returned tensor\(.* for 2 texts"),
    ],
)
def test_a_scorer_that_returns_something_else_is_an_error(scores, message):
    class Broken:
        def score(self, prompts, texts):
            return scores

    with pytest.raises(UserError, match=message):
        score_texts(Broken(), [PROMPTS[0]] * 2, ["a", "b"])


# ---- configs and scorers -------------------------------------------------------------------------


def test_mistakes_are_named():
    assert "reward.a.scorer: missing" in refused()
    assert "reward.a.scale" in refused(scorer=PYTHON, scale=0)
    text = refused(scorer={"kind": "linera", "ckpt": "x"})
    assert "reward.a.scorer.kind: there is no `linera`; did you mean `linear`?" in text
    text = refused(scorer={"kind": "linear", "ckpt": "x", "label": "y"})
    assert "reward.a.scorer.label: unknown key" in text
    text = refused(scorer={"ckpt": "x"})
    known = "bertscore, classifier, judge, linear, python"
    assert f"reward.a.scorer.kind: missing; known: {known}" in text


@pytest.mark.parametrize(
    "scorer, message",
    [
        ({"of": "test_increment.Nothing"}, "the scorer `test_increment.Nothing` cannot be"),
        ({"of": "test_increment.Length", "args": {"f": 1}}, "does not accept these `args`"),
        ({"of": "fgrlhf.text_types.Prompt", "args": {"id": "", "text": ""}}, "is not a scorer"),
    ],
)
def test_a_python_scorer_must_fit(scorer, message):
    assert message in refused(scorer={"kind": "python", **scorer})


def test_a_linear_scorer(tmp_path):
    texts = ["bad dog", "bad cat", "good dog", "good cat"]
    scorer = fit_linear_scorer(texts, [True, True, False, False], "bad")
    scorer.save(tmp_path)
    config = {"kind": "linear", "ckpt": str(tmp_path)}
    reward = built(scorer=config, scale=-1)
    (scores,) = reward.segment_scores(PROMPTS[:1], ["A bad dog. A good cat."])
    p = scorer.probabilities(["", "A bad dog.", "A bad dog. A good cat."])
    assert [score.value for score in scores] == pytest.approx([p[0] - p[1], p[1] - p[2]])
    assert scores[0].value < 0 < scores[1].value


def test_a_reward_model_is_standardized():
    class Model:
        def score(self, prompts, texts):
            return torch.tensor([float(len(text)) for text in texts])

    scorer = Standardized(Model(), mean=3.0, std=2.0)
    assert scorer.score(PROMPTS, ["abcde", ""]) == [1.0, -1.5]
