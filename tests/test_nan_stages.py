"""Stages end with the reason if a policy's logits are NaN, and write no results."""

from pathlib import Path

import pytest
import tiny

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, write_json
from fgrlhf.cli import evaluate, generate
from fgrlhf.policy import load_policy
from fgrlhf.reward_utils import MULTILINGUAL
from tasks.qa_feedback.data import mini_world
from tasks.qa_feedback.task import TASK

CONFIG = Path(__file__).parents[1] / "tasks/qa_feedback/training/mini_oracle_config.yml"


def damaged_policy(*args, **kwargs):
    """A policy whose weights were intact when loaded."""
    policy = load_policy(*args, **kwargs)
    next(policy.parameters()).data[:] = float("nan")
    return policy


@pytest.mark.parametrize("module", [generate, evaluate], ids=["generate", "evaluate"])
def test_no_result_of_a_policy_that_gives_no_numbers(module, tmp_path, monkeypatch):
    write_json(tmp_path / "dev.json", [mini_world.make_row(0, "dev", i) for i in range(3)])
    tiny.t5().save(tmp_path / "sft")
    monkeypatch.setenv("OUTPUT_DIR", str(tmp_path))
    monkeypatch.setenv("DATA_DIR", str(tmp_path))
    folders = {
        "policy": str(tmp_path / "sft"),
        "split": "dev",
        "data_dir": str(tmp_path),
        "output_dir": str(tmp_path),
    }
    if module is generate:
        settings = generate.GenerateSettings(**folders, max_generated_len=4)
    else:
        settings = evaluate.EvaluateSettings(**folders, config=str(CONFIG), reward=False)
    run = getattr(module, module.__name__.rpartition(".")[2])
    with monkeypatch.context() as patched:
        owner = "fgrlhf.cli.generate" if module is generate else "fgrlhf.policy"
        patched.setattr(f"{owner}.load_policy", damaged_policy)
        with pytest.raises(UserError, match="the policy's logits are NaN or infinite"):
            run(TASK, settings)
    written = [
        path
        for path in tmp_path.rglob("*")
        if path.name in ("result.json", "samples.jsonl", "rows.jsonl", "summary.json")
    ]
    assert not written and not [path for path in tmp_path.rglob("part-*") if path.read_text()]
    assert run(TASK, settings).exists()  # with intact weights the same command gives the result
    if module is evaluate:
        assert (
            read_json(tmp_path / "eval" / "sft-dev" / "result.json")["rouge_segmenter"]["name"]
            == MULTILINGUAL
        )
