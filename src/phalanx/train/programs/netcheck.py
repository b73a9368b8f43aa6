"""The program of a rank of `phalanx doctor --network`.

Measures all-reduces of several sizes against plain TCP between two ranks, on the device and backend that
training uses; rank 0 prints one remark a line, and logs the figures.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import statistics
import sys
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist

import phalanx.train as pt
from phalanx.core.gang import networks
from phalanx.launch.authentication import listen_on
from phalanx.train.gang import context
from phalanx.train.run import Run

SIZES = (8, 64 << 10, 1 << 20, 16 << 20)
# A slow link is measured for about so long: each size, and plain TCP.
_ENOUGH_S = 3.0
_WARM, _LEAST = 3, 3
_LINK_BYTES = 64 << 20
_CHUNK = 1 << 20
_CONNECT_S = 30.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns 1 when a figure is bad."""
    parser = argparse.ArgumentParser(prog="phalanx doctor --network")
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args(arguments)
    run = pt.init()
    if run.world_size < 2:
        sys.stdout.write("one rank has no peer: give --ranks 2 or more\n")
        return 1
    times = {size: all_reduce_s(run, size, given.rounds) for size in SIZES}
    link = link_bytes_per_s(run)
    bus = networks.bus_bytes_per_s(SIZES[-1], times[SIZES[-1]], run.world_size)
    run.log(
        network_latency_seconds=times[8], network_bus_bytes_per_s=bus, network_link_bytes_per_s=link
    )
    mine = networks.explain(context.network_variables(), os.listdir("/sys/class/net"))
    found = [*networks.judge(times[8], bus, link), *mine]
    wrong = run.all_reduce_sum(float(any(one.verdict == "FAIL" for one in found)))[0]
    if run.is_main:
        _print(run, times, found)
    run.finish()
    return 1 if wrong else 0


def all_reduce_s(run: Run, num_bytes: int, rounds: int) -> float:
    """Return the median seconds of an all-reduce; fewer rounds on a slow link. Collective."""
    row = torch.ones(num_bytes // 4, device=run.device)
    fastest = min(_timed(run, row) for _ in range(_WARM))
    # All ranks have to make as many.
    usual_s = run.all_reduce_sum(fastest)[0] / run.world_size
    rounds = min(rounds, max(_LEAST, int(_ENOUGH_S / usual_s)))
    return statistics.median(_timed(run, row) for _ in range(rounds))


def _timed(run: Run, row: torch.Tensor) -> float:
    dist.barrier()
    began = time.perf_counter()
    dist.all_reduce(row)
    if run.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def link_bytes_per_s(run: Run) -> float:
    """Measure plain TCP from the last rank to rank 0. Collective.

    0 where they cannot reach one another, or not within `_CONNECT_S`.
    """
    last = run.world_size - 1
    info = context.read()
    address = info.master[0]
    server = listen_on(address) if run.rank == 0 else None
    port = server.getsockname()[1] if server is not None else 0
    where = (address, int(run.all_reduce_sum(float(port))[0]))
    rate = 0.0
    # A rank that cannot connect must still come to the sum that the others wait in.
    with contextlib.suppress(OSError):
        if server is not None:
            with server:
                server.settimeout(_CONNECT_S)
                rate = _receive(server.accept()[0])
        elif run.rank == last:
            with socket.create_connection(where, _CONNECT_S) as peer:
                data, began = bytes(_CHUNK), time.perf_counter()
                for _ in range(_LINK_BYTES // _CHUNK):
                    peer.sendall(data)
                    if time.perf_counter() - began > _ENOUGH_S:
                        break
    return run.all_reduce_sum(rate)[0]


def _receive(peer: socket.socket) -> float:
    with peer:
        peer.settimeout(_CONNECT_S)
        room = bytearray(_CHUNK)
        got, began = peer.recv_into(room), time.perf_counter()
        counted = 0
        while got:
            got = peer.recv_into(room)
            counted += got
        if not counted:
            return 0.0
        return counted / (time.perf_counter() - began)


def _print(run: Run, times: dict[int, float], found: list[networks.Remark]) -> None:
    backend = "nccl" if run.device.type == "cuda" else "gloo"
    rows = [f"{backend} between {run.world_size} ranks, {run.device.type}"]
    for size, seconds in times.items():
        rate = networks.rate_text(networks.bus_bytes_per_s(size, seconds, run.world_size))
        rows.append(f"      {size:>10} bytes  {seconds * 1e3:9.3f} ms  {rate:>12}")
    sys.stdout.write("\n".join([*rows, *map(str, found)]) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
