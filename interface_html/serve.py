"""Serve the pages to several annotators. `bash serve.sh` runs it.

python -m interface_html.serve items=items.json db=feedback.sqlite per_item=3
"""

import ipaddress
from pathlib import Path

import uvicorn
from pydantic import Field, PositiveFloat, PositiveInt

from fgrlhf.cli.command_line import settings_from
from fgrlhf.config import StrictModel
from fgrlhf.errors import UserError, run_main
from interface_html.database import Database
from interface_html.items import read_items
from interface_html.schema import QA_SCHEMA, load_schema
from interface_html.server import create_app


class Settings(StrictModel):
    """What is served, to whom, and where it is kept."""

    db: str = Field(
        "outputs/feedback/feedback.sqlite", description="the database; made where it is not there"
    )
    items: str | None = Field(
        None, description="items to add: items, or whatever items.py makes items of"
    )
    questions: str | None = Field(
        None, description="the split the samples are of, for their reference answers"
    )
    schema_file: str = Field(str(QA_SCHEMA), description="the task's schema")
    per_item: PositiveInt = Field(1, description="annotators of each item")
    lease_minutes: PositiveFloat = Field(
        60, description="an item not touched for so long is given to somebody else"
    )
    host: str = "127.0.0.1"
    port: int = Field(8765, ge=1, le=65535)
    hosts: str = Field("", description="further names the server answers for, separated by commas")
    annotators: str = Field(
        "", description="names separated by commas: each gets a link with a token of their own"
    )


def is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def allowed_hosts(settings: Settings) -> list[str]:
    """What may stand in a request's Host header."""
    names = [settings.host, *(name.strip() for name in settings.hosts.split(",") if name.strip())]
    names += ["127.0.0.1", "localhost", "[::1]"] if is_local(settings.host) else []
    return sorted({form for name in names for form in (name, f"{name}:{settings.port}")})


def serve(settings: Settings) -> None:
    """Serve until interrupted. Raises `UserError` where it cannot start."""
    schema = load_schema(settings.schema_file)
    names = [name.strip() for name in settings.annotators.split(",") if name.strip()]
    if not is_local(settings.host) and not names:
        raise UserError(
            f"host={settings.host} can be reached from other machines: name the annotators"
            " (annotators=anna,ben), each gets a link with a token; or leave host at 127.0.0.1"
        )
    database = Database(settings.db, schema.task, settings.per_item, settings.lease_minutes * 60)
    try:
        if settings.items:
            print(
                f"{database.add_items(read_items(schema, settings.items, settings.questions))}"
                " items added"
            )
        if not database.items():
            raise UserError(f"{settings.db} has no items yet: give some with items=...")
        place = f"http://{(settings.hosts.split(',')[0].strip() or settings.host)}:{settings.port}/templates"
        pages = ["annotation", *(["comparison"] if schema.compares else [])]
        for name in names:
            token = database.new_token(name)
            print("\n".join(f"{name}: {place}/{page}.html#token={token}" for page in pages))
        if not names:
            print(
                "\n".join(
                    f"open {place}/{page}.html (or {page}.html#annotator=NAME)" for page in pages
                )
            )
        print(f"kept in {Path(settings.db).resolve()}; Ctrl+C stops", flush=True)
        app = create_app(
            schema, settings.schema_file, database, allowed_hosts(settings), tokens=bool(names)
        )
        uvicorn.run(
            app,
            host=settings.host,
            port=settings.port,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_keep_alive=5,
            h11_max_incomplete_event_size=16384,
            http="h11",
            ws="none",
            limit_concurrency=512,
        )
    finally:
        database.close()


if __name__ == "__main__":
    run_main(lambda: serve(settings_from(Settings)))
