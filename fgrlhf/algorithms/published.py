"""The published `ppo:` section of an RL run's YAML, read as `algorithm:`.

The published files have PPO's settings under `ppo:`. They load unchanged: each key moves to
`algorithm:`, and error messages name the key as in the file.
"""

from collections.abc import Callable, Collection
from typing import Any

from pydantic import ValidationError
from pydantic_core import InitErrorDetails

from fgrlhf.algorithms.config import SHARED_SETTINGS
from fgrlhf.base.errors import suggestion
from fgrlhf.configs.messages import Mistakes


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
    if not isinstance(algorithm, dict):  # `read` reports the mistake
        return read(others)

    mistakes = _mistakes_in(section, algorithm)
    wrong = {name for name, _ in mistakes}
    moved = {key: value for key, value in section.items() if f"ppo.{key}" not in wrong}
    problems = []
    config = None
    try:
        config = read({**others, "algorithm": {**algorithm, **moved}})
    except ValidationError as error:
        problems = [_as_in_the_file(problem, moved) for problem in error.errors()]
    if mistakes:
        context = {"error": Mistakes(mistakes)}
        problems.append(InitErrorDetails(type="value_error", loc=(), input=tree, ctx=context))
    if problems:
        raise ValidationError.from_exception_data("config", problems)
    return config


def _mistakes_in(section: dict, algorithm: dict) -> list[tuple[str, str]]:
    """The keys of the section `ppo` that cannot be moved to `algorithm`, each with its mistake."""
    mistakes = []
    for key in section:
        if key not in SHARED_SETTINGS:
            hint = suggestion(str(key), sorted(SHARED_SETTINGS))
            mistakes.append((f"ppo.{key}", f"unknown key; {hint}"))
        elif key in algorithm:
            text = (
                f"it is also given as algorithm.{key}={algorithm[key]}, and `ppo` is the published"
                " name of the section `algorithm`: leave one of the two out"
            )
            mistakes.append((f"ppo.{key}", text))
    return mistakes


def _as_in_the_file(problem: Any, moved: Collection[str]) -> InitErrorDetails:
    """A pydantic error with the location that the key has in the file."""
    loc = problem["loc"]
    context = problem.get("ctx", {})
    if loc[:1] == ("algorithm",):
        mistakes = context.get("error")
        if len(loc) > 2 and loc[2] in moved:  # pydantic inserts a name: ("algorithm", "ppo", "lam")
            loc = ("ppo", *loc[2:])
        elif isinstance(mistakes, Mistakes) and all(key in moved for key, _ in mistakes.mistakes):
            loc = ("ppo",)
    return InitErrorDetails(type=problem["type"], loc=loc, input=problem["input"], ctx=context)
