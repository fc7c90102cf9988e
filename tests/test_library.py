"""The scripts of docs/library.md run, and `import fgrlhf` stays light."""

import random
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import ClassVar

import pytest
import rl_helpers
import tiny
import torch

import fgrlhf
from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_jsonl
from fgrlhf.runs.runlog import RunLog

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/library.md").read_text(encoding="utf-8")


@pytest.fixture
def run_script(monkeypatch, tmp_path):
    """Runs a script of the page in a folder with its files, as Python runs a program."""
    monkeypatch.chdir(tmp_path)
    tiny.gpt2().save("outputs/models/smollm2")
    for name in ("prompts", "dev"):
        write_jsonl(f"{name}.jsonl", [{"prompt": f"the red cat {i}"} for i in range(4)])

    def run(script: str) -> dict:
        module = types.ModuleType("__main__")
        monkeypatch.setitem(sys.modules, "__main__", module)
        exec(compile(script, "library.md", "exec"), vars(module))
        return vars(module)

    return run


def test_the_scripts_of_the_page(run_script, capsys):
    training, callbacks, scoring = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.M | re.S)
    assert training.count("\n") <= 30
    small = {'"total_episodes": 3200, "warmup_steps": 5': '"total_episodes": 32, "warmup_steps": 0'}
    small['"max_generated_len": 64'] = '"max_generated_len": 8, "max_input_len": 8'
    for text, other in small.items():
        assert text in training
        training = training.replace(text, other)
    assert {"on_step", "on_evaluate", "on_save"} <= vars(run_script(callbacks)["Mine"]).keys()
    run_script(training)
    assert "1 steps; the policies are in outputs/short" in capsys.readouterr().out
    logprobs_B = run_script(scoring)["output"].logprobs_BT.sum(dim=1)
    assert logprobs_B.shape == (2,) and bool((logprobs_B < 0).all())


def test_every_export_exists():
    for name in fgrlhf.EXPORTS:
        assert getattr(fgrlhf, name) is not None and name in dir(fgrlhf)
    with pytest.raises(AttributeError, match="no attribute 'Trainer'"):
        _ = fgrlhf.Trainer


def test_importing_the_package_imports_no_torch():
    check = "import sys, fgrlhf; print('torch' in sys.modules, 'pydantic' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "False"]


class Curious:
    """Writes down its calls, draws random numbers, and fails when a policy is saved."""

    calls: ClassVar[list[tuple]] = []

    def on_step(self, step, metrics):
        torch.manual_seed(step)
        random.random()
        with pytest.raises(TypeError):
            metrics["reward/total"] = 9.0
        self.calls.append(("step", step, metrics["reward/total"]))

    def on_evaluate(self, step, metrics):
        self.calls.append(("evaluate", step, metrics["eval/reward"]))

    def on_save(self, step, folder):
        self.calls.append(("save", step, folder.name))
        if folder.name == "final":
            raise RuntimeError("no network")


def test_callbacks_see_copies_and_change_nothing(tmp_path, capsys):
    runs = {}
    for name, callbacks in (("with", ["test_library.Curious"]), ("without", [])):
        config = rl_helpers.config(
            tmp_path / name, logging__callbacks=callbacks, train__total_episodes=16
        )
        rl_helpers.trainer(config, evaluate=lambda policy: {"reward": 0.5, "kl": 0.0}).train()
        runs[name] = rl_helpers.metrics(tmp_path / name)
    assert runs["with"] == runs["without"]
    assert {call[0] for call in Curious.calls} == {"step", "evaluate", "save"}
    assert Curious.calls[-1][::2] == ("save", "final")
    assert "no network" in capsys.readouterr().out
    with pytest.raises(UserError, match="did you mean `Curious`"):
        RunLog(tmp_path / "other", callbacks=["test_library.Curios"])
