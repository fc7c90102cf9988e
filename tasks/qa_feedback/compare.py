"""`compare.sh`: algorithms beside each other on the mini world, several seeds each, and which differences are real.

    bash tasks/qa_feedback/training/compare.sh [algorithms=ppo,grpo,ppo-holistic] [seeds=0,1,2] [steps=40]

An algorithm's name alone has the fine-grained rewards, `<name>-holistic` the preference model's one score. Policies,
questions and reward models are those of `make demo`; the settings an algorithm gets beside its name stand in
mini_compare_config.yml. Writes compare/summary.json and compare/index.html; run it again to continue or to add some.
"""

from itertools import combinations
from pathlib import Path

import numpy as np
import yaml
from pydantic import Field, PositiveInt

from fgrlhf.algorithms import ALGORITHMS
from fgrlhf.config import StrictModel
from fgrlhf.pipeline import Pipeline, Stage
from fgrlhf.stats import seed_interval
from fgrlhf.utils import UserError, read_jsonl, run_main, write_json, write_text
from tasks.qa_feedback.compare_page import page, table
from tasks.qa_feedback.data.command_line import settings_from
from tasks.qa_feedback.demo import ROOT, TRAINING
from tasks.qa_feedback.science import evaluation, scores

HOLISTIC = "-holistic"
TUNED = f"{TRAINING}/mini_compare_config.yml"
EPISODES_PER_STEP = 64  # of the mini configs: prompts x samples
REWARD_MODELS = {False: ("rel_rm", "fact_rm", "comp_rm"), True: ("baseline_rm",)}  # holistic or not
NAMES = (*ALGORITHMS, *(name + HOLISTIC for name in ALGORITHMS))
DEFAULT = (*ALGORITHMS, "ppo" + HOLISTIC, "rloo" + HOLISTIC)


class Settings(StrictModel):
    """`compare.sh`."""

    algorithms: str = Field(",".join(DEFAULT), description="with commas; the first is what the others are compared with")
    seeds: str = "0,1,2"
    steps: PositiveInt = Field(40, description="rollouts of 64 answers; the demo's runs have 40")
    base_dir: str = Field("outputs/mini", description="what `make demo` wrote")
    output_dir: str = "outputs/mini/compare"
    lanes: PositiveInt = Field(2, description="runs at the same time, one core each")

    @property
    def names(self) -> list[str]:
        names = self.algorithms.split(",")
        unknown = [name for name in names if name not in NAMES]
        if unknown:
            raise UserError(f"algorithms={self.algorithms}: {', '.join(unknown)} is not known; known are {', '.join(NAMES)}")
        return names

    @property
    def seed_list(self) -> list[int]:
        try:
            return [int(seed) for seed in self.seeds.split(",")]
        except ValueError:
            raise UserError(f"seeds={self.seeds} is not a list of whole numbers: write it as seeds=0,1,2") from None


# ---- runs ----------------------------------------------------------------------------------------------------------


def tuned(name: str) -> list[str]:
    """What `name` is given beside its name, as overrides."""
    sections = yaml.safe_load((ROOT / TUNED).read_text(encoding="utf-8"))
    return [f"{key}={yaml.safe_dump(value, default_flow_style=True).splitlines()[0]}" for key, value in (sections.get(name) or {}).items()]


def training(name: str, seed: int, steps: int, base: Path, out: Path) -> Stage:
    """One run, which ends in <out>/<name>/seed-<seed>/best."""
    algorithm, holistic = name.removesuffix(HOLISTIC), name.endswith(HOLISTIC)
    config = f"{TRAINING}/mini_{'baseline' if holistic else 'fine_grained'}_config.yml"
    module = f"{TRAINING.replace('/', '.')}.train_{'baseline' if holistic else 'finegrained'}"
    folder = f"{name}/seed-{seed}"
    command = (
        "python", "-m", module, config, f"algorithm.name={algorithm}", f"train.seed={seed}",
        f"train.total_episodes={steps * EPISODES_PER_STEP}", f"logging.save_dir={out / folder}", f"logging.run_name={name}", *tuned(name))
    read = [config, *(str(base / model / "model.safetensors") for model in ("sft", *REWARD_MODELS[holistic]))]
    return Stage(folder, command, (), (folder,), tuple(read), (module,))


def stages(settings: Settings, base: Path, out: Path) -> list[Stage]:
    """The SFT policy's evaluation, every run, every run's evaluation."""
    made = [evaluation(out, "sft", "sft", base / "sft", ())]
    for seed in settings.seed_list:
        for name in settings.names:
            run = training(name, seed, settings.steps, base, out)
            made += [run, evaluation(out, f"eval-{seed}", name, out / run.name / "best", (run.name,))]
    return made


# ---- what they say -------------------------------------------------------------------------------------------------


def curve(rows: list[dict]) -> list[dict[str, float]]:
    """Dev figures of a run's log: after how many episodes and seconds of training, the true score and the KL."""
    points, seconds, per_step = [], 0.0, next((row["episodes"] / (row["step"] + 1) for row in rows if "episodes" in row), 0.0)
    for row in rows:
        if "eval/oracle/gold" in row:
            points.append({"episodes": row["step"] * per_step, "seconds": seconds, "gold": row["eval/oracle/gold"], "kl": row["eval/kl"]})
        seconds += row.get("time/rollout", 0.0) + row.get("time/update", 0.0)
    return points


def results(settings: Settings, out: Path) -> dict:
    """{seeds, steps, sft, runs.<name>.<seed>, differences.<a>_vs_<b>}; differences are of gold on the test questions."""
    seeds, names = settings.seed_list, settings.names
    gold = {"sft": [scores(out, "sft", "sft", "gold")] * len(seeds)}
    runs: dict[str, dict[str, dict]] = {}
    for name in names:
        gold[name] = [scores(out, f"eval-{seed}", name, "gold") for seed in seeds]
        runs[name] = {}
        for seed, values in zip(seeds, gold[name]):
            points = curve(read_jsonl(out / name / f"seed-{seed}" / "metrics.jsonl"))
            runs[name][str(seed)] = {
                "gold": float(np.mean(values)), "episodes": points[-1]["episodes"], "seconds": points[-1]["seconds"],
                "kl": points[-1]["kl"], "curve": points}
    return {
        "seeds": seeds, "steps": settings.steps, "sft": {"gold": float(np.mean(gold["sft"][0]))}, "runs": runs,
        "differences": {f"{a}_vs_{b}": _difference(gold[a], gold[b]) for b, a in combinations(["sft", *names], 2)},
        "settings": {name: tuned(name) for name in names},
    }


def _difference(a: list[np.ndarray], b: list[np.ndarray]) -> dict:
    interval = seed_interval([x - y for x, y in zip(a, b)])
    return interval.as_dict() | {"real": interval.excludes_zero}


def compare(settings: Settings) -> None:
    """Run what is missing, write summary.json and index.html, print the table."""
    out, base = Path(settings.output_dir).absolute(), Path(settings.base_dir).absolute()
    needed = {"sft", *(model for name in settings.names for model in REWARD_MODELS[name.endswith(HOLISTIC)])}
    missing = sorted(model for model in needed if not (base / model / "model.safetensors").exists())
    if missing:
        raise UserError(f"{base} has no {', '.join(missing)}: run `make demo` first, or name its folder with OUTPUT_DIR")
    environment = {"SCALE": "mini", "OUTPUT_DIR": str(base), "DATA_DIR": str(base / "data"), "OMP_NUM_THREADS": "1"}
    Pipeline(stages(settings, base, out), ROOT, out, environment, settings.lanes).run()
    found = results(settings, out)
    write_json(out / "summary.json", found)
    write_text(out / "index.html", page(found))
    print(f"\n{table(found)}\npage: {out / 'index.html'}")


if __name__ == "__main__":
    run_main(lambda: compare(settings_from(Settings)))
