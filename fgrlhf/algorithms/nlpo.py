"""NLPO (Ramamurthy et al. 2023, arXiv 2210.01241): PPO restricted to plausible tokens.

A mask policy, a copy of the policy that is refreshed every N rollout steps, selects the plausible
tokens: in each state s it allows a set A(s), its top-p or top-k tokens, and the policy becomes

    pi^A(a | s) = pi(a | s) 1[a in A(s)] / sum_{b in A(s)} pi(b | s)

both in sampling and in the update. `MaskedPolicy` implements this distribution as a `Policy`, so
sampling, log-probabilities, entropy and PPO's loss work on it unchanged.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from fgrlhf.algorithms.config import ClippedRatioConfig, RunSettings
from fgrlhf.algorithms.ppo import PPO
from fgrlhf.configs.strict import Count
from fgrlhf.types import Rollout

if TYPE_CHECKING:
    from fgrlhf.masked_policy import MaskedPolicy
    from fgrlhf.models.base import Policy


class NLPOConfig(ClippedRatioConfig):
    """PPO restricted to plausible tokens."""

    name: Literal["nlpo"] = "nlpo"
    top_p: float | None = Field(
        default=0.9,
        gt=0,
        le=1,
        description="allow the mask policy's smallest set of tokens with this probability",
    )
    top_k: Count | None = Field(
        default=None, description="allow the mask policy's k most probable tokens"
    )
    sync_every: Count = Field(
        default=10, description="rollout steps between updates of the mask policy"
    )

    @model_validator(mode="after")
    def _one_kind_of_mask(self):
        if (self.top_p is None) == (self.top_k is None):
            given = "both null" if self.top_p is None else "both given"
            raise ValueError(
                f"top_p and top_k are {given}, but nlpo's mask needs exactly one of them: set"
                " algorithm.top_p=0.9, or algorithm.top_k=50 with algorithm.top_p=null, or use ppo"
            )
        return self

    def mistakes(self, run: RunSettings) -> list[str]:
        if run.num_beams == 1:
            return []
        return [
            "model.train_generation_kwargs.num_beams is more than 1, but `nlpo`"
            " masks tokens as they are sampled: set num_beams=1 and do_sample=true, or use"
            " algorithm.name=ppo"
        ]


class NLPO(PPO):
    """PPO's advantages and losses; the policy that is sampled and trained is masked.

    The mask policy is part of the trained module, so checkpoints hold it. Evaluation and the saved
    model use the policy without the mask.
    """

    config_class = NLPOConfig
    config: NLPOConfig
    masked: "MaskedPolicy"

    def training_policy(self, policy: "Policy") -> "Policy":
        # imported here: with transformers it takes seconds, and only a training run needs it
        from fgrlhf.masked_policy import MaskedPolicy

        self.masked = MaskedPolicy(policy, self.config.top_p, self.config.top_k)
        return self.masked

    def before_rollout(self, step: int) -> None:
        """Refresh the mask policy every `sync_every` steps."""
        if step % self.config.sync_every == 0:
            self.masked.sync()

    def after_rollout(self, rollout: Rollout, temperature: float, num_samples: int) -> Rollout:
        """The rollout with the KL of the policy without the mask, as in the authors' code.

        The KL of a rollout is logprobs_BT - ref_logprobs_BT. Under the mask, every token would add
        -log of the probability of the allowed set, however close the policy is to the reference.
        (In the other algorithms, truncation is not part of the KL either; see deviation D5.) So the
        reference's log-probabilities are shifted by the same amount:

            log pi^A - ref' = log pi - ref    for    ref' = log pi^A - (log pi - ref)
        """

        unmasked_BT = self.masked.unmasked_logprobs(rollout, temperature, num_samples)
        kl_BT = unmasked_BT - rollout.ref_logprobs_BT
        return replace(rollout, ref_logprobs_BT=rollout.logprobs_BT - kl_BT)
