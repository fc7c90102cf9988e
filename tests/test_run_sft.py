import subprocess
import sys
from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import load_file
from test_policy import sampled

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, read_jsonl, write_json, write_jsonl
from fgrlhf.base.program import run_main
from fgrlhf.configs.sections import Sampling
from fgrlhf.configs.strict import load_config
from fgrlhf.data.formats import DEMONSTRATIONS, Demonstration
from fgrlhf.models.lora import has_adapters
from fgrlhf.policy import load_policy
from fgrlhf.rollout import generate_texts
from fgrlhf.runs import checkpoint
from fgrlhf.runs.batching import shuffled_batches
from fgrlhf.supervised_trainer import micro_batch_size
from fgrlhf.task import Task
from fgrlhf.text_types import Prompt
from fgrlhf.utils import IGNORED
from sft import run_sft
from sft import run_sft as module
from sft.config import SFTConfig
from sft.data import Unseen, check_lengths, count_unseen, encode
from sft.run_sft import SFTTrainer, train

ANSWERS = {
    "red": "the red cat sees a dog .",
    "blue": "a blue bird likes the cat .",
    "green": "one two three .",
}


def rows(n):
    """The answer depends on one word of the prompt, whose position varies."""
    colours = list(ANSWERS)
    return [
        {
            "text": f"question: {'the ' * (i % 4)}{colours[i % 3]} {'dog ' * (i % 2)}answer:",
            "answer": [ANSWERS[colours[i % 3]]],
        }
        for i in range(n)
    ]


def make_world(folder):
    """Rows to learn from, a policy to start from, and a config."""
    tiny.t5(dropout=0.1).save(folder / "base")
    write_json(folder / "train.json", rows(48))
    write_json(folder / "dev.json", rows(12))
    (folder / "config.yml").write_text(f"""
model: {{ckpt: {folder}/base, max_input_len: 32, max_generated_len: 16}}
data: {{train_file: {folder}/train.json, dev_file: {folder}/dev.json}}
train: {{max_steps: 10, batch_size: 8, lr: 1e-2, seed: 1}}
evaluation: {{every_steps: 4}}
logging: {{run_name: sft, save_dir: {folder}/sft, log_interval: 2}}
""")
    return folder


@pytest.fixture
def world(tmp_path):
    return make_world(tmp_path)


def config(world, *overrides):
    return load_config(SFTConfig, world / "config.yml", overrides)


def weights(folder):
    return load_file(folder / "model.safetensors")


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_learns_and_leaves_a_loadable_model(world, capsys):
    options = [
        "train.max_steps=120",
        "evaluation.every_steps=40",
        "parallel.strategy=fsdp2",
        "train.seed=2",
    ]
    folder = train(config(world, *options))
    lines = read_jsonl(folder / "metrics.jsonl")
    scores = {line["step"]: line["eval/rougeLsum"] for line in lines if "eval/rougeLsum" in line}
    losses = [line["loss"] for line in lines if "loss" in line]
    assert list(scores) == [40, 80, 120] and scores[120] > 95
    assert losses[0] > 3 and losses[-1] < 0.8  # .49 to .66 over eight seeds
    assert {"step", "epoch", "loss", "lr", "grad_norm", "padding"} == set(lines[0])
    assert {"step", "epoch", "eval/loss", "eval/rougeLsum", "eval/length"} == {
        key for key in lines[-1]
    }
    assert read_json(folder / "result.json")["best"] == max(scores.values())
    assert not (folder / "checkpoints").exists()
    assert read_json(folder / "result.json")["cut_answers"] == 0

    policy = load_policy(folder)
    prompts = [Prompt("0", row["text"]) for row in rows(12)]
    texts = generate_texts(policy, prompts, Sampling(16, do_sample=False))
    assert sum(text == ANSWERS[list(ANSWERS)[i % 3]] for i, (text,) in enumerate(texts)) >= 11
    sample = read_jsonl(folder / "samples" / "step-120.jsonl")[0]
    assert sample["response"] == ANSWERS["red"] and sample["rougeLsum"] == pytest.approx(100)
    printed = capsys.readouterr().out
    assert "eval/rougeLsum" in printed
    assert "fsdp2 has no effect with 1 process" in printed


def interrupt_at(monkeypatch, steps):
    """Ctrl-C in the middle of training step `steps` + 1."""
    done, original = [], SFTTrainer.update

    def update(self, indices):
        if len(done) == steps:
            raise KeyboardInterrupt
        done.append(1)
        return original(self, indices)

    monkeypatch.setattr(SFTTrainer, "update", update)


@pytest.mark.parametrize(
    "metric, scores, best", [("rougeLsum", [10.0, 30.0, 20.0], 8), ("loss", None, 10)]
)
def test_the_best_checkpoint_is_kept(world, monkeypatch, metric, scores, best):
    given = iter(scores or [])
    monkeypatch.setattr(SFTTrainer, "generated_metrics", lambda self: {"rougeLsum": next(given)})
    saved = {}
    original = checkpoint.save

    def save(trainer):
        state = trainer.module.state_dict()
        saved[trainer.step] = {k: v.to("cpu", copy=True) for k, v in state.items()}
        original(trainer)

    monkeypatch.setattr(checkpoint, "save", save)
    folder = train(config(world, f"evaluation.metric={metric}"))
    kept = weights(folder)
    assert read_json(folder / "result.json")["best_step"] == best
    assert sorted(saved) == [4, 8, 10]
    assert [
        step
        for step, state in saved.items()
        if all(torch.equal(state[k], v) for k, v in kept.items())
    ] == [best]
    if metric == "loss":
        losses = [
            line["eval/loss"]
            for line in read_jsonl(folder / "metrics.jsonl")
            if "eval/loss" in line
        ]
        assert read_json(folder / "result.json")["best"] == min(losses) == losses[-1]


LENGTHS = [1, 1, 9, 2, 30]  # words of the dev answers


@torch.no_grad()
def float64_loss(folder, file):
    """The mean negative log-probability of all response tokens, one row at a time."""
    policy = load_policy(folder, max_input_len=32).double().eval()
    examples = DEMONSTRATIONS.read(str(file), {})
    total, tokens = 0.0, 0
    for row in encode(policy, examples, 40):
        batch = {name: torch.tensor([ids]) for name, ids in row.items()}
        labels = batch.pop("labels")
        logits = policy.model(**batch).logits[0]
        labels = labels[0]
        if not policy.model.config.is_encoder_decoder:
            logits, labels = logits[:-1], labels[1:]
        places = labels != IGNORED
        chosen = logits.log_softmax(-1)[places, labels[places]]
        total -= float(chosen.sum())
        tokens += int(places.sum())
    return total / tokens


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_the_dev_loss_is_the_mean_over_the_tokens_of_all_rows(world, kind):
    tiny.policy(kind).save(world / "base")
    texts = [{"text": "red", "answer": ["dog " * n + "."]} for n in LENGTHS]
    write_json(world / "dev.json", texts)
    losses = []
    for size in (1, 2, 5):
        folder = train(
            config(
                world,
                "evaluation.metric=loss",
                "model.max_generated_len=40",
                "train.max_steps=3",
                "evaluation.every_steps=3",
                f"evaluation.batch_size={size}",
                f"logging.save_dir={world}/{size}",
            )
        )
        losses.append(read_jsonl(folder / "metrics.jsonl")[-1]["eval/loss"])
    assert losses == pytest.approx([float64_loss(folder, world / "dev.json")] * 3, rel=1e-5)


@pytest.mark.parametrize("scores, best", [([0.0] * 3, 10), ([3.0, 5.0, 5.0], 10)])
def test_of_equal_checkpoints_the_one_with_the_lower_dev_loss_is_kept(
    world, monkeypatch, capsys, scores, best
):
    given = iter(scores)
    monkeypatch.setattr(SFTTrainer, "generated_metrics", lambda self: {"rougeLsum": next(given)})
    folder = train(config(world))
    lines = [line for line in read_jsonl(folder / "metrics.jsonl") if "eval/loss" in line]
    assert min(lines, key=lambda line: line["eval/loss"])["step"] == best
    assert read_json(folder / "result.json")["best_step"] == best
    is_noted = "dev rougeLsum is 0 at all 3 evaluations" in capsys.readouterr().out
    assert is_noted == (max(scores) == 0)


def test_without_dev_rows_the_last_model_is_kept(world):
    options = ["data.dev_file=null", "evaluation.every_steps=null"]
    folder = train(config(world, *options, "train.max_steps=null", "train.epochs=0.5"))
    assert load_policy(folder) and read_json(folder / "result.json")["steps"] == 3


@pytest.mark.slow
def test_a_decoder_only_model_learns_too(world):
    tiny.gpt2().save(world / "base")
    folder = train(config(world, "train.max_steps=80", "evaluation.every_steps=80"))
    assert read_json(folder / "result.json")["best"] > 95


@pytest.mark.parametrize("lengths", [None, [i // 2 for i in range(103)]])
def test_order(lengths):
    batches = shuffled_batches(103, 4, 7, 0, lengths)
    assert batches == shuffled_batches(103, 4, 7, 0, lengths)
    assert [len(batch) for batch in batches] == [4] * 26
    assert {i for batch in batches for i in batch} == set(range(103))
    others = shuffled_batches(103, 4, 7, 1, lengths)
    assert others != batches and {i for batch in others for i in batch} == set(range(103))
    widths = [max(batch) // 2 - min(batch) // 2 for batch in batches]
    # 26 batches form one window: sorted, so that batches have similar lengths; batches come in any
    # order
    if lengths:
        assert max(widths) <= 4
        assert [min(batch) for batch in batches] != sorted(min(batch) for batch in batches)
    else:
        assert max(widths) > 30


def test_order_of_fewer_examples_than_a_batch():
    (order,) = shuffled_batches(3, 8, 0, 0)
    assert sorted(order[:3]) == [0, 1, 2] and order == (order[:3] * 3)[:8]


def train_in_two_processes(world, options):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone"]
    program = ["-m", "sft.run_sft", str(world / "config.yml"), *options]
    subprocess.run([*command, *program, f"logging.save_dir={world}/two"], check=True)
    return world / "two"


@pytest.mark.slow
@pytest.mark.parametrize("grouped", ["true", "false"])
def test_two_processes_train_as_one(world, grouped):
    """45 examples in batches of 8: the last batch of a pass is not full.

    So is the last of the dev rows' batches, and their answers have different lengths.
    """
    write_json(world / "train.json", rows(45))
    write_json(world / "dev.json", rows(13))
    tiny.t5(dropout=0.0).save(world / "base")
    options = [f"train.group_by_length={grouped}", "train.max_steps=14", "evaluation.batch_size=6"]
    one = train(config(world, *options))
    two = train_in_two_processes(world, options)
    lines, others = read_jsonl(one / "metrics.jsonl"), read_jsonl(two / "metrics.jsonl")
    assert len(lines) == len(others) > 8
    for line, other in zip(lines, others):
        for each in (line, other):
            each.pop("padding", None)  # each process pads to the longest example of its share
        assert other == pytest.approx(line, rel=1e-4)


def test_encode():
    examples = [
        Demonstration(Prompt("0", "the red cat"), "one two three ."),
        Demonstration(Prompt("1", "a"), "dog"),
    ]
    t5 = tiny.t5()
    first, second = encode(t5, examples, max_generated_len=4)
    ids = t5.tokenizer.convert_tokens_to_ids
    # 5 tokens with its end: cut, so without the end
    assert first["labels"] == ids(["▁one", "▁two", "▁three", "▁."])
    assert encode(t5, examples, max_generated_len=5)[0]["labels"] == [*first["labels"], 1]
    assert count_unseen(t5, examples, 4) == Unseen(examples=2, prompts=0, answers=1)
    assert count_unseen(t5, examples, 5).answers == 0
    # "zebra" is one of the five tokens of both answers, with their ends
    with_unknown = [examples[1], Demonstration(Prompt("2", "a"), "dog zebra")]
    assert count_unseen(t5, with_unknown, 5).unknown_share == pytest.approx(1 / 5)
    t5.tokenizer.unk_token = t5.tokenizer.eos_token  # as byte-level tokenizers have it
    assert count_unseen(t5, with_unknown, 5).unknown_share == 0
    t5.tokenizer.unk_token = "<unk>"
    t5.max_input_len = 2
    assert count_unseen(t5, examples, 5).prompts == 1
    t5.max_input_len = 64
    assert second == {
        "input_ids": ids(["▁a"]),
        "decoder_input_ids": [0, *ids(["▁dog"])],
        "labels": [*ids(["▁dog"]), 1],
    }
    assert [row["input_ids"] for row in (first, second)] == [
        row_ids[: sum(mask)]
        for row_ids, mask in zip(
            *(x.tolist() for x in t5.encode([e.prompt.text for e in examples]))
        )
    ]

    joined = encode(tiny.gpt2(), examples, max_generated_len=10)[1]
    assert joined == {"input_ids": ids(["▁a", "▁dog"]) + [1], "labels": [-100, ids("▁dog"), 1]}


@pytest.mark.parametrize("kind", ["bart", "gpt2"])
def test_examples_longer_than_the_model_can_read_are_refused(kind):
    """BART has 64 positions in each stack, GPT-2 256 for prompt and response."""
    policy = tiny.policy(kind)
    limit = 64 if kind == "bart" else 256
    long = Demonstration(Prompt("0", "the " * limit), "dog")
    policy.max_input_len = limit - 2
    check_lengths(policy, encode(policy, [long], 2))
    policy.max_input_len = limit + 2
    with pytest.raises(UserError, match=f"{limit} positions .* lower model.max_input_len"):
        check_lengths(policy, encode(policy, [long], 2))
    long = Demonstration(Prompt("0", "the"), "dog " * limit)
    with pytest.raises(UserError, match=f"has {limit + 1} tokens of .*response"):
        check_lengths(policy, encode(policy, [long], limit + (1 if kind == "bart" else 0)))


def test_a_chat_model_is_trained_as_it_is_asked():
    policy = tiny.chat()
    (row,) = encode(policy, [Demonstration(Prompt("0", "the red cat"), "a dog")], 10)
    written = " ".join(policy.tokenizer.convert_ids_to_tokens(row["input_ids"]))
    assert written == "<s> <|user|> ▁the ▁red ▁cat <|end|> <|assistant|> ▁a ▁dog <|end|>"
    assert row["labels"] == [-100] * 7 + row["input_ids"][7:]


def test_rows_under_other_names_give_the_same_model(world):
    """`data.columns` names a user's own keys; nothing else changes."""
    whole = train(config(world, "train.max_steps=2"))
    for split in ("train", "dev"):
        renamed = [
            {"source": row["text"], "target": row["answer"][0]}
            for row in read_json(world / f"{split}.json")
        ]
        write_jsonl(world / f"{split}.jsonl", renamed)
    other = train(
        config(
            world,
            "train.max_steps=2",
            f"data.train_file={world}/train.jsonl",
            f"data.dev_file={world}/dev.jsonl",
            "data.columns.prompt=source",
            "data.columns.response=target",
            f"logging.save_dir={world}/other",
        )
    )
    assert equal(weights(whole), weights(other))
    assert read_jsonl(whole / "metrics.jsonl") == read_jsonl(other / "metrics.jsonl")


@pytest.mark.parametrize(
    "overrides, message",
    [
        (["model.ckpt=nowhere/at/all"], "no language model could be loaded from `nowhere/at/all`"),
        (["data.train_file=gone.json"], "gone.json does not exist"),
        (
            ["train.micro_batch_size=3"],
            "is not divisible by 1 processes x train.micro_batch_size=3",
        ),
        (["train.learning_rate=1", "train.batch_size=x"], "2 mistakes"),
    ],
)
def test_mistakes_end_with_a_message_and_leave_nothing(
    world, monkeypatch, capsys, overrides, message
):
    monkeypatch.setattr("sys.argv", ["run_sft", str(world / "config.yml"), *overrides])
    with pytest.raises(SystemExit) as exit_info:
        run_main(run_sft.main)
    assert exit_info.value.code == 2
    assert message in capsys.readouterr().err
    assert not (world / "sft").exists()


@pytest.mark.parametrize(
    "gpus, way_out",
    [
        (True, r", one for each GPU: use 2 of them \(CUDA_VISIBLE_DEVICES=0,1\), or change"),
        (False, r": start 2 \(PROCESSES=2\), or change"),
    ],
)
def test_a_batch_that_the_processes_cannot_share_is_refused(world, monkeypatch, gpus, way_out):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: gpus)
    with pytest.raises(UserError, match=f"batch_size=8 is not divisible by 3 processes{way_out}"):
        micro_batch_size(config(world).train, 3)


# ---- what must survive: kills, damage, divergence ------------------------------------------------


class Killed(BaseException):
    """Simulates a process that dies at this point."""


def killed(*args, **kwargs):
    raise Killed


def killed_at(monkeypatch, place):
    """End the run when `place` ("function" or "Class.method" of run_sft) is called."""
    owner, _, name = place.rpartition(".")
    monkeypatch.setattr(getattr(run_sft, owner) if owner else run_sft, name, killed)


def outputs(folder):
    """All files of a run except those with its own path or timings: name -> bytes."""
    different = {"config.yaml", "run.json", "stages.json", "inputs.json", "README.md"}
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in different
    }


SHORT = [
    "train.max_steps=3",
    "evaluation.every_steps=2",
    "train.batch_size=4",
    "evaluation.examples=4",
]


def test_a_moved_run_keeps_its_best_checkpoint(world, monkeypatch):
    scores = {2: 30.0, 3: 10.0}
    monkeypatch.setattr(
        SFTTrainer, "generated_metrics", lambda self: {"rougeLsum": scores[self.step]}
    )
    whole = train(config(world, *SHORT))
    with monkeypatch.context() as patch:
        killed_at(patch, "install_model")
        with pytest.raises(Killed):
            train(config(world, *SHORT, f"logging.save_dir={world}/before"))
    (world / "before").rename(world / "after")
    text = (world / "after" / "config.yaml").read_text()
    (world / "after" / "config.yaml").write_text(text.replace(f"{world}/before", f"{world}/after"))
    train(config(world, *SHORT, f"logging.save_dir={world}/after"))
    assert read_json(whole / "result.json")["best_step"] == 2
    assert outputs(world / "after") == outputs(whole)


def test_weights_that_are_not_finite_are_never_saved(world, monkeypatch):
    original = SFTTrainer.update

    def update(self, indices):
        metrics = original(self, indices)
        if self.step == 3:
            self.policy.model.get_input_embeddings().weight.data[0, 0].fill_(float("inf"))
        return metrics

    monkeypatch.setattr(SFTTrainer, "update", update)
    with pytest.raises(UserError, match="1 weight tensors hold NaN or infinity after step 4"):
        train(config(world, "evaluation.every_steps=2"))
    assert [path.name for path in (world / "sft" / "checkpoints").iterdir()] == ["step-2"]


def test_a_dev_loss_that_is_not_finite_ends_training(world, monkeypatch):
    original = SFTTrainer.mean_loss

    def mean_loss(self, model, batch):
        loss = original(self, model, batch)
        return loss if model.training else loss * float("nan")

    monkeypatch.setattr(SFTTrainer, "mean_loss", mean_loss)
    with pytest.raises(UserError, match="the dev loss is nan at step 2"):
        train(config(world, *SHORT))
    assert not (world / "sft" / "result.json").exists()


def flip(path):
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


def test_a_checkpoint_whose_best_one_is_damaged_is_not_used(world, monkeypatch):
    scores = {1: 10.0, 2: 30.0, 3: 20.0, 4: 0.0}
    monkeypatch.setattr(
        SFTTrainer, "generated_metrics", lambda self: {"rougeLsum": scores[self.step]}
    )
    options = [*SHORT, "train.max_steps=4", "evaluation.every_steps=1"]
    with monkeypatch.context() as patch:
        interrupt_at(patch, 3)
        with pytest.raises(KeyboardInterrupt):
            train(config(world, *options))
    checkpoints = world / "sft" / "checkpoints"
    assert sorted(path.name for path in checkpoints.iterdir()) == ["step-2", "step-3"]
    flip(checkpoints / "step-2" / "model.safetensors")
    with (
        pytest.warns(UserWarning, match="is damaged") as warned,
        pytest.raises(UserError, match="every checkpoint"),
    ):
        train(config(world, *options))
    passed_over = [str(warning.message).partition(" ")[0] for warning in warned]
    assert [Path(folder).name for folder in passed_over] == ["step-3", "step-2"]


def test_evaluation_beyond_the_last_step_happens_at_the_last_step(world):
    folder = train(config(world, "train.max_steps=2", "evaluation.every_steps=1000"))
    lines = [line for line in read_jsonl(folder / "metrics.jsonl") if "eval/rougeLsum" in line]
    assert [line["step"] for line in lines] == [2]
    assert read_json(folder / "result.json")["best_step"] == 2


def test_metrics_of_the_config_are_logged(world):
    options = ["evaluation.metric=loss", "evaluation_metrics=[bleu, exact_match]"]
    folder = train(config(world, *options))
    lines = [line for line in read_jsonl(folder / "metrics.jsonl") if "eval/loss" in line]
    for line in lines:
        assert {"eval/rougeLsum", "eval/length", "eval/bleu", "eval/bleu/corpus"} <= line.keys()
        assert 0 <= line["eval/exact_match"] <= 1
    sample = read_jsonl(folder / "samples" / "step-10.jsonl")[0]
    assert sample["exact_match"] in (0, 1) and len(sample["bleu/bleu_counts"]) == 10
    with pytest.raises(UserError, match="evaluation_metrics is not read"):
        config(world, "evaluation_metrics=[bleu]", "data.dev_file=null")


def test_a_metric_of_the_task_picks_the_best_checkpoint(world, monkeypatch):
    scores = {4: 0.2, 8: 0.7, 10: 0.5}
    steps = iter(scores)
    monkeypatch.setattr(module, "generate_texts", lambda *a, **k: [[f"step {next(steps)}"]] * 12)

    def judge(prompt, text):
        assert prompt.meta == {"goal": 1}  # the other keys of the row
        if text == prompt.references[0]:  # the trial before training
            return {"judged": 1.0}
        return {"judged": scores[int(text.split()[1])]}

    write_json(world / "dev.json", [row | {"goal": 1} for row in rows(12)])
    task = Task(name="colours", metrics=lambda prompts: (judge,))
    folder = train(config(world, "evaluation.metric=judged"), task)
    result = read_json(folder / "result.json")
    assert (result["metric"], result["best_step"]) == ("judged", 8)
    assert result["best"] == pytest.approx(0.7)


def test_a_metric_that_no_evaluation_computes_is_an_error(world):
    task = Task(name="colours", metrics=lambda prompts: (lambda prompt, text: {"judged": 1.0},))
    message = "evaluation.metric is `solved`.* it computes judged, length, loss, rougeLsum"
    with pytest.raises(UserError, match=message):
        train(config(world, "evaluation.metric=solved"), task)
    assert not list(world.rglob("step-*"))  # before the first step
    with pytest.raises(UserError, match="evaluation.metric is `bleu`, which is not computed"):
        config(world, "evaluation.metric=bleu")
    with pytest.raises(UserError, match="a lower repetition is better"):
        config(world, "evaluation.metric=repetition", "evaluation_metrics=[repetition]")


def test_a_metric_that_cannot_be_built_stops_before_anything_is_written(world):
    metric = f"evaluation_metrics=[{{name: perplexity, model: {world}/missing}}]"
    with pytest.raises(UserError, match="no language model could be loaded"):
        train(config(world, metric))
    assert not (world / "sft").exists()


# ---- adapters, and layers that are computed twice ------------------------------------------------

LORA = ["model.lora={r: 2, dropout: 0.1}"]


@pytest.mark.parametrize("kind", ["t5", pytest.param("gpt2", marks=pytest.mark.slow), "llama"])
def test_adapters_are_merged_into_the_model_that_later_stages_load(world, monkeypatch, kind):
    tiny.policy(kind).save(world / "base")
    trainers, install = [], run_sft.install_model
    monkeypatch.setattr(
        run_sft,
        "install_model",
        lambda trainer, *more: trainers.append(trainer) or install(trainer, *more),
    )
    folder = train(config(world, "model.lora.r=4", "train.max_steps=20"))
    losses = [line["loss"] for line in read_jsonl(folder / "metrics.jsonl") if "loss" in line]
    assert losses[-1] < losses[0]
    (trainer,) = trainers
    trained = trainer.policy.cpu()
    assert has_adapters(trained.model)
    start = tiny.policy(kind).state_dict()
    for name, tensor in trained.state_dict().items():
        if ".lora_" not in name:
            assert torch.equal(tensor, start[name.replace(".base_layer.", ".")])
    loaded = load_policy(folder).eval()
    assert not has_adapters(loaded.model)
    batch = sampled(loaded)
    with torch.no_grad():
        expected_BT = trained.eval()(*batch)[0].logprobs_BT
        logprobs_BT = loaded(*batch)[0].logprobs_BT
        of_start_BT = tiny.policy(kind).eval()(*batch)[0].logprobs_BT
    torch.testing.assert_close(logprobs_BT, expected_BT, atol=1e-5, rtol=0)
    assert not torch.allclose(of_start_BT, expected_BT, atol=1e-2)
