"""The critic: V(s_t), an MLP on the hidden state from which response token t is predicted."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from fgrlhf.configs.sections import Sampling
from fgrlhf.models.base import Policy
from fgrlhf.types import PolicyOutput


class ValueHead(nn.Module):
    """V = W_2 gelu(W_1 h + b_1) + b_2.

    W_2 and b_2 start at zero, so an untrained critic predicts 0 and adds no noise. With several
    outputs, W_2 has a row for each of them.
    """

    def __init__(self, hidden_size: int, outputs: int = 1):
        super().__init__()
        inner = nn.Linear(hidden_size, hidden_size)
        outer = nn.Linear(hidden_size, outputs)
        nn.init.zeros_(outer.weight)
        nn.init.zeros_(outer.bias)
        self.layers = nn.Sequential(inner, nn.GELU(), outer)

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """hidden_BTD -> values_BTA, in the precision of the weights, also under autocast."""
        dtype = next(self.parameters()).dtype
        with torch.autocast(hidden_BTD.device.type, enabled=False):
            return self.layers(hidden_BTD.to(dtype)).float()


class Value(nn.Module):
    """A critic in one of three modes.

    - own trunk: `trunk` is a second language model, trained together with the head;
    - frozen trunk: the same, but only the head is trained;
    - shared trunk: `trunk` is None, and the head reads the policy's hidden states. Its loss trains
      the policy's weights too.

    The trunk may be of any policy class, so the critic works for encoder-decoders and decoders.

    Args:
      hidden_size: width of the hidden states that the head reads.
      trunk: the critic's own language model; None: share the policy's.
      freezes_trunk: train only the head.
      aspects: names of the rewards of which each has an output; None: one output, their sum.
    """

    def __init__(
        self,
        hidden_size: int,
        trunk: Policy | None = None,
        freezes_trunk: bool = False,
        aspects: Sequence[str] | None = None,
    ):
        super().__init__()
        self.trunk = trunk
        self.freezes_trunk = freezes_trunk
        self.aspects = None if aspects is None else tuple(aspects)
        self.head = ValueHead(hidden_size, 1 if self.aspects is None else len(self.aspects))
        if trunk is not None:
            if freezes_trunk:
                trunk.requires_grad_(False)
            # A critic predicts no tokens, so its output layer is not trained unless it is tied to
            # the input embeddings. Compare the weights: `tie_word_embeddings` of the config is not
            # reliable (it is wrong for Flan-T5).
            output = trunk.model.get_output_embeddings()
            assert output is not None, "a language model has an output layer"
            if output.weight is not trunk.model.get_input_embeddings().weight:
                output.requires_grad_(False)

    def forward(
        self,
        prompt_ids_BP: Tensor,
        prompt_mask_BP: Tensor,
        response_ids_BT: Tensor,
        response_mask_BT: Tensor,
        policy_hidden_BTD: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """values_BT and, if every aspect has an output, values_BTA, of which it is the sum.

        They are 0 on padding. `policy_hidden_BTD` is read only with a shared trunk.
        """
        if self.trunk is None:
            assert policy_hidden_BTD is not None, "a critic on the policy's trunk needs its states"
            hidden_BTD = policy_hidden_BTD
        else:
            with torch.set_grad_enabled(torch.is_grad_enabled() and not self.freezes_trunk):
                hidden_BTD = self.trunk.hidden(
                    prompt_ids_BP, prompt_mask_BP, response_ids_BT, response_mask_BT
                )
        values_BTA = self.head(hidden_BTD) * response_mask_BT.float()[..., None]
        if self.aspects is None:
            return values_BTA[..., 0], None
        return values_BTA.sum(-1), values_BTA


T5Value = Value  # the paper's name


class ActorCritic(nn.Module):
    """Policy and critic as one module, so that one wrapper (DDP) and one optimiser hold both."""

    def __init__(self, policy: Policy, value: Value | None):
        super().__init__()
        self.policy = policy
        self.value = value

    def forward(
        self,
        prompt_ids_BP: Tensor,
        prompt_mask_BP: Tensor,
        response_ids_BT: Tensor,
        response_mask_BT: Tensor,
        support_BTW: Tensor | None = None,
        temperature: float = 1.0,
        entropy_gradient: bool = False,
        truncation: Sampling | None = None,
    ) -> PolicyOutput:
        """Log-probabilities, entropies and (with a critic) values of given responses.

        Arguments as in `Policy.forward`.
        """
        batch = (prompt_ids_BP, prompt_mask_BP, response_ids_BT, response_mask_BT)
        output, hidden_BTD = self.policy(
            *batch,
            support_BTW,
            temperature=temperature,
            entropy_gradient=entropy_gradient,
            truncation=truncation,
        )
        if self.value is None:
            return output
        values_BT, values_BTA = self.value(*batch, policy_hidden_BTD=hidden_BTD)
        return replace(output, values_BT=values_BT, values_BTA=values_BTA)
