"""Read-only views: jobs, logs, metrics, profiles, stacks, lineage, the feed of events."""
