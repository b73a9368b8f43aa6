"""Texts for the shell as their commands: several lines of one command together, and variables filled in."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

_OPEN = re.compile(
    r"(?:^|[;&|(]|\b(?:then|do|else)\b)[ \t]*(if|for|while|until|case|select)\b", re.MULTILINE
)
_CLOSE = re.compile(r"(?:^|[;&|)])[ \t]*(fi|done|esac)\b", re.MULTILINE)
_HEREDOC = re.compile(r"<<-?\s*[\"']?([A-Za-z_]\w*)[\"']?")
_FUNCTION = re.compile(r"(?:function\s+)?[\w-]+\s*\(\)\s*\{?$|function\s+[\w-]+\s*\{?$")
_SET = re.compile(
    r"(?:(?:export|readonly|declare(?:\s+-\w+)*|local|typeset)\s+)?([A-Za-z_]\w*)=(.*)", re.DOTALL
)
_NAMED = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")
_ARRAY = re.compile(r"\"?\$\{([A-Za-z_]\w*)\[[@*]\]\}\"?")
_MAX_DEPTH = 10


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """One command of a text with the number of its first line; `block`: a loop, condition or function."""

    line: int
    text: str
    block: bool = False


def shell_commands(text: str) -> list[ShellCommand]:
    """The commands of a text, without comments; quotes, arrays, blocks and here-documents stay whole."""
    found: list[ShellCommand] = []
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        start, taken = at, [lines[at]]
        at += 1
        while at < len(lines) and not _is_whole(taken):
            taken.append(lines[at])
            at += 1
        command = "\n".join(taken).strip()
        if command and not command.startswith("#"):
            first = command.splitlines()[0]
            block = bool(_OPEN.search(first) or _FUNCTION.match(first.strip()))
            block = block or first.startswith(("{", "(")) or _HEREDOC.search(first) is not None
            found.append(ShellCommand(start + 1, command, block))
    return found


def _is_whole(lines: list[str]) -> bool:
    """Whether the lines end where a command ends."""
    if lines[-1].endswith("\\"):
        return False
    text = "\n".join(lines)
    if text.lstrip().startswith("#"):
        return True
    if match := _HEREDOC.search(text):
        return any(one.strip() == match[1] for one in lines[1:])
    plain, closed = _unquoted(text)
    if not closed:
        return False
    return len(_OPEN.findall(plain)) <= len(_CLOSE.findall(plain))


def _unquoted(text: str) -> tuple[str, bool]:
    """The text without quoted parts and comments, and whether quotes, parentheses and braces are closed."""
    plain, quote, parens, braces = "", "", 0, 0
    before = "\n"
    skip = False
    for at, char in enumerate(text):
        if skip:
            skip = False
        elif char == "\\" and quote != "'":
            skip = True
        elif quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char == "#" and before.isspace() and "\n" not in text[at:]:
            break
        else:
            parens += (char == "(") - (char == ")")
            braces += (char == "{") - (char == "}")
            plain += char
        before = char
    return plain, not quote and parens <= 0 and braces <= 0


class ShellValues:
    """Variables that a text gives constant values."""

    def __init__(self, known: Mapping[str, str]) -> None:
        self.values = dict(known)
        self.arrays: dict[str, list[str]] = {}

    def learn(self, command: str) -> None:
        """Take the value of an assignment; a value that only the shell knows is forgotten."""
        match = _SET.fullmatch(command)
        if match is None:
            return
        name, value = match[1], match[2].strip()
        if value.startswith("(") and value.endswith(")"):
            try:
                self.arrays[name] = shlex.split(value[1:-1], comments=True, posix=False)
            except ValueError:
                self.arrays.pop(name, None)
            return
        self.values.pop(name, None)
        if re.search(r"(?<!\\)(\$\(|`)", value):
            return
        if value[:1] == '"' and value[-1:] == '"' and len(value) > 1:
            inner = re.sub(r"\\\n", " ", value[1:-1])
            self.values[name] = re.sub(r"\\([$`\"\\])", r"\1", self.fill(inner))
        elif value[:1] == "'" and value[-1:] == "'" and len(value) > 1:
            self.values[name] = value[1:-1]
        elif not re.search(r"[\s;&|]", value):
            self.values[name] = self.fill(value)

    def fill(self, text: str, depth: int = 0) -> str:
        """The text with constant variables filled in; a dollar sign after a backslash stays."""
        text = _ARRAY.sub(
            lambda one: " ".join(self.arrays[one[1]]) if one[1] in self.arrays else one[0], text
        )
        filled = re.sub(
            rf"(?<!\\){_NAMED.pattern}",
            lambda one: self.values.get(one[1] or one[2], one[0]),
            text,
        )
        return filled if filled == text or depth > _MAX_DEPTH else self.fill(filled, depth + 1)
