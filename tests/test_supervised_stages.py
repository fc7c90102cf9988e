"""What holds for SFT and for both kinds of reward models, which one engine trains.

A finished run of each stage is shared: tests compare with it, or continue from a copy of it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import pytest
import test_run_fg_rm
import test_run_pref_rm
import test_run_sft
import tiny
import torch
from safetensors.torch import load_file
from test_run_sft import Killed, killed, outputs

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, read_jsonl
from fgrlhf.supervised_trainer import SupervisedTrainer
from reward_modeling import run_fg_rm, run_pref_rm, training
from sft import run_sft


def sft_config(world, **changes):
    if not (world / "config.yml").exists():
        test_run_sft.make_world(world)
    overrides = [f"{key.replace('__', '.')}={value}" for key, value in changes.items()]
    return test_run_sft.config(world, *overrides)


@dataclass(frozen=True)
class Stage:
    """A stage: its program, its trainer, and what makes the inputs and the config of a short run.

    Changes of settings are given as section__key=value.
    """

    program: ModuleType
    trainer: type[SupervisedTrainer]
    make: Callable

    def config(self, world, save, **changes):
        return self.make(world, **SHORT | {"logging__save_dir": str(save)} | changes)

    def train(self, world, save, **changes):
        return self.program.train(self.config(world, save, **changes))


SHORT = {"train__max_steps": 3, "evaluation__every_steps": 2, "train__batch_size": 4}
STAGES = {
    "sft": Stage(run_sft, run_sft.SFTTrainer, sft_config),
    "segment": Stage(run_fg_rm, run_fg_rm.SegmentTrainer, test_run_fg_rm.config),
    "pairs": Stage(run_pref_rm, run_pref_rm.PairTrainer, test_run_pref_rm.config),
}
EACH = pytest.mark.parametrize("name", STAGES)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Of each stage, the folder of its inputs; the finished run is in its folder `whole`."""
    finished = {}
    for name, stage in STAGES.items():
        world = tmp_path_factory.mktemp(name)
        stage.train(world, world / "whole")
        finished[name] = world
    return finished


def weights(folder):
    return load_file(folder / "model.safetensors")


def stopped_at(monkeypatch, step):
    """The run ends in its training step `step`, from 0."""
    original = SupervisedTrainer.update

    def update(self, indices):
        if self.step == step:
            raise KeyboardInterrupt
        return original(self, indices)

    monkeypatch.setattr(SupervisedTrainer, "update", update)


@EACH
def test_an_interrupted_run_ends_as_an_uninterrupted_one(runs, tmp_path, monkeypatch, capsys, name):
    stage, world = STAGES[name], runs[name]
    with monkeypatch.context() as patch:
        stopped_at(patch, 2)  # a step after the checkpoint
        with pytest.raises(KeyboardInterrupt):
            stage.train(world, tmp_path / "cut")
    cut = tmp_path / "cut"
    assert not (cut / "model.safetensors").exists()  # no model before a complete one
    (cut / "checkpoints" / ".step-3.tmp").mkdir()  # a newer one, written halfway
    stage.train(world, cut)
    assert "continuing from step 2" in capsys.readouterr().out
    assert outputs(cut) == outputs(world / "whole")


@EACH
def test_the_average_is_exact_also_after_a_resume(runs, tmp_path, monkeypatch, name):
    stage, world, cut = STAGES[name], runs[name], tmp_path / "cut"
    with monkeypatch.context() as patch:
        stopped_at(patch, 2)
        with pytest.raises(KeyboardInterrupt):
            stage.train(world, cut, train__ema=0.5)
    assert not (cut / "ema").exists()
    stage.train(world, cut, train__ema=0.5)

    steps: list[dict] = []  # the weights before each of the three updates, and after them

    def remembering(method):
        def wrapped(trainer):
            named = trainer.module.named_parameters()
            steps.append({name: parameter.detach().clone() for name, parameter in named})
            method(trainer)

        return wrapped

    for method in ("set_learning_rates", "load_best"):
        original = getattr(SupervisedTrainer, method)
        monkeypatch.setattr(SupervisedTrainer, method, remembering(original))
    whole = stage.train(world, tmp_path / "whole", train__ema=0.5)
    assert outputs(cut / "ema") == outputs(whole / "ema")
    averages, model, plain = map(weights, (whole / "ema", whole, world / "whole"))
    assert all(model[key].equal(plain[key]) for key in model)  # nothing else changes
    assert len(steps) == 4 and averages.keys() == model.keys()
    shared = averages.keys() & steps[0].keys()
    assert any(not averages[key].equal(steps[-1][key]) for key in shared)
    for key in shared:
        expected = sum(w * step[key] for w, step in zip((1 / 8, 1 / 8, 1 / 4, 1 / 2), steps))
        torch.testing.assert_close(averages[key], expected)
    if name != "sft":  # with figures of its own
        assert read_json(whole / "ema" / "metrics.json")["choice"]["evaluations"] == 0
        assert (whole / "ema" / "reward_model.json").is_file()


@pytest.mark.parametrize(
    "name, owner, place",
    [
        ("sft", run_sft.SFTTrainer, "load_best"),
        ("sft", run_sft, "install_model"),
        ("sft", run_sft, "complete"),
        ("segment", training, "install_model"),
        ("segment", training, "complete"),
        ("pairs", run_pref_rm, "score_moments"),
    ],
)
def test_killed_between_the_last_checkpoint_and_the_end(
    runs, tmp_path, monkeypatch, name, owner, place
):
    stage, world = STAGES[name], runs[name]
    with monkeypatch.context() as patch:
        patch.setattr(owner, place, killed)
        with pytest.raises(Killed):
            stage.train(world, tmp_path / "cut")
    monkeypatch.setattr(SupervisedTrainer, "update", killed)  # no further step
    stage.train(world, tmp_path / "cut")
    assert outputs(tmp_path / "cut") == outputs(world / "whole")


@EACH
def test_a_finished_run_is_reused_and_another_one_refused(runs, capsys, monkeypatch, name):
    stage, world = STAGES[name], runs[name]
    whole = world / "whole"
    before = outputs(whole)
    run_name = stage.config(world, whole).logging.run_name
    monkeypatch.setattr(SupervisedTrainer, "__init__", None)
    (whole / "checkpoints").mkdir()  # of a run that was killed when it had just finished
    assert stage.train(world, whole) == whole
    assert not (whole / "checkpoints").exists()
    assert capsys.readouterr().out == f"{run_name}: finished before, reusing {whole}\n"
    with pytest.raises(UserError, match=r"train\.lr: 0\.01 there, 0\.02 now"):
        stage.train(world, whole, train__lr=0.02)
    rows = (world / "train.json").read_text()
    try:
        (world / "train.json").write_text(rows + "\n")
        with pytest.raises(UserError, match=r"train\.json: its contents have changed"):
            stage.train(world, whole)
    finally:
        (world / "train.json").write_text(rows)
    assert outputs(whole) == before


@EACH
def test_parts_of_a_batch_give_the_whole_batchs_gradient(runs, tmp_path, name):
    changes = {"train__batch_size": 8, "train__lr": 1e-3, "train__warmup_steps": 0}
    if name == "sft":
        tiny.t5(dropout=0.0).save(tmp_path / "base")
        changes["model__ckpt"] = tmp_path / "base"
    folders = []
    for size in (8, 2):
        changes["train__micro_batch_size"] = size
        folders.append(STAGES[name].train(runs[name], tmp_path / str(size), **changes))
    first, second = map(weights, folders)
    for tensor, other in zip(first.values(), second.values(), strict=True):
        torch.testing.assert_close(tensor, other, rtol=1e-3, atol=5e-5)
    of_dev = [
        [line["eval/loss"] for line in read_jsonl(folder / "metrics.jsonl") if "eval/loss" in line]
        for folder in folders
    ]
    assert of_dev[0] and of_dev[0] == pytest.approx(of_dev[1], rel=1e-3)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@EACH
def test_a_loss_that_is_not_finite_ends_training(runs, tmp_path, monkeypatch, name, value):
    stage, world = STAGES[name], runs[name]
    original = stage.trainer.mean_loss

    def mean_loss(self, model, batch):
        loss = original(self, model, batch)
        return loss.abs() * value if model.training and self.step == 2 else loss

    monkeypatch.setattr(stage.trainer, "mean_loss", mean_loss)
    for _ in range(2):  # each time from the checkpoint of step 2
        with pytest.raises(UserError) as error:
            stage.train(world, tmp_path / "run")
        assert f"the loss is {value} at step 3. Lower train.lr (it is 0.01)" in str(error.value)
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names.isdisjoint(("result.json", "model.safetensors", "metrics.json"))
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-2"]


NONSENSE = {
    **{"train__seed": -1, "train__lr": 1e308, "train__epochs": 1e-320},
    **{"train__max_steps": 10**10, "train__batch_size": 1e30, "train__micro_batch_size": 10**11},
    **{"train__max_grad_norm": 1e-320, "train__warmup_steps": 10**11},
    **{"evaluation__batch_size": 10**24, "evaluation__every_steps": 10**10},
}


@EACH
def test_nonsense_is_refused_when_the_config_is_read(runs, tmp_path, name):
    for key, value in NONSENSE.items():
        with pytest.raises(UserError, match=key.replace("__", ".")):
            STAGES[name].config(runs[name], tmp_path, **{key: value})
