"""Requests of the REST API from messages of the gRPC API, and messages from the answers.

A field without a value is left out, so that the route's default counts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from phalanx.errors import ServerError, UserError
from phalanx.schemas.rpc import jobs_pb2
from phalanx.schemas.rpc.methods import RpcMethod, message_name

Message = Any
"""A message of protobuf: its classes are made at run time."""
_STRUCT, _TIMESTAMP = "google.protobuf.Struct", "google.protobuf.Timestamp"
_EXACT = 2.0**53  # every whole number below it is exact in a Struct


@dataclass(frozen=True, slots=True)
class InnerRequest:
    """A request of the REST API. `body` is called when the application reads it; empty: there is none."""

    verb: str
    path: str
    query: str
    headers: tuple[tuple[bytes, bytes], ...]
    body: Callable[[], bytes]


def message_class(method: RpcMethod, *, response: bool = False) -> Any:
    """The class of a method's messages."""
    return getattr(jobs_pb2, message_name(method.response if response else method.request))


def parse(method: RpcMethod, data: bytes) -> Message:
    """The message of a client. Raises UserError."""
    try:
        return message_class(method).FromString(data)
    except DecodeError:
        wanted = message_name(method.request)
        raise UserError(
            f"the message is no {wanted}", "make stubs from the jobs.proto of this release"
        ) from None


def request_of(method: RpcMethod, message: Message, num: int | None = None) -> InnerRequest:
    """The request of REST for a message. `num` is the job that a token names, if it does.

    Raises UserError for a field that no header can have.
    """
    known = {} if num is None else {"num": num}
    path = method.route
    for name in method.path_fields:
        path = path.replace(f"{{{name}}}", quote(str(known.get(name, getattr(message, name, "")))))
    rest = [
        one for one in message.DESCRIPTOR.fields if one.name not in method.path_fields and one.name
    ]
    in_body = method.verb != "GET"
    elsewhere = {*method.headers, *(method.query if in_body else ())}
    query = [one for one in rest if one.name not in method.headers]
    if in_body:
        query = [one for one in query if one.name in method.query]
    headers = [
        (header.lower().encode(), _ascii(name, getattr(message, name)))
        for name, header in method.headers.items()
        if getattr(message, name)
    ]
    fields = [one for one in rest if one.name not in elsewhere]

    def body() -> bytes:
        return json.dumps(_plain(message, fields)).encode() if in_body else b""

    return InnerRequest(
        method.verb,
        path,
        urlencode(_texts(_plain(message, query)), doseq=True),
        (*headers, (b"content-type", b"application/json")),
        body,
    )


def _ascii(name: str, value: str) -> bytes:
    """The value of a header: two texts never become one."""
    try:
        return value.encode("ascii")
    except UnicodeEncodeError:
        raise UserError(f"{name}: has characters that are not ASCII") from None


def _texts(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: str(one).lower() if isinstance(one, bool) else one for name, one in values.items()
    }


def _plain(message: Message, fields: list[FieldDescriptor]) -> dict[str, Any]:
    """The fields of a message that have a value, as JSON. Raises UserError."""
    found = {}
    for one in fields:
        value = getattr(message, one.name)
        if one.is_repeated:
            # A list that a body requires is there when it is empty; a map is left out.
            if not value and (message.DESCRIPTOR.name, one.name) not in _REQUIRED:
                continue
            found[one.name] = dict(value) if _is_map(one) else [_value(one, part) for part in value]
        elif not one.has_presence or message.HasField(one.name):
            found[one.name] = _value(one, value)
    return found


_REQUIRED = {("MetricsRequest", "points")}


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _value(field: FieldDescriptor, value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # `nan`, `inf` and `-inf`, as in JSON
    if field.message_type is None:
        return value
    if field.message_type.full_name == _STRUCT:
        return _struct(field.name, value)
    if field.message_type.full_name == _TIMESTAMP:
        try:
            return value.ToJsonString()
        except ValueError:
            raise UserError(f"{field.name}: is no time between the years 1 and 9999") from None
    return _plain(value, field.message_type.fields)


def _struct(name: str, value: Message) -> Any:
    try:
        return _whole(json_format.MessageToDict(value))
    except (json_format.SerializeToJsonError, ValueError, RecursionError):
        raise UserError(f"{name}: has a value that JSON does not have, such as NaN") from None


def _whole(value: Any) -> Any:
    """A value of a Struct, which has floating numbers only, with whole numbers as such."""
    if isinstance(value, dict):
        return {key: _whole(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_whole(one) for one in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return int(value)
    return value


def answer_of(method: RpcMethod, body: bytes | str, **others: Any) -> Message:
    """The message of an answer of REST; `others` are fields that it does not have."""
    message = message_class(method, response=True)()
    try:
        json_format.Parse(body, message, ignore_unknown_fields=True)
    except json_format.ParseError as error:
        raise ServerError(f"the answer to {method.name} cannot be sent: {error}") from error
    for name, one in others.items():
        setattr(message, name, one)
    return message
