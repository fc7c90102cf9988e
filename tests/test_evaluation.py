import json
from types import SimpleNamespace

import pytest
import tiny
import torch

from fgrlhf.errors import UserError
from fgrlhf.evaluation import evaluate, evaluate_rows, summarize
from fgrlhf.models.decoding import Sampling
from fgrlhf.reward import AtEnd, CombinedReward, SegmentClassifierReward, SequenceScorerReward
from fgrlhf.reward_models.scoring import SegmentLabels
from fgrlhf.rollout import generate_texts
from fgrlhf.stats import Interval
from fgrlhf.types import Prompt, Response, SegmentScore

GREEDY = Sampling(8, do_sample=False)
SAMPLED = Sampling(8, temperature=0.7, top_k=10)
PROMPTS = [
    Prompt(f"q{i}", text, ("the red cat .",))
    for i, text in enumerate(["the cat", "a dog sees the bird", "red", "blue bird and dog"])
]


class Canned:
    """A policy that answers with given texts, by prompt."""

    training = False

    def __init__(self, answers):
        self.answers, self.tokenizer = answers, tiny.tokenizer()

    def encode(self, texts):
        self.texts = texts
        return torch.zeros(len(texts), 1), torch.ones(len(texts), 1)

    def generate(self, ids_GP, mask_GP, sampling, row_seeds, num_samples, temperature):
        texts = [answer for text in self.texts for answer in self.answers[text][:num_samples]]
        batch = self.tokenizer([text + "</s>" for text in texts], padding=True, return_tensors="pt")
        mask_BT = batch["attention_mask"]
        return Response(batch["input_ids"], mask_BT, torch.zeros(mask_BT.shape))


class Words:
    """A segment scorer: every word is a segment, `dog` is an error."""

    spec = SimpleNamespace(error_label="ERR", ok_label="O", level="subsentence")

    def score(self, prompts, texts):
        judged = []
        for text in texts:
            spans, at = [], 0
            for word in text.split():
                spans.append((text.index(word, at), text.index(word, at) + len(word)))
                at = spans[-1][1]
            bad = torch.tensor(
                [[float(text[a:b] == "dog"), float(text[a:b] != "dog")] for a, b in spans]
            ).reshape(-1, 2)
            judged.append(SegmentLabels(tuple(spans), bad, ("ERR", "O"), (True,) * len(spans)))
        return judged


class Length:
    """A sequence scorer: number of words."""

    mean, std = 3.0, 2.0

    def score(self, prompts, texts):
        return torch.tensor([float(len(text.split())) for text in texts])


def reward(scale=0.5, weight=2.0):
    aspects = {
        "words": SegmentClassifierReward(Words(), {"ok": 0.3, "error": -0.5}),
        "end": AtEnd(SegmentClassifierReward(Words(), {"ok": 1.0})),
        "length": SequenceScorerReward(Length(), Length.mean, Length.std, scale, bias=0.25),
    }
    return CombinedReward(aspects, {"words": 1.0, "end": 0.1, "length": weight})


ANSWERS = {"the cat": ["the red cat .", "dog"], "red": ["dog dog", ""]}


def test_rows_and_summary_by_hand():
    prompts = [PROMPTS[0], PROMPTS[2]]
    got = evaluate(
        Canned(ANSWERS),
        prompts,
        reward(),
        GREEDY,
        num_samples=2,
        progress=False,
        metrics=[lambda prompt, text: {"oracle/gold": float(prompt.id == "q0")}],
    )
    assert [(row["id"], row["sample"], row["response"]) for row in got.rows] == [
        ("q0", 0, "the red cat ."),
        ("q0", 1, "dog"),
        ("q2", 0, "dog dog"),
        ("q2", 1, ""),
    ]
    first, _, third, empty = got.rows
    assert (
        first["prompt"] == "the cat"
        and first["references"] == ["the red cat ."]
        and first["length"] == 4
    )
    assert first["rougeLsum"] == pytest.approx(100) and third["rougeLsum"] == 0
    assert first["reward/words"] == pytest.approx(4 * 0.3) and third[
        "reward/words"
    ] == pytest.approx(-1.0)
    assert first["length/score"] == pytest.approx((4 - 3) / 2)  # weight, scale and bias taken out
    assert first["reward/length"] == pytest.approx(2 * (0.5 * 0.5 + 0.25))
    assert first["reward"] == pytest.approx(1.2 + 0.4 + 1.0)
    assert (third["words/error_free"], third["words/segments"]) == (0, 2)
    assert third["segments"]["words"][1] == {"start": 4, "end": 7, "value": -0.5, "label": "ERR"}
    assert third["segments"]["end"][1] == {"start": 4, "end": None, "value": 0.0, "label": "ERR"}
    assert (empty["length"], empty["words/segments"], empty["segments"]["words"]) == (0, 0, [])
    json.dumps(got.rows, allow_nan=False)

    summary = got.summary
    assert summary["words/ratio"]["mean"] == summary["end/ratio"]["mean"] == pytest.approx(4 / 7)
    assert summary["length/score"]["mean"] == pytest.approx(((4 + 1 + 2 + 0) / 4 - 3) / 2)
    assert summary["oracle/gold"] == {"mean": 0.5, "low": 0.0, "high": 1.0}
    assert summary["length"]["mean"] == pytest.approx(7 / 4)
    assert set(summary) == {
        "reward",
        "reward/words",
        "reward/end",
        "reward/length",
        "words/ratio",
        "end/ratio",
        "length/score",
        "length",
        "rougeLsum",
        "oracle/gold",
    }


def test_intervals_are_over_questions_not_samples():
    rows = [
        {"id": str(i), "sample": 0, "reward": float(i % 3), "a/error_free": i % 3, "a/segments": 3}
        for i in range(30)
    ]
    copies = [row | {"sample": k} for row in rows for k in range(4)]
    assert summarize(copies) == summarize(rows)
    assert summarize(rows)["reward"].mean == 1.0
    assert summarize(rows)["a/ratio"].mean == pytest.approx(1 / 3)


def test_unequal_samples_do_not_weigh_a_question_more():
    rows = [
        {"id": "a", "x": 1.0},
        {"id": "a", "x": 1.0},
        {"id": "a", "x": 1.0},
        {"id": "b", "x": 0.0},
        {"id": "c", "y": 5.0},
    ]
    assert summarize(rows)["x"].mean == 0.5 and summarize(rows)["y"] == Interval(5.0, 5.0, 5.0)


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_shares_and_batches_change_nothing(kind):
    policy = tiny.policy(kind)
    together = evaluate_rows(
        policy, PROMPTS, reward(), SAMPLED, seed=3, num_samples=3, progress=False
    )
    apart = [
        row
        for share in (PROMPTS[:1], PROMPTS[1:])
        for row in evaluate_rows(
            policy, share, reward(), SAMPLED, seed=3, num_samples=3, batch_size=1, progress=False
        )
    ]
    assert together == apart
    assert len({row["response"] for row in together}) > 4
    texts = generate_texts(policy, PROMPTS, SAMPLED, 3, seed=3, progress=False)
    assert [row["response"] for row in together] == [
        text for texts_of_one in texts for text in texts_of_one
    ]
    other = evaluate_rows(policy, PROMPTS, reward(), SAMPLED, seed=4, num_samples=3, progress=False)
    assert [row["response"] for row in other] != [row["response"] for row in together]


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
@pytest.mark.parametrize("sampling, expected_temperature", [(SAMPLED, 0.7), (GREEDY, 1.0)])
def test_kl_is_the_sum_over_the_response(kind, sampling, expected_temperature):
    policy, reference = tiny.policy(kind), tiny.policy(kind, seed=1)
    policy.train()
    generate, drawn = policy.generate, []
    policy.generate = lambda *args: drawn.append(generate(*args)) or drawn[-1]
    rows = evaluate_rows(
        policy,
        PROMPTS,
        None,
        sampling,
        reference=reference,
        num_samples=2,
        batch_size=1,
        progress=False,
    )
    assert policy.training
    policy.eval(), reference.eval()
    shortest_first = sorted(PROMPTS, key=lambda prompt: len(prompt.text))
    for prompt, response in zip(shortest_first, drawn, strict=True):
        for k, row in enumerate(row for row in rows if row["id"] == prompt.id):
            ids_1T = response.ids_BT[
                k : k + 1, : int(response.mask_BT[k].sum())
            ]  # alone and without padding
            batch = (*policy.encode([prompt.text]), ids_1T, torch.ones_like(ids_1T))
            with torch.no_grad():
                ours, theirs = (
                    model(*batch, temperature=expected_temperature)[0].logprobs_BT
                    for model in (policy, reference)
                )
            assert row["kl"] == pytest.approx(float((ours - theirs).sum()), abs=1e-4)
    assert any(abs(row["kl"]) > 0.01 for row in rows)
    same = evaluate_rows(policy, PROMPTS, None, sampling, reference=policy, progress=False)
    assert [row["kl"] for row in same] == pytest.approx([0.0] * 4, abs=1e-5)
    assert "reward" not in same[0] and "segments" not in same[0]


def test_without_references_there_is_no_rouge():
    rows = evaluate_rows(Canned(ANSWERS), [Prompt("0", "red")], None, GREEDY, progress=False)
    assert set(rows[0]) == {"id", "sample", "prompt", "response", "references", "length"}


def test_a_reward_that_is_not_a_number_is_refused():
    class Broken:
        def segment_scores(self, prompts, texts):
            return [[SegmentScore(0, None, float("nan"))] for _ in texts]

    with pytest.raises(UserError, match="reward `broken` is nan for an answer to prompt q2"):
        evaluate_rows(
            Canned(ANSWERS),
            PROMPTS[2:3],
            CombinedReward({"broken": Broken()}),
            GREEDY,
            progress=False,
        )


def test_kinds_of_a_users_own_give_their_reward_alone():
    class Own:
        def segment_scores(self, prompts, texts):
            return [[SegmentScore(0, 1, 0.5), SegmentScore(1, None, 0.25)] for _ in texts]

    got = evaluate(
        Canned(ANSWERS), PROMPTS[:1], CombinedReward({"own": Own()}), GREEDY, progress=False
    )
    assert got.summary["reward"]["mean"] == got.summary["reward/own"]["mean"] == 0.75
    assert set(got.summary) == {"reward", "reward/own", "length", "rougeLsum"}
