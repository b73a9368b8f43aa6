"""What the node of a supervisor uses: processors, memory, disks, network, as Linux counts them in `/proc`.

A supervisor runs on images with nothing but Python's standard library, so the files are read here. Values
are of the whole node, whatever uses it; in a container those of its network. What cannot be read is left
out.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

PERIOD_S = 10.0
_SECTOR = 512
_USER_TICKS = slice(0, 8)  # user to steal: guests are part of user
_IDLE = slice(3, 5)  # idle and iowait
#: Devices below others, and those in memory, with traffic that is counted elsewhere.
_NO_DISK = re.compile(r"(loop|ram|zram|dm-|md|sr|fd)\d*|.*\d+p\d+|[a-z]+d[a-z]+\d+")
_UNREADABLE = (OSError, ValueError, IndexError, KeyError)


class HostMeter:
    """Measures the node once a period. Counters are given as what was added since the time before."""

    def __init__(
        self, folder: Path, proc: Path = Path("/proc"), period_s: float = PERIOD_S
    ) -> None:
        self._folder, self._proc, self._period_s = folder, proc, period_s
        self._at: float | None = None
        self._before: Mapping[str, float] = {}

    def measure(self, now_s: float) -> dict[str, float]:
        """The values of the period that ends now; none before it ends, and none for the first one."""
        if self._at is not None and now_s - self._at < self._period_s:
            return {}
        first, self._at = self._at is None, now_s
        counted = dict(_read(self._counters()))
        added = {
            name: value - self._before[name]
            for name, value in counted.items()
            if value >= self._before.get(name, value + 1)
        }
        self._before = counted
        if first:
            return {}
        found = dict(_read(self._gauges()))
        busy, ticks = added.pop("busy", None), added.pop("ticks", 0.0)
        if busy is not None and ticks > 0:
            found["phalanx_host_cpu_ratio"] = round(busy / ticks, 4)
        return found | added

    def _counters(self) -> Iterator[Callable[[], Mapping[str, float]]]:
        yield self._ticks
        yield self._network
        yield self._retransmits
        yield self._disks

    def _gauges(self) -> Iterator[Callable[[], Mapping[str, float]]]:
        yield self._memory
        yield self._free

    # -- files -----------------------------------------------------------------------------------

    def _ticks(self) -> dict[str, float]:
        words = (self._proc / "stat").read_text().split("\n", 1)[0].split()[1:]
        ticks = [int(one) for one in words]
        total = sum(ticks[_USER_TICKS])
        return {"busy": total - sum(ticks[_IDLE]), "ticks": total}

    def _network(self) -> dict[str, float]:
        received = sent = 0
        for line in (self._proc / "net/dev").read_text().splitlines()[2:]:
            name, _, rest = line.partition(":")
            if name.strip() != "lo":
                words = rest.split()
                received, sent = received + int(words[0]), sent + int(words[8])
        return {
            "phalanx_host_network_received_bytes": received,
            "phalanx_host_network_sent_bytes": sent,
        }

    def _retransmits(self) -> dict[str, float]:
        lines = (self._proc / "net/snmp").read_text().splitlines()
        heads, values = (one.split() for one in lines if one.startswith("Tcp:"))
        found = dict(zip(heads, values, strict=True))
        return {"phalanx_host_tcp_retransmits": int(found["RetransSegs"])}

    def _disks(self) -> dict[str, float]:
        read = written = 0
        for line in (self._proc / "diskstats").read_text().splitlines():
            words = line.split()
            if not _NO_DISK.fullmatch(words[2]):
                read, written = read + int(words[5]), written + int(words[9])
        return {
            "phalanx_host_disk_read_bytes": read * _SECTOR,
            "phalanx_host_disk_written_bytes": written * _SECTOR,
        }

    def _memory(self) -> dict[str, float]:
        sizes = {}
        for line in (self._proc / "meminfo").read_text().splitlines():
            name, _, rest = line.partition(":")
            sizes[name] = int(rest.split()[0]) * 1024
        total = sizes["MemTotal"]
        return {
            "phalanx_host_memory_bytes": total,
            "phalanx_host_memory_used_bytes": total - sizes["MemAvailable"],
        }

    def _free(self) -> dict[str, float]:
        found = os.statvfs(self._folder)
        return {"phalanx_host_disk_free_bytes": found.f_bavail * found.f_frsize}


def _read(sources: Iterator[Callable[[], Mapping[str, float]]]) -> Iterator[tuple[str, float]]:
    for source in sources:
        with contextlib.suppress(*_UNREADABLE):
            yield from source().items()
