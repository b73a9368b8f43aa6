"""Job states of a simulation: every start, save, stop and failure is an event of the job machine.

`core.jobs.decide` alone determines a job's state, its restart budgets and its back-offs. This
module emits the events of the supervisors and the executor in the order in which those would send
them. With `deliveries` above one every event arrives that many times; the repetitions must change
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from phalanx.core.gang.failures import Failure
from phalanx.core.gang.placement import NodeShare, Placement
from phalanx.core.jobs import events as e
from phalanx.core.jobs.budgets import RecoveryPolicy
from phalanx.core.jobs.machine import create, decide
from phalanx.core.jobs.model import (
    HOLDING,
    Attempt,
    Decision,
    Job,
    JobPolicy,
    JobState,
    LaunchAttempt,
    NodeOutcome,
    NodePhase,
    StopGoal,
)
from phalanx.core.reasons import Cause, Reason
from phalanx.errors import InvariantBroken
from phalanx.sim.jobs import US, TraceJob

_PORT = 29_500


@dataclass(slots=True)
class JobLifecycles:
    """The states of the job machine by job number, and the number of events applied."""

    grace_s: float = 30.0
    policy: RecoveryPolicy = RecoveryPolicy()
    deliveries: int = 1
    machine: Callable[[Job, e.JobEvent, int], Decision] = decide
    num_events: int = 0
    num_ignored: int = 0
    jobs: dict[int, Job] = field(default_factory=dict)

    def tell(self, num: int, event: e.JobEvent, at_s: float) -> Job:
        """Apply one event as many times as `deliveries` says."""
        now, job = int(at_s * US), self.jobs[num]
        decision = self.machine(job, event, now)
        self.num_events += 1
        self.num_ignored += decision.ignored is not None
        placed = isinstance(event, e.AttemptPlaced) and decision.ignored is None
        if placed and LaunchAttempt(decision.job.attempts) not in decision.commands:
            raise InvariantBroken(f"j-{num} was placed and nothing launches it")
        for _ in range(1, self.deliveries):
            again = self.machine(decision.job, event, now)
            if again.ignored is None and (again.job != decision.job or again.commands):
                raise InvariantBroken(f"j-{num}: a second {type(event).__name__} changed the job")
        self.jobs[num] = decision.job
        return decision.job

    # -- events of supervisors and the executor --------------------------------------------------

    def submitted(self, job: TraceJob, at_s: float) -> None:
        """Submit a job."""
        terms = JobPolicy(
            job.shape, self.policy, self.grace_s, min_nodes=job.min_nodes, roles=job.roles
        )
        self.jobs[job.num] = create(e.Submitted(job.num, terms), int(at_s * US))

    def placed(self, num: int, placement: Placement, at_s: float) -> None:
        """Apply a start of the plan."""
        job = self.jobs[num]
        event = e.AttemptPlaced(job.attempts + 1, _as_asked(job, placement))
        if self.tell(num, event, at_s).state is not JobState.STARTING:
            raise InvariantBroken(f"j-{num} was placed and is {self.jobs[num].state}")

    def up(self, num: int, at_s: float) -> None:
        """Report that every supervisor has registered and every rank runs."""
        attempt = self._attempt(num)
        for rank, node in enumerate(attempt.nodes):
            if node.phase is NodePhase.LAUNCHING:
                self.tell(num, e.NodeReady(attempt.num, rank, _PORT), at_s)
        attempt = self._attempt(num)
        for rank, node in enumerate(attempt.nodes):
            if node.phase is NodePhase.READY:
                self.tell(num, e.RanksStarted(attempt.num, attempt.generation, rank), at_s)

    def saved(self, num: int, step: int, at_s: float) -> None:
        """Report a committed checkpoint."""
        attempt = self._attempt(num)
        path = f"step-{step:08d}"
        event = e.CheckpointCommitted(attempt.num, attempt.generation, step, path)
        self.tell(num, event, at_s)

    def asked_to_stop(self, num: int, reason: Reason, grace_s: float, at_s: float) -> None:
        """Ask the job to stop because the plan preempts it."""
        event = e.StopRequested(StopGoal.REQUEUE, reason, grace_s)
        if self.tell(num, event, at_s).state is not JobState.STOPPING:
            raise InvariantBroken(f"j-{num} was asked to stop and is {self.jobs[num].state}")

    def left(self, num: int, outcome: NodeOutcome, step: int, at_s: float) -> Job:
        """Report that all ranks have ended, and then all supervisors."""
        self._end_ranks(num, outcome, step, at_s)
        return self._release(num, at_s)

    def lost(self, num: int, ranks: Sequence[int], step: int, at_s: float) -> Job:
        """Report lost nodes; the other supervisors stop and leave."""
        attempt = self._attempt(num)
        for rank in ranks:
            event = e.NodeLost(attempt.num, rank, f"node rank {rank} is gone", step)
            self.tell(num, event, at_s)
        if self.jobs[num].attempt is None:
            return self.jobs[num]  # every node of it was lost
        return self.left(num, NodeOutcome.STOPPED, step, at_s)

    def crashed(self, num: int, cause: Cause, step: int, at_s: float) -> Job:
        """Report a failed rank, which ends the generation; the job machine decides what follows."""
        attempt = self._attempt(num)
        failure = Failure(cause, 0, 0, int(at_s * US), f"rank 0: {cause}")
        self.tell(num, e.RankFailed(attempt.num, attempt.generation, 0, failure), at_s)
        self._end_ranks(num, NodeOutcome.FAILED, step, at_s)
        job = self.jobs[num]
        return self._release(num, at_s) if job.state is JobState.STOPPING else job

    def back_off_over(self, num: int, at_s: float) -> Job:
        """Report the end of the back-off before the next generation."""
        return self.tell(num, e.BackoffElapsed(), at_s)

    def resized(
        self, num: int, placement: Placement, reason: Reason, step: int, at_s: float
    ) -> None:
        """Start a new attempt on another number of nodes."""
        self.asked_to_stop(num, reason, self.grace_s, at_s)
        self.left(num, NodeOutcome.STOPPED, step, at_s)
        self.placed(num, placement, at_s)

    # -- parts -----------------------------------------------------------------------------------

    def _attempt(self, num: int) -> Attempt:
        attempt = self.jobs[num].attempt
        if attempt is None:
            raise InvariantBroken(f"j-{num} is {self.jobs[num].state} without an attempt")
        return attempt

    def _end_ranks(self, num: int, outcome: NodeOutcome, step: int, at_s: float) -> None:
        attempt = self._attempt(num)
        for rank, node in enumerate(attempt.nodes):
            if node.phase in (NodePhase.READY, NodePhase.UP):
                event = e.RanksEnded(attempt.num, attempt.generation, rank, outcome, _PORT, step)
                self.tell(num, event, at_s)

    def _release(self, num: int, at_s: float) -> Job:
        attempt = self._attempt(num)
        for rank, node in enumerate(attempt.nodes):
            if node.phase is not NodePhase.RELEASED:
                self.tell(num, e.NodeReleased(attempt.num, rank), at_s)
        job = self.jobs[num]
        if job.state in HOLDING:
            raise InvariantBroken(f"j-{num}: every supervisor left and it is {job.state}")
        return job


def _as_asked(job: Job, placement: Placement) -> Placement:
    """Return the placement with the shares that the job requested.

    Some peers split a gang into unequal parts, which the job machine refuses: for those it gets the
    requested shares on the same nodes.
    """
    shares = placement.shares
    parts = job.policy.parts(len(shares))
    if [len(share.slots) for share in shares] == [p.slots_per_node for p in parts for _ in p.nodes]:
        return placement
    widths = [part.slots_per_node for part in job.policy.parts() for _ in part.nodes]
    wanted = tuple(
        NodeShare(
            shares[i % len(shares)].node, shares[i % len(shares)].address, tuple(range(width))
        )
        for i, width in enumerate(widths)
    )
    return replace(placement, shares=wanted)
