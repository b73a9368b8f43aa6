"""Writes src/phalanx/schemas/rpc/jobs.proto from the models of the API, and the Python modules of it.

    python scripts/generate_grpc.py           # needs grpcio-tools, which the extra `dev` has
    python scripts/generate_grpc.py --check   # says which files are out of date

A field keeps its number for good: it is read from the file that is there. A field that a model no longer
has is reserved. A field whose type changes is refused, because clients of earlier releases read it.
"""

from __future__ import annotations

import re
import sys
import tempfile
import types
import typing
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

from pydantic import AwareDatetime, BaseModel

from phalanx.schemas.api.body import RequestBody
from phalanx.schemas.rpc.methods import METHODS, SERVICE, RpcMethod, message_name

ROOT = Path(__file__).resolve().parent.parent
FOLDER = Path("phalanx/schemas/rpc")
PROTO = ROOT / "src" / FOLDER / "jobs.proto"
FILES = ("jobs_pb2.py", "jobs_pb2.pyi", "jobs_pb2_grpc.py")
TIMESTAMP, STRUCT = "google.protobuf.Timestamp", "google.protobuf.Struct"
SCALARS: dict[object, str] = {
    bool: "bool",
    int: "int64",
    float: "double",
    str: "string",
    Decimal: "string",
    datetime: TIMESTAMP,
    AwareDatetime: TIMESTAMP,
}
HEAD = f"""\
// The gRPC API of Phalanx. Written by scripts/generate_grpc.py from src/phalanx/schemas; change those.
syntax = "proto3";

package {SERVICE.rpartition(".")[0]};

import "google/protobuf/struct.proto";
import "google/protobuf/timestamp.proto";
"""
_MESSAGE = re.compile(r"^message (\w+) \{\n(.*?)^\}", re.M | re.S)
_FIELD = re.compile(r"^  ((?:optional |repeated )?[\w.<>, ]+?) (\w+) = (\d+);", re.M)
_RESERVED = re.compile(r'^  reserved (\d+);\n  reserved "(\w+)";', re.M)


@dataclass
class Numbers:
    """The fields that a message has had: (type, number) by name, and numbers of removed ones."""

    fields: dict[str, tuple[str, int]] = field(default_factory=dict)
    reserved: dict[str, int] = field(default_factory=dict)

    def of(self, message: str, name: str, kind: str) -> int:
        if name in self.reserved:
            sys.exit(f"{message}.{name} was removed in an earlier release: give it another name")
        if name not in self.fields:
            taken = [number for _, number in self.fields.values()] + [*self.reserved.values()]
            self.fields[name] = (kind, max(taken, default=0) + 1)
        before, number = self.fields[name]
        if before != kind:
            sys.exit(f"{message}.{name} was {before} and would be {kind}: give it another name")
        return number


def numbers_of(text: str) -> dict[str, Numbers]:
    found = {}
    for name, body in _MESSAGE.findall(text):
        fields = {one: (kind, int(number)) for kind, one, number in _FIELD.findall(body)}
        reserved = {one: int(number) for number, one in _RESERVED.findall(body)}
        found[name] = Numbers(fields, reserved)
    return found


class Writer:
    """Collects the messages that the methods need."""

    def __init__(self, before: dict[str, Numbers]) -> None:
        self.before = before
        self.messages: dict[str, str] = {}

    def message(self, model: type[BaseModel]) -> str:
        """The name of a model's message, which is written before it returns."""
        name = message_name(model)  # type: ignore[arg-type]
        if name in self.messages:
            return name
        self.messages[name] = ""  # a model may name itself
        model.model_rebuild()  # names that were not there yet when the model was made
        numbers = self.before.get(name, Numbers())
        lines: list[str] = []
        present = set()
        for one, info in model.model_fields.items():
            has_default = issubclass(model, RequestBody) and not info.is_required()
            kind = self.kind(info.annotation, has_default)
            lines += [f"  {line}" for line in comment(info.description or "")]
            lines.append(f"  {kind} {one} = {numbers.of(name, one, kind)};")
            present.add(one)
        gone = {one: number for one, (_, number) in numbers.fields.items() if one not in present}
        for one, number in sorted((numbers.reserved | gone).items(), key=lambda pair: pair[1]):
            lines += [f"  reserved {number};", f'  reserved "{one}";']
        about = comment(model.__doc__ or "")
        self.messages[name] = "\n".join([*about, f"message {name} {{", *lines, "}", ""])
        return name

    def kind(self, annotation: Any, has_default: bool) -> str:
        """The type of a field with its label. Fields of requests with a default have a presence."""
        inner, absent = without_none(annotation)
        origin, arguments = typing.get_origin(inner), typing.get_args(inner)
        if origin is list:
            return f"repeated {self.scalar(arguments[0])}"
        if origin is dict and arguments[1] is not Any:
            return f"map<string, {self.scalar(arguments[1])}>"
        kind = self.scalar(inner)
        return f"optional {kind}" if absent or has_default else kind

    def scalar(self, annotation: Any) -> str:
        inner, _ = without_none(annotation)
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            return self.message(inner)
        if isinstance(inner, type) and issubclass(inner, Enum):
            return "string"
        if typing.get_origin(inner) is dict or inner is Any:
            return STRUCT
        if typing.get_origin(inner) is typing.Literal:
            return "string"
        if typing.get_origin(inner) in (typing.Union, types.UnionType):
            # A number that may also be `nan` or `inf`, which JSON has no number for.
            return self.scalar(typing.get_args(inner)[0])
        return SCALARS[inner]


def without_none(annotation: Any) -> tuple[Any, bool]:
    """A type without its annotations and without None, and whether it had None."""
    while typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    if typing.get_origin(annotation) not in (typing.Union, types.UnionType):
        return annotation, False
    rest = [one for one in typing.get_args(annotation) if one is not type(None)]
    absent = len(rest) < len(typing.get_args(annotation))
    if len(rest) == 1:
        return without_none(rest[0])[0], absent
    return annotation, absent


def comment(text: str) -> list[str]:
    return [f"// {line.strip()}".rstrip() for line in text.strip().splitlines()]


def rpc(method: RpcMethod) -> list[str]:
    takes, gives = message_name(method.request), message_name(method.response)
    if method.streams_requests:
        takes = f"stream {takes}"
    if method.streams_responses:
        gives = f"stream {gives}"
    return [
        f"  // {method.about}",
        f"  // {method.verb} {method.route}",
        f"  rpc {method.name}({takes}) returns ({gives});",
    ]


def proto_text(before: str) -> str:
    writer = Writer(numbers_of(before))
    for method in METHODS:
        writer.message(method.request)
        writer.message(method.response)
    service = [f"service {SERVICE.rpartition('.')[2]} {{"]
    for method in METHODS:
        service += rpc(method)
    return "\n".join([HEAD, *service, "}", "", *writer.messages.values()])


def modules(text: str) -> dict[str, str]:
    """What protoc makes of a .proto file, with docstrings."""
    try:
        import grpc_tools
        from grpc_tools import protoc
    except ImportError:
        sys.exit("this needs grpcio-tools, which the extra `dev` has")

    known = Path(grpc_tools.__file__).with_name("_proto")
    with tempfile.TemporaryDirectory() as temporary:
        source = Path(temporary, FOLDER, PROTO.name)
        source.parent.mkdir(parents=True)
        source.write_text(text)
        out = [f"--{kind}_out={temporary}" for kind in ("python", "pyi", "grpc_python")]
        paths = [f"-I{temporary}", f"-I{known}"]
        if protoc.main(["protoc", *paths, *out, str(FOLDER / PROTO.name)]) != 0:
            sys.exit("protoc has refused jobs.proto")
        said = '"""Written by scripts/generate_grpc.py from jobs.proto; change neither."""\n\n'
        return {name: said + (source.parent / name).read_text() for name in FILES}


def outputs(before: str) -> dict[str, str]:
    """The text of every file, by its name."""
    text = proto_text(before)
    return {PROTO.name: text} | modules(text)


def main(argv: list[str]) -> int:
    made = outputs(PROTO.read_text() if PROTO.exists() else "")
    old = []
    for name, text in made.items():
        path = PROTO.with_name(name)
        if not path.exists() or path.read_text() != text:
            old.append(name)
            if "--check" not in argv:
                path.write_text(text)
    checks = "--check" in argv
    said = "out of date" if checks else "written"
    print("".join(f"{name}: {said}\n" for name in old), end="")
    return 1 if old and checks else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
