"""The mapping file of `phalanx cost import`: columns of a billing export, and what its lines are for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from phalanx.core.cost.bill_formats import BillColumns, BillMapping, BillRule, plain
from phalanx.core.cost.bills import BilledKind
from phalanx.errors import Problem, SpecInvalid, UserError
from phalanx.schemas.spec.document import read_yaml

_MAX_BYTES = 1 << 20
_Column = Annotated[str, Field(min_length=1, max_length=200)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class MappedColumns(_Part):
    """The names of the columns of a format that is not known."""

    usd: _Column
    begin: _Column = Field(alias="from")
    end: _Column | None = Field(default=None, alias="to")
    currency: _Column | None = None
    id: _Column | None = None
    resource: _Column | None = None
    tags: _Column | None = None
    about: Annotated[list[_Column], Field(max_length=20)] = Field(default_factory=list)

    def to_core(self) -> BillColumns:
        """The columns as a format."""

        def some(name: str | None) -> tuple[str, ...]:
            return () if name is None else (plain(name),)

        return BillColumns(
            name="the mapping",
            cost=some(self.usd),
            begin=some(self.begin),
            end=some(self.end),
            currency=some(self.currency),
            id=some(self.id),
            about=tuple(map(plain, self.about)),
            resource=some(self.resource),
            tags=some(self.tags),
        )


class MappedLines(_Part):
    """What lines are for if their columns match all patterns; `*` stands for any text."""

    match: Annotated[dict[_Column, Annotated[str, Field(max_length=500)]], Field(min_length=1)]
    kind: Literal["slot", "storage", "transfer", "other", "ignore"]
    pool: Annotated[str, Field(max_length=128)] = ""
    slot_type: Annotated[str, Field(max_length=128)] = ""
    store: Annotated[str, Field(max_length=256)] = ""
    direction: Literal["", "upload", "read"] = ""

    @model_validator(mode="after")
    def _names_what_the_kind_has(self) -> Self:
        if (self.pool or self.slot_type) and self.kind != "slot":
            raise ValueError("pool and slot_type are of the kind slot")
        if self.store and self.kind not in ("storage", "transfer"):
            raise ValueError("store is of the kinds storage and transfer")
        if self.direction and self.kind != "transfer":
            raise ValueError("direction is of the kind transfer")
        return self

    def to_core(self) -> BillRule:
        """The rule."""
        patterns = tuple((plain(name), pattern) for name, pattern in self.match.items())
        kind = None if self.kind == "ignore" else BilledKind(self.kind)
        return BillRule(patterns, kind, self.pool or self.store, self.slot_type or self.direction)


class BillMappingFile(_Part):
    """A mapping file. Without `columns`, the format is one of those that are known."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    columns: MappedColumns | None = None
    rules: Annotated[list[MappedLines], Field(max_length=1000)] = Field(default_factory=list)

    def to_core(self) -> BillMapping:
        """The mapping."""
        columns = None if self.columns is None else self.columns.to_core()
        return BillMapping(columns, tuple(one.to_core() for one in self.rules))


def load_bill_mapping(path: Path) -> BillMapping:
    """Read a mapping file. Raises UserError for an unreadable one, SpecInvalid naming each problem."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise UserError(f"{path} is longer than {_MAX_BYTES} bytes")
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    try:
        return BillMappingFile.model_validate(read_yaml(text, str(path), "a mapping")).to_core()
    except ValidationError as error:
        problems = [
            Problem(".".join(str(part) for part in one["loc"]) or str(path), one["msg"])
            for one in error.errors(include_url=False)[:20]
        ]
        raise SpecInvalid(problems) from None
