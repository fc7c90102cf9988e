"""Whether the tests notice when the code is wrong.

    python -m scripts.mutations                         every mutation of tests/mutations.yml
    python -m scripts.mutations only=[gae-sign,...]     some of them

A mutation replaces a piece of a file by a wrong one. In a copy of the tree, each is made by itself,
and its tests run until the first one fails: the mutation is caught. At the end the tests that
caught one run once more on the right code, so that a test that always fails catches nothing.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from fgrlhf.base.errors import UserError
from fgrlhf.cli.command_line import run_program
from fgrlhf.configs.strict import StrictModel, validate
from fgrlhf.configs.yaml_files import read_yaml

ROOT = Path(__file__).parents[1]
LIST = "tests/mutations.yml"
SLOW = (  # modules that most tests import
    *("hypothesis", "accelerate", "peft", "spacy", "sacrebleu", "scipy.optimize"),
    *("transformers.modeling_utils", "transformers.generation.utils"),
)
PASSED, FAILED = 0, 1  # exit codes of pytest
COLLECTION_FAILED = 2
_FAILED_TEST = re.compile(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", re.M)


class Mutation(StrictModel):
    """A wrong piece of code, and the tests that should notice it."""

    file: str = Field(description="the file to change")
    text: str = Field(description="a piece of its text that occurs once")
    becomes: str = Field(description="what replaces it")
    wrong: str = Field(description="what is wrong then")
    tests: str = Field(
        description="arguments of pytest: files, and -k to choose some of their tests"
    )


class Mutations(StrictModel):
    mutations: dict[str, Mutation] = Field(description="by a short name")


class Settings(StrictModel):
    only: list[str] = Field(default=[], description="names of mutations; by default all")
    tests: str | None = Field(
        default=None, description="arguments of pytest for all of them, instead of their own"
    )


def read_mutations(path: Path = ROOT / LIST) -> dict[str, Mutation]:
    # not `load_config`: a piece of code may have `${...}`, which is no environment variable
    return validate(Mutations, read_yaml(path), source=str(path)).mutations


def mutated(source: str, mutation: Mutation) -> str:
    """The file's text with the wrong piece.

    Raises:
      UserError: the text does not occur exactly once, or nothing changes.
    """
    count = source.count(mutation.text)
    if count != 1 or mutation.text == mutation.becomes:
        raise UserError(
            f"{mutation.file}: the text of a mutation must be there once and become another one,"
            f" it is there {count} times: {mutation.text!r}. Correct {LIST}"
        )
    return source.replace(mutation.text, mutation.becomes)


def chosen(mutations: dict[str, Mutation], only: Sequence[str]) -> dict[str, Mutation]:
    unknown = sorted(set(only) - mutations.keys())
    if unknown:
        raise UserError(f"{LIST} has no mutation {unknown[0]}: name some of it")
    return {name: mutations[name] for name in only or mutations}


def copy_tree(target: Path) -> None:
    """Copy each file that git knows or would add."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    for name in listed.split("\0"):
        if name and (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


class PytestServer:
    """Runs pytest in a tree, without importing the same modules each time.

    Args:
      modules: what is imported once.
    """

    def __init__(self, tree: Path, modules: Sequence[str] = ()):
        self.tree = tree
        self._process = subprocess.Popen(
            [sys.executable, str(ROOT / "scripts" / "forked_pytest.py"), *modules],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> "PytestServer":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def run(self, arguments: Sequence[str]) -> tuple[int, str]:
        """The exit code of pytest, and its output."""
        assert self._process.stdin is not None and self._process.stdout is not None
        options = ["-q", "-n", "0", "--tb=no", "-p", "no:cacheprovider"]
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of the imported modules
        with tempfile.NamedTemporaryFile("r", encoding="utf-8", errors="replace") as output:
            request = {"arguments": [*arguments, *options], "output": output.name}
            print(json.dumps(request), file=self._process.stdin, flush=True)
            code = int(self._process.stdout.readline())
            return code, output.read()


def failed_tests(output: str) -> list[str]:
    """The tests that pytest names in its summary."""
    return _FAILED_TEST.findall(output)


def write(file: Path, text: str) -> None:
    """Replace a file and forget its byte code, which may be as old and as long as the new one."""
    file.write_text(text, encoding="utf-8")
    if file.suffix == ".py":
        Path(importlib.util.cache_from_source(str(file))).unlink(missing_ok=True)


def catching_test(tests: PytestServer, mutation: Mutation, arguments: str) -> str | None:
    """The first test that fails with the mutation; None if all pass.

    Args:
      arguments: of pytest.

    Raises:
      UserError: no test ran.
    """
    file = tests.tree / mutation.file
    source = file.read_text(encoding="utf-8")
    write(file, mutated(source, mutation))
    try:
        code, output = tests.run([*_words(arguments), "-x"])
    finally:
        write(file, source)
    failed = failed_tests(output)
    if code in (FAILED, COLLECTION_FAILED) and failed:
        return failed[0]
    if code == PASSED and re.search(r"\d+ passed", output):
        return None
    raise UserError(
        f"no test ran with the arguments `{arguments}` (exit code {code}):\n{output[-2000:]}"
    )


def failing_anyway(tests: PytestServer, catching: dict[str, str]) -> list[str]:
    """The mutations whose test also fails on the right code."""
    if not catching:
        return []
    _, output = tests.run(sorted(set(catching.values())))
    always_fail = set(failed_tests(output))
    return [name for name, test in catching.items() if test in always_fail]


def _words(arguments: str) -> list[str]:
    """The arguments of pytest; the expression behind -k is one of them, to the end."""
    files, k, expression = arguments.partition(" -k ")
    return [*files.split(), *(["-k", expression] if k else [])]


def run(settings: Settings) -> None:
    """Print a line for each mutation and the share that is caught."""
    mutations = chosen(read_mutations(), settings.only)
    catching: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        copy_tree(Path(folder))
        with PytestServer(Path(folder), SLOW) as tests:
            for name, mutation in mutations.items():
                started = time.monotonic()
                test = catching_test(tests, mutation, settings.tests or mutation.tests)
                if test is not None:
                    catching[name] = test
                outcome = f"caught by {test}" if test else f"MISSED: {mutation.wrong}"
                print(f"{name:30} {time.monotonic() - started:5.0f} s  {outcome}", flush=True)
            for name in failing_anyway(tests, catching):
                print(f"{name:30} NOT caught: {catching.pop(name)} fails without it too")
    print(f"{len(catching)} of {len(mutations)} mutations are caught")


if __name__ == "__main__":
    run_program(run, Settings)
