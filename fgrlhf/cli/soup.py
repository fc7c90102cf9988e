"""Average the weights of policies that were trained from one model: a soup.

    fgrlhf soup policies='[outputs/a/best, outputs/b/best]' weights='[.7, .3]' output_dir=outputs/c

    W = sum_i w_i W_i / sum_i w_i        for every tensor W

Policies that start from the same model and are trained for different rewards lie close enough that
their average trades the rewards off: a few runs give all mixtures of the rewards' weights without
further training (rewarded soups, Rame et al. 2023, arXiv 2306.04488). `fgrlhf evaluate` measures a
soup as any policy.
"""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field, model_validator
from torch import Tensor
from transformers.utils import logging as transformers_logging

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.cli.command_line import settings_from
from fgrlhf.configs.strict import FilePath, StrictModel, refuse
from fgrlhf.models.base import Policy
from fgrlhf.models.provenance import ModelSource
from fgrlhf.policy import load_policy
from fgrlhf.runs.checkpoint import new_folder
from fgrlhf.runs.stage import hold

USAGE = "usage: fgrlhf soup policies='[FOLDER, FOLDER]' weights='[0.5, 0.5]' output_dir=FOLDER"
# keys of a config that say nothing about what the weights compute
OF_THE_FILE = ("_name_or_path", "dtype", "torch_dtype", "transformers_version", "use_cache")


class SoupSettings(StrictModel):
    """What is averaged, and where the result goes."""

    policies: Annotated[list[str], Field(min_length=2)] = Field(description="folders of policies")
    weights: list[float] | None = Field(
        default=None, description="of each policy, 0 or more; divided by their sum; null: equal"
    )
    output_dir: FilePath = Field(description="folder of the result")

    @model_validator(mode="after")
    def _one_weight_each(self):
        if self.weights is None:
            return self
        if len(self.weights) != len(self.policies):
            refuse([("weights", f"{len(self.weights)} weights for {len(self.policies)} policies")])
        if min(self.weights) < 0 or not math.fsum(self.weights) > 0:
            refuse([("weights", "a weight is below 0, or all are 0: give shares of the mixture")])
        return self

    @property
    def shares(self) -> list[float]:
        """The weights, divided by their sum."""
        weights = self.weights or [1.0] * len(self.policies)
        return [weight / math.fsum(weights) for weight in weights]


def soup(settings: SoupSettings) -> Path:
    """Write the average of the policies, in fp32.

    Raises:
      UserError: a policy cannot be loaded, has another architecture or vocabulary than the first,
        or the output folder exists.
    """
    folder = Path(settings.output_dir)
    if os.path.lexists(folder):
        raise UserError(f"{shorten(folder)} exists: remove it, or name another one with output_dir")
    first = load_policy(settings.policies[0])
    totals: dict[str, Tensor] = {}
    for name, share in zip(settings.policies, settings.shares):
        policy = first if name == settings.policies[0] else load_policy(name)
        _check_same(first, policy, settings.policies[0], name)
        for key, tensor in policy.model.state_dict().items():
            if not tensor.is_floating_point():
                totals[key] = tensor  # a constant of the architecture
                continue
            part = tensor.double() * share
            totals[key] = totals[key] + part if key in totals else part
    _fill(first.model, totals)
    with hold(folder.parent), new_folder(folder) as temporary:
        first.save(temporary)
        parts = zip(settings.shares, settings.policies)
        mixture = " + ".join(f"{share:.4g} {name}" for share, name in parts)
        ModelSource(mixture, "average of weights").save(temporary)
    print(f"{folder}: {mixture}", flush=True)
    return folder


@torch.no_grad()
def _fill(model: Any, tensors: dict[str, Tensor]) -> None:
    """Set the model's tensors; tied ones are one tensor with two names."""
    for key, tensor in model.state_dict().items():
        tensor.copy_(tensors[key])


def _check_same(first: Policy, other: Policy, name: str, other_name: str) -> None:
    """Raise `UserError` if the tensors of two policies do not mean the same."""
    ours, theirs = _shape(first), _shape(other)
    differing = sorted(key for key in ours | theirs if ours.get(key) != theirs.get(key))
    if differing:
        key = differing[0]
        raise UserError(
            f"{shorten(name)} and {shorten(other_name)} differ in their {key}"
            f" ({shorten(ours.get(key), 60)} and {shorten(theirs.get(key), 60)}), so an average of"
            " their weights means nothing: give policies that were trained from the same model"
        )


def _shape(policy: Policy) -> dict[str, Any]:
    """The architecture and the vocabulary of a policy, by name."""
    config = {k: v for k, v in policy.model.config.to_dict().items() if k not in OF_THE_FILE}
    vocabulary: Any = policy.tokenizer.get_vocab()
    return config | {"vocabulary": sorted(vocabulary.items(), key=lambda item: item[1])}


def main(argv: Sequence[str] | None = None) -> None:
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    soup(settings_from(SoupSettings, argv, USAGE))
