"""The network doctor as a user calls it."""

import json

import pytest

from e2e.platform.harness import Platform

pytestmark = [pytest.mark.e2e, pytest.mark.extras]


def test_all_reduces_are_measured_against_the_link(platform: Platform) -> None:
    shown = platform.run("doctor", "--network", "-n", 2).stdout
    assert "gloo between 2 ranks, cpu" in shown and "plain TCP between two ranks" in shown
    words = ("doctor", "--network", "--presets", "ethernet,nvlink", "--json")
    rows = json.loads(platform.run(*words).stdout)
    assert [row["preset"] for row in rows] == ["none", "ethernet", "nvlink"]
    assert all(0 < row["latency_s"] < 10 and row["bus_bytes_per_s"] > 0 for row in rows)
    assert any("NCCL_MAX_NCHANNELS=4" in line for line in rows[1]["remarks"])
    refused = platform.run("doctor", "--network", "--presets", "wifi", check=False)
    assert refused.returncode == 1 and "must be one of nvlink" in refused.stderr


def test_an_interface_that_is_not_there_fails(platform: Platform) -> None:
    platform.env["NCCL_SOCKET_IFNAME"] = "nowhere0"
    try:
        found = platform.run("doctor", "--network", check=False)
    finally:
        del platform.env["NCCL_SOCKET_IFNAME"]
    assert found.returncode == 1 and "no such interface on this node" in found.stdout
