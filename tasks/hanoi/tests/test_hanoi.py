"""The Tower of Hanoi: its rules and rewards by hand, its prompts, its configs and a few steps."""

import random
from pathlib import Path

import pytest

from fgrlhf.base.files import read_json, read_jsonl
from fgrlhf.cli import evaluate, rl, tiny_model
from fgrlhf.configs.strict import load_config
from fgrlhf.reward import AtEnd
from fgrlhf.rewards.build import build_reward
from fgrlhf.scorers.base import RewardContext
from fgrlhf.task_config import rl_config
from fgrlhf.text_types import Prompt
from sft import run_sft
from sft.config import SFTConfig
from tasks.hanoi.data import demonstrations
from tasks.hanoi.puzzle import POSITIONS, legal_moves, moves_to, read_moves, solve
from tasks.hanoi.reward import Moves, Solved
from tasks.hanoi.task import TASK, puzzles, verified

FOLDER = Path(__file__).parents[1]
TOWER = Prompt("tower", "", meta={"position": "AAA", "goal": "CCC"})
SOLUTION = "CAA CBA BBA BBC ABC ACC CCC"


def values(text: str) -> list[tuple[str, float, str]]:
    (scores,) = Moves(illegal=-2.0).segment_scores([TOWER], [text])
    return [(text[score.start : score.end], score.value, score.label) for score in scores]


def test_a_disc_moves_if_no_smaller_disc_is_in_the_way():
    assert set(legal_moves("AAA")) == {"BAA", "CAA"}
    assert set(legal_moves("BAA")) == {"AAA", "CAA", "BCA"}
    assert set(legal_moves("BBA")) == {"ABA", "CBA", "BBC"}


def test_distances_are_those_of_the_puzzle():
    distance = moves_to("CCC")
    assert len(distance) == len(POSITIONS) == 27
    assert distance["AAA"] == 7 == max(distance.values())
    assert [distance[position] for position in SOLUTION.split()] == [6, 5, 4, 3, 2, 1, 0]
    for position in POSITIONS:
        assert moves_to(position)["CCC"] == distance[position]


def test_every_move_of_a_solution_gets_a_value():
    closer = [(move, 1.0, "closer") for move in SOLUTION.split()]
    assert values(SOLUTION) == closer
    assert values("CAA AAA\nBAA") == [
        ("CAA", 1.0, "closer"),
        ("AAA", -1.0, "further"),
        ("BAA", 0.0, "detour"),
    ]
    assert values("") == []


@pytest.mark.parametrize("illegal", ["BBA", "AAA", "CA", "CAAB", "DAA", "caa", "?"])
def test_the_first_illegal_move_ends_the_solution(illegal):
    assert values(f"{illegal} CAA CBA") == [(illegal, -2.0, "illegal")]


def test_the_values_of_a_solution_add_up_to_its_distance():
    rng = random.Random(0)
    for prompt in puzzles("test", 0):
        position, goal = prompt.meta["position"], prompt.meta["goal"]
        with_detours = solve(position, goal, error_rate=0.5, rng=rng)
        (scores,) = Moves(illegal=-1.0).segment_scores([prompt], [with_detours])
        assert sum(score.value for score in scores) == moves_to(goal)[position]
        assert verified(prompt, with_detours) == {"solved": 1.0, "legal": 1.0}


def test_the_scalar_reward_is_for_solutions_alone():
    texts = [SOLUTION, SOLUTION + " BCC", SOLUTION.replace("BBC", "BAC"), "CCC", ""]
    scores = Solved().segment_scores([TOWER] * len(texts), texts)
    assert [score.value for (score,) in scores] == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert all(score.end is None for (score,) in scores)
    assert [verified(TOWER, text)["legal"] for text in texts] == [1.0, 1.0, 0.0, 0.0, 1.0]


def test_the_splits_share_no_puzzle():
    ids = [prompt.id for split in ("train", "dev", "test") for prompt in puzzles(split, 0)]
    assert len(set(ids)) == len(ids) == 27 * 26
    assert puzzles("test", 0) == puzzles("test", 0) != puzzles("test", 1)
    assert {prompt.id for prompt in puzzles("test", 0)} == {p.id for p in puzzles("test", 1)}
    for prompt in puzzles("test", 0):
        assert verified(prompt, prompt.references[0])["solved"] == 1.0


def test_demonstrations_are_legal_and_imperfect(tmp_path):
    demonstrations.main([f"file={tmp_path}/rows.json", "count=300"])
    rows = read_json(tmp_path / "rows.json")
    held_out = {prompt.text for split in ("dev", "test") for prompt in puzzles(split, 0)}
    prompts = {prompt.text: prompt for prompt in puzzles("train", 0)}
    solved = shortest = 0.0
    for row in rows:
        assert row["text"] not in held_out
        prompt, (answer,) = prompts[row["text"]], row["answer"]
        judgement = verified(prompt, answer)
        assert judgement["legal"] == 1.0
        solved += judgement["solved"]
        shortest += len(answer) == len(prompt.references[0])
    assert 0.5 * len(rows) < solved < len(rows)
    assert shortest < 0.7 * len(rows)


def config(name: str, *overrides: str):
    return load_config(rl_config(TASK), FOLDER / name, list(overrides))


@pytest.fixture
def output_dir(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("OUTPUT_DIR", str(tmp_path))
    return tmp_path


def test_the_reward_of_the_config_is_dense_or_a_scalar(output_dir):
    dense = config("mini_dense_config.yml")
    at_end = config("mini_dense_config.yml", "reward.moves.place=end")
    for settings, kind in ((dense, Moves), (at_end, AtEnd)):
        reward = build_reward(settings.reward, RewardContext(TASK.rm_prefix))
        assert isinstance(reward.aspects["moves"], kind)


def test_every_stage_runs(output_dir):
    """Two steps of a tiny model through all programs, as in run.sh."""
    task = "tasks.hanoi"
    tiny_model.main([task, f"output_dir={output_dir}/base_model", "width=16", "heads=2"])
    demonstrations.main([f"file={output_dir}/demonstrations.json", "count=8"])
    sft_config = load_config(
        SFTConfig,
        FOLDER / "mini_sft_config.yml",
        ["train.max_steps=2", "train.batch_size=4", "evaluation.every_steps=2"],
    )
    run_sft.train(sft_config)
    short = [
        "train.total_episodes=8",
        "train.sampling_batch_size_per_card=2",
        "env.train_num_samples_per_input=2",
        "evaluation.examples=2",
        "train.n_critic_warmup_steps=0",
    ]
    rl.main([task, str(FOLDER / "mini_dense_config.yml"), *short])
    evaluate.main(
        [
            task,
            f"policy={output_dir}/dense/best",
            f"config={FOLDER}/mini_dense_config.yml",
            f"output_dir={output_dir}",
            "max_examples=3",
        ]
    )
    rows = read_jsonl(output_dir / "eval" / "dense-test" / "rows.jsonl")
    assert [row["id"] for row in rows] == [prompt.id for prompt in puzzles("test", 0)[:3]]
    for row, prompt in zip(rows, puzzles("test", 0)):
        moves = list(read_moves(prompt.meta["position"], row["response"]))
        assert len(row["segments"]["moves"]) == len(moves)
        assert row["solved"] == verified(prompt, row["response"])["solved"]
