"""What the tables of a blind human evaluation cover, in the mini world of qa_feedback.

    python -m benchmarks.human_coverage runs=200 seed=0

Three policies answer the questions of a population, with different rates of errors. In each run,
simulated annotators judge blind items of some of these questions, made by the code of `fgrlhf
feedback items ... blind=true`. The truth is the oracle's: the share of sub-sentences with an error
of each kind, and the probability of each outcome of a comparison, over the whole population. With
noise, an annotator's judgement of a sub-sentence is wrong with this probability, and the truth is
what is then expected.
"""

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product
from math import tanh

from pydantic import Field, PositiveInt

from benchmarks.coverage import CoverageSettings, Covered, rounded, show
from fgrlhf.cli.command_line import run_program
from interface_html.blind import blind_items
from interface_html.format import Item
from interface_html.human_eval import unblinded
from interface_html.human_figures import ANY, tables
from interface_html.judged_items import GivenPreference, JudgedItem
from interface_html.tasks import FeedbackTask, feedback_of
from tasks.qa_feedback.data.annotator import Habits, annotate
from tasks.qa_feedback.data.language import ErrorRates
from tasks.qa_feedback.data.mini_world import demonstration, make_item, to_row
from tasks.qa_feedback.data.oracle import SubSentence, Truth, judge, page_sentences
from tasks.qa_feedback.feedback import FeedbackRow

POLICIES = {
    "dpo": ErrorRates(wrong_value=0.2, irrelevant=0.2),
    "rl": ErrorRates(wrong_value=0.1, irrelevant=0.1, drop_claim=0.05),
    "sft": ErrorRates(),
}
KINDS = {"irrelevant": "Irrelevant", "repeated": "Redundant", "incoherent": "Incoherent"}
PROMPTS = 50  # of an evaluation
RESPONSES = 2  # of each policy to a question
TEMPERATURE = 0.05


def kind_of(part: SubSentence) -> str | None:
    """The error that an annotator without noise marks in a sub-sentence."""
    if part.label != "ok":
        return KINDS[part.label]
    return None if part.supported else "Wrong-Grounding"


@dataclass(frozen=True)
class Population:
    """Questions with the responses of all policies.

    Attributes:
      sources: of each policy, its items.
      truths: of each policy, for each question, the truth about its responses.
    """

    task: FeedbackTask
    sources: Mapping[str, Sequence[Item]]
    truths: Mapping[str, Sequence[Sequence[Truth]]]

    @classmethod
    def make(cls, questions: int, seed: int) -> "Population":
        task = feedback_of("qa_feedback")
        outputs = task.schema.fields.outputs[:RESPONSES]
        sources: dict[str, list[Item]] = {}
        truths: dict[str, list[list[Truth]]] = {}
        for policy, rates in POLICIES.items():
            for index in range(questions):
                question = make_item(seed, "test", index)
                rng = random.Random(f"{seed}/{policy}/{index}")
                rows = []
                for _ in range(RESPONSES):
                    sentences = demonstration(rng, question, rates)
                    rows.append(to_row(question, question.question, sentences))
                asked, passages = rows[0]["question"], rows[0]["passages"]
                texts = [row["answer"][0] for row in rows]
                pages = [[title, *lines] for title, lines in map(page_sentences, passages)]
                item = {"question": asked, "passages": pages, "gold": "unknown"}
                item |= dict(zip(outputs, texts, strict=True))
                sources.setdefault(policy, []).append(Item(str(index), item))
                judged = [judge(asked, passages, text) for text in texts]
                truths.setdefault(policy, []).append(judged)
        return cls(task, sources, truths)

    @cached_property
    def shares(self) -> dict[str, dict[str, float]]:
        """The share of sub-sentences with an error of each kind, by policy."""
        found = {}
        for policy, of_policy in self.truths.items():
            counts: Counter[str] = Counter()
            total = 0
            for truth in (one for of_question in of_policy for one in of_question):
                total += len(truth.subsentences)
                for kind in map(kind_of, truth.subsentences):
                    if kind is not None:
                        counts.update([kind, ANY])
            found[policy] = {kind: count / total for kind, count in counts.items()}
        return found

    def expected_shares(self, noise: float) -> dict[str, dict[str, float]]:
        """The shares that annotators with this noise mark: half of the slips are `Irrelevant`."""
        expected = {}
        for policy, shares in self.shares.items():
            slips = noise * (1 - shares[ANY])
            expected[policy] = {kind: (1 - noise) * share for kind, share in shares.items()}
            expected[policy][ANY] += slips
            expected[policy]["Irrelevant"] += slips / 2
        return expected

    @cached_property
    def outcomes(self) -> dict[str, tuple[float, float]]:
        """Of each pair of policies, the expected shares of wins and ties of the first."""
        found = {}
        for a, b in combinations(sorted(self.truths), 2):
            wins = ties = total = 0.0
            for of_a, of_b in zip(self.truths[a], self.truths[b], strict=True):
                for one, other in product(of_a, of_b):
                    difference = one.gold - other.gold
                    total += 1
                    ties += difference == 0
                    wins += (difference != 0) * (1 + tanh(difference / (2 * TEMPERATURE))) / 2
            found[f"{a} : {b}"] = (wins / total, ties / total)
        return found


def human_tables(
    population: Population, questions: int, annotators: int, noise: float, seed: int
) -> dict[str, dict[str, Mapping[str, object]]]:
    """The tables of one simulated evaluation: title -> row -> column -> figure."""
    task = population.task
    files = dict.fromkeys(population.sources, __file__)  # the key wants a digest of a file
    items, key = blind_items(task, population.sources, files, questions, seed)
    habits = Habits(noise, TEMPERATURE, perturbed=0)
    judged = []
    for item in items:
        entry = JudgedItem(item)
        for annotator in range(annotators):
            rng = random.Random(f"{seed}/{annotator}/{item.id}")
            texts = [item.row[name] for name in task.schema.fields.outputs]
            row = annotate(
                rng, item.row["question"], item.row["passages"], "unknown", texts, habits
            )
            name = f"annotator {annotator}"
            entry.annotations[name] = _document(row)
            entry.comparisons[name] = GivenPreference(list(row.preference), None)
        judged.append(entry)
    by_title: dict[str, dict[str, Mapping[str, object]]] = {}
    for one in tables(task.schema, unblinded(task, key, judged)):
        by_title[one.title] = {}
        for name, figures in one.rows.items():
            by_title[one.title][name] = dict(zip(one.columns, figures, strict=True))
    return by_title


def _document(row: FeedbackRow) -> dict[str, object]:
    """The annotation of a row, as a page submits it."""
    return {**row.raw["feedback"], "no-error": not row.errors}


def coverage(
    population: Population, questions: int, annotators: int, noise: float, runs: int, seed: int
) -> dict[str, float]:
    """The share of intervals that contain the truth, by what they are of."""
    covered = Covered()
    shares = population.expected_shares(noise)
    for run in range(runs):
        marked, differences, compared = human_tables(
            population, questions, annotators, noise, seed + run
        ).values()
        for policy, row in marked.items():
            for kind in (ANY, "Irrelevant", "Wrong-Grounding"):
                covered.check(kind, row[kind], shares[policy][kind])
        for pair, row in differences.items():
            a, b = pair.split(" - ")
            covered.check("difference", row[ANY], shares[a][ANY] - shares[b][ANY])
        for pair, (win, tie) in population.outcomes.items():
            covered.check("win", compared[pair]["win"], win)
            covered.check("tie", compared[pair]["tie"], tie)
            covered.check("lose", compared[pair]["lose"], 1 - win - tie)
            covered.check("win rate", compared[pair]["win rate"], win + tie / 2)
    return covered.shares()


class HumanCoverageSettings(CoverageSettings):
    runs: PositiveInt = Field(default=200, description="simulated evaluations of each row")
    questions: PositiveInt = Field(default=3000, description="of the population")


def table(settings: HumanCoverageSettings) -> Iterator[str]:
    """The rows of the table in interface_html/README.md."""
    population = Population.make(settings.questions, settings.seed)
    for place, (annotators, noise) in enumerate(product((1, 3), (0.0, 0.1))):
        shares = coverage(population, PROMPTS, annotators, noise, settings.runs, settings.seed)
        if place == 0:
            yield f"| prompts | annotators | noise | {' | '.join(shares)} |"
            yield f"|{'---|' * (3 + len(shares))}"
        cells = " | ".join(map(rounded, shares.values()))
        yield f"| {PROMPTS} | {annotators} | {noise:g} | {cells} |"


if __name__ == "__main__":
    run_program(lambda settings: show(table(settings)), HumanCoverageSettings)
