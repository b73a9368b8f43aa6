"""Packing: FGD and BestFit as published, and the production placement on parts of devices."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.scheduler.fgd import (
    BestFit,
    Fgd,
    PackingHost,
    Pod,
    ProductionPacking,
    arrivals,
    machines,
    pods,
    replay,
)

from phalanx.errors import NotFound, UserError

OPENB = Path(__file__).resolve().parents[3] / "shared" / "traces" / "openb_fgd"
HALF, WHOLE, PAIR = Pod(1000, 64, 1, 500), Pod(1000, 64, 1, 1000), Pod(1000, 64, 2, 1000)
HOSTS = [PackingHost("a", 8000, 4096, 2), PackingHost("b", 8000, 4096, 2)]


@pytest.mark.unit
class TestPacking:
    @pytest.mark.parametrize(
        "make", [BestFit, lambda h: Fgd(h, [HALF, WHOLE, PAIR]), ProductionPacking]
    )
    def test_halves_share_a_device_and_pairs_stay_on_one_machine(self, make) -> None:
        packed = replay(HOSTS, [HALF, HALF, WHOLE, PAIR, PAIR, HALF], make(HOSTS))
        assert packed.allocated == 1.0
        assert (packed.num_pods, packed.num_turned_away) == (6, 2)

    @pytest.mark.parametrize("make", [BestFit, lambda h: Fgd(h, [HALF]), ProductionPacking])
    def test_cpus_and_memory_are_those_of_the_whole_machine(self, make) -> None:
        hungry = Pod(6000, 64, 1, 100)
        assert replay(HOSTS, [hungry] * 4, make(HOSTS)).num_turned_away == 2
        large = Pod(10, 3000, 1, 100)
        assert replay(HOSTS, [large] * 4, make(HOSTS)).num_turned_away == 2
        no_device = Pod(6000, 64, 0, 0)
        assert replay(HOSTS, [no_device] * 3, make(HOSTS)).num_turned_away == 1

    def test_fgd_leaves_whole_what_the_typical_pods_need_whole(self) -> None:
        mix = [PAIR] * 9 + [HALF]
        packer = Fgd(HOSTS, mix)
        assert replay(HOSTS, [HALF, HALF, HALF, HALF, PAIR], packer).num_turned_away == 0

    def test_arrivals_ask_for_what_was_wanted(self) -> None:
        work = [HALF] * 10 + [PAIR]
        for ratio in (0.5, 1.3, 4.0):
            asked = sum(pod.total_milli for pod in arrivals(work, 10_000, ratio, 1))
            assert ratio * 10_000 - 2000 <= asked <= ratio * 10_000
        assert arrivals(work, 10_000, 1.3, 1) == arrivals(work, 10_000, 1.3, 1)
        assert arrivals(work, 10_000, 1.3, 1) != arrivals(work, 10_000, 1.3, 2)

    def test_readers_name_the_line(self, tmp_path: Path) -> None:
        path = tmp_path / "x.csv"
        with pytest.raises(NotFound):
            machines(path)
        path.write_text("sn,cpu_milli,memory_mib,gpu\na,64000,1024,2\nb,x,1,1\n")
        with pytest.raises(UserError, match="line 3: cpu_milli is 'x'"):
            machines(path)
        path.write_text("cpu_milli,memory_mib,num_gpu,gpu_milli\n1000,64,0,0\n1000,64,1,460\n")
        assert [pod.total_milli for pod in pods(path)] == [0, 460]
        path.write_text("a,b\n")
        with pytest.raises(UserError, match="no column"):
            pods(path)


@pytest.mark.proof
@pytest.mark.parametrize(
    ("workload", "fgd", "best_fit"), [("default", 95.39, 93.08), ("multigpu50", 97.18, 95.74)]
)
def test_published_allocations_are_reached(workload: str, fgd: float, best_fit: float) -> None:
    if not OPENB.exists():
        pytest.skip("the trace is not here")
    hosts = machines(OPENB / "openb_node_list_gpu_node.csv")
    asked = pods(OPENB / f"openb_pod_list_{workload}.csv")
    capacity = 1000 * sum(host.num_devices for host in hosts)
    arriving = arrivals(asked, capacity, 1.3, 42)
    assert 100 * replay(hosts, arriving, Fgd(hosts, asked)).allocated == pytest.approx(fgd, abs=0.5)
    found = 100 * replay(hosts, arriving, BestFit(hosts)).allocated
    assert found == pytest.approx(best_fit, abs=0.5)
    assert 100 * replay(hosts, arriving, ProductionPacking(hosts)).allocated >= fgd
