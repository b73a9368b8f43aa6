"""The program `phalanx`: exit codes, and errors as one clear message."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from phalanx.cli.app import app
from phalanx.cli.client.session import describe
from phalanx.cli.exits import ERROR, INTERRUPTED
from phalanx.errors import Bug, PlatformError

_USAGE = 2  # Typer's code for wrong usage; programs that call us expect 1
_GLOBAL = ("--home", "--url", "--token")


def hoist(argv: Sequence[str]) -> list[str]:
    """Global options may stand after the verb as well; what follows `--` is not ours."""
    words = list(argv)
    end = words.index("--") if "--" in words else len(words)
    ours: list[str] = []
    rest: list[str] = []
    position = 0
    while position < end:
        word = words[position]
        if word in _GLOBAL and position + 1 < end:
            ours += words[position : position + 2]
            position += 2
            continue
        (ours if word.startswith(tuple(f"{name}=" for name in _GLOBAL)) else rest).append(word)
        position += 1
    return [*ours, *rest, *words[end:]]


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
    """Run one verb and leave with its exit code."""
    code = _code(sys.argv[1:] if argv is None else argv)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has left; the interpreter would complain about it at its own last flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(code)


if __name__ == "__main__":
    main()
