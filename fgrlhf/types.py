"""What crosses a module: frozen, shape-checked dataclasses.

Axis letters, which end every tensor's name:
  B rollouts   P prompt tokens   T response tokens   K samples per prompt   S segments   V
  vocabulary
Masks are 1 on real tokens and 0 on padding; a response's mask includes its end-of-sequence token.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Prompt:
    """One input. `text` is what the policy reads; `meta` is the task's own row (question, passages,
    ...).
    """

    id: str
    text: str
    references: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SegmentScore:
    """A reward for characters [start, end) of a response's text, in reward units.

    `end=None` stands for the end of the whole response, its end-of-sequence token included: a score
    of the whole answer belongs to the decision to stop as well. `label` names the judgement (for
    reports).
    """

    start: int
    end: int | None
    value: float
    label: str = ""

    def __post_init__(self):
        if self.start < 0 or (self.end is not None and self.end < self.start):
            raise ValueError(f"not a span: [{self.start}, {self.end})")


@dataclass(frozen=True)
class ResponseTokens:
    """How a response was sampled, for rewards that depend on its tokens.

    Args:
      char_ends: characters of the text that are complete after each token.
      finished: it ended with an end-of-sequence token, not at the length limit.
    """

    char_ends: tuple[int, ...]
    finished: bool


def _check_shape(owner: str, name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{owner}.{name} has shape {tuple(tensor.shape)}, expected {shape}")


@dataclass(frozen=True)
class Response:
    """Sampled tokens, the K of one prompt side by side. Ids on padding are the pad token's,
    log-probabilities 0.
    """

    ids_BT: Tensor
    mask_BT: Tensor
    logprobs_BT: Tensor  # of the model in eval mode, at the temperature asked for

    def __post_init__(self):
        for name in ("mask_BT", "logprobs_BT"):
            _check_shape("Response", name, getattr(self, name), tuple(self.ids_BT.shape))


@dataclass(frozen=True)
class Rollout:
    """Prompts with sampled responses and what the models said of them when they were sampled."""

    prompts: tuple[Prompt, ...]
    prompt_ids_BP: Tensor
    prompt_mask_BP: Tensor
    response_ids_BT: Tensor
    response_mask_BT: Tensor
    logprobs_BT: Tensor  # 0 on padding
    ref_logprobs_BT: Tensor  # 0 on padding
    values_BT: Tensor | None  # None for critic-free algorithms; 0 on padding
    texts: tuple[str, ...]  # exactly what the reward models read
    char_ends: tuple[
        tuple[int, ...], ...
    ]  # characters of `texts[b]` decoded after token t: the text<->token map
    group_B: Tensor  # which prompt of the batch each rollout belongs to
    # where the padding of prompts stands; it cannot be told from the masks where a prompt is empty
    left_padded: bool
    # whether each response ended with an end token; None: not recorded
    finished: tuple[bool, ...] | None = None

    def __post_init__(self):
        B, P = self.prompt_ids_BP.shape
        T = self.response_ids_BT.shape[1]
        _check_shape("Rollout", "prompt_mask_BP", self.prompt_mask_BP, (B, P))
        for name in ("response_ids_BT", "response_mask_BT", "logprobs_BT", "ref_logprobs_BT"):
            _check_shape("Rollout", name, getattr(self, name), (B, T))
        if self.values_BT is not None:
            _check_shape("Rollout", "values_BT", self.values_BT, (B, T))
        _check_shape("Rollout", "group_B", self.group_B, (B,))
        for name in ("prompts", "texts", "char_ends", "finished"):
            if name == "finished" and self.finished is None:
                continue
            if len(getattr(self, name)) != B:
                raise ValueError(
                    f"Rollout.{name} has {len(getattr(self, name))} entries, expected {B}"
                )

    def __len__(self) -> int:
        return self.response_ids_BT.shape[0]

    def rows(self, index_B: Tensor) -> "Rollout":
        """The rollouts at `index_B`, padding that none of them needs cut off."""
        index = index_B.tolist()
        P = max(int(self.prompt_mask_BP[index_B].any(0).sum()), 1)
        T = max(int(self.response_mask_BT[index_B].sum(1).max()), 1)
        changes: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Tensor):
                value = value[index_B]
                if item.name.endswith("_BP"):
                    value = value[:, -P:] if self.left_padded else value[:, :P]
                elif item.name.endswith("_BT"):
                    value = value[:, :T]
            elif isinstance(value, tuple):
                value = tuple(value[i] for i in index)
            changes[item.name] = value
        return replace(self, **changes)

    def to(self, device: torch.device | str) -> "Rollout":
        moved = {
            f.name: getattr(self, f.name).to(device)
            for f in fields(self)
            if isinstance(getattr(self, f.name), Tensor)
        }
        return replace(self, **moved)


@dataclass(frozen=True)
class TokenReward:
    """Rewards of a batch on policy tokens, aspect by aspect, beside the segments they came from."""

    by_aspect: Mapping[str, Tensor]  # aspect -> rewards_BT, weights applied
    # aspect -> per rollout its segments, or None where the reward does not apply
    segments: Mapping[str, Sequence[Sequence[SegmentScore] | None]]
    mask_BT: Tensor

    def __post_init__(self):
        for name, rewards_BT in self.by_aspect.items():
            _check_shape("TokenReward", name, rewards_BT, tuple(self.mask_BT.shape))

    def applies(self, name: str) -> list[bool]:
        """Per rollout: whether the reward applies to it. One that does not counts in no mean."""
        return [scores is not None for scores in self.segments[name]]

    @property
    def total_BT(self) -> Tensor:
        return sum(self.by_aspect.values(), torch.zeros_like(self.mask_BT, dtype=torch.float32))


@dataclass(frozen=True)
class Advantages:
    """What an algorithm's loss needs beside the rollout. `returns_BT` is the critic's target (None:
    no critic).
    """

    advantages_BT: Tensor
    returns_BT: Tensor | None = None

    def __post_init__(self):
        if self.returns_BT is not None:
            _check_shape(
                "Advantages", "returns_BT", self.returns_BT, tuple(self.advantages_BT.shape)
            )

    def rows(self, index_B: Tensor, T: int) -> "Advantages":
        returns_BT = None if self.returns_BT is None else self.returns_BT[index_B, :T]
        return Advantages(self.advantages_BT[index_B, :T], returns_BT)


@dataclass(frozen=True)
class TokenLoss:
    """A loss per token, and per-token quantities to log under the same average. Values on padding
    are ignored.
    """

    loss_BT: Tensor
    metrics: Mapping[str, Tensor]

    def __post_init__(self):
        for name, metric_BT in self.metrics.items():
            _check_shape("TokenLoss", name, metric_BT, tuple(self.loss_BT.shape))


@dataclass(frozen=True)
class PolicyOutput:
    """One forward pass over given responses. Entries on padding are 0; `entropy_BT` carries no
    gradient unless asked.
    """

    logprobs_BT: Tensor
    values_BT: Tensor | None = None
    entropy_BT: Tensor | None = None
