"""Code archives: verified before they are kept, unpacked whole or not at all."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from phalanx.errors import LaunchError, UserError
from phalanx.launch import archives
from phalanx.schemas.home import HomeLayout
from phalanx.services.lifecycle import code
from phalanx.services.platform import Platform

pytestmark = pytest.mark.unit


def tar(**members: bytes | tarfile.TarInfo) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in members.items():
            if isinstance(content, tarfile.TarInfo):
                archive.addfile(content)
                continue
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def upload(home: HomeLayout, content: bytes, digest: str | None = None) -> str:
    digest = digest or hashlib.sha256(content).hexdigest()
    one = code.CodeUpload(home, digest)
    try:
        one.write(content)
        one.verify()
        one.publish()
    finally:
        one.abandon()
    return digest


def platform_of(home: HomeLayout) -> Platform:
    """What the functions read of a platform without an object store."""
    return cast("Platform", SimpleNamespace(home=home, code_archives=None))


@pytest.fixture
def home(tmp_path: Path) -> HomeLayout:
    return HomeLayout(tmp_path)


def test_what_was_uploaded_is_unpacked(home: HomeLayout, tmp_path: Path) -> None:
    digest = upload(home, tar(train=b"print(1)"))
    assert code.has(platform_of(home), digest)
    target = tmp_path / "a" / "code"
    code.unpack(platform_of(home), digest, target)
    assert (target / "train").read_bytes() == b"print(1)"
    (target / "train").write_bytes(b"changed")
    code.unpack(
        platform_of(home), digest, target
    )  # an attempt that is launched again keeps its folder
    assert (target / "train").read_bytes() == b"changed"


def test_a_wrong_digest_leaves_no_trace(home: HomeLayout) -> None:
    with pytest.raises(UserError, match="does not match its digest"):
        upload(home, tar(x=b"1"), "0" * 64)
    assert list(home.code_dir.iterdir()) == []


def link(name: str, target: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    return info


def device(name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = tarfile.CHRTYPE
    return info


@pytest.mark.parametrize(
    "member",
    [link("x", "/etc/passwd"), link("x", "../../up"), device("null"), tarfile.TarInfo("../out")],
    ids=["absolute link", "link outside", "device", "name outside"],
)
def test_what_is_not_safe_is_refused(home: HomeLayout, member: tarfile.TarInfo) -> None:
    with pytest.raises(UserError, match="not safe"):
        upload(home, tar(member=member))
    assert list(home.code_dir.iterdir()) == []


def test_a_link_inside_is_welcome(home: HomeLayout) -> None:
    upload(home, tar(train=b"1", member=link("alias", "train")))


def test_what_is_no_archive_is_refused(home: HomeLayout) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        upload(home, b"garbage" * 100)


def test_limits(home: HomeLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    content = tar(a=b"1" * 5000, b=b"2")
    monkeypatch.setattr(archives, "MAX_UNPACKED_BYTES", 4000)
    with pytest.raises(UserError, match="has more than"):
        upload(home, content)
    monkeypatch.undo()
    monkeypatch.setattr(code, "MAX_ARCHIVE_BYTES", 4000)
    with pytest.raises(UserError, match="larger than"):
        upload(home, content)
    monkeypatch.undo()
    upload(home, content)


def test_an_archive_that_has_gone_is_a_failed_launch(home: HomeLayout, tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="cannot be unpacked"):
        code.unpack(platform_of(home), "1" * 64, tmp_path / "code")
    assert not (tmp_path / "code").exists()
