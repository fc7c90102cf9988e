"""What files of published formats become: the cases of `importers/FORMAT.json`, by their names.

A case has `files` with their rows or lines (null: those of `fixtures/annotation_tools`), of which
the first one is imported; the `keys` of the import, one of which may be the name of another file;
and the result: `rows` and `report`, or the lines of the `error`. `why` says what a case shows.

    python tests/importer_cases.py    write all results anew; check every change with `git diff`
"""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json, write_jsonl, write_text
from fgrlhf.data.importers.registry import IMPORTERS, import_items
from fgrlhf.data.rows import Row

FOLDER = Path(__file__).parent / "importers"
TOOLS = Path(__file__).parent / "fixtures" / "annotation_tools"
Case = dict[str, Any]


def read_cases() -> dict[tuple[str, str], Case]:
    """Every case, by format and name."""
    cases = {}
    for path in sorted(FOLDER.glob("*.json")):
        for name, case in json.loads(path.read_text(encoding="utf-8")).items():
            cases[path.stem, name] = case
    return cases


def write_files(folder: Path, case: Case) -> Path:
    """Write the files of a case; the path of what is imported, a file or the folder `in`."""
    for name, content in case["files"].items():
        path = folder / name
        if content is None:
            shutil.copy(TOOLS / name, path)
        elif path.suffix == ".jsonl":
            write_jsonl(path, content)
        elif path.suffix == ".json":
            write_json(path, content)
        else:
            write_text(path, "\n".join(content))
    first = next(iter(case["files"]))
    return folder / first.partition("/")[0]


def items_of(folder: Path, row_format: str, case: Case) -> tuple[list, Any]:
    """The imported items and the report."""
    source = write_files(folder, case)
    keys = {}
    for key, value in case.get("keys", {}).items():
        keys[key] = str(folder / value) if value in case["files"] else value
    return import_items(source, row_format, keys)


def result_of(folder: Path, row_format: str, case: Case) -> Case:
    """What the import of a case gives. What is written can be read back."""
    try:
        items, report = items_of(folder, row_format, case)
    except UserError as error:
        return {"error": str(error).replace(f"{folder}/", "").splitlines()}
    written = IMPORTERS[row_format].format
    rows = [json.loads(json.dumps(written.to_row(item))) for item in items]
    assert [written.parse(Row(row, {}), place) for place, row in enumerate(rows)] == items
    return {"rows": rows, "report": {key: part for key, part in report.as_json().items() if part}}


def dumps(cases: dict[str, Case]) -> str:
    """JSON with a line for each row, which other tools would write on one line or on many."""
    texts = []
    for name, case in cases.items():
        parts = []
        for key, value in case.items():
            is_nested = key in ("files", "report")
            parts.append(f"  {_dumps(key)}: {_lines_of(value, is_nested)}")
        texts.append(f" {_dumps(name)}: {{\n" + ",\n".join(parts) + "\n }")
    return "{\n" + ",\n".join(texts) + "\n}\n"


def _lines_of(value: Any, is_nested: bool = False) -> str:
    if isinstance(value, list) and len(value) > 1:
        return "[\n    " + ",\n    ".join(map(_dumps, value)) + "]"
    if is_nested:
        return (
            "{\n   " + ",\n   ".join(f"{_dumps(k)}: {_lines_of(v)}" for k, v in value.items()) + "}"
        )
    return _dumps(value)


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


if __name__ == "__main__":
    for file in sorted(FOLDER.glob("*.json")):
        cases = json.loads(file.read_text(encoding="utf-8"))
        for case in cases.values():
            inputs = {key: case[key] for key in ("why", "files", "keys") if key in case}
            with tempfile.TemporaryDirectory() as folder:
                result = result_of(Path(folder), file.stem, inputs)
            case.clear()
            case.update(inputs | result)
        write_text(file, dumps(cases))
