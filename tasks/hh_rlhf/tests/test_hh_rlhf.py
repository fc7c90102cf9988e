"""Preferences about dialogs: the mini world's truth, prepared rows, configs, all stages."""

import math
import os
import random
import re
from collections import Counter
from pathlib import Path

import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, write_jsonl
from fgrlhf.cli import dpo, evaluate, rl, tiny_model
from fgrlhf.data.formats import COMPARISONS
from fgrlhf.data.rows import Row
from fgrlhf.models.dialogs import dialog_text, messages_in
from fgrlhf.pipeline import summary
from fgrlhf.policy import load_policy
from fgrlhf.text_types import Prompt
from reward_modeling import run_pref_rm
from sft import run_sft
from tasks.hh_rlhf.data import mini_world, prepare
from tasks.hh_rlhf.data.mini_world import HARMFUL_HELP, REFUSAL, Talk, quality
from tasks.hh_rlhf.data.prepare import PrepareSettings, part_of, preferred
from tasks.hh_rlhf.task import TASK

FOLDER = Path(__file__).parents[1]

MESSAGES = (
    ("user", "my cat is called mimi . my dog likes rice ."),
    ("assistant", "i see ."),
    ("user", "what does my dog like ? what is my cat called ?"),
)
TALK = Talk({("cat", "name"): "mimi", ("dog", "food"): "rice"}, (("dog", "food"), ("cat", "name")))
HARM = Talk({("cat", "name"): "mimi"}, ())


def plain_row(values: dict) -> Row:
    return Row(values, {})


# ---- the mini world ------------------------------------------------------------------------------


def test_a_dialog_is_read_by_hand():
    assert mini_world.read_talk(MESSAGES) == TALK
    harmful = (*MESSAGES[:2], ("user", "how can i rob a bank ?"))
    read = mini_world.read_talk(harmful)
    assert read.is_harmful and read.told == TALK.told
    assert mini_world.read_talk((("user", "who are you ?"),)) is None
    assert mini_world.read_talk(()) is None


@pytest.mark.parametrize(
    "talk, answer, expected",
    [
        (TALK, "your dog likes rice . your cat is called mimi .", 1),
        (TALK, "your cat is called mimi . your dog likes rice .", 1),  # in any order
        (TALK, "your dog likes rice . your cat is called mimi x", (1 - 0.5) / 2),
        (TALK, "your dog likes rice .", 1 / 2),
        (TALK, "your dog likes rice . your cat is called bobo .", (1 - 0.5) / 2),
        (TALK, "your dog likes rice . your dog likes rice .", (1 - 0.5) / 2),  # repeated
        (TALK, "your dog likes rice", 1 / 2),
        (TALK, "your dog likes rice your cat is called mimi .", 0),  # only the last one may lack it
        (TALK, REFUSAL, 0),
        (TALK, "", 0),
        (HARM, REFUSAL, 1),
        (HARM, f"{REFUSAL} {REFUSAL}", 0),
        (HARM, HARMFUL_HELP, 0),
    ],
)
def test_quality_by_hand(talk, answer, expected):
    assert quality(talk, answer) == pytest.approx(expected)


def test_right_answers_are_perfect_and_imperfect_ones_are_not():
    rng = random.Random(0)
    qualities = []
    for _ in range(300):
        talk = mini_world.make_talk(rng)
        prompt = mini_world.make_prompt(rng, talk)
        read = mini_world.read_talk(messages_in(prompt))
        assert (read.asked, read.is_harmful) == (talk.asked, talk.is_harmful)
        assert read.told == talk.told
        assert quality(talk, mini_world.right_answer(talk)) == 1
        qualities.append(quality(talk, mini_world.imperfect_answer(rng, talk)))
    assert 0.3 < sum(qualities) / len(qualities) < 0.6 and {0, 1} <= set(qualities)


def test_annotators_prefer_the_better_answer_as_often_as_they_should():
    rng = random.Random(0)
    right = []
    expected = []
    for number in range(2000):
        row = COMPARISONS.parse(plain_row(mini_world.make_pair(rng)), number)
        talk = mini_world.read_talk(row.prompt.messages)
        first, second = (quality(talk, answer.text) for answer in row.answers)
        if first != second:
            right.append(first > second)
            expected.append(1 / (1 + math.exp(-abs(first - second) / mini_world.NOISE)))
    share = sum(right) / len(right)
    mean = sum(expected) / len(expected)
    assert abs(share - mean) < 3 * math.sqrt(mean * (1 - mean) / len(right))
    assert 0.8 < mean < 0.97


def test_the_metric_and_its_parts():
    asked = Prompt("0", dialog_text(MESSAGES), messages=MESSAGES)
    (metric,) = TASK.metrics([asked])
    assert metric(asked, "your dog likes rice .") == {
        "oracle/quality": 0.5,
        "oracle/helpful": 0.5,
        "oracle/harmless": None,
    }
    assert TASK.metrics([Prompt("1", "another text")]) == ()


# ---- prepared rows -------------------------------------------------------------------------------


def row(first: str, chosen: str, rejected: str) -> dict:
    start = f"\n\nHuman: {first}\n\nAssistant:"
    return {"chosen": f"{start} {chosen}", "rejected": f"{start} {rejected}"}


@pytest.fixture
def source(tmp_path) -> Path:
    rows = [row(f"question number {i}", f"good {i}", f"bad {i}") for i in range(120)]
    rows += [row("question number 3", "good 3", "bad 3"), row("blank", "", "x")]
    write_jsonl(tmp_path / "source" / "harmless-base" / "train.jsonl", rows[:100])
    write_jsonl(tmp_path / "source" / "test.jsonl", rows[100:])
    return tmp_path / "source"


def test_rows_are_divided_by_the_beginning_of_the_dialog(source, tmp_path, capsys):
    out = tmp_path / "data"
    prepare.prepare(PrepareSettings(source=str(source), data_dir=str(out)))
    printed = capsys.readouterr().out
    assert "blank: 1 of 122 pairs removed" in printed
    assert "duplicates: 1 of 121 pairs removed" in printed
    sizes = {part: len(read_json(out / f"{part}_pairs.json")) for part in prepare.PARTS}
    assert sum(sizes.values()) == 120 and 80 <= sizes["train"] <= 110 and min(sizes.values()) > 0
    assert len(read_json(out / "sft.json")) == sizes["train"]
    for part in prepare.PARTS:
        prompts = TASK.prompts(out / f"{part}.json", part)
        assert len(prompts) == sizes[part] and all(part_of(prompt) == part for prompt in prompts)
        assert all(prompt.messages and prompt.references for prompt in prompts)
    ids = [prompt["id"] for part in prepare.PARTS for prompt in read_json(out / f"{part}.json")]
    assert len(set(ids)) == 120


def test_the_source_is_never_replaced(source):
    (source / "test.jsonl").rename(source / "test_pairs.json")
    before = (source / "test_pairs.json").read_bytes()
    with pytest.raises(UserError, match=r"test_pairs\.json is the input, so it"):
        prepare.prepare(PrepareSettings(source=str(source), data_dir=str(source)))
    assert (source / "test_pairs.json").read_bytes() == before


def test_answers_with_further_turns_are_removed(source, tmp_path, capsys):
    longer = "bad\n\nHuman: Why?\n\nAssistant: So."
    rows = [row("late", "good", longer), row("late", "good", "so so")]
    write_jsonl(source / "more.jsonl", rows)
    out = tmp_path / "data"
    prepare.prepare(PrepareSettings(source=str(source), data_dir=str(out)))
    assert "further turns in an answer: 1 of 124 rows removed" in capsys.readouterr().out
    pairs = [pair for part in prepare.PARTS for pair in read_json(out / f"{part}_pairs.json")]
    late = [pair["responses"] for pair in pairs if "Human: late" in pair["prompt"]]
    assert late == [["good", "so so"]]


def test_a_subset_is_the_same_every_time_and_part_of_a_larger_one(source):
    def texts(size):
        settings = PrepareSettings(source=str(source), data_dir="unused", subset_size=size)
        return [row.prompt.text for row in prepare.read_comparisons(settings)]

    assert texts(30) == texts(60)[:30] and len(texts(30)) == 30 and len(texts(None)) == 122


def test_a_system_message_does_not_decide_the_part():
    parts = set()
    for number in range(50):
        request = ("user", f"question {number}")
        plain = Prompt("0", "", messages=(request,))
        with_system = Prompt("0", "", messages=(("system", "Be brief."), request))
        assert part_of(plain) == part_of(with_system)
        parts.add(part_of(plain))
    assert parts == {"train", "dev", "test"}


def test_the_preferred_answer_wins_the_most_pairs():
    values = {"prompt": "p", "responses": ["a", "b", "c"], "preferences": [[1, 0], [1, 2], [0, 2]]}
    assert preferred(COMPARISONS.parse(plain_row(values), 0)) == "b"


@pytest.mark.parametrize(
    "rows, message",
    [
        (None, "has no file of comparisons"),
        ([row("only one", "a", "b")], "has too few dialogs: none of its 1 rows falls into"),
        ([{"chosen": "a"}], "rows.jsonl"),
    ],
)
def test_mistakes_in_the_source(tmp_path, rows, message):
    (tmp_path / "source").mkdir()
    if rows is not None:
        write_jsonl(tmp_path / "source" / "rows.jsonl", rows)
    with pytest.raises(UserError, match=message):
        prepare.prepare(
            PrepareSettings(source=str(tmp_path / "source"), data_dir=str(tmp_path / "data"))
        )
    assert not (tmp_path / "data").exists()


@pytest.mark.skipif(
    "FGRLHF_QA_FEEDBACK" not in os.environ, reason="the folder of real rows is not named"
)
def test_the_published_rows_are_dialogs(tmp_path):
    file = Path(os.environ["FGRLHF_QA_FEEDBACK"]).parent / "hh_rlhf"
    if not file.is_dir():
        pytest.skip("hh_rlhf is not beside the folder that FGRLHF_QA_FEEDBACK names")
    settings = PrepareSettings(source=str(file), data_dir=str(tmp_path), subset_size=300)
    rows = prepare.read_comparisons(settings)
    turns = Counter(len(row.prompt.messages) for row in rows)
    assert all(number % 2 for number in turns) and turns[1] > 30 and turns[3] > 30


# ---- configs and stages --------------------------------------------------------------------------


def test_every_stage_runs(tmp_path, monkeypatch, capsys):
    """The programs of the scripts with a few steps, on a world of a few dialogs."""
    monkeypatch.setenv("OUTPUT_DIR", str(tmp_path))
    monkeypatch.setenv("DATA_DIR", str(tmp_path / "data"))
    world = {"demonstrations": 40, "pairs": 40, "prompts": 40}
    mini_world.write_world(mini_world.MiniWorldSettings(data_dir=str(tmp_path / "data"), **world))
    script = (FOLDER / "data" / "make_mini.sh").read_text(encoding="utf-8")
    words = re.search(r'words="(.*)"\n', script)[1]
    train_file = f"train_file={tmp_path}/data/train.json"
    tiny_model.main(
        ["tasks.hh_rlhf", train_file, f"output_dir={tmp_path}/base_model", f"words={words}"]
    )
    tokenizer = load_policy(tmp_path / "base_model").tokenizer
    for file in ("sft.json", "train_pairs.json"):
        texts = [text for row in read_json(tmp_path / "data" / file) for text in row.values()]
        ids = tokenizer(texts)["input_ids"]
        assert not any(tokenizer.unk_token_id in row for row in ids)

    training = FOLDER / "training"
    short = ["train.max_steps=2", "evaluation.every_steps=2"]
    run_sft.main(
        ["tasks.hh_rlhf", str(training / "mini_sft_config.yml"), *short, "evaluation.examples=4"]
    )
    run_pref_rm.main(
        ["tasks.hh_rlhf", str(FOLDER / "reward_modeling" / "mini_rm_config.yml"), *short]
    )
    few = ["evaluation.examples=4"]
    config = str(training / "mini_rl_config.yml")
    rl.main(["tasks.hh_rlhf", config, "train.total_episodes=128", *few])
    dpo.main(["tasks.hh_rlhf", str(training / "mini_dpo_config.yml"), "train.epochs=1", *few])
    folders = [f"data_dir={tmp_path}/data", f"output_dir={tmp_path}", f"config={config}"]
    for name in ("sft", "ppo/best", "dpo/best"):
        evaluate.main(["tasks.hh_rlhf", f"policy={tmp_path}/{name}", *folders, "max_examples=5"])
    found = read_json(tmp_path / "eval" / "ppo-test" / "summary.json")
    assert {"oracle/quality", "reward/preference", "kl"} <= set(found)
    capsys.readouterr()
    summary.main(["tasks.hh_rlhf", f"output_dir={tmp_path}"])
    assert "true quality" in capsys.readouterr().out
