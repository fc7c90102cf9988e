"""The size and the connections of this code, as a table.

    python -m scripts.structure            figures of the files
    python -m scripts.structure run=true   also those of a PPO run of `tasks/numbers`, in a minute

Every figure is computed from the files that git knows or would add, so two people with the same
tree see the same numbers. Left out are the complexity of functions and what tests cover: neither
says whether the parts fit together.
"""

import ast
import inspect
import json
import os
import subprocess
import sys
import tempfile
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from fgrlhf.cli.command_line import run_program
from fgrlhf.configs.strict import StrictModel
from fgrlhf.load import load_task
from fgrlhf.pipeline.fingerprint import imported_by

ROOT = Path(__file__).parents[1]
RL = ("fgrlhf.train_rl", "fgrlhf.cli.rl")  # `fgrlhf rl` reads its config before it imports the rest
SMALL_TASK = "tasks.hanoi.task"
Graph = Mapping[str, set[str]]

# ---- lines ---------------------------------------------------------------------------------------


def kind_of_file(name: str) -> str | None:
    """The row of the table that counts the lines of a file; None if none does.

    `findings/` is left out: its scripts show what other packages do, and use nothing of ours.
    """
    path = Path(name)
    if path.parts[0] == "findings":
        return None
    if "tests" in path.parts:
        kinds = {".py": "tests", ".yml": "cases", ".yaml": "cases", ".json": "cases"}
    else:
        kinds = {".py": "python", ".yml": "yaml", ".yaml": "yaml", ".sh": "shell"}
    return kinds.get(path.suffix)


def lines_by_kind(texts: Mapping[str, str]) -> dict[str, int]:
    """The number of lines of each kind of file, blank ones and comments included."""
    lines: dict[str, int] = dict.fromkeys(("python", "yaml", "shell", "tests", "cases"), 0)
    for name, text in texts.items():
        kind = kind_of_file(name)
        if kind is not None:
            lines[kind] += len(text.splitlines())
    return lines


# ---- imports -------------------------------------------------------------------------------------


def module_name(file: str) -> str:
    """`fgrlhf/cli/rl.py` -> `fgrlhf.cli.rl`; a package has the name of its folder."""
    return ".".join(Path(file).with_suffix("").parts).removesuffix(".__init__")


def imported_names(source: str, module: str, is_package: bool, typing_too: bool) -> set[str]:
    """What Python imports together with a module: `a.b` for `from a import b` and `import a.b`.

    Args:
      is_package: whether the source is an `__init__.py`, where `from . import x` means its folder.
      typing_too: whether imports under `if TYPE_CHECKING` count. Those inside functions never do.
    """
    parts = tuple(module.split("."))
    package = parts if is_package else parts[:-1]
    names: set[str] = set()
    nodes: list[ast.AST] = list(ast.parse(source).body)
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            nodes += node.orelse + (node.body if typing_too else [])
        elif isinstance(node, ast.Import):
            names |= set(imported_by(node, package))
        elif isinstance(node, ast.ImportFrom):
            _, *members = imported_by(node, package)
            names |= set(members)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            children = ast.iter_child_nodes(node)
            nodes += [
                child for child in children if isinstance(child, ast.stmt | ast.excepthandler)
            ]
    return names


def import_graph(texts: Mapping[str, str], typing_too: bool = False) -> dict[str, set[str]]:
    """Each module -> the modules among the files that its import statements name.

    `from a import b` names `a.b` if that is a module, and `a` otherwise. Packages that Python
    imports on the way count only if they are named.
    """
    files = {module_name(file): file for file in texts if file.endswith(".py")}
    graph = {}
    for module, file in files.items():
        is_package = Path(file).name == "__init__.py"
        names = imported_names(texts[file], module, is_package, typing_too)
        named = {name if name in files else name.rpartition(".")[0] for name in names}
        graph[module] = named & files.keys() - {module}
    return graph


def reached(graph: Graph, starts: Iterable[str]) -> set[str]:
    """The starts and all modules that they import, directly or not."""
    found = set(starts)
    waiting = list(found)
    while waiting:
        new = graph[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def longest_chain(graph: Graph, starts: Iterable[str]) -> list[str]:
    """The longest chain of imports that begins at a start.

    Raises:
      ValueError: the imports below the starts form a circle.
    """
    chains: dict[str, list[str]] = {}
    on_the_way: set[str] = set()

    def chain(module: str) -> list[str]:
        if module in on_the_way:
            raise ValueError(f"{module} imports itself through others")
        if module not in chains:
            on_the_way.add(module)
            below = [chain(name) for name in sorted(graph[module])]
            on_the_way.remove(module)
            chains[module] = [module, *max(below, key=len, default=[])]
        return chains[module]

    return max((chain(start) for start in starts), key=len)


def circles(graph: Graph) -> list[list[str]]:
    """Groups of modules each of which reaches all others of its group, largest first."""
    below = {module: reached(graph, graph[module]) for module in graph}
    groups = []
    grouped: set[str] = set()
    for module in sorted(graph):
        if module in grouped:
            continue
        group = sorted(name for name in below[module] if module in below[name])
        grouped.update(group)
        if len(group) > 1:
            groups.append(group)
    return sorted(groups, key=len, reverse=True)


# ---- public names --------------------------------------------------------------------------------


def listed(source: str) -> list[str] | None:
    """The names in a module's `__all__`, which is a literal; None without one."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
                return ast.literal_eval(node.value)
    return None


def public_modules(texts: Mapping[str, str], package: str) -> list[str]:
    """A package and the modules below it that are listed: each by the package it is in.

    Raises:
      ValueError: a package has no `__all__`, or it lists something else.
    """
    files = {module_name(file): file for file in texts if file.endswith(".py")}
    if Path(files[package]).name != "__init__.py":
        return [package]
    names = listed(texts[files[package]])
    modules = [f"{package}.{name}" for name in names or ()]
    if names is None or not files.keys() >= set(modules):
        raise ValueError(f"{files[package]} needs an `__all__` that lists its public modules")
    found = [package]
    for module in modules:
        found += public_modules(texts, module)
    return found


def public_definitions(source: str) -> dict[str, ast.stmt]:
    """The functions and classes of a module that are public: those in `__all__`, if it has one."""
    names = listed(source)
    found = {}
    for node in ast.parse(source).body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if node.name in names if names is not None else not node.name.startswith("_"):
            found[node.name] = node
    return found


# ---- keys of a config ----------------------------------------------------------------------------


def config_classes(model: Any) -> set[Any]:
    """The class of a config, those of its sections and of all kinds that a section may have."""
    found = set()
    waiting = [model]
    while waiting:
        annotation = waiting.pop()
        section = getattr(annotation, "__origin__", annotation)  # of `Annotated[Section, ...]`
        found.add(section)
        for field in section.model_fields.values():
            waiting += [below for below in sections_in(field.annotation) if below not in found]
    return found


def n_keys(model: Any) -> tuple[int, int]:
    """How many keys of a config have a value, not a section.

    A section counts once, however many places of the config it may have, and values of its tag.

    Returns:
      the number if each kind of a section counts with all its keys, and the number of keys that
      classes declare: one that several kinds inherit counts once.
    """
    keys = 0
    declared = set()
    for section in config_classes(model):
        for name, field in section.model_fields.items():
            if not sections_in(field.annotation):
                keys += 1
                declared.add((first_with(section, name), name))
    return keys, len(declared)


def first_with(section: type, name: str) -> type:
    """The most basic class of a section that declares a key."""
    return [base for base in section.__mro__ if name in inspect.get_annotations(base)][-1]


def sections_in(annotation: Any) -> list[Any]:
    """The config classes in an annotation such as `dict[str, A | B]`."""
    if hasattr(annotation, "model_fields"):
        return [annotation]
    return [part for inner in typing.get_args(annotation) for part in sections_in(inner)]


# ---- calls of a run ------------------------------------------------------------------------------

# A program of its own, since torch and its threads must start below the profiler.
PROFILED = '''
import json, sys
root, output, *arguments = sys.argv[1:]
imports = 0          # running imports: `<module>` frames of any file
stack, deepest = [], []
config, holders, files = None, set(), []

def holds(frame):
    """Whether a frame has the config as an argument, or uses it as an attribute of one."""
    code = frame.f_code
    n_arguments = code.co_argcount + code.co_kwonlyargcount
    values = [frame.f_locals.get(name) for name in code.co_varnames[:n_arguments]]
    if any(value is config for value in values):
        return True
    fields = [getattr(value, "__dict__", {}) for value in values]
    return "config" in code.co_names and any(one.get("config") is config for one in fields)

def watch(frame, event, value):
    global imports, config, deepest
    code = frame.f_code
    step = {"call": 1, "return": -1}.get(event, 0)
    if code.co_name == "<module>":
        imports += step
    elif imports == 0 and step and code.co_filename.startswith(root):
        file = code.co_filename.removeprefix(root)
        if step < 0:
            stack.pop()
            return
        stack.append(f"{file}:{code.co_qualname}")
        if len(stack) > len(deepest):
            deepest = list(stack)
        if file == "fgrlhf/train_rl.py" and code.co_name == "train":
            config = frame.f_locals["config"]
        if config is not None and code not in holders and holds(frame):
            holders.add(code)
            if files[-1:] != [file]:
                files.append(file)

from fgrlhf.cli.rl import main
import fgrlhf.train_rl
sys.setprofile(watch)
main(arguments)
sys.setprofile(None)
loaded = [getattr(module, "__file__", None) or "" for module in sys.modules.values()]
loaded = sum(name.startswith(root) for name in loaded)
json.dump({"deepest": deepest, "files": files, "loaded": loaded}, open(output, "w"))
'''


def calls_of_a_run(folder: Path) -> dict[str, Any]:
    """The deepest chain of calls of our functions in a small PPO run, and where its config goes.

    Only what the main thread calls after the start counts. What runs while a module is imported
    does not: Python imports a module wherever it is first needed, and its frames are no chain that
    a reader follows.

    Returns:
      `deepest`: the functions of our files on the stack where it was deepest, outermost first;
      `files`: the files through which the config of `train_rl.train` goes, in the order of the
        first calls of functions that get this object as an argument, or use it as the attribute
        `config` of one. A file follows again each time the config comes back to it;
      `loaded`: the number of our modules that are loaded at the end of the run.
    """
    words = [str(number) for number in range(1, 32)]
    model = [f"output_dir={folder}/base_model", f"words={' '.join(words)}"]
    settings = ["tasks/numbers/mini_rl_config.yml", "train.total_episodes=128"]
    output = folder / "calls.json"
    environment = {**os.environ, "OUTPUT_DIR": str(folder), "PYTHONPATH": str(ROOT)}
    for command in (
        ["-m", "fgrlhf.cli.tiny_model", "tasks.numbers", *model],
        ["-c", PROFILED, f"{ROOT}{os.sep}", str(output), "tasks.numbers", *settings],
    ):
        subprocess.run(
            [sys.executable, *command], cwd=ROOT, env=environment, check=True, stdout=sys.stderr
        )
    return json.loads(output.read_text(encoding="utf-8"))


def figures_of_a_run(calls: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The rows of the table about a small PPO run (`calls_of_a_run`)."""
    chain = " -> ".join(calls["deepest"])
    files = calls["files"]
    different = len(set(files))
    return [
        ("our modules loaded in a small PPO run", str(calls["loaded"])),
        ("deepest chain of our calls, without imports", f"{len(calls['deepest'])}: {chain}"),
        ("files that the config of train_rl.train passes", f"{different}: {', '.join(files)}"),
        ("  how often it comes back to one of them", str(len(files) - different)),
    ]


# ---- the table -----------------------------------------------------------------------------------


def files_of_the_tree() -> dict[str, str]:
    """The text of each file that git knows or would add, and the table counts or reads."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    names = sorted({name for name in listed.split("\0") if name and kind_of_file(name)})
    return {
        name: (ROOT / name).read_text(encoding="utf-8") for name in names if (ROOT / name).is_file()
    }


def figures(texts: Mapping[str, str]) -> list[tuple[str, str]]:
    """The rows of the table that need no run: (what is counted, the number)."""
    lines = lines_by_kind(texts)
    product = {name: text for name, text in texts.items() if kind_of_file(name) == "python"}
    graph = import_graph(product)
    with_typing = import_graph(product, typing_too=True)
    groups = circles(with_typing)
    names = {
        module_name(file): len(public_definitions(text))
        for file, text in product.items()
        if file.startswith("fgrlhf/")
    }
    in_reference = sum(names[module] for module in public_modules(product, "fgrlhf"))
    chain = longest_chain(graph, RL)
    return [
        ("lines of Python without tests", f"{lines['python']:,}"),
        ("lines of YAML", f"{lines['yaml']:,}"),
        ("lines of shell", f"{lines['shell']:,}"),
        ("lines of tests", f"{lines['tests']:,}"),
        ("lines of YAML and JSON that tests read", f"{lines['cases']:,}"),
        ("modules that `fgrlhf rl` imports", _both(graph, with_typing, RL)),
        ("its longest chain of imports", f"{len(chain)}: {' -> '.join(chain)}"),
        (f"modules that {SMALL_TASK} imports", _both(graph, with_typing, [SMALL_TASK])),
        (
            "functions and classes of fgrlhf without `_`",
            f"{sum(names.values()):,} ({in_reference:,} in public modules)",
        ),
        ("modules in circles, typing included", " + ".join(map(str, map(len, groups))) or "0"),
        *((f"  a circle of {len(group)}", ", ".join(group)) for group in groups),
    ]


def _both(graph: Graph, with_typing: Graph, starts: Sequence[str]) -> str:
    typing_too = len(reached(with_typing, starts))
    return f"{len(reached(graph, starts))} ({typing_too} with imports for typing)"


class Settings(StrictModel):
    run: bool = Field(default=False, description="also profile a small PPO run")


def run(settings: Settings) -> None:
    """Print the table."""
    from fgrlhf.task_config import rl_config  # imports torch

    rows = figures(files_of_the_tree())
    keys, declared = n_keys(rl_config(load_task("qa_feedback")))
    rows.append(("keys of `fgrlhf rl qa_feedback`", f"{keys} ({declared} declared)"))
    if settings.run:
        with tempfile.TemporaryDirectory() as folder:
            calls = calls_of_a_run(Path(folder))
        rows += figures_of_a_run(calls)
    for name, value in rows:
        print(f"{name:50} {value}")


if __name__ == "__main__":
    run_program(run, Settings)
