"""The benchmark compares equal work: both sides compute the same, and a broken side is noticed."""

import json
from dataclasses import replace

import pytest
import tiny
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import (
    baseline,
    bench,
    causal,
    flops,
    gpu,
    harness,
    measure,
    ours,
    precision,
    reward_service,
    scaling,
    workload,
)
from fgrlhf.base.errors import UserError
from fgrlhf.configs.sections import Sampling
from fgrlhf.reward_models.prefix import text_prefix
from fgrlhf.scorers.base import RewardContext
from fgrlhf.text_types import Prompt

SMALL = replace(gpu.REHEARSAL, name="small", bf16=False, reps=2)
DIMS = SMALL.policy
SMALL_DECODER = replace(
    causal.SIZE, vocab=300, width=24, layers=2, heads=3, prompt_tokens=20, tokens=5
)


# ---- both sides compute the same -----------------------------------------------------------------


@pytest.fixture(scope="module")
def equality():
    return measure.check(SMALL)


def test_both_sides_compute_the_same(equality):
    assert equality.failures() == [] and len(equality.differences) == 6
    assert equality.sampled_alike > 0.99 and len(equality.responses) == 4


LOSS, WORDS = baseline.clipped_value_loss, baseline.rm_words
FAULTS = {
    "clipped_value_loss": (lambda *a: [0.99 * x for x in LOSS(*a)], {"losses", "gradients"}),
    "kl_penalized": (lambda rewards_BT, *rest: rewards_BT, {"losses", "gradients"}),
    "rm_words": (lambda prefix, *rest: WORDS(prefix[1:], *rest), {"rewards"}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_difference_is_noticed(monkeypatch, name):
    fault, caught = FAULTS[name]
    monkeypatch.setattr(baseline, name, fault)
    result = measure.check(SMALL)
    assert caught <= {part for part, apart in result.differences.items() if apart > 1e-4}
    with pytest.raises(UserError, match="times cannot be compared"):
        result.require("small")


def test_answers_are_no_copies_and_end():
    """Answers have different lengths, end with an end token, and contain many different words."""
    size = replace(SMALL, answer_tokens=60, prompts=8)
    responses = ours.generate(ours.build(size)).responses()
    ended = [row for row in responses if len(row) < size.answer_tokens]
    assert len(ended) > 0 and all(row[-1] in workload.eos_ids(size) for row in ended)
    assert all(len(set(row)) > len(row) / 3 for row in responses)


@pytest.mark.parametrize("tokens", [3, 15, 31, 32, 200, 1024])
def test_a_prompt_has_the_tokens_it_is_asked_for(tokens):
    ids = workload.tokenizer(2000)(workload.make_prompt(2000, 0, tokens).text)["input_ids"]
    assert len(ids) == tokens and workload.tokenizer(2000).unk_token_id not in ids


def test_the_row_of_a_decoder(monkeypatch):
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
    with pytest.raises(UserError, match="gradients from the same samples differ"):
        causal.checked(tmp_path, SMALL_DECODER)


# ---- FLOPs ---------------------------------------------------------------------------------------


def counted(function) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        function()
    return counter.get_total_flops()


def test_t5_flops_are_those_torch_counts():
    model = workload.t5(DIMS, replace(SMALL, eos_every=None), seed=0).eval()
    model.set_attn_implementation("eager")  # matrix products, all of which the counter counts
    prompt_BP, answer_BT = torch.full((1, 50), 9), torch.full((1, 30), 9)
    forward = lambda: model(prompt_BP, decoder_input_ids=answer_BT, use_cache=False)  # noqa: E731
    expected = flops.forward_flops(DIMS, [50], [[30]], logits=True)
    assert counted(forward) == pytest.approx(expected, rel=0.01)
    sampling = {"do_sample": False, "max_new_tokens": 30, "min_new_tokens": 30}
    expected = flops.forward_flops(DIMS, [50], [[30]], logits=True, cached=True)
    assert counted(lambda: model.generate(prompt_BP, **sampling)) == pytest.approx(expected, 0.03)
    two = flops.forward_flops(DIMS, [50], [[30, 30]], logits=False)
    one = flops.forward_flops(DIMS, [50], [[30]], logits=False)
    assert two - one == flops.decoder_flops(DIMS, 30, 50)


def test_longformer_flops_are_no_more_than_torch_counts():
    """Transformers computes blocks of keys wider than the window; only the window is counted."""
    model, tokens = workload.reward_model(SMALL, "segment", 0), 64
    ids, mask = torch.full((1, tokens), 9), torch.ones(1, tokens, dtype=torch.long)
    formula = flops.longformer_flops(SMALL.reward, tokens)
    head = 2 * tokens * SMALL.reward.hidden * 2
    assert formula <= counted(lambda: model(ids, attention_mask=mask)) - head <= 1.2 * formula


def test_step_flops_by_hand():
    size = replace(SMALL, epochs=2)
    phases = flops.step_flops(size, [50], [[30]], judged=[20, 20])
    forward = sum(flops.forward_flops(DIMS, [50], [[30]], logits=has) for has in (True, False))
    assert phases["updates"] == 6 * forward and phases["scoring"] == forward
    assert phases["step"] == sum(phases[name] for name in measure.PHASES)
    # with one sample per prompt and full lengths, only the critic's logits are extra
    size = replace(SMALL, samples=1, prompt_tokens=SMALL.input_limit)
    prompts, answers = [size.input_limit] * size.prompts, [[size.answer_tokens]] * size.prompts
    needed = flops.step_flops(size, prompts, answers, [])["updates"]
    logits = 3 * size.epochs * size.prompts * flops.logits_flops(size.value, size.answer_tokens)
    assert flops.padded_update_flops(size) - needed == pytest.approx(logits)


# ---- the harness ---------------------------------------------------------------------------------


def test_sides_alternate_and_ratios_are_those_of_single_rounds():
    calls = []

    def side(name, seconds):
        return lambda: calls.append(name) or {"step": next(seconds)}

    baseline_s, ours_s = iter([9.0, 2.0, 8.0, 9.0]), iter([9.0, 1.0, 2.0, 9.0])
    sides = {"baseline": side("a", baseline_s), "ours": side("b", ours_s)}
    rounds = harness.alternate(sides, 3, warm_ups=1)
    assert "".join(calls) == "ba" + "ab" + "ba" + "ab"
    times = harness.by_phase(rounds, ["step"])
    medians = {"baseline_s": 8.0, "ours_s": 2.0, "ratio": 2.0}
    assert times == {"step": {**medians, "lowest": 1.0, "highest": 4.0}}
    assert harness.phase_rows(times) == [["step", "8.00", "2.00", "2.00"]]


def process_that(ends: str) -> None:
    import os
    import signal

    if ends == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    raise UserError("it is broken")


@pytest.mark.parametrize(
    "ends, message", [("killed", "was killed, most likely .*memory"), ("fails", "it is broken$")]
)
def test_a_process_that_fails_says_why(monkeypatch, ends, message):
    monkeypatch.setenv("PYTHONPATH", "tests", prepend=":")
    with pytest.raises(UserError, match=message):
        harness.in_processes("test_benchmarks:process_that", {"ends": ends})


def test_bench_json_has_the_stated_keys(tmp_path, monkeypatch):
    def measured(size, side, *rest):
        peaks = dict.fromkeys(measure.PHASES, 200.0)
        peaks["updates"] = {"baseline": 400.0, "ours": 250.0}[side]
        return {"imports_mb": 100.0, "built_mb": 110.0, "seconds": [], "peak_mb": peaks}

    monkeypatch.setattr(bench, "measured", measured)
    monkeypatch.setitem(bench.SIZES, "tiny", SMALL)
    bench.run(bench.BenchSettings(sizes="tiny", output_dir=str(tmp_path), threads=1))
    written = json.loads((tmp_path / "bench.json").read_text())["small"]
    keys = {"baseline_s", "ours_s", "ratio", "ours_peak_mb", "ours_tokens_per_s", "ours_gflops"}
    for name in (*measure.PHASES, "step"):
        assert keys <= set(written[name]) and written[name]["ratio"] > 0
    peak = written["peak_mb"]
    assert (peak["baseline"], peak["ours"], peak["ratio"]) == (400, 250, 1.6)
    assert peak["ratio_without_imports"] == 2.0
    assert "| updates |" in (tmp_path / "bench.md").read_text()


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


def test_precision_compares_sampling_and_scoring():
    torch.manual_seed(0)
    found = precision.differences(
        tiny.gpt2(), [Prompt("0", "a b c."), Prompt("1", "d")], 2, Sampling(max_new_tokens=6)
    )
    assert 0 < found["tokens"] <= 24
    assert 0 < found["mean |d|"] <= found["largest |d|"] < 0.1
    assert found["ratio at 1 %"] <= 1 <= found["ratio at 99 %"]


def test_unknown_sizes_are_refused():
    with pytest.raises(UserError, match="huge.*choose from tiny"):
        bench.BenchSettings(sizes="tiny,huge").chosen()
    assert [size.prompts for size in bench.BenchSettings(sizes="tiny", prompts=2).chosen()] == [2]
    assert bench.BenchSettings(sizes="smollm2").chosen() == []


def test_prompt_lengths_are_quantiles_of_real_ones():
    size = replace(SMALL, prompts=41, prompt_tokens=None, input_limit=1024)
    assert sum(workload.prompt_lengths(size)) / 41 == pytest.approx(657, rel=0.03)
    assert max(workload.prompt_lengths(replace(size, input_limit=500))) == 500


def test_numbers_and_parts_of_a_document(tmp_path):
    numbers = [harness.number(x) for x in (0, 0.01234, 1.234, 123.4, 12345.0)]
    assert numbers == ["0", "0.0123", "1.23", "123", "12,345"]
    document = tmp_path / "a.md"
    document.write_text("x\n<!-- bench -->\nold\n<!-- /bench -->\ny\n")
    harness.replace_part(document, "bench", "new\n")
    assert document.read_text() == "x\n<!-- bench -->\nnew\n<!-- /bench -->\ny\n"
    with pytest.raises(UserError, match="no place for `other`"):
        harness.replace_part(document, "other", "new")


# ---- growth of cost ------------------------------------------------------------------------------


def test_an_axis_changes_what_it_names():
    layers, models = (scaling.at(axis, 4) for axis in ("top_layers", "reward_models"))
    assert (layers.policy.layers, layers.value.layers, layers.top_layers) == (8, 8, 4)
    assert list(workload.aspects(models)) == [f"factuality_{i}" for i in range(4)]
    for axis, (_, points) in scaling.AXES.items():
        sizes = [scaling.at(axis, value) for value in points]
        assert len(set(sizes)) == len(points) and list(points) == sorted(points)


def test_our_side_trains_the_top_layers_and_asks_this_many_reward_models():
    trainer = ours.build(replace(SMALL, top_layers=1, reward_models=2))
    step = measure.run_step(ours, trainer, clock=iter(range(8)).__next__)
    assert step.seconds == dict.fromkeys(measure.PHASES, 1)
    assert set(step.rewards.by_aspect) == {"factuality_0", "factuality_1"}
    whole = ours.build(SMALL)
    trained, all_of_it = (
        sum(weight.numel() for weight in side.actor_critic.parameters() if weight.requires_grad)
        for side in (trainer, whole)
    )
    assert 0 < trained < all_of_it / 2


def test_the_slope_is_the_exponent_of_the_last_points():
    points = [{"x": x, "step": cost} for x, cost in ((1, 9.0), (2, 4.0), (4, 16.0), (8, 64.0))]
    assert scaling.slope(points, "step") == pytest.approx(2)
