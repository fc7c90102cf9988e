"""NLPO (Ramamurthy et al. 2023, arXiv 2210.01241): PPO restricted to plausible tokens.

A mask policy, a copy of the policy that is refreshed every N rollout steps, selects the plausible
tokens: in each state s it allows a set A(s), its top-p or top-k tokens, and the policy becomes

    pi^A(a | s) = pi(a | s) 1[a in A(s)] / sum_{b in A(s)} pi(b | s)

both in sampling and in the update. `MaskedPolicy` implements this distribution as a `Policy`, so
sampling, log-probabilities, entropy and PPO's loss work on it unchanged.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from fgrlhf.algorithms.config import NLPOConfig
from fgrlhf.algorithms.ppo import PPO
from fgrlhf.types import Rollout

if TYPE_CHECKING:
    from fgrlhf.masked_policy import MaskedPolicy
    from fgrlhf.models.base import Policy


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
        (In other algorithms, truncation adds nothing to the KL either: deviation D5.) So the
        reference's log-probabilities are shifted by the same amount:

            log pi^A - ref' = log pi - ref    for    ref' = log pi^A - (log pi - ref)
        """

        unmasked_BT = self.masked.unmasked_logprobs(rollout, temperature, num_samples)
        kl_BT = unmasked_BT - rollout.ref_logprobs_BT
        return replace(rollout, ref_logprobs_BT=rollout.logprobs_BT - kl_BT)
