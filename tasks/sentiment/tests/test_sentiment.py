"""Sentiment: its openings, its two scorers, its configs, and all stages with a tiny model."""

from pathlib import Path

import pytest

from fgrlhf.base.files import read_json, read_jsonl
from fgrlhf.cli import evaluate, rl, tiny_model
from fgrlhf.configs.strict import load_config
from fgrlhf.rewards.build import build_reward
from fgrlhf.scorers.base import RewardContext
from fgrlhf.task_config import rl_config
from fgrlhf.text_types import Prompt
from tasks.sentiment.lexicons import Pattern, Vader
from tasks.sentiment.task import OPENINGS, TASK, openings

FOLDER = Path(__file__).parents[1]
DENSE = FOLDER / "training" / "small_fine_grained_config.yml"
HOLISTIC = FOLDER / "training" / "small_holistic_config.yml"


# ---- openings ------------------------------------------------------------------------------------


def test_there_are_enough_different_openings():
    lines = OPENINGS.read_text(encoding="utf-8").splitlines()
    assert len(lines) >= 300
    assert len(set(lines)) == len(lines)
    first_three_words = [tuple(line.split()[:3]) for line in lines]
    assert len(set(first_three_words)) > 0.9 * len(lines)
    for line in lines:
        assert line == line.strip() and len(line.split()) >= 4
        assert line[-1] not in ".!?"  # the model has something to complete


def test_openings_are_neutral_on_average():
    lines = OPENINGS.read_text(encoding="utf-8").splitlines()
    prompts = [Prompt("0", "")] * len(lines)
    for scorer in (Vader(), Pattern()):
        scores = scorer.score(prompts, lines)
        assert abs(sum(scores) / len(scores)) < 0.02
        assert sum(score == 0 for score in scores) > 0.7 * len(scores)


def test_the_splits_share_no_opening():
    parts = {split: openings(split, 0) for split in ("train", "dev", "test")}
    texts = [prompt.text for prompts in parts.values() for prompt in prompts]
    assert len(set(texts)) == len(texts) == len(OPENINGS.read_text().splitlines())
    assert [len(parts[split]) for split in ("dev", "test")] == [40, 64]
    assert openings("test", 0) == parts["test"] != openings("test", 1)
    assert {prompt.id for prompt in parts["test"]} == {p.id for p in openings("test", 1)}


# ---- scorers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("scorer", [Vader(), Pattern()])
def test_scorers_know_tone_and_negation(scorer):
    texts = ["", "It is a table.", "It is wonderful.", "It is horrible.", "It is not good."]
    empty, plain, good, bad, negated = scorer.score([Prompt("0", "x")] * 5, texts)
    assert empty == plain == 0
    assert good > 0.4 and bad < -0.4 and negated < 0


def test_the_compound_score_by_hand():
    """VADER rates "good" 1.9, so the compound score is 1.9 / sqrt(1.9^2 + 15)."""
    (score,) = Vader().score([Prompt("0", "")], ["good"])
    assert score == pytest.approx(1.9 / (1.9**2 + 15) ** 0.5, abs=1e-4)


# ---- configs and stages --------------------------------------------------------------------------


@pytest.fixture
def environment(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("OUTPUT_DIR", str(tmp_path))
    monkeypatch.setenv("FGRLHF_SMALL_MODEL", str(tmp_path / "model"))
    return tmp_path


def test_dense_and_holistic_rewards_have_equal_sums(environment):
    text = "It was a lovely day. Then it rained, which was awful. We laughed anyway."
    prompts = [Prompt("0", "So")]
    sums = []
    for path, segments in ((DENSE, 3), (HOLISTIC, 1)):
        configs = load_config(rl_config(TASK), path).reward
        reward = build_reward(configs, RewardContext(TASK.rm_prefix))
        (scores,) = reward.segment_scores(prompts, [text])["sentiment"]
        assert len(scores) == segments
        sums.append(sum(score.value for score in scores))
    assert sums[0] == pytest.approx(sums[1]) == 2 * Vader().score(prompts, [text])[0]


def test_every_stage_runs(environment):
    """Two steps of a tiny model through the programs of the scripts."""
    model = ["tasks.sentiment", f"output_dir={environment}/model", "width=16", "heads=2"]
    tiny_model.main([*model, "words=good bad lovely awful ."])
    short = [
        "model.train_top_layers=1",
        "train.total_episodes=8",
        "train.sampling_batch_size_per_card=2",
        "env.train_num_samples_per_input=2",
        "evaluation.examples=2",
    ]
    for path in (DENSE, HOLISTIC):
        rl.main(["tasks.sentiment", str(path), *short])
    for run in ("fine_grained", "holistic"):
        evaluate.main(
            [
                "tasks.sentiment",
                f"policy={environment}/{run}/best",
                f"config={DENSE}",
                f"output_dir={environment}",
                "max_examples=3",
                "num_samples=2",
            ]
        )
        rows = read_jsonl(environment / "eval" / f"{run}-test" / "rows.jsonl")
        assert [row["id"] for row in rows[::2]] == [p.id for p in openings("test", 0)[:3]]
        for row in rows:
            (score,) = Pattern().score([Prompt("0", "")], [row["response"]])
            assert row["judge"] == pytest.approx(score)
        summary = read_json(environment / "eval" / f"{run}-test" / "summary.json")
        assert {"judge", "perplexity/corpus", "distinct2/prompt", "sentences"} <= set(summary)
