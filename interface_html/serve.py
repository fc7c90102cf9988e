"""Serve the pages of a task to several annotators. interface_html/serve.sh runs it.

fgrlhf feedback serve NAME items=items.json db=feedback.sqlite per_item=3
"""

import gc
import secrets
import socket
from collections.abc import Sequence
from pathlib import Path

import uvicorn
from pydantic import Field, PositiveFloat, PositiveInt

from fgrlhf.base.errors import UserError, counted
from fgrlhf.base.http_connections import SERVER_OPTIONS
from fgrlhf.cli.command_line import run_program
from fgrlhf.configs.strict import FilePath, StrictModel
from fgrlhf.data.names import name_key
from fgrlhf.scorers.service import is_local
from interface_html.checks import Plan, gold_tell
from interface_html.database import Database
from interface_html.format import Item
from interface_html.items import PROMPTS_HELP, read_items
from interface_html.languages import LANGUAGE_HELP, language_of
from interface_html.reliability import gold_documents
from interface_html.schema import ALL_PAGES, PAGES_HELP, PageName, needed_pages
from interface_html.server import create_app
from interface_html.stored import items_misfit
from interface_html.tasks import TASK_HELP, FeedbackTask, feedback_of


class ServeSettings(StrictModel):
    """The items, the annotators, and the database."""

    task: str = Field(description=TASK_HELP)
    db: FilePath = Field(
        default="outputs/feedback/feedback.sqlite",
        description="the database; created if it does not exist",
    )
    items: str | None = Field(
        default=None, description="items to add: items, samples or feedback, in the task's format"
    )
    prompts: str | None = Field(default=None, description=PROMPTS_HELP)
    pages: str = Field(
        default=ALL_PAGES, description=f"the pages that annotators get, {PAGES_HELP}"
    )
    per_item: PositiveInt = Field(default=1, description="number of annotators for each item")
    gold: str | None = Field(
        default=None,
        description="a feedback file whose rows are mixed in as hidden gold items, once for each"
        " annotator",
    )
    gold_every: int = Field(default=10, ge=2, description="every so many items, one is a gold item")
    repeat: float = Field(
        default=0,
        ge=0,
        le=0.5,
        description="share of items that come back hidden to the annotator who has submitted them",
    )
    lease_minutes: PositiveFloat = Field(
        default=60, description="after this time without activity an item goes to another annotator"
    )
    host: str = Field(default="127.0.0.1", description="address to listen on")
    port: int = Field(default=8765, ge=1, le=65535, description="port to listen on")
    hosts: str = Field(default="", description="more host names to accept, separated by commas")
    annotators: str = Field(
        default="",
        description="names, separated by commas: each gets a link with a token. A database with"
        " tokens keeps them at a start without names",
    )
    admin: bool = Field(
        default=False, description="serve the lead's page, /lead, and print its links"
    )
    language: str = Field(default="en", description=LANGUAGE_HELP)
    new_tokens: bool = Field(
        default=False,
        description="end all earlier links, also those of other annotators, and print new ones",
    )


def _check_port(settings: ServeSettings) -> None:
    """Raise `UserError` if another program has the port, before links with tokens are printed."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((settings.host, settings.port))
        except OSError as error:
            raise UserError(
                f"port={settings.port} of host={settings.host} cannot be used: {error.strerror}."
                " Stop the program that has it, or set port=... to another one"
            ) from None


def allowed_hosts(settings: ServeSettings) -> list[str]:
    """The values of the Host header that the server accepts."""
    names = [in_address(settings.host), *_listed(settings.hosts)]
    if is_local(settings.host):
        names += ["127.0.0.1", "localhost", "[::1]"]
    with_ports = [f"{name}:{settings.port}" for name in names]
    return sorted({*names, *with_ports})


def in_address(host: str) -> str:
    """A host as addresses have it: IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


def _listed(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _different_names(names: Sequence[str]) -> list[str]:
    """The names, each in its first spelling only."""
    first: dict[str, str] = {}
    for name in names:
        first.setdefault(name_key(name), name)
    return list(first.values())


def serve(settings: ServeSettings) -> None:
    """Serve until interrupted. Raises `UserError` if the server cannot start."""
    task = feedback_of(settings.task)
    language = language_of(settings.language)
    annotators = _different_names(_listed(settings.annotators))
    if not is_local(settings.host) and not annotators:
        raise UserError(
            f"host={settings.host} can be reached from other machines: set annotators=anna,ben, so"
            " that each annotator gets a link with a token, or keep host=127.0.0.1"
        )
    _check_port(settings)
    schema = task.schema
    pages = needed_pages(schema, settings.pages)
    repeat_every = round(1 / settings.repeat) if settings.repeat else None
    plan = Plan(settings.gold_every, repeat_every)
    lease_seconds = settings.lease_minutes * 60
    database = Database(settings.db, schema.task, settings.per_item, lease_seconds, plan=plan)
    try:
        _add_items(task, database, settings)
        _print_links(database, pages[0], annotators, settings)
        hosts = allowed_hosts(settings)
        # a study that began with tokens keeps them: a name alone would open anyone's work
        app = create_app(task, database, hosts, database.has_tokens, language, pages)
        if settings.admin:
            # its statistics are slow to import, and most servers do without
            from interface_html.lead import Tokens, add_lead_page

            tokens = Tokens(admin=secrets.token_urlsafe(24), reader=secrets.token_urlsafe(24))
            add_lead_page(app, task, database, tokens, language)
            place = f"{address_of(settings)}/lead#token="
            print(f"lead, until the server stops: {place}{tokens.admin}")
            print(f"read only, until the server stops: {place}{tokens.reader}", flush=True)
        # The modules loaded so far stay. Searching them for garbage would stop all requests for 20
        # to 50 ms.
        gc.collect()
        gc.freeze()
        uvicorn.run(
            app,
            host=settings.host,
            port=settings.port,
            proxy_headers=False,  # nothing reads the address of the client
            # Longer than annotators think, so that a submission seldom meets a connection that the
            # server is just closing.
            timeout_keep_alive=75,  # seconds
            limit_concurrency=512,
            **SERVER_OPTIONS,
        )
    finally:
        database.close()


def _add_items(task: FeedbackTask, database: Database, settings: ServeSettings) -> None:
    """Add the items and the gold items of the settings.

    Raises:
      UserError: there are no items, or gold items could be told from others.
    """
    items = read_items(task, settings.items, settings.prompts) if settings.items else []
    study = [*database.items(), *items]
    if not study:
        raise UserError(f"{settings.db} has no items yet: add some with items=...")
    reason = items_misfit(task.schema, [*database.items(), *database.gold_items()])
    if reason is not None:
        raise UserError(f"{settings.db}: {reason}")
    _refuse_gold_texts(task, database, items, settings)
    gold = _gold_items(task, study, settings.gold) if settings.gold else []
    if items or gold:
        all_gold = [*database.gold_items(), *(item for item, _ in gold)]
        tell = gold_tell(task.schema, study, all_gold)
        if tell is not None:
            raise UserError(f"annotators could tell gold items from others: {tell}")
    if settings.items:
        print(f"{counted(database.add_items(items), 'item')} added")
    if settings.gold:
        print(f"{counted(database.add_gold(gold), 'gold item')} added")


def _refuse_gold_texts(
    task: FeedbackTask, database: Database, items: Sequence[Item], settings: ServeSettings
) -> None:
    """Raise `UserError` if a new item has the texts of a gold item of an earlier start."""
    gold = {task.content(item): item.id for item in database.gold_items()}
    stored = {item.id for item in database.items()}
    for item in items:
        if item.id not in stored and task.content(item) in gold:
            raise UserError(
                f"{settings.items}: item {item.id!r} has the texts of gold item"
                f" {gold[task.content(item)]!r}, so annotators would see them twice: leave out the"
                " row"
            )


def _gold_items(
    task: FeedbackTask, study: Sequence[Item], path: str
) -> list[tuple[Item, list[PageName]]]:
    """The items of a gold file, each with the pages whose judgement is known.

    Args:
      task: the task.
      study: the items of the study.
      path: of the gold file.

    Raises:
      UserError: an item has no judgement, or the study has the same item.
    """
    gold = []
    items = read_items(task, path)
    ordinary = {task.content(item): item.id for item in study}
    for item in items:
        pages = [page for page in task.schema.pages if page in gold_documents(item)]
        if not pages:
            raise UserError(
                f"{path}: gold item {item.id!r} has no judgement, so annotators cannot be compared"
                " with it: add the judgement or leave out the row"
            )
        if task.content(item) in ordinary:
            raise UserError(
                f"{path}: gold item {item.id!r} has the texts of item"
                f" {ordinary[task.content(item)]!r} of the study, so annotators would see them"
                " twice: leave out the row here, and name the file in `reliability` gold=..."
            )
        gold.append((item, pages))
    return gold


def address_of(settings: ServeSettings) -> str:
    """The address of the server in the links."""
    host = (_listed(settings.hosts) or [in_address(settings.host)])[0]
    return f"http://{host}:{settings.port}"


def _print_links(
    database: Database, page: PageName, annotators: Sequence[str], settings: ServeSettings
) -> None:
    """Print a link for each new annotator, with a token; others keep theirs.

    It opens the first `page`, which has links to the others.
    """
    place = f"{address_of(settings)}/templates/{page}.html"
    if settings.new_tokens:
        database.end_tokens()
    for name in map(database.spelling, annotators):
        if database.has_token(name):
            print(f"{name}: the link of an earlier start (new_tokens=true prints new ones)")
            continue
        token = database.new_token(name)
        print(f"{name}: {place}#token={token}")
    if not annotators and database.has_tokens:
        print(
            "the annotators' links of an earlier start are needed (annotators=NAME adds one;"
            " new_tokens=true without annotators ends them all, and the pages ask for names)"
        )
    elif not annotators:
        print(f"open {place} (it asks for a name; {page}.html#annotator=NAME has one)")
    print(f"stored in {Path(settings.db).resolve()}; Ctrl+C stops the server", flush=True)


if __name__ == "__main__":
    run_program(serve, ServeSettings)
