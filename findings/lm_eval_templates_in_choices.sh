#!/usr/bin/env bash
# Expected: In the YAML of a task, doc_to_choice: ["{{right}}", "{{wrong}}"] scores the values of each
#           row, as "{{question}}" in doc_to_text does; or the task is refused.
# Happens:  The entries of a list are not rendered. Every row is asked to choose between the literal
#           texts "{{right}}" and "{{wrong}}", without a message. Only a single template that renders
#           to a list, "{{[right, wrong]}}", is.
# Seen:     lm_eval 0.4.13, datasets 5.2.0, 2026-11-30.
# Here:     `columns: {responses: [right, wrong]}` names keys, and no text is a template
#           (docs/data_formats.md).
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check \
    "lm_eval==0.4.13" "datasets==5.2.0" "torch==2.13.0" "transformers==5.23.0"
export HF_HUB_OFFLINE=1 HF_HOME="$folder/hub"

venv/bin/python - <<'PYTHON'
import json
import sys
from importlib.metadata import version
from pathlib import Path

from lm_eval.tasks import TaskManager

print(f"lm_eval {version('lm_eval')}")
row = {"question": "Name a prime.", "right": "Seven.", "wrong": "Nine."}
Path("rows.jsonl").write_text(json.dumps(row) + "\n")
TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_target: 0
doc_to_choice: {choices}
"""
CHOICES = {
    "entries": '["{{right}}", "{{wrong}}"]',
    "one_template": '"{{[right, wrong]}}"',
}
Path("tasks").mkdir()
for name, choices in CHOICES.items():
    text = TASK.format(name=name, rows=Path("rows.jsonl").absolute(), choices=choices)
    Path(f"tasks/{name}.yaml").write_text(text)
manager = TaskManager(include_path="tasks", include_defaults=False)
scored = {}
for name in CHOICES:
    task = manager.load([name])["tasks"][name]
    task.build_all_requests(rank=0, world_size=1)
    scored[name] = [request.args for request in task.instances]
    print(f"{CHOICES[name]}: {scored[name]}")
prompt = row["question"]
if scored["one_template"] != [(prompt, " Seven."), (prompt, " Nine.")]:
    sys.exit("changed: a template of a list is not rendered")
if scored["entries"] != [(prompt, " {{right}}"), (prompt, " {{wrong}}")]:
    sys.exit("changed: the entries of a list are not scored as they stand")
PYTHON
