"""`phalanx simulate`: past jobs, traces, what-ifs, prices, quotas, failures and the picture."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from bench import simulator

from phalanx.core.gang.placement import GangShape, NodeShare, Placement, RoleShape
from phalanx.core.jobs import events as e
from phalanx.core.jobs.model import JobPolicy, NodeOutcome
from phalanx.schemas.home import HomeLayout
from phalanx.services.lifecycle.commit import commit_events, commit_new
from phalanx.sim.__main__ import main
from phalanx.sim.jobs import TraceJob
from phalanx.sim.model import SimulationSetup
from phalanx.sim.workload import faults, generated, history, traces
from phalanx.store.database import Tx, open_store
from phalanx.store.jobs import JobFacts

pytestmark = pytest.mark.unit

US = 1_000_000
BEGAN = 1_700_000_000 * US
SMALL = ["--jobs", "60", "--nodes", "4", "--policy", "phalanx"]


def facts(name: str, project: str) -> JobFacts:
    spec = {"checkpoint": {"every": "5m"}}
    return JobFacts(project, name, "me", {}, "none", "submit", 50, (), 0, spec, None, None, None)


def a_life(tx: Tx, num: int, at: int, lasts_s: int) -> None:
    """Submitted, placed, run, and finished: with the events that a control plane stores."""
    commit_new(
        tx, e.Submitted(num, JobPolicy(GangShape(1, 2, 2))), facts(f"j{num}", "vision"), at, "user"
    )
    placement = Placement("p", (NodeShare("n0", "h", (0, 1)),))
    end = at + lasts_s * US
    commit_events(tx, num, [e.AttemptPlaced(1, placement)], at, "t")
    commit_events(tx, num, [e.NodeReady(1, 0, 1), e.RanksStarted(1, 0, 0)], at, "t")
    done = e.RanksEnded(1, 0, 0, NodeOutcome.SUCCEEDED, 1, 10)
    commit_events(tx, num, [done, e.NodeReleased(1, 0)], end, "t")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    file = HomeLayout(tmp_path).database_file
    file.parent.mkdir(parents=True)
    store = open_store(file)

    def work(tx: Tx) -> None:
        for num in range(1, 4):
            a_life(tx, num, BEGAN + num * 100 * US, 600)
        never = e.Submitted(4, JobPolicy(GangShape(1, 2, 2)))
        commit_new(tx, never, facts("j4", "vision"), BEGAN, "user")

    store.transact(work)
    store.close()
    return tmp_path


class TestPastJobs:
    def test_they_are_read_as_they_ran(self, home: Path) -> None:
        found = history.past_jobs(home, 0)
        assert [(job.submit_s, job.duration_s) for job in found] == [
            (0.0, 600.0),
            (100.0, 600.0),
            (200.0, 600.0),
        ]
        assert {(job.project, job.num_slots, job.checkpoint_s) for job in found} == {
            ("vision", 2, 300.0)
        }

    def test_a_saved_trace_is_the_same_and_carries_no_commands(
        self, home: Path, tmp_path: Path
    ) -> None:
        found, path = history.past_jobs(home, 0), tmp_path / "jobs.jsonl"
        history.save(path, found)
        assert history.read(path) == found
        assert "run" not in path.read_text()

    def test_the_program_replays_them(self, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        words = ["--past", "--home", str(home), "--since", "5000d", "--nodes", "1"]
        assert main([*words, "--policy", "phalanx", "--json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)
        assert (row["num_jobs"], row["num_done"]) == (3, 3)
        assert [one["project"] for one in row["projects"]] == ["vision"]

    def test_a_missing_home_and_an_empty_span_are_one_line(
        self, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["--past", "--home", str(tmp_path / "nowhere")]) != 0
        assert "no Phalanx home" in capsys.readouterr().err
        assert main(["--past", "--home", str(home), "--since", "1s"]) == 1
        assert "longer --since" in capsys.readouterr().err

    def test_a_bad_trace_names_its_line(self, tmp_path: Path) -> None:
        path = tmp_path / "t.jsonl"
        path.write_text('{"phalanx_trace": 1}\n{"num": 1}\n')
        with pytest.raises(Exception, match="line 2"):
            history.read(path)
        path.write_text("x\n")
        with pytest.raises(Exception, match="not a Phalanx trace"):
            history.read(path)


class TestProgram:
    def test_what_ifs_prices_and_quotas_make_rows(self, capsys: pytest.CaptureFixture[str]) -> None:
        words = [*SMALL, "--price", "2", "--quota", "team-0=16", "--guarantee", "team-1=8"]
        words += ["--what-if", "nodes=+2,price=1", "--what-if", "policy=fifo", "--json"]
        assert main([*words, "--what-if", "quota.team-0=32"]) == 0
        rows = json.loads(capsys.readouterr().out)
        assert [row["policy"] for row in rows] == [
            "phalanx",
            "phalanx [nodes=+2,price=1]",
            "fifo [policy=fifo]",
            "phalanx [quota.team-0=32]",
        ]
        span_h = rows[0]["makespan_h"]
        assert rows[0]["cost"] == pytest.approx(span_h * 4 * 8 * 2.0)
        assert rows[1]["cost"] == pytest.approx(rows[1]["makespan_h"] * 6 * 8 * 1.0)
        assert rows[0]["num_done"] == 60

    def test_the_example_runs(self, capsys: pytest.CaptureFixture[str]) -> None:
        path = Path(__file__).resolve().parents[2] / "examples" / "simulate" / "jobs.jsonl"
        words = ["--trace", str(path), "--nodes", "8", "--policy", "phalanx", "--jobs", "30"]
        assert main([*words, "--price", "2", "--what-if", "quota.team-0=64"]) == 0
        assert "team-0" in capsys.readouterr().out

    def test_more_nodes_shorten_the_queue(self, capsys: pytest.CaptureFixture[str]) -> None:
        words = ["--jobs", "200", "--nodes", "4", "--load", "2", "--policy", "phalanx"]
        assert main([*words, "--what-if", "nodes=+6", "--json"]) == 0
        small, large = json.loads(capsys.readouterr().out)
        assert large["delay_h"] < small["delay_h"]

    def test_the_picture_is_a_picture(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "x.svg"
        assert main([*SMALL, "--plot", str(path)]) == 0
        root = ElementTree.fromstring(path.read_text())
        lines = [tag for tag in root.iter() if tag.tag.endswith("polyline")]
        assert len(lines) == 3
        assert "cost by project" not in path.read_text()
        assert main([*SMALL, "--price", "2", "--plot", str(path)]) == 0
        assert "cost by project" in path.read_text()
        assert main([*SMALL, "--plot", str(tmp_path / "no" / "x.svg")]) == 1
        assert "--plot" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["--what-if", "nodes=-9"], "nodes=-9: must leave at least 1"),
            (["--what-if", "quota.a=0"], "quota.a=0: must leave at least 1"),
            (["--what-if", "racks=2"], "cannot be changed"),
            (["--what-if", "nodes"], "write for example"),
            (["--what-if", "quota=2"], "cannot be changed"),
            (["--what-if", "price=x"], "not a number"),
            (["--quota", "team-0=1"], "may hold 1"),
            (["--load", "0"], "--load must be above 0"),
            (["--past", "--trace", "x"], "exclude"),
            (["--prefer", "shelf"], "no level 'shelf'"),
            (["--what-if", "prefer=rack,patience=x"], "not a duration"),
        ],
    )
    def test_mistakes_are_one_clear_line(
        self, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main([*SMALL, *words]) == 1
        assert said in capsys.readouterr().err

    def test_a_preferred_level_is_one_more_thing_to_change(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words = [*SMALL, "--rack", "2", "--what-if", "prefer=rack,patience=1h", "--json"]
        assert main(words) == 0
        assert [row["num_done"] for row in json.loads(capsys.readouterr().out)] == [60, 60]
        assert main([*SMALL, "--rack", "2", "--prefer", "rack", "--json"]) == 0

    def test_failures_are_drawn_and_the_audit_runs(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main([*SMALL, "--failures", "300", "--audit", "--json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)
        assert row["lost_to_failures_h"] > 0


class TestFaults:
    def test_the_rates_are_met(self) -> None:
        nodes = traces.grid_nodes(100, 8)
        outages, crashes = faults.draw(faults.PUBLISHED, nodes, 365 * 86_400.0, 1)
        assert len(outages) == pytest.approx(6.5 / 1000 * 100 * 365, rel=0.2)
        rate = faults.PUBLISHED.rank_per_slot_hour
        assert len(crashes) == pytest.approx(rate * 800 * 365 * 24, rel=0.3)

    def test_no_node_fails_while_it_is_repaired(self) -> None:
        outages, _ = faults.draw(faults.PUBLISHED.times(2000), traces.grid_nodes(2), 1e6, 1)
        for node in {one.node for one in outages}:
            mine = [one for one in outages if one.node == node]
            for before, after in pairwise(mine):
                assert before.at_s + before.for_s <= after.at_s


def test_more_readers(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("name,time,application,num_replicas,batch_size\na,5,bert,4,32\n")
    (job,) = traces.sia(path)
    assert (job.submit_s, job.num_slots, job.label) == (5.0, 4, "bert")
    head = "num_gpu,gpu_milli,creation_time,deletion_time,qos\n"
    path.write_text(head + "1,460,0,9,LS\n2,1000,10,110,BE\n0,0,0,5,BE\n")
    (job,) = traces.openb(path)
    assert (job.submit_s, job.duration_s, job.num_slots, job.priority) == (10.0, 100.0, 2, 50)
    assert generated.research(3, 1.0)


_TIRESIAS = b"num_gpu,submit_time,duration\n"


@pytest.mark.parametrize(
    ("form", "content", "said"),
    [
        ("tiresias", b"a,b\n1,2\n", "no column num_gpu"),
        ("tiresias", _TIRESIAS + b"0,1,2\n", "line 2: num_gpu is '0'"),
        ("tiresias", _TIRESIAS + b"1\n", "line 2: submit_time is None"),
        ("tiresias", _TIRESIAS + b"1,nan,3\n", "line 2: submit_time is 'nan'"),
        ("tiresias", b"\x9d\x00\xff", "cannot be read"),
        ("tiresias", None, "cannot be read"),
        ("swf", b"1 nan 0 1 1 1 1 1 1 1 1 1\n", "line 1: a field is not a number"),
        ("swf", None, "cannot be read"),
        ("phalanx", None, "cannot be read"),
        ("phalanx", b"\xff\xfe", "not a Phalanx trace"),
    ],
)
def test_a_trace_that_is_none_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str, content: bytes | None, said: str
) -> None:
    path = tmp_path / "trace"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    assert main(["--format", form, "--trace", str(path)]) == 1
    told = capsys.readouterr().err
    assert said in told and told.count("\n") <= 2
    jobs = ["--jobs", "3", "--save-trace", str(tmp_path / "none" / "x")]
    assert main(jobs) == 1
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.proof
def test_start_times_are_neither_promised_too_early_nor_too_late() -> None:
    """Of waiting jobs, about half start before the p50 they were told, and most before the p90."""
    jobs = [job for job in generated.training(260, 45.0, seed=12) if job.num_slots <= 16]
    setup = SimulationSetup(traces.grid_nodes(4, 8, 4, 1), pass_s=300.0, recheck_s=1800.0)
    asked = simulator.ask(jobs, setup, every=12)
    known = [(a.started_at, a.p50_at, a.p90_at) for a in asked]
    early = [start <= p50 for start, p50, _ in known if p50 is not None]
    late = [start <= p90 for start, _, p90 in known if p90 is not None]
    assert len(early) > 60
    assert 0.35 <= sum(early) / len(early) <= 0.75
    assert sum(late) / len(late) >= 0.8


@pytest.mark.parametrize("form", ["philly", "swf", "phalanx"])
def test_a_trace_that_is_not_there_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    code = main([*SMALL, "--trace", str(tmp_path / "none"), "--format", form])
    said = capsys.readouterr().err
    assert (code, said.count("\n"), "no trace at" in said) == (102, 1, True)
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00\x80" * 40)
    assert main([*SMALL, "--trace", str(binary), "--format", form]) == 1
    assert "Traceback" not in capsys.readouterr().err
    assert main([*SMALL, "--save-trace", str(tmp_path / "no" / "where")]) == 1


def test_a_gang_with_roles_is_replayed_whole(tmp_path: Path) -> None:
    roles = (RoleShape(2, 1, 1, "actor"), RoleShape(1, 0, 1, "server", 2))
    jobs = [
        TraceJob(num, num * 60.0, 600.0, GangShape(1, 4, 4), roles=roles if num % 2 else ())
        for num in range(1, 12)
    ]
    file = tmp_path / "jobs.jsonl"
    history.save(file, jobs)
    assert history.read(file) == jobs
    where = ["--trace", str(file), "--format", "phalanx", "--nodes", "3", "--slots-per-node", "4"]
    assert main([*where, "--policy", "phalanx,fifo,skip-first-fit", "--audit"]) == 0
    assert main([*where[:-3], "1", "--slots-per-node", "4"]) == 1
