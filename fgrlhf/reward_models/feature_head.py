"""A linear model of a few features of each segment, added to the head of a reward model's network.

    logits_j = W_text h_j + W x~_j + b        x~ = (x - mean) / std

h_j is the network's hidden state at segment j, and x_j has the hand-made features of the segment
(text_features.py) and the lowest, mean and summed log-probability of its tokens, if the network
reads log-probabilities. Training starts with W_text = 0 and with the W and b of a logistic
regression on the training rows (reward_modeling/linear_start.py), so the network starts as this
linear model and learns what it misses. A few hundred rows are too few to learn both from text.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class LinearModel:
    """logits_C = weights_CF (x_F - mean_F) / std_F + bias_C."""

    mean_F: Tensor
    std_F: Tensor
    weights_CF: Tensor
    bias_C: Tensor

    def repeated(self, members: int) -> "LinearModel":
        """The same model for each of some members."""
        weights_KF = self.weights_CF.repeat(members, 1)
        return replace(self, weights_CF=weights_KF, bias_C=self.bias_C.repeat(members))


class FeatureHead(nn.Module):
    """The linear model as a layer. Without a start it adds 0.

    Args:
      features: F.
      outputs: C.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, features: int, outputs: int):
        super().__init__()
        self.linear = nn.Linear(features, outputs)
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("std", torch.ones(features))

    def forward(self, x_NF: Tensor) -> Tensor:
        standard_NF = (x_NF - self.mean) / self.std
        return self.linear(standard_NF.to(self.linear.weight.dtype))

    @torch.no_grad()
    def start_as(self, model: LinearModel) -> None:
        """Compute what this linear model does."""
        self.mean.copy_(model.mean_F)
        self.std.copy_(model.std_F)
        self.linear.weight.copy_(model.weights_CF)
        self.linear.bias.copy_(model.bias_C)


def pooled_by_segment(features_BTF: Tensor, segments_BT: Tensor) -> Tensor:
    """(B, T, 3 F): the lowest, mean and summed features of the segment that each token belongs to.

    Args:
      segments_BT: numbers from 1; tokens of number 0 belong to none, and their result has no
        meaning.
    """
    B, T, F = features_BTF.shape
    index_BTF = segments_BT[..., None].expand(B, T, F)
    most = int(segments_BT.max()) + 1
    zeros_BSF = features_BTF.new_zeros(B, most, F)
    sum_BSF = zeros_BSF.scatter_add(1, index_BTF, features_BTF)
    count_BSF = zeros_BSF.scatter_add(1, index_BTF, torch.ones_like(features_BTF))
    mean_BSF = sum_BSF / count_BSF.clamp(min=1)
    lowest_BSF = zeros_BSF.scatter_reduce(
        1, index_BTF, features_BTF, reduce="amin", include_self=False
    )
    pooled_BSF = torch.cat([lowest_BSF, mean_BSF, sum_BSF], -1)
    return pooled_BSF.gather(1, segments_BT[..., None].expand(B, T, 3 * F))
