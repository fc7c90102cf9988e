"""Offline training on feedback rows: pairs, corrected answers, refusals, entry points."""

import random
from pathlib import Path

import pytest
import tiny
import torch
from refusals import refusals
from rl_helpers import metrics
from slow import with_slow
from test_policy import sampled

from fgrlhf import train_dpo
from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, read_jsonl, write_json, write_jsonl
from fgrlhf.cli import data, dpo
from fgrlhf.configs.strict import load_config
from fgrlhf.data.comparisons import Answer, new_words
from fgrlhf.models.lora import has_adapters
from fgrlhf.policy import Policy, load_policy
from fgrlhf.runs.dpo_config import DPOConfig
from fgrlhf.text_types import Prompt
from fgrlhf.train_dpo import load_comparisons
from tasks.qa_feedback.data import mini_world
from tasks.qa_feedback.data.annotator import Habits, annotate
from tasks.qa_feedback.feedback import (
    FeedbackRow,
    error_span,
    load_examples,
    read_feedback,
    write_feedback,
)
from tasks.qa_feedback.training import corrected_examples as corrected_program
from tasks.qa_feedback.training.comparisons import corrected_examples, make_comparisons, prompts_of

TRAINING = Path(__file__).parents[1] / "tasks/qa_feedback/training"


def words(text, ranges):
    return [text[start:end] for start, end in ranges]


@pytest.mark.parametrize(
    "before, after, new",
    [
        ("The cat sat.", "The cat sat.", []),
        ("The cat sat.", "The red cat sat down.", ["red", "down"]),
        # `less` is no new word, and case does not count
        ("The cat sat; the dog ran.", "The dog ran.", []),
        ("The cat sat.", "The dog sat; it ran.", ["dog", "; it ran"]),
        ("", "All new.", ["All new."]),
        ("naïve ☕ 🙂", "naïve 🙂 ☕", ["🙂"]),
    ],
)
def test_new_words(before, after, new):
    assert words(after, new_words(before, after)) == new


ERRORS = (error_span("Irrelevant", 7, 14), error_span("Unverifiable", 0, 5))


def row(corrected="A cat. It sat.", errors=ERRORS, preference=(1, 2, 0, 0, 1, 0)):
    passages = [["Cat", "A cat sat.", "It was red."]]
    predictions = ["A dog. It sat.", "b", "c", "d"]
    judged = (errors, [], corrected, preference)
    return FeedbackRow.make("Who sat?", passages, "A cat.", predictions, *judged)


def prompt_about(id, text, name, content):
    passages = [{"wikipage": name, "content": content}]
    return Prompt(id, text, meta={"question": "Who sat?", "passages": passages})


PROMPT = prompt_about("3", "question: Who sat?", "Cat", "A cat sat. It was red.")


def test_pairs_of_a_row():
    (result,) = make_comparisons([row()], [PROMPT], "corrected", "f.json")
    better, worse = result.answers
    assert result.prompt is PROMPT and result.pairs == ((0, 1),)
    assert (better.text, words(better.text, better.marked)) == ("A cat. It sat.", ["cat"])
    assert (worse.text, worse.marked) == ("A dog. It sat.", ((0, 5), (7, 14)))
    (result,) = make_comparisons([row()], [PROMPT], "preference", "f.json")
    assert [a.text for a in result.answers] == ["A dog. It sat.", "b", "c", "d"]
    assert not any(a.marked for a in result.answers)
    assert result.pairs == ((0, 1), (2, 0), (1, 3))


def test_marks_of_a_row():
    """Prediction 1 is bad with its errors and good without one; `both` adds it to the pairs."""
    rows = [row(), row(errors=())]
    bad, good = make_comparisons(rows, [PROMPT], "marks", "f.json")
    assert bad.answers == (Answer("A dog. It sat.", ((0, 5), (7, 14))),)
    assert bad.labels == (False,) and good.labels == (True,) and not bad.pairs
    (both,) = make_comparisons(rows[:1], [PROMPT], "both", "f.json")
    (compared,) = make_comparisons(rows[:1], [PROMPT], "preference", "f.json")
    assert both.answers == compared.answers + bad.answers and both.pairs == compared.pairs
    assert both.labels == (None, None, None, None, False)
    (only,) = make_comparisons([row(preference=[0] * 6)], [PROMPT], "both", "f.json")
    assert only == bad


def test_rows_without_a_pair_are_left_out():
    rows = [row(corrected=""), row(), row(corrected="A dog. It sat. ")]
    assert len(make_comparisons(rows, [PROMPT], "corrected", "f.json")) == 1
    with pytest.raises(
        UserError,
        match=(
            "f.json has no pairs .* 2 rows, and no row has a corrected answer .*"
            " data.pairs=preference"
        ),
    ):
        make_comparisons(rows[::2], [PROMPT], "corrected", "f.json")
    message = "1 rows, and all comparisons between predictions are ties. .* data.pairs=corrected"
    with pytest.raises(UserError, match=message):
        make_comparisons([row(preference=[0] * 6)], [PROMPT], "preference", "f.json")


def test_corrected_examples_keep_right_answers():
    rows = [row(corrected=""), row(), row(corrected="A dog. It sat.")]
    result = corrected_examples(rows, [PROMPT], "f.json")
    assert [r["answer"] for r in result] == [["A cat. It sat."], ["A dog. It sat."]]
    assert {r["text"] for r in result} == {PROMPT.text}
    with pytest.raises(UserError, match="no corrected answer in any of its 1 rows"):
        corrected_examples(rows[:1], [PROMPT], "f.json")


def test_the_prompt_is_found_by_question_and_passages():
    other = prompt_about("4", "x", "Dog", "A dog sat.")
    assert prompts_of([row()], [other, PROMPT], "f.json") == [PROMPT]
    with pytest.raises(
        UserError,
        match=(
            "f.json: 1 of 1 rows have a question or passages that no row of `data.train_file` has"
            " .*'Who sat\\?'"
        ),
    ):
        prompts_of([row()], [other], "f.json")


def test_published_rows(qa_feedback):
    """Every published row finds its prompt; rows with an error give pairs with marked tokens.

    Marks refer to their text.
    """
    rows = read_feedback(qa_feedback / "train_feedback.json")
    prompts = load_examples(qa_feedback / "train.json")
    questions = [p.meta["question"] for p in prompts_of(rows, prompts, "f")]
    assert questions == [r.question for r in rows]
    result = make_comparisons(rows, prompts, "corrected", "f")
    changed = [row for row in rows if row.corrected.strip() not in ("", row.predictions[0].strip())]
    assert len(rows) * 0.6 < len(result) == len(changed) < len(rows)
    for comparison in result:
        for answer in comparison.answers:
            assert all(0 <= start < end <= len(answer.text) for start, end in answer.marked)
    assert len(make_comparisons(rows, prompts, "preference", "f")) > len(rows) * 0.9
    filled = [row.corrected.strip() for row in rows if row.corrected.strip()]
    answers = [r["answer"] for r in corrected_examples(rows, prompts, "f")]
    assert answers == [[text] for text in filled]
    assert len(filled) < len(rows)


# ---- the entry points ----------------------------------------------------------------------------


@pytest.fixture
def world(tmp_path, monkeypatch):
    """Questions of the mini world, feedback on imperfect answers to them, a tiny policy."""
    for split in ("train", "dev"):
        questions = [mini_world.make_row(0, split, i) for i in range(4)]
        write_json(tmp_path / f"{split}.json", questions)
        rows = []
        for i, q in enumerate(questions):
            gold = q["answer"][0]
            four = [gold, questions[i - 1]["answer"][0], gold.split(". ")[0] + ".", "No answer."]
            asked = (q["question"], q["passages"], gold, four[i:] + four[:i])
            rows.append(annotate(random.Random(i), *asked, Habits(noise=0.0)))
        write_feedback(tmp_path / f"{split}_feedback.json", rows)
    monkeypatch.setenv("OUTPUT_DIR", str(tmp_path))
    monkeypatch.setenv("DATA_DIR", str(tmp_path))
    return tmp_path


SMALL = ["model.max_generated_len=40", "model.max_input_len=64", "train.batch_size=2"]
SMALL += ["train.micro_batch_size=2", "train.epochs=2"]
YML = {"corrected": "mini_fine_grained_dpo_config.yml", "preference": "mini_dpo_config.yml"}


@pytest.mark.parametrize(
    "kind, pairs",
    with_slow(
        [("t5", "corrected"), ("gpt2", "preference"), ("t5", "preference"), ("gpt2", "corrected")],
        lambda kind, pairs: (kind == "t5") != (pairs == "corrected"),
    ),
)
def test_the_entry_point_trains(kind, pairs, world, capsys):
    tiny.POLICIES[kind]("bpe").save(world / "sft")
    config = str(TRAINING / YML[pairs])
    dpo.main(["tasks.qa_feedback", config, *SMALL, f"logging.save_dir={world}/dpo"])
    rows = metrics(world / "dpo")
    losses = [r["loss/total"] for r in rows if "loss/total" in r]
    assert len(losses) in (2, 4)
    assert losses[0] == pytest.approx(0.6931, abs=1e-3)
    assert losses[-1] < losses[0]
    (last,) = [r for r in rows if "eval/rougeLsum" in r and r["step"] > 0]
    assert {"eval/kl", "eval/length", "eval/oracle/gold"} <= last.keys()
    assert type(load_policy(world / "dpo" / "best")) is type(tiny.policy(kind))
    samples = read_jsonl(world / "dpo" / "samples" / "step-0.jsonl")
    assert any(s["segments"]["implied"] for s in samples) == (pairs == "corrected")
    assert "prompts" in capsys.readouterr().out


ROWS_OF_THE_LIBRARY = ["data.pairs=comparisons", "data.train_file=null"]
ROWS_OF_THE_LIBRARY += ["model.max_generated_len=40", "train.epochs=1"]


def library_rows(world, **changes):
    """The feedback of the world in the library's own format, with the settings to read it."""
    out = world / "rows.jsonl"
    columns = "{prompt: question, responses: [prediction 1, prediction 2, prediction 3,"
    columns += " prediction 4], preferences: preference}"
    files = [f"{world}/train_feedback.json", str(out)]
    data.main(["convert", *files, "format=comparisons", f"columns={columns}"])
    rows = [row | changes for row in read_jsonl(out)]
    write_jsonl(out, rows)
    return out


def test_rows_of_the_library_train(world):
    """DPO needs no task if the rows contain prompts, responses and preferences."""
    tiny.t5("bpe").save(world / "sft")
    settings = [*ROWS_OF_THE_LIBRARY, f"data.feedback_file={library_rows(world)}"]
    config = load_config(DPOConfig, TRAINING / "mini_dpo_config.yml", settings)
    comparisons = load_comparisons(config, {}, no_prompts)
    rows = read_feedback(world / "train_feedback.json")
    expected = make_comparisons(rows, load_examples(world / "train.json"), "preference", "f")
    assert [c.pairs for c in comparisons] == [c.pairs for c in expected]
    assert [c.answers for c in comparisons] == [c.answers for c in expected]
    assert [c.prompt.text for c in comparisons] == [row.question for row in rows]


def no_prompts(path):
    raise AssertionError(f"{path} is not to be read")


def test_rows_without_a_decision_are_refused(world):
    path = library_rows(world, preferences=[])
    settings = [*ROWS_OF_THE_LIBRARY, f"data.feedback_file={path}"]
    config = load_config(DPOConfig, TRAINING / "mini_dpo_config.yml", settings)
    with pytest.raises(UserError, match="rows.jsonl has no pairs to learn from: all of its rows"):
        load_comparisons(config, {}, no_prompts)


@pytest.fixture
def no_model(monkeypatch):
    """Nothing may be loaded."""

    def load(*_, **__):
        pytest.fail("a model was loaded")

    monkeypatch.setattr(train_dpo, "trained_policy", load)


FINE_GRAINED = ["tasks.qa_feedback", str(TRAINING / "mini_fine_grained_dpo_config.yml")]


@pytest.mark.parametrize("argument, message", refusals("dpo"))
def test_refused_before_anything_is_loaded(argument, message, world, no_model):
    with pytest.raises(UserError, match=message):
        dpo.main([*FINE_GRAINED, argument])
    assert not (world / "fine_grained_dpo").exists()


def test_corrected_answers_become_examples(world, monkeypatch, capsys):
    out = world / "train_corrected.json"
    files = [f"feedback={world}/train_feedback.json", f"questions={world}/train.json"]
    monkeypatch.setattr("sys.argv", ["x", *files, f"out={out}"])
    corrected_program.main()
    result = read_json(out)
    rows = read_feedback(world / "train_feedback.json")
    assert [r["answer"] for r in result] == [[r.corrected] for r in rows if r.corrected]
    assert "corrected answers" in capsys.readouterr().out
    questions = {q["text"] for q in read_json(world / "train.json")}
    assert {r["text"] for r in result} <= questions
    assert [p.references[0] for p in load_examples(out)] == [r["answer"][0] for r in result]


@pytest.mark.parametrize("kind", with_slow(["t5", "gpt2"], lambda kind: kind == "gpt2"))
def test_adapters_are_trained_through_the_entry_point(kind, world, monkeypatch):
    """The reference is the policy without its adapters, and later stages load merged weights."""
    tiny.POLICIES[kind]("bpe").save(world / "sft")
    trainers, build = [], train_dpo.build_trainer

    def remember(*arguments):
        trainers.append(build(*arguments))
        return trainers[0]

    monkeypatch.setattr(train_dpo, "build_trainer", remember)
    monkeypatch.setattr(Policy, "copy_sharing_frozen", lambda self: pytest.fail("a second copy"))
    dpo.main(
        [
            "tasks.qa_feedback",
            str(TRAINING / "mini_dpo_config.yml"),
            *SMALL,
            "train.epochs=8",
            "train.lr=1e-2",
            "train.dropout=true",
            "model.lora={r: 2, dropout: 0.1}",
            f"logging.save_dir={world}/dpo",
        ]
    )
    rows = metrics(world / "dpo")
    losses = [r["loss/total"] for r in rows if "loss/total" in r]
    kls = [r["eval/kl"] for r in rows if "eval/kl" in r]
    assert losses[-1] < losses[0]
    assert abs(kls[0]) < 1e-5 and abs(kls[-1]) > 1e-3
    trained = trainers[0].policy.cpu().eval()
    loaded = load_policy(world / "dpo" / "final").eval()
    assert has_adapters(trained.model) and not has_adapters(loaded.model)
    batch = sampled(loaded)
    with torch.no_grad():
        expected_BT, logprobs_BT = trained(*batch)[0].logprobs_BT, loaded(*batch)[0].logprobs_BT
    torch.testing.assert_close(logprobs_BT, expected_BT, atol=1e-5, rtol=0)
