"""Malformed rows in every reader of the task: named with place and reason, quickly.

Nothing is written.
"""

import copy
import json
import random

import pytest
from test_feedback import row, span

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json, write_jsonl
from fgrlhf.cli.command_line import settings_from
from fgrlhf.data.comparisons import MAX_EQUAL_PAIRS, new_words
from fgrlhf.data.problems import Problem, shown
from fgrlhf.text_types import Prompt
from tasks.experiments import probe
from tasks.qa_feedback.data import collect_feedback, mini_model, mini_world
from tasks.qa_feedback.data.language import TOY
from tasks.qa_feedback.data.mini_world import (
    demonstration,
    make_item,
    make_row,
)
from tasks.qa_feedback.data.oracle import judge
from tasks.qa_feedback.feedback import (
    DataError,
    FeedbackRow,
    load_examples,
    read_feedback,
    read_samples,
)
from tasks.qa_feedback.reward_modeling.create_rm_files import Settings as RMSettings
from tasks.qa_feedback.reward_modeling.create_rm_files import create_rm_files
from tasks.qa_feedback.training import corrected_examples as corrected_program
from tasks.qa_feedback.training.comparisons import make_comparisons, prompts_of
from tasks.qa_feedback.validation import example_problems, feedback_problems, sample_problems

ODD = [
    None,
    True,
    False,
    0,
    -1,
    10**30,
    1.5,
    float("nan"),
    float("inf"),
    "",
    " ",
    "\ud83d",
    "x" * 5000,
    "{" * 5000,
    [],
    [[]],
    [None],
    {},
    {"a": 1},
    [1, "x", None, [], {}],
    {"wikipage": 3, "content": None},
    ["Title"],
    "1" * 5000,
    "\x00",
]


def places(value, path=()):
    """The path of every value inside `value`."""
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*path, key))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from places(inner, (*path, i))


def mutated(rng: random.Random, row):
    """`row` with one of its values replaced, removed or given twice."""
    row = copy.deepcopy(row)
    *parents, last = rng.choice([path for path in places(row) if path])
    owner = row
    for key in parents:
        owner = owner[key]
    kind = rng.choice(("replace", "replace", "replace", "remove", "more"))
    if kind == "remove":
        del owner[last]
    elif kind == "more" and isinstance(owner, list):
        owner.insert(rng.randint(0, len(owner)), copy.deepcopy(owner[last]))
    else:
        owner[last] = copy.deepcopy(rng.choice(ODD))
    return row


def sample(index: int) -> dict:
    item, result, rng = (
        make_item(0, "train", index),
        make_row(0, "train", index),
        random.Random(index),
    )
    answers = [TOY.compose(demonstration(rng, item, TOY.rates)) for _ in range(4)]
    return {
        "id": str(index),
        "question": result["question"],
        "passages": result["passages"],
        "predictions": answers,
    }


@pytest.fixture
def world(tmp_path):
    """train.json and samples.jsonl of three questions."""
    write_json(tmp_path / "train.json", [make_row(0, "train", i) for i in range(3)])
    write_jsonl(tmp_path / "samples.jsonl", [sample(i) for i in range(3)])
    return tmp_path


def collect(folder, **changes):
    settings = {"data_dir": folder, "samples": folder / "samples.jsonl", **changes}
    return collect_feedback.collect(
        settings_from(
            collect_feedback.Settings, [f"{key}={value}" for key, value in settings.items()]
        )
    )


# ---- samples -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes, field, reason",
    [
        ({"id": 3}, "id", "must be a string, is an integer"),
        ({"id": None}, "id", "must be a string, is null"),
        ({"id": "0"}, "id", "'0' is also the id of line 1"),
        ({"question": ["x"]}, "question", "must be a string, is an array"),
        ({"question": " "}, "question", "is blank: it must hold a text"),
        ({"passages": "x"}, "passages", "must be an array, is a string"),
        ({"passages": [3]}, "passages[0]", "must be an array, is an integer"),
        ({"passages": [{"wikipage": "T"}]}, "passages[0].content", "missing"),
        (
            {"passages": [{"wikipage": "T", "content": 3}]},
            "passages[0].content",
            "must be a string, is an integer",
        ),
        ({"passages": [["T", None]]}, "passages[0][1]", "must be a string, is null"),
        ({"predictions": {}}, "predictions", "must be an array, is an object"),
        (
            {"predictions": ["a", "b", "c"]},
            "predictions",
            "has 3 entries, must have 4: sample them with num_samples=4",
        ),
        ({"predictions": ["a", "b", "c", 4]}, "predictions[3]", "must be a string, is an integer"),
    ],
)
def test_a_bad_sample_is_named(world, changes, field, reason):
    (world / "samples.jsonl").write_text(
        "\n".join(json.dumps(r) for r in (sample(0), {**sample(1), **changes}))
    )
    with pytest.raises(DataError) as caught:
        collect(world)
    assert [(p.row, p.field, p.reason) for p in caught.value.problems] == [(2, field, reason)]
    assert f"{world}/samples.jsonl, line 2, {field}: {reason}\n" in str(caught.value)
    assert str(caught.value).startswith(
        "1 mistake in 1 row of the data (file, line, field, reason):\n"
    )
    assert not (world / "train_feedback.json").exists()


def test_half_a_surrogate_pair_is_no_text():
    (problem,) = sample_problems([{**sample(0), "predictions": ["a", "b", "c", "\ud83d"]}], "f")
    assert (problem.field, problem.reason) == (
        "predictions[3]",
        "holds half of a surrogate pair at character 0, which is no text",
    )


@pytest.mark.parametrize("key", ["id", "question", "passages", "predictions"])
def test_a_sample_without_a_key_is_named(world, key):
    write_jsonl(world / "samples.jsonl", [{k: v for k, v in sample(0).items() if k != key}, []])
    with pytest.raises(DataError) as caught:
        read_samples(world / "samples.jsonl")
    assert [(p.row, p.field, p.reason) for p in caught.value.problems] == [
        (1, key, "missing"),
        (2, "line", "must be an object, is an array"),
    ]


def test_files_of_the_other_kind_are_named(tmp_path):
    write_json(tmp_path / "train.json", [GOOD] * 3)
    with pytest.raises(
        UserError,
        match=(
            "train.json has questions, not feedback on answers to them. Use .*train_feedback.json"
        ),
    ):
        read_feedback(tmp_path / "train.json")
    write_json(tmp_path / "train_feedback.json", [row()] * 3)
    with pytest.raises(
        UserError,
        match=(
            "train_feedback.json has feedback, not the questions that the feedback is about. Use"
            " .*train.json"
        ),
    ):
        load_examples(tmp_path / "train_feedback.json")
    with pytest.raises(
        UserError, match="samples.jsonl does not exist. Sample answers with .*num_samples=4"
    ):
        read_samples(tmp_path / "samples.jsonl")


def test_samples_of_another_split_or_world_are_refused(world):
    (world / "samples.jsonl").write_text("")
    with pytest.raises(
        UserError,
        match=(
            "samples.jsonl is empty, so it has no samples. Sample answers with .*generate.sh"
            " num_samples=4"
        ),
    ):
        collect(world)
    write_jsonl(world / "samples.jsonl", [{**sample(1), "id": "0"}])
    with pytest.raises(
        UserError,
        match=(
            "line 1: the sample's id is 0, but train.json has another question in that row.*split="
        ),
    ):
        collect(world)
    write_jsonl(world / "samples.jsonl", [{**sample(1), "id": "x" * 10_000}])
    with pytest.raises(
        UserError, match=r"line 1: the sample's id is x+ \.\.\. x+, but train.json has no such row"
    ):
        collect(world)
    assert not (world / "train_feedback.json").exists()


@pytest.mark.parametrize("split", ["../train", "a/b", "", ".", "..", ".train", "a\\b", "tr\nain"])
@pytest.mark.parametrize("program", [collect_feedback, probe])
def test_a_split_is_a_plain_name(program, split):
    settings = {"data_dir": "d", "samples": "s", "output_dir": "o", "split": split}
    known = {key: value for key, value in settings.items() if key in program.Settings.model_fields}
    with pytest.raises(
        UserError, match="split: .*is not the plain name of a split such as `train`"
    ):
        settings_from(program.Settings, [f"{key}={value}" for key, value in known.items()])


# ---- rows ----------------------------------------------------------------------------------------


GOOD = {"text": "question: q", "question": "q", "passages": [["T", "s"]], "answer": ["a"]}


@pytest.mark.parametrize(
    "changes, field",
    [
        ({"text": ""}, "text"),
        ({"text": " \n\xa0"}, "text"),
        ({"question": ""}, "question"),
        ({"answer": ["a", "\t"]}, "answer[1]"),
    ],
)
def test_blank_examples_are_refused(changes, field):
    assert [(p.field, p.reason) for p in example_problems([{**GOOD, **changes}], "f")] == [
        (field, "is blank: it must hold a text")
    ]


def test_a_blank_question_of_feedback_is_refused():
    assert [(p.field, p.reason) for p in feedback_problems([row(question=" ")], "f")] == [
        ("question", "is blank: it must hold a text")
    ]


@pytest.mark.parametrize("value", [True, False, 1.0, "1", None, [1]])
def test_preferences_are_integers(value):
    problems = feedback_problems([row(preference=[value] * 6)], "f")
    assert [p.field for p in problems] == [f"preference[{i}]" for i in range(6)]
    assert (
        problems[0].reason == f"{value!r} is none of 0 (tie), 1 (first better), 2 (second better)"
    )


@pytest.mark.parametrize("read", [read_feedback, load_examples])
def test_an_empty_file_is_refused(tmp_path, read):
    (tmp_path / "f.json").write_text("[]")
    with pytest.raises(UserError, match="f.json has no rows: it is an empty JSON array"):
        read(tmp_path / "f.json")
    with pytest.raises(UserError, match="is a folder"):
        read(tmp_path)
    with pytest.raises(UserError, match="does not exist"):
        read(tmp_path / ("x" * 5000))


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
    assert problem.field == "feedback.errors[0].explanation" and len(problem.reason) < 220
    assert (
        'is not valid JSON or is too large; write {"passage_id":1,"sentence_id":[2]}'
        in problem.reason
    )


def test_an_explanation_of_numbers_below_the_limit():
    many = '{"passage_id":' + "1" * 4000 + ',"sentence_id":[NaN,true,1e400]}'
    problems = feedback_problems([row([span(0, 7, "Wrong-Grounding", many)])], "f")
    assert [p.field.rpartition(".")[2] for p in problems] == [
        "passage_id",
        "sentence_id[0]",
        "sentence_id[1]",
        "sentence_id[2]",
    ]
    assert all(len(str(p)) < 220 for p in problems)


def test_long_values_are_shortened():
    bad = row([span(0, 7, "W" * 200_000)], preference=["p" * 200_000, *[0] * 5])
    bad["feedback"]["errors"][0]["start"] = 10**4000
    problems = feedback_problems([bad], "f")
    assert [p.field for p in problems] == [
        "feedback.errors[0].error type",
        *(f"feedback.errors[0].{end}" for end in ("start", "end")),
        "preference[0]",
    ]
    assert all(len(str(p)) < 300 for p in problems)


def test_shown_never_raises():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    assert (
        shown(10**5000) == "an integer too large to show"
        and shown(deep) == "an array too large to show"
    )
    assert (
        shown("\ud83d") == "'\\ud83d'"
        and shown("a\nb") == "'a\\nb'"
        and len(shown("x" * 10**6)) <= 80
    )


def test_a_problem_of_many_rows_is_one_line():
    few = [Problem("f", row, "a", "wrong") for row in range(4)]
    many = [Problem("f", row, "b", "worse", "line") for row in (3, 4, 7, 8, 12, 30)]
    lines = str(DataError([*few[:2], *many, *few[2:]])).splitlines()
    assert lines[0].startswith("10 mistakes in 9 rows")
    assert lines[1:-1] == [
        "  f, row 0, a: wrong",
        "  f, row 1, a: wrong",
        "  f, lines 3, 4, 7, 8 and 2 more, b: worse",
        "  f, row 2, a: wrong",
        "  f, row 3, a: wrong",
    ]


def test_a_message_lists_twenty_problems(tmp_path):
    for count, last in ((20, "answer[19]"), (21, "... and 1 more"), (1200, "... and 1180 more")):
        rows = [{**GOOD, "answer": ["a"] * number + [3]} for number in range(count)]
        write_json(tmp_path / "f.json", rows)
        with pytest.raises(DataError) as caught:
            load_examples(tmp_path / "f.json")
        lines = str(caught.value).splitlines()
        assert (
            len(caught.value.problems) == count
            and len(lines) == min(count, 21) + 2
            and last in lines[-2]
        )
        assert lines[0].startswith(
            f"{count:,} mistakes in {count:,} rows of the data (file, row counted from 0, "
        )


# ---- mutations: a sample of the fault campaign ---------------------------------------------------


FULL = row([span(0, 7), span(31, 32, "Wrong-Grounding", '{"passage_id":1,"sentence_id":[0,2]}')])
FULL["feedback"]["missing-info"] = [
    {"error type": "Missing-Answer", "passage_id": 1, "sentence_id": [1]}
]


@pytest.mark.parametrize(
    "problems, good",
    [(feedback_problems, FULL), (example_problems, GOOD), (sample_problems, sample(0))],
)
def test_mutated_rows_are_refused_or_usable(problems, good):
    rng, refused = random.Random(0), 0
    assert problems([good], "f") == []
    for _ in range(1500):
        result = problems([good, mutated(rng, good)], "f")
        refused += bool(result)
        assert all(len(str(problem)) < 400 for problem in result)
    assert refused > 750


def test_mutated_samples_are_refused_or_annotated(world):
    rng, done = random.Random(1), 0
    for _ in range(40):
        lines = [sample(0), mutated(rng, sample(1))]
        (world / "samples.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
        try:
            read_feedback(collect(world))
            done += 1
        except UserError:
            pass
    assert 2 < done < 38


# ---- the other readers ---------------------------------------------------------------------------


def test_create_rm_files_refuses_malformed_rows_before_writing(tmp_path):
    rng = random.Random(2)
    for _ in range(40):
        bad = mutated(rng, FULL)
        if not feedback_problems([bad], "f"):
            continue
        for split in ("train", "dev"):
            (tmp_path / f"{split}_feedback.json").write_text(json.dumps([FULL, bad]))
        with pytest.raises(UserError):
            create_rm_files(RMSettings(data_dir=str(tmp_path)))
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            "dev_feedback.json",
            "train_feedback.json",
        ]


@pytest.mark.parametrize("rows", [[3], [{"text": 1}], [{**GOOD, "answer": "a"}], [], {}])
def test_the_model_is_made_of_good_rows_only(tmp_path, rows):
    write_json(tmp_path / "train.json", rows)
    with pytest.raises(UserError, match="train.json"):
        mini_model.write_model(
            mini_model.Settings(data_dir=str(tmp_path), output_dir=str(tmp_path / "model"))
        )
    assert not (tmp_path / "model").exists()


def test_the_model_is_not_written_over_a_file(tmp_path):
    write_json(tmp_path / "train.json", [GOOD])
    (tmp_path / "model").write_text("mine")
    with pytest.raises(UserError, match="model is a file, so no folder can be made there"):
        mini_model.write_model(
            mini_model.Settings(data_dir=str(tmp_path), output_dir=str(tmp_path / "model"))
        )


@pytest.mark.parametrize("value", ["0", "-1", "1e30", "true", "9" * 30])
def test_sizes_of_the_world_are_positive_and_bounded(value):
    with pytest.raises(UserError, match="dev: "):
        settings_from(mini_world.Settings, ["data_dir=d", f"dev={value}"])


def test_the_probe_needs_a_world_and_a_reward_model(world, tmp_path):
    settings = {"data_dir": str(world), "output_dir": str(tmp_path / "none"), "split": "train"}
    with pytest.raises(
        UserError, match="none has none of the reward models rel_rm, .*Train them first"
    ):
        probe.main(probe.Settings(**settings))
    write_json(world / "train.json", [GOOD])
    with pytest.raises(UserError, match="train.json has questions that are not of the mini world"):
        probe.main(probe.Settings(**settings))


def test_corrected_examples_name_their_own_setting(tmp_path, monkeypatch):
    write_json(
        tmp_path / "f.json",
        [{**FULL, "feedback": {**FULL["feedback"], "corrected-prediction": "x"}}],
    )
    write_json(tmp_path / "q.json", [GOOD])
    monkeypatch.setattr(
        "sys.argv",
        [
            "x",
            f"feedback={tmp_path}/f.json",
            f"questions={tmp_path}/q.json",
            f"out={tmp_path}/o.json",
        ],
    )
    with pytest.raises(
        UserError,
        match="no row of `questions` has .* Set questions=... to the file that the questions came",
    ):
        corrected_program.main()
    monkeypatch.setattr(
        "sys.argv",
        [
            "x",
            f"feedback={tmp_path}/f.json",
            f"questions={tmp_path}/q.json",
            f"out={tmp_path}/./f.json",
        ],
    )
    with pytest.raises(
        UserError, match="f.json is read by this program, so it cannot be its output too"
    ):
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


def test_answers_of_two_hundred_thousand_characters_are_judged():
    result = make_row(0, "train", 0)
    answer = (result["answer"][0] + " ") * (200_000 // len(result["answer"][0]))
    truth = judge(result["question"], result["passages"], answer)
    assert len(truth.sentences) > 1000 and truth.completeness == 1
