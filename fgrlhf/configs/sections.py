"""Sections that the configs of RL, DPO, SFT and reward models share, with one set of names.

A stage derives its own sections from these: it sets its defaults and adds the keys that only it
has. `names.py` has other names that are still read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    field_validator,
    model_validator,
)

from fgrlhf.configs.schema import FILE, LIST
from fgrlhf.configs.strict import (
    BatchSize,
    Count,
    Epsilon,
    FilePath,
    Kernels,
    Name,
    NonNegativeCount,
    Positive,
    Rate,
    Seed,
    StrictModel,
    Temperature,
    Tokens,
    refuse,
    unread_keys,
)
from fgrlhf.configs.user_class import ClassPath

Dtype = Literal["fp32", "bf16"]
DtypeSetting = Literal["auto", "fp32", "bf16"]
Optimizer = Literal["adamw", "adamw_8bit"]
Schedule = Literal["linear", "cosine", "constant"]
Tracker = Literal["wandb", "tensorboard", "trackio", "mlflow"]
Epochs = Annotated[float, Field(ge=1e-6, le=1e6)]
Decay = Annotated[float, Field(ge=0, le=100)]
Warmup = Annotated[float, Field(ge=0, lt=2**31)]  # steps; below 1: a share of all steps

# ---- files ---------------------------------------------------------------------------------------


def _share(value: float) -> float:
    if not 1e-6 <= value <= 1e6:
        raise ValueError(
            "a share is between 1e-6 and 1e6: leave a file out of the list if no row of it is to be"
            " read"
        )
    return value


class MixedFile(StrictModel):
    """A file of a mixture (fgrlhf/data/mixture.py)."""

    file: FilePath = Field(description="a file, or hub:org/name")
    share: Annotated[float, AfterValidator(_share)] = Field(
        description="of the rows that training reads; the sum of all shares need not be 1"
    )


def _named_once(files: list[MixedFile]) -> list[MixedFile]:
    names = [each.file for each in files]
    if not names:
        raise ValueError("it is an empty list: name at least one file")
    for i, name in enumerate(names):
        if name in names[:i]:
            raise ValueError(f"it has {name} twice: give it once, with the sum of its shares")
    return files


def _form_of_files(value: Any) -> str:
    return LIST if isinstance(value, list | tuple) else FILE


# the tags keep pydantic from refusing a value once for every form
TrainFile = Annotated[
    Annotated[FilePath, Tag(FILE)]
    | Annotated[list[MixedFile], AfterValidator(_named_once), Tag(LIST)],
    Discriminator(_form_of_files),
]


ABOUT_MIXTURES = "A list [{file, share}, ...] mixes several in these shares"


def files_of(train_file: str | list[MixedFile] | None) -> list[str]:
    """The files that a value of `data.train_file` names."""
    if isinstance(train_file, list):
        return [each.file for each in train_file]
    return [] if train_file is None else [train_file]


def names_of(train_file: str | list[MixedFile] | None) -> str:
    """The files that a value of `data.train_file` names, for a message."""
    return " and ".join(files_of(train_file))


# ---- models --------------------------------------------------------------------------------------


class LoRAConfig(StrictModel):
    """The section `lora`: adapters that are trained instead of the weights."""

    r: Count = Field(default=16, description="rank")
    alpha: Positive = Field(
        default=32.0, description="the output of adapters is scaled by alpha / r"
    )
    dropout: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="on the input of adapters; in RL and DPO it needs train.dropout",
    )
    target_modules: list[str] | None = Field(
        default=None, description="names of linear layers; null: all but the output"
    )
    quantize: Literal["nf4"] | None = Field(
        default=None,
        description=(
            "nf4: store these layers' frozen weights in 4 bits (QLoRA), which needs the package"
            " bitsandbytes; null: no"
        ),
    )


class ModelConfig(StrictModel):
    """The model that a stage trains."""

    ckpt: FilePath = Field(description="initial model: folder or hub name")
    lora: LoRAConfig | None = Field(
        default=None,
        description=(
            "train adapters; SFT and reward models merge them into the saved model, and the"
            " reference of RL and DPO is the policy without them"
        ),
    )
    train_top_layers: Count | None = Field(
        default=None,
        description=(
            "train only this many layers, counted from the top, and the head of a reward model; the"
            " others are frozen; null: all"
        ),
    )
    max_input_len: Tokens = Field(
        default=1024, description="tokens; longer prompts are cut at their end"
    )
    dtype: DtypeSetting = Field(
        default="fp32",
        description=(
            "forward passes; weights in training stay fp32. auto: bf16 where the processor computes"
            " it clearly faster; a resumed run keeps what it began with"
        ),
    )
    kernels: Kernels = "auto"


@dataclass(frozen=True)
class Sampling:
    """How responses are sampled.

    Without `do_sample`, the most probable token is taken, or with `num_beams` > 1 the response that
    beam search finds.
    """

    max_new_tokens: int
    do_sample: bool = True
    temperature: float = 1.0
    top_k: int = 0  # 0: the whole vocabulary
    top_p: float | None = None  # None: the whole vocabulary
    num_beams: int = 1
    with_support: bool = False  # whether a response tells which tokens could be drawn
    min_p: float | None = None  # None: the whole vocabulary
    min_new_tokens: int = 0  # before which no response ends
    no_repeat_ngram_size: int = 0  # 0: any n-gram may be repeated
    repetition_penalty: float = 1.0  # of tokens that were read before (models/decoding.py)

    @property
    def is_truncated(self) -> bool:
        """Whether improbable tokens are never drawn."""
        is_cut = self.top_k or self.top_p is not None or self.min_p is not None
        return self.do_sample and bool(is_cut)

    @property
    def is_constrained(self) -> bool:
        """Whether some tokens are forbidden, however probable."""
        return bool(self.min_new_tokens or self.no_repeat_ngram_size)


# settings of sampling that are part of the policy: in ratio, KL and gradient
PARTS_OF_THE_POLICY = ["min_new_tokens", "no_repeat_ngram_size", "repetition_penalty"]


class GenerationConfig(StrictModel):
    """How responses are sampled, in training and in evaluations."""

    do_sample: bool = Field(
        default=True,
        description="false, the default of evaluations: take the most probable response",
    )
    top_k: NonNegativeCount | None = Field(
        default=None, description="sample from the k most probable tokens; null: from all"
    )
    top_p: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="sample from the smallest set of tokens with this probability; null: from all",
    )
    min_p: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description=(
            "sample from the tokens with at least this share of the largest probability; null: from"
            " all"
        ),
    )
    min_new_tokens: NonNegativeCount = Field(
        default=0, description="no response ends before this many tokens"
    )
    no_repeat_ngram_size: NonNegativeCount = Field(
        default=0, description="n: no response has the same n tokens twice; 0: any may"
    )
    repetition_penalty: float = Field(
        default=1.0,
        ge=0.01,
        le=100,
        description="above 1, tokens that were read before are less probable; 1: no penalty",
    )
    temperature: Temperature = Field(default=1.0, description="divides the logits before sampling")
    num_beams: int = Field(
        default=1, ge=1, le=64, description="of beam search; above 1 it needs do_sample=false"
    )

    @model_validator(mode="after")
    def _beams_or_sampling(self):
        if self.do_sample and self.num_beams > 1:
            raise ValueError(
                f"num_beams={self.num_beams} searches for the most probable response, but"
                " do_sample=true samples one: set do_sample=false or num_beams=1"
            )
        if self.do_sample and self.top_k == 1:
            raise ValueError(
                "top_k=1 leaves only the most probable token, so nothing is sampled: set"
                " do_sample=false without top_k, or a larger top_k"
            )
        if self.num_beams > 1:
            way_out = "since num_beams is above 1 and beams are free: leave it out, or num_beams"
            refuse(unread_keys(self, PARTS_OF_THE_POLICY, way_out))
        if not self.do_sample:
            refuse(
                unread_keys(
                    self,
                    ["top_k", "top_p", "min_p", "temperature"],
                    "since do_sample is false and the most probable response is taken: set"
                    " do_sample=true, or leave it out",
                )
            )
        return self

    def sampling(self, max_new_tokens: int) -> Sampling:
        """How responses of at most so many tokens are sampled."""
        return Sampling(
            max_new_tokens,
            self.do_sample,
            self.temperature,
            self.top_k or 0,
            self.top_p,
            self.num_beams,
            min_p=self.min_p,
            min_new_tokens=self.min_new_tokens,
            no_repeat_ngram_size=self.no_repeat_ngram_size,
            repetition_penalty=self.repetition_penalty,
        )


def _greedy_by_default(section: Any) -> Any:
    return {"do_sample": False, **section} if isinstance(section, dict) else section


class PolicyConfig(ModelConfig):
    """The policy of RL, DPO and SFT."""

    max_generated_len: Tokens = Field(
        default=200,
        description="tokens of a response, including its end token; longer answers are cut",
    )
    input_padding_side: Literal["left", "right"] | None = Field(
        default=None, description="null: left for decoder-only models, right for others"
    )
    chat_template: bool | None = Field(
        default=None,
        description="prompts as a user's turn; null: if the tokenizer has a chat template",
    )
    decoder_prefix: str | None = Field(
        default=None,
        description=(
            "tokens, separated by spaces, that the decoder of an encoder-decoder reads before every"
            " response, such as NLLB's target language deu_Latn; null: those saved with the model"
        ),
    )
    eval_generation_kwargs: Annotated[GenerationConfig, BeforeValidator(_greedy_by_default)] = (
        GenerationConfig(do_sample=False)
    )

    @model_validator(mode="after")
    def _responses_can_end(self):
        mistakes = []
        for name, value in self:
            if (
                isinstance(value, GenerationConfig)
                and value.min_new_tokens >= self.max_generated_len
            ):
                reason = (
                    f"it is {value.min_new_tokens}, but max_generated_len is"
                    f" {self.max_generated_len}, so no response could end: lower the former or"
                    " raise the latter"
                )
                mistakes.append((f"{name}.min_new_tokens", reason))
        refuse(mistakes)
        return self

    @property
    def eval_sampling(self) -> Sampling:
        """How evaluations on dev sample responses."""
        return self.eval_generation_kwargs.sampling(self.max_generated_len)


class ReferenceConfig(StrictModel):
    """The sections `dpo.reference` and `algorithm.kl.reference`: one that follows the policy."""

    sync_every: Count | None = Field(
        default=None, description="steps after which the reference follows the policy; null: never"
    )
    mixup: float = Field(
        default=0.6, gt=0, le=1, description="share of the policy's weights in the new reference"
    )

    @model_validator(mode="after")
    def _mixup_needs_a_sync(self):
        if self.sync_every is None:
            reason = "since reference.sync_every is null: set it, or leave mixup out"
            refuse(unread_keys(self, ["mixup"], reason))
        return self


# ---- training and evaluation ---------------------------------------------------------------------


class TrainConfig(StrictModel):
    """The keys of the section `train` that all stages have."""

    lr: Rate = Field(description="learning rate")
    lr_schedule: Schedule = Field(
        default="linear", description="after the warmup: decay to 0, by a line or a cosine, or not"
    )
    warmup_steps: Warmup = Field(default=0, description="below 1: a share of all steps")
    optimizer: Optimizer = Field(
        default="adamw",
        description=(
            "adamw_8bit: two bytes of state per trained weight instead of eight; needs the package"
            " bitsandbytes"
        ),
    )
    adam_eps: Epsilon = Field(default=1e-8, description="epsilon of Adam")
    max_grad_norm: Positive | None = Field(
        default=1.0, description="bound of the norm of the gradient; null: not clipped"
    )
    gradient_checkpointing: bool = Field(
        default=False,
        description="compute layers twice instead of storing activations: slower, less memory",
    )
    ema: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description=(
            "decay, such as 0.99, of a moving average of the model over updates, which is saved in"
            " ema/; null: none"
        ),
    )
    seed: Seed = Field(default=42, description="of everything random in the run")


class PolicyTrainConfig(TrainConfig):
    """Training of RL and DPO, against a reference."""

    micro_batch_size: BatchSize = Field(
        default=4, description="rollouts or prompts per forward and backward pass and process"
    )
    dropout: bool = Field(default=False, description="use dropout in training")
    save_every_steps: Count | None = Field(
        default=None, description="steps between checkpoints; null: evaluation.every_steps"
    )


class SupervisedTrainConfig(TrainConfig):
    """Training of SFT and reward models, on rows with labels."""

    epochs: Epochs = Field(default=10.0, description="passes over the training rows")
    max_steps: Count | None = Field(
        default=None, description="optimiser steps; null: `epochs` decides"
    )
    batch_size: BatchSize = Field(
        default=4, description="rows per optimiser step, over all processes"
    )
    micro_batch_size: BatchSize | None = Field(
        default=None,
        description="rows per forward and backward pass and process; null: all of its share",
    )
    group_by_length: bool = Field(
        default=False, description="batch rows of similar length, which reduces padding"
    )
    weight_decay: Decay = Field(default=0.0, description="of AdamW")
    adam_beta1: float = Field(default=0.9, ge=0, lt=1, description="of AdamW")
    adam_beta2: float = Field(default=0.999, ge=0, lt=1, description="of AdamW")


class EvaluationConfig(StrictModel):
    """The keys of the section `evaluation` that all stages have."""

    every_steps: Count | None = Field(
        default=50, description="steps between evaluations on dev; null: a pass over the rows"
    )
    examples: Count | None = Field(
        default=None, description="use only the first rows of dev; null: all"
    )


class PolicyEvaluationConfig(EvaluationConfig):
    """Evaluation of RL and DPO."""

    metric: str = Field(
        default="rougeLsum",
        description="dev metric that picks the best checkpoint, higher is better",
    )


class SupervisedEvaluationConfig(EvaluationConfig):
    """Evaluation of SFT and reward models; each is followed by a checkpoint."""

    every_steps: Count | None = Field(
        default=None,
        description="steps between evaluations and checkpoints; null: a pass over the rows",
    )
    batch_size: BatchSize = Field(default=64, description="rows per forward pass")


# ---- logging and processes -----------------------------------------------------------------------


class LoggingConfig(StrictModel):
    """The section `logging`."""

    run_name: Name = Field(default="run", description="name in logs, progress and trackers")
    save_dir: FilePath = Field(description="folder of the run")
    report_to: list[Tracker] = Field(
        default=[], description="also log there: [wandb, tensorboard, trackio, mlflow]"
    )
    wandb_entity: str | None = Field(default=None, description="Weights & Biases: user or team")
    wandb_project: str = Field(default="fgrlhf", description="project of a tracker")
    callbacks: list[ClassPath] = Field(
        default=[],
        description=(
            "your classes with on_step, on_evaluate or on_save: docs/library.md; [my_package.Mine]"
        ),
    )
    log_interval: Count = Field(default=1, description="steps between lines of metrics.jsonl")
    n_samples: NonNegativeCount = Field(
        default=16, description="rollouts logged with their token rewards at each evaluation"
    )

    def trackers(self) -> dict[str, Any]:
        """The arguments of `RunLog` for the enabled trackers."""
        wandb = {"project": self.wandb_project, "entity": self.wandb_entity, "name": self.run_name}
        others = [name for name in self.report_to if name not in ("wandb", "tensorboard")]
        return {
            "wandb": wandb if "wandb" in self.report_to else None,
            "tensorboard": "tensorboard" in self.report_to,
            "others": dict.fromkeys(others, (self.wandb_project, self.run_name)),
            "callbacks": self.callbacks,
        }

    @field_validator("report_to", mode="before")
    @classmethod
    def _as_list(cls, value: Any) -> Any:
        """The published switch `wandb_log` is true or false; TRL's `report_to` may be one name."""
        if isinstance(value, bool):
            return ["wandb"] if value else []
        if isinstance(value, str):
            return [] if value == "none" else [value]
        return value

    def notes(self) -> list[str]:
        """Notes to print at the start: settings of a tracker that is off.

        A single switch turns a tracker off, so its settings are not an error.
        """
        keys = [] if "wandb" in self.report_to else ["wandb_entity"]
        if not set(self.report_to) - {"tensorboard"}:
            keys.append("wandb_project")
        mistakes = unread_keys(self, keys, "since logging.report_to has no tracker that reads it")
        return [f"note: logging.{key}: {text}" for key, text in mistakes]


class ParallelConfig(StrictModel):
    """The section `parallel`: how several processes hold the models."""

    strategy: Literal["ddp", "fsdp2"] = Field(
        default="ddp",
        description=(
            "with several processes. ddp: each holds whole models; fsdp2: each stores a part of the"
            " weights, gradients and optimiser state"
        ),
    )


class RunConfig(StrictModel):
    """Sections of the configs of RL, DPO, SFT and reward models."""

    model: ModelConfig
    train: TrainConfig
    evaluation: EvaluationConfig = EvaluationConfig()
    parallel: ParallelConfig = ParallelConfig()
    logging: LoggingConfig

    @model_validator(mode="after")
    def _sections_fit(self):
        refuse([("", text) for text in self.mistakes()])
        return self

    @property
    def reference(self) -> tuple[str, ReferenceConfig]:
        """The section of the reference, after its path."""
        return "", ReferenceConfig()

    def mistakes(self) -> list[str]:
        """Settings of different sections that do not fit: one message each."""
        found = self._dropout_mistakes()
        path, reference = self.reference
        if reference.sync_every is not None and self.model.lora is not None:
            found.append(
                f"{path}.sync_every: with model.lora the reference is the policy without its"
                " adapters, which cannot move: leave one of them out"
            )
        if self.parallel.strategy != "fsdp2":
            return found
        for setting, is_set in self.unsupported_by_fsdp2().items():
            if is_set:
                found.append(
                    f"parallel.strategy is fsdp2, which does not support {setting} yet: leave it"
                    " out, or set parallel.strategy=ddp"
                )
        return found

    def unsupported_by_fsdp2(self) -> Mapping[str, bool]:
        """Settings that fsdp2 does not support, and whether the config has them."""
        model = self.model
        path, reference = self.reference
        return {
            f"{path}.sync_every": reference.sync_every is not None,
            "model.lora.quantize": model.lora is not None and model.lora.quantize is not None,
            "model.train_top_layers": model.train_top_layers is not None,
            "train.optimizer=adamw_8bit": self.train.optimizer == "adamw_8bit",
        }

    def _dropout_mistakes(self) -> list[str]:
        lora, train = self.model.lora, self.train
        turns_dropout_off = isinstance(train, PolicyTrainConfig) and not train.dropout
        if lora is None or not lora.dropout or not turns_dropout_off:
            return []
        return [
            f"model.lora.dropout is {lora.dropout}, but train.dropout is false, which turns all"
            " dropout off: set train.dropout=true, or leave lora.dropout out"
        ]
