"""The seven text tasks of RL4LMs: fixtures, configs, two steps of every run, scripts, pages."""

import re
import subprocess
from pathlib import Path

import pytest
from slow import with_slow
from stage_scripts import fake_python

from fgrlhf.base.files import read_json, read_jsonl
from fgrlhf.cli import evaluate, linear_scorer, rl, tiny_model
from fgrlhf.cli.published import PublishedSettings, write_prompts
from fgrlhf.configs.strict import load_config
from fgrlhf.configs.yaml_files import config_files
from fgrlhf.load import load_task
from fgrlhf.task import Task
from fgrlhf.task_config import rl_config
from interface_html.tasks import feedback_of
from sft import run_sft
from sft.config import SFTConfig

ROOT = Path(__file__).parents[1]
NAMES = (
    "cnn_dailymail",
    "common_gen",
    "daily_dialog",
    "imdb",
    "iwslt2017",
    "narrative_qa",
    "totto",
)


def task_of(name: str) -> Task:
    return load_task(f"tasks.{name}")


def config_path(name: str, scale: str, stage: str) -> Path:
    prefix = "" if scale == "paper" else f"{scale}_"
    return ROOT / "tasks" / name / f"{prefix}{stage}_config.yml"


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A folder with the prompts of each fixture."""
    folder = tmp_path_factory.mktemp("data")
    for name in NAMES:
        write_prompts(
            task_of(name), PublishedSettings(data_dir=str(folder / name), source="fixture")
        )
    return folder


# ---- fixtures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_fixture_has_50_different_rows(name):
    rows = read_jsonl(ROOT / "tasks" / name / "data" / "fixture.jsonl")
    assert len(rows) == 50
    assert len({str(row) for row in rows}) == 50
    assert all(set(row) == set(rows[0]) for row in rows)


@pytest.mark.parametrize("name", NAMES)
def test_the_prompts_of_a_fixture(name, data):
    task = task_of(name)
    prompts = {}
    for split in ("train", "dev", "test"):
        prompts[split] = task.prompts(data / name / f"{split}.json", split)
        assert all(prompt.references for prompt in prompts[split])
    assert min(map(len, prompts.values())) >= 10 and len(prompts["train"]) >= 30
    ids = [prompt.id for part in prompts.values() for prompt in part]
    assert len(set(ids)) == len(ids)


def test_both_sentiments_and_all_intents_are_in_the_training_rows(data):
    def labels(name):
        return {row["label"] for row in read_json(data / name / "labelled.json")}

    assert labels("imdb") == {"positive", "negative"}
    assert labels("daily_dialog") == {"inform", "question", "directive", "commissive"}
    demonstrations = read_json(data / "imdb" / "sft.json")
    assert demonstrations and all(row["label"] == 1 for row in demonstrations)


# ---- configs -------------------------------------------------------------------------------------


@pytest.fixture
def somewhere(monkeypatch):
    for name in ("OUTPUT_DIR", "DATA_DIR"):
        monkeypatch.setenv(name, "somewhere")


@pytest.mark.parametrize("scale", ["paper", "mini"])
@pytest.mark.parametrize("name", NAMES)
def test_every_config_is_valid_and_names_its_source(name, scale, somewhere):
    load_config(SFTConfig, config_path(name, scale, "sft"))
    for stage in ("ppo", "nlpo"):
        config = load_config(rl_config(task_of(name)), config_path(name, scale, stage))
        assert config.algorithm.name == stage
        assert config.unused_settings() == []
        assert config.logging.save_dir == f"somewhere/{stage}"
    if scale == "paper":
        for stage in ("sft", "ppo", "nlpo"):
            assert "RL4LMs" in config_path(name, scale, stage).read_text(encoding="utf-8")


@pytest.mark.parametrize("stage", ["ppo", "nlpo"])
@pytest.mark.parametrize("name", NAMES)
def test_the_translation_of_rl4lms_settings(name, stage, somewhere):
    """docs/text_tasks.md: an iteration in responses, the KL per response."""
    path = config_path(name, "paper", stage)
    config = load_config(rl_config(task_of(name)), path)
    train = config.train
    length = config.model.max_generated_len
    # the comments are in the file that has the value
    text = "".join(file.read_text(encoding="utf-8") for file in config_files(path))
    tokens = int(re.search(r"# ([\d,]+) tokens", text)[1].replace(",", ""))
    episodes = train.sampling_batch_size_per_card
    assert config.env.train_num_samples_per_input == 1
    assert abs(episodes * length - tokens) <= length
    iterations = int(re.search(r"# (\d+) iterations", text)[1])
    assert train.total_episodes == iterations * episodes
    # 0.1 of the clipped error in each iteration
    assert config.algorithm.kl.horizon == 10 * episodes
    per_token = float(re.search(r"# ([\d.]+) per token", text)[1])
    assert config.algorithm.kl.target == pytest.approx(per_token * length)
    assert episodes % train.n_minibatches == 0
    assert 32 <= episodes // train.n_minibatches * length <= 128  # tokens of a minibatch: 64


# ---- two steps of every run at mini scale --------------------------------------------------------


@pytest.fixture
def outputs(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("OUTPUT_DIR", str(tmp_path))
    return tmp_path


def train_scorers(data: Path, name: str, folder: Path) -> None:
    labelled = data / name / "labelled.json"
    if labelled.exists():
        linear_scorer.main([f"texts={labelled}", f"output_dir={folder}/scorers"])


BY_DEFAULT = ("daily_dialog", "imdb", "totto")
FEW_STEPS = [
    "train.max_steps=2",
    "train.batch_size=2",
    "evaluation.examples=2",
    "logging.log_interval=1",
]
FEW_ROLLOUTS = [
    "train.sampling_batch_size_per_card=2",
    "train.micro_batch_size=2",
    "train.n_minibatches=1",
    "train.n_ppo_epoch_per_rollout=1",
    "evaluation.examples=2",
    "model.max_generated_len=8",
]


def trained_steps(folder: Path) -> int:
    rows = read_jsonl(folder / "metrics.jsonl")
    return max(row.get("step", 0) for row in rows)


@pytest.mark.parametrize("name", with_slow(NAMES, lambda name: name not in BY_DEFAULT))
def test_two_steps_of_the_configs_at_mini_scale(name, data, outputs, monkeypatch):
    monkeypatch.setenv("DATA_DIR", str(data / name))
    train_file = f"train_file={data / name}/train.json"
    tiny_model.main([f"tasks.{name}", train_file, f"output_dir={outputs}/base_model"])
    train_scorers(data, name, outputs)
    run_sft.main([f"tasks.{name}", str(config_path(name, "mini", "sft")), *FEW_STEPS])
    for stage in ("ppo", "nlpo"):
        config = str(config_path(name, "mini", stage))
        rl.main([f"tasks.{name}", config, *FEW_ROLLOUTS, "train.total_episodes=8"])
        assert trained_steps(outputs / stage) == 2
    folders = [f"data_dir={data / name}", f"output_dir={outputs}", f"policy={outputs}/ppo/best"]
    evaluate.main(
        [f"tasks.{name}", *folders, f"config={config_path(name, 'mini', 'ppo')}", "max_examples=2"]
    )
    summary = read_json(outputs / "eval" / "ppo-test" / "summary.json")
    headline = [metric for metric in task_of(name).display.headline if metric in summary]
    assert len(headline) >= 2


# ---- scripts and pages ---------------------------------------------------------------------------


@pytest.fixture
def recorded(tmp_path):
    """Runs a script of a task with a `python` that only records its arguments."""
    programs = tmp_path / "bin"
    programs.mkdir()
    fake_python(programs, 'echo "$@" >>"$RECORD"')
    record = tmp_path / "record"

    def run(*arguments, task="imdb", **variables):
        record.write_text("")
        environment = {
            "PATH": f"{programs}:/usr/bin:/bin",
            "VIRTUAL_ENV": "/some/environment",
            "RECORD": str(record),
            "OUTPUT_DIR": str(tmp_path / "out"),
            **variables,
        }
        command = ["bash", str(ROOT / "tasks" / task / "run.sh"), *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        return done, record.read_text().splitlines()

    return run


def modules(calls: list[str]) -> list[str]:
    return [re.search(r"-m (\S+)", call)[1] for call in calls]


def test_all_stages_at_mini_scale(recorded, tmp_path):
    # what the stages would have written
    for name in ("data/train.json", "data/test.json", "sft", "nlpo/best", "eval"):
        (tmp_path / "out" / name).mkdir(parents=True)
    done, calls = recorded("all", SCALE="mini")
    assert done.returncode == 0, done.stderr
    assert modules(calls) == [
        "fgrlhf.cli.published",
        "fgrlhf.cli.tiny_model",
        "sft.run_sft",
        "fgrlhf.cli.rl",
        "fgrlhf.cli.rl",
        "fgrlhf.cli.evaluate",
        "fgrlhf.cli.evaluate",  # there is no policy of PPO
        "fgrlhf.pipeline.summary",
        "fgrlhf.report.page",
    ]
    assert f"data_dir={tmp_path}/out/data source=fixture" in calls[0]
    assert "tasks/imdb/mini_sft_config.yml" in calls[2]
    assert "name=nlpo" in calls[6]


def test_scorers_are_trained_where_there_are_labelled_texts(recorded, tmp_path):
    (tmp_path / "out" / "data").mkdir(parents=True)
    (tmp_path / "out" / "data" / "labelled.json").touch()
    _, calls = recorded("prepare", SCALE="mini")
    assert modules(calls)[-1] == "fgrlhf.cli.linear_scorer"


def test_paper_scale_reads_the_hub_and_a_source_can_be_named(recorded, tmp_path):
    _, calls = recorded("prepare")
    assert calls == [f"-m fgrlhf.cli.published tasks.imdb data_dir={tmp_path}/out/data"]
    _, calls = recorded("prepare", "source=copy", "subset_size=5")
    assert calls[0].endswith("source=copy subset_size=5")


def test_one_policy_is_evaluated(recorded, tmp_path):
    (tmp_path / "out" / "data" / "test.json").mkdir(parents=True)
    _, calls = recorded("evaluate", "policy=other", "name=initial")
    assert len(calls) == 1 and calls[0].endswith("policy=other name=initial")


def test_rl_needs_the_supervised_policy_unless_its_config_names_another(recorded, tmp_path):
    (tmp_path / "out" / "data" / "train.json").mkdir(parents=True)
    done, calls = recorded("nlpo")
    assert (
        calls == []
        and "/sft is missing. Run `SCALE=paper bash tasks/imdb/run.sh sft`" in done.stderr
    )
    _, calls = recorded("nlpo", task="narrative_qa")
    assert modules(calls) == ["fgrlhf.cli.rl"]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((), "`` is not a stage: bash tasks/imdb/run.sh prepare|"),
        (("pp",), "`pp` is not a stage"),
        (("all", "train.lr=1"), "all takes no further arguments, there are train.lr=1"),
    ],
)
def test_wrong_stages(recorded, arguments, message):
    done, calls = recorded(*arguments)
    assert done.returncode == 2 and message in done.stderr and calls == []


@pytest.mark.parametrize("name", NAMES)
def test_the_pages_mark_spans_compare_and_rate_two_outputs(name):
    task = task_of(name)
    schema = feedback_of(name).schema
    assert schema.task == task.name == name
    assert schema.pages == ("annotation", "comparison", "rating")
    assert len(schema.fields.outputs) == 2
