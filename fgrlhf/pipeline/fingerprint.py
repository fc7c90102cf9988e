"""A digest of everything in the repository that decides what a command does."""

import ast
import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from fgrlhf.runs.runlog import versions

PACKAGES = ("fgrlhf", "sft", "reward_modeling", "tasks")


def fingerprint(
    root: Path,
    command: Sequence[str],
    reads: Iterable[str],
    modules: Iterable[str],
    upstream: Iterable[str],
) -> str:
    """Digest of a command, the files matching the patterns `reads`, the code of `modules`, earlier
    digests.

    Code counts without comments and docstrings. An absolute path in `reads` is a file elsewhere,
    such as a model of another pipeline. Equal in every checkout: paths enter without `root`.
    """
    files = {
        path
        for pattern in reads
        for path in ([Path(pattern)] if Path(pattern).is_absolute() else root.glob(pattern))
    }
    parts = {
        "command": [part.replace(str(root), "") for part in command],
        "files": {
            str(path).replace(str(root), ""): _sha(path.read_bytes()) for path in sorted(files)
        },
        "code": {
            str(path.relative_to(root)): _sha(_code(path).encode())
            for path in sorted(imported_files(root, modules))
        },
        "versions": versions(),
        "upstream": list(upstream),
    }
    return _sha(json.dumps(parts, sort_keys=True).encode())


def imported_files(root: Path, modules: Iterable[str]) -> set[Path]:
    """Files of the repository that importing `modules` may run: the closure of their import
    statements.
    """
    found: set[Path] = set()
    ahead = [file for module in modules for file in _files_of(root, module)]
    while ahead:
        path = ahead.pop()
        if path in found:
            continue
        found.add(path)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for name in _names(node):
                ahead += _files_of(root, name)
    return found


def _names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []


def _files_of(root: Path, name: str) -> list[Path]:
    """The file of a module of this repository and the `__init__` of every package above it."""
    parts = name.split(".")
    if parts[0] not in PACKAGES:
        return []
    above = [root.joinpath(*parts[:i], "__init__.py") for i in range(1, len(parts) + 1)]
    return [path for path in [*above, root.joinpath(*parts).with_suffix(".py")] if path.exists()]


def _code(path: Path) -> str:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if (
            isinstance(body, list)
            and body
            and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
        ):
            del body[0]
    return ast.dump(tree)


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
