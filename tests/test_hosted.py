"""The container and the hosted workflow run commands and read files that exist."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOW = ROOT / ".github" / "workflows" / "tests.yml"
BUILD_OF_TORCH = """"$(grep '^torch==' constraints.txt)\""""


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile, each with its text on one line."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = re.sub(r"^#.*\n", "", text, flags=re.M).replace("\\\n", " ").splitlines()
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines if line]


def jobs() -> dict[str, dict]:
    return yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"]


def commands(job: dict) -> list[str]:
    """The commands of a job, a line each."""
    runs = [step["run"] for step in job["steps"] if "run" in step]
    return [line.strip() for run in runs for line in run.splitlines()]


def test_the_container_is_built_in_order():
    names = [name for name, _ in instructions()]
    assert names[0] == "FROM" and names[-1] == "CMD"
    values = [value for _, value in instructions()]
    torch = next(i for i, value in enumerate(values) if "pip install" in value)
    rest = values.index(". .")
    setup = next(i for i, value in enumerate(values) if "make setup" in value)
    assert values.index("constraints.txt ./") < torch < rest < setup
    assert BUILD_OF_TORCH in values[torch] and '--index-url "$TORCH"' in values[torch]
    assert "TORCH=https://download.pytorch.org/whl/cpu" in values
    version = re.search(r"python:(3\.\d+)-", values[0])
    assert version is not None and version[1] in python_versions()


def test_what_the_container_leaves_out_is_not_needed():
    kept = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout
    ignored = (ROOT / ".dockerignore").read_text().split()
    folders = {path.partition("/")[0] for path in kept.splitlines()}
    assert not folders & set(ignored)
    assert {".git", ".venv", "outputs"} <= set(ignored)


def test_the_commands_of_the_container_exist():
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    for script in re.findall(r'"(tasks/\S+\.sh)"', text):
        assert (ROOT / script).is_file()
    assert '"tasks/numbers/run.sh"' in text and "fgrlhf make demo" in text
    for target in re.findall(r"\bmake (\w+)", text):
        assert target == "demo" or target == "setup"
        assert_target(target)


@pytest.mark.parametrize("name", ["test", "demo"])
def test_the_workflow_runs_targets_of_the_makefile(name):
    lines = commands(jobs()[name])
    targets = [line.removeprefix("make ") for line in lines if line.startswith("make ")]
    assert targets == {"test": ["setup", "lint", "test"], "demo": ["setup", "demo"]}[name]
    for target in targets:
        assert_target(target)
    (install,) = [line for line in lines if "pip install" in line]
    assert BUILD_OF_TORCH in install and lines.index(install) < lines.index("make setup")
    # no step hides a failure
    assert not any(
        "continue-on-error" in step or "||" in str(step) for step in jobs()[name]["steps"]
    )


def test_every_supported_python_is_tested_and_the_demo_runs_every_week():
    workflow = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))
    assert jobs()["test"]["strategy"]["matrix"]["python"] == python_versions()
    triggers = workflow[True]  # YAML 1.1 reads the key `on` as true
    (schedule,) = triggers["schedule"]
    assert re.fullmatch(r"\d+ \d+ \* \* [0-6]", schedule["cron"])
    assert "schedule" in jobs()["demo"]["if"] and workflow["permissions"] == {"contents": "read"}


def python_versions() -> list[str]:
    """3.11, which setup.py names as the lowest, to 3.13."""
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    lowest = re.search(r'python_requires=">=3\.(\d+)"', setup)
    assert lowest is not None
    return [f"3.{minor}" for minor in range(int(lowest[1]), 14)]


def assert_target(name: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^{name}:", makefile, flags=re.M), name
