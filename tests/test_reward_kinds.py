"""Reward kinds: their config keys, the rewards they build, and values computed from text."""

import re
import sys
from functools import lru_cache
from types import SimpleNamespace

import pytest
import tiny
import torch
from refusals import refusals
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, write_json
from fgrlhf.configs.strict import validate
from fgrlhf.reward import CombinedReward
from fgrlhf.reward_models import loading
from fgrlhf.rewards import kinds
from fgrlhf.rewards.build import build_aspects
from fgrlhf.rewards.kind import RewardKind
from fgrlhf.rewards.kinds import LIBRARY_REWARDS, Length, Repetition
from fgrlhf.rewards.scored import ScorerReward
from fgrlhf.rewards.text_rewards import RegexReward
from fgrlhf.runs.step_metrics import InputCounts, input_counts
from fgrlhf.scorers.base import RewardContext
from fgrlhf.task import Task
from fgrlhf.task_config import rl_config
from fgrlhf.text_types import Prompt, ResponseTokens
from tasks.qa_feedback.task import TASK as QA

CONTEXT = RewardContext(prefix=lambda prompt, with_context: prompt.text.split())
PROMPTS = [Prompt("0", "ask"), Prompt("1", "ask more")]
BASE = {"model": {"ckpt": "p", "value_model": {"ckpt": "p"}}, "logging": {"save_dir": "out"}}


def parsed(task: Task = QA, **rewards) -> dict[str, RewardKind]:
    return validate(rl_config(task), {**BASE, "reward": rewards}, "file").reward


def refused(task: Task = QA, **rewards) -> list[str]:
    """The error message, one error per line; empty if the rewards are valid."""
    try:
        parsed(task, **rewards)
    except UserError as error:
        return [line.strip() for line in str(error).splitlines()[1:]]
    return []


def built(task: Task = QA, **rewards):
    aspects, _ = build_aspects(parsed(task, **rewards), CONTEXT)
    return aspects


def values(scores) -> list[tuple]:
    return [(score.start, score.end, score.value) for score in scores]


# ---- configs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, section, lines", refusals("reward kinds"))
def test_a_kind_accepts_the_keys_it_reads_and_no_other(name, section, lines):
    got = refused(**{name: section})
    assert len(got) == len(lines), got
    for line, part in zip(got, lines):
        assert line.startswith(f"reward.{name}.{part}"), (line, part)


def test_mistakes_of_all_rewards_are_reported_together():
    got = refused(
        a={"kind": "x"}, relevance_model={"ckpt": "r"}, b={"kind": "oracle_gold", "scal": 3}
    )
    assert [line.split(":")[0] for line in got] == [
        "reward.a.kind",
        "reward.relevance_model.positive_reward",
        "reward.relevance_model.negative_reward",
        "reward.b.scal",
    ]


def test_every_kind_of_the_library_is_listed_by_its_tag():
    for name, kind in LIBRARY_REWARDS.items():
        assert kind.model_fields["kind"].default == name
        assert kind.__doc__


def test_a_task_adds_a_kind_and_implies_kinds_by_name():
    class Count(kinds.Length):
        kind: str = "count"

    words = Task("words", rewards={"count": Count}, reward_kinds={"brevity": "length"})
    assert refused(words, a={"kind": "count", "value": 1, "max_words": 2}) == []
    assert isinstance(
        parsed(words, brevity={"value": 1, "max_words": 2})["brevity"], LIBRARY_REWARDS["length"]
    )
    assert refused(words, a={"kind": "oracle_gold"})[0].startswith("reward.a.kind: there is no")


def repeats(sentence, earlier, prompt, *, penalty=-1.0):
    return penalty if sentence in earlier else None


def words(sentence, meta, references):
    return len(sentence.split()) + meta["bonus"] + len(references)


def test_a_function_rewards_each_segment(monkeypatch):
    functions = {"repeats": repeats, "words": words, "text": lambda sentence: sentence}
    functions["wide"] = lambda a, b, c, d: 0.0
    monkeypatch.setitem(sys.modules, "mine", SimpleNamespace(**functions, Politeness=Politeness))
    prompt = Prompt("0", "Why?", references=("a", "b"), meta={"bonus": 10})
    text = "Yes. No. Yes."

    def scores(of, **section):
        kind = {"kind": "python", "of": f"mine.{of}", "level": "sentence", **section}
        (of_text,) = built(a=kind)["a"].segment_scores([prompt], [text])
        return [(text[s.start : s.end], s.value) for s in of_text]

    assert scores("repeats") == [("Yes.", -1.0)]
    assert scores("repeats", args={"penalty": -0.5}) == [("Yes.", -0.5)]
    assert scores("words") == [("Yes.", 13), ("No.", 13), ("Yes.", 13)]
    assert scores("words", level="whole") == [(text, 15)]
    for of, section, message in (
        ("repeats", {"level": None}, "is a function: add the level"),
        ("Politeness", {"args": {"threshold": 1}}, "is no function"),
        ("text", {}, "returned 'Yes.' for 'Yes.': it must return a number or None"),
        ("wide", {}, "one to three: segment, earlier, prompt"),
        ("repeats", {"args": {"penality": 1}}, "one to three: segment, earlier, prompt"),
    ):
        with pytest.raises(UserError, match=message):
            scores(of, **section)


class Judge:
    def __init__(self, marks):
        self.marks = marks

    def __call__(self, sentence):
        return self.marks[sentence]


def test_what_can_be_called_is_a_function_too(monkeypatch):
    named = {"judge": Judge({"Yes.": 1}), "cached": lru_cache(lambda sentence: 2.0), "size": len}
    monkeypatch.setitem(sys.modules, "mine", SimpleNamespace(**named))
    prompts = [Prompt("7", "Why?")]

    def values(of, text="Yes."):
        reward = built(a={"kind": "python", "of": f"mine.{of}", "level": "sentence"})["a"]
        return [score.value for score in reward.segment_scores(prompts, [text])[0]]

    assert [values(name) for name in named] == [[1], [2], [4]]
    with pytest.raises(KeyError) as failed:
        values("judge", "No.")
    assert failed.value.__notes__ == ["for the segment 'No.' after the prompt 7"]


class Politeness:
    """A user's reward, whose class is named in YAML."""

    def __init__(self, threshold: float):
        self.threshold = threshold

    def segment_scores(self, prompts, texts):
        return [None if not text else [] for text in texts]


def test_the_hash_of_a_served_reward_is_explained():
    section = {"kind": "reward_server", "url": "http://127.0.0.1:1", "model_sha256": "3b6f..."}
    with pytest.raises(UserError, match="64 hexadecimal digits that `fgrlhf reward-serve` prints"):
        built(a=section)


def test_a_class_of_the_user_is_a_reward(monkeypatch):
    monkeypatch.setattr(Politeness, "__module__", "mine")
    monkeypatch.setitem(sys.modules, "mine", SimpleNamespace(Politeness=Politeness, Empty=object))
    reward = built(a={"kind": "python", "of": "mine.Politeness", "args": {"threshold": 0.7}})["a"]
    assert reward.threshold == 0.7
    for section, reason in (
        ({"of": "mine.Politeness"}, "missing a required argument: 'threshold'"),
        ({"of": "mine.Politeness", "args": {"treshold": 1}}, r"It takes \(threshold: float\)"),
        ({"of": "mine.Polite"}, "`mine` has no `Polite`; did you mean `Politeness`"),
        ({"of": "nowhere.at.All"}, "cannot be imported: .*Run from the folder"),
        ({"of": "mine.Empty"}, "no method segment_scores"),
    ):
        with pytest.raises(UserError, match=reason):
            built(a={"kind": "python", **section})


def test_a_module_of_the_user_that_cannot_be_imported(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "half_rewards.py").write_text("import no_such_library\n")
    with pytest.raises(UserError, match="'no_such_library'. Install what `half_rewards` imports"):
        built(a={"kind": "python", "of": "half_rewards.Politeness"})


def test_weight_0_does_not_load_the_model(monkeypatch):
    loaded = []

    def load(path, prefix, device, dtype, defaults, **facts):
        loaded.append((path, device, dtype, {**defaults, **facts}))
        return SimpleNamespace(mean=1.0, std=2.0)

    monkeypatch.setattr(loading, "load_sequence_scorer", load)
    rewards = parsed(
        a={"kind": "sequence_scorer", "ckpt": "a", "weight": 0.0},
        b={"kind": "sequence_scorer", "ckpt": "b", "weight": 0.5, "scale": 3.0},
        c={"kind": "sequence_scorer", "ckpt": "c", "mean": 1.0, "std": 4.0, "clip": 1.0},
    )
    context = RewardContext(CONTEXT.prefix, "cpu", "bf16")
    aspects, weights = build_aspects(rewards, context)
    assert [path for path, *_ in loaded] == ["b", "c"] and weights == {"b": 0.5, "c": 1.0}
    assert loaded[0][1:] == ("cpu", "bf16", {})
    assert loaded[1][3] == {"mean": 1.0, "std": 4.0}
    assert aspects["b"].scale == 3.0 and aspects["c"].clip == 1.0
    with pytest.raises(UserError, match="nothing to train for"):
        build_aspects(
            parsed(a={"kind": "length", "value": 1, "max_words": 1, "weight": 0}), context
        )


def test_members_make_an_ensemble(monkeypatch):
    loaded = []

    def load(path, prefix, device, dtype, defaults, **facts):
        loaded.append(path)
        return SimpleNamespace(mean=1.0, std=2.0)

    monkeypatch.setattr(loading, "load_sequence_scorer", load)
    section = {
        "kind": "sequence_scorer",
        "ckpt": "a",
        "ensemble": {"members": ["b", "c"], "kappa": 0.5},
    }
    (ensemble,) = built(r=section).values()
    assert loaded == ["a", "b", "c"] and len(ensemble.members) == 3 and ensemble.kappa == 0.5
    assert parsed(r=section)["r"].model_folders() == ("a", "b", "c")
    with pytest.raises(UserError, match="a is a single reward model with one head"):
        built(r={**section, "ensemble": {"kappa": 0.5}})
    (line,) = refused(r={**section, "ensemble": {"members": ["b", "a"]}})
    assert "reward.r.ensemble.members: a folder is given twice" in line
    assert refused(completeness_model={**section, "kind": "preference"}) == []


def test_a_missing_reward_model_is_named(tmp_path):
    with pytest.raises(UserError, match="nowhere"):
        built(a={"kind": "sequence_scorer", "ckpt": str(tmp_path / "nowhere")})


# ---- rewards computed from the text --------------------------------------------------------------


def test_length_by_hand():
    too_long, missing = Length(value=-0.5, min_words=3, max_words=4).segment_scores(
        PROMPTS, ["one two three four five  six", "one"]
    )
    assert values(too_long) == [(19, 23, -0.5), (25, 28, -0.5)]
    assert values(missing) == [(0, None, -1.0)]


def test_repetition_by_hand():
    (scores,) = Repetition(n=2, value=-1.0).segment_scores(PROMPTS[:1], ["a b A b c a b"])
    # the bigrams: ab bA Ab bc ca ab; `A b` repeats `a b`, and so does the last one
    assert values(scores) == [(4, 7, -1.0), (10, 13, -1.0)]
    assert Repetition(n=3, value=-1.0).segment_scores(PROMPTS[:1], ["a b"]) == [[]]


def test_words_and_sentences_of_a_script_without_spaces():
    text = "他住在北京。他住在北京。"
    (repeated,) = Repetition(n=3, value=-1.0).segment_scores(PROMPTS[:1], [text])
    assert values(repeated) == [(start, start + 3, -1.0) for start in range(6, 10)]
    (long,) = Length(value=-1.0, max_words=10).segment_scores(PROMPTS[:1], [text])
    assert values(long) == [(10, 11, -1.0), (11, 12, -1.0)]
    config = {"kind": "regex", "pattern": "北京", "value": 1, "level": "sentence"}
    (scores,) = built(a=config)["a"].segment_scores(PROMPTS[:1], [text])
    assert values(scores) == [(0, 6, 1.0), (6, 12, 1.0)]
    published = built(a={**config, "segmenter": "published"})["a"]
    (scores,) = published.segment_scores(PROMPTS[:1], [text])
    assert values(scores) == [(0, 12, 1.0)]


@pytest.mark.parametrize(
    "wrong", [{"segmenter": "nltk"}, {"segmenter": "published", "level": "step"}]
)
def test_a_segmenter_that_is_not_known_or_not_read_is_refused(wrong):
    (line,) = refused(a={"kind": "regex", "pattern": "o", "value": 1, "level": "word", **wrong})
    assert "segmenter: " in line


def test_regex_by_hand():
    text = "Sorry, no. I am sorry! Fine."
    (matches,) = RegexReward(re.compile("sorry", re.I), -1.0).segment_scores(PROMPTS[:1], [text])
    assert values(matches) == [(0, 5, -1.0), (16, 21, -1.0)]
    of_whole = RegexReward(re.compile("sorry", re.I), -1.0, 0.5, "whole")
    (whole,) = of_whole.segment_scores(PROMPTS[:1], [text])
    assert [(s.start, s.end, s.value) for s in whole] == [(0, None, -1.0)]
    by_sentence = RegexReward(re.compile("sorry", re.I), -1.0, 0.5, "sentence")
    (sentences,) = by_sentence.segment_scores(PROMPTS[:1], [text])
    assert values(sentences) == [(0, 10, -1.0), (11, 22, -1.0), (23, 28, 0.5)]


def test_rewards_on_tokens_need_the_tokens():
    reward = built(a={"kind": "regex", "pattern": "o", "value": 1, "level": "token"})["a"]
    tokens = [ResponseTokens((3, 4, 7), True)]
    (scores,) = reward.segment_scores(PROMPTS[:1], ["one two"], tokens)
    assert values(scores) == [(0, 3, 1.0), (4, 7, 1.0)]  # the second token adds only white space
    with pytest.raises(ValueError, match="needs the tokens"):
        CombinedReward({"a": reward}).segment_scores(PROMPTS[:1], ["one two"])


def test_missing_end_token_by_hand():
    reward = built(a={"kind": "missing_eos", "value": -2})["a"]
    tokens = [ResponseTokens((1,), True), ResponseTokens((1,), False)]
    finished, cut = CombinedReward({"a": reward}).segment_scores(PROMPTS, ["x", "y"], tokens)["a"]
    assert finished == [] and values(cut) == [(0, None, -2.0)]


def test_a_metric_is_a_reward_and_applies_only_with_references():
    reward = built(a={"kind": "metric", "metric": "exact_match", "scale": 2, "threshold": 0.5})["a"]
    prompts = [Prompt("0", "ask", references=("yes",)), Prompt("1", "ask")]
    right, none = reward.segment_scores(prompts, ["yes", "yes"])
    assert values(right) == [(0, None, 1.0)] and none is None
    assert refused(a={"kind": "metric", "metric": "exact_mach"})[0].startswith(
        "reward.a.metric.name: there is no `exact_mach`; did you mean `exact_match`?"
    )


# ---- classifiers ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    folder = tmp_path_factory.mktemp("classifier")
    torch.manual_seed(0)
    tokenizer = tiny.tokenizer()
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=32,
        id2label={0: "fine", 1: "toxic", 2: "rude"},
        pad_token_id=tokenizer.pad_token_id,
    )
    model = BertForSequenceClassification(config)
    model.classifier.weight.data *= 40  # otherwise all probabilities are about a third
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def logits(classifier, text: str) -> torch.Tensor:
    model = BertForSequenceClassification.from_pretrained(classifier).eval()
    tokenizer = tiny.tokenizer()
    ids = tokenizer(text)["input_ids"] or [tokenizer.eos_token_id]
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids])).logits[0].double()


def test_a_classifier_gives_the_probability_or_the_log_odds_of_a_label(classifier):
    text = "the red cat. a dog sees the bird."
    scorer = {"kind": "classifier", "ckpt": str(classifier), "label": "toxic"}
    section = {"kind": "score", "scorer": scorer}
    probability = logits(classifier, text).softmax(0)[1].item()
    (whole,) = built(a=section)["a"].segment_scores(PROMPTS[:1], [text])
    assert values(whole) == [(0, None, pytest.approx(probability, abs=1e-5))]
    log_odds = {**scorer, "score": "log_odds"}
    scaled = {"kind": "score", "scorer": log_odds, "scale": -2, "threshold": 0.5}
    (whole,) = built(a=scaled)["a"].segment_scores(PROMPTS[:1], [text])
    odds = torch.logit(torch.tensor(probability, dtype=torch.float64)).item()
    assert whole[0].value == pytest.approx(-2 * (odds - 0.5), abs=1e-4)


def test_a_classifier_counts_the_inputs_that_it_cuts(classifier):
    """The trainer logs them as `cut/<name>`. It reads 32 tokens."""
    scorer = {"kind": "classifier", "ckpt": str(classifier), "label": "toxic"}
    reward = built(a={"kind": "score", "scorer": scorer})["a"]
    ends = " ".join(["dog"] * 31)
    reward.segment_scores(PROMPTS[:1] * 3, ["the red cat.", ends, f"{ends} {ends}"])
    tokens = [len(tiny.tokenizer()(text)["input_ids"]) for text in (ends, f"{ends} {ends}")]
    assert tokens[0] <= 32 < tokens[1]
    assert input_counts(CombinedReward({"a": reward})) == {"a": InputCounts(seen=3, cut=1)}


@pytest.mark.parametrize(
    "padding_side, of_tokenizer, of_config",
    [("left", 0, 0), ("right", 1, 0), ("right", 0, 1), ("left", None, None)],
)
def test_a_score_does_not_depend_on_the_other_texts(
    padding_side, of_tokenizer, of_config, tmp_path
):
    """A decoder-only classifier reads its last token before the padding.

    Args:
      padding_side: in the tokenizer's folder.
      of_tokenizer, of_config: the padding tokens of the tokenizer and of the model's config.
    """
    torch.manual_seed(0)
    tokenizer = tiny.fresh(tiny.tokenizer())
    tokenizer.padding_side = padding_side
    tokenizer.pad_token = (
        None if of_tokenizer is None else tokenizer.convert_ids_to_tokens(of_tokenizer)
    )
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_labels=2,
        initializer_range=0.3,
        pad_token_id=of_config,
        eos_token_id=1,
    )
    LlamaForSequenceClassification(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    write_json(file, read_json(file) | {"padding_side": padding_side})
    scorer = {"kind": "classifier", "ckpt": str(tmp_path), "label": "LABEL_1"}
    reward: ScorerReward = built(a={"kind": "score", "scorer": scorer})["a"]
    texts = ["the red cat", "", "the red cat sees a dog and the dog likes one bird"]
    prompts = PROMPTS[:1] * 3
    alone = [reward.scorer.score(prompts[:1], [text])[0] for text in texts]
    assert reward.scorer.score(prompts, texts) == pytest.approx(alone, abs=1e-5)


def test_differences_add_up_to_the_whole(classifier):
    texts = ["the red cat. a dog sees the bird. the end", ""]
    scorer = {"kind": "classifier", "ckpt": str(classifier), "label": "rude", "batch_size": 2}
    section = {"kind": "score", "scorer": scorer, "level": "sentence"}
    reward: ScorerReward = built(a=section | {"reads": "increment"})["a"]
    parts, none = reward.segment_scores(PROMPTS, texts)
    whole = logits(classifier, texts[0]).softmax(0)[2] - logits(classifier, "").softmax(0)[2]
    assert len(parts) == 3 and none == []
    assert sum(part.value for part in parts) == pytest.approx(whole.item(), abs=1e-5)
    prefixes = built(a=section | {"reads": "prefix"})["a"].segment_scores(PROMPTS, texts)[0]
    for part in prefixes:
        expected = logits(classifier, texts[0][: part.end]).softmax(0)[2].item()
        assert part.value == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    "config_class, model_class, readable",
    [
        (BertConfig, BertForSequenceClassification, 18),
        # the embeddings 0 to 3 are never a position: padding has the number 3
        (RobertaConfig, RobertaForSequenceClassification, 14),
    ],
)
def test_a_long_text_is_cut_to_what_the_classifier_reads(
    config_class, model_class, readable, tmp_path
):
    tokenizer = tiny.fresh(tiny.tokenizer())
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(3)
    assert tokenizer.pad_token_id == 3 and tokenizer.model_max_length > 1e20
    config = config_class(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=18,
        id2label={0: "fine", 1: "toxic"},
        pad_token_id=3,
    )
    model = model_class(config).eval()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    scorer = {"kind": "classifier", "ckpt": str(tmp_path), "label": "toxic"}
    (scores,) = built(a={"kind": "score", "scorer": scorer})["a"].segment_scores(
        PROMPTS[:1], ["red cat " * 15]
    )
    ids = tokenizer("red cat " * 15)["input_ids"][:readable]
    with torch.no_grad():
        expected = model(input_ids=torch.tensor([ids])).logits.softmax(1)[0, 1].item()
    assert values(scores) == [(0, None, pytest.approx(expected, abs=1e-6))]


def test_an_unknown_label_is_refused_with_the_known_ones(classifier):
    scorer = {"kind": "classifier", "ckpt": str(classifier), "label": "toxi"}
    section = {"kind": "score", "scorer": scorer}
    with pytest.raises(
        UserError, match="no label `toxi`; did you mean `toxic`. known: fine, toxic"
    ):
        built(a=section)
    with pytest.raises(UserError, match="no text classifier could be loaded from `/nowhere/x`"):
        built(a={"kind": "score", "scorer": {**scorer, "ckpt": "/nowhere/x"}})
