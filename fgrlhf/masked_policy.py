"""A policy restricted to plausible tokens, as NLPO (algorithms/nlpo.py) samples and trains it."""

import copy
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fgrlhf.configs.sections import Sampling
from fgrlhf.models.base import Policy
from fgrlhf.models.decoding import EXCLUDED
from fgrlhf.models.logprobs import BLOCK, chosen_logprobs
from fgrlhf.rollout import logprobs_of
from fgrlhf.types import Divergence, PolicyOutput, Rollout


def allowed_tokens(logits_NV: Tensor, top_p: float | None, top_k: int | None) -> Tensor:
    """allowed_NV, bool: the K = `top_k` most probable tokens of each row, or its top-p set.

    The top-p set is the smallest set of most probable tokens whose probability reaches `top_p`.
    """
    if top_k is not None:
        K = min(top_k, logits_NV.shape[-1])
        top_ids_NK = logits_NV.topk(K, -1).indices
        return torch.zeros_like(logits_NV, dtype=torch.bool).scatter_(-1, top_ids_NK, True)
    if top_p is None:
        raise ValueError("one of top_p and top_k is needed")
    probs_NV = torch.softmax(logits_NV.float(), -1)
    sorted_probs_NV, order_NV = probs_NV.sort(-1, descending=True)
    # A token belongs to the set if those more probable than it do not reach top_p without it.
    more_probable_NV = sorted_probs_NV.cumsum(-1) - sorted_probs_NV
    in_set_NV = more_probable_NV < top_p
    return torch.zeros_like(in_set_NV).scatter_(-1, order_NV, in_set_NV)


class MaskedPolicy(Policy):
    """`base` restricted to the tokens that `mask`, a frozen copy of it, allows.

    `project` needs the hidden states of both networks. They are one tensor of twice the width:
    those of `base`, then those of `mask`.

    Args:
      base: the policy that learns.
      top_p, top_k: the size of the mask; one of them is None (see `allowed_tokens`).
    """

    def __init__(self, base: Policy, top_p: float | None, top_k: int | None):
        nn.Module.__init__(self)  # not Policy.__init__: model and tokenizer are those of `base`
        self.base = base
        self.mask = copy.deepcopy(base).requires_grad_(False).eval()
        self.tokenizer, self.chat = base.tokenizer, base.chat
        self.max_input_len = base.max_input_len
        self.top_p = top_p
        self.top_k = top_k

    # ---- the base policy's properties ------------------------------------------------------------

    @property
    def model(self) -> nn.Module:
        return self.base.model

    @property
    def eos_ids(self) -> list[int]:
        return self.base.eos_ids

    @property
    def end_id(self) -> int:
        return self.base.end_id

    @property
    def lead(self) -> str:
        return self.base.lead

    def encode(self, prompts):
        return self.base.encode(prompts)

    def check_fits(self, prompt_tokens, response_tokens):
        self.base.check_fits(prompt_tokens, response_tokens)

    # ---- the mask --------------------------------------------------------------------------------

    def train(self, mode: bool = True):
        super().train(mode)
        self.mask.eval()
        return self

    def sync(self) -> None:
        """Make the mask policy a copy of the current policy."""
        self.mask.load_state_dict(self.base.state_dict())

    def _masked_logits(self, hidden: Tensor, given_ids: Tensor | None) -> Tensor:
        """The base's logits, `EXCLUDED` outside the mask; tokens in `given_ids` are allowed."""
        base_hidden, mask_hidden = hidden.split([self.hidden_size, self.hidden_size], -1)
        logits = self.base.project(base_hidden)
        if self.top_p == 1:
            return logits
        with torch.no_grad():
            allowed = allowed_tokens(self.mask.project(mask_hidden), self.top_p, self.top_k)
            if given_ids is not None:
                allowed.scatter_(-1, given_ids[:, None], True)
        return logits.masked_fill(~allowed, EXCLUDED)

    def project(self, hidden: Tensor) -> Tensor:
        """Hidden states of both networks -> masked logits (..., V), to sample from."""
        return self._masked_logits(hidden, None)

    def project_given(self, hidden_ND: Tensor, ids_N: Tensor) -> Tensor:
        """Masked logits_NV in which `ids_N`, sampled under this mask, are always allowed.

        When all tokens of a response are read at once, rounding can exclude a sampled token at the
        edge of the set.
        """
        return self._masked_logits(hidden_ND, ids_N)

    # ---- the policy ------------------------------------------------------------------------------

    def hidden(self, prompt_ids_BP, prompt_mask_BP, response_ids_BT, response_mask_BT):
        batch = (prompt_ids_BP, prompt_mask_BP, response_ids_BT, response_mask_BT)
        with torch.no_grad():
            mask_hidden_BTD = self.mask.hidden(*batch)
        base_hidden_BTD = self.base.hidden(*batch)
        return torch.cat([base_hidden_BTD, mask_hidden_BTD], -1)

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
        divergence: Divergence | None = None,
        repetition_penalty: float = 1.0,
    ) -> tuple[PolicyOutput, Tensor]:
        """`Policy.forward` under the mask. The hidden states it returns are those of `base`.

        Raises:
          ValueError: another mask or a penalty is given; or `truncation` or `divergence`, since no
            other program samples under a mask, and no teacher has one.
        """
        if support_BTW is not None or repetition_penalty != 1:
            raise ValueError("RLConfig refuses nlpo with another mask or a penalty")
        if truncation is not None or divergence is not None:
            raise ValueError("RLConfig refuses nlpo with a server, and no teacher is masked")
        hidden_BTD = self.states(
            prompt_ids_BP, prompt_mask_BP, response_ids_BT, response_mask_BT, conversation_BL
        )
        real_BT = response_mask_BT.bool()
        ids_N = response_ids_BT[real_BT]
        logprobs_N, entropy_N = self._chosen_logprobs(
            hidden_BTD[real_BT], ids_N, temperature, entropy_gradient
        )
        zeros_BT = torch.zeros(real_BT.shape, device=hidden_BTD.device)
        output = PolicyOutput(
            zeros_BT.masked_scatter(real_BT, logprobs_N),
            entropy_BT=zeros_BT.masked_scatter(real_BT, entropy_N),
        )
        return output, hidden_BTD[..., : self.hidden_size]

    @torch.no_grad()
    def unmasked_logprobs(self, rollout: Rollout, temperature: float, num_samples: int) -> Tensor:
        """Log-probabilities (B, T) of the rollout's tokens under `base`, without the mask."""
        batch = (
            rollout.prompt_ids_BP,
            rollout.prompt_mask_BP,
            rollout.response_ids_BT,
            rollout.response_mask_BT,
            None,
            rollout.conversation_BL,
        )
        return logprobs_of(self.base, batch, num_samples, temperature)

    def _chosen_logprobs(
        self, hidden_ND: Tensor, ids_N: Tensor, temperature: float, entropy_gradient: bool
    ) -> tuple[Tensor, Tensor]:
        """`chosen_logprobs` with a projection that also depends on the chosen tokens.

        Each block of tokens needs its own projection, so the blocks are formed here. As in
        `chosen_logprobs`, they are computed again in the backward pass if there are several.
        """
        compute = partial(
            chosen_logprobs, temperature=temperature, entropy_gradient=entropy_gradient
        )
        if len(ids_N) <= BLOCK:
            return compute(partial(self.project_given, ids_N=ids_N), hidden_ND, ids_N)
        logprobs = []
        entropies = []
        for block_hidden_ND, block_ids_N in zip(hidden_ND.split(BLOCK), ids_N.split(BLOCK)):
            project = partial(self.project_given, ids_N=block_ids_N)
            logprobs_N, entropy_N = checkpoint(
                compute, project, block_hidden_ND, block_ids_N, use_reentrant=False
            )
            logprobs.append(logprobs_N)
            entropies.append(entropy_N)
        return torch.cat(logprobs), torch.cat(entropies)

    def _steps(self, *arguments):
        return MaskedSteps(self.base._steps(*arguments), self.mask._steps(*arguments))


class MaskedSteps:
    """Decoding steps (models/decoding.py) of both networks, with concatenated hidden states."""

    def __init__(self, base, mask):
        self.base = base
        self.mask = mask

    def first(self) -> Tensor:
        return torch.cat([self.base.first(), self.mask.first()], -1)

    def next(self, ids_B: Tensor) -> Tensor:
        return torch.cat([self.base.next(ids_B), self.mask.next(ids_B)], -1)

    def keepable(self, live_B: Tensor) -> Tensor:
        return self.base.keepable(live_B)

    def keep(self, rows: Tensor) -> None:
        self.base.keep(rows)
        self.mask.keep(rows)
