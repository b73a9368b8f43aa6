"""The space of a search: its parameters, the conditions under which they are active, and constraints."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Final

from phalanx.core.search.expressions import RESERVED, Expression, ExpressionInvalid, Value, parse
from phalanx.errors import Problem

#: The active parameters of a trial with their values, constants included.
Params = Mapping[str, Value]

MAX_PARAMETERS: Final = 200
MAX_VALUES: Final = 1000
MAX_CONSTRAINTS: Final = 100
MAX_TEXT: Final = 1000
#: Beyond this, integers are no longer exact as floating-point numbers.
_LARGEST_INT: Final = 2**53
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
#: How far a value may be from a step, as a share of the step.
_STEP_TOLERANCE: Final = 1e-6


@dataclass(frozen=True, slots=True)
class FloatParameter:
    """A real number from `low` to `high`, both included; with `step`, low plus a multiple of it."""

    low: float
    high: float
    log: bool = False
    step: float | None = None
    #: the condition under which the parameter is active
    when: str | None = None
    kind: str = "float"

    @property
    def num_levels(self) -> int | None:
        """Number of values that it can take; None if it is continuous."""
        if self.low == self.high:
            return 1
        if self.step is None:
            return None
        return int((_decimal(self.high) - _decimal(self.low)) / _decimal(self.step)) + 1

    def value_at(self, unit: float) -> Value:
        """The value at a place in [0, 1); equal lengths are equal probabilities."""
        if (levels := self.num_levels) is not None:
            return self.level(min(int(unit * levels), levels - 1))
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            return min(max(math.exp(low + unit * (high - low)), self.low), self.high)
        return min(max(self.low + unit * (self.high - self.low), self.low), self.high)

    def level(self, index: int) -> float:
        """The value number `index` of a parameter with a step."""
        return float(_decimal(self.low) + index * _decimal(self.step or 0.0))

    def unit_of(self, value: Value) -> float:
        """The place of a value in [0, 1], the reverse of `value_at`."""
        number = min(max(float(value or 0.0), self.low), self.high)
        if self.low == self.high:
            return 0.5
        if self.step is not None:
            levels = self.num_levels or 1
            return (min(round((number - self.low) / self.step), levels - 1) + 0.5) / levels
        if self.log:
            return math.log(number / self.low) / math.log(self.high / self.low)
        return (number - self.low) / (self.high - self.low)

    def faults(self) -> Iterator[str]:
        """What is wrong with the bounds and the step."""
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            yield "the bounds must be finite"
        elif self.low > self.high:
            yield f"the lower bound {self.low:g} is above the upper bound {self.high:g}"
        elif self.log and self.low <= 0:
            yield f"a logarithmic scale needs a lower bound above 0, not {self.low:g}"
        elif not math.isfinite(self.high - self.low):
            yield "the range is too large"
        elif self.step is not None and self.log:
            yield "`step` and `log` exclude each other"
        elif self.step is not None and not self._is_step(self.step):
            yield f"`step` must be above 0 and at most the range, not {self.step:g}"
        elif self.step is not None and (self.high - self.low) / self.step > _LARGEST_INT:
            yield f"`step` {self.step:g} makes too many values"

    def _is_step(self, step: float) -> bool:
        wide = self.high - self.low
        return step > 0 and (wide == 0 or step <= wide * (1 + _STEP_TOLERANCE))

    def refuses(self, value: Value) -> str:
        """Why a value is not possible, or nothing."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return "is not a number"
        if not self.low <= value <= self.high:
            return f"is not between {self.low:g} and {self.high:g}"
        if self.step is not None and self.low < self.high:
            steps = (float(value) - self.low) / self.step
            if abs(steps - round(steps)) > _STEP_TOLERANCE:
                return f"is not {self.low:g} plus a multiple of {self.step:g}"
        return ""


@dataclass(frozen=True, slots=True)
class IntParameter:
    """An integer from `low` to `high`, both included, in steps of `step`."""

    low: int
    high: int
    log: bool = False
    step: int = 1
    #: the condition under which the parameter is active
    when: str | None = None
    kind: str = "int"

    @property
    def num_levels(self) -> int:
        """Number of values that it can take."""
        return (self.high - self.low) // self.step + 1

    def value_at(self, unit: float) -> Value:
        """The value at a place in [0, 1), on the parameter's scale."""
        if self.log:
            low, high = math.log(self.low - 0.5), math.log(self.high + 0.5)
            return min(max(round(math.exp(low + unit * (high - low))), self.low), self.high)
        return self.level(min(int(unit * self.num_levels), self.num_levels - 1))

    def level(self, index: int) -> int:
        """The value number `index`, counted from `low`."""
        return self.low + index * self.step

    def unit_of(self, value: Value) -> float:
        """The place of a value in [0, 1]: the middle of the places that `value_at` maps to it."""
        number = min(max(int(value or 0), self.low), self.high)
        if self.log:
            low, high = math.log(self.low - 0.5), math.log(self.high + 0.5)
            return (math.log(number) - low) / (high - low)
        return ((number - self.low) // self.step + 0.5) / self.num_levels

    def faults(self) -> Iterator[str]:
        """What is wrong with the bounds and the step."""
        if max(abs(self.low), abs(self.high)) > _LARGEST_INT:
            yield "the bounds must be at most 2**53 in size"
        elif self.low > self.high:
            yield f"the lower bound {self.low} is above the upper bound {self.high}"
        elif self.log and self.low < 1:
            yield f"a logarithmic scale needs a lower bound of at least 1, not {self.low}"
        elif self.step < 1:
            yield f"`step` must be at least 1, not {self.step}"
        elif self.log and self.step != 1:
            yield "`step` and `log` exclude each other"

    def refuses(self, value: Value) -> str:
        """Why a value is not possible, or nothing."""
        if isinstance(value, bool) or not isinstance(value, int):
            return "is not an integer"
        if not self.low <= value <= self.high:
            return f"is not between {self.low} and {self.high}"
        if (value - self.low) % self.step:
            return f"is not {self.low} plus a multiple of {self.step}"
        return ""


@dataclass(frozen=True, slots=True)
class ChoiceParameter:
    """One of several values without an order."""

    values: tuple[Value, ...]
    #: the condition under which the parameter is active
    when: str | None = None
    kind: str = "choice"

    @property
    def num_levels(self) -> int:
        """Number of values that it can take."""
        return len(self.values)

    def value_at(self, unit: float) -> Value:
        """The value at a place in [0, 1); every value has the same length."""
        return self.values[min(int(unit * len(self.values)), len(self.values) - 1)]

    def level(self, index: int) -> Value:
        """The value number `index`."""
        return self.values[index]

    def index_of(self, value: Value) -> int:
        """The number of a value; 0 for what is none of them."""
        return next((i for i, one in enumerate(self.values) if same(one, value)), 0)

    def unit_of(self, value: Value) -> float:
        """The place of a value in [0, 1]: the middle of its part."""
        return (self.index_of(value) + 0.5) / len(self.values)

    def faults(self) -> Iterator[str]:
        """What is wrong with the values."""
        if not 1 <= len(self.values) <= MAX_VALUES:
            yield f"{len(self.values)} values; 1 to {MAX_VALUES} are possible"
        for number, one in enumerate(self.values[:MAX_VALUES]):
            if fault := _unfit(one):
                yield fault
            elif any(same(one, other) for other in self.values[:number]):
                yield f"the value {one!r} is given twice"

    def refuses(self, value: Value) -> str:
        """Why a value is not possible, or nothing."""
        if any(same(one, value) for one in self.values):
            return ""
        listed = ", ".join(map(repr, self.values[:10]))
        return f"is none of {listed}{', …' if len(self.values) > 10 else ''}"


@dataclass(frozen=True, slots=True)
class ConstantParameter:
    """One value that every trial gets."""

    value: Value
    #: the condition under which the parameter is active
    when: str | None = None
    kind: str = "constant"

    @property
    def num_levels(self) -> int:
        """One."""
        return 1

    def value_at(self, unit: float) -> Value:
        """The value, at any place."""
        return self.value

    def level(self, index: int) -> Value:
        """The value, for any number."""
        return self.value

    def unit_of(self, value: Value) -> float:
        """The middle."""
        return 0.5

    def faults(self) -> Iterator[str]:
        """What is wrong with the value."""
        if fault := _unfit(self.value):
            yield fault

    def refuses(self, value: Value) -> str:
        """Why a value is not possible, or nothing."""
        return "" if same(self.value, value) else f"is not {self.value!r}"


Parameter = FloatParameter | IntParameter | ChoiceParameter | ConstantParameter


@dataclass(frozen=True)
class Space:
    """The parameters of a search by name, and the constraints that all trials keep."""

    parameters: dict[str, Parameter]
    constraints: tuple[str, ...] = ()

    def __hash__(self) -> int:
        return hash((tuple(self.parameters.items()), self.constraints))

    @cached_property
    def order(self) -> tuple[str, ...]:
        """The names, each after those that its condition refers to; otherwise as they were given.

        Raises ExpressionInvalid if a condition is invalid, or conditions refer to one another in a circle.
        """
        done: dict[str, None] = {}
        waiting = list(self.parameters)
        while waiting:
            ready = [name for name in waiting if self._needs(name) <= done.keys()]
            if not ready:
                raise ExpressionInvalid(
                    f"the conditions of {', '.join(waiting)} refer to one another in a circle"
                )
            done.update(dict.fromkeys(ready))
            waiting = [name for name in waiting if name not in done]
        return tuple(done)

    @cached_property
    def is_conditional(self) -> bool:
        """Whether a parameter has a condition."""
        return any(one.when is not None for one in self.parameters.values())

    @cached_property
    def searched(self) -> tuple[str, ...]:
        """The names of the parameters that are no constants, in `order`."""
        return tuple(
            name for name in self.order if not isinstance(self.parameters[name], ConstantParameter)
        )

    def problems(self) -> list[Problem]:
        """Every fault of the space; its other functions may be used only if there is none."""
        found = [
            Problem(f"space.{name}", fault)
            for name, one in self.parameters.items()
            for fault in (*_name_faults(name), *one.faults())
        ]
        if not 1 <= len(self.parameters) <= MAX_PARAMETERS:
            count = len(self.parameters)
            found.append(
                Problem("space", f"{count} parameters; 1 to {MAX_PARAMETERS} are possible")
            )
        if len(self.constraints) > MAX_CONSTRAINTS:
            found.append(Problem("constraints", f"more than {MAX_CONSTRAINTS}"))
        if found:
            return found
        for name, one in self.parameters.items():
            if one.when is not None:
                found += self._expression_problems(f"space.{name}.when", one.when)
        for number, text in enumerate(self.constraints):
            found += self._expression_problems(f"constraints[{number}]", text)
        if not found:
            try:
                self.order  # noqa: B018
            except ExpressionInvalid as error:
                found.append(Problem("space", str(error)))
        return found

    def num_cells(self) -> int | None:
        """Number of combinations of values, conditions and constraints aside; None if one is continuous."""
        product = 1
        for one in self.parameters.values():
            if one.num_levels is None:
                return None
            product *= one.num_levels
        return product

    def is_active(self, name: str, params: Params) -> bool:
        """Whether the condition of a parameter holds, given the parameters before it in `order`."""
        condition = self._conditions[name]
        return condition is None or condition.holds(params)

    def active(self, values: Params) -> dict[str, Value]:
        """Of values for all parameters, those of the parameters that are active."""
        params: dict[str, Value] = {}
        for name in self.order:
            if self.is_active(name, params):
                params[name] = values[name]
        return params

    def completed(self, params: Params) -> dict[str, Value]:
        """Params as given by a user, with constants, and with floats where floats are meant."""
        done = dict(params)
        for name in self.order:
            one = self.parameters[name]
            value = done.get(name)
            if isinstance(one, ConstantParameter) and name not in done:
                if self.is_active(name, done):
                    done[name] = one.value
            elif isinstance(one, FloatParameter) and type(value) is int:
                done[name] = float(value)
        return done

    def violations(self, params: Params) -> tuple[str, ...]:
        """Everything that is wrong with the params of a trial: bounds, conditions, constraints."""
        found = [f"{name} is no parameter" for name in params if name not in self.parameters]
        for name in self.order:
            if not self.is_active(name, params):
                if name in params:
                    found.append(f"{name} is used only when {self.parameters[name].when}")
            elif name not in params:
                found.append(f"{name} is missing")
            elif reason := self.parameters[name].refuses(params[name]):
                found.append(f"{name} = {params[name]!r} {reason}")
        if not found:
            found = [f"{one.text} does not hold" for one in self.rules if one.fails(params)]
        return tuple(found)

    def allows(self, params: Params) -> bool:
        """Whether active params, each within its bounds, keep the constraints."""
        return not any(one.fails(params) for one in self.rules)

    @cached_property
    def rules(self) -> tuple[Expression, ...]:
        """The constraints, parsed."""
        return tuple(parse(text, self.parameters) for text in self.constraints)

    @cached_property
    def _conditions(self) -> dict[str, Expression | None]:
        return {
            name: None if one.when is None else parse(one.when, self.parameters)
            for name, one in self.parameters.items()
        }

    def _needs(self, name: str) -> frozenset[str]:
        condition = self._conditions[name]
        return frozenset() if condition is None else condition.names

    def _expression_problems(self, path: str, text: str) -> list[Problem]:
        try:
            faults = parse(text, self.parameters).faults(self._values)
        except ExpressionInvalid as error:
            faults = (str(error),)
        return [Problem(path, fault, text) for fault in faults]

    @property
    def _values(self) -> dict[str, tuple[Value, ...] | None]:
        """The values of each parameter, for checks of expressions; None if it takes numbers."""
        return {
            name: one.values
            if isinstance(one, ChoiceParameter)
            else (one.value,)
            if isinstance(one, ConstantParameter)
            else None
            for name, one in self.parameters.items()
        }


def same(one: Value, other: Value) -> bool:
    """Whether two values are the same: 1 and 1.0 are, 1 and true are not."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def cell_of(params: Params) -> tuple[tuple[str, bool, Value], ...]:
    """A hashable form of params; two trials with the same values have the same."""
    return tuple((name, isinstance(params[name], bool), params[name]) for name in sorted(params))


def _decimal(number: float) -> Decimal:
    """The number as it is written, so that multiples of 0.1 are what they look like."""
    return Decimal(repr(number))


def _unfit(value: Value) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value} is not finite"
    if isinstance(value, str) and len(value) > MAX_TEXT:
        return f"a text of {len(value)} characters; at most {MAX_TEXT} are possible"
    return ""


def _name_faults(name: str) -> Iterator[str]:
    if not _NAME.fullmatch(name):
        yield "a name has at most 64 letters, digits, `_`, `.` and `-`, and starts with a letter or `_`"
    elif name in RESERVED:
        yield "the name is a word of the language of conditions"
