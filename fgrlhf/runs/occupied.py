"""What a folder holds when a training starts: models that it must not replace, digests of code."""

import os
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel

from fgrlhf.base.errors import UserError, first_problems, shorten
from fgrlhf.base.files import is_same_file, read_json, sha256, write_json
from fgrlhf.configs.names import with_current_keys
from fgrlhf.configs.strict import StrictModel
from fgrlhf.configs.user_class import own_code
from fgrlhf.configs.yaml_files import read_yaml
from fgrlhf.load import code_of
from fgrlhf.runs.runlog import is_main_rank
from fgrlhf.runs.stage import changes_since, hold
from fgrlhf.task import Task

# Files of which one is in every model's folder, whoever wrote it.
MODEL_FILES = ("*.safetensors", "*.bin", "*.pt", "*.pth", "reward_model.json", "linear_scorer.json")
STAGE_FILES = ("result.json", "inputs.json")  # of SFT, reward models, evaluations and samples
POLICIES = ("best", "final")  # folders in which RL and DPO save their policies
_WAY_OUT = "Set another logging.save_dir"


def check_not_inputs(folder: Path, inputs: Iterable[str | Path]) -> None:
    """Raise `UserError` if a run would write its policies to one of its inputs."""
    for written in (folder, *(folder / name for name in POLICIES)):
        for path in inputs:
            if is_same_file(written, path):
                raise UserError(
                    f"{shorten(path)} is an input of this run, which would replace its files with"
                    f" its own. {_WAY_OUT}"
                )


def check_own_stage(folder: Path, inputs: Iterable[str | Path]) -> None:
    """Check the folder of SFT or a reward model, which writes its model to the folder itself.

    A folder with a config.yaml is that of a stage; `stored_result` compares its settings.

    Raises:
      UserError: the folder is an input, or has a model that no stage wrote.
    """
    check_not_inputs(folder, inputs)
    if not os.path.lexists(folder / "config.yaml") and holds_model(folder):
        raise UserError(_foreign_model(folder, _WAY_OUT))
    _refuse_other_metrics(folder)


def check_own_run(folder: Path, config: StrictModel, inputs: Iterable[str | Path]) -> None:
    """Check the folder of RL or DPO, which save policies in `best/` and `final/`.

    Raises:
      UserError: the folder is an input; it has a model, a stage or records of another program; or
        it has policies of other settings. With a checkpoint, the settings are compared with those
        of the checkpoint instead.
    """
    check_not_inputs(folder, inputs)
    if holds_model(folder):
        raise UserError(_foreign_model(folder, _WAY_OUT))
    for name in STAGE_FILES:
        if os.path.lexists(folder / name):
            raise UserError(
                f"{shorten(folder)} is the folder of another stage ({name}), whose records this"
                f" run would replace. {_WAY_OUT}"
            )
    _refuse_other_metrics(folder)
    _refuse_other_config(folder, config)
    for name in POLICIES:
        is_known = _is_begun(folder) or os.path.lexists(folder / "config.yaml")
        if not is_known and _has_files(folder / name) and not holds_model(folder / name):
            raise UserError(
                f"{shorten(folder / name)} has files of another program, but the run would put a"
                f" policy in their place. {_WAY_OUT}"
            )
    saved = [name for name in POLICIES if holds_model(folder / name)]
    if not saved or _is_begun(folder):
        return
    if not os.path.lexists(folder / "config.yaml"):
        raise UserError(_foreign_model(folder / saved[0], _WAY_OUT))
    changes = changes_since(folder, config, [])
    changes = [line for line in changes if not line.startswith("logging.")]
    if changes:
        raise UserError(
            f"{shorten(folder / saved[0])} has a policy of a run with other settings, which this"
            " run would replace:\n  " + "\n  ".join(first_problems(changes)) + f"\n{_WAY_OUT}."
        )


def _is_begun(folder: Path) -> bool:
    """Whether a run has checkpoints, so that it is one whatever became of its other files."""
    return any((folder / "checkpoints").glob("step-*"))


def _refuse_other_metrics(folder: Path) -> None:
    """Raise `UserError` for a metrics.jsonl without config.yaml, which a run writes before it."""
    if _is_begun(folder) or os.path.lexists(folder / "config.yaml"):
        return
    if os.path.lexists(folder / "metrics.jsonl"):
        raise UserError(
            f"{shorten(folder)} has a metrics.jsonl that this command did not write, and would"
            f" replace. {_WAY_OUT}"
        )


def _refuse_other_config(folder: Path, config: StrictModel) -> None:
    """Raise `UserError` if config.yaml has sections that such a run does not have."""
    path = folder / "config.yaml"
    if _is_begun(folder) or not os.path.lexists(path):
        return
    recorded = read_yaml(path)
    known = {field.alias or name for name, field in type(config).model_fields.items()}
    other = sorted(str(name) for name in set(with_current_keys(recorded)) - known)
    if other:
        raise UserError(
            f"{shorten(path)} is the config of another program ({shorten(', '.join(other), 80)}),"
            f" which this run would replace. {_WAY_OUT}"
        )


def _has_files(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())


def claim_model_folder(folder: Path, record: str, settings: StrictModel) -> None:
    """Write the settings of a program that makes a model to the model's folder.

    Call it before the model is written: a folder with the record is one that the program may
    replace.

    Args:
      record: the file's name, which only this program writes.

    Raises:
      UserError: the folder has a model without the record.
    """
    if holds_model(folder) and not (folder / record).is_file():
        raise UserError(_foreign_model(folder, "Remove it, or set another output_dir"))
    write_json(folder / record, settings.model_dump(mode="json"))


def holds_model(folder: Path) -> bool:
    """Whether a folder has the weights or the description of a model."""
    return any(any(folder.glob(pattern)) for pattern in MODEL_FILES)


def _foreign_model(folder: Path, way_out: str) -> str:
    return (
        f"{shorten(folder)} has a model that this command did not write, and would replace."
        f" {way_out}"
    )


def note_changed_code(task: Task, config: BaseModel, folder: Path) -> None:
    """Record the user's code, and print a note if it changed since a run began.

    That is the task's code and the classes that the config names (`kind: python`). A run can be
    continued or reused after such a change, since most changes do not affect it. `task_code.json`
    has the digests. A run that stopped before its first checkpoint begins anew.
    """
    if not is_main_rank():
        return
    path = folder / "task_code.json"
    files = {**code_of(task), **own_code(config)}
    now = {name: sha256(file) for name, file in files.items()}
    with hold(folder):
        if not (path.is_file() and any((folder / "checkpoints").glob("step-*"))):
            write_json(path, now)
            return
        before = read_json(path)
    changed = sorted(name for name in {*now, *before} if now.get(name) != before.get(name))
    if changed:
        print(
            f"note: {', '.join(changed)} changed since the run in {folder} began: to train with"
            " the present files from the start, remove that folder or set another"
            " logging.save_dir",
            flush=True,
        )
