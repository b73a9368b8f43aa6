"""A directory of files as a secret manager: mounted Kubernetes secrets, the CSI driver, an agent's output.

A path is a folder, and a key is a file in it. The value is the content of the file, byte by byte.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from phalanx.errors import SecretManagerUnavailable, SecretRefused
from phalanx.services.secret_managers.references import MAX_BYTES

_VERSION = "..data"
"""The link to the newest version that Kubernetes has beside the keys and replaces at once."""


@dataclass(frozen=True, slots=True)
class MountedFiles:
    """Reads folders below one directory. Links that leave it are not followed."""

    root: Path
    project_path: str = "{project}"
    name: str = "files"

    def read(self, path: str, keys: Collection[str]) -> Mapping[str, str]:
        """The contents of some files of a folder. Raises SecretManagerUnavailable, SecretRefused."""
        if not self.root.is_dir():
            raise SecretManagerUnavailable(f"the directory of secrets {self.root} is not there")
        folder = self.root / path
        if not folder.is_dir():
            raise SecretRefused(f"files: {self.root} has no folder {path}")
        # One version for all keys: the link may be replaced while they are read.
        version = Path(os.path.realpath(folder / _VERSION))
        return {
            key: self._value(path, version if version.is_dir() else folder, key) for key in keys
        }

    def _value(self, path: str, folder: Path, key: str) -> str:
        file = Path(os.path.realpath(folder / key))
        if not file.is_relative_to(os.path.realpath(self.root)) or not file.is_file():
            raise SecretRefused(f"files: the folder {path} has no file {key}")
        try:
            with file.open("rb") as source:
                return source.read(MAX_BYTES + 1).decode()
        except (PermissionError, UnicodeDecodeError) as error:
            why = (
                "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else "no permission"
            )
            raise SecretRefused(f"files: {path}/{key} cannot be read: {why}") from None
        except OSError as error:
            raise SecretManagerUnavailable(
                f"files: {path}/{key} cannot be read: {error.strerror}"
            ) from None
