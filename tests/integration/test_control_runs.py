"""Runs as experiments: what their record has, and queries over parameters, metrics, tags and states."""

from __future__ import annotations

import csv
import hashlib
import io
import tarfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from integration.rig import URL, Rig, spec
from phalanx.cli.app import app
from phalanx.cli.client.invocation import Invocation
from phalanx.cli.client.run_spec import RunFlags, plan_run
from phalanx.cli.verbs import metrics
from phalanx.cli.verbs.tracking import runs
from phalanx.core.contract.access import Scope
from phalanx.core.contract.records import MetricPoint
from phalanx.errors import NotFound, SpecInvalid, UserError
from phalanx.schemas.api.jobs import BatchRequest, ChangeRequest, CloneRequest, SubmitRequest
from phalanx.schemas.api.provenance import SourceRequest
from phalanx.schemas.wire import supervision as wire
from phalanx.sdk import PhalanxClient
from phalanx.services.metrics.folding import FoldingProgress, metrics_step
from phalanx.services.retention.work import deletions_step
from phalanx.store.metrics import arrivals
from phalanx.store.schema.experiments import run_params, run_terms

pytestmark = pytest.mark.integration
SMALL = {"nodes": 1, "slots_per_node": 1}


def train(rig: Rig, lr: float, *, losses: Sequence[float] = (), **changes: Any) -> int:
    num = rig.submit(run=f"python train.py --lr {lr} --opt adam", **{"resources": SMALL, **changes})
    points = [
        MetricPoint(0, at, at, {"loss": one, "data_wait_fraction": 0.1})
        for at, one in enumerate(losses)
    ]
    if points:
        rig.store.transact(lambda tx: arrivals.add_points(tx, (num, 1, 0), points))
        rig.client.stop(num)
        fold(rig)
    return num


def fold(rig: Rig) -> None:
    """Of a job that has ended, everything is folded at once."""
    while metrics_step(rig.platform, FoldingProgress(), rig.clock.now()):
        pass


def found(rig: Rig, query: str, **wanted: Any) -> list[int]:
    return [one.job for one in rig.client.runs.page(query, **wanted).runs]


def code(rig: Rig, files: Mapping[str, str]) -> str:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    digest = hashlib.sha256(buffer.getvalue()).hexdigest()
    rig.client.put_code(digest, buffer.getvalue())
    return digest


def test_runs_are_found_by_parameters_metrics_and_words(rig: Rig) -> None:
    small = train(
        rig, 1e-4, losses=(3.0, 1.0, 2.0), tags=["baseline"], group="first", name="bert-a"
    )
    large = train(rig, 0.1, losses=(4.0, float("nan"), 0.5), description="too fast 100%_", name="b")
    live = train(rig, 0.01, tags=["baseline", "v2"], labels={"team": "vision"})
    ask = {
        "metric:loss<1": [large],
        "metric:loss>=2": [small],
        "metric:min(loss)<=1": [large, small],
        "metric:max(loss)=3": [small],
        "metric:loss!=2": [large],
        "metric:other": [],
        "-metric:loss": [live],
        "param:lr<=1e-2": [live, small],
        "param:lr=1e-4": [small],
        "param:opt=ad*": [live, large, small],
        "param:opt!=adam": [],
        "param:missing!=1": [],
        "tag:baseline": [live, small],
        "tag:baseline -tag:v*": [small],
        "tag:!=baseline": [large],
        "group:first": [small],
        "note:fast": [large],
        'note:"100%_"': [large],
        "state:cancelled": [large, small],
        "-state:cancelled,failed": [live],
        "name:bert-*": [small],
        "bert": [small],
        "label:team=vision,text": [live],
        "label:team": [live],
        f"job:j-{small},{live}": [live, small],
        f"job:!={small}": [live, large],
        "study:1": [],
        "study:!=1": [live, large, small],
        "user:ada script:train.py since:1h slots:<2": [live, large, small],
        "user:bob": [],
        "restarts:0 usd:<=0 priority:>=50": [live, large, small],
        "duration:>1h": [],
    }
    for query, nums in ask.items():
        assert found(rig, query) == nums, query


def test_metrics_of_a_run_are_summed_up_without_values_that_are_not_finite(rig: Rig) -> None:
    num = train(rig, 0.1, losses=(4.0, float("inf"), 0.5, float("nan")))
    (one,) = rig.client.runs.page().runs
    loss = one.metrics["loss"]
    assert (loss.last, loss.min, loss.max, loss.step) == (None, 0.5, 4.0, 3)
    assert list(one.metrics) == ["loss"]  # what the platform measures is shown when it is asked for
    (one,) = rig.client.runs.page(metrics=["data_wait_fraction"]).runs
    assert list(one.metrics) == ["data_wait_fraction"]
    points = [MetricPoint(0, 1, 1, {"loss": 9.0}), MetricPoint(0, 9, 9, {"loss": 5.0})]
    rig.store.transact(lambda tx: arrivals.add_points(tx, (num, 1, 1), points))
    fold(rig)
    loss = rig.client.runs.page().runs[0].metrics["loss"]
    assert (loss.last, loss.min, loss.max, loss.step) == (5.0, 0.5, 9.0, 9)


def test_a_newest_value_that_is_not_finite_is_none(rig: Rig) -> None:
    endless = train(rig, 0.1, losses=(1.0, float("inf")))
    plain = train(rig, 0.2, losses=(2.0,))
    assert found(rig, "metric:loss>1") == [plain]
    assert found(rig, "metric:loss") == [plain, endless]
    assert found(rig, "", sort="-metric:loss") == [plain, endless]
    assert found(rig, "metric:max(loss)=1") == [endless]


def test_pages_are_sorted_by_metrics_and_parameters(rig: Rig) -> None:
    nums = {lr: train(rig, lr, losses=(lr * 10,)) for lr in (0.3, 0.1, 0.2)}
    bare = rig.submit(resources=SMALL)
    by_lr = [nums[0.1], nums[0.2], nums[0.3]]
    assert found(rig, "", sort="param:lr") == [bare, *by_lr]
    assert found(rig, "metric:loss", sort="-metric:max(loss)") == by_lr[::-1]
    seen, cursor = list[int](), None
    while True:
        page = rig.client.runs.page(sort="-metric:loss", limit=1, cursor=cursor)
        seen += [one.job for one in page.runs]
        if (cursor := page.cursor) is None:
            break
    assert seen == [*by_lr[::-1], bare]
    assert [one.job for one in rig.client.runs.every(sort="param:lr")] == [bare, *by_lr]
    with pytest.raises(UserError, match="cannot be sorted by 'param:'"):
        rig.client.runs.page(sort="param:")
    first = rig.client.runs.page(sort="param:lr", limit=1)
    with pytest.raises(UserError, match="the cursor is of a listing by"):
        rig.client.runs.page(sort="metric:lr", cursor=first.cursor)


def test_the_record_has_configuration_arguments_and_what_the_script_said(rig: Rig) -> None:
    digest = code(
        rig,
        {
            "train.py": "",
            "conf/a.yaml": "opt: {lr: 1e-3, name: sgd}\nlr: 5\nhub: {token: abc}\nseed: 1\n",
            "b.toml": "[opt]\nname = 'adam'\nbetas = [0.9, 0.99]\n",
            "plain.json": "[1]",
        },
    )
    body = spec(
        run="python train.py --config conf/a.yaml --data plain.json --lr 0.1",
        config_files=["b.toml"],
        resources=SMALL,
    )
    view = rig.client.submit(SubmitRequest(spec=body, owner="ada", code=digest)).job
    assert view is not None
    rig.turn()
    one = rig.supervisor(view.num)
    one.ready()
    report = {"lr": 0.2, "model": "resnet", "depth": 18, "amp": True, "warmup": None}
    one.sync(wire.ParamsReport(seq=one.next_seq(), generation=0, values=report))
    shown = rig.client.provenance(view.num)
    assert shown.params == report | {
        "opt.lr": 1e-3,
        "opt.name": "sgd",
        "opt.betas": "[0.9,0.99]",
        "hub.token": "(withheld)",
        "seed": 1,
        "config": "conf/a.yaml",
        "data": "plain.json",
    }
    sources = {one.source: (one.value, one.counts) for one in shown.run_params if one.name == "lr"}
    assert sources == {"config": (5, False), "argument": (0.1, False), "script": (0.2, True)}
    assert found(rig, "param:lr=0.2 param:amp=true param:warmup=null param:depth>17") == [view.num]
    assert found(rig, "param:lr=0.1") == []
    # A later generation names another value: the record stays, and an event says it.
    one.sync(wire.ParamsReport(seq=one.next_seq(), generation=0, values={"lr": 0.9, "late": 1}))
    again = rig.client.provenance(view.num)
    assert (again.params["lr"], again.params["late"]) == (0.2, 1)
    (told,) = [one for one in rig.client.history(view.num) if one.kind == "params_changed"]
    assert told.data["changes"] == [["lr", "0.2", "0.9"]]
    made = rig.client.clone(view.num, CloneRequest())
    assert made.job is not None
    copied = rig.client.provenance(made.job.num)
    assert copied.params["opt.betas"] == "[0.9,0.99]"
    names = [one.name for one in rig.client.provenance_diff(made.job.num, view.num).changes]
    assert {"params.lr", "params.model"} <= set(names)
    assert "params.opt.lr" not in names


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "is not in the work directory"),
        ({"c.yaml": "a: [1"}, "cannot be read"),
        ({"c.yaml": "- 1"}, "holds no mapping"),
        ({"c.yaml": "a: " + "x" * (256 << 10)}, "is larger than"),
    ],
)
def test_a_configuration_file_of_the_spec_that_cannot_be_read_is_refused(
    rig: Rig, files: dict[str, str], said: str
) -> None:
    digest = code(rig, {"train.py": "", **files})
    request = SubmitRequest(spec=spec(config_files=["./c.yaml"]), code=digest)
    with pytest.raises(SpecInvalid) as caught:
        rig.client.submit(request)
    (problem,) = caught.value.problems
    assert (problem.path, said in problem.message) == ("config_files", True)
    # The same file among the arguments is left out.
    body = spec(run="python train.py --config c.yaml")
    view = rig.client.submit(SubmitRequest(spec=body, code=digest)).job
    assert view is not None
    assert rig.client.provenance(view.num).params == {"config": "c.yaml"}


def test_tags_group_and_notes_change_and_the_change_is_an_event(rig: Rig) -> None:
    num = rig.submit(resources=SMALL, tags=["b", "a", "b"], description="first")
    assert rig.job(num).tags == ["a", "b"]
    rig.client.stop(num)
    change = ChangeRequest(tags={"a": False, "c": True}, group="g", description="now 0.9")
    view = rig.client.change(num, change)
    assert (view.tags, view.group) == (["b", "c"], "g")
    assert found(rig, "tag:c group:g note:0.9") == [num]
    assert found(rig, "tag:a") == found(rig, "note:first") == []
    (event,) = [one for one in rig.client.history(num) if one.kind == "settings_changed"]
    assert event.data["before"]["tags"] == ["a", "b"]
    assert event.data["after"]["group"] == "g"
    rig.client.change(num, ChangeRequest(group=None))
    assert rig.job(num).group == ""
    with pytest.raises(SpecInvalid, match="tags"):
        rig.client.change(num, ChangeRequest(tags={"no blanks": True}))
    rig.check_log(num)


def test_commits_batches_and_names(rig: Rig) -> None:
    source = SourceRequest(commit="ab" * 20)
    body = spec(run="python train.py --lr 0.5", resources=SMALL, tags=["t"], group="g", array="0-1")
    requests = [SubmitRequest(spec=body, owner="ada", source=source)]
    nums = [one.num for one in rig.client.submit_batch(BatchRequest(jobs=requests).jobs).jobs]
    assert found(rig, "commit:abab param:lr=0.5", sort="num") == nums
    assert found(rig, f"array:{nums[0]}", sort="num") == nums
    assert rig.client.runs.page().runs[0].commit == "ab" * 20
    names = rig.client.runs.names()
    assert (names.params, names.metrics, names.tags, names.groups) == (["lr"], [], ["t"], ["g"])


def test_a_viewer_of_one_project_reads_nothing_of_another(rig: Rig) -> None:
    rig.client.apply_projects({"schema": 1, "projects": [{"name": "ours"}, {"name": "theirs"}]})
    for name in ("ours", "theirs"):
        train(rig, 0.1, losses=(1.0,), project=name, tags=[name], name=name, group=name)
    rig.client.accounts.add("eve")
    rig.client.accounts.grant("user:eve", "viewer", "ours")
    token = rig.client.create_token("eve", [Scope.READ], principal="user:eve").token
    eve = PhalanxClient(URL, token, transport=rig.transport)
    queries = (
        "",
        "tag:theirs",
        "-tag:ours",
        "param:lr=0.1",
        "metric:loss",
        "project:theirs",
        "theirs",
    )
    for query in (*queries, "group:theirs", "-state:failed", "job:2", "job:!=1"):
        for sort in ("-num", "metric:loss", "-param:lr"):
            page = eve.runs.page(query, sort=sort, archived="include")
            assert {one.project for one in page.runs} <= {"ours"}, query
    assert len(eve.runs.page().runs) == 1
    assert eve.runs.names().tags == eve.runs.names().groups == ["ours"]
    # A cursor of a caller that sees more shows no more.
    cursor = rig.client.runs.page(limit=1).cursor
    assert {one.project for one in eve.runs.page(cursor=cursor).runs} <= {"ours"}
    stranger = httpx.Client(base_url=URL, transport=rig.transport)
    assert stranger.get("/api/v1/runs").status_code == 401


def test_a_wrong_query_marks_its_place(rig: Rig) -> None:
    with pytest.raises(UserError, match="wrong at character 8") as caught:
        rig.client.runs.page("metric:>1")
    assert caught.value.message.splitlines()[-1] == "         ^"


def test_rows_go_with_their_job(rig: Rig) -> None:
    num = train(rig, 0.1, losses=(1.0,), tags=["t"])
    rig.client.retention.delete(num)
    words = rig.store.view(lambda tx: tx.conn.execute(run_terms.select()).all())
    assert words == []
    assert found(rig, "param:lr=0.1") == []
    rig.clock.advance(3600)
    deletions_step(rig.platform, rig.clock.now())
    assert rig.store.view(lambda tx: tx.conn.execute(run_params.select()).all()) == []


@pytest.fixture
def shell(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Rig:
    for module in (runs, metrics):
        monkeypatch.setattr(module, "connected", lambda ctx: nullcontext(rig.client))
    return rig


def call(*words: str) -> Result:
    return CliRunner().invoke(app, words, catch_exceptions=False)


def table(*words: str) -> list[list[str]]:
    return [line.split("\t") for line in call(*words).stdout.splitlines()]


def test_the_verb_shows_what_differs(shell: Rig) -> None:
    first = train(shell, 0.1, losses=(1.0,), tags=["t"])
    second = train(shell, 0.2, losses=(2.0,))
    rows = table("runs", "metric:loss", "--sort", "metric:loss")
    assert rows[0] == ["RUN", "NAME", "STATE", "lr", "loss", "TAGS", "SUBMITTED"]
    assert [row[:6] for row in rows[1:]] == [
        [f"j-{first}", "digits", "cancelled", "0.1", "1", "t"],
        [f"j-{second}", "digits", "cancelled", "0.2", "2", ""],
    ]
    rows = table("runs", "--param", "opt", "--metric", "data_wait_fraction", "--limit", "1")
    assert rows[0][3:5] == ["opt", "data_wait_fraction"]
    assert rows[1][3:5] == ["adam", "0.1"]


def test_a_script_is_run_with_tags_and_a_group() -> None:
    flags = RunFlags(tags=("a", "b"), group="g")
    planned = plan_run(["python", "-c", "pass"], flags, Invocation.of_this_process())
    assert (planned.spec.tags, planned.spec.group) == (["a", "b"], "g")


def test_compare_takes_a_query_and_shows_parameters_that_differ(shell: Rig) -> None:
    first = train(shell, 0.1, losses=(1.0, 0.5), tags=["t"])
    second = train(shell, 0.2, losses=(2.0, 1.5), tags=["t"])
    rows = table("compare", "--query", "tag:t")
    assert rows[:2] == [["PARAMETER", f"j-{second}", f"j-{first}"], ["lr", "0.2", "0.1"]]
    assert [row[:2] for row in rows[4:]] == [["loss", f"j-{second}"], ["loss", f"j-{first}"]]
    with pytest.raises(NotFound, match="no run matches 'tag:none'"):
        call("compare", "--query", "tag:none")
    with pytest.raises(UserError, match="name jobs, or a query"):
        call("compare")


def test_runs_are_written_to_files(shell: Rig, tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.feather
    import pyarrow.parquet

    first = train(shell, 0.1, losses=(1.0, 0.5), tags=["a", "b"])
    second = shell.submit(run="python train.py --lr high --fast", resources=SMALL)
    names = [tmp_path / name for name in ("x.csv", "x.arrow", "x.parquet")]
    call("runs", "--csv", str(names[0]), "--arrow", str(names[1]), "--parquet", str(names[2]))
    with names[0].open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["run"], row["params.lr"], row["params.fast"], row["tags"]) for row in rows] == [
        (f"j-{second}", "high", "true", ""),
        (f"j-{first}", "0.1", "", "a b"),
    ]
    assert [row["metrics.loss.min"] for row in rows] == ["", "0.5"]
    for read, name in (
        (pyarrow.feather.read_table, names[1]),
        (pyarrow.parquet.read_table, names[2]),
    ):
        held = read(name)
        assert held.column("params.lr").to_pylist() == ["high", "0.1"]
        assert held.schema.field("metrics.loss").type == arrow.float64()
        assert held.column("params.fast").to_pylist() == [True, None]
