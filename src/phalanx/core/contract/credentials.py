"""Credentials that show by one exact form: found in code before it is sent, and in specs at submit.

The table has few rules, each for a text that services give out in one exact form, so that code that merely
speaks of passwords passes. `secrecy` is wider: it hides, and may be wrong; a find here is a refusal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

_RULES = {
    "an AWS access key id": rb"\b(?:AKIA|ASIA)(?![A-Z0-9]{9}EXAMPLE)[A-Z2-7]{16}\b",
    "a private key": rb"-----BEGIN (?:[A-Z]{2,10} ){0,2}PRIVATE KEY-----\s{0,4}[A-Za-z0-9+/]{40}",
    "a GitHub token": rb"\bgh[pousr]_[A-Za-z0-9]{36}\b|\bgithub_pat_[A-Za-z0-9_]{60,}",
    "a GitLab token": rb"\bglpat-[A-Za-z0-9_-]{20}",
    "a Hugging Face token": rb"\bhf_[A-Za-z0-9]{34}\b",
    "a Slack token": rb"\bxox[abeoprs]-[0-9]{8,}-[A-Za-z0-9-]{10,}",
    "a Google API key": rb"\bAIza[0-9A-Za-z_-]{35}\b",
    "a token of Phalanx": rb"\bphx_[0-9a-f]{8}_[0-9a-f]{40}\b",
}
_ANY = {said: re.compile(rule) for said, rule in _RULES.items()}
# Every form contains one of these: most texts are passed by one search.
_HINT = re.compile(r"A[KS]IA|PRIVATE KEY|gh[pousr]_|github_pat_|glpat-|hf_|xox|AIza|phx_")
_WITHHELD_PARTS = frozenset({"env"})


def forms_in(data: bytes) -> Iterator[tuple[str, int]]:
    """The first credential of each form in `data`: what it is, in words, and its offset."""
    for said, rule in _ANY.items():
        hit = rule.search(data)
        if hit is not None:
            yield said, hit.start()


def credentials_in(spec: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """The places of a spec with a credential, as dotted paths, and what it is; never the text itself.

    Values of `env` are left out: they are kept apart as secret variables.
    """
    if isinstance(spec, str):
        if _HINT.search(spec) is not None:
            for said, _ in forms_in(spec.encode(errors="surrogatepass")):
                yield path, said
    elif isinstance(spec, Mapping):
        for number, (key, value) in enumerate(spec.items()):
            name = str(key)
            at = f"{path}.{name}" if path else name
            if _HINT.search(name) is not None and any(forms_in(name.encode(errors="replace"))):
                at = f"{path}[{number}]"
                yield from ((f"{at} (the name)", said) for said, _ in forms_in(name.encode()))
            if name not in _WITHHELD_PARTS:
                yield from credentials_in(value, at)
    elif isinstance(spec, list | tuple):
        for number, value in enumerate(spec):
            yield from credentials_in(value, f"{path}[{number}]")
