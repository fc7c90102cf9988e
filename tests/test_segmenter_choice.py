"""Which segmenter a run uses: named in its config, or said, recorded and compared on resume."""

import json
import re
from pathlib import Path

import pytest
import rm_helpers as rm
import spacy
from test_checkpoint import make
from test_reward_models import published, spec

from fgrlhf import reward_utils
from fgrlhf.base.errors import UserError
from fgrlhf.configs.strict import validate
from fgrlhf.load import load_task
from fgrlhf.metrics.config import MetricConfig, models_of
from fgrlhf.reward_models.spec import RewardModelSpec
from fgrlhf.reward_utils import BLANK, MULTILINGUAL, PUBLISHED, installed_segmenter
from fgrlhf.rewards.build import build_aspects
from fgrlhf.rewards.kinds import Regex, SegmentClassifier
from fgrlhf.rewards.server import model_sha256
from fgrlhf.runs import checkpoint
from fgrlhf.runs.stage import begin, digests, stored_result
from fgrlhf.scorers.base import RewardContext
from fgrlhf.scorers.kinds import SegmentModelScorer
from fgrlhf.text_types import Prompt

TRAINED = "en_core_web_sm"
CONTEXT = RewardContext(rm.prefix_fn)
TEXT = "One. Two | three. Four"


def clear() -> None:
    for cached in ("_pipeline", "_raw_sentences", "_subsentences", "_print_choice"):
        getattr(reward_utils, cached).cache_clear()


@pytest.fixture
def install(monkeypatch):
    """A function that installs the trained pipeline, or removes it: it ends sentences at `|`."""
    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer", config={"punct_chars": ["|"]})
    nlp.meta["version"] = "9.9"
    version_of = reward_utils.version_of
    monkeypatch.setattr(reward_utils, "_declares_a_model", lambda name: name == TRAINED)
    monkeypatch.setattr(spacy, "load", lambda name, exclude: nlp)
    monkeypatch.setattr(
        reward_utils, "version_of", lambda name: "9.9" if name == TRAINED else version_of(name)
    )

    def change(is_there: bool) -> None:
        clear()
        monkeypatch.setattr(reward_utils, "_is_installed", lambda name: is_there or name != TRAINED)

    yield change
    clear()


def regex(**changes) -> Regex:
    section = {"pattern": "o", "value": 1.0, "otherwise": -1.0, "level": "sentence", **changes}
    return validate(Regex, section, "test")


def scores_of(config: Regex):
    aspects, _ = build_aspects({"a": config}, CONTEXT)
    return aspects["a"].segment_scores([Prompt("0", "ask")], [TEXT])


@pytest.mark.parametrize("name", [MULTILINGUAL, BLANK])
def test_a_named_segmenter_gives_the_same_rewards_on_every_machine(name, install, capsys):
    rewards = []
    for is_installed in (True, False):
        install(is_installed)
        rewards.append(scores_of(regex(segmenter=name)))
    assert rewards[0] == rewards[1]
    assert [(score.start, score.end) for score in rewards[0][0]] == [(0, 4), (5, 17), (18, 22)]
    assert "note" not in capsys.readouterr().err


def test_a_run_is_told_which_segmenter_it_took(install, capsys):
    ends = {}
    for is_installed, name in ((True, TRAINED), (False, BLANK)):
        install(is_installed)
        (scores,) = scores_of(regex(segmenter=PUBLISHED))
        scores_of(regex(segmenter=PUBLISHED))  # told once
        ends[name] = [score.end for score in scores]
        assert f"`published` is {name} here" in capsys.readouterr().err
    assert ends == {TRAINED: [10, 22], BLANK: [4, 17, 22]}


def test_the_segmenters_version_is_that_which_loading_finds(install):
    install(True)
    for name in (MULTILINGUAL, BLANK, TRAINED, PUBLISHED):
        described = reward_utils.load_segmenter(name).describe()
        assert installed_segmenter(name) == f"{described['name']} {described['version']}"
    install(False)
    assert installed_segmenter(PUBLISHED) == f"{BLANK} {spacy.__version__}"
    assert installed_segmenter(TRAINED) == f"{TRAINED} is not installed"


def test_segmenters_are_inputs_where_segments_need_them(tmp_path):
    assert regex().model_folders() == ("segmenter:multilingual",)
    assert regex(level="step").model_folders() == ()
    metrics = [MetricConfig(name="sentences", segmenter=PUBLISHED), MetricConfig(name="rouge1")]
    assert models_of(metrics) == ["segmenter:published"]
    folder = str(tmp_path / "rm")
    (tmp_path / "rm").mkdir()
    spec(segmenter={"name": BLANK, "version": "1"}).save(folder)
    for section in (
        SegmentClassifier(ckpt=folder, values={"ok": 1.0}),
        SegmentModelScorer(ckpt=folder),
    ):
        assert section.model_folders() == (folder, f"segmenter:{BLANK}")
    hub = SegmentClassifier(
        ckpt="a/b", values={"ok": 1.0}, level="sentence", segmenter=MULTILINGUAL
    )
    assert hub.model_folders() == ("a/b", "segmenter:multilingual")


def test_a_run_is_not_continued_with_another_segmenter(install, tmp_path):
    def run():
        made = make(tmp_path)
        made.input_digests = digests(regex(segmenter=PUBLISHED).model_folders())
        return made

    install(True)
    run().train(until=1)
    assert checkpoint.load_latest(run())
    install(False)
    message = "segmenter:published: texts were divided by en_core_web_sm 9.9, and are by blank_en"
    with pytest.raises(UserError, match=message):
        checkpoint.load_latest(run())


def test_an_evaluation_is_not_reused_with_another_segmenter(install, tmp_path):
    config = regex(segmenter=PUBLISHED)
    install(True)
    begin(tmp_path, config, config.model_folders())
    (tmp_path / "config.yaml").write_text(json.dumps(config.model_dump(mode="json")))
    (tmp_path / "result.json").write_text("{}")
    assert stored_result(tmp_path, config, config.model_folders()) == {}
    install(False)
    with pytest.raises(UserError, match="segmenter:published: texts were divided by en_core_web"):
        stored_result(tmp_path, config, config.model_folders())


def test_the_hash_of_a_served_reward_covers_its_segmenter(install):
    hashes = set()
    for is_installed in (True, False):
        install(is_installed)
        hashes.add(model_sha256(regex(segmenter=PUBLISHED), "fp32"))
        hashes.add(model_sha256(regex(segmenter=MULTILINGUAL), "fp32"))
    assert len(hashes) == 3


def test_a_config_gives_the_segmenter_of_a_published_checkpoint(install, tmp_path):
    install(False)
    published(tmp_path, ("X", "O", "Ignore"))
    section = {"ckpt": str(tmp_path), "values": {"error": 1.0}, "level": "sentence"}
    built = SegmentClassifier(**section).build(CONTEXT)
    assert built.scorer.spec.segmenter == {"name": BLANK, "version": spacy.__version__}
    built = SegmentClassifier(**section, segmenter=MULTILINGUAL).build(CONTEXT)
    assert built.scorer.segmenter.name == MULTILINGUAL


# ---- of a task -----------------------------------------------------------------------------------


@pytest.fixture
def divided_task(tmp_path, monkeypatch):
    """A package in the working directory with the task of docs/rewards.md; its name."""
    text = Path(__file__).parents[1].joinpath("docs", "rewards.md").read_text(encoding="utf-8")
    *_, code = re.findall(r"^```python\n(.*?)^```", text, flags=re.M | re.S)
    name = f"divided_{tmp_path.name.replace('-', '_')}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "task.py").write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    reward_utils._of_tasks.clear()
    clear()


def test_a_segmenter_of_the_task_divides_texts(divided_task, tmp_path):
    with pytest.raises(UserError, match="`semicolons` is not a segmenter: .* of the task"):
        regex(segmenter="semicolons")
    load_task(divided_task)
    config = regex(segmenter="semicolons")
    aspects, _ = build_aspects({"a": config}, CONTEXT)
    (scores,) = aspects["a"].segment_scores([Prompt("0", "ask")], ["A cat; no dog. \n"])
    assert [(score.start, score.end, score.value) for score in scores] == [(0, 6, -1), (7, 14, 1)]
    segmenter = reward_utils.load_segmenter("semicolons")
    assert segmenter.subsentences("A cat; no dog.") == [(0, 6), (7, 14)]
    (recorded,) = digests(config.model_folders()).values()
    assert recorded == f"semicolons {segmenter.version}"
    spec(segmenter=segmenter.describe()).save(tmp_path)
    described = RewardModelSpec.read(tmp_path).segmenter
    assert described is not None and reward_utils.load_segmenter(described) == segmenter
    reward_utils._of_tasks.clear()  # as with another task
    with pytest.raises(UserError, match="names no segmenter of the library or of the task"):
        RewardModelSpec.read(tmp_path)


def found_nothing(text):
    return [(0, 3), (2, 5)]


@pytest.mark.parametrize(
    "segmenters, message",
    [
        ({"multilingual": found_nothing}, "the name 'multilingual': choose another one"),
        ({"de_core_news_sm": found_nothing}, "the name 'de_core_news_sm'"),
        ({"a.b": found_nothing}, "the name 'a.b'"),
        ({"mine": 3}, "`mine` of the task is not a function"),
    ],
)
def test_unusable_segmenters_of_a_task_are_refused(segmenters, message):
    with pytest.raises(UserError, match=message):
        reward_utils.add_segmenters(segmenters)
    assert "mine" not in reward_utils._of_tasks


def test_spans_that_are_no_sentences_are_named(monkeypatch):
    monkeypatch.setattr(reward_utils, "_of_tasks", {"mine": found_nothing})
    with pytest.raises(UserError, match=r"`mine` of the task returned the span \(2, 5\) after"):
        reward_utils.load_segmenter("mine").sentences("a text")
