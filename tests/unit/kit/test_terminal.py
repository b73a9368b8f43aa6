"""What jobs print never steers the user's terminal; files and pipes get every byte."""

from __future__ import annotations

import io
import os
import pty
import re
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.cli.terminal.output import facts, print_line
from phalanx.cli.terminal.screen import Screen, TerminalScreen
from phalanx.kit.terminal import guard_terminal, visible, visible_line

pytestmark = pytest.mark.unit
EVIL = {
    "title": "\x1b]0;owned\x07",
    "clipboard": "\x1b]52;c;cm0gLXJm\x1b\\",
    "question": "\x1b[6n",
    "clear": "\x1b[2J\x1b[3J",
    "up": "\x1b[5A",
    "device control": "\x1bP$q\x1b\\",
    "8 bit": "\x9b2J",
    "bell and backspace": "\x07\x08\x08",
    "reset": "\x1bc",
    "right to left": "\u202e",
    "cut off": "\x1b]0;never closed",
}
COLOUR = "\x1b[31mred\x1b[0m"


@pytest.mark.parametrize("evil", EVIL.values(), ids=EVIL)
def test_control_sequences_are_removed_and_text_stays(evil: str) -> None:
    seen = visible(f"before {COLOUR} {evil}")
    assert seen == f"before {COLOUR} " + ("2J" if evil[0] == "\x9b" else "")


def test_a_line_is_what_a_terminal_would_leave() -> None:
    assert visible_line("10%\r20%\r\r") == "20%"
    assert visible_line("\x1b[31mred") == "\x1b[31mred\x1b[0m"


@given(st.text(st.characters(max_codepoint=0x2100), max_size=60))
def test_no_text_leaves_a_control(text: str) -> None:
    left = re.sub(r"\x1b\[[0-9;:]*m", "", visible(text))
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", left)
    if text.isascii() and text.isprintable():
        assert visible(text) == text


class Terminal:
    """A pseudo terminal as both standard streams."""

    def __init__(self) -> None:
        self._master, slave = pty.openpty()
        self.stream = os.fdopen(slave, "w", encoding="utf-8")

    def read(self) -> str:
        self.stream.close()
        found = b""
        try:
            while data := os.read(self._master, 65536):
                found += data
        except OSError:
            pass
        os.close(self._master)
        return found.decode()


def attached(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Make a terminal the standard streams; in the test itself, since pytest sets its own before it."""
    made = Terminal()
    monkeypatch.setattr(sys, "stdout", made.stream)
    monkeypatch.setattr(sys, "stderr", made.stream)
    monkeypatch.setenv("TERM", "xterm-256color")
    return made


ALL = "".join(EVIL[name] for name in EVIL if name != "cut off")


def show(screen: Screen) -> None:
    screen.line(SimpleNamespace(text=f"shown{ALL}", stream="out"), "[0] ")  # type: ignore[arg-type]
    screen.line(SimpleNamespace(text=f"shown{ALL}", stream="err"), "")  # type: ignore[arg-type]
    screen.say(f"shown{ALL}")
    screen.state(1.0, "running", f"shown{ALL}")
    screen.close()


@pytest.mark.parametrize("kind", ["plain", "live"])
def test_a_followed_job_cannot_steer_the_terminal(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    terminal = attached(monkeypatch)
    guard_terminal()
    show(Screen() if kind == "plain" else TerminalScreen(f"j-1 {ALL}"))
    facts([("name", f"shown{ALL}")])
    found = terminal.read()
    assert found.count("shown") == 5
    for name, evil in EVIL.items():
        assert evil not in found, name


def test_raw_output_and_the_unguarded_terminal_show_the_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The control, and what `logs --raw` prints."""
    terminal = attached(monkeypatch)
    print(EVIL["title"])
    guard_terminal()
    guard_terminal()  # a second time changes nothing
    print_line("", EVIL["clear"], sys.stdout, raw=True)
    found = terminal.read()
    assert EVIL["title"] in found and EVIL["clear"] in found


def test_a_pipe_gets_every_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stdout", pipe)
    guard_terminal()
    print_line("[0] ", f"a\rb{ALL}", sys.stdout)
    assert pipe.getvalue() == f"[0] a\rb{ALL}\n"
