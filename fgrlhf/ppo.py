"""PPOTrainer: the on-policy loop with PPO (fgrlhf/algorithms/ppo.py) as its algorithm."""

from collections.abc import Sequence

from accelerate import Accelerator
from torch import nn

from fgrlhf.algorithms.ppo import PPO
from fgrlhf.policy_trainer import DevEvaluation
from fgrlhf.reward import BasicReward
from fgrlhf.runs.rl_config import RLConfig
from fgrlhf.text_types import Prompt
from fgrlhf.trainer import OnPolicyTrainer
from fgrlhf.value import ActorCritic


class PPOTrainer(OnPolicyTrainer):
    """The on-policy loop with PPO as its algorithm."""

    def __init__(
        self,
        config: RLConfig,
        actor_critic: ActorCritic,
        reference: nn.Module,
        reward: BasicReward,
        prompts: Sequence[Prompt],
        evaluate: DevEvaluation | None,
        accelerator: Accelerator,
    ):
        algorithm = PPO(config.algorithm)
        super().__init__(
            config, algorithm, actor_critic, reference, reward, prompts, evaluate, accelerator
        )
