"""Archives from outside are unpacked below their folder, or not at all."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.errors import UserError
from phalanx.launch import archives
from phalanx.launch.archives import checked_members, unpack_archive

pytestmark = pytest.mark.unit
FORMATS = (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT)


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def write(path: Path, members: Iterable[tarfile.TarInfo], form: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, "w", format=form) as archive:
        for one in members:
            data = b"planted" if one.isreg() else b""
            one.size = len(data)
            archive.addfile(one, io.BytesIO(data))
    return path


def long_chain(up: int) -> list[tarfile.TarInfo]:
    """CVE-2025-4517: the real path of the link becomes longer than PATH_MAX, and is not resolved."""
    made: list[tarfile.TarInfo] = []
    folder, path = "d" * 247, ""
    for letter in "abcdefghijklmnop":
        made.append(member(os.path.join(path, folder), tarfile.DIRTYPE))
        made.append(member(os.path.join(path, letter), tarfile.SYMTYPE, folder))
        path = os.path.join(path, folder)
    steps = "/".join("abcdefghijklmnop")
    far = os.path.join(steps, "l" * 254)
    made.append(member(far, tarfile.SYMTYPE, "../" * len(steps.split("/"))))
    made.append(member("escape", tarfile.SYMTYPE, far + "/.." * up))
    made.append(member("linked", tarfile.LNKTYPE, "escape/outside.txt"))
    made.append(member("linked"))
    return made


ATTACKS: dict[str, Callable[[], list[tarfile.TarInfo]]] = {
    "link chain beyond PATH_MAX": lambda: long_chain(1),
    "file through a link": lambda: [member("d", tarfile.SYMTYPE, ".."), member("d/outside.txt")],
    "link through a link": lambda: [
        member("a", tarfile.SYMTYPE, "."),
        member("b", tarfile.SYMTYPE, "a/.."),
    ],
    "link to a link": lambda: [
        member("real"),
        member("a", tarfile.SYMTYPE, "real"),
        member("b", tarfile.SYMTYPE, "a"),
    ],
    "upwards in the middle": lambda: [member("x/y", tarfile.SYMTYPE, "a/../../b")],
    "absolute": lambda: [member("/outside.txt")],
    "absolute link": lambda: [member("x", tarfile.SYMTYPE, "/etc")],
    "hard link outside": lambda: [member("x", tarfile.LNKTYPE, "../outside.txt")],
    "hard link to a link": lambda: [
        member("a", tarfile.SYMTYPE, "b"),
        member("x", tarfile.LNKTYPE, "a"),
    ],
    "parent": lambda: [member("../outside.txt")],
    "hidden parent": lambda: [member("a/../../outside.txt")],
    "twice": lambda: [member("d", tarfile.SYMTYPE, "e"), member("d")],
    "device": lambda: [member("null", tarfile.CHRTYPE)],
    "pipe": lambda: [member("pipe", tarfile.FIFOTYPE)],
    "too long": lambda: [member("/".join(["d" * 200] * 6))],
    "too deep": lambda: [member("/".join(["d"] * 70))],
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
@pytest.mark.parametrize("form", FORMATS[:2], ids=["pax", "gnu"])
def test_an_unsafe_archive_writes_nothing(
    tmp_path: Path, attack: Callable[[], list[tarfile.TarInfo]], form: int
) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("kept")
    target = tmp_path / "in" / "code"
    target.mkdir(parents=True)
    archive = write(tmp_path / "x.tar", attack(), form)
    with pytest.raises(UserError, match="not safe to unpack"):
        unpack_archive(archive, target)
    assert list(target.iterdir()) == []
    assert outside.read_text() == "kept"


def test_the_filter_of_this_python_alone_may_let_the_chain_out(tmp_path: Path) -> None:
    """The control: with `tarfile` and its data filter the same archive reaches outside, or is refused."""
    outside = tmp_path / "in" / "outside.txt"
    target = tmp_path / "in" / "code"
    target.mkdir(parents=True)
    outside.write_text("kept")
    archive = write(tmp_path / "x.tar", long_chain(1))
    try:
        with tarfile.open(archive) as opened:
            opened.extractall(target, filter="data")
    except (tarfile.TarError, OSError):
        pytest.skip("this Python refuses it")
    assert outside.read_text() == "planted"


@pytest.mark.parametrize("form", FORMATS, ids=["pax", "gnu", "ustar"])
def test_what_tar_writes_is_unpacked_as_tar_does(tmp_path: Path, form: int) -> None:
    long = "/".join(["package"] * 12) + "/module.py"
    members = [
        member("./", tarfile.DIRTYPE),
        member("empty", tarfile.DIRTYPE),
        member(long),
        member("lib/real.py"),
        member("lib/deep/alias.py", tarfile.SYMTYPE, "../real.py"),
        member("same.py", tarfile.LNKTYPE, "lib/real.py"),
        member("tool"),
    ]
    members[-1].mode = 0o4755
    if form != tarfile.USTAR_FORMAT:
        members.append(member("p" * 120 + "/größe.txt"))
    archive = write(tmp_path / "x.tar", members, form)
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    unpack_archive(archive, ours)
    with tarfile.open(archive) as opened:
        opened.extractall(theirs, filter="data")
    assert _tree(ours) == _tree(theirs)
    assert (ours / "tool").stat().st_mode & 0o7777 == 0o755


def _tree(root: Path) -> dict[str, object]:
    return {
        path.relative_to(root).as_posix(): (
            os.path.join(os.path.realpath(path.parent), path.readlink()).removeprefix(str(root))
            if path.is_symlink()
            else path.read_bytes()
            if path.is_file()
            else None
        )
        for path in root.rglob("*")
    }


def test_a_compressed_archive_is_refused(tmp_path: Path) -> None:
    plain = write(tmp_path / "x.tar", [member("train.py")]).read_bytes()
    with pytest.raises(UserError, match="uncompressed tar"):
        checked_members(io.BytesIO(gzip.compress(plain)))


def test_the_number_of_folders_is_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = [f"{one}/{two}/x" for one in "abc" for two in "abc"]
    archive = write(tmp_path / "x.tar", map(member, names)).read_bytes()
    monkeypatch.setattr(archives, "MAX_MEMBERS", 9)
    with pytest.raises(UserError, match="folders"):
        checked_members(io.BytesIO(archive))
    monkeypatch.setattr(archives, "MAX_MEMBERS", 8)
    with pytest.raises(UserError, match="more than 8 files"):
        checked_members(io.BytesIO(archive))


@pytest.mark.parametrize("size", ["-512", "1e9", "9" * 40], ids=["negative", "float", "huge"])
def test_a_size_in_a_pax_header_is_a_number(tmp_path: Path, size: str) -> None:
    one = member("x")
    one.pax_headers = {"size": size}
    with pytest.raises(UserError, match="no valid size"):
        checked_members(io.BytesIO(write(tmp_path / "x.tar", [one]).read_bytes()))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damage_is_an_error_of_the_sender(data: st.DataObject) -> None:
    """Any bytes give members that lie inside, or a UserError: never another exception, never a loop."""
    buffer = io.BytesIO()
    with tarfile.open(
        fileobj=buffer, mode="w", format=data.draw(st.sampled_from(FORMATS[:2]))
    ) as tar:
        for name in ("a" * 150, "b/c", "größe"):
            info = member(name)
            info.size = 600
            tar.addfile(info, io.BytesIO(b"x" * 600))
        tar.addfile(member("l", tarfile.SYMTYPE, "b/c"))
    content = bytearray(buffer.getvalue()[: data.draw(st.integers(0, buffer.tell()))])
    for _ in range(data.draw(st.integers(0, 4))):
        if content:
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = checked_members(io.BytesIO(content))
    except UserError:
        return
    for one in found:
        for path in (one.name, one.target):
            assert not path.startswith("/") and ".." not in path.split("/")
