"""Stages without a task folder and without a YAML file: one line each."""

import json

import tiny

from fgrlhf.base.files import write_jsonl
from fgrlhf.cli import evaluate, generate, rl


def test_rl_generate_and_evaluate_need_no_task_and_no_config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny.gpt2().save("model")
    for split in ("train", "test"):
        write_jsonl(f"{split}.jsonl", [{"prompt": f"the red cat {i}"} for i in range(4)])
    reward = "{kind: length, min_words: 9, value: -0.1}"
    rl.main(
        [
            *("--model.ckpt", "model", "--model.max_generated_len", "6"),
            *("--data.train_file", "train.jsonl", "--data.dev_file", "test.jsonl"),
            f"--reward.brevity={reward}",
            *("--algorithm.name", "rloo", "--env.train_num_samples_per_input", "2"),
            *("--train.total_episodes", "4", "--train.sampling_batch_size_per_card", "2"),
            *("--train.micro_batch_size", "4", "--logging.save_dir", "run"),
        ]
    )
    run = json.loads((tmp_path / "run/run.json").read_text())
    assert run.get("task") is None
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    (step,) = [line for line in map(json.loads, lines) if "reward/brevity" in line]
    assert step["reward/brevity"] < 0
    sampling = ["data_dir=.", "output_dir=out", "policy=run/final"]
    generate.main([*sampling, "num_samples=2", "max_generated_len=4"])
    rows = (tmp_path / "out/generated/run-train/samples.jsonl").read_text().splitlines()
    assert len(rows) == 4 and len(json.loads(rows[0])["responses"]) == 2
    evaluate.main([*sampling, "config=run/config.yaml", "split=test"])
    assert json.loads((tmp_path / "out/eval/run-test/summary.json").read_text())["reward"]
