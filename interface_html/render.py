"""The HTML of a task's pages, from the templates in interface_html/templates.

A page can be opened from the task's folder, served by the server, or sent as one file. Only the
addresses of its scripts differ.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from interface_html.languages import ENGLISH, Language
from interface_html.schema import PageName
from interface_html.tasks import FeedbackTask

TEMPLATES = Path(__file__).parent / "templates"
STYLE = "page.css"
ITEMS_PLACE = "<!-- items -->"
SHARED_SCRIPTS = (
    "language.js",
    "core.js",
    "segmentation.js",
    "diff.js",
    "rules.js",
    "ratings.js",
    "submitted.js",
    "suggestions.js",
    "conversations.js",
    "rows.js",
)
PAGE_SCRIPTS: dict[PageName, tuple[str, ...]] = {
    "annotation": (
        "overlap.js",
        "textview.js",
        "warnings.js",
        "severity.js",
        "reason.js",
        "cards.js",
        "evidence.js",
        "panels.js",
        "marking.js",
        "suggesting.js",
        "lanes.js",
        "differences.js",
        "adjudicating.js",
        "annotation.js",
    ),
    "comparison": ("reading.js", "deciding.js", "comparison.js"),
    "rating": ("deciding.js", "rating.js"),
}
STORE_SCRIPTS = (
    "files.js",
    "work.js",
    "store.js",
    "api.js",
    "dom.js",
    "notes.js",
    "guide.js",
    "skip.js",
    "shell.js",
)

_ENVIRONMENT = Environment(
    loader=FileSystemLoader(TEMPLATES),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)


def embedded_json(value) -> str:
    """JSON for a script element. It contains no `<`, so nothing in it can end the element."""
    return json.dumps(value).replace("<", "\\u003c")


def page_html(
    task: FeedbackTask, page: PageName, shared: str, own: str, language: Language = ENGLISH
) -> str:
    """The HTML of a page.

    Args:
      task: the task of the page.
      page: the name of the page.
      shared: address prefix of the files of interface_html/templates.
      own: address prefix of the task's own scripts.
      language: the language of the page's own texts.
    """
    task_scripts = [own + path.name for path in task.scripts]
    schema, *formats = task_scripts
    scripts = [
        schema,
        *(shared + name for name in SHARED_SCRIPTS),
        *formats,  # a task's format.js replaces the default format before it
        *(shared + name for name in (*STORE_SCRIPTS, *PAGE_SCRIPTS[page])),
    ]
    same = task.schema.language == language.code
    template = _ENVIRONMENT.get_template(f"{page}.html.j2")
    return template.render(
        schema=task.schema,
        page=page,
        scripts=scripts,
        style=shared + STYLE,
        noun=task.schema.fields.noun,
        t=language.text,
        language=language,
        # the task's texts are marked if they are in another language
        own_language=Markup("" if same else f' lang="{task.schema.language}" dir="auto"'),
        catalogue=_catalogue(language),
    )


def page_with_items(
    task: FeedbackTask, page: PageName, items: Sequence[Any], language: Language
) -> str:
    """A served page with items inside: it stores work in the browser, like one from a file."""
    text = page_html(task, page, shared="/templates/", own="/", language=language)
    return text.replace(ITEMS_PLACE, items_element(items))


def items_element(items: Sequence[Any]) -> str:
    """The element of a page that holds rows of items."""
    return f'<script type="application/json" id="items">{embedded_json(items)}</script>'


def lead_html(language: Language = ENGLISH) -> str:
    """The HTML of the lead's page, as the server serves it."""
    template = _ENVIRONMENT.get_template("lead.html.j2")
    return template.render(t=language.text, language=language, catalogue=_catalogue(language))


def _catalogue(language: Language) -> Markup | None:
    return None if language.is_english else Markup(embedded_json(language.catalogue))
