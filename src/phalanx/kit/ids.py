"""How ids look to people. A job has an integer number, shown as `j-12`."""

from __future__ import annotations

import re
import secrets

_JOB = re.compile(r"(?:j-)?(\d{1,15})")


def job_label(num: int) -> str:
    """`12` as `j-12`."""
    return f"j-{num}"


def parse_job_label(text: str) -> int | None:
    """The number in `j-12` or `12`, or None when it is neither."""
    match = _JOB.fullmatch(text.strip())
    return int(match[1]) if match else None


def random_hex(num_chars: int) -> str:
    """Unpredictable lower-case hex digits, fit for tokens and unique names."""
    return secrets.token_hex((num_chars + 1) // 2)[:num_chars]
