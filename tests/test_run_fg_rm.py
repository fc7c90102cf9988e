"""Training of segment classifiers: metrics by hand, loss, learning, resuming, refusals."""

import json
import math
import random

import numpy as np
import pytest
import rm_helpers as rm
import torch
from accelerate.data_loader import SeedableRandomSampler
from safetensors.torch import load_file
from transformers.modeling_outputs import TokenClassifierOutput

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_jsonl
from fgrlhf.configs.strict import to_yaml, validate
from fgrlhf.load import load_task
from fgrlhf.reward_models.loading import load_reward_model
from fgrlhf.runs.batching import permuted_batches
from fgrlhf.supervised_trainer import SupervisedTrainer
from reward_modeling import command, run_fg_rm, run_pref_rm
from reward_modeling.metrics import span_errors
from reward_modeling.network import load_network
from reward_modeling.run_fg_rm import (
    SegmentRMConfig,
    error_predictions,
    label_metrics,
    segment_loss,
    train,
)


def config(folder, shape="seq2seq", **changes) -> SegmentRMConfig:
    """Settings of a fast run; changes are given as section__key=value."""
    train_file, dev_file = folder / "train.json", folder / "dev.json"
    if not train_file.exists():
        rm.segment_file(train_file, 200, 0)
        rm.segment_file(dev_file, 40, 1)
    tree = {
        "model": {"ckpt": str(rm.start(folder, shape)), "shape": shape, "max_input_len": 128},
        "data": {"train_file": str(train_file), "dev_file": str(dev_file)}
        | {"level": "subsentence", "with_context": False},
        "labels": {"error": "NF-ERR"},
        "train": {"max_steps": 60, "batch_size": 16, "lr": 1e-2, "warmup_steps": 5},
        "evaluation": {"every_steps": 20, "batch_size": 32},
        "logging": {"run_name": "toy", "save_dir": str(folder / "rm"), "log_interval": 10},
    }
    for path, value in changes.items():
        section, key = path.split("__")
        tree[section][key] = value
    return validate(SegmentRMConfig, tree, "test config")


def metrics(folder) -> dict:
    return json.loads((folder / "metrics.json").read_text())


# ---- numbers by hand -----------------------------------------------------------------------------


def test_span_metrics_by_hand():
    # predicted wrong: segments 0, 1, 2; actually wrong: 0, 1, 3
    result = span_errors([0.9, 0.8, 0.7, 0.4, 0.2], [1, 1, 0, 1, 0])
    of_errors = {"error_precision": 2 / 3, "error_recall": 2 / 3, "error_f1": 2 / 3}
    of_others = {"ok_precision": 1 / 2, "ok_recall": 1 / 2, "ok_f1": 1 / 2}
    accuracies = {"accuracy": 3 / 5, "all_error_accuracy": 3 / 5, "all_ok_accuracy": 2 / 5}
    auc = 5 / 6  # 0.4 < 0.7 is the only wrong pair of six
    assert result == pytest.approx({**of_errors, **of_others, **accuracies, "auc": auc})


def test_span_metrics_of_ties_and_of_one_kind_only():
    tied = span_errors([0.6, 0.6, 0.6, 0.1], [1, 0, 1, 0])
    assert tied["auc"] == pytest.approx((0.5 + 0.5 + 1 + 1) / 4)
    alone = span_errors([0.6, 0.4], [0, 0])
    # undefined, not 0.5 or 0 as if measured; the one false alarm is measured
    assert "auc" not in alone and "error_recall" not in alone
    assert (alone["error_precision"], alone["error_f1"], alone["accuracy"]) == (0, 0, 0.5)
    silent = span_errors([0.2, 0.4], [0, 0])
    assert not {"error_precision", "error_recall", "error_f1", "auc"} & set(silent)
    assert silent["ok_f1"] == silent["accuracy"] == 1


def test_segment_loss_by_hand():
    logits_BTC = torch.tensor([[[0.0, 0.0], [1.0, 3.0], [9.0, 9.0]]])
    labels_BT = torch.tensor([[0, 1, -100]])
    total = math.log(2) + math.log(1 + math.exp(-2))
    output = TokenClassifierOutput(logits=logits_BTC)
    assert segment_loss(output, labels_BT).item() == pytest.approx(total / 2)
    probabilities, wrong = error_predictions(logits_BTC.numpy(), labels_BT.numpy())
    assert probabilities.tolist() == pytest.approx([0.5, 1 / (1 + math.exp(2))])
    assert wrong.tolist() == [True, False]


def test_metrics_of_several_errors_by_hand():
    """Labels 0 and 1 are errors, 2 is the last: no error."""
    logits_BTC = np.log(np.array([[[1.0, 3, 4], [2, 1, 1], [1, 1, 6], [9, 9, 9], [5, 2, 1]]]))
    labels_BT = np.array([[1, 0, 2, -100, 1]])
    probabilities, wrong = error_predictions(logits_BTC, labels_BT)
    assert probabilities.tolist() == pytest.approx([4 / 8, 3 / 4, 2 / 8, 7 / 8])
    assert wrong.tolist() == [True, True, False, True]
    # predicted: 2, 0, 2, 0
    metrics = label_metrics(["A", "B", "O"], logits_BTC, labels_BT)
    assert metrics == pytest.approx(
        {"label_accuracy": 2 / 4, "label_f1/A": 2 / 3, "label_f1/B": 0, "label_f1/O": 2 / 3}
    )


# ---- runs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape, steps",
    [
        ("encoder", 100),
        pytest.param("seq2seq", 100, marks=pytest.mark.slow),
        pytest.param("causal", 140, marks=pytest.mark.slow),
    ],
)
def test_learns_what_can_be_learned(tmp_path, shape, steps):
    folder = train(config(tmp_path, shape, train__max_steps=steps))
    result = metrics(folder)
    assert result["accuracy"] > 0.95 and result["auc"] > 0.97
    assert max(result["all_error_accuracy"], result["all_ok_accuracy"]) < 0.75
    assert result["all_error_accuracy"] + result["all_ok_accuracy"] == pytest.approx(1)
    assert sum(b["count"] for b in result["calibration"]) > 50
    assert result["intervals"]["accuracy"]["mean"] == result["accuracy"]
    assert result["intervals"]["accuracy"]["low"] < result["accuracy"]
    assert result["choice"]["evaluations"] == steps // 20 and result["choice"]["optimism"] < 0.1
    assert not (folder / "checkpoints").exists()
    scorer = load_reward_model(folder, rm.prefix_fn)
    assert scorer.spec.metrics["accuracy"] == result["accuracy"]
    # segments of five words, as in training; results on longer ones depend on rounding
    texts = ["a blue dog sees and.", "red red cat red bird."]
    fine, wrong = scorer.score([rm.prompt("the cat")] * 2, texts)
    assert fine.spans == ((0, 20),) and wrong.spans == ((0, 21),)
    assert fine.probabilities_SC[0, 0] < 0.2 and wrong.probabilities_SC[0, 0] > 0.8
    (both,) = scorer.score([rm.prompt("the cat")], ["a blue dog sees and, red red cat red bird a."])
    assert both.spans == ((0, 20), (21, 44)) and both.probabilities_SC[0, 0] < 0.2


@pytest.mark.parametrize("shape", [pytest.param("encoder", marks=pytest.mark.slow), "causal"])
def test_learns_several_kinds_of_error(tmp_path, shape):
    """`red` and `green` are two errors, `ok` is named `fine`."""
    rng = random.Random(0)
    for name, n in (("train.json", 200), ("dev.json", 40)):
        lines = []
        for _ in range(n):
            words = ["question:", "the", rng.choice(rm.OTHERS), "answer:"]
            tags = ["-"] * len(words)
            for _ in range(rng.randint(1, 3)):
                label = rng.choice(["RED", "GREEN", "fine"])
                colour = {"RED": "red", "GREEN": "green", "fine": "a"}[label]
                segment = [colour] * 3 + rng.choices(["dog", "cat", "bird"], k=2)
                words += ["</s>", *rng.sample(segment, 5)]
                tags += [label, *"-----"]
            lines.append(json.dumps({"text": words, "feedback_tags": tags}) + "\n")
        (tmp_path / name).write_text("".join(lines))
    labels = {"labels__error": ["RED", "GREEN"], "labels__ok": "fine", "labels__ignore": "-"}
    folder = train(config(tmp_path, shape, train__max_steps=80, **labels))
    result = metrics(folder)
    assert result["label_accuracy"] > 0.95 and result["accuracy"] > 0.95
    assert min(result[f"label_f1/{name}"] for name in ("RED", "GREEN", "fine")) > 0.9
    scorer = load_reward_model(folder, rm.prefix_fn)
    assert scorer.labels == ("RED", "GREEN", "fine") and scorer.spec.error_label is None
    texts = ["red dog red cat red", "green cat green dog green", "a bird a dog a"]
    judged = scorer.score([rm.prompt("the cat")] * 3, texts)
    best = [scorer.labels[int(labels.probabilities_SC[0].argmax())] for labels in judged]
    assert best == ["RED", "GREEN", "fine"]


def test_the_published_metrics_equal_those_of_the_loaded_model(tmp_path):
    from reward_modeling.data import read_segment_rows

    settings = config(tmp_path, train__max_steps=20)
    scorer = load_reward_model(train(settings), rm.prefix_fn)
    rows = read_segment_rows(settings.data.dev_file, rm.LABELS, "Ignore")
    right = []
    for read, row in zip(scorer.inputs.encode([row.text for row in rows]), rows):
        with torch.no_grad():
            logits = scorer.model(**scorer.inputs.collate([read])).logits[0, list(read.positions)]
        right += [int(z.argmax()) == label for z, label in zip(logits, row.labels) if label != -100]
    assert scorer.spec.metrics["accuracy"] == pytest.approx(sum(right) / len(right))


class Interrupt(Exception):
    pass


def interrupt_at(monkeypatch, step) -> list[int]:
    """Stop training at `step` (None: never). Returns a list that collects the started steps."""
    original, begun = SupervisedTrainer.update, []

    def update(self, indices):
        if self.step == step:
            raise Interrupt
        begun.append(self.step)
        return original(self, indices)

    monkeypatch.setattr(SupervisedTrainer, "update", update)
    return begun


@pytest.mark.parametrize(
    "shape, name, error, level",
    [
        ("encoder", "NF-ERR_subsentence", "NF-ERR", "subsentence"),
        ("seq2seq", "F-ERR_sentence", "F-ERR", "sentence"),
    ],
)
def test_real_rows_go_through(tmp_path, golden, name, error, level, shape):
    task = load_task("tasks.qa_feedback")
    for split, n in (("train", 6), ("dev", 4)):
        lines = (golden / name / f"{split}.json").read_text().splitlines(keepends=True)
        (tmp_path / f"{split}.json").write_text("".join(lines[:n]))
    with_context = level == "sentence"
    changes = {"data__level": level, "data__with_context": with_context, "labels__error": error}
    changes |= {"model__max_input_len": 1000, "train__max_steps": 2, "train__batch_size": 2}
    changes |= {"evaluation__every_steps": 2, "evaluation__batch_size": 4}
    folder = train(config(tmp_path, shape, **changes), task)
    scorer = load_reward_model(folder, task.rm_prefix)
    spec = scorer.spec
    assert (spec.level, spec.error_label, spec.with_context) == (level, error, with_context)
    assert scorer.spec.segmenter["name"] and 0 <= scorer.spec.metrics["accuracy"] <= 1


# ---- what is refused -----------------------------------------------------------------------------


def test_the_context_must_be_as_configured(tmp_path):
    task = load_task("tasks.qa_feedback")
    with pytest.raises(UserError, match="have no context.*Set data.with_context=false"):
        train(config(tmp_path, data__with_context=True), task)
    with pytest.raises(UserError, match="needs a task that marks the context"):
        train(config(tmp_path, data__with_context=True))
    words = "question: a context: wikipage: b answer: </s> c"
    row = {"text": words.split(), "feedback_tags": [*["Ignore"] * 6, "O", "Ignore"]}
    for name in ("train.json", "dev.json"):
        (tmp_path / name).write_text(json.dumps(row))
    with pytest.raises(UserError, match="have a context.*Set data.with_context=true"):
        train(config(tmp_path, data__with_context=False), task)


def test_answers_longer_than_the_network_reads(tmp_path):
    with pytest.raises(UserError, match="fits into model.max_input_len=3 tokens: raise it"):
        train(config(tmp_path, model__max_input_len=3))


@pytest.mark.parametrize("shape", ["seq2seq", "encoder"])
def test_baselines_are_measured_on_the_segments_that_the_network_reads(tmp_path, shape):
    settings = config(tmp_path, shape, train__max_steps=1, model__max_input_len=64)
    prompt = (["question:", "answer:"], ["Ignore"] * 2)
    short = (["</s>", "one"], ["O", "Ignore"])
    long = (["</s>", *["one"] * 80], ["NF-ERR", *["Ignore"] * 80])  # ends beyond the limit
    rows = []
    for segments in ([short, long], [long], [short]):
        words, tags = (sum(parts, []) for parts in zip(prompt, *segments))
        rows.append({"id": str(len(rows)), "text": words, "feedback_tags": tags})
    write_jsonl(settings.data.dev_file, rows)
    train(settings)
    # The network reads the short segments only. Most training segments are right, as they are.
    result = metrics(tmp_path / "rm")
    assert result["baselines"]["majority"]["accuracy"] == 1
    # and what the card says is of them
    assert result["cases"] == {"segments": 2} and result["rows"]["dev"] == 2
    assert "auc" not in result and "all 2 are of one" in result["reasons"]["auc"]
    card = (tmp_path / "rm" / "README.md").read_text()
    assert "| AUC | undefined: it needs cases of both kinds, and all 2 are of one |" in card
    assert "| the most frequent label | 1.000 |" in card and "dev prompts are few" in card
    assert f'{{kind: segment_classifier, ckpt: "{tmp_path}/rm", values: {{error: -0.5' in card


def test_impossible_settings(tmp_path):
    with pytest.raises(UserError, match="lm_logprob_feature"):
        config(tmp_path, "encoder", model__lm_logprob_feature=True)
    for errors in ("O", ["A", "Ignore"], ["A", "A"]):
        with pytest.raises(UserError, match="must be different tags"):
            config(tmp_path, labels__error=errors)
    with pytest.raises(UserError, match="labels.error is empty"):
        config(tmp_path, labels__error=[])
    with pytest.raises(UserError, match="is not divisible by"):
        train(config(tmp_path, train__micro_batch_size=5))
    with pytest.raises(UserError, match="shape `seq2seq` could be loaded .*single stack"):
        train(config(tmp_path, model__ckpt=str(rm.start(tmp_path, "causal"))))
    # 1026 positions, of which padding has the first
    with pytest.raises(UserError, match="reads at most 1025 tokens: set it to 1025 or less"):
        train(config(tmp_path, "encoder", model__max_input_len=1026))
    with pytest.raises(UserError, match="nowhere"):
        train(config(tmp_path, model__ckpt=str(tmp_path / "nowhere")))


# ---- kills, damage, divergence -------------------------------------------------------------------

SHORT = {"train__max_steps": 3, "evaluation__every_steps": 2, "train__batch_size": 4}


def test_a_dev_metric_that_is_not_finite_ends_training(tmp_path, monkeypatch):
    monkeypatch.setattr(run_fg_rm, "segment_metrics", lambda *_: {"accuracy": float("nan")})
    with pytest.raises(UserError, match="the dev metric `eval_accuracy` is nan at step 2"):
        train(config(tmp_path, **SHORT))
    assert not (tmp_path / "rm" / "result.json").exists()


def test_the_command_chooses_the_program(monkeypatch, capsys):
    begun = []
    for program in (run_fg_rm, run_pref_rm):
        monkeypatch.setattr(program, "main", lambda argv, p=program: begun.append((p, argv)))
    for kind in ("segment", "sequence"):
        command.main([kind, "tasks.qa_feedback", "c.yml", "train.lr=1"])
    arguments = ["tasks.qa_feedback", "c.yml", "train.lr=1"]
    assert begun == [(run_fg_rm, arguments), (run_pref_rm, arguments)]
    with pytest.raises(UserError, match="use segment, sequence or linear"):
        command.main(["pairs", "c.yml"])
    with pytest.raises(SystemExit) as stop:
        command.main(["--help"])
    assert stop.value.code == 0 and "fgrlhf rm KIND [TASK]" in capsys.readouterr().out


def test_a_run_from_the_command_line(tmp_path, capsys):
    """With a task whose context the words of the file contain."""
    words = ["question:", "a", "context:", "wikipage:", "b", "answer:", "</s>", "c", "d"]
    rows = [
        json.dumps({"text": words, "feedback_tags": [*["Ignore"] * 6, tag, *["Ignore"] * 2]})
        for tag in ("NF-ERR", "O")
    ]
    for name in ("train.json", "dev.json"):
        (tmp_path / name).write_text("\n".join(rows))
    changes = {"data__with_context": True, "train__batch_size": 2, "train__max_steps": 1}
    settings = config(tmp_path, "causal", **changes)
    (tmp_path / "rm.yml").write_text(to_yaml(settings))
    arguments = ["tasks.qa_feedback", str(tmp_path / "rm.yml"), "evaluation.every_steps=1"]
    command.main(["segment", *arguments])
    assert f"the reward model is in {tmp_path / 'rm'}" in capsys.readouterr().out
    assert load_reward_model(tmp_path / "rm", rm.prefix_fn).spec.with_context


# ---- padding, top layers, checkpoints ------------------------------------------------------------


def test_a_step_has_a_random_sample_sorted_by_length():
    """The sample is that of accelerate's sampler, with which transformers' Trainer reads rows."""
    lengths = [7, 1, 5, 3, 9, 2, 8]
    sampler = SeedableRandomSampler(lengths, data_seed=5)
    for epoch in (0, 1, 0):
        sampler.set_epoch(epoch)
        order = list(sampler)
        batches = permuted_batches(7, 3, 5, epoch)
        assert batches == [order[:3], order[3:6], order[6:]]
        for batch, random_batch in zip(permuted_batches(7, 3, 5, epoch, lengths), batches):
            assert sorted(batch) == sorted(random_batch)
            read = [lengths[i] for i in batch]
            assert read == sorted(read, reverse=True)


def test_parts_of_a_step_and_batches_by_length_have_less_padding(tmp_path):
    shares = []
    for name, size, by_length in (("whole", 16, False), ("parts", 4, False), ("length", 16, True)):
        changes = {
            "train__max_steps": 4,
            "train__micro_batch_size": size,
            "train__group_by_length": by_length,
            "evaluation__every_steps": 4,
            "logging__save_dir": str(tmp_path / name),
        }
        train(config(tmp_path, "causal", **changes))
        lines = [json.loads(x) for x in (tmp_path / name / "metrics.jsonl").open()]
        shares += [line["padding"] for line in lines if "padding" in line]
    whole, parts, by_length = shares
    assert 0 < parts < 0.7 * whole
    assert 0 < by_length < 0.7 * whole


@pytest.mark.parametrize(
    "shape, feature", [("encoder", False), ("seq2seq", True), ("causal", False)]
)
def test_only_the_top_layer_and_the_head_are_trained(tmp_path, shape, feature):
    changes = {"model__train_top_layers": 1, "model__lm_logprob_feature": feature}
    steps = {"train__max_steps": 3, "evaluation__every_steps": 3}
    settings = config(tmp_path, shape, **changes, **steps)
    scorer = load_reward_model(train(settings), rm.prefix_fn)
    trained = dict(scorer.model.named_parameters())
    whole = settings.model.model_copy(update={"train_top_layers": None})
    start, _ = load_network(whole, "segment", {0: "NF-ERR", 1: "O"})
    layers = dict(start.named_parameters())
    changed = {name for name in layers if not torch.equal(layers[name], trained[name])}
    top = {
        "encoder": "longformer.encoder.layer.1.",
        "seq2seq": "trunk.decoder.block.1.",
        "causal": "trunk.h.1.",
    }[shape]
    assert any(name.startswith(top) for name in changed)
    others = {name for name in changed if not name.startswith(top)}
    norms = ("trunk.ln_f.", "trunk.decoder.final_layer_norm.")
    heads = ("classifier.", "head.", "feature_in.", *norms)
    assert others and all(name.startswith(heads) for name in others)
    if feature:
        assert scorer.model.config.feature_layer == 1


def test_more_layers_than_the_model_has_are_refused(tmp_path):
    with pytest.raises(UserError, match="model.train_top_layers=9, but the model has only 2"):
        train(config(tmp_path, "causal", model__train_top_layers=9))


def test_only_the_best_weights_are_kept(tmp_path, monkeypatch):
    """The model is that of a run that could be continued; a killed run starts again."""
    changes = {"train__max_steps": 9, "evaluation__every_steps": 3, "train__lr": 3e-3}
    whole = train(config(tmp_path, logging__save_dir=str(tmp_path / "whole"), **changes))
    changes |= {"logging__save_dir": str(tmp_path / "best"), "evaluation__checkpoints": "best"}
    settings = config(tmp_path, **changes)
    with monkeypatch.context() as patch:
        interrupt_at(patch, 8)
        with pytest.raises(Interrupt):
            train(settings)
    (kept,) = (tmp_path / "best" / "checkpoints").glob("step-*")
    assert (kept / "model.safetensors").exists() and not (kept / "optimizer.safetensors").exists()
    begun = interrupt_at(monkeypatch, None)
    train(settings)
    assert begun == list(range(9))
    folders = (whole, tmp_path / "best")
    first, second = (load_file(folder / "model.safetensors") for folder in folders)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert metrics(whole) == metrics(tmp_path / "best")
