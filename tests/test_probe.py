"""The probe: oracle columns by hand, and warnings for models that prefer wrong answers."""

import torch

from fgrlhf.reward_models.scoring import SegmentLabels, SegmentScorer, SequenceScorer
from fgrlhf.text_types import Prompt
from tasks.experiments.probe import GOLD, REPEATED, probes, run_probe, table
from tasks.qa_feedback.data.mini_world import make_row

PROMPTS = [
    Prompt(
        str(i),
        r["text"],
        tuple(r["answer"]),
        {"question": r["question"], "passages": r["passages"]},
    )
    for i, r in ((i, make_row(0, "dev", i)) for i in range(5))
]


class Length(SequenceScorer):
    """Prefers long answers."""

    mean, std = 10.0, 2.0

    def __init__(self):
        pass

    def score(self, prompts, texts):
        return torch.tensor([float(len(text.split())) for text in texts])


class Blind(SegmentScorer):
    """Classifies every segment as error-free."""

    def __init__(self):
        pass

    def score(self, prompts, texts):
        return [
            SegmentLabels(((0, 3),), torch.tensor([[0.1, 0.9]]), ("NF-ERR", "O"), (True,))
            for _ in texts
        ]


def test_probe_answers():
    answers = probes(PROMPTS[0])
    gold = PROMPTS[0].references[0]
    first = answers["its first sentence"]
    assert gold.startswith(first) and answers[REPEATED] == f"{gold} {first}"
    assert answers["first sentence x4"].split(". ")[0] + "." == first
    assert answers["first sentence x4"].count(first) == 4


def test_oracle_prefers_the_gold_answer():
    scores = run_probe(PROMPTS, {}).scores["oracle gold"]
    assert scores[GOLD] == 1 and all(score < 1 for name, score in scores.items() if name != GOLD)
    assert scores["its first sentence"] > scores["first sentence x2"] > scores["first sentence x6"]


def test_weak_models_are_found_out():
    probe = run_probe(PROMPTS, {"rel_rm": Blind(), "comp_rm": Length()})
    assert any("rel_rm does not notice" in warning for warning in probe.warnings)
    assert any("comp_rm scores `all facts of the pages`" in warning for warning in probe.warnings)
    lengths = [len(prompt.references[0].split()) for prompt in PROMPTS]
    assert abs(probe.scores["comp_rm"][GOLD] - (sum(lengths) / 5 - 10) / 2) < 1e-5
    assert "warning:" in table(probe)
