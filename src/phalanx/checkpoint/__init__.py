"""The layout of a checkpoint for every framework: manifest, digests, commit, verify, retain.

Never imports torch, and never unpickles a byte: `tensorfile` describes the format. `disk` is the seam
to the file system, `commit` the protocol that makes a checkpoint absent or whole, `catalog` what can
be done with a directory of them.
"""

from phalanx.checkpoint.catalog import (
    CheckpointListing,
    CommittedCheckpoint,
    ScrubReport,
    clean_debris,
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
from phalanx.checkpoint.disk import Disk, LocalDisk
from phalanx.checkpoint.verified_reads import VerifiedFile

__all__ = [
    "CheckpointListing",
    "CheckpointWriter",
    "CommittedCheckpoint",
    "Disk",
    "LocalDisk",
    "ScrubReport",
    "VerifiedFile",
    "clean_debris",
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
