"""Read and write texts by digest, and what is known of the software, images and inputs of attempts.

Rows are written once: a supervisor that starts again in the same attempt replaces those of its node.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import select, text, tuple_

from phalanx.core.contract.provenance import InputFingerprint
from phalanx.errors import StoreCorrupt
from phalanx.store.database import Tx, read
from phalanx.store.engines.many_rows import run_many
from phalanx.store.schema.provenance import (
    attempt_images,
    attempt_inputs,
    attempt_software,
    provenance_texts,
)

_BATCH = 500
_INSERT_IMAGE = attempt_images.insert()
_INSERT_TEXT = text(
    "INSERT INTO provenance_texts (digest, size_bytes, body, created_at) "
    "VALUES (:digest, :size_bytes, :body, :created_at) ON CONFLICT DO NOTHING"
)


@dataclass(frozen=True, slots=True)
class SoftwareRow:
    """The software on one node of an attempt, by the digest of its text."""

    job: int
    attempt: int
    node_rank: int
    digest: str
    at: int  # µs UTC


@dataclass(frozen=True, slots=True)
class ImageRow:
    """The image that the ranks on one node of an attempt ran in, with its digest."""

    job: int
    attempt: int
    node_rank: int
    image: str
    at: int  # µs UTC


@dataclass(frozen=True, slots=True)
class InputRow:
    """One input on one node of an attempt."""

    job: int  # job number
    attempt: int  # number in the job
    node_rank: int  # of the node in the gang
    name: str  # in the spec's section `data`
    place: str  # path or URL
    num_files: int  # files
    size_bytes: int  # of all files
    fingerprint: str  # kind and digest
    at: int  # µs UTC

    @property
    def value(self) -> InputFingerprint:
        """The row as a value of the core."""
        return InputFingerprint(
            self.name, self.place, self.num_files, self.size_bytes, self.fingerprint
        )


def put_text(tx: Tx, body: str, now: int) -> str:
    """Store a text unless it is there; returns its digest."""
    data = body.encode("utf-8", "replace")
    digest = hashlib.sha256(data).hexdigest()
    values = {"digest": digest, "size_bytes": len(data), "created_at": now}
    tx.conn.execute(_INSERT_TEXT, values | {"body": zlib.compress(data)})
    return digest


def texts(tx: Tx, digests: Collection[str]) -> dict[str, str]:
    """The texts that are stored, by digest. Raises StoreCorrupt for one that does not match its digest."""
    here = provenance_texts.c
    wanted = sorted(set(digests))
    found: Mapping[str, bytes] = {
        row.digest: row.body
        for row in tx.conn.execute(select(here.digest, here.body).where(here.digest.in_(wanted)))
    }
    whole: dict[str, str] = {}
    for digest, body in found.items():
        try:
            data = zlib.decompress(body)
        except zlib.error as error:
            raise StoreCorrupt(f"the text {digest} is damaged: {error}") from error
        if hashlib.sha256(data).hexdigest() != digest:
            raise StoreCorrupt(f"the text {digest} does not match its digest")
        whole[digest] = data.decode("utf-8", "replace")
    return whole


def put_software(tx: Tx, row: SoftwareRow) -> None:
    """Store the software of a node in an attempt, in place of an earlier report."""
    here = attempt_software.c
    own = (here.job == row.job) & (here.attempt == row.attempt) & (here.node_rank == row.node_rank)
    tx.conn.execute(attempt_software.delete().where(own))
    values = {"job": row.job, "attempt": row.attempt, "node_rank": row.node_rank}
    tx.conn.execute(attempt_software.insert(), values | {"digest": row.digest, "at": row.at})


def put_inputs(
    tx: Tx, key: tuple[int, int, int], inputs: Sequence[InputFingerprint], at: int
) -> None:
    """Store the inputs of a node in an attempt, in place of an earlier report.

    `key` is the job, the attempt and the node rank.
    """
    here = attempt_inputs.c
    job, attempt, node = key
    own = (here.job == job) & (here.attempt == attempt) & (here.node_rank == node)
    tx.conn.execute(attempt_inputs.delete().where(own))
    rows = [
        {
            "job": job,
            "attempt": attempt,
            "node_rank": node,
            "name": one.name,
            "place": one.place,
            "num_files": one.num_files,
            "size_bytes": one.size_bytes,
            "fingerprint": one.fingerprint,
            "at": at,
        }
        for one in inputs
    ]
    if rows:
        tx.conn.execute(attempt_inputs.insert(), rows)


def put_images(tx: Tx, fresh: Sequence[ImageRow]) -> None:
    """Store the images of nodes, each row once."""
    run_many(tx.conn, _INSERT_IMAGE, [asdict(one) for one in fresh])


def images_of_attempts(tx: Tx, attempts: Collection[tuple[int, int]]) -> list[ImageRow]:
    """The images of some attempts, each (job, attempt)."""
    here, wanted, found = attempt_images.c, sorted(attempts), list[ImageRow]()
    for start in range(0, len(wanted), _BATCH):
        some = tuple_(here.job, here.attempt).in_(wanted[start : start + _BATCH])
        found += read(tx, ImageRow, select(attempt_images).where(some))
    return found


def images_of(tx: Tx, job: int) -> list[ImageRow]:
    """The images of a job, by attempt and node rank."""
    here = attempt_images.c
    query = select(attempt_images).where(here.job == job)
    return read(tx, ImageRow, query.order_by(here.attempt, here.node_rank))


def software_of(tx: Tx, job: int) -> list[SoftwareRow]:
    """The reports about software of a job, by attempt and node rank."""
    here = attempt_software.c
    query = select(attempt_software).where(here.job == job)
    return read(tx, SoftwareRow, query.order_by(here.attempt, here.node_rank))


def inputs_of(tx: Tx, job: int) -> list[InputRow]:
    """The reports about inputs of a job, by attempt, node rank and name."""
    here = attempt_inputs.c
    query = select(attempt_inputs).where(here.job == job)
    return read(tx, InputRow, query.order_by(here.attempt, here.node_rank, here.name))
