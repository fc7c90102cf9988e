"""`make science`: several seeds of reward models and PPO on the mini world, and what they say, with
paired intervals.

    python -m tasks.qa_feedback.science [seeds=0,1,2,3,4] [base_dir=outputs/qa_feedback/mini]
    [output_dir=outputs/science]

Two questions. Is fine-grained better than holistic feedback on the true score, at equal episodes?
Is the same true reward better given after every segment than as one scalar at the end? Data, SFT
policy and feedback are those of `make demo`; every seed trains its own reward models and its own
policies. Run it again to continue or to add seeds.
"""

import re
from pathlib import Path

import numpy as np
from pydantic import Field

from fgrlhf.cli.command_line import settings_from
from fgrlhf.config import FilePath, StrictModel
from fgrlhf.errors import UserError, run_main, shorten
from fgrlhf.files import read_jsonl, write_json, write_text
from fgrlhf.pipeline.stages import Pipeline, Stage, stop_with_signals
from fgrlhf.stats import seed_interval
from tasks.qa_feedback.demo import REWARD_MODELING, ROOT, SAMPLES, TRAINING, script
from tasks.qa_feedback.summary import by_question

REWARD_MODELS = {
    "rel_rm": "run_fg_rm",
    "fact_rm": "run_fg_rm",
    "comp_rm": "run_pref_rm",
    "baseline_rm": "run_pref_rm",
}
END = (
    "reward.gold.place=end",
    "ppo.lam=1.0",
)  # the better lambda on dev for one scalar, as 0.95 is for dense rewards
# run -> (its config, overrides, the reward models it needs under their names in the config)
RUNS: dict[str, tuple[str, tuple[str, ...], dict[str, str]]] = {
    "fine_grained": (
        "mini_fine_grained_config.yml",
        (),
        {
            "relevance_model": "rel_rm",
            "factuality_model": "fact_rm",
            "completeness_model": "comp_rm",
        },
    ),
    "holistic": ("mini_baseline_config.yml", (), {"baseline_model": "baseline_rm"}),
    "true_dense": ("mini_oracle_config.yml", (), {}),
    "true_at_end": ("mini_oracle_config.yml", END, {}),
}
COMPARED = (
    ("fine_grained", "sft"),
    ("holistic", "sft"),
    ("fine_grained", "holistic"),
    ("true_dense", "true_at_end"),
)
METRICS = ("gold", "relevance", "factuality", "completeness")


class Settings(StrictModel):
    seeds: str = "0,1,2,3,4"
    base_dir: FilePath = "outputs/qa_feedback/mini"
    output_dir: FilePath = "outputs/science"
    lanes: int = Field(2, ge=1, le=1024)

    @property
    def seed_list(self) -> list[int]:
        return seed_list(self.seeds)


def seed_list(text: str) -> list[int]:
    """The seeds of `0,1,2`. Raises `UserError` for what is no seed, and for one that is given
    twice.
    """
    words = text.split(",")
    if not all(re.fullmatch(r"\s*[0-9]{1,10}\s*", word) and int(word) < 2**32 for word in words):
        raise UserError(
            f"seeds={shorten(text)} is not a list of whole numbers from 0 to 4294967295: write it"
            " as seeds=0,1,2"
        )
    seeds = [int(word) for word in words]
    if len(set(seeds)) < len(seeds):
        raise UserError(
            f"seeds={shorten(text)} names a seed twice: it would count as two independent runs"
        )
    return seeds


def seed_stages(out: Path, seed: int) -> list[Stage]:
    """Four reward models, four PPO runs and their evaluations on the test questions."""
    folder, stages = f"seed-{seed}", []
    for name, module in REWARD_MODELS.items():
        stages.append(
            script(
                f"{folder}/{name}",
                f"{REWARD_MODELING}/train_{name}.sh",
                f"train.seed={seed}",
                f"logging.save_dir={out / folder / name}",
                modules=(f"reward_modeling.{module}",),
                outputs=(f"{folder}/{name}",),
                reads=(f"{REWARD_MODELING}/mini_{name}_config.yml",),
            )
        )
    for name, (config, overrides, models) in RUNS.items():
        checkpoints = tuple(
            f"reward.{aspect}.ckpt={out / folder / model}" for aspect, model in models.items()
        )
        stages.append(
            Stage(
                f"{folder}/{name}",
                (
                    "python",
                    "-m",
                    f"{TRAINING.replace('/', '.')}.train_finegrained",
                    f"{TRAINING}/{config}",
                    f"train.seed={seed}",
                    f"logging.save_dir={out / folder / name}",
                    f"logging.run_name={name}",
                    *overrides,
                    *checkpoints,
                ),
                tuple(f"{folder}/{model}" for model in models.values()),
                (f"{folder}/{name}",),
                (f"{TRAINING}/{config}",),
                (f"{TRAINING.replace('/', '.')}.train_finegrained",),
            )
        )
    for name in RUNS:
        stages.append(
            evaluation(out, folder, name, out / folder / name / "best", (f"{folder}/{name}",))
        )
    return stages


def evaluation(out: Path, folder: str, name: str, policy: Path, needs: tuple[str, ...]) -> Stage:
    """Sampled answers to the test questions, judged by the oracle alone."""
    return script(
        f"{folder}/evaluate_{name}",
        f"{TRAINING}/evaluate.sh",
        f"policy={policy}",
        f"name={name}",
        f"output_dir={out / folder}",
        "reward=false",
        "split=test",
        "do_sample=true",
        f"num_samples={SAMPLES}",
        needs=needs,
        outputs=(f"{folder}/eval/{name}-test",),
        modules=(f"{TRAINING.replace('/', '.')}.evaluate",),
        reads=(f"{TRAINING}/mini_fine_grained_config.yml",),
    )


def scores(out: Path, folder: str, name: str, metric: str) -> np.ndarray:
    """Per test question the mean over its sampled answers."""
    values = by_question(
        read_jsonl(out / folder / "eval" / f"{name}-test" / "rows.jsonl"), f"oracle/{metric}"
    )
    return np.array([values[question] for question in sorted(values)])


def results(out: Path, seeds: list[int]) -> dict:
    """Means of every run and the paired differences, over seeds and test questions."""

    def of(name: str, seed: int, metric: str) -> np.ndarray:
        return scores(out, "sft" if name == "sft" else f"seed-{seed}", name, metric)

    means = {
        name: {
            metric: seed_interval([of(name, seed, metric) for seed in seeds]).as_dict()
            for metric in METRICS
        }
        for name in ("sft", *RUNS)
    }
    differences = {
        f"{a}_vs_{b}": {
            metric: (
                seed_interval(
                    [of(a, seed, metric) - of(b, seed, metric) for seed in seeds]
                ).as_dict()
            )
            for metric in METRICS
        }
        for a, b in COMPARED
    }
    by_seed = {
        f"{a}_vs_{b}": {
            str(seed): float((of(a, seed, "gold") - of(b, seed, "gold")).mean()) for seed in seeds
        }
        for a, b in COMPARED
    }
    return {"seeds": seeds, "means": means, "differences": differences, "gold_by_seed": by_seed}


def table(found: dict) -> str:
    """The results in Markdown."""
    lines = [
        f"{len(found['seeds'])} seeds, test questions, sampled answers.",
        "",
        f"| policy | {' | '.join(METRICS)} |",
        "|---" * 5 + "|",
    ]
    for name, row in found["means"].items():
        lines.append(
            f"| {name} | " + " | ".join(f"{row[metric]['mean']:.3f}" for metric in METRICS) + " |"
        )
    lines += [
        "",
        f"| paired difference | {' | '.join(METRICS)} | gold, seed by seed |",
        "|---" * 6 + "|",
    ]
    for name, row in found["differences"].items():
        cells = [
            f"{row[metric]['mean']:+.3f} [{row[metric]['low']:+.3f}, {row[metric]['high']:+.3f}]"
            for metric in METRICS
        ]
        lines.append(
            f"| {name.replace('_vs_', ' - ')} | "
            + " | ".join(cells)
            + " | "
            + " ".join(f"{value:+.3f}" for value in found["gold_by_seed"][name].values())
            + " |"
        )
    return "\n".join(lines) + "\n"


def science(settings: Settings) -> None:
    """Run everything, write science.json and science.md, print the table."""
    out, base = Path(settings.output_dir).absolute(), Path(settings.base_dir).absolute()
    if (
        not (base / "sft" / "model.safetensors").exists()
        or not (base / "data" / "COMP_sequence").exists()
    ):
        raise UserError(
            f"{base} has no SFT policy or reward-model files: run `make demo` first, or name its"
            " folder with base_dir=..."
        )
    stages = [evaluation(out, "sft", "sft", base / "sft", ())]
    for seed in settings.seed_list:
        stages += seed_stages(out, seed)
    environment = {
        "SCALE": "mini",
        "OUTPUT_DIR": str(base),
        "DATA_DIR": str(base / "data"),
        "OMP_NUM_THREADS": "1",
    }
    Pipeline(stages, ROOT, out, environment, settings.lanes).run()
    found = results(out, settings.seed_list)
    write_json(out / "science.json", found)
    write_text(out / "science.md", table(found))
    print("\n" + table(found))


if __name__ == "__main__":
    stop_with_signals()
    run_main(lambda: science(settings_from(Settings)))
