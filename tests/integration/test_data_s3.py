"""Object storage: a real S3 server on loopback, forked workers, connections that break."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import operator
import pickle
import shutil
import socket
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from phalanx.errors import DataCorrupt, DataUnavailable, NotFound, PermissionDenied
from phalanx.launch.ports import free_port
from phalanx.train.data.readers.locating import load_index, locate, save_index
from phalanx.train.data.readers.scanning import full_index
from phalanx.train.data.readers.verifying import verify
from phalanx.train.readers import NodeCache, ObjectSource, TarShards
from support.s3 import KEY, SECRET, needs_s3, s3_server

pytest.importorskip("obstore")
pytestmark = [
    pytest.mark.integration,
    needs_s3,
]

NUM_SHARDS, PER_SHARD = 6, 20
SHARD_BYTES = -(-(PER_SHARD * 1024 + 1024) // 10240) * 10240  # tar pads to whole records


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """(endpoint, directory behind it)."""
    with s3_server(tmp_path_factory.mktemp("s3")) as one:
        yield one.endpoint, one.root


def options(endpoint: str, secret: str = SECRET) -> dict[str, str]:
    return {
        "endpoint": endpoint,
        "access_key_id": KEY,
        "secret_access_key": secret,
        "region": "us-east-1",
    }


@pytest.fixture
def prefix(server: tuple[str, Path], tmp_path: Path) -> Path:
    """A directory of the bucket with tar shards in it."""
    folder = server[1] / "bucket" / tmp_path.name
    folder.mkdir()
    for shard in range(NUM_SHARDS):
        with tarfile.open(folder / f"{shard}.tar", "w") as archive:
            for i in range(PER_SHARD):
                data = b"%d" % (shard * PER_SHARD + i)
                about = tarfile.TarInfo(f"{i:03d}.cls")
                about.size = len(data)
                archive.addfile(about, io.BytesIO(data))
    return folder


def source(server: tuple[str, Path], prefix: Path, cache: Path, num_shards: int) -> ObjectSource:
    bounded = NodeCache(cache, num_shards * SHARD_BYTES)
    return ObjectSource(f"s3://bucket/{prefix.name}", bounded, options(server[0]))


def index(where: ObjectSource) -> None:
    place = locate(where)
    save_index(full_index(where, "tar"), place)


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.extras)])
def test_workers_stream_shards_through_a_small_cache(
    server: tuple[str, Path], prefix: Path, tmp_path: Path, start: str
) -> None:
    where = source(server, prefix, tmp_path / "cache", 3)
    index(where)
    data = TarShards(
        where, transform=operator.itemgetter("cls")
    )  # has already talked to the store in this process
    assert data.index.has_digests
    context = multiprocessing.get_context(start)
    loader = DataLoader(
        data, batch_size=8, shuffle=True, num_workers=2, multiprocessing_context=context
    )
    seen = sorted(label for batch in loader for label in batch.tolist())
    assert seen == list(range(NUM_SHARDS * PER_SHARD))
    assert where.cache.used_bytes() <= where.cache.max_bytes


def test_index_beside_the_objects_and_verify(
    server: tuple[str, Path], prefix: Path, tmp_path: Path
) -> None:
    where = source(server, prefix, tmp_path / "cache", 3)
    index(where)
    local = load_index(locate(prefix))
    found = load_index(locate(where))
    assert local is not None and found is not None
    assert found.fingerprint() == local.fingerprint()
    assert verify(where, found) == []
    data = bytearray((prefix / "4.tar").read_bytes())
    data[600] ^= 1
    (prefix / "4.tar").write_bytes(bytes(data))
    fresh = source(server, prefix, tmp_path / "fresh", 3)
    assert [(f.file, f.what) for f in verify(fresh, found)] == [("4.tar", "digest")]
    shards = TarShards(fresh)
    assert shards[0]["cls"] == 0
    with pytest.raises(DataCorrupt, match=r"4\.tar does not match"):
        shards[4 * PER_SHARD]


def test_a_second_reader_of_the_node_needs_no_store(
    server: tuple[str, Path], prefix: Path, tmp_path: Path
) -> None:
    where = source(server, prefix, tmp_path / "cache", NUM_SHARDS)
    index(where)
    first = TarShards(where)
    assert [first[i]["cls"] for i in range(0, len(first), PER_SHARD)] == list(range(0, 120, 20))
    second = pickle.loads(pickle.dumps(first))
    for path in prefix.glob("*.tar"):
        path.unlink()
    assert [second[i]["cls"] for i in range(len(second))] == list(range(120))
    with pytest.raises(NotFound, match=r"0\.tar"):
        TarShards(
            source(server, prefix, tmp_path / "empty", 3), index=_copy_index(prefix, tmp_path)
        )[0]


def _copy_index(prefix: Path, tmp_path: Path) -> Path:
    target = tmp_path / "index"
    target.mkdir()
    for path in prefix.glob("INDEX*"):
        shutil.copy(path, target)
    return target


def test_wrong_credentials_and_no_server_are_plain_errors(
    server: tuple[str, Path], prefix: Path, tmp_path: Path
) -> None:
    cache = NodeCache(tmp_path / "cache", "1MB")
    url = f"s3://bucket/{prefix.name}"
    with pytest.raises(PermissionDenied, match="bucket"):
        TarShards(ObjectSource(url, cache, options(server[0], "wrong-secret")))
    silent = options(f"http://127.0.0.1:{free_port()}")
    gone = ObjectSource(url, cache, silent | {"retry_config": {"max_retries": 0}})  # type: ignore[arg-type]
    with pytest.raises(DataUnavailable, match="bucket"):
        TarShards(gone)


class CuttingProxy:
    """Passes connections on to a server, and cuts the first `num_cuts` answers short."""

    def __init__(self, port: int, num_cuts: int, after_bytes: int) -> None:
        self.target, self.left, self.after_bytes, self.cuts = port, num_cuts, after_bytes, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listener.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                server = socket.create_connection(("127.0.0.1", self.target))
                threading.Thread(
                    target=self._pass, args=(client, server, 1 << 60), daemon=True
                ).start()
                threading.Thread(target=self._back, args=(server, client), daemon=True).start()

    def _back(self, server: socket.socket, client: socket.socket) -> None:
        cutting = self.left > 0
        self._pass(server, client, self.after_bytes if cutting else 1 << 60)

    def _pass(self, source: socket.socket, target: socket.socket, limit: int) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data[: limit - passed])
                passed += len(data)
                if passed >= limit:
                    self.left -= 1
                    self.cuts += 1
                    break
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


@pytest.mark.leaves("the threads of the proxy end with the process")
@pytest.mark.extras
def test_connections_cut_in_the_middle_are_taken_up_again(
    server: tuple[str, Path], prefix: Path, tmp_path: Path
) -> None:
    index(source(server, prefix, tmp_path / "cache", 3))
    proxy = CuttingProxy(int(server[0].rpartition(":")[2]), num_cuts=4, after_bytes=3000)
    where = ObjectSource(
        f"s3://bucket/{prefix.name}",
        NodeCache(tmp_path / "other", "1MB"),
        options(f"http://127.0.0.1:{proxy.port}"),
    )
    data = TarShards(where, index=_copy_index(prefix, tmp_path))
    try:
        assert [data[i]["cls"] for i in range(len(data))] == list(range(120))
    finally:
        proxy.listener.close()
    assert proxy.cuts == 4
