"""The requirements of a job's section `python`, read from its work directory, with their digest."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_DIGEST_CHARS = 24
_MAX_FILES = 50
_COMMENT = re.compile(r"(^|\s)#.*$")
_NESTED = re.compile(r"(?:-r|--requirement|-c|--constraint)(?:\s+|=)(\S+)$|-[rc](\S+)$")
_EDITABLE = re.compile(r"(-e|--editable)\b")
_FIND_LINKS = re.compile(r"(?:-f|--find-links)(?:\s+|=)(\S+)$")
_AT_PATH = re.compile(r"@\s*(file:)?([./]\S*)")
_TORCH = re.compile(r"torch(?![\w.-])", re.IGNORECASE)


class InvalidRequirements(ValueError):
    """The requirements cannot be installed as they are written; the message is for the user."""


def lines_of(text: str) -> list[str]:
    """A requirements file's own lines: continued ones joined, comments and blank ones left out."""
    joined = re.sub(r"\\\n", " ", text)
    plain = (_COMMENT.sub("", line) for line in joined.splitlines())
    return [" ".join(line.split()) for line in plain if line.strip()]


def all_lines(workdir: Path, wanted: Mapping[str, Any]) -> list[str]:
    """Every requirement, those of nested files too, sorted. Raises InvalidRequirements."""
    found = [*lines_of("\n".join(wanted["packages"]))]
    if wanted.get("requirements"):
        found += _read(workdir, wanted["requirements"])
    for line in found:
        if _EDITABLE.match(line):
            raise InvalidRequirements(
                f"`{line}`: an editable install would point into one attempt's copy of the code; "
                "write the folder without -e, or have the script import from the work directory"
            )
    return sorted(found)


def names_torch(lines: Sequence[str]) -> bool:
    """Whether torch itself is a requirement, in any version."""
    return any(_TORCH.match(line) for line in lines)


def digest(
    workdir: Path, wanted: Mapping[str, Any], code: str | None, base: Mapping[str, Any], python: str
) -> str:
    """The name of the environment: equal requirements on equal interpreters have the same name.

    `code` is the digest of the snapshot, which counts where something of the work directory is to be
    installed; `base` is `interpreter.describe()` of `python`. Raises InvalidRequirements.
    """
    lines = all_lines(workdir, wanted)
    body = {
        "lines": lines,
        "installer": wanted["installer"],
        "index": [wanted.get("index_url"), *wanted.get("extra_index_urls", ())],
        "find_links": wanted.get("find_links", []),
        "local": [_state(workdir, path, code) for path in _local(lines, wanted)],
        # `bin/python` and `bin/python3` are one interpreter in one environment.
        "python": [os.path.realpath(one) for one in (os.path.dirname(python), python)],
        "version": [base["version"], base["platform"]],
        "base": [base["torch"], base["distributions"], base["folders"]],
    }
    return hashlib.sha256(json.dumps(body).encode()).hexdigest()[:_DIGEST_CHARS]


def _read(workdir: Path, name: str) -> list[str]:
    """The lines of one file, with those of the files that it names in their place."""
    found: list[str] = []
    todo, seen = [Path(name)], set()
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        seen.add(path)
        if len(seen) > _MAX_FILES:
            raise InvalidRequirements(f"{name} names more than {_MAX_FILES} other files")
        try:
            lines = lines_of(Path(workdir, path).read_text(encoding="utf-8"))
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise InvalidRequirements(
                f"{path} cannot be read from the work directory: {why}"
            ) from error
        for line in lines:
            nested = _NESTED.match(line)
            other = (nested[1] or nested[2]) if nested else ""
            if nested and "://" not in other:
                todo.append(path.parent / other)
                # The kind counts and the name does not: -r and -c of one file differ.
                found.append(line[:2] if line[1] != "-" else f"-{line[2]}")
            else:
                found.append(line)
    return found


def _local(lines: Sequence[str], wanted: Mapping[str, Any]) -> Iterator[str]:
    """Local paths among the requirements: packages, and folders in which to look for packages."""
    for line in lines:
        if line.startswith((".", "/")):
            yield line.partition(" ")[0]
        elif line.endswith((".whl", ".zip", ".tar.gz")) and "://" not in line and " " not in line:
            yield line
        elif (found := _AT_PATH.search(line)) is not None:
            yield found[2].removeprefix("//")
        elif (found := _FIND_LINKS.match(line)) is not None and "://" not in found[1]:
            yield found[1]
    yield from (one for one in wanted.get("find_links", ()) if "://" not in one)


def _state(workdir: Path, name: str, code: str | None) -> list[str]:
    """A key for the content of a path: the snapshot's digest in the work directory, else size and time."""
    path = Path(name)
    if not path.is_absolute() or path.is_relative_to(workdir):
        return [name, code or ""]
    try:
        facts = path.stat()
    except OSError:
        return [name]
    return [name, str(facts.st_size), str(facts.st_mtime_ns)]
