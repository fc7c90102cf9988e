"""make science: the stages of a seed, and intervals over seeds and questions."""

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import t

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_jsonl
from fgrlhf.cli.command_line import settings_from
from fgrlhf.report.spread import ONE_RUN
from fgrlhf.seed_stats import seed_interval
from fgrlhf.stats import mean_interval
from tasks.experiments import qa
from tasks.experiments.policies import METRICS, policies_table, results
from tasks.experiments.science import ARMS, COMPARED, ScienceSettings, seed_stages
from tasks.experiments.stages import experiment_of


def test_one_seed_leaves_the_interval_over_questions():
    differences = np.array([0.1, -0.2, 0.4, 0.3])
    assert seed_interval([differences]) == mean_interval(differences)


def test_seeds_widen_the_interval_by_students_t():
    """Seeds whose questions all agree have no spread over questions.

    Means 0 and 0.2, so SE = 0.1 with one degree of freedom.
    """
    interval = seed_interval([np.zeros(50), np.full(50, 0.2)])
    assert interval.mean == pytest.approx(0.1)
    assert interval.high - interval.mean == pytest.approx(t.ppf(0.975, 1) * 0.1)


def test_a_seed_trains_its_own_reward_models_and_reads_them():
    experiment = experiment_of(qa.MODULE, Path("/out"), outputs=Path("/base"))
    listed = seed_stages(experiment, Path("/base"), 3)
    stages = {stage.name: stage for stage in listed}
    assert len(stages) == 4 + 4 + 4
    fine = stages["seed-3/fine_grained"]
    assert fine.command[2:4] == ("fgrlhf.cli.rl", "tasks.qa_feedback")
    assert "reward.relevance_model.ckpt=/out/seed-3/rel_rm" in fine.command
    assert "train.seed=3" in fine.command
    assert set(fine.needs) == {"seed-3/rel_rm", "seed-3/fact_rm", "seed-3/comp_rm"}
    dense, end = stages["seed-3/true_dense"].command, stages["seed-3/true_at_end"].command
    assert {part for part in end if part not in dense} >= {"reward.gold.place=end"}
    evaluation = stages["seed-3/evaluate-fine_grained"]
    assert evaluation.needs == ("seed-3/fine_grained",)
    assert {
        "policy=/out/seed-3/fine_grained/best",
        "output_dir=/out/seed-3",
        "data_dir=/base/data",
        "reward=false",
        "num_samples=4",
        "do_sample=true",
    } <= set(evaluation.command)
    assert evaluation.outputs == ("seed-3/eval/fine_grained-test",)


def test_results_pair_questions_by_their_id(tmp_path):
    """Rows are in different orders; question a gains 0.2, question b 0.4."""

    def write(folder: str, name: str, rows: dict[str, float]) -> None:
        write_jsonl(
            tmp_path / folder / "eval" / f"{name}-test" / "rows.jsonl",
            [
                {"id": question, **{f"oracle/{metric}": value for metric in METRICS}}
                for question, value in rows.items()
            ],
        )

    write("sft", "sft", {"a": 0.5, "b": 0.1})
    for name in ARMS:
        write("seed-0", name, {"b": 0.5, "a": 0.7})
    result = results(tmp_path, [0], ARMS, COMPARED)
    assert result["differences"]["fine_grained_vs_sft"]["gold"]["mean"] == pytest.approx(0.3)
    assert result["differences"]["fine_grained_vs_sft"]["gold"]["low"] is None  # two questions
    assert "| fine_grained - sft | +0.300" in policies_table(result)
    assert policies_table(result).endswith(f"\n\n{ONE_RUN}\n")
    assert ONE_RUN not in policies_table({**result, "seeds": [0, 1]})


def test_seeds_must_be_numbers():
    with pytest.raises(UserError, match="seeds: 0,x is not a list of whole numbers"):
        settings_from(ScienceSettings, ["seeds=0,x"])
    assert settings_from(ScienceSettings, ["seeds=0, 7"]).seed_list == [0, 7]
