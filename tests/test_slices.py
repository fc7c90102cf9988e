"""Figures of parts of an evaluation."""

import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.metrics.slices import (
    MOST_VALUES,
    check_keys,
    length_name,
    place_name,
    slice_problem,
    slices_of,
    slices_text,
)
from fgrlhf.metrics.summary import summarize


def row(number, words, reward=0.0, values=()):
    segments = [
        {"start": 10 * i, "end": 10 * i + 9, "value": value} for i, value in enumerate(values)
    ]
    return {
        "id": f"p{number}",
        "sample": 0,
        "response": "w " * words,
        "reward": reward,
        "segments": {"facts": segments, "whole": [{"start": 0, "end": None, "value": 9.0}]},
    }


def test_the_lengths_do_not_depend_on_other_responses():
    names = ["0 to 25 words", "26 to 50 words", "101 to 200 words", "201 words or more"]
    assert [length_name("w " * n) for n in (25, 26, 101, 201)] == names
    rows = [row(n, 10 if n % 3 else 300, reward=n) for n in range(30)]
    short, long = slices_of(rows, {}, ["length"])["length"]
    assert (short.name, short.cases, long.name, long.cases) == (names[0], 20, names[3], 10)
    chosen = [one for one in rows if len(one["response"]) == 20]
    assert short.figures["reward"] == summarize(chosen)["reward"]
    assert short.figures["reward"].has_bounds


def test_values_of_a_key_are_parts_and_the_rarest_are_joined():
    meta = {f"p{n}": {"type": "rare" if n == 7 else "common"} for n in range(29)}
    parts = slices_of([row(n, 3) for n in range(30)], meta, ["meta.type"])["meta.type"]
    assert [(part.name, part.cases) for part in parts] == [
        ("common", 28),
        ("rare", 1),
        ("no value", 1),
    ]
    many = {f"p{n}": {"type": n // 2} for n in range(60)}
    joined = slices_of([row(n, 3) for n in range(60)], many, ["meta.type"])["meta.type"]
    assert len(joined) == MOST_VALUES and joined[-1].name == "others"
    assert sum(part.cases for part in joined) == 60
    with pytest.raises(UserError, match="no prompt has the key `topic` in its row; the keys are t"):
        check_keys(["length", "meta.type", "meta.topic"], list(meta.values()))


def test_segments_by_their_place():
    rows = [row(n, 3, values=[1.0, 0.0, 0.5, 3.0 + n % 2]) for n in range(12)]
    rows.append(row(12, 3, values=[2.0]))
    parts = {part.name: part for part in slices_of(rows, {}, ["position"])["position"]}
    means = {name: part.figures["reward/facts per segment"].mean for name, part in parts.items()}
    assert means == {"only": 2.0, "first": 1.0, "between": 0.25, "last": 3.5}
    assert parts["between"].cases == 24 and list(parts["last"].figures) == [
        "reward/facts per segment"
    ]
    assert parts["last"].figures["reward/facts per segment"].has_bounds
    assert [place_name(i, 3) for i in range(3)] == ["first", "between", "last"]
    text = slices_text({"position": list(parts.values())})
    assert text.splitlines()[2].split() == (
        ["reward/facts", "per", "segment", "2.000", "1.000", "0.250", "3.500"]
    )
    assert "no reward judged segments" in slices_text({"position": []})


def test_other_names_are_no_slices():
    assert [slice_problem(name) for name in ("length", "position", "meta.type")] == [None] * 3
    assert "is no slice: write length" in (slice_problem("meta.") or "")
    assert "is no slice" in (slice_problem("lenght") or "")
