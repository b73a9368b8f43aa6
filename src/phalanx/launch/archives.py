"""Tar archives of code from outside: every member is checked before anything is written.

The reader takes plain, uncompressed archives with regular files, folders and links that stay inside, and
nothing else. It does not rely on the filters of `tarfile`, which several releases of Python lack or have
with gaps: a link chain that becomes longer than PATH_MAX leads out of the target there.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import IO

from phalanx.errors import UserError
from phalanx.kit.units import format_size

MAX_UNPACKED_BYTES = 4 << 30
MAX_MEMBERS = 200_000
MAX_PATH_BYTES = 1024
_MAX_DEPTH = 64
_MAX_NAME_BYTES = 255
_MAX_HEADER_BYTES = 64 << 10
_BLOCK = 512
_COPY_BYTES = 1 << 20
_NO_TAR = "the code archive cannot be read: send an uncompressed tar archive"
_LAST_TIME_S = 1 << 33  # a later time of change is not set


class MemberKind(Enum):
    """The kinds of members that an archive of code may hold."""

    FILE = "file"
    FOLDER = "folder"
    SYMLINK = "symlink"
    HARD_LINK = "hard link"


_KINDS = {
    b"0": MemberKind.FILE,
    b"\0": MemberKind.FILE,
    b"7": MemberKind.FILE,
    b"5": MemberKind.FOLDER,
    b"2": MemberKind.SYMLINK,
    b"1": MemberKind.HARD_LINK,
}


@dataclass(frozen=True, slots=True)
class ArchiveMember:
    """One checked member: `name` is normal and relative, `target` that of a link, also below the root."""

    name: str
    kind: MemberKind
    size_bytes: int
    offset: int
    executable: bool
    changed_at_s: int
    target: str = ""


def checked_members(file: IO[bytes]) -> list[ArchiveMember]:
    """All members of an archive. Raises UserError, which names a member that is not safe to unpack."""
    found: dict[str, ArchiveMember] = {}
    total = 0
    for count, member in enumerate(_members(file), start=1):
        total += member.size_bytes
        if count > MAX_MEMBERS or total > MAX_UNPACKED_BYTES:
            raise UserError(
                f"the code has more than {MAX_MEMBERS} files or {format_size(MAX_UNPACKED_BYTES)}"
            )
        before = found.get(member.name)
        if before is not None and not before.kind is member.kind is MemberKind.FOLDER:
            raise _unsafe(member.name, "appears twice")
        found[member.name] = member
    folders: set[str] = set()
    for member in found.values():
        _check_place(member, found)
        folders.update(_parents(member.name))
        if len(folders) > MAX_MEMBERS:
            raise UserError(f"the code has more than {MAX_MEMBERS} folders")
    return list(found.values())


def unpack_archive(path: Path, target: Path) -> None:
    """Unpack an archive into the folder `target`, which exists and is empty. Raises UserError, OSError.

    Files are created anew and never through a link: links are made last.
    """
    with path.open("rb") as file:
        members = checked_members(file)
        for member in members:
            place = target / member.name
            if member.kind is MemberKind.FOLDER:
                place.mkdir(mode=0o755, parents=True, exist_ok=True)
            elif member.kind is MemberKind.FILE:
                place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
                _copy(file, member, place)
    for kind in (MemberKind.HARD_LINK, MemberKind.SYMLINK):
        for member in members:
            if member.kind is kind:
                _link(member, target)


def read_members(path: Path, names: Collection[str], most: int) -> dict[str, bytes | None]:
    """The bytes of those files of an archive that have these names; None for one above `most` bytes.

    Raises UserError, OSError.
    """
    found: dict[str, bytes | None] = {}
    with path.open("rb") as file:
        for member in checked_members(file):
            if member.name not in names or member.kind is not MemberKind.FILE:
                continue
            found[member.name] = None
            if member.size_bytes <= most:
                file.seek(member.offset)
                found[member.name] = file.read(member.size_bytes)
    return found


def _copy(file: IO[bytes], member: ArchiveMember, place: Path) -> None:
    file.seek(member.offset)
    with open(place, "xb") as copy:
        left = member.size_bytes
        while left:
            data = file.read(min(left, _COPY_BYTES))
            if not data:
                raise _unsafe(member.name, "is cut off")
            copy.write(data)
            left -= len(data)
        os.fchmod(copy.fileno(), 0o755 if member.executable else 0o644)
    if 0 <= member.changed_at_s < _LAST_TIME_S:
        os.utime(place, (member.changed_at_s, member.changed_at_s))


def _link(member: ArchiveMember, target: Path) -> None:
    place = target / member.name
    place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    if member.kind is MemberKind.HARD_LINK:
        os.link(target / member.target, place, follow_symlinks=False)
    else:
        place.symlink_to(posixpath.relpath(member.target, posixpath.dirname(member.name) or "."))


def _check_place(member: ArchiveMember, found: dict[str, ArchiveMember]) -> None:
    """Refuse members below something other than a folder, and links that pass through a link."""
    for parent in _parents(member.name):
        if parent in found and found[parent].kind is not MemberKind.FOLDER:
            raise _unsafe(member.name, f"is below {parent!r}, which is not a folder")
    if member.kind is MemberKind.HARD_LINK:
        meant = found.get(member.target)
        if meant is None or meant.kind is not MemberKind.FILE:
            raise _unsafe(member.name, f"links to {member.target!r}, which is not a file of it")
    if member.kind is MemberKind.SYMLINK:
        for step in (*_parents(member.target), member.target):
            if step in found and found[step].kind is MemberKind.SYMLINK:
                raise _unsafe(member.name, f"links to {member.target!r} through another link")


def _parents(name: str) -> Iterator[str]:
    """The folders above a normal relative path, the nearest first."""
    while name := posixpath.dirname(name):
        yield name


def _members(file: IO[bytes]) -> Iterator[ArchiveMember]:
    """The members in order; long names and sizes from the headers before them are applied."""
    size = file.seek(0, os.SEEK_END)
    position = 0
    extra: dict[str, str] = {}
    while position + _BLOCK <= size:
        file.seek(position)
        block = file.read(_BLOCK)
        if not block.strip(b"\0"):
            return
        position += _BLOCK
        kind, length = _header(block)
        if kind in (b"x", b"g", b"L", b"K"):
            if length > _MAX_HEADER_BYTES:
                raise UserError(f"the code archive has a header of {format_size(length)}")
            extra |= _extra(kind, file.read(length))
        else:
            member = _member(block, kind, length, position, extra)
            extra = {}
            length = member.size_bytes
            if position + length > size:
                raise _unsafe(member.name, "is cut off")
            if member.name != ".":
                yield member
        position += -(-length // _BLOCK) * _BLOCK
    if position == 0:
        raise UserError(_NO_TAR)
    raise UserError("the code archive is cut off: it has no end mark")


def _header(block: bytes) -> tuple[bytes, int]:
    """The type and the length of the data after a header. Raises UserError."""
    expected = sum(block[:148]) + 256 + sum(block[156:])
    digits = block[148:156].strip(b" \0")
    if digits.lstrip(b"0") != b"%o" % expected:
        raise UserError(_NO_TAR)
    return block[156:157], _number(block[124:136])


def _number(data: bytes) -> int:
    """An octal number, or a positive one in base 256."""
    if data[0] == 0x80:
        return int.from_bytes(data[1:], "big")
    text = data.split(b"\0", 1)[0].strip()
    if text.translate(None, b"01234567"):
        raise UserError("the code archive cannot be read: a header holds no number")
    return int(text or b"0", 8)


def _extra(kind: bytes, data: bytes) -> dict[str, str]:
    """What a header says about the next member; a global one (of `git archive`) has only a comment."""
    if kind == b"L":
        return {"path": _text(data)}
    if kind == b"K":
        return {"linkpath": _text(data)}
    found: dict[str, str] = {}
    position = 0
    while position < len(data) and data[position]:
        digits, _, _ = data[position : position + 8].partition(b" ")
        end = position + int(digits) if digits.isdigit() else 0
        record = data[position + len(digits) + 1 : end]
        key, equals, value = record.partition(b"=")
        if end <= position or not equals or not record.endswith(b"\n"):
            raise UserError("the code archive cannot be read: a pax header is not valid")
        found[_text(key)] = _text(value[:-1])
        position = end
    if any(key.startswith("GNU.sparse") for key in found):
        raise UserError("the code archive is not safe to unpack: it has sparse files")
    if kind == b"g" and found.keys() & {"path", "linkpath", "size"}:
        raise UserError("the code archive is not safe to unpack: a global header names files")
    return {key: found[key] for key in ("path", "linkpath", "size") if key in found}


def _text(data: bytes) -> str:
    return os.fsdecode(data.split(b"\0", 1)[0])


def _member(
    block: bytes, kind: bytes, length: int, offset: int, extra: dict[str, str]
) -> ArchiveMember:
    written = extra.get("path")
    if written is None:
        written = _text(block[:100])
        if block[257:263] == b"ustar\0" and block[345] != 0:
            written = f"{_text(block[345:500])}/{written}"
    found = _KINDS.get(kind)
    if found is None:
        raise _unsafe(written, "is neither a file nor a folder nor a link")
    if found is MemberKind.FILE and written.endswith("/"):
        found = MemberKind.FOLDER  # as archives from before ustar write them
    name = _inside(written, written, "")
    target = extra.get("linkpath") or _text(block[157:257])
    if found is MemberKind.SYMLINK:
        target = _inside(target, written, posixpath.dirname(name))
    elif found is MemberKind.HARD_LINK:
        target = _inside(target, written, "")
    size = extra.get("size", str(length))
    if not size.isascii() or not size.isdigit() or len(size) > 15:
        raise _unsafe(written, "has no valid size")
    return ArchiveMember(
        name=name,
        kind=found,
        size_bytes=int(size) if found is MemberKind.FILE else 0,
        offset=offset,
        executable=bool(_number(block[100:108]) & 0o100),
        changed_at_s=_number(block[136:148]),
        target=target if found in (MemberKind.SYMLINK, MemberKind.HARD_LINK) else "",
    )


def _inside(path: str, named: str, folder: str) -> str:
    """A path from `folder`, as a normal path below the root. Raises UserError when it leaves the root."""
    parts = path.split("/")
    climbing = True
    for part in parts:
        if part == ".." and not climbing:
            raise _unsafe(named, "goes up in the middle of a path")
        climbing = climbing and part in ("", ".", "..")
        if len(os.fsencode(part)) > _MAX_NAME_BYTES:
            raise _unsafe(named, "has a name that is too long")
    if not path or path.startswith("/"):
        raise _unsafe(named, "has an absolute path" if path else "has no name")
    normal = posixpath.normpath(posixpath.join(folder, path))
    if normal == ".." or normal.startswith("../"):
        raise _unsafe(named, "leads out of the archive")
    if len(os.fsencode(normal)) > MAX_PATH_BYTES or normal.count("/") >= _MAX_DEPTH:
        raise _unsafe(named, "has a path that is too long")
    return normal


def _unsafe(name: str, why: str) -> UserError:
    return UserError(f"the code archive is not safe to unpack: {name[:200]!r} {why}")
