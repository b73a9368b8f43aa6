"""A port for the next rendezvous."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_LOWEST = 20_000


def ephemeral_floor() -> int:
    """The lowest port that the kernel gives to outgoing connections by itself."""
    text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
    return int(text.split()[0])


def free_port(rng: random.Random) -> int:
    """A port nobody listens on, below the ephemeral range, so that no connection takes it meanwhile.

    Raises OSError when a thousand tries find none.
    """
    ceiling = max(_LOWEST + 1, ephemeral_floor())
    for _ in range(1000):
        port = rng.randrange(_LOWEST, ceiling)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise OSError(98, f"no free port between {_LOWEST} and {ceiling}")
