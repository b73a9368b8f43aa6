"""Variables of NCCL and gloo: presets, and what looks wrong."""

import json

import pytest

from phalanx.core.contract.gang import RankFiles
from phalanx.core.frameworks.rank_environment import NodeSetting, rank_environment
from phalanx.core.gang import networks
from phalanx.core.jobs.desired import Action
from phalanx.schemas.frameworks import framework
from phalanx.schemas.spec.document import validate_spec
from phalanx.schemas.wire.supervision import Orders
from phalanx.testing.executors import gang_contract

pytestmark = pytest.mark.unit


def environment(training, **user):
    gang = gang_contract(1, ranks_per_node=2, training=training)
    orders = Orders(version="1", action=Action.RUN, master_address="h", master_port=1)
    rank = gang.rank(orders, 0, 0, RankFiles("r", "c", "e"))
    node = NodeSetting(env=user, cpus=4)
    return rank_environment(framework("torch"), gang, orders, rank, node)


def test_a_preset_reaches_the_ranks_and_the_users_own_value_stands_over_it():
    spec = validate_spec(
        {
            "schema": 1,
            "name": "a",
            "run": "python t.py",
            "training": {
                "clip": 1,
                "network": {"preset": "ethernet_fast", "interface": "eth1", "debug": "info"},
            },
        }
    )
    env = environment(spec.training.given(), NCCL_BUFFSIZE="1")
    assert env["NCCL_NSOCKS_PERTHREAD"] == "4" and env["NCCL_IB_DISABLE"] == "1"
    assert env["NCCL_SOCKET_IFNAME"] == env["GLOO_SOCKET_IFNAME"] == "eth1"
    assert (env["NCCL_DEBUG"], env["NCCL_BUFFSIZE"]) == ("INFO", "1")
    assert json.loads(env["PHALANX_TRAINING"]) == {"clip": 1.0}  # the script's part alone
    assert not [name for name in environment({"clip": 1}) if name.startswith("NCCL_")]


def test_every_presets_variable_is_explained():
    for preset in networks.PRESETS:
        env = networks.variables(preset, None, None)
        assert all(
            one.verdict == "ok" and "not described" not in one.said
            for one in networks.explain(env, ())
        )
    with pytest.raises(ValueError, match="must be one of nvlink"):
        networks.variables("wifi", None, None)


@pytest.mark.parametrize(
    ("name", "value", "verdict", "words"),
    [
        ("NCCL_MIN_NRINGS", "4", "warn", "NCCL_MIN_NCHANNELS"),
        ("GLOO_SOCKET_IFNAME", "ib0", "FAIL", "known: eth0, lo"),
        ("NCCL_SOCKET_IFNAME", "^docker", "ok", ""),
        ("NCCL_SOCKET_IFNAME", "eth", "ok", ""),
        ("NCCL_DEBUG", "info", "warn", "costs speed"),
        ("NCCL_NEVER_SEEN", "1", "ok", "not described by Phalanx"),
    ],
)
def test_what_looks_wrong_is_said(name, value, verdict, words):
    (found,) = networks.explain({name: value}, ["eth0", "lo"])
    assert found.verdict == verdict and words in found.said


def test_a_link_that_cannot_be_measured_is_a_fault():
    assert [one.verdict for one in networks.judge(1e-4, 1e9, 0.0)] == ["ok", "FAIL"]


def test_figures_are_judged_against_the_link():
    bus = networks.bus_bytes_per_s(1_000_000, 0.001, 4)
    assert bus == pytest.approx(1.5e9)
    assert [one.verdict for one in networks.judge(1e-4, bus, 2e9)] == ["ok", "ok"]
    latency, slow = networks.judge(1e-4, bus, 10e9)
    assert "100 µs" in latency.said and slow.verdict == "warn" and "15%" in slow.said
