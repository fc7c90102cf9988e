"""The entailment of texts and BERTScore on tiny random models of the real classes."""

import math

import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertTokenizer,
)

from fgrlhf.base.errors import UserError
from fgrlhf.metrics.config import MetricConfig, models_of
from fgrlhf.metrics.registry import build_metric
from fgrlhf.reward_models.prefix import Prefix, text_prefix
from fgrlhf.rewards.kinds import Score
from fgrlhf.scorers.base import RewardContext
from fgrlhf.scorers.bertscore import Embedded, f_score
from fgrlhf.scorers.kinds import BertScoreScorer, ClassifierScorer
from fgrlhf.scorers.nli import premises_of
from fgrlhf.text_types import Prompt

WORDS = ["the", "a", "red", "cat", "dog", "sat", "on", "mat", "tree", "ran", "up", "down", ".", "?"]
PASSAGES = ["The cat sat on the mat.", "A red dog ran up the tree."]
TEXT = "The cat ran up. A dog sat down."
CONTEXT = RewardContext(text_prefix)


def save(folder, model_class, **changes):
    """A random BERT and its tokenizer."""
    folder.mkdir()
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    tokenizer = BertTokenizer(str(folder / "vocab.txt"), model_max_length=64)
    sizes = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary),
        intermediate_size=32,
        max_position_embeddings=64,
        initializer_range=0.5,
        **sizes,
        **changes,
    )
    model_class(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def nli(tmp_path_factory):
    names = {0: "CONTRADICTION", 1: "NEUTRAL", 2: "ENTAILMENT"}  # as of roberta-large-mnli
    folder = tmp_path_factory.mktemp("nli") / "model"
    return save(folder, BertForSequenceClassification, id2label=names, num_labels=3)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return save(tmp_path_factory.mktemp("bert") / "model", BertForMaskedLM)


def entailed(folder, premise, hypothesis):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        logits = model(**tokenizer(premise, hypothesis, return_tensors="pt")).logits
    return float(logits.softmax(-1)[0, 2])


def entailment(ckpt, **settings):
    return ClassifierScorer(ckpt=ckpt, **{"over": "context", **settings})


def prompt(passages=PASSAGES, **meta):
    return Prompt("p", "which ?", meta={"context": passages, **meta})


# ---- nli -----------------------------------------------------------------------------------------


def test_each_sentence_has_its_best_passage(nli):
    best = [
        max(entailed(nli, premise, sentence) for premise in PASSAGES)
        for sentence in ("The cat ran up.", "A dog sat down.")
    ]
    assert best[0] != pytest.approx(best[1], abs=1e-4)
    mean = entailment(ckpt=nli).build(CONTEXT).score([prompt()], [TEXT])
    assert mean == [pytest.approx(sum(best) / 2, abs=1e-5)]
    whole = entailment(ckpt=nli, level="whole").build(CONTEXT).score([prompt()], [TEXT])
    assert whole == [pytest.approx(max(entailed(nli, one, TEXT) for one in PASSAGES), abs=1e-5)]


def test_nothing_is_supported_without_a_passage_or_a_sentence(nli):
    scorer = entailment(ckpt=nli).build(CONTEXT)
    assert scorer.score([prompt(), prompt([])], [" ", TEXT]) == [0.0, 0.0]
    with pytest.raises(UserError, match=r"under `context`, which prompt q lacks; its keys: facts"):
        scorer.score([Prompt("q", "which ?", meta={"facts": []})], [TEXT])


def test_a_long_passage_is_read_in_pieces(nli):
    scorer = entailment(ckpt=nli).build(CONTEXT)
    sentences = [
        f"The {animal} sat on the {place}." for animal in ("cat", "dog") for place in WORDS
    ]
    (score,) = scorer.score([prompt([" ".join(sentences)])], ["A cat ran."])
    pieces = scorer._pieces[" ".join(sentences)]
    assert " ".join(pieces) == " ".join(sentences) and 3 < len(pieces) < len(sentences) / 3
    assert score == pytest.approx(max(entailed(nli, one, "A cat ran.") for one in pieces), abs=1e-5)
    assert scorer.cut_inputs == 0 and scorer.seen == len(pieces)


def test_passages_are_found_in_the_row_or_in_the_prompt():
    row = prompt([{"title": "Cat", "text": "sat."}, ["A dog", ["ran."]], "tree"], other="one text")
    assert premises_of(row, "context", text_prefix) == ["Cat\nsat.", "A dog\nran.", "tree"]
    assert premises_of(row, "other", text_prefix) == ["one text"]
    assert premises_of(row, "prompt", text_prefix) == ["which ?"]
    with_reference = Prompt("p", "q", references=("a", "b"))
    assert premises_of(with_reference, "references", text_prefix) == ["a", "b"]

    def of_task(prompt, with_context):
        assert with_context
        return Prefix(("q", "the", "cat", "ran", "up"), (range(1, 3), range(4, 5)))

    assert premises_of(with_reference, "context", of_task) == ["the cat", "up"]


def test_a_label_is_found_or_refused(nli, tmp_path):
    wrong = save(tmp_path / "other", BertForSequenceClassification, num_labels=2)
    with pytest.raises(UserError, match="has no label `entailment`.*LABEL_0"):
        entailment(ckpt=wrong).build(CONTEXT)
    assert entailment(ckpt=wrong, label="LABEL_1").build(CONTEXT)
    with pytest.raises(UserError, match="no text classifier could be loaded"):
        entailment(ckpt=str(tmp_path / "none")).build(CONTEXT)
    with pytest.raises(ValueError, match="coarser level"):
        entailment(ckpt=nli, level="token")
    for settings in ({"reads": "response"}, {"score": "log_odds"}):
        with pytest.raises(ValueError, match="each segment after what `over` names"):
            entailment(ckpt=nli, **settings)
    with pytest.raises(ValueError, match=r"level.*over is null(.|\n)*label.*missing"):
        ClassifierScorer(ckpt=nli, level="whole")


def test_a_sentence_is_rewarded_by_its_support(nli):
    section = {
        "kind": "score",
        "level": "sentence",
        "scorer": {"kind": "classifier", "ckpt": nli, "over": "context"},
    }
    reward = Score.model_validate(section).build(CONTEXT)
    ((first, second),) = reward.segment_scores([prompt()], [TEXT])
    best = max(entailed(nli, premise, "A dog sat down.") for premise in PASSAGES)
    assert (first.start, first.end, second.start) == (0, 15, 16)
    assert second.value == pytest.approx(best, abs=1e-5)


# ---- bertscore -----------------------------------------------------------------------------------


def test_greedy_matches_by_hand():
    """Unit vectors at 0, 60 and 90 degrees; the first token of both is special."""
    half = math.sqrt(3) / 2
    text = Embedded(torch.tensor([[1.0, 0.0], [0.5, half]]), torch.tensor([False, True]))
    reference = Embedded(
        torch.tensor([[-1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), torch.tensor([False, True, True])
    )
    precision = half  # of the token at 60 degrees with that at 90
    recall = (half + 1) / 2  # a special token may be matched
    expected = 2 * precision * recall / (precision + recall)
    assert f_score(text, reference) == pytest.approx(expected)
    nothing = Embedded(torch.zeros(1, 2), torch.tensor([False]))
    assert f_score(text, nothing) == f_score(nothing, text) == 0


def test_the_best_reference_counts(encoder):
    """The values of `bert_score` 0.3.13 for such a model agree to 1e-6 (see docs/metrics.md)."""
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    model = AutoModel.from_pretrained(encoder).eval()

    def vectors(text):
        with torch.no_grad():
            out = model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True)
        states_TD = torch.nn.functional.normalize(out.hidden_states[2][0], dim=-1)
        counts_T = torch.ones(len(states_TD), dtype=torch.bool)
        counts_T[[0, -1]] = False  # [CLS] and [SEP]
        return Embedded(states_TD, counts_T)

    references = ("the red cat sat on a mat", "a dog ran")
    expected = max(f_score(vectors("a red dog sat"), vectors(one)) for one in references)
    scorer = BertScoreScorer(ckpt=encoder, layer=2).build(CONTEXT)
    prompts = [Prompt("p", "q", references)] * 3
    values = scorer.score(prompts, ["a red dog sat", "a dog ran", ""])
    assert values == [pytest.approx(expected, abs=1e-5), pytest.approx(1, abs=1e-5), 0]
    with pytest.raises(UserError, match="it has 3 layers, not 4"):
        BertScoreScorer(ckpt=encoder, layer=4).build(CONTEXT)
    with pytest.raises(UserError, match="prompt r has none"):
        scorer.score([Prompt("r", "q")], ["a"])


# ---- as metrics ----------------------------------------------------------------------------------


def test_short_forms_of_metrics(nli, encoder):
    short = MetricConfig.model_validate(
        {"name": "nli", "model": nli, "level": "sentence", "over": "context"}
    )
    assert (short.column, short.higher_is_better, models_of([short])) == ("nli", True, [nli])
    metric = build_metric(short)
    scorer = entailment(ckpt=nli).build(CONTEXT)
    assert metric.values([prompt()], [TEXT]) == scorer.score([prompt()], [TEXT])
    section = {"name": "bertscore", "model": encoder, "layer": 3, "key": "similar"}
    similar = build_metric(MetricConfig.model_validate(section))
    with_reference = Prompt("r", "q", ("a red cat",))
    (nothing,), (one,) = (similar.columns([p], ["a red cat"]) for p in (prompt(), with_reference))
    assert nothing == {"similar": None} and one == {"similar": pytest.approx(1, abs=1e-5)}


def test_mistakes_in_short_forms_are_named():
    with pytest.raises(ValueError, match=r"layer"):
        MetricConfig.model_validate({"name": "bertscore", "model": "x"})
    with pytest.raises(ValueError, match="ckpt"):
        MetricConfig.model_validate("nli")
    with pytest.raises(ValueError, match="did you mean `nli`"):
        MetricConfig.model_validate("nlj")
