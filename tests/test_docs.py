"""What the documents name exists, their snippets run, and their commands are commands."""

import importlib.util
import re
from pathlib import Path

import pytest
import yaml

from fgrlhf.cli.main import COMMANDS
from fgrlhf.config import validate
from fgrlhf.reward_models.kind import RewardContext, RewardKind
from fgrlhf.task import Task, rl_config
from fgrlhf.types import SegmentScore

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    path
    for path in sorted(ROOT.rglob("*.md"))
    if not set(path.relative_to(ROOT).parts) & {".venv", "outputs", "node_modules"}
]


def blocks(path: Path, language: str) -> list[str]:
    """The fenced blocks of a language."""
    text = path.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.M | re.S)


def commands(text: str) -> list[list[str]]:
    """The words of indented command lines and of code spans that begin like a command."""
    lines = re.findall(r"^ {4}((?:fgrlhf|bash|python|SCALE=).*)$", text, flags=re.M)
    spans = re.findall(r"`((?:fgrlhf|bash|python -m|SCALE=\w+ bash) [^`]+)`", text)
    return [line.split() for line in [*lines, *spans]]


def test_the_folders_of_the_readme_exist():
    (block,) = re.findall(
        r"^## Folders\n\n```\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S
    )
    parent = ""
    shown = []
    for line in block.splitlines():
        for name in re.findall(r"^\s*[\w/]+/|(?<=  )\w+/(?=  |$)", line):
            if line.startswith(" "):
                shown.append(parent + name.strip())
            else:
                parent = name
                shown.append(name)
    assert len(shown) > 12
    assert [name for name in shown if not (ROOT / name).is_dir()] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_commands_of_a_document_exist(path):
    wrong = []
    for words in commands(path.read_text(encoding="utf-8")):
        while "=" in words[0]:
            words = words[1:]
        if words[0] == "fgrlhf":
            known = words[1] in COMMANDS or words[1] in ("COMMAND", "--help")
            exists = known and (
                words[1] not in COMMANDS
                or importlib.util.find_spec(COMMANDS[words[1]][0]) is not None
            )
        elif words[0] == "bash":
            exists = "$" in words[1] or "NAME" in words[1] or (ROOT / words[1]).is_file()
            exists = exists or "colours" in words[1]  # the task that docs/tasks.md makes
        else:
            exists = importlib.util.find_spec(words[2]) is not None
        if not exists:
            wrong.append(" ".join(words))
    assert wrong == []


def test_the_reward_of_the_guide_runs():
    reward, task = blocks(ROOT / "docs" / "tasks.md", "python")
    names = {
        "RewardKind": RewardKind,
        "RewardContext": RewardContext,
        "SegmentScore": SegmentScore,
        "Task": Task,
        "re": re,
        "make_prompts": lambda split, seed: [],
        "share_sorted": lambda prompt, text: {},
    }
    exec("from typing import Literal\n" + reward + task, names)
    section = {"a": {"kind": "sorted_words", "value": 2}}
    tree = {
        "model": {"policy_model": {"ckpt": "p"}, "value_model": {"ckpt": "p"}},
        "reward": section,
        "logging": {"save_dir": "out"},
    }
    config = validate(rl_config(names["TASK"]), tree, "docs/tasks.md")
    built = config.reward["a"].build(RewardContext(prefix=lambda prompt, with_context: []))
    (scores,) = built.segment_scores([], ["a c b"])
    assert [score.value for score in scores] == [2, 2, -2]


def test_the_yaml_of_the_rewards_is_valid():
    (block,) = blocks(ROOT / "docs" / "rewards.md", "yaml")
    tree = {
        "model": {"policy_model": {"ckpt": "p"}, "value_model": {"ckpt": "p"}},
        "logging": {"save_dir": "out"},
    }
    config = validate(rl_config(Task("any")), tree | yaml.safe_load(block), "docs/rewards.md")
    assert len(config.reward) == 5


def test_relative_links_lead_somewhere():
    broken = [
        f"{path.relative_to(ROOT)}: {target}"
        for path in DOCUMENTS
        for target in re.findall(r"\]\(([^)#:\s]+)[^):]*\)", path.read_text(encoding="utf-8"))
        if not (path.parent / target).exists()
    ]
    assert not broken


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_files_named_in_a_document_exist(path):
    folders = "fgrlhf|sft|reward_modeling|interface_html|tasks|scripts|docs"
    text = path.read_text(encoding="utf-8")
    named = set(re.findall(rf"`((?:{folders})/[\w./-]+\.\w+)`", text))
    # relative to the repository, to the document, or, in a guide, to a task's folder
    places = (ROOT, path.parent, ROOT / "tasks" / "qa_feedback")
    missing = [name for name in sorted(named) if not any((at / name).exists() for at in places)]
    assert missing == []


def test_make_targets_named_in_the_documents_exist():
    targets = set(
        re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.M)
    )
    named = {
        name
        for path in DOCUMENTS
        for name in re.findall(
            r"(?:^ {4}|`)make ([a-z-]+)", path.read_text(encoding="utf-8"), flags=re.M
        )
    }
    assert {"demo", "test", "setup"} <= named <= targets
