"""Compressed files: the same bytes back from any range; errors in words."""

import random

import pytest
import torch

from integration.thread_gang import ThreadGang
from phalanx import checkpoint
from phalanx.checkpoint import compression, encryption, tensorfile
from phalanx.checkpoint.compression import (
    FRAME_BYTES,
    MAGIC,
    CompressedFile,
    ZstdCompression,
    decompressed,
)
from phalanx.core.training.checkpoints import FileEntry
from phalanx.errors import CheckpointCorrupt, NotSupported, SpecInvalid
from phalanx.train.gang import context
from phalanx.train.state.storage import CheckpointStorage, storage_for

pytestmark = pytest.mark.unit


def written(tmp_path, data, wrap=lambda pieces: pieces):
    entry = tensorfile.write_pieces(
        checkpoint.Disk(), tmp_path, "x", wrap(ZstdCompression().wrap([data[:7], data[7:]]))
    )
    return checkpoint.VerifiedFile(tmp_path, entry), entry


def content_of(kind, size):
    if kind == "noise":
        return random.Random(size).randbytes(size)
    return torch.randn(size // 4 + 1).numpy().tobytes()[:size]


@pytest.mark.parametrize("kind", ["noise", "weights"])
@pytest.mark.parametrize("size", [0, 1, FRAME_BYTES, 3 * FRAME_BYTES + 5, 9 * FRAME_BYTES - 1])
def test_what_is_packed_comes_back_in_any_pieces(tmp_path, size, kind):
    data = content_of(kind, size)
    source, entry = written(tmp_path, data)
    if kind == "weights" and size > FRAME_BYTES:
        assert entry.size_bytes < 0.9 * size
    assert entry.size_bytes < size + 100 + 4 * (size // FRAME_BYTES + 1)
    file = decompressed(source, "x")
    assert isinstance(file, CompressedFile) and file.size_bytes == size
    rng = random.Random(3)
    ranges = [(0, size), *((rng.randrange(size + 1), rng.randrange(5000)) for _ in range(20))]
    for at, num in ranges:
        into = bytearray(min(num, size - at))
        file.read_into(at, memoryview(into))
        assert into == data[at : at + len(into)]
    with pytest.raises(CheckpointCorrupt, match="ends"):
        file.read_into(size, memoryview(bytearray(1)))


def test_what_is_not_packed_is_handed_on(tmp_path):
    entry = tensorfile.write_pieces(checkpoint.Disk(), tmp_path, "x", [bytes(5000)])
    source = checkpoint.VerifiedFile(tmp_path, entry)
    assert decompressed(source, "x") is source


class Bare:
    def __init__(self, data):
        self.data, self.size_bytes = data, len(data)

    def read_into(self, at, into):
        into[:] = self.data[at : at + len(into)]


def test_frames_that_contradict_themselves_are_refused(tmp_path):
    """With no digest around them: what a writer with the right digests could have got wrong."""
    written(tmp_path, content_of("weights", 2 * FRAME_BYTES))
    good = (tmp_path / "x").read_bytes()
    assert good.startswith(MAGIC)
    refused = 0
    for at in [8, 20, 5000, len(good) - 30, len(good) - 20, len(good) - 10, len(good) - 1]:
        bad = bytearray(good)
        bad[at] ^= 0x55
        try:
            into = bytearray(2 * FRAME_BYTES)
            decompressed(Bare(bytes(bad)), "x").read_into(0, memoryview(into))
        except CheckpointCorrupt:
            refused += 1
    assert refused >= 6  # a byte inside a stored frame is the digest's business


def gang_of(tmp_path, storage):
    return ThreadGang(tmp_path, 2, lambda rank: checkpoint.Disk(), width=6000, storage=storage)


@pytest.mark.parametrize("sealed", [False, True])
def test_a_compressed_checkpoint_loads_and_falls_back_as_any_other(tmp_path, sealed):
    pytest.importorskip("cryptography")
    own = (
        encryption.AesGcmEncryption((encryption.EncryptionKey(bytes(32)),))
        if sealed
        else encryption.Encryption()
    )
    storage = CheckpointStorage(encryption=own, compression=ZstdCompression())
    saved = gang_of(tmp_path, storage)
    for step in (1, 2):
        saved.set(step)
        saved.save(step)
        assert all(saved.wait())
    newest, older = checkpoint.list_checkpoints(tmp_path)
    plain = sum(t.numel() * t.element_size() for t in saved.pairs[0][0].parameters())
    assert newest.manifest.size_bytes < 2 * plain
    file = newest.path / "shard-00001/state.tensors"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    gang = gang_of(tmp_path, CheckpointStorage(encryption=own))  # reading needs no option
    assert [one.path for one in gang.open()] == [older.path] * 2
    saved.set(1)
    for (model, _), (was, _) in zip(gang.pairs, saved.pairs, strict=True):
        assert all(map(torch.equal, model.parameters(), was.parameters()))


def test_without_the_library_it_is_said_before_training_and_never_blamed_on_the_file(
    tmp_path, monkeypatch
):
    source, entry = written(tmp_path, bytes(FRAME_BYTES))
    assert isinstance(entry, FileEntry)

    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(compression.importlib, "import_module", missing)
    with pytest.raises(NotSupported, match="zstd"):
        decompressed(source, "x")
    info = context.read({"PHALANX_CHECKPOINT_COMPRESS": "zstd"})
    with pytest.raises(NotSupported, match="zstd"):
        storage_for(info, None, None)


def test_the_option_is_one_of_two_words():
    with pytest.raises(SpecInvalid, match="COMPRESS"):
        context.read({"PHALANX_CHECKPOINT_COMPRESS": "gzip"})
    given = context.with_checkpoints(context.read({}), {"dir": "x", "compress": "zstd"})
    assert given.checkpoint.compress == "zstd"
    with pytest.raises(SpecInvalid, match="checkpoint_compress"):
        context.with_checkpoints(context.read({}), {"dir": "x", "compress": "gzip"})
