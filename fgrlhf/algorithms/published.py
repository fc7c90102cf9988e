"""The published `ppo:` section of an RL run's YAML, read as `algorithm:`.

The published files have PPO's settings under `ppo:`. They load as they are: each key moves to
`algorithm:`, and messages about it name the place where the file has it.
"""

from collections.abc import Callable, Collection
from typing import Any

from pydantic import ValidationError
from pydantic_core import InitErrorDetails

from fgrlhf.algorithms.config import SHARED_SETTINGS
from fgrlhf.config import Mistakes, suggestion


def read_with_ppo_section(tree: dict, read: Callable[[dict], Any]) -> Any:
    """The config that `read` builds from `tree`, with the keys of `ppo` moved to `algorithm`.

    Raises:
      ValidationError: the mistakes in the moved keys and all others.
    """
    section = tree["ppo"]
    others = {name: value for name, value in tree.items() if name != "ppo"}
    if not isinstance(section, dict):
        raise Mistakes([("ppo", "it is not a mapping of keys: write it as in the published files")])
    algorithm = others.get("algorithm", {})
    if not isinstance(algorithm, dict):  # whatever it is, `read` reports it
        return read(others)

    mistakes = []
    moved = {}
    for key, value in section.items():
        if key not in SHARED_SETTINGS:
            hint = suggestion(str(key), sorted(SHARED_SETTINGS))
            mistakes.append((f"ppo.{key}", f"unknown key; {hint}"))
        elif key in algorithm:
            text = (
                f"it is also given as algorithm.{key}={algorithm[key]}, and `ppo` is the published"
                " name of the section `algorithm`: leave one of the two out"
            )
            mistakes.append((f"ppo.{key}", text))
        else:
            moved[key] = value
    try:
        config = read({**others, "algorithm": {**algorithm, **moved}})
    except ValidationError as error:
        problems = [_as_in_the_file(problem, moved) for problem in error.errors()]
        title = error.title
    else:
        problems = []
        title = type(config).__name__
    if mistakes:
        problems.append(_value_error((), Mistakes(mistakes)))
    if problems:
        raise ValidationError.from_exception_data(title, problems)
    return config


def _as_in_the_file(problem: Any, moved: Collection[str]) -> InitErrorDetails:
    """One of pydantic's problems, at the place where the file has the key."""
    section, *rest = problem["loc"] or ("",)
    if section == "algorithm" and len(rest) >= 2 and rest[1] in moved:  # rest[0] is the algorithm
        loc = ("ppo", *rest[1:])
    else:
        loc = problem["loc"]
    context = problem.get("ctx", {})
    mistakes = context.get("error")
    if section == "algorithm" and isinstance(mistakes, Mistakes):
        in_ppo = all(key in moved for key, _ in mistakes.mistakes)
        return _value_error(("ppo",) if in_ppo else problem["loc"], mistakes)
    return InitErrorDetails(type=problem["type"], loc=loc, input=problem["input"], ctx=context)


def _value_error(loc: tuple, error: ValueError) -> InitErrorDetails:
    return InitErrorDetails(type="value_error", loc=loc, input=None, ctx={"error": error})
