"""Data that modules exchange: frozen dataclasses that check their shapes.

Tensor names end in their axes:

    B  rollouts                   P  prompt tokens           T  response tokens
    G  prompts (B = G K)          K  samples per prompt      S  segments
    R  rows of a forward pass     L  tokens of a row         V  vocabulary
    D  width of a hidden state    H  attention heads         F  features
    N  real tokens, pairs or other entries of a batch        C  candidates, counts or labels
    A  aspects: the outputs of a critic

1 is an axis of one entry. A module that uses another letter, or one of these in another sense,
defines it in a docstring.

Masks are 1 on real tokens and 0 on padding. A response's mask includes its end-of-sequence token.

In a conversation with an environment, the response is what the policy writes, all its turns one
after the other. So losses, KL, values and statistics are those of the policy's tokens. Only the
models also read the environment's replies, from `conversation_BL`, where L is the length of the
whole conversation after the prompt:

    the conversation    w w w h h h h w w    w: written by the policy, h: heard from the environment
    conversation_BL     1 1 1 . . . . 1 1    with 2 + id in place of each .
    response_ids_BT     w w w w w
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from fgrlhf.text_types import Prompt, SegmentScore, Turn
from fgrlhf.utils import check_shape

# in `conversation_BL`: padding, a token of the policy, or HEARD + the id of one that it only reads
PADDING, WRITTEN, HEARD = 0, 1, 2


@dataclass(frozen=True)
class Response:
    """Sampled tokens. The K responses to one prompt are consecutive rows."""

    ids_BT: Tensor  # the pad token's id on padding
    mask_BT: Tensor
    # under the model in eval mode, at the requested temperature; 0 on padding. From a server that
    # samples with top_k or top_p: those of the truncated distribution.
    logprobs_BT: Tensor
    # whether the policy itself computed `logprobs_BT`; false: a sampler with a copy of it did
    of_policy: bool = True
    # the tokens that could be drawn, a bit for each (models/support.py); 0 on padding. None: all,
    # or not recorded. With it, `logprobs_BT` are those of the distribution over these tokens.
    support_BTW: Tensor | None = None
    # of conversations with an environment (see the module); None: there is none
    conversation_BL: Tensor | None = None
    turns: tuple[tuple[Turn, ...], ...] | None = None

    def __post_init__(self):
        B, T = self.ids_BT.shape
        check_shape("Response.mask_BT", self.mask_BT, (B, T))
        check_shape("Response.logprobs_BT", self.logprobs_BT, (B, T))
        if self.support_BTW is not None:
            check_shape("Response.support_BTW", self.support_BTW, (B, T, None))
        if self.conversation_BL is not None:
            check_shape("Response.conversation_BL", self.conversation_BL, (B, None))


@dataclass(frozen=True)
class Rollout:
    """Prompts, sampled responses, and the models' outputs at the time of sampling."""

    prompts: tuple[Prompt, ...]
    prompt_ids_BP: Tensor
    prompt_mask_BP: Tensor
    response_ids_BT: Tensor
    response_mask_BT: Tensor
    logprobs_BT: Tensor  # 0 on padding
    ref_logprobs_BT: Tensor  # 0 on padding
    values_BT: Tensor | None  # None for critic-free algorithms; 0 on padding
    texts: tuple[str, ...]  # exactly what the reward models read
    # number of characters of `texts[b]` that are complete after token t: maps tokens to text
    char_ends: tuple[tuple[int, ...], ...]
    group_B: Tensor  # index of each rollout's prompt in the batch
    # padding side of the prompts; the mask of an empty prompt does not show it
    left_padded: bool
    # whether each response ended with an end-of-sequence token; None: not recorded
    finished: tuple[bool, ...] | None = None
    # log-probabilities of a sampler that has a copy of the policy, before top_k and top_p; 0 on
    # padding; None: the policy itself sampled, and they are `logprobs_BT`
    behaviour_logprobs_BT: Tensor | None = None
    # the tokens over which all log-probabilities are normalised: see `Response`; None: all
    support_BTW: Tensor | None = None
    # of a critic with an output per aspect, of which `values_BT` is the sum; None: another critic
    values_BTA: Tensor | None = None
    # of conversations with an environment (see the module); None: there is none
    conversation_BL: Tensor | None = None
    turns: tuple[tuple[Turn, ...], ...] | None = None

    def __post_init__(self):
        B, P = self.prompt_ids_BP.shape
        T = self.response_ids_BT.shape[1]
        check_shape("Rollout.prompt_mask_BP", self.prompt_mask_BP, (B, P))
        for name in ("response_ids_BT", "response_mask_BT", "logprobs_BT", "ref_logprobs_BT"):
            check_shape(f"Rollout.{name}", getattr(self, name), (B, T))
        if self.values_BT is not None:
            check_shape("Rollout.values_BT", self.values_BT, (B, T))
        if self.values_BTA is not None:
            check_shape("Rollout.values_BTA", self.values_BTA, (B, T, None))
        if self.behaviour_logprobs_BT is not None:
            check_shape("Rollout.behaviour_logprobs_BT", self.behaviour_logprobs_BT, (B, T))
        if self.support_BTW is not None:
            check_shape("Rollout.support_BTW", self.support_BTW, (B, T, None))
        if self.conversation_BL is not None:
            check_shape("Rollout.conversation_BL", self.conversation_BL, (B, None))
        check_shape("Rollout.group_B", self.group_B, (B,))
        for name in ("prompts", "texts", "char_ends", "finished", "turns"):
            entries = getattr(self, name)
            if entries is not None and len(entries) != B:
                raise ValueError(f"Rollout.{name} has {len(entries)} entries, expected {B}")

    def __len__(self) -> int:
        return self.response_ids_BT.shape[0]

    def rows(self, index_B: Tensor) -> "Rollout":
        """The rollouts at `index_B`, with superfluous padding removed."""
        index = index_B.tolist()
        # columns that hold a token of these prompts, and of these responses
        P = max(int(self.prompt_mask_BP[index_B].any(0).sum()), 1)
        T = max(int(self.response_mask_BT[index_B].sum(1).max()), 1)
        changes: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Tensor):
                value = value[index_B]
                if item.name == "conversation_BL":
                    value = value[:, : max(int((value != PADDING).sum(1).max()), 1)]
                elif item.name.endswith("_BP"):
                    value = value[:, -P:] if self.left_padded else value[:, :P]
                elif item.name.endswith(("_BT", "_BTW", "_BTA")):
                    value = value[:, :T]
            elif isinstance(value, tuple):
                value = tuple(value[i] for i in index)
            changes[item.name] = value
        return replace(self, **changes)

    def to(self, device: torch.device | str) -> "Rollout":
        """The same rollouts with their tensors on `device`."""
        moved: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Tensor):
                moved[item.name] = value.to(device)
        return replace(self, **moved)


@dataclass(frozen=True)
class TokenReward:
    """Rewards of a batch per policy token and aspect, and the segments they come from."""

    by_aspect: Mapping[str, Tensor]  # aspect -> rewards_BT, weights applied
    # aspect -> segments of each rollout; None if the reward does not apply to it
    segments: Mapping[str, Sequence[Sequence[SegmentScore] | None]]
    mask_BT: Tensor
    weights: Mapping[str, float] = field(default_factory=dict)  # of the aspects; 1 if missing
    # the same rewards with the weights of logs, where those of the step differ; None: these
    logged: "TokenReward | None" = None

    def __post_init__(self):
        for name, rewards_BT in self.by_aspect.items():
            check_shape(f"TokenReward.by_aspect[{name}]", rewards_BT, tuple(self.mask_BT.shape))

    def applies(self, name: str) -> list[bool]:
        """Whether the reward applies to each rollout. The others do not count in its means."""
        return [scores is not None for scores in self.segments[name]]

    def weight(self, name: str) -> float:
        """The weight in `by_aspect` of an aspect."""
        return self.weights.get(name, 1.0)

    @property
    def total_BT(self) -> Tensor:  # noqa: N802
        """The sum over the aspects."""
        return sum(self.by_aspect.values(), torch.zeros_like(self.mask_BT, dtype=torch.float32))


@dataclass(frozen=True)
class Advantages:
    """Advantages and the critic's targets."""

    advantages_BT: Tensor
    returns_BT: Tensor | None = None  # None: no critic
    # of a critic with an output per aspect, of which `returns_BT` is the sum
    returns_BTA: Tensor | None = None
    # number of the segment of each token, with `algorithm.loss.importance_level: segment`
    segment_BT: Tensor | None = None

    def __post_init__(self):
        check_shape("Advantages.advantages_BT", self.advantages_BT, (None, None))
        if self.returns_BT is not None:
            shape = tuple(self.advantages_BT.shape)
            check_shape("Advantages.returns_BT", self.returns_BT, shape)
        if self.returns_BTA is not None:
            check_shape("Advantages.returns_BTA", self.returns_BTA, (*shape, None))

    def rows(self, index_B: Tensor, T: int) -> "Advantages":
        """The rows at `index_B`, cut to T tokens."""
        returns_BT = None if self.returns_BT is None else self.returns_BT[index_B, :T]
        returns_BTA = None if self.returns_BTA is None else self.returns_BTA[index_B, :T]
        segment_BT = None if self.segment_BT is None else self.segment_BT[index_B, :T]
        return Advantages(self.advantages_BT[index_B, :T], returns_BT, returns_BTA, segment_BT)


@dataclass(frozen=True)
class TokenLoss:
    """A loss per token, and metrics per token that are averaged like the loss.

    Values on padding are ignored.
    """

    loss_BT: Tensor
    metrics: Mapping[str, Tensor]

    def __post_init__(self):
        for name, metric_BT in self.metrics.items():
            check_shape(f"TokenLoss.metrics[{name}]", metric_BT, tuple(self.loss_BT.shape))


# (hidden states -> logits, hidden_ND) of a policy -> its divergence_N from a teacher
Divergence = Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]


@dataclass(frozen=True)
class PolicyOutput:
    """Results of a forward pass over given responses, 0 on padding."""

    logprobs_BT: Tensor
    values_BT: Tensor | None = None  # None: no critic
    entropy_BT: Tensor | None = None  # without a gradient unless `entropy_gradient` was set
    # log of the probability mass that top_k and top_p keep (`log_kept_mass`); None: not requested
    log_kept_mass_BT: Tensor | None = None
    values_BTA: Tensor | None = None  # as in `Rollout`
    divergence_BT: Tensor | None = None  # from a teacher, in nats; None: there is none
