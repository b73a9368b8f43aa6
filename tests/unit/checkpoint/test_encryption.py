"""Encrypted files: what was written comes back, what was changed does not, and what keys may do."""

import base64
from dataclasses import replace

import pytest

from phalanx.checkpoint import Disk, encryption
from phalanx.checkpoint.tensorfile import write_pieces
from phalanx.checkpoint.verified_reads import VerifiedFile
from phalanx.core.training.checkpoints import Manifest
from phalanx.errors import CheckpointCorrupt, PermissionDenied
from support.manifests import manifest_of

pytest.importorskip("cryptography")
pytestmark = pytest.mark.unit

KEY, OTHER = encryption.EncryptionKey(bytes(range(32))), encryption.EncryptionKey(bytes(32))
NAME, PATH = "step-00000001-0123abcd", "shard-00000/state.tensors"
PLAIN = encryption.CHUNK_BYTES - encryption.TAG_BYTES


def manifest(files=()):
    return manifest_of(1, name=NAME, files=files, metrics={"loss": float("nan")})


def write(root, pieces, sealing=None, place=f"{NAME}/{PATH}"):
    (root / PATH).parent.mkdir(exist_ok=True)
    (root / PATH).unlink(missing_ok=True)
    sealing = sealing or encryption.AesGcmEncryption([KEY])
    return write_pieces(Disk(), root, PATH, sealing.wrap(place, pieces))


def read(root, entry, sealing=None, stamped=None):
    sealing = sealing or encryption.AesGcmEncryption([KEY])
    source = sealing.opener(stamped or sealing.stamp(manifest((entry,))))(root, entry)
    data = bytearray(source.size_bytes)
    source.read_into(0, memoryview(data))
    return bytes(data)


def rewritten(root, data):
    """The file with other bytes, and an entry that says those are right: no digest helps."""
    (root / PATH).unlink()
    return write_pieces(Disk(), root, PATH, [data])


@pytest.mark.parametrize("size", [0, 1, PLAIN - 1, PLAIN, PLAIN + 1, 3 * PLAIN, 18 * PLAIN + 77])
def test_what_is_sealed_comes_back_in_any_pieces(tmp_path, size):
    data = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    cut = [data[at : at + 700_001] for at in range(0, size, 700_001)]
    entry = write(tmp_path, cut)
    assert read(tmp_path, entry) == data
    assert data[:16] not in (tmp_path / PATH).read_bytes() or size < 16
    source = encryption.AesGcmEncryption([KEY]).opener(
        encryption.AesGcmEncryption([KEY]).stamp(manifest((entry,)))
    )(tmp_path, entry)
    for at, length in [(0, 5), (PLAIN - 2, 4), (size - 3, 3), (PLAIN, 2 * PLAIN)]:
        if 0 <= at <= at + length <= size:
            part = bytearray(length)
            source.read_into(at, memoryview(part))
            assert part == data[at : at + length]


def test_the_same_content_never_looks_the_same(tmp_path):
    write(tmp_path, [b"weights" * 100])
    first = (tmp_path / PATH).read_bytes()
    write(tmp_path, [b"weights" * 100])
    assert len((tmp_path / PATH).read_bytes()) == len(first)
    assert (tmp_path / PATH).read_bytes()[64:] != first[64:]


def flip(at):
    return lambda data: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def swap_chunks(data):
    chunk = encryption.CHUNK_BYTES
    return (
        data[:64]
        + data[64 + chunk : 64 + 2 * chunk]
        + data[64 : 64 + chunk]
        + data[64 + 2 * chunk :]
    )


TAMPERING = {
    "first byte": flip(64),
    "last byte": flip(-1 + 64 + 2 * encryption.CHUNK_BYTES + 100 + encryption.TAG_BYTES),
    "salt": flip(40),
    "chunk size": flip(8),
    "cut inside a chunk": lambda data: data[:-5],
    "cut at a chunk's end": lambda data: data[: 64 + 2 * encryption.CHUNK_BYTES],
    "only the header": lambda data: data[:64],
    "more behind": lambda data: data + bytes(40),
    "chunks swapped": swap_chunks,
}


@pytest.mark.parametrize("how", TAMPERING)
def test_whoever_changes_a_file_and_its_digest_is_found_out(tmp_path, how):
    entry = write(tmp_path, [bytes(2 * PLAIN + 100)])
    assert read(tmp_path, entry) == bytes(2 * PLAIN + 100)
    entry = rewritten(tmp_path, TAMPERING[how]((tmp_path / PATH).read_bytes()))
    VerifiedFile(tmp_path, entry).check(0)  # without encryption nobody would notice
    with pytest.raises(CheckpointCorrupt):
        read(tmp_path, entry)


def test_a_file_of_another_checkpoint_does_not_fit(tmp_path):
    entry = write(tmp_path, [b"weights"], place=f"step-00000002-0123abcd/{PATH}")
    with pytest.raises(CheckpointCorrupt, match="changed or moved"):
        read(tmp_path, entry)


@pytest.mark.parametrize(
    "change", [{"step": 2}, {"commit": 9}, {"metrics": {"loss": 0.0}}, {"files": ()}]
)
def test_a_manifest_that_was_changed_is_refused(tmp_path, change):
    entry = write(tmp_path, [b"weights"])
    stamped = encryption.AesGcmEncryption([KEY]).stamp(manifest((entry,)))
    assert read(tmp_path, entry, stamped=Manifest.from_json(stamped.to_json())) == b"weights"
    with pytest.raises(CheckpointCorrupt, match="changed after the save"):
        encryption.AesGcmEncryption([KEY]).opener(replace(stamped, **change))


def test_keys_rotate_and_the_wrong_one_is_named_not_blamed_on_the_file(tmp_path):
    entry = write(tmp_path, [b"weights"])
    stamped = encryption.AesGcmEncryption([KEY]).stamp(manifest((entry,)))
    assert read(tmp_path, entry, encryption.AesGcmEncryption([OTHER, KEY]), stamped) == b"weights"
    assert encryption.AesGcmEncryption([OTHER, KEY]).stamp(manifest()).encryption["key"] == OTHER.id
    for reader in (encryption.AesGcmEncryption([OTHER]), encryption.Encryption()):
        with pytest.raises(PermissionDenied, match=KEY.id):
            reader.opener(stamped)


def test_a_job_with_a_key_does_not_trust_plain_checkpoints():
    with pytest.raises(CheckpointCorrupt, match="not encrypted"):
        encryption.AesGcmEncryption([KEY]).opener(manifest())
    assert encryption.Encryption().opener(manifest()) is VerifiedFile


def test_keys_are_read_and_never_shown(tmp_path):
    text = base64.b64encode(KEY.secret).decode()
    assert encryption.parse_keys(f"{KEY.secret.hex()}\n{text}") == (KEY, KEY)
    (tmp_path / "key").write_text(text + "\n")
    assert encryption.keys_from({}, None, tmp_path / "key") == (KEY,)
    assert encryption.keys_from({"K": text}, "K", None) == (KEY,)
    assert encryption.keys_from({}, None, None) == ()
    assert KEY.secret.hex() not in repr(KEY) and str(KEY.secret) not in repr(KEY)
    for bad in ("secret-but-short", KEY.secret.hex()[:-2], ""):
        with pytest.raises(ValueError, match="key") as refused:
            encryption.parse_keys(bad)
        assert not bad or bad not in str(refused.value)
    with pytest.raises(ValueError, match="K is not set"):
        encryption.keys_from({}, "K", None)
    with pytest.raises(ValueError, match="cannot be read"):
        encryption.keys_from({}, None, tmp_path / "absent")
