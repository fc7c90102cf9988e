"""What frozen layers compute of a reward model's inputs: once before training, not every epoch.

- the features of the frozen language model (`lm_logprob_feature`)
- the states below the trained layers of a decoder-only trunk (`train_top_layers`), unless they take
  more than `CAPACITY`. Then every forward pass computes them.

Nothing is kept of rows that stay in their file (fgrlhf/data/stream.py).
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from fgrlhf.models.trunk import text_config
from fgrlhf.reward_models.collate import BATCH_TOKENS, batches_by_prompt
from fgrlhf.reward_models.inputs import RMInputs
from fgrlhf.reward_models.networks import LINEAR_INPUTS, LanguageModelScorer
from fgrlhf.reward_models.rm_input import RMInput
from fgrlhf.reward_models.scorer_batch import ScorerBatch, scorer_batch
from fgrlhf.runs.progress import progress_bar
from fgrlhf.runs.runlog import is_main_rank

CAPACITY = 4 * 2**30  # bytes of states


@torch.no_grad()
def precompute(
    network: nn.Module,
    inputs: RMInputs,
    rm_inputs: Sequence[RMInput],
    batch_tokens: int = BATCH_TOKENS,
) -> list[RMInput]:
    """The inputs with all that frozen layers compute of them, on the CPU.

    Inputs of a network without frozen layers stay as they are.

    Args:
      batch_tokens: padded tokens that are read together.
    """
    result = list(rm_inputs)
    if not isinstance(network, LanguageModelScorer):
        return result
    keeps_features = network.feature_in is not None
    keeps_states = network.has_frozen_layers and bytes_of_states(network, rm_inputs) <= CAPACITY
    if not (keeps_features or keeps_states):
        return result
    bar = progress_bar(len(rm_inputs), "frozen layers", "input", enabled=is_main_rank())
    with bar:
        for rows in batches_by_prompt(rm_inputs, batch_tokens):
            of_batch = [rm_inputs[i] for i in rows]
            batch = batch_on_device(inputs, of_batch, network.head.weight.device)
            if network.has_frozen_layers:
                batch = replace(batch, lower_RLD=network.lower_states(batch))
            if keeps_features:
                features_BTF = network.features(batch).cpu()
                for i, features_TF in zip(rows, features_BTF):
                    length = len(rm_inputs[i].output_ids)
                    result[i] = replace(result[i], features_TF=features_TF[:length].clone())
            if keeps_states and batch.lower_RLD is not None:
                states = inputs.collate.split_rows(of_batch, batch.lower_RLD.cpu())
                for i, lower in zip(rows, states):
                    result[i] = replace(result[i], lower=lower)
            bar.update(len(rows))
    return result


def batch_on_device(
    inputs: RMInputs, rm_inputs: Sequence[RMInput], device: torch.device
) -> ScorerBatch:
    """The rows of some inputs, without the tensors that only the feature head reads."""
    tensors = {}
    for name, tensor in inputs.collate(rm_inputs).items():
        if name not in LINEAR_INPUTS:
            tensors[name] = tensor.to(device)
    return scorer_batch(**tensors)


def bytes_of_states(network: LanguageModelScorer, rm_inputs: Sequence[RMInput]) -> int:
    """Memory of the states of all inputs, in which a prompt counts once."""
    prompts = {rm_input.prompt for rm_input in rm_inputs}
    tokens = sum(map(len, prompts))
    for rm_input in rm_inputs:
        tokens += rm_input.length - len(rm_input.prompt)
    return tokens * text_config(network.trunk).hidden_size * network.head.weight.element_size()
