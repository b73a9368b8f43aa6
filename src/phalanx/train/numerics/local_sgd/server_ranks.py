"""The ranks of a gang that are parameter servers, and their addresses in the rendezvous store.

The last ranks of the gang are servers. They are not in the workers' process groups: to the rest of the
library the gang consists of the workers alone. Each server puts its address into the rendezvous store.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from phalanx.core.contract.records import DoneRecord, PhaseRecord, StoppedRecord
from phalanx.core.training import control
from phalanx.errors import Problem, SpecInvalid
from phalanx.launch.authentication import AuthenticatedListener, listen_on, read_secret
from phalanx.train.gang.context import RankInfo
from phalanx.train.gang.groups import START_TIMEOUT, await_host
from phalanx.train.gang.preflight import own_address
from phalanx.train.gang.report import Report
from phalanx.train.numerics.local_sgd.server import ParameterServer, serve
from phalanx.train.numerics.local_sgd.worker import Address, ServerConnections
from phalanx.train.settings import SyncSettings

_KEY = "phalanx/server"


def num_servers(sync: SyncSettings) -> int:
    """Return the number of server ranks."""
    return sync.servers if sync.method == "server" else 0


def is_server(sync: SyncSettings, info: RankInfo) -> bool:
    """Return whether this rank is a server. Raises SpecInvalid where its node would have no worker."""
    num = num_servers(sync)
    if num and _servers_here(num, info) == info.local_world_size:
        said = f"{num} servers leave no worker on a node of {info.local_world_size} ranks"
        hint = "the last ranks of the gang are servers; every node needs a worker"
        raise SpecInvalid([Problem("sync.servers", said)], hint)
    return info.rank >= info.world_size - num


def as_worker(sync: SyncSettings, info: RankInfo) -> RankInfo:
    """Return the rank's place among the workers."""
    num = num_servers(sync)
    return replace(
        info,
        world_size=info.world_size - num,
        local_world_size=info.local_world_size - _servers_here(num, info),
        reference_world=max(1, info.reference_world - num),
    )


def _servers_here(num: int, info: RankInfo) -> int:
    """Number of servers on this rank's node."""
    end = info.rank - info.local_rank + info.local_world_size
    return min(max(0, end - (info.world_size - num)), info.local_world_size)


def run_server(
    sync: SyncSettings, info: RankInfo, stopped: Callable[[], bool], report: Report
) -> NoReturn:
    """Serve until all workers have left, then raise SystemExit."""
    num_workers = info.world_size - num_servers(sync)
    store = _store(info)
    host, secret = own_address(info), _secret(info)
    listener = AuthenticatedListener(listen_on(host), lambda _name: secret)
    address: Address = (host, listener.port)
    store.set(f"{_KEY}/{info.rank - num_workers}", json.dumps(address))
    server = ParameterServer(sync, num_workers, (info.attempt, info.generation))
    report.write(PhaseRecord("ready"))

    def poll() -> None:
        if stopped():
            server.request(control.STOP)

    serve(listener, server, poll)
    if stopped():
        report.write(StoppedRecord(saved=True, step=0))
    else:
        report.write(DoneRecord(0))
    report.close()
    raise SystemExit(0)


def find_servers(sync: SyncSettings, info: RankInfo) -> ServerConnections:
    """Connect a worker to all servers; `info` is its place among the workers."""
    store = _store(info)
    found = [json.loads(store.get(f"{_KEY}/{at}")) for at in range(sync.servers)]
    return ServerConnections(
        [(host, port) for host, port in found],
        info.rank,
        (info.attempt, info.generation),
        _secret(info),
    )


def _secret(info: RankInfo) -> bytes:
    """The secret of the generation, which never goes through the store. Raises SpecInvalid."""
    said = "is required with parameter servers: ranks authenticate with the secret in it"
    hint = "the platform sets it; with another launcher, set it to a file that all ranks share"
    if info.secret_file is None:
        raise SpecInvalid([Problem("PHALANX_SECRET_FILE", said)], hint)
    try:
        return read_secret(info.secret_file)
    except OSError as error:
        raise SpecInvalid([Problem("PHALANX_SECRET_FILE", str(error))], hint) from error


def _store(info: RankInfo) -> TCPStore:
    host, port = info.master
    await_host(host, port)
    timeout: datetime.timedelta = START_TIMEOUT
    return TCPStore(host, port, is_master=False, timeout=timeout, wait_for_workers=False)
