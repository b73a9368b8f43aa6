"""Log lines of the platform's own processes: text, or one JSON object a line; without secrets in both.

`extra` of a log call gives fields, as in `extra={"event": "job_blocked", "job": 12}`; `log_fields` gives
them to all calls below it. Programs call `log_to` once.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any

Redact = Callable[[str], str]
FIELDS = (
    *("job", "attempt", "generation", "rank", "node", "actor"),
    *("trace_id", "span_id", "request_id"),
)
"""Fields of a line that say what it is about, in their order; a line has those that are known."""
TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_PACKAGE = "phalanx."
_AROUND: ContextVar[Mapping[str, Any]] = ContextVar("log_fields", default=MappingProxyType({}))


class LogFormat(StrEnum):
    """How lines are written."""

    TEXT = "text"
    JSON = "json"


@contextmanager
def log_fields(**fields: Any) -> Iterator[None]:
    """Give fields to all lines that are logged below; names are those of `FIELDS`."""
    token = _AROUND.set({**_AROUND.get(), **fields})
    try:
        yield
    finally:
        _AROUND.reset(token)


def event_of(record: logging.LogRecord) -> str:
    """The stable name of what a line tells: that of the call, else its module and function."""
    named = getattr(record, "event", None)
    return str(named or f"{record.name.removeprefix(_PACKAGE)}.{record.funcName}")


class JsonFormatter(logging.Formatter):
    """Writes a record as one JSON object. `common` are fields of every line of the process."""

    def __init__(self, redact: Redact, common: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._redact, self._common = redact, dict(common or {})

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "ts": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "event": event_of(record),
            "msg": self._redact(record.getMessage()),
        }
        given = {**self._common, **_AROUND.get()}
        given |= {name: record.__dict__[name] for name in FIELDS if name in record.__dict__}
        for name in ("service", *FIELDS):
            value = given.get(name)
            if value is not None:
                line[name] = value if isinstance(value, int) else self._redact(str(value))
        if record.exc_info:
            line["exception"] = self._redact(self.formatException(record.exc_info))
        if record.stack_info:
            line["stack"] = self._redact(self.formatStack(record.stack_info))
        return json.dumps(line, ensure_ascii=True)


class TextFormatter(logging.Formatter):
    """Writes a record as text for people."""

    def __init__(self, redact: Redact, layout: str = TEXT) -> None:
        super().__init__(layout)
        self._redact = redact

    def format(self, record: logging.LogRecord) -> str:
        """The line, and after it the traceback, where there is one."""
        return self._redact(super().format(record))


def log_to(
    handler: logging.Handler,
    form: LogFormat,
    redact: Redact,
    level: int = logging.INFO,
    common: Mapping[str, Any] | None = None,
) -> None:
    """Have the platform's records from a level on, and warnings of libraries, written by a handler.

    Lower levels of libraries are left out whatever the level: theirs have URLs, headers and parameters.
    """
    json_lines = form is LogFormat.JSON
    handler.setFormatter(JsonFormatter(redact, common) if json_lines else TextFormatter(redact))
    handler.setLevel(level)
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger(_PACKAGE.rstrip(".")).setLevel(level)
