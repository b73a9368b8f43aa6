"""Text from anywhere as text that every file, database and protocol takes."""

from __future__ import annotations

import re

_UNSAYABLE = re.compile("[\0\ud800-\udfff]")


def sayable(text: str) -> str:
    """`text` with U+FFFD for what UTF-8 or a database cannot hold: NUL, and halves of pairs.

    Names of files that are not in UTF-8 bring such halves along, and exceptions quote them.
    """
    return _UNSAYABLE.sub("\ufffd", text)
