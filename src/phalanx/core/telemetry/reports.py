"""What a rank tells its supervisor: an append-only mapped file of small JSON records.

A rank maps `PHALANX_REPORT_FILE`, writes a record behind the last one and only then moves the
committed length forward, so what was reported survives the rank's SIGKILL and a half-written record is
never read. The supervisor reads from its own position up to the committed length.

Layout, little endian::

    0   8 bytes   magic  b"PHXRPT\\0\\0"
    8   u32       protocol version (1)
    12  u32       pid of the writer
    16  u64       committed length: bytes of records after the header
    24  40 bytes  zero
    64  …         records: u32 length, then that many bytes of UTF-8 JSON

Every record is an object with `k`, its kind, and `t`, the rank's wall clock in microseconds:

    {"k": "phase", "name": "ready"}                               set-up finished, training begins;
                                                                  "evaluating": until the next step
    {"k": "data", "num_samples": …, "global_batch": …, "drop_last": …, "epochs": …,
     "epoch": …, "position": …}                                   what is iterated, and where this
                                                                  generation takes up (fresh: 0, 0)
    {"k": "step", "step": 120, "epoch": 1, "consumed": 5760}      an optimizer step has committed;
                                                                  positions of the epoch now consumed
    {"k": "ledger", "step": 120, "epoch": 1, "lo": 96, "hi": 144} positions of the epoch's order this
                                                                  rank consumed for that step
    {"k": "metric", "step": 120, "v": {"loss": 0.31}}             values of one step; what is not finite
                                                                  is the string "nan", "inf" or "-inf"
    {"k": "checkpoint", "path": …, "name": …, "step": …, "epoch": …, "position": …, "commit": …,
     "bytes": …, "save_s": …, "why": …, "metrics": {…}}           a checkpoint was committed (rank 0)
    {"k": "restored", "path": …, "name": …, "step": …, "epoch": …, "position": …,
     "exact": true, "why": null}                                  this generation continues from there;
                                                                  `why` names what makes it not exact
    {"k": "removed", "path": …}                                   retention let a checkpoint go
    {"k": "quarantined", "path": …, "moved_to": …, "why": …}      a checkpoint failed verification
    {"k": "stopped", "saved": true, "step": …}                    left at a stop request
    {"k": "done", "step": …}                                      the script's loop came to its end
    {"k": "guard", "step": …, "what": "non_finite" | "spike", "origin": "data" | "hardware" | "unknown",
     "action": "skip" | "rollback" | "stop" | "applied",
     "ranks": […]}                                                a step was refused (rank 0), and
                                                                  which ranks are at fault
    {"k": "stragglers", "scores": […], "ranks": […]}              compute times compared (rank 0)
    {"k": "shares", "shares": […], "compute_s": […]}              batches are split anew (rank 0)
    {"k": "sync", "step": …, "fragment": …, "bytes": …, "seconds": …}
                                                                  weights were exchanged; bytes this
                                                                  rank sent, without headers
    {"k": "profile", "request": …, "first_step": …, "splits": […], "finding": …, "said": …,
     "advice": …, "trace": …, "notes": […]}                       where steps spent their time (rank 0)
    {"k": "warn", "message": …}                                   worth showing to the user

`epoch` in `data`, `ledger`, `step`, `checkpoint` and `restored` counts passes over the training data,
which in an ordinary loop is the user's epoch.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any

PROTOCOL = 1
MAGIC = b"PHXRPT\0\0"
HEADER_BYTES = 64
LENGTH_OFFSET = 16
_HEAD = struct.Struct("<8sIIQ")
_LEN = struct.Struct("<I")
_U64 = struct.Struct("<Q")
# Made once: a training step writes three records.
_JSON = json.JSONEncoder(separators=(",", ":"))


def header(pid: int) -> bytes:
    """The first 64 bytes of a new report file."""
    return _HEAD.pack(MAGIC, PROTOCOL, pid, 0).ljust(HEADER_BYTES, b"\0")


def pack_length(committed: int) -> bytes:
    """The committed length as it stands in the file; eight aligned bytes, stored last."""
    return _U64.pack(committed)


def encode(record: Mapping[str, Any]) -> bytes:
    """One framed record. Raises TypeError or ValueError when it is not plain JSON."""
    body = _JSON.encode(record).encode()
    return _LEN.pack(len(body)) + body


def committed_length(head: bytes) -> int:
    """The committed length in a header; 0 while the file has not been set up.

    Raises ValueError when it is not a report file, or of a protocol this version does not speak.
    """
    if len(head) < _HEAD.size or head[:8] == b"\0" * 8:
        return 0
    magic, version, _pid, length = _HEAD.unpack_from(head)
    if magic != MAGIC:
        raise ValueError("not a report file")
    if version != PROTOCOL:
        raise ValueError(f"report protocol {version}, expected {PROTOCOL}")
    return int(length)


def writer_pid(head: bytes) -> int | None:
    """The process that writes the file; None while the header has not been set up."""
    if len(head) < _HEAD.size or head[:8] != MAGIC:
        return None
    return int(_HEAD.unpack_from(head)[2])


def decode(chunk: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    """Pairs of (offset just after the record, record) for every whole record in `chunk`."""
    at = 0
    while at + _LEN.size <= len(chunk):
        (size,) = _LEN.unpack_from(chunk, at)
        end = at + _LEN.size + size
        if end > len(chunk):
            return
        yield end, json.loads(chunk[at + _LEN.size : end])
        at = end
