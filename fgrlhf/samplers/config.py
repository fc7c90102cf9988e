"""The section `sampler:` of an RL run: where responses are sampled."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from fgrlhf.configs.strict import FilePath, Positive, StrictModel, any_kind, refuse
from fgrlhf.scorers.service import ServiceSettings


class LocalSamplerConfig(StrictModel):
    """The policy samples in the run's own processes."""

    kind: Literal["local"] = "local"


class VllmSamplerConfig(ServiceSettings):
    """A vLLM server samples; for decoder-only policies: docs/scale.md."""

    may_change = (
        *ServiceSettings.may_change,
        "url",
        "parallel",
        "sync_dir",
        "max_gap",
    )

    kind: Literal["vllm"] = "vllm"
    sync_dir: FilePath = Field(
        description="folder that the server serves; the policy is written there before each rollout"
    )
    parallel: Annotated[int, Field(ge=1, le=1024)] = Field(
        default=64, description="requests at the same time, one per response"
    )
    max_gap: Positive | None = Field(
        default=0.1,
        description=(
            "stop if the sampler's log-probabilities differ from recomputed ones by more than this"
            " (mean over tokens, in nats); null: never. With one_step_behind they differ by the"
            " last update too"
        ),
    )
    importance_cap: Annotated[float, Field(ge=1, le=1e6)] | None = Field(
        default=None,
        description=(
            "weight the policy loss per token with min(recomputed / sampler's probability, cap);"
            " null: no weights"
        ),
    )
    one_step_behind: bool = Field(
        default=False,
        description=(
            "sample the next step's responses while this step trains, from the weights before its"
            " update; needs importance_cap"
        ),
    )

    @model_validator(mode="after")
    def _lag_is_corrected(self):
        if self.one_step_behind and self.importance_cap is None:
            refuse(
                [
                    (
                        "importance_cap",
                        "it is null, but with one_step_behind the responses come from the policy"
                        " before the last update: without weights the gradient would be biased and"
                        " nothing would show it. Set it, for example to 2.0",
                    )
                ]
            )
        return self


if TYPE_CHECKING:
    AnySampler = LocalSamplerConfig | VllmSamplerConfig
else:
    AnySampler = any_kind((LocalSamplerConfig, VllmSamplerConfig))
