"""The index of packed output. `packs` has its rows; `store.telemetry` has the segments in no pack."""
