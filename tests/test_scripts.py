"""The head of every stage script: folders, scale, environment, processes.

Every script uses it.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file
from stage_scripts import fake_python, program

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_jsonl, write_text
from fgrlhf.cli import stage_script
from fgrlhf.cli.main import SPINS
from fgrlhf.cli.stage_script import StageScript
from tasks.qa_feedback.training import experiments

ROOT = Path(__file__).parents[1]
SHOW = 'printf "%s\\n" "$PWD" "$SCALE" "$DATA_DIR" "$OUTPUT_DIR" '
SHOW += '"$(config_for training/sft_config.yml)"'


@pytest.fixture
def bash(tmp_path):
    """Run lines after sourcing env.sh, in a temporary folder with a given environment."""
    fake = tmp_path / "bin"
    fake.mkdir()
    fake_python(fake, 'printf "python"; printf " <%s>" "$@"')

    def run(lines: str, gpus: int | None = None, root: Path = ROOT, **variables: str):
        if gpus is not None:
            program(fake, "nvidia-smi", f"for i in $(seq {gpus}); do echo GPU $i: name; done")
        clean = {"VIRTUAL_ENV": "/some/environment", "TASK": "qa_feedback"}
        clean |= {"PATH": f"{fake}:/usr/bin:/bin", **variables}
        command = ["bash", "-c", f'source "{root}/scripts/env.sh"\n{lines}']
        environment = {key: v for key, v in clean.items() if v}
        options = {"text": True, "capture_output": True}
        return subprocess.run(command, cwd=tmp_path, env=environment, **options)

    return run


@pytest.mark.parametrize("scale", ["", "mini"])
def test_paper_scale_is_the_default(bash, scale):
    out = f"outputs/qa_feedback/{scale or 'paper'}"
    data = f"{out}/data" if scale else "tasks/qa_feedback/data"
    config = f"tasks/qa_feedback/training/{'mini_' if scale else ''}sft_config.yml"
    shown = bash(SHOW, SCALE=scale).stdout.splitlines()
    assert shown == [str(ROOT), scale or "paper", data, out, config]


def test_small_scale_names_the_folder_of_its_model(bash, tmp_path):
    show = 'echo "${FGRLHF_SMALL_MODEL:-unset}"'
    assert bash(show, SCALE="small").stdout == f"{ROOT}/outputs/models/smollm2\n"
    given = bash(show, SCALE="small", FGRLHF_SMALL_MODEL="my model").stdout
    assert given == f"{tmp_path}/my model\n"
    assert bash(show, SCALE="mini").stdout == "unset\n"


def test_a_stage_without_a_config_of_the_scale_lists_those_that_exist(bash):
    done = bash("config_for training/judge_config.yml", SCALE="mini")
    assert done.stdout == "tasks/qa_feedback/training/mini_judge_config.yml\n"
    assert "there is no tasks/qa_feedback/training/mini_judge_config.yml" in done.stderr
    assert "small_judge_config.yml" in done.stderr


@pytest.mark.parametrize(
    "task, known", [("qa_feedback", "paper, mini, small"), ("imdb", "paper, mini")]
)
def test_a_scale_without_configs_is_refused(bash, task, known):
    done = bash("echo reached", SCALE="minni", TASK=task)
    assert (done.returncode, done.stdout) == (2, "")
    expected = f"error: {task} has no configs of SCALE=minni; did you mean `mini`? known: {known}\n"
    assert done.stderr == expected


def test_a_similar_experiment_is_named(tmp_path):
    script = ROOT / "tasks" / "qa_feedback" / "training" / "experiments.sh"
    ended = run_script(script, tmp_path, "finegrained")
    assert (ended.returncode, ended.stdout) == (2, "")
    start = (
        "error: `finegrained` is not an experiment; did you mean `fine_grained`? known: plan, sft,"
    )
    assert ended.stderr.startswith(start)
    assert "error: name an experiment; known: plan" in run_script(script, tmp_path).stderr


def test_a_row_of_the_paper_is_trained_and_evaluated_on_both_splits():
    stage = StageScript("qa_feedback", "paper", "published", "d", "o", {})
    trained, *evaluated = experiments.commands("relevance_low", stage, ["train.seed=1"])
    script, *settings = trained[1:]
    assert script == "tasks/qa_feedback/training/train_finegrained.sh"
    assert settings == [
        "reward.relevance_model.weight=0.5",
        "logging.save_dir=o/published_relevance_low",
        "logging.run_name=published_relevance_low",
        "train.seed=1",
    ]
    expected = ["policy=o/published_relevance_low/best", "name=published_relevance_low"]
    assert [words[2:] for words in evaluated] == [
        [*expected, f"split={split}"] for split in ("dev", "test")
    ]
    # DPO has no published variant, and the policy after SFT is there already
    assert experiments.commands("dpo", stage, [])[1][2:4] == ["policy=o/dpo/best", "name=dpo"]
    sft = experiments.commands("sft", stage, [])
    assert [words[2:] for words in sft] == [
        ["policy=o/sft", "name=sft", f"split={split}"] for split in ("dev", "test")
    ]


@pytest.mark.parametrize("variant, seconds", [("", "4.0"), ("published", "20.6")])
def test_the_plan_has_every_row_and_the_measured_seconds(variant, seconds):
    stage = StageScript("qa_feedback", "paper", variant, "d", "o", {})
    words = experiments.plan(stage, ["source=mine"])
    prefix = f"{variant}_" if variant else ""
    config = f"tasks/qa_feedback/training/{prefix}fine_grained_config.yml"
    assert f"rl:{config}@without_completeness" in words and f"seconds.rl={seconds}" in words
    assert words[-1] == "source=mine" and sum(word.startswith("rl:") for word in words) == 8
    mini = experiments.plan(StageScript("qa_feedback", "mini", "", "d", "o", {}), [])
    assert not any(word.startswith("seconds") for word in mini)


def test_a_plan_names_what_makes_the_data_that_it_lacks(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    stage = StageScript("qa_feedback", "mini", "", str(tmp_path), "o", {})
    made_by = re.findall(r"SCALE=mini bash (\S+\.sh)", experiments.missing_data(stage))
    assert [Path(path).name for path in made_by] == ["make_mini.sh", "create_rm_train_files.sh"]
    assert all(Path(path).is_file() for path in made_by)
    write_text(tmp_path / "train_feedback.json", "[]")
    assert experiments.missing_data(stage) == ""


def test_the_task_is_that_of_the_script(bash, tmp_path):
    root = tmp_path / "re po"
    for name in ("scripts", "tasks/words/training", "tasks/qa_feedback"):
        (root / name).mkdir(parents=True)
    (root / "scripts" / "env.sh").write_text((ROOT / "scripts" / "env.sh").read_text())
    script = root / "tasks/words/training/run.sh"
    script.write_text(f'source "{root}/scripts/env.sh"\necho "$TASK $OUTPUT_DIR"\n')
    shown = bash(f'env -u OUTPUT_DIR bash "{script}"', root=root).stdout
    assert shown.split() == ["words", "outputs/words/paper"]
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
    conda = {"root": root, "VIRTUAL_ENV": "", "CONDA_PREFIX": "/c"}
    assert bash("", CONDA_DEFAULT_ENV="base", **conda).returncode == 2
    assert bash("", CONDA_DEFAULT_ENV="mine", **conda).returncode == 0
    (root / ".venv" / "bin").mkdir(parents=True)
    (root / ".venv" / ".stamp").touch()
    program(root / ".venv" / "bin", "python", "echo its own")
    assert bash("launch", root=root, VIRTUAL_ENV="").stdout == "its own\n"


# ---- processes -----------------------------------------------------------------------------------


@pytest.fixture
def launched(tmp_path, monkeypatch):
    """The words of `launch -m x "a b"` on a machine, without the programs."""

    def words(gpus: int | None = None, scale: str = "paper", **variables: str) -> list[str]:
        if gpus is not None:
            program(tmp_path, "nvidia-smi", f"for i in $(seq {gpus}); do echo GPU $i: name; done")
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        environment = {"PATH": os.environ["PATH"], **variables}
        script = StageScript("qa_feedback", scale, "", "data", "out", environment)
        python, *rest = script.launched(["-m", "x", "a b"])
        assert python == "python" and rest[-3:] == ["-m", "x", "a b"]
        return rest[:-3]

    return words


def group(processes: int) -> list[str]:
    return ["-m", "fgrlhf.cli.torchrun", "--standalone", "--nproc_per_node", str(processes)]


@pytest.mark.parametrize(
    "gpus, scale, visible, processes",
    [
        (None, "paper", None, 1),
        (1, "paper", None, 1),
        (4, "paper", None, 4),
        (4, "paper", "0,2", 2),
        (4, "paper", "3", 1),
        (4, "mini", None, 1),
    ],
)
def test_one_process_per_gpu(launched, gpus, scale, visible, processes):
    variables = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    expected = [] if processes == 1 else group(processes)
    assert launched(gpus, scale, **variables) == expected


@pytest.mark.parametrize("visible", ["", "-1"])
def test_no_gpu_is_used_where_none_is_visible(launched, visible):
    assert launched(4, CUDA_VISIBLE_DEVICES=visible) == []


@pytest.mark.parametrize("gpus, processes", [(None, 2), (1, 1), (4, 1)])
def test_several_processes_without_a_gpu(launched, gpus, processes):
    expected = [] if processes == 1 else group(processes)
    assert launched(gpus, "mini", PROCESSES="2") == expected


def test_a_program_is_launched_with_its_words(bash):
    said = bash('launch -m x "a b"', SCALE="mini", PROCESSES="2").stdout
    assert said == f"python <{'> <'.join(group(2))}> <-m> <x> <a b>"


def test_a_number_of_processes_that_is_none_is_refused(launched):
    for value in ("two", "0", "-1"):
        with pytest.raises(UserError, match=f"PROCESSES={value} is not a number of processes"):
            launched(PROCESSES=value)


NODES = {"NNODES": "2", "RDZV_ENDPOINT": "first:29500"}


@pytest.mark.parametrize("gpus, processes", [(8, 8), (1, 1), (None, 1)])
def test_several_machines_meet_at_the_first_one(launched, gpus, processes):
    machines = f"-m fgrlhf.cli.torchrun --nnodes 2 --nproc_per_node {processes}".split()
    place = ["--rdzv_backend", "c10d", "--rdzv_id", "fgrlhf", "--rdzv_endpoint", "first:29500"]
    assert launched(gpus, **NODES) == [*machines, *place]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"RDZV_ENDPOINT": ""}, "needs RDZV_ENDPOINT=HOST:PORT"),
        ({"NNODES": "two"}, "NNODES=two is"),
    ],
)
def test_machines_without_a_meeting_point_are_refused(launched, changes, message):
    with pytest.raises(UserError, match=message):
        launched(1, **{**NODES, **changes})


def slurm_job(folder, *arguments, **variables):
    """Run slurm.sh as SLURM does: a copy of it, elsewhere, with fakes of SLURM's programs."""
    programs = folder / "slurm bin"
    programs.mkdir()
    program(programs, "scontrol", r'[ "$*" = "show hostnames n[1-2]" ] && printf "n1\nn2\n"')
    program(programs, "srun", 'echo "$* at $RDZV_ENDPOINT id $RDZV_ID of $NNODES in $PWD"')
    spooled = folder / "slurm_script"
    spooled.write_text((ROOT / "scripts/slurm.sh").read_text())
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", **variables}
    command = ["bash", str(spooled), *arguments]
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)


JOB = {"SLURM_JOB_ID": "123456", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "2"}


def test_a_job_of_slurm_starts_the_stage_on_every_machine(tmp_path):
    repository = tmp_path / "the repository"
    repository.mkdir()
    (repository / "a b.sh").touch()
    done = slurm_job(tmp_path, "a b.sh", "train.lr=1", SLURM_SUBMIT_DIR=str(repository), **JOB)
    assert done.stderr == ""
    assert done.stdout == (
        "--ntasks=2 --ntasks-per-node=1 --kill-on-bad-exit=1 bash a b.sh train.lr=1"
        f" at n1:23456 id 123456 of 2 in {repository}\n"
    )


@pytest.mark.slow
def test_two_machines_train_one_policy(tmp_path):
    """Two machines are two launchers on this one, which meet at a port of it.

    After ten steps they have the weights of one launcher with two processes.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    python = Path(sys.executable)
    environment = {
        **{**os.environ, "VIRTUAL_ENV": str(python.parents[1])},
        "PATH": f"{python.parent}:{os.environ['PATH']}",
        **{"TASK": "numbers", "SCALE": "mini", "OUTPUT_DIR": str(tmp_path)},
    }
    model = 'launch -m fgrlhf.cli.tiny_model numbers output_dir="$OUTPUT_DIR/base_model" words=1'
    train = (
        'launch -m fgrlhf.cli.rl numbers "$(config_for rl_config.yml)" train.total_episodes=1280'
        ' model.kernels=off logging.save_dir="$OUTPUT_DIR/$RUN"'
    )
    head = f'source "{ROOT}/scripts/env.sh"\n'
    subprocess.run(["bash", "-c", head + model], env=environment, check=True)
    command = ["bash", "-c", head + train]
    of_one = environment | {"PROCESSES": "2", "RUN": "one"}
    subprocess.run(command, env=of_one, check=True)
    of_two = environment | {"NNODES": "2", "RDZV_ENDPOINT": f"127.0.0.1:{port}", "RUN": "two"}
    machines = [subprocess.Popen(command, env=of_two) for _ in range(2)]
    assert [machine.wait() for machine in machines] == [0, 0]
    # Both sample 64 of the 128 responses of every step, and one of them writes.
    steps = [line["step"] for line in read_jsonl(tmp_path / "two/metrics.jsonl")]
    assert sorted(steps) == steps and steps[-1] == 10
    folders = ("base_model", "one/final", "two/final")
    start, one, two = (load_file(tmp_path / name / "model.safetensors") for name in folders)
    assert one.keys() == two.keys() == start.keys()
    for name, tensor in one.items():
        assert float((two[name] - tensor).abs().max()) <= 1e-5, name
    assert max(float((start[name] - tensor).abs().max()) for name, tensor in one.items()) > 1e-3


@pytest.mark.parametrize(
    "variables, message",
    [
        ({"SLURM_JOB_ID": ""}, "sbatch --nodes=2"),
        (
            {"SLURM_JOB_ID": "1", "SLURM_SUBMIT_DIR": ""},
            "only sbatch can start (SLURM_SUBMIT_DIR is not set): sbatch --nodes=2",
        ),
    ],
)
def test_the_job_script_is_no_command(tmp_path, variables, message):
    """Nor is a shell with a job's id alone a job."""
    done = slurm_job(tmp_path, "a.sh", **variables)
    assert (done.returncode, done.stdout) == (2, "") and message in done.stderr


def test_a_script_that_is_missing_is_named_before_machines_start(tmp_path):
    (tmp_path / "training").mkdir()
    (tmp_path / "training/train_rl.sh").touch()
    job = {**JOB, "SLURM_SUBMIT_DIR": str(tmp_path)}
    done = slurm_job(tmp_path, "training/train_lr.sh", **job)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith(f"error: there is no script training/train_lr.sh in {tmp_path}")
    assert done.stderr.endswith("the scripts beside it are: train_rl.sh\n")


# ---- Hugging Face Jobs ---------------------------------------------------------------------------


def hf_job(folder, *arguments, **variables):
    environment = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", **variables}
    command = ["bash", str(ROOT / "scripts" / "hf_job.sh"), *arguments]
    mine = folder / "mine"
    mine.mkdir(exist_ok=True)
    return subprocess.run(command, env=environment, cwd=mine, capture_output=True, text=True)


def test_the_job_of_hugging_face_is_one_that_its_program_accepts(tmp_path):
    variables = {"RESULTS": "me/runs", "FLAVOR": "a100-large", "HOURS": "3", "DRY_RUN": "1"}
    done = hf_job(tmp_path, "fgrlhf", "rl", "my config.yml", **variables)
    assert done.returncode == 0, done.stderr
    assert "job fgrlhf rl 'my config.yml'" in done.stdout
    for line in ("flavor   a100-large", "timeout  3h", "MINUTES=170", "buckets/me/runs:/results"):
        assert line in done.stdout
    assert f"{tmp_path}/mine:/mine:ro" in done.stdout


@pytest.mark.parametrize("status", [0, 3])
def test_a_job_of_hugging_face_continues_and_keeps_its_results(status, tmp_path):
    """Its program writes the job's command to a file; folders of the container are below `root`."""
    (tmp_path / "bin").mkdir()
    keep = f'printf "%s\\0" "$@" > "{tmp_path}/job"'
    listed = f'case "$a" in *:/library:ro) ls "${{a%%:*}}" > "{tmp_path}/library";; esac'
    program(tmp_path / "bin", "hf", f'{keep}\nfor a in "$@"; do {listed}; done')
    write = f"cat outputs/log > seen; cp seen outputs/kept; exit {status}"
    assert hf_job(tmp_path, "bash", "-c", write, RESULTS="me/runs").returncode == 0
    assert {"fgrlhf", "setup.py", "Makefile"} <= set((tmp_path / "library").read_text().split())
    words = (tmp_path / "job").read_text().split("\0")[:-1]
    inside = words[words.index("bash") :]
    root = tmp_path / "root"
    for name in ("library", "mine", "results"):
        (root / name).mkdir(parents=True)
    (root / "results" / "log").write_text("step 3")
    activate = 'mkdir -p "$2/.venv/bin"; touch "$2/.venv/bin/activate"'
    program(tmp_path / "bin", "make", f'[ "$1 $3" = "-C setup" ] && {activate}')
    places = r" (/(?:library|fgrlhf|mine|work|results)\b)"
    inside[2] = re.sub(places, lambda found: f" {root}{found[1]}", inside[2])
    environment = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "MINUTES": "1"}
    done = subprocess.run(inside, env=environment, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    assert (root / "results" / "kept").read_text() == "step 3"


@pytest.mark.parametrize(
    "arguments, variables, message",
    [
        ([], {"RESULTS": "me/runs"}, "name the command: RESULTS=OWNER/BUCKET bash "),
        (["x"], {"RESULTS": "runs"}, "RESULTS=runs is not a bucket: set RESULTS=OWNER/BUCKET"),
        (["x"], {"RESULTS": "me/runs", "HOURS": "0.5"}, "HOURS=0.5 is not a number of hours"),
    ],
)
def test_an_incomplete_job_of_hugging_face_is_refused(arguments, variables, message, tmp_path):
    done = hf_job(tmp_path, *arguments, **variables)
    assert done.returncode == 2 and done.stderr.startswith(f"error: {message}")


def test_mini_models_run_on_one_thread_unless_told(bash):
    show = 'echo "${OMP_NUM_THREADS:-unset}"'
    assert bash(show, SCALE="mini").stdout == "1\n"
    assert bash(show, SCALE="mini", OMP_NUM_THREADS="3").stdout == "3\n"
    assert bash(show, SCALE="paper").stdout == "unset\n"


def test_threads_sleep_while_they_wait(bash):
    show = 'echo "$OMP_WAIT_POLICY ${GOMP_SPINCOUNT:-unset}"'
    assert bash(show, SCALE="paper").stdout == f"passive {SPINS}\n"
    assert bash(show, SCALE="paper", GOMP_SPINCOUNT="7").stdout == "passive 7\n"
    assert bash(show, OMP_WAIT_POLICY="active").stdout == "active unset\n"


def test_a_failing_line_ends_the_script(bash):
    assert bash("false\necho reached").stdout == ""


@pytest.mark.parametrize("path", sorted((ROOT / "tasks").rglob("*.sh")), ids=lambda path: path.name)
def test_every_stage_script_starts_with_the_common_head(path):
    text = path.read_text(encoding="utf-8")
    assert text.startswith("#!/usr/bin/env bash\n")
    up = "../" * (len(path.relative_to(ROOT).parts) - 1)
    heads = [f'source "$(dirname "${{BASH_SOURCE[0]}}")/{up}scripts/env.sh"\n']
    heads.append(f'source "$(dirname "$0")/{up}scripts/call.sh"')
    assert any(head in text for head in heads)
    assert subprocess.run(["bash", "-n", str(path)]).returncode == 0
    assert os.access(path, os.X_OK)


# ---- inputs of other scripts ---------------------------------------------------------------------

# scripts that need no file of another script, or whose program names what is missing
WITHOUT_NEEDS = {
    "run.sh": "runs all stages",
    "make_mini.sh": "",
    "make_small.sh": "",
    "make_puzzles.sh": "",
    "download.sh": "",
    "translation/data/prepare.sh": "downloads its files",
    "qa_feedback/training/experiments.sh": "calls the other scripts",
}
STAGES = [
    path
    for path in sorted((ROOT / "tasks").rglob("*.sh"))
    if not any(str(path).endswith(f"/{name}") for name in WITHOUT_NEEDS)
]


def run_script(path, tmp_path, *arguments, **variables):
    """A script without any input. Its programs only print their arguments."""
    folder = tmp_path / "bin"
    folder.mkdir(exist_ok=True)
    fake_python(folder, 'printf "python"; printf " <%s>" "$@"')
    environment = {
        **{"PATH": f"{folder}:/usr/bin:/bin", "VIRTUAL_ENV": "/some/environment"},
        "SCALE": "small" if "sentiment" in path.parts else "mini",
        "OUTPUT_DIR": str(tmp_path / "no outputs"),
        "FGRLHF_SMALL_MODEL": str(tmp_path / "no model"),
        **variables,
    }
    command = ["bash", str(path), *arguments]
    options = {"cwd": tmp_path, "env": environment}
    return subprocess.run(command, text=True, capture_output=True, **options)


@pytest.mark.parametrize("path", STAGES, ids=lambda path: str(path.relative_to(ROOT / "tasks")))
def test_a_script_before_those_it_needs_names_them(path, tmp_path):
    ended = run_script(path, tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    expected = r"error: (.+) is missing\. Run `SCALE=(\w+) bash (\S+)( \w+)?` first, with the .*\n"
    match = re.fullmatch(expected, ended.stderr)
    assert match is not None, ended.stderr
    assert match[1].startswith(str(tmp_path)) and (ROOT / match[3]).is_file()
    help_text = run_script(path, tmp_path, "--help")  # the keys are listed without any file
    assert help_text.returncode == 0 and "<--help>" in help_text.stdout


@pytest.mark.parametrize("stage", ["sft", "ppo", "nlpo", "evaluate", "report"])
def test_a_stage_of_a_text_task_names_the_stage_before_it(stage, tmp_path):
    script = ROOT / "tasks" / "totto" / "run.sh"
    ended = run_script(script, tmp_path, stage)
    assert ended.returncode == 2
    earlier = "evaluate" if stage == "report" else "prepare"
    assert f"is missing. Run `SCALE=mini bash tasks/totto/run.sh {earlier}` first" in ended.stderr


def test_a_file_that_an_argument_replaces_is_not_needed(tmp_path):
    script = ROOT / "tasks" / "hh_rlhf" / "training" / "train_rl.sh"
    others = ["--data.train_file", "t", "model.ckpt=m"]
    assert "/rm is missing" in run_script(script, tmp_path, *others).stderr
    ended = run_script(script, tmp_path, *others, "reward.rm.weight=0")
    assert ended.returncode == 0 and "<reward.rm.weight=0>" in ended.stdout


# ---- variants, and folders whose names a shell could misread -------------------------------------


@pytest.mark.parametrize("variant, prefix", [("", ""), ("published", "published_")])
def test_the_published_variant_is_taken_where_there_is_one(bash, variant, prefix):
    show = "config_for training/baseline_config.yml; config_for training/sft_config.yml"
    shown = bash(show, VARIANT=variant).stdout.splitlines()
    names = (f"{prefix}baseline_config.yml", "sft_config.yml")
    assert shown == [f"tasks/qa_feedback/training/{name}" for name in names]


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


HOSTILE = ["a b", "a #b", "a: b", "$(touch ran)", "`touch ran`", "${HOME}", "a;touch ran"]
HOSTILE += ["'a\"b", "*", "-n"]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_folder_may_have_any_name_and_no_command_in_it_runs(bash, tmp_path, name):
    scripts = ["training/generate.sh", "training/evaluate.sh", "data/make_mini.sh"]
    scripts += ["data/make_small.sh", "reward_modeling/create_rm_train_files.sh"]
    scripts.append("training/train_corrected_sft.sh")
    lines = [f'echo; bash "{ROOT}/tasks/qa_feedback/{script}"' for script in scripts]
    folder = f"{tmp_path}/{name}"
    for inputs in ("train.json", "test.json", "train_feedback.json"):
        write_text(f"{folder}/{inputs}", "[]")
    for model in ("sft", "rel_rm", "fact_rm", "comp_rm"):
        write_text(f"{folder}/out/{model}/config.json", "{}")
    done = bash("\n".join(lines), DATA_DIR=name, OUTPUT_DIR=f"{name}/out")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"<data_dir={folder}>") == 5
    assert done.stdout.count(f"<output_dir={folder}/out>") == 2
    assert f"<feedback={folder}/train_feedback.json>" in done.stdout
    assert not list(tmp_path.rglob("ran")) and not (ROOT / "ran").exists()


def test_another_cd_path_leads_nowhere_else(bash, tmp_path):
    (tmp_path / "scripts").mkdir()
    shown = bash(f'cd "{ROOT}/tasks"; source ../scripts/env.sh; pwd', CDPATH=str(tmp_path)).stdout
    assert shown == f"{ROOT}\n"


def test_an_environment_without_python_is_refused(tmp_path):
    (tmp_path / "dirname").symlink_to(shutil.which("dirname"))
    command = [shutil.which("bash"), "-c", f'source "{ROOT}/scripts/env.sh"']
    environment = {"PATH": str(tmp_path), "VIRTUAL_ENV": "/some/environment", "TASK": "qa_feedback"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and "has no program `python`" in done.stderr


@pytest.mark.parametrize(
    "given, value",
    [
        (["train.seed=1"], "out/rl"),
        (["logging.save_dir=else where", "train.seed=1"], "else where"),
        (["logging.save_dir=a", "--logging.save_dir", "b", "--train.seed", "1"], "b"),
        (["--logging.save_dir=c"], "c"),
    ],
)
def test_a_setting_among_the_overrides(monkeypatch, capsys, given, value):
    words = ["stage_script", "setting", "logging.save_dir", "out/rl", *given]
    monkeypatch.setattr(sys, "argv", words)
    for variable in ("TASK", "SCALE", "DATA_DIR", "OUTPUT_DIR"):
        monkeypatch.setenv(variable, "numbers")
    stage_script.main()
    assert capsys.readouterr().out == f"{value}\n"


def test_a_word_says_what_a_stage_needs_where():
    script = StageScript("detoxification", "mini", "", "data", "out", {})
    words = "sft paper:other mini:rm@fact=a.sh"
    assert script.of_this_scale(words) == [("sft", "", ""), ("rm", "fact", "a.sh")]


def test_the_model_of_a_reward_that_an_argument_changes_is_not_needed(tmp_path):
    script = ROOT / "tasks" / "qa_feedback" / "training" / "train_finegrained.sh"
    others = ["data.train_file=t", "model.ckpt=m", "reward.relevance_model.weight=0"]
    assert "/fact_rm is missing" in run_script(script, tmp_path, *others).stderr


# ---- get_small_model.sh --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "variables, folder",
    [
        ({}, f"{ROOT}/outputs/models/smollm2"),
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


def test_the_command_lets_threads_sleep_before_pytorch_is_loaded(monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    code = (
        "import sys, os, fgrlhf.cli.main as command\n"
        "assert 'torch' not in sys.modules\n"
        "command.wait_passively()\n"
        "print(os.environ['OMP_WAIT_POLICY'], os.environ['GOMP_SPINCOUNT'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == f"passive {SPINS}\n", done.stderr
