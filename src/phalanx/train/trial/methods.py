"""What a script calls as the trial of a study; `Run` has these methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from phalanx.core.contract.trial import UNITS
from phalanx.errors import ParamsRejected, UserError
from phalanx.train.gang.report import Journal
from phalanx.train.trial.params import Params
from phalanx.train.trial.reporting import TrialReporter


class TrialMethods:
    """The part of a run that concerns a study. In a job that is no trial, reports are plain logs."""

    _trial: TrialReporter
    _journal: Journal
    _progress_step: Callable[[], int]

    @property
    def params(self) -> Params:
        """The trial's parameters, by name and as attributes; empty in a job that is no trial.

        `PHALANX_PARAMS`, a JSON object, sets them by hand. `run.params(lr=0.1)`, or `run.params(args)`,
        records what the script runs with.
        """
        return Params(self._trial.contract.params, self._trial.record_params)

    @property
    def target(self) -> int | None:
        """Units after which the trial pauses, unless the study raises it; None: it runs to its end."""
        return self._trial.target

    def report(self, **values: Any) -> None:
        """Log values but the position, and report them to the study; call it on every rank, or on rank 0.

        Rank 0's values count. Give the position where the study counts it: `epoch`, the number of the
        epoch from 0 that is complete now, or `sample` or `token`, how many were used; steps are counted.
        At its target the trial saves, and pauses unless the study raises the target.

        Args:
            values: Numbers, the position among them.

        Raises:
            UserError: The position is missing, or no whole number.
        """
        logged = {name: one for name, one in values.items() if name not in UNITS}
        self._journal.log(self._progress_step(), logged)
        if self._trial.contract.is_trial:
            self._journal.flush()
            self._trial.take(self._completed(values), values)

    def _completed(self, values: dict[str, Any]) -> int:
        unit = self._trial.contract.unit
        found = values.get(unit, self._progress_step() if unit == "step" else None)
        if not isinstance(found, int) or found < 0:
            said = f"run.report: the study counts the {unit}, which must be a whole number from 0"
            raise UserError(said, f"write run.report({unit}=…, …)")
        return found + 1 if unit == "epoch" else found

    def reject(self, reason: str) -> NoReturn:
        """End the trial because its parameters make no sense; the study does not count it.

        Args:
            reason: Why, for people.

        Raises:
            ParamsRejected: Always.
        """
        raise ParamsRejected(reason)
