"""The neural scorers: their training files, their configs, and the comparison with linear ones."""

import json
import math
from pathlib import Path

import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, write_json, write_jsonl, write_text
from fgrlhf.cli import tiny_model
from fgrlhf.configs.strict import load_config
from fgrlhf.data.formats import COMPARISONS
from fgrlhf.data.split import hash_share
from fgrlhf.reward_utils import BLANK, load_segmenter
from fgrlhf.scorers.base import RewardContext
from fgrlhf.scorers.kinds import SegmentModelScorer
from fgrlhf.stats import Interval
from fgrlhf.task_config import rl_config
from fgrlhf.text_types import Prompt
from reward_modeling import run_fg_rm, run_pref_rm
from reward_modeling.data import read_segment_rows
from tasks.detoxification import compare_scorers
from tasks.detoxification.compare_scorers import conclusions
from tasks.detoxification.data.prepare import (
    HELD_OUT,
    PARTS,
    RATED_FILE,
    SPANS_FILE,
    MarkedPost,
    PrepareSettings,
    RatedRow,
    RatedText,
    part_of,
    prepare,
    read_rated,
)
from tasks.detoxification.reward_modeling.create_rm_files import (
    PAGES_DEV,
    POSTS_DEV,
    RMFileSettings,
    better_pairs,
    comparisons,
    create_rm_files,
    split_of_page,
    split_of_post,
    tagged_post,
)
from tasks.detoxification.scorers import EXAMPLES, ScorersSettings, train_scorers
from tasks.detoxification.task import TASK

FOLDER = Path(__file__).parents[1]
SPAN_RM = FOLDER / "reward_modeling" / "small_span_rm_config.yml"
SCORE_RM = FOLDER / "reward_modeling" / "small_score_rm_config.yml"


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """300 rated rows and 120 posts; half of the texts and sentences have the word `fool`."""
    folder = tmp_path_factory.mktemp("source")
    rows = []
    for n in range(300):
        toxic = n % 2 == 1
        rows.append(
            {
                "filename": f"page-{n}.txt",
                "begin": 0,
                "prompt": {
                    "text": f"they called you {'a fool' if toxic else 'a friend'} {n % 7}",
                    "toxicity": 0.9 if toxic else 0.1,
                },
                "continuation": {"text": " and a nice day", "toxicity": 0.2},
            }
        )
    write_jsonl(folder / RATED_FILE, rows)
    posts = ["spans,text"]
    for n in range(120):
        sentences = ["you fool .", f"have a kind day {n} ."]
        text = " ".join(sentences if n % 2 else reversed(sentences))  # in either order
        marked = list(range(text.index("fool"), text.index("fool") + 4))
        posts.append(f'"{marked}",{text}')
    write_text(folder / SPANS_FILE, "\n".join(posts) + "\n")
    return folder


# ---- training files ------------------------------------------------------------------------------


def test_a_tagged_post_by_hand():
    post = MarkedPost("You fool. Have a kind day. Bye, fool!", frozenset([4, 5, 6, 7, 32]))
    line = tagged_post(post, load_segmenter(BLANK))
    assert line is not None
    assert line.words[:4] == ["Text:", "</s>", "You", "fool."]
    marks = [tag for word, tag in zip(line.words, line.tags) if word == "</s>"]
    assert marks == ["TOXIC", "O", "TOXIC"]
    others = {tag for word, tag in zip(line.words, line.tags) if word != "</s>"}
    assert others == {"Ignore"}
    assert tagged_post(MarkedPost(" ", frozenset()), load_segmenter(BLANK)) is None


def test_pairs_by_hand():
    # .1 and .25 are too similar; .9 is worse than all others
    assert better_pairs([0.9, 0.1, 0.5, 0.25]) == [[1, 0], [2, 0], [3, 0], [1, 2], [3, 2]]
    assert better_pairs([0.2, 0.4]) == [[0, 1]]
    assert better_pairs([0.2, 0.39]) == []


def rated(number: int, prompt: float | None, continuation: float | None) -> RatedRow:
    return RatedRow(
        id=f"p{number}:0",
        page=f"p{number}",
        prompt=RatedText(f"prompt {number}", prompt),
        continuation=RatedText(f"continuation {number}", continuation),
    )


def test_rows_of_pairs():
    rows = [rated(n, 0.1 * n, None if n == 3 else 0.9) for n in range(6)]
    rows.append(RatedRow("blank:0", "blank", RatedText(" ", 0.9), RatedText("", 0.1)))
    result = comparisons(rows)
    # eleven texts with a score and words: rows of 4, 4 and 3
    assert [len(row["responses"]) for row in result] == [4, 4, 3]
    texts = [text for row in result for text in row["responses"]]
    assert sorted(texts) == sorted(half.text for row in rows[:-1] for half in row.texts)
    toxicity = {half.text: half.toxicity for row in rows for half in row.texts}
    for row in result:
        for better, worse in row["preferences"]:
            difference = toxicity[row["responses"][worse]] - toxicity[row["responses"][better]]
            assert difference >= 0.2
    assert comparisons(reversed(rows)) == result  # the order of the rows does not matter
    assert comparisons(rows[3:4]) == []  # a single text


def test_no_scorer_learns_from_held_out_texts(source):
    # the shares of data/prepare.py
    assert 0 < POSTS_DEV < HELD_OUT and PARTS["test"] < PAGES_DEV < PARTS["judge"]
    splits = set()
    for n in range(200):
        post = MarkedPost(f"post {n}", frozenset())
        split = split_of_post(post)
        assert (split is None) == (hash_share(post.text) > HELD_OUT)
        splits.add(split)
    for row in read_rated(source / RATED_FILE):
        split = split_of_page(row)
        assert (split is None) == (part_of(row) != "judge")
        splits.add(split)
    assert splits == {"train", "dev", None}


def test_files_are_those_that_the_trainers_read(source, tmp_path, capsys):
    create_rm_files(RMFileSettings(source=str(source), output_dir=str(tmp_path)))
    for split in ("train", "dev"):
        rows = read_segment_rows(
            tmp_path / "span_segments" / f"{split}.json", ["TOXIC", "O"], "Ignore", "sentence"
        )
        assert {row.labels for row in rows} == {(0, 1), (1, 0)}
        assert {row.text.prefix.words for row in rows} == {("Text:",)}
        pairs = COMPARISONS.read(str(tmp_path / "score_pairs" / f"{split}.json"))
        assert any(comparison.pairs for comparison in pairs)
        for comparison in pairs:
            for _, worse in comparison.pairs:
                assert "fool" in comparison.answers[worse].text
    segmenter = read_json(tmp_path / "span_segments" / "segmenter.json")
    assert segmenter == load_segmenter().describe()
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_nothing_to_learn_from_is_an_error(source, tmp_path):
    write_text(tmp_path / SPANS_FILE, (source / SPANS_FILE).read_text())
    rows = [json.loads(line) for line in (source / RATED_FILE).read_text().splitlines()]
    write_jsonl(tmp_path / RATED_FILE, rows[:1])
    with pytest.raises(UserError, match=r"prompts\.jsonl has nothing to learn from for train"):
        create_rm_files(RMFileSettings(source=str(tmp_path), output_dir=str(tmp_path / "data")))
    assert not (tmp_path / "data").exists()


# ---- the comparison ------------------------------------------------------------------------------


def test_a_difference_without_an_interval_keeps_the_default():
    first = conclusions({"score_rm": Interval(0.25, math.nan, math.nan)})[1]
    assert first.startswith("score_rm: AUC +0.250 (no inte") and "keep the default" in first


@pytest.mark.parametrize(
    "interval, verdict",
    [
        (Interval(0.02, 0.01, 0.03), "+0.020 [+0.010, +0.030], better than reward_scorer"),
        (Interval(0.02, -0.01, 0.05), "not clearly better than reward_scorer: keep the default"),
        (Interval(-0.02, -0.03, -0.01), "worse than reward_scorer: keep the default"),
    ],
)
def test_what_the_comparison_concludes(interval, verdict):
    first, line = conclusions({"span_rm": interval})
    assert first == "default: reward_scorer rewards, judge judges"
    assert line.startswith("span_rm: AUC ") and verdict in line


def test_the_default_is_that_of_the_configs(environment):
    path = FOLDER / "training" / "small_fine_grained_config.yml"
    config = load_config(rl_config(TASK), path).model_dump()
    assert Path(config["reward"]["toxicity"]["scorer"]["ckpt"]).name == compare_scorers.REWARD
    judge = config["evaluation_metrics"][0]
    assert judge["key"] == "judge" and Path(judge["scorer"]["ckpt"]).name == compare_scorers.JUDGE


@pytest.mark.parametrize(
    "rows, message",
    [
        ([{"text": "x", "toxic": True, "held_out": True}], "is damaged or old"),
        ([{"text": "x", "toxic": True, "held_out": True, "group": "g"}], "not of both classes"),
        ({"text": "x"}, "is damaged or old"),
    ],
)
def test_other_examples_are_an_error(tmp_path, rows, message):
    write_json(tmp_path / "rows.json", rows)
    with pytest.raises(UserError, match=message):
        compare_scorers.read_held_out(tmp_path / "rows.json")


# ---- configs and stages --------------------------------------------------------------------------


@pytest.fixture
def environment(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("OUTPUT_DIR", str(tmp_path))
    monkeypatch.setenv("DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("FGRLHF_SMALL_MODEL", str(tmp_path / "model"))
    return tmp_path


def test_reward_models_read_no_prompt():
    prompts = [Prompt("0", "one"), Prompt("1", "another one")]
    read = [TASK.rm_prefix(prompt, True) for prompt in prompts]
    assert read == [("Text:",), ("Text:",)]


def test_every_stage_runs(environment, source, capsys):
    """Both scorers on a tiny model, then the comparison with the linear ones."""
    data = environment / "data"
    prepare(PrepareSettings(source=str(source), data_dir=str(data)))
    create_rm_files(RMFileSettings(source=str(source), output_dir=str(environment / "derived")))
    train_scorers(ScorersSettings(data_dir=str(data), output_dir=str(environment)))
    tiny_model.main(
        [
            "tasks.detoxification",
            f"output_dir={environment}/model",
            f"train_file={data}/train.json",
            "words=Text: friend have kind nice day and .",
            "width=32",
            "heads=2",
        ]
    )
    short = ["model.layers=2", "model.train_top_layers=1", "train.lr=1e-2", "train.warmup_steps=0"]
    run_fg_rm.main(["tasks.detoxification", str(SPAN_RM), *short, "train.max_steps=20"])
    run_pref_rm.main(["tasks.detoxification", str(SCORE_RM), *short, "train.max_steps=20"])
    section = SegmentModelScorer(ckpt=f"{environment}/span_rm", aggregate="min")
    scorer = section.build(RewardContext(TASK.rm_prefix))
    texts = ["", "have a kind day .", "have a kind day . you fool ."]
    empty, kind, toxic = scorer.score([Prompt("0", "they called you")] * 3, texts)
    assert empty == 1 and kind > 0.5 > toxic
    capsys.readouterr()

    settings = compare_scorers.CompareScorersSettings(
        data_dir=str(data), output_dir=str(environment)
    )
    differences = compare_scorers.compare(settings)
    assert differences.keys() == {"span_rm", "score_rm"}
    printed = capsys.readouterr().out
    for name in ("reward_scorer", "judge", "span_rm", "score_rm"):
        assert printed.count(f"  {name}: AUC") == len(EXAMPLES)
    # the labels are those of a single word, which every scorer has learned
    assert "  span_rm: AUC 1.000" in printed and "  score_rm: AUC 1.000" in printed
    assert "default: reward_scorer rewards, judge judges" in printed


def test_linear_scorers_alone_are_compared(environment, source, capsys):
    data = environment / "data"
    prepare(PrepareSettings(source=str(source), data_dir=str(data)))
    train_scorers(ScorersSettings(data_dir=str(data), output_dir=str(environment)))
    settings = compare_scorers.CompareScorersSettings(
        data_dir=str(data), output_dir=str(environment)
    )
    assert compare_scorers.compare(settings) == {}
    missing = settings.model_copy(update={"span_rm": str(environment / "nowhere")})
    with pytest.raises(UserError, match="nowhere"):
        compare_scorers.compare(missing)
