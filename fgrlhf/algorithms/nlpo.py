"""NLPO (Ramamurthy et al. 2023, arXiv 2210.01241): PPO among the tokens that a mask policy thinks
plausible.

The mask policy is a copy of the policy, made anew every N rollout steps. At each token it allows a
set A(s), its top-p or top-k tokens, and the policy is

    pi^A(a | s) = pi(a | s) 1[a in A(s)] / sum_{b in A(s)} pi(b | s)

in sampling and in the update alike. `MaskedPolicy` is that distribution as a policy like any other,
so that sampling, log-probabilities, entropy and PPO's loss need to know nothing of it.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from fgrlhf.policy import Policy
from fgrlhf.ppo import PPO
from fgrlhf.rollout import in_parts
from fgrlhf.trainer import OnPolicyTrainer
from fgrlhf.types import Prompt, Rollout

EXCLUDED = (
    -1e9
)  # a logit that has no probability; an infinite one would make 0 * inf of the entropy


def allowed_tokens(logits_NV: Tensor, top_p: float | None, top_k: int | None) -> Tensor:
    """allowed_NV: the smallest set of most probable tokens whose probability reaches `top_p`, or
    the `top_k` first.
    """
    if top_k is not None:
        chosen_NK = logits_NV.topk(min(top_k, logits_NV.shape[-1]), -1).indices
        return torch.zeros_like(logits_NV, dtype=torch.bool).scatter_(-1, chosen_NK, True)
    sorted_NV, order_NV = torch.softmax(logits_NV.float(), -1).sort(-1, descending=True)
    kept_NV = sorted_NV.cumsum(-1) - sorted_NV < top_p
    return torch.zeros_like(kept_NV).scatter_(-1, order_NV, kept_NV)


class MaskedSteps:
    """Hidden states of policy and mask policy, step by step, side by side (see decoding.py)."""

    def __init__(self, own, mask):
        self.both = (own, mask)

    def _join(self, own_BD: Tensor, mask_BD: Tensor) -> Tensor:
        return torch.cat(
            [own_BD, mask_BD, own_BD.new_full((len(own_BD), 1), -1)], -1
        )  # no token is given yet

    def first(self) -> Tensor:
        return self._join(*(steps.first() for steps in self.both))

    def next(self, ids_B: Tensor) -> Tensor:
        return self._join(*(steps.next(ids_B) for steps in self.both))

    def keepable(self, live_B: Tensor) -> Tensor:
        return self.both[0].keepable(live_B)

    def keep(self, rows: Tensor) -> None:
        for steps in self.both:
            steps.keep(rows)


class MaskedPolicy(Policy):
    """`base` restricted to the tokens that `mask`, a frozen copy, allows.

    A hidden state is [base's, mask's, the token given]: what `project` needs for a row of masked
    logits. A given token is always allowed: it was drawn under this mask, and may miss its edge by
    a rounding when all tokens are read at once.
    """

    def __init__(self, base: Policy, top_p: float | None, top_k: int | None):
        nn.Module.__init__(self)
        self.base, self.mask = base, copy.deepcopy(base).requires_grad_(False).eval()
        self.tokenizer, self.max_input_len = base.tokenizer, base.max_input_len
        self.top_p, self.top_k = top_p, top_k

    @property
    def model(self) -> nn.Module:
        return self.base.model

    @property
    def eos_ids(self) -> list[int]:
        return self.base.eos_ids

    @property
    def end_id(self) -> int:
        return self.base.end_id

    def encode(self, texts):
        return self.base.encode(texts)

    def train(self, mode: bool = True):
        super().train(mode)
        self.mask.eval()
        return self

    def sync(self) -> None:
        """The mask policy becomes what the policy is now."""
        self.mask.load_state_dict(self.base.state_dict())

    def forward(self, *args, **kwargs):
        output, hidden_BTD = super().forward(*args, **kwargs)
        return output, hidden_BTD[..., : self.hidden_size]  # for a critic on the policy's trunk

    def hidden(self, prompt_ids_BP, prompt_mask_BP, response_ids_BT, response_mask_BT):
        batch = (prompt_ids_BP, prompt_mask_BP, response_ids_BT, response_mask_BT)
        with torch.no_grad():
            mask_BTD = self.mask.hidden(*batch)
        own_BTD = self.base.hidden(*batch)
        return torch.cat([own_BTD, mask_BTD, response_ids_BT[..., None].float()], -1)

    def project(self, hidden):
        D = self.hidden_size
        own, mask, given = hidden.split([D, D, 1], -1)
        logits = self.base.project(own)
        if self.top_p == 1:
            return logits
        with torch.no_grad():
            allowed = allowed_tokens(self.mask.project(mask), self.top_p, self.top_k)
            ids = given.long().clamp(min=0)
            allowed.scatter_(-1, ids, allowed.gather(-1, ids) | (given >= 0))
        return logits.masked_fill(~allowed, EXCLUDED)

    def _steps(self, prompt_ids_GP, prompt_mask_GP, num_samples):
        return MaskedSteps(
            *(p._steps(prompt_ids_GP, prompt_mask_GP, num_samples) for p in (self.base, self.mask))
        )

    def _check_fits(self, prompt_ids_GP, sampling):
        self.base._check_fits(prompt_ids_GP, sampling)


class NLPO(PPO):
    """PPO's advantages and losses; the mask is in the policy."""


class NLPOTrainer(OnPolicyTrainer):
    """The loop with a masked policy. The mask policy is part of the actor-critic, so checkpoints
    hold it.
    """

    def __init__(self, config, algorithm, actor_critic, *args, **kwargs):
        actor_critic.policy = MaskedPolicy(
            actor_critic.policy, config.algorithm.top_p, config.algorithm.top_k
        )
        super().__init__(config, algorithm, actor_critic, *args, **kwargs)

    @property
    def policy(self) -> Policy:
        """The bare policy: a folder of transformers has no mask."""
        return self.actor_critic.policy.base

    def sample(self, prompts: Sequence[Prompt], first: int) -> Rollout:
        """Masked rollouts. Their KL is that of the bare policy, log pi - log pi_ref, as in the
        authors' code.

        Truncation is no part of the KL elsewhere either (deviation D5): log pi^A - log pi_ref would
        hold -log of the mass that the mask leaves, on every token, however close the policy is to
        the reference.
        """
        masked = self.actor_critic.policy
        if self.step % self.config.algorithm.sync_every == 0:
            masked.sync()
        rollout = super().sample(prompts, first)
        batch = (
            rollout.prompt_ids_BP,
            rollout.prompt_mask_BP,
            rollout.response_ids_BT,
            rollout.response_mask_BT,
        )

        def bare(*part: Tensor) -> list[Tensor]:
            return [masked.base(*part, temperature=self.config.logprob_temperature)[0].logprobs_BT]

        with torch.no_grad(), self._precision():
            (bare_BT,) = in_parts(bare, batch, self.config.env.train_num_samples_per_input)
        return replace(
            rollout, ref_logprobs_BT=rollout.logprobs_BT - (bare_BT - rollout.ref_logprobs_BT)
        )
