"""Blind items: responses of several policies to the same prompts, shuffled and without names.

    fgrlhf feedback items NAME source=a.jsonl,b.jsonl,c.jsonl blind=true n=200 out=items.json

An item has the outputs of the task's schema, each by another policy, in a random order. Every
policy is first equally often, so that pages that mark the first output mark all policies:

- If the task has one output, each prompt has an item for every policy.
- If there are more policies than outputs, the sets of policies take turns.
- If there are fewer, policies that have several responses to a prompt fill the places.

Items have new ids, and no keys but those of the texts. Which policy an output is from is in the
file <out>.key.json only, which no page loads: `fgrlhf human-eval` reads it.
"""

import hashlib
import json
import random
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, cycle
from pathlib import Path
from typing import Any

from fgrlhf.base.errors import UserError, counted, shorten
from fgrlhf.base.files import sha256
from fgrlhf.base.records import Record, Text, read_record
from interface_html.format import FURTHER_REFERENCES, Item
from interface_html.schema import MOST_OUTPUTS, Schema
from interface_html.tasks import FeedbackTask

KEY_SUFFIX = ".key.json"
GENERAL_NAMES = ("samples", "rows", "items")  # of files, whose folders say which policy it is
USE = "read as the key of blind items"


class KeyEntry(Record):
    """An item of the key.

    Attributes:
      prompt: the id of its prompt in the first source.
      cluster: what prompts share, such as a document; by default the prompt.
      policies: of each output, in the item's order.
      content: digest of the title and the outputs, which finds the item in files without ids.
    """

    prompt: Text
    cluster: str
    policies: list[Text]
    content: Text


class Key(Record):
    """Which policy each output is from. `policies` has the file of each, with its SHA-256."""

    task: Text
    seed: int
    policies: dict[str, dict[str, str]]
    items: dict[str, KeyEntry]


@dataclass(frozen=True)
class _Answers:
    """The responses of all policies to a prompt."""

    row: Mapping[str, Any]  # of an item, without outputs
    prompt: str
    cluster: str
    texts: Mapping[str, Sequence[str]]  # by policy


def key_path(out: str | Path) -> Path:
    """The file of the key: items.json -> items.key.json."""
    return Path(out).with_suffix(KEY_SUFFIX)


def read_key(path: str | Path) -> Key:
    """The key in a file. Raises `UserError` if it is missing or damaged."""
    way_out = "Give the file <out>.key.json that `fgrlhf feedback items ... blind=true` wrote"
    return read_record(path, Key, USE, way_out)


def check_key_is_free(path: Path, key: Key) -> None:
    """Raise `UserError` if the file is the key of other items, whose policies it alone knows."""
    if path.exists() and read_key(path).items != key.items:
        raise UserError(
            f"{shorten(path)} is the key of other items, perhaps of a running study, whose policies"
            " only this file knows: name another out=..., or move the key away"
        )


def content_digest(task: FeedbackTask, item: Item) -> str:
    """Identifies an item by its texts."""
    text = json.dumps(task.content(item), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


# ---- the sources ---------------------------------------------------------------------------------


def policy_names(paths: Sequence[str]) -> list[str]:
    """A short name for each file: its own, or that of its folder. Raises `UserError` if two agree.

    >>> policy_names(["generated/sft-test/samples.jsonl", "rl.jsonl"])
    ['sft-test', 'rl']
    """
    names = []
    for path in map(Path, paths):
        names.append(path.parent.name if path.stem in GENERAL_NAMES else path.stem)
    for name, count in Counter(names).items():
        if count > 1 or not name:
            raise UserError(
                f"two files of source=... give the policy `{shorten(name)}`: rename one, or put it"
                " into a folder with the policy's name"
            )
    return names


def with_outputs(schema: Schema, count: int) -> Schema:
    """The schema for rows with another number of outputs."""
    known = schema.fields.outputs
    outputs = (*known, *(f"{known[-1]} {i}" for i in range(count)))[:count]
    others = tuple(key for key in schema.row if key not in known)
    fields = schema.fields.model_copy(update={"outputs": outputs})
    changes = {"fields": fields, "row": (*others, *outputs), "comparison": None, "ratings": ()}
    return schema.model_copy(update=changes)


def _answers(task: FeedbackTask, sources: Mapping[str, Sequence[Item]]) -> list[_Answers]:
    """The prompts to which every policy has a response, in the order of the first source."""
    fields = task.schema.fields
    prompt_keys = [key for key in task.schema.row if key not in fields.outputs]
    by_policy: list[dict[Hashable, Item]] = []
    for items in sources.values():
        found: dict[Hashable, Item] = {}
        for item in items:
            shown = [item.row[key] for key in (fields.title, *task.schema.context_keys)]
            found.setdefault(json.dumps(shown), item)
        by_policy.append(found)
    answers = []
    for key, first in by_policy[0].items():
        if not all(key in found for found in by_policy):
            continue
        texts = {}
        for policy, found in zip(sources, by_policy, strict=True):
            row = found[key].row
            outputs = [name for name in row if name in _output_names(fields.outputs)]
            texts[policy] = [row[name] for name in outputs]
        kept = (*prompt_keys, FURTHER_REFERENCES, "messages")
        row = {name: first.row[name] for name in kept if name in first.row}
        answers.append(_Answers(row, first.id, first.cluster or first.id, texts))
    return answers


def _output_names(outputs: Sequence[str]) -> list[str]:
    return [*outputs, *(f"{outputs[-1]} {i}" for i in range(MOST_OUTPUTS))]


# ---- items ---------------------------------------------------------------------------------------


def blind_items(
    task: FeedbackTask,
    sources: Mapping[str, Sequence[Item]],
    files: Mapping[str, str],
    n: int | None,
    seed: int,
) -> tuple[list[Item], Key]:
    """The items, in random order, and the key.

    Args:
      sources: policy -> its items, read with as many outputs as its rows have.
      files: policy -> its file, for the key.
      n: number of prompts; None: all.

    Raises:
      UserError: the policies have too few prompts or responses in common.
    """
    answers = _answers(task, sources)
    if not answers:
        raise UserError(
            f"the {len(sources)} sources have no prompt in common: sample all policies with the"
            " same data_dir=... and split=..."
        )
    rng = random.Random(seed)
    rng.shuffle(answers)
    if n is not None and len(answers) < n:
        raise UserError(
            f"n={n}, but every source has a response to only {counted(len(answers), 'prompt')}:"
            f" set n={len(answers)} or sample more"
        )
    answers = answers[:n]
    drawn: list[tuple[dict[str, Any], _Answers, list[str]]] = []
    outputs = task.schema.fields.outputs
    for one, chosen in zip(_turns(answers, len(outputs)), _sets(rng, [*sources], len(outputs))):
        places = _in_order(rng, one.texts, chosen, len(outputs), drawn)
        texts = [one.texts[policy][place] for policy, place in places]
        row = {**one.row, **dict(zip(outputs, texts, strict=True))}
        drawn.append((row, one, [policy for policy, _ in places]))
    rng.shuffle(drawn)
    width = len(str(len(drawn)))
    items = []
    entries = {}
    for number, (row, one, policies) in enumerate(drawn, 1):
        ordered = {name: row[name] for name in (*task.schema.row, *row)}
        item = Item(f"item-{number:0{width}}", ordered)
        items.append(item)
        entries[item.id] = KeyEntry(
            prompt=one.prompt,
            cluster=one.cluster,
            policies=policies,
            content=content_digest(task, item),
        )
    known = {name: {"file": file, "sha256": sha256(file)} for name, file in files.items()}
    return items, Key(task=task.schema.task, seed=seed, policies=known, items=entries)


def _turns(answers: Sequence[_Answers], outputs: int) -> list[_Answers]:
    """Each prompt once, or for a single output once for every policy."""
    if outputs > 1:
        return list(answers)
    return [one for one in answers for _ in one.texts]


def _sets(rng: random.Random, policies: list[str], outputs: int):
    """For each item, the policies in it: all sets of the largest possible size, in turn."""
    if outputs == 1:
        return cycle([(policy,) for policy in policies])
    sets = list(combinations(policies, min(outputs, len(policies))))
    rng.shuffle(sets)
    return cycle(sets)


def _in_order(
    rng: random.Random,
    texts: Mapping[str, Sequence[str]],
    chosen: Sequence[str],
    outputs: int,
    drawn: Sequence[tuple[Any, Any, Sequence[str]]],
) -> list[tuple[str, int]]:
    """The policy of each output and the number of its response, in a random order.

    The policy that is first in the fewest items so far comes first.

    Raises:
      UserError: the policies have too few responses to the prompt.
    """
    chosen = rng.sample(chosen, len(chosen))
    places = [(policy, number) for number in range(outputs) for policy in chosen]
    places = [(policy, number) for policy, number in places if number < len(texts[policy])]
    if len(places) < outputs:
        raise UserError(
            f"the task's pages show {outputs} outputs, and the {len(chosen)} sources have"
            f" {len(places)} responses to a prompt: give more sources, or sample more responses"
            " (`fgrlhf generate ... num_samples=4`)"
        )
    places = places[:outputs]
    rng.shuffle(places)
    firsts = Counter(policies[0] for _, _, policies in drawn)
    first = min(places, key=lambda place: firsts[place[0]])
    places.remove(first)
    return [first, *places]
