"""Kind `configs`: runs of a tiny stage with one odd value that its config accepts.

tests/test_config_values.py has values that a config refuses.
"""

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from faults.campaign import Bench, Kind
from faults.child import run
from faults.judging import Outcome
from fgrlhf.base.errors import UserError
from fgrlhf.configs.strict import load_config

NESTED = 3_000
ODD = (
    *("", " ", "null", "~", "true", "false", "yes", "0", "1", "-1", "3.0", "2.5", '"12"', "1e24"),
    *("1e30", "1e308", "1e309", "-1e308", "1e-320", "1e-400", ".inf", "-.inf", ".nan", "nan"),
    *("NaN", "inf", "9" * 5_000, "-" + "9" * 5_000, "0x" + "f" * 5_000, "0x1F", "0o17", "1:30"),
    *("1_000", "2024-13-45", "2024-01-01", "!!int x", "!!float x", "!!bool x", "!!timestamp x"),
    *("!!binary x", "!!python/name:os.system", "[]", "[1, 2]", "{}", "{a: 1}", "{[1]: 2}"),
    *("? [1]", "&a [*a]", "*a", "[" * NESTED, "[" * NESTED + "]" * NESTED, "a\0b", "a\nb"),
    *("a: b", "a #b", "\u2028", "\ud800", "x" * 200_000, "../../../evil", "${FAULTS_NOT_SET}"),
    *("${", "'", '"', "%", "- a", "é", "1e5x", "None"),
)


def leaves(tree: Any, prefix: str = "") -> list[tuple[str, Any]]:
    """(dotted key, value) of every value of a config."""
    if not isinstance(tree, dict) or not tree:
        return [(prefix.rstrip("."), tree)]
    return [leaf for key, value in tree.items() for leaf in leaves(value, f"{prefix}{key}.")]


RUN_STAGES = ("sft", "fg_rm", "pref_rm", "oracle", "ppo", "dpo")
PATHS = ("save_dir", "ckpt", "train_file", "dev_file", "feedback_file")
# with odd values of these keys a long run is no fault
HOW_LONG = ("epochs", "max_steps", "total_episodes", "every_steps", "save_every_steps")
RUN_CPU = 25.0


class Configs(Kind):
    """See the module's docstring."""

    name = "configs"
    good = ("ran", "refused")
    bad = ("traceback", "over 25 s", "long text")
    trials = 60

    def run(self, index: int, folder: Path) -> Outcome:
        name = RUN_STAGES[index % len(RUN_STAGES)]
        override = accepted_override(self.bench, name, self.bench.rng(self.name, index))
        stage = self.bench.world.stage(name, override)
        ended = run(stage.command, folder, folder / "logs/run.txt")
        note = (
            f"{name} {override[:80]!r}: exit {ended.code}, {ended.cpu:.1f}"
            f" s\n{ended.output[-2_000:]}"
        )
        if ended.has_traceback:
            return Outcome("traceback", note, "configs accepted, run")
        if ended.cpu > RUN_CPU and not any(key in override.partition("=")[0] for key in HOW_LONG):
            return Outcome("over 25 s", note, "configs accepted, run")
        refusal = ended.output.partition("error: ")[2]
        if ended.code == 2 and (len(refusal) >= 4_000 or refusal.count("\n") > 25):
            return Outcome("long text", note, "configs accepted, run")
        return Outcome("ran" if ended.code == 0 else "refused", note, "configs accepted, run")


def accepted_override(bench: Bench, name: str, rng: random.Random) -> str:
    """An odd value that the tiny config of a stage accepts; paths are not changed."""
    path = bench.world.config({"ppo": "rl"}.get(name, name))
    model = config_class_of_stage(name)
    tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    keys = [key for key, _ in leaves(tree) if key.rpartition(".")[2] not in PATHS]
    while True:
        key, value = rng.choice(keys), rng.choice(ODD)
        if len(value) > 6_000 or "\0" in value or "\ud800" in value:
            continue
        override = f"{key}={value}"
        with suppress(UserError):
            load_config(model, path, [override])
            return override


def config_class_of_stage(name: str):
    from fgrlhf.runs.dpo_config import DPOConfig
    from fgrlhf.task_config import rl_config
    from reward_modeling.run_fg_rm import SegmentRMConfig
    from reward_modeling.run_pref_rm import PreferenceRMConfig
    from sft.config import SFTConfig
    from tasks.qa_feedback.task import TASK

    return {
        "sft": SFTConfig,
        "fg_rm": SegmentRMConfig,
        "pref_rm": PreferenceRMConfig,
        "dpo": DPOConfig,
    }.get(name, rl_config(TASK))
