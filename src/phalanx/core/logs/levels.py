"""The level of a line: the first level that it names, as loggers write it.

`ERROR` counts in capitals anywhere, and in any case behind `level`, as in JSON and logfmt: prose may have
"error" in it without being one. The first line of a traceback is an error.
"""

from __future__ import annotations

import re
from enum import IntEnum

from phalanx.core.logs.segments import folded


class LogLevel(IntEnum):
    """Levels in their order, with the numbers of Python's `logging`."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40
    CRITICAL = 50

    @property
    def word(self) -> str:
        """The name of the level as users write it."""
        return self.name.lower()


WORDS = {
    b"DEBUG": LogLevel.DEBUG,
    b"INFO": LogLevel.INFO,
    b"WARN": LogLevel.WARNING,
    b"WARNING": LogLevel.WARNING,
    b"ERROR": LogLevel.ERROR,
    b"CRITICAL": LogLevel.CRITICAL,
    b"FATAL": LogLevel.CRITICAL,
}
"""Levels as they count in capitals."""
_NAMED = (
    rb"[Ll](?:evel|EVEL)(?:name|Name|NAME)?[\"']?[ ]{0,4}[=:][ ]{0,4}[\"']?"
    rb"([Dd]ebug|[Ii]nfo|[Ww]arn(?:ing)?|[Ee]rror|[Cc]ritical|[Ff]atal)\b"
)
NAMED = re.compile(_NAMED)
"""A level behind its name, as in JSON and logfmt."""
_TRACEBACK = rb"Traceback \(most recent call last\)"
TRACEBACK = re.compile(_TRACEBACK)
"""The first line of a traceback."""
_LEVEL = re.compile(
    rb"\b(DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL|FATAL)\b|" + _NAMED + rb"|(" + _TRACEBACK + rb")"
)


def level_of(line: bytes) -> LogLevel | None:
    """The level of one line; None: it names none."""
    found = _LEVEL.search(folded(line))
    if found is None:
        return None
    if found[3]:
        return LogLevel.ERROR
    return WORDS[(found[1] or found[2]).upper()]


def parse_level(text: str) -> LogLevel | None:
    """The level of this name, in any case; None: there is no such level."""
    return WORDS.get(text.upper().encode("ascii", "replace"))
