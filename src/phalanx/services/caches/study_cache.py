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
            while len(self._studies) > _KEPT:
                self._studies.popitem(last=False)

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
