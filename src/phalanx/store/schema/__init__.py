"""Tables by subject, on the same metadata as `store.tables`, which holds those of jobs and the platform."""
