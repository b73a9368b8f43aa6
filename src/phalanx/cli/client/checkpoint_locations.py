"""Checkpoint locations of the verb `checkpoints`: a folder, or a prefix of an object store."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from phalanx.cli.client.session import Session
from phalanx.errors import (
    CheckpointCorrupt,
    CheckpointNotFound,
    NotFound,
    PermissionDenied,
    PlatformError,
    UserError,
)
from phalanx.kit.text import job_label, parse_job_label, random_hex

if TYPE_CHECKING:
    from phalanx.checkpoint.encryption import Encryption
    from phalanx.checkpoint.remote_store import ObjectStore
    from phalanx.core.training.checkpoints import Manifest
    from phalanx.schemas.api.jobs import JobView

VALID = "valid"
_FEW_TRIES = {"max_retries": 2}


@dataclass(frozen=True, slots=True)
class Contents:
    """What a location holds; `good` pairs the position of a checkpoint with its manifest, newest first."""

    good: list[tuple[str, Manifest]]
    bad: Mapping[str, str] = field(default_factory=dict)
    debris: list[str] = field(default_factory=list)
    quarantined: list[str] = field(default_factory=list)


class CheckpointLocation(Protocol):
    """A folder or prefix with checkpoints in it, or one checkpoint.

    Every method raises CheckpointNotFound when nothing is there, and the errors of an object store.
    """

    @property
    def where(self) -> str:
        """The location as the user writes it."""
        ...

    @property
    def fate(self) -> str:
        """What `scrub` does with a bad checkpoint."""
        ...

    def contents(self) -> Contents:
        """List the location; only manifests are read."""
        ...

    def manifest(self) -> Manifest:
        """The manifest of the checkpoint, or of the newest one."""
        ...

    def verdicts(self, seal: Encryption | None) -> dict[str, str]:
        """Read every byte and return `valid` or the fault of each checkpoint; with a key, also decrypt."""
        ...

    def scrub(self) -> dict[str, str]:
        """Verify all checkpoints; bad ones are quarantined where the location supports it."""
        ...

    def remove(self, *, spare_last: bool) -> None:
        """Delete the checkpoint; with `spare_last`, never the last valid one."""
        ...

    def local_copy(self) -> contextlib.AbstractContextManager[Path]:
        """The checkpoint, or the newest valid one, in a local folder inside the context."""
        ...


def locate(word: str, session: Session) -> CheckpointLocation:
    """The location that a word on the command line names: a URL, a path, a job or its checkpoint.

    Raises UserError, NotFound.
    """
    if "://" in word:
        return RemoteLocation.of(word, session.invocation.env)
    path = session.invocation.cwd / Path(word).expanduser()
    label, _, name = word.partition("/")
    num = parse_job_label(label)
    if num is None or path.exists():
        return LocalLocation(path if Path(word).is_absolute() else Path(word))
    with session.client() as client:
        view = client.job(num)
    return _locate_of_job(view, name, session)


def _locate_of_job(view: JobView, name: str, session: Session) -> CheckpointLocation:
    folder = Path(view.checkpoint_dir) if view.checkpoint_dir is not None else None
    copies = copies_of(view)
    if folder is not None and folder.is_dir() and (copies is None or _is_in(folder, name)):
        return LocalLocation(folder / name)
    if copies is None:
        said = f"{view.label} has no checkpoints on this machine and no copies in an object store"
        raise CheckpointNotFound(said)
    return RemoteLocation.of(f"{copies}/{name}".rstrip("/"), session.invocation.env)


def _is_in(folder: Path, name: str) -> bool:
    """Whether a folder holds a checkpoint, or any: nodes may commit in the object store alone."""
    from phalanx.core.training.checkpoints import is_checkpoint_name

    if name:
        return (folder / name).is_dir()
    return any(is_checkpoint_name(path.name) for path in folder.iterdir())


def copies_of(view: JobView) -> str | None:
    """The prefix of a job's remote copies; None when its spec names no object store."""
    store = ((view.spec or {}).get("checkpoint") or {}).get("store")
    return f"{store}/{view.project}/{job_label(view.num)}" if store else None


@dataclass(frozen=True, slots=True)
class LocalLocation:
    """A folder on this machine."""

    path: Path
    fate: str = "quarantined"

    @property
    def where(self) -> str:
        """The path of the folder."""
        return str(self.path)

    def contents(self) -> Contents:
        """See `CheckpointLocation`."""
        from phalanx.checkpoint import scan

        if not self.path.is_dir():
            raise CheckpointNotFound(f"{self.path}: no such folder")
        found = scan(self.path)
        return Contents(
            [(str(one.path), one.manifest) for one in found.good],
            {str(path): why for path, why in found.bad.items()},
            [str(path) for path in found.debris],
            [str(path) for path in found.quarantined],
        )

    def manifest(self) -> Manifest:
        """See `CheckpointLocation`."""
        from phalanx.checkpoint import list_checkpoints, read_manifest

        inside = list_checkpoints(self.path)
        return inside[0].manifest if inside else read_manifest(self.path)

    def verdicts(self, seal: Encryption | None) -> dict[str, str]:
        """See `CheckpointLocation`."""
        from phalanx.checkpoint import scan, verify

        listing, found = scan(self.path), {}
        for one in sorted({*(one.path for one in listing.good), *listing.bad}) or [self.path]:
            try:
                manifest = verify(one)
                if seal is not None:
                    _open_all(one, manifest, seal)
                found[str(one)] = VALID
            except (CheckpointCorrupt, PermissionDenied) as error:
                found[str(one)] = error.message
        return found

    def scrub(self) -> dict[str, str]:
        """See `CheckpointLocation`."""
        from phalanx.checkpoint import scrub

        if not self.path.is_dir():
            raise CheckpointNotFound(f"{self.path}: no such folder")
        result = scrub(self.path, random_hex(8))
        found = {str(one): VALID for one in result.valid}
        return found | {str(result.set_aside[one]): why for one, why in result.bad.items()}

    def remove(self, *, spare_last: bool) -> None:
        """See `CheckpointLocation`."""
        from phalanx.checkpoint import list_checkpoints, read_manifest, remove

        try:
            read_manifest(self.path)
        except CheckpointCorrupt:
            pass  # unusable, so it may be removed
        else:
            siblings = {one.path.name for one in list_checkpoints(self.path.parent)}
            _spare(self.where, len(siblings - {self.path.name}), spare_last=spare_last)
        try:
            remove(self.path)
        except OSError as error:
            raise PlatformError(f"{self.path}: cannot be removed: {error.strerror}") from error

    @contextlib.contextmanager
    def local_copy(self) -> Iterator[Path]:
        """See `CheckpointLocation`."""
        from phalanx.checkpoint import newest_valid

        newest = newest_valid(self.path)
        yield self.path if newest is None else newest.path


def _open_all(path: Path, manifest: Manifest, seal: Encryption) -> None:
    """Authenticate every byte of a sealed checkpoint. Raises CheckpointCorrupt, PermissionDenied."""
    opener = seal.opener(manifest)
    block = memoryview(bytearray(1 << 24))
    for entry in manifest.files:
        file = opener(path, entry)
        for at in range(0, file.size_bytes, len(block)):
            file.read_into(at, block[: min(len(block), file.size_bytes - at)])


def _spare(where: str, others: int, *, spare_last: bool) -> None:
    if spare_last and not others:
        raise UserError(
            f"{where} is the last valid checkpoint in its folder",
            "add --force to delete it all the same",
        )


@dataclass(frozen=True, slots=True)
class RemoteLocation:
    """A prefix of an object store; `name` is that of one checkpoint, or empty."""

    prefix: str
    name: str
    store: ObjectStore
    fate: str = "bad, a resume skips it"

    @classmethod
    def of(cls, url: str, environ: Mapping[str, str]) -> RemoteLocation:
        """The location of a URL. Raises UserError, NotSupported."""
        from phalanx.checkpoint.remote_store import open_store
        from phalanx.core.training.checkpoints import is_checkpoint_name

        if "@" in url or "?" in url:
            raise UserError(
                "the URL of an object store must not hold credentials or options",
                "they come from the environment, such as AWS_ACCESS_KEY_ID",
            )
        prefix, _, last = url.rstrip("/").rpartition("/")
        if not is_checkpoint_name(last):
            prefix, last = url.rstrip("/"), ""
        return cls(prefix, last, open_store(prefix, environ, _options(prefix)))

    @property
    def where(self) -> str:
        """The URL of the location."""
        return f"{self.prefix}/{self.name}".rstrip("/")

    def contents(self) -> Contents:
        """See `CheckpointLocation`."""
        from phalanx.checkpoint import remote

        found = remote.look(self.store)
        ordered = sorted(found.good.values(), key=lambda one: one.order, reverse=True)
        return Contents(
            [(f"{self.prefix}/{one.name}", one) for one in ordered],
            {f"{self.prefix}/{name}": why for name, why in found.bad.items()},
            [f"{self.prefix}/{name}" for name in found.debris],
        )

    def manifest(self) -> Manifest:
        """See `CheckpointLocation`."""
        contents = self.contents()
        for where, one in contents.good:
            if self.name in ("", one.name):
                return one
            if where in contents.bad:
                break
        raise CheckpointNotFound(
            contents.bad.get(self.where, f"{self.where}: there is no committed checkpoint here")
        )

    def verdicts(self, seal: Encryption | None) -> dict[str, str]:
        """See `CheckpointLocation`. A sealed checkpoint is also checked for authenticity."""
        from phalanx.checkpoint import remote

        contents = self.contents()
        found = dict(contents.bad)
        for where, manifest in contents.good:
            try:
                if seal is not None:
                    seal.opener(manifest)
                if self.name in ("", manifest.name):
                    found[where] = remote.audit(self.store, manifest)
            except (CheckpointCorrupt, PermissionDenied) as error:
                found[where] = error.message
        if self.name:
            found = {where: verdict for where, verdict in found.items() if where == self.where}
        if not found:
            raise CheckpointNotFound(f"{self.where}: there is no committed checkpoint here")
        return dict(sorted(found.items()))

    def scrub(self) -> dict[str, str]:
        """See `CheckpointLocation`. Bad checkpoints stay: a resume skips what does not match."""
        return self.verdicts(None)

    def remove(self, *, spare_last: bool) -> None:
        """See `CheckpointLocation`."""
        from phalanx.checkpoint import remote

        if not self.name:
            raise UserError(f"{self.where} is not one checkpoint", "append the checkpoint's name")
        listing = remote.look(self.store)
        if self.name not in listing.objects:
            raise CheckpointNotFound(f"{self.where}: there is no checkpoint here")
        if self.name in listing.good:
            _spare(self.where, len(listing.good.keys() - {self.name}), spare_last=spare_last)
        remote.remove(self.store, self.name, listing.objects[self.name])

    @contextlib.contextmanager
    def local_copy(self) -> Iterator[Path]:
        """See `CheckpointLocation`. Fetches and verifies into a temporary folder."""
        from phalanx.checkpoint import remote

        with tempfile.TemporaryDirectory(prefix="phalanx-checkpoint-") as folder:
            try:
                yield remote.fetch(self.store, self.manifest().name, Path(folder), random_hex(8))
            except NotFound as error:
                raise CheckpointNotFound(error.message) from error


def _options(url: str) -> dict[str, object]:
    """Short retries: the user waits, so an unreachable store must be reported soon."""
    from datetime import timedelta

    if url.startswith(("file:", "memory:")):
        return {}
    retry = {**_FEW_TRIES, "retry_timeout": timedelta(seconds=10)}
    return {"retry_config": retry, "client_options": {"timeout": "60s", "connect_timeout": "5s"}}
