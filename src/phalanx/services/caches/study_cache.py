"""Studies as their events make them, kept in memory from one step to the next.

Nothing here is authoritative: a control plane that starts rebuilds a study from its events when it is
needed. Values are immutable, so a study is shared by all threads.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Set

from phalanx.core.jobs.model import TERMINAL, JobState
from phalanx.core.search.draw import Cell
from phalanx.core.search.machine import rebuild
from phalanx.core.search.model import Study
from phalanx.core.search.space import Params, cell_of
from phalanx.schemas.spec.study import StudySpec
from phalanx.store.database import Touched, Tx
from phalanx.store.jobs import StoredJob
from phalanx.store.studies import log
from phalanx.store.studies.rows import StoredStudy

# Ended studies are read now and then; more than these are forgotten, the least recently used first.
_KEPT = 600
# Changed jobs beyond this number are not noted one by one.
_MOST_CHANGED = 100_000
TRIAL_JOBS = "trial_jobs"
"""Topic of new states of jobs that run trials of studies."""
TOLD_TO_STUDIES = frozenset({JobState.RUNNING, JobState.PAUSED, *TERMINAL})
"""States of a trial's job from which its study learns something."""


class TriedParams:
    """The params that a study has tried, and the first trial of each; params of a trial never change.

    A study of 10,000 trials is asked 10,000 times: each ask reads only the trials that are new.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._first: dict[Cell, int] = {}
        self._without: set[int] = set()  # trials that had no params when they were read
        self._num_read = 0

    def read(self, study: Study) -> None:
        """Add what is new in a study; an older state of it adds nothing."""
        with self._lock:
            count = len(study.trials)
            for number in (*self._without, *range(self._num_read, count)):
                params = study.trials[number].params if number < count else None
                if params:
                    self._add(number, params)
                    self._without.discard(number)
                else:
                    self._without.add(number)
            self._num_read = max(self._num_read, count)

    def _add(self, number: int, params: Params) -> None:
        cell = cell_of(params)
        self._first[cell] = min(number, self._first.get(cell, number))

    def before(self, trial: int, also: Iterable[Params] = ()) -> Set[Cell]:
        """What trials with a lower number have tried, and `also`."""
        return _CellsBefore(self._first, trial, frozenset(cell_of(one) for one in also))


class _CellsBefore(Set[Cell]):
    """The cells of `first` that a trial before another one tried, and some more."""

    def __init__(self, first: dict[Cell, int], trial: int, also: frozenset[Cell]) -> None:
        self._first, self._trial, self._also = first, trial, also

    def __contains__(self, cell: object) -> bool:
        return cell in self._also or self._first.get(cell, self._trial) < self._trial  # type: ignore[call-overload]

    def __iter__(self) -> Iterator[Cell]:
        return iter({*self._also, *(c for c, n in list(self._first.items()) if n < self._trial)})

    def __len__(self) -> int:
        return sum(1 for _ in self)


class StudyCache:
    """Decided studies, and the jobs of trials that have changed since they were last looked at."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._studies: OrderedDict[int, tuple[int, Study]] = OrderedDict()
        self._specs: OrderedDict[int, StudySpec] = OrderedDict()
        self._tried: OrderedDict[int, TriedParams] = OrderedDict()
        self._changed: set[int] = set()
        self._all_changed = False
        # Version and state of each trial's job that is not over, as far as this process has stored it.
        self._states: dict[int, tuple[int, JobState]] = {}
        # When to look at the budget of each study that has one and running trials, µs UTC.
        self._budgets: dict[int, int] = {}
        #: number of the last report read; None: the jobs of live trials have not been looked at yet
        self.last_report: int | None = None

    def study(self, tx: Tx, stored: StoredStudy) -> Study:
        """The study of this row; rebuilt from its events unless it is known."""
        num, last_seq = stored.header.num, stored.last_seq
        with self._lock:
            known = self._studies.get(num)
            if known is not None and known[0] == last_seq:
                self._studies.move_to_end(num)
                return known[1]
        return rebuild(log.study_log(tx, num, up_to=last_seq))

    def keep(self, num: int, last_seq: int, study: Study) -> None:
        """Keep a study that has been stored; an older one does not replace a newer one."""
        with self._lock:
            known = self._studies.get(num)
            if known is None or known[0] < last_seq:
                self._studies[num] = (last_seq, study)
                self._studies.move_to_end(num)
                self._follow_budget(num, study)
            while len(self._studies) > _KEPT:
                self._studies.popitem(last=False)

    def _follow_budget(self, num: int, study: Study) -> None:
        """Have the budget of a study with running trials looked at from now on."""
        budget = study.policy.budget
        if (budget.slot_hours or budget.usd) and study.index.placed and not study.is_over:
            self._budgets.setdefault(num, 0)
        else:
            self._budgets.pop(num, None)

    def budgets_due(self, now: int) -> list[int]:
        """The studies with a budget that is to be looked at."""
        with self._lock:
            return sorted(num for num, at in self._budgets.items() if at <= now)

    def look_at_budget(self, num: int, at: int) -> None:
        """Have the budget of a study looked at again at a time, if its trials still run."""
        with self._lock:
            if num in self._budgets:
                self._budgets[num] = at

    def next_budget_at(self) -> int | None:
        """When the next budget is to be looked at; None while no study with one has running trials."""
        with self._lock:
            return min(self._budgets.values(), default=None)

    def spec(self, stored: StoredStudy) -> StudySpec:
        """The spec of a study, without the values of secret variables."""
        num = stored.header.num
        with self._lock:
            known = self._specs.get(num)
        if known is None:
            plain = {**stored.header.spec, "job": stored.header.submission["job"]}
            known = StudySpec.model_validate(plain)
            with self._lock:
                self._specs[num] = known
                while len(self._specs) > _KEPT:
                    self._specs.popitem(last=False)
        return known

    def tried(self, study: Study) -> TriedParams:
        """The params that a study has tried."""
        with self._lock:
            found = self._tried.setdefault(study.num, TriedParams())
            self._tried.move_to_end(study.num)
            while len(self._tried) > _KEPT:
                self._tried.popitem(last=False)
        found.read(study)
        return found

    def remember(self, touched: Touched) -> None:
        """Note which trials' jobs a commit has brought into another state."""
        for num, row in touched.rows.items():
            if isinstance(row, StoredJob) and row.facts.study is not None:
                self._follow(num, row)
        # A commit of another process names its jobs without their rows.
        if not touched.rows and TRIAL_JOBS in touched.topics:
            with self._lock:
                for num in touched.jobs:
                    self._states.pop(num, None)
            self.note(touched.jobs)

    def start_fresh(self) -> None:
        """Forget everything: another process has run studies since."""
        with self._lock:
            for cached in (self._studies, self._specs, self._tried, self._states, self._budgets):
                cached.clear()
            self._changed.clear()
            self._all_changed, self.last_report = False, None

    def look_again(self) -> None:
        """Look at the jobs of all live trials at the next step: changes may have been missed."""
        with self._lock:
            self._states.clear()
            self._all_changed = True

    def _follow(self, num: int, row: StoredJob) -> None:
        """Have a job looked at that came into a state from which its study learns something.

        Threads may report their commits out of order: a row that is older than the known one is skipped.
        """
        state = row.job.state
        with self._lock:
            version, before = self._states.get(num, (0, None))
            if version >= row.version:
                return
            if state in TERMINAL:
                self._states.pop(num, None)
            else:
                self._states[num] = (row.version, state)
            told = state in TOLD_TO_STUDIES and state is not before
        if told:
            self.note([num])

    def note(self, jobs: Iterable[int]) -> None:
        """Have these jobs looked at."""
        with self._lock:
            self._changed.update(jobs)
            if len(self._changed) > _MOST_CHANGED:  # of a standby, where no step takes them
                self._changed.clear()
                self._all_changed = True

    def take(self) -> set[int]:
        """The jobs that have changed since the last call."""
        with self._lock:
            if self._all_changed:
                self._all_changed, self.last_report = False, None
            taken, self._changed = self._changed, set()
            return taken
