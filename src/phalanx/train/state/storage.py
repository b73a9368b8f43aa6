"""Optional storage layers of checkpoints: remote copy, encryption, compression."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from phalanx.checkpoint import CheckpointListing
from phalanx.checkpoint.compression import FileCompression, compression_for
from phalanx.checkpoint.encryption import AesGcmEncryption, Encryption
from phalanx.checkpoint.remote_tier import CheckpointTier, RemoteTier, known
from phalanx.checkpoint.store_first.tier import StoreFirstTier
from phalanx.core.contract.records import WarningRecord, make
from phalanx.core.training.checkpoints import Manifest
from phalanx.train.gang.context import RankInfo
from phalanx.train.gang.report import Report
from phalanx.train.gang.search_turn import own_uid
from phalanx.train.gang.shared_folder import Collectives, refusal, strangers

UPLOAD_LIMIT_S = 600.0  # after the last step of a run that was not asked to stop
_SHARE_OF_GRACE = 0.4
_FAILED_LIMIT_S = 0.5


@dataclass(frozen=True, slots=True)
class CheckpointStorage:
    """The storage layers of a run's checkpoints; by default plain files in their folder."""

    tier: CheckpointTier = field(default_factory=CheckpointTier)
    encryption: Encryption = field(default_factory=Encryption)
    compression: FileCompression = field(default_factory=FileCompression)
    store_first: StoreFirstTier | None = None
    """The tier again, where checkpoints are committed in the object store and not in a folder."""

    def known(self, listing: CheckpointListing, report: Report) -> dict[str, Manifest]:
        """Return the manifests of both tiers by name; see `remote_tier.known`."""
        near = [one.manifest for one in listing.good]
        return known(self.tier, near, lambda said: report.write(WarningRecord(said)))

    def finish(self, why: str, grace_s: float) -> None:
        """Wait for uploads as long as the end of the run allows; `why` is that of its last save.

        After a complete run to their end, after a stop for a share of the grace period. A rank that fails
        must not keep the others waiting: the next generation goes on with the uploads.
        """
        limits = {"final": UPLOAD_LIMIT_S, "stop": grace_s * _SHARE_OF_GRACE}
        self.tier.finish(limits.get(why, _FAILED_LIMIT_S))


def storage_for(info: RankInfo, report: Report, channel: Collectives) -> CheckpointStorage:
    """Return the storage layers of this rank, after all have agreed whether they share a folder.

    With a shared folder rank 0 has the store, without one every rank. Collective. Raises NotSupported;
    UserError or CheckpointUnavailable where the ranks share neither a folder nor a store.
    """
    encryption: Encryption = AesGcmEncryption(info.keys) if info.keys else Encryption()
    compression = compression_for(info.checkpoint.compress)
    folder, url, keep = info.checkpoint_dir, info.checkpoint.store, info.checkpoint.keep
    if folder is None:
        return CheckpointStorage(CheckpointTier(), encryption, compression)

    def tell(kind: str, said: Mapping[str, Any]) -> None:
        report.write(make(kind, said))

    if apart := strangers(folder, info, channel):
        if url is None:
            raise refusal(folder, apart, info)
        order, shared = (info.attempt, info.generation), info.local_world_size > 1
        first = StoreFirstTier(url, folder, keep, tell, order, shared=shared)
        return CheckpointStorage(first, encryption, compression, first)
    tier: CheckpointTier = CheckpointTier()
    if info.is_main and url is not None:
        tier = RemoteTier(url, folder, keep, tell, job_uid=own_uid(info))
    return CheckpointStorage(tier, encryption, compression)
