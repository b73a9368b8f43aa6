"""The entry point of `phalanx`: exit codes, and errors as one message."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence

from phalanx.cli.app import app
from phalanx.cli.client.session import describe
from phalanx.cli.exits import ERROR, INTERRUPTED
from phalanx.cli.terminal.output import note
from phalanx.errors import Bug, PlatformError
from phalanx.kit.terminal import guard_terminal

_USAGE = 2  # Typer's code for wrong usage; `phalanx` exits with 1
_GLOBAL = ("--home", "--url", "--token")


def hoist(argv: Sequence[str]) -> list[str]:
    """Move global options before the verb; words after `--` stay where they are."""
    words = list(argv)
    end = words.index("--") if "--" in words else len(words)
    hoisted: list[str] = []
    rest: list[str] = []
    position = 0
    while position < end:
        word = words[position]
        if word in _GLOBAL and position + 1 < end:
            hoisted += words[position : position + 2]
            position += 2
            continue
        (hoisted if word.startswith(tuple(f"{name}=" for name in _GLOBAL)) else rest).append(word)
        position += 1
    return [*hoisted, *rest, *words[end:]]


def _code(argv: Sequence[str]) -> int:
    try:
        app(args=hoist(argv), prog_name="phalanx")
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else ERROR
        if code != _USAGE:
            return code
        if "run" in argv and "--" not in argv:
            print("The arguments of your own script go after --.", file=sys.stderr)
        return ERROR
    except Bug:
        raise
    except PlatformError as error:
        print(describe(error), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def main(argv: Sequence[str] | None = None) -> None:
    """Run one verb and exit with its code."""
    guard_terminal()
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_rest, **_more: note(f"warning: {message}")
        code = _code(sys.argv[1:] if argv is None else argv)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader closed the pipe; the interpreter would report that at its last flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(code)


if __name__ == "__main__":
    main()
