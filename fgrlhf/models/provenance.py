"""What a model folder says about its weights: `model_source.json` and the card `README.md`.

`fgrlhf data model` writes the source, and every folder of a model that was trained from there
carries it along. run.json and the report show it, so that results of de-quantised weights are not
mistaken for those of the published weights. The card of a trained policy has the metadata that
model hubs read.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.files import read_json, write_json
from fgrlhf.base.secrets import mask_secrets
from fgrlhf.configs.sections import files_of

SOURCE_FILE = "model_source.json"
CARD_FILE = "README.md"
MARK = "<!-- Written by fgrlhf. A README.md without this line is yours and stays. -->"
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
DATA_KEYS = ("train_file", "feedback_file", "dev_file")


@dataclass(frozen=True)
class ModelSource:
    """The pretrained model from which a folder's weights come.

    Attributes:
      model: its name on the hub.
      source: where its weights were downloaded.
    """

    model: str
    source: str

    def __str__(self) -> str:
        return f"{self.model} ({self.source})"

    def save(self, folder: str | Path) -> None:
        write_json(Path(folder) / SOURCE_FILE, asdict(self))


def read_source(ckpt: str | Path) -> ModelSource | None:
    """The source of a model folder; None if it has no such file, or one of another program.

    The file is only a remark about the weights, so a damaged one is ignored.
    """
    try:
        path = Path(ckpt) / SOURCE_FILE
        values = read_json(path) if path.is_file() else None
    except (UserError, OSError, ValueError):  # ValueError: a path with a NUL
        return None
    if not isinstance(values, dict):
        return None
    model, source = values.get("model"), values.get("source")
    if not isinstance(model, str) or not isinstance(source, str):
        return None
    return ModelSource(shorten(model), shorten(source))


def sources_in(settings: Any) -> dict[str, str]:
    """The sources of all model folders that a config names: folder -> description."""
    sources = {}
    for text in _texts(settings):
        source = read_source(text)
        if source is not None:
            sources[text] = str(source)
    return sources


def _texts(tree: Any) -> Iterator[str]:
    """All strings of nested dicts and lists, without the keys."""
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from _texts(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _texts(value)


# ---- the card of a policy ------------------------------------------------------------------------


def write_card(folder: Path, earlier: Path, text: str) -> None:
    """Write a card into a new folder, unless the folder that it replaces has one by a person.

    Args:
      earlier: the folder that is replaced, if there is one.
    """
    path = earlier / CARD_FILE
    by_a_person = path.is_file() and MARK not in path.read_text(encoding="utf-8", errors="replace")
    if not by_a_person:
        (folder / CARD_FILE).write_text(text, encoding="utf-8")


def policy_card(
    config: Any, command: str, columns: Mapping[str, float], step: int, is_causal: bool
) -> str:
    """The text of a policy's README.md.

    Args:
      config: of the run: SFT, DPO or RL.
      command: that trained the policy.
      columns: the dev evaluation of this policy, as in metrics.jsonl.
      step: after which it was evaluated.
      is_causal: decoder-only; False: encoder-decoder.
    """
    how = config.method
    base = config.model.ckpt
    metadata = yaml.safe_dump(_metadata(base, how, is_causal), sort_keys=False, allow_unicode=True)
    lines = [
        "---",
        metadata.rstrip(),
        "---",
        "",
        f"# {config.logging.run_name}",
        "",
        f"Trained by fgrlhf from {code(base)}{_source(base)}: {how}, {step} steps.",
        "",
        "| data | file |",
        "|---|---|",
        *_data_rows(config),
        "",
    ]
    for part in (_rewards(config), _figures(columns), _use(is_causal)):
        lines += part
    lines += [
        "## How it was made",
        "",
        f"    {command}",
        "",
        "`config.yaml` in the folder of the run has all settings, `run.json` the versions, seed and"
        " commit, `metrics.jsonl` all figures.",
        "",
        MARK,
        "",
    ]
    return mask_secrets("\n".join(lines))


def _metadata(base: str, how: str, is_causal: bool) -> dict[str, Any]:
    """What a hub reads. The licence of the base holds for what was trained from it."""
    metadata: dict[str, Any] = {}
    source = read_source(base)
    name = base if source is None else source.model
    is_folder = source is None and Path(base).is_dir()
    if HUB_NAME.fullmatch(name) and not is_folder:
        metadata["base_model"] = name
    licence = _licence(Path(base))
    if licence is not None:
        metadata["license"] = licence
    metadata["library_name"] = "transformers"
    if is_causal:
        metadata["pipeline_tag"] = "text-generation"
    metadata["tags"] = ["fgrlhf", *re.findall(r"\w+", how.lower())]
    return metadata


def _licence(folder: Path) -> str | None:
    """The licence that the card of a model folder names; None if there is none."""
    path = folder / CARD_FILE
    if not path.is_file():
        return None
    text = path.read_text(encoding="utf-8", errors="replace")
    found = re.match(r"---\r?\n(.*?)\r?\n---\r?\n", text, re.DOTALL)
    try:
        metadata = yaml.safe_load(found[1]) if found else None
    except yaml.YAMLError:
        return None
    licence = metadata.get("license") if isinstance(metadata, dict) else None
    return licence if isinstance(licence, str) else None


def _source(base: str) -> str:
    source = read_source(base)
    return "" if source is None else f" ({source})"


def _data_rows(config: Any) -> list[str]:
    """A row for each file of the section `data`."""
    rows = []
    for key in DATA_KEYS:
        for file in files_of(getattr(config.data, key, None)):
            rows.append(f"| {key.removesuffix('_file')} | {code(file)} |")
    return rows


def _rewards(config: Any) -> list[str]:
    """What the policy was rewarded for; nothing without rewards."""
    rewards = getattr(config, "reward", {})
    if not rewards:
        return []
    rows = []
    for name, reward in rewards.items():
        if reward.base_weight:
            models = ", ".join(code(Path(folder).name) for folder in _folders(reward)) or "–"
            rows.append(f"| {code(name)} | {reward.kind} | {reward.base_weight:g} | {models} |")
    return ["## Rewards", "", "| reward | kind | weight | models |", "|---|---|---|---|", *rows, ""]


def _folders(reward: Any) -> list[str]:
    return [folder for folder in reward.model_folders() if ":" not in folder]


def _figures(columns: Mapping[str, float]) -> list[str]:
    """The dev evaluation as a table; nothing without one."""
    names = [name.removeprefix("eval/") for name in columns if name.startswith("eval/")]
    if not names:
        return []
    rows = []
    for name in names:
        bounds = {"mean": "eval", "low": "eval_low", "high": "eval_high"}
        interval = {end: columns.get(f"{prefix}/{name}") for end, prefix in bounds.items()}
        rows.append(f"| {code(name)} | {value_text(interval)} |")
    return [
        "## On dev",
        "",
        "Intervals are of 95 % over prompts (fgrlhf, docs/metrics.md). They do not cover the choice"
        " of this checkpoint on the same prompts, nor another seed.",
        "",
        "| figure | value |",
        "|---|---|",
        *rows,
        "",
    ]


def _use(is_causal: bool) -> list[str]:
    name = "AutoModelForCausalLM" if is_causal else "AutoModelForSeq2SeqLM"
    return [
        "## Use",
        "",
        "```python",
        f"from transformers import AutoTokenizer, {name}",
        "",
        'folder = "."  # this folder, or its name on a hub',
        "tokenizer = AutoTokenizer.from_pretrained(folder)",
        f"model = {name}.from_pretrained(folder)",
        "```",
        "",
    ]


def value_text(interval: Mapping[str, float | None], signed: bool = False) -> str:
    """`0.812 [0.760, 0.855]`, or the value alone if it has no interval."""
    sign = "+" if signed else ""
    numbers = [interval["mean"], interval["low"], interval["high"]]
    mean, low, high = (None if x is None else f"{x:{sign}z.3f}" for x in numbers)
    return f"{mean}" if low is None else f"{mean} [{low}, {high}]"


def code(name: str) -> str:
    """A name as code, also in a cell of a table."""
    return "`" + name.replace("|", "\\|").replace("`", "'").replace("\n", " ") + "`"
