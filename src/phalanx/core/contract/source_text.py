"""The text of a difference to a Git commit, as it may be stored: without credentials, not too long.

Lines that were removed are in it as well, so it may hold what the code archive does not.
"""

from __future__ import annotations

import re

from phalanx.core.contract.secrecy import WITHHELD, is_secret, redacted

_KEY = re.compile(
    r"-----BEGIN (?:[A-Z]{2,10} ){0,2}PRIVATE KEY-----[\s\S]{0,20000}?-----END [A-Z ]{0,40}KEY-----"
)
_FILE = re.compile(r"^(?:---|\+\+\+) (?:[ab]/)?(.*)$")
_PAIR = re.compile(r"([ +-]\s*(?:export\s+)?)([A-Za-z_][A-Za-z0-9_]*)(\s*=\s*)(.+)")


def shown_difference(text: str, limit: int) -> tuple[str, bool]:
    """A difference without credentials and with at most `limit` characters, and whether it was cut.

    It is cut after a whole line. Values of secret variables in `.env` files are withheld, and in all files
    what shows by its shape that it is a secret.
    """
    plain = redacted(_KEY.sub(WITHHELD, text))
    plain = _without_values(plain)
    if len(plain) <= limit:
        return plain, False
    kept = plain[:limit]
    return kept[: kept.rfind("\n") + 1], True


def _without_values(text: str) -> str:
    lines, in_env = text.splitlines(keepends=True), False
    for at, line in enumerate(lines):
        if (file := _FILE.match(line)) is not None and file[1].strip() != "/dev/null":
            name = file[1].strip().rpartition("/")[2]
            in_env = name == ".env" or name.startswith(".env.")
        elif in_env and (pair := _PAIR.match(line)) is not None and _is_secret(pair):
            end = "\n" if line.endswith("\n") else ""
            lines[at] = f"{pair[1]}{pair[2]}{pair[3]}{WITHHELD}{end}"
    return "".join(lines)


def _is_secret(pair: re.Match[str]) -> bool:
    return is_secret(pair[2], pair[4].strip().strip("'\""))
