"""What RL and DPO print when they start: who trains what, and where."""

from types import SimpleNamespace

import pytest
import torch
from rl_helpers import config, trainer

from fgrlhf import train_dpo, train_rl
from fgrlhf.configs.sections import ParallelConfig
from fgrlhf.load import load_task
from fgrlhf.policy_trainer import start_line
from fgrlhf.runs.distributed import strategy_notes

WHOLE = "note: parallel.strategy=fsdp2 has no effect with 1 process: models stay whole"


def group(processes: int, is_main_process: bool = True, device: str = "cpu") -> SimpleNamespace:
    return SimpleNamespace(
        num_processes=processes,
        is_main_process=is_main_process,
        device=torch.device(device),
        mixed_precision="no",
    )


@pytest.fixture
def run(tmp_path):
    return trainer(config(tmp_path, logging__run_name="fine_grained"), "gpt2")


def use(run, strategy: str):
    """The run's config with another way to divide models."""
    run.config = run.config.model_copy(update={"parallel": ParallelConfig(strategy=strategy)})
    return run.config


def test_the_line_names_processes_device_parameters_and_folder(run, tmp_path):
    count = sum(p.numel() for p in run.policy.model.parameters())
    use(run, "fsdp2")
    size = f"{count:,} parameters"
    assert start_line(run) == f"fine_grained: 1 process, cpu; {size}; {tmp_path}"
    run.accelerator = group(2, device="cuda:1")
    assert start_line(run) == (f"fine_grained: 2 processes, fsdp2, cuda; {size}; {tmp_path}")
    bias = run.policy.model.transformer.ln_f.bias.requires_grad_(False)
    some = f"{size}, of which {count - bias.numel():,} are trained"
    run.accelerator = group(2)
    use(run, "ddp")
    assert start_line(run) == (f"fine_grained: 2 processes, ddp, cpu; {some}; {tmp_path}")


def test_a_single_process_says_that_models_stay_whole():
    divided, whole = ParallelConfig(strategy="fsdp2"), ParallelConfig()
    assert strategy_notes(divided, group(1)) == [WHOLE]
    assert strategy_notes(divided, group(2)) == strategy_notes(whole, group(1)) == []


@pytest.mark.parametrize("is_main_process", [True, False])
@pytest.mark.parametrize("module", [train_rl, train_dpo])
def test_the_first_process_prints_it_before_training(
    module, is_main_process, run, monkeypatch, capsys
):
    settings = use(run, "fsdp2")
    run.accelerator = group(1, is_main_process)
    run.train = lambda: print("training")
    monkeypatch.setattr(module, "build_trainer", lambda task, config: run)
    monkeypatch.setattr(module, "note_changed_code", lambda *_: None)
    capsys.readouterr()
    module.train(load_task("tasks.numbers"), settings)
    lines = capsys.readouterr().out.splitlines()
    if is_main_process:
        assert lines[0] == start_line(run) and WHOLE in lines
    else:
        assert lines[:-1] == []
    assert lines[-1] == "training"
