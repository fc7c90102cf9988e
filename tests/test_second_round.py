"""The experiment of a second round of feedback: equal arms, wired stages, rows, tables."""

import os
import random
from pathlib import Path

import pytest
from test_annotator import samples

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, read_jsonl, write_json, write_jsonl
from fgrlhf.cli.command_line import settings_from
from fgrlhf.stats import Interval
from tasks.experiments import draw_questions, qa, second_round_rows
from tasks.experiments.second_round import ARMS, PARTS, SecondRoundSettings, Seed, budget, table
from tasks.experiments.stages import experiment_of
from tasks.qa_feedback.data.annotator import perturb
from tasks.qa_feedback.feedback import read_feedback

OUT, BASE = Path("/out"), Path("/base")


def stages_of(number: int = 3, **settings) -> dict:
    experiment = experiment_of(qa.MODULE, OUT, outputs=BASE)
    seed = Seed(SecondRoundSettings(base_dir=str(BASE), **settings), experiment, number)
    stages = {stage.name: stage for stage in seed.stages()}
    assert len(stages) == len(seed.stages())
    return stages


def keys_of(stage) -> dict[str, str]:
    return dict(part.partition("=")[::2] for part in stage.command if "=" in part)


# ---- equal arms ----------------------------------------------------------------------------------


def test_the_arms_annotate_the_same_questions():
    stages = stages_of(questions=40)
    rows = {name: keys_of(stages[f"seed-3/{name}/data"]) for name in ("first", *ARMS)}
    assert rows["one_round"]["questions"] == rows["two_rounds"]["questions"]
    files = rows["one_round"]["questions"].split(",")
    assert len(files) == 2 and rows["first"]["questions"] == files[0]
    assert keys_of(stages["seed-3/questions"])["n"] == "40"
    first, second = rows["one_round"]["samples"].split(",")
    assert rows["two_rounds"]["samples"].split(",")[0] == first == rows["first"]["samples"]
    assert rows["two_rounds"]["samples"].split(",")[1] != second
    for key in ("seed", "perturbed", "dev_samples"):
        assert len({row[key] for row in rows.values()}) == 1


def test_only_the_answers_to_the_second_half_differ():
    stages = stages_of()
    by_sft = keys_of(stages["seed-3/generated/sft-second-train"])
    by_rl = keys_of(stages["seed-3/generated/rl-second-train"])
    assert by_sft["policy"] == "/base/sft"
    assert by_rl["policy"] == "/out/seed-3/two_rounds/part-1/final"
    assert {key for key in by_sft if by_sft[key] != by_rl[key]} == {"policy", "name"}


def test_the_arms_have_equal_episodes_and_settings():
    stages = stages_of(episodes=128)
    parts = {}
    for arm in ARMS:
        parts[arm] = [keys_of(stages[f"seed-3/{arm}/part-{part}"]) for part in (1, 2)]
        assert [part["train.total_episodes"] for part in parts[arm]] == ["128", "128"]
    runs = [name for name in stages if "/part-" in name]
    assert len(runs) == 4
    for one, two in zip(*parts.values()):
        differing = {key for key in one if one[key] != two[key]}
        rewards = {key for key in one if key.startswith("reward.")}
        assert len(rewards) == 3 and rewards <= differing
        named = {"logging.save_dir", "logging.run_name"}
        start = {"model.ckpt", "model.value_model.ckpt"}
        assert differing - rewards - start == named
    # another order of the questions in the second part
    assert parts["one_round"][0]["train.seed"] != parts["one_round"][1]["train.seed"]


def test_the_second_part_continues_from_the_first():
    stages = stages_of()
    for arm in ARMS:
        first, second = (keys_of(stages[f"seed-3/{arm}/part-{part}"]) for part in (1, 2))
        assert first["model.ckpt"] == "/base/sft"
        assert second["model.ckpt"] == f"/out/seed-3/{arm}/part-1/final"
        assert keys_of(stages[f"seed-3/evaluate-{arm}"])["policy"] == (
            f"/out/seed-3/{arm}/part-2/final"
        )


def test_the_rewards_of_each_part():
    stages = stages_of()
    for arm, feedback in PARTS.items():
        for part, name in enumerate(feedback, 1):
            keys = keys_of(stages[f"seed-3/{arm}/part-{part}"])
            assert keys["reward.factuality_model.ckpt"] == f"/out/seed-3/{name}/fact_rm"
    assert PARTS == {"one_round": ("one_round",) * 2, "two_rounds": ("first", "two_rounds")}


def test_all_reward_models_are_trained_alike():
    stages = stages_of()
    for model in ("rel_rm", "fact_rm", "comp_rm"):
        commands = [keys_of(stages[f"seed-3/{name}/{model}"]) for name in ("first", *ARMS)]
        for keys in commands:
            del keys["data.train_file"], keys["data.dev_file"], keys["logging.save_dir"]
        assert commands[0] == commands[1] == commands[2]


# ---- questions and rows --------------------------------------------------------------------------


def test_the_halves_are_random_and_have_no_question_in_common(tmp_path):
    write_json(tmp_path / "train.json", list(range(30)))

    def halves(seed: int) -> list:
        out = tmp_path / str(seed)
        choice = draw_questions.DrawQuestionsSettings(
            data_dir=str(tmp_path), output_dir=str(out), n=10, seed=seed
        )
        draw_questions.draw(choice)
        return [read_json(out / half / "train.json") for half in ("first", "second")]

    first, second = halves(0)
    assert len(first) == len(second) == 10 and len({*first, *second}) == 20
    assert halves(0) == [first, second] and halves(1) != [first, second]


def test_too_few_questions(tmp_path):
    write_json(tmp_path / "train.json", list(range(5)))
    choice = draw_questions.DrawQuestionsSettings(
        data_dir=str(tmp_path), output_dir=str(tmp_path), n=3
    )
    with pytest.raises(UserError, match="has 5 questions, fewer than the 6 of both rounds"):
        draw_questions.draw(choice)


@pytest.fixture
def world(tmp_path):
    """Questions and answers of two rounds and of dev, as files; two policies for the second."""
    files = {}
    rows = list(samples(18))
    for name, part in (("first", rows[:6]), ("second", rows[6:12]), ("dev", rows[12:])):
        write_json(tmp_path / f"{name}.json", [row for row, _ in part])
        files[name] = str(tmp_path / f"{name}.json")
        for policy in ("sft", "rl"):
            lines = []
            for number, (row, texts) in enumerate(part):
                if policy == "rl":
                    texts = [perturb(random.Random(number), text) for text in texts]
                shown = {"question": row["question"], "passages": row["passages"]}
                lines.append({"id": str(number), **shown, "predictions": texts})
            write_jsonl(tmp_path / f"{name}-{policy}.jsonl", lines)
            files[f"{name}-{policy}"] = str(tmp_path / f"{name}-{policy}.jsonl")
    return files


def written(world, out: Path, *rounds: tuple[str, str], **changes) -> Path:
    choice = {
        "questions": ",".join(world[half] for half, _ in rounds),
        "samples": ",".join(world[f"{half}-{policy}"] for half, policy in rounds),
        "dev_questions": world["dev"],
        "dev_samples": world["dev-sft"],
        "output_dir": str(out),
        "perturbed": 0.0,
        "seed": 0,
    }
    second_round_rows.write_rows(second_round_rows.SecondRoundRowsSettings(**{**choice, **changes}))
    return out


def test_rows_of_both_rounds_are_merged(world, tmp_path):
    first = written(world, tmp_path / "a", ("first", "sft"))
    one = written(world, tmp_path / "b", ("first", "sft"), ("second", "sft"))
    two = written(world, tmp_path / "c", ("first", "sft"), ("second", "rl"))
    rows = {
        name: read_feedback(out / "train_feedback.json")
        for name, out in (("first", first), ("one", one), ("two", two))
    }
    assert [len(rows[name]) for name in rows] == [6, 12, 12]
    raw = {name: [row.raw for row in of_arm] for name, of_arm in rows.items()}
    assert raw["one"][:6] == raw["two"][:6] == raw["first"]
    assert [row.question for row in rows["one"]] == [row.question for row in rows["two"]]
    # the answers are annotated as they were sampled
    for name, policy in (("one", "sft"), ("two", "rl")):
        sampled = [line["predictions"] for line in read_jsonl(world[f"second-{policy}"])]
        assert [list(row.predictions) for row in rows[name][6:]] == sampled
    for out in (first, one, two):
        assert os.path.exists(out / "F-ERR_sentence" / "train.json")
        assert read_feedback(out / "dev_feedback.json") == read_feedback(
            first / "dev_feedback.json"
        )
    origins = read_json(two / "train_feedback.json.rounds.json")
    assert {origin["feedback"]["file"] for origin in origins[6:]} == {
        str(two / "round-2" / "train_feedback.json")
    }


def test_answers_may_be_perturbed(world, tmp_path):
    out = written(world, tmp_path / "a", ("first", "sft"), perturbed=1.0)
    rows = read_feedback(out / "train_feedback.json")
    sampled = [line["predictions"] for line in read_jsonl(world["first-sft"])]
    assert [list(row.predictions) for row in rows] != sampled


def test_every_round_has_questions_and_samples(world, tmp_path):
    arguments = ["questions=a,b", "samples=a", "dev_questions=d", "dev_samples=d"]
    arguments += ["output_dir=o", "perturbed=0", "seed=0"]
    with pytest.raises(UserError, match="name as many files as `questions` does"):
        settings_from(second_round_rows.SecondRoundRowsSettings, arguments)


# ---- results -------------------------------------------------------------------------------------


def test_the_budget_is_what_the_arms_used(tmp_path):
    for arm, steps in (("one_round", (2, 2)), ("two_rounds", (2, 1))):
        folder = tmp_path / "seed-0" / arm
        write_json(folder / "data" / "train_feedback.json", [{}] * 7)
        for part, n_steps in enumerate(steps, 1):
            lines = [{"step": step, "episodes": 64 * (step + 1)} for step in range(n_steps)]
            write_jsonl(folder / f"part-{part}" / "metrics.jsonl", [*lines, {"step": n_steps}])
    assert budget(tmp_path, [0]) == {
        "one_round": {"rows": [7], "episodes": [256]},
        "two_rounds": {"rows": [7], "episodes": [192]},
    }


def test_the_tables_by_hand():
    metrics = ("gold", "relevance", "factuality", "completeness")
    values = {metric: Interval(0.5, 0.4, 0.6).as_dict() for metric in metrics}
    result = {
        "seeds": [0, 1],
        "means": {"sft": values, "one_round": values, "two_rounds": values},
        "differences": {"two_rounds_vs_one_round": values},
        "gold_by_seed": {"two_rounds_vs_one_round": {"0": 0.4, "1": 0.6}},
    }
    used = {arm: {"rows": [300, 300], "episodes": [2560, 2560]} for arm in ARMS}
    of_seed = {
        name: {"relevance": 0.9, "factuality": 0.8, "completeness": 0.7}
        for name in ("first", *ARMS)
    }
    better = {**of_seed, "two_rounds": {"relevance": 1.0, "factuality": 0.9, "completeness": 0.8}}
    text = table({**result, "budget": used, "agreement": [of_seed, better]})
    row = "+0.500 [+0.400, +0.600]"
    assert f"| two_rounds - one_round | {row} | {row} | {row} | {row} | +0.400 +0.600 |" in text
    assert "| one_round | 300 | 2560 |\n| two_rounds | 300 | 2560 |\n" in text
    assert text.endswith(
        "| trained on | R1, AUC | R2, AUC | R3, pairs ordered right |\n"
        "|---|---|---|---|\n"
        "| first | 0.900 | 0.800 | 0.700 |\n"
        "| one_round | 0.900 | 0.800 | 0.700 |\n"
        "| two_rounds | 0.950 | 0.850 | 0.750 |\n"
    )
