"""Rows in two parts, for training and for its evaluation on dev rows."""

import json
from collections.abc import Sequence
from typing import Any

from fgrlhf.base.errors import UserError
from fgrlhf.base.seeds import derive_seed
from fgrlhf.metrics.clusters import CLUSTER

Rows = list[dict[str, Any]]

# keys of a row that name what it shares with others; the first one that it has counts
UNIT_KEYS = (CLUSTER, "prompt", "source")


def split_units(rows: Sequence[dict[str, Any]], share: float) -> tuple[Rows, Rows]:
    """The rows of most units, and those of a share of the units (at least one).

    Rows with the same cluster, prompt or source are one unit, since a model that was trained on one
    of them knows the others. The units are in the order of a hash of their names, and the first
    ones are chosen, so the order of the rows and a few new ones hardly change which.

    Raises:
      UserError: all rows are of one unit.
    """
    names = []
    for place, row in enumerate(rows):
        key = next((key for key in UNIT_KEYS if row.get(key)), None)
        names.append(json.dumps([key, place if key is None else row[key]], sort_keys=True))
    units = sorted(set(names), key=lambda name: (derive_seed("dev", name), name))
    if len(units) < 2:
        raise UserError(
            "dev: all rows are of one prompt, cluster or source, so they are either for training or"
            " for dev. Leave dev=... out, and write another file for it"
        )
    chosen = set(units[: min(max(round(share * len(units)), 1), len(units) - 1)])
    kept: Rows = []
    others: Rows = []
    for name, row in zip(names, rows):
        (others if name in chosen else kept).append(row)
    return kept, others
