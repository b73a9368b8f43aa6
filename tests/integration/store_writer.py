"""A child that commits until it is killed: prints a job's number and state after each commit."""

from __future__ import annotations

import sys
from pathlib import Path

from phalanx.core.gang.placement import GangShape, NodeShare, Placement
from phalanx.core.jobs.events import AttemptPlaced, NodeReady, StopRequested, Submitted
from phalanx.core.jobs.model import JobPolicy, StopGoal
from phalanx.services.lifecycle.commit import commit_events, commit_new
from phalanx.store import jobs, open_store
from phalanx.testing.stores import NOW, facts

PLACEMENT = Placement("local", (NodeShare("n0", "h", (0,)),))
TERMS = JobPolicy(GangShape(1, 1, 1))


def main(path: str) -> None:
    store = open_store(Path(path))
    while True:
        num = store.transact(
            lambda tx: commit_new(tx, Submitted(jobs.new_num(tx), TERMS), facts(), NOW, "t").num
        )
        print(num, 1, flush=True)
        said = (
            [AttemptPlaced(1, PLACEMENT)],
            [NodeReady(1, 0, 4000), StopRequested(StopGoal.CANCEL)],
        )
        for count, events in enumerate(said, start=1):
            store.transact(lambda tx, e=events, n=num: commit_events(tx, n, e, NOW, "t"))
            print(num, 1 + count + (count == 2), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
