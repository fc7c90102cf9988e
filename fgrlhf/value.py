"""The critic: V(s_t), an MLP on the hidden state from which response token t is predicted."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from fgrlhf.algorithms.config import CRITIC
from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.files import write_json
from fgrlhf.base.records import Record, read_record
from fgrlhf.configs.sections import Sampling
from fgrlhf.models.base import Policy
from fgrlhf.types import Divergence, PolicyOutput

CRITIC_FILE, HEAD_FILE = "critic.json", "head.safetensors"


class SavedCritic(Record):
    """The file `critic.json` of a saved critic.

    Attributes:
      trunk: own: the folder is also a model folder, the critic's trunk; policy: it has no trunk.
      hidden_size: width of the hidden states that the head reads.
      aspects: as in `Value`.
    """

    trunk: Literal["own", "policy"]
    hidden_size: int
    aspects: dict[str, float] | None


class ValueHead(nn.Module):
    """V = W_2 gelu(W_1 h + b_1) + b_2.

    W_2 and b_2 start at zero, so an untrained critic predicts 0 and adds no noise. With several
    outputs, W_2 has a row for each of them.
    """

    def __init__(self, hidden_size: int, outputs: int = 1):
        super().__init__()
        self.hidden_size = hidden_size
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
      aspects: the rewards of which each has an output, with the constant weights of the rewards
        whose returns they are (algorithms/actor_critic.py); None: one output, of their sum.
    """

    def __init__(
        self,
        hidden_size: int,
        trunk: Policy | None = None,
        freezes_trunk: bool = False,
        aspects: Mapping[str, float] | None = None,
    ):
        super().__init__()
        self.trunk = trunk
        self.freezes_trunk = freezes_trunk
        self.aspects = None if aspects is None else dict(aspects)
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
        conversation_BL: Tensor | None = None,
        *,
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
                hidden_BTD = self.trunk.states(
                    prompt_ids_BP,
                    prompt_mask_BP,
                    response_ids_BT,
                    response_mask_BT,
                    conversation_BL,
                )
        values_BTA = self.head(hidden_BTD) * response_mask_BT.float()[..., None]
        if self.aspects is None:
            return values_BTA[..., 0], None
        return values_BTA.sum(-1), values_BTA

    def save(
        self, folder: Path, head: Mapping[str, Tensor], trunk: dict[str, Tensor] | None = None
    ) -> None:
        """Write the critic as a folder that `model.value_model.ckpt` can name.

        Args:
          head: the whole tensors of the head.
          trunk: those of the trunk, if it is sharded.
        """
        folder.mkdir(parents=True, exist_ok=True)
        if self.trunk is not None:
            self.trunk.save(folder, trunk)
        tensors = {name: tensor.detach().contiguous() for name, tensor in head.items()}
        save_file(tensors, folder / HEAD_FILE)
        saved = SavedCritic(
            trunk="policy" if self.trunk is None else "own",
            hidden_size=self.head.hidden_size,
            aspects=self.aspects,
        )
        write_json(folder / CRITIC_FILE, saved.model_dump())

    def start_from(self, folder: Path, saved: SavedCritic) -> None:
        """Load the head of a saved critic whose outputs are those of this one.

        An output is multiplied by the ratio of the weight of its reward here to that of the saved
        critic, so that it stays the value of the reward.

        Raises:
          UserError: the head reads wider or narrower states, or its file is damaged.
        """
        size = self.head.hidden_size
        if saved.hidden_size != size:
            raise UserError(
                f"the critic `{shorten(folder)}` reads hidden states of the width"
                f" {saved.hidden_size}, but the policy's are {size} wide: start from the critic of"
                " a run with this policy"
            )
        try:
            tensors = load_file(folder / HEAD_FILE)
            if self.aspects is not None and saved.aspects is not None:
                names = list(saved.aspects)
                rows = [names.index(name) for name in self.aspects]
                scales = [weight / saved.aspects[name] for name, weight in self.aspects.items()]
                scales_A = torch.tensor(scales)
                weight, bias = (f"layers.2.{name}" for name in ("weight", "bias"))
                tensors[weight] = tensors[weight][rows] * scales_A[:, None]
                tensors[bias] = tensors[bias][rows] * scales_A
            self.head.load_state_dict(tensors)
        except (OSError, SafetensorError, RuntimeError, LookupError) as error:
            raise UserError(
                f"{shorten(folder / HEAD_FILE)} is missing or damaged ({shorten(error, 200)}): copy"
                " the whole folder of the critic again"
            ) from None


T5Value = Value  # the paper's name


def saved_critic(
    ckpt: str | Path, share: bool, aspects: Mapping[str, float] | None
) -> SavedCritic | None:
    """What the folder of a saved critic holds; None for an ordinary model.

    Args:
      share: whether the critic is to read the policy's hidden states.
      aspects: the outputs that it is to have.

    Raises:
      UserError: a saved critic is needed, or its trunk or its outputs are others.
    """
    name = f"the critic `{shorten(ckpt)}`"
    path = Path(ckpt) / CRITIC_FILE
    if not path.is_file():
        if share:
            raise UserError(
                f"{shorten(path)} is missing, but with policy_value_sharing=true the critic can"
                f" only start from one that a run has saved: name its folder RUN/best/{CRITIC}, or"
                " set model.value_model.ckpt=null"
            )
        return None
    saved = read_record(path, SavedCritic, "used as a critic", "Copy the critic's folder again.")
    if share != (saved.trunk == "policy"):
        trunk = "no trunk but the policy's" if saved.trunk == "policy" else "a trunk of its own"
        setting = f"model.value_model.policy_value_sharing={str(not share).lower()}"
        raise UserError(f"{name} has {trunk}: set {setting}")
    if (saved.aspects or {}).keys() != (aspects or {}).keys():
        raise UserError(
            f"{name} has {_outputs(saved.aspects)}, but this run's has {_outputs(aspects)}: change"
            " algorithm.critic or the rewards, or leave out model.value_model.ckpt"
        )
    return saved


def _outputs(aspects: Mapping[str, float] | None) -> str:
    if aspects is None:
        return "one output, of all rewards"
    return f"an output for each of {shorten(', '.join(aspects))}"


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
        conversation_BL: Tensor | None = None,
        temperature: float = 1.0,
        entropy_gradient: bool = False,
        truncation: Sampling | None = None,
        with_values: bool = True,
        divergence: Divergence | None = None,
        repetition_penalty: float = 1.0,
    ) -> PolicyOutput:
        """Log-probabilities, entropies and (with a critic) values of given responses.

        Args:
          with_values: false: without the critic. The other arguments are those of `Policy.forward`.
        """
        batch = (prompt_ids_BP, prompt_mask_BP, response_ids_BT, response_mask_BT)
        output, hidden_BTD = self.policy(
            *batch,
            support_BTW,
            conversation_BL,
            temperature=temperature,
            entropy_gradient=entropy_gradient,
            truncation=truncation,
            divergence=divergence,
            repetition_penalty=repetition_penalty,
        )
        if self.value is None or not with_values:
            return output
        values_BT, values_BTA = self.value(*batch, conversation_BL, policy_hidden_BTD=hidden_BTD)
        return replace(output, values_BT=values_BT, values_BTA=values_BTA)
