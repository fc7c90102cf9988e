import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from fgrlhf import rollout
from fgrlhf.base.errors import UserError
from fgrlhf.configs.sections import Sampling
from fgrlhf.evaluation import PolicyResponder, evaluate_rows
from fgrlhf.metrics.config import MetricConfig
from fgrlhf.metrics.registry import build_metrics
from fgrlhf.metrics.summary import summarize
from fgrlhf.reward import AtEnd, CombinedReward, SegmentClassifierReward, SequenceScorerReward
from fgrlhf.reward_models.scoring import SegmentLabels
from fgrlhf.rollout import generate_texts
from fgrlhf.stats import Interval, share_interval
from fgrlhf.text_types import Prompt, SegmentScore
from fgrlhf.types import Response

GREEDY = Sampling(8, do_sample=False)
SAMPLED = Sampling(8, temperature=0.7, top_k=10)
PROMPTS = [
    Prompt(f"q{i}", text, ("the red cat .",))
    for i, text in enumerate(["the cat", "a dog sees the bird", "red", "blue bird and dog"])
]


class Canned:
    """A policy that answers with given texts, by prompt."""

    training = False
    lead = ""

    def __init__(self, answers):
        self.answers, self.tokenizer = answers, tiny.tokenizer()

    def encode(self, prompts):
        self.texts = [prompt.text for prompt in prompts]
        return torch.zeros(len(prompts), 1), torch.ones(len(prompts), 1)

    def generate(self, ids_GP, mask_GP, sampling, row_seeds, num_samples, temperature):
        texts = [answer for text in self.texts for answer in self.answers[text][:num_samples]]
        batch = self.tokenizer([text + "</s>" for text in texts], padding=True, return_tensors="pt")
        mask_BT = batch["attention_mask"]
        return Response(batch["input_ids"], mask_BT, torch.zeros(mask_BT.shape))


class Words:
    """A segment scorer: every word is a segment, `dog` is an error."""

    spec = SimpleNamespace(
        error_label="ERR", ok_label="O", judged_labels=("ERR", "O"), level="subsentence"
    )

    def score(self, prompts, texts):
        judged = []
        for text in texts:
            spans, at = [], 0
            for word in text.split():
                spans.append((text.index(word, at), text.index(word, at) + len(word)))
                at = spans[-1][1]
            is_dog = [text[a:b] == "dog" for a, b in spans]
            bad = torch.tensor([[float(dog), float(not dog)] for dog in is_dog]).reshape(-1, 2)
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


def rows_of(policy, prompts, reward, sampling, seed=0, num_samples=1, **options):
    responder = PolicyResponder(policy, sampling, seed, num_samples)
    rows = evaluate_rows(responder, prompts, reward, progress=False, **options)
    return [row.as_json() for row in rows]


def evaluate(*arguments, **options):
    rows = rows_of(*arguments, **options)
    summary = {name: interval.as_dict() for name, interval in summarize(rows).items()}
    return SimpleNamespace(rows=rows, summary=summary)


ANSWERS = {"the cat": ["the red cat .", "dog"], "red": ["dog dog", ""]}


def test_rows_and_summary_by_hand():
    prompts = [PROMPTS[0], PROMPTS[2]]
    options = {"metrics": [lambda prompt, text: {"oracle/gold": float(prompt.id == "q0")}]}
    got = evaluate(Canned(ANSWERS), prompts, reward(), GREEDY, num_samples=2, **options)
    assert [(row["id"], row["sample"], row["response"]) for row in got.rows] == [
        ("q0", 0, "the red cat ."),
        ("q0", 1, "dog"),
        ("q2", 0, "dog dog"),
        ("q2", 1, ""),
    ]
    first, _, third, empty = got.rows
    assert first["prompt"] == "the cat" and first["references"] == ["the red cat ."]
    assert first["length"] == 4
    assert first["rougeLsum"] == pytest.approx(100) and third["rougeLsum"] == 0
    assert first["reward/words"] == pytest.approx(4 * 0.3)
    assert third["reward/words"] == pytest.approx(-1.0)
    assert first["length/score"] == pytest.approx((4 - 3) / 2)  # without weight, scale and bias
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
    assert summary["oracle/gold"] == {"mean": 0.5, "low": None, "high": None}
    assert summary["length"]["mean"] == pytest.approx(7 / 4)
    assert set(summary) == {
        *("reward", "reward/words", "reward/end", "reward/length", "words/ratio", "end/ratio"),
        *("length/score", "length", "rougeLsum", "oracle/gold"),
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
    rows = [*[{"id": "a", "x": 1.0}] * 3, {"id": "b", "x": 0.0}, {"id": "c", "y": 5.0}]
    summary = summarize(rows)
    assert summary["x"].mean == 0.5 and summary["y"] == Interval(5.0, math.nan, math.nan)


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_shares_and_batches_change_nothing(kind):
    policy = tiny.policy(kind)
    together = rows_of(policy, PROMPTS, reward(), SAMPLED, seed=3, num_samples=3)
    apart = [
        row
        for share in (PROMPTS[:1], PROMPTS[1:])
        for row in rows_of(policy, share, reward(), SAMPLED, seed=3, num_samples=3, batch_size=1)
    ]
    assert together == apart
    assert len({row["response"] for row in together}) > 4
    texts = generate_texts(policy, PROMPTS, SAMPLED, 3, seed=3)
    assert [row["response"] for row in together] == sum(texts, [])
    other = rows_of(policy, PROMPTS, reward(), SAMPLED, seed=4, num_samples=3)
    assert [row["response"] for row in other] != [row["response"] for row in together]


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
@pytest.mark.parametrize("sampling, expected_temperature", [(SAMPLED, 0.7), (GREEDY, 1.0)])
def test_kl_is_the_sum_over_the_response(kind, sampling, expected_temperature):
    policy, reference = tiny.policy(kind), tiny.policy(kind, seed=1)
    policy.train()
    generate, drawn = policy.generate, []
    policy.generate = lambda *args: drawn.append(generate(*args)) or drawn[-1]
    rows = rows_of(
        policy, PROMPTS, None, sampling, reference=reference, num_samples=2, batch_size=1
    )
    assert policy.training
    policy.eval(), reference.eval()
    shortest_first = sorted(PROMPTS, key=lambda prompt: len(prompt.text))
    for prompt, response in zip(shortest_first, drawn, strict=True):
        for k, row in enumerate(row for row in rows if row["id"] == prompt.id):
            # alone and without padding
            ids_1T = response.ids_BT[k : k + 1, : int(response.mask_BT[k].sum())]
            batch = (*policy.encode([prompt.text]), ids_1T, torch.ones_like(ids_1T))
            with torch.no_grad():
                ours, theirs = (
                    model(*batch, temperature=expected_temperature)[0].logprobs_BT
                    for model in (policy, reference)
                )
            assert row["kl"] == pytest.approx(float((ours - theirs).sum()), abs=1e-4)
    assert any(abs(row["kl"]) > 0.01 for row in rows)
    same = rows_of(policy, PROMPTS, None, sampling, reference=policy)
    assert [row["kl"] for row in same] == pytest.approx([0.0] * 4, abs=1e-5)
    assert "reward" not in same[0] and "segments" not in same[0]


def test_the_kl_of_a_large_batch_is_computed_in_parts(monkeypatch, record_calls):
    policy, reference = tiny.policy("gpt2"), tiny.policy("gpt2", seed=1)
    settings = {"reference": reference, "num_samples": 2}
    expected = rows_of(policy, PROMPTS, None, SAMPLED, **settings)
    monkeypatch.setattr(rollout, "SCORED_AT_ONCE", 1)  # a prompt with its responses at a time
    passes = record_calls(type(reference), "forward")
    rows = rows_of(policy, PROMPTS, None, SAMPLED, **settings)
    assert len(passes) == len(PROMPTS)
    assert [row["kl"] for row in rows] == pytest.approx([row["kl"] for row in expected], abs=1e-5)


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
def test_the_kl_from_the_same_weights_is_0_in_bf16(kind, weights):
    """Rounding, which differs between sampling and the parallel pass, is no part of it."""
    policy = tiny.policy(kind, dropout=0.5).to(weights).train()
    reference = tiny.policy(kind).to(weights).eval()
    with torch.autocast("cpu", torch.bfloat16, enabled=weights == torch.float32):
        rows = rows_of(policy, PROMPTS, None, SAMPLED, reference=reference, num_samples=2)
    assert [row["kl"] for row in rows] == [0.0] * 8 and policy.training


def test_without_references_there_is_no_rouge():
    rows = rows_of(Canned(ANSWERS), [Prompt("0", "red")], None, GREEDY)
    assert set(rows[0]) == {"id", "sample", "prompt", "response", "references", "length"}


def test_responses_are_never_given_to_other_prompts():
    """A policy that returns too few responses is an error, not a shift of all that follow."""
    with pytest.raises(ValueError, match="zip.. argument 2 is shorter"):
        one_each = Canned({"the cat": ["dog"], "red": ["dog"]})
        rows_of(one_each, [PROMPTS[0], PROMPTS[2]], None, GREEDY, num_samples=2)


def test_a_reward_that_is_not_a_number_is_refused():
    class Broken:
        def segment_scores(self, prompts, texts):
            return [[SegmentScore(0, None, float("nan"))] for _ in texts]

    with pytest.raises(UserError, match="reward `broken` is nan for an answer to prompt q2"):
        rows_of(Canned(ANSWERS), PROMPTS[2:3], CombinedReward({"broken": Broken()}), GREEDY)


def test_other_rewards_give_their_value_alone():
    class Own:
        def segment_scores(self, prompts, texts):
            return [[SegmentScore(0, 1, 0.5), SegmentScore(1, None, 0.25)] for _ in texts]

    got = evaluate(Canned(ANSWERS), PROMPTS[:1], CombinedReward({"own": Own()}), GREEDY)
    assert got.summary["reward"]["mean"] == got.summary["reward/own"]["mean"] == 0.75
    assert set(got.summary) == {"reward", "reward/own", "length", "rougeLsum"}


# ---- rewards that describe themselves, or do not apply -------------------------------------------


def test_a_reward_can_give_measures_of_its_own():
    class Own:
        def segment_scores(self, prompts, texts):
            return [[SegmentScore(0, None, float(len(text)))] for text in texts]

        def measures(self, scores):
            return {"characters": scores[0].value, "error_free": 1, "segments": 2}

    reward = CombinedReward({"own": Own(), "late": AtEnd(Own())}, {"own": -0.5, "late": 2.0})
    got = evaluate(Canned(ANSWERS), PROMPTS[:1], reward, GREEDY)
    (row,) = got.rows
    assert row["reward/own"] == -0.5 * len(row["response"])
    for name in ("own", "late"):  # independent of the weight
        assert row[f"{name}/characters"] == len(row["response"])
        assert got.summary[f"{name}/ratio"]["mean"] == 0.5
    assert "own/error_free" not in got.summary and "own/segments" not in got.summary


class NoDogs:
    """A reward that does not apply to responses with a dog."""

    def segment_scores(self, prompts, texts):
        return [None if "dog" in text else [SegmentScore(0, None, 3.0)] for text in texts]

    def measures(self, scores):
        return {"segments": 1, "error_free": 1, "number": len(scores)}


class Both(CombinedReward):
    """The rewards side by side, unweighted."""

    def segment_scores(self, prompts, texts, tokens=None):
        return {name: part.segment_scores(prompts, texts) for name, part in self.aspects.items()}


def test_a_reward_that_does_not_apply_enters_no_statistic():
    class One:
        def segment_scores(self, prompts, texts):
            return [[SegmentScore(0, None, 1.0)] for _ in texts]

    prompts = [PROMPTS[0], PROMPTS[2]]
    reward = Both({"cats": NoDogs(), "one": One()})
    got = evaluate(Canned(ANSWERS), prompts, reward, GREEDY, num_samples=2)
    cat, dog, dogs, empty = got.rows
    assert (cat["reward"], dog["reward"], dogs["reward"], empty["reward"]) == (4, 1, 1, 4)
    for row in (dog, dogs):
        assert row["reward/cats"] is None and row["reward/one"] == 1
        assert list(row["segments"]) == ["one"]  # readers of rows need not handle null
        assert not any(key.startswith("cats/") for key in row)
    json.dumps(got.rows, allow_nan=False)
    assert got.summary["reward/cats"]["mean"] == 3
    assert got.summary["reward/cats/not_applicable"]["mean"] == 0.5
    assert got.summary["cats/ratio"]["mean"] == got.summary["cats/number"]["mean"] == 1
    assert "reward/one/not_applicable" not in got.summary


def test_own_metrics_with_the_names_of_counts_have_means():
    """Only the two counts of a reward model together give a ratio."""
    rows = [{"id": "x", "facts/segments": 4, "other/error_free": 2.0, "own/ratio": 0.5}]
    means = {name: interval.mean for name, interval in summarize(rows).items()}
    assert means == {"facts/segments": 4, "other/error_free": 2, "own/ratio": 0.5}
    both = [
        {"id": "x", "facts/error_free": 1, "facts/segments": 4},
        {"id": "y", "facts/error_free": None, "facts/segments": None},  # does not apply
    ]
    assert summarize(both)["facts/ratio"].mean == 0.25
    assert summarize(both[1:])["facts/segments/not_applicable"].mean == 1


# ---- metrics by name -----------------------------------------------------------------------------


def named(*configs):
    return build_metrics([MetricConfig.model_validate(config) for config in configs])


def test_named_metrics_join_the_rows():
    prompts = [PROMPTS[0], Prompt("none", "red")]  # the second has no references
    metrics = [
        *named("bleu", "exact_match", "rougeLsum", "length", "distinct1"),
        lambda prompt, text: {"task/own": 1.0 if prompt.references else None},
    ]
    got = evaluate(Canned(ANSWERS), prompts, None, GREEDY, num_samples=2, metrics=metrics)
    cat, dog, dogs, empty = got.rows
    assert cat["bleu"] == pytest.approx(100) and cat["bleu/bleu_counts"][:2] == [4, 4]
    assert (cat["exact_match"], dog["exact_match"]) == (1, 0)
    assert (cat["distinct1"], dogs["distinct1"], empty["distinct1"]) == (1, 0.5, None)
    assert cat["rougeLsum"] == pytest.approx(100) and cat["length"] == 4
    for row in (dogs, empty):
        assert row["bleu"] is row["exact_match"] is row["rougeLsum"] is row["task/own"] is None
        assert "bleu/bleu_counts" not in row
    json.dumps(got.rows, allow_nan=False)
    summary = got.summary
    assert summary["exact_match"]["mean"] == 0.5 and summary["task/own"]["mean"] == 1
    assert summary["distinct1"]["mean"] == pytest.approx((1 + 0.5) / 2)
    # pooled: `the red cat . dog` has five different words, `dog dog` one of two
    assert summary["distinct1/prompt"]["mean"] == pytest.approx((1 + 0.5) / 2)
    shares = {name: value["mean"] for name, value in summary.items() if "not_applicable" in name}
    halves = dict.fromkeys(("bleu", "exact_match", "rougeLsum", "task/own"), 0.5)
    expected = {f"{name}/not_applicable": share for name, share in halves.items()}
    assert shares == expected | {"distinct1/not_applicable": 0.25}


def test_without_any_reference_only_the_share_is_left():
    prompts = [Prompt("none", "red")]
    got = evaluate(Canned(ANSWERS), prompts, None, GREEDY, metrics=named("bleu", "chrf"))
    assert set(got.summary) == {"length", "bleu/not_applicable", "chrf/not_applicable"}
    assert got.summary["bleu/not_applicable"] == {"mean": 1.0, "low": None, "high": None}


def test_named_metrics_leave_the_other_columns_alone():
    plain = rows_of(Canned(ANSWERS), [PROMPTS[0]], reward(), GREEDY)
    metrics = named("bleu", "rougeLsum", "length")
    more = rows_of(Canned(ANSWERS), [PROMPTS[0]], reward(), GREEDY, metrics=metrics)
    assert [list(row) for row in plain] == [
        ["id", "sample", "prompt", "response", "references", "reward", "segments"]
        + ["reward/words", "words/error_free", "words/segments"]
        + ["reward/end", "end/error_free", "end/segments"]
        + ["reward/length", "length/score", "length", "rougeLsum"]
    ]
    for row, row_with_more in zip(plain, more, strict=True):
        assert {key: row_with_more[key] for key in row} == row


CORPUS = {
    "a": ("The dog bit the man.", ("The dog bit the man.", "The dog had bit the man.")),
    "b": ("It wasn't surprising.", ("It was not unexpected.", "No one was surprised.")),
    "c": ("The man had just bitten him.", ("The man bit him first.", "The man bit the dog.")),
    "d": ("It rained all day long.", ("It rained the whole day.", "It rained all day.")),
    "e": ("She sold her old boat.", ("She has sold the boat.", "Her old boat was sold.")),
    "f": ("The train left at noon.", ("The train left at noon today.", "It left at noon.")),
    "g": ("Nobody knew the answer.", ("No one knew the answer.", "The answer was unknown.")),
    "h": ("He reads a book every week.", ("He reads one book a week.", "He reads every week.")),
    "i": ("The soup is too hot to eat.", ("The soup is too hot.", "It is too hot to eat now.")),
    "j": (
        "We saw her again in the old town by the sea.",
        ("We saw her by the sea.", "We saw her in the town."),
    ),
}


def corpus_rows(ids):
    metrics = named("bleu", "chrf")
    rows = []
    for prompt_id in ids:
        text, references = CORPUS[prompt_id]
        row = {"id": prompt_id, "response": text}
        for metric in metrics:
            row |= metric.columns([Prompt(prompt_id, "", references)], [text])[0]
        rows.append(row)
    return rows


def sacrebleu_of(metric, ids):
    texts = [CORPUS[i][0] for i in ids]
    references = [list(stream) for stream in zip(*(CORPUS[i][1] for i in ids), strict=True)]
    return metric.corpus_score(texts, references).score


@pytest.mark.parametrize("name, metric", [("bleu", BLEU()), ("chrf", CHRF())])
def test_the_corpus_value_and_its_interval_are_of_whole_prompts(name, metric):
    interval = summarize(corpus_rows(CORPUS))[f"{name}/corpus"]
    assert interval.mean == pytest.approx(sacrebleu_of(metric, CORPUS))
    # the same with sacrebleu without each prompt
    without = [sacrebleu_of(metric, [i for i in CORPUS if i != left]) for left in CORPUS]
    error = np.std(without, ddof=1) * (10 - 1) / 10**0.5
    share = interval.mean / 100
    trials = share * (1 - share) / (error / 100) ** 2
    expected = share_interval(share * trials, trials, 9)
    assert (interval.low, interval.high) == pytest.approx((100 * expected.low, 100 * expected.high))
    # equal samples of a prompt add no information (without a matching 4-gram the smoothing of BLEU
    # depends on the number of 4-grams, so its bounds change a little)
    copies = summarize(corpus_rows([i for i in CORPUS for _ in range(2)]))[f"{name}/corpus"]
    assert copies.mean == pytest.approx(interval.mean)
    assert (copies.low, copies.high) == pytest.approx((interval.low, interval.high), abs=3)
    mean = np.mean([row[name] for row in corpus_rows(CORPUS)])
    assert summarize(corpus_rows(CORPUS))[name].mean == pytest.approx(mean)
    assert abs(mean - interval.mean) > 0.05


def test_corpus_perplexity_weighs_tokens():
    rows = [
        {"id": "a", "ppl": np.e, "ppl/nll_and_tokens": [1.0, 1]},
        {"id": "b", "ppl": np.e**2, "ppl/nll_and_tokens": [18.0, 9]},
        {"id": "b", "ppl": np.e**3, "ppl/nll_and_tokens": [30.0, 10]},
        {"id": "c", "ppl": None},
    ]
    summary = summarize(rows)
    assert summary["ppl/corpus"].mean == pytest.approx(np.exp(49 / 20))
    assert summary["ppl"].mean == pytest.approx((np.e + (np.e**2 + np.e**3) / 2) / 2)
    # all responses to a prompt are one unit, and two of them are too few
    assert "2 of at least 10" in str(summary["ppl/corpus"])


@pytest.mark.parametrize("num_samples, sizes", [(2, [6, 2]), (64, [128, 128]), (200, [200] * 4)])
def test_many_samples_make_smaller_batches(num_samples, sizes):
    """At most 128 responses, but all of a prompt's in one batch."""
    policy = tiny.policy("t5")
    seen = []
    generate = policy.generate

    def count(*args, **options):
        response = generate(*args, **options)
        seen.append(len(response.ids_BT))
        return response

    policy.generate = count
    options = {"num_samples": num_samples, "batch_size": 3}
    rows_of(policy, PROMPTS, None, Sampling(1), **options)
    assert seen == sizes


def test_perplexity_is_computed_in_batches(tmp_path):
    tiny.gpt2().save(tmp_path)
    metrics = named({"name": "perplexity", "model": str(tmp_path)})
    (metric,) = metrics
    sizes = []
    columns = metric.columns
    metric.columns = lambda prompts, texts: sizes.append(len(texts)) or columns(prompts, texts)
    policy = tiny.policy("t5")
    options = {"seed": 3, "num_samples": 2, "metrics": metrics}
    rows = rows_of(policy, PROMPTS, None, SAMPLED, **options, batch_size=3)
    assert sizes == [6, 2]
    alone = rows_of(policy, PROMPTS, None, SAMPLED, **options, batch_size=1)
    assert [row["perplexity"] for row in rows] == pytest.approx(
        [row["perplexity"] for row in alone]
    )
