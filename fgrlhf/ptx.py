"""Demonstrations in the update of RL (PPO-ptx, Ouyang et al. 2022, arXiv 2203.02155, eq. 2).

Every optimiser step adds the gradient of

    coef * 1 / sum_b n_b * sum_b sum_t -log pi(y_(b,t) | x_b, y_(b,<t))

over a batch of demonstrations (x_b, y_b) of n_b tokens, as many as the minibatch has responses. The
log-probabilities are those of SFT, at temperature 1. Which demonstrations these are is a pure
function of (seed, step, minibatch), so a resumed run draws the same ones.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from fgrlhf.base.seeds import derive_seed
from fgrlhf.data.comparisons import Answer, Comparison
from fgrlhf.data.formats import DEMONSTRATIONS
from fgrlhf.data.token_comparisons import TokenComparison, collate, encode_comparisons
from fgrlhf.models.base import Policy
from fgrlhf.rollout import PassOrder
from fgrlhf.runs.distributed import share_of
from fgrlhf.runs.rl_config import RLConfig
from fgrlhf.runs.runlog import say
from fgrlhf.update import OnPolicy
from fgrlhf.utils import masked_sum


class Demonstrations:
    """The encoded demonstrations of `algorithm.ptx`, and the order in which they are drawn.

    Args:
      coef: of their loss.
      order: optimiser step -> its demonstrations, each a comparison of one good answer.
      steps_per_update: most optimiser steps on one rollout.
    """

    def __init__(self, coef: float, order: PassOrder[TokenComparison], steps_per_update: int):
        self.coef = coef
        self.order = order
        self.steps_per_update = steps_per_update

    def add_gradient(self, trainer: OnPolicy, place: int) -> Tensor:
        """Add the gradient of a batch's loss; return this process's part of the loss.

        Args:
          place: how many optimiser steps the update has taken before. An update that ends early
            (`loss.target_kl`) leaves the demonstrations of its other steps out.
        """
        batch = self.order.of_step(trainer.step * self.steps_per_update + place)
        n_tokens = sum(len(row.answer_ids[0]) for row in batch)
        rank, world = trainer.accelerator.process_index, trainer.accelerator.num_processes
        share = [batch[i] for i in share_of(range(len(batch)), rank, world)]
        size = trainer.config.train.micro_batch_size
        total = torch.zeros((), device=trainer.accelerator.device)
        for start in range(0, len(share), size):
            # the responses follow, so gradients are not yet exchanged
            with trainer.no_sync(True):
                loss = self._sum_of_losses(trainer, share[start : start + size]) / n_tokens
                (self.coef * loss * world).backward()  # DDP averages, but the sum is needed
            total += loss.detach()
        return total

    def _sum_of_losses(self, trainer: OnPolicy, rows: Sequence[TokenComparison]) -> Tensor:
        tokenizer = trainer.actor_critic.policy.tokenizer
        left = tokenizer.padding_side == "left"
        batch = collate(rows, None, tokenizer.pad_token_id, left).to(trainer.accelerator.device)
        with trainer.precision():
            new = trainer.model(
                batch.prompt_ids_BP,
                batch.prompt_mask_BP,
                batch.response_ids_BT,
                batch.response_mask_BT,
                with_values=False,
            )
        return -masked_sum(new.logprobs_BT, batch.response_mask_BT)


def read_demonstrations(
    config: RLConfig, policy: Policy, rows_per_step: int, steps_per_update: int
) -> Demonstrations:
    """The demonstrations of `algorithm.ptx.file`, encoded as SFT does.

    Args:
      rows_per_step: demonstrations of an optimiser step, over all processes.
      steps_per_update: most optimiser steps on one rollout.

    Raises:
      UserError: the file cannot be read, or a demonstration is too long for the model.
    """
    settings = config.algorithm.ptx
    assert settings is not None
    rows = []
    for demonstration in DEMONSTRATIONS.read(settings.file):
        answer = Answer(demonstration.response)
        rows.append(Comparison(demonstration.prompt, (answer,), (), labels=(True,)))
    encoded = encode_comparisons(policy, rows, config.model.max_generated_len)
    for row in encoded:
        policy.check_fits(len(row.prompt_ids), len(row.answer_ids[0]))
    say(f"{len(encoded)} demonstrations of algorithm.ptx: {settings.file}")
    order = PassOrder(encoded, derive_seed(config.train.seed, "ptx"), rows_per_step)
    return Demonstrations(settings.coef, order, steps_per_update)
