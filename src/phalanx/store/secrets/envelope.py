"""Envelope encryption of secrets: a data key for each value, wrapped by a master key.

Both steps are AES-256-GCM with the project and the name of the secret as associated data, so a row that
is copied to another name or project does not open. `KeyWrapper` is the holder of the master key: a file
of the home, keys of the environment, or a key service.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from phalanx.checkpoint.encryption import KEY_BYTES, EncryptionKey, parse_keys
from phalanx.errors import NotSupported, StoreError
from phalanx.launch.files import distrusted, write_file

_NONCE_BYTES = 12
_KEPT = "keep it with the home: without it no secret can be read"


@dataclass(frozen=True, slots=True)
class WrappedKey:
    """A data key, encrypted by the master key with this id."""

    key_id: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Sealed:
    """An encrypted value and its wrapped data key."""

    key: WrappedKey
    data: bytes = field(repr=False)


class KeyWrapper(Protocol):
    """A holder of master keys. A key service (KMS) implements these three calls."""

    def wrap(self, data_key: bytes, context: bytes) -> WrappedKey:
        """Encrypt a data key with the current master key. Raises StoreError."""
        ...

    def unwrap(self, key: WrappedKey, context: bytes) -> bytes:
        """Decrypt a data key. Raises StoreError without its master key, or for another context."""
        ...

    def renew(self, rewrap: Callable[[], int]) -> int:
        """Make a new master key where the holder can, call `rewrap`, and then forget the old one.

        Returns what `rewrap` returns: the number of data keys that are wrapped anew.
        """
        ...


def seal(keys: KeyWrapper, value: str, project: str, name: str) -> Sealed:
    """Encrypt a value under a data key of its own. Raises StoreError."""
    context = _context(project, name)
    data_key = os.urandom(KEY_BYTES)
    return Sealed(keys.wrap(data_key, context), _encrypt(data_key, value.encode(), context))


def unseal(keys: KeyWrapper, sealed: Sealed, project: str, name: str) -> str:
    """Decrypt a value. Raises StoreError, which never quotes what was read."""
    context = _context(project, name)
    data_key = keys.unwrap(sealed.key, context)
    return _decrypt(data_key, sealed.data, context, "its row was changed").decode()


def rewrapped(keys: KeyWrapper, sealed: Sealed, project: str, name: str) -> Sealed:
    """The same value with its data key under the current master key. Raises StoreError."""
    context = _context(project, name)
    return Sealed(keys.wrap(keys.unwrap(sealed.key, context), context), sealed.data)


@dataclass(frozen=True, slots=True)
class GivenKeys:
    """Master keys of the environment: the first one encrypts, all of them decrypt."""

    keys: Sequence[EncryptionKey]

    def wrap(self, data_key: bytes, context: bytes) -> WrappedKey:
        """Encrypt a data key with the first key."""
        return WrappedKey(self.keys[0].id, _encrypt(self.keys[0].secret, data_key, context))

    def unwrap(self, key: WrappedKey, context: bytes) -> bytes:
        """Decrypt a data key. Raises StoreError."""
        for one in self.keys:
            if one.id == key.key_id:
                return _decrypt(one.secret, key.data, context, "its row was changed")
        known = ", ".join(one.id for one in self.keys)
        raise StoreError(f"the master key {key.key_id} is not here; there is {known}", _KEPT)

    def renew(self, rewrap: Callable[[], int]) -> int:
        """Wrap all data keys with the first key; a new one is set in the environment, before the old."""
        return rewrap()


@dataclass(frozen=True, slots=True)
class HomeKeys:
    """The master key in a file of the home, of mode 0600, which the first secret makes.

    The file has one key in each line; there are two only while the key is rotated.
    """

    file: Path

    def wrap(self, data_key: bytes, context: bytes) -> WrappedKey:
        """Encrypt a data key, after making the master key if there is none. Raises StoreError."""
        if not self.file.exists():
            self._make()
        return self._read().wrap(data_key, context)

    def unwrap(self, key: WrappedKey, context: bytes) -> bytes:
        """Decrypt a data key. Raises StoreError."""
        return self._read().unwrap(key, context)

    def renew(self, rewrap: Callable[[], int]) -> int:
        """Replace the master key. A crash at any time leaves a file that opens every row."""
        old = self._read().keys if self.file.exists() else ()
        new = EncryptionKey(os.urandom(KEY_BYTES))
        self._write([new, *old])
        count = rewrap()
        self._write([new])
        return count

    def _make(self) -> None:
        """Store a first key, unless another thread does at the same time. Raises StoreError."""
        text = _text([EncryptionKey(os.urandom(KEY_BYTES))])
        try:
            with tempfile.NamedTemporaryFile(dir=self.file.parent, prefix=".key-") as made:
                made.write(text)
                made.flush()
                os.fsync(made.fileno())
                os.link(made.name, self.file)
        except FileExistsError:
            return
        except OSError as error:
            raise StoreError(f"{self.file}: cannot be written: {error.strerror}") from error

    def _read(self) -> GivenKeys:
        why = distrusted(self.file)
        if why:
            raise StoreError(f"the master key of secrets cannot be trusted: {why}")
        try:
            return GivenKeys(parse_keys(self.file.read_text()))
        except (OSError, ValueError) as error:
            said = f"the master key of secrets, {self.file}, cannot be read: {type(error).__name__}"
            raise StoreError(said, _KEPT) from error

    def _write(self, keys: Sequence[EncryptionKey]) -> None:
        try:
            write_file(self.file, _text(keys))
        except OSError as error:
            raise StoreError(f"{self.file}: cannot be written: {error.strerror}") from error


def _text(keys: Sequence[EncryptionKey]) -> bytes:
    return "".join(f"{one.secret.hex()}\n" for one in keys).encode()


def _context(project: str, name: str) -> bytes:
    return f"phalanx secret\0{project}\0{name}".encode()


def _encrypt(key: bytes, data: bytes, context: bytes) -> bytes:
    nonce = os.urandom(_NONCE_BYTES)
    sealed: bytes = _aead()(key).encrypt(nonce, data, context)
    return nonce + sealed


def _decrypt(key: bytes, data: bytes, context: bytes, why: str) -> bytes:
    from cryptography.exceptions import InvalidTag

    try:
        found: bytes = _aead()(key).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], context)
    except (InvalidTag, ValueError) as error:
        raise StoreError(f"a secret does not open: {why}", "set it again") from error
    return found


def _aead() -> Any:
    # Loaded at the first secret: most commands and control planes need none.
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise NotSupported(
            "secrets are encrypted by the package `cryptography`, which is not installed",
            "pip install 'phalanx[server]'",
        ) from error
    return AESGCM
