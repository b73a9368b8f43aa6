"""Checkpoint storage for all frameworks: manifest, digests, commit, verification, retention.

Never imports torch, and never unpickles a byte: `tensorfile` describes the format. `disk` is the
interface to the file system, `commit` the atomic commit protocol, `catalog` the operations on a
directory of checkpoints.
"""

from phalanx.checkpoint.catalog import (
    CheckpointListing,
    CommittedCheckpoint,
    ScrubReport,
    clean_debris,
    is_bad,
    is_quarantined_as,
    list_checkpoints,
    newest_valid,
    quarantine,
    read_manifest,
    remove,
    resume_order,
    retain,
    scan,
    scrub,
    verify,
    verify_share,
)
from phalanx.checkpoint.commit import CheckpointWriter, write_shard
from phalanx.checkpoint.disk import Disk
from phalanx.checkpoint.verified_reads import VerifiedFile, is_there

__all__ = [
    "CheckpointListing",
    "CheckpointWriter",
    "CommittedCheckpoint",
    "Disk",
    "ScrubReport",
    "VerifiedFile",
    "clean_debris",
    "is_bad",
    "is_quarantined_as",
    "is_there",
    "list_checkpoints",
    "newest_valid",
    "quarantine",
    "read_manifest",
    "remove",
    "resume_order",
    "retain",
    "scan",
    "scrub",
    "verify",
    "verify_share",
    "write_shard",
]
