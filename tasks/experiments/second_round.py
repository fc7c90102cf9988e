"""Does feedback on the answers of a trained policy raise the true score, at equal labels?

    python -m tasks.experiments second_round [seeds=0,1,2,3,4] \\
        [base_dir=outputs/qa_feedback/mini] [output_dir=outputs/second_round]

Every seed has two arms. Both annotate the same 2 x `questions` questions, and both train the SFT
policy by RL in two parts of `episodes` each; the second part continues from the last policy of the
first.

    one_round   The annotator judges the SFT policy's answers to all questions. R1, R2 and R3 are
                trained on them once and reward both parts of RL.
    two_rounds  The annotator judges the SFT policy's answers to the first half of the questions.
                R1, R2 and R3 reward the first part of RL. The policy of this part answers the
                second half, and the annotator judges these answers. R1, R2 and R3 are trained from
                the start on both halves and reward the second part.

So the arms differ only in who answered the second half, and in which reward models there were in
the first part. Optimiser, critic and the reference of the KL penalty start anew with the second
part, in both arms. Policies are compared at their end and not at their best on dev, because the
reward models that would choose the best differ between the arms.

Questions, SFT policy and dev answers are those of `make demo`, and so is the annotator's habit of
perturbing a quarter of the answers first, which shows the reward models what RL may try.
`perturbed=0` has the answers annotated as they are, so that only a second round can show it. RL
stops early if its KL exceeds `train.kl_threshold`; the table has the episodes that were used.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import Field, PositiveInt

from fgrlhf.base.files import read_json, read_jsonl
from fgrlhf.base.seeds import derive_seed
from fgrlhf.configs.strict import FilePath
from fgrlhf.pipeline.experiments import EvaluationPlan, Experiment, program
from fgrlhf.pipeline.stages import Stage
from fgrlhf.pipeline.study import Plan, Study, markdown
from tasks.experiments import qa
from tasks.experiments.draw_questions import ROUNDS
from tasks.experiments.policies import (
    policies_table,
    results,
    rl_run,
    seed_reward_model,
    sft_evaluation,
)
from tasks.experiments.science import FINE_GRAINED_MODELS as MODELS
from tasks.experiments.second_round_models import ASPECTS
from tasks.experiments.stages import keys, module_stage

ARMS = ("one_round", "two_rounds")
COMPARED = (("two_rounds", "one_round"), ("one_round", "sft"), ("two_rounds", "sft"))
FIRST, SECOND = ROUNDS
EXPERIMENTS = "tasks.experiments"
# reward model -> its training file, steps and steps between evaluations. There are fewer rows than
# in the demo and about as many passes over them.
TRAINING_OF = {
    "rel_rm": ("NF-ERR_subsentence", 300, 75),
    "fact_rm": ("F-ERR_sentence", 120, 30),
    "comp_rm": ("COMP_sequence", 240, 60),
}
# feedback -> who answered the questions of each round
FEEDBACK = {
    "first": {FIRST: "sft"},
    "one_round": {FIRST: "sft", SECOND: "sft"},
    "two_rounds": {FIRST: "sft", SECOND: "rl"},
}
# arm -> the feedback whose reward models reward each part of RL
PARTS = {"one_round": ("one_round", "one_round"), "two_rounds": ("first", "two_rounds")}


class SecondRoundSettings(qa.BaseSettings):
    """The experiment."""

    output_dir: FilePath = Field(default="outputs/second_round", description="folder of results")
    questions: PositiveInt = Field(default=300, description="annotated in each half")
    episodes: PositiveInt = Field(default=1280, description="of RL in each of its two parts")
    perturbed: float = Field(
        default=0.25, ge=0, le=1, description="share of answers perturbed before they are annotated"
    )


# ---- stages --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seed:
    """The stages of a seed. Their names are also the paths of their outputs."""

    settings: SecondRoundSettings
    experiment: Experiment
    number: int

    @property
    def folder(self) -> str:
        return f"seed-{self.number}"

    @property
    def out(self) -> Path:
        return self.experiment.out / self.folder

    @property
    def base(self) -> Path:
        return self.settings.base

    def stages(self) -> list[Stage]:
        evaluations = [self.evaluation(qa.plan_of(self.base), arm, arm, 2) for arm in ARMS]
        return [
            self.questions(),
            self.answers(FIRST, "sft"),
            self.answers(SECOND, "sft"),
            *self.reward_models("first"),
            *self.reward_models("one_round"),
            self.rl("two_rounds", 1),
            self.answers(SECOND, "rl"),
            *self.reward_models("two_rounds"),
            self.rl("two_rounds", 2),
            self.rl("one_round", 1),
            self.rl("one_round", 2),
            *evaluations,
            *self.agreement(),
        ]

    def questions(self) -> Stage:
        name = f"{self.folder}/questions"
        data, count = self.base / "data", self.settings.questions
        return module_stage(
            name,
            f"{EXPERIMENTS}.draw_questions",
            *keys(data_dir=data, output_dir=self.experiment.out / name, n=count, seed=self.number),
            outputs=(name,),
            reads=(str(data / "train.json"),),
        )

    def answers(self, half: str, policy: str) -> Stage:
        """Four answers of the SFT policy or of the first part of RL to a half of the questions."""
        needs = (f"{self.folder}/questions",)
        checkpoint = self.base / "sft"
        reads = (str(checkpoint / "model.safetensors"),)
        if policy == "rl":
            needs = (*needs, f"{self.folder}/two_rounds/part-1")
            checkpoint = self.policy("two_rounds", 1)
            reads = ()
        command, modules = program(
            self.experiment.task,
            "generate",
            *keys(policy=checkpoint, data_dir=self.out / "questions" / half, output_dir=self.out),
            *keys(name=f"{policy}-{half}", num_samples=qa.SAMPLES, max_input_len=512),
            *keys(max_generated_len=qa.MAX_GENERATED_LEN, seed=self.number),
        )
        name = f"{self.folder}/generated/{policy}-{half}-train"
        return Stage(name, command, needs=needs, outputs=(name,), reads=reads, modules=modules)

    def reward_models(self, feedback: str) -> list[Stage]:
        """The annotator's rows, and R1, R2 and R3 trained on them."""
        name = f"{self.folder}/{feedback}"
        stages = [self.rows(feedback)]
        for model, (file, steps, every) in TRAINING_OF.items():
            data = self.out / feedback / "data" / file
            stages.append(
                seed_reward_model(
                    self.experiment,
                    f"{name}/{model}",
                    model,
                    self.number,
                    f"data.train_file={data / 'train.json'}",
                    f"data.dev_file={data / 'dev.json'}",
                    f"train.max_steps={steps}",
                    f"evaluation.every_steps={every}",
                    needs=(f"{name}/data",),
                )
            )
        return stages

    def rows(self, feedback: str) -> Stage:
        answered = []
        needs = []
        for half, policy in FEEDBACK[feedback].items():
            samples = f"generated/{policy}-{half}-train"
            questions = self.out / "questions" / half / "train.json"
            answered.append((questions, self.out / samples / "samples.jsonl"))
            needs.append(f"{self.folder}/{samples}")
        dev = (self.base / "data" / "dev.json", self.base / "generated/sft-dev/samples.jsonl")
        return qa.rows_stage(
            f"{self.folder}/{feedback}/data",
            self.experiment.out,
            answered,
            dev,
            perturbed=self.settings.perturbed,
            seed=self.number,
            needs=tuple(needs),
            reads=tuple(map(str, dev)),
        )

    def rl(self, arm: str, part: int) -> Stage:
        """The first part starts from the SFT policy, the second from the end of the first."""
        rewards = f"{self.folder}/{PARTS[arm][part - 1]}"
        name = f"{self.folder}/{arm}/part-{part}"
        needs = [f"{rewards}/{model}" for model in MODELS.values()]
        start = self.base / "sft"
        if part == 2:
            needs.append(f"{self.folder}/{arm}/part-1")
            start = self.policy(arm, 1)
        folder = self.experiment.out / rewards
        return rl_run(
            self.experiment,
            name,
            qa.FINE_GRAINED,
            # another seed in each part, or both would have the same questions
            f"train.seed={derive_seed(self.number, 'part', part) % 2**32}",
            f"train.total_episodes={self.settings.episodes}",
            f"model.ckpt={start}",
            f"model.value_model.ckpt={start}",
            f"logging.save_dir={self.experiment.out / name}",
            f"logging.run_name={arm}-{part}",
            *(f"reward.{aspect}.ckpt={folder / model}" for aspect, model in MODELS.items()),
            needs=tuple(needs),
        )

    def policy(self, arm: str, part: int) -> Path:
        return self.out / arm / f"part-{part}" / "final"

    def evaluation(self, plan: EvaluationPlan, name: str, arm: str, part: int) -> Stage:
        needs = (f"{self.folder}/{arm}/part-{part}",)
        policy = self.policy(arm, part)
        return self.experiment.evaluation_stage(plan, name, policy, needs, self.folder)

    def agreement(self) -> list[Stage]:
        """All reward models and the oracle, on the first part's answers to dev questions."""
        plan = replace(qa.plan_of(self.base), split="dev")
        evaluation = self.evaluation(plan, "part_1", "two_rounds", 1)
        needs = [evaluation.name]
        for feedback in FEEDBACK:
            needs += [f"{self.folder}/{feedback}/{model}" for model in MODELS.values()]
        answers = self.experiment.out / evaluation.outputs[0] / "rows.jsonl"
        prompts = self.base / "data" / "dev.json"
        measurement = module_stage(
            f"{self.folder}/agreement",
            f"{EXPERIMENTS}.second_round_models",
            *keys(folder=self.out, sets=",".join(FEEDBACK), prompts=prompts, answers=answers),
            *keys(out=self.out / "agreement.json"),
            needs=tuple(needs),
            outputs=(f"{self.folder}/agreement.json",),
        )
        return [evaluation, measurement]


def plan(settings: SecondRoundSettings) -> Plan:
    experiment = settings.experiment("sft/model.safetensors", "generated/sft-dev/samples.jsonl")
    stages = [sft_evaluation(experiment, settings.base)]
    for seed in settings.seed_list:
        stages += Seed(settings, experiment, seed).stages()
    return Plan(experiment, stages, settings.lane_count)


# ---- results -------------------------------------------------------------------------------------


def budget(out: Path, seeds: Sequence[int]) -> dict[str, dict[str, list[int]]]:
    """What each arm used with each seed: annotated rows, and episodes of RL."""
    used: dict[str, dict[str, list[int]]] = {}
    for arm in ARMS:
        rows = []
        episodes = []
        for seed in seeds:
            folder = out / f"seed-{seed}" / arm
            rows.append(len(read_json(folder / "data" / "train_feedback.json")))
            total = 0
            for part in (1, 2):
                steps = read_jsonl(folder / f"part-{part}" / "metrics.jsonl")
                total += max(step.get("episodes", 0) for step in steps)
            episodes.append(total)
        used[arm] = {"rows": rows, "episodes": episodes}
    return used


def table(result: Mapping[str, Any]) -> str:
    """The results in Markdown. Values of the reward models are means over seeds."""
    used = []
    for arm, of_arm in result["budget"].items():
        used.append([arm, *(", ".join(map(str, sorted(set(of_arm[key])))) for key in of_arm)])
    agreement = []
    for feedback in FEEDBACK:
        row = [feedback]
        for aspect in ASPECTS:
            values = [seed[feedback][aspect] for seed in result["agreement"]]
            row.append(f"{sum(values) / len(values):.3f}")
        agreement.append(row)
    parts = [
        policies_table(result),
        markdown(["arm", "annotated rows", "RL episodes"], used),
        "Agreement of the reward models with the oracle, on dev answers of the policy that was"
        " trained with the first ones:\n",
        markdown(["trained on", "R1, AUC", "R2, AUC", "R3, pairs ordered right"], agreement),
    ]
    return "\n".join(parts)


def all_results(settings: SecondRoundSettings, plan: Plan) -> dict[str, Any]:
    """The policies' scores, what the arms used, and the agreement of the reward models."""
    out, seeds = settings.folder, settings.seed_list
    measured = [read_json(out / f"seed-{seed}" / "agreement.json") for seed in seeds]
    of_policies = results(out, seeds, ARMS, COMPARED)
    return {**of_policies, "budget": budget(out, seeds), "agreement": measured}


STUDY = Study(SecondRoundSettings, plan, all_results, table, "second_round")
