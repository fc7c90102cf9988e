import pytest
import tiny

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_jsonl, write_json, write_jsonl
from fgrlhf.cli import generate as module
from fgrlhf.cli.generate import GenerateSettings
from fgrlhf.runs.stage import hold
from fgrlhf.text_types import Prompt
from tasks.qa_feedback.data import mini_world
from tasks.qa_feedback.task import TASK


@pytest.fixture
def world(tmp_path):
    write_json(tmp_path / "train.json", [mini_world.make_row(0, "train", i) for i in range(7)])
    tiny.t5(seed=1).save(tmp_path / "sft")
    return tmp_path


def generate(settings):
    return module.generate(TASK, settings)


def settings(world, **changes):
    given = {
        "policy": f"{world}/sft",
        "data_dir": str(world),
        "output_dir": str(world / "a"),
        "max_generated_len": 6,
        "batch_size": 2,
    }
    return GenerateSettings(**{**given, **changes})


def test_four_samples_of_every_question(world):
    path = generate(settings(world))
    assert path == world / "a" / "generated" / "sft-train" / "samples.jsonl"
    rows = read_jsonl(path)
    assert [row["id"] for row in rows] == [str(i) for i in range(7)]
    source = mini_world.make_row(0, "train", 3)
    assert (rows[3]["question"], rows[3]["passages"]) == (source["question"], source["passages"])
    assert all(len(row["predictions"]) == 4 for row in rows)
    assert len(set(rows[0]["predictions"])) > 1
    assert not list(path.parent.glob("part-*"))


def test_an_interrupted_run_ends_as_an_uninterrupted_one(world, monkeypatch, capsys):
    monkeypatch.setattr(module, "BATCHES_PER_CHUNK", 1)
    whole = read_jsonl(generate(settings(world)))
    other = settings(world, output_dir=str(world / "b"))
    calls, original = [], module.generate_texts

    def interrupted(policy, chunk, *args, **kwargs):
        calls.append([prompt.id for prompt in chunk])
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(policy, chunk, *args, **kwargs)

    monkeypatch.setattr(module, "generate_texts", interrupted)
    with pytest.raises(KeyboardInterrupt):
        generate(other)
    part = world / "b" / "generated" / "sft-train" / "part-0-of-1.jsonl"
    assert len(read_jsonl(part)) == 4 and not part.with_name("samples.jsonl").exists()
    part.write_text(part.read_text() + '{"id": "4", "quest')  # a line cut off by a crash
    assert read_jsonl(generate(other)) == whole
    assert calls[3:] == [["4", "5"], ["6"]]
    capsys.readouterr()
    assert read_jsonl(generate(other)) == whole
    assert "generated before, reusing" in capsys.readouterr().out


def test_finished_samples_are_never_replaced(world):
    """They may be under annotation."""
    path = generate(settings(world))
    before = path.read_bytes()
    with pytest.raises(UserError, match="(?s)other settings.*num_samples: 4 there, 2 now"):
        generate(settings(world, num_samples=2))
    assert path.read_bytes() == before


def test_unfinished_samples_of_other_settings_start_over(world, monkeypatch):
    interrupted_after(monkeypatch, 2)
    with pytest.raises(KeyboardInterrupt):
        generate(settings(world))
    rows = read_jsonl(generate(settings(world, seed=1, num_samples=2, max_examples=3)))
    assert len(rows) == 3 and len(rows[0]["predictions"]) == 2


def test_missing_inputs_are_named(world):
    with pytest.raises(UserError, match="dev.json does not exist"):
        generate(settings(world, split="dev"))
    with pytest.raises(UserError, match="no language model could be loaded"):
        generate(settings(world, policy="nowhere/at/all"))


LINE_ENDS = "a\u2028b\u2029c\x85d\x0be\x1cf"  # characters that end a line for str.splitlines


def interrupted_after(monkeypatch, chunks):
    monkeypatch.setattr(module, "BATCHES_PER_CHUNK", 1)
    calls, original = [], module.generate_texts

    def generate_texts(policy, chunk, *args, **kwargs):
        calls.append(chunk)
        if len(calls) == chunks + 1:
            raise KeyboardInterrupt
        return original(policy, chunk, *args, **kwargs)

    monkeypatch.setattr(module, "generate_texts", generate_texts)


def test_texts_may_hold_every_end_of_line(world, monkeypatch):
    rows = [mini_world.make_row(0, "train", i) for i in range(4)]
    for row in rows:
        row["question"] += LINE_ENDS
        row["text"] += LINE_ENDS
    write_json(world / "train.json", rows)
    whole = read_jsonl(generate(settings(world)))
    interrupted_after(monkeypatch, 1)
    with pytest.raises(KeyboardInterrupt):
        generate(settings(world, output_dir=str(world / "b")))
    assert read_jsonl(generate(settings(world, output_dir=str(world / "b")))) == whole
    assert LINE_ENDS in whole[0]["question"]


def test_rows_of_an_interrupted_run_may_have_different_keys(tmp_path, capsys):
    prompts = [Prompt(str(i), "p", meta={"topic": "a"} if i != 1 else {}) for i in range(3)]

    def to_row(prompt, texts):
        return {"id": prompt.id, "prompt": prompt.text, **prompt.meta}

    rows = [to_row(prompt, []) for prompt in prompts]
    write_jsonl(tmp_path / "part.jsonl", rows)
    assert module.read_part(tmp_path / "part.jsonl", prompts, to_row) == rows
    assert "damaged" not in capsys.readouterr().out


@pytest.mark.parametrize("how", ["not JSON", "not UTF-8", "list", "other row"])
def test_damaged_rows_of_an_interrupted_run_are_sampled_again(world, monkeypatch, capsys, how):
    whole = read_jsonl(generate(settings(world)))
    interrupted_after(monkeypatch, 2)
    other = settings(world, output_dir=str(world / "b"))
    with pytest.raises(KeyboardInterrupt):
        generate(other)
    part = world / "b" / "generated" / "sft-train" / "part-0-of-1.jsonl"
    lines = part.read_bytes().split(b"\n")
    lines[2] = {"not JSON": b"{", "not UTF-8": b"\xff", "list": b"[]", "other row": lines[3]}[how]
    part.write_bytes(b"\n".join(lines))
    assert read_jsonl(generate(other)) == whole
    assert "line 3 is damaged" in capsys.readouterr().out


def test_answers_of_unknown_settings_are_not_used(world, monkeypatch):
    """A folder without config.yaml: the seed of its rows is unknown."""
    whole = read_jsonl(generate(settings(world)))
    interrupted_after(monkeypatch, 2)
    with pytest.raises(KeyboardInterrupt):
        generate(settings(world, output_dir=str(world / "b"), seed=1))
    (world / "b" / "generated" / "sft-train" / "config.yaml").unlink()
    assert read_jsonl(generate(settings(world, output_dir=str(world / "b")))) == whole


def test_parts_that_a_kill_left_beside_the_samples_go(world):
    path = generate(settings(world))
    path.with_name("part-0-of-1.jsonl").write_text("{}\n")
    assert generate(settings(world)) == path and not list(path.parent.glob("part-*"))


def test_two_at_once_are_refused(world):
    with (
        hold(world / "a" / "generated" / "sft-train"),
        pytest.raises(UserError, match="another process works in"),
    ):
        generate(settings(world))
