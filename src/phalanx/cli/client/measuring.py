"""Run a measurement as a job: submit it, wait for its end, read the measured values."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from phalanx.cli.client.session import Session
from phalanx.core.reasons import ReasonCode
from phalanx.errors import NotSupported, PlatformError, UserError

if TYPE_CHECKING:
    from phalanx.schemas.api.jobs import JobView
    from phalanx.sdk import PhalanxClient

_ROUND_S = 20.0
_QUEUED_ROUND_S = 1.0
# A control plane that has just started may not have its nodes yet.
_ROUNDS_WITHOUT_PLACE = 5


def run_to_end(
    session: Session,
    client: PhalanxClient,
    module: str,
    words: Sequence[str],
    part: Mapping[str, Any],
) -> tuple[JobView, str | None]:
    """Run a module of Phalanx as a job with these spec keys; returns the job and its pool.

    Ctrl-C cancels the job; so does a platform without a pool that is large enough.

    Raises SpecInvalid, and NotSupported where no pool is large enough.
    """
    from phalanx.cli.client.invocation import forward_environment, protects_secrets
    from phalanx.schemas.api.jobs import SubmitRequest
    from phalanx.schemas.spec.document import resolved, validate_spec

    spec = {**part, "run": [session.invocation.python, "-u", "-m", module, *words]}
    body = SubmitRequest(
        spec=resolved(validate_spec(spec)),
        kind="run",
        caller_cwd=str(session.invocation.cwd),
        caller_env=forward_environment(
            session.invocation.env, [], protected=protects_secrets(session.url)
        ).env,
        owner=session.invocation.owner(),
    )
    job = client.submit(body).job
    assert job is not None
    try:
        return _awaited(client, job.num)
    except (KeyboardInterrupt, NotSupported):
        # Its values are no longer needed: free the slots.
        with contextlib.suppress(PlatformError):
            client.stop(job.num, goal="cancel")
        raise


def _awaited(client: PhalanxClient, num: int) -> tuple[JobView, str | None]:
    after, pool, without_place = 0, None, 0
    while not (view := client.job(num)).is_terminal:
        pool = view.pool or pool
        stays = view.pending_reason
        nowhere = stays is not None and stays.code == ReasonCode.UNPLACEABLE.value
        without_place = without_place + 1 if nowhere else 0
        if stays is not None and without_place >= _ROUNDS_WITHOUT_PLACE:
            raise NotSupported(stays.message, "phalanx pools lists pools and free slots")
        # A new pending reason is not an event, so queued jobs are polled.
        page = client.events(num, after=after, wait_s=_ROUND_S if pool else _QUEUED_ROUND_S)
        after = page.events[-1].seq if page.events else after
    return view, pool


def shape(count: int, per_node: int | None) -> dict[str, int]:
    """The resources for `count` ranks. Raises UserError when they do not spread evenly over nodes."""
    nodes = -(-count // (per_node or count))
    if count % nodes:
        said = f"{count} ranks do not spread over {nodes} nodes evenly"
        raise UserError(said, "choose --per-node so that each node gets the same number of ranks")
    return {"nodes": nodes, "slots_per_node": count // nodes}


def figures(client: PhalanxClient, view: JobView, names: Sequence[str]) -> list[float]:
    """The last values that rank 0 logged. Raises UserError when one is missing."""
    series = client.metrics(view.num, names=names, ranks=(0,)).series
    last = {one.name: [value for value in one.values if value is not None] for one in series}
    if view.state != "succeeded" or not all(last.get(name) for name in names):
        raise UserError(
            f"{view.label} is {view.state}: {view.reason.message or 'the job logged no measurement'}",
            f"phalanx logs {view.label}",
        )
    return [last[name][-1] for name in names]
