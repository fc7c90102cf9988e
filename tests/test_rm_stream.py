"""Reward models train on rows that stay in a large file as on rows in memory."""

import gc
import tracemalloc

import pytest
import rm_helpers as rm
from test_run_fg_rm import Interrupt, interrupt_at
from test_run_fg_rm import config as segment_config
from test_run_pref_rm import config as pair_config

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, read_jsonl, write_jsonl
from fgrlhf.data import stream
from fgrlhf.data.stream import Lazy, spread
from reward_modeling import run_fg_rm, run_pref_rm
from reward_modeling.data import read_pair_rows, read_segment_rows

WHOLE, STREAMED = 2**30, -1  # sizes above which rows stay in their file
SHORT = {"train__max_steps": 9, "train__batch_size": 6, "train__micro_batch_size": 3}
SHORT |= {"evaluation__every_steps": 3, "evaluation__batch_size": 8}


def segment_run(folder, name, files, shape, **changes):
    changes |= {"data__train_file": files, "data__dev_file": dev_of(folder, "segments")}
    changes["logging__save_dir"] = str(folder / name)
    return run_fg_rm.train(segment_config(folder, shape, **SHORT, **changes))


def pair_run(folder, name, files, shape, **changes):
    changes |= {"data__train_file": files, "data__dev_file": dev_of(folder, "pairs")}
    changes["logging__save_dir"] = str(folder / name)
    return run_pref_rm.train(pair_config(folder, shape, **SHORT, **changes))


RUNS = {"segments": segment_run, "pairs": pair_run}


def written(path, kind: str, n: int, seed: int) -> str:
    if kind == "segments":
        return str(rm.segment_file(path, n, seed))
    rows = rm.comparison_rows(n, seed)
    if seed == 0:
        rows[1]["preferences"] = []  # only its mean and standard deviation count
    write_jsonl(path, rows)
    return str(path)


def dev_of(folder, kind: str) -> str:
    return written(folder / f"{kind}-dev.jsonl", kind, 12, 1)


@pytest.mark.parametrize("kind, shape", [("segments", "encoder"), ("pairs", "causal")])
@pytest.mark.parametrize("mixed", [False, True])
def test_the_model_is_the_same(tmp_path, monkeypatch, kind, shape, mixed):
    """Also if the run is interrupted, and with features that need a pass over the rows."""
    file = written(tmp_path / "rows.jsonl", kind, 30, 0)
    files = file
    if mixed:
        other = written(tmp_path / "other.jsonl", kind, 9, 2)
        files = [{"file": file, "share": 2}, {"file": other, "share": 1}]
    features = {"model__text_features": True} if shape == "causal" else {}
    monkeypatch.setattr(stream, "KEPT", 7)
    for module in (run_fg_rm, run_pref_rm):
        monkeypatch.setattr(module, "LINEAR_ROWS", 20)
    folders = []
    for name, size in (("whole", WHOLE), ("streamed", STREAMED)):
        monkeypatch.setattr(stream, "LARGE", size)
        if name == "streamed":
            with monkeypatch.context() as patch, pytest.raises(Interrupt):
                interrupt_at(patch, 4)
                RUNS[kind](tmp_path, name, files, shape, **features)
        folders.append(RUNS[kind](tmp_path, name, files, shape, **features))
    for name in ("model.safetensors", "seen_ngrams.safetensors"):
        whole, streamed = ((folder / name).read_bytes() for folder in folders)
        assert whole == streamed
    for name in ("metrics.json", "errors.json", "reward_model.json"):
        whole, streamed = (read_json(folder / name) for folder in folders)
        for key in ("mean", "std"):  # of the scores, which are computed in other batches
            if whole.get(key) is not None:
                assert streamed.pop(key) == pytest.approx(whole.pop(key))
        assert whole == streamed
    whole, streamed = (read_jsonl(folder / "metrics.jsonl") for folder in folders)
    assert whole == streamed


@pytest.mark.parametrize("kind", RUNS)
def test_a_row_takes_a_few_bytes(tmp_path, monkeypatch, kind):
    """Each further one; those that were read last are kept. In memory, one takes a thousand."""
    monkeypatch.setattr(stream, "KEPT", 50)
    monkeypatch.setattr(stream, "LARGE", STREAMED)
    read = {"segments": lambda file: read_segment_rows(file, rm.LABELS, "Ignore")}
    read["pairs"] = read_pair_rows
    taken = []
    for n in (600, 100, 600):  # the first time, what is loaded once
        file = written(tmp_path / "rows.jsonl", kind, n, 0)
        tracemalloc.start()
        rows = read[kind](file)
        assert isinstance(rows, Lazy) and len(list(zip(rows))) == n
        gc.collect()
        taken.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
    assert (taken[2] - taken[1]) / 500 < 300


def test_segment_files_are_refused_in_the_same_words(tmp_path, monkeypatch):
    good = '{"text": ["a", "</s>", "b"], "feedback_tags": ["Ignore", "O", "Ignore"]}'
    files = {
        "unknown tag": [good, "", good.replace('"O"', '"o"')],
        "nothing judged": [good.replace('"O"', '"Ignore"')],
        "empty": [""],
        "no JSON": [good, "{"],
    }
    for name, lines in files.items():
        file = tmp_path / "rows.json"
        file.write_text("\n".join(lines) + "\n")
        texts = []
        for size in (WHOLE, STREAMED):
            monkeypatch.setattr(stream, "LARGE", size)
            with pytest.raises(UserError) as error:
                read_segment_rows(file, rm.LABELS, "Ignore")
            texts.append(str(error.value))
        assert "rows.json" in texts[0] and (texts[0] == texts[1] or name in ("empty", "no JSON"))


def test_rows_at_even_distances():
    assert spread(range(4), 4) == range(4)
    assert spread("abcdefghi", 3) == ["a", "d", "g"]
    assert spread(range(5), 2) == [0, 2]
