"""The records of a rank's report file: their types, and the layout of the file.

A rank maps `PHALANX_REPORT_FILE`, writes a record behind the last one and only then moves the
committed length forward, so what was reported survives the rank's SIGKILL and a half-written record is
never read. The supervisor reads from its own position up to the committed length.

Layout, little endian::

    0   8 bytes   magic  b"PHXRPT\\0\\0"
    8   u32       protocol version (2)
    12  u32       pid of the writer
    16  u64       committed length: bytes of records after the header
    24  40 bytes  zero
    64  …         records: u32 length, then that many bytes of UTF-8 JSON

A record on disk is one JSON object: `k` is its kind, `t` the rank's wall clock in microseconds UTC, and
the other keys are the fields of its class below. A new kind is a class here with the decorator
`@_record("<kind>")`.

`epoch` counts passes over the training data, which in an ordinary loop is the user's epoch.
"""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, dataclass_transform

PROTOCOL = 2
MAGIC = b"PHXRPT\0\0"
HEADER_BYTES = 64
LENGTH_OFFSET = 16
_HEAD = struct.Struct("<8sIIQ")
_LEN = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_METRIC_HEAD = b'{"k":"metric",'


def _json_writer() -> Callable[[Any], str]:
    """The function that writes JSON without blanks; a training step writes three records.

    `JSONEncoder.encode` makes the C encoder anew for every call, which is half of its time.
    """
    plain = json.JSONEncoder(separators=(",", ":"), check_circular=False)
    make_encoder = getattr(json.encoder, "c_make_encoder", None)
    if make_encoder is None:
        return plain.encode
    text = json.encoder.encode_basestring_ascii
    write = make_encoder(None, plain.default, text, None, ":", ",", False, False, True)
    return lambda body: "".join(write(body, 0))


_write_json = _json_writer()


class Record:
    """One thing that a rank reports. Subclasses are frozen dataclasses of plain values."""

    __slots__ = ()
    kind: ClassVar[str]


_KINDS: dict[str, type[Record]] = {}


@dataclass_transform(frozen_default=True, kw_only_default=True)
def _record(kind: str, *, kw_only: bool = True) -> Callable[[type[Any]], type[Any]]:
    """Make a frozen dataclass of a class, and register it as the record of this kind."""

    def register(cls: type[Any]) -> type[Any]:
        cls.kind = kind
        made = dataclasses.dataclass(frozen=True, slots=True, kw_only=kw_only)(cls)
        _KINDS[kind] = made
        return made

    return register


@_record("phase", kw_only=False)
class PhaseRecord(Record):
    """The rank entered a phase: `ready` after its set-up, `evaluating` until the next step."""

    name: str


@_record("data")
class DataRecord(Record):
    """The training data, and where this generation continues in it (rank 0)."""

    num_samples: int
    global_batch: int | None = None
    drop_last: bool = False
    epochs: int | None = None
    epoch: int = 0
    position: int = 0


@_record("seed")
class SeedRecord(Record):
    """The seed of the run: what the script gave, or what a trial has in its place (rank 0)."""

    seed: int


@_record("params")
class ParamsRecord(Record):
    """Parameters that the script says it runs with, flattened (rank 0)."""

    values: Mapping[str, Any]


@_record("step")
class StepRecord(Record):
    """An optimizer step committed. `consumed` counts the positions of the epoch used so far."""

    step: int
    epoch: int = 0
    consumed: int = 0


@_record("ledger")
class LedgerRecord(Record):
    """Positions [lo, hi) of the epoch's order that this rank consumed for a step."""

    step: int = 0
    epoch: int
    lo: int
    hi: int


@_record("metric")
class MetricRecord(Record):
    """Values of one step. A value that is not finite is the string `nan`, `inf` or `-inf`."""

    step: int
    values: Mapping[str, float | str]


@_record("report")
class ReportRecord(Record):
    """The trial has completed so many units (rank 0). Numbers that are not finite are texts, as in metrics.

    `value` is that of the objective; None where the report did not have it.
    """

    unit: int
    value: float | str | None = None
    metrics: Mapping[str, float | str] = dataclasses.field(default_factory=dict)
    #: path or URL of the checkpoint that was committed at this unit; empty: none
    checkpoint: str = ""
    #: the trial's target: it goes on only if the target is raised
    final: bool = False


@_record("checkpoint")
class CheckpointRecord(Record):
    """A checkpoint was committed (rank 0)."""

    path: str  # its directory or URL
    name: str = ""  # `step-<step>-<hex>`
    step: int  # last step that it includes
    epoch: int | None = None  # the user's epoch
    #: positions of the epoch used before it was taken
    position: int = 0
    #: position in the lineage, from 1
    commit: int = 0
    bytes: int = 0  # of all its files
    #: seconds from the copy of the state to the commit
    save_s: float | None = None
    #: interval, stop, final, …
    why: str = ""
    #: the values most recently logged
    metrics: Mapping[str, float | str] = dataclasses.field(default_factory=dict)


@_record("uploaded")
class UploadedRecord(Record):
    """A checkpoint's copy is complete in the object store (rank 0). `bytes` were sent for it."""

    name: str
    bytes: int
    took_s: float


@_record("uploading")
class UploadingRecord(Record):
    """The copy of a checkpoint to the object store has begun, or was given up (rank 0)."""

    name: str
    bytes: int
    #: the copy was given up, because the checkpoint here is damaged
    failed: bool = False


@_record("restored")
class RestoredRecord(Record):
    """This generation continues from a checkpoint (rank 0). `why` names what makes it not exact."""

    path: str | None
    name: str = ""
    step: int = 0
    epoch: int = 0
    position: int = 0
    exact: bool = True
    why: str | None = None
    restore_s: float | None = None


@_record("removed", kw_only=False)
class RemovedRecord(Record):
    """Retention deleted a checkpoint."""

    path: str


@_record("quarantined")
class QuarantinedRecord(Record):
    """A checkpoint failed verification and was moved aside."""

    path: str
    moved_to: str = ""
    why: str = ""


@_record("stopped")
class StoppedRecord(Record):
    """The rank left at a stop request, or because its trial has reached its `target`."""

    saved: bool
    step: int
    #: the unit at which the trial pauses; None: a stop was requested
    target: int | None = None


@_record("done", kw_only=False)
class DoneRecord(Record):
    """The script's loop came to its end. `unsaved`: why its last checkpoint is missing."""

    step: int
    unsaved: str = ""


@_record("guard")
class GuardRecord(Record):
    """A training guard refused a step (rank 0). `ranks` are at fault, as far as is known."""

    step: int
    #: non_finite or spike
    what: str
    #: data, hardware or unknown
    origin: str
    #: skip, rollback, stop or applied
    action: str
    ranks: Sequence[int] = ()


@_record("stragglers")
class StragglersRecord(Record):
    """Compute times were compared (rank 0). `scores` are rows of values by rank."""

    scores: Sequence[Any]
    ranks: Sequence[int]


@_record("shares")
class SharesRecord(Record):
    """Batches are split anew between ranks (rank 0)."""

    shares: Sequence[float]
    compute_s: Sequence[float]


@_record("sync")
class WeightSyncRecord(Record):
    """Weights were exchanged. `bytes` is what this rank sent, without headers."""

    step: int
    fragment: int
    bytes: int
    seconds: float


@_record("compression")
class CompressionRecord(Record):
    """The method that `compression: auto` chose, with the median seconds of a step of each candidate."""

    step: int
    method: str
    median_s: Mapping[str, float | str]


@_record("profile")
class ProfileRecord(Record):
    """Where the steps of a profile spent their time (rank 0); see `core.telemetry.profiles`."""

    #: number of the request; 0: the script asked for it
    request: int
    first_step: int
    #: fields of `profiles.Split`, by rank
    splits: Sequence[Mapping[str, float | None]]
    finding: str
    said: str
    advice: str
    #: path of the merged trace; empty: none
    trace: str = ""
    notes: Sequence[str] = ()


@_record("save_begun")
class SaveBegunRecord(Record):
    """The ranks save at this step for a request of a user (rank 0)."""

    #: number of the request
    request: int
    step: int
    #: nothing could be saved
    failed: bool = False


SAVE_FAILED = "save_failed"
"""The code of the warning that a save failed which nothing else counts."""


@_record("warn", kw_only=False)
class WarningRecord(Record):
    """A sentence that the user has to see."""

    message: str
    #: what it is counted as: `SAVE_FAILED`; empty: as a warning only
    code: str = ""


class MetricPoint(NamedTuple):
    """The metrics of one rank at one step, as they travel from its supervisor into the store.

    As JSON, on the wire and in the database, it is the list `[rank, step, at, values]`.
    """

    rank: int
    step: int
    #: microseconds UTC; the supervisor's clock on the wire, the control plane's in the store
    at: int
    values: dict[str, float]


def _items(data: Any) -> list[Any]:
    if not isinstance(data, list | tuple):
        raise TypeError(f"{data!r} is not a list")
    return list(data)


def _table(data: Any) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        raise TypeError(f"{data!r} is not an object")
    return {str(name): value for name, value in data.items()}


def _values(data: Any) -> dict[str, float | str]:
    table = _table(data)
    return {name: v if isinstance(v, str) else float(v) for name, v in table.items()}


def _or_none(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda data: None if data is None else read(data)


# How a field is read back, by its annotation. What a user's process wrote is not trusted to have types.
_READERS: dict[str, Callable[[Any], Any]] = {
    "float | str | None": lambda data: (
        data if data is None or isinstance(data, str) else float(data)
    ),
    "int": int,
    "int | None": _or_none(int),
    "float | None": _or_none(float),
    "float": float,
    "str": str,
    "str | None": _or_none(str),
    "bool": bool,
    "Mapping[str, float | str]": _values,
    "Sequence[int]": lambda data: tuple(int(one) for one in _items(data)),
    "Sequence[float]": lambda data: tuple(float(one) for one in _items(data)),
    "Sequence[str]": lambda data: tuple(str(one) for one in _items(data)),
    "Sequence[Mapping[str, float | None]]": lambda data: tuple(map(_table, _items(data))),
    "Mapping[str, Any]": lambda data: dict(_table(data)),
    "Sequence[Any]": lambda data: tuple(_items(data)),
}


def _fields(cls: type[Record]) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(cls)  # type: ignore[arg-type]


_NAMES = {cls: ("k", *(one.name for one in _fields(cls)), "t") for cls in _KINDS.values()}
_GET = {cls: attrgetter("kind", *names[1:-1]) for cls, names in _NAMES.items()}
_READ = {
    cls: {one.name: _READERS[str(one.type)] for one in _fields(cls)} for cls in _KINDS.values()
}


def make(kind: str, fields: Mapping[str, Any]) -> Record:
    """A record from its kind and fields. Raises KeyError or TypeError for those that do not exist."""
    return _KINDS[kind](**fields)


def to_json(record: Record, at: int) -> dict[str, Any]:
    """The object that stands in the file; `at` is the time of the record, microseconds UTC."""
    kind = type(record)
    return dict(zip(_NAMES[kind], (*_GET[kind](record), at)))  # noqa: B905 (twice as slow)


def from_json(body: object) -> tuple[int, Record] | None:
    """The time and the record of an object of the file; None for a kind of a later release.

    Raises ValueError where a field is missing or does not have its type.
    """
    if not isinstance(body, Mapping):
        raise ValueError(f"not a record: {body!r:.100}")
    kind = body.get("k")
    cls = _KINDS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        return None
    readers = _READ[cls]
    try:
        known = {name: readers[name](value) for name, value in body.items() if name in readers}
        return int(body["t"]), cls(**known)
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise ValueError(f"not a record of kind {kind}: {error}") from error


def encode(record: Record, at: int) -> bytes:
    """A record as it stands in the file, with its length before it.

    Raises TypeError or ValueError when its values are not plain JSON.
    """
    return framed(to_json(record, at))


def framed(body: Mapping[str, Any]) -> bytes:
    """An object with its length before it. Raises TypeError or ValueError when it is not plain JSON."""
    try:
        text = _write_json(body).encode()
    except RecursionError as error:
        raise ValueError("an object within itself, or nested too deep") from error
    return _LEN.pack(len(text)) + text


def frames(chunk: bytes) -> Iterator[tuple[int, bytes]]:
    """Pairs of (offset just after the record, its JSON text) for every whole record in `chunk`."""
    at = 0
    while at + _LEN.size <= len(chunk):
        (size,) = _LEN.unpack_from(chunk, at)
        end = at + _LEN.size + size
        if end > len(chunk):
            return
        yield end, chunk[at + _LEN.size : end]
        at = end


def is_metric(frame: bytes) -> bool:
    """Whether the text is that of a `MetricRecord`, by its first bytes: `encode` writes the kind first."""
    return frame.startswith(_METRIC_HEAD)


def parse(frame: bytes) -> tuple[int, Record] | None:
    """The time and the record of one text of `frames`; None for a kind of a later release.

    Raises ValueError where it is not a record.
    """
    try:
        return from_json(json.loads(frame))
    except RecursionError as error:
        raise ValueError("not a record: nested too deep") from error


def decode(chunk: bytes) -> Iterator[tuple[int, Any]]:
    """Pairs of (offset just after the record, its JSON object) for every whole record in `chunk`."""
    return ((end, json.loads(frame)) for end, frame in frames(chunk))


def header(pid: int) -> bytes:
    """The first 64 bytes of a new report file."""
    return _HEAD.pack(MAGIC, PROTOCOL, pid, 0).ljust(HEADER_BYTES, b"\0")


def pack_length(committed: int) -> bytes:
    """The committed length as it stands in the file; eight aligned bytes, stored last."""
    return _U64.pack(committed)


def committed_length(head: bytes) -> int:
    """The committed length in a header; 0 while the file has not been set up.

    Raises ValueError when it is not a report file, or of a protocol this version does not read.
    """
    if len(head) < _HEAD.size or head[:8] == b"\0" * 8:
        return 0
    magic, version, _pid, length = _HEAD.unpack_from(head)
    if magic != MAGIC:
        raise ValueError("not a report file")
    if version != PROTOCOL:
        raise ValueError(
            f"the rank's phalanx writes report protocol {version}, this supervisor reads {PROTOCOL}: "
            "install the same release of phalanx for the script and for the platform"
        )
    return int(length)


def writer_pid(head: bytes) -> int | None:
    """The process that writes the file; None while the header has not been set up."""
    if len(head) < _HEAD.size or head[:8] != MAGIC:
        return None
    return int(_HEAD.unpack_from(head)[2])
