"""Tasks: loading by name, their prompts and code, and checks of what their functions return."""

import hashlib
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, write_jsonl
from fgrlhf.evaluation import check_metrics_fit, metric_columns
from fgrlhf.load import code_of, data_of, load_task, prompts_file
from fgrlhf.reward import CombinedReward
from fgrlhf.rewards.kind import RuleReward
from fgrlhf.runs.occupied import note_changed_code
from fgrlhf.task import Task
from fgrlhf.task_config import rl_config
from fgrlhf.text_types import Prompt, SegmentScore

PROMPT = Prompt("7", "say hello")


# ---- loading -------------------------------------------------------------------------------------


def test_a_task_is_found_by_any_of_its_names():
    assert load_task("hanoi") is load_task("tasks.hanoi") is load_task("tasks/hanoi/")


def test_an_unknown_task_gets_a_suggestion():
    with pytest.raises(UserError, match="no task `hanio`: did you mean `hanoi`.*numbers"):
        load_task("hanio")
    with pytest.raises(UserError, match="no task `tasks.hanio`: did you mean `hanoi`"):
        load_task("tasks.hanio")


@pytest.mark.parametrize("name", ["config.yml", "tasks/hanoi/mini_dense_config.yml", "a.yaml"])
def test_a_config_in_the_place_of_the_task(name):
    with pytest.raises(UserError, match="is a config, not a task: name the task before it"):
        load_task(name)


@pytest.mark.parametrize("text", ["task = 1", "TASK = {'name': 'my_riddles'}"])
def test_a_module_that_defines_no_task_is_named(text, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_riddles.task", raising=False)
    monkeypatch.delitem(sys.modules, "my_riddles", raising=False)
    (tmp_path / "my_riddles").mkdir()
    (tmp_path / "my_riddles" / "task.py").write_text(text)
    with pytest.raises(UserError, match=r"^my_riddles/task.py defines no task: write TASK = Task"):
        load_task("my_riddles")


@pytest.mark.parametrize("name", ["my_essays", "tasks.my_essays", "tasks/my_essays"])
def test_feedback_pages_without_a_task_get_its_lines(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pages = tmp_path / "tasks" / "my_essays" / "interface_html"
    pages.mkdir(parents=True)
    (pages / "schema.js").touch()
    with pytest.raises(UserError, match="write tasks/my_essays/task.py with these") as error:
        load_task(name)
    *_, text, imports, definition = str(error.value).split("\n")
    task = tmp_path / "my_essays_of_message.py"
    task.write_text("\n".join([text, imports, definition]))
    monkeypatch.syspath_prepend(tmp_path)
    assert load_task("my_essays_of_message").name == "my_essays"


class WithoutKind(RuleReward):
    """A reward kind that does not declare its name."""


@pytest.mark.parametrize("kind", [WithoutKind, CombinedReward, 3])
def test_a_reward_kind_that_no_config_can_select_is_refused(kind):
    with pytest.raises(UserError, match="`mine` in the rewards of the task `t` is .* must be a"):
        rl_config(Task(name="t", rewards={"mine": kind}))


def test_the_code_of_a_task_is_its_folder_without_tests():
    names = [
        "__init__.py",
        "data/__init__.py",
        "data/demonstrations.py",
        "puzzle.py",
        "reward.py",
        "task.py",
    ]
    assert code_of(load_task("hanoi")) == {name: f"tasks/hanoi/{name}" for name in names}
    assert code_of(Task(name="elsewhere")) == {}


def test_the_data_of_a_task_that_generates_its_prompts():
    tasks = Path(__file__).parents[1] / "tasks"
    assert data_of(load_task("sentiment")) == [str(tasks / "sentiment/data/openings.txt")]
    assert str(tasks / "connections/data/categories.txt") in data_of(load_task("connections"))
    assert data_of(load_task("imdb")) == []  # its prompts come from files that a config names
    assert data_of(Task(name="elsewhere", generate=lambda split, seed: [])) == []


def sha256_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_a_change_of_the_code_is_noted(tmp_path, monkeypatch, capsys):
    code = tmp_path / "reward.py"
    code.write_text("1")
    monkeypatch.setattr("fgrlhf.runs.occupied.code_of", lambda task: {"reward.py": str(code)})
    config: Any = {}  # names no class of the user
    run = tmp_path / "run"
    run.mkdir()
    for text, has_checkpoint, is_noted in (
        ("0", False, False),
        ("1", False, False),  # the first start left no checkpoint, so the run begins anew
        ("1", True, False),
        ("2", True, True),
    ):
        code.write_text(text)
        if has_checkpoint:
            (run / "checkpoints" / "step-1").mkdir(parents=True, exist_ok=True)
        note_changed_code(Task(name="t"), config, run)
        printed = capsys.readouterr().out
        assert (f"note: reward.py changed since the run in {run} began" in printed) == is_noted
    assert read_json(run / "task_code.json") == {"reward.py": sha256_of("1")}  # when it began


# ---- generated prompts ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "prompts, split, message",
    [
        ([], "dev", "generated no prompts for the split dev"),
        ([PROMPT, PROMPT], "dev", "two prompts with the id `7`"),
        ([PROMPT], "valid", "splits train, dev, test, not of `valid`"),
    ],
)
def test_generated_prompts_are_checked(prompts, split, message):
    task = Task(name="t", generate=lambda split, seed: prompts)
    with pytest.raises(UserError, match=message):
        task.prompts(None, split)


def test_prompts_of_a_file_have_ids_of_their_own(tmp_path):
    rows = [{"id": "a", "prompt": "x"}, {"id": "b", "prompt": "y"}, {"id": "a", "prompt": "z"}]
    path = tmp_path / "dev.jsonl"
    write_jsonl(path, rows)
    with pytest.raises(UserError, match=f"{path} has two prompts with the id `a`"):
        Task(name="t").prompts(path, "dev")
    write_jsonl(path, rows[:2])
    assert [prompt.id for prompt in Task(name="t").prompts(path, "dev")] == ["a", "b"]


def test_prompts_may_come_from_a_generator():
    task = Task(name="t", generate=lambda split, seed: (prompt for prompt in [PROMPT]))  # type: ignore
    assert task.prompts(None, "dev") == [PROMPT]


def test_a_task_without_prompts_names_the_setting_of_the_command():
    with pytest.raises(UserError, match=r"for dev, such as data.dev_file=\.\.\."):
        Task(name="t").prompts(None, "dev")
    with pytest.raises(UserError, match=r"for dev, such as data_dir=\.\.\."):
        Task(name="t").prompts(None, "dev", key="data_dir")


def test_references_are_a_tuple_of_texts():
    with pytest.raises(ValueError, match="references must be a tuple of texts, not 'ant'"):
        Prompt("0", "an insect", "ant")  # type: ignore


# ---- rewards and metrics of a task ---------------------------------------------------------------


class Returns:
    """A reward that returns a fixed value."""

    def __init__(self, result):
        self.result = result

    def segment_scores(self, prompts, texts):
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


@pytest.mark.parametrize(
    "result, message",
    [
        (None, "None for 1 responses"),
        ([], "0 results for 1 responses"),
        ([[], []], "2 results for 1 responses"),
        ([0.5], "0.5 for the response 'hello': a list of SegmentScore"),
        ([[(0, 2)]], r"must be a SegmentScore, or a tuple \(start, end, value\)"),
        ([[(0, 6, 1.0)]], "ends after the response, which has 5 characters"),
        ([[SegmentScore(0, 2, torch.tensor(1.0))]], r"value must be a number, such as float\(x\)"),  # type: ignore
        ([[SegmentScore(0, 2, "1")]], "value must be a number"),  # type: ignore
        ([[SegmentScore(0, 6, 1.0)]], "ends after the response, which has 5 characters"),
        ([[SegmentScore(0, 2.5, 1.0)]], "start and end of its span must be whole numbers"),  # type: ignore
        ([[SegmentScore(np.int64(0), 2, 1.0)]], "must be whole numbers"),  # type: ignore
        ([[SegmentScore(0, None, 1.0, 7)]], "its label must be text"),  # type: ignore
    ],
)
def test_what_a_reward_returns_is_checked(result, message):
    reward = CombinedReward({"mine": Returns(result)})
    with pytest.raises(UserError, match=f"the reward `mine` returned .*{message}"):
        reward.segment_scores([PROMPT], ["hello"])


def test_tuples_are_scores():
    reward = CombinedReward({"mine": Returns([[(0, 2, 1.0), (2, None, 3, "end")]])})
    (scores,) = reward.segment_scores([PROMPT], ["hello"])["mine"]
    assert scores == [SegmentScore(0, 2, 1.0), SegmentScore(2, None, 3, "end")]


def test_an_error_inside_a_reward_names_the_reward():
    reward = CombinedReward({"mine": Returns(ZeroDivisionError("letter"))})
    with pytest.raises(ZeroDivisionError) as caught:
        reward.segment_scores([PROMPT], ["hello"])
    assert caught.value.__notes__ == ["in the reward `mine` (Returns)"]


def test_a_key_that_a_row_lacks_is_named():
    class Facts:
        def segment_scores(self, prompts, texts):
            return [[SegmentScore(0, 0, float(len(prompt.meta["facts"])))] for prompt in prompts]

    prompts = [Prompt("7", "x", meta={"facts": [1]}), Prompt("8", "y", meta={"topic": "z"})]
    with pytest.raises(KeyError) as caught:
        CombinedReward({"mine": Facts()}).segment_scores(prompts, ["", ""])
    text = "\n".join(caught.value.__notes__)
    assert "prompt 8 has no 'facts'" in text and "from the file of the prompts: topic" in text


@pytest.mark.parametrize(
    "result, message",
    [
        (0.5, "a metric of a task returns {name: number}"),
        ({"reward": 1.0}, "`reward` is the name of another column"),
        ({"reward/mine": 1.0}, "`reward/mine` is the name of another column"),
        ({"solved": math.nan}, "`solved` must be a finite number, or None"),
        ({"solved": "yes"}, "`solved` must be a finite number, or None"),
        ({1: 0.5}, "the name of a number must be text, not 1"),
    ],
)
def test_what_a_metric_returns_is_checked(result, message):
    def solved(prompt, text):
        return result

    with pytest.raises(UserError, match=f"the metric solved returned .* for prompt 7: {message}"):
        metric_columns(solved, [PROMPT], ["hello"])


def count_facts(prompt, text):
    return {"facts": float(len(prompt.meta["facts"]) + len(text))}


FACTS = [Prompt("7", "x", meta={"facts": [1]}), Prompt("8", "y", meta={"topic": "z"})]


def test_a_metric_names_the_key_that_a_prompt_lacks():
    assert metric_columns(count_facts, FACTS[:1], ["ab"]) == [{"facts": 3.0}]
    message = "metric count_facts reads the key 'facts' of the prompts.* prompt 8 lacks.*: topic"
    with pytest.raises(UserError, match=message):
        metric_columns(count_facts, FACTS, ["", ""])


def test_another_missing_key_in_a_metric_is_an_error_of_its_code():
    with pytest.raises(KeyError):
        metric_columns(lambda prompt, text: {"n": {}[text]}, FACTS, ["", ""])


def test_metrics_are_checked_before_any_response():
    check_metrics_fit([count_facts], FACTS[:1], "dev.json")
    with pytest.raises(UserError, match="dev.json: the metric count_facts .* prompt 8 lacks"):
        check_metrics_fit([count_facts], FACTS, "dev.json")
    # an error with an invented response says nothing about real ones
    check_metrics_fit([lambda prompt, text: {"n": 1 / len(text)}], FACTS, "dev.json")


def test_a_metric_may_not_apply():
    columns = metric_columns(lambda prompt, text: {"solved": None, "n": 3}, [PROMPT], ["hello"])
    assert columns == [{"solved": None, "n": 3}]


def test_the_prompts_of_a_split_may_be_json_lines(tmp_path):
    lines, array = tmp_path / "v1.dev.jsonl", tmp_path / "v1.dev.json"
    assert prompts_file(None, "v1.dev") is None and prompts_file(tmp_path, "v1.dev") == array
    lines.touch()
    assert prompts_file(str(tmp_path), "v1.dev") == lines
    array.touch()
    assert prompts_file(tmp_path, "v1.dev") == array
