"""Reward models that read responses with their line breaks and indentation."""

import json
import random

import pytest
import rm_helpers as rm
import tiny

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json
from fgrlhf.configs.older_configs import with_new_keys
from fgrlhf.data.comparisons import Answer, Comparison
from fgrlhf.reward_models.inputs import RMInputs, join_segments, sees_line_breaks
from fgrlhf.reward_models.prefix import Prefix, RMText, spaces_before_words, text_prefix
from fgrlhf.reward_models.scoring import SegmentScorer, SequenceScorer
from fgrlhf.reward_models.spec import RewardModelSpec, spec_problems
from fgrlhf.reward_utils import MULTILINGUAL, load_segmenter
from fgrlhf.task import Task
from fgrlhf.text_types import Prompt
from reward_modeling import run_fg_rm, run_pref_rm
from reward_modeling.config import ModelSection
from reward_modeling.data import read_segment_rows
from reward_modeling.network import load_network, reads_line_breaks
from reward_modeling.span_files import Settings, write_span_file

PROMPT = Prompt("0", "the red cat")
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


def test_tokenizers_that_see_line_breaks():
    assert sees_line_breaks(tiny.tokenizer("bpe"))
    assert not sees_line_breaks(tiny.tokenizer("unigram"))
    assert not sees_line_breaks(tiny.tokenizer("word"))


# ---- scores --------------------------------------------------------------------------------------


def section(folder, kind="bpe", shape="causal", **changes) -> ModelSection:
    ckpt = str(rm.start(folder, shape, kind))
    return ModelSection(ckpt=ckpt, shape=shape, max_length=200, **changes)


def sequence_scorer(folder, line_breaks, shape="causal") -> SequenceScorer:
    network, tokenizer = load_network(section(folder, shape=shape), "sequence")
    facts = {"mean": 0.0, "std": 1.0, "line_breaks": line_breaks}
    spec = RewardModelSpec("sequence", shape, "sequence", False, 200, **facts)
    return SequenceScorer(network, tokenizer, spec, text_prefix)


@pytest.mark.parametrize("shape", ["causal", "seq2seq"])
def test_a_moved_paragraph_changes_the_score_of_the_new_form_only(tmp_path, shape):
    texts = ["the red cat\n\nsees a dog", "the red\n\ncat sees a dog", "the red cat sees a dog"]
    new = sequence_scorer(tmp_path, True, shape)
    old = sequence_scorer(tmp_path, False, shape)
    new_scores = new.score([PROMPT] * 3, texts).tolist()
    old_scores = old.score([PROMPT] * 3, texts).tolist()
    assert len({round(score, 4) for score in new_scores}) == 3
    assert len({round(score, 6) for score in old_scores}) == 1
    (ids,) = new.encode([PROMPT], [CODE])
    read = ids.decoder_input_ids or ids.input_ids
    assert new.inputs.tokenizer.decode(read).endswith(CODE)
    # the published form: words joined by spaces
    (ids,) = old.encode([PROMPT], [CODE])
    read = ids.decoder_input_ids or ids.input_ids
    assert old.inputs.tokenizer.decode(read).endswith(" ".join(CODE.split()))


def test_folders_of_earlier_releases_read_words():
    facts = {"kind": "sequence", "shape": "causal", "level": "sequence", "with_context": False}
    facts |= {"max_length": 64, "mean": 0.0, "std": 1.0}
    assert not spec_problems(facts) and RewardModelSpec(**facts).line_breaks is False
    problems = spec_problems({**facts, "line_breaks": True, "shape": "encoder"})
    assert problems == ["line_breaks: an encoder reads words, so it must be false"]
    recorded = {"ckpt": "x"}  # of a run that began before the key existed
    assert with_new_keys(recorded, ModelSection(ckpt="x"))["line_breaks"] is False


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
    settings = Settings(
        source=str(folder / "spans.jsonl"),
        output=str(folder / "train.json"),
        level=level,
        tags={"wrong": "ERROR"},
    )
    write_span_file(Task("toy", rm_prefix=text_prefix), settings)
    return str(folder / "train.json")


@pytest.mark.parametrize("level", ["sentence", "word"])
def test_segments_are_trained_on_what_is_scored(tmp_path, level):
    network, tokenizer = load_network(section(tmp_path), "segment", {0: "ERROR", 1: "O"})
    spec = RewardModelSpec(
        "segment",
        "causal",
        level,
        False,
        200,
        labels=("ERROR", "O"),
        error_label="ERROR",
        ok_label="O",
        segmenter=load_segmenter(MULTILINGUAL).describe(),
        line_breaks=True,
    )
    scorer = SegmentScorer(network, tokenizer, spec, text_prefix)
    rows = read_segment_rows(segment_file(tmp_path, level), ("ERROR", "O"), "Ignore", level)
    trained = scorer.inputs.encode([row.text for row in rows])
    served = scorer.encode([PROMPT] * 2, [CODE, LIST])
    for one, other, text in zip(trained, served, (CODE, LIST), strict=True):
        assert (one.input_ids, one.positions) == (other.input_ids, other.positions)
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
    old, new = (
        RMInputs(tiny.tokenizer("bpe"), "causal", "segment", 64, line_breaks=value).encode(
            [row.text]
        )
        for value in (False, True)
    )
    assert old == new
    file.write_text(json.dumps({**line, "spaces": {"2": "", "5": "\n\n"}}))
    (row,) = read_segment_rows(file, ("ERROR", "O"), "Ignore")
    assert row.text.spaces == (("", " "), ("\n\n",))
    for spaces in ({"9": " "}, {"2": "x"}, [" "]):
        file.write_text(json.dumps({**line, "spaces": spaces}))
        with pytest.raises(UserError, match="`spaces`: must map places"):
            read_segment_rows(file, ("ERROR", "O"), "Ignore")


# ---- training ------------------------------------------------------------------------------------


def test_new_models_keep_line_breaks_where_they_can(tmp_path):
    seen = tiny.tokenizer("bpe")
    unseen = tiny.tokenizer("word")
    model = ModelSection(ckpt="x")
    assert reads_line_breaks(model, "causal", seen)
    assert not reads_line_breaks(model, "causal", unseen)
    assert not reads_line_breaks(model, "encoder", seen)
    assert not reads_line_breaks(model, "causal", seen, "no spaces")
    assert not reads_line_breaks(ModelSection(ckpt="x", line_breaks=False), "causal", seen)
    wanted = ModelSection(ckpt="x", line_breaks=True)
    for arguments in (("encoder", seen), ("causal", unseen), ("causal", seen, "no spaces")):
        with pytest.raises(UserError, match="model.line_breaks=true, but"):
            reads_line_breaks(wanted, *arguments)


def test_a_trained_folder_names_its_form(tmp_path):
    file = segment_file(tmp_path)
    tree = {
        "model": section(tmp_path).model_dump(),
        "data": {
            "train_file": file,
            "dev_file": file,
            "level": "sentence",
            "with_context": False,
        },
        "labels": {"error": "ERROR"},
        "train": {"max_steps": 1, "batch_size": 2},
        "logging": {"run_name": "toy", "save_dir": str(tmp_path / "rm")},
    }
    config = run_fg_rm.SegmentRMConfig.model_validate(tree)
    folder = run_fg_rm.train(config)
    assert read_json(folder / "reward_model.json")["line_breaks"] is True
