"""Connections: puzzles with one solution, the judgement by hand, the configs and a few steps."""

import random
from itertools import combinations
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_jsonl, write_json
from fgrlhf.cli import evaluate, rl, tiny_model
from fgrlhf.configs.strict import load_config
from fgrlhf.data.formats import DEMONSTRATIONS
from fgrlhf.rewards.build import build_reward
from fgrlhf.scorers.base import RewardContext
from fgrlhf.task_config import rl_config
from fgrlhf.text_types import Prompt
from interface_html.items import read_items
from interface_html.tasks import feedback_of
from sft import run_sft
from sft.config import SFTConfig
from tasks.connections.data import make_puzzles as program
from tasks.connections.puzzle import (
    Design,
    groups_of,
    make_puzzles,
    question,
    read_categories,
    solutions,
    with_a_mistake,
    written,
)
from tasks.connections.reward import Groups, read_lines, verified
from tasks.connections.task import TASK, read_puzzles

TRAINING = Path(__file__).parents[1] / "training"
MINI = Design(groups=3, size=3, categories=8, words=6, hold_out="groups")
SPLITS = ("train", "dev", "test")

LETTERS = [list("abcd"), list("efgh"), list("ijkl"), list("mnop")]
PUZZLE = Prompt("letters", "", meta={"groups": LETTERS})
A, E, I, M = (", ".join(group) for group in LETTERS)  # noqa: E741
SOLUTION = f"{A}\n{E}\n{I}\n{M}"


# ---- categories and solutions --------------------------------------------------------------------


def test_the_categories_are_lists_of_different_words():
    categories = read_categories()
    assert len(categories) >= 50
    for name, words in categories.items():
        assert name and 10 <= len(words) <= 16, name
        assert len(set(words)) == len(words), name
        assert all(word.isalpha() and word.islower() for word in words), name
    for first, second in combinations(categories.values(), 2):
        assert len(set(first) & set(second)) < 3  # no group of three words fits two categories


def test_words_with_several_meanings_are_in_several_categories():
    names = [name for name, words in read_categories().items() if "jersey" in words]
    assert names == ["fabrics", "clothes", "islands"]
    words = [word for words in read_categories().values() for word in words]
    assert len(words) - len(set(words)) >= 40


@pytest.mark.parametrize(
    "words, expected",
    [
        # `lime` is needed among the trees, so only one division is left
        ("fig plum kiwi lime oak yew", ["fig kiwi plum / lime oak yew"]),
        # `lime` and `cherry` can change places
        (
            "fig plum cherry lime oak yew",
            ["cherry fig plum / lime oak yew", "cherry oak yew / fig lime plum"],
        ),
        # `ash` is in no list
        ("fig plum kiwi oak yew ash", []),
        ("fig plum", []),
    ],
)
def test_solutions_by_hand(words, expected):
    categories = {
        "fruit": ("fig", "plum", "kiwi", "cherry", "lime"),
        "trees": ("cherry", "lime", "oak", "yew"),
    }
    divisions = []
    for solution in solutions(words.split(), 3, categories):
        divisions.append(" / ".join(sorted(" ".join(sorted(group)) for group in solution)))
    assert sorted(divisions) == expected


def count_by_brute_force(words, size: int, categories) -> int:
    """Try every set of groups that fit a category."""
    fitting = []
    for group in combinations(words, size):
        if any(set(group) <= set(category) for category in categories.values()):
            fitting.append(group)
    count = 0
    for groups in combinations(fitting, len(words) // size):
        count += len({word for group in groups for word in group}) == len(words)
    return count


def test_the_search_finds_all_solutions():
    """Random words in random lists that overlap much."""
    rng = random.Random(0)
    counts = []
    for _ in range(200):
        groups, size = rng.choice([(2, 3), (3, 2), (3, 3), (2, 4)])
        words = [f"w{i}" for i in range(groups * size)]
        categories = {name: rng.sample(words, rng.randint(size, size + 2)) for name in "abcd"}
        counts.append(len(solutions(words, size, categories)))
        assert counts[-1] == count_by_brute_force(words, size, categories)
    assert min(counts) == 0 and max(counts) > 1 and counts.count(1) > 5


@pytest.mark.parametrize("design", [Design(), MINI, Design(groups=2, size=5)])
def test_every_puzzle_has_exactly_one_solution(design):
    categories = read_categories()
    for split in SPLITS:
        for prompt in make_puzzles(split, 0, 10, design):
            words, groups = prompt.meta["words"], prompt.meta["groups"]
            assert sorted(words) == sorted(word for group in groups for word in group)
            assert [len(group) for group in groups] == [design.size] * design.groups
            for group, name in zip(groups, prompt.meta["categories"]):
                assert set(group) <= set(categories[name])
            assert count_by_brute_force(words, design.size, categories) == 1
            assert prompt.text == question(words, design.groups)
            assert verified(prompt, prompt.references[0])["solved"] == 1.0


def test_puzzles_with_two_solutions_are_discarded(monkeypatch):
    """Nine sets of four words have one solution, counted by hand.

    Both fruits that are no trees, with two trees of which one at most is a fruit: 5 sets. One of
    them with one of the words in both lists and both other trees: 4 sets. Of the remaining sets of
    two fruits and two trees, such as {fig, cherry, lime, oak}, every one has several solutions.
    """
    categories = {
        "fruit": ("fig", "plum", "cherry", "lime"),
        "trees": ("cherry", "lime", "oak", "yew"),
    }
    monkeypatch.setattr("tasks.connections.puzzle.read_categories", lambda: categories)
    monkeypatch.setattr("tasks.connections.puzzle.SHARES", {"train": (0.0, 1.0)})
    design = Design(groups=2, size=2)
    puzzles = [prompt.meta["words"] for prompt in make_puzzles("train", 0, 9, design)]
    assert len(set(map(frozenset, puzzles))) == 9
    for words in puzzles:
        assert count_by_brute_force(words, 2, categories) == 1
    assert count_by_brute_force(["fig", "cherry", "lime", "oak"], 2, categories) == 2
    with pytest.raises(UserError, match="only 9 different puzzles of the split train.*not 10"):
        make_puzzles("train", 0, 10, design)


def test_a_response_is_written_in_the_order_of_the_prompt():
    assert written([["a", "c"], ["d", "b"]], ["b", "c", "d", "a"]) == "b, d\nc, a"
    assert question(["b", "c", "d", "a"], 2) == (
        "Sort these words into 2 groups of 2 related words, one group per line: b, c, d, a"
    )


# ---- splits --------------------------------------------------------------------------------------


def test_the_splits_of_full_puzzles_share_no_category():
    categories = {}
    for split in SPLITS:
        prompts = TASK.prompts(None, split)
        categories[split] = {name for prompt in prompts for name in prompt.meta["categories"]}
    assert sum(map(len, categories.values())) == len(read_categories())
    assert len(set().union(*categories.values())) == len(read_categories())
    assert len(categories["test"]) >= 14


def test_the_splits_of_mini_puzzles_share_words_but_no_group():
    groups, words = {}, {}
    for split in SPLITS:
        prompts = make_puzzles(split, 0, 300, MINI)
        chosen = [group for prompt in prompts for group in prompt.meta["groups"]]
        groups[split] = {frozenset(group) for group in chosen}
        words[split] = {word for group in chosen for word in group}
    assert groups["train"].isdisjoint(groups["dev"] | groups["test"])
    assert groups["dev"].isdisjoint(groups["test"])
    assert words["test"] <= words["train"] and len(words["train"]) == 48
    # each of the 8 categories has 20 groups of 3 of its 6 words
    sizes = [sum(map(len, groups_of(split, MINI).values())) for split in SPLITS]
    assert sizes == [96, 24, 40]


@pytest.mark.parametrize("design", [Design(), MINI])
def test_the_splits_do_not_depend_on_the_seed(design):
    """Training with one seed and evaluating with another must not share a group."""
    train = set()
    for prompt in make_puzzles("train", 1, 100, design):
        train |= {frozenset(group) for group in prompt.meta["groups"]}
    for split in ("dev", "test"):
        for prompt in make_puzzles(split, 0, 50, design):
            assert train.isdisjoint(map(frozenset, prompt.meta["groups"]))


def test_puzzles_are_a_function_of_split_and_seed():
    assert make_puzzles("test", 0, 20, MINI) == make_puzzles("test", 0, 20, MINI)
    assert make_puzzles("test", 0, 20, MINI) != make_puzzles("test", 1, 20, MINI)


def test_a_design_without_enough_categories_is_refused():
    with pytest.raises(UserError, match="groups of 4 categories, but the split dev has 2"):
        make_puzzles("dev", 0, 1, Design(categories=10))
    with pytest.raises(UserError, match="groups of 4 categories, but the split train has 0"):
        make_puzzles("train", 0, 1, Design(words=3))


# ---- judgement -----------------------------------------------------------------------------------

RIGHT = "right right right right"
SPACED = f" A ,b,  C,d \r\n\n{E}\n \n{I}\n{M}\n\n"
MIXED = f"{A}\ni, f, g, h\ne, j, k, l\n{M}"
CASES = {
    "the solution": (SOLUTION, RIGHT, 1.0),
    "any order": (f"{M}\nd, b, a, c\n{I}\n{E}", RIGHT, 1.0),
    "case, spaces and blank lines": (SPACED, RIGHT, 1.0),
    "one right group alone": (A, "right", 0.25),
    "the same group four times": (f"{A}\n{A}\n{A}\n{A}", "right repeated repeated repeated", 0.25),
    "two words in each other's group": (MIXED, "right wrong wrong right", 0.5),
    "a second guess with the same words": (f"a, b, c, e\n{A}", "wrong repeated", 0.0),
    "a word twice in a line": (f"a, a, b, c\n{E}", "repeated right", 0.25),
    "a word of no line": ("a, b, c, z", "unknown", 0.0),
    "more words than a group": (f"{A}, e\n{I}", "size right", 0.25),
    "fewer words than a group": ("a, b, c", "size", 0.0),
    "all words in a line": (SOLUTION.replace("\n", ", "), "size", 0.0),
    "a line beyond the groups": (f"{SOLUTION}\n{A}\n{E}", "right right right right extra", 1.0),
    "a sentence first": (f"Here they are:\n{SOLUTION}", "unknown right right right extra", 0.75),
    "a number first": (f"1. {A}\n{E}", "unknown right", 0.25),
    "a comma too many": (f"{A},\n{E}", "unknown right", 0.25),
    "no commas": (A.replace(",", ""), "unknown", 0.0),
    "nothing": ("", "", 0.0),
    "white space": (" \n\n", "", 0.0),
}
SOLVED = ("the solution", "any order", "case, spaces and blank lines")
VALID = (*SOLVED, "two words in each other's group")
VALUES = {"right": 1.0, "wrong": -0.25}


@pytest.mark.parametrize("name", CASES)
def test_a_response_is_judged_line_by_line(name):
    text, labels, share = CASES[name]
    (scores,) = Groups(right=1.0, wrong=-0.25, invalid=-2.0).segment_scores([PUZZLE], [text])
    assert [score.label for score in scores] == labels.split()
    assert [score.value for score in scores] == [VALUES.get(x, -2.0) for x in labels.split()]
    whole = {"solved": float(name in SOLVED), "valid": float(name in VALID)}
    assert verified(PUZZLE, text) == {"right_groups": share, **whole}


def test_a_line_ends_with_its_line_break_or_with_the_response():
    text = f"  {A}\n\n{E}"
    first, second = read_lines(PUZZLE, text)
    assert text[first.start : first.end] == f"{A}\n"
    assert text[second.start :] == E and second.end is None


def test_only_the_solution_gets_the_highest_reward():
    """Random responses, with lines of the solution, repetitions and other words."""
    rng = random.Random(0)
    reward = Groups(right=1.0, wrong=0.0, invalid=-1.0)
    totals = []
    for _ in range(2000):
        lines = []
        for _ in range(rng.randint(0, 6)):
            words = rng.sample("abcdefghijklmnopz", rng.choice([3, 4, 4, 4]))
            lines.append(rng.choice([A, E, I, M, ", ".join(words)]))
        text = "\n".join(lines)
        (scores,) = reward.segment_scores([PUZZLE], [text])
        totals.append(sum(score.value for score in scores))
        judgement = verified(PUZZLE, text)
        different_groups = len({A, E, I, M} & set(lines[:4]))
        assert judgement["right_groups"] <= different_groups / 4
        assert totals[-1] <= 4 * judgement["right_groups"]
        assert (totals[-1] == 4) == (judgement["solved"] == 1.0) == (sorted(lines) == [A, E, I, M])
    assert totals.count(4) > 0 and min(totals) == -5


# ---- files ---------------------------------------------------------------------------------------


def test_the_program_writes_puzzles_and_demonstrations(tmp_path):
    program.main([f"data_dir={tmp_path}", *MINI_KEYS, "train=200", "dev=5", "test=6", "seed=3"])
    for split, count in {"train": 200, "dev": 5, "test": 6}.items():
        prompts = read_puzzles(tmp_path / f"{split}.json")
        assert prompts == make_puzzles(split, 3, count, MINI)
    puzzles = {prompt.text: prompt for prompt in read_puzzles(tmp_path / "train.json")}
    demonstrations = DEMONSTRATIONS.read(tmp_path / "demonstrations.json")
    judgements = [
        verified(puzzles[demonstration.prompt.text], demonstration.response)
        for demonstration in demonstrations
    ]
    assert len(judgements) == 200
    assert {judgement["valid"] for judgement in judgements} == {1.0}
    # a mistake spoils two of the three groups
    assert {judgement["right_groups"] for judgement in judgements} == {1.0, 1 / 3}
    assert 80 < sum(judgement["solved"] for judgement in judgements) < 120


def test_a_mistake_is_in_two_groups():
    groups = [["a", "b"], ["c", "d"], ["e", "f"]]
    changed = with_a_mistake(groups, random.Random(0))
    assert sum(set(old) == set(new) for old, new in zip(groups, changed)) == 1
    assert sorted(sum(changed, [])) == list("abcdef")
    assert groups == [["a", "b"], ["c", "d"], ["e", "f"]]


@pytest.mark.parametrize(
    "groups, problem",
    [
        (None, "two or more lists of words"),
        ([["a", "b"]], "two or more lists of words"),
        ([["a", "b"], "cd"], "two or more lists of words"),
        ([["a", "b"], ["c"]], "the same number of words"),
        ([[], []], "the same number of words"),
        ([["a", "b"], ["c", "x, y"]], "'x, y' must be a text without commas"),
        ([["a", "b"], ["c", 4]], "4 must be a text"),
        ([["a", "b"], ["c", " "]], "' ' must be a text"),
        ([["a", "b"], ["c", "A "]], "a word twice"),
    ],
)
def test_rows_without_a_solution_are_refused(groups, problem, tmp_path):
    good = {"prompt": "Sort: a, b, c, d", "groups": [["a", "b"], ["c", "d"]]}
    write_json(tmp_path / "rows.json", [good, {"prompt": "Sort.", "groups": groups}])
    with pytest.raises(UserError, match=f"(?s)rows.json.*row 1, `groups`: .*{problem}"):
        read_puzzles(tmp_path / "rows.json")


def test_samples_become_items_of_the_feedback_page(tmp_path):
    task = feedback_of("connections")
    (prompt,) = make_puzzles("dev", 0, 1, MINI)
    write_json(tmp_path / "samples.json", [TASK.sample_row(prompt, [SOLUTION])])
    (item,) = read_items(task, tmp_path / "samples.json")
    assert item.row["prompt"] == prompt.text
    assert item.row["response"] == SOLUTION
    assert item.row["groups"] == prompt.meta["groups"]


# ---- configs and stages --------------------------------------------------------------------------

MINI_KEYS = ["groups=3", "size=3", "categories=8", "words=6", "hold_out=groups"]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("OUTPUT_DIR", str(tmp_path))
    monkeypatch.setenv("DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("FGRLHF_SMALL_MODEL", str(tmp_path / "model"))
    return tmp_path


@pytest.mark.parametrize("scale", ["mini", "small"])
def test_the_scalar_reward_is_the_sum_of_the_dense_one(scale, folder):
    configs = {}
    for name in ("dense", "scalar"):
        path = TRAINING / f"{scale}_{name}_config.yml"
        configs[name] = load_config(rl_config(TASK), path)
    dense = build_reward(configs["dense"].reward, RewardContext(TASK.rm_prefix))
    scalar = build_reward(configs["scalar"].reward, RewardContext(TASK.rm_prefix))
    for text, labels, _ in CASES.values():
        (by_line,) = dense.segment_scores([PUZZLE], [text])["groups"]
        (at_end,) = scalar.segment_scores([PUZZLE], [text])["groups"]
        values = {"right": 1.0, "wrong": 0.0}
        assert [score.value for score in by_line] == [values.get(x, -1.0) for x in labels.split()]
        assert sum(score.value for score in at_end) == sum(score.value for score in by_line)
        assert all(score.end is None for score in at_end)
    # nothing else differs
    changes = {"logging": configs["dense"].logging, "reward": configs["dense"].reward}
    assert configs["scalar"].model_copy(update=changes) == configs["dense"]


def test_every_stage_runs(folder):
    """A step or two of a tiny model through all programs, as in run.sh."""
    task = "tasks.connections"
    data = folder / "data"
    program.main([f"data_dir={data}", *MINI_KEYS, "train=400", "dev=4", "test=3"])
    base = f"output_dir={folder}/base_model"
    tiny_model.main([task, base, f"train_file={data}/train.json", "width=16", "heads=2"])

    # line breaks and all words survive the tokenizer, and the limits of the configs are enough
    tokenizer = AutoTokenizer.from_pretrained(folder / "base_model")
    for prompt in read_puzzles(data / "test.json"):
        ids = tokenizer(prompt.references[0])["input_ids"]
        assert tokenizer.decode(ids) == prompt.references[0]
        assert tokenizer.unk_token_id not in ids
        assert len(ids) + 1 == 18 and len(tokenizer(prompt.text)["input_ids"]) == 33

    short = ["train.max_steps=2", "train.batch_size=4", "evaluation.every_steps=2"]
    config = load_config(SFTConfig, TRAINING / "mini_sft_config.yml", short)
    run_sft.train(config, TASK)
    steps = ["train.total_episodes=8", "train.sampling_batch_size_per_card=2"]
    steps += ["env.train_num_samples_per_input=2", "evaluation.examples=2"]
    dense = str(TRAINING / "mini_dense_config.yml")
    rl.main([task, dense, *steps])
    folders = [f"policy={folder}/dense/best", f"data_dir={data}", f"output_dir={folder}"]
    evaluate.main([task, f"config={dense}", *folders])
    rows = read_jsonl(folder / "eval" / "dense-test" / "rows.jsonl")
    prompts = read_puzzles(data / "test.json")
    assert [row["id"] for row in rows] == [prompt.id for prompt in prompts]
    for row, prompt in zip(rows, prompts):
        assert len(row["segments"]["groups"]) == len(read_lines(prompt, row["response"]))
        assert row["right_groups"] == verified(prompt, row["response"])["right_groups"]
