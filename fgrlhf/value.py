"""The critic: V(s_t), an MLP on the hidden state from which response token t is predicted."""

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from fgrlhf.base.errors import UserError
from fgrlhf.models.base import Policy
from fgrlhf.models.decoding import Sampling
from fgrlhf.models.lora import has_adapters
from fgrlhf.policy import load_policy
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
        """hidden_BTD -> values_BT in fp32."""
        dtype = next(self.parameters()).dtype
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


def load_value(
    ckpt: str | Path | None,
    policy: Policy,
    freeze: bool = False,
    share: bool = False,
    dtype: str = "fp32",
    top_layers: int | None = None,
    same_ckpt: bool = False,
    empty: bool = False,
) -> Value:
    """Load the critic that a config describes.

    Args:
      ckpt: folder or hub name of the trunk; ignored with `share`.
      policy: the policy, whose token ids the trunk must be able to read.
      freeze: train only the head.
      share: use the policy's trunk.
      dtype: of the trunk's weights.
      top_layers: train only these top layers of the trunk; None: all of it.
      same_ckpt: whether the policy was loaded from `ckpt` too. If it trains as many top layers, the
        trunk shares its frozen ones.
      empty: do not read the trunk's weights, as in `load_policy`.

    Raises:
      UserError: the trunk cannot be loaded, or cannot read the policy's token ids.
    """
    if share:
        return Value(policy.hidden_size)
    if ckpt is None:
        raise ValueError("a critic needs a checkpoint, or the policy's trunk")
    has_same_frozen = (
        policy.frozen_layers is not None and policy.frozen_layers.n_trained == top_layers
    )
    if same_ckpt and has_same_frozen and not has_adapters(policy):
        return Value(policy.hidden_size, policy.copy_sharing_frozen(), freeze)
    # no chat template: the trunk reads the policy's token ids
    trunk = load_policy(
        ckpt,
        dtype,
        policy.max_input_len,
        chat_template=False,
        empty=empty,
        top_layers=top_layers,
        decoder_prefix=policy.decoder_prefix,
    )
    same_class = type(trunk) is type(policy)
    same_vocabulary = trunk.tokenizer.get_vocab() == policy.tokenizer.get_vocab()
    reads_all_ids = trunk.num_embeddings >= policy.num_embeddings
    if not (same_class and same_vocabulary and reads_all_ids):
        raise UserError(
            f"the value model `{ckpt}` ({type(trunk).__name__}, {trunk.num_embeddings}"
            f" embeddings) cannot read the policy's tokens ({type(policy).__name__},"
            f" {policy.num_embeddings} embeddings): their vocabularies differ. Use a trunk of the"
            " policy's family, or set model.value_model.policy_value_sharing=true"
        )
    return Value(trunk.hidden_size, trunk, freeze)


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
            temperature=temperature,
            entropy_gradient=entropy_gradient,
            truncation=truncation,
        )
        values_BT = None
        if self.value is not None:
            values_BT = self.value(*batch, policy_hidden_BTD=hidden_BTD)
        return replace(output, values_BT=values_BT)
