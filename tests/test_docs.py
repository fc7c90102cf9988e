"""The README's file tree is the repository, and what the documents point to exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHOWN = ("fgrlhf", "sft", "reward_modeling", "tasks", "scripts", "docs", "benchmarks")
SUFFIXES = {".py", ".sh", ".yml", ".md", ".html", ".j2", ".css", ".js"}
DOCUMENTS = [
    path
    for path in ROOT.rglob("*.md")
    if not set(path.relative_to(ROOT).parts) & {".venv", "outputs"}
]


def tree() -> set[str]:
    """Paths of the README's tree: a line `folder/` opens a folder, indented lines below it are in
    it.
    """
    block = (
        (ROOT / "README.md")
        .read_text(encoding="utf-8")
        .partition("## Files")[2]
        .partition("```\n")[2]
        .partition("```")[0]
    )
    folders, found = [], set()
    for line in block.splitlines():
        if not line.strip():
            continue
        depth, name = (len(line) - len(line.lstrip())) // 2, line.split()[0]
        folders = folders[:depth]
        if name.endswith("/"):
            folders.append(name)
        else:
            found |= {"".join([*folders, part]) for part in name.split(",")}
    return found


def test_the_tree_is_the_repository():
    files = {
        path.relative_to(ROOT).as_posix()
        for folder in SHOWN
        for path in (ROOT / folder).rglob("*")
        if path.suffix in SUFFIXES and path.name != "__init__.py"
    }
    shown = {path for path in tree() if path.split("/")[0] in SHOWN}
    assert sorted(files - shown) == [], "files that README.md does not list"
    assert sorted(shown - files) == [], "files in README.md that do not exist"


def test_relative_links_lead_somewhere():
    broken = [
        f"{path.relative_to(ROOT)}: {target}"
        for path in DOCUMENTS
        for target in re.findall(r"\]\(([^)#:\s]+)[^):]*\)", path.read_text(encoding="utf-8"))
        if not (path.parent / target).exists()
    ]
    assert not broken


def test_files_named_in_the_readme_exist():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    named = set(
        re.findall(r"`((?:fgrlhf|sft|reward_modeling|tasks|scripts|docs)/[\w./-]+\.\w+)`", text)
    )
    assert len(named) > 5
    assert not [name for name in named if not (ROOT / name).exists()]


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
