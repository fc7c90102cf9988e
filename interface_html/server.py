"""The pages and their API over one database. tests/test_server.py shows every answer."""

import hashlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import unquote

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import Field
from starlette.exceptions import HTTPException

from fgrlhf.config import StrictModel
from interface_html.database import Assignment, Database, Refused
from interface_html.guard import Guard
from interface_html.pages import TEMPLATES
from interface_html.rules import annotation_problems, comparison_problems
from interface_html.schema import Schema

KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
PageName = Literal["annotation", "comparison"]
Number = Annotated[int, Field(ge=0, lt=2**53)]


class Next(StrictModel):
    page: PageName


class Draft(StrictModel):
    """`revision`: of the draft this one was made from; 0 for the first."""

    revision: Number
    state: dict[str, Any]


class Submit(StrictModel):
    uuid: str = Field(pattern="^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")
    assignment: Number
    text_sha256: str = Field(
        pattern="^[0-9a-f]{64}$", description="of the text (or texts) judged, in the row's order"
    )
    seconds: float = Field(ge=0, le=1e7, description="active time")
    guideline: str = Field(max_length=100)
    doc: dict[str, Any]


def static_files(schema_file: str | Path) -> dict[str, tuple[bytes, str]]:
    """The only paths that are files: their bytes and types, read once."""
    paths = {
        f"/templates/{path.name}": path for path in TEMPLATES.iterdir() if path.suffix in KINDS
    }
    paths["/schema.js"] = Path(schema_file)
    return {
        address: (path.read_bytes(), f"{KINDS[path.suffix]}; charset=utf-8")
        for address, path in paths.items()
    }


def judged_sha256(schema: Schema, row, page: str) -> str:
    """What the client saw: the text of an annotation, the texts of a comparison joined by
    U+0000.
    """
    keys = [schema.fields.text] if page == "annotation" else schema.fields.answers
    return hashlib.sha256("\0".join(row[key] for key in keys).encode()).hexdigest()


def create_app(
    schema: Schema, schema_file: str | Path, database: Database, hosts: Sequence[str], tokens: bool
) -> FastAPI:
    """`tokens`: annotators are known by their tokens; else (this machine only) by the name they
    give.
    """
    app = FastAPI(
        title=f"Feedback: {schema.title}",
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json" if not tokens else None,
    )
    app.add_middleware(Guard, hosts=hosts)
    _explain_errors(app)
    _serve_files(app, static_files(schema_file))

    async def annotator(request: Request) -> str:  # async: it waits for nothing, so needs no thread
        if tokens:
            scheme, _, token = request.headers.get("authorization", "").partition(" ")
            name = database.annotator_of(token) if scheme.lower() == "bearer" and token else None
            if name is None:
                raise Refused(401, "open the link you were given: it holds your token")
            return name
        name = unquote(request.headers.get("x-annotator", "local"), errors="replace")
        if not 0 < len(name) <= 60 or not name.isprintable():
            raise Refused(400, "x-annotator must be a name of 1 to 60 characters")
        return name

    Who = Annotated[str, Depends(annotator)]

    @app.post("/api/next")
    def next_item(body: Next, who: Who):
        found = None
        if body.page == "annotation" or schema.compares:
            found = database.next(who, body.page, len(schema.fields.answers))
        done, total = database.progress(who, body.page)
        about = {
            "annotator": who,
            "done": done,
            "total": total,
            "guideline": schema.guideline_version,
        }
        return JSONResponse({**about, "assignment": found and _shown(found)})

    @app.put("/api/drafts/{number}")
    def save_draft(number: Number, body: Draft, who: Who):
        mine = database.assignment(number, who)
        return JSONResponse({"revision": database.save_draft(mine, body.revision, body.state)})

    @app.post("/api/submissions", status_code=201)
    def submit(body: Submit, who: Who):
        mine = database.assignment(body.assignment, who)
        problems = submission_problems(schema, mine, body)
        if problems:
            content = {
                "error": "the submission breaks the rules",
                "problems": [{"field": f, "reason": r} for f, r in problems],
            }
            return JSONResponse(content, 422)
        new = database.submit(mine, body.uuid, body.doc, body.seconds, body.guideline)
        return JSONResponse({"uuid": body.uuid}, 201 if new else 200)

    @app.get("/api/health")
    async def health():
        return {"task": schema.task}

    return app


def submission_problems(schema: Schema, mine: Assignment, body: Submit) -> list[tuple[str, str]]:
    """Every rule that the submission breaks, as field and reason."""
    problems = []
    if body.text_sha256 != judged_sha256(schema, mine.item.row, mine.page):
        problems.append(
            ("text_sha256", "is not of this item's text: the page shows something else; reload it")
        )
    if body.guideline != schema.guideline_version:
        problems.append(
            (
                "guideline",
                f"is {body.guideline!r}, now it is {schema.guideline_version!r}: reload the page",
            )
        )
    if mine.page == "comparison":
        problems += comparison_problems(schema, body.doc)
        if not problems and body.doc["order"] != mine.shown:
            problems.append(("order", f"is not the order drawn for this item, {mine.shown}"))
        return problems
    errors = body.doc.get("errors")
    for i, error in enumerate(errors if isinstance(errors, list) else ()):
        if isinstance(error, dict) and not isinstance(error.get("quote"), str):
            problems.append((f"feedback.errors[{i}].quote", "is missing: the marked text itself"))
    return problems + annotation_problems(schema, mine.item.row, body.doc)


def _shown(found: Assignment) -> dict[str, Any]:
    """What a page needs of an assignment. Nothing that others or earlier files said of the item."""
    row = {
        key: value for key, value in found.item.row.items() if key not in ("feedback", "preference")
    }
    draft = found.draft and {"revision": found.draft[0], "state": found.draft[1]}
    return {
        "id": found.id,
        "item": {"id": found.item.id, **row},
        "order": found.shown,
        "lease_until": found.lease_until,
        "draft": draft,
    }


def _serve_files(app: FastAPI, files: dict[str, tuple[bytes, str]]) -> None:
    def file_at(address: str):
        body, kind = files[address]
        return lambda: Response(body, media_type=kind)

    for address in files:
        app.add_api_route(address, file_at(address), methods=["GET"], include_in_schema=False)
    app.add_api_route("/favicon.ico", lambda: Response(status_code=204), include_in_schema=False)
    app.add_api_route(
        "/",
        lambda: Response(status_code=307, headers={"location": "/templates/annotation.html"}),
        include_in_schema=False,
    )


def _explain_errors(app: FastAPI) -> None:
    """Every refusal has one shape: {error, problems?}."""

    @app.exception_handler(Refused)
    async def refused(_, error: Refused):
        return JSONResponse({"error": error.reason}, error.status)

    @app.exception_handler(HTTPException)
    async def http(_, error: HTTPException):
        return JSONResponse({"error": str(error.detail)}, error.status_code, headers=error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_, error: RequestValidationError):
        problems = [
            {"field": ".".join(map(str, one["loc"])), "reason": one["msg"]}
            for one in error.errors()
        ]
        return JSONResponse({"error": "the request is not understood", "problems": problems}, 422)

    @app.exception_handler(sqlite3.Error)
    async def not_kept(_, error: sqlite3.Error):
        reason = (
            f"not saved, the server's storage refused ({error}). Keep this page open and submit"
            " again later."
        )
        return JSONResponse({"error": reason}, 507)
