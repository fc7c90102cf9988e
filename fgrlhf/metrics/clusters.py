"""Prompts that share a document, a dialog or a talk: clusters, the units of all intervals.

A prompt's cluster is the text or whole number under the key `cluster` of its row, or under another
key that the evaluation names (`cluster=KEY`). The rows of an evaluation keep it in the column
`cluster`, so that every figure that is computed of them has the same units.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fgrlhf.base.errors import UserError, counted, shorten
from fgrlhf.text_types import Prompt

if TYPE_CHECKING:
    from fgrlhf.stats import Clusters  # loads scipy, which the feedback server does without

CLUSTER = "cluster"  # key of a prompt's row, and column of an evaluation's rows
CLUSTER_HELP = (
    "key of the prompts' rows that names what prompts share, such as a document; null: `cluster`,"
    " if rows have it"
)

ClusterOfPrompt = dict[str, tuple[bool, str]]  # prompt's id -> (whether it has a cluster, its name)


def with_clusters(prompts: Sequence[Prompt], key: str | None, source: str) -> list[Prompt]:
    """The prompts, with their clusters under the key `cluster` of `meta`.

    Args:
      key: of the rows; None: `cluster`, which rows need not have.
      source: where the prompts come from, for messages.

    Raises:
      UserError: a row lacks the key that was asked for, or its value is no name.
    """
    named = []
    for prompt in prompts:
        value = prompt.meta.get(key or CLUSTER)
        if value is None and key is None:
            named.append(prompt)
            continue
        if not isinstance(value, str | int) or isinstance(value, bool) or value == "":
            has = "no such key" if value is None else f"{shorten(repr(value), 60)}"
            raise UserError(
                f"{source}, row {shorten(prompt.id, 60)}: `{key or CLUSTER}` must be the name of"
                " what the prompt shares with others, such as a document's id, as a text or whole"
                f" number; it has {has}. Correct the row, or name another key with cluster=KEY"
            )
        named.append(replace(prompt, meta={**prompt.meta, CLUSTER: str(value)}))
    return named


def cluster_of(prompt: Prompt) -> str | None:
    """The prompt's cluster; None if its row has none."""
    name = prompt.meta.get(CLUSTER)
    return None if name is None else str(name)


def clusters_by_prompt(rows: Iterable[Mapping[str, Any]]) -> ClusterOfPrompt | None:
    """The cluster of each prompt of an evaluation; None if no row has one.

    A prompt without a cluster is its own.
    """
    names: ClusterOfPrompt = {}
    for row in rows:
        name = row.get(CLUSTER)
        names[row["id"]] = (False, str(row["id"])) if name is None else (True, str(name))
    return names if any(has for has, _ in names.values()) else None


def clusters_of(prompts: Iterable[str], names: ClusterOfPrompt | None) -> "Clusters":
    """The cluster of each of these prompts, for the functions of fgrlhf/stats.py."""
    return None if names is None else [names[prompt] for prompt in prompts]


def units_note(rows: Sequence[Mapping[str, Any]]) -> str:
    """What the units of the intervals are, and how many there are."""
    prompts = len({row["id"] for row in rows})
    names = clusters_by_prompt(rows)
    if names is None:
        return f"95% intervals over {counted(prompts, 'prompt')}"
    clusters = counted(len(set(names.values())), "cluster")
    return f"95% intervals over {clusters} of {counted(prompts, 'prompt')} (key `{CLUSTER}`)"
