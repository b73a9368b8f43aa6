"""Conditions and constraints of a search space: a small expression language, parsed and never executed.

    optimizer == 'sgd' and not nesterov          batch_size * layers <= 512
    layers in [2, 4, 8]                          0.1 < dropout / 2 <= 0.3

Operators, weakest first: `or`, `and`, `not`, comparisons (`==`, `!=`, `<`, `<=`, `>`, `>=`, `in`,
`not in`; they chain), `+` `-`, `*` `/`, unary `-`. Values are numbers, text in quotes, `true`, `false`,
`null` and names of parameters; a name with a dash stands in backquotes.

Logic has three values: what refers to a parameter that is not active is unknown, unless the other side
of an `and` or an `or` decides.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

Value = str | int | float | bool | None
#: The kinds of values that an operand may have: "number", "text", "bool", "null".
Kinds = frozenset[str]

MAX_CHARS: Final = 1000
MAX_NESTING: Final = 30
MAX_TOKENS: Final = 200
_LARGEST: Final = 10**18
_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)"
    r"|(?P<text>'[^'\n]*'|\"[^\"\n]*\")"
    r"|`(?P<quoted>[^`\n]+)`"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_.]*)"
    r"|(?P<sign>==|!=|<=|>=|[<>+\-*/()\[\],]))"
)
_LITERALS: Final[dict[str, Value]] = {
    "true": True,
    "True": True,
    "false": False,
    "False": False,
    "null": None,
    "none": None,
    "None": None,
}
RESERVED: Final = frozenset({"and", "or", "not", "in", *_LITERALS})
_COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_ARITHMETIC: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
_NUMBERS: Final[Kinds] = frozenset({"number", "bool"})


class ExpressionInvalid(ValueError):
    """The text is not an expression; the message says what is wrong, and at which character."""


class _Unknown:
    """The value of what refers to a parameter that is not active."""


_UNKNOWN: Final = _Unknown()


@dataclass(frozen=True, slots=True)
class _Node:
    """An operator with its operands; `value` is the literal of a `literal`, the name of a `name`."""

    op: str
    args: tuple[_Node, ...] = ()
    value: Value = None


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed condition or constraint. Two expressions are equal if they read the same."""

    text: str
    #: the parameters that it refers to
    names: frozenset[str]
    _root: _Node

    def holds(self, params: Mapping[str, Value]) -> bool:
        """Whether it is true; what refers to parameters that are not active is not."""
        return _evaluate(self._root, params) is True

    def fails(self, params: Mapping[str, Value]) -> bool:
        """Whether it is false; what refers to parameters that are not active is not."""
        return _evaluate(self._root, params) is False

    def faults(self, values: Mapping[str, Collection[Value] | None]) -> tuple[str, ...]:
        """What can never be meant, as one message each: text that is ordered, values never taken.

        `values` has, for each parameter, the values it can take, or None where it takes numbers.
        """
        found: list[str] = []
        if not _check(self._root, values, found) <= {"bool"}:
            found.append("it is neither true nor false; compare it with something")
        return tuple(dict.fromkeys(found))


def parse(text: str, names: Collection[str]) -> Expression:
    """The expression that a text stands for.

    Raises ExpressionInvalid if the text is no expression, or refers to a name that is not in `names`.
    """
    if len(text) > MAX_CHARS:
        raise ExpressionInvalid(f"it has {len(text)} characters, at most {MAX_CHARS} are read")
    parser = _Parser(text, frozenset(names))
    root = parser.whole()
    return Expression(text, frozenset(parser.used), root)


class _Parser:
    """Recursive descent over the tokens of one text."""

    def __init__(self, text: str, names: frozenset[str]) -> None:
        self._text = text
        self._names = names
        self._tokens = _tokens(text)
        if len(self._tokens) > MAX_TOKENS:
            raise ExpressionInvalid(f"it has more than {MAX_TOKENS} names, values and operators")
        self._next = 0
        self._nesting = 0
        self.used: set[str] = set()

    def whole(self) -> _Node:
        root = self._either()
        if self._next < len(self._tokens):
            raise self._invalid("an operator is expected")
        return root

    def _peek(self) -> str:
        """The next sign or word, or nothing; text and numbers have no spelling here."""
        if self._next >= len(self._tokens):
            return ""
        kind, spelling, _ = self._tokens[self._next]
        return spelling if kind in ("sign", "name") else ""

    def _take(self, *spellings: str) -> str:
        found = self._peek()
        if found and found in spellings:
            self._next += 1
            return found
        return ""

    def _invalid(self, what: str) -> ExpressionInvalid:
        if self._next >= len(self._tokens):
            return ExpressionInvalid(f"{what}, but it ends")
        _, spelling, at = self._tokens[self._next]
        return ExpressionInvalid(f"{what} at character {at + 1}, not `{spelling}`")

    def _either(self) -> _Node:
        node = self._both()
        while self._take("or"):
            node = _Node("or", (node, self._both()))
        return node

    def _both(self) -> _Node:
        node = self._negation()
        while self._take("and"):
            node = _Node("and", (node, self._negation()))
        return node

    def _negation(self) -> _Node:
        if self._take("not"):
            return _Node("not", (self._deeper(self._negation),))
        return self._comparison()

    def _comparison(self) -> _Node:
        left = self._sum()
        pairs: list[_Node] = []
        while True:
            op = self._take("==", "!=", "<", "<=", ">", ">=", "in")
            if not op and self._peek() == "not":
                self._next += 1
                if not self._take("in"):
                    raise self._invalid("`in` is expected after `not`")
                op = "not in"
            if not op:
                break
            if op in ("in", "not in"):
                member = _Node("in", (left, *self._list()))
                pairs.append(member if op == "in" else _Node("not", (member,)))
                break
            right = self._sum()
            pairs.append(_Node(op, (left, right)))
            left = right
        node = pairs[0] if pairs else left
        for pair in pairs[1:]:
            node = _Node("and", (node, pair))
        return node

    def _list(self) -> tuple[_Node, ...]:
        opened = self._take("[", "(")
        if not opened:
            raise self._invalid("a list in brackets is expected")
        items = [self._sum()]
        while self._take(","):
            items.append(self._sum())
        if not self._take("]" if opened == "[" else ")"):
            raise self._invalid("`,` or the closing bracket is expected")
        return tuple(items)

    def _sum(self) -> _Node:
        node = self._product()
        while op := self._take("+", "-"):
            node = _Node(op, (node, self._product()))
        return node

    def _product(self) -> _Node:
        node = self._signed()
        while op := self._take("*", "/"):
            node = _Node(op, (node, self._signed()))
        return node

    def _signed(self) -> _Node:
        if self._take("-"):
            return _Node("-", (_Node("literal", value=0), self._deeper(self._signed)))
        if self._take("("):
            node = self._deeper(self._either)
            if not self._take(")"):
                raise self._invalid("`)` is expected")
            return node
        return self._atom()

    def _deeper(self, rule: Callable[[], _Node]) -> _Node:
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            raise ExpressionInvalid(f"it is nested more than {MAX_NESTING} deep")
        node = rule()
        self._nesting -= 1
        return node

    def _atom(self) -> _Node:
        if self._next >= len(self._tokens):
            raise self._invalid("a value is expected")
        kind, spelling, _ = self._tokens[self._next]
        if kind == "number":
            node = _Node("literal", value=_number(spelling))
        elif kind == "text":
            node = _Node("literal", value=spelling[1:-1])
        elif kind == "name" and spelling in _LITERALS:
            node = _Node("literal", value=_LITERALS[spelling])
        elif kind == "quoted" or (kind == "name" and spelling not in RESERVED):
            if spelling not in self._names:
                known = ", ".join(sorted(self._names)) or "none"
                raise ExpressionInvalid(
                    f"`{spelling}` is no parameter (text needs quotes; parameters: {known})"
                )
            self.used.add(spelling)
            node = _Node("name", value=spelling)
        else:
            raise self._invalid("a value is expected")
        self._next += 1
        return node


def _tokens(text: str) -> list[tuple[str, str, int]]:
    """Kind, spelling and place of each token."""
    found: list[tuple[str, str, int]] = []
    at = 0
    end = len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            rest = text[at:].lstrip()
            raise ExpressionInvalid(f"`{rest[:10]}` is not understood, at character {at + 1}")
        kind = str(match.lastgroup)
        found.append((kind, match[kind], match.start(kind)))
        at = match.end()
    return found


def _number(spelling: str) -> int | float:
    value = int(spelling) if spelling.isdecimal() and len(spelling) <= 20 else float(spelling)
    if not -_LARGEST <= value <= _LARGEST:
        raise ExpressionInvalid(f"{spelling} is larger than 1e18")
    return value


def _evaluate(node: _Node, params: Mapping[str, Value]) -> Any:
    """The value of a node: a plain value, or _UNKNOWN. Division by zero gives NaN."""
    if node.op == "literal":
        return node.value
    if node.op == "name":
        return params.get(str(node.value), _UNKNOWN)
    if node.op in ("and", "or"):
        return _logic(node, params)
    values = [_evaluate(one, params) for one in node.args]
    if node.op == "in":
        return _member(values[0], values[1:])
    if any(one is _UNKNOWN for one in values):
        return _UNKNOWN
    if node.op == "not":
        return not values[0]
    left, right = values
    if node.op == "==":
        return _equal(left, right)
    if node.op == "!=":
        return not _equal(left, right)
    if node.op in _COMPARISONS:
        if not (_is_number(left) and _is_number(right)):
            return False
        return _COMPARISONS[node.op](left, right)
    return _calculate(node.op, left, right)


def _logic(node: _Node, params: Mapping[str, Value]) -> Any:
    """Kleene's three-valued `and` and `or`."""
    decides = node.op == "or"
    unknown = False
    for one in node.args:
        value = _evaluate(one, params)
        if value is _UNKNOWN:
            unknown = True
        elif bool(value) is decides:
            return decides
    return _UNKNOWN if unknown else not decides


def _member(value: Any, items: list[Any]) -> Any:
    if value is _UNKNOWN:
        return _UNKNOWN
    if any(one is not _UNKNOWN and _equal(value, one) for one in items):
        return True
    return _UNKNOWN if any(one is _UNKNOWN for one in items) else False


def _equal(left: Any, right: Any) -> bool:
    if _is_number(left) != _is_number(right):
        return False
    return bool(left == right)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _calculate(op: str, left: Any, right: Any) -> Any:
    if not (_is_number(left) and _is_number(right)):
        return math.nan
    try:
        return _ARITHMETIC[op](left, right)
    except (ZeroDivisionError, OverflowError):
        return math.nan


def _check(node: _Node, values: Mapping[str, Collection[Value] | None], found: list[str]) -> Kinds:
    """The kinds of values that a node can have; faults are added to `found`."""
    if node.op == "literal":
        return _kinds([node.value])
    if node.op == "name":
        taken = values[str(node.value)]
        return frozenset({"number"}) if taken is None else _kinds(taken)
    kinds = [_check(one, values, found) for one in node.args]
    if node.op in ("and", "or", "not"):
        if not all(one <= {"bool"} for one in kinds):
            found.append(f"`{node.op}` takes comparisons and parameters that are true or false")
    elif node.op in ("==", "!=", "in"):
        for one, other in zip(node.args[1:], kinds[1:], strict=True):
            _check_equality(node.args[0], kinds[0], one, other, values, found)
    elif not all(one <= _NUMBERS for one in kinds):
        found.append(f"`{node.op}` takes numbers")
    elif node.op in _ARITHMETIC:
        return frozenset({"number"})
    return frozenset({"bool"})


def _check_equality(
    left: _Node,
    left_kinds: Kinds,
    right: _Node,
    right_kinds: Kinds,
    values: Mapping[str, Collection[Value] | None],
    found: list[str],
) -> None:
    for name, literal in ((left, right), (right, left)):
        if name.op != "name" or literal.op != "literal":
            continue
        taken = values[str(name.value)]
        if taken is not None and not any(_equal(literal.value, one) for one in taken):
            listed = ", ".join(map(repr, list(taken)[:10]))
            found.append(f"{name.value} is never {literal.value!r}; its values are {listed}")
            return
    numeric = bool(left_kinds & _NUMBERS) and bool(right_kinds & _NUMBERS)
    if not numeric and not left_kinds & right_kinds:
        found.append(
            f"{' or '.join(sorted(left_kinds))} is never equal to {' or '.join(sorted(right_kinds))}"
        )


def _kinds(values: Collection[Value]) -> Kinds:
    return frozenset(
        "null"
        if one is None
        else "bool"
        if isinstance(one, bool)
        else "text"
        if isinstance(one, str)
        else "number"
        for one in values
    )
