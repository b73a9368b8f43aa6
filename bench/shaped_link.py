"""Two network namespaces with a shaped link between them, and ranks in them: for benchmarks and tests.

Needs root and iproute2. Both ends of a veth pair are shaped with tbf. The token bucket holds 1 ms of the
rate (at least 6 KB), so that nothing slips through unshaped; up to 50 ms of traffic queue; nothing delays
a packet on an idle link.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from phalanx.launch.ports import free_port

BURST_S, LEAST_BURST = 1e-3, 6 << 10
MASTER = "10.77.0.1"


def refusal() -> str:
    """Why this machine can make none; empty where it can."""
    if os.geteuid() != 0:
        return "shaping a link needs root"
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    return f"iproute2 is missing: {', '.join(missing)}" if missing else ""


def sent_bytes(interface: str) -> int:
    """What the kernel counts on an interface of this namespace, headers included."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        if line.strip().startswith(f"{interface}:"):
            return int(line.split(":")[1].split()[8])
    return 0


def sh(line: str) -> None:
    subprocess.run(line.split(), check=True)


def bytes_per_s(rate: str) -> float:
    """Of a rate as tc writes it; 0 for none."""
    units = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
    unit = next((one for one in units if rate.endswith(one)), "")
    return float(rate.removesuffix(unit)) * units[unit] / 8 if unit else 0.0


@contextlib.contextmanager
def two_rooms(rate: str) -> Iterator[list[str]]:
    """Names of two network namespaces with a shaped link between them."""
    tag = f"phx{os.getpid()}"
    rooms = [f"{tag}a", f"{tag}b"]
    try:
        for room in rooms:
            sh(f"ip netns add {room}")
        sh(f"ip link add v0 netns {rooms[0]} type veth peer name v1 netns {rooms[1]}")
        for at, room in enumerate(rooms):
            sh(f"ip -n {room} addr add 10.77.0.{at + 1}/24 dev v{at}")
            sh(f"ip -n {room} link set v{at} up")
            sh(f"ip -n {room} link set lo up")
            if rate != "0":
                burst = max(LEAST_BURST, int(bytes_per_s(rate) * BURST_S))
                shape = f"tbf rate {rate} burst {burst} latency 50ms"
                sh(f"ip netns exec {room} tc qdisc add dev v{at} root {shape}")
        yield rooms
    finally:
        for room in rooms:
            subprocess.run(["ip", "netns", "del", room], check=False)


def gang(
    words: list[list[str]], leads: list[list[str]], extra: list[dict[str, str]]
) -> list[subprocess.Popen]:
    """Start a rank for each row of a Python program's words, below the words that lead it."""
    port = free_port()
    ranks = []
    for rank, (mine, lead) in enumerate(zip(words, leads, strict=True)):
        env = {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": str(len(words)),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "NODE_RANK": str(rank),
            "GROUP_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
            **extra[rank],
        }
        command = [*lead, sys.executable, "-W", "ignore", *mine]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        ranks.append(subprocess.Popen(command, env=env, text=True, **pipes))
    return ranks


def ended(ranks: list[subprocess.Popen], guard_s: float) -> str:
    """Wait until they have; what rank 0 printed."""
    answers = [one.communicate(timeout=guard_s)[0] for one in ranks]
    if any(one.returncode for one in ranks):
        raise SystemExit(f"a rank failed: {[one.returncode for one in ranks]}")
    return answers[0]


def tasks_of(script: str, tasks: list[dict[str, object]]) -> list[list[str]]:
    """Words for `gang`: a task for each rank of a benchmark."""
    return [[script, "--rank", json.dumps(task)] for task in tasks]


def together(words, leads, extra, guard_s: float):
    """Run a gang to its end; rank 0's answer, which is its last line."""
    return json.loads(ended(gang(words, leads, extra), guard_s).strip().splitlines()[-1])


def in_rooms(rooms: list[str]) -> dict[str, list]:
    """How `gang` starts one rank in each of these namespaces."""
    return {
        "leads": [["ip", "netns", "exec", room] for room in rooms],
        "extra": [{"GLOO_SOCKET_IFNAME": f"v{at}", "MASTER_ADDR": MASTER} for at in range(2)],
    }


def turn(ranks: list[subprocess.Popen], steps: int) -> dict[str, object]:
    """Have a gang train so many steps; what rank 0 says of them."""
    for one in ranks:
        one.stdin.write(f"{steps}\n")
        one.stdin.flush()
    answers = [one.stdout.readline() for one in ranks]
    return json.loads(answers[0])
