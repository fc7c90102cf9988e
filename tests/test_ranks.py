"""The benchmark of the memory of several processes: its table and its plot."""

import json

from benchmarks import ranks


def test_every_point_of_every_axis_is_in_the_table_and_in_the_plot(tmp_path, monkeypatch, capsys):
    """A pretended measurement: `ddp` needs 1,000 MB more than `fsdp2`."""

    def measured(size, strategy, result):
        peak = size.prompts + size.prompt_tokens + size.answer_tokens
        peak += 1000 if strategy == "ddp" else 0
        return {"build": 1.0, "rollout": peak, "update": peak + 0.4}

    monkeypatch.setattr(ranks, "measured", measured)
    results = tmp_path / "RESULTS.md"
    results.write_text("before\n<!-- ranks -->\nold\n<!-- /ranks -->\nafter\n")
    ranks.run(
        ranks.Settings(
            points=2,
            output_dir=str(tmp_path / "out"),
            plot=str(tmp_path / "plots" / "ranks.svg"),
            results=str(results),
        )
    )
    text = results.read_text()
    assert text.startswith("before") and text.endswith("after\n") and "old" not in text
    # 2 prompts of 256 tokens, answers of 100, unless the axis says otherwise
    assert "| prompts of a step | 4 | 1,360 | 1,360 | 360 | 360 |" in text
    assert "| tokens of a prompt | 128 | 1,230 | 1,230 | 230 | 230 |" in text
    assert "| tokens of an answer | 50 | 1,308 | 1,308 | 308 | 308 |" in text
    assert "![memory of a process](plots/ranks.svg)" in text
    plot = (tmp_path / "plots" / "ranks.svg").read_text()
    assert plot.count("fsdp2, update") == plot.count("ddp, rollout") == 3
    points = json.loads((tmp_path / "out" / "ranks.json").read_text())
    assert [point["x"] for point in points["prompts"]["ddp"]] == [2, 4]
    assert "prompts 2, ddp: build 1 MB" in capsys.readouterr().out
