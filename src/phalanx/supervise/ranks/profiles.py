"""Passes a request for a profile on: a file beside rank 0's report, which that rank looks for.

The gang's ranks agree on the step among themselves, so only rank 0's node has anything to do.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable

from phalanx.schemas.wire.supervision import ProfileOrder
from phalanx.supervise.ranks.rank import LocalRank

_LOG = logging.getLogger(__name__)


def ask(ranks: Iterable[LocalRank], order: ProfileOrder | None) -> None:
    """Have rank 0, where it is one of these, see the newest request; may be repeated."""
    first = next((rank for rank in ranks if rank.rank == 0), None)
    if order is None or first is None or not first.running:
        return
    fresh = first.profile_file.with_name(first.profile_file.name + ".new")
    text = json.dumps(order.model_dump())
    try:
        if first.profile_file.exists() and first.profile_file.read_text() == text:
            return
        fresh.write_text(text)
        os.replace(fresh, first.profile_file)
    except OSError as error:
        _LOG.warning("a profile cannot be asked for: %s", error)
