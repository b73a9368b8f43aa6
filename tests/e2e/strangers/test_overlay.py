"""gloo on the interface of an encrypted overlay: it listens there and nowhere else, and knows no TLS."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.extras,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None,
        reason="makes a network namespace",
    ),
]

# Two interfaces, as a node with an overlay has them; `wg0` is what the addresses of the gang lead to.
SETUP = """
ip link set lo up
for one in eth0:192.0.2.1 wg0:10.99.0.1; do
    ip link add ${one%:*} type veth peer name peer${one%:*}
    ip addr add ${one#*:}/24 dev ${one%:*}
    ip link set ${one%:*} up; ip link set peer${one%:*} up
done
exec "$0" -c "$1"
"""
PROGRAM = """
import json, os, socket
import torch.distributed as dist
from phalanx.launch.ports import interface_towards

name = interface_towards("10.99.0.1")
os.environ["GLOO_SOCKET_IFNAME"] = name
store = dist.HashStore()
group = dist.ProcessGroupGloo(store, 0, 1)
lines = [line.split() for line in open("/proc/net/tcp")][1:]
listens = sorted({socket.inet_ntoa(bytes.fromhex(line[1][:8])[::-1]) for line in lines if line[3] == "0A"})

os.environ["GLOO_SOCKET_IFNAME"] = "wg7"
try:
    dist.ProcessGroupGloo(dist.HashStore(), 0, 1)
    absent = ""
except RuntimeError as error:
    absent = str(error)
print(json.dumps({"name": name, "listens": listens, "absent": absent}))
"""


def test_gloo_listens_on_the_overlay_alone_and_takes_no_other_interface() -> None:
    words = ["unshare", "--net", "sh", "-ec", SETUP, sys.executable, PROGRAM]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["name"], found["listens"]) == ("wg0", ["10.99.0.1"])
    assert "wg7" in found["absent"] or "address" in found["absent"]


def test_gloo_of_this_build_has_no_tls_and_does_not_go_on_in_clear() -> None:
    program = "import torch.distributed as d; d.ProcessGroupGloo(d.HashStore(), 0, 1)"
    env = {**os.environ, "GLOO_DEVICE_TRANSPORT": "TCP_TLS", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert done.returncode != 0
    assert "unsupported gloo device" in done.stderr, "docs/how-to/encrypted-gradients.md says so"
