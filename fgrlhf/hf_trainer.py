"""What the stages that train with transformers' `Trainer` share."""

import sys

from tqdm import tqdm
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback

from fgrlhf.runlog import RunLog

# Timings differ from run to run; the rest is the Trainer's own summary at the end.
_NOT_METRICS = ("_runtime", "_per_second", "_jit_compilation_time", "total_flos", "train_loss")


class RunLogCallback(TrainerCallback):
    """Writes the Trainer's logs to a `RunLog` and shows a progress bar, plain lines where there is no
    terminal.

    A line of metrics.jsonl: step, epoch, and `loss`, `lr`, `grad_norm` in training, `eval/<name>` at an
    evaluation.
    """

    def __init__(self, log: RunLog, name: str):
        self.log, self.name, self.bar = log, name, None

    def on_train_begin(self, args, state, control, **_):
        if state.is_world_process_zero:
            hidden = not sys.stderr.isatty()
            self.bar = tqdm(
                total=state.max_steps, initial=state.global_step, desc=self.name, unit="step", disable=hidden
            )

    def on_step_end(self, args, state, control, **_):
        if self.bar is not None:
            self.bar.update(state.global_step - self.bar.n)
        return self._log_what_is_saved(control)

    def on_epoch_end(self, args, state, control, **_):
        return self._log_what_is_saved(control)

    @staticmethod
    def _log_what_is_saved(control):
        """A loss is averaged since the last line: with a line at each checkpoint a resumed run logs the same."""
        control.should_log = control.should_log or control.should_save
        return control

    def on_log(self, args, state, control, logs=None, **_):
        metrics = {_name(key): value for key, value in logs.items() if not key.endswith(_NOT_METRICS)}
        if metrics.keys() - {"epoch"}:
            self.log.log(state.global_step, metrics)
            self._show(state, metrics)

    def on_train_end(self, args, state, control, **_):
        if self.bar is not None:
            self.bar.close()

    def _show(self, state, metrics: dict) -> None:
        if self.bar is None:
            return
        shown = {name: value for name, value in metrics.items() if name not in ("epoch", "lr", "grad_norm")}
        if self.bar.disable or any(name.startswith("eval/") for name in shown):
            numbers = ", ".join(f"{name} {value:.4g}" for name, value in shown.items())
            tqdm.write(f"{self.name}: step {state.global_step}/{state.max_steps}, {numbers}", file=sys.stdout)
            sys.stdout.flush()
        else:
            self.bar.set_postfix(shown, refresh=False)


def _name(key: str) -> str:
    if key.startswith("eval_"):
        return "eval/" + key.removeprefix("eval_")
    return "lr" if key == "learning_rate" else key


def use_run_log(trainer: Trainer, log: RunLog, name: str) -> None:
    """Let the Trainer speak through `log` alone."""
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    trainer.add_callback(RunLogCallback(log, name))
