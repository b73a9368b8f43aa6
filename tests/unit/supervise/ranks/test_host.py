"""What the node uses, from files of `/proc` that a test writes: periods, and unreadable files."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.core.telemetry.instruments import OF_NODE
from phalanx.supervise.ranks.host import HostMeter

pytestmark = pytest.mark.unit


def proc(
    folder: Path,
    *,
    busy: int,
    idle: int,
    received: int,
    sent: int,
    again: int,
    read: int,
    written: int,
) -> None:
    """Files as Linux has them, with a loopback interface and a partition that must not count."""
    (folder / "net").mkdir(parents=True, exist_ok=True)
    (folder / "stat").write_text(f"cpu  {busy} 0 0 {idle} 0 0 0 0 77 0\ncpu0 1 2 3\n")
    (folder / "net/dev").write_text(
        "Inter-|   Receive | Transmit\n face |bytes packets\n"
        "    lo: 999999 1 0 0 0 0 0 0 999999 1 0 0 0 0 0 0\n"
        f"  eth0: {received} 1 0 0 0 0 0 0 {sent} 1 0 0 0 0 0 0\n"
    )
    (folder / "net/snmp").write_text(
        f"Ip: A B\nIp: 1 2\nTcp: RtoMin RetransSegs InErrs\nTcp: 200 {again} 0\n"
    )
    (folder / "meminfo").write_text("MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 400 kB\n")
    (folder / "diskstats").write_text(
        "\n".join(
            f" 8 0 {name} 1 0 {read} 0 1 0 {written} 0 0 0 0 0"
            for name in ("sda", "sda1", "nvme0n1p2", "dm-0", "loop3", "zram0")
        )
    )


def test_a_period_has_what_was_added_in_it(tmp_path: Path) -> None:
    meter = HostMeter(tmp_path, tmp_path, period_s=10)
    proc(tmp_path, busy=100, idle=900, received=5000, sent=70, again=3, read=8, written=2)
    assert meter.measure(100.0) == {}  # nothing is known about the time before
    proc(tmp_path, busy=175, idle=925, received=6000, sent=170, again=7, read=10, written=2)
    assert meter.measure(109.9) == {}  # the period is not over
    found = meter.measure(110.0)
    assert found.pop("phalanx_host_disk_free_bytes") > 0
    assert found == {
        "phalanx_host_cpu_ratio": 0.75,
        "phalanx_host_memory_bytes": 1_024_000,
        "phalanx_host_memory_used_bytes": 614_400,
        "phalanx_host_network_received_bytes": 1000,
        "phalanx_host_network_sent_bytes": 100,
        "phalanx_host_tcp_retransmits": 4,
        "phalanx_host_disk_read_bytes": 1024,
        "phalanx_host_disk_written_bytes": 0,
    }
    assert {*found, "phalanx_host_disk_free_bytes"} == OF_NODE


def test_a_counter_that_begins_again_and_files_that_cannot_be_read_are_left_out(
    tmp_path: Path,
) -> None:
    meter = HostMeter(tmp_path, tmp_path, period_s=10)
    proc(tmp_path, busy=1, idle=1, received=5000, sent=70, again=3, read=8, written=2)
    meter.measure(0.0)
    proc(tmp_path, busy=2, idle=2, received=10, sent=80, again=3, read=8, written=2)
    (tmp_path / "diskstats").write_text("what is this\n")
    (tmp_path / "meminfo").unlink()
    found = meter.measure(10.0)
    assert {
        "phalanx_host_network_received_bytes",
        "phalanx_host_disk_read_bytes",
        "phalanx_host_memory_bytes",
    }.isdisjoint(found)
    assert found["phalanx_host_network_sent_bytes"] == 10


def test_without_files_there_are_no_values(tmp_path: Path) -> None:
    meter = HostMeter(tmp_path / "none", tmp_path / "none")
    assert [meter.measure(at) for at in (0.0, 10.0, 20.0)] == [{}, {}, {}]
