"""Process groups: one for gradients, private ones for checkpoints and control.

Collectives of checkpoints would interleave with gradients on the same group and break both, so they have a
group of their own. The rest of the library uses it through `ControlChannel`.
"""

from __future__ import annotations

import contextlib
import datetime
import socket
import time
import weakref
from collections import deque
from collections.abc import Sequence

import torch
import torch.distributed as dist

from phalanx.launch.authentication import listen_on
from phalanx.train.gang import preflight
from phalanx.train.gang.context import RankInfo, launcher_serves_store

START_TIMEOUT = datetime.timedelta(minutes=60)
STEP_TIMEOUT = datetime.timedelta(minutes=10)
_TEXT_BYTES = 4096
_PART_CHARS = 1000
_LISTEN_S = 60.0
_LOOK_EVERY_S = 0.005
_LET_GO_S = 2.0


class ControlChannel:
    """Small collectives outside the gradients' process group. Every rank makes the same calls.

    This class is the channel of a run with one process.
    """

    def gather(self, mine: bytes) -> list[bytes]:
        """Return every rank's bytes in rank order on rank 0, an empty list on the others."""
        return [mine]

    def broadcast(self, text: str) -> str:
        """Return rank 0's text, at most 4 KB in UTF-8."""
        return text

    def spread(self, text: str) -> str:
        """Return rank 0's text of any length."""
        return text

    def total(self, values: Sequence[float]) -> list[float]:
        """Return the sums over all ranks, in double precision."""
        return [float(value) for value in values]

    def settle(self) -> None:
        """Wait for pending operations; called before the interpreter ends."""


class LocalChannel(ControlChannel):
    """The control channel of a run with one process."""


def await_release(lent: Sequence[weakref.ref[torch.Tensor]]) -> None:
    """Wait up to two seconds until gloo's threads have released the tensors of ended collectives.

    They do so shortly after the caller has its result, and need the interpreter's lock for it: a
    thread that waits for the lock while the interpreter shuts down aborts the whole process.
    """
    deadline = time.monotonic() + _LET_GO_S
    while any(ref() is not None for ref in lent) and time.monotonic() < deadline:
        time.sleep(0.001)


class GroupChannel(ControlChannel):
    """A control channel over a private gloo group."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._rank = dist.get_rank(group)
        self._world_size = dist.get_world_size(group)
        self._lent: deque[weakref.ref[torch.Tensor]] = deque(maxlen=16)

    def _lend(self, *tensors: torch.Tensor) -> None:
        self._lent.extend(weakref.ref(tensor) for tensor in tensors)

    def settle(self) -> None:
        """Wait until the group's threads have released every tensor they were given."""
        await_release(self._lent)

    def gather(self, mine: bytes) -> list[bytes]:
        """Return every rank's bytes in rank order on rank 0, an empty list on the others."""
        size = torch.tensor([len(mine)], dtype=torch.int64)
        self._lend(size)
        dist.all_reduce(size, op=dist.ReduceOp.MAX, group=self._group)
        row = torch.zeros(8 + int(size.item()), dtype=torch.uint8)
        row[:8] = torch.frombuffer(bytearray(len(mine).to_bytes(8, "little")), dtype=torch.uint8)
        if mine:
            row[8 : 8 + len(mine)] = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
        self._lend(row)
        if self._rank != 0:
            dist.gather(row, dst=0, group=self._group)
            return []
        rows = [torch.empty_like(row) for _ in range(self._world_size)]
        self._lend(*rows)
        dist.gather(row, rows, dst=0, group=self._group)
        parts = [one.numpy().tobytes() for one in rows]
        return [part[8 : 8 + int.from_bytes(part[:8], "little")] for part in parts]

    def broadcast(self, text: str) -> str:
        """Return rank 0's text, at most 4 KB in UTF-8."""
        data = text.encode()
        if len(data) > _TEXT_BYTES - 2:
            raise ValueError(f"{len(data)} bytes are too many to broadcast")
        row = torch.zeros(_TEXT_BYTES, dtype=torch.uint8)
        self._lend(row)
        if self._rank == 0:
            lead = len(data).to_bytes(2, "little") + data
            row[: len(lead)] = torch.frombuffer(bytearray(lead), dtype=torch.uint8)
        dist.broadcast(row, src=0, group=self._group)
        got = row.numpy().tobytes()
        return got[2 : 2 + int.from_bytes(got[:2], "little")].decode()

    def spread(self, text: str) -> str:
        """Return rank 0's text of any length."""
        num = int(self.broadcast(str(-(-len(text) // _PART_CHARS))))
        cuts = range(0, num * _PART_CHARS, _PART_CHARS)
        return "".join(self.broadcast(text[at : at + _PART_CHARS]) for at in cuts)

    def total(self, values: Sequence[float]) -> list[float]:
        """Return the sums over all ranks, in double precision."""
        row = torch.tensor([float(value) for value in values], dtype=torch.float64)
        self._lend(row)
        dist.all_reduce(row, group=self._group)
        return [float(value) for value in row.tolist()]


def await_host(address: str, port: int) -> None:
    """Wait until rank 0 listens, polling often.

    torch's own client waits for most of a second after a refused connection, and ranks that are forked
    together often connect too early. Other errors are ignored: torch's client reports them.
    """
    deadline = time.monotonic() + _LISTEN_S
    while time.monotonic() < deadline:
        try:
            socket.create_connection((address, port), timeout=_LISTEN_S).close()
        except ConnectionRefusedError:
            time.sleep(_LOOK_EVERY_S)
        except OSError:
            return
        else:
            return


class Connection:
    """The process groups of one rank's gang."""

    def __init__(self, info: RankInfo, check: preflight.Check = preflight.skip_check) -> None:
        """Connect to the other ranks and run `check` before the first collective.

        Raises PreflightFailed, and what torch raises when ranks do not come.
        """
        self._info = info
        self._mine = info.launched and not dist.is_initialized()
        if self._mine:
            if info.rank != 0:
                await_host(*info.master)
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            serves = info.rank == 0 and not launcher_serves_store()
            # torch's own listener is on every interface.
            listening = listen_on(*info.master).detach() if serves else None
            store = dist.TCPStore(  # type: ignore[attr-defined]
                *info.master,
                master_listen_fd=listening,
                world_size=info.world_size,
                is_master=serves,
                timeout=START_TIMEOUT,
                wait_for_workers=False,
            )
            check(info, store, START_TIMEOUT)
            dist.init_process_group(
                backend,
                store=store,
                rank=info.rank,
                world_size=info.world_size,
                timeout=START_TIMEOUT,
            )
        self.channel = self.private_channel()

    def private_channel(self) -> ControlChannel:
        """Create a control channel for one part of the run. Collective."""
        return GroupChannel(self.private_group()) if self._info.world_size > 1 else LocalChannel()

    def private_group(self) -> dist.ProcessGroup:
        """Create a gloo group over all ranks. Collective."""
        group = dist.new_group(backend="gloo", timeout=START_TIMEOUT)
        assert isinstance(group, dist.ProcessGroup)
        return group

    def settle(self) -> None:
        """Shorten the timeout of collectives once the first step is done."""
        if self._mine:
            shorten = getattr(dist.distributed_c10d, "_set_pg_timeout", None)
            if shorten is not None:
                shorten(STEP_TIMEOUT)

    def close(self) -> None:
        """Leave the process groups; peers that have ended already are ignored."""
        self.channel.settle()
        if self._mine and dist.is_initialized():
            with contextlib.suppress(RuntimeError):
                dist.destroy_process_group()
