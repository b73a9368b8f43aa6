"""Text from jobs on a terminal: control sequences are removed, colours stay.

A terminal obeys what it is sent: text can move the cursor over lines that were printed before, set the
window's title, or make some terminals answer as if the user had typed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Any, TextIO, cast

_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI, such as colours and moves of the cursor
    r"|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?"  # OSC, DCS and others, with their text
    r"|\x1b[ -/]*[0-~]"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"  # all other controls but tab and newline
    r"|[\u200e\u200f\u202a-\u202e\u2066-\u2069]"  # text that runs the other way
)
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_RESET = "\x1b[0m"


def visible(text: str) -> str:
    """Text without control sequences other than colours."""
    return _CONTROL.sub(_kept, text)


def visible_line(text: str) -> str:
    """One line of output as a terminal would leave it: what follows its last carriage return."""
    seen = visible(text.rstrip("\r").rpartition("\r")[2])
    return seen + _RESET if "\x1b" in seen and not seen.endswith(_RESET) else seen


def _kept(found: re.Match[str]) -> str:
    return found[0] if _COLOUR.fullmatch(found[0]) else ""


class TerminalStream:
    """A text stream to a terminal; everything that is printed to it passes `visible`."""

    def __init__(self, inner: TextIO) -> None:
        self.inner = inner

    def write(self, text: str) -> int:
        """Write the visible part of a text."""
        self.inner.write(visible(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write the visible part of several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def guard_terminal() -> None:
    """Let the standard streams of this process pass nothing but visible text to a terminal.

    Streams to files and pipes keep every byte.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and stream.isatty() and not isinstance(stream, TerminalStream):
            setattr(sys, name, cast("TextIO", TerminalStream(stream)))


def unguarded(stream: TextIO) -> TextIO:
    """The stream below a guard, for displays that send control sequences of their own."""
    return stream.inner if isinstance(stream, TerminalStream) else stream
