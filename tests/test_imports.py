"""Which packages may import which, and that importing has no side effects."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fgrlhf.pipeline.fingerprint import imported_by
from scripts import structure

ROOT = Path(__file__).parents[1]
PACKAGES = ("fgrlhf", "sft", "reward_modeling", "interface_html", "tasks", "benchmarks")
LIBRARY = ("fgrlhf", "sft", "reward_modeling", "interface_html")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def module_name(path: Path) -> str:
    return structure.module_name(str(path.relative_to(ROOT)))


def imported(path: Path) -> set[str]:
    """All modules in the file's import statements, with `from . import x` resolved."""
    package = path.relative_to(ROOT).parent.parts
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return {name for node in nodes for name in imported_by(node, package)}


def test_the_walk_sees_imports(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "fgrlhf" / "deep").mkdir(parents=True)
    file = tmp_path / "fgrlhf" / "deep" / "a.py"
    file.write_text(
        "def f():\n    from tasks.x import y\nimport a.b\nfrom .. import up\nfrom .near import z\n"
    )
    below = {"fgrlhf", "fgrlhf.up", "fgrlhf.deep.near", "fgrlhf.deep.near.z"}
    assert imported(file) == {"tasks.x", "tasks.x.y", "a.b"} | below


@pytest.mark.parametrize("package", LIBRARY)
def test_the_library_never_imports_a_task(package):
    for path in (ROOT / package).rglob("*.py"):
        assert [name for name in imported(path) if name.split(".")[0] == "tasks"] == [], path


def test_fgrlhf_imports_neither_sft_nor_reward_modeling():
    for path in (ROOT / "fgrlhf").rglob("*.py"):
        packages = {name.split(".")[0] for name in imported(path)}
        assert not packages & {"sft", "reward_modeling"}, path


# Forbidden during import. Each is turned into an error before every module is imported.
PROBE = """
import argparse, importlib, os, socket, subprocess, sys
before, environment = set(os.listdir()), dict(os.environ)
def refuse(what):
    def stop(*arguments, **keywords):
        raise AssertionError(f"importing called {what}")
    return stop
argparse.ArgumentParser.parse_args = argparse.ArgumentParser.parse_known_args = refuse("argparse")
socket.socket.connect = socket.getaddrinfo = refuse("the network")
subprocess.Popen.__init__ = refuse("another program")
for name in sys.argv[1:]:
    importlib.import_module(name)
    for heavy in ("wandb", "tensorboard", "torch.utils.tensorboard"):
        assert heavy not in sys.modules, f"{name} imports {heavy}"
import accelerate.state, torch, fgrlhf.reward_utils
assert fgrlhf.reward_utils._pipeline.cache_info().currsize == 0, "importing loaded a spaCy pipeline"
for variables in (os.environ, environment):
    variables.pop("TORCHINDUCTOR_CACHE_DIR", None)  # torch's own
    for name in ("KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK"):  # scikit-learn's
        variables.pop(name, None)
assert dict(os.environ) == environment, "importing changed the environment"
assert not accelerate.state.AcceleratorState._shared_state, "importing made an accelerator"
assert not torch.distributed.is_initialized()
assert set(os.listdir()) == before, "importing wrote files"
"""


def run_python(code, *arguments, **environment):
    """What the code prints."""
    command = [sys.executable, "-c", code, *arguments]
    settings = {"env": {**os.environ, "PYTHONPATH": str(ROOT)} | environment}
    done = subprocess.run(command, capture_output=True, text=True, **settings)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_importing_every_module_does_nothing(tmp_path, monkeypatch):
    names = [module_name(path) for path in FILES if path.name != "__main__.py"]
    assert len(names) > 30
    monkeypatch.chdir(tmp_path)
    assert run_python(PROBE, *names, PYTHONDONTWRITEBYTECODE="1") == ""


def test_reports_and_tasks_load_no_model_library():
    names = ["fgrlhf.pipeline.summary", "fgrlhf.report.page", "fgrlhf.cli.published"]
    names += [f"tasks.{path.parent.name}.task" for path in (ROOT / "tasks").glob("*/task.py")]
    assert len(names) > 15
    code = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]: importlib.import_module(name)\n"
        "print(sorted({'transformers', 'peft', 'nltk', 'sklearn', 'spacy'} & sys.modules.keys()))"
    )
    assert run_python(code, *names) == "[]\n"


# Words that one task uses. Longer identifiers count too: `with_passages`, `rel_rm`.
TASK_WORDS = (
    "passage question wikipage relevance factuality completeness baseline_model f-err qa_feedback"
    " qa-feedback rel_rm fact_rm comp_rm hanoi toxicity"
)
SUFFIXES = (".py", ".js", ".html", ".j2", ".css", ".sh")


def words_of_tasks(text: str) -> list[tuple[int, str]]:
    """(line number, word) of every word of a task; a line with `# a task's word` is exempt."""
    hits = []
    for number, line in enumerate(text.lower().splitlines(), start=1):
        if "# a task's word" in line:
            continue
        hits += [(number, word) for word in TASK_WORDS.split() if word in line]
    return hits


def test_the_word_list_is_seen():
    assert words_of_tasks("a\nthe Passages of a page\nx = 'NF-ERR'\n") == [
        (2, "passage"),
        (3, "f-err"),
    ]
    assert words_of_tasks("old = 'with_passages'  # a task's word: read from old files") == []


def test_the_library_has_no_word_of_a_task():
    hits = {}
    for package in LIBRARY:
        for path in sorted((ROOT / package).rglob("*")):
            if path.suffix in SUFFIXES:
                words = words_of_tasks(path.read_text(encoding="utf-8"))
                if words:
                    hits[str(path.relative_to(ROOT))] = words
    assert hits == {}


def texts(paths: list[Path]) -> dict[str, str]:
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    """Each module -> the modules that are imported with it."""
    return structure.import_graph(texts(FILES))


def test_there_is_no_import_circle():
    """Neither when modules are imported nor in what they import for types only."""
    assert structure.circles(structure.import_graph(texts(FILES), typing_too=True)) == []


LIGHT = ("detoxification", "hanoi", "numbers", "sentiment")


@pytest.mark.parametrize("task", LIGHT)
def test_a_task_imports_few_modules(graph, task):
    """Whoever reads a task reads these modules; `Task` must stay a light dataclass."""
    assert len(structure.reached(graph, [f"tasks.{task}.task"])) <= 25


def test_the_first_version_of_a_task_imports_few_modules(graph):
    """What `fgrlhf new-task` writes: task.py and reward.py."""
    written = texts(sorted((ROOT / "fgrlhf/cli/new_task_files").glob("*.py.txt")))
    sources = {
        f"tasks/new/{Path(name).name.removesuffix('.txt')}": text.replace("@NAME@", "new")
        for name, text in written.items()
    }
    assert "tasks/new/task.py" in sources
    graph = structure.import_graph(texts(FILES) | sources)
    assert len(structure.reached(graph, ["tasks.new.task"])) <= 25


def test_a_run_of_rl_imports_what_its_config_names(graph):
    """Whoever reads the stage reads these modules, and follows chains of imports this long."""
    assert len(structure.reached(graph, structure.RL)) <= 110
    assert len(structure.longest_chain(graph, structure.RL)) <= 14


SLOW = {"datasets", "evaluate", "matplotlib", "nltk", "rouge_score", "sklearn", "spacy"}


@pytest.mark.parametrize("program", ["fgrlhf.train_rl", "fgrlhf.train_dpo", "fgrlhf.cli.evaluate"])
def test_programs_of_rl_start_without_slow_libraries(graph, program):
    """Each of them takes about a second, and few runs need one: functions import them."""
    sources = {module_name(path): path.read_text(encoding="utf-8") for path in FILES}
    reached = structure.reached(graph, [program])
    assert len(reached) > 50
    slow = {}
    for name in reached:
        names = structure.imported_names(sources[name], name, is_package=False, typing_too=False)
        heavy = {other.split(".")[0] for other in names} & SLOW
        heavy |= {other for other in names if other.startswith("scipy.stats")}
        if heavy:
            slow[name] = heavy
    assert slow == {}


IMPORT_ALL = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def loaded_with(names, of) -> str:
    """Which of the libraries `of` a process has loaded after it has imported the modules."""
    code = f"{IMPORT_ALL}print([name for name in {of} if name in sys.modules])"
    command = [sys.executable, "-c", code, *names]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_programs_without_a_model_do_not_import_transformers():
    """It takes longer to import than torch, so their --help and their errors would be late."""
    drivers = [f"fgrlhf.pipeline.{name}" for name in ("compare", "sweep", "submit", "experiments")]
    pages = ["fgrlhf.report.page", "interface_html.pages", "fgrlhf.data.explore"]
    tasks = [module_name(path) for path in sorted((ROOT / "tasks").glob("*/task.py"))]
    assert len(tasks) > 10
    names = [*drivers, *pages, *tasks]
    assert loaded_with(names, of=("transformers", "peft", "accelerate")) == "[]\n"


def test_mistakes_of_a_config_are_reported_before_torch_is_imported():
    """PyTorch and transformers take seconds to import; a stage reads its config without them."""
    names = ["fgrlhf.cli.rl", "fgrlhf.cli.dpo", "sft.config", "reward_modeling.config"]
    names += ["reward_modeling.command"]
    assert loaded_with(names, of=("torch", "transformers", "scipy", "numpy")) == "[]\n"


def test_the_feedback_server_and_pipelines_import_no_heavy_library():
    """With torch or spaCy, a server would start in seven seconds rather than in one."""
    feedback = [module_name(path) for path in sorted((ROOT / "tasks").glob("*/feedback*.py"))]
    assert feedback
    names = ["interface_html.serve", "fgrlhf.pipeline.stages", *feedback]
    assert loaded_with(names, of=("torch", "transformers", "spacy", "scipy")) == "[]\n"


@pytest.mark.parametrize("package", ["base", "configs"])
def test_the_lowest_packages_import_only_those_below(package):
    """`fgrlhf/base` imports nothing else of ours, and `fgrlhf/configs` only `fgrlhf/base`."""
    below = ("base",) if package == "base" else ("base", "configs")
    wrong = {}
    for path in (ROOT / "fgrlhf" / package).glob("*.py"):
        ours = {name for name in imported(path) if name.split(".")[0] in PACKAGES}
        higher = sorted(name for name in ours if name.split(".")[1:2] not in [[b] for b in below])
        if higher:
            wrong[path.name] = higher
    assert wrong == {}


# Each imports only from those before it, and none of them from what uses rewards.
LAYERS = ("base", "configs", "models", "reward_models", "scorers", "metrics", "rewards")
ABOVE = ("algorithms", "cli", "pipeline", "report", "runs", "samplers", "task", "trainer")
# the reward server has the digests that runs record
EXCEPTIONS = {"rewards/server.py": {"runs"}}


@pytest.mark.parametrize("package", LAYERS[2:])
def test_scorers_are_below_metrics_and_metrics_below_rewards(package):
    """Typing imports and imports within functions count too."""
    above = {*LAYERS[LAYERS.index(package) + 1 :], *ABOVE}
    wrong = {}
    for path in sorted((ROOT / "fgrlhf" / package).glob("*.py")):
        ours = {name for name in imported(path) if name.startswith("fgrlhf.")}
        higher = {name.split(".")[1] for name in ours} & above
        higher -= EXCEPTIONS.get(f"{package}/{path.name}", set())
        if higher:
            wrong[path.name] = sorted(higher)
    assert wrong == {}
