"""The critic: V(s_t), an MLP on the hidden state from which the policy predicts response token
t.
"""

from pathlib import Path

import torch
from torch import Tensor, nn

from fgrlhf.errors import UserError
from fgrlhf.policy import Policy, load_policy
from fgrlhf.types import PolicyOutput


class ValueHead(nn.Module):
    """V = W_2 gelu(W_1 h): two layers. W_2 starts at zero, so an untrained critic says 0 and adds
    no noise.
    """

    def __init__(self, hidden_size: int):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(hidden_size, hidden_size), nn.GELU(), nn.Linear(hidden_size, 1)
        )
        nn.init.zeros_(self.layers[-1].weight)
        nn.init.zeros_(self.layers[-1].bias)

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """hidden_BTD -> values_BT in fp32."""
        return self.layers(hidden_BTD.to(self.layers[0].weight.dtype))[..., 0].float()


class Value(nn.Module):
    """A critic in one of three modes.

      own trunk      `trunk` is a second language model, trained with the head
      frozen trunk   the same, only the head is trained
      shared         `trunk` is None: the head reads the policy's own hidden states and trains them
      too

    The trunk may be any policy class, so the same critic serves encoder-decoders and decoders.
    """

    def __init__(self, hidden_size: int, trunk: Policy | None = None, frozen: bool = False):
        super().__init__()
        self.trunk, self.frozen, self.head = trunk, frozen, ValueHead(hidden_size)
        if trunk is not None:
            trunk.requires_grad_(not frozen)
            output = trunk.model.get_output_embeddings()
            if (
                output.weight is not trunk.model.get_input_embeddings().weight
            ):  # the config of a Flan says that they are tied
                output.requires_grad_(False)  # a critic has no next-token loss

    def forward(
        self,
        prompt_ids_BP: Tensor,
        prompt_mask_BP: Tensor,
        response_ids_BT: Tensor,
        response_mask_BT: Tensor,
        policy_hidden_BTD: Tensor,
    ) -> Tensor:
        """values_BT, 0 on padding. `policy_hidden_BTD` is read only in shared mode."""
        hidden_BTD = policy_hidden_BTD
        if self.trunk is not None:
            with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
                hidden_BTD = self.trunk.hidden(
                    prompt_ids_BP, prompt_mask_BP, response_ids_BT, response_mask_BT
                )
        return self.head(hidden_BTD) * response_mask_BT.float()


T5Value = Value  # the paper's name for it


def load_value(
    ckpt: str | Path | None,
    policy: Policy,
    freeze: bool = False,
    share: bool = False,
    dtype: str = "fp32",
) -> Value:
    """The critic a config asks for. Raises `UserError` where the trunk cannot read the policy's
    token ids.
    """
    if share:
        return Value(policy.hidden_size)
    trunk = load_policy(
        ckpt, dtype, policy.max_input_len, chat_template=False
    )  # it is given the policy's token ids
    ids, trunk_ids = (p.model.get_input_embeddings().num_embeddings for p in (policy, trunk))
    if (
        trunk_ids < ids
        or type(trunk) is not type(policy)
        or trunk.tokenizer.get_vocab() != policy.tokenizer.get_vocab()
    ):
        raise UserError(
            f"the value model `{ckpt}` ({type(trunk).__name__}, {trunk_ids} embeddings) cannot read"
            f" the policy's tokens ({type(policy).__name__}, {ids} embeddings): their vocabularies"
            " differ. Take a trunk of the policy's family, or set"
            " model.value_model.policy_value_sharing=true"
        )
    return Value(trunk.hidden_size, trunk, freeze)


class ActorCritic(nn.Module):
    """Policy and critic as one module, so that one wrapper (DDP) and one optimiser hold both."""

    def __init__(self, policy: Policy, value: Value | None):
        super().__init__()
        self.policy, self.value = policy, value

    def forward(
        self,
        prompt_ids_BP: Tensor,
        prompt_mask_BP: Tensor,
        response_ids_BT: Tensor,
        response_mask_BT: Tensor,
        temperature: float = 1.0,
        entropy_gradient: bool = False,
    ) -> PolicyOutput:
        """Log-probabilities, entropies and (with a critic) values of given responses."""
        batch = (prompt_ids_BP, prompt_mask_BP, response_ids_BT, response_mask_BT)
        output, hidden_BTD = self.policy(
            *batch, temperature=temperature, entropy_gradient=entropy_gradient
        )
        values_BT = None if self.value is None else self.value(*batch, policy_hidden_BTD=hidden_BTD)
        return PolicyOutput(output.logprobs_BT, values_BT, output.entropy_BT)
