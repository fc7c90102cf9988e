"""compare.sh: what it runs, and how runs, seeds and questions become a table and a page."""

from pathlib import Path

import numpy as np
import pytest

from fgrlhf.algorithms.registry import ALGORITHMS
from fgrlhf.config import load_config
from fgrlhf.errors import UserError
from fgrlhf.files import write_json, write_jsonl
from fgrlhf.runs.dpo_config import DPOConfig
from fgrlhf.task import rl_config
from tasks.qa_feedback import compare
from tasks.qa_feedback.compare import NAMES, Settings, curve, results, stages, training, tuned
from tasks.qa_feedback.compare_page import others, page, table
from tasks.qa_feedback.task import TASK

QAConfig = rl_config(TASK)

LOG = [
    {"step": 0, "eval/oracle/gold": 0.5, "eval/kl": 0.0},
    {"step": 0, "episodes": 64, "time/rollout": 1.0, "time/update": 2.0},
    {"step": 1, "episodes": 128, "time/rollout": 1.5, "time/update": 2.5},
    {"step": 2, "eval/oracle/gold": 0.7, "eval/kl": 3.0},
]


def test_a_curve_counts_episodes_and_the_seconds_of_training():
    assert curve(LOG) == [
        {"episodes": 0.0, "seconds": 0.0, "gold": 0.5, "kl": 0.0},
        {"episodes": 128.0, "seconds": 7.0, "gold": 0.7, "kl": 3.0},
    ]


def test_a_run_has_its_algorithm_its_seed_and_its_share_of_episodes():
    stage = training("rloo-holistic", 2, 5, Path("/base"), Path("/out"))
    assert {"algorithm.name=rloo", "train.seed=2", "train.total_episodes=320"} <= set(stage.command)
    assert stage.command[3].endswith("mini_baseline_config.yml") and stage.outputs == (
        "rloo-holistic/seed-2",
    )
    assert "/base/baseline_rm/model.safetensors" in stage.reads and not any(
        "rel_rm" in path for path in stage.reads
    )


@pytest.mark.parametrize(
    "name", [name for name in NAMES if name not in compare.DPO and name != compare.SFT]
)
def test_the_configs_take_what_was_tuned(name, monkeypatch):
    monkeypatch.setenv("OUTPUT_DIR", "o")
    monkeypatch.setenv("DATA_DIR", "d")
    command = training(name, 0, 40, Path("/base"), Path("/out")).command
    config = load_config(QAConfig, command[3], list(command[4:]))
    assert config.algorithm.name == name.removesuffix("-holistic") in ALGORITHMS
    prompts, samples = (
        config.train.sampling_batch_size_per_card,
        config.env.train_num_samples_per_input,
    )
    assert prompts * samples == compare.EPISODES_PER_STEP


@pytest.mark.parametrize("name", compare.DPO)
def test_dpo_runs_are_valid(name, monkeypatch):
    monkeypatch.setenv("OUTPUT_DIR", "o")
    monkeypatch.setenv("DATA_DIR", "d")
    stage = training(name, 1, 40, Path("/base"), Path("/out"))
    config = load_config(DPOConfig, stage.command[3], list(stage.command[4:]))
    assert config.train.seed == 1 and "/base/data/train_feedback.json" in stage.reads


def test_corrected_sft_is_its_script():
    stage = training("corrected-sft", 1, 40, Path("/base"), Path("/out"))
    assert (
        stage.command[:2] == ("bash", "tasks/qa_feedback/training/train_corrected_sft.sh")
        and "train.seed=1" in stage.command
    )
    evaluated = stages(
        Settings(algorithms="corrected-sft,ppo", seeds="1"), Path("/base"), Path("/out")
    )
    policies = [part for stage in evaluated for part in stage.command if part.startswith("policy=")]
    assert policies == [
        "policy=/base/sft",
        "policy=/out/corrected-sft/seed-1",
        "policy=/out/ppo/seed-1/best",
    ]


def test_what_is_tuned_is_tuned_for_an_algorithm_that_is_there():
    assert set(compare.read_yaml(compare.ROOT / compare.TUNED)) <= set(NAMES)
    assert all("=" in setting for name in NAMES for setting in tuned(name))


@pytest.fixture
def found(tmp_path):
    """Two algorithms, two seeds, two questions: ppo gains .2 and .4 over SFT, rloo nothing."""
    settings = Settings(algorithms="ppo,rloo,corrected-sft", seeds="0,1")

    def write(folder: str, name: str, values: list[float]) -> None:
        rows = [{"id": question, "oracle/gold": value} for question, value in zip("ba", values)]
        write_jsonl(tmp_path / folder / "eval" / f"{name}-test" / "rows.jsonl", rows)

    write("sft", "sft", [0.1, 0.5])
    for seed in (0, 1):
        write(f"eval-{seed}", "ppo", [0.5, 0.7])
        write(f"eval-{seed}", "rloo", [0.1, 0.5])
        write(f"eval-{seed}", "corrected-sft", [0.2, 0.5])
        write_jsonl(
            tmp_path / "corrected-sft" / f"seed-{seed}" / "metrics.jsonl",
            [{"step": 400, "eval/rougeLsum": 70.0}],
        )
        for name in ("ppo", "rloo"):
            write_jsonl(tmp_path / name / f"seed-{seed}" / "metrics.jsonl", LOG)
    write_json(
        tmp_path / "stages.json",
        {f"corrected-sft/seed-{seed}": {"seconds": 30.0} for seed in (0, 1)},
    )
    return results(settings, tmp_path)


def test_the_summary_has_runs_and_differences(found, tmp_path):
    run = found["runs"]["ppo"]["1"]
    assert (run["gold"], run["episodes"], run["seconds"]) == (pytest.approx(0.6), 128.0, 7.0)
    assert (
        found["differences"]["ppo_vs_sft"]["mean"] == pytest.approx(0.3)
        and found["differences"]["ppo_vs_sft"]["real"]
    )
    assert found["differences"]["rloo_vs_ppo"]["mean"] == pytest.approx(-0.3)
    assert not found["differences"]["rloo_vs_sft"]["real"]
    write_json(tmp_path / "summary.json", found)


def test_table_and_page_show_them(found):
    assert "| ppo | 0.600 | 0.600 0.600 | **+0.300 [+0.200, +0.400]** |" in table(found)
    html = page(found)
    assert (
        "| corrected-sft | 0.350 |" in table(found)
        and html.count("<svg") == 3
        and "<script" not in html
        and "http" not in html.replace("http-equiv", "").replace("http://www.w3.org", "")
    )


def test_an_algorithm_stands_beside_itself_with_holistic_rewards(found):
    same = {"mean": 0.0, "low": -0.1, "high": 0.1, "real": False, "excludes_zero": False}
    found["differences"] |= {
        "rloo-holistic_vs_rloo": same,
        "rloo-holistic_vs_gpg": same | {"real": True, "excludes_zero": True},
    }
    assert list(others(found)) == ["rloo-holistic_vs_rloo"]


@pytest.mark.parametrize(
    "settings, named",
    [
        ({"algorithms": "ppo,best"}, "best is not known"),
        ({"seeds": "0,x"}, "seeds=0,x"),
        ({"seeds": "-1"}, "seeds=-1"),
        ({"seeds": "1,1"}, "names a seed twice"),
        ({"seeds": "9" * 5000}, "whole numbers"),
    ],
)
def test_what_is_not_there_is_refused(settings, named):
    with pytest.raises(UserError, match=named):
        made = Settings(**settings)
        stages(made, Path("/base"), Path("/out"))


def test_without_a_demo_it_says_so(tmp_path):
    with pytest.raises(UserError, match="make demo"):
        compare.compare(Settings(base_dir=str(tmp_path), output_dir=str(tmp_path / "compare")))


def test_differences_are_corrected_for_their_number():
    """Twelve copies of SFT that differ by noise alone, and one that is better: some intervals
    exclude zero, one is real.
    """
    rng = np.random.default_rng(4)
    gold = {"sft": [np.zeros(100)] * 3, "better": [rng.normal(0.5, 0.02, 100) for _ in range(3)]}
    gold |= {
        f"same-{i}": [rng.normal(rng.normal(0, 0.02), 0.05, 100) for _ in range(3)]
        for i in range(12)
    }
    pairs = compare.differences(gold)
    assert len(pairs) == 91
    noise = {name: pair for name, pair in pairs.items() if "better" not in name}
    assert sum(pair["excludes_zero"] for pair in noise.values()) == 4 and not any(
        pair["real"] for pair in noise.values()
    )
    assert pairs["better_vs_sft"]["real"] and pairs["better_vs_sft"]["excludes_zero"]
    for pair in pairs.values():
        assert pair["p"] <= pair["p_corrected"] <= 1 and pair["real"] == (
            pair["p_corrected"] < 0.05
        )
        assert pair["excludes_zero"] == (pair["p"] < 0.05)


def test_table_and_page_show_what_is_real_and_what_only_looks_so(found):
    found["differences"]["ppo_vs_sft"] |= {"real": False, "excludes_zero": True}
    assert "| *+0.300 [+0.200, +0.400]* |" in table(found) and "<em>+0.300</em>" in page(found)
    found["differences"]["ppo_vs_sft"] |= {"real": False, "excludes_zero": False}
    assert "| +0.300 [+0.200, +0.400] |" in table(found) and "<em>" not in page(found)
    assert "all 6 differences" in table(found) and "all 6 differences" in page(found)
