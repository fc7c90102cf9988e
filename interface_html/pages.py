"""Write one self-contained page with its items inside, to send to an annotator.

fgrlhf feedback pages NAME items=items.json out=annotate.html page=annotation
"""

import base64
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_text
from fgrlhf.cli.command_line import run_program
from fgrlhf.configs.strict import FilePath
from interface_html.format import Item
from interface_html.items import PROMPTS_HELP, item_json, read_items
from interface_html.languages import ENGLISH, LANGUAGE_HELP, Language, language_of
from interface_html.outputs import OutputSettings
from interface_html.render import ITEMS_PLACE, TEMPLATES, items_element, page_html
from interface_html.schema import PageName
from interface_html.tasks import TASK_HELP, FeedbackTask, feedback_of

SCRIPT = re.compile(r'<script src="([^"]+)"></script>')
STYLE = re.compile(r'<link rel="stylesheet" href="([^"]+)">')
POLICY = re.compile(r'(<meta http-equiv="Content-Security-Policy" content=")[^"]*(">)')


def self_contained(
    task: FeedbackTask, page: PageName, items: Sequence[Item], language: Language = ENGLISH
) -> str:
    """The HTML of a page with its scripts, styles and items inside.

    Its content security policy allows only these scripts and styles, by their hashes.

    Raises:
      UserError: a script or style contains text that would end its element.
    """
    sources = {path.name: path for path in (*TEMPLATES.iterdir(), *task.scripts)}
    hashes: dict[str, list[str]] = {"script": [], "style": []}

    def inline(element: str, name: str) -> str:
        body = sources[name].read_text(encoding="utf-8")
        if f"</{element}" in body or "<!--" in body:
            raise UserError(
                f"{sources[name]} contains `</{element}` or `<!--`, which would end the element in"
                " a page: write it in another way, such as with an escape"
            )
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        hashes[element].append(f"'sha256-{digest}'")
        return f"<{element}>{body}</{element}>"

    text = page_html(task, page, shared="", own="", language=language)
    text = STYLE.sub(lambda match: inline("style", match[1]), text)
    text = SCRIPT.sub(lambda match: inline("script", match[1]), text)
    policy = (
        f"default-src 'none'; script-src {' '.join(hashes['script'])}; style-src"
        f" {' '.join(hashes['style'])}; base-uri 'none'; form-action 'none'"
    )
    text = POLICY.sub(lambda match: match[1] + policy + match[2], text)
    return text.replace(ITEMS_PLACE, items_element([item_json(task, item) for item in items]))


class PageSettings(OutputSettings):
    """The items and the page to write."""

    task: str = Field(description=TASK_HELP)
    items: str = Field(description="items, samples or feedback, in the task's format")
    out: FilePath = Field(description="the HTML file to write")
    page: PageName = Field(default="annotation", description="which of the task's pages")
    prompts: str | None = Field(default=None, description=PROMPTS_HELP)
    language: str = Field(default="en", description=LANGUAGE_HELP)
    first: int | None = Field(default=None, ge=1, description="only the first items; null: all")


def write_page(settings: PageSettings) -> Path:
    """Write the page. Raises `UserError` if the task has no such page or the file has no items."""
    task = feedback_of(settings.task)
    if settings.page not in task.schema.pages:
        raise UserError(
            f"the task {task.schema.task} has no {settings.page} page: set"
            f" page={' or page='.join(task.schema.pages)}"
        )
    language = language_of(settings.language)
    items = read_items(task, settings.items, settings.prompts)[: settings.first]
    if not items:
        raise UserError(f"{settings.items} has no items: set items=... to a file with rows")
    write_text(settings.out, self_contained(task, settings.page, items, language))
    print(f"open in a browser: {settings.out}")
    return Path(settings.out)


if __name__ == "__main__":
    run_program(write_page, PageSettings)
