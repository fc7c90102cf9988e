"""The on-policy algorithms by name: what `algorithm.name` can be. docs/algorithms.md has their
equations.
"""

from fgrlhf.algorithms.a2c import A2C
from fgrlhf.algorithms.gpg import GPG
from fgrlhf.algorithms.grpo import GRPO
from fgrlhf.algorithms.nlpo import NLPO, NLPOTrainer
from fgrlhf.algorithms.reinforce import Reinforce
from fgrlhf.algorithms.rloo import RLOO
from fgrlhf.algorithms.trpo import TRPO, TRPOTrainer
from fgrlhf.ppo import PPO
from fgrlhf.runs.rl_config import RLConfig
from fgrlhf.trainer import OnPolicyTrainer

ALGORITHMS = {
    "ppo": PPO,
    "a2c": A2C,
    "reinforce": Reinforce,
    "rloo": RLOO,
    "grpo": GRPO,
    "gpg": GPG,
    "trpo": TRPO,
    "nlpo": NLPO,
}
DOORS = {
    "trpo": TRPOTrainer,
    "nlpo": NLPOTrainer,
}  # an update, a policy of their own; the others take the loop as it is


def make_trainer(config: RLConfig, *args, **kwargs) -> OnPolicyTrainer:
    """The trainer that `config.algorithm` asks for; further arguments are those of
    `OnPolicyTrainer` after the algorithm.
    """
    name = config.algorithm.name
    return DOORS.get(name, OnPolicyTrainer)(
        config, ALGORITHMS[name](config.ppo, config.algorithm), *args, **kwargs
    )


def unread(config: RLConfig) -> list[str]:
    """Keys that the config gives and its algorithm has no use for. They serve another one: a single
    word switches between them.
    """
    algorithm = config.algorithm
    keys = [f"ppo.{key}" for key in config.ppo.model_fields_set - algorithm.reads]
    if not algorithm.critic:
        value = config.model.value_model
        keys += [
            f"model.value_model.{key}" for key in value.model_fields_set if getattr(value, key)
        ]
        keys += ["train.value_lr"] if config.train.value_lr is not None else []
    if (
        not ALGORITHMS[algorithm.name].reuses_rollouts
        and "n_ppo_epoch_per_rollout" in config.train.model_fields_set
    ):
        keys.append("train.n_ppo_epoch_per_rollout")
    return sorted(keys)
