"""The server: the pages of a task and their API, with one database."""

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import unquote

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import Field
from starlette.exceptions import HTTPException

from fgrlhf.base.records import Complaint
from fgrlhf.configs.strict import StrictModel
from interface_html.assignments import Assignment, Receipt, RefusedError
from interface_html.checks import uniform_item
from interface_html.database import Database
from interface_html.differences import (
    decision_form_problems,
    undecided_all_bad_problems,
    undecided_difference_problems,
)
from interface_html.format import COMPARISONS, FEEDBACK_KEYS, SUGGESTION_KEYS
from interface_html.guard import HEADERS, Guard
from interface_html.languages import ENGLISH, Language
from interface_html.ratings import rating_problems
from interface_html.render import TEMPLATES, page_html
from interface_html.rules import annotation_problems, comparison_problems
from interface_html.schema import PageName, Schema
from interface_html.skips import skip_problems
from interface_html.submitted import without_names
from interface_html.suggestions import decision_problems, shown_suggestions, undecided_problems
from interface_html.tasks import FeedbackTask

HTML = "text/html; charset=utf-8"
MEDIA_TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}
LONGEST_NAME = 60
KIND_TEXTS = {"label", "help", "examples"}
Number = Annotated[int, Field(ge=0, lt=2**53)]
SUBMISSIONS_HELP = "the number of submissions of this assignment that the page knows"


class Next(StrictModel):
    """A request for an annotator's next item."""

    page: PageName


class Draft(StrictModel):
    """A request to keep an unfinished item."""

    revision: Number = Field(
        description="of the draft that this one is based on; 0 for the first since a submission"
    )
    submissions: Number = Field(default=0, description=SUBMISSIONS_HELP)
    state: dict[str, Any]


class SkipBody(StrictModel):
    """A request to skip an item."""

    reason: str = Field(description="the name of a skip reason")
    text: str = Field(default="", description="an explanation")
    submissions: Number = Field(default=0, description=SUBMISSIONS_HELP)


class Submit(StrictModel):
    """A request to submit an item."""

    uuid: str = Field(pattern="^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")
    assignment: Number
    text_sha256: str = Field(
        pattern="^[0-9a-f]{64}$", description="of the judged texts, in the order of the row"
    )
    seconds: float = Field(ge=0, le=1e7, description="active time")
    wall: float | None = Field(
        default=None, ge=0, le=1e9, description="time for which the item was open"
    )
    submissions: Number = Field(default=0, description=SUBMISSIONS_HELP)
    confirmed: bool = Field(
        default=False, description="replace submissions that the page does not know"
    )
    guideline: str = Field(max_length=100)
    doc: dict[str, Any]


def static_files(
    task: FeedbackTask, language: Language = ENGLISH, pages: Sequence[PageName] | None = None
) -> dict[str, tuple[bytes, str]]:
    """All served files: their addresses, bytes and media types.

    Args:
      task: the task.
      language: the language of the pages.
      pages: those to serve; None for all of the task.
    """
    files: dict[str, tuple[bytes, str]] = {}
    for page in pages or task.schema.pages:
        html = page_html(task, page, shared="", own="../", language=language)
        files[f"/templates/{page}.html"] = (html.encode(), HTML)
    for path in TEMPLATES.iterdir():
        if path.suffix in MEDIA_TYPES:
            files[f"/templates/{path.name}"] = (path.read_bytes(), MEDIA_TYPES[path.suffix])
    for path in task.scripts:
        files[f"/{path.name}"] = (path.read_bytes(), MEDIA_TYPES[path.suffix])
    return files


def judged_sha256(schema: Schema, row: Mapping[str, Any], page: str) -> str:
    """The hash of the judged texts: the annotated ones, or all outputs, joined by U+0000."""
    keys = schema.marked_outputs if page == "annotation" else schema.fields.outputs
    return hashlib.sha256("\0".join(row[key] for key in keys).encode()).hexdigest()


def guideline_sha256(schema: Schema) -> str:
    """The hash of all that the guideline panel and the help on kinds and scales show, as JSON."""
    shown = schema.model_dump(
        mode="json",
        include={
            "guideline": True,
            "page_guidelines": True,
            "examples": True,
            "faq": True,
            "errors": {"__all__": KIND_TEXTS},
            "missing": {"__all__": KIND_TEXTS},
            "severities": {"__all__": {"label"}},
            "comparison": True,
            "ratings": {"__all__": {"label", "help", "anchors"}},
        },
    )
    if not shown["page_guidelines"]:
        del shown["page_guidelines"]  # the hash of schemas from before this key
    return hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()


# async: it never waits, so it needs no thread
async def _annotator(request: Request) -> str:
    """The sender of a request: the owner of its token or, without tokens, the header's name.

    `needs` in a refusal tells the page what to ask for. A page of another study, which was open
    when the server was stopped, is refused: its assignments have the same numbers.
    """
    study = request.headers.get("x-study")
    if study is not None and study != request.app.state.study:
        reason = "the server has another study than this page, which was opened before: reload it"
        raise RefusedError(409, reason)
    annotator_of = request.app.state.annotator_of
    if annotator_of is not None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        name = annotator_of(token) if scheme.lower() == "bearer" and token else None
        if name is None:
            reason = "open the link that you received: it holds your token"
            raise RefusedError(401, reason, needs="token")
        return name
    header = request.headers.get("x-annotator")
    if header is None:
        raise RefusedError(401, "give your name, so that your work is yours", needs="name")
    name = " ".join(unquote(header, errors="replace").split())
    if not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        raise RefusedError(400, f"x-annotator must be a name of 1 to {LONGEST_NAME} characters")
    return request.app.state.spelling(name)


Annotator = Annotated[str, Depends(_annotator)]


def create_app(
    task: FeedbackTask,
    database: Database,
    hosts: Sequence[str],
    tokens: bool,
    language: Language = ENGLISH,
    pages: Sequence[PageName] | None = None,
) -> FastAPI:
    """The server's application.

    Args:
      task: the task whose pages are served.
      database: the storage.
      hosts: the accepted values of the Host header.
      tokens: identify annotators by their tokens; otherwise by the name they send, which is safe on
        one machine only.
      language: the language of the pages.
      pages: those that annotators get, in the task's order; None for all of them.
    """
    schema = task.schema
    served = pages or schema.pages
    app = FastAPI(
        title=f"Feedback: {schema.title}",
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json" if not tokens else None,
    )
    app.add_middleware(Guard, hosts=hosts)
    app.state.study = database.study
    app.state.annotator_of = database.annotator_of if tokens else None
    app.state.spelling = database.spelling
    _explain_errors(app)
    start = f"/templates/{served[0]}.html"
    _serve_files(app, static_files(task, language, served), start)
    _add_assignments(app, schema, database, served)
    _add_work(app, schema, database)

    @app.get("/api/health")
    async def health():
        return {"task": schema.task}

    return app


def _add_assignments(
    app: FastAPI, schema: Schema, database: Database, pages: Sequence[PageName]
) -> None:
    """The addresses under which a page gets items, keeps them, skips and reopens them."""

    def as_json(assignment: Assignment) -> dict[str, Any]:
        content = _assignment_json(schema, assignment)
        content["lease_seconds"] = database.lease_seconds
        if database.has_checks:
            content["item"] = uniform_item(schema, assignment.id, content["item"])
        return content

    @app.post("/api/next")
    def next_item(body: Next, annotator: Annotator):
        assignment = None
        if body.page in pages:
            assignment = database.next(annotator, body.page, len(schema.fields.outputs))
        done, total = database.progress(annotator, body.page)
        content = {
            "annotator": annotator,
            "done": done,
            "total": total,
            "guideline": schema.guideline_version,
            "assignment": None if assignment is None else as_json(assignment),
        }
        return JSONResponse(content)

    @app.get("/api/assignments")
    def own_assignments(page: PageName, annotator: Annotator):
        rows = database.own_assignments(annotator, page)
        skips = database.own_skips(annotator, page)
        entries = []
        for number, item, done in rows:
            # an id could tell hidden items from others
            name = str(number) if database.has_checks else item
            entry = {"id": number, "item": name, "done": done, "skipped": skips.get(number)}
            entries.append(entry)
        content = {
            "assignments": entries,
            "pages": pages,
            "study": database.study,
            "identity": "name" if app.state.annotator_of is None else "token",
            "annotator": annotator,
            "known": database.is_known(annotator),
            "submissions": database.submission_count(annotator),
        }
        return JSONResponse(content)

    @app.get("/api/assignments/{number}")
    def one_assignment(number: Number, annotator: Annotator):
        return JSONResponse({"assignment": as_json(database.assignment(number, annotator))})

    @app.post("/api/assignments/{number}/active")
    def renew(number: Number, annotator: Annotator):
        assignment = database.assignment(number, annotator)
        return JSONResponse(
            {
                "held": database.renew(assignment),
                "revision": assignment.draft[0] if assignment.draft else 0,
                "submissions": assignment.submissions,
            }
        )

    @app.post("/api/assignments/{number}/skip")
    def skip(number: Number, body: SkipBody, annotator: Annotator):
        assignment = database.assignment(number, annotator)
        problems = skip_problems(schema, {"reason": body.reason, "text": body.text})
        if problems:
            return _refused_json("the skip breaks the rules", problems)
        database.skip(assignment, body.reason, body.text.strip(), body.submissions)
        return JSONResponse({})

    @app.post("/api/assignments/{number}/reopen")
    def reopen(number: Number, annotator: Annotator):
        return JSONResponse({"held": database.reopen(database.assignment(number, annotator))})


def _add_work(app: FastAPI, schema: Schema, database: Database) -> None:
    """The addresses to which a page sends drafts and submissions."""
    guideline = guideline_sha256(schema)

    @app.put("/api/drafts/{number}")
    def save_draft(number: Number, body: Draft, annotator: Annotator):
        assignment = database.assignment(number, annotator)
        revision = database.save_draft(assignment, body.revision, body.state, body.submissions)
        return JSONResponse({"revision": revision, "held": database.is_held(assignment)})

    @app.post("/api/submissions", status_code=201)
    def submit(body: Submit, annotator: Annotator):
        assignment = database.assignment(body.assignment, annotator)
        problems = _submission_problems(schema, assignment, body)
        if problems:
            return _refused_json("the submission breaks the rules", problems)
        receipt = Receipt(body.seconds, body.guideline, body.wall, guideline)
        is_new = database.submit(
            assignment, body.uuid, body.doc, receipt, body.submissions, body.confirmed
        )
        content: dict[str, Any] = {"uuid": body.uuid}
        content["submissions"] = database.revision_of(body.uuid)
        if not content["submissions"]:  # not stored: it is equal to the latest one
            latest = database.assignment(body.assignment, annotator)
            content["unchanged"] = True
            content["submissions"] = latest.submissions
            content["revision"] = latest.draft[0] if latest.draft else 0
        return JSONResponse(content, 201 if is_new else 200)


def _submission_problems(schema: Schema, assignment: Assignment, body: Submit) -> list[Complaint]:
    """All rules that the submission breaks, as field and reason."""
    row = assignment.item.row
    complaints: list[Complaint] = []
    if body.text_sha256 != judged_sha256(schema, row, assignment.page):
        reason = "does not match this item's text, so the page shows another text: reload it"
        complaints.append(("text_sha256", reason))
    if body.guideline != schema.guideline_version:
        reason = f"is {body.guideline!r}, but is now {schema.guideline_version!r}: reload the page"
        complaints.append(("guideline", reason))
    if assignment.page == "annotation":
        complaints += _missing_quotes(body.doc)
        complaints += annotation_problems(schema, row, body.doc)
        complaints += decision_problems(row, body.doc)
        complaints += decision_form_problems(schema, row, body.doc)
        if complaints:
            return complaints
        complaints += undecided_problems(row, body.doc)
        return complaints + undecided_difference_problems(schema, row, body.doc)
    if assignment.page == "rating":
        complaints += rating_problems(schema, body.doc)
    else:
        complaints += comparison_problems(schema, body.doc)
        if not complaints:
            complaints += undecided_all_bad_problems(row.get(COMPARISONS, ()), body.doc)
    shown = _order(schema, assignment)
    if not complaints and body.doc["order"] != shown:
        reason = f"is not the order drawn for this item, {shown}"
        complaints.append(("order", reason))
    return complaints


def _missing_quotes(doc: Mapping[str, Any]) -> Iterator[Complaint]:
    errors = doc.get("errors")
    if not isinstance(errors, list):
        return
    for i, error in enumerate(errors):
        if isinstance(error, dict) and not isinstance(error.get("quote"), str):
            yield f"feedback.errors[{i}].quote", "is missing: the marked text itself"


def _refused_json(error: str, complaints: Sequence[Complaint]) -> JSONResponse:
    """The response to a document that breaks rules."""
    problems = [{"field": field, "reason": reason} for field, reason in complaints]
    return JSONResponse({"error": error, "problems": problems}, 422)


def _order(schema: Schema, assignment: Assignment) -> list[int]:
    """The order in which the page shows the outputs."""
    return assignment.shown or list(range(len(schema.fields.outputs)))


def _assignment_json(schema: Schema, assignment: Assignment) -> dict[str, Any]:
    """An assignment as a page gets it.

    Earlier feedback and hidden suggestions are left out, and the names of the annotators between
    whom an adjudicator decides.
    """
    row = assignment.item.row
    left_out = FEEDBACK_KEYS if shown_suggestions(row) else (*FEEDBACK_KEYS, *SUGGESTION_KEYS)
    texts = {key: value for key, value in without_names(row).items() if key not in left_out}
    draft = None
    if assignment.draft is not None:
        revision, state = assignment.draft
        draft = {"revision": revision, "state": state}
    return {
        "id": assignment.id,
        "item": {"id": assignment.item.id, **texts},
        "order": _order(schema, assignment),
        "lease_until": assignment.lease_until,
        "draft": draft,
        "submissions": assignment.submissions,
        "submitted": assignment.submitted,
        "skipped": assignment.skipped,
    }


def _serve_files(app: FastAPI, files: Mapping[str, tuple[bytes, str]], start: str) -> None:
    def file_at(address: str):
        body, media_type = files[address]
        return lambda: Response(body, media_type=media_type)

    for address in files:
        app.add_api_route(address, file_at(address), methods=["GET"], include_in_schema=False)
    app.add_api_route("/favicon.ico", lambda: Response(status_code=204), include_in_schema=False)
    app.add_api_route(
        "/",
        lambda: Response(status_code=307, headers={"location": start}),
        include_in_schema=False,
    )


def _explain_errors(app: FastAPI) -> None:
    """Give all error responses the form {error, problems?}."""
    security_headers = {name.decode(): value.decode() for name, value in HEADERS}

    @app.exception_handler(RefusedError)
    async def refused(_, error: RefusedError):
        return JSONResponse({"error": error.reason, **error.details}, error.status)

    @app.exception_handler(HTTPException)
    async def http(_, error: HTTPException):
        return JSONResponse({"error": str(error.detail)}, error.status_code, headers=error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_, error: RequestValidationError):
        problems = [
            {"field": ".".join(map(str, problem["loc"])), "reason": problem["msg"]}
            for problem in error.errors()
        ]
        return JSONResponse({"error": "the request is malformed", "problems": problems}, 422)

    @app.exception_handler(Exception)
    async def failed(_, error: Exception):
        """A mistake in this program, which it prints. `Guard` does not see this response."""
        reason = "the server failed, and its output says why: tell the lead of the study"
        return JSONResponse({"error": reason}, 500, headers=security_headers)

    @app.exception_handler(sqlite3.Error)
    async def not_stored(_, error: sqlite3.Error):
        reason = (
            f"not saved: the server cannot store it ({error}). Keep this page open and submit again"
            " later."
        )
        return JSONResponse({"error": reason}, 507)
