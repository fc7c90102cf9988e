"""Kinds `configs` and `configs-run`: mutate every shipped YAML and load it; run accepted ones.

Mutations are whole files (not UTF-8, YAML bombs, wrong shapes), malformed overrides, override
values for every key, and misspelt keys.
"""

import random
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from faults.campaign import Bench, Kind
from faults.child import run
from faults.judging import BAD, GOOD, Outcome, call
from faults.world import ROOT
from fgrlhf.base.errors import printable
from fgrlhf.configs.strict import load_config
from fgrlhf.configs.yaml_files import dump_yaml, read_config

RUNS = 60  # accepted settings to run, at scale 1
NESTED = 3_000


@dataclass(frozen=True)
class Mutation:
    """A mutation of a config: a replaced file or overrides.

    key: the key that a refusal must name; empty: the file.
    misspelt: the config must be refused.
    """

    what: str
    content: bytes | None = None
    overrides: tuple[str, ...] = ()
    key: str = ""
    misspelt: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Names of which a refusal must contain one: the last part of the key.

        If that part is malformed, any part of the key will do.
        """
        parts = [part for part in self.key.split(".") if part.strip()]
        plain = parts[-1:] if self.misspelt or self.what.startswith(self.key) else parts
        # as messages show them: without half characters and control characters
        texts = [part.encode("utf-8", "backslashreplace").decode() for part in plain]
        return tuple(printable(text) for text in texts)


def config_class(path: Path):
    """The config class of a shipped YAML's stage; None if the file is no stage's config."""
    from fgrlhf.load import load_task
    from fgrlhf.runs.dpo_config import DPOConfig
    from fgrlhf.task_config import rl_config
    from reward_modeling.run_fg_rm import SegmentRMConfig
    from reward_modeling.run_pref_rm import PreferenceRMConfig
    from sft.config import SFTConfig

    tree = read_config(path)
    if "reward" in tree:
        return rl_config(load_task(f"tasks.{path.relative_to(ROOT / 'tasks').parts[0]}"))
    if "labels" in tree:
        return SegmentRMConfig
    if path.parent.name == "reward_modeling":
        return PreferenceRMConfig
    if "dpo" in tree:
        return DPOConfig
    return SFTConfig if "model" in tree else None


def shipped() -> list[Path]:
    """Every YAML of the tasks that is the config of a stage.

    Other files have what configs share (`base:`), and mini_compare_config.yml is a table of
    compare.py.
    """
    paths = sorted((ROOT / "tasks").rglob("*_config.yml"))
    return [path for path in paths if config_class(path) is not None]


# ---- whole files ---------------------------------------------------------------------------------


def whole_files(text: str) -> Iterator[Mutation]:
    """Files of other shapes, and the shipped file with a hostile addition."""
    first = text.split("\n")[1] if text.startswith("#") else text.split("\n")[0]
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 10)
    )
    wide = "model: &m {ckpt: x}\n" + "".join(f"k{i}: *m\n" for i in range(5_000))
    texts = {
        "empty": "",
        "white space": " \n\n",
        "comment": "# nothing\n",
        "null": "null\n",
        "a list": "- a\n- b\n",
        "a text": "hello\n",
        "a number": "3\n",
        "an empty mapping": "{}\n",
        "two documents": f"{text}\n---\n{text}",
        "nested lists": "a: " + "[" * NESTED,
        "closed nested lists": "a: " + "[" * NESTED + "]" * NESTED,
        "nested mappings": "{a: " * NESTED + "1" + "}" * NESTED,
        "nested blocks": "".join(" " * i + "a:\n" for i in range(600)),
        "an anchor bomb": bomb,
        "many aliases": wide,
        "a recursive anchor": "a: &a [*a]\n",
        "a recursive mapping": "model: &m {value_model: *m}\n",
        "an unknown alias": "a: *b\n",
        "an unhashable key": "? [1]\n: 2\n",
        "an unhashable key in a flow": "{[1]: 2}\n",
        "a mapping as key": "{{a: 1}: 2}\n",
        "a bad date": f"{text}\nx: 2024-13-45\n",
        "a bad time": f"{text}\nx: 2024-01-01 99:99:99\n",
        "5,000 digits": f"{text}\nx: {'9' * 5_000}\n",
        "5,000 digits after a sign": f"{text}\nx: -{'9' * 5_000}\n",
        "5,000 hexadecimal digits": f"{text}\nx: 0x{'f' * 5_000}\n",
        "5,000 digits in a float": f"{text}\nx: {'9' * 5_000}.5\n",
        "1e999999": f"{text}\nx: 1e999999\n",
        "a duplicate key": f"{text}\n{first}\n",
        "duplicate keys in a section": "model: {ckpt: a, ckpt: b}\n",
        "a NUL": f"{text}\0",
        "a tab": f"\t{text}",
        "a bell": f"{text}\nx: \a\n",
        "an object": "x: !!python/object/apply:os.system [true]\n",
        "a name": "x: !!python/name:os.system\n",
        "an unknown tag": "x: !secret 1\n",
        "a merge of a text": "<<: hello\n",
        "a merge": "model: {<<: {ckpt: x}}\n",
        "a set": "!!set {a, b}\n",
        "an omap": "!!omap [a: 1]\n",
        "binary": "x: !!binary abc\n",
        "a number as section": "model: 3\nlogging: 4\n",
        "a list as section": "model: [1]\nlogging: [2]\n",
        "null sections": "model:\nlogging:\n",
        "number keys": "1: 2\n3.5: 4\nnull: 5\ntrue: 6\n",
        "a long key": f"{'k' * 200_000}: 1\n",
        "a long text": f"x: {'k' * 200_000}\n",
        "5,000 keys": "".join(f"k{i}: 1\n" for i in range(5_000)),
        "a variable that is not set": f"{text}\nx: ${{FAULTS_NOT_SET}}\n",
        "half a flow": "model: {ckpt: x\n",
        "half a quote": "model: 'x\n",
        "a line separator": f"{text}\nx: a\u2028b\n",
        "a date as key": "2024-01-01: 1\n",
        "a sexagesimal": "model: 1:30:00\n",
    }
    for tag in (
        "int x",
        "float x",
        "bool x",
        "timestamp x",
        "null x",
        "seq x",
        "map x",
        "str [1]",
        "int ''",
        "float ''",
        "bool ''",
    ):
        texts[f"!!{tag}"] = f"{text}\nx: !!{tag}\n"
    for what, content in texts.items():
        yield Mutation(what, content.encode("utf-8", "surrogatepass"))
    yield Mutation("Latin-1", f"# caf\xe9\n{text}".encode("latin-1"))
    yield Mutation("UTF-16", text.encode("utf-16"))
    yield Mutation("UTF-32", text.encode("utf-32"))
    yield Mutation("not UTF-8", b"\xff\xfe\xfa model: 1\n")
    yield Mutation("a surrogate", f"{text}\nx: \ud800\n".encode("utf-8", "surrogatepass"))
    yield Mutation("a byte order mark", b"\xef\xbb\xbf" + text.encode())
    yield Mutation("zeros", b"\0" * 4_096)
    yield Mutation("half the file", text.encode()[: len(text) // 2])


# ---- overrides -----------------------------------------------------------------------------------

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


def override_forms() -> Iterator[Mutation]:
    """Overrides that are malformed or refer to nothing."""
    forms = (
        *("", "=", "=1", "a", "a.b", ".=1", "..=1", "model.=1", ".model=1", "model..ckpt=1"),
        *(" =1", "model =1", "model=", "model=1", "model=null", "model=[]", "model.ckpt.x=1"),
        *("logging.save_dir.x.y=1", "train.lr.x=1", "train=1", "train.=1", "a=b=c", "--help"),
        *("-h", "train.lr==1", "train[0]=1", "train.0=1", "1=1", "null=1", "true=1", "é=1"),
        *("\u2028=1", "\ud800=1", "a\0b=1", "a\nb=1", "x" * 200_000 + "=1", "a." * 2_000 + "b=1"),
        *("<<=1", "__class__=1", "__init__.x=1", "model.__dict__=1", "train.__class__=1"),
        *("model_config=1", "*=1", "&a=1", "train.lr", "train lr=1", "TRAIN.lr=1", "train.LR=1"),
        *("train.lr:1", "train/lr=1"),
    )
    for form in forms:
        yield Mutation(
            f"override {form[:40]!r}", overrides=(form,), key=form.partition("=")[0].strip()[:40]
        )


def leaves(tree: Any, prefix: str = "") -> list[tuple[str, Any]]:
    """(dotted key, value) of every value of a config."""
    if not isinstance(tree, dict) or not tree:
        return [(prefix.rstrip("."), tree)]
    return [leaf for key, value in tree.items() for leaf in leaves(value, f"{prefix}{key}.")]


def values_of_keys(tree: Any) -> Iterator[Mutation]:
    """Every odd value for every key."""
    for key, _ in leaves(tree):
        for value in ODD:
            yield Mutation(f"{key}={value[:40]!r}", overrides=(f"{key}={value}",), key=key)


def misspelt(tree: Any, rng: random.Random) -> Iterator[Mutation]:
    """Keys with a letter dropped, doubled or swapped, and keys of other sections."""
    free = ("reward.",)  # the names of rewards are chosen by the user
    keys = [key for key, _ in leaves(tree)]
    for key in keys:
        head, _, leaf = key.rpartition(".")
        if len(leaf) < 3:
            continue
        at = rng.randrange(1, len(leaf) - 1)
        for wrong in (
            leaf[:at] + leaf[at + 1 :],
            leaf[:at] + leaf[at] + leaf[at:],
            leaf[: at - 1] + leaf[at] + leaf[at - 1] + leaf[at + 1 :],
        ):
            path = f"{head}.{wrong}".lstrip(".")
            is_free = key.startswith(free) and key.count(".") < 2
            if wrong == leaf or path in keys or is_free:
                continue
            yield Mutation(f"misspelt {path}", overrides=(f"{path}=1",), key=wrong, misspelt=True)


def mutations(path: Path, rng: random.Random) -> list[Mutation]:
    """Every mutation of a shipped YAML, shuffled, with the few that are not per key first."""
    tree = read_config(path)
    text = dump_yaml(tree)
    few = [*whole_files(text), *override_forms()]
    many = [*misspelt(tree, rng), *values_of_keys(tree)]
    rng.shuffle(few)
    rng.shuffle(many)
    return [*few, *many]


def load(path: Path, mutation: Mutation, folder: Path):
    """Call the stage's loader on the mutated config."""
    file = path
    if mutation.content is not None:
        file = folder / path.name
        file.write_bytes(mutation.content)
    model = config_class(path)
    assert model is not None
    names = mutation.names if mutation.overrides else (file.name,)
    return call(lambda: load_config(model, file, list(mutation.overrides)), names)


class Configs(Kind):
    """See the module's docstring."""

    name = "configs"
    good = GOOD
    bad = (*BAD, "misspelling accepted")
    batch = 250
    trials = 10_000

    def __init__(self, bench: Bench):
        super().__init__(bench)
        self.files = shipped()
        self.mutations: dict[Path, list[Mutation]] = {}

    def place(self, index: int) -> tuple[Path, Mutation]:
        """The file and mutation of an index: files alternate, each with its mutations in order."""
        path = self.files[index % len(self.files)]
        number = index // len(self.files)
        if path not in self.mutations:
            rng = random.Random(f"{self.bench.seed}/configs/{path.name}")
            self.mutations[path] = mutations(path, rng)
        return path, self.mutations[path][number % len(self.mutations[path])]

    def died(self, code: int) -> Outcome:
        verdict = "over a second" if code == -signal.SIGXCPU else "traceback"
        return Outcome(verdict, f"the process ended with {code}")

    def run(self, index: int, folder: Path) -> Outcome:
        path, mutation = self.place(index)
        called = load(path, mutation, folder)
        verdict = called.verdict
        if verdict == "accepted" and mutation.misspelt:
            verdict = "misspelling accepted"
        return Outcome(verdict, f"{path.name}, {mutation.what}: {called.note}")


# ---- accepted settings, run ----------------------------------------------------------------------

RUN_STAGES = ("sft", "fg_rm", "pref_rm", "oracle", "ppo", "dpo")
PATHS = ("save_dir", "ckpt", "train_file", "dev_file", "feedback_file")
# with odd values of these keys a long run is no fault
HOW_LONG = ("epochs", "max_steps", "total_episodes", "every_steps", "save_every_steps")
RUN_CPU = 25.0


class AcceptedConfigs(Kind):
    """Runs a tiny stage with one odd value that its config accepts."""

    name = "configs-run"
    good = ("ran", "refused")
    bad = ("traceback", "over 25 s", "long text")
    trials = RUNS

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
        if call(partial(load_config, model, path, [override])).verdict == "accepted":
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
