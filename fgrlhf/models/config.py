"""Settings of models: parts of the section `model` in YAML."""

from typing import Literal

from pydantic import Field

from fgrlhf.configs.strict import Count, Positive, StrictModel

ABOUT_DECODER_PREFIX = (
    "tokens, separated by spaces, that the decoder of an encoder-decoder reads before every"
    " response, such as NLLB's target language deu_Latn; null: those saved with the model"
)


ABOUT_CHECKPOINTING = "compute layers twice instead of storing activations: slower, less memory"


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

    def mistakes(self, key: str, dropout_is_on: bool) -> list[str]:
        """Mistakes of a config with these settings.

        Args:
          key: where the section is in the config, such as model.policy_model.lora.
          dropout_is_on: `train.dropout`.
        """
        if not self.dropout or dropout_is_on:
            return []
        return [
            f"{key}.dropout is {self.dropout}, but train.dropout is false, which turns all dropout"
            " off: set train.dropout=true, or leave lora.dropout out"
        ]


def is_quantized(lora: LoRAConfig | None) -> bool:
    """Whether the layers under the adapters are stored in fewer bits."""
    return lora is not None and lora.quantize is not None
