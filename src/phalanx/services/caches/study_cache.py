"""Studies as their events make them, kept in memory from one step to the next.

Nothing here is authoritative: a control plane that starts rebuilds a study from its events when it is
needed. Values are immutable, so a study is shared by all threads.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable

from phalanx.core.search.machine import rebuild
from phalanx.core.search.model import Study
from phalanx.schemas.spec.study import StudySpec
from phalanx.store.database import Touched, Tx
from phalanx.store.jobs import StoredJob
from phalanx.store.studies import log
from phalanx.store.studies.rows import StoredStudy

# Ended studies are read now and then; more than these are forgotten, the least recently used first.
_KEPT = 600


class StudyCache:
    """Decided studies, and the jobs of trials that have changed since they were last looked at."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._studies: OrderedDict[int, tuple[int, Study]] = OrderedDict()
        self._specs: OrderedDict[int, StudySpec] = OrderedDict()
        self._changed: set[int] = set()
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

    def remember(self, touched: Touched) -> None:
        """Note which trials' jobs a commit has changed."""
        changed = {
            num
            for num, row in touched.rows.items()
            if isinstance(row, StoredJob) and row.facts.study is not None
        }
        if changed:
            self.note(changed)

    def note(self, jobs: Iterable[int]) -> None:
        """Have these jobs looked at."""
        with self._lock:
            self._changed.update(jobs)

    def take(self) -> set[int]:
        """The jobs that have changed since the last call."""
        with self._lock:
            taken, self._changed = self._changed, set()
            return taken
