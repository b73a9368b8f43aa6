"""The check before the first collective: ranks fit together, and nodes reach one another.

Each rank writes its facts (place, versions, devices) into the rendezvous store, rank 0 compares them, and
all ranks read its verdict. This needs no process group, which could not be created with wrong ranks or an
unreachable node.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch.distributed.distributed_c10d import PrefixStore, Store

from phalanx.core.gang.preflight import RankFacts, problems, summary
from phalanx.errors import PreflightFailed
from phalanx.launch.authentication import listen_on
from phalanx.train.gang.context import RankInfo

CONNECT_S = 10.0
_READ_TIMEOUT = datetime.timedelta(seconds=30)
_FIRST_POLL_S, _LAST_POLL_S = 0.002, 0.2
MAX_PEERS = 64
"""How many other nodes each node tries to reach."""
_HINT = "training.preflight: off skips this check"
_DRIVER = Path("/proc/driver/nvidia/version")
Check = Callable[[RankInfo, Store, datetime.timedelta], None]


def skip_check(info: RankInfo, store: Store, patience: datetime.timedelta) -> None:
    """Skip the check."""


def check(info: RankInfo, store: Store, patience: datetime.timedelta) -> None:
    """Compare all ranks. Collective. Raises PreflightFailed, with the same message on every rank.

    `patience` is how long to wait for ranks that have not connected.
    """
    store = PrefixStore("preflight", store)
    is_only = store.add(f"seat/{info.rank}", 1) == 1
    with _listening(info) as (address, port):
        facts = json.dumps(asdict(facts_of(info, address, port)))
        store.set(f"{'facts' if is_only else 'twice'}/{info.rank}", facts)
        if not is_only:
            store.add("taken", 1)
        elif info.rank == 0:
            _judge(info, store, patience)
        if is_only and not info.one_node and info.local_rank == 0:
            check_reachability(info, store, patience)
        if is_only and info.rank == 0:
            _conclude(info, store, patience)
        verdict = _awaited(store, "verdict", patience)
        if verdict:
            _wait_for_readers(info, store, is_only)
    if verdict:
        raise PreflightFailed(verdict, _HINT)


def _wait_for_readers(info: RankInfo, store: Store, is_only: bool) -> None:
    """Make rank 0, which hosts the store, wait until all others have read the verdict."""
    store.set(f"{'read' if is_only else 'read twice'}/{info.rank}", "")
    if info.rank == 0 and is_only:
        present = [at for at in range(info.world_size) if store.check([f"facts/{at}"])]
        keys = [f"read/{at}" for at in present]
        keys += [f"read twice/{at}" for at in present if store.check([f"twice/{at}"])]
        with contextlib.suppress(RuntimeError):
            store.wait(keys, _READ_TIMEOUT)


def facts_of(info: RankInfo, address: str, port: int) -> RankFacts:
    """Collect this rank's place, versions and devices."""
    versions = {"python": platform.python_version(), "torch": str(torch.__version__)}
    devices, device = 0, ""
    if torch.cuda.is_available():
        devices = torch.cuda.device_count()
        device = str(torch.cuda.get_device_properties(info.device_index(devices)).uuid)
        versions |= {
            "NCCL": ".".join(map(str, torch.cuda.nccl.version())),  # type: ignore[no-untyped-call]
            "CUDA": str(torch.version.cuda),
            "the driver": _driver(),
        }
    return RankFacts(
        rank=info.rank,
        world_size=info.world_size,
        local_rank=info.local_rank,
        local_world_size=info.local_world_size,
        node_rank=info.node_rank,
        host=socket.gethostname(),
        pid=os.getpid(),
        versions=versions,
        devices=devices,
        wants=info.local_rank if info.local_device is None else info.local_device,
        device=device,
        address=address,
        port=port,
    )


def _driver() -> str:
    try:
        line = _DRIVER.read_text().splitlines()[0]
    except (OSError, IndexError):
        return "unknown"
    return next((word for word in line.split() if word[:1].isdigit() and "." in word), "unknown")


@contextlib.contextmanager
def _listening(info: RankInfo) -> Iterator[tuple[str, int]]:
    """Listen on an address of this node, so that other nodes can try to connect."""
    if info.one_node or info.local_rank != 0:
        yield "", 0
        return
    own = own_address(info)
    with listen_on(own) as server:
        done = threading.Event()
        server.settimeout(0.2)
        thread = threading.Thread(target=_answer, args=(server, done), daemon=True)
        thread.start()
        try:
            yield own, int(server.getsockname()[1])
        finally:
            done.set()
            thread.join()


def _answer(server: socket.socket, done: threading.Event) -> None:
    while not done.is_set():
        with contextlib.suppress(OSError):
            server.accept()[0].close()


def own_address(info: RankInfo) -> str:
    """Return the address of the interface through which this node reaches rank 0."""
    with contextlib.suppress(OSError), socket.create_connection(info.master, CONNECT_S) as link:
        return str(link.getsockname()[0])
    return socket.gethostname()


def _judge(info: RankInfo, store: Store, patience: datetime.timedelta) -> None:
    """Compare the facts of all ranks on rank 0 and publish the nodes' addresses."""
    keys = [f"facts/{rank}" for rank in range(info.world_size)]
    until = time.monotonic() + patience.total_seconds()
    pause_s = _FIRST_POLL_S
    # Polled, because torch logs a warning for every `wait` that times out.
    while not store.check(keys) and not store.add("taken", 0) and time.monotonic() < until:
        time.sleep(pause_s)
        pause_s = min(_LAST_POLL_S, pause_s * 1.5)
    here = [key for key in keys if store.check([key])]
    facts = [_facts(store, key) for key in here]
    found = _taken_twice(store, facts)
    if not found and len(here) < len(keys):
        away = [str(rank) for rank, key in enumerate(keys) if key not in here]
        found.append(f"rank {', '.join(away[:8])} has not connected within {patience}")
    found = found or problems(facts)
    leaders = sorted((one.node_rank, one.host, one.address, one.port) for one in facts if one.port)
    store.set("nodes", json.dumps([] if found else leaders))
    store.set("found", json.dumps(found))


def _taken_twice(store: Store, facts: list[RankFacts]) -> list[str]:
    found = []
    for one in facts:
        if store.check([f"twice/{one.rank}"]):
            other = _facts(store, f"twice/{one.rank}")
            found.append(
                f"two processes are rank {one.rank}: {one.host} pid {one.pid} and"
                f" {other.host} pid {other.pid}"
            )
    return found


def check_reachability(info: RankInfo, store: Store, patience: datetime.timedelta) -> None:
    """Connect from one rank of each node to the other nodes; publish those that do not answer."""
    nodes = json.loads(_awaited(store, "nodes", patience))
    at = next((i for i, one in enumerate(nodes) if one[0] == info.node_rank), 0)
    peers = [*nodes[at + 1 :], *nodes[:at]][:MAX_PEERS]
    with ThreadPoolExecutor(max(1, min(16, len(peers)))) as pool:
        failed = [one for one in pool.map(lambda peer: _unreachable(info, peer), peers) if one]
    store.set(f"reach/{info.node_rank}", json.dumps(failed))


def _unreachable(info: RankInfo, peer: tuple[int, str, str, int]) -> str:
    node, host, address, port = peer
    try:
        socket.create_connection((address, port), CONNECT_S).close()
    except OSError as error:
        return (
            f"node rank {info.node_rank} ({socket.gethostname()}) cannot reach node rank {node}"
            f" ({host}) at {address}:{port}: {error}"
        )
    return ""


def _conclude(info: RankInfo, store: Store, patience: datetime.timedelta) -> None:
    found = json.loads(_awaited(store, "found", patience))
    if not found and not info.one_node:
        for node, *_ in json.loads(_awaited(store, "nodes", patience)):
            found += json.loads(_awaited(store, f"reach/{node}", patience))
    store.set("verdict", summary(found) if found else "")


def _awaited(store: Store, key: str, patience: datetime.timedelta) -> str:
    store.wait([key], patience)
    return bytes(store.get(key)).decode()


def _facts(store: Store, key: str) -> RankFacts:
    found: dict[str, Any] = json.loads(bytes(store.get(key)))
    return RankFacts(**found)
