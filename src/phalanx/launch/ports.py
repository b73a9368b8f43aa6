"""Hold a free port for a rendezvous; the network interfaces and addresses of this machine."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
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
    held = HeldPort(rng)
    held.release()
    return held.number


class HeldPort:
    """A port that no other user can take until it is released.

    It is bound and not listened on: processes of this user that set SO_REUSEPORT may listen there.
    """

    def __init__(self, rng: random.Random | None = None) -> None:
        """Find and hold a port. Raises OSError when a thousand tries find none."""
        self._socket = _bound(rng or random.Random())
        self.number = int(self._socket.getsockname()[1])

    def keep_for_program(self) -> None:
        """Hold the port also after this process has become another program."""
        if self._socket.fileno() >= 0:
            self._socket.set_inheritable(True)

    def release(self) -> None:
        """Let the port go. May be called again."""
        self._socket.close()


def _bound(rng: random.Random) -> socket.socket:
    floor = ephemeral_floor()
    ceiling = floor if floor >= _LOWEST + _FEWEST else _CEILING
    for _ in range(1000):
        port = rng.randrange(_LOWEST, ceiling)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            held.bind(("", port))
        except OSError:
            held.close()
            continue
        return held
    raise OSError(98, f"no free port between {_LOWEST} and {ceiling}")


def interface_towards(address: str) -> str | None:
    """The network interface through which `address` is reached; None where that cannot be said."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))  # sends nothing
        except OSError:
            return None
        own = probe.getsockname()[0]
    return next((name for name in _interfaces() if _address(name) == own), None)


def _interfaces() -> list[str]:
    return [name for _, name in socket.if_nameindex()]


def _address(interface: str) -> str | None:
    """The IPv4 address of an interface; None: it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        asked = struct.pack("16s240x", interface.encode())
        try:
            found = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, asked)
        except OSError:
            return None
    return socket.inet_ntoa(found[20:24])


def own_addresses(first: str = "") -> list[str]:
    """The addresses of this machine from which other machines may see its connections.

    `first` is the one that they are to use, such as that of a pod; empty: none is known.
    """
    found = {one for name in _interfaces() if (one := _address(name)) is not None}
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            found.add(str(ipaddress.IPv6Address(int(line.split()[0], 16))))
    others = sorted(one for one in found if not ipaddress.ip_address(one).is_loopback)
    return [first, *(one for one in others if one != first)] if first else others


def addresses_of(host: str) -> list[str]:
    """The addresses of a host by its name or address; none where it cannot be resolved."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return sorted({str(one[4][0]) for one in found})
