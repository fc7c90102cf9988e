"""The critic: V(s_t), an MLP on the hidden state from which response token t is predicted."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from fgrlhf.configs.sections import Sampling
from fgrlhf.models.base import Policy
from fgrlhf.types import PolicyOutput


class ValueHead(nn.Module):
    """V = W_2 gelu(W_1 h + b_1) + b_2.

    W_2 and b_2 start at zero, so an untrained critic predicts 0 and adds no noise.
    """

    def __init__(self, hidden_size: int):
        super().__init__()
        inner = nn.Linear(hidden_size, hidden_size)
        outer = nn.Linear(hidden_size, 1)
        nn.init.zeros_(outer.weight)
        nn.init.zeros_(outer.bias)
        self.layers = nn.Sequential(inner, nn.GELU(), outer)

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """hidden_BTD -> values_BT, in the precision of the weights, also under autocast."""
        dtype = next(self.parameters()).dtype
        with torch.autocast(hidden_BTD.device.type, enabled=False):
            return self.layers(hidden_BTD.to(dtype))[..., 0].float()


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
    """

    def __init__(self, hidden_size: int, trunk: Policy | None = None, freezes_trunk: bool = False):
        super().__init__()
        self.trunk = trunk
        self.freezes_trunk = freezes_trunk
        self.head = ValueHead(hidden_size)
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
    ) -> Tensor:
        """values_BT, 0 on padding. `policy_hidden_BTD` is read only with a shared trunk."""
        if self.trunk is None:
            assert policy_hidden_BTD is not None, "a critic on the policy's trunk needs its states"
            hidden_BTD = policy_hidden_BTD
        else:
            with torch.set_grad_enabled(torch.is_grad_enabled() and not self.freezes_trunk):
                hidden_BTD = self.trunk.hidden(
                    prompt_ids_BP, prompt_mask_BP, response_ids_BT, response_mask_BT
                )
        return self.head(hidden_BTD) * response_mask_BT.float()


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
        values_BT = None
        if self.value is not None:
            values_BT = self.value(*batch, policy_hidden_BTD=hidden_BTD)
        return replace(output, values_BT=values_BT)
