"""On-policy distillation (GKD, Agarwal et al. 2023, arXiv 2306.13649).

The policy samples, and at each token of its responses its distribution over the vocabulary follows
that of a teacher:

    L_t = D(p_T(. | x, y_<t), p(. | x, y_<t)),    D = forward KL, reverse KL or JSD(beta)

No gradient flows through the sampling or the teacher. The rewards are logged and not used.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fgrlhf.algorithms.config import DistillConfig, DivergenceConfig
from fgrlhf.algorithms.kl import token_divergence
from fgrlhf.algorithms.metrics import policy_metrics
from fgrlhf.algorithms.protocol import Algorithm
from fgrlhf.base.errors import UserError
from fgrlhf.text_types import Prompt
from fgrlhf.types import Advantages, Divergence, PolicyOutput, Rollout, TokenLoss, TokenReward

if TYPE_CHECKING:
    from fgrlhf.configs.sections import PolicyConfig
    from fgrlhf.models.base import Policy

BLOCK = 1024  # tokens whose logits over the vocabulary exist at the same time


def divergence_of_states(
    project: Callable[[Tensor], Tensor],
    hidden_ND: Tensor,
    teacher_project: Callable[[Tensor], Tensor],
    teacher_hidden_NE: Tensor,
    beta: float,
    temperature: float,
    block: int = BLOCK,
) -> Tensor:
    """`token_divergence` of N tokens from the hidden states of policy and teacher (width E).

    Only `block` tokens at a time have logits, and those are computed again for the gradient. The
    output layers of two models with the same tokens may have different numbers of unused ids at
    their ends, so both distributions are those over the ids that both have.
    """
    # here, since it imports transformers, which takes seconds, and only a training run needs it
    from fgrlhf.models.logprobs import scaled_logits

    def of_block(hidden_ND: Tensor, teacher_hidden_NE: Tensor) -> Tensor:
        student_NV = scaled_logits(project, hidden_ND, temperature, None)
        with torch.no_grad():
            teacher_NV = scaled_logits(teacher_project, teacher_hidden_NE, temperature, None)
        V = min(student_NV.shape[1], teacher_NV.shape[1])
        return token_divergence(student_NV[:, :V], teacher_NV[:, :V], beta)

    if len(hidden_ND) <= block:
        return of_block(hidden_ND, teacher_hidden_NE)
    blocks = zip(hidden_ND.split(block), teacher_hidden_NE.split(block))
    return torch.cat([checkpoint(of_block, *states, use_reentrant=False) for states in blocks])


class FollowsTeacher(Algorithm):
    """The loss is the divergence from a teacher, on each rollout once, as its policy drew it."""

    needs_values = False
    reuses_rollouts = False
    supports_fsdp2 = True
    config: DivergenceConfig

    @abstractmethod
    def teacher(self, policy: "Policy", old: Rollout) -> "tuple[Policy, Tensor, Tensor]":
        """(teacher, prompt_ids_BP, prompt_mask_BP): what it reads before each response."""

    def advantages(
        self, rollout: Rollout, penalized_BT: Tensor, rewards: TokenReward
    ) -> Advantages:
        """The weight of each token's divergence."""
        return Advantages(rollout.response_mask_BT.to(penalized_BT.dtype))

    def divergence(self, policy: "Policy", old: Rollout, temperature: float) -> Divergence:
        teacher, prompt_ids_BP, prompt_mask_BP = self.teacher(policy, old)
        was_training = teacher.training
        teacher.eval()
        hidden_BTD = teacher.states(
            prompt_ids_BP,
            prompt_mask_BP,
            old.response_ids_BT,
            old.response_mask_BT,
            old.conversation_BL,
        )
        teacher.train(was_training)
        teacher_hidden_NE = hidden_BTD[old.response_mask_BT.bool()]
        beta = self.config.beta
        return lambda project, hidden_ND: divergence_of_states(
            project, hidden_ND, teacher.project, teacher_hidden_NE, beta, temperature
        )

    def loss(self, new: PolicyOutput, old: Rollout, advantages: Advantages) -> TokenLoss:
        assert new.divergence_BT is not None  # since `divergence` gives it
        loss_BT = advantages.advantages_BT * new.divergence_BT
        metrics = policy_metrics(new, old, loss_BT)
        return TokenLoss(loss_BT, metrics)


class Distill(FollowsTeacher):
    """The teacher is a policy with the same tokens, of any size."""

    config_class = DistillConfig
    config: DistillConfig

    def begin(self, policy: "Policy", prompts: Sequence[Prompt], model: "PolicyConfig") -> None:
        """Load the teacher.

        Raises:
          UserError: it cannot be loaded, or has other tokens.
        """
        from fgrlhf.policy import whole_policy  # with transformers, as above

        teacher = whole_policy(model, self.config.teacher)
        if teacher.tokenizer.get_vocab() != policy.tokenizer.get_vocab():
            raise UserError(
                f"algorithm.teacher={self.config.teacher} has another vocabulary than the policy"
                f" {model.ckpt}, so its distribution over tokens says nothing about the policy's:"
                " choose a teacher with the same tokenizer, or let it write answers and use them in"
                " `fgrlhf sft`"
            )
        self._teacher = teacher.to(policy.device).requires_grad_(False)

    def teacher(self, policy: "Policy", old: Rollout) -> "tuple[Policy, Tensor, Tensor]":
        return self._teacher, *self._teacher.encode(old.prompts)
