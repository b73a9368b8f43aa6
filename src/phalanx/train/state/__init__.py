"""The state of a run in checkpoints: writing, choosing, reading, restoring.

Writing: `saving` (torch), `folders` (any framework), `staging`, `sharding`, `tree`, and `committer`, which
JAX shares. Reading: `resume_choice`, `checkpoint_reader`, `resuming`, `restoring`. `storage` has the
optional layers (object store, encryption, compression), `export` other formats, `warm_start` another
job's checkpoint. Nothing here decides when to save; that is `step/save_schedule.py`.
"""
