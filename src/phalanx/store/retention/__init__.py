"""Rows of retention: marks on jobs, deleted jobs, checkpoints to delete, and how much was deleted.

`marks` are archived and pinned jobs, `uses` finds what needs a job, `deletions` deletes the rows of a job
in batches, `removals` is the queue of checkpoints with files that are still there.
"""
