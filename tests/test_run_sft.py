import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import tiny
from fgrlhf.config import load_config
from fgrlhf.decoding import Sampling
from fgrlhf.policy import load_policy
from fgrlhf.rollout import generate_texts
from fgrlhf.types import Prompt
from fgrlhf.utils import UserError, read_json, read_jsonl, run_main, write_json
from sft import run_sft
from sft.data import Order, encode, read_examples
from sft.run_sft import SFTConfig, SFTTrainer, train

ANSWERS = {
    "red": "the red cat sees a dog .",
    "blue": "a blue bird likes the cat .",
    "green": "one two three .",
}


def rows(n):
    """The answer depends on one word of the prompt, and that word's place varies."""
    colours = list(ANSWERS)
    return [
        {
            "text": f"question: {'the ' * (i % 4)}{colours[i % 3]} {'dog ' * (i % 2)}answer:",
            "answer": [ANSWERS[colours[i % 3]]],
        }
        for i in range(n)
    ]


@pytest.fixture
def world(tmp_path):
    tiny.t5(dropout=0.1).save(tmp_path / "base")
    write_json(tmp_path / "train.json", rows(48))
    write_json(tmp_path / "dev.json", rows(12))
    (tmp_path / "config.yml").write_text(f"""
model: {{ckpt: {tmp_path}/base, max_input_len: 32, max_generated_len: 16}}
data: {{train_file: {tmp_path}/train.json, dev_file: {tmp_path}/dev.json}}
train: {{max_steps: 10, batch_size: 8, lr: 1e-2, seed: 1}}
evaluation: {{every_steps: 4}}
logging: {{run_name: sft, save_dir: {tmp_path}/sft, log_interval: 2}}
""")
    return tmp_path


def config(world, *overrides):
    return load_config(SFTConfig, world / "config.yml", overrides)


def weights(folder):
    return load_file(folder / "model.safetensors")


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_learns_and_leaves_a_loadable_model(world, capsys):
    folder = train(config(world, "train.max_steps=120", "evaluation.every_steps=40"))
    lines = read_jsonl(folder / "metrics.jsonl")
    scores = {line["step"]: line["eval/rougeLsum"] for line in lines if "eval/rougeLsum" in line}
    losses = [line["loss"] for line in lines if "loss" in line]
    assert list(scores) == [40, 80, 120] and scores[120] > 95
    assert losses[0] > 3 and losses[-1] < 0.8  # .49 to .66 over eight seeds
    assert {"step", "epoch", "loss", "lr", "grad_norm"} == set(lines[0])
    assert {"step", "epoch", "eval/loss", "eval/rougeLsum", "eval/length"} == {key for key in lines[-1]}
    assert read_json(folder / "result.json")["best"] == max(scores.values())
    assert not (folder / "checkpoints").exists()

    policy = load_policy(folder)
    prompts = [Prompt("0", row["text"]) for row in rows(12)]
    texts = generate_texts(policy, prompts, Sampling(16, do_sample=False), progress=False)
    assert sum(text == ANSWERS[list(ANSWERS)[i % 3]] for i, (text,) in enumerate(texts)) >= 11
    sample = read_jsonl(folder / "samples" / "step-120.jsonl")[0]
    assert sample["response"] == ANSWERS["red"] and sample["rougeLsum"] == pytest.approx(100)
    assert "eval/rougeLsum" in capsys.readouterr().out


def interrupt_at(monkeypatch, steps):
    """Ctrl-C in the middle of training step `steps` + 1."""
    done, original = [], SFTTrainer.training_step

    def training_step(self, *args, **kwargs):
        if len(done) == steps:
            raise KeyboardInterrupt
        done.append(1)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(SFTTrainer, "training_step", training_step)


@pytest.mark.parametrize("grouped", ["true", "false"])
def test_an_interrupted_run_ends_as_an_uninterrupted_one(world, monkeypatch, capsys, grouped):
    options = [
        f"train.group_by_length={grouped}",
        "train.batch_size=16",
        "logging.log_interval=3",
    ]  # three steps a pass
    passes, start = [], Order.__iter__
    monkeypatch.setattr(Order, "__iter__", lambda self: passes.append(self.epoch()) or start(self))
    whole = train(config(world, *options))
    assert passes == [0, 1, 2, 3]
    other = config(world, *options, f"logging.save_dir={world}/other")
    with monkeypatch.context() as patch:
        interrupt_at(patch, 6)  # two steps after a checkpoint in the middle of the second pass over the data
        with pytest.raises(KeyboardInterrupt):
            train(other)
    assert not (world / "other" / "config.json").exists()  # no model until there is a whole one
    half = world / "other" / "checkpoints" / "checkpoint-6"
    half.mkdir()
    (half / "trainer_state.json").write_text('{"global_')
    train(other)
    assert "continuing from step 4" in capsys.readouterr().out
    assert equal(weights(whole), weights(world / "other"))  # dropout is on: random numbers are restored, too
    assert read_jsonl(whole / "metrics.jsonl") == read_jsonl(world / "other" / "metrics.jsonl")


def test_a_finished_run_is_reused(world, monkeypatch, capsys):
    folder = train(config(world))
    capsys.readouterr()
    monkeypatch.setattr(run_sft, "load_policy", None)
    assert train(config(world)) == folder
    assert capsys.readouterr().out == f"sft: finished before, reusing {folder}\n"


def test_other_settings_or_data_in_the_same_folder_are_refused(world):
    train(config(world))
    before = weights(world / "sft")
    with pytest.raises(UserError, match=r"train\.lr: 0\.01 there, 0\.02 now"):
        train(config(world, "train.lr=2e-2"))
    write_json(world / "train.json", rows(47))
    with pytest.raises(UserError, match=r"train\.json: its contents have changed"):
        train(config(world))
    shutil.copytree(world / "base", world / "base2")
    tiny.t5(seed=5).save(world / "base")
    write_json(world / "train.json", rows(48))
    with pytest.raises(UserError, match="base: its contents have changed"):
        train(config(world))
    assert equal(before, weights(world / "sft"))


@pytest.mark.parametrize("metric, scores, best", [("rougeLsum", [10.0, 30.0, 20.0], 8), ("loss", None, 10)])
def test_the_best_checkpoint_is_kept(world, monkeypatch, metric, scores, best):
    given = iter(scores or [])
    monkeypatch.setattr(SFTTrainer, "generated_metrics", lambda self: {"rougeLsum": next(given)})
    saved = {}
    original = SFTTrainer._save

    def save(self, output_dir=None, state_dict=None):
        saved[self.state.global_step] = {k: v.clone() for k, v in self.model.state_dict().items()}
        original(self, output_dir, state_dict)

    monkeypatch.setattr(SFTTrainer, "_save", save)
    folder = train(config(world, f"evaluation.metric={metric}"))
    kept = weights(folder)
    assert read_json(folder / "result.json")["best_step"] == best
    assert sorted(saved) == [4, 8, 10]
    assert [
        step for step, state in saved.items() if all(torch.equal(state[k], v) for k, v in kept.items())
    ] == [best]
    if metric == "loss":
        losses = [line["eval/loss"] for line in read_jsonl(folder / "metrics.jsonl") if "eval/loss" in line]
        assert read_json(folder / "result.json")["best"] == min(losses) == losses[-1]


def test_without_dev_rows_the_last_model_is_kept(world):
    folder = train(config(world, "data.dev_file=null", "train.max_steps=3"))
    assert load_policy(folder) and read_json(folder / "result.json")["steps"] == 3


def test_epochs_and_accumulation(world):
    """48 rows in batches of 8 for half an epoch; two micro-batches of 4 are the same steps as one of 8."""
    write_json(
        world / "train.json", [{"text": row["text"], "answer": ["one two three ."]} for row in rows(48)]
    )
    tiny.t5(dropout=0.0).save(world / "base")
    options = [
        "train.max_steps=null",
        "train.epochs=0.5",
        "data.dev_file=null",
        "evaluation.every_steps=null",
    ]
    one = train(config(world, *options))
    two = train(config(world, *options, "train.micro_batch_size=4", f"logging.save_dir={world}/two"))
    assert read_json(one / "result.json")["steps"] == read_json(two / "result.json")["steps"] == 3
    for name, tensor in weights(one).items():
        torch.testing.assert_close(tensor, weights(two)[name], atol=2e-5, rtol=1e-4)


def test_a_decoder_only_model_learns_too(world):
    tiny.gpt2().save(world / "base")
    folder = train(config(world, "train.max_steps=80", "evaluation.every_steps=80"))
    assert read_json(folder / "result.json")["best"] > 95


@pytest.mark.parametrize("lengths", [None, [i // 2 for i in range(103)]])
def test_order(lengths):
    epoch = 0
    order = Order(103, 4, seed=7, epoch=lambda: epoch, lengths=lengths)
    first, again = list(order), list(order)
    assert first == again and set(first) == set(range(103)) and len(first) == len(order) == 104
    epoch = 1
    assert list(order) != first and set(order) == set(range(103))
    batches = [first[i : i + 4] for i in range(0, 104, 4)]
    widths = [max(batch) // 2 - min(batch) // 2 for batch in batches]
    if (
        lengths
    ):  # 26 batches are one window: sorted, so a batch's lengths are neighbours; batches come in any order
        assert max(widths) <= 4
        assert [min(batch) for batch in batches] != sorted(min(batch) for batch in batches)
    else:
        assert max(widths) > 30


def test_order_of_fewer_examples_than_a_batch():
    order = list(Order(3, 8, 0, lambda: 0))
    assert sorted(order[:3]) == [0, 1, 2] and order == (order[:3] * 3)[:8]


@pytest.mark.slow
@pytest.mark.parametrize("grouped", ["true", "false"])
def test_two_processes_train_as_one(world, grouped):
    """45 examples in batches of 8: the last batch of a pass is not full."""
    write_json(world / "train.json", rows(45))
    tiny.t5(dropout=0.0).save(world / "base")
    options = [f"train.group_by_length={grouped}", "train.max_steps=14", "evaluation.batch_size=6"]
    one = train(config(world, *options))
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc_per_node=2",
        "--standalone",
        "-m",
        "sft.run_sft",
    ]
    subprocess.run(
        [*command, str(world / "config.yml"), *options, f"logging.save_dir={world}/two"],
        check=True,
    )
    lines, others = read_jsonl(one / "metrics.jsonl"), read_jsonl(world / "two" / "metrics.jsonl")
    assert len(lines) == len(others) > 8
    for line, other in zip(lines, others):
        assert other == pytest.approx(line, rel=1e-4)


def test_encode():
    examples = [Prompt("0", "the red cat", ("one two three .", "blue")), Prompt("1", "a", ("dog",))]
    t5 = tiny.t5()
    first, second = encode(t5, examples, max_generated_len=4)
    ids = t5.tokenizer.convert_tokens_to_ids
    assert first["labels"] == [*ids(["▁one", "▁two", "▁three"]), 1]  # cut to 4 tokens with its end
    assert second == {"input_ids": ids(["▁a"]), "labels": [*ids(["▁dog"]), 1]}
    assert [row["input_ids"] for row in (first, second)] == [
        row_ids[: sum(mask)]
        for row_ids, mask in zip(*(x.tolist() for x in t5.encode([e.text for e in examples])))
    ]

    joined = encode(tiny.gpt2(), examples, max_generated_len=10)[1]
    assert joined == {"input_ids": ids(["▁a", "▁dog"]) + [1], "labels": [-100, ids("▁dog"), 1]}


def test_a_chat_model_is_trained_as_it_is_asked():
    policy = tiny.chat()
    (row,) = encode(policy, [Prompt("0", "the red cat", ("a dog",))], max_generated_len=10)
    written = "<s> <|user|> ▁the ▁red ▁cat <|end|> <|assistant|> ▁a ▁dog <|end|>".split()
    assert policy.tokenizer.convert_ids_to_tokens(row["input_ids"]) == written
    assert row["labels"] == [-100] * 7 + row["input_ids"][7:]


def test_bad_rows_are_all_named(world):
    path = world / "train.json"
    write_json(
        path, [{"text": "a", "answer": ["b"]}, {"text": "", "answer": ["b"]}, {"text": "a", "answer": "b"}, 3]
    )
    with pytest.raises(UserError) as error:
        read_examples(path)
    message = str(error.value)
    assert str(path) in message and "row 0" not in message
    assert "row 1, `text`" in message and "row 2, `answer`" in message and "row 3, `text`" in message
    write_json(path, {"a": 1})
    with pytest.raises(UserError, match="JSON list"):
        read_examples(path)
    assert [e.id for e in read_examples(world / "dev.json", limit=2)] == ["0", "1"]


@pytest.mark.parametrize(
    "overrides, message",
    [
        (["model.ckpt=nowhere/at/all"], "no language model could be loaded from `nowhere/at/all`"),
        (["data.train_file=gone.json"], "gone.json does not exist"),
        (["train.micro_batch_size=3"], "no multiple of train.micro_batch_size=3"),
        (["train.learning_rate=1", "train.batch_size=x"], "2 mistakes"),
    ],
)
def test_mistakes_end_with_a_message_and_leave_nothing(world, monkeypatch, capsys, overrides, message):
    monkeypatch.setattr("sys.argv", ["run_sft", str(world / "config.yml"), *overrides])
    with pytest.raises(SystemExit) as exit_info:
        run_main(run_sft.main)
    assert exit_info.value.code == 2
    assert message in capsys.readouterr().err
    assert not (world / "sft").exists()


def test_a_batch_that_the_processes_cannot_share_is_refused(world, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(UserError, match="cannot be shared out over 3 processes"):
        run_sft.training_arguments(config(world), world / "x")


def test_shipped_configs(monkeypatch):
    monkeypatch.setenv("DATA_DIR", "data")
    monkeypatch.setenv("OUTPUT_DIR", "out")
    folder = Path(run_sft.__file__).parents[1] / "tasks" / "qa_feedback" / "training"
    paper, mini, pretrain = (
        load_config(SFTConfig, folder / f"{name}.yml")
        for name in ("sft_config", "mini_sft_config", "mini_pretrain_config")
    )
    assert (paper.model.ckpt, paper.model.max_input_len, paper.model.max_generated_len) == (
        "t5-large",
        1024,
        200,
    )
    assert (paper.train.epochs, paper.train.batch_size, paper.train.lr, paper.train.bf16) == (
        10,
        4,
        5e-5,
        True,
    )
    assert (
        paper.evaluation.metric == mini.evaluation.metric == "rougeLsum"
        and paper.evaluation.every_steps is None
    )
    assert (paper.data.train_file, paper.data.dev_file) == ("data/train_1k.json", "data/dev.json")
    # one stage's output is the next one's input
    assert (pretrain.logging.save_dir, mini.logging.save_dir, paper.logging.save_dir) == (
        "out/base_model",
        "out/sft",
        "out/sft",
    )
    assert mini.model.ckpt == pretrain.logging.save_dir and pretrain.data.dev_file is None
