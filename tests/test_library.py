"""The scripts of docs/library.md run, and `import fgrlhf` stays light."""

import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
import tiny

import fgrlhf
from fgrlhf.base.files import write_jsonl

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
    training, scoring = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.M | re.S)
    assert training.count("\n") <= 30
    small = {'"total_episodes": 3200, "warmup_steps": 5': '"total_episodes": 32, "warmup_steps": 0'}
    small['"max_generated_len": 64'] = '"max_generated_len": 8, "max_input_len": 8'
    for text, other in small.items():
        assert text in training
        training = training.replace(text, other)
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
