"""Read positions, equality of training and scoring inputs, loading, scoring."""

import json

import families
import pytest
import rm_helpers as rm
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers
from transformers import (
    LongformerForSequenceClassification,
    LongformerForTokenClassification,
    PreTrainedModel,
)

from fgrlhf.base.errors import UserError
from fgrlhf.data.comparisons import Answer, Comparison
from fgrlhf.models.logprobs import logprobs_and_margins
from fgrlhf.reward_models.collate import batches_by_prompt
from fgrlhf.reward_models.inputs import RMInputs, join_segments, last_tokens, segment_mark
from fgrlhf.reward_models.loading import load_reward_model, load_tokenizer
from fgrlhf.reward_models.networks import (
    LanguageModelScorer,
    pooled_features,
    scaled_features,
    scorer_batch,
)
from fgrlhf.reward_models.prefix import RMText, text_prefix
from fgrlhf.reward_models.scoring import (
    SegmentLabels,
    SegmentScorer,
    SequenceScorer,
    _default_batch_tokens,
)
from fgrlhf.reward_models.spec import RewardModelSpec
from fgrlhf.reward_utils import BLANK, PUBLISHED, load_segmenter
from fgrlhf.rewards.kinds import LIBRARY_REWARDS, SegmentClassifier
from fgrlhf.scorers.base import RewardContext
from fgrlhf.text_types import Prompt
from reward_modeling.config import RMModelConfig
from reward_modeling.data import read_segment_rows
from reward_modeling.network import load_network
from tasks.qa_feedback.training.reward import OneErrorModel

TEXT = "the cat sees a dog, and the red bird likes one. a blue dog sees the cat."
SEGMENTER = {"name": BLANK, "version": load_segmenter(BLANK).version}


def inputs(shape, tokenizer="word", kind="segment", max_length=64):
    return RMInputs(
        tiny.tokenizer(tokenizer),
        shape,
        kind,
        max_length,
        decoder_start_id=0 if shape == "seq2seq" else None,
    )


def spec(shape="seq2seq", kind="segment", **changes):
    facts = {
        "kind": kind,
        "shape": shape,
        "level": "subsentence" if kind == "segment" else "sequence",
        "with_context": True,
        "max_length": 64,
    }
    facts |= (
        {"labels": rm.LABELS, "error_label": "NF-ERR", "ok_label": "O", "segmenter": SEGMENTER}
        if kind == "segment"
        else {"mean": 0.5, "std": 2.0}
    )
    return RewardModelSpec(**{**facts, **changes})


def network(tmp_path, shape, kind="segment", labels=rm.LABELS, **kwargs):
    ckpt = rm.start(tmp_path, shape)
    torch.manual_seed(1)
    names = dict(enumerate(labels))
    if shape != "encoder":
        return LanguageModelScorer.start_from(str(ckpt), shape, kind, names, **kwargs)
    if kind == "segment":
        return LongformerForTokenClassification(classifier_config(labels))
    return LongformerForSequenceClassification(classifier_config(["score"]))


def classifier_config(labels):
    names = dict(enumerate(labels))
    numbers = {name: i for i, name in names.items()}
    size = len(tiny.tokenizer("word"))
    return rm.longformer_config(size, num_labels=len(labels), id2label=names, label2id=numbers)


def scorer(tmp_path, shape, kind="segment", feature=False, **changes):
    model = network(tmp_path, shape, kind, **({"lm_logprob_feature": True} if feature else {}))
    cls = SegmentScorer if kind == "segment" else SequenceScorer
    tokenizer = load_tokenizer(tmp_path / f"start-{shape}", shape)
    return cls(model, tokenizer, spec(shape, kind, **changes), rm.prefix_fn)


# ---- positions -----------------------------------------------------------------------------------


TWO_SEGMENTS = RMText(rm.prefix("question: the cat"), (rm.words("the red cat"), rm.words("a dog")))


def test_seq2seq_reads_each_segment_at_its_last_token():
    (read,) = inputs("seq2seq").encode([TWO_SEGMENTS])
    tokens = tiny.tokenizer().convert_ids_to_tokens(read.decoder_input_ids)
    # decoder start, then the answer
    assert tokens == ["<pad>", "▁the", "▁red", "▁cat", "▁a", "▁dog"]
    assert read.positions == (3, 5)
    # no `answer:`
    assert tiny.tokenizer().convert_ids_to_tokens(read.input_ids) == ["▁question:", "▁the", "▁cat"]


def test_causal_reads_prefix_and_answer_in_one():
    (read,) = inputs("causal").encode([TWO_SEGMENTS])
    tokens = tiny.tokenizer().convert_ids_to_tokens(read.input_ids)[3:]
    assert tokens == ["▁the", "▁red", "▁cat", "▁a", "▁dog"]
    assert read.positions == (5, 7)


def test_encoder_reads_each_segment_at_its_mark():
    (read,) = inputs("encoder").encode([TWO_SEGMENTS])
    assert read.positions == (4, 8)
    assert [read.input_ids[p] for p in read.positions] == [tiny.tokenizer().eos_token_id] * 2


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.lists(
            st.text(
                st.characters(codec="utf-8", exclude_categories=("Cs",)), min_size=1, max_size=6
            ),
            max_size=4,
        ),
        max_size=4,
    ),
    st.sampled_from(["word", "unigram", "bpe"]),
    st.sampled_from(["seq2seq", "causal"]),
    st.integers(4, 60),
)
def test_positions_complete_their_segment_and_nothing_less(raw, tokenizer, shape, max_length):
    segments = tuple(rm.words(" ".join(segment)) for segment in raw)
    whole = inputs(shape, tokenizer, max_length=10_000)
    (read,) = whole.encode([RMText(rm.prefix("question: the", mark=""), segments)])
    answer, spans = join_segments(segments)
    lead = "" if shape == "seq2seq" else " "
    tok = whole.tokenizer
    encoded = tok(lead + answer, add_special_tokens=False, return_offsets_mapping=True)
    ids, offsets = (encoded["input_ids"], encoded["offset_mapping"]) if answer else ([], [])
    before = len(read.decoder_input_ids or read.input_ids) - len(ids)
    assert (read.decoder_input_ids or read.input_ids)[before:] == ids
    for (start, end), position in zip(spans, read.positions, strict=True):
        if position is None:
            assert start == end or not any(
                e > start + len(lead) and s < end + len(lead) for s, e in offsets
            )
            continue
        token = position - before
        # the segment's last character is complete here
        assert offsets[token][0] < end + len(lead) <= offsets[token][1]
        # and no later token belongs to the segment
        assert all(s >= end + len(lead) for s, e in offsets[token + 1 :] if e > s)
        if tokenizer == "bpe":  # bytes decode exactly, even if several tokens form a character
            assert tok.decode(ids[: token + 1]) == (lead + answer)[: end + len(lead)]
    # cutting removes judgements and moves none
    (cut,) = inputs(shape, tokenizer, max_length=max_length).encode(
        [RMText(rm.prefix("question: the", mark=""), segments)]
    )
    assert (cut.decoder_input_ids or cut.input_ids) == (read.decoder_input_ids or read.input_ids)[
        :max_length
    ]
    for full, short in zip(read.positions, cut.positions, strict=True):
        assert short == (None if full is None or full >= max_length else full)


@pytest.mark.parametrize("max_length", range(4, 14))
def test_encoder_cut_at_any_length_judges_only_whole_segments(max_length):
    text = RMText(
        rm.prefix("question: the", mark=""),
        (rm.words("red cat"), rm.words("a dog"), rm.words("one")),
    )
    (whole,) = inputs("encoder").encode([text])
    (cut,) = inputs("encoder", max_length=max_length).encode([text])
    ends = (5, 8, 10)  # words up to which each segment reaches: 2 of the prefix, then mark + words
    assert whole.positions == (2, 5, 8)
    assert cut.positions == tuple(
        p if end <= max_length else None for p, end in zip(whole.positions, ends)
    )
    assert cut.input_ids == whole.input_ids[:max_length]


def test_encoder_keeps_the_special_tokens_around_a_cut_input(tmp_path):
    from tokenizers.processors import TemplateProcessing

    tokenizer = tiny.fresh(tiny.tokenizer())
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<pad> $A </s>", special_tokens=[("<pad>", 0), ("</s>", 1)]
    )
    text = RMText(rm.prefix("question: the", mark=""), (rm.words("red cat"), rm.words("a dog")))
    (read,) = RMInputs(tokenizer, "encoder", "segment", 8).encode([text])
    assert read.input_ids[0] == 0 and read.input_ids[-1] == 1 and len(read.input_ids) == 8
    assert read.positions == (3, None)  # `dog` does not fit


def test_a_word_like_the_mark_inside_an_answer_is_no_mark():
    text = RMText(
        rm.prefix("question: the", mark=""), (rm.words("red </s> cat"), rm.words("a dog"))
    )
    (read,) = inputs("encoder").encode([text])
    assert read.positions == (2, 6)


def test_segment_mark_is_a_single_token_of_the_vocabulary():
    tokenizer = tiny.fresh(tiny.tokenizer())
    assert segment_mark(tokenizer) == "</s>"

    class NoMark:
        sep_token = eos_token = None

        def get_vocab(self):
            return {"a": 0}

    class Bert(NoMark):
        sep_token = "[SEP]"

        def get_vocab(self):
            return {"[SEP]": 0}

    assert segment_mark(Bert()) == "[SEP]"
    with pytest.raises(UserError, match="no token to mark segments"):
        segment_mark(NoMark())


def test_last_tokens_by_hand():
    offsets = [(0, 3), (3, 5), (5, 6), (5, 6), (7, 9)]  # two bytes of one character at 5
    assert last_tokens(offsets, [(0, 3), (3, 6), (7, 9), (9, 9)]) == [0, 3, 4, None]
    # nothing covers 2..4
    assert last_tokens([(0, 2), (0, 0), (4, 5)], [(0, 2), (2, 4)]) == [0, None]


# ---- training inputs = scoring inputs ------------------------------------------------------------


@pytest.mark.parametrize("shape", rm.SHAPES)
@pytest.mark.parametrize(
    "name, level, error",
    [("NF-ERR_subsentence", "subsentence", "NF-ERR"), ("F-ERR_sentence", "sentence", "F-ERR")],
)
def test_scoring_reads_what_training_read(golden, qa_feedback, shape, name, level, error):
    from tasks.qa_feedback.feedback import rm_prefix, rm_prefix_of_words

    lines = [json.loads(line) for line in (golden / name / "dev.json").read_text().splitlines()]
    feedback = json.loads((qa_feedback / "dev_feedback.json").read_text())
    rows = read_segment_rows(
        golden / name / "dev.json", (error, "O"), "Ignore", prefix_of_words=rm_prefix_of_words
    )
    built = inputs(shape, "bpe", max_length=100_000)
    model = torch.nn.Linear(1, 1)  # not run here
    facts = spec(
        shape,
        level=level,
        with_context=level == "sentence",
        labels=(error, "O"),
        error_label=error,
        max_length=100_000,
    )
    use = SegmentScorer(model, tiny.tokenizer("bpe"), facts, rm_prefix)
    use.inputs.decoder_start_id = built.decoder_start_id
    prompts = [Prompt(line["id"], "", meta=feedback[int(line["id"])]) for line in lines]
    texts = [prompt.meta["prediction 1"] for prompt in prompts]
    trained = built.encode([row.text for row in rows])
    assert use.encode(prompts, texts) == trained
    assert all(
        len(read.positions) == len(row.labels) and None not in read.positions
        for read, row in zip(trained, rows)
    )


@pytest.mark.parametrize("shape", rm.SHAPES)
@pytest.mark.parametrize("with_context", [True, False])
def test_pair_training_reads_what_scoring_reads(qa_feedback, shape, with_context):
    from reward_modeling.run_pref_rm import encode
    from tasks.qa_feedback.feedback import rm_prefix
    from tasks.qa_feedback.reward_modeling.pairs import read_pairs

    feedback = json.loads((qa_feedback / "dev_feedback.json").read_text())
    rows = [row for row in read_pairs(qa_feedback / "dev_feedback.json") if row.pairs]
    assert len(rows) > 5
    built = inputs(shape, "bpe", "sequence", max_length=500)
    facts = spec(shape, "sequence", with_context=with_context, max_length=500)
    use = SequenceScorer(torch.nn.Linear(1, 1), tiny.tokenizer("bpe"), facts, rm_prefix)
    use.inputs.decoder_start_id = built.decoder_start_id
    for (read, _), row in zip(encode(built, rows, rm_prefix, with_context), rows):
        prompt = Prompt("0", "", meta=feedback[int(row.prompt.id)])
        assert use.encode([prompt] * 4, [answer.text for answer in row.answers]) == read


# ---- networks ------------------------------------------------------------------------------------


def test_lm_features_by_hand():
    logits_NV = torch.tensor([[0.0, 2.0], [-30.0, 0.0]])
    logprobs_N, margins_N = logprobs_and_margins(lambda z: z, logits_NV, torch.tensor([0, 0]))
    chosen = 0.0 - torch.logsumexp(torch.tensor([0.0, 2.0]), 0)
    torch.testing.assert_close(margins_N, torch.tensor([-2.0, -30.0]))
    # the last: log p = -30, cut at -10
    expected_NF = torch.tensor([[chosen / 10, -0.2], [-1.0, -1.0]])
    torch.testing.assert_close(scaled_features(logprobs_N, margins_N), expected_NF)


@pytest.mark.parametrize("shape", ["seq2seq", "causal"])
@pytest.mark.parametrize("feature", [False, True])
def test_language_model_scorer_survives_saving(tmp_path, shape, feature):
    model = network(tmp_path, shape, lm_logprob_feature=feature).eval()
    model.save_pretrained(tmp_path / "saved")
    again = LanguageModelScorer.from_pretrained(tmp_path / "saved").eval()
    assert not list((tmp_path / "saved").glob("*.bin"))
    built = inputs(shape)
    batch = built.collate(built.encode([RMText(rm.prefix("question: the cat"), (rm.words(TEXT),))]))
    assert torch.equal(model(**batch).logits, again(**batch).logits)
    assert again.config.id2label == {0: "NF-ERR", 1: "O"}


def test_scorer_starts_from_the_policys_weights(tmp_path):
    model = network(tmp_path, "seq2seq", lm_logprob_feature=True).eval()
    policy = tiny.policy("t5")
    built = inputs("seq2seq")
    batch = built.collate(
        built.encode([RMText(rm.prefix("question: the cat"), (rm.words("the red cat"),))])
    )
    with torch.no_grad():
        model.feature_in.weight.zero_()
        output = policy.model(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            decoder_input_ids=batch["decoder_input_ids"],
            output_hidden_states=True,
        )
        torch.testing.assert_close(
            model(**batch).logits, model.head(output.decoder_hidden_states[-1])
        )
        logprobs = torch.log_softmax(output.logits[0, :-1], -1).gather(
            -1, batch["decoder_input_ids"][0, 1:, None]
        )[:, 0]
        features = model.features(scorer_batch(**batch))
    torch.testing.assert_close(features[0, 1:, 0], logprobs.clamp(min=-10) / 10)


@pytest.mark.parametrize("family", ["granite", "cohere", "gemma2", "umt5", "switch"])
def test_the_feature_has_the_logprobs_of_models_that_scale_their_logits(family, tmp_path):
    families.save(family, tmp_path)
    shape = "seq2seq" if family in families.ENCODER_DECODERS else "causal"
    model = LanguageModelScorer.start_from(
        str(tmp_path), shape, "sequence", lm_logprob_feature=True
    ).eval()
    built = inputs(shape, kind="sequence")
    text = RMText(rm.prefix("question: the cat"), (rm.words("the red cat"),))
    batch = built.collate(built.encode([text]))
    with torch.no_grad():
        features_TF = model.features(scorer_batch(**batch))[0]
        names = ("input_ids", "attention_mask", "decoder_input_ids")
        lm_inputs = {name: batch[name] for name in names if name in batch}
        logits_LV = model.lm(**lm_inputs).logits[0]
    ids_T = batch["decoder_input_ids" if shape == "seq2seq" else "input_ids"][0][-3:]
    logprobs_TV = torch.log_softmax(logits_LV[-4:-1], -1)
    expected_T = logprobs_TV.gather(-1, ids_T[:, None])[:, 0]
    torch.testing.assert_close(features_TF[-3:, 0], expected_T.clamp(min=-10) / 10)


def test_a_feature_of_logits_that_are_not_known_is_refused(tmp_path, monkeypatch):
    families.save("modernbert-decoder", tmp_path / "lm")
    arguments = (str(tmp_path / "lm"), "causal", "sequence")
    message = "ModernBertDecoder.*changes its logits.*lm_logprob_feature would be wrong.*false"
    with pytest.raises(ValueError, match=message):
        LanguageModelScorer.start_from(*arguments, lm_logprob_feature=True)
    LanguageModelScorer.start_from(*arguments)
    # nor is such a folder loaded
    with monkeypatch.context() as patch:
        patch.setattr(LanguageModelScorer, "check_lm_logits", lambda self: None)
        model = LanguageModelScorer.start_from(*arguments, lm_logprob_feature=True)
    model.save_pretrained(tmp_path / "rm")
    tiny.tokenizer().save_pretrained(tmp_path / "rm")
    spec("causal", "sequence").save(tmp_path / "rm")
    with pytest.raises(UserError, match=message):
        load_reward_model(tmp_path / "rm", rm.prefix_fn)


def test_training_leaves_the_frozen_language_model_alone(tmp_path):
    model = network(tmp_path, "seq2seq", lm_logprob_feature=True).train()
    assert not model.lm.training and model.trunk.training
    assert not any(p.requires_grad for p in model.lm.parameters())
    built = inputs("seq2seq")
    batch = built.collate(
        built.encode([RMText(rm.prefix("question: the", mark=""), (rm.words("the red cat"),))])
    )
    model(**batch).logits.sum().backward()
    assert all(p.grad is None for p in model.lm.parameters())
    assert model.feature_in.weight.grad.abs().sum() > 0
    assert model.trunk.shared.weight.grad.abs().sum() > 0


def test_equal_prefixes_are_read_once():
    built = inputs("seq2seq")
    prefix, other = rm.prefix("question: the cat"), rm.prefix("question: a dog sees")
    batch = built.collate(
        built.encode(
            [
                RMText(prefix, (rm.words("a"),)),
                RMText(other, (rm.words("the"),)),
                RMText(prefix, (rm.words("one two"),)),
            ]
        )
    )
    assert batch["input_ids"].shape[0] == 2 and batch["prompt_rows"].tolist() == [0, 1, 0]
    assert batch["decoder_input_ids"].shape == (3, 3)


# ---- scoring -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "attention", "expected"),
    [("cpu", "sdpa", 8192), ("meta", "sdpa", 32_768), ("meta", "eager", 8192)],
)
def test_a_gpu_scores_more_at_a_time_unless_attention_stores_scores(
    tmp_path, device, attention, expected
):
    model = scorer(tmp_path, "seq2seq").model.to(device)
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            module.config._attn_implementation = attention
    assert _default_batch_tokens(model) == expected


def test_a_folder_divides_texts_as_it_was_trained(tmp_path):
    by_name = {
        "multilingual": load_segmenter(),
        BLANK: load_segmenter(BLANK),
        None: load_segmenter(PUBLISHED),  # a folder without a name, such as a published one
    }
    for name, segmenter in by_name.items():
        described = None if name is None else segmenter.describe()
        assert scorer(tmp_path, "encoder", segmenter=described).segmenter == segmenter


@pytest.mark.parametrize("shape", rm.SHAPES)
def test_segment_scores_do_not_depend_on_the_batch(tmp_path, shape):
    score = scorer(tmp_path, shape)
    texts = [
        TEXT,
        "a dog.",
        "",
        "the red cat sees a bird, and the dog likes the blue bird; one two three.",
        "   ",
    ]
    prompts = [rm.prompt(), rm.prompt("a dog"), rm.prompt(), rm.prompt(), rm.prompt()]
    together = score.score(prompts, texts)
    score.batch_tokens = 1
    for (prompt, text), labels in zip(zip(prompts, texts), together):
        (alone,) = score.score([prompt], [text])
        torch.testing.assert_close(
            alone.probabilities_SC, labels.probabilities_SC, rtol=1e-4, atol=1e-5
        )
        assert (
            alone.spans
            == labels.spans
            == tuple(load_segmenter(BLANK).segments(text, "subsentence"))
        )
        assert labels.labels == ("NF-ERR", "O") and all(labels.judged)
        torch.testing.assert_close(labels.probabilities_SC.sum(-1), torch.ones(len(labels.spans)))
    assert [len(labels.spans) for labels in together] == [3, 1, 0, 2, 0]


@pytest.mark.parametrize("shape", rm.SHAPES)
def test_sequence_scores(tmp_path, shape):
    score = scorer(tmp_path, shape, "sequence")
    texts = [TEXT, "", "a dog sees one cat"]
    scores_B = score.score([rm.prompt()] * 3, texts)
    assert scores_B.shape == (3,) and scores_B.isfinite().all() and len(set(scores_B.tolist())) == 3
    alone = torch.cat([score.score([rm.prompt()], [text]) for text in texts])
    torch.testing.assert_close(alone, scores_B, rtol=1e-4, atol=1e-5)
    assert (score.mean, score.std) == (0.5, 2.0)
    assert score.score([], []).shape == (0,)


def test_a_response_without_tokens_is_not_scored(tmp_path):
    """Of a batch, its score would be that of another response or of padding."""
    score = scorer(tmp_path, "causal", "sequence")
    score.prefix_fn = text_prefix
    blank = Prompt("row 7", "")
    with pytest.raises(UserError, match="a response to the prompt row 7 has no tokens"):
        score.score([rm.prompt(), blank], ["a dog", " "])
    one_token = score.score([blank, rm.prompt()], ["dog", ""])
    assert one_token.isfinite().all()


def test_no_pair_is_learned_from_a_response_without_tokens():
    from reward_modeling.run_pref_rm import encode

    row = Comparison(Prompt("row 7", "the cat"), (Answer("a dog"), Answer("")), ((0, 1),))
    with pytest.raises(UserError, match="a response to the prompt row 7 has no tokens"):
        encode(inputs("causal", kind="sequence"), [row], lambda prompt, with_context: (), True)


def test_with_context_decides_what_is_read(tmp_path):
    with_them, without = (scorer(tmp_path, "encoder", with_context=flag) for flag in (True, False))
    first, second = rm.prompt(context="one two"), rm.prompt(context="three three")
    assert with_them.encode([first], [TEXT]) != with_them.encode([second], [TEXT])
    assert without.encode([first], [TEXT]) == without.encode([second], [TEXT])


def test_a_segment_that_was_cut_off_is_not_judged(tmp_path):
    score = scorer(tmp_path, "seq2seq", max_length=10)
    (labels,) = score.score([rm.prompt()], [TEXT])
    assert labels.judged[0] and not labels.judged[-1] and len(labels.spans) == 3
    assert labels.probabilities_SC[-1].tolist() == [0.0, 0.0]
    whole = scorer(tmp_path, "seq2seq", max_length=64).score([rm.prompt()], [TEXT])[0]
    torch.testing.assert_close(labels.probabilities_SC[0], whole.probabilities_SC[0])


def test_responses_of_a_prompt_are_scored_together(tmp_path):
    """Prompts are sorted by length, then their responses; a shared prompt counts once."""
    score = scorer(tmp_path, "seq2seq")
    prompts = [rm.prompt(), rm.prompt("a dog"), rm.prompt(), rm.prompt("a dog")]
    read = score.encode(prompts, ["a", TEXT, "a dog sees", "the cat"])
    prompt = len(read[0].prompt)
    assert prompt == len(read[1].prompt)
    long = len(read[1].output_ids)
    assert batches_by_prompt(read, prompt + 2 * long) == [[1, 3], [2, 0]]
    assert batches_by_prompt(read, prompt + 2 * long - 1)[0] == [1]
    assert batches_by_prompt(read, 1) == [[1], [3], [2], [0]]
    assert batches_by_prompt(read, 10_000) == [[1, 3, 2, 0]]


# ---- loading -------------------------------------------------------------------------------------


def save(score, folder):
    score.model.save_pretrained(folder)
    score.inputs.tokenizer.save_pretrained(folder)
    score.spec.save(folder)
    return folder


@pytest.mark.parametrize("shape", rm.SHAPES)
@pytest.mark.parametrize("kind", ["segment", "sequence"])
def test_a_saved_reward_model_scores_as_before(tmp_path, shape, kind):
    score = scorer(tmp_path, shape, kind, feature=shape != "encoder")
    # the folder's own facts take precedence over defaults for published checkpoints
    defaults = {
        "mean": 9.0,
        "std": 9.0,
        "level": "sentence",
        "error_label": "X",
        "with_context": False,
    }
    again = load_reward_model(save(score, tmp_path / "rm"), rm.prefix_fn, defaults=defaults)
    assert again.spec == score.spec and type(again) is type(score)
    texts = [TEXT, "a dog."]
    before, after = score.score([rm.prompt()] * 2, texts), again.score([rm.prompt()] * 2, texts)
    if kind == "sequence":
        torch.testing.assert_close(before, after, rtol=1e-5, atol=1e-6)
    else:
        for x, y in zip(before, after):
            torch.testing.assert_close(x.probabilities_SC, y.probabilities_SC, rtol=1e-5, atol=1e-6)
            assert x.spans == y.spans


def published(folder, labels=(), seed=0):
    """A published checkpoint: a classifier of segments by their labels, or of whole answers."""
    torch.manual_seed(seed)
    if labels:
        model = LongformerForTokenClassification(classifier_config(labels))
    else:
        model = LongformerForSequenceClassification(classifier_config(["score"]))
    model.eval().save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return model


@pytest.mark.parametrize("labels", [("F-ERR", "Ignore", "O"), ("O", "F-ERR", "Ignore")])
def test_three_label_checkpoint_loads_by_name(tmp_path, labels):
    model = published(tmp_path, labels)
    score = load_reward_model(tmp_path, rm.prefix_fn, level="sentence", with_context=True)
    assert (score.spec.error_label, score.spec.ok_label, score.spec.labels) == (
        "F-ERR",
        "O",
        labels,
    )
    (read,) = score.encode([rm.prompt()], [TEXT])
    logits = model(**score.inputs.collate([read])).logits[0, read.judged_outputs]
    expected = torch.softmax(logits[:, [labels.index("F-ERR"), labels.index("O")]], -1)
    (judged,) = score.score([rm.prompt()], [TEXT])
    torch.testing.assert_close(judged.probabilities_SC, expected)
    assert judged.labels == ("F-ERR", "O") and len(judged.spans) == 2


def test_published_sequence_checkpoint_takes_mean_and_std_from_facts(tmp_path):
    published(tmp_path)
    score = load_reward_model(
        tmp_path, rm.prefix_fn, mean=-0.5, std=1.5, with_context=True, level="sequence"
    )
    assert (score.mean, score.std, score.spec.kind) == (-0.5, 1.5, "sequence")
    assert score.spec.max_length == 1025  # 1026 positions, of which padding has the first
    with pytest.raises(UserError, match="needs the mean and std"):
        load_reward_model(tmp_path, rm.prefix_fn)


def test_bf16_on_request(tmp_path):
    save(scorer(tmp_path, "seq2seq"), tmp_path / "rm")
    score = load_reward_model(tmp_path / "rm", rm.prefix_fn, dtype="bf16")
    assert next(score.model.parameters()).dtype == torch.bfloat16
    assert score.score([rm.prompt()], [TEXT])[0].probabilities_SC.dtype == torch.float32


def test_byte_level_tokenizer_gets_the_space_that_words_need(tmp_path):
    tiny.tokenizer("bpe").save_pretrained(tmp_path)
    tokenizer = load_tokenizer(tmp_path, "encoder")
    ids = tokenizer(["red", "cat"], is_split_into_words=True)["input_ids"]
    assert ids == tokenizer(" red cat")["input_ids"]
    tokenizer.save_pretrained(tmp_path / "again")
    again = load_tokenizer(tmp_path / "again", "encoder")
    assert again(["red", "cat"], is_split_into_words=True)["input_ids"] == ids
    as_the_policy = load_tokenizer(tmp_path, "causal")("red cat")["input_ids"]
    assert as_the_policy == tiny.tokenizer("bpe")("red cat")["input_ids"]
    assert as_the_policy != tokenizer("red cat")["input_ids"]


# ---- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", rm.SHAPES)
def test_a_model_of_several_errors_compares_all_its_labels(tmp_path, shape):
    labels = ("WRONG", "RUDE", "Ignore", "O")
    facts = spec(shape, labels=labels, error_label=None, ok_label="O")
    assert facts.judged_labels == ("WRONG", "RUDE", "O")
    model = network(tmp_path, shape, labels=labels)
    tokenizer = load_tokenizer(tmp_path / f"start-{shape}", shape)
    score = SegmentScorer(model, tokenizer, facts, rm.prefix_fn)
    again = load_reward_model(save(score, tmp_path / "rm"), rm.prefix_fn)
    assert again.spec == score.spec and again.columns == [0, 1, 3]
    (judged,) = again.score([rm.prompt()], [TEXT])
    assert judged.labels == ("WRONG", "RUDE", "O")
    (read,) = again.encode([rm.prompt()], [TEXT])
    with torch.no_grad():
        logits = again.model(**again.inputs.collate([read])).logits[0, read.judged_outputs]
    expected = torch.softmax(logits[:, [0, 1, 3]], -1)
    torch.testing.assert_close(judged.probabilities_SC, expected)


def test_missing_or_wrong_folders_are_named(tmp_path):
    with pytest.raises(UserError, match="no reward model is given"):
        load_reward_model(None, rm.prefix_fn)
    with pytest.raises(UserError, match="nowhere"):
        load_reward_model(tmp_path / "nowhere", rm.prefix_fn)
    (tmp_path / "unfinished").mkdir()
    with pytest.raises(UserError, match="run its training script to the end"):
        load_reward_model(tmp_path / "unfinished", rm.prefix_fn)
    tiny.policy("t5").save(tmp_path / "policy")
    with pytest.raises(UserError, match="not a reward model: its architecture is T5"):
        load_reward_model(tmp_path / "policy", rm.prefix_fn)


@pytest.mark.parametrize("kind", ["segment", "sequence"])
def test_a_reward_model_of_the_other_kind_is_refused(tmp_path, kind):
    save(scorer(tmp_path, "causal", kind), tmp_path / "rm")
    segment = {"kind": "segment_classifier", "values": {"error": -1.0}}
    sequence = {"kind": "sequence_scorer"}
    right, wrong = (segment, sequence) if kind == "segment" else (sequence, segment)
    context = RewardContext(rm.prefix_fn)
    for section in (right, wrong):
        name = section["kind"]
        config = LIBRARY_REWARDS[name](**section, ckpt=str(tmp_path / "rm"))
        if section is right:
            config.build(context)
            continue
        with pytest.raises(UserError, match=f"but this reward needs .* kind {right['kind']}"):
            config.build(context)


def test_labels_and_level_must_be_known(tmp_path):
    published(tmp_path / "a", ("X", "Y", "O"))
    with pytest.raises(UserError, match="level=subsentence"):
        load_reward_model(tmp_path / "a", rm.prefix_fn)
    with pytest.raises(UserError, match="labels X, Y, O"):
        load_reward_model(tmp_path / "a", rm.prefix_fn, level="sentence")
    with pytest.raises(UserError, match="labels X, Y, O, not F-ERR"):
        load_reward_model(tmp_path / "a", rm.prefix_fn, level="sentence", error_label="F-ERR")
    assert load_reward_model(
        tmp_path / "a", rm.prefix_fn, level="sentence", error_label="Y"
    ).columns == [1, 2]
    with pytest.raises(TypeError, match="colour"):
        load_reward_model(tmp_path / "a", rm.prefix_fn, colour="red")


def test_broken_spec_is_named(tmp_path):
    folder = save(scorer(tmp_path, "seq2seq"), tmp_path / "rm")
    (folder / "reward_model.json").write_text('{"kind": "segment"}')
    with pytest.raises(UserError, match="cannot be used as a reward model"):
        load_reward_model(folder, rm.prefix_fn)
    (folder / "reward_model.json").write_text("{")
    with pytest.raises(UserError, match="not valid JSON"):
        load_reward_model(folder, rm.prefix_fn)


def test_segment_labels_check_their_shape():
    with pytest.raises(ValueError, match="2 spans"):
        SegmentLabels(((0, 1), (1, 2)), torch.zeros(1, 2), ("E", "O"), (True, True))


def test_pooled_features_by_hand():
    """Two answers of 3 and 2 tokens, features in -0.1 nats; padding does not count."""
    features_BTF = torch.tensor([[[-0.1], [-0.5], [0.0]], [[-0.2], [-0.4], [-0.9]]])
    pooled_B2 = pooled_features(features_BTF, torch.tensor([[1, 1, 1], [1, 1, 0]]))
    assert torch.allclose(pooled_B2, torch.tensor([[-5.0, -2.0], [-4.0, -3.0]]))


# ---- facts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["segment", "sequence"])
def test_facts_that_contradict_the_folder_are_refused(tmp_path, kind):
    folder = save(scorer(tmp_path, "encoder", kind), tmp_path / "rm")
    wrong = {
        "mean": 9.0,
        "std": 9.0,
        "level": "sentence",
        "error_label": "X",
        "with_context": False,
    }
    with pytest.raises(UserError) as error:
        load_reward_model(folder, rm.prefix_fn, **wrong)
    for name, value in wrong.items():
        assert f"{name}={value} was given, but its reward_model.json has {name}=" in str(
            error.value
        )
        with pytest.raises(UserError, match=f"{name}={value} was given"):
            load_reward_model(folder, rm.prefix_fn, **{name: value})
    carried = json.loads((folder / "reward_model.json").read_text())
    facts = {name: carried[name] for name in wrong if carried[name] is not None}
    assert load_reward_model(folder, rm.prefix_fn, **facts).spec.kind == kind


def test_facts_that_a_published_checkpoint_has_no_use_for_are_refused(tmp_path):
    published(tmp_path / "segments", ("F-ERR", "Ignore", "O"))
    with pytest.raises(UserError, match="mean, std would be ignored"):
        load_reward_model(tmp_path / "segments", rm.prefix_fn, level="sentence", mean=0.0, std=1.0)
    published(tmp_path / "whole")
    moments = {"mean": 0.0, "std": 1.0}
    for useless in ({"error_label": "F-ERR"}, {"level": "sentence"}):
        with pytest.raises(UserError, match="would be ignored"):
            load_reward_model(tmp_path / "whole", rm.prefix_fn, **moments, **useless)
        load_reward_model(tmp_path / "whole", rm.prefix_fn, **moments, defaults=useless)
    for bad in (
        {"std": float("inf")},
        {"std": float("nan")},
        {"std": 0.0},
        {"mean": float("inf")},
        {"std": True},
    ):
        with pytest.raises(UserError, match="`(mean|std)`: must be .*, it is|finite") as error:
            load_reward_model(tmp_path / "whole", rm.prefix_fn, **{**moments, **bad})
        assert "pydantic" not in str(error.value)


def test_published_names_give_defaults_and_the_config_gives_facts(tmp_path):
    """`relevance_model` implies an input without passages; this folder was trained with them."""
    folder = save(scorer(tmp_path, "encoder", with_context=True), tmp_path / "rm")
    values = {"positive_reward": 0.3, "negative_reward": -0.3}
    config = OneErrorModel(kind="relevance", ckpt=str(folder), **values)
    assert config.published["with_context"] is False
    reward = config.build(RewardContext(rm.prefix_fn))
    assert reward.scorer.spec.with_context is True

    def given(**facts):
        values = {"error": -1.0}
        section = SegmentClassifier(ckpt=str(folder), values=values, **facts)
        return section.build(RewardContext(rm.prefix_fn))

    with pytest.raises(UserError, match="error_label=OTHER was given"):
        given(error_label="OTHER")
    with pytest.raises(UserError, match="with_context=False was given"):
        given(with_context=False)


# ---- folders that are not sound ------------------------------------------------------------------


def change_tensors(folder, change):
    from safetensors.torch import load_file, save_file

    path = str(folder / "model.safetensors")
    tensors = load_file(path)
    save_file(change(tensors), path, {"format": "pt"})


HEADS = {"encoder": "classifier.", "seq2seq": "head.", "causal": "head."}


@pytest.mark.parametrize("kind", ["segment", "sequence"])
@pytest.mark.parametrize("shape", rm.SHAPES)
def test_missing_tensors_are_refused_in_use(tmp_path, shape, kind):
    score = scorer(tmp_path, shape, kind, feature=shape != "encoder")
    head = HEADS[shape]
    save(score, tmp_path / "headless")
    change_tensors(
        tmp_path / "headless", lambda ts: {n: t for n, t in ts.items() if not n.startswith(head)}
    )
    save(score, tmp_path / "half")
    change_tensors(tmp_path / "half", lambda ts: {n: ts[n] for n in sorted(ts)[::2]})
    for folder in ("headless", "half"):
        with pytest.raises(UserError, match="lack .* of the tensors.*Train it again"):
            load_reward_model(tmp_path / folder, rm.prefix_fn)


def start_network(folder, kind="segment"):
    section = RMModelConfig(ckpt=str(folder), max_input_len=64)
    return load_network(section, kind, {0: "E", 1: "O"} if kind == "segment" else None)[0]


def with_nan(tensors):
    return {name: tensor * float("nan") for name, tensor in tensors.items()}


HOSTILE = {
    "nan": (lambda f: change_tensors(f, with_nan), "NaN"),
    "pickle": (lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"), "pickle"),
    "code": (
        lambda f: change_json(f / "config.json", model_type="mine", auto_map={"AutoConfig": "x.Y"}),
        "code",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("shape", rm.SHAPES)
def test_hostile_folders_are_refused_in_use_and_in_training(tmp_path, shape, name):
    damage, reason = HOSTILE[name]
    use = save(scorer(tmp_path, shape), tmp_path / "use")
    training = rm.start(tmp_path / "training", shape)
    for folder, load in (
        (use, lambda: load_reward_model(use, rm.prefix_fn)),
        (training, lambda: start_network(training)),
    ):
        damage(folder)
        with pytest.raises(UserError, match=reason):
            load()


def change_json(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("shape", rm.SHAPES)
def test_training_starts_without_a_head_but_not_without_a_trunk(tmp_path, shape):
    folder = rm.start(tmp_path, shape)
    start_network(folder)
    change_tensors(folder, lambda ts: {n: ts[n] for n in sorted(ts)[::2]})
    with pytest.raises(UserError, match="lack .* of the tensors"):
        start_network(folder)


def test_training_may_start_from_a_classifier_of_other_labels_but_not_of_another_size(tmp_path):
    published(tmp_path, ("F-ERR", "Ignore", "O"))
    assert start_network(tmp_path).classifier.out_features == 2
    change_json(tmp_path / "config.json", vocab_size=7)
    with pytest.raises(UserError, match="belong to different models.*word_embeddings"):
        start_network(tmp_path)


def test_a_tokenizer_that_cannot_pad_is_refused(tmp_path):
    folder = save(scorer(tmp_path, "encoder"), tmp_path / "rm")
    change_json(folder / "tokenizer_config.json", pad_token=None, eos_token=None)
    with pytest.raises(UserError, match="neither a padding token nor an end token"):
        load_reward_model(folder, rm.prefix_fn)


def test_words_stay_apart_in_a_tokenizer_with_two_splitters(tmp_path):
    """EuroBERT's tokenizer splits by a regular expression, then by bytes."""
    tok = tiny.fresh(tiny.tokenizer("bpe"))
    by_words = pre_tokenizers.Split(Regex(r" ?\p{L}+| ?[^\s\p{L}]+|\s+"), "isolated")
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tok.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([by_words, by_bytes])
    tok.save_pretrained(tmp_path / "start")
    text = ["the", "red", "cat,", "</s>", "sees", "a", "dog"]
    expected = tok(" the red cat,</s> sees a dog")["input_ids"]
    for times in range(2):  # the folder that training writes is read again
        loaded = load_tokenizer(tmp_path / "start", "encoder")
        batch = loaded(text, is_split_into_words=True)
        assert batch["input_ids"] == expected, times
        assert set(batch.word_ids()) == set(range(len(text)))
        loaded.save_pretrained(tmp_path / "start")


def test_the_scorer_counts_what_it_cuts(tmp_path):
    score = scorer(tmp_path, "encoder", max_length=20)
    score.score([rm.prompt(), rm.prompt()], ["a dog.", TEXT])
    assert (score.seen, score.cut_inputs, score.inputs.cuts.responses) == (2, 1, 1)
    whole = scorer(tmp_path, "encoder", max_length=64)
    whole.score([rm.prompt(), rm.prompt()], ["a dog.", TEXT])
    assert (whole.seen, whole.cut_inputs, whole.inputs.cuts.responses) == (2, 0, 0)


@pytest.mark.parametrize(
    "shape, changes",
    [("causal", {"trunk": {"n_layer": 1}}), ("seq2seq", {"lm_logprob_feature": False})],
)
def test_tensors_that_the_config_does_not_ask_for_are_refused_in_use(tmp_path, shape, changes):
    """A config changed to fewer layers, or to no feature, would give other scores."""
    folder = save(scorer(tmp_path, shape, feature=True), tmp_path / "rm")
    config = json.loads((folder / "config.json").read_text())
    for key, value in changes.items():
        assert config[key] != value
        changed = config[key] | value if key == "trunk" else value
        change_json(folder / "config.json", **{key: changed})
    with pytest.raises(UserError, match="does not require"):
        load_reward_model(folder, rm.prefix_fn)


def test_a_tokenizer_of_another_model_is_refused(tmp_path):
    folder = save(scorer(tmp_path, "causal"), tmp_path / "rm")
    start = rm.start(tmp_path, "causal")
    for path in (folder, start):
        tiny.tokenizer("bpe").save_pretrained(path)
    with pytest.raises(UserError, match="tokens up to number 319, but the network has only"):
        load_reward_model(folder, rm.prefix_fn)
    with pytest.raises(UserError, match="tokens up to number 319"):
        start_network(start, "sequence")
