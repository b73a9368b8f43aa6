"""The network doctor on links of known rates, and under each preset: what it says against what is true.

    python bench/network.py [--rates 50mbit,100mbit,1gbit,0] [--presets-at 1gbit]

Two ranks with a shaped link between them (`shaped_link.py`; 0: as it is), measured by what
`phalanx doctor --network` starts. With `--presets-at` also with every preset's variables on that link, and
with the interface of a second, slower one.
"""

from __future__ import annotations

import argparse
import re

from shaped_link import bytes_per_s, ended, gang, in_rooms, refusal, sh, two_rooms

from phalanx.core.gang.networks import PRESETS, rate_text

GUARD_S = 300
SLOW = "100mbit"
FIGURES = re.compile(
    r"8 bytes takes (?P<latency>\d+) µs.*move (?P<bus>[\d.]+ [MG]B/s) over"
    r".*ranks: (?P<link>[\d.]+ [MG]B/s)",
    re.DOTALL,
)


def measured(rooms: list[str], env: dict[str, str], interface: str = "v") -> str:
    how = in_rooms(rooms)
    own = [{"GLOO_SOCKET_IFNAME": f"{interface}{at}"} for at in range(2)]
    extra = [{**one, **env, **two} for one, two in zip(how["extra"], own, strict=True)]
    said = ended(
        gang([["-m", "phalanx.train.programs.netcheck"]] * 2, how["leads"], extra), GUARD_S
    )
    found = FIGURES.search(said)
    if found is None:
        raise SystemExit(f"the doctor said nothing of the kind:\n{said}")
    return f"all-reduce {found['bus']:>11}  plain TCP {found['link']:>11}  {found['latency']:>5} µs"


def second_link(rooms: list[str], rate: str) -> None:
    """Another one beside the first, on interfaces w0 and w1."""
    sh(f"ip link add w0 netns {rooms[0]} type veth peer name w1 netns {rooms[1]}")
    for at, room in enumerate(rooms):
        sh(f"ip -n {room} addr add 10.78.0.{at + 1}/24 dev w{at}")
        sh(f"ip -n {room} link set w{at} up")
        burst = int(bytes_per_s(rate) * 1e-3)
        shape = f"tbf rate {rate} burst {burst} latency 50ms"
        sh(f"ip netns exec {room} tc qdisc add dev w{at} root {shape}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rates", default="50mbit,100mbit,1gbit,0")
    parser.add_argument("--presets-at")
    given = parser.parse_args()
    if refusal():
        raise SystemExit(refusal())
    for rate in given.rates.split(",") if given.rates else ():
        with two_rooms(rate) as rooms:
            true = rate_text(bytes_per_s(rate)) if rate != "0" else "unshaped"
            print(f"{rate:>8} = {true:>10}  {measured(rooms, {})}", flush=True)
    if given.presets_at:
        with two_rooms(given.presets_at) as rooms:
            for name, env in {"none": {}, **PRESETS}.items():
                print(f"{given.presets_at:>8} {name:13} {measured(rooms, dict(env))}", flush=True)
            for threads in ("1", "2"):
                name, env = f"{threads} threads", {"OMP_NUM_THREADS": threads}
                print(f"{given.presets_at:>8} {name:13} {measured(rooms, env)}", flush=True)
            second_link(rooms, SLOW)
            name = "interface w"
            print(f"{given.presets_at:>8} {name:13} {measured(rooms, {}, 'w')}", flush=True)


if __name__ == "__main__":
    main()
