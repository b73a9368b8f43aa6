"""Tables by subject, on the metadata of `store.tables`, which holds those of jobs and the platform.

`metadata` has every table here: what makes or copies a database takes it from this package.
"""

from phalanx.store.schema import (
    experiments,
    listings,
    logs,
    metrics,
    money,
    notify,
    provenance,
    retention,
    storage,
)
from phalanx.store.tables import metadata

__all__ = [
    "experiments",
    "listings",
    "logs",
    "metadata",
    "metrics",
    "money",
    "notify",
    "provenance",
    "retention",
    "storage",
]
