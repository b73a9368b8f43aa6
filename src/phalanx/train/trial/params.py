"""The parameters of a trial: a mapping that does not change, with attributes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from phalanx.core.contract.trial import Param


class Params(Mapping[str, Param]):
    """The parameters of a trial, by name: `params["lr"]`, `params.lr`, `params.get("lr", 0.1)`.

    Empty in a job that is no trial. A parameter that is named like a method is found by `[]` alone.
    """

    __slots__ = ("_values",)
    _values: dict[str, Param]

    def __init__(self, values: Mapping[str, Param]) -> None:
        object.__setattr__(self, "_values", dict(values))

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
