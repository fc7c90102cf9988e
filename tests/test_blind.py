"""Blind items: who is in them, how they are mixed, and that nothing tells the policies apart."""

import json
import re
from collections import Counter

import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, write_jsonl
from interface_html.blind import policy_names, read_key
from interface_html.command import main as feedback

POLICIES = ("alpha", "beta", "gamma")


def sources(folder, count=30, responses=2, policies=POLICIES, **more):
    """A file of samples for each policy; a text says nothing about its policy."""
    paths = []
    for k, policy in enumerate(policies):
        rows = []
        for i in range(count):
            texts = [f"Answer {(7 * i + 31 * k + 5 * n) % 997} to it." for n in range(responses)]
            rows.append({"id": f"q{i}", "prompt": f"Question {i}?", "responses": texts, **more})
        path = folder / f"{policy}.jsonl"
        write_jsonl(path, [{**row, "policy": policy, "reward": k} for row in rows])
        paths.append(str(path))
    return ",".join(paths)


def items_of(folder, task, source, *settings):
    out = folder / "items.json"
    feedback(["items", task, f"source={source}", "blind=true", f"out={out}", *settings])
    return read_json(out), read_key(folder / "items.key.json")


@pytest.mark.parametrize(
    "task, policies, count, first",
    [
        ("detoxification", 3, 60, [20, 20, 20]),  # one output: an item for every policy
        ("hh_rlhf", 3, 20, [6, 7, 7]),  # two outputs: pairs take turns
        ("hh_rlhf", 2, 20, [10, 10]),
    ],
)
def test_every_policy_is_first_equally_often(tmp_path, task, policies, count, first):
    items, key = items_of(tmp_path, task, sources(tmp_path, policies=POLICIES[:policies]), "n=20")
    assert len(items) == len(key.items) == count
    firsts = Counter(entry.policies[0] for entry in key.items.values())
    assert sorted(firsts.values()) == first
    assert len({entry.prompt for entry in key.items.values()}) == 20
    if task == "hh_rlhf":
        pairs = Counter(frozenset(entry.policies) for entry in key.items.values())
        assert max(pairs.values()) - min(pairs.values()) <= 1
        assert all(len(pair) == 2 for pair in pairs)


def test_the_key_has_the_policy_of_every_text(tmp_path):
    items, key = items_of(tmp_path, "hh_rlhf", sources(tmp_path), "n=20")
    for item in items:
        entry = key.items[item["id"]]
        i = int(entry.prompt[1:])
        assert item["prompt"] == f"Question {i}?"
        for policy, text in zip(entry.policies, item["responses"], strict=True):
            k = POLICIES.index(policy)
            assert text == f"Answer {(7 * i + 31 * k) % 997} to it."
    assert set(key.policies) == set(POLICIES)


def test_nothing_but_the_key_tells_the_policies(tmp_path):
    items_of(tmp_path, "cnn_dailymail", sources(tmp_path), "n=20")
    for page in ("comparison", "rating"):
        out = tmp_path / f"{page}.html"
        given = [f"items={tmp_path / 'items.json'}", f"page={page}", f"out={out}"]
        feedback(["pages", "cnn_dailymail", *given])
        shown = re.search(r"<script[^>]*json[^>]*>(.*?)</script>", out.read_text(), re.S)[1]
        assert "Question 3?" in shown
        assert not [word for word in (*POLICIES, "q3", "reward", "policy") if word in shown]
    ids = [item["id"] for item in read_json(tmp_path / "items.json")]
    assert ids == [f"item-{number:02}" for number in range(1, 21)]


def test_the_order_is_random_and_repeatable(tmp_path):
    source = sources(tmp_path)
    first, _ = items_of(tmp_path, "hh_rlhf", source)
    again, _ = items_of(tmp_path, "hh_rlhf", source)
    with pytest.raises(UserError, match=r"is the key of other items, perhaps of a running study"):
        items_of(tmp_path, "hh_rlhf", source, "seed=1")
    assert read_json(tmp_path / "items.json") == first
    (tmp_path / "items.key.json").unlink()
    other, key = items_of(tmp_path, "hh_rlhf", source, "seed=1")
    assert first == again != other
    prompts = [entry.prompt for entry in key.items.values()]
    assert prompts != sorted(prompts, key=lambda name: int(name[1:]))


def test_policies_with_several_responses_fill_the_places(tmp_path):
    passages = [{"wikipage": "Cat", "content": "A cat sat."}]
    paths = []
    for policy in POLICIES:
        row = {"question": "Who sat?", "passages": passages}
        rows = [
            {"id": str(i), **row, "question": f"Who sat {i}?", "predictions": [f"{i} one", "two"]}
            for i in range(24)
        ]
        write_jsonl(tmp_path / f"{policy}.jsonl", rows)
        paths.append(str(tmp_path / f"{policy}.jsonl"))
    items, key = items_of(tmp_path, "qa_feedback", ",".join(paths))
    assert len(items) == 24
    twice = Counter()
    for entry in key.items.values():
        counts = Counter(entry.policies)
        assert sorted(counts.values()) == [1, 1, 2]
        twice.update(policy for policy, count in counts.items() if count == 2)
    assert set(twice) == set(POLICIES)


def test_clusters_are_in_the_key_alone(tmp_path):
    items, key = items_of(tmp_path, "hh_rlhf", sources(tmp_path, cluster="page 7"), "n=3")
    assert {entry.cluster for entry in key.items.values()} == {"page 7"}
    assert "page 7" not in json.dumps(items)


def test_names_of_files():
    assert policy_names(["generated/rl-test/samples.jsonl", "x/sft.jsonl"]) == ["rl-test", "sft"]
    with pytest.raises(UserError, match="two files of source=... give the policy `rl`"):
        policy_names(["a/rl.jsonl", "b/rl.jsonl"])


@pytest.mark.parametrize(
    "change, message",
    [
        (["n=31"], "n=31, but every source has a response to only 30 prompts: set n=30"),
        (["blind=false", "n=3"], "n: draws prompts of blind items: set blind=true"),
        (["source=a.jsonl"], "blind=true needs a file for each policy"),
    ],
)
def test_mistakes(tmp_path, change, message):
    with pytest.raises(UserError, match=message):
        items_of(tmp_path, "hh_rlhf", sources(tmp_path), *change)
    assert not (tmp_path / "items.json").exists()


def test_sources_without_a_common_prompt(tmp_path):
    source = sources(tmp_path)
    rows = [{"id": "x", "prompt": "Another?", "responses": ["a", "b"]}]
    write_jsonl(tmp_path / "beta.jsonl", rows)
    with pytest.raises(UserError, match="the 3 sources have no prompt in common"):
        items_of(tmp_path, "hh_rlhf", source)


def test_too_few_responses(tmp_path):
    (tmp_path / "one").mkdir()
    source = sources(tmp_path, responses=1, policies=("alpha",))
    other = sources(tmp_path / "one", responses=1, policies=("beta",))
    items, _ = items_of(tmp_path, "hh_rlhf", f"{source},{other}")
    assert len(items) == 30  # two policies with one response each
    write_jsonl(tmp_path / "key.json", [{}])
    with pytest.raises(UserError, match="read as the key of blind items"):
        read_key(tmp_path / "key.json")


def test_a_policy_that_says_nothing_at_first(tmp_path):
    source = sources(tmp_path, responses=1, policies=POLICIES[:2])
    path = tmp_path / "beta.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    write_jsonl(path, [row | {"responses": [""]} for row in rows[:25]] + rows[25:])
    items, _ = items_of(tmp_path, "hh_rlhf", source)
    assert len(items) == 5
    write_jsonl(path, [row | {"responses": [""]} for row in rows])
    with pytest.raises(UserError, match="has a blank response in every row"):
        items_of(tmp_path, "hh_rlhf", source)


def test_one_source_is_refused_however_it_is_written(tmp_path):
    source = sources(tmp_path, policies=POLICIES[:1])
    for written in (source, f"{source},"):
        with pytest.raises(UserError, match="blind=true needs a file for each policy"):
            items_of(tmp_path, "hh_rlhf", written)
