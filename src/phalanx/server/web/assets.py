"""The files of the web UI: an index, and scripts and styles with their digest in the name.

`web/` has the sources, and `make ui` writes `dist/`. Nothing here depends on the caller: what the UI shows
it asks from the API, so every replica answers it.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from functools import cache
from importlib import resources
from mimetypes import guess_type

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from phalanx.errors import NotFound
from phalanx.kit.text import parse_job_label, shorten
from phalanx.server.access import OPEN

router = APIRouter(include_in_schema=False)
INDEX = "index.html"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
"""The Content-Security-Policy of the UI: nothing inline, nothing of another host."""
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Vary": "Accept-Encoding",
}
# The index is asked for again at each visit; a file with another content has another name.
_REVALIDATE, _IMMUTABLE = "no-cache", "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class Asset:
    """One file of the UI, plain and compressed."""

    media_type: str
    plain: bytes
    packed: bytes


@cache
def assets() -> dict[str, Asset]:
    """Every file of the UI by its name; read once."""
    folder = resources.files("phalanx.server.web") / "dist"
    found = {}
    for one in folder.iterdir():
        plain = one.read_bytes()
        media_type = guess_type(one.name)[0] or "application/octet-stream"
        found[one.name] = Asset(media_type, plain, gzip.compress(plain, 9, mtime=0))
    return found


@router.get("/", openapi_extra=OPEN)
def get_front(job: str = "") -> Response:
    """Lead to the web UI; with `job`, such as j-12, to that job, for links of dashboards."""
    num = parse_job_label(job[:30])
    return RedirectResponse("ui/" if num is None else f"ui/#/jobs/{num}", status_code=303)


@router.get("/ui", openapi_extra=OPEN)
def get_ui_without_slash() -> Response:
    """Lead to the index: its addresses are relative to its folder."""
    return RedirectResponse("ui/", status_code=303)


@router.get("/ui/", openapi_extra=OPEN)
def get_ui(request: Request) -> Response:
    """The index of the web UI."""
    return _answer(request, INDEX)


@router.get("/ui/{name}", openapi_extra=OPEN)
def get_asset(request: Request, name: str) -> Response:
    """A script, a style sheet or a text of the web UI. Raises NotFound."""
    return _answer(request, name)


def _answer(request: Request, name: str) -> Response:
    found = assets().get(name)
    if found is None:
        raise NotFound(
            f"the web UI has no file {shorten(name)}", "reload the page: it was upgraded"
        )
    headers = dict(_HEADERS)
    headers["Cache-Control"] = _IMMUTABLE if "-" in name else _REVALIDATE
    body = found.plain
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"], body = "gzip", found.packed
    return Response(body, media_type=found.media_type, headers=headers)
