"""Requests with a condition: `If-None-Match` answers 304, `If-Match` refuses to change what has changed.

Every route with the path of one resource, or a path that goes on behind it, has them without own code. An
`ETag` has two parts: what changing routes write, which `If-Match` compares, and the whole answer, which
`If-None-Match` compares.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from phalanx.core.tenancy.principals import WHOLE
from phalanx.errors import PreconditionFailed, UserError
from phalanx.kit.text import job_label, study_label
from phalanx.server.context import Context, in_thread
from phalanx.store.database import PRECONDITION, Precondition, Tx
from phalanx.store.tags.rows import Resource, tag_of

RESOURCES = {
    "/api/v1/jobs/{num}": Resource.JOB,
    "/api/v1/studies/{num}": Resource.STUDY,
    "/api/v1/projects/{name}/schedules/{schedule}": Resource.SCHEDULE,
    "/api/v1/projects/{name}/templates/{template}": Resource.TEMPLATE,
    "/api/v1/templates/{template}": Resource.TEMPLATE,
    "/api/v1/projects/{name}/secrets/{secret}": Resource.SECRET,
    "/api/v1/secrets/{secret}": Resource.SECRET,
    "/api/v1/projects/{name}": Resource.PROJECT,
    "/api/v1/pools/{name}": Resource.POOL,
    "/api/v1/nodes/{name}": Resource.NODE,
    "/api/v1/accounts/{name}": Resource.ACCOUNT,
    "/api/v1/groups/{name}": Resource.GROUP,
    "/api/v1/cost/budgets/{scope}/{name}": Resource.BUDGET,
    "/api/v1/scheduler/policy": Resource.POLICY,
}
"""The paths of single resources."""
READS = frozenset({"GET", "HEAD"})
_MAX_LENGTH = 1000
_ETAG = re.compile(r'(W/)?"([\x21\x23-\x7e\x80-\xff]*)"')
_REPEAT = "read it again, and repeat the change with its ETag if it is still right"
_OF_PROJECT = (Resource.SCHEDULE, Resource.TEMPLATE, Resource.SECRET)
Handler = Callable[[Request], Awaitable[Response]]


def resource_of(methods: frozenset[str], path: str) -> Resource | None:
    """The resource of a route: of a read the one of its whole path, of a change the one before it."""
    if methods <= READS:
        return RESOURCES.get(path)
    found = [one for one in RESOURCES if path == one or path.startswith(f"{one}/")]
    return RESOURCES[max(found, key=len)] if found else None


async def answer_read(kind: Resource, request: Request, handler: Handler) -> Response:
    """The answer to a read, with its `ETag`; 304 without a body where the client has it."""
    # Before the answer is made: with a change in between, a later `If-Match` fails, and never the reverse.
    tag = await in_thread(_read_tag, kind, request)
    response = await handler(request)
    if response.status_code != 200 or tag is None:
        return response
    etag = f'"{tag}.{hashlib.sha256(bytes(response.body)).hexdigest()[:16]}"'
    response.headers["ETag"] = etag
    known = _list_of(request, "If-None-Match")
    if known is None or not (known == ["*"] or etag.strip('"') in [_opaque(one) for one in known]):
        return response
    kept = {
        name: one for name, one in response.headers.items() if name in ("etag", "cache-control")
    }
    return Response(status_code=304, headers=kept)


def _read_tag(kind: Resource, request: Request) -> str | None:
    values = _values(kind, request)

    def work(tx: Tx) -> str | None:
        found = tag_of(tx, kind, values)
        if found is None and kind is Resource.TEMPLATE:
            # A project without a template of this name uses the one of the whole platform.
            found = tag_of(tx, kind, {**values, "project": WHOLE})
        return found

    return _context(request).platform.store.view(work)


async def make_change(kind: Resource, request: Request, handler: Handler) -> Response:
    """The answer to a change, which takes place only under the conditions of the request.

    Raises PreconditionFailed; the state is compared in the transaction of the change.
    """
    wanted, absent = _list_of(request, "If-Match"), _list_of(request, "If-None-Match")
    if wanted is None and absent is None:
        return await handler(request)
    if absent not in (None, ["*"]):
        raise UserError("If-None-Match of a change must be *", "give If-Match for a certain state")
    check = partial(_check, kind, _values(kind, request), wanted, absent is not None)
    # Also where the change turns out to change nothing, and begins no transaction.
    await in_thread(_context(request).platform.store.view, check)
    set_before = PRECONDITION.set(Precondition(check))
    try:
        return await handler(request)
    finally:
        PRECONDITION.reset(set_before)


def _check(
    kind: Resource, values: Mapping[str, str], wanted: list[str] | None, absent: bool, tx: Tx
) -> None:
    found = tag_of(tx, kind, values)
    if absent and found is not None:
        raise PreconditionFailed(f"{_name(kind, values)} exists already", "change it with If-Match")
    if wanted is None or (wanted == ["*"] and found is not None):
        return
    if found is None:
        raise PreconditionFailed(
            f"{_name(kind, values)} does not exist, so it is not as you read it", _REPEAT
        )
    # A weak tag names no exact state, so it matches none.
    strong = [_opaque(one) for one in wanted if not one.startswith("W/")]
    if found not in [one.partition(".")[0] for one in strong]:
        name = _name(kind, values)
        said = f"the settings of {name} have changed since you read them"
        if kind is not Resource.JOB:
            said = f"{name} has changed since you read it"
        raise PreconditionFailed(said, _REPEAT)


def _name(kind: Resource, values: Mapping[str, str]) -> str:
    """The resource in words."""
    if kind is Resource.POLICY:
        return "the scheduler's policy"
    number = values.get("num", "")
    if kind in (Resource.JOB, Resource.STUDY) and number.isdigit():
        label = job_label if kind is Resource.JOB else study_label
        return f"{kind.value} {label(int(number))}"
    own = values.get(kind.value) or values.get("name") or number
    return f"{kind.value} {own}"


def _list_of(request: Request, name: str) -> list[str] | None:
    """The tags of a header; None without it. Raises UserError."""
    said = ", ".join(request.headers.getlist(name))
    if name.lower() not in request.headers:
        return None
    said = said.strip()
    if said == "*":
        return ["*"]
    tags = [one.strip() for one in said.split(",")]
    if len(said) > _MAX_LENGTH or not all(_ETAG.fullmatch(one) for one in tags):
        raise UserError(f"{name} is not a list of tags", 'send the ETag of an answer: "…", or *')
    return tags


def _opaque(tag: str) -> str:
    return tag.removeprefix("W/").strip('"')


def _values(kind: Resource, request: Request) -> dict[str, str]:
    values = {name: str(one) for name, one in request.path_params.items()}
    if kind in _OF_PROJECT:
        values["project"] = values.get("name", WHOLE)
    return values


def _context(request: Request) -> Context:
    context = request.app.state.context
    assert isinstance(context, Context)
    return context


def _header(name: str, text: str) -> dict[str, Any]:
    schema = {"type": "string", "maxLength": _MAX_LENGTH}
    return {"name": name, "in": "header", "required": False, "schema": schema, "description": text}


_IF_MATCH = _header(
    "If-Match",
    "The `ETag` of the resource as it was read, or `*`: 412 when it has changed since, or is not there.",
)
_IF_ABSENT = _header("If-None-Match", "`*`: 412 when the resource exists already.")
_IF_CHANGED = _header("If-None-Match", "The `ETag` of an earlier answer: 304 when it is the same.")
_ETAG_HEADER = {"description": "Names this state.", "schema": {"type": "string"}}


def describe(path: str, method: str, operation: dict[str, Any]) -> None:
    """Add the conditions of a route to its part of the OpenAPI document."""
    methods = frozenset({method.upper()})
    if resource_of(methods, path) is None:
        return
    parameters = operation.setdefault("parameters", [])
    if methods <= READS:
        parameters.append(_IF_CHANGED)
        operation["responses"]["200"]["headers"] = {"ETag": _ETAG_HEADER}
        operation["responses"]["304"] = {"description": "The client has this state."}
        return
    parameters.append(_IF_MATCH)
    if methods == {"PUT"}:
        parameters.append(_IF_ABSENT)
