import random
from collections import Counter
from itertools import pairwise
from math import ceil, floor

import pytest
from test_run_sft import config as sft_config
from test_run_sft import interrupt_at, make_world, rows, weights

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, read_jsonl, write_json, write_jsonl
from fgrlhf.configs.sections import MixedFile
from fgrlhf.configs.strict import config_from
from fgrlhf.data.formats import PROMPTS
from fgrlhf.data.mixture import MixedRows, Mixture, of_each, read_files, whole_weights
from fgrlhf.rollout import PassOrder
from fgrlhf.runs.batching import permuted_batches, shuffled_batches
from fgrlhf.task import NO_TASK
from fgrlhf.text_types import Prompt
from reward_modeling.config import RMConfig
from reward_modeling.run_fg_rm import SegmentRMConfig, segmenter_of
from sft.run_sft import train


def mixture(shares, sizes=None):
    files = tuple(f"{i}.jsonl" for i in range(len(shares)))
    return Mixture(files, tuple(shares), tuple(sizes or [1] * len(shares)))


# ---- which file is next --------------------------------------------------------------------------


def test_places_by_hand():
    # of 4 places, file 0 is due before 2, 3 and 4, file 1 before 4; the first of equals comes first
    assert mixture([3, 1]).places(0, 8) == ([0, 0], [0, 0, 0, 1, 0, 0, 0, 1])
    assert mixture([3, 1]).places(6, 2) == ([5, 1], [0, 1])
    assert mixture([0.5, 0.25, 0.25]).places(0, 4)[1] == [0, 1, 0, 2]


def test_counts_are_within_one_of_the_shares_at_every_place():
    rng = random.Random(5)
    for _ in range(60):
        shares = [rng.randint(1, 30) for _ in range(rng.randint(2, 9))]
        total = sum(shares)
        counts = [0] * len(shares)
        for t, file in enumerate(mixture(shares).places(0, 2 * total)[1], 1):
            counts[file] += 1
            for count, share in zip(counts, shares):
                assert floor(t * share / total) <= count <= ceil(t * share / total)
        assert counts == [2 * share for share in shares]


def test_places_do_not_depend_on_where_one_begins():
    mixed = mixture([0.17, 0.5, 0.33])
    _, files = mixed.places(0, 400)
    for first in (0, 1, 99, 100, 101, 333):
        counts, rest = mixed.places(first, 400 - first)
        assert rest == files[first:]
        assert counts == [files[:first].count(file) for file in range(3)]


@pytest.mark.parametrize(
    "shares, weights_",
    [
        ([0.7, 0.3], (7, 3)),
        ([2, 2], (1, 1)),
        ([1, 0.5, 0.5], (2, 1, 1)),
        ([1 / 7, 0.5], (2222, 7778)),  # no whole numbers below 10,000 have this proportion
        ([1e6, 1e-6], (10_000, 1)),
    ],
)
def test_weights_are_whole_numbers(shares, weights_):
    assert whole_weights(shares) == weights_


# ---- the order of rows ---------------------------------------------------------------------------


def batches_of(function, mixed, epochs=6, lengths=None, size=4, seed=3):
    n = sum(mixed.sizes)
    return [
        batch for epoch in range(epochs) for batch in function(n, size, seed, epoch, lengths, mixed)
    ]


@pytest.mark.parametrize("function", [shuffled_batches, permuted_batches])
@pytest.mark.parametrize("by_length", [False, True])
def test_every_step_has_the_shares_and_every_file_goes_through_all_its_rows(function, by_length):
    mixed = mixture([0.5, 0.3, 0.2], [13, 3, 6])
    lengths = [i % 5 for i in range(22)] if by_length else None
    batches = batches_of(function, mixed, lengths=lengths)
    assert {len(batch) for batch in batches} == {4} and len(batches) == 6 * 6
    counts = [0, 0, 0]
    for step, batch in enumerate(batches, 1):
        for i in batch:
            counts[0 if i < 13 else 1 if i < 16 else 2] += 1
        assert all(abs(count - 4 * step * s) < 1 for count, s in zip(counts, (0.5, 0.3, 0.2)))
    # rows of a file have been read equally often, up to the last pass
    for file in (range(13), range(13, 16), range(16, 22)):
        read = Counter(i for batch in batches for i in batch)
        assert max(read[i] for i in file) - min(read[i] for i in file) <= 1
    if by_length:
        longest = [[lengths[i] for i in batch] for batch in batches]
        falls = function is permuted_batches
        assert all(batch == sorted(batch, reverse=falls) for batch in longest)


def test_a_file_is_shuffled_again_in_every_pass_and_files_of_one_size_differ():
    order = [i for batch in batches_of(shuffled_batches, mixture([1, 1], [8, 8])) for i in batch]
    first, second = [i for i in order if i < 8], [i - 8 for i in order if i >= 8]
    passes = [first[:8], first[8:16], second[:8], second[8:16]]
    assert all(sorted(each) == list(range(8)) for each in passes)
    assert len({tuple(each) for each in passes}) == 4


def test_prompts_of_rl_go_on_after_a_pass():
    mixed = mixture([0.5, 0.5], [6, 2])
    prompts = [Prompt(str(i), "cat") for i in range(8)]
    prompts = MixedRows([prompts[:6], prompts[6:]], mixed.files, mixed.shares)
    order = PassOrder(prompts, seed=2, per_step=3)
    read = [[int(prompt.id) for prompt in order.of_step(step)] for step in range(8)]
    flat = [i for step in read for i in step]
    assert [i >= 6 for i in flat] == [False, True] * 12
    assert all(sorted(flat[1::2][k : k + 2]) == [6, 7] for k in range(0, 12, 2))
    assert all(sorted(flat[::2][k : k + 6]) == list(range(6)) for k in (0, 6))
    later = PassOrder(prompts, seed=2, per_step=3)
    assert [int(prompt.id) for prompt in later.of_step(5)] == read[5]


# ---- reading -------------------------------------------------------------------------------------


def files_in(folder, *numbers):
    """Files of prompts without ids, each with a share of 1."""
    files = []
    for i, number in enumerate(numbers):
        file = folder / f"{i}.jsonl"
        write_jsonl(file, [{"prompt": f"{i}, {k}"} for k in range(number)])
        files.append(MixedFile(file=str(file), share=1))
    return files


def test_prompts_of_two_files_have_different_ids(tmp_path):
    prompts = NO_TASK.train_prompts(files_in(tmp_path, 2, 3))
    assert [prompt.id for prompt in prompts] == [
        "0.jsonl:0",
        "0.jsonl:1",
        "1.jsonl:0",
        "1.jsonl:1",
        "1.jsonl:2",
    ]
    assert isinstance(prompts, MixedRows) and prompts.mixture.sizes == (2, 3)


def test_a_list_of_one_file_is_that_file(tmp_path):
    (file,) = files_in(tmp_path, 2)
    alone = read_files([file], PROMPTS.read)
    assert alone == read_files(file.file, PROMPTS.read) and not isinstance(alone, MixedRows)


def test_rows_that_are_left_out_leave_their_file():
    rows = MixedRows([[0, 1, 2], [3, 4]], ["0.jsonl", "1.jsonl"], [1, 3])
    encoded = of_each(rows, lambda part: [i for i in part if i != 1])
    assert list(encoded) == [0, 2, 3, 4]
    assert isinstance(encoded, MixedRows) and encoded.mixture == mixture([1, 3], [2, 2])
    assert [rows[i] for i in (0, 2, 3, -1)] == [0, 2, 3, 4] and rows[1:4] == [1, 2, 3]
    assert of_each([0, 1], lambda part: part[1:]) == [1]
    with pytest.raises(UserError, match=r"1\.jsonl has no row to train on.*leave the file out"):
        of_each(rows, lambda part: [i for i in part if i < 3])


def test_segments_of_one_segmenter(tmp_path):
    files = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        files.append(str(tmp_path / name / "train.jsonl"))
    write_json(tmp_path / "one" / "segmenter.json", {"name": "blank_en_sentencizer"})
    overrides = [
        f"data.train_file=[{{file: {files[0]}, share: 1}}, {{file: {files[1]}, share: 1}}]",
        "data.dev_file=x",
        "data.level=sentence",
        "data.with_context=false",
        "model.ckpt=m",
        "labels.error=ERROR",
        "logging.save_dir=s",
        "logging.run_name=n",
    ]
    with pytest.raises(UserError, match="divided by different segmenters.*the same segmenter"):
        segmenter_of(config_from(SegmentRMConfig, overrides))


# ---- configs -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value, message",
    [
        ("[{file: a, share: 0}]", r"train_file\.0\.share: a share is between.*leave a file out"),
        ("[{file: a, share: -1}]", r"train_file\.0\.share: a share is between"),
        ("[{file: a, share: 1, shares: 1}]", r"train_file\.0\.shares: unknown key; did you mean"),
        ("[{file: a}]", r"train_file\.0\.share: missing"),
        ("[{file: ~/a, share: 1}]", r"train_file\.0\.file: `~` is not the home folder"),
        ("[]", "train_file: it is an empty list: name at least one file"),
        (
            "[{file: a, share: 1}, {file: a, share: 2}]",
            "it has a twice: give it once, with the sum",
        ),
    ],
)
def test_mistakes_in_a_mixture_are_named(value, message):
    overrides = ["data.dev_file=b", "model.ckpt=m", "logging.save_dir=s", "logging.run_name=n"]
    with pytest.raises(UserError, match=message):
        config_from(RMConfig, [f"data.train_file={value}", *overrides])


@pytest.mark.parametrize("name", ["out/a #b.jsonl", "{a}.jsonl", "hub:org/name", "1"])
def test_a_name_on_the_command_line_is_taken_as_it_is(name):
    overrides = ["data.dev_file=b", "model.ckpt=m", "logging.save_dir=s", "logging.run_name=n"]
    read = config_from(RMConfig, [f"data.train_file={name}", *overrides])
    assert read.data.train_file == name and read.inputs == [name, "b", "m"]
    mixed = config_from(RMConfig, [f"data.train_file=[{{file: {name!r}, share: 2}}]", *overrides])
    assert mixed.data.train_file == [MixedFile(file=name, share=2)]
    assert mixed.inputs == [name, "b", "m"]


# ---- a run ---------------------------------------------------------------------------------------


@pytest.fixture
def world(tmp_path):
    make_world(tmp_path)
    write_json(tmp_path / "one.json", rows(30))
    write_json(tmp_path / "two.json", rows(5))
    return tmp_path


def test_a_resumed_run_on_a_mixture_is_the_uninterrupted_one(world, monkeypatch, capsys):
    files = f"[{{file: {world}/one.json, share: 7}}, {{file: {world}/two.json, share: 3}}]"
    options = [f"data.train_file={files}", "evaluation.metric=loss", "logging.log_interval=1"]
    train(sft_config(world, *options))
    printed = capsys.readouterr().out
    assert (
        "one.json 70.0% (30 rows, 0.817 passes), two.json 30.0% (5 rows, 2.1 passes); shares are"
        " divided by their sum 10"
    ) in printed
    # 10 steps of 8 rows
    assert "read: one.json 56 rows (1.87 passes), two.json 24 rows (4.8 passes)" in printed
    lines = [line for line in read_jsonl(world / "sft" / "metrics.jsonl") if "loss" in line]
    assert [line["passes/two.json"] for line in lines[4:5]] == [12 / 5]
    assert all(a["passes/one.json"] < b["passes/one.json"] for a, b in pairwise(lines))
    assert set(read_json(world / "sft" / "inputs.json")) >= {
        f"{world}/one.json",
        f"{world}/two.json",
    }

    half = [*options, f"logging.save_dir={world}/half"]
    with monkeypatch.context() as patch:
        interrupt_at(patch, 6)
        with pytest.raises(KeyboardInterrupt):
            train(sft_config(world, *half))
    train(sft_config(world, *half))
    assert "continuing from step 4" in capsys.readouterr().out
    whole, resumed = weights(world / "sft"), weights(world / "half")
    assert all(whole[name].equal(resumed[name]) for name in whole)

    other = [*half[1:], f"data.train_file={files.replace('share: 7', 'share: 6')}"]
    train(sft_config(world, *other, f"logging.save_dir={world}/other"))
    others = weights(world / "other")
    assert not all(whole[name].equal(others[name]) for name in whole)
