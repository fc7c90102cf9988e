"""Launchers that would train another model on every process are refused."""

from types import SimpleNamespace

import pytest
from accelerate.utils import DistributedType
from rl_helpers import config, trainer

from fgrlhf.distributed import check_launcher
from fgrlhf.utils import UserError

RIGHT = ("NO", "MULTI_GPU", "MULTI_CPU")


@pytest.mark.parametrize("kind", list(DistributedType))
def test_only_whole_copies_of_a_model_are_trained(kind):
    if kind.value in RIGHT:
        check_launcher(kind)
        return
    with pytest.raises(UserError, match=f"for {kind.value}, which training does not support.*torchrun.*accelerate launch --multi_gpu"):
        check_launcher(kind)


def test_a_trainer_asks_before_it_makes_an_optimiser(tmp_path):
    accelerator = SimpleNamespace(distributed_type=DistributedType.DEEPSPEED)  # has nothing else to be asked
    with pytest.raises(UserError, match="DEEPSPEED"):
        trainer(config(tmp_path), accelerator=accelerator)
    assert not list(tmp_path.iterdir())
