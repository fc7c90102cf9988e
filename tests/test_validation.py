"""Malformed rows in every reader of the task: named with place and reason, quickly.

Nothing is written.
"""

import random

import pytest
from test_feedback import row, span

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json, write_jsonl
from fgrlhf.cli.command_line import settings_from
from fgrlhf.data.comparisons import MAX_EQUAL_PAIRS, new_words
from fgrlhf.text_types import Prompt
from tasks.experiments import probe
from tasks.qa_feedback.data import collect_feedback
from tasks.qa_feedback.data.language import TOY
from tasks.qa_feedback.data.mini_world import demonstration, make_item, make_row
from tasks.qa_feedback.feedback import FeedbackRow, load_examples, read_feedback, read_samples
from tasks.qa_feedback.training import corrected_examples as corrected_program
from tasks.qa_feedback.training.comparisons import make_comparisons, prompts_of
from tasks.qa_feedback.validation import feedback_problems


def sample(index: int) -> dict:
    item, result = make_item(0, "train", index), make_row(0, "train", index)
    rng = random.Random(index)
    answers = [TOY.compose(demonstration(rng, item, TOY.rates)) for _ in range(4)]
    asked = {key: result[key] for key in ("question", "passages")}
    return {"id": str(index), **asked, "predictions": answers}


@pytest.fixture
def world(tmp_path):
    """train.json and samples.jsonl of three questions."""
    write_json(tmp_path / "train.json", [make_row(0, "train", i) for i in range(3)])
    write_jsonl(tmp_path / "samples.jsonl", [sample(i) for i in range(3)])
    return tmp_path


def collect(folder, **changes):
    settings = {"data_dir": folder, "samples": folder / "samples.jsonl", **changes}
    overrides = [f"{key}={value}" for key, value in settings.items()]
    return collect_feedback.collect(
        settings_from(collect_feedback.CollectFeedbackSettings, overrides)
    )


# ---- samples -------------------------------------------------------------------------------------


def test_files_of_the_other_kind_are_named(tmp_path):
    write_json(tmp_path / "train.json", [GOOD] * 3)
    message = "train.json has questions, not feedback on answers to them. Use .*train_feedback.json"
    with pytest.raises(UserError, match=message):
        read_feedback(tmp_path / "train.json")
    write_json(tmp_path / "train_feedback.json", [row()] * 3)
    message = "train_feedback.json has feedback, not the questions that the feedback is about. Use"
    with pytest.raises(UserError, match=f"{message} .*train.json"):
        load_examples(tmp_path / "train_feedback.json")
    message = "samples.jsonl does not exist. Sample answers with .*num_samples=4"
    with pytest.raises(UserError, match=message):
        read_samples(tmp_path / "samples.jsonl")


def test_samples_of_another_split_or_world_are_refused(world):
    (world / "samples.jsonl").write_text("")
    message = "samples.jsonl is empty, so it has no samples. Sample answers with .*generate.sh"
    with pytest.raises(UserError, match=f"{message} num_samples=4"):
        collect(world)
    write_jsonl(world / "samples.jsonl", [{**sample(1), "id": "0"}])
    message = "line 1: the sample's id is 0, but train.json has another question in that row"
    with pytest.raises(UserError, match=f"{message}.*split="):
        collect(world)
    write_jsonl(world / "samples.jsonl", [{**sample(1), "id": "x" * 10_000}])
    message = r"line 1: the sample's id is x+ \.\.\. x+, but train.json has no such row"
    with pytest.raises(UserError, match=message):
        collect(world)
    assert not (world / "train_feedback.json").exists()


# ---- rows ----------------------------------------------------------------------------------------


GOOD = {"text": "question: q", "question": "q", "passages": [["T", "s"]], "answer": ["a"]}


EXPLANATIONS = {
    "deep": '{"passage_id":' * 100_000,
    "deep lists": '{"sentence_id":' + "[" * 100_000,
    "deep and closed": '{"passage_id":1,"sentence_id":' + "[" * 100_000 + "]" * 100_000 + "}",
    "digits": '{"passage_id":1,"sentence_id":[' + "1" * 5000 + "]}",
    "not closed": '{"passage_id":1',
}


@pytest.mark.parametrize("name", EXPLANATIONS)
def test_hostile_explanations_are_one_short_line(name):
    bad = row([span(0, 7, "Wrong-Grounding", EXPLANATIONS[name])])
    (problem,) = feedback_problems([bad], "f")
    assert problem.key == "feedback.errors[0].explanation" and len(problem.reason) < 220
    assert (
        'is not valid JSON or is too large; write {"passage_id":1,"sentence_id":[2]}'
        in problem.reason
    )


def test_an_explanation_of_numbers_below_the_limit():
    many = '{"passage_id":' + "1" * 4000 + ',"sentence_id":[NaN,true,1e400]}'
    problems = feedback_problems([row([span(0, 7, "Wrong-Grounding", many)])], "f")
    keys = ["passage_id", *(f"sentence_id[{i}]" for i in range(3))]
    assert sorted(p.key.rpartition(".")[2] for p in problems) == keys
    assert all(len(str(p)) < 220 for p in problems)


FULL = row([span(0, 7), span(31, 32, "Wrong-Grounding", '{"passage_id":1,"sentence_id":[0,2]}')])
FULL["feedback"]["missing-info"] = [
    {"error type": "Missing-Answer", "passage_id": 1, "sentence_id": [1]}
]


# ---- the other readers ---------------------------------------------------------------------------


def test_the_probe_needs_a_world_and_a_reward_model(world, tmp_path):
    settings = {"data_dir": str(world), "output_dir": str(tmp_path / "none"), "split": "train"}
    message = "none has none of the reward models rel_rm, .*Train them first"
    with pytest.raises(UserError, match=message):
        probe.main(probe.ProbeSettings(**settings))
    write_json(world / "train.json", [GOOD])
    with pytest.raises(UserError, match="train.json has questions that are not of the mini world"):
        probe.main(probe.ProbeSettings(**settings))


def test_corrected_examples_name_their_own_setting(tmp_path, monkeypatch):
    feedback = {**FULL["feedback"], "corrected-prediction": "x"}
    write_json(tmp_path / "f.json", [{**FULL, "feedback": feedback}])
    write_json(tmp_path / "q.json", [GOOD])
    files = ["x", f"feedback={tmp_path}/f.json", f"questions={tmp_path}/q.json"]
    monkeypatch.setattr("sys.argv", [*files, f"out={tmp_path}/o.json"])
    message = "no row of `questions` has .* Set questions=... to the file that the questions came"
    with pytest.raises(UserError, match=message):
        corrected_program.main()
    monkeypatch.setattr("sys.argv", [*files, f"out={tmp_path}/./f.json"])
    message = "f.json is the input, so it cannot be the output too"
    with pytest.raises(UserError, match=message):
        corrected_program.main()


# ---- long texts ----------------------------------------------------------------------------------


def test_texts_of_one_repeated_word_are_not_aligned():
    before, after = "a " * 10_000, "a " * 5000 + "b " + "a " * 5000
    assert MAX_EQUAL_PAIRS < 10_000**2
    assert [after[start:end] for start, end in new_words(before, after)] == ["b"]
    assert new_words(before, before) == () and new_words(before + "b", before) == ()
    ((start, end),) = new_words("x " + before, "y " + before + "z")
    assert (start, end) == (0, 20_003)


def test_long_questions_are_shortened_in_errors():
    rows = [FeedbackRow(row(question="q" * 200_000))]
    with pytest.raises(UserError) as caught:
        prompts_of(rows, [Prompt("0", "t", meta=GOOD)], "f.json")
    assert len(str(caught.value)) < 600
    with pytest.raises(UserError):
        make_comparisons(rows, [], "corrected", "f.json")
