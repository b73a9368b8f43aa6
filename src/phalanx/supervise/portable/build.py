"""Build a supervisor tree: `python -m phalanx.supervise.portable.build FOLDER [--tar FILE]`.

The tree has the Python that runs this program, its standard library, the packages that supervisors
import, every shared library of these and their loader, certificate authorities, and Phalanx without the
control plane. It runs on machines of the same architecture only.
"""

from __future__ import annotations

import argparse
import compileall
import hashlib
import importlib.metadata
import json
import os
import platform
import py_compile
import re
import shutil
import ssl
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import phalanx
from phalanx.errors import UserError
from phalanx.kit.interpreter import AUTHORITIES, LOADER, MANIFEST, NATIVE, PYTHON, command_in
from phalanx.schemas.wire import ASSIGNMENT_PROTOCOL
from phalanx.supervise.portable.image_python import RANKS

RANK_PARTS = ("__init__.py", "checkpoint", "core", "errors.py", "kit", "launch", "train")
"""They import nothing beside the standard library, except where the image has it."""
SUPERVISOR_PARTS = (*RANK_PARTS, "executors", "schemas", "supervise")
REQUIRED = (
    *("annotated-types", "pydantic", "pydantic-core", "typing-extensions", "typing-inspection"),
    "xxhash",
)
OPTIONAL = ("nvidia-ml-py", "obstore")
"""Object stores and GPU memory: a tree has them where the Python that builds it does."""
_UNUSED = (
    *("__pycache__", "site-packages", "test", "idlelib", "tkinter", "turtledemo", "lib2to3"),
    *("ensurepip", "pydoc_data", "config-*", "turtle.py", "lib-dynload", "distutils", "sqlite3"),
    *("dbm", "curses", "unittest", "doctest.py", "pydoc.py", "wsgiref", "xml", "xmlrpc"),
    *("multiprocessing", "pickletools.py"),
)
_UNUSED_EXTENSIONS = re.compile(
    r"_?xx|_test|_tkinter|_ctypes_test|_dbm|_gdbm|_curses|_sqlite3|nis\b|readline|ossaudiodev"
)
# Loaded by name while a program runs, so that no file names them.
_LOADED_BY_NAME = ("libgcc_s.so.1", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libutil.so.1")
_NEEDED = re.compile(r"^\s*(?:(\S+) => )?(/\S+) \(0x[0-9a-f]+\)$", re.MULTILINE)
_MISSING = re.compile(r"^\s*(\S+) => not found$", re.MULTILINE)
# Executors of other pools, and messages of gRPC.
_NOT_IN_PODS = ("executors/local", "executors/ray", "schemas/rpc")
# Distributions change where Python looks for packages: Debian's has no site-packages.
_FIND_PACKAGES = """import os
import sys

sys.path.append(os.path.join(sys.base_prefix, "lib", "packages"))
"""
_TRIED = """
import importlib, pkgutil, pydantic, ssl
import phalanx.executors.kubernetes.pod, phalanx.train.programs.resume_from
for room in ("supervise", "launch", "checkpoint"):
    package = importlib.import_module(f"phalanx.{room}")
    for one in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(one.name)
"""


class TreeBuild:
    """One build into an empty folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        self.library = root / "lib" / self.version
        self.packages_folder = root / "lib" / "packages"
        self.distributions: dict[str, str] = {}

    def run(self) -> None:
        """Build everything and try it. Raises UserError where this machine lacks something."""
        self._copy_python()
        for name in (*REQUIRED, *OPTIONAL):
            self._copy_distribution(name)
        self._copy_phalanx()
        self._copy_native()
        self._copy_authorities()
        self._strip()
        self._compile()
        for path in (self.root, *self.root.rglob("*")):
            if not path.is_symlink():
                executable = path.is_dir() or path.parent.name == "bin"
                path.chmod(0o755 if executable else 0o644)
        self._write_manifest()
        self._try()

    # -- parts -------------------------------------------------------------------------------------

    def _copy_python(self) -> None:
        standard = Path(sysconfig.get_path("stdlib"))
        shutil.copytree(standard, self.library, ignore=shutil.ignore_patterns(*_UNUSED))
        (self.library / "sitecustomize.py").unlink(missing_ok=True)
        (self.library / "sitecustomize.py").write_text(_FIND_PACKAGES)
        self.packages_folder.mkdir()
        extensions = self.library / "lib-dynload"
        extensions.mkdir()
        platform_library = sysconfig.get_path("platstdlib", vars={"platbase": sys.base_exec_prefix})
        for one in Path(platform_library, "lib-dynload").glob("*.so"):
            if not _UNUSED_EXTENSIONS.match(one.name):
                shutil.copy(one, extensions)
        target = self.root / PYTHON
        target.parent.mkdir()
        shutil.copy(Path(getattr(sys, "_base_executable", sys.executable)).resolve(), target)

    def _copy_distribution(self, name: str) -> None:
        try:
            found = importlib.metadata.distribution(name)
        except PackageNotFoundError:
            if name in OPTIONAL:
                return
            raise UserError(f"the package {name} is not installed for {sys.executable}") from None
        for file in found.files or ():
            # Programs and caches are not needed; paths with `..` are of programs.
            if ".." in file.parts or "__pycache__" in file.parts:
                continue
            target = self.packages_folder.joinpath(*file.parts)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(Path(str(file.locate())), target)
        self.distributions[name] = found.version

    def _copy_phalanx(self) -> None:
        source, target = Path(phalanx.__file__).parent, self.packages_folder / "phalanx"
        ignored = shutil.ignore_patterns("__pycache__", "*.c", "*.so")
        target.mkdir()
        for part in SUPERVISOR_PARTS:
            if (source / part).is_dir():
                shutil.copytree(source / part, target / part, ignore=ignored)
            else:
                shutil.copy(source / part, target / part)
        for part in _NOT_IN_PODS:
            shutil.rmtree(target / part)
        for one in (source / "launch").glob("*.c"):
            shutil.copy(one, target / "launch")
        ranks = self.root / RANKS / "phalanx"
        ranks.mkdir(parents=True)
        for part in RANK_PARTS:
            (ranks / part).symlink_to(os.path.relpath(target / part, ranks))

    def _copy_native(self) -> None:
        """Copy every shared library that the Python and its extensions need, and the loader."""
        folder = self.root / NATIVE
        folder.mkdir()
        beside = {one.name for one in self.packages_folder.rglob("*.so*")}
        found: dict[str, Path] = {}
        programs = (*self.library.rglob("*.so*"), *self.packages_folder.rglob("*.so*"))
        for program in (self.root / PYTHON, *programs):
            # The library of Python itself is found from where the Python was before.
            original = Path(sys.executable).resolve() if program.name == "python" else program
            found |= libraries_of(original)
        loader = next((path for name, path in found.items() if name.startswith("ld-")), None)
        if loader is None:
            raise UserError(f"{sys.executable} is not linked to glibc: a tree needs such a Python")
        for name in _LOADED_BY_NAME:
            for place in {one.parent for one in found.values()}:
                if (place / name).is_file():
                    found.setdefault(name, place / name)
        for name, path in found.items():
            if name not in beside and path != loader:
                shutil.copy(path, folder / name)
        shutil.copy(loader, self.root / LOADER)

    def _copy_authorities(self) -> None:
        target = self.root / AUTHORITIES
        target.parent.mkdir()
        paths = ssl.get_default_verify_paths()
        try:
            source = str(
                importlib.metadata.distribution("certifi").locate_file("certifi/cacert.pem")
            )
        except PackageNotFoundError:
            source = paths.cafile or paths.openssl_cafile
        try:
            shutil.copy(source, target)
        except OSError as error:
            raise UserError(f"there are no certificate authorities: {error}") from error

    def _strip(self) -> None:
        """Remove symbols that only debuggers read, where the machine has the program for it."""
        strip = shutil.which("strip")
        if strip is None:
            return
        for one in self.root.rglob("*"):
            if one.is_file() and not one.is_symlink() and _is_elf(one) and one.name != "loader":
                subprocess.run([strip, "--strip-unneeded", one], check=False, capture_output=True)

    def _compile(self) -> None:
        """Write bytecode that is never compared with its source: files get new times as they are copied."""
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        compileall.compile_dir(
            self.root / "lib",
            maxlevels=20,
            quiet=2,
            invalidation_mode=mode,
            stripdir=str(self.root),
        )

    # -- manifest ----------------------------------------------------------------------------------

    def _write_manifest(self) -> None:
        body = {
            "phalanx": phalanx.__version__,
            "protocol": ASSIGNMENT_PROTOCOL,
            "python": platform.python_version(),
            "machine": platform.machine(),
            "libc": " ".join(platform.libc_ver()),
            "distributions": self.distributions,
            "files": {one: digest_of(self.root / one) for one in files_of(self.root)},
        }
        (self.root / MANIFEST).write_text(json.dumps(body, indent=1, sort_keys=True))

    def _try(self) -> None:
        words = command_in(str(self.root), "-c", _TRIED)
        done = subprocess.run(words, env={}, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise UserError(f"the tree does not work: {done.stderr.strip()[-1000:]}")


def libraries_of(program: Path) -> dict[str, Path]:
    """The shared libraries that a file loads, by name. Raises UserError where one is missing."""
    done = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    missing = _MISSING.search(done.stdout)
    if missing is not None:
        raise UserError(f"{program} needs {missing[1]}, which this machine does not have")
    return {Path(name or path).name: Path(path) for name, path in _NEEDED.findall(done.stdout)}


def _is_elf(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def files_of(root: Path) -> Iterator[str]:
    """The files and links of a tree apart from its manifest, in order, relative to it."""
    for path in sorted(root.rglob("*")):
        if path.is_symlink() or path.is_file():
            name = path.relative_to(root).as_posix()
            if name != MANIFEST:
                yield name


def digest_of(path: Path) -> str:
    """SHA-256 of a file, or where a link points to."""
    if path.is_symlink():
        return f"-> {os.readlink(path)}"
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def size_of(root: Path) -> int:
    """Bytes of all files of a tree."""
    return sum(one.lstat().st_size for one in root.rglob("*") if not one.is_dir())


def pack(root: Path, archive: Path) -> None:
    """Write a compressed archive, the same for the same tree."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.mtime = entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        return entry

    with tarfile.open(archive, "w:gz", compresslevel=6) as file:
        for name in [*files_of(root), MANIFEST]:
            file.add(root / name, name, filter=plain)


def main(argv: Sequence[str]) -> int:
    """Build a tree; returns 1 with a message where that is not possible here."""
    parser = argparse.ArgumentParser(prog="phalanx.supervise.portable.build")
    parser.add_argument("folder", type=Path, help="folder of the tree; it is replaced")
    parser.add_argument("--tar", type=Path, help="write the tree to this file as well (.tar.gz)")
    options = parser.parse_args(argv)
    root: Path = options.folder.absolute()
    try:
        if root.exists() and any(root.iterdir()):
            if not (root / MANIFEST).is_file():
                raise UserError(f"{root} is not empty, and no tree: name another folder")
            shutil.rmtree(root)
        root.mkdir(parents=True, exist_ok=True)
        TreeBuild(root).run()
        said = f"{root}: {size_of(root) / 1e6:.1f} MB"
        if options.tar is not None:
            pack(root, options.tar)
            said += f"; {options.tar}: {options.tar.stat().st_size / 1e6:.1f} MB"
    except (UserError, OSError) as error:
        print(f"the tree cannot be built: {error}", file=sys.stderr)  # noqa: T201
        return 1
    print(said)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
