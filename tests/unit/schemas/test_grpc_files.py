"""jobs.proto and its modules are what the script makes of the models, and numbers of fields stay."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pydantic import Field

from phalanx.schemas.api.body import RequestBody, ResponseBody
from phalanx.schemas.rpc.methods import METHODS, STATUSES, message_name, status_of

pytestmark = pytest.mark.unit
ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts"))
import generate_grpc  # noqa: E402

TEXT = generate_grpc.PROTO.read_text()


class InnerModel(ResponseBody):
    """Another message."""

    a: int


class ModelOne(ResponseBody):
    """A message."""

    num: int
    name: str | None = None
    parts: list[InnerModel] = Field(default_factory=list)
    values: dict[str, float] = Field(default_factory=dict)


class AskCall(RequestBody):
    """A request."""

    num: int
    limit: int = 100


def written(model: type, before: str = "") -> str:
    writer = generate_grpc.Writer(generate_grpc.numbers_of(before))
    writer.message(model)
    return "\n".join(writer.messages.values())


def test_the_proto_file_is_up_to_date() -> None:
    assert generate_grpc.proto_text(TEXT) == TEXT, "run scripts/generate_grpc.py"


def test_the_python_modules_are_those_of_the_proto_file() -> None:
    pytest.importorskip("grpc_tools")
    for name, text in generate_grpc.modules(TEXT).items():
        assert generate_grpc.PROTO.with_name(name).read_text() == text, "run the script"


def test_each_type_has_its_field() -> None:
    text = written(ModelOne)
    fields = [line.strip() for line in text.splitlines() if line.startswith("  ")]
    assert fields[:4] == [
        "int64 num = 1;",
        "optional string name = 2;",
        "repeated InnerModel parts = 3;",
        "map<string, double> values = 4;",
    ]
    assert "message AskRequest {\n  int64 num = 1;\n  optional int64 limit = 2;" in written(AskCall)


def test_a_field_keeps_its_number_and_a_removed_one_is_reserved() -> None:
    before = "message ModelOne {\n  string gone = 1;\n  int64 num = 4;\n}\n"
    text = written(ModelOne, before)
    assert "  int64 num = 4;" in text and "  optional string name = 5;" in text
    assert '  reserved 1;\n  reserved "gone";' in text
    assert written(ModelOne, text) == text
    with pytest.raises(SystemExit, match="was string and would be int64"):
        written(ModelOne, "message ModelOne {\n  string num = 1;\n}\n")
    with pytest.raises(SystemExit, match="removed in an earlier release"):
        written(ModelOne, 'message ModelOne {\n  reserved 1;\n  reserved "num";\n}\n')


def test_every_field_of_a_request_reaches_the_route() -> None:
    """Each is in the path, the query, a header or the body, and names what is there."""
    for method in METHODS:
        fields = method.request.model_fields.keys()
        assert set(method.query) <= fields and set(method.headers) <= fields, method.name
        # The token of a rank names its job.
        assert set(method.path_fields) <= fields or method.name == "ReportMetrics"
        assert f"message {message_name(method.request)} {{" in TEXT


def test_statuses() -> None:
    assert status_of(404) == "NOT_FOUND" and len(STATUSES) == 12
    assert status_of(418) == "INVALID_ARGUMENT" and status_of(599) == "INTERNAL"
