"""Give the series of earlier releases their least and most value, from samples or roll-ups.

Called by a migration, a page of series at a time.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, text

PAGE = 500
Place = tuple[int, str, int]
"""Job, name and rank of a series."""
BEGIN: Place = (-1, "", -1)
_READ = text(
    "SELECT job, name, rank, levels, samples FROM metric_series "
    "WHERE (job, name, rank) > (:job, :name, :rank) ORDER BY job, name, rank LIMIT :limit"
)
_INTERVALS = text(
    "SELECT data FROM metric_pages "
    "WHERE job = :job AND name = :name AND rank = :rank AND level = :level ORDER BY page"
)
_WRITE = text(
    "UPDATE metric_series SET min_value = :least, max_value = :most "
    "WHERE job = :job AND name = :name AND rank = :rank"
)


def summarize_page(conn: Connection, after: Place, limit: int = PAGE) -> Place | None:
    """Summarize the series behind a place; returns the place of the last one, None at the end."""
    found = conn.execute(
        _READ, {"job": after[0], "name": after[1], "rank": after[2], "limit": limit}
    ).all()
    rows = []
    for row in found:
        key = {"job": row.job, "name": row.name, "rank": row.rank}
        least, most = _values(conn, key, row.levels, row.samples)
        if len(least):
            low, high = float(least.min()), float(most.max())
            rows.append(key | {"least": low, "most": high})
    if rows:
        conn.execute(_WRITE, rows)
    return (found[-1].job, found[-1].name, found[-1].rank) if found else None


def _values(
    conn: Connection, key: dict[str, Any], levels: int, samples: bytes | None
) -> tuple[Any, Any]:
    """Finite values of a series: of samples, or the least and the most of its widest intervals."""
    import numpy as np

    from phalanx.core.curves.rollups import unpack_intervals, unpack_samples

    if samples is not None:
        values = unpack_samples(samples).values
        values = values[np.isfinite(values)]
        return values, values
    parts = conn.execute(_INTERVALS, key | {"level": levels - 1}).scalars()
    found = [unpack_intervals(data) for data in parts]
    if not found:
        empty = np.empty(0)
        return empty, empty
    whole = np.concatenate(found)
    whole = whole[whole["finite"] > 0]
    return whole["low"], whole["high"]
