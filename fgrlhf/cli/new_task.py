"""`fgrlhf new-task NAME`: write tasks/NAME, a task that trains and passes its tests.

Run it in the repository's root. The files come from fgrlhf/cli/new_task_files: `x.py.txt` there
becomes `tasks/NAME/x.py`.
"""

import keyword
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fgrlhf.base.errors import UserError, shorten

FILES = Path(__file__).parent / "new_task_files"
USAGE = """usage: fgrlhf new-task NAME

Run it in the repository's root: it writes tasks/NAME with prompts, a reward, a config at mini
scale, run.sh, a README and tests. NAME is a Python name in lower case, such as word_puzzles."""


def check_name(name: str) -> None:
    """Raise `UserError` unless the name is a package name of lower-case letters, digits and `_`."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,40}", name) or keyword.iskeyword(name):
        raise UserError(
            f"`{shorten(name, 60)}` cannot name a task: use lower-case letters, digits and `_`,"
            " starting with a letter, such as word_puzzles"
        )


def write_task(name: str, tasks: Path) -> Path:
    """Write the folder of a new task below `tasks`, completely or not at all.

    Raises:
      UserError: the name is not allowed or taken, or `tasks` is not the folder of tasks.
    """
    check_name(name)
    folder = tasks / name
    if not (tasks / "__init__.py").is_file():
        raise UserError(f"{tasks.resolve()} has no tasks: run this in the repository's root")
    for taken in (folder, tasks / f"{name}.py"):
        if taken.exists():
            raise UserError(f"{taken} exists: choose another name, or remove it")
    # write it to a temporary folder, then rename that
    with tempfile.TemporaryDirectory(dir=tasks, prefix=".new-") as temporary:
        draft = Path(temporary) / name
        for source in sorted(FILES.rglob("*.txt")):
            place = source.relative_to(FILES).with_suffix("").as_posix()
            target = draft / place.replace("@NAME@", name)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(source.read_text(encoding="utf-8").replace("@NAME@", name))
            if target.suffix == ".sh":
                target.chmod(0o755)
        (draft / "__init__.py").touch()
        shutil.move(draft, folder)
    return folder


def main(argv: Sequence[str] | None = None) -> None:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        sys.exit(0 if arguments else 2)
    if len(arguments) > 1:
        raise UserError(f"one name is needed, not {len(arguments)}\n{USAGE}")
    folder = write_task(arguments[0], Path("tasks"))
    name = folder.name
    print(
        f"{folder} is written. Train it, then change one thing at a time (docs/tasks.md):\n"
        f"    bash tasks/{name}/run.sh\n"
        f"    make test ARGS=tasks/{name}"
    )
