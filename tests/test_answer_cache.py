"""The file of known answers."""

import json
import subprocess
import sys
from pathlib import Path

from fgrlhf.scorers.answer_cache import AnswerCache, content_hash

ROOT = Path(__file__).parents[1]
WRITER = """
import sys
from fgrlhf.scorers.answer_cache import AnswerCache
cache = AnswerCache(sys.argv[1], "score", lambda score: True)
for number in range(300):
    cache.add(f"{sys.argv[2]}-{number}", number / 1000)
"""


def is_list(value) -> bool:
    return isinstance(value, list)


def test_answers_come_back_bit_for_bit(tmp_path):
    path = tmp_path / "new" / "cache.jsonl"
    cache = AnswerCache(path, "scores", is_list)
    cache.add("a", [0.1 + 0.2, 1e-300, None])
    other = AnswerCache(path, "scores", is_list)
    assert other.answers == {"a": [0.1 + 0.2, 1e-300, None]}
    cache.add("b", [])
    other.refresh()
    assert other.answers["b"] == []


def test_lines_that_are_no_answers_are_ignored(tmp_path):
    path = tmp_path / "cache.jsonl"
    lines = [{"key": "a", "scores": 7}, {"key": 1, "scores": []}, {"score": []}, [1], "x"]
    text = "\n".join(map(json.dumps, lines)) + "\n" + "[" * 100_000 + '\n{"key": "b", "scor'
    path.write_text(text)
    cache = AnswerCache(path, "scores", is_list)
    assert cache.answers == {}
    cache.add("c", [1])  # begins a new line
    assert AnswerCache(path, "scores", is_list).answers == {"c": [1]}


def test_the_hash_of_contents():
    assert content_hash({"a": 1, "b": 2}) == content_hash({"b": 2, "a": 1})
    different = [content_hash(*facts) for facts in ([1], ["1"], [[1]], [1, None], ["é"])]
    assert len(set(different)) == len(different)


def test_two_processes_write_the_same_file(tmp_path):
    path = tmp_path / "cache.jsonl"
    command = [sys.executable, "-c", WRITER, str(path)]
    writers = [subprocess.Popen([*command, name], cwd=ROOT) for name in ("a", "b")]
    assert [writer.wait() for writer in writers] == [0, 0]
    expected = {f"{name}-{n}": n / 1000 for name in ("a", "b") for n in range(300)}
    cache = AnswerCache(path, "score", lambda score: isinstance(score, float))
    assert cache.answers == expected
    assert len(path.read_text().splitlines()) == 600
