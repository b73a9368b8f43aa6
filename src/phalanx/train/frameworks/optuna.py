"""Optuna scripts go on where they were when they are started again: the program of `framework: optuna`.

`python -m phalanx.train.frameworks.optuna [--shell] -- COMMAND` runs a script with hooks in Optuna:

* A study without a storage, or in a file with a relative path, is kept in the job's folder.
* A study that this job has created is loaded when the script creates it again.
* A trial that the interruption ended is put into the queue again, with the params it had.
* `n_trials` counts the trials that have ended before. Decision 76 says why so.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from phalanx.core.contract.records import MetricRecord, StepRecord
from phalanx.kit.clock import SystemClock
from phalanx.train.frameworks.hooked_script import Patch, hooked_words, install, run_script
from phalanx.train.gang.report import NoReport, Report, ReportFile

_MODULE = "phalanx.train.frameworks.optuna"
_BY, _INTERRUPTED = "phalanx:by", "phalanx:interrupted"
_SQLITE = "sqlite:///"


def main(argv: Sequence[str]) -> int:
    """Become the script with the hooks, or run it; returns 2 when the command is no Python script."""
    if argv[0] not in ("--shell", "--"):
        install(JobStudies.of(os.environ).patches())  # noqa: TID251 - a program's entry point
        run_script(argv)
        return 0
    command = argv[argv.index("--") + 1 :]
    words = hooked_words(command, shell=argv[0] == "--shell", hooks=_MODULE)
    if words is None:
        text = "phalanx: framework: optuna runs `python SCRIPT …`; for another command use none"
        print(text, file=sys.stderr)  # noqa: T201
        return 2
    os.execvp(words[0], words)


class JobStudies:
    """The studies of one rank of a job: where they are kept, and how each goes on."""

    def __init__(
        self, folder: Path, identity: str, rank: int, world_size: int, report: Report
    ) -> None:
        """`identity` tells this job from all others, in storages that jobs share, too."""
        self._folder, self._report = folder, report
        self._identity, self._by = identity, f"{identity}/{rank}"
        self._alone = world_size == 1
        folder.mkdir(parents=True, exist_ok=True)
        self._unnamed = 0
        self._left: dict[
            str, int
        ] = {}  # by study: earlier trials that no `optimize` has counted yet
        self._begun: set[tuple[str, int]] = set()

    @classmethod
    def of(cls, env: Mapping[str, str]) -> JobStudies:
        """Return those of the rank of these variables."""
        path = env.get("PHALANX_REPORT_FILE")
        report = ReportFile(Path(path), now=SystemClock().now) if path else NoReport()
        # A job that its owner had begin anew has other studies.
        beginning = env.get("PHALANX_BEGINNING", "0")
        folder = Path(env["PHALANX_CHECKPOINT_DIR"], f"optuna-{beginning}")
        identity = f"{env['PHALANX_JOB_UID']}-{beginning}"
        return cls(folder, identity, int(env["RANK"]), int(env["WORLD_SIZE"]), report)

    def patches(self) -> dict[str, Patch]:
        """Return what is changed right after the import of which module."""
        return {
            "optuna.study.study": self._patch_study,
            "optuna.storages._rdb.storage": self._patch_rdb,
            "optuna.storages.journal._file": self._patch_journal,
        }

    # -- storages --------------------------------------------------------------------------------

    def kept(self, path: str) -> str:
        """Return where a file of a relative path is kept; one that lies there already is copied."""
        if os.path.isabs(path):
            return path
        kept = self._folder / path
        kept.parent.mkdir(parents=True, exist_ok=True)
        with _locked(self._folder / "files.lock"):
            if not kept.exists() and Path(path).exists():
                shutil.copyfile(path, kept)
        return str(kept)

    def _patch_rdb(self, module: Any) -> None:
        begin = module.RDBStorage.__init__

        @functools.wraps(begin)
        def __init__(this: Any, url: str, *args: Any, **options: Any) -> None:
            path = url.removeprefix(_SQLITE)
            if path != url and path and ":memory:" not in path and not path.startswith("file:"):
                url = f"{_SQLITE}{self.kept(path)}"
            begin(this, url, *args, **options)

        module.RDBStorage.__init__ = __init__

    def _patch_journal(self, module: Any) -> None:
        begin = module.JournalFileBackend.__init__

        @functools.wraps(begin)
        def __init__(this: Any, file_path: Any, *args: Any, **options: Any) -> None:
            begin(this, self.kept(os.fspath(file_path)), *args, **options)

        module.JournalFileBackend.__init__ = __init__

    def _own_storage(self) -> Any:
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        path = self._folder / "studies.journal"
        lock: Any = _ProcessLock(path.with_suffix(".lock"))
        return JournalStorage(JournalFileBackend(str(path), lock))

    # -- studies ---------------------------------------------------------------------------------

    def _patch_study(self, module: Any) -> None:
        create, load, study = module.create_study, module.load_study, module.Study
        ask, optimize = study.ask, study.optimize
        add, enqueue = study.add_trial, study.enqueue_trial

        @functools.wraps(create)
        def create_study(**options: Any) -> Any:
            if options.get("storage") is None:
                options |= {"storage": self._own_storage(), "load_if_exists": True}
            if options.get("study_name") is None:
                self._unnamed += 1
                name = f"{self._identity}-{self._unnamed}"
                options |= {"study_name": name, "load_if_exists": True}
            return self._continued(self._created(module, create, options))

        @functools.wraps(load)
        def load_study(**options: Any) -> Any:
            return self._continued(load(**options))

        @functools.wraps(ask)
        def ask_marked(this: Any, *args: Any, **options: Any) -> Any:
            trial = ask(this, *args, **options)
            self._begun.add((this.study_name, trial.number))
            this._storage.set_trial_system_attr(trial._trial_id, _BY, self._by)
            return trial

        @functools.wraps(optimize)
        def optimize_rest(
            this: Any, func: Any, n_trials: int | None = None, *args: Any, **options: Any
        ) -> None:
            options["callbacks"] = [*(options.get("callbacks") or ()), self._tell]
            optimize(this, func, self._rest(this, n_trials), *args, **options)

        @functools.wraps(enqueue)
        def enqueue_once(this: Any, *args: Any, **options: Any) -> None:
            if this.study_name in self._left:  # the script did so when it first ran
                options["skip_if_exists"] = True
            enqueue(this, *args, **options)

        @functools.wraps(add)
        def add_once(this: Any, trial: Any) -> None:
            if this.study_name in self._left and trial.state.is_finished():
                same = (trial.params, trial.values)
                if any((one.params, one.values) == same for one in this.get_trials(deepcopy=False)):
                    return
            add(this, trial)

        module.create_study, module.load_study = create_study, load_study
        study.ask, study.optimize = ask_marked, optimize_rest
        study.enqueue_trial, study.add_trial = enqueue_once, add_once

    def _marker(self, name: str) -> Path:
        """Return the file that says that this job has created the study of that name."""
        return self._folder / f"created-{uuid.uuid5(uuid.NAMESPACE_OID, name)}"

    def _created(self, module: Any, create: Any, options: dict[str, Any]) -> Any:
        """Create a study, or load the one that this job has created under that name."""
        marker = self._marker(options["study_name"])
        try:
            made = create(**options)
        except module.exceptions.DuplicatedStudyError:
            made = create(**{**options, "load_if_exists": True})
            # Without a mark and with trials, it is that of another job: the script refuses it.
            if not marker.exists() and made.get_trials(deepcopy=False):
                raise
        marker.touch()
        return made

    def _continued(self, study: Any) -> Any:
        """Put interrupted trials into the queue again, and count those that have ended."""
        if study.study_name in self._left or not hasattr(study, "_storage"):
            return study
        trials = study.get_trials(deepcopy=False)
        owners = {self._by}
        if self._alone and self._marker(study.study_name).exists():
            owners.add("")  # killed before it could be marked
        mine = [trial for trial in trials if trial.system_attrs.get(_BY, "") in owners]
        if not mine:
            return study
        again = [trial for trial in mine if self._was_interrupted(study, trial)]
        for trial in again:
            self._run_again(study, trial, trials)
        ended = [
            trial
            for trial in mine
            if trial.state.is_finished() and not trial.system_attrs.get(_INTERRUPTED)
        ]
        self._left[study.study_name] = len(ended)
        # With the numbers of the first start, a seeded sampler would suggest the same params again.
        study.sampler.reseed_rng()
        say = f"study {study.study_name} goes on: {len(ended)} trials have ended, {len(again)} run again"
        print(f"phalanx: {say}", file=sys.stderr, flush=True)  # noqa: T201
        return study

    def _was_interrupted(self, study: Any, trial: Any) -> bool:
        return trial.state.name == "RUNNING" and (study.study_name, trial.number) not in self._begun

    def _run_again(self, study: Any, trial: Any, trials: Sequence[Any]) -> None:
        """Queue a trial's params, as Optuna does for one without a heartbeat, and end it."""
        import optuna

        known = {one.system_attrs.get("retry_history", (None,))[-1] for one in trials}
        if trial.number not in known:  # an interruption may have come between these two lines
            history = [*trial.system_attrs.get("retry_history", ()), trial.number]
            notes = {"failed_trial": trial.number, **trial.system_attrs, "retry_history": history}
            study.add_trial(
                optuna.create_trial(
                    state=optuna.trial.TrialState.WAITING,
                    params=trial.params,
                    distributions=trial.distributions,
                    user_attrs=trial.user_attrs,
                    system_attrs=notes,
                )
            )
        storage = study._storage
        storage.set_trial_system_attr(trial._trial_id, _INTERRUPTED, True)
        storage.set_trial_state_values(trial._trial_id, optuna.trial.TrialState.FAIL)

    def _rest(self, study: Any, n_trials: int | None) -> int | None:
        """Return how many of `n_trials` have not ended before."""
        left = self._left.get(study.study_name, 0)
        if n_trials is None or not left:
            return n_trials
        counted = min(n_trials, left)
        self._left[study.study_name] = left - counted
        return n_trials - counted

    def _tell(self, study: Any, trial: Any) -> None:
        """Report an ended trial as a step with its value, so that the job has progress and metrics."""
        step = trial.number + 1
        values = trial.values or ()
        one = len(values) == 1
        named = {"value" if one else f"value_{at}": number for at, number in enumerate(values)}
        self._report.write(StepRecord(step=step, epoch=0, consumed=0))
        if named:
            self._report.write(MetricRecord(step=step, values=named))


class _ProcessLock:
    """The lock of a journal. It ends with its process; Optuna's own stay behind for half a minute."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held = contextlib.ExitStack()

    def acquire(self) -> bool:
        """Wait for the lock."""
        held = contextlib.ExitStack()
        held.enter_context(_locked(self._path))
        self._held = held
        return True

    def release(self) -> None:
        """Give the lock back."""
        self._held.close()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
