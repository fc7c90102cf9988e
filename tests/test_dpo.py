"""The gradients of the losses by brute force, and the trainer."""

import copy
import json
import math
from dataclasses import replace
from itertools import groupby
from types import SimpleNamespace

import pytest
import tiny
import torch
from accelerate import Accelerator
from dpo_helpers import BETTER, TEXTS, config, fours, judged, pairs, trainer
from rl_helpers import metrics
from slow import with_slow

from fgrlhf import base_trainer, train_dpo
from fgrlhf.algorithms.preference_losses import sigmoid_pair_loss, weighted_log_ratio
from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_jsonl, write_json
from fgrlhf.base_trainer import BaseTrainer
from fgrlhf.configs.sections import LoRAConfig, Sampling
from fgrlhf.data.comparisons import Answer, Comparison
from fgrlhf.data.token_comparisons import TokenComparison, encode_comparisons
from fgrlhf.dpo import DPOTrainer
from fgrlhf.dpo_rows import Sizes, mismatched
from fgrlhf.models import causal, frozen_layers
from fgrlhf.policy import load_policy
from fgrlhf.runs import checkpoint
from fgrlhf.runs.dpo_config import WITHOUT_BETA, WITHOUT_REFERENCE
from fgrlhf.task import Task
from fgrlhf.text_types import Prompt

# ---- the gradient --------------------------------------------------------------------------------


def alone(policy, prompt_ids, answer_ids):
    """Return log pi of every token of an answer in float64, from the plain model's full logits.

    No batch, no padding, nothing shared.
    """
    prompt, answer = torch.tensor([prompt_ids]), torch.tensor([answer_ids])
    if policy.model.config.is_encoder_decoder:
        logits_TV = policy.model(input_ids=prompt, labels=answer).logits[0]
    else:
        logits_TV = policy.model(torch.cat([prompt, answer], 1)).logits[0, len(prompt_ids) - 1 : -1]
    return logits_TV.log_softmax(-1).gather(-1, answer[0][:, None])[:, 0]


def sigmoid(x):
    return 1 / (1 + torch.exp(-x))


def log_odds(p):
    return torch.log(p / (1 - p))


# loss -> (h of both answers, log p of both, their lengths, beta) -> the loss of a pair, written out
OF_A_PAIR = {
    "sigmoid": lambda h, lp, n, beta: torch.log(1 + torch.exp(-beta * (h[0] - h[1]))),
    "robust": lambda h, lp, n, beta: torch.log(1 + torch.exp(-beta * (h[0] - h[1]))),
    "hinge": lambda h, lp, n, beta: torch.relu(1 - beta * (h[0] - h[1])),
    "ipo": lambda h, lp, n, beta: (h[0] - h[1] - 0.5 / beta) ** 2,
    "ipo_norm": lambda h, lp, n, beta: (h[0] / n[0] - h[1] / n[1] - 0.5 / beta) ** 2,
    "apo_zero": lambda h, lp, n, beta: 1 - sigmoid(beta * h[0]) + sigmoid(beta * h[1]),
    "apo_down": lambda h, lp, n, beta: sigmoid(beta * h[0]) + 1 - sigmoid(beta * (h[0] - h[1])),
    "simpo": lambda h, lp, n, beta: -torch.log(sigmoid(beta * (lp[0] / n[0] - lp[1] / n[1]) - 0.5)),
    "cpo": lambda h, lp, n, beta: -torch.log(sigmoid(beta * (lp[0] - lp[1]))),
    "orpo": lambda h, lp, n, beta: (
        -beta
        * torch.log(sigmoid(log_odds(torch.exp(lp[0] / n[0])) - log_odds(torch.exp(lp[1] / n[1]))))
    ),
}


def brute_force_loss(policy, reference, made, only: str | None = None) -> torch.Tensor:
    """The explicit loss of a step with all comparisons."""
    (name,) = made.config.dpo.losses
    beta, pair_losses, nll, wrong = made.config.dpo.beta, [], [], []
    weight = made.config.dpo.span_weight
    for c in made.comparisons:
        h, likelihoods, lengths = [], [], []
        for ids, marked, label in zip(c.answer_ids, c.marked, c.labels):
            with torch.no_grad():
                ref_T = alone(reference, c.prompt_ids, ids)
            new_T = alone(policy, c.prompt_ids, ids)
            weights = [weight if mark else 1.0 for mark in marked]
            h.append(sum(w * d for w, d in zip(weights, new_T - ref_T)))
            likelihoods.append(sum(w * d for w, d in zip(weights, new_T)))
            lengths.append(sum(weights))
            if label is True:
                nll += list(-new_T)
            elif label is False:
                wrong += [-torch.log(1 - torch.exp(x)) for x, mark in zip(new_T, marked) if mark]
        for i, j in c.pairs:
            if name in OF_A_PAIR:
                both = [(values[i], values[j]) for values in (h, likelihoods, lengths)]
                pair_losses.append(OF_A_PAIR[name](*both, beta))
    total = torch.zeros((), dtype=torch.float64)
    if name in OF_A_PAIR:
        total = total + sum(pair_losses) / len(pair_losses)
    if name in ("cpo", "orpo", "sft"):
        total = total + sum(nll) / len(nll)
    if name == "unlikelihood":
        total = total + sum(wrong) / len(wrong)
    return total


DATA = {"pairs": pairs(), "spans": pairs(marked=True), "fours": fours()}
OF_MARKS = ["unlikelihood"]
CASES = [(name, which) for name in (*OF_A_PAIR, "sft") for which in DATA]
CASES += [(name, "spans") for name in OF_MARKS]
KINDS_OF_CASES = [(kind, loss, which) for kind in ("t5", "gpt2") for loss, which in CASES]


def is_usual(kind: str, loss: str, which: str) -> bool:
    """The cases that run by default: both models with the first loss, and each loss somewhere."""
    return loss == "sigmoid" or which == "spans" if kind == "gpt2" else loss == "sigmoid"


@pytest.mark.parametrize(
    "kind, loss, which", with_slow(KINDS_OF_CASES, lambda *case: not is_usual(*case))
)
def test_the_gradient_is_that_of_brute_force_in_float64(kind, loss, which, tmp_path):
    sizes = {"train__batch_size": 5, "train__micro_batch_size": 2, "train__max_grad_norm": None}
    weighs = which == "spans" and loss in OF_A_PAIR
    changes = {"dpo__span_weight": 3.0} if weighs else {}
    if loss in WITHOUT_BETA:
        changes["dpo__beta"] = 0.1
    run = trainer(config(tmp_path, dpo__loss=loss, **changes, **sizes), kind, DATA[which])
    reference = copy.deepcopy(run.policy).double().eval()
    run.compute_reference()
    assert (run.ref_logprobs is None) == (loss in WITHOUT_REFERENCE)
    check_gradient(run, lambda policy: brute_force_loss(policy, reference, run))


def check_gradient(run, exact_loss) -> None:
    """Compare a step's gradient, away from the start, with that of a loss in float64."""
    with torch.no_grad():  # away from the reference, where all losses are similar
        for i, p in enumerate(run.actor_critic.parameters()):
            p.add_(0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(i)))
    exact = copy.deepcopy(run.policy).double().eval()
    exact_loss(exact).backward()
    run.optimizer.step = lambda: None
    run._samples_are_due = lambda: False
    logged = run.update(range(len(run.comparisons)))
    with torch.no_grad():
        expected = float(exact_loss(exact))
    assert logged["loss/total"] == pytest.approx(expected, rel=1e-5)
    checked = 0
    for (name, p), q in zip(run.policy.named_parameters(), exact.parameters()):
        largest = float(q.grad.abs().max())
        atol = 1e-5 * largest + 1e-7
        assert torch.allclose(p.grad.double(), q.grad, rtol=1e-3, atol=atol), name
        checked += largest > 1e-4
    assert checked > 10


def kto_by_hand(policy, reference, run) -> torch.Tensor:
    """KTO's loss of all answers or segments, one by one."""

    def ratios(prompt_ids, ids):
        return alone(policy, prompt_ids, ids) - alone(reference, prompt_ids, ids)

    with torch.no_grad():
        others = [ratios(row.prompt_ids, row.answer_ids[0]) for row in run.mismatched]
    total = sum(float(ratios_T.sum()) for ratios_T in others)
    z = max(total / len(others), 0)
    token_z = max(total / sum(map(len, others)), 0)
    settings, losses = run.config.dpo, []
    for c in run.comparisons:
        for ids, marked, label in zip(c.answer_ids, c.marked, c.labels):
            if label is None:
                continue
            ratios_T = ratios(c.prompt_ids, ids)
            if settings.loss == ["kto"]:
                parts = [(ratios_T.sum(), label, z)]
            else:
                parts = []
                for is_marked, group in groupby(range(len(ids)), marked.__getitem__):
                    places = list(group)
                    is_good = label or (any(marked) and not is_marked)
                    if is_marked or not label or not any(marked):
                        parts.append((ratios_T[places].sum(), is_good, token_z * len(places)))
            for ratio, is_good, center in parts:
                weight = settings.desirable_weight if is_good else settings.undesirable_weight
                sign = 1 if is_good else -1
                losses.append(weight * (1 - sigmoid(sign * settings.beta * (ratio - center))))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("loss", ["kto", "kto_spans"])
@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_the_gradient_of_kto_is_that_of_brute_force_in_float64(kind, loss, tmp_path):
    """Good and bad answers without pairs, with the weights of both, in several micro-batches."""
    changes = {"dpo__desirable_weight": 2.0, "dpo__undesirable_weight": 0.5}
    changes |= {"train__batch_size": 6, "train__micro_batch_size": 2, "train__max_grad_norm": None}
    run = trainer(config(tmp_path, dpo__loss=loss, **changes), kind, judged())
    assert [row.answer_ids[0] for row in run.mismatched]
    assert all(a.prompt_ids == b.prompt_ids for a, b in zip(run.comparisons, run.mismatched))
    reference = copy.deepcopy(run.policy).double().eval()
    run.compute_reference()
    check_gradient(run, lambda policy: kto_by_hand(policy, reference, run))


def test_the_gradient_is_the_papers_formula():
    """The gradient for a table of logits (Rafailov et al. 2023, section 4).

    -beta sigmoid(-beta m) (w_t grad log pi(better) - w_t grad log pi(worse))
    """
    torch.manual_seed(0)
    # one distribution per place
    logits_TV = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    ids, weights_BT = (
        torch.tensor([[0, 1, 2], [0, 3, 4]]),
        torch.tensor([[1.0, 4.0, 1.0], [1.0, 2.0, 1.0]], dtype=torch.float64),
    )
    ref_BT = torch.randn(2, 3, dtype=torch.float64)

    def logprobs(z_TV):
        return z_TV.log_softmax(-1).expand(2, 3, 5).gather(-1, ids[..., None])[..., 0]

    h_B = weighted_log_ratio(logprobs(logits_TV), ref_BT, weights_BT)
    sigmoid_pair_loss(h_B[:1] - h_B[1:], 0.7).sum().backward()
    p_TV, margin = logits_TV.detach().softmax(-1), float((h_B[0] - h_B[1]).detach())
    expected_TV = torch.zeros(3, 5, dtype=torch.float64)
    for sign, row, weights_T in ((1, ids[0], weights_BT[0]), (-1, ids[1], weights_BT[1])):
        for t in range(3):
            grad_V = -p_TV[t].clone()
            grad_V[row[t]] += 1
            expected_TV[t] += sign * weights_T[t] * grad_V
    expected_TV *= -0.7 / (1 + math.exp(0.7 * margin))
    assert torch.allclose(logits_TV.grad, expected_TV, atol=1e-12)


# ---- span weights --------------------------------------------------------------------------------


def logprobs_of(run):
    return run.reference_logprobs(run.comparisons)


def weights_of(made) -> dict:
    return made.actor_critic.state_dict()


def test_span_weight_one_is_ordinary_dpo_bit_for_bit(tmp_path):
    plain = trainer(config(tmp_path / "a"))
    marked = trainer(config(tmp_path / "b"), comparisons=pairs(marked=True))
    other = trainer(config(tmp_path / "c", dpo__span_weight=2.0), comparisons=pairs(marked=True))
    for result in (plain, marked, other):
        result.train()
    assert all(torch.equal(t, weights_of(marked)[name]) for name, t in weights_of(plain).items())
    assert any(not torch.equal(t, weights_of(other)[name]) for name, t in weights_of(plain).items())
    assert metrics(tmp_path / "a") == metrics(tmp_path / "b") != metrics(tmp_path / "c")


def test_marked_tokens_move_most(tmp_path):
    """The answers share their first token and their end; the policy unlearns the heavier tokens."""
    comparison = Comparison(
        Prompt("0", "the cat"), (Answer("red dog"), Answer("blue bird", ((5, 9),))), ((0, 1),)
    )
    moved = {}
    for weight in (1.0, 5.0):
        sizes = {"train__epochs": 6, "train__batch_size": 1}
        cfg = config(tmp_path / str(weight), dpo__span_weight=weight, **sizes)
        run = trainer(cfg, comparisons=[comparison])
        run.train()
        before, after = run.ref_logprobs[0][1], logprobs_of(run)[0][1]
        moved[weight] = (after - before).tolist()
    fell = {weight: [-x for x in delta] for weight, delta in moved.items()}
    assert fell[5.0][1] / sum(map(abs, fell[5.0])) > fell[1.0][1] / sum(map(abs, fell[1.0])) + 0.1


# ---- what it learns ------------------------------------------------------------------------------


# The `sigmoid` loss is tested with both. `apo_down` is not here: it lowers both answers.
LEARNERS = [name for name in OF_A_PAIR if name not in ("robust", "apo_down")]
LOSSES_AND_KINDS = [(loss, kind) for loss in LEARNERS for kind in ("t5", "gpt2")]


# T5 takes twice as long as GPT-2, so by default it is trained with one loss only.
@pytest.mark.parametrize(
    "loss, kind", with_slow(LOSSES_AND_KINDS, lambda loss, kind: kind == "t5" and loss != "sigmoid")
)
def test_it_finds_the_preferred_answer(kind, loss, tmp_path):
    """A bandit: three one-word answers to a prompt; the best one depends on the prompt."""
    answers = tuple(Answer(word) for word in ("cat", "dog", "bird"))
    comparisons = [
        Comparison(Prompt(str(i), text), answers, tuple((i, j) for j in range(3) if j != i))
        for i, text in enumerate(["one", "two", "three"])
    ]
    settings = {"train__epochs": 150, "train__batch_size": 3, "train__lr": 1e-2}
    settings |= {"dpo__loss": loss, "dpo__beta": 0.1, "train__max_grad_norm": 100.0}
    run = trainer(config(tmp_path, **settings), kind, comparisons)
    run.train()
    rows = metrics(tmp_path)
    if loss not in WITHOUT_REFERENCE:
        assert rows[0]["dpo/margin"] == pytest.approx(0, abs=1e-5)
    assert rows[-1]["dpo/accuracy"] == 1 and rows[-1]["dpo/margin"] > 0.3
    logprobs = logprobs_of(run)
    for i, few in enumerate(logprobs):
        totals = [float(x.sum()) for x in few]
        assert totals.index(max(totals)) == i


@pytest.mark.parametrize("loss", ["kto", "kto_spans", "unlikelihood"])
def test_a_bad_word_becomes_less_likely_than_a_good_one(loss, tmp_path):
    """Without pairs: one answer to each prompt, good, or bad with its second word marked."""
    texts = ("one two", "three a", "the cat", "a dog")
    comparisons = []
    for i, text in enumerate(texts):
        marked = ((4, 8),) if i % 2 else ()
        answers = (Answer("red blue", marked),)
        comparisons.append(Comparison(Prompt(str(i), text), answers, (), labels=(not i % 2,)))
    settings = {"train__epochs": 60, "train__batch_size": 4, "train__lr": 1e-2, "dpo__loss": loss}
    if loss in WITHOUT_BETA:
        settings["dpo__beta"] = 0.1
    run = trainer(config(tmp_path, **settings), "gpt2", comparisons)
    before = logprobs_of(run)
    run.train()
    change = [after[0] - row[0] for after, row in zip(logprobs_of(run), before)]
    assert all(bad_T[1] < -0.5 for bad_T in change[1::2])
    last = metrics(tmp_path)[-1]
    assert "dpo/accuracy" not in last
    if loss != "unlikelihood":  # it has nothing that keeps the good word
        for good_T, bad_T in zip(change[::2], change[1::2]):
            assert good_T[1] > bad_T[1] + 0.5
        assert last["dpo/good"] > last["dpo/bad"] and last["dpo/kl"] >= 0


def test_the_margin_ends_where_bradley_and_terry_have_it(tmp_path):
    """Three votes against one: sigmoid(beta m) = 3/4 at the optimum.

    So the implied rewards differ by log 3.
    """
    comparison = Comparison(
        Prompt("0", "the cat"), (Answer("red"), Answer("blue")), ((0, 1), (0, 1), (0, 1), (1, 0))
    )
    run = trainer(
        config(tmp_path, train__epochs=150, train__batch_size=1, train__lr=1e-2),
        comparisons=[comparison],
    )
    run.train()
    last = metrics(tmp_path)[-1]
    # one of four pairs is reversed
    assert last["dpo/better"] - last["dpo/worse"] == pytest.approx(0.5 * math.log(3), abs=0.01)
    expected = 0.75 * math.log(4 / 3) + 0.25 * math.log(4)
    assert last["loss/total"] == pytest.approx(expected, abs=1e-4)
    assert last["dpo/accuracy"] == 0.75


# ---- the trainer ---------------------------------------------------------------------------------


def test_four_answers_once_are_their_pairs_one_by_one(tmp_path):
    """Answers shared by several pairs give the same gradient as separate comparisons."""
    apart = [
        replace(c, answers=(c.answers[i], c.answers[j]), pairs=((0, 1),))
        for c in fours()
        for i, j in c.pairs
    ]
    grads = []
    for comparisons in (fours(), apart):
        sizes = {"train__batch_size": len(comparisons), "train__max_grad_norm": None}
        run = trainer(config(tmp_path, **sizes), "gpt2", comparisons)
        run.compute_reference()
        run.optimizer.step, run._samples_are_due = (lambda: None), (lambda: False)
        run.update(range(len(comparisons)))
        grads.append([p.grad.clone() for p in run.policy.parameters()])
    assert all(torch.allclose(a, b, rtol=1e-3, atol=1e-6) for a, b in zip(*grads))


def test_the_first_step_is_at_the_reference(tmp_path):
    run = trainer(config(tmp_path))
    run.train(until=1)
    row = metrics(tmp_path)[0]
    assert row["loss/total"] == pytest.approx(math.log(2), abs=1e-5)
    assert row["dpo/margin"] == pytest.approx(0, abs=1e-5)
    assert row["grad_norm"] > 0.01 and row["episodes"] == 8


def test_every_comparison_is_seen_in_every_pass(tmp_path):
    cfg = config(tmp_path, train__batch_size=2, train__epochs=3)
    run = trainer(cfg)
    assert run.total_steps == 9 and run.steps_per_epoch == 3
    for epoch in range(3):
        seen = [i for step in range(3 * epoch, 3 * epoch + 3) for i in run.batch_indices(step)]
        assert set(seen) == set(range(5)) and len(seen) == 6
    batches = [run.batch_indices(step) for step in range(6)]
    assert batches[:3] != batches[3:]
    assert batches[1] == trainer(cfg).batch_indices(1)


# ---- the reference -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_the_reference_follows_the_policy(kind, tmp_path):
    """After every second step it is a quarter of the policy, and its margins start again there."""
    settings = {"train__epochs": 2, "dpo__reference": {"sync_every": 2, "mixup": 0.25}}
    run = trainer(config(tmp_path, **settings), kind)
    first = {name: p.clone() for name, p in run.moving_reference.named_parameters()}
    run.train(until=1)
    assert run.ref_logprobs is None
    assert all(torch.equal(p, first[n]) for n, p in run.moving_reference.named_parameters())
    run.train(until=2)
    for name, p in run.policy.named_parameters():
        expected = 0.25 * p + 0.75 * first[name]
        torch.testing.assert_close(run.moving_reference.get_parameter(name), expected)


def test_a_reference_that_never_moves_is_the_fixed_one(tmp_path):
    fixed = trainer(config(tmp_path / "a"), "gpt2")
    still = trainer(config(tmp_path / "b", dpo__reference={"sync_every": 1000}), "gpt2")
    for run in (fixed, still):
        run.train()
    for name, tensor in weights_of(fixed).items():
        torch.testing.assert_close(weights_of(still)[name], tensor, rtol=1e-4, atol=1e-6)


def test_a_resumed_run_has_the_reference_that_had_moved(tmp_path):
    settings = {"train__epochs": 4, "train__save_every_steps": 3}
    settings |= {"dpo__reference": {"sync_every": 2, "mixup": 0.5}, "dpo__loss": "kto"}
    whole = trainer(config(tmp_path / "a", **settings), "gpt2")
    whole.train()
    trainer(config(tmp_path / "b", **settings), "gpt2").train(until=5)
    resumed = trainer(config(tmp_path / "b", **settings), "gpt2")
    resumed.train()
    assert all(torch.equal(t, weights_of(resumed)[name]) for name, t in weights_of(whole).items())


def evaluate(policy):
    return {"rougeLsum": sum(p.double().sum().item() for p in policy.parameters())}


LORA = LoRAConfig(r=2, dropout=0.1)
KINDS_AND_ADAPTERS = [(kind, lora) for kind in ("t5", "gpt2", "llama") for lora in (None, LORA)]
BOTH = [("t5", None), ("gpt2", LORA)]  # each kind, with adapters and without
SOME = with_slow(KINDS_AND_ADAPTERS, lambda kind, lora: (kind, lora) not in BOTH)


@pytest.mark.parametrize("kind, lora", SOME[:4])
def test_a_resumed_run_is_the_uninterrupted_one(kind, lora, tmp_path):
    settings = {"train__epochs": 5, "evaluation__every_steps": 2, "train__save_every_steps": 3}

    def start(name):
        cfg = config(tmp_path / name, train__dropout=True, **settings)
        return trainer(cfg, kind, evaluate=evaluate, lora=lora, dropout=0.1)

    whole = start("a")
    whole.train()
    start("b").train(until=5)
    resumed = start("b")
    resumed.train()
    assert whole.step == resumed.step == 10 and whole.best == resumed.best
    assert all(torch.equal(t, weights_of(resumed)[name]) for name, t in weights_of(whole).items())
    states = [checkpoint.optimizer_tensors(result.optimizer)[0] for result in (whole, resumed)]
    assert all(torch.equal(t, states[1][name]) for name, t in states[0].items())
    assert metrics(tmp_path / "a") == metrics(tmp_path / "b")
    assert json.loads((tmp_path / "b" / "run.json").read_text())["resumed_at"] == [4]
    before = metrics(tmp_path / "b")
    finished = start("b")
    finished.train()  # a finished run stays as it is, and needs no reference
    assert finished.ref_logprobs is None
    assert metrics(tmp_path / "b") == before
    assert json.loads((tmp_path / "b" / "run.json").read_text())["resumed_at"] == [4]


@pytest.mark.parametrize("kind, lora", SOME)
def test_gradient_checkpointing_does_not_change_the_curve(kind, lora, tmp_path, monkeypatch):
    recomputed = []
    original = base_trainer.checkpoint
    monkeypatch.setattr(
        base_trainer, "checkpoint", lambda *a, **k: recomputed.append(1) or original(*a, **k)
    )
    noise = {} if kind == "llama" else {"dropout": 0.1}
    rows = []
    for on in (False, True):
        settings = {"train__epochs": 2, "train__gradient_checkpointing": on}
        cfg = config(tmp_path / str(on), train__dropout=True, **settings)
        trainer(cfg, kind, lora=lora, **noise).train()
        assert bool(recomputed) == on
        rows.append(metrics(tmp_path / str(on)))
    assert len(rows[0]) == 4
    for plain, again in zip(*rows, strict=True):
        assert again == pytest.approx(plain, abs=1e-6)


def test_micro_batches_do_not_change_the_curve(tmp_path):
    for size in (1, 4):
        trainer(
            config(tmp_path / str(size), train__micro_batch_size=size), comparisons=fours()
        ).train()
    for one, four in zip(metrics(tmp_path / "1"), metrics(tmp_path / "4")):
        if one["step"] == 0:  # all margins are 0 except for rounding
            one["dpo/accuracy"] = four["dpo/accuracy"]
        assert one == pytest.approx(four, rel=1e-3, abs=1e-5)


def test_the_run_folder(tmp_path):
    run = trainer(
        config(tmp_path, evaluation__every_steps=5, dpo__span_weight=2.0),
        comparisons=pairs(marked=True),
        evaluate=evaluate,
    )
    run.train()
    folders = {"samples", "best", "final", "checkpoints"}
    files = {"config.yaml", "run.json", "metrics.jsonl"}
    assert {path.name for path in tmp_path.iterdir()} >= files | folders
    rows = metrics(tmp_path, timings=True)
    of_pairs = {f"dpo/{name}" for name in ("better", "worse", "margin", "accuracy")}
    others = {"step", "loss/total", "grad_norm", "lr", "episodes", "time/update", "time/cpu"}
    assert set(next(row for row in rows if "lr" in row)) == of_pairs | others
    assert [row["step"] for row in rows if "eval/rougeLsum" in row] == [0, 5, 10]
    best = max((row["eval/rougeLsum"], -row["step"]) for row in rows if "eval/rougeLsum" in row)
    assert run.best == {"step": -best[1], "metric": "rougeLsum", "value": best[0]}
    assert type(load_policy(tmp_path / "final")) is type(run.policy)
    samples = sorted(path.name for path in (tmp_path / "samples").iterdir())
    assert samples == ["step-0.jsonl", "step-5.jsonl", "step-9.jsonl"]
    sample = json.loads((tmp_path / "samples" / "step-9.jsonl").read_text().splitlines()[0])
    assert sample["response"] in BETTER and sample["prompt"] in TEXTS
    assert sample["answer"] == 0 and sample["better_than"] == [1]
    assert len(sample["tokens"]) == len(sample["rewards"]["implied"]) == len(sample["kl"])
    assert sample["reward"] == pytest.approx(sum(sample["rewards"]["implied"]), abs=1e-3)
    assert sample["rewards"]["implied"][0] == pytest.approx(0.5 * sample["kl"][0], abs=1e-4)


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_only_the_top_layers_are_trained(kind, tmp_path):
    ckpt = tmp_path / "start"
    tiny.policy(kind).save(ckpt)
    cfg = config(tmp_path / "run", model__ckpt=str(ckpt), model__train_top_layers=1)
    policy = load_policy(ckpt, top_layers=1)
    before = {name: p.clone() for name, p in policy.model.named_parameters()}
    encoded = encode_comparisons(policy, pairs(), cfg.model.max_generated_len)
    run = DPOTrainer(cfg, policy, encoded, None, Accelerator(cpu=True))
    run.train()
    rows = metrics(tmp_path / "run")
    assert rows[-1]["loss/total"] < rows[0]["loss/total"]
    changed = set()
    for name, p in policy.model.named_parameters():
        assert p.requires_grad or torch.equal(p, before[name])
        if not torch.equal(p, before[name]):
            changed.add(name)
    assert changed
    assert not any("wte" in name or "shared" in name or "h.0." in name for name in changed)


# ---- frozen layers -------------------------------------------------------------------------------

EVALUATED = [Prompt("0", "the cat"), Prompt("1", "a dog sat on")]


def sample_answers(policy) -> dict[str, float]:
    """An evaluation that reads other texts than training does."""
    ids_BP, mask_BP = policy.encode([prompt.text for prompt in EVALUATED])
    response = policy.generate(ids_BP, mask_BP, Sampling(6), [1, 2])
    output, _ = policy(ids_BP, mask_BP, response.ids_BT, response.mask_BT)
    return {"rougeLsum": float(output.logprobs_BT.double().sum())}


def top_layer_trainer(folder, keeps: bool = True) -> DPOTrainer:
    """A trainer of the top layer only; `keeps`: with the states of the frozen layers."""
    cfg = config(folder, train__epochs=4, evaluation__every_steps=2, train__micro_batch_size=2)
    policy = tiny.policy("llama")
    policy.train_top_layers(1)
    encoded = encode_comparisons(policy, pairs(), cfg.model.max_generated_len)
    assert train_dpo.keeps_frozen_states(policy, encoded, num_processes=1)
    if not keeps:
        policy.frozen_layers = None
    return DPOTrainer(cfg, policy, encoded, sample_answers, Accelerator(cpu=True))


def test_the_frozen_layers_read_the_comparisons_once(tmp_path, monkeypatch):
    read = []

    def run_lower(model, n_trained, **inputs):
        read.append(inputs["input_ids"])
        return frozen_layers.run_lower(model, n_trained, **inputs)

    monkeypatch.setattr(causal, "run_lower", run_lower)
    keeps = top_layer_trainer(tmp_path / "keeps")
    keeps.compute_reference()
    of_the_reference = len(read)
    assert of_the_reference
    keeps.train()
    evaluations = keeps.total_steps // 2 + 1
    assert len(read) == of_the_reference + evaluations  # each reads its own samples, in one batch

    reads = top_layer_trainer(tmp_path / "reads", keeps=False)
    reads.train()
    losses = []
    for run in ("keeps", "reads"):
        rows = metrics(tmp_path / run)
        losses.append([row["loss/total"] for row in rows if "loss/total" in row])
    assert len(losses[0]) == keeps.total_steps
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_resumed_run_with_frozen_layers_is_the_uninterrupted_one(tmp_path):
    whole = top_layer_trainer(tmp_path / "a")
    whole.train()
    top_layer_trainer(tmp_path / "b").train(until=5)
    resumed = top_layer_trainer(tmp_path / "b")
    resumed.train()
    assert whole.best == resumed.best
    assert all(torch.equal(t, weights_of(resumed)[name]) for name, t in weights_of(whole).items())


def test_states_that_do_not_fit_are_not_kept(monkeypatch):
    policy = tiny.policy("llama")
    encoded = encode_comparisons(policy, pairs(), 12)
    assert not train_dpo.keeps_frozen_states(policy, encoded, num_processes=1)  # none are frozen
    policy.train_top_layers(1)
    assert not train_dpo.keeps_frozen_states(policy, encoded, num_processes=2)
    tokens = sum(len(c.prompt_ids) + sum(map(len, c.answer_ids)) for c in encoded)
    needed = tokens * policy.hidden_size * 4
    monkeypatch.setattr(frozen_layers, "CAPACITY", needed)
    assert train_dpo.keeps_frozen_states(policy, encoded, num_processes=1)
    monkeypatch.setattr(frozen_layers, "CAPACITY", needed - 1)
    assert not train_dpo.keeps_frozen_states(policy, encoded, num_processes=1)


def test_mismatched_answers_are_those_of_the_next_other_prompt():
    """As by the definition."""

    def rows(prompts):
        answers = [[i + 9] * (1 + i % 3) for i in range(len(prompts))]
        return [
            TokenComparison(None, prompt, [ids], [[False] * len(ids)], [])
            for prompt, ids in zip(prompts, answers)
        ]

    for prompts in ([[1]] * 40, [[1], [2]] * 9, [[1], [1], [1], [2, 3], [2, 3], [1]], [[5]]):
        given = rows(prompts)
        order = sorted(
            range(len(given)), key=lambda i: (len(given[i].prompt_ids), len(given[i].answer_ids[0]))
        )
        expected = [*given]
        for place, i in enumerate(order):
            after = [given[j] for j in order[place + 1 :] + order[:place]]
            others = (row for row in after if [*row.prompt_ids] != [*given[i].prompt_ids])
            expected[i] = next(others, given[i])
        found = mismatched(given, Sizes(given))
        assert [row.answer_ids for row in found] == [row.answer_ids for row in expected]
        assert [row.prompt_ids for row in found] == [row.prompt_ids for row in given]


def test_samples_of_several_passes_are_logged(tmp_path):
    settings = config(tmp_path, train__micro_batch_size=1, logging__n_samples=5)
    trainer(settings).train(until=1)
    rows = read_jsonl(tmp_path / "samples" / "step-0.jsonl")
    assert len(rows) == 5 and len({row["prompt"] for row in rows}) == 2  # four answers for each


@pytest.mark.parametrize("loss", ["simpo", "sigmoid"])
def test_samples_have_a_kl_only_with_a_reference(tmp_path, loss):
    """Without one the log-ratios are log-probabilities, which are no KL."""
    trainer(config(tmp_path, dpo__loss=loss)).train(until=1)
    rows = read_jsonl(tmp_path / "samples" / "step-0.jsonl")
    assert rows and all((row["kl"] is None) == (loss in WITHOUT_REFERENCE) for row in rows)
    assert all(row["rewards"]["implied"] for row in rows)


def test_every_process_has_dropout_masks_of_its_own():
    def run(process: int):
        train = SimpleNamespace(seed=7)
        accelerator = SimpleNamespace(process_index=process)
        config = SimpleNamespace(train=train)
        return SimpleNamespace(config=config, accelerator=accelerator, step=3)

    seed_of_step = BaseTrainer.seed_of_step.fget
    assert seed_of_step(run(0)) == (7, "step", 3)
    assert seed_of_step(run(1)) == (7, "step", 3, 1)


def test_answers_beyond_the_positions_of_the_model_are_refused(tmp_path, monkeypatch):
    policy = tiny.policy("gpt2")
    policy.model.config.n_positions = 10
    monkeypatch.setattr(train_dpo, "trained_policy", lambda *_, **__: policy)
    monkeypatch.setattr(train_dpo, "load_comparisons", lambda *_: pairs())
    dev = tmp_path / "dev.json"
    write_json(dev, [{"prompt": "the red cat", "references": ["a dog"]}])
    too_long = config(tmp_path, model__max_generated_len=8, data__dev_file=str(dev))
    with pytest.raises(UserError, match="up to 8 need 11 positions, the model has 10"):
        train_dpo.build_trainer(Task("any"), too_long)
    policy.model.config.n_positions = 11  # a training prompt has 7 tokens, its longer answer 5
    with pytest.raises(UserError, match="prompts of 7 tokens .* up to 5 need 12 positions"):
        train_dpo.build_trainer(Task("any"), too_long)
