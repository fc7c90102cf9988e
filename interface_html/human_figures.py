"""The tables of a blind human evaluation, with intervals over prompts or clusters of them.

Every figure is first averaged over the annotators of an item, so that an item with many annotators
does not decide it. Differences of policies are first minus second.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import fmean

from fgrlhf.data.comparisons import SWAPPED
from fgrlhf.paired_stats import paired_interval, unpaired_ratio_interval
from fgrlhf.segmentation import sentences, subsentences
from fgrlhf.stats import Figure, mean_interval, ratio_interval, share_of_prompts
from fgrlhf.win_rates import VALUE, JudgedPair, outcome_figures
from interface_html.judged_items import JudgedItem
from interface_html.rules import Document, errors_only, side_of
from interface_html.schema import Schema

ANY = "any error"
MISSING = "missing: "
LEVELS = {"subsentence": subsentences, "sentence": sentences}
NOUNS = {"subsentence": "sub-sentences", "sentence": "sentences"}


@dataclass(frozen=True)
class BlindItem:
    """An item that came back: who made each output, and what the annotators said."""

    judged: JudgedItem
    prompt: str
    cluster: str
    policies: Sequence[str]


@dataclass(frozen=True)
class Table:
    """A table of the paper: rows of figures by name.

    Attributes:
      title: what the figures are.
      columns: their names.
      rows: name -> a figure for each column.
    """

    title: str
    columns: list[str]
    rows: dict[str, list[Figure]] = field(default_factory=dict)


@dataclass
class _Counts:
    """Of each marked output of a policy: its cluster, counts of kinds, and of segments."""

    clusters: list[str] = field(default_factory=list)
    segments: list[float] = field(default_factory=list)
    errors: dict[str, list[float]] = field(default_factory=dict)
    missing: dict[str, list[float]] = field(default_factory=dict)


def tables(schema: Schema, items: Sequence[BlindItem], level: str = "subsentence") -> list[Table]:
    """All tables that the judgements allow."""
    found = []
    if any(item.judged.annotations for item in items):
        counts = _counts(schema, items, LEVELS[level])
        found += [_error_table(schema, counts, level), _error_differences(schema, counts, level)]
    if any(item.judged.comparisons for item in items):
        found.append(_win_table(schema, items))
    if any(item.judged.ratings for item in items):
        found += _rating_tables(schema, items)
    return [table for table in found if table.rows]


# ---- errors --------------------------------------------------------------------------------------


def kinds_of(schema: Schema) -> list[str]:
    """The kinds of error of a response, all of them together first."""
    return [ANY, *schema.response_kinds]


def kinds_in_segments(
    schema: Schema, doc: Document, output: int, segments: Sequence[tuple[int, int]]
) -> dict[str, int]:
    """In how many segments of an output an annotation has an error of each kind.

    A mark is in a segment if it covers one of its characters.
    """
    marks = []
    for error in errors_only(schema, doc)["errors"]:
        if side_of(error) != "source" and error.get("output", 0) == output:
            marks.append(error)
    found = dict.fromkeys(kinds_of(schema), 0)
    for start, end in segments:
        inside = {
            mark["error type"] for mark in marks if mark["start"] < end and start < mark["end"]
        }
        for kind in inside:
            found[kind] += 1
        found[ANY] += bool(inside)
    return found


def _counts(
    schema: Schema, items: Sequence[BlindItem], segment: Callable[[str], list[tuple[int, int]]]
) -> dict[str, _Counts]:
    """The counts of each policy."""
    by_policy: dict[str, _Counts] = {}
    for item in items:
        docs = list(item.judged.annotations.values())
        if not docs:
            continue
        for output, key in enumerate(schema.marked_outputs):
            counts = by_policy.setdefault(item.policies[output], _Counts())
            segments = segment(item.judged.item.row[key])
            counts.clusters.append(item.cluster)
            counts.segments.append(len(segments))
            of_docs = [kinds_in_segments(schema, doc, output, segments) for doc in docs]
            for kind in kinds_of(schema):
                mean = sum(found[kind] for found in of_docs) / len(docs)
                counts.errors.setdefault(kind, []).append(mean)
            for kind in schema.missing:
                named = [_names_missing(doc, kind.name) for doc in docs]
                counts.missing.setdefault(kind.name, []).append(sum(named) / len(docs))
    return dict(sorted(by_policy.items()))


def _names_missing(doc: Document, kind: str) -> bool:
    return any(info["error type"] == kind for info in doc["missing-info"])


def _error_table(schema: Schema, counts: Mapping[str, _Counts], level: str) -> Table:
    names = kinds_of(schema)
    missing = [kind.name for kind in schema.missing]
    title = f"Share of {NOUNS[level]} with an error, by kind"
    if missing:
        title += "; share of responses in which information is missing"
    table = Table(title, [*names, *(MISSING + name for name in missing)])
    for policy, of in counts.items():
        shares = [ratio_interval(of.errors[kind], of.segments, of.clusters) for kind in names]
        shares += [share_of_prompts(of.missing[name], of.clusters) for name in missing]
        table.rows[policy] = list(shares)
    return table


def _error_differences(schema: Schema, counts: Mapping[str, _Counts], level: str) -> Table:
    names = kinds_of(schema)
    table = Table(f"Difference of the shares of {NOUNS[level]} with an error", names)
    for a, b in combinations(counts, 2):
        first, second = counts[a], counts[b]
        clusters = (first.clusters, second.clusters)
        row: list[Figure] = []
        for kind in names:
            side_a = first.errors[kind], first.segments
            side_b = second.errors[kind], second.segments
            row.append(unpaired_ratio_interval(side_a, side_b, clusters))
        table.rows[f"{a} - {b}"] = row
    return table


# ---- comparisons ---------------------------------------------------------------------------------


def _win_table(schema: Schema, items: Sequence[BlindItem]) -> Table:
    """Win, tie and lose of each pair of policies. Two outputs of one policy are left out."""
    pairs: dict[tuple[str, str], list[JudgedPair]] = {}
    outputs = schema.fields.outputs
    for item in items:
        for comparison in item.judged.comparisons.values():
            for (i, j), value in zip(schema.pairs, comparison.preference, strict=True):
                if item.policies[i] > item.policies[j]:
                    i, j, value = j, i, SWAPPED[value]
                names = item.policies[i], item.policies[j]
                if names[0] != names[1]:
                    first, second = (item.judged.item.row[outputs[place]] for place in (i, j))
                    pair = JudgedPair(item.prompt, item.cluster, first, second, (VALUE[value],))
                    pairs.setdefault(names, []).append(pair)
    columns = ["win", "tie", "lose", "win rate", "length-controlled win rate"]
    table = Table("Comparisons: shares for the first policy; ties count 1/2 in rates", columns)
    for (a, b), of_pair in sorted(pairs.items()):
        table.rows[f"{a} : {b}"] = list(outcome_figures(of_pair).values())
    return table


# ---- ratings -------------------------------------------------------------------------------------


def _rating_tables(schema: Schema, items: Sequence[BlindItem]) -> list[Table]:
    """The mean ratings of the policies, and their differences over shared prompts."""
    values: dict[str, dict[str, dict[str, list[float]]]] = {}  # scale, policy, prompt
    clusters = {item.prompt: item.cluster for item in items}
    for item in items:
        for ratings in item.judged.ratings.values():
            for policy, key in zip(item.policies, schema.fields.outputs, strict=True):
                for scale, value in ratings[key].items():
                    of_policy = values.setdefault(scale, {}).setdefault(policy, {})
                    of_policy.setdefault(item.prompt, []).append(float(value))
    scales = list(values)
    means = Table("Mean rating", scales)
    differences = Table("Difference of the mean ratings on shared prompts", scales)
    policies = sorted({policy for of_scale in values.values() for policy in of_scale})
    of: dict[tuple[str, str], dict[str, float]] = {}  # scale and policy: prompt -> mean
    for scale, of_scale in values.items():
        for policy, found in of_scale.items():
            of[scale, policy] = {prompt: fmean(given) for prompt, given in found.items()}
    for policy in policies:
        means.rows[policy] = []
        for scale in scales:
            mean_ratings = list(of[scale, policy].values())
            units = [clusters[prompt] for prompt in of[scale, policy]]
            means.rows[policy].append(mean_interval(mean_ratings, units, may_be_share=False))
    for a, b in combinations(policies, 2):
        row: list[Figure] = []
        for scale in scales:
            shared = [prompt for prompt in of[scale, a] if prompt in of[scale, b]]
            if not shared:
                row.append("undefined: no prompt in common")
                continue
            of_a, of_b = ([of[scale, policy][prompt] for prompt in shared] for policy in (a, b))
            row.append(paired_interval(of_a, of_b, [clusters[prompt] for prompt in shared]))
        differences.rows[f"{a} - {b}"] = row
    return [means, differences]
