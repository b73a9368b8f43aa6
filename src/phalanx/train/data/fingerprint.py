"""The fingerprint of a data set, which detects a resume on other data.

A data set may say it by itself: `fingerprint()`, or an attribute of that name, as the readers do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from phalanx.checkpoint.digest import Digest, digest_of
from phalanx.errors import RestoreMismatch

REFUSE, ALLOW = "refuse", "allow"
_ROWS = 256


def fingerprint_of(dataset: Any) -> str | None:
    """Return `kind:digest`, or None for data without a fingerprint."""
    said = getattr(dataset, "fingerprint", None)
    if said is not None:
        return str(said() if callable(said) else said)
    if type(dataset) is TensorDataset:
        return _of_tensors(dataset.tensors)
    if type(dataset) is Subset:
        inner = fingerprint_of(dataset.dataset)
        rows = torch.as_tensor(dataset.indices, dtype=torch.int64).numpy().tobytes()
        return None if inner is None else f"subset:{digest_of(inner.encode() + rows)}"
    if isinstance(dataset, ConcatDataset):
        parts = [fingerprint_of(one) for one in dataset.datasets]
        known = [one for one in parts if one is not None]
        text = "\n".join(known).encode()
        return f"concatenated:{digest_of(text)}" if len(known) == len(parts) else None
    return None


def _of_tensors(tensors: tuple[torch.Tensor, ...]) -> str:
    """Return a digest of shapes, types, and evenly spaced rows of each tensor."""
    digest = Digest()
    for one in tensors:
        digest.update(f"{one.dtype}{tuple(one.shape)}".encode())
        if len(one):
            rows = torch.linspace(0, len(one) - 1, min(_ROWS, len(one))).long()
            picked = one.detach()[rows.to(one.device)].cpu().contiguous()
            digest.update(picked.view(-1).view(torch.uint8).numpy().tobytes())
    return f"tensors:{digest.text}"


def changes(saved: Mapping[str, Any], live: Mapping[str, Any]) -> list[str]:
    """List how the data differ from a checkpoint's description; missing fields are not compared.

    A data set that was indexed in between has another kind of fingerprint: only its length counts.
    """
    found = []
    was, now = saved.get("num_samples"), live.get("num_samples")
    if was is not None and now is not None and was != now:
        found.append(f"{now} samples per epoch, the checkpoint has {was}")
    was, now = saved.get("fingerprint"), live.get("fingerprint")
    if was and now and was != now and _kind(was) == _kind(now):
        found.append(f"fingerprint {now}, the checkpoint has {was}")
    return found


def _kind(fingerprint: str) -> str:
    return fingerprint.rpartition(":")[0]


def describe(dataset: Any, num_samples: int, agree: Callable[[str, str], None]) -> dict[str, Any]:
    """Return the description of the data for a checkpoint. `agree` compares a text over all ranks."""
    found = fingerprint_of(dataset)
    agree("the fingerprint of the data set", str(found))
    return {"num_samples": num_samples, "fingerprint": found}


def require_same(saved: Mapping[str, Any], live: Mapping[str, Any], where: str) -> None:
    """Raise RestoreMismatch when a checkpoint was written for other data."""
    found = changes(saved, live)
    if found:
        raise RestoreMismatch(
            f"the data set is not the one of {where}: {'; '.join(found)}",
            "resume on the same data, start a new job, or set data_changed: allow (init(data_changed="
            '"allow")) to continue at the same position in the new data',
        )
