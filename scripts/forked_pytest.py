"""Runs pytest again and again, without importing torch and its like again each time.

    python scripts/forked_pytest.py [MODULE ...]

It imports the modules, none of this project. For each line {"arguments": [...], "output": FILE} of
its input, a child of this process then runs pytest, whose output goes to the file. The exit code
becomes a line of the output of this process.
"""

import importlib
import json
import os
import sys
import traceback


def run(arguments: list[str], output: str) -> int:
    """The exit code of pytest in a child of this process; -N if signal N ended it."""
    import pytest

    child = os.fork()
    if child == 0:
        code = 3  # pytest's own for an internal error
        try:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(file, 1)
            os.dup2(file, 2)
            code = int(pytest.main(arguments))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.path[0] = os.getcwd()  # instead of the folder of this file
    for name in sys.argv[1:]:
        importlib.import_module(name)
    for line in sys.stdin:
        print(run(**json.loads(line)), flush=True)
