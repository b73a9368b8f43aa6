"""Log lines: every one can be read, has its fields, and no secret."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.contract.secrecy import WITHHELD, redacted
from phalanx.kit.log_lines import FIELDS, JsonFormatter, LogFormat, log_fields, log_to

pytestmark = pytest.mark.unit
TOKEN = "hf_" + "a1B2c3D4e5" * 3
LOG = logging.getLogger("phalanx.services.some.module")


@pytest.fixture
def restored() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("phalanx")
    levels, handlers = (root.level, ours.level), list(root.handlers)
    yield
    root.setLevel(levels[0])
    ours.setLevel(levels[1])
    root.handlers[:] = handlers


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


@pytest.mark.usefixtures("restored")
def test_a_line_has_its_fields_in_order() -> None:
    out = io.StringIO()
    common = {"service": "supervisor", "job": 1, "trace_id": "ab"}
    log_to(logging.StreamHandler(out), LogFormat.JSON, redacted, common=common)
    with log_fields(request_id="r1", actor="user:ada"):
        LOG.warning("%s is blocked", "j-7", extra={"event": "job_blocked", "job": 7, "rank": 0})
    LOG.info("nothing special")
    LOG.debug("not written")
    first, second = lines(out)
    assert list(first) == [
        *("ts", "level", "event", "msg", "service"),
        *("job", "rank", "actor", "trace_id", "request_id"),
    ]
    assert first["ts"].endswith("Z") and first["level"] == "warning"
    assert (first["event"], first["msg"], first["job"]) == ("job_blocked", "j-7 is blocked", 7)
    assert second["event"] == "services.some.module.test_a_line_has_its_fields_in_order"
    assert second["job"] == 1 and "request_id" not in second


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("form", list(LogFormat))
def test_no_line_has_a_secret(form: LogFormat) -> None:
    out = io.StringIO()
    log_to(logging.StreamHandler(out), form, redacted)
    LOG.warning("cannot reach postgres://ada:%s@db", "correct-horse", extra={"actor": TOKEN})
    try:
        raise ValueError(f"the token {TOKEN} is wrong")
    except ValueError:
        LOG.exception("it failed with %s", TOKEN, extra={"node": f"n {TOKEN}"})
    written = out.getvalue()
    assert "correct-horse" not in written and TOKEN not in written
    assert written.count(WITHHELD) >= 3 and "Traceback" in written


@pytest.mark.usefixtures("restored")
def test_what_libraries_say_of_requests_and_statements_is_not_written() -> None:
    out = io.StringIO()
    log_to(logging.StreamHandler(out), LogFormat.JSON, redacted, logging.DEBUG)
    LOG.debug("ours")
    for name in ("httpx", "httpcore.connection", "sqlalchemy.engine.Engine"):
        logging.getLogger(name).info("POST https://hooks.example.com/not-to-be-known")
        logging.getLogger(name).warning("it fails")
    assert [one["msg"] for one in lines(out)] == ["ours", *["it fails"] * 3]


@given(st.text(), st.dictionaries(st.sampled_from(FIELDS), st.text() | st.integers()))
def test_every_line_is_one_json_object(text: str, fields: dict[str, Any]) -> None:
    record = LOG.makeRecord(LOG.name, logging.INFO, "f.py", 1, "%s", (text,), None, "f", fields)
    line = JsonFormatter(redacted).format(record)
    assert len(line.splitlines()) == 1
    found = json.loads(line)
    assert found["msg"] == redacted(text)
    assert set(found) - set(fields) == {"ts", "level", "event", "msg"}
