"""Find credentials in the files of a snapshot before they leave the caller's machine."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

import pathspec

from phalanx.core.contract.credentials import forms_in
from phalanx.core.contract.secrecy import is_secret
from phalanx.errors import UserError

ALLOW_FILE = ".phalanxcredentials"
"""In the root of a snapshot: patterns of files that may contain credentials, as in `.gitignore`."""
_SHOWN = 5
_PAIR = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*['\"]?([^'\"\s#]+)")
_PATTERNS_OF_OTHERS = (".example", ".sample", ".template", ".dist")


class CredentialScan:
    """What was found in the files of one snapshot."""

    def __init__(self, root: Path) -> None:
        try:
            lines = (root / ALLOW_FILE).read_text("utf-8", "replace").splitlines()
        except OSError:
            lines = []
        self._allowed = pathspec.GitIgnoreSpec.from_lines(lines)
        self._found: list[str] = []

    def look(self, name: str, data: bytes) -> None:
        """Search one file."""
        if self._allowed.match_file(name):
            return
        for said, at in forms_in(data):
            self._found.append(f"{name}:{data.count(10, 0, at) + 1}: {said}")
        last = PurePosixPath(name).name
        if (last == ".env" or last.startswith(".env.")) and not last.endswith(_PATTERNS_OF_OTHERS):
            for num, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
                pair = _PAIR.match(line)
                if pair is not None and is_secret(pair[1], pair[2]):
                    self._found.append(f"{name}:{num}: the value of {pair[1]}")

    def check(self) -> None:
        """Raise UserError with the file and line of what was found, and never the text itself."""
        if not self._found:
            return
        more = len(self._found) - _SHOWN
        rest = f"\n  and {more} more" if more > 0 else ""
        places = "\n  ".join(self._found[:_SHOWN])
        raise UserError(
            f"the code contains credentials, and was not sent:\n  {places}{rest}",
            "remove them and use `phalanx secrets set`, name the files in .phalanxignore, or, where they "
            f"are no credentials, in {ALLOW_FILE}",
        )
