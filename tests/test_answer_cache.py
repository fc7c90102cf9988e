"""The file of known answers. tests/test_perspective.py has two processes that share one."""

import json

from fgrlhf.scorers.answer_cache import AnswerCache, content_hash


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
