"""Federated training: sites that never share data, and a coordinator that only sees weights.

A `Coordinator` holds the model; a `Site` gets it, trains on data of its own, and gives back weights, the
number of samples and metrics. Nothing else crosses.
"""

from __future__ import annotations

from phalanx.train.federated.coordinator import Coordinator, site_token
from phalanx.train.federated.site import Site

__all__ = ["Coordinator", "Site", "site_token"]
