"""The values passed from a job spec to its ranks, and from a rank back to the API.

Read in this order: `checkpointing` (when checkpoints are saved, kept, and where), `trial` (the trial of
a study that a job is), `gang` (identity of a rank, shape of its gang, what a role trains), `environment`
(those values to and from environment variables) and `records` (what a rank writes in its report file).

Standard library only, and light: every rank imports it. No module here reads a clock, a file or
`os.environ`; validation of what users write is in `phalanx.schemas.spec`.
"""
