"""A deterministic archive of a directory: equal content gives equal bytes."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tarfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO

import pathspec

from phalanx.cli.client.credential_scan import CredentialScan
from phalanx.errors import UserError
from phalanx.kit.units import format_size

MAX_BYTES = 512 * 2**20
MAX_ENTRIES = 50_000
IGNORE_FILES = (".gitignore", ".phalanxignore")
_ALWAYS_OUT = frozenset({".git", ".hg", ".svn"})
# Files of ours in a working directory, such as the lock of a checkpoint folder.
_OURS = ".phalanx-"
_USUALLY_OUT = (
    "__pycache__/",
    "*.pyc",
    ".venv/",
    ".mypy_cache/",
    ".pytest_cache/",
    ".ruff_cache/",
    ".ipynb_checkpoints/",
    ".phalanx-home/",
)


@dataclass(frozen=True, slots=True)
class CodeSnapshot:
    """An archive: its file, the SHA-256 of its bytes, and notes on what was left out."""

    path: Path
    digest: str
    size_bytes: int
    num_files: int
    notes: tuple[str, ...] = ()


class _Hashing:
    """A writable file that digests the bytes written to it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.sha = hashlib.sha256()
        self.size_bytes = 0

    def write(self, data: bytes) -> int:
        self.sha.update(data)
        self.size_bytes += len(data)
        return self._file.write(data)


@dataclass(slots=True)
class _Ignores:
    """Ignore patterns of a folder and its parents; the deepest folder with a match decides."""

    rules: list[tuple[str, pathspec.GitIgnoreSpec]] = field(default_factory=list)

    def deeper(self, folder: str, directory: Path) -> _Ignores:
        """These patterns and those of one more folder."""
        lines: list[str] = []
        for name in IGNORE_FILES:
            try:
                lines += (directory / name).read_text("utf-8", "replace").splitlines()
            except (FileNotFoundError, IsADirectoryError, PermissionError):
                continue
        if not lines:
            return self
        return _Ignores([*self.rules, (folder, pathspec.GitIgnoreSpec.from_lines(lines))])

    def ignored(self, relative: str) -> bool:
        """Whether to leave out `relative`; the path of a folder ends with a slash."""
        for folder, spec in reversed(self.rules):
            inside = relative[len(folder) :] if relative.startswith(folder) else None
            verdict = None if inside is None else spec.check_file(inside).include
            if verdict is not None:
                return verdict
        return False


@dataclass(slots=True)
class _Walk:
    root: Path
    excluded: frozenset[Path]
    notes: list[str] = field(default_factory=list)
    num_entries: int = 0

    def entries(self) -> Iterator[tuple[str, os.DirEntry[str]]]:
        """The entries of the archive, sorted by path."""
        usual = pathspec.GitIgnoreSpec.from_lines(_USUALLY_OUT)
        ignores, prefix = _from_above(self.root, _Ignores([("", usual)]))
        yield from self._folder(self.root, "", prefix, ignores)

    def _folder(
        self, directory: Path, folder: str, prefix: str, above: _Ignores
    ) -> Iterator[tuple[str, os.DirEntry[str]]]:
        ignores = above.deeper(prefix + folder, directory)
        try:
            with os.scandir(directory) as scan:
                found = sorted(scan, key=lambda entry: entry.name)
        except PermissionError:
            self.notes.append(f"{folder or '.'}: left out, not readable")
            return
        except (FileNotFoundError, NotADirectoryError):
            self.notes.append(f"{folder or '.'}: left out, removed meanwhile")
            return
        for entry in found:
            relative = folder + entry.name
            if entry.name in _ALWAYS_OUT or entry.name.startswith(_OURS):
                continue
            if entry.is_dir(follow_symlinks=False):
                if self._unwanted(entry) or ignores.ignored(f"{prefix}{relative}/"):
                    continue
                self._count()
                yield relative, entry
                yield from self._folder(Path(entry.path), relative + "/", prefix, ignores)
            elif not ignores.ignored(prefix + relative):
                self._count()
                yield relative, entry

    def _unwanted(self, entry: os.DirEntry[str]) -> bool:
        """Whether the entry is a virtual environment or an excluded folder, such as the home."""
        path = Path(entry.path)
        return path in self.excluded or (path / "pyvenv.cfg").is_file()

    def _count(self) -> None:
        self.num_entries += 1
        if self.num_entries > MAX_ENTRIES:
            raise UserError(
                f"{self.root} holds more than {MAX_ENTRIES} files",
                "start in your project's folder, or list what to leave out in .phalanxignore",
            )


def _from_above(root: Path, ignores: _Ignores) -> tuple[_Ignores, str]:
    """Patterns of the folders between the Git repository's root and `root`, and the prefix of `root`."""
    chain = [root, *root.parents]
    top = next((folder for folder in chain if (folder / ".git").exists()), None)
    if top is None:
        return ignores, ""
    for folder in reversed(chain[1 : chain.index(top) + 1]):
        relative = folder.relative_to(top).as_posix()
        ignores = ignores.deeper("" if relative == "." else relative + "/", folder)
    prefix = root.relative_to(top).as_posix()
    return ignores, "" if prefix == "." else prefix + "/"


def take(
    root: Path, into: Path, *, excluded: Sequence[Path] = (), max_bytes: int = MAX_BYTES
) -> CodeSnapshot:
    """Archive `root` as the file `into`.

    Symbolic links that lead out of `root`, sockets and devices are left out with a note. Raises
    UserError when the folder is too large, naming its largest entries, changes during the copy, or has
    credentials in a file of less than 1 MiB.
    """
    walk = _Walk(root.absolute(), frozenset(path.absolute() for path in excluded))
    sizes: Counter[str] = Counter()
    num_files = 0
    real_root = root.resolve()
    scan = CredentialScan(root)
    with open(into, "wb") as file:
        sink = _Hashing(file)
        with tarfile.open(fileobj=sink, mode="w|", format=tarfile.PAX_FORMAT) as archive:  # type: ignore[call-overload]
            for relative, entry in walk.entries():
                info = _describe(relative, entry, real_root, walk.notes)
                if info is None:
                    continue
                if not info.isreg():
                    archive.addfile(info)
                    continue
                num_files += 1
                sizes[PurePosixPath(relative).parts[0]] += info.size
                if sizes.total() > max_bytes:
                    _too_large(root, walk, sizes, max_bytes)
                _add(archive, info, Path(entry.path), walk.notes, scan)
    scan.check()
    return CodeSnapshot(into, sink.sha.hexdigest(), sink.size_bytes, num_files, tuple(walk.notes))


def _describe(
    relative: str, entry: os.DirEntry[str], real_root: Path, notes: list[str]
) -> tarfile.TarInfo | None:
    info = tarfile.TarInfo(relative)
    try:
        status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        notes.append(f"{relative}: left out, removed meanwhile")
        return None
    if entry.is_symlink():
        target = _inside(Path(entry.path), real_root)
        if target is None:
            notes.append(f"{relative}: left out, the link leads out of the folder or nowhere")
            return None
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, target, 0o777
    elif entry.is_dir(follow_symlinks=False):
        info.type, info.mode = tarfile.DIRTYPE, 0o755
    elif stat.S_ISREG(status.st_mode):
        info.size = status.st_size
        info.mode = 0o755 if status.st_mode & stat.S_IXUSR else 0o644
    else:
        notes.append(f"{relative}: left out, it is not a file")
        return None
    return info


def _inside(link: Path, real_root: Path) -> str | None:
    """The target of a link, relative to its own folder; None when it is not under the root."""
    try:
        target = link.resolve(strict=True)
    except (OSError, RuntimeError):
        return None
    if not target.is_relative_to(real_root):
        return None
    return os.path.relpath(target, link.parent.resolve())


def _add(
    archive: tarfile.TarFile,
    info: tarfile.TarInfo,
    path: Path,
    notes: list[str],
    scan: CredentialScan,
) -> None:
    try:
        with open(path, "rb") as file:
            data = file.read(info.size) if info.size < 2**20 else None
            if data is not None:
                info.size = len(data)
                scan.look(info.name, data)
            archive.addfile(info, io.BytesIO(data) if data is not None else file)
    except PermissionError:
        notes.append(f"{info.name}: left out, not readable")
    except FileNotFoundError:
        notes.append(f"{info.name}: left out, removed meanwhile")
    except OSError as error:
        raise UserError(f"{path} changed while it was copied: {error}", "try again") from error


def _too_large(root: Path, walk: _Walk, sizes: Counter[str], max_bytes: int) -> None:
    """Raise UserError naming the largest entries of the whole folder."""
    sizes = Counter()
    measure = _Walk(walk.root, walk.excluded)
    for relative, entry in measure.entries():
        if entry.is_file(follow_symlinks=False):
            sizes[PurePosixPath(relative).parts[0]] += entry.stat(follow_symlinks=False).st_size
    largest = ", ".join(f"{name} ({format_size(size)})" for name, size in sizes.most_common(3))
    raise UserError(
        f"{root} holds {format_size(sizes.total())}, more than the limit of {format_size(max_bytes)} "
        f"for the code of a job; the largest: {largest}",
        "list what the job does not need in .phalanxignore, one pattern a line",
    )
