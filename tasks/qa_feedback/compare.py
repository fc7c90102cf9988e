"""`compare.sh`: algorithms beside each other on the mini world, several seeds each, and which
differences are real.

    bash tasks/qa_feedback/training/compare.sh [algorithms=ppo,grpo,ppo-holistic] [seeds=0,1,2]
    [steps=40]

An algorithm's name alone has the fine-grained rewards, `<name>-holistic` the preference model's one
score; `dpo` (preferences), `fine-grained-dpo` (corrected over predicted answers) and
`corrected-sft` learn from the feedback file itself, as long as their own YAML says. Policies,
questions and reward models are those of `make demo`; the settings an algorithm gets beside its name
stand in mini_compare_config.yml. Writes compare/summary.json and compare/index.html; run it again
to continue or to add some.
"""

import json
from itertools import combinations
from pathlib import Path

import numpy as np
from pydantic import Field

from fgrlhf.algorithms.registry import ALGORITHMS
from fgrlhf.cli.command_line import settings_from
from fgrlhf.config import Count, FilePath, StrictModel, read_yaml
from fgrlhf.errors import UserError, run_main
from fgrlhf.files import read_json, read_jsonl, write_json, write_text
from fgrlhf.pipeline.stages import Pipeline, Stage, stop_with_signals
from fgrlhf.stats import LEVEL, holm, seed_interval, seed_p_value
from tasks.qa_feedback.compare_page import HOLISTIC, page, table
from tasks.qa_feedback.demo import ROOT, TRAINING
from tasks.qa_feedback.science import evaluation, scores, seed_list

MODULES = TRAINING.replace("/", ".")
TUNED = f"{TRAINING}/mini_compare_config.yml"
EPISODES_PER_STEP = 64  # of the mini configs: prompts x samples
DPO = {"dpo": "mini_dpo_config.yml", "fine-grained-dpo": "mini_fine_grained_dpo_config.yml"}
SFT = "corrected-sft"
NAMES = (*ALGORITHMS, *(name + HOLISTIC for name in ALGORITHMS), *DPO, SFT)
DEFAULT = (*ALGORITHMS, "ppo" + HOLISTIC, "rloo" + HOLISTIC, *DPO, SFT)


class Settings(StrictModel):
    """`compare.sh`."""

    algorithms: str = Field(
        ",".join(DEFAULT), description="with commas; the first is what the others are compared with"
    )
    seeds: str = "0,1,2"
    steps: Count = Field(40, description="rollouts of 64 answers; the demo's runs have 40")
    base_dir: FilePath = Field("outputs/qa_feedback/mini", description="what `make demo` wrote")
    output_dir: FilePath = "outputs/qa_feedback/mini/compare"
    lanes: int = Field(2, ge=1, le=1024, description="runs at the same time, one core each")

    @property
    def names(self) -> list[str]:
        names = self.algorithms.split(",")
        unknown = [name for name in names if name not in NAMES]
        if unknown:
            raise UserError(
                f"algorithms={self.algorithms}: {', '.join(unknown)} is not known; known are"
                f" {', '.join(NAMES)}"
            )
        return names

    @property
    def seed_list(self) -> list[int]:
        return seed_list(self.seeds)


# ---- runs ----------------------------------------------------------------------------------------


def tuned(name: str) -> list[str]:
    """What `name` is given beside its name, as overrides."""
    settings = read_yaml(ROOT / TUNED).get(name) or {}
    return [
        f"{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in settings.items()
    ]


def training(name: str, seed: int, steps: int, base: Path, out: Path) -> Stage:
    """One run, which writes <out>/<name>/seed-<seed>."""
    folder = f"{name}/seed-{seed}"
    common = (f"train.seed={seed}", f"logging.save_dir={out / folder}", f"logging.run_name={name}")
    if name == SFT:
        script, config = (
            f"{TRAINING}/train_corrected_sft.sh",
            f"{TRAINING}/mini_corrected_sft_config.yml",
        )
        modules = ("sft.run_sft", f"{MODULES}.corrected_examples")
        return Stage(
            folder,
            ("bash", script, *common, *tuned(name)),
            (),
            (folder,),
            (script, config, *models(base, name)),
            modules,
        )
    if name in DPO:
        module, config, settings = f"{MODULES}.train_dpo", f"{TRAINING}/{DPO[name]}", ()
    else:
        kind = (
            ("train_baseline", "baseline")
            if name.endswith(HOLISTIC)
            else ("train_finegrained", "fine_grained")
        )
        module, config = f"{MODULES}.{kind[0]}", f"{TRAINING}/mini_{kind[1]}_config.yml"
        settings = (
            f"algorithm.name={name.removesuffix(HOLISTIC)}",
            f"train.total_episodes={steps * EPISODES_PER_STEP}",
        )
    command = ("python", "-m", module, config, *common, *settings, *tuned(name))
    return Stage(folder, command, (), (folder,), (config, *models(base, name)), (module,))


def models(base: Path, name: str) -> list[str]:
    """The weights and the feedback of the demo that a run reads."""
    if name in DPO or name == SFT:
        return [str(base / "sft" / "model.safetensors"), str(base / "data" / "train_feedback.json")]
    rewards = ("baseline_rm",) if name.endswith(HOLISTIC) else ("rel_rm", "fact_rm", "comp_rm")
    return [str(base / model / "model.safetensors") for model in ("sft", *rewards)]


def stages(settings: Settings, base: Path, out: Path) -> list[Stage]:
    """The SFT policy's evaluation, every run, every run's evaluation."""
    made = [evaluation(out, "sft", "sft", base / "sft", ())]
    for seed in settings.seed_list:
        for name in settings.names:
            run = training(name, seed, settings.steps, base, out)
            policy = out / run.name / ("" if name == SFT else "best")
            made += [run, evaluation(out, f"eval-{seed}", name, policy, (run.name,))]
    return made


# ---- what they say -------------------------------------------------------------------------------


def curve(rows: list[dict]) -> list[dict[str, float]]:
    """Dev figures of a run's log: after how many episodes (answers learned from) and seconds of
    training, the true score and the KL. None of SFT's, which is judged by RougeLsum."""
    points, seconds, per_step = (
        [],
        0.0,
        next((row["episodes"] / (row["step"] + 1) for row in rows if "episodes" in row), 0.0),
    )
    for row in rows:
        if "eval/oracle/gold" in row:
            points.append(
                {
                    "episodes": row["step"] * per_step,
                    "seconds": seconds,
                    "gold": row["eval/oracle/gold"],
                    "kl": row["eval/kl"],
                }
            )
        seconds += row.get("time/rollout", 0.0) + row.get("time/update", 0.0)
    return points


def results(settings: Settings, out: Path) -> dict:
    """{seeds, steps, sft, runs.<name>.<seed>, differences.<a>_vs_<b>}; differences are of gold on
    the test questions, see `differences`.
    """
    seeds, names = settings.seed_list, settings.names
    gold = {"sft": [scores(out, "sft", "sft", "gold")] * len(seeds)}
    runs: dict[str, dict[str, dict]] = {}
    for name in names:
        gold[name] = [scores(out, f"eval-{seed}", name, "gold") for seed in seeds]
        runs[name] = {}
        for seed, values in zip(seeds, gold[name]):
            points = curve(read_jsonl(out / name / f"seed-{seed}" / "metrics.jsonl"))
            last = (
                points[-1]
                if points
                else {
                    "episodes": 0,
                    "seconds": stage_seconds(out, f"{name}/seed-{seed}"),
                    "kl": None,
                }
            )
            runs[name][str(seed)] = {
                "gold": float(np.mean(values)),
                **{key: last[key] for key in ("episodes", "seconds", "kl")},
                "curve": points,
            }
    return {
        "seeds": seeds,
        "steps": settings.steps,
        "sft": {"gold": float(np.mean(gold["sft"][0]))},
        "runs": runs,
        "differences": differences(gold),
        "settings": {name: tuned(name) for name in names},
    }


def stage_seconds(out: Path, stage: str) -> float:
    return read_json(out / "stages.json")[stage]["seconds"]


def differences(gold: dict[str, list[np.ndarray]]) -> dict[str, dict]:
    """All pairs: `<a>_vs_<b>` -> mean, low and high of the 95% interval, and

    `excludes_zero`: the interval by itself. Among 91 pairs without any difference up to five would
      do so by chance.
    `p`, `p_corrected`: of no difference, and after Holm's correction over all pairs.
    `real`: `p_corrected` is below 0.05: by this rule one table in twenty names any difference that
      is none.
    """
    pairs: dict[str, dict] = {}
    for b, a in combinations(gold, 2):
        by_seed = [x - y for x, y in zip(gold[a], gold[b])]
        interval = seed_interval(by_seed)
        pairs[f"{a}_vs_{b}"] = interval.as_dict() | {
            "excludes_zero": interval.excludes_zero,
            "p": seed_p_value(by_seed),
        }
    for pair, corrected in zip(pairs.values(), holm([pair["p"] for pair in pairs.values()])):
        pair["p_corrected"] = corrected
        pair["real"] = corrected < 1 - LEVEL
    return pairs


def compare(settings: Settings) -> None:
    """Run what is missing, write summary.json and index.html, print the table."""
    out, base = Path(settings.output_dir).absolute(), Path(settings.base_dir).absolute()
    missing = sorted(
        {path for name in settings.names for path in models(base, name) if not Path(path).exists()}
    )
    if missing:
        raise UserError(
            f"{', '.join(missing)} not found: run `make demo` first, or name its folder with"
            " OUTPUT_DIR"
        )
    environment = {
        "SCALE": "mini",
        "OUTPUT_DIR": str(base),
        "DATA_DIR": str(base / "data"),
        "OMP_NUM_THREADS": "1",
    }
    Pipeline(stages(settings, base, out), ROOT, out, environment, settings.lanes).run()
    found = results(settings, out)
    write_json(out / "summary.json", found)
    write_text(out / "index.html", page(found))
    print(f"\n{table(found)}\npage: {out / 'index.html'}")


if __name__ == "__main__":
    stop_with_signals()
    run_main(lambda: compare(settings_from(Settings)))
