"""Does feedback on the answers of a trained policy raise the true score, at equal labels?

    python -m tasks.qa_feedback.second_round [seeds=0,1,2,3,4] \\
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
stops early if its KL exceeds `train.kl_threshold`; the table has the episodes that were used. Run
it again to continue or to add seeds.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, PositiveInt

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, read_jsonl, write_json, write_text
from fgrlhf.base.program import run_main
from fgrlhf.base.seeds import derive_seed
from fgrlhf.cli.command_line import settings_from
from fgrlhf.configs.strict import FilePath
from fgrlhf.pipeline.experiment_settings import ExperimentSettings
from fgrlhf.pipeline.experiments import EvaluationPlan, Experiment, program
from fgrlhf.pipeline.stages import Stage, stop_with_signals
from tasks.qa_feedback.compare import FINE_GRAINED, experiment_of
from tasks.qa_feedback.data.draw_questions import ROUNDS
from tasks.qa_feedback.demo import MINI, SAMPLES
from tasks.qa_feedback.science import RUNS, plan_of, results, reward_model_stage
from tasks.qa_feedback.science import table as policies_table
from tasks.qa_feedback.second_round_models import ASPECTS

ARMS = ("one_round", "two_rounds")
COMPARED = (("two_rounds", "one_round"), ("one_round", "sft"), ("two_rounds", "sft"))
FIRST, SECOND = ROUNDS
DRAW_MODULE = "tasks.qa_feedback.data.draw_questions"
ROWS_MODULE = "tasks.qa_feedback.second_round_rows"
MODELS_MODULE = "tasks.qa_feedback.second_round_models"
MODELS = RUNS["fine_grained"][2]  # aspect in the config -> reward model
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


class Settings(ExperimentSettings):
    """The experiment."""

    seeds: str = Field(default="0,1,2,3,4", description="both arms are repeated with each seed")
    base_dir: FilePath = Field(
        default="outputs/qa_feedback/mini", description="the output folder of `make demo`"
    )
    output_dir: FilePath = Field(default="outputs/second_round", description="folder of results")
    questions: PositiveInt = Field(default=300, description="annotated in each half")
    episodes: PositiveInt = Field(default=1280, description="of RL in each of its two parts")
    perturbed: float = Field(
        default=0.25, ge=0, le=1, description="share of answers perturbed before they are annotated"
    )


@dataclass(frozen=True)
class Seed:
    """The stages of a seed. Their names are also the paths of their outputs."""

    settings: Settings
    experiment: Experiment
    base: Path
    number: int

    @property
    def folder(self) -> str:
        return f"seed-{self.number}"

    @property
    def out(self) -> Path:
        return self.experiment.out / self.folder

    def stages(self) -> list[Stage]:
        stages = [self.questions(), self.answers(FIRST, "sft"), self.answers(SECOND, "sft")]
        stages += self.reward_models("first")
        stages += self.reward_models("one_round")
        stages += [self.rl("two_rounds", 1), self.answers(SECOND, "rl")]
        stages += self.reward_models("two_rounds")
        stages += [self.rl("two_rounds", 2), self.rl("one_round", 1), self.rl("one_round", 2)]
        for arm in ARMS:
            stages.append(self.evaluation(plan_of(self.base), arm, arm, 2))
        return [*stages, *self.agreement()]

    def questions(self) -> Stage:
        name = f"{self.folder}/questions"
        command = (
            *(sys.executable, "-m", DRAW_MODULE, f"data_dir={self.base / 'data'}"),
            *(f"output_dir={self.out / 'questions'}", f"n={self.settings.questions}"),
            f"seed={self.number}",
        )
        reads = (str(self.base / "data" / "train.json"),)
        return Stage(name, command, outputs=(name,), reads=reads, modules=(DRAW_MODULE,))

    def answers(self, half: str, policy: str) -> Stage:
        """Four answers of the SFT policy or of the first part of RL to a half of the questions."""
        needs = [f"{self.folder}/questions"]
        reads: list[str] = []
        checkpoint = self.base / "sft"
        if policy == "rl":
            needs.append(f"{self.folder}/two_rounds/part-1")
            checkpoint = self.policy("two_rounds", 1)
        else:
            reads.append(str(checkpoint / "model.safetensors"))
        command, modules = program(
            self.experiment.task,
            "generate",
            f"policy={checkpoint}",
            f"data_dir={self.out / 'questions' / half}",
            f"output_dir={self.out}",
            f"name={policy}-{half}",
            f"num_samples={SAMPLES}",
            "max_input_len=512",
            f"max_generated_len={MINI.max_generated_len}",
            f"seed={self.number}",
        )
        name = f"{self.folder}/generated/{policy}-{half}-train"
        return Stage(
            name, command, needs=tuple(needs), outputs=(name,), reads=tuple(reads), modules=modules
        )

    def reward_models(self, feedback: str) -> list[Stage]:
        """The annotator's rows, and R1, R2 and R3 trained on them."""
        name = f"{self.folder}/{feedback}"
        stages = [self.rows(feedback)]
        for model, (file, steps, every) in TRAINING_OF.items():
            data = self.out / feedback / "data" / file
            stages.append(
                reward_model_stage(
                    self.experiment,
                    model,
                    f"{name}/{model}",
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
        samples = []
        questions = []
        needs = []
        for half, policy in FEEDBACK[feedback].items():
            answered = f"generated/{policy}-{half}-train"
            questions.append(str(self.out / "questions" / half / "train.json"))
            samples.append(str(self.out / answered / "samples.jsonl"))
            needs.append(f"{self.folder}/{answered}")
        dev = (self.base / "data" / "dev.json", self.base / "generated/sft-dev/samples.jsonl")
        name = f"{self.folder}/{feedback}/data"
        command = (
            *(sys.executable, "-m", ROWS_MODULE),
            *(f"questions={','.join(questions)}", f"samples={','.join(samples)}"),
            *(f"dev_questions={dev[0]}", f"dev_samples={dev[1]}"),
            f"output_dir={self.experiment.out / name}",
            *(f"perturbed={self.settings.perturbed}", f"seed={self.number}"),
        )
        reads = (*map(str, dev), "tasks/qa_feedback/interface_html/schema.js")
        modules = (ROWS_MODULE, "tasks.qa_feedback.feedback_format")
        return Stage(
            name, command, needs=tuple(needs), outputs=(name,), reads=reads, modules=modules
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
        overrides = [
            # another seed in each part, or both would have the same questions
            f"train.seed={derive_seed(self.number, 'part', part) % 2**32}",
            f"train.total_episodes={self.settings.episodes}",
            f"model.policy_model.ckpt={start}",
            f"model.value_model.ckpt={start}",
            f"logging.save_dir={self.experiment.out / name}",
            f"logging.run_name={arm}-{part}",
        ]
        for aspect, model in MODELS.items():
            overrides.append(f"reward.{aspect}.ckpt={self.experiment.out / rewards / model}")
        command, modules = program(self.experiment.task, "rl", FINE_GRAINED, *overrides)
        reads = (FINE_GRAINED, *self.experiment.named_files(FINE_GRAINED, overrides))
        return Stage(
            name,
            command,
            needs=tuple(needs),
            outputs=(name,),
            reads=reads,
            modules=modules,
            variables=self.experiment.variables(FINE_GRAINED),
        )

    def policy(self, arm: str, part: int) -> Path:
        return self.out / arm / f"part-{part}" / "final"

    def evaluation(self, plan: EvaluationPlan, name: str, arm: str, part: int) -> Stage:
        needs = (f"{self.folder}/{arm}/part-{part}",)
        policy = self.policy(arm, part)
        return self.experiment.evaluation_stage(plan, name, policy, needs, self.folder)

    def agreement(self) -> list[Stage]:
        """All reward models beside the oracle, on the first part's answers to dev questions."""
        plan = EvaluationPlan(FINE_GRAINED, str(self.base / "data"), "dev", SAMPLES, reward=False)
        evaluation = self.evaluation(plan, "part_1", "two_rounds", 1)
        answers = self.experiment.out / evaluation.outputs[0] / "rows.jsonl"
        name = f"{self.folder}/agreement"
        command = (
            *(sys.executable, "-m", MODELS_MODULE, f"folder={self.out}"),
            *(f"sets={','.join(FEEDBACK)}", f"prompts={self.base / 'data' / 'dev.json'}"),
            *(f"answers={answers}", f"out={self.out / 'agreement.json'}"),
        )
        needs = [evaluation.name]
        for feedback in FEEDBACK:
            needs += [f"{self.folder}/{feedback}/{model}" for model in MODELS.values()]
        output = f"{self.folder}/agreement.json"
        return [
            evaluation,
            Stage(name, command, needs=tuple(needs), outputs=(output,), modules=(MODELS_MODULE,)),
        ]


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


def agreement_table(measured: Sequence[Mapping[str, Mapping[str, float]]]) -> str:
    """The means over seeds of second_round_models.py."""
    lines = [
        "Agreement of the reward models with the oracle, on dev answers of the policy that was"
        " trained with the first ones:",
        "",
        "| trained on | R1, AUC | R2, AUC | R3, pairs ordered right |",
        "|---|---|---|---|",
    ]
    for feedback in FEEDBACK:
        cells = []
        for aspect in ASPECTS:
            values = [seed[feedback][aspect] for seed in measured]
            cells.append(f"{sum(values) / len(values):.3f}")
        lines.append(f"| {feedback} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def table(
    result: Mapping, used: Mapping, measured: Sequence[Mapping[str, Mapping[str, float]]]
) -> str:
    """The results in Markdown."""
    lines = [
        policies_table(dict(result)),
        "| arm | annotated rows | RL episodes |",
        "|---|---|---|",
    ]
    for arm, of_arm in used.items():
        rows, episodes = (", ".join(map(str, sorted(set(of_arm[key])))) for key in of_arm)
        lines.append(f"| {arm} | {rows} | {episodes} |")
    return "\n".join(lines) + "\n\n" + agreement_table(measured)


def second_round(settings: Settings) -> None:
    """Run all stages, write second_round.json and second_round.md, and print the tables."""
    out = settings.folder
    base = Path(settings.base_dir).absolute()
    needed = (base / "sft" / "model.safetensors", base / "generated/sft-dev/samples.jsonl")
    if not all(path.exists() for path in needed):
        raise UserError(
            f"{base} has no SFT policy or no answers to dev questions: run `make demo` first, or"
            " set base_dir=... to its output folder"
        )
    experiment = experiment_of(base, out)
    stages = [experiment.evaluation_stage(plan_of(base), "sft", base / "sft", folder="sft")]
    for seed in settings.seed_list:
        stages += Seed(settings, experiment, base, seed).stages()
    experiment.run(stages, settings.lane_count)
    result = results(out, settings.seed_list, ARMS, COMPARED)
    used = budget(out, settings.seed_list)
    measured = [read_json(out / f"seed-{seed}" / "agreement.json") for seed in settings.seed_list]
    write_json(out / "second_round.json", {**result, "budget": used, "agreement": measured})
    text = table(result, used, measured)
    write_text(out / "second_round.md", text)
    print("\n" + text)


if __name__ == "__main__":
    stop_with_signals()
    run_main(lambda: second_round(settings_from(Settings)))
