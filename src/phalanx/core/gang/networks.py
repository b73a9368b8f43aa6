"""Variables of NCCL and gloo: their meaning, presets for interconnects, and warnings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


def _tcp(connections: str) -> dict[str, str]:
    """TCP, with as many threads, and as many connections of each."""
    names = ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD")
    return {"NCCL_IB_DISABLE": "1", **dict.fromkeys(names, connections)}


PRESETS: Mapping[str, Mapping[str, str]] = {
    # One node with GPUs connected by NVLink: no network is used.
    "nvlink": {"NCCL_IB_DISABLE": "1", "NCCL_P2P_LEVEL": "NVL"},
    # RDMA, GPUs and adapters below the same PCIe host bridge.
    "infiniband": {"NCCL_IB_DISABLE": "0", "NCCL_NET_GDR_LEVEL": "PHB"},
    # TCP at up to 10 Gbit/s: one connection fills it.
    "ethernet": _tcp("1") | {"NCCL_MAX_NCHANNELS": "4"},
    # TCP at 25 Gbit/s and more: one connection does not fill it.
    "ethernet_fast": _tcp("4") | {"NCCL_BUFFSIZE": "8388608"},
}
_MEANING: Mapping[str, str] = {
    "NCCL_DEBUG": "log level of NCCL; WARN is enough in production",
    "NCCL_IB_DISABLE": "1: TCP in place of InfiniBand and RoCE",
    "NCCL_NET_GDR_LEVEL": "largest distance between a GPU and a network adapter for direct transfers",
    "NCCL_P2P_LEVEL": "largest distance between two GPUs for direct transfers",
    "NCCL_P2P_DISABLE": "1: no direct transfers between GPUs of one node",
    "NCCL_SHM_DISABLE": "1: no shared memory between ranks of one node",
    "NCCL_SOCKET_IFNAME": "network interface for TCP and for the rendezvous",
    "NCCL_SOCKET_NTHREADS": "CPU threads of each TCP connection",
    "NCCL_NSOCKS_PERTHREAD": "sockets of each of these threads",
    "NCCL_BUFFSIZE": "bytes of the buffer between a pair of GPUs (4 MiB)",
    "NCCL_MIN_NCHANNELS": "minimum number of rings",
    "NCCL_MAX_NCHANNELS": "maximum number of rings, each with its own share of the GPU",
    "NCCL_ALGO": "forces an algorithm, for all sizes",
    "NCCL_PROTO": "forces a protocol, for all sizes",
    "GLOO_SOCKET_IFNAME": "network interface of gloo",
    "OMP_NUM_THREADS": "CPU threads of each rank",
    "PYTORCH_ALLOC_CONF": "settings of torch's allocator",
    "PYTORCH_CUDA_ALLOC_CONF": "settings of torch's allocator",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "reaction of a rank to a failed collective",
    "TORCH_DISTRIBUTED_DEBUG": "checks of every collective; DETAIL is slow",
}
_RENAMED = {"NCCL_MIN_NRINGS": "NCCL_MIN_NCHANNELS", "NCCL_MAX_NRINGS": "NCCL_MAX_NCHANNELS"}
_COSTLY = {
    ("NCCL_DEBUG", "INFO"),
    ("NCCL_DEBUG", "TRACE"),
    ("NCCL_P2P_DISABLE", "1"),
    ("NCCL_SHM_DISABLE", "1"),
    ("TORCH_DISTRIBUTED_DEBUG", "DETAIL"),
}
_INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
PREFIXES = ("NCCL_", "GLOO_", "TORCH_NCCL_", "TORCH_DISTRIBUTED_", "OMP_", "PYTORCH_")
MUCH = 0.5
"""An all-reduce that reaches less than this part of the link is worth a warning."""


@dataclass(frozen=True, slots=True)
class Remark:
    """One line about the environment or a measurement: `ok`, `warn` or `FAIL`."""

    verdict: str
    subject: str
    said: str

    def __str__(self) -> str:
        return f"{self.verdict:<4}  {self.subject:<32}  {self.said}"


def variables(preset: str | None, interface: str | None, debug: str | None) -> dict[str, str]:
    """The variables for a job's network settings. Raises ValueError for an unknown preset."""
    if preset is not None and preset not in PRESETS:
        raise ValueError(f"{preset!r} must be one of {', '.join(PRESETS)}")
    found = dict(PRESETS.get(preset or "", {}))
    if interface:
        found |= dict.fromkeys(_INTERFACES, interface)
    if debug:
        found["NCCL_DEBUG"] = debug.upper()
    return found


def explain(env: Mapping[str, str], interfaces: Iterable[str]) -> list[Remark]:
    """Describe every variable that is set, and warn about unusual values.

    `interfaces` are the node's network interfaces.
    """
    known = set(interfaces)
    found = []
    for name in sorted(env):
        value = env[name]
        subject = f"{name}={value}"
        if name in _RENAMED:
            found.append(Remark("warn", subject, f"has no effect any more; set {_RENAMED[name]}"))
        elif name in _INTERFACES and not _names_one(value, known):
            said = f"no such interface on this node; known: {', '.join(sorted(known))}"
            found.append(Remark("FAIL", subject, said))
        elif (name, value.upper()) in _COSTLY:
            found.append(Remark("warn", subject, f"costs speed; {_MEANING[name]}"))
        else:
            found.append(Remark("ok", subject, _MEANING.get(name, "not described by Phalanx")))
    return found


def _names_one(value: str, known: set[str]) -> bool:
    """NCCL takes prefixes, `=` before exact names and `^` before excluded ones; lists with commas."""
    if value.startswith("^"):
        return True
    wanted = value.removeprefix("=").split(",")
    return any(one.startswith(word) for one in known for word in wanted)


def bus_bytes_per_s(num_bytes: int, seconds: float, ranks: int) -> float:
    """Bus bandwidth of an all-reduce of so many bytes, in bytes per second."""
    return num_bytes / seconds * 2 * (ranks - 1) / ranks


def judge(latency_s: float, bus: float, link: float) -> list[Remark]:
    """The figures in words: bytes per second of the all-reduce (`bus`) and of plain TCP (`link`)."""
    latency = Remark("ok", "latency", f"an all-reduce of 8 bytes takes {latency_s * 1e6:.0f} µs")
    if link <= 0:
        said = "the last rank cannot reach rank 0 over plain TCP: check the firewall"
        return [latency, Remark("FAIL", "link", said)]
    share = bus / link
    plain = f"plain TCP between two ranks: {rate_text(link)}"
    rates = f"{rate_text(bus)} over each link; {plain} ({share:.0%})"
    slow = share < MUCH
    hint = "; another preset, interface or more threads may help" if slow else ""
    return [
        latency,
        Remark("warn" if slow else "ok", "bandwidth", f"large all-reduces move {rates}{hint}"),
    ]


def rate_text(bytes_per_s: float) -> str:
    """Bytes per second as text."""
    if bytes_per_s < 1e9:
        return f"{bytes_per_s / 1e6:.1f} MB/s"
    return f"{bytes_per_s / 1e9:.2f} GB/s"
