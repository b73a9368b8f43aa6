"""Text: job labels, random names, suggestions for misspelt words, and encodable text."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable

_JOB = re.compile(r"(?:j-)?(\d{1,15})")
_STUDY = re.compile(r"(?:s-)?(\d{1,15})")
_UNENCODABLE = re.compile("[\0\ud800-\udfff]")
# The search takes time in proportion to the product of the lengths of both words.
_MAX_WORD = 64


def job_label(num: int) -> str:
    """The label of a job number: `12` as `j-12`."""
    return f"j-{num}"


def node_label(node_rank: int, incarnation: int = 0) -> str:
    """The name of a supervisor in its attempt: `n1`, and `n1.2` for the one that replaced two lost ones."""
    return f"n{node_rank}.{incarnation}" if incarnation else f"n{node_rank}"


def parse_job_label(text: str) -> int | None:
    """The number in `j-12` or `12`, or None when it is neither."""
    match = _JOB.fullmatch(text.strip())
    return int(match[1]) if match else None


def study_label(num: int) -> str:
    """The label of a study number: `3` as `s-3`."""
    return f"s-{num}"


def trial_label(study: int, number: int) -> str:
    """The label of a trial in its study: `s-3/7`."""
    return f"{study_label(study)}/{number}"


def parse_study_label(text: str) -> int | None:
    """The number in `s-3` or `3`, or None when it is neither."""
    match = _STUDY.fullmatch(text.strip())
    return int(match[1]) if match else None


def random_hex(num_chars: int) -> str:
    """Unpredictable lower-case hex digits, fit for tokens and unique names."""
    return secrets.token_hex((num_chars + 1) // 2)[:num_chars]


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word most like `word`, or None when no known word is similar or `word` is very long."""
    import difflib

    if len(word) > _MAX_WORD:
        return None

    found = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def shorten(text: str, most: int = 80) -> str:
    """The first `most` characters of a text, with `…` in place of the rest."""
    return text if len(text) <= most else f"{text[:most]}…"


def replace_unencodable(text: str) -> str:
    """Return `text` with U+FFFD in place of characters that UTF-8 or a database cannot hold.

    These are NUL and lone surrogates. File names that are not UTF-8 contain lone surrogates, and
    exceptions quote such names.
    """
    return _UNENCODABLE.sub("\ufffd", text)
