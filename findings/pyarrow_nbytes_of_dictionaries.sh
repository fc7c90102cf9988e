#!/usr/bin/env bash
# Expected: RecordBatch.nbytes is about what its rows take as Python objects or as plain columns.
# Happens:  A column that is encoded as a dictionary counts each different text once, so a thousand
#           rows of the same long text are hardly larger than one.
# Seen:     pyarrow 26.0.1, 2026-11-29.
# Here:     The limit on what a Parquet file may unpack to also counts the texts of the rows
#           (`_unpacked_rows`, fgrlhf/data/read.py).
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check \
    "pyarrow==26.0.1"

venv/bin/python - <<'PYTHON'
import sys

import pyarrow

print(f"pyarrow {pyarrow.__version__}; a text of 10,000 characters")
texts = pyarrow.array(["x" * 10_000])
for rows in (1, 1_000):
    places = pyarrow.array([0] * rows, pyarrow.int32())
    column = pyarrow.DictionaryArray.from_arrays(places, texts)
    batch = pyarrow.record_batch({"response": column})
    plain = pyarrow.record_batch({"response": column.cast(pyarrow.string())})
    characters = sum(len(row["response"]) for row in batch.to_pylist())
    print(f"{rows} rows: {characters:,} characters, nbytes {batch.nbytes:,},"
          f" as plain texts {plain.nbytes:,}")
    if batch.nbytes > 15_000:
        sys.exit(f"changed: nbytes of {rows} rows counts repeated texts: {batch.nbytes:,}")
    if plain.nbytes < characters:
        sys.exit(f"changed: nbytes of a plain column is below its {characters:,} characters")
PYTHON
