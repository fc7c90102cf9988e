#!/usr/bin/env bash
# Expected: `to_json` keeps what became of an answer: submitted, draft or discarded.
# Happens:  No answer has a status, so all three look the same. Read back, they have none either.
#           Only the flattened form (`to_list(flatten=True)`) has the status.
# Seen:     argilla 2.8.0, 2026-11-29.
# Here:     The importer reads the status of flattened records. Of others it notes those that may
#           hold drafts (`argilla`, fgrlhf/data/importers/argilla.py).
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
# the client imports requests, which it does not list
venv/bin/python -m pip install --quiet --disable-pip-version-check \
    "argilla==2.8.0" "requests"

HF_HUB_OFFLINE=1 venv/bin/python - <<'PYTHON'
import json
import sys
from importlib.metadata import version
from pathlib import Path
from uuid import uuid4

from argilla import Record, Response
from argilla.records._io import GenericIO, JsonIO  # what `dataset.records.to_json` calls

print(f"argilla {version('argilla')}")
STATUSES = ["submitted", "draft", "discarded"]
records = []
for status in STATUSES:
    answer = Response("error", "wrong", user_id=uuid4(), status=status)
    records.append(Record(fields={"text": "The moon is cheese."}, responses=[answer]))
JsonIO.to_json(records, "records.json")
answers = [record["responses"]["error"][0] for record in json.loads(Path("records.json").read_text())]
again = [answer.status for record in JsonIO._records_from_json("records.json") for answer in record.responses]
flat = [record["error.responses.status"][0] for record in GenericIO.to_list(records, flatten=True)]
print(f"given:       {STATUSES}")
print(f"in the file: {[answer.get('status') for answer in answers]}, keys {sorted(answers[0])}")
print(f"read again:  {again}")
print(f"flattened:   {flat}")
if any("status" in answer for answer in answers) or again != [None] * 3:
    sys.exit("changed: to_json writes the status of answers")
if [str(getattr(status, "value", status)) for status in flat] != STATUSES:
    sys.exit("changed: the flattened form lacks the status")
PYTHON
