"""Settings of models, as they stand under `model` in YAML."""

from pydantic import Field

from fgrlhf.config import Count, Positive, StrictModel


class LoRAConfig(StrictModel):
    r: Count = Field(16, description="rank")
    alpha: Positive = Field(32.0, description="adapters count alpha / r times")
    dropout: float = Field(
        0.0, ge=0, lt=1, description="of what adapters read; needs train.dropout"
    )
    target_modules: list[str] | None = Field(
        None, description="names of linear layers; null: all but the output"
    )
