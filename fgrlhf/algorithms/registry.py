"""The on-policy algorithms by name, and the section `algorithm:` of an RL run's YAML.

`algorithm.name` is a key of `ALGORITHMS`, or `python` for an algorithm outside the library. Then
`of` is the import path of its class, and the other keys are those of its `config_class`.

    algorithm: {name: python, of: my_package.my_module.MyAlgorithm, kl_coef: 0.1, bonus: 2.0}
"""

from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from pydantic import BeforeValidator, Discriminator, Field, SerializeAsAny, Tag, create_model

from fgrlhf.algorithms.a2c import A2C, A2CConfig
from fgrlhf.algorithms.config import SHARED_SETTINGS, AlgorithmConfig
from fgrlhf.algorithms.gpg import GPG, GPGConfig
from fgrlhf.algorithms.grpo import GRPO, GRPOConfig
from fgrlhf.algorithms.nlpo import NLPO, NLPOConfig
from fgrlhf.algorithms.ppo import PPO, PPOConfig
from fgrlhf.algorithms.protocol import Algorithm
from fgrlhf.algorithms.reinforce import Reinforce, ReinforceConfig
from fgrlhf.algorithms.rloo import RLOO, RLOOConfig
from fgrlhf.algorithms.trpo import TRPO, TRPOConfig
from fgrlhf.base.errors import suggestion
from fgrlhf.base.working_folder import import_module
from fgrlhf.configs.messages import Mistakes
from fgrlhf.configs.strict import refuse

ALGORITHMS: dict[str, type[Algorithm]] = {
    "ppo": PPO,
    "a2c": A2C,
    "reinforce": Reinforce,
    "rloo": RLOO,
    "grpo": GRPO,
    "gpg": GPG,
    "trpo": TRPO,
    "nlpo": NLPO,
}

HOOKS = ("training_policy", "before_rollout", "after_rollout", "update")
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


def algorithm_class(config: AlgorithmConfig) -> type[Algorithm]:
    """The class that reads these settings."""
    if isinstance(config, PythonAlgorithmConfig):
        return import_algorithm(config.of)
    return ALGORITHMS[config.name]


def has_own_hooks(algorithm: type[Algorithm]) -> bool:
    """Whether an algorithm changes the policy, its rollouts or its update by a hook of its own."""
    return any(getattr(algorithm, name) is not getattr(Algorithm, name) for name in HOOKS)


def import_algorithm(path: str) -> type[Algorithm]:
    """Import an algorithm's class.

    Raises:
      ValueError: there is no such module or class, or the class is not an algorithm.
    """
    module_name, _, class_name = path.rpartition(".")
    example = "name a class with its module, as in my_package.my_module.MyAlgorithm"
    if not module_name:
        raise ValueError(f"`{path}` has no module: {example}")
    try:
        module = import_module(module_name)
    except ImportError as error:
        raise ValueError(
            f"the module `{module_name}` cannot be imported ({error}): {example}, and start Python"
            " where it is found (PYTHONPATH)"
        ) from None
    if not hasattr(module, class_name):
        raise ValueError(f"`{module_name}` has no `{class_name}`: {example}")
    algorithm = getattr(module, class_name)
    if not isinstance(algorithm, type):
        raise ValueError(f"`{path}` is not a class: {example}")
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
    return algorithm


@cache
def _with_import_path(config_class: type[AlgorithmConfig]) -> type[PythonAlgorithmConfig]:
    """The config class of an algorithm outside the library, with the keys `name` and `of`."""
    combined = create_model(
        config_class.__name__,
        __base__=(config_class, PythonAlgorithmConfig),
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
        Annotated[PPOConfig, Tag("ppo")]
        | Annotated[A2CConfig, Tag("a2c")]
        | Annotated[ReinforceConfig, Tag("reinforce")]
        | Annotated[RLOOConfig, Tag("rloo")]
        | Annotated[GRPOConfig, Tag("grpo")]
        | Annotated[GPGConfig, Tag("gpg")]
        | Annotated[TRPOConfig, Tag("trpo")]
        | Annotated[NLPOConfig, Tag("nlpo")]
        | Annotated[
            SerializeAsAny[PythonAlgorithmConfig],
            BeforeValidator(_read_python_algorithm),
            Tag("python"),
        ],
        Discriminator(_name_of),
    ]
