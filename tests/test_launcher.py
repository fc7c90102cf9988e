"""Launchers that would train a separate model on every process are refused."""

from types import SimpleNamespace

import pytest
from accelerate.utils import DistributedType
from rl_helpers import config, trainer

from fgrlhf.base.errors import UserError
from fgrlhf.runs.distributed import check_launcher, stop_together

RIGHT = ("NO", "MULTI_GPU", "MULTI_CPU")


@pytest.mark.parametrize("kind", list(DistributedType))
def test_only_whole_copies_of_a_model_are_trained(kind):
    if kind.value in RIGHT:
        check_launcher(kind)
        return
    with pytest.raises(
        UserError,
        match=(
            f"for {kind.value}, which training does not support.*torchrun.*accelerate launch"
            " --multi_gpu"
        ),
    ):
        check_launcher(kind)


@pytest.mark.parametrize("processes", ["", "0", "1"])
def test_a_single_process_may_train_alone(processes, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", processes)
    check_launcher(DistributedType.NO)


def test_processes_that_do_not_see_each_other_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="WORLD_SIZE=2, but.*set ACCELERATE_USE_CPU=true"):
        check_launcher(DistributedType.NO)
    check_launcher(DistributedType.MULTI_CPU)


def test_a_trainer_asks_before_it_makes_an_optimiser(tmp_path):
    accelerator = SimpleNamespace(distributed_type=DistributedType.DEEPSPEED)  # has no other method
    with pytest.raises(UserError, match="DEEPSPEED"):
        trainer(config(tmp_path), accelerator=accelerator)
    assert not list(tmp_path.iterdir())


def test_all_processes_stop_where_one_has_to(monkeypatch):
    def fails(processes):
        with stop_together(processes):
            raise UserError("the policy's logits are NaN")

    def works(processes):
        with stop_together(processes):
            return 5

    alone, pair = SimpleNamespace(num_processes=1), SimpleNamespace(num_processes=2)
    monkeypatch.setattr("fgrlhf.runs.distributed.gather_object", lambda mine: [*mine, *others])
    for others in ([None], ["the other's reason"]):
        assert works(alone) == 5  # no communication
        with pytest.raises(UserError, match="logits are NaN"):
            fails(alone)
        with pytest.raises(UserError, match="logits are NaN"):
            fails(pair)
        if others == [None]:
            assert works(pair) == 5
            continue
        with pytest.raises(UserError, match="the other's reason"):
            works(pair)
