"""Reward models that read prompts and responses with their line breaks and indentation."""

import json
import random
from copy import deepcopy

import pytest
import rm_helpers as rm
import tiny

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json
from fgrlhf.base.records import read
from fgrlhf.data.comparisons import Answer, Comparison
from fgrlhf.models.dialogs import dialog_text
from fgrlhf.reward_models.inputs import RMInputs, join_segments, sees_line_breaks
from fgrlhf.reward_models.prefix import Prefix, RMText, spaces_before_words, text_prefix
from fgrlhf.reward_models.scoring import SegmentScorer, SequenceScorer
from fgrlhf.reward_models.spec import RewardModelSpec
from fgrlhf.reward_utils import MULTILINGUAL, load_segmenter
from fgrlhf.task import Task
from fgrlhf.text_types import Prompt
from reward_modeling import run_fg_rm, run_pref_rm
from reward_modeling.config import RMModelConfig
from reward_modeling.data import read_segment_rows
from reward_modeling.network import load_network, reads_line_breaks
from reward_modeling.span_files import SpanFileSettings, write_span_file

PROMPT = Prompt("0", "the red cat\n\n  sees")
SHAPES = ["causal", "seq2seq", "encoder"]
CODE = "the red cat\n    sees:\n        a dog\n\nand likes one"
LIST = "Steps:\n\n1. the red cat sees.\n2. A dog likes one bird.\n\nThat is all. 东京很大。它很热。"


# ---- texts ---------------------------------------------------------------------------------------


def test_spaces_by_hand():
    text = " a\n\n  b c\td "
    assert spaces_before_words(text, [(0, 7), (7, len(text))]) == (("", "\n\n  "), (" ", "\t"))
    rm_text = RMText.of(Prefix(()), text, [(0, 7), (7, len(text))])
    assert rm_text.segments == (("a", "b"), ("c", "d"))
    joined, spans = join_segments(rm_text.segments, " ", rm_text.spaces)
    assert joined == text.strip() and spans == [(0, 6), (7, 10)]
    assert join_segments(rm_text.segments)[0] == "a b c d"


def test_the_text_is_that_of_the_response():
    rng = random.Random(0)
    pieces = ("a", "dog", ".", "1. ", " ", "  ", "\n", "\n\n", "\t", "东京。", "\u2028", "x;")
    for level in ("sentence", "subsentence", "word", "paragraph", "whole"):
        segmenter = load_segmenter(MULTILINGUAL)
        for _ in range(40):
            text = "".join(rng.choice(pieces) for _ in range(rng.randint(0, 14)))
            segments = segmenter.segments(text, level)
            rm_text = RMText.of(Prefix(()), text, segments)
            joined, spans = join_segments(rm_text.segments, " ", rm_text.spaces)
            assert joined == text.strip()
            for (start, end), (first, last) in zip(segments, spans, strict=True):
                assert joined[first:last] == text[start:end].strip()


def byte_level(shape):
    """A tokenizer as `load_tokenizer` prepares it."""
    tokenizer = deepcopy(tiny.tokenizer("bpe"))
    tokenizer.backend_tokenizer.pre_tokenizer.add_prefix_space = shape == "encoder"
    return tokenizer


def test_spaces_of_a_prompt_by_hand():
    assert Prefix.of_text(" a\n\n  b c ") == Prefix(("a", "b", "c"), spaces=("", "\n\n  ", " "))
    assert Prefix.of_text("a b") == Prefix(("a", "b")) and Prefix.of_text(" ") == Prefix(())
    for spaces in (("",), ("", "x"), ("", " ", " ")):
        with pytest.raises(ValueError, match="the white space before each of the 2 words"):
            Prefix(("a", "b"), spaces=spaces)


def test_spaces_of_a_dialog():
    turns = (("user", "a\nb"), ("assistant", "c"), ("user", "d\n\ne"))
    prompt = Prompt("0", dialog_text(turns), messages=turns)
    last = Prefix(("Human:", "d", "e", "Assistant:"), spaces=("", " ", "\n\n", "\n\n"))
    assert text_prefix(prompt, False) == last
    whole = text_prefix(prompt, True)
    assert whole.words[5:] == last.words and whole.context == (range(5),) and whole.keeps_end
    assert whole.spaces == ("", " ", "\n", "\n\n", " ", "\n\n", *last.spaces[1:])


@pytest.mark.parametrize("shape", SHAPES)
def test_tokenizers_that_see_line_breaks(shape):
    assert sees_line_breaks(byte_level(shape), shape)
    assert not sees_line_breaks(tiny.tokenizer("unigram"), shape)
    assert not sees_line_breaks(tiny.tokenizer("word"), shape)


# ---- scores --------------------------------------------------------------------------------------


def section(folder, kind="bpe", shape="causal", **changes) -> RMModelConfig:
    ckpt = str(rm.start(folder, shape, kind))
    return RMModelConfig(ckpt=ckpt, shape=shape, max_input_len=200, **changes)


def sequence_scorer(folder, line_breaks, shape="causal") -> SequenceScorer:
    network, tokenizer = load_network(section(folder, shape=shape), "sequence")
    facts = {"mean": 0.0, "std": 1.0, "line_breaks": line_breaks}
    spec = RewardModelSpec("sequence", shape, "sequence", False, 200, **facts)
    return SequenceScorer(network, tokenizer, spec, text_prefix)


def spelled(scorer, texts, prompts=(PROMPT,)) -> list[str]:
    """What a scorer reads of each text: its prompt and its response."""
    result = []
    for one in scorer.encode([*prompts] * (len(texts) // len(prompts)), texts):
        ids = [*one.input_ids, *(one.decoder_input_ids or ())]
        read = scorer.inputs.tokenizer.decode(ids, skip_special_tokens=True)
        # an encoder's tokenizer puts a space before every word
        result.append(read.replace(" \n", "\n"))
    return result


@pytest.mark.parametrize("shape", SHAPES)
def test_a_moved_paragraph_changes_the_score_of_the_new_form_only(tmp_path, shape):
    new = sequence_scorer(tmp_path, True, shape)
    old = sequence_scorer(tmp_path, False, shape)
    texts = ["def f():\n    a\n    b", "def f():\n    a\nb", "def f(): a b"]
    prompts = [Prompt(str(i), text) for i, text in enumerate(texts)]
    answers = ["the red cat\n\nsees a dog", "the red\n\ncat sees a dog", "the red cat sees a dog"]
    for pairs in ((prompts, ["the cat"] * 3), ([PROMPT] * 3, answers)):
        for scorer, different in ((new, 3), (old, 1)):
            scores = scorer.score(*pairs).tolist()
            assert len({round(score, 6) for score in scores}) == different
    read = spelled(new, ["the cat"] * 3, prompts)
    assert all(text in one for text, one in zip(texts, read))
    assert spelled(old, ["the cat"] * 3, prompts) == [read[2]] * 3
    (read,) = spelled(new, [CODE])
    assert read.endswith(CODE) and PROMPT.text in read
    # the published form: words joined by spaces
    (read,) = spelled(old, [CODE])
    assert read.endswith(" ".join(CODE.split())) and " ".join(PROMPT.text.split()) in read


@pytest.mark.parametrize("shape", SHAPES)
def test_a_context_is_cut_with_the_white_space_before_its_words(shape):
    tokenizer = byte_level(shape)
    prefix = Prefix.of_text("a\n\nred dog\n\ncat", (range(1, 3),))
    text = RMText.of(prefix, "bird", [(0, 4)])
    cut = []
    for limit in range(40, 1, -1):
        inputs = RMInputs(tokenizer, shape, "sequence", limit, 1, line_breaks=True)
        (one,) = inputs.encode([text])
        if one.cut_context and not one.cut_core and not one.cut_response:
            cut.append(tokenizer.decode(one.input_ids, skip_special_tokens=True))
    read = cut[-1].replace(" ", "")
    assert read.removesuffix("bird") == "a\n\ncat"


def test_folders_of_earlier_releases_read_words():
    facts = {"kind": "sequence", "shape": "causal", "level": "sequence", "with_context": False}
    facts |= {"max_length": 64, "mean": 0.0, "std": 1.0}
    assert read(RewardModelSpec, facts).line_breaks is False


def test_pairs_are_trained_on_what_is_scored(tmp_path):
    scorer = sequence_scorer(tmp_path, True)
    row = Comparison(PROMPT, (Answer(CODE), Answer(LIST)), ((0, 1),))
    ((trained, _),) = run_pref_rm.encode(scorer.inputs, [row], text_prefix, False)
    served = scorer.encode([PROMPT] * 2, [CODE, LIST])
    assert [one.input_ids for one in trained] == [one.input_ids for one in served]


# ---- segments ------------------------------------------------------------------------------------


def segment_file(folder, level="sentence"):
    rows = []
    for text in (CODE, LIST):
        start = text.index("dog")
        span = {"start": start, "end": start + 3, "label": "wrong"}
        rows.append({"prompt": PROMPT.text, "response": text, "spans": [span]})
    (folder / "spans.jsonl").write_text("\n".join(map(json.dumps, rows)))
    files = {"source": str(folder / "spans.jsonl"), "output": str(folder / "train.json")}
    settings = SpanFileSettings(**files, level=level, tags={"wrong": "ERROR"})
    write_span_file(Task("toy", rm_prefix=text_prefix), settings)
    return str(folder / "train.json")


@pytest.mark.parametrize(
    ("level", "shape"),
    [("sentence", "causal"), ("word", "seq2seq"), ("sentence", "encoder"), ("step", "causal")],
)
def test_segments_are_trained_on_what_is_scored(tmp_path, level, shape):
    model = section(tmp_path, shape=shape)
    network, tokenizer = load_network(model, "segment", {0: "ERROR", 1: "O"})
    labels = {"labels": ("ERROR", "O"), "error_label": "ERROR", "ok_label": "O"}
    labels["segmenter"] = load_segmenter(MULTILINGUAL).describe()
    spec = RewardModelSpec("segment", shape, level, False, 200, **labels, line_breaks=True)
    scorer = SegmentScorer(network, tokenizer, spec, text_prefix)
    rows = read_segment_rows(segment_file(tmp_path, level), ("ERROR", "O"), "Ignore", level)
    assert all(row.has_spaces for row in rows)
    trained = scorer.inputs.encode([row.text for row in rows])
    served = scorer.encode([PROMPT] * 2, [CODE, LIST])
    assert trained == served
    for one, text in zip(trained, (CODE, LIST), strict=True):
        assert PROMPT.text in tokenizer.decode(one.input_ids).replace(" \n", "\n")
        if shape != "causal" or level == "step":  # marks between segments; lines without blanks
            continue
        assert tokenizer.decode(one.input_ids).endswith(f" {text}")
        spans = scorer.segmenter.segments(text, level)
        for (_, end), position in zip(spans, one.positions, strict=True):
            read = tokenizer.decode(one.input_ids[: position + 1])
            assert read.rstrip().endswith(text[:end].strip())


def test_files_without_spaces_are_read_as_words(tmp_path):
    """Files of earlier releases and of the published code."""
    file = tmp_path / "old.json"
    line = {"id": "0", "text": ["q:", "</s>", "a", "b", "</s>", "c"]}
    line["feedback_tags"] = ["Ignore", "O", "Ignore", "Ignore", "O", "Ignore"]
    file.write_text(json.dumps(line))
    (row,) = read_segment_rows(file, ("ERROR", "O"), "Ignore")
    assert row.text.spaces is None
    tokenizer = tiny.tokenizer("bpe")
    old, new = (
        RMInputs(tokenizer, "causal", "segment", 64, line_breaks=value).encode([row.text])
        for value in (False, True)
    )
    assert old == new
    file.write_text(json.dumps({**line, "spaces": {"0": "", "2": "", "5": "\n\n"}}))
    (row,) = read_segment_rows(file, ("ERROR", "O"), "Ignore")
    assert row.text.spaces == (("", " "), ("\n\n",)) and row.has_spaces
    # white space of the response only, or of the prompt only
    for spaces in ({"2": "", "5": "\n\n"}, {"0": ""}):
        file.write_text(json.dumps({**line, "spaces": spaces}))
        (row,) = read_segment_rows(file, ("ERROR", "O"), "Ignore")
        assert row.text.spaces is None and not row.has_spaces
    (row,) = read_segment_rows(file, ("ERROR", "O"), "Ignore", "step")
    assert row.has_spaces
    for spaces in ({"9": " "}, {"2": "x"}):
        file.write_text(json.dumps({**line, "spaces": spaces}))
        with pytest.raises(UserError, match="`spaces`: must map places"):
            read_segment_rows(file, ("ERROR", "O"), "Ignore")


# ---- training ------------------------------------------------------------------------------------


def test_new_models_keep_line_breaks_where_they_can(tmp_path):
    seen = tiny.tokenizer("bpe")
    unseen = tiny.tokenizer("word")
    model = RMModelConfig(ckpt="x")
    assert reads_line_breaks(model, "causal", seen)
    assert not reads_line_breaks(model, "causal", unseen)
    assert not reads_line_breaks(model, "causal", seen, "no spaces")
    assert not reads_line_breaks(RMModelConfig(ckpt="x", line_breaks=False), "causal", seen)
    wanted = RMModelConfig(ckpt="x", line_breaks=True)
    for arguments in (("encoder", unseen), ("causal", unseen), ("causal", seen, "no spaces")):
        with pytest.raises(UserError, match="model.line_breaks=true, but"):
            reads_line_breaks(wanted, *arguments)


def test_a_trained_folder_names_its_form(tmp_path):
    file = segment_file(tmp_path)
    tree = {
        "model": section(tmp_path).model_dump(),
        "data": {"train_file": file, "dev_file": file, "level": "sentence", "with_context": False},
        "labels": {"error": "ERROR"},
        "train": {"max_steps": 1, "batch_size": 2},
        "logging": {"run_name": "toy", "save_dir": str(tmp_path / "rm")},
    }
    config = run_fg_rm.SegmentRMConfig.model_validate(tree)
    folder = run_fg_rm.train(config)
    assert read_json(folder / "reward_model.json")["line_breaks"] is True
