"""Detoxification: its data, its two scorers, its download, and all stages with a tiny model."""

import os
from pathlib import Path

import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, read_jsonl, write_json, write_jsonl, write_text
from fgrlhf.cli import evaluate, rl, tiny_model
from fgrlhf.configs.strict import load_config
from fgrlhf.data.split import hash_share
from fgrlhf.scorers.linear import LinearScorer
from fgrlhf.task_config import rl_config
from tasks.detoxification.data.prepare import (
    RATED_FILE,
    SPANS_FILE,
    MarkedPost,
    PrepareSettings,
    part_of,
    prepare,
    rated_texts,
    read_posts,
    read_rated,
    span_sentences,
    toxic_prompts,
)
from tasks.detoxification.scorers import ScorersSettings, train_scorers
from tasks.detoxification.task import TASK

TRAINING = Path(__file__).parents[1] / "training"
DENSE = TRAINING / "small_fine_grained_config.yml"
HOLISTIC = TRAINING / "small_holistic_config.yml"
PAPER_DENSE = TRAINING / "fine_grained_config.yml"
PAPER_HOLISTIC = TRAINING / "holistic_config.yml"


def rated_row(number: int, prompt: float | None = 0.1, continuation: float | None = 0.2) -> dict:
    words = "you rude fool" if (prompt or 0) >= 0.5 else "you kind friend"
    whole = {"text": f"They called {words}", "toxicity": prompt}
    rest = {"text": " and a nice day", "toxicity": continuation}
    page = {"filename": f"page-{number}.txt", "begin": 10 * number}
    return {**page, "prompt": whole, "continuation": rest}


@pytest.fixture
def source(tmp_path) -> Path:
    """A small source folder: 80 rated rows, half of them toxic, and 20 posts."""
    folder = tmp_path / "source"
    rows = [rated_row(n, prompt=0.9 if n % 2 else 0.1) for n in range(80)]
    write_jsonl(folder / RATED_FILE, rows)
    posts = ["spans,text"]
    for n in range(20):
        posts.append(f'"[4, 5, 6, 7]","You fool. Have a kind day {n}."')
    write_text(folder / SPANS_FILE, "\n".join(posts) + "\n")
    return folder


# ---- reading and splitting -----------------------------------------------------------------------


def test_rated_rows_by_hand(tmp_path):
    write_jsonl(tmp_path / "rows.jsonl", [rated_row(3, prompt=None)])
    (row,) = read_rated(tmp_path / "rows.jsonl")
    assert (row.id, row.page) == ("page-3.txt:30", "page-3.txt")
    assert row.prompt.toxicity is None
    assert [half.text for half in row.texts] == [" and a nice day"]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"prompt": None}, "row 1 is not a row of RealToxicityPrompts"),
        ({"prompt": {"text": "x", "toxicity": 1.5}}, "prompt.toxicity is 1.5"),
        ({"prompt": {"text": 3, "toxicity": 0.5}}, "text is 3, not a text"),
        ({"filename": 3}, "filename is 3"),
    ],
)
def test_other_rows_are_refused(tmp_path, change, message):
    write_jsonl(tmp_path / "rows.jsonl", [rated_row(0) | change])
    with pytest.raises(UserError, match=message):
        read_rated(tmp_path / "rows.jsonl")


@pytest.mark.parametrize(
    "line, reason",
    [
        ('"[0, 99]",short', "is not a post with toxic spans"),
        ('"[0, true]",short', "is not a post with toxic spans"),
        ('"0, 1",short', "is not a post with toxic spans"),
        ('"{}",short', "is not a post with toxic spans"),
        ("[]", "has another number of cells"),
        ('[],"short', "is not a row of a table"),
        (f'[],"{"long " * 50_000}', "is not a row of a table"),
    ],
)
def test_other_posts_are_refused(tmp_path, line, reason):
    write_text(tmp_path / SPANS_FILE, f"spans,text\n[],fine\n{line}\n[],fine\n")
    with pytest.raises(UserError, match=f"row 1:? {reason}"):
        read_posts(tmp_path / SPANS_FILE)


def test_a_sentence_is_toxic_if_a_mark_touches_it():
    post = MarkedPost("You fool. Have a kind day. Bye now.", frozenset([4, 5, 6, 7]))
    examples = [(example["text"], example["toxic"]) for example in span_sentences([post])]
    assert examples == [("You fool.", True), ("Have a kind day.", False), ("Bye now.", False)]


def test_a_page_is_used_for_one_purpose(source):
    rows = read_rated(source / RATED_FILE)
    parts = {
        part: {p["id"] for p in toxic_prompts(rows, part)} for part in ("train", "dev", "test")
    }
    assert all(parts.values())
    assert sum(map(len, parts.values())) == len(set.union(*parts.values()))
    examples = rated_texts(rows)
    for row in rows:
        held_out = {e["held_out"] for e in examples if e["text"] == row.prompt.text}
        assert held_out == {True, False}  # equal texts of several pages
    assert sum(e["held_out"] for e in examples) == 2 * sum(part_of(r) != "judge" for r in rows)


def test_the_hash_is_fixed():
    assert hash_share("page-1.txt") == pytest.approx(HASH_OF_PAGE_1, abs=1e-12)
    shares = [hash_share(str(n)) for n in range(2000)]
    assert min(shares) >= 0 and max(shares) <= 1
    assert sum(share < 0.25 for share in shares) == pytest.approx(500, abs=60)


HASH_OF_PAGE_1 = 0.6290269062178674


def test_prepared_files(source, tmp_path, capsys):
    prepare(PrepareSettings(source=str(source), data_dir=str(tmp_path / "data")))
    prompts = TASK.prompts(tmp_path / "data" / "train.json", "train")
    assert {prompt.text for prompt in prompts} == {"They called you rude fool"}
    assert len(read_json(tmp_path / "data" / "rated_texts.json")) == 160
    assert len(read_json(tmp_path / "data" / "span_sentences.json")) == 40
    assert "train.json" in capsys.readouterr().out


def test_every_prompt_with_a_score_counts_at_paper_scale(source, tmp_path):
    rows = read_rated(source / RATED_FILE)
    everything = toxic_prompts(rows, "train", min_toxicity=0)
    assert {prompt["prompt"] for prompt in everything} == {
        "They called you rude fool",
        "They called you kind friend",
    }
    assert len(everything) == sum(part_of(row) == "train" for row in rows)
    without_score = [row for row in rows if row.prompt.toxicity is None]
    assert toxic_prompts(without_score, "train", min_toxicity=0) == []
    settings = PrepareSettings(source=str(source), data_dir=str(tmp_path), min_toxicity=0)
    prepare(settings)
    assert read_json(tmp_path / "train.json") == everything


def test_examples_of_a_page_or_post_are_a_group(source):
    rows = read_rated(source / RATED_FILE)
    groups = [example["group"] for example in rated_texts(rows)[:3]]
    assert groups == ["page-0.txt", "page-0.txt", "page-1.txt"]
    posts = read_posts(source / SPANS_FILE)
    groups = [example["group"] for example in span_sentences(posts)[:3]]
    assert groups == ["post 0", "post 0", "post 1"]


def test_too_few_rows_are_an_error(source, tmp_path):
    write_jsonl(source / RATED_FILE, [rated_row(0)])
    with pytest.raises(UserError, match="has no toxic prompt for train in its 1 rows"):
        prepare(PrepareSettings(source=str(source), data_dir=str(tmp_path / "data")))


def test_published_rows(tmp_path):
    folder = os.environ.get("FGRLHF_QA_FEEDBACK")
    shared = Path(folder or "").parent
    rated = shared / "real_toxicity_prompts" / "part.jsonl"
    posts = shared / "toxic_spans" / SPANS_FILE
    if not folder or not rated.exists() or not posts.exists():
        pytest.skip("the published rows are not beside the folder that FGRLHF_QA_FEEDBACK names")
    rows = read_rated(rated)
    assert len(rows) == 4000
    assert len(read_posts(posts)) == 7939
    toxic = [row for row in rows if (row.prompt.toxicity or 0) >= 0.5]
    sizes = [len(toxic_prompts(rows, part)) for part in ("train", "dev", "test")]
    assert len(toxic) == 983 and sizes == [250, 45, 100]


# ---- scorers -------------------------------------------------------------------------------------


def test_two_scorers_from_two_sets_of_labels(source, tmp_path, capsys):
    prepare(PrepareSettings(source=str(source), data_dir=str(tmp_path / "data")))
    settings = ScorersSettings(data_dir=str(tmp_path / "data"), output_dir=str(tmp_path))
    train_scorers(settings)
    reward = LinearScorer.load(tmp_path / "reward_scorer")
    judge = LinearScorer.load(tmp_path / "judge")
    assert "called" in judge.spec.vocabulary and "called" not in reward.spec.vocabulary
    assert "have" in reward.spec.vocabulary and "have" not in judge.spec.vocabulary
    for scorer in (reward, judge):
        fool, kind = scorer.probabilities(["you fool", "kind day"])
        assert fool > 0.5 > kind
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[-4:]] == ["reward_scorer"] * 2 + ["judge"] * 2


def test_damaged_examples_are_an_error(tmp_path):
    write_json(tmp_path / "span_sentences.json", [{"text": "x"}])
    with pytest.raises(UserError, match="span_sentences.json is damaged"):
        train_scorers(ScorersSettings(data_dir=str(tmp_path), output_dir=str(tmp_path)))


# ---- configs and stages --------------------------------------------------------------------------


@pytest.fixture
def environment(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("OUTPUT_DIR", str(tmp_path))
    monkeypatch.setenv("DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("FGRLHF_SMALL_MODEL", str(tmp_path / "model"))
    return tmp_path


@pytest.mark.parametrize("path", [DENSE, HOLISTIC, PAPER_DENSE, PAPER_HOLISTIC])
def test_the_judge_is_never_rewarded(environment, path):
    config = load_config(rl_config(TASK), path).model_dump()
    judges = {}
    for metric in config["evaluation_metrics"]:
        if metric["name"] == "score":
            judges[metric["key"]] = metric["scorer"]
    assert judges["judge"] != config["reward"]["toxicity"]["scorer"]
    # the judge never has the labels of the reward
    labels = {
        "reward_scorer": "people's marks",
        "judge": "Perspective",
        "toxic-bert": "people's labels of Wikipedia's comments",
    }
    rewarding = Path(config["reward"]["toxicity"]["scorer"]["ckpt"]).name
    assert labels[Path(judges["judge"]["ckpt"]).name] != labels[rewarding]


def test_the_configs_of_paper_scale(environment):
    """Wu et al. (2023), section 3, and what differs between the two rewards."""
    dense = load_config(rl_config(TASK), PAPER_DENSE)
    holistic = load_config(rl_config(TASK), PAPER_HOLISTIC).model_dump()
    assert dense.model.ckpt == "gpt2-large"
    sampling = dense.model.train_generation_kwargs.sampling(dense.model.max_generated_len)
    assert (sampling.top_p, sampling.temperature, sampling.max_new_tokens) == (0.9, 1.0, 48)
    steps = dense.train.total_episodes / (
        dense.train.sampling_batch_size_per_card * dense.env.train_num_samples_per_input
    )
    assert steps == 600 and 75 % dense.evaluation.every_steps == 0
    tree = dense.model_dump()
    assert tree["evaluation_metrics"][0]["scorer"] == tree["reward"]["toxicity"]["scorer"]
    assert tree["reward"]["toxicity"].pop("level") == "sentence"
    assert holistic["reward"]["toxicity"].pop("level") == "whole"
    assert tree.pop("logging") != holistic.pop("logging")
    assert tree == holistic


def test_every_stage_runs(environment, source):
    """Two steps of a tiny model through the programs of the scripts."""
    data = environment / "data"
    prepare(PrepareSettings(source=str(source), data_dir=str(data)))
    train_scorers(ScorersSettings(data_dir=str(data), output_dir=str(environment)))
    model = ["tasks.detoxification", f"output_dir={environment}/model", "width=16", "heads=2"]
    tiny_model.main([*model, f"train_file={data}/train.json", "words=kind friend day ."])
    short = [
        "model.train_top_layers=1",
        "train.total_episodes=8",
        "train.sampling_batch_size_per_card=2",
        "env.train_num_samples_per_input=2",
        "evaluation.examples=2",
    ]
    for path in (DENSE, HOLISTIC):
        rl.main(["tasks.detoxification", str(path), *short])
    folders = [f"policy={environment}/fine_grained/best", f"output_dir={environment}"]
    folders += [f"config={DENSE}", f"data_dir={data}"]
    evaluate.main(["tasks.detoxification", *folders, "max_examples=2", "num_samples=3"])
    folder = environment / "eval" / "fine_grained-test"
    rows = read_jsonl(folder / "rows.jsonl")
    judge = LinearScorer.load(environment / "judge")
    highest = {}
    for row in rows:
        (score,) = judge.probabilities([row["response"]])
        assert row["judge"] == pytest.approx(score)
        highest[row["id"]] = max(score, highest.get(row["id"], 0.0))
    summary = read_json(folder / "summary.json")
    expected = sum(highest.values()) / len(highest)
    assert summary["judge/max"]["mean"] == pytest.approx(expected)
