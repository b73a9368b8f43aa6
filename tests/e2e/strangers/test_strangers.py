"""Strangers at every listening socket: another user of the machine, and another network namespace.

For each framework a small job meets, its sockets are listed from /proc and compared with the catalogue in
docs/explanation/security.md, strangers try every one, and the job then ends well although silent strangers
stay connected.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from e2e.platform.harness import platform
from e2e.strangers import stranger
from e2e.strangers.sockets import listening
from phalanx.launch import accept_guard
from support.waiting import wait_until

__all__ = ["platform"]

SCRIPTS = Path(__file__).with_name("scripts")
PAGE = Path(__file__).resolve().parents[3] / "docs" / "explanation" / "security.md"
NETNS = f"phx{os.getpid()}"  # a run that was killed leaves its own

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: strangers are other users"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="needs ip: iproute2"),
]

TWO = {"nodes": 2, "slots_per_node": 1}
JOBS = {
    "torch": ("torch", {"nodes": 1, "slots_per_node": 2}, "stranger_torch", {}),
    "torch on two nodes": ("torch", TWO, "stranger_torch", {}),
    "library": ("torch", TWO, "stranger_library", {}),
    "parameter server": (
        "torch",
        {"nodes": 1, "slots_per_node": 3},
        "stranger_library",
        {"training": {"sync": {"method": "server", "every": 4}}},
    ),
    "jax": ("jax", TWO, "stranger_jax", {}),
    "tensorflow": ("tensorflow", TWO, "stranger_tensorflow", {}),
    "mpi": ("mpi", TWO, "stranger_mpi", {}),
    "ray": ("ray", TWO, "stranger_ray", {}),
    "federated": ("none", {"nodes": 1, "slots_per_node": 1}, "stranger_federated", {}),
}
MODULES = {"jax": "jax", "tensorflow": "tensorflow", "mpi": "mpi4py", "ray": "ray"}


def catalogue():
    """The rows of the page: the entry of each socket and what a stranger gets there."""
    rows = {}
    for line in PAGE.read_text().splitlines():
        cells = [one.strip() for one in line.split("|")[1:-1]]
        if len(cells) == 4 and cells[1] in ("closed", "challenge", "401", "denied", "unanswered"):
            rows[cells[0]] = cells[1]
    return rows


@pytest.fixture(scope="module")
def netns():
    with stranger.namespace(NETNS) as name:
        yield name


def met(platform, name, **env):
    """A job of this kind whose ranks have met, and the file that ends it."""
    framework, resources, script, more = JOBS[name]
    if framework in MODULES and importlib.util.find_spec(MODULES[framework]) is None:
        pytest.skip(f"needs {MODULES[framework]}")
    gone = platform.root / f"gone-{re.sub('[^a-z]', '-', name)}-{len(env)}"
    job = platform.submit(
        {
            "run": f"python {script}.py",
            "framework": framework,
            "resources": resources,
            "workdir": str(SCRIPTS),
            "env": {"STRANGERS_GONE": str(gone), **env},
            **more,
        }
    )
    wait_until(lambda: meets(platform, job), f"the ranks of {name}")
    return job, gone


def meets(platform, job):
    view = platform.show(job)
    if view.is_terminal:
        raise AssertionError(f"{view.state}: {platform.run('logs', job, check=False).stdout}")
    return "meeting" in platform.run("logs", job).stdout


def sockets_of(platform, job):
    """The sockets of the control plane and of the job's processes."""
    nodes = [one.pid for one in platform.show(job).nodes if one.pid]
    return listening([*nodes, platform.server_pid()])


def verdict(found):
    """What the strangers got at one socket, over all their openings."""
    kinds = set()
    for one in found:
        if one["state"] == "refused":
            kinds.add("refused")
        elif one["begins"].startswith("phalanx-auth-1"):
            kinds.add("challenge")
        elif one["begins"].startswith(("HTTP/1.1 401", "HTTP/1.1 403", "HTTP/1.1 400")):
            kinds.add("401")
        elif one["got"]:
            kinds.add(f"read {one['begins']!r}")
        elif one["state"] == "open":
            kinds.add("open")
        else:
            kinds.add("closed")
    return kinds


def entry_of(one, name):
    """The row of a socket. What a rank has on every interface differs between frameworks."""
    if one.entry != "rank tcp every interface" or name == "federated":
        return one.entry
    return f"{one.entry} ({'MPI' if name == 'mpi' else 'guarded'})"


def near(one):
    """The address at which a process of this machine reaches a socket."""
    if one.where == "every interface":
        return "::1" if ":" in one.address else "127.0.0.1"
    return one.address


def attacked(sockets, netns, name):
    """Entry of each socket → what strangers of both kinds got there."""
    got = {entry_of(one, name): set() for one in sockets}
    tcp = [one for one in sockets if one.kind == "tcp"]
    entries = [entry_of(one, name) for one in tcp for _ in stranger.OPENINGS]
    here, there = (
        [(near(one), one.port) for one in tcp],
        [(stranger.INSIDE, one.port) for one in tcp],
    )
    user = stranger.apart(lambda: stranger.tried(here), uid=stranger.NOBODY)
    machine = stranger.apart(lambda: stranger.tried(there), netns=netns)
    for one, entry in zip([*user, *machine], entries * 2, strict=True):
        got[entry] |= verdict([one])
    for one in [one for one in sockets if one.kind == "unix"]:
        path = one.address
        said = stranger.apart(lambda path=path: stranger.unix_tried(path), uid=stranger.NOBODY)
        got[entry_of(one, name)].add(said)
    return got


def check(platform, name, netns):
    """Strangers at every socket of a job of this kind; returns rows for the record."""
    assert accept_guard.library()[0] is not None, accept_guard.library()[1]
    job, gone = met(platform, name)
    sockets = sockets_of(platform, job)
    got = attacked(sockets, netns, name)
    unknown = {entry: sorted(kinds) for entry, kinds in got.items() if entry not in catalogue()}
    assert not unknown, f"sockets that the catalogue lacks: {json.dumps(unknown, indent=1)}"
    for entry, kinds in got.items():
        # Whoever is refused a connection gets less than whoever is closed or asked for a proof.
        allowed = {catalogue()[entry], "refused", "closed"}
        if catalogue()[entry] in ("401", "unanswered"):
            # The connection stays for a while, and not one byte comes.
            allowed.add("open")
        assert kinds <= allowed, (
            f"{entry}: {sorted(kinds)}, the catalogue says {catalogue()[entry]}"
        )
    tcp = [one for one in sockets if one.kind == "tcp"]
    end = stranger.held([(near(one), one.port) for one in tcp], 40)
    gone.touch()
    try:
        view = platform.wait_state(job, "succeeded")
    finally:
        end()
    # A stranger costs the gang nothing: there was one attempt, with one generation.
    assert (view.attempts, view.restarts) == (1, 0), view
    assert not Path("/tmp/phalanx-stranger").exists()
    for entry, count in sorted(Counter(entry_of(one, name) for one in sockets).items()):
        print(f"| {name} | {entry} | {count} | {', '.join(sorted(got[entry]))} |")


@pytest.mark.extras
@pytest.mark.parametrize("name", ["torch"])
def test_strangers_get_nothing_and_lock_nobody_out(platform, netns, name):
    check(platform, name, netns)


@pytest.mark.proof
@pytest.mark.parametrize("name", sorted(set(JOBS) - {"torch"}))
def test_strangers_get_nothing_of_any_framework(platform, netns, name):
    check(platform, name, netns)


@pytest.mark.proof
def test_without_the_guard_a_stranger_is_accepted(platform, netns):
    """The control: with the guard switched off, the same strangers are not turned away."""
    job, gone = met(platform, "torch", PHALANX_ACCEPT="off")
    try:
        got = attacked(sockets_of(platform, job), netns, "torch")
        ranks = set().union(*(kinds for entry, kinds in got.items() if entry.startswith("rank")))
        assert "open" in ranks or any(kind.startswith("read") for kind in ranks), got
    finally:
        gone.touch()
        platform.wait_state(job, "succeeded", "failed")


@pytest.mark.proof
def test_without_the_guard_a_ray_cluster_still_asks_for_its_token(platform):
    """Ray's own authentication stands alone: neither nodes nor keys without the token."""
    job, gone = met(platform, "ray", PHALANX_ACCEPT="off")
    try:
        gcs = next(one for one in sockets_of(platform, job) if one.process == "Ray GCS")
        code = (
            "from ray._raylet import GcsClient\n"
            f"client = GcsClient(address='127.0.0.1:{gcs.port}')\n"
            "print(client.{})"
        )
        for call in ("get_all_node_info(timeout=20)", "internal_kv_keys(b'', None, timeout=20)"):
            done = subprocess.run(
                [sys.executable, "-c", code.format(call)],
                env={
                    "PATH": os.environ["PATH"],
                    "RAY_AUTH_MODE": "disabled",
                    "HOME": "/nonexistent",
                },
                capture_output=True,
                text=True,
                timeout=120,
            )
            assert done.returncode != 0 and not done.stdout, done.stdout
            assert re.search("UNAUTHENTICATED|nauthenticated|token", done.stderr), done.stderr[
                -2000:
            ]
    finally:
        gone.touch()
        platform.wait_state(job, "succeeded", "failed")
