"""What an RL run is told: the sections of its YAML file. The published files load as they are."""

from typing import Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from fgrlhf.algorithm_config import AnyAlgorithm, GroupAlgorithm, PPOAlgorithm, PPOConfig
from fgrlhf.config import StrictModel
from fgrlhf.decoding import Sampling


class GenerationConfig(StrictModel):
    do_sample: bool = True
    top_k: NonNegativeInt | None = None
    top_p: float | None = Field(None, gt=0, le=1)
    temperature: PositiveFloat = 1.0
    num_beams: PositiveInt = 1

    @model_validator(mode="after")
    def _beams_or_sampling(self):
        if self.do_sample and self.num_beams > 1:
            raise ValueError(f"num_beams={self.num_beams} searches for the most probable response, do_sample=true draws one: set do_sample=false or num_beams=1")
        return self

    def sampling(self, max_new_tokens: int) -> Sampling:
        return Sampling(max_new_tokens, self.do_sample, self.temperature, self.top_k or 0, self.top_p, self.num_beams)


class EvalGenerationConfig(GenerationConfig):
    do_sample: bool = False


class LoRAConfig(StrictModel):
    r: PositiveInt = Field(16, description="rank")
    alpha: PositiveFloat = Field(32.0, description="adapters count alpha / r times")
    dropout: float = Field(0.0, ge=0, lt=1, description="of what adapters read; needs train.dropout")
    target_modules: list[str] | None = Field(None, description="names of linear layers; null: all but the output")


class PolicyConfig(StrictModel):
    ckpt: str
    input_padding_side: Literal["left", "right"] | None = None
    chat_template: bool | None = Field(None, description="prompts as a user's turn; null: where the tokenizer has a chat template")
    lora: LoRAConfig | None = Field(None, description="train adapters; the reference is the policy without them")
    train_generation_kwargs: GenerationConfig = GenerationConfig()
    eval_generation_kwargs: EvalGenerationConfig = EvalGenerationConfig()


class ValueConfig(StrictModel):
    ckpt: str | None = None
    freeze_value_model: bool = False
    policy_value_sharing: bool = False


class ModelConfig(StrictModel):
    policy_model: PolicyConfig
    value_model: ValueConfig
    dtype: Literal["fp32", "bf16"] = Field("fp32", description="forward passes; weights in training stay fp32")

    @model_validator(mode="after")
    def _value_trunk(self):
        if self.value_model.ckpt is None and not self.value_model.policy_value_sharing:
            raise ValueError("value_model needs a trunk of its own: set value_model.ckpt, or value_model.policy_value_sharing=true to read the policy's hidden states")
        if self.value_model.freeze_value_model and self.value_model.policy_value_sharing:
            raise ValueError("value_model shares the policy's trunk, which cannot be frozen: set value_model.freeze_value_model=false or value_model.policy_value_sharing=false")
        return self


class AspectConfig(StrictModel):
    """One reward. A task fills in what its published names imply (tasks/qa_feedback/training/reward.py)."""

    kind: str
    ckpt: str | None = Field(None, description="reward model's folder")
    weight: float = Field(1.0, description="multiplies the reward; 0 leaves the model unloaded")
    place: Literal["segment", "end"] = Field("segment", description="end: the same values as one scalar on the last token")
    positive_reward: float = 0.0
    negative_reward: float = 0.0
    scale: float = 1.0
    bias: float = 0.0
    clip: PositiveFloat | None = Field(None, description="bound of the z-score")
    mean: float | None = Field(None, description="only for a checkpoint that does not carry its own")
    std: PositiveFloat | None = Field(None, description="only for a checkpoint that does not carry its own")
    level: Literal["subsentence", "sentence", "sequence"] | None = Field(None, description="likewise")
    error_label: str | None = Field(None, description="likewise")
    with_passages: bool | None = Field(None, description="likewise")

    def published_facts(self) -> dict[str, Any]:
        """What a checkpoint without a reward_model.json has to be told, where the config tells it."""
        facts = {name: getattr(self, name) for name in ("mean", "std", "level", "error_label", "with_passages")}
        return {name: value for name, value in facts.items() if value is not None}


class EnvConfig(StrictModel):
    max_input_len: PositiveInt = 1024
    max_generated_len: PositiveInt = 200
    train_num_samples_per_input: PositiveInt = 4
    logprob_temperature: PositiveFloat | None = Field(None, description="of ratio and KL; null: the sampling temperature")


class TrainConfig(StrictModel):
    total_episodes: PositiveInt = 80_000
    eval_interval: PositiveInt = Field(50, description="rollout steps between evaluations on dev")
    eval_examples: PositiveInt | None = Field(None, description="dev prompts used, the first ones; null: all")
    save_interval: PositiveInt = Field(50, description="rollout steps between checkpoints")
    best_metric: str = Field("reward", description="dev metric that picks the best checkpoint, higher is better")
    sampling_batch_size_per_card: PositiveInt = Field(8, description="prompts per rollout and process")
    training_batch_size_per_card: PositiveInt = Field(4, description="rollouts per forward/backward pass and process")
    n_minibatches: PositiveInt = Field(1, description="optimiser steps per PPO epoch")
    n_ppo_epoch_per_rollout: PositiveInt = Field(4, description="of the policies with a ratio and of trpo's critic; 1 for the others")
    lr: PositiveFloat = 1e-5
    value_lr: PositiveFloat | None = Field(None, description="null: lr")
    lr_schedule: Literal["linear", "constant"] = "linear"
    n_warmup_steps: NonNegativeInt = Field(100, description="rollout steps")
    n_critic_warmup_steps: NonNegativeInt = Field(0, description="first rollout steps in which only the critic learns")
    adam_eps: PositiveFloat = 1e-5
    kl_threshold: PositiveFloat = Field(
        10.0, description="stop once the batch KL has passed it kl_patience times; a policy whose dev KL has is never the best one")
    kl_patience: PositiveInt = 5
    clip_grad: bool = True
    max_grad_norm: PositiveFloat = 0.5
    dropout: bool = Field(False, description="keep dropout on, in rollouts and updates alike")
    dropout_in_rollouts: bool | None = Field(None, description="null: as `dropout`; false with dropout=true is as published (D4)")
    gradient_checkpointing: bool = Field(False, description="compute layers twice instead of keeping what they computed: slower, smaller")
    shuffle: bool = Field(True, description="false: as published (D6)")
    average_microbatches: bool = Field(True, description="false: their losses add up, as published (D6)")
    seed: int = 42
    cuda_deterministic: bool = True


class LoggingConfig(StrictModel):
    run_name: str = "run"
    save_dir: str
    wandb_log: bool = False
    wandb_entity: str | None = None
    wandb_project: str = "fgrlhf"
    tensorboard: bool = False
    log_interval: PositiveInt = 1
    n_samples: NonNegativeInt = Field(16, description="rollouts written out with their token rewards at each evaluation")

    def trackers(self) -> dict[str, Any]:
        """`RunLog`'s arguments for the trackers that are asked for."""
        wandb = {"project": self.wandb_project, "entity": self.wandb_entity, "name": self.run_name}
        return {"wandb": wandb if self.wandb_log else None, "tensorboard": self.tensorboard}


class DataConfig(StrictModel):
    train_file: str = "tasks/qa_feedback/data/train.json"
    dev_file: str = "tasks/qa_feedback/data/dev.json"


class RLConfig(StrictModel):
    """A whole run."""

    model: ModelConfig
    reward: dict[str, AspectConfig]
    env: EnvConfig = EnvConfig()
    algorithm: AnyAlgorithm = PPOAlgorithm()
    ppo: PPOConfig = PPOConfig()
    train: TrainConfig = TrainConfig()
    data: DataConfig = DataConfig()
    logging: LoggingConfig

    @model_validator(mode="after")
    def _dropout_is_on(self):
        lora = self.model.policy_model.lora
        if lora is not None and lora.dropout and not self.train.dropout:
            raise ValueError(
                f"model.policy_model.lora.dropout is {lora.dropout}, but train.dropout is false, which turns all dropout off: "
                "set train.dropout=true, or leave lora.dropout out")
        return self

    @model_validator(mode="after")
    def _algorithm_fits(self):
        name, K = self.algorithm.name, self.env.train_num_samples_per_input
        if isinstance(self.algorithm, GroupAlgorithm) and K < 2:
            raise ValueError(
                f"env.train_num_samples_per_input is {K}, but `{name}` compares the samples of one prompt, which needs a second one: "
                "set it to 2 or more, or use algorithm.name=reinforce")
        if not self.algorithm.critic and self.train.n_critic_warmup_steps:
            raise ValueError(
                f"train.n_critic_warmup_steps is {self.train.n_critic_warmup_steps}, but `{name}` has no critic that could learn alone: "
                "set it to 0, or use an algorithm with a critic: ppo, a2c, trpo, nlpo")
        if name == "trpo" and self.model.value_model.policy_value_sharing:
            raise ValueError(
                "model.value_model.policy_value_sharing is true, but `trpo` bounds how far the policy moves, and a critic on the same "
                "trunk would move it too: set it to false and give model.value_model.ckpt, or use algorithm.name=ppo")
        if name == "trpo" and self.train.dropout:
            raise ValueError(
                "train.dropout is true, but `trpo` compares one policy before and after a step, and dropout makes every pass another "
                "one: set train.dropout=false, or use algorithm.name=ppo")
        if name == "nlpo" and self.model.policy_model.train_generation_kwargs.num_beams > 1:
            raise ValueError(
                "model.policy_model.train_generation_kwargs.num_beams is more than 1, but `nlpo` masks tokens as they are sampled: "
                "set num_beams=1 and do_sample=true, or use algorithm.name=ppo")
        return self

    @property
    def logprob_temperature(self) -> float:
        generation = self.model.policy_model.train_generation_kwargs
        return self.env.logprob_temperature or (generation.temperature if generation.do_sample else 1.0)

    @property
    def dropout_in_rollouts(self) -> bool:
        chosen = self.train.dropout_in_rollouts
        return self.train.dropout if chosen is None else chosen
