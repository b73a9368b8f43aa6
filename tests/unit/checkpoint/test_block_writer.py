"""Blocks on their way to a disk, and chunks on their way back into scattered memory."""

import errno
import fcntl
import itertools
import mmap
import os
import random
import subprocess
import sys

import pytest
import torch

from phalanx import checkpoint
from phalanx.checkpoint import disk as disks
from phalanx.checkpoint import tensorfile, verified_reads
from phalanx.checkpoint.block_writer import BLOCK_BYTES, BackgroundWriter, blocks_of
from phalanx.checkpoint.disk import begins_a_page
from phalanx.checkpoint.tensorfile import TensorRegion
from phalanx.errors import CheckpointCorrupt
from phalanx.train.state.sharding import TensorPart
from phalanx.train.state.staging import Staging

pytestmark = pytest.mark.unit


def pages(size, shift=0):
    room = memoryview(mmap.mmap(-1, size + 4096))[shift : shift + size]
    room[:] = random.Random(size).randbytes(size)
    return room


def test_blocks_are_the_pieces_whatever_their_sizes():
    rng = random.Random(1)
    sizes = [0, 1, 64, 5000, BLOCK_BYTES, BLOCK_BYTES - 1, 2 * BLOCK_BYTES + 7, 3]
    for _ in range(5):
        rng.shuffle(sizes)
        pieces = [pages(size, rng.choice([0, 64])) for size in sizes]
        pieces.append(bytes(100))
        found = bytearray()
        lengths = []
        for block in blocks_of(pieces):
            found += block
            lengths.append(block.nbytes)
        assert found == b"".join(pieces)
        assert set(lengths[:-1]) == {BLOCK_BYTES} and lengths[-1] <= BLOCK_BYTES


def test_what_begins_a_page_is_not_copied():
    room = pages(3 * BLOCK_BYTES)
    first, *_ = blocks_of([room])
    room[0] ^= 255
    assert first[0] == room[0]
    assert not begins_a_page(room[64:]) and not begins_a_page(memoryview(bytes(8192)))


class Noted(checkpoint.Disk):
    def __init__(self):
        self.sizes = []

    def write(self, fd, data):
        self.sizes.append(memoryview(data).nbytes)
        super().write(fd, data)


@pytest.mark.parametrize("shift", [0, 64])
def test_files_past_the_cache_hold_what_was_written(tmp_path, shift):
    data = pages(5 * BLOCK_BYTES + 4097, shift)
    disk = Noted()
    entry = tensorfile.write_pieces(disk, tmp_path, "x", [data])
    assert (tmp_path / "x").read_bytes() == data and entry.size_bytes == len(data)
    assert disk.sizes == [BLOCK_BYTES] * 5 + [4097]
    into = memoryview(bytearray(len(data)))
    checkpoint.VerifiedFile(tmp_path, entry).read_into(0, into)
    assert into == data


def test_a_file_system_that_must_cache_is_no_obstacle(tmp_path, monkeypatch):
    def refuse(fd, command, value=0):
        if command == fcntl.F_SETFL and value & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return fcntl.fcntl(fd, command, value)

    monkeypatch.setattr(disks, "set_flags", refuse)
    data = pages(2 * BLOCK_BYTES + 5)
    tensorfile.write_pieces(checkpoint.Disk(), tmp_path, "x", [data])
    assert (tmp_path / "x").read_bytes() == data


def test_an_error_of_a_write_behind_comes_out():
    class Full(checkpoint.Disk):
        def write(self, fd, data):
            raise OSError(errno.ENOSPC, "No space left on device")

    with BackgroundWriter(Full(), 0) as behind:
        behind.write(pages(BLOCK_BYTES))
        with pytest.raises(OSError, match="No space"):
            behind.finish()


def test_scattered_places_are_filled_and_every_chunk_is_read_once(tmp_path, monkeypatch):
    rng = random.Random(2)
    size = 3 * BLOCK_BYTES + 12_345
    data = rng.randbytes(size)
    entry = tensorfile.write_pieces(checkpoint.Disk(), tmp_path, "x", [data])
    cuts = sorted({0, size, *(rng.randrange(size) for _ in range(3000))})
    wanted = [
        (lo, memoryview(bytearray(hi - lo)))
        for lo, hi in itertools.pairwise(cuts)
        if rng.random() < 0.7
    ]
    wanted += [(100, memoryview(bytearray(BLOCK_BYTES))), wanted[5]]  # and some of it twice
    read = []
    kernel = os.preadv
    monkeypatch.setattr(os, "preadv", lambda *args: read.append(kernel(*args)) or read[-1])
    file = checkpoint.VerifiedFile(tmp_path, entry)
    file.read_scattered(wanted[:-2])
    assert sum(read) <= size and all(file.has_checked(at) for at in range(3))
    for at, view in wanted[:-2]:
        assert view == data[at : at + len(view)]
    file.read_scattered(wanted)
    assert all(view == data[at : at + len(view)] for at, view in wanted)
    with pytest.raises(CheckpointCorrupt, match="ends"):
        file.read_scattered([(size - 1, memoryview(bytearray(2)))])
    broken = bytearray(data)
    broken[BLOCK_BYTES + 77] ^= 1
    (tmp_path / "x").write_bytes(broken)
    with pytest.raises(CheckpointCorrupt, match="digest"):
        checkpoint.VerifiedFile(tmp_path, entry).read_scattered(wanted)


@pytest.mark.parametrize("direct", [True, False])
def test_what_the_page_cache_does_not_hold_is_checked_just_the_same(tmp_path, monkeypatch, direct):
    monkeypatch.setattr(verified_reads, "_is_cached", lambda fd, at: False)
    size = 2 * BLOCK_BYTES + 12_345
    data = random.Random(5).randbytes(size)
    entry = tensorfile.write_pieces(checkpoint.Disk(), tmp_path, "x", [data])
    cuts = [0, 5, 4096, BLOCK_BYTES + 3, size - 1, size]
    wanted = [(lo, memoryview(bytearray(hi - lo))) for lo, hi in itertools.pairwise(cuts)]
    file = checkpoint.VerifiedFile(tmp_path, entry, direct=direct)
    file.read_scattered(wanted)
    assert b"".join(view for _, view in wanted) == data
    into = bytearray(size - 7)
    file.read_into(7, memoryview(into))
    assert into == data[7:]
    broken = bytearray(data)
    broken[-1] ^= 1
    (tmp_path / "x").write_bytes(broken)
    for read in (
        lambda file: file.check(2),
        lambda file: file.read_scattered(wanted),
        lambda file: file.read_into(0, memoryview(bytearray(size))),
    ):
        with pytest.raises(CheckpointCorrupt, match="digest"):
            read(checkpoint.VerifiedFile(tmp_path, entry, direct=direct))
    os.truncate(tmp_path / "x", size - 1)
    with pytest.raises(CheckpointCorrupt, match="ends"):
        checkpoint.VerifiedFile(tmp_path, entry, direct=direct).read_scattered(wanted)


def test_warmed_staging_is_what_the_first_save_copies_into():
    tensor = torch.arange(3_000_000, dtype=torch.float32)
    pieces = [TensorPart(tensor, TensorRegion(0, (3_000_000,), (0,)))]
    staging = Staging()
    staging.warm(pieces)
    room = staging._room.data_ptr()
    (blob,) = staging.take(pieces)
    assert staging._room.data_ptr() == room == blob.data.ctypes.data
    assert bytes(blob.data) == tensor.numpy().tobytes()


BOUNDED = """
import sys, pathlib, torch
sys.path.insert(0, "bench")
import checkpoint as bench
work = {"kept": bench.memory, "broken": None}[sys.argv[1]] or (
    lambda folder, gib, rounds: {"load": {"gib_above_the_state": bench.peak_of(
        lambda: [one.clone() for one in bench.build(gib)[0].parameters()])[1]},
        "save": {"gib_above_the_state": 0}})
found = work(pathlib.Path(sys.argv[2]), 0.6, 1)
print(found["save"]["gib_above_the_state"], found["load"]["gib_above_the_state"])
"""


@pytest.mark.proof
@pytest.mark.parametrize(("what", "bounded"), [("kept", True), ("broken", False)])
def test_saving_and_loading_need_little_memory_beyond_the_state(tmp_path, what, bounded):
    """A state of 0.6 GiB; the negative control holds copies, and is noticed."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BOUNDED, what, tmp_path],
        check=True,
        capture_output=True,
        text=True,
        timeout=600,
    )
    above = [float(one) for one in done.stdout.split()]
    assert (max(above) < 0.1) is bounded, above
