"""Authenticated encryption of a checkpoint's files, for disks and buckets that others can read.

A sealed file, little endian::

    0    8 bytes   magic  b"PHXSEAL1"
    8    u32       bytes of a sealed chunk, tag included
    12   20 bytes  zeros
    32   32 bytes  salt
    64   …         chunks: AES-256-GCM ciphertext and its 16-byte tag; only the last may be shorter

Every file has a key of its own, HKDF-SHA256 of the job's key over the salt and the file's place
(`<checkpoint>/<path>`), so that a nonce never repeats under a key and files cannot change places. The
nonce of a chunk is its number and whether it is the last: chunks cannot be moved, and a file that was cut
at a chunk's end does not open. The manifest carries the key's id and an HMAC over what a resume acts
on. Digests are over the sealed bytes: verifying, copying and auditing need no key.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from phalanx.checkpoint.digest import canonical
from phalanx.checkpoint.tensorfile import ByteSource
from phalanx.checkpoint.verified_reads import VerifiedFile
from phalanx.core.training.checkpoints import FileEntry, Manifest
from phalanx.errors import CheckpointCorrupt, NotSupported, PermissionDenied

MAGIC = b"PHXSEAL1"
CIPHER = "aes-256-gcm"
KEY_BYTES = 32
TAG_BYTES = 16
CHUNK_BYTES = 1 << 20
_HEADER = struct.Struct("<8sI20x32s")
# Fields of a manifest that its tag covers.
_AUTHENTICATED = (
    "name step attempt generation commit parent created_at world_size reference_world global_batch"
    " encryption"
)
_BATCH_CHUNKS = 16  # decrypted at a time: bounds the memory of reading

Opener = Callable[[Path, FileEntry], ByteSource]


@dataclass(frozen=True, slots=True)
class EncryptionKey:
    """A 256-bit key. Its `id` identifies it without revealing it."""

    secret: bytes = field(repr=False)

    @property
    def id(self) -> str:
        """Sixteen hex digits."""
        return hashlib.sha256(b"phalanx checkpoint key id\0" + self.secret).hexdigest()[:16]

    @classmethod
    def parse(cls, text: str) -> EncryptionKey:
        """From 64 hex digits, or 32 bytes in base64. Raises ValueError, which never quotes the text."""
        text = text.strip()
        for decode in (bytes.fromhex, lambda one: base64.b64decode(one, validate=True)):
            try:
                secret = decode(text)
            except (ValueError, binascii.Error):
                continue
            if len(secret) == KEY_BYTES:
                return cls(secret)
        raise ValueError("not a key: 64 hex digits, or 32 bytes in base64")


def parse_keys(text: str) -> tuple[EncryptionKey, ...]:
    """Keys between blanks, commas or lines; the first one writes, all of them read.

    Raises ValueError, also when there is none.
    """
    keys = tuple(EncryptionKey.parse(one) for one in text.replace(",", " ").split())
    if not keys:
        raise ValueError("the text holds no key")
    return keys


class Encryption:
    """How the files of a run's checkpoints are protected; here not at all.

    `hint` tells users how to name a key where they are.
    """

    def __init__(
        self, hint: str = "name the key under checkpoint.encryption in the job's spec"
    ) -> None:
        self._hint = hint

    def wrap(self, place: str, pieces: Iterable[Any]) -> Iterable[Any]:
        """The stored form of `pieces`; `place` is `<checkpoint>/<path>`."""
        return pieces

    def stamp(self, manifest: Manifest) -> Manifest:
        """The manifest with the parameters that a reader needs."""
        return manifest

    def opener(self, manifest: Manifest, stored: Opener = VerifiedFile) -> Opener:
        """How its files are read, of which `stored` opens the bytes.

        Raises CheckpointCorrupt, or PermissionDenied without its key.
        """
        if manifest.encryption is not None:
            raise PermissionDenied(
                f"{manifest.name} is encrypted with key {manifest.encryption.get('key')}",
                self._hint,
            )
        return stored


class AesGcmEncryption(Encryption):
    """Files encrypted with the first key; any of the keys reads."""

    def __init__(self, keys: Sequence[EncryptionKey]) -> None:
        """Raises NotSupported where the cipher is not installed."""
        super().__init__()
        _cipher()
        self._keys = {key.id: key for key in keys}
        self._writer = keys[0]

    def wrap(self, place: str, pieces: Iterable[Any]) -> Iterable[Any]:
        """The sealed file's bytes, piece by piece; each piece is valid until the next is asked for."""
        return encrypted_pieces(self._writer, place, pieces)

    def stamp(self, manifest: Manifest) -> Manifest:
        """With the key's id, and an HMAC over what a resume acts on."""
        marked = replace(manifest, encryption={"cipher": CIPHER, "key": self._writer.id})
        tag = _manifest_tag(self._writer, marked)
        return replace(marked, encryption={"cipher": CIPHER, "key": self._writer.id, "tag": tag})

    def opener(self, manifest: Manifest, stored: Opener = VerifiedFile) -> Opener:
        """Files decrypted on the way. A checkpoint that is not encrypted is refused.

        Raises CheckpointCorrupt, or PermissionDenied when none of the keys is the right one.
        """
        said = manifest.encryption
        if said is None:
            raise CheckpointCorrupt(f"{manifest.name}: not encrypted, but this job has a key")
        key = self._keys.get(str(said.get("key")))
        if key is None:
            known = ", ".join(self._keys)
            raise PermissionDenied(
                f"{manifest.name} is encrypted with key {said.get('key')}; this job has {known}",
                "add the old key to the key file, after the new one",
            )
        bare = replace(manifest, encryption={k: v for k, v in said.items() if k != "tag"})
        if not hmac.compare_digest(_manifest_tag(key, bare), str(said.get("tag"))):
            raise CheckpointCorrupt(f"{manifest.name}: the manifest was changed after the save")
        return lambda root, entry: EncryptedFile(
            stored(root, entry), key, f"{manifest.name}/{entry.path}", str(root / entry.path)
        )


def _manifest_tag(key: EncryptionKey, manifest: Manifest) -> str:
    """Over what a resume acts on, in a form that no later schema of the manifest changes."""
    body: dict[str, Any] = {name: getattr(manifest, name) for name in _AUTHENTICATED.split()}
    at = manifest.position
    body["position"] = [at.epoch, at.epoch_pass, at.total_passes, at.consumed]
    body["metrics"] = dict(manifest.metrics)
    body["files"] = [[one.path, one.size_bytes, one.digest] for one in manifest.files]
    inner = _derive(key, b"", "phalanx manifest 1")
    return hmac.new(inner, canonical(body), "sha256").hexdigest()


def encrypted_pieces(key: EncryptionKey, place: str, pieces: Iterable[Any]) -> Iterator[Any]:
    """The bytes of a sealed file. A yielded piece is valid until the next one is asked for."""
    salt = os.urandom(32)
    header = _HEADER.pack(MAGIC, CHUNK_BYTES, salt)
    yield header
    cipher = _cipher()(_derive(key, salt, place))
    plain, out = bytearray(CHUNK_BYTES - TAG_BYTES), bytearray(CHUNK_BYTES)
    filled = number = 0
    for piece in pieces:
        view = memoryview(piece).cast("B")
        while view:
            if filled == len(plain):  # more follows, so it is not the last
                cipher.encrypt_into(_nonce(number, b"\0"), plain, header, out)
                yield out
                filled, number = 0, number + 1
            part = view[: len(plain) - filled]
            plain[filled : filled + part.nbytes] = part
            filled += part.nbytes
            view = view[part.nbytes :]
    yield cipher.encrypt(_nonce(number, b"\1"), memoryview(plain)[:filled], header)


class EncryptedFile:
    """The content of a sealed file: ranges of it, authenticated before they are handed out."""

    def __init__(self, source: ByteSource, key: EncryptionKey, place: str, where: str) -> None:
        """Raises CheckpointCorrupt when it is not a sealed file."""
        self._source, self._where = source, where
        self._header = bytearray(_HEADER.size)
        source.read_into(0, memoryview(self._header))
        magic, self._chunk_bytes, salt = _HEADER.unpack(self._header)
        if magic != MAGIC or not TAG_BYTES < self._chunk_bytes <= 1 << 26:
            raise CheckpointCorrupt(f"{where}: not an encrypted file")
        self._plain_bytes = self._chunk_bytes - TAG_BYTES
        body = source.size_bytes - _HEADER.size
        self._num_chunks = max(1, -(-body // self._chunk_bytes))
        self.size_bytes = body - TAG_BYTES * self._num_chunks
        if self.size_bytes < 0:
            raise CheckpointCorrupt(f"{where}: the file is truncated")
        self._cipher = _cipher()(_derive(key, salt, place))
        # A file truncated at the end of a chunk has a last chunk without the final mark.
        self._open_chunks(self._num_chunks - 1, self._num_chunks)

    def read_into(self, at: int, into: memoryview) -> None:
        """Fill `into` with what begins at byte `at` of the content. Raises CheckpointCorrupt."""
        into = into.cast("B")
        end = at + into.nbytes
        if at < 0 or end > self.size_bytes:
            raise CheckpointCorrupt(f"{self._where}: the file ends before byte {end}")
        if not into.nbytes:
            return
        first, last = at // self._plain_bytes, (end - 1) // self._plain_bytes
        for start in range(first, last + 1, _BATCH_CHUNKS):
            stop = min(start + _BATCH_CHUNKS, last + 1)
            for number, plain in enumerate(self._open_chunks(start, stop), start):
                begin = number * self._plain_bytes
                lo, hi = max(begin, at), min(begin + len(plain), end)
                into[lo - at : hi - at] = memoryview(plain)[lo - begin : hi - begin]

    def _open_chunks(self, start: int, stop: int) -> list[bytes]:
        from cryptography.exceptions import InvalidTag

        begin = _HEADER.size + start * self._chunk_bytes
        end = min(_HEADER.size + stop * self._chunk_bytes, self._source.size_bytes)
        data = memoryview(bytearray(end - begin))
        self._source.read_into(begin, data)
        opened = []
        for number in range(start, stop):
            part = data[(number - start) * self._chunk_bytes :][: self._chunk_bytes]
            mark = b"\1" if number == self._num_chunks - 1 else b"\0"
            try:
                opened.append(self._cipher.decrypt(_nonce(number, mark), part, self._header))
            except InvalidTag as error:
                text = f"{self._where}: chunk {number} was changed or moved"
                raise CheckpointCorrupt(text) from error
        return opened


def _nonce(number: int, mark: bytes) -> bytes:
    return number.to_bytes(11, "little") + mark


def _derive(key: EncryptionKey, salt: bytes, info: str) -> bytes:
    """HKDF-SHA256 (RFC 5869) of one block."""
    seed = hmac.new(salt or bytes(32), key.secret, "sha256").digest()
    return hmac.new(seed, info.encode() + b"\1", "sha256").digest()


def _cipher() -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise NotSupported(
            "encrypted checkpoints need the package cryptography", "pip install 'phalanx[crypto]'"
        ) from error
    return AESGCM


def keys_from(
    environ: Mapping[str, str], name: str | None, file: Path | None
) -> tuple[EncryptionKey, ...]:
    """The keys in variable `name` or in `file`; none when neither is given.

    Raises ValueError, which never quotes what it read.
    """
    if name is not None:
        if not environ.get(name):
            raise ValueError(f"the variable {name} is not set")
        return parse_keys(environ[name])
    if file is not None:
        try:
            return parse_keys(file.read_text())
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{file}: cannot be read: {type(error).__name__}") from error
    return ()
