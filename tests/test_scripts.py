"""The head of every stage script: folders, scale, environment, processes.

Every script uses it.
"""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from fgrlhf.config import load_config
from sft.run_sft import SFTConfig

ROOT = Path(__file__).parents[1]
SHOW = (
    'printf "%s\\n" "$PWD" "$SCALE" "$DATA_DIR" "$OUTPUT_DIR" '
    '"$(config_for training/sft_config.yml)"'
)


def program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/usr/bin/env bash\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def bash(tmp_path):
    """Run lines after sourcing env.sh, in a temporary folder with a given environment."""
    fake = tmp_path / "bin"
    fake.mkdir()
    program(fake, "python", 'printf "python"; printf " <%s>" "$@"')
    program(fake, "accelerate", 'printf "accelerate"; printf " <%s>" "$@"')

    def run(lines: str, gpus: int | None = None, root: Path = ROOT, **variables: str):
        if gpus is not None:
            program(fake, "nvidia-smi", f"for i in $(seq {gpus}); do echo GPU $i: name; done")
        clean = {
            "PATH": f"{fake}:/usr/bin:/bin",
            "VIRTUAL_ENV": "/some/environment",
            "TASK": "qa_feedback",
        }
        return subprocess.run(
            ["bash", "-c", f'source "{root}/scripts/env.sh"\n{lines}'],
            cwd=tmp_path,
            text=True,
            capture_output=True,
            env={key: v for key, v in {**clean, **variables}.items() if v},
        )

    return run


def test_paper_scale_is_the_default(bash):
    shown = bash(SHOW).stdout.splitlines()
    assert shown == [
        str(ROOT),
        "paper",
        "tasks/qa_feedback/data",
        "outputs/qa_feedback/paper",
        "tasks/qa_feedback/training/sft_config.yml",
    ]


def test_mini_scale(bash):
    shown = bash(SHOW, SCALE="mini").stdout.splitlines()
    assert shown == [
        str(ROOT),
        "mini",
        "outputs/qa_feedback/mini/data",
        "outputs/qa_feedback/mini",
        "tasks/qa_feedback/training/mini_sft_config.yml",
    ]


def test_small_scale_names_the_folder_of_its_model(bash, tmp_path):
    show = 'echo "${FGRLHF_SMALL_MODEL:-unset}"'
    assert bash(show, SCALE="small").stdout == f"{ROOT}/outputs/models/smollm2\n"
    given = bash(show, SCALE="small", FGRLHF_SMALL_MODEL="my model").stdout
    assert given == f"{tmp_path}/my model\n"
    assert bash(show, SCALE="mini").stdout == "unset\n"


def test_any_scale_with_configs_is_one(bash):
    done = bash(SHOW, SCALE="huge")
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "tasks/qa_feedback/training/huge_sft_config.yml"
    assert "there is no tasks/qa_feedback/training/huge_sft_config.yml" in done.stderr
    assert "mini_sft_config.yml" in done.stderr


def test_the_task_is_that_of_the_script(bash, tmp_path):
    root = tmp_path / "re po"
    for name in ("scripts", "tasks/words/training", "tasks/qa_feedback"):
        (root / name).mkdir(parents=True)
    (root / "scripts" / "env.sh").write_text((ROOT / "scripts" / "env.sh").read_text())
    script = root / "tasks/words/training/run.sh"
    script.write_text(f'source "{root}/scripts/env.sh"\necho "$TASK $OUTPUT_DIR"\n')
    assert bash(f'env -u OUTPUT_DIR bash "{script}"', root=root).stdout.split() == [
        "words",
        "outputs/words/paper",
    ]
    done = bash("echo reached", TASK="nowhere")
    assert (done.returncode, done.stdout) == (2, "") and "is not a task" in done.stderr


def test_folders_are_relative_to_the_caller_and_may_hold_spaces(bash, tmp_path):
    shown = bash(SHOW, SCALE="mini", OUTPUT_DIR="my out").stdout.splitlines()
    assert shown[2:4] == [f"{tmp_path}/my out/data", f"{tmp_path}/my out"]
    assert bash(SHOW, DATA_DIR="/d d").stdout.splitlines()[2] == "/d d"


def test_an_unknown_scale_is_refused(bash):
    done = bash("echo reached", SCALE="../x")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: SCALE=../x is not a scale")


def test_without_an_environment_the_way_out_is_named(bash, tmp_path):
    root = tmp_path / "re po"
    (root / "scripts").mkdir(parents=True)
    (root / "tasks" / "qa_feedback").mkdir(parents=True)
    (root / "scripts" / "env.sh").write_text((ROOT / "scripts" / "env.sh").read_text())
    done = bash("echo reached", root=root, VIRTUAL_ENV="")
    assert (done.returncode, done.stdout) == (2, "") and "Run `make setup`" in done.stderr
    assert (
        bash("", root=root, VIRTUAL_ENV="", CONDA_PREFIX="/c", CONDA_DEFAULT_ENV="base").returncode
        == 2
    )
    assert (
        bash("", root=root, VIRTUAL_ENV="", CONDA_PREFIX="/c", CONDA_DEFAULT_ENV="mine").returncode
        == 0
    )
    (root / ".venv" / "bin").mkdir(parents=True)
    (root / ".venv" / ".stamp").touch()
    program(root / ".venv" / "bin", "python", "echo its own")
    assert bash("launch", root=root, VIRTUAL_ENV="").stdout == "its own\n"


@pytest.mark.parametrize(
    "gpus, scale, visible, expected",
    [
        (None, "paper", "", "python <-m> <x> <a b>"),
        (1, "paper", "", "python <-m> <x> <a b>"),
        (
            4,
            "paper",
            "",
            "accelerate <launch> <--multi_gpu> <--num_machines> <1> <--num_processes> <4>",
        ),
        (
            4,
            "paper",
            "0,2",
            "accelerate <launch> <--multi_gpu> <--num_machines> <1> <--num_processes> <2>",
        ),
        (4, "paper", "3", "python <-m> <x> <a b>"),
        (4, "mini", "", "python <-m> <x> <a b>"),
    ],
)
def test_one_process_per_gpu(bash, gpus, scale, visible, expected):
    said = bash('launch -m x "a b"', gpus, SCALE=scale, CUDA_VISIBLE_DEVICES=visible).stdout
    assert said.startswith(expected) and said.endswith("<-m> <x> <a b>")


def test_mini_models_on_a_cpu_run_on_one_thread_unless_told(bash):
    show = 'echo "${OMP_NUM_THREADS:-unset}"'
    assert bash(show, SCALE="mini").stdout == "1\n"
    assert bash(show, SCALE="mini", OMP_NUM_THREADS="3").stdout == "3\n"
    assert bash(show, SCALE="paper").stdout == "unset\n"


def test_threads_sleep_while_they_wait(bash):
    show = 'echo "$OMP_WAIT_POLICY"'
    assert bash(show, SCALE="paper").stdout == "passive\n"
    assert bash(show, OMP_WAIT_POLICY="active").stdout == "active\n"


def test_a_failing_line_ends_the_script(bash):
    assert bash("false\necho reached").stdout == ""


@pytest.mark.parametrize("path", sorted((ROOT / "tasks").rglob("*.sh")), ids=lambda path: path.name)
def test_every_stage_script_starts_with_the_common_head(path):
    text = path.read_text(encoding="utf-8")
    assert text.startswith("#!/usr/bin/env bash\n")
    up = "../" * (len(path.relative_to(ROOT).parts) - 1)
    assert f'source "$(dirname "${{BASH_SOURCE[0]}}")/{up}scripts/env.sh"\n' in text
    assert subprocess.run(["bash", "-n", str(path)]).returncode == 0
    assert os.access(path, os.X_OK)


# ---- variants, and folders whose names a shell could misread -------------------------------------


def test_the_published_variant_is_taken_where_there_is_one(bash, tmp_path):
    show = "config_for training/baseline_config.yml; config_for training/sft_config.yml"
    folder = "tasks/qa_feedback/training"
    assert bash(show, VARIANT="published").stdout.splitlines() == [
        f"{folder}/published_baseline_config.yml",
        f"{folder}/sft_config.yml",
    ]
    assert bash(show).stdout.splitlines() == [
        f"{folder}/baseline_config.yml",
        f"{folder}/sft_config.yml",
    ]


@pytest.mark.parametrize(
    "variant, scale, reason",
    [
        ("publish", "paper", "VARIANT=publish is not a variant"),
        ("published", "mini", "VARIANT=published is for SCALE=paper"),
    ],
)
def test_another_variant_is_refused(bash, variant, scale, reason):
    done = bash("echo reached", VARIANT=variant, SCALE=scale)
    assert (done.returncode, done.stdout) == (2, "") and reason in done.stderr


HOSTILE = [
    "a b",
    "a #b",
    "a: b",
    "$(touch ran)",
    "`touch ran`",
    "${HOME}",
    "a;touch ran",
    "'a\"b",
    "*",
    "-n",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_folder_may_have_any_name_and_no_command_in_it_runs(bash, tmp_path, name):
    scripts = [
        "training/generate.sh",
        "training/evaluate.sh",
        "data/make_mini.sh",
        "data/make_small.sh",
        "reward_modeling/create_rm_train_files.sh",
    ]
    lines = [f'echo; bash "{ROOT}/tasks/qa_feedback/{script}"' for script in scripts]
    lines.append(f'echo; bash "{ROOT}/tasks/qa_feedback/training/train_corrected_sft.sh"')
    done = bash("\n".join(lines), DATA_DIR=name, OUTPUT_DIR=f"{name}/out")
    folder = f"{tmp_path}/{name}"
    assert done.returncode == 0, done.stderr
    assert (
        done.stdout.count(f"<data_dir={folder}>") == 5
        and done.stdout.count(f"<output_dir={folder}/out>") == 2
    )
    assert f"<feedback={folder}/train_feedback.json>" in done.stdout
    assert not list(tmp_path.rglob("ran")) and not (ROOT / "ran").exists()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_config_reads_the_file_in_such_a_folder(monkeypatch, name):
    monkeypatch.setenv("DATA_DIR", f"/d/{name}")
    monkeypatch.setenv("OUTPUT_DIR", f"/o/{name}")
    config = load_config(SFTConfig, ROOT / "tasks/qa_feedback/training/sft_config.yml")
    assert (
        config.data.train_file == f"/d/{name}/train_1k.json"
        and config.logging.save_dir == f"/o/{name}/sft"
    )


def test_no_gpu_is_used_where_none_is_visible(bash):
    assert bash("gpu_count", 4, CUDA_VISIBLE_DEVICES="-1").stdout == "0\n"


def test_another_cd_path_leads_nowhere_else(bash, tmp_path):
    (tmp_path / "scripts").mkdir()
    shown = bash(f'cd "{ROOT}/tasks"; source ../scripts/env.sh; pwd', CDPATH=str(tmp_path)).stdout
    assert shown == f"{ROOT}\n"


def test_an_environment_without_python_is_refused(tmp_path):
    (tmp_path / "dirname").symlink_to(shutil.which("dirname"))
    command = [shutil.which("bash"), "-c", f'source "{ROOT}/scripts/env.sh"']
    environment = {
        "PATH": str(tmp_path),
        "VIRTUAL_ENV": "/some/environment",
        "TASK": "qa_feedback",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and "has no program `python`" in done.stderr


# ---- get_small_model.sh --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "variables, folder",
    [
        ({}, "outputs/models/smollm2"),
        ({"FGRLHF_SMALL_MODEL": "/models/small"}, "/models/small"),
        ({"FGRLHF_SMALL_MODEL": "small"}, "{caller}/small"),
    ],
)
def test_the_small_model_is_fetched_into_its_folder(tmp_path, variables, folder):
    program(tmp_path, "python", 'printf "%s|" "$PWD" "$@"')
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "VIRTUAL_ENV": "/some/environment"}
    done = subprocess.run(
        ["bash", str(ROOT / "scripts" / "get_small_model.sh")],
        cwd=tmp_path,
        env={**environment, **variables},
        capture_output=True,
        text=True,
    )
    here, *words = done.stdout.rstrip("|").split("|")
    assert here == str(ROOT)
    folder = folder.format(caller=tmp_path)
    assert words == ["-m", "fgrlhf.cli.main", "data", "model", "smollm2", f"output_dir={folder}"]


def test_the_small_model_needs_an_environment(tmp_path):
    copy = tmp_path / "scripts"
    shutil.copytree(ROOT / "scripts", copy)
    done = subprocess.run(
        ["bash", str(copy / "get_small_model.sh")],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and "Run `make setup`" in done.stderr


def test_the_command_lets_threads_sleep_before_pytorch_is_loaded(monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    code = (
        "import sys, os, fgrlhf.cli.main as command\n"
        "assert 'torch' not in sys.modules\n"
        "command.wait_passively()\n"
        "print(os.environ['OMP_WAIT_POLICY'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "passive\n", done.stderr
