import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny
import torch
from rl_helpers import CountWord, config, metrics, trainer
from safetensors.torch import load_file, save_file
from slow import with_slow

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json
from fgrlhf.configs.sections import LoRAConfig
from fgrlhf.configs.strict import load_config, validate
from fgrlhf.load import load_task
from fgrlhf.models import tiny as tiny_models
from fgrlhf.policy import load_policy
from fgrlhf.reward import CombinedReward
from fgrlhf.runs import checkpoint
from fgrlhf.runs.dpo_config import DPOConfig
from fgrlhf.runs.optimizer import Average
from fgrlhf.samplers.shared_weights import publish_weights
from fgrlhf.task_config import rl_config

CASES = {
    "t5, own critic, dropout": ("t5", True, 0.1),
    "t5, shared critic": ("t5", False, 0.0),
    "gpt2, shared critic, dropout": ("gpt2", False, 0.1),
    "t5, own critic, LoRA, dropout": ("t5", True, 0.1),
    "llama, shared critic, LoRA": ("llama", False, 0.0),
}


def make(folder, case="t5, shared critic", reward=None, **changes):
    kind, own_value, dropout = CASES[case]
    settings = {
        "train__dropout": dropout > 0,
        "evaluation__every_steps": 2,
        "train__warmup_steps": 2,
        "algorithm__kl__target": 0.2,
        "algorithm__kl__horizon": 50,
        "train__kl_threshold": 1e-5,
        "train__kl_patience": 100,
    }

    def evaluate(policy):
        return {"reward": sum(p.double().sum().item() for p in policy.parameters())}

    return trainer(
        config(folder, **{**settings, **changes}),
        kind,
        reward,
        evaluate,
        dropout=dropout,
        own_value=own_value,
        lora=LoRAConfig(r=2, dropout=dropout) if "LoRA" in case else None,
    )


def assert_same_run(made, folder, other, other_folder):
    for name in ("step", "high_kl_count", "best"):
        assert getattr(made, name) == getattr(other, name), name
    assert made.kl.coef == other.kl.coef
    for name, tensor in made.actor_critic.state_dict().items():
        assert torch.equal(tensor, other.actor_critic.state_dict()[name]), name
    (tensors, groups), (other_tensors, other_groups) = (
        checkpoint.optimizer_tensors(m.optimizer) for m in (made, other)
    )
    assert tensors.keys() == other_tensors.keys()
    assert all(torch.equal(t, other_tensors[n]) for n, t in tensors.items())
    # betas: a tuple becomes a list in JSON
    plain = [json.loads(json.dumps(g)) for g in (groups, other_groups)]
    assert plain[0] == plain[1]
    assert metrics(folder) == metrics(other_folder)
    samples = [
        {p.name: p.read_text() for p in (f / "samples").iterdir()} for f in (folder, other_folder)
    ]
    assert samples[0] == samples[1]
    weights = [(f / "best" / "model.safetensors").read_bytes() for f in (folder, other_folder)]
    assert weights[0] == weights[1]


@pytest.fixture(scope="module")
def finished_steps(tmp_path_factory):
    """Runs of two and of four steps, with a checkpoint after every second one."""
    folders = {}
    for steps in (2, 4):
        folders[steps] = tmp_path_factory.mktemp(f"run{steps}")
        make(folders[steps], train__save_every_steps=2).train(until=steps)
    return folders


@pytest.fixture
def two_steps(finished_steps, tmp_path):
    return shutil.copytree(finished_steps[2], tmp_path / "two")


@pytest.fixture
def four_steps(finished_steps, tmp_path):
    return shutil.copytree(finished_steps[4], tmp_path / "four")


COVERED = "t5, own critic, dropout"  # each of its parts is in another case


@pytest.mark.parametrize("case", with_slow(CASES, lambda case: case == COVERED))
def test_two_halves_are_one_whole(case, tmp_path):
    whole, half = tmp_path / "whole", tmp_path / "half"
    straight = make(whole, case)
    straight.train()
    make(half, case).train(until=4)
    resumed = make(half, case)
    resumed.train()
    assert resumed.step == 8 and resumed.high_kl_count > 0
    assert_same_run(resumed, half, straight, whole)


def test_the_average_of_a_resumed_run_is_that_of_the_uninterrupted_one(tmp_path):
    whole, half = tmp_path / "whole", tmp_path / "half"
    settings = {"train__ema": 0.9, "train__save_every_steps": 2}
    make(whole, **settings).train()
    make(half, **settings).train(until=4)
    assert not (half / "ema").exists()
    make(half, **settings).train()
    names = ("ema/model.safetensors", "final/model.safetensors")
    average, final = [(whole / name).read_bytes() for name in names]
    assert [(half / name).read_bytes() for name in names] == [average, final]
    assert average != final and (whole / "ema" / "README.md").is_file()
    load_policy(whole / "ema")
    plain = tmp_path / "plain"  # and nothing else changes
    make(plain, train__save_every_steps=2).train()
    assert (plain / "final" / "model.safetensors").read_bytes() == final
    assert not (plain / "ema").exists()


def test_an_average_by_hand():
    weight = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    average = Average({"w": weight}, 0.75)
    for value in ([5.0, 2.0], [1.0, 6.0]):
        weight.data.copy_(torch.tensor(value))
        average.update()
    # 1 -> 0.75 * 1 + 0.25 * 5 = 2 -> 0.75 * 2 + 0.25 * 1; 2 -> 2 -> 0.75 * 2 + 0.25 * 6
    assert average.tensors["w"].tolist() == [1.75, 3.0]
    with pytest.raises(KeyError), average.installed():
        assert weight.tolist() == [1.75, 3.0]
        raise KeyError
    assert weight.tolist() == [1.0, 6.0]


class FailsOnce:
    """A reward that fails at one call, like a killed job."""

    def __init__(self, at: int):
        self.calls, self.at = 0, at

    def segment_scores(self, prompts, texts):
        self.calls += 1
        if self.calls == self.at:
            raise KeyboardInterrupt
        return CountWord().segment_scores(prompts, texts)


def test_an_interruption_between_checkpoints(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    straight = make(whole, train__save_every_steps=3)
    straight.train()
    with pytest.raises(KeyboardInterrupt):
        reward = CombinedReward({"cat": FailsOnce(at=6)})  # in step 5, after steps 3 and 4
        make(cut, reward=reward, train__save_every_steps=3).train()
    assert [row["step"] for row in metrics(cut) if "kl" in row] == [0, 1, 2, 3, 4]
    resumed = make(cut, train__save_every_steps=3)
    resumed.train()
    assert_same_run(resumed, cut, straight, whole)
    # the last two are kept
    assert sorted(path.name for path in (cut / "checkpoints").iterdir()) == ["step-6", "step-8"]


def damage(folder, how: str) -> None:
    if how == "weights":
        data = bytearray((folder / "model.safetensors").read_bytes())
        data[-1] ^= 1
        (folder / "model.safetensors").write_bytes(data)
    elif how == "missing":
        (folder / "optimizer.safetensors").unlink()
    else:
        (folder / "state.json").write_text(how)


@pytest.mark.parametrize("how", ["weights", "missing", "{", "[]", '{"sha256": 3}', "{}"])
def test_a_damaged_checkpoint_is_passed_over(how, four_steps):
    damage(four_steps / "checkpoints" / "step-4", how)
    run = make(four_steps, train__save_every_steps=2)
    with pytest.warns(UserWarning, match="step-4 is damaged"):
        assert checkpoint.load_latest(run)
    assert run.step == 2
    damage(four_steps / "checkpoints" / "step-2", how)
    with pytest.warns(UserWarning), pytest.raises(UserError, match="every checkpoint.*damaged"):
        make(four_steps, train__save_every_steps=2).train()
    assert len(metrics(four_steps)) == 6  # nothing of the old run is gone: 4 steps, 2 evaluations


def test_a_file_in_the_place_of_the_checkpoints_is_named(two_steps):
    shutil.rmtree(two_steps / "checkpoints")
    (two_steps / "checkpoints").write_text("")
    with pytest.raises(UserError, match="is a file where the folder of checkpoints must be"):
        checkpoint.load_latest(make(two_steps))


def test_a_damaged_later_checkpoint_does_not_count_as_one_of_the_last(four_steps):
    damage(four_steps / "checkpoints" / "step-4", "weights")
    run = make(four_steps, train__save_every_steps=1)
    with pytest.warns(UserWarning, match="step-4 is damaged"):
        run.train(until=3)
    kept = sorted(folder.name for folder in (four_steps / "checkpoints").iterdir())
    assert kept == ["step-2", "step-3", "step-4"]


def test_other_settings_are_refused_key_by_key(two_steps):
    changes = {"train__lr": 5e-4, "algorithm__lam": 0.5, "reward__dog": {"kind": "count"}}
    with pytest.raises(UserError) as refused:
        make(two_steps, **changes).train()
    message = str(refused.value)
    assert "train.lr: 0.001 then, 0.0005 now" in message
    assert "algorithm.gae.lam: 0.95 then, 0.5 now" in message
    assert "reward.dog" in message and "train.seed" not in message and "save_dir" in message
    # logging and saving do not change the results
    changes = {"logging__log_interval": 2, "logging__run_name": "again"}
    run = make(two_steps, train__save_every_steps=1, **changes)
    assert checkpoint.load_latest(run) and run.step == 2


def test_other_inputs_are_refused(tmp_path):
    """A policy that was trained again, or other prompts, under the same name."""
    run = tmp_path / "run"
    policy = tmp_path / "sft"
    prompts = tmp_path / "train.json"
    policy.mkdir()
    (policy / "model.safetensors").write_text("1")
    prompts.write_text("[1]")
    inputs = {"model__ckpt": str(policy), "data__train_file": str(prompts)}
    make(run, **inputs).train(until=2)
    assert checkpoint.load_latest(make(run, **inputs))
    for path, file in ((policy, policy / "model.safetensors"), (prompts, prompts)):
        text = file.read_text()
        file.write_text(text + " ")
        message = f"step-2 was made with other inputs.*\n  {path}: its c"
        with pytest.raises(UserError, match=message):
            make(run, **inputs).train()
        file.write_text(text)
    make(run, **inputs).train()


def test_inputs_of_a_run_are_its_data_and_models(monkeypatch):
    monkeypatch.setenv("OUTPUT_DIR", "out")
    monkeypatch.setenv("DATA_DIR", "data")
    training = "tasks/qa_feedback/training"
    changes = ["reward.factuality_model.weight=0"]
    config_class = rl_config(load_task("qa_feedback"))
    rl = load_config(config_class, f"{training}/small_fine_grained_config.yml", changes)
    models = ["out/sft", "out/rel_rm", "segmenter:published", "out/comp_rm"]
    assert rl.inputs == [*models, "data/train.json", "data/dev.json"]
    dpo = load_config(DPOConfig, f"{training}/small_dpo_config.yml")
    assert dpo.inputs[0] == "out/sft" and "data/train_feedback.json" in dpo.inputs


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_a_kill_in_the_middle_of_saving_leaves_the_old_one(error, two_steps, monkeypatch):
    def killed(tensors, path):
        with open(path, "wb") as file:
            file.write(b"half")
        raise error

    monkeypatch.setattr(checkpoint, "save_file", killed)
    with pytest.raises(error):
        make(two_steps, train__save_every_steps=2).train(until=4)
    assert [path.name for path in (two_steps / "checkpoints").iterdir()] == ["step-2"]
    monkeypatch.undo()
    resumed = make(two_steps, train__save_every_steps=2)
    assert checkpoint.load_latest(resumed) and resumed.step == 2


def test_folders_of_a_killed_process_are_removed(tmp_path):
    target = tmp_path / "best"
    with checkpoint.new_folder(target) as folder:
        (folder / "a").write_text("1")
    shutil.copytree(target, tmp_path / ".best.tmp")  # killed while writing
    (tmp_path / ".best.tmp" / "half").write_text("x")
    with checkpoint.new_folder(target) as folder:
        assert list(folder.iterdir()) == []
        (folder / "a").write_text("2")
        assert (target / "a").read_text() == "1"  # kept until the new one is complete
    assert (target / "a").read_text() == "2"
    assert [path.name for path in tmp_path.iterdir()] == ["best"]
    target.rename(tmp_path / ".best.old")  # killed between the two renames: the old one comes back
    with pytest.raises(ValueError), checkpoint.new_folder(target):
        raise ValueError
    assert (target / "a").read_text() == "2"
    assert [path.name for path in tmp_path.iterdir()] == ["best"]


def test_a_users_files_stay_beside_a_new_policy(tmp_path):
    run = make(tmp_path)
    run._start_log(resumed=False)
    run._save_policy("best", {"step": 0})
    best = tmp_path / "best"
    (best / "notes.md").write_text("mine")
    (best / "eval").mkdir()
    (best / "eval" / "rows.jsonl").write_text("{}")
    (best / "link").symlink_to("nowhere")
    (best / "model-00001-of-00002.safetensors").write_bytes(b"left over")
    (best / "config.json").write_text("{}")
    run._save_policy("best", {"step": 1})
    assert (best / "notes.md").read_text() == "mine" and (best / "link").is_symlink()
    assert (best / "eval" / "rows.jsonl").read_text() == "{}"
    assert [file.name for file in best.glob("*.safetensors")] == ["model.safetensors"]
    assert (best / "config.json").read_text() != "{}"
    assert (best / "best.json").read_text() != '{"step": 0}'


def test_a_first_start_finds_nothing(tmp_path):
    assert not checkpoint.load_latest(make(tmp_path))
    (tmp_path / "checkpoints" / ".step-2.tmp").mkdir(parents=True)
    assert not checkpoint.load_latest(make(tmp_path))


def test_a_finished_run_finishes_again_at_once(tmp_path):
    make(tmp_path, train__total_episodes=16).train()
    before = metrics(tmp_path)
    reward = CombinedReward({"cat": FailsOnce(at=1)})  # no response may be collected
    make(tmp_path, train__total_episodes=16, reward=reward).train()
    assert metrics(tmp_path) == before


# ---- state.json, best/, processes, one process per folder ----------------------------------------


def edit(path, **changes):
    """Change keys of a state; None removes one."""
    state = json.loads(path.read_text())
    state.update(changes)
    path.write_text(json.dumps({key: value for key, value in state.items() if value is not None}))


EDITS = {
    "step": {"step": 3},
    "step is text": {"step": "4"},
    "no step": {"step": None},
    "no config": {"config": None},
    "no hashes": {"sha256": {}},
    "kl": {"kl_coef": 0.5},
    "best": {"best": []},
    "no processes": {"num_processes": None},
    "groups": {"optimizer_groups": {}},
}


@pytest.mark.parametrize("how", EDITS)
def test_an_edited_state_is_damaged(how, two_steps):
    folder = two_steps / "checkpoints" / "step-2"
    saved = (folder / "state.json").read_text()
    assert checkpoint._verified_state(folder)["step"] == 2
    if how != "kl":  # unusable even if the state has no hash of itself
        edit(folder / "state.json", own_sha256=None, **EDITS[how])
        assert checkpoint._verified_state(folder) is None
    (folder / "state.json").write_text(saved)
    edit(folder / "state.json", **EDITS[how])
    assert checkpoint._verified_state(folder) is None


@pytest.mark.parametrize("how", ["deleted", "cut off", "no config", "damaged best.json"])
def test_a_best_policy_that_is_gone_is_said_and_found_anew(how, four_steps, capsys):
    best = four_steps / "best"
    if how == "deleted":
        shutil.rmtree(best)
    elif how == "cut off":
        (best / "model.safetensors").write_bytes((best / "model.safetensors").read_bytes()[:-8])
    elif how == "no config":
        (best / "config.json").unlink()
    else:
        (best / "best.json").write_text("{")
    run = make(four_steps, train__save_every_steps=2)
    run.train(until=6)
    assert f"{best}, the best policy so far" in capsys.readouterr().out
    assert run.best is not None and run.best["step"] >= 4 and (best / "config.json").exists()
    again = make(four_steps, train__save_every_steps=2)
    assert checkpoint.load_latest(again) and again.best == run.best


def scored(folder, scores: dict[int, float], **changes):
    """A run with given dev scores, and the policy's weights at every evaluation by step."""
    seen = {}

    def evaluate(policy):
        seen[run.step] = {name: t.clone() for name, t in policy.model.state_dict().items()}
        return {"reward": scores[run.step]}

    settings = {"evaluation__every_steps": 2, "train__save_every_steps": 3}
    cfg = config(folder, train__kl_threshold=1e9, **settings)
    run = trainer(cfg, "gpt2", evaluate=evaluate, **changes)
    return run, seen


def interrupted(folder) -> None:
    """Evaluations at 0 and 2, a checkpoint at 3, the best policy at 4, and an end in step 5."""
    reward = CombinedReward({"cat": FailsOnce(at=6)})
    run, _ = scored(folder, {0: 0.5, 2: 0.3, 4: 0.8}, reward=reward)
    with pytest.raises(KeyboardInterrupt):
        run.train()
    assert run.best["step"] == 4


@pytest.mark.parametrize("again", [0.4, 0.6, 0.8])
def test_the_best_policy_is_the_one_that_the_state_describes(again, tmp_path, capsys):
    """On a GPU, an evaluation that is made again may give another value."""
    interrupted(tmp_path)
    run, seen = scored(tmp_path, {4: again, 6: 0.3, 8: 0.2})
    run.train()
    assert "holds another policy than the best one at this checkpoint" in capsys.readouterr().out
    assert run.best == {"step": 4, "metric": "reward", "value": again}
    assert json.loads((tmp_path / "best" / "best.json").read_text()) == run.best
    for name, tensor in load_file(tmp_path / "best" / "model.safetensors").items():
        assert torch.equal(tensor, seen[4][name])
    assert not (tmp_path / "final" / "best.json").exists()
    again, _ = scored(tmp_path, {8: 0.2})
    assert checkpoint.load_latest(again) and again.best == run.best
    assert "note" not in capsys.readouterr().out


def test_a_finished_run_stays_as_it_is(tmp_path, capsys):
    run, _ = scored(tmp_path, {0: 0.5, 2: 0.3, 4: 0.8, 6: 0.3, 8: 0.9})
    run.train()
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    capsys.readouterr()
    again, seen = scored(tmp_path, {})
    again.train()
    out = capsys.readouterr().out
    assert "this run is finished" in out and "note" not in out
    assert not seen
    assert files == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_a_run_that_was_killed_before_its_last_policy_was_saved_evaluates_it(tmp_path, capsys):
    run, _ = scored(tmp_path, {0: 0.5, 2: 0.3, 4: 0.8, 6: 0.3, 8: 0.9})
    run.train()
    shutil.rmtree(tmp_path / "final")
    again, seen = scored(tmp_path, {8: 0.9})
    again.train()
    assert set(seen) == {8} and (tmp_path / "final" / "config.json").exists()
    assert again.best == run.best
    assert "finished" not in capsys.readouterr().out


def resumed(folder, processes, **changes):
    """Continue a run that began with one process and 4 prompts per step."""
    run = make(folder, **changes)
    run.accelerator = SimpleNamespace(num_processes=processes, is_main_process=True)
    return checkpoint.load_latest(run)


def test_other_processes_may_go_on_where_the_updates_are_the_same(two_steps, capsys):
    half = {"train__sampling_batch_size_per_card": 2}
    assert resumed(two_steps, 2, **half)
    assert "started with 1 processes and continues with 2" in capsys.readouterr().out
    assert resumed(two_steps, 2, train__micro_batch_size=4, **half)
    for processes, changes in (
        (2, {}),  # 8 prompts per step
        (2, {"train__minibatches": "published", **half}),
        (2, {"train__lr": 1.0, **half}),
        (1, half),
        (1, {"train__micro_batch_size": 4}),
    ):
        with pytest.raises(UserError, match="made with other settings"):
            resumed(two_steps, processes, **changes)


@pytest.mark.parametrize(
    "processes, changes, reason",
    [
        (
            2,
            {},
            "so 4 prompts per step then, 8 now:"
            " train.sampling_batch_size_per_card=2 continues with 2 processes",
        ),
        (3, {}, "so 4 prompts per step then, 12 now"),  # 4 is no multiple of 3
        (
            2,
            {"train__minibatches": "published"},
            "with train.minibatches=published, updates depend on their number",
        ),
    ],
)
def test_another_number_of_processes_needs_another_batch_size_which_is_named(
    two_steps, processes, changes, reason
):
    with pytest.raises(UserError) as refused:
        resumed(two_steps, processes, **changes)
    joined = ";" if changes else ","
    line = f"  processes: 1 then, {processes} now{joined} {reason}"
    assert str(refused.value).splitlines()[-2] == line


SERVER = {"kind": "reward_server", "url": "http://127.0.0.1:8770"}
SERVER |= {"model_sha256": "0" * 64, "batch_size": 8}
JUDGE = {"kind": "judge", "url": "https://a.org/v1", "model": "m", "criterion": "how polite"}
SCORE = {"kind": "score", "scorer": JUDGE}
CLASSIFIER = {"kind": "sequence_scorer", "ckpt": "a"}


@pytest.fixture(scope="module")
def with_settings(tmp_path_factory):
    """The run of a checkpoint that was made with some settings, now with others."""
    folders = {}

    def make_with(folder, settings):
        run = make(folder)
        tree = {**run.config.model_dump(mode="json"), **settings}
        run.config = validate(rl_config(load_task("numbers")), tree, "test")
        return run

    def resumed(before, now):
        name = json.dumps(before)
        if name not in folders:
            folders[name] = tmp_path_factory.mktemp("run")
            make_with(folders[name], before).train(until=1)
        return make_with(folders[name], now)

    return resumed


@pytest.mark.parametrize(
    "reward, key, value, may_change",
    [
        (SERVER, "url", "http://127.0.0.1:8771", True),
        (SERVER, "timeout_s", 600.0, True),
        (SERVER, "cache", "answers.jsonl", True),
        (SERVER, "batch_size", 4, True),
        (SERVER, "model_sha256", "1" * 64, False),
        (SCORE, "scorer.token_from", "TOKEN", True),
        (SCORE, "scorer.parallel", 1, True),
        (SCORE, "scorer.criterion", "how short", False),
        (SCORE, "scorer.url", "https://b.org/v1", False),
        (CLASSIFIER, "device", "cuda:1", True),
        (CLASSIFIER, "scale", 2.0, False),
    ],
)
def test_what_affects_no_reward_may_change(with_settings, reward, key, value, may_change):
    changed = json.loads(json.dumps(reward))
    *parents, leaf = key.split(".")
    (changed[parents[0]] if parents else changed)[leaf] = value
    run = with_settings({"reward": {"r": reward}}, {"reward": {"r": changed}})
    if may_change:
        assert checkpoint.load_latest(run)
        return
    with pytest.raises(UserError, match=f"reward.r.{key}: "):
        checkpoint.load_latest(run)


@pytest.mark.parametrize(
    "key, value, may_change", [("timeout_s", 5.0, True), ("criterion", "how short", False)]
)
def test_settings_in_a_list_may_change_too(with_settings, key, value, may_change):
    def settings(scorer):
        metrics = [{"name": "rouge1"}, {"name": "score", "scorer": scorer}]
        return {"reward": {"r": CLASSIFIER}, "evaluation_metrics": metrics}

    run = with_settings(settings(JUDGE), settings({**JUDGE, key: value}))
    if may_change:
        assert checkpoint.load_latest(run)
        return
    with pytest.raises(UserError, match=rf"evaluation_metrics\[1\].scorer.{key}: "):
        checkpoint.load_latest(run)


def test_a_folder_appears_when_it_is_on_disk(tmp_path, monkeypatch):
    events = []

    def sync(path):
        events.append((Path(path).name, (tmp_path / "best").exists()))

    monkeypatch.setattr(checkpoint, "sync", sync)
    with checkpoint.new_folder(tmp_path / "best") as folder:
        (folder / "templates").mkdir()  # of chats: transformers writes them to a folder
        (folder / "templates" / "a").write_text("1")
    *parts, last = events
    assert sorted(parts) == [(".best.tmp", False), ("a", False), ("templates", False)]
    assert last == (tmp_path.name, True)


def test_secrets_are_not_in_a_checkpoint_and_it_is_read_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefgh")
    changes = {"model__ckpt": "https://hf_abcdefgh@host"}
    make(tmp_path, **changes).train(until=2)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in files if b"hf_abcdefgh" in path.read_bytes()]
    assert checkpoint.load_latest(make(tmp_path, **changes))


@pytest.mark.skipif(os.name != "posix", reason="access rights of POSIX")
@pytest.mark.parametrize("umask, expected", [(0o022, 0o644), (0o007, 0o660)])
def test_weights_can_be_read_by_those_who_can_read_the_folder(umask, expected, tmp_path):
    tensors = {"a": torch.zeros(2)}

    def modes(folder):
        return {oct(path.stat().st_mode & 0o777) for path in folder.rglob("*") if path.is_file()}

    before = os.umask(umask)
    try:
        with checkpoint.new_folder(tmp_path / "policy") as folder:
            save_file(tensors, folder / "model.safetensors")
            (folder / "critic").mkdir()
            save_file(tensors, folder / "critic" / "head.safetensors")
        (tmp_path / "rm").mkdir()
        with checkpoint.model_to_install(tmp_path / "rm") as folder:
            save_file(tensors, folder / "model.safetensors")
            write_json(folder / "config.json", {})
        publish_weights(tmp_path / "server", tiny.policy("gpt2").save)
        tiny_models.save_model(tmp_path / "tiny", tiny.policy("gpt2").model, tiny.tokenizer("bpe"))
    finally:
        os.umask(before)
    for name in ("policy", "rm", "server", "tiny"):
        assert modes(tmp_path / name) == {oct(expected)}, name
