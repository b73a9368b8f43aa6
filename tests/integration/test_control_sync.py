"""The supervisors' call: who may make it, what happens when it is repeated, and how it waits."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from dataclasses import replace
from typing import Any

import httpx
import pytest

from integration.rig import URL, Rig, ScriptedSupervisor
from phalanx.core.jobs.desired import Action
from phalanx.errors import Unauthenticated, UserError
from phalanx.schemas.wire import supervision as wire
from phalanx.schemas.wire.report_bytes import REPORTS_TYPE, encode_request
from phalanx.server import gate, sync_batches
from phalanx.server.app import create_app
from phalanx.server.sync_batches import SyncBatches
from phalanx.services.lifecycle.sync import (
    SyncAnswer,
    SyncCall,
    supervisor_sync,
    supervisor_sync_many,
)
from phalanx.store import events, lineage
from phalanx.store.metrics import arrivals

pytestmark = pytest.mark.integration


@pytest.fixture
def supervisor(rig: Rig) -> ScriptedSupervisor:
    num = rig.submit()
    rig.turn()
    one = rig.supervisor(num)
    one.ready()
    one.started()
    return one


def story(rig: Rig, num: int) -> list[str]:
    return [one.kind for one in rig.client.events(num).events]


def test_only_the_supervisor_of_the_attempt_may_call(
    rig: Rig, supervisor: ScriptedSupervisor
) -> None:
    request = supervisor.request()
    for token in ("", "wrong", rig.context.admin.token, rig.platform.supervisor_token(1, 2)):
        assert supervisor.post(request, token).status_code == 401
    unknown = request.model_copy(update={"node_rank": 5})
    assert supervisor.post(unknown).status_code == 401
    assert supervisor.post(request).status_code == 200


def test_its_token_opens_nothing_else(rig: Rig, supervisor: ScriptedSupervisor) -> None:
    import httpx

    from integration.rig import URL

    with httpx.Client(base_url=URL, transport=rig.transport) as http:
        headers = {"Authorization": f"Bearer {supervisor.token}"}
        assert http.get("/api/v1/jobs", headers=headers).status_code == 401


@pytest.fixture
def transactions(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kinds of transactions that are made, in order."""
    made: list[str] = []
    for name in ("view", "transact"):
        run = getattr(rig.platform.store, name)
        monkeypatch.setattr(
            rig.platform.store, name, lambda work, n=name, f=run: (made.append(n), f(work))[1]
        )
    return made


def test_reports_with_the_token_of_another_supervisor_are_not_stored(
    rig: Rig, supervisor: ScriptedSupervisor, transactions: list[str]
) -> None:
    before = story(rig, 1)
    transactions.clear()
    ended = wire.RanksEndedReport(
        seq=supervisor.next_seq(), generation=0, outcome="succeeded", port=4100
    )
    token = rig.platform.supervisor_token(2, 1)
    with pytest.raises(Unauthenticated):
        supervisor_sync(rig.platform, supervisor.request(ended), token, rig.clock.now())
    assert transactions == ["view"]  # a writer excludes all others
    assert story(rig, 1) == before


def test_a_report_and_its_orders_are_one_transaction(
    rig: Rig, supervisor: ScriptedSupervisor, transactions: list[str]
) -> None:
    now = rig.clock.now()
    ended = wire.RanksEndedReport(
        seq=supervisor.next_seq(), generation=0, outcome="succeeded", port=4100
    )
    request = supervisor.request(ended)
    transactions.clear()
    answer = supervisor_sync(rig.platform, request, supervisor.token, now)
    assert (transactions, answer.response.acked) == (["view", "transact"], ended.seq)
    transactions.clear()
    supervisor_sync(rig.platform, supervisor.request(), supervisor.token, now)
    assert transactions == ["view"]  # nothing new: nothing is written


def _calls(rig: Rig, *, count: int) -> list[SyncCall]:
    """Calls of `count` supervisors of different jobs that report the end of their ranks."""
    small = {"nodes": 1, "slots_per_node": 1}
    nums = [rig.submit(resources=small) for _ in range(count)]
    rig.turn()
    calls = []
    for num in nums:
        one = rig.supervisor(num)
        one.ready()
        one.started()
        ended = wire.RanksEndedReport(
            seq=one.next_seq(), generation=0, outcome="succeeded", port=4100
        )
        calls.append(SyncCall(one.request(ended), one.token))
    return calls


def test_reports_of_several_jobs_are_one_transaction(rig: Rig, transactions: list[str]) -> None:
    calls = _calls(rig, count=3)
    transactions.clear()
    answers = supervisor_sync_many(rig.platform, calls, rig.clock.now())
    assert transactions == ["view", "transact"]
    for call, answer in zip(calls, answers, strict=True):
        assert isinstance(answer, SyncAnswer)
        assert answer.response.acked == call.request.reports[-1].seq
        assert answer.response.orders.action is Action.RELEASE
        assert story(rig, call.request.job)[-1] == "ranks_ended"
    rows = rig.platform.store.view(lambda tx: [lineage.generations_of(tx, n) for n in (1, 2, 3)])
    assert all(row.ended_at is not None for (row,) in rows)


def test_a_wrong_call_does_not_keep_the_others_from_being_stored(rig: Rig) -> None:
    calls = _calls(rig, count=4)
    broken = wire.LogReport(
        seq=9, generation=0, rank=0, stream="out", offset=0, data="not base64!", dropped=0
    )
    reports = [*calls[1].request.reports, broken]
    calls[1] = replace(calls[1], request=calls[1].request.model_copy(update={"reports": reports}))
    calls[2] = replace(calls[2], token="wrong")
    answers = supervisor_sync_many(rig.platform, calls, rig.clock.now())
    said = [one if isinstance(one, Exception) else None for one in answers]
    assert said[0] is None
    assert isinstance(said[1], UserError)
    assert isinstance(said[2], Unauthenticated)
    assert said[3] is None
    ended = [story(rig, call.request.job)[-1] == "ranks_ended" for call in calls]
    assert ended == [True, False, False, True]


def test_calls_that_arrive_during_a_transaction_are_stored_together(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = _calls(rig, count=3)
    stored: list[list[int]] = []
    begun, others = threading.Event(), threading.Event()

    def store(platform: Any, some: Any, now: int) -> Any:
        stored.append([call.request.job for call in some])
        begun.set()
        assert others.wait(10)
        return supervisor_sync_many(platform, some, now)

    async def main() -> list[SyncAnswer]:
        batches = SyncBatches(rig.context)
        batches._most = 1
        first = asyncio.create_task(batches.sync(calls[0].request, calls[0].token))
        await asyncio.to_thread(begun.wait, 10)
        # The second call of a job waits for the transaction after that of the first one.
        again = [calls[1], calls[1], calls[2]]
        tasks = [asyncio.create_task(batches.sync(one.request, one.token)) for one in again]
        await asyncio.sleep(0)
        others.set()
        return list(await asyncio.gather(first, *tasks))

    monkeypatch.setattr(sync_batches, "supervisor_sync_many", store)
    answers = asyncio.run(main())
    assert stored == [[1], [2, 3], [2]]
    assert [one.response.acked for one in answers] == [3, 3, 3, 3]
    assert story(rig, 2).count("ranks_ended") == 1


def test_repeated_reports_change_nothing(rig: Rig, supervisor: ScriptedSupervisor) -> None:
    failed = wire.RankFailedReport(
        seq=supervisor.next_seq(), generation=0, failure=supervisor.failure()
    )
    ended = wire.RanksEndedReport(
        seq=supervisor.next_seq(), generation=0, outcome="failed", port=4100
    )
    first = supervisor.sync(failed, ended)
    before = story(rig, 1)
    again = supervisor.sync(failed, ended)
    assert (again.acked, again.orders) == (first.acked, first.orders)
    assert first.acked == ended.seq
    assert story(rig, 1) == before
    assert rig.job(1).restarts == 1


def test_reports_of_an_old_attempt_cannot_touch_the_new_one(
    rig: Rig, supervisor: ScriptedSupervisor
) -> None:
    rig.executor.bury(supervisor.ref)
    rig.turn()
    rig.turn()
    assert rig.job(1).attempt == 2
    rig.supervisor(1, attempt=2).ready()
    before = rig.job(1)
    assert supervisor.failed().action is Action.RELEASE
    assert supervisor.ended(0, "failed").action is Action.RELEASE
    assert rig.job(1).state == before.state and rig.job(1).restarts == before.restarts


def test_the_token_of_an_attempt_ends_with_it(rig: Rig) -> None:
    """A newer attempt, the last report, and the end of the job each take something from it."""

    def ask(one: ScriptedSupervisor, path: str) -> int:
        ref = one.ref
        where = {"job": ref.job, "attempt": ref.attempt, "node_rank": ref.node_rank}
        headers = {"Authorization": f"Bearer {one.token}"}
        with httpx.Client(base_url=URL, transport=rig.transport) as http:
            return http.get(
                f"/api/v1/supervisors/{path}", params=where, headers=headers
            ).status_code

    supervisor_code = f"code/{'0' * 64}"
    rig.submit()
    rig.turn()
    supervisor = rig.supervisor(1)  # it has not called yet
    assert ask(supervisor, "secrets") == 200
    rig.executor.bury(supervisor.ref)
    rig.turn()
    rig.turn()
    newer = rig.supervisor(1, attempt=2)
    assert ask(newer, "secrets") == 200
    assert ask(supervisor, "secrets") == 403 and ask(supervisor, supervisor_code) == 403
    assert supervisor.post(supervisor.request(), newer.token).status_code == 401
    assert newer.post(newer.request(), supervisor.token).status_code == 401
    assert supervisor.log(0, b"late\n").action is Action.RELEASE  # what it wrote is not lost
    newer.ready()
    newer.started()
    newer.ended(0)
    newer.leave()
    assert newer.log(0, b"after the last report\n").action is Action.RELEASE
    rig.turn()
    assert rig.job(1).state == "succeeded"
    said = [line.text for line in rig.client.logs(1).lines]
    assert said == ["late"]
    assert ask(newer, "secrets") == 403 and ask(newer, supervisor_code) == 403
    rig.clock.advance(24 * 3600 - 60)
    assert supervisor.post(supervisor.request()).status_code == 200
    rig.clock.advance(120)
    for one in (supervisor, newer):
        assert one.post(one.request()).status_code == 401
        report = wire.LeavingReport(seq=one.next_seq())
        assert one.post(one.request(report)).status_code == 401


def test_an_unknown_protocol_is_refused(rig: Rig, supervisor: ScriptedSupervisor) -> None:
    answer = supervisor.post(supervisor.request().model_copy(update={"protocol": 9}))
    assert answer.status_code == 400 and "protocol 9" in answer.json()["message"]


def test_values_that_are_not_finite_arrive(rig: Rig, supervisor: ScriptedSupervisor) -> None:
    supervisor.step(0, 1, loss=math.nan)
    supervisor.step(0, 2, loss=0.25)
    (series,) = rig.client.metrics(1).series
    assert (series.steps, series.values) == ([1, 2], [None, 0.25])


@pytest.mark.parametrize("known", [False, True])
def test_a_body_is_read_only_from_who_has_a_token(
    rig: Rig, supervisor: ScriptedSupervisor, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a token of a supervisor, the guard open, the large body is read up to its limit."""
    monkeypatch.setattr(gate, "_SYNC_BYTES", 16 * 65536)
    pulled: list[int] = []
    answers: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        pulled.append(1)
        return {"type": "http.request", "body": b"[" * 65536, "more_body": len(pulled) < 100}

    async def send(message: dict[str, Any]) -> None:
        answers.append(message)

    token = supervisor.token if known else "wrong"
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/api/v1/supervisors/sync",
        "query_string": b"",
        "headers": [
            (b"host", b"127.0.0.1"),
            (b"authorization", f"Bearer {token}".encode()),
            (b"content-type", b"application/json"),
        ],
    }
    asyncio.run(create_app(rig.context)(scope, receive, send))
    assert answers[0]["status"] == (413 if known else 401)
    assert len(pulled) == (17 if known else 0)


def test_failures_are_put_on_our_clock(rig: Rig, supervisor: ScriptedSupervisor) -> None:
    supervisor.skew_us = -7_200_000_000  # two hours behind
    rig.clock.advance(1)
    supervisor.sync()
    rig.clock.advance(1)
    failed_at = rig.clock.now()
    supervisor.failed()
    view = rig.job(1)
    assert view.failure is not None
    assert round(view.failure.at.timestamp() * 1e6) == pytest.approx(failed_at, abs=200_000)


def test_a_long_poll_returns_when_orders_change(rig: Rig, supervisor: ScriptedSupervisor) -> None:
    seen = supervisor.sync().orders.version
    answers: list[wire.SyncResponse] = []
    # The poll's own limit is on the manual clock and never passes: only news can end it.
    waiting = threading.Thread(
        target=lambda: answers.append(supervisor.sync(seen=seen, wait_s=25.0))
    )
    waiting.start()
    deadline = time.monotonic() + 30
    while not rig.context.notifier._waiting and time.monotonic() < deadline:
        time.sleep(0.005)
    assert not answers
    rig.client.stop(1)
    waiting.join(30)
    assert answers[0].orders.action is Action.STOP


def test_ledgers_checkpoints_and_restores_add_up(rig: Rig, supervisor: ScriptedSupervisor) -> None:
    def ledger(generation: int, *rows: tuple[int, int, int]) -> wire.LedgerReport:
        return wire.LedgerReport(
            seq=supervisor.next_seq(),
            generation=generation,
            num_samples=100,
            rows=[wire.LedgerRow(epoch=e, lo=lo, hi=hi) for e, lo, hi in rows],
        )

    def restored(generation: int, path: str | None, position: int) -> wire.RestoredReport:
        return wire.RestoredReport(
            seq=supervisor.next_seq(), generation=generation, path=path, position=position
        )

    supervisor.sync(
        restored(0, None, 0),
        ledger(0, (0, 0, 30)),
        wire.CheckpointReport(
            seq=supervisor.next_seq(),
            generation=0,
            step=2,
            path="/c/2",
            at=supervisor.now(),
            metrics={"val_acc": 0.9},
        ),
        ledger(0, (0, 0, 60)),
    )
    supervisor.failed()
    orders = supervisor.ended(0, "failed", step=6)
    assert orders.resume_path == "/c/2"
    supervisor.started(1)
    supervisor.sync(
        restored(1, "/c/2", 30),
        ledger(1, (0, 30, 100)),
        wire.QuarantinedReport(
            seq=supervisor.next_seq(), generation=1, path="/c/9", message="bad digest"
        ),
        wire.WarningReport(
            seq=supervisor.next_seq(), generation=1, message="disk full", at=supervisor.now()
        ),
    )
    found = rig.job(1).lineage
    assert found is not None
    assert (found.missed, found.duplicated, found.redone, found.consumed) == (0, 0, 30, 100)
    assert (found.num_valid, found.num_quarantined, found.exact) == (1, 1, True)
    assert [one.path for one in rig.client.checkpoints(1)] == ["/c/2", "/c/9"]
    assert {"restored", "warned", "checkpoint_quarantined"} <= set(story(rig, 1))
    rig.check_log(1)
    slices = rig.store.view(lambda tx: lineage.ledger_of(tx, 1))
    assert len(slices) == 2
    assert rig.store.view(lambda tx: len(events.of_job(tx, 1, kinds=("warned",)))) == 1


def test_copies_in_the_object_store_are_shown(rig: Rig, supervisor: ScriptedSupervisor) -> None:
    name = "step-00000020-0123abcd"

    def report(state: str, size: int, name: str = name) -> None:
        supervisor.sync(
            wire.CheckpointCopyReport(
                seq=supervisor.next_seq(),
                generation=0,
                name=name,
                state=state,
                size_bytes=size,
                at=supervisor.now(),
            )
        )

    for path in (f"/c/{name}", "s3://bucket/j/step-00000040-0123abcd"):
        supervisor.sync(
            wire.CheckpointReport(
                seq=supervisor.next_seq(), generation=0, step=2, path=path, at=supervisor.now()
            )
        )
    report("uploading", 700)
    report("stored", 9, "step-00000040-0123abcd")
    near, far = rig.client.checkpoints(1)
    assert (near.near, near.copy_state, near.copy_bytes) == (True, "uploading", 700)
    assert (far.near, far.copy_state, far.copied_at is None) == (False, "stored", False)
    found = rig.job(1).lineage
    assert found is not None and (found.num_stored, found.num_uploading) == (1, 1)
    report("stored", 650)
    report("uploading", 700)  # from a process that has not heard of it
    report("stored", 1, "step-00000099-0123abcd")
    near, far = rig.client.checkpoints(1)
    assert (near.copy_state, near.copy_bytes) == ("stored", 650)


def test_a_quarantined_checkpoint_that_was_never_reported_counts(
    rig: Rig, supervisor: ScriptedSupervisor
) -> None:
    """Its rank was killed between the commit and the report of it; that report may still come."""
    path = "/c/step-00000040-0123abcd"

    def commit(path: str, step: int) -> None:
        supervisor.sync(
            wire.CheckpointReport(
                seq=supervisor.next_seq(),
                generation=0,
                step=step,
                path=path,
                at=supervisor.now(),
                size_bytes=step,
                metrics={"val_acc": 0.9},
            )
        )

    def counted() -> tuple[int, int]:
        found = rig.job(1).lineage
        assert found is not None
        return found.num_valid, found.num_quarantined

    commit("/c/step-00000020-0123abcd", 20)
    supervisor.failed()
    supervisor.ended(0, "failed", step=40)
    supervisor.started(1)
    for _ in range(2):
        supervisor.sync(
            wire.QuarantinedReport(
                seq=supervisor.next_seq(), generation=1, path=path, message="bad digest"
            )
        )
    assert counted() == (1, 1)
    unseen = rig.client.checkpoints(1)[1]
    assert (unseen.path, unseen.step, unseen.state) == (path, 40, "quarantined")
    commit(path, 40)
    assert counted() == (1, 1)
    late = rig.client.checkpoints(1)[1]
    assert (late.state, late.generation, late.size_bytes) == ("quarantined", 0, 40)
    assert rig.job(1).progress.checkpoint_step == 20
    rig.check_log(1)


def test_ledgers_of_nodes_that_share_every_batch_are_a_few_rows_together(rig: Rig) -> None:
    num = rig.submit(resources={"nodes": 2, "slots_per_node": 1})
    rig.turn()
    nodes = [rig.supervisor(num, rank) for rank in (0, 1)]

    def consumed(node: int, steps: range) -> wire.LedgerReport:
        rows = [
            wire.LedgerRow(epoch=0, lo=96 * step + 48 * node, hi=96 * step + 48 * node + 48)
            for step in steps
        ]
        return wire.LedgerReport(
            seq=nodes[node].next_seq(),
            generation=0,
            num_samples=None if node else 960,
            rows=rows,
            added=True,
        )

    def kept() -> list[tuple[int | None, int]]:
        found = rig.store.view(lambda tx: lineage.ledger_of(tx, num))
        return [(one.num_samples, len(one.rows)) for one in found]

    first = consumed(0, range(6))
    nodes[0].sync(first)
    assert kept() == [(960, 6)]
    nodes[0].sync(first)  # said again after a lost answer: it counts once
    nodes[1].sync(consumed(1, range(4)))
    nodes[1].sync(consumed(1, range(4, 10)))
    nodes[0].sync(consumed(0, range(6, 10)))
    assert kept() == [(960, 1)]
    found = rig.job(num).lineage
    assert found is not None
    assert (found.missed, found.duplicated, found.consumed) == (0, 0, 960)


def test_logs_come_back_as_lines(rig: Rig, supervisor: ScriptedSupervisor) -> None:
    long = b"x" * 300_000
    supervisor.log(0, b"one\ntw")
    page = rig.client.logs(1)
    assert [line.text for line in page.lines] == ["one"]
    supervisor.log(6, b"o\n" + long[:200_000])
    supervisor.log(0, b"other\n", rank=2)
    page = rig.client.logs(1, cursor=page.cursor)
    assert [(line.rank, line.text) for line in page.lines] == [(0, "two"), (2, "other")]
    supervisor.log(8 + 200_000, long[200_000:] + b"\nlast without an end")
    page = rig.client.logs(1, cursor=page.cursor)
    assert [line.text for line in page.lines] == [long.decode()]
    assert not page.done
    supervisor.ended(0, "succeeded")
    supervisor.leave()
    rig.turn()
    page = rig.client.logs(1, cursor=page.cursor)
    assert ([line.text for line in page.lines], page.done) == (["last without an end"], True)
    assert [line.text for line in rig.client.logs(1, tail=1).lines] == ["last without an end"]
    assert [line.text for line in rig.client.logs(1, ranks=[2]).lines] == ["other"]


def test_a_restart_is_told_the_last_known_step(rig: Rig) -> None:
    num = rig.submit()
    rig.turn()
    one = rig.supervisor(num)
    assert one.ready().last_step == 0
    one.started()
    one.step(0, 400)
    one.failed()
    one.ended(outcome="failed", step=30)
    rig.turn(1)
    orders = one.sync().orders
    assert (orders.generation, orders.last_step) == (1, 400)


def test_secrets_are_sent_to_a_supervisor_that_starts_and_to_nothing_else(rig: Rig) -> None:
    rig.client.secrets.set("WANDB_KEY", "hush")
    rig.client.secrets.set("OF_ANOTHER_JOB", "quiet")
    num = rig.submit(secrets=["WANDB_KEY"], env={"DB_PASS": "own", "MODE": "fast"})
    rig.turn()
    one = rig.supervisor(num)

    def ask(token: str, node_rank: int = 0) -> httpx.Response:
        where = {"job": num, "attempt": 1, "node_rank": node_rank}
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=URL, transport=rig.transport) as http:
            return http.get("/api/v1/supervisors/secrets", params=where, headers=headers)

    answer = ask(one.token)
    assert answer.json()["values"] == {"WANDB_KEY": "hush", "DB_PASS": "own"}
    assert answer.headers["Cache-Control"] == "no-store"
    assert [ask(token).status_code for token in ("", "wrong", rig.context.admin.token)] == [401] * 3
    assert ask(one.token, node_rank=5).status_code == 401
    one.ready()
    assert ask(one.token).status_code == 403, "after its first call the token reads no secret"


def post_bytes(rig: Rig, supervisor: ScriptedSupervisor, body: bytes) -> httpx.Response:
    headers = {"Authorization": f"Bearer {supervisor.token}", "Content-Type": REPORTS_TYPE}
    with httpx.Client(base_url=URL, transport=rig.transport) as http:
        return http.post("/api/v1/supervisors/sync", content=body, headers=headers)


def test_metrics_as_bytes_are_stored_as_those_in_json(
    rig: Rig, supervisor: ScriptedSupervisor
) -> None:
    num, late = supervisor.ref.job, supervisor.now() + 10**12
    answer = supervisor.post(supervisor.request())
    assert answer.headers["accept-post"] == f"application/json, {REPORTS_TYPE}"
    points = [
        wire.MetricPoint(rank, step, late, {"loss": step / 3} | ({"acc": 0.5} if rank else {}))
        for step in range(4)
        for rank in range(2)
    ]
    reports = [
        wire.MetricsReport(seq=supervisor.next_seq(), generation=0, points=points[:4]),
        wire.MetricsReport(seq=supervisor.next_seq(), generation=0, points=points[4:]),
    ]
    body = encode_request(supervisor.request(*reports))
    assert body is not None
    for _ in range(2):  # a repetition stores nothing
        said = wire.SyncResponse.model_validate_json(post_bytes(rig, supervisor, body).content)
        assert said.acked == reports[-1].seq
    chunks, _ = rig.store.view(lambda tx: arrivals.chunks_of(tx, num, after=0, limit=10))
    found = [point for chunk in chunks for point in chunk.points]
    assert [one._replace(at=late) for one in found] == points
    assert all(one.at <= rig.clock.now() for one in found), "no time is in the future"
    assert rig.store.view(lambda tx: arrivals.names_of(tx, num)) == ["acc", "loss"]
    row = rig.store.view(lambda tx: lineage.find_generation(tx, (num, 1, 0)))
    assert row is not None and (row.first_step, row.last_step) == (0, 3)


def test_bytes_that_are_no_call_are_refused_with_a_reason(
    rig: Rig, supervisor: ScriptedSupervisor
) -> None:
    for body, said in ((b"", "known"), (b"PHR\x01\x02\0\0\0{}x", "bytes behind"), (b"{}", "known")):
        answer = post_bytes(rig, supervisor, body)
        assert (answer.status_code, said in answer.text) == (422, True), answer.text
    point = wire.MetricPoint(0, 1, supervisor.now(), {"loss": 0.5})
    report = wire.MetricsReport(seq=supervisor.next_seq(), generation=0, points=[point, point])
    body = encode_request(supervisor.request(report))
    assert body is not None
    rank = body.index(b"}", body.rindex(b'"wait_s"')) + 1
    answer = post_bytes(rig, supervisor, body[:rank] + b"\xff" * 4 + body[rank + 4 :])
    assert (answer.status_code, "a rank is negative" in answer.text) == (400, True), answer.text
