"""A digest of everything in the repository that affects what a command does.

A pipeline starts a command again if its fingerprint has changed. The command itself then compares
the settings and inputs that its folder records (fgrlhf/runs/stage.py) and says which differ: a
digest cannot. Files have the same digests in both.
"""

import ast
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import fgrlhf
from fgrlhf.base.errors import UserError
from fgrlhf.configs.yaml_files import config_files
from fgrlhf.runs.runlog import versions
from fgrlhf.runs.stage import digest

LIBRARY = Path(fgrlhf.__file__).parents[1]  # the folder of the library's packages


def fingerprint(
    root: Path,
    command: Sequence[str],
    reads: Iterable[str],
    modules: Iterable[str],
    upstream: Iterable[str],
    variables: Iterable[str] = (),
) -> str:
    """Digest of a command, the files it reads, its code, and the digests of earlier stages.

    Comments and docstrings do not count. Paths are relative to `root`, so the digest is the same in
    every checkout.

    Args:
      reads: glob patterns in `root`; an absolute path is a file elsewhere, such as a model of
        another pipeline. The bases of a config count with it.
      modules: the modules that the command runs; their imports are followed.
      upstream: digests of the stages that the command needs.
      variables: `NAME=value` of environment variables that affect the result.
    """
    files: set[Path] = set()
    for pattern in reads:
        file = root / pattern  # an absolute path stays what it is
        if Path(pattern).is_absolute() or file.is_file():
            files.add(file)
        else:
            files |= set(root.glob(pattern))
    for path in list(files):
        files |= _bases(_Version.of(path))
    file_digests = {}
    for path in sorted(files):
        file_digests[str(path).replace(str(root), "")] = digest(path)
    code_digests = {}
    for path in sorted(imported_files(root, modules)):
        code_digests[_relative_path(path, root)] = _code_digest(_Version.of(path))
    parts = {
        "command": [part.replace(str(root), "") for part in command],
        "files": file_digests,
        "code": code_digests,
        "versions": versions(),
        "upstream": list(upstream),
        "variables": [variable.replace(str(root), "") for variable in variables],
    }
    return _digest(json.dumps(parts, sort_keys=True))


def imported_files(root: Path, modules: Iterable[str]) -> set[Path]:
    """Files in `root` and the library that importing `modules` may run, directly or indirectly."""
    files: set[Path] = set()
    names = set(modules)
    to_visit = list(names)
    while to_visit:
        for path in set(_files_of(root, to_visit.pop())) - files:
            files.add(path)
            imported = _imported_names(_Version.of(path), _package_of(path, root)) - names
            names |= imported
            to_visit += imported
    return files


def imports(root: Path, modules: Iterable[str], package: str) -> bool:
    """Whether importing `modules` may import a package from outside `root`, such as `torch`."""
    for path in imported_files(root, modules):
        names = _imported_names(_Version.of(path), _package_of(path, root))
        if package in {name.split(".")[0] for name in names}:
            return True
    return False


@dataclass(frozen=True)
class _Version:
    """The current version of a file: the key of cached results."""

    path: Path
    size: int
    changed: int

    @classmethod
    def of(cls, path: Path) -> "_Version":
        status = path.stat()
        return cls(path, status.st_size, status.st_mtime_ns)


@cache
def _imported_names(file: _Version, package: tuple[str, ...]) -> frozenset[str]:
    tree = ast.parse(file.path.read_text(encoding="utf-8"))
    return frozenset(name for node in ast.walk(tree) for name in imported_by(node, package))


def imported_by(node: ast.AST, package: tuple[str, ...]) -> list[str]:
    """The modules that a statement imports; `from a import b` may import the module a.b.

    Args:
      package: the package of the module, to which `from .a import b` is relative.
    """
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    # one dot is the package itself, each further one the package above
    above = package[: len(package) - node.level + 1] if node.level else ()
    module = ".".join([*above, *([node.module] if node.module else [])])
    return [module, *(f"{module}.{alias.name}" for alias in node.names)]


def _package_of(file: Path, root: Path) -> tuple[str, ...]:
    """The package that a file belongs to, as its parts."""
    return Path(_relative_path(file, root)).parent.parts


def _files_of(root: Path, name: str) -> list[Path]:
    """The file of a module and the `__init__` of its packages; [] outside root and library."""
    parts = name.split(".")
    is_here = (root / parts[0]).exists() or (root / f"{parts[0]}.py").exists()
    folder = root if is_here else LIBRARY
    if not (folder / parts[0]).exists() and len(parts) > 1:
        return []  # a module of another package, such as torch.nn
    above = [folder.joinpath(*parts[:i], "__init__.py") for i in range(1, len(parts) + 1)]
    candidates = [*above, folder.joinpath(*parts).with_suffix(".py")]
    return [path for path in candidates if path.exists()]


def _relative_path(path: Path, root: Path) -> str:
    return str(path.relative_to(root if path.is_relative_to(root) else LIBRARY))


@cache
def _code_digest(file: _Version) -> str:
    """Digest of the code of a module without its comments and docstrings."""
    tree = ast.parse(file.path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and _is_docstring(body[0]):
            del body[0]
    return _digest(ast.dump(tree))


def _is_docstring(statement: ast.AST) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _bases(file: _Version) -> set[Path]:
    """The configs that a config is based on; none if it is not a config or has mistakes."""
    if file.path.suffix not in (".yml", ".yaml"):
        return set()
    try:
        return set(config_files(file.path)[1:])
    except UserError:  # the stage that reads it says what is wrong
        return set()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
