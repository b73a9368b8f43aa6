"""Errors of the REST API as statuses of gRPC, with the details of the standard error model.

Details: `google.rpc.ErrorInfo` has the code, the hint and whether to try again; `BadRequest` has the
faults of a spec; `RetryInfo` says when to try again.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from pydantic import ValidationError

from phalanx.errors import PlatformError
from phalanx.kit.text import replace_unencodable, shorten
from phalanx.schemas.api.body import ErrorView, ProblemView
from phalanx.schemas.rpc.methods import status_of
from phalanx.server.gate import RETRY_AFTER_S

DOMAIN = "phalanx"
DETAILS = "grpc-status-details-bin"
"""The trailing metadata that has the details, by the standard error model of gRPC."""
_MAX_MESSAGE = 1000  # characters; gRPC sends it as metadata
_MAX_PROBLEMS = 20


class Refusal(NamedTuple):
    """How a call ends that did not succeed."""

    code: grpc.StatusCode
    message: str
    metadata: tuple[tuple[str, bytes], ...]


def refusal_of(status: int, body: bytes) -> Refusal:
    """The refusal for an answer of REST that is no success."""
    try:
        view = ErrorView.model_validate_json(body)
    except ValidationError:
        view = ErrorView(code="internal", message=f"the answer has the status {status}")
    return _refusal(status, view)


def refusal(error: PlatformError) -> Refusal:
    """The refusal for an error that was raised outside the REST API."""
    problems = [ProblemView.of(one) for one in getattr(error, "problems", ())]
    return _refusal(error.http_status, ErrorView.of(error, problems=problems))


def _refusal(status: int, view: ErrorView) -> Refusal:
    code = grpc.StatusCode[status_of(status)]
    message = shorten(replace_unencodable(view.message), _MAX_MESSAGE)
    about = {"retryable": json.dumps(view.retryable)}
    if view.hint:
        about["hint"] = shorten(replace_unencodable(view.hint), _MAX_MESSAGE)
    details: list[Any] = [
        error_details_pb2.ErrorInfo(reason=view.code, domain=DOMAIN, metadata=about)
    ]
    if view.problems:
        details.append(error_details_pb2.BadRequest(field_violations=_violations(view)))
    if view.retryable:
        wait = error_details_pb2.RetryInfo()
        wait.retry_delay.FromSeconds(RETRY_AFTER_S)
        details.append(wait)
    whole = status_pb2.Status(code=code.value[0], message=message, details=map(_any, details))
    return Refusal(code, message, ((DETAILS, whole.SerializeToString()),))


def _violations(view: ErrorView) -> list[Any]:
    return [
        error_details_pb2.BadRequest.FieldViolation(
            field=shorten(replace_unencodable(one.path)),
            description=shorten(replace_unencodable(one.message)),
        )
        for one in view.problems[:_MAX_PROBLEMS]
    ]


def _any(detail: Any) -> Any:
    packed = any_pb2.Any()
    packed.Pack(detail)
    return packed
