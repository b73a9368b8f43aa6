"""Delete the checkpoints of a job that is deleted, or some of them: in a folder and in an object store.

Both may be repeated after a crash at any point. Checkpoints of another job of the same number, as of a
lost database, are left alone.
"""
