"""The benchmark compares equal work: both sides compute the same, and its numbers are correct."""

import json
import re
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import (
    baseline,
    bench,
    causal,
    child,
    decoding,
    flops,
    gpu,
    measure,
    ours,
    profile,
    ranks,
    reward_service,
    scaling,
    tables,
    workload,
)
from fgrlhf.base.errors import UserError
from fgrlhf.reward_models.prefix import text_prefix
from fgrlhf.scorers.context import RewardContext
from fgrlhf.text_types import Prompt

ROOT = Path(__file__).parents[1]
SMALL = replace(gpu.REHEARSAL, name="small", bf16=False, reps=2)
DIMS = SMALL.policy


@pytest.fixture(scope="module")
def equality():
    return measure.check(SMALL)


def test_both_sides_compute_the_same(equality):
    assert equality.failures() == []
    assert set(equality.differences) == {
        "logprobs",
        "reference logprobs",
        "values",
        "rewards",
        "losses",
        "gradients",
    }
    assert equality.sampled_alike > 0.99 and len(equality.responses) == 4


@pytest.mark.parametrize(
    "name, fault, caught",
    [
        (
            "clipped_value_loss",
            lambda *a: [0.99 * x for x in measured_loss(*a)],
            {"losses", "gradients"},
        ),
        ("kl_penalized", lambda rewards_BT, *rest: rewards_BT, {"losses", "gradients"}),
        ("rm_words", lambda prefix, *rest: words(prefix[1:], *rest), {"rewards"}),
    ],
)
def test_a_difference_is_noticed(monkeypatch, name, fault, caught):
    monkeypatch.setattr(baseline, name, fault)
    result = measure.check(SMALL)
    assert caught <= {
        name for name, value in result.differences.items() if value > measure.TOLERANCE
    }
    with pytest.raises(UserError, match="times cannot be compared"):
        result.require("small")


measured_loss, words = baseline.clipped_value_loss, baseline.rm_words


def test_the_models_answers_are_no_copies_and_end(equality):
    """Answers have different lengths, end with an end token, and contain many different words."""
    size = replace(SMALL, answer_tokens=60, prompts=8)
    responses = ours.generate(ours.build(size)).responses()
    ended = [row for row in responses if len(row) < size.answer_tokens]
    assert len(ended) > 0 and all(row[-1] in workload.eos_ids(size) for row in ended)
    assert all(len(set(row)) > len(row) / 3 for row in responses)
    without = ours.generate(ours.build(replace(SMALL, eos_every=None))).responses()
    assert [len(row) for row in without] == [12] * 4


def test_a_process_that_was_killed_is_told_apart(monkeypatch):
    killed = subprocess.CompletedProcess([], -signal.SIGKILL, "", "")
    monkeypatch.setattr(child.subprocess, "run", lambda *args, **kwargs: killed)
    with pytest.raises(UserError, match="baseline was killed.*memory"):
        child.measured(SMALL, "baseline", 1)


@pytest.mark.parametrize("tokens", [3, 15, 30, 31, 32, 40, 200, 657, 1024])
def test_a_prompt_has_the_tokens_it_is_asked_for(tokens):
    prompt = workload.make_prompt(2000, 0, tokens)
    ids = workload.tokenizer(2000)(prompt.text)["input_ids"]
    assert len(ids) == tokens and workload.tokenizer(2000).unk_token_id not in ids


def test_prompt_lengths_are_quantiles_of_real_ones():
    lengths = workload.prompt_lengths(
        replace(SMALL, prompts=41, prompt_tokens=None, input_limit=1024)
    )
    assert sum(lengths) / 41 == pytest.approx(657, rel=0.03)
    assert (
        max(
            workload.prompt_lengths(replace(SMALL, prompts=41, prompt_tokens=None, input_limit=500))
        )
        == 500
    )


def test_bench_json_has_the_stated_keys(tmp_path, monkeypatch):
    fake = {
        "imports_mb": 100.0,
        "built_mb": 110.0,
        "seconds": [],
        "peak_mb": dict.fromkeys(measure.PHASES, 200.0),
    }
    monkeypatch.setattr(
        bench,
        "measured",
        lambda size, side, *rest: {
            **fake,
            "peak_mb": {**fake["peak_mb"], "updates": {"baseline": 400.0, "ours": 250.0}[side]},
        },
    )
    monkeypatch.setitem(bench.SIZES, "tiny", SMALL)
    bench.run(bench.Settings(sizes="tiny", output_dir=str(tmp_path), threads=1))
    written = json.loads((tmp_path / "bench.json").read_text())["small"]
    for name in (*measure.PHASES, "step"):
        assert {
            "baseline_s",
            "ours_s",
            "ratio",
            "ours_peak_mb",
            "ours_tokens_per_s",
            "ours_gflops",
        } <= set(written[name])
        assert written[name]["ratio"] > 0
    assert (
        written["peak_mb"]["baseline"] == 400
        and written["peak_mb"]["ours"] == 250
        and written["peak_mb"]["ratio"] == 1.6
    )
    assert written["peak_mb"]["ratio_without_imports"] == 2.0
    assert "| updates |" in (tmp_path / "bench.md").read_text()


def test_unknown_sizes_are_refused():
    with pytest.raises(UserError, match="huge.*choose from tiny"):
        bench.Settings(sizes="tiny,huge").chosen()
    assert [size.samples for size in bench.Settings(sizes="tiny", samples=2).chosen()] == [2]
    assert bench.Settings(sizes="smollm2").chosen() == []
    assert "smollm2" in bench.Settings().names()


SMALL_DECODER = replace(
    causal.SIZE, vocab=300, width=24, layers=2, heads=3, prompt_tokens=20, tokens=5
)


def test_the_row_of_a_decoder(tmp_path, monkeypatch):
    monkeypatch.setattr(causal, "CHECKED", {**causal.CHECKED, "prompt_tokens": 10})
    lines = []
    result = causal.bench(lines.append, SMALL_DECODER)
    assert result["equality"]["gradients"] < 1e-4 and len(lines) == 1 + SMALL_DECODER.steps
    for phase in ("rollout", "update", "step"):
        row = result[phase]
        assert row["ratio"] == row["baseline_s"] / row["ours_s"] > 0
    assert "| update |" in causal.size_table(result)


def test_a_decoder_that_computes_something_else_is_not_timed(tmp_path, monkeypatch):
    monkeypatch.setattr(causal, "reward_of", lambda text: float(text.count("1")))
    with pytest.raises(UserError, match="gradients of baseline and ours differ"):
        causal.checked(tmp_path, SMALL_DECODER)


def test_ratios_are_medians_of_pairs():
    assert measure.paired([2.0, 8.0, 9.0], [1.0, 2.0, 9.0]) == {
        "baseline_s": 8.0,
        "ours_s": 2.0,
        "ratio": 2.0,
    }


def counted(function) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        function()
    return counter.get_total_flops()


TINY_DECODER = replace(
    causal.SIZE, vocab=300, width=36, layers=2, prompt_tokens=20, tokens=3, samples=2, steps=1
)


def test_decoding_steps_compute_the_same_logits():
    result = decoding.measure(TINY_DECODER, say=lambda line: None)
    assert result["logits_apart"] <= decoding.TOLERANCE
    assert result["ratio"] == result["transformers_s"] / result["ours_s"]


def test_decoding_steps_with_other_logits_are_not_timed(monkeypatch):
    project = decoding.Ours.next
    monkeypatch.setattr(decoding.Ours, "next", lambda self, ids_B: project(self, ids_B) + 1e-3)
    with pytest.raises(UserError, match="the logits of step 1 differ by 0.001"):
        decoding.measure(TINY_DECODER, say=lambda line: None)


def test_t5_flops_are_those_torch_counts():
    model = workload.t5(DIMS, SMALL, seed=0).eval()
    model.set_attn_implementation("eager")  # matrix products, all of which the counter counts
    prompt_BP, answer_BT = torch.full((1, 50), 9), torch.full((1, 30), 9)
    with_logits = flops.forward_flops(DIMS, [50], [[30]], logits=True)
    assert counted(
        lambda: model(input_ids=prompt_BP, decoder_input_ids=answer_BT, use_cache=False)
    ) == pytest.approx(with_logits, rel=0.01)
    assert flops.encoder_flops(DIMS, 50) == pytest.approx(
        counted(lambda: model.encoder(input_ids=prompt_BP)), rel=0.01
    )
    two = flops.forward_flops(DIMS, [50], [[30, 30]], logits=False)
    one = flops.forward_flops(DIMS, [50], [[30]], logits=False)
    assert two - one == flops.decoder_flops(DIMS, 30, 50)


def test_padding_to_the_real_lengths_is_no_padding():
    """With one sample per prompt and full lengths, only the critic's logits are extra FLOPs."""
    size = replace(SMALL, samples=1, prompt_tokens=SMALL.input_limit)
    prompts, answers = [size.input_limit] * size.prompts, [[size.answer_tokens]] * size.prompts
    logits = 3 * size.epochs * size.prompts * flops.logits_flops(size.value, size.answer_tokens)
    result = (
        flops.padded_update_flops(size) - flops.step_flops(size, prompts, answers, [])["updates"]
    )
    assert result == pytest.approx(logits)


def test_generations_flops_are_those_torch_counts():
    size = replace(SMALL, eos_every=None)
    model = workload.t5(DIMS, size, seed=0).eval()
    model.set_attn_implementation("eager")
    result = counted(
        lambda: model.generate(
            input_ids=torch.full((1, 50), 9), do_sample=False, max_new_tokens=30, min_new_tokens=30
        )
    )
    assert result == pytest.approx(
        flops.forward_flops(DIMS, [50], [[30]], logits=True, cached=True), rel=0.03
    )


def test_longformer_flops_are_no_more_than_torch_counts():
    """Transformers computes blocks of keys wider than the window; only the window is counted."""
    model, tokens = workload.reward_model(SMALL, "segment", 0), 64
    result = counted(
        lambda: model(
            input_ids=torch.full((1, tokens), 9),
            attention_mask=torch.ones(1, tokens, dtype=torch.long),
        )
    )
    formula = flops.longformer_flops(SMALL.reward, tokens)
    head = 2 * tokens * SMALL.reward.hidden * 2
    assert formula <= result - head <= 1.2 * formula


def test_step_flops_by_hand():
    size = replace(SMALL, epochs=2)
    phases = flops.step_flops(size, [50], [[30]], judged=[20, 20])
    forward = flops.forward_flops(DIMS, [50], [[30]], logits=True) + flops.forward_flops(
        DIMS, [50], [[30]], logits=False
    )
    assert phases["updates"] == 6 * forward and phases["scoring"] == forward
    assert phases["step"] == sum(phases[name] for name in measure.PHASES)


def test_slopes_and_tables(tmp_path):
    points = [{"x": x, "step": 3.0 * x**2} for x in (1, 2, 4, 8)]
    assert scaling.slope(points, "step") == pytest.approx(2)
    assert [tables.number(x) for x in (0, 0.01234, 1.234, 123.4, 12345.0)] == [
        "0",
        "0.0123",
        "1.23",
        "123",
        "12,345",
    ]
    document = tmp_path / "a.md"
    document.write_text("x\n<!-- bench -->\nold\n<!-- /bench -->\ny\n")
    tables.replace_part(document, "bench", "new\n")
    assert document.read_text() == "x\n<!-- bench -->\nnew\n<!-- /bench -->\ny\n"
    with pytest.raises(UserError, match="no place for `other`"):
        tables.replace_part(document, "other", "new")


def test_scaling_plots_what_it_measured(tmp_path, monkeypatch):
    answer = {"imports_mb": 50.0, "built_mb": 60.0, "peak_mb": {"updates": 90.0}}
    times = lambda size: [dict.fromkeys(measure.PHASES, 1.0 * size.samples)] * 2  # noqa: E731
    monkeypatch.setattr(
        scaling, "measured", lambda size, *rest, **more: {**answer, "seconds": times(size)}
    )
    results = scaling.run(
        scaling.Settings(axes="samples", output_dir=str(tmp_path), plots=str(tmp_path / "plots"))
    )
    assert (
        scaling.slope(results["samples"], "step") == pytest.approx(1)
        and results["samples"][0]["peak_mb"] == 40
    )
    assert (tmp_path / "plots" / "samples.svg").stat().st_size > 1000
    assert "plots/samples.svg" in (tmp_path / "scaling.md").read_text()


@pytest.mark.slow
def test_the_memory_of_two_processes(tmp_path, monkeypatch):
    """Real processes with tiny models; tests/test_ranks.py has the table and the plot."""
    sharded = ranks.measured(SMALL, "fsdp2", tmp_path / "fsdp2")
    assert set(sharded) == {"build", "rollout", "update"} and sharded["update"] > 0
    with monkeypatch.context() as broken, pytest.raises(UserError, match="a process of ddp failed"):
        broken.setattr(ranks.sys, "executable", "/bin/false")
        ranks.measured(SMALL, "ddp", tmp_path / "fails")


def test_weights_are_counted_without_norms_and_biases():
    counts = sum(
        p.numel()
        for name, p in workload.t5(DIMS, SMALL, 0).named_parameters()
        if "norm" not in name and "bias" not in name
    )
    assert scaling.weights_of(DIMS) == counts


def test_profile_names_every_phase(monkeypatch):
    monkeypatch.setitem(profile.SIZES, "small", SMALL)
    text = profile.run(profile.Settings(size="small", threads=1, top=3))
    assert all(
        f"| {phase} |" in text and f"{phase}, by operators' own time" in text
        for phase in measure.PHASES
    )
    assert len(re.findall("aten::", text)) >= 8


@pytest.mark.slow
@pytest.mark.parametrize("side", ["baseline", "ours"])
def test_a_side_in_a_process_of_its_own(side, equality):
    result = child.measured(SMALL, side, 1, equality.responses, reps=2)
    assert len(result["seconds"]) == 2 and set(result["peak_mb"]) == set(measure.PHASES)
    assert 0 < result["imports_mb"] <= result["built_mb"] <= max(result["peak_mb"].values())


def test_the_share_that_a_reward_server_adds_by_hand():
    steps = {
        "in the process": [reward_service.Step(seconds, 0.0) for seconds in (1.0, 2.0, 4.0)],
        "served": [reward_service.Step(*pair) for pair in ((1.1, 0.11), (2.1, 0.0), (4.0, 0.2))],
    }
    first, second = reward_service.lines_of(steps)
    assert "2.00 s a step, 0.0% of it waiting; +0.0% (" in first
    assert "2.10 s a step, 5.0% of it waiting; +5.0% (+0.0% to +10.0%)" in second


def test_the_reward_server_of_the_benchmark_gives_the_same_values():
    prompts, texts = [Prompt("0", "a"), Prompt("1", "b")], ["one two three", "one"]
    context = RewardContext(text_prefix)
    expected = reward_service.REWARD.build(context).segment_scores(prompts, texts)
    with reward_service.serving(0.0) as config:
        assert config.build(context).segment_scores(prompts, texts) == expected
    assert len(expected[0]) == 2
