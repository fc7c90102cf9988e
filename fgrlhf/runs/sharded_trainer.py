"""A `Trainer` of transformers whose model is divided among the processes (`fsdp2`).

The model is divided by `fgrlhf.models.sharding`, and nothing of it by transformers or accelerate:
accelerate's own FSDP2 fails on tied weights (T5). What remains to do here

    wrapping      accelerate must not wrap the divided model in DistributedDataParallel
    gradients     are averaged over processes like those of DDP, so losses are computed alike
    evaluation    runs within `unsharded`, so the processes may do unequal work
    checkpoints   hold whole tensors: the files are those of a whole model, and a run may continue
                  with another strategy or number of processes
"""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import Trainer
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME

from fgrlhf.models.sharding import clip_grad_norm, is_sharded, load_whole, unsharded, whole
from fgrlhf.runs.checkpoint import load_optimizer, optimizer_tensors
from fgrlhf.runs.distributed import shard_over_processes, shards_models
from fgrlhf.runs.rl_config import ParallelConfig


class ShardableTrainer(Trainer):
    """A Trainer that divides its model if `parallel` asks for it and there are several processes.

    Args:
      parallel: of the config.

    Attributes:
      sharded: whether the model is divided. It is whole until `train` is called.
    """

    # transformers declares unions of all that its integrations use
    model: Any
    optimizer: Any
    lr_scheduler: Any

    def __init__(self, *args, parallel: ParallelConfig | None = None, **kwargs):
        self._parallel = parallel or ParallelConfig()
        super().__init__(*args, **kwargs)
        self.sharded = shards_models(self._parallel, self.accelerator)

    def _move_model_to_device(self, model: nn.Module, device: torch.device) -> None:
        """A model that will be divided moves to the device layer by layer, while it is divided."""
        if not shards_models(self._parallel, self.accelerator):
            super()._move_model_to_device(model, device)

    def train(self, *args, **kwargs):
        self._divide_model()
        return super().train(*args, **kwargs)

    def _divide_model(self) -> None:
        if not self.sharded or is_sharded(self.model):
            return
        shard_over_processes(self.model, self.accelerator, "bf16" if self.args.bf16 else "fp32")
        # With `evaluation_mode`, accelerate adds the precision of the forward pass and regards the
        # model as prepared, so that it is not wrapped later.
        self.accelerator.prepare_model(self.model, device_placement=False, evaluation_mode=True)

    def _clip_grad_norm(self, model):
        if not self.sharded:
            return super()._clip_grad_norm(model)
        return clip_grad_norm(list(model.parameters()), self.args.max_grad_norm)

    def evaluate(self, *args, **kwargs):
        with unsharded(self.model):
            return super().evaluate(*args, **kwargs)

    def predict(self, *args, **kwargs):
        with unsharded(self.model):
            return super().predict(*args, **kwargs)

    # ---- checkpoints -----------------------------------------------------------------------------

    def whole_tensors(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of a divided model as whole ones, on the process that writes files.

        Other processes get {}. All of them must call this together.
        """
        return whole(tensors, keep=self.args.should_save)

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        if self.sharded:
            tensors = self.model.state_dict(keep_vars=True) if state_dict is None else state_dict
            state_dict = self.whole_tensors(tensors)
        super()._save(output_dir, state_dict)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if not self.sharded:
            super()._save_optimizer_and_scheduler(output_dir)
            return
        tensors, groups = optimizer_tensors(self.optimizer)
        tensors = self.whole_tensors(tensors)
        if not self.args.should_save:
            return
        state: dict[int, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            index, _, name = key.partition(".")
            state.setdefault(int(index), {})[name] = tensor
        folder = Path(output_dir)
        torch.save({"state": state, "param_groups": groups}, folder / OPTIMIZER_NAME)
        torch.save(self.lr_scheduler.state_dict(), folder / SCHEDULER_NAME)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if not self.sharded:
            super()._load_from_checkpoint(resume_from_checkpoint, model)
            return
        self._load_weights(Path(resume_from_checkpoint))

    def _load_best_model(self) -> None:
        if not self.sharded:
            super()._load_best_model()
            return
        assert self.state.best_model_checkpoint is not None  # the caller has checked it
        self._load_weights(Path(self.state.best_model_checkpoint))

    def _load_weights(self, folder: Path) -> None:
        """Every process reads a checkpoint's files and keeps its part."""
        for path in sorted(folder.glob("*.safetensors")):
            load_whole(self.model, load_file(path))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if not self.sharded or checkpoint is None:
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        folder = Path(checkpoint)
        saved = torch.load(folder / OPTIMIZER_NAME, map_location="cpu", weights_only=True)
        tensors = {}
        for index, entry in saved["state"].items():
            for name, tensor in entry.items():
                tensors[f"{index}.{name}"] = tensor
        load_optimizer(self.optimizer, tensors, saved["param_groups"])
        self.lr_scheduler.load_state_dict(torch.load(folder / SCHEDULER_NAME, weights_only=True))
