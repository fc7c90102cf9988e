import re
from pathlib import Path

import pytest
import yaml
from refusals import refusals
from rl_helpers import config as rl_config

from fgrlhf.base.errors import UserError
from fgrlhf.configs.strict import StrictModel, load_config, to_yaml, validate
from fgrlhf.metrics.config import (
    METRICS,
    EvaluationMetrics,
    best_metric_mistakes,
    is_higher_better,
    models_of,
)
from fgrlhf.runs.dpo_config import DPOConfig
from fgrlhf.text_types import Prompt

DOCUMENT = Path(__file__).parents[1] / "docs" / "metrics.md"


LENGTH = {"kind": "python", "of": "my_package.Length"}


class Config(StrictModel):
    evaluation_metrics: EvaluationMetrics = []


def metrics(value):
    return validate(Config, {"evaluation_metrics": value}, "test").evaluation_metrics


def refused(value):
    with pytest.raises(UserError) as error:
        metrics(value)
    return str(error.value)


def test_names_and_sections(tmp_path):
    path = tmp_path / "config.yml"
    path.write_text(
        "evaluation_metrics: [rouge1, {name: perplexity, model: gpt2}, {name: repetition, n: 3}]"
    )
    config = load_config(Config, path)
    first, second, third = config.evaluation_metrics
    assert (first.name, first.column) == ("rouge1", "rouge1")
    assert (second.model, third.n) == ("gpt2", 3)
    assert models_of(config.evaluation_metrics) == ["gpt2"]
    path.write_text(to_yaml(config))
    assert load_config(Config, path) == config
    override = "evaluation_metrics=[bleu, {name: perplexity, model: a/b, key: ppl}]"
    assert [m.column for m in load_config(Config, path, [override]).evaluation_metrics] == [
        "bleu",
        "ppl",
    ]
    assert Config().evaluation_metrics == []


@pytest.mark.parametrize("value, message", refusals("metrics"))
def test_mistakes_are_named(value, message):
    assert message in refused(value)


def test_several_mistakes_are_reported_at_once():
    text = refused([{"name": "bleu", "model": "gpt2", "n": 2}, "chef"])
    assert "model: gpt2" in text and "n: 2" in text and "did you mean `chrf`?" in text


# ---- evaluation.metric ---------------------------------------------------------------------------


@pytest.mark.parametrize("best", ["reward", "rougeLsum", "length", "oracle/gold", "bleu/corpus"])
def test_metrics_that_can_pick_the_best_policy(best):
    assert best_metric_mistakes(best, metrics(["bleu"])) == []


def test_metrics_that_cannot_pick_the_best_policy():
    listed = metrics([{"name": "perplexity", "model": "m", "key": "ppl"}, "repetition"])
    (text,) = best_metric_mistakes("bleu", listed)
    assert "not computed: add bleu to evaluation_metrics" in text
    for best in ("ppl", "ppl/corpus", "repetition"):
        (text,) = best_metric_mistakes(best, listed)
        assert "a lower" in text and "is better" in text
    (text,) = best_metric_mistakes("kl", listed)
    assert "the one farthest from the reference" in text


def score(**settings):
    return metrics([{"name": "score", "key": "judge", "scorer": LENGTH, **settings}])


def test_the_better_scores_of_a_scorer():
    for metric in ("judge", "judge/max"):
        assert is_higher_better(metric, score(better="high")) is True
        assert is_higher_better(metric, score(better="low")) is False
        assert is_higher_better(metric, score()) is None
    assert "better: low is not read, since `bleu`" in refused([{"name": "bleu", "better": "low"}])


def test_a_score_picks_the_best_policy_only_if_higher_is_known_to_be_better():
    assert best_metric_mistakes("judge", score(better="high")) == []
    (text,) = best_metric_mistakes("judge/max", score())
    assert "`judge/max`, and whether higher scores are better is not known: add" in text
    assert "better: high to the metric `judge`" in text
    (text,) = best_metric_mistakes("judge", score(better="low"))
    assert "a lower score is better" in text


def test_training_configs_have_the_key(tmp_path):
    assert rl_config(tmp_path).evaluation_metrics == []
    listed = rl_config(tmp_path, evaluation_metrics=["bleu"], evaluation__metric="bleu/corpus")
    assert listed.evaluation_metrics[0].name == "bleu"
    with pytest.raises(UserError, match="evaluation.metric is `chrf`, which is not computed"):
        rl_config(tmp_path, evaluation__metric="chrf")
    tree = {
        "model": {"ckpt": "tiny"},
        "data": {"dev_file": "dev.json", "feedback_file": "pairs.json"},
        "logging": {"save_dir": str(tmp_path)},
        "evaluation_metrics": ["bleu"],
    }
    assert validate(DPOConfig, tree, "test").evaluation_metrics[0].name == "bleu"
    tree["evaluation"] = {"metric": "chrf"}
    with pytest.raises(UserError, match="evaluation.metric is `chrf`, which is not computed"):
        validate(DPOConfig, tree, "test")


# ---- docs/metrics.md -----------------------------------------------------------------------------


DIRECTIONS = {"higher": True, "lower": False, "neither": None, "`better`": None}


def test_the_document_lists_every_metric():
    text = DOCUMENT.read_text(encoding="utf-8")
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| `")]
    documented = {}
    for _, names, references, direction, *_ in rows:
        for name in re.findall(r"`(\w+)`", names):
            better = DIRECTIONS[direction.strip()]
            documented[name] = (references.strip() == "yes", better)
    assert documented == {
        name: (facts.needs_references, facts.higher_is_better) for name, facts in METRICS.items()
    }


def test_the_documents_configs_are_valid():
    text = DOCUMENT.read_text(encoding="utf-8")
    blocks = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert blocks
    for block in blocks:
        tree = yaml.safe_load(block)
        assert metrics(tree["evaluation_metrics"])
    (override,) = re.findall(r"'evaluation_metrics=(.*?)'", text)
    assert metrics(yaml.safe_load(override))


def test_the_documents_code_runs():
    (block,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    names = {
        "prompts": [Prompt("0", "the", ("a cat",)), Prompt("1", "the")],
        "texts": ["a cat"] * 2,
    }
    exec(block.replace("metric.values", "result = metric.values"), names)
    assert names["result"] == [pytest.approx(100), None]
