"""The parameters of a trial: a mapping that does not change, with attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from phalanx.core.contract.trial import Param
from phalanx.errors import UserError


def _ignore(_values: Mapping[str, Any]) -> None:
    """Record nothing."""


class Params(Mapping[str, Param]):
    """The parameters of a trial, by name: `params["lr"]`, `params.lr`, `params.get("lr", 0.1)`.

    Empty in a job that is no trial. A parameter that is named like a method is found by `[]` alone.
    Called with values, it records them as parameters of the run.
    """

    __slots__ = ("_record", "_values")
    _values: dict[str, Param]
    _record: Callable[[Mapping[str, Any]], None]

    def __init__(
        self,
        values: Mapping[str, Param],
        record: Callable[[Mapping[str, Any]], None] = _ignore,
    ) -> None:
        object.__setattr__(self, "_values", dict(values))
        object.__setattr__(self, "_record", record)

    def __call__(self, given: object = None, /, **values: Any) -> None:
        """Record what the script runs with, in the record of the run; what rank 0 gives counts.

        Values may be nested: `run.params(optimizer={"lr": 0.1})` records `optimizer.lr`. The first value
        that a run gives to a name stays.

        Args:
            given: A mapping, or an object with attributes such as that of argparse.
            values: More of them, by name.

        Raises:
            UserError: `given` is neither a mapping nor an object with attributes.
        """
        whole = {} if given is None else given
        if not isinstance(whole, Mapping):
            try:
                whole = vars(whole)
            except TypeError:
                said = f"run.params: {type(given).__name__} has no parameters"
                raise UserError(said, "give a mapping, or what argparse returns") from None
        self._record({**whole, **values})

    def __getitem__(self, name: str) -> Param:
        return self._values[name]

    def __getattr__(self, name: str) -> Param:
        if name in Params.__slots__ or name not in self._values:
            known = "" if name.startswith("_") else ", ".join(self._values) or "none"
            raise AttributeError(f"there is no parameter {name}; there are: {known}")
        return self._values[name]

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name}: the parameters of a trial do not change")

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Params({self._values!r})"

    def __reduce__(self) -> tuple[type[Params], tuple[dict[str, Param]]]:
        return Params, (dict(self._values),)
