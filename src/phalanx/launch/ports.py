"""Find a free port for a rendezvous, and the network interface that reaches an address."""

from __future__ import annotations

import fcntl
import random
import socket
import struct
from pathlib import Path

_LOWEST = 20_000
_CEILING = 32_768  # where Linux begins its ephemeral range by default
_FEWEST = 1000
_SIOCGIFADDR = 0x8915


def ephemeral_floor() -> int:
    """The lowest port that the kernel gives to outgoing connections by itself."""
    text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
    return int(text.split()[0])


def free_port(rng: random.Random | None = None) -> int:
    """A port without a listener, below the ephemeral range, so that no connection takes it meanwhile.

    Where the ephemeral range leaves fewer than a thousand such ports, the port is from within that range.
    Raises OSError when a thousand tries find none.
    """
    rng = rng or random.Random()
    floor = ephemeral_floor()
    ceiling = floor if floor >= _LOWEST + _FEWEST else _CEILING
    for _ in range(1000):
        port = rng.randrange(_LOWEST, ceiling)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise OSError(98, f"no free port between {_LOWEST} and {ceiling}")


def interface_towards(address: str) -> str | None:
    """The network interface through which `address` is reached; None where that cannot be said."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))  # sends nothing
        except OSError:
            return None
        own = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            asked = struct.pack("16s240x", name.encode())
            try:
                found = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, asked)
            except OSError:
                continue
            if socket.inet_ntoa(found[20:24]) == own:
                return name
    return None
