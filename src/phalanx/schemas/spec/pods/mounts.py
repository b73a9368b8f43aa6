"""Volumes as people write them: `pvc:NAME:/path[:ro]`, `emptydir:10GB:/path` and the like."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from phalanx.core.contract.pods import VolumeMount
from phalanx.kit.units import parse_size
from phalanx.schemas.spec.fields import Section, Whether

_OBJECT = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_SERVER = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_HOW = (
    "pvc:NAME, configmap:NAME, secret:NAME, nfs:SERVER:/export, emptydir, emptydir:SIZE or "
    "hostpath:/path"
)
# Paths of a container that belong to the runtime, the executor or `resources.shm`.
_TAKEN = ("/dev", "/proc", "/sys", "/var/run/phalanx", "/run/phalanx", "/tmp/phalanx")
_MAX_PATH = 4096


def read_source(text: str) -> tuple[str, str]:
    """Kind and source of a volume. Raises ValueError."""
    word, _, source = text.partition(":")
    kind = word.lower()
    if kind in ("pvc", "configmap", "secret"):
        if not _OBJECT.fullmatch(source):
            raise ValueError(f"{word}: needs the name of an object, as in {kind}:data")
    elif kind == "nfs":
        server, _, export = source.partition(":")
        if not _SERVER.fullmatch(server) or not _is_path(export, root=True):
            raise ValueError("nfs: needs a server and an absolute path: nfs:SERVER:/export")
    elif kind == "hostpath":
        if not _is_path(source):
            raise ValueError("hostpath: needs an absolute path of the node without `..`")
    elif kind == "emptydir":
        if source and parse_size(source) < 1:
            raise ValueError("emptydir: must have at least 1 byte")
    else:
        raise ValueError(f"must be {_HOW}")
    return kind, source


def _is_path(text: str, *, root: bool = False) -> bool:
    """Whether a text is an absolute path without `.`, `..` and colons; `root`: / is one, too."""
    if not text.startswith("/") or len(text) > _MAX_PATH or not text.isprintable() or ":" in text:
        return False
    return posixpath.normpath(text) in (text, text.rstrip("/")) and (root or text.strip("/") != "")


def _source(text: str) -> str:
    kind, source = read_source(text)
    return f"{kind}:{source}" if source else kind


def _place(path: str) -> str:
    if not _is_path(path):
        raise ValueError("must be an absolute path below /, without `..` and colons")
    path = path.rstrip("/")
    if path == "/dev/shm":
        raise ValueError("is set with `resources.shm`; write the size of /dev/shm there")
    if any(path == one or path.startswith(f"{one}/") for one in _TAKEN):
        raise ValueError(f"is a folder of the container itself; others than {', '.join(_TAKEN)}")
    return path


class Mount(Section):
    """A volume that is mounted for the ranks."""

    source: Annotated[
        str, Field(strict=True, min_length=1, max_length=_MAX_PATH), AfterValidator(_source)
    ] = Field(description=f"The volume: {_HOW}.")
    path: Annotated[
        str, Field(strict=True, max_length=_MAX_PATH, pattern="^/"), AfterValidator(_place)
    ] = Field(description="Absolute path of the mount point.")
    read_only: Whether = Field(default=False, description="true: no writes.")

    def to_core(self) -> VolumeMount:
        """The core value."""
        kind, source = read_source(self.source)
        if kind == "emptydir" and source:
            source = str(parse_size(source))
        return VolumeMount(kind, source, self.path, self.read_only)


def short_mount(value: Any) -> Any:
    """The short form `source:/path[:ro]` as a mapping; anything else as it is. Raises ValueError."""
    if not isinstance(value, str):
        return value
    text, _, mode = value.rpartition(":")
    if mode != "ro":
        text, mode = value, ""
    source, _, path = text.rpartition(":/")
    if not source:
        raise ValueError("write source:/path or source:/path:ro")
    return {"source": source, "path": f"/{path}", "read_only": mode == "ro"}


def twice_mounted(mounts: Iterable[VolumeMount]) -> str | None:
    """A path at which two volumes would be mounted; None where there is none."""
    seen: set[str] = set()
    for one in mounts:
        if one.path in seen:
            return one.path
        seen.add(one.path)
    return None


def is_below(path: str, prefixes: Iterable[str]) -> bool:
    """Whether a path is one of the prefixes or below one of them."""
    return any(
        path == one or path.startswith(one if one.endswith("/") else f"{one}/") for one in prefixes
    )
