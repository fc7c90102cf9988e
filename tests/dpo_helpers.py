"""Small DPO runs on tiny models."""

from pathlib import Path

import tiny
from accelerate import Accelerator

from fgrlhf.configs.sections import LoRAConfig
from fgrlhf.configs.strict import validate
from fgrlhf.data.comparisons import Answer, Comparison
from fgrlhf.data.token_comparisons import encode_comparisons
from fgrlhf.dpo import DPOTrainer
from fgrlhf.runs.dpo_config import DPOConfig
from fgrlhf.text_types import Prompt

TEXTS = ["the red cat", "a dog sees", "question: one two three and a bird", "blue"]
TEXTS += ["the green bird likes a dog ."]
BETTER = ["cat cat", "the dog sees a cat .", "one", "a bird and a dog", "red red red"]
WORSE = ["dog", "the dog sees a bird .", "one two three", "a bird", "green ! green !"]


def config(folder: Path, **changes) -> DPOConfig:
    """Settings of a fast run; changes are given as section__key=value."""
    size = {"epochs": 5, "batch_size": 4, "micro_batch_size": 4}
    tree = {
        "model": {"ckpt": "tiny", "max_generated_len": 12},
        "dpo": {"beta": 0.5},
        "train": {**size, "lr": 1e-3, "warmup_steps": 2, "adam_eps": 1e-4},
        "evaluation": {"every_steps": 1000},
        "data": {"dev_file": "none", "feedback_file": "none"},
        "logging": {"save_dir": str(folder), "n_samples": 4},
    }
    for path, value in changes.items():
        section, key = path.split("__")
        tree.setdefault(section, {})[key] = value
    return validate(DPOConfig, tree, "test config")


def pairs(marked: bool = False) -> list[Comparison]:
    """One comparison of two answers for each text; the last characters are marked."""

    def answer(text: str) -> Answer:
        return Answer(text, ((len(text) - 2, len(text)),) if marked else ())

    return [
        Comparison(Prompt(str(i), t), (answer(b), answer(w)), ((0, 1),))
        for i, (t, b, w) in enumerate(zip(TEXTS, BETTER, WORSE))
    ]


def fours() -> list[Comparison]:
    """Four answers each, and several pairs."""
    several = [((0, 1), (0, 2), (2, 3)), ((3, 0),), ((1, 2), (1, 3), (0, 3), (0, 2))]
    several += [((2, 1), (0, 1)), ((0, 3),)]
    comparisons = []
    for i, decided in enumerate(several):
        answers = tuple(Answer(text) for text in (*BETTER[i:], *BETTER)[:4])
        comparisons.append(Comparison(Prompt(str(i), TEXTS[i]), answers, decided))
    return comparisons


def judged() -> list[Comparison]:
    """Good and bad answers without pairs: whole ones and ones with marks, and one of neither."""
    kinds = [(True, ()), (False, ()), (False, ((4, 7),)), (True, ((0, 3),)), (None, ())]
    answers = (*BETTER, *WORSE)
    comparisons = []
    for i, (label, marked) in enumerate([*kinds, (False, ((0, 3), (8, 11)))]):
        prompt = Prompt(str(i), TEXTS[i % len(TEXTS)])
        comparisons.append(Comparison(prompt, (Answer(answers[i], marked),), (), labels=(label,)))
    del comparisons[4]  # nobody said whether it is good
    two = (Answer("a bird"), Answer("one two three"), Answer("red"))
    return [*comparisons, Comparison(Prompt("6", "blue"), two, (), labels=(True, False, None))]


def trainer(
    cfg: DPOConfig,
    kind: str = "t5",
    comparisons=None,
    evaluate=None,
    lora: LoRAConfig | None = None,
    **noise: float,
) -> DPOTrainer:
    """A DPO trainer; the same arguments give the same trainer."""
    policy = tiny.policy(kind, lora=lora, **noise)
    comparisons = pairs() if comparisons is None else comparisons
    limits = (cfg.model.max_generated_len, cfg.dpo.reads_marks)
    encoded = encode_comparisons(policy, comparisons, *limits)
    return DPOTrainer(cfg, policy, encoded, evaluate, Accelerator(cpu=True))
