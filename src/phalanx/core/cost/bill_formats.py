"""Read rows of billing exports as lines of a bill: the columns of each format, and what a line is for.

Column names are compared by their letters and digits alone: `lineItem/UsageStartDate` of an older export is
`line_item_usage_start_date` of a newer one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from fnmatch import fnmatchcase

from phalanx.core.cost.bills import BilledKind, BillLine
from phalanx.core.cost.ledger import DAY_US
from phalanx.core.cost.prices import NANO

CURRENCY = "USD"
MOST_COLUMNS = 2000
MOST_DAYS = 400
"""Days that one line may be for."""
MOST_USD = 1_000_000_000
_MOST_PLACE, _MOST_TYPE, _MOST_ID = 256, 128, 128
_TAGS = {"phalanxpool": "pool", "phalanxstore": "store", "phalanxslottype": "slot_type"}
_TAG_PREFIXES = ("", "user", "resourcetagsuser", "tag", "label")


@dataclass(frozen=True, slots=True)
class BillColumns:
    """The columns of a format; of each list the first one that a file has counts."""

    name: str  # of the format, for users
    cost: tuple[str, ...]  # money
    begin: tuple[str, ...]  # the first time or day that a line is for
    end: tuple[str, ...] = ()  # the time at which it ends; absent: the line is for a day
    currency: tuple[str, ...] = ()  # its code
    id: tuple[
        str, ...
    ] = ()  # all of those that a file has make the id; absent: a digest of the line
    about: tuple[str, ...] = ()  # all of those that a file has say what a line is for
    resource: tuple[str, ...] = ()  # the resource, such as a bucket
    tags: tuple[str, ...] = ()  # a JSON object, or a list of keys and values


FORMATS = (
    BillColumns(
        "phalanx",
        cost=("usd",),
        begin=("from", "day"),
        end=("to",),
        currency=("currency",),
        id=("id",),
        about=("kind",),
    ),
    BillColumns(
        "AWS Cost and Usage Report",
        cost=("lineitemunblendedcost",),
        begin=("lineitemusagestartdate",),
        end=("lineitemusageenddate",),
        currency=("lineitemcurrencycode",),
        id=("identitylineitemid", "identitytimeinterval"),
        about=("lineitemproductcode", "lineitemusagetype", "productproductfamily"),
        resource=("lineitemresourceid",),
        tags=("resourcetags", "tags"),
    ),
    BillColumns(
        "FOCUS",
        cost=("billedcost",),
        begin=("chargeperiodstart",),
        end=("chargeperiodend",),
        currency=("billingcurrency",),
        about=("servicecategory", "servicename", "chargedescription", "skuid"),
        resource=("resourceid",),
        tags=("tags",),
    ),
    BillColumns(
        "Google Cloud billing export",
        cost=("cost", "unroundedcost"),
        begin=("usagestarttime", "usagestartdate"),
        end=("usageendtime",),
        currency=("currency",),
        about=("servicedescription", "skudescription"),
        resource=("resourcename",),
        tags=("labels",),
    ),
    BillColumns(
        "Azure cost details",
        cost=("costinbillingcurrency", "pretaxcost"),
        begin=("date", "usagedate", "usagedatetime"),
        currency=("billingcurrency", "billingcurrencycode", "currency"),
        about=("metercategory", "metersubcategory", "metername"),
        resource=("resourceid", "resourcename"),
        tags=("tags",),
    ),
)
# Words of what a line is for, in the order in which they are looked for. Transfer goes first: a line of
# a machine may be for its traffic. Disks and memory of machines are part of the machine.
_WORDS: tuple[tuple[BilledKind, tuple[str, ...]], ...] = (
    (
        BilledKind.TRANSFER,
        (
            "datatransfer",
            "data transfer",
            "egress",
            "bandwidth",
            "networking",
            "-bytes",
            "network ",
        ),
    ),
    (
        BilledKind.STORAGE,
        ("timedstorage", "cloud storage", "amazons3", "object storage", "blob", "storage"),
    ),
    (
        BilledKind.SLOT,
        ("boxusage", "spotusage", "compute", "virtual machines", "instance", "amazonec2", "gpu"),
    ),
)
_SCHEMES = (("amazons3", "s3"), ("cloud storage", "gs"))


@dataclass(frozen=True, slots=True)
class BillRule:
    """A rule of a mapping: what matching lines are for; `*` and `?` stand for any text."""

    match: tuple[tuple[str, str], ...]  # columns with patterns; all must match
    kind: BilledKind | None  # None: the lines are left out
    place: str = ""
    slot_type: str = ""


@dataclass(frozen=True, slots=True)
class BillMapping:
    """What a mapping file says: the columns of another format, and rules; the first that matches counts."""

    columns: BillColumns | None = None
    rules: tuple[BillRule, ...] = ()


class BillFault(ValueError):
    """A column or a cell of a bill that cannot be read, with what would be right."""


def plain(name: str) -> str:
    """A column name as it is compared."""
    return "".join(one for one in name.lower() if one.isalnum())


@dataclass(frozen=True, slots=True)
class BillReader:
    """Reads the rows of one file, by the columns that its first line names."""

    columns: BillColumns  # of the format
    names: tuple[str, ...]  # of all columns, as they are compared, in the order of the file
    rules: tuple[BillRule, ...] = ()  # of the mapping

    def read(self, cells: Sequence[str]) -> BillLine | None:
        """A row as a line; None: a rule leaves it out. Raises BillFault."""
        if len(cells) != len(self.names):
            said = f"it has {len(cells)} cells where the first line has {len(self.names)} columns"
            raise BillFault(said)
        row = dict(zip(self.names, (cell.strip() for cell in cells), strict=True))
        self._check_currency(row)
        nano_usd = _money(self._cell(row, self.columns.cost), self.columns.cost[0])
        begin, end = self._period(row)
        rule = next((one for one in self.rules if _matches(one, row)), None)
        if rule is not None and rule.kind is None:
            return None
        if rule is not None and rule.kind is not None:
            kind, place, slot_type = rule.kind, rule.place, rule.slot_type
        else:
            kind, place, slot_type = self._meaning(row)
        for text, most in ((place, _MOST_PLACE), (slot_type, _MOST_TYPE)):
            if len(text) > most or not text.isprintable():
                raise BillFault(f"{text[:40]!r} is longer than {most} characters, or not printable")
        return BillLine(self._id(row), begin, end, kind, place, slot_type, nano_usd)

    def _cell(self, row: Mapping[str, str], names: Iterable[str]) -> str:
        return next((row[name] for name in names if name in row), "")

    def _check_currency(self, row: Mapping[str, str]) -> None:
        code = self._cell(row, self.columns.currency)
        if code and code.upper() != CURRENCY:
            raise BillFault(
                f"the currency is {code[:20]!r}; the ledger is in {CURRENCY}: convert the bill first"
            )

    def _period(self, row: Mapping[str, str]) -> tuple[int, int]:
        begin, is_day = _moment(self._cell(row, self.columns.begin), self.columns.begin[0])
        text = self._cell(row, self.columns.end)
        end = begin + (DAY_US if is_day else 0)
        if text:
            end, _ = _moment(text, self.columns.end[0])
        if end < begin or end - begin > MOST_DAYS * DAY_US:
            raise BillFault(f"the line ends before it begins, or is for more than {MOST_DAYS} days")
        return begin, end

    def _id(self, row: Mapping[str, str]) -> str:
        known = [row[name] for name in self.columns.id if row.get(name)]
        if known and self.columns.id[0] in row and row[self.columns.id[0]]:
            text = " ".join(known)
            if len(text) <= _MOST_ID and text.isprintable():
                return text
        else:
            # The order of the columns does not matter.
            text = "\x1f".join(f"{name}={row[name]}" for name in sorted(row))
        return f"sha256:{hashlib.sha256(text.encode(errors='replace')).hexdigest()}"

    def _meaning(self, row: Mapping[str, str]) -> tuple[BilledKind, str, str]:
        """What a line is for, from the words of its columns and from its tags."""
        if self.columns.name == "phalanx":
            return _own_meaning(row)
        said = " ".join(row.get(name, "") for name in self.columns.about).lower()
        kind = next((one for one, words in _WORDS if any(word in said for word in words)), None)
        tags = dict(_tags(row, self.columns))
        if tags.get("pool"):
            return BilledKind.SLOT, tags["pool"], tags.get("slot_type", "")
        if kind in (BilledKind.STORAGE, BilledKind.TRANSFER):
            return kind, tags.get("store") or self._bucket(row, said), ""
        return kind or BilledKind.OTHER, "", tags.get("slot_type", "")

    def _bucket(self, row: Mapping[str, str], said: str) -> str:
        """The URL of a bucket, of stores that name it."""
        name = self._cell(row, self.columns.resource).rpartition("/")[2].rpartition(":")[2]
        scheme = next((one for word, one in _SCHEMES if word in said), "")
        return f"{scheme}://{name}" if name and scheme else ""


def bill_reader(header: Sequence[str], mapping: BillMapping | None = None) -> BillReader:
    """The reader of a file, from its first line. Raises BillFault for columns of no known format."""
    mapping = mapping or BillMapping()
    if len(header) > MOST_COLUMNS:
        raise BillFault(f"it has {len(header)} columns; {MOST_COLUMNS} are the limit")
    names = tuple(plain(name) for name in header)
    twice = sorted({name for name in names if names.count(name) > 1}) if len(names) < 200 else []
    if mapping.columns is not None:
        missing = [
            one for one in (mapping.columns.cost[0], mapping.columns.begin[0]) if one not in names
        ]
        if missing:
            raise BillFault(f"it has no column {missing[0]!r}, which the mapping names")
        found = mapping.columns
    else:
        known = [one for one in FORMATS if _has(names, one.cost) and _has(names, one.begin)]
        if not known:
            said = ", ".join(f"{one.name} ({one.cost[0]}, {one.begin[0]})" for one in FORMATS)
            raise BillFault(f"its columns are of no known format: {said}; or give --mapping FILE")
        found = known[0]
    needed = {*found.cost, *found.begin, *found.end, *found.currency}
    if needed & set(twice):
        raise BillFault(f"the column {min(needed & set(twice))!r} is there twice")
    unique = _unique(names)
    return BillReader(found, unique, mapping.rules)


def _unique(names: Sequence[str]) -> tuple[str, ...]:
    """Names that are there twice, such as tags that differ in their punctuation, get a number."""
    seen: dict[str, int] = {}
    found = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return tuple(found)


def _has(names: Sequence[str], wanted: Iterable[str]) -> bool:
    return any(one in names for one in wanted)


def _matches(rule: BillRule, row: Mapping[str, str]) -> bool:
    return all(
        fnmatchcase(row.get(name, "").lower(), pattern.lower()) for name, pattern in rule.match
    )


def _money(text: str, column: str) -> int:
    try:
        amount = Decimal(text)
    except InvalidOperation:
        raise BillFault(f"{column}: {text[:40]!r} is no number; write one such as 12.50") from None
    if not amount.is_finite() or amount.copy_abs() > MOST_USD:
        raise BillFault(f"{column}: {text[:40]!r} is more than {MOST_USD} US dollars") from None
    return int((amount * NANO).to_integral_value(rounding=ROUND_HALF_EVEN))


_DAY_FORMATS = ("%Y-%m-%d", "%m/%d/%Y", "%Y%m%d")


def _moment(text: str, column: str) -> tuple[int, bool]:
    """A time in microseconds UTC, and whether it is a day."""
    for form in _DAY_FORMATS:
        try:
            return _us(datetime.strptime(text, form).replace(tzinfo=UTC)), True
        except ValueError:
            continue
    try:
        found = datetime.fromisoformat(text.removesuffix(" UTC"))
        at = _us(found if found.tzinfo is not None else found.replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        said = "write one such as 2026-11-01 or 2026-11-01T06:00:00Z"
        raise BillFault(f"{column}: {text[:40]!r} is no time; {said}") from None
    if not 0 <= at < 4_102_444_800_000_000:
        raise BillFault(f"{column}: {text[:40]!r} is not between 1970 and 2100")
    return at, False


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _us(at: datetime) -> int:
    since = at - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _own_meaning(row: Mapping[str, str]) -> tuple[BilledKind, str, str]:
    """What a line of the own format is for: its columns say so."""
    try:
        kind = BilledKind(row.get("kind", "").lower() or BilledKind.SLOT)
    except ValueError:
        said = ", ".join(one.value for one in BilledKind)
        raise BillFault(f"kind: {row['kind'][:40]!r} is not one of {said}") from None
    if kind is BilledKind.SLOT:
        return kind, row.get("pool", ""), row.get("slottype", "")
    if kind is BilledKind.OTHER:
        return kind, "", ""
    return (
        kind,
        row.get("store", ""),
        row.get("direction", "") if kind is BilledKind.TRANSFER else "",
    )


def _tags(row: Mapping[str, str], columns: BillColumns) -> Iterator[tuple[str, str]]:
    """The tags of the platform: `phalanx-pool`, `phalanx-store` and `phalanx-slot-type`."""
    for name, value in row.items():
        for prefix in _TAG_PREFIXES:
            if name.startswith(prefix) and name.removeprefix(prefix) in _TAGS and value:
                yield _TAGS[name.removeprefix(prefix)], value
    for column in columns.tags:
        for name, value in _tag_pairs(row.get(column, "")):
            key = plain(name)
            short = next(
                (key.removeprefix(one) for one in _TAG_PREFIXES if key.removeprefix(one) in _TAGS),
                "",
            )
            if short and value:
                yield _TAGS[short], value


def _tag_pairs(text: str) -> Iterator[tuple[str, str]]:
    """The pairs of a JSON object, of a list of keys and values, or of an object without its braces."""
    if not text or "phalanx" not in text.lower() or len(text) > 1 << 16:
        return
    for candidate in (text, f"{{{text}}}"):
        try:
            found = json.loads(candidate)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            yield from ((str(name), str(value)) for name, value in found.items())
        elif isinstance(found, list):
            pairs = [one for one in found if isinstance(one, dict)]
            yield from ((str(one.get("key")), str(one.get("value"))) for one in pairs)
        return
