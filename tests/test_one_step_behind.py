"""A server samples the next step's responses while a step trains.

The run equals a loop by hand in this process, also after kills of either side. The overlap is shown
without a clock: the server answers only when it sees that the update has begun.
"""

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import sampler_worker
import torch
from fake_sampler import FakeSampler
from rl_helpers import PROMPTS, CountWord, config, metrics, trainer
from safetensors.torch import load_file
from slow import with_slow
from test_sampler import FINAL_FAULTS, assert_equal, run
from test_sharding import start_ranks

from faults.fake_sampler import Fault, altered, answer, cut, status, truncate
from fgrlhf.base.background import Background
from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, write_json
from fgrlhf.configs.sections import Sampling
from fgrlhf.evaluation import PolicyResponder, evaluate_rows
from fgrlhf.metrics.summary import summarize
from fgrlhf.ppo import PPOTrainer
from fgrlhf.reward import CombinedReward
from fgrlhf.rollout import response_seeds, score
from fgrlhf.runs.step_metrics import rollout_metrics
from fgrlhf.samplers.one_step_behind import response_keys
from fgrlhf.samplers.sampler import pending_responses, pending_tensors
from fgrlhf.text_types import Prompt
from fgrlhf.types import Response
from fgrlhf.utils import seeded

PER_STEP = 8  # responses


@pytest.fixture
def fake(tmp_path):
    with FakeSampler(tmp_path / "sync") as fake:
        yield fake


def behind(fake: FakeSampler, **changes) -> dict:
    server = {"kind": "vllm", "url": fake.url, "sync_dir": str(fake.sync_dir)}
    return {**server, "one_step_behind": True, "importance_cap": 2.0, **changes}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict:
    """A run that nobody interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    with FakeSampler(folder / "sync") as fake:
        return run(folder / "run", behind(fake))


# ---- equal results -------------------------------------------------------------------------------


def by_hand(folder: Path, sampler: dict) -> dict:
    """The loop without a server: W_s samples step s + 1, then step s is scored and trained on."""
    running = trainer(config(folder, train__total_episodes=32, sampler=sampler), kind="gpt2")
    K = running.config.env.train_num_samples_per_input
    seed = running.config.train.seed
    sampling = running.config.train_sampling

    def sampled(step: int) -> Response:
        """The responses one by one, without padding, as the server computes them."""
        prompts = running.prompt_order.of_step(step)
        ids, logprobs = [], []
        for row, row_seed in enumerate(response_seeds(seed, step, 0, len(prompts), K)):
            prompt = running.policy.encode([prompts[row // K]])
            alone = running.policy.generate(*prompt, sampling, [row_seed], 1, 1.0)
            length = int(alone.mask_BT.sum())
            ids.append(alone.ids_BT[0, :length])
            logprobs.append(alone.logprobs_BT[0, :length])
        pad_id = running.policy.tokenizer.pad_token_id
        pad = torch.nn.utils.rnn.pad_sequence
        return Response(
            pad(ids, batch_first=True, padding_value=pad_id),
            pad([torch.ones_like(ids_T) for ids_T in ids], batch_first=True),
            pad(logprobs, batch_first=True),
            of_policy=False,
        )

    rows = []
    following = sampled(0)
    for step in range(4):
        running.step = step
        response = following
        following = sampled(step + 1)
        prompts = running.prompt_order.of_step(step)
        with seeded(seed, "step", step):
            running.actor_critic.eval()
            rollout = score(
                running.actor_critic,
                running.reference,
                prompts,
                *running.policy.encode(prompts),
                response,
                K,
                1.0,
            )
            rewards = running.reward.token_rewards(rollout)
            rewards_BT, advantages = running.compute_advantages(rollout, rewards)
            update = running.update(rollout, advantages)
        rows.append(rollout_metrics(rollout, rewards, rewards_BT, advantages) | update)
    return {"rows": rows, "weights": running.actor_critic.state_dict()}


def test_a_run_equals_the_loop_by_hand(fake, tmp_path):
    result = run(tmp_path / "run", behind(fake))
    expected = by_hand(tmp_path / "hand", behind(fake, one_step_behind=False))
    for row, by_hand_row in zip(result["rows"], expected["rows"], strict=True):
        assert {key: row[key] for key in by_hand_row} == by_hand_row
    for name, tensor in result["weights"].items():
        assert torch.equal(tensor, expected["weights"][name]), name
    gaps = [gap["sampler/gap"] for gap in result["gaps"]]
    assert gaps[0] < 1e-5 < min(gaps[1:])  # only the first responses are from the current weights
    assert all(row["importance/weight"] != 1 for row in result["rows"][1:])
    assert len(fake.requests) == 4 * PER_STEP  # none for a step after the last
    assert fake.calls.count("/collective_rpc") == 4


def test_a_run_continues_exactly_on_another_server(fake, whole, tmp_path):
    run(tmp_path / "run", behind(fake), until=2)
    with FakeSampler(tmp_path / "other") as other:
        assert_equal(whole, run(tmp_path / "run", behind(other)))
        assert len(other.requests) == PER_STEP  # the responses of step 2 are in the checkpoint


def test_a_run_continues_exactly_after_both_sides_were_killed(fake, tmp_path):
    """The trainer dies in its third step, while the server answers for the fourth."""
    sampler = behind(fake, parallel=1)
    arguments = [sampler_worker.__file__, str(tmp_path), "ddp", json.dumps(sampler)]

    def kill(handler, body: dict) -> None:
        process.kill()
        process.wait()

    fake.faults = [answer] * (3 * PER_STEP + 2) + [kill]
    process = subprocess.Popen([sys.executable, *arguments])
    assert process.wait() == -signal.SIGKILL
    assert (tmp_path / "run" / "checkpoints" / "step-2" / "pending.safetensors").is_file()
    with FakeSampler(tmp_path / "other") as other:  # it has no weights of this run
        sampler_worker.run(tmp_path / "run", "ddp", sampler=behind(other))
    sampler_worker.run(tmp_path / "whole", "ddp", sampler=behind(fake))
    rows = metrics(tmp_path / "run")
    assert len(rows) == 4 and rows == metrics(tmp_path / "whole")
    folders = [tmp_path / name / "checkpoints" / "step-4" for name in ("run", "whole")]
    one, two = (load_file(folder / "model.safetensors") for folder in folders)
    assert all(torch.equal(tensor, two[name]) for name, tensor in one.items())


def test_evaluations_change_neither_the_training_nor_the_requests(fake, whole, tmp_path):
    """The policy samples on dev itself, also while the server's next responses wait."""
    reward = CombinedReward({"cat": CountWord()})

    def evaluate(policy) -> dict[str, float]:
        sampling = Sampling(8, do_sample=True)
        responder = PolicyResponder(policy, sampling)
        rows = evaluate_rows(responder, PROMPTS[:2], reward, progress=False)
        return {
            name: interval.mean
            for name, interval in summarize([row.as_json() for row in rows]).items()
        }

    def training(until: int | None = None) -> PPOTrainer:
        changes = {"train__total_episodes": 32, "train__save_every_steps": 1}
        changes |= {"evaluation__every_steps": 1, "sampler": behind(fake)}
        cfg = config(tmp_path / "run", **changes)
        running = trainer(cfg, kind="gpt2", evaluate=evaluate)
        running.train(until)
        return running

    training(until=2)
    weights = training().actor_critic.state_dict()
    rows = metrics(tmp_path / "run")
    evaluated = [row for row in rows if "eval/reward" in row]
    assert [row["step"] for row in evaluated] == [0, 1, 2, 3, 4]
    assert len({row["eval/length"] for row in evaluated}) > 1
    trained = []
    for row in rows:
        if "loss/total" in row:
            trained.append({key: row[key] for key in row if not key.startswith("sampler/")})
    assert_equal(whole, {"rows": trained, "weights": weights})
    assert len(fake.requests) == 4 * PER_STEP


def test_a_restored_policy_samples_its_own_responses(fake, tmp_path):
    """What another policy has begun to sample is replaced, as the guard needs it."""
    cfg = config(tmp_path / "run", train__total_episodes=32, sampler=behind(fake))
    running = trainer(cfg, kind="gpt2")
    running.train(until=2)
    of_others = dict(running.sampler.pending)
    with torch.no_grad():
        for parameter in running.actor_critic.policy.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    running.sample_again()
    pending = running.sampler.pending
    assert pending.keys() == of_others.keys()
    assert any(not torch.equal(pending[key][1], of_others[key][1]) for key in pending)
    with seeded(*running.seed_of_step):
        rollout, _ = running.collect_and_score()
    assert running.sampler.gap_metrics(rollout, 2)["sampler/gap"] < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_one_process_continues_a_run_of_two(strategy, fake, tmp_path):
    """A fault of one process stops both. Pending responses do not depend on their number."""
    sampler = behind(fake)
    fake.faults = [answer] * (3 * PER_STEP + 3) + [status(400)]
    with pytest.raises(AssertionError) as error:
        start_ranks(2, tmp_path, strategy, json.dumps(sampler), script=sampler_worker.__file__)
    assert "refuses /v1/completions: 400 out of order" in str(error.value)
    assert fake.calls.count("/collective_rpc") == 3  # only the first process publishes
    assert len(metrics(tmp_path / "run")) == 2
    sampler_worker.run(tmp_path / "run", "ddp", sampler=sampler)
    sampler_worker.run(tmp_path / "one", "ddp", sampler=sampler)
    rows = metrics(tmp_path / "run")
    assert len(rows) == 4
    for alone, together in zip(metrics(tmp_path / "one"), rows):
        for key, value in alone.items():
            assert together[key] == pytest.approx(value, rel=5e-4, abs=5e-5), key


# ---- overlap -------------------------------------------------------------------------------------


def test_the_server_samples_while_the_update_runs(fake, tmp_path):
    """It answers for step 1 when the update of step 0 has begun: without overlap, never."""
    begun = threading.Event()

    def answer_within_the_update(handler, body: dict) -> None:
        begun.wait()
        answer(handler, body)

    fake.faults = [answer] * PER_STEP + [answer_within_the_update] * PER_STEP
    sampler = behind(fake, timeout_s=60, retries=0)
    running = trainer(config(tmp_path / "run", sampler=sampler), kind="gpt2")
    update = running.update

    def update_and_tell(rollout, advantages) -> dict:
        begun.set()
        return update(rollout, advantages)

    running.update = update_and_tell
    running.train(until=1)
    assert not fake.faults and len(fake.requests) == 2 * PER_STEP
    (row,) = metrics(tmp_path / "run", timings=True)
    assert row["time/wait_for_sampler"] >= 0


def test_the_checkpoint_waits_for_the_responses(fake, tmp_path):
    """The server answers for step 1 only when the trainer waits for it."""
    waits = threading.Event()

    def answer_a_waiting_trainer(handler, body: dict) -> None:
        waits.wait()
        answer(handler, body)

    fake.faults = [answer] * PER_STEP + [answer_a_waiting_trainer] * PER_STEP
    running = trainer(config(tmp_path / "run", sampler=behind(fake)), kind="gpt2")
    wait = running.wait_for_sampler
    calls = []

    def tell_and_wait() -> None:
        calls.append("wait")
        if len(calls) == 2:  # the first one waits for the responses of step 0
            waits.set()
        wait()

    running.wait_for_sampler = tell_and_wait
    running.train(until=1)
    pending = load_file(tmp_path / "run" / "checkpoints" / "step-1" / "pending.safetensors")
    assert len(pending["keys_B"]) == PER_STEP


# ---- faults --------------------------------------------------------------------------------------

STOPPING: dict[str, tuple[Fault, str]] = {
    **{name: FINAL_FAULTS[name] for name in ("id too large", "NaN", "400")},
    "truncated": (altered(truncate), "a truncated response: 1 of 8 tokens"),
    "500": (status(500), "gave no answer to /v1/completions in 1 attempt: 500 out of order"),
    "cut": (cut, "gave no answer to /v1/completions in 1 attempt"),
}


@pytest.mark.parametrize("name", with_slow(STOPPING, lambda name: name in FINAL_FAULTS))
def test_a_fault_in_the_background_is_named_and_leaves_nothing_half_written(
    name, fake, whole, tmp_path
):
    """It happens while step 1 trains. The same command then continues."""
    fault, part = STOPPING[name]
    fake.faults = [answer] * (2 * PER_STEP + 3) + [fault]
    with pytest.raises(UserError) as error:
        run(tmp_path / "run", behind(fake, retries=0))
    assert part in str(error.value) and fake.url in str(error.value)
    assert len(metrics(tmp_path / "run")) == 1  # the step is not logged
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-1"]
    fake.faults = []
    assert_equal(whole, run(tmp_path / "run", behind(fake)))


def test_a_restarted_server_is_found_by_the_version(fake, whole, tmp_path):
    def restart(handler, body: dict) -> None:
        fake.version = None
        answer(handler, body)

    fake.faults = [answer] * (2 * PER_STEP + 3) + [restart]
    with pytest.raises(UserError, match="has the weights None, but the policy's are"):
        run(tmp_path / "run", behind(fake))
    assert_equal(whole, run(tmp_path / "run", behind(fake)))


def test_a_stale_server_is_found_and_the_last_update_is_named_as_another_cause(fake, tmp_path):
    fake.loads_weights = False
    with pytest.raises(UserError) as error:
        run(tmp_path / "run", behind(fake))
    message = str(error.value)
    assert "at step 0 the log-probabilities" in message
    assert "the gap also contains the last update" in message


# ---- checkpoints ---------------------------------------------------------------------------------


def newest(folder: Path) -> Path:
    return folder / "run" / "checkpoints" / "step-2"


@pytest.mark.parametrize("damage", ["missing", "changed"])
def test_a_checkpoint_with_damaged_responses_is_not_used(damage, fake, whole, tmp_path):
    run(tmp_path / "run", behind(fake), until=2)
    file = newest(tmp_path) / "pending.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.unlink()
    if damage == "changed":
        file.write_bytes(content)
    with pytest.warns(UserWarning, match="step-2 is damaged; falling back"):
        assert_equal(whole, run(tmp_path / "run", behind(fake)))


def test_responses_are_never_sampled_again_from_other_weights(fake, tmp_path):
    """A checkpoint that claims to have none is refused, also after another try."""
    run(tmp_path / "run", behind(fake), until=2)
    state = read_json(newest(tmp_path) / "state.json")
    del state["own_sha256"], state["sha256"]["pending.safetensors"]
    write_json(newest(tmp_path) / "state.json", state)
    for _ in range(2):
        with pytest.raises(UserError, match="8 of 8 responses .* are not in the checkpoint"):
            run(tmp_path / "run", behind(fake))
    assert len(metrics(tmp_path / "run")) == 2


def test_responses_to_other_prompts_are_not_used(fake, tmp_path):
    changes = {"sampler": behind(fake), "train__total_episodes": 32}
    trainer(config(tmp_path / "run", **changes), kind="gpt2").train(until=2)
    other = [Prompt(prompt.id, f"{prompt.text} one") for prompt in PROMPTS]
    changed = trainer(config(tmp_path / "run", **changes), kind="gpt2", prompts=other)
    with pytest.raises(UserError, match="their prompts have changed"):
        changed.train()


def test_the_mode_does_not_change_within_a_run(fake, tmp_path):
    run(tmp_path / "run", behind(fake, one_step_behind=False), until=1)
    with pytest.raises(UserError, match="sampler.one_step_behind: False then, True now"):
        run(tmp_path / "run", behind(fake))


def test_pending_responses_by_hand():
    one = {7: (torch.tensor([4, 1]), torch.tensor([-0.5, -2.0]))}
    two = {2**62: (torch.tensor([3]), torch.tensor([-1.0]))}
    assert pending_tensors([{}, {}]) == {} and pending_responses({}) == {}
    tensors = pending_tensors([one, two])
    assert tensors["keys_B"].tolist() == [7, 2**62] and tensors["lengths_B"].tolist() == [2, 1]
    read = pending_responses(tensors)
    assert {key: (ids.tolist(), values.tolist()) for key, (ids, values) in read.items()} == {
        7: ([4, 1], [-0.5, -2.0]),
        2**62: ([3], [-1.0]),
    }


def test_keys_depend_on_prompt_and_seed_but_not_on_padding():
    ids_GP, mask_GP = torch.tensor([[0, 5, 6], [5, 6, 7]]), torch.tensor([[0, 1, 1], [1, 1, 1]])
    keys = response_keys(ids_GP, mask_GP, [1, 2, 1, 2], 2)
    assert len(set(keys)) == 4
    assert response_keys(ids_GP[:1, 1:], mask_GP[:1, 1:], [1, 2], 2) == keys[:2]


# ---- the end of a run ----------------------------------------------------------------------------


def test_a_run_that_stops_early_ends(fake, tmp_path):
    """By the KL: the responses that the server has begun are not used."""
    changes = {"train__kl_threshold": 1e-9, "train__kl_patience": 1}
    for _ in range(2):
        running = trainer(config(tmp_path / "run", sampler=behind(fake), **changes), kind="gpt2")
        running.train()
        assert running.stopped and running.step < running.total_steps
        assert (tmp_path / "run" / "final" / "model.safetensors").is_file()
    assert len(fake.requests) == (running.step + 1) * PER_STEP


def test_a_run_of_one_step(fake, tmp_path):
    cfg = config(tmp_path / "run", sampler=behind(fake), train__total_episodes=PER_STEP)
    trainer(cfg, kind="gpt2").train()
    assert len(fake.requests) == PER_STEP
    assert not list((tmp_path / "run" / "checkpoints").rglob("pending.safetensors"))


def test_a_process_ends_while_requests_are_open():
    """As after an error in the update: nothing waits for the rest of the requests."""
    program = (
        "import threading\n"
        "from fgrlhf.base.background import Background, run_parallel\n"
        "never = threading.Event()\n"
        "Background(lambda: run_parallel([never.wait] * 3, 2))\n"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=300).returncode == 0
    assert Background(lambda: 1).result() == 1


# ---- learning ------------------------------------------------------------------------------------


def test_a_run_learns_from_responses_of_the_step_before(fake, tmp_path):
    changes = {
        "algorithm__name": "grpo",
        "algorithm__kl__coef": 0.0,
        "train__total_episodes": 320,
        "train__sampling_batch_size_per_card": 8,
        "train__lr": 1e-2,
    }
    result = run(tmp_path / "run", behind(fake, max_gap=None), **changes)
    rewards = [row["reward/total"] for row in result["rows"]]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.5
    assert all(gap["sampler/gap"] > 1e-4 for gap in result["gaps"][1:])


# ---- settings ------------------------------------------------------------------------------------


def test_the_lag_needs_importance_weights(fake, tmp_path):
    with pytest.raises(UserError, match=r"sampler.importance_cap.*before the last update"):
        config(tmp_path, sampler=behind(fake, importance_cap=None))
