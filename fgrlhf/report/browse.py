"""Writes a page with every evaluated sample: all policies side by side, in one self-contained file.

    fgrlhf samples OUTPUT_DIR [samples.html] [split=test]

The page searches, filters and sorts prompts by any metric, or by the difference of two policies,
whose responses it compares word by word. Its script and data are in the file, its content policy
allows no network, and it writes texts of the data as text only.
"""

import base64
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from fgrlhf.base.errors import UserError, counted, shorten
from fgrlhf.base.files import write_text
from fgrlhf.base.program import run_main
from fgrlhf.metrics.rows import EvaluationRow
from fgrlhf.report.data import evaluations_by_split, recorded_task
from fgrlhf.report.display import Display
from fgrlhf.report.evaluations import in_order
from fgrlhf.report.page import (
    HERE,
    check_path,
    display_for,
    folder_and_page,
    page_template,
    stylesheet,
)
from fgrlhf.report.records import read_evaluation_rows
from fgrlhf.report.samples import split_prompt

USAGE = "usage: fgrlhf samples OUTPUT_DIR [samples.html] [split=test]"
DIGITS = 6  # of a number in the page
HIDDEN = ("cluster",)

Rows = Mapping[str, Sequence[EvaluationRow]]  # by policy


def write_samples(output_dir: str | Path, html_path: str | Path, split: str | None = None) -> Path:
    """Write the page of all samples of an outputs folder, atomically.

    Args:
      split: of the evaluations; None: test, or the first one.

    Raises:
      UserError: the folder has no evaluation of the split, or a damaged one.
    """
    folder = Path(output_dir)
    by_split = evaluations_by_split(folder)
    if not by_split:
        raise UserError(
            f"{shorten(folder)} has no evaluation (eval/NAME-SPLIT/rows.jsonl): run `fgrlhf"
            " evaluate` first, with this folder as its output_dir"
        )
    chosen = split or ("test" if "test" in by_split else next(iter(by_split)))
    if chosen not in by_split:
        raise UserError(
            f"{shorten(folder)} has no evaluation on `{shorten(chosen, 60)}`; it has some on"
            f" {', '.join(by_split)}"
        )
    display = display_for(folder, None)
    paths = by_split[chosen]
    names = in_order({name: path.parent for name, path in paths.items()}, display)
    rows = {name: read_evaluation_rows(paths[name], EvaluationRow) for name in names}
    write_text(html_path, samples_page(rows, chosen, display, recorded_task(folder)))
    return Path(html_path)


def samples_page(rows: Rows, split: str, display: Display, task: str | None = None) -> str:
    """The page as text."""
    script = (HERE / "browse.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    data = page_data(rows, display)
    title = f"{f'{task}: ' if task else ''}all samples, {split}"
    return page_template(HERE, "browse.html.j2").render(
        title=title,
        style=stylesheet() + Markup((HERE / "browse.css").read_text(encoding="utf-8")),
        script=Markup(script),
        digest=digest,
        data=Markup(embedded(data)),
        about=f"{counted(len(data['prompts']), 'prompt')}, {counted(len(rows), 'evaluation')}",
    )


def page_data(rows: Rows, display: Display) -> dict[str, Any]:
    """What the page shows: policies, metrics, rewards with segments, and the prompts."""
    prompts: dict[Any, dict[str, Any]] = {}
    metrics: dict[str, str] = {}
    rewards: dict[str, str] = {}
    for policy, of_policy in rows.items():
        for row in of_policy:
            entry = prompts.get(row.id)
            if entry is None:
                shown = split_prompt(row.prompt, display)
                parts = [[heading, "\n".join(texts)] for heading, texts in shown.parts.items()]
                entry = {"id": str(row.id), "title": shown.title, "parts": parts}
                entry |= {"references": row.references, "responses": {}}
                prompts[row.id] = entry
            numbers = {name: number for name, number in row.numbers.items() if name not in HIDDEN}
            metrics |= {name: display.metric(name) for name in numbers}
            rewards |= {name: display.name(name) for name in row.segments}
            rounded = {name: _rounded(number) for name, number in numbers.items()}
            response = {"text": row.response, "metrics": rounded, "segments": {}}
            for name, segments in row.segments.items():
                if segments:
                    response["segments"][name] = [
                        [s.start, s.end, _rounded(s.value), s.judgement] for s in segments
                    ]
            entry["responses"].setdefault(policy, []).append(response)
    return {
        "policies": {policy: display.name(policy) for policy in rows},
        "metrics": metrics,
        "rewards": rewards,
        "prompts": list(prompts.values()),
    }


def _rounded(number: float) -> float:
    return float(f"{number:.{DIGITS}g}")


def embedded(value: Any) -> str:
    """JSON inside a script element: no `<` can end it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def main(argv: Sequence[str] | None = None) -> None:
    words = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help"} & set(words):
        print(USAGE)
        return
    split = None
    paths = []
    for word in words:
        if word.startswith("split="):
            split = word.removeprefix("split=")
        else:
            check_path(word, USAGE, ("split",))
            paths.append(word)
    folder, target = folder_and_page(paths, "samples.html", USAGE)
    print(f"samples: {write_samples(folder, target, split)}")


if __name__ == "__main__":
    run_main(main)
