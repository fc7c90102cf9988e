"""Does PPO find a hole in the feedback, and does an ensemble of reward models refuse it?

    python -m tasks.experiments hole [seeds=0,1] [base_dir=outputs/qa_feedback/mini]

The annotators of the mini world overlook one kind of error: claims with one verb are never marked
as irrelevant (hole_rows.py). With every seed, policies are trained on relevance models (R1): on one
from the demo's feedback (`sound`), on one from that with the hole (`one`), and on the mean of
several of these minus kappa times their standard deviation (`ensemble`). For the steps at which a
run keeps samples, the table shows how many answers have the pattern, and how many of the
overlooked claims R1 pays for; and for the final policies, the true scores.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, PositiveInt

from fgrlhf.base.files import read_json, read_jsonl
from fgrlhf.configs.strict import Amount, FilePath
from fgrlhf.pipeline.experiments import EvaluationPlan, Experiment
from fgrlhf.pipeline.scores import evaluation_rows
from fgrlhf.pipeline.stages import Stage
from fgrlhf.pipeline.study import Plan, Study, markdown
from tasks.experiments import qa
from tasks.experiments.hole_rows import holes_in
from tasks.experiments.policies import rl_run, seed_reward_model
from tasks.experiments.stages import keys, module_stage
from tasks.qa_feedback.data.oracle import SubSentence
from tasks.qa_feedback.task import TASK

ROWS = "feedback"  # the stage that writes it, and its folder
FILES_OF_R1 = "NF-ERR_subsentence"
ARMS = ("sound", "one", "ensemble")
ROLLOUTS = 64  # of a step of the demo's config: all are kept as samples


class HoleSettings(qa.BaseSettings):
    """The experiment."""

    seeds: str = Field(default="0,1", description="every arm is repeated with each seed")
    output_dir: FilePath = Field(default="outputs/hole", description="folder of the results")
    verb: str = Field(default="revised", description="of the claims whose errors are overlooked")
    members: PositiveInt = Field(default=3, description="reward models of the ensemble")
    kappa: Amount = Field(default=1.0, ge=0, description="standard deviations that it subtracts")
    steps: PositiveInt = Field(default=400, description="of the training of a relevance model")
    episodes: PositiveInt = Field(default=1280, description="of each policy")


def rows_stage(settings: HoleSettings) -> Stage:
    data = settings.base / "data"
    return module_stage(
        ROWS,
        "tasks.experiments.hole_rows",
        *keys(data_dir=data, verb=settings.verb, output_dir=settings.folder / ROWS),
        imports=qa.FORMAT,
        outputs=(ROWS,),
        reads=(*(str(data / f"{split}_feedback.json") for split in ("train", "dev")), qa.SCHEMA),
    )


def relevance_models(
    settings: HoleSettings, experiment: Experiment, seed: int
) -> tuple[Stage, list[Stage]]:
    """R1 from the demo's feedback, and the members from that with the hole."""

    def model(name: str, number: int, files: Path, needs: tuple[str, ...]) -> Stage:
        return seed_reward_model(
            experiment,
            f"seed-{seed}/{name}",
            "rel_rm",
            seed * settings.members + number,
            f"data.train_file={files / 'train.json'}",
            f"data.dev_file={files / 'dev.json'}",
            f"train.max_steps={settings.steps}",
            needs=needs,
        )

    sound = model("rel_rm-sound", 0, settings.base / "derived" / FILES_OF_R1, ())
    with_hole = experiment.out / ROWS / FILES_OF_R1
    members = [
        model(f"rel_rm-{number}", number, with_hole, (ROWS,)) for number in range(settings.members)
    ]
    return sound, members


def seed_stages(settings: HoleSettings, experiment: Experiment, seed: int) -> list[Stage]:
    """The reward models of a seed, the policies and their evaluations."""
    folder = f"seed-{seed}"
    sound, members = relevance_models(settings, experiment, seed)
    models = {"sound": [sound], "one": members[:1], "ensemble": members}
    stages = [sound, *members]
    for arm in ARMS:
        first, *others = (str(experiment.out / stage.name) for stage in models[arm])
        overrides = [f"reward.relevance_model.ckpt={first}"]
        if others:
            ensemble = f"{{members: [{', '.join(others)}], kappa: {settings.kappa}}}"
            overrides.append(f"reward.relevance_model.ensemble={ensemble}")
        run = rl_run(
            experiment,
            f"{folder}/{arm}",
            qa.FINE_GRAINED,
            f"train.seed={seed}",
            f"train.total_episodes={settings.episodes}",
            "evaluation.every_steps=5",
            "evaluation.examples=50",
            f"logging.save_dir={experiment.out / folder / arm}",
            f"logging.run_name={arm}",
            f"logging.n_samples={ROLLOUTS}",
            *overrides,
            needs=tuple(stage.name for stage in models[arm]),
        )
        stages.append(run)
    plan = EvaluationPlan(qa.FINE_GRAINED, str(settings.base / "data"), reward=False)
    for arm in ARMS:
        policy = experiment.out / folder / arm / "final"
        stages.append(experiment.evaluation_stage(plan, arm, policy, (f"{folder}/{arm}",), folder))
    return stages


def plan(settings: HoleSettings) -> Plan:
    needed = ("sft/model.safetensors", "rel_rm/model.safetensors", "data/train_feedback.json")
    experiment = settings.experiment(*needed)
    stages = [rows_stage(settings)]
    for seed in settings.seed_list:
        stages += seed_stages(settings, experiment, seed)
    return Plan(experiment, stages, settings.lane_count)


# ---- results -------------------------------------------------------------------------------------


def results(settings: HoleSettings, plan: Plan) -> dict[str, Any]:
    """What samples of training have of the pattern, and the true scores on test, by seed."""
    data = settings.base / "data"
    prompts = {split: TASK.prompts(data / f"{split}.json", split) for split in ("train", "test")}
    by_text = {prompt.text: prompt.meta for prompt in prompts["train"]}
    by_id = {prompt.id: prompt.meta for prompt in prompts["test"]}
    arms: dict[str, list[Any]] = {arm: [] for arm in ARMS}
    for seed in settings.seed_list:
        out = settings.folder / f"seed-{seed}"
        for arm in ARMS:
            rows = evaluation_rows(out, arm, "test")
            have_hole = [bool(_holes(by_id[row["id"]], row, settings.verb)) for row in rows]
            seed_of_arm = {
                "training": of_training(out / arm / "samples", by_text, settings.verb),
                "test": _mean(have_hole),
            }
            for metric in ("relevance", "gold"):
                seed_of_arm[metric] = _mean([row[f"oracle/{metric}"] for row in rows])
            arms[arm].append(seed_of_arm)
    shares = read_json(settings.folder / ROWS / "shares.json")
    return {"seeds": settings.seed_list, "verb": settings.verb, "mislabelled": shares, "arms": arms}


def of_training(
    samples: Path, metas: Mapping[str, Mapping[str, Any]], verb: str
) -> dict[str, dict[str, float | None]]:
    """What the samples of each step have of the pattern.

    Args:
      metas: text of a prompt -> its question and passages.

    Returns:
      step -> `answers`, the share of answers with an overlooked claim; `paid`, the share of these
      claims for which the relevance model pays, None if there is none.
    """
    shares = {}
    for path in sorted(samples.glob("step-*.jsonl"), key=_step):
        have_hole, paid = [], []
        for row in read_jsonl(path):
            holes = _holes(metas[row["prompt"]], row, verb)
            have_hole.append(bool(holes))
            judged = row["segments"]["relevance_model"]
            for hole in holes:
                values = [part["value"] for part in judged if _overlap(part, hole)]
                paid.append(all(value > 0 for value in values))
        shares[str(_step(path))] = {
            "answers": _mean(have_hole),
            "paid": _mean(paid) if paid else None,
        }
    return shares


def _step(path: Path) -> int:
    return int(path.stem.removeprefix("step-"))


def _overlap(part: Mapping[str, Any], hole: SubSentence) -> bool:
    return part["start"] < hole.end and hole.start < part["end"]


def _holes(meta: Mapping[str, Any], row: Mapping[str, Any], verb: str) -> list[SubSentence]:
    return holes_in(meta["question"], meta["passages"], row["response"], verb)


def table(result: Mapping[str, Any]) -> str:
    """Means over seeds, and the true score of every seed."""
    runs = [seed["training"] for seeds in result["arms"].values() for seed in seeds]
    steps = sorted({step for run in runs for step in run}, key=int)  # one may have stopped early
    rows = []
    for arm, seeds in result["arms"].items():
        cells = []
        for step in steps:
            of_step = [seed["training"][step] for seed in seeds if step in seed["training"]]
            cells.append(_cell(of_step))
        test, relevance, gold = (
            _mean([seed[key] for seed in seeds]) for key in ("test", "relevance", "gold")
        )
        by_seed = " ".join(f"{seed['gold']:.3f}" for seed in seeds)
        rows.append([arm, *cells, f"{test:.1%}", f"{relevance:.3f}", f"{gold:.3f}", by_seed])
    head = ["R1", *(f"step {step}" for step in steps), "test", "relevance", "gold", "by seed"]
    share = result["mislabelled"]["train"]
    return (
        f"Overlooked: `{result['verb']}`, in {share:.1%} of the rows. Share of answers with the"
        " pattern, in samples of training (in brackets: the share of these claims for which R1"
        f" pays) and on test; true scores on test; {len(result['seeds'])} seeds.\n\n"
        f"{markdown(head, rows)}"
    )


def _cell(shares: Sequence[Mapping[str, Any]]) -> str:
    """The shares of a step, means over the runs that reached it."""
    if not shares:
        return ""
    paid = [share["paid"] for share in shares if share["paid"] is not None]
    answers = f"{_mean([share['answers'] for share in shares]):.0%}"
    return f"{answers} ({_mean(paid):.0%})" if paid else answers


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


STUDY = Study(HoleSettings, plan, results, table, "hole")
