"""The logs of transformers' `Trainer`, as lines of metrics.jsonl and a progress bar."""

import sys

from tqdm import tqdm
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback

from fgrlhf.runs.runlog import RunLog

# Timings, which differ from run to run, and the Trainer's own summary at the end.
_NOT_METRICS = ("_runtime", "_per_second", "_jit_compilation_time", "total_flos", "train_loss")


class RunLogCallback(TrainerCallback):
    """Writes the Trainer's logs to a `RunLog`, and shows a progress bar on a terminal.

    Without a terminal it prints lines. A line of metrics.jsonl has step, epoch, and `loss`, `lr`,
    `grad_norm` in training, `eval/<name>` at an evaluation.
    """

    def __init__(self, log: RunLog, name: str):
        self.log = log
        self.name = name
        self.bar: tqdm | None = None

    def on_train_begin(self, args, state, control, **_):
        if state.is_world_process_zero:
            self.bar = tqdm(
                total=state.max_steps,
                initial=state.global_step,
                desc=self.name,
                unit="step",
                disable=not sys.stderr.isatty(),
            )

    def on_step_end(self, args, state, control, **_):
        if self.bar is not None:
            self.bar.update(state.global_step - self.bar.n)
        return self._log_what_is_saved(control)

    def on_epoch_end(self, args, state, control, **_):
        return self._log_what_is_saved(control)

    @staticmethod
    def _log_what_is_saved(control):
        """Log at each checkpoint: losses are averaged since the last line, also in resumed runs."""
        control.should_log = control.should_log or control.should_save
        return control

    def on_log(self, args, state, control, logs=None, **_):
        metrics = {}
        for key, value in (logs or {}).items():
            if not key.endswith(_NOT_METRICS):
                metrics[_name(key)] = value
        if metrics.keys() - {"epoch"}:
            self.log.log(state.global_step, metrics)
            self._show(state, metrics)

    def on_train_end(self, args, state, control, **_):
        if self.bar is not None:
            self.bar.close()

    def _show(self, state, metrics: dict) -> None:
        if self.bar is None:
            return
        shown = dict(metrics)
        for name in ("epoch", "lr", "grad_norm"):
            shown.pop(name, None)
        if self.bar.disable or any(name.startswith("eval/") for name in shown):
            numbers = ", ".join(f"{name} {value:.4g}" for name, value in shown.items())
            tqdm.write(
                f"{self.name}: step {state.global_step}/{state.max_steps}, {numbers}",
                file=sys.stdout,
            )
            sys.stdout.flush()
        else:
            self.bar.set_postfix(shown, refresh=False)


def _name(key: str) -> str:
    if key.startswith("eval_"):
        return "eval/" + key.removeprefix("eval_")
    return "lr" if key == "learning_rate" else key


def use_run_log(trainer: Trainer, log: RunLog, name: str) -> None:
    """Send the Trainer's logs only to `log`."""
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    trainer.add_callback(RunLogCallback(log, name))
