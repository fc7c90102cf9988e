"""The on-policy algorithms by name, and the section `algorithm:` of an RL run's YAML.

`algorithm.name` is one of `ALGORITHMS` or `WITH_TEACHER`, or `python` for an algorithm outside the
library. Then `of` is the import path of its class, and the other keys are those of its
`config_class`.

    algorithm: {name: python, of: my_package.my_module.MyAlgorithm, kl: {coef: 0.1}, bonus: 2.0}
"""

from collections.abc import Callable, Collection
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    SerializeAsAny,
    Tag,
    ValidationError,
    create_model,
)
from pydantic_core import InitErrorDetails

from fgrlhf.algorithms import config as settings
from fgrlhf.algorithms.config import SHARED_SETTINGS, AlgorithmConfig
from fgrlhf.base.errors import UserError, suggestion
from fgrlhf.configs.messages import Mistakes
from fgrlhf.configs.names import OTHER_KEYS
from fgrlhf.configs.strict import refuse
from fgrlhf.configs.user_class import class_path, import_object
from fgrlhf.configs.yaml_files import merged

if TYPE_CHECKING:
    from fgrlhf.algorithms.protocol import Algorithm

ALGORITHMS = ("ppo", "a2c", "reinforce", "rloo", "grpo", "gpg", "trpo", "nlpo", "online_dpo")
WITH_TEACHER = ("sdpo", "distill")  # they learn from a teacher, and the others from rewards
HOOKS = ("training_policy", "begin", "before_rollout", "after_rollout", "divergence", "update")
# Attributes that the class of an algorithm must have; `Algorithm` defines the hooks.
REQUIRED = (
    "config_class",
    "needs_values",
    "reuses_rollouts",
    "advantages",
    "loss",
    *HOOKS,
)


class PythonAlgorithmConfig(AlgorithmConfig):
    """Settings of an algorithm outside the library; its own config class adds more."""

    name: Literal["python"] = "python"
    of: str = Field(description="import path of its class: my_package.my_module.MyAlgorithm")


def algorithm_class(config: AlgorithmConfig) -> "type[Algorithm]":
    """The class that reads these settings."""
    if isinstance(config, PythonAlgorithmConfig):
        return import_algorithm(config.of)
    return library_algorithm(config.name)


def library_algorithm(name: str) -> "type[Algorithm]":
    """Import the class of an algorithm of the library: a run imports only the one that it names."""
    match name:
        case "ppo":
            from fgrlhf.algorithms.ppo import PPO

            return PPO
        case "a2c":
            from fgrlhf.algorithms.a2c import A2C

            return A2C
        case "reinforce":
            from fgrlhf.algorithms.reinforce import Reinforce

            return Reinforce
        case "rloo":
            from fgrlhf.algorithms.rloo import RLOO

            return RLOO
        case "grpo":
            from fgrlhf.algorithms.grpo import GRPO

            return GRPO
        case "gpg":
            from fgrlhf.algorithms.gpg import GPG

            return GPG
        case "trpo":
            from fgrlhf.algorithms.trpo import TRPO

            return TRPO
        case "nlpo":
            from fgrlhf.algorithms.nlpo import NLPO

            return NLPO
        case "online_dpo":
            from fgrlhf.algorithms.online_dpo import OnlineDPO

            return OnlineDPO
        case "sdpo":
            from fgrlhf.algorithms.sdpo import SDPO

            return SDPO
        case "distill":
            from fgrlhf.algorithms.distill import Distill

            return Distill
        case _:
            raise ValueError(f"there is no algorithm `{name}`")


def algorithms_with_critic() -> list[str]:
    """The names of the library's algorithms that need a critic."""
    return [name for name in ALGORITHMS if library_algorithm(name).needs_values]


def own_hooks(algorithm: "type[Algorithm]") -> list[str]:
    """The hooks by which an algorithm changes the policy, its rollouts or its update."""
    from fgrlhf.algorithms.protocol import Algorithm  # with torch, as all algorithms

    return [name for name in HOOKS if getattr(algorithm, name) is not getattr(Algorithm, name)]


def import_algorithm(path: str) -> "type[Algorithm]":
    """Import an algorithm's class.

    Raises:
      ValueError: there is no such module or class, or the class is not an algorithm.
    """
    try:
        algorithm = import_object("algorithm", class_path(path))
    except UserError as error:
        raise ValueError(str(error)) from None
    if not isinstance(algorithm, type):
        raise ValueError(f"`{path}` is not a class: name one, as in my_package.my_module.Mine")
    abstract = getattr(algorithm, "__abstractmethods__", ())
    missing = [name for name in REQUIRED if not hasattr(algorithm, name) or name in abstract]
    if missing:
        raise ValueError(
            f"`{path}` lacks {', '.join(missing)}: inherit from"
            " fgrlhf.algorithms.protocol.Algorithm and define them"
        )
    if not issubclass(algorithm.config_class, AlgorithmConfig):
        raise ValueError(
            f"config_class of `{path}` is {algorithm.config_class.__name__}: inherit it from"
            " fgrlhf.algorithms.config.AlgorithmConfig"
        )
    return cast("type[Algorithm]", algorithm)


@cache
def _with_import_path(config_class: type[AlgorithmConfig]) -> type[PythonAlgorithmConfig]:
    """The config class of an algorithm outside the library, with the keys `name` and `of`."""
    bases = (config_class, PythonAlgorithmConfig)
    if config_class is AlgorithmConfig:  # an algorithm without settings of its own
        bases = (PythonAlgorithmConfig,)
    combined = create_model(
        config_class.__name__,
        __base__=bases,
        name=(Literal["python"], "python"),
    )
    return cast(type[PythonAlgorithmConfig], combined)


def _read_python_algorithm(tree: Any) -> Any:
    """Validate the settings with the config class of the algorithm named in `of`."""
    if not isinstance(tree, dict) or not isinstance(tree.get("of"), str):
        return tree
    try:
        algorithm = import_algorithm(tree["of"])
    except ValueError as error:
        raise Mistakes([("of", str(error))]) from None
    config_class = _with_import_path(algorithm.config_class)
    keys = sorted(config_class.model_fields)
    unknown = [key for key in tree if key not in keys and key not in SHARED_SETTINGS]
    refuse([(key, f"unknown key; {suggestion(key, keys)}") for key in unknown])
    return config_class.model_validate(tree)


def _name_of(section: Any) -> str:
    if isinstance(section, dict):
        return section.get("name", "ppo")
    return getattr(section, "name", "ppo")


if TYPE_CHECKING:
    AnyAlgorithm = AlgorithmConfig
else:
    AnyAlgorithm = Annotated[
        Annotated[settings.PPOConfig, Tag("ppo")]
        | Annotated[settings.PPOConfig, Tag("a2c")]
        | Annotated[settings.ReinforceConfig, Tag("reinforce")]
        | Annotated[settings.RLOOConfig, Tag("rloo")]
        | Annotated[settings.GRPOConfig, Tag("grpo")]
        | Annotated[settings.GPGConfig, Tag("gpg")]
        | Annotated[settings.TRPOConfig, Tag("trpo")]
        | Annotated[settings.NLPOConfig, Tag("nlpo")]
        | Annotated[settings.OnlineDPOConfig, Tag("online_dpo")]
        | Annotated[settings.SDPOConfig, Tag("sdpo")]
        | Annotated[settings.DistillConfig, Tag("distill")]
        | Annotated[
            SerializeAsAny[PythonAlgorithmConfig],
            BeforeValidator(_read_python_algorithm),
            Tag("python"),
        ],
        Discriminator(_name_of),
    ]


# ---- the published section -----------------------------------------------------------------------

# The published files have PPO's settings under `ppo:`. They load unchanged: each key moves to
# `algorithm:`, and error messages name the key as in the file.


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
        config = read({**others, "algorithm": merged(algorithm, moved)})
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
    published = [key.removeprefix("ppo.") for key in OTHER_KEYS if key.startswith("ppo.")]
    for key, value in section.items():
        current = OTHER_KEYS.get(f"ppo.{key}")
        if current is not None:
            mistakes.append((f"ppo.{key}", f"it is also given as {current}: leave one of them out"))
        elif key not in SHARED_SETTINGS:
            hint = suggestion(str(key), sorted({*SHARED_SETTINGS, *published}))
            mistakes.append((f"ppo.{key}", f"unknown key; {hint}"))
        else:
            mistakes += _given_twice(key, value, algorithm)
    return mistakes


def _given_twice(key: str, value: Any, algorithm: dict, path: str = "") -> list[tuple[str, str]]:
    """The mistake of a key of `ppo` that `algorithm` has too; of a section, those of its keys."""
    if key not in algorithm:
        return []
    other = algorithm[key]
    if isinstance(value, dict) and isinstance(other, dict):
        below = [_given_twice(name, value[name], other, f"{path}{key}.") for name in value]
        return [mistake for mistakes in below for mistake in mistakes]
    text = (
        f"it is also given as algorithm.{path}{key}={other}, and `ppo` is the published name of the"
        " section `algorithm`: leave one of the two out"
    )
    return [(f"ppo.{path}{key}", text)]


def _as_in_the_file(problem: Any, moved: Collection[str]) -> InitErrorDetails:
    """A pydantic error with the location that the key has in the file."""
    loc = problem["loc"]
    context = problem.get("ctx", {})
    if loc[:1] == ("algorithm",):
        mistakes = context.get("error")
        if len(loc) > 2 and loc[2] in moved:  # pydantic inserts a name: ("algorithm", "ppo", "lam")
            loc = ("ppo", *loc[2:])
        elif isinstance(mistakes, Mistakes) and all(
            key.partition(".")[0] in moved for key, _ in mistakes.mistakes
        ):
            loc = ("ppo",)
    return InitErrorDetails(type=problem["type"], loc=loc, input=problem["input"], ctx=context)
