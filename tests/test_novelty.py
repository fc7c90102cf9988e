"""The metric novelty: numbers by hand, what training stores, and texts unlike the training data."""

import random
from pathlib import Path

import numpy as np
import pytest
import rm_helpers as rm
import tiny
from rl_helpers import metrics as logged
from test_metrics_config import metrics as read_metrics
from test_run_fg_rm import config as segment_config

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json
from fgrlhf.cli import rl
from fgrlhf.guard import Guard
from fgrlhf.metrics.config import Monitor, unwatchable
from fgrlhf.metrics.novelty import FILE, load_seen, ngram_numbers, novelty, save_seen, seen_ngrams
from fgrlhf.metrics.registry import build_metric
from fgrlhf.reward_models.prefix import Prefix, RMText
from fgrlhf.text_types import Prompt
from reward_modeling.run_fg_rm import train
from tasks.qa_feedback.data.mini_world import make_row

CONFIG = Path(__file__).parents[1] / "tasks/qa_feedback/training/mini_oracle_config.yml"


def test_novelty_by_hand():
    seen_S = seen_ngrams(["a b c d e", "a b c d f", "too short"])
    assert len(seen_S) == 3 and seen_S.dtype == np.uint32  # abcd, bcde, bcdf
    assert (np.diff(seen_S.astype(np.int64)) > 0).all()
    assert novelty("a b c d e", seen_S) == 0
    assert novelty("a b c d g", seen_S) == 1 / 2
    assert novelty("x a b c d e f", seen_S) == 2 / 4
    assert novelty("a b c d a b c d", seen_S) == 3 / 5  # each occurrence counts
    assert novelty("f e d c b a", seen_S) == 1
    assert novelty("a b c", seen_S) is None and novelty("", seen_S) is None
    assert novelty("a b c d", seen_ngrams([])) == 1


def test_it_equals_sets_of_words():
    rng = random.Random(0)
    texts = [" ".join(rng.choices("ab", k=rng.randint(0, 9))) for _ in range(30)]
    seen_S = seen_ngrams(texts[:5])
    runs = {
        tuple(words[i : i + 4])
        for words in map(str.split, texts[:5])
        for i in range(len(words) - 3)
    }
    for text in texts:
        words = text.split()
        new = [tuple(words[i : i + 4]) not in runs for i in range(len(words) - 3)]
        assert novelty(text, seen_S) == (sum(new) / len(new) if new else None)


def test_numbers_are_the_same_on_every_machine():
    # zlib's CRC-32 of "a b c d" in UTF-8
    assert ngram_numbers("a  b\nc d").tolist() == [1628168848]
    assert len(ngram_numbers("我们在茶馆里")) == 3  # a character is a word


@pytest.mark.parametrize("text", ["a b c d e", " a\n\n- b  c, d"])
def test_the_response_that_a_reward_model_reads(text):
    spans = [(0, 3), (3, len(text))]
    read = RMText.of(Prefix(("q",)), text, spans)
    assert read.response == text.strip()
    words_only = RMText(read.prefix, read.segments)
    assert words_only.response == " ".join(text.split())


def test_training_stores_what_the_metric_reads(tmp_path):
    folder = train(segment_config(tmp_path, train__max_steps=2))
    metric = build_metric(read_metrics([{"name": "novelty", "model": str(folder)}])[0])
    rng = random.Random(1)
    known = [" ".join(words) for words in responses(tmp_path / "train.json")]
    alike = [" ".join(rm.segment(rng, False) + rm.segment(rng, True)) for _ in range(40)]
    unlike = [" ".join(rng.choices(["one", "two", "cat"], k=10)) for _ in range(40)]

    def mean(texts: list[str]) -> float:
        values = metric.values([Prompt("0", "the")] * len(texts), texts)
        return float(np.mean([value for value in values if value is not None]))

    assert mean(known) == 0 < mean(alike) < mean(unlike) - 0.1
    assert len(load_seen(str(folder))) == len(seen_ngrams(known))


def responses(file):
    """The words of the responses of a segment file."""
    from reward_modeling.data import read_segment_rows

    for row in read_segment_rows(file, rm.LABELS, "Ignore"):
        if any(label >= 0 for label in row.labels):
            yield [word for segment in row.text.segments for word in segment]


def test_what_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(UserError, match=f"needs {FILE} of a reward model, which .* does not have"):
        load_seen(str(tmp_path))
    save_seen(tmp_path, seen_ngrams(["a b c d"]))
    assert len(load_seen(str(tmp_path))) == 1
    (tmp_path / FILE).write_bytes(b"{}")
    with pytest.raises(UserError, match="cannot be read .*: restore it, or train the model again"):
        load_seen(str(tmp_path))


def test_a_guard_watches_it_by_a_bound():
    metrics = read_metrics([{"name": "novelty", "model": "outputs/rm"}])
    assert unwatchable("novelty", None, []).startswith("which is not computed: add novelty")
    reason = unwatchable("novelty", None, metrics)
    assert "neither direction is known" in reason and "such as `novelty <= 0.5`" in reason
    bound = Monitor.parse("novelty <= 0.4")
    assert unwatchable(bound.metric, bound.bound, metrics) == ""


def test_a_guarded_run_logs_it_and_resumes_exactly(tmp_path, monkeypatch):
    save_seen(tmp_path, seen_ngrams(["a b c d"]))
    for split in ("train", "dev"):
        write_json(tmp_path / f"{split}.json", [make_row(0, split, i) for i in range(12)])
    tiny.policy("t5").save(tmp_path / "sft")
    monkeypatch.setenv("OUTPUT_DIR", str(tmp_path))
    monkeypatch.setenv("DATA_DIR", str(tmp_path))

    def run(name: str) -> list[dict]:
        changes = [
            "model.max_input_len=64",
            "model.max_generated_len=8",
            "train.sampling_batch_size_per_card=2",
            "train.micro_batch_size=2",
            "train.total_episodes=32",
            "train.guard={on: [novelty <= 1]}",
            "evaluation.every_steps=1",
            f"evaluation_metrics=[{{name: novelty, model: {tmp_path}}}]",
            f"logging.save_dir={tmp_path / name}",
        ]
        rl.main(["tasks.qa_feedback", str(CONFIG), *changes])
        return logged(tmp_path / name)

    whole = run("whole")
    evaluations = [row for row in whole if "eval/novelty" in row]
    assert len(evaluations) == 5 and all(row["guard/novelty"] == 0 for row in evaluations)
    see_step, calls = Guard.see_step, []

    def interrupted(guard, metrics) -> None:
        calls.append(metrics)
        if len(calls) == 3:
            raise KeyboardInterrupt
        see_step(guard, metrics)

    with monkeypatch.context() as patch:
        patch.setattr(Guard, "see_step", interrupted)
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            run("half")
    assert run("half") == whole and len(calls) == 3
