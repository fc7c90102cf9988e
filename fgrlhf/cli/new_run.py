"""`fgrlhf new-run CONFIG.yml stage=rl model=... train_file=...`: write a config that runs at once.

The config has the keys that a first run needs or that are changed first, each with a comment. The
texts come from fgrlhf/cli/new_run_files. Without `dev_file`, some prompts of `train_file` are held
out, and both parts are written beside the config.
"""

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from fgrlhf.base.errors import UserError, counted, shorten
from fgrlhf.base.files import read_json, read_jsonl, write_jsonl, write_text
from fgrlhf.cli.command_line import settings_from
from fgrlhf.configs.strict import FilePath, StrictModel, validate
from fgrlhf.configs.user_class import class_path, import_object
from fgrlhf.configs.yaml_files import parse_yaml
from fgrlhf.data.comparisons import Comparison
from fgrlhf.data.formats import COMPARISONS, DEMONSTRATIONS, PROMPTS
from fgrlhf.data.split import held_out
from fgrlhf.metrics.clusters import cluster_of
from fgrlhf.metrics.pooled import NOT_REWARDS
from fgrlhf.reward_models.spec import NOT_ERRORS, SPEC_FILE, RewardModelSpec
from fgrlhf.reward_utils import LEVEL_HELP, Level
from fgrlhf.task import NO_TASK, Task
from fgrlhf.task_config import rl_config
from fgrlhf.text_types import Prompt

FILES = Path(__file__).parent / "new_run_files"
USAGE = "usage: fgrlhf new-run CONFIG.yml model=... train_file=... [stage=rl] [key=value ...]"
COMMANDS = {"segment": "rm segment", "sequence": "rm sequence"}  # of stages with another name
CONFIG_CLASSES = {
    "sft": ("sft.config", "SFTConfig"),
    "segment": ("reward_modeling.run_fg_rm", "SegmentRMConfig"),
    "sequence": ("reward_modeling.run_pref_rm", "PreferenceRMConfig"),
    "dpo": ("fgrlhf.runs.dpo_config", "DPOConfig"),
}
FORMATS = {"sft": DEMONSTRATIONS, "sequence": COMPARISONS, "rl": PROMPTS, "dpo": COMPARISONS}


class NewRunSettings(StrictModel):
    """What the config is for."""

    stage: Literal["sft", "segment", "sequence", "rl", "dpo"] = Field(
        default="rl", description="segment, sequence: a reward model of segments, of responses"
    )
    model: FilePath = Field(description="initial model: folder or hub name")
    train_file: FilePath = Field(
        description=(
            "rl: prompts; sft: demonstrations; sequence, dpo: comparisons; segment: what"
            " `fgrlhf rm span_files` wrote"
        )
    )
    dev_file: FilePath | None = Field(
        default=None, description="null: prompts of train_file are held out; segment needs it"
    )
    dev_share: float = Field(
        default=0.1, gt=0, lt=1, description="without dev_file: the share of the prompts held out"
    )
    reward: str | None = Field(
        default=None,
        description=(
            "of rl: package.module.function of a segment, package.module.Class, or the folder of a"
            " reward model; null: a value for repetitions, to be replaced"
        ),
    )
    level: Level | None = Field(
        default=None,
        description=(
            "the segments that a function or a reward model of segments judges; null: sentence, or"
            f" as `span_files` recorded. {LEVEL_HELP}"
        ),
    )
    save_dir: FilePath | None = Field(
        default=None, description="folder of the run; null: outputs/NAME"
    )


def write_config(path: Path, settings: NewRunSettings) -> list[str]:
    """Write the config, and the parts of the data if it has no dev file.

    Returns:
      what was written or noticed, a line each.

    Raises:
      UserError: the file exists, the data or the reward cannot be used, or the stage would refuse
        the config.
    """
    if path.suffix not in (".yml", ".yaml"):
        raise UserError(f"{shorten(path)} is no name of a config: give one that ends in .yml")
    if path.exists():
        raise UserError(f"{path} exists: choose another name, or remove it")
    if settings.reward is not None and settings.stage != "rl":
        raise UserError(f"reward: stage={settings.stage} has no reward: leave it out")
    values, data = _values(path, settings)
    text = (FILES / f"{settings.stage}.yml.txt").read_text(encoding="utf-8")
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    validate(config_class(settings.stage), parse_yaml(text), f"{path} was not written")
    notes = []
    for file, rows in data.items():
        write_jsonl(file, rows)
        notes.append(f"{file}: {counted(len(rows), 'row')}")
    write_text(path, text)
    return [*notes, f"{path} is written. Run it:\n    fgrlhf {_command(settings.stage)} {path}"]


def _command(stage: str) -> str:
    return COMMANDS.get(stage, stage)


def config_class(stage: str, task: Task = NO_TASK) -> type[StrictModel]:
    """The class of a stage's config."""
    if stage == "rl":
        return rl_config(task)
    module, name = CONFIG_CLASSES[stage]
    return getattr(import_module(module), name)


def _values(path: Path, settings: NewRunSettings) -> tuple[dict[str, str], dict[Path, list[dict]]]:
    """What fills the text of the config, and the files to write: path -> rows."""
    values = {
        "CONFIG": str(path),
        "NAME": _yaml(path.stem),
        "MODEL": _yaml(settings.model),
        "SAVE": _yaml(settings.save_dir or f"outputs/{path.stem}"),
        "TRAIN": _yaml(settings.train_file),
        "DEV": _yaml(settings.dev_file),
        "REWARD": "",
    }
    if settings.stage == "segment":
        return values | _segment_values(settings), {}
    if settings.stage == "rl":
        values["REWARD"] = _reward(settings)
    items = FORMATS[settings.stage].read(settings.train_file)
    data: dict[Path, list[dict]] = {}
    if settings.dev_file is None:
        train_file, dev_file = (path.with_suffix(f".{part}.jsonl") for part in ("train", "dev"))
        for file in (train_file, dev_file):
            if file.exists():
                raise UserError(f"{file} exists: remove it, or give dev_file=FILE")
        items, dev = _divided(items, settings)
        data = {train_file: [FORMATS[settings.stage].to_row(item) for item in items]}
        if settings.stage == "dpo":
            data[dev_file] = [PROMPTS.to_row(_with_best_answers(item)) for item in dev]
        else:
            data[dev_file] = [FORMATS[settings.stage].to_row(item) for item in dev]
        values |= {"TRAIN": _yaml(str(train_file)), "DEV": _yaml(str(dev_file))}
    elif settings.stage == "dpo":
        _check_references(settings.dev_file)
    else:
        FORMATS[settings.stage].read(settings.dev_file)
    return values | {"ROWS": counted(len(items), "row")}, data


def _yaml(value: Any) -> str:
    """A value as it is written inside a line of YAML."""
    is_plain = isinstance(value, str) and re.fullmatch(r"[\w./+-]+", value) is not None
    return value if is_plain and parse_yaml(value) == value else json.dumps(value)


def _divided(items: Sequence[Any], settings: NewRunSettings) -> tuple[list[Any], list[Any]]:
    """The items of training and of dev. What shares a prompt or a cluster stays together."""
    prompts = [item if isinstance(item, Prompt) else item.prompt for item in items]
    groups = [cluster_of(prompt) or prompt.text for prompt in prompts]
    dev = held_out(groups, settings.dev_share, settings.train_file)
    pairs = list(zip(groups, items, strict=True))
    return (
        [item for group, item in pairs if group not in dev],
        [item for group, item in pairs if group in dev],
    )


def _with_best_answers(comparison: Comparison) -> Prompt:
    """The prompt, with the answers that were never the worse one as its references."""
    worse = {pair[1] for pair in comparison.pairs}
    better = {pair[0] for pair in comparison.pairs} - worse
    texts = tuple(comparison.answers[place].text for place in sorted(better))
    return replace(comparison.prompt, references=texts)


def _check_references(dev_file: str) -> None:
    without = [prompt for prompt in PROMPTS.read(dev_file) if not prompt.references]
    if without:
        raise UserError(
            f"dev_file: row {shorten(without[0].id)} of {dev_file} has no `references`, with which"
            " responses are compared: add them, or leave dev_file out"
        )


# ---- rewards -------------------------------------------------------------------------------------


def _reward(settings: NewRunSettings) -> str:
    """The line of the section `reward`."""
    reward = settings.reward
    if reward is None:
        return "repetition: {kind: repetition, n: 3, value: -0.1}  # replace it by yours"
    if Path(reward).is_dir():
        return _of_folder(Path(reward), settings.level or "sentence")
    try:
        class_path(reward)
    except ValueError:
        raise UserError(
            f"reward: {shorten(reward)} is neither a folder nor package.module.function"
        ) from None
    found = import_object("reward", reward)
    level = "" if isinstance(found, type) else f", level: {settings.level or 'sentence'}"
    return f"{_name(reward.rpartition('.')[2])}: {{kind: python, of: {reward}{level}}}"


def _of_folder(folder: Path, level: str) -> str:
    """The line of a reward model of this library, or of another program.

    Args:
      level: the segments of a token classifier whose folder does not tell them.
    """
    values = ", values: {error: -0.5, ok: 0.5}"
    if (folder / SPEC_FILE).exists():
        judges_segments = RewardModelSpec.read(folder).kind == "segment"
        facts = values if judges_segments else ""
    else:
        config = folder / "config.json"
        architecture = str(read_json(config).get("architectures")) if config.exists() else ""
        judges_segments = "ForTokenClassification" in architecture
        facts = f", level: {level}{values}" if judges_segments else ", mean: 0, std: 1"
    kind = "segment_classifier" if judges_segments else "sequence_scorer"
    return f"{_name(folder.resolve().name)}: {{kind: {kind}, ckpt: {_yaml(str(folder))}{facts}}}"


def _name(text: str) -> str:
    """A name of a reward made of letters, digits and `_`."""
    name = "".join(letter if letter.isalnum() else "_" for letter in text).strip("_").lower()
    return f"my_{name}" if not name or name[0].isdigit() or name in NOT_REWARDS else name


def _segment_values(settings: NewRunSettings) -> dict[str, str]:
    """What the files of a reward model of segments say of themselves."""
    if settings.dev_file is None:
        raise UserError(
            "dev_file is missing: write one from the dev rows that `fgrlhf feedback export"
            " dev_file=...` gives, by the same `fgrlhf rm span_files` command"
        )
    rows = read_jsonl(settings.train_file)
    tags = set()
    for row in rows:
        if not isinstance(row, dict) or not isinstance(row.get("feedback_tags"), list):
            raise UserError(
                f"{settings.train_file} has no words and tags: write it by `fgrlhf rm span_files"
                f" source={settings.train_file} output=...`"
            )
        tags |= {str(tag) for tag in row["feedback_tags"]} - {*NOT_ERRORS}
    if not tags:
        raise UserError(f"{settings.train_file} has no segment with the tag of an error")
    level = settings.level
    if level is None:
        file = Path(settings.train_file)
        description = file.parent / "segmenter.json"
        levels = read_json(description).get("levels", {}) if description.exists() else {}
        level = levels.get(file.name, "sentence")
    return {
        "ROWS": counted(len(rows), "row"),
        "LEVEL": _yaml(level),
        "ERROR": f"[{', '.join(_yaml(tag) for tag in sorted(tags))}]",
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Command line: the config to write, and key=value settings."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        settings_from(NewRunSettings, ["--help"], USAGE)
    if "=" in arguments[0]:
        raise UserError(f"the name of the config to write comes first\n{USAGE}")
    settings = settings_from(NewRunSettings, arguments[1:], USAGE)
    print("\n".join(write_config(Path(arguments[0]), settings)))
