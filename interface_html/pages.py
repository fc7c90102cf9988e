"""One self-contained page with its items inside: what to send to an annotator.

python -m interface_html.pages items=items.json out=annotate.html page=annotation
"""

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from fgrlhf.cli.command_line import settings_from
from fgrlhf.config import StrictModel
from fgrlhf.errors import UserError, run_main
from fgrlhf.files import write_text
from interface_html.items import Item, read_items
from interface_html.schema import FOLDER, QA_SCHEMA, load_schema

TEMPLATES = FOLDER / "templates"
SCRIPT = re.compile(r'<script src="([^"]+)"></script>')
STYLE = re.compile(r'<link rel="stylesheet" href="([^"]+)">')
POLICY = re.compile(r'(<meta http-equiv="Content-Security-Policy" content=")[^"]*(">)')


def embedded_json(value) -> str:
    """JSON that is safe inside a script element: no `<`, so nothing in it can end the element."""
    return json.dumps(value).replace("<", "\\u003c")


def self_contained(page: str, items: Sequence[Item], schema_file: str | Path = QA_SCHEMA) -> str:
    """A page's text with its scripts, styles, schema and items inside. It may load and run nothing
    else.
    """
    text = (TEMPLATES / f"{page}.html").read_text(encoding="utf-8")
    hashes = {"script": [], "style": []}

    def inline(kind: str, path: str) -> str:
        source = Path(schema_file) if Path(path).name == "schema.js" else TEMPLATES / path
        body = source.read_text(encoding="utf-8")
        if f"</{kind}" in body or "<!--" in body:
            raise UserError(
                f"{source} holds `</{kind}` or `<!--`, which would end it inside a page; write it"
                " otherwise"
            )
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        hashes[kind].append(f"'sha256-{digest}'")
        return f"<{kind}>{body}</{kind}>"

    text = STYLE.sub(lambda match: inline("style", match[1]), text)
    text = SCRIPT.sub(lambda match: inline("script", match[1]), text)
    policy = (
        f"default-src 'none'; script-src {' '.join(hashes['script'])}; style-src"
        f" {' '.join(hashes['style'])}; base-uri 'none'; form-action 'none'"
    )
    text = POLICY.sub(lambda match: match[1] + policy + match[2], text)
    data = embedded_json([item.to_json() for item in items])
    return text.replace(
        "<!-- items -->", f'<script type="application/json" id="items">{data}</script>'
    )


class Settings(StrictModel):
    """Which items, into which page."""

    items: str = Field(description="items, a feedback file, or samples.jsonl of generate.sh")
    out: str = Field(description="the HTML file to write")
    page: Literal["annotation", "comparison"] = "annotation"
    questions: str | None = Field(
        None, description="the split the samples are of, for their reference answers"
    )
    schema_file: str = Field(str(QA_SCHEMA), description="the task's schema")
    first: int | None = Field(None, ge=1, description="the first ones only; null: all")


def write_page(settings: Settings) -> Path:
    """Write the page. Raises `UserError` where there is nothing to judge in it."""
    schema = load_schema(settings.schema_file)
    if settings.page == "comparison" and not schema.compares:
        raise UserError(
            f"the task {schema.task} has one answer to an item: there is nothing to compare"
        )
    items = read_items(schema, settings.items, settings.questions)[: settings.first]
    if not items:
        raise UserError(f"{settings.items} holds no items")
    write_text(settings.out, self_contained(settings.page, items, settings.schema_file))
    return Path(settings.out)


def main() -> None:
    settings = settings_from(Settings)
    print(f"open in a browser: {write_page(settings)}")


if __name__ == "__main__":
    run_main(main)
